"""Evaluation: when a value is asked for, find or build the program that computes it, and run it.

Structures:

* `Recipe`: a program with where its inputs are found and where its outputs go, by position in
  the structure (`symgrad.structure`). Recipes are kept by key: a loop's second turn is a lookup
  and a native call. `PairedRecipe` is one of real numbers for a structure with complex nodes.
* `Joint`: the recipe of a value and its derivatives.

A run stores the values of its roots, of nodes that somebody still holds, and of what is dear to
recompute while a derivative may still ask for it. Start reading at `evaluate`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from symgrad.calculus import pullback
from symgrad.calculus.rolling import rolled, whole_turns
from symgrad.dtypes import complex64, float32
from symgrad.errors import TracedValueError
from symgrad.expr import Expr
from symgrad.locks import RenewedLock
from symgrad.op import CONSTANT, DERIVED, INPUT, STATE, input_node, interning, set_look
from symgrad.schedule.canonical import canonical
from symgrad.schedule.complex_parts import as_parts, separated
from symgrad.schedule.program import schedule
from symgrad.structure import Structure, behind

if TYPE_CHECKING:
    from symgrad.codegen.build import Program
    from symgrad.dtypes import DType
    from symgrad.schedule.canonical import Graph, Node
    from symgrad.schedule.complex_parts import Separation
    from symgrad.schedule.steps import Schedule

_RECIPES: dict[Any, Recipe] = {}
_JOINTS: dict[Any, Joint] = {}
_LOCK = RenewedLock()
MAX_RECIPES = 4096

Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]


class Region(NamedTuple):
    """A checkpoint in a traced function: nodes made after `since` and before `until`, by creation number.

    Of their values only the results are kept for the derivative.
    """

    since: int
    until: int
    results: tuple[Expr, ...]


class Recipe:
    """A program and its wiring to a structure.

    Attributes
    ----------
    program : Program
    sources : list of int or ndarray
        Per input: position of the node in the structure, or a number made by the derivative rules.
    stores : list of (position, output, shape)
        Nodes that receive values, which, and under which shape: None if it is the output's.
    results : list of (is input, number, shape)
        Where each root's value is found: among the inputs or the outputs, under which shape.
    paired : bool
        Whether complex arrays go in and out, which the program sees as real ones.
    """

    paired = False

    def __init__(
        self,
        program: Program,
        sources: list[int | np.ndarray],
        stores: list[tuple[int, int, Shape | None]],
        results: list[tuple[bool, int, Shape]],
    ) -> None:
        self.program = program
        self.sources = sources
        self.stores = stores
        self.results = results
        self._compute: Callable[[Arrays], Arrays] | None = None
        own = [(False, k, n.shape) for k, n in enumerate(program.outputs)]
        self._in_order = results == own[: len(results)]

    def run(self, inputs: Arrays) -> tuple[Sequence[np.ndarray], Arrays]:
        """The roots' arrays, and the program's outputs."""
        compute = self._compute
        if compute is None:
            compute = self._compute = self.program.runner()
        made = compute(inputs)
        if self._in_order:
            return made[: len(self.results)], made
        found = [(inputs if is_input else made)[k] for is_input, k, _ in self.results]
        # An input that is a result stays the very array it is: gradients may be cotangents as given.
        return [
            a if a.shape == shape else a.reshape(shape)
            for a, (_, _, shape) in zip(found, self.results, strict=True)
        ], made


class PairedRecipe(Recipe):
    """A recipe on the parts of complex numbers.

    Parameters
    ----------
    inner : Recipe
        Computes the parts as its roots.
    dtypes : list of DType
        Of the values to put together, in order.
    count : int
        How many of them are roots; the others are stored.
    stores : list of (position, number)
        Nodes that receive values, and which.
    """

    paired = True

    def __init__(
        self, inner: Recipe, dtypes: list[DType], count: int, stores: list[tuple[int, int]]
    ) -> None:
        own = len(inner.program.outputs)
        all_stores = [
            *inner.stores,
            *[(position, own + number, None) for position, number in stores],
        ]
        super().__init__(inner.program, inner.sources, all_stores, inner.results)
        self.dtypes = dtypes
        self.count = count

    def run(self, inputs: Arrays) -> tuple[Sequence[np.ndarray], Arrays]:
        """The roots' arrays, and the program's outputs with all values put together after them."""
        parts, made = super().run(tuple([as_parts(a) for a in inputs]))
        found = iter(parts)
        values = []
        for dtype in self.dtypes:
            value = next(found)
            if dtype.is_complex:
                re, value = value, np.empty(value.shape, dtype.numpy)
                value.real, value.imag = re, next(found)
            values.append(value)
        return values[: self.count], (*made, *values)


_SINGLE = (float32, complex64)
_LARGEST = float(np.finfo(np.float32).max)


def array_of(node: Expr) -> np.ndarray:
    """The value of a node as an array."""
    value = node.value
    if isinstance(value, np.ndarray):
        return value
    if node.dtype in _SINGLE and abs(value) > _LARGEST:
        with np.errstate(over="ignore"):
            return np.array(value, node.dtype.numpy)
    return np.array(value, node.dtype.numpy)


def copy_of(node: Expr) -> np.ndarray:
    """The value of a node as an array that nobody else has."""
    array = array_of(node)
    # A value that was only given does not load code generation.
    entry = sys.modules.get("symgrad.codegen.entry")
    return array.copy() if entry is None else entry.copied(array)


def build_recipe(
    nodes: Sequence[Expr],
    roots: Sequence[Expr],
    held: Sequence[Expr],
    inline: bool = False,
    small: bool = False,
    regions: Sequence[Region] = (),
) -> Recipe:
    """Schedule and compile.

    Parameters
    ----------
    nodes : sequence of Expr
        The structure; inputs and stores are found by position in it.
    roots : sequence of Expr
        Whose values are wanted; they need not be part of the structure.
    held : sequence of Expr
        Further nodes of the structure that receive values.
    inline : bool
        Whether vector maths is inlined.
    small : bool
        Whether values are computed again where that lowers the peak of memory.
    regions : sequence of Region, optional
        Checkpoints, inner ones first.
    """
    # Code generation is imported on the first look, so that `import symgrad` stays quick.
    from symgrad.codegen import ahead

    ahead.start()
    separation = separated([*roots, *held])
    if separation is not None:
        return _paired_recipe(separation, nodes, roots, held, inline, small)
    graph = canonical([*roots, *held])
    fold_constants(graph, {id(n) for n in nodes})
    graph.roots = [same_memory(n) for n in graph.roots]
    steps = schedule(graph)
    steps.regions = _inner_values(steps, regions, roots)
    outputs = {n.number: n for n in graph.roots if n.input < 0}
    stored = {n.number for n in steps.stored}
    for e in nodes:
        vertex = graph.of.get(id(e))
        if e.value is None and e.requires_grad and vertex is not None and vertex.input < 0:
            if vertex.number in steps.dear and vertex.number in stored:
                outputs.setdefault(vertex.number, vertex)
    place = {number: k for k, number in enumerate(outputs)}
    position = {id(e): k for k, e in enumerate(nodes)}
    sources = [position[id(e)] if id(e) in position else array_of(e) for e in graph.inputs]
    results = [
        (n.input >= 0, n.input if n.input >= 0 else place[n.number], e.shape)
        for e, n in zip(roots, graph.roots, strict=False)
    ]
    stores = []
    for k, e in enumerate(nodes):
        vertex = graph.of.get(id(e))
        if e.value is None and vertex is not None:
            vertex = same_memory(vertex)
            if vertex.number in place:
                same = vertex.shape == e.shape
                stores.append((k, place[vertex.number], None if same else e.shape))
    from symgrad.codegen.build import Program

    program = Program(steps, list(outputs.values()), inline, small)
    return Recipe(program, sources, stores, results)


def _inner_values(
    steps: Schedule, regions: Sequence[Region], roots: Sequence[Expr]
) -> dict[int, int]:
    """The stored values inside checkpoints, with the number of the outermost one around each."""
    if not regions:
        return {}
    nodes = behind(roots, False)
    serials = [n.serial for n in nodes]
    of = steps.graph.of
    stored = {n.number for n in steps.stored}
    found: dict[int, int] = {}
    for number, region in enumerate(regions):
        inner = nodes[bisect_right(serials, region.since) : bisect_left(serials, region.until)]
        vertices = [of[id(n)].number for n in inner if id(n) in of]
        found |= {vertex: number for vertex in vertices if vertex in stored}
    for number, region in enumerate(regions):
        # A result that has no buffer is read from those of what it is computed from.
        stack = [of[id(n)] for n in region.results if id(n) in of]
        while stack:
            n = stack.pop()
            if n.number not in stored:
                stack += n.args
            elif found.get(n.number) == number:
                del found[n.number]
    return found


def _paired_recipe(
    separation: Separation,
    nodes: Sequence[Expr],
    roots: Sequence[Expr],
    held: Sequence[Expr],
    inline: bool,
    small: bool,
) -> Recipe:
    """The recipe for a structure with complex nodes."""
    stands = separation.stands
    real = [stands.get(id(n), n) for n in nodes]
    inner = build_recipe(real, separation.roots, [], inline, small)
    position = {id(n): k for k, n in enumerate(nodes)}
    stores = [(position[id(n)], len(roots) + k) for k, n in enumerate(held) if id(n) in position]
    return PairedRecipe(inner, [n.dtype for n in (*roots, *held)], len(roots), stores)


MAX_FOLDED = 1 << 20
"""Elements of a constant computed when a program is built, at most."""


def fold_constants(graph: Graph, given: set[int]) -> None:
    """Compute now what depends on nothing that a call gives: integers and truth values only.

    Positions made inside a compiled function from known arrays cost nothing at its calls.
    NumPy's integers are ours to the bit, so folding changes no result.
    """
    literal: dict[int, np.ndarray] = {}
    for n in graph.nodes:
        if n.input >= 0:
            source = graph.inputs[n.input]
            if id(source) not in given and source.dtype.category < 2:
                literal[n.number] = array_of(source)
        elif n.op is CONSTANT:
            if n.dtype.category < 2:
                literal[n.number] = np.array(n.attrs[0], n.dtype.numpy)
        elif (
            n.args
            and n.dtype.category < 2
            and n.size <= MAX_FOLDED
            and n.op.family in ("elementwise", "movement", "index", "library")
            and all(a.number in literal for a in n.args)
        ):
            made = n.op.ref(*[literal[a.number] for a in n.args], **n.attributes())
            array = np.ascontiguousarray(made, n.dtype.numpy).reshape(n.shape)
            literal[n.number] = array
            n.op, n.args, n.attrs = INPUT, (), ()
            n.input = len(graph.inputs)
            graph.inputs.append(input_node(n.shape, n.dtype, array))


def same_memory(n: Node) -> Node:
    """The node whose buffer holds `n`'s elements in the same order: `n`, or what it reshapes.

    Only results that have a buffer anyway count; other chains are computed into the root's own.
    """
    inner = n
    while inner.op.keeps_order and inner.input < 0:
        inner = inner.args[0]
    always = ("reduce", "cumulative", "contract", "library", "region")
    return inner if inner.input < 0 and inner.op.family in always else n


def run_recipe(recipe: Recipe, nodes: Sequence[Expr]) -> Sequence[np.ndarray]:
    """Run a recipe on a structure, store what it stores, and give the roots' arrays."""
    inputs = []
    for source in recipe.sources:
        if isinstance(source, int):
            value = nodes[source].value
            inputs.append(value if type(value) is np.ndarray else array_of(nodes[source]))
        else:
            inputs.append(source)
    found, made = recipe.run(tuple(inputs))
    for position, output, shape in recipe.stores:
        node = nodes[position]
        if node.value is None:
            node.value = made[output] if shape is None else made[output].reshape(shape)
    return found


def evaluate(roots: Sequence[Expr]) -> None:
    """Compute the values of `roots` and store them on their nodes.

    Raises
    ------
    TracedValueError
        If a value depends on an input that has none, inside `symgrad.compile`.
    """
    wanted = [r for r in roots if r.value is None]
    if not wanted:
        return
    nodes = behind(wanted, False, take=True)
    structure = Structure(nodes, False)
    place = structure.place
    held = structure.held(wanted)
    seen_through = anchors([*wanted, *[nodes[k] for k in held]])
    if seen_through:
        held = tuple(sorted({*held, *[place[x.serial] for x in seen_through]}))
    key = (structure.parts, held, *[place[n.serial] for n in wanted])
    recipe = _RECIPES.get(key)
    if recipe is None:
        require_inputs(nodes)
        with _LOCK:
            kept = [nodes[k] for k in held]
            instead, listed = _with_loops(nodes, [*wanted, *kept], pending=True)
            recipe = build_recipe(listed, instead[: len(wanted)], instead[len(wanted) :])
            remember(key, recipe)
    arrays = run_recipe(recipe, nodes)
    for node, array in zip(wanted, arrays, strict=True):
        node.value = array
    release(nodes)


def _with_loops(
    nodes: Sequence[Expr], roots: Sequence[Expr], fixed: Collection[int] = (), pending: bool = False
) -> tuple[list[Expr], list[Expr]]:
    """Roots with the loops behind them rolled, and the structure with these roots in their places."""
    instead = rolled(roots, fixed, pending)
    changed = {id(old): new for old, new in zip(roots, instead, strict=True)}
    return instead, [changed.get(id(n), n) for n in nodes]


def require_inputs(nodes: Sequence[Expr]) -> None:
    """Refuse structures with inputs that have no value."""
    for n in nodes:
        if n.op is INPUT and n.value is None and not n.args:
            if not STATE.tracing:
                raise TracedValueError(
                    "compile: a tensor made inside a compiled or transformed function was kept and its value "
                    f"asked for afterwards (it depends on an input of shape {n.shape}); return it from the "
                    "function, or write it into a tensor from outside with copy_"
                )
            raise TracedValueError(
                "compile: the value of a traced tensor was asked for (bool, item, numpy or print "
                "inside a compiled function); use symgrad.where to choose by condition"
            )


def remember(key: Any, recipe: Recipe) -> None:
    """Keep a recipe for structures with an equal key; the oldest goes when there are many."""
    if len(_RECIPES) >= MAX_RECIPES:
        del _RECIPES[next(iter(_RECIPES))]
    _RECIPES[key] = recipe


def recipe_count() -> int:
    """How many programs are kept."""
    return len(_RECIPES) + len(_JOINTS)


PENDING_LIMIT = 1500


def relieve(node: Expr) -> None:
    """Run a pending graph that has grown too long, so that memory stays bounded in any loop.

    Where turns of a loop are recognised, whole ones are run, so that each run is like the last.
    """
    if not STATE.tracing:
        # In a function of its own: while it runs, a value is held if a reference to its node is left.
        evaluate(_overdue(node))


def _overdue(node: Expr) -> list[Expr]:
    """What to compute of the graph behind a node, if it is too long."""
    seen: dict[int, Expr] = {}
    stack = [node]
    while stack:
        n = stack.pop()
        if n.value is not None or id(n) in seen:
            continue
        if n.op is INPUT and not n.args:
            return []
        seen[id(n)] = n
        stack += n.args
    if len(seen) <= PENDING_LIMIT:
        return []
    return whole_turns(list(seen.values()), PENDING_LIMIT) or [node]


def look(x: Expr) -> np.ndarray | None:
    """The value of `x`, computed if need be; None if it depends on a traced input."""
    if x.value is None:
        if any(n.op is INPUT and n.value is None and not n.args for n in behind([x], False)):
            return None
        evaluate([x])
    return array_of(x)


set_look(look)


# -- derivatives ------------------------------------------------------------------------


class Joint(NamedTuple):
    """The program of a value and its derivatives, and what a pass through it uses up.

    Attributes
    ----------
    recipe : Recipe
    present : tuple of bool
        Which inputs a path leads to from the outputs.
    spent : tuple of int
        Positions of the nodes that the derivative passes.
    freed : tuple of int
        Positions of those whose values only a derivative needs.
    """

    recipe: Recipe
    present: tuple[bool, ...]
    spent: tuple[int, ...]
    freed: tuple[int, ...]

    def run(self, nodes: Sequence[Expr]) -> Sequence[np.ndarray | None]:
        """The gradients' arrays, None where no path leads to the input.

        Values of pending outputs are stored on the way.
        """
        arrays = run_recipe(self.recipe, nodes)
        release(nodes)
        if len(arrays) == len(self.present):
            return arrays
        found = iter(arrays)
        return [next(found) if p else None for p in self.present]


def joint(
    outputs: Sequence[Expr], cotangents: Sequence[Expr], inputs: Sequence[Expr], nodes: list[Expr]
) -> Joint:
    """The joint program of value and derivative, found by its key or built.

    Parameters
    ----------
    outputs, cotangents, inputs : sequences of Expr
        As for `symgrad.calculus.pullback`.
    nodes : list of Expr
        The structure: everything behind outputs and cotangents, in creation order.
    """
    structure = Structure(nodes, True)
    place = structure.place
    held = structure.held(outputs)
    roots = [place.get(n.serial, -1) for n in (*outputs, *cotangents, *inputs)]
    key = (structure.parts, held, len(outputs), *roots)
    found = _JOINTS.get(key)
    if found is None:
        require_inputs(nodes)
        with _LOCK:
            # Within the interning block equal nodes of derivative and program are made once.
            kept = [nodes[k] for k in held]
            instead, listed = _with_loops(nodes, [*outputs, *kept], {id(n) for n in inputs})
            with interning(nodes):
                made = pullback(instead[: len(outputs)], cotangents, inputs)
            wanted = [m for m in made if m is not None]
            stored = [n for n in instead[: len(outputs)] if n.value is None]
            recipe = build_recipe(listed, wanted, [*stored, *instead[len(outputs) :]])
            spent = passed(outputs)
            found = Joint(
                recipe,
                tuple([m is not None for m in made]),
                tuple([place[n.serial] for n in spent]),
                tuple([place[n.serial] for n in freed(spent, outputs)]),
            )
            if len(_JOINTS) >= MAX_RECIPES:
                del _JOINTS[next(iter(_JOINTS))]
            _JOINTS[key] = found
    return found


def _passes(node: Expr) -> bool:
    return node.requires_grad and node.op is not INPUT


def passed(outputs: Sequence[Expr]) -> list[Expr]:
    """The nodes that derivatives of the outputs pass, leaving out leaves and what is only a value."""
    found: dict[int, Expr] = {}
    stack = list(outputs)
    while stack:
        n = stack.pop()
        if id(n) not in found and _passes(n):
            found[id(n)] = n
            # What a derivative is said to be of may be no part of it.
            stack.extend(n.args[:1] if n.op.annotates else n.args)
    return sorted(found.values(), key=lambda n: n.serial)


def freed(spent: Sequence[Expr], outputs: Sequence[Expr]) -> list[Expr]:
    """Of the nodes that a pass used up, those whose values only a derivative needs."""
    return [n for n in spent if n.op.family in ("contract", "reduce") and n not in outputs]


def anchors(nodes: Sequence[Expr]) -> list[Expr]:
    """Pending arguments that accuracy rules may ask for once `nodes` are computed."""
    found = []
    for n in nodes:
        if n.op.anchor is not None and not n.requires_grad:
            x = n.op.anchor(n)
            if x is not None and x.value is None:
                found.append(x)
    return found


def release(nodes: Sequence[Expr]) -> None:
    """Let go of the arguments of computed nodes that no derivative, formula or rule needs."""
    if STATE.dual_levels:
        # A tangent is pushed forward along arguments, whether or not they record derivatives.
        return
    for n in nodes:
        if n.value is None or not n.args:
            continue
        if n.op is INPUT:
            n.args = ()
        elif not n.requires_grad and n.meta is not DERIVED:
            if n.op.anchor is None or n.op.anchor(n) is None:
                n.args = ()
                n.op = INPUT
                n.attrs = ()

"""Index form: what one loop nest computes, as instructions over affine indices.

Structures:

* `Inst`: one instruction: load at an affine offset, constant, position, bounds test, or an
  elementwise op on earlier instructions.
* `Item`: what a nest must produce: a store of a value, or a reduction along one axis, into a
  buffer.
* `Nest`: loop axes, instructions, stores and reductions. Movement ops are gone: they became
  offsets. Axes that all offsets traverse in step are merged, and axes of size 1 dropped.

`NestBuilder` walks the canonical graph with an explicit stack. Start reading at `NestBuilder.need`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symgrad.dtypes import DType, bool_, int64
from symgrad.op import CONSTANT, Op
from symgrad.ops.arithmetic import add, keep
from symgrad.schedule.affine import ZERO, Affine, row_major, split_map, variable
from symgrad.schedule.canonical import Node

Index = tuple[Affine, ...]

LANES = 16
"""Lanes that the terms of a sum go round in; part of the definition of its bits."""


class Inst:
    """One instruction of a nest.

    Attributes
    ----------
    kind : str
        "load", "constant", "position", "inside" or "op".
    dtype : DType
    args : tuple of int
        Earlier instructions.
    op, attrs
        The elementwise op of an "op".
    node : Node or None
        The buffer of a "load"; the input slot of a runtime "constant" is a load as well.
    offset : Affine
        Element offset of a "load", value of a "position".
    bounds : tuple of (Affine, int)
        For "inside": each form must lie in [0, bound).
    guard : int
        Instruction that must hold for a load to be done, -1 for none.
    value : number
        Of a "constant".
    """

    __slots__ = (
        "args",
        "attrs",
        "bounds",
        "dtype",
        "guard",
        "kind",
        "node",
        "offset",
        "op",
        "value",
    )

    def __init__(self, kind: str, dtype: DType, **fields: Any) -> None:
        self.kind = kind
        self.dtype = dtype
        self.args: tuple[int, ...] = fields.get("args", ())
        self.op: Op | None = fields.get("op")
        self.attrs: tuple[Any, ...] = fields.get("attrs", ())
        self.node: Node | None = fields.get("node")
        self.offset: Affine = fields.get("offset", ZERO)
        self.bounds: tuple[tuple[Affine, int], ...] = fields.get("bounds", ())
        self.guard: int = fields.get("guard", -1)
        self.value: Any = fields.get("value")


class Item:
    """What a nest must produce.

    Attributes
    ----------
    target : Node
        Whose buffer is written.
    domain : tuple of int
        Loop axes.
    axis : int
        The reduced or cumulated axis, -1 for a plain store.
    combine : str
        "" for a store; "add", "mul", "max", ... , "dot" (fma of two operands), "argmax", ...
    cumulative : bool
    values : tuple of (Node, Index)
        Operands, with their index in the loop variables.
    offset : Affine
        Element offset in the target's buffer.
    positions : tuple of (Node, Index, int)
        For a write at computed positions: index values and the stride each is multiplied by; the
        domain is then walked in order.
    """

    __slots__ = (
        "axis", "combine", "cumulative", "domain", "identity", "offset", "positions", "target", "values",
    )  # fmt: skip

    def __init__(
        self,
        target: Node,
        domain: tuple[int, ...],
        values: tuple[tuple[Node, Index], ...],
        offset: Affine,
        axis: int = -1,
        combine: str = "",
        identity: float = 0.0,
        cumulative: bool = False,
        positions: tuple[tuple[Node, Index, int], ...] = (),
    ) -> None:
        self.positions = positions
        self.target = target
        self.domain = domain
        self.values = values
        self.offset = offset
        self.axis = axis
        self.combine = combine
        self.identity = identity
        self.cumulative = cumulative

    def drop_unit_axes(self) -> None:
        """Leave out axes of size 1, so that items that differ in them alone share a nest."""
        kept = [d for d, s in enumerate(self.domain) if s != 1 or d == self.axis]
        if len(kept) == len(self.domain):
            return
        place = {d: k for k, d in enumerate(kept)}

        def renamed(form: Affine) -> Affine:
            return Affine(form.const, tuple((place[v], k) for v, k in form.terms if v in place))

        def moved(index: Index) -> Index:
            return tuple(renamed(form) for form in index)

        self.domain = tuple(self.domain[d] for d in kept)
        self.axis = place.get(self.axis, -1)
        self.values = tuple((n, moved(index)) for n, index in self.values)
        self.positions = tuple((n, moved(index), step) for n, index, step in self.positions)
        self.offset = renamed(self.offset)


class Output:
    """An item inside a nest: instructions in place of nodes, offsets and axis in the nest's axes."""

    __slots__ = (
        "axis", "combine", "cumulative", "identity", "insts", "offset", "scattered", "target",
    )  # fmt: skip

    def __init__(self, item: Item, insts: tuple[int, ...]) -> None:
        self.scattered = bool(item.positions)
        self.target = item.target
        self.axis = item.axis
        self.combine = item.combine
        self.cumulative = item.cumulative
        self.identity = item.identity
        self.insts = insts
        self.offset = item.offset


class Nest:
    """A loop nest in index form.

    Attributes
    ----------
    sizes : list of int
        Loop axes, outermost first.
    axis : int
        The reduced axis, -1 if there is none; the last of two.
    cross : int
        The other axis that outputs reduce along, -1 if there is none.
    insts : list of Inst
    dynamic : dict of int to int
        Instruction that gives the value of each negative variable.
    outputs : list of Output
    straight : bool
        Whether it is to be written out, without loops: it has one short axis at most.
    filled : Node or None
        A buffer that it fills with zeros, ahead of its stores to it.
    """

    def __init__(
        self,
        sizes: list[int],
        insts: list[Inst],
        dynamic: dict[int, int],
        outputs: list[Output],
    ) -> None:
        reduced = sorted({o.axis for o in outputs} - {-1})
        self.sizes = sizes
        self.axis = reduced[-1] if reduced else -1
        self.cross = reduced[0] if len(reduced) == 2 else -1
        self.insts = insts
        self.dynamic = dynamic
        self.outputs = outputs
        self.straight = False
        self.filled: Node | None = None

    def forms(self) -> list[Affine]:
        """Every affine form in the nest."""
        found = [o.offset for o in self.outputs]
        for inst in self.insts:
            if inst.kind in ("load", "position"):
                found.append(inst.offset)
            for form, _ in inst.bounds:
                found.append(form)
        return found

    def simplify(self) -> None:
        """Drop axes of size 1 and merge neighbours that every form traverses in step."""
        if self.axis < 0 and not any(output.scattered for output in self.outputs):
            self._sort()
        groups: list[list[int]] = []
        kept = (self.axis, self.cross)
        forms = self.forms()
        for axis, size in enumerate(self.sizes):
            if size == 1 and axis not in kept:
                continue
            if groups:
                last = groups[-1][-1]
                if (
                    axis not in kept
                    and last not in kept
                    and all(f.coefficient(last) == f.coefficient(axis) * size for f in forms)
                ):
                    groups[-1].append(axis)
                    continue
            groups.append([axis])
        sizes = []
        place = {-1: -1}
        for number, group in enumerate(groups):
            sizes.append(math.prod(self.sizes[axis] for axis in group))
            place[group[-1]] = number
        self.sizes = sizes
        self.axis = place[self.axis]
        self.cross = place[self.cross]
        self._rename(place)

    def with_buffers(self, buffers: Mapping[int, Node]) -> Nest:
        """The same nest with other buffers, by number of those that they stand for."""
        made = copy.copy(self)
        made.insts = [copy.copy(inst) for inst in self.insts]
        made.outputs = [copy.copy(output) for output in self.outputs]
        for inst in made.insts:
            if inst.node is not None:
                inst.node = buffers.get(inst.node.number, inst.node)
        for output in made.outputs:
            output.target = buffers.get(output.target.number, output.target)
        if made.filled is not None:
            made.filled = buffers.get(made.filled.number, made.filled)
        return made

    def relaid(self, offset: Callable[[Node, Affine], Affine]) -> Nest:
        """The same loops over buffers that are laid out otherwise: `offset` says where an element is."""
        insts = list(self.insts)
        for number, inst in enumerate(insts):
            if inst.kind == "load" and inst.node is not None:
                form = offset(inst.node, inst.offset)
                if form is not inst.offset:
                    insts[number] = moved = copy.copy(inst)
                    moved.offset = form
        outputs = list(self.outputs)
        for number, output in enumerate(outputs):
            form = offset(output.target, output.offset)
            if form is not output.offset:
                outputs[number] = placed = copy.copy(output)
                placed.offset = form
        return Nest(self.sizes, insts, self.dynamic, outputs)

    def varies(self, number: int, axis: int) -> bool:
        """Whether an instruction's value depends on a loop axis."""
        stack = [number]
        seen: set[int] = set()
        while stack:
            k = stack.pop()
            if k in seen:
                continue
            seen.add(k)
            inst = self.insts[k]
            forms = [inst.offset, *[form for form, _ in inst.bounds]]
            for form in forms:
                if form.coefficient(axis):
                    return True
                stack.extend(self.dynamic[v] for v, _ in form.terms if v < 0)
            stack.extend(inst.args)
            if inst.guard >= 0:
                stack.append(inst.guard)
        return False

    def _sort(self) -> None:
        """Put axes, whose order is free, in that of the memory that is written."""
        written = self.outputs[0].offset
        axes = sorted(range(len(self.sizes)), key=lambda axis: -abs(written.coefficient(axis)))
        self.sizes = [self.sizes[axis] for axis in axes]
        self._rename({-1: -1, **{axis: place for place, axis in enumerate(axes)}})

    def _rename(self, place: dict[int, int]) -> None:
        def renamed(form: Affine) -> Affine:
            terms = [(v if v < 0 else place[v], k) for v, k in form.terms if v < 0 or v in place]
            return Affine(form.const, tuple(sorted(terms)))

        for output in self.outputs:
            output.offset = renamed(output.offset)
            output.axis = place[output.axis]
        for inst in self.insts:
            inst.offset = renamed(inst.offset)
            if inst.bounds:
                inst.bounds = tuple((renamed(f), n) for f, n in inst.bounds)


def identity_index(count: int) -> Index:
    """The loop variables themselves."""
    return tuple(variable(d) for d in range(count))


def offset_of(index: Sequence[Affine], shape: tuple[int, ...]) -> Affine:
    """The element offset of an index in a contiguous buffer."""
    total = ZERO
    for form, step, size in zip(index, row_major(shape), shape, strict=True):
        # Along an axis of size 1 the index is 0, whatever its form says about masked elements.
        if size != 1:
            total = total + form * step
    return total


class NestBuilder:
    """Builds the instructions of one nest.

    Parameters
    ----------
    loaded : callable
        Whether a node's value is read from its buffer rather than computed in the nest.
    """

    def __init__(self, loaded: Callable[[Node], bool]) -> None:
        self.loaded = loaded
        self.insts: list[Inst] = []
        self.dynamic: dict[int, int] = {}
        self._memo: dict[Any, int] = {}
        self._dynamic_of: dict[int, int] = {}

    def build(self, items: Sequence[Item]) -> Nest:
        """The nest of items that share their domain and axis."""
        outputs = []
        for item in items:
            insts = tuple(self.need(node, index) for node, index in item.values)
            output = Output(item, insts)
            for node, index, stride in item.positions:
                form = variable(self._dynamic_variable(self.need(node, index)))
                output.offset = output.offset + form * stride
            outputs.append(output)
        nest = Nest(list(items[0].domain), self.insts, self.dynamic, outputs)
        nest.simplify()
        return nest

    def need(self, node: Node, index: Index) -> int:
        """The instruction that computes `node` at `index`."""
        root = (node.number, index, -1, False)
        stack: list[tuple[Node, Index, int, bool]] = [(node, index, -1, False)]
        while stack:
            n, at, guard, flat = stack[-1]
            key = (n.number, at, guard, flat)
            if key in self._memo:
                stack.pop()
                continue
            before = len(stack)
            made = self._step(n, at, guard, flat, stack)
            if made is not None:
                self._memo[key] = made
                stack.pop()
            elif len(stack) == before:
                raise AssertionError(f"no progress at {n!r}")
        return self._memo[root]

    def _dynamic_variable(self, number: int) -> int:
        """The variable that stands for the value of an instruction."""
        name = self._dynamic_of.get(number)
        if name is None:
            name = self._dynamic_of[number] = -1 - len(self._dynamic_of)
            self.dynamic[name] = number
        return name

    def _child(
        self, stack: list[Any], node: Node, index: Index, guard: int, flat: bool = False
    ) -> int | None:
        found = self._memo.get((node.number, index, guard, flat))
        if found is None:
            stack.append((node, index, guard, flat))
        return found

    def _append(self, inst: Inst) -> int:
        self.insts.append(inst)
        return len(self.insts) - 1

    def _step(self, n: Node, at: Index, guard: int, flat: bool, stack: list[Any]) -> int | None:
        """One instruction if the operands are there, else push the operands."""
        if n.op is CONSTANT and n.input < 0:
            return self._shared("constant", n.dtype, value=n.attrs[0])
        if n.input >= 0 or self.loaded(n):
            offset = at[0] if flat else offset_of(at, n.shape)
            if not offset.terms and 0 <= offset.const < n.size:
                # One element, which is there wherever the guard fails.
                guard = -1
            return self._shared("load", n.dtype, node=n, offset=offset, guard=guard)
        family = n.op.family
        if family == "elementwise":
            return self._elementwise(n, at, guard, flat, stack)
        if family == "movement":
            return self._movement(n, at, guard, flat, stack)
        if family == "create":
            return self._shared("position", int64, offset=at[0])
        if family == "index":
            return self._read(n, at, guard, stack)
        if family == "reduce":
            return self._short_sum(n, at, guard, stack)
        if family == "contract":
            return self._short_product(n, at, guard, stack)
        raise AssertionError(f"{n!r} needs a buffer of its own")

    def _shared(self, kind: str, dtype: DType, **fields: Any) -> int:
        identity = (kind, dtype, *[repr(v) if k == "value" else v for k, v in fields.items()])
        found = self._memo.get(identity)
        if found is None:
            found = self._memo[identity] = self._append(Inst(kind, dtype, **fields))
        return found

    def _elementwise(
        self, n: Node, at: Index, guard: int, flat: bool, stack: list[Any]
    ) -> int | None:
        numbers = []
        missing = False
        for a in reversed(n.args):
            if flat:
                index: Index = (ZERO,) if a.size == 1 and n.size != 1 else at
            elif a.shape == n.shape:
                index = at
            else:
                extra = len(at) - len(a.shape)
                index = tuple(ZERO if s == 1 else at[extra + d] for d, s in enumerate(a.shape))
            found = self._child(stack, a, index, guard, flat)
            if found is None:
                missing = True
            else:
                numbers.append(found)
        if missing:
            return None
        numbers.reverse()
        return self._append(Inst("op", n.dtype, op=n.op, attrs=n.attrs, args=tuple(numbers)))

    def _short_sum(self, n: Node, at: Index, guard: int, stack: list[Any]) -> int | None:
        """A sum of a few terms, written out in the order of the fixed tree: lanes fold by halves."""
        a = n.args[0]
        dim = n.attrs[0]
        terms: list[int] = []
        missing = False
        for k in range(a.shape[dim]):
            found = self._child(stack, a, (*at[:dim], Affine(k), *at[dim:]), guard)
            if found is None:
                missing = True
            else:
                terms.append(found)
        if missing:
            return None
        half = LANES
        while half > 1:
            half //= 2
            joined = []
            for k, term in enumerate(terms[:half]):
                if k + half < len(terms):
                    term = self._append(Inst("op", n.dtype, op=add, args=(term, terms[k + half])))
                joined.append(term)
            terms = joined
        return terms[0]

    def _short_product(self, n: Node, at: Index, guard: int, stack: list[Any]) -> int | None:
        """An element of a matrix product of a few terms: their chain, from +0.0 on."""
        a, b = n.args
        batch, row, column = at
        factors: list[int | None] = []
        for k in range(a.shape[2]):
            factors.append(self._child(stack, a, (batch, row, Affine(k)), guard))
            factors.append(self._child(stack, b, (batch, Affine(k), column), guard))
        found = [number for number in factors if number is not None]
        if len(found) < len(factors):
            return None
        total = self._shared("constant", n.dtype, value=0.0)
        for x, y in zip(found[::2], found[1::2], strict=True):
            total = self._append(Inst("op", n.dtype, op=n.op, args=(x, y, total)))
        return total

    def _movement(self, n: Node, at: Index, guard: int, flat: bool, stack: list[Any]) -> int | None:
        a = n.args[0]
        if n.op.keeps_order:
            index, into_flat = self._reshaped(n, a, at, flat)
            return self._child(stack, a, index, guard, into_flat)
        if flat:
            # Only a scalar can be reached here (`flat_readable`): any index is its one element.
            return self._child(stack, a, (ZERO,) * len(a.shape), guard, False)
        attrs = n.attributes()
        index = tuple(_affine(i) for i in n.op.index(list(at), a, **attrs))  # type: ignore[attr-defined]
        if not n.op.bounded:
            return self._child(stack, a, index, guard)
        tests = tuple(
            (form, size)
            for form, size, full in zip(index, a.shape, n.shape, strict=True)
            if size != full
        )
        parents = (guard,) if guard >= 0 else ()
        inside = self._shared("inside", bool_, bounds=tests, args=parents)
        value = self._child(stack, a, index, inside)
        if value is None:
            return None
        return self._append(Inst("op", n.dtype, op=keep, args=(inside, value)))

    def _reshaped(self, n: Node, a: Node, at: Index, flat: bool) -> tuple[Index, bool]:
        if flat:
            return at, True
        pairs = split_map(a.shape, n.shape)
        if pairs is not None:
            index = []
            for terms in pairs:
                form = ZERO
                for axis, factor in terms:
                    form = form + at[axis] * factor
                index.append(form)
            return tuple(index), False
        return (offset_of(at, n.shape),), True

    def _read(self, n: Node, at: Index, guard: int, stack: list[Any]) -> int | None:
        """A read at computed positions: the index values become dynamic variables."""
        data, *indices = n.args
        where = at[: len(indices[0].shape)]
        numbers = []
        missing = False
        for i in indices:
            found = self._child(stack, i, where, guard)
            if found is None:
                missing = True
            else:
                numbers.append(found)
        if missing:
            return None
        forms = []
        for number in numbers:
            forms.append(variable(self._dynamic_variable(number)))
        return self._child(stack, data, (*forms, *at[len(where) :]), guard)


def _affine(form: Any) -> Affine:
    return form if isinstance(form, Affine) else Affine(int(form))


def flat_readable(node: Node, loaded: Callable[[Node], bool], memo: dict[int, bool]) -> bool:
    """Whether a node can be evaluated by its row-major position alone."""
    stack = [node]
    while stack:
        n = stack[-1]
        if n.number in memo:
            stack.pop()
            continue
        if n.input >= 0 or loaded(n) or n.op is CONSTANT or (n.size == 1 and not n.args):
            memo[n.number] = True
            continue
        parts: tuple[Node, ...] = ()
        if n.op.family == "elementwise":
            if any(a.shape != n.shape and a.size != 1 for a in n.args):
                memo[n.number] = False
                continue
            parts = n.args
        elif n.op.keeps_order:
            parts = n.args
        elif n.op.family == "movement" and n.args[0].size == 1 and not n.op.bounded:
            parts = ()
            memo[n.number] = True
            continue
        else:
            memo[n.number] = False
            continue
        waiting = [a for a in parts if a.number not in memo]
        if waiting:
            stack.extend(waiting)
        else:
            memo[n.number] = all(memo[a.number] for a in parts)
    return memo[node.number]

"""One traced structure of a compiled function's arguments: what a call reads, computes and changes.

Structure: `Trace`. Start reading at `Trace.__init__`; a call goes through `Trace.run`, or through
`Trace.replay` when derivatives flow through it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from symgrad import dtypes, runtime
from symgrad.calculus.rolling import rolled
from symgrad.capture import Capture, tensor_of
from symgrad.expr import Expr
from symgrad.locks import RenewedLock
from symgrad.nesting import flatten, size, unflatten
from symgrad.op import CONSTANT, INPUT, STATE, grad_mode, input_node, record
from symgrad.ops.random import key_array
from symgrad.structure import behind
from symgrad.tensor import Tensor, from_array, plain_array

if TYPE_CHECKING:
    from symgrad.storage import Slot

_LOCK = RenewedLock()


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses Python's search for cycles: it would look through a growing graph again and again."""
    pauses = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


STATIC = "static"


def leaf_of(value: Any) -> Any:
    """A leaf of arguments or results as it is handled: complex numbers are arrays."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        return plain_array(value)
    if isinstance(value, complex | np.complexfloating) and not isinstance(value, float):
        return np.array(value, np.complex128)
    return value


def kind_of(leaf: Any, recording: bool) -> Any:
    """What of a leaf decides the trace: for one whose value is compiled in, the value."""
    if isinstance(leaf, Tensor):
        return ("tensor", tuple(leaf.shape), leaf.dtype, recording and leaf.requires_grad)
    if isinstance(leaf, np.ndarray):
        return ("array", leaf.shape, dtypes.from_numpy(leaf.dtype))
    if isinstance(leaf, float | np.floating):
        return ("float",)
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(
            f"compile: an argument of type {type(leaf).__name__} is neither a tensor, array, number, "
            "list, tuple or dict nor hashable; pass its parts"
        ) from error
    return (STATIC, type(leaf), leaf)


def is_dynamic(leaf: Any) -> bool:
    """Whether a leaf's value is not part of the compiled code."""
    return isinstance(leaf, Tensor | np.ndarray | float | np.floating)


class Trace:
    """One traced structure.

    Attributes
    ----------
    inputs : list of Expr
        One node without a value per dynamic leaf.
    captured : list of (Tensor or Slot, Expr)
        Tensors from outside, or leaves whose gradients are read, and the nodes that stand for them.
    on_graph : bool
        Whether derivatives flow to a captured tensor.
    regions : list of Region
        Checkpoints in the function.
    outputs : list of Expr
    form
        How the result is nested.
    fixed : dict of int to object
        The result's leaves that are no outputs, by their places.
    written : list of (Tensor or Slot, Expr)
        Captured tensors that the function changes in place, with their new values.
    computed : list of (Slot, Expr)
        Leaves from outside that the function gives another gradient, and that.
    given : list of (Slot, Tensor or None)
        Leaves from outside whose gradient the function takes away, or sets to a tensor from outside.
    had : list of (Slot, bool)
        Leaves whose gradient the function asks for, and whether they had one.
    writer : callable or None
        The native function that writes results into given arrays, once it was made.
    """

    def __init__(
        self, function: Callable[..., Any], form: Any, kinds: tuple[Any, ...], small: bool
    ) -> None:
        capture = Capture()
        self._small = small
        self.inputs: list[Expr] = []
        self.computed: list[tuple[Slot, Expr]] = []
        self.given: list[tuple[Slot, Tensor | None]] = []
        self.had: list[tuple[Slot, bool]] = []
        given: list[Any] = []
        handles: list[Tensor] = []
        for kind in kinds:
            if kind[0] == STATIC:
                given.append(kind[2])
                continue
            shape, dtype = ((), dtypes.float64) if kind[0] == "float" else kind[1:3]
            node = input_node(shape, dtype, grad=kind[0] == "tensor" and kind[3])
            self.inputs.append(node)
            handles.append(Tensor(node))
            given.append(handles[-1])
        capture.adopt(handles)
        before = STATE.tracing
        STATE.tracing = True
        try:
            with capture:
                args, kwargs = unflatten(form, given)
                found, self.form = flatten(function(*args, **kwargs))
                self.fixed = {k: v for k, v in enumerate(found) if not is_dynamic(leaf_of(v))}
                self.outputs = [
                    self._output(leaf_of(v)) for k, v in enumerate(found) if k not in self.fixed
                ]
                capture.check_flags()
                self.written = capture.written
                self._take_gradients(capture)
        finally:
            STATE.tracing = before
        self.captured = capture.read
        self.on_graph = any(node.requires_grad for _, node in self.captured)
        self.draws = capture.draws
        self.regions = capture.regions
        rest = iter(rolled(self.roots()))
        self.outputs = [next(rest) for _ in self.outputs]
        self.written = [(t, next(rest)) for t, _ in self.written]
        self.computed = [(slot, next(rest)) for slot, _ in self.computed]
        self._recipe: runtime.Recipe | None = None
        self.writer: Callable[..., Any] | None = None

    def leaves(self, outputs: Iterable[Any]) -> list[Any]:
        """The leaves of the result: outputs, and what the function returned beside them."""
        rest = iter(outputs)
        return [self.fixed[k] if k in self.fixed else next(rest) for k in range(size(self.form))]

    def _output(self, value: Any) -> Expr:
        if isinstance(value, Tensor):
            return value.expr()
        array = np.asarray(value)
        return input_node(array.shape, dtypes.from_numpy(array.dtype), array)

    def _take_gradients(self, capture: Capture) -> None:
        """Note what becomes of the gradients of leaves from outside."""
        for slot, present, changed, now in capture.gradients():
            if present is not None:
                self.had.append((slot, present))
            if changed and now is not None and now._trace in capture.inside:
                self.computed.append((slot, now.own_expr()))
            elif changed:
                self.given.append((slot, now))

    def roots(self) -> list[Expr]:
        """Everything a call computes."""
        changed = [node for _, node in (*self.written, *self.computed)]
        return [*self.outputs, *changed]

    def fits(self) -> bool:
        """Whether the tensors from outside are still of the kind that was traced."""
        for slot, present in self.had:
            if (slot.grad is not None) != present:
                return False
        for holder, node in self.captured:
            now = (holder if isinstance(holder, Tensor) else tensor_of(holder)).expr()
            if (
                now.requires_grad != node.requires_grad
                or now.dtype is not node.dtype
                or now.shape != node.shape
            ):
                return False
        return True

    def nodes(self) -> list[Expr]:
        """The traced structure, inputs first."""
        return [
            *self.inputs,
            *[node for _, node in self.captured],
            *[node for _, node in self.draws],
        ]

    @property
    def recipe(self) -> runtime.Recipe:
        """The program, built on first use, with vector maths inlined."""
        if self._recipe is None:
            with _LOCK, uncollected():
                if self._recipe is None:
                    self._recipe = runtime.build_recipe(
                        self.nodes(), self.roots(), [], True, self._small, self.regions
                    )
        return self._recipe

    def run(self, leaves: list[Any]) -> Sequence[np.ndarray]:
        """Arrays of the roots for given leaves."""
        keys = [key_array(generator.next_key()) for generator, _ in self.draws]
        return self.recipe.run(self.arrays(leaves, keys))[0]

    def arrays(self, leaves: list[Any], keys: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The recipe's inputs for given leaves and keys of random generators."""
        outside = [tensor_of(holder).look() for holder, _ in self.captured]
        arrays = [*[as_array(leaf) for leaf in leaves], *outside, *keys]
        sources = self.recipe.sources
        return tuple([s if isinstance(s, np.ndarray) else arrays[s] for s in sources])

    @property
    def native(self) -> bool:
        """Whether a native entry can run it: nothing of it is known to Python alone."""
        recipe = self.recipe
        changes = self.written or self.computed or self.given or self.had
        return recipe.program.native and not (
            recipe.paired or self.draws or self.captured or changes
        )

    def replay(self, leaves: list[Any]) -> list[Expr]:
        """The roots recorded again on the nodes of given leaves."""
        new: dict[int, Expr] = {}
        for node, leaf in zip(self.inputs, leaves, strict=True):
            new[id(node)] = (
                leaf.expr() if isinstance(leaf, Tensor) else from_array(as_array(leaf)).expr()
            )
        for holder, node in self.captured:
            new[id(node)] = tensor_of(holder).expr()
        for generator, node in self.draws:
            new[id(node)] = from_array(key_array(generator.next_key())).expr()
        for n in behind(self.roots(), False):
            if id(n) in new:
                continue
            if n.op is CONSTANT or n.value is not None:
                new[id(n)] = n
            elif n.op is INPUT:
                new[id(n)] = new[id(n.args[0])]
            else:
                args = tuple(new[id(a)] for a in n.args)
                with grad_mode(STATE.grad and n.requires_grad):
                    new[id(n)] = record(n.op, args, n.attrs, n.shape, n.dtype)
        return [new[id(r)] for r in self.roots()]


def as_array(leaf: Any) -> np.ndarray:
    """The array of an argument's leaf."""
    if isinstance(leaf, Tensor):
        return leaf.look()
    if isinstance(leaf, np.ndarray):
        return np.ascontiguousarray(leaf)
    return np.array(leaf, np.float64)

"""The call of a user's Function in the graph: what it saved, and how its derivative is run.

Structures: `UserCall`, the call as the graph knows it; `Saved`, where a saved tensor is found
again. Start reading at `recorded`, then `UserCall.pull`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from symgrad.autograd import saved
from symgrad.autograd.anomaly import traceback_text
from symgrad.autograd.applied import Call, apply, result_of
from symgrad.autograd.engine import AGAIN
from symgrad.autograd.hooks import is_spent, users_code
from symgrad.autograd.walk import unpacked
from symgrad.expr import Expr, ancestors
from symgrad.op import INPUT, STATE, cast_to, grad_mode, record
from symgrad.ops.reduce import sum_to
from symgrad.storage import Barrier, joined
from symgrad.tensor import Tensor

NO_JVP = "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."

_VIEW_OF_INPUT = (
    "Output 0 of {} is a view and is being modified inplace. This view was created inside a custom "
    "Function (or because an input was returned as-is) and the autograd logic to handle view+inplace "
    "would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)


class Frames(threading.local):
    """The calls whose derivative runs in this thread: context and node, innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Expr]] = []


FRAMES = Frames()


class Saved:
    """A saved tensor: where the call's node has it, and the handle while it lives.

    `kind` is "operand", "result" or "value"; `place` counts within it.
    """

    __slots__ = ("handle", "kind", "packed", "place")

    def __init__(self, kind: str, place: int, handle: Tensor, packed: Any) -> None:
        self.kind = kind
        self.place = place
        self.handle = weakref.ref(handle)
        self.packed = packed


class UserCall(Call):
    """One call of a user's Function.

    Attributes
    ----------
    function, base : type
        The user's class, and the class that it derives from.
    ctx : FunctionCtx
    entries : list of Saved or None
    places : list of int or None
        Per input of the call its position among the operands.
    positions : list of int or None
        Per output of the call its position among the results.
    tensors : dict of str to int
        Attributes of the context that are tensors, by position among the saved values.
    """

    def __init__(self, function: Any, base: Any, ctx: Any, operands: int) -> None:
        super().__init__(type(ctx).__name__, operands, [])
        self.function = function
        self.base = base
        self.ctx = ctx
        self.entries: list[Saved | None] = []
        self.places: list[int | None] = []
        self.positions: list[int | None] = []
        self.tensors: dict[str, int] = {}
        self.forward_entries: list[Saved | None] = []

    def attribute(self, node: Expr, name: str) -> Any:
        """An attribute of the context, seen from the graph."""
        if name == "saved_tensors":
            return self.saved(self.ctx, node)
        return getattr(self.ctx, name)

    def saved(self, ctx: Any, node: Expr) -> tuple[Any, ...]:
        """The saved tensors of a call's node."""
        if is_spent(node):
            raise RuntimeError(AGAIN)
        return tuple(None if e is None else self._given_back(e, node) for e in self.entries)

    def _given_back(self, entry: Saved, node: Expr) -> Tensor:
        if entry.packed is not None:
            return Tensor(unpacked(*entry.packed))
        if entry.kind == "operand":
            source = node.args[entry.place]
        elif entry.kind == "result":
            source = result_of(node, entry.place)
        else:
            source = node.args[self.operands + entry.place]
            if STATE.grad:
                source = revived(source, node.args[: self.operands])
        handle = entry.handle()
        if handle is not None and handle.expr() is source:
            return handle
        return Tensor(source)

    def context(self, node: Expr) -> Any:
        """The context for a node of this call: its own, or one whose tensors are functions of the node's."""
        if not self.tensors or (self.node() is node and not STATE.grad):
            return self.ctx
        made = object.__new__(type(self.ctx))
        made.__dict__.update(self.ctx.__dict__)
        for name, place in self.tensors.items():
            value = node.args[self.operands + place]
            if STATE.grad:
                value = revived(value, node.args[: self.operands])
            setattr(made, name, Tensor(value))
        made._call = self
        return made

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """Run the user's backward on the cotangents of the outputs."""
        backward = self._backward()
        ctx = self.context(node)
        given = []
        for position in self.positions:
            g = None if position is None else cotangents[position]
            if g is None and position is not None and ctx._materialize:
                g = self.zeros(position)
            given.append(None if g is None else Tensor(g))
        FRAMES.stack.append((ctx, node))
        outer, ctx._call = ctx._call, self
        try:
            with users_code():
                returned = backward(ctx, *given)
        finally:
            ctx._call = outer
            FRAMES.stack.pop()
        return self._gradients(node, returned)

    def _backward(self) -> Callable[..., Any]:
        own = self.function.backward is not self.base.backward
        other = self.function.vjp is not self.base.vjp
        if own and other:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should "
                "only implement one of them."
            )
        return self.function.vjp if other else self.function.backward

    def _gradients(self, node: Expr, returned: Any) -> list[Expr | None]:
        """What backward returned, checked and in the shape and type of the inputs."""
        listed = list(returned) if isinstance(returned, tuple | list) else [returned]
        expected = len(self.places)
        while len(listed) > expected and listed[-1] is None:
            listed.pop()
        if len(listed) != expected:
            raise RuntimeError(
                f"function {self.name} returned an incorrect number of gradients (expected {expected}, "
                f"got {len(listed)})"
            )
        found: list[Expr | None] = [None] * self.operands
        for number, (place, g) in enumerate(zip(self.places, listed, strict=True)):
            if g is None:
                continue
            if place is None:
                raise RuntimeError(
                    f"function {self.name} returned a gradient different than None at position "
                    f"{number + 1}, but the corresponding forward input was not a Variable"
                )
            if not isinstance(g, Tensor):
                raise RuntimeError(
                    f"function {self.name} returned an invalid gradient at position {number + 1}: "
                    f"expected Variable or None (got {type(g).__name__})"
                )
            found[place] = self._fitted(number, g.expr(), node.args[place])
        return found

    def _fitted(self, number: int, g: Expr, operand: Expr) -> Expr | None:
        if operand.dtype.category < 2:
            return None
        if g.shape != operand.shape:
            missing = len(g.shape) - len(operand.shape)
            fits = missing >= 0 and all(
                want in (1, have)
                for want, have in zip(operand.shape, g.shape[missing:], strict=True)
            )
            if not fits:
                raise RuntimeError(
                    f"Function {self.name} returned an invalid gradient at index {number} - got "
                    f"{list(g.shape)} but expected shape compatible with {list(operand.shape)}"
                )
            g = sum_to(g, operand.shape)
        return cast_to(g, operand.dtype)

    def push(self, tangents: Sequence[Expr]) -> Sequence[Expr | None]:
        """Run the user's jvp on the tangents of the inputs."""
        if self.function.jvp is self.base.jvp:
            raise NotImplementedError(NO_JVP)
        node = self.node()
        given = [None if p is None else Tensor(tangents[p]) for p in self.places]
        if self.ctx._for_forward is not None:
            entries, self.entries = self.entries, self.forward_entries
        else:
            entries = self.entries
        FRAMES.stack.append((self.ctx, node))
        outer, self.ctx._call = self.ctx._call, self
        try:
            with users_code():
                moved = self.function.jvp(self.ctx, *given)
        finally:
            self.ctx._call = outer
            FRAMES.stack.pop()
            self.entries = entries
        listed = moved if isinstance(moved, tuple) else (moved,)
        found: list[Expr | None] = [None] * len(self.results)
        for position, t in zip(self.positions, listed, strict=False):
            if position is not None and isinstance(t, Tensor):
                found[position] = t.expr()
        return found


def revived(value: Expr, operands: Sequence[Expr]) -> Expr:
    """A node computed under `no_grad`, recorded again as a function of the operands."""
    new: dict[int, Expr] = {id(o): o for o in operands if o.requires_grad}
    with grad_mode(True):
        for n in ancestors([value], lambda n: id(n) not in new and not n.requires_grad):
            if id(n) in new or not any(id(a) in new for a in n.args):
                continue
            args = tuple([new.get(id(a), a) for a in n.args])
            if n.op is INPUT:
                made = args[0]
            else:
                made = record(n.op, args, n.attrs, n.shape, n.dtype)
                if made.value is None:
                    made.value = n.value
            if made.requires_grad:
                new[id(n)] = made
    return new.get(id(value), value)


def recorded(
    call: UserCall, args: tuple[Any, ...], operands: list[Expr | None], outputs: tuple[Any, ...]
) -> list[Any]:
    """Put the call in the graph; the outputs as the user gets them."""
    ctx = call.ctx
    count = 0
    for o in operands:
        call.places.append(None if o is None else count)
        count += o is not None
    inputs = [o for o in operands if o is not None]
    values: list[Expr] = []
    for o in outputs:
        call.positions.append(len(values) if isinstance(o, Tensor) else None)
        if isinstance(o, Tensor):
            values.append(o.expr())
    call.results = [(v.shape, v.dtype) for v in values]
    extra: list[Expr] = []
    call.entries = [_entry(call, t, args, operands, outputs, extra) for t in ctx._to_save]
    if ctx._for_forward is not None:
        call.forward_entries = [
            _entry(call, t, args, operands, outputs, extra) for t in ctx._for_forward
        ]
    ctx._to_save = ()
    for name, value in vars(ctx).items():
        if isinstance(value, Tensor):
            call.tensors[name] = len(extra)
            extra.append(value.expr())
    call.traceback = traceback_text()
    results = apply(call, inputs, extra, values)
    made: list[Any] = []
    for o, position in zip(outputs, call.positions, strict=True):
        if position is None:
            made.append(o)
        else:
            made.append(_output(call, o, results[position], args))
    return made


def _entry(
    call: UserCall,
    t: Tensor | None,
    args: tuple[Any, ...],
    operands: Sequence[Expr | None],
    outputs: tuple[Any, ...],
    extra: list[Expr],
) -> Saved | None:
    """Where a saved tensor is found again."""
    if t is None:
        return None
    packed = saved.pack(saved.ACTIVE.pairs[-1], t) if saved.ACTIVE.pairs else None
    node = t.expr()
    for a, o, place in zip(args, operands, call.places, strict=True):
        if a is t and node is o and place is not None:
            return Saved("operand", place, t, packed)
    for o, position in zip(outputs, call.positions, strict=True):
        if o is t and position is not None:
            return Saved("result", position, t, packed)
    for o, place in zip(operands, call.places, strict=True):
        if node is o and place is not None:
            return Saved("operand", place, t, packed)
    extra.append(node)
    return Saved("value", len(extra) - 1, t, packed)


def _output(call: UserCall, o: Tensor, result: Expr, args: tuple[Any, ...]) -> Tensor:
    """An output as the user gets it."""
    ctx = call.ctx
    given = any(a is o for a in args)
    if any(t is o for t in ctx._dirty):
        before = o._version
        o.write(result)
        storage = o.family().storage
        storage.quiet = storage.version - before
        return o
    if not result.requires_grad or any(t is o for t in ctx._non_differentiable):
        if not result.requires_grad and not o.requires_grad and call.node().requires_grad:
            return o
        if call.node().requires_grad:
            return o.detach()
    source = o if given else next((a for a in args if _is_view_of(o, a)), None)
    if source is not None:
        made = Tensor(result)
        made._family = o.family()
        steps = tuple([s for s in o.here()._path if not isinstance(s[0], Barrier)])
        made._path = (*steps, (_ResultView(call.name, result), ()))
        made._seen = made._family.storage.version
        return made
    if o._path or o.expr().serial < call.node().args[0].serial:
        return Tensor(result)
    o._become(result)
    return o


class _ResultView(Barrier):
    """The last step of the path of an output that is a view of an input: the call's history."""

    def __init__(self, name: str, result: Expr) -> None:
        super().__init__(_VIEW_OF_INPUT.format(name))
        self.result = result

    def __call__(self, x: Expr) -> Expr:
        return joined(x, self.result)


def _is_view_of(o: Tensor, a: Any) -> bool:
    if not isinstance(a, Tensor):
        return False
    view, other = o.here(), a.here()
    return bool(view._path) and other._family is not None and view._family is other._family

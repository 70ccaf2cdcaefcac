"""Functions whose derivative the user writes: `Function`, its context, `once_differentiable`.

`apply` runs `forward` with grad mode off, as in torch, but the graph of what it did is kept. So a
saved tensor that is neither input nor output is still a function of the inputs, and when the
backward pass is recorded (`create_graph`) it takes part as such: second derivatives through saved
intermediates are right. In the graph the call is one node (`symgrad.autograd.applied`).

Structures:

* `FunctionCtx`: what `forward` and `backward` share; the class of each Function's contexts has
  the name of its node.
* `_UserCall`: the call as the graph knows it.

Start reading at `Function.apply`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from symgrad.autograd import forward_ad, saved
from symgrad.autograd.anomaly import traceback_text
from symgrad.autograd.applied import Call, apply, result_of
from symgrad.autograd.engine import AGAIN
from symgrad.autograd.hooks import is_spent, users_code
from symgrad.autograd.walk import unpacked
from symgrad.capture import Capture
from symgrad.expr import Expr, ancestors
from symgrad.op import INPUT, STATE, cast_to, grad_mode, interning, record
from symgrad.ops.reduce import sum_to
from symgrad.storage import Barrier, joined
from symgrad.tensor import Tensor

__all__ = ["Function", "FunctionCtx", "InplaceFunction", "once_differentiable"]

ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"

_VIEW_OF_INPUT = (
    "Output 0 of {} is a view and is being modified inplace. This view was created inside a custom "
    "Function (or because an input was returned as-is) and the autograd logic to handle view+inplace "
    "would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)


class _Frames(threading.local):
    """The calls whose derivative runs in this thread: context and node, innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Expr]] = []


_FRAMES = _Frames()


class FunctionCtx:
    """What the forward and the backward of one call share.

    Attributes
    ----------
    needs_input_grad : tuple of bool
        Per input of the call whether it requires grad.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._for_forward: tuple[Any, ...] | None = None
        self._dirty: tuple[Any, ...] = ()
        self._non_differentiable: tuple[Any, ...] = ()
        self._materialize = True
        self._call: Any = None

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (or None) for the backward pass; the last call counts."""
        for number, t in enumerate(tensors):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {number} is of type "
                    f"{type(t).__name__}"
                )
        self._to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors (or None) for `jvp`."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise TypeError("save_for_forward expects all arguments to be tensors or None")
        self._for_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs were changed in place; they are outputs too."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no derivative."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing cotangents come as zeros (the default) or as None."""
        self._materialize = bool(value)

    def mark_shared_storage(self, *pairs: Any) -> None:
        """Nothing, as in torch: sharing is found out."""

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved, as it was when the call was made.

        Raises
        ------
        RuntimeError
            After a backward pass without `retain_graph`.
        """
        for ctx, node in reversed(_FRAMES.stack):
            if ctx is self:
                return self._call.saved(self, node)
        call = self._call() if isinstance(self._call, weakref.ref) else self._call
        node = None if call is None else call.node()
        if call is None or node is None:
            return self._to_save
        found: tuple[Any, ...] = call.saved(self, node)
        return found

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dictionary for the user."""
        found: dict[Any, Any] = self.__dict__.setdefault("_metadata", {})
        return found


class _Saved:
    """A saved tensor: where the call's node has it, and the handle while it lives.

    `kind` is "operand", "result" or "value"; `place` counts within it.
    """

    __slots__ = ("handle", "kind", "packed", "place")

    def __init__(self, kind: str, place: int, handle: Tensor, packed: Any) -> None:
        self.kind = kind
        self.place = place
        self.handle = weakref.ref(handle)
        self.packed = packed


class _UserCall(Call):
    """One call of a user's Function.

    Attributes
    ----------
    function : type
    ctx : FunctionCtx
    entries : list of _Saved or None
    places : list of int or None
        Per input of the call its position among the operands.
    positions : list of int or None
        Per output of the call its position among the results.
    tensors : dict of str to int
        Attributes of the context that are tensors, by position among the saved values.
    """

    def __init__(self, function: Any, ctx: Any, name: str, operands: int) -> None:
        super().__init__(name, operands, [])
        self.function = function
        self.ctx = ctx
        self.entries: list[_Saved | None] = []
        self.places: list[int | None] = []
        self.positions: list[int | None] = []
        self.tensors: dict[str, int] = {}
        self.forward_entries: list[_Saved | None] = []

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

    def _given_back(self, entry: _Saved, node: Expr) -> Tensor:
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
        _FRAMES.stack.append((ctx, node))
        outer, ctx._call = ctx._call, self
        try:
            with users_code():
                returned = backward(ctx, *given)
        finally:
            ctx._call = outer
            _FRAMES.stack.pop()
        return self._gradients(node, returned)

    def _backward(self) -> Callable[..., Any]:
        own = self.function.backward is not Function.backward
        other = self.function.vjp is not Function.vjp
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
                want in (1, have) for want, have in zip(operand.shape, g.shape[missing:], strict=True)
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
        if self.function.jvp is Function.jvp:
            raise NotImplementedError(NO_JVP)
        node = self.node()
        given = [None if p is None else Tensor(tangents[p]) for p in self.places]
        if self.ctx._for_forward is not None:
            entries, self.entries = self.entries, self.forward_entries
        else:
            entries = self.entries
        _FRAMES.stack.append((self.ctx, node))
        outer, self.ctx._call = self.ctx._call, self
        try:
            with users_code():
                moved = self.function.jvp(self.ctx, *given)
        finally:
            self.ctx._call = outer
            _FRAMES.stack.pop()
            self.entries = entries
        listed = moved if isinstance(moved, tuple) else (moved,)
        found: list[Expr | None] = [None] * len(self.results)
        for position, t in zip(self.positions, listed, strict=False):
            if position is not None and isinstance(t, Tensor):
                found[position] = t.expr()
        return found


NO_JVP = (
    "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
)


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


@contextmanager
def _body() -> Any:
    """Around a forward: grad mode off, and what is computed keeps its arguments."""
    before = STATE.table
    STATE.table = None
    try:
        with grad_mode(False), interning():
            yield
    finally:
        STATE.table = before


class _FunctionType(type):
    """Makes the class of a Function's contexts, named as its node."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._backward_cls = type(f"{name}Backward", (FunctionCtx,), {"_forward_cls": cls})


class Function(metaclass=_FunctionType):
    """A function with a derivative of the user's own.

    Subclass it with static methods ``forward(ctx, *args)`` and ``backward(ctx, *grads)`` (or
    ``forward(*args)`` with ``setup_context(ctx, inputs, output)``), and call it by `apply`.

    Examples
    --------
    >>> import symgrad as sg
    >>> class Cube(sg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         square = x * x
    ...         ctx.save_for_backward(square)
    ...         return square * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (square,) = ctx.saved_tensors
    ...         return 3 * square * g
    >>> x = sg.tensor(2., requires_grad=True)
    >>> (g,) = sg.autograd.grad(Cube.apply(x), x, create_graph=True)
    >>> g.item(), sg.autograd.grad(g, x)[0].item()
    (12.0, 12.0)
    """

    _backward_cls: Any
    generate_vmap_rule = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style "
            "autograd function with static forward method, called by `apply`."
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """What the function computes; to be given by the subclass."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save what backward needs, for a `forward` without a context."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the inputs from those of the outputs; to be given by the subclass."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to "
            "use it with backward mode AD."
        )

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        """Another name of `backward`."""
        raise NotImplementedError("vjp is not implemented.")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Tangents of the outputs from those of the inputs, for forward mode."""
        raise NotImplementedError(NO_JVP)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The function on batches, for `symgrad.func.vmap`."""
        raise NotImplementedError("vmap is not implemented.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Parameters
        ----------
        *args
            Tensors, whose gradients backward gives, and anything else.
        **kwargs
            Arguments by the names of forward's parameters.
        """
        two_steps = cls.setup_context is not Function.setup_context
        if kwargs:
            args = _bound(cls.forward, two_steps, args, kwargs)
        if STATE.capture is not None:
            _refuse_in_transform(cls, two_steps)
        return _apply(cls, two_steps, args)


class InplaceFunction(Function):
    """An old base class for functions that may work in place."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


def _refuse_in_transform(cls: Any, two_steps: bool) -> None:
    """Ask of a Function inside a transform of `symgrad.func` what torch asks."""
    capture = STATE.capture
    if type(capture) is Capture:
        return
    if not two_steps:
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, "
            f"...), it must override the setup_context staticmethod (got {cls.__name__})."
        )
    compiled = False
    while capture is not None:
        compiled = compiled or type(capture) is Capture
        capture = capture._outer
    if STATE.tracing and not compiled and not cls.generate_vmap_rule and cls.vmap is Function.vmap:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please override and "
            "implement the vmap staticmethod or set generate_vmap_rule=True."
        )


def _bound(
    forward: Callable[..., Any], two_steps: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Arguments given by name in their places."""
    signature = inspect.signature(forward)
    parameters = list(signature.parameters.values())
    if not two_steps:
        signature = signature.replace(parameters=parameters[1:])
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _moved(args: Sequence[Any]) -> bool:
    """Whether a tensor among the arguments carries a tangent."""
    level = forward_ad._LEVELS.current
    if level is None or not level.nodes:
        return False
    return any(
        isinstance(a, Tensor) and a.dtype.category >= 2 and level.tangent(a.expr()) is not None
        for a in args
    )


def _apply(cls: Any, two_steps: bool, args: tuple[Any, ...]) -> Any:
    ctx = cls._backward_cls()
    operands = [a.expr() if isinstance(a, Tensor) else None for a in args]
    ctx.needs_input_grad = tuple([o is not None and o.requires_grad for o in operands])
    moved = _moved(args)
    if moved and cls.jvp is Function.jvp:
        raise NotImplementedError(NO_JVP)
    recording = moved or (STATE.grad and any(ctx.needs_input_grad))
    with _body():
        if two_steps:
            result = cls.forward(*args)
            cls.setup_context(ctx, args, result)
        else:
            result = cls.forward(ctx, *args)
    for t in ctx._dirty:
        t.family().storage.step(t.family(), False)
        t._seen = t.family().storage.version
    single = not isinstance(result, tuple)
    outputs = (result,) if single else result
    if any(all(o is not t for o in outputs) for t in ctx._dirty):
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The "
            "inputs that are modified inplace must all be outputs of the Function."
        )
    if not recording:
        return result
    call = _UserCall(cls, ctx, cls._backward_cls.__name__, sum(o is not None for o in operands))
    ctx._call = weakref.ref(call)
    made = _recorded(call, args, operands, outputs)
    return made[0] if single else tuple(made)


def _recorded(
    call: _UserCall, args: tuple[Any, ...], operands: list[Expr | None], outputs: tuple[Any, ...]
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
    call: _UserCall,
    t: Tensor | None,
    args: tuple[Any, ...],
    operands: Sequence[Expr | None],
    outputs: tuple[Any, ...],
    extra: list[Expr],
) -> _Saved | None:
    """Where a saved tensor is found again."""
    if t is None:
        return None
    packed = saved.pack(saved.ACTIVE.pairs[-1], t) if saved.ACTIVE.pairs else None
    node = t.expr()
    for a, o, place in zip(args, operands, call.places, strict=True):
        if a is t and node is o and place is not None:
            return _Saved("operand", place, t, packed)
    for o, position in zip(outputs, call.positions, strict=True):
        if o is t and position is not None:
            return _Saved("result", position, t, packed)
    for o, place in zip(operands, call.places, strict=True):
        if node is o and place is not None:
            return _Saved("operand", place, t, packed)
    extra.append(node)
    return _Saved("value", len(extra) - 1, t, packed)


def _output(call: _UserCall, o: Tensor, result: Expr, args: tuple[Any, ...]) -> Tensor:
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
        steps = tuple([s for s in o._path if not isinstance(s[0], Barrier)])
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
    return (
        isinstance(a, Tensor) and bool(o._path) and a._family is not None and o._family is a._family
    )


class _Refusal(Call):
    """The derivative of a derivative that may be taken only once."""

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """Refused."""
        raise RuntimeError(ONCE)


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a backward whose result cannot be differentiated: it runs with grad mode off."""

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any) -> Any:
        with grad_mode(False):
            returned = fn(ctx, *args)
        if not STATE.grad:
            return returned
        sources = [a.expr() for a in args if isinstance(a, Tensor) and a.requires_grad]
        if not sources:
            return returned
        listed = returned if isinstance(returned, tuple) else (returned,)
        values = [t.detach().expr() for t in listed if isinstance(t, Tensor)]
        call = _Refusal("ErrorBackward", len(sources), [(v.shape, v.dtype) for v in values])
        made = iter(apply(call, sources, (), values))
        wrapped = tuple([Tensor(next(made)) if isinstance(t, Tensor) else t for t in listed])
        return wrapped if isinstance(returned, tuple) else wrapped[0]

    return wrapper



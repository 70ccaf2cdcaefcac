"""Functions whose derivative the user writes: `Function`, its context, `once_differentiable`.

`apply` runs `forward` with grad mode off, as in torch, but the graph of what it did is kept. So a
saved tensor that is neither input nor output is still a function of the inputs, and when the
backward pass is recorded (`create_graph`) it takes part as such: second derivatives through saved
intermediates are right. In the graph the call is one node (`symgrad.autograd.applied`).

Structures:

* `FunctionCtx`: what `forward` and `backward` share; the class of each Function's contexts has
  the name of its node.
* `UserCall` (`symgrad.autograd.function_call`): the call as the graph knows it.

Start reading at `Function.apply`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from symgrad.autograd import forward_ad
from symgrad.autograd.applied import Call, apply
from symgrad.autograd.function_call import FRAMES, NO_JVP, UserCall, recorded
from symgrad.capture import Capture
from symgrad.expr import Expr
from symgrad.op import STATE, grad_mode, interning
from symgrad.tensor import Tensor

__all__ = ["Function", "FunctionCtx", "InplaceFunction", "once_differentiable"]

ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"


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
        for ctx, node in reversed(FRAMES.stack):
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
        t.count_change()
    single = not isinstance(result, tuple)
    outputs = (result,) if single else result
    if any(all(o is not t for o in outputs) for t in ctx._dirty):
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The "
            "inputs that are modified inplace must all be outputs of the Function."
        )
    if not recording:
        return result
    call = UserCall(cls, Function, ctx, sum(o is not None for o in operands))
    ctx._call = weakref.ref(call)
    made = recorded(call, args, operands, outputs)
    return made[0] if single else tuple(made)


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

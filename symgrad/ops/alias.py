"""Nodes that are another node's value under a different history.

`detach` cuts the derivative; `join` has the value of one node and the derivative of another
(a tensor whose memory was changed behind its history's back); `head` and `derivative` say what a
value is. None computes anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import op
from symgrad.op import Op, record
from symgrad.sample import Case, T


class Alias(Op):
    """The value of the first argument."""

    family = "alias"
    public = False

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        return record(self, args, (), args[0].shape, args[0].dtype)


@op
class detach(Alias):
    """The same value without a derivative."""

    nodiff = "cut on request"
    samples = (Case(T(3)),)

    def ref(x: np.ndarray) -> Any:
        return x

    def sympy(sp: Any, x: Any) -> Any:
        return x


@op
class join(Alias):
    """The value of `x` with the derivative of `history`."""

    samples = (Case(T(3), T(3)),)

    def ref(x: np.ndarray, history: np.ndarray) -> Any:
        return x

    def sympy(sp: Any, x: Any, history: Any) -> Any:
        return x

    def partials(out: Expr, x: Expr, history: Expr) -> Any:
        return None, 1.0


@op
class head(Alias):
    """A value with the name and the direct argument of the function that made it.

    ``head(value, x, name="softmax", detail=(dim,))`` is `value`; accuracy rules recognise the
    function by name, whatever its value was composed of (`symgrad.simplify`).
    """

    attributes = ("name", "detail")
    samples = (Case(T(3), T(3), name="softmax", detail=(0,)),)

    def __call__(self, value: Expr, x: Expr, *, name: str, detail: tuple[Any, ...]) -> Expr:
        return record(self, (value, x), (name, detail), value.shape, value.dtype)

    def ref(value: np.ndarray, x: np.ndarray, **attrs: Any) -> Any:
        return value

    def sympy(sp: Any, value: Any, x: Any, **attrs: Any) -> Any:
        return value

    def partials(out: Expr, value: Expr, x: Expr, **attrs: Any) -> Any:
        return 1.0, None

    def batched(count: int, value: Expr, x: Expr, *, name: str, detail: tuple[int, ...]) -> Any:
        return head(value, x, name=name, detail=tuple(d + 1 for d in detail))


@op
class derivative(Alias):
    """A value that is the derivative of some order of `y` by `x`, element by element.

    ``derivative(value, y, x, order=2)`` is `value`, in the shape of `x`; with a further argument it
    is that derivative times this factor, which does not depend on `x`. Calculus goes on from there
    (`symgrad.calculus.successive`).
    """

    attributes = ("order",)
    annotates = True
    rewrites = (lambda args, attrs: args[0],)
    samples = (Case(T(3), T(3), T(3), order=1),)

    def __call__(self, value: Expr, y: Expr, x: Expr, *factor: Expr, order: int) -> Expr:
        args = (value, y, x, *factor)
        return Expr(self, args, (order,), value.shape, value.dtype, value.requires_grad)  # type: ignore[arg-type]

    def ref(value: np.ndarray, *known: np.ndarray, order: int) -> Any:
        return value

    def sympy(sp: Any, value: Any, *known: Any, order: int) -> Any:
        return value

    def partials(out: Expr, value: Expr, *known: Expr, order: int) -> Any:
        return 1.0, *(None for _ in known)


@op
class clone(Alias):
    """A copy: the same value in memory of its own; derivatives flow through."""

    linear = "joint"
    public = False
    samples = (Case(T(3)),)

    def ref(x: np.ndarray) -> Any:
        return np.array(x)

    def sympy(sp: Any, x: Any) -> Any:
        return x

    def adjoint(g: Expr, x: Expr) -> Any:
        return (g,)

"""Exponential, logarithmic and trigonometric functions, and powers.

Their vector code is `symgrad.codegen.vmath`; here stand what they are and how they change.
Derivative formulas are chosen for range: they neither overflow nor lose their tails where the
derivative itself is representable. Start reading at `exp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.op import Case, Elementwise, T, op
from symgrad.ops.arithmetic import Binary, eq, where


class Unary(Elementwise):
    """One operand; integers become the default float."""

    accepts = "float"
    cost = 12.0
    samples = (Case(T(2, 3)), Case(T()), Case(T(0)))


class PositiveUnary(Unary):
    """Defined for positive operands."""

    domain = (0.05, 4.0)
    samples = (Case(T(2, 3, lo=0.1, hi=3)), Case(T(lo=0.1, hi=3)), Case(T(0)))


@op
class exp(Unary):
    """Exponential e**x."""

    ref = np.exp

    def sympy(sp: Any, x: Any) -> Any:
        return sp.exp(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (out,)

    def lower(b: Any, x: Any) -> Any:
        return b.math("exp", x)


@op
class log(PositiveUnary):
    """Natural logarithm; -inf at 0, NaN below."""

    ref = np.log

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / x,)

    def lower(b: Any, x: Any) -> Any:
        return b.math("log", x)


@op
class sqrt(PositiveUnary):
    """Square root, correctly rounded."""

    cost = 6.0
    ref = np.sqrt

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sqrt(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (0.5 / out,)

    def lower(b: Any, x: Any) -> Any:
        return b.sqrt(x)


@op
class sin(Unary):
    """Sine, argument in radians."""

    ref = np.sin

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sin(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (cos(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("sin", x)


@op
class cos(Unary):
    """Cosine, argument in radians."""

    ref = np.cos

    def sympy(sp: Any, x: Any) -> Any:
        return sp.cos(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (-sin(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("cos", x)


@op
class pow(Binary):  # noqa: A001
    """Power x**y.

    A Python number as exponent is compiled in, and its derivative drops to the exact lower
    power; the derivative in the exponent is 0 at x = 0 for y >= 0, as in torch.
    """

    cost = 25.0
    fixed_operands = (1,)
    ref = np.power
    samples = (
        Case(T(2, 3, lo=0.2, hi=2), T(2, 3)),
        Case(T(4, 1, lo=0.2, hi=2), T(3)),
        Case(T(5), 2),
        Case(T(5), 3.0),
        Case(T(5, lo=0.5, hi=2), -1.5),
    )

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x**y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        fixed = y.attrs[0] if y.op.family == "leaf" and y.attrs else None
        if fixed == 0:
            return 0.0, where(x > 0, log(x), 0.0) if y.requires_grad else None
        if fixed is not None:
            return _lowered(x, fixed), None
        in_base = where(eq(y, 0), 0.0, y * pow(x, y - 1.0))
        in_exponent = where(eq(x, 0) & (y >= 0), 0.0, out * log(x))
        return in_base, in_exponent

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.power(x, y)


def _lowered(x: Expr, exponent: float) -> Expr | float:
    """exponent * x**(exponent - 1), in the simplest form of that power."""
    if exponent == 1:
        return 1.0
    if exponent == 2:
        return 2.0 * x  # type: ignore[no-any-return]
    return float(exponent) * pow(x, float(exponent) - 1.0)  # type: ignore[no-any-return]

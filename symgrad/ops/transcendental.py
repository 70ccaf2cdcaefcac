"""Exponential, logarithmic, trigonometric and hyperbolic functions.

Their vector code is `symgrad.codegen.vmath`; here stand what they are and how they change.
Derivative formulas are chosen for range: they neither overflow nor lose their tails where the
derivative itself is representable. Start reading at `exp`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Elementwise, op
from symgrad.ops import complex_forms
from symgrad.ops.arithmetic import Binary, eq, where
from symgrad.sample import Case, T

LN2 = math.log(2.0)
LN10 = math.log(10.0)


class Unary(Elementwise):
    """One operand; integers become the default float."""

    accepts = "float"
    cost = 12.0
    parameters = ("input",)
    samples = (Case(T(2, 3)), Case(T()), Case(T(0)), Case(T(3, lo=1, hi=3, dtype="int")))


class PositiveUnary(Unary):
    """Defined for positive operands."""

    domain = (0.05, 4.0)
    samples = (Case(T(2, 3, lo=0.1, hi=3)), Case(T(lo=0.1, hi=3)), Case(T(0)))


class UnitUnary(Unary):
    """Defined between -1 and 1."""

    domain = (-0.95, 0.95)
    samples = (Case(T(2, 3, lo=-0.9, hi=0.9)), Case(T(lo=-0.9, hi=0.9)), Case(T(0)))


class UnaryOfOrder(Unary):
    """One operand, and the order of a derivative as attribute."""

    public = False
    attributes = ("order",)

    def __call__(self, x: Expr, *, order: int = 1) -> Expr:  # type: ignore[override]
        return Elementwise.__call__(self, x, order=order)  # type: ignore[arg-type]


class FloatBinary(Binary):
    """Two operands; integers become the default float."""

    accepts = "float"
    cost = 12.0


@op
class exp(Unary):
    """Exponential e**x."""

    ref = np.exp
    parts = complex_forms.exp

    def sympy(sp: Any, x: Any) -> Any:
        return sp.exp(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (out,)

    def lower(b: Any, x: Any) -> Any:
        return b.math("exp", x)


@op
class exp2(Unary):
    """Power of two 2**x, exact for integers."""

    ref = np.exp2

    def sympy(sp: Any, x: Any) -> Any:
        return 2**x

    def partials(out: Expr, x: Expr) -> Any:
        return (exp2_derivative(x, order=1),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("exp2", x)


@op
class exp2_derivative(UnaryOfOrder):
    """ln(2)**order * 2**x: finite also where 2**x alone overflows."""

    samples = (Case(T(2, 3), order=1), Case(T(4), order=3))

    def ref(x: Any, *, order: int = 1) -> Any:
        return LN2**order * np.exp2(x)

    def sympy(sp: Any, x: Any, *, order: int) -> Any:
        return sp.log(2) ** order * 2**x

    def partials(out: Expr, x: Expr, *, order: int) -> Any:
        return (exp2_derivative(x, order=order + 1),)

    def lower(b: Any, x: Any, *, order: int) -> Any:
        v = b.value(x)
        factor = LN2**order
        # x - shift is exact for x >= 64, and 2**shift * factor is at least 1.
        shift = math.ceil(order * 0.53)
        large = v > 64.0
        power = b.apply("exp2", b.choose(large, v - float(shift), v))
        return (power * b.choose(large, v.const(factor * 2.0**shift), factor)).val


@op
class expm1(Unary):
    """exp(x) - 1, accurate near 0."""

    ref = np.expm1
    parts = complex_forms.expm1

    def sympy(sp: Any, x: Any) -> Any:
        return sp.exp(x) - 1

    def partials(out: Expr, x: Expr) -> Any:
        return (exp(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("expm1", x)


@op
class log(PositiveUnary):
    """Natural logarithm; -inf at 0, NaN below."""

    ref = np.log
    parts = complex_forms.log

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / x,)

    def lower(b: Any, x: Any) -> Any:
        return b.math("log", x)


@op
class log2(PositiveUnary):
    """Logarithm to base 2; exact for powers of two."""

    ref = np.log2
    parts = complex_forms.log2

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(x, 2)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / (x * LN2),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("log2", x)


@op
class log10(PositiveUnary):
    """Logarithm to base 10."""

    ref = np.log10
    parts = complex_forms.log10

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(x, 10)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / (x * LN10),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("log10", x)


@op
class log1p(Unary):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""

    domain = (-0.9, 4.0)
    samples = (Case(T(2, 3, lo=-0.8, hi=3)), Case(T(lo=-0.8, hi=3)), Case(T(0)))
    ref = np.log1p
    parts = complex_forms.log1p

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(1 + x)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / (x + 1.0),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("log1p", x)


@op
class sqrt(PositiveUnary):
    """Square root, correctly rounded."""

    cost = 6.0
    ref = np.sqrt
    parts = complex_forms.sqrt

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sqrt(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (0.5 / out,)

    def lower(b: Any, x: Any) -> Any:
        return b.sqrt(x)


@op
class rsqrt(PositiveUnary):
    """1 / sqrt(x)."""

    cost = 12.0
    parts = complex_forms.rsqrt

    def ref(x: Any) -> Any:
        return 1.0 / np.sqrt(x)

    def sympy(sp: Any, x: Any) -> Any:
        return 1 / sp.sqrt(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (-0.5 * out / x,)

    def lower(b: Any, x: Any) -> Any:
        return b.div(b.const(1.0, x), b.sqrt(x))


@op
class sin(Unary):
    """Sine, argument in radians."""

    ref = np.sin
    parts = complex_forms.sin

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
    parts = complex_forms.cos

    def sympy(sp: Any, x: Any) -> Any:
        return sp.cos(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (-sin(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("cos", x)


@op
class tan(Unary):
    """Tangent, argument in radians."""

    domain = (-1.3, 1.3)
    samples = (Case(T(2, 3, lo=-1.2, hi=1.2)), Case(T(lo=-1.2, hi=1.2)), Case(T(0)))
    ref = np.tan
    parts = complex_forms.tan

    def sympy(sp: Any, x: Any) -> Any:
        return sp.tan(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (out * out + 1.0,)

    def lower(b: Any, x: Any) -> Any:
        return b.math("tan", x)


@op
class asin(UnitUnary):
    """Inverse sine; NaN beyond 1."""

    aliases = ("arcsin",)
    ref = np.arcsin
    parts = complex_forms.asin

    def sympy(sp: Any, x: Any) -> Any:
        return sp.asin(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (rsqrt((1.0 - x) * (x + 1.0)),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("asin", x)


@op
class acos(UnitUnary):
    """Inverse cosine; NaN beyond 1."""

    aliases = ("arccos",)
    ref = np.arccos
    parts = complex_forms.acos

    def sympy(sp: Any, x: Any) -> Any:
        return sp.acos(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (-rsqrt((1.0 - x) * (x + 1.0)),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("acos", x)


@op
class atan(Unary):
    """Inverse tangent."""

    aliases = ("arctan",)
    ref = np.arctan
    parts = complex_forms.atan

    def sympy(sp: Any, x: Any) -> Any:
        return sp.atan(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / (x * x + 1.0),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("atan", x)


@op
class atan2(Binary):
    """Angle of the point (x, y), given as atan2(y, x); both signs of zero count.

    The derivative at the origin is 0, as in torch.
    """

    accepts = "float"
    aliases = ("arctan2",)
    cost = 20.0
    ref = np.arctan2

    def sympy(sp: Any, y: Any, x: Any) -> Any:
        return sp.atan2(y, x)

    def partials(out: Expr, y: Expr, x: Expr) -> Any:
        # Dividing twice by the radius neither overflows nor underflows where x*x + y*y would.
        radius = hypot(y, x)
        origin = eq(radius, 0.0)
        in_y = where(origin, 0.0, x / radius / radius)
        return in_y, where(origin, 0.0, -(y / radius / radius))

    def lower(b: Any, y: Any, x: Any) -> Any:
        return b.math("atan2", y, x)


@op
class hypot(FloatBinary):
    """sqrt(x**2 + y**2) without overflow; its derivative at the origin is 0."""

    ref = np.hypot

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.sqrt(x**2 + y**2)

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        origin = eq(out, 0.0)
        return where(origin, 0.0, x / out), where(origin, 0.0, y / out)

    def lower(b: Any, x: Any, y: Any) -> Any:
        p, q = abs(b.widened(x)), abs(b.widened(y))
        infinite = p.equals(math.inf) | q.equals(math.inf)
        first = p > q
        large, small = b.choose(first, p, q), b.choose(first, q, p)
        if x.kind == "double":
            up, down = large < 2.0**-500, large > 2.0**500
            factor = b.choose(down, 2.0**-600, b.choose(up, large.const(2.0**600), 1.0))
            back = b.choose(down, 2.0**600, b.choose(up, large.const(2.0**-600), 1.0))
            large, small = large * factor, small * factor
            length = (large * large + small * small).sqrt() * back
        else:
            length = (large * large + small * small).sqrt()
        return b.narrowed(b.choose(infinite, math.inf, length), x.kind)


@op
class sinh(Unary):
    """Hyperbolic sine."""

    ref = np.sinh
    parts = complex_forms.sinh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sinh(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (cosh(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("sinh", x)


@op
class cosh(Unary):
    """Hyperbolic cosine."""

    ref = np.cosh
    parts = complex_forms.cosh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.cosh(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (sinh(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("cosh", x)


@op
class tanh(Unary):
    """Hyperbolic tangent."""

    ref = np.tanh
    parts = complex_forms.tanh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.tanh(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (sech_squared(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("tanh", x)


@op
class sech_squared(Unary):
    """1 - tanh(x)**2, with its full tail: the derivative of tanh."""

    public = False
    parts = complex_forms.sech_squared

    def ref(x: Any) -> Any:
        return 1.0 / np.cosh(x) ** 2

    def sympy(sp: Any, x: Any) -> Any:
        return 1 - sp.tanh(x) ** 2

    def partials(out: Expr, x: Expr) -> Any:
        return (-2.0 * (tanh(x) * out),)

    def lower(b: Any, x: Any) -> Any:
        e = b.apply("exp", abs(b.value(x)) * -2.0)
        d = e + 1.0
        return ((e * 4.0) / (d * d)).val


@op
class asinh(Unary):
    """Inverse hyperbolic sine."""

    aliases = ("arcsinh",)
    ref = np.arcsinh
    parts = complex_forms.asinh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.asinh(x)

    def partials(out: Expr, x: Expr) -> Any:
        if x.dtype.is_complex:
            return (rsqrt(x * x + 1.0),)
        return (1.0 / hypot(x, 1.0),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("asinh", x)


@op
class acosh(Unary):
    """Inverse hyperbolic cosine; NaN below 1."""

    aliases = ("arccosh",)
    domain = (1.05, 5.0)
    samples = (Case(T(2, 3, lo=1.1, hi=4)), Case(T(lo=1.1, hi=4)), Case(T(0)))
    ref = np.arccosh
    parts = complex_forms.acosh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.acosh(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (rsqrt(x - 1.0) * rsqrt(x + 1.0),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("acosh", x)


@op
class atanh(UnitUnary):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""

    aliases = ("arctanh",)
    ref = np.arctanh
    parts = complex_forms.atanh

    def sympy(sp: Any, x: Any) -> Any:
        return sp.atanh(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / ((1.0 - x) * (x + 1.0)),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("atanh", x)

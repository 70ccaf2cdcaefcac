"""Rounding and division with a remainder.

What jumps has derivative 0 between the jumps, and that is a strong zero: results require grad as
in torch, and no cotangent, however large, comes through. Start reading at `floor`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op
from symgrad.op import constant
from symgrad.ops.arithmetic import Binary, div, mul, not_implemented, sub
from symgrad.sample import Case, T


def nowhere() -> tuple[Expr, float]:
    """The selection that holds for no element: a derivative that is 0 everywhere."""
    return constant(False, dtypes.bool_), 1.0


class Rounding(Elementwise):
    """One operand of integer or floating type; integers are their own rounding."""

    parameters = ("input",)
    samples = (
        Case(T(2, 3, lo=0.1, hi=0.9)),
        Case(T(9, lo=-3, hi=3), smooth=False),
        Case(T(lo=-3, hi=3), smooth=False),
        Case(T(0)),
        Case(T(4, dtype="int")),
    )
    errors = (Case(T(2, dtype="bool"), match="not implemented for 'Bool'"),)

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise not_implemented(self.name, common, "convert with .to(symgrad.int64)")
        return common


@op
class floor(Rounding):
    """The largest integer that is not above x."""

    ref = np.floor

    def sympy(sp: Any, x: Any) -> Any:
        return sp.floor(x)

    def select(out: Expr, x: Expr) -> Any:
        return (nowhere(),)

    def lower(b: Any, x: Any) -> Any:
        return b.floor(x)


@op
class ceil(Rounding):
    """The smallest integer that is not below x."""

    ref = np.ceil

    def sympy(sp: Any, x: Any) -> Any:
        return sp.ceiling(x)

    def select(out: Expr, x: Expr) -> Any:
        return (nowhere(),)

    def lower(b: Any, x: Any) -> Any:
        return b.ceil(x)


@op
class trunc(Rounding):
    """The integer part of x: rounding towards zero."""

    aliases = ("fix",)
    ref = np.trunc

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sign(x) * sp.floor(sp.Abs(x))

    def select(out: Expr, x: Expr) -> Any:
        return (nowhere(),)

    def lower(b: Any, x: Any) -> Any:
        return b.truncate(x)


@op
class round(Rounding):
    """The nearest integer, ties to even; with `decimals` the nearest multiple of 10**-decimals."""

    samples = (
        *Rounding.samples,
        Case(T(9, lo=-3, hi=3), decimals=1, smooth=False),
        Case(T(9, lo=-300, hi=300), decimals=-2, smooth=False),
    )

    def __call__(self, input: Expr, *, decimals: int = 0) -> Expr:  # type: ignore[override]
        if decimals == 0:
            return Elementwise.__call__(self, input)  # type: ignore[arg-type]
        if input.dtype.category != 2:
            raise not_implemented(
                "round", input.dtype, "leave decimals at 0 or convert to a floating type"
            )
        unit = 10.0 ** abs(decimals)
        if decimals > 0:
            return div(self(mul(input, unit)), unit)  # type: ignore[no-any-return]
        return mul(self(div(input, unit)), unit)  # type: ignore[no-any-return]

    def ref(x: np.ndarray, *, decimals: int = 0) -> Any:
        return np.round(x, decimals)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.floor(x + sp.Rational(1, 2))

    def select(out: Expr, x: Expr) -> Any:
        return (nowhere(),)

    def lower(b: Any, x: Any) -> Any:
        return b.rint(x)


def _ref_frac(x: np.ndarray) -> Any:
    return x - np.trunc(x)


@composite(
    ref=_ref_frac,
    samples=(Case(T(2, 3, lo=1.1, hi=1.9)), Case(T(9, lo=-3, hi=3), smooth=False)),
    errors=(Case(T(2, dtype="int"), match="not implemented for 'Long'"),),
)
def frac(input: Expr) -> Expr:
    """The fractional part x - trunc(x), of the sign of x."""
    if input.dtype.category != 2:
        raise not_implemented("frac", input.dtype, "convert to a floating type")
    return sub(input, trunc(input))  # type: ignore[no-any-return]


class Division(Binary):
    """Two operands of integer or floating type. Integers refuse the number 0 as divisor."""

    cost = 12.0
    samples = (
        Case(T(2, 3, lo=2.1, hi=2.9), T(2, 3, lo=1.1, hi=1.9)),
        Case(T(4, 1, lo=-9, hi=9), T(5, lo=0.5, hi=2), smooth=False),
        Case(T(7, lo=-9, hi=9), -2.5, smooth=False),
        Case(T(9, lo=-9, hi=9, dtype="int"), T(9, lo=1, hi=4, dtype="int")),
        Case(T(9, lo=-9, hi=9, dtype="int"), -4),
    )
    errors = (
        Case(T(2, dtype="bool"), T(2, dtype="bool"), match="not implemented for 'Bool'"),
        Case(T(2, dtype="int"), 0, match="ZeroDivisionError"),
    )

    def operands(self, args: Any) -> tuple[Expr, ...]:
        made = Elementwise.operands(self, args)  # type: ignore[arg-type]
        divisor = args[1]
        if not isinstance(divisor, Expr) and divisor == 0 and made[0].dtype.category != 2:
            raise RuntimeError(
                f"{self.name}: ZeroDivisionError (got integers and the divisor 0); "
                "use floating operands for infinities"
            )
        return made

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise not_implemented(self.name, common, "convert with .to(symgrad.int64)")
        return common


@op
class fmod(Division):
    """Remainder of x / y with the sign of x, exact."""

    ref = np.fmod

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.sign(x) * sp.Mod(sp.Abs(x), sp.Abs(y))

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, -trunc(x / y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.fmod(x, y)


@op
class remainder(Division):
    """Remainder of x / y with the sign of y, as Python's %."""

    def ref(x: Any, y: Any) -> Any:
        # NumPy gives a zero remainder the sign of y, torch leaves it that of x.
        rest = np.fmod(x, y)
        crosses = (rest != 0) & ((rest < 0) != np.less(y, 0))
        return np.where(crosses, rest + y, rest)

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Mod(x, y)

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, -floor_divide(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        rest = b.fmod(x, y)
        return b.select(_crosses(b, rest, y), b.add(rest, y), rest)


def _crosses(b: Any, rest: Any, y: Any) -> Any:
    """Whether a remainder is not 0 and has not the divisor's sign."""
    zero = b.zero(y)
    apart = b.bit_xor(b.compare("lt", rest, zero), b.compare("lt", y, zero))
    return b.bit_and(b.compare("ne", rest, zero), apart)


@op
class floor_divide(Division):
    """Quotient rounded down, as Python's //: (x - remainder) / y to the nearest integer."""

    ref = np.floor_divide

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.floor(x / y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        return nowhere(), nowhere()

    def lower(b: Any, x: Any, y: Any) -> Any:
        if b.is_integer(x):
            quotient, _ = b.divide_integers(x, y)
            one_less = b.sub(quotient, b.const(1, quotient))
            return b.select(_crosses(b, b.fmod(x, y), y), one_less, quotient)
        one, zero = b.const(1.0, x), b.zero(x)
        rest = b.fmod(x, y)
        plain = b.div(x, y)
        quotient = b.div(b.sub(x, rest), y)
        quotient = b.select(_crosses(b, rest, y), b.sub(quotient, one), quotient)
        down = b.floor(quotient)
        up = b.compare("gt", b.sub(quotient, down), b.const(0.5, x))
        down = b.select(up, b.add(down, one), down)
        down = b.select(b.compare("eq", quotient, zero), b.copysign(zero, plain), down)
        return b.select(b.compare("eq", y, zero), plain, down)


@op
class integer_quotient(Division):
    """Quotient of integers rounded towards zero."""

    public = False
    accepts = "integer"
    nodiff = "integer valued"
    samples = (
        Case(T(9, lo=-9, hi=9, dtype="int"), T(9, lo=1, hi=4, dtype="int")),
        Case(T(9, lo=-9, hi=9, dtype="int"), -4),
    )

    def ref(x: Any, y: Any) -> Any:
        x, y = np.asarray(x), np.asarray(y)
        down = np.floor_divide(x, y)
        return down + ((down < 0) & (down * y != x))

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.sign(x / y) * sp.floor(sp.Abs(x / y))

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.divide_integers(x, y)[0]

"""Ops that choose: absolute values and signs, extrema of two, clamping, tests for NaN and infinity.

Their derivatives are selections (``select``): a cotangent passes where the operand was taken and is
a strong zero elsewhere. At kinks they follow torch: 0 for `abs`, one half each for `maximum` and
`minimum`; `clamp` passes nothing to its operand at the bounds, the choice of minimum norm.
Start reading at `abs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op
from symgrad.op import REGISTRY, constant
from symgrad.ops.arithmetic import (
    Binary,
    Number,
    Operand,
    add,
    eq,
    ge,
    gt,
    is_int,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    mul,
    ne,
    not_implemented,
    sub,
    where,
)
from symgrad.ops.rounding import nowhere
from symgrad.ops.transcendental import hypot
from symgrad.sample import Case, T


class Test(Elementwise):
    """One operand, a boolean result."""

    gives = "bool"
    parameters = ("input",)
    samples = (
        Case(T(5)),
        Case(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5])),
        Case(T(3, dtype="int")),
        Case(T(0)),
    )


# -- magnitude and sign -------------------------------------------------------------------


@op
class abs(Elementwise):
    """Absolute value; its derivative is 0 at 0."""

    aliases = ("absolute",)
    parameters = ("input",)
    samples = (Case(T(2, 3)), Case(T()), Case(T(0)), Case(T(4, dtype="int")))
    errors = (Case(T(2, dtype="bool"), match="not implemented for 'Bool'"),)
    ref = np.abs

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        x = args[0] if args else attrs.get("input")
        if isinstance(x, Expr) and x.dtype.category == 3:
            return hypot(REGISTRY["real"](x), REGISTRY["imag"](x))  # type: ignore[no-any-return]
        return Elementwise.__call__(self, *args, **attrs)  # type: ignore[arg-type]

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise not_implemented("abs", common, "convert with .to(symgrad.int64)")
        return common

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Abs(x)

    def select(out: Expr, x: Expr) -> Any:
        return ((ne(x, 0.0), sign(x)),)

    def lower(b: Any, x: Any) -> Any:
        return b.abs(x)


@op
class sign(Elementwise):
    """-1, 0 or 1; 0 for NaN, as in torch. The derivative is 0."""

    parameters = ("input",)
    samples = (
        Case(T(2, 3, lo=0.5, hi=2)),
        Case(T(5), smooth=False),
        Case(T(5, dtype="int")),
        Case(T(3, dtype="bool")),
        Case(T(0)),
    )

    def ref(x: np.ndarray) -> Any:
        x = np.asarray(x)
        return x if x.dtype == bool else np.nan_to_num(np.sign(x))

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sign(x)

    def select(out: Expr, x: Expr) -> Any:
        return (nowhere(),)

    def lower(b: Any, x: Any) -> Any:
        if x.kind == "i1":
            return x
        zero = b.zero(x)
        below = b.select(b.compare("lt", x, zero), b.const(-1, x), zero)
        return b.select(b.compare("gt", x, zero), b.const(1, x), below)


@op
class signbit(Test):
    """Whether the sign bit is set, so true for -0.0."""

    nodiff = "piecewise constant"
    ref = np.signbit

    def sympy(sp: Any, x: Any) -> Any:
        return x < 0

    def lower(b: Any, x: Any) -> Any:
        return b.sign_bit(x)


@op
class copysign(Binary):
    """The magnitude of x with the sign of y."""

    accepts = "float"
    ref = np.copysign

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Abs(x) * sp.sign(y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        return (ne(x, 0.0), mul(sign(x), copysign(constant(1.0, x.dtype), y))), nowhere()

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.copysign(x, y)


@op
class heaviside(Binary):
    """0 below 0, 1 above, `values` at 0."""

    parameters = ("input", "values")
    samples = (
        Case(T(5), T(5)),
        Case(np.array([-1.0, 0.0, 2.0]), np.array(0.5), smooth=False),
        Case(np.array([0, 0, 1]), T(3)),
    )

    def ref(x: Any, values: Any) -> Any:
        step = np.where(np.equal(x, 0), values, np.greater(x, 0))
        return step.astype(np.result_type(x, values))

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Heaviside(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        return nowhere(), (eq(x, 0.0), 1.0)

    def lower(b: Any, x: Any, y: Any) -> Any:
        zero = b.zero(x)
        step = b.select(b.compare("gt", x, zero), b.const(1, x), zero)
        return b.select(b.compare("eq", x, zero), y, step)


# -- the larger and the smaller of two ----------------------------------------------------


def _half_of_ties(x: Expr, y: Expr) -> Expr:
    return where(eq(x, y), constant(0.5, x.dtype), constant(1.0, x.dtype))  # type: ignore[no-any-return]


@op
class maximum(Binary):
    """The larger operand; NaN if there is one. Equal operands get half the derivative each."""

    ref = np.maximum

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Max(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        weight = _half_of_ties(x, y)
        return (logical_not(lt(x, y)), weight), (logical_not(gt(x, y)), weight)

    def lower(b: Any, x: Any, y: Any) -> Any:
        # The inner choice is one instruction of the machine, which passes NaN on from y alone.
        return b.select(b.is_nan(x), x, b.select(b.compare("gt", x, y), x, y))


@op
class minimum(Binary):
    """The smaller operand; NaN if there is one. Equal operands get half the derivative each."""

    ref = np.minimum

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Min(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        weight = _half_of_ties(x, y)
        return (logical_not(gt(x, y)), weight), (logical_not(lt(x, y)), weight)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.select(b.is_nan(x), x, b.select(b.compare("lt", x, y), x, y))


@op
class fmax(Binary):
    """The larger operand, the other one where one is NaN. Ties count for the first."""

    ref = np.fmax

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Max(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        first = logical_or(ge(x, y), isnan(y))
        return (first, 1.0), (logical_not(first), 1.0)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.select(b.is_nan(y), x, b.select(b.compare("gt", x, y), x, y))


@op
class fmin(Binary):
    """The smaller operand, the other one where one is NaN. Ties count for the first."""

    ref = np.fmin

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Min(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        first = logical_or(le(x, y), isnan(y))
        return (first, 1.0), (logical_not(first), 1.0)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.select(b.is_nan(y), x, b.select(b.compare("lt", x, y), x, y))


# -- clamping -----------------------------------------------------------------------------


@op
class clamp_min(Binary):
    """max(x, bound); NaN stays. At the bound the derivative belongs to the bound."""

    parameters = ("input", "min")
    samples = (
        Case(T(2, 3), T(2, 3)),
        Case(T(4, 1), T(3)),
        Case(T(5, lo=-2, hi=-1), -0.5),
        Case(T(5, lo=1, hi=2), 0.5),
        Case(T(5, dtype="int"), 0),
        Case(np.array([np.nan, -np.inf, 0.25]), 0.25, smooth=False),
    )
    ref = np.maximum

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Max(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        return (gt(x, y), 1.0), (le(x, y), 1.0)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.select(b.is_nan(x), x, b.select(b.compare("gt", x, y), x, y))


@op
class clamp_max(Binary):
    """min(x, bound); NaN stays. At the bound the derivative belongs to the bound."""

    parameters = ("input", "max")
    samples = (
        Case(T(2, 3), T(2, 3)),
        Case(T(4, 1), T(3)),
        Case(T(5, lo=-2, hi=-1), -0.5),
        Case(T(5, lo=1, hi=2), 0.5),
        Case(T(5, dtype="int"), 0),
        Case(np.array([np.nan, np.inf, 0.25]), 0.25, smooth=False),
    )
    ref = np.minimum

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Min(x, y)

    def select(out: Expr, x: Expr, y: Expr) -> Any:
        return (lt(x, y), 1.0), (ge(x, y), 1.0)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.select(b.is_nan(x), x, b.select(b.compare("lt", x, y), x, y))


def _ref_clamp(x: np.ndarray, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


@composite(
    ref=_ref_clamp,
    samples=(
        Case(T(2, 3), -0.5, 0.5),
        Case(T(2, 3), min=0.25),
        Case(T(2, 3), max=T(3)),
        Case(T(2, 3), T(2, 1, lo=-1, hi=-0.5), T(3, lo=0.5, hi=1)),
        Case(T(6, lo=-9, hi=9, dtype="int"), -3, 4),
        Case(T(4), 1.0, -1.0),
    ),
    errors=(Case(T(2), match="At least one of 'min' or 'max' must not be None"),),
    aliases=("clip",),
)
def clamp(input: Expr, min: Operand | None = None, max: Operand | None = None) -> Expr:
    """x held between two bounds, numbers or tensors; the upper one wins if they cross."""
    if min is None and max is None:
        raise RuntimeError(
            "clamp: At least one of 'min' or 'max' must not be None (got neither); give a bound"
        )
    for bound in (min, max):
        if isinstance(bound, int) and input.dtype.category == 1:
            input.dtype.fitted(bound)
    result = input if min is None else clamp_min(input, min)
    return result if max is None else clamp_max(result, max)  # type: ignore[no-any-return]


# -- tests --------------------------------------------------------------------------------


@op
class isnan(Test):
    """Whether the element is not a number."""

    nodiff = "piecewise constant"
    ref = np.isnan

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Ne(x, x, evaluate=False)

    def parts(x: Any) -> Any:
        return logical_or(isnan(x[0]), isnan(x[1]))

    def lower(b: Any, x: Any) -> Any:
        return b.is_nan(x)


@op
class isinf(Test):
    """Whether the element is infinite, of either sign."""

    nodiff = "piecewise constant"
    ref = np.isinf

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Eq(sp.Abs(x), sp.oo)

    def parts(x: Any) -> Any:
        return logical_or(isinf(x[0]), isinf(x[1]))

    def lower(b: Any, x: Any) -> Any:
        if b.is_integer(x):
            return b.false(x)
        return b.compare("eq", b.abs(x), b.const(float("inf"), x))


@op
class isfinite(Test):
    """Whether the element is neither infinite nor NaN."""

    nodiff = "piecewise constant"
    ref = np.isfinite

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Abs(x) < sp.oo

    def parts(x: Any) -> Any:
        return logical_and(isfinite(x[0]), isfinite(x[1]))

    def lower(b: Any, x: Any) -> Any:
        if b.is_integer(x):
            return b.bit_not(b.false(x))
        return b.compare("lt", b.abs(x), b.const(float("inf"), x))


@op
class isposinf(Test):
    """Whether the element is +infinity."""

    nodiff = "piecewise constant"
    ref = np.isposinf

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Eq(x, sp.oo)

    def lower(b: Any, x: Any) -> Any:
        return b.false(x) if b.is_integer(x) else b.compare("eq", x, b.const(float("inf"), x))


@op
class isneginf(Test):
    """Whether the element is -infinity."""

    nodiff = "piecewise constant"
    ref = np.isneginf

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Eq(x, -sp.oo)

    def lower(b: Any, x: Any) -> Any:
        return b.false(x) if b.is_integer(x) else b.compare("eq", x, b.const(-float("inf"), x))


@composite(
    ref=np.isclose,
    samples=(
        Case(T(2, 3), T(3)),
        Case(np.array([1.0, np.inf, np.nan, 2.0]), np.array([1.0 + 1e-9, np.inf, np.nan, 2.1])),
        Case(np.array([np.nan, 1.0]), np.array([np.nan, 1.2]), rtol=0.3, equal_nan=True),
    ),
)
def isclose(
    input: Expr, other: Expr, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Expr:
    """Whether |x - other| <= atol + rtol * |other|, or the two are equal."""
    result = eq(input, other)
    if not is_int(input, other) or rtol or atol:
        bound = add(mul(abs(other), rtol), atol)
        apart = abs(sub(input, other))
        result = logical_or(result, logical_and(isfinite(apart), le(apart, bound)))
    if equal_nan:
        result = logical_or(result, logical_and(isnan(input), isnan(other)))
    return result  # type: ignore[no-any-return]


def _ref_nan_to_num(x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return np.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@composite(
    ref=_ref_nan_to_num,
    samples=(
        Case(T(2, 3)),
        Case(np.array([1.0, np.inf, np.nan, -np.inf]), smooth=False),
        Case(np.array([1.0, np.inf, np.nan, -np.inf]), 2.0, 3.0, -3.0, smooth=False),
        Case(T(3, dtype="int")),
    ),
)
def nan_to_num(
    input: Expr,
    nan: Number | None = 0.0,
    posinf: Number | None = None,
    neginf: Number | None = None,
) -> Expr:
    """NaN and infinities replaced by numbers: 0 and the largest finite ones by default."""
    if input.dtype.category < 2:
        return input
    if input.dtype.is_complex:
        parts = [
            nan_to_num(REGISTRY[part](input), nan, posinf, neginf) for part in ("real", "imag")
        ]
        return REGISTRY["complex"](*parts)
    limits = np.finfo(input.dtype.numpy)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    infinity = float("inf")
    filler = constant(0.0 if nan is None else nan, input.dtype)
    result = where(isnan(input), filler, input)
    result = where(eq(input, infinity), constant(high, input.dtype), result)
    return where(eq(input, -infinity), constant(low, input.dtype), result)  # type: ignore[no-any-return]

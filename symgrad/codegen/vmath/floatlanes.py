"""Functions of float32 values that are carried in doubles.

A float32 result asks for some 2^-33 of relative accuracy. In double precision the plain formulas
give that: no sums of two, no corrections, short polynomials, no subnormal or overflowing
intermediate (float32 subnormals are normal doubles). The result rounds to float32 once, so that
errors stay next to 0.5 ULP.

Arguments and results are doubles, but for `pow`; the conversions are made by the package's
`emit`. Formulas as in the modules of the full functions; coefficients: minimax (Remez, made with
multiple precision). Start at `exp`.
"""

from __future__ import annotations

from symgrad.codegen.vmath import (
    avx512,
    inversetrigonometric,
    logarithm,
    logarithmtable,
    power,
    trigonometric,
)
from symgrad.codegen.vmath.exponential import (
    LN2,
    LOG2E,
    ROOTS,
    ROUNDING_SHIFT,
    TABLE_STEPS,
    Reduced,
    power_of_two,
    scale,
)
from symgrad.codegen.vmath.notation import (
    Value,
    at_least,
    at_most,
    fma,
    hexes,
    horner,
    select,
)

INFINITY = float("inf")
# Beyond these e^x, and e^x + 1 divided into 1, are 0 or infinite in float32.
EXP_RANGE = (-110.0, 110.0)
LOG10_2 = float.fromhex("0x1.34413509f79ffp-2")

# (e^r - 1 - r) / r^2, |r| <= ln(2)/2
EXP_P = hexes(
    "0x1.0000003a21836p-1 0x1.555554433e1fcp-3 0x1.55548dc719bb3p-5 0x1.111270ace7e77p-7"
    " 0x1.6d8d051071e05p-10 0x1.9f089f958036cp-13"
)
# The same by table, |r| <= ln(2)/32.
ROOT_P = hexes("0x1.fffffffd43331p-2 0x1.55571d83febabp-3 0x1.5557698d93c23p-5")
# (log((1+s)/(1-s)) - 2s) / s^3 in s^2, for 1 + f in [sqrt(1/2), sqrt(2)]; for s <= 1/3
LOG_R = hexes(
    "0x1.555555561e364p-1 0x1.999996a955d44p-2 0x1.249411f59fa26p-2 0x1.c62b0e4bd8f77p-3"
    " 0x1.91161ceeb66c4p-3"
)
LOG1P_R = hexes(
    "0x1.5555553b4c0c7p-1 0x1.9999bccd07588p-2 0x1.248a6518bd761p-2 0x1.c8b9fab7787b9p-3"
    " 0x1.5f416498a34e1p-3 0x1.be1a450b57ff9p-3"
)
# (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 in r^2, |r| <= pi/4
SIN_S = hexes(
    "-0x1.5555554c70adep-3 0x1.1111086984fcdp-7 -0x1.a00f7e6ea648ap-13 0x1.6cd1c42b09afep-19"
)
COS_C = hexes(
    "0x1.5555554ed873p-5 -0x1.6c16b828ea8e6p-10 0x1.a010de0839754p-16 -0x1.241e722dd47ffp-22"
)
# (asin s - s) / s^3 in s^2 <= 1/4; (atan q - q) / q^3 in q^2 <= 1
ASIN_P = hexes(
    "0x1.55555605b90ecp-3 0x1.3332aa13a21b8p-4 0x1.6ddabd38ca3a2p-5 0x1.ed5d539ecb659p-6"
    " 0x1.931e52f983b0ep-6 0x1.ec31fe246c175p-8 0x1.1bd0d5cb6721cp-5"
)
ATAN_Q = hexes(
    "-0x1.5555548758542p-2 0x1.999937f4c57f5p-3 -0x1.248a2c8922913p-3 0x1.c66e4718a20abp-4"
    " -0x1.700aff892768cp-4 0x1.29582d510cddcp-4 -0x1.be9600b7e4fe3p-5 0x1.1a6a41a1277efp-5"
    " -0x1.0b085c1bf4626p-6 0x1.42d2c98ba7d42p-8 -0x1.6de2c10d6cb0fp-11"
)
# (cosh r - 1) / r^2 and (sinh r - r) / r^3 in r^2, |r| <= ln(2)/2
COSH_P = hexes("0x1.000000440097ep-1 0x1.55547ec791e06p-5 0x1.6d979453426d9p-10")
SINH_P = hexes("0x1.555555738a5a9p-3 0x1.1110b1c0e5c41p-7 0x1.a16ff49ca6a2bp-13")


def _reduce(x: Value, steps: float = 1.0) -> Reduced:
    """x = n ln 2 + r, `steps` n in the low bits of `shifted`."""
    shift = ROUNDING_SHIFT["double"] / steps
    shifted = fma(x, LOG2E["double"], shift)
    n = shifted - shift
    return Reduced(shifted, n, fma(-n, LN2["double"], x))


def exp(x: Value) -> Value:
    """e^x."""
    low, high = EXP_RANGE
    x = at_least(at_most(x, high), low)
    if avx512.enabled():
        reduced = _reduce(x, TABLE_STEPS)
        r = reduced.r
        root = avx512.look_up(reduced.shifted.bits(), "double", ROOTS)
        y = fma(root, fma(r * r, horner(r, ROOT_P), r), root)
        return scale(y, reduced)
    shifted, _, r = _reduce(x)
    y = fma(r, fma(r, horner(r, EXP_P), 1.0), 1.0)
    return y * power_of_two(shifted, 0)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x): the exponential of a float32 tail does not overflow in double."""
    return 1.0 / (exp(-x) + 1.0)


def softplus(x: Value) -> Value:
    """log(1 + e^x)."""
    e = exp(-abs(x))
    s = e / (e + 2.0)
    z = s * s
    return at_least(x, 0.0) + fma(s * z, horner(z, LOG1P_R), s + s)


def _log_parts(x: Value) -> tuple[Value, Value]:
    """(k, log(1 + f)) with x = 2^k (1 + f), for positive normal x."""
    if avx512.enabled():
        return logarithmtable.lane_parts(x)
    k, f, _ = logarithm.split(x)
    s = f / (f + 2.0)
    z = s * s
    return k, fma(s * z, horner(z, LOG_R), s + s)


def log2(x: Value) -> Value:
    """Logarithm to base 2."""
    k, fraction = _log_parts(x)
    result = fma(fraction, LOG2E["double"], k)
    return logarithm.with_special_values(x, result, x)


def log10(x: Value) -> Value:
    """Logarithm to base 10."""
    k, fraction = _log_parts(x)
    result = fma(k, LOG10_2, fraction * logarithm.PER_LN10[0])
    return logarithm.with_special_values(x, result, x)


def pow_of_kind(x: Value, y: Value) -> Value:
    """x^y on floats or doubles."""
    return pow(x, y) if x.kind == "float" else power.pow(x, y)


def pow(x: Value, y: Value) -> Value:
    """x^y on floats: the special values are cheaper to sort out before and after the doubles."""
    a = abs(x).cast("fpext", "double")
    k, fraction = _log_parts(a)
    log = fma(k, LN2["double"], fraction)
    log = logarithm.with_special_values(a, log, a)
    result = exp(y.cast("fpext", "double") * log).cast("fptrunc", "float")
    return power.with_sign_and_special_values(x, y, result)


def tan(x: Value) -> Value:
    """Tangent."""
    q, r, _ = trigonometric.reduce_float_lanes(x)
    z = r * r
    s = fma(r * z, horner(z, SIN_S), r)
    c = fma(z * z, horner(z, COS_C), fma(z, -0.5, 1.0))
    odd = (q & 1).equals(1)
    t = select(odd, -c, s) / select(odd, s, c)
    return select(x.equals(0.0), x, t)


def asin(x: Value) -> Value:
    """Arcsine."""
    return inversetrigonometric.asin(x, ASIN_P)


def acos(x: Value) -> Value:
    """Arccosine."""
    return inversetrigonometric.acos(x, ASIN_P)


def atan(x: Value) -> Value:
    """Arctangent."""
    return inversetrigonometric.atan(x, ATAN_Q)


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    return inversetrigonometric.atan2(y, x, ATAN_Q)


def _sum_of_exponentials(a: Value, sign: float) -> Value:
    """(e^a + sign * e^-a) / 2 for a >= 0."""
    shifted, _, r = _reduce(at_most(a, EXP_RANGE[1]))
    s = power_of_two(shifted, -1)
    t = 0.25 / s
    z = r * r
    cosine = fma(z, horner(z, COSH_P), 1.0)
    sine = fma(r * z, horner(z, SINH_P), r)
    return fma(fma(t, sign, s), cosine, fma(t, -sign, s) * sine)


def sinh(x: Value) -> Value:
    """Hyperbolic sine."""
    return _sum_of_exponentials(abs(x), -1.0).copysign(x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    return _sum_of_exponentials(abs(x), 1.0)

"""pow.

log |x| as a sum of two with relative error about 2^-67 (2^-64 by table, with AVX-512), times y,
then exp of the product with its low part (Tang 1990; Muller, *Elementary Functions*, 3rd ed.,
chapter 11). The special values are IEEE 754's, by selects; no exponent is treated apart, so that
x^2 has the same bits whether 2 is a constant or data. Start at `pow`.
"""

from __future__ import annotations

from symgrad.codegen.vmath import avx512, logarithmtable
from symgrad.codegen.vmath.exponential import (
    EXP_RANGE,
    LN2_HIGH,
    LN2_LOW,
    exp_of_pair,
    scale,
)
from symgrad.codegen.vmath.logarithm import split_any, with_special_values
from symgrad.codegen.vmath.notation import (
    Value,
    at_least,
    at_most,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
    two_product,
)

INFINITY = float("inf")
NAN = float("nan")
TWO_THIRDS = hexes("0x1.5555555555555p-1 0x1.5555555555555p-55")
# (log((1+s)/(1-s)) - 2s - 2/3 s^3) / s^5 in z = s^2
LOG_T = hexes(
    "0x1.9999999999996p-2 0x1.2492492492f38p-2 0x1.c71c71c599301p-3 0x1.745d1828bb4e5p-3"
    " 0x1.3b1364c297b73p-3 0x1.112076c73faa7p-3 0x1.de3b46f8f72bep-4 0x1.eadf722c62d29p-4"
)


def _precise_log(x: Value) -> tuple[Value, Value]:
    """log x as a sum of two, relative error about 2^-67, for positive finite x."""
    if avx512.enabled():
        return logarithmtable.precise_log(x)
    k, f, m_bits = split_any(x)
    m = m_bits.floats()
    d = m + 1.0
    d_low = m - (d - 1.0)
    reciprocal = 1.0 / d
    s = f * reciprocal
    s_low = (fma(-s, d, f) - s * d_low) * reciprocal
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    p, p_low = fast_two_sum(z.const(TWO_THIRDS[0]), z * horner(z, LOG_T))
    p_low = p_low + TWO_THIRDS[1]
    w, w_low = two_product(z, p)
    w_low = w_low + fma(z, p_low, z_low * p)
    v, v_low = two_product(s, w)
    v_low = v_low + fma(s, w_low, s_low * w)
    high, low = fast_two_sum(s + s, v)
    low = low + (v_low + (s_low + s_low))
    total, rest = fast_two_sum(k * LN2_HIGH[x.kind], high)
    return fast_two_sum(total, rest + fma(k, LN2_LOW[x.kind], low))


def pow(x: Value, y: Value) -> Value:
    """x^y on doubles."""
    a = abs(x)
    high, low = _precise_log(a)
    high = with_special_values(a, high, a)
    p, p_low = two_product(y, high)
    p_low = fma(y, low, p_low)
    p_low = select(abs(p) < 1000.0, p_low, 0.0)
    lowest, highest = EXP_RANGE[x.kind]
    power, reduced = exp_of_pair(at_least(at_most(p, highest), lowest), p_low)
    return with_sign_and_special_values(x, y, scale(power, reduced))


def with_sign_and_special_values(x: Value, y: Value, power: Value) -> Value:
    """From |x|^y to x^y."""
    integer = y.floor().equals(y)
    half = y * 0.5
    odd = integer & ~half.floor().equals(half)
    result = select(odd, power.copysign(x), power)
    undefined = (x < 0.0) & ~integer & (x > -INFINITY)
    result = select(undefined, NAN, result)
    one = y.equals(0.0) | x.equals(1.0)
    one = one | (x.equals(-1.0) & abs(y).equals(INFINITY))
    return select(one, 1.0, result)

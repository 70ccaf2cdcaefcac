"""log, log2, log10, log1p and softplus.

x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f):
log m = f - (h - s (h + R(s^2))) with h = f^2/2, as in fdlibm's e_log.c (Sun, 1993). R is
the project's own minimax polynomial. `split` finds k and f. With AVX-512 log and log1p go by the
table of `logarithmtable` instead. Start at `log`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen.vmath import avx512, logarithmtable
from symgrad.codegen.vmath.exponential import LN2_HIGH, LN2_LOW, TINY, exp
from symgrad.codegen.vmath.notation import (
    Value,
    at_least,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
    two_product,
    two_sum,
)

# Bits of sqrt(1/2).
OFFSET = {"double": 0x3FE6A09E667F3BCD, "float": 0x3F3504F3}
ONE_BITS = {"double": 0x3FF0000000000000, "float": 0x3F800000}
SMALLEST_NORMAL = {"double": 2.0**-1022, "float": 2.0**-126}
# Exact integer to float conversion by an exponent that makes the last bit 1.
MAGIC = {"double": (0x4330000000000000, 2.0**52), "float": (0x4B000000, 2.0**23)}
NORMALISE = {"double": 54, "float": 25}

# (log((1+s)/(1-s)) - 2s) / s^3 in z = s^2
R = {
    "double": hexes(
        "0x1.5555555555592p-1 0x1.999999997fdcdp-2 0x1.24924941f1568p-2 0x1.c71c5208803acp-3"
        " 0x1.74663f2c5834ap-3 0x1.39a1b27dd663ep-3 0x1.2f05beb792f67p-3"
    ),
    "float": hexes("0x1.55557ap-1 0x1.995ee2p-2 0x1.31df0ep-2"),
}
# 1/ln 2, 1/ln 10 and log10(2) as sums of two; log10(2) times an exponent is exact in its first.
PER_LN2 = hexes("0x1.71547652b82fep+0 0x1.777d0ffda0d24p-56")
PER_LN10 = hexes("0x1.bcb7b1526e50ep-2 0x1.95355baaafad3p-57")
LOG10_2 = hexes("0x1.34413509f78p-2 0x1.fef311f12b358p-46")
INFINITY = float("inf")
NAN = float("nan")


class Split(NamedTuple):
    """x = 2^k (1 + f); `m_bits` are the bits of 1 + f."""

    k: Value
    f: Value
    m_bits: Value


def split(x: Value) -> Split:
    """Exponent and fraction of a positive normal number."""
    mantissa = x.mantissa_bits
    magic_bits, magic = MAGIC[x.kind]
    shifted = x.bits() + (ONE_BITS[x.kind] - OFFSET[x.kind])
    biased = shifted >> mantissa
    k = (biased | magic_bits).floats() - (magic + x.bias)
    m_bits = (shifted & ((1 << mantissa) - 1)) + OFFSET[x.kind]
    return Split(k, m_bits.floats() - 1.0, m_bits)


def split_any(x: Value) -> Split:
    """Exponent and fraction of a positive number, subnormal or not."""
    subnormal = x < SMALLEST_NORMAL[x.kind]
    shift = NORMALISE[x.kind]
    parts = split(select(subnormal, x * 2.0**shift, x))
    k = select(subnormal, parts.k - float(shift), parts.k)
    return Split(k, parts.f, parts.m_bits)


def _series(f: Value) -> tuple[Value, Value, Value]:
    """(s, h, R) with log(1 + f) = f - (h - s (h + R))."""
    s = f / (f + 2.0)
    z = s * s
    return s, (f * 0.5) * f, z * horner(z, R[f.kind])


def log(x: Value) -> Value:
    """Natural logarithm."""
    if avx512.enabled():
        return logarithmtable.log(x)
    k, f, _ = split_any(x)
    s, h, r = _series(f)
    t = fma(s, h + r, k * LN2_LOW[x.kind])
    result = fma(k, LN2_HIGH[x.kind], f - (h - t))
    return with_special_values(x, result, x)


def _log_of_fraction(f: Value) -> tuple[Value, Value]:
    """log(1 + f) as a sum of two."""
    s, h, r = _series(f)
    high, low = fast_two_sum(f, -h)
    return high, fma(s, h + r, low)


def log_pair(x: Value) -> tuple[Value, Value]:
    """log x as a sum of two, off by some 2^-55 at most, for positive finite x."""
    if avx512.enabled():
        return logarithmtable.log_pair(x)
    k, f, _ = split_any(x)
    f_high, f_low = _log_of_fraction(f)
    high, low = fast_two_sum(k * LN2_HIGH[x.kind], f_high)
    return fast_two_sum(high, low + fma(k, LN2_LOW[x.kind], f_low))


def _multiply_pair(a: Value, a_low: Value, b: tuple[float, ...]) -> tuple[Value, Value]:
    p, p_low = two_product(a, b[0])
    return p, p_low + fma(a_low, b[0], a * b[1])


def _log_to_base(x: Value, per_log: tuple[float, ...], unit: tuple[float, ...]) -> Value:
    """k * unit + per_log * log(1 + f), both constants as sums of two."""
    if avx512.enabled():
        p, p_low = _multiply_pair(*logarithmtable.log_pair(x), per_log)
        return avx512.with_special_logarithms(x, p + p_low)
    k, f, _ = split_any(x)
    p, p_low = _multiply_pair(*_log_of_fraction(f), per_log)
    total, rest = fast_two_sum(k * unit[0], p)
    result = total + (rest + fma(k, unit[1], p_low))
    return with_special_values(x, result, x)


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of 2."""
    return _log_to_base(x, PER_LN2, (1.0, 0.0))


def log10(x: Value) -> Value:
    """Logarithm to base 10."""
    return _log_to_base(x, PER_LN10, LOG10_2)


def with_special_values(x: Value, result: Value, zero: Value) -> Value:
    """Infinity and NaN pass, negatives give NaN, and -inf where `zero` is 0."""
    if avx512.enabled():
        return avx512.with_special_logarithms(zero, result)
    result = select(x < INFINITY, result, x)
    result = select(zero < 0.0, NAN, result)
    return select(zero.equals(0.0), -INFINITY, result)


def log1p_of_pair(x: Value, low: Value | None = None, twice: Value | None = None) -> Value:
    """log(1 + x + low) for x + low > -1, finite, `low` small against x.

    Where the mask `twice` is set, log(2 (1 + x + low)).
    """
    if avx512.enabled():
        return logarithmtable.log1p_of_pair(x, low, twice)
    u, c = two_sum(x.const(1.0), x)
    if low is not None:
        c = c + low
    k, f, m_bits = split(u)
    if twice is not None:
        k = select(twice, k + 1.0, k)
    s, h, r = _series(f)
    # 2^-k by bits, as half of 2^(1-k): 2^-k itself would be subnormal for the largest k.
    double_scale = ((m_bits - u.bits()) + ((u.bias + 1) << u.mantissa_bits)).floats()
    c = c * (double_scale * 0.5)
    correction = c * fma(f, f - 1.0, 1.0)
    t = fma(s, h + r, fma(k, LN2_LOW[x.kind], correction))
    return fma(k, LN2_HIGH[x.kind], f - (h - t))


def log1p(x: Value) -> Value:
    """log(1 + x), accurate near 0."""
    result = select(abs(x) < TINY[x.kind], x, log1p_of_pair(x))
    return with_special_values(x, result, x + 1.0)


def softplus(x: Value) -> Value:
    """log(1 + e^x), without overflow."""
    return at_least(x, 0.0) + log1p_of_pair(exp(-abs(x)))

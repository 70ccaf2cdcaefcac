"""sinh, cosh, tanh and their inverses.

With x = n ln 2 + r, s = 2^(n-1) and t = 2^(-n-1): sinh x = (s - t) cosh r + (s + t) sinh r and
cosh x = (s + t) cosh r + (s - t) sinh r, the two on the reduced range by minimax polynomials
(Remez). tanh from expm1(2|x|) kept as a sum of two, with a corrected division; with AVX-512
that by table, and on float32 tanh itself, by `nodetables`.
The inverses are log1p of an argument that carries its rounding error along.

Only tanh has a float32 form; the others take doubles. Start at `tanh`.
"""

from __future__ import annotations

from symgrad.codegen.vmath import avx512, nodetables
from symgrad.codegen.vmath.exponential import (
    LN2_LOW,
    expm1_parts,
    power_of_two,
    reduce,
    tabled,
    tabled_expm1_parts,
)
from symgrad.codegen.vmath.logarithm import log1p_of_pair
from symgrad.codegen.vmath.notation import (
    Value,
    at_most,
    divide_pairs,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
)

INFINITY = float("inf")
NAN = float("nan")
# tanh rounds to 1 from here on.
TANH_ONE = {"double": 20.0, "float": 10.0}
# sinh and cosh overflow before this; s and t are kept this power of two smaller meanwhile.
SINH_INFINITE = 711.0
HEADROOM = 4
# From this power of 2 on e^-x does not show.
VANISHING = 60.0
# sinh x = x to the last bit below.
SINH_LINEAR = 2.0**-27
# Above, 1 is lost against the square of x, and below the square does not overflow.
LOGARITHMIC = 2.0**60
# (cosh r - 1) / r^2 and (sinh r - r) / r^3 in z = r^2
COSH_P = hexes(
    "0x1p-1 0x1.5555555555558p-5 0x1.6c16c16c1504cp-10 0x1.a01a01ad63955p-16"
    " 0x1.27e4cc4ebd70cp-22 0x1.1f8b7a5e3186ep-29"
)
SINH_P = hexes(
    "0x1.5555555555559p-3 0x1.111111110f62ap-7 0x1.a01a01b0208cfp-13"
    " 0x1.71ddf7ae996d2p-19 0x1.af5ff73ff67f1p-26"
)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    if x.kind == "float" and avx512.enabled():
        table = nodetables.TANH_FLOAT
        return avx512.by_nodes(at_most(abs(x), table.last), table).copysign(x)
    a = at_most(abs(x), TANH_ONE[x.kind])
    parts = tabled_expm1_parts(a + a) if tabled(x) else expm1_parts(a + a, 0)
    h, l = fast_two_sum(*parts)
    d = h + 2.0
    d_low = (h - (d - 2.0)) + l
    return divide_pairs(h, l, d, d_low).copysign(x)


def _sum_of_exponentials(a: Value, sign: float) -> Value:
    """(e^a + sign * e^-a) / 2 for a >= 0."""
    reduced = reduce(at_most(a, SINH_INFINITE))
    r, r_low = fast_two_sum(reduced.r, -(reduced.n * LN2_LOW[a.kind]))
    s = power_of_two(reduced.shifted, -1 - HEADROOM)
    # The exponent of t is -n: negating the bits of s about those of 2^(-1-HEADROOM).
    twice_one = 2 * (a.bias - 1 - HEADROOM) << a.mantissa_bits
    t = select(reduced.n > VANISHING, 0.0, (twice_one - s.bits()).floats())
    even, odd = fma(t, sign, s), fma(t, -sign, s)
    z = r * r
    h = fma(odd, r, even)
    l = fma(odd, r, even - h)
    cosine = z * horner(z, COSH_P)
    sine = fma(r * z, horner(z, SINH_P), r_low * (1.0 + cosine))
    cosine = fma(r, r_low, cosine)
    total = h + (l + fma(even, cosine, odd * sine))
    return total * 2.0**HEADROOM


def sinh(x: Value) -> Value:
    """Hyperbolic sine."""
    a = abs(x)
    return select(a < SINH_LINEAR, a, _sum_of_exponentials(a, -1.0)).copysign(x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    return _sum_of_exponentials(abs(x), 1.0)


def asinh(x: Value) -> Value:
    """Inverse hyperbolic sine."""
    a = abs(x)
    large = a > LOGARITHMIC
    square = a * a
    # asinh a = log1p(a + (sqrt(1 + a^2) - 1))
    v, low = fast_two_sum(a, square / ((square + 1.0).sqrt() + 1.0))
    v, low = select(large, a, v), select(large, 0.0, low)
    result = select(a < INFINITY, log1p_of_pair(v, low, twice=large), a)
    return result.copysign(x)


def acosh(x: Value) -> Value:
    """Inverse hyperbolic cosine; NaN below 1."""
    large = x > LOGARITHMIC
    t = x - 1.0
    # acosh x = log1p(t + sqrt(t^2 + 2 t))
    v, low = fast_two_sum(fma(t, t, t + t).sqrt(), t)
    v, low = select(large, x, v), select(large, 0.0, low)
    result = select(x < INFINITY, log1p_of_pair(v, low, twice=large), x)
    return select(x < 1.0, NAN, result)


def atanh(x: Value) -> Value:
    """Inverse hyperbolic tangent; infinite at 1, NaN beyond."""
    a = abs(x)
    # atanh a = log1p(2 a / (1 - a)) / 2
    d, d_low = fast_two_sum(a.const(1.0), -a)
    top = a + a
    reciprocal = 1.0 / d
    q = top * reciprocal
    q_low = (fma(-q, d, top) - q * d_low) * reciprocal
    result = log1p_of_pair(q, q_low) * 0.5
    result = select(a < 1.0, result, select(a.equals(1.0), a.const(INFINITY), NAN))
    return result.copysign(x)

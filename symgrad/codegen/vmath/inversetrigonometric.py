"""asin, acos, atan and atan2, on doubles.

asin s = s + s z P(z), z = s^2 <= 1/4; larger arguments by asin x = pi/2 - 2 asin sqrt((1 - x)/2).
atan q = q + q z Q(z), z = q^2 <= 1; larger arguments by atan x = pi/2 - atan(1/x). The final sums
with multiples of pi/2 keep its low part. P and Q are minimax polynomials (Remez, made with
multiple precision). Start at `asin`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgrad.codegen.vmath.notation import Value, fast_two_sum, hexes, horner, select

PI = hexes("0x1.921fb54442d18p+1 0x1.1a62633145c07p-53")
HALF_PI = hexes("0x1.921fb54442d18p+0 0x1.1a62633145c07p-54")
INFINITY = float("inf")

# (asin s - s) / s^3 in z = s^2
ASIN_P = hexes(
    "0x1.5555555555577p-3 0x1.333333332e132p-4 0x1.6db6db721257p-5 0x1.f1c71a94f9dbap-6"
    " 0x1.6e8bdedf7dd05p-6 0x1.1c49f069c3229p-6 0x1.ca1f8c52eecc2p-7 0x1.758591f73263p-7"
    " 0x1.613c6202257dp-7 0x1.e5f7d5a92e757p-9 0x1.639bcae8bc1e9p-6 -0x1.57fc9b3f5f8ebp-6"
    " 0x1.0b4679739a7d2p-5"
)
# (atan q - q) / q^3 in z = q^2
ATAN_Q = hexes(
    "-0x1.5555555555526p-2 0x1.99999999955b3p-3 -0x1.249249237f559p-3"
    " 0x1.c71c717fcf6bdp-4 -0x1.745d11ae7bd58p-4 0x1.3b13669ac9566p-4"
    " -0x1.110e512e17746p-4 0x1.e1bba6d44c45fp-5 -0x1.ae5e74d901a66p-5"
    " 0x1.82dadf85529dcp-5 -0x1.59a415a684ebfp-5 0x1.2c2e8da8daa07p-5"
    " -0x1.e9fab0dbce862p-6 0x1.683d9afb1394p-6 -0x1.c79166df65832p-7"
    " 0x1.d7bb7ebcdfdc9p-8 -0x1.7a3c1561e3017p-9 0x1.b3fe6362dfaa3p-11"
    " -0x1.3f397cb122813p-13 0x1.bbf2d60648f6bp-17"
)


def _arcsine_parts(x: Value, terms: Sequence[float]) -> tuple[Value, Value, Value]:
    """(outer, s, tail): asin s = s + tail of s = |x|, or of sqrt((1 - |x|)/2) where `outer`."""
    a = abs(x)
    outer = a > 0.5
    z = select(outer, (1.0 - a) * 0.5, a * a)
    s = select(outer, z.sqrt(), a)
    return outer, s, (s * z) * horner(z, terms)


def asin(x: Value, terms: Sequence[float] = ASIN_P) -> Value:
    """Arcsine, in [-pi/2, pi/2]."""
    outer, s, tail = _arcsine_parts(x, terms)
    main, rest = fast_two_sum(x.const(HALF_PI[0]), -(s + s))
    far = main + (rest - (tail + tail - HALF_PI[1]))
    return select(outer, far, s + tail).copysign(x)


def acos(x: Value, terms: Sequence[float] = ASIN_P) -> Value:
    """Arccosine, in [0, pi]."""
    outer, s, tail = _arcsine_parts(x, terms)
    negative = x < 0.0
    # Inside: pi/2 - asin x. Outside: 2 asin s, or pi less that.
    base = select(negative, select(outer, x.const(PI[0]), HALF_PI[0]), HALF_PI[0])
    base_low = select(negative, select(outer, x.const(PI[1]), HALF_PI[1]), HALF_PI[1])
    size, size_tail = select(outer, s + s, s), select(outer, tail + tail, tail)
    flip = negative & ~outer
    signed = select(flip, size, -size)
    signed_tail = select(flip, size_tail, -size_tail)
    main, rest = fast_two_sum(base, signed)
    far = main + ((rest + signed_tail) + base_low)
    return select(outer & ~negative, size + size_tail, far)


def atan(x: Value, terms: Sequence[float] = ATAN_Q) -> Value:
    """Arctangent, in [-pi/2, pi/2]."""
    a = abs(x)
    outer = a > 1.0
    q = select(outer, 1.0, a) / select(outer, a, 1.0)
    z = q * q
    tail = (q * z) * horner(z, terms)
    main, rest = fast_two_sum(x.const(HALF_PI[0]), -q)
    far = main + ((rest - tail) + HALF_PI[1])
    return select(outer, far, q + tail).copysign(x)


def atan2(y: Value, x: Value, terms: Sequence[float] = ATAN_Q) -> Value:
    """The angle of the point (x, y), in [-pi, pi]."""
    up, across = abs(y), abs(x)
    steep = up > across
    small, large = select(steep, across, up), select(steep, up, across)
    q = small / large
    # Both are tested, for either may be NaN.
    q = select(small.equals(0.0) & large.equals(0.0), 0.0, q)
    q = select(small.equals(INFINITY) & large.equals(INFINITY), 1.0, q)
    z = q * q
    tail = (q * z) * horner(z, terms)
    back = x.is_negative()
    flip = steep ^ back
    q, tail = select(flip, -q, q), select(flip, -tail, tail)
    flat, flat_low = select(back, x.const(PI[0]), 0.0), select(back, x.const(PI[1]), 0.0)
    base, base_low = select(steep, HALF_PI[0], flat), select(steep, HALF_PI[1], flat_low)
    main, rest = fast_two_sum(base, q)
    return (main + ((rest + tail) + base_low)).copysign(y)

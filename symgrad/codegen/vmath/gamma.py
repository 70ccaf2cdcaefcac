"""lgamma and digamma, on doubles.

Both work with z >= -1/2 where Gamma(1 + z) is wanted: z = x - 1 for x >= 1/2 (1 for digamma),
z = x below, z = -x for negative x, which reflection then maps back without rounding the argument:

    lgamma(-z) = -log(|sin(pi z)| / pi) - lgamma(1 + z)
    digamma(-z) = digamma(1 + z) + pi cot(pi z)

Near 0 and 1, and between the poles and the first positive zeros, minimax polynomials (Remez, made
with multiple precision); up to 8 the recurrence steps down to them; beyond, Stirling's series
(Abramowitz and Stegun 6.1.41, 6.3.18). Next to the zeros on the negative axis only the absolute
error is small. Start at `lgamma`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen.vmath.logarithm import log, log_pair
from symgrad.codegen.vmath.notation import (
    Value,
    divide_pairs,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
    two_product,
)
from symgrad.codegen.vmath.trigonometric import cosine_parts, sine_parts

INFINITY = float("inf")
NAN = float("nan")
STIRLING_FROM = 8.0
# digamma(x) = -1/x to the last bit of pi cot(pi x) below this.
PURE_POLE = 2.0**-60
PI = hexes("0x1.921fb54442d18p+1 0x1.1a62633145c07p-53")
PER_PI = hexes("0x1.45f306dc9c883p-2 -0x1.6b01ec5417056p-56")
# (1 + log(2 pi)) / 2
STIRLING_CONSTANT = float.fromhex("0x1.6b3f8e4325f5ap+0")
# B(2k) / (2k (2k - 1)) and B(2k) / (2k)
STIRLING = hexes(
    "0x1.5555555555555p-4 -0x1.6c16c16c16c17p-9 0x1.a01a01a01a01ap-11"
    " -0x1.3813813813814p-11 0x1.b951e2b18ff23p-11 -0x1.f6ab0d9993c7dp-10"
    " 0x1.a41a41a41a41ap-8 -0x1.e4286cb0f5398p-6 0x1.6fe96381e068p-3"
)
STIRLING_DERIVATIVE = hexes(
    "0x1.5555555555555p-4 -0x1.1111111111111p-7 0x1.041041041041p-8 -0x1.1111111111111p-8"
    " 0x1.f07c1f07c1f08p-8 -0x1.5995995995996p-6 0x1.5555555555555p-4"
    " -0x1.c5e5e5e5e5e5ep-2 0x1.86e7f9b9fe6e8p+1 -0x1.a74ca514ca515p+4"
)
# lgamma(1 + y) / y and lgamma(2 + y) / y on [-1/2, 1/2]
LGAMMA_ONE = hexes(
    "-0x1.2788cfc6fb619p-1 0x1.a51a6625307d4p-1 -0x1.9a4d55beab38p-2 0x1.151322ac7d647p-2"
    " -0x1.a8b9c17a90b75p-3 0x1.5b40cb1026a4ep-3 -0x1.2703a1e564d56p-3"
    " 0x1.010b36ab7f951p-3 -0x1.c8066cecd532dp-4 0x1.9a01e3b6da9dfp-4"
    " -0x1.748ca19a5136p-4 0x1.556aed6c525cp-4 -0x1.3b14cc1f3085bp-4 0x1.24936daaac9d2p-4"
    " -0x1.118c1a938be82p-4 0x1.0040541bd15b1p-4 -0x1.d8e6a20d3cb1cp-5"
    " 0x1.c181864e8b549p-5 -0x1.eac042243ac81p-5 0x1.c379b2154ac72p-5"
    " -0x1.d48f831369895p-7 0x1.4670937684d9ep-6 -0x1.29f4bec835277p-3"
    " 0x1.006941b95eb89p-3 0x1.3a89786e78413p-3 -0x1.07c12ee9a24a4p-3"
    " -0x1.cd1ce83b7c674p-3 0x1.a5cdf478ff47dp-3"
)
LGAMMA_TWO = hexes(
    "0x1.b0ee6072093cep-2 0x1.4a34cc4a60fa8p-2 -0x1.13e001a55755ep-4 0x1.51322ac7d6f96p-6"
    " -0x1.e404fc21d6144p-8 0x1.7add6eb02202fp-9 -0x1.38ac5bfe59089p-10"
    " 0x1.0b36ae81a1aa1p-11 -0x1.d3fd69d98367p-13 0x1.a1282782cb7ffp-14"
    " -0x1.78d910cdc93dep-15 0x1.57fe0d773a976p-16 -0x1.3d4b19361a5a8p-17"
    " 0x1.26d8157419c7cp-18 -0x1.090e880c725d1p-19 0x1.e32213d73b892p-21"
    " -0x1.37b6ac823def9p-21 0x1.3fa7d0c0cd065p-22"
)
# digamma(1 + z) / (z - DIGAMMA_ZERO) in z - 1, 0 <= z <= 2; the zero as a sum of two.
DIGAMMA_ZERO = hexes("0x1.d8b618d5af8fep-2 -0x1.1e563779a1f5bp-56")
DIGAMMA_Q = hexes(
    "0x1.9213d46736ba4p-1 -0x1.0aff270ca079dp-2 0x1.be76b26db7ff1p-4"
    " -0x1.95ec0c3bac0e8p-5 0x1.802924f9ae39fp-6 -0x1.7389aa7ed259ap-7"
    " 0x1.6bdf5e16cb0a2p-8 -0x1.6714d06888e7fp-9 0x1.640760f2d1178p-10"
    " -0x1.620eef4740243p-11 0x1.60c667c555c96p-12 -0x1.5ff19f9c72127p-13"
    " 0x1.5f652ae8d9d1dp-14 -0x1.5ed9556593e05p-15 0x1.5e8927efc9e03p-16"
    " -0x1.60af066d4bb9ep-17 0x1.6145c25751d9fp-18 -0x1.4c4c692066384p-19"
    " 0x1.4773a98894dc3p-20 -0x1.ce50a9c9ce621p-21 0x1.e587af9658ef6p-22"
    " 0x1.05ce2f8d8b05bp-24 -0x1.a04e9c08295dfp-25 -0x1.b31295d98fd7cp-23"
    " 0x1.dd0bcc0fe9d96p-24 0x1.0be8530facab1p-24 -0x1.26c4da4df23b8p-25"
    " -0x1.48573e28d408bp-26 0x1.57b04fefee5b3p-27"
)


class HalfTurns(NamedTuple):
    """sin(pi |r|) and cos(pi r) as sums of two; r = z less the nearest integer."""

    r: Value
    sine: tuple[Value, Value]
    cosine: tuple[Value, Value]


def _half_turns(z: Value) -> HalfTurns:
    r = z - z.rint()
    size = abs(r)
    swap = size > 0.25
    folded = select(swap, 0.5 - size, size)
    high, low = two_product(folded, PI[0])
    low = fma(folded, PI[1], low)
    square = high * high
    s, s_low = fast_two_sum(*sine_parts(high, low, square))
    c, c_low = fast_two_sum(*cosine_parts(high, low, square))
    sine = select(swap, c, s), select(swap, c_low, s_low)
    cosine = select(swap, s, c), select(swap, s_low, c_low)
    return HalfTurns(r, sine, cosine)


def _lgamma_of_one_plus(z: Value) -> Value:
    """lgamma(1 + z) for z >= -1/2."""
    y, product = z, z.const(1.0)
    for _ in range(int(STIRLING_FROM) - 1):
        down = y >= 1.5
        product = select(down, product * y, product)
        y = select(down, y - 1.0, y)
    second = y >= 0.5
    y = select(second, y - 1.0, y)
    near = y * select(second, horner(y, LGAMMA_TWO), horner(y, LGAMMA_ONE))
    far = z >= STIRLING_FROM
    high, low = log_pair(select(far, z, product))
    small = near + low + high
    p = z + 0.5
    main, main_low = two_product(p, high - 1.0)
    inverse = 1.0 / z
    series = inverse * horner(inverse * inverse, STIRLING)
    large = main + (fma(p, low, main_low) + (series + STIRLING_CONSTANT))
    # The low part of an infinite product is NaN.
    large = select(main < INFINITY, large, main)
    return select(far, large, small)


def lgamma(x: Value) -> Value:
    """log |Gamma(x)|."""
    negative = x < 0.0
    z = select(negative, -x, select(x < 0.5, x, x - 1.0))
    g = _lgamma_of_one_plus(z)
    sine, sine_low = _half_turns(z).sine
    v = fma(sine, PER_PI[0], fma(sine, PER_PI[1], sine_low * PER_PI[0]))
    v = select(negative, v, select(x < 0.5, x, 1.0))
    result = select(negative, -g, g) - log(v)
    result = select(v.equals(0.0), INFINITY, result)
    return select(abs(x).equals(INFINITY), INFINITY, result)


def _digamma_of_one_plus(z: Value) -> Value:
    """digamma(1 + z) for z >= 0."""
    y, top, bottom = z, z.const(0.0), z.const(1.0)
    for _ in range(int(STIRLING_FROM) - 2):
        down = y >= 2.0
        top = select(down, fma(top, y, bottom), top)
        bottom = select(down, bottom * y, bottom)
        y = select(down, y - 1.0, y)
    offset = (y - DIGAMMA_ZERO[0]) - DIGAMMA_ZERO[1]
    small = fma(offset, horner(y - 1.0, DIGAMMA_Q), top / bottom)
    inverse = 1.0 / z
    square = inverse * inverse
    large = log(z) + fma(-square, horner(square, STIRLING_DERIVATIVE), inverse * 0.5)
    return select(z >= STIRLING_FROM, large, small)


def digamma(x: Value) -> Value:
    """The derivative of lgamma; NaN at negative integers, -1/x at zeros."""
    negative = x < 0.0
    z = select(negative, -x, select(x < 1.0, x, x - 1.0))
    r, (s, s_low), (c, c_low) = _half_turns(z)
    top, top_low = two_product(c, PI[0])
    top_low = top_low + fma(c_low, PI[0], c * PI[1])
    cotangent = divide_pairs(top, top_low, s, s_low).copysign(r)
    # The cotangent would overflow on its way for subnormal x; there 1/x is the same.
    v = select(x < -PURE_POLE, -cotangent, select(x < 1.0, 1.0 / x, 0.0))
    result = _digamma_of_one_plus(z) - v
    pole = negative & r.equals(0.0)
    return select(pole, NAN, result)

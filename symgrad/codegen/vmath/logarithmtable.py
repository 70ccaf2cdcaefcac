"""The logarithm by table, where AVX-512 holds the table in registers.

x = 2^k m with m in [1, 2), the interval cut into 16 (float32: 32) bins by the leading bits of m. A
bin has a short number c near 1/m, so that r = m c - 1 is small and all but exact, and
log x = k ln 2 - log c + log(1 + r) (Tang, ACM TOMS 16, 1990). In the first bin c = 1 and in the
last c = 1/2, whose logarithm cancels k ln 2 exactly: next to x = 1 nothing is lost. Exponent,
mantissa, the table and the special values take one instruction each.

The power's `precise_log` puts 1 into the middle of a bin and takes c short enough for r to be
exact.

One structure, `Parts`. Coefficients: minimax (Remez, made with multiple precision). Start at
`split`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen.vmath import avx512
from symgrad.codegen.vmath.exponential import LN2_HIGH, LN2_LOW
from symgrad.codegen.vmath.notation import (
    Value,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
    two_product,
    two_sum,
)

LEADING_BITS = {"double": 4, "float": 5}
# The numbers c, and -log c as a sum of two: the first on the grid of the high part of ln 2, so that
# its sums with k ln 2 are exact. For c < sqrt(1/2) they are the parts of ln 2 plus those of
# -log 2c.
INVERSE = {
    "double": hexes(
        "0x1p+0 0x1.d4p-1 0x1.bcp-1 0x1.a4p-1 0x1.9p-1 0x1.7cp-1 0x1.6cp-1 0x1.5cp-1"
        " 0x1.5p-1 0x1.4p-1 0x1.34p-1 0x1.28p-1 0x1.2p-1 0x1.14p-1 0x1.1p-1 0x1p-1"
    ),
    "float": hexes(
        "0x1p+0 0x1.e8p-1 0x1.dcp-1 0x1.ccp-1 0x1.cp-1 0x1.b4p-1 0x1.a8p-1 0x1.ap-1"
        " 0x1.94p-1 0x1.8cp-1 0x1.8p-1 0x1.78p-1 0x1.7p-1 0x1.68p-1 0x1.6p-1 0x1.58p-1"
        " 0x1.5p-1 0x1.4cp-1 0x1.44p-1 0x1.4p-1 0x1.38p-1 0x1.34p-1 0x1.2cp-1 0x1.28p-1"
        " 0x1.2p-1 0x1.1cp-1 0x1.18p-1 0x1.14p-1 0x1.1p-1 0x1.0cp-1 0x1.08p-1 0x1p-1"
    ),
}
LOG_HIGH = {
    "double": hexes(
        "0x0p+0 0x1.700d30aeacp-4 0x1.23d712a49cp-3 0x1.95a5adcf7p-3 0x1.f991c6cb3cp-3"
        " 0x1.314f1e1d36p-2 0x1.5d5bddf596p-2 0x1.8b639a88b3p-2 0x1.af5295248dp-2"
        " 0x1.e148a1a272p-2 0x1.04360be76p-1 0x1.188ee40f238p-1 0x1.269621134d8p-1"
        " 0x1.3c6080c36cp-1 0x1.43d9ff2f92p-1 0x1.62e42fefa38p-1"
    ),
    "float": hexes(
        "0x0p+0 0x1.894p-5 0x1.2aap-4 0x1.b6ap-4 0x1.118p-3 0x1.491p-3 0x1.824p-3"
        " 0x1.a94p-3 0x1.e53p-3 0x1.071p-2 0x1.2698p-2 0x1.3c28p-2 0x1.5228p-2 0x1.68bp-2"
        " 0x1.7fbp-2 0x1.9738p-2 0x1.af5p-2 0x1.bb98p-2 0x1.d49p-2 0x1.e148p-2 0x1.fb38p-2"
        " 0x1.0434p-1 0x1.11bp-1 0x1.189p-1 0x1.2694p-1 0x1.2dcp-1 0x1.3504p-1 0x1.3c6p-1"
        " 0x1.43d8p-1 0x1.4b7p-1 0x1.5324p-1 0x1.62e4p-1"
    ),
}
LOG_LOW = {
    "double": hexes(
        "0x0p+0 0x1.c1e8da99ded32p-49 0x1.00d238fd3df5cp-46 0x1.7f22858a0ff6fp-47"
        " -0x1.90d04cd7cc834p-44 -0x1.8e27ad3213cb8p-45 -0x1.a0b2a08a465dcp-47"
        " -0x1.05ae1e5e7047p-45 -0x1.17cc552774458p-45 0x1.b36537e3375b2p-44"
        " 0x1.d6774030d58c4p-44 0x1.29989df1568cap-43 0x1.c93c1df5bb3b6p-44"
        " -0x1.2b7367cfe13c2p-47 0x1.e267b0b7efae1p-44 0x1.ef35793c7673p-45"
    ),
    "float": hexes(
        "0x0p+0 0x1.54294p-18 0x1.2911c6p-22 0x1.911b5ap-17 -0x1.c5f76p-17 0x1.ec199ep-18"
        " -0x1.f4d572p-18 -0x1.2c3752p-19 0x1.dffce2p-20 0x1.c3026ap-17 -0x1.deecb2p-18"
        " -0x1.6c4666p-17 0x1.7039c6p-17 -0x1.be0b1cp-17 -0x1.7109fcp-20 0x1.1a189ap-17"
        " 0x1.4a9246p-17 -0x1.ee47f2p-18 0x1.236f7cp-21 0x1.4344e4p-19 -0x1.3a842ep-17"
        " 0x1.05f3bp-16 -0x1.f70e2ap-19 -0x1.1bf0dcp-17 0x1.1089a6p-16 -0x1.5509e4p-18"
        " -0x1.752628p-17 0x1.0186d8p-18 0x1.ff2f92p-17 -0x1.48347ap-20 -0x1.1d9798p-17"
        " 0x1.7f7d1cp-20"
    ),
}
# (log(1 + r) - r) / r^2
LOG_Q = {
    "double": hexes(
        "-0x1.0000000000001p-1 0x1.5555555555d6ep-2 -0x1.fffffffff9427p-3"
        " 0x1.999999835e349p-3 -0x1.555554a08ac6ap-3 0x1.2492ce7f5d97cp-3"
        " -0x1.0009940b208a9p-3 0x1.c58a5fefe038p-4 -0x1.66c908ea6a5ccp-4"
    ),
    "float": hexes("-0x1p-1 0x1.5555bcp-2 -0x1.000b4cp-2 0x1.8ee824p-3"),
}


# The same for bins from PRECISE_FROM on, half of it for k + 1, and
# (log(1 + r) - r + r^2/2) / r^3.
PRECISE_FROM = 1.40625
PRECISE_OFFSET = 0x3FE6800000000000
PRECISE_INVERSE = hexes(
    "0x1.6p+0 0x1.58p+0 0x1.48p+0 0x1.38p+0 0x1.3p+0 0x1.28p+0 0x1.18p+0 0x1.1p+0"
    " 0x1.08p+0 0x1p+0 0x1.ep-1 0x1.c8p-1 0x1.bp-1 0x1.98p-1 0x1.88p-1 0x1.7p-1"
)
PRECISE_HIGH = hexes(
    "-0x1.4618bc21c6p-2 -0x1.2e8e2bae12p-2 -0x1.fb9186d5e4p-3 -0x1.9525a9cf46p-3"
    " -0x1.5ff3070a7ap-3 -0x1.29552f82p-3 -0x1.6f0d28ae58p-4 -0x1.f0a30c0118p-5"
    " -0x1.f829b0e78p-6 0x0p+0 0x1.08598b59e4p-4 0x1.da72763844p-4 0x1.5bf406b544p-3"
    " 0x1.d1037f2656p-3 0x1.1178e8227ep-2 0x1.522ae0738ap-2"
)
PRECISE_LOW = hexes(
    "0x1.3d82f484c84ccp-46 0x1.67b1e99b72bd8p-45 0x1.d572aab993c87p-47"
    " 0x1.297137d9f158fp-44 0x1.8586f183bebf2p-44 0x1.5b967f4471dfcp-44"
    " 0x1.4b4641b664613p-44 0x1.d599e83368e91p-45 -0x1.980267c7e09e4p-45 0x0p+0"
    " -0x1.7e5dd7009902cp-46 0x1.a89401fa71733p-46 -0x1.27023eb68981cp-46"
    " -0x1.84a7e75b6f6e4p-47 0x1.1ef78ce2d07f2p-44 0x1.ebe708164c759p-45"
)
PRECISE_Q = hexes(
    "0x1.5555555555555p-2 -0x1.ffffffffffe8cp-3 0x1.9999999999435p-3"
    " -0x1.5555555876cfdp-3 0x1.2492492ae2c46p-3 -0x1.ffffc05852cbcp-4"
    " 0x1.c71c1742c45eep-4 -0x1.9a953b6204532p-4 0x1.7575493054af3p-4"
)
# For float32 lanes in doubles: -log c, or -log 2c from the mantissa on that belongs to k + 1.
LANE_UPPER = 1.4375
LANE_LOG = hexes(
    "0x0p+0 0x1.700d30aeac0e1p-4 0x1.23d712a49c202p-3 0x1.95a5adcf7017fp-3"
    " 0x1.f991c6cb3b379p-3 0x1.314f1e1d35ce4p-2 0x1.5d5bddf595f3p-2 -0x1.3a64c556945eap-2"
    " -0x1.1675cababa60ep-2 -0x1.c8ff7c79a9a22p-3 -0x1.7ab890210d909p-3"
    " -0x1.29552f81ff523p-3 -0x1.e27076e2af2e6p-4 -0x1.341d7961bd1d1p-4"
    " -0x1.f0a30c01162a6p-5 0x0p+0"
)
LANE_Q = hexes(
    "-0x1.ffffffff31baap-2 0x1.555554ed9a95ep-2 -0x1.0000112b0f9b8p-2"
    " 0x1.99a2a320a725cp-3 -0x1.551fc3ea960efp-3 0x1.0bebf4e766954p-3"
)


class Parts(NamedTuple):
    """x = 2^k (1 + r) / c; `place` is the bin, in its low bits."""

    k: Value
    r: Value
    c: Value
    place: Value


def split(x: Value) -> Parts:
    """Split a positive finite number, subnormal or not."""
    m = avx512.mantissa(x)
    index = m.bits() >> (x.mantissa_bits - LEADING_BITS[x.kind])
    c = avx512.look_up(index, x.kind, INVERSE[x.kind])
    return Parts(avx512.exponent(x), fma(m, c, -1.0), c, index)


def _pair(parts: Parts, k: Value, correction: Value | None = None) -> tuple[Value, Value]:
    """log((1 + r) 2^k / c) + correction as a sum of two, the low part not small."""
    r, kind = parts.r, parts.r.kind
    base = fma(k, LN2_HIGH[kind], avx512.look_up(parts.place, kind, LOG_HIGH[kind]))
    base_low = fma(k, LN2_LOW[kind], avx512.look_up(parts.place, kind, LOG_LOW[kind]))
    high, low = fast_two_sum(base, r)
    low = low + (base_low if correction is None else base_low + correction)
    return high, fma(r * r, horner(r, LOG_Q[kind]), low)


def log(x: Value) -> Value:
    """Natural logarithm."""
    parts = split(x)
    high, low = _pair(parts, parts.k)
    return avx512.with_special_logarithms(x, high + low)


def log_pair(x: Value) -> tuple[Value, Value]:
    """log x as a sum of two, for positive finite x."""
    parts = split(x)
    return fast_two_sum(*_pair(parts, parts.k))


def log1p_of_pair(x: Value, low: Value | None, twice: Value | None) -> Value:
    """log(1 + x + low), or log(2 (1 + x + low)) where `twice` is set."""
    u, rest = two_sum(x.const(1.0), x)
    if low is not None:
        rest = rest + low
    parts = split(u)
    k = parts.k if twice is None else select(twice, parts.k + 1.0, parts.k)
    # rest / u, as 1/u = 2^-k c / (1 + r).
    scaled = avx512.scale(rest, -parts.k) * parts.c
    high, low = _pair(parts, k, fma(scaled, -parts.r, scaled))
    return high + low


def lane_parts(x: Value) -> tuple[Value, Value]:
    """(k, log m) with x = 2^k m, m about 1, good to float32's last place; x as in `split`."""
    m = avx512.mantissa(x)
    index = m.bits() >> (x.mantissa_bits - LEADING_BITS[x.kind])
    k = avx512.exponent(x)
    k = select(m >= LANE_UPPER, k + 1.0, k)
    r = fma(m, avx512.look_up(index, x.kind, INVERSE[x.kind]), -1.0)
    return k, avx512.look_up(index, x.kind, LANE_LOG) + fma(r * r, horner(r, LANE_Q), r)


def precise_log(x: Value) -> tuple[Value, Value]:
    """log x as a sum of two, relative error about 2^-64, for doubles as in `split`."""
    k, m = avx512.exponent(x), avx512.mantissa(x)
    upper = m >= PRECISE_FROM
    k, m = select(upper, k + 1.0, k), select(upper, m * 0.5, m)
    place = (m.bits() - PRECISE_OFFSET) >> (x.mantissa_bits - LEADING_BITS[x.kind])
    r = fma(m, avx512.look_up(place, x.kind, PRECISE_INVERSE), -1.0)
    base = fma(k, LN2_HIGH[x.kind], avx512.look_up(place, x.kind, PRECISE_HIGH))
    rest = fma(k, LN2_LOW[x.kind], avx512.look_up(place, x.kind, PRECISE_LOW))
    rest = fma(r * (r * r), horner(r, PRECISE_Q), rest)
    high, low = fast_two_sum(base, r)
    half_square, half_square_low = two_product(r * -0.5, r)
    high, lower = fast_two_sum(high, half_square)
    return fast_two_sum(high, lower + (low + (half_square_low + rest)))

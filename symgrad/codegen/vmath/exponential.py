"""exp, exp2, expm1 and sigmoid.

x = n ln 2 + r with |r| <= ln(2)/2, n found by adding 1.5 * 2^52 (2^23 in float32), the
subtraction split in two (Cody and Waite, *Software Manual for the Elementary Functions*,
1980); e^r by a polynomial without table (after Tang, ACM TOMS 15, 1989). The result is scaled in
two exact steps, or by one AVX-512 instruction with the same result, so that overflow and gradual
underflow need no branch. Doubles with AVX-512 take Tang's table as well: n in sixteenths, of
which the fraction selects 2^(j/16) in registers, and a shorter polynomial.

`Reduced` carries n and r; `exp_of_pair` serves the power and the complementary error function.
Coefficients: minimax (Remez) in relative error over the reduced interval. Start at `exp`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen.vmath import avx512
from symgrad.codegen.vmath.notation import (
    Value,
    at_least,
    at_most,
    divide_pairs,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
)

LOG2E = {"double": float.fromhex("0x1.71547652b82fep+0"), "float": float.fromhex("0x1.715476p+0")}
LN2_HIGH = {"double": float.fromhex("0x1.62e42fefa38p-1"), "float": float.fromhex("0x1.62e4p-1")}
LN2_LOW = {
    "double": float.fromhex("0x1.ef35793c7673p-45"),
    "float": float.fromhex("0x1.7f7d1cp-20"),
}
LN2 = {"double": float.fromhex("0x1.62e42fefa39efp-1"), "float": float.fromhex("0x1.62e43p-1")}
ROUNDING_SHIFT = {"double": 1.5 * 2.0**52, "float": 1.5 * 2.0**23}

# Beyond these exp is 0 or infinity; the reduced exponent stays within two exact scalings.
EXP_RANGE = {"double": (-746.0, 710.0), "float": (-105.0, 89.0)}
EXP2_RANGE = {"double": (-1076.0, 1025.0), "float": (-151.0, 129.0)}
# Below the lower bound expm1 rounds to -1.
EXPM1_RANGE = {"double": (-40.0, 710.0), "float": (-20.0, 89.0)}
TINY = {"double": 2.0**-54, "float": 2.0**-25}

# 2^n times this power of two is a normal number wherever e^x does not vanish.
HEADROOM = 64

# (e^r - 1 - r) / r^2
EXP_P = {
    "double": hexes(
        "0x1.000000000000ap-1 0x1.5555555555507p-3 0x1.55555555505ep-5 0x1.1111111129392p-7"
        " 0x1.6c16c184ce5eap-10 0x1.a01a011257661p-13 0x1.a0199847da8d4p-16"
        " 0x1.71df724924191p-19 0x1.28af1095dfd9fp-22 0x1.aced403753223p-26"
    ),
    "float": hexes("0x1.fffffcp-2 0x1.55548cp-3 0x1.555858p-5 0x1.123da6p-7 0x1.6ac38p-10"),
}
# The same function, one degree more: expm1 has no leading 1 to hide an error behind.
EXPM1_P = {
    "double": hexes(
        "0x1p-1 0x1.5555555555559p-3 0x1.555555555555ap-5 0x1.111111110f699p-7"
        " 0x1.6c16c16c14485p-10 0x1.a01a01afeedddp-13 0x1.a01a01b0a9f9ep-16"
        " 0x1.71ddf8388bb65p-19 0x1.27e4c5b72cfe5p-22 0x1.af5ef25cfc72ep-26"
        " 0x1.1f9547d8198a2p-29"
    ),
    "float": hexes("0x1p-1 0x1.555556p-3 0x1.5554aep-5 0x1.11109p-7 0x1.6d74cep-10 0x1.a1a16ep-13"),
}
# (2^r - 1 - r ln 2) / r^2 on [-1/2, 1/2]
EXP2_P = {
    "double": hexes(
        "0x1.ebfbdff82c5a1p-3 0x1.c6b08d704a046p-5 0x1.3b2ab6fba07adp-7 0x1.5d87fe78c3632p-10"
        " 0x1.4309130dbf22dp-13 0x1.ffcbfbc81545bp-17 0x1.62bfca06f5865p-20"
        " 0x1.b5265253e50f8p-24 0x1.e61793f88c10dp-28 0x1.e7c775ea3b15cp-32"
    ),
    "float": hexes("0x1.ebfbdcp-3 0x1.c6af84p-5 0x1.3b2daep-7 0x1.5f0716p-10 0x1.41ae8cp-13"),
}
# By table: 2^(j/16) as a sum of two, and (e^r - 1 - r) / r^2 on |r| <= ln(2)/32.
TABLE_STEPS = 16.0
ROOTS = hexes(
    "0x1p+0 0x1.0b5586cf9890fp+0 0x1.172b83c7d517bp+0 0x1.2387a6e756238p+0"
    " 0x1.306fe0a31b715p+0 0x1.3dea64c123422p+0 0x1.4bfdad5362a27p+0 0x1.5ab07dd485429p+0"
    " 0x1.6a09e667f3bcdp+0 0x1.7a11473eb0187p+0 0x1.8ace5422aa0dbp+0 0x1.9c49182a3f09p+0"
    " 0x1.ae89f995ad3adp+0 0x1.c199bdd85529cp+0 0x1.d5818dcfba487p+0 0x1.ea4afa2a490dap+0"
)
ROOTS_LOW = hexes(
    "0x0p+0 0x1.8a62e4adc610bp-54 -0x1.19041b9d78a76p-55 0x1.9b07eb6c70573p-54"
    " 0x1.6f46ad23182e4p-55 0x1.ada0911f09ebcp-55 0x1.d4397afec42e2p-56"
    " 0x1.6324c054647adp-54 -0x1.bdd3413b26456p-54 -0x1.41577ee04992fp-55"
    " 0x1.6e9f156864b27p-54 0x1.c7c46b071f2bep-56 0x1.7a1cd345dcc81p-54"
    " 0x1.11065895048ddp-55 0x1.2ed02d75b3707p-55 -0x1.e9c23179c2893p-54"
)
ROOT_P = hexes(
    "0x1.0000000000005p-1 0x1.555555548f728p-3 0x1.555555545e93dp-5 0x1.11123abf04506p-7"
    " 0x1.6c185e05b7a2bp-10"
)
# For e^r - 1 by table: the lower parts of the roots as fractions of them, and the polynomial with
# small relative error of r + r^2 P.
ROOTS_ERROR = hexes(
    "0x0p+0 0x1.79aa65d837b6dp-54 -0x1.01b15eaa59348p-55 0x1.68efde3a8a894p-54"
    " 0x1.34d754db0abb6p-55 0x1.59f48a72a4c6dp-55 0x1.690cebb7aafbp-56"
    " 0x1.063e1e21c5409p-54 -0x1.3b3efbf5e2228p-54 -0x1.b32dcb94da51dp-56"
    " 0x1.db72fc1f0eab4p-55 0x1.1affc2b91ce27p-56 0x1.c1a7792cb3387p-55"
    " 0x1.36eae30af0cb3p-56 0x1.4a385a63d07a7p-56 -0x1.ff7128fd391fp-55"
)
ROOT_EXPM1_P = hexes(
    "0x1.0000000000003p-1 0x1.5555555555559p-3 0x1.55555554ad3e1p-5 0x1.111111108f6f8p-7"
    " 0x1.6c181f4d2d99bp-10 0x1.a01b88dad0a44p-13"
)


class Reduced(NamedTuple):
    """x = n ln 2 + r + n * (the low part of ln 2, not yet subtracted)."""

    shifted: Value
    n: Value
    r: Value


def reduce(x: Value, steps: float = 1.0) -> Reduced:
    """Split off the nearest multiple of ln(2)/steps; r is exact but for the low part of ln 2."""
    shift = ROUNDING_SHIFT[x.kind] / steps
    shifted = fma(x, LOG2E[x.kind], shift)
    n = shifted - shift
    return Reduced(shifted, n, fma(-n, LN2_HIGH[x.kind], x))


def power_of_two(shifted: Value, offset: int) -> Value:
    """2^(n + offset), n being the low bits of `shifted`; must be a normal number."""
    return ((shifted.bits() + (shifted.bias + offset)) << shifted.mantissa_bits).floats()


def scale(y: Value, reduced: Reduced) -> Value:
    """y * 2^floor(n) with one rounding even when subnormal."""
    if avx512.enabled():
        return avx512.scale(y, reduced.n)
    shifted = reduced.shifted
    shift_bits = y.const(ROUNDING_SHIFT[y.kind]).bits()
    twice_biased = (shifted.bits() - shift_bits) + 2 * y.bias
    first = twice_biased >> 1
    second = twice_biased - first
    first_factor = (first << y.mantissa_bits).floats()
    second_factor = (second << y.mantissa_bits).floats()
    return (y * first_factor) * second_factor


def scale_down(y: Value, reduced: Reduced) -> Value:
    """The same for n <= 0, where 2^n needs no more than one factor that is out of the range."""
    if avx512.enabled():
        return avx512.scale(y, reduced.n)
    return (y * power_of_two(reduced.shifted, HEADROOM)) * 2.0**-HEADROOM


def tabled(x: Value) -> bool:
    """Whether exponentials of this kind go by table; float32 would not gain."""
    return x.kind == "double" and avx512.enabled()


def _tabled_parts(reduced: Reduced, r: Value) -> tuple[Value, Value]:
    """(T, rest): 2^(n - floor(n)) e^r as a sum of two, n in sixteenths, T from the table."""
    index = reduced.shifted.bits()
    root, root_low = avx512.look_up(index, r.kind, ROOTS), avx512.look_up(index, r.kind, ROOTS_LOW)
    return root, fma(root, fma(r * r, horner(r, ROOT_P), r), root_low)


def _tabled_exp(reduced: Reduced, r: Value) -> Value:
    root, rest = _tabled_parts(reduced, r)
    return root + rest


def _exp_of_reduced(r: Value) -> Value:
    # Two fma instead of 1 + (r + r^2 P) save 0.14 ULP: the sum 1 + rP rounds inside.
    return fma(r, fma(r, horner(r, EXP_P[r.kind]), 1.0), 1.0)


def exp(x: Value) -> Value:
    """e^x."""
    low, high = EXP_RANGE[x.kind]
    x = at_least(at_most(x, high), low)
    if tabled(x):
        reduced = reduce(x, TABLE_STEPS)
        r = fma(-reduced.n, LN2_LOW[x.kind], reduced.r)
        return scale(_tabled_exp(reduced, r), reduced)
    reduced = reduce(x)
    r = fma(-reduced.n, LN2_LOW[x.kind], reduced.r)
    return scale(_exp_of_reduced(r), reduced)


def exp2(x: Value) -> Value:
    """2^x; exact for integers."""
    low, high = EXP2_RANGE[x.kind]
    x = at_least(at_most(x, high), low)
    shift = ROUNDING_SHIFT[x.kind]
    shifted = x + shift
    n = shifted - shift
    r = x - n
    y = fma(r, fma(r, horner(r, EXP2_P[x.kind]), LN2[x.kind]), 1.0)
    return scale(y, Reduced(shifted, n, r))


def exp_of_pair(high: Value, low: Value) -> tuple[Value, Reduced]:
    """e^(high + low) as (y, reduced), to be joined by `scale`; `high` within EXP_RANGE."""
    reduced = reduce(high, TABLE_STEPS if tabled(high) else 1.0)
    r = reduced.r + fma(-reduced.n, LN2_LOW[high.kind], low)
    return _tabled_exp(reduced, r) if tabled(high) else _exp_of_reduced(r), reduced


def expm1_parts(x: Value, offset: int) -> tuple[Value, Value]:
    """(h, l) with h + l = 2^offset * (e^x - 1); l is not small against the last bit of h."""
    reduced = reduce(x)
    low = -(reduced.n * LN2_LOW[x.kind])
    r = reduced.r + low
    correction = (reduced.r - r) + low
    correction = fma(r * r, horner(r, EXPM1_P[x.kind]), correction)
    s = power_of_two(reduced.shifted, offset)
    one = 2.0**offset
    less_one = s - one
    h = fma(s, r, less_one)
    # (s - less_one) - one recovers what s - one lost: without it float32 errs by 1 ULP at n = 25.
    l = fma(s, r, less_one - h) + ((s - less_one) - one)
    return h, fma(s, correction, l)


def tabled_expm1_parts(x: Value) -> tuple[Value, Value]:
    """(h, l) with h + l = e^x - 1 by table, for doubles x >= 0; l as of `expm1_parts`."""
    reduced = reduce(x, TABLE_STEPS)
    n, r, index = reduced.n, reduced.r, reduced.shifted.bits()
    # What r and the root lack, by which e^r is still to be multiplied.
    lacking = fma(-n, LN2_LOW[x.kind], avx512.look_up(index, x.kind, ROOTS_ERROR))
    correction = fma(r * r, horner(r, ROOT_EXPM1_P), fma(r, lacking, lacking))
    s = avx512.scale(avx512.look_up(index, x.kind, ROOTS), n)
    less_one = s - 1.0
    h = fma(s, r, less_one)
    l = fma(s, r, less_one - h) + ((s - less_one) - 1.0)
    return h, fma(s, correction, l)


def expm1(x: Value) -> Value:
    """e^x - 1, accurate near 0."""
    low, high = EXPM1_RANGE[x.kind]
    h, l = expm1_parts(at_least(at_most(x, high), low), -1)
    result = 2.0 * (h + l)
    return select(abs(x) < TINY[x.kind], x, result)


def _exp_as_pair(x: Value) -> tuple[Value, Value, Reduced]:
    """e^x as a sum of two, to be scaled."""
    if tabled(x):
        reduced = reduce(x, TABLE_STEPS)
        root, rest = _tabled_parts(reduced, fma(-reduced.n, LN2_LOW[x.kind], reduced.r))
        return *fast_two_sum(root, rest), reduced
    reduced = reduce(x)
    r, r_low = fast_two_sum(reduced.r, -(reduced.n * LN2_LOW[x.kind]))
    y, y_low = fast_two_sum(r.const(1.0), r)
    y, y_low = fast_two_sum(y, y_low + fma(r * r, horner(r, EXPM1_P[x.kind]), r_low))
    return y, y_low, reduced


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), without overflow and with a full tail."""
    low, _ = EXP_RANGE[x.kind]
    # Where the quotient is just below a power of 2 and e^-x just above, an error of e^-x counts
    # twice: hence a sum of two.
    y, y_low, reduced = _exp_as_pair(at_least(-abs(x), low))
    e, e_low = scale(y, reduced), scale(y_low, reduced)
    d, d_low = fast_two_sum(x.const(1.0), e)
    negative = x < 0.0
    top, top_low = select(negative, e, 1.0), select(negative, e_low, 0.0)
    return divide_pairs(top, top_low, d, d_low + e_low)

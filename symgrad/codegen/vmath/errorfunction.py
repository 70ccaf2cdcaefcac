"""erf, erfc and erfinv.

erf: near 0 x + x P(x^2). Beyond: 1 - exp(-x^2) Q, Q being erfcx(x) as a polynomial in
(x - c) / (x + c). The exponential is `exp` of the rounded square, and so the one in erf's
derivative: where both are wanted it is computed once. P and Q are minimax polynomials (Remez).
With AVX-512: by the table of `nodetables` in registers.

erfc: exp(-x^2) * erfcx(x), the square kept as a sum of two; (1 + 2x) erfcx(x) is a polynomial in
(x - 4) / (x + 4) (Shepherd and Laframboise, Math. Comp. 36, 1981; own minimax coefficients).
In float32: u exp(L - x^2) with u = 1 / (1 + x) and L = log((1 + x) erfcx(x)), a polynomial in u;
whatever a rounding loses goes into the exponent, which is a sum of two.

erfinv: the rational approximations of Wichura's algorithm AS 241 (Applied Statistics 37, 1988) for
the normal quantile, scaled by 1/sqrt(2).

erf and erfc have float32 forms; erfinv takes doubles. Start at `erf`.
"""

from __future__ import annotations

from symgrad.codegen.vmath import avx512, nodetables
from symgrad.codegen.vmath.exponential import (
    EXP_P,
    EXP_RANGE,
    LN2_LOW,
    exp,
    exp_of_pair,
    reduce,
    scale,
    scale_down,
)
from symgrad.codegen.vmath.logarithm import log
from symgrad.codegen.vmath.notation import (
    Value,
    at_least,
    at_most,
    divide_pairs,
    fma,
    hexes,
    horner,
    select,
    two_product,
)

# erf rounds to 1 from here on.
ERF_ONE = {"double": 6.0, "float": 4.0}
# Where the two forms of erf meet: either comes close to one unit in the last place there. With this
# c of the second form x - c is exact where erfcx counts most.
ERF_INNER = 0.9375
ERF_CENTRE = {"double": 2.875, "float": 2.5}
ERF_P = {
    "double": hexes(
        "0x1.06eba8214db68p-3 -0x1.812746b0379bdp-2 0x1.ce2f21a040d18p-4 -0x1.b82ce311fa9bap-6"
        " 0x1.565bccf92c29fp-8 -0x1.c02db03dfb611p-11 0x1.f9a2baac42d27p-14"
        " -0x1.f4ca4d9faec1p-17 0x1.b97fd5a8b27c7p-20 -0x1.5c0731b678e71p-23"
        " 0x1.d71b57cf3f437p-27 -0x1.abaf1d576908ap-31"
    ),
    "float": hexes(
        "0x1.06eba8p-3 -0x1.81273ep-2 0x1.ce2cf8p-4 -0x1.b7f90ap-6 0x1.540596p-8 -0x1.a3f644p-11"
        " 0x1.496854p-14"
    ),
}
ERF_Q = {
    "double": hexes(
        "0x1.7d0a5e9dd5753p-3 -0x1.58d2173e907d1p-2 0x1.fbe08940722d5p-3 -0x1.29cc4162fc0c8p-3"
        " 0x1.08546b51e887fp-4 -0x1.36ec5299a25fcp-6 0x1.dd0e0e67a5591p-10 0x1.3611c0b66c60ap-10"
        " -0x1.d34dee6649272p-12 -0x1.90452e8fd6f4fp-15 0x1.56361fe00a8d8p-14"
        " 0x1.66c717c072885p-16"
    ),
    "float": hexes("0x1.afba9p-3 -0x1.7caec8p-2 0x1.01a22p-2 -0x1.000954p-3 0x1.54020cp-5"),
}
# erfc underflows to 0 before this.
ERFC_ZERO = 27.5
# erf(0.4769...) = 1/2
ERF_HALF = 0.4765625
ERFCX_CENTRE = 4.0
# (1 + 2x) erfcx(x) in (x - 4) / (x + 4), 0 <= x <= 27.3
ERFCX_T = hexes(
    "0x1.3ba5916e9fd7fp+0 -0x1.1df1ad154a2a8p-3 0x1.f7f5df66fb9cp-7 0x1.16ecefcfa68fcp-4"
    " -0x1.9ddb23c3dc234p-4 0x1.7fee004de9486p-4 -0x1.0fb06dff63022p-4"
    " 0x1.3079edfad5e1dp-5 -0x1.0962385343c47p-6 0x1.49c67194ed7dcp-8"
    " -0x1.8d4ac3420334ap-11 -0x1.a1deb42f418cep-13 0x1.3be2ea0005e1p-13"
    " -0x1.995f9cf4c396cp-16 -0x1.78f572db72512p-17 0x1.7f2950c6ea509p-18"
    " 0x1.50f3bdd21ba04p-22 -0x1.b87759248eafep-21 0x1.d98b951bc72d2p-25"
    " 0x1.b4619d5b1ef75p-24 -0x1.124d79c03cd9fp-27 -0x1.1f8dcbada8e6bp-27"
)

# The same for float32. log((1 + x) erfcx(x)) at u = 1 / (1 + x) is a constant plus d Q(d), d being
# u less a point between: the constant is a whole number of units of the last place of any x^2,
# and the point is chosen so that the constant is the value there. The point is a multiple of 2^-24:
# its sum with d is exact.
ERFC_FLOAT_ZERO = 10.06
ERFCX_LOG_POINT = float.fromhex("0x1.e4fb4p-2")
ERFCX_LOG_VALUE = float.fromhex("-0x1.5f54p-3")
ERFCX_LOG_Q = hexes(
    "0x1.2d0844p-1 -0x1.3a6676p-1 0x1.222b9p-3 0x1.6eba3ep-2 -0x1.27d874p-1 0x1.56516ep-2"
    " 0x1.502b34p-2 -0x1.12b89cp+0 0x1.352b7ep+0 -0x1.0aeeep-6 -0x1.d44fe4p+0 0x1.160cdp+1"
    " -0x1.acbbep-1"
)
# (1 + x) d/dx log(erfcx(x)) is -1.09 to -1.28: what an error of u, as a fraction, does to erfcx.
ERFCX_PER_U = 1.12

# AS 241: |x| <= 0.85 in 0.180625 - x^2/4; beyond in r = sqrt(-log((1 - |x|) / 2)) less 1.6 up to
# r = 5, less 5 from there. Its quotients N/D are rewritten as x (1 + M/D) and r + (c + M/D), M made
# in multiple precision: M/D is small, and with it the rounding errors of M and D.
CENTRE_LIMIT = 0.85
CENTRE_SHIFT = 0.180625
MIDDLE_LIMIT, MIDDLE_SHIFT, TAIL_SHIFT = 5.0, 1.6, 5.0
MIDDLE_CONSTANT, TAIL_CONSTANT = -0.4375, -0.265625
CENTRE_TOP = hexes(
    "0x1.948bd210abe87p-3 0x1.30994fd35276fp+2 0x1.3c05639d842a2p+3 -0x1.0da791a381c05p+9"
    " -0x1.371ee898e048dp+12 -0x1.e52ed5d917d03p+13 -0x1.08365e9b21fedp+14"
    " -0x1.0f366b5a5de89p+12"
)
CENTRE_BOTTOM = hexes(
    "0x1p+0 0x1.5281b386e1ab5p+5 0x1.5797efdc8b3f7p+9 0x1.512322e75c89fp+12"
    " 0x1.4b772d5d65266p+14 0x1.3317caa64f4bep+15 0x1.c0e457cb1ae76p+14"
    " 0x1.46a7eca984b69p+12"
)
MIDDLE_TOP = hexes(
    "-0x1.3f7160448ccbap-3 -0x1.cd9619e6dff25p-4 0x1.3e1a1bbc4fedbp-4 0x1.9e6dcc3b891fp-4"
    " 0x1.2a4851e514db7p-5 0x1.544969adaca64p-8 0x1.e882fd5d7e213p-13"
    " 0x1.86d9af3d809b4p-24 -0x1.20d3f686439e4p-30"
)
MIDDLE_BOTTOM = hexes(
    "0x1p+0 0x1.06cefbb46a449p+1 0x1.ad278e6526633p+0 0x1.61292f23385c9p-1"
    " 0x1.2f5123394f04p-3 0x1.f207a7eab17bfp-7 0x1.1f18cbfdf2728p-11"
    " 0x1.20d3f686439e4p-30"
)
TAIL_TOP = hexes(
    "-0x1.b297eb393bf6fp-6 0x1.83761551a30dcp-6 0x1.c9391555e73d9p-7 0x1.334ec6bcee31fp-9"
    " 0x1.50601ba9349f9p-13 0x1.282a84c52a2dcp-18 0x1.4160655429a4ap-25"
    " 0x1.03d50855a08d6p-40 -0x1.269bff1f8c19p-49"
)
TAIL_BOTTOM = hexes(
    "0x1p+0 0x1.331d34fc7d77fp-1 0x1.186eb183443fbp-3 0x1.e76f93215462ap-7"
    " 0x1.9c8bc979dc5d7p-11 0x1.35c2c496374bfp-16 0x1.31446f740b9ep-23"
    " 0x1.269bff1f8c19p-49"
)


def _erf_inner(a: Value, square: Value) -> Value:
    """erf(a), 0 <= a <= ERF_INNER."""
    return fma(a, horner(square, ERF_P[a.kind]), a)


def erf(x: Value) -> Value:
    """Error function."""
    a = at_most(abs(x), ERF_ONE[x.kind])
    if avx512.enabled():
        return avx512.by_nodes(a, nodetables.ERF[x.kind]).copysign(x)
    square = x * x
    t = (a - ERF_CENTRE[x.kind]) / (a + ERF_CENTRE[x.kind])
    outer = fma(exp(-square), -horner(t, ERF_Q[x.kind]), 1.0)
    return select(a > ERF_INNER, outer, _erf_inner(a, square)).copysign(x)


def _erfc_float(x: Value) -> Value:
    """1 - erf(x) in float32."""
    a = at_most(abs(x), ERFC_FLOAT_ZERO)
    power = fma(-a, a, ERFCX_LOG_VALUE)
    power_low = fma(-a, a, ERFCX_LOG_VALUE - power)
    bottom = a + 1.0
    bottom_low = a - (bottom - 1.0)
    # The quotient less the bits that d has no room for.
    d = 1.0 / bottom - ERFCX_LOG_POINT
    u = d + ERFCX_LOG_POINT
    u_error = fma(-u, bottom_low, fma(-u, bottom, 1.0))
    q = horner(d, ERFCX_LOG_Q)
    total = fma(d, q, power)
    total_low = fma(d, q, power - total) + fma(u_error, ERFCX_PER_U, power_low)
    reduced = reduce(total)
    lacking = fma(-reduced.n, LN2_LOW[x.kind], total_low)
    r = reduced.r + lacking
    # e^r as 1 + reduced.r, of which the sum loses little, and the rest.
    y = reduced.r + 1.0
    y_low = (reduced.r - (y - 1.0)) + fma(r * r, horner(r, EXP_P[x.kind]), lacking)
    result = scale_down(fma(u, y, u * y_low), reduced)
    return select(x.is_negative(), 2.0 - result, result)


def erfc(x: Value) -> Value:
    """1 - erf(x), with a full tail."""
    if x.kind == "float":
        return _erfc_float(x)
    a = at_most(abs(x), ERFC_ZERO)
    square, square_low = two_product(a, a)
    y, reduced = exp_of_pair(at_least(-square, EXP_RANGE[x.kind][0]), -square_low)
    t = (a - ERFCX_CENTRE) / (a + ERFCX_CENTRE)
    bottom = fma(a, 2.0, 1.0)
    bottom_low = fma(a, 2.0, 1.0 - bottom)
    top, top_low = two_product(horner(t, ERFCX_T), y)
    result = scale(divide_pairs(top, top_low, bottom, bottom_low), reduced)
    outer = select(x < 0.0, 2.0 - result, result)
    # Where erf is at most 1/2 its rounding error is at most that of the difference.
    return select(a < ERF_HALF, 1.0 - _erf_inner(a, square).copysign(x), outer)


def erfinv(x: Value) -> Value:
    """The inverse of erf."""
    a = abs(x)
    central = a <= CENTRE_LIMIT
    centre = fma(x * 0.25, -x, CENTRE_SHIFT)
    r = (-log((1.0 - a) * 0.5)).sqrt()
    middle = r <= MIDDLE_LIMIT
    d = r - select(middle, r.const(MIDDLE_SHIFT), TAIL_SHIFT)
    outer_top = select(middle, horner(d, MIDDLE_TOP), horner(d, TAIL_TOP))
    outer_bottom = select(middle, horner(d, MIDDLE_BOTTOM), horner(d, TAIL_BOTTOM))
    top = select(central, horner(centre, CENTRE_TOP), outer_top)
    bottom = select(central, horner(centre, CENTRE_BOTTOM), outer_bottom)
    q = top / bottom
    outer = r + (select(middle, q.const(MIDDLE_CONSTANT), TAIL_CONSTANT) + q)
    result = select(central, fma(a, q, a), outer)
    return select(a.equals(1.0), float("inf"), result).copysign(x)

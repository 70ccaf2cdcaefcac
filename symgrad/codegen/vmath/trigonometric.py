"""sin, cos, tan and the pair (sin, cos).

x = q pi/2 + r with r kept as a sum of two: three constants and fma (Cody and Waite 1980) up
to 2^45 (2^17 in float32); beyond that one branch per vector leads to a lane by lane reduction
with 192 bits of 2/pi (Payne and Hanek, SIGNUM Newsletter 18, 1983) in a function of its own.
Kernels as in fdlibm's k_sin.c and k_cos.c, with the project's own minimax coefficients.

`Quadrant` carries q and r. `emit` of these functions ends in another basic block than it began.
Start at `reduce`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.codegen import ir
from symgrad.codegen.vmath.notation import (
    Value,
    divide_pairs,
    fast_two_sum,
    fma,
    hexes,
    horner,
    select,
    two_product,
    two_sum,
)

ROUNDING_SHIFT = {"double": 1.5 * 2.0**52, "float": 1.5 * 2.0**23}
TWO_OVER_PI = {
    "double": float.fromhex("0x1.45f306dc9c883p-1"),
    "float": float.fromhex("0x1.45f306p-1"),
}
# pi/2 as a sum of three.
HALF_PI = {
    "double": hexes("0x1.921fb54442d18p+0 0x1.1a62633145c07p-54 -0x1.f1976b7ed8fbcp-110"),
    "float": hexes("0x1.921fb6p+0 -0x1.777a5cp-25 -0x1.ee59dap-50"),
}
# The reduction of one double beyond the next bounds: (quadrant, high, low).
SCALAR_NAME = "sg_reduce_far"
SCALAR_RESULT = "{ i64, double, double }"
LARGE = {"double": 2.0**45, "float": 2.0**17}
# A float32 value below this is not close enough to a multiple of pi/2 to need a third constant.
LARGE_FLOAT = 2.0**30
INFINITY = float("inf")

# (sin r - r) / r^3 in z = r^2
SIN_S = {
    "double": hexes(
        "-0x1.5555555555549p-3 0x1.111111110f842p-7 -0x1.a01a019c0a35p-13 0x1.71de357103628p-19"
        " -0x1.ae5e60c6e3685p-26 0x1.5d915e4af9943p-33"
    ),
    "float": hexes("-0x1.555556p-3 0x1.111176p-7 -0x1.a05bbap-13 0x1.7cd6cep-19"),
}
# (cos r - 1 + r^2/2) / r^4 in z = r^2
COS_C = {
    "double": hexes(
        "0x1.555555555554cp-5 -0x1.6c16c16c15205p-10 0x1.a01a019cbc618p-16"
        " -0x1.27e4f81088ac4p-22 0x1.1ee9f096d9df8p-29 -0x1.8fb1a65963d09p-37"
    ),
    "float": hexes("0x1.55554ap-5 -0x1.6c0c1ap-10 0x1.99e0fp-16"),
}

# 2/pi in 64-bit words after the binary point, led by a word of zeros so that the window of a
# number below 2^53 may start before the point.
TWO_OVER_PI_WORDS = (
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)


class Quadrant(NamedTuple):
    """x = q pi/2 + high + low, |high| <= pi/4 (a little more next to a tie)."""

    q: Value
    high: Value
    low: Value


def reduce(x: Value) -> Quadrant:
    """Nearest multiple of pi/2 and the rest, for any x; infinity gives NaN."""
    return _reduce_far_too(x, _reduce_near(x), LARGE[x.kind])


def reduce_float_lanes(x: Value) -> Quadrant:
    """The same for float32 values in doubles; `low` is 0 but for huge values."""
    shift = ROUNDING_SHIFT["double"]
    shifted = fma(x, TWO_OVER_PI["double"], shift)
    n = shifted - shift
    high = fma(-n, HALF_PI["double"][1], fma(-n, HALF_PI["double"][0], x))
    return _reduce_far_too(x, Quadrant(shifted.bits() & 3, high, x.const(0.0)), LARGE_FLOAT)


def _reduce_far_too(x: Value, near: Quadrant, large: float) -> Quadrant:
    """`near` where |x| <= large, the lane by lane reduction elsewhere, if there is any."""
    size = abs(x)
    far = (size > large) & (size < INFINITY)
    f = x.f
    any_far = far.val
    if x.width > 1:
        any_far = f.intrinsic("vector.reduce.or", "i1", 1, [far.val], suffix=f"v{x.width}i1")
    before = f.block
    slow, join = f.label("far"), f.label("reduced")
    f.do(
        f"br i1 {any_far.ref}, label %{slow}, label %{join},"
        ' !prof !{!"branch_weights", i32 1, i32 2000}'
    )
    f.start(slow)
    far_parts = _call_reduce_far(select(far, x, 2.0 * large))
    repaired = [select(far, a, b) for a, b in zip(far_parts, near, strict=True)]
    f.branch(join)
    f.start(join)
    merged = []
    for near_part, far_part in zip(near, repaired, strict=True):
        phi = f.phi(near_part.kind, near_part.width)
        f.set_phi(phi, [(near_part.val, before), (far_part.val, slow)])
        merged.append(Value(f, phi[0]))
    return Quadrant(*merged)


def _reduce_near(x: Value) -> Quadrant:
    p1, p2, p3 = HALF_PI[x.kind]
    shift = ROUNDING_SHIFT[x.kind]
    shifted = fma(x, TWO_OVER_PI[x.kind], shift)
    n = shifted - shift
    first = fma(-n, p1, x)
    p, p_error = two_product(n, p2)
    r, e = two_sum(first, -p)
    rest = e - fma(n, p3, p_error)
    high, low = fast_two_sum(r, rest)
    return Quadrant(shifted.bits() & 3, high, low)


def _call_reduce_far(x: Value) -> Quadrant:
    """Call the lane by lane reduction, adding it to the module at first use."""
    kind, width, integer = x.kind, x.width, ir.INT_OF_FLOAT[x.kind]
    name = f"sg_reduce_far_v{width}{'f64' if kind == 'double' else 'f32'}"
    number, index = ir.type_text(kind, width), ir.type_text(integer, width)
    result = f"{{ {index}, {number}, {number} }}"
    if name not in x.f.module.functions:
        _define_reduce_far(x.f.module, name, kind, width, result)
    parts = x.f.emit(f"call {result} @{name}({x.val})", result)
    kinds = (integer, kind, kind)
    return Quadrant(
        *[
            Value(x.f, x.f.emit(f"extractvalue {result} {parts.ref}, {i}", k, width))
            for i, k in enumerate(kinds)
        ]
    )


def _define_reduce_far(module: ir.Module, name: str, kind: str, width: int, result: str) -> None:
    """A function that sends each lane through `_define_reduce_scalar`'s function."""
    if SCALAR_NAME not in module.functions:
        _define_reduce_scalar(module)
    attributes = "noinline cold nounwind"
    f = ir.Function(module, name, [("x", kind, width)], (result, 1), attributes, "internal")
    integer = ir.INT_OF_FLOAT[kind]
    columns = [ir.Val("poison", k, width) for k in (integer, kind, kind)]
    for lane in range(width):
        x = f.arguments[0] if width == 1 else f.extract(f.arguments[0], lane)
        wide = x if kind == "double" else f.cast("fpext", x, "double")
        triple = f.emit(f"call {SCALAR_RESULT} @{SCALAR_NAME}({wide})", SCALAR_RESULT)
        q, high, low = (
            f.emit(f"extractvalue {SCALAR_RESULT} {triple.ref}, {i}", k)
            for i, k in enumerate(("i64", "double", "double"))
        )
        if kind == "float":
            q = f.cast("trunc", q, "i32")
            narrow = f.cast("fptrunc", high, "float")
            low = f.cast("fptrunc", f.fsub(high, f.cast("fpext", narrow, "double")), "float")
            high = narrow
        for i, part in enumerate((q, high, low)):
            columns[i] = part if width == 1 else f.insert(columns[i], part, lane)
    aggregate = ir.Val("poison", result)
    for i, column in enumerate(columns):
        aggregate = f.emit(f"insertvalue {aggregate}, {column}, {i}", result)
    f.ret(aggregate)
    f.finish()


def _define_reduce_scalar(module: ir.Module) -> None:
    """Payne and Hanek's reduction of one double, 2^16 < |x| < infinity.

    With x = m 2^e, the bits of 2/pi of weight 4 and more drop out of m 2^e (2/pi); the next 192
    bits, times m, modulo 2^192, are the quadrant (two bits) and the fraction (190 bits, of which
    at least 76 are right and significant even for the double nearest to a multiple of pi/2).
    """
    table = module.add_table("sg_two_over_pi", "i64", TWO_OVER_PI_WORDS)
    attributes = "noinline cold nounwind"
    scalar = (SCALAR_RESULT, 1)
    f = ir.Function(module, SCALAR_NAME, [("x", "double", 1)], scalar, attributes, "internal")
    x = Value(f, f.arguments[0])
    bits = x.bits()
    exponent = (bits >> 52) & 0x7FF
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    # The window starts at bit e - 2 after the point (from 0), 64 zero bits precede the point.
    position = exponent - (1075 - 62)
    word, shift = position >> 6, position & 63
    words = []
    for i in range(4):
        address = f.gep(ir.Val(table, "ptr"), (word + i).val, "i64")
        words.append(f.load(address, "i64"))

    def funnel(high: Value | ir.Val, low: Value | ir.Val, count: Value | ir.Val) -> Value:
        arguments = [v.val if isinstance(v, Value) else v for v in (high, low, count)]
        return Value(f, f.intrinsic("fshl", "i64", 1, arguments))

    window = [funnel(words[i], words[i + 1], shift) for i in range(3)]
    wide_m = m.cast("zext", "i128")
    carry, word_bits = m.const(0).cast("zext", "i128"), m.const(64).cast("zext", "i128")
    limbs = []
    for w in (window[2], window[1], window[0]):
        total = w.cast("zext", "i128") * wide_m + carry
        limbs.append(total.cast("trunc", "i64"))
        carry = total >> word_bits
    p0, p1, p2 = limbs
    # Rounding to the nearest quadrant makes the fraction signed.
    q = (p2 + (1 << 61)) >> 62
    two = ir.constant("i64", 2)
    fraction = [funnel(p2, p1, two), funnel(p1, p0, two), p0 << 2]
    sign = fraction[0] >> 63
    flip = -sign
    # Two's complement negation less one unit of 2^-192, which is far below what is kept.
    a, b, c = (part ^ flip for part in fraction)
    mask = (1 << 53) - 1
    top = (a >> 11).cast("uitofp", "double") * 2.0**-53
    middle = (((a << 42) | (b >> 22)) & mask).cast("uitofp", "double") * 2.0**-106
    bottom = (((b << 31) | (c >> 33)) & mask).cast("uitofp", "double") * 2.0**-159
    high, low = fast_two_sum(top, middle)
    high, low = fast_two_sum(high, low + bottom)
    p, p_error = two_product(high, HALF_PI["double"][0])
    rest = fma(high, HALF_PI["double"][1], fma(low, HALF_PI["double"][0], p_error))
    high, low = fast_two_sum(p, rest)
    negative = (bits >> 63) ^ sign
    sign_bit = negative << 63
    high = (high.bits() ^ sign_bit).floats()
    low = (low.bits() ^ sign_bit).floats()
    q = select(bits < 0, -q, q) & 3
    aggregate = ir.Val("poison", SCALAR_RESULT)
    for i, part in enumerate((q, high, low)):
        aggregate = f.emit(f"insertvalue {aggregate}, {part.val}, {i}", SCALAR_RESULT)
    f.ret(aggregate)
    f.finish()


def sine_parts(high: Value, low: Value, z: Value) -> tuple[Value, Value]:
    """(high, correction) with sin(high + low) as their sum, |r| <= pi/4."""
    series = (high * z) * horner(z, SIN_S[high.kind])
    return high, fma(fma(z, -0.5, 1.0), low, series)


def cosine_parts(high: Value, low: Value, z: Value) -> tuple[Value, Value]:
    """(w, correction) with cos(high + low) as their sum, |r| <= pi/4."""
    w = fma(z, -0.5, 1.0)
    w_error = fma(z, -0.5, 1.0 - w)
    return w, fma(z * z, horner(z, COS_C[high.kind]), fma(-high, low, w_error))


def _flip_sign(x: Value, quadrant_bit: Value) -> Value:
    """Negate where bit 1 of an integer is set."""
    sign_place = 62 if x.kind == "double" else 30
    return (x.bits() ^ ((quadrant_bit & 2) << sign_place)).floats()


def _sine_of(x: Value, odd: Value, q: Value, s: Value, c: Value) -> Value:
    result = _flip_sign(select(odd, c, s), q)
    return select(x.equals(0.0), x, result)


def _cosine_of(odd: Value, q: Value, s: Value, c: Value) -> Value:
    return _flip_sign(select(odd, s, c), q + 1)


def _kernels(x: Value) -> tuple[Value, Value, Value, Value]:
    q, high, low = reduce(x)
    z = high * high
    s, s_low = sine_parts(high, low, z)
    c, c_low = cosine_parts(high, low, z)
    return (q & 1).equals(1), q, s + s_low, c + c_low


def sin(x: Value) -> Value:
    """Sine."""
    odd, q, s, c = _kernels(x)
    return _sine_of(x, odd, q, s, c)


def cos(x: Value) -> Value:
    """Cosine."""
    odd, q, s, c = _kernels(x)
    return _cosine_of(odd, q, s, c)


def sincos(x: Value) -> tuple[Value, Value]:
    """Sine and cosine from one reduction."""
    odd, q, s, c = _kernels(x)
    return _sine_of(x, odd, q, s, c), _cosine_of(odd, q, s, c)


def tan(x: Value) -> Value:
    """Tangent: sine and cosine as sums of two, and a corrected division."""
    q, high, low = reduce(x)
    z = high * high
    s, s_low = fast_two_sum(*sine_parts(high, low, z))
    c, c_low = fast_two_sum(*cosine_parts(high, low, z))
    odd = (q & 1).equals(1)
    top, top_low = select(odd, c, s), select(odd, c_low, s_low)
    bottom, bottom_low = select(odd, s, c), select(odd, s_low, c_low)
    t = divide_pairs(top, top_low, bottom, bottom_low)
    # tan has period pi: odd quadrants give -1/tan.
    t = _flip_sign(t, (q & 1) << 1)
    return select(x.equals(0.0), x, t)

"""Real and imaginary parts of complex functions, written in real ops.

One structure: a pair (real part, imaginary part) of real nodes stands for a complex number. Op
classes name these functions as their ``parts``; `symgrad.schedule.complex_parts` applies them just
before scheduling. They keep the range of their results: division and square root scale, the
logarithm does not square, exponentials are split where they alone would overflow. Start at `div`.

Quotients follow Smith (Algorithm 116, CACM 5, 1962) with the care for underflow of Baudin and
Smith (A Robust Complex Division in Scilab, 2012); roots, logarithms and tangents follow Kahan
(Branch Cuts for Complex Elementary Functions, 1987). Values at infinity and at signed zeros are
those of C99, Annex G, where they do not follow from the formulas.
"""

from __future__ import annotations

import math
from typing import Any

from symgrad.expr import Expr
from symgrad.op import CONSTANT, REGISTRY, constant

Pair = tuple[Expr, Expr]

LARGEST_POWER = 64
"""Integer exponents up to this size are repeated products."""


class _Ops:
    """The ops by name; the modules that declare them import this one."""

    def __getattr__(self, name: str) -> Any:
        return REGISTRY[name]


r = _Ops()


def _number(x: Expr, value: float) -> Expr:
    """A number in the dtype of `x`, compiled in."""
    return constant(value, x.dtype, fixed=True)


def _limits(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """For the dtype of `x`: large and small powers of two, how far to scale from the small one, and
    one beyond which squares leave 1 unchanged."""
    powers = (1020, -960, 60, 60) if x.dtype.itemsize == 8 else (124, -90, 30, 30)
    large, small, up, far = (_number(x, 2.0**p) for p in powers)
    return large, small, up, far


def _scale(size: Expr) -> Expr:
    """A power of 4 that brings a magnitude away from overflow and underflow."""
    large, small, up, _ = _limits(size)
    return r.where(
        size > large, _number(size, 2.0**-4), r.where(size < small, up, _number(size, 1.0))
    )


def _times(x: Expr, factor: Expr) -> Expr:
    """x * factor where 0 stays 0, also against an infinity."""
    none = r.logical_or(r.eq(x, 0.0), r.eq(factor, 0.0))
    zero = r.copysign(0.0, x) * r.copysign(1.0, factor)
    return r.where(none, zero, x * factor)


def mul(x: Pair, y: Pair) -> Pair:
    """The product."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def div(x: Pair, y: Pair) -> Pair:
    """The quotient."""
    a, b = x
    c, d = y
    first = r.abs(c) >= r.abs(d)
    big, small = r.where(first, c, d), r.where(first, d, c)
    p, q = r.where(first, a, b), r.where(first, b, a)
    endless = r.eq(r.abs(big), _number(big, math.inf))
    small = r.where(
        endless, r.where(r.eq(r.abs(small), r.abs(big)), r.copysign(1.0, small), 0.0), small
    )
    big = r.where(endless, r.copysign(1.0, big), big)
    down = _scale(r.abs(big))
    shrink = r.where(
        r.maximum(r.abs(p), r.abs(q)) > _limits(a)[0], _number(a, 2.0**-4), _number(a, 1.0)
    )
    big, small, p, q = big * down, small * down, p * shrink, q * shrink
    ratio = small / big
    lost = r.eq(ratio, 0.0)
    divisor = big + small * ratio
    sum_ = p + r.where(lost, _times(q / big, small), q * ratio)
    difference = q - r.where(lost, _times(p / big, small), p * ratio)
    back = r.where(endless, 0.0, down / shrink)
    re = sum_ / divisor * back
    im = r.where(first, difference, -difference) / divisor * back
    zero = r.eq(big, 0.0)
    return r.where(zero, a / r.abs(c), re), r.where(zero, b / r.abs(c), im)


def exp(z: Pair) -> Pair:
    """e**z."""
    x, y = z
    # The root of a large exponential is finite where the exponential alone is not.
    large = x > _largest(x)
    root = r.exp(r.where(large, x * 0.5, x))
    again = r.where(large, root, 1.0)
    vanished = r.eq(x, _number(x, -math.inf))
    sine = r.sin(y)
    im = r.where(r.eq(sine, 0.0), sine, root * sine * again)
    return r.where(vanished, 0.0, root * r.cos(y) * again), r.where(vanished, 0.0, im)


def log(z: Pair) -> Pair:
    """The principal logarithm."""
    x, y = z
    return log_abs(z), r.atan2(y, x)


def log_abs(z: Pair) -> Expr:
    """log|z|, accurate near |z| = 1 too."""
    x, y = r.abs(z[0]), r.abs(z[1])
    big, small = r.maximum(x, y), r.minimum(x, y)
    down = _scale(big)
    far = r.log(r.hypot(x * down, y * down)) - r.log(down)
    near = r.log1p((big - 1.0) * (big + 1.0) + small * small) * 0.5
    return r.where(r.logical_and(big > 0.5, big < _number(big, 1.5)), near, far)


def sqrt(z: Pair) -> Pair:
    """The principal square root."""
    x, y = z
    size = r.maximum(r.abs(x), r.abs(y))
    scale = _scale(size)
    u, v = r.abs(x) * scale, y * scale
    # sqrt(2 (|x| + |z|)) / 2 is the larger part.
    larger = r.sqrt((u + r.hypot(u, v)) * 2.0) * 0.5 / r.sqrt(scale)
    smaller = r.where(r.eq(size, 0.0), 0.0, r.abs(y) / (larger * 2.0))
    right = x >= 0.0
    re = r.where(right, larger, smaller)
    im = r.copysign(r.where(right, smaller, larger), y)
    infinite = r.eq(r.abs(y), _number(y, math.inf))
    im = r.where(r.eq(size, 0.0), y, im)
    return r.where(infinite, _number(x, math.inf), re), r.where(infinite, y, im)


def _largest(x: Expr) -> Expr:
    """A number below which the exponential does not overflow."""
    return _number(x, 700.0 if x.dtype.itemsize == 8 else 85.0)


def _hyperbolic(x: Expr) -> tuple[Expr, Expr, Expr]:
    """sinh(x), cosh(x), and what both are still to be multiplied by; large ones as two factors."""
    size = r.abs(x)
    large = size > _largest(x)
    root = r.exp(r.where(large, size * 0.5, 0.0))
    half = root * 0.5
    return r.where(large, r.copysign(half, x), r.sinh(x)), r.where(large, half, r.cosh(x)), root


def sinh(z: Pair) -> Pair:
    """Hyperbolic sine."""
    s, c, again = _hyperbolic(z[0])
    y = z[1]
    return _times(_times(s, r.cos(y)), again), _times(_times(c, r.sin(y)), again)


def cosh(z: Pair) -> Pair:
    """Hyperbolic cosine."""
    s, c, again = _hyperbolic(z[0])
    y = z[1]
    return _times(_times(c, r.cos(y)), again), _times(_times(s, r.sin(y)), again)


def sin(z: Pair) -> Pair:
    """Sine."""
    s, c, again = _hyperbolic(z[1])
    x = z[0]
    return _times(_times(c, r.sin(x)), again), _times(_times(s, r.cos(x)), again)


def cos(z: Pair) -> Pair:
    """Cosine."""
    s, c, again = _hyperbolic(z[1])
    x = z[0]
    return _times(_times(c, r.cos(x)), again), -_times(_times(s, r.sin(x)), again)


def tanh(z: Pair) -> Pair:
    """Hyperbolic tangent."""
    x, y = z
    far = r.abs(x) > _number(x, 20.0 if x.dtype.itemsize == 8 else 9.0)
    tangent = r.tan(y)
    s = r.sinh(r.where(far, 0.0, x))
    beta = 1.0 + tangent * tangent
    below = 1.0 + beta * (s * s)
    tail = r.sin(y) * r.cos(y) * _number(x, 4.0) * r.exp(r.abs(x) * -2.0)
    endless = r.eq(r.abs(x), _number(x, math.inf))
    still = r.logical_and(endless, r.eq(r.abs(y), _number(x, math.inf)))
    side = r.copysign(1.0, x)
    # An infinite or unknown angle leaves nothing known of a finite argument.
    side = r.where(endless, side, side + tangent * 0.0)
    re = r.where(far, side, beta * r.sqrt(1.0 + s * s) * s / below)
    re = r.where(r.eq(x, 0.0), x, re)
    im = r.where(still, 0.0, r.where(far, tail, tangent / below))
    return re, im


def tan(z: Pair) -> Pair:
    """Tangent: -i tanh(i z)."""
    re, im = tanh((z[1], z[0]))
    return im, re


def sech_squared(z: Pair) -> Pair:
    """1 - tanh(z)**2: with w = e**(-2z) for Re z >= 0 it is 4w / (1 + w)**2."""
    x, y = z
    sign = r.where(x < 0.0, _number(x, 2.0), _number(x, -2.0))
    w = exp((x * sign, y * sign))
    below = (w[0] + 1.0, w[1])
    four = _number(x, 4.0)
    return div((w[0] * four, w[1] * four), mul(below, below))


def sigmoid(z: Pair) -> Pair:
    """1 / (1 + e**-z): with w = e**-z for Re z >= 0, else with w = e**z, which then is on top."""
    x, y = z
    left = x < 0.0
    w = exp((r.where(left, x, -x), r.where(left, y, -y)))
    one, zero = _number(x, 1.0), _number(x, 0.0)
    return div((r.where(left, w[0], one), r.where(left, w[1], zero)), (w[0] + one, w[1]))


def logistic_density(z: Pair) -> Pair:
    """sigmoid(z) * sigmoid(-z): a quarter of sech(z / 2)**2."""
    re, im = sech_squared((z[0] * 0.5, z[1] * 0.5))
    return re * _number(re, 0.25), im * _number(re, 0.25)


def _fixed(y: Pair) -> complex | None:
    """The exponent if it is compiled in."""
    re, im = y
    if re.op is CONSTANT and im.op is CONSTANT and None not in (*re.attrs, *im.attrs):
        return complex(re.attrs[0], im.attrs[0])
    return None


def pow(z: Pair, y: Pair) -> Pair:
    """The principal power z**y; 0 to a power of positive real part is 0, and z**0 is 1."""
    fixed = _fixed(y)
    if fixed is not None and fixed.imag == 0.0:
        if fixed.real == 0.5:
            return sqrt(z)
        if fixed.real.is_integer() and abs(fixed.real) <= LARGEST_POWER:
            return _repeated(z, int(fixed.real))
    x, angle = log_abs(z), r.atan2(z[1], z[0])
    a, b = y
    re, im = exp((_times(x, a) - b * angle, _times(x, b) + a * angle))
    none = r.logical_and(r.eq(a, 0.0), r.eq(b, 0.0))
    origin = r.logical_and(r.logical_and(r.eq(z[0], 0.0), r.eq(z[1], 0.0)), a > 0.0)
    re = r.where(none, 1.0, r.where(origin, 0.0, re))
    return re, r.where(r.logical_or(none, origin), 0.0, im)


def _repeated(z: Pair, exponent: int) -> Pair:
    """z**exponent by squaring."""
    one, zero = _number(z[0], 1.0), _number(z[0], 0.0)
    result: Pair | None = None
    square = z
    left = abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else mul(result, square)
        left >>= 1
        if left:
            square = mul(square, square)
    if result is None:
        return one, zero
    return div((one, zero), result) if exponent < 0 else result


# -- logarithms and roots of other kinds ---------------------------------------------------


def rsqrt(z: Pair) -> Pair:
    """1 / sqrt(z)."""
    return div((_number(z[0], 1.0), _number(z[0], 0.0)), sqrt(z))


def log2(z: Pair) -> Pair:
    """The logarithm to base 2."""
    re, im = log(z)
    return re / _number(re, math.log(2.0)), im / _number(re, math.log(2.0))


def log10(z: Pair) -> Pair:
    """The logarithm to base 10."""
    re, im = log(z)
    return re / _number(re, math.log(10.0)), im / _number(re, math.log(10.0))


def log1p(z: Pair) -> Pair:
    """log(1 + z), accurate near 0."""
    x, y = z
    small = r.logical_and(r.abs(x) < 0.5, r.abs(y) < 0.5)
    u, v = r.where(small, x, 0.0), r.where(small, y, 0.0)
    near = r.log1p(u * (u + 2.0) + v * v) * 0.5
    shifted = x + 1.0
    return r.where(small, near, log_abs((shifted, y))), r.atan2(y, shifted)


def expm1(z: Pair) -> Pair:
    """exp(z) - 1, accurate near 0."""
    x, y = z
    re, im = exp(z)
    half = r.sin(y * 0.5)
    near = r.expm1(x) * r.cos(y) - half * half * 2.0
    return r.where(r.abs(x) < 1.0, near, re - 1.0), im


# -- inverses: Kahan's, each with its cuts where C99 has them --------------------------------


def _roots(z: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    x, y = z
    return sqrt((1.0 - x, -y)), sqrt((x + 1.0, y))


def _area(z: Pair, product: Expr) -> Expr:
    """asinh of a product of roots; where that may overflow, the logarithm of 2|z|."""
    large = r.maximum(r.abs(z[0]), r.abs(z[1])) > _limits(z[0])[3]
    far = log_abs(z) + _number(z[0], math.log(2.0))
    return r.where(large, far, r.asinh(r.where(large, 0.0, product)))


def asin(z: Pair) -> Pair:
    """Inverse sine."""
    (a, b), (c, d) = _roots(z)
    return r.atan2(z[0], a * c - b * d), r.copysign(_area(z, a * d - b * c), z[1])


def acos(z: Pair) -> Pair:
    """Inverse cosine."""
    (a, b), (c, d) = _roots(z)
    return r.atan2(a, c) * 2.0, r.copysign(_area(z, c * b - d * a), -z[1])


def asinh(z: Pair) -> Pair:
    """Inverse hyperbolic sine: -i asin(i z)."""
    re, im = asin((-z[1], z[0]))
    return im, -re


def acosh(z: Pair) -> Pair:
    """Inverse hyperbolic cosine."""
    x, y = z
    (a, b), (c, d) = sqrt((x - 1.0, y)), sqrt((x + 1.0, y))
    return r.abs(_area(z, a * c + b * d)), r.atan2(b, c) * 2.0


def atanh(z: Pair) -> Pair:
    """Inverse hyperbolic tangent."""
    x, y = z
    size = r.abs(x)
    apart = r.hypot(1.0 - size, y)
    step = r.where(r.eq(apart, _number(x, math.inf)), 0.0, size / apart / apart)
    four = _number(x, 4.0)
    # Next to the poles the square of the distance may vanish, its logarithm does not.
    close = (r.log(size * four) - r.log(apart) * 2.0) * 0.25
    re = r.where(step > _limits(x)[3], close, r.log1p(step * four) * 0.25)
    return r.copysign(re, x), (r.atan2(y, x + 1.0) - r.atan2(-y, 1.0 - x)) * 0.5


def atan(z: Pair) -> Pair:
    """Inverse tangent: -i atanh(i z)."""
    re, im = atanh((-z[1], z[0]))
    return im, -re

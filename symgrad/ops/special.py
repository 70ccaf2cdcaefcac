"""Logistic, error, gamma and related functions.

Derivative formulas keep their tails at every order: the logistic density and its relatives are
functions of their own instead of s * (1 - s), logaddexp differentiates to logistic weights, and
lgamma to polygammas of any order. Start reading at `sigmoid`, then `polygamma`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op
from symgrad.ops import complex_forms
from symgrad.ops.arithmetic import Binary, Number, div, eq, logical_and, mul, sub, where
from symgrad.ops.choice import isinf
from symgrad.ops.transcendental import (
    LN2,
    FloatBinary,
    PositiveUnary,
    Unary,
    UnaryOfOrder,
    UnitUnary,
    exp,
    log,
    log1p,
    tanh,
)
from symgrad.sample import Case, T


def _lerche(s: int, terms: int) -> list[float]:
    """Coefficients B(2j)/(2j)! * s(s+1)...(s+2j-2) of the Euler-Maclaurin tail of zeta(s, a)."""
    bernoulli = [
        1 / 6,
        -1 / 30,
        1 / 42,
        -1 / 30,
        5 / 66,
        -691 / 2730,
        7 / 6,
        -3617 / 510,
        43867 / 798,
        -174611 / 330,
    ]
    made = []
    for j in range(1, terms + 1):
        rising = math.prod(range(s, s + 2 * j - 1))
        made.append(bernoulli[j - 1] * (rising / math.factorial(2 * j)))
    return made


# -- logistic -----------------------------------------------------------------------------


@op
class sigmoid(Unary):
    """Logistic function 1 / (1 + exp(-x)), with its full lower tail."""

    parts = complex_forms.sigmoid

    def ref(x: Any) -> Any:
        e = np.exp(-np.abs(x))
        return np.where(np.less(x, 0), e, 1.0) / (1.0 + e)

    def sympy(sp: Any, x: Any) -> Any:
        return 1 / (1 + sp.exp(-x))

    def partials(out: Expr, x: Expr) -> Any:
        return (logistic_density(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("sigmoid", x)


@op
class logistic_density(Unary):
    """sigmoid(x) * sigmoid(-x), with full tails: the derivative of sigmoid."""

    public = False
    parts = complex_forms.logistic_density

    def ref(x: Any) -> Any:
        e = np.exp(-np.abs(x))
        return e / (1.0 + e) ** 2

    def sympy(sp: Any, x: Any) -> Any:
        return 1 / (1 + sp.exp(-x)) * (1 - 1 / (1 + sp.exp(-x)))

    def partials(out: Expr, x: Expr) -> Any:
        return (-(tanh(0.5 * x) * out),)

    def lower(b: Any, x: Any) -> Any:
        e = b.apply("exp", -abs(b.value(x)))
        d = e + 1.0
        return (e / (d * d)).val


def _ref_softplus(x: Any, beta: Number = 1.0, threshold: Number = 20.0) -> Any:
    return np.logaddexp(0.0, np.multiply(x, beta)) / beta


@op
class softplus(Unary):
    """log(1 + exp(beta * x)) / beta, exact on both tails.

    `threshold` is accepted for torch's sake: nothing is cut over to the identity.
    """

    samples = (Case(T(2, 3)), Case(T(4, lo=-40, hi=40)), Case(T(4), 2.0), Case(T(0)))
    ref = _ref_softplus

    def __call__(  # type: ignore[override]
        self, input: Expr, beta: Number = 1.0, threshold: Number = 20.0
    ) -> Expr:
        if beta == 1:
            return Elementwise.__call__(self, input)  # type: ignore[arg-type]
        return div(Elementwise.__call__(self, mul(input, beta)), beta)  # type: ignore[arg-type, no-any-return]

    def sympy(sp: Any, x: Any) -> Any:
        return sp.log(1 + sp.exp(x))

    def partials(out: Expr, x: Expr) -> Any:
        return (sigmoid(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("softplus", x)


def _gap(x: Expr, y: Expr) -> Expr:
    """x - y, and 0 for equal infinities."""
    same = logical_and(isinf(x), eq(x, y))
    return where(same, 0.0, sub(x, y))  # type: ignore[no-any-return]


@op
class logaddexp(FloatBinary):
    """log(exp(x) + exp(y)) without overflow; the derivative is 0 where both are -infinity."""

    cost = 30.0
    ulp = 32.0
    ref = np.logaddexp

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.log(sp.exp(x) + sp.exp(y))

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        empty = eq(out, -math.inf)
        gap = _gap(x, y)
        return where(empty, 0.0, sigmoid(gap)), where(empty, 0.0, sigmoid(-gap))

    def lower(b: Any, x: Any, y: Any) -> Any:
        p, q = b.widened(x), b.widened(y)
        larger = b.choose(p > q, p, q)
        total = larger + b.apply("log1p", b.apply("exp", -abs(p - q)))
        same = p.equals(q) & abs(p).equals(math.inf)
        return b.narrowed(b.choose(same, p, total), x.kind)


@op
class logaddexp2(FloatBinary):
    """log2(2**x + 2**y) without overflow; the derivative is 0 where both are -infinity."""

    cost = 30.0
    ulp = 32.0
    ref = np.logaddexp2

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.log(2**x + 2**y, 2)

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        empty = eq(out, -math.inf)
        gap = LN2 * _gap(x, y)
        return where(empty, 0.0, sigmoid(gap)), where(empty, 0.0, sigmoid(-gap))

    def lower(b: Any, x: Any, y: Any) -> Any:
        p, q = b.widened(x), b.widened(y)
        larger = b.choose(p > q, p, q)
        rest = b.apply("log1p", b.apply("exp2", -abs(p - q)))
        same = p.equals(q) & abs(p).equals(math.inf)
        return b.narrowed(b.choose(same, p, larger + rest * (1.0 / LN2)), x.kind)


# -- products with logarithms, sinc -------------------------------------------------------


def _ref_xlogy(x: Any, y: Any) -> Any:
    from scipy import special

    return special.xlogy(x, y)


class TimesLog(Binary):
    """x * log(...): 0 where x is 0, unless the other operand is NaN."""

    accepts = "float"
    cost = 14.0


@op
class xlogy(TimesLog):
    """x * log(y), and 0 where x is 0."""

    samples = (
        Case(T(2, 3), T(2, 3, lo=0.2, hi=2)),
        Case(T(4, 1), T(3, lo=0.2, hi=2)),
        Case(np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 2.0, np.nan, 0.0]), smooth=False),
        Case(T(3), 2.0),
        Case(2.0, T(3, lo=0.2, hi=2)),
    )
    ref = _ref_xlogy

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x * sp.log(y)

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        none = eq(x, 0.0)
        in_x = where(logical_and(none, y <= 0.0), 0.0, log(y))
        return in_x, where(logical_and(none, eq(y, 0.0)), 0.0, x / y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        p, q = b.value(x), b.value(y)
        product = b.choose(p.equals(0.0), 0.0, p * b.apply("log", q))
        return b.select(b.is_nan(y), y, product.val)


def _ref_xlog1py(x: Any, y: Any) -> Any:
    from scipy import special

    return special.xlog1py(x, y)


@op
class xlog1py(TimesLog):
    """x * log(1 + y), and 0 where x is 0."""

    public = False
    samples = (
        Case(T(2, 3), T(2, 3, lo=-0.8, hi=2)),
        Case(T(4, 1), T(3, lo=-0.8, hi=2)),
        Case(np.array([0.0, 0.0, 0.0, 1.0]), np.array([-1.0, 2.0, np.nan, -1.0]), smooth=False),
    )
    ref = _ref_xlog1py

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x * sp.log(1 + y)

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        none = eq(x, 0.0)
        in_x = where(logical_and(none, y <= -1.0), 0.0, log1p(y))
        return in_x, where(logical_and(none, eq(y, -1.0)), 0.0, x / (y + 1.0))

    def lower(b: Any, x: Any, y: Any) -> Any:
        p, q = b.value(x), b.value(y)
        product = b.choose(p.equals(0.0), 0.0, p * b.apply("log1p", q))
        return b.select(b.is_nan(y), y, product.val)


@op
class sine_quotient(UnaryOfOrder):
    """The derivative of the given order of sin(x) / x.

    Up to |x| = 1 + order/3 by its Taylor series, beyond by the recurrence
    x S(n) + n S(n-1) = sin(x + n pi/2), whose errors do not grow there.
    """

    cost = 20.0
    ulp = 32.0
    samples = (Case(T(2, 3), order=0), Case(T(7, lo=-9, hi=9), order=1), Case(T(7), order=3))

    def ref(x: Any, *, order: int = 1) -> Any:
        import mpmath

        def one(v: float) -> float:
            if not math.isfinite(v):
                return math.nan if order == 0 or v != v else 0.0
            with mpmath.workdps(60):
                # The integral of t^order cos(xt + order pi/2) over [0, 1], by its series or Bessel's.
                z = mpmath.mpf(v)
                if abs(z) < 4:
                    terms = (
                        (-1) ** k
                        * z ** (2 * k - order)
                        / mpmath.factorial(2 * k - order)
                        / (2 * k + 1)
                        for k in range((order + 1) // 2, 60)
                    )
                    return float(mpmath.fsum(terms))
                with mpmath.workdps(400):
                    total = mpmath.sin(z) / z
                    for n in range(1, order + 1):
                        total = (mpmath.sin(z + n * mpmath.pi / 2) - n * total) / z
                    return float(total)

        return np.vectorize(one, otypes=[float])(x)

    def sympy(sp: Any, x: Any, *, order: int) -> Any:
        t = sp.Dummy("t")
        return sp.sinc(t).diff(t, order).subs(t, x) if order else sp.sinc(x)

    def partials(out: Expr, x: Expr, *, order: int) -> Any:
        return (sine_quotient(x, order=order + 1),)

    def lower(b: Any, x: Any, *, order: int) -> Any:
        u = b.widened(x)
        bound = 1.0 + order / 3
        square = u * u
        near = _even_series(b, square, order, bound)
        if order % 2:
            near = near * u
        waves = [b.apply("sin", u), b.apply("cos", u)] if order else [b.apply("sin", u)]
        far = waves[0] / u
        for n in range(1, order + 1):
            wave = waves[n % 2] if n % 4 < 2 else -waves[n % 2]
            far = (wave - far * float(n)) / u
        return b.narrowed(b.choose(abs(u) < bound, near, far), x.kind)


def _even_series(b: Any, square: Any, order: int, bound: float) -> Any:
    """sum of (-1)^k u^(2k - order) / ((2k - order)! (2k + 1)), less a factor u for odd orders."""
    coefficients = []
    k = (order + 1) // 2
    while True:
        m = 2 * k - order
        coefficients.append((-1.0) ** k / (math.factorial(m) * (2 * k + 1)))
        if bound**m / math.factorial(m) < 2.0**-60:
            break
        k += 1
    total = square.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * square + c
    return total


@composite(ref=np.sinc, samples=(Case(T(2, 3)), Case(np.array([0.0, 1e-9, 0.5, 1.0, -3.25]))))
def sinc(input: Expr) -> Expr:
    """sin(pi x) / (pi x), 1 at 0; smooth there at every order."""
    return sine_quotient(mul(input, math.pi), order=0)  # type: ignore[no-any-return]


@composite(ref=np.deg2rad, samples=(Case(T(2, 3)), Case(T(3, dtype="int"))))
def deg2rad(input: Expr) -> Expr:
    """Degrees to radians."""
    return mul(input, math.pi / 180.0)  # type: ignore[no-any-return]


@composite(ref=np.rad2deg, samples=(Case(T(2, 3)), Case(T(3, dtype="int"))))
def rad2deg(input: Expr) -> Expr:
    """Radians to degrees."""
    return mul(input, 180.0 / math.pi)  # type: ignore[no-any-return]


# -- error functions ----------------------------------------------------------------------

TWO_PER_ROOT_PI = 2.0 / math.sqrt(math.pi)


@op
class erf(Unary):
    """Error function."""

    cost = 20.0

    def ref(x: Any) -> Any:
        from scipy import special

        return special.erf(x)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.erf(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (TWO_PER_ROOT_PI * exp(-(x * x)),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("erf", x)


@op
class erfc(Unary):
    """Complementary error function 1 - erf(x), with its full upper tail."""

    cost = 25.0

    def ref(x: Any) -> Any:
        from scipy import special

        return special.erfc(x)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.erfc(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (-TWO_PER_ROOT_PI * exp(-(x * x)),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("erfc", x)


@op
class erfinv(UnitUnary):
    """Inverse of erf on [-1, 1]."""

    cost = 25.0

    def ref(x: Any) -> Any:
        from scipy import special

        return np.copysign(special.erfinv(x), x)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.erfinv(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (math.sqrt(math.pi) / 2.0 * exp(out * out),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("erfinv", x)


# -- gamma functions ----------------------------------------------------------------------


@op
class lgamma(PositiveUnary):
    """log |Gamma(x)|."""

    cost = 40.0

    def ref(x: Any) -> Any:
        import mpmath

        def one(v: float) -> float:
            if abs(v) > 2.5e305 or (v <= 0 and v == math.floor(v)):
                return math.inf
            return float(mpmath.re(mpmath.loggamma(v)))

        return np.vectorize(one, otypes=[float])(x)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.loggamma(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (digamma(x),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("lgamma", x)


@op
class digamma(PositiveUnary):
    """Derivative of lgamma; NaN at negative integers, as in torch."""

    cost = 40.0

    def ref(x: Any) -> Any:
        import mpmath

        def one(v: float) -> float:
            if v == 0:
                return -math.copysign(math.inf, v)
            if math.isinf(v):
                return v if v > 0 else math.nan
            return (
                math.nan if v != v or (v < 0 and v == math.floor(v)) else float(mpmath.digamma(v))
            )

        return np.vectorize(one, otypes=[float])(x)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.digamma(x)

    def partials(out: Expr, x: Expr) -> Any:
        return (polygamma_of_order(x, n=1),)

    def lower(b: Any, x: Any) -> Any:
        return b.math("digamma", x)


_ZETA_TERMS = 10


@op
class polygamma_of_order(PositiveUnary):
    """The derivative of order n >= 1 of digamma.

    (-1)^(n+1) n! zeta(n + 1, x) with Hurwitz' zeta by Euler-Maclaurin summation (DLMF 25.11.5);
    for negative x by differentiating digamma(1 - x) - digamma(x) = pi cot(pi x) (DLMF 5.15.6).
    """

    public = False
    attributes = ("n",)
    cost = 80.0
    ulp = 16.0
    samples = (
        Case(T(2, 3, lo=0.1, hi=3), n=1),
        Case(T(5, lo=0.2, hi=30), n=2),
        Case(T(5, lo=-0.8, hi=-0.2), n=1),
        Case(T(5, lo=0.3, hi=4), n=4),
    )

    def __call__(self, x: Expr, *, n: int = 1) -> Expr:  # type: ignore[override]
        return Elementwise.__call__(self, x, n=n)  # type: ignore[arg-type]

    def ref(x: Any, *, n: int = 1) -> Any:
        from scipy import special

        return special.polygamma(n, x)

    def sympy(sp: Any, x: Any, *, n: int) -> Any:
        return sp.polygamma(n, x)

    def partials(out: Expr, x: Expr, *, n: int) -> Any:
        return (polygamma_of_order(x, n=n + 1),)

    def lower(b: Any, x: Any, *, n: int) -> Any:
        v = b.widened(x)
        negative = v < 0.0
        direct = _hurwitz_zeta(n + 1, b.choose(negative, 1.0 - v, v))
        direct = direct * float((-1) ** (n + 1) * math.factorial(n))
        turn = b.choose(abs(v).equals(math.inf), 0.0, v - v.rint())
        angle = turn * math.pi
        cotangent = b.apply("cos", angle) / b.apply("sin", angle)
        reflected = direct * float((-1) ** n) - _cotangent_derivative(n, cotangent)
        return b.narrowed(b.choose(negative, reflected, direct), x.kind)


def _power(x: Any, n: int) -> Any:
    """x**n by repeated squaring, n >= 1."""
    result = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        if n:
            x = x * x
    return result


def _hurwitz_zeta(s: int, a: Any) -> Any:
    """sum over k >= 0 of (a + k)^-s, a >= 0, s >= 2."""
    shift = _ZETA_TERMS + s // 2
    inverse = 1.0 / (a + float(shift))
    square = inverse * inverse
    coefficients = _lerche(s, _ZETA_TERMS)
    tail = square.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        tail = tail * square + c
    last = _power(inverse, s - 1)
    total = last * (1.0 / (s - 1)) + last * inverse * (tail * inverse + 0.5)
    for k in reversed(range(shift)):
        total = total + _power(1.0 / (a + float(k)), s)
    return total


def _cotangent_derivative(n: int, c: Any) -> Any:
    """The n-th derivative of pi cot(pi x), as pi^(n+1) times a polynomial in c = cot(pi x)."""
    polynomial = [0, 1]
    for _ in range(n):
        slope = [k * p for k, p in enumerate(polynomial)][1:]
        product = [0] * (len(slope) + 2)
        for k, p in enumerate(slope):
            product[k] -= p
            product[k + 2] -= p
        polynomial = product
    odd = (len(polynomial) - 1) % 2
    kept = [float(p) for p in polynomial[odd::2]]
    square = c * c
    total = square.const(kept[-1])
    for p in reversed(kept[:-1]):
        total = total * square + p
    return (total * c if odd else total) * math.pi ** (n + 1)


def _ref_polygamma(n: int, x: Any) -> Any:
    from scipy import special

    return special.polygamma(n, x)


@composite(
    ref=_ref_polygamma,
    samples=(
        Case(0, T(3, lo=0.2, hi=3)),
        Case(1, T(2, 3, lo=0.2, hi=3)),
        Case(3, T(4, lo=0.2, hi=9)),
        Case(2, T(3, lo=1, hi=4, dtype="int")),
    ),
    errors=(Case(-1, T(2), match=r"polygamma\(n, x\) does not support negative n"),),
)
def polygamma(n: int, input: Expr) -> Expr:
    """The n-th derivative of digamma."""
    if n < 0:
        raise RuntimeError(
            f"polygamma(n, x) does not support negative n (got {n}); integrate instead"
        )
    return digamma(input) if n == 0 else polygamma_of_order(input, n=n)  # type: ignore[no-any-return]

"""Activation functions of neural networks, as elementwise ops and composites of them.

Start reading at `relu`; `gelu` shows how tails are kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op
from symgrad.ops.arithmetic import (
    Number,
    Operand,
    add,
    div,
    gt,
    le,
    logical_and,
    logical_not,
    lt,
    mul,
    neg,
    sub,
    where,
)
from symgrad.ops.choice import abs as absolute
from symgrad.ops.choice import clamp
from symgrad.ops.special import erfc, sigmoid, softplus
from symgrad.ops.transcendental import atanh, expm1, log, log1p, tanh
from symgrad.sample import Case, T

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946

PLAIN = (
    Case(T(2, 3, lo=0.6, hi=0.9)),
    Case(T(4, lo=-0.9, hi=-0.6)),
    Case(T(lo=0.1, hi=0.4)),
    Case(T(7, lo=-9, hi=9), smooth=False),
    Case(T(0)),
)


@op
class relu(Elementwise):
    """max(x, 0); NaN stays, and the derivative at 0 is 0."""

    parameters = ("input",)
    samples = (*PLAIN, Case(T(5, dtype="int")))
    errors = (Case(T(2, dtype="bool"), match="Boolean inputs not supported for relu"),)

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise RuntimeError("Boolean inputs not supported for relu (got bool); convert with .to")
        return common

    def ref(x: np.ndarray) -> Any:
        return np.maximum(x, 0)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Max(x, 0)

    def select(out: Expr, x: Expr) -> Any:
        return ((logical_not(le(x, 0.0)), 1.0),)

    def lower(b: Any, x: Any) -> Any:
        zero = b.zero(x)
        return b.select(b.compare("le", x, zero), zero, x)


def _ref_leaky_relu(x: np.ndarray, negative_slope: Number = 0.01) -> Any:
    return np.where(x > 0, x, x * negative_slope)


@composite(ref=_ref_leaky_relu, samples=(*PLAIN, Case(T(5, lo=0.1, hi=2), 0.2)))
def leaky_relu(input: Expr, negative_slope: Number = 0.01) -> Expr:
    """x above 0, negative_slope * x below."""
    return where(gt(input, 0.0), input, mul(input, negative_slope))  # type: ignore[no-any-return]


def _ref_elu(x: np.ndarray, alpha: Number = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@composite(ref=_ref_elu, samples=(*PLAIN, Case(T(5, lo=-2, hi=-0.1), 0.5)))
def elu(input: Expr, alpha: Number = 1.0) -> Expr:
    """x above 0, alpha * (exp(x) - 1) below."""
    below = expm1(input)
    return where(gt(input, 0.0), input, below if alpha == 1 else mul(alpha, below))  # type: ignore[no-any-return]


def _ref_celu(x: np.ndarray, alpha: Number = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@composite(ref=_ref_celu, samples=(*PLAIN, Case(T(5, lo=-2, hi=-0.1), 0.5)))
def celu(input: Expr, alpha: Number = 1.0) -> Expr:
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    return where(gt(input, 0.0), input, mul(alpha, expm1(div(input, alpha))))  # type: ignore[no-any-return]


def _ref_selu(x: np.ndarray) -> Any:
    return SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0)))


@composite(ref=_ref_selu, samples=PLAIN)
def selu(input: Expr) -> Expr:
    """The self-normalising scaled elu (Klambauer et al., NeurIPS 2017)."""
    below = mul(SELU_SCALE * SELU_ALPHA, expm1(input))
    return where(gt(input, 0.0), mul(SELU_SCALE, input), below)  # type: ignore[no-any-return]


def _ref_gelu(x: np.ndarray, *, approximate: str = "none") -> Any:
    from scipy import special

    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + np.tanh(inner))
    return x * special.ndtr(x)


@composite(
    ref=_ref_gelu,
    samples=(*PLAIN, Case(T(5, lo=-6, hi=6), approximate="tanh")),
    errors=(Case(T(2), approximate="x", match="approximate argument must be either none or tanh"),),
)
def gelu(input: Expr, *, approximate: str = "none") -> Expr:
    """x times the normal distribution function at x, exact or by its tanh approximation.

    Written with erfc and sigmoid, whose lower tails do not cancel (Hendrycks and Gimpel,
    arXiv:1606.08415).
    """
    if approximate == "none":
        return mul(input, mul(0.5, erfc(mul(input, -math.sqrt(0.5)))))  # type: ignore[no-any-return]
    if approximate != "tanh":
        raise RuntimeError(
            f"gelu: approximate argument must be either none or tanh (got {approximate!r})"
        )
    inner = mul(input, add(1.0, mul(0.044715, mul(input, input))))
    return mul(input, sigmoid(mul(2.0 * math.sqrt(2.0 / math.pi), inner)))  # type: ignore[no-any-return]


def _logistic(x: np.ndarray) -> Any:
    return np.exp(-np.logaddexp(0.0, -np.asarray(x)))


def _ref_silu(x: np.ndarray) -> Any:
    return x * _logistic(x)


@composite(ref=_ref_silu, samples=PLAIN)
def silu(input: Expr) -> Expr:
    """x * sigmoid(x)."""
    return mul(input, sigmoid(input))  # type: ignore[no-any-return]


def _ref_mish(x: np.ndarray) -> Any:
    return x * np.tanh(np.logaddexp(0.0, x))


@composite(ref=_ref_mish, samples=PLAIN)
def mish(input: Expr) -> Expr:
    """x * tanh(softplus(x)) (Misra, arXiv:1908.08681)."""
    return mul(input, tanh(softplus(input)))  # type: ignore[no-any-return]


def _ref_logsigmoid(x: np.ndarray) -> Any:
    return -np.logaddexp(0.0, -np.asarray(x))


@composite(ref=_ref_logsigmoid, samples=PLAIN)
def logsigmoid(input: Expr) -> Expr:
    """log(sigmoid(x)), as -softplus(-x)."""
    return neg(softplus(neg(input)))  # type: ignore[no-any-return]


def _ref_hardtanh(x: np.ndarray, min_val: Number = -1.0, max_val: Number = 1.0) -> Any:
    return np.clip(x, min_val, max_val)


@composite(ref=_ref_hardtanh, samples=(*PLAIN, Case(T(5, lo=-0.4, hi=0.2), -0.5, 0.25)))
def hardtanh(input: Expr, min_val: Number = -1.0, max_val: Number = 1.0) -> Expr:
    """x held between min_val and max_val."""
    return clamp(input, min_val, max_val)  # type: ignore[no-any-return]


def _ref_relu6(x: np.ndarray) -> Any:
    return np.clip(x, 0, 6)


@composite(ref=_ref_relu6, samples=(*PLAIN, Case(T(5, lo=6.1, hi=7))))
def relu6(input: Expr) -> Expr:
    """x held between 0 and 6."""
    return clamp(input, 0.0, 6.0)  # type: ignore[no-any-return]


def _ref_hardsigmoid(x: np.ndarray) -> Any:
    return np.clip(x / 6 + 0.5, 0, 1)


@composite(ref=_ref_hardsigmoid, samples=PLAIN)
def hardsigmoid(input: Expr) -> Expr:
    """x / 6 + 1/2 held between 0 and 1."""
    return div(clamp(add(input, 3.0), 0.0, 6.0), 6.0)  # type: ignore[no-any-return]


def _ref_hardswish(x: np.ndarray) -> Any:
    return x * np.clip(x / 6 + 0.5, 0, 1)


@composite(ref=_ref_hardswish, samples=PLAIN)
def hardswish(input: Expr) -> Expr:
    """x * hardsigmoid(x)."""
    return mul(input, hardsigmoid(input))  # type: ignore[no-any-return]


def _ref_softsign(x: np.ndarray) -> Any:
    return x / (1 + np.abs(x))


@composite(ref=_ref_softsign, samples=PLAIN)
def softsign(input: Expr) -> Expr:
    """x / (1 + |x|)."""
    return div(input, add(absolute(input), 1.0))  # type: ignore[no-any-return]


def _ref_tanhshrink(x: np.ndarray) -> Any:
    return x - np.tanh(x)


@composite(ref=_ref_tanhshrink, samples=PLAIN)
def tanhshrink(input: Expr) -> Expr:
    """x - tanh(x)."""
    return sub(input, tanh(input))  # type: ignore[no-any-return]


def _ref_softshrink(x: np.ndarray, lambd: Number = 0.5) -> Any:
    return np.sign(x) * np.maximum(np.abs(x) - lambd, 0)


@composite(
    ref=_ref_softshrink,
    samples=(*PLAIN, Case(T(5, lo=0.3, hi=1), 0.25)),
    errors=(Case(T(2), -1.0, match="lambda must be greater or equal to 0"),),
)
def softshrink(input: Expr, lambd: Number = 0.5) -> Expr:
    """x moved towards 0 by lambd, 0 within."""
    if lambd < 0:
        raise RuntimeError(f"softshrink: lambda must be greater or equal to 0 (got {lambd})")
    moved = sub(input, clamp(input, -lambd, lambd))
    return where(le(absolute(input), lambd), 0.0, moved)  # type: ignore[no-any-return]


def _ref_hardshrink(x: np.ndarray, lambd: Number = 0.5) -> Any:
    return np.where(np.abs(x) > lambd, x, 0.0)


@composite(ref=_ref_hardshrink, samples=(*PLAIN, Case(T(5, lo=0.3, hi=1), 0.25)))
def hardshrink(input: Expr, lambd: Number = 0.5) -> Expr:
    """x, and 0 where |x| <= lambd."""
    return where(le(absolute(input), lambd), 0.0, input)  # type: ignore[no-any-return]


def _ref_threshold(x: np.ndarray, threshold: Number, value: Number) -> Any:
    return np.where(x > threshold, x, value)


@composite(
    ref=_ref_threshold,
    samples=(
        Case(T(2, 3, lo=0.3, hi=1), 0.25, 1.5),
        Case(T(2, 3, lo=-1, hi=0.2), 0.25, 1.5),
    ),
)
def threshold(input: Expr, threshold: Operand, value: Operand) -> Expr:
    """x where it is above the threshold, else `value`; NaN stays."""
    return where(le(input, threshold), value, input)  # type: ignore[no-any-return]


def _ref_logit(x: Any, eps: Number | None = None) -> Any:
    from scipy import special

    return special.logit(x if eps is None else np.clip(x, eps, 1 - eps))


@composite(
    ref=_ref_logit,
    samples=(
        Case(T(2, 3, lo=0.1, hi=0.9)),
        Case(T(lo=0.4, hi=0.6)),
        Case(T(5, lo=-0.5, hi=1.5), eps=0.2, smooth=False),
        Case(T(0, 3)),
    ),
)
def logit(input: Expr, eps: Number | None = None) -> Expr:
    """log(x / (1 - x)), the inverse of the sigmoid; `eps` clamps x to [eps, 1 - eps] first."""
    x = input if eps is None else clamp(input, eps, 1 - eps)
    # Near 1/2 the two logarithms cancel, near 0 and 1 the argument of atanh does.
    middle = logical_and(gt(x, 0.25), lt(x, 0.75))
    outer = sub(log(x), log1p(neg(x)))
    return where(middle, mul(2.0, atanh(sub(mul(2.0, x), 1.0))), outer)  # type: ignore[no-any-return]

"""Loss functions: from predictions and targets to a number, or one number per example.

Losses of classes are in `symgrad.ops.class_loss`. Start reading at `mse_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op, refused
from symgrad.ops.arithmetic import add, div, le, lt, mul, neg, sub, where
from symgrad.ops.choice import abs as absolute
from symgrad.ops.choice import clamp_min
from symgrad.ops.movement import expand, reshape
from symgrad.ops.reduce import sum as total
from symgrad.ops.special import softplus, xlogy
from symgrad.ops.statistics import mean
from symgrad.ops.transcendental import exp, log
from symgrad.sample import Case, T

# -- reduction ----------------------------------------------------------------------------


def way_of(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """The reduction's name, from torch's two older flags if they are given."""
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    return reduction


def reduced(x: Expr, reduction: str) -> Expr:
    if reduction == "none":
        return x
    if reduction == "mean":
        return mean(x)  # type: ignore[no-any-return]
    if reduction == "sum":
        return total(x)  # type: ignore[no-any-return]
    raise ValueError(f"{reduction} is not a valid value for reduction")


def np_reduced(x: Any, reduction: str) -> Any:
    return x if reduction == "none" else np.mean(x) if reduction == "mean" else np.sum(x)


def weighted(x: Expr, weight: Expr | None) -> Expr:
    return x if weight is None else mul(x, weight)  # type: ignore[no-any-return]


WRONG_REDUCTION = Case(
    T(2), T(2), reduction="all", match="not a valid value for reduction", error=ValueError
)


# -- regression ---------------------------------------------------------------------------


def _regression(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The NumPy reference of a loss of the difference."""

    def ref(x: Any, y: Any, reduction: str = "mean", **options: Any) -> Any:
        return np_reduced(loss(np.subtract(x, y), **options), reduction)

    return ref


@composite(
    ref=_regression(np.square),
    samples=(
        Case(T(3, 4), T(3, 4)),
        Case(T(3), T(3), reduction="sum"),
        Case(T(2, 3), T(3), reduction="none"),
    ),
    errors=(WRONG_REDUCTION, Case(T(2, 3), T(2), match="must match the size")),
)
def mse_loss(
    input: Expr,
    target: Expr,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Expr | None = None,
) -> Expr:
    """Squared difference."""
    difference = sub(input, target)
    if difference.dtype.is_complex:
        raise refused("mse_loss", difference.dtype)
    return _mean_of(mul(difference, difference), weight, way_of(reduction, size_average, reduce))


def _mean_of(loss: Expr, weight: Expr | None, reduction: str) -> Expr:
    """The reduction of a weighted loss; a mean is over the sum of weights."""
    if weight is None or reduction != "mean":
        return reduced(weighted(loss, weight), reduction)
    weight = weight if weight.shape == loss.shape else expand(weight, loss.shape)
    return div(total(mul(loss, weight)), total(weight))  # type: ignore[no-any-return]


@composite(
    ref=_regression(np.abs),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3), T(3), reduction="sum")),
    errors=(WRONG_REDUCTION,),
)
def l1_loss(
    input: Expr,
    target: Expr,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Expr | None = None,
) -> Expr:
    """Absolute difference."""
    return _mean_of(absolute(sub(input, target)), weight, way_of(reduction, size_average, reduce))


def _ref_smooth_l1(z: Any, beta: float = 1.0) -> Any:
    size = np.abs(z)
    return np.where(size < beta, 0.5 * z * z / (beta or 1), size - 0.5 * beta)


@composite(
    ref=_regression(_ref_smooth_l1),
    samples=(
        Case(T(3, 4), T(3, 4)),
        Case(T(3), T(3), reduction="sum", beta=0.1),
        Case(T(3), T(3), beta=0.0),
    ),
    errors=(
        WRONG_REDUCTION,
        Case(T(2), T(2), beta=-1.0, match="does not support negative values for beta"),
    ),
)
def smooth_l1_loss(
    input: Expr,
    target: Expr,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Expr:
    """Half the squared difference over beta below beta, the absolute difference beyond."""
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta (got {beta})")
    difference = sub(input, target)
    size = absolute(difference)
    if beta == 0:
        loss = size
    else:
        near = div(mul(0.5, mul(difference, difference)), beta)
        loss = where(lt(size, beta), near, sub(size, 0.5 * beta))
    return reduced(loss, way_of(reduction, size_average, reduce))


def _ref_huber(z: Any, delta: float = 1.0) -> Any:
    size = np.abs(z)
    return np.where(size <= delta, 0.5 * z * z, delta * (size - 0.5 * delta))


@composite(
    ref=_regression(_ref_huber),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3), T(3), reduction="sum", delta=0.3)),
    errors=(
        WRONG_REDUCTION,
        Case(T(2), T(2), delta=0.0, match="does not support non-positive values for delta"),
    ),
)
def huber_loss(
    input: Expr,
    target: Expr,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Expr | None = None,
) -> Expr:
    """Half the squared difference up to delta, delta times the absolute one beyond."""
    if delta <= 0:
        raise RuntimeError(
            f"huber_loss does not support non-positive values for delta (got {delta})"
        )
    difference = sub(input, target)
    size = absolute(difference)
    far = mul(delta, sub(size, 0.5 * delta))
    loss = where(le(size, delta), mul(0.5, mul(difference, difference)), far)
    return _mean_of(loss, weight, reduction)


# -- probabilities ------------------------------------------------------------------------


@op
class log_above(Elementwise):
    """log(x), but -100 at least; its derivative 1 / max(x, 1e-12) is finite at 0, as in torch."""

    public = False
    accepts = "float"
    domain = (0.05, 4.0)
    cost = 14.0
    samples = (Case(T(2, 3, lo=0.1, hi=3)), Case(T(lo=0.1, hi=3)), Case(T(0)))

    def ref(x: Any) -> Any:
        return np.maximum(np.log(x), -100.0)

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Max(sp.log(x), -100)

    def partials(out: Expr, x: Expr) -> Any:
        return (1.0 / clamp_min(x, 1e-12),)

    def lower(b: Any, x: Any) -> Any:
        v = b.value(b.math("log", x))
        return b.choose(v < -100.0, -100.0, v).val


def _ref_bce(x: np.ndarray, y: np.ndarray, weight: Any = None, reduction: str = "mean") -> Any:
    with np.errstate(divide="ignore"):
        loss = -y * np.maximum(np.log(x), -100) - (1 - y) * np.maximum(np.log1p(-x), -100)
    return np_reduced(loss if weight is None else loss * weight, reduction)


_SAME_SIZE = Case(T(3, 4), T(3), match=r"[Tt]arget size", error=ValueError)


@composite(
    ref=_ref_bce,
    samples=(
        Case(T(3, 4, lo=0.1, hi=0.9), T(3, 4, lo=0, hi=1)),
        Case(T(3, lo=0.1, hi=0.9), T(3, lo=0, hi=1), T(3, lo=0.2, hi=1), reduction="sum"),
        Case(np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0]), reduction="none", smooth=False),
    ),
    errors=(WRONG_REDUCTION, _SAME_SIZE),
)
def binary_cross_entropy(
    input: Expr,
    target: Expr,
    weight: Expr | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Expr:
    """Cross entropy of probabilities with targets in [0, 1]; logarithms stop at -100, as in torch."""
    if target.shape != input.shape:
        raise ValueError(
            f"binary_cross_entropy: Using a target size ({target.shape}) that is different to the "
            f"input size ({input.shape}) is deprecated; give them the same size"
        )
    yes = mul(target, log_above(input))
    no = mul(sub(1.0, target), log_above(sub(1.0, input)))
    return reduced(weighted(neg(add(yes, no)), weight), way_of(reduction, size_average, reduce))


def _ref_bce_with_logits(
    x: np.ndarray,
    y: np.ndarray,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    positive = 1 if pos_weight is None else pos_weight
    loss = positive * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)
    return np_reduced(loss if weight is None else loss * weight, reduction)


@composite(
    ref=_ref_bce_with_logits,
    samples=(
        Case(T(3, 4), T(3, 4, lo=0, hi=1)),
        Case(T(3, lo=-60, hi=60), T(3, lo=0, hi=1), reduction="none"),
        Case(T(3, 4), T(3, 4, lo=0, hi=1), T(4), pos_weight=T(4, lo=0.5, hi=2)),
    ),
    errors=(WRONG_REDUCTION, _SAME_SIZE),
)
def binary_cross_entropy_with_logits(
    input: Expr,
    target: Expr,
    weight: Expr | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Expr | None = None,
) -> Expr:
    """Binary cross entropy of unnormalised scores, without overflow and with full tails."""
    if target.shape != input.shape:
        raise ValueError(
            f"binary_cross_entropy_with_logits: Target size ({target.shape}) must be the same as "
            f"input size ({input.shape})"
        )
    missed = softplus(neg(input))
    if pos_weight is not None:
        missed = mul(missed, add(mul(sub(pos_weight, 1.0), target), 1.0))
    loss = add(mul(sub(1.0, target), input), missed)
    return reduced(weighted(loss, weight), way_of(reduction, size_average, reduce))


def _ref_kl_div(
    x: np.ndarray, y: np.ndarray, reduction: str = "mean", log_target: bool = False
) -> Any:
    from scipy.special import xlogy as known

    loss = np.exp(y) * (y - x) if log_target else known(y, y) - y * x
    return loss.sum() / x.shape[0] if reduction == "batchmean" else np_reduced(loss, reduction)


@composite(
    ref=_ref_kl_div,
    samples=(
        Case(T(3, 4), T(3, 4, lo=0.1, hi=1)),
        Case(T(3, 4), T(3, 4), reduction="batchmean", log_target=True),
        Case(T(3), np.array([0.0, 0.5, 0.5]), reduction="sum", smooth=False),
    ),
    errors=(WRONG_REDUCTION,),
)
def kl_div(
    input: Expr,
    target: Expr,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Expr:
    """Kullback-Leibler divergence of the target from log probabilities, element by element."""
    if log_target:
        loss = mul(exp(target), sub(target, input))
    else:
        loss = sub(xlogy(target, target), mul(target, input))
    way = way_of(reduction, size_average, reduce)
    if way == "batchmean":
        return div(total(loss), float(input.shape[0]))  # type: ignore[no-any-return]
    return reduced(loss, way)


# -- likelihoods --------------------------------------------------------------------------


def _ref_gaussian_nll(
    x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    var = np.maximum(var, eps)
    loss = 0.5 * (np.log(var) + (x - y) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return np_reduced(loss, reduction)


@composite(
    ref=_ref_gaussian_nll,
    samples=(
        Case(T(3, 4), T(3, 4), T(3, 4, lo=0.5, hi=2)),
        Case(T(3), T(3), T(3, lo=0.5, hi=2), full=True, reduction="sum"),
    ),
)
def gaussian_nll_loss(
    input: Expr,
    target: Expr,
    var: Expr,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Expr:
    """Negative log likelihood of a normal distribution; variances count as eps at least."""
    if var.shape != input.shape and var.ndim == input.ndim - 1:
        var = reshape(var, (*var.shape, 1))
    spread = clamp_min(var, eps)
    difference = sub(input, target)
    loss = mul(0.5, add(log(spread), div(mul(difference, difference), spread)))
    if full:
        loss = add(loss, 0.5 * math.log(2.0 * math.pi))
    return reduced(loss, reduction)

"""Loss functions: from predictions and targets to a number, or one number per example.

Class losses select by a mask along the class axis instead of by position, so their derivative is
a fused difference (softmax - one-hot) without scattering, and classes that do not count are strong
zeros. Start reading at `cross_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op, refused
from symgrad.op import cast_to, value_of
from symgrad.ops.arithmetic import add, div, eq, le, logical_and, lt, mul, ne, neg, sub, where
from symgrad.ops.choice import abs as absolute
from symgrad.ops.choice import clamp_min
from symgrad.ops.create import iota
from symgrad.ops.movement import expand, reshape
from symgrad.ops.neural import log_softmax
from symgrad.ops.reduce import sum as total
from symgrad.ops.special import softplus, xlogy
from symgrad.ops.statistics import mean
from symgrad.ops.transcendental import exp, log
from symgrad.sample import Case, T

# -- reduction ----------------------------------------------------------------------------


def _way(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """The reduction's name, from torch's two older flags if they are given."""
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    return reduction


def _reduced(x: Expr, reduction: str) -> Expr:
    if reduction == "none":
        return x
    if reduction == "mean":
        return mean(x)  # type: ignore[no-any-return]
    if reduction == "sum":
        return total(x)  # type: ignore[no-any-return]
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _np_reduced(x: Any, reduction: str) -> Any:
    return x if reduction == "none" else np.mean(x) if reduction == "mean" else np.sum(x)


def _weighted(x: Expr, weight: Expr | None) -> Expr:
    return x if weight is None else mul(x, weight)  # type: ignore[no-any-return]


_REDUCTION = Case(
    T(2), T(2), reduction="all", match="not a valid value for reduction", error=ValueError
)


# -- regression ---------------------------------------------------------------------------


def _regression(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The NumPy reference of a loss of the difference."""

    def ref(x: Any, y: Any, reduction: str = "mean", **options: Any) -> Any:
        return _np_reduced(loss(np.subtract(x, y), **options), reduction)

    return ref


@composite(
    ref=_regression(np.square),
    samples=(
        Case(T(3, 4), T(3, 4)),
        Case(T(3), T(3), reduction="sum"),
        Case(T(2, 3), T(3), reduction="none"),
    ),
    errors=(_REDUCTION, Case(T(2, 3), T(2), match="must match the size")),
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
    return _mean_of(mul(difference, difference), weight, _way(reduction, size_average, reduce))


def _mean_of(loss: Expr, weight: Expr | None, reduction: str) -> Expr:
    """The reduction of a weighted loss; a mean is over the sum of weights."""
    if weight is None or reduction != "mean":
        return _reduced(_weighted(loss, weight), reduction)
    weight = weight if weight.shape == loss.shape else expand(weight, loss.shape)
    return div(total(mul(loss, weight)), total(weight))  # type: ignore[no-any-return]


@composite(
    ref=_regression(np.abs),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3), T(3), reduction="sum")),
    errors=(_REDUCTION,),
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
    return _mean_of(absolute(sub(input, target)), weight, _way(reduction, size_average, reduce))


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
        _REDUCTION,
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
    return _reduced(loss, _way(reduction, size_average, reduce))


def _ref_huber(z: Any, delta: float = 1.0) -> Any:
    size = np.abs(z)
    return np.where(size <= delta, 0.5 * z * z, delta * (size - 0.5 * delta))


@composite(
    ref=_regression(_ref_huber),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3), T(3), reduction="sum", delta=0.3)),
    errors=(
        _REDUCTION,
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


# -- classes ------------------------------------------------------------------------------


def _class_axis(x: Expr) -> int:
    return 0 if x.ndim == 1 else 1


def _class_check(name: str) -> Callable[..., None]:
    """What refuses targets that are no classes of the input, in torch's words."""

    def check(
        input: Expr,
        target: Expr,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        *_: Any,
        **__: Any,
    ) -> None:
        if target.dtype.category != 1 or not input.ndim:
            return
        classes = input.shape[_class_axis(input)]
        value = value_of(target)
        if value is None or not value.size or (value.min() >= 0 and value.max() < classes):
            return
        bad = value[((value < 0) | (value >= classes)) & (value != ignore_index)]
        if bad.size:
            raise IndexError(f"{name}: Target {bad.reshape(-1)[0]} is out of bounds.")

    return check


def _fitting_classes(name: str, x: Expr, target: Expr, weight: Expr | None) -> None:
    """Refuse targets and weights whose shapes do not fit, in torch's words."""
    axis = _class_axis(x)
    classes = x.shape[axis] if x.ndim else 0
    if not x.ndim >= 1 or (*x.shape[:axis], *x.shape[axis + 1 :]) != target.shape:
        if x.ndim and target.ndim and x.ndim > 1 and x.shape[0] != target.shape[0]:
            raise ValueError(
                f"{name}: Expected input batch_size ({x.shape[0]}) to match target batch_size "
                f"({target.shape[0]})."
            )
        raise RuntimeError(
            f"{name}: targets need the input's shape without its class axis (got {target.shape} for "
            f"input {x.shape}); squeeze or index one of them"
        )
    if weight is not None and weight.shape != (classes,):
        raise RuntimeError(
            f"{name}: weight tensor should be defined either for all {classes} classes or no classes "
            f"but got weight tensor of shape: {list(weight.shape)}"
        )


def _along_classes(v: Expr, x: Expr) -> Expr:
    """A vector over classes, shaped to broadcast against x."""
    axis = _class_axis(x)
    return reshape(v, (v.size,) + (1,) * (x.ndim - 1 - axis))  # type: ignore[no-any-return]


def _class_loss(
    logp: Expr,
    target: Expr,
    weight: Expr | None,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> Expr:
    """The weighted negative log probability of the target classes, smoothed over all classes."""
    axis = _class_axis(logp)
    classes = logp.shape[axis]
    column = reshape(target, (*target.shape[:axis], 1, *target.shape[axis:]))
    hit = eq(column, _along_classes(iota(count=classes), logp))
    hit = logical_and(hit, ne(column, ignored)) if 0 <= ignored < classes else hit
    scaled = logp if weight is None else mul(logp, _along_classes(weight, logp))
    loss = neg(total(where(hit, scaled, 0.0), axis))
    counted = ne(target, ignored)
    if smoothing:
        spread = where(counted, neg(total(scaled, axis)), 0.0)
        loss = add(mul(loss, 1.0 - smoothing), mul(spread, smoothing / classes))
    if reduction != "mean":
        return _reduced(loss, reduction)
    if weight is None:
        weights = cast_to(counted, logp.dtype)
    else:
        weights = total(where(hit, _along_classes(weight, logp), 0.0), axis)
    return div(total(loss), total(weights))  # type: ignore[no-any-return]


def _np_class_loss(
    logp: np.ndarray,
    target: np.ndarray,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    rows = np.moveaxis(logp, 0 if logp.ndim == 1 else 1, -1)
    classes = rows.shape[-1]
    w = np.ones(classes, logp.dtype) if weight is None else weight
    counted = target != ignore_index
    safe = np.where(counted, target, 0)
    picked = np.take_along_axis(rows, safe[..., None], -1)[..., 0]
    each = np.where(counted, w[safe], 0)
    loss = np.where(counted, -each * picked, 0)
    if label_smoothing:
        spread = np.where(counted, -(rows * w).sum(-1), 0)
        loss = (1 - label_smoothing) * loss + label_smoothing / classes * spread
    if reduction == "mean":
        return loss.sum() / each.sum()
    return _np_reduced(loss, reduction)


_TARGETS = T(3, lo=0, hi=3, dtype="int")
_CLASS_ERRORS = (
    Case(T(2, 4), np.array([0, 5]), match="Target 5 is out of bounds", error=IndexError),
    Case(T(3, 4), np.array([0, 1]), match="Expected input batch_size", error=ValueError),
    Case(T(2, 4), np.array([0, 1]), T(3), match="weight tensor should be defined either for all 4"),
    Case(
        T(2, 4),
        np.array([0, 1]),
        reduction="all",
        match="not a valid value for reduction",
        error=ValueError,
    ),
)


@composite(
    ref=_np_class_loss,
    samples=(
        Case(T(3, 4), _TARGETS),
        Case(T(3, 4), _TARGETS, T(4, lo=0.2, hi=1)),
        Case(T(3, 4), np.array([0, 2, -100]), reduction="none"),
        Case(T(4), np.array(2), reduction="sum"),
        Case(T(2, 3, 2), np.array([[0, 2], [1, 1]]), ignore_index=1),
    ),
    errors=_CLASS_ERRORS,
    check=_class_check("nll_loss"),
)
def nll_loss(
    input: Expr,
    target: Expr,
    weight: Expr | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Expr:
    """Negative log probability of the target classes, from log probabilities."""
    if target.dtype.category != 1:
        raise RuntimeError(
            f"nll_loss: expected target dtype to be Long or Byte, but got {target.dtype!r}; "
            "convert with .to(symgrad.int64)"
        )
    _fitting_classes("nll_loss", input, target, weight)
    way = _way(reduction, size_average, reduce)
    return _class_loss(input, target, weight, ignore_index, way, 0.0)


def _ref_cross_entropy(
    x: np.ndarray,
    target: np.ndarray,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    from scipy.special import log_softmax as known

    logp = known(x, axis=0 if x.ndim == 1 else 1)
    if target.dtype.kind != "f":
        return _np_class_loss(logp, target, weight, ignore_index, reduction, label_smoothing)
    axis = 0 if x.ndim == 1 else 1
    classes = x.shape[axis]
    shaped = 1 if weight is None else weight.reshape((classes,) + (1,) * (x.ndim - 1 - axis))
    target = (1 - label_smoothing) * target + label_smoothing / classes
    loss = -(logp * target * shaped).sum(axis)
    return loss.sum() / (x.size / classes) if reduction == "mean" else _np_reduced(loss, reduction)


@composite(
    ref=_ref_cross_entropy,
    samples=(
        Case(T(3, 4), _TARGETS),
        Case(T(3, 4), _TARGETS, T(4, lo=0.2, hi=1), label_smoothing=0.1),
        Case(T(3, 4), np.array([0, 2, -100]), reduction="sum"),
        Case(T(4), np.array(2)),
        Case(T(2, 3, 2), np.array([[0, 2], [1, 1]]), ignore_index=1, reduction="none"),
        Case(T(3, 4), T(3, 4, lo=0, hi=1)),
        Case(T(3, 4), T(3, 4, lo=0, hi=1), T(4, lo=0.2, hi=1), label_smoothing=0.2),
    ),
    errors=(
        *_CLASS_ERRORS,
        Case(T(3, 4), T(3), match="expected target dtype to be Long or Byte"),
        Case(
            T(3, 4),
            _TARGETS,
            label_smoothing=1.5,
            match="label_smoothing must be between 0.0 and 1.0",
        ),
        Case(
            T(3, 4),
            T(3, 4),
            ignore_index=1,
            match="ignore_index is not supported for floating point",
        ),
    ),
    check=_class_check("cross_entropy"),
)
def cross_entropy(
    input: Expr,
    target: Expr,
    weight: Expr | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Expr:
    """Cross entropy of unnormalised scores with class numbers or class probabilities."""
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(
            f"cross_entropy: label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}"
        )
    way = _way(reduction, size_average, reduce)
    if target.shape == input.shape and target.dtype.category == 2:
        if ignore_index >= 0:
            raise RuntimeError(
                "cross_entropy: ignore_index is not supported for floating point target "
                f"(got {ignore_index}); mask the loss with reduction='none'"
            )
        return _probability_loss(input, target, weight, way, label_smoothing)
    if target.dtype.category != 1:
        raise RuntimeError(
            f"cross_entropy: expected target dtype to be Long or Byte, but got {target.dtype!r}; give "
            "class numbers, or probabilities in the input's shape"
        )
    _fitting_classes("cross_entropy", input, target, weight)
    logp = log_softmax(input, _class_axis(input))
    return _class_loss(logp, target, weight, ignore_index, way, label_smoothing)


def _probability_loss(
    x: Expr, target: Expr, weight: Expr | None, reduction: str, smoothing: float
) -> Expr:
    axis = _class_axis(x)
    classes = x.shape[axis]
    if smoothing:
        target = add(mul(target, 1.0 - smoothing), smoothing / classes)
    product = mul(log_softmax(x, axis), target)
    if weight is not None:
        product = mul(product, _along_classes(weight, x))
    return _reduced(neg(total(product, axis)), reduction)


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
    return _np_reduced(loss if weight is None else loss * weight, reduction)


_SAME_SIZE = Case(T(3, 4), T(3), match=r"[Tt]arget size", error=ValueError)


@composite(
    ref=_ref_bce,
    samples=(
        Case(T(3, 4, lo=0.1, hi=0.9), T(3, 4, lo=0, hi=1)),
        Case(T(3, lo=0.1, hi=0.9), T(3, lo=0, hi=1), T(3, lo=0.2, hi=1), reduction="sum"),
        Case(np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0]), reduction="none", smooth=False),
    ),
    errors=(_REDUCTION, _SAME_SIZE),
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
    return _reduced(_weighted(neg(add(yes, no)), weight), _way(reduction, size_average, reduce))


def _ref_bce_with_logits(
    x: np.ndarray,
    y: np.ndarray,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    positive = 1 if pos_weight is None else pos_weight
    loss = positive * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)
    return _np_reduced(loss if weight is None else loss * weight, reduction)


@composite(
    ref=_ref_bce_with_logits,
    samples=(
        Case(T(3, 4), T(3, 4, lo=0, hi=1)),
        Case(T(3, lo=-60, hi=60), T(3, lo=0, hi=1), reduction="none"),
        Case(T(3, 4), T(3, 4, lo=0, hi=1), T(4), pos_weight=T(4, lo=0.5, hi=2)),
    ),
    errors=(_REDUCTION, _SAME_SIZE),
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
    return _reduced(_weighted(loss, weight), _way(reduction, size_average, reduce))


def _ref_kl_div(
    x: np.ndarray, y: np.ndarray, reduction: str = "mean", log_target: bool = False
) -> Any:
    from scipy.special import xlogy as known

    loss = np.exp(y) * (y - x) if log_target else known(y, y) - y * x
    return loss.sum() / x.shape[0] if reduction == "batchmean" else _np_reduced(loss, reduction)


@composite(
    ref=_ref_kl_div,
    samples=(
        Case(T(3, 4), T(3, 4, lo=0.1, hi=1)),
        Case(T(3, 4), T(3, 4), reduction="batchmean", log_target=True),
        Case(T(3), np.array([0.0, 0.5, 0.5]), reduction="sum", smooth=False),
    ),
    errors=(_REDUCTION,),
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
    way = _way(reduction, size_average, reduce)
    if way == "batchmean":
        return div(total(loss), float(input.shape[0]))  # type: ignore[no-any-return]
    return _reduced(loss, way)


# -- likelihoods --------------------------------------------------------------------------


def _ref_gaussian_nll(
    x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    var = np.maximum(var, eps)
    loss = 0.5 * (np.log(var) + (x - y) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return _np_reduced(loss, reduction)


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
    return _reduced(loss, reduction)

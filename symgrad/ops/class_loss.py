"""Losses of classes: from a score or log-probability per class to a number.

They select by a mask along the class axis instead of by position, so their derivative is a fused
difference (softmax - one-hot) without scattering, and classes that do not count are strong zeros.
Start reading at `cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.op import cast_to, value_of
from symgrad.ops.arithmetic import add, div, eq, logical_and, mul, ne, neg, where
from symgrad.ops.create import iota
from symgrad.ops.loss import np_reduced, reduced, way_of
from symgrad.ops.movement import reshape
from symgrad.ops.neural import log_softmax
from symgrad.ops.reduce import sum as total
from symgrad.sample import Case, T


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
        return reduced(loss, reduction)
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
    return np_reduced(loss, reduction)


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
    way = way_of(reduction, size_average, reduce)
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
    return loss.sum() / (x.size / classes) if reduction == "mean" else np_reduced(loss, reduction)


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
    way = way_of(reduction, size_average, reduce)
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
    return reduced(neg(total(product, axis)), reduction)

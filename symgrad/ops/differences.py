"""Differences along a dimension, integrals by trapezoids, distances between rows.

Start reading at `diff`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite, promote
from symgrad.op import cast_to
from symgrad.ops.arithmetic import logical_xor
from symgrad.ops.cumulative import cumsum
from symgrad.ops.movement import full, join_axis, reshape, wrap_dim
from symgrad.ops.reduce import part, sum
from symgrad.ops.statistics import norm_over
from symgrad.sample import Case, T


def _ref_diff(
    x: np.ndarray, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    extra = {k: v for k, v in (("prepend", prepend), ("append", append)) if v is not None}
    return np.diff(x, n, axis=dim, **extra)


@composite(
    ref=_ref_diff,
    samples=(
        Case(T(3, 5)),
        Case(T(5, 3), 2, 0),
        Case(T(3, 4), prepend=T(3, 1), append=T(3, 2)),
        Case(T(3), 0),
        Case(T(4, dtype="bool")),
    ),
    errors=(
        Case(T(), match="expects input to be at least one-dimensional"),
        Case(T(3), -1, match="order must be non-negative but got -1"),
    ),
)
def diff(
    input: Expr, n: int = 1, dim: int = -1, prepend: Expr | None = None, append: Expr | None = None
) -> Expr:
    """Differences of neighbours along a dimension, `n` times over."""
    if not input.ndim:
        raise RuntimeError(
            "diff: diff expects input to be at least one-dimensional (got shape ()); reshape it"
        )
    if n < 0:
        raise RuntimeError(f"diff: order must be non-negative but got {n}; use 0 or more")
    axis = wrap_dim("diff", dim, input.ndim)
    pieces = [x for x in (prepend, input, append) if x is not None]
    common = promote(pieces)
    x = cast_to(pieces[0], common)
    if len(pieces) > 1:
        x = join_axis(*[cast_to(p, common) for p in pieces], dim=axis)
    for _ in range(min(n, x.shape[axis])):
        count = x.shape[axis] - 1
        later, earlier = part(x, axis, 1, count), part(x, axis, 0, count)
        x = logical_xor(later, earlier) if common.category == 0 else later - earlier
    return x


def _widths(name: str, y: Expr, x: Expr | None, dx: Any, axis: int) -> Any:
    """Distances between sample points, shaped to stand against neighbours of `y`."""
    if x is None:
        return 1.0 if dx is None else dx
    if x.ndim == 1 and y.ndim > 1:
        if x.shape[0] != y.shape[axis]:
            raise RuntimeError(
                f"{name}: There must be one `x` value for each sample point (got {x.shape[0]} for "
                f"{y.shape[axis]}); make x as long as y"
            )
        x = reshape(x, tuple(x.shape[0] if d == axis else 1 for d in range(y.ndim)))
    else:
        shape = broadcast_shapes(name, [x.shape, y.shape])
        if len(shape) > y.ndim or x.shape[x.ndim - (y.ndim - axis)] != y.shape[axis]:
            raise RuntimeError(
                f"{name}: There must be one `x` value for each sample point (got shapes {x.shape} "
                f"and {y.shape}); make x as long as y"
            )
    place = axis - (y.ndim - x.ndim)
    count = max(x.shape[place] - 1, 0)
    return part(x, place, 1, count) - part(x, place, 0, count)


def _trapezoids(name: str, y: Expr, x: Expr | None, dx: Any, dim: int) -> tuple[Expr, int]:
    axis = wrap_dim(name, dim, y.ndim)
    if x is not None and dx is not None:
        raise TypeError(f"{name}: takes x or dx (got both); give one")
    values = y if y.dtype.category >= 2 else cast_to(y, dtypes.get_default_dtype())
    width = _widths(name, values, x, dx, axis)
    count = max(values.shape[axis] - 1, 0)
    later = part(values, axis, 1 if count else 0, count)
    return (later + part(values, axis, 0, count)) * width * 0.5, axis


def _ref_trapezoid(y: np.ndarray, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    from scipy.integrate import trapezoid

    return np.asarray(trapezoid(y, x, dx=1.0 if dx is None else dx, axis=dim)).astype(y.dtype)


_TRAPEZOID_SAMPLES = (
    Case(T(3, 5)),
    Case(T(3, 5), T(5)),
    Case(T(5, 3), T(5, 3), dim=0),
    Case(T(4), dx=0.5),
    Case(T(3, 1)),
)
_TRAPEZOID_ERRORS = (
    Case(T(3, 4), T(3), match="There must be one `x` value for each sample point"),
)


@composite(
    ref=_ref_trapezoid,
    samples=_TRAPEZOID_SAMPLES,
    errors=_TRAPEZOID_ERRORS,
    aliases=("trapz",),
)
def trapezoid(y: Expr, x: Expr | None = None, *, dx: Any = None, dim: int = -1) -> Expr:
    """Integral along a dimension by trapezoids, over points `x` or of spacing `dx`."""
    terms, axis = _trapezoids("trapezoid", y, x, dx, dim)
    return sum(terms, axis)


def _ref_cumulative(y: np.ndarray, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    from scipy.integrate import cumulative_trapezoid as running

    made = running(y, x, dx=1.0 if dx is None else dx, axis=dim)
    return np.asarray(made).astype(y.dtype)


@composite(ref=_ref_cumulative, samples=_TRAPEZOID_SAMPLES[:4], errors=_TRAPEZOID_ERRORS)
def cumulative_trapezoid(y: Expr, x: Expr | None = None, *, dx: Any = None, dim: int = -1) -> Expr:
    """Running integral along a dimension by trapezoids."""
    terms, axis = _trapezoids("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(terms, axis)


def _ref_cdist(a: np.ndarray, b: np.ndarray, p: float = 2.0, compute_mode: Any = None) -> Any:
    gaps = np.abs(a[..., :, None, :] - b[..., None, :, :])
    if p == 0:
        return np.sum(gaps != 0, axis=-1).astype(a.dtype)
    if np.isinf(p):
        return gaps.max(axis=-1)
    return np.sum(gaps**p, axis=-1) ** (1 / p)


@composite(
    ref=_ref_cdist,
    samples=(
        Case(T(3, 2), T(4, 2)),
        Case(T(2, 3, 2), T(4, 2), 1.0),
        Case(T(3, 2), T(4, 2), float("inf")),
        Case(T(3, 2), T(4, 2), 3.0),
    ),
    errors=(
        Case(T(3, 4), T(2, 5), match="X1 and X2 must have the same number of columns"),
        Case(T(4), T(3, 4), match="only supports at least 2D tensors, X1 got: 1D"),
        Case(T(2, 3), T(2, 3), -1.0, match="only supports non-negative p values"),
    ),
)
def cdist(x1: Expr, x2: Expr, p: float = 2.0, compute_mode: str | None = None) -> Expr:
    """p-norm distances between the rows of two matrices; derivatives at distance 0 are 0.

    Distances come from differences, never from squares that cancel, and nothing of the size of all
    pairs times columns is stored, so `compute_mode` has no influence.
    """
    for label, x in (("X1", x1), ("X2", x2)):
        if x.ndim < 2:
            raise RuntimeError(
                f"cdist: cdist only supports at least 2D tensors, {label} got: {x.ndim}D; reshape it"
            )
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            "cdist: X1 and X2 must have the same number of columns. X1: "
            f"{x1.shape[-1]} X2: {x2.shape[-1]} (got shapes {x1.shape} and {x2.shape})"
        )
    if p < 0:
        raise RuntimeError(
            f"cdist: cdist only supports non-negative p values (got {p}); use p >= 0"
        )
    rows = reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    columns = reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    gaps = rows - columns
    if not x1.shape[-1]:
        return full(0.0, gaps.shape[:-1], gaps.dtype)
    return norm_over("cdist", gaps, float(p), -1, False)

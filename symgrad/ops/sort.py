"""Sorting, ranking and searching.

A sort is a routine that gives positions, without a derivative; the sorted values are gathered, so
derivatives follow the elements. Sorts are stable, and NaN counts as the greatest. Start reading
at `sort`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.op import constant, value_of
from symgrad.ops.arithmetic import ne, where
from symgrad.ops.extrema import ValuesIndices
from symgrad.ops.joining import stack
from symgrad.ops.layout import moved_axis, select, sliced
from symgrad.ops.movement import full, reshape, wrap_dim
from symgrad.ops.scatter import picked
from symgrad.sample import Case, T

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def order_of(x: np.ndarray, descending: bool) -> np.ndarray:
    """Positions that sort the last axis; equal elements keep their order, NaN is the greatest."""
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")
    backward = np.argsort(np.flip(x, -1), axis=-1, kind="stable")
    return x.shape[-1] - 1 - np.flip(backward, -1)


@op
class sort_positions(Library):
    """The positions that sort the last axis."""

    public = False
    eager_check = False
    attributes = ("descending",)
    nodiff = "integers"
    samples = (
        Case(T(3, 4), descending=False),
        Case(T(5), descending=True),
        Case(T(0), descending=False),
    )

    def shape(x: Expr, *, descending: bool) -> tuple[int, ...]:
        return x.shape

    def result_dtype(self, x: Expr, *, descending: bool) -> DType:
        return dtypes.int64

    def batched(count: int, x: Expr, *, descending: bool) -> Any:
        return sort_positions(x, descending=descending)

    def ref(x: np.ndarray, *, descending: bool) -> Any:
        return order_of(x, descending)


def _sorted(name: str, x: Expr, dim: int, descending: bool) -> tuple[Expr, Expr, int]:
    """Values and positions, sorted along a dimension; 0-d tensors as vectors."""
    at = wrap_dim(name, dim, x.ndim)
    line = x if x.ndim else reshape(x, (1,))
    order = moved_axis(
        sort_positions(moved_axis(line, at, line.ndim - 1), descending=descending),
        line.ndim - 1,
        at,
    )
    return picked(line, at, order), order, at


def _ref_sort(x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    if not x.ndim:
        return x, np.int64(0)
    order = np.moveaxis(order_of(np.moveaxis(x, dim, -1), descending), -1, dim)
    return np.take_along_axis(x, order, dim), order


@composite(
    ref=_ref_sort,
    samples=(
        Case(T(3, 4)),
        Case(T(3, 4), 0, True),
        Case(T(5, dtype="int", lo=0, hi=2), descending=True),
        Case(T()),
        Case(T(0, 2), 0),
    ),
    errors=(Case(T(3), 1, match="Dimension out of range", error=IndexError),),
)
def sort(
    input: Expr, dim: int = -1, descending: bool = False, stable: bool = False
) -> ValuesIndices:
    """The elements sorted along a dimension, and where they were; always stable."""
    values, order, _ = _sorted("sort", input, dim, descending)
    return ValuesIndices(reshape(values, input.shape), reshape(order, input.shape))


@composite(
    ref=lambda x, dim=-1, descending=False, stable=False: _ref_sort(x, dim, descending)[1],
    samples=(Case(T(3, 4)), Case(T(3, 4), 0, True)),
)
def argsort(input: Expr, dim: int = -1, descending: bool = False, stable: bool = False) -> Expr:
    """The positions that sort the elements along a dimension; always stable."""
    return sort(input, dim, descending).indices  # type: ignore[no-any-return]


@composite(ref=lambda x: np.sort(x, 0), samples=(Case(T(4)), Case(T(3, 2))))
def msort(input: Expr) -> Expr:
    """The elements sorted along the first dimension."""
    return sort(input, 0).values  # type: ignore[no-any-return]


def _ref_topk(
    x: np.ndarray, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    values, order = _ref_sort(x, dim, largest)
    return np.take(values, range(k), dim), np.take(order, range(k), dim)


@composite(
    ref=_ref_topk,
    samples=(Case(T(5), 2), Case(T(3, 4), 3, 0), Case(T(3, 4), 2, -1, False)),
    errors=(Case(T(3), 4, match="selected index k out of range"),),
)
def topk(
    input: Expr, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesIndices:
    """The k largest (or smallest) elements along a dimension, in order, and where they are."""
    at = wrap_dim("topk", dim, input.ndim)
    if not 0 <= k <= (input.shape[at] if input.ndim else 1):
        raise RuntimeError(f"topk: selected index k out of range (got {k} of shape {input.shape})")
    values, order, at = _sorted("topk", input, dim, largest)
    if not input.ndim and k == 1:
        return ValuesIndices(input, reshape(order, ()))
    return ValuesIndices(sliced(values, at, 0, k), sliced(order, at, 0, k))


def _ranked(
    values: Expr, order: Expr, at: int, rank: Any, keepdim: bool, shape: tuple[int, ...]
) -> ValuesIndices:
    """The element of a rank along a dimension."""
    parts = [select(values, at, rank), select(order, at, rank)]
    if keepdim and shape:
        parts = [reshape(p, (*shape[:at], 1, *shape[at + 1 :])) for p in parts]
    return ValuesIndices(*parts)


def _ref_kthvalue(x: np.ndarray, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, order = _ref_sort(x, dim)
    found = [np.take(values, [k - 1], dim), np.take(order, [k - 1], dim)]
    return tuple(found if keepdim else [np.squeeze(f, dim) for f in found])


@composite(
    ref=_ref_kthvalue,
    samples=(Case(T(5), 2), Case(T(3, 4), 1, 0), Case(T(3, 4), 4, 1, True)),
    errors=(Case(T(3), 4, match="selected number k out of range for dimension 0"),),
)
def kthvalue(input: Expr, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The k-th smallest element along a dimension, and where it is."""
    at = wrap_dim("kthvalue", dim, input.ndim)
    if not 1 <= k <= (input.shape[at] if input.ndim else 1):
        raise RuntimeError(
            f"kthvalue: kthvalue(): selected number k out of range for dimension {at} (got {k})"
        )
    values, order, at = _sorted("kthvalue", input, dim, False)
    return _ranked(values, order, at, k - 1, keepdim, input.shape)


def _ref_median(x: np.ndarray, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        if not x.size:
            return np.asarray(np.nan, x.dtype)
        flat = np.sort(x, None)
        return flat[-1] if np.isnan(flat[-1]) else flat[(flat.size - 1) // 2]
    return _ref_kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


@composite(
    ref=_ref_median,
    samples=(
        Case(T(5)),
        Case(T(2, 4)),
        Case(T(0), smooth=False),
        Case(T(3, 4), 1),
        Case(T(3, 4), 0, True),
    ),
    errors=(
        Case(T(2, 0), 1, match="Expected reduction dim 1 to have non-zero size", error=IndexError),
        Case(T(0, dtype="int"), match="no value for the median of nothing", error=IndexError),
    ),
)
def median(input: Expr, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or along a dimension with where it is; NaN if there is one."""
    if dim is None:
        if not input.size and input.dtype.category < 2:
            raise IndexError(
                f"median: {input.dtype!r} has no value for the median of nothing (got shape {input.shape}); "
                "convert with .to(symgrad.float64) for NaN"
            )
        if not input.size:
            return full(float("nan"), (), input.dtype)
        return median(reshape(input, (input.size,)), 0).values
    at = wrap_dim("median", dim, input.ndim)
    size = input.shape[at] if input.ndim else 1
    if size == 0:
        raise IndexError(f"median(): Expected reduction dim {at} to have non-zero size.")
    values, order, at = _sorted("median", input, dim, False)
    middle = _ranked(values, order, at, (size - 1) // 2, keepdim, input.shape)
    if input.dtype.category != 2:
        return middle
    # NaN is the greatest, so it is at the end if there is one.
    last = _ranked(values, order, at, size - 1, keepdim, input.shape)
    spoiled = ne(last.values, last.values)
    return ValuesIndices(
        where(spoiled, last.values, middle.values), where(spoiled, last.indices, middle.indices)
    )


def _ref_quantile(
    x: np.ndarray, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    return np.quantile(x, q, axis=dim, keepdims=keepdim, method=interpolation).astype(x.dtype)


@composite(
    ref=_ref_quantile,
    samples=(
        Case(T(5), 0.3),
        Case(T(3, 4), 0.5, 1),
        Case(T(3, 4), np.array([0.0, 0.25, 1.0]), 0, True),
        Case(T(6), 0.35, interpolation="nearest"),
        Case(T(6), 0.35, interpolation="midpoint"),
    ),
    errors=(
        Case(T(3), 1.5, match=r"q must be in the range \[0, 1\]"),
        Case(T(0), 0.5, match="input tensor must be non-empty"),
        Case(T(3), 0.5, interpolation="cubic", match="interpolation must be one of"),
        Case(T(3, dtype="int"), 0.5, match="input tensor must be either float or double dtype"),
    ),
)
def quantile(
    input: Expr,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Expr:
    """Quantiles of all elements or along a dimension; NaN where there is one.

    Parameters
    ----------
    q : float, or 1-d Expr or ndarray of known values
        Several quantiles come along a new first axis.
    interpolation : {"linear", "lower", "higher", "nearest", "midpoint"}
        What stands between two neighbours in the order.
    """
    if interpolation not in INTERPOLATIONS:
        raise RuntimeError(
            f"quantile: interpolation must be one of {', '.join(INTERPOLATIONS)} (got {interpolation!r})"
        )
    if input.dtype.category != 2:
        raise RuntimeError(
            f"quantile: input tensor must be either float or double dtype (got {input.dtype!r})"
        )
    if not input.size:
        raise RuntimeError("quantile: input tensor must be non-empty")
    wanted = value_of(q) if isinstance(q, Expr) else np.asarray(q, np.float64)
    if wanted is None:
        raise RuntimeError("quantile: q depends on a traced input; use Python numbers")
    if wanted.ndim > 1 or not np.all((wanted >= 0) & (wanted <= 1)):
        raise RuntimeError(f"quantile: q must be in the range [0, 1] (got {wanted.tolist()})")
    line = reshape(input, (input.size,)) if dim is None else input
    values, _, at = _sorted("quantile", line, 0 if dim is None else dim, False)
    last = select(values, at, -1)
    found = []
    for fraction in wanted.reshape(-1).tolist():
        middle = _between(values, at, fraction * (values.shape[at] - 1), interpolation)
        found.append(where(ne(last, last), last, middle))
    if keepdim and input.ndim:
        kept = (1,) * input.ndim if dim is None else (*input.shape[:at], 1, *input.shape[at + 1 :])
        found = [reshape(f, kept) for f in found]
    return stack(found, 0) if wanted.ndim else found[0]  # type: ignore[no-any-return]


def _between(values: Expr, at: int, rank: float, interpolation: str) -> Expr:
    """The value at a fractional rank of sorted values."""
    below = int(rank)
    weight = rank - below
    if weight == 0 or interpolation == "lower":
        return select(values, at, below)  # type: ignore[no-any-return]
    if interpolation in ("higher", "nearest"):
        place = below + 1 if interpolation == "higher" else round(rank)
        return select(values, at, place)  # type: ignore[no-any-return]
    part = constant(0.5 if interpolation == "midpoint" else weight, values.dtype)
    low, high = select(values, at, below), select(values, at, below + 1)
    return low + part * (high - low)  # type: ignore[no-any-return]

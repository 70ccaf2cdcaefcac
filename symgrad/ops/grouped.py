"""Reductions by group: elements that are sent to the same place are combined there.

Sums and means are additions in index order. Maxima and minima are one primitive each, whose
derivative is shared evenly by ties. Products lay the members of each group along an axis and
use the product along it, whose derivative is exact at zeros. Start reading at `scatter_reduce`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import Index, composite, op
from symgrad.op import cast_to, constant, value_of
from symgrad.ops.arithmetic import eq, ge, keep, where
from symgrad.ops.movement import expand, full, line, reshape
from symgrad.ops.positions import known, numbered, put_any, put_sum, read
from symgrad.ops.reduce import prod
from symgrad.ops.scatter import (
    checked,
    index_of,
    ints_below,
    per_element,
    slices_of,
    source_of,
)
from symgrad.sample import Case, T

HOW = ("sum", "prod", "mean", "amax", "amin")


class _Extreme(Index):
    """What the largest and the smallest by group share."""

    public = False
    samples: ClassVar[Any] = (
        Case(T(4), T(6), ints_below(6, below=4)),
        Case(T(3), T(0), ints_below(0, below=3)),
    )

    @staticmethod
    def shape(x: Expr, values: Expr, index: Expr) -> tuple[int, ...]:
        return x.shape


def _ref_extreme(better: Any) -> Any:
    def ref(x: np.ndarray, values: np.ndarray, index: np.ndarray) -> Any:
        out = np.array(x)
        better.at(out, index, values)
        return out

    return ref


def _shared(g: Expr, out: Expr, x: Expr, values: Expr, index: Expr) -> tuple[Any, ...]:
    own = eq(x, out)
    sent = eq(values, read(out, index))
    count = cast_to(own, g.dtype) + put_sum(cast_to(sent, g.dtype), index, size=x.shape)
    share = g / count
    return keep(own, share), keep(sent, read(share, index)), None


def _flattened(extreme: Any, x: Expr, values: Expr, index: Expr) -> Expr:
    """A batch of vectors as one vector, each with its own part of the positions."""
    places = index + numbered(index) * x.shape[1]
    return reshape(extreme(line(x), line(values), line(places)), x.shape)  # type: ignore[no-any-return]


@op
class put_max(_Extreme):
    """A vector with the largest of each element and what is sent to its position."""

    ref = _ref_extreme(np.maximum)

    def batched(count: int, x: Expr, values: Expr, index: Expr) -> Any:
        return _flattened(put_max, x, values, index)

    def vjp(g: Expr, out: Expr, x: Expr, values: Expr, index: Expr) -> Any:
        return _shared(g, out, x, values, index)


@op
class put_min(_Extreme):
    """A vector with the smallest of each element and what is sent to its position."""

    ref = _ref_extreme(np.minimum)

    def batched(count: int, x: Expr, values: Expr, index: Expr) -> Any:
        return _flattened(put_min, x, values, index)

    def vjp(g: Expr, out: Expr, x: Expr, values: Expr, index: Expr) -> Any:
        return _shared(g, out, x, values, index)


def _limit(dtype: dtypes.DType, largest: bool) -> float | int | bool:
    if dtype.category == 2:
        return float("inf") if largest else float("-inf")
    if dtype.category == 0:
        return largest
    info = np.iinfo(dtype.numpy)
    return int(info.max if largest else info.min)


def _members(name: str, index: Expr, size: int) -> np.ndarray:
    """The numbers of the elements sent to each place, a row per turn; -1 where there is none."""
    value = value_of(index)
    if value is None:
        raise RuntimeError(
            f"{name}: reduce='prod' needs positions that are known when the function is traced (got a "
            "traced input); use 'sum' of logarithms, or pass the index as a constant"
        )
    order = np.argsort(value, kind="stable")
    sent = value[order]
    first = np.searchsorted(sent, sent, side="left")
    turn = np.arange(sent.size) - first
    table = np.full((int(turn.max(initial=-1)) + 1, size), -1, np.int64)
    table[turn, sent] = order
    return table


def reduced_by_group(
    name: str, x: Expr, values: Expr, index: Expr, reduce: str, include_self: bool
) -> Expr:
    """A vector `x` combined with `values` sent to positions `index` of it.

    With `include_self` false, places that something is sent to forget what `x` has there.
    """
    if reduce not in HOW:
        raise RuntimeError(
            f"{name}: reduce argument must be either sum, prod, mean, amax or amin (got {reduce!r})"
        )
    size = (x.size,)
    sent = put_any(full(True, index.shape, dtypes.bool_), index, size=size)

    def start(neutral: Any) -> Expr:
        return x if include_self else where(sent, constant(neutral, x.dtype), x)  # type: ignore[no-any-return]

    if reduce == "amax":
        return put_max(start(_limit(x.dtype, False)), values, index)  # type: ignore[no-any-return]
    if reduce == "amin":
        return put_min(start(_limit(x.dtype, True)), values, index)  # type: ignore[no-any-return]
    if reduce == "prod":
        table = _members(name, index, x.size)
        if not table.size:
            return x
        place = known(table)
        filled = ge(place, 0)
        factors = where(filled, read(values, where(filled, place, 0)), constant(1, x.dtype))
        return start(1) * cast_to(prod(factors, 0), x.dtype)  # type: ignore[no-any-return]
    total = start(0) + put_sum(values, index, size=size)
    if reduce == "sum":
        return total
    if x.dtype.category != 2:
        raise RuntimeError(
            f"{name}: reduce='mean' needs a floating dtype (got {x.dtype!r}); convert with .to"
        )
    ones = put_sum(full(1.0, index.shape, x.dtype), index, size=size)
    count = ones + 1.0 if include_self else where(sent, ones, 1.0)
    return total / count  # type: ignore[no-any-return]


def _ref_scatter_reduce(
    x: np.ndarray,
    dim: int,
    index: np.ndarray,
    src: np.ndarray,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    groups: dict[tuple[int, ...], list[Any]] = {}
    for at in np.ndindex(index.shape):
        to = list(at)
        to[dim] = index[at]
        groups.setdefault(tuple(to), []).append(src[at])
    combine: Any = {
        "sum": np.sum,
        "prod": np.prod,
        "mean": np.mean,
        "amax": np.max,
        "amin": np.min,
    }[reduce]
    out = np.array(x)
    for to, members in groups.items():
        out[to] = combine([x[to], *members] if include_self else members)
    return out


@composite(
    ref=_ref_scatter_reduce,
    samples=(
        Case(T(4), 0, ints_below(6, below=4), T(6), "sum"),
        Case(T(4), 0, ints_below(6, below=4), T(6), "sum", include_self=False),
        Case(T(3, 4), 1, ints_below(3, 6, below=4), T(3, 6), "mean"),
        Case(T(3, 4), 0, ints_below(6, 2, below=3), T(6, 2), "mean", include_self=False),
        Case(T(4), 0, ints_below(6, below=4), T(6), "amax"),
        Case(T(4), 0, ints_below(6, below=4), T(6), "amin", include_self=False),
        Case(T(4), 0, ints_below(6, below=4), T(6), "prod"),
        Case(T(2, 3), -1, ints_below(2, 5, below=3), T(2, 5), "prod", include_self=False),
    ),
    errors=(
        Case(T(3), 0, np.array([3]), T(1), "sum", match="index 3 is out of bounds"),
        Case(
            T(3),
            0,
            np.array([1]),
            T(1),
            "max",
            match="reduce argument must be either sum, prod, mean",
        ),
    ),
)
def scatter_reduce(
    input: Expr, dim: int, index: Expr, src: Expr, reduce: str, *, include_self: bool = True
) -> Expr:
    """`input` combined with elements of `src` sent along an axis, one position per element.

    Parameters
    ----------
    reduce : {"sum", "prod", "mean", "amax", "amin"}
        Ties of "amax" and "amin" share the derivative evenly.
    include_self : bool
        Whether the elements of `input` take part at places that something is sent to.
    """
    shape, at, per = per_element("scatter_reduce", input, dim, index_of("scatter_reduce", index))
    if not per.size:
        return input
    vector = source_of("scatter_reduce", input, per, src)
    positions = checked("scatter_reduce", shape, at, per)
    made = reduced_by_group("scatter_reduce", line(input), vector, positions, reduce, include_self)
    return reshape(made, input.shape)  # type: ignore[no-any-return]


def _ref_index_reduce(
    x: np.ndarray,
    dim: int,
    index: Any,
    source: np.ndarray,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    name = "prod" if reduce == "prod" else reduce
    moved = np.moveaxis(x, dim, 0)
    wide = np.broadcast_to(
        np.reshape(index, (-1,) + (1,) * (x.ndim - 1)), np.moveaxis(source, dim, 0).shape
    )
    made = _ref_scatter_reduce(
        moved, 0, wide, np.moveaxis(source, dim, 0), name, include_self=include_self
    )
    return np.moveaxis(made, 0, dim)


@composite(
    ref=_ref_index_reduce,
    samples=(
        Case(T(4, 2), 0, ints_below(5, below=4), T(5, 2), "amax"),
        Case(T(2, 3), 1, ints_below(4, below=3), T(2, 4), "prod"),
        Case(T(4, 2), 0, ints_below(5, below=4), T(5, 2), "mean", include_self=False),
    ),
    errors=(Case(T(3), 0, np.array([1]), T(2), "prod", match="Number of indices"),),
)
def index_reduce(
    input: Expr, dim: int, index: Expr, source: Expr, reduce: str, *, include_self: bool = True
) -> Expr:
    """`input` combined with slices of `source` sent to positions of an axis."""
    at, positions, slices = slices_of("index_reduce", input, dim, index, source, False)
    shape = tuple(slices.shape[0] if d == at else s for d, s in enumerate(input.shape or (1,)))
    per = expand(
        reshape(positions, tuple(positions.size if d == at else 1 for d in range(len(shape)))),
        shape,
    )
    return scatter_reduce(input, dim, per, source, reduce, include_self=include_self)  # type: ignore[no-any-return]


def _ref_bincount(x: np.ndarray, weights: Any = None, minlength: int = 0) -> Any:
    return np.bincount(x, weights, minlength).astype(np.int64 if weights is None else weights.dtype)


@composite(
    ref=_ref_bincount,
    samples=(
        Case(ints_below(6, below=4)),
        Case(ints_below(6, below=4), T(6)),
        Case(ints_below(3, below=2), minlength=5),
        Case(ints_below(0, below=2)),
    ),
    errors=(
        Case(np.array([-1]), match="only supports 1-d non-negative integral inputs"),
        Case(ints_below(2, below=2), T(3), match="weights should be same length as input"),
    ),
)
def bincount(input: Expr, weights: Expr | None = None, minlength: int = 0) -> Expr:
    """How often each integer occurs, or the sum of the weights of its occurrences."""
    index = index_of("bincount", input)
    value = value_of(index)
    if value is None:
        raise RuntimeError(
            "bincount: the result's size depends on a traced input; use scatter_add into zeros of a known size"
        )
    if index.ndim != 1 or (value.size and value.min() < 0):
        raise RuntimeError("bincount: bincount only supports 1-d non-negative integral inputs")
    if weights is not None and weights.shape != index.shape:
        raise RuntimeError(
            f"bincount: weights should be same length as input (got {weights.shape} and {index.shape})"
        )
    size = max(int(value.max()) + 1 if value.size else 0, minlength)
    values = full(1, index.shape, dtypes.int64) if weights is None else weights
    return put_sum(values, cast_to(index, dtypes.int64), size=(size,))  # type: ignore[no-any-return]

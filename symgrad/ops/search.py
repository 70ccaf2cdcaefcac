"""Searching sorted sequences, and distinct values.

Searches are routines that give positions; distinct values depend on values, so they are found at
once. None has a derivative. Start reading at `searchsorted`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Library, composite, op, promote
from symgrad.op import cast_to, constant, value_of
from symgrad.ops.movement import reshape, wrap_dim
from symgrad.ops.positions import known
from symgrad.ops.sort import sort
from symgrad.sample import Case, T


def _ascending(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.sort(rng.uniform(-2, 2, shape), -1)


@op
class positions_in(Library):
    """Where values belong in sorted rows: the number of elements before them in their row.

    ``positions_in(rows, values)``: the leading axes of both agree, or `rows` is one row for all.
    """

    public = False
    eager_check = False
    attributes = ("right",)
    nodiff = "integers"
    samples = (
        Case(T(6, make=_ascending), T(2, 3), right=False),
        Case(T(2, 6, make=_ascending), T(2, 3), right=True),
    )

    def shape(rows: Expr, values: Expr, *, right: bool) -> tuple[int, ...]:
        return values.shape

    def result_dtype(self, rows: Expr, values: Expr, *, right: bool) -> DType:
        return dtypes.int64

    def batched(count: int, rows: Expr, values: Expr, *, right: bool) -> Any:
        return positions_in(rows, values, right=right)

    def ref(rows: np.ndarray, values: np.ndarray, *, right: bool) -> Any:
        side: Any = "right" if right else "left"
        if rows.ndim == 1:
            return np.searchsorted(rows, values, side)
        out = np.empty(values.shape, np.int64)
        for at in np.ndindex(rows.shape[:-1]):
            out[at] = np.searchsorted(rows[at], values[at], side)
        return out


def _ref_searchsorted(
    rows: np.ndarray, values: Any, *, out_int32: bool = False, right: bool = False, side: Any = None
) -> Any:
    found = positions_in.ref(rows, np.asarray(values), right=right or side == "right")
    return found.astype(np.int32) if out_int32 else found


@composite(
    ref=_ref_searchsorted,
    samples=(
        Case(T(6, make=_ascending), T(2, 3)),
        Case(T(2, 6, make=_ascending), T(2, 3), right=True),
        Case(T(6, make=_ascending), 0.5, side="right", out_int32=True),
        Case(T(0), T(3)),
    ),
    errors=(
        Case(T(2, 3), T(3, 3), match="must match, except for the last dimension"),
        Case(T(3), T(3), side="left", right=True, match="side and right can't be set to opposites"),
    ),
)
def searchsorted(
    sorted_sequence: Expr,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Expr | None = None,
) -> Expr:
    """Where values belong in sorted rows so that the order is kept.

    Parameters
    ----------
    sorted_sequence : Expr, shape (..., n)
        Ascending along the last axis; one row, or as many as `input` has.
    right : bool
        Whether equal elements are passed.
    side : {"left", "right"}, optional
        The same in words.
    sorter : Expr, optional
        Positions that sort a sequence which is not sorted.
    """
    from symgrad.ops.scatter import gather

    if side not in (None, "left", "right"):
        raise RuntimeError(f"searchsorted: side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "searchsorted: side and right can't be set to opposites, got side of left while right was True"
        )
    rows = sorted_sequence
    if not rows.ndim:
        raise RuntimeError("searchsorted: sorted_sequence needs at least one dimension (got 0-d)")
    if sorter is not None:
        rows = gather(rows, -1, sorter)
    values = input if isinstance(input, Expr) else constant(input, rows.dtype)
    if rows.ndim > 1 and rows.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            "searchsorted: boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            f"tensor and input value tensor must match, except for the last dimension (got {rows.shape} and "
            f"{values.shape})"
        )
    dtype = promote((rows, values))
    found = positions_in(
        cast_to(rows, dtype), cast_to(values, dtype), right=right or side == "right"
    )
    return cast_to(found, dtypes.int32) if out_int32 else found


@composite(
    ref=lambda x, boundaries, *, out_int32=False, right=False: _ref_searchsorted(
        boundaries, x, out_int32=out_int32, right=right
    ),
    samples=(Case(T(2, 3), T(4, make=_ascending)), Case(T(5), T(4, make=_ascending), right=True)),
    errors=(Case(T(3), T(2, 2), match="boundaries tensor must be 1 dimension"),),
)
def bucketize(
    input: Any, boundaries: Expr, *, out_int32: bool = False, right: bool = False
) -> Expr:
    """The bucket of each element, between ascending boundaries."""
    if boundaries.ndim != 1:
        raise RuntimeError(
            f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, test, *, assume_unique=False, invert=False: np.isin(x, test, invert=invert),
    samples=(
        Case(T(6, dtype="int"), T(3, dtype="int")),
        Case(T(2, 3, dtype="int"), T(2, dtype="int"), invert=True),
        Case(T(3), T(0)),
    ),
)
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Expr:
    """Whether each element is among the test elements."""
    from symgrad.ops.arithmetic import ne
    from symgrad.ops.movement import full

    given = [e for e in (elements, test_elements) if isinstance(e, Expr)]
    dtype = promote((elements, test_elements))
    x, tests = (
        cast_to(e, dtype) if isinstance(e, Expr) else constant(e, dtype)
        for e in (elements, test_elements)
    )
    if not given or not tests.size:
        return full(invert, x.shape, dtypes.bool_)
    line = sort(reshape(tests, (tests.size,))).values
    low, high = (positions_in(line, x, right=r) for r in (False, True))
    found = ne(low, high)
    return ~found if invert else found  # type: ignore[no-any-return]


# -- distinct values ---------------------------------------------------------------------


def _looked_at(name: str, x: Expr) -> np.ndarray:
    value = value_of(x)
    if value is None:
        raise RuntimeError(
            f"{name}: the result's shape depends on values, which are not known while a function is traced; "
            "sort and compare neighbours instead"
        )
    return value


def _parts(found: Any, with_inverse: bool, with_counts: bool) -> Any:
    values, inverse, counts = (known(np.asarray(f)) for f in found)
    if with_inverse and with_counts:
        return values, inverse, counts
    if with_inverse:
        return values, inverse
    return (values, counts) if with_counts else values


def _ref_unique(
    x: np.ndarray,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Any = None,
) -> Any:
    return np.unique(x, return_inverse=return_inverse, return_counts=return_counts, axis=dim)


@composite(
    ref=_ref_unique,
    samples=(
        Case(T(6, dtype="int")),
        Case(T(2, 3, dtype="int"), True, True, True),
        Case(T(4, 1, dtype="int"), return_counts=True, dim=0),
    ),
)
def unique(
    input: Expr,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices along `dim`), ascending.

    Returns
    -------
    Expr, or tuple
        With where each element is among them, and how often each occurs, if asked for.
    """
    value = _looked_at("unique", input)
    axis = None if dim is None else wrap_dim("unique", dim, input.ndim)
    found, inverse, counts = np.unique(value, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(value.shape if axis is None else (value.shape[axis],))
    return _parts(
        (found, inverse.astype(np.int64), counts.astype(np.int64)), return_inverse, return_counts
    )


def _ref_consecutive(x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    flat = x.reshape(-1)
    keep = [k for k in range(flat.size) if k == 0 or flat[k] != flat[k - 1]]
    return flat[keep]


@composite(
    ref=_ref_consecutive,
    samples=(Case(T(8, dtype="int", lo=0, hi=1)), Case(T(2, 3, dtype="int", lo=0, hi=1))),
)
def unique_consecutive(
    input: Expr, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along `dim`) without repetitions of the one before."""
    value = _looked_at("unique_consecutive", input)
    axis = None if dim is None else wrap_dim("unique_consecutive", dim, input.ndim)
    rows = value.reshape(-1, 1) if axis is None else np.moveaxis(value, axis, 0)
    count = rows.shape[0]
    differs = np.any((rows[1:] != rows[:-1]).reshape(max(count - 1, 0), -1), axis=1)
    starts = np.flatnonzero(np.concatenate([[True], differs])) if count else np.zeros(0, np.int64)
    run = np.zeros(count, np.int64)
    run[starts[1:]] = 1
    inverse = np.cumsum(run)
    lengths = np.diff(np.append(starts, count)).astype(np.int64)
    if axis is None:
        found = (rows[starts, 0], inverse.reshape(value.shape), lengths)
    else:
        found = (np.moveaxis(rows[starts], 0, axis), inverse, lengths)
    return _parts(found, return_inverse, return_counts)

"""torch's gathering and scattering functions, on the primitives of `symgrad.ops.positions`.

The functions with an index per element (`gather`, `scatter`, `take`) work on the flattened tensor
with one array of positions; those with an index per slice (`index_select`, `index_add`) move the
axis to the front. Of several writes to one element the last wins and only it has a derivative;
sums add in index order. Start reading at `gather`, then `scatter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite
from symgrad.op import cast_to, filling
from symgrad.ops.index import getitem, setitem
from symgrad.ops.layout import axis_index, moved_axis, sliced
from symgrad.ops.masks import masked_fill
from symgrad.ops.movement import expand, full, line, reshape, wrap_dim
from symgrad.ops.positions import bounded_positions, known, put_any, put_last, put_sum, read
from symgrad.sample import Case, T


def ints_below(*shape: int, below: int, lo: int = 0) -> T:
    return T(*shape, dtype="int", lo=lo, hi=below - 1)


def _integers(name: str, index: Expr) -> Expr:
    if not isinstance(index, Expr) or index.dtype.category != 1:
        kind = index.dtype if isinstance(index, Expr) else type(index).__name__
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index (got {kind!r})")
    return index


def index_of(name: str, index: Any) -> Expr:
    """An index given as Expr, array or list."""
    if isinstance(index, Expr):
        return _integers(name, index)
    return _integers(name, known(np.asarray(index)))


def _vector(name: str, index: Expr) -> Expr:
    if _integers(name, index).ndim > 1:
        raise IndexError(
            f"{name}(): Index is supposed to be a vector (got {index.ndim} dimensions)"
        )
    return reshape(index, (index.size,))  # type: ignore[no-any-return]


def checked(name: str, x: tuple[int, ...], dim: int, index: Expr, negative: bool = False) -> Expr:
    """Row-major positions in a tensor of shape `x`, of an index per element along `dim`."""
    error: type[Exception] = IndexError if negative else RuntimeError
    return flat_positions(x, dim, bounded_positions(name, index, x[dim], dim, negative, error))


def flat_positions(shape: tuple[int, ...], dim: int, along: Expr) -> Expr:
    """Row-major positions, as a vector, of positions along `dim` that are known to be in range."""
    step = 1
    total: Expr | None = None
    for d in range(len(shape) - 1, -1, -1):
        place = along if d == dim else axis_index(along.shape, d)
        term = place if step == 1 else place * step
        total = term if total is None else total + term
        step *= shape[d]
    assert total is not None
    return reshape(expand(total, along.shape), (along.size,))  # type: ignore[no-any-return]


def picked(x: Expr, dim: int, along: Expr) -> Expr:
    """`gather` with positions that are known to be in range."""
    if not along.size:
        return full(0, along.shape, x.dtype)
    return reshape(read(line(x), flat_positions(x.shape, dim, along)), along.shape)  # type: ignore[no-any-return]


def per_element(name: str, x: Expr, dim: int, index: Expr) -> tuple[tuple[int, ...], int, Expr]:
    """The shape, axis and index of a function with an index per element, 0-d as 1-d."""
    index = _integers(name, index)
    at = wrap_dim(name, dim, x.ndim)
    shape = x.shape or (1,)
    if not index.ndim:
        index = reshape(index, (1,))
    if index.ndim != len(shape):
        raise RuntimeError(
            f"{name}: Index tensor must have the same number of dimensions as input tensor "
            f"(got {index.ndim} and {x.ndim})"
        )
    for d, (have, limit) in enumerate(zip(index.shape, shape, strict=True)):
        if d != at and have > limit and index.size:
            raise RuntimeError(
                f"{name}: Size does not match at dimension {d} expected index {list(index.shape)} to be "
                f"no larger than self {list(shape)} apart from dimension {at}"
            )
    return shape, at, index


# -- reading ----------------------------------------------------------------------------


def _ref_gather(x: np.ndarray, dim: int, index: np.ndarray) -> Any:
    where_to = list(np.indices(index.shape))
    where_to[dim] = index
    return x[tuple(where_to)]


@composite(
    ref=_ref_gather,
    samples=(
        Case(T(4), 0, ints_below(6, below=4)),
        Case(T(3, 4), 1, ints_below(3, 2, below=4)),
        Case(T(3, 4), 0, ints_below(5, 2, below=3)),
        Case(T(2, 3, 2), -1, ints_below(2, 2, 3, below=2)),
        Case(T(3, 4), 0, ints_below(0, 4, below=3)),
    ),
    errors=(
        Case(T(3), 0, np.array([5]), match="index 5 is out of bounds for dimension 0 with size 3"),
        Case(T(3, 4), 0, ints_below(2, 5, below=3), match="Size does not match at dimension 1"),
        Case(T(3, 4), 0, ints_below(2, below=3), match="same number of dimensions as input"),
        Case(T(3), 0, T(2), match="Expected dtype int32/int64 for index"),
    ),
)
def gather(input: Expr, dim: int, index: Expr, *, sparse_grad: bool = False) -> Expr:
    """Elements picked along an axis, one position per element of the result.

    ``out[i][j] = input[index[i][j]][j]`` for dim 0. Positions must lie in range; negative ones are
    refused.
    """
    index = index_of("gather", index)
    shape, at, per = per_element("gather", input, dim, index)
    if not per.size:
        return full(0, index.shape, input.dtype)
    found = read(line(input), checked("gather", shape, at, per))
    return reshape(found, index.shape)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, dim, index: np.take(x, index, dim),
    samples=(
        Case(T(4, 3), 0, ints_below(5, below=4)),
        Case(T(2, 4), -1, ints_below(3, below=4)),
        Case(T(4), 0, ints_below(0, below=4)),
    ),
    errors=(
        Case(T(3), 0, np.array([5]), match="index 5 is out of bounds", error=IndexError),
        Case(T(3), 0, np.array([[1]]), match="Index is supposed to be a vector", error=IndexError),
    ),
)
def index_select(input: Expr, dim: int, index: Expr) -> Expr:
    """Slices picked along an axis."""
    at = wrap_dim("index_select", dim, input.ndim)
    positions = _vector("index_select", index_of("index_select", index))
    x = input if input.ndim else reshape(input, (1,))
    inside = bounded_positions("index_select", positions, x.shape[at], at, False)
    found = moved_axis(read(moved_axis(x, at, 0), inside), 0, at)
    return found if input.ndim else reshape(found, ())  # type: ignore[no-any-return]


@composite(
    ref=np.take,
    samples=(Case(T(3, 4), ints_below(2, 2, below=12, lo=-12)), Case(T(5), ints_below(below=5))),
    errors=(Case(T(3, 4), np.array([12]), match="index 12 is out of", error=IndexError),),
)
def take(input: Expr, index: Expr) -> Expr:
    """Elements picked from the flattened tensor; negative positions count from the end."""
    positions = bounded_positions("take", index_of("take", index), input.size, 0)
    return read(line(input), positions)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, indices, dim=None: np.take_along_axis(x, indices, dim),
    samples=(
        Case(T(3, 4), ints_below(3, 2, below=4, lo=-4), 1),
        Case(T(3, 4), ints_below(2, 1, below=3), 0),
        Case(T(3), ints_below(2, below=3), None),
    ),
    errors=(
        Case(T(3, 4), np.array([0]), 0, match="same number of dimensions"),
        Case(T(3), np.array([3]), 0, match="index 3 is out of bounds", error=IndexError),
    ),
)
def take_along_dim(input: Expr, indices: Expr, dim: int | None = None) -> Expr:
    """Elements picked along an axis; input and indices broadcast along the others."""
    index = index_of("take_along_dim", indices)
    if dim is None:
        return take(input, line(index))  # type: ignore[no-any-return]
    if index.ndim != input.ndim:
        raise RuntimeError(
            "take_along_dim: input and indices should have the same number of dimensions, but got "
            f"{input.ndim} dimensions for input, and {index.ndim} dimensions for indices"
        )
    at = wrap_dim("take_along_dim", dim, input.ndim)
    rest = [tuple(1 if d == at else s for d, s in enumerate(x.shape)) for x in (input, index)]
    common = broadcast_shapes("take_along_dim", rest)
    whole = expand(input, tuple(input.shape[at] if d == at else s for d, s in enumerate(common)))
    index = expand(index, tuple(index.shape[at] if d == at else s for d, s in enumerate(common)))
    if not index.size:
        return full(0, index.shape, input.dtype)
    positions = checked("take_along_dim", whole.shape, at, index, negative=True)
    return reshape(read(line(whole), positions), index.shape)  # type: ignore[no-any-return]


# -- writing, one index per element ------------------------------------------------------


def _ref_scatter(x: np.ndarray, dim: int, index: np.ndarray, src: Any, *, how: Any = None) -> Any:
    out = np.array(x)
    for at in np.ndindex(index.shape):
        to = (*at[:dim], index[at], *at[dim + 1 :]) if dim >= 0 else (*at[:-1], index[at])
        value = src[at] if isinstance(src, np.ndarray) else src
        out[to] = value if how is None else how(out[to], value)
    return out


def source_of(name: str, x: Expr, index: Expr, src: Any) -> Expr:
    """What is written, as a vector in step with the positions."""
    if not isinstance(src, Expr):
        return full(src, (index.size,), x.dtype)
    if src.dtype is not x.dtype:
        raise RuntimeError(
            f"{name}(): Expected self.dtype to be equal to src.dtype (got {x.dtype!r} and {src.dtype!r})"
        )
    src = src if src.ndim else reshape(src, (1,))
    if src.ndim != index.ndim or any(
        have > limit for have, limit in zip(index.shape, src.shape, strict=True)
    ):
        raise RuntimeError(
            f"{name}: Expected index {list(index.shape)} to be no larger than src {list(src.shape)}"
        )
    for d, size in enumerate(index.shape):
        src = sliced(src, d, 0, size)
    return line(src)


_SCATTER_SAMPLES = (
    Case(T(4), 0, ints_below(6, below=4), T(6)),
    Case(T(3, 4), 1, ints_below(3, 2, below=4), T(3, 2)),
    Case(T(3, 4), 0, ints_below(2, 3, below=3), T(5, 4)),
    Case(T(3), 0, ints_below(0, below=3), T(0)),
)
_SCATTER_ERRORS = (
    Case(
        T(3), 0, np.array([3]), T(1), match="index 3 is out of bounds for dimension 0 with size 3"
    ),
    Case(
        T(3),
        0,
        ints_below(2, below=3),
        T(1),
        match=r"Expected index \[2\] to be no larger than src \[1\]",
    ),
    Case(T(3, 2), 0, ints_below(2, below=3), T(2), match="same number of dimensions"),
)


@composite(
    ref=_ref_scatter,
    samples=(*_SCATTER_SAMPLES, Case(T(3, 4), 0, ints_below(2, 4, below=3), 1.5)),
    errors=_SCATTER_ERRORS,
)
def scatter(
    input: Expr,
    dim: int,
    index: Expr,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Expr:
    """`input` with elements of `src` written along an axis, one position per element.

    ``out[index[i][j]][j] = src[i][j]`` for dim 0. Of several writes to one place the last wins.
    """
    written = value if src is None else src
    if reduce is not None:
        names = {"add": "sum", "multiply": "prod"}
        if reduce not in names:
            raise RuntimeError(
                f"scatter: reduce argument must be either add or multiply (got {reduce!r})"
            )
        if not isinstance(written, Expr):
            written = full(written, index_of("scatter", index).shape, input.dtype)
        from symgrad.ops.grouped import scatter_reduce

        return scatter_reduce(input, dim, index, written, names[reduce])  # type: ignore[no-any-return]
    shape, at, per = per_element("scatter", input, dim, index_of("scatter", index))
    if not per.size:
        return input
    vector = source_of("scatter", input, per, written)
    made = put_last(line(input), (checked("scatter", shape, at, per),), vector)
    return reshape(made, input.shape)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, dim, index, src: _ref_scatter(x, dim, index, src, how=np.add),
    samples=_SCATTER_SAMPLES,
    errors=_SCATTER_ERRORS,
)
def scatter_add(input: Expr, dim: int, index: Expr, src: Expr) -> Expr:
    """`input` with elements of `src` added along an axis, one position per element."""
    shape, at, per = per_element("scatter_add", input, dim, index_of("scatter_add", index))
    if not per.size:
        return input
    vector = source_of("scatter_add", input, per, src)
    total = put_sum(vector, checked("scatter_add", shape, at, per), size=(input.size,))
    return input + reshape(total, input.shape)  # type: ignore[no-any-return]


# -- writing, one index per slice ---------------------------------------------------------


def _ref_index_add(
    x: np.ndarray, dim: int, index: Any, source: np.ndarray, *, alpha: Any = 1
) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    np.add.at(out, index, alpha * np.moveaxis(source, dim, 0))
    return np.moveaxis(out, 0, dim)


def slices_of(
    name: str, x: Expr, dim: int, index: Any, source: Expr, negative: bool
) -> tuple[int, Expr, Expr]:
    """The axis, its positions, and the source with the axis in front."""
    at = wrap_dim(name, dim, x.ndim)
    positions = _vector(name, index_of(name, index))
    source = source if source.ndim else reshape(source, (1,))
    if source.dtype is not x.dtype:
        raise RuntimeError(
            f"{name}(): self ({x.dtype!r}) and source ({source.dtype!r}) must have the same scalar type"
        )
    if source.ndim != max(x.ndim, 1) or positions.size != source.shape[at]:
        raise (IndexError if name == "index_copy" else RuntimeError)(
            f"{name}_(): Number of indices ({positions.size}) should be equal to source.size(dim): "
            f"({source.shape[min(at, source.ndim - 1)]}), for dim: {at}"
        )
    for d, (have, want) in enumerate(zip(source.shape, x.shape, strict=False)):
        if d != at and have != want:
            raise RuntimeError(
                f"{name}(): source tensor shape must match self tensor shape, excluding the specified "
                f"dimension. Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
            )
    size = x.shape[at] if x.ndim else 1
    error: type[Exception] = IndexError if negative else RuntimeError
    inside = bounded_positions(name, positions, size, at, negative, error)
    return at, inside, moved_axis(source, at, 0)


_SLICE_SAMPLES = (
    Case(T(4, 3), 0, ints_below(5, below=4), T(5, 3)),
    Case(T(2, 4), -1, ints_below(3, below=4), T(2, 3)),
    Case(T(4), 0, ints_below(0, below=4), T(0)),
)


@composite(
    ref=_ref_index_add,
    samples=(*_SLICE_SAMPLES, Case(T(4), 0, ints_below(3, below=4), T(3), alpha=2.5)),
    errors=(
        Case(T(3), 0, np.array([5]), T(1), match="index 5 is out of bounds"),
        Case(T(3), 0, np.array([0]), T(2), match=r"Number of indices \(1\) should be equal"),
    ),
)
def index_add(input: Expr, dim: int, index: Expr, source: Expr, *, alpha: Any = 1) -> Expr:
    """`input` with slices of `source` added at positions of an axis."""
    at, positions, slices = slices_of("index_add", input, dim, index, source, False)
    x = input if input.ndim else reshape(input, (1,))
    if not isinstance(alpha, Expr) and alpha == 1:
        scaled = slices
    else:
        scaled = slices * alpha
    total = moved_axis(put_sum(scaled, positions, size=(x.shape[at],)), 0, at)
    return input + reshape(total, input.shape)  # type: ignore[no-any-return]


def _ref_index_copy(x: np.ndarray, dim: int, index: Any, source: np.ndarray) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    for place, row in zip(index, np.moveaxis(source, dim, 0), strict=True):
        out[place] = row
    return np.moveaxis(out, 0, dim)


@composite(
    ref=_ref_index_copy,
    samples=_SLICE_SAMPLES,
    errors=(
        Case(T(3), 0, np.array([5]), T(1), match="index 5 is out of bounds", error=IndexError),
        Case(
            T(3),
            0,
            np.array([0]),
            T(2),
            match=r"Number of indices \(1\) should be equal",
            error=IndexError,
        ),
    ),
)
def index_copy(input: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    """`input` with slices of `source` written at positions of an axis; the last write wins."""
    at, positions, slices = slices_of("index_copy", input, dim, index, source, True)
    x = input if input.ndim else reshape(input, (1,))
    made = put_last(moved_axis(x, at, 0), (positions,), slices)
    return reshape(moved_axis(made, 0, at), input.shape)  # type: ignore[no-any-return]


def _ref_index_fill(x: np.ndarray, dim: int, index: Any, value: float) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    out[index] = value
    return np.moveaxis(out, 0, dim)


@composite(
    ref=_ref_index_fill,
    samples=(
        Case(T(4, 3), 0, ints_below(2, below=4), 1.5),
        Case(T(2, 4), 1, ints_below(3, below=4), -1.0),
    ),
    errors=(Case(T(3), 0, np.array([7]), 0.0, match="index 7 is out of bounds", error=IndexError),),
)
def index_fill(input: Expr, dim: int, index: Expr, value: Any) -> Expr:
    """`input` with slices at positions of an axis filled with one value."""
    at = wrap_dim("index_fill", dim, input.ndim)
    x = input if input.ndim else reshape(input, (1,))
    given = _vector("index_fill", index_of("index_fill", index))
    positions = bounded_positions("index_fill", given, x.shape[at], at)
    hit = put_any(full(True, positions.shape, dtypes.bool_), positions, size=(x.shape[at],))
    along = reshape(hit, tuple(s if d == at else 1 for d, s in enumerate(x.shape)))
    return reshape(masked_fill(x, along, value), input.shape)  # type: ignore[no-any-return]


def _ref_index_put(x: np.ndarray, indices: Any, values: Any, accumulate: bool = False) -> Any:
    out = np.array(x)
    if accumulate:
        np.add.at(out, tuple(indices), values)
    else:
        out[tuple(indices)] = values
    return out


@composite(
    ref=_ref_index_put,
    samples=(
        Case(T(4), (np.array([1, 3, 1]),), T(3)),
        Case(T(4, 3), (np.array([1, 3]), np.array([0, 0])), T(2), True),
        Case(T(4, 3), (np.array([1, 1]),), T(3), True),
        Case(T(2, 3), (np.array([[True, False, True], [False, False, True]]),), T(3)),
    ),
    errors=(
        Case(T(3, 4), (np.array([0, 1]),), T(3), match="shape mismatch: value tensor of shape"),
        Case(T(3), (np.array([4]),), T(1), match="index 4 is out of bounds", error=IndexError),
    ),
)
def index_put(input: Expr, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Expr:
    """``input[indices] = values`` as a new tensor, or with `accumulate` ``input[indices] += values``.

    With `accumulate` every write counts, in index order; without it the last one wins.
    """
    key = tuple(slice(None) if k is None else k for k in indices)
    if not accumulate:
        return setitem(input, key, values)
    places = reshape(known(np.arange(input.size)), input.shape)
    positions = getitem(places, key)
    added = values if isinstance(values, Expr) else filling(values, input.dtype)
    extra = max(added.ndim - positions.ndim, 0)
    if any(s != 1 for s in added.shape[:extra]):
        raise _mismatch(added.shape, positions.shape)
    added = reshape(added, added.shape[extra:])
    try:
        added = expand(cast_to(added, input.dtype), positions.shape)
    except RuntimeError:
        raise _mismatch(added.shape, positions.shape) from None
    total = put_sum(line(added), line(positions), size=(input.size,))
    return input + reshape(total, input.shape)  # type: ignore[no-any-return]


def _mismatch(have: tuple[int, ...], want: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(
        f"index_put: shape mismatch: value tensor of shape {list(have)} cannot be broadcast to indexing "
        f"result of shape {list(want)}"
    )


def _ref_put(x: np.ndarray, index: Any, source: Any, accumulate: bool = False) -> Any:
    out = np.array(x).reshape(-1)
    for place, value in zip(np.reshape(index, -1), np.reshape(source, -1), strict=True):
        out[place] = out[place] + value if accumulate else value
    return out.reshape(x.shape)


@composite(
    ref=_ref_put,
    samples=(
        Case(T(2, 3), ints_below(4, below=6, lo=-6), T(4)),
        Case(T(2, 3), ints_below(2, 2, below=6), T(2, 2), True),
    ),
    errors=(
        Case(T(3), np.array([3]), T(1), match="index 3 is out of", error=IndexError),
        Case(T(3), np.array([1]), T(2), match="same number of elements"),
    ),
)
def put(input: Expr, index: Expr, source: Expr, accumulate: bool = False) -> Expr:
    """`input` with elements of `source` written at positions of the flattened tensor."""
    index = index_of("put", index)
    if index.size != source.size:
        raise RuntimeError(
            "put_(): Expected source and index to have the same number of elements, but got source.numel() "
            f"= {source.size}, index.numel() = {index.size}"
        )
    positions = line(bounded_positions("put", index, input.size, 0))
    if accumulate:
        total = put_sum(line(source), positions, size=(input.size,))
        return input + reshape(total, input.shape)  # type: ignore[no-any-return]
    return reshape(put_last(line(input), (positions,), line(source)), input.shape)  # type: ignore[no-any-return]

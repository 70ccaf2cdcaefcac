"""Reading and writing at positions that are themselves values: the primitives.

`read` is a gather, fused into the loops that use it; `put_sum` is its adjoint: zeros with values
added at positions, in index order. `last_write` says which write to a position survives; with it
`put_last` is written, so derivatives of every order come from the two linear maps. `bounded_positions`
checks positions and counts negative ones from the end. torch's functions on top are in
`symgrad.ops.index` (square brackets) and `symgrad.ops.scatter`. Start reading at `read`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.family import Index, op
from symgrad.op import cast_to, input_node, value_of
from symgrad.ops.arithmetic import ge, keep, where
from symgrad.ops.create import iota
from symgrad.ops.movement import expand, reshape
from symgrad.sample import Case, T


def _indices(*shape: int, below: int) -> T:
    return T(*shape, dtype="int", lo=0, hi=below - 1)


def _linear(indices: Sequence[np.ndarray], size: tuple[int, ...]) -> np.ndarray:
    """Row-major positions of index tuples in an array of shape `size`."""
    total = np.zeros(indices[0].shape, np.int64)
    for i, n in zip(indices, size, strict=True):
        total = total * n + i
    return total.reshape(-1)


@op
class read(Index):
    """The elements of an array at integer positions of its leading axes.

    ``read(data, i0, ..., ik)``: the index arrays have one shape I, the result has shape I followed
    by the axes of `data` that are not indexed. Positions must lie in range.
    """

    reads = True
    public = False
    linear = "joint"
    samples = (
        Case(T(4), _indices(5, below=4)),
        Case(T(4, 3), _indices(2, 2, below=4)),
        Case(T(4, 3, 2), _indices(3, below=4), _indices(3, below=3)),
        Case(T(4, 3), _indices(below=4)),
        Case(T(4), _indices(0, below=4)),
    )

    def shape(data: Expr, *indices: Expr) -> tuple[int, ...]:
        return indices[0].shape + data.shape[len(indices) :]

    def ref(data: np.ndarray, *indices: np.ndarray) -> Any:
        return np.asarray(data)[indices]

    def sympy(sp: Any, data: Any, *indices: Any) -> Any:
        return sp.Function("read")(data, *indices)

    def adjoint(g: Expr, data: Expr, *indices: Expr) -> Any:
        size = data.shape[: len(indices)]
        nothing = (None,) * len(indices)
        if g.op is keep:
            # Positions that only writes under a false condition reach stay strong zeros.
            condition, inner = g.args
            reached = put_any(condition, *indices, size=size)
            return keep(reached, put_sum(keep(condition, inner), *indices, size=size)), *nothing
        return put_sum(g, *indices, size=size), *nothing


@op
class put_sum(Index):
    """Zeros with values added at integer positions of the leading axes, in index order.

    ``put_sum(values, i0, ..., ik, size=(n0, ..., nk))`` is the adjoint of `read`.
    """

    public = False
    writes = "add"
    linear = "joint"
    attributes = ("size",)
    samples = (
        Case(T(5), _indices(5, below=4), size=(4,)),
        Case(T(2, 2, 3), _indices(2, 2, below=4), size=(4,)),
        Case(T(3, 2), _indices(3, below=4), _indices(3, below=3), size=(4, 3)),
        Case(T(0), _indices(0, below=4), size=(4,)),
    )

    def shape(values: Expr, *indices: Expr, size: tuple[int, ...]) -> tuple[int, ...]:
        return size + values.shape[indices[0].ndim :]

    def ref(values: np.ndarray, *indices: np.ndarray, size: tuple[int, ...]) -> Any:
        rest = values.shape[indices[0].ndim :]
        positions = _linear(indices, size)
        width = int(np.prod(rest))
        if width > 1 and positions.size:
            # One flat add is several times faster than an add of rows; the order is the same.
            positions = (positions[:, None] * width + np.arange(width)).reshape(-1)
        out = np.zeros(size + rest, values.dtype)
        np.add.at(out.reshape(-1), positions, np.ascontiguousarray(values).reshape(-1))
        return out

    def sympy(sp: Any, values: Any, *indices: Any, size: tuple[int, ...]) -> Any:
        return sp.Function("put_sum")(values, *indices)

    def batched(count: int, values: Expr, *indices: Expr, size: tuple[int, ...]) -> Any:
        return put_sum(values, numbered(indices[0]), *indices, size=(count, *size))

    def adjoint(g: Expr, values: Expr, *indices: Expr, size: tuple[int, ...]) -> Any:
        return read(g, *indices), *((None,) * len(indices))


@op
class put_any(Index):
    """Whether a true value is written to a position of the leading axes."""

    public = False
    writes = "or"
    attributes = ("size",)
    nodiff = "boolean"
    samples = (Case(T(5, dtype="bool"), _indices(5, below=4), size=(4,)),)
    shape = put_sum.shape

    def batched(count: int, values: Expr, *indices: Expr, size: tuple[int, ...]) -> Any:
        return put_any(values, numbered(indices[0]), *indices, size=(count, *size))

    def ref(values: np.ndarray, *indices: np.ndarray, size: tuple[int, ...]) -> Any:
        rest = values.shape[indices[0].ndim :]
        positions = _linear(indices, size)
        out = np.zeros((int(np.prod(size)), *rest), bool)
        np.logical_or.at(out, positions, np.reshape(values, (positions.size, *rest)))
        return out.reshape(size + rest)


@op
class last_write(Index):
    """The number, in row-major order, of the last write to each position; -1 where there is none."""

    public = False
    writes = "last"
    initial = -1
    attributes = ("size",)
    nodiff = "integers"
    samples = (
        Case(_indices(5, below=4), size=(4,)),
        Case(_indices(6, below=2), _indices(6, below=3), size=(2, 3)),
    )

    def shape(*indices: Expr, size: tuple[int, ...]) -> tuple[int, ...]:
        return size

    def batched(count: int, *indices: Expr, size: tuple[int, ...]) -> Any:
        number = numbered(indices[0])
        winner = last_write(number, *indices, size=(count, *size))
        # Each batch element counts its own writes from 0.
        before = reshape(iota(count=count), (count, *(1,) * len(size))) * (
            number.size // max(count, 1)
        )
        return where(ge(winner, 0), winner - before, -1)

    def ref(*indices: np.ndarray, size: tuple[int, ...]) -> Any:
        positions = _linear(indices, size)
        out = np.full(int(np.prod(size)), -1, np.int64)
        np.maximum.at(out, positions, np.arange(positions.size))
        return out.reshape(size)


@op
class checked_positions(Index):
    """Positions below `size`, negative ones counted from the end, checked when they are computed.

    Positions that are known when a node is made are checked there (`bounded_positions`); this op
    stands for the check inside compiled functions.
    """

    public = False
    native = "positions"
    attributes = ("size", "dim", "negative")
    nodiff = "integers"
    samples = (Case(T(5, dtype="int", lo=-4, hi=3), size=4, dim=0, negative=True),)

    def shape(i: Expr, *, size: int, dim: int, negative: bool) -> tuple[int, ...]:
        return i.shape

    def batched(count: int, i: Expr, *, size: int, dim: int, negative: bool) -> Any:
        return checked_positions(i, size=size, dim=dim, negative=negative)

    def ref(i: np.ndarray, *, size: int, dim: int, negative: bool) -> Any:
        return in_bounds("index", i, size, dim, negative, IndexError)


# -- positions --------------------------------------------------------------------------


def numbered(index: Expr) -> Expr:
    """The position along the leading axis, in the shape of `index`."""
    first = reshape(iota(count=index.shape[0]), (index.shape[0], *(1,) * (index.ndim - 1)))
    return expand(first, index.shape)


def in_bounds(
    name: str,
    i: np.ndarray,
    size: int,
    dim: int,
    negative: bool,
    error: type[Exception],
) -> np.ndarray:
    """`i` with negative positions counted from the end.

    Raises
    ------
    IndexError or RuntimeError, as `error` says
        Naming the first position out of range, in torch's words.
    """
    if not i.size:
        return i
    lowest = -size if negative else 0
    low, high = int(i.min()), int(i.max())
    if low < lowest or high >= size:
        bad = i[(i < lowest) | (i >= size)].reshape(-1)[0]
        raise error(
            f"{name}: index {bad} is out of bounds for dimension {dim} with size {size}; "
            f"use positions from {lowest} to {size - 1}"
        )
    return i if low >= 0 else np.where(i < 0, i + size, i)


def known(array: Any) -> Expr:
    """A leaf for integers or booleans computed now."""
    array = np.asarray(array, order="C")
    return input_node(array.shape, dtypes.from_numpy(array.dtype), array)


def bounded_positions(
    name: str,
    i: Expr,
    size: int,
    dim: int,
    negative: bool = True,
    error: type[Exception] = IndexError,
) -> Expr:
    """`i` as int64 positions in range, checked now or, in a traced function, when it runs."""
    i = cast_to(i, dtypes.int64)
    value = value_of(i)
    if value is None:
        return checked_positions(i, size=size, dim=dim, negative=negative)  # type: ignore[no-any-return]
    wrapped = in_bounds(name, value, size, dim, negative, error)
    if wrapped is not value:
        return known(wrapped)
    # A bare leaf, so that a program using the positions does not depend on how they were made.
    return i if not i.args else known(value)


def put_last(x: Expr, indices: Sequence[Expr], values: Expr) -> Expr:
    """`x` with `values` written at positions of its leading axes; the last write to one wins.

    Only the surviving write has a derivative.
    """
    count = indices[0].size
    if count == 0:
        return x
    rest = x.shape[len(indices) :]
    winner = last_write(*indices, size=x.shape[: len(indices)])
    hit = ge(winner, 0)
    rows = reshape(values, (count, *rest))
    chosen = read(rows, where(hit, winner, 0))
    return where(reshape(hit, hit.shape + (1,) * len(rest)), chosen, x)  # type: ignore[no-any-return]

"""Diagonals and triangles: masks made from positions, and matrices made from diagonals.

A triangle is the matrix kept where a comparison of row and column holds; the comparison costs
two integers an element inside the loops that use it. Start reading at `tril`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Movement, composite, op
from symgrad.op import record
from symgrad.ops.arithmetic import eq, keep
from symgrad.ops.layout import axis_index
from symgrad.ops.movement import diagonal, embed, expand, permute, reshape, wrap_dim
from symgrad.ops.positions import known
from symgrad.sample import Case, T


@op
class from_diagonals(Movement):
    """Matrices in the last two axes that are zero but for some diagonals, each given whole.

    ``from_diagonals(*diagonals, size=(rows, columns), offsets=...)``: what does not lie on one of the
    diagonals is filled with zeros at the speed of memory, whatever the diagonals cost.
    """

    public = False
    pieces = True
    gaps = True
    attributes = ("size", "offsets")
    samples = (
        Case(T(3), T(2), size=(3, 3), offsets=(0, 1)),
        Case(T(2, 2), T(2, 2), size=(4, 2), offsets=(-2, 0)),
        Case(T(1), size=(2, 3), offsets=(2,)),
    )

    def __call__(self, *xs: Expr, size: tuple[int, int], offsets: tuple[int, ...]) -> Expr:
        shape = (*xs[0].shape[:-1], *size)
        return record(self, xs, (size, offsets), shape, xs[0].dtype)  # type: ignore[arg-type]

    def ref(*xs: np.ndarray, size: tuple[int, int], offsets: tuple[int, ...]) -> Any:
        out = np.zeros((*xs[0].shape[:-1], *size), xs[0].dtype)
        for x, offset in zip(xs, offsets, strict=True):
            at = np.arange(x.shape[-1])
            out[..., at + max(-offset, 0), at + max(offset, 0)] = x
        return out

    def sympy(sp: Any, *xs: Any, **attrs: Any) -> Any:
        return sp.Function("from_diagonals")(*xs)

    def batched(count: int, *xs: Expr, size: Any, offsets: Any) -> Any:
        return from_diagonals(*xs, size=size, offsets=offsets)

    def adjoint(g: Expr, *xs: Expr, size: Any, offsets: Any) -> Any:
        return tuple(diagonal(g, offset, g.ndim - 2, g.ndim - 1) for offset in offsets)

    def place(
        number: int, i: Sequence[Any], xs: Sequence[Expr], *, size: Any, offsets: Any
    ) -> list[Any]:
        offset = offsets[number]
        return [*i[:-1], i[-1] + max(-offset, 0), i[-1] + max(offset, 0)]


def diagonal_embed(g: Expr, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Expr:
    """Zeros of `shape` with `g`'s last axis on a diagonal: the adjoint of `diagonal`."""
    rows = shape[dim1]
    start = max(-offset, 0)
    padded = embed(
        g,
        size=(*g.shape[:-1], rows),
        starts=(0,) * (g.ndim - 1) + (start,),
        steps=(1,) * g.ndim,
    )
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    spread = reshape(padded, (*padded.shape, 1))
    order = [0] * len(shape)
    for place, d in enumerate([*rest, dim1, dim2]):
        order[d] = place
    placed = expand(permute(spread, tuple(order)), shape)
    hit = eq(axis_index(shape, dim1) + offset, axis_index(shape, dim2))
    return keep(hit, placed)  # type: ignore[no-any-return]


def _rows_and_columns(name: str, x: Expr) -> tuple[Expr, Expr]:
    if x.ndim < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions (got {x.ndim})")
    return axis_index(x.shape, x.ndim - 2), axis_index(x.shape, x.ndim - 1)


@composite(
    ref=np.tril,
    samples=(Case(T(3, 4)), Case(T(2, 3, 3), 1), Case(T(3, 2), -1)),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def tril(input: Expr, diagonal: int = 0) -> Expr:
    """The lower triangle of matrices: zeros above the given diagonal."""
    row, column = _rows_and_columns("tril", input)
    return keep(column <= row + diagonal, input)  # type: ignore[no-any-return]


@composite(
    ref=np.triu,
    samples=(Case(T(3, 4)), Case(T(2, 3, 3), 1), Case(T(3, 2), -1)),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def triu(input: Expr, diagonal: int = 0) -> Expr:
    """The upper triangle of matrices: zeros below the given diagonal."""
    row, column = _rows_and_columns("triu", input)
    return keep(column >= row + diagonal, input)  # type: ignore[no-any-return]


def _triangle(name: str, places: Any, row: int, col: int) -> np.ndarray:
    if row < 0 or col < 0:
        raise RuntimeError(f"{name}: row and col must be non-negative (got {row}, {col})")
    return np.stack(places).astype(np.int64)


@composite(
    ref=lambda row, col, offset=0: np.stack(np.tril_indices(row, offset, col)),
    samples=(Case(3, 4), Case(3, 3, -1), Case(2, 4, 1)),
    errors=(Case(-1, 2, match="must be non-negative"),),
)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: DType | None = None) -> Expr:
    """Rows and columns of the lower triangle's elements, row by row, as a (2, n) tensor."""
    places = _triangle("tril_indices", np.tril_indices(max(row, 0), offset, max(col, 0)), row, col)
    return known(places.astype(dtypes.as_dtype(dtype or dtypes.int64).numpy))


@composite(
    ref=lambda row, col, offset=0: np.stack(np.triu_indices(row, offset, col)),
    samples=(Case(3, 4), Case(3, 3, -1), Case(2, 4, 1)),
    errors=(Case(2, -1, match="must be non-negative"),),
)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: DType | None = None) -> Expr:
    """Rows and columns of the upper triangle's elements, row by row, as a (2, n) tensor."""
    places = _triangle("triu_indices", np.triu_indices(max(row, 0), offset, max(col, 0)), row, col)
    return known(places.astype(dtypes.as_dtype(dtype or dtypes.int64).numpy))


def _ref_diag_embed(x: np.ndarray, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    n = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], n, n), x.dtype)
    at = np.arange(x.shape[-1])
    out[..., at + max(-offset, 0), at + max(offset, 0)] = x
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


@composite(
    ref=_ref_diag_embed,
    samples=(Case(T(3)), Case(T(2, 3), 1), Case(T(2, 3), -1, 0, 2), Case(T(0))),
    errors=(
        Case(T(3), 0, 0, 0, match="diagonal dimensions cannot be identical"),
        Case(T(), match="cannot be applied to a 0-dim tensor|at least 1"),
    ),
)
def diag_embed(input: Expr, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Expr:
    """Zeros with the last axis of `input` on a diagonal of two new axes."""
    if input.ndim == 0:
        raise RuntimeError(
            "diag_embed: cannot be applied to a 0-dim tensor; needs at least 1 dimension"
        )
    a, c = (
        wrap_dim("diag_embed", dim1, input.ndim + 1),
        wrap_dim("diag_embed", dim2, input.ndim + 1),
    )
    if a == c:
        raise RuntimeError(f"diag_embed: diagonal dimensions cannot be identical {dim1}, {dim2}")
    n = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for d in sorted((a, c)):
        shape.insert(d, n)
    return diagonal_embed(input, tuple(shape), offset, a, c)


@composite(
    ref=np.diag,
    samples=(Case(T(3)), Case(T(2), 1), Case(T(3, 4)), Case(T(3, 4), -1)),
    errors=(Case(T(2, 2, 2), match="Supports 1D or 2D tensors"),),
)
def diag(input: Expr, diagonal: int = 0) -> Expr:
    """A matrix with a vector on its diagonal, or the diagonal of a matrix."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)  # type: ignore[no-any-return]
    if input.ndim == 2:
        return _diagonal_of(input, diagonal)
    raise RuntimeError(
        f"diag: Supports 1D or 2D tensors. Got {input.ndim}D; use diagonal or diag_embed"
    )


def _diagonal_of(x: Expr, offset: int) -> Expr:
    return diagonal(x, offset)  # type: ignore[no-any-return]


@composite(ref=np.diagflat, samples=(Case(T(3)), Case(T(2, 2), 1), Case(T())))
def diagflat(input: Expr, offset: int = 0) -> Expr:
    """A matrix with all elements of `input` on its diagonal."""
    return diag_embed(reshape(input, (input.size,)), offset)  # type: ignore[no-any-return]

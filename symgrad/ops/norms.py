"""Norms of vectors and matrices under torch.linalg's names, and the condition number.

Vector norms are `symgrad.ops.statistics.norm_over`; matrix norms are norms of rows and columns or
of singular values. Start reading at `linalg_norm`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.op import cast_to
from symgrad.ops.choice import abs
from symgrad.ops.extrema import amax, amin
from symgrad.ops.linalg import linalg_inv, matrix, square
from symgrad.ops.movement import permute, reshape, wrap_dim
from symgrad.ops.reduce import Dims, keep_dims, numpy_axis, part, sum
from symgrad.ops.singular import linalg_svdvals
from symgrad.ops.statistics import norm_over
from symgrad.sample import Case, T


def _converted(x: Expr, dtype: DType | None) -> Expr:
    return x if dtype is None else cast_to(x, dtypes.as_dtype(dtype))


def _ref_vector_norm(
    x: np.ndarray, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if dim is None:
        result = np.linalg.norm(x.reshape(-1), ord)
        return np.reshape(result, (1,) * x.ndim) if keepdim else result
    axis = numpy_axis(dim)
    if isinstance(axis, tuple):
        return np.sum(np.abs(x) ** ord, axis=axis, keepdims=keepdim) ** (1 / ord)
    return np.linalg.norm(x, ord, axis=axis, keepdims=keepdim)


@composite(
    ref=_ref_vector_norm,
    samples=(
        Case(T(3, 4)),
        Case(T(3, 4), 1, 1, True),
        Case(T(3, 4), math.inf, 0),
        Case(T(2, 3, 4), 3, (0, 2)),
        Case(T(4), 0.5),
    ),
    errors=(
        Case(T(3, dtype="int"), match="Expected a floating point or complex tensor"),
        Case(T(0), math.inf, match="does not have an identity"),
    ),
)
def linalg_vector_norm(
    x: Expr, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """The norm of order `ord` over the given dimensions, or all; its derivative at 0 is 0."""
    return norm_over("linalg.vector_norm", _converted(x, dtype), float(ord), dim, keepdim)


def _last_two(name: str, x: Expr, dim: Any) -> tuple[int, int]:
    if x.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor A must have at least 2 dimensions (got shape {x.shape}); use "
            "vector_norm"
        )
    if len(dim) != 2:
        raise RuntimeError(f"{name}: dim must be a 2-tuple (got {dim}); use vector_norm")
    rows, columns = (wrap_dim(name, d, x.ndim) for d in dim)
    if rows == columns:
        raise RuntimeError(f"{name}: dims must be different (got {dim}); name two dimensions")
    return rows, columns


def _ref_matrix_norm(
    a: np.ndarray,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    return np.linalg.norm(a, ord, axis=tuple(dim), keepdims=keepdim)


@composite(
    ref=_ref_matrix_norm,
    samples=(
        Case(T(3, 4)),
        Case(T(2, 3, 4), "nuc"),
        Case(T(3, 4), math.inf),
        Case(T(3, 4), -1, keepdim=True),
        Case(T(3, 2, 4), 2, (0, 2)),
        Case(T(3, 3), -2),
    ),
    errors=(
        Case(T(3), match="must have at least 2 dimensions"),
        Case(T(3, 3), "x", match="Order x not supported"),
    ),
)
def linalg_matrix_norm(
    A: Expr,
    ord: float | str = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Expr:
    """Norms of matrices: Frobenius, nuclear, and of order ±1, ±2, ±inf."""
    name = "linalg.matrix_norm"
    x = _converted(A, dtype)
    rows, columns = _last_two(name, x, dim)
    if ord == "fro":
        return norm_over(name, x, 2.0, (rows, columns), keepdim)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(
            f"{name}: Order {ord} not supported (got {ord!r}); use 'fro', 'nuc', ±1, ±2 or ±inf"
        )
    rest = [d for d in range(x.ndim) if d not in (rows, columns)]
    matrices = permute(x, (*rest, rows, columns))
    matrix(name, matrices)
    if ord in ("nuc", 2, -2):
        values = linalg_svdvals(matrices)
        last = values.ndim - 1
        if ord == "nuc":
            result = sum(values, -1)
        else:
            result = part(values, last, 0 if ord == 2 else values.shape[-1] - 1, 1)
            result = reshape(result, values.shape[:-1])
    else:
        sums = sum(abs(matrices), -2 if ord in (1, -1) else -1)
        result = (amax if float(ord) > 0 else amin)(sums, -1)
    return keep_dims(result, x.shape, (rows, columns)) if keepdim else result


def nuclear_norm(x: Expr, dim: Dims, keepdim: bool) -> Expr:
    """Sum of the singular values of matrices."""
    return linalg_matrix_norm(x, "nuc", (-2, -1) if dim is None else dim, keepdim)


def _ref_norm(
    x: np.ndarray, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    axis = numpy_axis(dim)
    if ord is None and axis is None:
        result = np.linalg.norm(x.reshape(-1))
        return np.reshape(result, (1,) * x.ndim) if keepdim else result
    return np.linalg.norm(x, ord, axis=axis, keepdims=keepdim)


@composite(
    ref=_ref_norm,
    samples=(
        Case(T(3)),
        Case(T(2, 3, 4)),
        Case(T(3, 4), 1),
        Case(T(3, 4), None, 1),
        Case(T(3, 4), 3, 0, True),
        Case(T(2, 3, 4), "fro", (1, 2)),
    ),
    errors=(
        Case(T(2, 2, 2), 2, match="the input must be 1D or 2D. Got 3D"),
        Case(T(2, 2, 2), 2, (0, 1, 2), match="it must be of length 1 or 2"),
    ),
)
def linalg_norm(
    input: Expr,
    ord: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Expr:
    """Vector norm over one dimension (or all, without `ord`), matrix norm over two."""
    x = _converted(input, dtype)
    dims = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
    if ord is None:
        return norm_over("linalg.norm", x, 2.0, dims, keepdim)
    if dims is not None and len(dims) not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is specified, it must be of length 1 or 2. Got "
            f"{dims} (shape {x.shape}); use vector_norm"
        )
    if dims is None and x.ndim not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{x.ndim}D (shape {x.shape}); name dimensions"
        )
    if (x.ndim if dims is None else len(dims)) == 2:
        return linalg_matrix_norm(x, ord, (-2, -1) if dims is None else dims, keepdim)
    if isinstance(ord, str):
        raise RuntimeError(
            f"linalg.norm: Order {ord} is a matrix norm (got shape {x.shape}, dim {dim}); name two "
            "dimensions"
        )
    return norm_over("linalg.norm", x, float(ord), dims, keepdim)


@composite(
    ref=np.linalg.cond,
    samples=(Case(T(3, 3)), Case(T(4, 2)), Case(T(3, 3), "fro"), Case(T(3, 3), 1)),
    errors=(Case(T(2, 3), 1, match="must be batches of square matrices"),),
)
def linalg_cond(A: Expr, p: float | str | None = None) -> Expr:
    """Condition number: the largest by the smallest singular value, or norm times inverse's norm."""
    matrix("linalg.cond", A)
    if p in (None, 2, -2):
        values = linalg_svdvals(A)
        last = values.ndim - 1
        most = reshape(part(values, last, 0, 1), values.shape[:-1])
        least = reshape(part(values, last, values.shape[-1] - 1, 1), values.shape[:-1])
        return least / most if p == -2 else most / least
    square("linalg.cond", A)
    return linalg_matrix_norm(A, p) * linalg_matrix_norm(linalg_inv(A), p)

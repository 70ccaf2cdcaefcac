"""LU decomposition with partial pivoting, and solving with its factors.

`lu_packed` has L and U in one matrix, as LAPACK keeps them; row exchanges are `lu_pivots`, which
no small change of the matrix moves. Start reading at `lu_packed`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.op import cast_to
from symgrad.ops.arithmetic import eq
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.layout import axis_index
from symgrad.ops.linalg import (
    as_matrices,
    corner,
    dominant,
    identity_like,
    many_columns,
    matrix,
    square,
    triangle,
    triangular,
)
from symgrad.ops.movement import expand, join_axis, reshape
from symgrad.sample import Case, T


class LU(NamedTuple):
    """A = P L U."""

    P: Expr
    L: Expr
    U: Expr


class LUFactor(NamedTuple):
    """L and U in one matrix, and row exchanges counted from 1."""

    LU: Expr
    pivots: Expr


def _factored(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.linalg import get_lapack_funcs

    m, n = a.shape[-2:]
    k = min(m, n)
    stack = as_matrices(a)
    if not a.size:
        return a.copy(), np.zeros((*a.shape[:-2], k), np.int32)
    (factor,) = get_lapack_funcs(("getrf",), (stack,))
    made = [factor(x)[:2] for x in stack]
    pivots = np.asarray([p for _, p in made], np.int32) + np.int32(1)
    return np.asarray([x for x, _ in made]).reshape(a.shape), pivots.reshape(*a.shape[:-2], k)


def _exchanges(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The order of rows after the exchanges."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    order = np.tile(np.arange(rows, dtype=np.int64), (len(flat), 1))
    for perm, swaps in zip(order, flat, strict=True):
        for i, j in enumerate(swaps):
            perm[[i, j - 1]] = perm[[j - 1, i]]
    return order.reshape(*pivots.shape[:-1], rows)


@op
class lu_pivots(Library):
    """Row exchanges of the LU decomposition, counted from 1, as int32."""

    public = False
    native = "pivots"
    eager_check = False
    nodiff = "piecewise constant"
    samples = (Case(T(3, 3)), Case(T(2, 4, 3)), Case(T(2, 3)))

    def result_dtype(self, *args: Expr, **attrs: Any) -> DType:
        return dtypes.int32

    def shape(a: Expr) -> tuple[int, ...]:
        return (*a.shape[:-2], min(a.shape[-2:]))

    def ref(a: np.ndarray) -> np.ndarray:
        return _factored(a)[1]


@op
class row_order(Library):
    """The order of `rows` rows that exchanges lead to, as int64."""

    public = False
    eager_check = False
    attributes = ("rows",)
    nodiff = "does not depend on a floating tensor"
    samples = (Case(T(3, lo=1, hi=3, dtype="int"), rows=3),)

    def result_dtype(self, *args: Expr, **attrs: Any) -> DType:
        return dtypes.int64

    def shape(pivots: Expr, *, rows: int) -> tuple[int, ...]:
        return (*pivots.shape[:-1], rows)

    def ref(pivots: np.ndarray, *, rows: int) -> np.ndarray:
        return _exchanges(pivots, rows)


def permutation(pivots: Expr, rows: int, dtype: DType) -> Expr:
    """P with A = P L U, from the exchanges."""
    order = row_order(pivots, rows=rows)
    shape = (*order.shape, rows)
    into = expand(reshape(order, (*order.shape[:-1], 1, rows)), shape)
    return cast_to(eq(into, axis_index(shape, len(shape) - 2)), dtype)


@op
class lu_packed(Library):
    """L below the diagonal and U on and above it; the unit diagonal of L is not kept."""

    public = False
    native = "lu"
    eager_check = False
    samples = (
        Case(T(3, 3, make=dominant)),
        Case(T(2, 3, 3, make=dominant)),
        Case(T(4, 2)),
        Case(T(2, 4)),
    )

    def shape(a: Expr) -> tuple[int, ...]:
        return a.shape

    def ref(a: np.ndarray) -> np.ndarray:
        return _factored(a)[0]

    def vjp(g: Expr, out: Expr, a: Expr) -> Any:
        m, n = a.shape[-2:]
        k = min(m, n)
        low, high = unit_lower(corner(out, 0, 0, k, k)), triangle(corner(out, 0, 0, k, k), True)
        inner = corner(g, 0, 0, k, k)
        g_low, g_high = triangle(inner, False, 1), triangle(inner, True)
        last = a.ndim - 1
        if n > k:
            # A wide matrix: what stands right of the square is L^-1 P' A2.
            rest = triangular(flipped(low), corner(g, 0, k, k, n - k), upper=True, unit=True)
            g_low = g_low - triangle(matmul(rest, flipped(corner(out, 0, k, k, n - k))), False, 1)
        if m > k:
            # A tall matrix: what stands below the square is (P' A)2 U^-1.
            below = corner(g, k, 0, m - k, k)
            rest = _right_solved(high, below)
            g_high = g_high - triangle(matmul(flipped(corner(out, k, 0, m - k, k)), rest), True)
        centre = triangle(matmul(flipped(low), g_low), False, 1)
        centre = centre + triangle(matmul(g_high, flipped(high)), True)
        first = triangular(flipped(low), centre, upper=True, unit=True)
        result = _right_solved(high, first)
        if n > k:
            result = join_axis(result, rest, dim=last)
        if m > k:
            result = join_axis(result, rest, dim=last - 1)
        return (matmul(permutation(lu_pivots(a), m, a.dtype), result),)


def _right_solved(high: Expr, x: Expr) -> Expr:
    """x U'^-1 for upper triangular U."""
    return flipped(triangular(high, flipped(x), upper=True, unit=False))


def unit_lower(x: Expr) -> Expr:
    """The part below the diagonal, with ones on it."""
    return triangle(x, False, 1) + identity_like(x)


def _ref_lu(a: np.ndarray, *, pivot: bool = True) -> Any:
    from scipy.linalg import lu

    return lu(a)


def _needs_pivots(name: str, pivot: bool) -> None:
    if not pivot:
        raise RuntimeError(
            f"{name}: LU without pivoting is not implemented on the CPU (got pivot=False); use "
            "pivot=True"
        )


@composite(
    ref=_ref_lu,
    samples=(Case(T(3, 3)), Case(T(4, 2)), Case(T(2, 4)), Case(T(2, 3, 3))),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_lu(A: Expr, *, pivot: bool = True) -> LU:
    """P, L and U with A = P L U."""
    matrix("linalg.lu", A)
    _needs_pivots("linalg.lu", pivot)
    m, n = A.shape[-2:]
    k = min(m, n)
    packed = lu_packed(A)
    low = triangle(corner(packed, 0, 0, m, k), False, 1)
    high = triangle(corner(packed, 0, 0, k, n), True)
    return LU(permutation(lu_pivots(A), m, A.dtype), low + identity_like(low), high)


def _ref_lu_factor(a: np.ndarray, *, pivot: bool = True) -> Any:
    return _factored(a)


@composite(
    ref=_ref_lu_factor,
    samples=(Case(T(3, 3)), Case(T(4, 2)), Case(T(2, 3, 3))),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_lu_factor(A: Expr, *, pivot: bool = True) -> LUFactor:
    """L and U in one matrix, and the row exchanges counted from 1."""
    matrix("linalg.lu_factor", A)
    _needs_pivots("linalg.lu_factor", pivot)
    return LUFactor(lu_packed(A), lu_pivots(A))


def _ref_lu_solve(
    packed: np.ndarray,
    pivots: np.ndarray,
    b: np.ndarray,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Any:
    n = packed.shape[-1]
    low = np.tril(packed, -1) + np.eye(n, dtype=packed.dtype)
    whole = low @ np.triu(packed)
    a = np.empty_like(whole)
    np.put_along_axis(a, _exchanges(pivots, n)[..., None], whole, axis=-2)
    a = np.swapaxes(a, -1, -2) if adjoint else a
    if left:
        return np.linalg.solve(a, b)
    return np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)


_ORDER = T(3, make=lambda rng, shape: np.array([2, 3, 3], np.int32))


@composite(
    ref=_ref_lu_solve,
    samples=(
        Case(T(3, 3, make=dominant), _ORDER, T(3, 2)),
        Case(T(3, 3, make=dominant), _ORDER, T(3, 2), adjoint=True),
        Case(T(3, 3, make=dominant), _ORDER, T(2, 3), left=False),
    ),
    errors=(Case(T(2, 3), _ORDER, T(3, 2), match="must be batches of square matrices"),),
)
def linalg_lu_solve(
    LU: Expr, pivots: Expr, B: Expr, *, left: bool = True, adjoint: bool = False
) -> Expr:
    """Solution of A X = B from the factors of A; of X A = B, or with A', on request."""
    name = "linalg.lu_solve"
    square(name, LU)
    matrix(name, B)
    if not left:
        return flipped(linalg_lu_solve(LU, pivots, flipped(B), adjoint=not adjoint))
    order = permutation(pivots, LU.shape[-1], LU.dtype)

    def lower(a: Expr, b: Expr) -> Expr:
        return triangular(a, b, upper=False, unit=True)

    def upper(a: Expr, b: Expr) -> Expr:
        return triangular(a, b, upper=True, unit=False)

    def lower_across(a: Expr, b: Expr) -> Expr:
        return triangular(flipped(a), b, upper=True, unit=True)

    def upper_across(a: Expr, b: Expr) -> Expr:
        return triangular(flipped(a), b, upper=False, unit=False)

    if adjoint:
        first = many_columns(name, upper_across, LU, B)
        return matmul(order, many_columns(name, lower_across, LU, first))
    first = many_columns(name, lower, LU, matmul(flipped(order), B))
    return many_columns(name, upper, LU, first)

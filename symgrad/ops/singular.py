"""Singular values, and what is made of them: pseudoinverses, ranks, least squares.

`svd_packed` packs its three results in one array; the functions with torch's names slice it. Where
singular values coincide, derivatives that depend on their difference count as 0. Start reading at
`svd_packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.errors import LinAlgError
from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.op import cast_to, constant
from symgrad.ops.alias import detach
from symgrad.ops.arithmetic import keep, ne, where
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.decompositions import gaps, linalg_qr, on_diagonal, scaled_columns, scaled_rows
from symgrad.ops.linalg import (
    corner,
    dominant,
    floating,
    identity_like,
    linalg_solve_triangular,
    matrix,
)
from symgrad.ops.movement import expand, full, reshape
from symgrad.ops.reduce import part, sum
from symgrad.sample import Case, T

# -- singular values --------------------------------------------------------------------


class SVD(NamedTuple):
    """Left singular vectors in columns, singular values, right singular vectors in rows."""

    U: Expr
    S: Expr
    Vh: Expr


class SVDColumns(NamedTuple):
    """Left singular vectors, singular values, right singular vectors, vectors in columns."""

    U: Expr
    S: Expr
    V: Expr


def _ref_svd_packed(a: np.ndarray, *, full: bool) -> np.ndarray:
    try:
        u, s, vh = np.linalg.svd(a, full_matrices=full)
    except np.linalg.LinAlgError as error:
        finite = bool(np.isfinite(a).all())
        why = (
            "is ill-conditioned or has too many repeated singular values."
            if finite
            else "contained non-finite values."
        )
        raise LinAlgError(
            f"linalg.svd: The algorithm failed to converge because the input matrix {why}"
        ) from error
    parts = (u, s[..., None], vh)
    flat = [m.reshape(*a.shape[:-2], m.shape[-2] * m.shape[-1]) for m in parts]
    return np.concatenate(flat, axis=-1)


def _svd_sizes(shape: tuple[int, ...], full: bool) -> tuple[int, int, int, int, int]:
    m, n = shape[-2:]
    k = min(m, n)
    return m, n, k, m if full else k, n if full else k


@op
class svd_packed(Library):
    """U, the singular values and V', one after the other along the last axis.

    The derivative is that of Townsend ("Differentiating the singular value decomposition", 2016).
    Singular vectors beyond the values (`full`) are a basis of what is orthogonal to A; what depends
    on the space alone has a derivative through them.
    """

    public = False
    native = "svd"
    attributes = ("full",)
    ref = _ref_svd_packed
    samples = (Case(T(3, 3), full=False), Case(T(4, 2), full=False), Case(T(2, 2, 3), full=False))

    def shape(a: Expr, *, full: bool) -> tuple[int, ...]:
        m, n, k, p, q = _svd_sizes(a.shape, full)
        return (*a.shape[:-2], m * p + k + q * n)

    def vjp(g: Expr, out: Expr, a: Expr, *, full: bool) -> Any:
        m, n, k, _, _ = _svd_sizes(a.shape, full)
        u, s, vh = _svd_parts(out, a.shape, full)
        g_u, g_s, g_vh = _svd_parts(g, a.shape, full)
        inverse = keep(ne(s, 0), 1.0 / where(ne(s, 0), s, 1.0))
        beyond = None
        if full and m > k:
            outer, g_outer = corner(u, 0, k, m, m - k), corner(g_u, 0, k, m, m - k)
            u, g_u = corner(u, 0, 0, m, k), corner(g_u, 0, 0, m, k)
            turned = scaled_columns(matmul(flipped(g_outer), u), inverse)
            beyond = -matmul(outer, matmul(turned, vh))
        if full and n > k:
            outer, g_outer = corner(vh, k, 0, n - k, n), corner(g_vh, k, 0, n - k, n)
            vh, g_vh = corner(vh, 0, 0, k, n), corner(g_vh, 0, 0, k, n)
            turned = scaled_rows(matmul(vh, flipped(g_outer)), inverse)
            beyond = -matmul(u, matmul(turned, outer))
        g_v, v = flipped(g_vh), flipped(vh)
        squares, apart = gaps(s * s, sum(s * s, -1))
        left = matmul(flipped(u), g_u)
        right = matmul(vh, g_v)
        turned_u = keep(apart, 0.5 * (left - flipped(left)) / squares)
        turned_v = keep(apart, 0.5 * (right - flipped(right)) / squares)
        twice = 2.0 * (scaled_columns(turned_u, s) + scaled_rows(turned_v, s))
        result = matmul(matmul(u, twice + on_diagonal(g_s)), vh)
        if beyond is not None:
            result = result + beyond
        if m > k:
            outside = g_u - matmul(u, left)
            result = result + matmul(scaled_columns(outside, inverse), vh)
        if n > k:
            outside = g_v - matmul(v, right)
            result = result + matmul(u, flipped(scaled_columns(outside, inverse)))
        return (result,)


def _svd_parts(packed: Expr, shape: tuple[int, ...], full: bool) -> SVD:
    m, n, k, p, q = _svd_sizes(shape, full)
    last = packed.ndim - 1
    batch = packed.shape[:-1]
    u = reshape(part(packed, last, 0, m * p), (*batch, m, p))
    s = part(packed, last, m * p, k)
    return SVD(u, s, reshape(part(packed, last, m * p + k, q * n), (*batch, q, n)))


_SVD_SAMPLES = (
    Case(T(3, 3)),
    Case(T(4, 2)),
    Case(T(2, 2, 3)),
)


@composite(
    ref=lambda a, full_matrices=True, driver=None: tuple(np.linalg.svd(a, full_matrices)),
    samples=(
        Case(T(3, 3), False),
        Case(T(4, 2), False),
        Case(T(2, 2, 3), full_matrices=False),
        Case(T(3, 2)),
    ),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_svd(A: Expr, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """Singular value decomposition A = U diag(S) Vh."""
    matrix("linalg.svd", A)
    return _svd_parts(svd_packed(A, full=full_matrices), A.shape, full_matrices)


def _ref_svd(a: np.ndarray, some: bool = True, compute_uv: bool = True) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=not some)
    return u, s, np.swapaxes(vh, -1, -2)


@composite(ref=_ref_svd, samples=(Case(T(3, 3)), Case(T(4, 2)), Case(T(2, 2, 3))))
def svd(input: Expr, some: bool = True, compute_uv: bool = True) -> SVDColumns:
    """Singular value decomposition A = U diag(S) V'."""
    u, s, vh = linalg_svd(input, not some)
    if not compute_uv:
        return SVDColumns(u * 0.0, s, flipped(vh) * 0.0)
    return SVDColumns(u, s, flipped(vh))


@composite(
    ref=lambda a, driver=None: np.linalg.svd(a, compute_uv=False),
    samples=_SVD_SAMPLES,
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_svdvals(A: Expr, *, driver: str | None = None) -> Expr:
    """Singular values, in descending order."""
    matrix("linalg.svdvals", A)
    return _svd_parts(svd_packed(A, full=False), A.shape, False).S


# -- pseudoinverse and least squares ----------------------------------------------------


def _ref_pseudoinverse(a: np.ndarray, rtol: np.ndarray, atol: np.ndarray) -> np.ndarray:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    largest = s.max(axis=-1, initial=0.0, keepdims=True)
    used = s > np.maximum(rtol[..., None] * largest, atol[..., None])
    inverse = np.where(used, 1.0 / np.where(used, s, 1.0), 0.0)
    product = (np.swapaxes(vh, -1, -2) * inverse[..., None, :]) @ np.swapaxes(u, -1, -2)
    return np.asarray(product).astype(a.dtype)


@op
class pseudoinverse(Library):
    """Moore-Penrose inverse: arguments A, and per matrix a relative and an absolute bound.

    Singular values below either bound count as 0. The derivative is that at constant rank (Golub
    and Pereyra 1973).
    """

    public = False
    eager_check = False
    ref = _ref_pseudoinverse
    samples = (
        Case(T(3, 3, make=dominant), T(lo=0.0, hi=0.0), T(lo=0.0, hi=0.0)),
        Case(T(4, 2), T(lo=0.0, hi=0.0), T(lo=0.0, hi=0.0)),
        Case(T(2, 2, 3), T(2, lo=0.0, hi=0.0), T(2, lo=0.0, hi=0.0)),
    )

    def shape(a: Expr, rtol: Expr, atol: Expr) -> tuple[int, ...]:
        return (*a.shape[:-2], a.shape[-1], a.shape[-2])

    def vjp(g: Expr, out: Expr, a: Expr, rtol: Expr, atol: Expr) -> Any:
        across, g_across = flipped(out), flipped(g)
        onto = matmul(a, out)
        left = identity_like(onto) - onto
        within = matmul(out, a)
        right = identity_like(within) - within
        result = -matmul(across, matmul(g, across))
        result = result + matmul(left, matmul(g_across, matmul(out, across)))
        return result + matmul(across, matmul(out, matmul(g_across, right))), None, None


@composite(
    ref=lambda a, **k: np.linalg.pinv(a),
    samples=(Case(T(3, 3, make=dominant)), Case(T(4, 2)), Case(T(2, 2, 3))),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
    aliases=("pinverse",),
)
def linalg_pinv(
    A: Expr, rcond: float | None = None, hermitian: bool = False, *,
    atol: float | Expr | None = None, rtol: float | Expr | None = None,
) -> Expr:  # fmt: skip
    """Moore-Penrose inverse; singular values below max(atol, rtol * largest) count as 0."""
    matrix("linalg.pinv", A)
    relative = rcond if rtol is None else rtol
    if relative is None:
        eps = float(np.finfo(A.dtype.numpy).eps)
        relative = 0.0 if atol is not None else eps * max(A.shape[-2:])
    batch = A.shape[:-2]
    bounds = [
        expand(cast_to(b, A.dtype) if isinstance(b, Expr) else constant(float(b), A.dtype), batch)
        for b in (relative, 0.0 if atol is None else atol)
    ]
    return pseudoinverse(A, *bounds)


class LeastSquares(NamedTuple):
    """Solution of a least squares problem, sums of squared residuals, ranks, singular values."""

    solution: Expr
    residuals: Expr
    rank: Expr
    singular_values: Expr


def _ref_lstsq(a: np.ndarray, b: np.ndarray, rcond: Any = None, *, driver: Any = None) -> Any:
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    right = b[..., None] if vector else b
    x = np.linalg.pinv(a) @ right
    none = np.zeros(0, a.dtype)
    residuals, rank, values = none, np.asarray(np.linalg.matrix_rank(a)), none
    if driver in ("gels", "gelsd", "gelss") and a.shape[-2] > a.shape[-1]:
        residuals = np.sum((a @ x - right) ** 2, axis=-2)
    if driver == "gels":
        rank = np.zeros(0, np.int64)
    if driver in ("gelsd", "gelss"):
        values = np.linalg.svd(a, compute_uv=False)
    return x[..., 0] if vector else x, residuals, rank, values


@composite(
    ref=_ref_lstsq,
    samples=(
        Case(T(4, 2), T(4, 3)),
        Case(T(2, 4), T(2, 1)),
        Case(T(2, 4, 3), T(2, 4, 2), driver="gels"),
    ),
    errors=(Case(T(4, 2), T(3, 1), match="input.size"),),
)
def linalg_lstsq(
    A: Expr, B: Expr, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares:
    """Least squares solution for matrices of full rank, by QR; of least norm for wide ones.

    As in torch, ``driver`` decides what else is computed: residuals by "gels", "gelsd" and "gelss",
    the rank by all but "gels", singular values by "gelsd" and "gelss".
    """
    matrix("linalg.lstsq", A)
    floating("linalg.lstsq", A, B)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    b = reshape(B, (*B.shape, 1)) if vector else B
    m, n = A.shape[-2:]
    if b.shape[-2] != m:
        raise RuntimeError(
            f"linalg.lstsq: input.size(-2) should match other.size(-2) (got {A.shape} and {B.shape}); "
            "transpose or slice one"
        )
    if m >= n:
        q, r = linalg_qr(A)
        x = linalg_solve_triangular(r, matmul(flipped(q), b), upper=True)
    else:
        q, r = linalg_qr(flipped(A))
        x = matmul(q, linalg_solve_triangular(flipped(r), b, upper=False))
    residuals = values = full(0.0, (0,), A.dtype)
    if driver in ("gels", "gelsd", "gelss") and m > n:
        difference = matmul(A, x) - b
        residuals = sum(difference * difference, -2)
    if driver in ("gelsd", "gelss"):
        values = detach(linalg_svdvals(A))
    rank = full(0, (0,), dtypes.int64) if driver == "gels" else linalg_matrix_rank(A)
    solution = reshape(x, x.shape[:-1]) if vector else x
    return LeastSquares(solution, residuals, rank, values)


@composite(
    ref=lambda a, **k: np.asarray(np.linalg.matrix_rank(a)),
    samples=(Case(T(3, 3)), Case(T(2, 4, 2))),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_matrix_rank(
    A: Expr, tol: float | None = None, hermitian: bool = False, *,
    atol: float | None = None, rtol: float | None = None,
) -> Expr:  # fmt: skip
    """How many singular values exceed max(atol, rtol * largest), as int64."""
    values = linalg_svdvals(A)
    absolute = tol if atol is None else atol
    if rtol is None:
        eps = float(np.finfo(A.dtype.numpy).eps)
        rtol = 0.0 if absolute else eps * max(A.shape[-2:])
    largest = expand(part(values, values.ndim - 1, 0, 1), values.shape)
    above = (values > largest * float(rtol)) & (values > float(absolute or 0.0))
    return sum(cast_to(above, dtypes.int64), -1)

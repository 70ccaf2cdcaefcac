"""Decompositions of matrices: eigenvalues of symmetric ones, QR, singular values; norms of matrices.

Routines with several results pack them in one array (`eigh_packed`, `qr_packed`, `svd_packed`);
the functions with torch's names slice it. Where eigenvalues or singular values coincide,
derivatives that depend on their difference count as 0 (`_gaps`): right for whatever is a function
of the matrix at all. Functions of symmetric matrices are recognised by `symgrad.ops.spectral`.
Start reading at `eigh_packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.errors import LinAlgError
from symgrad.expr import Expr
from symgrad.op import REGISTRY, Case, Library, T, cast_to, composite, constant, op
from symgrad.ops.arithmetic import add, keep, ne, where
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.linalg import (
    as_matrices,
    corner,
    dominant,
    floating,
    identity_like,
    linalg_solve_triangular,
    matrix,
    square,
    symmetric,
    triangle,
    triangular,
)
from symgrad.ops.movement import embed, expand, full, join_axis, reshape
from symgrad.ops.reduce import part, sum


def scaled_columns(x: Expr, factors: Expr) -> Expr:
    """Each column of the matrices times its factor."""
    return x * expand(reshape(factors, (*factors.shape[:-1], 1, factors.shape[-1])), x.shape)


def scaled_rows(x: Expr, factors: Expr) -> Expr:
    """Each row of the matrices times its factor."""
    return x * expand(reshape(factors, (*factors.shape, 1)), x.shape)


def on_diagonal(values: Expr) -> Expr:
    """Diagonal matrices."""
    n = values.shape[-1]
    square_shape = (*values.shape, n)
    spread = expand(reshape(values, (*values.shape, 1)), square_shape)
    return identity_like(spread) * spread


def _gaps(values: Expr, scale: Expr) -> tuple[Expr, Expr]:
    """value_j - value_i for row i and column j, 1 where it is only rounding; and where it is not."""
    rows = expand(reshape(values, (*values.shape, 1)), (*values.shape, values.shape[-1]))
    gap = flipped(rows) - rows
    smallest = 4.0 * float(np.finfo(values.dtype.numpy).eps)
    floor = reshape(scale, (*scale.shape, 1, 1)) * smallest
    apart = (gap > floor) | (gap < -floor)
    return where(apart, gap, 1.0), apart


# -- eigenvalues of symmetric matrices --------------------------------------------------


class EigH(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors in columns."""

    eigenvalues: Expr
    eigenvectors: Expr


def _ref_eigh_packed(a: np.ndarray, *, uplo: str) -> np.ndarray:
    n = a.shape[-1]
    made = np.full((*a.shape[:-2], n + 1, n), np.nan, a.dtype)
    if not a.size:
        return made
    stack, room = as_matrices(a), as_matrices(made)
    good = np.isfinite(stack).all(axis=(-1, -2))
    try:
        values, vectors = np.linalg.eigh(stack[good], UPLO=uplo)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(
            "linalg.eigh: The algorithm failed to converge because the input matrix is "
            "ill-conditioned or has too many repeated eigenvalues."
        ) from error
    room[good, 0] = values
    room[good, 1:] = vectors
    return made


def _symmetric(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    a = rng.uniform(-1, 1, shape)
    return a + np.swapaxes(a, -1, -2)


@op
class eigh_packed(Library):
    """Eigenvalues (first row) and eigenvectors (the rest) of symmetric matrices.

    The derivative is that for symmetric changes of A; pairs of equal eigenvalues contribute
    nothing through the eigenvectors.
    """

    public = False
    eager_check = False
    attributes = ("uplo",)
    ref = _ref_eigh_packed
    samples = (Case(T(3, 3, make=_symmetric), uplo="L", smooth=False),)

    def shape(a: Expr, *, uplo: str) -> tuple[int, ...]:
        return (*a.shape[:-2], a.shape[-1] + 1, a.shape[-1])

    def vjp(g: Expr, out: Expr, a: Expr, *, uplo: str) -> Any:
        from symgrad.ops.spectral import as_function

        values, vectors = eigh_parts(out)
        g_values, g_vectors = _cotangents(g)
        result = None if g_values is None else as_function(out, g_values)
        if g_vectors is not None:
            inner = matmul(flipped(vectors), g_vectors)
            gap, apart = _gaps(values, sum(REGISTRY["abs"](values), -1))
            turned = keep(apart, 0.5 * (inner - flipped(inner)) / gap)
            through = matmul(matmul(vectors, turned), flipped(vectors))
            result = through if result is None else result + through
        assert result is not None
        return (symmetric(result),)


def _cotangents(g: Expr) -> tuple[Expr | None, Expr | None]:
    """Cotangents of eigenvalues and eigenvectors; None for what the packed one leaves at zero."""
    n = g.shape[-1]
    if g.op is add:
        first, second = (_cotangents(a) for a in g.args)
        both = [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]
        return both[0], both[1]
    if g.op is embed:
        _, starts, steps = g.attrs
        placed = g.args[0]
        rest = placed.shape[:-2] == g.shape[:-2] and placed.shape[-1] == n
        if rest and all(s == 1 for s in steps):
            if starts[-2] == 0 and placed.shape[-2] == 1:
                shape = (*placed.shape[:-2], n)
                if placed.op is reshape and placed.args[0].shape == shape:
                    return placed.args[0], None
                return reshape(placed, shape), None
            if starts[-2] == 1 and placed.shape[-2] == n:
                return None, placed
    values, vectors = eigh_parts(g)
    return values, vectors


def eigh_parts(packed: Expr) -> EigH:
    """Eigenvalues and eigenvectors from their packed form."""
    n = packed.shape[-1]
    row = packed.ndim - 2
    values = reshape(part(packed, row, 0, 1), (*packed.shape[:-2], n))
    return EigH(values, part(packed, row, 1, n))


_EIGH_ERRORS = (Case(T(2, 3), match="must be batches of square matrices"),)


def _eigh(name: str, a: Expr, uplo: str) -> EigH:
    square(name, a)
    if uplo.upper() not in ("L", "U"):
        raise RuntimeError(f"{name}: Expected UPLO argument to be 'L' or 'U', but got {uplo}; use 'L'")
    return eigh_parts(eigh_packed(a, uplo=uplo.upper()))


@composite(
    ref=lambda a, UPLO="L": tuple(np.linalg.eigh(a, UPLO)),
    samples=(Case(T(1, 1), smooth=False), Case(T(0, 0), smooth=False)),
    errors=_EIGH_ERRORS,
)
def linalg_eigh(A: Expr, UPLO: str = "L") -> EigH:
    """Eigenvalues, ascending, and orthonormal eigenvectors of symmetric matrices."""
    return _eigh("linalg.eigh", A, UPLO)


@composite(
    ref=lambda a, UPLO="L": np.linalg.eigvalsh(a, UPLO),
    samples=(
        Case(T(3, 3, make=_symmetric), smooth=False),
        Case(T(2, 3, 3, make=_symmetric), "U", smooth=False),
    ),
    errors=_EIGH_ERRORS,
)
def linalg_eigvalsh(A: Expr, UPLO: str = "L") -> Expr:
    """Eigenvalues of symmetric matrices, ascending."""
    return _eigh("linalg.eigvalsh", A, UPLO).eigenvalues


# -- QR ---------------------------------------------------------------------------------


class QR(NamedTuple):
    """Orthonormal columns and an upper triangular factor."""

    Q: Expr
    R: Expr


def _ref_qr_packed(a: np.ndarray, *, complete: bool) -> np.ndarray:
    q, r = np.linalg.qr(a, mode="complete" if complete else "reduced")
    flat = [m.reshape(*a.shape[:-2], m.shape[-2] * m.shape[-1]) for m in (q, r)]
    return np.concatenate(flat, axis=-1)


def _qr_sizes(shape: tuple[int, ...], complete: bool) -> tuple[int, int, int]:
    m, n = shape[-2:]
    return m, n, m if complete else min(m, n)


@op
class qr_packed(Library):
    """Q and R, each in row-major order, one after the other along the last axis."""

    public = False
    eager_check = False
    attributes = ("complete",)
    ref = _ref_qr_packed
    samples = (
        Case(T(4, 3), complete=False),
        Case(T(2, 3, 3), complete=False),
        Case(T(2, 3), complete=False),
    )

    def shape(a: Expr, *, complete: bool) -> tuple[int, ...]:
        m, n, k = _qr_sizes(a.shape, complete)
        return (*a.shape[:-2], m * k + k * n)

    def vjp(g: Expr, out: Expr, a: Expr, *, complete: bool) -> Any:
        m, n, k = _qr_sizes(a.shape, complete)
        if k > n:
            raise RuntimeError(
                "linalg.qr: The QR decomposition is not differentiable when mode='complete' and nrows "
                f"> ncols (got {m}x{n}); use mode='reduced'"
            )
        q, r = _qr_parts(out, a.shape, complete)
        g_q, g_r = _qr_parts(g, a.shape, complete)
        if m >= n:
            return (_qr_pulled(g_q, g_r, q, r),)
        # A wide matrix is [X | Y] with X = Q U and R = [U | Q'Y].
        rest = corner(a, 0, m, m, n - m)
        g_rest = corner(g_r, 0, m, m, n - m)
        square_r, g_square = corner(r, 0, 0, m, m), corner(g_r, 0, 0, m, m)
        through = g_q + matmul(rest, flipped(g_rest))
        first = _qr_pulled(through, g_square, q, square_r)
        return (join_axis(first, matmul(q, g_rest), dim=a.ndim - 1),)


def _qr_pulled(g_q: Expr, g_r: Expr, q: Expr, r: Expr) -> Expr:
    """The pullback for at least as many rows as columns (Walter and Lehmann 2018)."""
    upper = triangle(g_r, True)
    m = matmul(r, flipped(upper)) - matmul(flipped(g_q), q)
    low = triangle(m, False, 1)
    both = low + flipped(low) + m * identity_like(m)
    inner = g_q + matmul(q, both)
    return flipped(triangular(r, flipped(inner), upper=True, unit=False))


def _qr_parts(packed: Expr, shape: tuple[int, ...], complete: bool) -> QR:
    m, n, k = _qr_sizes(shape, complete)
    last = packed.ndim - 1
    batch = packed.shape[:-1]
    q = reshape(part(packed, last, 0, m * k), (*batch, m, k))
    return QR(q, reshape(part(packed, last, m * k, k * n), (*batch, k, n)))


@composite(
    ref=lambda a, mode="reduced": tuple(np.linalg.qr(a, mode)),
    samples=(Case(T(4, 3)), Case(T(2, 3, 3)), Case(T(2, 3)), Case(T(2, 3), "complete")),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_qr(A: Expr, mode: str = "reduced") -> QR:
    """Orthonormal columns Q and upper triangular R with A = Q R."""
    matrix("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"linalg.qr: received unrecognized mode '{mode}' but expected one of 'reduced', 'r', or "
            "'complete'; use 'reduced'"
        )
    complete = mode == "complete"
    q, r = _qr_parts(qr_packed(A, complete=complete), A.shape, complete)
    return QR(reshape(part(q, 0, 0, 0), (0,)), r) if mode == "r" else QR(q, r)


@composite(
    ref=lambda a, some=True: tuple(np.linalg.qr(a, "reduced" if some else "complete")),
    samples=(Case(T(4, 3)), Case(T(2, 3))),
)
def qr(input: Expr, some: bool = True) -> QR:
    """Orthonormal columns Q and upper triangular R with A = Q R."""
    return linalg_qr(input, "reduced" if some else "complete")


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
    """U, the singular values and V', one after the other along the last axis."""

    public = False
    attributes = ("full",)
    ref = _ref_svd_packed
    samples = (Case(T(3, 3), full=False), Case(T(4, 2), full=False), Case(T(2, 2, 3), full=False))

    def shape(a: Expr, *, full: bool) -> tuple[int, ...]:
        m, n, k, p, q = _svd_sizes(a.shape, full)
        return (*a.shape[:-2], m * p + k + q * n)

    def vjp(g: Expr, out: Expr, a: Expr, *, full: bool) -> Any:
        m, n, k, _, _ = _svd_sizes(a.shape, full)
        if full and m != n:
            raise RuntimeError(
                "linalg.svd: the singular vectors of full_matrices=True have no derivative for "
                f"matrices that are not square (got {m}x{n}); use full_matrices=False"
            )
        u, s, vh = _svd_parts(out, a.shape, False)
        g_u, g_s, g_vh = _svd_parts(g, a.shape, False)
        g_v, v = flipped(g_vh), flipped(vh)
        squares, apart = _gaps(s * s, sum(s * s, -1))
        left = matmul(flipped(u), g_u)
        right = matmul(vh, g_v)
        turned_u = keep(apart, 0.5 * (left - flipped(left)) / squares)
        turned_v = keep(apart, 0.5 * (right - flipped(right)) / squares)
        twice = 2.0 * (scaled_columns(turned_u, s) + scaled_rows(turned_v, s))
        result = matmul(matmul(u, twice + on_diagonal(g_s)), vh)
        inverse = keep(ne(s, 0), 1.0 / where(ne(s, 0), s, 1.0))
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
    samples=(Case(T(3, 3), False), Case(T(4, 2), False), Case(T(2, 2, 3), full_matrices=False)),
    errors=(Case(T(3), match="must have at least 2 dimensions"),),
)
def linalg_svd(A: Expr, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """Singular value decomposition A = U diag(S) Vh."""
    matrix("linalg.svd", A)
    thin = _svd_parts(svd_packed(A, full=False), A.shape, False)
    if not full_matrices or A.shape[-1] == A.shape[-2]:
        return thin
    whole = _svd_parts(svd_packed(A, full=True), A.shape, True)
    return SVD(whole.U, thin.S, whole.Vh)


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
        Case(T(2, 4, 3), T(2, 4, 2), driver="gelsd"),
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
        values = linalg_svdvals(A)
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

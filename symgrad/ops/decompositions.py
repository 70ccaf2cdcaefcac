"""Decompositions of matrices: eigenvalues of symmetric ones, and QR.

Routines with several results pack them in one array (`eigh_packed`, `qr_packed`); the functions
with torch's names slice it. Where eigenvalues coincide, derivatives that depend on their
difference count as 0 (`gaps`); functions of symmetric matrices, for which that is not enough, are
recognised by `symgrad.ops.spectral`. Singular values are in `symgrad.ops.singular`.
Start reading at `eigh_packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from symgrad.errors import LinAlgError
from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.ops.arithmetic import add, keep, where
from symgrad.ops.choice import abs
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.linalg import (
    as_matrices,
    corner,
    identity_like,
    matrix,
    square,
    symmetric,
    triangle,
    triangular,
)
from symgrad.ops.movement import embed, expand, join_axis, reshape
from symgrad.ops.reduce import part, sum
from symgrad.sample import Case, T


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


def gaps(values: Expr, scale: Expr) -> tuple[Expr, Expr]:
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
    native = "eigh"
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
            gap, apart = gaps(values, sum(abs(values), -1))
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
        both = [
            b if a is None else a if b is None else a + b
            for a, b in zip(first, second, strict=True)
        ]
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
        raise RuntimeError(
            f"{name}: Expected UPLO argument to be 'L' or 'U', but got {uplo}; use 'L'"
        )
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
    native = "qr"
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
        q, r = _qr_parts(out, a.shape, complete)
        g_q, g_r = _qr_parts(g, a.shape, complete)
        if k > n:
            # The columns beyond R's are a basis of what is orthogonal to A, turned by no change of A
            # within itself: dQ2 = -Q1 (dA R^-1)' Q2.
            thin, beyond = corner(q, 0, 0, m, n), corner(q, 0, n, m, k - n)
            upper = corner(r, 0, 0, n, n)
            result = _qr_pulled(corner(g_q, 0, 0, m, n), corner(g_r, 0, 0, n, n), thin, upper)
            onto = matmul(flipped(thin), corner(g_q, 0, n, m, k - n))
            solved = triangular(upper, matmul(onto, flipped(beyond)), upper=True, unit=False)
            return (result - flipped(solved),)
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
    samples=(
        Case(T(4, 3)),
        Case(T(2, 3, 3)),
        Case(T(2, 3)),
        Case(T(2, 3), "complete"),
        Case(T(3, 2), "complete"),
    ),
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

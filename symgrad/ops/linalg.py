"""Systems of equations: Cholesky factors, triangular and general solves, inverses.

Values come from LAPACK through NumPy and SciPy, batched; each routine is the ``ref`` of its op.
Derivatives are written with the same ops, so they can be taken again. Names carry torch's
``linalg_`` prefix here; `symgrad.linalg` drops it. Determinants are in
`symgrad.ops.determinants`, decompositions in `symgrad.ops.decompositions`, powers and the
exponential in `symgrad.ops.powers`. Start reading at
`triangular`, then `cholesky_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from symgrad.errors import LinAlgError
from symgrad.expr import Expr
from symgrad.family import Library, broadcast_shapes, composite, op, refused
from symgrad.ops.arithmetic import eq, keep
from symgrad.ops.complex_numbers import complex, imag, real
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.layout import axis_index
from symgrad.ops.movement import diagonal, expand, full, join_axis, permute, reshape
from symgrad.ops.reduce import count_of, part
from symgrad.sample import Case, T

# -- checks and shapes ------------------------------------------------------------------


def floating(name: str, *operands: Expr) -> None:
    """Refuse integer matrices and mixed dtypes."""
    for x in operands:
        if x.dtype.category == 3:
            raise refused(name, x.dtype)
        if x.dtype.category != 2:
            raise RuntimeError(
                f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype.name} "
                f"(got shape {x.shape}); convert with .to(symgrad.float64)"
            )
    if len(operands) > 1 and operands[0].dtype is not operands[1].dtype:
        a, b = operands
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type {a.dtype.name} and "
            f"B of type {b.dtype.name} instead; convert one with .to"
        )


def matrix(name: str, a: Expr) -> None:
    """Refuse what is not a batch of floating matrices."""
    if a.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor A must have at least 2 dimensions (got shape {a.shape}); "
            "reshape it"
        )
    floating(name, a)


def square(name: str, a: Expr) -> None:
    """Refuse what is not a batch of floating square matrices."""
    matrix(name, a)
    if a.shape[-1] != a.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {a.shape[-2]} by "
            f"{a.shape[-1]} matrices (got shape {a.shape}); slice or pad them"
        )


def identity_like(a: Expr) -> Expr:
    """Identity matrices in the shape of `a`."""
    rows, columns = axis_index(a.shape, a.ndim - 2), axis_index(a.shape, a.ndim - 1)
    return keep(eq(rows, columns), full(1.0, a.shape, a.dtype))


def triangle(x: Expr, upper: bool, offset: int = 0) -> Expr:
    """`x` on and below its diagonal, or on and above it, moved out by `offset`; 0 elsewhere."""
    rows, columns = axis_index(x.shape, x.ndim - 2), axis_index(x.shape, x.ndim - 1)
    return keep(rows + offset <= columns if upper else rows >= columns + offset, x)


def symmetric(x: Expr) -> Expr:
    """The symmetric part."""
    return 0.5 * (x + flipped(x))


def corner(x: Expr, row: int, column: int, rows: int, columns: int) -> Expr:
    """A block of each matrix."""
    return part(part(x, x.ndim - 2, row, rows), x.ndim - 1, column, columns)


def batch_element(shape: tuple[int, ...], number: int) -> str:
    """torch's words for the place of a failure in a batch."""
    return f"(Batch element {number}): " if shape else ""


def as_matrices(a: np.ndarray) -> np.ndarray:
    """A batch of any rank as a batch of rank one."""
    count = math.prod(a.shape[:-2])
    return a.reshape(count, *a.shape[-2:])


def with_common_batch(name: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two batches of matrices expanded to their common batch shape."""
    batch = broadcast_shapes(name, [a.shape[:-2], b.shape[:-2]])
    return expand(a, (*batch, *a.shape[-2:])), expand(b, (*batch, *b.shape[-2:]))


def many_columns(name: str, solver: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """Solve with broadcasting; a single matrix takes a whole batch as columns of one system."""
    shared = count_of(a.shape, tuple(range(a.ndim - 2))) == 1
    if not shared or b.ndim <= 2:
        return solver(*with_common_batch(name, a, b))
    batch = broadcast_shapes(name, [a.shape[:-2], b.shape[:-2]])
    rank = b.ndim
    columns = permute(b, (rank - 2, *range(rank - 2), rank - 1))
    single = reshape(a, a.shape[-2:])
    solved = solver(single, reshape(columns, (b.shape[-2], columns.size // max(b.shape[-2], 1))))
    split = reshape(solved, (b.shape[-2], *b.shape[:-2], b.shape[-1]))
    moved = permute(split, (*range(1, rank - 1), 0, rank - 1))
    return reshape(moved, (*batch, *b.shape[-2:]))


# -- triangular systems -----------------------------------------------------------------


def _substituted(a: np.ndarray, b: np.ndarray, upper: bool, unit: bool) -> np.ndarray:
    """Substitution row by row, over the whole batch at once."""
    n = a.shape[-1]
    x = np.empty(b.shape, b.dtype)
    for i in reversed(range(n)) if upper else range(n):
        done = slice(i + 1, n) if upper else slice(0, i)
        row = b[..., i, :] - np.einsum("...j,...jk->...k", a[..., i, done], x[..., done, :])
        x[..., i, :] = row if unit else row / a[..., i, i, None]
    return x


def _ref_triangular(a: np.ndarray, b: np.ndarray, *, upper: bool, unit: bool) -> np.ndarray:
    from scipy.linalg import get_blas_funcs

    left, right = as_matrices(a), as_matrices(b)
    with np.errstate(all="ignore"):
        if len(left) > a.shape[-1] or not b.size:
            return _substituted(a, b, upper, unit)
        (solver,) = get_blas_funcs(("trsm",), (left, right))
        made = [
            solver(1.0, m, r, lower=not upper, diag=unit) for m, r in zip(left, right, strict=True)
        ]
    return np.asarray(made).reshape(b.shape)


def dominant(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Well-conditioned matrices: a small random part beside a large diagonal."""
    return rng.uniform(-1, 1, shape) + 2 * np.eye(*shape[-2:])


def positive_definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random symmetric positive definite matrices."""
    a = rng.uniform(-1, 1, shape)
    return a @ np.swapaxes(a, -1, -2) + 2 * np.eye(shape[-1])


@op
class triangular(Library):
    """Solution X of A X = B, where only one triangle of A is read."""

    public = False
    native = "triangular"
    eager_check = False
    attributes = ("upper", "unit")
    ref = _ref_triangular
    samples = (
        Case(T(3, 3, make=dominant), T(3, 2), upper=False, unit=False),
        Case(T(4, 3, 3, make=dominant), T(4, 3, 2), upper=True, unit=False),
        Case(T(3, 3, make=dominant), T(3, 1), upper=True, unit=True),
    )

    def shape(a: Expr, b: Expr, *, upper: bool, unit: bool) -> tuple[int, ...]:
        return b.shape

    def vjp(g: Expr, out: Expr, a: Expr, b: Expr, *, upper: bool, unit: bool) -> Any:
        passed = triangular(flipped(a), g, upper=not upper, unit=unit)
        return -triangle(matmul(passed, flipped(out)), upper, 1 if unit else 0), passed


def _ref_solve_triangular(
    a: np.ndarray, b: np.ndarray, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    m = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        m = m - m * np.eye(m.shape[-1], dtype=m.dtype) + np.eye(m.shape[-1], dtype=m.dtype)
    if left:
        return np.linalg.solve(m, b)
    return np.swapaxes(np.linalg.solve(np.swapaxes(m, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)


def _fits(name: str, a: Expr, b: Expr, left: bool = True) -> None:
    matrix(name, b)
    if (b.shape[-2] if left else b.shape[-1]) != a.shape[-1]:
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'} "
            f"({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]}); transpose or slice B"
        )


@composite(
    ref=_ref_solve_triangular,
    samples=(
        Case(T(3, 3, make=dominant), T(3, 2), upper=False),
        Case(T(3, 3, make=dominant), T(2, 3, 2), upper=True, unitriangular=True),
        Case(T(2, 3, 3, make=dominant), T(4, 3), upper=True, left=False),
    ),
    errors=(Case(T(2, 2), T(3, 1), upper=True, match="Incompatible shapes of A and B"),),
)
def linalg_solve_triangular(
    A: Expr, B: Expr, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Expr:
    """Solution of A X = B, or X A = B, for triangular A; only its triangle is read."""
    name = "linalg.solve_triangular"
    square(name, A)
    _fits(name, A, B, left)
    floating(name, A, B)

    def solver(a: Expr, b: Expr) -> Expr:
        return triangular(a, b, upper=upper if left else not upper, unit=unitriangular)

    if left:
        return many_columns(name, solver, A, B)
    return flipped(many_columns(name, solver, flipped(A), flipped(B)))


# -- Cholesky ---------------------------------------------------------------------------


def _ref_cholesky(a: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError as error:
        from scipy.linalg import get_lapack_funcs

        stack = as_matrices(a)
        (factor,) = get_lapack_funcs(("potrf",), (stack,))
        for number, m in enumerate(stack):
            order = factor(m, lower=True)[1]
            if order > 0:
                raise LinAlgError(
                    f"linalg.cholesky: {batch_element(a.shape[:-2], number)}The factorization could "
                    "not be completed because the input is not positive-definite (the leading minor "
                    f"of order {order} is not positive-definite)."
                ) from error
        raise LinAlgError("linalg.cholesky: The factorization failed.") from error


@op
class cholesky_factor(Library):
    """Lower triangular L with L L' = A; only the lower triangle of A is read.

    The derivative is that for symmetric changes of A (Murray 2016, arXiv:1602.07527).
    """

    public = False
    native = "cholesky"
    ref = _ref_cholesky
    samples = (
        Case(T(3, 3, make=positive_definite), smooth=False),
        Case(T(2, 3, 3, make=positive_definite), smooth=False),
    )

    def shape(a: Expr) -> tuple[int, ...]:
        return a.shape

    def vjp(g: Expr, out: Expr, a: Expr) -> Any:
        half = matmul(flipped(out), g)
        half = triangle(half, False, 1) + 0.5 * (half * identity_like(half))
        turned = triangular(flipped(out), half, upper=True, unit=False)
        both = triangular(flipped(out), flipped(turned), upper=True, unit=False)
        return (symmetric(both),)


def _ref_factor(a: np.ndarray, upper: bool = False) -> Any:
    factor = np.linalg.cholesky(a)
    return np.swapaxes(factor, -1, -2) if upper else factor


_FACTOR_SAMPLES = (
    Case(T(3, 3, make=positive_definite), smooth=False),
    Case(T(2, 3, 3, make=positive_definite), upper=True, smooth=False),
    Case(T(0, 0)),
)
_FACTOR_ERRORS = (
    Case(T(2, 3), match="must be batches of square matrices, but they are 2 by 3 matrices"),
    Case(
        T(2, 2, make=lambda rng, shape: -np.eye(2)),
        match="the leading minor of order 1 is not positive-definite",
    ),
)


@composite(ref=_ref_factor, samples=_FACTOR_SAMPLES, errors=_FACTOR_ERRORS)
def linalg_cholesky(A: Expr, *, upper: bool = False) -> Expr:
    """Cholesky factor of a positive definite matrix: A = L L', or U' U when `upper`."""
    square("linalg.cholesky", A)
    factor = cholesky_factor(flipped(A) if upper else A)
    return flipped(factor) if upper else factor


@composite(ref=_ref_factor, samples=_FACTOR_SAMPLES, errors=_FACTOR_ERRORS)
def cholesky(input: Expr, upper: bool = False) -> Expr:
    """Cholesky factor of a positive definite matrix: A = L L', or U' U when `upper`."""
    return linalg_cholesky(input, upper=upper)


def _ref_cholesky_solve(b: np.ndarray, factor: np.ndarray, upper: bool = False) -> Any:
    m = np.triu(factor) if upper else np.tril(factor)
    across = np.swapaxes(m, -1, -2)
    return np.linalg.solve(across @ m if upper else m @ across, b)


@composite(
    ref=_ref_cholesky_solve,
    samples=(
        Case(T(3, 2), T(3, 3, make=dominant)),
        Case(T(2, 3, 2), T(3, 3, make=dominant), True),
    ),
    errors=(Case(T(3, 3), T(2, 2), match="Incompatible"),),
)
def cholesky_solve(B: Expr, L: Expr, upper: bool = False) -> Expr:
    """Solution X of A X = B from the Cholesky factor of A."""
    first = linalg_solve_triangular(flipped(L) if upper else L, B, upper=False)
    return linalg_solve_triangular(L if upper else flipped(L), first, upper=True)


@composite(
    ref=lambda factor, upper=False: _ref_cholesky_solve(
        np.broadcast_to(np.eye(factor.shape[-1], dtype=factor.dtype), factor.shape), factor, upper
    ),
    samples=(Case(T(3, 3, make=dominant)), Case(T(2, 3, 3, make=dominant), True)),
)
def cholesky_inverse(L: Expr, upper: bool = False) -> Expr:
    """Inverse of A from its Cholesky factor."""
    square("cholesky_inverse", L)
    return cholesky_solve(identity_like(L), L, upper)


class TriangularSolution(NamedTuple):
    """Solution of a triangular system, and its matrix."""

    solution: Expr
    cloned_coefficient: Expr


def _ref_triangular_solve(
    b: np.ndarray,
    a: np.ndarray,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    m = np.swapaxes(a, -1, -2) if transpose else a
    return _ref_solve_triangular(m, b, upper=upper != transpose, unitriangular=unitriangular), a


@composite(
    ref=_ref_triangular_solve,
    samples=(
        Case(T(3, 2), T(3, 3, make=dominant)),
        Case(T(2, 3, 2), T(3, 3, make=dominant), False, True),
    ),
)
def triangular_solve(
    b: Expr, A: Expr, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """Solution of A X = b (or A' X = b) for triangular A, and A."""
    m, high = (flipped(A), not upper) if transpose else (A, upper)
    return TriangularSolution(
        linalg_solve_triangular(m, b, upper=high, unitriangular=unitriangular), A
    )


# -- general systems --------------------------------------------------------------------


def _first_singular(stack: np.ndarray) -> tuple[int, int]:
    """Which matrix has an exact zero among its pivots, and where."""
    from scipy.linalg import get_lapack_funcs

    (factor,) = get_lapack_funcs(("getrf",), (stack,))
    for number, m in enumerate(stack):
        place = factor(m)[2]
        if place > 0:
            return number, place
    return 0, stack.shape[-1]


def _ref_solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.linalg.solve(a, b))
    except np.linalg.LinAlgError as error:
        number, _ = _first_singular(as_matrices(a))
        raise LinAlgError(
            f"linalg.solve: {batch_element(a.shape[:-2], number)}The solver failed because the input "
            "matrix is singular."
        ) from error


@op
class general_solve(Library):
    """Solution X of A X = B by LU; the derivative solves with A', without an inverse."""

    public = False
    native = "solve"
    ref = _ref_solve
    samples = (
        Case(T(3, 3, make=dominant), T(3, 2)),
        Case(T(2, 3, 3, make=dominant), T(2, 3, 1)),
    )

    def shape(a: Expr, b: Expr) -> tuple[int, ...]:
        return b.shape

    def vjp(g: Expr, out: Expr, a: Expr, b: Expr) -> Any:
        passed = general_solve(flipped(a), g)
        return -matmul(passed, flipped(out)), passed


def _is_vector(a: Expr, b: Expr) -> bool:
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _ref_linalg_solve(a: np.ndarray, b: np.ndarray, *, left: bool = True) -> Any:
    if b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]):
        m = a if left else np.swapaxes(a, -1, -2)
        return np.linalg.solve(m, b[..., None])[..., 0]
    if left:
        return np.linalg.solve(a, b)
    return np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)


@composite(
    ref=_ref_linalg_solve,
    samples=(
        Case(T(3, 3, make=dominant), T(3, 2)),
        Case(T(3, 3, make=dominant), T(3)),
        Case(T(2, 3, 3, make=dominant), T(2, 3)),
        Case(T(3, 3, make=dominant), T(4, 3, 2)),
        Case(T(2, 3, 3, make=dominant), T(4, 3), left=False),
    ),
    errors=(
        Case(
            T(2, 2), T(3), match=r"Incompatible shapes of A and B for the equation AX = B \(2x2 and"
        ),
        Case(
            T(2, 2, make=lambda rng, shape: np.ones((2, 2))),
            T(2),
            match="The solver failed because the input matrix is singular",
        ),
    ),
)
def linalg_solve(A: Expr, B: Expr, *, left: bool = True) -> Expr:
    """Solution of A X = B, or of X A = B when not `left`."""
    name = "linalg.solve"
    if A.dtype.is_complex and B.dtype is A.dtype and A.ndim > 1:
        return _complex_solution(A, B, left)
    square(name, A)
    vector = _is_vector(A, B)
    b = reshape(B, (*B.shape, 1)) if vector else B
    across = vector or left
    _fits(name, A, b, across)
    floating(name, A, b)
    a = A if left else flipped(A)
    if across:
        result = many_columns(name, general_solve, a, b)
        return reshape(result, result.shape[:-1]) if vector else result
    return flipped(many_columns(name, general_solve, a, flipped(b)))


def _embedded(a: Expr) -> Expr:
    """The real matrix of twice the size that maps (real, imaginary) parts as the complex one does."""
    re, im = real(a), imag(a)
    rows = a.ndim - 2
    return join_axis(  # type: ignore[no-any-return]
        join_axis(re, -im, dim=rows + 1), join_axis(im, re, dim=rows + 1), dim=rows
    )


def _of_halves(x: Expr) -> Expr:
    """Complex rows from real ones above imaginary ones."""
    rows, n = x.ndim - 2, x.shape[-2] // 2
    return complex(part(x, rows, 0, n), part(x, rows, n, n))  # type: ignore[no-any-return]


def _complex_solution(a: Expr, b: Expr, left: bool) -> Expr:
    vector = _is_vector(a, b)
    if vector:
        b = reshape(b, (*b.shape, 1))
    elif not left:
        return flipped(_complex_solution(flipped(a), flipped(b), True))
    halves = join_axis(real(b), imag(b), dim=b.ndim - 2)
    result = _of_halves(linalg_solve(_embedded(a), halves))
    return reshape(result, result.shape[:-1]) if vector else result


def _inverse_or_infinity(m: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.inv(m)
    except np.linalg.LinAlgError:
        return np.full_like(m, np.inf)


def _ref_inverse(a: np.ndarray, *, check: bool = True) -> np.ndarray:
    try:
        return np.linalg.inv(a)
    except np.linalg.LinAlgError as error:
        stack = as_matrices(a)
        if not check:
            return np.asarray([_inverse_or_infinity(m) for m in stack]).reshape(a.shape)
        number, place = _first_singular(stack)
        raise LinAlgError(
            f"linalg.inv: {batch_element(a.shape[:-2], number)}The diagonal element {place} is zero, "
            "the inversion could not be completed because the input matrix is singular."
        ) from error


@op
class inverse_matrix(Library):
    """Inverse of square matrices; without `check`, infinities where there is none."""

    public = False
    native = "inverse"
    attributes = ("check",)
    ref = _ref_inverse
    samples = (
        Case(T(3, 3, make=dominant), check=True),
        Case(T(2, 3, 3, make=dominant), check=True),
    )

    def shape(a: Expr, *, check: bool) -> tuple[int, ...]:
        return a.shape

    def vjp(g: Expr, out: Expr, a: Expr, *, check: bool) -> Any:
        across = flipped(out)
        return (-matmul(matmul(across, g), across),)


@composite(
    ref=np.linalg.inv,
    samples=(Case(T(3, 3, make=dominant)), Case(T(2, 3, 3, make=dominant)), Case(T(0, 0))),
    errors=(
        Case(T(2, 3), match="must be batches of square matrices"),
        Case(
            T(2, 2, make=lambda rng, shape: np.ones((2, 2))),
            match="The diagonal element 2 is zero, the inversion could not be completed",
        ),
    ),
    aliases=("inverse",),
)
def linalg_inv(A: Expr) -> Expr:
    """Inverse of square matrices."""
    if A.dtype.is_complex and A.ndim > 1:
        return _of_halves(part(linalg_inv(_embedded(A)), A.ndim - 1, 0, A.shape[-1]))
    square("linalg.inv", A)
    return inverse_matrix(A, check=True)


@composite(
    ref=lambda a, *, offset=0, dim1=-2, dim2=-1: np.diagonal(a, offset, dim1, dim2),
    samples=(Case(T(3, 4)), Case(T(2, 3, 3), offset=1), Case(T(3, 3, 2), dim1=0, dim2=1)),
)
def linalg_diagonal(A: Expr, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Expr:
    """Diagonals of matrices, as a view."""
    return diagonal(A, offset, dim1, dim2)

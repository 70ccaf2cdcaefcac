"""Determinants, right in value and in every derivative at singular matrices as well.

`det` is a polynomial, so all its derivatives exist everywhere; formulas through the inverse lose
them where there is none. The one routine here, `_mixed_cofactor`, gives the gradient of a mixed
directional derivative of the determinant, by elimination over the ring of truncated polynomials
(`Ring`): singular values that are not small are eliminated, the few small ones are left to a
division-free adjugate. The family `cofactor` is closed under differentiation, since the
derivatives of a scalar are symmetric in their directions. Start reading at `cofactor`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.ops.arithmetic import where
from symgrad.ops.contract import flipped
from symgrad.ops.linalg import as_matrices, dominant, inverse_matrix, square
from symgrad.ops.movement import expand, reshape
from symgrad.ops.reduce import part
from symgrad.sample import Case, T

SAFE_CONDITION = (1e4, 1e4, 1e2, 30.0)
"""Condition numbers up to which the inverse serves, by the number of directions.

With m directions terms as large as the inverse to the power m cancel.
"""

MOST_SMALL = 8
"""How many small singular values are spared at most; the adjugate of more would lose digits."""


class Ring:
    """Matrices over polynomials in t1, ..., tm with every tj squared being 0.

    An element is an array (2**m, rows, columns); entry k is the coefficient of the product of the
    tj whose bits are set in k.
    """

    def __init__(self, count: int) -> None:
        self.size = 1 << count
        self.pairs = [(i, j) for i in range(self.size) for j in range(self.size) if not i & j]
        self.order = count

    def constant(self, m: np.ndarray) -> np.ndarray:
        """A matrix without nilpotent part."""
        made = np.zeros((self.size, *m.shape), m.dtype)
        made[0] = m
        return made

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Matrix product; numbers are 1 by 1 matrices."""
        made = np.zeros((self.size, x.shape[1], y.shape[2]), x.dtype)
        for i, j in self.pairs:
            made[i | j] += x[i] @ y[j]
        return made

    def times(self, number: np.ndarray, x: np.ndarray) -> np.ndarray:
        """A 1 by 1 element times a matrix."""
        made = np.zeros_like(x)
        for i, j in self.pairs:
            made[i | j] += number[i, 0, 0] * x[j]
        return made

    def trace(self, x: np.ndarray) -> np.ndarray:
        """The trace as a 1 by 1 element."""
        return np.trace(x, axis1=1, axis2=2).reshape(self.size, 1, 1)

    def inverse_and_determinant(
        self, inverse: np.ndarray, determinant: float, nilpotent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of M + N, from M's inverse and determinant and a nilpotent N, by finite series."""
        step = self.product(self.constant(inverse), nilpotent)
        power = self.constant(np.eye(len(inverse)))
        total = power.copy()
        logarithm = np.zeros((self.size, 1, 1))
        for k in range(1, self.order + 1):
            power = self.product(power, step)
            total += power if k % 2 == 0 else -power
            logarithm += self.trace(power) * ((1 if k % 2 else -1) / k)
        one = self.constant(np.ones((1, 1)))
        exponential, term = one.copy(), one
        for k in range(1, self.order + 1):
            term = self.product(term, logarithm) / k
            exponential += term
        return self.product(total, self.constant(inverse)), exponential * determinant

    def adjugate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adjugate and determinant without division by elements (Faddeev and LeVerrier)."""
        n = x.shape[1]
        unit = self.constant(np.eye(n))
        m = unit
        coefficient = self.constant(np.ones((1, 1)))
        for k in range(1, n + 1):
            product = self.product(x, m)
            coefficient = -self.trace(product) / k
            if k < n:
                m = product + self.times(coefficient, unit)
        sign = -1.0 if n % 2 else 1.0
        return -sign * m, sign * coefficient


class _Basis(NamedTuple):
    """Coordinates in which elimination is safe: left' A right has `large` on a leading block."""

    left: np.ndarray
    right: np.ndarray
    sign: float
    large: np.ndarray
    small: np.ndarray


def _basis(a: np.ndarray, condition: float) -> _Basis:
    u, s, vh = np.linalg.svd(a)
    sign = float(np.sign(np.linalg.det(u)) * np.sign(np.linalg.det(vh)))
    spared = max(len(s) - MOST_SMALL, int(np.sum(s * condition > s[0])))
    # What is zero to rounding is never divided by.
    count = min(spared, int(np.sum(s > len(s) * np.finfo(s.dtype).eps * s[0])))
    return _Basis(u, vh.T, sign, s[:count], s[count:])


def _mixed_cofactor(a: np.ndarray, directions: tuple[np.ndarray, ...]) -> np.ndarray:
    """Gradient in A of the mixed derivative of det at A along the directions."""
    n = len(a)
    ring = Ring(len(directions))
    nilpotent = np.zeros((ring.size, n, n))
    if n == 1:
        return np.ones((1, 1)) if not directions else np.zeros((1, 1))
    for bit, x in enumerate(directions):
        nilpotent[1 << bit] = x
    condition = SAFE_CONDITION[min(len(directions), 3)]
    inverse = _safe_inverse(a, condition)
    if inverse is not None:
        whole, number = ring.inverse_and_determinant(inverse, float(np.linalg.det(a)), nilpotent)
        return ring.times(number, whole)[-1].T
    basis = _basis(a, condition)
    turned = np.asarray([basis.left.T @ x @ basis.right for x in nilpotent])
    adjugate = _block_adjugate(ring, turned, basis.large, basis.small)[-1]
    return basis.sign * (basis.left @ adjugate.T @ basis.right.T)


def _safe_inverse(a: np.ndarray, condition: float) -> np.ndarray | None:
    """The inverse, if the matrix is far from singular."""
    try:
        inverse = np.linalg.inv(a)
    except np.linalg.LinAlgError:
        return None
    return inverse if np.linalg.norm(a) * np.linalg.norm(inverse) < condition else None


def _block_adjugate(
    ring: Ring, nilpotent: np.ndarray, large: np.ndarray, small: np.ndarray
) -> np.ndarray:
    """Adjugate of diag(large, small) + nilpotent, dividing by the large ones only."""
    r = len(large)
    inverse, determinant = ring.inverse_and_determinant(
        np.diag(1.0 / large), float(np.prod(large)), nilpotent[:, :r, :r]
    )
    if not len(small):
        return ring.times(determinant, inverse)
    above, beside = nilpotent[:, :r, r:], nilpotent[:, r:, :r]
    left = ring.product(inverse, above)
    right = ring.product(beside, inverse)
    rest = ring.constant(np.diag(small)) + nilpotent[:, r:, r:] - ring.product(beside, left)
    corner, last = ring.adjugate(rest)
    whole = np.empty_like(nilpotent)
    whole[:, r:, r:] = corner
    whole[:, :r, r:] = -ring.product(left, corner)
    whole[:, r:, :r] = -ring.product(corner, right)
    whole[:, :r, :r] = ring.times(last, inverse) + ring.product(ring.product(left, corner), right)
    return ring.times(determinant, whole)


def _ref_cofactor(a: np.ndarray, *directions: np.ndarray) -> np.ndarray:
    stack = as_matrices(a).astype(np.float64)
    ways = [as_matrices(x).astype(np.float64) for x in directions]
    if not a.size:
        return np.zeros_like(a)
    made = [
        _mixed_cofactor(m, tuple(w[k] for w in ways)) if np.isfinite(m).all() else m * np.nan
        for k, m in enumerate(stack)
    ]
    return np.asarray(made).reshape(a.shape).astype(a.dtype)


def _rank_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Singular matrices of rank one."""
    return rng.uniform(0.5, 1, (*shape[:-1], 1)) * rng.uniform(0.5, 1, (*shape[:-2], 1, shape[-1]))


@op
class cofactor(Library):
    """Gradient of the mixed derivative of det(A): arguments A, X1, ..., Xm (m may be 0).

    D^m det(A)[X1, ..., Xm] is symmetric and linear in the directions, so the derivative of this
    gradient in A along G is the same with one more direction, and in Xj it is the same with G in
    Xj's place.
    """

    public = False
    native = "cofactor"
    eager_check = False
    ref = _ref_cofactor
    samples = (
        Case(T(3, 3)),
        Case(T(2, 3, 3), T(2, 3, 3)),
        Case(T(3, 3, make=_rank_one), T(3, 3)),
    )

    def shape(a: Expr, *directions: Expr) -> tuple[int, ...]:
        return a.shape

    def vjp(g: Expr, out: Expr, a: Expr, *directions: Expr) -> Any:
        passed = [cofactor(a, *directions, g)]
        for place in range(len(directions)):
            passed.append(cofactor(a, *directions[:place], g, *directions[place + 1 :]))
        return tuple(passed)


@op
class linalg_det(Library):
    """Determinant of square matrices; derivatives of every order are right at singular ones."""

    aliases = ("det",)
    native = "det"
    eager_check = False
    ref = np.linalg.det
    samples = (
        Case(T(3, 3)),
        Case(T(2, 4, 4)),
        Case(T(3, 3, make=_rank_one)),
        Case(T(1, 1)),
        Case(T(0, 0)),
    )
    errors = (
        Case(T(2, 3), match="must be batches of square matrices, but they are 2 by 3 matrices"),
    )

    def shape(A: Expr) -> tuple[int, ...]:
        square("linalg.det", A)
        return A.shape[:-2]

    def vjp(g: Expr, out: Expr, A: Expr) -> Any:
        return (expand(reshape(g, (*g.shape, 1, 1)), A.shape) * cofactor(A),)


class SignLogDet(NamedTuple):
    """Sign of a determinant and logarithm of its absolute value."""

    sign: Expr
    logabsdet: Expr


def _ref_pair(a: np.ndarray) -> np.ndarray:
    sign, logarithm = np.linalg.slogdet(a)
    return np.stack([sign, logarithm], axis=-1)


@op
class slogdet_pair(Library):
    """Sign of the determinant and logarithm of its absolute value, along a new last axis."""

    public = False
    native = "slogdet"
    eager_check = False
    ref = _ref_pair
    samples = (Case(T(3, 3, make=dominant)), Case(T(2, 3, 3, make=dominant)))

    def shape(a: Expr) -> tuple[int, ...]:
        return (*a.shape[:-2], 2)

    def vjp(g: Expr, out: Expr, a: Expr) -> Any:
        passed = reshape(part(g, g.ndim - 1, 1, 1), (*g.shape[:-1], 1, 1))
        return (expand(passed, a.shape) * flipped(inverse_matrix(a, check=False)),)


def _sign_and_log(name: str, a: Expr) -> SignLogDet:
    square(name, a)
    both = slogdet_pair(a)
    last = both.ndim - 1
    shape = both.shape[:-1]
    return SignLogDet(
        reshape(part(both, last, 0, 1), shape), reshape(part(both, last, 1, 1), shape)
    )


@composite(
    ref=lambda a: tuple(np.linalg.slogdet(a)),
    samples=(Case(T(3, 3, make=dominant)), Case(T(2, 3, 3, make=dominant)), Case(T(0, 0))),
    errors=(Case(T(2, 3), match="must be batches of square matrices"),),
    aliases=("slogdet",),
)
def linalg_slogdet(A: Expr) -> SignLogDet:
    """Sign of the determinant and logarithm of its absolute value."""
    return _sign_and_log("linalg.slogdet", A)


@composite(
    ref=lambda a: np.linalg.slogdet(a)[1],
    samples=(Case(T(3, 3, make=dominant)), Case(T(2, 3, 3, make=dominant))),
    errors=(Case(T(2, 3), match="must be batches of square matrices"),),
)
def logdet(input: Expr) -> Expr:
    """Logarithm of the determinant; NaN where it is negative, -inf where it is 0."""
    sign, logarithm = _sign_and_log("logdet", input)
    return where(sign < 0, float("nan"), logarithm)

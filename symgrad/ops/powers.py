"""Integer powers and the exponential of square matrices.

`exponential_derivative` is the family of derivatives of the exponential, closed under
differentiation. Start reading at `linalg_matrix_exp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Library, composite, op
from symgrad.ops.contract import flipped, matmul
from symgrad.ops.linalg import dominant, identity_like, linalg_inv, square
from symgrad.sample import Case, T


@composite(
    ref=np.linalg.matrix_power,
    samples=(Case(T(3, 3), 3), Case(T(2, 3, 3), 0), Case(T(2, 2, make=dominant), -2)),
    errors=(Case(T(2, 3), 2, match="must be batches of square matrices"),),
    aliases=("matrix_power",),
)
def linalg_matrix_power(A: Expr, n: int) -> Expr:
    """Integer power of square matrices, by repeated squaring."""
    square("linalg.matrix_power", A)
    if n == 0:
        return identity_like(A)
    power = A if n > 0 else linalg_inv(A)
    left = abs(n)
    result: Expr | None = None
    while left:
        if left & 1:
            result = power if result is None else matmul(result, power)
        left >>= 1
        if left:
            power = matmul(power, power)
    assert result is not None
    return result


def _ref_exponential(a: np.ndarray) -> np.ndarray:
    from scipy.linalg import expm

    return np.asarray(expm(a)).astype(a.dtype) if a.size else a


def _ref_exponential_derivative(a: np.ndarray, *directions: np.ndarray) -> np.ndarray:
    n = a.shape[-1]
    count = len(directions)
    blocks = 1 << count
    whole = np.zeros((*a.shape[:-2], blocks * n, blocks * n), a.dtype)
    for k in range(blocks):
        rows = slice(k * n, k * n + n)
        whole[..., rows, rows] = a
        for bit, x in enumerate(directions):
            if not k >> bit & 1:
                other = (k | 1 << bit) * n
                whole[..., rows, other : other + n] = x
    return _ref_exponential(whole)[..., :n, -n:]


@op
class exponential_derivative(Library):
    """Mixed directional derivative of the matrix exponential: arguments A, X1, ..., Xm.

    It is the corner block of the exponential of a matrix of 2**m blocks (Higham and Relton 2014,
    "Higher order Fréchet derivatives of matrix functions"). Linear in each direction, and its
    adjoints are derivatives at the transposed arguments.
    """

    public = False
    eager_check = False
    ref = _ref_exponential_derivative
    samples = (
        Case(T(3, 3, lo=-1.0, hi=1.0), T(3, 3)),
        Case(T(2, 2, 2, lo=-1.0, hi=1.0), T(2, 2, 2), T(2, 2, 2)),
    )

    def shape(a: Expr, *directions: Expr) -> tuple[int, ...]:
        return a.shape

    def vjp(g: Expr, out: Expr, a: Expr, *directions: Expr) -> Any:
        across = [flipped(x) for x in directions]
        at = flipped(a)
        passed = [exponential_derivative(at, *across, g)]
        for place in range(len(across)):
            others = [*across[:place], g, *across[place + 1 :]]
            passed.append(exponential_derivative(at, *others))
        return tuple(passed)


@op
class linalg_matrix_exp(Library):
    """Exponential of square matrices."""

    aliases = ("matrix_exp",)
    eager_check = False
    ref = _ref_exponential
    samples = (Case(T(3, 3, lo=-1.0, hi=1.0)), Case(T(2, 2, 2, lo=-1.0, hi=1.0)))
    errors = (Case(T(2, 3), match="must be batches of square matrices"),)

    def shape(A: Expr) -> tuple[int, ...]:
        square("linalg.matrix_exp", A)
        return A.shape

    def vjp(g: Expr, out: Expr, A: Expr) -> Any:
        return (exponential_derivative(flipped(A), g),)

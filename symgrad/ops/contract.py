"""Contractions: everything that multiplies and sums goes through one batched matrix product.

`batched_product` is the primitive; `matmul`, `einsum` and the rest bring their operands to it.
Start reading at `matmul`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.op import Case, Contract, T, broadcast_shapes, cast_to, composite, op, promote
from symgrad.ops.movement import expand, permute, reshape


def flipped(x: Expr) -> Expr:
    """The last two axes exchanged."""
    n = x.ndim
    return permute(x, (*range(n - 2), n - 1, n - 2))  # type: ignore[no-any-return]


@op
class batched_product(Contract):
    """(B, M, K) times (B, K, N): one fma chain per 384 terms, chains joined in a fixed tree."""

    samples = (Case(T(2, 3, 4), T(2, 4, 5)), Case(T(1, 1, 4), T(1, 4, 3)), Case(T(1, 3, 0), T(1, 0, 2)))
    ref = np.matmul

    def sympy(sp: Any, a: Any, b: Any) -> Any:
        return sp.Function("matmul")(a, b)

    def adjoint(g: Expr, a: Expr, b: Expr) -> Any:
        return batched_product(g, flipped(b)), batched_product(flipped(a), g)


@composite(
    ref=np.matmul,
    samples=(
        Case(T(3, 4), T(4, 2)),
        Case(T(4), T(4)),
        Case(T(3, 4), T(4)),
        Case(T(4), T(4, 2)),
        Case(T(2, 1, 3, 4), T(5, 4, 2)),
        Case(T(2, 3, 4), T(4)),
    ),
    errors=(Case(T(2, 3), T(4, 5), match=r"shapes cannot be multiplied \(2x3 and 4x5\)"),),
)
def matmul(a: Expr, b: Expr) -> Expr:
    """Matrix product with torch's rules for vectors and batches."""
    dtype = promote((a, b))
    if dtype is not a.dtype or dtype is not b.dtype:
        raise RuntimeError(
            f"matmul: expected both operands to have the same dtype, but got: {a.dtype!r} and "
            f"{b.dtype!r}; convert one with .to"
        )
    a, b = cast_to(a, dtype), cast_to(b, dtype)
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(
            f"matmul: both arguments need at least one dimension (got {a.ndim}D and {b.ndim}D); use *"
        )
    left = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
    m, k = left.shape[-2:]
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise RuntimeError(
            f"matmul: mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {right.shape[-2]}x{n}) "
            f"(got {a.shape} and {b.shape}); transpose or reshape one"
        )
    if right.ndim == 2 and left.ndim > 2:
        # A shared right operand: fold the batch into the rows of one product.
        folded = reshape(left, (1, left.size // k if k else _rows(left), k))
        product = batched_product(folded, reshape(right, (1, k, n)))
        result = reshape(product, (*left.shape[:-1], n))
    else:
        batch = broadcast_shapes("matmul", [left.shape[:-2], right.shape[:-2]])
        count = 1
        for s in batch:
            count *= s
        left3 = reshape(expand(left, (*batch, m, k)), (count, m, k))
        right3 = reshape(expand(right, (*batch, k, n)), (count, k, n))
        result = reshape(batched_product(left3, right3), (*batch, m, n))
    if b.ndim == 1:
        result = reshape(result, result.shape[:-1])
    if a.ndim == 1:
        at = result.ndim - 1 if b.ndim == 1 else result.ndim - 2
        result = reshape(result, result.shape[:at] + result.shape[at + 1 :])
    return result  # type: ignore[no-any-return]


def _rows(x: Expr) -> int:
    rows = 1
    for s in x.shape[:-1]:
        rows *= s
    return rows

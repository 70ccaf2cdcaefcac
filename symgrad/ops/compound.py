"""Arithmetic written with the elementwise ops: scaled sums, reciprocals, interpolation.

Start reading at `addcmul`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.ops.arithmetic import Number, Operand, add, div, is_int, lt, mul, sub, where
from symgrad.ops.choice import abs as absolute
from symgrad.sample import Case, T


def _ref_rsub(x: Any, other: Any, *, alpha: Number = 1) -> Any:
    return np.subtract(other, alpha * np.asarray(x))


@composite(ref=_ref_rsub, samples=(Case(T(2, 3), T(3)), Case(T(3), 2.5, alpha=0.5)))
def rsub(input: Expr, other: Operand, *, alpha: Number = 1) -> Expr:
    """other - alpha * x."""
    return sub(other, input, alpha=alpha)  # type: ignore[no-any-return]


@composite(ref=np.positive, samples=(Case(T(2, 3)), Case(T(3, dtype="int"))))
def positive(input: Expr) -> Expr:
    """The operand itself; bool is refused."""
    if input.dtype.category == 0:
        raise RuntimeError(
            "positive: The `+` operator, on a bool tensor is not supported (got bool); "
            "convert with .to(symgrad.int64)"
        )
    return input


def _ref_reciprocal(x: np.ndarray) -> Any:
    return np.divide(1.0, x)


@composite(ref=_ref_reciprocal, samples=(Case(T(2, 3, lo=0.5, hi=2)), Case(T(lo=0.5, hi=2))))
def reciprocal(input: Expr) -> Expr:
    """The reciprocal 1 / x; integers become the default float first."""
    return div(1.0, input)  # type: ignore[no-any-return]


def _ref_addcmul(x: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    return x + value * tensor1 * tensor2


@composite(
    ref=_ref_addcmul,
    samples=(Case(T(2, 3), T(2, 3), T(2, 3)), Case(T(2, 3), T(3), T(2, 1), value=0.5)),
)
def addcmul(input: Expr, tensor1: Expr, tensor2: Expr, *, value: Number = 1) -> Expr:
    """x + value * tensor1 * tensor2."""
    product = mul(tensor1, tensor2)
    return add(input, product if value == 1 else mul(product, value))  # type: ignore[no-any-return]


def _ref_addcdiv(x: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    return x + value * tensor1 / tensor2


@composite(
    ref=_ref_addcdiv,
    samples=(
        Case(T(2, 3), T(2, 3), T(2, 3, lo=0.5, hi=2)),
        Case(T(2, 3), T(3), T(2, 1, lo=0.5, hi=2), value=0.5),
    ),
    errors=(
        Case(
            T(2, dtype="int"),
            T(2, dtype="int"),
            T(2, dtype="int"),
            match="Integer division with addcdiv is no longer supported",
        ),
    ),
)
def addcdiv(input: Expr, tensor1: Expr, tensor2: Expr, *, value: Number = 1) -> Expr:
    """x + value * tensor1 / tensor2."""
    if is_int(tensor1, tensor2):
        raise RuntimeError(
            "addcdiv: Integer division with addcdiv is no longer supported (got "
            f"{tensor1.dtype!r} and {tensor2.dtype!r}); convert one operand to a floating type"
        )
    top = tensor1 if value == 1 else mul(tensor1, value)
    return add(input, div(top, tensor2))  # type: ignore[no-any-return]


def _ref_lerp(x: np.ndarray, end: np.ndarray, weight: Any) -> Any:
    return x + weight * (end - x)


@composite(
    ref=_ref_lerp,
    samples=(
        Case(T(2, 3), T(3), 0.25),
        Case(T(2, 3), T(3), 0.75),
        Case(T(2, 3), T(2, 3), T(3, lo=0, hi=1)),
    ),
    errors=(Case(T(2), T(2, dtype="int"), 0.5, match="expected dtype .* for `end` but got dtype"),),
)
def lerp(input: Expr, end: Expr, weight: Operand) -> Expr:
    """x + weight * (end - x), from the nearer end, so that weights 0 and 1 are exact."""
    if end.dtype is not input.dtype:
        raise RuntimeError(
            f"lerp: expected dtype {input.dtype.name} for `end` but got dtype {end.dtype.name}; "
            "convert one with .to"
        )
    span = sub(end, input)
    near_start = add(input, mul(weight, span))
    near_end = sub(end, mul(span, sub(1.0, weight) if isinstance(weight, Expr) else 1.0 - weight))
    if isinstance(weight, Expr):
        return where(lt(absolute(weight), 0.5), near_start, near_end)  # type: ignore[no-any-return]
    return near_start if -0.5 < weight < 0.5 else near_end  # type: ignore[no-any-return]

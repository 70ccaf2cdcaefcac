"""Tensors made from positions alone.

`iota` is the one primitive: the index along an axis. Ranges, identities and triangular masks are
written with it; bounds and steps are operands, so another range is the same program. Start
reading at `iota`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Create, op
from symgrad.op import cast_to, constant, record, value_of
from symgrad.ops import movement
from symgrad.ops.arithmetic import eq, where
from symgrad.ops.movement import reshape
from symgrad.sample import Case


@op
class iota(Create):
    """The integers 0, 1, ..., n-1 as int64."""

    attributes = ("count",)
    public = False
    nodiff = "does not depend on a tensor"
    samples = (Case(count=5), Case(count=0))

    def __call__(self, *, count: int) -> Expr:
        return record(self, (), (count,), (count,), dtypes.int64)  # type: ignore[arg-type]

    def ref(*, count: int) -> Any:
        return np.arange(count, dtype=np.int64)

    def sympy(sp: Any, *, count: int) -> Any:
        return sp.Symbol("i", integer=True)


def number_of(name: str, x: Any) -> bool | int | float:
    """A Python number from a number or a 0-d tensor whose value is known.

    Raises
    ------
    RuntimeError
        If it depends on a traced input.
    """
    if isinstance(x, Expr):
        value = value_of(x)
        if value is None:
            raise RuntimeError(
                f"{name}: an argument depends on a traced input, so the shape is not known; use a "
                "Python number"
            )
        return value.item()  # type: ignore[no-any-return]
    if isinstance(x, np.generic):
        return x.item()  # type: ignore[no-any-return]
    if not isinstance(x, bool | int | float):
        raise TypeError(f"{name}: needs numbers (got {type(x).__name__})")
    return x


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: DType | None = None) -> Expr:
    """The numbers start, start + step, ... before `end`; ``arange(end)`` starts at 0.

    Parameters
    ----------
    start, end, step : number or 0-d Expr
    dtype : DType, optional
        int64 if all are integers, else the default float.
    """
    if end is None:
        start, end = 0, start
    low, high, by = (number_of("arange", v) for v in (start, end, step))
    if by == 0:
        raise RuntimeError("arange: step must be nonzero (got 0)")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"arange: unsupported range: {low} -> {high}")
    if (high - low) * (1 if by > 0 else -1) < 0:
        raise RuntimeError(
            f"arange: upper bound and lower bound inconsistent with step sign (got {low}, {high}, {by})"
        )
    whole = all(isinstance(v, int) for v in (low, high, by))
    if dtype is None:
        dtype = dtypes.int64 if whole else dtypes.get_default_dtype()
    dtype = dtypes.as_dtype(dtype)
    count = -((low - high) // by) if whole else math.ceil((high - low) / by)
    inner = dtypes.int64 if whole else dtypes.float64
    made = cast_to(iota(count=int(count)), inner)
    if by != 1:
        made = made * constant(by, inner)
    if low != 0:
        made = made + constant(low, inner)
    return cast_to(made, dtype)


def linspace(start: Any, end: Any, steps: int, *, dtype: DType | None = None) -> Expr:
    """`steps` numbers evenly spaced from `start` to `end`, both included.

    Counted from the nearer end, so both ends are exact and the middle is symmetric.
    """
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return cast_to(_spaced("linspace", start, end, steps), kind)


def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: DType | None = None
) -> Expr:
    """`steps` powers of `base`, with exponents evenly spaced from `start` to `end`."""
    from symgrad.ops.power import pow

    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    exponents = _spaced("logspace", start, end, steps)
    return cast_to(pow(constant(base, dtypes.float64), exponents), kind)


def _spaced(name: str, start: Any, end: Any, steps: int) -> Expr:
    low, high = float(number_of(name, start)), float(number_of(name, end))
    if steps < 0:
        raise RuntimeError(f"{name}: number of steps must be non-negative (got {steps})")
    first, last = constant(low, dtypes.float64), constant(high, dtypes.float64)
    if steps == 1:
        return reshape(first, (1,))  # type: ignore[no-any-return]
    by = constant((high - low) / max(steps - 1, 1), dtypes.float64)
    place = iota(count=steps)
    forward = first + by * cast_to(place, dtypes.float64)
    backward = last - by * cast_to((steps - 1) - place, dtypes.float64)
    return where(place < steps // 2, forward, backward)  # type: ignore[no-any-return]


def eye(n: int, m: int | None = None, *, dtype: DType | None = None) -> Expr:
    """Ones on the main diagonal of an n by m matrix, zeros elsewhere."""
    columns = n if m is None else m
    if n < 0 or columns < 0:
        raise RuntimeError(f"eye: n and m must be greater or equal to 0 (got {n}, {columns})")
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return cast_to(eq(reshape(iota(count=n), (n, 1)), iota(count=columns)), kind)


def full(size: tuple[int, ...], fill_value: Any, *, dtype: DType | None = None) -> Expr:
    """One value under a shape; the value is an operand."""
    value = number_of("full", fill_value)
    kind = dtypes.of_number(value) if dtype is None else dtypes.as_dtype(dtype)
    return movement.full(value, tuple(size), kind)


def zeros(*size: Any, dtype: DType | None = None) -> Expr:
    """Zeros under a shape."""
    return full(movement.shape_of(size), 0, dtype=dtype or dtypes.get_default_dtype())


def ones(*size: Any, dtype: DType | None = None) -> Expr:
    """Ones under a shape."""
    return full(movement.shape_of(size), 1, dtype=dtype or dtypes.get_default_dtype())

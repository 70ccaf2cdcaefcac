"""Reductions: one axis at a time, in a fixed blocked tree, so that bits depend on the shape only.

The primitives reduce one axis (`sum_axis`, `prod_axis`, `max_axis`, ...); the functions with
torch's signatures (`sum`, `amax`, ...) reduce the named axes one by one, last first. Start
reading at `sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import Case, Cumulative, Reduce, T, cast_to, composite, op
from symgrad.ops.arithmetic import eq
from symgrad.ops.movement import expand, reshape, wrap_dim

Dims = int | Sequence[int] | None


def reduced_dims(name: str, x: Expr, dim: Dims) -> tuple[int, ...]:
    """The axes to reduce, ascending; all when `dim` is None or empty."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(x.ndim))
    given = [dim] if isinstance(dim, int) else list(dim)
    wrapped = [wrap_dim(name, d, x.ndim) for d in given]
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(f"{name}: dim appears multiple times in the list of dims (got {dim})")
    return tuple(d for d in sorted(wrapped) if x.ndim)


def keep_dims(x: Expr, shape: tuple[int, ...], dims: tuple[int, ...]) -> Expr:
    """A reduced `x` with its reduced axes put back as size 1."""
    kept = tuple(1 if d in dims else s for d, s in enumerate(shape))
    return reshape(x, kept)  # type: ignore[no-any-return]


def along(name: str, primitive: Callable[..., Expr], x: Expr, dim: Dims, keepdim: bool) -> Expr:
    """Apply a one-axis reduction over several axes, last first."""
    dims = reduced_dims(name, x, dim)
    result = x
    for d in reversed(dims):
        result = primitive(result, dim=d)
    return keep_dims(result, x.shape, dims) if keepdim else result


def restore(g: Expr, x: Expr, dim: int) -> Expr:
    """A reduced quantity repeated along the axis it lost."""
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    return expand(reshape(g, shape), x.shape)  # type: ignore[no-any-return]


def sum_to(g: Expr, shape: tuple[int, ...]) -> Expr:
    """Sum away broadcasting: the adjoint of `expand`."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    dims = [d for d in range(g.ndim) if d < extra or (shape[d - extra] == 1 and g.shape[d] != 1)]
    result = g
    for d in reversed(dims):
        result = sum_axis(result, dim=d)
    return reshape(result, shape)  # type: ignore[no-any-return]


@op
class sum_axis(Reduce):
    """Sum along one axis."""

    combine = "add"
    linear = "joint"
    identity = -0.0
    samples = (Case(T(3, 4), dim=1), Case(T(800), dim=0), Case(T(4, 3), dim=0), Case(T(0, 3), dim=0))

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.sum(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("sum")(x)

    def adjoint(g: Expr, x: Expr, *, dim: int) -> Any:
        return (restore(g, x, dim),)


@op
class max_axis(Reduce):
    """Largest element along one axis; NaN if there is one. Ties share the derivative."""

    combine = "max"
    identity = -np.inf
    samples = (Case(T(3, 4), dim=1), Case(T(70), dim=0), Case(T(4, 3), dim=0))

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.max(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("max")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_shared_among_ties(g, out, x, dim),)


@op
class min_axis(Reduce):
    """Smallest element along one axis; NaN if there is one. Ties share the derivative."""

    combine = "min"
    identity = np.inf
    samples = (Case(T(3, 4), dim=1), Case(T(70), dim=0), Case(T(4, 3), dim=0))

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.min(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("min")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_shared_among_ties(g, out, x, dim),)


def _shared_among_ties(g: Expr, out: Expr, x: Expr, dim: int) -> Expr:
    from symgrad.ops.arithmetic import keep

    hit = eq(x, restore(out, x, dim))
    count = sum_axis(cast_to(hit, g.dtype), dim=dim)
    return keep(hit, restore(g / count, x, dim))  # type: ignore[no-any-return]


@op
class cumsum_axis(Cumulative):
    """Running sum along one axis, in order."""

    combine = "add"
    linear = "joint"
    samples = (Case(T(3, 4), dim=1), Case(T(4, 3), dim=0), Case(T(0), dim=0))

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.cumsum(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("cumsum")(x)

    def adjoint(g: Expr, x: Expr, *, dim: int) -> Any:
        from symgrad.ops.movement import flip

        return (flip(cumsum_axis(flip(g, (dim,)), dim=dim), (dim,)),)


def summed_dtype(x: Expr, dtype: DType | None) -> Expr:
    """`x` in the dtype that a sum or product of it has: integers and bool sum as int64."""
    if dtype is not None:
        return cast_to(x, dtypes.as_dtype(dtype))
    return x if x.dtype.category == 2 else cast_to(x, dtypes.int64)


def _ref_sum(x: np.ndarray, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axis = tuple(dim) if isinstance(dim, list | tuple) and dim else dim
    return np.sum(x, axis=axis or (axis if axis == 0 else None), keepdims=keepdim)


@composite(
    ref=_ref_sum,
    samples=(
        Case(T(3, 4)),
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), (0, 2), True),
        Case(T()),
        Case(T(3, 0), 1),
        Case(T(3, dtype="bool")),
    ),
    errors=(Case(T(3), 1, match="Dimension out of range", error=IndexError),),
)
def sum(  # noqa: A001
    x: Expr, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Sum over the given dimensions, or all."""
    return along("sum", sum_axis, summed_dtype(x, dtype), dim, keepdim)

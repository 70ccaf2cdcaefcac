"""Reductions: one axis at a time, in a fixed blocked tree, so that bits depend on the shape only.

The primitives reduce one axis (`sum_axis`, `prod_axis`, `max_axis`, ...). The functions with
torch's signatures stand on them: sums and truth tests take the named axes one by one, last first
(`along`); products and extrema, whose derivatives look at all reduced elements together, make one
axis of them first (`whole`). Extrema are in `symgrad.ops.extrema`, running sums in
`symgrad.ops.cumulative`, means, variances and norms in `symgrad.ops.statistics`. Start reading at `sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Reduce, composite, op
from symgrad.op import cast_to
from symgrad.ops.arithmetic import keep, mul, ne
from symgrad.ops.movement import (
    expand,
    full,
    join_axis,
    narrow_step,
    permute,
    reshape,
    wrap_dim,
)
from symgrad.sample import Case, T

Dims = int | Sequence[int] | None


# -- axes -------------------------------------------------------------------------------


def reduced_dims(name: str, x: Expr, dim: Dims) -> tuple[int, ...]:
    """The axes to reduce, ascending; all when `dim` is None or empty."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(x.ndim))
    given = list(dim) if isinstance(dim, list | tuple) else [dim]
    wrapped = [wrap_dim(name, d, x.ndim) for d in given]
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(
            f"{name}: dim appears multiple times in the list of dims (got {dim}); name each once"
        )
    return tuple(d for d in sorted(wrapped) if x.ndim)


def keep_dims(x: Expr, shape: tuple[int, ...], dims: tuple[int, ...]) -> Expr:
    """A reduced `x` with its reduced axes put back as size 1."""
    kept = tuple(1 if d in dims else s for d, s in enumerate(shape))
    return reshape(x, kept)


def along(name: str, primitive: Callable[..., Expr], x: Expr, dim: Dims, keepdim: bool) -> Expr:
    """Apply a one-axis reduction over several axes, last first."""
    dims = reduced_dims(name, x, dim)
    result = x
    for d in reversed(dims):
        result = primitive(result, dim=d)
    return keep_dims(result, x.shape, dims) if keepdim else result


def merged(x: Expr, dims: tuple[int, ...]) -> tuple[Expr, int]:
    """`x` with the given axes made one, and the place of that axis."""
    if len(dims) == 1:
        return x, dims[0]
    kept = [d for d in range(x.ndim) if d not in dims]
    moved = permute(x, (*kept, *dims))
    return reshape(moved, (*moved.shape[: len(kept)], count_of(x.shape, dims))), len(kept)


def whole(name: str, primitive: Callable[..., Expr], x: Expr, dim: Dims, keepdim: bool) -> Expr:
    """Apply a one-axis reduction over several axes made one."""
    dims = reduced_dims(name, x, dim)
    result = x
    if dims:
        flat, axis = merged(x, dims)
        result = primitive(flat, dim=axis)
    return keep_dims(result, x.shape, dims) if keepdim else result


def count_of(shape: tuple[int, ...], dims: tuple[int, ...]) -> int:
    """How many elements the given axes hold together."""
    total = 1
    for d in dims:
        total *= shape[d]
    return total


def restore(g: Expr, x: Expr, dim: int) -> Expr:
    """A reduced quantity repeated along the axis it lost; a selection in it stays outermost."""
    if g.op is keep:
        condition, inner = g.args
        return keep(restore(condition, x, dim), restore(inner, x, dim))
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    return expand(reshape(g, shape), x.shape)


def sum_to(g: Expr, shape: tuple[int, ...]) -> Expr:
    """Sum away broadcasting: the adjoint of `expand`."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    dims = [d for d in range(g.ndim) if d < extra or (shape[d - extra] == 1 and g.shape[d] != 1)]
    result = g
    for d in reversed(dims):
        result = sum_axis(result, dim=d)
    return reshape(result, shape)


def part(x: Expr, dim: int, start: int, count: int) -> Expr:
    """`count` elements along one axis from `start`."""
    starts = tuple(start if d == dim else 0 for d in range(x.ndim))
    counts = tuple(count if d == dim else s for d, s in enumerate(x.shape))
    return narrow_step(x, starts=starts, steps=(1,) * x.ndim, counts=counts)


# -- primitives -------------------------------------------------------------------------


@op
class sum_axis(Reduce):
    """Sum along one axis."""

    public = False
    combine = "add"
    linear = "joint"
    identity = -0.0
    samples = (
        Case(T(3, 4), dim=1),
        Case(T(800), dim=0),
        Case(T(4, 3), dim=0),
        Case(T(0, 3), dim=0),
    )

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.sum(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("sum")(x)

    def adjoint(g: Expr, x: Expr, *, dim: int) -> Any:
        return (restore(g, x, dim),)


@op
class prod_axis(Reduce):
    """Product along one axis; the derivative is right with any number of zeros, at every order."""

    public = False
    combine = "mul"
    identity = 1.0
    empty = 1.0
    samples = (
        Case(T(3, 4), dim=1),
        Case(T(70, lo=0.8, hi=1.2), dim=0),
        Case(T(4, 3), dim=0),
        Case(T(0, 3), dim=0),
    )

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.prod(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("prod")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        from symgrad.ops.cumulative import all_but_one

        if g.op is keep:
            condition, inner = g.args
            return (keep(restore(condition, x, dim), all_but_one(inner, x, dim)),)
        return (all_but_one(g, x, dim),)


class _Truth(Reduce):
    """What `any_axis` and `all_axis` share."""

    public = False
    samples = (
        Case(T(3, 4, dtype="bool"), dim=1),
        Case(T(70, dtype="bool"), dim=0),
        Case(T(0, 3, dtype="bool"), dim=0),
    )


@op
class any_axis(_Truth):
    """Whether some element along one axis is true."""

    combine = "or"
    nodiff = "piecewise constant"

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.any(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("any")(x)


@op
class all_axis(_Truth):
    """Whether every element along one axis is true."""

    combine = "and"
    identity = 1.0
    empty = 1.0
    nodiff = "piecewise constant"

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.all(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("all")(x)


# -- sums and products ------------------------------------------------------------------


def summed_dtype(x: Expr, dtype: DType | None) -> Expr:
    """`x` in the dtype that a sum or product of it has: integers and bool sum as int64."""
    if dtype is not None:
        return cast_to(x, dtypes.as_dtype(dtype))
    return x if x.dtype.category >= 2 else cast_to(x, dtypes.int64)


def numpy_axis(dim: Any) -> Any:
    """torch's dim as NumPy's axis; an empty list means all."""
    if isinstance(dim, list | tuple):
        return tuple(dim) or None
    return dim


def _ref_sum(x: np.ndarray, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.sum(x, axis=numpy_axis(dim), keepdims=keepdim)


OUT_OF_RANGE = Case(T(3), 1, match="Dimension out of range", error=IndexError)


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
    errors=(OUT_OF_RANGE, Case(T(3, 3), (0, 0), match="dim appears multiple times")),
)
def sum(
    input: Expr, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Sum over the given dimensions, or all; integers and bool sum as int64."""
    return along("sum", sum_axis, summed_dtype(input, dtype), dim, keepdim)


@composite(
    ref=lambda x, dim=None, keepdim=False, dtype=None: np.prod(x, axis=dim, keepdims=keepdim),
    samples=(Case(T(3, 4)), Case(T(3, 4), 1), Case(T(2, 3), -2, True), Case(T()), Case(T(3, 0), 1)),
    errors=(OUT_OF_RANGE,),
)
def prod(
    input: Expr, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Product over one dimension, or of all elements; right derivatives at zeros of any number."""
    x = summed_dtype(input, dtype)
    return whole("prod", _product_by_halves if x.dtype.is_complex else prod_axis, x, dim, keepdim)


def _product_by_halves(x: Expr, *, dim: int) -> Expr:
    """The product along an axis as a balanced tree of products."""
    while x.shape[dim] > 1:
        half = x.shape[dim] // 2
        product = mul(part(x, dim, 0, half), part(x, dim, half, half))
        rest = part(x, dim, 2 * half, x.shape[dim] - 2 * half)
        x = join_axis(product, rest, dim=dim) if rest.shape[dim] else product
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return reshape(x, shape) if x.shape[dim] else full(1.0, shape, x.dtype)


@composite(
    ref=lambda x, dim=None: np.count_nonzero(x, axis=numpy_axis(dim)),
    samples=(Case(T(3, 4, dtype="bool")), Case(T(3, 4, dtype="int"), 1), Case(T(0))),
    errors=(OUT_OF_RANGE,),
)
def count_nonzero(input: Expr, dim: Dims = None) -> Expr:
    """How many elements differ from zero, as int64."""
    return along("count_nonzero", sum_axis, cast_to(ne(input, 0), dtypes.int64), dim, False)


def _truth(name: str, primitive: Callable[..., Expr], x: Expr, dim: Dims, keepdim: bool) -> Expr:
    result = along(name, primitive, cast_to(x, dtypes.bool_), dim, keepdim)
    return cast_to(result, dtypes.uint8) if x.dtype is dtypes.uint8 else result


@composite(
    ref=lambda x, dim=None, keepdim=False: np.any(x, axis=numpy_axis(dim), keepdims=keepdim),
    samples=(Case(T(3, 4, dtype="bool")), Case(T(3, 4, dtype="bool"), 1, True), Case(T(3, 0), 1)),
    errors=(OUT_OF_RANGE,),
)
def any(input: Expr, dim: Dims = None, keepdim: bool = False) -> Expr:
    """Whether some element is true; NaN counts as true."""
    return _truth("any", any_axis, input, dim, keepdim)


@composite(
    ref=lambda x, dim=None, keepdim=False: np.all(x, axis=numpy_axis(dim), keepdims=keepdim),
    samples=(Case(T(3, 4, dtype="bool")), Case(T(3, 4, dtype="bool"), 1, True), Case(T(3, 0), 1)),
    errors=(OUT_OF_RANGE,),
)
def all(input: Expr, dim: Dims = None, keepdim: bool = False) -> Expr:
    """Whether every element is true; NaN counts as true."""
    return _truth("all", all_axis, input, dim, keepdim)

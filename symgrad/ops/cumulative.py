"""Running sums, products and extrema along one axis, in order.

`cumsum_axis`, `cumprod_axis`, `cummax_axis` and `cummin_axis` are the primitives. Products are
differentiated by running products from both sides and by the linear `recurrence`, which is its own
derivative: no division, so zeros need no care at any order. Start reading at `cumsum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Cumulative, Library, composite, op
from symgrad.op import cast_to
from symgrad.ops.arithmetic import eq, keep, ne, where
from symgrad.ops.extrema import ValuesIndices
from symgrad.ops.layout import axis_index
from symgrad.ops.movement import embed, expand, flip, full, wrap_dim
from symgrad.ops.reduce import OUT_OF_RANGE, part, restore, summed_dtype
from symgrad.ops.transcendental import exp
from symgrad.sample import Case, T


class _Running(Cumulative):
    public = False
    samples = (Case(T(3, 4), dim=1), Case(T(4, 3), dim=0), Case(T(0), dim=0))


@op
class cumsum_axis(_Running):
    """Running sum along one axis, in order."""

    combine = "add"
    identity = -0.0
    linear = "joint"

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.cumsum(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("cumsum")(x)

    def adjoint(g: Expr, x: Expr, *, dim: int) -> Any:
        return (flip(cumsum_axis(flip(g, (dim,)), dim=dim), (dim,)),)


@op
class cumprod_axis(_Running):
    """Running product along one axis; the derivative is right at zeros, at every order."""

    combine = "mul"
    identity = 1.0

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.cumprod(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("cumprod")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        # g_j meets the product of x_1 ... x_j without x_i: what is before i, times what is behind.
        before = _shifted(out, dim, 1, 1.0)
        return (before * _from_behind(x, g, dim),)


def _from_behind(a: Expr, b: Expr, dim: int) -> Expr:
    """r with r_i = b_i + a_(i+1) r_(i+1)."""
    later = _shifted(a, dim, -1, 0.0)
    return flip(recurrence(flip(later, (dim,)), flip(b, (dim,)), dim=dim), (dim,))


def all_but_one(g: Expr, x: Expr, dim: int) -> Expr:
    """g times, for each element along `dim`, the product of all the others, without division."""
    before = _shifted(cumprod_axis(x, dim=dim), dim, 1, 1.0)
    behind = _shifted(cumprod_axis(flip(x, (dim,)), dim=dim), dim, 1, 1.0)
    return restore(g, x, dim) * before * flip(behind, (dim,))


def _ref_recurrence(a: np.ndarray, b: np.ndarray, *, dim: int) -> np.ndarray:
    if not b.size:
        return np.empty_like(b)
    factors, terms = (np.moveaxis(x, dim, 0).reshape(b.shape[dim], -1) for x in (a, b))
    if terms.shape[1] == 1 and b.dtype == np.float64:
        pairs = zip(factors[:, 0].tolist(), terms[:, 0].tolist(), strict=True)
        running = accumulate(pairs, lambda y, pair: pair[1] + pair[0] * y, initial=0.0)
        next(running)
        return np.fromiter(running, np.float64, terms.size).reshape(b.shape)
    result = terms.copy()
    with np.errstate(all="ignore"):
        for k in range(1, len(result)):
            result[k] += factors[k] * result[k - 1]
    rest = b.shape[:dim] + b.shape[dim + 1 :]
    return np.moveaxis(result.reshape(b.shape[dim], *rest), 0, dim)


@op
class recurrence(Library):
    """y with y_i = b_i + a_i y_(i-1) along one axis, from 0: arguments a, b.

    Running products are differentiated with it, and it with itself, without division by elements
    that may be 0.
    """

    public = False
    eager_check = False
    attributes = ("dim",)
    ref = _ref_recurrence
    samples = (
        Case(T(3, 4), T(3, 4), dim=1),
        Case(T(5), T(5), dim=0),
        Case(T(4, 0), T(4, 0), dim=1),
    )

    def shape(a: Expr, b: Expr, *, dim: int) -> tuple[int, ...]:
        return b.shape

    def vjp(g: Expr, out: Expr, a: Expr, b: Expr, *, dim: int) -> Any:
        passed = _from_behind(a, g, dim)
        return passed * _shifted(out, dim, 1, 0.0), passed


def _shifted(x: Expr, dim: int, step: int, fill: float) -> Expr:
    """`x` moved by `step` along `dim`, `fill` coming in."""
    count = x.shape[dim]
    if abs(step) > count:
        return x
    kept = part(x, dim, max(-step, 0), count - abs(step))
    starts = tuple(max(step, 0) if d == dim else 0 for d in range(x.ndim))
    moved = embed(kept, size=x.shape, starts=starts, steps=(1,) * x.ndim)
    if fill == 0.0:
        return moved
    return where(axis_index(x.shape, dim) < step, fill, moved)


class _RunningExtremum(_Running):
    public = False


@op
class cummax_axis(_RunningExtremum):
    """Largest element so far along one axis; the derivative goes to the latest that attains it."""

    combine = "max"
    identity = -np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.maximum.accumulate(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("cummax")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_sum_of_runs(g, _attained(out, x, dim), dim),)


@op
class cummin_axis(_RunningExtremum):
    """Smallest element so far along one axis; the derivative goes to the latest that attains it."""

    combine = "min"
    identity = np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.minimum.accumulate(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("cummin")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_sum_of_runs(g, _attained(out, x, dim), dim),)


def _attained(out: Expr, x: Expr, dim: int) -> Expr:
    """Where the running extremum was last attained."""
    hit = eq(x, out) | ne(x, x)
    position = expand(axis_index(x.shape, dim), x.shape)
    return cummax_axis(keep(hit, position), dim=dim)


def _sum_of_runs(g: Expr, position: Expr, dim: int) -> Expr:
    """Sums of `g` over the runs that share a position, each placed there.

    Runs are contiguous and start at their position, so a running sum from the right that starts
    afresh where a run begins has them; it is done by doubling, without cancellation.
    """
    count = g.shape[dim]
    result = g
    step = 1
    while step < count:
        same = eq(_shifted_position(position, dim, step), position)
        result = result + keep(same, _shifted(result, dim, -step, 0.0))
        step *= 2
    first = eq(position, axis_index(g.shape, dim))
    return keep(first, result)


def _shifted_position(position: Expr, dim: int, step: int) -> Expr:
    moved = _shifted(position + 1, dim, -step, 0.0)
    return moved - 1


# -- torch's functions ------------------------------------------------------------------


def _dim_of(name: str, x: Expr, dim: int) -> int:
    return wrap_dim(name, dim, x.ndim)


def _ref(function: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int, *, dtype: Any = None) -> Any:
        return function(x, axis=dim) if x.ndim else x

    return ref


_SAMPLES = (
    Case(T(3, 4), 1),
    Case(T(4, 3), 0),
    Case(T(2, 3, 4), -2),
    Case(T(), 0),
    Case(T(3, 0), 1),
    Case(T(5, dtype="int"), 0),
)


@composite(ref=_ref(np.cumsum), samples=_SAMPLES, errors=(OUT_OF_RANGE,))
def cumsum(input: Expr, dim: int, *, dtype: DType | None = None) -> Expr:
    """Running sum along a dimension; integers and bool sum as int64."""
    axis = _dim_of("cumsum", input, dim)
    x = summed_dtype(input, dtype)
    return cumsum_axis(x, dim=axis) if x.ndim else x


@composite(ref=_ref(np.cumprod), samples=_SAMPLES, errors=(OUT_OF_RANGE,))
def cumprod(input: Expr, dim: int, *, dtype: DType | None = None) -> Expr:
    """Running product along a dimension; right derivatives at zeros of any number."""
    axis = _dim_of("cumprod", input, dim)
    x = summed_dtype(input, dtype)
    if x.dtype.is_complex:
        return _products_by_doubling(x, axis) if x.ndim else x
    return cumprod_axis(x, dim=axis) if x.ndim else x


def _products_by_doubling(x: Expr, dim: int) -> Expr:
    """Running products, each step joining runs of twice the length (Hillis and Steele, 1986)."""
    step = 1
    while step < x.shape[dim]:
        x = x * _shifted(x, dim, step, 1.0)
        step *= 2
    return x


def _ref_running(latest: Callable[..., Any], better: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int) -> Any:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        values = latest(x, axis=dim)
        shape = [1] * x.ndim
        shape[dim] = -1
        position = np.where(better(x, values), np.arange(x.shape[dim]).reshape(shape), 0)
        return values, np.maximum.accumulate(position, axis=dim)

    return ref


@composite(
    ref=_ref_running(np.maximum.accumulate, np.greater_equal),
    samples=_SAMPLES[:4],
    errors=(OUT_OF_RANGE,),
)
def cummax(input: Expr, dim: int) -> ValuesIndices:
    """Largest element so far along a dimension, and the latest position that attains it."""
    return _running("cummax", cummax_axis, input, dim)


@composite(
    ref=_ref_running(np.minimum.accumulate, np.less_equal),
    samples=_SAMPLES[:4],
    errors=(OUT_OF_RANGE,),
)
def cummin(input: Expr, dim: int) -> ValuesIndices:
    """Smallest element so far along a dimension, and the latest position that attains it."""
    return _running("cummin", cummin_axis, input, dim)


def _running(name: str, primitive: Any, x: Expr, dim: int) -> ValuesIndices:
    axis = _dim_of(name, x, dim)
    if not x.ndim:
        return ValuesIndices(x, full(0, (), dtypes.int64))
    # Kernels compare bytes as signed numbers; wider integers hold them all.
    wide = cast_to(x, dtypes.int16) if x.dtype is dtypes.uint8 else x
    values = primitive(wide, dim=axis)
    indices = _attained(values, wide, axis)
    return ValuesIndices(cast_to(values, x.dtype), indices)


@op
class logcumsumexp_axis(Library):
    """Logarithm of the running sum of exponentials along one axis, without overflow."""

    public = False
    eager_check = False
    attributes = ("dim",)
    samples = (Case(T(3, 4), dim=1), Case(T(4, 3), dim=0), Case(T(5, lo=800.0, hi=803.0), dim=0))

    def shape(x: Expr, *, dim: int) -> tuple[int, ...]:
        return x.shape

    def ref(x: np.ndarray, *, dim: int) -> np.ndarray:
        return np.logaddexp.accumulate(x, axis=dim)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        # With r_i = g_i + exp(y_i - y_(i+1)) r_(i+1), whose factors are at most 1.
        before = _shifted(out, dim, 1, -math.inf)
        ratio = exp(where(eq(before, out), 0.0, before - out))
        some = ne(out, -math.inf)
        share = exp(where(some, x - where(some, out, 0.0), -math.inf))
        return (share * _from_behind(ratio, g, dim),)


@composite(
    ref=lambda x, dim: np.logaddexp.accumulate(x, axis=dim) if x.ndim else x,
    samples=(Case(T(3, 4), 1), Case(T(4, 3), 0), Case(T(), 0)),
    errors=(OUT_OF_RANGE,),
)
def logcumsumexp(input: Expr, dim: int) -> Expr:
    """Logarithm of the running sum of exponentials along a dimension, without overflow."""
    axis = _dim_of("logcumsumexp", input, dim)
    if input.dtype.category != 2:
        raise RuntimeError(
            f'logcumsumexp: "logcumsumexp_out_cpu" not implemented for {input.dtype!r}; convert '
            "with .to(symgrad.float32)"
        )
    return logcumsumexp_axis(input, dim=axis) if input.ndim else input

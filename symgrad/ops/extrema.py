"""Extrema: largest and smallest elements, and where they stand.

`max_axis` shares its derivative among ties (`amax`, the full `max`); `first_max_axis` gives it to
the position that `argmax_axis` names (`max` along a dimension). NaN beats every number. Start
reading at `max`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Reduce, composite, op
from symgrad.op import cast_to
from symgrad.ops.arithmetic import eq, keep, ne
from symgrad.ops.choice import maximum, minimum
from symgrad.ops.layout import axis_index
from symgrad.ops.movement import full
from symgrad.ops.reduce import (
    OUT_OF_RANGE,
    Dims,
    count_of,
    numpy_axis,
    reduced_dims,
    restore,
    sum_axis,
    whole,
)
from symgrad.sample import Case, T


class ValuesIndices(NamedTuple):
    """Extreme values along a dimension and where they stand."""

    values: Expr
    indices: Expr


class MinMax(NamedTuple):
    """Smallest and largest values."""

    min: Expr
    max: Expr


class _Extremum(Reduce):
    """What the largest and the smallest element share."""

    public = False
    samples = (Case(T(3, 4), dim=1), Case(T(70), dim=0), Case(T(4, 3), dim=0))


@op
class max_axis(_Extremum):
    """Largest element along one axis; NaN if there is one. Ties share the derivative."""

    combine = "max"
    identity = -np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.max(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("max")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_shared_among_ties(g, out, x, dim),)


@op
class min_axis(_Extremum):
    """Smallest element along one axis; NaN if there is one. Ties share the derivative."""

    combine = "min"
    identity = np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.min(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("min")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_shared_among_ties(g, out, x, dim),)


def _shared_among_ties(g: Expr, out: Expr, x: Expr, dim: int) -> Expr:
    hit = eq(x, restore(out, x, dim)) | ne(x, x)
    count = sum_axis(cast_to(hit, g.dtype), dim=dim)
    return keep(hit, restore(g / count, x, dim))


@op
class argmax_axis(_Extremum):
    """Position of the first largest element along one axis; of the first NaN if there is one."""

    combine = "argmax"
    identity = -np.inf
    nodiff = "piecewise constant"

    def result_dtype(self, dtype: DType) -> DType:
        return dtypes.int64

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.argmax(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("argmax")(x)


@op
class argmin_axis(_Extremum):
    """Position of the first smallest element along one axis; of the first NaN if there is one."""

    combine = "argmin"
    identity = np.inf
    nodiff = "piecewise constant"

    def result_dtype(self, dtype: DType) -> DType:
        return dtypes.int64

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.argmin(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("argmin")(x)


@op
class first_max_axis(_Extremum):
    """Largest element along one axis; the derivative goes to the one at `argmax_axis`."""

    combine = "max"
    identity = -np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.max(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("max")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_given_to(argmax_axis(x, dim=dim), g, x, dim),)


@op
class first_min_axis(_Extremum):
    """Smallest element along one axis; the derivative goes to the one at `argmin_axis`."""

    combine = "min"
    identity = np.inf

    def ref(x: np.ndarray, *, dim: int) -> Any:
        return np.min(x, axis=dim)

    def sympy(sp: Any, x: Any, *, dim: int) -> Any:
        return sp.Function("min")(x)

    def vjp(g: Expr, out: Expr, x: Expr, *, dim: int) -> Any:
        return (_given_to(argmin_axis(x, dim=dim), g, x, dim),)


def _given_to(position: Expr, g: Expr, x: Expr, dim: int) -> Expr:
    hit = eq(axis_index(x.shape, dim), restore(position, x, dim))
    return keep(hit, restore(g, x, dim))


def _extreme(name: str, primitive: Callable[..., Expr], x: Expr, dim: Dims, keepdim: bool) -> Expr:
    dims = reduced_dims(name, x, dim)
    _refuse_empty(name, x, dim, dims)
    if not x.ndim:
        return full(0, (), dtypes.int64) if primitive in (argmax_axis, argmin_axis) else x
    if x.dtype is not dtypes.uint8:
        return whole(name, primitive, x, dim, keepdim)
    # Kernels compare bytes as signed numbers; wider integers hold them all.
    result = whole(name, primitive, cast_to(x, dtypes.int16), dim, keepdim)
    return result if result.dtype is dtypes.int64 else cast_to(result, dtypes.uint8)


def _refuse_empty(name: str, x: Expr, dim: Dims, dims: tuple[int, ...]) -> None:
    if count_of(x.shape, dims):
        return
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        error: type[Exception] = IndexError if name.startswith("arg") else RuntimeError
        raise error(
            f"{name}: {name}(): Expected reduction dim to be specified for input.numel() == 0. "
            f"Specify the reduction dim with the 'dim' argument (got shape {x.shape})"
        )
    for d in dims:
        if x.shape[d] == 0:
            raise IndexError(
                f"{name}: {name}(): Expected reduction dim {d} to have non-zero size "
                f"(got shape {x.shape}); reduce another dimension"
            )


_EXTREMUM_SAMPLES = (
    Case(T(3, 4)),
    Case(T(3, 4), 1),
    Case(T(2, 3, 4), (0, 2), True),
    Case(T()),
    Case(T(0, 3), 1),
)
_EXTREMUM_ERRORS = (
    OUT_OF_RANGE,
    Case(T(0, 3), 0, match="to have non-zero size", error=IndexError),
)


@composite(
    ref=lambda x, dim=(), keepdim=False: np.max(x, axis=numpy_axis(dim), keepdims=keepdim),
    samples=_EXTREMUM_SAMPLES,
    errors=_EXTREMUM_ERRORS,
)
def amax(input: Expr, dim: Dims = (), keepdim: bool = False) -> Expr:
    """Largest element over the given dimensions, or all; ties share the derivative evenly."""
    return _extreme("amax", max_axis, input, dim, keepdim)


@composite(
    ref=lambda x, dim=(), keepdim=False: np.min(x, axis=numpy_axis(dim), keepdims=keepdim),
    samples=_EXTREMUM_SAMPLES,
    errors=_EXTREMUM_ERRORS,
)
def amin(input: Expr, dim: Dims = (), keepdim: bool = False) -> Expr:
    """Smallest element over the given dimensions, or all; ties share the derivative evenly."""
    return _extreme("amin", min_axis, input, dim, keepdim)


@composite(
    ref=lambda x, *, dim=None, keepdim=False: (
        np.min(x, axis=dim, keepdims=keepdim),
        np.max(x, axis=dim, keepdims=keepdim),
    ),
    samples=(Case(T(3, 4)), Case(T(3, 4), dim=1, keepdim=True), Case(T())),
    errors=(Case(T(0, 3), dim=0, match="to have non-zero size", error=IndexError),),
)
def aminmax(input: Expr, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """Smallest and largest element over a dimension, or of all."""
    low = _extreme("aminmax", min_axis, input, dim, keepdim)
    return MinMax(low, _extreme("aminmax", max_axis, input, dim, keepdim))


def _ref_arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int | None = None, keepdim: bool = False) -> Any:
        return function(x, axis=dim if x.ndim else None, keepdims=keepdim)

    return ref


def _position(
    name: str, primitive: Callable[..., Expr], x: Expr, dim: int | None, keepdim: bool
) -> Expr:
    if x.dtype is dtypes.bool_:
        raise RuntimeError(
            f"{name}: {name}(): does not support bool input (got {x.dtype!r}); convert it with .to"
        )
    return _extreme(name, primitive, x, dim, keepdim)


_ARG_ERRORS = (
    OUT_OF_RANGE,
    Case(T(0, 3), 0, match="to have non-zero size", error=IndexError),
    Case(T(3, dtype="bool"), match="does not support bool input"),
)


@composite(
    ref=_ref_arg(np.argmax),
    samples=(
        Case(T(3, 4)),
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), 0, True),
        Case(T()),
        Case(T(0, 3), 1),
    ),
    errors=_ARG_ERRORS,
)
def argmax(input: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    """Position of the first largest element along a dimension, or in row-major order."""
    return _position("argmax", argmax_axis, input, dim, keepdim)


@composite(
    ref=_ref_arg(np.argmin),
    samples=(
        Case(T(3, 4)),
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), 0, True),
        Case(T()),
        Case(T(0, 3), 1),
    ),
    errors=_ARG_ERRORS,
)
def argmin(input: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    """Position of the first smallest element along a dimension, or in row-major order."""
    return _position("argmin", argmin_axis, input, dim, keepdim)


def _ref_extremum(value: Any, position: Any, binary: Any) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        if other is not None or isinstance(dim, np.ndarray):
            return binary(x, dim if other is None else other)
        if dim is None:
            return value(x)
        axis = dim if x.ndim else None
        return value(x, axis=axis, keepdims=keepdim), position(x, axis=axis, keepdims=keepdim)

    return ref


def _extremum(
    name: str, ops: tuple[Any, Any, Any], x: Expr, dim: Any, keepdim: bool, other: Any
) -> Any:
    tied, first, position = ops
    if other is not None or isinstance(dim, Expr):
        return (maximum if name == "max" else minimum)(x, dim if other is None else other)
    if dim is None:
        return _extreme(name, tied, x, None, keepdim)
    values = _extreme(name, first, x, dim, keepdim)
    return ValuesIndices(values, _extreme(name, position, x, dim, keepdim))


_FORMS = (
    Case(T(3, 4)),
    Case(T(3, 4), 1),
    Case(T(2, 3, 4), 0, True),
    Case(T()),
    Case(T(3, 4, dtype="int"), -1),
)


@composite(
    ref=_ref_extremum(np.max, np.argmax, np.maximum), samples=_FORMS, errors=_EXTREMUM_ERRORS
)
def max(
    input: Expr, dim: int | Expr | None = None, keepdim: bool = False, *, other: Expr | None = None
) -> Expr | ValuesIndices:
    """Largest of all elements; along `dim`, the values and indices; of two tensors, the larger.

    The derivative of the largest of all is shared by ties; along `dim` it goes to the index.
    """
    return _extremum("max", (max_axis, first_max_axis, argmax_axis), input, dim, keepdim, other)


@composite(
    ref=_ref_extremum(np.min, np.argmin, np.minimum), samples=_FORMS, errors=_EXTREMUM_ERRORS
)
def min(
    input: Expr, dim: int | Expr | None = None, keepdim: bool = False, *, other: Expr | None = None
) -> Expr | ValuesIndices:
    """Smallest of all elements; along `dim`, the values and indices; of two tensors, the smaller.

    The derivative of the smallest of all is shared by ties; along `dim` it goes to the index.
    """
    return _extremum("min", (min_axis, first_min_axis, argmin_axis), input, dim, keepdim, other)

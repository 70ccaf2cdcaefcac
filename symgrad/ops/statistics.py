"""Means, variances, norms, log-sum-exp and other quantities made of sums.

All are composites. `root` is the one op with a meaning of its own here: a square root whose
derivatives at 0 are 0, the minimum-norm choice for norms and standard deviations. Start reading
at `var`, then `vector_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import REGISTRY, Case, T, cast_to, composite
from symgrad.ops.alias import detach
from symgrad.ops.arithmetic import eq, keep, ne, where
from symgrad.ops.contract import matmul
from symgrad.ops.extrema import amax, amin
from symgrad.ops.movement import diagonal, permute, reshape
from symgrad.ops.reduce import (
    OUT_OF_RANGE,
    Dims,
    count_of,
    numpy_axis,
    reduced_dims,
    sum,
)
from symgrad.ops.transcendental import exp, log, pow, sqrt


def root(square: Expr) -> Expr:
    """The square root of a sum of squares, with derivatives 0 where it is 0."""
    return keep(ne(square, 0), sqrt(square))


def _absolute(x: Expr) -> Expr:
    return REGISTRY["abs"](x)


def _floating(name: str, x: Expr, words: str) -> None:
    if x.dtype.category != 2:
        raise RuntimeError(f"{name}: {words} (got {x.dtype!r}); convert with .to(symgrad.float32)")


# -- means and variances ----------------------------------------------------------------


def _ref_mean(x: np.ndarray, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    with np.errstate(all="ignore"):
        count = np.sum(np.ones_like(x), axis=numpy_axis(dim), keepdims=keepdim)
        return np.sum(x, axis=numpy_axis(dim), keepdims=keepdim) / count


_MEAN_SAMPLES = (
    Case(T(3, 4)),
    Case(T(3, 4), 1),
    Case(T(2, 3, 4), (0, 2), True),
    Case(T()),
    Case(T(2, 0), 1),
)


@composite(
    ref=_ref_mean,
    samples=_MEAN_SAMPLES,
    errors=(
        OUT_OF_RANGE,
        Case(T(3, dtype="int"), match="must be either a floating point or complex dtype"),
    ),
)
def mean(
    input: Expr, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Mean over the given dimensions, or all; NaN over no elements."""
    x = input if dtype is None else cast_to(input, dtypes.as_dtype(dtype))
    _floating(
        "mean",
        x,
        "mean(): could not infer output dtype. Input dtype must be either a floating point or "
        "complex dtype",
    )
    count = count_of(x.shape, reduced_dims("mean", x, dim))
    return sum(x, dim, keepdim) / float(count)


@composite(
    ref=lambda x, dim=None, keepdim=False, dtype=None: np.nansum(
        x, axis=numpy_axis(dim), keepdims=keepdim
    ),
    samples=_MEAN_SAMPLES,
    errors=(OUT_OF_RANGE,),
)
def nansum(
    input: Expr, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Sum of the elements that are not NaN."""
    return sum(keep(eq(input, input), input), dim, keepdim, dtype=dtype)


@composite(ref=_ref_mean, samples=_MEAN_SAMPLES, errors=(OUT_OF_RANGE,))
def nanmean(
    input: Expr, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Expr:
    """Mean of the elements that are not NaN."""
    x = input if dtype is None else cast_to(input, dtypes.as_dtype(dtype))
    _floating("nanmean", x, "expected input to have floating point or complex dtype")
    number = eq(x, x)
    return sum(keep(number, x), dim, keepdim) / sum(cast_to(number, x.dtype), dim, keepdim)


def _moments(
    name: str, x: Expr, dim: Any, unbiased: Any, correction: Any, keepdim: bool
) -> tuple[Expr, Expr]:
    """Variance and mean in two passes: squares of differences, so a large offset costs nothing."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = 1 if unbiased else 0
    _floating(name, x, "std and var only support floating point and complex dtypes")
    dims = reduced_dims(name, x, dim)
    centre = mean(x, dims, True) if dims else x
    difference = x - centre
    freedom = count_of(x.shape, dims) - (1 if correction is None else correction)
    total = sum(difference * difference, dims, keepdim) if dims else difference * difference
    variance = total / float(freedom if freedom > 0 else 0)
    return variance, centre if keepdim or not dims else _dropped(centre, dims)


def _dropped(x: Expr, dims: tuple[int, ...]) -> Expr:
    return reshape(x, tuple(s for d, s in enumerate(x.shape) if d not in dims))


def _ref_var(
    x: np.ndarray,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = 1,
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    with np.errstate(all="ignore"):
        return np.var(x, axis=numpy_axis(dim), ddof=correction, keepdims=keepdim)


def _ref_std(*args: Any, **kwargs: Any) -> Any:
    return np.sqrt(_ref_var(*args, **kwargs))


_VAR_SAMPLES = (
    Case(T(3, 4)),
    Case(T(3, 4), 1),
    Case(T(2, 3, 4), (0, 2), keepdim=True, correction=0),
    Case(T(3, 4), 0, False),
    Case(T(5, lo=100.0, hi=101.0), correction=2),
)
_VAR_ERRORS = (
    OUT_OF_RANGE,
    Case(T(3, dtype="int"), match="only support floating point and complex dtypes"),
)


@composite(ref=_ref_var, samples=_VAR_SAMPLES, errors=_VAR_ERRORS)
def var(
    input: Expr,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Expr:
    """Variance over the given dimensions, or all, in two passes."""
    return _moments("var", input, dim, unbiased, correction, keepdim)[0]


@composite(ref=_ref_std, samples=_VAR_SAMPLES, errors=_VAR_ERRORS)
def std(
    input: Expr,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Expr:
    """Standard deviation; the derivative of a constant vector's is 0."""
    return root(_moments("std", input, dim, unbiased, correction, keepdim)[0])


def _with_mean(ref: Callable[..., Any]) -> Callable[..., Any]:
    def both(x: np.ndarray, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **k: Any) -> Any:
        axis = None if isinstance(dim, bool) else dim
        return ref(x, dim, unbiased, keepdim, **k), _ref_mean(x, axis, keepdim)

    return both


@composite(ref=_with_mean(_ref_var), samples=_VAR_SAMPLES, errors=_VAR_ERRORS)
def var_mean(
    input: Expr,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> tuple[Expr, Expr]:
    """Variance and mean."""
    return _moments("var_mean", input, dim, unbiased, correction, keepdim)


@composite(ref=_with_mean(_ref_std), samples=_VAR_SAMPLES, errors=_VAR_ERRORS)
def std_mean(
    input: Expr,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> tuple[Expr, Expr]:
    """Standard deviation and mean."""
    variance, centre = _moments("std_mean", input, dim, unbiased, correction, keepdim)
    return root(variance), centre


# -- norms ------------------------------------------------------------------------------


def _power_norm(x: Expr, p: float, dims: tuple[int, ...]) -> Expr:
    """(Σ |x|**p)**(1/p), with derivatives 0 where the norm is 0."""
    if p % 2 == 0 and p > 0:
        terms = pow(x, p)
    elif p >= 3 and p == int(p):
        terms = pow(_absolute(x), p)
    else:
        # Lower powers have a kink or a pole at 0; the minimum-norm choice there is 0.
        terms = keep(ne(x, 0), pow(_absolute(x), p)) if p > 0 else pow(_absolute(x), p)
    total = sum(terms, dims, True)
    return keep(ne(total, 0), pow(total, 1.0 / p))


def norm_over(name: str, x: Expr, p: float, dim: Dims, keepdim: bool) -> Expr:
    """The p-norm over the given dimensions, or all."""
    _floating(name, x, f"{name}: Expected a floating point or complex tensor as input")
    dims = reduced_dims(name, x, dim)
    if not dims:
        return keep(ne(x, 0), x / x) if p == 0 else _absolute(x)
    if p in (math.inf, -math.inf):
        if count_of(x.shape, dims) == 0:
            raise RuntimeError(
                f"{name}: linalg.vector_norm cannot compute the {p:g} norm on an empty tensor because "
                f"the operation does not have an identity (got shape {x.shape}); use another order"
            )
        return (amax if p > 0 else amin)(_absolute(x), dims, keepdim)
    if p == 2:
        result = root(sum(x * x, dims, True))
    elif p == 1:
        result = sum(_absolute(x), dims, True)
    elif p == 0:
        result = sum(cast_to(ne(x, 0), x.dtype), dims, True)
    else:
        result = _power_norm(x, float(p), dims)
    return result if keepdim else _dropped(result, dims)


def _ref_norm(x: np.ndarray, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    order = 2.0 if p in ("fro", None) else float(p)
    axes = numpy_axis(dim)
    size = np.abs(x)
    if order == math.inf:
        return np.max(size, axis=axes, keepdims=keepdim)
    if order == -math.inf:
        return np.min(size, axis=axes, keepdims=keepdim)
    if order == 0:
        return np.sum(x != 0, axis=axes, keepdims=keepdim).astype(x.dtype)
    return np.sum(size**order, axis=axes, keepdims=keepdim) ** (1 / order)


_NORM_SAMPLES = (
    Case(T(3, 4)),
    Case(T(3, 4), 1, 1),
    Case(T(2, 3, 4), 2, (0, 2), True),
    Case(T(4), math.inf),
    Case(T(4), 3.5, 0),
    Case(T(3, 4), 0, 1),
)


@composite(
    ref=_ref_norm,
    samples=_NORM_SAMPLES,
    errors=(Case(T(3, dtype="int"), match="Expected a floating point or complex tensor"),),
)
def norm(
    input: Expr,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Expr:
    """The p-norm over the given dimensions, or all; its derivative at 0 is 0."""
    x = input if dtype is None else cast_to(input, dtypes.as_dtype(dtype))
    if p == "nuc":
        from symgrad.ops.decompositions import nuclear_norm

        return nuclear_norm(x, dim, keepdim)
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm: unsupported order (got {p!r}); use 'fro', 'nuc' or a number")
    return norm_over("linalg.vector_norm", x, 2.0 if p in ("fro", None) else float(p), dim, keepdim)


@composite(
    ref=lambda x, y, p=2: _ref_norm(x - y, p),
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3, 4), T(4), 1), Case(T(4), T(4), math.inf)),
)
def dist(input: Expr, other: Expr, p: float = 2) -> Expr:
    """The p-norm of the difference."""
    return norm(input - other, float(p))


# -- exponentials -----------------------------------------------------------------------


def _ref_logsumexp(x: np.ndarray, dim: Any, keepdim: bool = False) -> Any:
    from scipy.special import logsumexp

    return logsumexp(x, axis=numpy_axis(dim), keepdims=keepdim)


@composite(
    ref=_ref_logsumexp,
    samples=(
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), (0, 2), True),
        Case(T(5, lo=800.0, hi=900.0), 0),
        Case(T(), 0),
    ),
    errors=(OUT_OF_RANGE,),
)
def logsumexp(input: Expr, dim: Dims, keepdim: bool = False) -> Expr:
    """Logarithm of the sum of exponentials, without overflow; -inf, with derivative 0, over -inf.

    The shift by the maximum has no influence on the value, so it takes no part in derivatives.
    """
    x = input if input.dtype.category == 2 else cast_to(input, dtypes.get_default_dtype())
    dims = reduced_dims("logsumexp", x, dim)
    if not dims:
        return x
    if count_of(x.shape, dims):
        peak = detach(amax(x, dims, True))
        shift = where(eq(peak - peak, 0), peak, 0.0)
        total = sum(exp(x - shift), dims, True)
        result = where(eq(total, 0), -math.inf, log(total)) + shift
    else:
        result = log(sum(x, dims, True))
    return result if keepdim else _dropped(result, dims)


# -- matrices of moments ----------------------------------------------------------------


@composite(
    ref=np.trace,
    samples=(Case(T(3, 3)), Case(T(2, 4)), Case(T(0, 0))),
    errors=(Case(T(3), match="expected a matrix, but got tensor with dim 1"),),
)
def trace(input: Expr) -> Expr:
    """Sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise RuntimeError(
            f"trace: expected a matrix, but got tensor with dim {input.ndim} (got shape "
            f"{input.shape}); take diagonals of batches with diagonal(dim1=-2, dim2=-1).sum(-1)"
        )
    return sum(diagonal(input))


def _ref_cov(x: np.ndarray, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    made = np.cov(x, ddof=correction, fweights=fweights, aweights=aweights)
    return np.asarray(made).astype(x.dtype)


@composite(
    ref=_ref_cov,
    samples=(Case(T(3, 5)), Case(T(5)), Case(T(3, 5), correction=0)),
    errors=(Case(T(2, 3, 4), match="expected input to have two or fewer dimensions"),),
)
def cov(
    input: Expr,
    *,
    correction: int = 1,
    fweights: Expr | None = None,
    aweights: Expr | None = None,
) -> Expr:
    """Covariance matrix of variables in rows, observations in columns."""
    if input.ndim > 2:
        raise RuntimeError(
            "cov: cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions (got shape {input.shape}); take one matrix at a time"
        )
    x = reshape(input, (1, input.size)) if input.ndim < 2 else input
    if x.dtype.category != 2:
        x = cast_to(x, dtypes.get_default_dtype())
    weight: Expr | None = None
    if fweights is not None:
        weight = cast_to(fweights, x.dtype)
    if aweights is not None:
        weight = aweights if weight is None else weight * aweights
    if weight is None:
        count = x.shape[1]
        centred = x - mean(x, 1, True)
        freedom: Any = float(count - correction if count > correction else 0)
        scaled = centred
    else:
        total = sum(weight)
        centred = x - sum(x * weight, 1, True) / total
        scaled = centred * weight
        spread = total if aweights is None else sum(weight * aweights) / total
        freedom = total - float(correction) * (1.0 if aweights is None else spread)
        freedom = where(freedom > 0, freedom, 0.0)
    result = matmul(scaled, permute(centred, (1, 0))) / freedom
    return reshape(result, ()) if input.ndim < 2 else result


@composite(ref=lambda x: np.asarray(np.corrcoef(x)).astype(x.dtype), samples=(Case(T(3, 5)), Case(T(5))))
def corrcoef(input: Expr) -> Expr:
    """Correlation coefficients of variables in rows, observations in columns."""
    matrix = cov(input)
    if not matrix.shape:
        return matrix / matrix
    deviation = sqrt(diagonal(matrix))
    n = matrix.shape[0]
    scaled = matrix / reshape(deviation, (n, 1)) / reshape(deviation, (1, n))
    return REGISTRY["clamp"](scaled, -1.0, 1.0) if "clamp" in REGISTRY else scaled

"""Means, variances, norms, log-sum-exp and other quantities made of sums.

All are composites but `root`: a square root whose derivatives at 0 are 0, the minimum-norm choice
for norms and standard deviations. Start reading
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
from symgrad.family import Elementwise, composite, op, refused
from symgrad.op import CONSTANT, cast_to
from symgrad.ops.alias import detach
from symgrad.ops.arithmetic import add, div, eq, keep, mul, ne, neg, where
from symgrad.ops.choice import abs, clamp
from symgrad.ops.complex_numbers import imag, real
from symgrad.ops.contract import matmul
from symgrad.ops.extrema import amax, amin
from symgrad.ops.movement import diagonal, full, permute, reshape
from symgrad.ops.power import pow
from symgrad.ops.reduce import (
    OUT_OF_RANGE,
    Dims,
    count_of,
    numpy_axis,
    reduced_dims,
    sum,
)
from symgrad.ops.transcendental import exp, log, sqrt
from symgrad.sample import Case, T


@op
class root(Elementwise):
    """Square root of a sum of squares; its derivatives at 0 are 0, the minimum-norm choice.

    A cotangent with a factor of the root itself cancels it against the derivative 1 / (2 root), so
    even powers of norms, and what is made of them, keep their derivatives at 0.
    """

    public = False
    accepts = "float"
    cost = 6.0
    domain = (0.05, 4.0)
    ref = np.sqrt
    samples = (Case(T(2, 3, lo=0.1, hi=3)), Case(T(lo=0.1, hi=3)), Case(T(0)))

    def sympy(sp: Any, x: Any) -> Any:
        return sp.sqrt(x)

    def vjp(g: Expr, out: Expr, x: Expr) -> Any:
        rest = without_factor(g, out)
        if rest is not None:
            return (0.5 * rest,)
        some = ne(x, 0)
        return (keep(some, 0.5 * g / where(some, out, 1.0)),)

    def lower(b: Any, x: Any) -> Any:
        return b.sqrt(x)


def without_factor(product: Expr, factor: Expr, depth: int = 8) -> Expr | None:
    """`product` / `factor`, if the factor is found among the outer `depth` levels of a product."""
    if product is factor:
        return full(1.0, factor.shape, factor.dtype)
    if product.shape != factor.shape or not product.args or not depth:
        return None
    if product.op in (mul, div):
        first, second = product.args
        rest = without_factor(first, factor, depth - 1)
        if rest is not None:
            return product.op(rest, second)
        rest = without_factor(second, factor, depth - 1) if product.op is mul else None
        return None if rest is None else first * rest
    if product.op is neg:
        rest = without_factor(product.args[0], factor, depth - 1)
        return None if rest is None else -rest
    if product.op is add:
        parts = [without_factor(a, factor, depth - 1) for a in product.args]
        return None if None in parts else add(*parts)
    if product.op is pow and product.args[0] is factor:
        exponent = product.args[1]
        if exponent.op is CONSTANT and exponent.attrs[0] is not None and exponent.attrs[0] >= 1:
            return pow(factor, float(exponent.attrs[0]) - 1.0)
    return None


def _floating(name: str, x: Expr, words: str) -> None:
    if x.dtype.category < 2:
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
    squares = _squared(difference)
    total = sum(squares, dims, keepdim) if dims else squares
    variance = total / float(freedom if freedom > 0 else 0)
    return variance, centre if keepdim or not dims else _dropped(centre, dims)


def _squared(x: Expr) -> Expr:
    """The square of real numbers, the squared magnitude of complex ones."""
    if x.dtype.is_complex:
        return real(x) * real(x) + imag(x) * imag(x)
    return x * x


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
    def both(
        x: np.ndarray, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **k: Any
    ) -> Any:
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


def _power_norm(x: Expr, p: float, dims: tuple[int, ...], keepdim: bool) -> Expr:
    """(Σ |x|**p)**(1/p), with derivatives 0 where the norm is 0."""
    if p % 2 == 0 and p > 0:
        terms = pow(x, p)
    elif (p >= 3 and p == int(p)) or p < 0:
        terms = pow(abs(x), p)
    else:
        # Lower powers have a kink or a pole at 0; the minimum-norm choice there is 0.
        some = ne(x, 0)
        terms = keep(some, pow(where(some, abs(x), 1.0), p))
    total = sum(terms, dims, keepdim)
    some = ne(total, 0)
    return keep(some, pow(where(some, total, 1.0), 1.0 / p))


def norm_over(name: str, x: Expr, p: float, dim: Dims, keepdim: bool) -> Expr:
    """The p-norm over the given dimensions, or all."""
    _floating(name, x, f"{name}: Expected a floating point or complex tensor as input")
    dims = reduced_dims(name, x, dim)
    if x.dtype.is_complex:
        x = abs(x)
    if not dims:
        return keep(ne(x, 0), x / x) if p == 0 else abs(x)
    if p in (math.inf, -math.inf):
        if count_of(x.shape, dims) == 0:
            raise RuntimeError(
                f"{name}: linalg.vector_norm cannot compute the {p:g} norm on an empty tensor because "
                f"the operation does not have an identity (got shape {x.shape}); use another order"
            )
        return (amax if p > 0 else amin)(abs(x), dims, keepdim)
    if p == 2:
        return root(sum(x * x, dims, keepdim))
    if p == 1:
        return sum(abs(x), dims, keepdim)
    if p == 0:
        return sum(cast_to(ne(x, 0), x.dtype), dims, keepdim)
    return _power_norm(x, float(p), dims, keepdim)


def _ref_norm(
    x: np.ndarray, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
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
        from symgrad.ops.norms import nuclear_norm

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
        Case(T(5, lo=800.0, hi=803.0), 0),
        Case(T(), 0),
    ),
    errors=(OUT_OF_RANGE,),
)
def logsumexp(input: Expr, dim: Dims, keepdim: bool = False) -> Expr:
    """Logarithm of the sum of exponentials, without overflow; -inf, with derivative 0, over -inf.

    The shift by the maximum has no influence on the value, so it takes no part in derivatives.
    """
    x = input if input.dtype.category >= 2 else cast_to(input, dtypes.get_default_dtype())
    dims = reduced_dims("logsumexp", x, dim)
    if not dims:
        return x
    if count_of(x.shape, dims):
        peak = detach(amax(x, dims, True))
        shift = where(eq(peak - peak, 0), peak, 0.0)
        total = sum(exp(x - shift), dims, True)
        none = eq(total, 0)
        result = where(none, -math.inf, log(where(none, 1.0, total))) + shift
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


def _ref_cov(
    x: np.ndarray, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    made = np.cov(x, ddof=correction, fweights=fweights, aweights=aweights)
    return np.asarray(made).astype(x.dtype)


@composite(
    ref=_ref_cov,
    samples=(Case(T(3, 5)), Case(T(5)), Case(T(1, 5)), Case(T(3, 5), correction=0)),
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
    if x.dtype.category == 3:
        raise refused("cov", x.dtype)
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
    return reshape(result, ()) if result.size == 1 else result


@composite(
    ref=lambda x: np.asarray(np.corrcoef(x)).astype(x.dtype), samples=(Case(T(3, 5)), Case(T(5)))
)
def corrcoef(input: Expr) -> Expr:
    """Correlation coefficients of variables in rows, observations in columns."""
    matrix = cov(input)
    if not matrix.shape:
        return matrix / matrix
    deviation = sqrt(diagonal(matrix))
    n = matrix.shape[0]
    scaled = matrix / reshape(deviation, (n, 1)) / reshape(deviation, (1, n))
    return clamp(scaled, -1.0, 1.0)

"""Layers of neural networks as functions: softmax, normalisation, attention, embedding, dropout.

All are composites that the compiler fuses. Shifts that have no influence on a result (the maximum
in a softmax) take no part in derivatives. Losses are in `symgrad.ops.loss` and `symgrad.ops.class_loss`. Start reading at
`softmax`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import composite, refused
from symgrad.op import cast_to, value_of
from symgrad.ops.alias import detach, head
from symgrad.ops.arithmetic import add, div, eq, keep, mul, ne, not_implemented, sub, where
from symgrad.ops.choice import clamp_min
from symgrad.ops.contract import matmul
from symgrad.ops.create import iota
from symgrad.ops.einsum import einsum
from symgrad.ops.extrema import amax
from symgrad.ops.layout import axis_index, sliced, transpose, unsqueeze
from symgrad.ops.movement import expand, reshape, wrap_dim
from symgrad.ops.positions import bounded_positions, read
from symgrad.ops.random import draw
from symgrad.ops.reduce import sum as total
from symgrad.ops.special import sigmoid
from symgrad.ops.statistics import mean, norm
from symgrad.ops.transcendental import exp, log, rsqrt
from symgrad.sample import Case, T

# -- softmax ------------------------------------------------------------------------------


def _shifted(x: Expr, dim: int) -> Expr:
    """x less its largest element along an axis."""
    return sub(x, detach(amax(x, dim, True)))  # type: ignore[no-any-return]


def _floating(name: str, x: Expr, dtype: DType | None) -> Expr:
    x = x if dtype is None else cast_to(x, dtypes.as_dtype(dtype))
    if x.dtype.category != 2:
        raise not_implemented(name, x.dtype, "give dtype=symgrad.float32, or convert")
    return x


def _softmax_of_rows(x: Expr, dim: int) -> Expr:
    if not x.size:
        return x
    if not x.ndim:
        return reshape(_softmax_of_rows(reshape(x, (1,)), 0), ())  # type: ignore[no-any-return]
    e = exp(_shifted(x, dim))
    return div(e, total(e, dim, True))  # type: ignore[no-any-return]


def _ref_softmax(x: np.ndarray, dim: int, dtype: Any = None) -> Any:
    from scipy.special import softmax as known

    x = x if dtype is None else x.astype(dtype.numpy)
    return known(x, axis=dim) if np.ndim(x) else np.ones_like(x)


_AXIS_ERROR = Case(T(3, 4), 2, match="Dimension out of range", error=IndexError)
_KIND_ERROR = Case(T(3, dtype="int"), 0, match="not implemented for 'Long'")


@composite(
    ref=_ref_softmax,
    samples=(
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), 0),
        Case(T(2, 3, 2), -2),
        Case(T(5, lo=800, hi=900), 0),
        Case(T(), 0),
        Case(T(0, 3), 1),
        Case(T(4), 0, dtype=dtypes.float64),
    ),
    errors=(_AXIS_ERROR, _KIND_ERROR),
)
def softmax(input: Expr, dim: int, dtype: DType | None = None) -> Expr:
    """exp(x) over its sum along an axis, without overflow; NaN along an axis of -inf, as in torch."""
    x = _floating("softmax", input, dtype)
    dim = wrap_dim("softmax", dim, x.ndim)
    return head(_softmax_of_rows(x, dim), x, name="softmax", detail=(dim,))  # type: ignore[no-any-return]


def _ref_softmin(x: np.ndarray, dim: int, dtype: Any = None) -> Any:
    return _ref_softmax(-x, dim)


@composite(ref=_ref_softmin, samples=(Case(T(3, 4), 1),), errors=(_AXIS_ERROR, _KIND_ERROR))
def softmin(input: Expr, dim: int, dtype: DType | None = None) -> Expr:
    """The softmax of -x."""
    return softmax(-_floating("softmin", input, dtype), dim)  # type: ignore[no-any-return]


def _ref_log_softmax(x: np.ndarray, dim: int, dtype: Any = None) -> Any:
    from scipy.special import log_softmax as known

    return known(x, axis=dim) if np.ndim(x) else np.zeros_like(x)


@composite(
    ref=_ref_log_softmax,
    samples=(
        Case(T(3, 4), 1),
        Case(T(2, 3, 4), 0),
        Case(T(3, lo=-900, hi=900), 0),
        Case(T(), 0),
        Case(T(0, 3), 1),
    ),
    errors=(_AXIS_ERROR, _KIND_ERROR),
)
def log_softmax(input: Expr, dim: int, dtype: DType | None = None) -> Expr:
    """Logarithm of the softmax, exact where the softmax itself underflows."""
    x = _floating("log_softmax", input, dtype)
    dim = wrap_dim("log_softmax", dim, x.ndim)
    if not x.size:
        return x
    if not x.ndim:
        return reshape(log_softmax(reshape(x, (1,)), 0), ())  # type: ignore[no-any-return]
    shifted = _shifted(x, dim)
    return sub(shifted, log(total(exp(shifted), dim, True)))  # type: ignore[no-any-return]


def _ref_glu(x: np.ndarray, dim: int = -1) -> Any:
    a, b = np.split(x, 2, dim)
    return a / (1 + np.exp(-b))


@composite(
    ref=_ref_glu,
    samples=(Case(T(3, 4)), Case(T(4, 3), 0)),
    errors=(Case(T(3), match="Halving dimension must be even"),),
)
def glu(input: Expr, dim: int = -1) -> Expr:
    """One half of the elements along an axis times the sigmoid of the other half."""
    at = wrap_dim("glu", dim, input.ndim)
    size = input.shape[at]
    if size % 2:
        raise RuntimeError(
            f"glu: Halving dimension must be even, but dimension {at} is size {size}; pad or slice"
        )
    half = size // 2
    return mul(sliced(input, at, 0, half), sigmoid(sliced(input, at, half, half)))  # type: ignore[no-any-return]


# -- normalisation ------------------------------------------------------------------------


def _centred(x: Expr, dims: tuple[int, ...], eps: float) -> Expr:
    """x less its mean, over the root of its mean square difference plus eps."""
    difference = sub(x, mean(x, dims, True))
    variance = mean(mul(difference, difference), dims, True)
    return mul(difference, rsqrt(add(variance, eps)))  # type: ignore[no-any-return]


def _scaled(x: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    x = x if weight is None else mul(x, weight)
    return x if bias is None else add(x, bias)  # type: ignore[no-any-return]


def _last_dims(name: str, x: Expr, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(normalized_shape)
    if not shape:
        raise RuntimeError(
            f"{name}: Expected normalized_shape to be at least 1-dimensional, i.e., containing at "
            "least one element (got ()); name the last sizes of the input"
        )
    if x.shape[x.ndim - len(shape) :] != shape:
        wanted = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"{name}: Given normalized_shape={list(shape)}, expected input with shape [{wanted}], but "
            f"got input of size{list(x.shape)}"
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def _ref_layer_norm(
    x: np.ndarray, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    scale = np.sqrt(np.var(x, axis=axes, keepdims=True) + eps)
    made = (x - np.mean(x, axis=axes, keepdims=True)) / scale
    return made * (1 if weight is None else weight) + (0 if bias is None else bias)


@composite(
    ref=_ref_layer_norm,
    samples=(
        Case(T(3, 4), (4,)),
        Case(T(2, 3, 4), (3, 4), T(3, 4), T(3, 4)),
        Case(T(2, 5), (5,), T(5), None, 0.1),
    ),
    errors=(
        Case(T(3, 4), (3,), match=r"expected input with shape \[\*, 3\], but got input of size"),
    ),
)
def layer_norm(
    input: Expr,
    normalized_shape: Sequence[int],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """Mean 0 and variance 1 over the last dimensions, then scale and shift (arXiv:1607.06450)."""
    dims = _last_dims("layer_norm", input, normalized_shape)
    return _scaled(_centred(input, dims, eps), weight, bias)


def _ref_rms_norm(
    x: np.ndarray, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    small = np.finfo(x.dtype).eps if eps is None else eps
    made = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + small)
    return made if weight is None else made * weight


@composite(
    ref=_ref_rms_norm,
    samples=(Case(T(3, 4), (4,)), Case(T(2, 3, 4), (3, 4), T(3, 4), 0.1)),
    errors=(Case(T(3, 4), (3,), match="Given normalized_shape="),),
)
def rms_norm(
    input: Expr,
    normalized_shape: Sequence[int],
    weight: Expr | None = None,
    eps: float | None = None,
) -> Expr:
    """Mean square 1 over the last dimensions, then scale (arXiv:1910.07467)."""
    dims = _last_dims("rms_norm", input, normalized_shape)
    small = float(np.finfo(input.dtype.numpy).eps) if eps is None else eps
    scale = rsqrt(add(mean(mul(input, input), dims, True), small))
    return _scaled(mul(input, scale), weight, None)


def _ref_group_norm(
    x: np.ndarray, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    made = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(
        grouped.var(-1, keepdims=True) + eps
    )
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    made = made.reshape(x.shape)
    made = made if weight is None else made * weight.reshape(per_channel)
    return made if bias is None else made + bias.reshape(per_channel)


@composite(
    ref=_ref_group_norm,
    samples=(Case(T(2, 4, 3), 2), Case(T(2, 6), 3, T(6), T(6))),
    errors=(Case(T(2, 5), 2, match="number of channels in input to be divisible by num_groups"),),
)
def group_norm(
    input: Expr,
    num_groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """Mean 0 and variance 1 over each group of channels (arXiv:1803.08494)."""
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise RuntimeError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, but got "
            f"input of shape {list(input.shape)} and num_groups={num_groups}"
        )
    count = input.size // (input.shape[0] * num_groups) if input.size else 0
    grouped = reshape(input, (input.shape[0], num_groups, count))
    made = reshape(_centred(grouped, (2,), eps), input.shape)
    per_channel = (input.shape[1],) + (1,) * (input.ndim - 2)
    scale, shift = (None if v is None else reshape(v, per_channel) for v in (weight, bias))
    return _scaled(made, scale, shift)


def _ref_normalize(x: np.ndarray, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    length = np.sum(np.abs(x) ** p, axis=dim, keepdims=True) ** (1 / p)
    return x / np.maximum(length, eps)


@composite(
    ref=_ref_normalize,
    samples=(Case(T(3, 4)), Case(T(4), dim=0), Case(T(2, 3, 4), 3.0, -1)),
    errors=(Case(T(3), match="Dimension out of range", error=IndexError),),
)
def normalize(input: Expr, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Expr:
    """x over its p-norm along an axis, or over eps where that is larger."""
    wrap_dim("normalize", dim, input.ndim)
    return div(input, clamp_min(norm(input, p, dim, True), eps))  # type: ignore[no-any-return]


def _ref_cosine_similarity(x1: np.ndarray, x2: np.ndarray, dim: int = 1, eps: float = 1e-8) -> Any:
    a, b = (np.maximum(np.linalg.norm(v, axis=dim), eps) for v in np.broadcast_arrays(x1, x2))
    return np.sum(x1 * x2, axis=dim) / (a * b)


@composite(
    ref=_ref_cosine_similarity,
    samples=(Case(T(3, 4), T(3, 4)), Case(T(5), T(5), 0), Case(T(2, 1, 4), T(3, 4), dim=-1)),
    errors=(Case(T(3), T(3), match="Dimension out of range", error=IndexError),),
)
def cosine_similarity(x1: Expr, x2: Expr, dim: int = 1, eps: float = 1e-8) -> Expr:
    """Cosine of the angle between vectors along an axis; lengths count as eps at least."""
    rank = x1.ndim if x1.ndim > x2.ndim else x2.ndim
    at = wrap_dim("cosine_similarity", dim, rank)
    product = mul(x1, x2)
    if product.dtype.is_complex:
        raise refused("cosine_similarity", product.dtype)
    a, b = (v if v.shape == product.shape else expand(v, product.shape) for v in (x1, x2))
    first = clamp_min(norm(a, 2.0, at, True), eps)
    second = clamp_min(norm(b, 2.0, at, True), eps)
    return total(mul(div(a, first), div(b, second)), at)  # type: ignore[no-any-return]


def _ref_pairwise_distance(
    x1: np.ndarray, x2: np.ndarray, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return np.linalg.norm(x1 - x2 + eps, ord=p, axis=-1, keepdims=keepdim)


@composite(
    ref=_ref_pairwise_distance,
    samples=(Case(T(3, 4), T(3, 4)), Case(T(3, 4), T(4), 1.0, keepdim=True)),
)
def pairwise_distance(
    x1: Expr, x2: Expr, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Expr:
    """p-norm of x1 - x2 + eps along the last axis."""
    return norm(add(sub(x1, x2), eps), p, -1, keepdim)  # type: ignore[no-any-return]


# -- layers -------------------------------------------------------------------------------


def _ref_linear(x: np.ndarray, weight: np.ndarray, bias: Any = None) -> Any:
    return x @ weight.T + (0 if bias is None else bias)


@composite(
    ref=_ref_linear,
    samples=(
        Case(T(3, 4), T(2, 4)),
        Case(T(2, 3, 4), T(5, 4), T(5)),
        Case(T(4), T(4)),
    ),
    errors=(Case(T(3, 4), T(2, 3), match=r"shapes cannot be multiplied \(3x4 and 3x2\)"),),
)
def linear(input: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """x @ weight.T + bias."""
    turned = transpose(weight, -2, -1) if weight.ndim > 1 else weight
    product = matmul(input, turned)
    return product if bias is None else add(product, bias)  # type: ignore[no-any-return]


def _ref_bilinear(x1: np.ndarray, x2: np.ndarray, weight: np.ndarray, bias: Any = None) -> Any:
    return np.einsum("...i,oij,...j->...o", x1, weight, x2) + (0 if bias is None else bias)


@composite(
    ref=_ref_bilinear,
    samples=(Case(T(3, 2), T(3, 4), T(5, 2, 4), T(5)), Case(T(2), T(3), T(4, 2, 3))),
)
def bilinear(input1: Expr, input2: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """x1 @ weight[o] @ x2 for each output o, plus bias."""
    product = einsum("...i,oij,...j->...o", input1, weight, input2)
    return product if bias is None else add(product, bias)  # type: ignore[no-any-return]


def _ref_one_hot(x: np.ndarray, num_classes: int = -1) -> Any:
    count = int(x.max()) + 1 if num_classes == -1 else num_classes
    return (x[..., None] == np.arange(count)).astype(np.int64)


_CLASSES = T(2, 3, lo=0, hi=3, dtype="int")


@composite(
    ref=_ref_one_hot,
    samples=(Case(_CLASSES, 5), Case(T(lo=0, hi=3, dtype="int"), 4)),
    errors=(
        Case(_CLASSES, 1, match="Class values must be smaller than num_classes"),
        Case(np.array([-1]), 3, match="Class values must be non-negative"),
        Case(T(3), match="one_hot is only applicable to index tensor"),
    ),
)
def one_hot(input: Expr, num_classes: int = -1) -> Expr:
    """1 at the place of each class along a new last axis, 0 elsewhere."""
    if input.dtype.name != "int64":
        raise RuntimeError(
            f"one_hot is only applicable to index tensor of type LongTensor (got {input.dtype!r}); "
            "convert with .to(symgrad.int64)"
        )
    value = value_of(input)
    if value is None and num_classes == -1:
        raise RuntimeError(
            "one_hot: num_classes must be given in a compiled function, since the shape of the result "
            "may not depend on values (got -1)"
        )
    if value is not None and value.size:
        if value.min() < 0:
            raise RuntimeError(f"one_hot: Class values must be non-negative (got {value.min()})")
        if num_classes == -1:
            num_classes = int(value.max()) + 1
        if value.max() >= num_classes:
            raise RuntimeError(
                f"one_hot: Class values must be smaller than num_classes (got {value.max()} and "
                f"{num_classes})"
            )
    if num_classes < 1:
        raise RuntimeError(f"one_hot: num_classes should be positive (got {num_classes})")
    hit = eq(unsqueeze(input, -1), iota(count=num_classes))
    return cast_to(hit, dtypes.int64)


def _ref_embedding(index: np.ndarray, weight: np.ndarray, padding_idx: int | None = None) -> Any:
    return weight[index]


@composite(
    ref=_ref_embedding,
    samples=(
        Case(_CLASSES, T(4, 5)),
        Case(T(lo=0, hi=3, dtype="int"), T(4, 2)),
        Case(np.array([1, 0, 1, 1]), T(2, 3)),
    ),
    errors=(Case(np.array([4]), T(4, 5), match="out of bounds", error=IndexError),),
)
def embedding(
    input: Expr,
    weight: Expr,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Expr:
    """Rows of `weight` by number; the row `padding_idx` gets no derivative."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError(
            "embedding: max_norm, scale_grad_by_freq and sparse are not supported (got "
            f"{max_norm}, {scale_grad_by_freq}, {sparse}); renormalise the weight yourself"
        )
    index = bounded_positions("embedding", input, weight.shape[0], 0, False)
    rows = read(weight, index)
    if padding_idx is None:
        return rows  # type: ignore[no-any-return]
    padding = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
    plain = unsqueeze(ne(index, padding), -1)
    return where(plain, rows, detach(rows))  # type: ignore[no-any-return]


def _ref_dropout(x: np.ndarray, p: float = 0.5, training: bool = True) -> Any:
    return x if not training or p == 0 else np.zeros_like(x)


@composite(
    ref=_ref_dropout,
    samples=(Case(T(3, 4), 0.5, False), Case(T(3), 0.0), Case(T(3), 1.0)),
    errors=(
        Case(T(3), 1.5, match="dropout probability has to be between 0 and 1", error=ValueError),
    ),
)
def dropout(input: Expr, p: float = 0.5, training: bool = True) -> Expr:
    """While training, elements are 0 with probability p, the others grow by 1 / (1 - p)."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0 or not input.size:
        return input
    if p == 1:
        return mul(input, 0.0)  # type: ignore[no-any-return]
    kept = draw("uniform", input.shape, input.dtype) >= p
    return keep(kept, mul(input, 1.0 / (1.0 - p)))  # type: ignore[no-any-return]


# -- attention ----------------------------------------------------------------------------


def _ref_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        groups = q.shape[-3] // k.shape[-3]
        k, v = np.repeat(k, groups, -3), np.repeat(v, groups, -3)
    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ np.swapaxes(k, -1, -2) * factor
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = np.where(attn_mask, scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    peak = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    sums = e.sum(-1, keepdims=True)
    return (e / np.where(sums == 0, 1, sums)) @ v


@composite(
    ref=_ref_attention,
    samples=(
        Case(T(3, 4), T(5, 4), T(5, 2)),
        Case(T(2, 3, 4), T(2, 3, 4), T(2, 3, 4), is_causal=True),
        Case(T(2, 3, 4), T(2, 5, 4), T(2, 5, 4), T(3, 5), scale=0.3),
        Case(
            T(3, 4),
            T(5, 4),
            T(5, 2),
            np.array([[True, False, True, True, False], [False] * 5, [True] * 5]),
        ),
        Case(T(1, 4, 3, 2), T(1, 2, 3, 2), T(1, 2, 3, 2), enable_gqa=True),
    ),
)
def scaled_dot_product_attention(
    query: Expr,
    key: Expr,
    value: Expr,
    attn_mask: Expr | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """softmax(query @ key.T * scale) @ value (arXiv:1706.03762).

    `attn_mask` is added to the scores, or says where they count if it is bool. Queries that may
    look at nothing give 0.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True; "
            "give one of the two"
        )
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_repeated_heads(x, groups) for x in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(mul(query, factor), transpose(key, -2, -1))
    if is_causal:
        shape = scores.shape[-2:]
        seen = axis_index(shape, 1) <= axis_index(shape, 0)
        scores = where(seen, scores, -math.inf)
    elif attn_mask is not None and attn_mask.dtype.category == 0:
        scores = where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = add(scores, attn_mask)
    if scores.size:
        blind = eq(amax(scores, -1, True), -math.inf)
        # Finite scores under the softmax too, so that no order of derivative meets its NaN.
        safe = _softmax_of_rows(where(blind, 0.0, scores), scores.ndim - 1)
        scores = where(blind, 0.0, safe)
    weights = dropout(scores, dropout_p) if dropout_p else scores
    return matmul(weights, value)  # type: ignore[no-any-return]


def _repeated_heads(x: Expr, groups: int) -> Expr:
    """Every head `groups` times in a row."""
    *batch, heads, length, width = x.shape
    wide = expand(unsqueeze(x, -3), (*batch, heads, groups, length, width))
    return reshape(wide, (*batch, heads * groups, length, width))  # type: ignore[no-any-return]

"""Contractions: everything that multiplies and sums goes through one batched matrix product.

`batched_product` is the primitive. `contracted` brings two operands with named axes to it
(batch, free and contracted axes); `matmul` has torch's rules for vectors and batches; the rest
are short forms of these. Integers take a sum of products, since the product kernels are floating.
`symgrad.ops.einsum` chooses the order of several contractions. Start reading at `matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Contract, broadcast_shapes, composite, op
from symgrad.ops.complex_numbers import conj
from symgrad.ops.movement import expand, join_axis, narrow_step, permute, reshape, wrap_dim
from symgrad.ops.reduce import count_of, part, sum_axis
from symgrad.sample import Case, T


def flipped(x: Expr) -> Expr:
    """The last two axes exchanged."""
    n = x.ndim
    return permute(x, (*range(n - 2), n - 1, n - 2))


@op
class batched_product(Contract):
    """(B, M, K) times (B, K, N): one fma chain per 384 terms, chains joined in a fixed tree."""

    public = False
    samples = (
        Case(T(2, 3, 4), T(2, 4, 5)),
        Case(T(1, 1, 4), T(1, 4, 3)),
        Case(T(1, 3, 0), T(1, 0, 2)),
    )
    ref = np.matmul

    def sympy(sp: Any, a: Any, b: Any) -> Any:
        return sp.Function("matmul")(a, b)

    def adjoint(g: Expr, a: Expr, b: Expr) -> Any:
        return batched_product(g, flipped(b)), batched_product(flipped(a), g)


def product3(a: Expr, b: Expr) -> Expr:
    """(B, M, K) times (B, K, N) in any numeric dtype."""
    if a.dtype.category >= 2:
        return batched_product(a, b)
    terms = reshape(a, (*a.shape, 1)) * reshape(b, (b.shape[0], 1, *b.shape[1:]))
    return sum_axis(terms, dim=2)


def _same_dtype(name: str, *operands: Expr) -> None:
    first = operands[0]
    for x in operands:
        if x.dtype is not first.dtype:
            raise RuntimeError(
                f"{name}: expected both operands to have the same dtype, but got: {first.dtype!r} "
                f"and {x.dtype!r}; convert one with .to"
            )
        if x.dtype.category == 0:
            raise NotImplementedError(
                f"{name}: \"addmm_impl_cpu_\" not implemented for 'Bool' (got {x.dtype!r}); convert "
                "with .to(symgrad.int64)"
            )


def _needs_rank(name: str, operands: dict[str, tuple[Expr, int]]) -> None:
    words = {1: "a vector", 2: "a matrix", 3: "a 3D tensor"}
    for label, (x, rank) in operands.items():
        if x.ndim != rank:
            raise RuntimeError(
                f"{name}: {label} must be {words[rank]} (got {x.ndim}D, shape {x.shape}); reshape it "
                "or use matmul"
            )


# -- two operands with named axes -------------------------------------------------------


def contracted(
    a: Expr, a_axes: Sequence[Any], b: Expr, b_axes: Sequence[Any], kept: Sequence[Any]
) -> tuple[Expr, list[Any]]:
    """Multiply two operands and sum over the shared axes that are not kept.

    Parameters
    ----------
    a, b : Expr
    a_axes, b_axes : sequence of hashable
        A name per axis, no name twice in one operand.
    kept : container of hashable
        Names that the result keeps.

    Returns
    -------
    (Expr, list)
        The result and the names of its axes.
    """
    a, first = _summed_alone(a, list(a_axes), b_axes, kept)
    b, second = _summed_alone(b, list(b_axes), first, kept)
    a, first = _without_ones(a, first, dict(zip(second, b.shape, strict=True)))
    b, second = _without_ones(b, second, dict(zip(first, a.shape, strict=True)))
    a, first = _summed_alone(a, first, second, kept)
    b, second = _summed_alone(b, second, first, kept)
    batch = [x for x in first if x in second and x in kept]
    inner = [x for x in first if x in second and x not in kept]
    rows = [x for x in first if x not in second]
    columns = [x for x in second if x not in first]
    left = _ordered(a, first, [*batch, *rows, *inner])
    right = _ordered(b, second, [*batch, *inner, *columns])
    names = [*batch, *rows, *columns]
    sizes = {**dict(zip(first, a.shape, strict=True)), **dict(zip(second, b.shape, strict=True))}
    shape = tuple(sizes[x] for x in names)
    if not inner:
        middle = (1,) * len(columns)
        left = reshape(left, (*left.shape, *middle))
        gap = (1,) * len(rows)
        return left * reshape(
            right, (*right.shape[: len(batch)], *gap, *right.shape[len(batch) :])
        ), names
    total, m, k, n = (_size(sizes, part_) for part_ in (batch, rows, inner, columns))
    result = product3(reshape(left, (total, m, k)), reshape(right, (total, k, n)))
    return reshape(result, shape), names


def _size(sizes: dict[Any, int], names: Sequence[Any]) -> int:
    total = 1
    for x in names:
        total *= sizes[x]
    return total


def _ordered(x: Expr, names: list[Any], order: list[Any]) -> Expr:
    return permute(x, tuple(names.index(n) for n in order))


def _summed_alone(
    x: Expr, names: list[Any], others: Sequence[Any], kept: Sequence[Any]
) -> tuple[Expr, list[Any]]:
    """Sum away axes that neither the other operand nor the result has."""
    left = list(names)
    for place in reversed(range(len(names))):
        if names[place] not in others and names[place] not in kept:
            x = sum_axis(x, dim=place)
            del left[place]
    return x, left


def _without_ones(x: Expr, names: list[Any], sizes: dict[Any, int]) -> tuple[Expr, list[Any]]:
    """Drop axes of size 1 that the other operand has with another size (broadcasting)."""
    left = [
        (n, s) for n, s in zip(names, x.shape, strict=True) if not (s == 1 and sizes.get(n, 1) != 1)
    ]
    return reshape(x, tuple(s for _, s in left)), [n for n, _ in left]


# -- matmul and its short forms ---------------------------------------------------------


@composite(
    ref=np.matmul,
    samples=(
        Case(T(3, 4), T(4, 2)),
        Case(T(4), T(4)),
        Case(T(3, 4), T(4)),
        Case(T(4), T(4, 2)),
        Case(T(2, 1, 3, 4), T(5, 4, 2)),
        Case(T(2, 3, 4), T(4)),
        Case(T(2, 3, dtype="int"), T(3, 2, dtype="int")),
    ),
    errors=(
        Case(T(2, 3), T(4, 5), match=r"shapes cannot be multiplied \(2x3 and 4x5\)"),
        Case(T(), T(3), match="both arguments to matmul need to be at least 1D"),
    ),
)
def matmul(input: Expr, other: Expr) -> Expr:
    """Matrix product with torch's rules for vectors and batches."""
    a, b = input, other
    _same_dtype("matmul", a, b)
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(
            f"matmul: both arguments to matmul need to be at least 1D, but they are {a.ndim}D and "
            f"{b.ndim}D (got shapes {a.shape} and {b.shape}); use * for scalars"
        )
    left = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
    m, k = left.shape[-2:]
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise RuntimeError(_mismatch(a, b))
    if right.ndim == 2 and left.ndim > 2:
        # A shared right operand: fold the batch into the rows of one product.
        rows = count_of(left.shape, tuple(range(left.ndim - 1)))
        folded = reshape(left, (1, rows, k))
        result = reshape(product3(folded, reshape(right, (1, k, n))), (*left.shape[:-1], n))
    else:
        batch = broadcast_shapes("matmul", [left.shape[:-2], right.shape[:-2]])
        count = count_of(batch, tuple(range(len(batch))))
        left3 = reshape(expand(left, (*batch, m, k)), (count, m, k))
        right3 = reshape(expand(right, (*batch, k, n)), (count, k, n))
        result = reshape(product3(left3, right3), (*batch, m, n))
    if b.ndim == 1:
        result = reshape(result, result.shape[:-1])
    if a.ndim == 1:
        at = result.ndim - 1 if b.ndim == 1 else result.ndim - 2
        result = reshape(result, result.shape[:at] + result.shape[at + 1 :])
    if (
        a.ndim > 1
        and b.ndim > 1
        and (_of_library(a) or (b.op is permute and _of_library(b.args[0])))
    ):
        from symgrad.ops.spectral import recognised

        return recognised(a, b, result)
    return result


def _of_library(x: Expr) -> bool:
    """Whether a node is a slice of what a library routine gave, such as eigenvectors."""
    return x.op is narrow_step and bool(x.args) and x.args[0].op.family == "library"


def _mismatch(a: Expr, b: Expr) -> str:
    if a.ndim == 1 and b.ndim == 1:
        return (
            f"matmul: inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{b.shape[0]}] "
            f"to have the same number of elements, but got {a.shape[0]} and {b.shape[0]} elements "
            "respectively; slice one of them"
        )
    if b.ndim == 1:
        return (
            f"matmul: size mismatch, got input ({a.shape[-2]}), mat ({a.shape[-2]}x{a.shape[-1]}), "
            f"vec ({b.shape[0]}); transpose or reshape one"
        )
    rows = 1 if a.ndim == 1 else a.shape[-2]
    return (
        f"matmul: mat1 and mat2 shapes cannot be multiplied ({rows}x{a.shape[-1]} and "
        f"{b.shape[-2]}x{b.shape[-1]}) (got {a.shape} and {b.shape}); transpose or reshape one"
    )


@composite(
    ref=np.matmul,
    samples=(Case(T(3, 4), T(4, 2)), Case(T(3, 0), T(0, 2))),
    errors=(
        Case(T(2, 3), T(4, 5), match=r"shapes cannot be multiplied \(2x3 and 4x5\)"),
        Case(T(2, 3), T(3), match="mat2 must be a matrix"),
    ),
)
def mm(input: Expr, mat2: Expr) -> Expr:
    """Product of two matrices."""
    _needs_rank("mm", {"self": (input, 2), "mat2": (mat2, 2)})
    return matmul(input, mat2)


@composite(
    ref=np.matmul,
    samples=(Case(T(2, 3, 4), T(2, 4, 2)),),
    errors=(
        Case(T(2, 3, 4), T(3), match="batch2 must be a 3D tensor"),
        Case(T(2, 3, 4), T(3, 4, 2), match="Expected size for first two dimensions of batch2"),
    ),
)
def bmm(input: Expr, mat2: Expr) -> Expr:
    """Products of two batches of matrices."""
    _needs_rank("bmm", {"batch1": (input, 3), "batch2": (mat2, 3)})
    _same_dtype("bmm", input, mat2)
    wanted = [input.shape[0], input.shape[2]]
    if list(mat2.shape[:2]) != wanted:
        raise RuntimeError(
            f"bmm: Expected size for first two dimensions of batch2 tensor to be: {wanted} but got: "
            f"{list(mat2.shape[:2])} (got shapes {input.shape} and {mat2.shape}); use matmul to "
            "broadcast batches"
        )
    return product3(input, mat2)


@composite(
    ref=np.matmul,
    samples=(Case(T(3, 4), T(4)),),
    errors=(Case(T(2, 3), T(4), match=r"size mismatch, got input \(2\), mat \(2x3\), vec \(4\)"),),
)
def mv(input: Expr, vec: Expr) -> Expr:
    """Product of a matrix and a vector."""
    _needs_rank("mv", {"self": (input, 2), "vec": (vec, 1)})
    return matmul(input, vec)


_DOT_SAMPLES = (Case(T(5), T(5)), Case(T(0), T(0)), Case(T(4, dtype="int"), T(4, dtype="int")))
_DOT_ERRORS = (
    Case(T(2), T(3), match="inconsistent tensor size"),
    Case(T(2, 3), T(3), match="1D tensors expected, but got 2D and 1D tensors"),
)


def _dot(name: str, a: Expr, b: Expr) -> Expr:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(
            f"{name}: 1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors (got shapes "
            f"{a.shape} and {b.shape}); use matmul or tensordot"
        )
    return matmul(a, b)


@composite(ref=np.dot, samples=_DOT_SAMPLES, errors=_DOT_ERRORS)
def dot(input: Expr, tensor: Expr) -> Expr:
    """Sum of the products of two vectors."""
    return _dot("dot", input, tensor)


@composite(ref=np.vdot, samples=_DOT_SAMPLES, errors=_DOT_ERRORS)
def vdot(input: Expr, other: Expr) -> Expr:
    """Sum of the products of two vectors, the first conjugated."""
    return _dot("vdot", conj(input), other)


@composite(
    ref=np.inner,
    samples=(Case(T(4), T(4)), Case(T(2, 4), T(3, 4)), Case(T(), T(3))),
    errors=(Case(T(2, 3), T(4, 2), match="the last dimension must match on both input tensors"),),
)
def inner(input: Expr, other: Expr) -> Expr:
    """Sums of products over the last dimensions of both."""
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            "inner: inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}; transpose one"
        )
    return tensordot(input, other, ([-1], [-1]))


@composite(
    ref=np.outer,
    samples=(Case(T(3), T(4)), Case(T(0), T(4))),
    errors=(Case(T(2, 2), T(3), match="Expected 1-D argument self, but got 2-D"),),
    aliases=("ger",),
)
def outer(input: Expr, vec2: Expr) -> Expr:
    """All products of the elements of two vectors."""
    for label, x in (("self", input), ("vec2", vec2)):
        if x.ndim != 1:
            raise RuntimeError(
                f"outer: Expected 1-D argument {label}, but got {x.ndim}-D (got shape {x.shape}); "
                "flatten it"
            )
    return reshape(input, (input.size, 1)) * vec2


def _ref_tensordot(a: np.ndarray, b: np.ndarray, dims: Any = 2) -> Any:
    return np.tensordot(a, b, axes=dims)


@composite(
    ref=_ref_tensordot,
    samples=(
        Case(T(2, 3, 4), T(3, 4, 5)),
        Case(T(2, 3), T(3, 4), 1),
        Case(T(2, 3, 4), T(4, 2), dims=([2, 0], [0, 1])),
        Case(T(2), T(3), 0),
    ),
    errors=(Case(T(2, 3), T(4, 3), 1, match="contracted dimensions need to match"),),
)
def tensordot(a: Expr, b: Expr, dims: int | Sequence[Sequence[int]] = 2) -> Expr:
    """Sums of products over the given dimensions of both."""
    if isinstance(dims, int):
        if not 0 <= dims <= a.ndim or dims > b.ndim:
            raise RuntimeError(
                f"tensordot: expects dims >= 0 and at most the number of dimensions (got dims={dims}, "
                f"shapes {a.shape} and {b.shape}); name the dimensions"
            )
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left = [wrap_dim("tensordot", d, a.ndim) for d in dims[0]]
        right = [wrap_dim("tensordot", d, b.ndim) for d in dims[1]]
    if len(left) != len(right):
        raise RuntimeError(
            f"tensordot: both dimension lists should have same length (got {left} and {right}); "
            "name as many in each"
        )
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]):
            raise RuntimeError(
                "tensordot: contracted dimensions need to match, but first has size "
                f"{a.shape[i]} in dim {i} and second has size {b.shape[j]} in dim {j} (got shapes "
                f"{a.shape} and {b.shape}); name other dimensions"
            )
    _same_dtype("tensordot", a, b)
    shared = {j: i for i, j in zip(left, right, strict=True)}
    a_names = [("a", d) for d in range(a.ndim)]
    b_names = [("a", shared[d]) if d in shared else ("b", d) for d in range(b.ndim)]
    kept = [n for n in a_names if n[1] not in left] + [n for n in b_names if n[0] == "b"]
    result, names = contracted(a, a_names, b, b_names, kept)
    return _ordered(result, names, kept)


# -- products added to something --------------------------------------------------------


def _added(x: Expr, product: Expr, beta: Any, alpha: Any) -> Expr:
    """beta * x + alpha * product; x is not looked at when beta is 0."""
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (x if beta == 1 else x * beta) + scaled


def _ref_added(
    x: np.ndarray, a: np.ndarray, b: np.ndarray, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    return beta * x + alpha * (a @ b)


@composite(
    ref=_ref_added,
    samples=(Case(T(3, 2), T(3, 4), T(4, 2)), Case(T(2), T(3, 4), T(4, 2), beta=0.5, alpha=2)),
    errors=(Case(T(3), T(2, 3), T(4, 2), match=r"shapes cannot be multiplied \(2x3 and 4x2\)"),),
)
def addmm(input: Expr, mat1: Expr, mat2: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * input + alpha * (mat1 @ mat2)."""
    _needs_rank("addmm", {"mat1": (mat1, 2), "mat2": (mat2, 2)})
    return _added(input, matmul(mat1, mat2), beta, alpha)


@composite(
    ref=_ref_added,
    samples=(Case(T(3), T(3, 4), T(4)), Case(T(1), T(3, 4), T(4), beta=0.5, alpha=2)),
)
def addmv(input: Expr, mat: Expr, vec: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * input + alpha * (mat @ vec)."""
    _needs_rank("addmv", {"mat": (mat, 2), "vec": (vec, 1)})
    return _added(input, matmul(mat, vec), beta, alpha)


@composite(
    ref=_ref_added,
    samples=(
        Case(T(2, 3, 2), T(2, 3, 4), T(2, 4, 2)),
        Case(T(2), T(2, 3, 4), T(2, 4, 2), beta=0.5, alpha=2),
    ),
)
def baddbmm(input: Expr, batch1: Expr, batch2: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * input + alpha * (batch1 @ batch2), matrix by matrix."""
    return _added(input, bmm(batch1, batch2), beta, alpha)


@composite(
    ref=lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * np.einsum("bij,bjk->ik", a, b),
    samples=(
        Case(T(3, 2), T(2, 3, 4), T(2, 4, 2)),
        Case(T(2), T(2, 3, 4), T(2, 4, 2), beta=0.5, alpha=2),
    ),
)
def addbmm(input: Expr, batch1: Expr, batch2: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * input + alpha * (the sum over the batch of batch1 @ batch2)."""
    _needs_rank("addbmm", {"batch1": (batch1, 3), "batch2": (batch2, 3)})
    product = tensordot(batch1, batch2, ([0, 2], [0, 1]))
    return _added(input, product, beta, alpha)


@composite(
    ref=lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * np.outer(a, b),
    samples=(Case(T(3, 4), T(3), T(4)), Case(T(4), T(3), T(4), beta=0.5, alpha=2)),
)
def addr(input: Expr, vec1: Expr, vec2: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * input + alpha * outer(vec1, vec2)."""
    return _added(input, outer(vec1, vec2), beta, alpha)


# -- products with a structure ----------------------------------------------------------


@composite(ref=np.kron, samples=(Case(T(2, 3), T(3, 2)), Case(T(2), T(2, 3)), Case(T(), T(2, 2))))
def kron(input: Expr, other: Expr) -> Expr:
    """Kronecker product: every element of `input` times all of `other`."""
    rank = max(input.ndim, other.ndim)
    a = (1,) * (rank - input.ndim) + input.shape
    b = (1,) * (rank - other.ndim) + other.shape
    left = reshape(input, tuple(s for d in a for s in (d, 1)))
    right = reshape(other, tuple(s for d in b for s in (1, d)))
    return reshape(left * right, tuple(m * n for m, n in zip(a, b, strict=True)))


def _ref_cross(a: np.ndarray, b: np.ndarray, dim: int = -1) -> Any:
    return np.cross(a, b, axis=dim)


def _cross(name: str, a: Expr, b: Expr, dim: int) -> Expr:
    shape = broadcast_shapes(name, [a.shape, b.shape])
    axis = wrap_dim(name, dim, len(shape))
    if a.ndim != b.ndim or a.shape[axis] != 3 or b.shape[axis] != 3:
        raise RuntimeError(
            f"{name}: inputs dimension {dim} must have length 3. Got "
            f"{a.shape[axis] if a.ndim > axis else 1} and {b.shape[axis] if b.ndim > axis else 1} "
            f"(got shapes {a.shape} and {b.shape}); name the dimension of length 3"
        )
    x = [part(a, axis, k, 1) for k in range(3)]
    y = [part(b, axis, k, 1) for k in range(3)]
    turns = ((1, 2), (2, 0), (0, 1))
    return join_axis(*[x[i] * y[j] - x[j] * y[i] for i, j in turns], dim=axis)


@composite(
    ref=_ref_cross,
    samples=(Case(T(2, 3), T(2, 3)), Case(T(3, 2), T(3, 1), dim=0)),
    errors=(Case(T(2, 4), T(2, 4), match="must have length 3"),),
)
def linalg_cross(input: Expr, other: Expr, *, dim: int = -1) -> Expr:
    """Vector product of three-dimensional vectors."""
    return _cross("linalg.cross", input, other, dim)


@composite(
    ref=_ref_cross,
    samples=(Case(T(2, 3), T(2, 3)), Case(T(3, 2), T(3, 2), 0)),
    errors=(Case(T(2, 4), T(2, 4), 1, match="must have length 3"),),
)
def cross(input: Expr, other: Expr, dim: int | None = None) -> Expr:
    """Vector product along `dim`, or along the first dimension of size 3."""
    if dim is None:
        dim = next((d for d, s in enumerate(input.shape) if s == 3), -1)
    return _cross("linalg.cross", input, other, dim)

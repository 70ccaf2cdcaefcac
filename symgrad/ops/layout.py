"""torch's rearranging functions, written with the movement primitives.

All are views: chains of `reshape`, `permute`, `expand`, `narrow_step` and `flip` that cost
nothing by themselves. Joining and splitting are in `symgrad.ops.joining`, diagonals and triangles
in `symgrad.ops.diagonals`, padding in `symgrad.ops.padding`. Start reading at `transpose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite
from symgrad.op import value_of
from symgrad.ops.complex_numbers import conj
from symgrad.ops.create import iota
from symgrad.ops.movement import expand, flip, narrow_step, permute, reshape, shape_of, wrap_dim
from symgrad.sample import Case, T


def axis_index(shape: tuple[int, ...], dim: int) -> Expr:
    """The position along `dim`, broadcastable against `shape`."""
    sizes = tuple(s if d == dim else 1 for d, s in enumerate(shape))
    return reshape(iota(count=shape[dim]), sizes)  # type: ignore[no-any-return]


def sliced(x: Expr, dim: int, start: int, count: int, step: int = 1) -> Expr:
    """`count` elements along one axis from `start` on, every `step`-th."""
    rest = range(x.ndim)
    return narrow_step(  # type: ignore[no-any-return]
        x,
        starts=tuple(start if d == dim else 0 for d in rest),
        steps=tuple(step if d == dim else 1 for d in rest),
        counts=tuple(count if d == dim else x.shape[d] for d in rest),
    )


def moved_axis(x: Expr, source: int, destination: int) -> Expr:
    """`x` with one axis moved, the others in order; both counted from the front."""
    order = [d for d in range(x.ndim) if d != source]
    order.insert(destination, source)
    return permute(x, tuple(order))  # type: ignore[no-any-return]


# -- shapes -----------------------------------------------------------------------------


@composite(
    ref=np.reshape,
    samples=(Case(T(2, 6), (3, 4)), Case(T(4), (2, -1))),
    errors=(Case(T(2, 3), (4,), match="is invalid for input of size 6"),),
)
def view(input: Expr, *shape: Any) -> Expr:
    """The same elements under another shape; never refuses for strides, since it is `reshape`."""
    return reshape(input, *shape)  # type: ignore[no-any-return]


@composite(
    ref=lambda x, other: np.reshape(x, other.shape),
    samples=(Case(T(2, 6), T(3, 4)),),
    aliases=("reshape_as",),
)
def view_as(input: Expr, other: Expr) -> Expr:
    """The same elements in the shape of another tensor."""
    return reshape(input, other.shape)  # type: ignore[no-any-return]


def _ref_flatten(x: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> Any:
    if x.ndim == 0:
        return np.reshape(x, (1,))
    end = end_dim % x.ndim
    return np.reshape(
        x, (*x.shape[:start_dim], int(np.prod(x.shape[start_dim : end + 1])), *x.shape[end + 1 :])
    )


@composite(
    ref=_ref_flatten,
    samples=(
        Case(T(2, 3, 4)),
        Case(T(2, 3, 4), 1),
        Case(T(2, 3, 4), 0, 1),
        Case(T()),
        Case(T(0, 3)),
    ),
    errors=(Case(T(2, 3), 1, 0, match="start_dim cannot come after end_dim"),),
)
def flatten(input: Expr, start_dim: int = 0, end_dim: int = -1) -> Expr:
    """The axes from `start_dim` to `end_dim` merged into one."""
    first, last = (
        wrap_dim("flatten", start_dim, input.ndim),
        wrap_dim("flatten", end_dim, input.ndim),
    )
    if first > last:
        raise RuntimeError(
            f"flatten: start_dim cannot come after end_dim (got {start_dim}, {end_dim})"
        )
    total = 1
    for s in input.shape[first : last + 1]:
        total *= s
    return reshape(input, (*input.shape[:first], total, *input.shape[last + 1 :]))  # type: ignore[no-any-return]


@composite(
    ref=lambda x, dim, sizes: np.reshape(
        x, (*x.shape[: dim % x.ndim], *sizes, *x.shape[dim % x.ndim + 1 :])
    ),
    samples=(Case(T(6, 2), 0, (2, 3)), Case(T(2, 8), -1, (2, 4))),
    errors=(Case(T(6), 0, (4, 2), match="don't multiply up to the size of dim 0"),),
)
def unflatten(input: Expr, dim: int, sizes: Sequence[int]) -> Expr:
    """One axis split into several; one size may be -1."""
    at = wrap_dim("unflatten", dim, input.ndim)
    parts = list(shape_of((tuple(sizes),)))
    known = 1
    for s in parts:
        known *= s if s != -1 else 1
    fits = known == input.shape[at] if -1 not in parts else known and input.shape[at] % known == 0
    if not fits:
        raise RuntimeError(
            f"unflatten: Provided sizes {parts} don't multiply up to the size of dim {at} "
            f"({input.shape[at]}) in the input tensor"
        )
    parts = [input.shape[at] // known if s == -1 else s for s in parts]
    return reshape(input, (*input.shape[:at], *parts, *input.shape[at + 1 :]))  # type: ignore[no-any-return]


@composite(ref=np.ravel, samples=(Case(T(2, 3)), Case(T())))
def ravel(input: Expr) -> Expr:
    """All elements along one axis, in row-major order."""
    return reshape(input, (input.size,))  # type: ignore[no-any-return]


def _ref_squeeze(x: np.ndarray, dim: Any = None) -> Any:
    if dim is None:
        return np.squeeze(x)
    dims = [dim] if isinstance(dim, int) else list(dim)
    return np.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


@composite(
    ref=_ref_squeeze,
    samples=(
        Case(T(1, 3, 1)),
        Case(T(1, 3, 1), 0),
        Case(T(1, 3, 1), (0, -1)),
        Case(T(2, 3), 0),
        Case(T(), 0),
    ),
    errors=(Case(T(1), 1, match="Dimension out of range", error=IndexError),),
)
def squeeze(input: Expr, dim: int | Sequence[int] | None = None) -> Expr:
    """Axes of size 1 removed: all, or those named; a named axis of another size stays."""
    if dim is None:
        return reshape(input, tuple(s for s in input.shape if s != 1))  # type: ignore[no-any-return]
    named = [dim] if isinstance(dim, int) else list(dim)
    dims = {wrap_dim("squeeze", d, input.ndim) for d in named}
    return reshape(input, tuple(s for d, s in enumerate(input.shape) if d not in dims or s != 1))  # type: ignore[no-any-return]


@composite(
    ref=np.expand_dims,
    samples=(Case(T(2, 3), 0), Case(T(2, 3), -1), Case(T(), 0)),
    errors=(Case(T(2), 2, match="Dimension out of range", error=IndexError),),
)
def unsqueeze(input: Expr, dim: int) -> Expr:
    """An axis of size 1 added at position `dim` of the result."""
    at = wrap_dim("unsqueeze", dim, input.ndim + 1)
    return reshape(input, (*input.shape[:at], 1, *input.shape[at:]))  # type: ignore[no-any-return]


def _several(function: Any, tensors: tuple[Any, ...]) -> Any:
    """A function of one tensor over tensors given one by one or as one sequence."""
    if len(tensors) == 1 and isinstance(tensors[0], Expr):
        return function(tensors[0])
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    return tuple(function(t) for t in given)


@composite(ref=np.atleast_1d, samples=(Case(T()), Case(T(2, 3))))
def atleast_1d(*tensors: Any) -> Any:
    """0-d tensors as vectors of one element; others as they are."""
    return _several(lambda x: x if x.ndim else reshape(x, (1,)), tensors)


@composite(ref=np.atleast_2d, samples=(Case(T()), Case(T(3)), Case(T(2, 3))))
def atleast_2d(*tensors: Any) -> Any:
    """Tensors of fewer than two dimensions as matrices of one row."""
    return _several(
        lambda x: reshape(x, (1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x, tensors
    )


@composite(ref=np.atleast_3d, samples=(Case(T()), Case(T(3)), Case(T(2, 3)), Case(T(2, 3, 4))))
def atleast_3d(*tensors: Any) -> Any:
    """A vector as (1, n, 1), a matrix as (m, n, 1)."""

    def lifted(x: Expr) -> Expr:
        if x.ndim >= 3:
            return x
        shape = (1, *x.shape, 1) if x.ndim == 1 else (*x.shape, *(1,) * (3 - x.ndim))
        return reshape(x, shape)  # type: ignore[no-any-return]

    return _several(lifted, tensors)


# -- order of axes ----------------------------------------------------------------------


@composite(
    ref=np.swapaxes,
    samples=(Case(T(2, 3), 0, 1), Case(T(2, 3, 4), -1, 0), Case(T(3), 0, -1)),
    errors=(Case(T(2, 3), 0, 2, match="Dimension out of range", error=IndexError),),
    aliases=("swapaxes", "swapdims"),
)
def transpose(input: Expr, dim0: int, dim1: int) -> Expr:
    """Two axes exchanged."""
    a, c = wrap_dim("transpose", dim0, input.ndim), wrap_dim("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if input.ndim:
        order[a], order[c] = c, a
    return permute(input, tuple(order))  # type: ignore[no-any-return]


@composite(
    ref=np.moveaxis,
    samples=(Case(T(2, 3, 4), 0, 2), Case(T(2, 3, 4), (0, 1), (-1, 0)), Case(T(2, 3), -1, 0)),
    errors=(Case(T(2, 3), (0, 0), (0, 1), match="repeated dim"),),
    aliases=("moveaxis",),
)
def movedim(input: Expr, source: int | Sequence[int], destination: int | Sequence[int]) -> Expr:
    """Axes moved to new positions, the others in order."""
    froms = [source] if isinstance(source, int) else list(source)
    tos = [destination] if isinstance(destination, int) else list(destination)
    if len(froms) != len(tos):
        raise RuntimeError(
            "movedim: Invalid source or destination dims: source and destination should contain the "
            f"same number of dims (got {froms} and {tos})"
        )
    froms = [wrap_dim("movedim", d, input.ndim) for d in froms]
    tos = [wrap_dim("movedim", d, input.ndim) for d in tos]
    if len(set(froms)) != len(froms) or len(set(tos)) != len(tos):
        raise RuntimeError(
            f"movedim: repeated dim in source or destination (got {source}, {destination})"
        )
    rest = iter([d for d in range(input.ndim) if d not in froms])
    placed = dict(zip(tos, froms, strict=True))
    return permute(
        input, tuple(placed[d] if d in placed else next(rest) for d in range(input.ndim))
    )  # type: ignore[no-any-return]


@composite(
    ref=np.transpose,
    samples=(Case(T(2, 3)), Case(T(3)), Case(T())),
    errors=(Case(T(2, 3, 4), match="expects a tensor with <= 2 dimensions"),),
)
def t(input: Expr) -> Expr:
    """A matrix transposed; vectors and scalars as they are."""
    if input.ndim > 2:
        raise RuntimeError(
            f"t: t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D; use mT"
        )
    return permute(input, tuple(reversed(range(input.ndim))))  # type: ignore[no-any-return]


@composite(ref=lambda x: np.swapaxes(x, -2, -1), samples=(Case(T(2, 3)), Case(T(2, 3, 4))))
def adjoint(input: Expr) -> Expr:
    """The last two axes exchanged, and complex numbers conjugated."""
    return conj(transpose(input, -2, -1))  # type: ignore[no-any-return]


@composite(
    ref=np.fliplr,
    samples=(Case(T(2, 3)), Case(T(2, 3, 2))),
    errors=(Case(T(2), match="must be >= 2-d"),),
)
def fliplr(input: Expr) -> Expr:
    """The second axis reversed."""
    if input.ndim < 2:
        raise RuntimeError(f"fliplr: Input must be >= 2-d (got {input.ndim}-d)")
    return flip(input, (1,))  # type: ignore[no-any-return]


@composite(
    ref=np.flipud, samples=(Case(T(3)), Case(T(2, 3))), errors=(Case(T(), match="must be >= 1-d"),)
)
def flipud(input: Expr) -> Expr:
    """The first axis reversed."""
    if input.ndim < 1:
        raise RuntimeError("flipud: Input must be >= 1-d (got 0-d)")
    return flip(input, (0,))  # type: ignore[no-any-return]


@composite(
    ref=lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims),
    samples=(Case(T(2, 3)), Case(T(2, 3), 2), Case(T(2, 3, 2), -1, (2, 0))),
    errors=(Case(T(2, 3), 1, (0, 0), match="expected rotation dims to be different"),),
)
def rot90(input: Expr, k: int = 1, dims: Sequence[int] = (0, 1)) -> Expr:
    """A rotation by k quarter turns in the plane of two axes, from the first towards the second."""
    if len(dims) != 2:
        raise RuntimeError(f"rot90: expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.ndim < 2:
        raise RuntimeError(f"rot90: expected total dims >= 2, but got total dims = {input.ndim}")
    a, c = wrap_dim("rot90", dims[0], input.ndim), wrap_dim("rot90", dims[1], input.ndim)
    if a == c:
        raise RuntimeError(f"rot90: expected rotation dims to be different, but got {tuple(dims)}")
    turns = k % 4
    if turns == 0:
        return input
    if turns == 2:
        return flip(input, (a, c))  # type: ignore[no-any-return]
    if turns == 1:
        return transpose(flip(input, (c,)), a, c)  # type: ignore[no-any-return]
    return flip(transpose(input, a, c), (c,))  # type: ignore[no-any-return]


# -- repetition -------------------------------------------------------------------------


@composite(
    ref=lambda x, other: np.broadcast_to(x, other.shape),
    samples=(Case(T(3, 1), T(2, 3, 4)),),
)
def expand_as(input: Expr, other: Expr) -> Expr:
    """Repeated to the shape of another tensor."""
    return expand(input, other.shape)  # type: ignore[no-any-return]


@composite(
    ref=np.broadcast_to,
    samples=(Case(T(3), (4, 3)), Case(T(), (2,)), Case(T(2, 1), (2, 3))),
    errors=(Case(T(2, 3), (2, 4), match="must match the existing size"),),
)
def broadcast_to(input: Expr, size: Sequence[int]) -> Expr:
    """Repeated along axes of size 1 and new leading axes."""
    return expand(input, tuple(size))  # type: ignore[no-any-return]


@composite(
    ref=np.broadcast_arrays,
    samples=(Case(T(3, 1), T(4)),),
    errors=(Case(T(3), T(4), match="must match the size"),),
)
def broadcast_tensors(*tensors: Any) -> tuple[Expr, ...]:
    """All tensors in their common shape."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    shape = broadcast_shapes("broadcast_tensors", [x.shape for x in given])
    return tuple(expand(x, shape) for x in given)


def _repeated(name: str, x: Expr, counts: tuple[int, ...]) -> Expr:
    if any(c < 0 for c in counts):
        raise RuntimeError(
            f"{name}: Trying to create tensor with negative dimension (got {counts})"
        )
    sizes = (1,) * (len(counts) - x.ndim) + x.shape
    paired = tuple(n for s in sizes for n in (1, s))
    spread = tuple(n for c, s in zip(counts, sizes, strict=True) for n in (c, s))
    whole = tuple(c * s for c, s in zip(counts, sizes, strict=True))
    return reshape(expand(reshape(x, paired), spread), whole)  # type: ignore[no-any-return]


@composite(
    ref=np.tile,
    samples=(Case(T(2, 3), (2, 1)), Case(T(3), (2, 2)), Case(T(), (3,)), Case(T(2), (0,))),
    errors=(Case(T(2, 3), (2,), match="can not be smaller than number of dimensions"),),
)
def repeat(input: Expr, *repeats: Any) -> Expr:
    """The tensor repeated along each axis; more counts than axes add axes in front."""
    counts = shape_of(repeats)
    if len(counts) < input.ndim:
        raise RuntimeError(
            "repeat: Number of dimensions of repeat dims can not be smaller than number of dimensions "
            f"of tensor (got {counts} for {input.ndim} dimensions)"
        )
    return _repeated("repeat", input, counts)


@composite(
    ref=np.tile,
    samples=(Case(T(2, 3), (2,)), Case(T(3), (2, 2)), Case(T(2, 3), (1, 2))),
)
def tile(input: Expr, *dims: Any) -> Expr:
    """The tensor repeated along each axis; missing counts in front are 1."""
    counts = shape_of(dims)
    return _repeated("tile", input, (1,) * (input.ndim - len(counts)) + counts)


@composite(
    ref=lambda x, repeats, dim=None: np.repeat(x, repeats, dim),
    samples=(
        Case(T(2, 3), 2),
        Case(T(2, 3), 3, 1),
        Case(T(2, 3), 2, -2),
        Case(T(3, 2), np.array([1, 0, 2]), 0),
    ),
    errors=(
        Case(T(3), -1, match="repeats can not be negative|Repeats must be non-negative"),
        Case(T(3), np.array([1, 2]), 0, match="repeats must have the same size as input along dim"),
    ),
)
def repeat_interleave(input: Expr, repeats: Any, dim: int | None = None) -> Expr:
    """Each element (or slice along `dim`) repeated in place.

    Parameters
    ----------
    repeats : int, ndarray or Expr
        One count, or one per element along `dim`, whose values must be known.
    """
    if dim is None:
        input, dim = reshape(input, (input.size,)), 0
    at = wrap_dim("repeat_interleave", dim, input.ndim)
    counts = value_of(repeats) if isinstance(repeats, Expr) else np.asarray(repeats)
    if counts is None:
        raise RuntimeError(
            "repeat_interleave: repeats depends on a traced input, so the shape is not known; use a "
            "Python integer"
        )
    if counts.size and counts.min() < 0:
        raise RuntimeError(
            f"repeat_interleave: repeats can not be negative (got {counts.tolist()})"
        )
    if counts.size == 1:
        count = int(counts.reshape(-1)[0])
        shape = (*input.shape[: at + 1], count, *input.shape[at + 1 :])
        spread = expand(reshape(input, (*input.shape[: at + 1], 1, *input.shape[at + 1 :])), shape)
        return reshape(spread, (*input.shape[:at], input.shape[at] * count, *input.shape[at + 1 :]))  # type: ignore[no-any-return]
    if counts.shape != (input.shape[at],):
        raise RuntimeError(
            "repeat_interleave: repeats must have the same size as input along dim, but got "
            f"repeats.size(0) = {counts.size} and input.size({at}) = {input.shape[at]}"
        )
    from symgrad.ops.positions import known, read

    rows = known(np.repeat(np.arange(input.shape[at]), counts))
    return moved_axis(read(moved_axis(input, at, 0), rows), 0, at)


# -- parts ------------------------------------------------------------------------------


def _ref_narrow(x: np.ndarray, dim: int, start: int, length: int) -> Any:
    first = start + x.shape[dim] if start < 0 else start
    return np.moveaxis(np.moveaxis(x, dim, 0)[first : first + length], 0, dim)


@composite(
    ref=_ref_narrow,
    samples=(Case(T(5, 3), 0, 1, 3), Case(T(2, 5), -1, -2, 2), Case(T(4), 0, 4, 0)),
    errors=(
        Case(T(5), 0, 3, 4, match=r"start \(3\) \+ length \(4\) exceeds dimension size \(5\)"),
        Case(T(), 0, 0, 1, match="cannot be applied to a 0-dim tensor"),
    ),
)
def narrow(input: Expr, dim: int, start: int, length: int) -> Expr:
    """`length` elements along one axis from `start` on."""
    if input.ndim == 0:
        raise RuntimeError("narrow: narrow() cannot be applied to a 0-dim tensor")
    at = wrap_dim("narrow", dim, input.ndim)
    size = input.shape[at]
    if length < 0:
        raise RuntimeError(f"narrow: narrow(): length must be non-negative (got {length})")
    if not -size <= start <= size:
        raise IndexError(
            f"narrow: Dimension out of range (expected start to be in range of [{-size}, {size}], but "
            f"got {start})"
        )
    first = start + size if start < 0 else start
    if first + length > size:
        raise RuntimeError(
            f"narrow: start ({first}) + length ({length}) exceeds dimension size ({size}); take fewer"
        )
    return sliced(input, at, first, length)


@composite(
    ref=lambda x, dim, index: np.take(x, index, dim),
    samples=(Case(T(5, 3), 0, 1), Case(T(2, 5), -1, -2), Case(T(4), 0, 3)),
    errors=(
        Case(T(3), 0, 3, match="out of range", error=IndexError),
        Case(T(), 0, 0, match="cannot be applied to a 0-dim tensor", error=IndexError),
    ),
)
def select(input: Expr, dim: int, index: int) -> Expr:
    """The slice at one position of an axis, which is dropped."""
    if input.ndim == 0:
        raise IndexError("select: select() cannot be applied to a 0-dim tensor.")
    at = wrap_dim("select", dim, input.ndim)
    size = input.shape[at]
    if not -size <= index < size:
        raise IndexError(
            f"select: select(): index {index} out of range for tensor of size {list(input.shape)} at "
            f"dimension {at}"
        )
    part = sliced(input, at, index % size, 1)
    return reshape(part, (*input.shape[:at], *input.shape[at + 1 :]))  # type: ignore[no-any-return]

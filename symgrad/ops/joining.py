"""Joining tensors along an axis, and taking them apart.

Joins are the one primitive `join_axis` after promotion; parts are views. Start reading at `cat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite, promote
from symgrad.op import cast_to, value_of
from symgrad.ops.layout import atleast_1d, atleast_2d, atleast_3d, select, sliced
from symgrad.ops.movement import embed, expand, join_axis, reshape, wrap_dim
from symgrad.sample import Case, T


def _some(name: str, tensors: Sequence[Any], error: type[Exception] = RuntimeError) -> list[Expr]:
    given = list(tensors)
    if not given:
        raise error(f"{name}: expected a non-empty list of Tensors")
    for x in given:
        if not isinstance(x, Expr):
            raise TypeError(
                f"{name}: expected Tensor as element in tensors (got {type(x).__name__})"
            )
    return given


def _ref_cat(tensors: list[np.ndarray], dim: int = 0) -> Any:
    floats = [x.dtype for x in tensors if x.dtype.kind == "f"]
    joined = np.concatenate([x for x in tensors if x.shape != (0,)], dim)
    return joined.astype(max(floats)) if floats else joined


@composite(
    ref=_ref_cat,
    samples=(
        Case([T(2, 3), T(1, 3)]),
        Case([T(2, 3), T(2, 0), T(2, 2)], -1),
        Case([T(0), T(2, 3)], 1),
        Case([T(2), T(3, dtype="int")]),
    ),
    errors=(
        Case([], match="expected a non-empty list of Tensors", error=ValueError),
        Case([T(2, 3), T(2, 4)], match="Sizes of tensors must match except in dimension 0"),
        Case([T(2, 3), T(3)], match="Tensors must have same number of dimensions"),
        Case([T(), T()], match="zero-dimensional tensor .* cannot be concatenated"),
    ),
    aliases=("concat", "concatenate"),
)
def cat(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """Tensors joined along an existing axis; dtypes are promoted, empty vectors skipped."""
    given = _some("cat", tensors, ValueError)
    dtype = promote(given)
    for place, x in enumerate(given):
        if x.ndim == 0:
            raise RuntimeError(
                f"cat: zero-dimensional tensor (at position {place}) cannot be concatenated; use stack"
            )
    parts = [cast_to(x, dtype) for x in given if x.shape != (0,)]
    if not parts:
        return cast_to(given[0], dtype)
    first = parts[0]
    at = wrap_dim("cat", dim, first.ndim)
    for place, x in enumerate(parts[1:], 1):
        if x.ndim != first.ndim:
            raise RuntimeError(
                f"cat: Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}"
            )
        for d, (have, want) in enumerate(zip(x.shape, first.shape, strict=True)):
            if d != at and have != want:
                raise RuntimeError(
                    f"cat: Sizes of tensors must match except in dimension {at}. Expected size {want} "
                    f"but got size {have} for tensor number {place} in the list"
                )
    return first if len(parts) == 1 else join_axis(*parts, dim=at)  # type: ignore[no-any-return]


@composite(
    ref=lambda tensors, dim=0: np.stack(tensors, dim),
    samples=(Case([T(2, 3), T(2, 3)]), Case([T(3), T(3)], -1), Case([T(), T(), T()])),
    errors=(
        Case([T(2), T(3)], match="stack expects each tensor to be equal size"),
        Case([], match="expected a non-empty list of Tensors|non-empty TensorList"),
    ),
)
def stack(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """Tensors of one shape joined along a new axis."""
    given = _some("stack", tensors)
    shape = given[0].shape
    at = wrap_dim("stack", dim, len(shape) + 1)
    for place, x in enumerate(given):
        if x.shape != shape:
            raise RuntimeError(
                f"stack: stack expects each tensor to be equal size, but got {list(shape)} at entry 0 "
                f"and {list(x.shape)} at entry {place}"
            )
    dtype = promote(given)
    widened = (*shape[:at], 1, *shape[at:])
    return join_axis(*[reshape(cast_to(x, dtype), widened) for x in given], dim=at)  # type: ignore[no-any-return]


@composite(ref=np.hstack, samples=(Case([T(2), T(3)]), Case([T(2, 1), T(2, 3)]), Case([T(), T()])))
def hstack(tensors: Sequence[Expr]) -> Expr:
    """Joined side by side: along the second axis, vectors along their only one."""
    given = [atleast_1d(x) for x in _some("hstack", tensors)]
    return cat(given, 0 if given[0].ndim == 1 else 1)  # type: ignore[no-any-return]


@composite(
    ref=np.vstack,
    samples=(Case([T(3), T(3)]), Case([T(2, 3), T(1, 3)])),
    aliases=("row_stack",),
)
def vstack(tensors: Sequence[Expr]) -> Expr:
    """Joined on top of each other: along the first axis, vectors as rows."""
    return cat([atleast_2d(x) for x in _some("vstack", tensors)], 0)  # type: ignore[no-any-return]


@composite(ref=np.dstack, samples=(Case([T(3), T(3)]), Case([T(2, 3), T(2, 3)])))
def dstack(tensors: Sequence[Expr]) -> Expr:
    """Joined in depth: along the third axis."""
    return cat([atleast_3d(x) for x in _some("dstack", tensors)], 2)  # type: ignore[no-any-return]


@composite(ref=np.column_stack, samples=(Case([T(3), T(3, 2)]), Case([T(3), T(3)])))
def column_stack(tensors: Sequence[Expr]) -> Expr:
    """Vectors as columns, and matrices, joined side by side."""
    columns = [x if x.ndim > 1 else reshape(x, (x.size, 1)) for x in _some("column_stack", tensors)]
    return cat(columns, 1)  # type: ignore[no-any-return]


def _ref_block_diag(*tensors: np.ndarray) -> Any:
    blocks = [np.atleast_2d(x) for x in tensors]
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for b in blocks:
        out[row : row + b.shape[0], column : column + b.shape[1]] = b
        row, column = row + b.shape[0], column + b.shape[1]
    return out.astype(blocks[0].dtype)


@composite(
    ref=_ref_block_diag,
    samples=(Case(T(2, 3), T(1, 2)), Case(T(2), T(), T(2, 2))),
    errors=(Case(T(2, 2, 2), match="Input tensors must have 2 or fewer dimensions"),),
)
def block_diag(*tensors: Expr) -> Expr:
    """A matrix with the given matrices along its diagonal; vectors count as rows."""
    for x in tensors:
        if x.ndim > 2:
            raise RuntimeError(
                f"block_diag: Input tensors must have 2 or fewer dimensions. Input has {x.ndim} dimensions"
            )
    blocks = [atleast_2d(x) for x in _some("block_diag", tensors)]
    dtype = promote(blocks)
    width = sum(b.shape[1] for b in blocks)
    rows = []
    column = 0
    for b in blocks:
        place = {"size": (b.shape[0], width), "starts": (0, column), "steps": (1, 1)}
        rows.append(embed(cast_to(b, dtype), **place))
        column += b.shape[1]
    return cat(rows, 0)  # type: ignore[no-any-return]


def _ref_roll(x: np.ndarray, shifts: Any, dims: Any = None) -> Any:
    return np.roll(x, shifts, dims if dims != () else None)


@composite(
    ref=_ref_roll,
    samples=(
        Case(T(5), 2),
        Case(T(2, 3), 1),
        Case(T(2, 3), -1, 1),
        Case(T(2, 3), (1, 2), (0, 1)),
        Case(T(0), 1),
    ),
    errors=(Case(T(3), (1, 2), (0,), match="shifts and dimensions must align"),),
)
def roll(input: Expr, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Expr:
    """Elements shifted along axes, those that leave come back at the other end."""
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims is None or dims == ():
        if len(by) != 1:
            raise RuntimeError("roll: shifts and dimensions must align; give one dim per shift")
        return reshape(_rolled(reshape(input, (input.size,)), by[0], 0), input.shape)  # type: ignore[no-any-return]
    axes = [dims] if isinstance(dims, int) else list(dims)
    if len(axes) != len(by):
        raise RuntimeError(
            f"roll: shifts and dimensions must align. shifts: {len(by)}, dims: {len(axes)}"
        )
    result = input
    for shift, d in zip(by, axes, strict=True):
        result = _rolled(result, shift, wrap_dim("roll", d, input.ndim))
    return result


def _rolled(x: Expr, shift: int, dim: int) -> Expr:
    size = x.shape[dim] if x.ndim else 1
    back = shift % size if size else 0
    if back == 0:
        return x
    tail = sliced(x, dim, size - back, back)
    return join_axis(tail, sliced(x, dim, 0, size - back), dim=dim)  # type: ignore[no-any-return]


# -- parts ------------------------------------------------------------------------------


def _at(name: str, x: Expr, dim: int) -> int:
    if x.ndim == 0:
        raise RuntimeError(
            f"{name}: {name} expects at least a 1-dimensional tensor (got 0 dimensions)"
        )
    return wrap_dim(name, dim, x.ndim)


def _pieces(x: Expr, dim: int, sizes: Sequence[int]) -> tuple[Expr, ...]:
    parts = []
    start = 0
    for s in sizes:
        parts.append(sliced(x, dim, start, s))
        start += s
    return tuple(parts)


def _ref_split(x: np.ndarray, split_size_or_sections: Any, dim: int = 0) -> Any:
    given = split_size_or_sections
    bounds = range(given, x.shape[dim], given) if isinstance(given, int) else np.cumsum(given)[:-1]
    return np.split(x, list(bounds), dim)


@composite(
    ref=_ref_split,
    samples=(Case(T(5, 2), 2), Case(T(5), [1, 4]), Case(T(2, 4), 4, -1), Case(T(0, 2), 3)),
    errors=(
        Case(T(5), [1, 3], match="split_sizes to sum exactly to 5"),
        Case(T(5), -1, match="split_size to be non-negative|split_size be non-negative"),
        Case(T(), 1, match="at least a 1-dimensional tensor"),
    ),
)
def split(
    input: Expr, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Expr, ...]:
    """Consecutive parts of a given size (the last may be smaller), or of given sizes."""
    at = _at("split", input, dim)
    size = input.shape[at]
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise RuntimeError(
                f"split: split expects split_size be non-negative, but got split_size={step}"
            )
        count = max(-(-size // step), 1) if step else 1
        sizes = [max(min(step, size - k * step), 0) for k in range(count)]
    else:
        sizes = [int(s) for s in split_size_or_sections]
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise RuntimeError(
                f"split: split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's "
                f"size at dimension {at}), but got split_sizes={sizes}"
            )
    return _pieces(input, at, sizes)


@composite(
    ref=lambda x, chunks, dim=0: _ref_split(x, max(-(-x.shape[dim] // chunks), 1), dim),
    samples=(Case(T(5), 3), Case(T(2, 6), 4, 1), Case(T(2), 5)),
    errors=(Case(T(5), 0, match="chunk expects `chunks` to be greater than 0"),),
)
def chunk(input: Expr, chunks: int, dim: int = 0) -> tuple[Expr, ...]:
    """At most `chunks` consecutive parts of equal size, but for the last."""
    at = _at("chunk", input, dim)
    if chunks <= 0:
        raise RuntimeError(f"chunk: chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = input.shape[at]
    if size == 0:
        return _pieces(input, at, [0] * chunks)
    return split(input, -(-size // chunks), at)  # type: ignore[no-any-return]


def _ref_tensor_split(x: np.ndarray, indices_or_sections: Any, dim: int = 0) -> Any:
    return np.array_split(x, indices_or_sections, dim)


def _tensor_split(name: str, x: Expr, indices_or_sections: Any, dim: int) -> tuple[Expr, ...]:
    at = _at(name, x, dim)
    size = x.shape[at]
    given = indices_or_sections
    if isinstance(given, Expr):
        value = value_of(given)
        if value is None:
            raise RuntimeError(f"{name}: the indices depend on a traced input; use Python integers")
        given = int(value) if value.ndim == 0 else value.tolist()
    if isinstance(given, int):
        if given <= 0:
            raise RuntimeError(f"{name}: number of sections must be larger than 0, got {given}")
        base, more = divmod(size, given)
        return _pieces(x, at, [base + 1] * more + [base] * (given - more))
    bounds = [0, *[min(max(k + size if k < 0 else k, 0), size) for k in given], size]
    return tuple(sliced(x, at, low, max(high - low, 0)) for low, high in pairwise(bounds))


@composite(
    ref=_ref_tensor_split,
    samples=(Case(T(7), 3), Case(T(2, 5), (1, 3), 1), Case(T(4), (2, 1))),
    errors=(Case(T(4), 0, match="number of sections must be larger than 0"),),
)
def tensor_split(
    input: Expr, indices_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Expr, ...]:
    """Parts of nearly equal size, or parts between given positions."""
    return _tensor_split("tensor_split", input, indices_or_sections, dim)


@composite(ref=np.hsplit, samples=(Case(T(4), 2), Case(T(2, 4), (1, 3))))
def hsplit(input: Expr, indices_or_sections: int | Sequence[int]) -> tuple[Expr, ...]:
    """Parts along the second axis; of a vector, along its only one."""
    return _even("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1)


@composite(ref=np.vsplit, samples=(Case(T(4, 2), 2), Case(T(4, 2), (1, 3))))
def vsplit(input: Expr, indices_or_sections: int | Sequence[int]) -> tuple[Expr, ...]:
    """Parts along the first axis."""
    return _even("vsplit", input, indices_or_sections, 0)


@composite(ref=np.dsplit, samples=(Case(T(2, 2, 4), 2),))
def dsplit(input: Expr, indices_or_sections: int | Sequence[int]) -> tuple[Expr, ...]:
    """Parts along the third axis."""
    return _even("dsplit", input, indices_or_sections, 2)


def _even(name: str, x: Expr, given: Any, dim: int) -> tuple[Expr, ...]:
    least = {"hsplit": 1, "vsplit": 2, "dsplit": 3}[name]
    if x.ndim < least:
        raise RuntimeError(
            f"{name}: requires a tensor with at least {least} dimension, but got {x.ndim}"
        )
    if isinstance(given, int) and (given <= 0 or x.shape[dim] % given):
        raise RuntimeError(
            f"{name}: attempted to split along dimension {dim}, but the size of the dimension "
            f"{x.shape[dim]} is not divisible by the split_size {given}"
        )
    return _tensor_split(name, x, given, dim)


@composite(
    ref=lambda x, dim=0: tuple(np.moveaxis(x, dim, 0)),
    samples=(Case(T(3, 2)), Case(T(2, 3), -1)),
    errors=(
        Case(T(), match="Dimension specified as 0 but tensor has no dimensions", error=IndexError),
    ),
)
def unbind(input: Expr, dim: int = 0) -> tuple[Expr, ...]:
    """The slices along an axis, which is dropped."""
    if input.ndim == 0:
        raise IndexError("unbind: Dimension specified as 0 but tensor has no dimensions")
    at = wrap_dim("unbind", dim, input.ndim)
    return tuple(select(input, at, k) for k in range(input.shape[at]))


# -- grids ------------------------------------------------------------------------------


@composite(
    ref=lambda *tensors, indexing="ij": np.meshgrid(*tensors, indexing=indexing),
    samples=(Case(T(2), T(3)), Case(T(2), T(3), T(), indexing="xy"), Case(T(3))),
    errors=(
        Case(T(2, 2), match="Expected 0D or 1D tensor"),
        Case(T(2), T(2), indexing="yx", match='indexing must be one of "xy" or "ij"'),
    ),
)
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Expr, ...]:
    """Vectors as coordinates of a grid, one tensor of the grid's shape each.

    With ``indexing="xy"`` the first two axes of the grid are exchanged.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    vectors = _some("meshgrid", given)
    for x in vectors:
        if x.ndim > 1:
            raise RuntimeError(
                f"meshgrid: Expected 0D or 1D tensor in the tensor list but got {x.shape}"
            )
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij" (got {indexing!r})')
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = [1, 0]
    placed = [
        reshape(x, tuple(x.size if d == at else 1 for d in range(len(axes))))
        for x, at in zip(vectors, axes, strict=True)
    ]
    shape = broadcast_shapes("meshgrid", [x.shape for x in placed])
    return tuple(expand(x, shape) for x in placed)


def _ref_cartesian(*tensors: np.ndarray) -> Any:
    if len(tensors) == 1:
        return tensors[0]
    return np.stack([g.reshape(-1) for g in np.meshgrid(*tensors, indexing="ij")], -1)


@composite(ref=_ref_cartesian, samples=(Case(T(2), T(3)), Case(T(3))))
def cartesian_prod(*tensors: Expr) -> Expr:
    """All tuples of elements of the given vectors, one per row."""
    vectors = _some("cartesian_prod", tensors)
    if len(vectors) == 1:
        return vectors[0]
    return stack([reshape(g, (g.size,)) for g in meshgrid(*vectors)], 1)  # type: ignore[no-any-return]

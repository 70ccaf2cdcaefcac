"""Indexing with square brackets, for reading and writing.

`Selection` understands a key once for both: a strided region of the tensor, its shape as the user
sees it, and the integer arrays and masks to apply there. A basic key is a chain of views; integer
arrays are a gather (`symgrad.ops.positions.read`), a mask is the gather of the positions where it
holds. Writing gives a new node. Start reading at `Selection`, then `getitem` and `setitem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import broadcast_shapes, composite
from symgrad.op import cast_to, filling, value_of
from symgrad.ops.arithmetic import keep, where
from symgrad.ops.movement import (
    diagonal,
    embed,
    expand,
    full,
    narrow_step,
    permute,
    reshape,
    wrap_dim,
)
from symgrad.ops.positions import bounded_positions, known, put_last, read
from symgrad.sample import Case, T

_KINDS = "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices"


class Selection:
    """What a key selects from a tensor of a given shape.

    First a strided region (`starts`, `steps`, `counts`, one per axis), reshaped to `shape`: axes
    picked by an integer dropped, axes asked for by None added. Then the arrays in `advanced`.

    Attributes
    ----------
    starts, steps, counts : list of int
    shape : list of int
    advanced : list of (axis, Expr)
        int64 positions along an axis of `shape`, not broadcast yet.
    masks : list of (axis, Expr)
        Boolean arrays over the axes from `axis` on; each is present in `advanced` as well, as the
        positions where it holds, unless its value is not known (`pending`).
    pending : bool
        Whether a mask has no value, inside a traced function.
    """

    __slots__ = (
        "_spare", "advanced", "counts", "masks", "name", "pending", "shape", "starts", "steps", "whole",
    )  # fmt: skip

    def __init__(self, name: str, whole: tuple[int, ...], key: Any) -> None:
        self.name = name
        self.whole = whole
        self.starts: list[int] = []
        self.steps: list[int] = []
        self.counts: list[int] = []
        self.shape: list[int] = []
        self.advanced: list[tuple[int, Expr]] = []
        self.masks: list[tuple[int, Expr]] = []
        self.pending = False
        items = [self._item(k) for k in (key if isinstance(key, tuple) else (key,))]
        consumed = 0
        for k in items:
            if isinstance(k, Expr):
                consumed += k.ndim if k.dtype is dtypes.bool_ else 1
            elif k is not None and k is not Ellipsis:
                consumed += 1
        if consumed > len(whole):
            if not whole:
                raise IndexError(
                    f"{name}: invalid index of a 0-dim tensor; use tensor.item() for its number"
                )
            raise IndexError(
                f"{name}: too many indices for tensor of dimension {len(whole)} (got {consumed})"
            )
        self._spare = len(whole) - consumed
        for place, k in enumerate(items):
            self._apply(k, place)
        self._take_whole(len(whole) - len(self.counts))

    def _item(self, k: Any) -> Any:
        """A part of a key as int, slice, None, Ellipsis or Expr."""
        if k is None or k is Ellipsis or isinstance(k, slice):
            return k
        if isinstance(k, bool | np.bool_):
            return known(np.array(bool(k)))
        if isinstance(k, list | tuple):
            k = self._sequence(k)
        if isinstance(k, np.ndarray):
            if k.dtype.kind not in "iub":
                raise IndexError(
                    f"{self.name}: tensors used as indices must be long, int, byte or bool tensors "
                    f"(got {k.dtype}); convert with .long() or compare to make a mask"
                )
            k = known(k if k.dtype.kind == "b" else k.astype(np.int64))
        if isinstance(k, Expr):
            if k.dtype.category == 2:
                raise IndexError(
                    f"{self.name}: tensors used as indices must be long, int, byte or bool tensors "
                    f"(got {k.dtype!r}); convert with .long() or compare to make a mask"
                )
            if k.shape == () and k.dtype is not dtypes.bool_:
                value = value_of(k)
                return cast_to(k, dtypes.int64) if value is None else int(value)
            return k
        try:
            return int(k.__index__())
        except (AttributeError, TypeError):
            raise IndexError(f"{self.name}: {_KINDS} (got {type(k).__name__})") from None

    def _sequence(self, k: Sequence[Any]) -> Any:
        if any(isinstance(e, Expr) for e in k):
            from symgrad.ops.joining import stack

            parts = [e if isinstance(e, Expr) else known(np.asarray(e)) for e in k]
            return stack(parts)
        try:
            array = np.asarray(k)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind == "O":
            raise IndexError(f"{self.name}: {_KINDS} (got a ragged or mixed sequence)")
        return array if array.size else array.astype(np.int64)

    def _region(self, start: int, step: int, count: int) -> None:
        self.starts.append(start)
        self.steps.append(step)
        self.counts.append(count)

    def _take_whole(self, axes: int) -> None:
        for _ in range(axes):
            size = self.whole[len(self.counts)]
            self._region(0, 1, size)
            self.shape.append(size)

    def _apply(self, k: Any, place: int) -> None:
        axis = len(self.counts)
        if k is None:
            self.shape.append(1)
        elif k is Ellipsis:
            self._take_whole(self._spare)
            self._spare = 0
        elif isinstance(k, int):
            size = self.whole[axis]
            if not -size <= k < size:
                raise IndexError(
                    f"{self.name}: index {k} is out of bounds for dimension {axis} with size {size}"
                )
            self._region(k % size, 1, 1)
        elif isinstance(k, slice):
            size = self.whole[axis]
            start, stop, step = self._slice(k, size)
            count = max(0, -(-(stop - start) // step))
            self._region(min(start, size), step, count)
            self.shape.append(count)
        elif k.dtype is dtypes.bool_:
            self._mask(k, place)
        else:
            view_axis = len(self.shape)
            self._take_whole(1)
            self.advanced.append(
                (view_axis, bounded_positions(self.name, k, self.shape[view_axis], axis))
            )

    def _slice(self, k: slice, size: int) -> tuple[int, int, int]:
        bounds = []
        for end in (k.start, k.stop, k.step):
            value = value_of(end) if isinstance(end, Expr) else end
            if isinstance(end, Expr) and value is None:
                raise RuntimeError(
                    f"{self.name}: a slice bound depends on a traced input, so the shape is not "
                    "known; use a Python integer, or where with a mask"
                )
            bounds.append(None if value is None else int(value))
        if bounds[2] is not None and bounds[2] <= 0:
            raise ValueError(
                f"{self.name}: step must be greater than zero (got {bounds[2]}); use flip to reverse"
            )
        return slice(*bounds).indices(size)

    def _mask(self, mask: Expr, place: int) -> None:
        first = len(self.shape)
        if mask.ndim == 0:
            value = value_of(mask)
            if value is None:
                raise self.untraceable()
            self.shape.append(1)
            self.advanced.append((first, known(np.zeros(int(bool(value)), np.int64))))
            return
        axis = len(self.counts)
        covered = self.whole[axis : axis + mask.ndim]
        for d, (have, want) in enumerate(zip(mask.shape, covered, strict=True)):
            if have != want:
                raise IndexError(
                    f"{self.name}: The shape of the mask {list(mask.shape)} at index {d} does not match "
                    f"the shape of the indexed tensor {list(self.whole)} at index {axis + d}"
                )
        self._take_whole(mask.ndim)
        self.masks.append((first, mask))
        value = value_of(mask)
        if value is None:
            self.pending = True
            return
        for d, positions in enumerate(np.nonzero(value)):
            self.advanced.append((first + d, known(positions.astype(np.int64))))

    def untraceable(self) -> RuntimeError:
        """The error for a mask whose number of true elements a traced function needs."""
        return RuntimeError(
            f"{self.name}: the result's shape depends on the values of a boolean mask, which are not known "
            "while a function is traced; use where(mask, x, 0), a sum over the mask, or masked_fill"
        )

    # -- applying ---------------------------------------------------------------------

    def view(self, x: Expr) -> Expr:
        """The region, in the shape the user sees."""
        region = narrow_step(
            x, starts=tuple(self.starts), steps=tuple(self.steps), counts=tuple(self.counts)
        )
        return reshape(region, tuple(self.shape))  # type: ignore[no-any-return]

    def replace(self, x: Expr, value: Expr) -> Expr:
        """`x` with the region replaced; `value` has the region's shape or `self.shape`."""
        counts = tuple(self.counts)
        region = reshape(value, counts)
        if counts == x.shape:
            return region  # type: ignore[no-any-return]
        place = {"size": x.shape, "starts": tuple(self.starts), "steps": tuple(self.steps)}
        inside = embed(full(True, counts, dtypes.bool_), **place)
        return where(inside, embed(region, **place), x)  # type: ignore[no-any-return]

    def arrays(self) -> tuple[list[int], list[Expr], int]:
        """The indexed axes, the positions in a common shape, and where the result puts their axes."""
        axes = [axis for axis, _ in self.advanced]
        shapes = [i.shape for _, i in self.advanced]
        try:
            common = broadcast_shapes(self.name, shapes)
        except RuntimeError:
            listed = ", ".join(str(list(s)) for s in shapes)
            raise IndexError(
                f"{self.name}: shape mismatch: indexing tensors could not be broadcast together with "
                f"shapes {listed}"
            ) from None
        adjacent = axes[-1] - axes[0] == len(axes) - 1
        return axes, [expand(i, common) for _, i in self.advanced], axes[0] if adjacent else 0


def _front(x: Expr, axes: Sequence[int]) -> tuple[Expr, tuple[int, ...]]:
    """`x` with some axes moved to the front, and the order of axes that did it."""
    if axes == list(range(len(axes))):
        return x, tuple(range(x.ndim))
    order = (*axes, *(d for d in range(x.ndim) if d not in axes))
    return permute(x, order), order


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda d: order[d]))


def _block_order(ndim: int, count: int, at: int) -> tuple[int, ...]:
    """The order of axes that moves `count` leading axes to start at axis `at`."""
    rest = list(range(count, ndim))
    return (*rest[:at], *range(count), *rest[at:])


def _row(x: Expr, place: int) -> Expr:
    """``x[place]``: the commonest key, by the shortest road."""
    size, *rest = x.shape
    if not -size <= place < size:
        raise IndexError(
            f"getitem: index {place} is out of bounds for dimension 0 with size {size}"
        )
    zeros = (0,) * len(rest)
    part = narrow_step(x, starts=(place % size, *zeros), steps=(1,) * x.ndim, counts=(1, *rest))
    return reshape(part, tuple(rest))  # type: ignore[no-any-return]


def getitem(x: Expr, key: Any) -> Expr:
    """The elements of `x` that `key` selects, as ``x[key]`` in torch.

    Parameters
    ----------
    x : Expr
    key : int, slice, None, Ellipsis, bool, list, ndarray, Expr, or a tuple of them
        Slices and integers give views. Arrays of integers and boolean masks broadcast together;
        their axes take the place of the indexed ones if those are adjacent, else come first.

    Raises
    ------
    IndexError
        For positions out of range, masks of another shape, too many or unusable indices.
    ValueError
        For a slice with a step below 1.
    RuntimeError
        For a boolean mask whose values are not known while a function is traced.
    """
    if type(key) is int and x.shape:
        return _row(x, key)
    selection = Selection("getitem", x.shape, key)
    if selection.pending:
        raise selection.untraceable()
    view = selection.view(x)
    if not selection.advanced:
        return view
    for first, mask in selection.masks:
        # Elements left out never get more than a strong zero, so infinite derivatives there stay out.
        after = len(selection.shape) - first - mask.ndim
        view = keep(reshape(mask, mask.shape + (1,) * after), view)
    axes, positions, at = selection.arrays()
    moved, _ = _front(view, axes)
    found = read(moved, *positions)
    count = positions[0].ndim
    return permute(found, _block_order(found.ndim, count, at))  # type: ignore[no-any-return]


def _fitted(name: str, value: Any, dtype: DType, shape: tuple[int, ...], basic: bool) -> Expr:
    """`value` in the dtype and shape of what it replaces."""
    made = cast_to(value, dtype) if isinstance(value, Expr) else filling(value, dtype)
    extra = 0
    while made.ndim - extra > len(shape) and made.shape[extra] == 1:
        extra += 1
    if extra:
        made = reshape(made, made.shape[extra:])
    if made.ndim <= len(shape) and all(
        have in (1, want) for have, want in zip(reversed(made.shape), reversed(shape), strict=False)
    ):
        return expand(made, shape)  # type: ignore[no-any-return]
    if basic and made.ndim <= len(shape):
        return expand(made, shape)  # type: ignore[no-any-return]
    raise RuntimeError(
        f"{name}: shape mismatch: value tensor of shape {list(made.shape)} cannot be broadcast to "
        f"indexing result of shape {list(shape)}"
    )


def setitem(x: Expr, key: Any, value: Any) -> Expr:
    """`x` with the elements that `key` selects replaced, as ``x[key] = value`` in torch.

    Parameters
    ----------
    x : Expr
    key
        As for `getitem`.
    value : Expr or number
        Converted to the dtype of `x` and broadcast to the selection. Of several writes to one
        element the last wins, and only it has a derivative.

    Returns
    -------
    Expr
        A new node; `x` is unchanged.
    """
    if isinstance(value, np.ndarray):
        value = known(value)
    selection = Selection("setitem", x.shape, key)
    filled = _mask_filled(x, selection, value)
    if filled is not None:
        return filled
    if selection.pending:
        raise selection.untraceable()
    if not selection.advanced:
        fitted = _fitted("setitem", value, x.dtype, tuple(selection.shape), True)
        return selection.replace(x, fitted)
    axes, positions, at = selection.arrays()
    moved, order = _front(selection.view(x), axes)
    count = positions[0].ndim
    block = _block_order(count + moved.ndim - len(axes), count, at)
    front = positions[0].shape + moved.shape[len(axes) :]
    fitted = _fitted("setitem", value, x.dtype, tuple(front[d] for d in block), False)
    written = put_last(moved, positions, permute(fitted, _inverse(block)))
    return selection.replace(x, permute(written, _inverse(order)))


def _mask_filled(x: Expr, selection: Selection, value: Any) -> Expr | None:
    """The result of writing one value per masked element: a choice, whatever the mask's values."""
    if len(selection.masks) != 1 or len({axis for axis, _ in selection.advanced}) > (
        0 if selection.pending else selection.masks[0][1].ndim
    ):
        return None
    first, mask = selection.masks[0]
    after = len(selection.shape) - first - mask.ndim
    made = cast_to(value, x.dtype) if isinstance(value, Expr) else filling(value, x.dtype)
    if made.ndim > after:
        if made.shape[made.ndim - after - 1] != 1 or made.ndim > after + 1 + first:
            return None
        before, rest = made.shape[: made.ndim - after - 1], made.shape[made.ndim - after :]
        made = reshape(made, (*before, *(1,) * mask.ndim, *rest))
    shape = tuple(selection.shape)
    tail = shape[len(shape) - made.ndim :]
    if any(have not in (1, want) for have, want in zip(made.shape, tail, strict=True)):
        return None
    condition = reshape(mask, mask.shape + (1,) * after)
    return selection.replace(x, where(condition, expand(made, shape), selection.view(x)))


def _ref_nonzero(x: np.ndarray, *, as_tuple: bool = False) -> Any:
    return np.nonzero(np.atleast_1d(x)) if as_tuple else np.argwhere(x)


@composite(
    ref=_ref_nonzero,
    samples=(
        Case(T(3, 4, dtype="bool")),
        Case(T(5, dtype="int", lo=-1, hi=1), as_tuple=True),
        Case(T(dtype="bool")),
    ),
    aliases=("argwhere",),
)
def nonzero(input: Expr, *, as_tuple: bool = False) -> Any:
    """The positions of nonzero elements, as rows of a matrix or as one tensor per dimension.

    Raises
    ------
    RuntimeError
        While a function is traced, since the number of positions depends on values.
    """
    value = value_of(input)
    if value is None:
        raise RuntimeError(
            "nonzero: the result's shape depends on values, which are not known while a function is "
            "traced; use where, or a sum over a mask"
        )
    if as_tuple:
        return tuple(known(p.astype(np.int64)) for p in np.nonzero(np.atleast_1d(value)))
    return known(np.argwhere(value).astype(np.int64))


# -- writing a region as a new tensor ------------------------------------------------------


def _at(dim: int, ndim: int, item: Any) -> tuple[Any, ...]:
    return (*(slice(None) for _ in range(dim)), item, *(slice(None) for _ in range(ndim - dim - 1)))


def _refuse_size(name: str, have: tuple[int, ...], want: tuple[int, ...]) -> None:
    if have != want:
        raise RuntimeError(
            f"{name}: expected src to have a size equal to the slice of self. src size = {list(have)}, "
            f"slice size = {list(want)}"
        )


def _ref_select_scatter(x: np.ndarray, src: np.ndarray, dim: int, index: int) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    out[index] = src
    return np.moveaxis(out, 0, dim)


@composite(
    ref=_ref_select_scatter,
    samples=(Case(T(3, 4), T(4), 0, 1), Case(T(3, 4), T(3), 1, -1)),
    errors=(
        Case(T(3, 4), T(3), 0, 1, match="expected src to have a size equal to the slice of self"),
    ),
)
def select_scatter(input: Expr, src: Expr, dim: int, index: int) -> Expr:
    """`input` with the slice at one position of an axis replaced."""
    at = wrap_dim("select_scatter", dim, input.ndim)
    _refuse_size("select_scatter", src.shape, (*input.shape[:at], *input.shape[at + 1 :]))
    return setitem(input, _at(at, input.ndim, index), src)


def _ref_slice_scatter(
    x: np.ndarray, src: np.ndarray, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    out[start:end:step] = np.moveaxis(src, dim, 0)
    return np.moveaxis(out, 0, dim)


@composite(
    ref=_ref_slice_scatter,
    samples=(Case(T(5, 2), T(2, 2), 0, 1, 3), Case(T(2, 5), T(2, 3), 1, None, None, 2)),
    errors=(
        Case(T(5), T(1), 0, 1, 3, match="expected src to have a size equal to the slice of self"),
    ),
)
def slice_scatter(
    input: Expr,
    src: Expr,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Expr:
    """`input` with a slice along an axis replaced."""
    at = wrap_dim("slice_scatter", dim, input.ndim)
    key = _at(at, input.ndim, slice(start, end, step))
    _refuse_size(
        "slice_scatter", src.shape, tuple(Selection("slice_scatter", input.shape, key).shape)
    )
    return setitem(input, key, src)


def _ref_diagonal_scatter(
    x: np.ndarray, src: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    out = np.moveaxis(np.array(x), (dim1, dim2), (-2, -1))
    at = np.arange(src.shape[-1])
    out[..., at + max(-offset, 0), at + max(offset, 0)] = src
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


@composite(
    ref=_ref_diagonal_scatter,
    samples=(Case(T(3, 4), T(3)), Case(T(3, 3), T(2), 1), Case(T(2, 3, 2), T(3, 2), 0, 0, 2)),
    errors=(Case(T(3, 3), T(2), match="expected src to have a size equal to the slice of self"),),
)
def diagonal_scatter(input: Expr, src: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """`input` with a diagonal of two axes replaced."""
    shown = diagonal(input, offset, dim1, dim2)
    _refuse_size("diagonal_scatter", src.shape, shown.shape)
    (placed,) = diagonal.adjoint(cast_to(src, input.dtype), input, **shown.attributes())
    (inside,) = diagonal.adjoint(full(True, src.shape, dtypes.bool_), input, **shown.attributes())
    return where(inside, placed, input)  # type: ignore[no-any-return]

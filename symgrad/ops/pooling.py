"""Pooling over one or two axes: the largest element, or the mean, of each window.

Composites of windows and reductions, so derivatives of any order follow. Start reading at `_Pool`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.ops.arithmetic import div, mul
from symgrad.ops.extrema import max as largest
from symgrad.ops.layout import axis_index
from symgrad.ops.movement import full, reshape
from symgrad.ops.reduce import sum as total
from symgrad.ops.rounding import floor_divide
from symgrad.ops.windows import Frame, Sizes, each_axis
from symgrad.sample import Case, T


class _Pool:
    """The windows of a pooling: a frame, and what the windows reach beyond the padded input.

    Attributes
    ----------
    frame : Frame
    padding : tuple of int
        As the caller gave it, on both sides of each axis.
    beyond : tuple of int
        How far the last window reaches out, with `ceil_mode`.
    """

    def __init__(
        self,
        name: str,
        x: Expr,
        kernel_size: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        axes: int,
    ) -> None:
        if x.ndim not in (axes + 1, axes + 2):
            raise RuntimeError(
                f"{name}: Expected {axes + 1}D or {axes + 2}D (batch mode) tensor with optional 0 dim batch "
                f"size for input, but got:{list(x.shape)}"
            )
        kernel = each_axis(name, "kernel_size", kernel_size, axes)
        empty = stride is None or (not isinstance(stride, int) and not len(stride))
        steps = kernel if empty else each_axis(name, "stride", stride, axes)
        each, spread = (
            each_axis(name, "padding", padding, axes),
            each_axis(name, "dilation", dilation, axes),
        )
        for what, values in (("kernel_size", kernel), ("stride", steps), ("dilation", spread)):
            if any(v <= 0 for v in values):
                raise RuntimeError(
                    f"{name}() {what} must be greater than zero, but got {list(values)}"
                )
        if any(p < 0 or p > k // 2 for p, k in zip(each, kernel, strict=True)):
            raise RuntimeError(
                f"{name}() padding should be at most half of kernel size, but got padding={list(each)} and "
                f"kernel_size={list(kernel)}; pad the input with nn.functional.pad"
            )
        self.padding = each
        beyond, sizes = [], []
        for axis in range(axes):
            size = x.shape[x.ndim - axes + axis]
            reach = spread[axis] * (kernel[axis] - 1) + 1
            room = size + 2 * each[axis] - reach
            count = (-(-room // steps[axis]) if ceil_mode else room // steps[axis]) + 1
            if ceil_mode and (count - 1) * steps[axis] >= size + each[axis]:
                count -= 1
            if count <= 0:
                raise RuntimeError(
                    f"{name}() Invalid computed output size: {count}; the input of size {size} is smaller "
                    f"than a window of {reach}"
                )
            sizes.append(count)
            beyond.append(max((count - 1) * steps[axis] + reach - size - 2 * each[axis], 0))
        self.beyond = tuple(beyond)
        self.sizes = tuple(sizes)
        pairs = [(p, p + b) for p, b in zip(each, beyond, strict=True)]
        self.frame = Frame(kernel, steps, pairs, spread)

    def windows(self, x: Expr, filler: float) -> Expr:
        """The windows' elements on one last axis."""
        made = self.frame.windows(x, filler)
        axes = len(self.frame.kernel)
        return reshape(made, (*made.shape[: made.ndim - axes], math.prod(self.frame.kernel)))  # type: ignore[no-any-return]


def _max_pool(pool: _Pool, x: Expr, return_indices: bool) -> Any:
    filler = -math.inf if x.dtype.category == 2 else float(np.iinfo(x.dtype.numpy).min)
    found = largest(pool.windows(x, filler), -1)
    if not return_indices:
        return found.values
    # Where in the plane of the input the largest element of each window is.
    axes = len(pool.sizes)
    lead = x.ndim - axes
    shape = found.indices.shape
    flat: Any = None
    inner = math.prod(pool.frame.kernel)
    rest = found.indices
    for axis in range(axes):
        inner //= pool.frame.kernel[axis]
        step = rest if inner == 1 else floor_divide(rest, inner)
        rest = rest - step * inner
        at = axis_index(shape, lead + axis) * pool.frame.stride[axis] - pool.padding[axis]
        at = at + step * pool.frame.dilation[axis]
        flat = at if flat is None else flat * x.shape[lead + axis] + at
    return found.values, flat


def _average_pool(pool: _Pool, x: Expr, count_include_pad: bool, divisor: int | None) -> Expr:
    summed = total(pool.windows(x, 0.0), -1)
    if divisor is not None:
        return div(summed, float(divisor))  # type: ignore[no-any-return]
    clipped = any(pool.beyond) or (any(pool.padding) and not count_include_pad)
    if not clipped:
        return div(summed, float(math.prod(pool.frame.kernel)))  # type: ignore[no-any-return]
    # How many elements of each window count, axis by axis, from windows over ones.
    counts: Any = None
    axes = len(pool.sizes)
    for axis, (size, before, beyond) in enumerate(
        zip(x.shape[x.ndim - axes :], pool.padding, pool.beyond, strict=True)
    ):
        inside = size + 2 * before if count_include_pad else size
        edge = (0, beyond) if count_include_pad else (before, before + beyond)
        line = Frame(
            pool.frame.kernel[axis : axis + 1], pool.frame.stride[axis : axis + 1], [edge], (1,)
        )
        number = total(line.windows(full(1.0, (inside,), x.dtype)), -1)
        number = reshape(number, (number.shape[0], *(1,) * (axes - 1 - axis)))
        counts = number if counts is None else mul(counts, number)
    return div(summed, counts)  # type: ignore[no-any-return]


def _np_windows(
    x: np.ndarray, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, axes: int
) -> Any:
    """For each window the indices of its elements inside the input, and how much padding it covers."""
    kernel, padding, dilation = (np.broadcast_to(v, (axes,)) for v in (kernel, padding, dilation))
    stride = kernel if stride is None else np.broadcast_to(stride, (axes,))
    lines = []
    for k, s, p, d, n in zip(kernel, stride, padding, dilation, x.shape[-axes:], strict=True):
        starts = range(-p, n + p if ceil_mode else n + p - d * (k - 1), s)
        line = []
        for start in starts:
            if start >= n + (0 if start > -p else p) or (ceil_mode and start >= n):
                break
            spots = start + d * np.arange(k)
            line.append((spots[(spots >= 0) & (spots < n)], int(np.sum(spots < n + p))))
        if ceil_mode:
            most = -(-(n + 2 * p - d * (k - 1) - 1) // s) + 1
            line = line[:most]
        lines.append(line)
    return lines


def _np_pool(x: np.ndarray, lines: Any, reduced: Any) -> Any:
    made = np.zeros((*x.shape[: x.ndim - len(lines)], *map(len, lines)), x.dtype)
    for place in np.ndindex(*map(len, lines)):
        chosen = [line[at] for line, at in zip(lines, place, strict=True)]
        part = x[(..., *np.ix_(*(spots for spots, _ in chosen)))]
        made[(..., *place)] = reduced(part, math.prod(c for _, c in chosen))
    return made


def _ref_max_pool(axes: int) -> Any:
    def ref(
        x: np.ndarray,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        lines = _np_windows(x, kernel_size, stride, padding, dilation, ceil_mode, axes)
        last = tuple(range(-axes, 0))
        return _np_pool(x, lines, lambda part, count: part.max(axis=last))

    return ref


def _ref_average_pool(axes: int) -> Any:
    def ref(
        x: np.ndarray,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        lines = _np_windows(x, kernel_size, stride, padding, 1, ceil_mode, axes)
        last = tuple(range(-axes, 0))

        def reduced(part: np.ndarray, count: int) -> Any:
            number = count if count_include_pad else math.prod(part.shape[-axes:])
            return part.sum(axis=last) / (divisor_override or number)

        return _np_pool(x, lines, reduced)

    return ref


_SMALL = Case(T(1, 1, 2), 3, match="Invalid computed output size: 0")
_WIDE = Case(T(1, 1, 4), 2, None, 2, match="padding should be at most half of kernel size")


@composite(
    ref=_ref_max_pool(1),
    samples=(
        Case(T(2, 3, 6), 2),
        Case(T(2, 7), 3, 2, 1, 1, True),
        Case(T(1, 1, 8), 2, 1, 0, 3),
        Case(T(0, 2, 4), 2),
    ),
    errors=(
        _SMALL,
        _WIDE,
        Case(
            T(4), 2, match=r"Expected 2D or 3D \(batch mode\) tensor with optional 0 dim batch size"
        ),
        Case(T(1, 1, 4), 0, match="kernel_size must be greater than zero, but got"),
    ),
)
def max_pool1d(
    input: Expr,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the derivative goes to the first of the largest."""
    pool = _Pool("max_pool1d", input, kernel_size, stride, padding, dilation, ceil_mode, 1)
    return _max_pool(pool, input, return_indices)


@composite(
    ref=_ref_max_pool(2),
    samples=(
        Case(T(2, 2, 4, 6), 2),
        Case(T(2, 5, 5), (3, 2), (2, 1), (1, 0), 1, True),
        Case(T(1, 1, 5, 6), 2, 1, 0, (2, 3)),
    ),
    errors=(
        Case(T(2, 2), 2, match="tensor with optional 0 dim batch size for input, but got"),
        Case(T(1, 1, 2, 2), 3, match="Invalid computed output size"),
    ),
)
def max_pool2d(
    input: Expr,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the derivative goes to the first of the largest."""
    pool = _Pool("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode, 2)
    return _max_pool(pool, input, return_indices)


@composite(
    ref=_ref_average_pool(1),
    samples=(
        Case(T(2, 3, 6), 2),
        Case(T(2, 7), 3, 2, 1, True),
        Case(T(2, 7), 3, 2, 1, True, False),
    ),
    errors=(_SMALL, _WIDE),
)
def avg_pool1d(
    input: Expr,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Expr:
    """The mean of each window; padding counts as zeros, or not at all."""
    pool = _Pool("avg_pool1d", input, kernel_size, stride, padding, 1, ceil_mode, 1)
    return _average_pool(pool, input, count_include_pad, None)


@composite(
    ref=_ref_average_pool(2),
    samples=(
        Case(T(2, 2, 4, 6), 2),
        Case(T(2, 5, 5), (3, 2), 2, (1, 0), True, False),
        Case(T(1, 5, 4), 3, 2, 1, True),
        Case(T(1, 4, 4), 2, divisor_override=3),
    ),
    errors=(Case(T(1, 1, 2, 2), 2, divisor_override=0, match="divisor must be not zero"),),
)
def avg_pool2d(
    input: Expr,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    """The mean of each window, or its sum over another divisor."""
    if divisor_override == 0:
        raise RuntimeError(
            "avg_pool2d: divisor must be not zero (got 0); leave it out for the mean"
        )
    pool = _Pool("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode, 2)
    return _average_pool(pool, input, count_include_pad, divisor_override)

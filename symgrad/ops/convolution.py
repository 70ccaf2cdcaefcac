"""Convolution and pooling over one or two axes.

Both look at windows of the padded input. A convolution is one matrix product per group: windows as
columns, kernels as rows. Pooling reduces each window. All are composites of movements, products
and reductions, so derivatives of any order follow.

`_Frame` holds kernel, step, padding and dilation per axis, and makes the windows. Start reading at
`_Frame.windows`, then `_convolution`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.ops.arithmetic import add, div, mul
from symgrad.ops.contract import matmul
from symgrad.ops.extrema import max as largest
from symgrad.ops.layout import axis_index, moved_axis, sliced
from symgrad.ops.movement import full, join_axis, narrow_step, permute, reshape, unfold
from symgrad.ops.padding import pad as padded
from symgrad.ops.reduce import sum as total
from symgrad.ops.rounding import floor_divide
from symgrad.sample import Case, T

Sizes = int | Sequence[int]

SHIFTED = 49
"""Places of a kernel up to which its windows are made of shifted copies."""


def _each(name: str, what: str, value: Any, count: int) -> tuple[int, ...]:
    """One number per axis, from one for all or a sequence."""
    given = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    if len(given) == 1:
        given = given * count
    if len(given) != count:
        raise RuntimeError(
            f"{name}: expected {what} to be a single integer value or a list of {count} values to match "
            f"the convolution dimensions, but got {what}={list(given)}"
        )
    return given


class _Frame:
    """How windows lie over the last axes of an input.

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
    padding : tuple of (before, after)
    """

    def __init__(
        self,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        padding: Sequence[tuple[int, int]],
        dilation: tuple[int, ...],
    ) -> None:
        self.kernel = kernel
        self.stride = stride
        self.padding = tuple(padding)
        self.dilation = dilation

    def reach(self, axis: int) -> int:
        """How many elements a window spans along an axis."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def counts(self, size: Sequence[int]) -> tuple[int, ...]:
        """How many windows there are along each axis."""
        found = []
        for axis, (s, (before, after)) in enumerate(zip(size, self.padding, strict=True)):
            found.append((s + before + after - self.reach(axis)) // self.stride[axis] + 1)
        return tuple(found)

    def grown(self, x: Expr, filler: float) -> Expr:
        """The input with its padding."""
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return padded(x, amounts, "constant", filler) if any(amounts) else x

    def windows(self, x: Expr, filler: float = 0.0) -> Expr:
        """The windows: the kernel's axes come last."""
        x = self.grown(x, filler)
        count = len(self.kernel)
        first = x.ndim - count
        for axis in range(count):
            x = unfold(x, first + axis, self.reach(axis), self.stride[axis])
            if self.dilation[axis] > 1:
                x = sliced(x, x.ndim - 1, 0, self.kernel[axis], self.dilation[axis])
        return x

    def columns(self, x: Expr, counts: tuple[int, ...]) -> Expr:
        """The windows, with one axis for the kernel's places after the first axis.

        Shifted copies of the input, one per place: their adjoint is one sum of shifted copies,
        which the compiler fuses. Large kernels are left to `windows`.
        """
        axes = len(self.kernel)
        if math.prod(self.kernel) > SHIFTED:
            made = self.windows(x)
            order = (0, *range(made.ndim - axes, made.ndim), *range(1, made.ndim - axes))
            made = permute(made, order)
            return reshape(made, (made.shape[0], math.prod(self.kernel), *made.shape[1 + axes :]))  # type: ignore[no-any-return]
        x = self.grown(x, 0.0)
        lead = x.ndim - axes
        steps = (1,) * lead + self.stride
        parts = []
        for place in itertools.product(*(range(k) for k in self.kernel)):
            starts = (0,) * lead + tuple(k * d for k, d in zip(place, self.dilation, strict=True))
            part = narrow_step(x, starts=starts, steps=steps, counts=(*x.shape[:lead], *counts))
            parts.append(reshape(part, (part.shape[0], 1, *part.shape[1:])))
        return parts[0] if len(parts) == 1 else join_axis(*parts, dim=1)  # type: ignore[no-any-return]


# -- convolution --------------------------------------------------------------------------


def _paddings(name: str, padding: Any, frame: _Frame) -> list[tuple[int, int]]:
    if not isinstance(padding, str):
        each = _each(name, "padding", padding, len(frame.kernel))
        if any(p < 0 for p in each):
            raise RuntimeError(f"{name}: negative padding is not supported (got {list(each)}); slice first")
        return [(p, p) for p in each]
    if padding == "valid":
        return [(0, 0)] * len(frame.kernel)
    if padding != "same":
        raise RuntimeError(f"{name}: Invalid padding string: '{padding}'; use 'valid' or 'same'")
    if any(s != 1 for s in frame.stride):
        raise RuntimeError(
            f"{name}: padding='same' is not supported for strided convolutions; give numbers"
        )
    spare = [frame.reach(axis) - 1 for axis in range(len(frame.kernel))]
    return [(s // 2, s - s // 2) for s in spare]


def _check_operands(name: str, x: Expr, weight: Expr, bias: Expr | None, groups: int, axes: int) -> None:
    if weight.ndim != axes + 2:
        raise RuntimeError(
            f"{name}: weight should have {axes + 2} dimensions: outputs, inputs per group and the kernel "
            f"(got {list(weight.shape)})"
        )
    if x.ndim not in (axes + 1, axes + 2):
        raise RuntimeError(
            f"Expected {axes + 1}D (unbatched) or {axes + 2}D (batched) input to {name}, but got input of "
            f"size: {list(x.shape)}"
        )
    if x.dtype is not weight.dtype or (bias is not None and bias.dtype is not x.dtype):
        raise RuntimeError(
            f"{name}: expected input, weight and bias of one scalar type but found {x.dtype!r}, "
            f"{weight.dtype!r}{'' if bias is None else f', {bias.dtype!r}'}; convert with .to"
        )
    if groups <= 0:
        raise RuntimeError(f"{name}: non-positive groups is not supported (got {groups})")
    outputs, inputs = weight.shape[:2]
    if outputs % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got "
            f"weight of size [{list(weight.shape)}] instead"
        )
    channels = x.shape[x.ndim - axes - 1]
    if channels != inputs * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected "
            f"input{list(x.shape)} to have {inputs * groups} channels, but got {channels} channels instead"
        )
    if bias is not None and bias.shape != (outputs,):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {outputs} "
            f"elements, but got bias of size {list(bias.shape)} instead"
        )


def _convolution(
    name: str,
    input: Expr,
    weight: Expr,
    bias: Expr | None,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    axes: int,
) -> Expr:
    """Windows as the columns of a matrix, for each group multiplied by its kernels' matrix."""
    _check_operands(name, input, weight, bias, groups, axes)
    steps, spread = _each(name, "stride", stride, axes), _each(name, "dilation", dilation, axes)
    if any(s <= 0 for s in steps):
        raise RuntimeError(f"{name}: non-positive stride is not supported (got {list(steps)})")
    if any(d <= 0 for d in spread):
        raise RuntimeError(f"{name}: dilation should be greater than zero, but got {list(spread)}")
    frame = _Frame(weight.shape[2:], steps, [(0, 0)] * axes, spread)
    frame.padding = tuple(_paddings(name, padding, frame))
    batched = input.ndim == axes + 2
    x = input if batched else reshape(input, (1, *input.shape))
    grown = [s + sum(p) for s, p in zip(x.shape[2:], frame.padding, strict=True)]
    reaches = [frame.reach(axis) for axis in range(axes)]
    if any(r > g for r, g in zip(reaches, grown, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, grown))}). Kernel size: "
            f"({' x '.join(map(str, reaches))}). Kernel size can't be greater than actual input size"
        )
    places = frame.counts(x.shape[2:])
    count, outputs, inputs = x.shape[0], weight.shape[0], weight.shape[1]
    kernel = math.prod(frame.kernel)
    columns = frame.columns(moved_axis(x, 1, 0), places)
    columns = reshape(columns, (groups, inputs * kernel, count * math.prod(places)))
    rows = reshape(weight, (groups, outputs // groups, inputs * kernel))
    if groups == 1:
        product = matmul(reshape(rows, rows.shape[1:]), reshape(columns, columns.shape[1:]))
    else:
        product = matmul(rows, columns)
    made = moved_axis(reshape(product, (outputs, count, *places)), 1, 0)
    if bias is not None:
        made = add(made, reshape(bias, (outputs, *(1,) * axes)))
    return made if batched else reshape(made, made.shape[1:])  # type: ignore[no-any-return]


def _np_convolution(
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    axes: int,
) -> Any:
    """One addition per place in the kernel."""
    steps, spread = (np.broadcast_to(v, (axes,)) for v in (stride, dilation))
    spans = spread * (np.array(weight.shape[2:]) - 1)
    if padding == "same":
        pairs = [(int(s) // 2, int(s) - int(s) // 2) for s in spans]
    else:
        amounts = np.broadcast_to(0 if padding == "valid" else padding, (axes,))
        pairs = [(int(p), int(p)) for p in amounts]
    single = x.ndim == axes + 1
    x = x[None] if single else x
    grown = np.pad(x, [(0, 0), (0, 0), *pairs])
    sizes = (np.array(grown.shape[2:]) - spans - 1) // steps + 1
    per_group, width = weight.shape[0] // groups, weight.shape[1]
    made = np.zeros((x.shape[0], weight.shape[0], *sizes), x.dtype)
    for place in np.ndindex(*weight.shape[2:]):
        first = np.array(place) * spread
        ranges = zip(first, first + (sizes - 1) * steps + 1, steps, strict=True)
        part = grown[(slice(None), slice(None), *(slice(a, b, s) for a, b, s in ranges))]
        for g in range(groups):
            kernel = weight[g * per_group : (g + 1) * per_group][(slice(None), slice(None), *place)]
            values = np.einsum("oc,nc...->no...", kernel, part[:, g * width : (g + 1) * width])
            made[:, g * per_group : (g + 1) * per_group] += values
    if bias is not None:
        made = made + bias.reshape(-1, *(1,) * axes)
    return made[0] if single else made


def _ref_conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return _np_convolution(x, weight, bias, stride, padding, dilation, groups, 1)


@composite(
    ref=_ref_conv1d,
    samples=(
        Case(T(2, 3, 6), T(4, 3, 3), T(4)),
        Case(T(2, 7), T(4, 1, 2), None, 2, 1, 2, groups=2),
        Case(T(1, 2, 5), T(1, 2, 4), padding="same"),
        Case(T(0, 2, 5), T(3, 2, 2)),
    ),
    errors=(
        Case(T(1, 4, 5), T(2, 3, 3), match=r"to have 3 channels, but got 4 channels instead"),
        Case(T(1, 3, 2), T(2, 3, 3), match=r"Kernel size can't be greater than actual input size"),
        Case(
            T(1, 3, 5, 4), T(2, 3, 3), match=r"Expected 2D \(unbatched\) or 3D \(batched\) input to conv1d"
        ),
        Case(T(1, 3, 5), T(2, 3, 3), T(3), match="expected bias to be 1-dimensional with 2 elements"),
        Case(T(1, 3, 5), T(2, 3, 3), None, 0, match="non-positive stride is not supported"),
    ),
)
def conv1d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Expr:
    """Cross-correlation of signals (batch, channel, time) with kernels (output, channel, time)."""
    return _convolution("conv1d", input, weight, bias, stride, padding, dilation, groups, 1)


def _ref_conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return _np_convolution(x, weight, bias, stride, padding, dilation, groups, 2)


@composite(
    ref=_ref_conv2d,
    samples=(
        Case(T(2, 2, 4, 5), T(3, 2, 3, 2), T(3)),
        Case(T(2, 5, 5), T(2, 1, 2, 3), None, (2, 1), (1, 0), (1, 2), 2),
        Case(T(1, 1, 3, 3), T(1, 1, 3, 3), padding=1),
    ),
    errors=(
        Case(T(1, 4, 5, 5), T(2, 3, 3, 3), match=r"to have 3 channels, but got 4 channels instead"),
        Case(T(2, 3), T(2, 3, 3, 3), match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv2d"),
        Case(T(1, 3, 5, 5), T(2, 3, 3, 3), None, 2, "same", match="not supported for strided convolutions"),
        Case(T(1, 4, 5, 5), T(3, 2, 3, 3), groups=2, match="expected weight to be divisible by 2"),
    ),
)
def conv2d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Expr:
    """Cross-correlation of images (batch, channel, row, column) with kernels."""
    return _convolution("conv2d", input, weight, bias, stride, padding, dilation, groups, 2)


# -- pooling ------------------------------------------------------------------------------


class _Pool:
    """The windows of a pooling: a frame, and what the windows reach beyond the padded input.

    Attributes
    ----------
    frame : _Frame
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
        kernel = _each(name, "kernel_size", kernel_size, axes)
        empty = stride is None or (not isinstance(stride, int) and not len(stride))
        steps = kernel if empty else _each(name, "stride", stride, axes)
        each, spread = _each(name, "padding", padding, axes), _each(name, "dilation", dilation, axes)
        for what, values in (("kernel_size", kernel), ("stride", steps), ("dilation", spread)):
            if any(v <= 0 for v in values):
                raise RuntimeError(f"{name}() {what} must be greater than zero, but got {list(values)}")
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
        self.frame = _Frame(kernel, steps, pairs, spread)

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
        line = _Frame(pool.frame.kernel[axis : axis + 1], pool.frame.stride[axis : axis + 1], [edge], (1,))
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
        Case(T(4), 2, match=r"Expected 2D or 3D \(batch mode\) tensor with optional 0 dim batch size"),
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
        raise RuntimeError("avg_pool2d: divisor must be not zero (got 0); leave it out for the mean")
    pool = _Pool("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode, 2)
    return _average_pool(pool, input, count_include_pad, divisor_override)

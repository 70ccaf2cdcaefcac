"""Convolution over one or two axes.

A convolution is one matrix product per group: windows of the padded input as columns, kernels as
rows. It is a composite of movements and products, so derivatives of any order follow. Start reading
at `_convolution`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import composite
from symgrad.ops.arithmetic import add
from symgrad.ops.contract import matmul
from symgrad.ops.layout import moved_axis
from symgrad.ops.movement import reshape
from symgrad.ops.windows import Frame, Sizes, each_axis
from symgrad.sample import Case, T


def _paddings(name: str, padding: Any, frame: Frame) -> list[tuple[int, int]]:
    if not isinstance(padding, str):
        each = each_axis(name, "padding", padding, len(frame.kernel))
        if any(p < 0 for p in each):
            raise RuntimeError(
                f"{name}: negative padding is not supported (got {list(each)}); slice first"
            )
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


def _check_operands(
    name: str, x: Expr, weight: Expr, bias: Expr | None, groups: int, axes: int
) -> None:
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
    steps, spread = (
        each_axis(name, "stride", stride, axes),
        each_axis(name, "dilation", dilation, axes),
    )
    if any(s <= 0 for s in steps):
        raise RuntimeError(f"{name}: non-positive stride is not supported (got {list(steps)})")
    if any(d <= 0 for d in spread):
        raise RuntimeError(f"{name}: dilation should be greater than zero, but got {list(spread)}")
    frame = Frame(weight.shape[2:], steps, [(0, 0)] * axes, spread)
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
            T(1, 3, 5, 4),
            T(2, 3, 3),
            match=r"Expected 2D \(unbatched\) or 3D \(batched\) input to conv1d",
        ),
        Case(
            T(1, 3, 5), T(2, 3, 3), T(3), match="expected bias to be 1-dimensional with 2 elements"
        ),
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
        Case(
            T(2, 3),
            T(2, 3, 3, 3),
            match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv2d",
        ),
        Case(
            T(1, 3, 5, 5),
            T(2, 3, 3, 3),
            None,
            2,
            "same",
            match="not supported for strided convolutions",
        ),
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

"""Modules that look at windows: convolutions and pooling.

Start reading at `_Convolution`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from symgrad.creation import empty
from symgrad.nn import functional, init
from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor

_MODES = ("zeros", "reflect", "replicate", "circular")


def _each(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


class _Convolution(Module):
    """Cross-correlation with trained kernels."""

    _axes: ClassVar[int]
    _function: ClassVar[str]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(
                f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}"
            )
        if padding_mode not in _MODES:
            raise ValueError(
                f"padding_mode must be one of {_MODES}, but got padding_mode={padding_mode!r}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _each(kernel_size, self._axes)
        self.stride = _each(stride, self._axes)
        self.padding = padding if isinstance(padding, str) else _each(padding, self._axes)
        self.dilation = _each(dilation, self._axes)
        self.groups = groups
        self.padding_mode = padding_mode
        self.weight = Parameter(
            empty(out_channels, in_channels // groups, *self.kernel_size, dtype=dtype)
        )
        self.register_parameter(
            "bias", Parameter(empty(out_channels, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw kernels and bias anew, uniform within the inverse root of what an output sums."""
        fan = self.in_channels // self.groups * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan) if fan else 0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _edges(self) -> list[int]:
        """Padding before and after each axis, the last first."""
        amounts: list[int] = []
        for axis in reversed(range(self._axes)):
            if self.padding == "valid":
                amounts += [0, 0]
            elif self.padding == "same":
                spare = self.dilation[axis] * (self.kernel_size[axis] - 1)
                amounts += [spare // 2, spare - spare // 2]
            else:
                amounts += [self.padding[axis]] * 2  # type: ignore[list-item]
        return amounts

    def forward(self, input: Tensor) -> Tensor:
        """The input's windows times the kernels."""
        function = getattr(functional, self._function)
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = functional.pad(input, self._edges(), mode=self.padding_mode), 0  # type: ignore[assignment]
        return function(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """The settings that are not the usual ones."""
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self._axes:
            shown += f", padding={self.padding}"
        if self.dilation != (1,) * self._axes:
            shown += f", dilation={self.dilation}"
        if self.groups != 1:
            shown += f", groups={self.groups}"
        if self.bias is None:
            shown += ", bias=False"
        return (
            shown if self.padding_mode == "zeros" else f"{shown}, padding_mode={self.padding_mode}"
        )


class Conv1d(_Convolution):
    """Cross-correlation of signals (batch, channel, time)."""

    _axes = 1
    _function = "conv1d"


class Conv2d(_Convolution):
    """Cross-correlation of images (batch, channel, row, column)."""

    _axes = 2
    _function = "conv2d"


class _MaxPool(Module):
    """The largest element of each window."""

    _function: ClassVar[str]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        """The largest elements, and where they are if asked for."""
        function = getattr(functional, self._function)
        return function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of a signal."""

    _function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest element of each window of an image."""

    _function = "max_pool2d"


class AvgPool1d(Module):
    """The mean of each window of a signal."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = _each(kernel_size, 1)
        self.stride = self.kernel_size if stride is None else _each(stride, 1)
        self.padding = _each(padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """The means."""
        return functional.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of an image."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """The means."""
        return functional.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"

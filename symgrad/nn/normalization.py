"""Modules that normalise: over features, over groups of channels, over a batch.

Start reading at `LayerNorm`; batch normalisation keeps running statistics in buffers.
"""

from __future__ import annotations

from typing import Any

from symgrad import dtypes
from symgrad.autograd.grad_mode import no_grad
from symgrad.creation import ones, tensor, zeros
from symgrad.nn import functional, init
from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor


def _scale(wanted: bool, shape: Any, dtype: Any) -> Parameter | None:
    return Parameter(ones(shape, dtype=dtype)) if wanted else None


def _shift(wanted: bool, shape: Any, dtype: Any) -> Parameter | None:
    return Parameter(zeros(shape, dtype=dtype)) if wanted else None


class _Scaled(Module):
    """A normalisation that may have a scale and a shift."""

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self._parameters.get("bias") is not None:
            init.zeros_(self.bias)


class LayerNorm(_Scaled):
    """Mean 0 and variance 1 over the last dimensions, then scale and shift (arXiv:1607.06450)."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _scale(elementwise_affine, shape, dtype))
        self.register_parameter("bias", _shift(elementwise_affine and bias, shape, dtype))

    def forward(self, input: Tensor) -> Tensor:
        """The input, normalised."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(_Scaled):
    """Mean square 1 over the last dimensions, then scale (arXiv:1910.07467)."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _scale(elementwise_affine, shape, dtype))

    def forward(self, input: Tensor) -> Tensor:
        """The input, normalised."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(_Scaled):
    """Mean 0 and variance 1 over each group of channels, then scale and shift (arXiv:1803.08494)."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.register_parameter("weight", _scale(affine, num_channels, dtype))
        self.register_parameter("bias", _shift(affine, num_channels, dtype))

    def forward(self, input: Tensor) -> Tensor:
        """The input, normalised."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _BatchNorm(_Scaled):
    """Mean 0 and variance 1 of each channel over the batch (arXiv:1502.03167).

    In use, and not in training, the statistics are running means of those seen in training.
    """

    _ranks: tuple[int, ...] = ()
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.register_parameter("weight", _scale(affine, num_features, dtype))
        self.register_parameter("bias", _shift(affine, num_features, dtype))
        kept = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype) if kept else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype) if kept else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype=dtypes.int64) if kept else None)

    def reset_running_stats(self) -> None:
        """Forget what was seen in training."""
        if self.running_mean is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def forward(self, input: Any) -> Any:
        """The input, normalised; in training the running statistics move."""
        if input.ndim not in self._ranks:
            wanted = " or ".join(f"{r}D" for r in self._ranks)
            raise ValueError(f"expected {wanted} input (got {input.ndim}D input)")
        momentum: Any = self.momentum
        if self.training and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
                if momentum is None:
                    # The mean of all batches so far.
                    momentum = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, self.training, momentum,
            self.eps,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (batch, channel) or (batch, channel, time)."""

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (batch, channel, row, column)."""

    _ranks = (4,)

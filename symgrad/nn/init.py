"""torch.nn.init's functions: values to start from, written into a tensor in place.

The ranges are those of Glorot and Bengio (2010) and He et al. (arXiv:1502.01852), which keep the
variance of activations or of gradients from layer to layer. Start reading at `kaiming_uniform_`.
"""

from __future__ import annotations

import math
from typing import Any

from symgrad import creation, linalg
from symgrad.autograd.grad_mode import no_grad
from symgrad.drawing import rand, randn
from symgrad.random import Generator
from symgrad.tensor import Tensor


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor on the standard deviation that suits an activation."""
    plain = {
        "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "sigmoid": 1.0,
        "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4,
    }  # fmt: skip
    if nonlinearity in plain:
        return plain[nonlinearity]
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope * slope))
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill with numbers uniform on [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)  # type: ignore[attr-defined]


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill with normal numbers."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)  # type: ignore[attr-defined]


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill with normal numbers that lie in [a, b], by the inverse of the distribution function."""

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    low, high = below((a - mean) / std), below((b - mean) / std)
    with no_grad():
        unit: Any = rand(tensor.shape, dtype=tensor.dtype, generator=generator)
        drawn = (2 * (low + (high - low) * unit) - 1).erfinv() * (std * math.sqrt(2.0)) + mean
        return tensor.copy_(drawn.clamp(a, b))  # type: ignore[attr-defined]


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    with no_grad():
        return tensor.fill_(val)  # type: ignore[attr-defined]


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with no_grad():
        return tensor.copy_(creation.eye(*tensor.shape, dtype=tensor.dtype))  # type: ignore[attr-defined]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """How many numbers an output sums, and in how many outputs an input takes part."""
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        )
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _fans(tensor)[mode == "fan_out"]


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform with variance 2 / (fan in + fan out)."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with variance 2 / (fan in + fan out)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform with variance gain² / fan, the gain that of an activation (of slope `a`)."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with variance gain² / fan, the gain that of an activation (of slope `a`)."""
    deviation = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return normal_(tensor, 0.0, deviation, generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer (arXiv:1312.6120)."""
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    rows, columns = tensor.shape[0], tensor.numel() // max(tensor.shape[0], 1)
    with no_grad():
        drawn: Any = randn(rows, columns, dtype=tensor.dtype, generator=generator)
        flat = drawn.t() if rows < columns else drawn
        q, r = linalg.qr(flat)
        # A unique factorisation, so that the matrix is uniform: the diagonal of r positive.
        q = q * r.diagonal().sign()
        made = q.t() if rows < columns else q
        return tensor.copy_(made.reshape(tensor.shape) * gain)  # type: ignore[attr-defined]

"""torch.nn.functional's names: activations, losses and layers as functions.

All are composites of the op registry; this module gathers them under torch's names and takes
the arguments that only this namespace has: ``inplace=`` of activations, ``dim=None`` of softmax.
Start reading at `_NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgrad.autograd.grad_mode import no_grad
from symgrad.interface import FUNCTIONS
from symgrad.tensor import Tensor

_IN_PLACE = (
    "relu relu6 leaky_relu elu selu celu silu mish hardtanh hardsigmoid hardswish threshold dropout"
).split()
_BY_DIM = "softmax log_softmax softmin".split()
_PLAIN = (
    "gelu glu softplus softsign softshrink hardshrink tanhshrink logsigmoid sigmoid tanh layer_norm "
    "rms_norm group_norm normalize linear bilinear embedding one_hot pad mse_loss l1_loss smooth_l1_loss "
    "huber_loss cross_entropy nll_loss gaussian_nll_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div cosine_similarity pairwise_distance "
    "scaled_dot_product_attention conv1d conv2d max_pool1d max_pool2d avg_pool1d avg_pool2d"
).split()


def _with_inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Tensor:
        result: Tensor = function(input, *args, **kwargs)
        return input.write(result.expr()) if inplace else result

    wrapped.__name__ = function.__name__
    wrapped.__doc__ = function.__doc__
    return wrapped


def _with_dim(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(
        input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
    ) -> Tensor:
        if dim is None:
            # torch's choice when none is named: rows of matrices, else the first axis.
            dim = 0 if input.ndim in (0, 1, 3) else 1
        result: Tensor = function(input, dim, dtype=dtype)
        return result

    wrapped.__name__ = function.__name__
    wrapped.__doc__ = function.__doc__
    return wrapped


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Mean 0 and variance 1 of each channel, then scale and shift (arXiv:1502.03167).

    Parameters
    ----------
    running_mean, running_var : Tensor or None
        The statistics to use; in training those of the batch are used, and these move towards them
        by the share `momentum`.
    """
    channels = input.shape[1]
    if running_mean is not None and running_mean.numel() != channels:
        raise RuntimeError(
            f"running_mean should contain {channels} elements not {running_mean.numel()}"
        )
    dims = [d for d in range(input.ndim) if d != 1]
    spread = (channels,) + (1,) * (input.ndim - 2)
    if training or running_mean is None:
        count = input.numel() // channels
        if count <= 1 and training:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {input.shape!r}"
            )
        centre = input.mean(dims)
        difference = input - centre.reshape(spread)
        variance = (difference * difference).mean(dims)
        if training and running_mean is not None:
            with no_grad():
                running_mean.add_(momentum * (centre.detach() - running_mean))
                running_var.add_(
                    momentum * (variance.detach() * (count / (count - 1)) - running_var)
                )
    else:
        difference, variance = input - running_mean.reshape(spread), running_var
    made = difference * (variance + eps).rsqrt().reshape(spread)
    made = made if weight is None else made * weight.reshape(spread)
    return made if bias is None else made + bias.reshape(spread)


def prelu(input: Any, weight: Any) -> Any:
    """The input where it is positive, elsewhere times a weight, one for all or one per channel."""
    if weight.numel() != 1:
        if weight.ndim != 1 or input.ndim < 2 or weight.numel() != input.shape[1]:
            raise RuntimeError(
                f"Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.numel()} and channel size = {input.shape[1] if input.ndim > 1 else 1}."
            )
        weight = weight.reshape((-1,) + (1,) * (input.ndim - 2))
    return FUNCTIONS["where"](input > 0, input, weight * input)


_NAMES: dict[str, Callable[..., Any]] = {
    **{name: FUNCTIONS[name] for name in _PLAIN},
    **{name: _with_inplace(FUNCTIONS[name]) for name in _IN_PLACE},
    **{name: _with_dim(FUNCTIONS[name]) for name in _BY_DIM},
    "batch_norm": batch_norm,
    "prelu": prelu,
}

__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(
        f"module 'symgrad.nn.functional' has no function {name!r}; see dir(symgrad.nn.functional)"
    )


def __dir__() -> list[str]:
    return __all__

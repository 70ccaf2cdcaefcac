"""torch.nn.functional's names: activations, losses and layers as functions.

All are composites of the op registry; this module gathers them under torch's names and takes
the arguments that only this namespace has: ``inplace=`` of activations, ``dim=None`` of softmax.
Start reading at `_NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


_NAMES: dict[str, Callable[..., Any]] = {
    **{name: FUNCTIONS[name] for name in _PLAIN},
    **{name: _with_inplace(FUNCTIONS[name]) for name in _IN_PLACE},
    **{name: _with_dim(FUNCTIONS[name]) for name in _BY_DIM},
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

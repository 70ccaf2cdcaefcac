"""torch.nn.functional's names: activations, losses and layers as functions.

All are composites of the op registry; this module only gathers them under torch's name.
"""

from __future__ import annotations

from typing import Any

from symgrad.interface import FUNCTIONS

_WORDS = (
    "relu relu6 leaky_relu elu selu gelu silu mish softplus softsign hardtanh tanhshrink logsigmoid "
    "sigmoid tanh softmax log_softmax layer_norm normalize linear bilinear embedding one_hot dropout pad "
    "mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy nll_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div cosine_similarity scaled_dot_product_attention"
).split()
_NAMES = {name: FUNCTIONS[name] for name in _WORDS if name in FUNCTIONS}

__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(
        f"module 'symgrad.nn.functional' has no function {name!r}; see dir(symgrad.nn.functional)"
    )


def __dir__() -> list[str]:
    return __all__

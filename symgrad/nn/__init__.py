"""torch.nn: modules, their parameters, and functions of both.

Modules are loaded when they are first named, so that importing symgrad stays quick. `_PLACES` says
which file has which name. Start reading at `symgrad.nn.module`.
"""

from __future__ import annotations

import importlib
from typing import Any

from symgrad.nn import functional as functional

_PLACES = {
    "parameter": "Buffer Parameter",
    "module": "Module",
    "containers": "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "layers": "Bilinear Dropout Embedding Flatten Identity Linear Unflatten",
    "normalization": "BatchNorm1d BatchNorm2d GroupNorm LayerNorm RMSNorm",
    "convolution": "AvgPool1d AvgPool2d Conv1d Conv2d MaxPool1d MaxPool2d",
    "activation": (
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish "
        "PReLU ReLU ReLU6 SELU Sigmoid SiLU Softmax Softmin Softplus Softshrink Softsign Tanh Tanhshrink "
        "Threshold"
    ),
    "recurrent": "GRUCell LSTMCell RNNCell",
    "attention": "MultiheadAttention",
    "loss": (
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss GaussianNLLLoss HuberLoss KLDivLoss L1Loss MSELoss "
        "NLLLoss SmoothL1Loss"
    ),
}
_FILES = {name: place for place, names in _PLACES.items() for name in names.split()}
_SUBMODULES = ("functional", "init", "utils")

__all__ = sorted([*_FILES, *_SUBMODULES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES or name in _PLACES:
        return importlib.import_module(f"symgrad.nn.{name}")
    place = _FILES.get(name)
    if place is None:
        raise AttributeError(f"module 'symgrad.nn' has no attribute {name!r}")
    made = getattr(importlib.import_module(f"symgrad.nn.{place}"), name)
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return __all__

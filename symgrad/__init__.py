"""symgrad: torch's autograd on a symbolic core.

Eager tensor operations build an expression graph; derivatives of any order are expressions too,
which can be read as formulas, and are compiled to fused vector kernels when a value is looked at.
"""

from __future__ import annotations

import importlib as _importlib
from typing import Any

from symgrad import dtypes as _dtypes
from symgrad import interface as _interface
from symgrad import methods as _methods
from symgrad.dtypes import (
    DType,
    complex64,
    complex128,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
)
from symgrad.dtypes import DType as dtype
from symgrad.dtypes import bool_ as bool
from symgrad.dtypes import complex64 as cfloat
from symgrad.dtypes import complex128 as cdouble
from symgrad.dtypes import float32 as float
from symgrad.dtypes import float64 as double
from symgrad.dtypes import int32 as int
from symgrad.dtypes import int64 as long
from symgrad.tensor import Size, Tensor

_methods.attach()

from symgrad import random
from symgrad.drawing import *
from symgrad.random import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from symgrad.creation import *
from symgrad import autograd
from symgrad.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from symgrad.autograd.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from symgrad.compiled import compile as compile
from symgrad import func, linalg, nn, special
from symgrad.func import cond as cond
from symgrad.func import scan as scan
from symgrad.func import vmap as vmap
from symgrad.func import while_loop as while_loop
from symgrad.sparsity import sparse_hessian as sparse_hessian
from symgrad.sparsity import sparse_jacobian as sparse_jacobian
from symgrad.reading import export_c as export_c
from symgrad.reading import lambdify as lambdify
from symgrad.reading import to_latex as to_latex
from symgrad.reading import to_sympy as to_sympy
from symgrad.version import __version__ as __version__


_LATER = ("compat", "optim", "serialization", "testing")
"""Submodules that are loaded when they are first named, so that importing symgrad stays quick."""
_ELSEWHERE = {
    "load": "symgrad.serialization",
    "save": "symgrad.serialization",
    "cuda": "symgrad.compat",
    "device": "symgrad.compat",
}
"""Names that come from such submodules."""


def __getattr__(name: str) -> Any:
    """Submodules that are loaded on first use; for type checkers, the functions made from the registry too."""
    if name in _LATER:
        return _importlib.import_module(f"symgrad.{name}")
    if name in _ELSEWHERE:
        made = getattr(_importlib.import_module(_ELSEWHERE[name]), name)
        globals()[name] = made
        return made
    raise AttributeError(f"module 'symgrad' has no attribute {name!r}")


_functions = _interface.FUNCTIONS
globals().update(
    {k: v for k, v in _functions.items() if k not in globals() and not k.startswith("linalg_")}
)


def is_tensor(value: object) -> Any:
    """Whether a value is a Tensor."""
    return isinstance(value, Tensor)

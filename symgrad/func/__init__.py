"""torch.func's surface: transforms of functions that compose.

Start reading at `symgrad.func.derivatives`; `vmap` is in `symgrad.func.mapping`.
"""

from symgrad.func.derivatives import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from symgrad.func.mapping import vmap

__all__ = [
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "value_and_grad",
    "vjp",
    "vmap",
]

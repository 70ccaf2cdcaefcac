"""torch.func's surface: transforms of functions that compose.

Start reading at `symgrad.func.derivatives`; `vmap` is in `symgrad.func.mapping`,
`functional_call` in `symgrad.func.modules`.
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
from symgrad.func.modules import functional_call, stack_module_state

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]

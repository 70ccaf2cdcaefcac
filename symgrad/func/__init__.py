"""torch.func's surface: transforms of functions that compose.

Start reading at `symgrad.func.transforms`; all orders at once are in `symgrad.func.taylor`, `vmap` is
in `symgrad.func.mapping`, control flow in `symgrad.func.control`, `functional_call` in
`symgrad.func.modules`.
"""

from symgrad.func.control import cond, scan, while_loop
from symgrad.func.mapping import vmap
from symgrad.func.modules import functional_call, stack_module_state
from symgrad.func.taylor import derivatives, jet
from symgrad.func.transforms import (
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

__all__ = [
    "cond",
    "derivatives",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jet",
    "jvp",
    "linearize",
    "scan",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]

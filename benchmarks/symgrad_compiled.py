"""symgrad through `symgrad.compile`: the programs of `symgrad_eager.py`, each compiled whole.

A program's derivatives are taken inside the compiled function, which takes and returns NumPy
arrays. Start reading at `compiled`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from impls import symgrad_eager as eager

import symgrad as sg

VENV = "symgrad"
REQUIRES = ["-e", "."]
IMPORT = "import symgrad"

to_numpy = np.asarray


def compiled(program):
    """The step of a program compiled as one function of arrays."""

    def build(inp):
        function, args, count = program(inp)

        def traced(*args):
            for x in args[:count]:
                x.requires_grad_()
            return tuple(function(*args))

        call = sg.compile(traced)
        return partial(call, *[a.item() if not np.ndim(a) else a for a in args])

    return build


W1 = compiled(eager.greeks)
W2 = compiled(eager.chain)
W3_grad = compiled(eager.logistic)
W3_hvp = compiled(eager.logistic_hvp)
W4 = compiled(eager.mlp)
W5 = compiled(eager.pinn)
W6_grad = compiled(eager.rosenbrock)
W6_hess = compiled(eager.rosenbrock_hessian)
W7_force = compiled(eager.lennard_jones)
W7_hvp = compiled(eager.lennard_jones_hvp)
W8 = compiled(eager.arm_in_scalars)
W9_small = W9_large = compiled(eager.mixture)
W10 = compiled(eager.adjustment)
W11 = compiled(eager.lstm)
W12 = compiled(eager.hand)
W13 = compiled(eager.transformer)
W14 = compiled(eager.process)
W15 = compiled(eager.orders)
W16 = compiled(eager.runge_kutta)
W17_call_scalar = W17_call_vec10 = compiled(eager.tiny)

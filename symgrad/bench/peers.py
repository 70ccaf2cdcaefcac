"""Other libraries beside symgrad, where they are installed: torch.compile and jax.jit.

One table, `PEERS`: name -> what makes a step of a `Case` in that library. Each runs in this very
process, on as many threads as symgrad. Start reading at `PEERS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from symgrad.bench.workloads import Case
from symgrad.codegen import pool
from symgrad.timing import Step


def installed(name: str) -> bool:
    """Whether a peer can be imported; nothing is."""
    try:
        return find_spec(name) is not None
    except ValueError:
        return False


def _torch(case: Case) -> Step:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(pool.get_num_threads())
    function: Callable[..., Any] = partial(case.formula, torch)
    if case.argnums is not None:
        derivative = torch.func.grad_and_value(function, argnums=case.argnums)

        def function(*args: Any) -> Any:
            gradient, value = derivative(*args)
            return value, gradient

    # Without a fresh start it would take the next function's code for a variant of the last.
    torch._dynamo.reset()
    compiled = torch.compile(function)
    args = [torch.as_tensor(a, dtype=None if np.ndim(a) else torch.float64) for a in case.args]
    return lambda: compiled(*args)


class JaxNames:
    """jax.numpy with torch's word for keeping a reduced axis."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)

    def sum(self, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """Sum over all elements or one axis."""
        return self._xp.sum(x, axis=dim, keepdims=keepdim)

    def mean(self, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """Mean over all elements or one axis."""
        return self._xp.mean(x, axis=dim, keepdims=keepdim)

    def amax(self, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """Greatest over all elements or one axis."""
        return self._xp.max(x, axis=dim, keepdims=keepdim)


def _jax(case: Case) -> Step:
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    function: Callable[..., Any] = partial(case.formula, JaxNames(jax.numpy))
    if case.argnums is not None:
        function = jax.value_and_grad(function, argnums=case.argnums)
    compiled = jax.jit(function)
    args = [jax.numpy.asarray(a) for a in case.args]
    return lambda: jax.block_until_ready(compiled(*args))


PEERS: dict[str, Callable[[Case], Step]] = {"torch": _torch, "jax": _jax}

"""Parameters as one vector, and back. Start reading at `parameters_to_vector`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from symgrad.interface import FUNCTIONS
from symgrad.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of the parameters in one vector; derivatives flow through."""
    parts: list[Any] = list(parameters)
    return FUNCTIONS["cat"]([p.reshape(-1) for p in parts])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the values of a vector's slices."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected symgrad.Tensor, but got: {type(vec).__name__}")
    start = 0
    for p in parameters:
        part: Any = vec[start : start + p.numel()]
        p.data = part.reshape(p.shape).data
        start += p.numel()

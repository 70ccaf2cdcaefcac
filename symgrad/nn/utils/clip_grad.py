"""Gradients kept within bounds. Start reading at `clip_grad_norm_`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from symgrad import creation
from symgrad.autograd.grad_mode import no_grad
from symgrad.interface import FUNCTIONS
from symgrad.tensor import Tensor


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.grad for p in listed if p.grad is not None]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements of several tensors together."""
    listed: list[Any] = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    kind = float(norm_type)
    if not listed:
        return creation.tensor(0.0)
    with no_grad():
        norms = [t.norm(kind) for t in listed]
        total: Any = FUNCTIONS["stack"](norms).norm(kind)
        if error_if_nonfinite and not bool(total.isfinite()):
            raise RuntimeError(
                f"The total norm of order {kind} for gradients from `parameters` is non-finite, so it cannot "
                "be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
                "set `error_if_nonfinite=False`"
            )
    return total


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients in place so that the norm of all together is at most `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
    max_norm : float
    norm_type : float
        Infinity gives the largest absolute value.
    error_if_nonfinite : bool
        Raise if the norm is not finite.

    Returns
    -------
    Tensor
        The norm before.
    """
    gradients = _gradients(parameters)
    total: Any = get_total_norm(gradients, norm_type, error_if_nonfinite)
    with no_grad():
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for g in gradients:
            g.mul_(factor)
    return total


clip_grad_norm = clip_grad_norm_


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Clamp gradients in place to [-clip_value, clip_value]."""
    bound = float(clip_value)
    with no_grad():
        for g in _gradients(parameters):
            g.clamp_(-bound, bound)

"""torch.autograd.Variable: an old name of tensors. Start reading at `Variable`."""

from __future__ import annotations

from typing import Any

from symgrad.autograd.engine import queue_callback
from symgrad.tensor import Tensor


class _Engine:
    """The part of torch's engine object that people use."""

    @staticmethod
    def queue_callback(callback: Any) -> None:
        """Call `callback` when the backward pass that runs now has ended."""
        queue_callback(callback)


class _VariableType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_VariableType):
    """A tensor; calling it gives a tensor over the same memory.

    Parameters
    ----------
    data : Tensor
    requires_grad : bool
    """

    _execution_engine = _Engine()

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Tensor:  # type: ignore[misc]
        made = data.detach()
        return made.requires_grad_() if requires_grad else made

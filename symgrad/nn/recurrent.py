"""Cells of recurrent networks: one step from an input and a state to the next state.

Gates lie one after the other along the rows of the weights, in torch's order. Start reading at
`_Cell`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from symgrad.creation import empty, zeros
from symgrad.nn import functional, init
from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor


class _Cell(Module):
    """Linear maps of the input and of the state to all gates."""

    _gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if hidden_size <= 0:
            raise ValueError("hidden_size must be greater than zero")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = self._gates * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, dtype=dtype))
        self.register_parameter("bias_ih", Parameter(empty(rows, dtype=dtype)) if bias else None)
        self.register_parameter("bias_hh", Parameter(empty(rows, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, uniform within 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in (1, 2):
            raise ValueError(
                f"{type(self).__name__}: Expected input to be 1D or 2D, got {input.ndim}D instead"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.shape[-1]}, expected {self.input_size}"
            )

    def _start(self, input: Tensor) -> Tensor:
        return zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype)

    def _maps(self, input: Tensor, state: Tensor) -> tuple[Any, Any]:
        """What the gates get from the input and from the state."""
        return (
            functional.linear(input, self.weight_ih, self.bias_ih),
            functional.linear(state, self.weight_hh, self.bias_hh),
        )

    def extra_repr(self) -> str:
        """The settings."""
        shown = f"{self.input_size}, {self.hidden_size}"
        return shown if self.bias else f"{shown}, bias={self.bias}"


class RNNCell(_Cell):
    """h' = tanh of the sum of both maps, or ReLU of it (Elman, 1990)."""

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype=dtype)
        if nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {nonlinearity}")
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        self._check(input)
        mapped, carried = self._maps(input, self._start(input) if hx is None else hx)
        return getattr(functional, self.nonlinearity)(mapped + carried)

    def extra_repr(self) -> str:
        """The settings."""
        shown = super().extra_repr()
        return (
            shown if self.nonlinearity == "tanh" else f"{shown}, nonlinearity={self.nonlinearity}"
        )


class LSTMCell(_Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)."""

    _gates = 4

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The next output and memory."""
        self._check(input)
        state: Any = (self._start(input),) * 2 if hx is None else hx
        mapped, carried = self._maps(input, state[0])
        enter, forget, new, leave = (mapped + carried).chunk(4, -1)
        memory = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * memory.tanh(), memory


class GRUCell(_Cell):
    """Gated recurrent unit (arXiv:1406.1078), with torch's reset after the product."""

    _gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        self._check(input)
        state: Any = self._start(input) if hx is None else hx
        mapped, carried = self._maps(input, state)
        reset_in, update_in, new_in = mapped.chunk(3, -1)
        reset_state, update_state, new_state = carried.chunk(3, -1)
        reset = (reset_in + reset_state).sigmoid()
        update = (update_in + update_state).sigmoid()
        new = (new_in + reset * new_state).tanh()
        return (1 - update) * new + update * state

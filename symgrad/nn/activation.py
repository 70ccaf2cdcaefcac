"""Activations as modules.

Each class names a function of `symgrad.nn.functional` and the settings it is called with, which
are its constructor's. Start reading at `_Activation`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from symgrad.creation import full
from symgrad.nn import functional, init
from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor


class _Activation(Module):
    """A function of one tensor.

    Attributes
    ----------
    _function : str
        Its name in `symgrad.nn.functional`.
    _settings : tuple of (name, default)
        The constructor's parameters, which become attributes and are passed on by position; those
        without a default have `...`.
    """

    _function: ClassVar[str]
    _settings: ClassVar[tuple[tuple[str, Any], ...]] = ()
    _by_name: ClassVar[bool] = False
    _inplace: ClassVar[bool] = False
    inplace: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        allowed = [*self._settings, ("inplace", False)] if self._inplace else list(self._settings)
        if len(args) > len(allowed):
            raise TypeError(
                f"{type(self).__name__}.__init__() takes {len(allowed)} settings but {len(args)} were given"
            )
        given = {name: value for (name, _), value in zip(allowed, args, strict=False)}
        for name, value in kwargs.items():
            if name not in dict(allowed) or name in given:
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword argument '{name}'"
                )
            given[name] = value
        for name, default in allowed:
            value = given.get(name, default)
            if value is ...:
                raise TypeError(
                    f"{type(self).__name__}.__init__() missing 1 required positional argument: '{name}'"
                )
            setattr(self, name, value)

    def forward(self, input: Tensor) -> Tensor:
        """The function of the input."""
        function = getattr(functional, self._function)
        values = {name: getattr(self, name) for name, _ in self._settings}
        more = {"inplace": True} if self._inplace and self.inplace else {}
        if self._by_name:
            return function(input, **values, **more)
        return function(input, *values.values(), **more)

    def extra_repr(self) -> str:
        """The settings."""
        shown = [f"{name}={getattr(self, name)!r}" for name, _ in self._settings]
        if self._inplace and self.inplace:
            shown.append("inplace=True")
        return ", ".join(shown)


class ReLU(_Activation):
    """max(x, 0)."""

    _function, _inplace = "relu", True


class ReLU6(_Activation):
    """x between 0 and 6."""

    _function, _inplace = "relu6", True


class LeakyReLU(_Activation):
    """x, or x times a small slope where it is negative."""

    _function, _inplace = "leaky_relu", True
    _settings = (("negative_slope", 0.01),)


class ELU(_Activation):
    """x, or alpha * (exp(x) - 1) where it is negative."""

    _function, _inplace = "elu", True
    _settings = (("alpha", 1.0),)


class CELU(_Activation):
    """x, or alpha * (exp(x / alpha) - 1) where it is negative."""

    _function, _inplace = "celu", True
    _settings = (("alpha", 1.0),)


class SELU(_Activation):
    """The ELU that keeps mean 0 and variance 1 (arXiv:1706.02515)."""

    _function, _inplace = "selu", True


class GELU(_Activation):
    """x times the normal distribution function of x."""

    _function, _by_name = "gelu", True
    _settings = (("approximate", "none"),)


class SiLU(_Activation):
    """x times its sigmoid."""

    _function, _inplace = "silu", True


class Mish(_Activation):
    """x * tanh(softplus(x))."""

    _function, _inplace = "mish", True


class Hardswish(_Activation):
    """x times its hard sigmoid."""

    _function, _inplace = "hardswish", True


class Hardsigmoid(_Activation):
    """x / 6 + 1/2 between 0 and 1."""

    _function, _inplace = "hardsigmoid", True


class Hardtanh(_Activation):
    """x between two bounds."""

    _function, _inplace = "hardtanh", True
    _settings = (("min_val", -1.0), ("max_val", 1.0))


class Threshold(_Activation):
    """x where it is above a threshold, else a value."""

    _function, _inplace = "threshold", True
    _settings = (("threshold", ...), ("value", ...))


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    _function = "sigmoid"


class LogSigmoid(_Activation):
    """Logarithm of the sigmoid."""

    _function = "logsigmoid"


class Tanh(_Activation):
    """Hyperbolic tangent."""

    _function = "tanh"


class Tanhshrink(_Activation):
    """x - tanh(x)."""

    _function = "tanhshrink"


class Softsign(_Activation):
    """x / (1 + |x|)."""

    _function = "softsign"


class Softplus(_Activation):
    """log(1 + exp(beta * x)) / beta."""

    _function = "softplus"
    _settings = (("beta", 1.0), ("threshold", 20.0))


class Softshrink(_Activation):
    """x moved towards 0 by lambd, 0 within it."""

    _function = "softshrink"
    _settings = (("lambd", 0.5),)

    def extra_repr(self) -> str:
        """The settings."""
        return str(self.lambd)


class Hardshrink(Softshrink):
    """x where it is further than lambd from 0, else 0."""

    _function = "hardshrink"


class GLU(_Activation):
    """One half of the elements along an axis times the sigmoid of the other half."""

    _function = "glu"
    _settings = (("dim", -1),)


class Softmax(_Activation):
    """exp(x) over its sum along an axis."""

    _function = "softmax"
    _settings = (("dim", None),)


class LogSoftmax(_Activation):
    """Logarithm of the softmax."""

    _function = "log_softmax"
    _settings = (("dim", None),)


class Softmin(_Activation):
    """The softmax of -x."""

    _function = "softmin"
    _settings = (("dim", None),)


class PReLU(Module):
    """x, or x times a trained slope where it is negative (arXiv:1502.01852)."""

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(full((num_parameters,), init, dtype=dtype))

    def reset_parameters(self) -> None:
        """The slopes to start from."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """The function of the input."""
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """The settings."""
        return f"num_parameters={self.num_parameters}"

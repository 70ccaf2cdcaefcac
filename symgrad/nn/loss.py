"""Losses as modules; their functions are in `symgrad.nn.functional`.

Start reading at `_Loss`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from symgrad.nn import functional
from symgrad.nn.module import Module
from symgrad.tensor import Tensor


class _Loss(Module):
    """A loss of an input and a target; reduction is "mean", "sum" or "none"."""

    _function: ClassVar[str]

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            if reduce is False:
                reduction = "none"
            else:
                reduction = "sum" if size_average is False else "mean"
        self.reduction = reduction

    def settings(self) -> dict[str, Any]:
        """What the function is called with besides the reduction."""
        return {}

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return getattr(functional, self._function)(
            input, target, reduction=self.reduction, **self.settings()
        )


class _Weighted(_Loss):
    """A loss whose elements or classes have weights."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)

    def settings(self) -> dict[str, Any]:
        """The weights."""
        return {"weight": self.weight}


class MSELoss(_Loss):
    """Squared difference."""

    _function = "mse_loss"


class L1Loss(_Loss):
    """Absolute difference."""

    _function = "l1_loss"


class SmoothL1Loss(_Loss):
    """Half the squared difference over beta below beta, the absolute difference beyond."""

    _function = "smooth_l1_loss"

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def settings(self) -> dict[str, Any]:
        """The bound between the two."""
        return {"beta": self.beta}


class HuberLoss(_Loss):
    """Half the squared difference up to delta, delta times the absolute one beyond."""

    _function = "huber_loss"

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def settings(self) -> dict[str, Any]:
        """The bound between the two."""
        return {"delta": self.delta}


class NLLLoss(_Weighted):
    """Negative log probability of the target classes, from log probabilities."""

    _function = "nll_loss"

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def settings(self) -> dict[str, Any]:
        """The weights, and the class that does not count."""
        return {"weight": self.weight, "ignore_index": self.ignore_index}


class CrossEntropyLoss(_Weighted):
    """Cross entropy of unnormalised scores with class numbers or class probabilities.

    Examples
    --------
    >>> import symgrad as sg
    >>> loss = sg.nn.CrossEntropyLoss()
    >>> loss(sg.zeros(1, 4), sg.tensor([2])).item() == sg.tensor(4.).log().item()
    True
    """

    _function = "cross_entropy"

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def settings(self) -> dict[str, Any]:
        """The weights, the class that does not count, and how much targets are smoothed."""
        return {
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }


class BCELoss(_Weighted):
    """Cross entropy of probabilities with targets in [0, 1]."""

    _function = "binary_cross_entropy"


class BCEWithLogitsLoss(_Weighted):
    """Binary cross entropy of unnormalised scores."""

    _function = "binary_cross_entropy_with_logits"

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def settings(self) -> dict[str, Any]:
        """The weights of elements and of positive targets."""
        return {"weight": self.weight, "pos_weight": self.pos_weight}


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of the target from log probabilities."""

    _function = "kl_div"

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def settings(self) -> dict[str, Any]:
        """Whether targets are logarithms too."""
        return {"log_target": self.log_target}


class GaussianNLLLoss(Module):
    """Negative log likelihood of a normal distribution with given variances."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__()
        self.full = full
        self.eps = eps
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        """The loss."""
        return functional.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)

"""RMSprop. Start reading at `RMSprop.update`."""

from __future__ import annotations

from typing import Any

from symgrad.creation import zeros_like
from symgrad.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check_at_least_zero,
    kept,
)


class RMSprop(Optimizer):
    """Steps over the root of a running mean of squared gradients (Tieleman and Hinton, 2012).

    Parameters
    ----------
    params : iterable
        See `symgrad.optim.Optimizer`.
    lr : float or Tensor
    alpha : float
        The share of the running mean that is kept.
    eps, weight_decay, momentum : float
    centered : bool
        Take the squared mean gradient off, so that the divisor is a standard deviation
        (arXiv:1308.0850).
    maximize : bool
        Step along the gradient instead.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_at_least_zero("learning rate", lr)
        check_at_least_zero("epsilon value", eps)
        check_at_least_zero("momentum value", momentum)
        check_at_least_zero("weight_decay value", weight_decay)
        check_at_least_zero("alpha value", alpha)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Any, gradient: Any, state: State, group: Group) -> None:
        """One step of one parameter."""
        if not state:
            state["step"] = self.first_count()
            state["square_avg"] = kept(zeros_like(p))
            if group["momentum"] > 0:
                state["momentum_buffer"] = kept(zeros_like(p))
            if group["centered"]:
                state["grad_avg"] = kept(zeros_like(p))
        self.counted(state)
        if group["weight_decay"] != 0:
            gradient = gradient + group["weight_decay"] * p
        alpha, squares = group["alpha"], state["square_avg"]
        squares.copy_(alpha * squares + (1 - alpha) * (gradient * gradient))
        if group["centered"]:
            centre = state["grad_avg"]
            centre.add_((1 - alpha) * (gradient - centre))
            root = (squares - centre * centre).sqrt()
        else:
            root = squares.sqrt()
        change = gradient / (root + group["eps"])
        if group["momentum"] > 0:
            velocity = state["momentum_buffer"]
            velocity.copy_(group["momentum"] * velocity + change)
            change = velocity
        p.sub_(group["lr"] * change)

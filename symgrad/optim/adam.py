"""Adam and AdamW. Start reading at `Adam.update`."""

from __future__ import annotations

from typing import Any

from symgrad.creation import zeros_like
from symgrad.interface import FUNCTIONS
from symgrad.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check_at_least_zero,
    kept,
)


class Adam(Optimizer):
    """Steps scaled by running means of gradients and of their squares (arXiv:1412.6980).

    Parameters
    ----------
    params : iterable
        See `symgrad.optim.Optimizer`.
    lr : float or Tensor
    betas : (float, float)
        The shares of the running means that are kept.
    eps : float
    weight_decay : float
        Adds this many times the parameter to its gradient, or with `decoupled_weight_decay` takes
        lr times as much off the parameter (arXiv:1711.05101).
    amsgrad : bool
        Divide by the largest running mean of squares so far (Reddi et al., 2018).
    maximize : bool
        Step along the gradient instead.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_at_least_zero("learning rate", lr)
        check_at_least_zero("epsilon value", eps)
        for place, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {place}: {beta}")
        check_at_least_zero("weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Any, gradient: Any, state: State, group: Group) -> None:
        """One step of one parameter."""
        if not state:
            state["step"] = self.first_count()
            state["exp_avg"] = kept(zeros_like(p))
            state["exp_avg_sq"] = kept(zeros_like(p))
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = kept(zeros_like(p))
        first, second = state["exp_avg"], state["exp_avg_sq"]
        lr, decay = group["lr"], group["weight_decay"]
        if decay != 0 and group["decoupled_weight_decay"]:
            p.mul_(1 - lr * decay)
        elif decay != 0:
            gradient = gradient + decay * p
        beta1, beta2 = group["betas"]
        first.add_((1 - beta1) * (gradient - first))
        second.copy_(beta2 * second + (1 - beta2) * (gradient * gradient))
        largest = second
        if group["amsgrad"]:
            largest = state["max_exp_avg_sq"]
            largest.copy_(FUNCTIONS["maximum"](largest, second))
        size, root = self._corrected(self.counted(state), group)
        p.sub_(size * first / (largest.sqrt() / root + group["eps"]))

    def _corrected(self, step: Any, group: Group) -> tuple[Any, Any]:
        """The rate, and the root of what squares are divided by.

        Both means start at zero; what is missing from the sum of their weights is made up for.
        """
        lr, (beta1, beta2) = group["lr"], group["betas"]
        key = (id(step), id(lr), beta1, beta2)
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = (lr / (1 - beta1**step), (1 - beta2**step).sqrt())
        return found


class AdamW(Adam):
    """Adam with weight decay that does not pass through the running means (arXiv:1711.05101)."""

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

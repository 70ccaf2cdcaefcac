"""Adagrad. Start reading at `Adagrad.update`."""

from __future__ import annotations

from typing import Any

from symgrad.creation import full_like
from symgrad.optim.optimizer import Group, Optimizer, State, check_at_least_zero


class Adagrad(Optimizer):
    """Steps over the root of the sum of squared gradients (Duchi et al., 2011).

    Parameters
    ----------
    params : iterable
        See `symgrad.optim.Optimizer`.
    lr : float or Tensor
    lr_decay : float
        The rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
    weight_decay, initial_accumulator_value, eps : float
    maximize : bool
        Step along the gradient instead.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_at_least_zero("learning rate", lr)
        check_at_least_zero("lr_decay value", lr_decay)
        check_at_least_zero("weight_decay value", weight_decay)
        check_at_least_zero("initial_accumulator_value value", initial_accumulator_value)
        check_at_least_zero("epsilon value", eps)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        count = self.first_count()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": count,
                    "sum": full_like(p, float(initial_accumulator_value)),
                }

    def update(self, p: Any, gradient: Any, state: State, group: Group) -> None:
        """One step of one parameter."""
        step: Any = self.counted(state)
        total = state["sum"]
        if group["weight_decay"] != 0:
            gradient = gradient + group["weight_decay"] * p
        total.add_(gradient * gradient)
        rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        p.sub_(rate * gradient / (total.sqrt() + group["eps"]))

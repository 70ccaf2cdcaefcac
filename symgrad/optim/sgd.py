"""Stochastic gradient descent. Start reading at `SGD.update`."""

from __future__ import annotations

from typing import Any

from symgrad.optim.optimizer import Group, Optimizer, State, check_at_least_zero, refuse_tracing


class SGD(Optimizer):
    """Steps against the gradient, with momentum if asked for (Sutskever et al., 2013).

    Parameters
    ----------
    params : iterable
        See `symgrad.optim.Optimizer`.
    lr : float or Tensor
    momentum, dampening : float
        The share of the last step that is kept, and of the gradient that is left out.
    weight_decay : float
        Adds this many times the parameter to its gradient.
    nesterov : bool
        Look ahead along the momentum.
    maximize : bool
        Step along the gradient instead.

    Examples
    --------
    >>> import symgrad as sg
    >>> w = sg.tensor([1.], requires_grad=True)
    >>> optimizer = sg.optim.SGD([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_at_least_zero("learning rate", lr)
        check_at_least_zero("momentum value", momentum)
        check_at_least_zero("weight_decay value", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Any, gradient: Any, state: State, group: Group) -> None:
        """One step of one parameter."""
        momentum = group["momentum"]
        if group["weight_decay"] != 0:
            gradient = gradient + group["weight_decay"] * p
        if momentum != 0:
            kept = state.get("momentum_buffer")
            if kept is None:
                refuse_tracing("SGD with momentum")
                kept = state["momentum_buffer"] = gradient.detach().clone()
            else:
                kept.copy_(momentum * kept + (1 - group["dampening"]) * gradient)
            gradient = gradient + momentum * kept if group["nesterov"] else kept
        p.sub_(group["lr"] * gradient)

"""Hooks of modules on gradients: the inputs and outputs of a call pass through nodes of their own.

Structure: `BackwardHooks`, one call of a module that has such hooks. It puts an identity around
the inputs and one around the outputs; backward comes by the second, which keeps the outputs'
gradients, and then by the first, which calls the hooks. Start reading at `BackwardHooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgrad.autograd.applied import Call, apply
from symgrad.autograd.hooks import RemovableHandle, added, users_code
from symgrad.expr import Expr
from symgrad.op import STATE
from symgrad.tensor import Tensor


def register(table: dict[int, Any], hook: Any, prepend: bool) -> RemovableHandle:
    """Put a hook at the end of a table, or at its beginning."""
    handle = added(table, hook)
    if prepend:
        others = [(key, value) for key, value in table.items() if key != handle.id]
        for key, value in others:
            del table[key]
            table[key] = value
    return handle


class _Passage(Call):
    """An identity on some tensors that tells a function of their gradients.

    With `fill` it tells of zeros for those that have no gradient.
    """

    def __init__(
        self, nodes: Sequence[Expr], told: Callable[[list[Any]], Sequence[Any]], fill: bool
    ) -> None:
        super().__init__(
            "BackwardHookFunctionBackward", len(nodes), [(n.shape, n.dtype) for n in nodes]
        )
        self.told = told
        self.fill = fill

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """The gradients, as the hooks give them back."""
        given = []
        for k, g in enumerate(cotangents):
            if g is None and self.fill and node.args[k].requires_grad:
                g = self.zeros(k)
            given.append(None if g is None or not node.args[k].requires_grad else Tensor(g))
        with users_code():
            found = self.told(given)
        return [None if g is None else g.expr() for g in found]

    def push(self, tangents: Sequence[Expr]) -> Sequence[Expr | None]:
        """Forward mode passes by."""
        return tangents


def _passed(
    values: tuple[Any, ...], told: Callable[[list[Any]], Sequence[Any]], fill: bool
) -> tuple[Any, ...]:
    """Values with their tensors sent through a passage."""
    places = [k for k, v in enumerate(values) if isinstance(v, Tensor)]
    nodes = [values[k].expr() for k in places]
    made = list(values)
    for k, result in zip(places, apply(_Passage(nodes, told, fill), nodes, (), nodes), strict=True):
        made[k] = Tensor(result)
    return tuple(made)


class BackwardHooks:
    """The gradient hooks of one call of a module.

    Parameters
    ----------
    module : Module
    hooks, pre_hooks : list of callable
        Called with (module, input gradients, output gradients) and (module, output gradients).
    """

    def __init__(self, module: Any, hooks: list[Any], pre_hooks: list[Any]) -> None:
        self.module = module
        self.hooks = hooks
        self.pre_hooks = pre_hooks
        self.count = 0
        self.places: list[int] = []
        self.grad_outputs: tuple[Any, ...] | None = None

    def around_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, watched."""
        self.count = len(args)
        tensors = [k for k, a in enumerate(args) if isinstance(a, Tensor)]
        if not STATE.grad or not any(args[k].requires_grad for k in tensors):
            return args
        self.places = tensors
        return _passed(args, self._after, True)

    def around_outputs(self, result: Any) -> Any:
        """The result, watched."""
        several = isinstance(result, tuple)
        values = result if several else (result,)
        recorded = STATE.grad and any(isinstance(v, Tensor) and v.requires_grad for v in values)
        if not recorded:
            return result
        at = [k for k, v in enumerate(values) if isinstance(v, Tensor)]

        def told(gradients: list[Any]) -> Sequence[Any]:
            return self._before(gradients, at, len(values))

        passed = _passed(values, told, False)
        return passed if several else passed[0]

    def _before(self, gradients: list[Any], at: list[int], count: int) -> Sequence[Any]:
        """Called with the outputs' gradients."""
        spread: list[Any] = [None] * count
        for k, g in zip(at, gradients, strict=True):
            spread[k] = g
        self.grad_outputs = tuple(spread)
        for hook in self.pre_hooks:
            new = hook(self.module, self.grad_outputs)
            if new is not None:
                self.grad_outputs = _of_length(new, count, "Backward pre hook", "grad_output")
        passed = [self.grad_outputs[k] for k in at]
        if not self.places:
            # No input has a gradient, so this is the moment.
            self._call((None,) * self.count)
        return passed

    def _after(self, gradients: list[Any]) -> Sequence[Any]:
        """Called with the inputs' gradients."""
        if self.grad_outputs is None:
            raise RuntimeError(
                "Module backward hook for grad_input is called before the grad_output one. This happens "
                "because the gradient in your nn.Module flows to the Module's input without passing through "
                "the Module's output. Make sure that the output depends on the input and that the loss is "
                "computed based on the output."
            )
        spread: list[Any] = [None] * self.count
        for k, g in zip(self.places, gradients, strict=True):
            spread[k] = g
        found = self._call(tuple(spread))
        return [found[k] for k in self.places]

    def _call(self, grad_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.hooks:
            new = hook(self.module, grad_inputs, self.grad_outputs)
            if new is not None:
                grad_inputs = _of_length(new, self.count, "Backward hook", "grad_input")
        self.grad_outputs = None
        return grad_inputs


def _of_length(new: Any, count: int, who: str, what: str) -> tuple[Any, ...]:
    given = new if isinstance(new, tuple) else (new,)
    if len(given) != count:
        raise RuntimeError(
            f"{who} returned an invalid number of {what}, got {len(given)}, but expected {count}"
        )
    return given

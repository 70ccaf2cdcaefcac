"""`backward` and `grad`: who gets which gradient, when, and with which errors.

Two roads to the same numbers:

* the short one: no hooks, no `create_graph`: the structure of the graph is looked up, and value
  and gradients come out of one joint program (`symgrad.runtime.gradients`); the derivative's own
  expression is made only when somebody prints it (`symgrad.calculus.known`).
* the general one: `symgrad.calculus.pullback` builds the derivative as expressions, calling hooks
  on the way; it stays lazy and differentiable.

Structures: `Hooks`, autograd's attachment to an intermediate node; `Slot` (in `symgrad.tensor`), a
leaf's. Start reading at `run`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad import runtime
from symgrad.calculus import pullback
from symgrad.calculus.known import known_gradient
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, INPUT, STATE, constant, grad_mode
from symgrad.ops.arithmetic import add
from symgrad.ops.movement import full
from symgrad.tensor import Slot, Tensor

AGAIN = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

NO_GRAD = "element {} of tensors does not require grad and does not have a grad_fn"

SPENT = "spent"
"""Mark (`Expr.meta`) of nodes whose saved values a backward pass without retain_graph freed."""


class Hooks:
    """Autograd's attachment to an intermediate node.

    Attributes
    ----------
    pre : dict
        Tensor hooks by id, called in order with the gradient.
    retained : weak references to tensors that keep their gradient.
    spent : bool
    """

    __slots__ = ("pre", "retained", "spent")

    def __init__(self) -> None:
        self.pre: dict[int, Any] = {}
        self.retained: list[Any] = []
        self.spent = False


def hooks_of(node: Expr) -> Hooks:
    """The hooks of an intermediate node, made on first need."""
    meta = node.meta
    if not isinstance(meta, Hooks):
        spent = meta is SPENT
        meta = node.meta = Hooks()
        meta.spent = spent
    return meta


def _saves(node: Expr) -> bool:
    """Whether torch's node would keep values for its backward."""
    op = node.op
    if op.rule == "adjoint" and op.linear == "joint":
        return False
    if op.rule == "partials" and all(a.op is CONSTANT or not a.requires_grad for a in node.args[1:]):
        attrs = node.attributes()
        factors = op.partials(node, *node.args, **attrs)
        return any(
            isinstance(p, Expr) and p.op is not CONSTANT
            for a, p in zip(node.args, factors, strict=True)
            if a.requires_grad
        )
    return op.rule != "adjoint" or any(not a.op.family == "leaf" or a.requires_grad for a in node.args)


def _spent(node: Expr) -> bool:
    return node.meta is SPENT or (isinstance(node.meta, Hooks) and node.meta.spent)


def _initial(
    outputs: Sequence[Tensor], given: Sequence[Tensor | None], create_graph: bool
) -> tuple[list[Expr], list[Expr]]:
    """Output nodes and their cotangents, with torch's checks."""
    nodes: list[Expr] = []
    cotangents: list[Expr] = []
    for number, (y, g) in enumerate(zip(outputs, given, strict=True)):
        node = y.expr()
        if not node.requires_grad:
            raise RuntimeError(NO_GRAD.format(number))
        if g is None:
            if node.size != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs "
                    f"(got shape {node.shape}); pass gradient= / grad_outputs="
                )
            start = constant(1.0, node.dtype) if not node.shape else full(1.0, node.shape, node.dtype)
        else:
            if not isinstance(g, Tensor):
                raise TypeError(
                    f"gradients can be either Tensors or None, but got {type(g).__name__}"
                )
            start = g.expr()
            if start.shape != node.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{number}] has a shape of "
                    f"torch.Size({list(start.shape)}) and output[{number}] has a shape of "
                    f"torch.Size({list(node.shape)})."
                )
            if start.dtype is not node.dtype:
                raise RuntimeError(
                    f"expected grad_output[{number}] of dtype {node.dtype.name} (got "
                    f"{start.dtype.name}); convert it with .to"
                )
        nodes.append(node)
        cotangents.append(start)
    return nodes, cotangents


def run(
    outputs: Sequence[Tensor],
    given: Sequence[Tensor | None],
    inputs: Sequence[Tensor] | None,
    retain_graph: bool,
    create_graph: bool,
    accumulate: bool,
) -> list[Expr | None]:
    """Differentiate; accumulate into leaves or return the inputs' gradients.

    Parameters
    ----------
    outputs, given : sequences of Tensor
        What to differentiate, with cotangents (None for 1).
    inputs : sequence of Tensor or None
        None: every leaf that is reached.
    retain_graph, create_graph : bool
    accumulate : bool
        Whether gradients are added to `.grad` (backward) or returned (grad).
    """
    nodes, cotangents = _initial(outputs, given, create_graph)
    graph = ancestors([*nodes, *cotangents], runtime.differentiable)
    hooked = False
    leaves: list[Expr] = []
    for n in graph:
        meta = n.meta
        if meta is None:
            continue
        if isinstance(meta, weakref.ref):
            slot = meta()
            if slot is not None:
                leaves.append(n)
                hooked = hooked or bool(slot.hooks)
        elif isinstance(meta, Hooks):
            hooked = True
        if _spent(n) and _saves(n):
            raise RuntimeError(AGAIN)
    targets = leaves if inputs is None else [t.expr() for t in inputs]
    if hooked or create_graph or STATE.tracing:
        with grad_mode(create_graph):
            found = pullback(nodes, cotangents, targets, _Visitor(targets) if hooked else None)
        if not create_graph and not STATE.tracing:
            runtime.evaluate([f for f in found if f is not None])
    else:
        arrays = runtime.gradients(nodes, cotangents, targets, graph)
        found = [
            None if a is None else known_gradient(nodes, cotangents, t, a)
            for a, t in zip(arrays, targets, strict=True)
        ]
    if not retain_graph:
        _spend(graph, nodes)
    if accumulate:
        for node, gradient in zip(targets, found, strict=True):
            if gradient is not None:
                _accumulate(node, gradient, create_graph)
    return found


class _Visitor:
    """Calls tensor hooks while the pullback walks."""

    def __init__(self, targets: Sequence[Expr]) -> None:
        self.targets = {id(t) for t in targets}

    def __call__(self, node: Expr, g: Expr) -> Expr:
        meta = node.meta
        if isinstance(meta, weakref.ref):
            slot = meta()
            return run_hooks(slot.hooks, g) if slot is not None and slot.hooks else g
        if not isinstance(meta, Hooks):
            return g
        g = run_hooks(meta.pre, g)
        for reference in meta.retained:
            t = reference()
            if t is not None:
                _add_to(t.slot(), g)
        return g


def run_hooks(table: dict[int, Any], g: Expr) -> Expr:
    """Call hooks in order; each may replace the gradient."""
    for hook in list(table.values()):
        result = hook(Tensor(g))
        if result is None:
            continue
        if not isinstance(result, Tensor):
            raise TypeError(
                f"register_hook: a hook must return None or a Tensor (got {type(result).__name__})"
            )
        new = result.expr()
        if new.shape != g.shape:
            raise RuntimeError(
                f"register_hook: hook has changed the size of value (got {new.shape}, the gradient has "
                f"{g.shape}); return a tensor of the gradient's shape"
            )
        g = new
    return g


def _spend(graph: Sequence[Expr], outputs: Sequence[Expr]) -> None:
    """Mark the graph as used up and free the values that only a derivative needed."""
    kept = {id(n) for n in outputs}
    for n in graph:
        if not n.requires_grad or n.op is INPUT:
            continue
        if isinstance(n.meta, Hooks):
            n.meta.spent = True
        elif n.meta is None:
            n.meta = SPENT
        if id(n) not in kept and n.value is not None and n.op.family in ("contract", "reduce"):
            n.value = None


def _accumulate(node: Expr, gradient: Expr, create_graph: bool) -> None:
    meta = node.meta
    if isinstance(meta, weakref.ref):
        slot = meta()
        if slot is None:
            return
        _add_to(slot, gradient, create_graph)
        for hook in list((slot.accumulated or {}).values()):
            hook(slot.owner())
        return
    hooks = hooks_of(node)
    for reference in hooks.retained:
        t = reference()
        if t is not None:
            _add_to(t.slot(), gradient, create_graph)
            return


def _add_to(slot: Slot, gradient: Expr, create_graph: bool = False) -> None:
    """Add a gradient to a slot: into the same tensor, or a new one under `create_graph`."""
    old = slot.grad
    if old is None:
        slot.grad = Tensor(gradient)
        return
    before = old.expr()
    if create_graph:
        with grad_mode(True):
            slot.grad = Tensor(add(before, gradient))
        return
    with grad_mode(False):
        total = add(before, gradient)
        if before.value is not None and gradient.value is not None:
            total = Expr(INPUT, (), (), total.shape, total.dtype, False)
            total.value = np.add(runtime.array_of(before), runtime.array_of(gradient))
        old.write(total)

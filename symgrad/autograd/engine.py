"""`backward` and `grad`: who gets which gradient, when, and with which errors.

Two roads to the same numbers:

* the short one: no hooks, no `create_graph`: the structure of the graph is looked up, and value
  and gradients come out of one joint program (`symgrad.runtime.joint`); the derivative's own
  expression is made only when somebody prints it (`symgrad.calculus.known`).
* the general one (`symgrad.autograd.walk`): the derivative is built as expressions, node by node,
  calling hooks on the way; it stays lazy and differentiable.

Structures: `Hooks` (in `symgrad.autograd.hooks`), autograd's attachment to an intermediate node;
`Slot` (in `symgrad.tensor`), a leaf's. Start reading at `run`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from symgrad import runtime
from symgrad.autograd.applied import Call
from symgrad.autograd.hooks import SPENT, Hooks, history, is_spent, note_of, spend
from symgrad.autograd.memory import laid_out
from symgrad.autograd.walk import ANOMALY, RUNNING, Pass, ones_like
from symgrad.calculus.known import known_gradients
from symgrad.expr import Expr
from symgrad.locks import RenewedLock
from symgrad.op import INPUT, STATE, cast_to, grad_mode
from symgrad.ops.arithmetic import add
from symgrad.storage import Note, Part, Slot, title
from symgrad.structure import behind
from symgrad.tensor import Tensor

AGAIN = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

NO_GRAD = "element {} of tensors does not require grad and does not have a grad_fn"

_ACCUMULATING = RenewedLock()

_SAVE_NOTHING = frozenset({"mean", "sum", "nansum"})
"""Functions of torch that save no tensor, though their ops here multiply by a constant."""

PROFILING: list[Any] = []
"""Profilers at work; while there is one, passes take the general road."""


def _saves(node: Expr) -> bool:
    """Whether torch's node would keep values for its backward."""
    op = node.op
    note = note_of(node)
    if isinstance(note, Note) and note.name in _SAVE_NOTHING:
        return False
    if op.rule == "adjoint":
        return op.linear != "joint"
    if op.rule == "partials":
        factors = op.partials(node, *node.args, **node.attributes())
        return any(
            isinstance(p, Expr) for a, p in zip(node.args, factors, strict=True) if a.requires_grad
        )
    return True


def _initial(
    outputs: Sequence[Expr], given: Sequence[Tensor | None]
) -> tuple[list[Expr], list[Expr]]:
    """Output nodes and their cotangents, with torch's checks."""
    nodes: list[Expr] = []
    cotangents: list[Expr] = []
    for number, (node, g) in enumerate(zip(outputs, given)):
        if not node.requires_grad:
            raise RuntimeError(NO_GRAD.format(number))
        if g is None:
            if node.shape and node.size != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs "
                    f"(got shape {node.shape}); pass gradient= / grad_outputs="
                )
            if node.dtype.category == 3:
                raise RuntimeError(
                    "grad can be implicitly created only for real scalar outputs but got "
                    f"{node.dtype!r}; pass gradient= / grad_outputs="
                )
            start = ones_like(node)
        else:
            start = _given(number, node, g)
        nodes.append(node)
        cotangents.append(start)
    return nodes, cotangents


def _given(number: int, node: Expr, g: Any) -> Expr:
    """A cotangent that the caller gave for an output."""
    if not isinstance(g, Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(g).__name__}")
    start = g.expr()
    if start.shape != node.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{number}] has a shape of "
            f"torch.Size({list(start.shape)}) and output[{number}] has a shape of "
            f"torch.Size({list(node.shape)})."
        )
    if start.dtype is node.dtype:
        return start
    if start.dtype.is_complex != node.dtype.is_complex:
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. "
            f"Mismatch in dtype: grad_output[{number}] has a dtype of {title(start.dtype)} and "
            f"output[{number}] has a dtype of {title(node.dtype)}."
        )
    return cast_to(start, node.dtype)


def run(
    outputs: Sequence[Expr],
    given: Sequence[Tensor | None],
    inputs: Sequence[Expr] | None,
    retain_graph: bool,
    create_graph: bool,
    accumulate: Callable[[int, Expr], None] | None,
) -> list[Expr | None]:
    """Differentiate; accumulate into leaves or return the inputs' gradients.

    Parameters
    ----------
    outputs : sequence of Expr
        What to differentiate.
    given : sequence of Tensor or None
        Their cotangents; None for 1.
    inputs : sequence of Expr or None
        None: every leaf that is reached, whose `.grad` is added to.
    retain_graph, create_graph : bool
    accumulate : callable, optional
        Takes the place of an input and its gradient, when the pass has computed it.
    """
    nodes, cotangents = _initial(outputs, given)
    graph = behind([*nodes, *cotangents], True, take=True)
    if inputs is None and STATE.capture is not None:
        STATE.capture.check_backward(graph)
    general = create_graph or STATE.tracing or ANOMALY.enabled or bool(PROFILING)
    leaves: list[Expr] = []
    orphans: list[Expr] = []
    for n in graph:
        meta = n.meta
        if meta is None:
            continue
        if isinstance(meta, weakref.ref):
            slot = meta()
            if slot is None:
                orphans.append(n)
            else:
                leaves.append(n)
                general = general or bool(slot.hooks)
            continue
        if type(meta) is Note:
            spent = meta.spent
        else:
            general = general or _is_watched(meta)
            spent = is_spent(n)
        if spent and _saves(n) and n in runtime.passed(nodes):
            raise RuntimeError(AGAIN)
    own = set(leaves)
    targets = (
        leaves if inputs is None else [t if t in own else _in_graph(t, leaves) for t in inputs]
    )
    if general:
        if inputs is None:
            # Leaves that nobody holds any more get nothing, but hooks on the way to them run.
            targets = leaves + orphans
        found = _general(nodes, cotangents, targets, inputs is not None, retain_graph, create_graph)
    else:
        joint = runtime.joint(nodes, cotangents, targets, graph)
        found = known_gradients(nodes, cotangents, targets, joint.run(graph))
        if not retain_graph:
            _spend(map(graph.__getitem__, joint.spent), map(graph.__getitem__, joint.freed))
    if inputs is None:
        for node, gradient in zip(targets, found, strict=True):
            if gradient is not None:
                _accumulate(node, gradient, create_graph)
    elif accumulate is not None:
        for place, gradient in enumerate(found):
            if gradient is not None:
                accumulate(place, gradient)
    if general:
        _finish()
    return found


def _is_watched(meta: Any) -> bool:
    """Whether what is attached to a node takes part in a backward pass."""
    if isinstance(meta, Hooks):
        return meta.active()
    if isinstance(meta, Part):
        return meta.group.hooked
    return isinstance(meta, Call)


_FINISHED = threading.local()


def _finish() -> None:
    """Call what was queued for the end of the pass that just ended."""
    callbacks = getattr(_FINISHED, "callbacks", None)
    _FINISHED.callbacks = None
    for callback in callbacks or ():
        callback()


def _general(
    nodes: list[Expr],
    cotangents: list[Expr],
    targets: list[Expr],
    partial: bool,
    retain_graph: bool,
    create_graph: bool,
) -> list[Expr | None]:
    work = Pass(partial, lambda t, g: add_to(t.slot(), g, create_graph))
    with grad_mode(create_graph):
        found = work.run(nodes, cotangents, targets)
    if not create_graph and not STATE.tracing:
        runtime.evaluate([f for f in found if f is not None])
    if not retain_graph:
        spent = runtime.passed(nodes)
        _spend(spent, runtime.freed(spent, nodes))
    _FINISHED.callbacks = work.callbacks
    return found


def _in_graph(target: Expr, leaves: Sequence[Expr]) -> Expr:
    """The node to differentiate with respect to: a leaf whose value was changed is still itself."""
    target = history(target)
    meta = target.meta
    if target.op is not INPUT or not isinstance(meta, weakref.ref):
        return target
    slot = meta()
    for n in leaves:
        if n.meta() is slot:
            return n
    return target


def queue_callback(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward pass that runs now has ended."""
    if not RUNNING.passes:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    RUNNING.passes[-1].callbacks.append(callback)


def _spend(spent: Iterable[Expr], freed: Iterable[Expr]) -> None:
    """Mark nodes as used up and free the values that only a derivative needed."""
    for n in spent:
        if n.meta is None:
            n.meta = SPENT
        else:
            spend(n)
    for n in freed:
        n.value = None


def _accumulate(node: Expr, gradient: Expr, create_graph: bool) -> None:
    """Add to a leaf's `.grad` and call the hooks that wait for it."""
    slot = node.meta()
    if slot is None:
        return
    add_to(slot, gradient, create_graph)
    for hook in list((slot.accumulated or {}).values()):
        hook(slot.owner())


def add_to(slot: Slot, gradient: Expr, create_graph: bool = False) -> None:
    """Add a gradient to a slot: into the same tensor, or a new one under `create_graph`."""
    with _ACCUMULATING:
        old = slot.grad
        if old is None:
            slot.grad = laid_out(gradient, slot.owner())
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


__all__ = ["AGAIN", "Part", "add_to", "queue_callback", "run"]

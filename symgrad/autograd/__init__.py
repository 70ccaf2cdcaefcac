"""torch.autograd's surface. Start reading at `backward` and `grad`, then `symgrad.autograd.engine`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from symgrad.autograd import (
    anomaly,
    checkpoint,
    engine,
    forward_ad,
    function,
    functional,
    graph,
    memory,
    profiler,
    variable,
)
from symgrad.autograd.anomaly import detect_anomaly, set_detect_anomaly
from symgrad.autograd.function import Function
from symgrad.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from symgrad.autograd.gradcheck import gradcheck, gradgradcheck
from symgrad.autograd.memory import _unsafe_preserve_version_counter
from symgrad.autograd.variable import Variable
from symgrad.calculus.batching import batched, with_batch
from symgrad.expr import Expr
from symgrad.op import STATE, grad_mode, input_node
from symgrad.ops.movement import full
from symgrad.tensor import Tensor

__all__ = [
    "Function",
    "Variable",
    "_unsafe_preserve_version_counter",
    "anomaly",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "profiler",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
    "variable",
]

Tensors = Tensor | Sequence[Tensor]


_SINGLE = (Tensor, graph.GradientEdge, type(None))


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, _SINGLE) else list(value)


def _nodes(listed: Sequence[Any]) -> list[Expr]:
    return [t.expr() if isinstance(t, Tensor) else graph.target_of(t) for t in listed]


def _cotangents(given: Any, count: int, what: str) -> list[Any]:
    if given is None:
        return [None] * count
    found = _listed(given)
    if len(found) != count:
        raise RuntimeError(
            f"got {count} tensors and {len(found)} gradients ({what}); give one gradient per tensor"
        )
    return found


def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of tensors to the `.grad` of leaves.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
        What to differentiate.
    grad_tensors : Tensor or sequence, optional
        Cotangents; may be left out for tensors of one element.
    retain_graph : bool, optional
        Keep the graph for another pass; defaults to `create_graph`.
    create_graph : bool
        Record the derivative, so that it can be differentiated again.
    inputs : Tensor or sequence of Tensor, optional
        Accumulate only into these.

    Raises
    ------
    RuntimeError
        For a tensor without history, a missing cotangent, a graph that was already used up.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor([1., 2.], requires_grad=True)
    >>> sg.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    listed = _listed(tensors)
    if grad_variables is not None:
        warnings.warn(
            "`grad_variables` is deprecated. Use `grad_tensors` instead.",
            FutureWarning,
            stacklevel=2,
        )
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to `backward()`. "
                "Please only use `grad_tensors`."
            )
        grad_tensors = grad_variables
    given = _cotangents(grad_tensors, len(listed), "backward")
    keep = create_graph if retain_graph is None else retain_graph
    nodes = _nodes(listed)
    if inputs is None:
        engine.run(nodes, given, None, keep, create_graph, None)
        return
    wanted = _listed(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    targets = _nodes(wanted)
    if not all(n.requires_grad for n in targets):
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")

    def accumulate(place: int, gradient: Any) -> None:
        t = wanted[place]
        if not isinstance(t, Tensor):
            t = graph.handle_of(targets[place])
        slot = t.slot()
        engine.add_to(slot, gradient, create_graph)
        for hook in list((slot.accumulated or {}).values()):
            hook(t)

    engine.run(nodes, given, targets, keep, create_graph, accumulate)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients of outputs with respect to inputs, as a tuple.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor or sequence, optional
        Cotangents of the outputs; with `is_grads_batched` with a leading batch axis.
    retain_graph, create_graph : bool
        As for `backward`.
    allow_unused : bool, optional
        Give None for inputs that were not used, instead of an error.
    is_grads_batched : bool
        Differentiate once for each element of the leading axis of `grad_outputs`.
    materialize_grads : bool
        Give zeros for inputs that were not used.

    Returns
    -------
    tuple of Tensor

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor(3., requires_grad=True)
    >>> (g,) = sg.autograd.grad(x ** 2, x, create_graph=True)
    >>> g, sg.autograd.grad(g, x)[0]
    (tensor(6., grad_fn=<MulBackward0>), tensor(2.))
    """
    listed, wanted = _listed(outputs), _listed(inputs)
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate "
            "gradient for other parts of the graph, please use torch.autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    if allow_unused is False and materialize_grads:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, "
            "but got: allow_unused=False."
        )
    unused_fine = bool(allow_unused) or materialize_grads
    if is_grads_batched:
        return _batched(listed, wanted, grad_outputs, create_graph, unused_fine, materialize_grads)
    given = _cotangents(grad_outputs, len(listed), "grad")
    targets = _nodes(wanted)
    for target in targets:
        if not target.requires_grad:
            raise RuntimeError(
                "One of the differentiated Tensors does not require grad "
                f"(inputs[{targets.index(target)}]); call requires_grad_() on it before it is used"
            )
    keep = create_graph if retain_graph is None else retain_graph
    nodes = _nodes(listed)
    found = engine.run(nodes, given, targets, keep, create_graph, None)
    results: list[Any] = []
    for target, node in zip(targets, found, strict=True):
        if node is not None:
            results.append(Tensor(node) if grad_outputs is None else _handed_back(node, given))
        elif materialize_grads:
            zeros = Tensor(full(0.0, target.shape, target.dtype))
            results.append(zeros.requires_grad_() if create_graph else zeros)
        elif unused_fine:
            results.append(None)
        else:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(results)


def _handed_back(node: Expr, given: Sequence[Tensor | None]) -> Tensor:
    """The tensor of a gradient: a cotangent that the pullback gave back as it was, memory and all."""
    if node.value is not None and not node.requires_grad:
        for g in given:
            if g is not None and g.expr().value is node.value:
                return g.detach()
    return Tensor(node)


def _batched(
    outputs: list[Tensor],
    inputs: list[Tensor],
    grad_outputs: Any,
    create_graph: bool,
    unused_fine: bool,
    materialize: bool,
) -> tuple[Tensor, ...]:
    """Gradients for all elements of the cotangents' leading axis, as one batched graph."""
    given = [g.expr() for g in _cotangents(grad_outputs, len(outputs), "grad")]
    nodes = [y.expr() for y in outputs]
    for number, (y, g) in enumerate(zip(nodes, given, strict=True)):
        if not g.shape or g.shape[1:] != y.shape or g.shape[0] != given[0].shape[0]:
            raise RuntimeError(
                f"If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the "
                f"batch dimension (got grad_output[{number}] of shape {g.shape} for an output of shape "
                f"{y.shape}); give one more leading axis, of one size"
            )
    cotangents = [input_node(y.shape, g.dtype) for y, g in zip(nodes, given, strict=True)]
    rows = [Tensor(c) for c in cotangents]
    before, STATE.tracing = STATE.tracing, True
    try:
        found = grad(
            outputs, inputs, rows, True, create_graph,
            allow_unused=unused_fine, materialize_grads=materialize,
        )  # fmt: skip
    finally:
        STATE.tracing = before
    present = [t.expr() for t in found if t is not None]
    with grad_mode(create_graph):
        made = batched(present, cotangents, given)
        whole = iter(
            [
                b if b.ndim > p.ndim else with_batch(b, given[0].shape[0])
                for b, p in zip(made, present, strict=True)
            ]
        )
    return tuple([None if t is None else Tensor(next(whole)) for t in found])


def _backward_method(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add this tensor's gradients to the `.grad` of leaves; see `symgrad.autograd.backward`."""
    backward(self, gradient, retain_graph, create_graph, inputs=inputs)


Tensor.backward = _backward_method
graph.attach()
memory.attach()
checkpoint.publish()

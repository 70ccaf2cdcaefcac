"""The body of a loop: a graph from placeholders to results, closed and shared.

One structure, `Body`. Equal bodies are one object, so a body can be an attribute of a node: the
identity of the object says whether two loops compute the same. What a body uses from outside comes
through placeholders of its own; only fixed numbers stay inside. Start reading at `closed_body`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from symgrad.expr import Expr, ancestors
from symgrad.locks import RenewedLock
from symgrad.op import CONSTANT, INPUT, constant, input_node

Spec = tuple[Any, ...]
"""A body as plain data: the placeholders' shapes and dtypes, the nodes, the results' places."""

_BODIES: WeakValueDictionary[Spec, Body] = WeakValueDictionary()
_LOCK = RenewedLock()


class Body:
    """A closed graph.

    Attributes
    ----------
    inputs : tuple of Expr
        Placeholders; those of floating dtype require grad.
    outputs : tuple of Expr
    nodes : tuple of Expr
        Everything behind the outputs, arguments before users, without the placeholders.
    spec : tuple
        The body as plain data.
    derived : dict
        Bodies made of this one by calculus, by what was asked for.
    """

    __slots__ = ("__weakref__", "derived", "inputs", "nodes", "outputs", "spec")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        shapes, steps, places = spec
        made: list[Expr] = [input_node(s, d, grad=d.category >= 2) for s, d in shapes]
        self.inputs = tuple(made)
        for op, args, attrs, shape, dtype, requires_grad in steps:
            if op is CONSTANT:
                made.append(constant(attrs[0], dtype, fixed=True))
            else:
                inner = tuple([made[k] for k in args])
                made.append(Expr(op, inner, attrs, shape, dtype, requires_grad))
        self.nodes = tuple(made[len(shapes) :])
        self.outputs = tuple([made[k] for k in places])
        self.derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<body of {len(self.nodes)} nodes, {len(self.inputs)} in, {len(self.outputs)} out>"

    def __reduce__(self) -> tuple[object, tuple[Spec]]:
        return shared_body, (self.spec,)

    def evaluate(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs by the ops' NumPy references.

        Parameters
        ----------
        arrays : sequence of ndarray
            One per placeholder.
        """
        values: dict[int, Any] = {id(x): a for x, a in zip(self.inputs, arrays, strict=True)}
        for n in self.nodes:
            if n.op is CONSTANT:
                values[id(n)] = np.array(n.value, n.dtype.numpy)
            else:
                made = n.op.ref(*[values[id(a)] for a in n.args], **n.attributes())
                values[id(n)] = np.asarray(made, n.dtype.numpy)
        return [np.broadcast_to(values[id(y)], y.shape) for y in self.outputs]


def shared_body(spec: Spec) -> Body:
    """The one body with this data."""
    with _LOCK:
        found = _BODIES.get(spec)
        if found is None:
            found = _BODIES[spec] = Body(spec)
        return found


def _is_closed(node: Expr) -> bool:
    """Whether a node without arguments is the same wherever it stands."""
    return (node.op is CONSTANT and node.attrs[0] is not None) or node.op.family == "create"


def closed_body(
    inputs: Sequence[Expr], outputs: Sequence[Expr], within: Container[int] | None = None
) -> tuple[Body, list[Expr]]:
    """The body that computes `outputs` from `inputs`, and what it needs besides.

    Parameters
    ----------
    inputs : sequence of Expr
        Nodes that the body's placeholders stand for.
    outputs : sequence of Expr
        What does not depend on an input is computed outside, once.
    within : container of int, optional
        Nodes by ``id`` that the body may compute, with a value or without. By default those without:
        inputs are then to be nodes that nothing outside depends on.

    Returns
    -------
    body : Body
        Its placeholders are `inputs`, then one for each further node.
    outside : list of Expr
        These further nodes.
    """
    mine = {id(x) for x in inputs}

    def is_inner(n: Expr) -> bool:
        if id(n) in mine:
            return False
        return n.value is None if within is None else id(n) in within

    nodes = ancestors(outputs, is_inner)
    # Per node: whether it depends on an input, whether on anything from outside.
    varies: dict[int, bool] = {}
    closed: dict[int, bool] = {}
    for n in nodes:
        inside = id(n) in mine
        into = n.args if is_inner(n) else ()
        varies[id(n)] = inside or any(varies[id(a)] for a in into)
        alone = _is_closed(n) if not into else all(closed[id(a)] for a in into)
        closed[id(n)] = alone and not inside and n.op is not INPUT
    place = {id(x): k for k, x in enumerate(inputs)}
    outside: list[Expr] = []
    for n in nodes:
        if varies[id(n)] and id(n) not in mine:
            for a in n.args:
                _note(a, varies, closed, place, outside)
    for y in outputs:
        _note(y, varies, closed, place, outside)
    steps: list[Spec] = []
    for n in nodes:
        if id(n) in place or not (varies[id(n)] or closed[id(n)]):
            continue
        if n.op.family in ("leaf", "alias") and len(n.args) == 1 and not n.attrs:
            # Aliases that cut no derivative matter to the tape alone.
            if n.requires_grad or not n.args[0].requires_grad:
                place[id(n)] = place[id(n.args[0])]
                continue
        if n.op.annotates:
            place[id(n)] = place[id(n.args[0])]
            continue
        place[id(n)] = len(inputs) + len(outside) + len(steps)
        links = tuple([place[id(a)] for a in n.args]) if n.op is not CONSTANT else ()
        steps.append((n.op, links, n.attrs, n.shape, n.dtype, n.requires_grad))
    shapes = tuple([(x.shape, x.dtype) for x in (*inputs, *outside)])
    spec = (shapes, tuple(steps), tuple([place[id(y)] for y in outputs]))
    return shared_body(spec), outside


def _note(
    a: Expr,
    varies: dict[int, bool],
    closed: dict[int, bool],
    place: dict[int, int],
    outside: list[Expr],
) -> None:
    """Give a node that a body needs and does not compute a placeholder."""
    if not varies[id(a)] and not closed[id(a)] and id(a) not in place:
        place[id(a)] = len(place)
        outside.append(a)

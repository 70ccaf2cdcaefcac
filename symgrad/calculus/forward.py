"""Forward mode: from tangents of inputs to tangents of outputs, as expressions.

The same rules as in reverse mode: partials and selections multiply tangents, linear maps apply
to them, and the tangent of a `vjp` rule is the transpose of its pullback, derived by pulling
back through the pullback. Start reading at `pushforward`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgrad.calculus.reverse import pullback, scale
from symgrad.expr import Expr, ancestors
from symgrad.op import grad_mode, input_node, interning
from symgrad.ops.arithmetic import add, keep
from symgrad.ops.movement import expand, full


def spread(t: Expr, shape: tuple[int, ...]) -> Expr:
    """`t` broadcast to a shape."""
    return t if t.shape == shape else expand(t, shape)


def _elementwise(node: Expr, tangents: Sequence[Expr | None]) -> Expr | None:
    op = node.op
    attrs = node.attributes()
    total: Expr | None = None
    if op.rule == "partials":
        factors = op.partials(node, *node.args, **attrs)
        parts = [
            None if t is None or p is None else scale(t, p)
            for t, p in zip(tangents, factors, strict=True)
        ]
    else:
        choices = op.select(node, *node.args, **attrs)
        parts = [
            None if t is None or c is None else keep(c[0], scale(t, c[1]))
            for t, c in zip(tangents, choices, strict=True)
        ]
    for part in parts:
        if part is not None:
            total = part if total is None else add(total, part)
    return None if total is None else spread(total, node.shape)


def applied(node: Expr, tangents: Sequence[Expr | None]) -> Expr:
    """The tangent of a linear rule: the op on the tangents, of which there is at least one."""
    op = node.op
    attrs = node.attributes()
    if op.linear == "each":
        total: Expr | None = None
        for place, t in enumerate(tangents):
            if t is not None:
                args = [t if k == place else a for k, a in enumerate(node.args)]
                part = op(*args, **attrs)
                total = part if total is None else add(total, part)
        assert total is not None
        return total
    args = []
    for a, t in zip(node.args, tangents, strict=True):
        if t is not None:
            args.append(t)
        elif a.dtype.category >= 2 and op.family != "index":
            args.append(full(0.0, a.shape, a.dtype))
        else:
            args.append(a)
    return op(*args, **attrs)


def transposed(node: Expr, tangents: Sequence[Expr | None]) -> Expr | None:
    """The tangent of a `vjp` rule: transpose, in g, of its linear pullback."""
    with grad_mode(True):
        probe = input_node(node.shape, node.dtype, grad=True)
        pulled = node.op.vjp(probe, node, *node.args, **node.attributes())
    pairs = [
        (p, t) for p, t in zip(pulled, tangents, strict=True) if p is not None and t is not None
    ]
    if not pairs:
        return None
    (result,) = pullback([p for p, _ in pairs], [t for _, t in pairs], [probe])
    return result


def tangent_of(node: Expr, along: Sequence[Expr | None]) -> Expr | None:
    """The tangent of a node from those of its arguments, of which there is at least one."""
    if node.op.rule in ("partials", "select"):
        return _elementwise(node, along)
    if node.op.family == "region":
        return node.op.pushed(node, along)  # type: ignore[attr-defined, no-any-return]
    if node.op.rule == "vjp":
        return transposed(node, along)
    return applied(node, along)


def pushforward(
    outputs: Sequence[Expr], inputs: Sequence[Expr], tangents: Sequence[Expr]
) -> list[Expr | None]:
    """Tangents of `outputs` when `inputs` move by `tangents`.

    Parameters
    ----------
    outputs : sequence of Expr
    inputs, tangents : sequences of Expr
        Pairs of equal shape and dtype.

    Returns
    -------
    list of Expr or None
        None where the output does not depend on any input.
    """
    moved: dict[int, Expr] = {id(n): t for n, t in zip(inputs, tangents, strict=True)}
    nodes = ancestors(outputs, lambda n: id(n) not in moved and n.op.family != "leaf")
    with interning(nodes):
        for node in nodes:
            if id(node) in moved or not node.op.differentiable or node.dtype.category < 2:
                continue
            along = [moved.get(id(a)) for a in node.args]
            if all(t is None for t in along):
                continue
            tangent = tangent_of(node, along)
            if tangent is not None:
                moved[id(node)] = tangent
    return [moved.get(id(n)) for n in outputs]

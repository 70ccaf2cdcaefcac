"""Reverse mode: from cotangents of outputs to cotangents of inputs, as expressions.

One function, `pullback`, walks the graph once in descending creation order. It knows the kinds
of derivative rule, never an op by name; the only op it builds with a meaning of its own is
`keep`, the strong zero. A cotangent of the form ``keep(c, g)`` stays so through products and
through movements that do not add elements, so ``0 * inf`` never arises from a branch that was
not taken, at any order. Results of one loop pass their cotangents on together. Gradients of complex nodes follow torch: factors are conjugated. Start reading at `pullback`, then `contributions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from symgrad.calculus.cotangent import Held, put, taken
from symgrad.calculus.powers import Power, powers_among
from symgrad.expr import Expr, ancestors
from symgrad.op import interning
from symgrad.ops.arithmetic import keep, mul, neg
from symgrad.ops.complex_numbers import conj
from symgrad.ops.reduce import sum_to


class Shortcut(Protocol):
    """What is known of a pass beforehand (`symgrad.calculus.successive`)."""

    def passes(self, node: Expr, g: Expr, held: Held) -> bool:
        """Whether the node's cotangent was passed right on to the input."""
        ...

    def marked(self, gradient: Expr | None) -> Expr | None:
        """The gradient of the one input, with what it is noted on it."""
        ...


def scale(g: Expr, factor: Expr | float) -> Expr:
    """g * factor, with a selection in `g` kept outermost."""
    if not isinstance(factor, Expr):
        if factor == 1.0:
            return g
        if factor == -1.0:
            return through(neg, g)
    if g.op is keep:
        condition, inner = g.args
        return keep(condition, scale(inner, factor))  # type: ignore[no-any-return]
    return mul(g, factor)  # type: ignore[no-any-return]


def conjugate(factor: Expr | float) -> Expr | float:
    """The factor that a cotangent is multiplied by: the conjugate where it is complex."""
    if isinstance(factor, Expr) and factor.dtype.category == 3:
        return conj(factor)  # type: ignore[no-any-return]
    return factor


def through(linear: Callable[[Expr], Expr], g: Expr) -> Expr:
    """An elementwise linear map applied under the selections of `g`."""
    if g.op is keep:
        condition, inner = g.args
        return keep(condition, through(linear, inner))  # type: ignore[no-any-return]
    return linear(g)


def contributions(node: Expr, g: Expr, power: Power | None = None) -> Sequence[Expr | None]:
    """The cotangents that `node` with cotangent `g` passes to its arguments.

    If it is known as a `power`, only its base gets any.
    """
    op = node.op
    if power is not None:
        return [
            scale(scale(g, below), float(power.exponent)) if a is power.base else None
            for a, below in zip(node.args, node.args[::-1], strict=True)
        ]
    attrs = dict(zip(op.attributes, node.attrs, strict=True)) if node.attrs else {}
    rule = op.rule
    if rule == "partials":
        result: list[Expr | None] = []
        for a, p in zip(node.args, op.partials(node, *node.args, **attrs), strict=True):
            if p is None or not a.requires_grad:
                result.append(None)
            else:
                result.append(sum_to(scale(g, conjugate(p)), a.shape))
        return result
    if rule == "select":
        result = []
        for a, choice in zip(node.args, op.select(node, *node.args, **attrs), strict=True):
            if choice is None or not a.requires_grad:
                result.append(None)
            else:
                mask, weight = choice
                result.append(sum_to(keep(mask, scale(g, conjugate(weight))), a.shape))
        return result
    if rule == "vjp":
        return op.vjp(g, node, *node.args, **attrs)
    if op.injective and g.op is keep:
        condition, inner = g.args
        moved = op.adjoint(inner, *node.args, **attrs)
        masks = op.adjoint(condition, *node.args, **attrs)
        return [None if m is None else keep(c, m) for c, m in zip(masks, moved, strict=True)]
    args = node.args
    if op.linear == "each" and node.dtype.category == 3:
        args = tuple([conj(a) for a in args])
    passed = op.adjoint(g, *args, **attrs)
    if op.family == "elementwise":
        return [
            None if p is None else sum_to(p, a.shape)
            for a, p in zip(node.args, passed, strict=True)
        ]
    return passed


def pullback(
    outputs: Sequence[Expr],
    cotangents: Sequence[Expr],
    inputs: Sequence[Expr],
    shortcut: Callable[[Sequence[Expr], Sequence[Expr]], Shortcut] | None = None,
) -> list[Expr | None]:
    """Cotangents of `inputs`.

    Parameters
    ----------
    outputs, cotangents : sequences of Expr
        Pairs of equal shape and dtype; an output may occur several times.
    inputs : sequence of Expr
        Leaves or intermediate nodes.
    shortcut : callable, optional
        Takes the nodes on the way and the inputs; gives what is known of the pass beforehand.

    Returns
    -------
    list of Expr or None
        None where no path leads from the outputs to the input: a structural zero.
    """
    nodes = ancestors(outputs, differentiable)
    wanted = {id(n) for n in inputs}
    needed = needed_of(nodes, wanted)
    held: Held = {}
    done: dict[int, Expr] = {}
    together: list[tuple[Expr, Expr]] = []
    known = None if shortcut is None else shortcut(nodes, inputs)
    powers = powers_among(nodes, wanted)
    with interning(nodes):
        for y, g in zip(outputs, cotangents, strict=True):
            if id(y) in needed:
                put(held, id(y), g)
        for place in range(len(nodes) - 1, -1, -1):
            node = nodes[place]
            g_node = taken(held, id(node))
            if g_node is not None and id(node) in wanted:
                done[id(node)] = g_node
            if not differentiable(node) or not any(id(a) in needed for a in node.args):
                continue
            if node.op.family == "region":
                if g_node is not None:
                    together.append((node, g_node))
                if not together or siblings_follow(nodes, place):
                    continue
                parts = joint_contributions(together)
                together = []
            elif g_node is None or (known is not None and known.passes(node, g_node, held)):
                continue
            else:
                parts = contributions(node, g_node, powers.get(id(node)))
            for a, part in zip(node.args, parts, strict=True):
                if part is None or id(a) not in needed:
                    continue
                put(held, id(a), part)
    found = [done.get(id(n)) for n in inputs]
    return found if known is None else [known.marked(g) for g in found]


def differentiable(node: Expr) -> bool:
    """Whether derivatives go on from `node` to its arguments."""
    return node.requires_grad and node.op.family != "leaf"


def needed_of(nodes: Sequence[Expr], wanted: set[int]) -> set[int]:
    """Which nodes, arguments first, lie on a path to the wanted ones, these included."""
    needed: set[int] = set()
    for n in nodes:
        on_path = differentiable(n) and any(id(a) in needed for a in n.args)
        if on_path or id(n) in wanted:
            needed.add(id(n))
    return needed


def siblings_follow(nodes: Sequence[Expr], place: int) -> bool:
    """Whether the node before this one is a result of the same run of a loop.

    Such results are made one after the other, so what uses any of them comes after all of them.
    """
    if not place:
        return False
    x, y = nodes[place], nodes[place - 1]
    return x.op is y.op and x.args == y.args and x.attrs[:-1] == y.attrs[:-1]


def joint_contributions(pairs: Sequence[tuple[Expr, Expr]]) -> Sequence[Expr | None]:
    """The cotangents that results of one run with their cotangents pass to its arguments."""
    if len(pairs) == 1:
        return contributions(*pairs[0])
    return pairs[0][0].op.pulled(pairs)  # type: ignore[attr-defined]

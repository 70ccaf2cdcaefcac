"""A gradient that is known by value, and the expression behind it.

`KNOWN` nodes hold the value of a gradient together with what it is the gradient of; the
expression is built only when a formula is printed. Start reading at `expanded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgrad.calculus.successive import pullback
from symgrad.expr import Expr, ancestors
from symgrad.op import REGISTRY, Leaf, record


class _Known(Leaf):
    """A gradient by value: arguments are outputs, as many cotangents, and the input."""

    name = "known"


KNOWN = _Known()
REGISTRY["known"] = KNOWN


def known_gradients(
    outputs: Sequence[Expr],
    cotangents: Sequence[Expr],
    sources: Sequence[Expr],
    values: Sequence[Any],
) -> list[Expr | None]:
    """The nodes of gradients with respect to `sources` whose values are at hand; None for None."""
    found: list[Expr | None] = []
    for x, value in zip(sources, values):
        known = None
        if value is not None:
            known = Expr(KNOWN, (*outputs, *cotangents, x), (), x.shape, x.dtype, False, value)
        found.append(known)
    return found


def expanded(root: Expr) -> Expr:
    """`root` with every known gradient replaced by its expression, for reading.

    Parameters
    ----------
    root : Expr

    Returns
    -------
    Expr
        An equal expression without known gradients; `root` itself if there are none.
    """
    nodes = ancestors([root], lambda n: n.op is not KNOWN)
    if all(n.op is not KNOWN for n in nodes):
        return root
    new: dict[int, Expr] = {}
    for n in nodes:
        if n.op is KNOWN:
            *given, x = n.args
            half = len(given) // 2
            (made,) = pullback(given[:half], given[half:], [x])
            new[id(n)] = n if made is None else made
        elif any(new[id(a)] is not a for a in n.args):
            args = tuple(new[id(a)] for a in n.args)
            new[id(n)] = record(n.op, args, n.attrs, n.shape, n.dtype)
        else:
            new[id(n)] = n
    return new[id(root)]

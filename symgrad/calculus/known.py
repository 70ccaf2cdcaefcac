"""A gradient that is known by value, and the expression behind it.

`KNOWN` nodes hold the value of a gradient together with what it is the gradient of; the
expression is built only when a formula is printed. Start reading at `expanded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgrad.calculus.reverse import pullback
from symgrad.expr import Expr, ancestors
from symgrad.op import REGISTRY, Leaf, record


class _Known(Leaf):
    """A gradient by value: arguments are pairs of output and cotangent, then the input."""

    name = "known"


KNOWN = _Known()
REGISTRY["known"] = KNOWN


def known_gradient(
    outputs: Sequence[Expr], cotangents: Sequence[Expr], source: Expr, value: Any
) -> Expr:
    """The node of a gradient with respect to `source` whose value is at hand."""
    pairs = [x for pair in zip(outputs, cotangents, strict=True) for x in pair]
    return Expr(KNOWN, (*pairs, source), (), source.shape, source.dtype, False, value)


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
            outputs, cotangents = n.args[:-1:2], n.args[1:-1:2]
            (made,) = pullback(outputs, cotangents, [n.args[-1]])
            new[id(n)] = n if made is None else made
        elif any(new[id(a)] is not a for a in n.args):
            args = tuple(new[id(a)] for a in n.args)
            new[id(n)] = record(n.op, args, n.attrs, n.shape, n.dtype)
        else:
            new[id(n)] = n
    return new[id(root)]

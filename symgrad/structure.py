"""Structures: the nodes behind some roots, and all of them that decides the code.

* `behind`: which nodes belong to a structure, in creation order.
* `Structure`: its key (ops, attributes, dtypes, shapes, how arguments connect, which nodes have
  values; no numbers unless they are compiled in), and which of its values somebody waits for.

This runs at every look and every backward pass, before a known program is found, so each of the
two walks over the nodes is one plain loop. Start reading at `Structure`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from symgrad.dtypes import float64
from symgrad.expr import Expr
from symgrad.op import CONSTANT, INPUT


def behind(roots: Iterable[Expr], through: bool, take: bool = False) -> list[Expr]:
    """The nodes of a structure, in creation order.

    Parameters
    ----------
    roots : iterable of Expr
    through : bool
        Whether it goes on behind computed nodes that derivatives flow through.
    take : bool
        Whether small slices of known values get theirs at once.
    """
    found: dict[int, Expr] = {}
    stack = list(roots)
    while stack:
        n = stack.pop()
        serial = n.serial
        if serial not in found:
            found[serial] = n
            if n.value is None:
                if take and n.op.stacked is not None and _taken(n):
                    continue
                stack += n.args
            elif through and n.requires_grad and n.op is not INPUT:
                stack += n.args
    return [found[serial] for serial in sorted(found)]


TAKEN_BYTES = 1 << 16
"""Up to this size a slice of a known value is copied at once."""


def _taken(n: Expr) -> bool:
    """Give a slice of a known value its own, if it is small and no derivative passes it.

    Where it begins would else decide the code: each row of a table, each batch of a data set would
    be scheduled anew.
    """
    source = n.args[0].value if n.args else None
    if not isinstance(source, np.ndarray) or n.requires_grad:
        return False
    if n.size * n.dtype.itemsize > TAKEN_BYTES:
        return False
    n.value = np.array(n.op.ref(source, **n.attributes()), n.dtype.numpy, order="C")
    return True


class Structure:
    """One pass over the nodes of a structure.

    Parameters
    ----------
    nodes : list of Expr
        As `behind` gives them.
    through : bool
        As for `behind`.

    Attributes
    ----------
    place : dict of int to int
        Position of each node, by its creation number.
    parts : tuple
        What decides the code: a tuple for each node, then the positions of all arguments in turn.
    uses : list of int
        How many references to each node come from the structure itself.
    pending : list of int
        Positions of nodes that are still to be computed and worth a buffer.
    """

    __slots__ = ("nodes", "parts", "pending", "place", "uses")

    def __init__(self, nodes: list[Expr], through: bool) -> None:
        self.nodes = nodes
        place: dict[int, int] = {}
        uses = [0] * len(nodes)
        parts: list[Any] = []
        links: list[int] = []
        pending: list[int] = []
        for number, n in enumerate(nodes):
            place[n.serial] = number
            op = n.op
            if op is CONSTANT:
                parts.append((n.attrs, n.dtype))
                continue
            args = n.args
            waits = n.value is None
            if args and (waits or (through and n.requires_grad and op is not INPUT)):
                parts.append((op, n.attrs, n.shape, n.dtype, n.requires_grad, waits, len(args)))
                for a in args:
                    k = place[a.serial]
                    uses[k] += 1
                    links.append(k)
                if waits and op.family != "movement":
                    pending.append(number)
            elif waits:
                parts.append((n.dtype, n.shape, op, n.attrs))
            else:
                parts.append((n.dtype, n.shape, n.requires_grad))
        parts += links
        self.place = place
        self.parts = tuple(parts)
        self.uses = uses
        self.pending = pending

    def held(self, roots: Sequence[Expr]) -> tuple[int, ...]:
        """Positions of pending nodes, roots left out, that something besides the structure refers to.

        A node's reference count beyond its uses in the structure shows a holder: a tensor in the
        user's hands, or another pending graph. Their values are worth storing.
        """
        nodes, uses = self.nodes, self.uses
        found = []
        for k in self.pending:
            if getrefcount(nodes[k]) > uses[k] + _OWN_REFERENCES and nodes[k] not in roots:
                found.append(k)
        return tuple(found)


# What `held` counts for a node that only its list refers to.
_OWN_REFERENCES = next(getrefcount(nodes[0]) for nodes in [[Expr(INPUT, (), (), (), float64)]])

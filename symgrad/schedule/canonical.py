"""From recorded nodes to a canonical graph: one node per distinct computation.

Two structures: `Node`, a vertex of the canonical graph, and `Graph`, its nodes in topological
order, its inputs and roots. Recorded nodes keep their identity for autograd; here equal
computations merge, aliases vanish and unused work is gone. Nothing is reassociated or folded:
the values are those of the program as written. Start reading at `canonical`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgrad.dtypes import DType
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, Op


class Node:
    """A vertex of the canonical graph.

    Attributes
    ----------
    op : Op
    args : tuple of Node
    attrs : tuple
    shape, dtype
    input : int
        Position among the graph's inputs, -1 for a computed node.
    users : int
        How many nodes and roots use it.
    number : int
        Position in topological order.
    """

    __slots__ = ("args", "attrs", "dtype", "input", "number", "op", "shape", "users")

    def __init__(
        self,
        op: Op,
        args: tuple[Node, ...],
        attrs: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: DType,
        number: int,
    ) -> None:
        self.op = op
        self.args = args
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.number = number
        self.input = -1
        self.users = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(zip(self.op.attributes, self.attrs, strict=True))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"%{self.number} = {self.op.name}({', '.join(f'%{a.number}' for a in self.args)})"


class Graph:
    """A canonical graph.

    Attributes
    ----------
    nodes : list of Node
        Arguments before users.
    inputs : list of Expr
        The recorded nodes whose values come from outside, by input position.
    roots : list of Node
    of : dict of int to Node
        The vertex of each recorded node, by ``id``.
    """

    def __init__(
        self, nodes: list[Node], inputs: list[Expr], roots: list[Node], of: dict[int, Node]
    ) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.roots = roots
        self.of = of


def _pending(node: Expr) -> bool:
    return node.value is None


def canonical(roots: Sequence[Expr]) -> Graph:
    """Merge equal computations.

    Parameters
    ----------
    roots : sequence of Expr
        Nodes to compute.
    """
    merged: dict[Any, Node] = {}
    of: dict[int, Node] = {}
    inputs: list[Expr] = []
    nodes: list[Node] = []
    for e in ancestors(roots, _pending):
        fixed = e.op is CONSTANT and e.attrs[0] is not None
        if e.value is None and e.op.family in ("leaf", "alias") and e.args:
            of[id(e)] = of[id(e.args[0])]
            continue
        if fixed:
            key: Any = (CONSTANT, e.dtype, e.attrs)
        elif e.value is not None or e.op.family == "leaf":
            key = id(e)
        else:
            key = (e.op, e.attrs, e.dtype, e.shape, *[of[id(a)].number for a in e.args])
        node = merged.get(key)
        if node is None:
            if fixed or not isinstance(key, int):
                args = tuple(of[id(a)] for a in e.args)
                node = Node(e.op, args, e.attrs, e.shape, e.dtype, len(nodes))
            else:
                node = Node(e.op, (), (), e.shape, e.dtype, len(nodes))
                node.input = len(inputs)
                inputs.append(e)
            merged[key] = node
            nodes.append(node)
        of[id(e)] = node
    result = _without_unused(Graph(nodes, inputs, [of[id(r)] for r in roots], of))
    nodes = result.nodes
    for n in nodes:
        for a in n.args:
            a.users += 1
    for n in result.roots:
        n.users += 1
    return result


def _without_unused(graph: Graph) -> Graph:
    """The part that the roots need: histories of aliases are listed but never computed."""
    needed = {n.number for n in graph.roots}
    for n in reversed(graph.nodes):
        if n.number in needed:
            needed.update(a.number for a in n.args)
    graph.nodes = [n for n in graph.nodes if n.number in needed or n.input >= 0]
    return graph

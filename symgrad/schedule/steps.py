"""The steps of a schedule.

Structures: `Loops` (a fused loop nest), `Product` (a batched matrix product), `Routine` (a library
call on whole arrays), `Stream` (steps that code generation runs together block by block), beside
`symgrad.schedule.iterate.Iteration`; and `Schedule`, steps in order with the buffers they use.
Start reading at `Schedule`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from symgrad.schedule.canonical import Graph, Node
from symgrad.schedule.crossing import Sharing, can_share
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.nest import Item, Nest, NestBuilder

AGAIN = 1 << 44
"""Added to a node's number each time that it is computed again, into another buffer."""


def name_of(n: Node) -> str:
    """How a step shows a buffer: with a stroke for each time that its value was computed again."""
    again, number = divmod(n.number, AGAIN)
    return f"%{number}" + "'" * again


class Loops:
    """A fused loop nest.

    Attributes
    ----------
    loaded : callable
        Whether the nest reads a node's buffer rather than computing its value again.
    segment : int
        The part of a long program that it belongs to.
    buffers : mapping of int to Node
        By number of a node, another one whose buffer is used in its place.
    whole : bool
        Whether it stays as it is: nothing comes in, and its items are not parted.
    """

    whole = False

    def __init__(self, items: list[Item], loaded: Callable[[Node], bool], segment: int = 0) -> None:
        self.items = items
        self.loaded = loaded
        self.segment = segment
        self.buffers: Mapping[int, Node] = {}
        self._sharing: Sharing | None = None

    def takes(self, item: Item) -> bool:
        """Whether the nest can produce one thing more that depends on none of the others."""
        if self.whole or item.cumulative or item.positions:
            return False
        axes = {i.axis for i in self.items} - {-1}
        if len(axes) == 2:
            return can_share([*self.items, item])
        if item.axis == -1 or not axes or item.axis in axes:
            return True
        if not can_share([*self.items, item]):
            return False
        if self._sharing is None:
            self._sharing = Sharing(self.items, self.loaded)
        return self._sharing.is_worth_it(item)

    def part(self, items: list[Item]) -> Loops:
        """A nest that produces some of the items only."""
        made = copy.copy(self)
        made.items = items
        made._sharing = None
        return made

    def with_buffers(self, buffers: Mapping[int, Node]) -> Loops:
        """The same nest with other buffers, by number of those that they stand for."""
        made = copy.copy(self)
        made.buffers = {**self.buffers, **buffers}
        return made

    def build(self) -> Nest:
        """The nest in index form."""
        nest = self._built()
        return nest.with_buffers(self.buffers) if self.buffers else nest

    def _built(self) -> Nest:
        own = {item.target.number for item in self.items}
        return NestBuilder(lambda n: n.number not in own and self.loaded(n)).build(self.items)

    def __repr__(self) -> str:
        names = ", ".join(
            f"{name_of(self.buffers.get(i.target.number, i.target))}:{i.combine or 'store'}"
            for i in self.items
        )
        return f"loops {list(self.items[0].domain)} -> {names}"


class Product:
    """A batched matrix product of two strided views of buffers.

    Attributes
    ----------
    target : Node
    operands : pair of (Node, offset, strides)
        Buffer, element offset and strides of each (B, rows, columns) operand.
    """

    def __init__(
        self, target: Node, operands: tuple[tuple[Node, int, tuple[int, ...]], ...], k: int
    ) -> None:
        self.target = target
        self.operands = operands
        self.k = k

    def with_buffers(self, buffers: Mapping[int, Node]) -> Product:
        """The same product with other buffers, by number of those that they stand for."""
        target = buffers.get(self.target.number, self.target)
        operands = tuple((buffers.get(n.number, n), at, steps) for n, at, steps in self.operands)
        return Product(target, operands, self.k)

    def __repr__(self) -> str:
        b, m, n = self.target.shape
        return f"product {b}x({m}x{self.k} . {self.k}x{n}) -> {name_of(self.target)}"


class Routine:
    """A library call on whole contiguous arrays."""

    def __init__(self, target: Node) -> None:
        self.target = target
        self.operands = target.args

    def with_buffers(self, buffers: Mapping[int, Node]) -> Routine:
        """The same call with other buffers, by number of those that they stand for."""
        made = Routine(buffers.get(self.target.number, self.target))
        made.operands = tuple(buffers.get(a.number, a) for a in self.operands)
        return made

    def __repr__(self) -> str:
        operands = ", ".join(map(name_of, self.operands))
        return f"routine {self.target.op.name}({operands}) -> {name_of(self.target)}"


class Stream:
    """Loops and products over the same rows, run one block of rows after the other.

    Attributes
    ----------
    rows, block : int
        Rows in all and in a block.
    steps : list of Loops or Product
    """

    def __init__(self, rows: int, block: int, steps: list[Loops | Product]) -> None:
        self.rows = rows
        self.block = block
        self.steps = steps

    def __repr__(self) -> str:
        return f"stream of {self.rows} rows, {self.block} at a time: {len(self.steps)} steps"


Step = Loops | Product | Iteration | Routine | Stream


class Schedule:
    """Steps in order, and where every stored value lives.

    Attributes
    ----------
    graph : Graph
    steps : list of Step
    stored : list of Node
        Nodes with a buffer of their own, in topological order.
    dear : set of int
        Numbers of stored nodes worth keeping for a later derivative.
    regions : dict of int to int
        By number of a node, the checkpoint whose inner value it is.
    """

    def __init__(self, graph: Graph, steps: list[Step], stored: list[Node], dear: set[int]) -> None:
        self.graph = graph
        self.steps = steps
        self.stored = stored
        self.dear = dear
        self.regions: dict[int, int] = {}

    def text(self) -> str:
        """The schedule, a line per step."""
        lines = [f"inputs: {', '.join(f'%{n.number}' for n in self.graph.nodes if n.input >= 0)}"]
        for place, step in enumerate(self.steps):
            lines.append(f"{place:3d}  {step!r}")
            if isinstance(step, Stream):
                lines += [f"       {inner!r}" for inner in step.steps]
        return "\n".join(lines)

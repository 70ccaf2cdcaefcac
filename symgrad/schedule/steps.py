"""The steps of a schedule.

Structures: `Loops` (a fused loop nest), `Product` (a batched matrix product), `Routine` (a library
call on whole arrays), `Stream` (steps that code generation runs together block by block), beside
`symgrad.schedule.iterate.Iteration`; and `Schedule`, steps in order with the buffers they use.
Start reading at `Schedule`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.schedule.canonical import Graph, Node
from symgrad.schedule.crossing import Sharing, can_share
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.nest import Item, Nest, NestBuilder


class Loops:
    """A fused loop nest.

    Attributes
    ----------
    loaded : callable
        Whether the nest reads a node's buffer rather than computing its value again.
    segment : int
        The part of a long program that it belongs to.
    whole : bool
        Whether it stays as it is: nothing comes in, and its items are not parted.
    """

    whole = False

    def __init__(self, items: list[Item], loaded: Callable[[Node], bool], segment: int = 0) -> None:
        self.items = items
        self.loaded = loaded
        self.segment = segment
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
        return Loops(items, self.loaded, self.segment)

    def build(self) -> Nest:
        """The nest in index form."""
        own = {item.target.number for item in self.items}
        return NestBuilder(lambda n: n.number not in own and self.loaded(n)).build(self.items)

    def __repr__(self) -> str:
        names = ", ".join(f"%{i.target.number}:{i.combine or 'store'}" for i in self.items)
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

    def __repr__(self) -> str:
        b, m, n = self.target.shape
        return f"product {b}x({m}x{self.k} . {self.k}x{n}) -> %{self.target.number}"


class Routine:
    """A library call on whole contiguous arrays."""

    def __init__(self, target: Node) -> None:
        self.target = target
        self.operands = target.args

    def __repr__(self) -> str:
        operands = ", ".join(f"%{a.number}" for a in self.operands)
        return f"routine {self.target.op.name}({operands}) -> %{self.target.number}"


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
    """

    def __init__(self, graph: Graph, steps: list[Step], stored: list[Node], dear: set[int]) -> None:
        self.graph = graph
        self.steps = steps
        self.stored = stored
        self.dear = dear

    def text(self) -> str:
        """The schedule, a line per step."""
        lines = [f"inputs: {', '.join(f'%{n.number}' for n in self.graph.nodes if n.input >= 0)}"]
        for place, step in enumerate(self.steps):
            lines.append(f"{place:3d}  {step!r}")
            if isinstance(step, Stream):
                lines += [f"       {inner!r}" for inner in step.steps]
        return "\n".join(lines)

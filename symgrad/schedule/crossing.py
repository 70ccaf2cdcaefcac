"""Reductions along either axis of one domain, in one nest.

Programs over pairs (forces between particles, kernel matrices, their derivatives) reduce the same
n² values over rows and over columns. One nest that feeds both computes each pair once and stores
none, where two nests would compute it twice and a buffer would hold n² elements.

Start reading at `can_share`, then `Sharing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Item, NestBuilder

SHORTEST = 64
"""Length of either axis at least: 16 lanes take turns along one, and each turn has to pay."""

MOST_BYTES = 1 << 20
"""Room for a row of partial results of all items at most: it is to stay in a second-level cache."""

SHARED = 6.0
"""Cost, in additions, of what both directions need of one pair, from which they share a nest."""

COMBINES = ("add", "mul", "max", "min", "or", "and", "dot")
"""Kinds of reduction whose partial results are one number."""


def can_cross(item: Item) -> bool:
    """Whether a nest that also reduces along its other axis can produce an item."""
    if len(item.domain) != 2 or item.cumulative or item.positions:
        return False
    if item.axis >= 0 and item.combine not in COMBINES:
        return False
    return min(item.domain) >= SHORTEST


def can_share(items: Sequence[Item]) -> bool:
    """Whether items that depend on none of each other may be one nest, for all their axes."""
    if any(item.domain != items[0].domain for item in items):
        return False
    axes = {item.axis for item in items if item.axis >= 0}
    if len(axes) < 2:
        return True
    row = 8 * max(items[0].domain)
    return len(items) * row <= MOST_BYTES and all(can_cross(item) for item in items)


def reductions_of(
    n: Node, users: dict[int, list[Node]], stored: Callable[[Node], bool], limit: int
) -> list[Node]:
    """The reductions that need a value; none if something else does, or too many nodes to look at."""
    found: list[Node] = []
    seen: set[int] = set()
    stack = [n]
    while stack:
        for u in users.get(stack.pop().number, ()):
            if u.number in seen:
                continue
            seen.add(u.number)
            if not stored(u):
                stack.append(u)
            elif u.op.family == "reduce" and len(seen) <= limit:
                found.append(u)
            else:
                return []
    return found


class Sharing:
    """What the items of a nest compute at every point.

    Parameters
    ----------
    items : list of Item
        Of the nest; may grow.
    loaded : callable
        Whether a nest reads a node's buffer rather than computing its value again.
    """

    def __init__(self, items: list[Item], loaded: Callable[[Node], bool]) -> None:
        self.items = items
        self.loaded = loaded
        self._costs: dict[int, float] = {}
        self._done = 0

    def computed(self) -> dict[int, float]:
        """Costs of the values that the items are made of, by number, wherever they are taken."""
        for other in self.items[self._done :]:
            self._computed(other, self._costs)
        self._done = len(self.items)
        return self._costs

    def is_worth_it(self, item: Item) -> bool:
        """Whether the items need enough of what `item` needs, at the same points, for a common nest."""
        numbers = self.computed()
        costs = self._computed(item, {})
        if sum(cost for number, cost in costs.items() if number in numbers) < SHARED:
            return False
        return self._shared_cost(item) >= SHARED

    def _computed(self, item: Item, found: dict[int, float]) -> dict[int, float]:
        """Add what an item is made of to what was found for others of its domain."""
        points = math.prod(item.domain)
        stack = [node for node, _ in item.values]
        while stack:
            n = stack.pop()
            if n.number in found or n.input >= 0 or n.size < points:
                continue
            if n is not item.target and self.loaded(n):
                continue
            found[n.number] = n.op.cost if n.op.family == "elementwise" else 0.0
            stack.extend(n.args)
        return found

    def _shared_cost(self, item: Item) -> float:
        """The cost, at each point, of the instructions that `item` has in common with the others."""
        builder = NestBuilder(self.loaded)
        for other in self.items:
            for node, index in other.values:
                builder.need(node, index)
        count = len(builder.insts)
        stack = [builder.need(node, index) for node, index in item.values]
        axes = _axes_of(builder)
        seen: set[int] = set()
        total = 0.0
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            inst = builder.insts[number]
            if number < count and inst.op is not None and len(axes[number]) == 2:
                total += inst.op.cost
            stack.extend(inst.args)
        return total


def _axes_of(builder: NestBuilder) -> list[frozenset[int]]:
    """The axes along which each instruction's value varies."""
    axes: list[frozenset[int]] = []
    for inst in builder.insts:
        found = frozenset[int]().union(*[axes[a] for a in inst.args])
        for form in (inst.offset, *[form for form, _ in inst.bounds]):
            for v, _ in form.terms:
                found |= {v} if v >= 0 else axes[builder.dynamic[v]]
        if inst.guard >= 0:
            found |= axes[inst.guard]
        axes.append(found)
    return axes

"""Reductions along either axis of one domain, in one nest.

Programs over pairs (forces between particles, kernel matrices, their derivatives) reduce the same
n² values over rows and over columns. One nest that feeds both computes each pair once and stores
none, where two nests would compute it twice and a buffer would hold n² elements.

Start reading at `can_share`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Item

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


def computed_in_place(item: Item, loaded: Callable[[Node], bool]) -> dict[int, float]:
    """Cost of an element of each value that a nest computes at every point for an item, by number."""
    points = 1
    for size in item.domain:
        points *= size
    found: dict[int, float] = {}
    stack = [node for node, _ in item.values]
    while stack:
        n = stack.pop()
        if n.number in found or n.input >= 0 or n.size < points:
            continue
        if loaded(n):
            continue
        found[n.number] = n.op.cost if n.op.family == "elementwise" else 0.0
        stack.extend(n.args)
    return found


def shares_work(items: Iterable[Item], item: Item, loaded: Callable[[Node], bool]) -> bool:
    """Whether some items need enough of what `item` needs to be worth a common nest."""
    needed = computed_in_place(item, loaded)
    shared: set[int] = set()
    for other in items:
        shared.update(computed_in_place(other, loaded).keys() & needed.keys())
    return sum(needed[number] for number in shared) >= SHARED

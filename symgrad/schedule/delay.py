"""Results that a later nest computes on its way are stored by that nest.

A result that is asked for is placed as early as it can be computed. Where a later nest over the same
axes computes it again, as one that changes a parameter does with the running means of its
gradients, both read the same buffers. Nothing reads the result's own, so the later nest may as well
store it. Start reading at `delay`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.schedule.canonical import Node
from symgrad.schedule.crossing import Sharing
from symgrad.schedule.nest import Item
from symgrad.schedule.steps import Loops, Step


def delay(
    levels: list[list[Step]], computed_again: Callable[[Node], bool], ready: dict[int, int]
) -> None:
    """Move items to later nests that compute their values anyway.

    Parameters
    ----------
    levels : list of list of Step
        Steps by level; each depends on earlier levels only.
    computed_again : callable
        Whether nothing reads the buffer of a stored node.
    ready : dict of int to int
        By node number, the level from which a buffer is there.
    """
    nests = [(k, s) for k, steps in enumerate(levels) for s in steps if isinstance(s, Loops)]
    later: dict[tuple[int, ...], list[tuple[int, Loops, Sharing]]] = {}
    for level, nest in reversed(nests):
        domain = nest.items[0].domain
        known = later.setdefault(domain, [])
        moved = []
        for item in nest.items:
            if _is_plain(item) and computed_again(item.target):
                found = _taker(known, item, level, nest.segment)
                if found is not None:
                    found[1].items.append(item)
                    ready[item.target.number] = found[0] + 1
                    moved.append(item)
        nest.items = [item for item in nest.items if item not in moved]
        if nest.items:
            known.append((level, nest, Sharing(nest.items, nest.loaded)))
        else:
            levels[level].remove(nest)


def _is_plain(item: Item) -> bool:
    """Whether an item stores a value, all of its target."""
    node = item.values[0][0]
    return item.axis == -1 and not item.combine and not item.positions and node is item.target


def _taker(
    known: list[tuple[int, Loops, Sharing]], item: Item, level: int, segment: int
) -> tuple[int, Loops, Sharing] | None:
    """The first later nest that computes what an item stores."""
    for found in reversed(known):
        after, nest, sharing = found
        if after > level and nest.segment == segment and item.target.number in sharing.computed():
            return found if nest.takes(item) else None
    return None

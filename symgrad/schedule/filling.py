"""Zeros with elements placed in them, written in one pass over memory.

A matrix of a few diagonals, or an array spread out, is zeros first and then some elements. To fill
all of it before the first element is stored would send every line of memory out of the nearest
cache and back. Here one nest does both: before it stores, it fills with zeros as far as these
stores reach.

One structure, `Filling`, the step. Start reading at `filling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from symgrad.schedule.affine import Affine
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Index, Item, Nest
from symgrad.schedule.steps import Loops

LEAST_BYTES = 512
MOST_BYTES = 1 << 18
"""Size of what is filled: beyond, several threads fill it sooner, and memory sets the pace."""

MOST_ELEMENTS = 4096
"""Elements placed in the zeros, at most: one thread computes them."""


class Filling(Loops):
    """A nest that places elements in zeros of its own."""

    whole = True

    def _built(self) -> Nest:
        nest = super()._built()
        nest.filled = self.items[0].target
        return nest

    def __repr__(self) -> str:
        return super().__repr__().replace("loops", "filling", 1)


class Filled(NamedTuple):
    """A filling, and the items that are to be stored after it."""

    step: Filling
    rest: list[Item]


def filling(
    target: Node, items: list[Item], loaded: Callable[[Node], bool], segment: int
) -> Filled | None:
    """The items that place elements in a node's zeros, as one nest as far as their axes agree.

    None where it is better to fill first.
    """
    size = target.size * target.dtype.itemsize
    items = [item for item in items if 0 not in item.domain]
    count = sum(math.prod(item.domain) for item in items)
    if not items or not LEAST_BYTES <= size <= MOST_BYTES or count > MOST_ELEMENTS:
        return None
    for item in items:
        item.drop_unit_axes()
        plain = not item.combine and not item.positions
        if not plain or not item.domain or any(k < 0 for _, k in item.offset.terms):
            return None
    if len({item.domain[1:] for item in items}) > 1:
        return None
    common = min(item.domain[0] for item in items)
    first = [_cut(item, 0, common) for item in items]
    rest = [_cut(item, common, item.domain[0]) for item in items if item.domain[0] > common]
    return Filled(Filling(first, loaded, segment), rest)


def _cut(item: Item, start: int, end: int) -> Item:
    """An item from `start` to `end` of its first axis."""
    if (start, end) == (0, item.domain[0]):
        return item

    def moved(form: Affine) -> Affine:
        return form + start * form.coefficient(0)

    def all_moved(index: Index) -> Index:
        return tuple(moved(form) for form in index)

    domain = (end - start, *item.domain[1:])
    values = tuple((node, all_moved(index)) for node, index in item.values)
    return Item(item.target, domain, values, moved(item.offset))

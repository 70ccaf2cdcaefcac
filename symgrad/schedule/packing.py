"""Copies that turn strided reads into consecutive ones.

Where lanes run along an axis that steps over `c` elements at a time (components of points stored
point by point), every vector read is a gather. If the nest reads each element many times, a copy
with the components apart costs little and makes the reads consecutive. Values do not change.

One structure, `Packing`: the copies of one program, shared by its nests. Start reading at
`Packing.pack`.
"""

from __future__ import annotations

import math

from symgrad.op import INPUT, REGISTRY
from symgrad.schedule.affine import Affine, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Inst, Item, Nest

REUSE = 8
"""How often a nest must read an element, at least, for a copy to pay."""

FIRST_NUMBER = 1 << 40
"""Numbers of copies: beyond those of any graph."""


class Packing:
    """The copies of one program."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], Node] = {}

    def pack(self, nest: Nest, vector: int) -> list[Item]:
        """Redirect strided reads of a nest to copies; returns the items that make new copies.

        Parameters
        ----------
        nest : Nest
            Changed in place.
        vector : int
            The axis that lanes would run along.
        """
        total = math.prod(nest.sizes)
        made: list[Item] = []
        for inst in nest.insts:
            step = inst.offset.coefficient(vector)
            if inst.kind != "load" or inst.node is None or step < 2:
                continue
            if inst.node.size * REUSE > total or inst.node.size % step:
                continue
            if any(v < 0 or k % step for v, k in inst.offset.terms):
                continue
            self._redirect(inst, inst.node, step, made)
        return made

    def _redirect(self, inst: Inst, source: Node, step: int, made: list[Item]) -> None:
        rows = source.size // step
        copy = self._copies.get((source.number, step))
        if copy is None:
            number = FIRST_NUMBER + 2 * len(self._copies)
            copy = Node(INPUT, (), (), (step, rows), source.dtype, number)
            self._copies[source.number, step] = copy
            reshape = REGISTRY["reshape"]
            shape = (rows, step)
            view = Node(reshape, (source,), (shape,), shape, source.dtype, number + 1)
            part, row = variable(0), variable(1)
            made.append(Item(copy, (step, rows), ((view, (row, part)),), part * rows + row))
        row_start, part_number = divmod(inst.offset.const, step)
        terms = tuple((v, k // step) for v, k in inst.offset.terms)
        inst.node = copy
        inst.offset = Affine(part_number * rows + row_start, terms)

"""Reductions that take one block of a unit at a time, for streams.

One structure, `ResumedReduction`: the lanes of every result lie in memory (`Layout.states`), where
the unit's blocks before left them, and take up the rows of one block. What folds them when the unit
is done is in `symgrad.codegen.stream_sums`. Start reading at `ResumedReduction.emit`.
"""

from __future__ import annotations

from symgrad.codegen.ir import Val, constant
from symgrad.codegen.layout import LANES, TILE
from symgrad.codegen.reduction import TILES, Reduction


class ResumedReduction(Reduction):
    """A block of one unit, into the lanes that the unit's blocks before it left in memory."""

    def emit(self) -> None:
        """Loops over the kept axes and the rows of the block."""
        e, layout = self.e, self.e.layout
        axis = layout.axis
        size = e.parameter(("size", axis))
        first, last = e.chunk_range(size)
        tiled = layout.mode == "outer"
        opened = []
        for a in (a for a in layout.order if a != axis):
            end = e.parameter(("size", a))
            step = TILE if tiled and a == layout.vector else 1
            opened.append(e.open(TILES if step == TILE else a, constant("i64", 0), end, step))
        if tiled:
            self.set_tile(opened[-1].iv, e.parameter(("size", layout.vector)))
            self._resume_rows(first, last)
        else:
            self._resume_lanes(first, last, size)
        for loop in reversed(opened):
            e.close(loop)

    def _resume_lanes(self, start: Val, stop: Val, size: Val) -> None:
        e, f = self.e, self.f
        addresses: list[list[Val]] = []
        first: list[Val] = []
        for place, output, combine in self.reduced:
            (kind,) = combine.kinds()
            offset, _ = e.scalar_offset(("out", place), output.offset)
            lanes = f.mul(offset, constant("i64", LANES))
            row = f.gep(e.base(e.layout.state(output)), lanes, kind)
            turns = [f.gep(row, constant("i64", k), kind) for k in range(0, LANES, e.width)]
            addresses.append(turns)
            first += [f.load(address, kind, e.width) for address in turns]
        ends = self.along_lanes(start, stop, size, first)
        for turns, states in zip(addresses, ends, strict=True):
            for address, state in zip(turns, states, strict=True):
                f.store(state[0], address)

    def _resume_rows(self, start: Val, stop: Val) -> None:
        e, f = self.e, self.f
        along = e.open(e.layout.axis, start, stop, 1)
        lane = f.and_(along.iv, constant("i64", LANES - 1))
        loop, _ = self.open_columns()
        e.instructions()
        for number, output in self.stored:
            e.store(number, output, e.values[output.insts[0]])
        assert e.lane_mask is not None
        for place, output, combine in self.reduced:
            (kind,) = combine.kinds()
            operands, position = self.operands_of(output)
            offset, _ = e.scalar_offset(("out", place), output.offset)
            row = f.mul(lane, e.parameter(("elements", place)))
            at = f.add(f.add(row, offset), loop.iv)
            address = f.gep(e.base(e.layout.state(output)), at, kind)
            before = f.masked_load(address, e.lane_mask, constant(kind, 0, e.width))
            after = combine.take((before,), operands, position)
            f.masked_store(after[0], address, e.lane_mask)
        e.close(loop)
        e.close(along)

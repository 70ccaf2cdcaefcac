"""Reductions that take one block of a unit at a time, for streams.

One structure, `ResumedReduction`: the lanes of every result lie in memory (`Layout.states`), where
the unit's blocks before left them, and take up the rows of one block. What folds them when the unit
is done is in `symgrad.codegen.stream_sums`. Start reading at `ResumedReduction.emit`.
"""

from __future__ import annotations

from symgrad.codegen.gemm_tile import least
from symgrad.codegen.ir import Val, constant
from symgrad.codegen.layout import LANES, TILE
from symgrad.codegen.reduction import TILES, Reduction
from symgrad.schedule.nest import Output

ROW_LANES = -3000
"""The loop variable of lanes, besides those of `symgrad.codegen.reduction`."""

CHEAP = 4.0
"""Cost, in additions, of what may be computed again for every vector of a row."""


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
            if self.stored or self._row_costs() > CHEAP:
                self._resume_by_rows(first, last)
            else:
                self._resume_by_lanes(first, last)
        else:
            self._resume_lanes(first, last, size)
        for loop in reversed(opened):
            e.close(loop)

    def _resume_lanes(self, start: Val, stop: Val, size: Val) -> None:
        e, f = self.e, self.f
        addresses: list[list[Val]] = []
        first: list[Val] = []
        for _, output, combine in self.reduced:
            (kind,) = combine.kinds()
            offset, _ = e.scalar_offset(output.offset)
            lanes = f.mul(offset, constant("i64", LANES))
            row = f.gep(e.base(e.layout.state(output)), lanes, kind)
            turns = [f.gep(row, constant("i64", k), kind) for k in range(0, LANES, e.width)]
            addresses.append(turns)
            first += [f.load(address, kind, e.width) for address in turns]
        ends = self.along_lanes(start, stop, size, first)
        for turns, states in zip(addresses, ends, strict=True):
            for address, state in zip(turns, states, strict=True):
                f.store(state[0], address)

    def _row_costs(self) -> float:
        """The cost, in additions, of what is computed once per row for all its vectors."""
        nest, layout = self.e.nest, self.e.layout
        total = 0.0
        for number, inst in enumerate(nest.insts):
            if inst.op is not None and nest.varies(number, layout.axis):
                total += 0.0 if nest.varies(number, layout.vector) else inst.op.cost
        return total

    def _state_address(self, place: int, output: Output, kind: str, lane: Val, column: Val) -> Val:
        e, f = self.e, self.f
        offset, _ = e.scalar_offset(output.offset)
        row = f.mul(lane, e.parameter(("elements", place)))
        at = f.add(f.add(row, offset), column)
        return f.gep(e.base(e.layout.state(output)), at, kind)

    def _resume_by_lanes(self, start: Val, stop: Val) -> None:
        """Rows of one lane after the other, so that a vector of results stays in registers."""
        e, f = self.e, self.f
        count = f.sub(stop, start)
        most = constant("i64", LANES)
        lane = e.open(ROW_LANES, constant("i64", 0), least(f, count, most), 1)
        columns, _ = self.open_columns(masked=True)
        assert e.lane_mask is not None
        addresses = []
        carried = []
        for place, output, combine in self.reduced:
            (kind,) = combine.kinds()
            address = self._state_address(place, output, kind, lane.iv, columns.iv)
            addresses.append(address)
            carried.append(f.masked_load(address, e.lane_mask, constant(kind, 0, e.width)))
        along = e.open(e.layout.axis, f.add(start, lane.iv), stop, LANES, carried)
        e.instructions()
        later: list[Val] = []
        for (_, output, combine), state in zip(self.reduced, along.carried, strict=True):
            operands, position = self.operands_of(output)
            later += combine.take((state,), operands, position)
        for address, value in zip(addresses, e.close(along, later), strict=True):
            f.masked_store(value, address, e.lane_mask)
        e.close(columns)
        e.close(lane)

    def _resume_by_rows(self, start: Val, stop: Val) -> None:
        """Rows as they lie, so that what a row computes for all its vectors is computed once."""
        e, f = self.e, self.f
        along = e.open(e.layout.axis, start, stop, 1)
        lane = f.and_(along.iv, constant("i64", LANES - 1))
        loop, _ = self.open_columns()
        e.instructions()
        for number, output in self.stored:
            e.stores.store(number, output, e.values[output.insts[0]])
        assert e.lane_mask is not None
        for place, output, combine in self.reduced:
            (kind,) = combine.kinds()
            operands, position = self.operands_of(output)
            address = self._state_address(place, output, kind, lane, loop.iv)
            before = f.masked_load(address, e.lane_mask, constant(kind, 0, e.width))
            after = combine.take((before,), operands, position)
            e.stores.store_rows([(after[0], address)])
        e.close(loop)
        e.close(along)

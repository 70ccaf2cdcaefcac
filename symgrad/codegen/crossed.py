"""Reductions along both axes of a nest in one pass.

Rows of the cross axis are walked one after another, lanes along the other axis. What is reduced
along the row is finished with it, as in an "inner" nest. What is reduced along the cross axis is
added to a row of partial results in memory. The bits are those of `symgrad.codegen.reduction`: row
i of a unit belongs to lane i mod 16, so a chunk takes the rows of some lanes, lane after lane, and
joins these by halves; `symgrad.codegen.partials` joins the chunks, and the units in their tree.

One structure, `CrossedReduction`. Start reading at `CrossedReduction.emit`.
"""

from __future__ import annotations

from typing import Any

from symgrad.codegen.combine import ONE, Combine, State, UnitTree
from symgrad.codegen.ir import Val, constant
from symgrad.codegen.layout import LANES, UNIT
from symgrad.codegen.reduction import UNITS, Reduction

CHUNKS, TURNS, COLUMNS = -3000, -4000, -5000
"""Loop variables besides the nest's axes."""


class CrossedReduction(Reduction):
    """Emits the loops of a nest that reduces along two axes, inside a `LoopEmitter`."""

    def emit(self) -> None:
        """Loops over chunks, units of the cross axis, their lanes, and the rows of each."""
        e, f, layout = self.e, self.f, self.e.layout
        size = e.parameter(("size", layout.cross))
        self.padded = e.parameter("padded")
        turns = LANES // layout.extent
        first = e.parameter("first unit")
        chunk_loop = e.open(CHUNKS, f.arguments[2], f.arguments[3], 1)
        self.rows = [
            self._rows(place, combine, chunk_loop.iv) for place, _, combine in self.crossed
        ]
        unit_loop = e.open(UNITS, first, e.parameter("last unit"), 1)
        turn_loop = e.open(TURNS, constant("i64", 0), constant("i64", turns), 1)
        # An even turn's lane is the first of a pair: it is made where it will wait for the second.
        odd = f.and_(turn_loop.iv, ONE)
        shift = f.mul(f.sub(ONE, odd), self.padded)
        self.lanes = [
            f.gep(rows, shift, combine.element)
            for rows, (_, _, combine) in zip(self.rows, self.crossed, strict=True)
        ]
        self._clear()
        start = f.mul(unit_loop.iv, constant("i64", UNIT))
        stop = f.add(start, constant("i64", UNIT))
        stop = f.select(f.icmp("slt", stop, size), stop, size)
        start = f.add(start, self._lane(chunk_loop.iv, turn_loop.iv, turns))
        some, none = f.label("rows"), f.label("lane")
        f.branch_if(f.icmp("slt", start, stop), some, none)
        f.start(some)
        row_loop = e.open(layout.cross, start, stop, LANES)
        self._row(f.mul(f.sub(unit_loop.iv, first), constant("i64", UNIT)))
        e.close(row_loop)
        f.branch(none)
        f.start(none)
        second, done = f.label("second"), f.label("done")
        f.branch_if(f.icmp("ne", odd, constant("i64", 0)), second, done)
        f.start(second)
        part = f.mul(f.sub(unit_loop.iv, first), constant("i64", layout.extent))
        self._join_lanes(turn_loop.iv, turns, f.add(part, chunk_loop.iv))
        f.branch(done)
        f.start(done)
        for loop in (turn_loop, unit_loop, chunk_loop):
            e.close(loop)

    def _rows(self, place: int, combine: Combine, chunk: Val) -> Val:
        """The chunk's rows of partial results of one output."""
        f, layout = self.f, self.e.layout
        count = (LANES // layout.extent).bit_length()
        rows = f.gep(self.e.base(None), self.e.parameter(("rows", place)), "i8")
        shift = f.mul(f.mul(chunk, constant("i64", count)), self.padded)
        return f.gep(rows, shift, combine.element)

    def _lane(self, chunk: Val, turn: Val, turns: int) -> Val:
        """The lane of a turn: lanes that are joined first follow each other."""
        f = self.f
        lane = chunk
        for bit in range(turns.bit_length() - 1):
            taken = f.and_(f.lshr(turn, constant("i64", bit)), ONE)
            lane = f.add(lane, f.mul(taken, constant("i64", LANES // 2 >> bit)))
        return lane

    def _row(self, before: Val) -> None:
        """All columns of a row; `before` rows lie in earlier units of this phase.

        Its results go to scratch, lane by lane: where neighbours in an output belong to different
        threads, each write would take the cache line from the other.
        """
        e, f = self.e, self.f
        length = e.parameter(("size", e.layout.axis))
        units = f.udiv(f.add(length, constant("i64", UNIT - 1)), constant("i64", UNIT))
        tree = UnitTree(f, [combine for _, _, combine in self.reduced], 1)
        unit_loop = e.open(UNITS, constant("i64", 0), units, 1)
        self._unit(unit_loop.iv, units, length, tree)
        e.close(unit_loop)
        row = f.urem(e.variables[e.layout.cross], constant("i64", UNIT))
        lane = f.and_(row, constant("i64", LANES - 1))
        at = f.add(before, f.mul(lane, constant("i64", UNIT // LANES)))
        at = f.add(at, f.lshr(row, constant("i64", LANES.bit_length() - 1)))
        for (place, _, combine), state in zip(self.reduced, tree.total(units), strict=True):
            results = f.gep(e.base(None), e.parameter(("results", place)), "i8")
            f.store(combine.result(state), f.gep(results, at, combine.element))

    def take_across(self, position: Val) -> None:
        """Take the values of a vector into the lane at work.

        Lanes past the row's end take what they may into columns that nobody reads.
        """
        f = self.f
        for (_, output, combine), lane in zip(self.crossed, self.lanes, strict=True):
            operands, _ = self.operands_of(output)
            address = f.gep(lane, position, combine.element)
            state = (f.load(address, combine.element, self.e.width),)
            f.store(combine.take(state, operands, None)[0], address)

    def _clear(self) -> None:
        """Start a lane."""
        loop = self._open_columns_of_row()
        for (_, _, combine), lane in zip(self.crossed, self.lanes, strict=True):
            self._put(lane, loop.iv, combine, combine.start(self.e.width))
        self.e.close(loop)

    def _join_lanes(self, turn: Val, turns: int, part: Val) -> None:
        """Join the second lane of a pair with those that wait for it, and let the result wait in turn."""
        e, f = self.e, self.f
        head, body, leave = f.label("waiting"), f.label("joining"), f.label("joined")
        origin = f.here()
        f.branch(head)
        f.start(head)
        level, rest = f.phi("i64"), f.phi("i64")
        odd = f.icmp("ne", f.and_(rest[0], ONE), constant("i64", 0))
        f.branch_if(odd, body, leave)
        f.start(body)
        next_level = f.add(level[0], ONE)
        waiting = f.mul(next_level, self.padded)
        loop = self._open_columns_of_row()
        for (_, _, combine), rows in zip(self.crossed, self.rows, strict=True):
            earlier = self._get(f.gep(rows, waiting, combine.element), loop.iv, combine)
            joined = combine.join(earlier, self._get(rows, loop.iv, combine))
            self._put(rows, loop.iv, combine, joined)
        e.close(loop)
        next_rest = f.lshr(rest[0], ONE)
        end = f.here()
        f.branch(head)
        f.set_phi(level, [(constant("i64", 0), origin), (next_level, end)])
        f.set_phi(rest, [(turn, origin), (next_rest, end)])
        f.start(leave)
        last = f.icmp("eq", turn, constant("i64", turns - 1))
        row = f.mul(f.select(last, part, f.add(level[0], ONE)), self.padded)
        targets = []
        for (place, _, combine), rows in zip(self.crossed, self.rows, strict=True):
            parts = f.gep(e.base(None), e.parameter(("parts", place)), "i8")
            targets.append(f.gep(f.select(last, parts, rows), row, combine.element))
        loop = self._open_columns_of_row()
        for (_, _, combine), rows, target in zip(self.crossed, self.rows, targets, strict=True):
            self._put(target, loop.iv, combine, self._get(rows, loop.iv, combine))
        e.close(loop)

    def _open_columns_of_row(self) -> Any:
        return self.e.open(COLUMNS, constant("i64", 0), self.padded, self.e.width)

    def _get(self, row: Val, column: Val, combine: Combine) -> State:
        f = self.f
        address = f.gep(row, column, combine.element)
        return (f.load(address, combine.element, self.e.width),)

    def _put(self, row: Val, column: Val, combine: Combine, state: State) -> None:
        self.f.store(state[0], self.f.gep(row, column, combine.element))

"""The fixed tree of a reduction, and running (cumulative) reductions.

Bits: element i of a unit of 384 goes to lane i mod 16; lanes fold by halves (8, 4, 2, 1); units
join in a binary tree over the absolute unit index. Missing elements are the identity (-0.0 for
sums). So the result depends on the length alone, not on vector width, chunks or threads.

Two layouts of the same tree: "inner" has lanes in vector lanes, "outer" keeps 16 rows of
accumulators while vector lanes run along another axis. What is joined with what is in
`symgrad.codegen.combine`. Start reading at `Reduction.emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symgrad.codegen.combine import ONE, Combine, State, UnitTree, fold, part_of
from symgrad.codegen.ir import Val, constant
from symgrad.codegen.layout import LANES, TILE, UNIT
from symgrad.schedule.nest import Output

if TYPE_CHECKING:
    from symgrad.codegen.loops import Loop, LoopEmitter

# Loop variables besides the nest's axes.
UNITS, TILES = -1000, -2000


class Reduction:
    """Emits the loops of a nest that reduces, inside a `LoopEmitter`."""

    def __init__(self, emitter: LoopEmitter) -> None:
        self.e = emitter
        self.f = emitter.f
        self.tile: tuple[Val, Val]
        self.reduced: list[tuple[int, Output, Combine]] = []
        self.crossed: list[tuple[int, Output, Combine]] = []
        self.stored: list[tuple[int, Output]] = []
        for place, output in enumerate(emitter.nest.outputs):
            if output.combine:
                element = emitter.nest.insts[output.insts[0]].dtype.kind
                combine = Combine(output.combine, element, output.identity, emitter.b)
                along = self.reduced if output.axis == emitter.layout.axis else self.crossed
                along.append((place, output, combine))
            else:
                self.stored.append((place, output))

    # -- trees ------------------------------------------------------------------------

    def emit(self) -> None:
        """Loops over the kept axes, units, and the reduced axis."""
        e, f, layout = self.e, self.f, self.e.layout
        axis = e.layout.axis
        size = e.parameter(("size", axis))
        units = f.udiv(f.add(size, constant("i64", UNIT - 1)), constant("i64", UNIT))
        unit_loop = None
        opened = []
        if layout.split:
            first, last = e.chunk_range(units)
            unit_loop = e.open(UNITS, first, last, 1)
        tiled = layout.mode == "outer"
        start, end = constant("i64", 0), size
        for a in (a for a in layout.order if a != axis):
            start, end = constant("i64", 0), e.parameter(("size", a))
            if a == layout.chunked and not layout.split:
                start, end = e.chunk_range(end)
            step = TILE if tiled and a == layout.vector else 1
            opened.append(e.open(TILES if step == TILE else a, start, end, step))
        if tiled:
            self.set_tile(opened[-1].iv, end)
        if layout.one_unit:
            self._only_unit(size)
        else:
            columns = constant("i64", TILE // e.width) if tiled else ONE
            combines = [combine for _, _, combine in self.reduced]
            tree = UnitTree(f, combines, e.width if tiled else 1, columns)
            if unit_loop is None:
                unit_loop = e.open(UNITS, constant("i64", 0), units, 1)
            self._unit(unit_loop.iv, units, size, tree)
            if not layout.split:
                e.close(unit_loop)
                self._results(units, tree)
        for loop in reversed(opened):
            e.close(loop)
        if layout.split and unit_loop is not None:
            e.close(unit_loop)

    def _only_unit(self, size: Val) -> None:
        """A reduced axis that is one unit, whose results need no tree."""
        start = constant("i64", 0)
        if self.e.layout.mode != "outer":
            self._store_results(self._unit_in_lanes(start, size, size))
            return
        loop, _, results = self._unit_in_rows(start, size)
        self._store_results(results)
        self.e.close(loop)

    def set_tile(self, start: Val, end: Val) -> None:
        f = self.f
        stop = f.add(start, constant("i64", TILE))
        self.tile = (start, f.select(f.icmp("slt", stop, end), stop, end))

    def _unit(self, unit: Val, units: Val, size: Val, tree: UnitTree) -> None:
        """The partial results of one unit, into the tree or into scratch."""
        f = self.f
        start = f.mul(unit, constant("i64", UNIT))
        stop = f.add(start, constant("i64", UNIT))
        stop = f.select(f.icmp("slt", stop, size), stop, size)
        if self.e.layout.mode != "outer":
            self._finish_unit(unit, units, self._unit_in_lanes(start, stop, size), tree)
        else:
            loop, tree.column, partials = self._unit_in_rows(start, stop)
            self._finish_unit(unit, units, partials, tree)
            self.e.close(loop)

    def _finish_unit(self, unit: Val, units: Val, partials: list[State], tree: UnitTree) -> None:
        if self.e.layout.split:
            self._store_partials(unit, units, partials)
        else:
            tree.push(unit, partials)

    def _results(self, units: Val, tree: UnitTree) -> None:
        if self.e.layout.mode == "inner":
            self._store_results(tree.total(units))
            return
        loop, tree.column = self.open_columns()
        self._store_results(tree.total(units))
        self.e.close(loop)

    def _store_results(self, states: list[State]) -> None:
        for (place, output, combine), state in zip(self.reduced, states, strict=True):
            self._store_result(place, output, combine, state)

    def open_columns(self, masked: bool = False) -> tuple[Loop, Val]:
        """A loop over the vectors of the tile; also the vector's number in it.

        `masked` as in `LoopEmitter.set_lane_mask`.
        """
        e, f = self.e, self.f
        start, stop = self.tile
        loop = e.open(e.layout.vector, start, stop, e.width)
        e.set_lane_mask(stop, masked)
        column = f.udiv(f.sub(loop.iv, start), constant("i64", e.width))
        return loop, column

    def _store_result(self, place: int, output: Output, combine: Combine, state: State) -> None:
        value = combine.result(state)
        if self.e.layout.mode == "outer":
            self.e.stores.store(place, output, value)
            return
        offset, _ = self.e.scalar_offset(output.offset)
        self.f.store(value, self.f.gep(self.e.base(output.target), offset, value.kind))

    def _store_partials(self, unit: Val, units: Val, partials: list[State]) -> None:
        """Partial results to scratch, element-major: [state part][output element][unit]."""
        e, f = self.e, self.f
        scratch = e.base(None)
        for (place, output, combine), state in zip(self.reduced, partials, strict=True):
            start = e.parameter(("scratch", place))
            room = f.gep(scratch, start, "i8")
            count = constant("i64", 0)
            for number, (part, kind) in enumerate(zip(state, combine.kinds(), strict=True)):
                if number:
                    elements = f.mul(units, e.parameter(("elements", place)))
                    count = f.mul(elements, constant("i64", 8))
                    room = f.gep(room, count, "i8")
                if e.layout.mode == "outer":
                    offset, _ = e.vector_offset(output.offset)
                    wide = f.add(f.mul(offset, f.splat(units, e.width)), f.splat(unit, e.width))
                    assert e.lane_mask is not None
                    f.masked_scatter(part, f.gep(room, wide, kind), e.lane_mask)
                else:
                    offset, _ = e.scalar_offset(output.offset)
                    f.store(part, f.gep(room, f.add(f.mul(offset, units), unit), kind))

    # -- one unit ---------------------------------------------------------------------

    def operands_of(self, output: Output) -> tuple[tuple[Val, ...], Val | None]:
        e = self.e
        operands = tuple(e.wide(e.values[i]) for i in output.insts)
        if output.combine in ("argmax", "argmin"):
            axis = e.layout.axis
            if e.layout.mode == "inner":
                return operands, e.lane_positions()
            return operands, self.f.splat(e.variables[axis], e.width)
        return operands, None

    def _unit_in_lanes(self, start: Val, stop: Val, size: Val) -> list[State]:
        """Lanes along the reduced axis; 16/width accumulators take turns."""
        turns = max(1, LANES // self.e.width)
        first: list[Val] = []
        for _, _, combine in self.reduced:
            for _ in range(turns):
                first.extend(combine.start(min(LANES, self.e.width)))
        results = []
        ends = self.along_lanes(start, stop, size, first)
        for (_, _, combine), states in zip(self.reduced, ends, strict=True):
            whole_state = states[0] if turns == 1 else combine.join(states[0], states[1])
            results.append(fold(self.f, combine, whole_state))
        return results

    def along_lanes(
        self, start: Val, stop: Val, size: Val, carried: list[Val]
    ) -> list[list[State]]:
        """Part of a unit, from the accumulators `carried` on; what they are at its end.

        A vector wider than the lanes is taken in block by block. Masks cost a short body a third of
        its time, so whole vectors may be done without, in a loop of their own.
        """
        e, f = self.e, self.f
        turns = max(1, LANES // e.width)
        # Whole turns, so that the accumulators end in the order they began.
        length = f.sub(stop, start)
        end = f.add(
            start, f.and_(f.add(length, constant("i64", LANES - 1)), constant("i64", -LANES))
        )
        if e.layout.peeled:
            middle = f.add(start, f.and_(length, constant("i64", -max(LANES, e.width))))
            carried = self._whole_vectors(start, middle, carried)
            start = middle
        loop = e.open(e.layout.axis, start, end, e.width, carried, guarded=e.layout.peeled)
        e.set_lane_mask(size, e.layout.peeled)
        ends = iter(e.close(loop, self._take_vector(loop)))
        return [
            [tuple(next(ends) for _ in combine.kinds()) for _ in range(turns)]
            for _, _, combine in self.reduced
        ]

    def _whole_vectors(self, start: Val, stop: Val, carried: list[Val]) -> list[Val]:
        """A loop without masks, which may have nothing to do; what its accumulators become.

        Where the body divides, the quotients of the next vector are begun before the rest of this
        one: a division and all that waits for it are a long chain, and the processor does not see
        far enough ahead to begin the next by itself.
        """
        e, f = self.e, self.f
        axis, ahead = e.layout.axis, e.layout.ahead
        e.set_lane_mask(None)
        if ahead is None:
            loop = e.open(axis, start, stop, e.width, carried, guarded=True)
            return e.close(loop, self._take_vector(loop))
        some, none = f.label("vectors"), f.label("rest")
        nonempty = f.icmp("slt", start, stop)
        origin = f.here()
        f.branch_if(nonempty, some, none)
        f.start(some)
        e.enter(axis, start)
        e.instructions(ahead.early)
        last = f.sub(stop, constant("i64", e.width))
        begun = [e.values[k] for k in ahead.kept]
        loop = e.open(axis, start, stop, e.width, [*carried, *begun])
        count = len(carried)
        following = f.add(loop.iv, constant("i64", e.width))
        e.enter(axis, f.select(f.icmp("slt", following, last), following, last))
        e.instructions(ahead.early)
        next_begun = [e.values[k] for k in ahead.kept]
        e.variables[axis] = loop.iv
        e.values.update(zip(ahead.kept, loop.carried[count:], strict=True))
        later = self._take_vector(loop, ahead.late)
        ends = e.close(loop, [*later, *next_begun])[:count]
        end = f.here()
        f.branch(none)
        f.start(none)
        merged = []
        for before, after in zip(carried, ends, strict=True):
            phi = f.phi(after.kind, after.width)
            f.set_phi(phi, [(before, origin), (after, end)])
            merged.append(phi[0])
        return merged

    def _take_vector(self, loop: Loop, late: Sequence[int] | None = None) -> list[Val]:
        """The body of a loop along the reduced axis; what its accumulators become.

        `late` are the instructions left to do, if not all.
        """
        e, f = self.e, self.f
        turns = max(1, LANES // e.width)
        width = min(LANES, e.width)
        e.instructions(late)
        for place, output in self.stored:
            e.stores.store(place, output, e.values[output.insts[0]])
        self.take_across(loop.iv)
        carried = iter(loop.carried)
        later: list[Val] = []
        for _, output, combine in self.reduced:
            turn = [tuple(next(carried) for _ in combine.kinds()) for _ in range(turns)]
            operands, position = self.operands_of(output)
            if e.lane_mask is not None:
                operands, position = combine.masked(e.lane_mask, operands, position)
            state = turn[0]
            for block in range(0, e.width, width):
                parts = tuple(part_of(f, x, block, width) for x in operands)
                at = None if position is None else part_of(f, position, block, width)
                state = combine.take(state, parts, at)
            for part in (*turn[1:], state):
                later.extend(part)
        return later

    def take_across(self, position: Val) -> None:
        """Take the values of a vector into what is reduced along another axis: here nothing is."""

    def _unit_in_rows(self, start: Val, stop: Val) -> tuple[Loop, Val, list[State]]:
        """16 rows of accumulators in memory; vector lanes run along a kept axis, tile by tile.

        The rows of a tile are walked one after the other, so that memory is read in order. Gives the
        open loop over the tile's columns, the column in it, and the unit's results there.
        """
        e, f = self.e, self.f
        columns = TILE // e.width
        rows = [
            [f.alloca(kind, e.width, LANES * columns) for kind in combine.kinds()]
            for _, _, combine in self.reduced
        ]

        def place(room: Val, row: Val, column: Val, kind: str) -> Val:
            at = f.add(f.mul(row, constant("i64", columns)), column)
            return f.gep(room, at, kind, e.width)

        loop, column = self.open_columns()
        for (_, _, combine), memory in zip(self.reduced, rows, strict=True):
            for row in range(LANES):
                for room, value in zip(memory, combine.start(e.width), strict=True):
                    f.store(value, place(room, constant("i64", row), column, value.kind))
        e.close(loop)
        along = e.open(e.layout.axis, start, stop, 1)
        row_number = f.urem(f.urem(along.iv, constant("i64", UNIT)), constant("i64", LANES))
        loop, column = self.open_columns()
        e.instructions()
        for number, output in self.stored:
            e.stores.store(number, output, e.values[output.insts[0]])
        for (_, output, combine), memory in zip(self.reduced, rows, strict=True):
            operands, position = self.operands_of(output)
            addresses = [
                place(room, row_number, column, kind)
                for room, kind in zip(memory, combine.kinds(), strict=True)
            ]
            state = tuple(
                f.load(a, kind, e.width) for a, kind in zip(addresses, combine.kinds(), strict=True)
            )
            for address, value in zip(
                addresses, combine.take(state, operands, position), strict=True
            ):
                f.store(value, address)
        e.close(loop)
        e.close(along)
        loop, column = self.open_columns()
        partials = []
        for (_, _, combine), memory in zip(self.reduced, rows, strict=True):
            states = [
                tuple(
                    f.load(place(room, constant("i64", row), column, kind), kind, e.width)
                    for room, kind in zip(memory, combine.kinds(), strict=True)
                )
                for row in range(LANES)
            ]
            half = LANES
            while half > 1:
                half //= 2
                states = [combine.join(states[k], states[k + half]) for k in range(half)]
            partials.append(states[0])
        return loop, column, partials

    # -- running ----------------------------------------------------------------------

    def run_along(self) -> None:
        """A cumulative nest: the reduced axis in order, every partial result stored."""
        e = self.e
        axis = e.layout.axis
        place, output, combine = self.reduced[0]
        first = combine.start(e.width)
        loop = e.open(axis, constant("i64", 0), e.parameter(("size", axis)), 1, first)
        e.instructions()
        operands = tuple(e.wide(e.values[i]) for i in output.insts)
        state = combine.take(tuple(loop.carried), operands, None)
        e.stores.store(place, output, combine.result(state))
        e.close(loop, state)

"""The fixed tree of a reduction, and running (cumulative) reductions.

Bits: element i of a unit of 384 goes to lane i mod 16; lanes fold by halves (8, 4, 2, 1); units
join in a binary tree over the absolute unit index. Missing elements are the identity (-0.0 for
sums). So the result depends on the length alone, not on vector width, chunks or threads.

Two layouts of the same tree: "inner" has lanes in vector lanes, "outer" keeps 16 rows of
accumulators while vector lanes run along another axis. `Combine` holds what differs between
sums, products, extrema, dot products and arg-extrema. Start reading at `Reduction.emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symgrad.codegen.ir import Function, Val, constant
from symgrad.codegen.layout import LANES, TILE, UNIT
from symgrad.codegen.lowering import Lowering, is_float
from symgrad.schedule.nest import Output

if TYPE_CHECKING:
    from symgrad.codegen.loops import Loop, LoopEmitter

DEPTH = 48
"""Levels of the tree over units: more than any array can need."""

# Loop variables besides the nest's axes.
UNITS, TILES = -1000, -2000

State = tuple[Val, ...]

ONE = constant("i64", 1)


class Combine:
    """How one kind of reduction takes an element in and joins two partial results."""

    def __init__(self, kind: str, element: str, identity: float, b: Lowering) -> None:
        self.kind = kind
        self.element = "i8" if element == "i1" else element
        self.identity = identity
        self.b = b

    def kinds(self) -> tuple[str, ...]:
        """Scalar kinds of the state's parts."""
        if self.kind in ("argmax", "argmin"):
            return (self.element, "i64")
        return (self.element,)

    def start(self, width: int) -> State:
        """The state before any element."""
        number: Any = self.identity
        if self.element not in ("double", "float"):
            number = self._integer_identity()
        state = (constant(self.element, number, width),)
        if self.kind in ("argmax", "argmin"):
            return (*state, constant("i64", -1, width))
        return state

    def _integer_identity(self) -> int:
        bits = int(self.element[1:])
        return {
            "add": 0,
            "or": 0,
            "mul": 1,
            "and": 1,
            "max": -(1 << (bits - 1)),
            "argmax": -(1 << (bits - 1)),
            "min": (1 << (bits - 1)) - 1,
            "argmin": (1 << (bits - 1)) - 1,
            "dot": 0,
        }[self.kind]

    def take(self, state: State, operands: tuple[Val, ...], position: Val | None) -> State:
        """Take an element in."""
        if self.kind == "dot":
            if is_float(operands[0]):
                return (self.b.fma(operands[0], operands[1], state[0]),)
            return (self.b.add(state[0], self.b.mul(operands[0], operands[1])),)
        value = operands[0]
        if value.kind == "i1":
            value = self.b.f.cast("zext", value, "i8")
        if position is not None:
            return self.join(state, (value, position))
        return self.join(state, (value,))

    def join(self, x: State, y: State) -> State:
        """Join two partial results, `x` the earlier one."""
        b = self.b
        kind = self.kind
        if kind in ("add", "dot"):
            return (b.add(x[0], y[0]),)
        if kind == "mul":
            return (b.mul(x[0], y[0]),)
        if kind == "or":
            return (b.f.or_(x[0], y[0]),)
        if kind == "and":
            return (b.f.and_(x[0], y[0]),)
        predicate = "gt" if kind in ("max", "argmax") else "lt"
        better = b.compare(predicate, y[0], x[0])
        if kind in ("max", "min"):
            if is_float(y[0]):
                better = b.bit_or(better, b.is_nan(y[0]))
            return (b.select(better, y[0], x[0]),)
        # Arg-extrema: NaN beats all, equal values keep the smaller index; -1 is "none yet".
        none = b.compare("lt", x[1], b.zero(x[1]))
        valid = b.compare("ge", y[1], b.zero(y[1]))
        earlier = b.compare("lt", y[1], x[1])
        same = b.compare("eq", y[0], x[0])
        if is_float(y[0]):
            x_nan, y_nan = b.is_nan(x[0]), b.is_nan(y[0])
            better = b.bit_and(better, b.bit_not(x_nan))
            better = b.bit_or(better, b.bit_and(y_nan, b.bit_not(x_nan)))
            same = b.bit_or(same, b.bit_and(x_nan, y_nan))
        better = b.bit_or(better, b.bit_and(same, earlier))
        better = b.bit_and(b.bit_or(better, none), valid)
        return b.select(better, y[0], x[0]), b.select(better, y[1], x[1])

    def masked(self, mask: Val, operands: tuple[Val, ...], position: Val | None) -> Any:
        """Operands with the lanes outside `mask` replaced by what changes nothing."""
        b = self.b
        if self.kind == "dot":
            # fma(-0, 0, acc) leaves acc alone, -0.0 included.
            first = b.select(mask, operands[0], b.const(-0.0, operands[0]))
            return (first, b.select(mask, operands[1], b.zero(operands[1]))), position
        if position is not None:
            position = b.select(mask, position, b.const(-1, position))
            return operands, position
        value = operands[0]
        if value.kind == "i1":
            value = b.f.cast("zext", value, "i8")
        return (b.select(mask, value, self.start(value.width)[0]),), position

    def result(self, state: State) -> Val:
        """What is stored."""
        return state[1] if self.kind in ("argmax", "argmin") else state[0]


def fold(f: Function, combine: Combine, state: State) -> State:
    """Fold the lanes of a state by halves down to one."""
    width = state[0].width
    while width > 1:
        width //= 2
        low = tuple(_part(f, s, 0, width) for s in state)
        high = tuple(_part(f, s, width, width) for s in state)
        state = combine.join(low, high)
    return state


def _part(f: Function, x: Val, start: int, count: int) -> Val:
    if count == x.width:
        return x
    if count == 1:
        return f.extract(x, start)
    return f.shuffle(x, None, range(start, start + count))


class UnitTree:
    """The binary tree over units, as a stack with one pending partial result per level.

    Several reductions over the same units go up together, so that they share its branches.

    With several `columns` there is a tree for each: a block of vectors that are reduced together.
    Where a tree outlives a kernel its `stacks` are memory of the call.
    """

    def __init__(
        self,
        f: Function,
        combines: Sequence[Combine],
        width: int,
        columns: Val = ONE,
        stacks: list[Val] | None = None,
    ) -> None:
        self.f = f
        self.combines = combines
        self.width = width
        self.kinds = [kind for combine in combines for kind in combine.kinds()]
        self.columns = columns
        self.column: Val = constant("i64", 0)
        if stacks is None:
            count = DEPTH * int(columns.ref)
            stacks = [f.alloca(kind, width, count) for kind in self.kinds]
        self.stacks = stacks

    def _address(self, stack: Val, level: Val, kind: str) -> Val:
        f = self.f
        place = level
        if self.columns != ONE:
            place = f.add(f.mul(level, self.columns), self.column)
        return f.gep(stack, place, kind, self.width)

    def _get(self, level: Val) -> list[Val]:
        return [
            self.f.load(self._address(stack, level, kind), kind, self.width)
            for stack, kind in zip(self.stacks, self.kinds, strict=True)
        ]

    def _states(self, values: Sequence[Val]) -> list[State]:
        """The state of each reduction, from all their parts."""
        rest = iter(values)
        return [tuple(next(rest) for _ in combine.kinds()) for combine in self.combines]

    def _joined(self, earlier: Sequence[Val], later: Sequence[Val]) -> list[Val]:
        pairs = zip(self.combines, self._states(earlier), self._states(later), strict=True)
        return [part for combine, x, y in pairs for part in combine.join(x, y)]

    def push(self, unit: Val, states: Sequence[State]) -> None:
        """Add the partial results of the unit with this index."""
        f = self.f
        parts = [part for state in states for part in state]
        origin = f.here()
        head, body, leave = f.label("carry"), f.label("join"), f.label("pushed")
        f.branch(head)
        f.start(head)
        level = f.phi("i64")
        rest = f.phi("i64")
        carried = [f.phi(s.kind, s.width) for s in parts]
        odd = f.icmp("ne", f.and_(rest[0], constant("i64", 1)), constant("i64", 0))
        f.branch_if(odd, body, leave)
        f.start(body)
        joined = self._joined(self._get(level[0]), [c[0] for c in carried])
        next_level = f.add(level[0], constant("i64", 1))
        next_rest = f.lshr(rest[0], constant("i64", 1))
        end = f.here()
        f.branch(head)
        f.set_phi(level, [(constant("i64", 0), origin), (next_level, end)])
        f.set_phi(rest, [(unit, origin), (next_rest, end)])
        for phi, first, later in zip(carried, parts, joined, strict=True):
            f.set_phi(phi, [(first, origin), (later, end)])
        f.start(leave)
        for stack, value in zip(self.stacks, carried, strict=True):
            f.store(value[0], self._address(stack, level[0], value[0].kind))

    def total(self, units: Val) -> list[State]:
        """Join what is pending after `units` units, shortest runs first."""
        f = self.f
        origin = f.here()
        head, test, body = f.label("total"), f.label("test"), f.label("take")
        step, leave = f.label("step"), f.label("whole")
        lowest = f.emit(f"call i64 @llvm.cttz.i64(i64 {units.ref}, i1 true)", "i64")
        f.module.declare("llvm.cttz.i64", "i64", ["i64", "i1"])
        first = self._get(lowest)
        start = f.add(lowest, constant("i64", 1))
        f.branch(head)
        f.start(head)
        level = f.phi("i64")
        held = [f.phi(s.kind, s.width) for s in first]
        rest = f.lshr(units, level[0])
        f.branch_if(f.icmp("ne", rest, constant("i64", 0)), test, leave)
        f.start(test)
        odd = f.icmp("ne", f.and_(rest, constant("i64", 1)), constant("i64", 0))
        f.branch_if(odd, body, step)
        f.start(body)
        joined = self._joined(self._get(level[0]), [h[0] for h in held])
        body_end = f.here()
        f.branch(step)
        f.start(step)
        merged = [f.phi(h[0].kind, h[0].width) for h in held]
        following = f.add(level[0], constant("i64", 1))
        f.branch(head)
        for phi, old, new in zip(merged, held, joined, strict=True):
            f.set_phi(phi, [(old[0], test), (new, body_end)])
        f.set_phi(level, [(start, origin), (following, step)])
        for phi, begin, later in zip(held, first, merged, strict=True):
            f.set_phi(phi, [(begin, origin), (later[0], step)])
        f.start(leave)
        return self._states([h[0] for h in held])


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
        if layout.split:
            e.close(unit_loop)

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
            self._unit_in_rows(unit, units, start, stop, tree)

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

    def open_columns(self) -> tuple[Loop, Val]:
        """A loop over the vectors of the tile; also the vector's number in it."""
        e, f = self.e, self.f
        start, stop = self.tile
        loop = e.open(e.layout.vector, start, stop, e.width)
        e.set_lane_mask(stop)
        column = f.udiv(f.sub(loop.iv, start), constant("i64", e.width))
        return loop, column

    def _store_result(self, place: int, output: Output, combine: Combine, state: State) -> None:
        value = combine.result(state)
        if self.e.layout.mode == "outer":
            self.e.store(place, output, value)
            return
        offset, _ = self.e.scalar_offset(("out", place), output.offset)
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
                    offset, _ = e.vector_offset(("out", place), output.offset)
                    wide = f.add(f.mul(offset, f.splat(units, e.width)), f.splat(unit, e.width))
                    assert e.lane_mask is not None
                    f.masked_scatter(part, f.gep(room, wide, kind), e.lane_mask)
                else:
                    offset, _ = e.scalar_offset(("out", place), output.offset)
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
            whole = f.and_(length, constant("i64", -max(LANES, e.width)))
            middle = f.add(start, whole)
            loop = e.open(e.layout.axis, start, middle, e.width, carried, guarded=True)
            e.set_lane_mask(None)
            carried = e.close(loop, self._take_vector(loop))
            start = middle
        loop = e.open(e.layout.axis, start, end, e.width, carried, guarded=e.layout.peeled)
        e.set_lane_mask(size)
        ends = iter(e.close(loop, self._take_vector(loop)))
        return [
            [tuple(next(ends) for _ in combine.kinds()) for _ in range(turns)]
            for _, _, combine in self.reduced
        ]

    def _take_vector(self, loop: Loop) -> list[Val]:
        """The body of a loop along the reduced axis; what its accumulators become."""
        e, f = self.e, self.f
        turns = max(1, LANES // e.width)
        width = min(LANES, e.width)
        e.instructions()
        for place, output in self.stored:
            e.store(place, output, e.values[output.insts[0]])
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
                parts = tuple(_part(f, x, block, width) for x in operands)
                at = None if position is None else _part(f, position, block, width)
                state = combine.take(state, parts, at)
            for part in (*turn[1:], state):
                later.extend(part)
        return later

    def take_across(self, position: Val) -> None:
        """Take the values of a vector into what is reduced along another axis: here nothing is."""

    def _unit_in_rows(self, unit: Val, units: Val, start: Val, stop: Val, tree: UnitTree) -> None:
        """16 rows of accumulators in memory; vector lanes run along a kept axis, tile by tile.

        The rows of a tile are walked one after the other, so that memory is read in order.
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
            e.store(number, output, e.values[output.insts[0]])
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
        tree.column = column
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
        self._finish_unit(unit, units, partials, tree)
        e.close(loop)

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
        e.store(place, output, combine.result(state))
        e.close(loop, state)

"""How a nest stores what it computed.

One structure, `Stores`, beside the emitter whose values it stores. Lanes that follow one another go to
memory as a vector. Others are stored lane after lane, and if several outputs go to the same buffer,
all of them for each lane: what lies on one line of memory is then written together. Values that are
neighbours in memory, lane by lane, are transposed in registers and stored in rows
(`symgrad.codegen.transposition`). Start reading at `Stores.store_all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from symgrad.codegen.combine import part_of
from symgrad.codegen.gemm_tile import counted
from symgrad.codegen.ir import Function, Val, constant, i64, lanes
from symgrad.codegen.transposition import transposed
from symgrad.codegen.vmath import avx512
from symgrad.schedule.nest import Output

if TYPE_CHECKING:
    from symgrad.codegen.loops import LoopEmitter

TOGETHER = 4
"""Outputs whose lanes are stored in turn, at most: their values take registers meanwhile."""


class Columns(NamedTuple):
    """Values whose lanes go to lines of memory at a distance, side by side in each.

    Attributes
    ----------
    values : list of Val
    address : Val
        Of the first lane of the first value.
    distance : Val
        Elements from a lane to the next.
    """

    values: list[Val]
    address: Val
    distance: Val


def store_first(f: Function, value: Val, address: Val, count: int) -> None:
    """Store the first `count` lanes of a vector one after another."""
    if count < value.width and avx512.enabled():
        f.masked_store(value, address, lanes("i1", [k < count for k in range(value.width)]))
        return
    # Without mask registers a masked store takes as long as a dozen others: halves, quarters, ...
    start, part = 0, value.width
    while start < count:
        while start + part > count:
            part //= 2
        place = f.gep(address, constant("i64", start), value.kind) if start else address
        f.store(part_of(f, value, start, part), place)
        start += part


class Stores:
    """Emits the stores of a kernel in its current block."""

    def __init__(self, emitter: LoopEmitter) -> None:
        self.e = emitter
        self.f = emitter.f

    def store_all(self) -> None:
        """Store every output of the nest."""
        self.store_near()
        together: list[Columns] = []
        target = None
        for places in self.e.layout.columns:
            columns = self.columns([self.value_apart(place) for place in places], places[0])
            if len(places) > 1:
                self._store_columns([columns])
                continue
            output = self.e.nest.outputs[places[0]]
            if together and (target is not output.target or len(together) == TOGETHER):
                self._store_columns(together)
                together = []
            target = output.target
            together.append(columns)
        if together:
            self._store_columns(together)

    def store_near(self) -> None:
        """Store the outputs whose lanes do not go to places at a distance."""
        e = self.e
        apart = {place for places in e.layout.columns for place in places}
        rows: list[tuple[Val, Val]] = []
        for place, output in enumerate(e.nest.outputs):
            value = e.values[output.insts[0]]
            if output.scattered:
                self.combine_at(place, output, value)
            elif self._is_row(output):
                rows.append(self._row(place, output, self._in_memory(value)))
            elif place not in apart:
                self.store(place, output, value)
        if rows:
            self.store_rows(rows)

    def value_apart(self, place: int) -> Val:
        """The lanes of an output as they are stored."""
        e = self.e
        return self._in_memory(e.wide(e.values[e.nest.outputs[place].insts[0]]))

    def store_block(self, values: list[Val], place: int) -> None:
        """Store values of an output that belong to neighbouring places, the first of them at hand."""
        self._store_columns([self.columns(values, place)])

    def _is_row(self, output: Output) -> bool:
        """Whether lanes go to places that follow one another."""
        vector = self.e.layout.vector
        return self.e.width > 1 and vector >= 0 and output.offset.coefficient(vector) == 1

    def store(self, place: int, output: Output, value: Val) -> None:
        """Store a value for each lane at the output's offset."""
        f, e = self.f, self.e
        form = output.offset
        value = self._in_memory(value)
        base = e.base(output.target)
        vector = e.layout.vector
        if e.width == 1 or vector < 0:
            offset, _ = e.vector_offset(form)
            f.store(value, f.gep(base, offset, value.kind))
            return
        mask = e.lane_mask
        step = form.coefficient(vector)
        if step == 0:
            offset, _ = e.vector_offset(form)
            everywhere = mask or constant("i1", True, e.width)
            f.masked_scatter(e.wide(value), f.gep(base, offset, value.kind), everywhere)
        elif step == 1:
            self.store_rows([self._row(place, output, value)])
        else:
            self._store_columns([self.columns([e.wide(value)], place)])

    def _row(self, place: int, output: Output, value: Val) -> tuple[Val, Val]:
        """The lanes of a value, and the address of the first of them."""
        f, e = self.f, self.e
        offset, _ = e.scalar_offset(output.offset)
        row = f.gep(e.base(output.target), offset, value.kind)
        return e.wide(value), f.gep(row, e.variables[e.layout.vector], value.kind)

    def store_rows(self, rows: list[tuple[Val, Val]]) -> None:
        """Store lanes of values (value, address) that follow one another, as far as the mask goes."""
        f, mask = self.f, self.e.lane_mask
        if self.e.layout.row:
            for value, address in rows:
                store_first(f, value, address, self.e.layout.row)
            return
        if mask is None:
            for value, address in rows:
                f.store(value, address)
            return
        after = ""
        if not avx512.enabled():
            # Without mask registers a masked store takes as long as a dozen plain ones.
            whole, part, after = f.label("whole"), f.label("part"), f.label("after")
            f.branch_if(self.e.all_lanes, whole, part)
            f.start(whole)
            for value, address in rows:
                f.store(value, address)
            f.branch(after)
            f.start(part)
            mask = self.e.lanes_left()
        for value, address in rows:
            f.masked_store(value, address, mask)
        if after:
            f.branch(after)
            f.start(after)

    def _in_memory(self, value: Val) -> Val:
        return self.f.cast("zext", value, "i8") if value.kind == "i1" else value

    def columns(self, values: list[Val], place: int) -> Columns:
        """Values that lie side by side, the first one where the output is stored."""
        f, e = self.f, self.e
        output, vector = e.nest.outputs[place], e.layout.vector
        distance = e.parameter(e.layout.step(output.offset, vector))
        before = e.at(e.depth_of[vector])
        line = f.mul(e.variables[vector], distance)
        f.redirect(before)
        offset, _ = e.scalar_offset(output.offset)
        address = f.gep(e.base(output.target), f.add(offset, line), values[0].kind)
        return Columns(values, address, distance)

    def _store_columns(self, columns: list[Columns]) -> None:
        """Store lane after lane, which beats a scatter."""
        f, mask = self.f, self.e.lane_mask
        if mask is None or self.e.layout.row:
            self._store_whole(columns)
            return
        whole, part, after = f.label("whole"), f.label("part"), f.label("after")
        f.branch_if(self.e.all_lanes, whole, part)
        f.start(whole)
        self._store_whole(columns)
        f.branch(after)
        f.start(part)
        self._store_first(columns, self.e.lanes_left())
        f.branch(after)
        f.start(after)

    def _store_whole(self, columns: list[Columns]) -> None:
        """Store every lane, or those that a row of a known size has."""
        f = self.f
        rows = [transposed(f, c.values) if len(c.values) > 1 else [] for c in columns]
        addresses = [c.address for c in columns]
        for lane in range(self.e.layout.row or self.e.width):
            for number, (values, _, distance) in enumerate(columns):
                value = rows[number][lane] if rows[number] else f.extract(values[0], lane)
                f.store(value, addresses[number])
                addresses[number] = f.gep(addresses[number], distance, value.kind)

    def _store_first(self, columns: list[Columns], mask: Val) -> None:
        """Store the lanes of a mask, which are the first ones."""
        f, width = self.f, self.e.width
        parked = []
        for values, _, _ in columns:
            rooms = [f.alloca(value.kind, width) for value in values]
            for room, value in zip(rooms, values, strict=True):
                f.store(value, room)
            parked.append(rooms)
        held = f.emit(f"bitcast {mask} to i{width}", f"i{width}")
        number = f.intrinsic("ctpop", held.kind, 1, [held], suffix=held.kind)
        with counted(f, i64(0), f.cast("zext", number, "i64"), i64(1), "lane") as lane:
            for rooms, (values, address, distance) in zip(parked, columns, strict=True):
                kind = values[0].kind
                row = f.gep(address, f.mul(lane, distance), kind)
                for k, room in enumerate(rooms):
                    element = f.load(f.gep(room, lane, kind), kind)
                    f.store(element, f.gep(row, i64(k), kind) if k else row)

    def combine_at(self, place: int, output: Output, value: Val) -> None:
        """Combine a value with what the output holds at a computed position."""
        f, e = self.f, self.e
        memory = "i8" if value.kind == "i1" else value.kind
        value = self._in_memory(value)
        offset, _ = e.scalar_offset(output.offset)
        for v, _ in output.offset.terms:
            if v < 0:
                position = e.values[e.nest.dynamic[v]]
                if position.width > 1:
                    position = f.extract(position, 0)
                position = e.b.convert(position, "i64")
                offset = f.add(
                    offset, f.mul(position, e.parameter(e.layout.step(output.offset, v)))
                )
        address = f.gep(e.base(output.target), offset, memory)
        if e.width == 1:
            old = f.load(address, memory)
            f.store(self._combined(output.combine, old, value), address)
            return
        assert e.lane_mask is not None
        address = f.gep(address, e.variables[e.layout.vector], memory)
        old = f.masked_load(address, e.lane_mask, constant(memory, 0, e.width))
        new = self._combined(output.combine, old, e.wide(value))
        f.masked_store(new, address, e.lane_mask)

    def _combined(self, kind: str, old: Val, new: Val) -> Val:
        if kind == "add":
            return self.e.b.add(old, new)
        return self.f.or_(old, new) if kind == "or" else new

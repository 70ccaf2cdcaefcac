"""How a nest stores what it computed.

One structure, `Stores`, beside the emitter whose values it stores. Lanes that follow one another go to
memory as a vector. Others are stored one by one, and if several outputs go to the same buffer, lane
after lane: what lies on one line of memory is then written together. Start reading at
`Stores.store_all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from symgrad.codegen.combine import part_of
from symgrad.codegen.gemm_tile import counted
from symgrad.codegen.ir import Function, Val, constant, i64, lanes
from symgrad.codegen.vmath import avx512
from symgrad.schedule.affine import Affine
from symgrad.schedule.nest import Output

if TYPE_CHECKING:
    from symgrad.codegen.loops import LoopEmitter

TOGETHER = 4
"""Outputs whose lanes are stored in turn, at most: their values take registers meanwhile."""


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
        e = self.e
        group: list[tuple[int, Output]] = []
        rows: list[tuple[Val, Val]] = []
        for place, output in enumerate(e.nest.outputs):
            value = e.values[output.insts[0]]
            if output.scattered:
                self.combine_at(place, output, value)
            elif self._is_row(output):
                rows.append(self._row(place, output, self._in_memory(value)))
            elif not self._is_apart(output):
                self.store(place, output, value)
            else:
                if group and (group[0][1].target is not output.target or len(group) == TOGETHER):
                    self._store_apart(group)
                    group = []
                group.append((place, output))
        if group:
            self._store_apart(group)
        if rows:
            self.store_rows(rows)

    def _is_row(self, output: Output) -> bool:
        """Whether lanes go to places that follow one another."""
        vector = self.e.layout.vector
        return self.e.width > 1 and vector >= 0 and output.offset.coefficient(vector) == 1

    def _is_apart(self, output: Output) -> bool:
        """Whether lanes go to places at a distance."""
        return self.e.width > 1 and output.offset.coefficient(self.e.layout.vector) not in (0, 1)

    def store(self, place: int, output: Output, value: Val) -> None:
        """Store a value for each lane at the output's offset."""
        f, e = self.f, self.e
        form, what = output.offset, ("out", place)
        value = self._in_memory(value)
        base = e.base(output.target)
        vector = e.layout.vector
        if e.width == 1 or vector < 0:
            offset, _ = e.vector_offset(what, form)
            f.store(value, f.gep(base, offset, value.kind))
            return
        mask = e.lane_mask
        step = form.coefficient(vector)
        if step == 0:
            offset, _ = e.vector_offset(what, form)
            everywhere = mask or constant("i1", True, e.width)
            f.masked_scatter(e.wide(value), f.gep(base, offset, value.kind), everywhere)
        elif step == 1:
            self.store_rows([self._row(place, output, value)])
        else:
            self._store_lanes([(value, *self._lanes_of(place, form, base, value.kind))])

    def _row(self, place: int, output: Output, value: Val) -> tuple[Val, Val]:
        """The lanes of a value, and the address of the first of them."""
        f, e = self.f, self.e
        offset, _ = e.scalar_offset(("out", place), output.offset)
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

    def _lanes_of(self, place: int, form: Affine, base: Val, memory: str) -> tuple[Val, Val]:
        """The address of the first lane, and the distance of each from the one before."""
        e = self.e
        offset, _ = e.vector_offset(("out", place), form)
        address = self.f.gep(base, self.f.extract(offset, 0), memory)
        return address, e.parameter((("out", place), e.layout.vector))

    def _store_apart(self, outputs: list[tuple[int, Output]]) -> None:
        stored = []
        for place, output in outputs:
            value = self._in_memory(self.e.wide(self.e.values[output.insts[0]]))
            base = self.e.base(output.target)
            stored.append((value, *self._lanes_of(place, output.offset, base, value.kind)))
        self._store_lanes(stored)

    def _store_lanes(self, stored: list[tuple[Val, Val, Val]]) -> None:
        """Store lanes of values (value, first address, distance) one by one, which beats a scatter."""
        f, width = self.f, self.e.width
        stored = [(self.e.wide(value), at, distance) for value, at, distance in stored]
        mask = self.e.lane_mask
        part, after = f.label("part"), f.label("after")
        if mask is not None:
            whole = f.label("whole")
            f.branch_if(self.e.all_lanes, whole, part)
            f.start(whole)
        addresses = [address for _, address, _ in stored]
        for lane in range(width):
            for number, (value, _, distance) in enumerate(stored):
                f.store(f.extract(value, lane), addresses[number])
                addresses[number] = f.gep(addresses[number], distance, value.kind)
        if mask is None:
            return
        f.branch(after)
        f.start(part)
        self._store_first(stored, self.e.lanes_left())
        f.branch(after)
        f.start(after)

    def _store_first(self, stored: list[tuple[Val, Val, Val]], mask: Val) -> None:
        """Store the lanes of a mask, which are the first ones."""
        f, width = self.f, self.e.width
        parked = []
        for value, _, _ in stored:
            room = f.alloca(value.kind, width)
            f.store(value, room)
            parked.append(room)
        held = f.emit(f"bitcast {mask} to i{width}", f"i{width}")
        number = f.intrinsic("ctpop", held.kind, 1, [held], suffix=held.kind)
        with counted(f, i64(0), f.cast("zext", number, "i64"), i64(1), "lane") as lane:
            for room, (value, address, distance) in zip(parked, stored, strict=True):
                element = f.load(f.gep(room, lane, value.kind), value.kind)
                f.store(element, f.gep(address, f.mul(lane, distance), value.kind))

    def combine_at(self, place: int, output: Output, value: Val) -> None:
        """Combine a value with what the output holds at a computed position."""
        f, e = self.f, self.e
        memory = "i8" if value.kind == "i1" else value.kind
        value = self._in_memory(value)
        offset, _ = e.scalar_offset(("out", place), output.offset)
        for v, _ in output.offset.terms:
            if v < 0:
                position = e.values[e.nest.dynamic[v]]
                if position.width > 1:
                    position = f.extract(position, 0)
                position = e.b.convert(position, "i64")
                offset = f.add(offset, f.mul(position, e.parameter((("out", place), v))))
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

"""Vector code of a loop nest.

One structure, `LoopEmitter`: it opens the loops of a `Layout`, emits each instruction of the nest
in the outermost loop where its operands are known, and closes the loops with stores, or with
the fixed tree of a reduction (`symgrad.codegen.reduction`).

Kernel signature: ``void kernel(ptr slots, ptr args, i64 lo, i64 hi)`` as `symgrad.codegen.plan`
says. Loops are bottom-tested: a nest is never empty. Start reading at `emit_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgrad.codegen.crossed import CrossedReduction
from symgrad.codegen.gemm_tile import least
from symgrad.codegen.ir import Function, Module, Section, Val, constant, lanes
from symgrad.codegen.layout import LANES, NO_AXIS, Layout
from symgrad.codegen.lowering import Lowering
from symgrad.codegen.plain import PlainLoops
from symgrad.codegen.reduction import Reduction
from symgrad.codegen.resumption import ResumedReduction
from symgrad.codegen.stores import Stores
from symgrad.codegen.vmath import avx512
from symgrad.dtypes import DType, uint8
from symgrad.schedule.affine import Affine
from symgrad.schedule.nest import Inst

ARGUMENTS = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]


def emit_kernel(module: Module, name: str, layout: Layout) -> None:
    """Add the kernel of `layout` to `module`."""
    LoopEmitter(module, name, layout).emit()


class Loop:
    """An open loop: its variable, the values it carries, and what is needed to close it.

    It runs at least once, unless it is `guarded` or has a condition, `going`: then it runs while that
    holds, and `end` is not asked for.
    """

    def __init__(
        self,
        f: Function,
        axis: int,
        start: Val,
        end: Val,
        step: int,
        first: Sequence[Val],
        guarded: bool = False,
        going: Val | None = None,
    ) -> None:
        guarded = guarded or going is not None
        self.end = end
        self.axis = axis
        self.step = constant("i64", step)
        self.guarded = guarded
        self.head = f.label("loop")
        self.leave = f.label("after")
        self.first = (start, *first)
        some = going
        if guarded and some is None:
            some = f.icmp("slt", start, end)
        self.origin = f.here()
        if some is None:
            f.branch(self.head)
        else:
            f.branch_if(some, self.head, self.leave)
        f.start(self.head)
        self.phis = [f.phi(v.kind, v.width) for v in self.first]
        self.iv = self.phis[0][0]
        self.carried = [p[0] for p in self.phis[1:]]

    def close(self, f: Function, later: Sequence[Val], going: Val | None = None) -> list[Val]:
        """End the loop, passing on what it carries; returns the last values of that."""
        following = f.add(self.iv, self.step)
        again = f.icmp("slt", following, self.end) if going is None else going
        latch = f.here()
        f.branch_if(again, self.head, self.leave)
        for phi, first, then in zip(self.phis, self.first, (following, *later), strict=True):
            f.set_phi(phi, [(first, self.origin), (then, latch)])
        f.start(self.leave)
        if not self.guarded:
            return list(later)
        lasts = []
        for first, then in zip(self.first[1:], later, strict=True):
            last = f.phi(then.kind, then.width)
            f.set_phi(last, [(first, self.origin), (then, latch)])
            lasts.append(last[0])
        return lasts


class LoopEmitter:
    """Emits one kernel."""

    def __init__(self, module: Module, name: str, layout: Layout) -> None:
        self.layout = layout
        self.nest = layout.nest
        self.f = Function(module, name, ARGUMENTS, None, "nounwind")
        self.b = Lowering(self.f, layout.inline)
        self.width = layout.width
        self.sections: list[Section] = []
        self.variables: dict[int, Val] = {}
        self.depth_of: dict[int, int] = {}
        # Of the instructions: their values, and the levels of the loops where they stand.
        self.values: dict[int, Val] = {}
        self.levels: dict[int, int] = {}
        self._bases: dict[int, Val] = {}
        self._parameters: dict[int, Val] = {}
        self._offsets: dict[tuple[Affine, int], tuple[Val, int]] = {}
        # Lanes that take part, None for all of them; whether these are all; where they end.
        self.lane_mask: Val | None = None
        self.all_lanes: Val
        self._end: Val
        self._masked = False
        self.stores = Stores(self)
        # The level of the first body; what stands outside it serves every other body too.
        self._innermost = 0
        # An axis, and how many steps ahead of its loop's variable the emitted code is.
        self._ahead = (NO_AXIS, 0)

    # -- parameters and memory --------------------------------------------------------

    def at(self, level: int) -> Section:
        """Redirect emission to the section of a loop level; returns what to restore."""
        return self.f.redirect(self.sections[level])

    def parameter(self, what: Any) -> Val:
        """A run-time number, loaded once at the top of the kernel."""
        place = self.layout.parameter(what, None)
        found = self._parameters.get(place)
        if found is None:
            before = self.at(0)
            address = self.f.gep(self.f.arguments[1], constant("i64", place), "i64")
            found = self._parameters[place] = self.f.load(address, "i64")
            self.f.redirect(before)
        return found

    def base(self, node: Any) -> Val:
        """The base address of a node's buffer (None: scratch)."""
        place = self.layout.slot(node)
        found = self._bases.get(place)
        if found is None:
            before = self.at(0)
            what = ("slot", None if node is None else node.number)
            number = self.parameter(what)
            address = self.f.gep(self.f.arguments[0], number, "ptr")
            found = self._bases[place] = self.f.load(address, "ptr")
            self.f.redirect(before)
        return found

    def scalar_offset(self, form: Affine) -> tuple[Val, int]:
        """The part of an offset that is the same in all lanes, and the level where it is known."""
        axes = [v for v, _ in form.terms if v >= 0 and v != self.layout.vector]
        level = max((self.depth_of[v] for v in axes), default=0)
        axis, steps = self._ahead
        steps = steps if axis in axes else 0
        found = self._offsets.get((form, steps))
        if found is not None:
            return found
        if form.const:
            total, _ = self.scalar_offset(Affine(0, form.terms))
            before = self.at(level)
            total = self._sum(total, self.parameter(self.layout.const(form)))
        elif steps:
            self._ahead = (axis, steps - 1)
            total, _ = self.scalar_offset(form)
            self._ahead = (axis, steps)
            before = self.at(level)
            total = self.f.add(total, self.parameter(self.layout.step(form, axis)))
        else:
            before = self.at(level)
            total = constant("i64", 0)
            for v in axes:
                step = self.parameter(self.layout.step(form, v))
                total = self._sum(total, self.f.mul(self.variables[v], step))
        self.f.redirect(before)
        self._offsets[form, steps] = (total, level)
        return total, level

    def _sum(self, x: Val, y: Val) -> Val:
        return y if x.ref == "0" else self.f.add(x, y)

    def go_ahead(self, axis: int, steps: int) -> None:
        """From here on, emit code for an axis some steps ahead of where its loop is."""
        self._ahead = (axis, steps)
        self.forget(axis)

    def forget(self, axis: int) -> None:
        """Emit anew, in another loop over an axis, what depends on it or on loops inside it."""
        level = self.depth_of[axis]
        self.values = {k: v for k, v in self.values.items() if self.levels[k] < level}

    def vector_offset(self, form: Affine) -> tuple[Val, int]:
        """Element offsets lane by lane, and the level where they are known."""
        scalar, level = self.scalar_offset(form)
        width = self.width
        parts: list[Val] = []
        for v, _ in form.terms:
            if v == self.layout.vector:
                level = max(level, self.depth_of[v])
            elif v < 0:
                level = max(level, self.levels[self.nest.dynamic[v]])
        before = self.at(level)
        total = self.f.splat(scalar, width)
        for v, k in form.terms:
            if v == self.layout.vector:
                position = self.lane_positions()
                if k != 1:
                    factor = self.f.splat(self.parameter(self.layout.step(form, v)), width)
                    position = self.f.mul(position, factor)
                parts.append(position)
            elif v < 0:
                value = self.wide(self.values[self.nest.dynamic[v]])
                value = self.b.convert(value, "i64")
                factor = self.f.splat(self.parameter(self.layout.step(form, v)), width)
                parts.append(self.f.mul(value, factor))
        for part in parts:
            total = self.f.add(total, part)
        self.f.redirect(before)
        return total, level

    def lane_positions(self) -> Val:
        iv = self.variables[self.layout.vector]
        if self.width == 1:
            return iv
        return self.f.add(self.f.splat(iv, self.width), lanes("i64", range(self.width)))

    def wide(self, value: Val) -> Val:
        return value if value.width == self.width else self.f.splat(value, self.width)

    def load_element(self, address: Val, dtype: DType) -> Val:
        """A scalar from memory; bool is one byte there and one bit in registers."""
        if dtype.kind == "i1":
            return self.f.icmp("ne", self.f.load(address, "i8"), constant("i8", 0))
        return self.f.load(address, dtype.kind)

    # -- instructions -----------------------------------------------------------------

    def instructions(self, chosen: Sequence[int] | None = None) -> None:
        """Emit instructions, all or those chosen, each in the outermost loop where it can stand.

        For a second loop over the same axis, those of the first are emitted again.
        """
        for number in range(len(self.nest.insts)) if chosen is None else chosen:
            inst = self.nest.insts[number]
            if number in self.values and self.levels[number] < self._innermost:
                continue
            if inst.kind == "load":
                value, level = self._load(number, inst)
            elif inst.kind == "constant":
                value, level = self.b.const(inst.value, Val("", inst.dtype.kind, self.width)), 0
            elif inst.kind == "position":
                value, level = self.vector_offset(inst.offset)
            elif inst.kind == "inside":
                value, level = self._inside(number, inst)
            else:
                value, level = self._operation(inst)
            self.values[number], self.levels[number] = value, level
        if not self._innermost:
            self._innermost = len(self.sections) - 1

    def _operation(self, inst: Inst) -> tuple[Val, int]:
        assert inst.op is not None
        level = max((self.levels[a] for a in inst.args), default=0)
        before = self.at(level)
        attrs = dict(zip(inst.op.attributes, inst.attrs, strict=True))
        self.b.unsigned = any(self.nest.insts[a].dtype is uint8 for a in inst.args)
        value = inst.op.lower(self.b, *[self.values[a] for a in inst.args], **attrs)
        self.b.unsigned = False
        self.f.redirect(before)
        return value, level

    def _inside(self, number: int, inst: Inst) -> tuple[Val, int]:
        result: Val | None = None
        level = 0
        if inst.args:
            result, level = self.values[inst.args[0]], self.levels[inst.args[0]]
        for place, (form, _) in enumerate(inst.bounds):
            position, at = self.vector_offset(form)
            level = max(level, at)
            before = self.at(level)
            bound = self.f.splat(self.parameter((number, place, "bound")), self.width)
            # Unsigned comparison tests both ends at once: a negative position is huge.
            test = self.f.icmp("ult", position, bound)
            result = test if result is None else self.f.and_(result, test)
            self.f.redirect(before)
        if result is None:
            return self.b.const(True, Val("", "i1", self.width)), 0
        return result, level

    def _load(self, number: int, inst: Inst) -> tuple[Val, int]:
        assert inst.node is not None
        dtype = inst.dtype
        base = self.base(inst.node)
        form = inst.offset
        step = form.coefficient(self.layout.vector) if self.layout.vector >= 0 else 0
        dynamic = any(v < 0 for v, _ in form.terms)
        memory = "i8" if dtype.kind == "i1" else dtype.kind
        guard_level = self.levels[inst.guard] if inst.guard >= 0 else 0
        if not dynamic and step == 0 and inst.guard < 0:
            scalar, level = self.scalar_offset(form)
            before = self.at(level)
            value = self.load_element(self.f.gep(base, scalar, memory), dtype)
            value = self.f.splat(value, self.width)
            self.f.redirect(before)
            return value, level
        if self.width == 1:
            offset, level = self.vector_offset(form)
            level = max(level, guard_level)
            before = self.at(level)
            if inst.guard >= 0:
                offset = self.f.select(self.values[inst.guard], offset, constant("i64", 0))
            value = self.load_element(self.f.gep(base, offset, memory), dtype)
            self.f.redirect(before)
            return value, level
        place = self.layout.pair_place(inst)
        if dynamic and step == 1 and self.layout.is_same_in_lanes(form):
            dynamic = False
            offset, level = self._row_offset(form)
            level = max(level, self.depth_of[self.layout.vector])
        elif (dynamic or step != 1) and place < 0:
            offset, level = self.vector_offset(form)
        else:
            offset, level = self.scalar_offset(form)
            level = max(level, self.depth_of[self.layout.vector])
        level = max(level, guard_level)
        if step != 0 or inst.guard >= 0 or dynamic:
            level = max(level, self.depth_of[self.layout.vector])
        before = self.at(level)
        other = constant(memory, 0, self.width)
        if place >= 0:
            row = self.f.gep(base, offset, memory)
            value = self._one_of_pairs(row, place, inst.guard, memory)
        elif dynamic or step != 1:
            everywhere = self._mask(inst.guard) or constant("i1", True, self.width)
            value = self.f.masked_gather(self.f.gep(base, offset, memory), everywhere, other)
        else:
            row = self.f.gep(base, offset, memory)
            address = self.f.gep(row, self.variables[self.layout.vector], memory)
            value = self._consecutive(address, inst.guard, memory)
        if dtype.kind == "i1":
            value = self.f.icmp("ne", value, other)
        self.f.redirect(before)
        return value, level

    def _row_offset(self, form: Affine) -> tuple[Val, int]:
        """The part of an offset that is the same in all lanes, computed positions included."""
        f = self.f
        offset, level = self.scalar_offset(form)
        level = max([level, *[self.levels[self.nest.dynamic[v]] for v, _ in form.terms if v < 0]])
        before = self.at(level)
        for v, _ in form.terms:
            if v < 0:
                position = self.values[self.nest.dynamic[v]]
                if position.width > 1:
                    position = f.extract(position, 0)
                step = self.parameter(self.layout.step(form, v))
                offset = f.add(offset, f.mul(self.b.convert(position, "i64"), step))
        f.redirect(before)
        return offset, level

    def _consecutive(self, address: Val, guard: int, memory: str, each: int = 1) -> Val:
        """`each` consecutive places of memory per lane, 0 where the mask or the guard does not hold.

        Processors with registers of 256 bits do not fetch ahead for loads under a mask, and take longer
        for them. So whole vectors are loaded without one.
        """
        f, width = self.f, each * self.width
        other = constant(memory, 0, width)
        if guard < 0 and self.lane_mask is None:
            return f.load(address, memory, width)
        if guard >= 0 or self._masked or avx512.enabled():
            mask = self._mask(guard)
            assert mask is not None
            return f.masked_load(address, f.repeated(mask, each), other)
        whole, part, after = f.label("whole"), f.label("part"), f.label("loaded")
        f.branch_if(self.all_lanes, whole, part)
        f.start(whole)
        every = f.load(address, memory, width)
        f.branch(after)
        f.start(part)
        some = f.masked_load(address, f.repeated(self.lanes_left(), each), other)
        f.branch(after)
        f.start(after)
        value = f.phi(memory, width)
        f.set_phi(value, [(every, whole), (some, part)])
        return value[0]

    def _one_of_pairs(self, row: Val, place: int, guard: int, memory: str) -> Val:
        """Every second element, read with its neighbours: consecutive loads and a shuffle."""
        f = self.f
        first = f.gep(row, constant("i64", -place), memory) if place else row
        address = f.gep(
            first, f.mul(self.variables[self.layout.vector], constant("i64", 2)), memory
        )
        both = self._consecutive(address, guard, memory, 2)
        return f.shuffle(both, None, [2 * k + place for k in range(self.width)])

    def _mask(self, guard: int) -> Val | None:
        if guard < 0:
            return self.lane_mask
        held = self.wide(self.values[guard])
        return held if self.lane_mask is None else self.f.and_(self.lane_mask, held)

    # -- loops ------------------------------------------------------------------------

    def emit(self) -> None:
        f = self.f
        layout = self.layout
        self.sections.append(f.section())
        if layout.resumed:
            ResumedReduction(self).emit()
        elif layout.mode in ("inner", "outer"):
            Reduction(self).emit()
        elif layout.mode == "crossed":
            CrossedReduction(self).emit()
        elif not layout.order:
            self.instructions()
            self.stores.store_all()
        else:
            PlainLoops(self).emit()
        f.ret()
        f.finish()

    def chunk_range(self, size: Val) -> tuple[Val, Val]:
        """The part [start, end) of an axis that this call does."""
        f = self.f
        chunk = self.parameter("chunk")
        start = f.mul(f.arguments[2], chunk)
        end = f.mul(f.arguments[3], chunk)
        beyond = f.icmp("slt", end, size)
        return start, f.select(beyond, end, size)

    def open(
        self,
        axis: int,
        start: Val,
        end: Val,
        step: int,
        first: Sequence[Val] = (),
        guarded: bool = False,
    ) -> Loop:
        """Begin a bottom-tested loop; instructions of this level go to its section.

        `first` are the initial values of what the loop carries besides its variable. A loop that
        may have nothing to do is to be `guarded`.
        """
        loop = Loop(self.f, axis, start, end, step, first, guarded)
        self.enter(axis, loop.iv)
        return loop

    def enter(self, axis: int, position: Val) -> None:
        """From here on, instructions that depend on an axis stand here and are at this position."""
        if axis in self.depth_of and axis != self.layout.vector:
            level = self.depth_of[axis]
            self._offsets = {k: v for k, v in self._offsets.items() if v[1] < level}
        self.variables[axis] = position
        self.sections.append(self.f.section())
        self.depth_of[axis] = len(self.sections) - 1

    def close(self, loop: Loop, later: Sequence[Val] = ()) -> list[Val]:
        """End a loop, passing on what it carries; returns the last values of that."""
        return loop.close(self.f, later)

    def set_lane_mask(self, end: Val | None, masked: bool = False) -> None:
        """Only lanes of the current vector that lie before `end` take part; all, if it is None.

        Whole vectors are loaded `masked` too where they are rare, or the mask is a register anyway.
        """
        if self.width == 1 or end is None:
            self.lane_mask = None
            return
        f = self.f
        before = self.at(self.depth_of[self.layout.vector])
        self._end, self._masked = end, masked
        following = f.add(self.variables[self.layout.vector], constant("i64", self.width))
        self.all_lanes = f.icmp("sle", following, end)
        self.lane_mask = self.lanes_left()
        f.redirect(before)

    def lanes_left(self) -> Val:
        """The lane mask, computed at the current place: where whole vectors need none, rarely."""
        count = self.f.sub(self._end, self.variables[self.layout.vector])
        if self.width < LANES or not avx512.enabled():
            # LLVM 22 stores eight bytes under a mask made of bits as if it had sixteen lanes.
            return self._lanes_below(count)
        return self._first_lanes(count)

    def _lanes_below(self, count: Val) -> Val:
        """The mask of the first `count` lanes, by comparing numbers as wide as the elements."""
        f = self.f
        kind = "i64" if self.layout.is_wide() else "i32"
        if kind == "i32":
            count = f.cast("trunc", least(f, count, constant("i64", self.width)), kind)
        return f.icmp("slt", lanes(kind, range(self.width)), f.splat(count, self.width))

    def _first_lanes(self, count: Val) -> Val:
        """The mask of the first `count` lanes, none if it is negative.

        It comes from one scalar: to compare the positions of all lanes takes several vector instructions.
        """
        f = self.f
        zero, width, ones = (constant("i64", k) for k in (0, self.width, -1))
        count = f.select(f.icmp("slt", count, width), count, width)
        count = f.select(f.icmp("sgt", count, zero), count, zero)
        return f.lanes_of_bits(f.xor(f.shl(ones, count), ones), self.width)

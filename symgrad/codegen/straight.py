"""Code of a nest that is written out: scalars and one vector length, no loop.

One structure, `StraightEmitter`. A value is a scalar where it does not depend on the axis, else a
vector of the axis' elements, padded to a power of two. Functions of scalars that do not wait for
each other are computed side by side, in the lanes of one vector: vector maths has the same bits at
any width. A reduction folds the lanes as `symgrad.codegen.reduction` says. Sizes, strides and
offsets are numbers in the code. Start reading at `StraightEmitter.emit`.
"""

from __future__ import annotations

from typing import Any

from symgrad.codegen.combine import Combine, fold, part_of
from symgrad.codegen.ir import FLOAT_BITS, Function, Module, Val, constant, lanes
from symgrad.codegen.layout import FUNCTION_COST, LANES, Layout
from symgrad.codegen.loops import ARGUMENTS
from symgrad.codegen.lowering import Lowering
from symgrad.codegen.stores import store_first
from symgrad.dtypes import DType, uint8
from symgrad.schedule.affine import Affine
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Inst, Output

REGISTER = 64
"""Bytes of a vector register: as many functions of scalars are computed at once as fit in."""

AXIS = 0


def emit_straight(module: Module, name: str, layout: Layout) -> None:
    """Add the kernel of a straight layout to `module`."""
    StraightEmitter(module, name, layout).emit()


class StraightEmitter:
    """Emits one kernel."""

    def __init__(self, module: Module, name: str, layout: Layout) -> None:
        self.layout = layout
        self.nest = layout.nest
        self.f = Function(module, name, ARGUMENTS, None, "nounwind")
        self.b = Lowering(self.f, layout.inline)
        self.width = layout.width
        self.size = self.nest.sizes[AXIS] if self.nest.sizes else 1
        self.inside = lanes("i1", [k < self.size for k in range(self.width)])
        self.values: dict[int, Val] = {}
        self._wide: dict[str, Val] = {}
        self._bases: dict[int, Val] = {}

    def emit(self) -> None:
        """Instructions and stores, each store as soon as its value is there."""
        outputs: dict[int, list[Output]] = {}
        for output in self.nest.outputs:
            outputs.setdefault(max(output.insts), []).append(output)
        for group in self._order():
            if len(group) == 1:
                self.values[group[0]] = self._value(self.nest.insts[group[0]])
            else:
                self._side_by_side(group)
            for number in group:
                for output in outputs.get(number, ()):
                    value = self._reduced(output) if output.combine else self.values[number]
                    self._store(output, value)
        self.f.ret()
        self.f.finish()

    # -- order ------------------------------------------------------------------------

    def _order(self) -> list[list[int]]:
        """Instructions in order, functions of scalars that can be computed together in groups."""
        insts = self.nest.insts
        varies = self._varying()
        stage: list[int] = []
        plain: dict[int, list[int]] = {}
        together: dict[int, dict[Any, list[int]]] = {}
        for number, inst in enumerate(insts):
            needed = [*inst.args, inst.guard] if inst.guard >= 0 else inst.args
            ready = max((stage[a] for a in needed), default=0)
            if self._is_function(inst) and not varies[number]:
                kinds = tuple(insts[a].dtype for a in inst.args)
                key = (inst.op, inst.attrs, inst.dtype, kinds)
                together.setdefault(ready, {}).setdefault(key, []).append(number)
                ready += 1
            else:
                plain.setdefault(ready, []).append(number)
            stage.append(ready)
        order: list[list[int]] = []
        for now in range(max(stage, default=0) + 1):
            order.extend([n] for n in plain.get(now, ()))
            for group in together.get(now, {}).values():
                room = REGISTER // insts[group[0]].dtype.itemsize
                # Sine and cosine of the same arguments meet if both have them in one order.
                group.sort(key=lambda n: insts[n].args)
                order.extend(group[k : k + room] for k in range(0, len(group), room))
        return order

    def _is_function(self, inst: Inst) -> bool:
        costly = inst.op is not None and inst.op.cost >= FUNCTION_COST
        floats = [self.nest.insts[a].dtype.kind in FLOAT_BITS for a in inst.args]
        return costly and bool(floats) and all(floats)

    def _varying(self) -> list[bool]:
        """Which instructions depend on the axis."""
        varying: list[bool] = []
        for inst in self.nest.insts:
            own = bool(inst.offset.coefficient(AXIS)) or any(
                form.coefficient(AXIS) for form, _ in inst.bounds
            )
            guarded = inst.guard >= 0 and varying[inst.guard]
            varying.append(own or guarded or any(varying[a] for a in inst.args))
        return varying

    # -- values -----------------------------------------------------------------------

    def _value(self, inst: Inst) -> Val:
        if inst.kind == "load":
            return self._load(inst)
        if inst.kind == "constant":
            return self.b.const(inst.value, Val("", inst.dtype.kind))
        if inst.kind == "position":
            return self._positions(inst.offset)
        if inst.kind == "inside":
            return self._inside(inst)
        return self._apply(inst, [self.values[a] for a in inst.args])

    def _apply(self, inst: Inst, args: list[Val]) -> Val:
        assert inst.op is not None
        if any(a.width > 1 for a in args):
            args = [self.wide(a) for a in args]
        attrs = dict(zip(inst.op.attributes, inst.attrs, strict=True))
        self.b.unsigned = any(self.nest.insts[a].dtype is uint8 for a in inst.args)
        value: Val = inst.op.lower(self.b, *args, **attrs)
        self.b.unsigned = False
        return value

    def _side_by_side(self, group: list[int]) -> None:
        """One vector operation for the same function of several scalars."""
        insts = [self.nest.insts[n] for n in group]
        width = 1 << (len(group) - 1).bit_length()
        columns = zip(*[inst.args for inst in insts], strict=True)
        packed = self._apply(insts[0], [self._packed(column, width) for column in columns])
        for lane, number in enumerate(group):
            self.values[number] = self.f.extract(packed, lane)

    def _reduced(self, output: Output) -> Val:
        """The elements of a vector as the one unit of the fixed tree that they are."""
        element = self.nest.insts[output.insts[0]].dtype.kind
        combine = Combine(output.combine, element, output.identity, self.b)
        operands = tuple(self.wide(self.values[n]) for n in output.insts)
        position = None
        if len(combine.kinds()) > 1:
            position = lanes("i64", range(self.width))
        operands, position = combine.masked(self.inside, operands, position)
        width = min(LANES, self.width)
        state = combine.start(width)
        for start in range(0, self.width, width):
            parts = tuple(part_of(self.f, x, start, width) for x in operands)
            at = None if position is None else part_of(self.f, position, start, width)
            state = combine.take(state, parts, at)
        return combine.result(fold(self.f, combine, state))

    def _packed(self, numbers: tuple[int, ...], width: int) -> Val:
        """Scalars as the lanes of a vector, the last one again in what is left."""
        key = f"{width}:{numbers}"
        found = self._wide.get(key)
        if found is None:
            scalars = [self.values[n] for n in numbers]
            scalars += [scalars[-1]] * (width - len(scalars))
            found = self.f.splat(scalars[0], width)
            for lane, scalar in enumerate(scalars[1:], 1):
                found = self.f.insert(found, scalar, lane)
            self._wide[key] = found
        return found

    def wide(self, value: Val) -> Val:
        """A value as a vector."""
        if value.width > 1 or self.width == 1:
            return value
        found = self._wide.get(value.ref)
        if found is None or found.kind != value.kind:
            found = self._wide[value.ref] = self.f.splat(value, self.width)
        return found

    def _places(self, form: Affine) -> list[int]:
        """What a form is in each lane."""
        step = form.coefficient(AXIS)
        return [form.const + step * k for k in range(self.width if step else 1)]

    def _positions(self, form: Affine) -> Val:
        places = self._places(form)
        return lanes("i64", places) if len(places) > 1 else constant("i64", places[0])

    def _inside(self, inst: Inst) -> Val:
        varies = any(form.coefficient(AXIS) for form, _ in inst.bounds)
        holds = [True] * (self.width if varies else 1)
        for form, bound in inst.bounds:
            places = self._places(form)
            within = [0 <= p < bound for p in places] * (1 if len(places) > 1 else len(holds))
            holds = [a and b for a, b in zip(holds, within, strict=True)]
        made = lanes("i1", holds) if varies else constant("i1", holds[0])
        if not inst.args:
            return made
        given = self.values[inst.args[0]]
        if given.width != made.width:
            given, made = self.wide(given), self.wide(made)
        return self.f.and_(given, made)

    # -- memory -----------------------------------------------------------------------

    def base(self, node: Node) -> Val:
        """The base address of a node's buffer."""
        place = self.layout.slot(node)
        found = self._bases.get(place)
        if found is None:
            slots, args = self.f.arguments[:2]
            number = self.f.load(self.f.gep(args, constant("i64", place), "i64"), "i64")
            found = self._bases[place] = self.f.load(self.f.gep(slots, number, "ptr"), "ptr")
        return found

    def _address(self, base: Val, offset: int, memory: str) -> Val:
        return self.f.gep(base, constant("i64", offset), memory) if offset else base

    def _load(self, inst: Inst) -> Val:
        assert inst.node is not None
        base, form, dtype = self.base(inst.node), inst.offset, inst.dtype
        memory = "i8" if dtype.kind == "i1" else dtype.kind
        step = form.coefficient(AXIS)
        guard = self.values[inst.guard] if inst.guard >= 0 else None
        if step == 0 and (guard is None or guard.width == 1):
            return self._scalar(base, form.const, dtype, guard)
        mask = self.inside
        if guard is not None:
            mask = self.f.and_(mask, self.wide(guard))
        none = constant(memory, 0, self.width)
        if step == 1:
            value = self.f.masked_load(self._address(base, form.const, memory), mask, none)
        else:
            places = (
                self.f.gep(base, lanes("i64", self._places(form)), memory)
                if step
                else (self.f.splat(self._address(base, form.const, memory), self.width))
            )
            value = self.f.masked_gather(places, mask, none)
        return self.f.icmp("ne", value, none) if dtype.kind == "i1" else value

    def _scalar(self, base: Val, place: int, dtype: DType, guard: Val | None) -> Val:
        """One element from memory, read where a guard holds; else the first in its place."""
        offset = constant("i64", place)
        if guard is not None:
            offset = self.f.select(guard, offset, constant("i64", 0))
        if dtype.kind == "i1":
            byte = self.f.load(self.f.gep(base, offset, "i8"), "i8")
            return self.f.icmp("ne", byte, constant("i8", 0))
        return self.f.load(self.f.gep(base, offset, dtype.kind), dtype.kind)

    def _store(self, output: Output, value: Val) -> None:
        f = self.f
        base, form = self.base(output.target), output.offset
        if value.kind == "i1":
            value = f.cast("zext", value, "i8")
        step = form.coefficient(AXIS)
        if step == 0:
            f.store(value, self._address(base, form.const, value.kind))
        elif step == 1:
            address = self._address(base, form.const, value.kind)
            store_first(f, self.wide(value), address, self.size)
        else:
            for k, place in enumerate(self._places(form)[: self.size]):
                element = f.extract(value, k) if value.width > 1 else value
                f.store(element, self._address(base, place, value.kind))

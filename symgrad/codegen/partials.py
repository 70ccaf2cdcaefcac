"""Kernels that finish what a reduction left in scratch, one small kernel for each kind.

`emit_join` joins the units of a split nest, `emit_fold` the chunks and units of a crossed nest, and
`emit_spread` moves the results of its rows to where they belong. All are kernels in the sense of
`symgrad.codegen.plan`. Start reading at `emit_join`.
"""

from __future__ import annotations

from symgrad.codegen.combine import ONE, Combine, State, UnitTree
from symgrad.codegen.ir import Function, Module, Val, constant, lanes
from symgrad.codegen.layout import LANES, UNIT
from symgrad.codegen.lowering import Lowering

FOLD_WIDTH = LANES // 2
"""Columns per vector of `emit_fold`."""

FOLD_CHUNK = 512
"""Columns per chunk of `emit_fold`."""


def emit_join(module: Module, name: str, kind: str, element: str) -> None:
    """A kernel that joins partial results in scratch: args are
    [scratch slot, byte start, units, elements, target slot, target offset].
    """
    f = Function(
        module, name, [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    )
    b = Lowering(f, True)
    combine = Combine(kind, element, 0.0, b)
    numbers = [f.load(f.gep(f.arguments[1], constant("i64", k), "i64"), "i64") for k in range(6)]
    scratch_slot, start, units, elements, target_slot, shift = numbers
    slots = f.arguments[0]
    scratch = f.gep(f.load(f.gep(slots, scratch_slot, "ptr"), "ptr"), start, "i8")
    target = f.load(f.gep(slots, target_slot, "ptr"), "ptr")
    rooms = [scratch]
    if len(combine.kinds()) == 2:
        room_bytes = f.mul(f.mul(units, elements), constant("i64", 8))
        rooms.append(f.gep(scratch, room_bytes, "i8"))
    tree = UnitTree(f, [combine], 1)
    origin = f.here()
    outer, inner, done = f.label("element"), f.label("unit"), f.label("done")
    f.branch(outer)
    f.start(outer)
    j = f.phi("i64")
    row = f.mul(j[0], units)
    f.branch(inner)
    f.start(inner)
    u = f.phi("i64")
    at = f.add(row, u[0])
    state = tuple(
        f.load(f.gep(room, at, part), part)
        for room, part in zip(rooms, combine.kinds(), strict=True)
    )
    tree.push(u[0], [state])
    next_u = f.add(u[0], constant("i64", 1))
    latch = f.here()
    f.branch_if(f.icmp("slt", next_u, units), inner, done)
    f.set_phi(u, [(constant("i64", 0), outer), (next_u, latch)])
    f.start(done)
    value = combine.result(tree.total(units)[0])
    f.store(value, f.gep(target, f.add(j[0], shift), value.kind))
    next_j = f.add(j[0], constant("i64", 1))
    end = f.here()
    leave = f.label("leave")
    f.branch_if(f.icmp("slt", next_j, elements), outer, leave)
    f.set_phi(j, [(constant("i64", 0), origin), (next_j, end)])
    f.start(leave)
    f.ret()
    f.finish()


def emit_fold(module: Module, name: str, kind: str, element: str, chunks: int) -> None:
    """A kernel that joins what the chunks of a crossed nest left, unit by unit.

    Its args are [scratch slot, padded columns, columns, first unit, last unit, units in all], then
    for each output [byte where the parts begin, byte where the tree begins, target slot, target
    offset, target step]. Its own chunks are `FOLD_CHUNK` columns of an output, output by output.
    """
    f = Function(
        module, name, [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    )
    b = Lowering(f, True)
    combine = Combine(kind, element, 0.0, b)
    element = combine.element
    slots, args, low, high = f.arguments
    scratch_slot, padded, columns, first, last, units = _numbers(f, args, 6)
    scratch = f.load(f.gep(slots, scratch_slot, "ptr"), "ptr")
    width, size = constant("i64", FOLD_WIDTH), constant("i64", FOLD_CHUNK)
    each = f.udiv(f.add(columns, constant("i64", FOLD_CHUNK - 1)), size)

    before = f.here()
    chunks_label, done = f.label("chunk"), f.label("done")
    f.branch(chunks_label)
    f.start(chunks_label)
    chunk = f.phi("i64")
    output = f.udiv(chunk[0], each)
    own = f.gep(args, f.add(f.mul(output, constant("i64", 5)), constant("i64", 6)), "i64")
    parts_start, tree_start, target_slot, shift, step = _numbers(f, own, 5)
    parts = f.gep(scratch, parts_start, "i8")
    target = f.load(f.gep(slots, target_slot, "ptr"), "ptr")
    stack = f.gep(scratch, tree_start, "i8")
    tree = UnitTree(f, [combine], FOLD_WIDTH, f.udiv(padded, width), [stack])
    start = f.mul(f.sub(chunk[0], f.mul(output, each)), size)
    stop = f.add(start, size)
    stop = f.select(f.icmp("slt", stop, columns), stop, columns)

    origin = f.here()
    outer, inner, whole = f.label("columns"), f.label("unit"), f.label("whole")
    finish, leave, over = f.label("finish"), f.label("next"), f.label("over")
    f.branch(outer)
    f.start(outer)
    column = f.phi("i64")
    tree.column = f.udiv(column[0], width)
    f.branch(inner)
    f.start(inner)
    unit = f.phi("i64")
    row = f.mul(f.mul(f.sub(unit[0], first), constant("i64", chunks)), padded)
    at = f.add(row, column[0])
    states: list[State] = []
    for _ in range(chunks):
        states.append((f.load(f.gep(parts, at, element), element, FOLD_WIDTH),))
        at = f.add(at, padded)
    while len(states) > 1:
        half = len(states) // 2
        states = [combine.join(states[k], states[k + half]) for k in range(half)]
    tree.push(unit[0], [states[0]])
    next_unit = f.add(unit[0], ONE)
    latch = f.here()
    f.branch_if(f.icmp("slt", next_unit, last), inner, whole)
    f.set_phi(unit, [(first, outer), (next_unit, latch)])
    f.start(whole)
    f.branch_if(f.icmp("eq", last, units), finish, leave)
    f.start(finish)
    value = combine.result(tree.total(units)[0])
    places = f.add(f.splat(column[0], FOLD_WIDTH), lanes("i64", range(FOLD_WIDTH)))
    inside = f.icmp("slt", places, f.splat(columns, FOLD_WIDTH))
    offsets = f.mul(places, f.splat(step, FOLD_WIDTH))
    offsets = f.add(offsets, f.splat(shift, FOLD_WIDTH))
    f.masked_scatter(value, f.gep(target, offsets, element), inside)
    f.branch(leave)
    f.start(leave)
    next_column = f.add(column[0], width)
    end = f.here()
    f.branch_if(f.icmp("slt", next_column, stop), outer, over)
    f.set_phi(column, [(start, origin), (next_column, end)])
    f.start(over)
    next_chunk = f.add(chunk[0], ONE)
    after = f.here()
    f.branch_if(f.icmp("slt", next_chunk, high), chunks_label, done)
    f.set_phi(chunk, [(low, before), (next_chunk, after)])
    f.start(done)
    f.ret()
    f.finish()


def emit_spread(module: Module, name: str, element: str) -> None:
    """A kernel that moves the results of rows of a crossed nest to their outputs.

    Its args are [scratch slot, first row, row after the last], then for each output [byte where the
    results begin, target slot, target offset, target step]. Its chunks are the outputs.
    """
    f = Function(
        module, name, [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    )
    element = "i8" if element == "i1" else element
    slots, args, low, high = f.arguments
    scratch_slot, first, last = _numbers(f, args, 3)
    scratch = f.load(f.gep(slots, scratch_slot, "ptr"), "ptr")
    before = f.here()
    outputs, head, over, done = (f.label(x) for x in ("output", "row", "over", "done"))
    f.branch(outputs)
    f.start(outputs)
    output = f.phi("i64")
    own = f.gep(args, f.add(f.mul(output[0], constant("i64", 4)), constant("i64", 3)), "i64")
    results_start, target_slot, shift, step = _numbers(f, own, 4)
    results = f.gep(scratch, results_start, "i8")
    target = f.load(f.gep(slots, target_slot, "ptr"), "ptr")
    f.branch(head)
    f.start(head)
    row = f.phi("i64")
    place = f.urem(row[0], constant("i64", UNIT))
    earlier = f.sub(f.sub(row[0], place), first)
    lane = f.and_(place, constant("i64", LANES - 1))
    at = f.add(earlier, f.mul(lane, constant("i64", UNIT // LANES)))
    at = f.add(at, f.lshr(place, constant("i64", LANES.bit_length() - 1)))
    value = f.load(f.gep(results, at, element), element)
    f.store(value, f.gep(target, f.add(f.mul(row[0], step), shift), element))
    following = f.add(row[0], ONE)
    f.branch_if(f.icmp("slt", following, last), head, over)
    f.set_phi(row, [(first, outputs), (following, head)])
    f.start(over)
    next_output = f.add(output[0], ONE)
    f.branch_if(f.icmp("slt", next_output, high), outputs, done)
    f.set_phi(output, [(low, before), (next_output, over)])
    f.start(done)
    f.ret()
    f.finish()


def _numbers(f: Function, args: Val, count: int) -> list[Val]:
    """The first words of some arguments."""
    return [f.load(f.gep(args, constant("i64", k), "i64"), "i64") for k in range(count)]

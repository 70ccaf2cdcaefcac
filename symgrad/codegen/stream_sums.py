"""Kernels for sums over the rows of a stream, whose units are done block by block.

`emit_fill` makes a sum empty before a unit, `emit_lane_fold` folds its 16 lanes after the unit, and
`emit_merge` joins all units. All are kernels in the sense of `symgrad.codegen.plan`. Start reading
at `emit_merge`.
"""

from __future__ import annotations

from symgrad.codegen.combine import Combine, State, UnitTree
from symgrad.codegen.gemm_tile import counted
from symgrad.codegen.ir import Function, Module, Val, constant, lanes
from symgrad.codegen.layout import LANES
from symgrad.codegen.lowering import Lowering

ARGUMENTS = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]

MERGED = 512
"""Elements per chunk of `emit_merge`."""


def _numbers(f: Function, count: int) -> list[Val]:
    return [f.load(f.gep(f.arguments[1], constant("i64", k), "i64"), "i64") for k in range(count)]


def _base(f: Function, slot: Val) -> Val:
    return f.load(f.gep(f.arguments[0], slot, "ptr"), "ptr")


def emit_fill(module: Module, name: str, kind: str, element: str, identity: float) -> None:
    """Set a buffer of whole vectors to the start of a reduction: args are [slot, vectors]."""
    f = Function(module, name, ARGUMENTS)
    slot, vectors = _numbers(f, 2)
    (value,) = Combine(kind, element, identity, Lowering(f, True)).start(LANES)
    base = _base(f, slot)
    with counted(f, constant("i64", 0), vectors, constant("i64", 1), "fill") as number:
        f.store(value, f.gep(base, number, value.kind, LANES))
    f.ret()
    f.finish()


def emit_lane_fold(module: Module, name: str, kind: str, element: str) -> None:
    """Fold the lanes of each element: args are
    [lanes slot, target slot, elements, stride of lanes, stride of elements].
    """
    f = Function(module, name, ARGUMENTS)
    combine = Combine(kind, element, 0.0, Lowering(f, True))
    (part,) = combine.kinds()
    source_slot, target_slot, elements, across, along = _numbers(f, 5)
    source, target = _base(f, source_slot), _base(f, target_slot)
    with counted(f, constant("i64", 0), elements, constant("i64", 1), "element") as j:
        row = f.gep(source, f.mul(j, along), part)
        states: list[State] = []
        for lane in range(LANES):
            at = f.gep(row, f.mul(across, constant("i64", lane)), part)
            states.append((f.load(at, part),))
        half = LANES
        while half > 1:
            half //= 2
            states = [combine.join(states[k], states[k + half]) for k in range(half)]
        f.store(states[0][0], f.gep(target, j, part))
    f.ret()
    f.finish()


def emit_merge(module: Module, name: str, kind: str, element: str) -> None:
    """Join the partial results of all units, unit after unit in memory: args are
    [partials slot, target slot, units, elements, stride of units, chunks].

    A chunk is `MERGED` elements. So many chunks make a result; each result has units of its own.
    """
    f = Function(module, name, ARGUMENTS)
    b = Lowering(f, True)
    combine = Combine(kind, element, 0.0, b)
    (part,) = combine.kinds()
    source_slot, target_slot, units, elements, stride, chunks = _numbers(f, 6)
    zero, one = constant("i64", 0), constant("i64", 1)
    sources, targets = _base(f, source_slot), _base(f, target_slot)
    grain, width = constant("i64", MERGED), constant("i64", LANES)
    tree = UnitTree(f, [combine], LANES)
    other = constant(part, 0, LANES)
    with counted(f, f.arguments[2], f.arguments[3], one, "chunk") as chunk:
        result = f.udiv(chunk, chunks)
        source = f.gep(sources, f.mul(result, f.mul(units, stride)), part)
        target = f.gep(targets, f.mul(result, elements), part)
        start = f.mul(f.sub(chunk, f.mul(result, chunks)), grain)
        stop = f.intrinsic("smin", "i64", 1, [f.add(start, grain), elements])
        with counted(f, start, stop, width, "vector") as j:
            mask = f.icmp("slt", lanes("i64", range(LANES)), f.splat(f.sub(stop, j), LANES))
            with counted(f, zero, units, one, "unit") as u:
                at = f.gep(source, f.add(f.mul(u, stride), j), part)
                tree.push(u, [(f.masked_load(at, mask, other),)])
            ((value,),) = tree.total(units)
            f.masked_store(value, f.gep(target, j, part), mask)
    f.ret()
    f.finish()

"""Compiled programs as C functions: addresses that solvers call without Python.

One structure, `Wiring`: where a program's inputs and outputs are found among the arguments and
results of the function it was made from. Two signatures: `pointer_of` takes tables of addresses,
`scalar_of` takes numbers side by side, as SciPy's `LowLevelCallable` has it. The functions are
reentrant: what a call needs lies on its stack, or on the heap if it is large.
Start reading at `pointer_of`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from symgrad.codegen import emission, jit, plan
from symgrad.codegen.build import Program
from symgrad.codegen.ir import Function, Module, Val, constant, i64

STACK_BYTES = 1 << 16
"""Scratch memory up to this size is taken from the stack."""

ALIGN = 64
_NULL = Val("null", "ptr")


class Wiring(NamedTuple):
    """Inputs and outputs of a program among arguments and results.

    Attributes
    ----------
    program : Program
        A single native call.
    sources : sequence of int or ndarray
        Per input of the program: the number of an argument, or a constant.
    results : sequence of (bool, int)
        Per result: whether it is an input of the program, and the number of the input or output.
    """

    program: Program
    sources: Sequence[int | np.ndarray]
    results: Sequence[tuple[bool, int]]


def _fixed(f: Function, address: int) -> Val:
    """An address that is known now."""
    return f.cast("inttoptr", i64(address), "ptr")


def _emit(f: Function, wiring: Wiring, inputs: Sequence[Val], outputs: Sequence[Val]) -> Val:
    """The call of the program; gives its status word, 0 if all went well."""
    program = wiring.program
    plan.runner_symbols()
    whole = program.whole_plan()
    first_output = len(program.inputs)
    first_piece = first_output + len(program.outputs)
    slots = f.alloca("ptr", 1, max(1, first_piece + len(program.pieces) + 1))
    status = f.alloca("i64")
    f.store(i64(0), status)

    def put(slot: int, address: Val) -> None:
        f.store(address, f.gep(slots, i64(slot), "ptr"))

    addresses = []
    for slot, source in enumerate(wiring.sources):
        at = _fixed(f, source.ctypes.data) if isinstance(source, np.ndarray) else inputs[source]
        addresses.append(at)
        put(slot, at)
    written: dict[int, int] = {}
    for place, (is_input, number) in enumerate(wiring.results):
        if not is_input and number not in written:
            written[number] = place
            put(first_output + number, outputs[place])
    heap: Val | None = None
    if program.arena_bytes > STACK_BYTES:
        heap = f.call("malloc", ("ptr", 1), [i64(program.arena_bytes + ALIGN)])
        assert heap is not None
        refused, taken = f.label("refused"), f.label("taken")
        f.branch_if(f.icmp("eq", heap, _NULL), refused, taken)
        f.start(refused)
        f.ret(constant("i64", -1))
        f.start(taken)
        up = f.add(f.cast("ptrtoint", heap, "i64"), i64(ALIGN - 1))
        arena = f.cast("inttoptr", f.and_(up, i64(-ALIGN)), "ptr")
    else:
        arena = f.alloca("i8", 1, max(1, program.arena_bytes), ALIGN)
    for k, offset in enumerate(program.pieces):
        put(first_piece + k, f.gep(arena, i64(offset), "i8"))
    if program.status_slot is not None:
        put(program.status_slot, status)
    f.call("sg_run", None, [_fixed(f, whole.address), slots])
    for place, (is_input, number) in enumerate(wiring.results):
        node = program.inputs[number] if is_input else program.outputs[number]
        origin = addresses[number] if is_input else outputs[written[number]]
        if is_input or written[number] != place:
            size = i64(node.size * node.dtype.itemsize)
            copied = [outputs[place], origin, size, constant("i1", False)]
            f.call("llvm.memcpy.p0.p0.i64", None, copied)
    if heap is not None:
        f.call("free", None, [heap])
    return f.load(status, "i64")


def _linked(module: Module, name: str) -> jit.Library:
    """The code of a module, which holds addresses of this process and so is not kept on disk."""
    return jit.link(emission.emit_object(module.text()), [name], module.externals())


def _kept(function: Any, *owners: object) -> Any:
    """A ctypes function that keeps what its code needs."""
    function.owners = owners
    return function


def pointer_of(wiring: Wiring) -> Any:
    """``int64_t f(void **arguments, void **results)`` as a ctypes function.

    It returns 0, or another number if the program refused its arguments; the results are then
    unfinished.
    """
    arguments = [("arguments", "ptr", 1), ("results", "ptr", 1)]
    module = Module()
    # A table of addresses is an array of i64 words; the status is one too.
    f = Function(module, "pointer", arguments, ("i64", 1))
    given, made = f.arguments
    count = max([s + 1 for s in wiring.sources if not isinstance(s, np.ndarray)], default=0)
    inputs = [f.load(f.gep(given, i64(k), "ptr"), "ptr") for k in range(count)]
    outputs = [f.load(f.gep(made, i64(k), "ptr"), "ptr") for k in range(len(wiring.results))]
    f.ret(_emit(f, wiring, inputs, outputs))
    f.finish()
    library = _linked(module, "pointer")
    tables = ctypes.POINTER(ctypes.c_void_p)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, tables, tables)
    return _kept(kind(library["pointer"]), library, wiring)


def scalar_of(wiring: Wiring) -> Any:
    """``double f(int n, double *arguments, void *unused)`` as a ctypes function.

    It returns NaN if the program refused its arguments.
    """
    module = Module()
    inner = Function(
        module, "inner", [("given", "ptr", 1), ("made", "ptr", 1)], ("i64", 1), linkage="internal"
    )
    given, made = inner.arguments
    count = max([s + 1 for s in wiring.sources if not isinstance(s, np.ndarray)], default=0)
    inputs = [inner.gep(given, i64(k), "double") for k in range(count)]
    inner.ret(_emit(inner, wiring, inputs, [made]))
    inner.finish()
    arguments = [("n", "i32", 1), ("given", "ptr", 1), ("unused", "ptr", 1)]
    f = Function(module, "scalar", arguments, ("double", 1))
    result = f.alloca("double")
    status = f.call("inner", ("i64", 1), [f.arguments[1], result])
    assert status is not None
    fine = f.icmp("eq", status, i64(0))
    nan = constant("double", float("nan"))
    f.ret(f.select(fine, f.load(result, "double"), nan))
    f.finish()
    library = _linked(module, "scalar")
    kind = ctypes.CFUNCTYPE(
        ctypes.c_double, ctypes.c_int, ctypes.POINTER(ctypes.c_double), ctypes.c_void_p
    )
    return _kept(kind(library["scalar"]), library, wiring)

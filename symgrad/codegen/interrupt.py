"""Long programs that can be interrupted: the runner that listens for signals.

Three compiled functions:

* ``i1 sg_check(ptr last)``: every `CHECK_NS` nanoseconds takes the GIL and runs Python's signal
  handlers; true when one raised an error, which then waits for the caller of the program;
* ``sg_run_long(ptr plan, ptr slots)``: as ``sg_run``, for programs that run without the GIL:
  it asks before each launch, and cuts long launches into slices;
* ``sg_slice``: a kernel that does a part of another kernel's chunks.

Python calls signal handlers in the main thread alone; in other threads the question costs a
moment with the GIL. An interrupted program leaves its results unfinished, and the entry drops
them. Start reading at `build`.
"""

from __future__ import annotations

from functools import partial

from symgrad.codegen import jit, pool
from symgrad.codegen.ir import Function, Module, Val, constant, i64, written
from symgrad.codegen.plan import LAUNCH_WORDS, run_library

CHECK_NS = 50_000_000
"""Time between two looks at signals: short for a person, long beside a wait for the GIL."""

SLICE_NS = 50_000_000
"""Estimated time of a slice of a long launch."""


def _check(module: Module) -> None:
    f = Function(module, "sg_check", [("last", "ptr", 1)], ("i1", 1))
    (last,) = f.arguments
    clock = f.alloca("i64", 1, 2)
    f.call("clock_gettime", ("i32", 1), [constant("i32", 1), clock])
    seconds = f.load(clock, "i64")
    rest = f.load(f.gep(clock, i64(1), "i64"), "i64")
    now = f.add(f.mul(seconds, i64(1_000_000_000)), rest)
    before = f.load(last, "i64")
    first, later, ask, quiet = (f.label(n) for n in ("first", "later", "ask", "quiet"))
    f.branch_if(f.icmp("eq", before, i64(0)), first, later)
    f.start(first)
    f.store(now, last)
    f.branch(quiet)
    f.start(later)
    f.branch_if(f.icmp("slt", f.sub(now, before), i64(CHECK_NS)), quiet, ask)
    f.start(quiet)
    f.ret(constant("i1", False))
    f.start(ask)
    f.store(now, last)
    state = f.call("PyGILState_Ensure", ("i32", 1), [])
    assert state is not None
    pending, fresh, done = (f.label(n) for n in ("pending", "fresh", "done"))
    error = f.call("PyErr_Occurred", ("ptr", 1), [])
    assert error is not None
    f.branch_if(f.icmp("ne", error, Val("null", "ptr")), pending, fresh)
    f.start(pending)
    f.branch(done)
    f.start(fresh)
    raised = f.call("PyErr_CheckSignals", ("i32", 1), [])
    assert raised is not None
    stops = f.icmp("ne", raised, constant("i32", 0))
    f.branch(done)
    f.start(done)
    answer = f.phi("i1")
    f.set_phi(answer, [(constant("i1", True), pending), (stops, fresh)])
    f.call("PyGILState_Release", None, [state])
    f.ret(answer[0])
    f.finish()


def leave_if_interrupted(f: Function, last: Val) -> None:
    """Return from a function if a signal handler raised an error; `last` is when it last looked."""
    stop, go = f.label("stop"), f.label("go")
    stopped = f.call("sg_check", ("i1", 1), [last])
    assert stopped is not None
    f.branch_if(stopped, stop, go)
    f.start(stop)
    f.ret()
    f.start(go)


def _slice(module: Module) -> None:
    """``args`` is {kernel, its args, first chunk}."""
    arguments = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    f = Function(module, "sg_slice", arguments)
    slots, args, low, high = f.arguments
    fn, inner = (f.load(f.gep(args, i64(k), "i64"), "ptr") for k in (0, 1))
    first = f.load(f.gep(args, i64(2), "i64"), "i64")
    f.do(f"call void {fn.ref}({slots}, {inner}, {f.add(first, low)}, {f.add(first, high)})")
    f.ret()
    f.finish()


def _run(module: Module) -> None:
    f = Function(module, "sg_run_long", [("plan", "ptr", 1), ("slots", "ptr", 1)])
    plan, slots = f.arguments
    zero, one, words = i64(0), i64(1), i64(LAUNCH_WORDS)
    last, record = f.alloca("i64"), f.alloca("i64", 1, 3)
    f.store(zero, last)

    def word(launch: Val, index: int, kind: str = "i64") -> Val:
        return f.load(f.gep(launch, i64(index), "i64"), kind)

    count, first = f.load(plan, "i64"), word(plan, 1, "ptr")
    end = f.gep(first, f.mul(count, words), "i64")
    f.branch_if(f.icmp("eq", count, zero), "done", "launch")

    f.start("launch")
    launch_phi = f.phi("ptr")
    launch = launch_phi[0]
    extent, cost = word(launch, 2), word(launch, 3)
    f.store(word(launch, 0), record)
    f.store(word(launch, 1), f.gep(record, one, "i64"))
    wanted = f.add(f.udiv(cost, i64(SLICE_NS)), one)
    slices = f.intrinsic("smin", "i64", 1, [wanted, f.intrinsic("smax", "i64", 1, [extent, one])])
    part_cost = f.udiv(cost, slices)
    f.branch("slice")

    f.start("slice")
    number = f.phi("i64")
    stopped = f.call("sg_check", ("i1", 1), [last])
    assert stopped is not None
    f.branch_if(stopped, "done", "part")
    f.start("part")
    low = f.udiv(f.mul(number[0], extent), slices)
    following = f.add(number[0], one)
    high = f.udiv(f.mul(following, extent), slices)
    f.store(low, f.gep(record, i64(2), "i64"))
    share = f.sub(high, low)
    f.branch_if(f.icmp("sgt", share, zero), "call", "next")
    f.start("call")
    kernel = Val("@sg_slice", "ptr")
    # A long program is worth waking sleeping threads for, whichever of its launches comes next.
    f.call("sg_dispatch", None, [kernel, slots, record, share, part_cost, i64(SLICE_NS)])
    f.branch("next")
    f.start("next")
    f.set_phi(number, [(zero, "launch"), (following, "next")])
    f.branch_if(f.icmp("slt", following, slices), "slice", "after")

    f.start("after")
    then = f.gep(launch, words, "i64")
    f.set_phi(launch_phi, [(first, "entry"), (then, "after")])
    f.branch_if(f.icmp("eq", then, end), "done", "launch")
    f.start("done")
    f.ret()
    f.finish()


def build(module: Module) -> None:
    """Add the three functions to a module."""
    _check(module)
    _slice(module)
    _run(module)


@pool.locked_once
def _library() -> jit.Library:
    run_library()
    exports = ["sg_check", "sg_run_long"]
    source = jit.Source(partial(written, build), exports, recipe="sg_run_long")
    library = jit.compile_source(source)
    jit.add_symbol("sg_check", library["sg_check"])
    return library


def runner() -> int:
    """The address of ``sg_run_long``; from then on modules may call ``sg_check`` by name."""
    return _library()["sg_run_long"]

"""Plans: a list of kernel launches as plain memory, and the compiled loop that runs it.

Three structures, all fixed by a C layout that compiled code shares:

* a kernel: ``void kernel(ptr slots, ptr args, i64 lo, i64 hi)``. `slots` is the table of
  base pointers of one call, `args` the launch's own constants (slot numbers, sizes,
  strides), and [lo, hi) the range of chunks to do, of `extent` in all. Chunks are
  independent: any split into ranges must give the same result.
* a launch: ``{ptr fn; ptr args; i64 extent; i64 cost_ns; i64 flags}``, 40 bytes. `cost_ns`
  estimates the serial time of the whole extent; `flags` is zero.
* a plan: ``{i64 nlaunch; ptr launches}``. Launches run in order, each finished before the
  next begins.

`Plan` lays these out in memory; ``sg_run(ptr plan, ptr slots)`` runs one. Short launches
run in the caller, long ones in the thread pool (`symgrad.codegen.pool`).
Start reading at `run`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from symgrad.codegen import dispatch, jit, pool
from symgrad.codegen.ir import Function, Module, Val, constant, written

# Below this estimate a call keeps the GIL: releasing it next to a busy Python thread can
# cost milliseconds until it is got back, holding it delays that thread by the work at most.
RELEASE_GIL_NS = 1_000_000

PLAN_HEAD = 2
LAUNCH_WORDS = 5


class Launch(NamedTuple):
    """One kernel launch: function address, constants, chunks, estimated serial time."""

    fn: int
    args: tuple[int, ...]
    extent: int
    cost_ns: int


class Plan:
    """Launches in the memory layout that `sg_run` reads.

    Parameters
    ----------
    launches : sequence of Launch
        Run in this order.
    keep : sequence of object
        Owners of the kernels' code and constants, held as long as the plan.
    """

    def __init__(self, launches: Sequence[Launch], keep: Sequence[object]) -> None:
        self.keep = tuple(keep)
        self.cost_ns = sum(launch.cost_ns for launch in launches)
        self._memory = _layout(launches)
        self.address: int = self._memory.ctypes.data


def _layout(launches: Sequence[Launch]) -> npt.NDArray[np.int64]:
    """Plan head, launches, then every launch's arguments, in one array."""
    place = PLAN_HEAD + LAUNCH_WORDS * len(launches)
    memory = np.zeros(place + sum(len(launch.args) for launch in launches), np.int64)
    base = memory.ctypes.data
    memory[:PLAN_HEAD] = len(launches), base + 8 * PLAN_HEAD
    for number, launch in enumerate(launches):
        if launch.extent < 0 or launch.cost_ns < 0:
            raise ValueError(
                f"Plan: extent and cost_ns must not be negative (got {launch.extent} and "
                f"{launch.cost_ns} in launch {number}); give a count of chunks and nanoseconds"
            )
        start = PLAN_HEAD + LAUNCH_WORDS * number
        words = launch.fn, base + 8 * place, launch.extent, launch.cost_ns, 0
        memory[start : start + LAUNCH_WORDS] = words
        memory[place : place + len(launch.args)] = launch.args
        place += len(launch.args)
    return memory


def build_runner(module: Module) -> None:
    """Add ``void sg_run(ptr plan, ptr slots)`` to a module."""
    f = Function(module, "sg_run", [("plan", "ptr", 1), ("slots", "ptr", 1)])
    plan, slots = f.arguments
    zero, one = constant("i64", 0), constant("i64", 1)
    words = constant("i64", LAUNCH_WORDS)
    short = constant("i64", dispatch.HOT_NS)

    def word(launch: Val, index: int, kind: str = "i64") -> Val:
        return f.load(f.gep(launch, constant("i64", index), "i64"), kind)

    count = f.load(plan, "i64")
    first = word(plan, 1, "ptr")
    end = f.gep(first, f.mul(count, words), "i64")
    f.branch_if(f.icmp("eq", count, zero), "done", "add")

    # The time still ahead decides whether sleeping workers are worth waking: one launch
    # may be too short for that where the rest of the plan is not.
    f.start("add")
    launch_phi, total_phi = f.phi("ptr"), f.phi("i64")
    total = f.add(total_phi[0], word(launch_phi[0], 3))
    following = f.gep(launch_phi[0], words, "i64")
    f.set_phi(launch_phi, [(first, "entry"), (following, "add")])
    f.set_phi(total_phi, [(zero, "entry"), (total, "add")])
    f.branch_if(f.icmp("eq", following, end), "launch", "add")

    f.start("launch")
    launch_phi, ahead_phi = f.phi("ptr"), f.phi("i64")
    launch, ahead = launch_phi[0], ahead_phi[0]
    fn, args = word(launch, 0, "ptr"), word(launch, 1, "ptr")
    extent, cost = word(launch, 2), word(launch, 3)
    inline = f.or_(f.icmp("sle", extent, one), f.icmp("slt", cost, short))
    f.branch_if(inline, "here", "pool")

    f.start("here")
    f.branch_if(f.icmp("sgt", extent, zero), "call", "next")
    f.start("call")
    f.do(f"call void {fn.ref}({slots}, {args}, {zero}, {extent})")
    f.branch("next")

    f.start("pool")
    f.call("sg_dispatch", None, [fn, slots, args, extent, cost, ahead])
    f.branch("next")

    f.start("next")
    after = f.gep(launch, words, "i64")
    rest = f.sub(ahead, cost)
    f.set_phi(launch_phi, [(first, "add"), (after, "next")])
    f.set_phi(ahead_phi, [(total, "add"), (rest, "next")])
    f.branch_if(f.icmp("eq", after, end), "done", "launch")

    f.start("done")
    f.ret()
    f.finish()


@pool.locked_once
def run_library() -> jit.Library:
    """The code of ``sg_run``, compiled on first use."""
    pool.symbols()
    source = jit.Source(partial(written, build_runner), ["sg_run"], recipe="sg_run")
    library = jit.compile_source(source)
    jit.add_symbol("sg_run", library["sg_run"])
    return library


def runner_symbols() -> dict[str, int]:
    """Addresses of ``sg_run`` and ``sg_parallel``, compiled on first use.

    Modules linked after the first call may also declare both by name.
    """
    return {"sg_run": run_library()["sg_run"], "sg_parallel": pool.symbols()["sg_parallel"]}


@cache
def _entries() -> tuple[Callable[..., Any], Callable[..., Any]]:
    address = run_library()["sg_run"]
    holding = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    releasing = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    return holding(address), releasing(address)


def run(plan: Plan, slots: npt.NDArray[np.uintp]) -> None:
    """Run a plan on a table of base pointers.

    Parameters
    ----------
    plan : Plan
    slots : ndarray of uintp, contiguous
        The memory behind the pointers must live until the call returns.
    """
    if slots.dtype != np.uintp or not slots.flags.c_contiguous:
        raise TypeError(
            f"run: slots must be a contiguous array of uintp (got dtype {slots.dtype}, "
            f"strides {slots.strides}); build it with numpy.array(..., dtype=numpy.uintp)"
        )
    holding, releasing = _entries()
    entry = releasing if plan.cost_ns > RELEASE_GIL_NS else holding
    entry(plan.address, slots.__array_interface__["data"][0])

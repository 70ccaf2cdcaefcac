"""The thread pool of compiled kernels: its memory, its life, and its size.

Two structures:

* the page and the settings, memory shared with the compiled code, laid out and explained
  in `symgrad.codegen.workers`;
* `symbols`: the addresses of that code, compiled once per process.

Workers are raw OS threads without Python state, all signals blocked. They start at the
first job that is long enough, spin a while after each job and then sleep. A busy pool
(another Python thread, a nested call) makes a caller run its kernel alone; so does
everything outside Linux on x86-64 and AArch64.

The page is wiped in a forked child, which therefore sees a pool that never started and
starts its own when needed. Code and memory are never freed, as a thread may be on its last
instructions in them; at exit the workers are stopped and joined.
Start reading at `symbols`.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import operator
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import TypeVar

from symgrad.codegen import dispatch, jit, processors, workers
from symgrad.codegen.ir import Module, written
from symgrad.locks import held_across_fork

SPIN_NS = 50_000
MAX_THREADS = workers.MAX_WORKERS + 1

# Linux's advice that a forked child gets zeros in place of the page.
WIPE_ON_FORK = 18

EXPORTS = ["sg_dispatch", "sg_parallel", "sg_stop"]
CALIBRATION_TURNS = 2000

T = TypeVar("T")
_LOCK = held_across_fork()
_STOP: list[Callable[[], None]] = []


class _Settings(ctypes.Structure):
    """What compiled code reads; a forked child keeps it, unlike the page."""

    _fields_ = (("wanted", ctypes.c_int32), ("turns", ctypes.c_int64))


def machine() -> str | None:
    """The machine name when threads are supported here, else None."""
    name = platform.machine()
    known = sys.platform == "linux" and name in workers.PAUSE and sys.maxsize > 2**32
    return name if known else None


def default_threads() -> int:
    """The processors that `processors.wanted` names, as far as the pool can use them."""
    count = processors.wanted()
    return 1 if machine() is None else min(count, MAX_THREADS)


def _immortal(thing: object) -> None:
    """Keep an object until the process is gone, past the interpreter's own clean-up."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def locked_once(function: Callable[[], T]) -> Callable[[], T]:
    """`function`, run once per process, also when threads race for it."""
    cached = cache(function)

    @wraps(function)
    def once() -> T:
        with _LOCK:
            return cached()

    return once


@locked_once
def _settings() -> _Settings:
    settings = _Settings(default_threads() - 1, 0)
    _immortal(settings)
    return settings


def _new_page() -> int:
    """The address of the pool page, zeroed, and zeroed again in every forked child."""
    page = mmap.mmap(-1, workers.PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _immortal(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    try:
        page.madvise(WIPE_ON_FORK)
    except OSError:
        os.register_at_fork(after_in_child=partial(ctypes.memset, address, 0, workers.PAGE_BYTES))
    return address


def _spin_turns(spin: int) -> int:
    """Turns of the spin loop in `SPIN_NS`: a pause takes 10 to 140 cycles, by CPU model."""
    loop = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(spin)
    elapsed = []
    for _ in range(3):
        start = time.perf_counter_ns()
        loop(0, CALIBRATION_TURNS)
        elapsed.append(time.perf_counter_ns() - start)
    return SPIN_NS * CALIBRATION_TURNS // max(1, min(elapsed))


@locked_once
def symbols() -> dict[str, int]:
    """Addresses of the pool's functions, compiled on first use.

    ``sg_parallel(ptr fn, ptr slots, ptr args, i64 extent, i64 cost_ns)`` runs one kernel.
    ``sg_dispatch`` takes one argument more, the serial nanoseconds still ahead of the
    caller, this kernel included. ``sg_stop()`` stops and joins the workers.
    """
    threads = machine() is not None
    places: dict[str, int] = {}
    if threads:
        settings = _settings()
        places = {"sg_page": _new_page(), "sg_settings": ctypes.addressof(settings)}

    def emit(module: Module) -> None:
        module.add_function("sg_dispatch", dispatch.ir_text(machine()))
        module.declarations |= {name: f"@{name} = external global i8" for name in places}

    for symbol, address in places.items():
        jit.add_symbol(symbol, address)
    exports = [*EXPORTS, "sg_spin"] if threads else EXPORTS
    source = jit.Source(partial(written, emit), exports, recipe=f"pool {machine()}")
    library = jit.compile_source(source)
    if threads:
        settings.turns = _spin_turns(library["sg_spin"])
    _immortal(library)
    for symbol in EXPORTS:
        jit.add_symbol(symbol, library[symbol])
    stop = ctypes.CFUNCTYPE(None)(library["sg_stop"])
    _STOP.append(stop)
    atexit.register(_shut_down)
    return {symbol: library[symbol] for symbol in EXPORTS}


def _stop_workers() -> None:
    for stop in _STOP:
        stop()


def _shut_down() -> None:
    """Stop the workers for good: later calls from daemon threads run alone."""
    _settings().wanted = 0
    _stop_workers()


def set_num_threads(n: int) -> None:
    """Set how many threads run a long kernel, the calling thread included.

    Parameters
    ----------
    n : int
        At least 1; counts above 64 are taken as 64. Where threads are not supported it
        stays at 1. More threads than CPUs make every call slower.

    Raises
    ------
    ValueError
        If `n` is not a positive integer.
    """
    count = operator.index(n)
    if count < 1:
        raise ValueError(
            f"set_num_threads: the count must be positive (got {n}); "
            "give 1 to run everything in the calling thread"
        )
    allowed = 1 if machine() is None else min(count, MAX_THREADS)
    with _LOCK:
        if allowed - 1 != _settings().wanted:
            _settings().wanted = allowed - 1
            _stop_workers()


def get_num_threads() -> int:
    """How many threads run a long kernel, the calling thread included.

    By default the environment variable ``SYMGRAD_NUM_THREADS``, else the number of CPUs
    that the process may use.
    """
    return int(_settings().wanted) + 1

"""The thread pool: every chunk exactly once, whoever calls, through fork and exit."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import symgrad
from symgrad.codegen import dispatch, emission, jit, plan, pool

# `count`: chunk i adds one to count[i] and leaves its thread in thread[i]; slots: count,
# thread. `meet`: the same, after waiting until a second call has come in; slots: also
# arrivals. `third`: after the same wait, x[i] gets 1/3 in the thread's rounding; slots:
# arrivals, x. `outer`: chunk i runs `count` on the pool over [0, args[1]).
KERNELS = """
define void @count(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %counts = load ptr, ptr %slots
  %threads.at = getelementptr ptr, ptr %slots, i64 1
  %threads = load ptr, ptr %threads.at
  %me = call i64 @pthread_self()
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i64 1 monotonic
  %mine = getelementptr i64, ptr %threads, i64 %i
  store atomic i64 %me, ptr %mine monotonic, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal void @wait_for_company(ptr %arrivals) {
entry:
  %old = atomicrmw add ptr %arrivals, i64 1 seq_cst
  br label %turn
turn:
  %k = phi i64 [ 0, %entry ], [ %next, %turn ]
  %now = load atomic i64, ptr %arrivals acquire, align 8
  %alone = icmp slt i64 %now, 2
  %next = add i64 %k, 1
  %patient = icmp slt i64 %k, 3000000000
  %again = and i1 %alone, %patient
  br i1 %again, label %turn, label %done
done:
  ret void
}

define void @meet(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
  %at = getelementptr ptr, ptr %slots, i64 2
  %arrivals = load ptr, ptr %at
  call void @wait_for_company(ptr %arrivals)
  call void @count(ptr %slots, ptr %args, i64 %lo, i64 %hi)
  ret void
}

define void @third(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %arrivals = load ptr, ptr %slots
  %x.at = getelementptr ptr, ptr %slots, i64 1
  %x = load ptr, ptr %x.at
  call void @wait_for_company(ptr %arrivals)
  %three = load double, ptr %args
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %value = fdiv double 1.0, %three
  %at = getelementptr double, ptr %x, i64 %i
  store double %value, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @run_upward(ptr %plan, ptr %slots) {
  %old = call i32 @llvm.get.rounding()
  call void @llvm.set.rounding(i32 2)
  call void @sg_run(ptr %plan, ptr %slots)
  call void @llvm.set.rounding(i32 %old)
  ret void
}

define void @outer(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %extent = load i64, ptr %args
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  call void @sg_parallel(ptr @count, ptr %slots, ptr %args, i64 %extent, i64 1000000)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

declare i64 @pthread_self()
declare i32 @llvm.get.rounding()
declare void @llvm.set.rounding(i32)
declare void @sg_run(ptr, ptr)
declare void @sg_parallel(ptr, ptr, ptr, i64, i64)
"""

EXPORTS = ["count", "meet", "third", "outer", "run_upward"]
INLINE_NS, AWAKE_NS, LONG_NS = 100, 20_000, 900_000
RELEASING_NS = 3_000_000

needs_workers = pytest.mark.skipif(pool.machine() is None, reason="no worker threads here")
may_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def kernels() -> jit.Library:
    plan.runner_symbols()
    return jit.link(emission.emit_object(KERNELS), EXPORTS, ["sg_run", "sg_parallel"])


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = pool.get_num_threads()
    yield
    pool.set_num_threads(before)


class Tally:
    """Counts and threads of a kernel's chunks, and their slots."""

    def __init__(self, extent: int) -> None:
        self.counts = np.zeros(extent, np.int64)
        self.threads = np.zeros(extent, np.int64)
        self.arrivals = np.zeros(1, np.int64)
        arrays = (self.counts, self.threads, self.arrivals)
        self.slots = np.array([a.ctypes.data for a in arrays], np.uintp)


def one_launch(
    kernels: jit.Library, name: str, extent: int, cost_ns: int, args: tuple[int, ...] = ()
) -> plan.Plan:
    return plan.Plan([plan.Launch(kernels[name], args, extent, cost_ns)], [kernels])


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("cost_ns", [INLINE_NS, AWAKE_NS, LONG_NS, RELEASING_NS])
def test_run_when_split_then_every_chunk_runs_once(
    kernels: jit.Library, threads: int, cost_ns: int
) -> None:
    pool.set_num_threads(threads)
    for extent in (1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 100, 1000, 70_001):
        tally = Tally(extent)
        program = one_launch(kernels, "count", extent, cost_ns)
        repeats = 20 if extent < 2000 else 2
        for _ in range(repeats):
            plan.run(program, tally.slots)
        np.testing.assert_array_equal(tally.counts, np.full(extent, repeats))


def test_run_when_jobs_follow_closely_then_every_chunk_runs_once(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    tally = Tally(16)
    program = one_launch(kernels, "count", 16, AWAKE_NS)
    for _ in range(5000):
        plan.run(program, tally.slots)
    np.testing.assert_array_equal(tally.counts, np.full(16, 5000))


@needs_workers
def test_run_when_two_threads_are_set_then_a_worker_takes_part(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    program = one_launch(kernels, "meet", 8, LONG_NS)
    for _ in range(20):
        tally = Tally(8)
        plan.run(program, tally.slots)
        np.testing.assert_array_equal(tally.counts, np.ones(8))
        assert len(set(tally.threads.tolist())) == 2
        assert threading.get_ident() in tally.threads


@needs_workers
def test_run_when_one_thread_is_set_then_only_the_caller_works(kernels: jit.Library) -> None:
    pool.set_num_threads(1)
    tally = Tally(100)
    plan.run(one_launch(kernels, "count", 100, RELEASING_NS), tally.slots)
    assert set(tally.threads.tolist()) == {threading.get_ident()}


@needs_workers
def test_run_when_caller_rounds_upward_then_workers_do(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    # A thread inherits the rounding of the one that starts it: start the worker before.
    plan.run(one_launch(kernels, "meet", 8, LONG_NS), Tally(8).slots)
    arrivals, x = np.zeros(1, np.int64), np.zeros(8)
    slots = np.array([arrivals.ctypes.data, x.ctypes.data], np.uintp)
    three = int(np.float64(3).view(np.int64))
    program = one_launch(kernels, "third", 8, LONG_NS, (three,))
    run_upward = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(kernels["run_upward"])
    run_upward(program.address, slots.ctypes.data)
    assert arrivals[0] >= 2
    above = min(v for v in (1 / 3, np.nextafter(1 / 3, 1)) if Fraction(v) > Fraction(1, 3))
    np.testing.assert_array_equal(x, np.full(8, above))


def test_parallel_when_called_inside_a_kernel_then_runs_whole(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    tally = Tally(40)
    plan.run(one_launch(kernels, "outer", 12, LONG_NS, (40,)), tally.slots)
    np.testing.assert_array_equal(tally.counts, np.full(40, 12))


def test_run_when_many_python_threads_call_then_every_chunk_runs_once(
    kernels: jit.Library,
) -> None:
    pool.set_num_threads(2)
    wrong: list[int] = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            extent = int(rng.integers(1, 200))
            cost_ns = int(rng.choice([INLINE_NS, AWAKE_NS, LONG_NS, RELEASING_NS]))
            tally = Tally(extent)
            program = one_launch(kernels, "count", extent, cost_ns)
            for _ in range(10):
                plan.run(program, tally.slots)
            if (tally.counts != 10).any():
                wrong.append(seed)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert wrong == []


def test_set_num_threads_when_other_threads_run_then_no_chunk_is_lost(
    kernels: jit.Library,
) -> None:
    tally = Tally(50)
    program = one_launch(kernels, "count", 50, RELEASING_NS)

    def caller() -> None:
        for _ in range(300):
            plan.run(program, tally.slots)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for thread in callers:
        thread.start()
    for number in range(30):
        pool.set_num_threads(1 + number % 4)
    for thread in callers:
        thread.join()
    np.testing.assert_array_equal(tally.counts, np.full(50, 900))


def child_exit_code(kernels: jit.Library) -> int:
    """Fork; the child runs plans and leaves 0 when they were right."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        tally = Tally(100)
        program = one_launch(kernels, "count", 100, RELEASING_NS)
        for _ in range(20):
            plan.run(program, tally.slots)
        pool.set_num_threads(1)
        os._exit(0 if (tally.counts == 20).all() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@may_fork
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_when_pool_has_run_then_child_runs_plans(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    tally = Tally(100)
    program = one_launch(kernels, "count", 100, LONG_NS)
    for number in range(1, 6):
        plan.run(program, tally.slots)
        assert child_exit_code(kernels) == 0
        np.testing.assert_array_equal(tally.counts, np.full(100, number))


@may_fork
@needs_workers
def test_fork_when_child_needs_a_worker_then_it_starts_its_own(kernels: jit.Library) -> None:
    pool.set_num_threads(2)
    tally = Tally(8)
    program = one_launch(kernels, "meet", 8, LONG_NS)
    plan.run(program, tally.slots)
    tally.arrivals[0] = 0
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        plan.run(program, tally.slots)
        os._exit(0 if len(set(tally.threads.tolist())) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@may_fork
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_when_another_thread_is_in_a_region_then_child_runs_plans(
    kernels: jit.Library,
) -> None:
    pool.set_num_threads(2)
    tally = Tally(1000)
    program = one_launch(kernels, "count", 1000, RELEASING_NS)
    over = threading.Event()

    def caller() -> None:
        while not over.is_set():
            plan.run(program, tally.slots)

    thread = threading.Thread(target=caller)
    thread.start()
    codes = [child_exit_code(kernels) for _ in range(5)]
    over.set()
    thread.join()
    assert codes == [0] * 5


@needs_workers
def test_worker_when_started_then_it_blocks_interrupts(kernels: jit.Library) -> None:
    pool.set_num_threads(1)
    before = set(os.listdir("/proc/self/task"))
    pool.set_num_threads(3)
    plan.run(one_launch(kernels, "count", 8, LONG_NS), Tally(8).slots)
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    for worker in workers:
        status = Path(f"/proc/self/task/{worker}/status").read_text(encoding="ascii")
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            assert blocked >> (number - 1) & 1


def script(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process that runs `body`."""
    root = str(Path(symgrad.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", body],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


USE_POOL = f"""
import sys, threading
import numpy as np
from symgrad.codegen import emission, jit, plan, pool
plan.runner_symbols()
pool.set_num_threads(3)
text = '''
define void @touch(ptr %slots, ptr %args, i64 %lo, i64 %hi) {{
  %x = load ptr, ptr %slots
  %old = atomicrmw add ptr %x, i64 1 monotonic
  ret void
}}
'''
library = jit.link(emission.emit_object(text), ["touch"])
x = np.zeros(1, np.int64)
slots = np.array([x.ctypes.data], np.uintp)
program = plan.Plan([plan.Launch(library["touch"], (), 32, {RELEASING_NS})], [library])
plan.run(program, slots)
"""


def test_exit_when_workers_are_awake_then_process_ends_cleanly() -> None:
    done = script(USE_POOL + "print(x[0] > 0)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_exit_when_a_daemon_thread_keeps_calling_then_process_ends_cleanly() -> None:
    body = """
ctypes_keep = [library, program, slots, x]
import ctypes
for thing in ctypes_keep:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
def forever():
    while True:
        plan.run(program, slots)
threading.Thread(target=forever, daemon=True).start()
for _ in range(100):
    plan.run(program, slots)
"""
    done = script(USE_POOL + body)
    assert (done.returncode, done.stderr) == (0, "")


@needs_workers
def test_fork_when_page_is_not_wiped_by_the_system_then_child_runs_plans() -> None:
    unknown_advice = "from symgrad.codegen import pool; pool.WIPE_ON_FORK = 9999\n"
    body = """
import os, signal, warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(30)
    x[0] = 0
    plan.run(program, slots)
    pool.set_num_threads(1)
    os._exit(0 if x[0] > 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = script(unknown_advice + USE_POOL + body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_num_threads_when_environment_sets_it_then_it_counts() -> None:
    body = "from symgrad.codegen import pool; print(pool.get_num_threads())"
    expected = "1" if pool.machine() is None else "3"
    assert script(body, SYMGRAD_NUM_THREADS="3").stdout.strip() == expected


@pytest.mark.parametrize("text", ["none", "0", "-2", "1.5"])
def test_num_threads_when_environment_is_wrong_then_raises(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SYMGRAD_NUM_THREADS", text)
    with pytest.raises(ValueError, match="SYMGRAD_NUM_THREADS: must be a positive integer"):
        pool.default_threads()


def test_set_num_threads_when_set_then_get_returns_it() -> None:
    for count in (1, 2, 5):
        pool.set_num_threads(count)
        assert pool.get_num_threads() == (1 if pool.machine() is None else count)


@pytest.mark.parametrize("count", [0, -1])
def test_set_num_threads_when_not_positive_then_raises(count: int) -> None:
    with pytest.raises(ValueError, match="set_num_threads: the count must be positive"):
        pool.set_num_threads(count)


def test_ir_text_when_made_again_then_it_is_the_same() -> None:
    for name in (None, "x86_64", "aarch64"):
        assert dispatch.ir_text(name) == dispatch.ir_text(name)


def test_ir_text_when_threads_are_unsupported_then_kernels_run_whole(
    kernels: jit.Library,
) -> None:
    library = jit.link(emission.emit_object(dispatch.ir_text(None)), ["sg_parallel", "sg_stop"])
    signature = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    parallel = ctypes.CFUNCTYPE(None, *signature, ctypes.c_int64)(library["sg_parallel"])
    tally = Tally(30)
    parallel(kernels["count"], tally.slots.ctypes.data, None, 30, RELEASING_NS)
    np.testing.assert_array_equal(tally.counts, np.ones(30))
    assert set(tally.threads.tolist()) == {threading.get_ident()}

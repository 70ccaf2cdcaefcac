"""What the thread pool costs and gains: ``python benchmarks/threads.py``.

Two tables, in microseconds: the cost of handing an empty kernel of eight chunks to the pool
with the workers awake, and a compute kernel serial against parallel at several lengths,
back to back (hot) and with the workers asleep before each call (cold).
Start reading at `main`.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from symgrad.codegen import emission, jit, plan, pool

KERNEL = """
define void @work(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %out = load ptr, ptr %slots
  %turns = load i64, ptr %args
  br label %chunk
chunk:
  %i = phi i64 [ %lo, %entry ], [ %i.next, %store ]
  %some = icmp sgt i64 %turns, 0
  br i1 %some, label %turn, label %store
turn:
  %k = phi i64 [ 0, %chunk ], [ %k.next, %turn ]
  %x = phi double [ 1.0, %chunk ], [ %y, %turn ]
  %s = fmul double %x, 0.5
  %y = fadd double %s, 1.0
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %turns
  br i1 %more, label %turn, label %store
store:
  %value = phi double [ 0.0, %chunk ], [ %y, %turn ]
  %at = getelementptr double, ptr %out, i64 %i
  store double %value, ptr %at
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, %hi
  br i1 %again, label %chunk, label %done
done:
  ret void
}

define void @repeat(ptr %plan, ptr %slots, i64 %count) {
entry:
  br label %turn
turn:
  %k = phi i64 [ 0, %entry ], [ %k.next, %turn ]
  call void @sg_run(ptr %plan, ptr %slots)
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %count
  br i1 %more, label %turn, label %done
done:
  ret void
}

declare void @sg_run(ptr, ptr)
"""

CHUNKS = 64


def microseconds(call: Callable[[], None], repeats: int, pause_s: float = 0.0) -> float:
    """Median time of a call, with a sleep before each if asked."""
    elapsed = []
    for _ in range(repeats):
        if pause_s:
            time.sleep(pause_s)
        start = time.perf_counter_ns()
        call()
        elapsed.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(elapsed)


def main() -> None:
    plan.runner_symbols()
    library = jit.link(emission.emit_object(KERNEL), ["work", "repeat"], ["sg_run"])
    repeat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        library["repeat"]
    )
    out = np.zeros(CHUNKS)
    slots = np.array([out.ctypes.data], np.uintp)

    def one(turns: int, extent: int, cost_ns: int) -> plan.Plan:
        launch = plan.Launch(library["work"], (turns,), extent, cost_ns)
        return plan.Plan([launch], [library])

    threads = pool.get_num_threads()
    print(f"threads: {threads}")
    awake, empty = one(0, 8, 1_000_000), one(0, 8, 20_000)
    calls = 1000
    for count in (1, threads):
        pool.set_num_threads(count)
        plan.run(awake, slots)
        samples = []
        for _ in range(200):
            start = time.perf_counter_ns()
            repeat(empty.address, slots.ctypes.data, calls)
            samples.append((time.perf_counter_ns() - start) / 1e3 / calls)
        print(
            f"empty kernel, 8 chunks, {count} threads: "
            f"min {min(samples):.3f}  median {statistics.median(samples):.3f} us"
        )

    print(f"{'serial':>9} {'hot':>9} {'gain':>6} {'serial':>11} {'cold':>9} {'gain':>6}")
    turn_us = microseconds(partial(plan.run, one(4000, CHUNKS, 1), slots), 200) / 4000
    for target_us in (6, 10, 30, 100, 300, 1000, 10_000):
        work = one(max(1, int(target_us / turn_us)), CHUNKS, target_us * 1000)
        call = partial(plan.run, work, slots)
        repeats = max(30, min(2000, 300_000 // target_us))
        times = []
        for count in (1, threads):
            pool.set_num_threads(count)
            plan.run(awake, slots)
            times.append((microseconds(call, repeats), microseconds(call, 30, pause_s=0.002)))
        (serial, serial_cold), (hot, cold) = times
        print(
            f"{serial:9.1f} {hot:9.1f} {serial / hot:6.2f} "
            f"{serial_cold:11.1f} {cold:9.1f} {serial_cold / cold:6.2f}"
        )


if __name__ == "__main__":
    main()

"""Matrix products next to NumPy's: GFLOP/s, or microseconds where products are small.

Run as ``OPENBLAS_NUM_THREADS=1 python benchmarks/gemm.py [double|float]``. Layouts are named by
operand: n row-major, t transposed, so ``tn`` is the product of a transposed matrix with a plain
one. ``own`` is one thread, ``pool`` all of them, both called from compiled code; NumPy's figures
hold its own call of half a microsecond or more. ``est`` is the plan's estimate over the time of
one thread. Start reading at `main`.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from symgrad.codegen import emission, gemm, jit, plan, pool

DTYPES = {"double": np.float64, "float": np.float32}
SECONDS = 0.25
ROUNDS = 3


REPEAT = """
declare void @sg_run(ptr, ptr)
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
"""


class Case(NamedTuple):
    """Layouts of both operands and the sizes of a product."""

    layout: str
    nbatch: int
    m: int
    n: int
    k: int


SQUARES = [Case("nn", 1, n, n, n) for n in (4, 8, 16, 32, 64, 100, 128, 256, 384, 512, 768)]
CASES = [
    *SQUARES,
    *(Case(layout, 1, n, n, n) for n in (64, 512, 1000, 1024) for layout in ("nn", "tn", "nt")),
    Case("nn", 1, 64, 50, 50),
    Case("nn", 1, 4096, 50, 50),
    Case("nn", 1, 64, 256, 784),
    Case("tn", 1, 784, 256, 128),
    Case("tn", 1, 512, 512, 4096),
    Case("tn", 1, 50, 50, 4096),
    Case("nn", 1, 256, 256, 4096),
    Case("nn", 1, 777, 333, 555),
    Case("nn", 1, 128, 10, 256),
    Case("nn", 1, 1000, 3, 500),
    Case("nn", 1, 100_000, 10, 100),
    Case("nn", 1, 8, 4096, 512),
    Case("nt", 1, 12, 1024, 1024),
    Case("nn", 1000, 3, 3, 3),
    Case("nn", 1000, 4, 4, 4),
    Case("nt", 1000, 4, 4, 4),
    Case("nn", 1000, 16, 16, 16),
    Case("nn", 256, 64, 64, 32),
    Case("nt", 256, 64, 64, 32),
]


def seconds(call: Callable[[int], Any]) -> float:
    """The best time of one turn, for a function that makes a given number of them."""
    call(1)
    start = time.perf_counter()
    call(1)
    turns = max(1, int(2e-4 / (time.perf_counter() - start)))
    start = time.perf_counter()
    call(turns)
    best = (time.perf_counter() - start) / turns
    for _ in range(max(3, min(300, int(SECONDS / (best * turns) / ROUNDS)))):
        start = time.perf_counter()
        call(turns)
        best = min(best, (time.perf_counter() - start) / turns)
    return best


def operand(rng: np.random.Generator, dtype: Any, turned: bool, *shape: int) -> Any:
    """A stack of matrices, stored transposed or not."""
    if not turned:
        return rng.standard_normal(shape).astype(dtype)
    stored = rng.standard_normal((shape[0], shape[2], shape[1])).astype(dtype)
    return stored.transpose(0, 2, 1)


def strides(x: Any) -> gemm.Strides:
    """Strides of a stack of matrices, in elements."""
    batch, row, column = (s // x.itemsize for s in x.strides)
    return batch, row, column


def measure(repeat: Callable[..., None], kind: str, case: Case, threads: int) -> str:
    """One line of the table; the rounds alternate, so that all see the same machine."""
    rng = np.random.default_rng(0)
    a = operand(rng, DTYPES[kind], case.layout[0] == "t", case.nbatch, case.m, case.k)
    b = operand(rng, DTYPES[kind], case.layout[1] == "t", case.nbatch, case.k, case.n)
    c = np.empty((case.nbatch, case.m, case.n), DTYPES[kind])
    launch = gemm.gemm_plan(
        kind, case.nbatch, case.m, case.n, case.k, strides(a), strides(b), strides(c)
    )
    address, library = gemm.kernel_for(kind, launch)
    arguments = launch.arguments(0, 1, 2)
    launches = [plan.Launch(address, arguments, launch.extent, launch.cost_ns)]
    program = plan.Plan(launches, [library])
    slots = np.array([x.ctypes.data for x in (a, b, c)], np.uintp)
    x, y, z = (a[0], b[0], np.empty_like(c[0])) if case.nbatch == 1 else (a, b, np.empty_like(c))
    run = partial(repeat, program.address, slots.ctypes.data)

    def reference(turns: int) -> None:
        for _ in range(turns):
            np.matmul(x, y, out=z)

    times = []
    for _ in range(ROUNDS):
        pool.set_num_threads(1)
        own = seconds(run)
        pool.set_num_threads(threads)
        times.append((own, seconds(run), seconds(reference)))
    own, pooled, numpy = (min(column) for column in zip(*times, strict=True))
    flops = 2e-9 * case.nbatch * case.m * case.n * case.k
    sizes = f"{case.nbatch:5d} x {case.m:6d} {case.n:5d} {case.k:5d}"
    return (
        f"{kind:6s} {case.layout} {sizes} {flops / own:7.1f} {flops / pooled:7.1f} "
        f"{flops / numpy:7.1f} {numpy / own:6.2f} {own * 1e6:11.2f} {numpy * 1e6:11.2f} "
        f"{launch.cost_ns / own / 1e9:6.2f}  {launch.variant}"
    )


def main() -> None:
    threads = pool.get_num_threads()
    print(f"threads: {threads}")
    plan.runner_symbols()
    loop = jit.link(emission.emit_object(REPEAT), ["repeat"], ["sg_run"])
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    repeat = signature(loop["repeat"])
    print(
        "kind   layout    batch, m, n, k       own    pool   numpy   gain      own us"
        "    numpy us    est"
    )
    for kind in sys.argv[1:] or ("double", "float"):
        for case in CASES:
            print(measure(repeat, kind, case, threads), flush=True)


if __name__ == "__main__":
    main()

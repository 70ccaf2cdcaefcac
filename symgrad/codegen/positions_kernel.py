"""The check of positions, as LLVM IR: a kernel beside those that call LAPACK.

Positions come in as 64-bit integers; out go those in range, negative ones counted from the end.
A position out of range sets the status word, after which the caller computes the op again by its
Python routine, which names the position. Until then a 0 stands for it: kernels that run before
the caller looks read and write at positions in range only. Start reading at `check_positions`.
"""

from __future__ import annotations

from symgrad.codegen.ir import Val, constant, lanes
from symgrad.codegen.lapack_body import Kernel

BLOCK = 1024
"""Positions per matrix, as the loop over the batch of `Kernel.each` calls it."""

WIDTH = 8


def check_positions(f: Kernel) -> None:
    """Words: operand, result, how many positions, the size of the axis, the lowest position."""
    source, out = f.buffer(), f.buffer()
    count, size, lowest = f.size(), f.size(), f.size()
    wide_size, wide_lowest = f.splat(size, WIDTH), f.splat(lowest, WIDTH)
    none = constant("i64", 0, WIDTH)

    def body(number: Val, scratch: Val) -> None:
        first = f.mul(number, f.index(BLOCK))
        left = f.sub(count, first)
        here = f.select(f.icmp("ult", left, f.index(BLOCK)), left, f.index(BLOCK))
        end = f.splat(f.add(first, here), WIDTH)

        def step(i: Val) -> None:
            at = f.add(first, f.mul(i, f.index(WIDTH)))
            places = f.add(f.splat(at, WIDTH), lanes("i64", range(WIDTH)))
            inside = f.icmp("slt", places, end)
            x = f.masked_load(f.element_at(source, at), inside, none)
            wrapped = f.select(f.icmp("slt", x, none), f.add(x, wide_size), x)
            low, high = f.icmp("slt", x, wide_lowest), f.icmp("sge", x, wide_size)
            bad = f.or_(low, high)
            f.masked_store(f.select(bad, none, wrapped), f.element_at(out, at), inside)
            any_bad = f.emit(f"bitcast {bad} to i{WIDTH}", f"i{WIDTH}")
            f.report(f.icmp("ne", any_bad, constant(f"i{WIDTH}", 0)))

        f.repeat(f.udiv(f.add(here, f.index(WIDTH - 1)), f.index(WIDTH)), step)

    f.each(body, library=False)

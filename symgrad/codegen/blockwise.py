"""The kernel that runs other kernels block by block: the inner loop of a stream.

One structure, `BlockRun`: what one launch of it needs, all of it plain memory. A chunk of the
launch is up to `span` blocks of rows of one entry, one after the other. Inner kernels see the caller's table of base
pointers, copied, with entries of their own after it:

* locals, in memory that the thread takes from the C library's heap for the duration of the call.
  They hold one block only. Kernels know nothing of that: they count rows from the first one on,
  so the base pointer of a local is set as many bytes before its memory as the rows before the
  block would fill.
* parts, places in the caller's memory that advance from chunk to chunk.

Before the blocks of a chunk the steps `before` run, after them the steps `after`. A block's steps
are called with the range of their own chunks that makes the block. Start reading at `BlockRun`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from symgrad.codegen import kernels
from symgrad.codegen.gemm_tile import counted, least, when
from symgrad.codegen.ir import Function, Module, Val, constant
from symgrad.codegen.plan import Launch

ALIGN = 64

(
    SLOTS,
    TABLE,
    LOCAL_BYTES,
    SPAN,
    BLOCKS,
    ENTRY_BLOCKS,
    ENTRY_CHUNKS,
    LOCALS,
    LOCAL_COUNT,
    PARTS,
    PART_COUNT,
    BEFORE,
    BEFORE_COUNT,
    INSIDE,
    INSIDE_COUNT,
    AFTER,
    AFTER_COUNT,
) = range(17)

STEP_WORDS = 5
"""Of a step: function, arguments, arguments for the last block, chunks in a block, chunks in all."""


class Inner(NamedTuple):
    """A kernel inside.

    Attributes
    ----------
    fn : int
        Address.
    args : tuple of int
        Constants.
    last : tuple of int, optional
        Those of the last block, where they differ.
    chunks, extent : int
        Chunks of the kernel in a block, and in all.
    """

    fn: int
    args: tuple[int, ...]
    last: tuple[int, ...] | None = None
    chunks: int = 1
    extent: int = 1 << 62


class BlockRun:
    """One launch of the block runner.

    Parameters
    ----------
    slots : int
        Base pointers in the caller's table.
    blocks, span, entries : int
        Blocks in all, how many make a chunk, and how many parts the rows have that no chunk goes across.
    local_bytes : int
        Memory of each running thread.
    locals : sequence of (slot, byte offset, bytes per block)
    parts : sequence of (slot, caller's slot, bytes per chunk)
    before, inside, after : sequence of Inner
        What runs ahead of a chunk's blocks, for each block, and behind them.
    """

    def __init__(
        self,
        slots: int,
        blocks: int,
        span: int,
        entries: int,
        local_bytes: int,
        locals: Sequence[tuple[int, int, int]],
        parts: Sequence[tuple[int, int, int]],
        before: Sequence[Inner],
        inside: Sequence[Inner],
        after: Sequence[Inner],
    ) -> None:
        entry_blocks = -(-blocks // entries)
        entry_chunks = -(-entry_blocks // span)
        self.extent = entries * entry_chunks
        self.kernel = kernels.emitted_kernel(emit_block_runner)
        own = [slot for slot, _, _ in (*locals, *parts)]
        head = [slots, max([slots, *[slot + 1 for slot in own]]), local_bytes, span, blocks]
        head += [entry_blocks, entry_chunks]
        self._words: list[int] = []
        self._addresses: list[tuple[int, int]] = []
        for rows in (locals, parts):
            head += [self._place([word for row in rows for word in row]), len(rows)]
        for steps in (before, inside, after):
            head += [self._place_steps(steps), len(steps)]
        memory = np.zeros(len(self._words) + 1, np.int64)
        memory[: len(self._words)] = self._words
        base = memory.ctypes.data
        for at, place in self._addresses:
            memory[at] = base + 8 * place
        for number in (LOCALS, PARTS, BEFORE, INSIDE, AFTER):
            head[number] = base + 8 * head[number]
        self._memory = memory
        self._head = tuple(head)

    def _place(self, words: Sequence[int]) -> int:
        start = len(self._words)
        self._words += words
        return start

    def _place_steps(self, steps: Sequence[Inner]) -> int:
        start = self._place([0] * (STEP_WORDS * len(steps)))
        for number, step in enumerate(steps):
            at = start + STEP_WORDS * number
            self._words[at] = step.fn
            self._words[at + 3 : at + 5] = step.chunks, step.extent
            given = self._place(step.args)
            last = given if step.last is None else self._place(step.last)
            self._addresses += [(at + 1, given), (at + 2, last)]
        return start

    def launch(self, cost_ns: int) -> Launch:
        """The launch; this object owns its memory."""
        return Launch(self.kernel.address, self._head, self.extent, cost_ns)


def emit_block_runner(module: Module, name: str) -> None:
    """``void run(ptr slots, ptr args, i64 lo, i64 hi)`` over chunks; args as a `BlockRun` lays out."""
    f = Function(
        module, name, [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    )
    slots, args, low, high = f.arguments
    zero, one, three = (constant("i64", k) for k in (0, 1, 3))

    def word(table: Val, index: Val | int, kind: str = "i64") -> Val:
        at = constant("i64", index) if isinstance(index, int) else index
        return f.load(f.gep(table, at, "i64"), kind)

    words = word(args, TABLE)
    table_bytes = f.mul(words, constant("i64", 8))
    wanted = f.add(f.add(table_bytes, word(args, LOCAL_BYTES)), constant("i64", ALIGN))
    memory = f.call("malloc", ("ptr", 1), [wanted])
    assert memory is not None
    with when(f, f.icmp("eq", memory, Val("null", "ptr")), "refused"):
        f.call("abort", None, [])
    address = f.cast("ptrtoint", memory, "i64")
    gap = f.and_(f.sub(zero, address), constant("i64", ALIGN - 1))
    own = f.gep(memory, gap, "i8")
    table = f.gep(own, word(args, LOCAL_BYTES), "i8")
    with counted(f, zero, word(args, SLOTS), one, "copy") as k:
        f.store(word(slots, k, "ptr"), f.gep(table, k, "ptr"))
    span, blocks = word(args, SPAN), word(args, BLOCKS)
    entry_blocks, entry_chunks = word(args, ENTRY_BLOCKS), word(args, ENTRY_CHUNKS)
    local_rows, part_rows = word(args, LOCALS, "ptr"), word(args, PARTS, "ptr")

    def call(steps: Val, number: Val, which: Val, block: Val) -> None:
        step = f.gep(steps, f.mul(number, constant("i64", STEP_WORDS)), "i64")
        fn, given, count = word(step, 0, "ptr"), word(step, which, "ptr"), word(step, 3)
        first = f.mul(block, count)
        last = least(f, f.add(first, count), word(step, 4))
        f.do(f"call void {fn.ref}({table}, {given}, {first}, {last})")

    with counted(f, low, high, one, "chunk") as chunk:
        with counted(f, zero, word(args, PART_COUNT), one, "part") as k:
            row = f.gep(part_rows, f.mul(k, three), "i64")
            base = f.load(f.gep(slots, word(row, 1), "ptr"), "ptr")
            place = f.gep(base, f.mul(chunk, word(row, 2)), "i8")
            f.store(place, f.gep(table, word(row, 0), "ptr"))
        entry = f.udiv(chunk, entry_chunks)
        inside = f.sub(chunk, f.mul(entry, entry_chunks))
        origin = f.mul(entry, entry_blocks)
        start = f.add(origin, f.mul(inside, span))
        stop = least(f, f.add(start, span), f.add(origin, entry_blocks))
        with counted(f, start, stop, one, "block") as block:
            with counted(f, zero, word(args, LOCAL_COUNT), one, "local") as k:
                row = f.gep(local_rows, f.mul(k, three), "i64")
                offset = f.sub(word(row, 1), f.mul(block, word(row, 2)))
                f.store(f.gep(own, offset, "i8"), f.gep(table, word(row, 0), "ptr"))
            first = f.icmp("eq", block, start)
            ahead = f.select(first, word(args, BEFORE_COUNT), zero)
            with counted(f, zero, ahead, one, "before") as k:
                call(word(args, BEFORE, "ptr"), k, one, zero)
            final = f.icmp("eq", f.add(block, one), blocks)
            which = f.select(final, constant("i64", 2), one)
            steps = word(args, INSIDE, "ptr")
            with counted(f, zero, word(args, INSIDE_COUNT), one, "inside") as k:
                call(steps, k, which, block)
        with counted(f, zero, word(args, AFTER_COUNT), one, "after") as k:
            call(word(args, AFTER, "ptr"), k, one, zero)
    f.call("free", None, [memory])
    f.ret()
    f.finish()

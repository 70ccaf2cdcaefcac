"""The inner parts of the matrix product: register tiles and packing, as LLVM IR.

Two structures:

* `Shape`: what a host's registers allow: rows and vectors of a tile, lanes of a vector.
* the *job*, an array of i64 in the caller's stack frame (`JOB_...` are its places), which holds
  what all tiles of one block share: strides, the length of the chain, where results go.

A tile computes, for at most `Shape.rows` rows and `Shape.vectors` vectors of columns, one unit
of the product: per element one chain of fused multiply-adds along k, started at +0.0. Results of
units join in a binary counter: `slots` are its digits, slot 0 is C itself, and a tile first adds
the `JOB_POPS` topmost slots to its chain and then stores to the last of them (or to a new one).
The bits of an element depend on k alone, never on the tile it falls into.
Start reading at `define_tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from symgrad.codegen.ir import FLOAT_BITS, Function, Module, Val, constant, lanes

UNIT = 384
"""Length of one chain along k; part of the definition of the result's bits."""

VECTOR_BYTES = 64

JOB_LENGTH, JOB_A_ROW, JOB_A_K, JOB_B_K, JOB_POPS, JOB_DEPTH = range(6)
JOB_SLOTS = 8
JOB_SIZE = JOB_SLOTS + 2 * 64
"""A slot takes two places: address of the block's first element, row stride in elements."""

INT_OF_WIDTH = {64: "i64", 32: "i32"}


class Shape(NamedTuple):
    """The largest register tile: `rows` by `vectors` of `width` lanes."""

    rows: int
    vectors: int
    width: int


def tile_shape(kind: str, wide_registers: bool) -> Shape:
    """The tile for a scalar kind.

    Parameters
    ----------
    kind : {"double", "float"}
    wide_registers : bool
        True with 32 registers of 512 bits: 24 of them accumulate. Otherwise a vector takes two
        or more registers and one vector per row leaves room for the operands.
    """
    width = VECTOR_BYTES * 8 // FLOAT_BITS[kind]
    return Shape(6, 4 if wide_registers else 1, width)


def i64(value: int) -> Val:
    """An i64 constant."""
    return constant("i64", value)


@contextmanager
def counted(f: Function, start: Val, stop: Val, step: Val, hint: str) -> Iterator[Val]:
    """Emit a loop ``for i in range(start, stop, step)`` around the block of the ``with``."""
    before = f.block
    head, body, done = f.label(hint), f.label(f"{hint}.body"), f.label(f"{hint}.done")
    f.branch(head)
    f.start(head)
    phi = f.phi("i64")
    f.branch_if(f.icmp("slt", phi[0], stop), body, done)
    f.start(body)
    yield phi[0]
    following = f.add(phi[0], step)
    f.set_phi(phi, [(start, before), (following, f.block)])
    f.branch(head)
    f.start(done)


@contextmanager
def when(f: Function, condition: Val, hint: str) -> Iterator[None]:
    """Emit ``if condition:`` around the block of the ``with``."""
    body, done = f.label(hint), f.label(f"{hint}.done")
    f.branch_if(condition, body, done)
    f.start(body)
    yield
    f.branch(done)
    f.start(done)


def place(f: Function, table: Val, index: int | Val) -> Val:
    """The address of a place of an i64 array."""
    return f.gep(table, i64(index) if isinstance(index, int) else index, "i64")


def element(f: Function, base: Val, index: Val, kind: str) -> Val:
    """The address of an element."""
    return f.gep(base, index, kind)


def lane_mask(f: Function, count: Val, kind: str, width: int) -> Val:
    """A mask of the first `count` lanes (i64; negative is none, more than `width` all)."""
    integer = INT_OF_WIDTH[FLOAT_BITS[kind]]
    scalar = count if integer == "i64" else f.cast("trunc", count, integer)
    return f.icmp("slt", lanes(integer, range(width)), f.splat(scalar, width))


def tile_name(kind: str, rows: int, vectors: int) -> str:
    """The symbol of a tile."""
    return f"gemm_tile_{kind}_{rows}x{vectors}"


def define_tile(module: Module, kind: str, width: int, rows: int, vectors: int) -> None:
    """Define ``void tile(ptr job, ptr a, ptr b, i64 i, i64 j, i64 lanes)``.

    `a` and `b` address the first elements of the tile's rows and columns, columns of `b` next
    to each other; `i`, `j` are the tile's place in the block that the slots describe; `lanes`
    is the number of columns in the last vector.
    """
    f = Function(
        module,
        tile_name(kind, rows, vectors),
        [("job", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1)]
        + [("i", "i64", 1), ("j", "i64", 1), ("lanes", "i64", 1)],
        attributes="noinline nounwind",
        linkage="internal",
    )
    job, a, b, row, column, count = f.arguments
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    a_row = f.load(place(f, job, JOB_A_ROW), "i64")
    a_k = f.load(place(f, job, JOB_A_K), "i64")
    b_k = f.load(place(f, job, JOB_B_K), "i64")
    mask = lane_mask(f, count, kind, width)
    zero = constant(kind, 0.0, width)
    sums = [zero] * (rows * vectors)

    row_offsets = [f.mul(a_row, i64(r)) for r in range(rows)]

    def step(at_a: Val, at_b: Val, sums: list[Val]) -> list[Val]:
        right = [
            f.load(element(f, at_b, i64(v * width), kind), kind, width) for v in range(vectors - 1)
        ]
        last = element(f, at_b, i64((vectors - 1) * width), kind)
        right.append(f.masked_load(last, mask, zero))
        result = []
        for r in range(rows):
            left = f.splat(f.load(element(f, at_a, row_offsets[r], kind), kind), width)
            result += [f.fma(left, right[v], sums[r * vectors + v]) for v in range(vectors)]
        return result

    sums = _chain(f, kind, step, sums, (a, b), (a_k, b_k), length)
    _join(f, kind, width, (rows, vectors), job, (row, column), mask, sums)
    f.ret()
    f.finish()


def _chain(
    f: Function,
    kind: str,
    step: Callable[[Val, Val, list[Val]], list[Val]],
    sums: list[Val],
    at: tuple[Val, Val],
    strides: tuple[Val, Val],
    length: Val,
) -> list[Val]:
    """Run `step` `length` times, two per turn of a loop tested at its bottom."""
    width = sums[0].width

    def advance(at: tuple[Val, Val]) -> tuple[Val, Val]:
        return (element(f, at[0], strides[0], kind), element(f, at[1], strides[1], kind))

    def stage(
        entry: tuple[list[Val], Val, Val], trips: Val, unroll: int, hint: str
    ) -> tuple[list[Val], Val, Val]:
        before = f.block
        body, done = f.label(hint), f.label(f"{hint}.done")
        f.branch_if(f.icmp("sgt", trips, i64(0)), body, done)
        f.start(body)
        counter = f.phi("i64")
        phis = [f.phi("ptr"), f.phi("ptr")]
        acc = [f.phi(kind, width) for _ in sums]
        here = (phis[0][0], phis[1][0])
        values = [p[0] for p in acc]
        for _ in range(unroll):
            values = step(here[0], here[1], values)
            here = advance(here)
        left = f.sub(counter[0], i64(1))
        f.set_phi(counter, [(trips, before), (left, body)])
        for p, first, following in zip(phis, entry[1:], here, strict=True):
            f.set_phi(p, [(first, before), (following, body)])
        for p, first, following in zip(acc, entry[0], values, strict=True):
            f.set_phi(p, [(first, before), (following, body)])
        f.branch_if(f.icmp("ne", left, i64(0)), body, done)
        f.start(done)
        ends = [f.phi("ptr"), f.phi("ptr")]
        out = [f.phi(kind, width) for _ in sums]
        for p, first, following in zip(ends, entry[1:], here, strict=True):
            f.set_phi(p, [(first, before), (following, body)])
        for p, first, following in zip(out, entry[0], values, strict=True):
            f.set_phi(p, [(first, before), (following, body)])
        return [p[0] for p in out], ends[0][0], ends[1][0]

    state = stage((sums, *at), f.lshr(length, i64(1)), 2, "pairs")
    return stage(state, f.and_(length, i64(1)), 1, "odd")[0]


def _join(
    f: Function,
    kind: str,
    width: int,
    size: tuple[int, int],
    job: Val,
    corner: tuple[Val, Val],
    mask: Val,
    sums: list[Val],
) -> None:
    """Add the topmost slots to the chains, store to the slot that then is the topmost."""
    rows, vectors = size
    zero = constant(kind, 0.0, width)

    def addresses(slot: Val) -> list[Val]:
        entry = place(f, job, f.add(f.shl(slot, i64(1)), i64(JOB_SLOTS)))
        base = f.load(entry, "ptr")
        stride = f.load(place(f, entry, 1), "i64")
        at = element(f, base, f.add(f.mul(corner[0], stride), corner[1]), kind)
        heads = []
        for _ in range(rows):
            heads.append(at)
            at = element(f, at, stride, kind)
        return [element(f, h, i64(v * width), kind) for h in heads for v in range(vectors)]

    depth = f.load(place(f, job, JOB_DEPTH), "i64")
    pops = f.load(place(f, job, JOB_POPS), "i64")
    target = f.sub(depth, pops)
    before = f.block
    body, done = f.label("join"), f.label("join.done")
    f.branch_if(f.icmp("sgt", pops, i64(0)), body, done)
    f.start(body)
    slot = f.phi("i64")
    acc = [f.phi(kind, width) for _ in sums]
    lower = f.sub(slot[0], i64(1))
    values = []
    for number, at in enumerate(addresses(lower)):
        last = number % vectors == vectors - 1
        there = f.masked_load(at, mask, zero) if last else f.load(at, kind, width)
        values.append(f.fadd(there, acc[number][0]))
    f.set_phi(slot, [(depth, before), (lower, body)])
    for p, first, following in zip(acc, sums, values, strict=True):
        f.set_phi(p, [(first, before), (following, body)])
    f.branch_if(f.icmp("sgt", lower, target), body, done)
    f.start(done)
    out = [f.phi(kind, width) for _ in sums]
    for p, first, following in zip(out, sums, values, strict=True):
        f.set_phi(p, [(first, before), (following, body)])
    for number, at in enumerate(addresses(target)):
        if number % vectors == vectors - 1:
            f.masked_store(out[number][0], at, mask)
        else:
            f.store(out[number][0], at)


def split(f: Function, count: Val, most: int) -> tuple[Val, Val, Val]:
    """Near-equal pieces of at most `most`: number of pieces, small size, how many are larger."""
    pieces = f.udiv(f.add(count, i64(most - 1)), i64(most))
    pieces = f.intrinsic("umax", "i64", 1, [pieces, i64(1)])
    base = f.udiv(count, pieces)
    return pieces, base, f.sub(count, f.mul(base, pieces))


@contextmanager
def pieces_of(f: Function, count: Val, most: int, hint: str) -> Iterator[tuple[Val, Val]]:
    """Emit a loop over the pieces of `split`: first index and size of each."""
    pieces, base, larger = split(f, count, most)
    with counted(f, i64(0), pieces, i64(1), hint) as number:
        size = f.add(base, f.cast("zext", f.icmp("slt", number, larger), "i64"))
        before = f.intrinsic("smin", "i64", 1, [number, larger])
        yield f.add(f.mul(number, base), before), size


def vectors_of(f: Function, count: Val, width: int) -> Val:
    """The number of vectors that hold `count` lanes."""
    return f.udiv(f.add(count, i64(width - 1)), i64(width))


def define_pack_b(module: Module, kind: str, shape: Shape) -> str:
    """Define ``void pack(ptr to, ptr b, i64 k_stride, i64 n_stride, i64 length, i64 columns)``.

    A panel holds the columns of one column of tiles, row after row, each row filled up to whole
    vectors; panels follow one another. What fills up is never stored to a result.
    """
    name = f"gemm_pack_b_{kind}"
    arguments = [("to", "ptr", 1), ("b", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("k_stride", "n_stride", "length", "columns")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    to, b, k_stride, n_stride, length, columns = f.arguments
    width = shape.width
    total = vectors_of(f, columns, width)
    with pieces_of(f, total, shape.vectors, "panel") as (first, vectors):
        column = f.mul(first, i64(width))
        source = element(f, b, f.mul(column, n_stride), kind)
        panel = element(f, to, f.mul(column, length), kind)
        here = f.sub(columns, column)
        rows_next, across, strided, done = (
            f.label(h) for h in ("rows_next", "across", "strided", "done")
        )
        by_rows = f.label("by_rows")
        f.branch_if(f.icmp("eq", n_stride, i64(1)), by_rows, rows_next)
        f.start(by_rows)
        _pack_rows(f, kind, shape, (panel, source), k_stride, length, vectors, here)
        f.branch(done)
        f.start(rows_next)
        f.branch_if(f.icmp("eq", k_stride, i64(1)), across, strided)
        f.start(across)
        _pack_across(f, kind, width, (panel, source), n_stride, length, vectors, here)
        f.branch(done)
        f.start(strided)
        lanes_here = f.intrinsic("smin", "i64", 1, [here, f.mul(vectors, i64(width))])
        row = f.mul(vectors, i64(width))
        _pack_strided(
            f, kind, (panel, source), (k_stride, n_stride), (i64(0), length), lanes_here, row
        )
        f.branch(done)
        f.start(done)
    f.ret()
    f.finish()
    return name


def _pack_rows(
    f: Function,
    kind: str,
    shape: Shape,
    ends: tuple[Val, Val],
    k_stride: Val,
    length: Val,
    vectors: Val,
    columns: Val,
) -> None:
    """Columns next to each other: whole vectors are copied, one loop per panel width."""
    panel, source = ends
    width = shape.width
    zero = constant(kind, 0.0, width)
    for count in range(1, shape.vectors + 1):
        with when(f, f.icmp("eq", vectors, i64(count)), f"rows{count}"):
            last = (count - 1) * width
            mask = lane_mask(f, f.sub(columns, i64(last)), kind, width)
            with counted(f, i64(0), length, i64(1), "copy") as k:
                at = element(f, source, f.mul(k, k_stride), kind)
                to = element(f, panel, f.mul(k, i64(count * width)), kind)
                for v in range(count - 1):
                    value = f.load(element(f, at, i64(v * width), kind), kind, width)
                    f.store(value, element(f, to, i64(v * width), kind))
                value = f.masked_load(element(f, at, i64(last), kind), mask, zero)
                f.store(value, element(f, to, i64(last), kind))


def _pack_across(
    f: Function,
    kind: str,
    width: int,
    ends: tuple[Val, Val],
    n_stride: Val,
    length: Val,
    vectors: Val,
    columns: Val,
) -> None:
    """Elements along k next to each other: square blocks are turned in registers."""
    panel, source = ends
    row = f.mul(vectors, i64(width))
    whole = f.and_(length, i64(-width))
    with counted(f, i64(0), vectors, i64(1), "vector") as v:
        left = f.mul(v, i64(width))
        final = f.sub(f.sub(columns, left), i64(1))
        bases = []
        for lane in range(width):
            inside = f.intrinsic("smin", "i64", 1, [i64(lane), final])
            bases.append(element(f, source, f.mul(f.add(left, inside), n_stride), kind))
        to = element(f, panel, left, kind)
        with counted(f, i64(0), whole, i64(width), "turn") as k:
            block = [f.load(element(f, base, k, kind), kind, width) for base in bases]
            for step, value in enumerate(transposed(f, block)):
                f.store(value, element(f, to, f.mul(f.add(k, i64(step)), row), kind))
    used = f.intrinsic("smin", "i64", 1, [columns, row])
    _pack_strided(f, kind, ends, (i64(1), n_stride), (whole, length), used, row)


def transposed(f: Function, block: list[Val]) -> list[Val]:
    """The columns of a square block given by its rows, in log2(width) rounds of shuffles."""
    width = len(block)
    distance = width // 2
    while distance:
        following = list(block)
        for r in range(width):
            if r & distance:
                continue
            top, bottom = block[r], block[r + distance]
            low = [c if not c & distance else c - distance + width for c in range(width)]
            high = [c + distance if not c & distance else c + width for c in range(width)]
            following[r] = f.shuffle(top, bottom, low)
            following[r + distance] = f.shuffle(top, bottom, high)
        block = following
        distance //= 2
    return block


def _pack_strided(
    f: Function,
    kind: str,
    ends: tuple[Val, Val],
    strides: tuple[Val, Val],
    span: tuple[Val, Val],
    across: Val,
    row: Val,
) -> None:
    """Any strides, element by element, for k in a span; `row` elements per k in the panel."""
    panel, source = ends
    with counted(f, span[0], span[1], i64(1), "strided") as k:
        at = element(f, source, f.mul(k, strides[0]), kind)
        to = element(f, panel, f.mul(k, row), kind)
        with counted(f, i64(0), across, i64(1), "each") as lane:
            value = f.load(element(f, at, f.mul(lane, strides[1]), kind), kind)
            f.store(value, element(f, to, lane, kind))
        zero = constant(kind, 0.0)
        with counted(f, across, row, i64(1), "fill") as lane:
            f.store(zero, element(f, to, lane, kind))


def define_pack_a(module: Module, kind: str, shape: Shape) -> str:
    """Define ``void pack(ptr to, ptr a, i64 row_stride, i64 k_stride, i64 rows, i64 length)``.

    A panel holds the rows of one row of tiles, k after k, without gaps; the buffer must have
    `VECTOR_BYTES` to spare at its end.
    """
    name = f"gemm_pack_a_{kind}"
    arguments = [("to", "ptr", 1), ("a", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("row_stride", "k_stride", "rows", "length")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    to, a, row_stride, k_stride, rows, length = f.arguments
    group = 8
    zero = constant(kind, 0.0, group)
    with pieces_of(f, rows, shape.rows, "panel") as (first, size):
        source = element(f, a, f.mul(first, row_stride), kind)
        panel = element(f, to, f.mul(first, length), kind)
        copied, strided, done = f.label("copied"), f.label("strided"), f.label("done")
        f.branch_if(f.icmp("eq", row_stride, i64(1)), copied, strided)
        f.start(copied)
        mask = lane_mask(f, size, kind, group)
        with counted(f, i64(0), length, i64(1), "copy") as k:
            value = f.masked_load(element(f, source, f.mul(k, k_stride), kind), mask, zero)
            f.store(value, element(f, panel, f.mul(k, size), kind))
        f.branch(done)
        f.start(strided)
        strides = (k_stride, row_stride)
        _pack_strided(f, kind, (panel, source), strides, (i64(0), length), size, size)
        f.branch(done)
        f.start(done)
    f.ret()
    f.finish()
    return name

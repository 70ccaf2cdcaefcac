"""The inner parts of the matrix product: register tiles and packing, as LLVM IR.

Two structures:

* `Shape`: what a host's registers allow: rows and vectors of tiles, lanes of a vector.
* the *job*, an array of i64 in the caller's stack frame (`JOB_...` are its places), which holds
  what all tiles of one block share: strides, the length of the chain, where results go.

A tile computes, for some rows and vectors of columns (`Shape` tells how many), one unit of the
product: per element one chain of fused multiply-adds along k, started at +0.0, or with
`JOB_RESUMED` where an earlier part of the same unit left it in slot 0. Results of
units join in a binary counter: `slots` are its digits, slot 0 is C itself, and a tile first adds
the `JOB_POPS` topmost slots to its chain and then stores to the last of them (or to a new one).
The bits of an element depend on k alone, never on the tile it falls into.
Start reading at `define_tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from symgrad.codegen.ir import FLOAT_BITS, INT_OF_FLOAT, Function, Module, Val, constant, i64, lanes

UNIT = 384
"""Length of one chain along k; part of the definition of the result's bits."""

VECTOR_BYTES = 64
PREFETCH_LENGTH = 128
"""From this length on a chain takes longer than its results need to arrive."""

(
    JOB_LENGTH,
    JOB_A_ROW,
    JOB_A_K,
    JOB_B_K,
    JOB_POPS,
    JOB_DEPTH,
    JOB_TILES,
    JOB_RESUMED,
    JOB_TAIL,
    JOB_FINITE,
) = range(10)
JOB_SLOTS = 10
JOB_SIZE = JOB_SLOTS + 2 * 64
"""A slot takes two places: address of the block's first element, row stride in elements."""

INT_OF_WIDTH = {64: "i64", 32: "i32"}


class Shape(NamedTuple):
    """The register tiles.

    Attributes
    ----------
    rows : tuple of int
        The most rows of a tile of one vector, of two, and so on.
    vectors : int
        How many vectors most tiles have.
    width : int
        Lanes of a vector.
    masks : bool
        Whether masks have registers of their own.
    """

    rows: tuple[int, ...]
    vectors: int
    width: int
    masks: bool = False

    @property
    def most_rows(self) -> int:
        return max(self.rows)

    @property
    def most_vectors(self) -> int:
        return len(self.rows)

    @property
    def tails(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Two forms of a tile's last vector, each with the most columns it serves.

        ``whole`` knows no mask, ``part`` has one, and ``half`` also has half the lanes. Masks
        are free where they have registers of their own. Elsewhere they take operands' places and
        stores with them ten times as long; so a vector that is ``lapped`` begins as many columns
        earlier as it lacks, in the one before it, and only a tile of one vector has a mask.
        """
        if self.masks:
            return ("half", self.width // 2), ("part", self.width)
        return ("lapped", self.width - 1), ("whole", self.width)


def tile_shape(kind: str, wide_registers: bool) -> Shape:
    """The tile for a scalar kind.

    Parameters
    ----------
    kind : {"double", "float"}
    wide_registers : bool
        True with 32 registers of 512 bits: 24 of them accumulate. Otherwise there are 16 of 256
        bits, of which 12 accumulate: 6 rows of 2 vectors, or 4 of 3 where the vectors are odd.
    """
    width = VECTOR_BYTES * 8 // FLOAT_BITS[kind]
    return Shape((6,) * 4, 4, width, True) if wide_registers else Shape((8, 6, 4), 2, width // 2)


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


def least(f: Function, x: Val, y: Val) -> Val:
    """The smaller of two signed integers."""
    return f.intrinsic("smin", x.kind, x.width, [x, y])


def prefetch(f: Function, address: Val) -> None:
    """Have the line of an address, which need not be valid, in the L1 cache soon."""
    f.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.do(f"call void @llvm.prefetch.p0({address}, i32 0, i32 3, i32 1)")


def none_of(f: Function, mask: Val) -> Val:
    """Whether a mask holds in no lane."""
    if mask.width == 1:
        return f.xor(mask, constant("i1", True))
    whole = f"i{mask.width}"
    return f.icmp("eq", f.emit(f"bitcast {mask} to {whole}", whole), Val("0", whole))


def tile_name(kind: str, rows: int, vectors: int, tail: str) -> str:
    """The symbol of a tile; `tail` is the form of its last vector."""
    return f"gemm_tile_{kind}_{rows}x{vectors}_{tail}"


def define_tile(
    module: Module, kind: str, shape: Shape, rows: int, vectors: int, tail: str
) -> None:
    """Define ``void tile(ptr job, ptr a, ptr b, i64 i, i64 j, i64 lanes, i64 count)``.

    `count` tiles below one another. `a` and `b` address the first elements of the first one's rows
    and columns, columns of `b` next to each other; `i`, `j` are its place in the block that the
    slots describe; `lanes` is the number of columns in the last vector.
    """
    f = Function(
        module,
        tile_name(kind, rows, vectors, tail),
        [("job", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1)]
        + [(n, "i64", 1) for n in ("i", "j", "lanes", "count")],
        attributes="noinline nounwind",
    )
    job, a, b, top, column, columns, count = f.arguments
    length = f.load(place(f, job, JOB_LENGTH), "i64")
    a_row = f.load(place(f, job, JOB_A_ROW), "i64")
    strides = [f.load(place(f, job, number), "i64") for number in (JOB_A_K, JOB_B_K)]
    widths = [shape.width] * vectors
    # Few vectors are all halved: each width that occurs costs one more broadcast per row.
    if tail == "half" and vectors <= 2:
        widths = [shape.width // 2] * (2 * vectors - 1)
    elif tail == "half":
        widths[-1] //= 2
    vectors = len(widths)
    offsets = [i64(sum(widths[:v])) for v in range(vectors)]
    lapped = tail == "lapped" and vectors > 1
    if lapped:
        offsets[-1] = f.add(offsets[-2], columns)
    masked = not (lapped or tail == "whole")
    mask = lane_mask(f, columns, kind, widths[-1]) if masked else constant("i1", True)
    row_offsets = [f.mul(a_row, i64(r)) for r in range(rows)]

    def vector(at: Val, number: int) -> Val:
        at = element(f, at, offsets[number], kind)
        if number < vectors - 1 or not masked:
            return f.load(at, kind, widths[number])
        return f.masked_load(at, mask, constant(kind, 0.0, widths[-1]))

    def step(state: list[Val]) -> list[Val]:
        at_a, at_b, *sums = state
        right = [vector(at_b, v) for v in range(vectors)]
        result = [element(f, at_a, strides[0], kind), element(f, at_b, strides[1], kind)]
        for r in range(rows):
            left = f.splat(f.load(element(f, at_a, row_offsets[r], kind), kind), widths[0])
            for v, width in enumerate(widths):
                part = left if width == left.width else f.shuffle(left, None, range(width))
                result.append(f.fma(part, right[v], sums[r * vectors + v]))
        return result

    def slot_of(number: Val) -> tuple[Val, Val]:
        entry = place(f, job, f.add(f.shl(number, i64(1)), i64(JOB_SLOTS)))
        return f.load(entry, "ptr"), f.load(place(f, entry, 1), "i64")

    def corner(base: Val, stride: Val, row: Val) -> Val:
        return element(f, base, f.add(f.mul(row, stride), column), kind)

    def below(head: Val, stride: Val) -> list[Val]:
        return [head] + [element(f, head, f.mul(stride, i64(r)), kind) for r in range(1, rows)]

    depth = f.load(place(f, job, JOB_DEPTH), "i64")
    pops = f.load(place(f, job, JOB_POPS), "i64")
    resumed = f.load(place(f, job, JOB_RESUMED), "i64")
    behind = f.load(place(f, job, JOB_TAIL), "i64")
    base, stride = slot_of(f.sub(depth, pops))
    down = f.mul(stride, i64(rows))
    long = f.icmp("sge", length, i64(PREFETCH_LENGTH))

    def tile(state: list[Val]) -> list[Val]:
        a, head, row = state
        with when(f, long, "prefetch"):
            for at in below(head, stride):
                for offset in range(0, sum(widths), VECTOR_BYTES * 8 // FLOAT_BITS[kind]):
                    prefetch(f, element(f, at, i64(offset), kind))

        # A product that resumes has one unit, whose slot is C itself.
        def resume(_: list[Val]) -> list[Val]:
            return [vector(at, v) for at in below(head, stride) for v in range(vectors)]

        zeros = [constant(kind, 0.0, width) for width in widths] * rows
        state = [a, b, *_repeated(f, resume, zeros, resumed, 1, "resume")]
        state = _repeated(f, step, state, f.lshr(length, i64(2)), 4, "fours")
        state = _repeated(f, step, state, f.and_(length, i64(3)), 1, "rest")
        state = _repeated(f, step, state, _tail_trips(f, behind, state[2:]), 1, "behind")

        # The topmost slots are added one by one; the last of them then holds the result.
        def join(state: list[Val]) -> list[Val]:
            slot = f.sub(state[0], i64(1))
            other, across = slot_of(slot)
            heads = below(corner(other, across, row), across)
            terms = [vector(at, v) for at in heads for v in range(vectors)]
            return [slot, *(f.fadd(x, y) for x, y in zip(terms, state[1:], strict=True))]

        _, *sums = _repeated(f, join, [depth, *state[2:]], pops, 1, "join")
        for r, at in enumerate(below(head, stride)):
            for v in range(vectors):
                to = element(f, at, offsets[v], kind)
                if v < vectors - 1 or not masked:
                    f.store(sums[r * vectors + v], to)
                else:
                    f.masked_store(sums[r * vectors + v], to, mask)
        following = f.gep(a, f.mul(a_row, i64(rows)), kind)
        return [following, element(f, head, down, kind), f.add(row, i64(rows))]

    _repeated(f, tile, [a, corner(base, stride, top), top], count, 1, "tile")
    f.ret()
    f.finish()


def _tail_trips(f: Function, tail: Val, sums: list[Val]) -> Val:
    """How many zeros behind a chain must be added after all: none, unless a sum is at -0.0."""
    before = f.block
    look, done = f.label("tail"), f.label("tail.done")
    f.branch_if(f.icmp("sgt", tail, i64(0)), look, done)
    f.start(look)
    clear: Val | None = None
    for total in sums:
        bits = INT_OF_FLOAT[total.kind]
        sign = constant(bits, 1 << (64 if bits == "i64" else 32) - 1, total.width)
        none = none_of(f, f.icmp("eq", f.bits(total), sign))
        clear = none if clear is None else f.and_(clear, none)
    assert clear is not None
    trips = f.select(clear, i64(0), tail)
    f.branch(done)
    f.start(done)
    phi = f.phi("i64")
    f.set_phi(phi, [(i64(0), before), (trips, look)])
    return phi[0]


def _repeated(
    f: Function,
    step: Callable[[list[Val]], list[Val]],
    state: list[Val],
    trips: Val,
    unroll: int,
    hint: str,
) -> list[Val]:
    """Emit a loop of `trips` turns over a state; tested at its bottom, as registers are short."""
    before = f.block
    body, done = f.label(hint), f.label(f"{hint}.done")
    f.branch_if(f.icmp("sgt", trips, i64(0)), body, done)
    f.start(body)
    counter = f.phi("i64")
    phis = [f.phi(v.kind, v.width) for v in state]
    values = [p[0] for p in phis]
    for _ in range(unroll):
        values = step(values)
    left = f.sub(counter[0], i64(1))
    end = f.block
    f.set_phi(counter, [(trips, before), (left, end)])
    for phi, first, following in zip(phis, state, values, strict=True):
        f.set_phi(phi, [(first, before), (following, end)])
    f.branch_if(f.icmp("ne", left, i64(0)), body, done)
    f.start(done)
    ends = [f.phi(v.kind, v.width) for v in state]
    for phi, first, following in zip(ends, state, values, strict=True):
        f.set_phi(phi, [(first, before), (following, end)])
    return [p[0] for p in ends]


def quotient(f: Function, x: Val, y: Val, trivial: Val, instead: Val) -> Val:
    """``instead if trivial else x // y``: in small products divisions would be most of the time."""
    before = f.block
    divide, done = f.label("divide"), f.label("divided")
    f.branch_if(trivial, done, divide)
    f.start(divide)
    result = f.udiv(x, y)
    f.branch(done)
    f.start(done)
    phi = f.phi("i64")
    f.set_phi(phi, [(instead, before), (result, divide)])
    return phi[0]


class Pieces(NamedTuple):
    """A count cut into near-equal pieces: how many, the size of most, and how many are one longer.

    The longer ones come first.
    """

    number: Val
    size: Val
    longer: Val


def cut_into(f: Function, count: Val, most: Val, slack: int = 0) -> Pieces:
    """Pieces of at most `most`; with `slack`, they may be that much longer in all."""
    whole = f.icmp("sle", count, f.add(most, i64(slack)))
    pieces = quotient(f, f.sub(f.add(count, most), i64(1 + slack)), most, whole, i64(1))
    size = quotient(f, count, pieces, whole, count)
    return Pieces(pieces, size, f.sub(count, f.mul(size, pieces)))


@contextmanager
def pieces_of(
    f: Function, count: Val, most: Val, hint: str, slack: int = 0
) -> Iterator[tuple[Val, Val]]:
    """Emit a loop over pieces as `cut_into` makes them: first index and size of each."""
    pieces = cut_into(f, count, most, slack)
    with counted(f, i64(0), pieces.number, i64(1), hint) as number:
        size = f.add(pieces.size, f.cast("zext", f.icmp("slt", number, pieces.longer), "i64"))
        yield f.add(f.mul(number, pieces.size), least(f, number, pieces.longer)), size


@contextmanager
def runs_of(f: Function, pieces: Pieces, hint: str) -> Iterator[tuple[Val, Val, Val]]:
    """Emit a loop over runs of pieces of one size: first index, size and how many."""
    start = f.cast("zext", f.icmp("eq", pieces.longer, i64(0)), "i64")
    with counted(f, start, i64(2), i64(1), hint) as number:
        ahead = f.icmp("eq", number, i64(0))
        size = f.add(pieces.size, i64(1))
        first = f.select(ahead, i64(0), f.mul(pieces.longer, size))
        count = f.select(ahead, pieces.longer, f.sub(pieces.number, pieces.longer))
        yield first, f.select(ahead, size, pieces.size), count


def panels_cut(f: Function, count: Val, shape: Shape) -> Pieces:
    """So many vectors of columns as those that tiles have."""
    return cut_into(f, count, i64(shape.vectors), shape.most_vectors - shape.vectors)


def panels_of(f: Function, count: Val, shape: Shape) -> AbstractContextManager[tuple[Val, Val]]:
    """Emit a loop over the vectors of columns that tiles have: the first and how many."""
    slack = shape.most_vectors - shape.vectors
    return pieces_of(f, count, i64(shape.vectors), "panel", slack)


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
    with panels_of(f, total, shape) as (first, vectors):
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
        lanes_here = least(f, here, f.mul(vectors, i64(width)))
        row = f.mul(vectors, i64(width))
        _pack_strided(
            f, kind, (panel, source), (k_stride, n_stride), (i64(0), length), lanes_here, row
        )
        f.branch(done)
        f.start(done)
    f.ret()
    f.finish()
    return name


def define_pack_a(module: Module, kind: str, shape: Shape) -> str:
    """Define ``void pack(ptr to, ptr a, i64 k_stride, i64 rows, i64 length)``.

    Rows of `a` that lie next to each other are laid along k, each filled up to whole vectors.
    """
    name = f"gemm_pack_a_{kind}"
    arguments = [("to", "ptr", 1), ("a", "ptr", 1)]
    arguments += [(n, "i64", 1) for n in ("k_stride", "rows", "length")]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    to, a, k_stride, rows, length = f.arguments
    vectors = vectors_of(f, length, shape.width)
    _pack_across(f, kind, shape.width, (to, a), k_stride, rows, vectors, length, ahead=2)
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
    for count in range(1, shape.most_vectors + 1):
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
    ahead: int = 0,
) -> None:
    """Elements along k next to each other: square blocks are turned in registers.

    The first two lines of what is turned so many vectors later are fetched.
    """
    panel, source = ends
    row = f.mul(vectors, i64(width))
    whole = f.and_(length, i64(-width))
    with counted(f, i64(0), vectors, i64(1), "vector") as v:
        left = f.mul(v, i64(width))
        final = f.sub(f.sub(columns, left), i64(1))
        bases = []
        for lane in range(width):
            inside = least(f, i64(lane), final)
            bases.append(element(f, source, f.mul(f.add(left, inside), n_stride), kind))
        to = element(f, panel, left, kind)
        for lane in range(width if ahead else 0):
            later = f.add(left, i64(ahead * width + lane))
            line = element(f, source, f.mul(later, n_stride), kind)
            for offset in (0, VECTOR_BYTES):
                prefetch(f, f.gep(line, i64(offset), "i8"))
        with counted(f, i64(0), whole, i64(width), "turn") as k:
            block = [f.load(element(f, base, k, kind), kind, width) for base in bases]
            for step, value in enumerate(transposed(f, block)):
                f.store(value, element(f, to, f.mul(f.add(k, i64(step)), row), kind))
    used = least(f, columns, row)
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

"""Matrix products of any size and stride: the blocked kernel and the plan of a launch.

Two structures:

* the argument array of a launch, i64 values (`ARG_...` are its places): tensors by slot, sizes,
  strides and offsets in elements, and the blocking that the plan chose.
* `GemmLaunch`: what a caller needs to run one product: symbol, arguments, number of chunks.

One kernel per scalar kind serves every shape; a new shape compiles at most the register tiles that
no product before it had (`symgrad.codegen.gemm_library`). A chunk is a
block of rows (and, for flat products, columns) of one batch entry; neighbouring chunks of one
call are joined so that a packed operand serves all of them.

The value of an element is fixed by k alone: one chain of fused multiply-adds per `UNIT` of k,
units joined in a binary tree over their absolute index. Tiles, packing, chunks and threads do
not change it. Start reading at `gemm_plan` for use, at `define` for the code.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import NamedTuple

from symgrad.codegen import jit
from symgrad.codegen.gemm_cut import column_sizes, row_blocks, row_sizes
from symgrad.codegen.gemm_inner import define_inner, define_missing
from symgrad.codegen.gemm_library import Size, host_shape, tiles
from symgrad.codegen.gemm_tile import (
    JOB_A_K,
    JOB_A_ROW,
    JOB_B_K,
    JOB_DEPTH,
    JOB_FINITE,
    JOB_LENGTH,
    JOB_POPS,
    JOB_RESUMED,
    JOB_SIZE,
    JOB_SLOTS,
    JOB_TAIL,
    JOB_TILES,
    UNIT,
    VECTOR_BYTES,
    Shape,
    counted,
    define_pack_a,
    define_pack_b,
    element,
    least,
    pieces_of,
    place,
    quotient,
    vectors_of,
    when,
)
from symgrad.codegen.gemm_zeros import LEAST_ROWS, MOST_ROWS, SHORTEST, UNKNOWN
from symgrad.codegen.ir import FLOAT_BITS, Function, Module, Val, constant, i64, written

(
    ARG_SLOT_A,
    ARG_SLOT_B,
    ARG_SLOT_C,
    ARG_SLOT_SCRATCH,
    ARG_BATCH,
    ARG_M,
    ARG_N,
    ARG_K,
    ARG_A_BATCH,
    ARG_A_ROW,
    ARG_A_K,
    ARG_B_BATCH,
    ARG_B_K,
    ARG_B_N,
    ARG_C_BATCH,
    ARG_C_ROW,
    ARG_C_COLUMN,
    ARG_OFFSET_A,
    ARG_OFFSET_B,
    ARG_CHUNK_ROWS,
    ARG_CHUNK_COLUMNS,
    ARG_CHUNKS_JOINED,
    ARG_BLOCK_ROWS,
    ARG_BLOCK_VECTORS,
    ARG_B_BYTES,
    ARG_A_BYTES,
    ARG_STAGE_BYTES,
    ARG_SLOT_BYTES,
    ARG_WORK_BYTES,
    ARG_TILES,
    ARG_RESUMED,
) = range(31)

TAIL_START = ARG_BATCH
"""Arguments before this place are slots, from it on the tail."""


Strides = tuple[int, int, int]
"""Batch, row and column stride in elements."""


class GemmLaunch(NamedTuple):
    """One planned product.

    `tail` is the argument array after its four slots; `swapped` says that the plan computes the
    transpose, so that the operands change places (`arguments` takes care of it). `cost_ns` is
    an estimate for one thread. `scratch_bytes` is what the kernel takes from the C library's
    heap while a call runs; the caller provides nothing. `tiles` are the register tiles it uses.
    """

    symbol: str
    tail: tuple[int, ...]
    extent: int
    cost_ns: int
    scratch_bytes: int
    variant: str
    swapped: bool
    tiles: frozenset[Size]

    def arguments(
        self,
        slot_a: int,
        slot_b: int,
        slot_c: int,
        offset_a: int = 0,
        offset_b: int = 0,
    ) -> tuple[int, ...]:
        """The whole argument array; offsets count an operand's elements from the base of its slot."""
        left, right = (slot_a, offset_a), (slot_b, offset_b)
        if self.swapped:
            left, right = right, left
        tail = list(self.tail)
        tail[ARG_OFFSET_A - TAIL_START] = left[1]
        tail[ARG_OFFSET_B - TAIL_START] = right[1]
        return (left[0], right[0], slot_c, -1, *tail)


def kernel_name(kind: str) -> str:
    """The exported symbol of a kind's kernel."""
    return f"gemm_{kind}"


def kernel_for(kind: str, launch: GemmLaunch) -> tuple[int, jit.Library]:
    """The address of the code of a planned product, with the tiles it needs, and its owner."""
    prepare(kind, launch.tiles)
    library = tiles(kind).kernel
    assert library is not None
    return library[launch.symbol], library


def prepare(kind: str, sizes: frozenset[Size]) -> None:
    """Compile what is missing of the code of products of a kind, with register tiles of these sizes."""

    def kernel() -> jit.Source:
        name = kernel_name(kind)
        module = partial(written, partial(define, kind=kind))
        return jit.Source(module, [name], recipe=f"{name} {host_shape(kind)!r}")

    tiles(kind).need(sizes, kernel)


def define(module: Module, kind: str, shape: Shape | None = None) -> str:
    """Define the product kernel of one kind; returns the exported symbol.

    Parameters
    ----------
    module : Module
    kind : {"double", "float"}
    shape : Shape, optional
        The register tile; default the best for this CPU. It changes speed, never bits.
    """
    shape = shape or host_shape(kind)
    missing = define_missing(module, kind, shape)
    pack_b = define_pack_b(module, kind, shape)
    plain = define_inner(module, kind, shape, missing)
    looking = define_inner(module, kind, shape, missing, plain)
    packs = define_pack_a(module, kind, shape), pack_b
    block = _define_block(module, kind, shape, packs, (plain, looking))
    return _define_kernel(module, kind, block)


def _define_block(
    module: Module, kind: str, shape: Shape, packing: tuple[str, str], inner: tuple[str, str]
) -> str:
    """Rows and columns of one batch entry: ``void block(args, a, b, c, m, n, work)``."""
    name = f"gemm_block_{kind}"
    arguments = [("args", "ptr", 1), ("a", "ptr", 1), ("b", "ptr", 1), ("c", "ptr", 1)]
    arguments += [("m", "i64", 1), ("n", "i64", 1), ("work", "ptr", 1)]
    f = Function(module, name, arguments, attributes="noinline nounwind", linkage="internal")
    args, a, b, c, m, n, work = f.arguments

    def argument(number: int) -> Val:
        return f.load(place(f, args, number), "i64")

    job = f.alloca("i64", 1, JOB_SIZE)
    total_k = argument(ARG_K)
    a_row, a_k = argument(ARG_A_ROW), argument(ARG_A_K)
    b_k, b_n = argument(ARG_B_K), argument(ARG_B_N)
    block_rows, block_vectors = argument(ARG_BLOCK_ROWS), argument(ARG_BLOCK_VECTORS)
    b_bytes = argument(ARG_B_BYTES)
    stage_bytes, slot_bytes = argument(ARG_STAGE_BYTES), argument(ARG_SLOT_BYTES)
    a_bytes = argument(ARG_A_BYTES)
    packs_a = f.icmp("ne", a_bytes, i64(0))
    at_packed_a = f.gep(work, b_bytes, "i8")
    stage = f.gep(at_packed_a, a_bytes, "i8")
    extra = f.gep(stage, stage_bytes, "i8")
    staged = f.icmp("ne", stage_bytes, i64(0))
    packs = f.icmp("ne", b_bytes, i64(0))
    to = f.select(staged, stage, c)
    to_row = f.select(staged, n, argument(ARG_C_ROW))

    f.store(a_row, place(f, job, JOB_A_ROW))
    f.store(f.select(packs_a, i64(1), a_k), place(f, job, JOB_A_K))
    f.store(b_k, place(f, job, JOB_B_K))
    f.store(to_row, place(f, job, JOB_SLOTS + 1))
    f.store(argument(ARG_TILES), place(f, job, JOB_TILES))
    resumed = argument(ARG_RESUMED)
    f.store(resumed, place(f, job, JOB_RESUMED))
    f.store(i64(0), place(f, job, JOB_TAIL))
    fresh = f.icmp("eq", resumed, i64(0))
    units = f.udiv(f.add(total_k, i64(UNIT - 1)), i64(UNIT))
    units = f.intrinsic("umax", "i64", 1, [units, i64(1)])
    last_unit = f.sub(units, i64(1))
    with when(f, f.icmp("ne", slot_bytes, i64(0)), "slots"):
        levels = f.sub(i64(63), f.intrinsic("ctlz", "i64", 1, [units, constant("i1", False)]))
        with counted(f, i64(1), levels, i64(1), "slot") as s:
            entry = place(f, job, f.add(f.mul(s, i64(2)), i64(JOB_SLOTS)))
            f.store(f.gep(extra, f.mul(f.sub(s, i64(1)), slot_bytes), "i8"), entry)
            f.store(f.mul(block_vectors, i64(shape.width)), place(f, entry, 1))

    total = vectors_of(f, n, shape.width)
    with pieces_of(f, total, block_vectors, "columns") as (first, vectors):
        j = f.mul(first, i64(shape.width))
        columns = least(f, f.mul(vectors, i64(shape.width)), f.sub(n, j))
        f.store(element(f, to, j, kind), place(f, job, JOB_SLOTS))
        with counted(f, i64(0), units, i64(1), "unit") as u:
            start = f.mul(u, i64(UNIT))
            length = least(f, i64(UNIT), f.sub(total_k, start))
            depth = f.intrinsic("ctpop", "i64", 1, [u])
            carries = f.intrinsic("cttz", "i64", 1, [f.xor(u, i64(-1)), constant("i1", False)])
            pops = f.select(f.icmp("eq", u, last_unit), depth, carries)
            f.store(length, place(f, job, JOB_LENGTH))
            f.store(i64(UNKNOWN), place(f, job, JOB_FINITE))
            f.store(depth, place(f, job, JOB_DEPTH))
            f.store(pops, place(f, job, JOB_POPS))
            here_b = element(f, b, f.add(f.mul(start, b_k), f.mul(j, b_n)), kind)
            with when(f, packs, "pack"):
                f.call(packing[1], None, [work, here_b, b_k, b_n, length, columns])
            at_b = f.select(packs, work, here_b)
            with row_blocks(f, m, block_rows, shape) as (i, rows):
                here_a = element(f, a, f.add(f.mul(start, a_k), f.mul(i, a_row)), kind)
                with when(f, packs_a, "pack_a"):
                    f.call(packing[0], None, [at_packed_a, here_a, a_k, rows, length])
                    along = f.mul(vectors_of(f, length, shape.width), i64(shape.width))
                    f.store(along, place(f, job, JOB_A_ROW))
                here_a = f.select(packs_a, at_packed_a, here_a)
                looks = f.and_(fresh, f.icmp("sge", length, i64(SHORTEST)))
                looks = f.and_(looks, f.icmp("sge", rows, i64(LEAST_ROWS)))
                looks = f.and_(looks, f.icmp("sle", rows, i64(MOST_ROWS)))
                chosen = f.select(looks, *[Val(f"@{name}", "ptr") for name in reversed(inner)])
                values = [job, here_a, at_b, i, rows, columns, b_bytes]
                f.do(f"call void {chosen.ref}({', '.join(str(v) for v in values)})")

    with when(f, staged, "unstage"):
        c_row, c_column = argument(ARG_C_ROW), argument(ARG_C_COLUMN)
        with counted(f, i64(0), m, i64(1), "out") as i:
            source = element(f, stage, f.mul(i, n), kind)
            target = element(f, c, f.mul(i, c_row), kind)
            with counted(f, i64(0), n, i64(1), "out_column") as j:
                value = f.load(element(f, source, j, kind), kind)
                f.store(value, element(f, target, f.mul(j, c_column), kind))
    f.ret()
    f.finish()
    return name


def _define_kernel(module: Module, kind: str, block: str) -> str:
    """The entry: chunks to blocks."""
    name = kernel_name(kind)
    arguments = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    f = Function(module, name, arguments)
    slots, args, low, high = f.arguments

    def argument(number: int) -> Val:
        return f.load(place(f, args, number), "i64")

    def base(slot: int) -> Val:
        return f.load(f.gep(slots, argument(slot), "ptr"), "ptr")

    a = element(f, base(ARG_SLOT_A), argument(ARG_OFFSET_A), kind)
    b = element(f, base(ARG_SLOT_B), argument(ARG_OFFSET_B), kind)
    c = base(ARG_SLOT_C)
    m, n = argument(ARG_M), argument(ARG_N)
    a_batch, b_batch, c_batch = (argument(k) for k in (ARG_A_BATCH, ARG_B_BATCH, ARG_C_BATCH))
    a_row, b_n = argument(ARG_A_ROW), argument(ARG_B_N)
    c_row, c_column = argument(ARG_C_ROW), argument(ARG_C_COLUMN)
    chunk_rows, chunk_columns = argument(ARG_CHUNK_ROWS), argument(ARG_CHUNK_COLUMNS)
    joined = argument(ARG_CHUNKS_JOINED)
    work_bytes = argument(ARG_WORK_BYTES)
    needs_work = f.icmp("ne", work_bytes, i64(0))
    holder = f.alloca("ptr")
    f.store(Val("null", "ptr"), holder)
    with when(f, needs_work, "allocate"):
        taken = f.call("malloc", ("ptr", 1), [work_bytes])
        assert taken is not None
        with when(f, f.icmp("eq", taken, Val("null", "ptr")), "refused"):
            f.call("abort", None, [])
        f.store(taken, holder)
    memory = f.load(holder, "ptr")
    address = f.cast("ptrtoint", memory, "i64")
    gap = f.and_(f.sub(i64(0), address), i64(VECTOR_BYTES - 1))
    work = f.gep(memory, gap, "i8")

    def count_of(size: Val, part: Val) -> Val:
        whole = f.icmp("sle", size, part)
        return quotient(f, f.sub(f.add(size, part), i64(1)), part, whole, i64(1))

    row_chunks, column_chunks = count_of(m, chunk_rows), count_of(n, chunk_columns)
    per_batch = f.mul(row_chunks, column_chunks)

    head, body, done = f.label("chunk"), f.label("chunk.body"), f.label("chunk.done")
    before = f.block
    f.branch(head)
    f.start(head)
    chunk = f.phi("i64")
    f.branch_if(f.icmp("slt", chunk[0], high), body, done)
    f.start(body)
    batch = quotient(f, chunk[0], per_batch, f.icmp("eq", per_batch, i64(1)), chunk[0])
    inside = f.sub(chunk[0], f.mul(batch, per_batch))
    first_column = f.icmp("slt", inside, row_chunks)
    across = quotient(f, inside, row_chunks, first_column, i64(0))
    down = f.sub(inside, f.mul(across, row_chunks))
    count = least(f, joined, f.sub(row_chunks, down))
    count = least(f, count, f.sub(high, chunk[0]))
    i, j = f.mul(down, chunk_rows), f.mul(across, chunk_columns)
    rows = least(f, f.mul(count, chunk_rows), f.sub(m, i))
    columns = least(f, chunk_columns, f.sub(n, j))
    at_a = element(f, a, f.add(f.mul(batch, a_batch), f.mul(i, a_row)), kind)
    at_b = element(f, b, f.add(f.mul(batch, b_batch), f.mul(j, b_n)), kind)
    corner = f.add(f.mul(i, c_row), f.mul(j, c_column))
    at_c = element(f, c, f.add(f.mul(batch, c_batch), corner), kind)
    f.call(block, None, [args, at_a, at_b, at_c, rows, columns, work])
    following = f.add(chunk[0], count)
    f.set_phi(chunk, [(low, before), (following, f.block)])
    f.branch(head)
    f.start(done)
    with when(f, needs_work, "release"):
        f.call("free", None, [memory])
    f.ret()
    f.finish()
    return name


def _normalised(
    nbatch: int,
    m: int,
    n: int,
    k: int,
    a: Strides,
    b: Strides,
    c: Strides,
) -> tuple[bool, tuple[int, int, int, int], tuple[Strides, Strides, Strides]]:
    """Free strides of axes of size 1, transpose where C asks for it, batch folded into rows."""
    swapped = n > 1 and c[2] != 1 and (c[1] == 1 or m == 1)
    if swapped:
        m, n = n, m
        a, b, c = (b[0], b[2], b[1]), (a[0], a[2], a[1]), (c[0], c[2], c[1])
    if n == 1:
        b, c = (b[0], b[1], 1), (c[0], c[1], 1)
    if k == 1:
        a = (a[0], a[1], 1)
    if m == 1:
        a, c = (a[0], a[0], a[2]), (c[0], c[0], c[2])
    if nbatch > 1 and b[0] == 0 and a[0] == m * a[1] and c[0] == m * c[1]:
        m, nbatch = m * nbatch, 1
    return swapped, (nbatch, m, n, k), (a, b, c)


class Blocking(NamedTuple):
    """How a product is cut: whether B is packed, sizes of blocks and chunks.

    `rows_joined` limits the rows that neighbouring chunks are joined to.
    """

    packs: bool
    block_rows: int
    block_vectors: int
    chunk_rows: int
    chunk_columns: int
    rows_joined: int


# Measured (Zen 4, one core). B is read in place until a unit of it leaves the L2 cache or its
# columns lie apart; packing it costs as much as five rows of the product. Block sizes keep a
# packed block (768 KiB) in L2 and a group of rows of A in L1, or of as few as are worth a call.
PACK_BYTES = 1_200_000
PACK_ROWS = 96
# With registers of 256 bits also where rows of B lie so far apart that a narrow panel of them has
# few sets of the L1 cache for itself, and each line a page: up to twice as fast (512 x 512 doubles).
FAR_BYTES = 2048
FAR_DEPTH = 32
FAR_ROWS = 64
# Rows of B that fall into few of the 64 sets of the L1 cache leave there less of a panel than a chain
# takes: a tenth slower (256 columns of float32, 128 of float64, one after the other).
CROWDED_ROWS = 96
CACHE_SETS, CACHE_WAYS = 64, 8
# A transposed has one element of each row of a tile in a line, and takes a new line for each step along
# k, again for each panel of columns: up to twice as slow where lines lie far apart.
TURN_ROWS = 8
TURN_COLUMNS = 64
BLOCK_ROWS = 24
BLOCK_BYTES = 24_576
BLOCK_LINES = 32
# So that a product of one packed block feeds several threads: chunks, and their width at least.
FEW = 8
FEW_LINES = 2
FEW_LINES_TURNED = 8
CHUNKS = 32
CHUNK_NS = 4000.0
JOINED_ROWS = 960
STAGE_COLUMNS = 1024
GFLOPS = {"double": 55.0, "float": 110.0}
CACHE_BYTES = 262_144
BYTES_PER_NS = 15.0
ENTRY_NS = 30.0


def _entry_cost(kind: str, m: int, n: int, k: int, packs: bool) -> float:
    """Nanoseconds for one batch entry on one thread: 32 bytes are the grain of columns."""
    shape = host_shape(kind)
    grain = VECTOR_BYTES * 4 // FLOAT_BITS[kind]
    lanes = -(-n // grain) * grain
    rate = GFLOPS[kind] * (1.0 if shape.masks else 0.7)
    rows = m + (5.4 if packs else 0.0)
    traffic = (m * k + k * n + m * n) * FLOAT_BITS[kind] // 8 - CACHE_BYTES
    return ENTRY_NS + max(2.0 * rows * lanes * k / rate, traffic / BYTES_PER_NS)


def choose_blocking(
    kind: str,
    sizes: tuple[int, int, int, int],
    a_strides: Strides,
    b_strides: Strides,
    staged: bool,
) -> Blocking:
    """The blocking for sizes (batch, m, n, k); of influence on speed, not on the bits."""
    nbatch, m, n, k = sizes
    shape = host_shape(kind)
    turns = worth_turning(kind, (m, n, k), a_strides)
    packs = worth_packing(kind, (m, n, k), b_strides, turns)
    cost = _entry_cost(kind, m, n, k, packs)
    wanted = int(min(-(-CHUNKS // max(nbatch, 1)), cost / CHUNK_NS))
    most_columns = STAGE_COLUMNS if staged else n
    grain = shape.rows[shape.vectors - 1]
    line = VECTOR_BYTES * 8 // FLOAT_BITS[kind]
    if packs:
        # Chunks side by side pack different columns, chunks below one another the same.
        lines = n // line
        # Each of them turns A again. A power of two, so that as many threads have the same to do.
        few = min(lines // (FEW_LINES_TURNED if turns else FEW_LINES), FEW)
        most = max(lines // BLOCK_LINES, 1 << few.bit_length() >> 1)
        columns = _part(n, max(1, min(wanted, most)), line)
        rows = _part(m, min(wanted * columns // max(n, 1), m // PACK_ROWS), grain)
    else:
        rows = _part(m, min(wanted, m // BLOCK_ROWS), grain)
        panel = shape.vectors * shape.width
        columns = _part(n, min(wanted * rows // max(m, 1), n // (2 * panel)), panel)
    return Blocking(
        packs,
        block_rows(kind, k),
        block_vectors(kind),
        min(rows, JOINED_ROWS),
        min(columns, most_columns),
        JOINED_ROWS,
    )


def worth_packing(
    kind: str, sizes: tuple[int, int, int], b_strides: Strides, turns: bool = False
) -> bool:
    """Whether a product of sizes (m, n, k) copies B into panels; `turns` says that it copies A."""
    m, n, k = sizes
    element_bytes = FLOAT_BITS[kind] // 8
    if b_strides[2] != 1:
        return True
    far = abs(b_strides[1]) * element_bytes >= FAR_BYTES and k >= FAR_DEPTH
    if not host_shape(kind).masks:
        if far and m >= FAR_ROWS:
            return True
        lines, apart = divmod(abs(b_strides[1]) * element_bytes, VECTOR_BYTES)
        room = CACHE_WAYS * CACHE_SETS // gcd(lines, CACHE_SETS)
        if not turns and apart == 0 and min(k, UNIT) > room and m >= CROWDED_ROWS:
            return True
    return n * min(k, UNIT) * element_bytes > PACK_BYTES and m >= PACK_ROWS


def block_rows(kind: str, k: int) -> int:
    """Rows of A in a block, at most."""
    row_bytes = max(min(k, UNIT), 1) * FLOAT_BITS[kind] // 8
    return min(max(BLOCK_BYTES // row_bytes, BLOCK_ROWS), MOST_ROWS)


def worth_turning(kind: str, sizes: tuple[int, int, int], a_strides: Strides) -> bool:
    """Whether a product of sizes (m, n, k) copies blocks of A, whose rows lie side by side, along k."""
    m, n, k = sizes
    far = abs(a_strides[2]) * FLOAT_BITS[kind] // 8 >= FAR_BYTES
    return far and a_strides[1] == 1 and m >= TURN_ROWS and n >= TURN_COLUMNS and k >= FAR_DEPTH


def block_vectors(kind: str) -> int:
    """Vectors of columns in a block, at most."""
    return BLOCK_LINES * VECTOR_BYTES * 8 // FLOAT_BITS[kind] // host_shape(kind).width


def _part(size: int, pieces: int, grain: int) -> int:
    """The size of one of so many near-equal pieces, whole grains if there is more than one."""
    if pieces <= 1:
        return max(size, 1)
    return -(-size // (pieces * grain)) * grain


def gemm_plan(
    kind: str,
    nbatch: int,
    m: int,
    n: int,
    k: int,
    a_strides: Strides,
    b_strides: Strides,
    c_strides: Strides,
    blocking: Blocking | None = None,
    resumed: bool = False,
) -> GemmLaunch:
    """Plan ``C[b, i, j] = sum over k of A[b, i, k] * B[b, k, j]``.

    Parameters
    ----------
    kind : {"double", "float"}
    nbatch, m, n, k : int
        Sizes, each 0 or more; with `k` of 0 the result is 0.
    a_strides, b_strides, c_strides : (batch, row, column) strides in elements
        Any integers for `A` (batch, m, k) and `B` (batch, k, n), 0 and negative ones included;
        elements of `C` must not share memory.
    blocking : Blocking, optional
        In place of the plan's own choice.
    resumed : bool
        Whether chains go on from what `C` holds, which k of at most `UNIT` allows.

    Returns
    -------
    GemmLaunch
    """
    swapped, sizes, strides = _normalised(nbatch, m, n, k, a_strides, b_strides, c_strides)
    nbatch, m, n, k = sizes
    size = FLOAT_BITS[kind] // 8
    shape = host_shape(kind)
    staged = strides[2][2] != 1
    cut = blocking or choose_blocking(kind, sizes, strides[0], strides[1], staged)
    chunk_rows = max(1, min(cut.chunk_rows, m))
    chunk_columns = max(1, min(cut.chunk_columns, n))
    joined = max(1, cut.rows_joined // chunk_rows)
    rows = min(joined * chunk_rows, max(m, 1))
    vectors = max(1, min(cut.block_vectors, -(-chunk_columns // shape.width)))
    block_bytes = vectors * shape.width * size
    b_bytes = block_bytes * min(k, UNIT) if cut.packs else 0
    # A packed row is filled up to whole vectors.
    a_row = _rounded(min(k, UNIT) * size) if worth_turning(kind, (m, n, k), strides[0]) else 0
    a_bytes = max(cut.block_rows, shape.rows[shape.vectors - 1]) * a_row
    stage_bytes = _rounded(rows * chunk_columns * size) if staged else 0
    units = max(1, -(-k // UNIT))
    # The most results that wait at once: the most bits set in any of 1 .. units-1.
    deepest = units.bit_length() - 1
    slot_bytes = rows * block_bytes if deepest > 1 else 0
    work = b_bytes + a_bytes + stage_bytes + slot_bytes * max(0, deepest - 1)
    extent = nbatch * -(-m // chunk_rows) * -(-n // chunk_columns)
    tail = (
        (nbatch, m, n, k, *strides[0], *strides[1], *strides[2], 0, 0)
        + (chunk_rows, chunk_columns, joined, cut.block_rows, vectors)
        + (b_bytes, a_bytes, stage_bytes, slot_bytes, work + VECTOR_BYTES if work else 0)
        + (tiles(kind).address, int(resumed))
    )
    tile = f"{shape.rows[shape.vectors - 1]}x{shape.vectors}"
    variant = f"{tile}{' packed' * cut.packs}{' staged' * staged}"
    cost = ENTRY_NS + nbatch * _entry_cost(kind, m, n, k, cut.packs)
    used = (
        frozenset()
        if extent == 0
        else frozenset(
            (r, v, tail_form)
            for v, tail_form in column_sizes(shape, n, chunk_columns, vectors)
            for r in row_sizes(shape, v, m, chunk_rows, joined, cut.block_rows)
        )
    )
    return GemmLaunch(kernel_name(kind), tail, extent, int(cost), work, variant, swapped, used)


def _rounded(count: int) -> int:
    return -(-count // VECTOR_BYTES) * VECTOR_BYTES

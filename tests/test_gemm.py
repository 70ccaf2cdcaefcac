"""Matrix products: the bits against the definition, for every layout, blocking and split.

The definition (`product`) is plain NumPy: one chain of fused multiply-adds per 384 of k, joined
by a binary counter. NumPy has no fused multiply-add; `fused` builds one from error-free
transformations and a last rounding to odd, and is itself checked against rational arithmetic.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from symgrad.codegen import gemm, gemm_library, gemm_tile, jit
from symgrad.codegen.ir import Module

DTYPES = {"double": np.float64, "float": np.float32}
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


# -- the definition -----------------------------------------------------------------------


def two_sum(x, y):
    """Sum and its rounding error (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x, y):
    """Product and its rounding error (Dekker, Numerische Mathematik 18, 1971)."""
    factor = 134217729.0
    x_high = x * factor - (x * factor - x)
    y_high = y * factor - (y * factor - y)
    x_low, y_low = x - x_high, y - y_high
    high = x * y
    return high, x_low * y_low - (((high - x_high * y_high) - x_low * y_high) - x_high * y_low)


def odd_sum(x, y):
    """Sum rounded to odd (Boldo and Melquiond, IEEE Trans. Computers 57, 2008)."""
    total, error = two_sum(x, y)
    bits = np.array(total).view(np.int64)
    inexact_even = (error != 0) & (bits & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact_even, bits + toward, bits).view(np.float64)


def fused(x, y, z):
    """x*y + z rounded once, barring overflow and underflow (Boldo and Melquiond)."""
    if z.dtype == np.float32:
        exact = x.astype(np.float64) * y.astype(np.float64)
        return odd_sum(exact, z.astype(np.float64)).astype(np.float32)
    high, low = two_product(x, y)
    part_high, part_low = two_sum(z, low)
    high, rest = two_sum(high, part_high)
    return high + odd_sum(part_low, rest)


def product(a, b):
    """What the bits of A @ B are, for (..., m, k) and (..., k, n)."""
    k = a.shape[-1]
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
    levels: dict[int, np.ndarray] = {}
    for unit, start in enumerate(range(0, max(k, 1), 384)):
        carry = np.zeros(shape, a.dtype)
        for i in range(start, min(k, start + 384)):
            x = np.broadcast_to(a[..., :, i, None], shape)
            carry = fused(x, np.broadcast_to(b[..., i, None, :], shape), carry)
        level = 0
        while unit >> level & 1:
            carry = levels.pop(level) + carry
            level += 1
        levels[level] = carry
    result = levels.pop(min(levels))
    for level in sorted(levels):
        result = levels[level] + result
    return result


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_fused_agrees_with_rational_arithmetic(dtype):
    rng = np.random.default_rng(5)
    x, y, z = (rng.standard_normal(300).astype(dtype) for _ in range(3))
    z[:100] = -(x * y)[:100]
    z[100:200] *= dtype(2.0) ** rng.integers(-60, 60, 100)
    exact = [
        Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        for p, q, r in zip(x, y, z, strict=True)
    ]
    got = fused(x, y, z)
    for value, want in zip(got, exact, strict=True):
        error = abs(Fraction(float(value)) - want)
        for other in (np.nextafter(value, dtype(np.inf)), np.nextafter(value, -dtype(np.inf))):
            assert error <= abs(Fraction(float(other)) - want)


# -- running a kernel ---------------------------------------------------------------------


class Kernels:
    """The kernels of this CPU, or those of other register tiles."""

    def __init__(self, shapes=None):
        self.libraries, self.tiles = {}, {}
        for kind in DTYPES:
            shape = gemm_library.host_shape(kind) if shapes is None else shapes[kind]
            module = Module()
            name = gemm.define(module, kind, shape)
            self.libraries[kind] = jit.compile_module(module, [name])
            self.tiles[kind] = gemm_library.Tiles(kind, shape)
            self.tiles[kind].need(
                (rows, vectors, tail)
                for vectors, most in enumerate(shape.rows, 1)
                for rows, tail in itertools.product(range(1, most + 1), (0, 1))
            )

    def __call__(self, a, b, c, blocking=None, splits=(), offsets=None, within=(0, 1)):
        """C = A @ B for arrays of three axes, the range of chunks cut at `splits`.

        `offsets` lets the slots start elsewhere; `within` takes a part of the range.
        """
        kind = next(k for k, d in DTYPES.items() if d == c.dtype)
        strides = [tuple(s // c.itemsize for s in x.strides) for x in (a, b, c)]
        sizes = (c.shape[0], c.shape[1], c.shape[2], a.shape[2])
        launch = gemm.gemm_plan(kind, *sizes, *strides, blocking=blocking)
        offsets = offsets or (0, 0)
        bases = [
            x.ctypes.data - o * c.itemsize for x, o in zip((a, b, c), (*offsets, 0), strict=True)
        ]
        slots = (ctypes.c_void_p * 4)(None, *bases)
        values = list(launch.arguments(1, 2, 3, *offsets))
        values[gemm.ARG_TILES] = self.tiles[kind].address
        args = (ctypes.c_int64 * len(values))(*values)
        function = SIGNATURE(self.libraries[kind][launch.symbol])
        cuts = [int(s * launch.extent) for s in (within[0], *splits, within[1])]
        for low, high in pairwise(cuts):
            function(slots, args, low, high)
        return launch


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


def fill(rng, shape, kind):
    return rng.standard_normal(shape).astype(DTYPES[kind])


def same_bits(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


# -- values -------------------------------------------------------------------------------

SHAPES = [(m, n, k) for m in (1, 2, 5, 6, 7, 13) for n, k in ((1, 3), (7, 20), (17, 1), (9, 11))]
SHAPES += [(1, 1, 1), (4, 4, 4), (8, 8, 8), (20, 19, 18), (3, 33, 2), (2, 65, 5), (11, 130, 3)]
SHAPES += [(7, 10, k) for k in (383, 384, 385, 768, 800, 1200, 1600)]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("size", SHAPES)
def test_product_has_the_defined_bits(kernels, kind, size):
    m, n, k = size
    rng = np.random.default_rng(m * 1000 + n * 100 + k)
    a, b = fill(rng, (1, m, k), kind), fill(rng, (1, k, n), kind)
    c = np.full((1, m, n), np.nan, DTYPES[kind])
    kernels(a, b, c)
    assert same_bits(c, product(a, b))


@pytest.mark.parametrize("kind", DTYPES)
def test_long_product_joins_units_in_a_binary_tree(kernels, kind):
    rng = np.random.default_rng(7)
    for units in range(1, 12):
        k = 384 * units - 383
        a, b = fill(rng, (1, 2, k), kind), fill(rng, (1, k, 2), kind)
        c = np.empty((1, 2, 2), DTYPES[kind])
        kernels(a, b, c)
        assert same_bits(c, product(a, b)), units


def arrangements(rng, shape, kind):
    """Arrays of one shape in different memory orders, with zero and negative strides."""
    batch, rows, columns = shape
    yield "rows", fill(rng, shape, kind)
    yield "transposed", fill(rng, (batch, columns, rows), kind).transpose(0, 2, 1)
    yield "reversed", fill(rng, shape, kind)[:, ::-1, ::-1]
    yield "spread", fill(rng, (batch, 2 * rows, 3 * columns), kind)[:, ::2, ::3]
    yield "batch last", fill(rng, (rows, columns, batch), kind).transpose(2, 0, 1)
    yield "one row", np.broadcast_to(fill(rng, (batch, 1, columns), kind), shape)
    yield "one column", np.broadcast_to(fill(rng, (batch, rows, 1), kind), shape)
    yield "one entry", np.broadcast_to(fill(rng, (1, rows, columns), kind), shape)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("size", [(3, 7, 19, 13), (2, 13, 5, 40), (2, 1, 6, 3), (2, 6, 1, 3)])
def test_every_layout_has_the_defined_bits(kernels, kind, size):
    nbatch, m, n, k = size
    rng = np.random.default_rng(11)
    for name_a, a in arrangements(rng, (nbatch, m, k), kind):
        for name_b, b in arrangements(rng, (nbatch, k, n), kind):
            c = np.full((nbatch, m, n), np.nan, DTYPES[kind])
            kernels(a, b, c)
            assert same_bits(c, product(a, b)), (name_a, name_b)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("size", [(1, 7, 19, 800), (3, 9, 21, 5), (2, 1, 8, 4), (2, 8, 1, 4)])
def test_result_of_any_layout_leaves_its_surroundings_alone(kernels, kind, size):
    nbatch, m, n, k = size
    rng = np.random.default_rng(13)
    a, b = fill(rng, (nbatch, m, k), kind), fill(rng, (nbatch, k, n), kind)
    want = product(a, b)
    layouts = {
        "padded": ((nbatch, m, n + 5), lambda x: x[:, :, 2 : 2 + n]),
        "transposed": ((nbatch, n, m), lambda x: x.transpose(0, 2, 1)),
        "reversed": ((nbatch, m + 1, n), lambda x: x[:, :0:-1, ::-1]),
        "spread": ((nbatch, 2 * m, 3 * n), lambda x: x[:, ::2, 1::3]),
        "batch last": ((m, n, nbatch), lambda x: x.transpose(2, 0, 1)),
    }
    for name, (shape, view) in layouts.items():
        whole = np.full(shape, 77.0, DTYPES[kind])
        kernels(a, b, view(whole))
        assert same_bits(view(whole).copy(), want), name
        view(whole)[...] = 77.0
        assert np.all(whole == 77.0), name


def test_offsets_count_elements_from_the_slots_base(kernels):
    rng = np.random.default_rng(17)
    for transposed in (False, True):
        a, b = fill(rng, (1, 5, 9), "double"), fill(rng, (1, 9, 6), "double")
        c = np.empty((1, 6, 5)).transpose(0, 2, 1) if transposed else np.empty((1, 5, 6))
        launch = kernels(a, b, c, offsets=(3, -4))
        assert launch.swapped == transposed
        assert same_bits(c.copy(), product(a, b))


def guarded(array):
    """A copy that ends where memory that may not be read begins, and its owner."""
    size = mmap.PAGESIZE
    pages = -(-array.nbytes // size)
    owner = mmap.mmap(-1, (pages + 1) * size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(owner))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(base + pages * size, size, 0) == 0
    offset = pages * size - array.nbytes
    copy = np.frombuffer(owner, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.parametrize("kind", DTYPES)
def test_nothing_behind_the_operands_is_read(kernels, kind):
    rng = np.random.default_rng(19)
    for m, n, k in [(5, 3, 2), (6, 9, 4), (13, 35, 17)]:
        for packs in (False, True):
            blocking = gemm.Blocking(packs, 12, 2, m, n, m)
            a, b = fill(rng, (1, m, k), kind), fill(rng, (1, k, n), kind)
            want = product(a, b)
            c = guarded(np.zeros((1, m, n), DTYPES[kind]))
            kernels(guarded(a), guarded(b), c, blocking)
            assert same_bits(c.copy(), want)
            turned_a = guarded(a.transpose(0, 2, 1).copy()).transpose(0, 2, 1)
            turned_b = guarded(b.transpose(0, 2, 1).copy()).transpose(0, 2, 1)
            kernels(turned_a, turned_b, c)
            assert same_bits(c.copy(), want)


# -- what does not change the bits --------------------------------------------------------


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("m", [8, 13, 31, 50])
@pytest.mark.parametrize("k", [32, 45, 385, 800])
def test_rows_whose_elements_lie_far_apart_have_the_defined_bits(kernels, kind, m, k):
    rng = np.random.default_rng(k)
    n, apart = 70, gemm.FAR_BYTES // 4
    a = fill(rng, (2, k, apart), kind)[:, :, 5 : 5 + m].transpose(0, 2, 1)
    b = fill(rng, (2, k, n), kind)
    assert gemm.worth_turning(kind, (m, n, k), tuple(s // a.itemsize for s in a.strides))
    want, few = product(a, b), gemm.Blocking(True, 5, 2, 7, 48, 14)
    for blocking in (None, few):
        c = np.full((2, m, n), np.nan, DTYPES[kind])
        kernels(a, b, c, blocking)
        assert same_bits(c, want)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("packs", [False, True])
def test_blocking_and_splits_leave_the_bits_alone(kernels, kind, packs):
    rng = np.random.default_rng(23)
    nbatch, m, n, k = 2, 31, 75, 1600
    a, b = fill(rng, (nbatch, m, k), kind), fill(rng, (nbatch, k, n), kind)
    want = np.empty((nbatch, m, n), DTYPES[kind])
    kernels(a, b, want)
    assert same_bits(want[:, 3:7, 20:24], product(a[:, 3:7], b[:, :, 20:24]))
    for rows, vectors, chunk_rows, chunk_columns, joined in [
        (24, 32, 1, n, 5),
        (5, 1, 7, 16, 14),
        (1, 2, 31, 32, 31),
        (13, 3, 4, 48, 100),
    ]:
        blocking = gemm.Blocking(packs, rows, vectors, chunk_rows, chunk_columns, joined)
        for splits in [(), (0.5,), sorted(rng.random(3)), tuple(np.arange(40) / 40)]:
            c = np.full_like(want, np.nan)
            kernels(a, b, c, blocking, splits)
            assert same_bits(c, want)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    "rows,vectors,lanes",
    [((6,), 1, 64), ((2, 2, 2), 3, 32), ((5, 3, 2), 2, 32), ((6, 6, 6, 6), 4, 64)],
)
def test_register_tile_leaves_the_bits_alone(kernels, monkeypatch, rows, vectors, lanes, masks):
    shapes = {
        "double": gemm_tile.Shape(rows, vectors, lanes // 8, masks),
        "float": gemm_tile.Shape(rows, vectors, lanes // 4, masks),
    }
    others = Kernels(shapes)
    rng = np.random.default_rng(29)
    for kind, dtype in DTYPES.items():
        for n, packs in itertools.product((3, 17, 45, 52), (False, True)):
            blocking = gemm.Blocking(packs, 24, 32, 17, n, 17)
            a, b = fill(rng, (1, 17, 1200), kind), fill(rng, (1, 1200, n), kind)
            want, c = np.empty((2, 1, 17, n), dtype)
            kernels(a, b, want)
            with monkeypatch.context() as patch:
                patch.setattr(gemm, "host_shape", shapes.__getitem__)
                others(a, b, c, blocking)
            assert same_bits(c, want)


@pytest.mark.parametrize("kind", DTYPES)
def test_smallest_tiles_stand_in_for_missing_ones(kernels, kind):
    few = Kernels()
    few.tiles[kind] = gemm_library.Tiles(kind, gemm_library.host_shape(kind))
    rng = np.random.default_rng(41)
    for packs in (False, True):
        blocking = gemm.Blocking(packs, 24, 4, 17, 45, 17)
        a, b = fill(rng, (1, 17, 800), kind), fill(rng, (1, 800, 45), kind)
        want, c = np.empty((2, 1, 17, 45), DTYPES[kind])
        kernels(a, b, want, blocking)
        few(a, b, c, blocking)
        assert same_bits(c, want)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("packs", [False, True])
def test_plan_names_every_tile_that_runs(kind, packs):
    """With the planned tiles alone, no other one is asked for: its place in the table tells."""
    rng = np.random.default_rng(43)
    unplanned = []
    called = ctypes.CFUNCTYPE(None)(lambda: unplanned.append(1))
    trap = ctypes.cast(called, ctypes.c_void_p).value
    for m, n, k in [
        (17, 45, 30),
        (128, 10, 96),
        (50, 50, 50),
        (1, 7, 3),
        (64, 33, 5),
        (97, 130, 8),
    ]:
        blocking = gemm.Blocking(packs, 24, 4, 20, 48, 60)
        few = Kernels()
        few.tiles[kind] = tiles = gemm_library.Tiles(kind, gemm_library.host_shape(kind))
        a, b = fill(rng, (1, m, k), kind), fill(rng, (1, k, n), kind)
        c = np.empty((1, m, n), DTYPES[kind])
        for chosen in (blocking, None):
            strides = [tuple(s // c.itemsize for s in x.strides) for x in (a, b, c)]
            tiles.need(gemm.gemm_plan(kind, 1, m, n, k, *strides, blocking=chosen).tiles)
            tiles.table[tiles.table == 0] = trap
            few(a, b, c, chosen, splits=(0.2, 0.5, 0.7))
            tiles.table[tiles.table == trap] = 0
            assert not unplanned, (m, n, k)


@pytest.mark.parametrize("kind", DTYPES)
def test_threads_sharing_the_chunks_leave_the_bits_alone(kernels, kind):
    rng = np.random.default_rng(31)
    a, b = fill(rng, (1, 150, 400), kind), fill(rng, (1, 400, 90), kind)
    want, c = np.empty((2, 1, 150, 90), DTYPES[kind])
    kernels(a, b, want)
    blocking = gemm.Blocking(True, 24, 4, 10, 48, 30)
    ranges = np.linspace(0, 1, 9)
    with ThreadPoolExecutor(3) as threads:
        jobs = [
            threads.submit(kernels, a, b, c, blocking, within=pair) for pair in pairwise(ranges)
        ]
    assert all(job.exception() is None for job in jobs)
    assert same_bits(c, want)


# -- accuracy, sizes without elements, special values -------------------------------------


@pytest.mark.parametrize("kind,tolerance", [("double", 1e-13), ("float", 4e-5)])
@pytest.mark.parametrize("size", [(1, 300, 310, 500), (1, 64, 700, 2100), (20, 30, 30, 30)])
def test_large_product_agrees_with_numpy(kernels, kind, tolerance, size):
    nbatch, m, n, k = size
    rng = np.random.default_rng(37)
    for order_a, order_b in [("nn"), ("tn"), ("nt"), ("tt")]:
        a = fill(rng, (nbatch, m, k) if order_a == "n" else (nbatch, k, m), kind)
        b = fill(rng, (nbatch, k, n) if order_b == "n" else (nbatch, n, k), kind)
        a = a if order_a == "n" else a.transpose(0, 2, 1)
        b = b if order_b == "n" else b.transpose(0, 2, 1)
        c = np.empty((nbatch, m, n), DTYPES[kind])
        kernels(a, b, c)
        want = np.matmul(a.astype(np.float64), b.astype(np.float64))
        scale = np.matmul(np.abs(a, dtype=np.float64), np.abs(b, dtype=np.float64))
        assert np.max(np.abs(c - want) / scale) < tolerance


@pytest.mark.parametrize("kind", DTYPES)
def test_empty_products(kernels, kind):
    for nbatch, m, n in [(0, 3, 4), (2, 0, 4), (2, 3, 0)]:
        a, b = np.ones((nbatch, m, 5), DTYPES[kind]), np.ones((nbatch, 5, n), DTYPES[kind])
        assert kernels(a, b, np.empty((nbatch, m, n), DTYPES[kind])).extent == 0
    c = np.full((2, 7, 21), np.nan, DTYPES[kind])
    kernels(np.empty((2, 7, 0), DTYPES[kind]), np.empty((2, 0, 21), DTYPES[kind]), c)
    assert same_bits(c, np.zeros_like(c))


@pytest.mark.parametrize("kind", DTYPES)
def test_special_values_reach_exactly_their_row_and_column(kernels, kind):
    a, b = np.ones((1, 8, 30), DTYPES[kind]), np.ones((1, 30, 11), DTYPES[kind])
    a[0, 2, 29], b[0, 29, 10], a[0, 5, 0] = np.nan, np.inf, -np.inf
    c = np.empty((1, 8, 11), DTYPES[kind])
    kernels(a, b, c)
    want = np.full((1, 8, 11), 30.0)
    want[0, :, 10], want[0, 5, :], want[0, 5, 10], want[0, 2, :] = np.inf, -np.inf, np.nan, np.nan
    np.testing.assert_array_equal(c, want)


def test_negative_zero_needs_a_negative_zero_result(kernels):
    a, b = np.full((1, 1, 2), -0.0), np.ones((1, 2, 9))
    c = np.empty((1, 1, 9))
    kernels(a, b, c)
    assert same_bits(c, np.zeros((1, 1, 9)))


# -- zeros at the ends of rows ------------------------------------------------------------


def with_zero_ends(rng, shape, kind):
    """Rows that are zero, of either sign, up to somewhere and from somewhere on."""
    a = fill(rng, shape, kind)
    _, m, k = shape
    for row in range(m):
        first, end = np.sort(rng.integers(0, k + 1, 2)) if row % 7 else (k, k)
        a[:, row, :first] = 0.0
        a[:, row, end:] = -0.0
    return a


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(
    "m,n,k", [(6, 40, 64), (9, 9, 65), (13, 70, 100), (30, 33, 385), (40, 5, 900)]
)
def test_zeros_at_the_ends_of_rows_leave_the_bits_alone(kernels, kind, m, n, k):
    rng = np.random.default_rng(k)
    for part in range(0, k, 50):
        a, b = with_zero_ends(rng, (2, m, k), kind), fill(rng, (2, k, n), kind)
        # Whole tiles without anything before `part` or after it.
        a[0, :, :part], a[1, :, part:] = 0.0, 0.0
        want = product(a, b)
        for x in (a, np.ascontiguousarray(a.transpose(0, 2, 1)).transpose(0, 2, 1)):
            for y in (b, np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)):
                c = np.full((2, m, n), np.nan, DTYPES[kind])
                kernels(x, y, c)
                assert same_bits(c, want), part


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("packed", [False, True])
def test_zeros_do_not_hide_what_is_not_finite(kernels, kind, bad, packed):
    m, n, k = 13, 70, 90
    for place, column in itertools.product((0, 5, 39, 40, 50, 89), (0, 13, 31, 66, 69)):
        a, b = np.zeros((1, m, k), DTYPES[kind]), np.ones((1, k, n), DTYPES[kind])
        a[:, :, 40:50] = 1.0
        b[0, place, column] = bad
        want = np.full((1, m, n), 10.0)
        want[:, :, column] = bad if 40 <= place < 50 else np.nan
        if packed:
            b = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
        c = np.empty((1, m, n), DTYPES[kind])
        kernels(a, b, c)
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("kind", DTYPES)
def test_what_is_not_finite_is_looked_for_in_every_block(kernels, kind):
    m, n, k = 9, 2 * gemm.BLOCK_LINES * 16 + 5, gemm_tile.UNIT + 80
    for place, column in ((5, 3), (5, n - 1), (gemm_tile.UNIT + 5, 3), (k - 1, n - 1)):
        a, b = np.zeros((1, m, k), DTYPES[kind]), np.ones((1, k, n), DTYPES[kind])
        a[:, :, 100:200], a[:, :, gemm_tile.UNIT + 30 : gemm_tile.UNIT + 50] = 1.0, 1.0
        b[0, place, column] = np.inf
        want = np.full((1, m, n), 120.0)
        want[:, :, column] = np.nan
        c = np.empty((1, m, n), DTYPES[kind])
        kernels(a, b, c)
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("kind", DTYPES)
def test_zeros_behind_a_product_that_underflows_decide_its_sign(kernels, kind):
    m, n, k = 9, 41, 64
    small = np.sqrt(np.finfo(DTYPES[kind]).smallest_subnormal) / 16
    for sign in (1.0, -1.0):
        a, b = np.full((1, m, k), sign * 0.0, DTYPES[kind]), -np.ones((1, k, n), DTYPES[kind])
        a[:, :, 2], b[:, 2, :] = -small, small
        b[0, 63, 1::3], b[0, 40, 2::3] = 1.0, 1.0
        # -small * small is -0.0, and stays so until +0.0 is added: then it is +0.0 for good.
        terms = sign * np.copysign(0.0, b[0, 3:])
        positive = np.any(~np.signbit(terms), axis=0)
        c = np.empty((1, m, n), DTYPES[kind])
        kernels(a, b, c)
        assert np.all(c == 0.0)
        assert np.array_equal(np.signbit(c[0]), np.broadcast_to(~positive, (m, n)))


# -- the plan -----------------------------------------------------------------------------


def test_batch_of_rows_with_a_shared_operand_is_one_product():
    launch = gemm.gemm_plan("double", 50, 4, 8, 3, (12, 3, 1), (0, 8, 1), (32, 8, 1))
    assert launch.tail[:4] == (1, 200, 8, 3)


def test_work_memory_is_bounded_whatever_the_size():
    for m, n, k in [(10**6, 10**6, 10**6), (10**7, 3, 10**7), (3, 10**7, 10**7)]:
        for b, c in [((0, n, 1), (0, n, 1)), ((0, 1, k), (0, 2 * n, 2)), ((0, 1, k), (0, 1, m))]:
            launch = gemm.gemm_plan("double", 1, m, n, k, (0, k, 1), b, c)
            assert launch.scratch_bytes < 2**26
            assert launch.extent >= 1


@pytest.mark.parametrize("kind", DTYPES)
def test_a_product_of_one_packed_block_is_cut_for_several_threads(kind):
    m, n, k = 128, 256, 784
    launch = gemm.gemm_plan(kind, 1, m, n, k, (0, k, 1), (0, 1, k), (0, n, 1))
    assert "packed" in launch.variant
    assert launch.extent in (2, 4, 8)

"""Matrix products: the bits against the definition, for every layout, blocking and split.

The definition (`product`) is plain NumPy: one chain of fused multiply-adds per 384 of k, joined
by a binary counter. NumPy has no fused multiply-add; `fused` builds one from error-free
transformations and a last rounding to odd, and is itself checked against rational arithmetic.
"""

from __future__ import annotations

import ctypes
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from symgrad.codegen import gemm, jit
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
    """The compiled kernels of one register tile."""

    def __init__(self, shapes):
        module = Module()
        names = [n for kind in DTYPES for n in gemm.define(module, kind, shapes.get(kind))]
        self.library = jit.compile_module(module, names)

    def __call__(self, a, b, c, blocking=None, splits=(), offsets=None):
        """C = A @ B for arrays of three axes; `offsets` makes slots start elsewhere."""
        kind = next(k for k, d in DTYPES.items() if d == c.dtype)
        strides = [tuple(s // c.itemsize for s in x.strides) for x in (a, b, c)]
        sizes = (c.shape[0], c.shape[1], c.shape[2], a.shape[2])
        launch = gemm.gemm_plan(kind, *sizes, *strides, blocking=blocking)
        offsets = offsets or (0, 0, 0)
        bases = [x.ctypes.data - o * c.itemsize for x, o in zip((a, b, c), offsets, strict=True)]
        slots = (ctypes.c_void_p * 4)(None, *bases)
        values = launch.arguments(1, 2, 3, *offsets)
        args = (ctypes.c_int64 * len(values))(*values)
        function = SIGNATURE(self.library[launch.symbol])
        cuts = [0, *(int(s * launch.extent) for s in splits), launch.extent]
        for low, high in pairwise(cuts):
            function(slots, args, low, high)
        return launch


@pytest.fixture(scope="module")
def kernels():
    return Kernels({})


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

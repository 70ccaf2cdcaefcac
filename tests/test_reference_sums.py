"""Sums and products against their definition in NumPy and integers, to the bit.

The definition of a sum: elements are padded with the neutral one to whole units of 384; within a
unit, element i goes to lane i mod 16, in order; lanes fold by halves; units are padded to a power
of two and fold in neighbouring pairs. Several axes reduce one by one, last first. A dot product
is the same with fused multiply-adds in the lanes; a matrix product has one chain of fused
multiply-adds per unit, started at zero. A fused multiply-add is done in exact integers here.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from symgrad import dtypes
from symgrad.op import input_node
from symgrad.ops.contract import batched_product, matmul
from symgrad.ops.movement import expand, flip, narrow_step, permute, reshape
from symgrad.ops.reduce import prod_axis, sum_axis
from symgrad.ops.reduce import sum as total
from symgrad.testing import cut_finely, run, same_bits, threaded

LENGTHS = [*range(41), 383, 384, 385, 767, 768, 769, 1000, 5000, 100003]
SHORT = [1, 2, 7, 16, 17, 40, 383, 384, 385, 769, 1000]
DTYPES = [np.float32, np.float64]
NEUTRAL = {"sum": -0.0, "prod": 1.0}
JOIN = {"sum": np.add, "prod": np.multiply}
PRIMITIVE = {"sum": sum_axis, "prod": prod_axis}

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


# -- the definition -----------------------------------------------------------------------


def folded(x, join):
    """The last axis folded by halves."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = join(x[..., :half], x[..., half:])
    return x[..., 0]


def padded(x, length, neutral):
    room = np.full((*x.shape[:-1], length), neutral, x.dtype)
    room[..., : x.shape[-1]] = x
    return room


def tree(units, kind):
    """The last axis, one element per unit, folded in neighbouring pairs."""
    count = 1 << max(units.shape[-1] - 1, 0).bit_length()
    units = padded(units, count, NEUTRAL[kind])
    while units.shape[-1] > 1:
        units = JOIN[kind](units[..., 0::2], units[..., 1::2])
    return units[..., 0]


def reduced(x, axis, kind="sum"):
    """The definition of a sum or product along one axis."""
    x = np.moveaxis(x, axis, -1)
    n = x.shape[-1]
    if n == 0:
        return np.full(x.shape[:-1], 0.0 if kind == "sum" else 1.0, x.dtype)
    units = -(-n // 384)
    x = padded(x, units * 384, NEUTRAL[kind]).reshape(*x.shape[:-1], units, 24, 16)
    lanes = x[..., 0, :]
    for turn in range(1, 24):
        lanes = JOIN[kind](lanes, x[..., turn, :])
    return tree(folded(lanes, JOIN[kind]), kind)


SCALE = 400
"""Numbers are held as integer multiples of 2**-SCALE: all that occur here are such multiples."""


def rounded(exact, bits):
    """An integer multiple of 2**-SCALE as the nearest number of `bits` bits, ties to even."""
    size = abs(exact)
    drop = max(size.bit_length() - bits, 0)
    kept, rest = size >> drop, size & ((1 << drop) - 1)
    half = 1 << drop >> 1
    if drop and (rest > half or (rest == half and kept & 1)):
        kept += 1
    return math.copysign(math.ldexp(kept, drop - SCALE), exact)


def integer(x):
    """A number as a multiple of 2**-SCALE."""
    return int(math.ldexp(x, SCALE))


def fused(x, y, z, bits):
    """x*y + z rounded once."""
    return rounded((integer(x) * integer(y) >> SCALE) + integer(z), bits)


def chain(x, y, start, dtype):
    """The fused multiply-adds of two sequences, in order."""
    bits = 24 if dtype is np.float32 else 53
    carry = start
    for p, q in zip(x.tolist(), y.tolist(), strict=True):
        carry = fused(p, q, carry, bits)
    return carry


def dot(x, y):
    """The definition of a dot product of two vectors."""
    dtype = x.dtype.type
    if not len(x):
        return dtype(0)
    units = []
    for start in range(0, len(x), 384):
        p, q = x[start : start + 384], y[start : start + 384]
        lanes = np.full(16, -0.0, dtype)
        for lane in range(min(16, len(p))):
            lanes[lane] = chain(p[lane::16], q[lane::16], -0.0, dtype)
        units.append(folded(lanes, np.add))
    return tree(np.array(units, dtype), "sum")


def product(a, b):
    """The definition of a matrix product with more than one row and column."""
    dtype = a.dtype.type
    result = np.zeros((a.shape[0], b.shape[1]), dtype)
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        starts = range(0, a.shape[1], 384)
        units = [chain(a[i, s : s + 384], b[s : s + 384, j], 0.0, dtype) for s in starts]
        if units:
            result[i, j] = tree(np.array(units, dtype), "sum")
    return result


def test_fused_multiply_add_rounds_once():
    assert fused(1 + 2.0**-30, 1 - 2.0**-30, -1.0, 53) == -(2.0**-60)
    assert fused(3.0, 1 / 3, -1.0, 53) == -(2.0**-54)
    # Rounding 1 + 2**-12 + 2**-24 + 2**-60 to double first would lose what breaks the tie.
    assert fused(1 + 2.0**-12 + 2.0**-48, 2.0**-12, 1.0, 24) == 1 + 2.0**-12 + 2.0**-23
    assert fused(2.0**-24, 1.0, 1.0, 24) == 1.0


# -- inputs -------------------------------------------------------------------------------


def drawn(seed, shape, dtype):
    """Numbers of many sizes, so that the order of a sum shows."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=shape) * 2.0 ** rng.integers(-8, 8, shape)).astype(dtype)


def node(array):
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    return input_node(array.shape, dtypes.from_numpy(array.dtype), array)


def in_all_ways(make):
    """The value of an expression run plainly, in many chunks, and in two threads."""
    (plain,) = run([make()])
    with cut_finely():
        (chunks,) = run([make()])
        with threaded(2):
            (threads,) = run([make()])
    assert same_bits(plain, chunks)
    assert same_bits(plain, threads)
    return plain


LAYOUTS = {
    "alone": lambda n: ((n,), 0),
    "last": lambda n: ((3, n), 1),
    "first": lambda n: ((n, 3), 0),
    "middle": lambda n: ((2, n, 3), 1),
    "wide first": lambda n: ((n, 37), 0),
}


# -- sums and products along an axis --------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", PRIMITIVE)
def test_reduction_follows_its_definition_at_every_length(kind, layout, dtype):
    for n in LENGTHS:
        if n > 5000 and kind == "prod":
            continue
        shape, axis = LAYOUTS[layout](n)
        x = drawn(n, shape, dtype)
        if kind == "prod":
            x = np.asarray(np.sign(x) * (1 + np.abs(x) % 0.01)).astype(dtype)
        value = in_all_ways(lambda x=x, axis=axis: PRIMITIVE[kind](node(x), dim=axis))
        assert same_bits(value, reduced(x, axis, kind)), (n, kind)


@by_dtype
def test_sum_of_views_is_that_of_their_elements(dtype):
    for n in SHORT:
        x = drawn(n, (2 * n + 1, 5), dtype)
        leaf = node(x)
        every = narrow_step(leaf, starts=(1, 0), steps=(2, 1), counts=(n, 5))
        views = {
            "transposed": (permute(leaf, (1, 0)), x.T),
            "strided": (every, x[1 : 2 * n : 2]),
            "reversed": (flip(every, (0, 1)), x[1 : 2 * n : 2][::-1, ::-1]),
            "repeated": (
                expand(reshape(narrow_step(leaf, starts=(0, 0), steps=(1, 1), counts=(n, 1)),
                               (n, 1)), (n, 4)),
                np.repeat(x[:n, :1], 4, 1),
            ),
            "reshaped": (
                reshape(narrow_step(leaf, starts=(0, 0), steps=(1, 1), counts=(2 * n, 5)),
                        (n, 10)),
                x[: 2 * n].reshape(n, 10),
            ),
        }  # fmt: skip
        for name, (view, array) in views.items():
            for axis in (0, 1):
                value = in_all_ways(lambda view=view, axis=axis: sum_axis(view, dim=axis))
                assert same_bits(value, reduced(array, axis)), (n, name, axis)


@by_dtype
def test_sum_of_a_fused_producer_is_that_of_its_stored_value(dtype):
    for n in SHORT:
        x, y = drawn(n, (4, n), dtype), drawn(n + 1, (n,), dtype)
        for axis in (0, 1):
            value = in_all_ways(
                lambda x=x, y=y, axis=axis: sum_axis(node(x) * node(y) + node(x), dim=axis)
            )
            assert same_bits(value, reduced(x * y + x, axis)), (n, axis)


@by_dtype
def test_sum_over_all_axes_goes_last_first(dtype):
    for shape in [(3, 4), (2, 3, 500), (500, 2, 3), (17, 400), (1, 1), (4, 0)]:
        x = drawn(7, shape, dtype)
        expected = x
        for axis in reversed(range(len(shape))):
            expected = reduced(expected, axis)
        assert same_bits(in_all_ways(lambda x=x: total(node(x))), expected), shape


@by_dtype
def test_sum_of_negative_zeros_keeps_the_sign(dtype):
    for n in (1, 5, 16, 384, 1000):
        x = np.full((n, 2), -0.0, dtype)
        assert np.signbit(in_all_ways(lambda x=x: sum_axis(node(x), dim=0))).all()
        assert not np.signbit(in_all_ways(lambda x=x: sum_axis(node(x[:0]), dim=0))).any()


# -- products of matrices and vectors ---------------------------------------------------------


@by_dtype
def test_dot_product_follows_its_definition(dtype):
    for n in [*range(41), 383, 384, 385, 767, 768, 769, 1000, 5000]:
        x, y = drawn(n, n, dtype), drawn(n + 1, n, dtype)
        value = in_all_ways(lambda x=x, y=y: matmul(node(x), node(y)))
        assert same_bits(value, np.asarray(dot(x, y))), n


@pytest.mark.nightly
@by_dtype
def test_long_dot_product_follows_its_definition(dtype):
    x, y = drawn(1, 100003, dtype), drawn(2, 100003, dtype)
    assert same_bits(in_all_ways(lambda: matmul(node(x), node(y))), np.asarray(dot(x, y)))


@by_dtype
def test_matrix_vector_products_follow_their_definition(dtype):
    for n in SHORT:
        a, x = drawn(n, (5, n), dtype), drawn(n + 1, n, dtype)
        expected = np.array([dot(row, x) for row in a], dtype)
        ways = {
            "rows": lambda a=a, x=x: matmul(node(a), node(x)),
            "columns": lambda a=a, x=x: matmul(node(x), node(np.ascontiguousarray(a.T))),
            "transposed": lambda a=a, x=x: matmul(
                permute(node(np.ascontiguousarray(a.T)), (1, 0)), node(x)
            ),
            "transposed columns": lambda a=a, x=x: matmul(node(x), permute(node(a), (1, 0))),
            "reversed": lambda a=a, x=x: matmul(
                flip(node(a[:, ::-1]), (1,)), flip(node(x[::-1]), (0,))
            ),
            "computed": lambda a=a, x=x: matmul(node(a) * 1.0, node(x)),
        }
        for name, make in ways.items():
            assert same_bits(in_all_ways(make), expected), (n, name)


@by_dtype
def test_matrix_products_follow_their_definition(dtype):
    for k in [0, 1, 2, 15, 16, 17, 40, 383, 384, 385, 769, 1000]:
        a, b = drawn(k, (2, k), dtype), drawn(k + 1, (k, 3), dtype)
        expected = product(a, b)
        ways = {
            "plain": lambda a=a, b=b: matmul(node(a), node(b)),
            "left transposed": lambda a=a, b=b: matmul(permute(node(a.T), (1, 0)), node(b)),
            "right transposed": lambda a=a, b=b: matmul(node(a), permute(node(b.T), (1, 0))),
            "reversed": lambda a=a, b=b: matmul(
                flip(node(a[:, ::-1]), (1,)), flip(node(b[::-1]), (0,))
            ),
            "computed": lambda a=a, b=b: matmul(node(a) * 1.0, node(b) * 1.0),
        }
        for name, make in ways.items():
            assert same_bits(in_all_ways(make), expected), (k, name)


@by_dtype
def test_batched_products_follow_their_definition_with_repeated_operands(dtype):
    a, b = drawn(3, (2, 3, 50), dtype), drawn(4, (50, 4), dtype)
    expected = np.stack([product(m, b) for m in a])
    plain = in_all_ways(lambda: batched_product(node(a), node(np.stack([b, b]))))
    repeated = in_all_ways(
        lambda: batched_product(node(a), expand(reshape(node(b), (1, 50, 4)), (2, 50, 4)))
    )
    folded_rows = in_all_ways(lambda: matmul(node(a), node(b)))
    for value in (plain, repeated, folded_rows):
        assert same_bits(value, expected)


@by_dtype
def test_large_matrix_product_agrees_with_its_definition_at_some_elements(dtype):
    a, b = drawn(5, (150, 900), dtype), drawn(6, (900, 130), dtype)
    value = in_all_ways(lambda: matmul(node(a), node(b)))
    rows, columns = [0, 1, 77, 149], [0, 63, 129]
    expected = product(a[rows], b[:, columns])
    assert same_bits(value[np.ix_(rows, columns)], expected)

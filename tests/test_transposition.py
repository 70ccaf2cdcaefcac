"""Results whose neighbours in memory are computed apart: transposed in registers, with NumPy's values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import pool
from symgrad.codegen.apart import MAX_BLOCK
from symgrad.testing.bits import same_bits

DTYPES = [np.float64, np.float32, np.int64, np.int32, np.uint8]
SHAPES = [
    (1, 5), (2, 3), (3, 40), (40, 3), (4, 4), (5, 7), (8, 16), (9, 17), (16, 33), (26, 54),
    (31, 2), (6, 500), (130, 67),
]  # fmt: skip
BLOCK = {np.float64: "<4 x double>", np.float32: "<4 x float>", np.int32: "<4 x i32>"}


def array(shape: tuple[int, ...], dtype: Any) -> Any:
    return (np.random.default_rng(sum(shape)).random(shape) * 100).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matrices(shape: tuple[int, int], dtype: Any) -> None:
    x, y = array(shape, dtype), array(shape[::-1], dtype)
    np.testing.assert_array_equal(sg.compile(lambda x: x.T + x.T)(x), x.T + x.T)
    np.testing.assert_array_equal(sg.compile(lambda x, y: x.T + y)(x, y), x.T + y)
    np.testing.assert_array_equal(sg.compile(lambda x, y: x + y.T)(x, y), x + y.T)
    np.testing.assert_array_equal(sg.compile(lambda x: (x > 50).T)(x), x.T > 50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("shape", [(1,), (4,), (7,), (8,), (45,), (3, 4), (26, 22), (5, 160)])
def test_values_side_by_side(shape: tuple[int, ...], count: int, dtype: Any) -> None:
    x = array(shape, dtype)

    def values(x: Any, xp: Any) -> list[Any]:
        return [xp.where(x > 5 * k, x, x + x) for k in range(count)]

    f = sg.compile(lambda x: sg.stack(values(x, sg), -1))
    np.testing.assert_array_equal(f(x), np.stack(values(x, np), -1))
    f = sg.compile(lambda x: sg.stack([*values(x, sg), x], -1).flip(-1))
    np.testing.assert_array_equal(f(x), np.stack([*values(x, np), x], -1)[..., ::-1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_axes_in_any_order(order: tuple[int, ...]) -> None:
    for shape in [(3, 5, 7, 2), (4, 6, 1, 26), (9, 8, 17, 3)]:
        x, y = array(shape, np.float64), array(tuple(shape[a] for a in order), np.float64)
        f = sg.compile(lambda x, y: (x.permute(*order) * 2.0 - y, (x + 1.0).permute(*order)))
        found = f(x, y)
        np.testing.assert_array_equal(found[0], x.transpose(order) * 2.0 - y)
        np.testing.assert_array_equal(found[1], (x + 1.0).transpose(order))


def test_results_of_one_nest_in_different_orders() -> None:
    x = array((21, 38), np.float64)
    found = sg.compile(lambda x: (x * 2.0, (x * 2.0).T, (x * x).T.reshape(-1), x + 1.0))(x)
    for a, b in zip(found, (x * 2.0, (x * 2.0).T, (x * x).T.reshape(-1), x + 1.0), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_long_body_and_functions_are_not_copied() -> None:
    x = array((37, 50), np.float64)

    def long(x: Any) -> Any:
        y = x
        for k in range(MAX_BLOCK + 1):
            y = y * x + float(k)
        return y

    for once, eager in [(long, long(sg.tensor(x)).numpy()), (sg.sin, sg.sin(sg.tensor(x)).numpy())]:
        turned, plain = sg.compile(lambda x, once=once: once(x).T), sg.compile(once)
        np.testing.assert_array_equal(turned(x), eager.T)
        plain(x)
        assert len(turned.llvm()) < 2 * len(plain.llvm())


@pytest.mark.parametrize("dtype", list(BLOCK))
def test_rows_of_blocks_are_stored_at_once(dtype: Any) -> None:
    x, y = array((300, 200), dtype), array((3000,), dtype)
    f = sg.compile(lambda x: x.T + x.T)
    f(x)
    assert f"store {BLOCK[dtype]}" in f.llvm()
    f = sg.compile(lambda y: sg.stack([y, y + y, y * y, y - y], -1))
    f(y)
    assert f"store {BLOCK[dtype]}" in f.llvm()


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_that_threads_take(threads: int) -> None:
    x = array((700, 901), np.float64)
    before = pool.get_num_threads()
    pool.set_num_threads(threads)
    try:
        found = sg.compile(lambda x: x.T * 0.1)(x)
    finally:
        pool.set_num_threads(before)
    np.testing.assert_array_equal(found, x.T * 0.1)


def test_blocks_of_a_product_that_was_moved() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape) for shape in [(26, 3, 40), (40, 545), (26, 3, 3)])

    def moved(a: Any, b: Any, c: Any) -> Any:
        return (c @ (a.reshape(78, 40) @ b).reshape(26, 3, 545)).permute(2, 1, 0) + 1.0

    found = sg.compile(moved)(a, b, c)
    want = np.einsum("hik,hkj,jv->vih", c, a, b) + 1.0
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
    assert same_bits(found, moved(*map(sg.tensor, (a, b, c))).numpy())

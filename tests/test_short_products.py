"""Matrix products of a few terms, computed where they are used, and rows shorter than a vector.

Values against NumPy, bits against the kernel of products, which takes products of few elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import symgrad as sg
from symgrad.testing.bits import same_bits

FLOATS = [np.float64, np.float32]
TOLERANCE = {np.float64: 1e-14, np.float32: 1e-6}
SHAPES = [(40, 2), (40, 3), (13, 8), (5, 17), (2, 50), (64, 16)]


def steps(f: Any) -> str:
    """The steps of the latest program."""
    return repr(f._latest().recipe.program.schedule.steps)


def operands(m: int, k: int, n: int, dtype: Any, batch: tuple[int, ...] = ()) -> list[Any]:
    rng = np.random.default_rng(m + k + n)
    a, b = rng.normal(size=(*batch, m, k)), rng.normal(size=(*batch, k, n))
    a[..., 0, :], b[..., 0] = -0.0, -0.0
    return [a.astype(dtype), b.astype(dtype)]


def by_columns(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The product, a few elements at a time."""
    product = sg.compile(lambda a, b: a @ b)
    made = np.empty((len(a), b.shape[1]), a.dtype)
    for i in range(0, len(a), 8):
        for j in range(0, b.shape[1], 4):
            # A single column would be a sum in lanes.
            first = min(j, max(b.shape[1] - 4, 0))
            rows, columns = a[i : i + 8], np.ascontiguousarray(b[:, first : first + 4])
            made[i : i + 8, first : first + 4] = product(rows, columns)
    return made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_short_product_has_the_bits_of_a_long_one(m: int, k: int, n: int, dtype: Any) -> None:
    a, b = operands(m, k, n, dtype)
    f = sg.compile(lambda a, b: a @ b)
    found = f(a, b)
    assert "product" not in steps(f)
    np.testing.assert_allclose(found, a @ b, rtol=0, atol=8 * TOLERANCE[dtype])
    assert same_bits(found, by_columns(a, b))
    assert same_bits(found, (sg.tensor(a) @ sg.tensor(b)).numpy())


PROGRAMS = {
    "with its user": lambda xp, a, b: xp.tanh(a @ b) - 1.5,
    "summed": lambda xp, a, b: (a @ b).sum(0),
    "twice": lambda xp, a, b: (a @ b) * (a @ b).sum(),
    "transposed": lambda xp, a, b: (b.T @ a.T) + 0.5,
    "of slices": lambda xp, a, b: a[1:, ::2] @ b[::2, :-1] + a[1:, 1::2] @ b[1::2, :-1],
    "of what is computed": lambda xp, a, b: xp.exp(a) @ (b * b),
    "of a product": lambda xp, a, b: (a @ b[:, :4]) @ b[:, -40:],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_short_products(name: str, dtype: Any) -> None:
    program = PROGRAMS[name]
    a, b = operands(30, 4, 44, dtype)
    f = sg.compile(lambda a, b: program(sg, a, b))
    found = f(a, b)
    assert "product" not in steps(f)
    expected = program(np, a.astype(np.float64), b.astype(np.float64))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=50 * TOLERANCE[dtype] * scale)
    assert same_bits(found, program(sg, sg.tensor(a), sg.tensor(b)).numpy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_batches_of_small_matrices(dtype: Any) -> None:
    for k in (2, 3, 4):
        a, b = operands(k, k, k, dtype, batch=(25,))
        f = sg.compile(lambda a, b: a @ b)
        np.testing.assert_allclose(f(a, b), a @ b, rtol=0, atol=8 * TOLERANCE[dtype])
        one = np.stack([by_columns(x, y) for x, y in zip(a, b, strict=True)])
        assert same_bits(f(a, b), one)


def test_gradients_through_short_products() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(50, 3)), rng.normal(size=(3, 20))

    def gradient(x: Any, w: Any) -> Any:
        w.requires_grad_()
        return sg.autograd.grad(sg.sin(x @ w).sum(), w)[0]

    expected = x.T @ np.cos(x @ w)
    np.testing.assert_allclose(sg.compile(gradient)(x, w), expected, rtol=1e-12, atol=1e-13)


def test_infinities_and_nans_stay_where_they_are() -> None:
    a, b = operands(20, 3, 20, np.float64)
    a[3, 1], b[2, 5] = math.inf, math.nan
    with np.errstate(invalid="ignore"):
        expected = a @ b
    found = sg.compile(lambda a, b: a @ b)(a, b)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


# -- rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, np.int64, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("columns", range(1, 10))
def test_rows_of_a_few_elements(columns: int, dtype: Any) -> None:
    x = np.arange(7 * columns).reshape(columns, 7).astype(dtype)
    y = (np.arange(columns) % 3).astype(dtype)
    swapped = sg.compile(lambda x, y: [sg.where(y < x.T, x.T, y), sg.flip(x.T, (1,))])
    chosen, flipped = swapped(x, y)
    np.testing.assert_array_equal(chosen, np.where(y < x.T, x.T, y))
    np.testing.assert_array_equal(flipped, x.T[:, ::-1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [*range(1, 10), 15, 16, 17, 31, 33])
def test_nothing_is_written_beyond_rows(columns: int, dtype: Any) -> None:
    f = sg.compile(lambda x, y: x.T * y + 1)
    for rows in (1, 5):
        room = np.full(rows * columns + 20, 7, dtype)
        x = np.arange(rows * columns).reshape(columns, rows).astype(dtype)
        y = np.arange(columns).astype(dtype)
        f.into(room[10:-10].reshape(rows, columns), x, y)
        np.testing.assert_array_equal(room[10:-10].reshape(rows, columns), x.T * y + 1)
        assert (room[:10] == 7).all()
        assert (room[-10:] == 7).all()


def test_a_product_whose_batch_of_one_is_moved_is_not_stored() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape) for shape in [(1, 78, 3), (1, 3, 54), (26, 1, 3, 54)])

    def moved(a: Any, b: Any, c: Any) -> Any:
        return (a @ b).reshape(1, 26, 3, 54).permute(1, 0, 2, 3) + c

    f = sg.compile(moved)
    want = (a @ b).reshape(1, 26, 3, 54).transpose(1, 0, 2, 3) + c
    np.testing.assert_allclose(f(a, b, c), want, rtol=0, atol=1e-14)
    assert len(f._latest().recipe.program.schedule.steps) == 1

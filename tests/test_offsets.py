"""Where elements lie: places that arrays share are computed once, in kernels that other sizes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgrad as sg


def rows(width: int) -> Any:
    return np.random.default_rng(width).normal(size=(9, width))


@pytest.mark.parametrize("widths", [(20, 20), (20, 31), (31, 20), (31, 31)])
def test_rows_of_equal_and_of_different_length(widths: tuple[int, int]) -> None:
    x, y = map(rows, widths)
    f = sg.compile(lambda x, y: x[:, :20] * 2.0 + y[:, :20] * y[:, :20])
    np.testing.assert_array_equal(f(x, y), x[:, :20] * 2.0 + y[:, :20] * y[:, :20])


@pytest.mark.parametrize("starts", [(3, 3), (3, 5), (5, 3), (0, 3), (3, 0)])
def test_rows_that_begin_at_equal_and_at_different_places(starts: tuple[int, int]) -> None:
    x, y = rows(40), rows(40) + 1.0
    a, b = starts
    f = sg.compile(lambda x, y: (x[:, a : a + 30] - y[:, b : b + 30]).sum(1))
    want = [np.float64(x[k, a : a + 30] - y[k, b : b + 30]) for k in range(9)]
    np.testing.assert_allclose(f(x, y), np.sum(want, 1), rtol=0, atol=1e-13)
    g = sg.compile(lambda x, y: x[:, a : a + 30] - y[:, b : b + 30])
    np.testing.assert_array_equal(g(x, y), want)


def test_arrays_of_one_shape_have_their_places_computed_once() -> None:
    def multiplications(count: int) -> int:
        arrays = [np.random.default_rng(k).normal(size=(6, 8, 1)) for k in range(count)]
        last = np.arange(5.0)
        f = sg.compile(lambda last, *arrays: sum(a * last + a for a in arrays))
        want = sum(a * last + a for a in arrays)
        np.testing.assert_allclose(f(last, *arrays), want, rtol=1e-14, atol=1e-14)
        return f.llvm().count(" mul i64 ")

    assert multiplications(12) == multiplications(8)

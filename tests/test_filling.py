"""Elements placed in zeros: NumPy's values at any size and alignment, and nothing written beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.testing.bits import same_bits


def within(shape: tuple[int, ...], dtype: str, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """An array that starts `shift` elements behind a line of memory, and all the memory around."""
    size = int(np.prod(shape))
    room = np.full(size + 64, 7, dtype)
    ahead = -room.ctypes.data % 64 // room.itemsize
    part = room[ahead + shift : ahead + shift + size].reshape(shape)
    return part, room


@pytest.mark.parametrize("n", [8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 100, 130, 180])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jacobians_of_a_few_diagonals_anywhere_in_memory(n: int, dtype: str) -> None:
    def products(x: Any) -> Any:
        return x[2:] * x[1:-1] + 3.0 * x[:-2]

    x = np.random.default_rng(n).normal(size=n).astype(dtype)
    want = np.zeros((n - 2, n), dtype)
    k = np.arange(n - 2)
    want[k, k], want[k, k + 1], want[k, k + 2] = 3.0, x[2:], x[1:-1]
    compiled = sg.compile(sg.func.jacrev(products))
    for shift in (0, 1, 2, 5, 7):
        out, room = within((n - 2, n), dtype, shift)
        compiled.into(out, x)
        np.testing.assert_array_equal(out, want)
        out[...] = 7.0
        assert np.all(room == 7.0)
    assert same_bits(compiled(x), sg.func.jacrev(products)(sg.tensor(x)).numpy())


STRIDED = {
    "every third": ((40,), lambda x: x[1::3]),
    "every third backwards": ((41,), lambda x: sg.flip(x, (0,))[::3]),
    "rows and columns": ((12, 30), lambda x: x[::2, 1::4]),
    "columns": ((9, 33), lambda x: x[:, ::2]),
    "rows": ((33, 9), lambda x: x[2::3]),
    "blocks": ((5, 6, 7, 8), lambda x: x[1::2, :, ::3, 2:7:2]),
    "too large to fill on the way": ((300, 200), lambda x: x[::2, ::2]),
    "one element": ((100,), lambda x: x[7::100]),
    "none": ((100,), lambda x: x[50:50:2]),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_strided_reads(name: str, dtype: str) -> None:
    shape, read = STRIDED[name]
    x = np.random.default_rng(3).normal(size=shape).astype(dtype)

    def gradient(x: Any) -> Any:
        return sg.func.grad(lambda x: (read(x) ** 3).sum())(x)

    chosen = np.zeros(shape, bool)
    places = np.arange(x.size).reshape(shape)
    chosen.reshape(-1)[np.asarray(read(sg.tensor(places)).numpy()).reshape(-1)] = True
    want = np.where(chosen, 3.0 * x.astype(np.float64) ** 2, 0.0)
    compiled = sg.compile(gradient)
    assert same_bits(compiled(x), gradient(sg.tensor(x)).numpy())
    for shift in (0, 1, 3):
        out, room = within(shape, dtype, shift)
        compiled.into(out, x)
        np.testing.assert_allclose(out, want, rtol=1e-6 if dtype == "float32" else 1e-15)
        assert not np.signbit(out[~chosen]).any()
        out[...] = 7.0
        assert np.all(room == 7.0)


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "complex64", "complex128"])
def test_other_dtypes(dtype: str) -> None:
    diagonals = np.arange(1, 61).reshape(3, 20).astype(dtype)
    want = np.zeros((3, 20, 20), dtype)
    want[:, np.arange(20), np.arange(20)] = diagonals
    found = sg.compile(sg.diag_embed)(diagonals)
    np.testing.assert_array_equal(found, want)


def test_filled_and_stored_in_one_pass() -> None:
    def energy(x: Any) -> Any:
        return ((x[1:] - x[:-1] ** 2) ** 2).sum()

    hessian = sg.compile(sg.func.hessian(energy))
    x = np.random.default_rng(0).normal(size=60)
    found = hessian(x)
    want = np.zeros((60, 60))
    k = np.arange(59)
    want[k, k] = 12.0 * x[:-1] ** 2 - 4.0 * x[1:]
    want[k + 1, k + 1] += 2.0
    want[k, k + 1] = want[k + 1, k] = -4.0 * x[:-1]
    np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-13)
    assert "filling [59]" in hessian.schedule()
    assert hessian.report(x).written_bytes < 1.1 * found.nbytes

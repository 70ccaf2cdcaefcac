"""Compiled functions by address: called by C conventions, from SciPy and from threads."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.integrate import nquad, quad

import symgrad as sg

RNG = np.random.default_rng(17)


def called(pointer, arguments, results):
    """The status of a call on arrays."""

    def table(arrays):
        return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])

    return pointer(table(arguments), table(results))


@pytest.mark.parametrize("rows", [1, 7, 900])
def test_arrays_numbers_and_several_results(rows):
    def function(x, w, shift):
        y = sg.tanh(x @ w) + shift
        return {"y": y, "same": y, "total": (y * y).sum(), "x": x}

    x, w = RNG.normal(size=(rows, 5)), RNG.normal(size=(5, 4))
    compiled = sg.compile(function)
    pointer = compiled.pointer(x, w, 0.5)
    made = [np.empty((rows, 4)), np.empty((rows, 4)), np.empty(()), np.empty((rows, 5))]
    assert called(pointer, [x, w, np.array(0.5)], made) == 0
    plain = np.tanh(x @ w) + 0.5
    np.testing.assert_allclose(made[0], plain, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(made[1], made[0])
    np.testing.assert_allclose(made[2], (plain**2).sum(), rtol=1e-12)
    np.testing.assert_array_equal(made[3], x)
    wanted = compiled(x, w, 0.5)
    assert made[0].tobytes() == wanted["y"].tobytes() and made[2] == wanted["total"]


def test_threads_call_one_pointer_at_once():
    pointer = sg.compile(lambda a, b: (a @ b, sg.linalg.solve(a, b))).pointer(
        np.eye(30), np.eye(30)
    )

    def one(seed):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(2, 30, 30))
        made = np.empty((2, 30, 30))
        assert called(pointer, [a, b], list(made)) == 0
        np.testing.assert_allclose(made[0], a @ b, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(a @ made[1], b, rtol=1e-7, atol=1e-8)

    with ThreadPoolExecutor(4) as threads:
        for job in [threads.submit(one, seed) for seed in range(40)]:
            job.result()


def test_what_a_routine_refuses_is_told_by_the_status():
    pointer = sg.compile(sg.linalg.cholesky).pointer(np.eye(3))
    out = np.empty((3, 3))
    assert called(pointer, [-np.eye(3)], [out]) != 0
    assert called(pointer, [4 * np.eye(3)], [out]) == 0
    np.testing.assert_array_equal(out, 2 * np.eye(3))


def test_integrals_by_scipy():
    bell = sg.compile(lambda x, s: sg.exp(-((x / s) ** 2))).low_level(0.0, 1.0)
    found, _ = quad(bell, -np.inf, np.inf, args=(2.0,))
    assert found == pytest.approx(2 * np.sqrt(np.pi), rel=1e-9)
    slope = sg.compile(lambda x, s: sg.func.grad(lambda s: sg.exp(-((x / s) ** 2)))(s)).low_level(
        0.0, 1.0
    )
    found, _ = quad(slope, -np.inf, np.inf, args=(2.0,))
    assert found == pytest.approx(np.sqrt(np.pi), rel=1e-8)
    area, _ = nquad(sg.compile(lambda x, y: x * y * y).low_level(0.0, 0.0), [[0, 1], [0, 3]])
    assert area == pytest.approx(4.5)


def test_what_has_no_pointer():
    outside = sg.tensor(2.0)
    with pytest.raises(TypeError, match="pointer: <lambda> reads or writes tensors from outside"):
        sg.compile(lambda x: x * outside).pointer(np.ones(3))
    with pytest.raises(TypeError, match="must take floats and give one"):
        sg.compile(lambda x: x * x).low_level(np.ones(3))
    with pytest.raises(TypeError, match="must take floats and give one"):
        sg.compile(lambda x: (x, x)).low_level(1.0)

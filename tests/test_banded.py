"""Jacobians of a few diagonals: values against formulas and differences, zeros that hold, what is run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.testing.bits import same_bits


def rosenbrock(x: Any) -> Any:
    e, d = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
    return (100.0 * e * e + d * d).sum()


def rosenbrock_hessian(x: np.ndarray) -> np.ndarray:
    h = np.zeros((len(x), len(x)))
    i = np.arange(len(x) - 1)
    h[i, i] = 1200.0 * x[:-1] ** 2 - 400.0 * x[1:] + 2.0
    h[i + 1, i + 1] += 200.0
    h[i, i + 1] = h[i + 1, i] = -400.0 * x[:-1]
    return h


@pytest.mark.parametrize("n", [2, 15, 16, 17, 31, 32, 33, 100, 130])
def test_the_hessian_of_a_chain(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    hessian = sg.func.hessian(rosenbrock)
    found = hessian(sg.tensor(x)).numpy()
    np.testing.assert_allclose(found, rosenbrock_hessian(x), rtol=1e-13, atol=1e-12)
    compiled = sg.compile(hessian)
    assert same_bits(compiled(x), found)
    out = np.full((n, n), 7.0)
    assert same_bits(compiled.into(out, x), found)


def test_only_diagonals_are_computed() -> None:
    f = sg.compile(sg.func.hessian(rosenbrock))
    f(np.ones(200))
    report = f.report(np.ones(200))
    assert report.flops < 200 * 100
    assert f.memory().temporaries < 10_000


VECTORS = {
    "elementwise": lambda x: sg.sin(x) * x,
    "shifted": lambda x: x[2:] * x[:-2] + sg.exp(x[1:-1]),
    "padded": lambda x: sg.nn.functional.pad(x[3:] ** 2, (1, 4)) * sg.cos(x.new_ones(())) + 1.0,
    "selected": lambda x: sg.where(x[1:] > 0, x[:-1] * x[1:], sg.abs(x[1:])),
    "beyond the edge": lambda x: sg.nn.functional.pad(x, (30, 0))[: x.numel()],
    "a far shift": lambda x: x[20:] - x[:-20],
    "independent": lambda x: sg.ones(7, dtype=sg.float64),
    "reversed": lambda x: sg.flip(x, (0,)) * x,
    "dense": lambda x: x * x.sum(),
    "by a number": lambda x: x * x[3],
    "many diagonals": lambda x: sum(x[k : k + 11] * (k + 1.0) * x[k] for k in range(12)),
    "rows": lambda x: (x.reshape(6, 4) ** 2).reshape(-1),
}


@pytest.mark.parametrize("name", VECTORS)
def test_jacobians_against_differences(name: str) -> None:
    f = VECTORS[name]
    x = np.random.default_rng(3).normal(size=24)
    found = sg.func.jacfwd(f)(sg.tensor(x)).numpy()
    h = 1e-6
    columns = [
        (f(sg.tensor(x + h * e)).numpy() - f(sg.tensor(x - h * e)).numpy()) / (2 * h)
        for e in np.eye(24)
    ]
    np.testing.assert_allclose(found, np.stack(columns, 1), atol=1e-8)
    np.testing.assert_allclose(
        sg.func.jacrev(f)(sg.tensor(x)).numpy(), found, rtol=1e-12, atol=1e-14
    )
    assert same_bits(sg.compile(sg.func.jacfwd(f))(x), found)


def test_zeros_hold_beside_what_is_undefined() -> None:
    x = np.linspace(0.0, 1.0, 20)
    x[7] = math.inf
    found = sg.func.jacfwd(lambda v: sg.sqrt(v) * v)(sg.tensor(x)).numpy()
    off = found[~np.eye(20, dtype=bool)]
    np.testing.assert_array_equal(off, 0.0)
    assert math.isnan(found[0, 0]) and math.isnan(found[7, 7])
    np.testing.assert_allclose(np.diag(found)[8:], 1.5 * np.sqrt(x[8:]), rtol=1e-14)


def test_third_derivatives_and_batches() -> None:
    x = np.linspace(-1.0, 1.0, 18)
    third = sg.func.jacfwd(sg.func.hessian(lambda v: (v**4).sum()))(sg.tensor(x)).numpy()
    want = np.zeros((18, 18, 18))
    i = np.arange(18)
    want[i, i, i] = 24 * x
    np.testing.assert_allclose(third, want, rtol=1e-13)
    rows = np.stack([x, x + 1, x - 2])
    found = sg.func.vmap(sg.func.hessian(rosenbrock))(sg.tensor(rows)).numpy()
    np.testing.assert_allclose(found, [rosenbrock_hessian(r) for r in rows], rtol=1e-12, atol=1e-11)


def test_gradients_flow_through_the_diagonals() -> None:
    x = np.linspace(0.5, 1.5, 20)
    weights = np.random.default_rng(1).normal(size=(20, 20))

    def weighted(v: Any) -> Any:
        return (sg.func.hessian(rosenbrock)(v) * sg.tensor(weights)).sum()

    gradient = sg.func.grad(weighted)(sg.tensor(x)).numpy()
    want = np.zeros(20)
    want[:-1] += 2400.0 * x[:-1] * np.diag(weights)[:-1]
    want[1:] -= 400.0 * np.diag(weights)[:-1]
    want[:-1] -= 400.0 * (np.diag(weights, 1) + np.diag(weights, -1))
    np.testing.assert_allclose(gradient, want, rtol=1e-11)


def test_single_precision() -> None:
    x = np.linspace(-1.0, 1.0, 40, dtype=np.float32)
    found = sg.func.hessian(rosenbrock)(sg.tensor(x)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, rosenbrock_hessian(x.astype(float)), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 300_000])
def test_fills_of_compiled_programs(dtype: str, count: int) -> None:
    kind = getattr(sg, dtype)

    def fills(x: Any) -> Any:
        zeros = sg.zeros(count, dtype=kind)
        return zeros, sg.full((count,), -0.0, dtype=kind), sg.ones(count, dtype=kind), x * 2.0

    # New memory holds what was there before: fill it with something else first.
    dirty = [np.full(count, 1, zeros.dtype) for zeros in [np.zeros(count, dtype)] * 3]
    out = (*dirty, np.empty(3))
    f = sg.compile(fills)
    f(np.ones(3))
    zeros, minus, ones, _ = f.into(out, np.ones(3))
    np.testing.assert_array_equal(zeros, np.zeros(count, dtype))
    np.testing.assert_array_equal(minus, np.zeros(count, dtype))
    np.testing.assert_array_equal(ones, np.ones(count, dtype))
    if dtype.startswith("float"):
        assert not np.signbit(zeros).any() and np.signbit(minus).all()

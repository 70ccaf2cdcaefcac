"""Straight-line code: scalars and short vectors of a compiled program, written out.

Values against NumPy or complex-step differences, bits against the eager run, which has loops.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.testing.bits import same_bits


def steps(f: Any) -> list[Any]:
    """The steps of the latest program."""
    return list(f._latest().recipe.program.schedule.steps)


def dynamics(xp: Any, q: Any, n: int) -> list[Any]:
    """A chain of couplings with a triangular elimination: scalar code, as users write it."""
    c = [[xp.cos(q[i] - q[j]) for j in range(n)] for i in range(n)]
    d, low = [], [[None] * n for _ in range(n)]
    for j in range(n):
        pivot = 2.0 + c[j][j]
        for k in range(j):
            pivot = pivot - low[j][k] * low[j][k] * d[k]
        d.append(pivot)
        for i in range(j + 1, n):
            s = 0.3 * c[i][j]
            for k in range(j):
                s = s - low[i][k] * low[j][k] * d[k]
            low[i][j] = s / pivot
    z = [q[i] * xp.sin(q[i]) for i in range(n)]
    for i in range(n):
        for k in range(i):
            z[i] = z[i] - low[i][k] * z[k]
    return [z[i] / d[i] for i in range(n)]


@pytest.mark.parametrize("transform", [sg.func.jacrev, sg.func.jacfwd])
@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_jacobian_of_scalar_code_is_one_piece(transform: Any, n: int) -> None:
    jacobian = transform(lambda q: sg.stack(dynamics(sg, q.unbind(), n)))
    q = np.random.default_rng(n).normal(size=n)
    f = sg.compile(jacobian)
    found = f(q)
    h = 1e-30
    columns = [np.imag(dynamics(np, q + h * 1j * e, n)) / h for e in np.eye(n)]
    np.testing.assert_allclose(found, np.stack(columns, 1), rtol=1e-11, atol=1e-13)
    assert len(steps(f)) <= 4
    assert same_bits(found, jacobian(sg.tensor(q)).numpy())


def test_values_inside_a_piece_have_no_buffer() -> None:
    def f(x):
        y = [x[0] * 1.25]
        for k in range(30):
            y.append(sg.sin(y[-1]) * y[max(k - 3, 0)] + x[1])
        return sg.stack([y[-1], y[-2] * y[-3]])

    g = sg.compile(f)
    x = np.array([0.7, 0.2])
    found = g(x)
    y = [0.7 * 1.25]
    for k in range(30):
        y.append(math.sin(y[-1]) * y[max(k - 3, 0)] + 0.2)
    np.testing.assert_allclose(found, [y[-1], y[-2] * y[-3]], rtol=1e-13)
    assert len(steps(g)) == 1
    assert g.memory().temporaries == 0


CASES = {
    "functions side by side": lambda v, s: [sg.exp(s[k]) * sg.erf(s[k + 1]) for k in range(9)],
    "pow with two arguments": lambda v, s: [sg.abs(s[k]) ** s[k + 1] for k in range(7)],
    "selections": lambda v, s: [sg.where(s[k] > s[k + 1], s[k], v * s[k]) for k in range(5)],
    "integers and bools": lambda v, s: [
        (s[0] > 0).to(sg.int64) + sg.floor(s[1]).to(sg.int64),
        (v > s[2]).to(sg.float64) * v,
        (v > 0) & (s[3] > 0),
    ],
    "embedded": lambda v, s: [sg.cat([v[2:], sg.sin(v)[:2]]) * s[0], sg.flip(v, (0,)) + s[1]],
    "padded": lambda v, s: [sg.nn.functional.pad(v * s[0], (1, 2)) * s[1]],
    "remainders": lambda v, s: [sg.fmod(s[k], s[k + 1]) for k in range(9)],
    "a short sum": lambda v, s: [(v[:4].reshape(2, 2) * s[0]).sum(1), v * s[1]],
    "a sum used by scalars": lambda v, s: [s[k] / v.sum() for k in range(5)],
    "sums of other vectors": lambda v, s: [(v * s[0]).sum(), (sg.sin(v) * s[1]).sum(), v * s[2]],
    "reductions": lambda v, s: [
        sg.prod(v * s[0]),
        (v + s[1]).max(),
        (v - s[2]).min(),
        (v * s[3]).argmax(),
        (v > s[4]).any(),
    ],
    "a product of vectors": lambda v, s: [v @ (v * s[0]), v * s[1]],
    "elements of a vector": lambda v, s: [sg.sin(v)[k] * s[k] for k in range(5)],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [5, 8, 17, 32])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_straight_code_has_the_bits_of_loops(name: str, n: int, dtype: Any) -> None:
    def f(v, s):
        made = CASES[name](v, s.unbind())
        # At two shapes, so that there are several nests to join.
        return [*made, s[0] * s[1], *[m * m + s[0] for m in made if m.dtype.is_floating_point]]

    rng = np.random.default_rng(n)
    v, s = rng.normal(size=n).astype(dtype), (2 * rng.normal(size=12)).astype(dtype)
    compiled = sg.compile(f)(v, s)
    eager = f(sg.tensor(v), sg.tensor(s))
    for a, b in zip(compiled, eager, strict=True):
        assert same_bits(np.asarray(a, b.numpy().dtype), b.numpy())


REDUCTIONS = {
    "sum": (lambda x: x.sum(), np.sum),
    "prod": (lambda x: x.prod(), np.prod),
    "max": (lambda x: x.max(), np.max),
    "min": (lambda x: x.min(), np.min),
    "argmax": (lambda x: x.argmax(), np.argmax),
    "argmin": (lambda x: x.argmin(), np.argmin),
    "any": (lambda x: (x > 1).any(), lambda x: np.any(x > 1)),
    "all": (lambda x: (x > -1).all(), lambda x: np.all(x > -1)),
    "dot": (lambda x: x @ x, lambda x: np.sum(x * x)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("n", [2, 3, 8, 10, 15, 16])
def test_a_reduction_of_a_few_elements_is_written_out(name: str, n: int) -> None:
    ours, theirs = REDUCTIONS[name]
    f = sg.compile(ours)
    for x in (
        np.random.default_rng(n).normal(size=n),
        np.full(n, -0.0),
        np.array([math.nan, *np.ones(n - 1)]),
        np.array([*np.ones(n - 1), -math.inf]),
    ):
        found = f(x)
        np.testing.assert_allclose(found, theirs(x), rtol=1e-14)
        assert same_bits(np.asarray(found), ours(sg.tensor(x)).numpy())
    assert "straight" in repr(steps(f))


def test_nothing_is_written_beyond_a_row() -> None:
    for n in range(2, 17):
        room = np.full(20, 7.0)
        sg.compile(sg.exp).into(room[:n], np.zeros(n))
        np.testing.assert_array_equal(room, [1.0] * n + [7.0] * (20 - n))


def test_signed_zeros_and_nans_pass_through() -> None:
    f = sg.compile(lambda x: [a * b for a in x.unbind() for b in x.unbind()])
    x = np.array([0.0, -0.0, math.inf, math.nan, -1.0])
    with np.errstate(invalid="ignore"):
        expected = np.outer(x, x).reshape(-1)
    np.testing.assert_array_equal(f(x), expected)
    np.testing.assert_array_equal(np.signbit(f(x))[:3], np.signbit(expected)[:3])


# -- cotangents of slices ---------------------------------------------------------------


SLICED = {
    "every element": lambda x: sum(k * sg.sin(a) for k, a in enumerate(x.unbind(), 1)),
    "overlapping": lambda x: (x[1:] * x[:-1] ** 2).sum() + (x[2:5] ** 3).sum(),
    "with gaps": lambda x: (x[1:2] * x[4:6]).sum() + x[7],
    "again and again": lambda x: sum((x[:3] * k).prod() + x[5] ** k for k in range(1, 5)),
    "and the whole": lambda x: (x**2).sum() + x[0] * x[8] + (x[0] - x[3]) ** 2,
    "selected": lambda x: sum(sg.where(a > 0, a * a, 0.5 * a) for a in x.unbind()),
    "of two axes": lambda x: (x.reshape(3, 3)[0] * x.reshape(3, 3)[:, 1]).sum(),
    "with steps": lambda x: (x[::2] ** 2).sum() * x[1::2].sum(),
}


@pytest.mark.parametrize("name", SLICED)
def test_gradients_through_slices(name: str) -> None:
    value = SLICED[name]
    x = np.linspace(-1.0, 1.2, 9)
    gradient = sg.func.grad(value)(sg.tensor(x)).numpy()
    hessian = sg.func.hessian(value)(sg.tensor(x)).numpy()
    h = 1e-6

    def difference(f: Any, e: Any) -> Any:
        up, down = f(sg.tensor(x + h * e)).numpy(), f(sg.tensor(x - h * e)).numpy()
        return (up - down) / (2 * h)

    np.testing.assert_allclose(gradient, [difference(value, e) for e in np.eye(9)], atol=1e-8)
    rows = [difference(sg.func.grad(value), e) for e in np.eye(9)]
    np.testing.assert_allclose(hessian, rows, atol=1e-7)
    compiled = sg.compile(lambda x: (sg.func.grad(value)(x), sg.func.hessian(value)(x)))(x)
    assert same_bits(compiled[0], gradient)
    assert same_bits(compiled[1], hessian)


def test_an_undefined_slope_of_one_slice_stays_there() -> None:
    def f(x):
        a, b, c = x.unbind()
        return sg.where(a > 0, sg.sqrt(a), 0.0) + b * c

    np.testing.assert_array_equal(
        sg.func.grad(f)(sg.tensor([0.0, 2.0, 3.0])).numpy(), [0.0, 3.0, 2.0]
    )


def test_the_gradient_of_unbound_elements_is_one_join() -> None:
    x = sg.tensor(np.arange(1.0, 41.0), requires_grad=True)
    (g,) = sg.autograd.grad(sum(sg.log(a) for a in x.unbind()), x, create_graph=True)
    assert g.expr().op.name == "join_axis"
    np.testing.assert_array_equal(g.detach().numpy(), 1.0 / np.arange(1.0, 41.0))

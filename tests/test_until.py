"""Gradients of compiled loops that end themselves, against formulas and differences."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad import func
from symgrad.body import closed_body
from symgrad.calculus import until
from symgrad.func.levels import tracing
from symgrad.op import input_node

RNG = np.random.default_rng(21)
MATRIX = RNG.normal(size=(3, 3)) / 2
START = RNG.normal(size=3)


def turned(a: Any, x: Any, steps: Any) -> Any:
    """x -> sin(a x) + x / 10, a number of times."""
    (x, _) = sg.while_loop(
        lambda x, n: n < steps, lambda x, n: (sg.sin(a @ x) + 0.1 * x, n + 1.0), (x, 0.0)
    )
    return x


def by_numpy(a: np.ndarray, x: np.ndarray, steps: int) -> float:
    for _ in range(steps):
        x = np.sin(a @ x) + 0.1 * x
    return float((x * x * x).sum())


def gradient_by_numpy(a: np.ndarray, x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """By hand: the chain of steps backwards."""
    path = [x]
    for _ in range(steps):
        path.append(np.sin(a @ path[-1]) + 0.1 * path[-1])
    g, by_a = 3 * path[-1] ** 2, np.zeros_like(a)
    for before in path[-2::-1]:
        slope = g * np.cos(a @ before)
        by_a += np.outer(slope, before)
        g = a.T @ slope + 0.1 * g
    return by_a, g


def cube_sum(a: Any, x: Any, steps: Any) -> Any:
    y = turned(a, x, steps)
    return (y * y * y).sum()


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(until, "MOST_ROWS", 4)


GRADIENT = sg.compile(func.grad(cube_sum, argnums=(0, 1)))


@pytest.mark.parametrize("steps", [0, 1, 7, 100, 2500])
def test_how_many_steps_there_are_is_found_at_the_call(steps):
    found = GRADIENT(MATRIX, START, float(steps))
    for g, wanted in zip(found, gradient_by_numpy(MATRIX, START, steps), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 8, 9, 30])
@pytest.mark.usefixtures("few_rows")
def test_values_between_rows_are_computed_again(steps):
    compiled = sg.compile(func.grad(cube_sum, argnums=(0, 1)))
    found = compiled(MATRIX, START, float(steps))
    for g, wanted in zip(found, gradient_by_numpy(MATRIX, START, steps), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-14)


def test_torchs_idiom_has_the_bits_of_the_steps_one_by_one():
    def both(a: Any, x: Any, steps: float) -> Any:
        a.requires_grad_()
        value = cube_sum(a, x, steps)
        return value, *sg.autograd.grad(value, a)

    compiled = sg.compile(both)(MATRIX, START, 12.0)
    plain = both(sg.tensor(MATRIX), sg.tensor(START), 12.0)
    assert compiled[0] == plain[0].item()
    assert np.array_equal(compiled[1], plain[1].numpy())


@pytest.mark.parametrize("size", [(), (3,), (20,)])
def test_the_derivative_of_newtons_root(size):
    def root(a: Any) -> Any:
        x, _ = sg.while_loop(
            lambda x, last: ((x - last).abs() > 1e-12 * x).any(),
            lambda x, last: (0.5 * (x + a / x), x),
            (sg.ones_like(a), sg.zeros_like(a)),
        )
        return x.sum()

    a = RNG.uniform(0.5, 1e3, size)
    np.testing.assert_allclose(sg.compile(func.grad(root))(a), 0.5 / np.sqrt(a), rtol=1e-9)


@pytest.mark.parametrize("rows", [4, 1024])
def test_second_derivatives(rows, monkeypatch):
    monkeypatch.setattr(until, "MOST_ROWS", rows)
    direction = RNG.normal(size=3)

    def once_more(a: Any, x: Any) -> Any:
        x.requires_grad_()
        (g,) = sg.autograd.grad(cube_sum(a, x, 6.0), x, create_graph=True)
        return sg.autograd.grad((g * sg.tensor(direction)).sum(), x)[0]

    def ahead(a: Any, x: Any) -> Any:
        return func.jvp(
            lambda x: func.grad(cube_sum, argnums=1)(a, x, 6.0), (x,), (sg.tensor(direction),)
        )[1]

    moved = [gradient_by_numpy(MATRIX, START + t * direction, 6)[1] for t in (1e-5, -1e-5)]
    wanted = (moved[0] - moved[1]) / 2e-5
    for program in (once_more, ahead):
        np.testing.assert_allclose(sg.compile(program)(MATRIX, START), wanted, rtol=1e-7, atol=1e-8)


def test_elements_of_a_batch_end_at_different_steps():
    def shrunk(a: Any, x: Any) -> Any:
        (x,) = sg.while_loop(lambda x: (x * x).sum() > 0.05, lambda x: (0.8 * sg.sin(a @ x),), (x,))
        return (x * x * x).sum()

    def reference(a: np.ndarray, x: np.ndarray) -> tuple[float, int]:
        count = 0
        while (x * x).sum() > 0.05:
            x, count = 0.8 * np.sin(a @ x), count + 1
        return float((x * x * x).sum()), count

    turn = np.linalg.qr(MATRIX)[0]
    starts = np.array([[0.1], [0.5], [1.5]]) * START / np.linalg.norm(START)
    counts = [reference(turn, x)[1] for x in starts]
    assert counts[0] == 0 and len(set(counts)) == 3
    by_each = func.vmap(func.grad(shrunk, argnums=(0, 1)), in_dims=(None, 0))
    by_a, by_x = sg.compile(by_each)(turn, starts)
    for k, x in enumerate(starts):
        da, dx = RNG.normal(size=(3, 3)), RNG.normal(size=3)
        values = [reference(turn + t * da, x + t * dx)[0] for t in (1e-6, -1e-6)]
        slope = (by_a[k] * da).sum() + (by_x[k] * dx).sum()
        np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-6, rtol=1e-6, atol=1e-9)


def test_complex_values():
    phases = RNG.normal(size=4)

    def spun(z: Any, phases: Any) -> Any:
        factor = sg.exp(1j * phases) * 0.9
        (z,) = sg.while_loop(lambda z: z.abs().sum() > 1.0, lambda z: (z * factor,), (z,))
        return (z * z).real.sum()

    start = RNG.normal(size=4) + 1j * RNG.normal(size=4)
    steps = int(np.ceil(np.log(np.abs(start).sum()) / -np.log(0.9)))
    found = sg.compile(func.grad(spun, argnums=(0, 1)))(sg.tensor(start), sg.tensor(phases))
    factor = 0.9**steps * np.exp(1j * steps * phases)
    # of Re sum (factor z)^2: the conjugate of its derivative by z, and Re(2i steps (factor z)^2)
    np.testing.assert_allclose(found[0].numpy(), np.conj(2 * factor**2 * start), rtol=1e-11)
    wanted = (2j * steps * (factor * start) ** 2).real
    np.testing.assert_allclose(found[1].numpy(), wanted, rtol=1e-11)


def test_memory_does_not_grow_with_the_steps():
    def worn(x: Any, steps: Any) -> Any:
        (x, _) = sg.while_loop(
            lambda x, n: n < steps, lambda x, n: (x / (1.0 + 1e-3 * x), n + 1.0), (x, 0.0)
        )
        return x.sum()

    x = np.linspace(0.1, 1.0, 1000)
    tracemalloc.start()
    try:
        found = sg.compile(func.grad(worn))(x, 3000.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # after n steps x / (1 + n x / 1000); what is carried before all steps would take 24 MB
    np.testing.assert_allclose(found, (1.0 + 3.0 * x) ** -2, rtol=1e-11)
    assert peak < 12e6


@pytest.mark.usefixtures("few_rows")
def test_the_references_of_the_ops_agree():
    arrays = [MATRIX, START, np.array(9.0)]
    inputs = [input_node(a.shape, sg.float64, grad=True) for a in arrays]
    with tracing():
        found = func.grad(cube_sum, argnums=(0, 1))(*[sg.Tensor(x) for x in inputs])
    body, outside = closed_body(inputs, [g.expr() for g in found])
    made = body.evaluate([*arrays, *[sg.Tensor(x).detach().numpy() for x in outside]])
    for g, wanted in zip(made, gradient_by_numpy(MATRIX, START, 9), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.usefixtures("few_rows")
def test_steps_that_run_in_python():
    weights, scale = RNG.normal(size=4), np.array([1.1, -0.8, 0.9, -1.2])

    def sorted_each_time(x: Any) -> Any:
        x, _ = sg.while_loop(
            lambda x, n: n < 9.0,
            lambda x, n: (sg.sort(sg.tensor(scale) * x).values, n + 1.0),
            (x, 0.0),
        )
        return (sg.tensor(weights) * x).sum()

    x = start = RNG.normal(size=4)
    product = np.eye(4)
    for _ in range(9):
        order = np.argsort(scale * x)
        x, product = (scale * x)[order], (scale[:, None] * product)[order]
    found = sg.compile(func.grad(sorted_each_time))(start)
    np.testing.assert_allclose(found, weights @ product, rtol=1e-12)


def newton(a: Any) -> Any:
    x, _ = sg.while_loop(
        lambda x, last: (x - last).abs() > 1e-12 * x, lambda x, last: (0.5 * (x + a / x), x),
        (sg.ones_like(a), sg.zeros_like(a)),
    )  # fmt: skip
    return x


def decay(a: Any) -> Any:
    """a (0.99 sin a)^n with the first n for which the power is at most 1 / 1000."""
    x, _ = sg.while_loop(
        lambda x, n: x > 1e-3, lambda x, n: (x * sg.sin(a) * 0.99, n + 1), (sg.ones_like(a), 0)
    )
    return x * a


def newton_slope(a: float) -> float:
    return float(0.5 / np.sqrt(a))


def decay_slope(a: float) -> float:
    factor = 0.99 * np.sin(a)
    n = int(np.ceil(np.log(1e-3) / np.log(factor)))
    return float(factor**n + a * n * factor ** (n - 1) * 0.99 * np.cos(a))


@pytest.mark.parametrize(("program", "slope"), [(newton, newton_slope), (decay, decay_slope)])
def test_gradients_have_the_same_bits_in_eager_mode(program, slope):
    compiled, plain = sg.compile(func.grad(program)), func.grad(program)
    for v in np.random.default_rng(0).uniform(0.5, 1.4, 60):
        leaf = sg.tensor(v, dtype=sg.float64, requires_grad=True)
        program(leaf).backward()
        found = [compiled(v), plain(leaf.detach()).item(), leaf.grad.item()]
        assert found[0] == found[1] == found[2]
        assert found[0] == pytest.approx(slope(v), rel=1e-9)


def test_leaves_from_outside_get_their_gradients_in_eager_mode():
    w = sg.tensor([1.0, 2.0], requires_grad=True)
    x = sg.tensor([1.0, 1.0], requires_grad=True)
    (y,) = sg.while_loop(lambda x: x.sum() < 50.0, lambda x: (x * w + w,), (x,))
    assert y.grad_fn.name() == "LoopBackward0"
    y.sum().backward()
    # four steps: w^4 x + w + w^2 + w^3 + w^4
    wanted = [4 * v**3 + 1 + 2 * v + 3 * v**2 + 4 * v**3 for v in (1.0, 2.0)]
    np.testing.assert_array_equal(w.grad.numpy(), wanted)
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, 16.0])


class Square(sg.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 2 * x


def halved_or_less(x: Any, n: Any) -> Any:
    return (x / 2 if int(n) % 2 == 0 else x - 1), n + 1


# The loop, its first value, its last and the derivative of that; each needs Python in every step.
STEP_BY_STEP = {
    "looks": (
        lambda x: sg.while_loop(lambda x, n: x > 1.0, halved_or_less, (x, 0))[0],
        7.0, 0.25, 0.25,
    ),
    "calls a function": (
        lambda x: sg.while_loop(lambda x: x < 100.0, lambda x: (Square.apply(x),), (x,))[0],
        3.0, 6561.0, 8 * 3.0**7,
    ),
    "grows": (
        lambda x: sg.while_loop(
            lambda x: x.numel() < 5, lambda x: (sg.cat([x, 2 * x]),), (x.reshape(1),)
        )[0].sum(),
        1.0, 27.0, 27.0,
    ),
    "changes its dtype": (
        lambda x: sg.while_loop(lambda x: x < 8.0, lambda x: (2 * x.double(),), (x.float(),))[0],
        1.0, 8.0, 8.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_what_cannot_be_recorded_runs_step_by_step_in_eager_mode(name):
    program, start, value, slope = STEP_BY_STEP[name]
    x = sg.tensor(start, dtype=sg.float64, requires_grad=True)
    y = program(x)
    y.backward()
    assert (y.item(), x.grad.item()) == (value, slope)


def test_hooks_in_a_loop_of_eager_mode_are_called_for_every_step():
    seen: list[float] = []

    def squared(v: Any) -> Any:
        w = v * v
        w.register_hook(lambda g: seen.append(g.item()))
        return (w,)

    x = sg.tensor(3.0, requires_grad=True)
    sg.while_loop(lambda v: v < 100.0, squared, (x,))[0].backward()
    assert x.grad.item() == 8 * 3.0**7 and seen == [1.0, 2 * 81.0, 4 * 9.0**3]


@pytest.mark.parametrize("dtype", [sg.float64, sg.int64])
def test_changes_in_place_in_a_loop_of_eager_mode(dtype):
    total, start = sg.tensor(0.0), sg.tensor([1, 2], dtype=dtype)

    def summed(x: Any) -> Any:
        total.add_(x)
        return (2 * x,)

    def doubled(x: Any) -> Any:
        x[0] *= 2
        return (x,)

    assert sg.while_loop(lambda x: x < 20.0, summed, (sg.tensor(1.0),))[0].item() == 32.0
    assert total.item() == 31.0
    (last,) = sg.while_loop(lambda x: x.sum() < 20.0, doubled, (start,))
    assert last.tolist() == start.tolist() == [32, 2]


def test_random_draws_in_a_loop_of_eager_mode_are_those_of_the_steps():
    sg.manual_seed(0)
    drawn = [sg.rand(()).item() for _ in range(4)]
    sg.manual_seed(0)
    x, count = sg.while_loop(
        lambda x, n: n < 4, lambda x, n: (x + sg.rand(()), n + 1), (sg.tensor(0.0), 0)
    )
    assert count == 4 and x.item() == pytest.approx(sum(drawn))


def test_a_condition_of_pythons_is_asked_before_every_step():
    left = iter([True, True, True, False])
    (x,) = sg.while_loop(lambda x: next(left), lambda x: (x + 3.0,), (sg.tensor(1.0),))
    assert x.item() == 10.0

"""Derivatives of powers that are written as products, in torch's idiom, against exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import perm
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad import func
from symgrad.expr import ancestors

RNG = np.random.default_rng(12)
POINTS = RNG.uniform(-2, 2, 40)
WEIGHTS = RNG.uniform(-2, 2, 40)

POWERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "xx": (lambda x: x * x, 2),
    "xx.x": (lambda x: (x * x) * x, 3),
    "x.xx": (lambda x: x * (x * x), 3),
    "xx.xx": (lambda x: (x * x) * (x * x), 4),
    "xx.x.x": (lambda x: ((x * x) * x) * x, 4),
    "x.(xx.x)": (lambda x: x * ((x * x) * x), 4),
    "xx.(xx.x)": (lambda x: (x * x) * ((x * x) * x), 5),
    "(xx.xx).x": (lambda x: ((x * x) * (x * x)) * x, 5),
    "cube of a square": (lambda x: ((x * x) * (x * x)) * (x * x), 6),
    "square of a cube": (lambda x: ((x * x) * x) * ((x * x) * x), 6),
}


def leaf(values: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(values, dtype=dtype, requires_grad=True)


def gradient(f: Callable[[Any], Any], x: sg.Tensor, g: Any, **options: Any) -> sg.Tensor:
    return sg.autograd.grad(f(x), x, sg.tensor(g, dtype=x.dtype), **options)[0]


def exact(n: int, order: int, points: Any, weights: Any) -> np.ndarray:
    """The weighted derivative of some order of x**n, rounded once."""
    pairs = zip(points.tolist(), weights.tolist(), strict=True)
    return np.array([
        float(Fraction(w) * perm(n, order) * Fraction(p) ** (n - order)) for p, w in pairs
    ])  # fmt: skip


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("dtype", [sg.float64, sg.float32])
def test_first_derivatives_are_within_a_few_roundings(name: str, dtype: Any):
    f, n = POWERS[name]
    points, weights = (sg.tensor(v, dtype=dtype).numpy() for v in (POINTS, WEIGHTS))
    found = gradient(f, leaf(points, dtype), weights)
    assert found.dtype == dtype
    rounding = np.finfo(points.dtype).eps
    np.testing.assert_allclose(found.numpy(), exact(n, 1, points, weights), rtol=n * rounding)


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_higher_derivatives_in_both_roads(name: str, order: int):
    f, n = POWERS[name]
    if order > n:
        return
    y = f(x := leaf(POINTS))
    for _ in range(order):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
    expected = exact(n, order, POINTS, np.ones_like(POINTS))
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-14)

    derivative: Any = f
    for _ in range(order):
        derivative = func.grad(derivative)
    found = func.vmap(derivative)(sg.tensor(POINTS, dtype=sg.float64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("name", POWERS)
def test_products_with_hessians_and_forward_mode(name: str):
    f, n = POWERS[name]
    x, v = (sg.tensor(a, dtype=sg.float64) for a in (POINTS, WEIGHTS))
    first, along = func.jvp(func.grad(lambda x: f(x).sum()), (x,), (v,))
    np.testing.assert_allclose(first.numpy(), exact(n, 1, POINTS, np.ones(40)), rtol=1e-14)
    np.testing.assert_allclose(along.numpy(), exact(n, 2, POINTS, WEIGHTS), rtol=1e-14)


@pytest.mark.parametrize("name", POWERS)
def test_complex_derivatives(name: str):
    f, n = POWERS[name]
    z, g = POINTS[:20] + 1j * POINTS[20:], WEIGHTS[:20] + 1j * WEIGHTS[20:]
    found = gradient(f, leaf(z, sg.complex128), g)
    np.testing.assert_allclose(found.numpy(), g * np.conj(n * z ** (n - 1)), rtol=1e-13)


@pytest.mark.parametrize("name", POWERS)
def test_compiled_derivatives_have_the_same_bits(name: str):
    f, _ = POWERS[name]

    def step(x: Any, g: Any) -> Any:
        x.requires_grad_()
        return sg.autograd.grad(f(x), x, g)[0]

    eager = gradient(f, leaf(POINTS), WEIGHTS).numpy()
    assert eager.tobytes() == np.asarray(sg.compile(step)(POINTS, WEIGHTS)).tobytes()


@pytest.mark.parametrize("f", [lambda x, y: (x * y) * x, lambda x, y: x * (x * y)])
def test_products_of_different_factors_are_no_powers(f: Any):
    x, y = leaf(POINTS), leaf(WEIGHTS)
    by_x, by_y = sg.autograd.grad(f(x, y).sum(), (x, y))
    np.testing.assert_allclose(by_x.numpy(), 2 * POINTS * WEIGHTS, rtol=1e-15)
    np.testing.assert_allclose(by_y.numpy(), POINTS**2, rtol=1e-15)


def operations(t: sg.Tensor) -> list[str]:
    """The operations by which a tensor comes from leaves."""
    return sorted(n.op.name for n in ancestors([t.expr()], lambda n: True) if n.args)


@pytest.mark.parametrize(("name", "products"), [("xx.x", 3), ("x.xx", 3), ("xx.x.x", 4)])
def test_a_derivative_takes_two_products_more_than_the_power_below(name: str, products: int):
    f, _ = POWERS[name]
    x, other, g = leaf(POINTS), leaf(POINTS), leaf(WEIGHTS)
    found, _ = sg.autograd.grad(f(x), (x, other), g, create_graph=True, allow_unused=True)
    made = operations(found)
    assert made.count("mul") == products
    assert "add" not in made


# -- values at the end of the range ---------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "g"),
    [
        (1e-100, 1.7e308),  # 3*g overflows
        (1.2e154, 0.1),  # 3*x*x does
        (-1e-3, -1.7e308),
    ],
)
def test_nothing_overflows_on_the_way(x: float, g: float):
    expected = float(3 * Fraction(g) * Fraction(x) ** 2)
    assert gradient(POWERS["xx.x"][0], leaf(x), g).item() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("name", ["xx.x", "x.xx", "xx.x.x"])
def test_values_that_are_not_finite_and_signed_zeros(name: str):
    f, n = POWERS[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-170, -1e200, 2.0]
    points, weights = (a.ravel() for a in np.meshgrid(special, special))
    found = gradient(f, leaf(points), weights).numpy()
    with np.errstate(all="ignore"):
        expected = weights * points ** (n - 1) * n
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


def test_an_infinite_part_of_a_complex_derivative_leaves_the_other():
    found = gradient(POWERS["xx.x"][0], leaf(1e150 + 0j, sg.complex128), 1e10 + 0j).item()
    assert (found.real, found.imag) == (np.inf, 0.0)


def test_a_branch_not_taken_passes_zero_back():
    x = leaf([0.0, 2.0])
    u = 1.0 / x
    sg.where(x > 0, u * u * u, x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, -3.0 / 16.0])


# -- what somebody watches ------------------------------------------------------------------


def cube_and_square(values: Any = (0.5, -3.0)) -> tuple[sg.Tensor, sg.Tensor, sg.Tensor]:
    x = leaf(values)
    square = x * x
    return x, square, square * x


def test_an_inner_power_keeps_its_gradient():
    x, square, cube = cube_and_square()
    square.retain_grad()
    cube.sum().backward()
    np.testing.assert_array_equal(square.grad.numpy(), [0.5, -3.0])
    np.testing.assert_array_equal(x.grad.numpy(), [0.75, 27.0])


def test_an_inner_power_that_was_changed_in_place_keeps_its_gradient():
    x = leaf([0.5, -3.0])
    power = x * x
    power.retain_grad()
    power.mul_(x)
    (power * x).sum().backward()
    np.testing.assert_array_equal(power.grad.numpy(), [0.5, -3.0])
    np.testing.assert_array_equal(x.grad.numpy(), [0.5, -108.0])


def test_a_hook_on_an_inner_power_changes_what_goes_through_it():
    x, square, cube = cube_and_square()
    square.register_hook(lambda g: 10 * g)
    cube.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.25 + 20 * 0.25, 9.0 + 20 * 9.0])


def test_a_hook_on_the_outer_power_changes_all():
    x, _, cube = cube_and_square()
    cube.register_hook(lambda g: 10 * g)
    cube.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [7.5, 270.0])


def test_hooks_on_nodes_see_the_gradient_of_each_factor():
    x, square, cube = cube_and_square()
    seen: list[Any] = []
    for t in (cube, square):
        t.grad_fn.register_hook(lambda i, o: seen.append([g.tolist() for g in i]))
    cube.sum().backward()
    assert seen == [[[0.5, -3.0], [0.25, 9.0]], [[0.25, 9.0], [0.25, 9.0]]]
    np.testing.assert_array_equal(x.grad.numpy(), [0.75, 27.0])


def test_nodes_called_by_themselves_give_the_gradient_of_each_factor():
    _, _, cube = cube_and_square()
    given = cube.grad_fn(sg.tensor([1.0, 2.0], dtype=sg.float64))
    assert [g.tolist() for g in given] == [[0.5, -6.0], [0.25, 18.0]]


@pytest.mark.parametrize("hooked", [False, True])
def test_gradients_by_an_inner_power_and_the_base(hooked: bool):
    x, square, cube = cube_and_square()
    other = 2.0 * leaf([0.5, -3.0])
    if hooked:
        other.register_hook(lambda g: None)
    by_square, by_x = sg.autograd.grad((cube + other).sum(), (square, x))
    np.testing.assert_array_equal(by_square.numpy(), [0.5, -3.0])
    np.testing.assert_array_equal(by_x.numpy(), [0.75, 27.0])


def test_an_inner_power_that_others_use():
    x, square, cube = cube_and_square()
    (cube + sg.sin(square)).sum().backward()
    p = np.array([0.5, -3.0])
    np.testing.assert_allclose(x.grad.numpy(), 3 * p**2 + 2 * p * np.cos(p**2), rtol=1e-15)


def test_an_inner_power_without_derivative_is_a_constant():
    x = leaf([0.5, -3.0])
    with sg.no_grad():
        square = x * x
    (square * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.25, 9.0])
    found = func.grad(lambda x: ((x * x).detach() * x).sum())(x.detach())
    np.testing.assert_array_equal(found.numpy(), [0.25, 9.0])


def test_an_inner_power_made_a_leaf_is_a_variable():
    x = leaf([0.5, -3.0])
    square = (x * x).detach().requires_grad_()
    (square * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.25, 9.0])
    np.testing.assert_array_equal(square.grad.numpy(), [0.5, -3.0])


def test_saved_factors_are_those_that_are_unpacked():
    x = leaf([0.5, -3.0])
    with sg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.detach() + 1.0):
        cube = x * x * x
    cube.sum().backward()
    p, s = np.array([0.5, -3.0]), np.array([0.25, 9.0])
    np.testing.assert_array_equal(x.grad.numpy(), (s + 1) + 2 * (p + 1) * (p + 1))


@pytest.mark.parametrize("watch", ["hook", "retain_grad"])
def test_watching_another_tensor_leaves_the_bits(watch: str):
    def run(watched: bool) -> bytes:
        x = leaf(POINTS)
        other = sg.sin(x)
        if watched:
            other.retain_grad() if watch == "retain_grad" else other.register_hook(lambda g: None)
        (x * x * x * 0.1 + other).sum().backward()
        return x.grad.numpy().tobytes()

    assert run(False) == run(True)


def test_anomaly_mode_finds_the_factor_that_is_nan():
    x = leaf([1.0, 2.0])
    cube = x * x * x
    g = sg.tensor([np.nan, 1.0], dtype=sg.float64)
    with (
        pytest.warns(UserWarning, match="has been enabled"),
        sg.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="MulBackward0"),
        pytest.raises(RuntimeError, match="'MulBackward0' returned nan values in its 0th output"),
    ):
        cube.backward(g)

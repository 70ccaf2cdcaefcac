"""Successive derivatives by one input, in torch's idiom, against mpmath and NumPy."""

from __future__ import annotations

import math
from itertools import pairwise
from math import factorial
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.polynomial import polynomial

import symgrad as sg
from symgrad import func
from symgrad.expr import ancestors

RNG = np.random.default_rng(5)
POINTS = RNG.uniform(-2, 2, 7)


def leaf(values: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(values, dtype=dtype, requires_grad=True)


def bell(x: Any) -> Any:
    return sg.exp(-x * x) * sg.sin(3.0 * x) / (1.0 + x * x)


def bell_by_mpmath(order: int) -> np.ndarray:
    def f(x: Any) -> Any:
        return mpmath.exp(-x * x) * mpmath.sin(3 * x) / (1 + x * x)

    with mpmath.workdps(50):
        return np.array([float(mpmath.diff(f, mpmath.mpf(p), order)) for p in POINTS])


def nested(y: sg.Tensor, x: sg.Tensor, order: int) -> sg.Tensor:
    for _ in range(order):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
    return y


# -- elementwise functions --------------------------------------------------------------------


def test_derivatives_of_eight_orders():
    x = leaf(POINTS)
    y = bell(x)
    for order in range(1, 9):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(y.detach().numpy(), bell_by_mpmath(order), rtol=1e-9, atol=1e-9)


def test_an_order_adds_few_operations():
    x = leaf(POINTS)
    y = bell(x)
    counts = []
    for _ in range(8):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
        counts.append(len(ancestors([y.expr()], lambda n: True)))
    assert counts[-1] < 400
    assert np.diff(counts).max() < 70


def test_compiled_looked_at_and_without_a_graph_have_the_same_bits():
    def tower(x: Any) -> tuple[Any, ...]:
        x.requires_grad_()
        found = [bell(x)]
        for _ in range(4):
            found += sg.autograd.grad(found[-1].sum(), x, create_graph=True)
        return tuple(found)

    compiled = sg.compile(tower)(POINTS)
    x = leaf(POINTS)
    y = bell(x)
    for order in range(1, 5):
        y.detach().numpy()
        (last,) = sg.autograd.grad(y.sum(), x, retain_graph=True)
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
        assert np.array_equal(y.detach().numpy(), compiled[order])
        assert np.array_equal(last.numpy(), compiled[order])
        assert not last.requires_grad


def test_backward_without_a_graph_continues_a_derivative():
    x = leaf(POINTS)
    nested(bell(x), x, 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), bell_by_mpmath(3), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("looked", [False, True])
def test_given_cotangents_are_kept_at_all_orders(looked):
    weights = sg.tensor([1.0, 2.0, 3.0], dtype=sg.float64)
    x = leaf([0.3, -1.0, 2.0])
    y = x**4
    if looked:
        weights.numpy()
    for wanted in (4 * x**3, 12 * x**2, 24 * x):
        (y,) = sg.autograd.grad(y, x, weights, create_graph=True)
        wanted = wanted.detach().numpy()
        power = round(float(np.log(y[1].item() / wanted[1]) / np.log(2.0)))
        np.testing.assert_allclose(y.detach().numpy(), wanted * weights.numpy() ** power)


def test_a_cotangent_that_depends_on_the_input_is_differentiated_too():
    x = leaf([0.5, 2.0])
    (first,) = sg.autograd.grad(x**3, x, x * x, create_graph=True)
    (second,) = sg.autograd.grad(first.sum(), x, create_graph=True)
    # (3 x^2) x^2 = 3 x^4, whose derivative is 12 x^3
    np.testing.assert_allclose(second.detach().numpy(), [12 * 0.125, 12 * 8.0])


def test_products_of_derivatives_are_differentiated_by_all_their_factors():
    x = leaf(POINTS)
    u = sg.sin(2.0 * x)
    u_x = nested(u, x, 1)
    u_xx = nested(u_x, x, 1)
    (found,) = sg.autograd.grad((u_xx + u * u_x).sum(), x, create_graph=True)
    s, c = np.sin(2 * POINTS), np.cos(2 * POINTS)
    np.testing.assert_allclose(found.detach().numpy(), -8 * c + 4 * c * c - 4 * s * s, rtol=1e-12)
    (found,) = sg.autograd.grad(found.sum(), x)
    np.testing.assert_allclose(found.numpy(), 16 * s - 32 * c * s, rtol=1e-12, atol=1e-12)


def test_float32_stays_float32():
    x = leaf([0.5, 1.0], sg.float32)
    third = nested(sg.sin(x), x, 3)
    assert third.dtype is sg.float32
    np.testing.assert_allclose(third.detach().numpy(), -np.cos([0.5, 1.0]), rtol=1e-6)


def test_at_a_kink_the_branch_that_is_taken_counts():
    x = leaf([-1.0, 2.0])
    third = nested(sg.where(x > 0, x**4, sg.log(-x)), x, 3)
    np.testing.assert_allclose(third.detach().numpy(), [-2.0, 48.0])


def test_what_no_longer_depends_on_the_input_is_refused():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (first,) = sg.autograd.grad((w * x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        sg.autograd.grad(first.sum(), x, retain_graph=True)
    (found,) = sg.autograd.grad(first.sum(), w)
    np.testing.assert_array_equal(found.numpy(), [1.0, 1.0])


def test_a_parameter_of_the_function_gets_its_gradient():
    x, w = leaf([0.5, 2.0]), leaf(1.5)
    third = nested(sg.sin(w * x), x, 3)
    third.sum().backward()
    v = np.array([0.5, 2.0])
    wanted = (-3 * 1.5**2 * np.cos(1.5 * v) + 1.5**3 * v * np.sin(1.5 * v)).sum()
    np.testing.assert_allclose(w.grad.item(), wanted, rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), 1.5**4 * np.sin(1.5 * v), rtol=1e-12)


def test_a_scalar_function_of_a_scalar_may_reduce():
    x = leaf(0.7)
    rates = np.array([0.5, 1.0, 2.0])
    third = nested(sg.exp(x * sg.tensor(rates, dtype=sg.float64)).sum(), x, 3)
    np.testing.assert_allclose(third.item(), (rates**3 * np.exp(0.7 * rates)).sum(), rtol=1e-12)


# -- networks over a batch of points ----------------------------------------------------------


def network(inputs: int) -> list[np.ndarray]:
    sizes = [inputs, 5, 4, 1]
    weights = [RNG.normal(size=(m, n)) / np.sqrt(m) for m, n in pairwise(sizes)]
    return weights + [0.1 * RNG.normal(size=n) for n in sizes[1:]]


def output(x: sg.Tensor, parameters: list[Any]) -> sg.Tensor:
    h = x
    for k in range(3):
        h = h @ parameters[k] + parameters[3 + k]
        h = sg.tanh(h) if k < 2 else h
    return h


def series(parameters: list[np.ndarray], point: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Derivatives of orders 0 to 4 of the network along a line, with power series of NumPy's."""
    order = 4
    h = np.zeros((order + 1, point.size))
    h[0], h[1] = point, along
    for k in range(3):
        h = h @ parameters[k]
        h[0] += parameters[3 + k]
        if k < 2:
            t = np.zeros_like(h)
            t[0] = np.tanh(h[0])
            for unit in range(h.shape[1]):
                # t' = (1 - t^2) h'
                slope = polynomial.polyder(h[:, unit])
                for n in range(1, order + 1):
                    square = polynomial.polymul(t[:n, unit], t[:n, unit])
                    factor = polynomial.polysub([1.0], square)
                    t[n, unit] = polynomial.polymul(factor, slope)[n - 1] / n
            h = t
    return h[:, 0] * [factorial(k) for k in range(order + 1)]


def test_fourth_derivative_of_a_network_and_its_gradient_by_the_parameters():
    arrays = network(1)
    parameters = [leaf(a) for a in arrays]
    points = RNG.uniform(-1, 1, (6, 1))
    x = leaf(points)
    fourth = nested(output(x, parameters), x, 4)
    wanted = np.array([series(arrays, p, np.ones(1))[4] for p in points])
    np.testing.assert_allclose(fourth.detach().numpy()[:, 0], wanted, rtol=1e-10, atol=1e-11)
    (found,) = sg.autograd.grad(fourth.sum(), parameters[1])
    direction = RNG.normal(size=arrays[1].shape)

    def total(step: float) -> float:
        moved = [*arrays]
        moved[1] = arrays[1] + step * direction
        return sum(series(moved, p, np.ones(1))[4] for p in points)

    slope = (total(1e-4) - total(-1e-4)) / 2e-4
    np.testing.assert_allclose((found.numpy() * direction).sum(), slope, rtol=1e-6)


def test_a_network_of_two_inputs_joined_from_columns():
    arrays = network(2)
    parameters = [sg.tensor(a, dtype=sg.float64) for a in arrays]
    points = RNG.uniform(-1, 1, (6, 2))
    x, t = leaf(points[:, :1]), leaf(points[:, 1:])
    u = output(sg.cat([x, t], dim=1), parameters)[:, 0]
    u_xx = nested(u, x, 2)
    u_xt = nested(nested(u, x, 1), t, 1)
    u_tttt = nested(u, t, 4)
    assert len(ancestors([u_tttt.expr()], lambda n: True)) < 250
    in_x, in_t, across = (
        np.array([series(arrays, p, np.array(d)) for p in points])
        for d in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    )
    mixed = (across[:, 2] - in_x[:, 2] - in_t[:, 2]) / 2
    for found, wanted in ((u_xx, in_x[:, 2]), (u_xt, mixed), (u_tttt, in_t[:, 4])):
        np.testing.assert_allclose(found.detach().numpy()[:, 0], wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "mixing",
    [
        lambda x: sg.cumsum(x, 0),
        lambda x: sg.flip(x, (0,)),
        lambda x: sg.sin(x) * x.sum(),
        lambda x: x[1:] * x[:-1],
        lambda x: sg.softmax(x, 0),
        lambda x: x.reshape(2, 2).t().reshape(4),
        lambda x: x.reshape(2, 2) @ x.reshape(2, 2),
    ],
)
def test_where_elements_meet_derivatives_are_those_of_the_whole(mixing):
    point = np.array([0.3, -0.8, 1.1, 0.6])

    def first(v: np.ndarray) -> np.ndarray:
        x = leaf(v)
        (g,) = sg.autograd.grad((mixing(x) ** 3).sum(), x)
        return g.numpy()

    x = leaf(point)
    (g,) = sg.autograd.grad((mixing(x) ** 3).sum(), x, create_graph=True)
    (second,) = sg.autograd.grad(g.sum(), x, create_graph=True)
    ones = 1e-5 * np.ones(4)
    jacobian_sum = (first(point + ones) - first(point - ones)) / 2e-5
    np.testing.assert_allclose(second.detach().numpy(), jacobian_sum, rtol=1e-7, atol=1e-8)


# -- what is stated of a derivative holds of its own graph alone ------------------------------


def test_arguments_that_turn_out_to_be_one_are_not_confused():
    def by_first(x: Any, y: Any) -> Any:
        return sg.autograd.grad((x**3 * y).sum(), x, create_graph=True)[0]

    compiled = sg.compile(by_first)
    x = leaf([2.0, 3.0])
    # 3 x^2 y at y = x is 3 x^3
    (found,) = sg.autograd.grad(compiled(x, x).sum(), x)
    np.testing.assert_allclose(found.numpy(), [9 * 4.0, 9 * 9.0])
    # x^4 as a function of x: 12 x^2
    (found,) = sg.autograd.grad(by_first(x, x).sum(), x)
    np.testing.assert_allclose(found.numpy(), [12 * 4.0, 12 * 9.0])


def test_nested_transforms_of_a_shared_variable():
    outer = func.grad(lambda x: func.grad(lambda y: y**3 * x)(x))
    # 3 y^2 x at y = x
    np.testing.assert_allclose(outer(sg.tensor(2.0, dtype=sg.float64)).item(), 9 * 4.0)


def test_nested_transforms_of_variables_that_meet_later():
    def middle(y: Any) -> Any:
        return func.grad(lambda z: z**4 * y)(y)

    outer = func.grad(lambda x: func.grad(middle)(x) * x)
    # 4 z^3 y at z = y is 4 y^4; its derivative times x is 16 x^4, and that one's is 64 x^3
    np.testing.assert_allclose(outer(sg.tensor(2.0, dtype=sg.float64)).item(), 64 * 8.0)


def test_nested_transforms_of_eight_orders():
    f, point = bell, sg.tensor(POINTS[0], dtype=sg.float64)
    for order in range(1, 9):
        f = func.grad(f)
        found = f(point)
        np.testing.assert_allclose(found.item(), bell_by_mpmath(order)[0], rtol=1e-9)
    assert len(ancestors([f(point).expr()], lambda n: True)) < 400


def test_a_batch_of_derivatives():
    def third(x: sg.Tensor) -> sg.Tensor:
        return func.grad(func.grad(func.grad(sg.sin)))(x)

    found = func.vmap(third)(sg.tensor(POINTS, dtype=sg.float64))
    np.testing.assert_allclose(found.numpy(), -np.cos(POINTS), rtol=1e-12)


def test_a_hook_sees_the_cotangents_on_the_way():
    x = leaf([0.5, 2.0])
    u = sg.sin(x)
    seen: list[np.ndarray] = []
    u_x = nested(u, x, 1)
    u_x.register_hook(lambda g: seen.append(g.detach().numpy().copy()))
    inner = u * u
    inner.register_hook(lambda g: seen.append(g.detach().numpy().copy()))
    (found,) = sg.autograd.grad((u_x * inner).sum(), x)
    s, c = np.sin([0.5, 2.0]), np.cos([0.5, 2.0])
    np.testing.assert_allclose(found.numpy(), -s * s * s + 2 * s * c * c, rtol=1e-12)
    assert len(seen) == 2


def test_a_spent_derivative_leaves_the_rest_of_the_function():
    x, w = leaf([0.5, 2.0]), leaf([3.0, 4.0])
    u = sg.sin(x) * w
    u_x = nested(u, x, 1)
    u_x.sum().backward()
    before = x.grad.numpy().copy()
    u.sum().backward()
    np.testing.assert_allclose(before, -np.sin([0.5, 2.0]) * [3.0, 4.0])
    np.testing.assert_allclose(x.grad.numpy() - before, np.cos([0.5, 2.0]) * [3.0, 4.0])


def test_the_name_of_a_derivative_is_that_of_its_last_operation():
    x = leaf([0.5, 2.0])
    (first,) = sg.autograd.grad((x * sg.sin(x)).sum(), x, create_graph=True)
    assert first.grad_fn.name() == "AddBackward0"
    assert [n.name() for n, _ in first.grad_fn.next_functions] == ["MulBackward0", "MulBackward0"]


def test_formulas_of_higher_orders_are_short():
    x = leaf(0.7)
    third = nested(sg.sin(x) * sg.exp(x), x, 3)
    from symgrad.formula.text import text

    assert text(third.expr(), {x.expr(): "x"}) == "2*cos(x)*exp(x) - 2*sin(x)*exp(x)"


@pytest.mark.parametrize("exponent", [2, 3, 5, 2.0])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_beyond_the_last_order_of_a_polynomial_there_are_zeros(exponent, shape):
    """One pass more than there are powers gives zeros, as a path led there; they need no gradient."""
    x = sg.tensor(np.full(shape, -2.0), requires_grad=True)
    y = x**exponent
    for order in range(1, int(exponent) + 2):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
        expected = math.perm(int(exponent), order) * (-2.0) ** max(exponent - order, 0)
        np.testing.assert_allclose(y.detach().numpy(), np.full(shape, expected), rtol=1e-14)
    assert not y.requires_grad

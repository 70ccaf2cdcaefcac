"""The examples of torch.autograd's tutorials, with values worked out on paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

import symgrad as torch


def test_gradient_argument_weighs_the_outputs_of_backward():
    w = torch.tensor([1.0], requires_grad=True)
    x = torch.tensor([2.0], requires_grad=True)
    a = torch.add(w, x)
    b = torch.add(w, 1)
    y0 = torch.mul(a, b)
    y1 = torch.add(a, b)
    loss = torch.cat([y0, y1], dim=0)
    loss.backward(gradient=torch.tensor([1.0, 2.0]))
    # dy0/dw = a + b = 5, dy1/dw = 2; 1*5 + 2*2 = 9. dy0/dx = b = 2, dy1/dx = 1; 1*2 + 2*1 = 4.
    assert w.grad.tolist() == [9.0]
    assert x.grad.tolist() == [4.0]


def test_leaves_are_what_no_operation_made():
    w = torch.tensor([1.0], requires_grad=True)
    x = torch.tensor([2.0], requires_grad=True)
    a, b = w + x, w + 1
    y = a * b
    y.backward()
    assert [t.is_leaf for t in (w, x, a, b, y)] == [True, True, False, False, False]
    assert w.grad.tolist() == [5.0]
    assert w.grad_fn is None
    assert y.grad_fn.name() == "MulBackward0"


def test_retain_grad_keeps_an_intermediate_gradient():
    w = torch.tensor([1.0], requires_grad=True)
    x = torch.tensor([2.0], requires_grad=True)
    a, b = w + x, w + 1
    a.retain_grad()
    (a * b).backward()
    assert a.grad.tolist() == [2.0]


def test_second_derivative_of_a_square_is_two():
    x = torch.tensor([3.0], requires_grad=True)
    y = torch.pow(x, 2)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.tolist() == [6.0]
    (second,) = torch.autograd.grad(first, x)
    assert second.tolist() == [2.0]


def test_no_grad_and_enable_grad_as_context_managers():
    x = torch.tensor([1.0], requires_grad=True)
    with torch.no_grad():
        y = x * 2
        assert not y.requires_grad
        with torch.enable_grad():
            z = x * 2
        assert z.requires_grad
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_no_grad_and_enable_grad_as_decorators():
    x = torch.tensor([1.0], requires_grad=True)

    @torch.no_grad()
    def doubler(x):
        return x * 2

    @torch.enable_grad()
    def tripler(x):
        return x * 3

    assert not doubler(x).requires_grad
    with torch.no_grad():
        y = tripler(x)
    assert y.requires_grad
    y.backward()
    assert x.grad.tolist() == [3.0]


def test_set_grad_enabled_as_function_and_context_manager():
    x = torch.tensor([1.0], requires_grad=True)
    with torch.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    torch.set_grad_enabled(False)
    try:
        assert not (x * 2).requires_grad
    finally:
        torch.set_grad_enabled(True)
    assert (x * 2).requires_grad


def test_gradients_accumulate_until_they_are_zeroed():
    w = torch.tensor([1.0], requires_grad=True)
    x = torch.tensor([2.0], requires_grad=True)
    seen = []
    for _ in range(3):
        y = (w + x) * (w + 1)
        y.backward()
        seen.append(w.grad.item())
    assert seen == [5.0, 10.0, 15.0]
    w.grad.zero_()
    ((w + x) * (w + 1)).backward()
    assert w.grad.item() == 5.0


def test_a_leaf_that_records_refuses_to_change_in_place():
    w = torch.tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"a leaf Variable that requires grad .* in-place"):
        w.add_(1)
    with pytest.raises(RuntimeError, match=r"a leaf Variable that requires grad .* in-place"):
        w += 1
    assert w.tolist() == [1.0]


def test_augmented_assignment_keeps_the_object_and_addition_makes_another():
    a = torch.ones(1)
    before = id(a)
    kept = a
    a += torch.ones(1)
    assert id(a) == before
    assert kept.tolist() == [2.0]
    a = a + torch.ones(1)
    assert id(a) != before
    assert kept.tolist() == [2.0]


def test_a_second_backward_needs_retain_graph():
    w = torch.tensor([1.0], requires_grad=True)
    y = torch.exp(w * 2)
    y.backward(retain_graph=True)
    y.backward()
    assert w.grad.item() == pytest.approx(4 * math.exp(2), rel=1e-6)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_gradient_of_twice_the_squared_norm_is_four_x():
    x = torch.arange(4.0, requires_grad=True)
    y = 2 * torch.dot(x, x)
    assert y.item() == 28.0
    y.backward()
    assert x.grad.tolist() == [0.0, 4.0, 8.0, 12.0]


def test_gradient_of_a_sum_is_one_everywhere_after_zeroing():
    x = torch.arange(4.0, requires_grad=True)
    (2 * torch.dot(x, x)).backward()
    x.grad.zero_()
    x.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_detached_factor_is_a_constant():
    x = torch.arange(4.0, requires_grad=True)
    y = x * x
    u = y.detach()
    z = u * x
    z.sum().backward()
    assert x.grad.tolist() == u.tolist()
    x.grad.zero_()
    y.sum().backward()
    assert x.grad.tolist() == (2 * np.arange(4.0)).tolist()


def test_gradient_through_python_control_flow():
    def f(a):
        b = a * 2
        while b.norm() < 1000:
            b = b * 2
        return b if b.sum() > 0 else 100 * b

    for start in (0.3, -0.7):
        a = torch.tensor(start, requires_grad=True)
        d = f(a)
        d.backward()
        assert a.grad.item() == pytest.approx(d.item() / start, rel=1e-6)


def test_mean_of_three_times_shifted_square():
    x = torch.ones(2, 2, requires_grad=True)
    y = x + 2
    z = y * y * 3
    out = z.mean()
    assert out.item() == 27.0
    out.backward()
    assert x.grad.tolist() == [[4.5, 4.5], [4.5, 4.5]]


def test_vector_jacobian_product_by_an_external_gradient():
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([6.0, 4.0], requires_grad=True)
    q = 3 * a**3 - b**2
    q.backward(gradient=torch.tensor([1.0, 1.0]))
    assert a.grad.tolist() == [36.0, 81.0]
    assert b.grad.tolist() == [-12.0, -8.0]


def test_one_layer_network_with_cross_entropy():
    x = torch.ones(5)
    y = torch.zeros(3)
    w = torch.zeros(5, 3, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)
    z = torch.matmul(x, w) + b
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
    loss.backward()
    # At z = 0 the loss is log 2 and its derivative by each of three logits (σ(0) - 0)/3 = 1/6.
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), np.full(3, 1 / 6), rtol=1e-6)
    np.testing.assert_allclose(w.grad.numpy(), np.full((5, 3), 1 / 6), rtol=1e-6)


def test_hook_sees_and_replaces_a_gradient():
    v = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    handle = v.register_hook(lambda grad: grad * 2)
    v.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert v.grad.tolist() == [2.0, 4.0, 6.0]
    handle.remove()
    v.backward(torch.tensor([1.0, 1.0, 1.0]))
    assert v.grad.tolist() == [3.0, 5.0, 7.0]


def test_polynomial_fit_of_sine_by_gradient_descent():
    x = torch.linspace(-math.pi, math.pi, 200, dtype=torch.float64)
    y = torch.sin(x)
    a, b, c, d = (torch.tensor(0.0, dtype=torch.float64, requires_grad=True) for _ in range(4))
    for _ in range(2000):
        loss = (a + b * x + c * x**2 + d * x**3 - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for p in (a, b, c, d):
                p -= 1e-5 * p.grad
                p.grad = None
    grid = np.linspace(-math.pi, math.pi, 200)
    design = np.stack([grid**k for k in range(4)], 1)
    # The same iteration in NumPy.
    theta = np.zeros(4)
    for _ in range(2000):
        theta -= 1e-5 * 2 * design.T @ (design @ theta - np.sin(grid))
    np.testing.assert_allclose([p.item() for p in (a, b, c, d)], theta, rtol=1e-9, atol=1e-12)

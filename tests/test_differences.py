"""Where this project differs from torch on purpose: each difference of `docs/differences.md` proved.

The proof never asks the project about itself: gradients are compared with derivatives by hand, with
central differences of NumPy functions, with SymPy, or with counts of living objects.
"""

from __future__ import annotations

import gc
import math
import re
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import symgrad as sg

DOCUMENT = Path(__file__).parent.parent / "docs" / "differences.md"


def leaf(values, **kwargs):
    return sg.tensor(values, dtype=sg.float64, requires_grad=True, **kwargs)


def differences(function, x, step=1e-6):
    """The gradient of a NumPy function of a vector by central differences."""
    x = np.asarray(x, float)
    made = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[k] += step
        below[k] -= step
        made[k] = (function(above) - function(below)) / (2 * step)
    return made


def agrees(t, wanted, tolerance=1e-12):
    np.testing.assert_allclose(t.detach().numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_each_difference_names_a_test_that_exists():
    text = DOCUMENT.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    names = set(globals())
    assert sections
    for section in sections:
        proofs = re.findall(r"`(test_\w+)`", section)
        assert proofs, section.splitlines()[0]
        assert set(proofs) <= names


# -- values that were changed in place ---------------------------------------------------


def test_changed_operand_keeps_the_gradient_of_what_was_computed():
    for change in (
        lambda h: h.add_(1),
        lambda h: h.add_(0),
        lambda h: h.mul_(-7),
        lambda h: h.zero_(),
    ):
        x = leaf([1.0, 2.0])
        h = x * 1
        y = h * h
        change(h)
        y.sum().backward()
        agrees(x.grad, differences(lambda v: (v * v).sum(), [1.0, 2.0]), 1e-8)


def test_changed_result_keeps_the_gradient_of_what_was_computed():
    cases = [
        (sg.exp, np.exp), (sg.tanh, np.tanh), (sg.sqrt, np.sqrt),
        (sg.sigmoid, lambda v: 1 / (1 + np.exp(-v))), (sg.relu, lambda v: np.maximum(v, 0)),
        (lambda t: sg.softmax(t, 0), lambda v: np.exp(v) / np.exp(v).sum()),
    ]  # fmt: skip
    weights = np.array([2.0, -3.0])
    for ours, reference in cases:
        x = leaf([1.0, 2.0])
        y = ours(x)
        y.mul_(sg.tensor(weights))
        y.sum().backward()

        def product(v, reference=reference):
            return (reference(v) * weights).sum()

        agrees(x.grad, differences(product, [1.0, 2.0]), 1e-8)


def test_changed_input_keeps_the_gradient_of_what_was_computed():
    cases = [
        (sg.sin, np.sin), (sg.log, np.log), (lambda t: t**2, np.square), (lambda t: t * t, np.square),
    ]  # fmt: skip
    for ours, reference in cases:
        x = leaf([1.0, 2.0])
        h = x * 1
        y = ours(h)
        h.mul_(2)
        y.sum().backward()
        agrees(x.grad, differences(lambda v, f=reference: f(v).sum(), [1.0, 2.0]), 1e-8)


def test_changed_constant_factor_keeps_the_gradient_of_what_was_computed():
    x = leaf([1.0])
    c = sg.ones(1, dtype=sg.float64)
    y = x * c
    c.add_(1)
    y.sum().backward()
    agrees(x.grad, [1.0])


def test_change_between_two_passes_leaves_the_second_right():
    x = leaf([1.0])
    h = x * 1
    y = (h * h).sum()
    y.backward(retain_graph=True)
    h.add_(1)
    y.backward()
    agrees(x.grad, [4.0])


def test_change_through_a_view_keeps_the_gradient_of_what_was_computed():
    x = leaf([1.0, 2.0])
    h = x * 1
    y = h * h
    h[0].add_(1)
    y.sum().backward()
    agrees(x.grad, [2.0, 4.0])
    x = leaf([1.0, 2.0])
    h = x * 1
    y = h[1] * h[1]
    h[0].zero_()
    y.backward()
    agrees(x.grad, [0.0, 4.0])


def test_change_through_data_keeps_the_gradient_of_what_was_computed():
    x = leaf([1.0, 2.0])
    h = x * 1
    y = h * h
    h.data[0] = 100.0
    y.sum().backward()
    agrees(x.grad, [2.0, 4.0])
    x = leaf([1.0, 2.0])
    y = x.exp()
    version = y._version
    y.data.fill_(7.0)
    assert y._version == version
    y.sum().backward()
    agrees(x.grad, np.exp([1.0, 2.0]))


def test_change_through_detach_keeps_the_gradient_of_what_was_computed():
    x = leaf([1.0, 2.0])
    y = x.exp()
    y.detach().zero_()
    assert y.tolist() == [0.0, 0.0]
    y.sum().backward()
    agrees(x.grad, np.exp([1.0, 2.0]))


def test_weight_update_between_two_passes_leaves_the_second_right():
    w, x = leaf([1.0]), leaf([2.0])
    y = (w * x).sum()
    y.backward(retain_graph=True)
    with sg.no_grad():
        w -= 0.1 * w.grad
    x.grad = None
    y.backward()
    agrees(x.grad, [1.0])
    agrees(w, [0.8])


def test_chain_of_changes_has_its_gradient():
    x = leaf([1.0])
    (x * 1).exp_().add_(1).sum().backward()
    agrees(x.grad, [math.e])
    x = leaf([3.0])
    h = x * 1
    h.mul_(h)
    h.sum().backward()
    agrees(x.grad, [6.0])


def test_saved_tensor_of_a_function_is_as_it_was_saved():
    class Square(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = leaf([2.0])
    h = x * 1
    y = Square.apply(h)
    h.add_(1)
    y.sum().backward()
    agrees(x.grad, [4.0])


def test_anomaly_mode_has_no_changed_value_to_complain_about():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with sg.autograd.detect_anomaly():
            x = leaf([1.0])
            h = x * 1
            y = h * h
            h.add_(1)
            y.sum().backward()
    agrees(x.grad, [2.0])


def test_inference_tensor_may_be_a_factor():
    with sg.inference_mode():
        t = sg.tensor([3.0, 5.0], dtype=sg.float64)
    x = leaf([1.0, 2.0])
    (x * t).sum().backward()
    agrees(x.grad, [3.0, 5.0])
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        t.add_(1)


# -- derivatives -------------------------------------------------------------------------


def test_recorded_gradient_leaves_no_cycle():
    def once():
        x = leaf([0.3, 0.4])
        sg.tanh(x).sum().backward(create_graph=True)
        return weakref.ref(x)

    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gone = [once() for _ in range(5)]
        assert all(r() is None for r in gone)
    finally:
        gc.enable()


def test_heaviside_is_flat_and_passes_its_value_at_zero():
    points, value, h = np.array([-1.0, 0.0, 2.0]), 0.3, 1e-6
    x, v = leaf(points), leaf(value)
    sg.heaviside(x, v).sum().backward()
    agrees(x.grad, [0.0, 0.0, 0.0])
    slope = (np.heaviside(points, value + h) - np.heaviside(points, value - h)).sum() / (2 * h)
    assert v.grad.item() == pytest.approx(slope, rel=1e-9)


def test_clamp_has_derivative_zero_at_its_bounds():
    x = leaf([0.0, 1.0, -1.0, 2.0, 0.5])
    x.clamp(0, 1).sum().backward()
    one_sided = [
        [(np.clip(v + h, 0, 1) - np.clip(v, 0, 1)) / h for h in (1e-6, -1e-6)] for v in (0.0, 1.0)
    ]
    # At a bound every number between the one-sided derivatives is a subgradient; 0 is the smallest.
    assert [min(abs(d) for d in sides) for sides in one_sided] == [0.0, 0.0]
    agrees(x.grad, [0.0, 0.0, 0.0, 0.0, 1.0])
    x, low = leaf([0.0, 1.0, -1.0]), leaf([0.0, 0.0, 0.0])
    sg.clamp(x, min=low).sum().backward()
    agrees(x.grad, [0.0, 1.0, 0.0])


def test_logsumexp_of_nothing_has_derivative_zero():
    x = leaf([-math.inf, -math.inf])
    x.logsumexp(0).backward()
    # The value stays -inf for every finite shift of its arguments, so nothing changes it.
    assert np.logaddexp(-np.inf + 1.0, -np.inf) == -np.inf
    agrees(x.grad, [0.0, 0.0])


def test_branch_not_taken_has_no_derivative():
    x = leaf([0.0, 4.0])
    sg.where(x > 0, x.sqrt(), sg.zeros_like(x)).sum().backward()
    agrees(x.grad, [0.0, 0.25])


def test_hypot_has_its_smallest_subgradient_at_zero():
    a, c = leaf([0.0]), leaf([0.0])
    sg.hypot(a, c).sum().backward()
    # The subgradients of a norm at 0 are the unit ball, whose smallest element is 0.
    agrees(a.grad, [0.0])
    agrees(c.grad, [0.0])


def test_determinant_of_a_singular_matrix_has_the_adjugate_as_derivative():
    matrix = [[1.0, 2.0], [2.0, 4.0]]
    x = leaf(matrix)
    sg.linalg.det(x).backward()
    agrees(x.grad, [[4.0, -2.0], [-2.0, 1.0]])
    agrees(x.grad, differences(np.linalg.det, matrix), 1e-8)


def test_function_of_a_matrix_with_equal_eigenvalues_has_its_derivative():
    weights = np.array([[1.0, 2.0], [3.0, 5.0]])

    def exponential(a):
        return (scipy.linalg.expm((a + a.T) / 2) * weights).sum()

    x = leaf([[1.0, 0.0], [0.0, 1.0]])
    values, vectors = sg.linalg.eigh((x + x.mT) / 2)
    made = (vectors * values.exp()) @ vectors.mT
    (made * sg.tensor(weights)).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()
    agrees(x.grad, differences(exponential, np.eye(2)), 1e-7)

"""Functions with a derivative of the user's own, against derivatives by hand."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest

import symgrad as sg
from symgrad.autograd import Function
from symgrad.autograd.function import once_differentiable


def leaf(values):
    return sg.tensor(values, dtype=sg.float64, requires_grad=True)


def agrees(t, wanted):
    np.testing.assert_allclose(t.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)


class Cube(Function):
    """x**3, which saves the intermediate x**2."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        return 3 * square * g


class CubeByAttribute(Function):
    """x**3, which keeps x**2 on the context."""

    @staticmethod
    def forward(ctx, x):
        ctx.square = x * x
        return ctx.square * x

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.square * g


class ProductAndSum(Function):
    """x*y and x+y in one call, with a word between."""

    calls = 0

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, "word", x + y

    @staticmethod
    def backward(ctx, product, word, total):
        ProductAndSum.calls += 1
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


class CubeInSteps(Function):
    """x**3 with a context set up apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x * x * t


@pytest.mark.parametrize("function", [Cube, CubeByAttribute, CubeInSteps])
def test_derivatives_of_three_orders(function):
    point = np.array([0.5, -2.0, 3.0])
    x = leaf(point)
    y = function.apply(x)
    agrees(y, point**3)
    for wanted in (3 * point**2, 6 * point, np.full(3, 6.0)):
        (y,) = sg.autograd.grad(y.sum(), x, create_graph=True)
        agrees(y, wanted)


def test_second_derivative_through_a_saved_intermediate_and_a_square():
    x = leaf(2.0)
    (first,) = sg.autograd.grad(Cube.apply(x) ** 2, x, create_graph=True)
    agrees(first, 6 * 2.0**5)
    agrees(sg.autograd.grad(first, x)[0], 30 * 2.0**4)


def test_several_results_come_to_backward_together():
    x, y = leaf([2.0, 3.0]), leaf([5.0, 7.0])
    product, word, total = ProductAndSum.apply(x, y)
    assert word == "word"
    ProductAndSum.calls = 0
    (product * 10 + total).sum().backward()
    assert ProductAndSum.calls == 1
    agrees(x.grad, 10 * y.detach().numpy() + 1)
    agrees(y.grad, 10 * x.detach().numpy() + 1)
    assert product.grad_fn is total.grad_fn
    assert (product.output_nr, total.output_nr) == (0, 1)


def test_one_of_several_results():
    x, y = leaf([2.0]), leaf([5.0])
    product, _, _ = ProductAndSum.apply(x, y)
    product.backward()
    agrees(x.grad, [5.0])
    agrees(y.grad, [2.0])


def test_missing_cotangents_come_as_none_on_request():
    seen = []

    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            seen.append((a is None, b is None))
            return 3 * b

    x = leaf([1.0])
    Twice.apply(x)[1].backward()
    assert seen == [(True, False)]
    agrees(x.grad, [3.0])


def test_names_and_context_are_seen_from_the_graph():
    x = leaf(2.0)
    y = CubeByAttribute.apply(x)
    assert type(y.grad_fn).__name__ == "CubeByAttributeBackward"
    assert y.grad_fn.next_functions[0][0].variable is x
    agrees(y.grad_fn.square, 4.0)


def test_inside_a_compiled_function():
    def f(x):
        return (Cube.apply(x) ** 2).sum()

    compiled = sg.compile(f)
    for point in ([2.0, 3.0], [1.0, -1.0]):
        x = leaf(point)
        v = np.array(point)
        (first,) = sg.autograd.grad(compiled(x), x, create_graph=True)
        agrees(first, 6 * v**5)
        agrees(sg.autograd.grad(first.sum(), x)[0], 30 * v**4)


def test_several_results_inside_a_compiled_function():
    compiled = sg.compile(lambda x, y: ProductAndSum.apply(x, y)[::2])
    for k in (1.0, 2.0):
        x, y = leaf([2.0 * k]), leaf([5.0])
        product, total = compiled(x, y)
        agrees(product, [10.0 * k])
        (product * 3 + total).sum().backward()
        agrees(x.grad, [16.0])
        agrees(y.grad, [6.0 * k + 1])


def test_derivative_inside_a_compiled_function():
    def gradient(x):
        return sg.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)[0]

    compiled = sg.compile(gradient)
    x = leaf([2.0, 3.0])
    made = compiled(x)
    agrees(made, [12.0, 27.0])
    agrees(sg.autograd.grad(made.sum(), x)[0], [12.0, 18.0])


def test_under_transforms_of_functions():
    v = sg.tensor([1.0, 2.0, 3.0], dtype=sg.float64)
    agrees(sg.func.vmap(sg.func.grad(CubeInSteps.apply))(v), [3.0, 12.0, 27.0])
    agrees(sg.func.jacrev(CubeInSteps.apply)(v), np.diag([3.0, 12.0, 27.0]))
    _, moved = sg.func.jvp(CubeInSteps.apply, (v,), (sg.ones_like(v),))
    agrees(moved, [3.0, 12.0, 27.0])
    with pytest.raises(RuntimeError, match="setup_context"):
        sg.func.grad(Cube.apply)(v[0])


def test_numpy_inside_forward():
    class Arctangent(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return sg.from_numpy(np.arctan((x * 2).numpy()))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 / (1 + 4 * x * x)

    x = leaf([0.3, -1.0])
    y = Arctangent.apply(x)
    agrees(y, np.arctan([0.6, -2.0]))
    y.sum().backward()
    agrees(x.grad, [2 / 1.36, 2 / 5.0])


def test_change_in_place():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.mul_(2)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = leaf([3.0, 4.0])
    h = x * 1
    assert Double.apply(h) is h
    agrees(h, [6.0, 8.0])
    (h * h).sum().backward()
    agrees(x.grad, [24.0, 32.0])


def test_derivative_that_may_be_taken_once():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = leaf(3.0)
    (g,) = sg.autograd.grad(Square.apply(x), x, leaf(1.0), create_graph=True)
    agrees(g, 6.0)
    with pytest.raises(RuntimeError, match="trying to differentiate twice"):
        g.backward()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: (g, g), r"incorrect number of gradients \(expected 1, got 2\)"),
        (lambda g: 5, r"expected Variable or None \(got int\)"),
        (lambda g: sg.ones(3), r"got \[3\] but expected shape compatible with \[2\]"),
    ],
)
def test_what_backward_must_return(returned, message):
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return returned(g)

    with pytest.raises(RuntimeError, match=message):
        Same.apply(leaf([1.0, 2.0])).sum().backward()


def test_graph_of_a_call_goes_by_reference_counting():
    class Thing:
        pass

    gone = []

    class Holding(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.thing = Thing()
            gone.append(weakref.ref(ctx.thing))
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    gc.collect()
    gc.disable()
    try:
        y = Holding.apply(leaf(1.0)) * 3
        assert gone[0]() is not None
        del y
        assert gone[0]() is None
    finally:
        gc.enable()


def test_straight_through_estimator():
    class Round(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf([0.4, 1.6])
    (Round.apply(x) ** 2).sum().backward()
    agrees(x.grad, [0.0, 4.0])


def test_reversed_gradient_in_the_middle_of_a_graph():
    class Reverse(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.scale = scale
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.scale * g, None

    x = leaf(0.5)
    Reverse.apply(x.sin(), 2.0).exp().backward()
    agrees(x.grad, -2 * math.exp(math.sin(0.5)) * math.cos(0.5))

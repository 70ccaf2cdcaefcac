"""gradcheck and gradgradcheck find wrong derivatives and pass right ones."""

from __future__ import annotations

import warnings

import pytest

import symgrad as sg
from symgrad.autograd import Function, gradcheck, gradgradcheck
from symgrad.autograd.gradcheck import GradcheckError


def leaf(*values):
    return sg.tensor(list(values), dtype=sg.float64, requires_grad=True)


def made(forward, backward):
    """A Function of one argument from its value and its derivative."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return backward(x, g)

    return Made.apply


def noisy(x, g):
    return g * (sg.cos(x) + 1e-6 * sg.rand_like(x))


def summed(x, g):
    return g.sum() * sg.cos(x)


FIRST = {
    "scale": (sg.sin, lambda x, g: 1.01 * g * sg.cos(x)),
    "zero": (sg.sin, lambda x, g: g * 0),
    "none": (sg.sin, lambda x, g: None),
    "sign": (sg.sin, lambda x, g: -g * sg.cos(x)),
    "wrong function": (sg.sin, lambda x, g: g * sg.sin(x)),
    "missing term": (lambda x: x * x.sin(), lambda x, g: g * x * x.cos()),
    "cotangent dropped": (sg.sin, lambda x, g: sg.cos(x)),
    "cotangent squared": (sg.sin, lambda x, g: g * g * sg.cos(x) * 2),
    "shifted": (sg.sin, lambda x, g: g * sg.cos(x) + 0.01),
    "mixed elements": (sg.sin, lambda x, g: g.flip(0) * sg.cos(x)),
    "summed": (sg.sin, summed),
    "not reentrant": (sg.sin, noisy),
    "wrong branch": (sg.abs, lambda x, g: g),
    "power": (lambda x: x**3, lambda x, g: 2 * x**2 * g),
    "sum of elements": (lambda x: x.sum() * x, lambda x, g: g * x.sum()),
    "reduction": (lambda x: (x * x).sum(), lambda x, g: g * x),
    "softmax": (lambda x: sg.softmax(x, 0), lambda x, g: g * sg.softmax(x, 0)),
}

SECOND = {
    "detached factor": (lambda x: x**3, lambda x, g: 3 * g * x.detach() ** 2),
    "constant for a function": (
        sg.sin,
        lambda x, g: g * sg.tensor(sg.cos(x).tolist(), dtype=sg.float64),
    ),
    "cotangent detached": (lambda x: x**3, lambda x, g: 3 * g.detach() * x**2),
    "half detached": (lambda x: x**4, lambda x, g: 4 * g * x * x.detach() ** 2),
}


@pytest.mark.parametrize("fault", FIRST)
@pytest.mark.parametrize("fast", [False, True])
def test_first_derivative_that_is_wrong_is_found(fault, fast):
    f = made(*FIRST[fault])
    with pytest.raises(GradcheckError):
        gradcheck(f, (leaf(0.3, -1.1, 0.8),), fast_mode=fast)
    assert gradcheck(f, (leaf(0.3, -1.1, 0.8),), fast_mode=fast, raise_exception=False) is False


@pytest.mark.parametrize("fault", SECOND)
def test_second_derivative_that_is_wrong_is_found(fault):
    f = made(*SECOND[fault])
    assert gradcheck(f, (leaf(0.3, -1.1),))
    with pytest.raises(GradcheckError):
        gradgradcheck(f, (leaf(0.3, -1.1),))


RIGHT = [
    (sg.sin, (leaf(0.3, -1.1),)),
    (lambda x, y: (x * y, x.exp() + y), (leaf(0.3, -1.1), leaf(2.0, 0.5))),
    (lambda a: a.reshape(2, 2) @ a.reshape(2, 2).T, (leaf(1.0, 2.0, 3.0, 5.0),)),
    (lambda x, k: x**k, (leaf(0.3, 1.1), 3)),
    (lambda x: x.logsumexp(0), (leaf(0.3, -1.1, 4.0),)),
    (lambda x: (x * 2, x.long()), (leaf(1.5),)),
]


@pytest.mark.parametrize("case", range(len(RIGHT)))
def test_right_derivatives_pass(case):
    function, inputs = RIGHT[case]
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs)


def test_message_names_output_and_input():
    f = made(sg.sin, lambda x, g: g)
    with pytest.raises(GradcheckError, match="output 1 with respect to input 1"):
        gradcheck(lambda x, y: (x * y, x * 0 + f(y)), (leaf(0.3), leaf(0.7)))


def test_single_precision_is_warned_of():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gradcheck(lambda x: x * 1, (sg.ones(1, requires_grad=True),), raise_exception=False)
    assert any("not a double precision floating point" in str(w.message) for w in seen)

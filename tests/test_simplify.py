"""Accuracy rules, each at the point where the naive form breaks."""

import math

import mpmath
import numpy as np
import pytest

import symgrad as sg
from symgrad import simplify

LOG_SIGMOID = (lambda x: sg.log(sg.sigmoid(x)), lambda x: -mpmath.log1p(mpmath.exp(-x)))
SOFTPLUS = (lambda x: sg.log(1 + sg.exp(x)), lambda x: mpmath.log1p(mpmath.exp(x)))
SOFTPLUS_LOG1P = (lambda x: sg.log1p(sg.exp(x)), lambda x: mpmath.log1p(mpmath.exp(x)))
ROWS = {"log_sigmoid": LOG_SIGMOID, "log_1_exp": SOFTPLUS, "log1p_exp": SOFTPLUS_LOG1P}


@pytest.fixture
def rules_off():
    simplify.set_enabled(False)
    yield
    simplify.set_enabled(True)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("point", [-800.0, -40.0, -1.5, 0.0, 2.0, 40.0, 800.0])
def test_value_and_slope_hold_in_both_tails(name, point):
    function, truth = ROWS[name]
    x = sg.tensor(point, dtype=sg.float64, requires_grad=True)
    y = function(x)
    (slope,) = sg.autograd.grad(y, x)
    with mpmath.workdps(60):
        want = float(truth(mpmath.mpf(point)))
        want_slope = float(mpmath.diff(truth, mpmath.mpf(point)))
    assert y.item() == pytest.approx(want, rel=4e-16, abs=5e-324)
    assert slope.item() == pytest.approx(want_slope, rel=1e-14, abs=1e-320)


@pytest.mark.parametrize("keepdim", [False, True])
def test_log_of_sum_of_exp_neither_overflows_nor_underflows(keepdim):
    values = np.array([[800.0, 801.0, -5.0], [-900.0, -901.0, -902.0]])
    x = sg.tensor(values, requires_grad=True)
    y = sg.log(sg.exp(x).sum(1, keepdim=keepdim))
    want = [float(mpmath.log(sum(mpmath.exp(mpmath.mpf(v)) for v in row))) for row in values]
    np.testing.assert_allclose(y.detach().numpy().ravel(), want, rtol=1e-15)
    (g,) = sg.autograd.grad(y.sum(), x)
    peak = values.max(1, keepdims=True)
    softmax = np.exp(values - peak) / np.exp(values - peak).sum(1, keepdims=True)
    np.testing.assert_allclose(g.numpy(), softmax, rtol=1e-13)


def test_looking_at_the_sigmoid_does_not_change_its_logarithm():
    x = sg.tensor([-800.0, 3.0], dtype=sg.float64)
    s = sg.sigmoid(x)
    before = sg.log(s).tolist()
    assert s.tolist()[0] == 0.0
    assert sg.log(s).tolist() == before
    with sg.no_grad():
        s = sg.sigmoid(x)
        s.tolist()
        assert sg.log(s).tolist() == before


@pytest.mark.usefixtures("rules_off")
def test_one_switch_turns_the_rules_off():
    x = sg.tensor([-800.0, 800.0], dtype=sg.float64)
    assert sg.log(sg.sigmoid(x)).tolist()[0] == -math.inf
    assert sg.log1p(sg.exp(x)).tolist()[1] == math.inf
    assert sg.log(sg.exp(x).sum()).item() == math.inf


def test_a_shift_written_by_hand_is_left_alone():
    x = sg.tensor([1.0, 2.0, 3.0], dtype=sg.float64)
    peak = x.max()
    y = sg.log(sg.exp(x - peak).sum()) + peak
    assert y.item() == pytest.approx(math.log(math.exp(1) + math.exp(2) + math.exp(3)), rel=1e-15)


MOVES = {
    "row": lambda s: s[0],
    "reshape": lambda s: s.reshape(2),
    "column of the transpose": lambda s: s.T[:, 0],
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("look", [False, True])
def test_log_of_a_moved_softmax_keeps_its_tail(move, look):
    x = sg.tensor([[0.0, 800.0]], dtype=sg.float64, requires_grad=True)
    s = MOVES[move](sg.softmax(x, 1))
    if look:
        assert s.tolist() == [0.0, 1.0]
    y = sg.log(s)
    assert y.tolist() == [-800.0, 0.0]
    (g,) = sg.autograd.grad(y[0], x)
    assert g.tolist() == [[1.0, -1.0]]

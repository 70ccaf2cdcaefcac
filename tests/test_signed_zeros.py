"""Zeros of either sign are different constants: what is compiled for one is not used for the other."""

import numpy as np
import pytest

import symgrad as sg

ONES = np.array([1.0, 2.0])
ZEROS = np.array([-0.0, -0.0])
OPS = {
    "copysign": (sg.copysign, np.copysign, ONES),
    "div": (lambda x, c: x / c, np.divide, ONES),
    "add": (lambda x, c: x + c, np.add, ZEROS),
    "mul": (lambda x, c: x * c, np.multiply, ONES),
    "where": (lambda x, c: sg.where(x < 1, c, x), lambda x, c: np.full(2, c), ZEROS),
    "full": (lambda x, c: sg.full((2,), c, dtype=sg.float64), lambda x, c: np.full(2, c), ONES),
    "masked_fill": (lambda x, c: x.masked_fill(x > 0, c), lambda x, c: np.full(2, c), ONES),
}


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("name", list(OPS))
def test_signs_of_zero_are_kept(name, zero):
    function, by_numpy, x = OPS[name]
    for c in (zero, -zero):
        with np.errstate(divide="ignore"):
            expected = by_numpy(x, c)
        compiled = sg.compile(lambda x, c=c: function(x, c))
        for found in (function(sg.tensor(x), c), compiled(sg.tensor(x))):
            found = np.asarray(found)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("zero", [0.0, -0.0, 0])
def test_padding_keeps_the_sign_of_its_zero(zero):
    pad = sg.nn.functional.pad
    x = np.array([1.0, -2.0])
    expected = np.pad(x, (1, 2), constant_values=zero)
    compiled = sg.compile(lambda x: pad(x, (1, 2), value=zero))
    for found in (pad(sg.tensor(x), (1, 2), value=zero), compiled(x)):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(np.asarray(found)), np.signbit(expected))

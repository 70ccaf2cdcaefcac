"""Constants that are equal and not the same, and NaN, which equals nothing.

Zeros of either sign are different constants: what is compiled for one is not used for the other. What
is compiled for one NaN is used for the next.
"""

import numpy as np
import pytest

import symgrad as sg
from symgrad import runtime, template
from symgrad.op import constant, interning

ONES = np.array([1.0, 2.0])
ZEROS = np.array([-0.0, -0.0])
NOTHING = np.array([np.nan, np.nan])
OPS = {
    "copysign": (sg.copysign, np.copysign, ONES),
    "div": (lambda x, c: x / c, np.divide, ONES),
    "add": (lambda x, c: x + c, np.add, ZEROS),
    "mul": (lambda x, c: x * c, np.multiply, ONES),
    "where": (lambda x, c: sg.where(x < 1, c, x), lambda x, c: np.full(2, c), ZEROS),
    "full": (lambda x, c: sg.full((2,), c, dtype=sg.float64), lambda x, c: np.full(2, c), ONES),
    "masked_fill": (lambda x, c: x.masked_fill(x > 0, c), lambda x, c: np.full(2, c), ONES),
    "nan_to_num": (sg.nan_to_num, lambda x, c: np.nan_to_num(x, nan=c), NOTHING),
    "full_like": (sg.full_like, np.full_like, ONES),
    "clamp": (lambda x, c: sg.clamp(x, max=c), np.minimum, ONES),
    "hardtanh": (
        lambda x, c: sg.nn.functional.hardtanh(x, -1.0, c), lambda x, c: np.clip(x, -1.0, c), ONES
    ),
    "leaky_relu": (
        sg.nn.functional.leaky_relu, lambda x, c: x * c, -ONES
    ),
    "threshold": (
        lambda x, c: sg.nn.functional.threshold(x, 3.0, c), lambda x, c: np.full(2, c), ONES
    ),
}  # fmt: skip


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


# Where the angle of the base is 0, the sign of the exponent's imaginary part decides that of the
# result's.
BASES = np.array([2.0 + 0.0j, 0.5 + 0.0j])


def assert_same_zeros(found, expected):
    found = np.asarray(found)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(np.signbit(found.real), np.signbit(expected.real))
    np.testing.assert_array_equal(np.signbit(found.imag), np.signbit(expected.imag))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_complex_exponents_keep_the_sign_of_their_zero(zero):
    exponents = [complex(-1.3, zero), complex(-1.3, -zero)]
    for c in exponents:
        expected = np.power(BASES, c)
        compiled = sg.compile(lambda x, c=c: x**c)
        for found in (sg.tensor(BASES) ** c, compiled(sg.tensor(BASES))):
            assert_same_zeros(found, expected)
    both = sg.compile(lambda x: tuple(x**c for c in exponents))(BASES)
    for found, c in zip(both, exponents, strict=True):
        assert_same_zeros(found, np.power(BASES, c))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_exponents_in_the_body_of_a_loop_keep_the_sign_of_their_zero(zero):
    for c in (complex(-1.3, zero), complex(-1.3, -zero)):
        _, powers = sg.scan(lambda carry, x, c=c: (carry, x**c), sg.tensor(0.0), sg.tensor(BASES))
        assert_same_zeros(powers, np.power(BASES, c))


def test_exponents_of_a_long_program_keep_the_sign_of_their_zero():
    exponents = [complex(-1.3, 0.0 if k % 3 else -0.0) for k in range(120)]

    def powers(x):
        found = []
        for c in exponents:
            x = x + 1.0
            found.append(x**c)
        return sg.stack(found)

    expected = np.stack([np.power(BASES + (k + 1), c) for k, c in enumerate(exponents)])
    assert_same_zeros(sg.compile(powers)(BASES), expected)


def test_an_exponent_is_found_among_nodes_made_by_its_sign_and_kind():
    numbers = [0.0, -0.0, float("nan")]
    with interning():
        nodes = [constant(c, sg.float64, fixed=True) for c in numbers]
        again = [constant(float(repr(c)), sg.float64, fixed=True) for c in numbers]
        kinds = [constant(1, t, fixed=True) for t in (sg.float64, sg.int64, sg.bool)]
    assert len(set(map(id, nodes))) == 3
    assert all(a is b for a, b in zip(nodes, again, strict=True))
    assert [repr(n.attrs[0]) for n in kinds] == ["1.0", "1", "True"]


def test_one_program_serves_every_nan():
    x = sg.tensor(np.array([2.0, 1.0]))

    def look():
        not_a_number = float("nan")
        np.testing.assert_array_equal(np.asarray(x**not_a_number), [np.nan, 1.0])
        _, powers = sg.scan(lambda carry, x: (carry, x**not_a_number), sg.tensor(0.0), x)
        np.testing.assert_array_equal(np.asarray(powers), [np.nan, 1.0])
        filled = x.masked_fill(x > 1, not_a_number)
        np.testing.assert_array_equal(np.asarray(filled), [np.nan, 1.0])

    for _ in range(3):
        look()
    programs, templates = runtime.recipe_count(), len(template._TEMPLATES)
    for _ in range(3):
        look()
    assert runtime.recipe_count() == programs
    assert len(template._TEMPLATES) == templates

"""Python numbers beside tensors whose dtype does not hold them: wrapped as in C, or refused where stored."""

import warnings

import numpy as np
import pytest

import symgrad as sg

BYTES = np.array([1, 200], np.uint8)
SMALL = np.array([1, 100], np.int8)


@pytest.mark.parametrize(
    ("call", "reference", "data", "number"),
    [
        (lambda x, n: x * n, np.multiply, BYTES, -1),
        (lambda x, n: x + n, np.add, BYTES, 300),
        (lambda x, n: n - x, lambda x, n: n - x, SMALL, 300),
        (lambda x, n: x & n, np.bitwise_and, BYTES, -1),
        (lambda x, n: x.clone().add_(n), np.add, BYTES, -1),
        (lambda x, n: sg.where(x > 3, x, n), lambda x, n: np.where(x > 3, x, n), BYTES, -1),
        (lambda x, n: x.masked_fill(x > 3, n), lambda x, n: np.where(x > 3, n, x), BYTES, -1),
        (lambda x, n: sg.full((2,), n, dtype=x.dtype) + 0 * x, lambda x, n: n + 0 * x, BYTES, -2),
    ],
)
def test_numbers_wrap_as_in_c(call, reference, data, number):
    want = reference(data, np.array(number).astype(data.dtype))
    for found in (call(sg.tensor(data), number).numpy(), sg.compile(call)(data, number)):
        np.testing.assert_array_equal(found, want)
        assert found.dtype == data.dtype


@pytest.mark.parametrize(
    "call",
    [
        lambda: sg.tensor([300], dtype=sg.int8),
        lambda: sg.full((2,), 300, dtype=sg.int8),
        lambda: sg.tensor(SMALL).fill_(300),
        lambda: sg.tensor(SMALL).clamp(-300, 5),
        lambda: sg.tensor(SMALL).masked_fill(sg.tensor([True, False]), 300),
        lambda: sg.tensor(SMALL).__setitem__(0, 300),
        lambda: sg.tensor([1]) + 10**30,
    ],
)
def test_numbers_that_would_be_stored_wrong_are_refused(call):
    with pytest.raises(RuntimeError, match=r"cannot be converted to type int\d+ without overflow"):
        call()


def test_numbers_beyond_single_precision_are_infinite_without_a_warning():
    x = sg.tensor([1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (x + 1e300).tolist() == [np.inf, np.inf]
        assert (x < 1e300).tolist() == [True, True]
        assert sg.compile(lambda x: x - 1e300)(np.ones(1, np.float32)).tolist() == [-np.inf]


def test_bytes_are_counted():
    assert sg.bincount(sg.tensor([3, 1, 3], dtype=sg.uint8)).tolist() == [0, 1, 0, 2]
    assert sg.bincount(sg.tensor([], dtype=sg.uint8)).tolist() == []

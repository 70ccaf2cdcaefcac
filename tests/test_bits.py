"""The same program, the same bits: whole or in parts, cut anywhere, inlined, on any threads.

The samples of all ops go through `check_bits` in `test_ops`; here are larger programs, and the
second derivatives of everything, which are the largest graphs at hand.
"""

from __future__ import annotations

import numpy as np
import pytest

import symgrad as sg
from symgrad import dtypes
from symgrad.op import input_node
from symgrad.ops.arithmetic import where
from symgrad.ops.contract import matmul
from symgrad.ops.movement import flip, permute, reshape
from symgrad.ops.reduce import sum as total
from symgrad.ops.transcendental import exp, log, sin, tanh
from symgrad.testing import (
    cut_finely,
    has_derivative,
    in_little_room,
    in_segments,
    run,
    same_bits,
    subject,
    subjects,
    threaded,
)
from symgrad.testing.derivatives import Scalar, projection_at, weighted

# -- programs -------------------------------------------------------------------------------


def perceptron(x, w, v, y):
    hidden = tanh(matmul(x, w))
    return [total((matmul(hidden, v) - y) * (matmul(hidden, v) - y)), hidden]


def attention(q, k, v):
    scores = matmul(q, permute(k, (1, 0)))
    weights = exp(scores - total(scores, 1, True) / 37.0)
    return [matmul(weights / total(weights, 1, True), v)]


def pairwise(x):
    """Forces between all pairs of points: nothing of this size need be stored."""
    n = x.shape[0]
    gap = reshape(x, (n, 1, 3)) - reshape(x, (1, n, 3))
    square = total(gap * gap, 2) + 0.01
    return [total(gap / reshape(square, (n, n, 1)), 1), total(log(square))]


def recurrence(x):
    """A chain longer than a kernel may be, whose every value is wanted later."""
    made = [x]
    for step in range(60):
        made.append(sin(made[-1] * 1.1 + made[step // 2]) + made[-1] * 0.5)
    return [made[-1], total(made[-1] * made[30]), total(made[17], 0)]


def choices(x, y):
    mask = x < y
    kept = where(mask, x * y, flip(y, (0,)))
    return [kept, total(kept, 0), total(where(mask, exp(x), 0.0))]


def programs(dtype):
    rng = np.random.default_rng(11)

    def make(*shape):
        array = np.asarray(rng.uniform(0.5, 1.5, shape)).astype(dtype)
        return input_node(shape, dtypes.from_numpy(array.dtype), array, True)

    return {
        "perceptron": perceptron(make(70, 33), make(33, 20), make(20, 3), make(70, 3)),
        "attention": attention(make(37, 8), make(37, 8), make(37, 5)),
        "pairwise": pairwise(make(41, 3)),
        "recurrence": recurrence(make(5, 19)),
        "choices": choices(make(6, 401), make(6, 401)),
        "long sums": [total(make(3000, 7), 0), total(make(5, 4000) * 2.0)],
    }


NAMES = list(programs(np.float64))
by_program = pytest.mark.parametrize("name", NAMES)
by_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def agree(found, expected, what):
    for k, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(x, y), f"{what}: result {k}"


@by_dtype
@by_program
def test_inlined_maths_gives_the_bits_of_called_maths(name, dtype):
    roots = programs(dtype)[name]
    agree(run(roots, inline=True), run(roots), "inline")


@by_dtype
@by_program
def test_threads_and_chunks_do_not_change_bits(name, dtype):
    roots = programs(dtype)[name]
    expected = run(roots)
    for nanoseconds in (1.0, 700.0, 1e12):
        with cut_finely(nanoseconds):
            agree(run(roots), expected, f"chunks of {nanoseconds} ns")
            for count in (1, 2, 3):
                with threaded(count):
                    agree(run(roots), expected, f"{count} threads, chunks of {nanoseconds} ns")


@by_dtype
@by_program
def test_segments_do_not_change_bits(name, dtype):
    roots = programs(dtype)[name]
    expected = run(roots)
    for length in (1, 2, 3, 7, 20):
        with in_segments(length):
            agree(run(roots), expected, f"segments of {length}")


@by_dtype
@by_program
def test_values_computed_again_do_not_change_bits(name, dtype):
    roots = programs(dtype)[name]
    expected = run(roots)
    with in_little_room():
        agree(run(roots, small=True), expected, "little room")
        with in_segments(3), threaded(2):
            agree(run(roots, small=True), expected, "little room, short segments")


@by_dtype
@by_program
def test_results_alone_have_the_bits_of_results_together(name, dtype):
    roots = programs(dtype)[name]
    for k, (root, expected) in enumerate(zip(roots, run(roots), strict=True)):
        assert same_bits(run([root])[0], expected), k


# -- second derivatives -----------------------------------------------------------------------


def second_derivatives(subject, number):
    """The gradient of a projected gradient, with both; None if there is no such."""
    scalar = projection_at(subject, number, 0)
    if scalar is None:
        return None
    first = scalar.gradient()
    projected = weighted(first, subject.seed(number))
    if not projected.requires_grad:
        return None
    return [scalar.node, *first, *Scalar(scalar.leaves, projected, 1).gradient()]


def check_second_derivatives(subject, number):
    """Whether there are any; they have the same bits in parts."""
    roots = second_derivatives(subject, number)
    if roots is None:
        return False
    expected = run(roots)
    with in_segments(25):
        agree(run(roots), expected, "segments")
    with in_segments(6), cut_finely(), threaded(2):
        agree(run(roots), expected, "short segments, chunks, threads")
    agree(run(roots[-1:]), expected[-1:], "last one alone")
    return True


SMOOTH = [(s, k) for s in subjects() for k in range(len(s.samples)) if has_derivative(s, k)]
# The first is linear, the second a step function.
WITHOUT = {"linalg_diagonal", "linalg_matrix_rank"}
LINALG = [
    (s, k)
    for s, k in SMOOTH
    if k == 0 and (s.family == "library" or "linalg" in s.name) and s.name not in WITHOUT
]
PRODUCTS = [(subject(n), 0) for n in ("matmul", "prod", "logsumexp", "var", "cumprod", "addmm")]


def name_of(value):
    return value.name if hasattr(value, "name") else str(value)


@pytest.mark.parametrize(("subject", "number"), [*LINALG, *PRODUCTS], ids=name_of)
def test_second_derivatives_have_the_same_bits_in_parts(subject, number):
    assert check_second_derivatives(subject, number)


@pytest.mark.nightly
@pytest.mark.parametrize(("subject", "number"), SMOOTH, ids=name_of)
def test_all_second_derivatives_have_the_same_bits_in_parts(subject, number):
    check_second_derivatives(subject, number)


@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 384, 389, 1000])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_of_quotients_of_any_length(length, dtype):
    """Compiled, whole vectors go through a loop of their own that divides ahead; looked at, not."""
    rng = np.random.default_rng(length)
    x, y = (rng.uniform(0.5, 2.0, (3, length)).astype(dtype) for _ in range(2))

    def program(x, y):
        r = 1.0 / (x * x + y * y)
        q = y / (r + 1.0).sqrt()
        return (r * (r - 1.0) * q).sum(1), (r * x).amax(1), q, (1.0 / q).sum(0)

    compiled = sg.compile(program)(x, y)
    eager = program(sg.tensor(x), sg.tensor(y))
    r = 1.0 / (x.astype(np.float64) ** 2 + y.astype(np.float64) ** 2)
    q = y / np.sqrt(r + 1.0)
    expected = (r * (r - 1.0) * q).sum(1), (r * x).max(1), q, (1.0 / q).sum(0)
    tolerance = 1e-13 if dtype is np.float64 else 2e-5
    for found, looked, value in zip(compiled, eager, expected, strict=True):
        np.testing.assert_array_equal(found, looked.numpy())
        np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)

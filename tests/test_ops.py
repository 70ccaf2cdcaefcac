"""Checks generated from every op's and composite's own samples: nothing here names an op but the
tables of exceptions, each with its reason.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from scipy import special

from symgrad import dtypes
from symgrad.family import Elementwise
from symgrad.op import INPUT, REGISTRY, cast_to, input_node
from symgrad.testing import (
    along_symmetric,
    check_backward,
    check_bits,
    check_compiled,
    check_derivatives,
    check_error,
    check_special,
    check_surface,
    check_value,
    draw,
    has_derivative,
    run,
    subject,
    subjects,
)
from symgrad.testing.samples import FLOATS, identity, sample_cases
from symgrad.testing.surface import public_function

SUBJECTS = subjects()
SAMPLES = list(sample_cases())
SMOOTH = [c for c in SAMPLES if c[2] is dtypes.float64 and has_derivative(c[0], c[1])]


def main_samples():
    """Per subject the first smooth sample with elements: the one checked to order 3."""
    found = {}
    for s, number, floating in SMOOTH:
        if all(a.size for a in draw(s, number, floating).arrays):
            found.setdefault(s.name, number)
    return found


MAIN_SAMPLE = main_samples()
ELEMENTWISE = [s for s in SUBJECTS if isinstance(s.op, Elementwise)]
FLOATING = [s for s in ELEMENTWISE if s.op.accepts not in ("integer", "complex")]


def remainder(x, y):
    rest = np.fmod(x, y)
    return np.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)


def pole(v):
    return v <= 0 and v == np.floor(v)


def lgamma(x):
    def one(v):
        if not abs(v) < 1e300 or pole(v):
            return np.nan if np.isnan(v) else np.inf
        return float(mpmath.loggamma(float(v)).real)

    with mpmath.workdps(40):
        return np.vectorize(one, otypes=[float])(x)


def digamma(x):
    def one(v):
        known = np.isfinite(v) and not pole(v)
        return float(mpmath.digamma(float(v)) if known else special.digamma(v))

    with mpmath.workdps(40):
        return np.vectorize(one, otypes=[float])(x)


class Special(NamedTuple):
    """What is true of an op at special values where its NumPy reference is not."""

    reason: str
    reference: Any = None
    signs: bool = True


SPECIAL = {
    "remainder": Special("torch keeps the sign of a zero dividend, NumPy takes y's", remainder),
    "heaviside": Special(
        "torch counts NaN as not positive", lambda x, y: np.where(x == 0, y, np.float64(x > 0))
    ),
    "fmin": Special("IEEE 754 leaves the order of 0 and -0 open", signs=False),
    "fmax": Special("IEEE 754 leaves the order of 0 and -0 open", signs=False),
    "erfinv": Special(
        "odd, so -0 at -0, as torch; SciPy has 0", lambda x: np.copysign(special.erfinv(x), x)
    ),
    "lgamma": Special("SciPy is wrong at denormals, next to 1 and at -inf", lgamma),
    "digamma": Special("SciPy is inexact next to poles", digamma),
}


@pytest.mark.parametrize("sample", SAMPLES, ids=identity)
def test_value_shape_and_dtype_are_the_references(sample):
    check_value(*sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=identity)
def test_bits_do_not_depend_on_how_it_runs(sample):
    subject, number, floating = sample
    check_bits(subject, number, floating, thorough=number == 0)


@pytest.mark.nightly
@pytest.mark.parametrize("sample", SAMPLES, ids=identity)
def test_bits_do_not_depend_on_how_it_runs_thoroughly(sample):
    check_bits(*sample, thorough=True)


@pytest.mark.parametrize("sample", SMOOTH, ids=identity)
def test_derivatives_agree_with_differences_in_both_modes(sample):
    subject, number, _ = sample
    orders = 3 if MAIN_SAMPLE.get(subject.name) == number else 1
    check_derivatives(subject, number, orders)


SYMMETRIC = ["cholesky_factor", "cholesky", "linalg_cholesky", "eigh_packed"]
"""Ops whose derivative is that along symmetric matrices, so that their samples are not smooth."""


@pytest.mark.parametrize("name", SYMMETRIC)
def test_derivatives_along_symmetric_matrices_agree_with_differences(name):
    for number, case in enumerate(subject(name).samples):
        if not case.smooth:
            assert check_derivatives(along_symmetric(subject(name)), number, orders=2) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("sample", SMOOTH, ids=identity)
def test_derivatives_of_all_orders_agree_with_differences(sample):
    subject, number, _ = sample
    check_derivatives(subject, number, orders=3)


@pytest.mark.parametrize("floating", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("subject", FLOATING, ids=lambda s: s.name)
def test_special_values_are_numpys(subject, floating):
    truth = SPECIAL.get(subject.name, Special("the op's own reference"))
    check_special(subject, 0, floating, truth.reference, truth.signs)


PUBLIC = [c for c in SAMPLES if c[2] is dtypes.float64 and public_function(c[0]) is not None]


@pytest.mark.parametrize("sample", PUBLIC, ids=identity)
def test_function_method_in_place_pickle_and_copy_agree(sample):
    check_surface(*sample)


UNTRACEABLE = {
    "masked_select": "the result's shape depends on the values of a mask",
    "bincount": "the result's size depends on the largest element",
    "nonzero": "as many results as elements are not zero",
    "unique": "as many results as distinct elements",
    "unique_consecutive": "as many results as runs",
    ("index_put", 3): "a mask among the indices",
    ("repeat_interleave", 3): "counts given as a tensor decide the shape",
    ("quantile", 2): "the probability is a tensor",
    ("index_reduce", 1): "a product needs to know where positions coincide",
    ("scatter_reduce", 6): "a product needs to know where positions coincide",
    ("scatter_reduce", 7): "a product needs to know where positions coincide",
}
"""Calls whose shape or rule depends on values, so that they cannot be traced: they say so."""


def check_compiled_or_refused(subject, number, floating):
    if subject.name in UNTRACEABLE or (subject.name, number) in UNTRACEABLE:
        with pytest.raises(RuntimeError, match="traced"):
            check_compiled(subject, number, floating)
    else:
        check_compiled(subject, number, floating)


@pytest.mark.parametrize("sample", [c for c in PUBLIC if c[1] == 0], ids=identity)
def test_compiled_is_eager_to_the_bit(sample):
    check_compiled_or_refused(*sample)


@pytest.mark.nightly
@pytest.mark.parametrize("sample", [c for c in PUBLIC if c[1] > 0], ids=identity)
def test_compiled_is_eager_to_the_bit_at_every_sample(sample):
    check_compiled_or_refused(*sample)


@pytest.mark.parametrize("sample", [c for c in SMOOTH if c in PUBLIC], ids=identity)
def test_backward_gives_the_bits_of_the_pulled_back_expression(sample):
    check_backward(*sample)


ERRORS = [(s, k) for s in SUBJECTS for k in range(len(s.errors))]


@pytest.mark.parametrize(("subject", "number"), ERRORS, ids=[f"{s.name}-{k}" for s, k in ERRORS])
def test_error_samples_fail_in_these_words(subject, number):
    check_error(subject, number)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_declaration_is_complete(subject):
    assert subject.samples
    first = subject.doc.strip().splitlines()[0]
    assert len(first) >= 10
    assert first.rstrip().endswith((".", ":", ";")), f"first line is no sentence: {first!r}"


# -- promotion: the table of torch.result_type, written out ------------------------------------

INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
ORDER = ["bool", *INTEGERS, "float32", "float64"]


def promoted(a, b):
    """torch's promotion of two dimensioned operands, by name."""
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return max(a, b, key=ORDER.index)


def category(name):
    return 0 if name == "bool" else 1 if name in INTEGERS else 2


def with_lower_class(dimensioned, lower):
    """torch's promotion when `lower` is a 0-d tensor or a number: only a higher category counts."""
    return lower if category(lower) > category(dimensioned) else dimensioned


def node_of(name, shape):
    dtype = dtypes.by_name(name)
    return input_node(shape, dtype, np.ones(shape, dtype.numpy))


def is_binary(subject, *accepted):
    op = subject.op
    return op.arity == 2 and not op.conditions and not op.attributes and op.accepts in accepted


BINARY = [
    s for s in ELEMENTWISE
    if is_binary(s, "number") and type(s.op).operand_dtype is Elementwise.operand_dtype
]  # fmt: skip
EQUAL_DTYPES = {"heaviside"}
"""Ops for which torch wants operands of one dtype."""


@pytest.mark.parametrize("subject", BINARY, ids=lambda s: s.name)
def test_promotion_is_torchs(subject):
    for a, b in itertools.product(ORDER, ORDER):
        for shapes, expected in (
            (((2,), (2,)), promoted(a, b)),
            (((), ()), promoted(a, b)),
            (((2,), ()), with_lower_class(a, b)),
            (((), (2,)), with_lower_class(b, a)),
        ):
            try:
                made = subject.op(node_of(a, shapes[0]), node_of(b, shapes[1]))
            except RuntimeError as refused:
                unequal = a != b and subject.name in EQUAL_DTYPES
                assert unequal or "bool" in (a, b), refused
                continue
            operands = {x.dtype.name for x in made.args}
            assert operands == {expected}, (a, b, shapes)
            assert made.dtype.name == ("bool" if subject.op.gives == "bool" else expected)


@pytest.mark.parametrize("subject", BINARY, ids=lambda s: s.name)
def test_promotion_of_numbers_is_torchs(subject):
    for name, (number, kind) in itertools.product(
        ORDER, [(True, "bool"), (3, "int64"), (2.5, "float32")]
    ):
        try:
            made = subject.op(node_of(name, (2,)), number)
        except RuntimeError as refused:
            assert name == "bool" or kind == "bool", refused
            continue
        assert made.args[0].dtype.name == with_lower_class(name, kind), (name, number)


@pytest.mark.parametrize(
    "subject",
    [s for s in ELEMENTWISE if s.op.accepts == "float" and not s.op.attributes],
    ids=lambda s: s.name,
)
def test_integers_become_the_default_float(subject):
    for name in ("bool", *INTEGERS):
        made = subject.op(*[node_of(name, (2,))] * subject.op.arity)
        assert made.dtype is (dtypes.bool_ if subject.op.gives == "bool" else dtypes.float32)


FLOAT_ONLY = {"hypot", "logaddexp", "logaddexp2"}
"""Binary ops that refuse integers, as torch does."""


def not_zero(x, y):
    return y != 0


def inside(x, y):
    return (y >= 0) & (y < 8 * x.dtype.itemsize)


INTEGER_DOMAIN = {
    "pow": (lambda x, y: y >= 0, "NumPy refuses negative powers"),
    "floor_divide": (not_zero, "torch refuses to divide integers by zero"),
    "truncated_divide": (not_zero, "torch refuses to divide integers by zero"),
    "remainder": (not_zero, "torch refuses to divide integers by zero"),
    "fmod": (not_zero, "torch refuses to divide integers by zero"),
    "bitwise_left_shift": (inside, "shifts by the width or more are not defined"),
    "bitwise_right_shift": (inside, "shifts by the width or more are not defined"),
}
"""Where an op is defined on integers, and why not elsewhere."""


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "subject", [s for s in ELEMENTWISE if is_binary(s, "number", "integer")], ids=lambda s: s.name
)
def test_integer_values_are_numpys(subject, name):
    dtype = dtypes.by_name(name)
    info = np.iinfo(dtype.numpy)
    numbers = np.array([0, 1, 2, 3, 5, 7, info.max, info.min, info.max // 2], dtype.numpy)
    if info.min < 0:
        numbers = np.concatenate([numbers, np.array([-1, -2, -3], dtype.numpy)])
    x, y = (a.ravel() for a in np.meshgrid(numbers, numbers, indexing="ij"))
    if subject.name in INTEGER_DOMAIN:
        allowed = INTEGER_DOMAIN[subject.name][0](x, y)
        x, y = x[allowed], y[allowed]
    leaves = [input_node(a.shape, dtype, np.ascontiguousarray(a)) for a in (x, y)]
    if subject.name in FLOAT_ONLY:
        with pytest.raises(NotImplementedError, match="not implemented for"):
            subject.op(*leaves)
        return
    with np.errstate(all="ignore"):
        expected = np.asarray(subject.ref(x, y))
    (value,) = run([subject.op(*leaves)])
    np.testing.assert_array_equal(value, expected.astype(value.dtype))


@pytest.mark.parametrize("source", ORDER)
def test_conversions_are_numpys(source):
    """Numbers that the target holds, fractions towards zero; what it cannot hold is not defined."""
    numbers = [
        0,
        1,
        2,
        100,
        127,
        200,
        255,
        1000,
        40000,
        2**31 - 1,
        2**40,
        -1,
        -100,
        -1000,
        -(2**31),
    ]
    fractions = [0.5, 1.7, 99.9, -0.5, -1.7, -99.9]
    kind = dtypes.by_name(source).numpy
    if kind.kind == "f":
        x = np.array([*numbers, *fractions], kind)
    else:
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        x = np.array([n for n in numbers if low <= n <= high], kind)
    for target in dtypes.ALL:
        kept = x
        if target.category == 1:
            info = np.iinfo(target.numpy)
            inside = np.trunc(x.astype(np.float64))
            kept = x[(inside >= info.min) & (inside <= info.max)]
        leaf = input_node(kept.shape, dtypes.by_name(source), np.ascontiguousarray(kept))
        for value in (run([cast_to(leaf, target)]), run([cast_to(leaf, target)], inline=True)):
            np.testing.assert_array_equal(value[0], kept.astype(target.numpy), err_msg=target.name)


def test_every_op_of_the_registry_is_tested():
    leaves = {n for n, o in REGISTRY.items() if o.family in ("leaf", "alias")}
    assert {s.name for s in SUBJECTS} >= set(REGISTRY) - leaves
    assert INPUT.name in leaves

"""Checks generated from every op's and composite's own samples: nothing here names an op but the
tables of exceptions, each with its reason.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from symgrad import dtypes
from symgrad.op import INPUT, REGISTRY, Elementwise, input_node
from symgrad.testing import (
    check_backward,
    check_bits,
    check_compiled,
    check_derivatives,
    check_error,
    check_special,
    check_surface,
    check_value,
    has_derivative,
    run,
    subjects,
)
from symgrad.testing.samples import FLOATS, identity, sample_cases
from symgrad.testing.surface import public_function

SUBJECTS = subjects()
SAMPLES = list(sample_cases())
SMOOTH = [c for c in SAMPLES if c[2] is dtypes.float64 and has_derivative(c[0], c[1])]
ELEMENTWISE = [s for s in SUBJECTS if isinstance(s.op, Elementwise)]

SPECIAL_EXCEPTIONS: dict[str, str] = {}
"""Elementwise ops that NumPy does not define at special values, and why."""


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
    check_derivatives(subject, number, orders=3 if number == 0 else 1)


@pytest.mark.nightly
@pytest.mark.parametrize("sample", SMOOTH, ids=identity)
def test_derivatives_of_all_orders_agree_with_differences(sample):
    subject, number, _ = sample
    check_derivatives(subject, number, orders=3)


@pytest.mark.parametrize("floating", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("subject", ELEMENTWISE, ids=lambda s: s.name)
def test_special_values_are_numpys(subject, floating):
    if subject.name in SPECIAL_EXCEPTIONS:
        pytest.skip(SPECIAL_EXCEPTIONS[subject.name])
    check_special(subject, 0, floating)


PUBLIC = [c for c in SAMPLES if c[2] is dtypes.float64 and public_function(c[0]) is not None]


@pytest.mark.parametrize("sample", PUBLIC, ids=identity)
def test_function_method_in_place_pickle_and_copy_agree(sample):
    check_surface(*sample)


VALUE_SHAPED = {
    "masked_select": "the result's shape depends on the values of a mask",
    "bincount": "the result's size depends on the largest element",
}
"""Functions whose result has a shape that depends on values, so that they cannot be traced."""


@pytest.mark.parametrize("sample", [c for c in PUBLIC if c[1] == 0], ids=identity)
def test_compiled_is_eager_to_the_bit(sample):
    if sample[0].name in VALUE_SHAPED:
        with pytest.raises(RuntimeError, match="traced"):
            check_compiled(*sample)
    else:
        check_compiled(*sample)


@pytest.mark.nightly
@pytest.mark.parametrize("sample", PUBLIC, ids=identity)
def test_compiled_is_eager_to_the_bit_at_every_sample(sample):
    if sample[0].name not in VALUE_SHAPED:
        check_compiled(*sample)


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


BINARY = [
    s for s in ELEMENTWISE
    if s.op.arity == 2 and s.op.conditions == 0 and s.op.accepts == "number" and not s.op.attributes
    and type(s.op).operand_dtype is Elementwise.operand_dtype
]  # fmt: skip


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
                assert "bool" in (a, b), refused
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
    "subject", [s for s in ELEMENTWISE if s.op.accepts == "float"], ids=lambda s: s.name
)
def test_integers_become_the_default_float(subject):
    for name in ("bool", *INTEGERS):
        made = subject.op(*[node_of(name, (2,))] * subject.op.arity)
        assert made.dtype is (dtypes.bool_ if subject.op.gives == "bool" else dtypes.float32)


INTEGER_BINARY = [s for s in BINARY if s.family == "elementwise"]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("subject", INTEGER_BINARY, ids=lambda s: s.name)
def test_integer_values_are_numpys(subject, name):
    dtype = dtypes.by_name(name)
    info = np.iinfo(dtype.numpy)
    numbers = np.array([0, 1, 2, 3, 5, 7, info.max, info.min, info.max // 2], dtype.numpy)
    if info.min < 0:
        numbers = np.concatenate([numbers, np.array([-1, -2, -3], dtype.numpy)])
    x, y = (a.ravel() for a in np.meshgrid(numbers, numbers, indexing="ij"))
    if subject.name in INTEGER_DOMAIN:
        allowed = INTEGER_DOMAIN[subject.name](x, y)
        x, y = x[allowed], y[allowed]
    made = subject.op(*[input_node(a.shape, dtype, np.ascontiguousarray(a)) for a in (x, y)])
    with np.errstate(all="ignore"):
        expected = np.asarray(subject.ref(x, y))
    (value,) = run([made])
    np.testing.assert_array_equal(value, expected.astype(value.dtype))


INTEGER_DOMAIN = {
    "pow": lambda x, y: y >= 0,
}
"""Where NumPy defines an op on integers: it refuses negative powers."""


def test_every_op_of_the_registry_is_tested():
    leaves = {n for n, o in REGISTRY.items() if o.family in ("leaf", "alias")}
    assert {s.name for s in SUBJECTS} >= set(REGISTRY) - leaves
    assert INPUT.name in leaves

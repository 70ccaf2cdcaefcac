"""The tests tested: wrong derivative rules and wrong lowerings must all be caught."""

from __future__ import annotations

import pytest

from symgrad.family import Elementwise
from symgrad.testing import (
    along_symmetric,
    check_value,
    lowering_mutant,
    subjects,
    surviving_mutants,
)
from symgrad.testing.samples import FLOATS

STEP = "its derivative is 0 between the jumps, so changes of it change nothing"
UNARY = {"scaled-0", "negated-0", "dropped-0"}
BOTH = UNARY | {"scaled-1", "negated-1", "dropped-1", "exchanged"}
EQUIVALENT = {
    "add": ({"exchanged"}, "both derivatives are 1"),
    "ceil": (UNARY, STEP),
    "floor": (UNARY, STEP),
    "round": (UNARY, STEP),
    "sign": (UNARY, STEP),
    "trunc": (UNARY, STEP),
    "floor_divide": (BOTH, STEP),
    "truncated_divide": (BOTH, STEP),
    "heaviside": (UNARY | {"exchanged"}, "flat in x; away from the jump also in the values"),
    "copysign": ({"scaled-1", "negated-1", "dropped-1"}, "only the sign of y enters"),
}
"""Mutants that are no mutants: the changed rule is the right one, with the reason."""

SYMMETRIC = {"cholesky_factor", "eigh_packed"}
"""Ops whose derivative is that along symmetric matrices."""

PARTS = {"complex", "conj", "imag", "real", "view_as_complex", "view_as_real"}
"""Ops on complex numbers, whose rules `test_complex` checks by differences in both directions."""

RULED = [s for s in subjects() if s.rule not in ("", "nodiff") and s.name not in PARTS]
LOWERED = [s for s in subjects() if isinstance(s.op, Elementwise) and s.name not in PARTS]


@pytest.mark.parametrize("subject", RULED, ids=lambda s: s.name)
def test_wrong_rules_are_caught(subject):
    if subject.name in SYMMETRIC:
        subject = along_symmetric(subject)
    tried, left = surviving_mutants(subject)
    assert tried >= 3
    assert set(left) == EQUIVALENT.get(subject.name, (set(), ""))[0], (
        f"{len(left)} of {tried} wrong rules are not caught"
    )


@pytest.mark.parametrize("floating", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("subject", LOWERED, ids=lambda s: s.name)
def test_wrong_values_are_caught(subject, floating):
    wrong = lowering_mutant(subject)
    caught = 0
    for number in range(len(wrong.samples)):
        try:
            check_value(wrong, number, floating)
        except AssertionError:
            caught += 1
    assert caught

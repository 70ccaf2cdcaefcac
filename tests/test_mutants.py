"""The tests tested: wrong derivative rules and wrong lowerings must all be caught."""

from __future__ import annotations

import pytest

from symgrad import dtypes
from symgrad.op import Elementwise
from symgrad.testing import check_value, lowering_mutant, subjects, surviving_mutants
from symgrad.testing.samples import FLOATS

EQUIVALENT = {
    ("add", "exchanged"): "both derivatives are 1",
}
"""Mutants that are no mutants: the changed rule is the right one, with the reason."""

RULED = [s for s in subjects() if s.rule not in ("", "nodiff")]
LOWERED = [s for s in subjects() if isinstance(s.op, Elementwise)]


@pytest.mark.parametrize("subject", RULED, ids=lambda s: s.name)
def test_wrong_rules_are_caught(subject):
    tried, left = surviving_mutants(subject)
    assert tried >= 3
    assert set(left) == {m for name, m in EQUIVALENT if name == subject.name}, (
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

"""Wrong derivative rules and wrong lowerings, to test the tests.

`derivative_mutants` makes variants of an op whose rule is wrong in one place: an argument's
derivative scaled, negated or dropped, two arguments' derivatives exchanged. `lowering_mutant`
makes one whose value is off. A variant is an op of its own that shares all else with the
original, so nothing is patched and programs are not confused. Start at `derivative_mutants`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from symgrad import dtypes
from symgrad.expr import Expr
from symgrad.op import Op
from symgrad.ops.arithmetic import mul, neg
from symgrad.testing.derivatives import (
    Point,
    has_derivative,
    projection,
    projection_at,
    smooth_point,
)
from symgrad.testing.samples import Subject, draw

Entry = Any
Change = Callable[[Entry], Entry]
SCALE = 1.001


def _scaled(entry: Entry) -> Entry:
    if isinstance(entry, tuple):
        mask, weight = entry
        return mask, _scaled(weight)
    return mul(entry, SCALE) if isinstance(entry, Expr) else entry * SCALE


def _negated(entry: Entry) -> Entry:
    if isinstance(entry, tuple):
        mask, weight = entry
        return mask, _negated(weight)
    return neg(entry) if isinstance(entry, Expr) else -entry


def _dropped(entry: Entry) -> Entry:
    return None


def _inverted(entry: Entry) -> Entry:
    mask, weight = entry
    return ~mask, weight


CHANGES: dict[str, Change] = {"scaled": _scaled, "negated": _negated, "dropped": _dropped}


def variant(subject: Subject, **members: Any) -> Subject:
    """A subject whose op differs in these members."""
    op = subject.op
    assert op is not None
    static = {k: staticmethod(v) if callable(v) else v for k, v in members.items()}
    made: Op = type(type(op).__name__, (type(op),), static)()
    result = copy.copy(subject)
    result.op = made
    result.call = made
    return result


def _changed(subject: Subject, change: Callable[[list[Entry]], list[Entry]]) -> Subject:
    op = subject.op
    assert op is not None
    rule = getattr(op, op.rule)

    def wrong(*args: Any, **attrs: Any) -> tuple[Entry, ...]:
        return tuple(change(list(rule(*args, **attrs))))

    return variant(subject, **{op.rule: wrong})


def derivative_mutants(subject: Subject, entries: list[int]) -> Iterator[tuple[str, Subject]]:
    """Names and variants.

    Parameters
    ----------
    entries : list of int
        Arguments that have a derivative at the sample to be tested.
    """

    def at(place: int, change: Change) -> Callable[[list[Entry]], list[Entry]]:
        def changed(found: list[Entry]) -> list[Entry]:
            if found[place] is not None:
                found[place] = change(found[place])
            return found

        return changed

    changes = dict(CHANGES)
    if subject.rule == "select":
        changes["inverted"] = _inverted
    for place in entries:
        for name, change in changes.items():
            yield f"{name}-{place}", _changed(subject, at(place, change))
    if len(entries) == 2 and subject.rule in ("partials", "select"):

        def exchanged(found: list[Entry]) -> list[Entry]:
            i, j = entries
            found[i], found[j] = found[j], found[i]
            return found

        yield "exchanged", _changed(subject, exchanged)


def rule_entries(subject: Subject, number: int) -> list[int]:
    """Arguments for which the rule gives a derivative at a sample."""
    op = subject.op
    assert op is not None
    seen: set[int] = set()
    rule = getattr(op, op.rule)
    leading = 2 if op.rule == "vjp" else 1

    def watched(*args: Any, **attrs: Any) -> tuple[Entry, ...]:
        found = tuple(rule(*args, **attrs))
        for place, (entry, a) in enumerate(zip(found, args[leading:], strict=True)):
            if entry is not None and a.requires_grad:
                seen.add(place)
        return found

    drawn = draw(subject, number, dtypes.float64)
    scalar = projection(variant(subject, **{op.rule: watched}), drawn, subject.seed())
    if scalar is not None:
        scalar.gradient()
    return sorted(seen)


def surviving_mutants(subject: Subject) -> tuple[int, list[str]]:
    """How many wrong rules were tried, and which of them no sample's check of order 1 caught."""
    caught: dict[str, bool] = {}
    for number in range(len(subject.samples)):
        if not has_derivative(subject, number):
            continue
        point = smooth_point(subject, number)
        if point is None:
            continue
        for name, wrong in derivative_mutants(subject, rule_entries(subject, number)):
            if not caught.get(name):
                caught[name] = _fails(wrong, number, point)
    return len(caught), [name for name, was in caught.items() if not was]


def _fails(wrong: Subject, number: int, point: Point) -> bool:
    copy = projection_at(wrong, number, point.attempt)
    if copy is None:
        return True
    try:
        point.direction.check(copy.leaves, copy.gradient())
    except AssertionError:
        return True
    return False


def lowering_mutant(subject: Subject) -> Subject:
    """An elementwise op whose compiled value is slightly off: 1e-5 of it, 1, or the negation."""
    op = subject.op
    assert op is not None
    lower = op.lower

    def wrong(b: Any, *args: Any, **attrs: Any) -> Any:
        value = lower(b, *args, **attrs)
        if value.kind == "i1":
            return b.bit_not(value)
        if value.kind in ("float", "double"):
            return b.mul(value, b.const(1.00001, value))
        return b.add(value, b.const(1, value))

    return variant(subject, lower=wrong)

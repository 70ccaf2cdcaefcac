"""Outputs whose lanes go to lines of memory apart: what lies side by side in these lines.

Lanes of such an output would be stored one by one. Several outputs that are neighbours in memory, or
several steps along an axis whose steps are, can be transposed in registers and stored in rows
(`symgrad.codegen.transposition`). Start reading at `across` and `columns_of`.
"""

from __future__ import annotations

from symgrad.codegen.transposition import SIZES, runs
from symgrad.schedule.nest import Nest

MAX_BLOCK = 24
"""Instructions of which a kernel may hold the copies that blocks of several steps take."""

COPIES = sum(SIZES) + 2
"""How many copies those are: one for each step of a block, one alone, one with masks."""


def places_apart(nest: Nest, vector: int) -> list[int]:
    """The outputs whose lanes along an axis go to lines apart."""
    return [
        place
        for place, output in enumerate(nest.outputs)
        if not output.scattered and output.offset.coefficient(vector) not in (0, 1)
    ]


def columns_of(nest: Nest, vector: int) -> tuple[tuple[int, ...], ...]:
    """The outputs whose lanes go to lines apart, those together that are neighbours there."""
    found: list[tuple[int, ...]] = []
    places = places_apart(nest, vector)
    start = 0
    for end in range(1, len(places) + 1):
        if end < len(places):
            first, output = nest.outputs[places[start]], nest.outputs[places[end]]
            if first.target is output.target and first.offset.terms == output.offset.terms:
                continue
        group = sorted(places[start:end], key=lambda place: nest.outputs[place].offset.const)
        for run in runs([nest.outputs[place].offset.const for place in group]):
            found.append(tuple(group[k] for k in run))
        start = end
    return tuple(found)


def across(nest: Nest, vector: int) -> int:
    """An axis along which all outputs are consecutive whose lanes go to lines apart, -1 if none is."""
    apart = places_apart(nest, vector)
    if not apart or len(nest.insts) > MAX_BLOCK:
        return -1
    for axis, size in enumerate(nest.sizes):
        steps = {nest.outputs[place].offset.coefficient(axis) for place in apart}
        if axis != vector and size > 1 and steps == {1}:
            return axis
    return -1

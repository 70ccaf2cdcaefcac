"""Loops that divide: where their body is cut, so that the next vector's division begins early.

A division and all that waits for it are a long chain, and the processor does not see far enough
ahead to begin the next by itself. One structure, `Ahead`. Start reading at `cut`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from symgrad.codegen.vmath import avx512
from symgrad.schedule.nest import Inst, Nest

SLOW = 5.0
"""Cost from which an op that is no function keeps the divider busy."""

MAX_KEPT = 6
"""Values of the next vector that a loop may hold while it works on this one."""

AGAIN = 2.0
"""Cost, a load being one, up to which such a value is computed again where registers are few."""


class Ahead(NamedTuple):
    """How a loop's body is cut in two, the first part of the next vector beside the rest of this one.

    Attributes
    ----------
    early, late : list of int
        Instructions of either part, those computed twice in both; `early` begins with what stands
        outside the loop.
    kept : list of int
        Early ones that late ones or outputs need.
    """

    early: list[int]
    late: list[int]
    kept: list[int]


def cut(nest: Nest, axis: int) -> Ahead | None:
    """Where to cut the body of a loop over `axis`, if it divides: after the divisions that depend on none."""
    insts = nest.insts
    if any(inst.guard >= 0 or inst.kind == "inside" for inst in insts) or nest.dynamic:
        return None
    varies = [nest.varies(number, axis) for number in range(len(insts))]
    divides: list[bool] = []
    needed: set[int] = set()
    for number, inst in enumerate(insts):
        slow = inst.op is not None and inst.op.cost >= SLOW and varies[number]
        later = any(divides[a] for a in inst.args)
        if slow and not later:
            needed.add(number)
        divides.append(slow or later)
    for number in range(len(insts) - 1, -1, -1):
        if number in needed:
            needed.update(insts[number].args)
    early = [k for k in range(len(insts)) if k in needed or not varies[k]]
    late = {k for k in range(len(insts)) if varies[k] and k not in needed}
    used = {a for k in late for a in insts[k].args}
    used.update(k for output in nest.outputs for k in output.insts)
    kept = []
    for k in early:
        if varies[k] and k in used:
            chain = _chain(insts, k, varies)
            if avx512.enabled() or _cost_again([insts[c] for c in chain], axis) > AGAIN:
                kept.append(k)
            else:
                late.update(chain)
    if not needed or not late or len(kept) > MAX_KEPT:
        return None
    return Ahead(early, sorted(late), kept)


def _chain(insts: list[Inst], number: int, varies: list[bool]) -> set[int]:
    """The instructions of a loop that one of its values comes from, itself among them."""
    chain: set[int] = set()
    todo = [number]
    while todo:
        k = todo.pop()
        if varies[k] and k not in chain:
            chain.add(k)
            todo.extend(insts[k].args)
    return chain


def _cost_again(chain: list[Inst], axis: int) -> float:
    """The cost, in additions, of computing a chain a second time."""
    total = 0.0
    for inst in chain:
        if inst.op is not None:
            total += inst.op.cost
        else:
            apart = inst.kind == "load" and inst.offset.coefficient(axis) not in (0, 1)
            total += math.inf if apart else 1.0
    return total

"""Which terms of a formula get a name, so that it stays short however much is shared.

`lets` names a term that is used several times, or that would make a line too long: every term
is then printed once, and every line is short. Start reading there.
"""

from __future__ import annotations

from collections.abc import Iterable

from symgrad.formula.tree import Term, topological, use_counts

SHORT = 60
"""A formula of at most this many operations, written out, is printed without names."""
FEW = 4
"""A shared term gets a name from this size on."""
LONG = 40
"""Any term of more operations than this gets a name."""

ATOMS = frozenset({"number", "symbol"})


def lets(roots: list[Term], taken: Iterable[str] = ()) -> dict[Term, str]:
    """Names for intermediate terms, in the order in which to print them."""
    order = topological(roots)
    total: dict[Term, int] = {}
    for t in order:
        total[t] = min(1 + sum(total[a] for a in t.args), SHORT + 1)
    if sum(total[t] for t in roots) <= SHORT:
        return {}
    uses = use_counts(order, roots)
    used = set(taken)
    whole = set(roots)
    inline: dict[Term, int] = {}
    found: dict[Term, str] = {}
    count = 0
    for t in order:
        size = 1 + sum(inline[a] for a in t.args)
        shared = uses[t] > 1 and size >= FEW
        if t.head in ATOMS or not (shared or (size > LONG and t not in whole)):
            inline[t] = 1 if t in whole and size > LONG else size
            continue
        count += 1
        while f"t{count}" in used:
            count += 1
        found[t] = f"t{count}"
        inline[t] = 1
    return found

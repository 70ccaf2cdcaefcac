"""Results that are a rearrangement of computed elements: written where they belong.

A result ``x.permute(...).reshape(...)`` of computed elements cannot always be read element by
element: a merged axis would have to be divided into the axes it came from. The other way round
there is no such trouble: the place of an element of `x` in the result is an affine form of its own
index. So the nest runs over `x`, and nothing is stored in between. Start reading at `rearranged`.
"""

from __future__ import annotations

from typing import NamedTuple

from symgrad.op import CONSTANT
from symgrad.schedule.affine import ZERO, Affine, split_map, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import identity_index, offset_of


class Rearranged(NamedTuple):
    """What a result is made of.

    Attributes
    ----------
    source : Node
        Whose elements it has, in another order.
    offset : Affine
        The place in the result of an element of the source, in the source's axes.
    between : set of int
        Numbers of the movements on the way, the result's own included.
    """

    source: Node
    offset: Affine
    between: set[int]


def rearranged(result: Node) -> Rearranged | None:
    """How a result follows from elementwise values, where reading them would need divisions."""
    offset = offset_of(identity_index(len(result.shape)), result.shape)
    between: set[int] = set()
    node = result
    divides = False
    while node.op.family == "movement" and node.input < 0 and node.users == 1:
        forms = _forwards(node)
        if forms is None:
            break
        offset = _substituted(offset, forms)
        between.add(node.number)
        a = node.args[0]
        divides |= node.op.keeps_order and split_map(a.shape, node.shape) is None
        node = a
    computed = node.input < 0 and node.op is not CONSTANT and node.op.family == "elementwise"
    if not divides or not computed or node.users != 1 or result.size == 0:
        return None
    return Rearranged(node, offset, between)


def _forwards(node: Node) -> list[Affine] | None:
    """The index in a movement's result of an element of its argument; None if it is not affine."""
    a = node.args[0]
    if node.op.keeps_order:
        pairs = split_map(node.shape, a.shape)
        if pairs is None:
            return None
        forms = []
        for terms in pairs:
            form = ZERO
            for axis, factor in terms:
                form = form + variable(axis) * factor
            forms.append(form)
        return forms
    if not node.op.injective or node.op.shifts or node.op.bounded or node.op.pieces:
        return None
    back = node.op.index(list(identity_index(len(node.shape))), a, **node.attributes())  # type: ignore[attr-defined]
    found: dict[int, Affine] = {}
    for axis, form in enumerate(back):
        if not isinstance(form, Affine) or form.const or len(form.terms) != 1:
            return None
        (place, factor) = form.terms[0]
        if factor != 1:
            return None
        found[place] = variable(axis)
    return [found[d] for d in range(len(node.shape))] if len(found) == len(node.shape) else None


def _substituted(form: Affine, forms: list[Affine]) -> Affine:
    """A form with each of its variables replaced by a form."""
    total = Affine(form.const)
    for v, k in form.terms:
        total = total + forms[v] * k
    return total

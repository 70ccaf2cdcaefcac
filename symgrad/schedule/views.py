"""Movements of elements as strided views: what a matrix product can read where it lies.

One function, `strided_view`.
"""

from __future__ import annotations

from collections.abc import Callable

from symgrad.schedule.affine import ZERO, Affine, split_map
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import identity_index, offset_of


def strided_view(
    n: Node, loaded: Callable[[Node], bool]
) -> tuple[Node, int, tuple[int, ...]] | None:
    """A node as a strided view of one stored buffer, if its movements are affine."""
    index = identity_index(len(n.shape))
    node = n
    flat = False
    while not (node.input >= 0 or loaded(node)):
        if node.op.family != "movement" or node.op.bounded or node.op.pieces:
            return None
        a = node.args[0]
        if node.op.keeps_order:
            pairs = None if flat else split_map(a.shape, node.shape)
            if flat:
                pass
            elif pairs is None:
                index = (offset_of(index, node.shape),)
                flat = True
            else:
                forms = []
                for terms in pairs:
                    form = ZERO
                    for axis, factor in terms:
                        form = form + index[axis] * factor
                    forms.append(form)
                index = tuple(forms)
        elif flat:
            return None
        else:
            moved = node.op.index(list(index), a, **node.attributes())  # type: ignore[attr-defined]
            index = tuple(f if isinstance(f, Affine) else Affine(int(f)) for f in moved)
        node = a
    offset = index[0] if flat else offset_of(index, node.shape)
    strides = tuple(offset.coefficient(d) for d in range(len(n.shape)))
    return node, offset.const, strides

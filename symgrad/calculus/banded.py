"""Jacobians that are a few diagonals: derivatives along them, zeros elsewhere.

Where every element k of a value depends only on elements k + d of a vector, for few offsets d,
the Jacobian is one vector of derivatives per offset. Elementwise ops work on each of them as
forward mode does; movements that shift change d. Nothing else is computed, so that a chain's
Hessian costs its diagonals and a fill with zeros, which are strong: they hold whatever is undefined
elsewhere. Start reading at `banded_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symgrad.calculus.forward import tangent_of
from symgrad.expr import Expr, ancestors
from symgrad.op import interning
from symgrad.ops.diagonals import from_diagonals
from symgrad.ops.movement import full, narrow_step

SMALLEST = 16
"""Elements of a vector from which structure is looked for."""

MOST = 9
"""Diagonals, at most."""

Band = dict[int, Expr]
"""By offset d, the derivatives of each element k with respect to element k + d."""


def banded_columns(outputs: Sequence[Expr], source: Expr) -> list[Expr | None] | None:
    """Jacobians of vectors with respect to a vector.

    Parameters
    ----------
    outputs : sequence of Expr
    source : Expr

    Returns
    -------
    list of Expr or None, or None
        Of shape ``output.shape + source.shape``; None where the output does not depend on it. None
        as a whole if some value on the way is not a vector or depends on many elements.
    """
    if source.ndim != 1 or source.size < SMALLEST:
        return None
    bands: dict[int, Band] = {id(source): {0: full(1.0, source.shape, source.dtype)}}
    nodes = ancestors(outputs, lambda n: id(n) not in bands and n.op.family != "leaf")
    most = min(MOST, source.size // 4)
    with interning(nodes):
        for node in nodes:
            if id(node) in bands or not node.op.differentiable or node.dtype.category < 2:
                continue
            parts = [bands.get(id(a)) for a in node.args]
            if all(p is None for p in parts):
                continue
            made = _through(node, parts)
            if made is None or len(made) > most:
                return None
            if made:
                bands[id(node)] = made
        return [_matrix(y, bands[id(y)], source) if id(y) in bands else None for y in outputs]


def _through(node: Expr, parts: Sequence[Band | None]) -> Band | None:
    """The band of a node from those of its arguments; None if there is none."""
    if node.ndim != 1 or node.size < SMALLEST // 2 or node.dtype.is_complex:
        return None
    if any(p is not None and a.ndim != 1 for a, p in zip(node.args, parts, strict=True)):
        return None
    if node.op.family == "elementwise":
        if any(
            p is not None and a.shape != node.shape for a, p in zip(node.args, parts, strict=True)
        ):
            return None
        return _along(node, parts, {d for p in parts if p is not None for d in p}, 0)
    if node.op.family != "movement" or node.op.pieces:
        return None
    (a,) = node.args
    places = node.op.index([np.arange(node.size)], a, **node.attributes())  # type: ignore[attr-defined]
    if len(places) != 1:
        return None
    shifts = np.unique(np.asarray(places[0]) - np.arange(node.size))
    (band,) = parts
    assert band is not None
    return _along(node, parts, set(band), int(shifts[0])) if len(shifts) == 1 else None


def _along(node: Expr, parts: Sequence[Band | None], offsets: set[int], shift: int) -> Band:
    """Forward mode for each offset by itself."""
    made: Band = {}
    for d in sorted(offsets):
        tangent = tangent_of(node, [None if p is None else p.get(d) for p in parts])
        if tangent is not None:
            made[d + shift] = tangent
    return made


def _matrix(y: Expr, band: Band, source: Expr) -> Expr:
    """The diagonals in zeros."""
    rows, columns = y.size, source.size
    diagonals = []
    offsets = []
    for d, values in sorted(band.items()):
        start, stop = max(0, -d), min(rows, columns - d)
        if start < stop:
            part = narrow_step(values, starts=(start,), steps=(1,), counts=(stop - start,))
            diagonals.append(part)
            offsets.append(d)
    if not diagonals:
        return full(0.0, (rows, columns), y.dtype)  # type: ignore[no-any-return]
    return from_diagonals(*diagonals, size=(rows, columns), offsets=tuple(offsets))  # type: ignore[no-any-return]

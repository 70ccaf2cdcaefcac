"""A cotangent under construction: the sum of what the users of a node pass back.

Slices of one array (`unbind`, square brackets, `split`) pass back zeros of the whole shape with a
slab filled (`embed`). Slabs at the same place are added as they are, and those that lie side by side
are joined in the end, so that each costs its own elements only. The zeros that a slab meets in the
plain sum are structural ones: nothing is lost but the sign of -0.0 + 0.0.

One structure, `Cotangent`, which takes the place of the first part in a table when a second one comes.
Start reading at `put`, then `Cotangent.add`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from symgrad.dtypes import bool_
from symgrad.expr import Expr
from symgrad.ops.arithmetic import add, keep
from symgrad.ops.movement import embed, full, join_axis

Plus = Callable[[Expr, Expr], Expr]


def summed(x: Expr, y: Expr) -> Expr:
    """x + y, with a selection that both share kept outermost."""
    if x.op is keep and y.op is keep and x.args[0] is y.args[0]:
        return keep(x.args[0], summed(x.args[1], y.args[1]))  # type: ignore[no-any-return]
    return add(x, y)  # type: ignore[no-any-return]


Held = dict[int, "Expr | Cotangent"]
"""The cotangents on their way, by ``id`` of their node."""


def put(held: Held, key: int, part: Expr, plus: Plus = summed) -> None:
    """Add a part to what a table holds for a node, whose ``id`` is the key."""
    before = held.get(key)
    if before is None:
        held[key] = part
    elif isinstance(before, Cotangent):
        before.add(part)
    elif _slab(part) is None and _slab(before) is None:
        held[key] = plus(before, part)
    else:
        made = held[key] = Cotangent(plus)
        made.add(before)
        made.add(part)


def taken(held: Held, key: int) -> Expr | None:
    """Take out of a table what it holds for a node."""
    found = held.pop(key, None)
    return found.total() if isinstance(found, Cotangent) else found


class _Slab(NamedTuple):
    """Where a part fills [start, end) of one axis and all of the others."""

    axis: int
    start: int
    end: int


class Cotangent:
    """The sum of some parts of one shape and dtype, added in the order in which they come."""

    def __init__(self, plus: Plus) -> None:
        self._plus = plus
        self._whole: Expr | None = None
        self._slabs: dict[_Slab, Expr] = {}
        self._shape: tuple[int, ...] = ()

    def add(self, part: Expr) -> None:
        """Take in a part."""
        self._shape = part.shape
        slab = _slab(part)
        if slab is None:
            self._whole = part if self._whole is None else self._plus(self._whole, part)
            return
        inner = _filling(part)
        before = self._slabs.get(slab)
        self._slabs[slab] = inner if before is None else self._plus(before, inner)

    def total(self) -> Expr:
        """The sum of all parts."""
        result = self._whole
        waiting = sorted(self._slabs, key=lambda s: (s.axis, s.end, s.start))
        while waiting:
            row = _disjoint(waiting)
            term = self._joined(row)
            result = term if result is None else self._plus(result, term)
            waiting = [slab for slab in waiting if slab not in row]
        assert result is not None
        return result

    def _joined(self, row: list[_Slab]) -> Expr:
        """The slabs of a row, with zeros where there is none; selections stay outermost."""
        inners = [self._slabs[slab] for slab in row]
        if len(row) == 1:
            return self._placed(row[0], inners[0])
        if not all(inner.op is keep for inner in inners):
            return self._filled(row, inners, 0.0)
        conditions = self._filled(row, [inner.args[0] for inner in inners], False)
        return keep(conditions, self._filled(row, [inner.args[1] for inner in inners], 0.0))  # type: ignore[no-any-return]

    def _placed(self, slab: _Slab, inner: Expr) -> Expr:
        """One slab in zeros of the whole shape."""
        if inner.op is keep:
            condition, value = inner.args
            return keep(self._placed(slab, condition), self._placed(slab, value))  # type: ignore[no-any-return]
        starts = tuple(slab.start if d == slab.axis else 0 for d in range(len(self._shape)))
        steps = (1,) * len(self._shape)
        return embed(inner, size=self._shape, starts=starts, steps=steps)  # type: ignore[no-any-return]

    def _filled(self, row: list[_Slab], inners: list[Expr], missing: float | bool) -> Expr:
        """Arrays in order along the axis, with a constant in the gaps."""
        axis = row[0].axis
        dtype = bool_ if missing is False else inners[0].dtype
        pieces: list[Expr] = []
        at = 0
        ends = [(slab.start, slab.end) for slab in row]
        for (start, end), inner in zip(
            [*ends, (self._shape[axis], 0)], [*inners, None], strict=True
        ):
            if start > at:
                gap = (*self._shape[:axis], start - at, *self._shape[axis + 1 :])
                pieces.append(full(missing, gap, dtype))
            if inner is not None:
                pieces.append(inner)
            at = end
        return join_axis(*pieces, dim=axis)  # type: ignore[no-any-return]


def _slab(part: Expr) -> _Slab | None:
    """The place of a part that is zero elsewhere, if it is one slab."""
    inner = part
    if part.op is keep:
        condition, inner = part.args
        if condition.op is not embed or condition.attrs != inner.attrs:
            return None
    if inner.op is not embed:
        return None
    size, starts, steps = inner.attrs
    (filling,) = inner.args
    axes = [d for d, n in enumerate(filling.shape) if n != size[d]]
    if len(axes) != 1 or any(step != 1 for step in steps) or not filling.size:
        return None
    axis = axes[0]
    return _Slab(axis, starts[axis], starts[axis] + filling.shape[axis])


def _filling(part: Expr) -> Expr:
    """What fills the slab of a part."""
    if part.op is keep:
        condition, inner = part.args
        return keep(condition.args[0], inner.args[0])  # type: ignore[no-any-return]
    return part.args[0]


def _disjoint(slabs: list[_Slab]) -> list[_Slab]:
    """Slabs of one axis that do not overlap, in order along it."""
    row: list[_Slab] = []
    for slab in slabs:
        if not row or (slab.axis == row[0].axis and slab.start >= row[-1].end):
            row.append(slab)
    return row

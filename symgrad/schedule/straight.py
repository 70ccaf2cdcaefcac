"""Straight-line code: many tiny nests of a program joined into one without loops.

A program of scalars and short vectors is cut by `symgrad.schedule.program` into dozens of nests of
a few instructions: values that several of them use go through memory, and each is launched by
itself. Here nests without axes, and nests over one short axis of the same size, which may be
reduced, are joined as far as their order allows. What is then used inside one piece only loses its
buffer. A program that is a single nest over so few elements is written out too, as loops, masks and
the tree of a sum would take a good part of its call.

One structure, `Straight`, a step that produces all items of the nests it replaces. Start reading
at `join_short`.
"""

from __future__ import annotations

from heapq import heappop, heappush

from symgrad.schedule.canonical import Node
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.nest import Item, Nest, NestBuilder
from symgrad.schedule.program import SEGMENT, has_buffer, is_strided_embedding
from symgrad.schedule.steps import Loops, Product, Schedule, Step, Stream

LONGEST = 32
"""Elements of a vector that is kept in registers, at most."""

ALONE = 16
"""Elements of a nest that is written out as the only one of its program, at most."""

AHEAD = 256
"""How many steps ahead companions are looked for: work grows with the length of a program alone."""

MAX_INSTS = 2 * SEGMENT
"""Instructions of one piece, at most: code for a value at several places is written out."""


class Straight(Loops):
    """Tiny nests as one piece of straight-line code; an axis, if there is one, is a vector.

    Attributes
    ----------
    inside : set of int
        Numbers of nodes that have a value here and no buffer.
    """

    def __init__(self, members: list[Loops], inside: set[int]) -> None:
        items = [item for step in members for item in step.items]
        kept = [item for item in items if item.target.number not in inside]
        # The nest has the axes of its first item.
        kept.sort(key=lambda item: -len(item.domain))
        super().__init__(kept, members[0].loaded, members[0].segment)
        self.inside = inside
        self._nest: Nest | None = None

    def part(self, items: list[Item]) -> Loops:
        """Straight-line code for some of the items only."""
        made = super().part(items)
        assert isinstance(made, Straight)
        made._nest = None
        return made

    def _built(self) -> Nest:
        """The code in index form, marked as straight; made once, as joining asks for its length."""
        if self._nest is None:
            own = {item.target.number for item in self.items} | self.inside
            builder = NestBuilder(lambda n: n.number not in own and self.loaded(n))
            self._nest = builder.build(self.items)
            self._nest.straight = True
        return self._nest

    def __repr__(self) -> str:
        return super().__repr__().replace("loops", "straight", 1)


class _Step:
    """A step with what it reads and writes.

    Attributes
    ----------
    size : int
        Of the axis of a nest that may be joined, 1 without one; 0 for other steps.
    reads, writes : set of int
        Numbers of buffers.
    apart : set of int
        Buffers that it reads otherwise than element by element at its own place: what makes them
        has to be finished before.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.size = 0
        self.reads: set[int] = set()
        self.apart: set[int] = set()
        if isinstance(step, Loops):
            self.writes = {item.target.number for item in step.items}
            positioned = self._walk(step)
            if _may_join(step) and not positioned:
                self.size = max((item.domain[0] for item in step.items if item.domain), default=1)
            return
        if isinstance(step, Stream):
            raise TypeError("steps are joined before streams are made of them")
        operands = [o[0] for o in step.operands] if isinstance(step, Product) else step.operands
        targets = step.targets if isinstance(step, Iteration) else [step.target]
        self.reads = {n.number for n in operands}
        self.writes = {n.number for n in targets}

    def _walk(self, step: Loops) -> bool:
        """Find what a nest reads; gives whether it reads at positions that are values."""
        positioned = False
        stack: list[tuple[Node, bool]] = []
        for item in step.items:
            moved = item.target.op.family not in ("elementwise", "movement")
            stack.extend((n, moved) for n, _ in item.values)
            stack.extend((n, True) for n, _, _ in item.positions)
        seen = set(stack)
        loaded = step.loaded
        while stack:
            n, moved = stack.pop()
            if n.number not in self.writes and (n.input >= 0 or loaded(n)):
                self.reads.add(n.number)
                if moved or has_buffer(n):
                    self.apart.add(n.number)
                continue
            family = n.op.family
            positioned |= family == "index"
            moved = moved or (family != "elementwise" and _moves(n))
            for a in n.args:
                found = (a, moved)
                if found not in seen:
                    seen.add(found)
                    stack.append(found)
        return positioned


def _moves(n: Node) -> bool:
    """Whether a node, not elementwise, has other elements than its argument or another order."""
    if n.op.family != "movement" or n.op.bounded:
        return True
    (a,) = n.args[:1]
    if a.size == 1 or n.op.keeps_order:
        return False
    return n.op.shifts or a.size != n.size or sum(s != 1 for s in a.shape) > 1


def _is_tiny(item: Item) -> bool:
    plain = not item.cumulative and not item.positions
    short = len(item.domain) <= 1 and all(s <= LONGEST for s in item.domain)
    plain = plain and (item.axis < 0 or item.domain[item.axis] > 1)
    filled = item.target.op.gaps or is_strided_embedding(item.target)
    return plain and short and not item.target.op.writes and not filled


def join_short(schedule: Schedule, wanted: set[int]) -> None:
    """Join tiny nests of a schedule, in place.

    Parameters
    ----------
    schedule : Schedule
    wanted : set of int
        Numbers of nodes that need their buffers whatever uses them.
    """
    alone = len(schedule.steps) == 1
    fewest = 1 if alone else 2
    if sum(_may_join(step) for step in schedule.steps) < fewest:
        return
    steps = [_Step(step) for step in schedule.steps]
    groups = _groups(steps)
    readers: dict[int, set[int]] = {}
    writers: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        for place in group:
            for n in steps[place].reads:
                readers.setdefault(n, set()).add(number)
            for n in steps[place].writes:
                writers.setdefault(n, set()).add(number)
    made: list[Step] = []
    dropped: set[int] = set()
    for number, group in enumerate(groups):
        if len(group) == 1 and not (alone and 1 < steps[group[0]].size <= ALONE):
            made.append(steps[group[0]].step)
            continue
        own = {n for p in group for n in steps[p].writes}
        inside = {
            n for n in own if n not in wanted and readers.get(n, set()) | writers[n] == {number}
        }
        members = [s for s in (steps[p].step for p in group) if isinstance(s, Loops)]
        joined = Straight(members, inside)
        if len(joined.build().insts) > MAX_INSTS:
            made.extend(members)
            continue
        dropped |= inside
        made.append(joined)
    schedule.steps = made
    schedule.stored = [n for n in schedule.stored if n.number not in dropped]


def _may_join(step: Step) -> bool:
    return isinstance(step, Loops) and all(_is_tiny(item) for item in step.items)


def _groups(steps: list[_Step]) -> list[list[int]]:
    """Steps in a new order, those to be joined together.

    Other steps run as soon as they can, so that they part as few joined ones as possible.
    """
    after = _predecessors(steps)
    users: list[list[int]] = [[] for _ in steps]
    for place, before in enumerate(after):
        for p in before:
            users[p].append(place)
    missing = [len(before) for before in after]
    done: set[int] = set()
    tiny: list[int] = []
    other: list[int] = []

    def is_ready(place: int) -> None:
        heappush(other if not steps[place].size else tiny, place)

    for place, count in enumerate(missing):
        if count == 0:
            is_ready(place)
    groups: list[list[int]] = []
    while other or tiny:
        if other:
            group = [heappop(other)]
        else:
            first = heappop(tiny)
            if first in done:
                continue
            group = _companions(first, steps, after, done)
        groups.append(group)
        done.update(group)
        for place in group:
            for user in users[place]:
                missing[user] -= 1
                if missing[user] == 0 and user not in done:
                    is_ready(user)
    return groups


def _predecessors(steps: list[_Step]) -> list[set[int]]:
    """The earlier steps that each one waits for."""
    made: dict[int, list[int]] = {}
    after: list[set[int]] = []
    for place, step in enumerate(steps):
        # Steps that fill one buffer together keep their order too.
        after.append({p for n in step.reads | step.writes for p in made.get(n, ())})
        for n in step.writes:
            made.setdefault(n, []).append(place)
    return after


def _companions(first: int, steps: list[_Step], after: list[set[int]], done: set[int]) -> list[int]:
    """A step and the later ones that can run together with it."""
    chosen = [first]
    own = {first}
    start = steps[first]
    written = set(start.writes)
    size = start.size
    for place in range(first + 1, min(first + AHEAD, len(steps))):
        step = steps[place]
        if place in done or not step.size or _segment(step) != _segment(start):
            continue
        if step.size not in (1, size) and size != 1:
            continue
        if step.apart & written:
            continue
        if not all(p in done or p in own for p in after[place]):
            continue
        chosen.append(place)
        own.add(place)
        written |= step.writes
        size = max(size, step.size)
    return chosen


def _segment(step: _Step) -> int:
    return step.step.segment if isinstance(step.step, Loops) else -1

"""Which stored values to drop and compute again, so that all that are stored at one time fit in less room.

A program of works in a fixed order is walked through within a budget of bytes. Where the next
work's results do not fit, the values that cost least to compute again, per byte and per time until
somebody needs them, are dropped; a value that is needed and gone is computed again from what is
there, or from what is computed again first. The cost of a value counts its neighbours that are
gone: those it is made of, and those that are to be made of it. So what stays behind in a long
chain of values lies evenly spaced, and a chain of n values is differentiated in the room of about
sqrt(n) of them with one chain computed twice (Kirisame et al., "Dynamic Tensor Rematerialization",
ICLR 2021, where the times of need are guessed; here they are known. Compare Griewank and Walther's
revolve, and Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).

Structures:

* `Work`: what a step of a program reads and makes, and its cost.
* `Values`: how each value is made, and the order of all works.
* `Turn`: one entry of the new order: a work, or a value computed again.

Start reading at `in_least_room`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

MAX_EXTRA = 0.5
"""What is computed again costs at most this share of the whole program."""

HALVINGS = 7
"""How often the gap is halved between a budget that can be kept at this cost and one that cannot."""

COUNTED = 0.97
"""The share of the bytes at the peak that the values made out to be large have to make up."""


def burden(room: int, cost: float) -> float:
    """What a program is judged by: bytes held times the time that they are held."""
    return room * cost


class Work(NamedTuple):
    """A step of a program.

    Attributes
    ----------
    reads, writes : set of int
        Numbers of stored values. One that several works write is whole after the last of them, and
        read by others only then.
    cost : float
    heirs : mapping of int to sequence of int
        Results that may take the place of an operand of their size, if nobody needs that later.
    """

    reads: AbstractSet[int]
    writes: AbstractSet[int]
    cost: float
    heirs: Mapping[int, Sequence[int]] = {}


class Turn(NamedTuple):
    """An entry of an order: the work at a place, or a value (-1: none) that is computed again."""

    place: int
    value: int = -1


class Values:
    """The stored values of a program.

    Parameters
    ----------
    works : sequence of Work
    sizes : mapping of int to int
        Bytes by number of a value. Others in `works` need no room.
    makers : mapping of int to Work
        How a value alone is computed again; those left out stay until nobody needs them.
    dropped : mapping of int to int
        Values to be dropped in any case, over each time of so many works without use.
    """

    def __init__(
        self,
        works: Sequence[Work],
        sizes: Mapping[int, int],
        makers: Mapping[int, Work],
        dropped: Mapping[int, int],
    ) -> None:
        self.works = works
        self.sizes = sizes
        self.makers = makers
        self.dropped = dropped
        self.uses: dict[int, list[int]] = {}
        self.whole: dict[int, int] = {}
        for place, work in enumerate(works):
            for number in work.reads | work.writes:
                self.uses.setdefault(number, []).append(place)
            for number in work.writes:
                self.whole[number] = place
        self.parents = {number: maker.reads & self.whole.keys() for number, maker in makers.items()}
        self.children: dict[int, list[int]] = {}
        for number, parents in self.parents.items():
            for parent in parents:
                self.children.setdefault(parent, []).append(number)

    @property
    def cost(self) -> float:
        """Of the whole program as it is."""
        return sum(work.cost for work in self.works)

    def next_use(self, number: int, place: int) -> float:
        """The first work after a place that reads or writes a value."""
        uses = self.uses[number]
        following = bisect_right(uses, place)
        return uses[following] if following < len(uses) else inf

    def work_of(self, turn: Turn) -> Work:
        """What a turn does."""
        return self.works[turn.place] if turn.value < 0 else self.makers[turn.value]

    def room(self, turns: Sequence[Turn]) -> list[int]:
        """Bytes of the values that are stored at each turn of an order, from first to last use."""
        spans: list[_Span] = []
        current: dict[int, _Span] = {}
        inherited: list[tuple[int, _Span, _Span]] = []
        for at, turn in enumerate(turns):
            work = self.work_of(turn)
            old = {n: current[n] for olds in work.heirs.values() for n in olds if n in current}
            for number in work.reads | work.writes:
                if number not in current or number == turn.value:
                    # From here on it is another copy that is used.
                    current[number] = _Span(at, at, self.sizes.get(number, 0))
                    spans.append(current[number])
                    inherited += [
                        (at, current[number], old[n])
                        for n in work.heirs.get(number, ())
                        if n in old
                    ]
                current[number].last = at
        placed: set[int] = set()
        taken: set[int] = set()
        change = [0] * (len(turns) + 1)
        for at, new, before in inherited:
            if before.last == at and id(new) not in placed and id(before) not in taken:
                placed.add(id(new))
                taken.add(id(before))
                change[at] -= before.size
                change[at + 1] += before.size
        for span in spans:
            change[span.first] += span.size
            change[span.last + 1] -= span.size
        total = 0
        found = []
        for step in change[:-1]:
            total += step
            found.append(total)
        return found


@dataclass
class _Span:
    """The turns from the first to the last use of one copy of a value."""

    first: int
    last: int
    size: int


class _Walk:
    """One way through the works of a program.

    Attributes
    ----------
    turns : list of Turn
    extra : float
        The cost of what was computed again.
    """

    def __init__(self, values: Values, counted: AbstractSet[int], budget: float) -> None:
        self.values = values
        self.turns: list[Turn] = []
        self.extra = 0.0
        self._counted = counted
        self._budget = budget
        self._place = 0
        self._stored: set[int] = set()
        self._gone: set[int] = set()
        # The next work that uses each value, and that which needs it, to make again what is gone.
        self._next: dict[int, float] = {n: uses[0] for n, uses in values.uses.items()}
        self._need = dict(self._next)
        self._room = 0

    def run(self, limit: float) -> bool:
        """Walk to the end, or until what is computed again costs more than a limit."""
        values = self.values
        for place, work in enumerate(values.works):
            self._place = place
            needed = work.reads | work.writes
            if not self._fetch(needed & self._gone, needed, limit):
                return False
            made = work.writes - self._stored
            self._make_room(work, made, needed)
            self._store(made)
            self.turns.append(Turn(place))
            for number in needed:
                self._next[number] = values.next_use(number, place)
                gap = self._next[number] - place
                if values.dropped.get(number, inf) < gap < inf and self._may_go(number):
                    self._drop(number)
            self._renew(needed)
        return True

    def _may_go(self, number: int) -> bool:
        """Whether a value can be computed again from what is there."""
        return number in self.values.makers and self._cost_without(number, inf) < inf

    def _store(self, numbers: AbstractSet[int]) -> None:
        self._stored |= numbers
        for number in numbers & self._gone:
            self._gone.discard(number)
            self._renew(self.values.parents[number])
        self._room += sum(self.values.sizes.get(n, 0) for n in numbers if n in self._counted)

    def _drop(self, number: int) -> None:
        if self.values.whole[number] <= self._place:
            self._stored.discard(number)
            self._gone.add(number)
            self._renew(self.values.parents.get(number, ()))
            self._room -= self.values.sizes.get(number, 0) if number in self._counted else 0

    def _renew(self, numbers: Iterable[int]) -> None:
        """Find anew when values are needed, and those that they are made of if they are gone."""
        stack = list(numbers)
        while stack:
            number = stack.pop()
            need = self._needed(number, self._next[number], ())
            if need != self._need[number]:
                self._need[number] = need
                if number in self._gone:
                    stack.extend(self.values.parents.get(number, ()))

    def _needed(self, number: int, own: float, made: Container[int]) -> float:
        """When a value is needed that a work uses at a time; what is just made needs nothing more."""
        need = own
        for child in self.values.children.get(number, ()):
            if child in self._gone and child not in made:
                need = min(need, self._need[child])
        return need

    def _fetch(self, wanted: AbstractSet[int], needed: AbstractSet[int], limit: float) -> bool:
        """Compute again what is wanted and gone, what it is made of first."""
        stack = sorted(wanted)
        while stack:
            number = stack[-1]
            if number in self._stored:
                stack.pop()
                continue
            parents = self.values.parents[number]
            missing = parents & self._gone
            if missing:
                stack.extend(sorted(missing))
                continue
            pinned = set(needed)
            for waiting in stack[:-1]:
                if waiting in self._gone:
                    pinned |= self.values.parents[waiting]
            maker = self.values.makers[number]
            # What somebody else waits for keeps its place.
            left = [n for n in maker.heirs.get(number, ()) if n not in pinned]
            self._make_room(maker._replace(heirs={number: left}), {number}, pinned | parents)
            self._store({number})
            self.turns.append(Turn(self._place, number))
            self.extra += maker.cost
            if self.extra > limit:
                return False
            stack.pop()
        return True

    # -- what to drop -----------------------------------------------------------------

    def _make_room(self, work: Work, made: AbstractSet[int], pinned: AbstractSet[int]) -> None:
        """Drop values until those that a work makes fit, or none is left that may go."""
        sizes = self.values.sizes
        more = sum(sizes.get(n, 0) for n in made if n in self._counted)
        heirs = {n: set(olds) for n, olds in work.heirs.items() if n in made}
        while self._room + more > self._budget:
            left = {n for olds in heirs.values() for n in olds if n in self._stored}
            chosen = self._best(pinned - left, left, made)
            if chosen < 0:
                return
            self._drop(chosen)
            if chosen in left:
                # One result takes its place; the work still reads it there.
                heir = next(n for n, olds in heirs.items() if chosen in olds)
                del heirs[heir]

    def _best(
        self, pinned: AbstractSet[int], left: AbstractSet[int], made: AbstractSet[int]
    ) -> int:
        """The value that costs least to do without; -1 if there is none.

        Those in `left` are needed by the work at hand, but not behind it.
        """
        values = self.values
        free = []
        for number in self._stored & self._counted:
            if number in pinned or values.whole[number] > self._place:
                continue
            need = self._need[number]
            if number in left:
                need = self._needed(number, values.next_use(number, self._place), made)
            if need == inf:
                return number
            if number in values.makers:
                worth = values.sizes[number] * (need - self._place + 1)
                free.append((values.makers[number].cost / worth, number, worth))
        least = inf
        best = -1
        for alone, number, worth in sorted(free):
            if alone >= least:
                break
            cost = self._cost_without(number, least * worth)
            if cost < least * worth:
                least, best = cost / worth, number
        return best

    def _cost_without(self, number: int, most: float) -> float:
        """The cost of a value and its neighbours that are gone; not all of it if that is `most` or more.

        Of those that are made of it the ones count that somebody needs.
        """
        values = self.values
        total = values.makers[number].cost
        seen = {number}
        for upwards in (True, False):
            stack = [number]
            while stack and total < most:
                n = stack.pop()
                near = values.parents.get(n, ()) if upwards else values.children.get(n, ())
                for other in near:
                    if other in seen or other not in self._gone:
                        continue
                    if not upwards and self._need[other] == inf:
                        continue
                    seen.add(other)
                    if other not in values.makers:
                        return inf
                    total += values.makers[other].cost
                    stack.append(other)
        return total


def in_least_room(values: Values, shrink: bool) -> list[Turn]:
    """The works of a program in an order that needs little room, some values computed again.

    Parameters
    ----------
    values : Values
    shrink : bool
        Whether values are dropped for the sake of room; else those only that are dropped in any case.

    Returns
    -------
    list of Turn
        Every work once, in order, and between them what is computed again for the next one.
    """
    plain = _Walk(values, frozenset(), inf)
    plain.run(inf)
    room = values.room(plain.turns)
    if not shrink or not any(room):
        return plain.turns
    counted = _large(values, plain.turns, room)
    least = max((_least_room(work, values.sizes, counted) for work in values.works), default=0)
    limit = values.cost * MAX_EXTRA
    found = [_Way(max(room), 0.0, plain.turns)]

    def fits(budget: float) -> bool:
        if budget >= found[-1].room:
            return True
        walk = _Walk(values, counted, budget)
        if not walk.run(limit):
            return False
        found.append(_Way(max(values.room(walk.turns)), walk.extra, walk.turns))
        return True

    low, high = float(least), float(max(room))
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return min(found, key=lambda way: burden(way.room, values.cost + way.extra)).turns


class _Way(NamedTuple):
    """An order, the room that it needs, and the cost of what is computed again."""

    room: int
    extra: float
    turns: list[Turn]


def _least_room(work: Work, sizes: Mapping[int, int], counted: AbstractSet[int]) -> int:
    """Bytes of what a work reads and makes, at least."""
    total = sum(sizes[n] for n in (work.reads | work.writes) & counted)
    return total - sum(sizes[n] for n, olds in work.heirs.items() if olds and n in counted)


def _large(values: Values, turns: Sequence[Turn], room: Sequence[int]) -> set[int]:
    """The values that make up nearly all bytes at the peak, and others of their size."""
    at = max(range(len(room)), key=room.__getitem__)
    before: set[int] = set()
    for turn in turns[: at + 1]:
        before |= values.work_of(turn).reads | values.work_of(turn).writes
    behind: set[int] = set()
    for turn in turns[at:]:
        behind |= values.work_of(turn).reads | values.work_of(turn).writes
    live = sorted((values.sizes.get(n, 0) for n in before & behind), reverse=True)
    wanted = COUNTED * sum(live)
    threshold = 1
    for size in live:
        threshold = max(size, 1)
        wanted -= size
        if wanted <= 0:
            break
    return {n for n in values.uses if values.sizes.get(n, 0) >= threshold}

"""Python loops found in what they recorded, and rolled into loops of the graph.

A loop written in Python leaves the same nodes turn after turn. Where that goes on long enough, one
turn becomes the body of a `symgrad.ops.loop`, before anything is differentiated or compiled: what
then has to be derived, scheduled and compiled is one turn, however many there are.

Structures:

* the *tape*: the nodes behind the results in the order they were made, as numbers that are equal
  for equal kinds of node. A stretch that equals itself one period later is a candidate.
* `Stretch`: a candidate whose arguments were checked. Seen from one turn, an argument is made in
  this turn, or in the one before (then it is carried), or comes from outside: the same for all
  turns, or another one for each (a sequence).

A derivative is rolled through what is computed already, so the same program is rolled alike wherever
it runs; values that no derivative passes are taken as they are. Start reading at `rolled`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from symgrad.body import closed_body
from symgrad.calculus import batching
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, DERIVED, INPUT, REGISTRY, grad_mode, input_node
from symgrad.ops.loop import Results, loop
from symgrad.ops.movement import join_axis, reshape

LEAST_NODES = 256
"""Nodes of a stretch, from which rolling pays."""

LEAST_TURNS = 8

MOST_LOOPS = 16
"""Loops found in one graph, at most."""

LARGEST = 16
"""Elements of a node, up to which a turn may run in registers."""

PRODUCTS = 600
"""Nodes of a stretch, from which it is rolled if it has products, as in a recurrent network.

Without a loop each of them is code of its own: a hundred steps took a minute to compile. Other sums
stream along with what they are made of, which is faster than a loop.
"""

MODERATE = 1 << 15
"""Elements of a node, up to which that holds."""

LONG = 4000
"""Nodes of a stretch, from which it is rolled whatever the size of its arrays."""

MANY = 64
"""Results of a stretch that others use, at most."""

WINDOW = 12
"""Neighbouring nodes that together are told apart better than one alone."""


def rolled(roots: Sequence[Expr], kept: Collection[int] = (), pending: bool = False) -> list[Expr]:
    """`roots` with the loops behind them rolled.

    Parameters
    ----------
    roots : sequence of Expr
    kept : collection of int
        Nodes by ``id`` that have to stay themselves: derivatives are wanted at them.
    pending : bool
        Whether computed values are taken as they are: for a value, not for its derivative.

    Returns
    -------
    list of Expr
        The roots themselves where nothing was rolled.
    """
    found = list(roots)
    for _ in range(MOST_LOOPS):
        nodes = _behind(found, pending)
        tape = [n for n in nodes if _is_on_tape(n, pending)]
        if len(tape) < LEAST_NODES:
            return found
        users = [n for n in nodes if not _is_on_tape(n, pending)]
        stretch = _longest(tape, [*found, *[a for n in users for a in n.args]], kept)
        if stretch is None:
            return found
        with grad_mode(True):
            old, new = stretch.replacements()
            found = batching.replaced(found, old, new)
    return found


def whole_turns(pending: Sequence[Expr], limit: int) -> list[Expr]:
    """What the rest of a pending graph uses of whole turns of a loop at its beginning.

    Parameters
    ----------
    pending : sequence of Expr
    limit : int
        How many nodes to take at most.

    Returns
    -------
    list of Expr
        Empty where the graph does not begin with turns of a loop.
    """
    tape = sorted(pending, key=attrgetter("serial"))
    kinds = _kinds(tape)
    for period in _periods(kinds):
        for start, turns in _runs(kinds, period):
            stop = start + turns * period
            if start < 2 * period and stop > limit // 2:
                stop = start + min(turns, (limit - start) // period) * period
                early = {id(n) for n in tape[:stop]}
                used = {id(a): a for n in tape[stop:] for a in n.args if id(a) in early}
                return list(used.values())
    return []


def _behind(roots: Sequence[Expr], pending: bool) -> list[Expr]:
    """The nodes behind some roots in creation order, no further than values that are taken as they are."""
    return ancestors(roots, lambda n: bool(n.args) and _goes_on(n, pending))


def _goes_on(n: Expr, pending: bool) -> bool:
    """Whether a node is computed anew: if it has no value, or if a derivative passes it.

    Other values must be taken as they are: memory behind them may have been used for newer ones.
    """
    return n.value is None or (not pending and n.requires_grad and n.op is not INPUT)


def _is_on_tape(n: Expr, pending: bool) -> bool:
    """Whether a node is computed, or a number."""
    if n.op is CONSTANT:
        return True
    return bool(n.args) and n.op is not INPUT and _goes_on(n, pending)


def _kinds(tape: Sequence[Expr]) -> np.ndarray:
    """A number per node, equal for nodes that may stand for each other in two turns."""
    known: dict[Any, int] = {}
    found = np.empty(len(tape), np.int64)
    for place, n in enumerate(tape):
        attrs = n.attrs if n.op.stacked is None else n.attrs[1:]
        meta = n.meta
        if meta is not None:
            # Results of one call that gave several are alike in all turns unless a hook waits there.
            meta = None if meta is DERIVED else getattr(meta, "kind", None) or id(meta)
        key = (n.op, attrs, n.shape, n.dtype, n.requires_grad, len(n.args), meta)
        found[place] = known.setdefault(key, len(known))
    return found


def _periods(kinds: np.ndarray) -> list[int]:
    """Distances at which windows of nodes come again, and their multiples.

    A turn may be made of parts that look alike and differ in what they use.
    """
    count = len(kinds) - WINDOW + 1
    if count < 2:
        return []
    hashes = np.zeros(count, np.uint64)
    for k in range(WINDOW):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + kinds[k : k + count].astype(np.uint64)
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    distances = (order[1:] - order[:-1])[same]
    if not len(distances):
        return []
    values, counts = np.unique(distances, return_counts=True)
    best = np.argsort(-counts, kind="stable")[:6]
    return list(dict.fromkeys([int(values[k]) * n for n in (1, 2, 3, 4) for k in best]))


def _runs(kinds: np.ndarray, period: int) -> list[tuple[int, int]]:
    """Where the tape equals itself one period later: starts and whole numbers of turns."""
    equal = np.concatenate([[False], kinds[:-period] == kinds[period:], [False]])
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    found = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        # The first turn stays as it is: what it carries on comes from outside.
        turns = (stop - start + period) // period - 1
        if turns >= LEAST_TURNS and turns * period >= LEAST_NODES:
            found.append((start + period, turns))
    return found


def _longest(nodes: list[Expr], used: Sequence[Expr], kept: Collection[int]) -> Stretch | None:
    """The longest stretch that can be rolled; `used` are the nodes that others use."""
    kinds = _kinds(nodes)
    candidates = []
    for period in _periods(kinds):
        for start, turns in _runs(kinds, period):
            candidates.append((-turns * period, period, start, turns))
    if not candidates:
        return None
    tape = Tape(nodes)
    for _, period, start, turns in sorted(candidates):
        shift = _first_node(tape, start, period)
        if shift is None:
            continue
        # A turn that begins later may leave the last one incomplete.
        whole = turns if shift == 0 else turns - 1
        stretch = Stretch(tape, start + shift, period, whole)
        if stretch.fits(used, kept) and stretch.pays():
            return stretch
    return None


class Tape:
    """Nodes in creation order, and their arguments in arrays.

    Attributes
    ----------
    nodes : list of Expr
    place : dict of int to int
        Positions of the nodes, by ``id``.
    first : ndarray
        Where the arguments of each node begin in the other arrays.
    at : ndarray
        Positions on the tape of all arguments, -1 for those that are elsewhere.
    ids : ndarray
        Which they are.
    """

    def __init__(self, nodes: list[Expr]) -> None:
        self.nodes = nodes
        self.place = place = {id(n): k for k, n in enumerate(nodes)}
        ids = [id(a) for n in nodes for a in n.args]
        self.first = np.cumsum([0, *[len(n.args) for n in nodes]])
        self.at = np.array([place.get(k, -1) for k in ids], np.int64)
        self.ids = np.array(ids, np.uint64)


def _first_node(tape: Tape, start: int, period: int) -> int | None:
    """Where a turn begins, so that no node uses more than the turn before its own.

    The stretch starts where the tape happens to repeat itself, which need not be where the loop does.
    """
    far = []
    for k in range(period):
        node = start + period + k
        for at in tape.at[tape.first[node] : tape.first[node + 1]].tolist():
            distance = node - at
            if period < distance <= 2 * period:
                far.append((k, distance - period))
    for shift in range(period):
        if all((k - shift) % period >= beyond for k, beyond in far):
            return shift
    return None


class Stretch:
    """Equal turns on a tape.

    Attributes
    ----------
    start, period, turns : int
        The first node of the first turn, nodes per turn, and how many turns there are.
    carried : dict of int to None
        Places in a turn whose nodes the next turn uses, in order.
    sequences : dict of int to list of Expr
        Arguments from outside that change: by ``id`` of the second turn's, those of all turns.
    exits : dict of int to list of int
        Places in a turn whose nodes others use, and in which turns.
    """

    def __init__(self, tape: Tape, start: int, period: int, turns: int) -> None:
        self.tape = tape
        self.start, self.period, self.turns = start, period, turns
        self.stop = start + period * turns
        self.carried: dict[int, None] = {}
        self.sequences: dict[int, list[Expr]] = {}
        self.exits: dict[int, list[int]] = {}

    def nodes_at(self, place: int) -> list[Expr]:
        """The nodes at a place of every turn."""
        return self.tape.nodes[self.start + place : self.stop : self.period]

    def fits(self, used: Sequence[Expr], kept: Collection[int]) -> bool:
        """Whether the turns are alike in what they use, and few of their nodes are used by others."""
        place = self.tape.place
        if any(self.start <= place.get(k, -1) < self.stop for k in kept):
            return False
        if not self._are_alike():
            return False
        self._find_exits(used)
        return 0 < len(self.exits) <= MANY and bool(self.carried)

    def pays(self) -> bool:
        """Whether a loop is worth its making."""
        turn = self.tape.nodes[self.start : self.start + self.period]
        count = self.period * self.turns
        if count >= LONG or all(n.size <= LARGEST for n in turn):
            return True
        # Other tensors for each turn may have to be laid together first.
        moving = [nodes[1] for nodes in self.sequences.values()]
        return (
            count >= PRODUCTS
            and any(n.op.family == "contract" for n in turn)
            and all(n.size <= MODERATE for n in (*turn, *moving))
        )

    def _are_alike(self) -> bool:
        """Whether the turns use alike arguments; notes what is carried and what changes.

        An argument is the same in all turns, or made in each turn, or in the one before, or one of
        a sequence from outside.
        """
        first = self.tape.first
        low, high = first[self.start], first[self.stop]
        if low == high:
            return False
        # A row per turn, a column per argument of its nodes.
        at = self.tape.at[low:high].reshape(self.turns, -1)
        ids = self.tape.ids[low:high].reshape(self.turns, -1)
        inside = (at >= self.start - self.period) & (at < self.stop)
        steps = self.period * np.arange(self.turns)[:, None]
        same = (ids == ids[0]).all(0)
        moves = np.logical_and((at == at[0] + steps).all(0), inside.all(0))
        apart = np.logical_not(inside.any(0))
        steady: set[int] = set()
        for place in range(self.period):
            node = self.tape.nodes[self.start + place]
            column = int(first[self.start + place] - low)
            if node.op is CONSTANT:
                nodes = self.nodes_at(place)
                if node.attrs[0] is None and len({_bits(n) for n in nodes}) > 1:
                    self.sequences[id(nodes[1])] = nodes
                continue
            if REGISTRY.get(node.op.name) is not node.op or node.op.family == "region":
                return False
            if node.op.stacked is not None:
                nodes = self.nodes_at(place)
                if len({n.attrs for n in nodes}) > 1:
                    if not same[column] or at[0, column] >= self.start:
                        return False
                    self.sequences[id(nodes[1])] = nodes
                    continue
            for k in range(len(node.args)):
                begins = int(at[0, column + k])
                if same[column + k]:
                    if begins >= self.start:
                        return False
                    steady.add(id(node.args[k]))
                elif moves[column + k]:
                    if begins < self.start:
                        self.carried[begins - self.start + self.period] = None
                elif not apart[column + k] or not self._is_sequence(place, k):
                    return False
        return steady.isdisjoint(self.sequences)

    def _is_sequence(self, place: int, k: int) -> bool:
        """Whether an argument that comes from outside is alike in all turns."""
        args = [n.args[k] for n in self.nodes_at(place)]
        like = args[0]
        if any(a.shape != like.shape or a.dtype is not like.dtype for a in args):
            return False
        known = self.sequences.setdefault(id(args[1]), args)
        return all(a is b for a, b in zip(known, args, strict=True))

    def _find_exits(self, others: Sequence[Expr]) -> None:
        """Which nodes of the turns others use, on the tape or off it."""
        tape = self.tape
        low, high = tape.first[self.start], tape.first[self.stop]
        used = np.concatenate([tape.at[:low], tape.at[high:]]).tolist()
        used += [tape.place.get(id(n), -1) for n in others]
        for k in sorted({k for k in used if self.start <= k < self.stop}):
            turn, place = divmod(k - self.start, self.period)
            self.exits.setdefault(place, []).append(turn)

    def replacements(self) -> tuple[list[Expr], list[Expr]]:
        """The nodes that others use, and what takes their place."""
        last = self.turns - 1
        for place, turns in self.exits.items():
            if turns[-1] == last:
                # Its node of the turn before the first is a value of the right kind to begin with.
                self.carried.setdefault(place)
        rows = [p for p, turns in self.exits.items() if turns[0] != last]
        second = self.start + self.period
        carries = list(self.carried)
        tape = self.tape.nodes
        before = [tape[self.start + place] for place in carries]
        inner = {id(n) for n in tape[second : second + self.period]}
        moving = list(self.sequences.values())
        body, outside = closed_body(
            [*before, *[nodes[1] for nodes in moving]],
            [tape[second + place] for place in (*carries, *rows)],
            inner,
        )
        initial = [tape[self.start - self.period + place] for place in carries]
        stacks = [stacked(nodes) for nodes in moving]
        numbering = Results(len(carries), len(rows))

        def result(number: int) -> Expr:
            return loop(  # type: ignore[no-any-return]
                *initial,
                *stacks,
                *outside,
                body=body,
                carries=len(carries),
                sequences=len(stacks),
                length=self.turns,
                backward=False,
                result=number,
            )

        old, new = [], []
        for place, turns in self.exits.items():
            for turn in turns:
                old.append(tape[self.start + turn * self.period + place])
                if turn == last:
                    made = result(numbering.final(carries.index(place)))
                else:
                    made = batching.element(result(numbering.rows(rows.index(place))), turn)
                made.value = old[-1].value
                new.append(made)
        return old, new


def _bits(n: Expr) -> bytes:
    return bytes(np.asarray(n.value, n.dtype.numpy).tobytes())


def stacked(nodes: Sequence[Expr]) -> Expr:
    """Nodes of equal shape along a new first axis; one slice of a tensor if they are its rows."""
    first = nodes[0]
    if first.op is CONSTANT and all(n.op is CONSTANT for n in nodes):
        numbers = np.array([n.value for n in nodes], first.dtype.numpy)
        return input_node(numbers.shape, first.dtype, numbers)
    same_op = all(n.op is first.op and len(n.args) == 1 for n in nodes)
    if same_op and first.op.stacked is not None:
        if all(n.args[0] is first.args[0] for n in nodes):
            made = first.op.stacked(first.args[0], [n.attrs for n in nodes])
            if made is not None:
                return made
    elif same_op and first.op.family == "movement" and all(n.attrs == first.attrs for n in nodes):
        inner = [n.args[0] for n in nodes]
        if all(x.shape == inner[0].shape for x in inner):
            return batching.applied(len(nodes), first, [stacked(inner)])
    return join_axis(*[reshape(n, (1, *n.shape)) for n in nodes], dim=0)  # type: ignore[no-any-return]

"""The schedule: which values get a buffer, and which loop nest computes what, in what order.

Structures:

* `_Storage`: which nodes get buffers.
* `symgrad.schedule.steps`: the steps that come out, and the `Schedule` that holds them.

A value gets a buffer if it is asked for, if it is the result of a reduction, product or library
call, or if computing it again where it is used would cost more than reading it. All else is
computed inside the nests that use it. Items with the same loop axes share a nest when none
depends on another. Start reading at `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from symgrad.dtypes import int64
from symgrad.op import CONSTANT, REGISTRY
from symgrad.schedule.affine import ZERO, Affine, row_major, split_map
from symgrad.schedule.canonical import Graph, Node
from symgrad.schedule.crossing import can_share, reductions_of
from symgrad.schedule.delay import delay
from symgrad.schedule.filling import filling
from symgrad.schedule.iterate import fused
from symgrad.schedule.nest import (
    Index,
    Item,
    flat_readable,
    identity_index,
    offset_of,
)
from symgrad.schedule.rearranged import rearranged
from symgrad.schedule.steps import Loops, Product, Routine, Schedule, Step
from symgrad.schedule.views import strided_view

SEGMENT = 2048
"""Nodes of straight-line code per kernel; longer programs are cut, so that compile time stays linear."""

MAX_ITEMS = 512
"""Results per nest. Values that share a chain belong in one nest, else each would redo it."""

SHORT = 4
"""Terms of a sum that is written out, and elements of a kept axis that a reduction writes out."""

WRITTEN_OUT = 64
"""Elements of a product of short rows from which its users compute them."""

MAX_REPEATED = 4
"""At how many different indices a nest may compute the same value."""

REUSED = 24.0
"""Cost of one element, in additions, that storing a value must save where as much is read anyway."""

DEAR = 40.0
"""Cost of one element, in additions, that storing it must save where little is read instead."""


CHEAP = 8.0
"""Cost of one element, in additions, from which a buffer that is there is read instead."""


_outside = count(-1, -1)
"""Numbers of nodes that belong to no graph: negative, each used once."""


def is_routine(n: Node) -> bool:
    """Whether a node is computed by a library call on whole arrays."""
    family = n.op.family
    return family == "library" or (family == "index" and not n.op.reads and not n.op.writes)


def is_short_sum(n: Node) -> bool:
    """Whether a sum has so few terms that its users add them up in place.

    The order of the additions is that of the fixed tree, so the bits are the same. Only a last
    axis counts, which holds components; a first one holds a batch, whose size may change.
    """
    if n.op.family != "reduce" or n.op.combine != "add":  # type: ignore[attr-defined]
        return False
    shape = n.args[0].shape
    last = n.attrs[0] == len(shape) - 1 > 0
    return last and 0 < shape[-1] <= SHORT


def is_short_product(n: Node) -> bool:
    """Whether a matrix product has so few terms that its users compute its elements in place.

    To store such a result and read it again costs more than to compute it. A few elements are left
    to the kernel of products, which is there anyway.
    """
    if n.op.family != "contract" or not 0 < n.args[0].shape[2] <= SHORT:
        return False
    return min(n.shape[1:]) > 1 and n.size >= WRITTEN_OUT


def is_in_place(n: Node) -> bool:
    """Whether users may compute a node's elements themselves, one by one."""
    return n.op.family == "elementwise" or is_short_sum(n) or is_short_product(n)


def own_cost(n: Node) -> float:
    """The cost of an element, in additions, without that of the arguments."""
    if n.op.family == "elementwise":
        return n.op.cost
    if is_short_sum(n):
        return float(n.args[0].size // max(n.size, 1))
    return n.op.cost * n.args[0].shape[2] if is_short_product(n) else 0.0


def _times_repeated(shape: tuple[int, ...], wide: tuple[int, ...]) -> float:
    """How often an element is used under broadcasting, short axes apart: those are written out."""
    if math.prod(wide) <= math.prod(shape):
        # Axes may have changed places: one of size 1 is then no sign of a repetition.
        return 1.0
    times = 1.0
    extra = len(wide) - len(shape)
    for d, size in enumerate(wide):
        short = d == len(wide) - 1 and size <= SHORT
        if not short and (d < extra or shape[d - extra] == 1):
            times *= size
    return times


def is_strided_embedding(n: Node) -> bool:
    """Whether a node is zeros with elements placed apart: filled first, then written into."""
    return n.op.family == "movement" and n.op.bounded and any(s != 1 for s in n.attrs[2])


def has_buffer(n: Node) -> bool:
    """Whether a node is always stored: it is not computed element by element."""
    family = n.op.family
    if family in ("reduce", "cumulative", "contract", "library", "region"):
        return not is_short_sum(n) and not is_short_product(n)
    return n.op.pieces or (family == "index" and not n.op.reads)


def is_vector_product(n: Node) -> bool:
    """Whether a product has a single row or column and so is summed in lanes."""
    return n.op.family == "contract" and 1 in n.shape[1:]


class _Storage:
    """Decides which nodes get buffers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stored: set[int] = set()
        # Stored nodes that users compute again: in all nests, or in those of their own segment.
        self.through: set[int] = set()
        self.local: set[int] = set()
        self.segment: dict[int, int] = {}
        self.dear: set[int] = set()
        # How many stored values must be there, one after another, before a node can be computed.
        self.level: dict[int, int] = {}
        # From which level on the buffer of a node that users compute again is there to be read.
        self.at_hand: dict[int, int] = {}
        self._flat: dict[int, bool] = {}
        found = {n.number: rearranged(n) for n in graph.roots}
        self._rearranged = {number: r for number, r in found.items() if r is not None}
        self._between = {k for r in self._rearranged.values() for k in r.between}

    def items(self, n: Node) -> list[Item]:
        """What computes a stored node, without the zeros that are filled in before."""
        found = self._rearranged.get(n.number)
        if found is None:
            return _items(n)
        shape = found.source.shape
        return [Item(n, shape, ((found.source, identity_index(len(shape))),), found.offset)]

    def is_stored(self, n: Node) -> bool:
        return n.number in self.stored

    def is_loaded(self, n: Node) -> bool:
        """Stored, and read back by users rather than computed again."""
        return n.number in self.stored and n.number not in self.through

    def is_loaded_in(self, n: Node, segment: int) -> bool:
        """Whether a nest of a segment reads the node's buffer."""
        if not self.is_loaded(n):
            return False
        return n.number not in self.local or self.segment[n.number] != segment

    def reading(self, segment: int, level: int) -> Callable[[Node], bool]:
        """Whether a nest of a segment, at a level, reads a node's buffer."""

        def loaded(n: Node) -> bool:
            if n.number in self.at_hand and self.at_hand[n.number] <= level:
                return True
            return self.is_loaded_in(n, segment)

        return loaded

    def is_worth_reading(self, n: Node) -> bool:
        """Whether to read a buffer that is there costs less than to compute its values again."""
        work, read = self._work(n)
        return work >= CHEAP or (work > 0 and read >= 2 * n.size)

    def store(self, n: Node) -> None:
        """Give `n` a buffer that its users read."""
        if n.input < 0:
            self.stored.add(n.number)
            self.through.discard(n.number)
            self.local.discard(n.number)

    def decide(self) -> None:
        roots = {n.number for n in self.graph.roots}
        cost: dict[int, float] = {}
        users: dict[int, list[Node]] = {}
        computed = [n for n in self.graph.nodes if n.input < 0]
        long = len(computed) > SEGMENT
        segment = self.segment = {n.number: place // SEGMENT for place, n in enumerate(computed)}
        for n in computed:
            if has_buffer(n):
                self.store(n)
                self.dear.add(n.number)
            elif n.number in roots and n.number not in self.stored:
                self.stored.add(n.number)
                self.through.add(n.number)
            if is_strided_embedding(n):
                self.store(n)
            self._arguments(n, cost)
            if long:
                for a in n.args:
                    if (
                        a.input < 0
                        and a.op is not CONSTANT
                        and segment[a.number] != segment[n.number]
                    ):
                        if not self.is_loaded(a):
                            self.store(a)
                            self.local.add(a.number)
            times = n.args[0].size // max(n.size, 1) if is_short_sum(n) else 1
            cost[n.number] = own_cost(n) + times * sum(
                0.0 if a.input >= 0 or self.is_loaded(a) else cost[a.number] for a in n.args
            )
            for a in n.args:
                users.setdefault(a.number, []).append(n)
            self.level[n.number] = max(
                (self.level.get(a.number, 0) + self.is_loaded(a) for a in n.args), default=0
            )
        self._bound_repetition(computed, users, cost)
        for n in computed:
            if n.users > 1 and is_in_place(n):
                scopes = {self._scope(u) for u in users.get(n.number, ())}
                again = len(scopes) - 1
                if again * cost[n.number] < REUSED:
                    continue
                work, read = self._work(n)
                dear = again * work >= (REUSED if read >= n.size else DEAR)
                if dear and (long or not self._serves_one_nest(n, users)):
                    self.store(n)

    def _work(self, root: Node) -> tuple[float, int]:
        """The cost of an element of `root`, shared parts counted once, as far as it matters.

        Also how many elements there are in the buffers that it is computed from.
        """
        total = 0.0
        read = 0
        seen: set[int] = set()
        stack = [root]
        while stack and total < 4 * DEAR:
            n = stack.pop()
            if n.number in seen:
                continue
            seen.add(n.number)
            if n.input >= 0 or (n is not root and self.is_loaded(n)):
                read += n.size
                continue
            if not is_short_sum(n):
                total += own_cost(n)
            stack.extend(n.args)
        return total, read

    def _bound_repetition(
        self, computed: list[Node], users: dict[int, list[Node]], cost: dict[int, float]
    ) -> None:
        """Store what would be computed at many different indices in one nest.

        Users at the same index share a value; each user that moves elements asks for another one,
        so a tree of shifted uses would double its work at every level.
        """
        times: dict[int, int] = {}
        for n in reversed(computed):
            same, moved = 1, 0
            for u in users.get(n.number, ()):
                if u.op.shifts or u.op.family == "index":
                    moved += times[u.number]
                else:
                    same = max(same, times[u.number])
            total = same - 1 + moved if moved > 1 else max(same, moved)
            if total > MAX_REPEATED and cost[n.number] > 0 and is_in_place(n):
                self.store(n)
            times[n.number] = 1 if self.is_loaded(n) else total

    def _store_operand(self, a: Node) -> None:
        """Store a product's operand; if it is a reshaped value, that value, which others may read."""
        base = a
        while base.op.keeps_order and base.args:
            base = base.args[0]
        if base.op.family == "elementwise" or is_short_product(base):
            self.store(base)
        moved = base
        while base.op.family == "movement" and base.args:
            base = base.args[0]
        if base is not moved and self.is_stored(base):
            # A result that is asked for has a buffer anyway.
            if strided_view(a, lambda n: n is base or self.is_loaded(n)) is not None:
                self.store(base)
        if strided_view(a, self.is_loaded) is None:
            self.store(a)

    def _scope(self, user: Node) -> Any:
        """What tells apart users that cannot share a nest."""
        if user.op.family in ("reduce", "cumulative", "contract", "library", "region"):
            if not is_short_product(user):
                return user.number
        return user.shape, self.level[user.number]

    def _serves_one_nest(self, n: Node, users: dict[int, list[Node]]) -> bool:
        """Whether all that needs `n` are reductions that one nest can compute, and store it if asked for."""
        if self.is_loaded(n):
            return False
        found = reductions_of(n, users, self.is_stored, SEGMENT)
        if found and self.is_stored(n):
            found.append(n)
        items = [item for r in found for item in _items(r)]
        for item in items:
            item.drop_unit_axes()
        return len({self.level[r.number] for r in found}) == 1 and can_share(items)

    def _arguments(self, n: Node, cost: dict[int, float]) -> None:
        family = n.op.family
        if family in ("contract", "library", "region") or (family == "index" and not n.op.reads):
            if is_vector_product(n):
                # The vector meets every row of the matrix.
                vector, lines = (
                    (n.args[1], n.shape[1]) if n.shape[2] == 1 else (n.args[0], n.shape[2])
                )
                if lines >= 4 and cost.get(vector.number, 0.0) >= 4.0:
                    self._store_operand(vector)
            elif not n.op.writes:
                for a in n.args:
                    if family != "contract":
                        self.store(a)
                    elif strided_view(a, self.is_loaded) is None:
                        self._store_operand(a)
            return
        if n.number in self._between:
            return
        if n.op.keeps_order:
            a = n.args[0]
            if split_map(a.shape, n.shape) is None and not flat_readable(
                a, self.is_loaded, self._flat
            ):
                self.store(a)
                self._flat.clear()
            return
        if family == "index":
            data = n.args[0]
            inline = data.input < 0 and data.op is not CONSTANT and not self.is_loaded(data)
            # Rows found at positions lie together once the indexed axes come first.
            rows = data.size > math.prod(data.shape[: len(n.args) - 1])
            if inline and rows and n.size >= data.size:
                self.store(data)
            return
        # What is placed somewhere is used once, whatever the shapes.
        if n.op.pieces:
            return
        for a in n.args:
            if a.input >= 0 or a.op is CONSTANT or self.is_loaded(a):
                continue
            again = _times_repeated(a.shape, n.shape)
            if cost.get(a.number, 0.0) < 4.0:
                continue
            if again >= 4 or (again > 1 and (again - 1) * self._work(a)[0] >= DEAR):
                self.store(a)


def _items(n: Node) -> list[Item]:
    """The items that compute a stored node, without the zero fill of a strided embedding."""
    op = n.op
    if op.family == "reduce" and not is_short_sum(n):
        a = n.args[0]
        dim = n.attrs[0]
        index = identity_index(len(a.shape))
        if a.shape[dim] == 0:
            return [_constant_item(n, op.empty)]  # type: ignore[attr-defined]
        offset = offset_of(index[:dim] + index[dim + 1 :], n.shape)
        values = tuple((x, index) for x in n.args)
        whole = Item(n, a.shape, values, offset, dim, op.combine, op.identity)  # type: ignore[attr-defined]
        return _written_out(whole)
    if op.family == "cumulative":
        a = n.args[0]
        index = identity_index(len(a.shape))
        offset = offset_of(index, n.shape)
        return [
            Item(n, a.shape, ((a, index),), offset, n.attrs[0], op.combine, op.identity, True)  # type: ignore[attr-defined]
        ]
    if op.family == "contract" and not is_short_product(n):
        return [_vector_product(n)]
    if op.pieces:
        return _joined(n)
    if op.writes:
        return [_written(n)]
    if is_strided_embedding(n):
        a = n.args[0]
        _, starts, steps = n.attrs
        index = identity_index(len(a.shape))
        placed = tuple(f * s + b for f, s, b in zip(index, steps, starts, strict=True))
        return [Item(n, a.shape, ((a, index),), offset_of(placed, n.shape))]
    index = identity_index(len(n.shape))
    return [Item(n, n.shape, ((n, index),), offset_of(index, n.shape))]


def _written_out(item: Item) -> list[Item]:
    """One item per element of a short last axis, so that what they share is computed once."""
    last = len(item.domain) - 1
    if last < 2 or item.axis == last or not 1 < item.domain[last] <= SHORT:
        return [item]
    made = []
    for k in range(item.domain[last]):

        def moved(form: Affine, k: int = k) -> Affine:
            terms = tuple((v, c) for v, c in form.terms if v != last)
            return Affine(form.const + k * form.coefficient(last), terms)

        values = tuple((x, tuple(moved(f) for f in index)) for x, index in item.values)
        made.append(
            Item(
                item.target, item.domain[:last], values, moved(item.offset), item.axis, item.combine,
                item.identity,
            )
        )  # fmt: skip
    return made


def _written(n: Node) -> Item:
    """Values put at computed positions, in order."""
    (size,) = n.attrs
    indices = n.args[-len(size) :]
    shape = indices[0].shape
    steps = row_major(n.shape)
    if n.op.writes == "last":
        domain = shape
        number = offset_of(identity_index(len(shape)), shape)
        values: tuple[tuple[Node, Index], ...] = ((_counter(indices[0].size), (number,)),)
    else:
        domain = n.args[0].shape
        values = ((n.args[0], identity_index(len(domain))),)
    where = identity_index(len(domain))
    at = where[: len(shape)]
    positions = tuple((i, at, step) for i, step in zip(indices, steps, strict=False))
    rest = ZERO
    for form, step in zip(where[len(shape) :], steps[len(size) :], strict=True):
        rest = rest + form * step
    return Item(n, domain, values, rest, combine=n.op.writes, positions=positions)


def _counter(length: int) -> Node:
    """The numbers 0, 1, ... as a node of no graph."""
    return Node(REGISTRY["iota"], (), (length,), (length,), int64, next(_outside))


def _joined(n: Node) -> list[Item]:
    items = []
    for number, a in enumerate(n.args):
        index = identity_index(len(a.shape))
        placed = n.op.place(number, index, n.args, **n.attributes())  # type: ignore[attr-defined]
        if a.size:
            items.append(Item(n, a.shape, ((a, index),), offset_of(tuple(placed), n.shape)))
    return items


def _constant_item(n: Node, value: float) -> Item:
    node = Node(CONSTANT, (), (value,), (), n.dtype, next(_outside))
    index = identity_index(len(n.shape))
    return Item(n, n.shape, ((node, ()),), offset_of(index, n.shape))


def _vector_product(n: Node) -> Item:
    a, b = n.args
    batch, m, k = a.shape
    rows = m if n.shape[2] == 1 else n.shape[2]
    if k == 0:
        return _constant_item(n, 0.0)
    i, j, s = identity_index(3)
    left = (i, j if n.shape[2] == 1 else ZERO, s)
    right = (i, s, ZERO if n.shape[2] == 1 else j)
    offset = i * rows + j
    return Item(n, (batch, rows, k), ((a, left), (b, right)), offset, 2, "dot", -0.0)


def schedule(graph: Graph) -> Schedule:
    """Decide buffers, form nests, and put the steps in order."""
    graph.nodes, iterations = fused(graph.nodes)
    storage = _Storage(graph)
    storage.decide()
    ready: dict[int, int] = {}
    inline: dict[int, int] = {}
    levels: list[list[Step]] = []
    open_nests: dict[Any, list[tuple[int, Loops]]] = {}

    def at_level(level: int, step: Step) -> None:
        while len(levels) <= level:
            levels.append([])
        levels[level].append(step)

    def place(item: Item, level: int, segment: int) -> int:
        if 0 in item.domain:
            return level
        item.drop_unit_axes()
        key = (item.domain, item.cumulative or bool(item.positions), segment)
        found_open = open_nests.setdefault(key, [])
        for found, nest in found_open:
            if found >= level and nest.takes(item):
                nest.items.append(item)
                if len(nest.items) == MAX_ITEMS:
                    found_open.remove((found, nest))
                return found
        nest = Loops([item], storage.reading(segment, level), segment)
        found_open.append((level, nest))
        at_level(level, nest)
        return level

    for n in graph.nodes:
        if n.input >= 0 or n.op is CONSTANT:
            ready[n.number] = inline[n.number] = 0
            if n.input < 0 and storage.is_stored(n):
                place(_items(n)[0], 0, 0)
            continue
        segment = storage.segment[n.number]
        level = max(
            (
                ready[a.number]
                if a.input >= 0 or storage.is_loaded_in(a, segment)
                else inline[a.number]
                for a in n.args
            ),
            default=0,
        )
        inline[n.number] = level
        if not storage.is_stored(n):
            ready[n.number] = level
            continue
        done = level
        iteration = iterations.get(n.number)
        if iteration is not None:
            first = iteration.targets[0]
            if n is first:
                operands = iteration.operands
                done = max([inline[n.number], *[ready[a.number] for a in operands]])
                at_level(done, iteration)
            else:
                done = ready[first.number] - 1
        elif is_routine(n):
            at_level(level, Routine(n))
        elif n.op.family == "contract" and not is_vector_product(n) and not is_short_product(n):
            at_level(level, _product(n, partial(storage.is_loaded_in, segment=segment)))
        else:
            items = storage.items(n)
            if n.op.writes:
                level = place(_constant_item(n, n.op.initial), level, segment) + 1  # type: ignore[attr-defined]
            elif n.op.gaps or is_strided_embedding(n):
                filled = filling(n, items, storage.reading(segment, level), segment)
                if filled is None:
                    level = place(_constant_item(n, 0), level, segment)
                else:
                    at_level(level, filled.step)
                    items = filled.rest
                done = level
                level += 1
            for item in items:
                done = max(done, place(item, level, segment))
        ready[n.number] = done + 1
    delay(levels, lambda n: n.number in storage.through, ready)
    for n in graph.roots:
        if n.number in storage.through and storage.is_worth_reading(n):
            storage.at_hand[n.number] = ready[n.number]
    steps = [step for level in levels for step in level]
    stored = [n for n in graph.nodes if storage.is_stored(n)]
    return Schedule(graph, steps, stored, storage.dear)


def _product(n: Node, loaded: Callable[[Node], bool]) -> Product:
    operands = []
    for a in n.args:
        view = strided_view(a, loaded)
        if view is None:
            raise AssertionError(f"operand of {n!r} has no buffer")
        operands.append(view)
    return Product(n, tuple(operands), n.args[0].shape[2])

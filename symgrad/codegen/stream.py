"""Which steps run together, block by block over the rows that they share.

A program runs step after step, each over whole arrays, so what passes between them goes through
memory. Steps whose values all have the same rows (a batch, the matrices of a batch, the rows of
all of them) can run on a block of rows at a time instead: then it stays in the cache. Bits stay
the same, as blocks divide the units of the fixed tree: sums and products over the rows take up
their lanes and chains where the unit's last block left them, and all units are joined at the end.

Structures:

* `symgrad.codegen.rows`: what rows there are, and how a step goes along them.
* `Group`: tasks that run together, and what else the program does `before` and `after` them.
* `Streamed`: a group made ready to run.

Start reading at `streamed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from symgrad.codegen import pool
from symgrad.codegen.arena import arranged
from symgrad.codegen.layout import LANES, UNIT, Layout
from symgrad.codegen.rows import ROW, Cut, Fit, Task, fits_of
from symgrad.op import INPUT, REGISTRY
from symgrad.schedule.affine import Affine, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Item
from symgrad.schedule.packing import FIRST_NUMBER
from symgrad.schedule.steps import Loops, Product, Stream

COPIES = FIRST_NUMBER + (1 << 30)
PARTIALS = 1 << 42
"""Numbers of transposed operands and of partial results: beyond those of any graph."""

BLOCKS = (384, 192, 128, 96, 64, 48, 32)
"""Rows per block: divisors of a unit, whole turns of its lanes."""

SMALL_BLOCKS = (16, 8, 4, 2, 1)
"""Rows per block where they are large: matrices, say."""

CACHE_BYTES = 1 << 20
"""The part of the caches that a core has for itself."""

WORTH_BYTES = 4 * CACHE_BYTES
"""Memory traffic that a stream must save."""

STAYING_BYTES = CACHE_BYTES // 4
"""Values smaller than this stay in the cache from one step to the next."""

LARGE_BYTES = 2 * CACHE_BYTES
"""Size from which values gain by blocks of rows that are too few to be summed."""

OPERAND_COST = 0.25
"""Share of its bytes that a product's operand counts for, read from the cache beyond while it multiplies."""

CHUNKS_PER_THREAD = 2

MAX_SPLIT = 32
"""Results per nest up to which a nest is taken apart, so that some of them can join a stream."""

MAX_CUTS = 6
"""How many numbers of rows are tried."""


def _task_of(step: Loops, inline: bool) -> Task:
    return Task(step, Layout(step.build(), inline))


class Parts:
    """Nests with some of the results of others, each built once."""

    def __init__(self, inline: bool) -> None:
        self._inline = inline
        self._built: dict[tuple[int, ...], tuple[Task, Loops]] = {}

    def of(self, step: Loops, items: list[Item]) -> Task:
        key = tuple(id(item) for item in items)
        found = self._built.get(key)
        if found is None:
            part = step.part(items)
            found = self._built[key] = _task_of(part, self._inline), part
        return found[0]


class Group:
    """Tasks that run together.

    Attributes
    ----------
    cut : Cut
    members : list of (Task, Fit)
    before, after : list of Task
        What must run ahead, and behind.
    """

    def __init__(self, tasks: Sequence[Task], cut: Cut, earlier: set[int], parts: Parts) -> None:
        self.cut = cut
        self.members: list[tuple[Task, Fit]] = []
        self.before: list[Task] = []
        self.after: list[Task] = []
        self._parts = parts
        self._written = set(earlier)
        # Values of members, and how many elements of a row are neighbours in them.
        self.in_rows: dict[int, int] = {}
        self._late: set[int] = set()
        waiting = list(reversed(tasks))
        while waiting:
            task = waiting.pop()
            waiting.extend(reversed(self._add(task)))

    def _add(self, task: Task) -> list[Task]:
        """Put a task into its place, or return the parts that it must be taken into."""
        needs = set(task.reads) | (self._written & set(task.writes))
        fit = self._fit(task, needs)
        if fit is None and any(n in self._late or n in self.in_rows for n in needs):
            split = self._parted(task)
            if len(split) > 1:
                return split
        self._written |= set(task.writes)
        if fit is not None:
            self.members.append((task, fit))
            self._late |= fit.sums
            self.in_rows |= {n: fit.aligned[n] for n in task.writes if n not in fit.sums}
        elif any(n in self._late or n in self.in_rows for n in needs):
            self.after.append(task)
            self._late |= set(task.writes)
        else:
            self.before.append(task)
        return []

    def _fit(self, task: Task, needs: set[int]) -> Fit | None:
        """How a task can join: it finds all that it needs of other members in its own row.

        Where there are several ways, the one that takes most of its memory row by row.
        """
        if needs & self._late:
            return None
        best, most = None, -1
        for fit in fits_of(task, self.cut):
            own = all(fit.aligned.get(n) == self.in_rows[n] for n in needs if n in self.in_rows)
            if own and not fit.sums & self._written:
                nodes = {**task.reads, **task.writes}
                divided = sum(nodes[n].dtype.itemsize * k for n, k in fit.elements.items())
                if divided > most:
                    best, most = fit, divided
        return best

    def _parted(self, task: Task) -> list[Task]:
        """A nest as two, if some of its results can be had before others."""
        step = task.step
        if not isinstance(step, Loops) or step.whole or not 1 < len(step.items) <= MAX_SPLIT:
            return [task]
        if not task.used & self._late and math.prod(step.items[0].domain) % self.cut.rows:
            return [task]
        late: list[Item] = []
        early: list[Item] = []
        for item in step.items:
            alone = self._parts.of(step, [item])
            needs = set(alone.reads) | (self._written & set(alone.writes))
            waits = needs & self._late
            stays = self._fit(alone, needs) is None and any(n in self.in_rows for n in needs)
            (late if waits or stays else early).append(item)
        if not early or not late:
            return [task]
        return [self._parts.of(step, items) for items in (early, late)]

    # -- worth ------------------------------------------------------------------------

    def locals(self, pinned: set[int]) -> dict[int, Node]:
        """Buffers that only members use: a block of them is enough."""
        outside = set(pinned)
        for task in (*self.before, *self.after):
            outside |= task.used
        found = {}
        for task, fit in self.members:
            for number, node in task.writes.items():
                if number not in outside and number not in fit.sums:
                    found[number] = node
        return found

    def saved_bytes(self, kept: dict[int, Node], block: Block) -> int:
        """Memory traffic that blocks save.

        That is all of locals, and of shared operands but one reading; and off goes what every
        block reads anew because it does not stay in the cache.
        """
        total = 0
        # Without sums, all that is summed later is stored whole, and has no place in common with
        # its operands. Nothing is gained then by values that would not have left the caches.
        least = 0
        if not self.cut.summed:
            least = LARGE_BYTES if self.cut.least == BLOCKS[-1] else STAYING_BYTES
        for number, (node, used) in self._aligned().items():
            if _bytes(node) < least:
                continue
            again = used if number in kept else max(used - node.size, 0)
            total += again * node.dtype.itemsize
        if block.reach > CACHE_BYTES:
            total = total * CACHE_BYTES // block.reach
        spilled = max(0, self.fixed_bytes(OPERAND_COST) - CACHE_BYTES // 2)
        return total - spilled * -(-self.cut.rows // block.rows)

    def _aligned(self) -> dict[int, tuple[Node, int]]:
        """Buffers used row by row, and how many elements of them all members use together."""
        found: dict[int, tuple[Node, int]] = {}
        for task, fit in self.members:
            for number, elements in fit.elements.items():
                node = task.reads.get(number) or task.writes[number]
                found[number] = node, found.get(number, (node, 0))[1] + elements
        return found

    def fixed_bytes(self, operands: float = 1.0) -> int:
        """What every block uses: operands without rows, those of products at a price, and sums."""
        seen: dict[int, int] = {}
        for task, fit in self.members:
            for number, node in {**task.reads, **task.writes}.items():
                if number in fit.whole or number in fit.sums:
                    lanes = LANES if number in fit.sums and task.layout is not None else 1
                    parts = self.cut.entries if number in fit.apart else 1
                    cheap = task.layout is None and number not in fit.sums
                    price = operands if cheap else 1.0
                    seen[number] = int(lanes * _bytes(node) // parts * price)
        return sum(seen.values())

    def block(self, kept: dict[int, Node]) -> Block | None:
        """The largest block that stays in the cache, or the smallest there is."""
        cut = self.cut
        sizes: Sequence[int] = BLOCKS
        if cut.least < BLOCKS[-1]:
            sizes = (*BLOCKS, *SMALL_BLOCKS)
        if cut.entries > 1:
            sizes = [rows for rows in sizes if cut.per_entry % rows == 0]
        if not cut.summed:
            fewest = CHUNKS_PER_THREAD * pool.get_num_threads()
            sizes = [rows for rows in sizes if -(-cut.rows // rows) >= fewest]
        uses = [task.used for task, _ in self.members]
        most, fixed = CACHE_BYTES * 5 // 8, self.fixed_bytes()
        room = max(CACHE_BYTES // 8, most - fixed)
        if cut.summed:
            # Each block reads and writes all sums, so with few rows it would do little else.
            room = max(room, min(2 * fixed, most))
        again = [
            _bytes(node)
            for n, (node, used) in self._aligned().items()
            if used > node.size and n not in kept
        ]
        found = None
        for rows in sizes:
            wanted = {n: rows * _bytes(node) // cut.rows for n, node in kept.items()}
            places, total = arranged(uses, wanted)
            reach = total + rows * sum(again) // cut.rows
            found = Block(rows, places, total, reach)
            if reach <= room:
                break
        return found


class Block(NamedTuple):
    """Rows of a block, and what they take.

    Attributes
    ----------
    rows : int
    places : dict of int to int
        Byte offsets of locals.
    bytes : int
        Memory of the locals.
    reach : int
        Memory that a block goes back to: also its rows of what several members use.
    """

    rows: int
    places: dict[int, int]
    bytes: int
    reach: int


def _bytes(node: Node) -> int:
    return node.size * node.dtype.itemsize


class Streamed:
    """A group made ready to run.

    Attributes
    ----------
    step : Stream
    members : list of (Task, Fit)
        Loops with layouts in blocks.
    cut : Cut
    block : int
        Rows of a block.
    places : dict of int to int
        Byte offsets of locals.
    local_bytes : int
        Memory of each thread that takes part.
    locals : dict of int to Node
    shifts : dict of int to int
        Of locals that hold rows: how many elements further each block's first row is, where a row's
        neighbours follow those of the row before.
    partials : dict of int to Node
        By number of a sum, the buffer for its units.
    """

    def __init__(self, group: Group, kept: dict[int, Node], block: Block, inline: bool) -> None:
        total = block.bytes
        self.cut, self.block, self.places = group.cut, block.rows, block.places
        self.members: list[tuple[Task, Fit]] = []
        self.locals = dict(kept)
        self.shifts = {number: block.rows * group.in_rows[number] for number in kept}
        self.partials: dict[int, Node] = {}
        units = group.cut.entries * -(-group.cut.per_entry // UNIT)
        for task, fit in group.members:
            layout = task.layout
            if layout is not None:
                nest = layout.nest.relaid(self.offset)
                layout = Layout(nest, inline, (fit.axis, block.rows * fit.per))
                for state in layout.states.values():
                    self.locals[state.number] = state
                    self.places[state.number] = total
                    total += _bytes(state)
            self.members.append((Task(task.step, layout), fit))
            for number in sorted(fit.sums):
                node = task.writes[number]
                size = node.size // (group.cut.entries if number in fit.apart else 1)
                shape = (units, -(-size // 64) * 64)
                self.partials[number] = Node(INPUT, (), (), shape, node.dtype, PARTIALS + number)
        self.local_bytes = total
        steps = [t.step for t, _ in self.members if isinstance(t.step, Loops | Product)]
        self.step = Stream(group.cut.rows, block.rows, steps)

    def offset(self, node: Node, form: Affine) -> Affine:
        """An offset in the buffer of a node as one in the block that its local holds.

        A buffer is (any, rows, neighbours); of the rows a local has those of one block, numbered as in
        the whole.
        """
        shift = self.shifts.get(node.number)
        if shift is None:
            return form
        whole = self.cut.rows * (shift // self.block)
        if whole == node.size:
            return form
        outside, inside = divmod(form.const, whole)
        terms = []
        for v, k in form.terms:
            apart = v >= 0 and k % whole == 0
            terms.append((v, k // whole * shift if apart else k))
        return Affine(outside * shift + inside, tuple(terms))

    @property
    def span(self) -> int:
        """Blocks per chunk: whole units if anything is summed."""
        return UNIT // self.block if self.partials else 1

    @property
    def layouts(self) -> list[Layout]:
        return [task.layout for task, _ in self.members if task.layout is not None]

    @property
    def used(self) -> set[int]:
        """Numbers of the buffers that belong to the whole program."""
        return set(self.buffers)

    @property
    def buffers(self) -> dict[int, Node]:
        """What belongs to the whole program, by number."""
        found = {node.number: node for node in self.partials.values()}
        for task, _ in self.members:
            found |= {k: n for k, n in task.buffers.items() if k not in self.locals}
        return found

    def heirs(self, small: bool) -> dict[int, list[int]]:
        """Results that may lie where an operand does: none, as blocks run beside each other."""
        return {}

    @property
    def written(self) -> set[int]:
        found = {node.number for node in self.partials.values()}
        for task, _ in self.members:
            found |= task.written
        return found - set(self.locals)


def streamed(tasks: Sequence[Task], pinned: set[int], inline: bool) -> list[Task | Streamed]:
    """Tasks in the order to run them, with streams made of those that gain by it.

    Parameters
    ----------
    tasks : list of Task
        The program, in order.
    pinned : set of int
        Numbers of its inputs and outputs.
    inline : bool
        Whether vector maths is inlined.
    """
    done: list[Task | Streamed] = []
    copies: dict[tuple[int, int, int, int, int], Node] = {}
    parts = Parts(inline)
    # What these tasks touched has its place outside the next stream: one of them may have
    # begun what a task of that stream goes on to fill.
    earlier: set[int] = set()
    pending: list[list[Task] | _Chosen] = [list(tasks)]
    while pending:
        part = pending.pop()
        if isinstance(part, _Chosen):
            done += _made(part, copies, inline)
            earlier |= {n for task, _ in part.group.members for n in task.used}
            continue
        later = {n for other in pending for task in _tasks_of(other) for n in task.used}
        found = _best_group(part, pinned | later, earlier, parts)
        if found is not None:
            pending += [found.group.after, found, found.group.before]
            continue
        done += part
        earlier |= {n for task in part for n in task.used}
    return done


class _Chosen(NamedTuple):
    group: Group
    kept: dict[int, Node]
    block: Block


def _tasks_of(part: list[Task] | _Chosen) -> list[Task]:
    return [task for task, _ in part.group.members] if isinstance(part, _Chosen) else part


def _made(
    chosen: _Chosen, copies: dict[tuple[int, int, int, int, int], Node], inline: bool
) -> list[Task | Streamed]:
    """A stream, behind the copies of operands that it needs."""
    group = chosen.group
    made: list[Task | Streamed] = []
    for place, (task, fit) in enumerate(group.members):
        if isinstance(task.step, Product) and fit.axis == ROW:
            product, copy = _with_rows_of_b(task.step, copies)
            if copy is not None:
                made.append(_task_of(copy, inline))
            group.members[place] = Task(product, None), fit
    return [*made, Streamed(group, chosen.kept, chosen.block, inline)]


def _best_group(
    tasks: list[Task], pinned: set[int], earlier: set[int], parts: Parts
) -> _Chosen | None:
    best = None
    most = WORTH_BYTES - 1
    divided = set()
    for cut, traffic in _cuts(tasks):
        if traffic <= most:
            break
        if cut.least < BLOCKS[-1] and cut.rows in divided:
            continue
        group = Group(tasks, cut, earlier, parts)
        if len(group.members) < 2:
            continue
        kept = group.locals(pinned | earlier)
        block = group.block(kept)
        if block is None:
            continue
        divided.add(cut.rows)
        saved = group.saved_bytes(kept, block)
        if saved > most:
            best, most = _Chosen(group, kept, block), saved
    return best


def _cuts(tasks: list[Task]) -> list[tuple[Cut, int]]:
    """The rows that most of the memory traffic has, and how much that is."""
    weight: dict[tuple[int, int], int] = {}

    def weigh(rows: int, entries: int, node: Node) -> None:
        weight[rows, entries] = weight.get((rows, entries), 0) + _bytes(node)

    for task in tasks:
        for node in (*task.reads.values(), *task.writes.values()):
            sizes = [size for size in node.shape if size > 1]
            leading = {math.prod(sizes[:count]) for count in range(1, len(sizes))}
            for rows in leading | set(sizes):
                weigh(rows, 1, node)
        if isinstance(task.step, Product):
            batch, m, _ = task.step.target.shape
            if batch > 1:
                for lines in {m, task.step.k}:
                    for node in (*task.reads.values(), *task.writes.values()):
                        weigh(batch * lines, batch, node)
    likely = sorted(weight, key=lambda cut: (-weight[cut], cut))
    chunks = CHUNKS_PER_THREAD * pool.get_num_threads()
    found = []
    for rows, entries in likely[:MAX_CUTS]:
        traffic = weight[rows, entries]
        units = entries * -(-rows // entries // UNIT)
        found.append((Cut(rows, entries, units >= chunks, BLOCKS[-1]), traffic))
        if entries == 1:
            found.append((Cut(rows, 1, False, SMALL_BLOCKS[-1]), traffic))
    return found


def _with_rows_of_b(
    step: Product, copies: dict[tuple[int, int, int, int, int], Node]
) -> tuple[Product, Loops | None]:
    """A product whose right operand has its rows in memory: a copy, where each block would pack it."""
    (batch, _, n), k = step.target.shape, step.k
    left, (node, offset, (b_batch, b_k, b_n)) = step.operands
    if b_n == 1 or n == 1:
        return step, None
    if b_batch == 0:
        batch = 1
    key = node.number, offset, b_batch, b_k, b_n
    copy = copies.get(key)
    made = None
    if copy is None:
        number = COPIES + 2 * len(copies)
        copy = copies[key] = Node(INPUT, (), (), (batch, k, n), node.dtype, number)
        flat = (node.size,)
        view = Node(REGISTRY["reshape"], (node,), (flat,), flat, node.dtype, number + 1)
        entry, row, column = (variable(v) for v in range(3))
        index = Affine(offset) + entry * b_batch + row * b_k + column * b_n
        place = entry * (k * n) + row * n + column
        item = Item(copy, (batch, k, n), ((view, (index,)),), place)
        made = Loops([item], lambda x: x.number != view.number)
    strides = (k * n if batch > 1 else 0, n, 1)
    return Product(step.target, (left, (copy, 0, strides)), step.k), made

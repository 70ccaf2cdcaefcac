"""Which steps run together, block by block over the rows that they share.

A program runs step after step, each over the whole batch, so what passes between them goes through
memory. Steps whose values all have the batch as their outermost axis can run on a block of rows
at a time instead: then it stays in the cache. Bits stay the same, as blocks divide the units of
the fixed tree: sums and products over the rows take up their lanes and chains where the unit's
last block left them, and all units are joined at the end.

Structures:

* `Task`: a step with its layout, and the buffers that it reads and writes.
* `Fit`: how a task goes along the rows: which loop axis they are, whether they are summed.
* `Group`: tasks that run together, and what else the program does `before` and `after` them.

Start reading at `streamed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from symgrad.codegen import pool
from symgrad.codegen.arena import arranged
from symgrad.codegen.layout import LANES, NO_AXIS, UNIT, Layout
from symgrad.op import INPUT, REGISTRY
from symgrad.schedule.affine import Affine, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.nest import Item
from symgrad.schedule.packing import FIRST_NUMBER
from symgrad.schedule.steps import Loops, Product, Routine, Stream

COPIES = FIRST_NUMBER + (1 << 30)
PARTIALS = 1 << 42
"""Numbers of transposed operands and of partial results: beyond those of any graph."""

BLOCKS = (384, 192, 128, 96, 64, 48, 32)
"""Rows per block: divisors of a unit, whole turns of its lanes."""

CACHE_BYTES = 1 << 20
"""The part of the caches that a core has for itself."""

WORTH_BYTES = 4 * CACHE_BYTES
"""Memory traffic that a stream must save."""

CHUNKS_PER_THREAD = 2

MAX_SPLIT = 32
"""Results per nest up to which a nest is taken apart, so that some of them can join a stream."""

LONG_ROW = 256
"""Elements from which a row may end within a vector where a result takes the place of its operand:
the next row is read from behind what is stored of that vector, and has to wait for it."""

JOINABLE = ("add", "dot", "mul", "max", "min", "and", "or")


class Task:
    """A step, and what it reads and writes.

    Attributes
    ----------
    step : Loops, Product, Routine or Iteration
    layout : Layout or None
        Of loops.
    reads, writes : dict of int to Node
        Buffers by number.
    """

    def __init__(self, step: Loops | Product | Routine | Iteration, layout: Layout | None) -> None:
        self.step = step
        self.layout = layout
        self.reads: dict[int, Node] = {}
        self.writes: dict[int, Node] = {}
        if layout is not None:
            for inst in layout.nest.insts:
                if inst.kind == "load" and inst.node is not None:
                    self.reads[inst.node.number] = inst.node
            for output in layout.nest.outputs:
                self.writes[output.target.number] = output.target
                if output.scattered and output.combine:
                    self.reads[output.target.number] = output.target
        elif isinstance(step, Product):
            self.reads = {node.number: node for node, _, _ in step.operands}
            self.writes = {step.target.number: step.target}
        elif isinstance(step, Routine):
            self.reads = {node.number: node for node in step.operands}
            self.writes = {step.target.number: step.target}
        elif isinstance(step, Iteration):
            self.reads = {node.number: node for node in step.operands}
            self.writes = {node.number: node for node in step.targets}

    @property
    def used(self) -> set[int]:
        return {*self.reads, *self.writes}

    @property
    def buffers(self) -> dict[int, Node]:
        """All that it touches, by number."""
        return {**self.reads, **self.writes}

    @property
    def written(self) -> set[int]:
        return set(self.writes)

    def heirs(self, small: bool) -> dict[int, list[int]]:
        """Results that may lie where an operand does: its elements are read there and nowhere else.

        Parameters
        ----------
        small : bool
            Whether room counts more than time.
        """
        layout = self.layout
        if layout is None or layout.mode != "plain" or not layout.order:
            return {}
        nest = layout.nest
        if nest.filled is not None:
            return {}
        length = nest.sizes[layout.vector]
        if length % layout.width and length < LONG_ROW and not small:
            return {}
        read: dict[int, set[Affine]] = {}
        for inst in nest.insts:
            if inst.kind == "load" and inst.node is not None:
                read.setdefault(inst.node.number, set()).add(inst.offset)
        found: dict[int, list[int]] = {}
        for output in nest.outputs:
            target = output.target
            if target.size != math.prod(nest.sizes):
                continue
            found[target.number] = [
                number
                for number, offsets in read.items()
                if offsets == {output.offset}
                and self.reads[number].size == target.size
                and self.reads[number].dtype.itemsize == target.dtype.itemsize
            ]
        return found


def _task_of(step: Loops, inline: bool) -> Task:
    return Task(step, Layout(step.build(), inline))


class Fit(NamedTuple):
    """How a task goes along rows.

    Attributes
    ----------
    axis : int
        The loop axis that they lie along, `NO_AXIS` for products.
    per : int
        Steps of that axis in a row.
    aligned : frozenset of int
        Buffers of which each row is used for that row alone.
    sums : frozenset of int
        Results that are reductions over the rows.
    whole : frozenset of int
        Buffers that every block reads the same elements of, or any.
    """

    axis: int
    per: int
    aligned: frozenset[int]
    sums: frozenset[int]
    whole: frozenset[int]


def _in_row(form: Affine, node: Node, rows: int, axis: int, per: int, sizes: Sequence[int]) -> bool:
    """Whether an offset stays in the row that the loop is at."""
    if node.size % rows or any(v < 0 for v, _ in form.terms):
        return False
    row = node.size // rows
    step = form.coefficient(axis)
    if step * per != row or form.const < 0:
        return False
    last = form.const + (per - 1) * step
    for v, k in form.terms:
        if v != axis:
            if k < 0:
                return False
            last += k * (sizes[v] - 1)
    return last < row


def fits_of(task: Task, rows: int) -> list[Fit]:
    """The ways in which a task can be done in blocks of rows."""
    if isinstance(task.step, Product):
        return _product_fits(task.step, rows)
    if task.layout is None:
        return []
    layout, nest = task.layout, task.layout.nest
    if nest.straight or nest.filled or layout.mode in ("crossed", "scatter"):
        return []
    found = []
    if layout.mode in ("inner", "outer") and nest.sizes[nest.axis] == rows:
        found.append(_loop_fit(task, layout, rows, nest.axis))
    axes = (a for a in layout.order if a != nest.axis)
    found += [_loop_fit(task, layout, rows, a) for a in axes]
    return [fit for fit in found if fit is not None]


def _loop_fit(task: Task, layout: Layout, rows: int, axis: int) -> Fit | None:
    nest = layout.nest
    if nest.sizes[axis] % rows:
        return None
    per = nest.sizes[axis] // rows
    misread = set()
    whole = set()
    for inst in nest.insts:
        if inst.kind == "load" and inst.node is not None:
            if not _in_row(inst.offset, inst.node, rows, axis, per, nest.sizes):
                misread.add(inst.node.number)
                # The columns of a matrix, say, pass by as its rows would.
                if not inst.offset.coefficient(axis) or any(v < 0 for v, _ in inst.offset.terms):
                    whole.add(inst.node.number)
    sums = set()
    for output in nest.outputs:
        if output.combine and axis == nest.axis:
            element = nest.insts[output.insts[0]].dtype
            lanes = layout.mode == "inner" or output.offset.coefficient(layout.vector) == 1
            if output.combine not in JOINABLE or element is not output.target.dtype or not lanes:
                return None
            sums.add(output.target.number)
        elif not _in_row(output.offset, output.target, rows, axis, per, nest.sizes):
            return None
    aligned = frozenset(task.used - misread - sums)
    return Fit(axis, per, aligned, frozenset(sums), frozenset(whole))


def _product_fits(step: Product, rows: int) -> list[Fit]:
    batch, m, n = step.target.shape
    if batch != 1 or step.k == 0:
        return []
    (a, a_offset, (_, a_row, a_k)), (b, b_offset, (_, b_k, b_n)) = step.operands
    left = a_offset, a_row, a_k
    found = []
    if m == rows:
        aligned = {step.target.number}
        if a is not b and _line_in_row(a, left, rows, step.k):
            aligned.add(a.number)
        whole = {a.number, b.number} - aligned
        found.append(Fit(NO_AXIS, 1, frozenset(aligned), frozenset(), frozenset(whole)))
    if step.k == rows:
        fine = [
            _line_in_row(a, (a_offset, a_k, a_row), rows, m),
            _line_in_row(b, (b_offset, b_k, b_n), rows, n),
        ]
        misread = {x.number for x, ok in zip((a, b), fine, strict=True) if not ok}
        aligned = {a.number, b.number} - misread
        sums = frozenset({step.target.number})
        found.append(Fit(NO_AXIS, 1, frozenset(aligned), sums, frozenset(misread)))
    return found


def _line_in_row(node: Node, line: tuple[int, int, int], rows: int, count: int) -> bool:
    """Whether elements (offset, stride of rows, stride in a row) stay in their rows."""
    offset, along, across = line
    sizes = (rows, count)
    form = Affine(offset) + variable(0) * along + variable(1) * across
    return _in_row(form, node, rows, 0, 1, sizes)


class Group:
    """Tasks that run together.

    Attributes
    ----------
    rows : int
    members : list of (Task, Fit)
    before, after : list of Task
        What must run ahead, and behind.
    """

    def __init__(self, tasks: Sequence[Task], rows: int, earlier: set[int], inline: bool) -> None:
        self.rows = rows
        self.members: list[tuple[Task, Fit]] = []
        self.before: list[Task] = []
        self.after: list[Task] = []
        self._inline = inline
        self._written = set(earlier)
        self._in_rows: set[int] = set()
        self._late: set[int] = set()
        waiting = list(reversed(tasks))
        while waiting:
            task = waiting.pop()
            parts = self._add(task)
            waiting.extend(reversed(parts))

    def _add(self, task: Task) -> list[Task]:
        """Put a task into its place, or return the parts that it must be taken into."""
        needs = set(task.reads) | (self._written & set(task.writes))
        if needs & self._late:
            parts = self._parted(task)
            if len(parts) > 1:
                return parts
            fit = None
        else:
            ways = (f for f in fits_of(task, self.rows) if needs & self._in_rows <= f.aligned)
            fit = next((f for f in ways if not f.sums & self._written), None)
        self._written |= set(task.writes)
        if fit is not None:
            self.members.append((task, fit))
            self._late |= fit.sums
            self._in_rows |= set(task.writes) - fit.sums
        elif needs & (self._late | self._in_rows):
            self.after.append(task)
            self._late |= set(task.writes)
        else:
            self.before.append(task)
        return []

    def _parted(self, task: Task) -> list[Task]:
        """A nest as two, if some of its results do not need what comes late."""
        step = task.step
        if not isinstance(step, Loops) or step.whole or not 1 < len(step.items) <= MAX_SPLIT:
            return [task]
        late: list[Item] = []
        early: list[Item] = []
        for item in step.items:
            alone = _task_of(step.part([item]), self._inline)
            (late if set(alone.reads) & self._late else early).append(item)
        if not early or not late:
            return [task]
        return [_task_of(step.part(items), self._inline) for items in (early, late)]

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

    def saved_bytes(self, kept: dict[int, Node]) -> int:
        """Memory traffic that blocks save: all of locals, and of shared operands but one reading."""
        uses: dict[int, int] = {}
        nodes: dict[int, Node] = {}
        for task, fit in self.members:
            for number, node in {**task.reads, **task.writes}.items():
                if number in fit.aligned:
                    uses[number] = uses.get(number, 0) + 1
                    nodes[number] = node
        total = 0
        for number, count in uses.items():
            again = count if number in kept else count - 1
            total += again * nodes[number].size * nodes[number].dtype.itemsize
        return total

    def fixed_bytes(self) -> int:
        """What every block uses: operands without rows, and sums."""
        seen: dict[int, int] = {}
        for task, fit in self.members:
            for number, node in {**task.reads, **task.writes}.items():
                if number in fit.whole or number in fit.sums:
                    lanes = LANES if number in fit.sums and task.layout is not None else 1
                    seen[number] = lanes * node.size * node.dtype.itemsize
        return sum(seen.values())

    def block(self, kept: dict[int, Node]) -> tuple[int, dict[int, int], int]:
        """Rows of a block, the places of locals, and the bytes that these take."""
        uses = [task.used for task, _ in self.members]
        room = max(CACHE_BYTES // 8, CACHE_BYTES * 5 // 8 - self.fixed_bytes())
        for rows in BLOCKS:
            sizes = {
                number: rows * (node.size // self.rows) * node.dtype.itemsize
                for number, node in kept.items()
            }
            places, total = arranged(uses, sizes)
            if total <= room:
                break
        return rows, places, total


class Streamed:
    """A group made ready to run.

    Attributes
    ----------
    step : Stream
    members : list of (Task, Fit)
        Loops with layouts in blocks.
    places : dict of int to int
        Byte offsets of locals.
    local_bytes : int
        Memory of each thread that takes part.
    locals : dict of int to Node
    partials : dict of int to Node
        By number of a sum, the buffer for its units.
    """

    def __init__(self, group: Group, kept: dict[int, Node], inline: bool) -> None:
        block, self.places, total = group.block(kept)
        self.members: list[tuple[Task, Fit]] = []
        self.locals = dict(kept)
        self.partials: dict[int, Node] = {}
        self.rows, self.block = group.rows, block
        units = -(-group.rows // UNIT)
        for task, fit in group.members:
            layout = task.layout
            if layout is not None:
                layout = Layout(layout.nest, inline, (fit.axis, block * fit.per))
                for state in layout.states.values():
                    self.locals[state.number] = state
                    self.places[state.number] = total
                    total += state.size * state.dtype.itemsize
            self.members.append((Task(task.step, layout), fit))
            for number in sorted(fit.sums):
                node = task.writes[number]
                shape = (units, -(-node.size // 64) * 64)
                self.partials[number] = Node(INPUT, (), (), shape, node.dtype, PARTIALS + number)
        self.local_bytes = total
        steps = [t.step for t, _ in self.members if isinstance(t.step, Loops | Product)]
        self.step = Stream(group.rows, block, steps)

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
    copies: dict[tuple[int, int, int, int], Node] = {}
    rest = list(tasks)
    earlier: set[int] = set()
    while rest:
        found = _best_group(rest, pinned, earlier, inline)
        if found is None:
            break
        group, kept = found
        done += group.before
        for place, (task, fit) in enumerate(group.members):
            if isinstance(task.step, Product) and not fit.sums:
                product, copy = _with_rows_of_b(task.step, copies)
                if copy is not None:
                    done.append(_task_of(copy, inline))
                group.members[place] = Task(product, None), fit
        done.append(Streamed(group, kept, inline))
        rest = group.after
        # What these tasks touched has its place outside the next stream: one of them may have
        # begun what a task of that stream goes on to fill.
        for task in (*group.before, *[task for task, _ in group.members]):
            earlier |= task.used
    return [*done, *rest]


def _best_group(
    tasks: list[Task], pinned: set[int], earlier: set[int], inline: bool
) -> tuple[Group, dict[int, Node]] | None:
    weight: dict[int, int] = {}
    for task in tasks:
        for node in (*task.reads.values(), *task.writes.values()):
            rows = next((size for size in node.shape if size > 1), None)
            if rows is not None:
                weight[rows] = weight.get(rows, 0) + node.size * node.dtype.itemsize
    fewest = CHUNKS_PER_THREAD * pool.get_num_threads() * UNIT - UNIT
    likely = sorted(weight, key=lambda rows: -weight[rows])
    for rows in likely[:2]:
        if rows <= fewest or weight[rows] < WORTH_BYTES:
            continue
        group = Group(tasks, rows, earlier, inline)
        kept = group.locals(pinned | earlier)
        if len(group.members) < 2:
            continue
        block, _, _ = group.block(kept)
        spilled = max(0, group.fixed_bytes() - CACHE_BYTES // 2)
        if group.saved_bytes(kept) - spilled * (rows // block) >= WORTH_BYTES:
            return group, kept
    return None


def _with_rows_of_b(
    step: Product, copies: dict[tuple[int, int, int, int], Node]
) -> tuple[Product, Loops | None]:
    """A product whose right operand has its rows in memory: a copy, where each block would pack it."""
    (_, k, n) = (1, step.k, step.target.shape[2])
    left, (node, offset, (_, b_k, b_n)) = step.operands
    if b_n == 1 or n == 1:
        return step, None
    key = node.number, offset, b_k, b_n
    copy = copies.get(key)
    made = None
    if copy is None:
        number = COPIES + 2 * len(copies)
        copy = copies[key] = Node(INPUT, (), (), (k, n), node.dtype, number)
        flat = (node.size,)
        view = Node(REGISTRY["reshape"], (node,), (flat,), flat, node.dtype, number + 1)
        row, column = variable(0), variable(1)
        index = Affine(offset) + row * b_k + column * b_n
        item = Item(copy, (k, n), ((view, (index,)),), row * n + column)
        made = Loops([item], lambda x: x.number != view.number)
    return Product(step.target, (left, (copy, 0, (0, n, 1))), step.k), made

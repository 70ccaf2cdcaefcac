"""How a step goes along rows: whether blocks of them can be done one after the other.

Rows are numbered by one axis or several neighbours, which need not be outermost: an array of
50 matrices side by side has 50 rows if its columns are taken 64 at a time.

Structures:

* `Task`: a step with its layout, and the buffers that it reads and writes.
* `Cut`: what rows there are, and how they may be divided.
* `Fit`: how a task goes along the rows: which loop axis they are, whether they are summed.

Start reading at `fits_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from symgrad.codegen.layout import LANES, Layout
from symgrad.schedule.affine import Affine, row_major, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.steps import Loops, Product, Routine

LONG_ROW = 256
"""Elements from which a row may end within a vector where a result takes the place of its operand:
the next row is read from behind what is stored of that vector, and has to wait for it."""

JOINABLE = ("add", "dot", "mul", "max", "min", "and", "or")

BATCH, ROW, COLUMN, DEPTH = range(4)
"""The axes of a product."""


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


class Cut(NamedTuple):
    """Rows of values, and how they may be divided.

    Attributes
    ----------
    rows : int
    entries : int
        Parts of the rows that products treat apart, as matrices of a batch.
    summed : bool
        Whether steps may take sums over the rows, of an entry each.
    least : int
        The fewest rows of a block.
    """

    rows: int
    entries: int
    summed: bool
    least: int

    @property
    def per_entry(self) -> int:
        return self.rows // self.entries


class Fit(NamedTuple):
    """How a task goes along rows.

    Attributes
    ----------
    axis : int
        The loop axis that they lie along; for products `BATCH`, `ROW`, `COLUMN` or `DEPTH`.
    per : int
        Steps of that axis in a row.
    aligned : dict of int to int
        Buffers of which each row is used for that row alone, and the elements of a row that are
        neighbours there.
    elements : dict of int to int
        How many elements of these are used.
    sums : frozenset of int
        Results that are reductions over the rows.
    apart : frozenset of int
        Operands and sums of which each entry has its own part.
    whole : frozenset of int
        Buffers that every block reads the same elements of, or any.
    """

    axis: int
    per: int
    aligned: dict[int, int]
    elements: dict[int, int]
    sums: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()


class _Lines:
    """The buffers of a task, looked at as (any, rows, neighbours), the rows along one axis.

    Attributes
    ----------
    aligned, elements : dict of int to int
        As those of `Fit`, except that buffers of `misread` may be among them.
    misread : set of int
        Buffers of which something is used in several rows.
    """

    def __init__(self, cut: Cut, axis: int, per: int, sizes: Sequence[int]) -> None:
        self._cut, self._axis, self._per, self._sizes = cut, axis, per, sizes
        self.aligned: dict[int, int] = {}
        self.elements: dict[int, int] = {}
        self.misread: set[int] = set()

    def look(self, node: Node, form: Affine) -> bool:
        """Whether an offset stays in the row that the loop is at."""
        count, elements = self._neighbours(node, form)
        if self._cut.summed and count * self._cut.rows != node.size:
            # Lanes of sums know rows that are outermost only.
            count = 0
        number = node.number
        if not count or self.aligned.setdefault(number, count) != count:
            self.misread.add(number)
            return False
        self.elements[number] = min(self.elements.get(number, 0) + elements, node.size)
        return True

    def _neighbours(self, node: Node, form: Affine) -> tuple[int, int]:
        """How many elements of a row are neighbours, none if it is left, and how many are used."""
        step = form.coefficient(self._axis)
        count = step * self._per
        whole = self._cut.rows * count
        if step <= 0 or node.size % whole or form.const < 0:
            return 0, 0
        last = form.const % whole + (self._per - 1) * step
        elements = whole
        for v, k in form.terms:
            if v == self._axis:
                continue
            if v < 0 or k < 0:
                return 0, 0
            if k > 0 and k % whole == 0:
                elements *= self._sizes[v]
            else:
                last += k * (self._sizes[v] - 1)
        return (count, elements) if last < count else (0, 0)

    def fit(self, sums: frozenset[int], apart: set[int], whole: frozenset[int]) -> Fit:
        """What was found."""
        kept = {n: count for n, count in self.aligned.items() if n not in self.misread | sums}
        elements = {n: self.elements[n] for n in kept}
        return Fit(self._axis, self._per, kept, elements, sums, frozenset(apart), whole)


def fits_of(task: Task, cut: Cut) -> list[Fit]:
    """The ways in which a task can be done in blocks of rows."""
    if isinstance(task.step, Product):
        return _product_fits(task.step, cut)
    if task.layout is None:
        return []
    layout, nest = task.layout, task.layout.nest
    if nest.straight or nest.filled or layout.mode in ("crossed", "scatter"):
        return []
    found = []
    sums = cut.summed and cut.entries == 1
    if sums and layout.mode in ("inner", "outer") and nest.sizes[nest.axis] == cut.rows:
        found.append(_loop_fit(task, layout, cut, nest.axis))
    axes = (a for a in layout.order if a != nest.axis)
    found += [_loop_fit(task, layout, cut, a) for a in axes]
    return [fit for fit in found if fit is not None]


def _loop_fit(task: Task, layout: Layout, cut: Cut, axis: int) -> Fit | None:
    nest, rows = layout.nest, cut.rows
    if nest.sizes[axis] % rows:
        return None
    per = nest.sizes[axis] // rows
    if axis == layout.vector and cut.least * per < LANES:
        return None
    lines = _Lines(cut, axis, per, nest.sizes)
    whole: set[int] = set()
    for inst in nest.insts:
        if inst.kind == "load" and inst.node is not None and not lines.look(inst.node, inst.offset):
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
        elif not lines.look(output.target, output.offset):
            return None
    return lines.fit(frozenset(sums), set(), frozenset(whole))


class _Factors(NamedTuple):
    """A product as offsets in the axes `BATCH`, `ROW`, `COLUMN` and `DEPTH`."""

    sizes: tuple[int, int, int, int]
    left: tuple[Node, Affine]
    right: tuple[Node, Affine]
    target: tuple[Node, Affine]


def _factors(step: Product) -> _Factors:
    batch, m, n = step.target.shape
    (a, a_offset, (a_batch, a_row, a_k)), (b, b_offset, (b_batch, b_k, b_n)) = step.operands
    c_batch, c_row, c_column = row_major(step.target.shape)
    at_batch, at_row, at_column, at_k = (variable(v) for v in (BATCH, ROW, COLUMN, DEPTH))
    left = Affine(a_offset) + at_batch * a_batch + at_row * a_row + at_k * a_k
    right = Affine(b_offset) + at_batch * b_batch + at_k * b_k + at_column * b_n
    target = at_batch * c_batch + at_row * c_row + at_column * c_column
    return _Factors((batch, m, n, step.k), (a, left), (b, right), (step.target, target))


def _product_fits(step: Product, cut: Cut) -> list[Fit]:
    if step.k == 0 or 0 in step.target.shape:
        return []
    factors = _factors(step)
    batch = factors.sizes[BATCH]
    if batch == 1:
        axes: tuple[int, ...] = (ROW, DEPTH, COLUMN) if cut.entries == 1 else (ROW, COLUMN)
    elif batch == cut.entries:
        axes = ROW, DEPTH
    else:
        axes = (BATCH,)
    found = []
    for axis in axes:
        fit = _product_fit(factors, cut, axis)
        if fit is not None:
            found.append(fit)
    return found


def _product_fit(factors: _Factors, cut: Cut, axis: int) -> Fit | None:
    sizes = list(factors.sizes)
    joined = cut.entries if axis != BATCH and sizes[BATCH] > 1 else 1
    count = sizes[axis] * joined
    if count % cut.rows or (axis == DEPTH and (not cut.summed or count != cut.rows)):
        return None
    if joined > 1 and count != cut.rows:
        return None
    per = count // cut.rows
    spread = [n * joined if v == axis else n for v, n in enumerate(sizes)]
    lines = _Lines(cut, axis, per, spread)
    apart: set[int] = set()
    target, _ = factors.target
    for node, form in (factors.left, factors.right, factors.target):
        if joined > 1:
            # Lines of all entries as one axis, where they follow one another.
            step, entry = form.coefficient(axis), form.coefficient(BATCH)
            own = entry > 0
            follow = entry == step * sizes[axis]
            form = Affine(form.const, tuple((v, k) for v, k in form.terms if v != BATCH))
            if not follow:
                form = Affine(form.const, tuple((v, k) for v, k in form.terms if v != axis))
                if own:
                    apart.add(node.number)
        lines.look(node, form)
    if axis == DEPTH:
        if joined > 1 and lines.misread - {target.number}:
            return None
        sums = frozenset({target.number})
    elif target.number in lines.misread:
        return None
    else:
        sums = frozenset()
    return lines.fit(sums, apart, frozenset(lines.misread - sums))

"""How a nest becomes loops: vector axis, loop order, chunks, and the launch parameters.

One structure, `Layout`. It owns the numbering of run-time parameters (sizes, strides, slots), so
that the emitter and the launch agree, and the `key` under which compiled kernels are shared: two
nests with equal keys have the same code and differ only in parameters. Sizes never enter the key,
only whether an offset moves by 0, by 1 or by a run-time stride along the vector axis.

Start reading at `Layout.__init__`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from symgrad.codegen import apart, division, pool
from symgrad.codegen.vmath import avx512
from symgrad.dtypes import DType
from symgrad.op import INPUT, REGISTRY
from symgrad.schedule.affine import Affine
from symgrad.schedule.canonical import Node
from symgrad.schedule.nest import Inst, Nest, Output

UNIT = 384
"""Terms of a sum per unit; units join in a binary tree. Part of the definition of the bits."""

NO_AXIS = -(1 << 30)
"""No vector axis: unlike any axis, and unlike the variables of computed positions."""

LANES = 16
"""Lanes of a unit: element i of a sum goes to lane i mod 16."""

TILE = 128
"""Elements of the vector axis that are reduced together when lanes run along a kept axis."""

SHORT_ROW = 4
"""Elements of a row that are written at a position one by one: the next row may be the same, and
what a masked vector stored is slow to be read again."""

FUNCTION_COST = 10.0
"""Cost from which an op counts as a function of the vector maths."""

MAX_INLINED = 16
"""Functions inlined in one kernel at most: beyond, code size costs more than calls do."""

MAX_PEELED = 200
"""Instructions, none of them a function, of which a kernel may hold a copy without masks."""

MAX_PEELED_ROWS = 64
"""The same for a kernel that does not reduce: it has less to gain."""

CHUNK_NS = 15_000.0
"""Work per chunk at least, in estimated serial nanoseconds."""

MAX_CHUNKS = 64

STATES = 1 << 41
"""Numbers of buffers for sums under way: beyond those of any graph and of packed copies."""

MAX_PARTS = 8
"""Chunks of a crossed nest at most: each takes the rows of some lanes, and their sums are joined.

There are no more of them than threads, else their sums travel from core to core for longer than
a finer share of the work gains.
"""

PARTS_BYTES = 1 << 19
"""Room for what the chunks of a crossed nest leave to be joined: what a second-level cache holds."""

_PLAIN = frozenset({int, float, bool, str, type(None), DType})
"""Types of attributes of ops that are written as what they are."""


class Crossing(NamedTuple):
    """Where an output along the cross axis of a nest keeps its partial results, in bytes of scratch.

    Attributes
    ----------
    place : int
        The output.
    parts : int
        Results by unit and chunk.
    rows : int
        By chunk: the lane at work, then lanes that wait to be joined.
    tree : int
        Units that wait to be joined.
    """

    place: int
    parts: int
    rows: int
    tree: int


class Layout:
    """Loop order and parameters of a nest.

    Parameters
    ----------
    nest : Nest
    inline : bool
        Whether vector maths is inlined.
    block : (int, int), optional
        A loop axis, and how much of it a chunk does.

    Attributes
    ----------
    width : int
        Lanes per vector, 1 for a nest without axes.
    vector : int
        The axis that lanes run along, `NO_AXIS` for none.
    mode : str
        "plain", "inner" (lanes along the reduced axis), "outer" (lanes along another axis, the
        reduced axis innermost), "crossed" (lanes along one reduced axis, the other outside),
        "running" (cumulative), "scatter" (writes at computed positions, in order) or "straight" (no
        loop: the one short axis is a vector, sizes and offsets are part of the code).
    row : int
        Size of the vector axis of a plain nest if one vector of half the lanes holds it, else 0. It
        is part of the code then.
    across : int
        An axis of which several steps are done together, since they store side by side what lanes
        store to lines apart; -1 for none.
    columns : tuple of tuples of int
        Outputs of a plain nest whose lanes go to lines apart, together if they are neighbours there.
    block : (int, int) or None
        As given.
    axis, cross : int
        The reduced axis, and the one outside it if there are two.
    one_unit : bool
        Whether the reduced axis is one unit.
    split : bool
        Units of the reduced axis are the chunks; partial results go to scratch.
    resumed : bool
        A chunk is a block of the reduced axis, and lanes go on from where `states` hold them.
    states : dict of int to Node
        By number of a result, a buffer for the lanes of all its elements: lane after lane in mode
        "outer", element after element in mode "inner".
    order : list of int
        Loop axes, outermost first.
    chunked : int
        The axis of which each chunk does a part.
    parameters : list of int or Node
        Values of the launch arguments; a Node stands for its buffer's slot, None for scratch.
    joins : list of (output place, scratch byte, units)
        Partial results to join after a split nest.
    crossings : list of Crossing
    row_results : list of (output place, scratch byte)
        Where a crossed nest leaves what it reduces along its rows.
    phases : list of (first unit, last unit)
        Units of the cross axis that are done at a time, each part of them joined before the next.
    """

    def __init__(self, nest: Nest, inline: bool, block: tuple[int, int] | None = None) -> None:
        self.nest = nest
        self.resumed = block is not None and block[0] == nest.axis
        self.states: dict[int, Node] = {}
        functions = sum(i.op is not None and i.op.cost >= FUNCTION_COST for i in nest.insts)
        self.inline = inline and functions <= MAX_INLINED
        # A function takes so long that the stores after it do not matter.
        self._in_blocks = not functions and nest.axis < 0 and nest.filled is None
        self.parameters: list[Any] = []
        self._places: dict[Any, int] = {}
        self._terms: dict[tuple[tuple[int, int], ...], int] = {}
        self._consts: dict[int, int] = {}
        self.scratch_bytes = 0
        self.joins: list[tuple[int, int, int]] = []
        self.crossings: list[Crossing] = []
        self.row_results: list[tuple[int, int]] = []
        self.phases: list[tuple[int, int]] = []
        self.axis, self.cross = nest.axis, nest.cross
        self.block = block
        self._scratch: dict[int, int] = {}
        self.across = -1
        self.columns: tuple[tuple[int, ...], ...] = ()
        self._choose()
        self.one_unit = self.mode in ("inner", "outer") and nest.sizes[nest.axis] <= UNIT
        self.peeled = self._is_peeled(functions)
        self.ahead = None
        if self.peeled and self.mode != "plain":
            self.ahead = division.cut(nest, self.axis)
        if self.mode == "crossed" and self.ahead is None and avx512.enabled():
            # Two vectors side by side, where the next one cannot be begun early.
            self.width = 2 * LANES
        self.cost_ns = self._cost()
        if block is None:
            self.chunked = self.order[0] if self.order else NO_AXIS
            self._chunk()
        else:
            self.chunked, self.chunk = block
            self.extent = -(-nest.sizes[self.chunked] // self.chunk)
        self.key = self._key()

    # -- choices ----------------------------------------------------------------------

    def _choose(self) -> None:
        nest = self.nest
        running = any(o.cumulative for o in nest.outputs)
        axes = range(len(nest.sizes))
        self.split = False
        self.row = 0
        if not nest.sizes or nest.straight:
            self.mode, self.vector, self.width, self.order = "plain", NO_AXIS, 1, []
            if nest.straight:
                self.mode = "straight"
                self.width = 1 << (math.prod(nest.sizes) - 1).bit_length()
            return
        self.width = LANES
        if any(o.scattered for o in nest.outputs):
            self._choose_for_writes()
            return
        if nest.cross >= 0:
            self._choose_crossed()
            return
        candidates = [a for a in axes if not (running and a == nest.axis)]
        if not candidates:
            self.mode, self.vector, self.width, self.order = "running", NO_AXIS, 1, list(axes)
            return
        self.vector = max(candidates, key=lambda a: (self._score(a), a))
        # Doubles go two registers at a time: a long chain of functions waits for its own results,
        # and the next vector is too far ahead for the processor to see. Short axes fit in one.
        # Registers of 256 bits are few, too: four for each value would be spilled and read again.
        short = nest.sizes[self.vector] <= LANES // 2
        sums = self.vector == nest.axis
        if self.is_wide() and (short or not (sums or avx512.enabled())):
            self.width = LANES // 2
        rest = [a for a in axes if a not in (self.vector, nest.axis)]
        if nest.axis < 0:
            self.mode = "plain"
            self._choose_row(nest.sizes[self.vector])
            self.columns = apart.columns_of(nest, self.vector)
            self.across = self._across(self.vector)
            # Results are written front to back, as far as one order does for all of them.
            first = self.columns[0][0] if self.across >= 0 else 0
            written = nest.outputs[first].offset
            rest.sort(key=lambda a: -abs(written.coefficient(a)))
            self.order = [*rest, self.vector]
            if self.across >= 0 or written.coefficient(self.vector) > 1:
                # Lanes that go to lines apart: what else goes to these lines follows at once.
                self.order.sort(key=lambda a: -abs(written.coefficient(a)))
        elif running:
            self.mode = "running"
            self.order = [*rest, self.vector, nest.axis]
        elif self.vector == nest.axis:
            self.mode = "inner"
            self.order = [*rest, nest.axis]
        else:
            self.mode = "outer"
            self.order = [*rest, self.vector, nest.axis]

    def _across(self, vector: int) -> int:
        return apart.across(self.nest, vector) if self._in_blocks else -1

    def _choose_row(self, size: int) -> None:
        """Where a row is a vector at most, take the smallest one that holds it, and no loop."""
        blocked = self.block is not None and self.block[0] == self.vector
        if size > LANES // 2 or blocked or self.nest.filled is not None:
            return
        self.width = LANES // 4 if size <= LANES // 4 else LANES // 2
        self.row = size

    def _choose_crossed(self) -> None:
        """Lanes along the reduced axis that suits the reads, rows of the other one after another."""
        self.mode = "crossed"
        both = (self.axis, self.cross)
        self.vector = self.axis = max(both, key=lambda a: (self._score(a), a))
        self.cross = sum(both) - self.axis
        self.order = [self.cross, self.axis]

    def _choose_for_writes(self) -> None:
        """Axes in order; lanes only along a last axis that the positions do not depend on."""
        nest = self.nest
        self.mode = "scatter"
        self.order = list(range(len(nest.sizes)))
        last = self.order[-1]
        whole_rows = all(
            o.offset.coefficient(last) == 1
            and not any(nest.varies(nest.dynamic[v], last) for v, _ in o.offset.terms if v < 0)
            for o in nest.outputs
        )
        if not whole_rows or nest.sizes[last] <= SHORT_ROW:
            self.vector, self.width = NO_AXIS, 1
            return
        self.vector = last
        if nest.sizes[last] <= LANES // 2 and self.is_wide():
            self.width = LANES // 2

    def is_wide(self) -> bool:
        """Whether any value has eight bytes."""
        return any(i.dtype.itemsize > 4 for i in self.nest.insts)

    def _is_peeled(self, functions: int) -> bool:
        """Whether whole vectors get a loop without masks: where that makes little code more."""
        if not self.inline or functions:
            return False
        length = len(self.nest.insts)
        if self.mode == "plain":
            # With mask registers there is nothing to gain.
            rows = bool(self.order) and self.order[-1] == self.vector and not self.row
            rows = rows and self.across < 0
            rows = rows and self.nest.filled is None and not avx512.enabled()
            return rows and length <= MAX_PEELED_ROWS
        return self.mode in ("inner", "crossed") and length <= MAX_PEELED

    def _score(self, axis: int) -> float:
        """How well lanes along `axis` use memory: consecutive good, strided bad."""
        nest = self.nest
        score = 0.0
        for inst in nest.insts:
            if inst.kind == "load":
                dynamic = any(
                    v < 0 and nest.varies(nest.dynamic[v], axis) for v, _ in inst.offset.terms
                )
                step = inst.offset.coefficient(axis)
                score += {0: 1.0, 1: 3.0}.get(step, -4.0) if not dynamic else 0.0
        # What is transposed in registers is stored nearly as fast as rows are.
        elsewhere = -4.0 if self._across(axis) < 0 else -1.0
        for output in nest.outputs:
            if not output.combine or axis != output.axis:
                score += 4.0 if output.offset.coefficient(axis) == 1 else elsewhere
            else:
                score += 2.0
        size = nest.sizes[axis]
        if self.block is not None and self.block[0] == axis:
            size = min(size, self.block[1])
        used = min(size, self.width) / self.width
        return score * used if score > 0 else score

    def is_same_in_lanes(self, form: Affine) -> bool:
        """Whether the computed positions in a form do not change along the vector axis."""
        nest = self.nest
        return not any(v < 0 and nest.varies(nest.dynamic[v], self.vector) for v, _ in form.terms)

    def _cost(self) -> float:
        """Estimated serial nanoseconds of the whole nest."""
        total = 1 if self.mode == "straight" else math.prod(self.nest.sizes)
        each = 0.0
        for inst in self.nest.insts:
            if inst.kind == "op" and inst.op is not None:
                each += 0.06 * inst.op.cost
            elif inst.kind == "load":
                each += 0.3
        each += 0.4 * len(self.nest.outputs)
        if self.width == 1 or self.mode == "straight":
            return total * each * 3.0
        return total * each * (1.0 if self.is_wide() else 0.6)

    def _chunk(self) -> None:
        """Decide what a chunk is, and how many there are."""
        nest = self.nest
        self.extent = 1
        self.chunk = 1
        if not self.order or self.mode == "scatter":
            return
        if self.nest.filled is not None:
            self.chunk = nest.sizes[self.order[0]]
            return
        wanted = int(max(1.0, min(float(MAX_CHUNKS), self.cost_ns / CHUNK_NS)))
        if self.mode == "crossed":
            most = min(wanted, MAX_PARTS, max(2, 2 * pool.get_num_threads() - 1))
            while 2 * self.extent <= most:
                self.extent *= 2
            return
        first = self.order[0]
        size = nest.sizes[first]
        reducing = self.mode in ("inner", "outer")
        # Threads that took columns of few rows each would all read every line of memory.
        narrow = first == self.vector and size < 8 * TILE and nest.sizes[nest.axis] > 8 * UNIT
        if reducing and (first == nest.axis or narrow):
            units = -(-nest.sizes[nest.axis] // UNIT)
            self.split = wanted > 1 and units > 1
            if self.split:
                self.chunk = -(-units // wanted)
                self.extent = -(-units // self.chunk)
                return
            if first == nest.axis:
                return
        if self.mode == "running" and first == nest.axis:
            return
        grain = 1
        if first == self.vector:
            grain = TILE if self.mode == "outer" else self.width
        per = -(-size // wanted)
        self.chunk = -(-per // grain) * grain
        self.extent = -(-size // self.chunk)

    # -- parameters -------------------------------------------------------------------

    def parameter(self, what: Any, value: Any) -> int:
        """The argument position of a run-time value, the same for the same `what`."""
        place = self._places.get(what)
        if place is None:
            place = self._places[what] = len(self.parameters)
            self.parameters.append(value)
        return place

    def value(self, what: Any) -> int:
        """A run-time value that was given."""
        found: int = self.parameters[self._places[what]]
        return found

    def slot(self, node: Node | None) -> int:
        """The argument that holds the slot of a node's buffer; None is the scratch buffer."""
        return self.parameter(("slot", None if node is None else node.number), node)

    def _scratch_for(self, place: int) -> None:
        """Room for the partial results of one output: 8 bytes per state part, element and unit."""
        output = self.nest.outputs[place]
        target = output.target
        parts = 2 if output.combine in ("argmax", "argmin") else 1
        units = -(-self.nest.sizes[self.nest.axis] // UNIT)
        start = self._scratch.get(target.number)
        if start is None:
            # Outputs that fill one buffer together share the room and are joined together.
            start = self._scratch[target.number] = self.scratch_bytes
            self.joins.append((place, start, units))
            self.scratch_bytes += 8 * parts * units * target.size
        self.parameter(("scratch", place), start)
        self.parameter(("elements", place), target.size)

    def _scratch_for_crossing(self) -> None:
        """Rows of partial results for each output along the cross axis, and the phases they allow."""
        # A vector more than needed: rows a page apart would share their places in the cache.
        padded = (-(-self.nest.sizes[self.axis] // self.width) + 1) * self.width
        row = 8 * padded
        units = -(-self.nest.sizes[self.cross] // UNIT)
        places = [p for p, o in enumerate(self.nest.outputs) if o.axis == self.cross]
        together = max(1, PARTS_BYTES // (row * self.extent * len(places)))
        self.phases = [(u, min(u + together, units)) for u in range(0, units, together)]
        self.parameter("first unit", 0)
        self.parameter("last unit", units)
        self.parameter("padded", padded)
        waiting = (LANES // self.extent).bit_length()
        for place in places:
            parts = self.scratch_bytes
            rows = parts + row * self.extent * min(together, units)
            tree = rows + row * self.extent * waiting
            self.scratch_bytes = tree + row * units.bit_length()
            self.crossings.append(Crossing(place, parts, rows, tree))
            self.parameter(("parts", place), parts)
            self.parameter(("rows", place), rows)
        for place, output in enumerate(self.nest.outputs):
            if output.axis == self.axis:
                self.row_results.append((place, self.scratch_bytes))
                self.parameter(("results", place), self.scratch_bytes)
                self.scratch_bytes += 8 * UNIT * min(together, units)

    def _reaches(self, filled: Node) -> None:
        """How far the stores of a turn of the outermost loop reach, in elements of the buffer."""
        self.parameter("filled bytes", filled.size * filled.dtype.itemsize)
        outermost = self.order[0]
        turn = self.width if outermost == self.vector else 1
        for place, output in enumerate(self.nest.outputs):
            step = output.offset.coefficient(outermost)
            reach = output.offset.const + (turn - 1) * step + 1
            for v, k in output.offset.terms:
                if v != outermost:
                    reach += k * (self.nest.sizes[v] - 1)
            self.parameter(("ahead", place), reach)
            self.parameter(("ahead step", place), step)

    def state(self, output: Output) -> Node:
        """The buffer of a result's lanes."""
        target = output.target
        found = self.states.get(target.number)
        if found is None:
            shape = (LANES, target.size)
            number = STATES + target.number
            found = self.states[target.number] = Node(INPUT, (), (), shape, target.dtype, number)
        return found

    # -- key --------------------------------------------------------------------------

    def lines(self) -> int:
        """About how many lines of IR the kernel takes."""
        count = len(self.nest.insts)
        if self.mode == "straight":
            return 2 * count
        if self.across >= 0:
            count *= apart.COPIES
        loops = {"plain": 50, "inner": 150, "outer": 330}.get(self.mode, 250)
        functions = sum(i.op is not None and i.op.cost >= FUNCTION_COST for i in self.nest.insts)
        return loops + 6 * count + 60 * functions * self.inline

    def recipe(self) -> str | None:
        """The key as text that is the same in every process, if there is such a text."""
        for inst in self.nest.insts:
            if inst.op is not None and REGISTRY.get(inst.op.name) is not inst.op:
                return None
            if not _PLAIN.issuperset(map(type, inst.attrs)):
                return None
        return repr(self.key)

    def _form(self, form: Affine) -> tuple[Any, ...]:
        """The pattern of an affine form; registers its run-time numbers, where there are any.

        Forms with equal numbers share them, so that what they come to is computed once.
        """
        if self.mode == "straight":
            return form.const, form.terms
        pattern: list[Any] = [self._terms.setdefault(form.terms, len(self._terms))]
        if form.const:
            pattern.append(("c", self._consts.setdefault(form.const, len(self._consts))))
            self.parameter(self.const(form), form.const)
        for v, k in form.terms:
            if v == self.vector and k == 1:
                pattern.append((v, 1))
            else:
                self.parameter(self.step(form, v), k)
                pattern.append(v)
        return tuple(pattern)

    def step(self, form: Affine, variable: int) -> tuple[Any, ...]:
        """The name of the parameter that a form has for a variable's coefficient."""
        return "step", self._terms[form.terms], variable

    def const(self, form: Affine) -> tuple[Any, ...]:
        """The name of the parameter for a form's constant."""
        return "const", self._consts[form.const]

    def pair_place(self, inst: Inst) -> int:
        """For a load of every second element, whether it takes the first or the second of pairs.

        -1 for other loads. Each pair must lie in the array as a whole: then lanes read both and
        pick theirs, which is much quicker than a gather.
        """
        node, form = inst.node, inst.offset
        if node is None or self.width == 1 or self.vector < 0 or node.size % 2:
            return -1
        if form.coefficient(self.vector) != 2 or any(v < 0 or k % 2 for v, k in form.terms):
            return -1
        return form.const % 2

    def _key(self) -> tuple[Any, ...]:
        nest = self.nest
        names: dict[int, int] = {}

        def buffer(node: Node) -> int:
            names.setdefault(node.number, len(names))
            self.slot(node)
            return names[node.number]

        parts: list[Any] = [
            self.width, self.vector, self.mode, self.row, self.one_unit, self.split, self.resumed,
            self.chunked, self.across, self.columns,
            tuple(self.order), self.inline,
        ]  # fmt: skip
        if self.mode == "straight":
            parts.extend(nest.sizes)
        for axis in self.order:
            self.parameter(("size", axis), nest.sizes[axis])
        self.parameter("chunk", self.chunk)
        for number, inst in enumerate(nest.insts):
            part: tuple[Any, ...] = (inst.kind, inst.dtype.code, inst.args, inst.guard)
            if inst.kind == "op":
                part += (inst.op, inst.attrs)
            elif inst.kind == "load":
                assert inst.node is not None
                part += (buffer(inst.node), self._form(inst.offset), self.pair_place(inst))
            elif inst.kind == "constant":
                part += (repr(inst.value),)
            elif inst.kind == "position":
                part += (self._form(inst.offset),)
            elif inst.kind == "inside":
                tests = []
                for place, (test, size) in enumerate(inst.bounds):
                    tests.append(self._form(test))
                    if self.mode == "straight":
                        tests.append((size,))
                    else:
                        self.parameter((number, place, "bound"), size)
                part += tuple(tests)
            parts.append(part)
        parts.append(tuple(sorted(nest.dynamic.items())))
        for place, output in enumerate(nest.outputs):
            form = self._form(output.offset)
            parts.append(
                (output.combine, output.cumulative, repr(output.identity), output.insts,
                 buffer(output.target), output.target.dtype.code, form, output.axis)
            )  # fmt: skip
            if self.split and output.combine:
                self._scratch_for(place)
            if self.resumed and output.combine:
                parts.append(buffer(self.state(output)))
                self.parameter(("elements", place), output.target.size)
        if nest.filled is not None:
            parts.append(("filled", buffer(nest.filled)))
            self._reaches(nest.filled)
        if self.mode == "crossed":
            self._scratch_for_crossing()
            parts.append(self.extent)
        if self.split or self.crossings:
            self.slot(None)
        return tuple(parts)

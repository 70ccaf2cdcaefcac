"""Loops whose steps are programs: a kernel that runs a program once per step.

Two structures:

* `Stepwise`: a loop's inner program and where its inputs, outputs and temporaries lie;
* a copy: bytes that go from one place to another before or after each step. A place is in
  the scratch memory, in a slot of the outer program, or in the current row of one.

What is carried lives in scratch memory. A step that reports a failure ends the loop; then
Python runs it again, and the routine that failed raises the error. Start reading at
`Stepwise.emit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from symgrad.codegen import interrupt, kernels, plan
from symgrad.codegen.ir import Function, Module, Val, constant
from symgrad.codegen.iteration import UNKNOWN
from symgrad.codegen.loops import ARGUMENTS, Loop
from symgrad.codegen.plan import RELEASE_GIL_NS, Launch
from symgrad.ops.loop import ends_itself, results_of
from symgrad.schedule.canonical import Node, canonical
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.program import schedule

if TYPE_CHECKING:
    from symgrad.codegen.build import Program

ALIGN = 64

LONGEST_NS = 1 << 50
"""Estimates end here: loops that end themselves may stand in one another."""


class Place(NamedTuple):
    """Where bytes lie: at an offset of the scratch memory, or in a slot of the outer program.

    Attributes
    ----------
    node : Node or None
        The outer buffer, None for scratch memory.
    offset : int
        In bytes, into the scratch memory.
    row : int
        Bytes per step, 0 for the buffer as a whole.
    """

    node: Node | None
    offset: int = 0
    row: int = 0


class Copy(NamedTuple):
    """Bytes to move from one place to another."""

    source: Place
    target: Place
    size: int


def _bytes(node: Any) -> int:
    return int(node.size) * int(node.dtype.itemsize)


class Stepwise:
    """A loop that runs a program per step.

    Parameters
    ----------
    step : Iteration
        With a single run.
    make : callable
        The program of a schedule and its outputs.

    Attributes
    ----------
    inner : Program
    native : bool
        Whether a step is a single native call.
    cost_ns : int
        Estimated serial time of the whole loop.
    scratch_bytes : int
    """

    def __init__(self, step: Iteration, make: Callable[..., Program]) -> None:
        (self.run,) = step.runs
        graph = canonical(self.run.body.outputs)
        steps = schedule(graph)
        self.roots = graph.roots
        outputs = list({n.number: n for n in graph.roots if n.input < 0}.values())
        self.inner = make(steps, outputs)
        self.native = self.inner.native
        turns = UNKNOWN if ends_itself(self.run.length) else self.run.length
        self.cost_ns = min(int(self.inner.cost_ns + 50) * int(turns), LONGEST_NS)
        self._top = 0
        self._carried = [self._room(_bytes(n)) for n in self.run.initial]
        self._results = [self._room(_bytes(n)) for n in outputs]
        self._arena = self._room(self.inner.arena_bytes)
        self._status = self._room(8)
        slots = len(self.inner.inputs) + len(outputs) + len(self.inner.pieces) + 1
        self._table = self._room(8 * slots)
        self._slots = self._inner_slots()
        self._before, self._after = self._copies()
        self.scratch_bytes = self._top

    def _room(self, size: int) -> int:
        """Room in the scratch memory; places of empty values differ too."""
        start = self._top
        self._top += -(-max(size, 1) // ALIGN) * ALIGN
        return start

    def _inner_slots(self) -> list[Place]:
        """Where each slot of the inner program points."""
        run = self.run
        carries, split = len(run.initial), len(run.initial) + len(run.stacks)
        number = {id(x): k for k, x in enumerate(run.body.inputs)}
        inputs = self.inner.schedule.graph.inputs
        found = []
        for n in self.inner.inputs:
            k = number[id(inputs[n.input])]
            if k < carries:
                found.append(Place(None, self._carried[k]))
            else:
                row = _bytes(run.body.inputs[k]) if k < split else 0
                found.append(Place(run.args[k], 0, row))
        found += [Place(None, offset) for offset in self._results]
        found += [Place(None, self._arena + offset) for offset in self.inner.pieces]
        if self.inner.status_slot is not None:
            found.append(Place(None, self._status))
        return found

    def _output(self, k: int) -> Place:
        """Where an output of the body is found after a step."""
        return self._slots[self.inner.slots[self.roots[k].number]]

    def _copies(self) -> tuple[list[Copy], list[Copy]]:
        """What is copied before a step, and after it."""
        run = self.run
        carries = len(run.initial)
        numbering = results_of(run.body, carries)
        before, after = [], []
        for result, target in run.targets.items():
            kind, k = numbering.kind(result)
            if kind == "history":
                size = _bytes(run.body.inputs[k])
                before.append(Copy(Place(None, self._carried[k]), Place(target, 0, size), size))
            elif kind == "rows":
                size = _bytes(run.body.outputs[carries + k])
                after.append(Copy(self._output(carries + k), Place(target, 0, size), size))
        # What comes from another carried value is set aside first: two may change places.
        late = []
        for k, initial in enumerate(run.initial):
            source, carried = self._output(k), Place(None, self._carried[k])
            if source == carried:
                continue
            size = _bytes(initial)
            if source.node is None and source.offset in self._carried:
                aside = Place(None, self._room(size))
                after.append(Copy(source, aside, size))
                source = aside
            late.append(Copy(source, carried, size))
        return before, after + late

    def _ends(self) -> tuple[list[Copy], list[Copy]]:
        """What is copied before the first step, and after the last."""
        first = [
            Copy(Place(n), Place(None, offset), _bytes(n))
            for n, offset in zip(self.run.initial, self._carried, strict=True)
        ]
        numbering = results_of(self.run.body, len(self.run.initial))
        last = []
        for result, target in self.run.targets.items():
            kind, k = numbering.kind(result)
            if kind == "final":
                last.append(Copy(Place(None, self._carried[k]), Place(target), _bytes(target)))
        return first, last

    def launch(self, slots: dict[int, int], status: int | None) -> tuple[Launch, object]:
        """The launch of the whole loop, and what must live as long.

        Parameters
        ----------
        slots : dict of int to int
            The outer program's slot of each node by number, and of its scratch memory by -1.
        status : int or None
            Where the number of the first result, plus one, is put when a step fails.
        """
        mark = next(iter(self.run.targets.values())).number + 1
        emitter = _Emitter(self, slots, 0 if status is None else status, mark)
        kernel = emitter.kernel()
        whole = self.inner.whole_plan()
        launch = Launch(kernel.address, (whole.address, *emitter.numbers), 1, self.cost_ns)
        return launch, (kernel, whole, self.inner)

    def run_in_python(self, operands: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """The wanted results by number, step by step."""
        run = self.run
        carries, split = len(run.initial), len(run.initial) + len(run.stacks)
        numbering = results_of(run.body, carries)
        held = [np.array(a) for a in operands[:carries]]
        results = {r: np.empty(n.shape, n.dtype.numpy) for r, n in run.targets.items()}
        number = {id(x): k for k, x in enumerate(run.body.inputs)}
        inputs = [number[id(self.inner.schedule.graph.inputs[n.input])] for n in self.inner.inputs]
        place = {n.number: k for k, n in enumerate(self.inner.outputs)}
        compute = self.inner.runner()
        for step in _steps(run.length, run.backward, held):
            given = [*held, *[a[step] for a in operands[carries:split]], *operands[split:]]
            made = compute(tuple([np.ascontiguousarray(given[k]) for k in inputs]))
            outputs = []
            for n, y in zip(self.roots, run.body.outputs, strict=True):
                k = number[id(self.inner.schedule.graph.inputs[n.input])] if n.input >= 0 else -1
                outputs.append((given[k] if k >= 0 else made[place[n.number]]).reshape(y.shape))
            for result, array in results.items():
                kind, k = numbering.kind(result)
                if kind != "final":
                    array[step] = held[k] if kind == "history" else outputs[carries + k]
            held[:] = outputs[:carries]
        for result, array in results.items():
            if result < carries:
                array[...] = held[result]
        return results


def _steps(length: int, backward: bool, held: Sequence[np.ndarray]) -> Iterator[int]:
    """The numbers of a loop's steps; whether there is another may depend on what is carried."""
    if not ends_itself(length):
        yield from range(length - 1, -1, -1) if backward else range(length)
        return
    step = 0
    while held[0]:
        yield step
        step += 1


class _Emitter:
    """The kernel of one pattern of copies; sizes, slots and offsets are arguments."""

    def __init__(self, stepwise: Stepwise, slots: dict[int, int], status: int, mark: int) -> None:
        self.w = stepwise
        self.slots = slots
        self.numbers: list[int] = []
        self.long = stepwise.cost_ns > RELEASE_GIL_NS
        self.until = ends_itself(stepwise.run.length)
        self.fails = stepwise.inner.status_slot is not None
        self.pattern: list[Any] = [stepwise.run.backward, self.until, self.fails, self.long]
        self.module = Module()
        self.f = Function(self.module, "stepwise", ARGUMENTS, None, "nounwind")
        self.scratch = self._slot(slots[-1])
        self._emit(status, mark)

    def kernel(self) -> kernels.Kernel:
        """The compiled code, shared by equal patterns."""
        plan.runner_symbols()
        if self.long:
            interrupt.runner()
        return kernels.shared_kernel(("stepwise", *self.pattern), self.module, "stepwise")

    def _argument(self, number: int) -> Val:
        """A number of the launch."""
        self.numbers.append(number)
        place = constant("i64", len(self.numbers))
        return self.f.load(self.f.gep(self.f.arguments[1], place, "i64"), "i64")

    def _slot(self, number: int) -> Val:
        return self.f.load(self.f.gep(self.f.arguments[0], self._argument(number), "ptr"), "ptr")

    def _address(self, place: Place, row: Val | None) -> Val:
        """The address of a place; of a row's place in the current step."""
        f = self.f
        self.pattern.append((place.node is None, place.row > 0))
        if place.node is None:
            return f.gep(self.scratch, self._argument(place.offset), "i8")
        base = self._slot(self.slots[place.node.number])
        if not place.row:
            return base
        assert row is not None
        return f.gep(base, f.mul(row, self._argument(place.row)), "i8")

    def _copy(self, copies: Sequence[Copy], row: Val | None) -> None:
        self.pattern.append(len(copies))
        for copy in copies:
            source, target = self._address(copy.source, row), self._address(copy.target, row)
            size = self._argument(copy.size)
            self.f.call(
                "llvm.memcpy.p0.p0.i64", None, [target, source, size, constant("i1", False)]
            )

    def _going(self) -> Val:
        """Whether the loop's condition, its first carried value, holds."""
        f = self.f
        place = f.gep(self.scratch, self._argument(self.w._carried[0]), "i8")
        return f.icmp("ne", f.load(place, "i8"), constant("i8", 0))

    def _emit(self, status: int, mark: int) -> None:
        f, w = self.f, self.w
        zero, one = constant("i64", 0), constant("i64", 1)
        inner_plan = f.load(f.arguments[1], "ptr")
        length = self._argument(w.run.length)
        self.last = f.alloca("i64")
        f.store(zero, self.last)
        first, last = w._ends()
        self._copy(first, None)
        table = f.gep(self.scratch, self._argument(w._table), "i8")
        failure = f.gep(self.scratch, self._argument(w._status), "i8")
        f.store(zero, failure)
        self.pattern.append(len(w._slots))
        for k, place in enumerate(w._slots):
            if not place.row:
                f.store(self._address(place, None), f.gep(table, constant("i64", k), "ptr"))
        first_step = self._going() if self.until else None
        loop = Loop(f, 0, zero, length, 1, [], going=first_step)
        row = f.sub(f.sub(length, one), loop.iv) if w.run.backward else loop.iv
        for k, place in enumerate(w._slots):
            if place.row:
                self.pattern.append(k)
                f.store(self._address(place, row), f.gep(table, constant("i64", k), "ptr"))
        self._copy(w._before, row)
        f.call("sg_run", None, [inner_plan, table])
        if self.long:
            interrupt.leave_if_interrupted(self.f, self.last)
        if self.fails:
            going, failed = f.label("going"), f.label("failed")
            fine = f.icmp("eq", f.load(failure, "i64"), zero)
            f.branch_if(fine, going, failed)
            f.start(failed)
            word = self._slot(status)
            f.store(self._argument(mark), word)
            f.ret()
            f.start(going)
        self._copy(w._after, row)
        loop.close(f, [], self._going() if self.until else None)
        self._copy(last, None)
        f.ret()
        f.finish()

"""From a schedule to a program that runs: launches, slots, memory.

Structures:

* `Segment`: launches that run one after the other without Python in between.
* `Program`: segments and library routines in order, the buffers each call needs, and what goes
  in and out. What `Program.runner` gives takes arrays and makes new ones.

Slots are numbered: inputs, outputs, scratch pieces of one arena, and a status word if there are
native library calls. Where one of them fails, the program runs again with Python's routine in its
place, which raises the error. A program without Python routines is a single native call.
Start reading at `Program`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from symgrad.codegen import ahead, emission, gemm, gemm_library, interrupt, kernels, lapack, plan
from symgrad.codegen.arena import ALIGN, arranged
from symgrad.codegen.entry import EagerSpec, make_executor
from symgrad.codegen.iteration import cost_of
from symgrad.codegen.lapack import LapackCall
from symgrad.codegen.launches import SCRATCH, Launches, loop_arguments, stream_launches
from symgrad.codegen.layout import UNIT, Layout
from symgrad.codegen.partials import FOLD_CHUNK
from symgrad.codegen.plan import RELEASE_GIL_NS, Launch, Plan
from symgrad.codegen.recomputation import ordered, product_plan, thread_bytes
from symgrad.codegen.rows import Task
from symgrad.codegen.stepwise import Stepwise
from symgrad.codegen.stream import Streamed
from symgrad.schedule.canonical import Node
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.packing import FIRST_NUMBER, Packing
from symgrad.schedule.steps import Loops, Product, Routine, Schedule, Step, Stream
from symgrad.schedule.straight import join_short

PythonStep = Routine | Iteration
"""Steps that Python may have to run."""


def _is_stored(n: Node) -> bool:
    """Whether a node that a copy reads has a buffer: all but the view that orders the copy."""
    return not n.op.keeps_order or n.number < FIRST_NUMBER


class Segment:
    """Consecutive native launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.keep: list[object] = []

    def plan(self) -> Plan:
        return Plan(self.launches, self.keep)


class Program:
    """An executable schedule.

    Parameters
    ----------
    schedule : Schedule
    outputs : sequence of Node
        Stored nodes whose arrays a run makes, without repetition.
    inline : bool
        Whether vector maths is inlined (compiled functions) or called (eager looks).
    small : bool
        Whether values are computed again where that lowers the peak of memory.

    Attributes
    ----------
    inputs, outputs : list of Node
    native : bool
        Whether the whole program is one native call.
    cost_ns : int
        Estimated serial time.
    status_slot : int or None
        Where native library calls report a failure.
    """

    def __init__(
        self, schedule: Schedule, outputs: Sequence[Node], inline: bool, small: bool = False
    ) -> None:
        self.schedule = schedule
        self.inputs = sorted(
            (n for n in schedule.graph.nodes if n.input >= 0), key=lambda n: n.input
        )
        self.outputs = list(outputs)
        self.slots: dict[int, int] = {}
        for place, n in enumerate([*self.inputs, *self.outputs]):
            self.slots[n.number] = place
        self.layouts: list[Layout] = []
        self.tasks: list[Task | Streamed] = []
        self._streams: dict[int, Launches] = {}
        self._products: dict[int, gemm.GemmLaunch] = {}
        self._inline = inline
        self._small = small
        if inline:
            # Only where a program is compiled once and called often: sizes are part of the code.
            join_short(schedule, {n.number for n in self.outputs})
        self._prepare_layouts()
        self._stepwise = {
            step.target.number: Stepwise(step, self._inner)
            for step in schedule.steps
            if isinstance(step, Iteration) and not step.small
        }
        self._calls = self._library_calls()
        self.pieces: list[int] = []
        self.arena_bytes = 0
        self._place_temporaries()
        after = len(self.inputs) + len(self.outputs) + len(self.pieces)
        self.status_slot = after if self._calls else None
        self.slot_count = after + (self.status_slot is not None)
        self.steps = self._assembled(self._calls)
        self.native = all(isinstance(s, Segment) for s in self.steps) and len(self.steps) <= 1
        launches = [x for s in self.steps if isinstance(s, Segment) for x in s.launches]
        self.cost_ns = sum(x.cost_ns for x in launches)
        self._plans = _plans_of(self.steps)
        self._plans_without: dict[frozenset[int], list[Plan | PythonStep]] = {
            frozenset(): self._plans
        }
        self._spec: EagerSpec | None = None

    # -- building ---------------------------------------------------------------------

    def _inner(self, schedule: Schedule, outputs: Sequence[Node]) -> Program:
        """The program of one step of a loop."""
        return Program(schedule, outputs, self._inline, self._small)

    def _prepare_layouts(self) -> None:
        self._packing = Packing()
        tasks = [task for step in self.schedule.steps for task in self._lay_out(step)]
        pinned = {n.number for n in (*self.inputs, *self.outputs)}
        regions = self.schedule.regions
        self.tasks = ordered(tasks, pinned, regions, self._small, self._inline)
        self.schedule.steps = [task.step for task in self.tasks]
        stored = self.schedule.stored
        known = {n.number for n in stored}
        for task in self.tasks:
            if isinstance(task, Streamed):
                self.layouts += task.layouts
                written = task.written - known
                stored += [n for number, n in task.buffers.items() if number in written]
                continue
            stored += [n for n in task.writes.values() if n.number not in known]
            if task.layout is not None:
                self.layouts.append(task.layout)
        for kind, sizes in self._tiles().items():
            if gemm_library.tiles(kind).lacks(sizes):
                ahead.beside(partial(gemm.prepare, kind, sizes))
        found = kernels.compile_layouts(self.layouts)
        self._compiled = {id(y): kernel for y, kernel in zip(self.layouts, found, strict=True)}

    def _tiles(self) -> dict[str, frozenset[gemm_library.Size]]:
        """The register tiles of all products outside streams, by kind."""
        found: dict[str, frozenset[gemm_library.Size]] = {}
        for task in self.tasks:
            if isinstance(task, Task) and isinstance(task.step, Product):
                kind = task.step.target.dtype.kind
                made = self._products[id(task)] = product_plan(task.step)
                if made.extent:
                    found[kind] = found.get(kind, frozenset()) | made.tiles
        return found

    def _lay_out(self, step: Step) -> list[Task]:
        """A step with its layout, after the copies that it needs."""
        if isinstance(step, Stream):
            raise TypeError("a stream is made of steps that have layouts already")
        if not isinstance(step, Loops):
            return [Task(step, None)]
        nest = step.build()
        layout = Layout(nest, self._inline)
        copies = self._packing.pack(nest, layout.vector) if layout.vector >= 0 else []
        tasks = []
        for item in copies:
            copy = Loops([item], _is_stored)
            tasks.append(Task(copy, Layout(copy.build(), self._inline)))
        # Where lanes run is chosen anew, now that more reads are consecutive.
        return [*tasks, Task(step, Layout(nest, self._inline))]

    def _library_calls(self) -> dict[int, LapackCall | Stepwise]:
        """Native calls of library ops and loops of programs, by number of their result."""
        found: dict[int, LapackCall | Stepwise] = {
            number: loop for number, loop in self._stepwise.items() if loop.native
        }
        for step in self.schedule.steps:
            if isinstance(step, Routine):
                call = lapack.native_call(step.target)
                if call is not None:
                    found[step.target.number] = call
        return found

    def _place_temporaries(self) -> None:
        """Give each temporary a place in the arena, reusing room of those no longer needed."""
        places, self.arena_bytes = self._places([task.heirs(self._small) for task in self.tasks])
        for number, offset in places.items():
            self._new_piece(number, offset)

    def _places(self, heirs: Sequence[Mapping[int, Sequence[int]]]) -> tuple[dict[int, int], int]:
        """Offsets of temporaries and of scratch memory, and the bytes of all; `heirs` as in `arranged`."""
        given = {n.number for n in (*self.inputs, *self.outputs)}
        sizes = {
            n.number: n.size * n.dtype.itemsize
            for n in self.schedule.stored
            if n.number not in given
        }
        places, top = arranged([task.used for task in self.tasks], sizes, heirs)
        needs = [y.scratch_bytes for y in self.layouts]
        needs += [call.scratch_bytes for call in self._calls.values()]
        scratch = max(needs, default=0)
        if scratch:
            places[SCRATCH] = top
        return places, top + scratch

    def _new_piece(self, number: int, offset: int) -> None:
        self.slots[number] = len(self.inputs) + len(self.outputs) + len(self.pieces)
        self.pieces.append(offset)

    def step_launches(self) -> list[list[Launch] | PythonStep]:
        """What each step of the schedule runs: launches, or a routine of Python's."""
        steps = self._assembled(self._calls, apart=True)
        return [s.launches if isinstance(s, Segment) else s for s in steps]

    def _assembled(
        self, calls: dict[int, LapackCall | Stepwise], apart: bool = False
    ) -> list[Segment | PythonStep]:
        """The steps, with the library calls given made natively; `apart` joins none of them."""
        steps: list[Segment | PythonStep] = []
        for task in self.tasks:
            step = task.step
            call = None
            if isinstance(step, Routine) or (isinstance(step, Iteration) and not step.small):
                call = calls.get(step.target.number)
                if call is None:
                    steps.append(step)
                    continue
            if apart or not steps or not isinstance(steps[-1], Segment):
                steps.append(Segment())
            segment = steps[-1]
            assert isinstance(segment, Segment)
            if isinstance(call, Stepwise):
                self._add_stepwise(segment, call)
            elif isinstance(step, Routine):
                assert isinstance(call, LapackCall)
                self._add_call(segment, step, call)
            elif isinstance(step, Product):
                self._add_product(segment, step, self._products[id(task)])
            elif isinstance(step, Iteration):
                self._add_iteration(segment, step)
            elif isinstance(task, Streamed):
                self._add_stream(segment, task)
            else:
                assert task.layout is not None
                self._add_loops(segment, task.layout, self._compiled[id(task.layout)])
        return steps

    def _add_call(self, segment: Segment, step: Routine, call: LapackCall) -> None:
        if call.batch == 0:
            return
        assert self.status_slot is not None
        buffers = [self.slots[n.number] for n in (*step.operands, step.target)]
        # Without need for scratch memory any slot will do.
        scratch = self.slots.get(SCRATCH, buffers[0])
        mark = step.target.number + 1
        launch, library = call.launch(self.status_slot, mark, scratch, tuple(buffers))
        segment.launches.append(launch)
        segment.keep.append(library)

    def _add_stepwise(self, segment: Segment, loop: Stepwise) -> None:
        launch, owners = loop.launch(self.slots, self.status_slot)
        segment.launches.append(launch)
        segment.keep.append(owners)

    def _add_iteration(self, segment: Segment, step: Iteration) -> None:
        steps = step.quantities()
        cost = int(cost_of(steps, step.length))
        kernel = kernels.iteration_kernel(steps, step.backward, cost > RELEASE_GIL_NS)
        buffers = tuple([self.slots[n.number] for n in steps.buffers()])
        segment.launches.append(Launch(kernel.address, (step.length, *buffers), 1, cost))
        segment.keep.append(kernel)

    def _add_stream(self, segment: Segment, task: Streamed) -> None:
        # Made once and kept: the launch points into memory that it owns.
        made = self._streams.get(id(task))
        if made is None:
            made = stream_launches(task, self._compiled, self.slots, self.slot_count)
            self._streams[id(task)] = made
        segment.launches += made.launches
        segment.keep += made.keep

    def _add_loops(self, segment: Segment, layout: Layout, kernel: kernels.Kernel) -> None:
        arguments = list(loop_arguments(layout, self.slots))
        segment.keep.append(kernel)
        if layout.crossings:
            self._add_phases(segment, layout, kernel, arguments)
            return
        segment.launches.append(
            Launch(kernel.address, tuple(arguments), layout.extent, int(layout.cost_ns))
        )
        for place, start, units in layout.joins:
            output = layout.nest.outputs[place]
            element = layout.nest.insts[output.insts[0]].dtype.kind
            join = kernels.join_kernel(output.combine, element)
            target = output.target
            numbers = (self.slots[SCRATCH], start, units, target.size, self.slots[target.number], 0)
            segment.launches.append(Launch(join.address, numbers, 1, int(target.size * units)))
            segment.keep.append(join)

    def _add_phases(
        self, segment: Segment, layout: Layout, kernel: kernels.Kernel, arguments: list[int]
    ) -> None:
        """The launches of a crossed nest: some units at a time, and after each what it left to finish."""
        nest = layout.nest
        columns, units = nest.sizes[layout.axis], layout.phases[-1][1]
        folds: dict[tuple[str, str], list[int]] = {}
        for crossing in layout.crossings:
            output = nest.outputs[crossing.place]
            kind = output.combine, nest.insts[output.insts[0]].dtype.kind
            folds.setdefault(kind, []).extend(
                (crossing.parts, crossing.tree, self.slots[output.target.number],
                 output.offset.const, output.offset.coefficient(layout.axis))
            )  # fmt: skip
        spreads: dict[str, list[int]] = {}
        for place, start in layout.row_results:
            output = nest.outputs[place]
            spreads.setdefault(output.target.dtype.kind, []).extend(
                (start, self.slots[output.target.number], output.offset.const,
                 output.offset.coefficient(layout.cross))
            )  # fmt: skip
        for first, last in layout.phases:
            arguments[layout.parameter("first unit", 0)] = first
            arguments[layout.parameter("last unit", 0)] = last
            cost = int(layout.cost_ns * (last - first) / units)
            segment.launches.append(Launch(kernel.address, tuple(arguments), layout.extent, cost))
            for (combine, element), own in folds.items():
                fold = kernels.fold_kernel(combine, element, layout.extent)
                head = self.slots[-1], layout.value("padded"), columns, first, last, units
                outputs = len(own) // 5
                cost = outputs * columns * (last - first) * layout.extent // 4
                extent = outputs * -(-columns // FOLD_CHUNK)
                segment.launches.append(Launch(fold.address, (*head, *own), extent, cost))
                segment.keep.append(fold)
            rows = first * UNIT, min(last * UNIT, nest.sizes[layout.cross])
            for element, own in spreads.items():
                spread = kernels.spread_kernel(element)
                outputs = len(own) // 4
                cost = 2 * outputs * (rows[1] - rows[0])
                launch = Launch(spread.address, (self.slots[-1], *rows, *own), outputs, cost)
                segment.launches.append(launch)
                segment.keep.append(spread)

    def _add_product(self, segment: Segment, step: Product, made: gemm.GemmLaunch) -> None:
        if made.extent == 0:
            return
        address, library = gemm.kernel_for(step.target.dtype.kind, made)
        (a, a_offset, _), (b, b_offset, _) = step.operands
        arguments = made.arguments(
            self.slots[a.number], self.slots[b.number], self.slots[step.target.number],
            a_offset, b_offset,
        )  # fmt: skip
        segment.launches.append(Launch(address, arguments, made.extent, int(made.cost_ns)))
        segment.keep.append(library)

    @property
    def thread_bytes(self) -> int:
        """What each thread takes from the C library's heap for its blocks of a stream."""
        return thread_bytes(self.tasks)

    # -- running ----------------------------------------------------------------------

    def runner(self) -> Callable[[tuple[np.ndarray, ...]], tuple[np.ndarray, ...]]:
        """What runs the program, for as long as that is kept.

        Returns
        -------
        callable
            Takes a tuple of arrays, one per input, C-contiguous, of the input's dtype and shape;
            gives a tuple of new arrays, one per output.
        """
        if not self.native:
            return self._run_steps
        if self._spec is None:
            self._spec = self._native_spec()
        return partial(make_executor(), self._spec.address)

    def whole_plan(self) -> Plan:
        """The one plan of a native program."""
        whole = self._plans[0] if self._plans else Plan([], [])
        assert isinstance(whole, Plan)
        return whole

    def _native_spec(self) -> EagerSpec:
        whole = self.whole_plan()
        long = self.cost_ns > RELEASE_GIL_NS
        return EagerSpec(
            plan=whole.address,
            run=interrupt.runner() if long else plan.runner_symbols()["sg_run"],
            inputs=len(self.inputs),
            outputs=[(n.dtype.numpy, n.shape) for n in self.outputs],
            arena_bytes=self.arena_bytes,
            arena=self.pieces,
            release_gil=long,
            failed=self._run_steps if self._calls else None,
            keep=(whole,),
        )

    def _run_steps(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Compute step by step, with Python's routines in place of the calls that fail."""
        failed: frozenset[int] = frozenset()
        while True:
            plans = self._plans_without.get(failed)
            if plans is None:
                calls = {k: call for k, call in self._calls.items() if k not in failed}
                plans = self._plans_without[failed] = _plans_of(self._assembled(calls))
            made = self._attempt(arrays, plans)
            if not isinstance(made, int):
                return made
            failed |= {made}

    def _attempt(
        self, arrays: tuple[np.ndarray, ...], plans: list[Plan | PythonStep]
    ) -> tuple[np.ndarray, ...] | int:
        """Native segments and library routines in turn, on one table of arrays.

        The number of the result whose native call failed, if one did.
        """
        table, status, slots = self.memory_for(arrays)
        for step in plans:
            if isinstance(step, Plan):
                plan.run(step, slots)
                if status[0]:
                    return int(status[0]) - 1
            else:
                self.run_routine(step, table)
        start = len(self.inputs)
        return tuple(table[start : start + len(self.outputs)])

    def run_routine(self, step: PythonStep, table: list[np.ndarray]) -> None:
        """A library call by Python's routine, or a loop, on the arrays of `memory_for`."""
        target = step.target
        if isinstance(step, Iteration):
            loop = self._stepwise[target.number]
            made = loop.run_in_python([table[self.slots[a.number]] for a in step.operands])
            for result, array in made.items():
                table[self.slots[loop.run.targets[result].number]][...] = array
            return
        operands = [table[self.slots[a.number]] for a in step.operands]
        result = target.op.ref(*operands, **target.attributes())
        table[self.slots[target.number]][...] = result

    def memory_for(
        self, arrays: tuple[np.ndarray, ...], repeats: bool = False
    ) -> tuple[list[np.ndarray], np.ndarray, npt.NDArray[np.uintp]]:
        """What a run works on.

        Parameters
        ----------
        arrays : tuple of ndarray
            The inputs.
        repeats : bool
            Whether steps may be run again: then no result takes the place of an operand.

        Returns
        -------
        table : list of ndarray
            By slot: the inputs, new outputs, pieces of a new arena.
        status : ndarray
            The word in which native library calls report a failure.
        slots : ndarray
            The addresses of all these, for `plan.run`.
        """
        pieces, size = self.pieces, self.arena_bytes
        if repeats:
            places, size = self._places(())
            start = len(self.inputs) + len(self.outputs)
            pieces = [0] * len(self.pieces)
            for number, offset in places.items():
                pieces[self.slots[number] - start] = offset
        arena = np.empty(size + ALIGN, np.uint8)
        shift = -arena.ctypes.data % ALIGN
        table: list[np.ndarray] = [*arrays]
        table += [np.empty(n.shape, n.dtype.numpy) for n in self.outputs]
        stored = [n for n in self.schedule.stored if n.number in self.slots]
        by_slot = {self.slots[n.number]: n for n in stored}
        first = len(table)
        for k, offset in enumerate(pieces):
            n = by_slot.get(first + k)
            if n is None:
                table.append(arena[shift + offset :])
            else:
                room = n.size * n.dtype.itemsize
                piece = arena[shift + offset : shift + offset + room]
                table.append(piece.view(n.dtype.numpy).reshape(n.shape))
        status = np.zeros(1, np.int64)
        addresses = [a.__array_interface__["data"][0] for a in (*table, status)]
        return table, status, np.array(addresses, np.uintp)

    # -- looking ----------------------------------------------------------------------

    def llvm(self) -> str:
        """The IR of the program's kernels."""
        return kernels.module_of(self.layouts).text()

    def asm(self) -> str:
        """The assembly of the program's loop kernels; products and library calls have code of their own."""
        return emission.emit_assembly(self.llvm())


def _plans_of(steps: list[Segment | PythonStep]) -> list[Plan | PythonStep]:
    return [s.plan() if isinstance(s, Segment) else s for s in steps]

"""Tasks of a program in an order that needs less memory: stored values are dropped and computed again.

What is dropped and when is decided by `symgrad.codegen.eviction`. Here tasks are described to it, and
its order becomes tasks again. A value that is computed a second time gets a buffer of its own: the
task that made it runs again with that buffer in place of the first one, and what follows reads it
there. The operations are the same in the same order, and so are the bits.

Start reading at `ordered`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from symgrad.codegen import gemm, lapack, pool
from symgrad.codegen.arena import arranged
from symgrad.codegen.eviction import Turn, Values, Work, burden, in_least_room
from symgrad.codegen.layout import Layout
from symgrad.codegen.rows import Task
from symgrad.codegen.stream import Streamed, streamed
from symgrad.schedule.affine import row_major
from symgrad.schedule.canonical import Node
from symgrad.schedule.steps import AGAIN, Loops, Product, Routine


def ordered(
    tasks: Sequence[Task],
    pinned: set[int],
    regions: Mapping[int, int],
    small: bool,
    inline: bool,
) -> list[Task | Streamed]:
    """A program's tasks as they are to run: streams where they gain, some tasks again to save memory.

    Parameters
    ----------
    tasks : sequence of Task
        The program, in order.
    pinned : set of int
        Numbers of its inputs and outputs.
    regions : mapping of int to int
        By number of a buffer, the checkpoint that it is an inner value of.
    small : bool
        Whether values are dropped to lower the peak of memory; else only those of checkpoints.
    inline : bool
        Whether vector maths is inlined.
    """
    plain = streamed(tasks, pinned, inline)
    if not small and not regions:
        return plain
    ways = [plain] if small else []
    # There may be a better choice of what to drop than the checkpoints.
    choices = [regions, {}] if small and regions else [regions]
    for dropped in choices:
        again = _recomputed(tasks, pinned, dropped, small, inline)
        ways += [streamed(again, pinned, inline), again]
        if any(isinstance(task, Streamed) for task in plain):
            ways.append(_recomputed(plain, pinned, dropped, small, inline))
    return min(ways, key=lambda w: burden(_room(w, pinned, small), sum(map(task_cost, w))))


def _recomputed(
    tasks: Sequence[Task | Streamed],
    pinned: AbstractSet[int],
    regions: Mapping[int, int],
    small: bool,
    inline: bool,
) -> list[Any]:
    described = _Described(tasks, pinned, regions, small, inline)
    return described.tasks_of(in_least_room(described.values, small))


def _room(tasks: Sequence[Task | Streamed], pinned: AbstractSet[int], small: bool) -> int:
    """Bytes of what tasks pass on to each other."""
    sizes = {
        number: n.size * n.dtype.itemsize
        for task in tasks
        for number, n in task.buffers.items()
        if number not in pinned
    }
    heirs = [task.heirs(small) for task in tasks]
    _, top = arranged([task.used for task in tasks], sizes, heirs)
    return top + thread_bytes(tasks) * pool.get_num_threads()


def thread_bytes(tasks: Sequence[Task | Streamed]) -> int:
    """What each thread takes for its blocks of a stream."""
    return max((t.local_bytes for t in tasks if isinstance(t, Streamed)), default=0)


def task_cost(task: Task | Streamed) -> float:
    """Estimated serial nanoseconds of a task; 0 where Python runs it."""
    if isinstance(task, Streamed):
        return sum(task_cost(inner) for inner, _ in task.members)
    if task.layout is not None:
        return task.layout.cost_ns
    step = task.step
    if isinstance(step, Product):
        return product_plan(step).cost_ns
    if isinstance(step, Routine):
        call = lapack.native_call(step.target)
        return 0.0 if call is None else call.cost_ns
    return 0.0


def product_plan(step: Product) -> gemm.GemmLaunch:
    """How a product of a program runs."""
    batch, m, n = step.target.shape
    (_, _, a_strides), (_, _, b_strides) = step.operands
    return gemm.gemm_plan(
        step.target.dtype.kind, batch, m, n, step.k, _three(a_strides), _three(b_strides),
        _three(row_major(step.target.shape)),
    )  # fmt: skip


def _three(strides: tuple[int, ...]) -> tuple[int, int, int]:
    a, b, c = strides
    return a, b, c


class _Described:
    """A program's tasks as works, and back.

    Attributes
    ----------
    values : Values
    """

    def __init__(
        self,
        tasks: Sequence[Task | Streamed],
        pinned: AbstractSet[int],
        regions: Mapping[int, int],
        small: bool,
        inline: bool,
    ) -> None:
        self._tasks = tasks
        self._inline = inline
        self._nodes: dict[int, Node] = {}
        for task in tasks:
            self._nodes |= {k: n for k, n in task.buffers.items() if k not in pinned}
        works: list[Work] = []
        begun: set[int] = set()
        for task in tasks:
            used = task.buffers.keys() & self._nodes.keys()
            writes = used & task.written
            heirs = self._heirs(task, small)
            works.append(Work(used - (writes - begun), writes, task_cost(task), heirs))
            begun |= writes
        self._makers: dict[int, list[Task]] = {}
        makers = self._find_makers(works, small)
        sizes = {k: n.size * n.dtype.itemsize for k, n in self._nodes.items()}
        self.values = Values(works, sizes, makers, self._dropped(works, regions))

    def _find_makers(self, works: Sequence[Work], small: bool) -> dict[int, Work]:
        """How each value is computed again, for those that may be."""
        written: dict[int, list[int]] = {}
        fixed: set[int] = set()
        for place, (task, work) in enumerate(zip(self._tasks, works, strict=True)):
            for number in work.writes:
                written.setdefault(number, []).append(place)
            if not isinstance(task, Task) or not isinstance(task.step, Loops | Product | Routine):
                fixed |= work.reads | work.writes
            elif isinstance(task.step, Routine) and lapack.native_call(task.step.target) is None:
                fixed |= work.writes
        made = {}
        for number, places in written.items():
            if number in fixed:
                continue
            parts = [self._part(self._tasks[place], number) for place in places]
            self._makers[number] = parts
            reads = {k for part in parts for k in part.reads if k in self._nodes} - {number}
            cost = sum(task_cost(part) for part in parts)
            heirs = self._heirs(parts[0], small) if len(parts) == 1 else {}
            made[number] = Work(reads, {number}, cost, heirs)
        return made

    def _heirs(self, task: Task | Streamed, small: bool) -> dict[int, list[int]]:
        """A task's results that may take the place of temporaries, with these."""
        found = {}
        for number, olds in task.heirs(small).items():
            kept = [n for n in olds if n in self._nodes]
            if number in self._nodes and kept:
                found[number] = kept
        return found

    def _part(self, task: Task | Streamed, number: int) -> Task:
        """The task that computes one of a task's results."""
        assert isinstance(task, Task)
        step = task.step
        if len(task.writes) == 1 or not isinstance(step, Loops):
            return task
        alone = step.part([item for item in step.items if item.target.number == number])
        return Task(alone, Layout(alone.build(), self._inline))

    def _dropped(self, works: Sequence[Work], regions: Mapping[int, int]) -> dict[int, int]:
        """The values of checkpoints, with the number of works that theirs takes."""
        length: dict[int, int] = {}
        for work in works:
            for region in {regions[n] for n in work.writes if n in regions}:
                length[region] = length.get(region, 0) + 1
        return {n: length[regions[n]] for work in works for n in work.writes if n in regions}

    # -- back to tasks ----------------------------------------------------------------

    def tasks_of(self, turns: Sequence[Turn]) -> list[Task | Streamed]:
        """The tasks of an order; values that are computed again have buffers of their own."""
        current: dict[int, Node] = {}
        copies: dict[int, int] = {}
        made: list[Task | Streamed] = []
        for turn in turns:
            if turn.value < 0:
                made.append(self._renamed(self._tasks[turn.place], current))
                continue
            number = turn.value
            copies[number] = copies.get(number, 0) + 1
            again = copy.copy(self._nodes[number])
            again.number = number + AGAIN * copies[number]
            current[number] = again
            made += [self._renamed(part, current) for part in self._makers[number]]
        return made

    def _renamed(self, task: Task | Streamed, names: Mapping[int, Node]) -> Task | Streamed:
        """A task with other buffers."""
        names = {k: names[k] for k in task.buffers if k in names}
        if not names:
            return task
        assert isinstance(task, Task)
        step = task.step
        assert isinstance(step, Loops | Product | Routine)
        layout = task.layout
        if layout is not None:
            layout = Layout(layout.nest.with_buffers(names), self._inline)
        return Task(step.with_buffers(names), layout)

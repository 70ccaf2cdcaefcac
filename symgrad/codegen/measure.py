"""Where a program's time goes: every step run alone, next to what the machine can do.

Structures:

* `StepReport`: one step of a schedule: time, bytes, operations.
* `Report`: all steps of a program; prints as a table, and gives plain data by `Report.as_dict`.
* `Ceilings`: the bandwidth of a copy and the speed of products, by symgrad's own kernels.
* `Memory`: what one call needs.

A step counts each element of a buffer that it reads or writes once, and each operation once per
point that it depends on, in additions. Start reading at `measured`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.codegen import plan, pool
from symgrad.codegen.build import Program
from symgrad.codegen.layout import Layout
from symgrad.codegen.plan import Launch, Plan
from symgrad.codegen.rows import Task
from symgrad.codegen.stream import Streamed
from symgrad.expr import Expr
from symgrad.op import REGISTRY, input_node
from symgrad.progress import Progress
from symgrad.schedule.affine import Affine
from symgrad.schedule.canonical import Node, canonical
from symgrad.schedule.filling import Filling
from symgrad.schedule.iterate import Iteration
from symgrad.schedule.nest import Inst
from symgrad.schedule.program import schedule
from symgrad.schedule.steps import Loops, Product, Routine, Step, Stream
from symgrad.schedule.straight import Straight

SAMPLE_S = 2e-4
"""Short steps are run again and again for about this long per sample."""

SHOWN = 40
"""Steps in a table, at most: the slowest ones."""

KINDS: dict[type[Step], str] = {
    Loops: "loops",
    Straight: "loops",
    Filling: "loops",
    Product: "product",
    Routine: "library",
    Iteration: "loop",
    Stream: "stream",
}

SHORT_POWERS = {0.0: 0.0, 1.0: 0.0, 2.0: 1.0, 3.0: 2.0, -1.0: 6.0, 0.5: 6.0}
"""Costs of the exponents that are lowered to products, a quotient or a root."""

COPY_ELEMENTS = 1 << 23
PRODUCT_SIZE = 512


@dataclass(frozen=True)
class Ceilings:
    """What this machine does with a number of threads, measured once per process.

    Attributes
    ----------
    threads : int
    bytes_per_s : float
        Reading plus writing, of a copy of 64 MB of doubles.
    float64_per_s, float32_per_s : float
        Operations of a product of two square matrices of size 512.
    """

    threads: int
    bytes_per_s: float
    float64_per_s: float
    float32_per_s: float

    def text(self) -> str:
        """All of it in one line."""
        return (
            f"{self.threads} thread{'s' * (self.threads != 1)}: copy {self.bytes_per_s / 1e9:.1f} GB/s, "
            f"products {self.float64_per_s / 1e9:.0f} GFLOP/s in float64, "
            f"{self.float32_per_s / 1e9:.0f} in float32"
        )


@dataclass(frozen=True)
class StepReport:
    """One step of a program.

    Attributes
    ----------
    number : int
        Its place in the schedule.
    kind : str
        "loops", "product" or "library".
    text : str
        Its line in the schedule.
    dtype : str
        Of its result.
    seconds : float
        Median time when it runs alone, with its operands where the last run left them.
    read_bytes, written_bytes : int
    flops : int or None
        Operations, a function of the vector maths counted by its cost in additions; None for
        library calls.
    """

    number: int
    kind: str
    text: str
    dtype: str
    seconds: float
    read_bytes: int
    written_bytes: int
    flops: int | None

    @property
    def bytes_per_s(self) -> float:
        return (self.read_bytes + self.written_bytes) / self.seconds

    @property
    def flops_per_s(self) -> float | None:
        return None if self.flops is None else self.flops / self.seconds


@dataclass(frozen=True)
class Report:
    """What `measured` found.

    Attributes
    ----------
    steps : tuple of StepReport
    call_s : float
        Median time of the whole program, memory for its results included.
    ceilings : Ceilings
    """

    steps: tuple[StepReport, ...]
    call_s: float
    ceilings: Ceilings

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @property
    def read_bytes(self) -> int:
        return sum(s.read_bytes for s in self.steps)

    @property
    def written_bytes(self) -> int:
        return sum(s.written_bytes for s in self.steps)

    @property
    def flops(self) -> int:
        return sum(s.flops or 0 for s in self.steps)

    def bandwidth_share(self, step: StepReport) -> float:
        """A step's bytes per second over the machine's; above 1 where caches hold them."""
        return step.bytes_per_s / self.ceilings.bytes_per_s

    def peak_share(self, step: StepReport) -> float | None:
        """A step's operations per second over those of a product in its dtype."""
        if step.flops_per_s is None:
            return None
        narrow = np.dtype(step.dtype).itemsize <= 4
        return step.flops_per_s / (
            self.ceilings.float32_per_s if narrow else self.ceilings.float64_per_s
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as numbers, strings, lists and dicts."""
        steps = []
        for s in self.steps:
            rates = {
                "bytes_per_s": s.bytes_per_s,
                "flops_per_s": s.flops_per_s,
                "bandwidth_share": self.bandwidth_share(s),
                "peak_share": self.peak_share(s),
            }
            steps.append({**asdict(s), **rates})
        total = {
            "seconds": self.seconds,
            "call_s": self.call_s,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "flops": self.flops,
        }
        return {"steps": steps, "total": total, "ceilings": asdict(self.ceilings)}

    def __str__(self) -> str:
        heading = (
            f"{'':4}{'step':<46}{'time':>9}{'share':>7}{'read':>9}{'written':>9}"
            f"{'GB/s':>8}{'of copy':>9}{'GFLOP/s':>9}{'of peak':>9}"
        )
        shown = sorted(self.steps, key=lambda s: -s.seconds)[:SHOWN]
        lines = [heading]
        for s in sorted(shown, key=lambda s: s.number):
            speed, peak = s.flops_per_s, self.peak_share(s)
            lines.append(
                f"{s.number:3d} {_cut(s.text, 45):<46}{_time(s.seconds):>9}"
                f"{s.seconds / self.seconds:>7.0%}{_size(s.read_bytes):>9}{_size(s.written_bytes):>9}"
                f"{s.bytes_per_s / 1e9:>8.1f}{self.bandwidth_share(s):>9.0%}"
                f"{'-' if speed is None else f'{speed / 1e9:.1f}':>9}"
                f"{'-' if peak is None else f'{peak:.0%}':>9}"
            )
        rest = self.seconds - sum(s.seconds for s in shown)
        if len(shown) < len(self.steps):
            lines.append(f"    {f'{len(self.steps) - len(shown)} steps more':<46}{_time(rest):>9}")
        total = max(self.seconds, 1e-12)
        moved = (self.read_bytes + self.written_bytes) / total / 1e9
        lines.append(
            f"    {'all steps':<46}{_time(self.seconds):>9}{'':>7}{_size(self.read_bytes):>9}"
            f"{_size(self.written_bytes):>9}{moved:>8.1f}{'':>9}{self.flops / total / 1e9:>9.1f}"
        )
        lines.append(f"    {'one call':<46}{_time(self.call_s):>9}")
        lines.append(f"machine, {self.ceilings.text()}")
        return "\n".join(lines)


class Memory(NamedTuple):
    """Bytes that one call of a program needs.

    Attributes
    ----------
    inputs : int
        What it reads of its arguments and of captured tensors.
    outputs : int
        New arrays.
    temporaries : int
        Everything in between; room is used again as soon as it is free.
    constants : int
        Numbers that the derivative rules made when the program was built.
    peak : int
        All of it at one time.
    """

    inputs: int
    outputs: int
    temporaries: int
    constants: int
    peak: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {_size(count)}" for name, count in self._asdict().items())


def memory_of(program: Program, constant: Sequence[bool], joined_bytes: int = 0) -> Memory:
    """What one call needs.

    Parameters
    ----------
    program : Program
    constant : sequence of bool
        For each input, whether it belongs to the program rather than to the caller.
    joined_bytes : int
        Further results, made of the program's outputs after the run.
    """
    given = fixed = 0
    for n, owned in zip(program.inputs, constant, strict=True):
        if owned:
            fixed += _bytes(n)
        else:
            given += _bytes(n)
    made = sum(_bytes(n) for n in program.outputs) + joined_bytes
    arena = program.arena_bytes + program.thread_bytes * pool.get_num_threads()
    return Memory(given, made, arena, fixed, given + made + arena + fixed)


def drawn(node: Expr) -> np.ndarray:
    """Values for an input that none were given for: numbers in [0.5, 1), zeros for integers.

    Square matrices get their size added to the diagonal, so that systems can be solved.
    """
    if node.dtype.category < 2:
        return np.zeros(node.shape, node.dtype.numpy)
    array = np.random.default_rng(0).uniform(0.5, 1.0, node.shape)
    if len(node.shape) > 1 and node.shape[-1] == node.shape[-2]:
        array += node.shape[-1] * np.eye(node.shape[-1])
    return array.astype(node.dtype.numpy)


# -- measuring --------------------------------------------------------------------------


def measured(program: Program, arrays: tuple[np.ndarray, ...], seconds: float = 1.0) -> Report:
    """Run a program step by step, each many times over, and time it.

    Parameters
    ----------
    program : Program
    arrays : tuple of ndarray
        Its inputs.
    seconds : float
        Time to spend, about; long steps run three times in any case.
    """
    machine = ceilings(pool.get_num_threads())
    table, status, slots = program.memory_for(arrays, repeats=True)
    launched = program.step_launches()
    each = seconds / (len(launched) + 1)
    found = []
    # In order: the first run of each finds its operands as the steps before left them.
    with Progress("measuring steps", len(launched)) as progress:
        for number, (task, todo) in enumerate(zip(program.tasks, launched, strict=True)):
            step = task.step
            progress.step(number)
            if isinstance(todo, Routine | Iteration):
                taken = _median(partial(program.run_routine, todo, table), each)
            else:
                taken = _launch_time(todo, program, slots, each)
                status[0] = 0
            read, written, flops = _counts(task)
            kind = KINDS[type(step)]
            dtype = _result_of(step).dtype.name
            found.append(StepReport(number, kind, repr(step), dtype, taken, read, written, flops))
    run = program.runner()
    call_s = _median(lambda: run(arrays), each)
    return Report(tuple(found), call_s, machine)


@cache
def ceilings(threads: int) -> Ceilings:
    """The machine's limits, as this process sees them with its current number of threads."""
    x = input_node((COPY_ELEMENTS,), dtypes.float64)
    copied = _best([REGISTRY["neg"](x)], 0.2)
    speeds = []
    for dtype in (dtypes.float64, dtypes.float32):
        a, b = (input_node((1, PRODUCT_SIZE, PRODUCT_SIZE), dtype) for _ in range(2))
        taken = _best([REGISTRY["batched_product"](a, b)], 0.2)
        speeds.append(2 * PRODUCT_SIZE**3 / taken)
    return Ceilings(threads, 16 * COPY_ELEMENTS / copied, speeds[0], speeds[1])


def _best(roots: list[Expr], seconds: float) -> float:
    """The quickest run of a graph on drawn inputs: what others take from the machine is no limit."""
    graph = canonical(roots)
    program = Program(schedule(graph), graph.roots, True)
    memory = program.memory_for(tuple([drawn(e) for e in graph.inputs]))
    whole = program.whole_plan()
    return min(_samples(lambda: plan.run(whole, memory[2]), seconds))


def _launch_time(
    launches: list[Launch], program: Program, slots: np.ndarray, seconds: float
) -> float:
    """Median time of some launches; short ones are repeated inside one plan, so that calling it is free."""
    once = Plan(launches, (program,))
    plan.run(once, slots)
    start = time.perf_counter()
    plan.run(once, slots)
    guess = max(time.perf_counter() - start, 1e-7)
    repeats = max(1, min(1000, round(SAMPLE_S / guess)))
    many = Plan(launches * repeats, (program,))
    return _median(lambda: plan.run(many, slots), seconds) / repeats


def _median(function: Callable[[], Any], seconds: float) -> float:
    return float(np.median(_samples(function, seconds)))


def _samples(function: Callable[[], Any], seconds: float) -> list[float]:
    """Times of a function's calls after the first, at least three."""
    function()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times


# -- counting ---------------------------------------------------------------------------


def _result_of(step: Step) -> Node:
    """One of a step's results: its first, of a stream the last step's."""
    if isinstance(step, Stream):
        step = step.steps[-1]
    return step.items[0].target if isinstance(step, Loops) else step.target


def _counts(task: Task | Streamed) -> tuple[int, int, int | None]:
    """Bytes read, bytes written and operations of a step."""
    if isinstance(task, Streamed):
        return _stream_counts(task)
    if task.layout is not None:
        return _loop_counts(task.layout)
    step = task.step
    if isinstance(step, Product):
        return _product_counts(step, _bytes(step.target))
    return sum(map(_bytes, task.reads.values())), sum(map(_bytes, task.writes.values())), None


def _stream_counts(streamed: Streamed) -> tuple[int, int, int]:
    """The buffers of the whole program, once each, and the operations of all inner steps."""
    reads: dict[int, Node] = {}
    writes: dict[int, Node] = {}
    flops = 0
    for task, _ in streamed.members:
        reads |= task.reads
        writes |= task.writes
        flops += _counts(task)[2] or 0
    read, written = (
        sum(_bytes(node) for number, node in nodes.items() if number not in streamed.locals)
        for nodes in (reads, writes)
    )
    return read, written, flops


def _product_counts(step: Product, written: int) -> tuple[int, int, int]:
    batch, m, n = step.target.shape
    read = 0
    sizes = ((batch, m, step.k), (batch, step.k, n))
    for (node, _, strides), shape in zip(step.operands, sizes, strict=True):
        count = math.prod(n for n, stride in zip(shape, strides, strict=True) if stride)
        read += min(count, node.size) * node.dtype.itemsize
    return read, written, 2 * batch * m * n * step.k


def _loop_counts(layout: Layout) -> tuple[int, int, int]:
    nest = layout.nest
    everything = _points(nest.sizes, range(len(nest.sizes)))
    depends: list[frozenset[int]] = []
    loads: dict[int, tuple[Node, int]] = {}
    stores: dict[int, tuple[Node, int]] = {}
    flops = 0.0

    def axes_of(form: Affine) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for v, _ in form.terms:
            found |= depends[nest.dynamic[v]] if v < 0 else {v}
        return found

    def note(book: dict[int, tuple[Node, int]], node: Node, axes: frozenset[int]) -> None:
        before = book.get(node.number, (node, 0))[1]
        book[node.number] = node, min(node.size, before + _points(nest.sizes, axes))

    for inst in nest.insts:
        axes = axes_of(inst.offset)
        for form, _ in inst.bounds:
            axes |= axes_of(form)
        for k in (*inst.args, *([inst.guard] if inst.guard >= 0 else [])):
            axes |= depends[k]
        depends.append(axes)
        if inst.kind == "load":
            assert inst.node is not None
            note(loads, inst.node, axes_of(inst.offset))
        elif inst.kind == "op":
            flops += _cost(inst, nest.insts) * _points(nest.sizes, axes)
    if nest.filled is not None:
        stores[nest.filled.number] = nest.filled, nest.filled.size
    for output in nest.outputs:
        note(stores, output.target, axes_of(output.offset))
        if output.scattered and output.combine:
            note(loads, output.target, axes_of(output.offset))
        if output.combine:
            flops += everything * (2 if output.combine == "dot" else 1)
    read, written = (
        sum(count * node.dtype.itemsize for node, count in book.values())
        for book in (loads, stores)
    )
    return read, written, round(flops)


def _cost(inst: Inst, insts: Sequence[Inst]) -> float:
    """An operation in additions; powers with some known exponents have short forms."""
    assert inst.op is not None
    if inst.op.name == "pow" and insts[inst.args[1]].kind == "constant":
        return SHORT_POWERS.get(insts[inst.args[1]].value, inst.op.cost)
    return inst.op.cost


def _points(sizes: Sequence[int], axes: Any) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _bytes(node: Node) -> int:
    return node.size * node.dtype.itemsize


# -- words ------------------------------------------------------------------------------


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"

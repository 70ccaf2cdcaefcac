"""The launches of a stream: slots and numbers for its inner kernels, and what surrounds them.

Start reading at `stream_launches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from symgrad.codegen import gemm
from symgrad.codegen.blockwise import BlockRun, Inner
from symgrad.codegen.kernels import Kernel, emitted_kernel
from symgrad.codegen.layout import LANES, Layout
from symgrad.codegen.plan import Launch
from symgrad.codegen.rows import BATCH, COLUMN, DEPTH, ROW, Fit, Task
from symgrad.codegen.stream import Streamed
from symgrad.codegen.stream_sums import MERGED, emit_fill, emit_lane_fold, emit_merge
from symgrad.schedule.affine import Affine, row_major, variable
from symgrad.schedule.canonical import Node
from symgrad.schedule.steps import Product

SCRATCH = -1
"""The number under which a table of slots has the program's scratch memory."""


class Launches(NamedTuple):
    """Launches in order, and what must live as long as they do."""

    launches: list[Launch]
    keep: list[object]


def loop_arguments(layout: Layout, slots: Mapping[int, int]) -> tuple[int, ...]:
    """The launch arguments of a nest's kernel, with slots by number of a buffer."""
    arguments = []
    for p in layout.parameters:
        if p is None:
            arguments.append(slots[SCRATCH])
        elif isinstance(p, Node):
            arguments.append(slots[p.number])
        else:
            arguments.append(p)
    return tuple(arguments)


def stream_launches(
    streamed: Streamed, compiled: Mapping[int, Kernel], slots: Mapping[int, int], count: int
) -> Launches:
    """A stream: one launch over chunks of rows, and a join of the units of each sum.

    Parameters
    ----------
    streamed : Streamed
    compiled : mapping of int to Kernel
        By ``id`` of a layout.
    slots : mapping of int to int
        Of the program's own buffers.
    count : int
        Slots of the whole program; those of the stream come after.
    """
    return _StreamAssembly(streamed, compiled, slots, count).launches()


class _StreamAssembly:
    """Collects the inner kernels of a stream."""

    def __init__(
        self,
        streamed: Streamed,
        compiled: Mapping[int, Kernel],
        slots: Mapping[int, int],
        count: int,
    ) -> None:
        self.streamed = streamed
        self.compiled = compiled
        self.count = count
        self.outer = slots
        self.slots = dict(slots)
        # In the stream the slot of a sum holds the partial result of the chunk's unit.
        for number in (*streamed.locals, *streamed.partials):
            self.slots[number] = count
            count += 1
        self.before: list[Inner] = []
        self.inside: list[Inner] = []
        self.behind: list[Inner] = []
        self.merges: list[Launch] = []
        self.keep: list[object] = []
        self.cost_ns = 0.0

    def launches(self) -> Launches:
        streamed = self.streamed
        for task, fit in streamed.members:
            if task.layout is not None:
                self._add_loops(task.layout)
            else:
                self._add_product(task, fit)
        block = streamed.block
        local_rows = []
        for number, node in streamed.locals.items():
            step = streamed.shifts.get(number, 0) * node.dtype.itemsize
            local_rows.append((self.slots[number], streamed.places[number], step))
        parts = []
        for number, node in streamed.partials.items():
            unit_bytes = node.shape[1] * node.dtype.itemsize
            parts.append((self.slots[number], self.outer[node.number], unit_bytes))
        run = BlockRun(
            self.count, -(-streamed.cut.rows // block), streamed.span, streamed.cut.entries,
            streamed.local_bytes, local_rows, parts, self.before, self.inside, self.behind,
        )  # fmt: skip
        self.keep.append(run)
        return Launches([run.launch(int(self.cost_ns)), *self.merges], self.keep)

    def _kernel(self, emit: Callable[..., None], *what: object) -> int:
        kernel = emitted_kernel(emit, *what)
        self.keep.append(kernel)
        return kernel.address

    def _product_kernel(self, kind: str, made: gemm.GemmLaunch) -> int:
        address, library = gemm.kernel_for(kind, made)
        self.keep.append(library)
        return address

    def _add_loops(self, layout: Layout) -> None:
        kernel = self.compiled[id(layout)]
        self.keep.append(kernel)
        self.inside.append(Inner(kernel.address, loop_arguments(layout, self.slots)))
        self.cost_ns += layout.cost_ns
        if not layout.resumed:
            return
        begun = set()
        for output in layout.nest.outputs:
            target = output.target
            if not output.combine or target.number in begun:
                continue
            begun.add(target.number)
            element = target.dtype.kind
            state = self.slots[layout.states[target.number].number]
            fill = self._kernel(emit_fill, output.combine, element, output.identity)
            self.before.append(Inner(fill, (state, target.size)))
            strides = (target.size, 1) if layout.mode == "outer" else (1, LANES)
            numbers = (state, self.slots[target.number], target.size, *strides)
            self.behind.append(
                Inner(self._kernel(emit_lane_fold, output.combine, element), numbers)
            )
            self._add_merge(target, output.combine)

    def _add_merge(self, target: Node, combine: str, results: int = 1) -> None:
        partial = self.streamed.partials[target.number]
        units, stride = partial.shape[0] // results, partial.shape[1]
        size = target.size // results
        address = self._kernel(emit_merge, combine, target.dtype.kind)
        slots = self.outer[partial.number], self.outer[target.number]
        chunks = -(-size // MERGED)
        cost = units * target.size // 4
        numbers = (*slots, units, size, stride, chunks)
        self.merges.append(Launch(address, numbers, results * chunks, cost))

    def _add_product(self, task: Task, fit: Fit) -> None:
        step = task.step
        assert isinstance(step, Product)
        cut, block = self.streamed.cut, self.streamed.block
        kind = step.target.dtype.kind
        batch, m, n = step.target.shape
        (a, a_offset, (a_batch, a_row, a_k)), (b, b_offset, (b_batch, b_k, b_n)) = [
            self._placed(*operand) for operand in step.operands
        ]
        _, _, (c_batch, c_row, _) = self._placed(step.target, 0, row_major(step.target.shape))
        slots = self.slots[a.number], self.slots[b.number], self.slots[step.target.number]

        def planned(made: gemm.GemmLaunch) -> tuple[int, ...]:
            return made.arguments(*slots, a_offset, b_offset)

        lines = block * fit.per
        rows = lines if fit.axis == ROW else m
        columns = lines if fit.axis == COLUMN else n
        packs = gemm.worth_packing(kind, (rows, columns, step.k), (b_batch, b_k, b_n))
        most = gemm.block_rows(kind, block if fit.axis == DEPTH else step.k)
        cut_as = gemm.Blocking(packs, most, gemm.block_vectors(kind), rows, columns, rows)
        if fit.axis != DEPTH:
            made = gemm.gemm_plan(
                kind, batch, m, n, step.k, (a_batch, a_row, a_k), (b_batch, b_k, b_n),
                (c_batch, c_row, 1), cut_as,
            )  # fmt: skip
            count = lines if fit.axis == BATCH else 1
            self.inside.append(
                Inner(self._product_kernel(kind, made), planned(made), None, count, made.extent)
            )
            self.cost_ns += made.cost_ns
            return
        partial = self.streamed.partials[step.target.number]
        fill = self._kernel(emit_fill, "add", kind, 0.0)
        filled = self.slots[step.target.number], partial.shape[1] // LANES
        self.before.append(Inner(fill, filled))

        # The blocks are entries of a batch that all go on with the one result.
        def of_length(length: int) -> gemm.GemmLaunch:
            left, right = (block * a_k, a_row, a_k), (block * b_k, b_k, b_n)
            blocks = -(-cut.rows // block)
            return gemm.gemm_plan(kind, blocks, m, n, length, left, right, (0, n, 1), cut_as, True)

        made = of_length(block)
        rest = cut.rows % block
        last = planned(of_length(rest)) if rest else None
        self.inside.append(Inner(self._product_kernel(kind, made), planned(made), last))
        self.cost_ns += made.cost_ns
        self._add_merge(step.target, "add", batch)

    def _placed(
        self, node: Node, offset: int, strides: tuple[int, ...]
    ) -> tuple[Node, int, tuple[int, ...]]:
        """A strided view of a buffer as one of the block that its local holds."""
        form = Affine(offset)
        for axis, stride in enumerate(strides):
            form = form + variable(axis) * stride
        moved = self.streamed.offset(node, form)
        return node, moved.const, tuple(moved.coefficient(axis) for axis in range(len(strides)))

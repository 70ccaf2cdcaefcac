"""Vector code of loops whose steps work on a few numbers.

One structure, `IterationEmitter`: one function with one loop, in which what is carried stays in
registers. A value of one element is a scalar; any other is one vector, its elements in row-major
order, the lanes beyond them undefined. Movements become shuffles: a movement's NumPy reference,
applied to the numbers of the elements, says where each comes from.

Kernel signature as `symgrad.codegen.plan` says; the arguments are the number of steps, then the
slots of the buffers. Start reading at `IterationEmitter.emit`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.codegen.combine import Combine, fold
from symgrad.codegen.interrupt import leave_if_interrupted
from symgrad.codegen.ir import Function, Module, Val, constant, lanes
from symgrad.codegen.layout import FUNCTION_COST, LANES, MAX_INLINED
from symgrad.codegen.loops import ARGUMENTS, Loop
from symgrad.codegen.lowering import Lowering
from symgrad.dtypes import DType, uint8
from symgrad.schedule.canonical import Node
from symgrad.schedule.iterate import Quantity, Steps

NO_AXIS = 0


CHECK_STEPS = 1 << 18
"""Steps between two looks at the clock, in a loop that may take long."""


def emit_iteration(module: Module, name: str, steps: Steps, backward: bool, long: bool) -> None:
    """Add the kernel of an iteration to a module; a `long` one listens for signals."""
    IterationEmitter(module, name, steps, backward, long).emit()


UNKNOWN = 1_000_000
"""Steps that a loop may take which ends itself, for the estimate of its time."""


def cost_of(steps: Steps, length: int) -> float:
    """Estimated nanoseconds of the whole loop."""
    if steps.ends_itself:
        length = UNKNOWN
    each = 2.0
    for q in steps.quantities:
        if q.kind == "op":
            each += 0.3 * q.what[0].cost
        elif q.kind not in ("number", "shared"):
            each += 0.5
    return each * length


def _memory(dtype: DType) -> str:
    return "i8" if dtype.kind == "i1" else dtype.kind


class IterationEmitter:
    """Emits one kernel."""

    def __init__(self, module: Module, name: str, steps: Steps, backward: bool, long: bool) -> None:
        self.steps = steps
        self.backward = backward
        self.long = long
        self.f = Function(module, name, ARGUMENTS, None, "nounwind")
        functions = 0
        for q in steps.quantities:
            functions += q.kind == "op" and q.what[0].cost >= FUNCTION_COST
        self.b = Lowering(self.f, functions <= MAX_INLINED)
        sizes = [q.size for q in steps.quantities]
        wide = any(q.dtype.itemsize > 4 for q in steps.quantities)
        self.width = LANES // 2 if wide and max(sizes) <= LANES // 2 else LANES
        self.values: list[Val] = []
        self.bases: dict[int, Val] = {}

    def emit(self) -> None:
        f = self.f
        slots, args = f.arguments[:2]
        length = f.load(args, "i64")
        for place, node in enumerate(self.steps.buffers()):
            slot = f.load(f.gep(args, constant("i64", place + 1), "i64"), "i64")
            self.bases[node.number] = f.load(f.gep(slots, slot, "ptr"), "ptr")
        before = {
            k: self._read(q.what, q, None)
            for k, q in enumerate(self.steps.quantities)
            if q.kind == "shared"
        }
        first = [self._read(n, self._carry(k), None) for k, n in enumerate(self.steps.initial)]
        if self.long:
            self.last = f.alloca("i64")
            f.store(constant("i64", 0), self.last)
        ends_itself = self.steps.ends_itself
        going = first[0] if ends_itself else None
        loop = Loop(f, NO_AXIS, constant("i64", 0), length, 1, first, going=going)
        if self.long:
            self._listen(loop)
        row = loop.iv
        if self.backward:
            row = f.sub(f.sub(length, constant("i64", 1)), row)
        for k, q in enumerate(self.steps.quantities):
            self.values.append(before[k] if k in before else self._value(q, row, loop))
        for node, k in self.steps.stored:
            self._write(node, self.values[k], self.steps.quantities[k], row)
        later = [self.values[k] for k in self.steps.following]
        lasts = loop.close(f, later, later[0] if ends_itself else None)
        for node, k in self.steps.finals:
            self._write(node, lasts[k], self.steps.quantities[self.steps.following[k]], None)
        f.ret()
        f.finish()

    def _listen(self, loop: Loop) -> None:
        """Leave the loop when a signal handler raised an error."""
        f = self.f
        count = constant("i64", CHECK_STEPS - 1)
        look, on = f.label("look"), f.label("on")
        f.branch_if(f.icmp("eq", f.and_(loop.iv, count), count), look, on)
        f.start(look)
        leave_if_interrupted(f, self.last)
        f.branch(on)
        f.start(on)

    def _carry(self, number: int) -> Quantity:
        return self.steps.quantities[self.steps.following[number]]

    # -- memory -----------------------------------------------------------------------

    def _address(self, node: Node, q: Quantity, row: Val | None) -> Val:
        base = self.bases[node.number]
        if row is None:
            return base
        return self.f.gep(base, self.f.mul(row, constant("i64", q.size)), _memory(q.dtype))

    def _present(self, size: int) -> Val:
        """The lanes that hold elements."""
        return lanes("i1", [k < size for k in range(self.width)])

    def _read(self, node: Node, q: Quantity, row: Val | None) -> Val:
        memory = _memory(q.dtype)
        address = self._address(node, q, row)
        if q.size == 1:
            value = self.f.load(address, memory)
        elif q.size == self.width:
            value = self.f.load(address, memory, self.width)
        else:
            other = constant(memory, 0, self.width)
            value = self.f.masked_load(address, self._present(q.size), other)
        if q.dtype.kind == "i1":
            value = self.f.icmp("ne", value, constant(memory, 0, value.width))
        return value

    def _write(self, node: Node, value: Val, q: Quantity, row: Val | None) -> None:
        address = self._address(node, q, row)
        if value.kind == "i1":
            value = self.f.cast("zext", value, "i8")
        if q.size in (1, self.width):
            self.f.store(value, address)
        else:
            self.f.masked_store(value, address, self._present(q.size))

    # -- values -----------------------------------------------------------------------

    def _value(self, q: Quantity, row: Val, loop: Loop) -> Val:
        if q.kind == "carry":
            return loop.carried[q.what]
        if q.kind == "row":
            return self._read(q.what, q, row)
        if q.kind == "number":
            return self._number(q)
        if q.kind == "op":
            return self._operation(q)
        if q.kind == "place":
            return self._placed(q)
        if q.kind == "reduce":
            return self._reduced(q)
        return self._contracted(q)

    def _number(self, q: Quantity) -> Val:
        flat = np.broadcast_to(np.asarray(q.what, q.dtype.numpy), q.shape).ravel()
        if q.size == 1:
            return self.b.const(flat[0].item(), Val("", q.dtype.kind, 1))
        filled = [*flat.tolist(), *[flat[-1].item()] * (self.width - q.size)]
        return lanes(q.dtype.kind, filled)

    def _operation(self, q: Quantity) -> Val:
        op, attrs = q.what
        operands = [self._spread(a, q.shape) for a in q.args]
        self.b.unsigned = any(self.steps.quantities[a].dtype is uint8 for a in q.args)
        value = op.lower(self.b, *operands, **dict(zip(op.attributes, attrs, strict=True)))
        self.b.unsigned = False
        return value  # type: ignore[no-any-return]

    def _spread(self, number: int, shape: tuple[int, ...]) -> Val:
        """A quantity under the shape it is broadcast to."""
        q, value = self.steps.quantities[number], self.values[number]
        size = int(np.prod(shape))
        if size == 1:
            return value
        places = np.broadcast_to(np.arange(q.size).reshape(q.shape), shape).ravel()
        return self._picked(value, q.size, places.tolist())

    def _picked(self, value: Val, size: int, places: list[int]) -> Val:
        """Lanes from given elements of a value of `size` elements; zero where the place is -1."""
        f = self.f
        if len(places) == 1:
            if places[0] < 0:
                return constant(value.kind, 0)
            return value if size == 1 else f.extract(value, places[0])
        if size == 1:
            value = f.splat(value, self.width)
            if min(places) >= 0:
                return value
        elif places == list(range(size)):
            return value
        rest = [0] * (self.width - len(places))
        if min(places) >= 0:
            return f.shuffle(value, None, [*places, *rest])
        zero = constant(value.kind, 0, self.width)
        picks = [p if p >= 0 else self.width + k for k, p in enumerate(places)]
        return f.shuffle(value, zero, [*picks, *rest])

    def _placed(self, q: Quantity) -> Val:
        """A movement: elements counted from 1 through the reference, which fills with zeros."""
        op, attrs = q.what
        arrays, start = [], 1
        for a in q.args:
            part = self.steps.quantities[a]
            arrays.append(np.arange(start, start + part.size).reshape(part.shape))
            start += part.size
        moved = op.ref(*arrays, **dict(zip(op.attributes, attrs, strict=True)))
        places = (np.asarray(moved).ravel() - 1).tolist()
        if len(q.args) == 1:
            return self._picked(self.values[q.args[0]], arrays[0].size, places)
        made: Val | None = None
        for a, numbers in zip(q.args, arrays, strict=True):
            own = numbers.ravel() - 1
            found = [places.index(p) for p in own.tolist() if p in places]
            made = self._inserted(made, a, places, int(own[0]), found, len(places))
        assert made is not None
        return made

    def _inserted(
        self,
        made: Val | None,
        number: int,
        places: list[int],
        first: int,
        found: list[int],
        size: int,
    ) -> Val:
        """`made` with the elements of one operand of a join in the lanes `found`."""
        f, value = self.f, self.values[number]
        if size == 1:
            return value
        if made is None:
            made = constant(value.kind, 0, self.width)
        if value.width == 1:
            for lane in found:
                made = f.insert(made, value, lane)
            return made
        picks = [self.width + k for k in range(self.width)]
        for lane in found:
            picks[lane] = places[lane] - first
        return f.shuffle(value, made, picks)

    # -- sums -------------------------------------------------------------------------

    def _reduced(self, q: Quantity) -> Val:
        """The fixed tree, which for so few terms is lanes folded by halves."""
        op, (dim,) = q.what
        inner = self.steps.quantities[q.args[0]]
        value = self.values[q.args[0]]
        combine = Combine(op.combine, inner.dtype.kind, op.identity, self.b)
        if inner.size == 1:
            state = combine.take(combine.start(1), (value,), None)
            return self._truth(combine.result(state), q)
        if inner.size == inner.shape[dim]:
            operands, _ = combine.masked(self._present(inner.size), (value,), None)
            state = fold(self.f, combine, combine.take(combine.start(self.width), operands, None))
            return self._truth(combine.result(state), q)
        numbers = np.moveaxis(np.arange(inner.size).reshape(inner.shape), dim, 0)
        terms = [self._picked(value, inner.size, n.ravel().tolist()) for n in numbers]
        width = terms[0].width
        states = [combine.take(combine.start(width), (t,), None) for t in terms]
        return self._truth(combine.result(_joined(combine, states)), q)

    def _truth(self, value: Val, q: Quantity) -> Val:
        """Truth values are bits in registers and bytes in reductions."""
        if q.dtype.kind != "i1" or value.kind == "i1":
            return value
        return self.f.icmp("ne", value, constant(value.kind, 0, value.width))

    def _contracted(self, q: Quantity) -> Val:
        """A batched product: a chain along k, or lanes where it has a single row or column."""
        a, b = (self.steps.quantities[k] for k in q.args)
        batch, m, k = a.shape
        n = q.shape[2]
        left = np.arange(a.size).reshape(batch, m, 1, k)
        right = np.arange(b.size).reshape(batch, 1, k, n).swapaxes(2, 3)
        factors = []
        for numbers, place in ((left, 0), (right, 1)):
            table = np.broadcast_to(numbers, (batch, m, n, k))
            own, size = self.values[q.args[place]], (a, b)[place].size
            factors.append(
                [self._picked(own, size, table[..., j].ravel().tolist()) for j in range(k)]
            )
        pairs = list(zip(*factors, strict=True))
        width = pairs[0][0].width
        if 1 in (m, n):
            combine = Combine("dot", q.dtype.kind, -0.0, self.b)
            states = [combine.take(combine.start(width), pair, None) for pair in pairs]
            return combine.result(_joined(combine, states))
        total = constant(q.dtype.kind, 0, width)
        for x, y in pairs:
            total = self.f.fma(x, y, total)
        return total


def _joined(combine: Combine, states: list[Any]) -> Any:
    """Partial results of up to 16 terms, joined by halves."""
    half = LANES
    while half > 1:
        half //= 2
        states = [
            combine.join(s, states[k + half]) if k + half < len(states) else s
            for k, s in enumerate(states[:half])
        ]
    return states[0]

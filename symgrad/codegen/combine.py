"""How partial results of a reduction are joined: elements into lanes, lanes by halves, units in a tree.

`Combine` holds what differs between sums, products, extrema, dot products and arg-extrema, `fold`
joins lanes, `UnitTree` units. Start reading at `Combine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgrad.codegen.ir import Function, Val, constant
from symgrad.codegen.lowering import Lowering, is_float

DEPTH = 48
"""Levels of the tree over units: more than any array can need."""

State = tuple[Val, ...]

ONE = constant("i64", 1)


class Combine:
    """How one kind of reduction takes an element in and joins two partial results."""

    def __init__(self, kind: str, element: str, identity: float, b: Lowering) -> None:
        self.kind = kind
        self.element = "i8" if element == "i1" else element
        self.identity = identity
        self.b = b

    def kinds(self) -> tuple[str, ...]:
        """Scalar kinds of the state's parts."""
        if self.kind in ("argmax", "argmin"):
            return (self.element, "i64")
        return (self.element,)

    def start(self, width: int) -> State:
        """The state before any element."""
        number: Any = self.identity
        if self.element not in ("double", "float"):
            number = self._integer_identity()
        state = (constant(self.element, number, width),)
        if self.kind in ("argmax", "argmin"):
            return (*state, constant("i64", -1, width))
        return state

    def _integer_identity(self) -> int:
        bits = int(self.element[1:])
        return {
            "add": 0,
            "or": 0,
            "mul": 1,
            "and": 1,
            "max": -(1 << (bits - 1)),
            "argmax": -(1 << (bits - 1)),
            "min": (1 << (bits - 1)) - 1,
            "argmin": (1 << (bits - 1)) - 1,
            "dot": 0,
        }[self.kind]

    def take(self, state: State, operands: tuple[Val, ...], position: Val | None) -> State:
        """Take an element in."""
        if self.kind == "dot":
            if is_float(operands[0]):
                return (self.b.fma(operands[0], operands[1], state[0]),)
            return (self.b.add(state[0], self.b.mul(operands[0], operands[1])),)
        value = operands[0]
        if value.kind == "i1":
            value = self.b.f.cast("zext", value, "i8")
        if position is not None:
            return self.join(state, (value, position))
        return self.join(state, (value,))

    def join(self, x: State, y: State) -> State:
        """Join two partial results, `x` the earlier one."""
        b = self.b
        kind = self.kind
        if kind in ("add", "dot"):
            return (b.add(x[0], y[0]),)
        if kind == "mul":
            return (b.mul(x[0], y[0]),)
        if kind == "or":
            return (b.f.or_(x[0], y[0]),)
        if kind == "and":
            return (b.f.and_(x[0], y[0]),)
        predicate = "gt" if kind in ("max", "argmax") else "lt"
        better = b.compare(predicate, y[0], x[0])
        if kind in ("max", "min"):
            # NaN wins last: whether there is one in y is known before x is, and the first choice is
            # a single instruction.
            chosen = b.select(better, y[0], x[0])
            if is_float(y[0]):
                chosen = b.select(b.is_nan(y[0]), y[0], chosen)
            return (chosen,)
        # Arg-extrema: NaN beats all, equal values keep the smaller index; -1 is "none yet".
        none = b.compare("lt", x[1], b.zero(x[1]))
        valid = b.compare("ge", y[1], b.zero(y[1]))
        earlier = b.compare("lt", y[1], x[1])
        same = b.compare("eq", y[0], x[0])
        if is_float(y[0]):
            x_nan, y_nan = b.is_nan(x[0]), b.is_nan(y[0])
            better = b.bit_and(better, b.bit_not(x_nan))
            better = b.bit_or(better, b.bit_and(y_nan, b.bit_not(x_nan)))
            same = b.bit_or(same, b.bit_and(x_nan, y_nan))
        better = b.bit_or(better, b.bit_and(same, earlier))
        better = b.bit_and(b.bit_or(better, none), valid)
        return b.select(better, y[0], x[0]), b.select(better, y[1], x[1])

    def masked(self, mask: Val, operands: tuple[Val, ...], position: Val | None) -> Any:
        """Operands with the lanes outside `mask` replaced by what changes nothing."""
        b = self.b
        if self.kind == "dot":
            # fma(-0, 0, acc) leaves acc alone, -0.0 included.
            first = b.select(mask, operands[0], b.const(-0.0, operands[0]))
            return (first, b.select(mask, operands[1], b.zero(operands[1]))), position
        if position is not None:
            position = b.select(mask, position, b.const(-1, position))
            return operands, position
        value = operands[0]
        if value.kind == "i1":
            value = b.f.cast("zext", value, "i8")
        return (b.select(mask, value, self.start(value.width)[0]),), position

    def result(self, state: State) -> Val:
        """What is stored."""
        return state[1] if self.kind in ("argmax", "argmin") else state[0]


def fold(f: Function, combine: Combine, state: State) -> State:
    """Fold the lanes of a state by halves down to one."""
    width = state[0].width
    while width > 1:
        width //= 2
        low = tuple(part_of(f, s, 0, width) for s in state)
        high = tuple(part_of(f, s, width, width) for s in state)
        state = combine.join(low, high)
    return state


def part_of(f: Function, x: Val, start: int, count: int) -> Val:
    if count == x.width:
        return x
    if count == 1:
        return f.extract(x, start)
    return f.shuffle(x, None, range(start, start + count))


class UnitTree:
    """The binary tree over units, as a stack with one pending partial result per level.

    Several reductions over the same units go up together, so that they share its branches.

    With several `columns` there is a tree for each: a block of vectors that are reduced together.
    Where a tree outlives a kernel its `stacks` are memory of the call.
    """

    def __init__(
        self,
        f: Function,
        combines: Sequence[Combine],
        width: int,
        columns: Val = ONE,
        stacks: list[Val] | None = None,
    ) -> None:
        self.f = f
        self.combines = combines
        self.width = width
        self.kinds = [kind for combine in combines for kind in combine.kinds()]
        self.columns = columns
        self.column: Val = constant("i64", 0)
        if stacks is None:
            count = DEPTH * int(columns.ref)
            stacks = [f.alloca(kind, width, count) for kind in self.kinds]
        self.stacks = stacks

    def _address(self, stack: Val, level: Val, kind: str) -> Val:
        f = self.f
        place = level
        if self.columns != ONE:
            place = f.add(f.mul(level, self.columns), self.column)
        return f.gep(stack, place, kind, self.width)

    def _get(self, level: Val) -> list[Val]:
        return [
            self.f.load(self._address(stack, level, kind), kind, self.width)
            for stack, kind in zip(self.stacks, self.kinds, strict=True)
        ]

    def _states(self, values: Sequence[Val]) -> list[State]:
        """The state of each reduction, from all their parts."""
        rest = iter(values)
        return [tuple(next(rest) for _ in combine.kinds()) for combine in self.combines]

    def _joined(self, earlier: Sequence[Val], later: Sequence[Val]) -> list[Val]:
        pairs = zip(self.combines, self._states(earlier), self._states(later), strict=True)
        return [part for combine, x, y in pairs for part in combine.join(x, y)]

    def push(self, unit: Val, states: Sequence[State]) -> None:
        """Add the partial results of the unit with this index."""
        f = self.f
        parts = [part for state in states for part in state]
        origin = f.here()
        head, body, leave = f.label("carry"), f.label("join"), f.label("pushed")
        f.branch(head)
        f.start(head)
        level = f.phi("i64")
        rest = f.phi("i64")
        carried = [f.phi(s.kind, s.width) for s in parts]
        odd = f.icmp("ne", f.and_(rest[0], constant("i64", 1)), constant("i64", 0))
        f.branch_if(odd, body, leave)
        f.start(body)
        joined = self._joined(self._get(level[0]), [c[0] for c in carried])
        next_level = f.add(level[0], constant("i64", 1))
        next_rest = f.lshr(rest[0], constant("i64", 1))
        end = f.here()
        f.branch(head)
        f.set_phi(level, [(constant("i64", 0), origin), (next_level, end)])
        f.set_phi(rest, [(unit, origin), (next_rest, end)])
        for phi, first, later in zip(carried, parts, joined, strict=True):
            f.set_phi(phi, [(first, origin), (later, end)])
        f.start(leave)
        for stack, value in zip(self.stacks, carried, strict=True):
            f.store(value[0], self._address(stack, level[0], value[0].kind))

    def total(self, units: Val) -> list[State]:
        """Join what is pending after `units` units, shortest runs first."""
        f = self.f
        origin = f.here()
        head, test, body = f.label("total"), f.label("test"), f.label("take")
        step, leave = f.label("step"), f.label("whole")
        lowest = f.emit(f"call i64 @llvm.cttz.i64(i64 {units.ref}, i1 true)", "i64")
        f.module.declare("llvm.cttz.i64", "i64", ["i64", "i1"])
        first = self._get(lowest)
        start = f.add(lowest, constant("i64", 1))
        f.branch(head)
        f.start(head)
        level = f.phi("i64")
        held = [f.phi(s.kind, s.width) for s in first]
        rest = f.lshr(units, level[0])
        f.branch_if(f.icmp("ne", rest, constant("i64", 0)), test, leave)
        f.start(test)
        odd = f.icmp("ne", f.and_(rest, constant("i64", 1)), constant("i64", 0))
        f.branch_if(odd, body, step)
        f.start(body)
        joined = self._joined(self._get(level[0]), [h[0] for h in held])
        body_end = f.here()
        f.branch(step)
        f.start(step)
        merged = [f.phi(h[0].kind, h[0].width) for h in held]
        following = f.add(level[0], constant("i64", 1))
        f.branch(head)
        for phi, old, new in zip(merged, held, joined, strict=True):
            f.set_phi(phi, [(old[0], test), (new, body_end)])
        f.set_phi(level, [(start, origin), (following, step)])
        for phi, begin, later in zip(held, first, merged, strict=True):
            f.set_phi(phi, [(begin, origin), (later[0], step)])
        f.start(leave)
        return self._states([h[0] for h in held])

"""Random small programs drawn from the registry, and the ways to evaluate one.

Structures:

* `Step`: one call of an op or composite on earlier values.
* `Program`: inputs and steps, with every value computed by the references in NumPy. `build`
  records it as expressions, `text` prints it as Python for a bug report.

A step is kept only if its reference gives finite numbers of moderate size, and arguments are
brought into the range that the op's first sample draws from. Start at `random_program`.
"""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from symgrad.calculus import pullback
from symgrad.dtypes import DType
from symgrad.expr import Expr, ancestors
from symgrad.family import Elementwise
from symgrad.op import constant, interning
from symgrad.runtime import evaluate
from symgrad.sample import T
from symgrad.testing.derivatives import weighted
from symgrad.testing.evaluator import run
from symgrad.testing.samples import Subject, flattened, nodes, subject, subjects

LARGEST = 1e3
SIZES = (1, 2, 3, 5, 17, 40)
LONG = (385, 800)


class Step(NamedTuple):
    """A call: whom, with what.

    Attributes
    ----------
    subject : Subject
    operands : tuple of int
        Earlier values, inputs first.
    rest : tuple
        Further positional arguments.
    attrs : dict
    """

    subject: Subject
    operands: tuple[int, ...]
    rest: tuple[Any, ...] = ()
    attrs: dict[str, Any] = {}


class Program:
    """Inputs and steps.

    Attributes
    ----------
    inputs : list of ndarray
    steps : list of Step
    values : list of ndarray
        Of inputs and steps, by the references, in float64.
    """

    def __init__(self, inputs: Sequence[np.ndarray]) -> None:
        self.inputs = list(inputs)
        self.steps: list[Step] = []
        self.values = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]

    def add(self, step: Step) -> bool:
        """Take a step, unless its reference refuses it or gives unwieldy numbers."""
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                value = _first(
                    step.subject.ref(
                        *[self.values[k] for k in step.operands], *step.rest, **step.attrs
                    )
                )
        except (ValueError, TypeError, IndexError, ArithmeticError):
            return False
        if value.size > 4000 or value.dtype.kind not in "fbi":
            return False
        if value.dtype.kind == "f" and not np.all(np.abs(value) <= LARGEST):
            return False
        self.steps.append(step)
        self.values.append(value)
        return True

    def build(self) -> list[Expr]:
        """All values as expressions."""
        made = nodes(self.inputs)
        for step in self.steps:
            operands = [made[k] for k in step.operands]
            made.append(_first_node(step.subject.call(*operands, *step.rest, **step.attrs)))
        return made

    def text(self) -> str:
        """The program as lines of Python."""
        lines = [f"v{k} = input {a.dtype}{list(a.shape)}" for k, a in enumerate(self.inputs)]
        for k, s in enumerate(self.steps, len(self.inputs)):
            parts = [f"v{o}" for o in s.operands] + [repr(r) for r in s.rest]
            parts += [f"{name}={v!r}" for name, v in s.attrs.items()]
            lines.append(f"v{k} = {s.subject.name}({', '.join(parts)})")
        return "\n".join(lines)


def _first(result: Any) -> np.ndarray:
    return np.asarray(flattened(result)[0])


def _first_node(result: Any) -> Expr:
    node = flattened(result)[0]
    assert isinstance(node, Expr)
    return node


# -- drawing --------------------------------------------------------------------------------


@cache
def _elementwise() -> dict[Subject, list[T]]:
    """Elementwise ops on floats without attributes, and the ranges of their operands."""
    found = {}
    for s in subjects():
        op = s.op
        if not isinstance(op, Elementwise) or op.conditions or op.attributes:
            continue
        parts = [a for a in s.samples[0].args if isinstance(a, T)]
        if op.accepts in ("number", "float") and len(parts) == op.arity:
            if all(p.dtype == "float" and p.make is None for p in parts):
                found[s] = parts
    return found


@cache
def _along() -> list[Subject]:
    """Composites whose second parameter is ``dim`` and that some sample calls with one."""
    found = []
    for s in subjects():
        if s.op is not None:
            continue
        names = list(inspect.signature(s.call.__wrapped__).parameters)  # type: ignore[attr-defined]
        called = any(
            len(c.args) == 2 and isinstance(c.args[0], T) and isinstance(c.args[1], int)
            for c in s.samples
        )
        if len(names) > 1 and names[1] == "dim" and called:
            found.append(s)
    return found


class _Drawer:
    """Draws steps for one program."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self.program = program
        self.rng = rng

    def pick(self, fits: Callable[[np.ndarray], bool]) -> int | None:
        """A value that fits, later ones more often."""
        places = [k for k, v in enumerate(self.program.values) if fits(v)]
        if not places:
            return None
        back = int(self.rng.geometric(0.3)) - 1
        return places[max(len(places) - 1 - back, 0)]

    def floating(self, ndim: int = 0) -> int | None:
        return self.pick(lambda v: v.dtype.kind == "f" and v.ndim >= ndim)

    def subject(self, among: Sequence[Subject]) -> Subject:
        """One of these. A new op among them leaves most choices of a seed as they were."""
        key = int(self.rng.integers(1 << 30))
        return min(among, key=lambda s: zlib.crc32(f"{s.name} {key}".encode()))

    def call(self, name: str, *operands: int, rest: tuple[Any, ...] = (), **attrs: Any) -> bool:
        return self.program.add(Step(subject(name), operands, rest, attrs))

    def last(self) -> int:
        return len(self.program.values) - 1

    def within(self, k: int, part: T) -> int | None:
        """A value in the range of a sample's argument, made by a sine if need be."""
        value = self.program.values[k]
        if value.size and value.min() >= part.lo and value.max() <= part.hi:
            return k
        half, middle = (part.hi - part.lo) / 2, (part.hi + part.lo) / 2
        if not (self.call("sin", k) and self.call("mul", self.last(), rest=(half * 0.95,))):
            return None
        return self.last() if self.call("add", self.last(), rest=(middle,)) else None

    def elementwise(self) -> None:
        s = self.subject(list(_elementwise()))
        parts = _elementwise()[s]
        first = self.floating()
        if first is None:
            return
        shape = self.program.values[first].shape
        operands = [first]
        for _ in parts[1:]:
            other = self.pick(lambda v: v.dtype.kind == "f" and _broadcasts(v.shape, shape))
            operands.append(first if other is None else other)
        placed = [self.within(k, p) for k, p in zip(operands, parts, strict=True)]
        if all(k is not None for k in placed):
            self.program.add(Step(s, tuple(k for k in placed if k is not None)))

    def choice(self) -> None:
        """A comparison and a `where` on it."""
        x = self.floating()
        if x is None:
            return
        shape = self.program.values[x].shape
        y = self.pick(lambda v: v.dtype.kind == "f" and _broadcasts(v.shape, shape))
        name = ["lt", "ge", "gt"][int(self.rng.integers(3))]
        if y is not None and self.call(name, x, y):
            self.call("where", self.last(), x, y)

    def along(self) -> None:
        s = self.subject(_along())
        k = self.floating(1)
        if k is not None and self.program.values[k].size:
            dim = int(self.rng.integers(self.program.values[k].ndim))
            self.program.add(Step(s, (k,), (dim,)))

    def product(self) -> None:
        a = self.pick(lambda v: v.dtype.kind == "f" and v.ndim == 2)
        if a is None:
            return
        inner = self.program.values[a].shape[1]
        b = self.pick(lambda v: v.dtype.kind == "f" and v.ndim in (1, 2) and v.shape[0] == inner)
        if b is not None:
            self.call("matmul", a, b)
        elif self.call("permute", a, rest=((1, 0),)):
            self.call("matmul", a, self.last())

    def movement(self) -> None:
        k = self.floating(1)
        if k is None:
            return
        rng, shape = self.rng, self.program.values[k].shape
        n = len(shape)
        kind = int(rng.integers(7))
        if kind == 0:
            self.call("permute", k, rest=(tuple(int(d) for d in rng.permutation(n)),))
        elif kind == 1:
            self.call("flip", k, rest=((int(rng.integers(n)),),))
        elif kind == 2:
            steps = tuple(int(s) for s in rng.integers(1, 3, n))
            starts = tuple(int(rng.integers(0, max(s // 2, 1))) for s in shape)
            parts = zip(shape, starts, steps, strict=True)
            counts = tuple(max(-(-(s - b) // t), 0) for s, b, t in parts)
            self.call("narrow_step", k, starts=starts, steps=steps, counts=counts)
        elif kind == 3:
            starts = tuple(int(s) for s in rng.integers(0, 3, n))
            steps = tuple(int(s) for s in rng.integers(1, 3, n))
            sizes = (
                b + t * max(s - 1, 0) + 1 + int(rng.integers(0, 2))
                for s, b, t in zip(shape, starts, steps, strict=True)
            )
            self.call("embed", k, size=tuple(sizes), starts=starts, steps=steps)
        elif kind == 4:
            self.call("reshape", k, rest=((-1,) if n > 1 else (shape[0], 1),))
        elif kind == 5:
            self.call("expand", k, rest=((int(rng.integers(1, 4)), *shape),))
        else:
            self.call("join_axis", k, k, dim=int(rng.integers(n)))


def _broadcasts(x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(x, y)) <= 3
    except ValueError:
        return False


def random_program(seed: int, floating: DType, length: int = 12) -> Program:
    """The program of this seed: two or three inputs, about `length` steps."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(rng.choice(SIZES)) for _ in range(2))
    if seed % 5 == 0:
        columns = int(rng.choice(LONG))
    shapes = [(rows, columns), (columns,), (rows, 1), ()][: int(rng.integers(2, 5))]
    program = Program([np.asarray(rng.uniform(-2, 2, s)).astype(floating.numpy) for s in shapes])
    drawer = _Drawer(program, rng)
    draws = [drawer.elementwise, drawer.choice, drawer.along, drawer.product, drawer.movement]
    for _ in range(8 * length):
        draws[int(rng.choice(5, p=[0.45, 0.1, 0.15, 0.1, 0.2]))]()
        if len(program.steps) >= length:
            break
    return program


# -- evaluating -----------------------------------------------------------------------------


class Recorded(NamedTuple):
    """A program as expressions, with the gradient of a random scalar of its results."""

    values: list[Expr]
    gradient: list[Expr]


def recorded(program: Program, look: Sequence[int] = ()) -> Recorded:
    """Record a program and its gradient, computing some values before the gradient is made.

    Parameters
    ----------
    look : sequence of int
        Values to compute first.
    """
    values = program.build()
    for k in look:
        evaluate([values[k]])
    ends = [v for v in values[-3:] if v.requires_grad]
    if not ends:
        return Recorded(values, [])
    scalar = weighted(ends, np.random.default_rng(1))
    leaves = values[: len(program.inputs)]
    with interning():
        parts = pullback([scalar], [constant(1.0, scalar.dtype)], leaves)
    return Recorded(values, [p for p in parts if p is not None])


def as_whole(program: Program) -> list[np.ndarray]:
    """All values and gradients in one run."""
    made = recorded(program)
    return run([*made.values, *made.gradient])


def result_only(program: Program) -> list[np.ndarray]:
    """The last value and the gradients, so that nothing else needs to be stored."""
    made = recorded(program)
    return run([made.values[-1], *made.gradient])


def with_looks(program: Program, rng: np.random.Generator) -> list[np.ndarray]:
    """The last value and the gradients, after looks at random values before."""
    count = int(rng.integers(1, 4))
    made = recorded(program, [int(k) for k in rng.integers(0, len(program.values), count)])
    inner = ancestors(made.gradient, lambda n: n.value is None)
    for _ in range(count):
        if inner:
            evaluate([inner[int(rng.integers(len(inner)))]])
    last = [made.values[-1], *made.gradient]
    evaluate(last)
    return [np.asarray(n.value) for n in last]


def node_by_node(program: Program) -> list[np.ndarray]:
    """The last value and the gradients, every node computed by itself, in order."""
    made = recorded(program)
    last = [made.values[-1], *made.gradient]
    for n in ancestors(last, lambda n: n.value is None):
        evaluate([n])
    return [np.asarray(n.value) for n in last]

"""What is tested: ops and composites with their samples, turned into arrays and calls.

Structures:

* `Subject`: an op or composite, or a variant of one: what to call and what is true of it.
* `Drawn`: one sample with its tensors drawn: the arrays in order, and how a call with other
  tensors in their places looks. The same `Drawn` feeds the expression and the reference.

Start reading at `subjects`, then `draw`.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import symgrad.ops  # noqa: F401  (fills the registry)
from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import COMPOSITES, Composite
from symgrad.op import REGISTRY, Op, input_node
from symgrad.sample import Case, T

FLOATS = (dtypes.float32, dtypes.float64)


class Subject:
    """Something to test.

    Attributes
    ----------
    name : str
    call, ref : callable
        On expressions, and the same on arrays.
    samples, errors : sequence of Case
    op : Op or None
        None for a composite.
    prepare : callable or None
        Applied to the tensors before the call.
    """

    def __init__(self, made: Op | Composite) -> None:
        self.name = made.name
        self.call: Callable[..., Any] = made
        self.ref: Callable[..., Any] = made.ref
        self.samples: Sequence[Case] = tuple(made.samples)
        self.errors: Sequence[Case] = tuple(made.errors)
        self.op: Op | None = made if isinstance(made, Op) else None
        self.doc: str = made.__doc__ or ""
        self.prepare: Callable[[Expr], Expr] | None = None
        if self.op is not None and not self.samples:
            self.samples = _from_domain(self.op)

    @property
    def family(self) -> str:
        return "composite" if self.op is None else self.op.family

    @property
    def rule(self) -> str:
        """The kind of derivative rule, "" for a composite."""
        return "" if self.op is None else self.op.rule

    def seed(self, number: int = 0) -> np.random.Generator:
        """A generator that depends on the name and `number` alone."""
        return np.random.default_rng([zlib.crc32(self.name.encode()), number])

    def __repr__(self) -> str:
        return f"<subject {self.name}>"


def _from_domain(op: Op) -> tuple[Case, ...]:
    """Samples for an elementwise op that states only its domain."""
    lo, hi = op.domain
    arity: int = getattr(op, "arity", 1)
    return (
        Case(*[T(2, 3, lo=lo, hi=hi)] * arity),
        Case(*[T(lo=lo, hi=hi)] * arity),
        Case(*[T(0, lo=lo, hi=hi)] * arity),
    )


def subjects() -> list[Subject]:
    """All ops but leaves, then all composites, by name."""
    ops = [Subject(o) for _, o in sorted(REGISTRY.items()) if o.family not in ("leaf", "alias")]
    return ops + [Subject(c) for _, c in sorted(COMPOSITES.items())]


def subject(name: str) -> Subject:
    """The op or composite of this name.

    Raises
    ------
    KeyError
        If there is none.
    """
    if name in REGISTRY:
        return Subject(REGISTRY[name])
    if name in COMPOSITES:
        return Subject(COMPOSITES[name])
    raise KeyError(f"subject: no op or composite is called {name!r}; see symgrad.op.REGISTRY")


class _Slot:
    """The place of a tensor in a sample's arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


class Drawn:
    """A sample with its tensors drawn.

    Attributes
    ----------
    arrays : list of ndarray
        One per tensor argument, in order of occurrence.
    case : Case
    """

    def __init__(self, case: Case, rng: np.random.Generator, floating: DType) -> None:
        self.case = case
        self.arrays: list[np.ndarray] = []
        self._rng = rng
        self._floating = floating
        self._args = [self._take(a) for a in case.args]
        self._attrs = {k: self._attribute(k, v) for k, v in case.attrs.items()}

    def _take(self, part: Any) -> Any:
        if isinstance(part, T):
            return self._slot(part.draw(self._rng, self._floating.numpy))
        if isinstance(part, np.ndarray):
            kind = self._floating.numpy if part.dtype.kind == "f" else part.dtype
            return self._slot(part.astype(kind))
        if isinstance(part, list | tuple):
            return type(part)([self._take(p) for p in part])
        return part

    def _slot(self, array: np.ndarray) -> _Slot:
        self.arrays.append(np.ascontiguousarray(array).reshape(array.shape))
        return _Slot(len(self.arrays) - 1)

    def _attribute(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and name == "dtype":
            return dtypes.by_name(value)
        return self._take(value)

    def arguments(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the call with these in the tensors' places."""

        def fill(part: Any) -> Any:
            if isinstance(part, _Slot):
                return tensors[part.number]
            if isinstance(part, list | tuple):
                return type(part)([fill(p) for p in part])
            return part

        return [fill(a) for a in self._args], {k: fill(v) for k, v in self._attrs.items()}

    @property
    def floating_places(self) -> list[int]:
        """Which arrays hold floating-point numbers, and so may have derivatives."""
        return [k for k, a in enumerate(self.arrays) if a.dtype.kind == "f"]


def draw(subject: Subject, number: int, floating: DType, attempt: int = 0) -> Drawn:
    """The arrays of sample `number`, the same ones each time; `attempt` gives other ones."""
    return Drawn(subject.samples[number], subject.seed(100 * attempt + number), floating)


def floats_matter(case: Case) -> bool:
    """Whether a sample differs between floating dtypes."""

    def inside(part: Any) -> Iterator[bool]:
        stack = [part]
        while stack:
            p = stack.pop()
            if isinstance(p, T):
                yield p.dtype == "float" or p.make is not None
            elif isinstance(p, np.ndarray):
                yield p.dtype.kind == "f"
            elif isinstance(p, list | tuple):
                stack.extend(p)

    return any(inside([*case.args, *case.attrs.values()]))


def nodes(arrays: Sequence[np.ndarray], grad: bool = True) -> list[Expr]:
    """Leaves that hold these arrays; floating ones want derivatives if `grad`."""
    return [
        input_node(a.shape, dtypes.from_numpy(a.dtype), a, grad and a.dtype.kind == "f")
        for a in arrays
    ]


def call(subject: Subject, drawn: Drawn, tensors: Sequence[Expr]) -> list[Expr]:
    """The results of the call as a flat list of nodes."""
    if subject.prepare is not None:
        tensors = [subject.prepare(t) for t in tensors]
    args, attrs = drawn.arguments(tensors)
    return [r for r in flattened(subject.call(*args, **attrs)) if isinstance(r, Expr)]


def truth(subject: Subject, drawn: Drawn, wide: bool) -> list[np.ndarray]:
    """The reference's results; `wide` computes in float64 whatever the arrays are."""
    widest = {"f": np.float64, "c": np.complex128}
    tensors = [a.astype(widest.get(a.dtype.kind, a.dtype)) if wide else a for a in drawn.arrays]
    args, attrs = drawn.arguments(tensors)
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        return [np.asarray(r) for r in flattened(subject.ref(*args, **attrs))]


def flattened(result: Any) -> list[Any]:
    """A result, or the results of nested sequences in order."""
    found: list[Any] = []
    stack = [result]
    while stack:
        r = stack.pop()
        if isinstance(r, list | tuple):
            stack.extend(reversed(r))
        else:
            found.append(r)
    return found


def sample_cases(all_dtypes: bool = True) -> Iterator[tuple[Subject, int, DType]]:
    """Every subject, sample number and floating dtype; samples without floats occur once."""
    for s in subjects():
        for number, case in enumerate(s.samples):
            for floating in FLOATS if all_dtypes and floats_matter(case) else FLOATS[1:]:
                yield s, number, floating


def identity(part: tuple[Subject, int, DType]) -> str:
    """A readable name of a sample: ``exp-0-float32``."""
    s, number, floating = part
    return f"{s.name}-{number}-{floating.name}"

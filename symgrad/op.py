"""What every op is, the registry of all ops, and how nodes are recorded.

Structures:

* `Op`: the base of all ops, with the facts that interpreters (calculus, formula, schedule) ask
  for: the family and the kind of derivative rule, never an op by name. `REGISTRY` holds them all;
  `symgrad.family` declares them.
* `STATE`: per-thread recording state. `record` makes every node but leaves.
* the leaves: `INPUT`, `CONSTANT`.

Start reading at `record`, then `Op`.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from symgrad.dtypes import DType, float32, float64
from symgrad.exact import Exact
from symgrad.expr import Expr
from symgrad.sample import Case

REGISTRY: dict[str, Op] = {}


class _State(threading.local):
    """Per-thread recording state.

    Grad mode; whether a compiled function is being traced; whether a node was recorded that can
    fail on values, and whether a value was looked at to make one (both reset by the caller who asks);
    the capture of the function being traced; how
    many levels of dual numbers are open; the table that interns calculus' own nodes; whether nodes
    are recorded as they are written, without accuracy rules.
    """

    grad = True
    tracing = False
    checked = False
    looked = False
    capture: Any = None
    dual_levels = 0
    table: dict[Any, Expr] | None = None
    plain = False


STATE = _State()

ACTIVE: list[Any] = []
"""The captures of functions being traced, in any thread: while there is none, a tensor need not ask
for this thread's."""

INTERNING: list[object] = []
"""One entry for each table of interned nodes in use, in any thread: while there is none, a node
can be made without asking for this thread's."""


def _forget_other_threads() -> None:
    if STATE.table is None:
        INTERNING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)

DERIVED = "derived"
"""Mark (`Expr.meta`) of nodes that calculus made: they keep their arguments once computed, so that
a derivative can still be printed as a formula."""


# -- recording --------------------------------------------------------------------------


def record(
    op: Op, args: tuple[Expr, ...], attrs: tuple[Any, ...], shape: tuple[int, ...], dtype: DType
) -> Expr:
    """Make the node; derivatives flow through it if grad mode is on and an argument needs them.

    Rules that `symgrad.simplify` attached to the op may put a more accurate expression in place.
    """
    for rewrite in op.rewrites:
        if STATE.plain or args[0].dtype.category == 3:
            break
        better = rewrite(args, attrs)
        if better is not None:
            return better  # type: ignore[no-any-return]
    requires_grad = False
    if STATE.grad and op.differentiable and dtype.category >= 2:
        for a in args:
            if a.requires_grad:
                requires_grad = True
                break
    table = STATE.table
    if table is None:
        return Expr(op, args, attrs, shape, dtype, requires_grad)
    key = (op, attrs, requires_grad, shape, dtype, *map(id, args))
    found = table.get(key)
    if found is None:
        found = table[key] = Expr(op, args, attrs, shape, dtype, requires_grad)
        if not requires_grad:
            found.meta = DERIVED
    return found


@contextmanager
def interning(seed: Sequence[Expr] = ()) -> Iterator[None]:
    """Within the block equal nodes are made once; nodes in `seed` count as made already."""
    outer = STATE.table
    table: dict[Any, Expr] = {} if outer is None else outer
    for n in seed:
        if n.args:
            key = (n.op, n.attrs, n.requires_grad, n.shape, n.dtype, *map(id, n.args))
            table.setdefault(key, n)
        elif n.op is CONSTANT:
            table.setdefault(_constant_key(n.value, n.dtype, n.attrs[0] is not None), n)
    STATE.table = table
    INTERNING.append(table)
    try:
        yield
    finally:
        INTERNING.pop()
        STATE.table = outer


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Set grad mode for this thread within the block."""
    before = STATE.grad
    STATE.grad = enabled
    try:
        yield
    finally:
        STATE.grad = before


_look: Callable[[Expr], np.ndarray | None] | None = None


def set_look(look: Callable[[Expr], np.ndarray | None]) -> None:
    """Install the function behind `value_of`; the runtime does so when it is imported."""
    global _look
    _look = look


def value_of(x: Expr) -> np.ndarray | None:
    """The value of `x`, computed now; None while it depends on a traced input.

    For ops whose shape or validity depends on values (masks, index bounds).
    """
    if _look is None:
        raise RuntimeError("value_of: no runtime is loaded; import symgrad")
    STATE.looked = True
    return _look(x)


# -- leaves -----------------------------------------------------------------------------


class Op:
    """Base of all ops. See the module docstring for what a class declares."""

    name: ClassVar[str] = ""
    attributes: ClassVar[tuple[str, ...]] = ()
    family: ClassVar[str] = ""
    linear: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    product: ClassVar[bool] = False
    """Whether the partials of a node by its two arguments are each the other argument."""
    differentiable: ClassVar[bool] = True
    injective: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    pieces: ClassVar[bool] = False
    """Whether a movement places each of its arguments somewhere, as ``place(number, index, args,
    **attrs)`` says: where in the result an element of an argument goes."""
    gaps: ClassVar[bool] = False
    """Whether pieces leave zeros between them."""
    keeps_order: ClassVar[bool] = False
    annotates: ClassVar[bool] = False
    """Whether a node is its first argument, and states something that is true of these very
    arguments: where the graph is recorded anew on others, the first argument takes its place."""
    shifts: ClassVar[bool] = False
    """Whether a movement reads the same axis at other positions, so that users' reads add up."""
    reads: ClassVar[bool] = False
    writes: ClassVar[str] = ""
    stacked: ClassVar[Callable[..., Expr | None] | None] = None
    """For an op whose results differ in where they are taken from: many of them in one node."""
    anchor: Callable[[Expr], Expr | None] | None = None
    """Given a node, the argument that accuracy rules may still ask for once it is computed; its
    value is stored with the node's. Attached by `symgrad.simplify`.
    """
    rewrites: Sequence[Callable[..., Expr | None]] = ()
    """Accuracy rules tried when a node is recorded; attached by `symgrad.simplify`."""
    public: ClassVar[bool] = True
    """Whether torch has a function of this name, so that users get one."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Further names of the same function."""
    nodiff: ClassVar[str]
    domain: ClassVar[tuple[float, float]] = (-3.0, 3.0)
    samples: ClassVar[Sequence[Case]] = ()
    errors: ClassVar[Sequence[Case]] = ()
    cost: ClassVar[float] = 1.0
    """Cost of one element in units of one addition."""

    shape: ClassVar[Callable[..., tuple[int, ...]]]
    partials: ClassVar[Callable[..., tuple[Expr | float | None, ...]]]
    select: ClassVar[Callable[..., tuple[tuple[Expr, Expr | float] | None, ...]]]
    adjoint: ClassVar[Callable[..., tuple[Expr | None, ...]]]
    vjp: ClassVar[Callable[..., tuple[Expr | None, ...]]]
    ratio: Callable[..., tuple[Expr, Expr]] | None = None
    """Given a node and its arguments, numerator and denominator of an op that is a quotient of
    the two: its Taylor coefficients then follow by long division, at half the cost of `partials`.
    """
    ref: ClassVar[Callable[..., Any]]
    sympy: ClassVar[Callable[..., Any]]
    lower: ClassVar[Callable[..., Any]]

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (_by_name, (self.name,))

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        raise TypeError(f"{self.name}: cannot be called directly")


def _by_name(name: str) -> Op:
    return REGISTRY[name]


class Leaf(Op):
    """A node without a computation: an input, a parameter, a constant."""

    family = "leaf"


class _Input(Leaf):
    """A tensor whose value comes from outside, or from its one argument (a rebound leaf)."""

    name = "input"


class _Constant(Leaf):
    """A Python number. A runtime argument of compiled code unless its attribute fixes it."""

    name = "constant"
    attributes = ("fixed",)


INPUT = _Input()
CONSTANT = _Constant()
REGISTRY["input"] = INPUT
REGISTRY["constant"] = CONSTANT

_ALWAYS = {number: (number,) for number in (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)}
"""The floating numbers that are always compiled in, and their attributes."""


def constant(value: bool | int | float | complex, dtype: DType, fixed: bool = False) -> Expr:
    """A 0-d constant.

    Parameters
    ----------
    value : bool, int, float or complex
    dtype : DType
    fixed : bool
        Compile the value in (exponents) instead of passing it at run time.
        0, ±1, ±2 and ½ are always compiled in, unless complex or -0.0.
    """
    number: bool | int | float | complex
    attrs: tuple[Any, ...] | None = None
    if dtype.category == 2:
        number = float(value)  # type: ignore[arg-type]
        attrs = _ALWAYS.get(number)
        # What asks whether a number is 0 would take -0.0 for it, so that is passed at run time.
        if number == 0.0 and math.copysign(1.0, number) < 0.0:
            attrs = None
        keyed = fixed
    elif dtype.category == 3:
        number = complex(value)
        keyed = fixed
    elif dtype.category == 1:
        number = dtype.wrapped(int(value))  # type: ignore[arg-type]
        keyed = fixed or number in (0, 1, -1, 2)
    else:
        number = bool(value)
        keyed = True
    if attrs is None:
        attrs = _compiled_in(number) if keyed else (None,)
    table = STATE.table
    if table is None:
        return Expr(CONSTANT, (), attrs, (), dtype, False, number)
    key = _constant_key(number, dtype, attrs[0] is not None)
    node = table.get(key)
    if node is None:
        node = table[key] = Expr(CONSTANT, (), attrs, (), dtype, False, number)
    return node


def _compiled_in(number: bool | int | float | complex) -> tuple[Any, ...]:
    """The attributes of a constant whose number is compiled in."""
    if type(number) is complex or number != number or (number == 0 and repr(number) == "-0.0"):
        return Exact((number,))
    return (number,)


def filling(value: bool | int | float | complex, dtype: DType) -> Expr:
    """A number that is to be stored in a tensor, whose dtype must hold it."""
    if dtype.category == 1 and isinstance(value, int):
        dtype.fitted(value)
    return constant(value, dtype)


def _constant_key(number: bool | int | float | complex, dtype: DType, keyed: bool) -> Any:
    """What equal constants have in common: their bits."""
    bits: Any = np.complex128(number).tobytes() if dtype.category >= 2 else number
    return CONSTANT, bits, dtype, keyed


_COMMON = {
    dtype: {number: constant(number, dtype) for number in _ALWAYS} for dtype in (float32, float64)
}


def number_node(value: float, dtype: DType, fixed: bool) -> Expr:
    """A Python number as an operand of floating dtype, as `constant` gives it.

    Those that are compiled in anyway are made once: their place in a structure, before all others,
    is always the same.
    """
    if INTERNING:
        return constant(value, dtype, fixed)
    found = _COMMON[dtype].get(value)
    if found is None:
        number = float(value)
        if fixed and number != number:
            return constant(number, dtype, fixed)
        return Expr(CONSTANT, (), (number if fixed else None,), (), dtype, False, number)
    return found if value or math.copysign(1.0, value) > 0.0 else constant(value, dtype, fixed)


def input_node(shape: tuple[int, ...], dtype: DType, value: Any = None, grad: bool = False) -> Expr:
    """A leaf for a value from outside."""
    return Expr(INPUT, (), (), shape, dtype, grad, value)


def cast_to(x: Expr, dtype: DType) -> Expr:
    """`x` converted to `dtype`; the conversion op is declared in `symgrad.ops`."""
    if x.dtype is dtype:
        return x
    if x.op is CONSTANT:
        number = x.value
        if x.dtype.is_complex and not dtype.is_complex and dtype.category:
            number = number.real
        return constant(number, dtype, fixed=x.attrs[0] is not None)
    return REGISTRY["cast"](x, dtype=dtype)

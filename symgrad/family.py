"""The families of ops and the declaration protocol: one op, one class, one place.

Structures:

* the families (`Elementwise`, `Reduce`, `Cumulative`, `Movement`, `Library`, `Index`, `Contract`,
  `Region`, `Create`): the base class says how shape, dtype, scheduling and batching behave;
* `op`: checks a class, makes its functions static, puts the one instance in the registry;
* `Composite`: a function written with other ops, registered alike (`composite`).

A class states exactly one derivative rule:

``partials(out, *args)``
    elementwise; the partial derivatives as expressions, None for no derivative.
``select(out, *args)``
    elementwise choice; per argument None or a pair (mask, weight): the cotangent is kept where
    the mask holds, times the weight.
``adjoint(g, *args)``
    for maps linear in all arguments jointly (``linear = "joint"``) or in each (``"each"``).
``vjp(g, out, *args)``
    the pullback, linear in g.
``nodiff = "reason"``
    the op has no derivative.

Rules hold for complex numbers too: partials are the holomorphic derivatives, and calculus
conjugates them in reverse mode. An elementwise op takes complex operands if it states ``parts``:
the real and imaginary part of its result from those of its operands, in real ops
(`symgrad.schedule.complex_parts`).

Start reading at `op`, then `Elementwise.__call__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import INTERNING, REGISTRY, STATE, Op, cast_to, constant, number_node, record
from symgrad.sample import Case
from symgrad.template import expanded

RULES = ("partials", "select", "adjoint", "vjp", "nodiff")
COMPOSITES: dict[str, Composite] = {}


def broadcast_shapes(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape under broadcasting.

    Raises
    ------
    RuntimeError
        Naming the op, the two sizes and the dimension, in torch's words.
    """
    return _broadcast(name, *shapes)


@lru_cache(4096)
def _broadcast(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for i, size in enumerate(shape):
            if size == 1:
                continue
            have = result[offset + i]
            if have == 1:
                result[offset + i] = size
            elif have != size:
                raise RuntimeError(
                    f"{name}: The size of tensor a ({have}) must match the size of tensor b ({size}) "
                    f"at non-singleton dimension {offset + i} (got shapes "
                    f"{', '.join(str(tuple(s)) for s in shapes)}); reshape or slice one of them"
                )
    return tuple(result)


def promote(args: Sequence[Expr | bool | int | float | complex]) -> DType:
    """torch.result_type over tensors and Python numbers."""
    dimensioned = zero = number = None
    for a in args:
        if isinstance(a, Expr):
            if a.shape:
                dimensioned = (
                    a.dtype if dimensioned is None else dtypes.promote_types(dimensioned, a.dtype)
                )
            else:
                zero = a.dtype if zero is None else dtypes.promote_types(zero, a.dtype)
        else:
            kind = dtypes.of_number(a)
            number = kind if number is None else dtypes.promote_types(number, kind)
    return dtypes.result_type(dimensioned, zero, number)


def refused(name: str, dtype: DType) -> NotImplementedError:
    """The error for complex operands of an op that has no meaning or no rule for them."""
    title = "ComplexFloat" if dtype is dtypes.complex64 else "ComplexDouble"
    return NotImplementedError(
        f"\"{name}\" not implemented for '{title}' (got {dtype!r}); take .real, .imag or .abs() first"
    )


_BOOL = dtypes.bool_
_OPERAND_TYPES = (Expr, bool, int, float, complex, np.number, np.bool_)


class Elementwise(Op):
    """One result element per broadcast position.

    Class attributes
    ----------------
    accepts : str
        "number" as promoted; "float": integers become the default float; "any" and "same" leave
        operands alone; "bool": operands become bool; "integer": bool and ints only;
        "complex": whatever has parts.
    gives : str
        "same" as the promoted operands, or "bool".
    parts : callable, optional
        Real and imaginary part of the result, as a pair of nodes, from such pairs for complex
        operands and nodes for real ones; one node if the result is real.
    conditions : int
        How many leading operands are boolean conditions outside promotion (`where`).
    """

    family = "elementwise"
    accepts: ClassVar[str] = "number"
    gives: ClassVar[str] = "same"
    conditions: ClassVar[int] = 0
    arity: ClassVar[int] = 1
    fixed_operands: ClassVar[tuple[int, ...]] = ()
    parameters: ClassVar[tuple[str, ...]] = ()
    """torch's names of the operands."""
    parts: ClassVar[Callable[..., Any] | None] = None

    # A list of its own: the short ways see what is put into it.
    rewrites: list[Callable[..., Expr | None]]
    # The short ways of the common calls. Whatever is unusual gets None from them and takes the long
    # way of `__call__`.
    single: Callable[[Any], Expr | None]
    pair: Callable[[Any, Any], Expr | None]

    def __init__(self) -> None:
        self.rewrites = []
        short = self.accepts not in ("bool", "integer", "complex")
        short = short and not self.conditions and not self.attributes
        self.single = _short_way_of_one(self) if short and self.arity == 1 else _no_short_way
        self.pair = _short_way_of_two(self) if short and self.arity == 2 else _no_short_way

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        if not attrs:
            if len(args) == 2:
                made = self.pair(*args)
            else:
                made = self.single(args[0]) if len(args) == 1 else None
            if made is not None:
                return made
        if len(args) != self.arity:
            args = self._named(args, attrs)
        for key in attrs:
            if key not in self.attributes and key not in self.parameters:
                raise TypeError(f"{self.name}() got an unexpected keyword argument {key!r}")
        operands = self.operands(args)
        first = operands[0].shape
        shape = first
        for a in operands:
            if a.shape != first:
                shape = broadcast_shapes(self.name, [a.shape for a in operands])
                break
        dtype = dtypes.bool_ if self.gives == "bool" else operands[-1].dtype
        values = tuple([attrs[k] for k in self.attributes]) if self.attributes else ()
        return record(self, operands, values, shape, dtype)

    def _named(self, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
        """Operands given by torch's names for them, after those given by position."""
        names = self.parameters[len(args) :]
        if len(args) < self.arity == len(self.parameters) and all(n in attrs for n in names):
            return (*args, *[attrs[n] for n in names])
        raise TypeError(
            f"{self.name}: takes {self.arity} tensor arguments (got {len(args)}); see help"
        )

    def operands(self, args: Sequence[Any]) -> tuple[Expr, ...]:
        """Promote and cast the operands; Python numbers become constants.

        Not asked when all operands are floating and of one dtype.
        """
        numeric = args[self.conditions :]
        first = numeric[0]
        for a in args:
            if not isinstance(a, _OPERAND_TYPES):
                raise TypeError(
                    f"{self.name}: operands must be tensors or numbers (got {type(a).__name__})"
                )
        if isinstance(first, Expr) and all(
            isinstance(a, Expr) and a.dtype is first.dtype for a in numeric
        ):
            common = first.dtype
        else:
            common = promote(numeric)
        target = self.operand_dtype(common)
        if target.category == 3 and self.parts is None:
            raise refused(self.name, target)
        return tuple(
            self._operand(a, dtypes.bool_ if i < self.conditions else target, i)
            for i, a in enumerate(args)
        )

    def operand_dtype(self, common: DType) -> DType:
        """The dtype the operands are cast to, from their promoted dtype."""
        if self.accepts == "float" and common.category < 2:
            return dtypes.get_default_dtype()
        if self.accepts == "bool":
            return dtypes.bool_
        if self.accepts == "integer" and common.category >= 2:
            raise RuntimeError(
                f'"{self.name}" not implemented for {common.name}: needs bool or integer operands; '
                "convert with .to(symgrad.int64)"
            )
        return common

    def _operand(self, a: Any, dtype: DType, place: int) -> Expr:
        if isinstance(a, Expr):
            return a if a.dtype is dtype else cast_to(a, dtype)
        return constant(a, dtype, fixed=place in self.fixed_operands)


def _no_short_way(*_: Any) -> None:
    """The short way of an op that has none."""


def _short_way_of_one(op: Elementwise) -> Callable[[Any], Expr | None]:
    """What makes the node for one floating operand, or gives None for any other.

    What depends on the op alone is decided here, once.
    """
    to_bool, differentiable, rules = op.gives == "bool", op.differentiable, op.rewrites

    def single(x: Any) -> Expr | None:
        if type(x) is not Expr or x.dtype.category != 2:
            return None
        dtype = _BOOL if to_bool else x.dtype
        if INTERNING or rules:
            return record(op, (x,), (), x.shape, dtype)
        needs_grad = x.requires_grad and differentiable and STATE.grad
        return Expr(op, (x,), (), x.shape, dtype, needs_grad)

    return single


def _short_way_of_two(op: Elementwise) -> Callable[[Any, Any], Expr | None]:
    """What makes the node for two floating operands of one dtype, or for one and a Python number.

    It gives None for any others.
    """
    to_bool, differentiable, rules = op.gives == "bool", op.differentiable, op.rewrites
    first_fixed, second_fixed = 0 in op.fixed_operands, 1 in op.fixed_operands

    def pair(x: Any, y: Any) -> Expr | None:
        if type(x) is not Expr:
            if type(y) is not Expr or (type(x) is not float and type(x) is not int):
                return None
            shape, dtype, needs_grad = y.shape, y.dtype, y.requires_grad
            if dtype.category != 2:
                return None
            x = number_node(x, dtype, first_fixed)
        else:
            shape, dtype, needs_grad = x.shape, x.dtype, x.requires_grad
            if dtype.category != 2:
                return None
            if type(y) is Expr:
                if y.dtype is not dtype:
                    return None
                if y.shape != shape:
                    shape = _broadcast(op.name, shape, y.shape)
                needs_grad = needs_grad or y.requires_grad
            elif type(y) is float or type(y) is int:
                y = number_node(y, dtype, second_fixed)
            else:
                return None
        if to_bool:
            dtype = _BOOL
        if INTERNING or rules:
            return record(op, (x, y), (), shape, dtype)
        return Expr(op, (x, y), (), shape, dtype, needs_grad and differentiable and STATE.grad)

    return pair


class Reduce(Op):
    """Removes one axis at a time by combining its elements in the fixed blocked tree.

    A class declares ``combine`` ("add", "mul", "max", "min", "or", "and", "argmax", "argmin") and
    the result's dtype rule; the front function with torch's signature is `symgrad.ops.reduce`'s.
    The node itself always reduces one axis and keeps the others: attribute ``dim``.
    """

    family = "reduce"
    attributes = ("dim",)
    combine: ClassVar[str] = "add"
    identity: ClassVar[float] = 0.0
    empty: ClassVar[float] = 0.0
    """The result over no elements at all."""

    def result_dtype(self, dtype: DType) -> DType:
        """The dtype of the result, from the argument's."""
        return dtype

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        dim = attrs["dim"]
        first = args[0]
        if first.dtype.category == 3 and self.combine != "add":
            raise refused(self.name, first.dtype)
        shape = first.shape[:dim] + first.shape[dim + 1 :]
        return record(self, tuple(args), (dim,), shape, self.result_dtype(first.dtype))


class Cumulative(Op):
    """Runs along one axis, each result combining all elements up to it, in order."""

    family = "cumulative"
    attributes = ("dim",)
    combine: ClassVar[str] = "add"
    identity: ClassVar[float] = 0.0

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        x = args[0]
        if x.dtype.category == 3 and self.combine != "add":
            raise refused(self.name, x.dtype)
        return record(self, (x,), (attrs["dim"],), x.shape, x.dtype)


class Movement(Op):
    """Places elements elsewhere without changing them.

    ``index(position, shape, **attrs)`` maps positions of the result to positions of the
    argument; the schedule folds it into loads, so a movement costs nothing by itself.
    """

    family = "movement"
    linear = "joint"

    def __call__(self, x: Any, *args: Any, **attrs: Any) -> Expr:
        values = tuple([attrs[k] for k in self.attributes])
        return record(self, (x, *args), values, self.shape(x, *args, **attrs), x.dtype)


class Library(Op):
    """Computed by a routine on whole arrays (LAPACK, sorting), outside the loop kernels.

    ``ref(*arrays, **attrs)`` is the routine itself. A class with several results returns them
    through `project`; ``dtype(*args, **attrs)`` gives the result's dtype.
    """

    family = "library"
    eager_check: ClassVar[bool] = True
    """Runs at the call in eager mode, since it can fail on values."""
    native: ClassVar[str] = ""
    """The kind of native routine that compiled code calls in place of `ref`, if it has one."""

    def result_dtype(self, *args: Expr, **attrs: Any) -> DType:
        """The dtype of the result."""
        return args[0].dtype

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        values = tuple([attrs[k] for k in self.attributes])
        for a in args:
            if a.dtype.category == 3 and not (self.family == "index" and self.rule == "adjoint"):
                raise refused(self.name, a.dtype)
        shape = self.shape(*args, **attrs)
        if self.eager_check:
            STATE.checked = True
        return record(self, tuple(args), values, shape, self.result_dtype(*args, **attrs))


class Index(Library):
    """Reads or writes elements at positions that are themselves values.

    ``reads``: a gather of its first argument, fused into the loops that use it. ``writes``: the
    last arguments are index arrays into the leading axes, of sizes ``size``; elements are combined
    in index order by "add" or "or" with the first argument's, or replaced by the number of the
    write ("last", which has no values). Else a routine on whole arrays.
    """

    family = "index"
    eager_check = False
    initial: ClassVar[float] = 0
    """What is found where nothing was written."""


class Contract(Op):
    """Batched matrix product, the one contraction kernel: (B, M, K) x (B, K, N) -> (B, M, N)."""

    family = "contract"
    linear = "each"
    # Of one term.
    cost = 2.0

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        a, b = args
        return record(self, (a, b), (), (a.shape[0], a.shape[1], b.shape[2]), a.dtype)

    @staticmethod
    def lower(b: Any, x: Any, y: Any, total: Any) -> Any:
        """One more term of an element: the product of `x` and `y` added to `total`, rounded once."""
        return b.fma(x, y, total)


class Region(Op):
    """One result of a body that runs in a loop.

    Nodes that differ in their attribute ``result`` alone, which is the last, come from one run.

    Class attributes
    ----------------
    pulled : callable
        Cotangents of the arguments from pairs of results of one run and their cotangents.
    pushed : callable
        The tangent of a node from those of its arguments. Both are installed by
        `symgrad.calculus.loops`.
    """

    family = "region"
    pulled: ClassVar[Callable[..., Any]]
    pushed: ClassVar[Callable[..., Any]]


class Create(Op):
    """Makes its elements from their positions (iota) or from a random stream."""

    family = "create"


class Composite:
    """An op written with other ops: a function of expressions, with samples and a reference.

    The function only records nodes; what it has to check of values is done by `check`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        ref: Callable[..., Any],
        samples: Sequence[Case],
        errors: Sequence[Case],
        aliases: tuple[str, ...] = (),
        check: Callable[..., None] | None = None,
    ) -> None:
        self.name = function.__name__
        self.aliases = aliases
        self.function = function
        self.check = check
        self.ref = ref
        self.samples = samples
        self.errors = errors
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        if self.check is not None:
            self.check(*args, **attrs)
        return expanded(self.function, args, attrs)

    def __repr__(self) -> str:
        return f"<composite {self.name}>"


# -- declaration ------------------------------------------------------------------------


def op(cls: type) -> Any:
    """Check an op class, register its one instance and return it.

    Raises
    ------
    TypeError
        If the class lacks a docstring, samples, a reference, a SymPy form, or does not state
        exactly one derivative rule.
    """
    name = cls.__name__.rstrip("_")
    stated = [r for r in RULES if r in cls.__dict__]
    if len(stated) != 1:
        raise TypeError(
            f"{name}: an op states exactly one of {', '.join(RULES)} (got {stated or 'none'}); "
            "see CONTRIBUTING"
        )
    if not issubclass(cls, Op):
        raise TypeError(f"{name}: an op derives from a family such as Elementwise")
    needed = ["ref"] if issubclass(cls, Library) else ["ref", "sympy"]
    if issubclass(cls, Elementwise):
        needed.append("lower")
    for field in needed:
        if not hasattr(cls, field):
            raise TypeError(f"{name}: the op class must define {field}; see CONTRIBUTING")
    if not cls.__doc__ or len(cls.__doc__.strip()) < 10:
        raise TypeError(f"{name}: the op class needs a docstring")
    if not cls.samples and not issubclass(cls, Elementwise):
        raise TypeError(f"{name}: the op class needs samples")
    for key, member in list(cls.__dict__.items()):
        if callable(member) and not key.startswith("__") and not isinstance(member, staticmethod):
            if key not in ("operands", "operand_dtype", "result_dtype", "__call__"):
                setattr(cls, key, staticmethod(member))
    cls.name = name
    cls.rule = stated[0]
    cls.differentiable = stated[0] != "nodiff"
    if name in REGISTRY:
        raise TypeError(f"{name}: declared twice")
    instance = cls()
    REGISTRY[name] = instance
    return instance


def composite(
    *,
    ref: Callable[..., Any],
    samples: Sequence[Case],
    errors: Sequence[Case] = (),
    aliases: tuple[str, ...] = (),
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Composite]:
    """Register a function of expressions as an op written with others.

    Parameters
    ----------
    ref : callable
        The same function on NumPy arrays.
    samples, errors : sequence of Case
    aliases : tuple of str
        Further names of the same function.
    check : callable, optional
        Called with the arguments first, to refuse values that the function cannot take.
    """

    def declare(function: Callable[..., Any]) -> Composite:
        if not function.__doc__:
            raise TypeError(f"{function.__name__}: a composite needs a docstring")
        made = Composite(function, ref, samples, errors, aliases, check)
        if made.name in COMPOSITES or made.name in REGISTRY:
            raise TypeError(f"{made.name}: declared twice")
        COMPOSITES[made.name] = made
        return made

    return declare

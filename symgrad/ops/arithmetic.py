"""Arithmetic, conversion, comparison and logic: the elementwise ops that everything leans on.

Each class is the one place of its op. The functions in a class are static: ``partials`` and
``select`` are derivative rules in expressions, ``lower`` emits one element (or one vector of
elements), ``sympy`` gives the formula, ``ref`` is the truth in NumPy. Start reading at `mul`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Elementwise, broadcast_shapes, op, promote
from symgrad.op import REGISTRY, cast_to, constant, record
from symgrad.ops import complex_forms
from symgrad.sample import Case, T

Number = bool | int | float | complex
Operand = Expr | Number

_KIND_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


def not_implemented(name: str, dtype: DType, instead: str) -> NotImplementedError:
    """The error for operands of a dtype that the op does not take, in torch's words."""
    return NotImplementedError(
        f"\"{name}\" not implemented for '{_KIND_NAMES[dtype.name]}' (got {dtype!r}); {instead}"
    )


def is_int(*operands: Operand) -> bool:
    """Whether the operands promote to an integer type or bool."""
    return promote(operands).category < 2


class Binary(Elementwise):
    """Two operands under broadcasting and promotion.

    `parameters` are torch's names of the operands.
    """

    arity = 2
    parameters = ("input", "other")
    samples = (Case(T(2, 3), T(2, 3)), Case(T(4, 1), T(3)), Case(T(), T(5)), Case(T(0, 3), T(3)))
    errors = (Case(T(2), T(3), match="must match the size"),)


class Comparison(Binary):
    """Two operands, a boolean result."""

    gives = "bool"
    samples = (
        Case(T(2, 3), T(2, 3)),
        Case(T(4, 1, dtype="int"), T(3, dtype="int")),
        Case(T(), T(5)),
    )


def scaled(name: str, x: Operand, y: Operand, alpha: Operand) -> Operand:
    """alpha * y in the dtype that x and y promote to."""
    dtype = promote((x, y))
    if isinstance(alpha, float) and dtype.category < 2:
        raise RuntimeError(
            f"{name}: For integral input tensors, argument alpha must not be a floating point number "
            f"(got {alpha!r}); convert the tensors first"
        )
    if isinstance(y, Expr):
        return mul(cast_to(y, dtype), alpha)  # type: ignore[no-any-return]
    return y * alpha


@op
class add(Binary):
    """Sum x + alpha * y."""

    def __call__(  # type: ignore[override]
        self, input: Operand, other: Operand, *, alpha: Number = 1
    ) -> Expr:
        if alpha != 1:
            other = scaled("add", input, other, alpha)
        return Elementwise.__call__(self, input, other)  # type: ignore[arg-type]

    def ref(x: Any, y: Any, *, alpha: Number = 1) -> Any:
        return np.add(x, y if alpha == 1 else alpha * y)

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x + y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, 1.0

    def parts(x: Any, y: Any) -> Any:
        return x[0] + y[0], x[1] + y[1]

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.add(x, y)


@op
class sub(Binary):
    """Difference x - alpha * y."""

    aliases = ("subtract",)
    errors = (
        Case(T(2), T(3), match="must match the size"),
        Case(
            T(2, dtype="bool"), T(2, dtype="bool"), match="with two bool tensors is not supported"
        ),
    )

    def __call__(  # type: ignore[override]
        self, input: Operand, other: Operand, *, alpha: Number = 1
    ) -> Expr:
        if alpha != 1:
            other = scaled("sub", input, other, alpha)
        return Elementwise.__call__(self, input, other)  # type: ignore[arg-type]

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise RuntimeError(
                "sub: Subtraction, the `-` operator, with two bool tensors is not supported (got "
                "bool); use the `^` or `logical_xor()` operator instead"
            )
        return common

    def ref(x: Any, y: Any, *, alpha: Number = 1) -> Any:
        return np.subtract(x, y if alpha == 1 else alpha * y)

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x - y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, -1.0

    def parts(x: Any, y: Any) -> Any:
        return x[0] - y[0], x[1] - y[1]

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.sub(x, y)


@op
class mul(Binary):
    """Product x * y."""

    product = True
    aliases = ("multiply",)
    ref = np.multiply
    parts = complex_forms.mul

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x * y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return y, x

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.mul(x, y)


@op
class div(Binary):
    """Quotient x / y; integers become the default float first.

    With a rounding mode the quotient is rounded, integers stay integers, and the derivative is 0.
    """

    accepts = "float"
    aliases = ("divide", "true_divide")
    cost = 6.0
    parts = complex_forms.div
    errors = (
        Case(T(2), T(3), match="must match the size"),
        Case(T(2), T(2), rounding_mode="up", match="expected rounding_mode to be one of"),
    )

    def __call__(  # type: ignore[override]
        self, input: Operand, other: Operand, *, rounding_mode: str | None = None
    ) -> Expr:
        if rounding_mode is None:
            return Elementwise.__call__(self, input, other)  # type: ignore[arg-type]
        if rounding_mode not in ("floor", "trunc"):
            raise RuntimeError(
                "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
                f"{rounding_mode!r}"
            )
        if rounding_mode == "floor":
            return REGISTRY["floor_divide"](input, other)
        if is_int(input, other):
            return REGISTRY["integer_quotient"](input, other)
        return REGISTRY["trunc"](Elementwise.__call__(self, input, other))  # type: ignore[arg-type]

    def ref(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
        if rounding_mode is None:
            return np.divide(x, y)
        return np.floor_divide(x, y) if rounding_mode == "floor" else np.trunc(np.divide(x, y))

    samples = (
        Case(T(2, 3), T(2, 3, lo=0.5, hi=2)),
        Case(T(4, 1), T(3, lo=-2, hi=-0.5)),
        Case(T(), T(5, lo=0.5, hi=2)),
        Case(T(5), T(5, lo=0.5, hi=2), rounding_mode="floor", smooth=False),
        Case(T(5), T(5, lo=0.5, hi=2), rounding_mode="trunc", smooth=False),
    )

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x / y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        inverse = 1.0 / y
        return inverse, -(out * inverse)

    def ratio(out: Expr, x: Expr, y: Expr) -> Any:
        return x, y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.div(x, y)


@op
class neg(Elementwise):
    """Negation -x."""

    aliases = ("negative",)
    parameters = ("input",)
    samples = (Case(T(2, 3)), Case(T()), Case(T(0)), Case(T(3, dtype="int")))
    errors = (Case(T(2, dtype="bool"), match="on a bool tensor is not supported"),)
    ref = np.negative

    def operand_dtype(self, common: DType) -> DType:
        if common.category == 0:
            raise RuntimeError(
                "neg: Negation, the `-` operator, on a bool tensor is not supported (got bool); "
                "use the `~` or `logical_not()` operator instead"
            )
        return common

    def sympy(sp: Any, x: Any) -> Any:
        return -x

    def partials(out: Expr, x: Expr) -> Any:
        return (-1.0,)

    def parts(x: Any) -> Any:
        return -x[0], -x[1]

    def lower(b: Any, x: Any) -> Any:
        return b.neg(x)


@op
class cast(Elementwise):
    """Conversion to another dtype; the derivative is converted back."""

    public = False
    attributes = ("dtype",)
    linear = "joint"
    samples = (
        Case(T(3, 2), dtype=dtypes.float64),
        Case(T(3), dtype=dtypes.float32, smooth=False),
        Case(T(4, lo=-9, hi=9), dtype=dtypes.int64),
        Case(T(4, dtype="bool"), dtype=dtypes.float32),
    )

    def __call__(self, x: Any, *, dtype: DType) -> Expr:  # type: ignore[override]
        return record(self, (x,), (dtype,), x.shape, dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, *, dtype: DType) -> Any:
        return np.asarray(x).astype(dtype.numpy)

    def sympy(sp: Any, x: Any, *, dtype: DType) -> Any:
        return x

    def adjoint(g: Expr, x: Expr, *, dtype: DType) -> Any:
        return (g if x.dtype is g.dtype else cast(g, dtype=x.dtype),)

    def parts(x: Any, *, dtype: DType) -> Any:
        to = dtype.to_real()
        if not isinstance(x, tuple):
            return cast_to(x, to), constant(0.0, to)
        if dtype.category == 0:
            return logical_or(ne(x[0], 0.0), ne(x[1], 0.0))
        return (cast_to(x[0], to), cast_to(x[1], to)) if dtype.is_complex else cast_to(x[0], to)

    def lower(b: Any, x: Any, *, dtype: DType) -> Any:
        if dtype.name == "uint8" and not b.is_integer(x):
            # Through a wider integer: numbers above 127 fit, negative ones wrap as in C.
            x = b.convert(x, "i32")
        return b.convert(x, dtype.kind, signed=not b.unsigned)


@op
class keep(Elementwise):
    """`x` where the condition holds, else a strong zero: 0 even where x is NaN or infinite.

    Cotangents of ops that choose are of this form, and stay so through products and movements
    (`symgrad.calculus.reverse`), so a branch not taken never contributes 0·inf.
    """

    public = False
    arity = 2
    conditions = 1
    linear = "joint"
    samples = (Case(T(4, dtype="bool"), T(4)), Case(T(4, dtype="bool"), T(2, 4)))

    def __call__(self, condition: Expr, x: Expr) -> Expr:  # type: ignore[override]
        # Rules take a selection apart and move its two parts alike, so both have its shape.
        if condition.shape != x.shape:
            shape = broadcast_shapes("keep", (condition.shape, x.shape))
            expand = REGISTRY["expand"]
            condition = condition if condition.shape == shape else expand(condition, shape)
            x = x if x.shape == shape else expand(x, shape)
        if condition.dtype.category == 0:
            return record(self, (condition, x), (), x.shape, x.dtype)  # type: ignore[arg-type]
        return Elementwise.__call__(self, condition, x)  # type: ignore[arg-type]

    def ref(condition: np.ndarray, x: np.ndarray) -> Any:
        return np.where(condition, x, np.zeros_like(x))

    def sympy(sp: Any, condition: Any, x: Any) -> Any:
        return sp.Piecewise((x, condition), (0, True))

    def adjoint(g: Expr, condition: Expr, x: Expr) -> Any:
        return None, keep(condition, g)

    def parts(condition: Expr, x: Any) -> Any:
        return keep(condition, x[0]), keep(condition, x[1])

    def lower(b: Any, condition: Any, x: Any) -> Any:
        return b.select(condition, x, b.zero(x))


@op
class where(Elementwise):
    """`x` where the condition holds, else `y`."""

    arity = 3
    conditions = 1
    samples = (
        Case(T(4, dtype="bool"), T(4), T(4)),
        Case(T(4, dtype="bool"), T(2, 1), T()),
        Case(T(0, dtype="bool"), T(0), T(0)),
    )
    errors = (Case(T(2), T(2), T(2), match="where expected condition to be a boolean tensor"),)
    parameters = ("condition", "input", "other")
    ref = np.where

    def operands(self, args: Any) -> tuple[Expr, ...]:
        condition = args[0]
        if isinstance(condition, Expr) and condition.dtype.name not in ("bool", "uint8"):
            raise RuntimeError(
                "where expected condition to be a boolean tensor, but got a tensor with dtype "
                f"{condition.dtype!r}; compare it with something"
            )
        return Elementwise.operands(self, args)  # type: ignore[arg-type]

    def sympy(sp: Any, condition: Any, x: Any, y: Any) -> Any:
        return sp.Piecewise((x, condition), (y, True))

    def select(out: Expr, condition: Expr, x: Expr, y: Expr) -> Any:
        return None, (condition, 1.0), (~condition, 1.0)

    def parts(condition: Expr, x: Any, y: Any) -> Any:
        return where(condition, x[0], y[0]), where(condition, x[1], y[1])

    def lower(b: Any, condition: Any, x: Any, y: Any) -> Any:
        return b.select(condition, x, y)


@op
class eq(Comparison):
    """Whether x == y."""

    nodiff = "piecewise constant"
    ref = np.equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Eq(x, y)

    def parts(x: Any, y: Any) -> Any:
        return logical_and(eq(x[0], y[0]), eq(x[1], y[1]))

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("eq", x, y)


@op
class ne(Comparison):
    """Whether x != y; true for NaN against anything."""

    aliases = ("not_equal",)
    nodiff = "piecewise constant"
    ref = np.not_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Ne(x, y)

    def parts(x: Any, y: Any) -> Any:
        return logical_or(ne(x[0], y[0]), ne(x[1], y[1]))

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("ne", x, y)


@op
class lt(Comparison):
    """Whether x < y."""

    aliases = ("less",)
    nodiff = "piecewise constant"
    ref = np.less

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x < y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("lt", x, y)


@op
class le(Comparison):
    """Whether x <= y."""

    aliases = ("less_equal",)
    nodiff = "piecewise constant"
    ref = np.less_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x <= y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("le", x, y)


@op
class gt(Comparison):
    """Whether x > y."""

    aliases = ("greater",)
    nodiff = "piecewise constant"
    ref = np.greater

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x > y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("gt", x, y)


@op
class ge(Comparison):
    """Whether x >= y."""

    aliases = ("greater_equal",)
    nodiff = "piecewise constant"
    ref = np.greater_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x >= y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("ge", x, y)


class Logical(Binary):
    """Truth of two operands of any dtype."""

    accepts = "bool"
    gives = "bool"
    samples = (
        Case(T(2, 3, dtype="bool"), T(2, 3, dtype="bool")),
        Case(T(4, 1, lo=-1, hi=1, dtype="int"), T(3, dtype="bool")),
        Case(T(), T(5)),
    )


@op
class logical_and(Logical):
    """Whether both operands are true."""

    nodiff = "piecewise constant"
    ref = np.logical_and

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.And(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_and(x, y)


@op
class logical_or(Logical):
    """Whether at least one operand is true."""

    nodiff = "piecewise constant"
    ref = np.logical_or

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Or(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_or(x, y)


@op
class logical_xor(Logical):
    """Whether exactly one operand is true."""

    nodiff = "piecewise constant"
    ref = np.logical_xor

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Xor(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_xor(x, y)


@op
class logical_not(Elementwise):
    """Whether the operand is false."""

    parameters = ("input",)
    samples = (Case(T(2, 3, dtype="bool")), Case(T(4, lo=-1, hi=1, dtype="int")), Case(T(0)))
    accepts = "bool"
    gives = "bool"
    nodiff = "piecewise constant"
    ref = np.logical_not

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Not(x)

    def lower(b: Any, x: Any) -> Any:
        return b.bit_not(x)

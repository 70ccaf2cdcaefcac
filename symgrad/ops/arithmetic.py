"""Arithmetic, conversion and comparison: the elementwise ops that everything else leans on.

Each class is the one place of its op. The functions in a class are static: ``partials`` and
``select`` are derivative rules in expressions, ``lower`` emits one element (or one vector of
elements), ``sympy`` gives the formula, ``ref`` is the truth in NumPy. Start reading at `mul`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.op import Case, Elementwise, T, op, record


class Binary(Elementwise):
    """Two operands under broadcasting and promotion."""

    arity = 2
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


@op
class add(Binary):
    """Sum x + y."""

    ref = np.add

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x + y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, 1.0

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.add(x, y)


@op
class sub(Binary):
    """Difference x - y."""

    ref = np.subtract

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x - y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return 1.0, -1.0

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.sub(x, y)


@op
class mul(Binary):
    """Product x * y."""

    ref = np.multiply

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x * y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        return y, x

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.mul(x, y)


@op
class div(Binary):
    """Quotient x / y; integers become the default float first."""

    accepts = "float"
    ref = np.divide
    cost = 6.0
    samples = (
        Case(T(2, 3), T(2, 3, lo=0.5, hi=2)),
        Case(T(4, 1), T(3, lo=-2, hi=-0.5)),
        Case(T(), T(5, lo=0.5, hi=2)),
    )

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x / y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        inverse = 1.0 / y
        return inverse, -(out * inverse)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.div(x, y)


@op
class neg(Elementwise):
    """Negation -x."""

    ref = np.negative

    def sympy(sp: Any, x: Any) -> Any:
        return -x

    def partials(out: Expr, x: Expr) -> Any:
        return (-1.0,)

    def lower(b: Any, x: Any) -> Any:
        return b.neg(x)


@op
class cast(Elementwise):
    """Conversion to another dtype; the derivative is converted back."""

    attributes = ("dtype",)
    linear = "joint"
    samples = (Case(T(3, 2), dtype="float64"), Case(T(3), dtype="float32"))

    def __call__(self, x: Any, *, dtype: DType) -> Expr:  # type: ignore[override]
        return record(self, (x,), (dtype,), x.shape, dtype)  # type: ignore[arg-type]

    def ref(x: np.ndarray, *, dtype: DType) -> Any:
        return np.asarray(x).astype(dtype.numpy)

    def sympy(sp: Any, x: Any, *, dtype: DType) -> Any:
        return x

    def adjoint(g: Expr, x: Expr, *, dtype: DType) -> Any:
        return (g if x.dtype is g.dtype else cast(g, dtype=x.dtype),)

    def lower(b: Any, x: Any, *, dtype: DType) -> Any:
        return b.convert(x, dtype.kind, signed=dtype.name != "uint8")


@op
class keep(Elementwise):
    """`x` where the condition holds, else a strong zero: 0 even where x is NaN or infinite.

    Cotangents of ops that choose are of this form, and stay so through products and movements
    (`symgrad.calculus.reverse`), so a branch not taken never contributes 0·inf.
    """

    arity = 2
    conditions = 1
    linear = "joint"
    samples = (Case(T(4, dtype="bool"), T(4)), Case(T(4, dtype="bool"), T(2, 4)))

    def ref(condition: np.ndarray, x: np.ndarray) -> Any:
        return np.where(condition, x, np.zeros_like(x))

    def sympy(sp: Any, condition: Any, x: Any) -> Any:
        return sp.Piecewise((x, condition), (0, True))

    def adjoint(g: Expr, condition: Expr, x: Expr) -> Any:
        return None, keep(condition, g)

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
    ref = np.where

    def sympy(sp: Any, condition: Any, x: Any, y: Any) -> Any:
        return sp.Piecewise((x, condition), (y, True))

    def select(out: Expr, condition: Expr, x: Expr, y: Expr) -> Any:
        return None, (condition, 1.0), (~condition, 1.0)

    def lower(b: Any, condition: Any, x: Any, y: Any) -> Any:
        return b.select(condition, x, y)


@op
class eq(Comparison):
    """Whether x == y."""

    nodiff = "piecewise constant"
    ref = np.equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Eq(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("eq", x, y)


@op
class ne(Comparison):
    """Whether x != y; true for NaN against anything."""

    nodiff = "piecewise constant"
    ref = np.not_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Ne(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("ne", x, y)


@op
class lt(Comparison):
    """Whether x < y."""

    nodiff = "piecewise constant"
    ref = np.less

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x < y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("lt", x, y)


@op
class le(Comparison):
    """Whether x <= y."""

    nodiff = "piecewise constant"
    ref = np.less_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x <= y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("le", x, y)


@op
class gt(Comparison):
    """Whether x > y."""

    nodiff = "piecewise constant"
    ref = np.greater

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x > y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("gt", x, y)


@op
class ge(Comparison):
    """Whether x >= y."""

    nodiff = "piecewise constant"
    ref = np.greater_equal

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x >= y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.compare("ge", x, y)


@op
class logical_and(Binary):
    """Whether both operands are true."""

    accepts = "bool"
    gives = "bool"
    nodiff = "piecewise constant"
    ref = np.logical_and

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.And(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_and(x, y)


@op
class logical_or(Binary):
    """Whether at least one operand is true."""

    accepts = "bool"
    gives = "bool"
    nodiff = "piecewise constant"
    ref = np.logical_or

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Or(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_or(x, y)


@op
class logical_xor(Binary):
    """Whether exactly one operand is true."""

    accepts = "bool"
    gives = "bool"
    nodiff = "piecewise constant"
    ref = np.logical_xor

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Xor(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_xor(x, y)


@op
class logical_not(Elementwise):
    """Whether the operand is false."""

    accepts = "bool"
    gives = "bool"
    nodiff = "piecewise constant"
    ref = np.logical_not

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Not(x)

    def lower(b: Any, x: Any) -> Any:
        return b.bit_not(x)

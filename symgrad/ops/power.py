"""Powers of two operands, and squares.

The vector code of powers is `symgrad.codegen.vmath`; here stand what they are and how they change.
Start reading at `pow`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Elementwise, composite, op
from symgrad.ops import complex_forms
from symgrad.ops.arithmetic import Binary, eq, logical_and, where
from symgrad.ops.transcendental import log
from symgrad.sample import Case, T


@op
class pow(Binary):
    """Power x**y.

    A Python number as exponent is compiled in, and its derivative drops to the exact lower
    power; the derivative in the exponent is 0 at x = 0 for y >= 0, as in torch.
    """

    cost = 25.0
    fixed_operands = (1,)
    parameters = ("input", "exponent")
    errors = (
        Case(T(2, dtype="int"), -1, match="Integers to negative integer powers are not allowed"),
    )
    parts = complex_forms.pow
    ref = np.power
    samples = (
        Case(T(2, 3, lo=0.2, hi=2), T(2, 3)),
        Case(T(4, 1, lo=0.2, hi=2), T(3)),
        Case(T(5), 2),
        Case(T(5), 3.0),
        Case(T(5, lo=0.5, hi=2), -1.5),
        Case(T(6, lo=-3, hi=3, dtype="int"), T(6, lo=0, hi=4, dtype="int")),
        Case(2.0, T(4)),
    )

    def operands(self, args: Any) -> tuple[Expr, ...]:
        base, exponent = Elementwise.operands(self, args)  # type: ignore[arg-type]
        if base.dtype.category < 2 and not isinstance(args[1], Expr) and args[1] < 0:
            raise RuntimeError(
                "pow: Integers to negative integer powers are not allowed (got exponent "
                f"{args[1]}); use a floating base"
            )
        return base, exponent

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x**y

    def partials(out: Expr, x: Expr, y: Expr) -> Any:
        fixed = y.attrs[0] if y.op.family == "leaf" and y.attrs else None
        if out.dtype.category == 3:
            return _complex_partials(out, x, y, fixed)
        if fixed == 0:
            return 0.0, None
        if fixed is not None:
            return _lowered(x, fixed), None
        in_base = where(eq(y, 0.0), 0.0, y * pow(x, y - 1.0))
        in_exponent = where(logical_and(eq(x, 0.0), y >= 0.0), 0.0, out * log(x))
        return in_base, in_exponent

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.power(x, y)


def _complex_partials(out: Expr, x: Expr, y: Expr, fixed: Any) -> Any:
    """The holomorphic derivatives of a complex power; that in the exponent is 0 at x = 0."""
    if fixed is not None and fixed.imag == 0.0:
        return (0.0 if fixed == 0 else _lowered(x, fixed.real)), None
    in_base = where(eq(y, 0.0), 0.0, y * pow(x, y - 1.0))
    return in_base, where(eq(x, 0.0), 0.0, out * log(x))


def _lowered(x: Expr, exponent: float) -> Expr:
    """exponent * x**(exponent - 1).

    Powers 1 and 0 stay powers, which cost nothing and print as x and 1: a derivative of any order
    of a power depends on x by its form, so that the one after it is 0 and not an error.
    """
    if exponent == 1:
        return pow(x, 0.0)  # type: ignore[no-any-return]
    return float(exponent) * pow(x, float(exponent) - 1.0)  # type: ignore[no-any-return]


@composite(ref=np.square, samples=(Case(T(2, 3)), Case(T(3, dtype="int"))))
def square(input: Expr) -> Expr:
    """The square x * x, of integers an integer."""
    return pow(input, 2)  # type: ignore[no-any-return]

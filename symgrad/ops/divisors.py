"""Greatest common divisors and least common multiples of integers. Start reading at `Divisors`."""

from __future__ import annotations

import numpy as np

from symgrad.expr import Expr
from symgrad.family import Library, broadcast_shapes, op, promote
from symgrad.op import cast_to
from symgrad.ops.movement import expand
from symgrad.sample import Case, T


class Divisors(Library):
    """Two integer operands under broadcasting, by NumPy's routine."""

    eager_check = False
    samples = (
        Case(T(2, 3, lo=-20, hi=20, dtype="int"), T(3, lo=-20, hi=20, dtype="int")),
        Case(T(lo=-20, hi=20, dtype="int"), T(4, lo=-20, hi=20, dtype="int")),
    )
    errors = (Case(T(2), T(2), match="not implemented for"),)

    def __call__(self, input: Expr, other: Expr) -> Expr:  # type: ignore[override]
        dtype = promote((input, other))
        if dtype.category != 1:
            raise RuntimeError(
                f'"{self.name}" not implemented for {dtype.name}: needs integers; convert with '
                ".to(symgrad.int64)"
            )
        shape = broadcast_shapes(self.name, [input.shape, other.shape])
        x, y = (expand(cast_to(a, dtype), shape) for a in (input, other))
        return super().__call__(x, y)


@op
class gcd(Divisors):
    """Greatest common divisor, not negative; gcd(0, 0) is 0."""

    nodiff = "integer valued"
    ref = np.gcd

    def shape(x: Expr, y: Expr) -> tuple[int, ...]:
        return x.shape


@op
class lcm(Divisors):
    """Least common multiple, not negative; 0 if an operand is 0."""

    nodiff = "integer valued"
    ref = np.lcm

    def shape(x: Expr, y: Expr) -> tuple[int, ...]:
        return x.shape

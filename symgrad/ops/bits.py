"""Bitwise ops on integers and bool. Start reading at `Bitwise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.family import Elementwise, op
from symgrad.ops.arithmetic import Binary
from symgrad.sample import Case, T


class Bitwise(Binary):
    """Two operands of integer type or bool, bit by bit."""

    accepts = "integer"
    samples = (
        Case(T(2, 3, lo=-9, hi=9, dtype="int"), T(2, 3, lo=-9, hi=9, dtype="int")),
        Case(T(4, 1, dtype="bool"), T(3, dtype="bool")),
        Case(T(4, lo=-9, hi=9, dtype="int"), 5),
    )
    errors = (Case(T(2), T(2), match="not implemented for"),)


@op
class bitwise_and(Bitwise):
    """The bits set in both operands."""

    nodiff = "integer valued"
    ref = np.bitwise_and

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Function("bitwise_and")(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_and(x, y)


@op
class bitwise_or(Bitwise):
    """The bits set in at least one operand."""

    nodiff = "integer valued"
    ref = np.bitwise_or

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Function("bitwise_or")(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_or(x, y)


@op
class bitwise_xor(Bitwise):
    """The bits set in exactly one operand."""

    nodiff = "integer valued"
    ref = np.bitwise_xor

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.Function("bitwise_xor")(x, y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.bit_xor(x, y)


@op
class bitwise_not(Elementwise):
    """Every bit flipped; the negation of a bool."""

    parameters = ("input",)
    accepts = "integer"
    nodiff = "integer valued"
    samples = (Case(T(5, lo=-9, hi=9, dtype="int")), Case(T(4, dtype="bool")))
    errors = (Case(T(2), match="not implemented for"),)
    ref = np.bitwise_not

    def sympy(sp: Any, x: Any) -> Any:
        return sp.Function("bitwise_not")(x)

    def lower(b: Any, x: Any) -> Any:
        return b.bit_not(x)


class Shift(Bitwise):
    """An integer shifted by a number of bits."""

    samples = (
        Case(T(6, lo=-9, hi=9, dtype="int"), T(6, lo=0, hi=5, dtype="int")),
        Case(T(6, lo=-9, hi=9, dtype="int"), 2),
    )


@op
class bitwise_left_shift(Shift):
    """x * 2**y for integers; 0 for shifts that are negative or beyond the width."""

    nodiff = "integer valued"
    ref = np.left_shift

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return x * 2**y

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.shift_left(x, y)


@op
class bitwise_right_shift(Shift):
    """floor(x / 2**y) for integers; the sign alone for shifts beyond the width."""

    nodiff = "integer valued"
    ref = np.right_shift

    def sympy(sp: Any, x: Any, y: Any) -> Any:
        return sp.floor(x / 2**y)

    def lower(b: Any, x: Any, y: Any) -> Any:
        return b.shift_right(x, y)

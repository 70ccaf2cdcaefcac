"""Numbers that formulas know by a better name: pi, 2/sqrt(pi), log(2), 1/3, ...

One table, `KNOWN`: how a float that is the nearest to such a number is written, as numerator and
denominator. Start reading at `fraction`.
"""

from __future__ import annotations

import math
from fractions import Fraction

from symgrad.formula.tree import Number

SQRT_PI = math.sqrt(math.pi)
KNOWN: dict[float, tuple[str, str]] = {
    math.pi: ("pi", ""),
    2 * math.pi: ("2*pi", ""),
    math.pi / 2: ("pi", "2"),
    math.pi / 4: ("pi", "4"),
    math.pi / 180: ("pi", "180"),
    180 / math.pi: ("180", "pi"),
    1 / math.pi: ("1", "pi"),
    2 / SQRT_PI: ("2", "sqrt(pi)"),
    SQRT_PI / 2: ("sqrt(pi)", "2"),
    1 / math.sqrt(2 * math.pi): ("1", "sqrt(2*pi)"),
    math.sqrt(2 / math.pi): ("sqrt(2)", "sqrt(pi)"),
    math.sqrt(2): ("sqrt(2)", ""),
    math.sqrt(0.5): ("1", "sqrt(2)"),
    1 / math.sqrt(2): ("1", "sqrt(2)"),
    math.log(2): ("log(2)", ""),
    1 / math.log(2): ("1", "log(2)"),
    math.log(10): ("log(10)", ""),
    1 / math.log(10): ("1", "log(10)"),
    math.log(2 * math.pi): ("log(2*pi)", ""),
    math.log(2 * math.pi) / 2: ("log(2*pi)", "2"),
}
"""Written in Python's notation, with ``sqrt`` and ``log``."""


def digits(value: Number) -> str:
    """A number in its shortest decimal form."""
    if isinstance(value, bool | int):
        return str(value)
    short = repr(value)
    rounded = f"{value:.12g}"
    if len(rounded) <= 8 and float(rounded) != value:
        if abs(float(rounded) - value) <= 1e-15 * abs(value):
            return rounded
    return short


def fraction(value: Number) -> tuple[str, str]:
    """Numerator and denominator of a positive number, as text; the latter empty for 1."""
    if isinstance(value, bool | int) or not math.isfinite(value):
        return digits(value), ""
    known = KNOWN.get(value)
    if known is not None:
        return known
    short = digits(value)
    if len(short) <= 8:
        return short, ""
    near = Fraction(value).limit_denominator(1000)
    if 0 < near.numerator < 10_000 and abs(float(near) - value) <= 1e-15 * abs(value):
        return str(near.numerator), "" if near.denominator == 1 else str(near.denominator)
    return short, ""

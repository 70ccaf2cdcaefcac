"""Values with operators, so that a kernel body reads like the formula it computes.

Two structures:

* `Value`: an `ir.Val` together with the `ir.Function` that it lives in. ``x * y + z`` appends
  one multiplication and one addition to that function, in that order, each rounded once.
  Numbers become constants of the other operand's kind and width.
* a mask: a `Value` of kind ``i1``, made by comparisons, used by `select`, ``&``, ``|``, ``^``.

Nothing here reorders or contracts: what is written is what is emitted. Start at `Value`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgrad.codegen import ir

SIGNED_PREDICATE = {"olt": "slt", "ole": "sle", "ogt": "sgt", "oge": "sge", "oeq": "eq"}


class Value:
    """A value under construction: an SSA value and the function it belongs to."""

    __slots__ = ("f", "val")

    def __init__(self, f: ir.Function, val: ir.Val) -> None:
        self.f = f
        self.val = val

    @property
    def kind(self) -> str:
        return self.val.kind

    @property
    def width(self) -> int:
        return self.val.width

    @property
    def mantissa_bits(self) -> int:
        """Stored bits of the fraction: 52 or 23."""
        return ir.MANTISSA_BITS[self.kind]

    @property
    def bias(self) -> int:
        """Exponent bias: 1023 or 127."""
        return ir.EXPONENT_BIAS[self.kind]

    def const(self, number: float) -> Value:
        """A constant of this value's kind and width."""
        return Value(self.f, self.f.const(number, self.val))

    def _operand(self, other: Value | float) -> ir.Val:
        return other.val if isinstance(other, Value) else self.f.const(other, self.val)

    def _arithmetic(self, name: str, other: Value | float) -> Value:
        prefix = "f" if self.kind in ir.FLOAT_BITS else ""
        right = self._operand(other)
        text = f"{prefix}{name} {self.val.type} {self.val.ref}, {right.ref}"
        return Value(self.f, self.f.emit(text, self.kind, self.width))

    def _bitwise(self, name: str, other: Value | int) -> Value:
        right = self._operand(other)
        text = f"{name} {self.val.type} {self.val.ref}, {right.ref}"
        return Value(self.f, self.f.emit(text, self.kind, self.width))

    def _compare(self, predicate: str, other: Value | float) -> Value:
        right = self._operand(other)
        if self.kind in ir.FLOAT_BITS:
            return Value(self.f, self.f.fcmp(predicate, self.val, right))
        return Value(self.f, self.f.icmp(SIGNED_PREDICATE[predicate], self.val, right))

    def __add__(self, other: Value | float) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._arithmetic("div", other)

    def __radd__(self, other: float) -> Value:
        return self.const(other) + self

    def __rsub__(self, other: float) -> Value:
        return self.const(other) - self

    def __rmul__(self, other: float) -> Value:
        return self.const(other) * self

    def __rtruediv__(self, other: float) -> Value:
        return self.const(other) / self

    def __neg__(self) -> Value:
        if self.kind in ir.FLOAT_BITS:
            return Value(self.f, self.f.fneg(self.val))
        return self.const(0) - self

    def __abs__(self) -> Value:
        return Value(self.f, self.f.fabs(self.val))

    def __and__(self, other: Value | int) -> Value:
        return self._bitwise("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._bitwise("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._bitwise("xor", other)

    def __invert__(self) -> Value:
        return self._bitwise("xor", -1)

    def __lshift__(self, other: Value | int) -> Value:
        return self._bitwise("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        """Logical shift: zeros come in from the left."""
        return self._bitwise("lshr", other)

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("olt", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("ole", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare("ogt", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare("oge", other)

    def equals(self, other: Value | float) -> Value:
        """Ordered equality, as a mask."""
        return self._compare("oeq", other)

    def is_negative(self) -> Value:
        """The sign bit, as a mask; true for -0.0."""
        return self.bits() < 0

    def bits(self) -> Value:
        """The float's bits, as an integer of the same size."""
        return Value(self.f, self.f.bits(self.val))

    def floats(self) -> Value:
        """The float whose bits this integer is."""
        return Value(self.f, self.f.floats(self.val))

    def cast(self, name: str, kind: str) -> Value:
        """LLVM's conversion instructions by name."""
        return Value(self.f, self.f.cast(name, self.val, kind))

    def copysign(self, sign: Value) -> Value:
        return Value(self.f, self.f.copysign(self.val, sign.val))

    def sqrt(self) -> Value:
        return Value(self.f, self.f.sqrt(self.val))

    def floor(self) -> Value:
        return Value(self.f, self.f.floor(self.val))

    def rint(self) -> Value:
        return Value(self.f, self.f.rint(self.val))


def fma(x: Value, y: Value | float, z: Value | float) -> Value:
    """x*y + z, rounded once."""
    y_val = y.val if isinstance(y, Value) else x.f.const(y, x.val)
    z_val = z.val if isinstance(z, Value) else x.f.const(z, x.val)
    return Value(x.f, x.f.fma(x.val, y_val, z_val))


def select(mask: Value, x: Value | float, y: Value | float) -> Value:
    """`x` where the mask is set, `y` elsewhere; at least one of them a `Value`."""
    if isinstance(x, Value):
        like = x
    elif isinstance(y, Value):
        like = y
    else:
        raise TypeError(f"select: needs a Value to take the kind from (got {x!r}, {y!r})")
    left = x if isinstance(x, Value) else like.const(x)
    right = y if isinstance(y, Value) else like.const(y)
    return Value(mask.f, mask.f.select(mask.val, left.val, right.val))


def at_most(x: Value, bound: float) -> Value:
    """min(x, bound), NaN kept: one instruction on x86."""
    return select(x > bound, bound, x)


def at_least(x: Value, bound: float) -> Value:
    """max(x, bound), NaN kept: one instruction on x86."""
    return select(x < bound, bound, x)


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """c[0] + c[1]*x + c[2]*x^2 + ..., one fma per step."""
    total = x.const(coefficients[-1])
    for c in coefficients[-2::-1]:
        total = fma(total, x, c)
    return total


def hexes(text: str) -> tuple[float, ...]:
    """Numbers written as C hexadecimal floats."""
    return tuple(float.fromhex(word) for word in text.split())


# -- unevaluated sums of two (Dekker 1971; Knuth; Ogita, Rump and Oishi 2005) --------------


def fast_two_sum(x: Value, y: Value) -> tuple[Value, Value]:
    """(s, e) with s + e = x + y exactly, for |x| >= |y| or x = 0."""
    s = x + y
    return s, y - (s - x)


def two_sum(x: Value, y: Value) -> tuple[Value, Value]:
    """(s, e) with s + e = x + y exactly, for any x and y."""
    s = x + y
    y_part = s - x
    x_part = s - y_part
    return s, (x - x_part) + (y - y_part)


def two_product(x: Value, y: Value | float) -> tuple[Value, Value]:
    """(p, e) with p + e = x * y exactly, barring underflow."""
    p = x * y
    return p, fma(x, y, -p)


def divide_pairs(top: Value, top_low: Value, bottom: Value, bottom_low: Value) -> Value:
    """(top + top_low) / (bottom + bottom_low), off by little more than the last rounding."""
    reciprocal = 1.0 / bottom
    q = top * reciprocal
    return fma(reciprocal, (fma(-q, bottom, top) + top_low) - q * bottom_low, q)

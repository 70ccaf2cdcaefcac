"""What an op's ``lower`` is given: typed arithmetic on one element or one vector of elements.

One structure, `Lowering`: methods choose the instruction by the kind of their operands (float,
integer, bool), so an op says ``b.add(x, y)`` once for all dtypes. Start reading at `Lowering`.
"""

from __future__ import annotations

from typing import Any

from symgrad.codegen import vmath
from symgrad.codegen.ir import FLOAT_BITS, INT_BITS, Function, Val, constant
from symgrad.codegen.remainder import float_remainder
from symgrad.codegen.vmath.notation import Value, select

_FLOAT_PREDICATE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_SIGNED_PREDICATE = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED_PREDICATE = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}


def is_float(x: Val) -> bool:
    return x.kind in FLOAT_BITS


# A gradient of one asks for the other: both come from one argument reduction, and the code
# generator drops the half that nobody uses.
_PAIRS = {"sin": 0, "cos": 1}


class Lowering:
    """Arithmetic for `lower` rules.

    Parameters
    ----------
    f : Function
        Where instructions go.
    inline : bool
        Whether vector maths is emitted in place (fastest code) or called (fastest compile);
        the bits are the same.

    Attributes
    ----------
    unsigned : bool
        Whether integers of the op being lowered are unsigned, which their kind does not say.
    """

    def __init__(self, f: Function, inline: bool) -> None:
        self.f = f
        self.inline = inline
        self.known: dict[str, Any] = {}
        self._pairs: dict[str, tuple[Val, Val]] = {}
        self.unsigned = False

    # -- constants --------------------------------------------------------------------

    def const(self, value: float | int | bool, like: Val) -> Val:
        """A constant of the kind and width of `like`."""
        made = constant(like.kind, value, like.width)
        self.known[made.ref] = value
        return made

    def zero(self, like: Val) -> Val:
        return self.const(0, like)

    # -- arithmetic -------------------------------------------------------------------

    def add(self, x: Val, y: Val) -> Val:
        if is_float(x):
            return self.f.fadd(x, y)
        return self.f.or_(x, y) if x.kind == "i1" else self.f.add(x, y)

    def sub(self, x: Val, y: Val) -> Val:
        return self.f.fsub(x, y) if is_float(x) else self.f.sub(x, y)

    def mul(self, x: Val, y: Val) -> Val:
        if is_float(x):
            return self.f.fmul(x, y)
        return self.f.and_(x, y) if x.kind == "i1" else self.f.mul(x, y)

    def div(self, x: Val, y: Val) -> Val:
        return self.f.fdiv(x, y)

    def neg(self, x: Val) -> Val:
        return self.f.fneg(x) if is_float(x) else self.f.sub(self.zero(x), x)

    def abs(self, x: Val) -> Val:
        if is_float(x):
            return self.f.fabs(x)
        return self.select(self.compare("lt", x, self.zero(x)), self.neg(x), x)

    def fma(self, x: Val, y: Val, z: Val) -> Val:
        return self.f.fma(x, y, z)

    def sqrt(self, x: Val) -> Val:
        return self.f.sqrt(x)

    def floor(self, x: Val) -> Val:
        return self.f.floor(x) if is_float(x) else x

    def ceil(self, x: Val) -> Val:
        return self.f.ceil(x) if is_float(x) else x

    def truncate(self, x: Val) -> Val:
        return self.f.truncate(x) if is_float(x) else x

    def rint(self, x: Val) -> Val:
        return self.f.rint(x) if is_float(x) else x

    def copysign(self, x: Val, sign: Val) -> Val:
        return self.f.copysign(x, sign)

    def fmod(self, x: Val, y: Val) -> Val:
        """Remainder of the division rounded towards zero, exact; by 0 NaN for floats, 0 else."""
        if is_float(x):
            return float_remainder(self.f, x, y)
        zero = self.zero(y)
        return self.select(self.compare("eq", y, zero), zero, self.divide_integers(x, y)[1])

    def value(self, x: Val) -> Value:
        """`x` with operators, for lowerings that are formulas; ``.val`` gives back the plain value.

        Float32 goes through double when asked with `widened`.
        """
        return Value(self.f, x)

    def widened(self, x: Val) -> Value:
        """A float or double as a double, with operators."""
        return Value(self.f, self.convert(x, "double"))

    def narrowed(self, x: Value, kind: str) -> Val:
        """The way back from `widened`."""
        return self.convert(x.val, kind)

    def choose(self, mask: Value, x: Value | float, y: Value | float) -> Value:
        """`select` for values with operators, one of which may be a number."""
        return select(mask, x, y)

    def apply(self, name: str, *args: Value) -> Value:
        """`math` for values with operators."""
        return Value(self.f, self.math(name, *[a.val for a in args]))

    def divide_integers(self, x: Val, y: Val) -> tuple[Val, Val]:
        """Quotient towards zero and remainder with the sign of x; division by 0 gives 0, x."""
        zero = self.zero(y)
        one = self.const(1, y)
        bad = self.compare("eq", y, zero)
        if self.unsigned:
            quotient = self.select(bad, zero, self.f.udiv(x, self.select(bad, one, y)))
            return quotient, self.f.sub(x, self.f.mul(quotient, y))
        minus = self.compare("eq", y, self.const(-1, y))
        safe = self.select(self.f.or_(bad, minus), one, y)
        quotient = self.select(minus, self.neg(x), self.f.sdiv(x, safe))
        quotient = self.select(bad, zero, quotient)
        return quotient, self.f.sub(x, self.f.mul(quotient, y))

    # -- choice -----------------------------------------------------------------------

    def compare(self, predicate: str, x: Val, y: Val) -> Val:
        """eq, ne, lt, le, gt, ge; ordered for floats except ne."""
        if is_float(x):
            return self.f.fcmp(_FLOAT_PREDICATE[predicate], x, y)
        signed = not self.unsigned and x.kind != "i1"
        table = _SIGNED_PREDICATE if signed else _UNSIGNED_PREDICATE
        return self.f.icmp(table[predicate], x, y)

    def is_nan(self, x: Val) -> Val:
        return self.f.fcmp("uno", x, x) if is_float(x) else self.const(False, self._truth(x))

    def _truth(self, like: Val) -> Val:
        return Val("", "i1", like.width)

    def select(self, condition: Val, x: Val, y: Val) -> Val:
        return self.f.select(condition, x, y)

    def bit_and(self, x: Val, y: Val) -> Val:
        return self.f.and_(x, y)

    def bit_or(self, x: Val, y: Val) -> Val:
        return self.f.or_(x, y)

    def bit_xor(self, x: Val, y: Val) -> Val:
        return self.f.xor(x, y)

    def bit_not(self, x: Val) -> Val:
        return self.f.xor(x, self.const(-1 if x.kind != "i1" else True, x))

    def shift_left(self, x: Val, count: Val) -> Val:
        """0 for counts that are negative or reach the width."""
        inside = self.f.icmp("ult", count, self.const(INT_BITS[x.kind], count))
        safe = self.select(inside, count, self.zero(count))
        return self.select(inside, self.f.shl(x, safe), self.zero(x))

    def shift_right(self, x: Val, count: Val) -> Val:
        """Sign-filling; counts that are negative or reach the width shift everything out."""
        if self.unsigned:
            inside = self.f.icmp("ult", count, self.const(INT_BITS[x.kind], count))
            safe = self.select(inside, count, self.zero(count))
            return self.select(inside, self.f.lshr(x, safe), self.zero(x))
        last = self.const(INT_BITS[x.kind] - 1, count)
        inside = self.f.icmp("ult", count, last)
        return self.f.ashr(x, self.select(inside, count, last))

    def sign_bit(self, x: Val) -> Val:
        """Whether the sign bit is set, also of -0.0 and NaN."""
        if x.kind == "i1":
            return self.const(False, x)
        bits = self.f.bits(x) if is_float(x) else x
        return self.compare("lt", bits, self.zero(bits))

    def is_integer(self, x: Val) -> bool:
        """Whether `x` is of an integer kind or bool."""
        return not is_float(x)

    def false(self, like: Val) -> Val:
        """The mask that holds nowhere, of the width of `like`."""
        return self.const(False, self._truth(like))

    # -- conversion -------------------------------------------------------------------

    def convert(self, x: Val, kind: str, signed: bool = True) -> Val:
        """Value conversion between kinds; floats to integers truncate and saturate."""
        f = self.f
        if x.kind == kind:
            return x
        if kind == "i1":
            return self.compare("ne", x, self.zero(x))
        if x.kind == "i1":
            return f.cast("uitofp" if kind in FLOAT_BITS else "zext", x, kind)
        if is_float(x):
            if kind in FLOAT_BITS:
                return f.cast("fpext" if kind == "double" else "fptrunc", x, kind)
            width = x.width
            source = ("f64" if x.kind == "double" else "f32") if width == 1 else ""
            target = kind if width == 1 else f"v{width}{kind}"
            source = source or f"v{width}{'f64' if x.kind == 'double' else 'f32'}"
            return f.intrinsic("fptosi.sat", kind, width, [x], suffix=f"{target}.{source}")
        if kind in FLOAT_BITS:
            return f.cast("sitofp" if signed else "uitofp", x, kind)
        if int(kind[1:]) < int(x.kind[1:]):
            return f.cast("trunc", x, kind)
        return f.cast("sext" if signed else "zext", x, kind)

    # -- functions --------------------------------------------------------------------

    def math(self, name: str, *args: Val) -> Val:
        """A function of `symgrad.codegen.vmath`."""
        if not self.inline:
            return vmath.call(self.f, name, *args)
        half = _PAIRS.get(name)
        if half is None:
            return vmath.emit(self.f, name, *args)
        (x,) = args
        pair = self._pairs.get(x.ref)
        if pair is None:
            pair = self._pairs[x.ref] = vmath.sincos(self.f, x)
        return pair[half]

    def power(self, x: Val, y: Val) -> Val:
        """x**y; exponents 0, 1, 2, 3, -1 and 1/2 take their exact short forms.

        The short forms are chosen per element when the exponent is only known at run time, so a
        constant exponent and an equal computed one give the same bits.
        """
        if not is_float(x):
            return self._integer_power(x, y)
        exponent = self.known.get(y.ref)
        if exponent is not None:
            made = self._short_power(x, exponent)
            return self.math("pow", x, y) if made is None else made
        result = self.math("pow", x, y)
        for special in (0.0, 1.0, 2.0, 3.0, -1.0, 0.5):
            short = self._short_power(x, special)
            assert short is not None
            result = self.select(self.compare("eq", y, self.const(special, y)), short, result)
        return result

    def _short_power(self, x: Val, exponent: float) -> Val | None:
        if exponent == 0:
            return self.const(1, x)
        if exponent == 1:
            return x
        if exponent == 2:
            return self.mul(x, x)
        if exponent == 3:
            return self.mul(self.mul(x, x), x)
        if exponent == -1:
            return self.div(self.const(1, x), x)
        if exponent == 0.5:
            # pow(-inf, 1/2) is inf and pow(-0, 1/2) is +0, where sqrt has NaN and -0.
            root = self.add(self.sqrt(x), self.const(0.0, x))
            low = self.compare("eq", x, self.const(float("-inf"), x))
            return self.select(low, self.const(float("inf"), x), root)
        return None

    def _integer_power(self, x: Val, y: Val) -> Val:
        """By repeated squaring over the exponent's bits; negative exponents give 0, ±1."""
        bits = INT_BITS[x.kind] if self.unsigned else INT_BITS[x.kind] - 1
        result = self.const(1, x)
        square = x
        zero = self.zero(y)
        for bit in range(bits):
            one = self.const(1 << bit, y)
            chosen = self.compare("ne", self.f.and_(y, one), zero)
            result = self.select(chosen, self.f.mul(result, square), result)
            square = self.f.mul(square, square)
        odd = self.compare("ne", self.f.and_(y, self.const(1, y)), zero)
        unit = self.compare("eq", x, self.const(1, x))
        minus = self.compare("eq", x, self.const(-1, x))
        inverse = self.select(unit, x, self.zero(x))
        sign = self.select(odd, x, self.const(1, x))
        inverse = self.select(minus, sign, inverse)
        return self.select(self.compare("lt", y, zero), inverse, result)

"""From SymPy expressions to expressions, so that they can be compiled and differentiated.

One function for users, `from_sympy`; `_Reader` walks the SymPy tree with an explicit stack and
makes each equal part once. Constant parts are evaluated by SymPy to more digits than a float has,
then rounded once. Choices become `where`, which takes the value of one branch only. Start reading
at `from_sympy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from symgrad import dtypes
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import COMPOSITES
from symgrad.op import REGISTRY, constant

Value = Expr | bool | int | float

FUNCTIONS = {
    "Abs": "abs",
    "ceiling": "ceil",
    "loggamma": "lgamma",
    "Max": "maximum",
    "Min": "minimum",
    "Mod": "remainder",
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "Not": "logical_not",
}
"""Names of SymPy classes that are called otherwise here; all others keep their name."""


def from_sympy(expr: Any, symbols: Mapping[Any, Expr]) -> Any:
    """The expression that a SymPy expression stands for.

    Parameters
    ----------
    expr : sympy.Expr or Boolean, number, or a (nested) list, tuple or Matrix of such
    symbols : mapping from sympy.Symbol to Expr
        What each symbol stands for. Any other SymPy expression, such as ``f(t)``, may be a key.

    Returns
    -------
    Expr, or a (nested) list of Expr
        Parts that are equal, across the whole list too, are one node.

    Raises
    ------
    KeyError
        For a symbol that is not in `symbols`.
    NotImplementedError
        For a SymPy function that has no counterpart; the message names it.
    """
    import sympy as sp

    reader = _Reader(sp, symbols)
    if isinstance(expr, sp.MatrixBase | sp.NDimArray):
        expr = expr.tolist()
    if isinstance(expr, list | tuple):
        return [_nested(reader, sp, e) for e in expr]
    return reader.read(sp.sympify(expr))


def _nested(reader: _Reader, sp: Any, expr: Any) -> Any:
    if isinstance(expr, sp.MatrixBase | sp.NDimArray):
        expr = expr.tolist()
    if isinstance(expr, list | tuple):
        return [_nested(reader, sp, e) for e in expr]
    return reader.read(sp.sympify(expr))


def function(name: str) -> Callable[..., Expr]:
    """The op or composite called `name`.

    Raises
    ------
    NotImplementedError
        If there is none.
    """
    found = REGISTRY.get(name) or COMPOSITES.get(name)
    if found is None:
        raise NotImplementedError(
            f"from_sympy: no counterpart of this function (got {name}); rewrite it, or map it in symbols"
        )
    return found


class _Reader:
    """One reading: equal SymPy expressions become one node."""

    def __init__(self, sp: Any, symbols: Mapping[Any, Expr]) -> None:
        self.sp = sp
        self.symbols = symbols
        self.made: dict[Any, Value] = dict(symbols)
        floating = [e.dtype for e in symbols.values() if e.dtype.category == 2]
        self.dtype: DType = reduce(dtypes.promote_types, floating) if floating else dtypes.float64

    def read(self, expr: Any) -> Expr:
        """The node of `expr`."""
        stack = [(expr, False)]
        while stack:
            e, ready = stack.pop()
            if e in self.made:
                continue
            if ready:
                self.made[e] = self.convert(e, [self.made[a] for a in e.args])
            elif not e.args:
                self.made[e] = self.atom(e)
            elif isinstance(e, self.sp.Tuple | self.sp.Lambda):
                raise NotImplementedError(f"from_sympy: needs a scalar expression (got {e})")
            else:
                stack.append((e, True))
                stack.extend((a, False) for a in reversed(self.parts(e)))
        return self.tensor(self.made[expr])

    def parts(self, e: Any) -> list[Any]:
        """What to convert before `e`; pairs of a Piecewise are converted to themselves."""
        sp = self.sp
        if not isinstance(e, sp.Piecewise):
            return list(e.args)
        inner = []
        for pair in e.args:
            inner += [pair.args[0], pair.args[1]]
            self.made[pair] = 0
        return inner

    def tensor(self, value: Value) -> Expr:
        """A node, also for a number."""
        if isinstance(value, Expr):
            return value
        return constant(value, dtypes.bool_ if isinstance(value, bool) else self.dtype)

    def atom(self, e: Any) -> Value:
        """A number or a constant."""
        sp = self.sp
        if e in (sp.true, sp.false):
            return bool(e)
        if e.is_Symbol:
            raise KeyError(f"from_sympy: no expression given for the symbol {e}; add it to symbols")
        return self.number(e)

    def number(self, e: Any) -> int | float:
        """A constant SymPy expression, rounded once."""
        if e.is_Integer and abs(int(e)) < 2**53:
            return int(e)
        try:
            if e.is_Rational:
                return int(e.p) / int(e.q)
            return float(self.sp.N(e, 25))
        except OverflowError:
            return float("inf") if e > 0 else float("-inf")
        except TypeError:
            if e is self.sp.zoo:
                return float("nan")
            raise NotImplementedError(f"from_sympy: needs real numbers (got {e})") from None

    def convert(self, e: Any, args: list[Value]) -> Value:
        """The node of `e` from those of its arguments."""
        sp = self.sp
        if isinstance(e, sp.Piecewise):
            return self.piecewise(e)
        if not any(isinstance(a, Expr) for a in args) and getattr(e, "is_number", False):
            return self.number(e)
        if e.is_Add:
            return reduce(lambda x, y: x + y, args)
        if e.is_Mul:
            return self.product(e, args)
        if e.is_Pow:
            return self.power(args[0], e.args[1], args[1])
        name = type(e).__name__
        special = getattr(self, f"_{name}", None)
        if special is not None:
            result: Value = special(*args)
            return result
        chosen = function(FUNCTIONS.get(name, name))
        if name in ("Max", "Min", "And", "Or", "Xor"):
            numbers = [a for a in args if not isinstance(a, Expr)]
            tensors = [a for a in args if isinstance(a, Expr)]
            return reduce(chosen, [*tensors, *numbers])
        return chosen(*args)

    def product(self, e: Any, args: list[Value]) -> Value:
        """Numerator over denominator, with one rounding for the numeric factor."""
        above: list[Value] = []
        below: list[Value] = []
        for a, value in zip(e.args, args, strict=True):
            if a.is_Rational and a.q != 1 and abs(a.p) == 1 and abs(a.q) < 2**53:
                below.append(int(a.q * a.p))
            elif a.is_Pow and a.exp.is_Rational and a.exp < 0 and isinstance(value, Expr):
                below.append(self.power(self.made[a.base], -a.exp, self.number(-a.exp)))
            elif a is not self.sp.S.NegativeOne:
                above.append(value)
        top: Value = reduce(lambda x, y: x * y, above) if above else 1.0
        if below:
            top = top / reduce(lambda x, y: x * y, below)
        if self.sp.S.NegativeOne in e.args:
            return -top
        return top

    def power(self, base: Value, exponent: Any, value: Value) -> Value:
        """A power; roots and inverses have their own ops."""
        if exponent == 1:
            return base
        if exponent.is_Rational and exponent < 0 and exponent.q <= 2:
            return 1.0 / self.power(base, -exponent, self.number(-exponent))
        if exponent.is_Rational and exponent.q == 2 and exponent.p == 1:
            return function("sqrt")(base)
        return function("pow")(base, value)

    def piecewise(self, e: Any) -> Value:
        """Nested choices, the last pair innermost; NaN where no condition holds."""
        result: Value = constant(float("nan"), self.dtype)
        for pair in reversed(e.args):
            value, condition = (self.made[a] for a in pair.args)
            result = self.choose(condition, value, result)
        return result

    def choose(self, condition: Value, value: Value, otherwise: Value) -> Value:
        """`value` where `condition` holds."""
        if not isinstance(condition, Expr):
            return value if condition else otherwise
        if not isinstance(value, Expr) and not isinstance(otherwise, Expr):
            value = constant(float(value), self.dtype)
        return function("where")(condition, value, otherwise)

    # -- functions written with others; named as the SymPy class, after an underscore ------

    def _ITE(self, condition: Value, value: Value, otherwise: Value) -> Value:
        return self.choose(condition, value, otherwise)

    def _sec(self, x: Expr) -> Value:
        return 1.0 / function("cos")(x)

    def _csc(self, x: Expr) -> Value:
        return 1.0 / function("sin")(x)

    def _cot(self, x: Expr) -> Value:
        return 1.0 / function("tan")(x)

    def _sech(self, x: Expr) -> Value:
        return 1.0 / function("cosh")(x)

    def _csch(self, x: Expr) -> Value:
        return 1.0 / function("sinh")(x)

    def _coth(self, x: Expr) -> Value:
        return 1.0 / function("tanh")(x)

    def _sinc(self, x: Expr) -> Value:
        return function("sinc")(x / 3.141592653589793)

    def _gamma(self, x: Expr) -> Value:
        # Reflection (NIST Handbook of Mathematical Functions, 5.5.3) left of 1/2.
        lgamma, exp, sin = function("lgamma"), function("exp"), function("sin")
        pi = 3.141592653589793
        reflected = pi / (sin(pi * x) * exp(lgamma(1.0 - x)))
        return function("where")(x > 0.5, exp(lgamma(x)), reflected)

    def _factorial(self, x: Expr) -> Value:
        return self._gamma(x + 1.0)

    def _polygamma(self, n: Value, x: Expr) -> Value:
        if n == 0:
            return function("digamma")(x)
        return function("polygamma")(n, x)

    def _Heaviside(self, x: Expr, at_zero: Value = 0.5) -> Value:
        inner = self.choose(x > 0, 1.0, 0.0)
        return self.choose(function("eq")(x, 0), at_zero, inner)

    def _re(self, x: Expr) -> Value:
        return x

    def _conjugate(self, x: Expr) -> Value:
        return x

"""SymPy's vocabulary over terms: what an op's ``sympy(sp, ...)`` form gets in place of SymPy.

`Notation` offers the names that the forms use (``sp.exp``, ``sp.Piecewise``, ``sp.Rational``,
...), so an op says once how it is written, and formulas print without importing SymPy. A name
that is not listed is a function of that name. `form` evaluates the form of an op. Start reading
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from symgrad.expr import Expr
from symgrad.formula.tree import Table, Term
from symgrad.op import Op

RENAMED = {
    "Abs": "abs",
    "Max": "maximum",
    "Min": "minimum",
    "Mod": "remainder",
    "ceiling": "ceil",
    "loggamma": "lgamma",
    "polygamma": "polygamma",
    "LambertW": "lambertw",
    "Heaviside": "heaviside",
}
"""SymPy's names of functions that torch calls otherwise."""

COMPARISONS = {"Eq": "==", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">="}
LOGIC = {"And": "and", "Or": "or", "Xor": "xor", "Not": "not"}


class Notation:
    """Stands for the SymPy module where an op states its form."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.S = self
        self.true = True
        self.false = False
        self.oo = table.number(float("inf"))
        self.nan = table.number(float("nan"))
        self.pi = table.symbol("pi")
        self.E = table.symbol("e")
        self.EulerGamma = table.symbol("gamma_E")
        self.Half = table.number(0.5)
        self.One = table.number(1)
        self.Zero = table.number(0)

    def Integer(self, value: int) -> Term:
        """A whole number."""
        return self.table.number(int(value))

    def Float(self, value: float, *precision: int) -> Term:
        """A real number."""
        return self.table.number(float(value))

    def Rational(self, p: int, q: int = 1) -> Term:
        """The quotient p / q."""
        return self.table.number(p / q)

    def Symbol(self, name: str, **assumptions: bool) -> Term:
        """A symbol of the op's own, such as the position along an axis."""
        return self.table.symbol(name)

    def sympify(self, value: Any) -> Term:
        """A term from a number."""
        return self.table.term(value)

    def sqrt(self, x: Any) -> Term:
        """The square root, a power."""
        return self.table.product((x,), (0.5,))

    def log(self, x: Any, base: Any = None) -> Term:
        """The natural logarithm, or one to another base as a quotient."""
        natural = self.table.elementwise("call", (x,), "log")
        return natural if base is None else natural / self.log(base)

    def Piecewise(self, *pairs: tuple[Any, Any]) -> Term:
        """The value of the first pair whose condition holds."""
        parts: list[Any] = []
        for value, condition in pairs:
            if condition is True:
                parts.append(value)
                break
            parts += [value, condition]
        else:
            parts.append(self.nan)
        return self.table.elementwise("piecewise", parts)

    def Function(self, name: str) -> Callable[..., Term]:
        """A function known by name only."""
        return lambda *args: self.table.elementwise("call", args, RENAMED.get(name, name))

    def __getattr__(self, name: str) -> Callable[..., Term]:
        if name.startswith("_"):
            raise AttributeError(name)
        table = self.table
        if name in COMPARISONS:
            return lambda *args: table.elementwise("compare", args, COMPARISONS[name])
        if name in LOGIC:
            return lambda *args: table.elementwise("logic", args, LOGIC[name])
        return self.Function(name)


def form(notation: Notation, op: Op, args: tuple[Term, ...], attrs: dict[str, Any]) -> Term | None:
    """How `op` writes itself, or None where it does not say so in this vocabulary."""
    try:
        return notation.table.term(op.sympy(notation, *args, **attrs))
    except (AttributeError, TypeError, ValueError):
        return None


def written(
    notation: Notation, node: Expr, args: tuple[Term, ...], known: Collection[str] | None = None
) -> Term:
    """The term of an elementwise node: its form if that is one operation, else its name.

    So ``x / y`` prints as a quotient, while ``sigmoid(x)`` and ``log1p(x)`` keep their names
    instead of being spelled out at each use. Names that torch does not have are spelled out;
    with `known`, all that are not in it.
    """
    table = notation.table
    attrs = node.attributes()
    made = form(notation, node.op, args, attrs)
    if made is not None:
        if len(args) == 1 and made is args[0]:
            if node.dtype.category >= node.args[0].dtype.category:
                return made
            return table.elementwise("call", args, node.dtype.name)
        direct = all(_plain(a, args) for a in made.args) and made.head != "number"
        if direct or not (node.op.public if known is None else node.op.name in known):
            return _without_ones(made)
    shown = tuple(f"{k}={show(v)}" for k, v in attrs.items() if v is not None)
    return table.elementwise("call", args, (node.op.name, shown) if shown else node.op.name)


def _plain(t: Term, args: tuple[Term, ...]) -> bool:
    """Whether `t` is an argument, a number or a product of arguments."""
    if t in args or t.head == "number":
        return True
    return t.head == "product" and all(a in args or a.head == "number" for a in t.args)


def _without_ones(t: Term) -> Term:
    """A product without factors 1, which change no value at all."""
    if t.head == "product" and t.data[0] in (1, -1) and set(t.data[1]) == {1}:
        left = [a for a in t.args if a.head != "number" or a.data is True or a.data != 1]
        if not left:
            return t.table.number(t.data[0])
        if len(left) == 1 and t.data[0] == 1 and left[0].shape == t.shape:
            return left[0]
    return t


def show(value: Any) -> str:
    """An attribute as text."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)

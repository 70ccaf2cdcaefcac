"""The tree of a printed formula: what stands between an `Expr` and the printers.

Structures:

* `Term`: a node with a head (its kind), arguments, static data and a shape. The shape is minimal:
  axes along which a term does not vary are absent in front and 1 elsewhere, so broadcasting is
  silent. The value of an expression is that of its term, broadcast to the expression's shape.
* `Table`: makes terms, equal ones once; equality of terms is identity.

Heads and their data::

    number     value                      product    (coefficient, exponents)
    symbol     (name, rank)               power      -          base, exponent
    sum        (constant, coefficients)   call       name, or (name, attributes as text)
    compare    sign                       logic      "and", "or", "xor", "not"
    piecewise  -    value, condition, value, condition, ..., otherwise
    and the array heads of `symgrad.formula.arrays`

Terms made from an expression are strict: one term per op, nothing folded. `symgrad.formula.rewrite`
makes readable ones of them. Start reading at `Term`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Shape = tuple[int, ...]
Number = bool | int | float


class Term:
    """A node of a printed formula.

    Arithmetic and order comparisons of terms give terms, so that an op's ``sympy`` form can be
    evaluated on them.

    Attributes
    ----------
    head : str
    args : tuple of Term
    data : object
        Hashable.
    shape : tuple of int
        Without leading ones.
    serial : int
        Creation order in the table; arguments come first.
    table : Table
    """

    __slots__ = ("args", "data", "head", "serial", "shape", "table")

    def __init__(
        self, table: Table, head: str, args: tuple[Term, ...], data: Any, shape: Shape, serial: int
    ) -> None:
        self.table = table
        self.head = head
        self.args = args
        self.data = data
        self.shape = shape
        self.serial = serial

    def __repr__(self) -> str:
        inside = ", ".join(f"#{a.serial}" for a in self.args)
        return f"<{self.head} #{self.serial} {self.data!r} ({inside})>"

    def __add__(self, other: Any) -> Term:
        return self.table.sum((self, other), (1, 1))

    def __radd__(self, other: Any) -> Term:
        return self.table.sum((other, self), (1, 1))

    def __sub__(self, other: Any) -> Term:
        return self.table.sum((self, other), (1, -1))

    def __rsub__(self, other: Any) -> Term:
        return self.table.sum((other, self), (1, -1))

    def __mul__(self, other: Any) -> Term:
        return self.table.product((self, other), (1, 1))

    def __rmul__(self, other: Any) -> Term:
        return self.table.product((other, self), (1, 1))

    def __truediv__(self, other: Any) -> Term:
        return self.table.product((self, other), (1, -1))

    def __rtruediv__(self, other: Any) -> Term:
        return self.table.product((other, self), (1, -1))

    def __neg__(self) -> Term:
        return self.table.product((self,), (1,), -1)

    def __pow__(self, other: Any) -> Term:
        return self.table.elementwise("power", (self, other))

    def __rpow__(self, other: Any) -> Term:
        return self.table.elementwise("power", (other, self))

    def __mod__(self, other: Any) -> Term:
        return self.table.elementwise("call", (self, other), "remainder")

    def __abs__(self) -> Term:
        return self.table.elementwise("call", (self,), "abs")

    def __lt__(self, other: Any) -> Term:
        return self.table.elementwise("compare", (self, other), "<")

    def __le__(self, other: Any) -> Term:
        return self.table.elementwise("compare", (self, other), "<=")

    def __gt__(self, other: Any) -> Term:
        return self.table.elementwise("compare", (self, other), ">")

    def __ge__(self, other: Any) -> Term:
        return self.table.elementwise("compare", (self, other), ">=")

    def __and__(self, other: Any) -> Term:
        return self.table.elementwise("logic", (self, other), "and")

    def __or__(self, other: Any) -> Term:
        return self.table.elementwise("logic", (self, other), "or")

    def __invert__(self) -> Term:
        return self.table.elementwise("logic", (self,), "not")

    def __bool__(self) -> bool:
        raise TypeError("formula: a term has no truth value; use Piecewise to choose by condition")


class Table:
    """Makes terms; equal ones are made once."""

    def __init__(self) -> None:
        self.made: dict[Any, Term] = {}

    def make(
        self, head: str, args: tuple[Term, ...] = (), data: Any = None, shape: Shape = ()
    ) -> Term:
        """The term of this head, arguments and data."""
        return self.keyed((head, data, shape, args), head, args, data, shape)

    def keyed(self, key: Any, head: str, args: tuple[Term, ...], data: Any, shape: Shape) -> Term:
        """The term under `key`: sums and products are equal in any order of their arguments."""
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = Term(self, head, args, data, shape, len(self.made))
        return found

    def number(self, value: Number) -> Term:
        """A number; 2 and 2.0 are one term, True is another."""
        if isinstance(value, bool):
            return self.keyed(("bool", value), "number", (), value, ())
        exact = tidy(value)
        return self.keyed(("number", repr(exact)), "number", (), exact, ())

    def symbol(self, name: str, shape: Shape = ()) -> Term:
        """A named leaf."""
        return self.make("symbol", (), (name, len(shape)), minimal(shape))

    def term(self, value: Any) -> Term:
        """A term from a term or a number."""
        if isinstance(value, Term):
            return value
        if isinstance(value, bool | int | float):
            return self.number(value)
        raise TypeError(f"formula: needs a term or a number (got {type(value).__name__})")

    def elementwise(self, head: str, args: Iterable[Any], data: Any = None) -> Term:
        """A term that acts element by element on its broadcast arguments."""
        terms = tuple([self.term(a) for a in args])
        return self.make(head, terms, data, broadcast(t.shape for t in terms))

    def sum(self, args: Iterable[Any], coefficients: tuple[Number, ...]) -> Term:
        """A sum as written; `symgrad.formula.rewrite` collects."""
        return self.elementwise("sum", args, (0, coefficients))

    def product(
        self, args: Iterable[Any], exponents: tuple[Number, ...], coefficient: Number = 1
    ) -> Term:
        """A product of powers as written."""
        return self.elementwise("product", args, (coefficient, exponents))


def tidy(value: Number) -> Number:
    """An integral float as an int, so that it prints and compares as one."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def minimal(shape: Sequence[int]) -> Shape:
    """A shape without its leading ones."""
    start = 0
    while start < len(shape) and shape[start] == 1:
        start += 1
    return tuple(shape[start:])


def padded(shape: Shape, rank: int) -> Shape:
    """A minimal shape with ones in front, up to `rank` axes."""
    return (1,) * (rank - len(shape)) + shape


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The minimal shape of an elementwise combination."""
    result: Shape = ()
    for shape in shapes:
        if shape in (result, ()):
            continue
        rank = max(len(result), len(shape))
        pairs = zip(padded(result, rank), padded(shape, rank), strict=True)
        result = minimal([b if a == 1 else a for a, b in pairs])
    return result


def topological(roots: Iterable[Term]) -> list[Term]:
    """The terms reachable from `roots`, arguments before users."""
    seen: dict[int, Term] = {}
    stack = list(roots)
    while stack:
        t = stack.pop()
        if t.serial not in seen:
            seen[t.serial] = t
            stack.extend(t.args)
    return [seen[s] for s in sorted(seen)]


def use_counts(order: Iterable[Term], roots: Iterable[Term]) -> dict[Term, int]:
    """How often each term is an argument or a root."""
    uses: dict[Term, int] = {}
    for t in order:
        for a in t.args:
            uses[a] = uses.get(a, 0) + 1
    for t in roots:
        uses[t] = uses.get(t, 0) + 1
    return uses

"""Algebra for reading: from strict terms to the shortest usual form of the same formula.

What happens here may change NaN, infinities and the sign of zero, never the value at a regular
point; it is applied to printed formulas only, never to what is computed. Sums and products are
collected over their single-use inner sums and products, so a long chain costs linear time; a
shared inner one is merged only if it is small, so nothing grows.

One structure: `Rewriter`, which simplifies terms bottom up, one method per head; `RULES` lists
them. Start reading at `simplify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from symgrad.formula.arrays import opaque, rebuild
from symgrad.formula.tree import Number, Table, Term, broadcast, tidy, topological, use_counts

SMALL = 6
"""A shared sum or product of at most this size is merged into its users."""

EVEN = frozenset({"cos", "cosh", "abs", "sinc"})
ODD = frozenset({"sin", "tan", "sinh", "tanh", "asin", "atan", "asinh", "atanh", "erf", "sign"})
KNOWN: dict[tuple[Any, Any], int] = {
    **{(name, 0): 0 for name in ODD | {"sqrt", "log1p", "expm1"}},
    **{(name, 0): 1 for name in ("exp", "cos", "cosh", "sinc")},
    ("log", 1): 0,
}
"""Values of functions at numbers."""
LINEAR = frozenset({"matmul", "permute", "index", "reshape", "flip", "embed", "gather"})
"""Heads through which a numeric factor of an argument can pass."""

NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def simplify(table: Table, roots: Iterable[Term]) -> list[Term]:
    """Readable forms of `roots`."""
    given = list(roots)
    return Rewriter(table, given).run()


class Rewriter:
    """One simplification of a set of terms.

    Attributes
    ----------
    done : dict of Term to Term
        Simplified forms of the strict terms.
    size : dict of Term to int
        Number of operations of a simplified term, written out, counted up to a limit.
    """

    def __init__(self, table: Table, roots: list[Term]) -> None:
        self.table = table
        self.roots = roots
        self.order = topological(roots)
        self.uses = use_counts(self.order, roots)
        self.done: dict[Term, Term] = {}
        self.size: dict[Term, int] = {}

    def run(self) -> list[Term]:
        """Simplify everything the roots need."""
        gathered = self._gathered()
        for t in self.order:
            if t not in gathered:
                self.done[t] = RULES.get(t.head, Rewriter.array)(self, t)
        return [self.done[t] for t in self.roots]

    def _gathered(self) -> set[Term]:
        """Single-use sums within sums and products within products: read by their users."""
        summed: set[Term] = set()
        multiplied: set[Term] = set()
        for t in reversed(self.order):
            if t.head == "sum" or t in summed:
                inner = [a for a in t.args if a.head == "sum" or _is_negation(a)]
                summed.update(a for a in inner if self.uses[a] == 1)
            elif t.head == "product":
                pairs = zip(t.args, t.data[1], strict=True)
                inner = [a for a, e in pairs if a.head == "product" and _whole(e)]
                multiplied.update(a for a in inner if self.uses[a] == 1)
        return summed | multiplied

    # -- sums ---------------------------------------------------------------------------

    def sum(self, t: Term) -> Term:
        """Collect the summands below `t`."""
        parts: list[tuple[Number, Term]] = []
        total: Number = 0
        stack: list[tuple[Number, Term]] = [(1, t)]
        while stack:
            c, x = stack.pop()
            if x in self.done:
                parts.append((c, self.done[x]))
            elif x.head == "sum":
                constant, factors = x.data
                total += c * constant
                pairs = zip(factors, x.args, strict=True)
                stack.extend((c * f, a) for f, a in reversed(list(pairs)))
            else:
                stack.append((-c, x.args[0]))
        return self.add(parts, total)

    def add(self, parts: Iterable[tuple[Number, Term]], constant: Number = 0) -> Term:
        """The sum of multiples of simplified terms."""
        collected: dict[Term, Number] = {}
        for c, x in parts:
            if x.head == "sum" and (c in (1, -1)) and self._small(x):
                pieces = [(c * f, a) for f, a in zip(x.data[1], x.args, strict=True)]
                constant += c * x.data[0]
            else:
                pieces = [(c, x)]
            for k, piece in pieces:
                number, bare = self.split(piece)
                if bare is None:
                    constant += k * number
                else:
                    collected[bare] = collected.get(bare, 0) + k * number
        self._pair_choices(collected)
        left = {x: tidy(c) for x, c in collected.items() if c != 0}
        constant = tidy(constant)
        if not left:
            return self.table.number(constant)
        if len(left) == 1 and constant == 0:
            ((x, c),) = left.items()
            return self.multiply(c, [(x, 1)])
        args, factors = tuple(left), tuple(left.values())
        key = ("sum", constant, frozenset(left.items()))
        shape = broadcast(a.shape for a in args)
        return self.sized(self.table.keyed(key, "sum", args, (constant, factors), shape))

    def _pair_choices(self, collected: dict[Term, Number]) -> None:
        """Join `where(c, a, 0)` with its like and with `where(not c, b, 0)`."""
        kept: dict[Term, Term] = {}
        for x in [x for x in collected if _is_selection(x)]:
            value, condition, _ = x.args
            opposite = self.negate(condition)
            for other, swap in ((condition, False), (opposite, True)):
                partner = kept.get(other)
                if partner is None:
                    continue
                first = self.multiply(collected.pop(partner), [(partner.args[0], 1)])
                second = self.multiply(collected.pop(x), [(value, 1)])
                if swap:
                    # The condition as it was written came before its opposite.
                    if other.serial < condition.serial:
                        joined = self.choose((first, other, second))
                    else:
                        joined = self.choose((second, condition, first))
                    del kept[other]
                else:
                    zero = self.table.number(0)
                    joined = self.choose((self.add([(1, first), (1, second)]), condition, zero))
                    if _is_selection(joined):
                        kept[condition] = joined
                number, bare = self.split(joined)
                if bare is not None:
                    collected[bare] = collected.get(bare, 0) + number
                break
            else:
                kept[condition] = x

    # -- products -----------------------------------------------------------------------

    def product(self, t: Term) -> Term:
        """Collect the factors below `t`."""
        factors: list[tuple[Term, Number]] = []
        coefficient: Number = 1
        stack: list[tuple[Term, Number]] = [(t, 1)]
        while stack:
            x, e = stack.pop()
            if x in self.done:
                factors.append((self.done[x], e))
                continue
            c, exponents = x.data
            coefficient = _times(coefficient, c, e)
            pairs = zip(x.args, exponents, strict=True)
            stack.extend((a, e * f) for a, f in reversed(list(pairs)))
        return self.multiply(coefficient, factors)

    def multiply(self, coefficient: Number, factors: Iterable[tuple[Term, Number]]) -> Term:
        """A number times powers of simplified terms."""
        collected: dict[Term, Number] = {}
        for x, e in factors:
            pieces = [(x, e)]
            if x.head == "product" and _whole(e) and (self._small(x) or len(x.args) == 1):
                coefficient = _times(coefficient, x.data[0], e)
                pieces = [(a, f * e) for a, f in zip(x.args, x.data[1], strict=True)]
            elif x.head == "product" and _whole(e) and x.data[0] != 1:
                number, bare = self.split(x)
                coefficient = _times(coefficient, number, e)
                pieces = [(x if bare is None else bare, e)]
            for base, power in pieces:
                if base.head == "number" and _foldable(base.data, power):
                    coefficient = _times(coefficient, base.data, power)
                else:
                    collected[base] = collected.get(base, 0) + power
        coefficient = tidy(coefficient)
        left = {x: tidy(e) for x, e in collected.items() if e != 0}
        if not left or coefficient == 0:
            return self.table.number(coefficient)
        if len(left) == 1:
            ((x, e),) = left.items()
            if e == 1 and coefficient == 1:
                return x
            if e == 1 and coefficient == -1 and x.head == "sum" and any(c < 0 for c in x.data[1]):
                return self.add(
                    [(-c, a) for c, a in zip(x.data[1], x.args, strict=True)], -x.data[0]
                )
        choice = [x for x, e in left.items() if e == 1 and _is_selection(x)]
        if len(choice) == 1 and (len(left) == 1 or choice[0].args[0].head == "number"):
            value, condition, zero = choice[0].args
            rest = [(value if x is choice[0] else x, e) for x, e in left.items()]
            return self.choose((self.multiply(coefficient, rest), condition, zero))
        coefficient, left = self._means(coefficient, left)
        left = self._softmax(left)
        args, exponents = tuple(left), tuple(left.values())
        if len(args) == 1 and coefficient == 1 and exponents[0] == 1:
            return args[0]
        key = ("product", coefficient, frozenset(left.items()))
        shape = broadcast(a.shape for a in args)
        return self.sized(self.table.keyed(key, "product", args, (coefficient, exponents), shape))

    def _softmax(self, factors: dict[Term, Number]) -> dict[Term, Number]:
        """exp(u) over its own sum along an axis."""
        for x, e in factors.items():
            if x.head != "reduce" or x.data[0] != "add" or e != -1 or len(x.data[1]) != 1:
                continue
            (exponential,) = x.args
            _, (dim,), shape, keepdim = x.data
            alone = keepdim or len(shape) == 1
            if not alone or not _is_exp(exponential) or factors.get(exponential) != 1:
                continue
            base = _unshifted(exponential.args[0], (dim,))
            made = opaque(self.table, (base,), "softmax", (str(dim),), (shape,), shape)
            rest = {y: f for y, f in factors.items() if y is not x and y is not exponential}
            return {self.sized(made): 1, **rest}
        return factors

    def _means(
        self, coefficient: Number, factors: dict[Term, Number]
    ) -> tuple[Number, dict[Term, Number]]:
        """A sum of n elements times 1/n is their mean."""
        if isinstance(coefficient, int):
            return coefficient, factors
        for x, e in factors.items():
            if x.head == "reduce" and x.data[0] == "add" and e == 1:
                count = 1
                for d in x.data[1]:
                    count *= x.data[2][d]
                if abs(abs(coefficient * count) - 1) < 1e-9:
                    mean = self.table.make("reduce", x.args, ("mean", *x.data[1:]), x.shape)
                    sign = 1 if coefficient > 0 else -1
                    return sign, {mean if y is x else y: f for y, f in factors.items()}
        return coefficient, factors

    def split(self, x: Term) -> tuple[Number, Term | None]:
        """The numeric factor of `x` and the rest of it."""
        if x.head == "number":
            return x.data, None
        if x.head != "product" or x.data[0] == 1:
            return 1, x
        return x.data[0], self.multiply(1, zip(x.args, x.data[1], strict=True))

    def power(self, t: Term) -> Term:
        """A power with a numeric exponent is a factor."""
        base, exponent = (self.done[a] for a in t.args)
        if exponent.head == "number":
            return self.multiply(1, [(base, exponent.data)])
        return self.remake(t, (base, exponent))

    # -- functions and choices ----------------------------------------------------------

    def call(self, t: Term) -> Term:
        """Even functions drop a sign, odd ones pass it on."""
        args = tuple(self.done[a] for a in t.args)
        if len(args) == 1 and args[0].head == "number":
            known = KNOWN.get((t.data, args[0].data))
            if known is not None:
                return self.table.number(known)
        if t.data in EVEN or t.data in ODD:
            number, bare = self.split(args[0])
            if bare is not None and number < 0:
                inner = self.remake(t, (self.multiply(-number, [(bare, 1)]),))
                return inner if t.data in EVEN else self.multiply(-1, [(inner, 1)])
        return self.remake(t, args)

    def logic(self, t: Term) -> Term:
        """Negations go into comparisons; constants drop out."""
        args = tuple(self.done[a] for a in t.args)
        if t.data == "not":
            return self.negate(args[0])
        neutral = t.data == "and"
        if t.data == "or" and any(a.head == "call" and a.data == "isnan" for a in args):
            left = [a for a in args if a.head != "call" or a.data != "isnan"]
            if len(left) == 1:
                return left[0]
        if t.data in ("and", "or"):
            for k, a in enumerate(args):
                if a.head == "number":
                    return args[1 - k] if bool(a.data) is neutral else a
            if args[0] is args[1]:
                return args[0]
        return self.remake(t, args)

    def compare(self, t: Term) -> Term:
        """A comparison; of a term with itself only NaN matters."""
        a, b = (self.done[x] for x in t.args)
        if a is b:
            if t.data == "!=":
                return self.sized(self.table.make("call", (a,), "isnan", a.shape))
            return self.table.number(t.data in ("==", "<=", ">="))
        if _is_zero(b) and is_positive(a) and t.data in ("==", "!="):
            return self.table.number(t.data == "!=")
        return self.remake(t, (a, b))

    def negate(self, condition: Term) -> Term:
        """The opposite condition."""
        if condition.head == "index":
            (base,) = condition.args
            return rebuild(self.table, condition, (self.negate(base),))
        if condition.head == "compare":
            sign = NEGATED[condition.data]
            return self.table.make("compare", condition.args, sign, condition.shape)
        if condition.head == "logic" and condition.data == "not":
            return condition.args[0]
        if condition.head == "number":
            return self.table.number(not condition.data)
        return self.table.make("logic", (condition,), "not", condition.shape)

    def piecewise(self, t: Term) -> Term:
        """Simplify the choice from simplified parts."""
        return self.choose(tuple(self.done[a] for a in t.args))

    def choose(self, args: tuple[Term, ...]) -> Term:
        """A choice between values: known and repeated conditions drop out."""
        parts: list[Term] = []
        asked: set[Term] = set()
        otherwise = args[-1]
        for value, condition in zip(args[:-1:2], args[1::2], strict=True):
            if condition.head == "number":
                if condition.data:
                    otherwise = value
                    break
                continue
            if condition in asked:
                continue
            asked.add(condition)
            if value.head == "piecewise" and value.args[1] is condition:
                value = value.args[0]
            parts += [value, condition]
        while otherwise.head == "piecewise" and otherwise.args[1] in asked:
            rest = otherwise.args[2:]
            otherwise = rest[0] if len(rest) == 1 else self.choose(rest)
        if all(v is otherwise for v in parts[::2]):
            return otherwise
        if len(parts) == 2 and otherwise.head == "number" and otherwise.data == 0:
            value, condition = parts
            if value.data is True and value.head == "number":
                return condition
            if _is_selection(value):
                both = self.table.elementwise("logic", (condition, value.args[1]), "and")
                parts = [value.args[0], self.sized(both)]
        if len(parts) == 2 and parts[1].head == "logic" and parts[1].data == "not":
            parts, otherwise = [otherwise, parts[1].args[0]], parts[0]
        if otherwise.head == "piecewise" and len(parts) + len(otherwise.args) <= 9:
            parts, otherwise = [*parts, *otherwise.args[:-1]], otherwise.args[-1]
        return self.sized(self.table.elementwise("piecewise", [*parts, otherwise]))

    # -- everything else ----------------------------------------------------------------

    def remake(self, t: Term, args: tuple[Term, ...]) -> Term:
        """An elementwise term on other arguments."""
        shape = broadcast(a.shape for a in args)
        return self.sized(self.table.make(t.head, args, t.data, shape))

    def plain(self, t: Term) -> Term:
        """A leaf, a comparison, anything elementwise without a rule."""
        return self.remake(t, tuple(self.done[a] for a in t.args)) if t.args else self.sized(t)

    def array(self, t: Term) -> Term:
        """An array head: numeric factors come out, the rest is built anew."""
        args = [self.done[a] for a in t.args]
        coefficient: Number = 1
        if t.head in LINEAR or (t.head == "reduce" and t.data[0] == "add"):
            reach = 2 if t.head == "matmul" else 1
            for k in range(reach):
                number, bare = self.split(args[k])
                if bare is not None and number != 1 and bare.shape == args[k].shape:
                    coefficient = _times(coefficient, number, 1)
                    args[k] = bare
        made = rebuild(self.table, t, tuple(args))
        return self.multiply(coefficient, [(self._finish(made), 1)])

    def _finish(self, made: Term) -> Term:
        """What the array forms made of simplified terms, in simplified form."""
        if made in self.size or made.head not in RULES:
            return self.sized(made)
        args = [self._finish(a) for a in made.args]
        if made.head == "product":
            return self.multiply(made.data[0], zip(args, made.data[1], strict=True))
        if made.head == "sum":
            return self.add(zip(made.data[1], args, strict=True), made.data[0])
        if made.head == "piecewise":
            return self.choose(tuple(args))
        return self.remake(made, tuple(args))

    def sized(self, t: Term) -> Term:
        """Note the size of a simplified term."""
        if t not in self.size:
            self.size[t] = min(1 + sum(self.size.get(a, 1) for a in t.args), 1000)
        return t

    def _small(self, x: Term) -> bool:
        return self.size.get(x, 1) <= SMALL


RULES: dict[str, Callable[[Rewriter, Term], Term]] = {
    "number": Rewriter.plain,
    "symbol": Rewriter.plain,
    "compare": Rewriter.compare,
    "sum": Rewriter.sum,
    "product": Rewriter.product,
    "power": Rewriter.power,
    "call": Rewriter.call,
    "logic": Rewriter.logic,
    "piecewise": Rewriter.piecewise,
}
"""How each head is simplified; heads that are not listed are array heads."""


def _is_zero(t: Term) -> bool:
    return t.head == "number" and t.data == 0


def _is_exp(t: Term) -> bool:
    return t.head == "call" and t.data == "exp"


def _unshifted(u: Term, dims: tuple[int, ...]) -> Term:
    """x, if `u` is x minus its maximum along `dims`; else `u`."""
    if u.head == "sum" and u.data == (0, (1, -1)):
        x, peak = u.args
        if peak.head == "reduce" and peak.data[:2] == ("max", dims) and peak.args == (x,):
            return x
    return u


def is_positive(t: Term) -> bool:
    """Whether a term is an exponential, a sum of some such, or such in another shape."""
    while t.head in ("reduce", "index", "reshape", "expand") and len(t.args) == 1:
        if t.head == "reduce" and (t.data[0] not in ("add", "max", "min") or 0 in t.args[0].shape):
            return False
        t = t.args[0]
    return _is_exp(t)


def _is_negation(t: Term) -> bool:
    return t.head == "product" and t.data == (-1, (1,))


def _is_selection(t: Term) -> bool:
    """Whether `t` is a value or zero."""
    return t.head == "piecewise" and len(t.args) == 3 and t.args[2].data == 0 and not t.args[2].args


def _whole(exponent: Any) -> bool:
    return isinstance(exponent, int) or float(exponent).is_integer()


def _foldable(base: Number, exponent: Number) -> bool:
    """Whether a power of a number is worth working out."""
    if not _whole(exponent):
        return False
    return base != 0 or exponent > 0


def _times(coefficient: Number, base: Number, exponent: Number) -> Number:
    """coefficient * base**exponent, dividing where that rounds once."""
    if exponent == 1:
        return coefficient * base
    if exponent == -1:
        return tidy(coefficient / base)
    try:
        return tidy(coefficient * float(base) ** int(exponent))
    except OverflowError:
        return float("inf")

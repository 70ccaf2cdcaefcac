"""Formulas as text: readable infix with few parentheses, in Python's notation.

One structure: `Printer`, which holds the text and the binding strength of each term; `WRITE`
lists how each head is written. Terms are visited in order, arguments first, and long or shared
ones get a name, so neither depth nor sharing costs more than linear time. Start reading at
`text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from symgrad.expr import Expr
from symgrad.formula.constants import fraction
from symgrad.formula.names import lets
from symgrad.formula.read import Names, read
from symgrad.formula.rewrite import simplify
from symgrad.formula.tree import Number, Shape, Term, padded, topological

ATOM, POSTFIX, POWER, UNARY, TIMES, PLUS, BITS, COMPARE = 100, 90, 80, 70, 60, 50, 40, 30

REDUCTIONS = {
    "add": "sum",
    "mul": "prod",
    "max": "amax",
    "min": "amin",
    "or": "any",
    "and": "all",
}
"""What torch calls a reduction by this combination; others print as they are."""

Written = tuple[str, int]
"""A text and how strongly it binds."""


Write = Callable[["Printer", Term], Written]


def text(expr: Expr, names: Names | None = None, limit: int | None = 200) -> str:
    """The formula of `expr` as text.

    Shared intermediate terms are printed first, as lines ``t1 = ...``; the last line is the
    result.

    Parameters
    ----------
    expr : Expr
    names : mapping from Expr or id(Expr) to str, optional
        Names of leaves or of intermediate expressions. Leaves without a name are called
        ``x0, x1, ...`` in creation order, ``c0, c1, ...`` if they need no gradient.
    limit : int or None
        The longest list of lines, or of summands in a line, that is printed in full.

    Returns
    -------
    str
    """
    table, terms = read([expr], names)
    roots = simplify(table, terms)
    bound = lets(roots, names.values() if names else ())
    printer = Printer(bound, limit)
    printer.visit(roots)
    lines = [f"{name} = {printer.body[t]}" for t, name in bound.items()]
    last = bound.get(roots[0]) or printer.of(roots[0], 0)
    if lines and bound.get(roots[0]):
        lines, last = lines[:-1], lines[-1].split(" = ", 1)[1]
    if limit is not None and len(lines) > limit:
        lines = [*lines[:limit], f"... ({len(lines) - limit} more terms)"]
    return "\n".join([*lines, last])


def number_text(value: Number) -> Written:
    """A number in the shortest usual form: 2, 0.25, 1/3, pi/2, 1e-05."""
    negative = isinstance(value, int | float) and not isinstance(value, bool) and value < 0
    above, below = fraction(-value if negative else value)
    shown = f"{above}/{below}" if below else above
    binding = TIMES if below or "*" in above else ATOM
    if negative:
        return f"-{shown}", min(binding, UNARY)
    return shown, binding


class HasNames(Protocol):
    """A printer, as far as products are concerned."""

    names: dict[Term, str]


class Printer:
    """Text of terms.

    Attributes
    ----------
    names : dict of Term to str
        Terms printed by a name.
    body : dict of Term to str
        What a named term stands for.
    rank : dict of Term to int
        How many axes the text stands for, leading ones of leaves included.
    write : mapping from head to function
        How each head is written.
    prefix : str
        Before the names of functions.
    """

    def __init__(
        self,
        names: dict[Term, str],
        limit: int | None,
        write: Mapping[str, Write] | None = None,
        prefix: str = "",
    ) -> None:
        self.names = names
        self.limit = limit
        self.write = WRITE if write is None else write
        self.prefix = prefix
        self.body: dict[Term, str] = {}
        self.written: dict[Term, Written] = {}
        self.rank: dict[Term, int] = {}

    def visit(self, roots: list[Term]) -> None:
        """Write everything below `roots`."""
        for t in topological(roots):
            self.rank[t] = visible_rank(t, self.rank)
            made = self.write.get(t.head, _opaque)(self, t)
            name = self.names.get(t)
            if name is not None:
                self.body[t] = made[0]
                made = (name, ATOM)
            self.written[t] = made

    def of(self, t: Term, binding: int) -> str:
        """The text of `t`, in parentheses where it binds less than `binding`."""
        shown, own = self.written[t]
        return shown if own >= binding else f"({shown})"

    def exact(self, t: Term, shape: Shape) -> str:
        """The text of `t` with exactly the axes of `shape`."""
        missing = len(shape) - self.rank[t]
        if missing == 0:
            return self.of(t, 0)
        if missing == 1 and t.shape:
            return f"{self.of(t, POSTFIX)}[None]"
        return f"{self.prefix}reshape({self.of(t, 0)}, {shape_text(shape)})"

    def scaled(self, coefficient: Number, t: Term) -> Written:
        """A positive number times a term."""
        if t.head == "product" and t not in self.names:
            return _factors(
                self, coefficient * t.data[0], list(zip(t.args, t.data[1], strict=True))
            )
        return _factors(self, coefficient, [(t, 1)])


def visible_rank(t: Term, ranks: Mapping[Term, int]) -> int:
    """The number of axes of a term as it is printed, given those of its arguments."""
    if t.head == "symbol":
        rank: int = t.data[1]
        return rank
    if t.head in ("reshape", "expand"):
        return len(t.data[1] if t.head == "reshape" else t.data)
    if t.head == "embed":
        return len(t.data[0])
    if t.head == "opaque":
        return len(t.data[3])
    if t.head == "gather":
        return len(t.data[1]) + len(t.data[0]) - len(t.args) + 1
    inner = [ranks[a] for a in t.args]
    if t.head == "reduce":
        return inner[0] if t.data[3] else max(inner[0] - len(t.data[1]), 0)
    if t.head == "index":
        return inner[0] + sum((i is None) - isinstance(i, int) for i in t.data)
    if t.head == "matmul":
        left, right = inner[0], 1 if len(t.args[1].shape) == 1 else inner[1]
        return max(left, right, 2) - (left == 1) - (right == 1)
    return max(inner, default=0)


def _number(p: Printer, t: Term) -> Written:
    return number_text(t.data)


def _symbol(p: Printer, t: Term) -> Written:
    return t.data[0], ATOM


def _sum(p: Printer, t: Term) -> Written:
    constant, coefficients = t.data
    parts = [(c, a) for c, a in zip(coefficients, t.args, strict=True)]
    hidden = 0
    if p.limit is not None and len(parts) > p.limit:
        hidden = len(parts) - p.limit
        parts = parts[: p.limit]
    pieces = [(c < 0, p.scaled(abs(c), a)) for c, a in parts]
    if constant:
        shown = (constant < 0, number_text(abs(constant)))
        if pieces[0][0] and not shown[0]:
            pieces.insert(0, shown)
        else:
            pieces.append(shown)
    first = next((k for k, (negative, _) in enumerate(pieces) if not negative), 0)
    pieces.insert(0, pieces.pop(first))
    result = ""
    for k, (negative, (shown_piece, binding)) in enumerate(pieces):
        shown_piece = shown_piece if binding > PLUS else f"({shown_piece})"
        if k == 0:
            result = f"-{shown_piece}" if negative else shown_piece
        else:
            result += f" - {shown_piece}" if negative else f" + {shown_piece}"
    if hidden:
        result += f" + ... ({hidden} more terms)"
    return result, PLUS


def _product(p: Printer, t: Term) -> Written:
    coefficient, exponents = t.data
    pairs = list(zip(t.args, exponents, strict=True))
    shown, binding = _factors(p, abs(coefficient), pairs)
    if coefficient < 0:
        return f"-{_wrap((shown, binding), TIMES)}", TIMES if binding <= TIMES else UNARY
    return shown, binding


def place(t: Term, named: bool) -> tuple[int, int]:
    """Where a factor stands in a product: symbols, elements, functions, sums, choices."""
    if named or t.head in ("symbol", "number"):
        return 0, t.serial
    if t.head in ("index", "gather"):
        return 1, t.args[0].serial
    return {"sum": 3, "compare": 3, "logic": 3, "piecewise": 4}.get(t.head, 2), 0


def flattened(
    p: HasNames, pairs: Iterable[tuple[Term, Number]]
) -> tuple[Number, list[tuple[Term, Number]]]:
    """Factors without products among them, and the number these contain."""
    coefficient: Number = 1
    result: list[tuple[Term, Number]] = []
    stack = list(pairs)[::-1]
    while stack:
        t, e = stack.pop()
        if e == 1 and t.head == "product" and t not in p.names:
            coefficient *= t.data[0]
            stack.extend(reversed(list(zip(t.args, t.data[1], strict=True))))
        else:
            result.append((t, e))
    return coefficient, result


def _factors(p: Printer, coefficient: Number, pairs: list[tuple[Term, Number]]) -> Written:
    """A positive number times powers."""
    number, pairs = flattened(p, pairs)
    if number < 0:
        shown, binding = _factors(p, -number * coefficient, pairs)
        return f"-{_wrap((shown, binding), TIMES)}", UNARY if binding > UNARY else TIMES
    above, below = fraction(coefficient * number)
    hidden = 0
    if p.limit is not None and len(pairs) > p.limit:
        hidden = len(pairs) - p.limit
        pairs = pairs[: p.limit]
    ordered = sorted(pairs, key=lambda pair: place(pair[0], pair[0] in p.names))
    upper = [_power(p, a, e) for a, e in ordered if e > 0]
    lower = [_power(p, a, -e) for a, e in ordered if e < 0]
    if above != "1" or not upper:
        upper.insert(0, (above, ATOM))
    if below:
        lower.insert(0, (below, ATOM))
    if len(upper) == 1 and not lower:
        return upper[0]
    shown = "*".join(_wrap(w, TIMES + 1) for w in upper)
    if hidden:
        shown += f"*...({hidden} more factors)"
    if lower:
        under = "*".join(_wrap(w, TIMES + 1) for w in lower)
        shown += f"/({under})" if len(lower) > 1 else f"/{under}"
    return shown, TIMES


def _wrap(w: Written, binding: int) -> str:
    return w[0] if w[1] >= binding else f"({w[0]})"


def _power(p: Printer, base: Term, exponent: Number) -> Written:
    if exponent == 1:
        return p.written[base]
    if exponent == 0.5:
        return f"{p.prefix}sqrt({p.of(base, 0)})", ATOM
    return f"{p.of(base, POWER + 1)}**{_wrap(number_text(exponent), UNARY)}", POWER


def _general_power(p: Printer, t: Term) -> Written:
    base, exponent = t.args
    return f"{p.of(base, POWER + 1)}**{p.of(exponent, UNARY)}", POWER


def _call(p: Printer, t: Term) -> Written:
    name, attributes = t.data if isinstance(t.data, tuple) else (t.data, ())
    inside = ", ".join([*(p.of(a, 0) for a in t.args), *attributes])
    return f"{name}({inside})", ATOM


def _opaque(p: Printer, t: Term) -> Written:
    name, attributes, shapes, _ = t.data
    parts = [*(p.exact(a, s) for a, s in zip(t.args, shapes, strict=True)), *attributes]
    return f"{name}({', '.join(parts)})", ATOM


def _compare(p: Printer, t: Term) -> Written:
    a, b = t.args
    return f"{p.of(a, COMPARE + 1)} {t.data} {p.of(b, COMPARE + 1)}", COMPARE


def _logic(p: Printer, t: Term) -> Written:
    if t.data == "not":
        return f"~{p.of(t.args[0], UNARY)}", UNARY
    sign = {"and": " & ", "or": " | ", "xor": " ^ "}[t.data]
    parts = [p.of(a, BITS if a.head == "logic" and a.data == t.data else BITS + 1) for a in t.args]
    return sign.join(parts), BITS


def _piecewise(p: Printer, t: Term) -> Written:
    *pairs, otherwise = t.args
    parts = [
        f"{p.prefix}where({p.of(c, 0)}, {p.of(v, 0)}, "
        for v, c in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return "".join(parts) + p.of(otherwise, 0) + ")" * len(parts), ATOM


def _reduce(p: Printer, t: Term) -> Written:
    combine, dims, shape, keepdim = t.data
    name = REDUCTIONS.get(combine, combine)
    (x,) = t.args
    parts = [p.of(x, 0)]
    own = padded(x.shape, len(shape))
    if any(own[d] != 1 for d in range(len(shape)) if d not in dims) or keepdim:
        shown = dims if len(shape) == p.rank[x] else tuple(d - len(shape) for d in dims)
        parts.append(f"dim={shown[0] if len(shown) == 1 else shown}")
    if keepdim:
        parts.append("keepdim=True")
    return f"{name}({', '.join(parts)})", ATOM


def selection(t: Term, rank: int) -> list[str]:
    """The items of an index term as in Python's brackets, for a base of `rank` axes."""
    (base,) = t.args
    shown = [":"] * (rank - len(base.shape))
    sizes = iter(base.shape)
    for item in t.data:
        if item is None:
            shown.append("None")
            continue
        size = next(sizes)
        if isinstance(item, int):
            shown.append(str(item))
            continue
        start, step, count = item
        stop = start + step * (count - 1) + 1 if count else start
        low = str(start) if start else ""
        high = str(stop) if stop + step - 1 < size else ""
        shown.append(f"{low}:{high}" + (f":{step}" if step != 1 else ""))
    while len(shown) > 1 and shown[-1] == ":":
        shown.pop()
    return shown


def _index(p: Printer, t: Term) -> Written:
    return f"{p.of(t.args[0], POSTFIX)}[{', '.join(selection(t, p.rank[t.args[0]]))}]", POSTFIX


def _permute(p: Printer, t: Term) -> Written:
    (x,) = t.args
    lead = p.rank[x] - len(t.data)
    order = (*range(lead), *(d + lead for d in t.data))
    if order == (1, 0):
        return f"{p.of(x, POSTFIX)}.T", POSTFIX
    if order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
        return f"{p.of(x, POSTFIX)}.mT", POSTFIX
    return f"permute({p.of(x, 0)}, {order})", ATOM


def _matmul(p: Printer, t: Term) -> Written:
    a, b = t.args
    left = p.of(a, TIMES if a.head == "matmul" else TIMES + 1)
    right = p.of(b, TIMES + 1)
    if len(b.shape) == 1 and p.rank[b] > 1:
        right = p.exact(b, b.shape)
    return f"{left} @ {right}", TIMES


def _reshape(p: Printer, t: Term) -> Written:
    return f"reshape({p.of(t.args[0], 0)}, {shape_text(t.data[1])})", ATOM


def _expand(p: Printer, t: Term) -> Written:
    (x,) = t.args
    if x.head == "number" and x.data in (0, 1):
        return f"{'ones' if x.data else 'zeros'}({shape_text(t.data)})", ATOM
    inside = p.of(x, 0) if p.rank[x] <= len(t.data) else p.exact(x, x.shape)
    return f"expand({inside}, {shape_text(t.data)})", ATOM


def _embed(p: Printer, t: Term) -> Written:
    size, starts, steps, shape = t.data
    ends = [s + k * (n - 1) + 1 if n else s for s, k, n in zip(starts, steps, shape, strict=True)]
    inside = p.exact(t.args[0], shape)
    if all(k == 1 or n <= 1 for k, n in zip(steps, shape, strict=True)):
        around = tuple((s, n - e) for s, e, n in zip(starts, ends, size, strict=True))
        return f"pad({inside}, {around[0] if len(around) == 1 else around})", ATOM
    places = ", ".join(
        ":" if n == full else f"{s}:{e}" + (f":{k}" if k != 1 else "")
        for s, e, k, n, full in zip(starts, ends, steps, shape, size, strict=True)
    )
    return f"embed({inside}, [{places}], {shape_text(size)})", ATOM


def _flip(p: Printer, t: Term) -> Written:
    (x,) = t.args
    dims = tuple(d + p.rank[x] for d in t.data)
    return f"flip({p.of(x, 0)}, {dims[0] if len(dims) == 1 else dims})", ATOM


def _gather(p: Printer, t: Term) -> Written:
    data, *places = t.args
    shape, index_shape = t.data
    inside = ", ".join(p.exact(i, index_shape) for i in places)
    base = p.of(data, POSTFIX) if p.rank[data] == len(shape) else p.exact(data, shape)
    return f"{base}[{inside}]", POSTFIX


def shape_text(shape: Shape) -> str:
    """A shape as an argument."""
    return str(shape[0]) if len(shape) == 1 else str(tuple(shape))


WRITE: dict[str, Write] = {
    "number": _number,
    "symbol": _symbol,
    "sum": _sum,
    "product": _product,
    "power": _general_power,
    "call": _call,
    "compare": _compare,
    "logic": _logic,
    "piecewise": _piecewise,
    "reduce": _reduce,
    "index": _index,
    "permute": _permute,
    "matmul": _matmul,
    "reshape": _reshape,
    "expand": _expand,
    "embed": _embed,
    "flip": _flip,
    "gather": _gather,
}

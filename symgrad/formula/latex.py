r"""Formulas as LaTeX.

The tree is that of `symgrad.formula.text`. A formula is written in matrix notation where it can
be; a sum, or a formula that aligns axes (outer products, sums over some axes), is written in
components: each tensor gets index letters, ``\sum_{j} A_{ij} v_{j}``. So what is written depends
on a term and on the letters of its axes, and the memo of `LatexPrinter` is keyed by both. Start
reading at `latex`, then `LatexPrinter.write`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from symgrad.expr import Expr
from symgrad.formula.constants import fraction
from symgrad.formula.latex_names import FUNCTIONS, symbol, wordy
from symgrad.formula.names import lets
from symgrad.formula.read import Names, read
from symgrad.formula.rewrite import simplify
from symgrad.formula.text import (
    ATOM,
    BITS,
    COMPARE,
    PLUS,
    POSTFIX,
    POWER,
    TIMES,
    UNARY,
    Written,
    flattened,
    place,
    selection,
)
from symgrad.formula.tree import Number, Term, topological

Letters = tuple[str, ...] | None
"""Index letters of a term's axes; None for matrix notation."""

ALPHABET = "ijklmnpqrsuvw"
JOIN = {"add": r"\sum", "mul": r"\prod", "max": r"\max", "min": r"\min"}
JOIN |= {"or": r"\bigvee", "and": r"\bigwedge"}
COMPARISONS = {"==": "=", "!=": r"\ne", "<=": r"\le", ">=": r"\ge", "<": "<", ">": ">"}
LOGIC = {"and": r" \land ", "or": r" \lor ", "xor": r" \oplus "}
COMPONENTWISE = frozenset(
    {"number", "symbol", "sum", "product", "power", "call", "compare", "logic", "piecewise"}
    | {"reduce", "index", "permute"}
)
"""Heads that can be written in components; others get their letters around parentheses."""


def latex(expr: Expr, names: Names | None = None, limit: int | None = 200) -> str:
    r"""The formula of `expr` as LaTeX, without the dollars.

    Parameters
    ----------
    expr : Expr
    names : mapping from Expr or id(Expr) to str, optional
        As in `symgrad.formula.text.text`; ``alpha`` and ``x_1`` become :math:`\alpha`,
        :math:`x_{1}`, and a name with a backslash is taken as it is.
    limit : int or None
        The longest list of lines, or of summands in a line, that is printed in full.

    Returns
    -------
    str
        With shared intermediate terms, an ``aligned`` environment whose last line is the result.
    """
    table, terms = read([expr], names)
    (root,) = simplify(table, terms)
    bound = lets([root], names.values() if names else ())
    printer = LatexPrinter(root, bound, limit)
    lines = []
    for t, name in bound.items():
        if t is not root:
            letters = printer.letters(t)
            left = subscripted(symbol(name), letters)
            lines.append(f"{left} &= {printer.write(t, letters)[0]}")
    last = printer.write(root, printer.letters(root))[0]
    if not lines:
        return last
    if limit is not None and len(lines) > limit:
        lines = [*lines[:limit], rf"&\;\;\vdots \quad \text{{({len(lines) - limit} more terms)}}"]
    body = " \\\\\n".join([*lines, f"& {last}"])
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def subscripted(name: str, letters: Iterable[str] | None) -> str:
    """A name with index letters."""
    below = "".join(letters or ())
    if not below:
        return name
    if name.endswith("}") and "_{" in name:
        return f"{name[:-1]},{below}}}"
    return f"{name}_{{{below}}}"


class LatexPrinter:
    """LaTeX of terms, in components or not.

    Attributes
    ----------
    names : dict of Term to str
        Terms printed by a name.
    components : bool
        Whether the whole formula is written in components.
    hadamard : bool
        Whether elementwise products need a sign of their own, since there are matrix products.
    """

    def __init__(self, root: Term, names: dict[Term, str], limit: int | None) -> None:
        self.names = names
        self.limit = limit
        order = topological([root])
        self.components = any(_aligns(t) for t in order)
        self.hadamard = any(t.head == "matmul" for t in order) and not self.components
        self.memo: dict[tuple[Term, Letters], Written] = {}

    def letters(self, t: Term) -> Letters:
        """The letters of a whole line."""
        return tuple(ALPHABET[: len(t.shape)]) if self.components else None

    def write(self, t: Term, letters: Letters) -> Written:
        """The LaTeX of `t` itself, even if it has a name."""
        stack = _below(t, letters)
        while stack:
            key = stack[-1]
            if key in self.memo:
                stack.pop()
                continue
            term, inner = key
            if term in self.names:
                self.memo[key] = subscripted(symbol(self.names[term]), inner), ATOM
                continue
            missing = [(a, k) for a, k in _below(term, inner) if (a, k) not in self.memo]
            if missing:
                stack.extend(missing)
                continue
            self.memo[key] = self.made(term, inner)
        return self.made(t, letters)

    def made(self, t: Term, letters: Letters) -> Written:
        """The LaTeX of `t`, all below it being written."""
        if letters is not None and t.head not in COMPONENTWISE:
            return rf"\left({self.memo[t, None][0]}\right)" + f"_{{{''.join(letters)}}}", ATOM
        return WRITE.get(t.head, _opaque)(self, t, letters)

    def of(self, t: Term, letters: Letters, binding: int = 0) -> str:
        """The LaTeX of an argument, in parentheses where it binds less than `binding`."""
        shown, own = self.memo[t, _aligned(t, letters)]
        return shown if own >= binding else rf"\left({shown}\right)"


def _aligns(t: Term) -> bool:
    """Whether `t` combines axes in a way that only index letters show."""
    if t.head == "reduce":
        return bool(t.shape) and (t.args[0].head != "expand")
    return t.head == "index" and None in t.data


def _aligned(t: Term, letters: Letters) -> Letters:
    """The letters of an operand under broadcasting."""
    if letters is None:
        return None
    return letters[len(letters) - len(t.shape) :]


def _fresh(letters: Iterable[str], n: int) -> list[str]:
    """The first `n` letters that are not in use."""
    used = set(letters)
    found = [c for c in ALPHABET if c not in used]
    found += [f"i_{{{k}}}" for k in range(n)]
    return found[:n]


def _below(t: Term, letters: Letters) -> list[tuple[Term, Letters]]:
    """The arguments of `t` and the letters they are written with."""
    if t.head == "reduce":
        return [(t.args[0], _bound(t, letters)[0])]
    if letters is None or t.head in ("number", "symbol"):
        return [(a, None) for a in t.args]
    if t.head not in COMPONENTWISE:
        return [(t, None)]
    if t.head == "permute":
        every = ("0",) * (len(t.data) - len(letters)) + letters
        inner = [every[t.data.index(d)] for d in range(len(t.args[0].shape))]
        return [(t.args[0], tuple(inner))]
    if t.head == "index":
        return [(t.args[0], _indices(t, letters))]
    return [(a, _aligned(a, letters)) for a in t.args]


def _bound(t: Term, letters: Letters) -> tuple[tuple[str, ...], list[str]]:
    """The letters of a reduction's argument, and those of them that it runs over."""
    _, dims, shape, keepdim = t.data
    (x,) = t.args
    outer = list(letters or ())
    free = [d for d in range(len(shape)) if d not in dims]
    if keepdim:
        axes = dict(zip(range(len(shape) - 1, -1, -1), reversed(outer), strict=False))
        given = {d: axes[d] for d in free if d in axes}
    else:
        given = dict(zip(reversed(free), reversed(outer), strict=False))
    rest = [d for d in range(len(shape)) if d not in given]
    new = dict(zip(rest, _fresh(outer, len(rest)), strict=True))
    inside = {**given, **new}
    every = tuple(inside[d] for d in range(len(shape)))
    return every[len(shape) - len(x.shape) :], [inside[d] for d in dims]


def _indices(t: Term, letters: tuple[str, ...]) -> tuple[str, ...]:
    """The components of the base that an index term takes."""
    kept = [i for i in t.data if not isinstance(i, int)]
    given = iter(letters[len(letters) - len(kept) :] if len(kept) <= len(letters) else letters)
    result: list[str] = []
    for item in t.data:
        if item is None:
            next(given)
        elif isinstance(item, int):
            result.append(str(item))
        else:
            start, step, _ = item
            letter = next(given)
            shown = letter if step == 1 else f"{step}{letter}"
            result.append(f"{shown}+{start}" if start else shown)
    mixed = any(len(r) > 1 for r in result) and len(result) > 1
    return tuple(r + "," if mixed and k < len(result) - 1 else r for k, r in enumerate(result))


def _number(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    return _digits(t.data)


def _digits(value: Number) -> Written:
    negative = not isinstance(value, bool) and value < 0
    above, below = (_in_latex(part) for part in fraction(-value if negative else value))
    binding = ATOM
    if below:
        above = rf"\frac{{{above}}}{{{below}}}"
    elif r"\cdot" in above:
        binding = TIMES
    return (f"-{above}", min(UNARY, binding)) if negative else (above, binding)


def _in_latex(number: str) -> str:
    """A number as `symgrad.formula.constants` writes it."""
    if number in ("True", "False", "nan"):
        return rf"\mathrm{{{number}}}"
    if "e" in number:
        mantissa, exponent = number.split("e")
        return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
    named = number.replace("inf", r"\infty").replace("*pi", r" \pi").replace("log", r"\log ")
    named = re.sub(r"(?<!\\)\bpi", r"\\pi", named)
    return re.sub(r"sqrt\((.*)\)", r"\\sqrt{\1}", named)


def _symbol(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    name = t.data[0]
    if name.startswith("arange(") and letters:
        return letters[0], ATOM
    if letters:
        letters = tuple("0" if n == 1 else c for c, n in zip(letters, t.shape, strict=True))
    return subscripted(symbol(name), letters), ATOM


def _sum(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    constant, coefficients = t.data
    parts = list(zip(coefficients, t.args, strict=True))
    hidden = 0
    if p.limit is not None and len(parts) > p.limit:
        hidden = len(parts) - p.limit
        parts = parts[: p.limit]
    pieces = [(c < 0, _scaled(p, abs(c), a, letters)) for c, a in parts]
    if constant:
        shown = (constant < 0, _digits(abs(constant)))
        pieces.insert(0 if pieces[0][0] and not shown[0] else len(pieces), shown)
    first = next((k for k, (negative, _) in enumerate(pieces) if not negative), 0)
    pieces.insert(0, pieces.pop(first))
    result = ""
    for k, (negative, (piece, binding)) in enumerate(pieces):
        if binding <= PLUS and (negative or binding < PLUS):
            piece = rf"\left({piece}\right)"
        if k == 0:
            result = f"-{piece}" if negative else piece
        else:
            result += f" - {piece}" if negative else f" + {piece}"
    if hidden:
        result += rf" + \cdots \text{{({hidden} more terms)}}"
    return result, PLUS


def _scaled(p: LatexPrinter, coefficient: Number, t: Term, letters: Letters) -> Written:
    if t.head == "product" and t not in p.names:
        pairs = list(zip(t.args, t.data[1], strict=True))
        return _factors(p, coefficient * t.data[0], pairs, letters)
    return _factors(p, coefficient, [(t, 1)], letters)


def _product(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    coefficient, exponents = t.data
    pairs = list(zip(t.args, exponents, strict=True))
    shown, binding = _factors(p, abs(coefficient), pairs, letters)
    if coefficient < 0:
        return f"-{_wrapped(shown, binding)}", TIMES
    return shown, binding


def _wrapped(shown: str, binding: int) -> str:
    return shown if binding >= TIMES else rf"\left({shown}\right)"


def _factors(
    p: LatexPrinter, coefficient: Number, pairs: list[tuple[Term, Number]], letters: Letters
) -> Written:
    inner, pairs = flattened(p, pairs)
    if inner < 0:
        shown, binding = _factors(p, -inner * coefficient, pairs, letters)
        return f"-{_wrapped(shown, binding)}", TIMES
    coefficient *= inner
    ordered = sorted(pairs, key=lambda pair: place(pair[0], pair[0] in p.names))
    upper = [(_power(p, a, e, letters), a) for a, e in ordered if e > 0]
    lower = [(_power(p, a, -e, letters), a) for a, e in ordered if e < 0]
    alone = fraction(coefficient)[0] == "1" and bool(lower or fraction(coefficient)[1])
    above = _joined(p, upper, alone)
    number, divisor = (_in_latex(part) for part in fraction(coefficient))
    if number != "1" or not upper:
        above = (
            f"{number} {above}".rstrip() if not above[:1].isdigit() else rf"{number} \cdot {above}"
        )
    if not lower and not divisor:
        return (above, TIMES) if len(upper) != 1 or number != "1" else upper[0][0]
    below = _joined(p, lower, not divisor)
    return rf"\frac{{{above}}}{{{f'{divisor} {below}'.strip()}}}", TIMES


def _joined(p: LatexPrinter, factors: list[tuple[Written, Term]], fraction: bool) -> str:
    """Factors side by side; alone in a fraction they need no parentheses."""
    if fraction and len(factors) == 1:
        return factors[0][0][0]
    result = ""
    arrays = False
    for k, ((shown, binding), t) in enumerate(factors):
        tail = t.head == "reduce" and k < len(factors) - 1
        tail = tail or (t.head == "matmul" and t not in p.names and len(factors) > 1)
        shown = shown if binding >= TIMES and not tail else rf"\left({shown}\right)"
        dot = p.hadamard and arrays and bool(t.shape)
        result += (r" \odot " if dot else " ") + shown if result else shown
        arrays = arrays or bool(t.shape)
    return result


def _power(p: LatexPrinter, base: Term, exponent: Number, letters: Letters) -> Written:
    if exponent == 1:
        return p.memo[base, _aligned(base, letters)]
    if exponent == 0.5:
        return rf"\sqrt{{{p.of(base, letters)}}}", ATOM
    shown = _digits(exponent)[0]
    if base.head == "call" and base not in p.names and isinstance(base.data, str):
        style = FUNCTIONS.get(base.data, "")
        if style.endswith("#") and base.data not in ("exp",):
            inside = p.of(base.args[0], _aligned(base, letters))
            return rf"{style[:-1]}^{{{shown}}}\left({inside}\right)", POWER
    return rf"{p.of(base, letters, POWER + 1)}^{{{shown}}}", POWER


def _general_power(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    base, exponent = t.args
    return f"{p.of(base, letters, POWER + 1)}^{{{p.of(exponent, letters)}}}", POWER


def _call(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    name, attributes = t.data if isinstance(t.data, tuple) else (t.data, ())
    style = FUNCTIONS.get(name)
    parts = [p.of(a, letters) for a in t.args]
    if style is not None and not attributes:
        if style.endswith("#"):
            return rf"{style[:-1]}\left({', '.join(parts)}\right)", ATOM
        shown, binding = style.replace("@", parts[0]), ATOM
        return (shown, PLUS) if name == "expm1" else (shown, binding)
    return rf"{wordy(name)}\left({', '.join([*parts, *map(wordy, attributes)])}\right)", ATOM


def _compare(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    a, b = (p.of(x, letters, COMPARE + 1) for x in t.args)
    return f"{a} {COMPARISONS[t.data]} {b}", COMPARE


def _logic(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    if t.data == "not":
        return rf"\lnot {p.of(t.args[0], letters, UNARY)}", UNARY
    parts = [p.of(a, letters, 0 if a.head == "compare" else BITS + 1) for a in t.args]
    return LOGIC[t.data].join(parts), BITS


def _piecewise(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    *pairs, otherwise = t.args
    rows = [
        rf"{p.of(v, letters)} & \text{{if }} {p.of(c, letters)}"
        for v, c in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    rows.append(rf"{p.of(otherwise, letters)} & \text{{otherwise}}")
    body = r" \\ ".join(rows)
    return rf"\begin{{cases}} {body} \end{{cases}}", ATOM


def _reduce(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    combine, dims, shape, _ = t.data
    inner, over = _bound(t, letters)
    body, binding = p.memo[t.args[0], inner]
    if binding <= PLUS:
        body = rf"\left({body}\right)"
    below = "".join(over)
    if combine == "mean":
        count = 1
        for d in dims:
            count *= shape[d]
        return rf"\frac{{1}}{{{count}}} \sum_{{{below}}} {body}", TIMES
    return rf"{JOIN.get(combine, wordy(combine))}_{{{below}}} {body}", TIMES


def _index(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    if letters is not None:
        return p.memo[t.args[0], _indices(t, letters)]
    shown = [i.replace("None", r"\mathrm{new}") for i in selection(t, len(t.args[0].shape))]
    return f"{p.of(t.args[0], None, POSTFIX)}_{{{', '.join(shown)}}}", ATOM


def _permute(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    if letters is not None:
        return p.memo[_below(t, letters)[0]]
    order = t.data
    base = p.of(t.args[0], None, POSTFIX)
    if order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
        return rf"{base}^{{\top}}", POWER
    return rf"\operatorname{{permute}}_{{{','.join(map(str, order))}}}\left({base}\right)", ATOM


def _matmul(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    a, b = t.args
    left, right = p.of(a, None, TIMES), p.of(b, None, TIMES + 1)
    if len(a.shape) == 1:
        left = rf"{p.of(a, None, POSTFIX)}^{{\top}}"
    return f"{left} {right}", TIMES


def _opaque(p: LatexPrinter, t: Term, letters: Letters) -> Written:
    if t.head == "expand" and t.args[0].head == "number" and t.args[0].data in (0, 1):
        return rf"\mathbf{{{t.args[0].data}}}", ATOM
    parts = [p.of(a, None) for a in t.args]
    if t.head == "gather":
        return rf"{p.of(t.args[0], None, POSTFIX)}_{{{', '.join(parts[1:])}}}", ATOM
    name = {"embed": "pad"}.get(t.head, t.head)
    attributes: tuple[str, ...] = ()
    if t.head == "opaque":
        name, attributes = t.data[:2]
    return rf"{wordy(name)}\left({', '.join([*parts, *map(wordy, attributes)])}\right)", ATOM


WRITE: dict[str, Callable[[LatexPrinter, Term, Letters], Written]] = {
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
}

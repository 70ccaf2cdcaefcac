"""C expressions of scalar terms, one assignment per shared or long term.

Start reading at `assignments`.
"""

from __future__ import annotations

from collections.abc import Sequence

from symgrad.formula.tree import Number, Term, topological, use_counts

MATH_H = {
    name: name
    for name in (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh "
        "asinh acosh atanh erf erfc lgamma floor ceil trunc hypot cbrt"
    ).split()
}
MATH_H |= {"abs": "fabs", "round": "rint", "copysign": "copysign", "fmod": "fmod"}
HELPERS = {
    "maximum": "static double maximum(double a, double b) { return a > b || a != a ? a : b; }",
    "minimum": "static double minimum(double a, double b) { return a < b || a != a ? a : b; }",
    "sign": "static double sign(double a) { return (a > 0) - (a < 0); }",
    "remainder": "static double modulo(double a, double b) { return a - floor(a / b) * b; }",
    "sigmoid": (
        "static double sigmoid(double a)\n{\n    double e = exp(-fabs(a));\n"
        "    return a >= 0 ? 1 / (1 + e) : e / (1 + e);\n}"
    ),
}
"""Functions that C's library lacks, each written out in the files that call it."""
KNOWN = frozenset(MATH_H) | frozenset(HELPERS)
CASTS = {
    "bool": "({0} != 0)",
    **{f"int{n}": "trunc({0})" for n in (8, 16, 32, 64)},
    "uint8": "trunc({0})",
}
LONG = 20
"""A term of more operations than this gets a variable."""


def assignments(outputs: Sequence[Term]) -> tuple[list[str], list[str]]:
    """Statements that compute `outputs`, and the helpers they call.

    Raises
    ------
    NotImplementedError
        For a function without a counterpart.
    """
    order = topological(outputs)
    uses = use_counts(order, outputs)
    shown: dict[Term, str] = {}
    size: dict[Term, int] = {}
    lines: list[str] = []
    helpers: set[str] = set()
    count = 0
    for t in order:
        code = _code(t, [shown[a] for a in t.args])
        if t.head == "call" and t.data in HELPERS:
            helpers.add(t.data)
        size[t] = 1 + sum(size[a] for a in t.args)
        if t.args and (uses[t] > 1 or size[t] > LONG):
            lines.append(f"double t{count} = {code};")
            code = f"t{count}"
            count += 1
            size[t] = 1
        shown[t] = code
    lines += [f"out[{k}] = {shown[t]};" for k, t in enumerate(outputs)]
    return lines, [h for h in HELPERS if h in helpers]


def _code(t: Term, args: list[str]) -> str:
    """One operation; whatever contains an operator is in parentheses."""
    if t.head == "number":
        return _number(t.data)
    if t.head == "symbol":
        return {"pi": repr(3.141592653589793), "e": repr(2.718281828459045)}.get(
            t.data[0], t.data[0]
        )
    if t.head == "sum":
        constant, factors = t.data
        parts = [_scaled(c, a) for c, a in zip(factors, args, strict=True)]
        if constant:
            parts.append(_number(constant))
        return f"({' + '.join(parts)})"
    if t.head == "product":
        return _product(t.data[0], list(zip(args, t.data[1], strict=True)))
    if t.head == "power":
        exponent = t.args[1]
        simple = {2: "{0} * {0}", 1: "{0}", -1: "1.0 / {0}", 0.5: "sqrt({0})"}
        if exponent.head == "number" and exponent.data in simple and _atomic(args[0]):
            return f"({simple[exponent.data].format(args[0])})"
        return f"pow({args[0]}, {args[1]})"
    if t.head == "compare":
        return f"({args[0]} {t.data} {args[1]})"
    if t.head == "logic":
        if t.data == "not":
            return f"(!{args[0]})"
        return f"({args[0]} {({'and': '&&', 'or': '||', 'xor': '!='})[t.data]} {args[1]})"
    if t.head == "piecewise":
        pairs = zip(args[:-1:2], args[1::2], strict=True)
        return "(" + "".join(f"{c} ? {v} : " for v, c in pairs) + args[-1] + ")"
    if t.head == "call" and isinstance(t.data, str):
        if t.data in CASTS:
            return CASTS[t.data].format(args[0])
        function = "modulo" if t.data == "remainder" else MATH_H.get(t.data, t.data)
        if t.data in KNOWN:
            return f"{function}({', '.join(args)})"
    name = t.data if isinstance(t.data, str) else t.head
    raise NotImplementedError(
        f"to_c: no counterpart in C's maths library (got {name}); write it with other functions"
    )


def _atomic(code: str) -> bool:
    return code.replace("[", "").replace("]", "").isalnum()


def _number(value: Number) -> str:
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    shown = repr(float(value))
    return f"({shown})" if shown.startswith("-") else shown


def _scaled(factor: Number, code: str) -> str:
    if factor == 1:
        return code
    return f"(-{code})" if factor == -1 else f"({_number(factor)} * {code})"


def _product(coefficient: Number, powers: list[tuple[str, Number]]) -> str:
    upper = [_power(a, e) for a, e in powers if e > 0]
    lower = [_power(a, -e) for a, e in powers if e < 0]
    code = " * ".join(upper) if upper else "1.0"
    if lower:
        code += " / " + (lower[0] if len(lower) == 1 else f"({' * '.join(lower)})")
    if coefficient == -1:
        return f"(-({code}))" if len(powers) > 1 or lower else f"(-{code})"
    return f"({code})" if coefficient == 1 else f"({_number(coefficient)} * {code})"


def _power(code: str, exponent: Number) -> str:
    if exponent == 1:
        return code
    return f"sqrt({code})" if exponent == 0.5 else f"pow({code}, {_number(exponent)})"

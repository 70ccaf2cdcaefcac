"""What the checks find for one op, as text: ``python -m symgrad.testing OP``.

Start reading at `report`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from symgrad import dtypes
from symgrad.calculus import pullback
from symgrad.dtypes import DType
from symgrad.expr import Expr
from symgrad.family import Elementwise
from symgrad.formula.text import text
from symgrad.op import input_node
from symgrad.testing.bits import check_bits
from symgrad.testing.derivatives import Scalar, check_derivatives, has_derivative, projection
from symgrad.testing.mutants import surviving_mutants
from symgrad.testing.samples import FLOATS, Subject, call, draw, floats_matter, nodes, subject
from symgrad.testing.surface import check_compiled, check_surface, public_function
from symgrad.testing.values import check_error, check_special, check_value


def _shapes(parts: list[Expr]) -> str:
    return ", ".join(f"{p.dtype.name}{list(p.shape)}" for p in parts)


def _outcome(check: Callable[..., Any], *args: Any) -> str:
    """The word ok, with the count of orders if there is one, or the first lines of the failure."""
    try:
        found = check(*args)
    except Exception as error:  # a report shows any failure, whatever its class
        lines = str(error).splitlines() or [""]
        return f"FAILED {type(error).__name__}: " + "\n        ".join(lines[:9])
    return "ok" if found is None else f"ok, {found} orders"


def _formulas(s: Subject) -> Iterator[str]:
    """The value and the gradient of the first sample with derivatives, as text."""
    for number in range(len(s.samples)):
        drawn = draw(s, number, dtypes.float64)
        scalar: Scalar | None = projection(s, drawn, s.seed())
        if scalar is None:
            continue
        leaves = nodes(drawn.arrays)
        outputs = call(s, drawn, leaves)
        names: dict[Expr, Any] = {n: f"x{k}" for k, n in enumerate(leaves)}
        yield f"value     {text(outputs[0], names)}"
        g = input_node(outputs[0].shape, outputs[0].dtype)
        names[g] = "g"
        wanted = [n for n in leaves if n.requires_grad]
        for n, part in zip(wanted, pullback(outputs[:1], [g], wanted), strict=True):
            if part is not None:
                yield f"d/d{names[n]}     {text(part, names)}"
        return


def _samples(s: Subject) -> Iterator[str]:
    for number, case in enumerate(s.samples):
        floats: tuple[DType, ...] = FLOATS if floats_matter(case) else FLOATS[1:]
        for floating in floats:
            drawn = draw(s, number, floating)
            leaves = nodes(drawn.arrays)
            try:
                made = _shapes(call(s, drawn, leaves))
            except Exception as error:  # shown, and found again by the checks below
                made = f"{type(error).__name__}: {error}"
            yield f"{number}  {case!r}: {_shapes(leaves)} -> {made}"
            yield f"   value        {_outcome(check_value, s, number, floating)}"
            yield f"   bits         {_outcome(check_bits, s, number, floating)}"
        if has_derivative(s, number):
            yield f"   derivatives  {_outcome(check_derivatives, s, number)}"
        if public_function(s) is not None:
            yield f"   surface      {_outcome(check_surface, s, number, dtypes.float64)}"
            yield f"   compiled     {_outcome(check_compiled, s, number, dtypes.float64)}"


def report(name: str) -> str:
    """Everything that the checks say about an op or composite.

    Raises
    ------
    KeyError
        If there is none of this name.
    """
    s = subject(name)
    lines = [f"{s.name}: {s.family}{', rule ' + s.rule if s.rule else ''}", f"    {s.doc.strip()}"]
    lines += ["", "formula"] + [f"    {line}" for line in _formulas(s)]
    lines += ["", "samples"] + [f"    {line}" for line in _samples(s)]
    if isinstance(s.op, Elementwise) and s.op.accepts != "integer":
        for floating in FLOATS:
            outcome = _outcome(check_special, s, 0, floating)
            lines.append(f"    special values in {floating.name}: {outcome}")
    for number, case in enumerate(s.errors):
        lines.append(f"    error sample {case!r}: {_outcome(check_error, s, number)}")
    if s.rule not in ("", "nodiff"):
        tried, left = surviving_mutants(s)
        lines += ["", f"wrong rules caught: {tried - len(left)} of {tried} {', '.join(left)}"]
    return "\n".join(lines)

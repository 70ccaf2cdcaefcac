"""Formulas as source code: a NumPy function, or one C function without dependencies.

Source is written from the strict terms, op by op as the expression was recorded, so it computes
what the expression computes; no algebra for reading is applied. NumPy source works on arrays;
C source writes small tensors out element by element (`symgrad.formula.elements`). Start reading
at `to_numpy_source` and `to_c`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.calculus import pullback
from symgrad.expr import Expr
from symgrad.formula.c_printer import HELPERS, KNOWN, assignments
from symgrad.formula.elements import objects, unroll
from symgrad.formula.names import lets
from symgrad.formula.notation import Notation, written
from symgrad.formula.numpy_printer import FUNCTIONS, WRITE
from symgrad.formula.read import Names, is_leaf, read
from symgrad.formula.text import Printer
from symgrad.formula.tree import Table, Term, minimal
from symgrad.op import constant
from symgrad.ops.movement import full, narrow_step, reshape


def to_numpy_source(expr: Expr, names: Names | None = None, name: str = "f") -> str:
    """A Python function that computes `expr` with NumPy (and SciPy's special functions).

    Parameters
    ----------
    expr : Expr
    names : mapping from Expr or id(Expr) to str, optional
        Names of leaves, which become the arguments in this order; other leaves that are not
        numbers follow as ``x0, x1, ...``.
    name : str
        What to call the function.

    Returns
    -------
    str
    """
    table, terms = read([expr], names, FUNCTIONS)
    roots = terms
    bound = lets(roots, names.values() if names else ())
    printer = Printer(bound, None, WRITE, "np.")
    printer.visit(roots)
    result = bound.get(roots[0]) or printer.of(roots[0], 0)
    if roots[0].shape != minimal(expr.shape):
        inside = (
            result
            if printer.rank[roots[0]] <= expr.ndim
            else printer.exact(roots[0], roots[0].shape)
        )
        result = f"np.broadcast_to({inside}, {tuple(expr.shape)})"
    elif printer.rank[roots[0]] != expr.ndim:
        result = f"np.reshape({result}, {tuple(expr.shape)})"
    leaves = [t.data[0] for t in table.made.values() if t.head == "symbol"]
    given = [v for v in dict.fromkeys(names.values() if names else ()) if v in leaves]
    others = [v for v in leaves if v not in given and re.fullmatch(r"[xc]\d+", v)]
    lines = [f"    {n} = {printer.body[t]}" for t, n in bound.items()]
    body = "\n".join([*lines, f"    return {result}"])
    imports = ["import numpy as np"]
    if "special." in body:
        imports.append("from scipy import special")
    head = "\n".join(imports)
    return f"{head}\n\n\ndef {name}({', '.join([*given, *others])}):\n{body}\n"


def to_c(
    outputs: Expr | Sequence[Expr], inputs: Sequence[Expr], name: str = "f", derivatives: int = 0
) -> str:
    """One C function ``void name(const double *in, double *out)``.

    ``in`` holds the elements of all inputs, one input after the other in row-major order; ``out``
    receives those of all outputs in the same way. All arithmetic is in double precision.

    Parameters
    ----------
    outputs : Expr or sequence of Expr
    inputs : sequence of Expr
        Leaves (or intermediate expressions) that become arguments. Every other leaf needs a
        value, which is written into the source.
    name : str
    derivatives : int
        1 appends the gradient of the output, 2 its gradient and its Hessian, row by row; the
        output must then be a single 0-d expression.

    Returns
    -------
    str
        A self-contained C99 file; link with the maths library.

    Raises
    ------
    NotImplementedError
        If a function has no counterpart in C's maths library.
    """
    roots = [outputs] if isinstance(outputs, Expr) else list(outputs)
    if derivatives:
        if len(roots) != 1 or roots[0].shape:
            raise ValueError(
                f"to_c: derivatives need one 0-d output (got {roots}); sum it or leave them out"
            )
        roots = [*roots, *_derivatives(roots[0], inputs, derivatives)]
    table = Table()
    elements = _elements(table, roots, inputs)
    flat = [table.term(e) for array in elements for e in array.ravel()]
    lines, helpers = assignments(flat)
    top = "".join(HELPERS[h] + "\n\n" for h in helpers)
    body = "\n".join(f"    {line}" for line in lines)
    return f"#include <math.h>\n\n{top}void {name}(const double *in, double *out)\n{{\n{body}\n}}\n"


def _derivatives(root: Expr, inputs: Sequence[Expr], order: int) -> list[Expr]:
    """Gradient, and Hessian row by row, each as expressions in the order of the inputs."""
    if order > 2:
        raise ValueError(
            f"to_c: derivatives goes up to 2 (got {order}); pass further ones as outputs"
        )
    first = _gradient(root, inputs)
    rows = first
    if order == 1:
        return rows
    result = list(rows)
    for g, x in zip(rows, inputs, strict=True):
        for place in np.ndindex(x.shape):
            starts, ones = tuple(place), (1,) * x.ndim
            element = (
                reshape(narrow_step(g, starts=starts, steps=ones, counts=ones), ()) if x.ndim else g
            )
            result += _gradient(element, inputs)
    return result


def _gradient(root: Expr, inputs: Sequence[Expr]) -> list[Expr]:
    found = pullback([root], [constant(1.0, root.dtype)], inputs)
    zeros = [full(0.0, x.shape, root.dtype) for x in inputs]
    return [z if g is None else g for g, z in zip(found, zeros, strict=True)]


def _elements(table: Table, roots: Sequence[Expr], inputs: Sequence[Expr]) -> list[np.ndarray]:
    """Terms of every element of `roots`."""
    notation = Notation(table)
    place: dict[int, int] = {}
    total = 0
    for x in inputs:
        place[id(x)] = total
        total += x.size

    def leaf(node: Expr) -> np.ndarray | None:
        if id(node) in place:
            start = place[id(node)]
            return objects([table.symbol(f"in[{start + k}]") for k in range(node.size)], node.shape)
        if not is_leaf(node):
            return None
        if node.value is None:
            raise ValueError(f"to_c: a leaf has no value (got {node!r}); list it in inputs")
        values = np.asarray(node.value).ravel().tolist()
        return objects([table.number(v) for v in values], node.shape)

    def scalar(node: Expr, args: tuple[Any, ...]) -> Term:
        return written(notation, node, tuple(table.term(a) for a in args), KNOWN)

    join = {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "max": lambda x, y: table.elementwise("call", (x, y), "maximum"),
        "min": lambda x, y: table.elementwise("call", (x, y), "minimum"),
        "or": lambda x, y: table.elementwise("logic", (x, y), "or"),
        "and": lambda x, y: table.elementwise("logic", (x, y), "and"),
    }
    return unroll(roots, leaf, scalar, join)

"""From expressions to terms: what each family of ops looks like in a formula.

Elementwise ops say it themselves, through their ``sympy`` form (`symgrad.formula.notation`);
movements, reductions and contractions go through `symgrad.formula.arrays`. An op that is not
known here prints by its name. Start reading at `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from symgrad.expr import Expr, ancestors
from symgrad.family import Index
from symgrad.formula import arrays
from symgrad.formula.notation import Notation, show, written
from symgrad.formula.tree import Table, Term, minimal
from symgrad.op import CONSTANT, Op
from symgrad.ops import create, movement

Names = Mapping[Any, str]
"""Names of leaves or intermediate expressions, by expression or by its id."""


def named(names: Names | None, node: Expr) -> str | None:
    """The name given to `node`."""
    if not names:
        return None
    found = names.get(id(node))
    return names.get(node) if found is None else found


def is_leaf(node: Expr) -> bool:
    """Whether a formula ends at `node`: an input, or a value whose history was let go."""
    return node.op.family == "leaf" or (not node.args and node.op.family != "create")


def number_of(node: Expr) -> bool | int | float | complex | None:
    """The number that a constant, or a 0-d leaf without gradient, stands for."""
    if node.op is not CONSTANT and (node.shape or node.requires_grad or node.value is None):
        return None
    value: bool | int | float | complex = np.asarray(node.value).item()
    return value


def read(
    roots: Sequence[Expr], names: Names | None = None, known: Collection[str] | None = None
) -> tuple[Table, list[Term]]:
    """Strict terms of `roots`.

    Parameters
    ----------
    roots : sequence of Expr
    names : mapping, optional
        Expressions to print by a name, leaves or intermediate, by expression or its id.
    known : collection of str, optional
        Functions that may be called by name; others are spelled out by their forms.
    """
    table = Table()
    notation = Notation(table)
    nodes = ancestors(roots, lambda n: not is_leaf(n) and named(names, n) is None)
    fresh = _fresh_names(names)
    terms: dict[int, Term] = {}
    for node in nodes:
        name = named(names, node)
        if name is None and is_leaf(node):
            value = number_of(node)
            if isinstance(value, complex) and value.imag:
                # As Python writes it, so that the text can be evaluated.
                terms[id(node)] = table.symbol(str(value), ())
                continue
            if value is not None:
                terms[id(node)] = table.number(value.real if isinstance(value, complex) else value)
                continue
            name = fresh("x" if node.requires_grad else "c")
        if name is not None:
            terms[id(node)] = table.symbol(name, node.shape)
        else:
            args = tuple([terms[id(a)] for a in node.args])
            terms[id(node)] = _term(notation, node, args, known)
    return table, [terms[id(r)] for r in roots]


def _fresh_names(names: Names | None) -> Callable[[str], str]:
    """Names x0, x1, ... and c0, c1, ... that the user did not give."""
    taken = set(names.values()) if names else set()
    next_number: dict[str, int] = {}

    def fresh(letter: str) -> str:
        while True:
            n = next_number.get(letter, 0)
            next_number[letter] = n + 1
            if f"{letter}{n}" not in taken:
                return f"{letter}{n}"

    return fresh


def _term(
    notation: Notation, node: Expr, args: tuple[Term, ...], known: Collection[str] | None
) -> Term:
    op = node.op
    table = notation.table
    if op.family == "elementwise":
        return written(notation, node, args, known)
    if op.family == "alias":
        return _alias(table, args, node)
    special = _MOVEMENTS.get(op)
    if special is not None:
        return special(table, args, node)
    if op.family == "reduce" and len(args) == 1:
        return arrays.reduce(table, args[0], op.combine, node.attrs, node.args[0].shape)  # type: ignore[attr-defined]
    if op.family == "contract":
        left, right = node.args
        return arrays.matmul(table, args[0], left.shape, args[1], right.shape)
    if isinstance(op, Index) and op.reads:
        return arrays.gather(table, args, node.args[0].shape, node.args[1].shape)
    if op is create.iota:
        return table.make("symbol", (), (f"arange({node.attrs[0]})", 1), minimal(node.shape))
    name = "cat" if op.pieces and not op.gaps else op.name
    if op.family == "cumulative":
        name = op.name.removesuffix("_axis")
    attributes = tuple(f"{k}={show(v)}" for k, v in node.attributes().items() if v is not None)
    shapes = tuple(a.shape for a in node.args)
    return arrays.opaque(table, args, name, attributes, shapes, node.shape)


def _alias(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    """The value of the first argument, by the name of the function that made it if it has one."""
    given = node.attributes()
    name = given.get("name")
    if name is None:
        return args[0]
    shown = tuple(show(d) for d in given.get("detail", ()))
    x = node.args[1]
    return arrays.opaque(table, args[1:], name, shown, (x.shape,), node.shape)


def _reshape(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    return arrays.reshape(table, args[0], node.args[0].shape, node.shape)


def _permute(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    return arrays.permute(table, args[0], node.attrs[0])


def _expand(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    return args[0]


def _narrow(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    return arrays.narrow(table, args[0], *node.attrs)


def _embed(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    size, starts, steps = node.attrs
    return arrays.embed(table, args[0], size, starts, steps, node.args[0].shape)


def _flip(table: Table, args: tuple[Term, ...], node: Expr) -> Term:
    rank = len(node.shape)
    return arrays.flip(table, args[0], tuple(d - rank for d in node.attrs[0]))


_MOVEMENTS: dict[Op, Callable[[Table, tuple[Term, ...], Expr], Term]] = {
    movement.reshape: _reshape,
    movement.permute: _permute,
    movement.expand: _expand,
    movement.narrow_step: _narrow,
    movement.embed: _embed,
    movement.flip: _flip,
}
"""Movements with a notation of their own; others print by name."""

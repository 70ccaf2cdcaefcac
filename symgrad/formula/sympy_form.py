"""Formulas as SymPy expressions, and SymPy expressions as expressions.

`to_sympy` asks each op for its own form (``op.sympy(sp, ...)``) and simplifies nothing beyond what
SymPy's constructors do. Tensors stand as scalar symbols, one per leaf, which is right as long as
everything is elementwise; named by arrays of symbols they are written out element by element.
With ``cse=True`` the sharing of the graph itself becomes the list of replacements. Start reading
at `to_sympy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from symgrad.expr import Expr, ancestors
from symgrad.formula.constants import KNOWN
from symgrad.formula.elements import objects, unroll
from symgrad.formula.read import is_leaf, number_of
from symgrad.formula.tree import Shape, broadcast, minimal, padded
from symgrad.ops import movement

DEEP = 20
"""With cse, nesting deeper than this is cut by a replacement: SymPy recurses on depth."""


def to_sympy(expr: Expr, names: Mapping[Any, Any] | None = None, cse: bool = False) -> Any:
    """The formula of `expr` in SymPy.

    Parameters
    ----------
    expr : Expr
    names : mapping from Expr or id(Expr), optional
        What stands for a leaf or an intermediate expression: a SymPy expression, a name (a real
        symbol is made of it), or, to write tensors out, a list, array, matrix or MatrixSymbol
        with one expression per element. Other leaves are called ``x0, x1, ...``; numbers without
        gradient stay numbers.
    cse : bool
        Return shared parts as replacements, in linear time however much is shared.

    Returns
    -------
    sympy expression, matrix or array; or (replacements, [expression]) as `sympy.cse`
        The formula. Written-out tensors of two axes are matrices, others arrays.

    Raises
    ------
    RecursionError
        If the expression is nested too deeply for SymPy; with ``cse=True`` it is not.
    """
    import sympy as sp

    given = names or {}
    arrays = {k: made for k, v in given.items() if (made := _elements(sp, v)) is not None}
    try:
        if arrays:
            if cse:
                raise ValueError("to_sympy: cse works on scalar symbols (got an array of symbols)")
            return _written_out(sp, expr, given, arrays)
        return _Scalars(sp, given, expr, cse).run()
    except RecursionError:
        raise RecursionError(
            "to_sympy: the expression is nested too deeply for SymPy; use cse=True"
        ) from None


def exact(sp: Any, value: bool | int | float | complex) -> Any:
    """A number, rational if the float is the nearest one to a simple fraction."""
    if isinstance(value, bool):
        return sp.true if value else sp.false
    if isinstance(value, int):
        return sp.Integer(value)
    if isinstance(value, complex):
        return exact(sp, value.real) + sp.I * exact(sp, value.imag)
    if value != value or value in (float("inf"), float("-inf")):
        return sp.sympify(value)
    known = KNOWN.get(abs(value))
    if known is not None:
        above, below = (sp.sympify(part or "1") for part in known)
        return above / below if value > 0 else -above / below
    fraction = Fraction(value).limit_denominator(1000)
    if float(fraction) == value:
        return sp.Rational(fraction.numerator, fraction.denominator)
    return sp.Float(value, 17)


REAL = (1, 2)
"""Categories of dtypes whose elements are real numbers."""


def scalar_form(sp: Any, node: Expr, args: Sequence[Any]) -> Any:
    """One element of an elementwise node, by the op's own form."""
    made = sp.sympify(node.op.sympy(sp, *args, **node.attributes()))
    have = node.args[0].dtype.category if len(args) == 1 else node.dtype.category
    if len(args) == 1 and made == args[0] and node.dtype.category < have:
        if node.dtype.category == 0:
            return sp.Ne(made, 0)
        if have == 3:
            made = sp.re(made)
            if node.dtype.category == 2:
                return made
        return sp.sign(made) * sp.floor(sp.Abs(made))
    if node.dtype.category > 0 and isinstance(made, sp.logic.boolalg.Boolean):
        if not isinstance(made, sp.Symbol):
            return sp.Piecewise((sp.Integer(1), made), (sp.Integer(0), True))
    return made


class _Scalars:
    """The walk of `to_sympy` over scalar symbols.

    Attributes
    ----------
    shape : dict of int to shape
        By id of a node: along which axes it varies, as in `symgrad.formula.tree.Term`.
    """

    def __init__(self, sp: Any, names: Mapping[Any, Any], root: Expr, cse: bool) -> None:
        self.sp = sp
        self.names = names
        self.root = root
        self.cse = cse
        self.made: dict[int, Any] = {}
        self.shape: dict[int, Shape] = {}
        self.leaf_names = _numbered(_taken(sp, names))

    def run(self) -> Any:
        sp = self.sp
        nodes = ancestors([self.root], lambda n: not self._stops(n))
        if not self.cse:
            for node in nodes:
                self.made[id(node)] = self._value(node)
            return self.made[id(self.root)]
        uses: dict[int, int] = {}
        for node in nodes:
            if not self._stops(node):
                for a in node.args:
                    uses[id(a)] = uses.get(id(a), 0) + 1
        depth: dict[int, int] = {}
        replacements: list[tuple[Any, Any]] = []
        for node in nodes:
            value = self._value(node)
            deep = 1 + max([depth[id(a)] for a in node.args if id(a) in depth], default=0)
            shared = uses.get(id(node), 0) > 1 or deep > DEEP
            if shared and node is not self.root and not value.is_Atom:
                symbol = sp.Symbol(next(self.leaf_names), real=node.dtype.category in REAL or None)
                replacements.append((symbol, value))
                value, deep = symbol, 0
            self.made[id(node)] = value
            depth[id(node)] = deep
        return replacements, [self.made[id(self.root)]]

    def _stops(self, node: Expr) -> bool:
        return is_leaf(node) or self._name(node) is not None

    def _name(self, node: Expr) -> Any:
        found = self.names.get(id(node))
        return self.names.get(node) if found is None else found

    def _value(self, node: Expr) -> Any:
        if self._stops(node):
            self.shape[id(node)] = minimal(node.shape)
            return _leaf(self.sp, node, self._name(node), self.leaf_names)
        args = [self.made[id(a)] for a in node.args]
        shapes = [self.shape[id(a)] for a in node.args]
        op = node.op
        if op.family == "alias":
            self.shape[id(node)] = shapes[0]
            return args[0]
        if op.family == "elementwise":
            self.shape[id(node)] = broadcast(shapes)
            return scalar_form(self.sp, node, args)
        if op.family == "movement" and len(args) == 1:
            if not shapes[0] and not op.bounded:
                self.shape[id(node)] = ()
                return args[0]
            if op.keeps_order and _squeezed(node.shape) == _squeezed(node.args[0].shape):
                self.shape[id(node)] = minimal(node.shape)
                return args[0]
        if op.family == "reduce" and len(args) == 1:
            own = padded(shapes[0], len(node.args[0].shape))
            dim = node.attrs[0]
            if own[dim] == 1:
                self.shape[id(node)] = minimal([n for d, n in enumerate(own) if d != dim])
                times = node.args[0].shape[dim]
                combine = op.combine  # type: ignore[attr-defined]
                return {"add": args[0] * times, "mul": args[0] ** times}.get(combine, args[0])
        if op is movement.expand:
            self.shape[id(node)] = shapes[0]
            return args[0]
        self.shape[id(node)] = minimal(node.shape)
        if not hasattr(op, "sympy"):
            return self.sp.Function(op.name)(*args)
        return self.sp.sympify(op.sympy(self.sp, *args, **node.attributes()))


def _leaf(sp: Any, node: Expr, name: Any, fresh: Iterator[str]) -> Any:
    if isinstance(name, str):
        return sp.Symbol(name, real=node.dtype.category in REAL or None)
    if name is not None:
        return sp.sympify(name)
    value = number_of(node)
    if value is not None:
        return exact(sp, value)
    return sp.Symbol(next(fresh), real=node.dtype.category in REAL or None)


def _taken(sp: Any, names: Mapping[Any, Any]) -> set[str]:
    """Names that the user's symbols have."""
    found = {v for v in names.values() if isinstance(v, str)}
    for v in names.values():
        if isinstance(v, sp.Basic):
            found |= {s.name for s in v.free_symbols if hasattr(s, "name")}
    return found


def _numbered(taken: set[str]) -> Iterator[str]:
    return (name for k in count() if (name := f"x{k}") not in taken)


def _squeezed(shape: Shape) -> list[int]:
    return [n for n in shape if n != 1]


# -- tensors written out ----------------------------------------------------------------


def _elements(sp: Any, value: Any) -> np.ndarray | None:
    """The elements of an array-like name, None for a scalar one."""
    if isinstance(value, sp.MatrixExpr):
        value = value.as_explicit()
    if isinstance(value, sp.MatrixBase | sp.NDimArray):
        return objects(list(value), tuple(value.shape))
    if isinstance(value, list | tuple | np.ndarray):
        shape = np.shape(np.asarray(value, object))
        return objects([sp.sympify(v) for v in np.asarray(value, object).ravel()], shape)
    return None


def _written_out(
    sp: Any, expr: Expr, names: Mapping[Any, Any], arrays: Mapping[Any, np.ndarray]
) -> Any:
    fresh = _numbered(_taken(sp, names))

    def leaf(node: Expr) -> np.ndarray | None:
        key = id(node) if id(node) in names else node
        if key in arrays:
            given = arrays[key]
            if given.size != node.size:
                raise ValueError(
                    f"to_sympy: needs one symbol per element of shape {node.shape} (got {given.shape})"
                )
            return given.reshape(node.shape)
        if key in names:
            return objects([_leaf(sp, node, names[key], fresh)] * node.size, node.shape)
        if not is_leaf(node):
            return None
        if node.value is not None and not node.requires_grad:
            values = np.asarray(node.value).ravel().tolist()
            return objects([exact(sp, v) for v in values] * (node.size == len(values)), node.shape)
        letters = [_leaf(sp, node, None, fresh) for _ in range(node.size)]
        return objects(letters, node.shape)

    def scalar(node: Expr, args: tuple[Any, ...]) -> Any:
        return scalar_form(sp, node, [sp.sympify(a) for a in args])

    join = {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "max": sp.Max,
        "min": sp.Min,
        "or": sp.Or,
        "and": sp.And,
    }
    (result,) = unroll([expr], leaf, scalar, join)
    if result.ndim == 0:
        return result.item()
    flat = [sp.sympify(v) for v in result.ravel()]
    return sp.Matrix(*result.shape, flat) if result.ndim == 2 else sp.Array(flat, result.shape)

"""Formulas of tensors: text, LaTeX, SymPy, both ways.

Methods `Tensor.formula`, `Tensor.latex` and `Tensor._repr_latex_`, and the functions `to_sympy`,
`to_latex`, `lambdify`, `export_c`. Nothing here computes: it shows the recorded expression, with
gradients that are known by value expanded. Start reading at `formula`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from symgrad import dtypes
from symgrad.calculus.known import expanded
from symgrad.compiled import compile
from symgrad.expr import Expr
from symgrad.op import constant, grad_mode, input_node
from symgrad.tensor import Tensor, names_of

Names = Mapping[Tensor, Any]


def _node(t: Tensor) -> Expr:
    if not isinstance(t, Tensor):
        raise TypeError(f"formula: needs a Tensor (got {type(t).__name__})")
    return expanded(t.expr())


def _names(given: Names | None) -> dict[Expr, Any]:
    names: dict[Expr, Any] = dict(names_of())
    for t, name in (given or {}).items():
        names[t.expr() if isinstance(t, Tensor) else t] = name
    return names


def formula(self: Tensor, names: Names | None = None, limit: int | None = 200) -> str:
    """The expression that this tensor is, as text.

    Parameters
    ----------
    names : mapping of Tensor to str, optional
        Names of leaves, besides those given at creation (``name=``).
    limit : int, optional
        How many shared terms are written out; None for all.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor(3., requires_grad=True, name="x")
    >>> (x * x + sg.sin(x)).formula()
    'x**2 + sin(x)'
    """
    from symgrad.formula.text import text

    return text(_node(self), _names(names), limit)


def latex(self: Tensor, names: Names | None = None, limit: int | None = 200) -> str:
    """The expression that this tensor is, as LaTeX; arguments as in `formula`."""
    from symgrad.formula.latex import latex as printed

    return printed(_node(self), _names(names), limit)


def _repr_latex_(self: Tensor) -> str | None:
    """What notebooks show: the formula of a tensor with history."""
    return f"$\\displaystyle {latex(self)}$" if self.requires_grad and not self.is_leaf else None


def to_latex(t: Tensor, names: Names | None = None) -> str:
    """The expression of a tensor as LaTeX, with names for leaves."""
    return latex(t, names)


def to_sympy(t: Tensor, names: Names | None = None, cse: bool = False) -> Any:
    """The expression of a tensor as a SymPy expression.

    Parameters
    ----------
    t : Tensor
    names : mapping of Tensor to SymPy symbol, expression or str
        What stands for leaves and intermediate tensors.
    cse : bool
        Return (replacements, [expression]) like `sympy.cse`, from the graph's own sharing.
    """
    from symgrad.formula.sympy_form import to_sympy as converted

    return converted(_node(t), _names(names), cse)


def lambdify(arguments: Sequence[Any], expressions: Any) -> Any:
    """A compiled function of SymPy expressions, like `sympy.lambdify`.

    Parameters
    ----------
    arguments : sequence of sympy.Symbol
    expressions : SymPy expression or nested list of them

    Returns
    -------
    Compiled
        Takes floats and NumPy arrays, which broadcast; constant results broadcast too.

    Examples
    --------
    >>> import symgrad as sg, sympy as sp
    >>> x = sp.Symbol("x")
    >>> sg.lambdify([x], sp.diff(x**3, x))(2.0)
    12.0
    """
    from symgrad.formula.sympy_reader import from_sympy

    symbols = [arguments] if not isinstance(arguments, list | tuple) else list(arguments)

    def function(*values: Any) -> Any:
        nodes = [v.expr() if isinstance(v, Tensor) else constant(v, dtypes.float64) for v in values]
        table = dict(zip(symbols, nodes, strict=True))
        shape = np.broadcast_shapes(*[n.shape for n in nodes]) if nodes else ()
        return _mapped(from_sympy(expressions, table), lambda node: _spread(node, shape))

    function.__name__ = "lambdified"
    return compile(function)


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, list | tuple):
        return [_mapped(t, function) for t in tree]
    return function(tree)


def _spread(node: Expr, shape: tuple[int, ...]) -> Tensor:
    from symgrad.ops.movement import expand

    return Tensor(node if node.shape == shape else expand(node, shape))


def export_c(
    function: Callable[..., Any],
    *,
    name: str = "f",
    args: Sequence[Any] = (),
    derivatives: int = 0,
) -> str:
    """C source of a scalar function of scalars, with its derivatives.

    Parameters
    ----------
    function : callable
        Of as many 0-d tensors as `args`, returning a 0-d tensor.
    name : str
        Name of the C function: ``void name(const double *in, double *out)``.
    args : sequence of DType
        One per argument.
    derivatives : {0, 1, 2}
        Also write the gradient (1) and the full Hessian, row by row (2), after the value.

    Returns
    -------
    str
        Source that needs only <math.h>.
    """
    from symgrad.formula.source import to_c

    with grad_mode(True):
        leaves = [input_node((), dtypes.as_dtype(a), grad=True) for a in args]
        value = function(*[Tensor(x) for x in leaves]).expr()
    return to_c(value, leaves, name, derivatives)


def attach() -> None:
    """Give `Tensor` its formula methods."""
    for name, method in {"formula": formula, "latex": latex, "_repr_latex_": _repr_latex_}.items():
        setattr(Tensor, name, method)


attach()

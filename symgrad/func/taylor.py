"""Derivatives of many orders at once, by Taylor mode: `jet` and `derivatives`.

Both run the function once and carry Taylor coefficients through its graph
(`symgrad.calculus.taylor`), so that order n costs O(n^2), where each nested transform multiplies
the work. Users give and get derivatives; calculus works with derivatives over
factorials. Start reading at `jet`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from symgrad.calculus.taylor import taylor_series
from symgrad.expr import Expr
from symgrad.func.levels import Level
from symgrad.func.transforms import outputs_of, vectors_of, zeros
from symgrad.nesting import unflatten
from symgrad.op import grad_mode
from symgrad.tensor import Tensor


class _Outputs:
    """What a function returns along a curve.

    Attributes
    ----------
    form
        The nesting of the output.
    value : list of Tensor
    derivatives : list of list of Tensor
        Per output tensor its derivatives along the curve, of orders 1 and up.
    """

    def __init__(
        self, level: Level, name: str, series: Sequence[Sequence[Any]], order: int
    ) -> None:
        nodes, self.form = outputs_of(level.result, name)
        for y in nodes:
            if y.dtype.category < 2:
                raise RuntimeError(
                    f"{name}: all outputs of f must be floating-point or complex tensors (got {y.dtype!r}); "
                    "return something else beside them"
                )
        found = taylor_series(nodes, level.leaves, series, order)
        flat = [*nodes]
        with grad_mode(True):
            for y, terms in zip(nodes, found, strict=True):
                for k, c in enumerate(terms, 1):
                    flat.append(
                        zeros(y) if c is None else c if k == 1 else c * float(math.factorial(k))
                    )
        closed = level.closed(flat)
        count = len(nodes)
        self.value = closed[:count]
        self.derivatives = [
            closed[count + order * i : count + order * (i + 1)] for i in range(count)
        ]


def jet(
    func: Callable[..., Any], primals: tuple[Any, ...], series: Sequence[Sequence[Any]]
) -> tuple[Any, Any]:
    """The value of a function and its derivatives along a curve, of all orders at once.

    Parameters
    ----------
    func : callable
        Returns tensors in any nesting.
    primals : tuple of tensors, or of nestings of them
        Where the curve is: x(0) for each argument of `func`.
    series : sequence of sequences of tensors
        For each primal the derivatives x'(0), x''(0), ..., x^(n)(0) of its curve, each alike in
        nesting, shapes and dtypes; as many for each primal.

    Returns
    -------
    output, series
        The function's output, and the same nesting with a list of n tensors in the place of each:
        the derivatives of f(x(t)) in t at 0, of orders 1 to n. As in ``jax.experimental.jet`` these
        are derivatives, not Taylor coefficients: those are them over the factorial of the order.

    Raises
    ------
    RuntimeError
        If primals are no tuple or not floating, or the series do not fit them.
    ValueError
        If the series have different lengths.
    NotImplementedError
        If a function whose derivative is code (autograd.Function) is on the way.

    Notes
    -----
    The cost of order n is O(n^2) products for each elementwise operation and each matrix product
    (Griewank and Walther, "Evaluating Derivatives", SIAM 2008, chapter 13). At kinks derivatives
    are those of the branch that `grad` takes.

    Examples
    --------
    The curve 2 + t, through x**3:

    >>> import symgrad as sg
    >>> one, zero = sg.tensor(1.), sg.tensor(0.)
    >>> sg.func.jet(lambda x: x ** 3, (sg.tensor(2.),), ((one, zero, zero),))
    (tensor(8.), [tensor(12.), tensor(12.), tensor(6.)])
    """
    name = "jet(f, primals, series)"
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{name}: expected primals to be a tuple (got {type(primals).__name__}); it should be valid "
            "to call f(*primals)"
        )
    if not isinstance(series, tuple | list) or len(series) != len(primals):
        got = f"{len(series)} series" if isinstance(series, tuple | list) else type(series).__name__
        raise RuntimeError(
            f"{name}: expected a sequence of derivatives for each of {len(primals)} primals (got {got})"
        )
    for place, terms in enumerate(series):
        if not isinstance(terms, tuple | list):
            raise RuntimeError(
                f"{name}: the series of primal {place} must be a tuple or list of derivatives (got "
                f"{type(terms).__name__}); put a single one in a tuple"
            )
    lengths = [len(terms) for terms in series]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{name}: jet terms have inconsistent lengths for different arguments (got {lengths}); fill "
            "up with zeros"
        )
    level = Level(func, primals, range(len(primals)), {})
    order = lengths[0]
    columns = []
    for k in range(order):
        given = tuple(terms[k] for terms in series)
        nodes = vectors_of(given, level.form, level.sources, f"series of order {k + 1}", "primals")
        columns.append([_over(x, math.factorial(k + 1)) for x in nodes])
    rows = [[column[i] for column in columns] for i in range(len(level.leaves))]
    found = _Outputs(level, name, rows, order)
    return unflatten(found.form, found.value), unflatten(found.form, found.derivatives)


def _over(x: Expr, number: int) -> Expr:
    return x if number == 1 else x / float(number)


def derivatives(func: Callable[[Any], Any], x: Tensor, order: int) -> tuple[Any, ...]:
    """The value of a function of one tensor and its derivatives up to an order, element by element.

    Parameters
    ----------
    func : callable
        Elementwise: each element of its result depends on the element of `x` in its place.
    x : Tensor
        Floating or complex, of any shape.
    order : int
        The last order, 0 or more.

    Returns
    -------
    tuple
        f(x), f'(x), ..., f^(order)(x), each nested as the function's output.

    Raises
    ------
    RuntimeError
        If `x` or the output is not floating.
    ValueError
        If `x` is no tensor, or the order no number of that kind.

    Notes
    -----
    In general these are the derivatives of f(x + t) in t at 0, all elements moving together.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.func.derivatives(lambda x: x ** 3, sg.tensor([1., 2.]), 2)
    (tensor([1., 8.]), tensor([ 3., 12.]), tensor([ 6., 12.]))
    """
    name = "derivatives(f, x, order)"
    if isinstance(order, bool) or not isinstance(order, int) or order < 0:
        raise ValueError(f"{name}: order must be an integer of at least 0 (got {order!r})")
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: x must be a Tensor (got {type(x).__name__}); use symgrad.tensor")
    level = Level(func, (x,), (0,), {})
    found = _Outputs(level, name, [[1.0]], order)
    towers = [[y, *terms] for y, terms in zip(found.value, found.derivatives, strict=True)]
    return tuple(unflatten(found.form, [tower[k] for tower in towers]) for k in range(order + 1))

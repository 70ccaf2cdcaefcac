"""All ops, one class each, by family; importing this package fills the registry.

Start reading at `symgrad.ops.arithmetic`. The operators of `Expr` are installed here.
"""

from __future__ import annotations

from typing import Any

from symgrad.expr import Expr
from symgrad.ops import (
    activation,
    arithmetic,
    bits,
    choice,
    contract,
    create,
    cumulative,
    decompositions,
    determinants,
    diagonals,
    einsum,
    extrema,
    grouped,
    index,
    joining,
    layout,
    linalg,
    movement,
    norms,
    padding,
    positions,
    random,
    reduce,
    rounding,
    scatter,
    search,
    sort,
    special,
    statistics,
    transcendental,
)

__all__ = [
    "activation",
    "arithmetic",
    "bits",
    "choice",
    "contract",
    "create",
    "cumulative",
    "decompositions",
    "determinants",
    "diagonals",
    "einsum",
    "extrema",
    "grouped",
    "index",
    "joining",
    "layout",
    "linalg",
    "movement",
    "norms",
    "padding",
    "positions",
    "random",
    "reduce",
    "rounding",
    "scatter",
    "search",
    "sort",
    "special",
    "statistics",
    "transcendental",
]


def _operators() -> None:
    a = arithmetic

    def reverse(function: Any) -> Any:
        return lambda x, y: function(y, x)

    table: dict[str, Any] = {
        "__add__": a.add,
        "__radd__": reverse(a.add),
        "__sub__": a.sub,
        "__rsub__": reverse(a.sub),
        "__mul__": a.mul,
        "__rmul__": reverse(a.mul),
        "__truediv__": a.div,
        "__rtruediv__": reverse(a.div),
        "__pow__": transcendental.pow,
        "__neg__": a.neg,
        "__and__": a.logical_and,
        "__or__": a.logical_or,
        "__invert__": a.logical_not,
        "__lt__": a.lt,
        "__le__": a.le,
        "__gt__": a.gt,
        "__ge__": a.ge,
    }
    for name, function in table.items():
        setattr(Expr, name, _method(function))


def _method(function: Any) -> Any:
    def method(*args: Any) -> Any:
        return function(*args)

    return method


_operators()

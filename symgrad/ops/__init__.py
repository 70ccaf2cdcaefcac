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
    class_loss,
    complex_numbers,
    compound,
    contract,
    convolution,
    create,
    cumulative,
    decompositions,
    determinants,
    diagonals,
    differences,
    divisors,
    einsum,
    elimination,
    extrema,
    grouped,
    index,
    joining,
    layout,
    linalg,
    loop,
    loss,
    masks,
    movement,
    neural,
    norms,
    padding,
    pooling,
    positions,
    power,
    powers,
    random,
    reduce,
    rounding,
    scatter,
    search,
    singular,
    sort,
    special,
    spectral,
    statistics,
    transcendental,
    windows,
)

__all__ = [
    "activation",
    "arithmetic",
    "bits",
    "choice",
    "class_loss",
    "complex_numbers",
    "compound",
    "contract",
    "convolution",
    "create",
    "cumulative",
    "decompositions",
    "determinants",
    "diagonals",
    "differences",
    "divisors",
    "einsum",
    "elimination",
    "extrema",
    "grouped",
    "index",
    "joining",
    "layout",
    "linalg",
    "loop",
    "loss",
    "masks",
    "movement",
    "neural",
    "norms",
    "padding",
    "pooling",
    "positions",
    "power",
    "powers",
    "random",
    "reduce",
    "rounding",
    "scatter",
    "search",
    "singular",
    "sort",
    "special",
    "spectral",
    "statistics",
    "transcendental",
    "windows",
]


def _operators() -> None:
    a = arithmetic
    binary = {
        "add": a.add,
        "sub": a.sub,
        "mul": a.mul,
        "truediv": a.div,
        "pow": power.pow,
    }
    for name, op in binary.items():
        setattr(Expr, f"__{name}__", _binary(op))
        setattr(Expr, f"__r{name}__", _binary(op, swapped=True))
    for name, op in (("lt", a.lt), ("le", a.le), ("gt", a.gt), ("ge", a.ge)):
        setattr(Expr, f"__{name}__", _binary(op))
    Expr.__neg__ = _plain(a.neg)
    Expr.__and__ = _on_bits(a.logical_and, bits.bitwise_and)
    Expr.__or__ = _on_bits(a.logical_or, bits.bitwise_or)
    Expr.__invert__ = _on_bits(a.logical_not, bits.bitwise_not)


def _binary(op: Any, swapped: bool = False) -> Any:
    pair = op.pair

    def method(x: Any, y: Any) -> Any:
        made = pair(x, y)
        return op(x, y) if made is None else made

    def reflected(x: Any, y: Any) -> Any:
        made = pair(y, x)
        return op(y, x) if made is None else made

    return reflected if swapped else method


def _plain(op: Any) -> Any:
    def method(*args: Any) -> Any:
        return op(*args)

    return method


def _on_bits(logical: Any, bitwise: Any) -> Any:
    """Logic on bool, which formulas print as such; bit by bit on integers."""

    def method(*args: Any) -> Any:
        truth = all(isinstance(a, Expr) and a.dtype.category == 0 for a in args)
        return logical(*args) if truth else bitwise(*args)

    return method


_operators()

"""Small tensors written out: an expression evaluated on arrays whose elements are formulas.

One function, `unroll`: the elements may be SymPy expressions or terms, so the same walk serves
`to_sympy` with arrays of symbols and the export of C source. Movements are done by NumPy on
object arrays through each op's own reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from symgrad.expr import Expr, ancestors
from symgrad.family import Index

LIMIT = 100_000
"""The largest array that is written out."""

Scalar = Callable[[Expr, tuple[Any, ...]], Any]
Leaf = Callable[[Expr], np.ndarray | None]


def unroll(
    roots: Sequence[Expr], leaf: Leaf, scalar: Scalar, join: dict[str, Callable[[Any, Any], Any]]
) -> list[np.ndarray]:
    """Object arrays of the elements of `roots`.

    Parameters
    ----------
    roots : sequence of Expr
    leaf : callable
        The elements of an expression at which to stop, None elsewhere.
    scalar : callable
        One element of an elementwise node, from the elements of its arguments.
    join : dict
        Functions of two elements for the combinations of reductions.

    Raises
    ------
    NotImplementedError
        For an op that works on whole arrays by a library routine.
    """
    given: dict[int, np.ndarray] = {}

    def into(node: Expr) -> bool:
        found = leaf(node)
        if found is not None:
            given[id(node)] = found
        return found is None

    for node in ancestors(roots, into):
        if id(node) not in given:
            if node.size > LIMIT:
                raise ValueError(
                    f"formula: writes out at most {LIMIT} elements (got {node!r}); use smaller tensors"
                )
            args = [given[id(a)] for a in node.args]
            given[id(node)] = _node(node, args, scalar, join)
    return [given[id(r)] for r in roots]


def objects(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An object array of `shape` from its elements in order."""
    result = np.empty(len(values), object)
    for k, v in enumerate(values):
        result[k] = v
    return result.reshape(shape)


def _node(
    node: Expr, args: list[np.ndarray], scalar: Scalar, join: dict[str, Callable[[Any, Any], Any]]
) -> np.ndarray:
    op = node.op
    attrs = node.attributes()
    if op.family == "elementwise":
        spread = [np.broadcast_to(a, node.shape).ravel() for a in args]
        return objects([scalar(node, e) for e in zip(*spread, strict=True)], node.shape)
    if op.family == "alias":
        return args[0]
    if op.family in ("reduce", "cumulative"):
        combine = join.get(op.combine)  # type: ignore[attr-defined]
        if combine is not None:
            moved = np.moveaxis(args[0], node.attrs[0], -1)
            lines = moved.reshape(-1, moved.shape[-1]) if moved.size else moved.reshape(-1, 0)
            if op.family == "reduce":
                start = [] if moved.shape[-1] else [op.empty]  # type: ignore[attr-defined]
                return objects([reduce(combine, [*start, *line]) for line in lines], node.shape)
            running = [_accumulate(combine, line) for line in lines]
            flat = objects([v for line in running for v in line], moved.shape)
            return np.moveaxis(flat, -1, node.attrs[0])
    if op.family == "contract":
        return _product(args[0], args[1], node, join)
    if op.family in ("movement", "create") or (isinstance(op, Index) and op.reads):
        places = (
            [np.asarray(a.astype(np.int64)) for a in args[1:]] if op.family == "index" else args[1:]
        )
        return np.asarray(op.ref(*args[:1], *places, **attrs)).astype(object)
    raise NotImplementedError(
        f"{op.name}: has no formula element by element (got {node!r}); give its result a name instead"
    )


def _accumulate(combine: Callable[[Any, Any], Any], line: Iterable[Any]) -> list[Any]:
    result: list[Any] = []
    for v in line:
        result.append(combine(result[-1], v) if result else v)
    return result


def _product(
    a: np.ndarray, b: np.ndarray, node: Expr, join: dict[str, Callable[[Any, Any], Any]]
) -> np.ndarray:
    add = join["add"]
    result = np.empty(node.shape, object)
    for place in np.ndindex(node.shape):
        batch, row, column = place
        terms = [x * y for x, y in zip(a[batch, row], b[batch, :, column], strict=True)]
        result[place] = reduce(add, terms) if terms else 0
    return result

"""Complex nodes as pairs of real ones, made just before scheduling.

Two structures: a pair (real part, imaginary part) of real nodes for each complex node, and
`Separation`, the real graph that stands for one with complex nodes. What lies above sees complex
nodes only, what lies below real ones only. Elementwise ops state their own ``parts``; linear
families act on both parts alike, products multiply out, and a loop gets the body of the parts
(`_loop_parts`). Start reading at `separated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symgrad.body import Body, closed_body
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, STATE, constant, grad_mode, input_node, record
from symgrad.ops.complex_numbers import view_as_complex
from symgrad.ops.loop import loop, results_of
from symgrad.ops.movement import expand

Pair = tuple[Expr, Expr]


class Separation:
    """The real graph behind some roots.

    Attributes
    ----------
    roots : list of Expr
        For each given root its real node, or its two parts.
    stands : dict of int to Expr
        By ``id`` of a leaf with complex values, the real leaf with a last axis of size 2 that
        stands for it.
    """

    def __init__(self) -> None:
        self.roots: list[Expr] = []
        self.stands: dict[int, Expr] = {}
        self.made: dict[int, Expr | Pair] = {}

    def add(self, n: Expr) -> None:
        """Make what stands for a node whose arguments were added before."""
        if n.value is None and n.op.family in ("leaf", "alias") and n.args:
            self.made[id(n)] = self.made[id(n.args[0])]
        elif n.value is not None or n.op.family == "leaf":
            self.made[id(n)] = self._leaf(n) if n.dtype.is_complex else n
        elif n.op.family == "region":
            given = [self.made[id(a)] for a in n.args]
            self.made[id(n)] = _loop_parts(n, given) if _has_complex(n) else n
        else:
            given = [self.made[id(a)] for a in n.args]
            real = not n.dtype.is_complex and not any(isinstance(g, tuple) for g in given)
            if real and all(g is a for g, a in zip(given, n.args, strict=True)):
                self.made[id(n)] = n
            else:
                self.made[id(n)] = _like(n, given) if real else _parts(n, given)

    def _leaf(self, n: Expr) -> Pair:
        real = n.dtype.to_real()
        if n.op is CONSTANT and n.attrs[0] is not None:
            number = complex(n.attrs[0])
            return constant(number.real, real, True), constant(number.imag, real, True)
        value = None if n.value is None else as_parts(np.array(n.value, n.dtype.numpy))
        stand = input_node((*n.shape, 2), real, value)
        self.stands[id(n)] = stand
        return view_as_complex.parts(stand)  # type: ignore[no-any-return]


def as_parts(array: np.ndarray) -> np.ndarray:
    """A complex array as a real one with a last axis of size 2; a real array as it is."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(array.real.dtype)


def separated(roots: Sequence[Expr]) -> Separation | None:
    """The real graph that computes `roots`, None if nothing complex is behind them."""
    nodes = ancestors(roots, _pending)
    if not any(n.dtype.category == 3 or _has_complex(n) for n in nodes):
        return None
    found = Separation()
    _separate(found, nodes)
    for r in roots:
        stand = found.made[id(r)]
        found.roots.extend(stand if isinstance(stand, tuple) else (stand,))
    return found


def _separate(found: Separation, nodes: Sequence[Expr]) -> None:
    """Add nodes, arguments before users, as they are written: without accuracy rules."""
    before = STATE.plain, STATE.table, STATE.checked
    STATE.plain, STATE.table = True, None
    try:
        with grad_mode(False):
            for n in nodes:
                found.add(n)
    finally:
        STATE.plain, STATE.table, STATE.checked = before


def _pending(n: Expr) -> bool:
    return n.value is None


def _like(n: Expr, args: Sequence[Any]) -> Expr:
    """The same op on other arguments, of the real dtype."""
    return record(n.op, tuple(args), n.attrs, n.shape, n.dtype.to_real())


def _parts(n: Expr, given: list[Expr | Pair]) -> Expr | Pair:
    parts = getattr(n.op, "parts", None)
    if parts is not None:
        made = parts(*given, **n.attributes())
        if isinstance(made, tuple):
            return _spread(made[0], n), _spread(made[1], n)
        return _spread(made, n)
    if n.op.family == "contract":
        (a, b), (c, d) = given  # type: ignore[misc]
        return (
            _like(n, (a, c)) - _like(n, (b, d)),
            _like(n, (a, d)) + _like(n, (b, c)),
        )
    first = [g[0] if isinstance(g, tuple) else g for g in given]
    second = [g[1] if isinstance(g, tuple) else g for g in given]
    return _like(n, first), _like(n, second)


def _spread(x: Expr, n: Expr) -> Expr:
    return x if x.shape == n.shape else expand(x, n.shape)  # type: ignore[no-any-return]


# -- loops ------------------------------------------------------------------------------------


def _has_complex(n: Expr) -> bool:
    """Whether a node is a result of a loop with complex values anywhere in it."""
    return n.op.family == "region" and _body_of_parts(n.attrs[0]) is not None


class _BodyOfParts:
    """The body that computes the parts of what another one computes.

    Attributes
    ----------
    body : Body
    inputs, outputs : list of int
        How many nodes stand for each of the other body's placeholders and outputs: 1 or 2.
    """

    def __init__(self, body: Body) -> None:
        found = Separation()
        placeholders: list[Expr] = []
        for x in body.inputs:
            if x.dtype.is_complex:
                pair = tuple(input_node(x.shape, x.dtype.to_real(), grad=True) for _ in range(2))
                found.made[id(x)] = pair  # type: ignore[assignment]
                placeholders += pair
            else:
                found.made[id(x)] = x
                placeholders.append(x)
        _separate(found, body.nodes)
        results = [found.made[id(y)] for y in body.outputs]
        self.inputs = [1 + x.dtype.is_complex for x in body.inputs]
        self.outputs = [1 + y.dtype.is_complex for y in body.outputs]
        flat = [part for r in results for part in (r if isinstance(r, tuple) else (r,))]
        self.body, outside = closed_body(placeholders, flat)
        assert not outside


def _body_of_parts(body: Body) -> _BodyOfParts | None:
    """The body of the parts, made once; None if nothing in a body is complex."""
    if "parts" not in body.derived:
        inner = any(n.dtype.category == 3 or _has_complex(n) for n in (*body.inputs, *body.nodes))
        body.derived["parts"] = _BodyOfParts(body) if inner else None
    return body.derived["parts"]  # type: ignore[no-any-return]


def _loop_parts(n: Expr, given: Sequence[Expr | Pair]) -> Expr | Pair:
    """A loop's result by the loop of the parts."""
    body, carries, sequences, length, backward, result = n.attrs
    parts = _body_of_parts(body)
    assert parts is not None
    args = [part for g in given for part in (g if isinstance(g, tuple) else (g,))]
    held = sum(parts.inputs[:carries])
    stacked = sum(parts.inputs[carries : carries + sequences])
    kind, number = results_of(body, carries).kind(result)
    numbering = results_of(parts.body, held)
    if kind == "rows":
        first = numbering.rows(sum(parts.outputs[carries : carries + number]))
    else:
        before = sum(parts.inputs[:number])
        first = numbering.final(before) if kind == "final" else numbering.history(before)

    def made(place: int) -> Expr:
        return loop(  # type: ignore[no-any-return]
            *args, body=parts.body, carries=held, sequences=stacked, length=length,
            backward=backward, result=place,
        )  # fmt: skip

    return (made(first), made(first + 1)) if n.dtype.is_complex else made(first)

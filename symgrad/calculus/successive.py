"""Successive derivatives by one input of what depends on it element by element.

Where each element of y depends on one element of x alone, its place in the array aside (a function
of every point, a network of the points of a batch), the derivative of y's sum by x is y' in each
element, and that of the sum of y' is y''. Reverse mode applied to its own result would make a graph
several times as long with each order. Instead, the first derivative is marked with what it is the
derivative of (`symgrad.ops.alias.derivative`), and those of higher order follow from Taylor mode
(`symgrad.calculus.taylor`), in which all orders share what is lower: O(n^2) products per op and
order n. What decides is the graph alone, never what happens to be computed.

Structures: `Successive`, what one backward pass knows of such derivatives; the axes of a node that
x's axes have become (`_axes`). Start reading at `pullback`, then `Successive.passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from symgrad.calculus import reverse
from symgrad.calculus.cotangent import Held, Plus, put, summed
from symgrad.calculus.reverse import scale
from symgrad.calculus.taylor import Curve
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, STATE, grad_mode
from symgrad.ops.alias import derivative, detach
from symgrad.ops.movement import full, reshape

Axes = tuple[int, ...]
"""Per axis of the input the axis of a node along which the same positions lie; -1 for size 1."""


def pullback(
    outputs: Sequence[Expr], cotangents: Sequence[Expr], inputs: Sequence[Expr]
) -> list[Expr | None]:
    """`symgrad.calculus.reverse.pullback`, with what is known of successive derivatives."""
    return reverse.pullback(outputs, cotangents, inputs, Successive)


class Successive:
    """Derivatives by the one input of a backward pass, as far as they are known by element.

    Parameters
    ----------
    nodes : sequence of Expr
        What the pass may visit, arguments before users.
    inputs : sequence of Expr
        What it differentiates by; with several there is nothing to know.
    plus : callable
        Adds cotangents.
    lasting : bool
        Whether nodes of earlier passes may be used that the graph does not reach.
    """

    def __init__(
        self,
        nodes: Sequence[Expr],
        inputs: Sequence[Expr],
        plus: Plus = summed,
        lasting: bool = False,
    ) -> None:
        self._nodes = nodes
        self._plus = plus
        self._lasting = lasting
        self._x: Expr | None = None
        self._bases: dict[int, Expr] = {}
        self._candidates: list[tuple[Expr, Expr]] | None = None
        if len(inputs) == 1 and inputs[0].dtype.category == 2 and inputs[0].size:
            x = self._x = inputs[0]
            self._candidates = [] if STATE.grad else None
            for n in nodes:
                if n.op is derivative and n.args[2] is x:
                    self._bases.setdefault(id(n.args[1]), n)

    def passes(self, node: Expr, g: Expr, held: Held) -> bool:
        """Pass a node's cotangent right on to the input, if its derivative is known.

        Parameters
        ----------
        node, g : Expr
            The node and its complete cotangent.
        held : dict
            Cotangents on their way: of the other nodes before, of the input after.
        """
        x = self._x
        if x is None:
            return False
        if node.op is derivative and node.args[2] is x:
            for factor in node.args[3:]:
                g = scale(g, factor)
            made = self._by_element(node, node.attrs[0] + 1)
        elif id(node) in self._bases:
            made = self._by_element(self._bases[id(node)], 1)
        else:
            if self._candidates is not None and not held and node.size == x.size:
                self._candidates.append((node, g))
            return False
        self._candidates = None
        if made is not None:
            put(held, id(x), made if _is_one(g) else scale(g, made), self._plus)
        elif _depends(node.args[0] if node.op is derivative else node, x):
            # As by the chain rule: the derivative by what a path leads to is there, if it is zero.
            put(held, id(x), full(0.0, x.shape, x.dtype), self._plus)
        return True

    def _by_element(self, known: Expr, order: int) -> Expr | None:
        """The derivative of some order of what a marked derivative is of, in the shape of the input;
        None for a structural zero."""
        _, y, x, *_ = known.args
        curve = _CURVES.get(known) if self._lasting else None
        if curve is None:
            curve = Curve([x], [[1.0]], normalised=False)
        with grad_mode(True):
            value = curve.term(y, order)
            if value is not None:
                value = reshape(value, x.shape)
        if value is None or not value.requires_grad:
            return value
        if not STATE.grad:
            return detach(value)  # type: ignore[no-any-return]
        made: Expr = derivative(value, y, x, order=order)
        if self._lasting:
            _CURVES[known] = _CURVES[made] = curve
        return made

    def marked(self, gradient: Expr | None) -> Expr | None:
        """The gradient of the input, marked if it is a first derivative by element."""
        if not self._candidates or gradient is None or not gradient.requires_grad:
            return gradient
        assert self._x is not None
        found = _axes(self._nodes, self._x)
        for y, g in self._candidates:
            if id(y) in found:
                return self._noted(gradient, y, g, found[id(y)])
        return gradient

    def _noted(self, gradient: Expr, y: Expr, g: Expr, axes: Axes) -> Expr:
        """The gradient `g * y'`, marked so if elements are in the same order and `g` stays put."""
        x = self._x
        assert x is not None
        moved = [d for d in axes if d >= 0]
        if y is x or y.dtype is not gradient.dtype or moved != sorted(moved):
            return gradient
        if _is_one(g):
            return derivative(gradient, y, x, order=1)  # type: ignore[no-any-return]
        if _depends(g, x):
            return gradient
        return derivative(gradient, y, x, reshape(g, gradient.shape), order=1)  # type: ignore[no-any-return]


def _depends(y: Expr, x: Expr) -> bool:
    """Whether a path that derivatives pass leads from `y` to `x`."""
    return any(n is x for n in ancestors([y], lambda n: n.requires_grad))


def _is_one(g: Expr) -> bool:
    """Whether a cotangent is recorded as the number one in all elements."""
    while g.op.family == "movement" and not g.op.bounded and not g.op.pieces and g.args:
        g = g.args[0]
    return g.op is CONSTANT and g.attrs[0] == 1


def restated(node: Expr, args: Sequence[Expr], table: dict[int, Expr]) -> Expr | None:
    """A marked derivative on other arguments, if it is one there too.

    Parameters
    ----------
    node : Expr
    args : sequence of Expr
        What takes the place of its arguments.
    table : dict of int to Expr
        What replaces nodes, by their ``id``, so that the arguments change.

    Returns
    -------
    Expr or None
        None if `node` is nothing of that kind, or what takes the place of its input may have other
        ways to the function than the input had.
    """
    if node.op is not derivative:
        return None
    _, y, x, *_ = node.args
    instead = table.get(id(x))
    if instead is None or any(n is instead for n in ancestors([y], lambda n: n is not x)):
        return None
    return derivative(*args, order=node.attrs[0])  # type: ignore[no-any-return]


_CURVES: WeakKeyDictionary[Expr, Curve] = WeakKeyDictionary()
"""What is known of the orders behind marked derivatives, for as long as these live."""


# -- which elements depend on which -----------------------------------------------------------


def _axes(nodes: Sequence[Expr], x: Expr) -> dict[int, Axes]:
    """The axes that `x`'s have become in the nodes whose elements depend on one of `x`'s each."""
    found: dict[int, Axes | None] = {
        id(x): tuple(-1 if n == 1 else d for d, n in enumerate(x.shape))
    }
    for node in nodes:
        if node is x or not node.requires_grad or not node.op.differentiable:
            continue
        # A marked derivative has the elements of its value, whatever it says of others.
        args = node.args[:1] if node.op is derivative else node.args
        moving = [k for k, a in enumerate(args) if id(a) in found]
        if not moving:
            continue
        rule = _RULES.get(node.op.family)
        made: set[Axes | None] = {None}
        if rule is not None and node.dtype.category == 2:
            made = set()
            for k in moving:
                axes = found[id(node.args[k])]
                made.add(None if axes is None else rule(node, k, axes))
        found[id(node)] = made.pop() if len(made) == 1 else None
    return {key: axes for key, axes in found.items() if axes is not None}


def _elementwise(node: Expr, place: int, axes: Axes) -> Axes | None:
    """Axes counted from the last one, as broadcasting does."""
    shift = node.ndim - node.args[place].ndim
    return tuple(-1 if d < 0 else d + shift for d in axes)


def _reduce(node: Expr, place: int, axes: Axes) -> Axes | None:
    dim = node.attrs[0]
    return None if dim in axes else tuple(d - (d > dim) for d in axes)


def _cumulative(node: Expr, place: int, axes: Axes) -> Axes | None:
    return None if node.attrs[0] in axes else axes


def _contract(node: Expr, place: int, axes: Axes) -> Axes | None:
    """(B, M, K) times (B, K, N): the axis K is summed over."""
    return None if 2 - place in axes else axes


def _movement(node: Expr, place: int, axes: Axes) -> Axes | None:
    a = node.args[place]
    if node.op.keeps_order:
        return _renumbered(axes, lambda d: _same_stride(a.shape, d, node.shape))
    attrs = node.attributes()
    if node.op.pieces:
        mesh = np.ogrid[tuple(slice(n) for n in a.shape)]
        there = node.op.place(place, list(mesh), node.args, **attrs)  # type: ignore[attr-defined]
        return _renumbered(
            axes,
            lambda d: next(
                (e for e, at in enumerate(there) if _runs_along(at, d, a.shape[d], node.shape[e])),
                None,
            ),
        )
    mesh = np.ogrid[tuple(slice(n) for n in node.shape)]
    back = node.op.index(list(mesh), a, **attrs)  # type: ignore[attr-defined]
    return _renumbered(
        axes,
        lambda d: next(
            (e for e, n in enumerate(node.shape) if _runs_along(back[d], e, n, a.shape[d])), None
        ),
    )


def _renumbered(axes: Axes, to: Callable[[int], int | None]) -> Axes | None:
    made = [-1 if d < 0 else to(d) for d in axes]
    return None if None in made else tuple(made)  # type: ignore[arg-type]


def _same_stride(old: tuple[int, ...], d: int, new: tuple[int, ...]) -> int | None:
    """The axis of a shape that counts as axis `d` of another one does, in row-major order."""
    stride = prod(old[d + 1 :])
    for e, n in enumerate(new):
        if n == old[d] and prod(new[e + 1 :]) == stride:
            return e
    return None


def _runs_along(at: Any, axis: int, size: int, other: int) -> bool:
    """Whether positions in an open mesh are those along one axis of it, all of `other`."""
    at = np.asarray(at)
    if size != other or at.size != size or at.ndim <= axis or at.shape[axis] != size:
        return False
    return bool((at.reshape(-1) == np.arange(size)).all())


_RULES: dict[str, Callable[[Expr, int, Axes], Axes | None]] = {
    "elementwise": _elementwise,
    "alias": _elementwise,
    "movement": _movement,
    "reduce": _reduce,
    "cumulative": _cumulative,
    "contract": _contract,
}
"""By family: the axes of a node from those of the argument in a place."""

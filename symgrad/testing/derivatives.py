"""Derivatives against central differences, and forward mode against reverse mode.

The derivative of order k is checked on a scalar: f0 = <u, op(x)> with random u, and
f(k) = <v, grad f(k-1)> with random v. Along a random direction w, <w, grad f(k-1)> must equal
the central difference of f(k-1) within a tolerance, and forward mode's tangent to rounding.
All in float64. Start reading at `check_derivatives`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from symgrad import dtypes
from symgrad.calculus import pullback, pushforward
from symgrad.expr import Expr
from symgrad.op import constant, input_node
from symgrad.ops.arithmetic import add, mul
from symgrad.ops.movement import full, permute
from symgrad.ops.reduce import sum as total
from symgrad.sample import Case
from symgrad.testing.evaluator import Evaluator
from symgrad.testing.samples import Drawn, Subject, call, draw, nodes

STEP = {1: 3e-4, 2: 3e-4, 3: 3e-4}
TOLERANCE = {1: 1e-6, 2: 2e-6, 3: 2e-5}
"""Relative to the sum of the absolute terms of <w, grad f>."""

NOISE = 1e-10
"""Rounding of the differences, relative to 1 + |f|."""

ROUNDING = 1e-11
"""Forward against reverse, relative to the sum of the absolute terms."""

CANCELLED = 1e-14
"""And absolutely: rounding of intermediate terms of order one that cancel in the result."""

ATTEMPTS = 6
"""Draws of a sample until differences at two steps agree: a draw may sit next to a kink."""


class Difference(NamedTuple):
    """A central difference and how far it may be off."""

    value: float
    error: float


def central_difference(f: Callable[[float], float], step: float) -> Difference:
    """The derivative at 0 by five points; the error is judged from half the step."""

    def at(h: float) -> float:
        return (8.0 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12.0 * h)

    coarse, fine = at(step), at(0.5 * step)
    return Difference(fine, abs(fine - coarse))


class Scalar:
    """A scalar function of a sample's floating arrays, as an expression to differentiate.

    Attributes
    ----------
    leaves : list of Expr
        The floating inputs.
    node : Expr
    order : int
        How many derivatives it already holds.
    """

    def __init__(self, leaves: Sequence[Expr], node: Expr, order: int) -> None:
        self.leaves = list(leaves)
        self.node = node
        self.order = order

    def gradient(self) -> list[Expr]:
        """Reverse mode, zeros where no path leads."""
        one = constant(1.0, self.node.dtype)
        parts = pullback([self.node], [one], self.leaves)
        return [
            full(0.0, n.shape, n.dtype) if p is None else p
            for n, p in zip(self.leaves, parts, strict=True)
        ]


def weighted(parts: Sequence[Expr], rng: np.random.Generator) -> Expr:
    """<u, parts> with random weights between 0.5 and 1.5 in size and of random signs."""
    result: Expr | None = None
    for p in parts:
        signs = np.where(rng.random(p.shape) < 0.5, -1.0, 1.0)
        u = np.asarray(signs * rng.uniform(0.5, 1.5, p.shape)).astype(p.dtype.numpy)
        term = total(mul(p, input_node(p.shape, p.dtype, u)))
        result = term if result is None else add(result, term)
    assert result is not None
    return result


def projection(subject: Subject, drawn: Drawn, rng: np.random.Generator) -> Scalar | None:
    """f0 of a sample, None if no derivative flows or only through a narrower dtype."""
    tensors = nodes(drawn.arrays)
    found = call(subject, drawn, tensors)
    outputs = [o for o in found if o.requires_grad and o.dtype is dtypes.float64]
    leaves = [tensors[k] for k in drawn.floating_places if tensors[k].size]
    if not outputs or not leaves or not any(o.size for o in outputs):
        return None
    return Scalar(leaves, weighted(outputs, rng), 0)


class Direction:
    """Central differences of a scalar along a random direction, at its leaves' values."""

    def __init__(self, scalar: Scalar, rng: np.random.Generator) -> None:
        self.scalar = scalar
        self.along = [np.asarray(rng.normal(size=n.shape)) for n in scalar.leaves]
        evaluate = Evaluator([scalar.node], scalar.leaves)

        def f(t: float) -> float:
            moved = [n.value + t * w for n, w in zip(scalar.leaves, self.along, strict=True)]
            return float(evaluate([np.asarray(m) for m in moved])[0])

        with np.errstate(all="ignore"):
            self.value = f(0.0)
            self.difference = central_difference(f, STEP[scalar.order + 1])

    def noise(self) -> float:
        """Rounding in the differences."""
        return NOISE * (1.0 + abs(self.value))

    @property
    def steady(self) -> bool:
        """Whether the differences converge, so that there is a derivative to speak of."""
        bound = TOLERANCE[self.scalar.order + 1] * abs(self.difference.value)
        return bool(self.difference.error <= bound + self.noise())

    def tangent(self) -> Expr:
        """Forward mode along the direction."""
        scalar = self.scalar
        tangents = [input_node(w.shape, dtypes.float64, w) for w in self.along]
        (moved,) = pushforward([scalar.node], scalar.leaves, tangents)
        return full(0.0, (), dtypes.float64) if moved is None else moved

    def check(
        self, leaves: Sequence[Expr], gradient: Sequence[Expr], tangent: Expr | None = None
    ) -> None:
        """Reverse mode against the difference; with a tangent, forward mode against reverse.

        `leaves` hold the point's values. The latter is the dot test <w, J^T 1> = <1, J w>.
        """
        order = self.scalar.order + 1
        wanted = [*gradient] if tangent is None else [*gradient, tangent]
        values = Evaluator(wanted, leaves)([n.value for n in leaves])
        terms = [w * g for w, g in zip(self.along, values, strict=False)]
        found = sum(float(t.sum()) for t in terms)
        size = sum(float(np.abs(t).sum()) for t in terms)
        gap = abs(found - self.difference.value)
        allowed = TOLERANCE[order] * size + self.noise()
        assert gap <= allowed, (
            f"order {order}: reverse mode gives {found!r}, differences {self.difference.value!r} "
            f"(allowed gap {allowed:.1e})"
        )
        if tangent is not None:
            forward = float(values[-1])
            assert abs(forward - found) <= ROUNDING * (size + abs(self.value)) + CANCELLED, (
                f"order {order}: forward mode gives {forward!r}, reverse {found!r}"
            )


class Point(NamedTuple):
    """A draw of a sample at which it is smooth: f0, differences along a direction."""

    scalar: Scalar
    direction: Direction
    attempt: int


def projection_at(subject: Subject, number: int, attempt: int) -> Scalar | None:
    """f0 of a sample at a draw; the same weights for variants of an op."""
    drawn = draw(subject, number, dtypes.float64, attempt)
    return projection(subject, drawn, subject.seed(50 + 100 * attempt + number))


def smooth_point(subject: Subject, number: int) -> Point | None:
    """The first draw where differences converge, None if no derivative flows.

    Raises
    ------
    AssertionError
        If no draw is smooth; the sample should then say ``smooth=False``.
    """
    for attempt in range(ATTEMPTS):
        scalar = projection_at(subject, number, attempt)
        if scalar is None:
            return None
        direction = Direction(scalar, subject.seed(60 + 100 * attempt + number))
        if direction.steady:
            return Point(scalar, direction, attempt)
    raise AssertionError(
        f"differences do not converge at any draw ({direction.difference}); "
        "if the op has a kink there, the sample states smooth=False"
    )


def along_symmetric(subject: Subject) -> Subject:
    """The subject of symmetric matrices, for ops whose derivative is that along such."""

    def part(x: Expr) -> Expr:
        order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        return mul(add(x, permute(x, order)), 0.5)

    result = copy.copy(subject)
    result.prepare = part
    result.samples = [Case(*c.args, **c.attrs) for c in subject.samples]
    return result


def has_derivative(subject: Subject, number: int) -> bool:
    """Whether differences make sense at a sample."""
    return subject.rule != "nodiff" and subject.samples[number].smooth


def check_derivatives(subject: Subject, number: int, orders: int = 3) -> int:
    """Reverse and forward mode up to an order; returns how many orders there were to check.

    A sample whose gradient is the same everywhere ends with the check that its difference is 0.
    """
    point = smooth_point(subject, number)
    if point is None:
        return 0
    scalar, direction, _ = point
    rng = subject.seed(70 + number)
    for order in range(1, orders + 1):
        gradient = scalar.gradient()
        direction.check(scalar.leaves, gradient, direction.tangent())
        if order == orders:
            return order
        following = weighted(gradient, rng)
        scalar = Scalar(scalar.leaves, following, order)
        direction = Direction(scalar, rng)
        assert direction.steady, f"order {order + 1}: differences do not converge"
        if not following.requires_grad:
            assert abs(direction.difference.value) <= direction.noise()
            return order
    return orders

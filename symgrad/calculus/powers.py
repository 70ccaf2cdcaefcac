"""Powers that are written as products: x*x*x has the derivative 3*x*x.

The product rule goes from factor to factor: (x*x)*x passes g*(x*x) to x and g*x to x*x, which passes
that on twice. Where all factors are one and the same node, the power below is there already: here it
is x*x, and g*(x*x)*3 is all that x gets.

Values that are not finite stay what the product rule gives. The number comes last, so that nothing
overflows but what overflowed in the sum; complex powers are left alone, since 3*(inf + 0j) is not a
sum of three. What underflows is x*x where x**3, that is the result itself, has done so before. What
somebody watches stays a factor of its own.

One structure, `Power`. Start reading at `powers_among`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from symgrad.expr import Expr


class Power(NamedTuple):
    """A product with the value base**exponent."""

    base: Expr
    exponent: int


def powers_among(nodes: Sequence[Expr], opaque: Container[int]) -> dict[int, Power]:
    """The products x**(n-1) * x of real x, or the other way round, with n of 3 or more.

    Squares are left to the product rule, which needs one product and one sum for them.

    Parameters
    ----------
    nodes : sequence of Expr
        Arguments before users.
    opaque : container of int
        By ``id``, nodes whose own cotangents are looked at: these are bases only.

    Returns
    -------
    dict of int to Power
        By ``id``.
    """
    every: dict[int, Power] = {}
    found: dict[int, Power] = {}
    for node in nodes:
        # Products recorded without derivative are constants to those that use them.
        if not node.op.product or not node.requires_grad or node.dtype.category != 2:
            continue
        if id(node) in opaque:
            continue
        left, right = (every.get(id(a)) or Power(a, 1) for a in node.args)
        if left.base is right.base:
            power = every[id(node)] = Power(left.base, left.exponent + right.exponent)
            if power.exponent > 2 and any(a is power.base for a in node.args):
                found[id(node)] = power
    return found

"""Derivatives as expressions: reverse mode, forward mode, batching. Start at `reverse.pullback`.

The `pullback` of this room takes the short way of `symgrad.calculus.successive` where there is one.
"""

from symgrad.calculus import loops, until
from symgrad.calculus.batching import batched
from symgrad.calculus.forward import pushforward
from symgrad.calculus.successive import pullback

__all__ = ["batched", "loops", "pullback", "pushforward", "until"]

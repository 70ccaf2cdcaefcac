"""Derivatives as expressions: reverse mode, forward mode, batching. Start at `reverse.pullback`."""

from symgrad.calculus import loops
from symgrad.calculus.batching import batched
from symgrad.calculus.forward import pushforward
from symgrad.calculus.reverse import pullback

__all__ = ["batched", "loops", "pullback", "pushforward"]

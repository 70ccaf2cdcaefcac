"""Rewrites of recorded expressions that make results more accurate.

Three kinds of rewrite are kept apart: merging equal computations preserves bits and always
happens (`symgrad.schedule.canonical`); algebra that may change NaN, infinities or signed zeros
happens only in printed formulas (`symgrad.formula`); and the accuracy rules here, on by default,
with one switch. Start reading at `stability`.
"""

from symgrad.simplify.stability import set_enabled

__all__ = ["set_enabled"]

"""Tuples that are equal only if they read the same.

What decides a program is compared as a key. There 0.0 is -0.0 and 1 is True, and no NaN is found
again, though a program made for one is not right for the other. Start reading at `Exact`.
"""

from __future__ import annotations

from typing import Any


class Exact(tuple[Any, ...]):
    """A tuple of numbers or strings that is equal to another of its kind that reads the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Exact and repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))

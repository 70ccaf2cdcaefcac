"""Error classes that are more specific than Python's own.

Messages read ``<op>: <what is wrong> (got ...); <what to do>``.
"""

from __future__ import annotations

import sys
from types import FrameType


class LinAlgError(RuntimeError):
    """A matrix computation failed on its values: not positive definite, singular, no convergence."""


class TracedValueError(RuntimeError):
    """The value of a traced tensor was asked for inside `symgrad.compile`."""


def user_line() -> str:
    """Where the user's code called, as " at file:line"; empty if no user's code did."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("symgrad"):
            return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""

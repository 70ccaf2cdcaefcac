"""Error classes that are more specific than Python's own.

Messages read ``<op>: <what is wrong> (got ...); <what to do>``.
"""

from __future__ import annotations


class LinAlgError(RuntimeError):
    """A matrix computation failed on its values: not positive definite, singular, no convergence."""


class TracedValueError(RuntimeError):
    """The value of a traced tensor was asked for inside `symgrad.compile`."""

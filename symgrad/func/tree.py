"""Nested tuples, lists and dicts of values, taken apart and put together.

One structure, the *form* of a nesting: `LEAF`, or a tuple of a container's type, what names its
children, and their forms. Forms compare equal when the nestings are alike. Start reading at
`flatten`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

LEAF = "leaf"


def _children(value: Any) -> tuple[type, Any, list[Any]] | None:
    """Type, names and children of a container; None for a leaf."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, len(value), list(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, len(value), list(value)
    if isinstance(value, dict):
        return kind, tuple(value), list(value.values())
    return None


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a nesting in order, and its form."""
    parts = _children(value)
    if parts is None:
        return [value], LEAF
    kind, names, children = parts
    leaves: list[Any] = []
    forms = []
    for child in children:
        below, form = flatten(child)
        leaves += below
        forms.append(form)
    return leaves, (kind, names, tuple(forms))


def _built(form: Any, leaves: Iterator[Any]) -> Any:
    if form == LEAF:
        return next(leaves)
    kind, names, forms = form
    children = [_built(f, leaves) for f in forms]
    if issubclass(kind, dict):
        return kind(zip(names, children, strict=True))
    if hasattr(kind, "_fields"):
        return kind(*children)
    return kind(children)


def unflatten(form: Any, leaves: list[Any]) -> Any:
    """The nesting of a form with given leaves."""
    return _built(form, iter(leaves))


def size(form: Any) -> int:
    """How many leaves a form has."""
    return 1 if form == LEAF else sum(size(f) for f in form[2])


def spread(prefix: Any, form: Any) -> list[Any] | None:
    """One entry per leaf of a form, from a nesting that may stop early.

    Parameters
    ----------
    prefix : nesting
        Where it has a leaf, that leaf holds for everything below.
    form
        As from `flatten`.

    Returns
    -------
    list or None
        None where the prefix does not fit the form.
    """
    parts = _children(prefix)
    if parts is None:
        return [prefix] * size(form)
    if form == LEAF:
        return None
    kind, names, children = parts
    if kind is not form[0] or names != form[1]:
        return None
    found: list[Any] = []
    for child, below in zip(children, form[2], strict=True):
        entries = spread(child, below)
        if entries is None:
            return None
        found += entries
    return found


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The nesting with a function applied to each leaf."""
    leaves, form = flatten(value)
    return unflatten(form, [function(leaf) for leaf in leaves])

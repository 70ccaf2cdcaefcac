"""Nested tuples, lists and dicts of values, taken apart and put together.

One structure, the *form* of a nesting: `LEAF`, or a tuple of a container's type, what names its
children, and their forms. Forms compare equal when the nestings are alike. Start reading at
`flatten`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from symgrad.exact import Exact

LEAF = "leaf"

_PLAIN = frozenset({str, int})
"""Types of keys that are equal only if they are the same."""


def _children(value: Any) -> tuple[Any, Any, list[Any]] | None:
    """Type, names and children of a container; None for a leaf."""
    if isinstance(value, list | tuple):
        return type(value), len(value), list(value)
    if isinstance(value, dict):
        names = tuple(value) if _PLAIN.issuperset(map(type, value)) else _names(value)
        return type(value), names, list(value.values())
    return None


def _names(keys: Iterable[Any]) -> tuple[Any, ...]:
    """The names of a dict's values: a number among its keys is another one where it reads so."""
    names = tuple(keys)
    return Exact(names) if any(isinstance(k, bool | float | complex) for k in names) else names


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a nesting in order, and its form."""
    leaves: list[Any] = []
    return leaves, _form(value, leaves)


def _form(value: Any, leaves: list[Any]) -> Any:
    parts = _children(value)
    if parts is None:
        leaves.append(value)
        return LEAF
    kind, names, children = parts
    return kind, names, tuple([_form(child, leaves) for child in children])


def container(kind: Any, names: Any, children: list[Any]) -> Any:
    """A tuple, list or dict of a given type with given children."""
    if issubclass(kind, defaultdict):
        return kind(None, zip(names, children, strict=True))
    if issubclass(kind, dict):
        return kind(zip(names, children, strict=True))
    if hasattr(kind, "_fields"):
        return kind(*children)
    return kind(children)


def unflatten(
    form: Any, leaves: Iterable[Any], build: Callable[[Any, Any, list[Any]], Any] = container
) -> Any:
    """The nesting of a form with given leaves.

    Parameters
    ----------
    form
        As from `flatten`.
    leaves : iterable
    build : callable
        Makes a container of its type, the names of its children, and these.
    """
    return _built(form, iter(leaves), build)


def _built(form: Any, leaves: Iterator[Any], build: Callable[[Any, Any, list[Any]], Any]) -> Any:
    if form == LEAF:
        return next(leaves)
    kind, names, forms = form
    return build(kind, names, [_built(f, leaves, build) for f in forms])


def size(form: Any) -> int:
    """How many leaves a form has."""
    return 1 if form == LEAF else sum(size(f) for f in form[2])


def follow(value: Any, form: Any, found: list[Any]) -> bool:
    """Whether a value is nested as a form says, whatever its leaves, which are appended.

    A dict may have its keys in another order, and a leaf of the form may be a nesting.
    """
    if form == LEAF:
        found.append(value)
        return True
    kind, names, forms = form
    if type(value) is not kind or len(value) != len(forms):
        return False
    if not issubclass(kind, dict):
        return all(follow(v, f, found) for v, f in zip(value, forms, strict=True))
    return value.keys() == set(names) and all(
        follow(value[k], f, found) for k, f in zip(names, forms, strict=True)
    )


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


def text(form: Any, leaves: Sequence[str] | None = None) -> str:
    """A form for messages: ``([*, *], {'a': *})``, with a star or a given word for each leaf."""
    return unflatten(form, ["*"] * size(form) if leaves is None else leaves, _written)


def _written(kind: Any, names: Any, children: list[str]) -> str:
    if issubclass(kind, dict):
        return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(names, children, strict=True)) + "}"
    if issubclass(kind, list):
        return "[" + ", ".join(children) + "]"
    name = "" if kind is tuple else kind.__name__
    return f"{name}({', '.join(children)}{',' if kind is tuple and len(children) == 1 else ''})"

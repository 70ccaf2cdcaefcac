"""Nestings of arguments and results of compiled functions.

One structure, the *tree*: a hashable description of nested tuples, lists and dicts, with a `Leaf` for
each tensor, array or number whose value is not part of the compiled code, and other values as they
are. Start reading at `flatten`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symgrad.tensor import Tensor


class Leaf:
    """Place of a dynamic leaf in an argument tree."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and other.number == self.number

    def __hash__(self) -> int:
        return hash(("leaf", self.number))


def flatten(value: Any, leaves: list[Any]) -> Any:
    """A hashable description of a tree; dynamic leaves are appended to `leaves`."""
    if isinstance(value, Tensor | np.ndarray | float | np.floating):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if isinstance(value, complex | np.complexfloating):
        leaves.append(np.array(value, np.complex128))
        return Leaf(len(leaves) - 1)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("named", type(value), *[flatten(v, leaves) for v in value])
    if isinstance(value, tuple):
        return ("tuple", *[flatten(v, leaves) for v in value])
    if isinstance(value, list):
        return ("list", *[flatten(v, leaves) for v in value])
    if isinstance(value, dict):
        return ("dict", *[(k, flatten(v, leaves)) for k, v in value.items()])
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(
            f"compile: an argument of type {type(value).__name__} is neither a tensor, array, number, "
            "list, tuple or dict nor hashable; pass its parts"
        ) from error
    return ("static", type(value), value)


def unflatten(tree: Any, leaves: list[Any]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(tree, Leaf):
        return leaves[tree.number]
    kind = tree[0]
    if kind == "static":
        return tree[2]
    if kind == "named":
        return tree[1](*[unflatten(t, leaves) for t in tree[2:]])
    if kind == "tuple":
        return tuple(unflatten(t, leaves) for t in tree[1:])
    if kind == "list":
        return [unflatten(t, leaves) for t in tree[1:]]
    return {k: unflatten(t, leaves) for k, t in tree[1:]}


def follow(out: Any, tree: Any, found: list[Any]) -> bool:
    """Whether `out` is nested as a result's tree; what stands for its leaves is appended."""
    if isinstance(tree, Leaf):
        found.append(out)
        return True
    kind = tree[0]
    if kind == "static":
        return type(out) is tree[1] and out == tree[2]
    if kind == "dict":
        if type(out) is not dict or out.keys() != dict(tree[1:]).keys():
            return False
        return all(follow(out[k], t, found) for k, t in tree[1:])
    parts = tree[1 + (kind == "named") :]
    wanted = tree[1] if kind == "named" else tuple if kind == "tuple" else list
    if type(out) is not wanted or len(out) != len(parts):
        return False
    return all(follow(o, t, found) for o, t in zip(out, parts, strict=True))


def nesting(tree: Any) -> str:
    """How a result is nested, with a star for each tensor."""
    if isinstance(tree, Leaf):
        return "*"
    if tree[0] == "static":
        return repr(tree[2])
    if tree[0] == "dict":
        return "{" + ", ".join(f"{k!r}: {nesting(t)}" for k, t in tree[1:]) + "}"
    parts = ", ".join(nesting(t) for t in tree[1 + (tree[0] == "named") :])
    return f"[{parts}]" if tree[0] == "list" else f"({parts})"

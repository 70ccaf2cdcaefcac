"""What a native entry takes and gives: trees of leaves and containers, and their slots.

Three structures:

* leaves and containers of the arguments: `FloatLeaf`, `ArrayLeaf`, `AnyArray`, `Static` in
  `TupleOf`, `ListOf`, `DictOf`;
* those of the result: `NewArray`, `Scalar`, `Input`, `Argument`, `Same`, `Static` in the same
  containers;
* `EntrySpec`: one tree per positional argument, one for the result, the plan and the memory it
  needs.

A slot is a place in the table of base pointers that kernels get; a leaf whose slot is None is
checked but not passed on. Start reading at `EntrySpec`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class FloatLeaf(NamedTuple):
    """A Python float, exactly of that type; its slot points to a float64."""

    slot: int | None


class ArrayLeaf(NamedTuple):
    """An ndarray, exactly of that type, with this dtype and shape, C-contiguous and aligned."""

    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    slot: int | None


class AnyArray(NamedTuple):
    """An ndarray of any dtype, shape and strides: the caller knows that it fits."""

    slot: int | None


class Static(NamedTuple):
    """An object that must be met again: this very one, or an equal int, bool, str or bytes.

    As a result it is returned itself.
    """

    value: object


class NewArray(NamedTuple):
    """A new ndarray, C-contiguous; the plan writes it through its slot."""

    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    slot: int


class Scalar(NamedTuple):
    """A Python number read from a cell that the plan writes through the slot.

    `dtype` is float64, float32, int64 or bool.
    """

    dtype: npt.DTypeLike
    slot: int


class Input(NamedTuple):
    """The object met as the n-th leaf of the arguments, itself."""

    number: int


class Argument(NamedTuple):
    """The n-th positional argument, itself."""

    number: int


class Same(NamedTuple):
    """The object that is the n-th leaf of the result (a `NewArray` or `Scalar`) once more."""

    number: int


class TupleOf(NamedTuple):
    """A tuple, exactly of that type and length."""

    items: tuple[Node, ...]


class ListOf(NamedTuple):
    """A list, exactly of that type and length."""

    items: tuple[Node, ...]


class DictOf(NamedTuple):
    """A dict, exactly of that type, with these keys (str or int) in any order, and no others."""

    keys: tuple[str | int, ...]
    items: tuple[Node, ...]


Leaf = FloatLeaf | ArrayLeaf | AnyArray | Static | NewArray | Scalar | Input | Argument | Same
Container = TupleOf | ListOf | DictOf
Node = Leaf | Container


class EntrySpec(NamedTuple):
    """A program as its entry sees it.

    Parameters
    ----------
    inputs : sequence of Node
        One tree per positional argument.
    output : Node
        The tree of the result.
    slots : int
        Length of the slot table.
    plan, run : int
        Addresses of the plan and of ``void run(ptr plan, ptr slots)``. A plan of one launch
        with extent 1 is called directly.
    fallback : callable
        Gets the arguments, as they came, whenever they do not match.
    constants : sequence of (slot, address)
        Memory that nobody else writes.
    arena_bytes : int
        Scratch memory of one call, aligned to 64 bytes.
    arena : sequence of (slot, offset)
        Pieces of the scratch memory.
    release_gil : bool
        Run the plan without the GIL: for work of a millisecond and more.
    status_slot : int or None
        Points to an int64 that is 0 before the plan runs; if the plan makes it anything else,
        its results are dropped, and the fallback runs unless a Python error is set.
    keep : tuple of object
        Owners of all the memory and code named above.
    """

    inputs: Sequence[Node]
    output: Node
    slots: int
    plan: int
    run: int
    fallback: Callable[..., Any]
    constants: Sequence[tuple[int, int]] = ()
    arena_bytes: int = 0
    arena: Sequence[tuple[int, int]] = ()
    release_gil: bool = False
    status_slot: int | None = None
    keep: tuple[object, ...] = ()


def leaves(roots: Sequence[Node]) -> list[Leaf]:
    """The leaves of some trees, in the order a reader meets them."""
    found: list[Leaf] = []
    pending = list(reversed(roots))
    while pending:
        node = pending.pop()
        if isinstance(node, Container):
            pending.extend(reversed(node.items))
        else:
            found.append(node)
    return found


def numbered(roots: Sequence[Node]) -> list[tuple[Node, int]]:
    """Every node of some trees with the number of its first child, level by level.

    A node's own number is its place in the list; children of one container are neighbours.
    """
    order: list[Node] = list(roots)
    firsts: list[int] = []
    place = 0
    while place < len(order):
        node = order[place]
        firsts.append(len(order))
        if isinstance(node, Container):
            order.extend(node.items)
        place += 1
    return list(zip(order, firsts, strict=True))


def leaf_numbers(roots: Sequence[Node]) -> list[int]:
    """For each leaf, in the order of `leaves`, its number in `numbered`."""
    nodes = numbered(roots)
    numbers: list[int] = []
    pending = list(reversed(range(len(roots))))
    while pending:
        number = pending.pop()
        node, first = nodes[number]
        if isinstance(node, Container):
            pending.extend(reversed(range(first, first + len(node.items))))
        else:
            numbers.append(number)
    return numbers


def array_bytes(leaf: ArrayLeaf | NewArray) -> int:
    """The size of an array leaf's data."""
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize

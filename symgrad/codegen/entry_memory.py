"""A native entry's descriptor: an `EntrySpec` written as words in memory.

Two structures:

* `_Tables`: the words of a descriptor followed by those of the tables it points to, and the
  objects that these words refer to;
* `_Frame`: which word of a call's frame holds what: slots, one spare slot, cells, the objects
  met in the arguments, results.

The layout is that of `symgrad.codegen.entry_body`. Start reading at `descriptor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from symgrad.codegen import blocks
from symgrad.codegen import entry_body as lay
from symgrad.codegen.entry_spec import (
    AnyArray,
    Argument,
    ArrayLeaf,
    Container,
    DictOf,
    EntrySpec,
    FloatLeaf,
    Input,
    ListOf,
    NewArray,
    Node,
    Same,
    Scalar,
    Static,
    TupleOf,
    array_bytes,
    leaf_numbers,
    numbered,
)

Memory = tuple[Any, ...]

_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400
_BY_VALUE = (bool, int, str, bytes)
_SCALARS = {
    np.dtype(np.float64): lay.BUILD_FLOAT64,
    np.dtype(np.float32): lay.BUILD_FLOAT32,
    np.dtype(np.int64): lay.BUILD_INT64,
    np.dtype(np.bool_): lay.BUILD_BOOL,
}
_OPENED: dict[type, tuple[int, type]] = {
    TupleOf: (lay.IN_TUPLE, tuple),
    ListOf: (lay.IN_LIST, list),
    DictOf: (lay.IN_DICT, dict),
}
_BUILT = {TupleOf: lay.BUILD_TUPLE, ListOf: lay.BUILD_LIST, DictOf: lay.BUILD_DICT}


class _Place(int):
    """A word of the tables, to be replaced by its address."""


class _Tables:
    def __init__(self) -> None:
        self.head = [0] * lay.D_WORDS
        self.keep: list[object] = []
        self._tail: list[int] = []

    def address_of(self, thing: object) -> int:
        """The address of an object, which from now on lives as long as the descriptor."""
        self.keep.append(thing)
        return id(thing)

    def table(self, words: Sequence[int]) -> _Place:
        place = _Place(len(self.head) + len(self._tail))
        self._tail.extend(words)
        return place

    def rows(self, count: int, place: int, rows: Sequence[Sequence[int]]) -> None:
        """A table of rows: how many goes to ``head[count]``, where to ``head[place]``."""
        self.head[count] = len(rows)
        self.head[place] = self.table([word for row in rows for word in row])

    def finish(self) -> npt.NDArray[np.int64]:
        words = [*self.head, *self._tail]
        memory = np.zeros(len(words), np.int64)
        base = memory.ctypes.data
        memory[:] = [base + 8 * w if isinstance(w, _Place) else w for w in words]
        memory.flags.writeable = False
        return memory


class _Frame:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.words = slots + 1

    def reserve(self, words: int) -> int:
        """The first of so many further words."""
        first = self.words
        self.words += words
        return first

    def slot(self, number: int | None) -> int:
        """A checked slot number; None is the spare slot that nobody reads."""
        if number is None:
            return self._slots
        if not 0 <= number < self._slots:
            raise ValueError(
                f"entry: slot {number} is outside the table (got {self._slots} slots); give a "
                "number from 0 on"
            )
        return number


def descriptor(spec: EntrySpec, inputs: Sequence[Node], output: Node, written: int) -> Memory:
    """A spec's descriptor and everything it refers to.

    Parameters
    ----------
    spec : EntrySpec
        Plan, memory, fallback.
    inputs : sequence of Node
        One tree per positional argument. Arrays that the call writes are `NewArray` here.
    output : Node
        The tree of the result.
    written : int
        How many arguments, the first ones, hold arrays that the call writes.

    Returns
    -------
    tuple
        The words, as an array that must not move, and the objects to keep with them.
    """
    tables, frame = _Tables(), _Frame(spec.slots)
    head = tables.head
    head[lay.D_FALLBACK] = tables.address_of(spec.fallback)
    head[lay.D_NARGS] = len(inputs)
    nodes = numbered(inputs)
    tables.rows(lay.D_NIN, lay.D_IN, _input_records(tables, frame, nodes))
    if len(nodes) > len(inputs):
        head[lay.D_VALUES] = frame.reserve(len(nodes))
    _add_results(tables, frame, spec, output, leaf_numbers(inputs))
    _add_ranges(tables, frame, spec, inputs[:written], inputs[written:])
    tables.rows(lay.D_NFIXED, lay.D_FIXED, [(frame.slot(s), a) for s, a in spec.constants])
    tables.rows(lay.D_NARENA, lay.D_ARENA, [(frame.slot(s), o) for s, o in spec.arena])
    if spec.arena_bytes:
        head[lay.D_ARENA_CLASS], head[lay.D_ARENA_BYTES] = _size_class(spec.arena_bytes)
    head[lay.D_PLAN], head[lay.D_RUN] = spec.plan, spec.run
    head[lay.D_RELEASE] = int(spec.release_gil)
    head[lay.D_FRAME_WORDS] = frame.words
    return (tables.finish(), *tables.keep, *spec.keep)


def _input_records(
    tables: _Tables, frame: _Frame, nodes: Sequence[tuple[Node, int]]
) -> list[list[int]]:
    records = []
    for number, (node, first) in enumerate(nodes):
        slot: int | None = None
        kind: type = np.ndarray
        rest = [0, 0, 0, 0]
        if isinstance(node, FloatLeaf):
            code, kind, slot, rest = lay.IN_FLOAT, float, node.slot, [frame.reserve(1), 0, 0, 0]
        elif isinstance(node, ArrayLeaf | NewArray):
            flags = _C_CONTIGUOUS | _ALIGNED
            if isinstance(node, NewArray):
                flags |= _WRITEABLE
            code, slot, rest = lay.IN_ARRAY, node.slot, [*_array_words(tables, node), flags]
        elif isinstance(node, AnyArray):
            code, slot = lay.IN_ANY_ARRAY, node.slot
        elif isinstance(node, Static):
            kind = type(node.value)
            by_value = int(kind in _BY_VALUE)
            code, rest = lay.IN_STATIC, [tables.address_of(node.value), by_value, 0, 0]
        elif isinstance(node, Container):
            code, kind = _OPENED[type(node)]
            keys = _key_words(tables, node) if isinstance(node, DictOf) else [0, 0]
            rest = [len(node.items), first, *keys]
        else:
            raise TypeError(
                f"entry: {type(node).__name__} describes no argument (got it in the inputs); "
                "use FloatLeaf, ArrayLeaf, Static or a container"
            )
        records.append([code, tables.address_of(kind), number, frame.slot(slot), *rest])
    return records


def _array_words(tables: _Tables, node: ArrayLeaf | NewArray) -> list[int]:
    descr = np.dtype(node.dtype)
    if descr.hasobject or not descr.isnative:
        raise TypeError(
            f"entry: arrays of dtype {descr} have no native form (got shape {node.shape}); use "
            "a number type in the machine's byte order"
        )
    return [tables.address_of(descr), len(node.shape), tables.table(node.shape)]


def _key_words(tables: _Tables, node: DictOf) -> list[int]:
    if len(set(node.keys)) != len(node.items) or {type(k) for k in node.keys} - {str, int}:
        raise TypeError(
            f"entry: keys must be distinct str or int, one per item (got {node.keys} for "
            f"{len(node.items)} items); leave other dicts to the fallback"
        )
    keys = [tables.address_of(key) for key in node.keys]
    return [tables.table(keys), tables.table([id(str), id(int)])]


def _add_results(
    tables: _Tables, frame: _Frame, spec: EntrySpec, output: Node, input_numbers: Sequence[int]
) -> None:
    """Output and build records: what is allocated before the run, and made after it."""
    nodes = numbered([output])
    output_numbers = leaf_numbers([output])
    made, built, shared, containers = [], [], [], []
    for number, (node, first) in enumerate(nodes):
        if isinstance(node, NewArray):
            kind = tables.address_of(np.ndarray)
            array = _array_words(tables, node)
            code = lay.OUT_LARGE if array_bytes(node) >= blocks.LARGE else lay.OUT_ARRAY
            made.append([code, kind, number, frame.slot(node.slot), *array, 0])
        elif isinstance(node, Scalar):
            cell = frame.reserve(1)
            made.append([lay.OUT_CELL, 0, number, frame.slot(node.slot), cell, 0, 0, 0])
            built.append([_scalar_code(node), 0, number, 0, cell, 0, 0, 0])
        elif isinstance(node, Input):
            built.append([lay.BUILD_INPUT, 0, number, 0, input_numbers[node.number], 0, 0, 0])
        elif isinstance(node, Argument):
            built.append([lay.BUILD_INPUT, 0, number, 0, node.number, 0, 0, 0])
        elif isinstance(node, Static):
            thing = tables.address_of(node.value)
            built.append([lay.BUILD_OBJECT, 0, number, 0, thing, 0, 0, 0])
        elif isinstance(node, Same):
            other = output_numbers[node.number]
            if not isinstance(nodes[other][0], NewArray | Scalar):
                raise TypeError(
                    f"entry: Same({node.number}) must name a NewArray or Scalar leaf (got "
                    f"{nodes[other][0]}); repeat that leaf itself"
                )
            shared.append([lay.BUILD_SAME, 0, number, 0, other, 0, 0, 0])
        elif isinstance(node, Container):
            keys = _key_words(tables, node)[0] if isinstance(node, DictOf) else 0
            containers.append([_BUILT[type(node)], 0, number, 0, len(node.items), first, keys, 0])
        else:
            raise TypeError(
                f"entry: {type(node).__name__} describes no result (got it in the output); use "
                "NewArray, Scalar, Input, Argument, Same, Static or a container"
            )
    head = tables.head
    head[lay.D_STATUS] = lay.NO_STATUS
    if spec.status_slot is not None:
        head[lay.D_STATUS] = cell = frame.reserve(1)
        made.append([lay.OUT_CELL, 0, 0, frame.slot(spec.status_slot), cell, 0, 0, 0])
    tables.rows(lay.D_NOUT, lay.D_OUT, made)
    # Children come after their container in the numbering, so that is built last.
    tables.rows(lay.D_NBUILD, lay.D_BUILD, [*built, *shared, *reversed(containers)])
    head[lay.D_NRESULTS] = len(nodes)
    head[lay.D_RESULTS] = frame.reserve(len(nodes))


def _scalar_code(node: Scalar) -> int:
    try:
        return _SCALARS[np.dtype(node.dtype)]
    except KeyError:
        raise TypeError(
            f"entry: no Python number for dtype {node.dtype} (got Scalar in slot {node.slot}); "
            "use float64, float32, int64 or bool"
        ) from None


def _add_ranges(
    tables: _Tables,
    frame: _Frame,
    spec: EntrySpec,
    written: Sequence[Node],
    read: Sequence[Node],
) -> None:
    """Memory that must not overlap: what is written comes first."""
    if not written:
        return

    def spans(roots: Sequence[Node]) -> list[tuple[int, int]]:
        arrays = [n for n, _ in numbered(roots) if isinstance(n, ArrayLeaf | NewArray)]
        return [(n.slot, array_bytes(n)) for n in arrays if n.slot is not None]

    first = spans(written)
    tables.rows(lay.D_NRANGE, lay.D_RANGE, [*first, *spans(read)])
    tables.head[lay.D_NWRITTEN] = len(first)


def _size_class(size: int) -> tuple[int, int]:
    """The number and size of the smallest arena class that holds `size`: 2**k or 3 * 2**k."""
    number, room = 0, 64
    while room < size:
        number += 1
        room = 64 << number // 2 if number % 2 == 0 else 96 << number // 2
    return number, room

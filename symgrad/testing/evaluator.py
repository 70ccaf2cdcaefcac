"""Programs that run again at other points, and the ways to run one that must not change its bits.

One structure, `Evaluator`: a program built once from nodes, called with arrays in place of the
values of its input leaves; nothing is stored on the nodes. `cut_finely`, `in_segments`, `threaded`
and `in_little_room` force chunks, segments, the thread pool and recomputation on programs too small
to get them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from symgrad.codegen import build, eviction, layout, pool, recomputation
from symgrad.codegen.plan import Launch
from symgrad.expr import Expr
from symgrad.runtime import array_of, build_recipe
from symgrad.schedule import program
from symgrad.structure import behind


class Evaluator:
    """A function from arrays to arrays.

    Parameters
    ----------
    roots : sequence of Expr
        Results.
    inputs : sequence of Expr
        Leaves whose arrays each call gives; other leaves keep their values.
    inline : bool
        Whether vector maths is inlined.
    small : bool
        Whether values are computed again where that lowers the peak of memory.
    """

    def __init__(
        self,
        roots: Sequence[Expr],
        inputs: Sequence[Expr] = (),
        inline: bool = False,
        small: bool = False,
    ) -> None:
        found = behind(roots, False)
        self._recipe = build_recipe(found, list(roots), [], inline, small)
        place = {id(n): k for k, n in enumerate(inputs)}
        self._sources: list[int | np.ndarray] = []
        for s in self._recipe.sources:
            if isinstance(s, np.ndarray):
                self._sources.append(s)
            else:
                node = found[s]
                self._sources.append(place[id(node)] if id(node) in place else array_of(node))
        self._roots = list(roots)

    def __call__(self, arrays: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        inputs = tuple([s if isinstance(s, np.ndarray) else arrays[s] for s in self._sources])
        return list(self._recipe.run(inputs)[0])

    def llvm(self) -> str:
        """The IR of the program's kernels."""
        return self._recipe.program.llvm()


def run(roots: Sequence[Expr], inline: bool = False, small: bool = False) -> list[np.ndarray]:
    """The values of `roots`, computed without storing anything on nodes."""
    return Evaluator(roots, (), inline, small)()


@contextmanager
def cut_finely(nanoseconds: float = 1.0) -> Iterator[None]:
    """Programs built within the block are cut into chunks of this estimated work."""
    before = layout.CHUNK_NS
    layout.CHUNK_NS = nanoseconds
    try:
        yield
    finally:
        layout.CHUNK_NS = before


@contextmanager
def in_segments(length: int = 12) -> Iterator[None]:
    """Programs built within the block are cut after so many nodes, as long ones are."""
    before = program.SEGMENT
    program.SEGMENT = length
    try:
        yield
    finally:
        program.SEGMENT = before


@contextmanager
def threaded(count: int) -> Iterator[None]:
    """Programs built within the block run all their launches in a pool of `count` threads."""

    def long(fn: int, args: tuple[int, ...], extent: int, cost_ns: int) -> Launch:
        return Launch(fn, args, extent, cost_ns + 100_000_000)

    names = vars(build)
    before, threads = names["Launch"], pool.get_num_threads()
    names["Launch"] = long
    pool.set_num_threads(count)
    try:
        yield
    finally:
        names["Launch"] = before
        pool.set_num_threads(threads)


@contextmanager
def in_little_room() -> Iterator[None]:
    """Programs built small within the block compute again whatever saves memory, at any cost."""
    changed = {
        (eviction, "MAX_EXTRA"): 100.0,
        (eviction, "burden"): _only_room,
        (recomputation, "burden"): _only_room,
    }
    before = {(module, name): vars(module)[name] for module, name in changed}
    for (module, name), value in changed.items():
        vars(module)[name] = value
    try:
        yield
    finally:
        for (module, name), value in before.items():
            vars(module)[name] = value


def _only_room(room: int, cost: float) -> float:
    return room


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal dtype, shape and bits; one NaN is as good as another."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    word: Any = {4: np.int32, 8: np.int64}[x.dtype.itemsize]
    equal = np.ascontiguousarray(x).view(word) == np.ascontiguousarray(y).view(word)
    return bool(np.all(equal | (np.isnan(x) & np.isnan(y))))

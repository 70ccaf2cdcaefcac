"""The code of matrix products, compiled as far as it is needed.

One structure, `Tiles`: the register tiles of one kind, in a table that the blocked kernel reads. A
tile takes some 12 ms to compile and a product needs a few of some 40, so each is compiled when a
plan first asks for it, and lies in the disk cache by itself. Where a tile is missing all the
same, the kernel computes its elements one by one: the bits do not depend on tiles.
Start reading at `Tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial

import numpy as np

from symgrad.codegen import emission, jit
from symgrad.codegen.gemm_tile import Shape, define_tile, tile_name, tile_shape
from symgrad.codegen.ir import Module, written
from symgrad.locks import RenewedLock

Size = tuple[int, int, int]
"""Rows, vectors, and which of the two forms the last vector has (`Shape.tails`)."""

_LOCK = RenewedLock()


@cache
def host_shape(kind: str) -> Shape:
    """The register tile for this CPU."""
    return tile_shape(kind, bool(emission.host_features().get("avx512f")))


class Tiles:
    """The tiles of one kind and shape.

    Attributes
    ----------
    table : ndarray of intp
        Addresses by size; 0 for a tile that was not compiled.
    kernel : Library or None
        The code that calls the tiles, once it is compiled.
    """

    def __init__(self, kind: str, shape: Shape) -> None:
        self.kind = kind
        self.shape = shape
        self.table = np.zeros(shape.most_rows * shape.most_vectors * 2, np.intp)
        self.kernel: jit.Library | None = None
        self._libraries: list[jit.Library] = []

    @property
    def address(self) -> int:
        """Where the table lies."""
        return int(self.table.ctypes.data)

    def need(self, sizes: Iterable[Size], kernel: Callable[[], jit.Source] | None = None) -> None:
        """Compile the tiles that are missing, and beside them the kernel if that is too."""
        with _LOCK:
            places = {self._place(size): size for size in sizes}
            missing = {p: size for p, size in places.items() if self.table[p] == 0}
            names = [tile_name(self.kind, *self._named(size)) for size in missing.values()]
            sources = [self._source(size) for size in missing.values()]
            if kernel is not None and self.kernel is None:
                sources.insert(0, kernel())
            made = jit.compile_sources(sources, len(sources))
            if len(made) > len(missing):
                self.kernel = made.pop(0)
            for place, name, library in zip(missing, names, made, strict=True):
                self._libraries.append(library)
                self.table[place] = library[name]

    def lacks(self, sizes: Iterable[Size]) -> bool:
        """Whether something is to be compiled before products with these tiles can run."""
        return self.kernel is None or not all(self.table[self._place(size)] for size in sizes)

    def _place(self, size: Size) -> int:
        rows, vectors, tail = size
        return ((rows - 1) * self.shape.most_vectors + vectors - 1) * 2 + tail

    def _named(self, size: Size) -> tuple[int, int, str]:
        rows, vectors, tail = size
        return rows, vectors, self.shape.tails[tail][0]

    def _source(self, size: Size) -> jit.Source:
        rows, vectors, tail = self._named(size)
        name = tile_name(self.kind, rows, vectors, tail)

        def emit(module: Module) -> None:
            define_tile(module, self.kind, self.shape, rows, vectors, tail)

        return jit.Source(partial(written, emit), [name], recipe=f"{name} {self.shape!r}")


@cache
def tiles(kind: str) -> Tiles:
    """The tiles of this process."""
    return Tiles(kind, host_shape(kind))

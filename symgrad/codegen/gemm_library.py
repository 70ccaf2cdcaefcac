"""The code of matrix products, compiled as far as it is needed.

One structure, `Tiles`: the register tiles of one kind, in a table that the blocked kernel reads. A
tile takes some 12 ms to compile and a product needs a few of the 48, so each is compiled when a
plan first asks for it, and lies in the disk cache by itself. Where a tile is missing all the
same, the kernel makes up for it with the smallest ones: the bits do not depend on tiles.
Start reading at `library`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from inspect import getsource

import numpy as np

from symgrad import cache as objects
from symgrad.codegen import jit
from symgrad.codegen.gemm_tile import Shape, define_tile, tile_name, tile_shape
from symgrad.codegen.ir import Module
from symgrad.locks import RenewedLock

Size = tuple[int, int, int]
"""Rows, vectors, and which of the two forms the last vector has (`Shape.tails`)."""

_LOCK = RenewedLock()


@cache
def host_shape(kind: str) -> Shape:
    """The register tile for this CPU."""
    return tile_shape(kind, bool(jit.host_features().get("avx512f")))


class Tiles:
    """The tiles of one kind and shape.

    Attributes
    ----------
    table : ndarray of intp
        Addresses by size; 0 for a tile that was not compiled.
    """

    def __init__(self, kind: str, shape: Shape) -> None:
        self.kind = kind
        self.shape = shape
        self.table = np.zeros(shape.rows * shape.vectors * 2, np.intp)
        self._libraries: list[jit.Library] = []

    @property
    def address(self) -> int:
        """Where the table lies."""
        return int(self.table.ctypes.data)

    def need(self, sizes: Iterable[Size]) -> None:
        """Compile the tiles that are missing."""
        with _LOCK:
            for rows, vectors, tail in sizes:
                place = ((rows - 1) * self.shape.vectors + vectors - 1) * 2 + tail
                if self.table[place] == 0:
                    self.table[place] = self._compiled(rows, vectors, self.shape.tails[tail][0])

    def _compiled(self, rows: int, vectors: int, tail: str) -> int:
        name = tile_name(self.kind, rows, vectors, tail)

        def text() -> str:
            module = Module()
            define_tile(module, self.kind, self.shape, rows, vectors, tail)
            return module.text()

        made = linked(f"{name} {self.shape!r}", text, name)
        self._libraries.append(made)
        return int(made[name])


def linked(what: str, text: object, name: str) -> jit.Library:
    """Code that this package's own source decides, compiled or from the disk cache.

    Parameters
    ----------
    what : str
        Tells it from other code of the same source.
    text : callable
        Gives the IR.
    name : str
        The exported symbol.
    """
    assert callable(text)
    try:
        # To write out the IR takes longer than to link: its own source will do as a key.
        recipe = "\n".join([what, _sources()])
    except OSError:
        recipe = text()
    key = objects.key_of(recipe, 2, (), jit.fingerprint())
    data = objects.load(key, jit.fingerprint())
    if data is None:
        data = jit.emit_object(text())
        objects.store(key, data, jit.fingerprint())
    return jit.link(data, [name])


@cache
def _sources() -> str:
    """The source of everything that writes the code of products."""
    own = [f"{__package__}.{name}" for name in ("gemm", "gemm_inner", "gemm_zeros")]
    names = [*own, define_tile.__module__, Module.__module__]
    return "\n".join([getsource(sys.modules[n]) for n in names])


@cache
def tiles(kind: str) -> Tiles:
    """The tiles of this process."""
    return Tiles(kind, host_shape(kind))

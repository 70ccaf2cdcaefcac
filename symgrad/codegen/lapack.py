"""Library calls from compiled code: LAPACK and BLAS through the addresses that SciPy gives.

The check of positions is called in the same way, by a kernel of our own.

Two structures:

* `LapackCall`: how one library op is called: its kernel's routine, the words of its launch,
  scratch memory, estimated time;
* `_KINDS`: what an op's ``native`` names -> a function that makes the `LapackCall`.

An op without a kind here, of another dtype, or too large for 32-bit sizes stays a Python routine.
What LAPACK refuses is computed again by the routine, which knows the words of the error. The
library's own threads serve large matrices alone; the rest is split among the program's workers.
Start reading at `native_call`.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from symgrad.codegen import jit, library_threads
from symgrad.codegen.ir import Module
from symgrad.codegen.lapack_body import symbol
from symgrad.codegen.lapack_kernels import IN_DOUBLE, emit_kernel
from symgrad.codegen.plan import Launch
from symgrad.codegen.positions_kernel import BLOCK
from symgrad.locks import RenewedLock
from symgrad.ops.determinants import SAFE_CONDITION
from symgrad.schedule.canonical import Node

LARGEST = 2**31 - 1
"""Sizes are 32-bit integers in these libraries."""

MAX_STRIPS = 16
"""Parts of a batch that may run at the same time, each with scratch memory of its own."""

MAX_SCRATCH = 1 << 24
"""Scratch memory, in bytes, that a program keeps between calls; more is borrowed from the heap."""

CALL_NS = 300

LIBRARY_SPLITS = 512
"""Rows or columns from which a factorisation is left to the library's threads: measured on two
cores, they save nothing to speak of below, and may have to wait for the program's own."""

PART_WORK = 400_000
"""Operations of one part of a triangular solve, at least."""

PART_ROWS = 16
"""Right-hand sides are split at multiples of this, which is what the library packs together."""

LEAST_ROWS = 48
"""Right-hand sides of one part, at least: the library reads the triangle anew for each part."""

# Types of the arguments of each routine: i(nteger), l(etter), x (elements).
_BLAS = {"trsm": "llllii" + "xxixi", "trsv": "llli" + "xixi"}
_LAPACK = {
    "potrf": "lixii",
    "getrf": "iixiii",
    "getrs": "liixiixii",
    "syevd": "llixixxiiii",
    "gelqf": "iixixxii",
    "orglq": "iiixixxii",
    "gesdd": "liixixxixixiii",
}
_USES = {
    "potrf": ("potrf",),
    "trsm": ("trsm",),
    "trsv": ("trsv",),
    "solve": ("getrf", "getrs", "trsm"),
    "inverse": ("getrf", "trsm"),
    "det": ("getrf",),
    "slogdet": ("getrf",),
    "cofactor": ("getrf", "trsm"),
    "lu": ("getrf",),
    "pivots": ("getrf",),
    "syevd": ("syevd",),
    "qr": ("gelqf", "orglq"),
    "gesdd": ("gesdd",),
    "positions": (),
}
_ELEMENTS = {"double": ("d", 8), "float": ("s", 4)}
_COMPILED: dict[tuple[str, str], tuple[int, jit.Library]] = {}
_LOCK = RenewedLock()


class LapackCall(NamedTuple):
    """How a library op is called natively.

    Attributes
    ----------
    routine, element : str
        Name the kernel.
    sizes : tuple of int
        The words after the slot numbers of operands and result.
    batch : int
        How many matrices, or parts of them; 0 if there is nothing to do.
    strip_bytes : int
        Scratch memory of one strip of the batch.
    cost_ns : int
        Estimated serial time.
    alone : bool
        Whether the library uses one thread.
    """

    routine: str
    element: str
    sizes: tuple[int, ...]
    batch: int
    strip_bytes: int
    cost_ns: int
    alone: bool = True

    @property
    def strips(self) -> int:
        """Into how many parts the batch is split."""
        return min(self.batch, MAX_STRIPS)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of the whole launch, without what is borrowed."""
        size = self.strips * self.strip_bytes
        return size if size <= MAX_SCRATCH else 0

    def launch(
        self, status: int, mark: int, scratch: int, buffers: tuple[int, ...]
    ) -> tuple[Launch, object]:
        """The launch and the owner of its code.

        `status`, `scratch` and `buffers` (operands, then result) are slots; `mark` is what the
        status word becomes when the call fails.
        """
        address, library = _kernel(self.routine, self.element)
        kept = self.scratch_bytes or not self.strip_bytes
        place = scratch if kept else -1
        head = (status, mark, place, self.strip_bytes, self.batch, self.strips, int(self.alone))
        launch = Launch(address, (*head, *buffers, *self.sizes), self.strips, self.cost_ns)
        return launch, library


def native_call(node: Node) -> LapackCall | None:
    """How to call a node's op natively, or None if it has to run as a Python routine."""
    native = getattr(node.op, "native", "")
    if native == "positions":
        return _positions(node)
    make = _KINDS.get(native)
    element = node.args[0].dtype.kind if node.args else ""
    if make is None or element not in _ELEMENTS:
        return None
    if any(a.dtype.kind != element for a in node.args):
        return None
    if node.size == 0:
        return LapackCall("potrf", element, (), 0, 0, 0)
    shapes = [a.shape for a in node.args]
    if any(0 in shape for shape in shapes) or not _fits(shapes):
        return None
    call = make(_Matrices(shapes, element, node.attributes()))
    return call if call is not None and _available(call.routine, element) else None


def _fits(shapes: list[tuple[int, ...]]) -> bool:
    """Whether matrices of one batch are small enough."""
    same = len({shape[:-2] for shape in shapes}) == 1
    return same and all(shape[-2] * shape[-1] <= LARGEST for shape in shapes)


def _positions(node: Node) -> LapackCall | None:
    """The check of positions; that of an axis without elements has no position to go on with."""
    size = node.attributes()["size"]
    if size == 0 and node.size:
        return None
    lowest = -size if node.attributes()["negative"] else 0
    blocks = -(-node.size // BLOCK)
    return LapackCall("positions", "i64", (node.size, size, lowest), blocks, 0, node.size // 2)


# -- kinds --------------------------------------------------------------------------------


class _Pieces:
    """Places in a strip's scratch memory."""

    def __init__(self, element: str) -> None:
        self._item = _ELEMENTS[element][1]
        self.bytes = 0

    def elements(self, count: int) -> int:
        """Room for elements; gives its offset in bytes."""
        return self._add(count * self._item)

    def doubles(self, count: int) -> int:
        """Room for elements of double precision; gives its offset in bytes."""
        return self._add(count * 8)

    def integers(self, count: int) -> int:
        """Room for 32-bit integers; gives its offset in bytes."""
        return self._add(count * 4)

    def _add(self, size: int) -> int:
        place = self.bytes
        self.bytes += -(-size // 64) * 64
        return place


class _Matrices:
    """What a kind knows of a node: shapes, element kind, attributes."""

    def __init__(
        self, shapes: list[tuple[int, ...]], element: str, attributes: dict[str, Any]
    ) -> None:
        self.operands = len(shapes)
        self.rows, self.columns = shapes[0][-2:]
        self.right = shapes[-1][-1]
        self.batch = math.prod(shapes[0][:-2])
        self.element = element
        self.attributes = attributes
        self.pieces = _Pieces(element)

    def call(
        self, routine: str, sizes: tuple[int, ...], flops: float, largest: int = 0
    ) -> LapackCall | None:
        """The call, at a rate that grows with the size of the matrices.

        None if an array of `largest` elements needs sizes beyond 32 bits.
        """
        if largest > LARGEST:
            return None
        rate = min(0.5 + min(self.rows, self.columns) / 16, 30.0)
        if self.element == "float":
            rate *= 2
        cost = self.batch * (CALL_NS + flops / rate)
        small = min(self.rows, self.columns) < LIBRARY_SPLITS
        alone = small or self.batch >= MAX_STRIPS
        room = self.pieces.bytes
        return LapackCall(routine, self.element, sizes, self.batch, room, int(cost), alone)


def _cholesky(m: _Matrices) -> LapackCall | None:
    n = m.rows
    return m.call("potrf", (n,), n**3 / 3)


def _triangular(m: _Matrices) -> LapackCall | None:
    n, k, high = m.rows, m.right, m.attributes["upper"]
    # The other way round: memory holds the transposed matrix.
    triangle, diagonal = ord("L" if high else "U"), ord("U" if m.attributes["unit"] else "N")
    if k == 1:
        return m.call("trsv", (n, k, triangle, diagonal), n * n)
    least = max(LEAST_ROWS, -(-k // MAX_STRIPS), PART_WORK // (n * n))
    width = -(-least // PART_ROWS) * PART_ROWS
    call = m.call("trsm", (n, k, triangle, diagonal, width), n * n * k)
    # Each part is solved by itself: the library is alone whatever the size.
    return call and call._replace(batch=m.batch * -(-k // width), alone=True)


def _solve(m: _Matrices) -> LapackCall | None:
    n, k = m.rows, m.right
    m.pieces.elements(n * n)
    return m.call("solve", (n, k, m.pieces.integers(n)), 2 * n**3 / 3 + 2 * n * n * k)


def _inverse(m: _Matrices) -> LapackCall | None:
    n = m.rows
    m.pieces.elements(n * n)
    sizes = (n, m.pieces.integers(n), int(m.attributes["check"]))
    return m.call("inverse", sizes, 8 * n**3 / 3)


def _determinant(m: _Matrices) -> LapackCall | None:
    return _of_diagonal(m, "det")


def _logarithm(m: _Matrices) -> LapackCall | None:
    return _of_diagonal(m, "slogdet")


def _of_diagonal(m: _Matrices, routine: str) -> LapackCall | None:
    n = m.rows
    m.pieces.doubles(n * n)
    return m.call(routine, (n, m.pieces.integers(n)), 2 * n**3 / 3)


def _cofactor(m: _Matrices) -> LapackCall | None:
    n = m.rows
    # Derivatives of higher order have directions; a single number has the cofactor 1.
    if m.operands > 1 or n == 1:
        return None
    m.pieces.doubles(n * n)
    sizes = n, m.pieces.integers(n), m.pieces.doubles(n * n), int(SAFE_CONDITION[0])
    return m.call("cofactor", sizes, 8 * n**3 / 3)


def _lu(m: _Matrices) -> LapackCall | None:
    return _rectangular(m, "lu")


def _pivots(m: _Matrices) -> LapackCall | None:
    return _rectangular(m, "pivots")


def _rectangular(m: _Matrices, routine: str) -> LapackCall | None:
    rows, columns = m.rows, m.columns
    least = min(rows, columns)
    m.pieces.elements(rows * columns)
    sizes = (rows, columns, m.pieces.integers(least))
    return m.call(routine, sizes, rows * columns * least)


def _eigenvectors(m: _Matrices) -> LapackCall | None:
    n = m.rows
    m.pieces.elements(n * n)
    # The least that the routine allows; it holds blocks as well.
    work, numbers = (1 + 6 * n + 2 * n * n, 3 + 5 * n) if n > 1 else (1, 1)
    places = m.pieces.elements(work), work, m.pieces.integers(numbers), numbers
    return m.call("syevd", (n, ord(m.attributes["uplo"]), *places), 9 * n**3, work)


def _orthogonal(m: _Matrices) -> LapackCall | None:
    rows, columns = m.rows, m.columns
    least = min(rows, columns)
    kept = rows if m.attributes["complete"] else least
    lead = max(columns, kept)
    m.pieces.elements(lead * rows)
    # Blocks of 64 are the largest that these routines use.
    work = 64 * lead
    places = m.pieces.elements(least), m.pieces.elements(work), work
    sizes = (rows, columns, kept, lead, *places)
    return m.call("qr", sizes, 4 * rows * lead * least, max(lead * rows, work))


def _singular(m: _Matrices) -> LapackCall | None:
    rows, columns = m.rows, m.columns
    least = min(rows, columns)
    full = m.attributes["full"]
    left, right = (rows, columns) if full else (least, least)
    mode = ord("A" if full else "S")
    m.pieces.elements(rows * columns)
    places = m.pieces.elements(rows * left), m.pieces.elements(right * columns)
    work = _gesdd_work(m.element, mode, rows, columns, right)
    more = m.pieces.elements(work), work, m.pieces.integers(8 * least)
    sizes = (rows, columns, left, right, mode, *places, *more)
    largest = max(work, rows * left, right * columns)
    return m.call("gesdd", sizes, 20 * rows * columns * least, largest)


_KINDS: dict[str, Callable[[_Matrices], LapackCall | None]] = {
    "cholesky": _cholesky,
    "triangular": _triangular,
    "solve": _solve,
    "inverse": _inverse,
    "det": _determinant,
    "slogdet": _logarithm,
    "cofactor": _cofactor,
    "lu": _lu,
    "pivots": _pivots,
    "eigh": _eigenvectors,
    "qr": _orthogonal,
    "svd": _singular,
}


def _gesdd_work(element: str, mode: int, rows: int, columns: int, right: int) -> int:
    """The work space that the routine asks for."""
    address = _address("gesdd", element)
    if address is None:
        return 0
    dtype = np.float64 if element == "double" else np.float32
    numbers = np.array([rows, columns, max(rows, 1), max(right, 1), -1, 0], np.int32)
    work = np.zeros(1, dtype)
    letter = ctypes.c_char(mode)
    cell = [numbers.ctypes.data + 4 * k for k in range(6)]
    data = work.ctypes.data
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 14)(address)(
        ctypes.addressof(letter), cell[0], cell[1], data, cell[2], data, data, cell[2], data, cell[3],
        data, cell[4], data, cell[5],
    )  # fmt: skip
    # Single precision may have rounded the count down.
    return int(work[0] * (1 + float(np.finfo(dtype).eps))) + 1


# -- addresses and code -------------------------------------------------------------------


def _signature(text: str) -> str:
    """A capsule's C signature in the letters of `_LAPACK`; empty if it has other types."""
    match = re.fullmatch(r"void \((.*)\)", text)
    letters = []
    for argument in match[1].split(", ") if match else ["?"]:
        if argument == "int *":
            letters.append("i")
        elif argument == "char *":
            letters.append("l")
        elif re.fullmatch(r"\w+_[sd] \*", argument):
            letters.append("x")
        else:
            return ""
    return "".join(letters)


@cache
def _address(routine: str, element: str) -> int | None:
    """Where SciPy has a routine; None if it takes other types than expected."""
    if routine in _BLAS:
        from scipy.linalg import cython_blas as module
    else:
        from scipy.linalg import cython_lapack as module
    capsule = module.__pyx_capi__.get(_ELEMENTS[element][0] + routine)
    if capsule is None:
        return None
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
        ("PyCapsule_GetName", ctypes.pythonapi)
    )
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    name = name_of(capsule)
    expected = _BLAS.get(routine) or _LAPACK[routine]
    if _signature(name.decode()) != expected:
        return None
    return int(pointer_of(capsule, name))


def _needs(routine: str, element: str) -> list[tuple[str, str]]:
    """The library routines behind a kernel, and their element kinds."""
    kind = "double" if routine in IN_DOUBLE else element
    return [(name, kind) for name in _USES[routine]]


def _available(routine: str, element: str) -> bool:
    return all(_address(*need) is not None for need in _needs(routine, element))


def _kernel(routine: str, element: str) -> tuple[int, jit.Library]:
    """Address and owner of a kernel, compiled on first use."""
    key = routine, element
    with _LOCK:
        if key not in _COMPILED:
            library_threads.provide()
            for name, kind in _needs(routine, element):
                address = _address(name, kind)
                assert address is not None
                jit.add_symbol(symbol(name, kind), address)
            module = Module()
            emit_kernel(module, "kernel", routine, element)
            library = jit.compile_module(module, ["kernel"])
            _COMPILED[key] = library["kernel"], library
        return _COMPILED[key]

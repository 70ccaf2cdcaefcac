"""The native entry: a compiled program as a built-in function that Python calls in 30-100 ns.

Three structures:

* the descriptor: an `EntrySpec` as words in memory (`symgrad.codegen.entry_body`), read by
  machine code that is compiled once for all programs (`symgrad.codegen.entry_ir`);
* `Entry`: the built-in function over a descriptor;
* `EagerSpec`: the plain case for `make_executor`: arrays in, a tuple of new arrays out.

Arguments that differ in any way from the spec (type, shape, dtype, order in memory, keywords)
go to the spec's fallback unchanged. Start reading at `make_entry`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from symgrad.codegen import blocks, entry_ir, entry_walk, jit
from symgrad.codegen.entry_memory import Memory, descriptor
from symgrad.codegen.entry_spec import AnyArray, Argument, EntrySpec, NewArray, TupleOf, leaves
from symgrad.locks import RenewedLock

_NUMPY_NEW_FROM_DESCR = 94
_NUMPY_EQUIV_TYPES = 182
_NUMPY_SET_HANDLER = 304
_NUMPY_DEFAULT_HANDLER = 306
_NUMPY_ARRAY_TYPE = 2
_METH_FASTCALL, _METH_KEYWORDS = 0x80, 0x2
_LOCK = RenewedLock()
_HANDLERS: list[tuple[Callable[[object], object], object, object]] = []
"""NumPy's function that sets where memory comes from, our handler and NumPy's, once they exist."""


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


immortalise = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


class Entry(NamedTuple):
    """A program that Python can call: the built-in function, and its descriptor's address."""

    function: Callable[..., Any]
    address: int


class EagerSpec:
    """A plan for `make_executor`: arrays in, a tuple of new arrays out, nothing checked.

    Slots are numbered: inputs, outputs, constants, pieces of the arena, status.

    Parameters
    ----------
    plan, run : int
        As for `EntrySpec`.
    inputs : int
        How many arrays go in.
    outputs : sequence of (dtype, shape)
        What comes out.
    constants : sequence of int
        Addresses.
    arena_bytes : int
        Scratch memory of one call.
    arena : sequence of int
        Offsets of its pieces.
    release_gil : bool
        Run the plan without the GIL.
    failed : callable or None
        If given, the status slot points to an int64 that is 0 before the plan runs, and
        ``failed(inputs)`` is called, to raise or to return what `execute` returns, when the
        plan makes it anything else.
    keep : tuple of object
        Owners of the memory and code named above.
    """

    def __init__(
        self,
        plan: int,
        run: int,
        inputs: int,
        outputs: Sequence[tuple[npt.DTypeLike, tuple[int, ...]]],
        constants: Sequence[int] = (),
        arena_bytes: int = 0,
        arena: Sequence[int] = (),
        release_gil: bool = False,
        failed: Callable[[tuple[npt.NDArray[Any], ...]], Any] | None = None,
        keep: tuple[object, ...] = (),
    ) -> None:
        def fallback(given: Any) -> Any:
            fits = type(given) is tuple and len(given) == inputs
            if failed is None or not fits or {type(x) for x in given} - {np.ndarray}:
                return _refuse(given, inputs)
            return failed(given)

        first_constant = inputs + len(outputs)
        first_piece = first_constant + len(constants)
        status = first_piece + len(arena)
        spec = EntrySpec(
            inputs=[TupleOf(tuple(AnyArray(i) for i in range(inputs)))],
            output=TupleOf(tuple(NewArray(d, s, inputs + i) for i, (d, s) in enumerate(outputs))),
            slots=status + (failed is not None),
            plan=plan,
            run=run,
            fallback=fallback,
            constants=list(enumerate(constants, first_constant)),
            arena_bytes=arena_bytes,
            arena=list(enumerate(arena, first_piece)),
            release_gil=release_gil,
            status_slot=None if failed is None else status,
            keep=keep,
        )
        self._memory = descriptor(spec, spec.inputs, spec.output, 0)
        self.address: int = self._memory[0].ctypes.data


def make_entry(spec: EntrySpec) -> Entry:
    """A built-in function that runs a program.

    Parameters
    ----------
    spec : EntrySpec
        What it takes, runs and gives.

    Returns
    -------
    Entry
        Called with the arguments of the spec; keeps everything it needs alive.
    """
    return _entry(spec, descriptor(spec, spec.inputs, spec.output, 0))


def make_into(spec: EntrySpec) -> Entry:
    """A built-in function ``f(out, *args)`` that writes its results into given arrays.

    Parameters
    ----------
    spec : EntrySpec
        As for `make_entry`; every leaf of its output is a `NewArray`. The fallback gets
        ``(out, *args)`` too, also when an array of `out` is read-only or shares memory with
        any other array in use.

    Returns
    -------
    Entry
        The function returns `out`.
    """
    if not all(isinstance(leaf, NewArray) for leaf in leaves([spec.output])):
        raise TypeError(
            "make_into: only arrays can be written into (got an output of other leaves than "
            "NewArray); use make_entry"
        )
    return _entry(spec, descriptor(spec, [spec.output, *spec.inputs], Argument(0), 1))


@cache
def make_executor() -> Callable[[int, tuple[npt.NDArray[Any], ...]], tuple[Any, ...]]:
    """The built-in function that runs an `EagerSpec`.

    Returns
    -------
    callable
        ``execute(address, arrays) -> tuple of new arrays``: `address` is that of an `EagerSpec`
        that the caller keeps alive, `arrays` a tuple of ndarrays that fit it. Their number and
        types are checked, their dtypes, shapes and strides are not.
    """
    address = library()["sg_execute"]
    method = _MethodDef(b"execute", address, _METH_FASTCALL, None)
    function: Callable[..., Any] = _new_function(method, (method,), None)
    return function


def trim_arenas() -> int:
    """Free scratch memory and results' memory that is not in use; returns how many pieces it was."""
    free = ctypes.PYFUNCTYPE(ctypes.c_int64)(library()["sg_trim"])
    return int(free())


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in row-major order, of a large array in memory that is kept when the copy dies."""
    if array.nbytes < blocks.LARGE:
        return array.copy()
    library()
    set_handler, own, default = _HANDLERS[0]
    before = set_handler(own)
    try:
        if before is default:
            return array.copy()
    finally:
        set_handler(before)
    return array.copy()


def library() -> jit.Library:
    """The compiled entry, made on first use and never dropped."""
    with _LOCK:
        return _library()


@cache
def _library() -> jit.Library:
    table = _numpy_table()
    jit.add_symbol(entry_ir.NEW_FROM_DESCR, table[_NUMPY_NEW_FROM_DESCR])
    jit.add_symbol(entry_walk.EQUIV_TYPES, table[_NUMPY_EQUIV_TYPES])
    jit.add_symbol(entry_ir.SET_HANDLER, table[_NUMPY_SET_HANDLER])
    jit.add_symbol(entry_ir.DEFAULT_HANDLER, table[_NUMPY_DEFAULT_HANDLER])
    own = ctypes.py_object()
    jit.add_symbol(entry_ir.OWN_HANDLER, ctypes.addressof(own))
    head = object.__basicsize__
    exports = ["sg_call", "sg_entry", "sg_execute", "sg_trim", *blocks.EXPORTS]
    build = partial(entry_ir.build, head)
    recipe = f"entry {head} {blocks.most_lent()}"
    made = jit.compile_source(jit.Source(build, exports, entry_ir.PASSES, recipe))
    jit.add_symbol("sg_call", made["sg_call"])
    own.value, memory = blocks.handler({name: made[name] for name in blocks.EXPORTS})
    # Built-in functions may be called, and arrays freed, until the very end of the process.
    immortalise((made, own, memory))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_NUMPY_SET_HANDLER])
    default = ctypes.cast(table[_NUMPY_DEFAULT_HANDLER], ctypes.POINTER(ctypes.py_object))[0]
    _HANDLERS.append((set_handler, own.value, default))
    return made


def _numpy_table() -> Any:
    """NumPy's C interface: an array of addresses in a capsule."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
    table = ctypes.cast(address, ctypes.POINTER(ctypes.c_size_t))
    if table[_NUMPY_ARRAY_TYPE] != id(np.ndarray):
        raise RuntimeError(
            f"entry: the C interface of NumPy {np.__version__} is not laid out as documented; "
            "install another NumPy"
        )
    return table


def _refuse(given: object, inputs: int) -> None:
    kinds = [type(x).__name__ for x in given] if isinstance(given, tuple) else type(given).__name__
    raise TypeError(
        f"execute: the inputs are not a tuple of {inputs} ndarrays (got {kinds}); pass what the "
        "EagerSpec was made for"
    )


def _entry(spec: EntrySpec, memory: Memory) -> Entry:
    method = _MethodDef(
        b"compiled",
        library()["sg_entry"],
        _METH_FASTCALL | _METH_KEYWORDS,
        None,
    )
    # The function owns the tuple, and so all that the machine code reads; a cycle through the
    # fallback is seen by the garbage collector.
    function = _new_function(method, (*memory, method), None)
    return Entry(function, memory[0].ctypes.data)

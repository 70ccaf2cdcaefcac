"""Objects with attributes and methods that are called as fast as a built-in function.

Two structures:

* a *native class*: a subclass of any Python class, made with ``PyType_FromSpecWithBases``. Its
  instances have two fields more: the address of a vectorcall, and the tuple that a native
  entry's built-in function owns (`symgrad.codegen.entry`);
* the *vectorcall* of that class: reads the tuple and goes on as the built-in function does.

The code is compiled when the first instance is bound; until then, and for any instance that is not
bound, calls go to ``__call__`` of the class.

A call costs 3 ns more than that of the built-in function, where ``__call__ = builtin`` on a
class, or a subclass of `functools.partial`, costs 13-34 ns more on CPython 3.11-3.13.
Start reading at `native_class`.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any, TypeVar

from symgrad.codegen import entry, entry_ir, jit

T = TypeVar("T")

# Numbers of the stable interface of CPython.
_TP_CALL, _TP_MEMBERS = 50, 72
_OBJECT_EX, _SSIZE, _READ_ONLY = 16, 19, 1
_HEAP_TYPE, _HAVE_VECTORCALL = 1 << 9, 1 << 11

_WORD = ctypes.sizeof(ctypes.c_void_p)


class _Member(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Slot(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("value", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basic_bytes", ctypes.c_int),
        ("item_bytes", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]


_new_type = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Spec), ctypes.py_object)(
    ("PyType_FromSpecWithBases", ctypes.pythonapi)
)


def native_class(base: type[T]) -> type[T]:
    """A subclass whose instances are called natively once `bind` gave them an entry.

    Parameters
    ----------
    base : type
        Any class of fixed size, with or without ``__slots__``. Its ``__call__`` is what calling an
        instance that is not bound comes to; without one that raises TypeError.

    Returns
    -------
    type
        The same class for the same base.
    """
    anything: Any = base
    made: type[T] = _native_class(anything)[0]
    return made


def bind(instance: object, target: entry.Entry) -> None:
    """Make an instance of a native class call an entry, which it then keeps alive.

    Binding again is safe at any time, in the entry's own fallback and next to running calls.

    Parameters
    ----------
    instance : object
        Of a class that `native_class` made.
    target : Entry
        From `make_entry` or `make_into`.
    """
    for kind in type(instance).__mro__[1:]:
        made, offset, owned, called = _native_class(kind)
        if made is type(instance):
            owned.__set__(instance, target.function.__self__)  # type: ignore[attr-defined]
            called.__set__(instance, _vectorcall(offset))
            return
        break
    raise TypeError(
        f"bind: {type(instance).__name__} is no native class (got {instance!r}); make one with "
        "native_class"
    )


@cache
def _native_class(base: Any) -> tuple[Any, int, Any, Any]:
    """The class, where its instances own the tuple, and the descriptors of its two fields."""
    if base.__itemsize__:
        raise TypeError(
            f"native_class: the base must have a fixed size (got {base.__name__}); derive from object"
        )
    vectorcall_at = -(-base.__basicsize__ // _WORD) * _WORD
    owned_at = vectorcall_at + _WORD
    members = (_Member * 4)(
        _Member(b"__vectorcalloffset__", _SSIZE, vectorcall_at, _READ_ONLY, None),
        _Member(b"_called", _SSIZE, vectorcall_at, 0, None),
        # The type visits, clears and frees fields of this kind by itself, as it does slots.
        _Member(b"_owned", _OBJECT_EX, owned_at, 0, None),
    )
    call = ctypes.cast(ctypes.pythonapi.PyVectorcall_Call, ctypes.c_void_p).value
    slots = (_Slot * 3)(_Slot(_TP_MEMBERS, ctypes.addressof(members)))
    if "__call__" not in dir(base):
        slots[1] = _Slot(_TP_CALL, call)
    name = f"{base.__module__}.{base.__qualname__}".encode()
    flags = _HEAP_TYPE | _HAVE_VECTORCALL
    spec = _Spec(name, owned_at + _WORD, 0, flags, slots)
    made = _new_type(spec, (base,))
    # The names of the members must outlive the type, which may live to the end.
    entry.immortalise((name, members, slots))
    owned, called = made.__dict__["_owned"], made.__dict__["_called"]
    # Nobody but `bind` is to write these fields.
    del made._owned, made._called
    return made, owned_at, owned, called


@cache
def _vectorcall(offset: int) -> int:
    """The address of the code for instances that own their tuple at an offset."""
    entry.library()
    head = object.__basicsize__
    build = partial(entry_ir.build_vectorcall, head, offset)
    recipe = f"vectorcall {head} {offset}"
    code = jit.compile_source(jit.Source(build, ["sg_vectorcall"], entry_ir.PASSES, recipe))
    entry.immortalise(code)
    return code["sg_vectorcall"]

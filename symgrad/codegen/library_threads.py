"""The threads of SciPy's linear algebra library, and how kernels do without them.

A library that splits small matrices among threads of its own waits for them on cores that this
program's workers hold: a Hessian that takes a millisecond then takes fifty. Kernels therefore
split work among the program's workers and ask the library for one thread while they call it,
which also makes a result's bits independent of how many threads the library has.

One structure, `_State`: memory shared with the compiled code, which counts the kernels that are
inside the library. The first one to come in sets the library to one thread, the last one out
gives it back what it had. Libraries without OpenBLAS' two functions are left as they are.
Start reading at `symbols`.
"""

from __future__ import annotations

import ctypes
import os
from string import Template

from symgrad.codegen import jit
from symgrad.codegen.ir import Module
from symgrad.codegen.pool import locked_once

BEGIN, END = "sg_alone_begin", "sg_alone_end"

# OpenBLAS' names, as SciPy's wheels and other distributions spell them.
_SPELLINGS = (
    "scipy_openblas_$what",
    "openblas_$what",
    "scipy_openblas_${what}64_",
    "openblas_${what}64_",
)

_CODE = Template("""
define internal void @sg_lock() nounwind {
entry:
  br label %try
try:
  %held = cmpxchg ptr @sg_library, i32 0, i32 1 acquire monotonic, align 4
  %free = extractvalue { i32, i1 } %held, 1
  br i1 %free, label %done, label %wait
wait:
  %r = call i32 @sched_yield()
  br label %try
done:
  ret void
}

define void @$begin() nounwind {
entry:
  call void @sg_lock()
  %at = getelementptr i8, ptr @sg_library, i64 4
  %users = load i32, ptr %at, align 4
  %more = add i32 %users, 1
  store i32 %more, ptr %at, align 4
  %first = icmp eq i32 %users, 0
  br i1 %first, label %take, label %done
take:
  %count = call i32 @sg_library_threads()
  %kept = getelementptr i8, ptr @sg_library, i64 8
  store i32 %count, ptr %kept, align 4
  call void @sg_set_library_threads(i32 1)
  br label %done
done:
  store atomic i32 0, ptr @sg_library release, align 4
  ret void
}

define void @$end() nounwind {
entry:
  call void @sg_lock()
  %at = getelementptr i8, ptr @sg_library, i64 4
  %users = load i32, ptr %at, align 4
  %less = sub i32 %users, 1
  store i32 %less, ptr %at, align 4
  %last = icmp eq i32 %less, 0
  br i1 %last, label %give, label %done
give:
  %kept = getelementptr i8, ptr @sg_library, i64 8
  %count = load i32, ptr %kept, align 4
  call void @sg_set_library_threads(i32 %count)
  br label %done
done:
  store atomic i32 0, ptr @sg_library release, align 4
  ret void
}
""")

_NOTHING = Template("""
define void @$begin() nounwind {
  ret void
}

define void @$end() nounwind {
  ret void
}
""")


class _State(ctypes.Structure):
    """What compiled code writes: a lock, kernels inside the library, threads it had before."""

    _fields_ = (("lock", ctypes.c_int32), ("users", ctypes.c_int32), ("count", ctypes.c_int32))


_STATE = _State(0, 0, 0)


def _function(what: str) -> ctypes._FuncPointer | None:
    """A function of the library behind SciPy's BLAS, by the part of its name that all spell alike."""
    from scipy.linalg import cython_blas

    # Looking a name up in a module of SciPy's searches the libraries that it is linked with.
    library = ctypes.CDLL(cython_blas.__file__)
    for spelling in _SPELLINGS:
        name = Template(spelling).substitute(what=what)
        if hasattr(library, name):
            return getattr(library, name)
    return None


@locked_once
def provide() -> jit.Library:
    """Make both functions known to compiled code; gives the owner of their code."""
    module = Module()
    names = {"begin": BEGIN, "end": END}
    reader, setter = _function("get_num_threads"), _function("set_num_threads")
    if reader is None or setter is None or not hasattr(os, "sched_yield"):
        module.add_function(BEGIN, _NOTHING.substitute(names))
    else:
        places = {
            "sg_library": ctypes.addressof(_STATE),
            "sg_library_threads": ctypes.cast(reader, ctypes.c_void_p).value,
            "sg_set_library_threads": ctypes.cast(setter, ctypes.c_void_p).value,
        }
        for name, address in places.items():
            assert address is not None
            jit.add_symbol(name, address)
        module.declarations["sg_library"] = "@sg_library = external global i8"
        module.declare("sg_library_threads", "i32", [])
        module.declare("sg_set_library_threads", "void", ["i32"])
        module.declare("sched_yield", "i32", [])
        module.add_function(BEGIN, _CODE.substitute(names))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _restore(setter))
    library = jit.compile_module(module, [BEGIN, END])
    for name in (BEGIN, END):
        jit.add_symbol(name, library[name])
    return library


def _restore(setter: ctypes._FuncPointer) -> None:
    """In a forked child, undo what the parent's other threads had begun."""
    if _STATE.users:
        setter(_STATE.count)
    _STATE.lock = _STATE.users = 0

"""The compiled thread pool."""

from __future__ import annotations

from functools import cache

from symgrad.codegen import jit
from symgrad.codegen.ir import Module

# Launches with a shorter estimated serial time never leave the calling thread.
HOT_NS = 5_000

INLINE = """
define void @sg_dispatch(ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost, i64 %ahead) nounwind {
  call void %fn(ptr %slots, ptr %args, i64 0, i64 %extent)
  ret void
}
"""

PARALLEL = """
define void @sg_parallel(ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost) nounwind {
  call void @sg_dispatch(ptr %fn, ptr %slots, ptr %args, i64 %extent, i64 %cost, i64 %cost)
  ret void
}
"""


@cache
def symbols() -> dict[str, int]:
    """Addresses of the pool's functions, compiled on first use."""
    module = Module()
    module.add_function("sg_dispatch", INLINE)
    module.add_function("sg_parallel", PARALLEL)
    library = jit.compile_module(module, ["sg_dispatch", "sg_parallel"])
    for name, address in library.addresses.items():
        jit.add_symbol(name, address)
    _KEEP.append(library)
    return library.addresses


_KEEP: list[jit.Library] = []

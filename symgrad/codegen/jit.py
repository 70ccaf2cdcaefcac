"""From LLVM IR text to callable addresses: verify, optimise, emit an object, link it with LLJIT.

Two structures:

* `Library`: a linked object and the addresses of its exported symbols. Dropping the last
  reference frees the machine code.
* the target machine, one per process (`target_machine`), for this very CPU.

The pass list is explicit: the default pipeline leaks some 60 kB a compile, this one 1-8 kB.
Object files go through `symgrad.cache`, keyed by IR text, so the second process only links.
Start reading at `compile_module`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from symgrad.codegen.ir import Module

_LOCK = threading.RLock()
_COUNT = 0
_SYMBOLS: dict[str, int] = {}


class Library:
    """A linked object file: symbol name -> address."""

    def __init__(self, tracker: Any, addresses: dict[str, int]) -> None:
        self._tracker = tracker
        self.addresses = addresses

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]


@lru_cache(maxsize=None)
def target_machine(level: int) -> Any:
    """The code generator for this CPU at optimisation level 0-3."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="pic",
        codemodel="default",
    )


@lru_cache(maxsize=None)
def _jit() -> Any:
    return llvm.create_lljit_compiler(target_machine(2))


def emit_object(text: str, level: int = 2, passes: Sequence[str] = ()) -> bytes:
    """The object file of an IR module.

    Parameters
    ----------
    text : str
        LLVM IR.
    level : int
        Code generator optimisation level.
    passes : sequence of str
        Names of `PassManager` methods without their ``add_`` and ``_pass``, run in order.
    """
    with _LOCK:
        machine = target_machine(level)
        module = llvm.parse_assembly(text)
        module.verify()
        if passes:
            options = llvm.create_pipeline_tuning_options(speed_level=level)
            builder = llvm.create_pass_builder(machine, options)
            manager = llvm.create_new_module_pass_manager()
            for name in passes:
                getattr(manager, f"add_{name}_pass")()
            manager.run(module, builder)
            builder.close()
        data: bytes = machine.emit_object(module)
        module.close()
        return data


def emit_assembly(text: str, level: int = 2) -> str:
    """The assembly text of an IR module."""
    with _LOCK:
        module = llvm.parse_assembly(text)
        module.verify()
        assembly: str = target_machine(level).emit_assembly(module)
        return assembly


def link(data: bytes, exports: Sequence[str], externals: Sequence[str] = ()) -> Library:
    """Load an object file and look up its exported symbols.

    Parameters
    ----------
    data : bytes
        An object file.
    exports : sequence of str
        Symbols that the object defines and the caller wants.
    externals : sequence of str
        Symbols that the object needs: names given to `add_symbol`, or of the C library.
    """
    global _COUNT
    with _LOCK:
        _COUNT += 1
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in externals:
            if name in _SYMBOLS:
                builder = builder.import_symbol(name, _SYMBOLS[name])
        for name in exports:
            builder = builder.export_symbol(name)
        tracker = builder.link(_jit(), f"symgrad{_COUNT}")
        return Library(tracker, {name: tracker[name] for name in exports})


def compile_module(
    module: Module, exports: Sequence[str], level: int = 2, passes: Sequence[str] = ()
) -> Library:
    """Compile and link an IR module in one step."""
    return link(emit_object(module.text(), level, passes), exports, module.externals())


def add_symbol(name: str, address: int) -> None:
    """Make an address known to every later module under a name."""
    _SYMBOLS[name] = address

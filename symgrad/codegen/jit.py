"""From LLVM IR text to callable addresses: verify, optimise, emit an object, link it with LLJIT.

Two structures:

* `Library`: a linked object and the addresses of its exported symbols. Dropping the last
  reference frees the machine code.
* the target machine, one per process and level (`target_machine`), for this very CPU.

The pass list is explicit and each pipeline is made once: the default one leaks some 60 kB a
compile, these a tenth of a kB. Libraries share an LLJIT by the 64 (a `_Generation`), since one
keeps 9 kB of each library for as long as it lives.
Object files go through `symgrad.cache`, keyed by IR text, so the second process only links.
One lock guards all of LLVM; it is held across a fork, so that a child never inherits it taken.
Start reading at `compile_module`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache as kept
from functools import lru_cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from symgrad import cache
from symgrad.codegen.ir import Module
from symgrad.locks import held_across_fork

_LOCK = held_across_fork()
_SYMBOLS: dict[str, int] = {}
_LINKS = 0
_RELOCATION, _CODE_MODEL = "pic", "default"
_LIBRARIES_PER_COMPILER = 64
_GENERATIONS: list[_Generation] = []
_COMPILES = 0


class _Generation:
    """An LLJIT and the number of its libraries still in use."""

    def __init__(self, compiler: Any) -> None:
        self.compiler = compiler
        self.made = 0
        self.live = 0


class Library:
    """A linked object file: symbol name -> address."""

    def __init__(self, tracker: Any, generation: _Generation, addresses: dict[str, int]) -> None:
        self._tracker = tracker
        self._generation = generation
        self.addresses = addresses

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the code stays: threads outside Python may still be in it.
        if not _ending():
            _unlink(self._tracker, self._generation)


@kept
def host_features() -> Any:
    """What this CPU can do: a dict of feature names to truth values, with ``flatten`` for LLVM."""
    with _LOCK:
        return llvm.get_host_cpu_features()


@kept
def target_machine(level: int) -> Any:
    """The code generator for this CPU at optimisation level 0-3."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=host_features().flatten(),
        opt=level,
        reloc=_RELOCATION,
        codemodel=_CODE_MODEL,
    )


@lru_cache(maxsize=64)
def _pipeline(level: int, passes: tuple[str, ...]) -> tuple[Any, Any]:
    # Made once and kept: a fresh pair leaks 5 kB. Analyses live in each run, not in the pair.
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    builder = llvm.create_pass_builder(target_machine(level), options)
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    return manager, builder


@kept
def fingerprint() -> str:
    """What decides the machine code besides the IR: compiler versions, triple, CPU, features, options."""
    versions = ".".join(map(str, llvm.llvm_version_info))
    with _LOCK:
        triple, name = llvm.get_default_triple(), llvm.get_host_cpu_name()
    return (
        f"llvmlite {llvmlite.__version__} LLVM {versions} {triple} {name} "
        f"{host_features().flatten()} {_RELOCATION} {_CODE_MODEL}"
    )


def compile_count() -> int:
    """How many object files this process has emitted (those from the disk left out)."""
    return _COMPILES


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

    Returns
    -------
    bytes
        An object file for `link`.
    """
    global _COMPILES
    with _LOCK:
        machine = target_machine(level)
        module = _parsed(text, machine)
        if passes:
            manager, builder = _pipeline(level, tuple(passes))
            manager.run(module, builder)
        data: bytes = machine.emit_object(module)
        module.close()
        _COMPILES += 1
        return data


def emit_assembly(text: str) -> str:
    """The assembly text of an IR module, at the level that kernels are compiled at."""
    with _LOCK:
        machine = target_machine(2)
        module = _parsed(text, machine)
        assembly: str = machine.emit_assembly(module)
        module.close()
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

    Returns
    -------
    Library
        Holds the machine code; keep it for as long as an address is in use.
    """
    global _LINKS
    with _LOCK:
        _LINKS += 1
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in externals:
            if name in _SYMBOLS:
                builder = builder.import_symbol(name, _SYMBOLS[name])
        for name in exports:
            builder = builder.export_symbol(name)
        generation = _current_generation()
        try:
            tracker = builder.link(generation.compiler, f"symgrad{_LINKS}")
        except RuntimeError as error:
            raise RuntimeError(
                f"link: the object file cannot be loaded (got exports {list(exports)}, externals "
                f"{list(externals)}); name every foreign symbol with add_symbol"
            ) from error
        generation.made += 1
        generation.live += 1
        return Library(tracker, generation, {name: tracker[name] for name in exports})


def compile_module(
    module: Module, exports: Sequence[str], level: int = 2, passes: Sequence[str] = ()
) -> Library:
    """Compile and link an IR module in one step, or link what the disk cache holds.

    Parameters
    ----------
    module : Module
        The finished module.
    exports : sequence of str
        Symbols that the caller wants.
    level : int
        Code generator optimisation level.
    passes : sequence of str
        As for `emit_object`.

    Returns
    -------
    Library
        The linked code.
    """
    text = module.text()
    externals = module.externals()
    key = cache.key_of(text, level, passes, fingerprint())
    data = cache.load(key, fingerprint())
    if data is None:
        data = emit_object(text, level, passes)
        cache.store(key, data, fingerprint())
    return link(data, exports, externals)


def add_symbol(name: str, address: int) -> None:
    """Make an address known to every later module under a name."""
    _SYMBOLS[name] = address


def _current_generation() -> _Generation:
    # An LLJIT keeps 9 kB of each library it ever linked, so it is replaced now and then and
    # closed when the last of its libraries is dropped.
    if not _GENERATIONS or _GENERATIONS[-1].made >= _LIBRARIES_PER_COMPILER:
        compiler = llvm.create_lljit_compiler(target_machine(2), suppress_errors=True)
        _GENERATIONS.append(_Generation(compiler))
        for generation in _GENERATIONS[-2:-1]:
            _close_if_spent(generation)
    return _GENERATIONS[-1]


def _unlink(tracker: Any, generation: _Generation) -> None:
    with _LOCK:
        tracker.close()
        generation.live -= 1
        if generation is not _GENERATIONS[-1]:
            _close_if_spent(generation)


def _close_if_spent(generation: _Generation) -> None:
    # The collector may run between any two steps here and drop libraries: look again.
    if generation.live == 0 and generation in _GENERATIONS:
        _GENERATIONS.remove(generation)
        generation.compiler.close()


def _parsed(text: str, machine: Any) -> Any:
    module = llvm.parse_assembly(text)
    # Without these the passes would assume LLVM's default layout, not this machine's.
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module

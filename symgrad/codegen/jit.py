"""From LLVM IR to callable addresses: object files, emitted or from the disk cache, linked by LLJIT.

Two structures:

* `Source`: IR that is to be compiled, and what the disk cache knows it by;
* `Library`: a linked object and the addresses of its exported symbols. Dropping the last
  reference frees the machine code.

Libraries share an LLJIT by the 64 (a `_Generation`), since one keeps 9 kB of each library for as
long as it lives. Object files go through `symgrad.cache`, so the second process only links.
One lock guards the linker; it is held across a fork, so that a child never inherits it taken.
Start reading at `compile_sources`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache as kept
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from symgrad import cache
from symgrad.codegen import emission
from symgrad.codegen.emission import LEVEL, host_features
from symgrad.codegen.ir import Module
from symgrad.locks import RenewedLock, held_across_fork

_LOCK = held_across_fork()
_SOURCE_LOCK = RenewedLock()
_SYMBOLS: dict[str, int] = {}
_PROVIDERS: list[tuple[re.Pattern[str], Callable[[str], Source]]] = []
_PROVISIONS: list[Library] = []
_LINKS = 0
_LIBRARIES_PER_COMPILER = 64
_GENERATIONS: list[_Generation] = []


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


class Source(NamedTuple):
    """IR to be compiled.

    Attributes
    ----------
    module : callable
        Gives the finished module.
    exports : sequence of str
        Symbols that the caller wants.
    passes : sequence of str
        As for `symgrad.codegen.emission.emit_object`.
    recipe : str or None
        What decides the module beside the source of this package, where that is known before the
        module is written; the disk cache then goes by it.
    """

    module: Callable[[], Module]
    exports: Sequence[str]
    passes: Sequence[str] = ()
    recipe: str | None = None


def source_of(module: Module, exports: Sequence[str], passes: Sequence[str] = ()) -> Source:
    """The source that a finished module is."""
    return Source(lambda: module, exports, passes)


_FORM = "needs first"
"""How `_Object` is packed."""


class _Object(NamedTuple):
    """An object file and the symbols it needs."""

    data: bytes
    externals: list[str]

    def packed(self) -> bytes:
        """As the disk cache keeps it."""
        return " ".join(self.externals).encode() + b"\n" + self.data

    @staticmethod
    def unpacked(content: bytes) -> _Object:
        """What `packed` made."""
        externals, _, data = content.partition(b"\n")
        return _Object(data, externals.decode().split())


def _written_by() -> str | None:
    """A digest of all source that decides what a recipe becomes; None where it cannot be read."""
    # Several threads ask at once, and reading it all takes some milliseconds.
    with _SOURCE_LOCK:
        return _source_digest()


@kept
def _source_digest() -> str | None:
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    try:
        for room in (".", "codegen", "codegen/vmath", "ops", "schedule"):
            folder = str(root / room)
            for name in sorted(os.listdir(folder)):
                if name.endswith(".py"):
                    with open(f"{folder}/{name}", "rb", buffering=0) as file:
                        digest.update(file.read())
    except OSError:
        return None
    return digest.hexdigest()


@kept
def fingerprint() -> str:
    """What decides an entry of the cache besides the IR: compiler, triple, CPU, features, options, form."""
    versions = ".".join(map(str, llvm.llvm_version_info))
    with _LOCK:
        triple, name = llvm.get_default_triple(), llvm.get_host_cpu_name()
    options = f"{emission.RELOCATION} {emission.CODE_MODEL} {emission.LEAN} {emission.CHAINED}"
    return (
        f"llvmlite {llvmlite.__version__} LLVM {versions} {triple} {name} "
        f"{host_features().flatten()} {options} {_FORM}"
    )


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


def compile_module(module: Module, exports: Sequence[str], passes: Sequence[str] = ()) -> Library:
    """Compile and link an IR module in one step, or link what the disk cache holds.

    Parameters
    ----------
    module : Module
        The finished module.
    exports : sequence of str
        Symbols that the caller wants.
    passes : sequence of str
        As for `symgrad.codegen.emission.emit_object`.

    Returns
    -------
    Library
        The linked code.
    """
    return compile_source(source_of(module, exports, passes))


def compile_source(source: Source) -> Library:
    """Compile and link one source, or link what the disk cache holds."""
    (library,) = compile_sources([source], 1)
    return library


def compile_sources(
    sources: Iterable[Source], count: int, step: Callable[[int], None] = lambda done: None
) -> list[Library]:
    """Compile and link sources, on several processors, or link what the disk cache holds.

    Parameters
    ----------
    sources : iterable of Source
        Taken one by one: earlier ones are emitted while later ones are written. Symbols that they
        need and `provide` knows of are compiled beside them.
    count : int
        How many there are, at most.
    step : callable
        Told how many have been emitted.

    Returns
    -------
    list of Library
        The linked code of each.
    """
    given: list[Source] = []
    provided: dict[str, Source] = {}
    missing: dict[int, tuple[str, list[str]]] = {}
    objects: dict[int, _Object] = {}
    with emission.Emission(count) as work:

        def take(number: int, source: Source) -> list[str]:
            """Look an object up or hand its text in; gives the symbols it needs."""
            module = None
            recipe = None
            if source.recipe is not None and _written_by() is not None:
                recipe = f"{_written_by()}\n{source.recipe}"
            else:
                module = source.module()
                recipe = module.text()
            key = cache.key_of(recipe, LEVEL, source.passes, fingerprint())
            found = cache.load(key, fingerprint())
            if found is not None:
                objects[number] = _Object.unpacked(found)
                return objects[number].externals
            module = module or source.module()
            externals = module.externals()
            missing[number] = key, externals
            work.add(number, module.text(), source.passes)
            return externals

        for number, source in enumerate(sources):
            given.append(source)
            for name in take(number, source):
                maker = _provider(name)
                if maker is not None:
                    provided[name] = maker(name)
        # Last, as they are shorter than what needs them.
        work.expected += len(provided)
        for number, source in enumerate(provided.values(), len(given)):
            take(number, source)
        for number, data in work.objects(step).items():
            key, externals = missing[number]
            objects[number] = _Object(data, externals)
            cache.store(key, objects[number].packed(), fingerprint())
    for number, (name, source) in enumerate(provided.items(), len(given)):
        library = link(objects[number].data, source.exports, objects[number].externals)
        _PROVISIONS.append(library)
        add_symbol(name, library[name])
    return [link(objects[n].data, s.exports, objects[n].externals) for n, s in enumerate(given)]


def add_symbol(name: str, address: int) -> None:
    """Make an address known to every later module under a name."""
    _SYMBOLS[name] = address


def provide(pattern: str, source: Callable[[str], Source]) -> None:
    """Say how symbols that match a pattern are made, once some module needs one.

    Parameters
    ----------
    pattern : str
        A regular expression that all of the name must match.
    source : callable
        Gives the source that exports a name.
    """
    _PROVIDERS.append((re.compile(pattern), source))


def _provider(name: str) -> Callable[[str], Source] | None:
    """What makes a symbol that is not there yet, if anything does."""
    if name in _SYMBOLS:
        return None
    return next((source for pattern, source in _PROVIDERS if pattern.fullmatch(name)), None)


@kept
def _machine() -> Any:
    return emission.new_machine()


def _current_generation() -> _Generation:
    # An LLJIT keeps 9 kB of each library it ever linked, so it is replaced now and then and
    # closed when the last of its libraries is dropped.
    if not _GENERATIONS or _GENERATIONS[-1].made >= _LIBRARIES_PER_COMPILER:
        compiler = llvm.create_lljit_compiler(_machine(), suppress_errors=True)
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

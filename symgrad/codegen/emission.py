"""From LLVM IR text to object files, several at once on as many processors.

Structures:

* `Seat`: what one thread at a time compiles with, a lock, code generators and pipelines. There
  is a fixed number of seats, and a fork waits until all are free, so that a child never inherits
  one taken.
* `Emission`: object files on their way. Texts are handed in as they are written; helper threads,
  which end with the emission, emit them meanwhile, and `objects` helps with the rest.

LLVM keeps what it knows of a module in a context, so threads that share none need no lock between
them; llvmlite holds one around every call. Its emitting function is called past that lock where
llvmlite is laid out as known, else with it.

The pass list is explicit and each pipeline is made once: the default one leaks some 60 kB a
compile, these a tenth of a kB. The code generator runs at level 1, and without strength reduction
of loops: addresses are written out by the emitters in forms that the processor has, so that this
pass took a fifth of the time to give code that is no faster.

Where vectors go through many polynomials, instructions are put in order once, by the selector's list
scheduler. The scheduler of machine instructions would draw each chain of dependent fma together to
save registers, further than a processor looks ahead: independent chains would wait for each other.
Other code is better for it. Options hold for all threads, so a text waits until those that want
other options are done.
Start reading at `emit_object`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from types import TracebackType
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from symgrad.codegen import processors
from symgrad.locks import held_across_fork

LEVEL = 1
"""Optimisation level of the code generator. Level 2 adds a scheduler behind register allocation,
which processors that reorder instructions by themselves gain nothing from."""

RELOCATION, CODE_MODEL = "pic", "default"

SEATS = 8
"""Texts compiled at once, at most."""

LEAN = ("-disable-lsr",)
CHAINED = ("-disable-lsr", "-enable-misched=false", "-pre-RA-sched=list-ilp")
OTHERS = ("-disable-lsr=false", "-enable-misched=true", "-pre-RA-sched=default")
"""LLVM's options: for kernels, for those with long chains of fma, and as others have them."""

FMA, MANY_FMA = "@llvm.fma.v", 64
"""A function has long chains if it has more than so many operations on vectors of that name: several
of the vector maths. With one or two (34) the scheduler's saving of registers is worth more."""

KNOWN_LLVM = 22
"""The newest LLVM known to have these options: one that does not know one would end the process."""


class Seat:
    """What one thread at a time compiles with."""

    def __init__(self) -> None:
        self.lock = held_across_fork()
        self._pipelines: dict[tuple[str, ...], tuple[Any, Any]] = {}

    @cached_property
    def machine(self) -> Any:
        """The code generator, which is not safe to share."""
        return new_machine()

    def object_of(self, text: str, passes: tuple[str, ...]) -> bytes:
        """The object file of an IR module."""
        module = _parsed(text, self.machine)
        try:
            if passes:
                manager, builder = self._pipeline(passes)
                manager.run(module, builder)
            return _emitted(self.machine, module, text)
        finally:
            module.close()

    def assembly_of(self, text: str) -> str:
        """The assembly text of an IR module."""
        module = _parsed(text, self.machine)
        try:
            with _lean(text):
                assembly: str = self.machine.emit_assembly(module)
            return assembly
        finally:
            module.close()

    def _pipeline(self, passes: tuple[str, ...]) -> tuple[Any, Any]:
        # Made once and kept: a fresh pair leaks 5 kB. Analyses live in each run, not in the pair.
        found = self._pipelines.get(passes)
        if found is None:
            options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
            builder = llvm.create_pass_builder(self.machine, options)
            manager = llvm.create_new_module_pass_manager()
            for name in passes:
                getattr(manager, f"add_{name}_pass")()
            found = self._pipelines[passes] = manager, builder
        return found


# A fork takes locks in the opposite order of their making, seats before what is taken inside them.
_INNER = held_across_fork()
_SEATS = [Seat() for _ in range(SEATS)]
# The options that texts are being compiled with, how many are, and whom to tell when none is.
_OPTIONS: tuple[str, ...] = OTHERS
_COMPILING = 0
_DONE = threading.Condition(_INNER)
_EMITTED = 0


class Emission:
    """Object files on their way, for use in a ``with`` block.

    Parameters
    ----------
    expected : int
        How many texts there will be, at most: no more threads are started than that.

    Attributes
    ----------
    expected : int
        May be raised before more texts are handed in.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._helpers = min(processors.wanted(), SEATS) - 1
        self._todo: deque[tuple[int, str, tuple[str, ...]]] = deque()
        self._made: dict[int, bytes] = {}
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Emission:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Where the caller was interrupted, helpers end with what they are at.
        self._todo.clear()

    def add(self, number: int, text: str, passes: Sequence[str] = ()) -> None:
        """Hand in a text, by a number of the caller's."""
        self._todo.append((number, text, tuple(passes)))
        if len(self._threads) < min(self._helpers, self.expected - 1):
            thread = threading.Thread(target=self._work, name="symgrad compiler")
            try:
                thread.start()
            except RuntimeError:
                # No thread is to be had, or the interpreter is about to end.
                self._helpers = 0
                return
            self._threads.append(thread)

    def objects(self, step: Callable[[int], None] = lambda done: None) -> dict[int, bytes]:
        """The object files by number, once all are there; `step` hears how many there are."""
        while self._emit_next():
            step(len(self._made))
        for thread in self._threads:
            thread.join()
        for error in self._errors:
            raise error
        return self._made

    def _work(self) -> None:
        while self._emit_next():
            pass

    def _emit_next(self) -> bool:
        try:
            number, text, passes = self._todo.popleft()
        except IndexError:
            return False
        try:
            self._made[number] = emit_object(text, passes)
        except Exception as error:
            self._errors.append(error)
        return True


def emit_object(text: str, passes: Sequence[str] = ()) -> bytes:
    """The object file of an IR module.

    Parameters
    ----------
    text : str
        LLVM IR.
    passes : sequence of str
        Names of `PassManager` methods without their ``add_`` and ``_pass``, run in order.

    Returns
    -------
    bytes
        An object file for `symgrad.codegen.jit.link`.
    """
    global _EMITTED
    with _seat() as seat:
        data = seat.object_of(text, tuple(passes))
        with _INNER:
            _EMITTED += 1
        return data


def emit_assembly(text: str) -> str:
    """The assembly text of an IR module, at the level that kernels are compiled at."""
    with _seat() as seat:
        return seat.assembly_of(text)


def compile_count() -> int:
    """How many object files this process has emitted (those from the disk left out)."""
    return _EMITTED


@cache
def host_features() -> Any:
    """What this CPU can do: a dict of feature names to truth values, with ``flatten`` for LLVM."""
    with _INNER:
        return llvm.get_host_cpu_features()


def new_machine() -> Any:
    """A code generator for this CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=host_features().flatten(),
        opt=LEVEL,
        reloc=RELOCATION,
        codemodel=CODE_MODEL,
    )


@contextmanager
def _seat() -> Iterator[Seat]:
    """A seat, once one is free."""
    seat = next((s for s in _SEATS if s.lock.acquire(blocking=False)), None)
    if seat is None:
        seat = _SEATS[threading.get_ident() % SEATS]
        seat.lock.acquire()
    try:
        yield seat
    finally:
        seat.lock.release()


def _parsed(text: str, machine: Any) -> Any:
    module = llvm.parse_assembly(text, llvm.create_context())
    # Without these the passes would assume LLVM's default layout, not this machine's.
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


def _emitted(machine: Any, module: Any, text: str) -> bytes:
    emit = _emit_unlocked()
    with _lean(text):
        if emit is None:
            data: bytes = machine.emit_object(module)
            return data
        with ffi.OutputString() as error:
            buffer = emit(machine, module, 1, error)
            if not buffer:
                raise RuntimeError(f"emit_object: LLVM cannot compile the module ({error})")
    data = ctypes.string_at(
        ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
    )
    ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
    return data


@cache
def _emit_unlocked() -> Callable[..., Any] | None:
    """llvmlite's ``emit(machine, module, is_object, error)`` without its lock, if it can be had."""
    try:
        locked = ffi.lib.LLVMPY_TargetMachineEmitToMemory
        function: Any = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
        function.argtypes, function.restype = locked.argtypes, locked.restype
    except (AttributeError, OSError):
        return None
    return function if len(function.argtypes or ()) == 4 else None


@contextmanager
def _lean(text: str) -> Iterator[None]:
    """Compile a text with the options that suit it, and leave them to others as they were."""
    if llvm.llvm_version_info[0] > KNOWN_LLVM:
        yield
        return
    global _COMPILING
    options = CHAINED if _has_long_chains(text) else LEAN
    with _INNER:
        while _COMPILING and _OPTIONS is not options:
            _DONE.wait()
        if _COMPILING == 0:
            _set_options(options)
        _COMPILING += 1
    try:
        yield
    finally:
        with _INNER:
            _COMPILING -= 1
            if _COMPILING == 0:
                _set_options(OTHERS)
                _DONE.notify_all()


def _has_long_chains(text: str) -> bool:
    # Measured with 16 registers only; with 32 the scheduler has less to save.
    if host_features().get("avx512f"):
        return False
    return any(body.count(FMA) > MANY_FMA for body in text.split("\ndefine "))


def _set_options(options: tuple[str, ...]) -> None:
    global _OPTIONS
    _OPTIONS = options
    for option in options:
        llvm.set_option("", option)

"""Compiled loop kernels, shared by layout key; and the vector maths they call.

One structure, `Kernel`: an address and the library it lies in. One table, `_COMPILED`: layout key ->
kernel, for as long as some program holds it. Kernels that a program lacks are emitted into one
module and compiled together. Start reading at `compile_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from symgrad.codegen import interrupt, jit, vmath
from symgrad.codegen.ir import Module
from symgrad.codegen.iteration import emit_iteration
from symgrad.codegen.layout import Layout
from symgrad.codegen.loops import emit_kernel
from symgrad.codegen.partials import emit_fold, emit_join, emit_spread
from symgrad.codegen.straight import emit_straight
from symgrad.locks import RenewedLock
from symgrad.progress import Progress
from symgrad.schedule.iterate import Steps


class Kernel:
    """A compiled kernel. Programs hold it; with the last of a library its code is freed."""

    __slots__ = ("__weakref__", "address", "library")

    def __init__(self, address: int, library: jit.Library) -> None:
        self.address = address
        self.library = library


_COMPILED: WeakValueDictionary[Any, Kernel] = WeakValueDictionary()
_LOCK = RenewedLock()
_MATH_READY: dict[str, jit.Library] = {}
_MATH_SYMBOL = re.compile(r"^sg_(\w+)_v(\d+)(f64|f32)$")

TOGETHER = 20_000
"""Characters of IR in one module, from which on the next kernel gets another: modules are compiled
side by side, and each is a step of the progress that is shown."""

PASSES: tuple[str, ...] = ()
"""IR passes run on kernels: none, since the emitter hoists and merges by itself."""


def provide_math(module: Module) -> None:
    """Compile the vector maths that a module calls and does not define."""
    with _LOCK:
        names = [n for n in module.externals() if _MATH_SYMBOL.match(n) and n not in _MATH_READY]
        parts = [jit.source_of(_math_module(name), [name]) for name in names]
        for name, library in zip(names, jit.compile_sources(parts, len(parts)), strict=True):
            jit.add_symbol(name, library[name])
            _MATH_READY[name] = library


def _math_module(name: str) -> Module:
    match = _MATH_SYMBOL.match(name)
    assert match is not None
    module = Module()
    vmath.define(module, match[1], "double" if match[3] == "f64" else "float", int(match[2]))
    return module


def module_of(layouts: Sequence[Layout]) -> Module:
    """The IR of some kernels, named ``kernel0``, ``kernel1``, ..."""
    module = Module()
    for number, layout in enumerate(layouts):
        _add_kernel(module, number, layout)
    return module


def _add_kernel(module: Module, number: int, layout: Layout) -> None:
    emit = emit_straight if layout.mode == "straight" else emit_kernel
    emit(module, f"kernel{number}", layout)


def compile_layouts(layouts: Sequence[Layout]) -> list[Kernel]:
    """Each layout's kernel, compiling what is new."""
    with _LOCK:
        found = {y.key: _COMPILED.get(y.key) for y in layouts}
        new = list({y.key: y for y in layouts if found[y.key] is None}.values())
        parts: list[list[Layout]] = []
        with Progress("compiling loops", len(new)) as progress:

            def step(modules: int) -> None:
                progress.step(sum(len(part) for part in parts[:modules]))

            libraries = jit.compile_sources(_modules_of(new, parts), len(new), step)
        for part, library in zip(parts, libraries, strict=True):
            for number, layout in enumerate(part):
                kernel = Kernel(library[f"kernel{number}"], library)
                found[layout.key] = _COMPILED[layout.key] = kernel
        return [k for k in (found[y.key] for y in layouts) if k is not None]


def _modules_of(layouts: Sequence[Layout], parts: list[list[Layout]]) -> Iterator[jit.Source]:
    """Modules of kernels, each once it is written; `parts` tells which lie in each."""
    module, part = Module(), list[Layout]()
    for place, layout in enumerate(layouts):
        _add_kernel(module, len(part), layout)
        part.append(layout)
        if module.size() < TOGETHER and place + 1 < len(layouts):
            continue
        provide_math(module)
        parts.append(part)
        yield jit.source_of(module, [f"kernel{n}" for n in range(len(part))], PASSES)
        module, part = Module(), list[Layout]()


def join_kernel(combine: str, element: str) -> Kernel:
    """The kernel that joins partial results of a split reduction."""
    key = ("join", combine, element)
    return _single(key, "join", lambda module: emit_join(module, "join", combine, element))


def fold_kernel(combine: str, element: str, chunks: int) -> Kernel:
    """The kernel that joins the partial results of a crossed nest."""
    key = ("fold", combine, element, chunks)
    return _single(key, "fold", lambda module: emit_fold(module, "fold", combine, element, chunks))


def spread_kernel(element: str) -> Kernel:
    """The kernel that moves the results of rows of a crossed nest to their output."""
    return _single(
        ("spread", element), "spread", lambda module: emit_spread(module, "spread", element)
    )


def emitted_kernel(emit: Callable[..., None], *what: Any) -> Kernel:
    """The kernel that ``emit(module, name, *what)`` adds to a module."""
    key = (emit, *map(repr, what))
    return _single(key, "kernel", lambda module: emit(module, "kernel", *what))


def _single(key: Any, name: str, emit: Callable[[Module], None]) -> Kernel:
    """A kernel that depends on no layout, compiled on first use."""
    with _LOCK:
        kernel = _COMPILED.get(key)
        if kernel is None:
            module = Module()
            emit(module)
            library = jit.compile_module(module, [name])
            kernel = _COMPILED[key] = Kernel(library[name], library)
        return kernel


def iteration_kernel(steps: Steps, backward: bool, long: bool) -> Kernel:
    """The kernel of a loop whose steps work on a few numbers."""
    key = ("iteration", backward, long, steps.key())
    with _LOCK:
        kernel = _COMPILED.get(key)
        if kernel is None:
            if long:
                interrupt.runner()
            module = Module()
            emit_iteration(module, "iteration", steps, backward, long)
            kernel = shared_kernel(key, module, "iteration")
        return kernel


def shared_kernel(key: Any, module: Module, name: str) -> Kernel:
    """The kernel of a module, compiled if none with an equal key is in use."""
    with _LOCK:
        kernel = _COMPILED.get(key)
        if kernel is None:
            provide_math(module)
            library = jit.compile_module(module, [name], PASSES)
            kernel = _COMPILED[key] = Kernel(library[name], library)
        return kernel

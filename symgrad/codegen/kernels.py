"""Compiled loop kernels, shared by layout key; and the vector maths they call.

One structure, `Kernel`: an address and the library it lies in. One table, `_COMPILED`: layout key ->
kernel, for as long as some program holds it. Kernels that a program lacks are emitted into one
module and compiled together. Start reading at `compile_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from symgrad.codegen import interrupt, jit, vmath
from symgrad.codegen.ir import Module, written
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
_MATH_SYMBOL = re.compile(r"sg_(\w+)_v(\d+)(f64|f32)")

TOGETHER = 500
"""Lines of IR in one module, about, from which on the next kernel gets another: modules are compiled
side by side, and each is a step of the progress that is shown."""

PASSES: tuple[str, ...] = ()
"""IR passes run on kernels: none, since the emitter hoists and merges by itself."""


def _math_source(name: str) -> jit.Source:
    """The vector maths under one name."""

    def emit(module: Module) -> None:
        match = _MATH_SYMBOL.fullmatch(name)
        assert match is not None
        vmath.define(module, match[1], "double" if match[3] == "f64" else "float", int(match[2]))

    return jit.Source(
        partial(written, emit), [name], recipe=f"math {name} {vmath.avx512.enabled()}"
    )


jit.provide(_MATH_SYMBOL.pattern, _math_source)


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
    """Modules of kernels; `parts` tells which lie in each."""
    part, lines = list[Layout](), 0
    for place, layout in enumerate(layouts):
        part.append(layout)
        lines += layout.lines()
        if lines < TOGETHER and place + 1 < len(layouts):
            continue
        parts.append(part)
        recipes = [y.recipe() for y in part]
        whole = [r for r in recipes if r is not None]
        recipe = None
        if len(whole) == len(recipes):
            recipe = "\n".join([f"kernels {vmath.avx512.enabled()}", *whole])
        exports = [f"kernel{n}" for n in range(len(part))]
        yield jit.Source(partial(module_of, part), exports, PASSES, recipe)
        part, lines = [], 0


def join_kernel(combine: str, element: str) -> Kernel:
    """The kernel that joins partial results of a split reduction."""
    key = ("join", combine, element)
    emit = partial(emit_join, name="join", kind=combine, element=element)
    return _single(key, "join", emit, repr(key))


def fold_kernel(combine: str, element: str, chunks: int) -> Kernel:
    """The kernel that joins the partial results of a crossed nest."""
    key = ("fold", combine, element, chunks)
    emit = partial(emit_fold, name="fold", kind=combine, element=element, chunks=chunks)
    return _single(key, "fold", emit, repr(key))


def spread_kernel(element: str) -> Kernel:
    """The kernel that moves the results of rows of a crossed nest to their output."""
    emit = partial(emit_spread, name="spread", element=element)
    return _single(("spread", element), "spread", emit, f"spread {element}")


def emitted_kernel(emit: Callable[..., None], *what: Any) -> Kernel:
    """The kernel that ``emit(module, name, *what)`` adds to a module."""
    parts = tuple(map(repr, what))
    recipe = f"{emit.__module__} {emit.__qualname__} {parts}"
    return _single((emit, *parts), "kernel", lambda module: emit(module, "kernel", *what), recipe)


def _single(key: Any, name: str, emit: Callable[[Module], None], recipe: str) -> Kernel:
    """A kernel that depends on no layout, compiled on first use."""
    with _LOCK:
        kernel = _COMPILED.get(key)
        if kernel is None:
            source = jit.Source(partial(written, emit), [name], recipe=recipe)
            library = jit.compile_source(source)
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
            library = jit.compile_module(module, [name], PASSES)
            kernel = _COMPILED[key] = Kernel(library[name], library)
        return kernel

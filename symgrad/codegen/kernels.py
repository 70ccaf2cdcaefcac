"""Compiled loop kernels, shared by layout key; and the vector maths they call.

One structure, `Kernel`: an address and the library it lies in. One table, `_COMPILED`: layout key ->
kernel, for as long as some program holds it. Kernels that a program lacks are emitted into one
module and compiled together. Start reading at `compile_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

TOGETHER = 32
"""Kernels in one module, at most: each module is a step of the progress that is shown."""

PASSES: tuple[str, ...] = ()
"""IR passes run on kernels: none, since the emitter hoists and merges by itself."""


def provide_math(module: Module) -> None:
    """Compile the vector maths that a module calls and does not define."""
    with _LOCK:
        missing = []
        for name in module.externals():
            match = _MATH_SYMBOL.match(name)
            if match and name not in _MATH_READY:
                missing.append((name, match))
        for name, match in missing:
            part = Module()
            kind = "double" if match[3] == "f64" else "float"
            vmath.define(part, match[1], kind, int(match[2]))
            library = jit.compile_module(part, [name])
            jit.add_symbol(name, library[name])
            _MATH_READY[name] = library


def module_of(layouts: Sequence[Layout]) -> Module:
    """The IR of some kernels, named ``kernel0``, ``kernel1``, ..."""
    module = Module()
    for number, layout in enumerate(layouts):
        emit = emit_straight if layout.mode == "straight" else emit_kernel
        emit(module, f"kernel{number}", layout)
    return module


def compile_layouts(layouts: Sequence[Layout]) -> list[Kernel]:
    """Each layout's kernel, compiling what is new."""
    with _LOCK:
        found = {y.key: _COMPILED.get(y.key) for y in layouts}
        new = list({y.key: y for y in layouts if found[y.key] is None}.values())
        with Progress("compiling loops", len(new)) as progress:
            for start in range(0, len(new), TOGETHER):
                part = new[start : start + TOGETHER]
                module = module_of(part)
                provide_math(module)
                names = [f"kernel{n}" for n in range(len(part))]
                library = jit.compile_module(module, names, 2, PASSES)
                for name, layout in zip(names, part, strict=True):
                    found[layout.key] = _COMPILED[layout.key] = Kernel(library[name], library)
                progress.step(start + len(part))
        return [k for k in (found[y.key] for y in layouts) if k is not None]


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
            library = jit.compile_module(module, [name], 2, PASSES)
            kernel = _COMPILED[key] = Kernel(library[name], library)
        return kernel

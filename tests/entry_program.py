"""A program for the tests of the native entry: a plan whose kernels are Python callbacks.

They read the slot table as machine code would.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symgrad.codegen import entry
from symgrad.codegen.entry_spec import ArrayLeaf, EntrySpec, NewArray, Node

POINTERS = ctypes.POINTER(ctypes.c_size_t)
KERNEL = ctypes.CFUNCTYPE(None, POINTERS, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, POINTERS)
Slots = Any


class Refused(Exception):
    """Raised by the fallback of the tests, with the arguments it got."""


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise Refused(args, kwargs)


def address(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value


def view(slots: Slots, slot: int, shape: Sequence[int] = (), dtype: Any = np.float64) -> Any:
    """The memory behind a slot."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(slots[slot])
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


class Program:
    """A plan over Python callbacks, and how often its runner was used."""

    def __init__(self, *bodies: Callable[[Slots], object], extents: Sequence[int] = ()) -> None:
        self.kernels = [KERNEL(lambda s, a, lo, hi, body=b: body(s) and None) for b in bodies]
        extents = extents or [1] * len(bodies)
        rows = [[address(k), 0, e, 100, 0] for k, e in zip(self.kernels, extents, strict=True)]
        self.launches = np.array(rows, np.int64)
        self.plan = np.array([len(rows), self.launches.ctypes.data], np.int64)
        self.runs = 0
        self.runner = RUN(self._run)

    def _run(self, plan: int, slots: Slots) -> None:
        assert plan == self.plan.ctypes.data
        self.runs += 1
        for kernel, row in zip(self.kernels, self.launches, strict=True):
            kernel(slots, None, 0, int(row[2]))

    def spec(self, inputs: Sequence[Node], output: Node, slots: int, **more: Any) -> EntrySpec:
        keep = (self, *more.pop("keep", ()))
        more.setdefault("fallback", refuse)
        plan, run = self.plan.ctypes.data, address(self.runner)
        return EntrySpec(inputs, output, slots, plan, run, keep=keep, **more)

    def entry(self, inputs: Sequence[Node], output: Node, slots: int, **more: Any) -> Any:
        return entry.make_entry(self.spec(inputs, output, slots, **more)).function


def twice(shape: Sequence[int], dtype: Any = np.float64) -> Program:
    """Slot 1 := 2 * slot 0."""

    def body(slots: Slots) -> None:
        view(slots, 1, shape, dtype)[...] = 2 * view(slots, 0, shape, dtype)

    return Program(body)


def add_all(count: int) -> Program:
    """Slot `count` := the sum of the float64 cells before it."""

    def body(slots: Slots) -> None:
        view(slots, count)[()] = sum(float(view(slots, i)[()]) for i in range(count))

    return Program(body)


def doubled(shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    program = twice(shape, dtype)
    return program.entry([ArrayLeaf(dtype, shape, 0)], NewArray(dtype, shape, 1), 2)

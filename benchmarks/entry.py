"""Nanoseconds per call of the native entry, of its alternatives, and of what it must beat.

Run as ``python benchmarks/entry.py``. Each figure is the best of several repeats of a timed
loop, the loop itself taken off.
"""

from __future__ import annotations

import functools
import math
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad.codegen import entry, ir, jit
from symgrad.codegen.entry_class import bind, native_class
from symgrad.codegen.entry_spec import (
    ArrayLeaf,
    DictOf,
    EntrySpec,
    FloatLeaf,
    ListOf,
    NewArray,
    Scalar,
    TupleOf,
)

WIDTH = 8
CALLS = 200_000
REPEATS = 9


def kernels() -> jit.Library:
    """`square1`: slot 1 := slot 0 squared; `multiply8`: slot 2 := slot 0 * slot 1, 8 lanes."""
    module = ir.Module()
    kinds = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]

    def kernel(name: str, sources: tuple[int, int], target: int, width: int) -> None:
        f = ir.Function(module, name, kinds)
        slots = [
            f.load(f.gep(f.arguments[0], ir.constant("i64", slot), "ptr"), "ptr")
            for slot in (*sources, target)
        ]
        product = f.fmul(f.load(slots[0], "double", width), f.load(slots[1], "double", width))
        f.store(product, slots[2])
        f.ret()
        f.finish()

    kernel("square1", (0, 0), 1, 1)
    kernel("square8", (0, 0), 1, WIDTH)
    kernel("multiply8", (0, 1), 2, WIDTH)
    return jit.compile_module(module, ["square1", "square8", "multiply8"])


class OneLaunch:
    """A plan of one kernel over one chunk."""

    def __init__(self, library: jit.Library, name: str) -> None:
        self.library = library
        self.launch = np.array([library[name], 0, 1, 10, 0], np.int64)
        self.memory = np.array([1, self.launch.ctypes.data], np.int64)
        self.address = self.memory.ctypes.data


def refuse(*args: object, **kwargs: object) -> None:
    raise TypeError(f"no match: {args} {kwargs}")


def time_ns(call: str, names: dict[str, Any]) -> float:
    """Nanoseconds of one evaluation of `call`."""
    loop = min(timeit.repeat("pass", number=CALLS, repeat=REPEATS))
    best = min(timeit.repeat(call, globals=names, number=CALLS, repeat=REPEATS))
    return (best - loop) / CALLS * 1e9


def report(label: str, call: str, **names: Any) -> None:
    print(f"{label:58s}{time_ns(call, names):8.1f} ns")


class Plain:
    """What a compiled function offers besides the call."""

    def formula(self) -> str:
        return "x**2"


class ByMethod:
    """The obvious way: a Python method that calls the function it holds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class ByPartial(functools.partial[Any]):
    """A partial application without arguments, which may have methods."""


def main() -> None:
    library = kernels()
    one, eight, two = (OneLaunch(library, n) for n in ("square1", "square8", "multiply8"))
    vector = (float, (WIDTH,))

    def made(plan: OneLaunch, inputs: list[Any], output: Any, slots: int) -> entry.Entry:
        spec = EntrySpec(inputs, output, slots, plan.address, 0, refuse, keep=(plan,))
        return entry.make_entry(spec)

    x, a, b, out = 3.0, np.arange(8.0), np.ones(8), np.zeros(8)
    scalar = made(one, [FloatLeaf(0)], Scalar(float, 1), 2)
    print("calls")
    report("math.sqrt(x)", "f(x)", f=math.sqrt, x=x)
    report("native: float in, float out", "f(x)", f=scalar.function, x=x)
    square = made(eight, [ArrayLeaf(*vector, 0)], NewArray(*vector, 1), 2)
    report("NumPy: a * a", "a * a", a=a)
    report("NumPy: np.empty(8)", "f(8)", f=np.empty)
    report("native: array in, new array out", "f(a)", f=square.function, a=a)
    leaves = ArrayLeaf(*vector, 0), ArrayLeaf(*vector, 1)
    product = made(two, list(leaves), NewArray(*vector, 2), 3)
    report("native: two arrays in, new array out", "f(a, b)", f=product.function, a=a, b=b)
    nested = made(two, [ListOf((DictOf(("a", "b"), leaves),))], NewArray(*vector, 2), 3)
    tree = [{"a": a, "b": b}]
    report("native: the same from a list of a dict", "f(t)", f=nested.function, t=tree)
    results = TupleOf((NewArray(*vector, 2), Scalar(float, 3)))
    pair = made(two, list(leaves), results, 4)
    report("native: two arrays in, tuple out", "f(a, b)", f=pair.function, a=a, b=b)
    spec = EntrySpec(leaves, NewArray(*vector, 2), 3, two.address, 0, refuse, keep=(two,))
    into = entry.make_into(spec)
    report("NumPy: np.multiply(a, b, out)", "f(a, b, o)", f=np.multiply, a=a, b=b, o=out)
    report(
        "native: two arrays in, written into out", "f(o, a, b)", f=into.function, a=a, b=b, o=out
    )
    arena = EntrySpec(
        leaves,
        NewArray(*vector, 2),
        5,
        two.address,
        0,
        refuse,
        arena_bytes=4096,
        arena=[(3, 0), (4, 2048)],
        keep=(two,),
    )
    scratch = entry.make_entry(arena)
    report("native: the same with an arena of two pieces", "f(a, b)", f=scratch.function, a=a, b=b)

    print("executor")
    execute = entry.make_executor()
    eager = entry.EagerSpec(two.address, 0, 2, [vector], keep=(two,))
    inputs = (a, b)
    report("two arrays, one result", "f(d, t)", f=execute, d=eager.address, t=inputs)
    report("the same with the tuple made", "f(d, (a, b))", f=execute, d=eager.address, a=a, b=b)

    print("an object that is called, float in and out")
    report("the built-in function itself", "f(x)", f=scalar.function, x=x)
    native: Any = native_class(Plain)()
    bind(native, scalar)
    report("native class", "f(x)", f=native, x=x)
    own = type("Own", (Plain,), {"__call__": scalar.function})()
    report("class of its own with __call__ = built-in", "f(x)", f=own, x=x)
    report("subclass of functools.partial", "f(x)", f=ByPartial(scalar.function), x=x)
    report("functools.partial", "f(x)", f=functools.partial(scalar.function), x=x)
    report("staticmethod", "f(x)", f=staticmethod(scalar.function), x=x)
    report("Python method", "f(x)", f=ByMethod(scalar.function), x=x)


if __name__ == "__main__":
    main()

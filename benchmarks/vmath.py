"""Nanoseconds per element of the vector maths, next to NumPy (and SciPy where NumPy has none).

Each function runs over 2,048 elements in L1, sixteen per step as in compiled kernels, best of
many tries; the inlined body (`emit`) and the noinline version (`call`) are timed apart. One
compile time per body is printed as well. Run ``python benchmarks/vmath.py [names...]``; start
reading at `main`.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from symgrad.codegen import ir, jit, vmath

COUNT = 2048
REPEATS = 20
TRIES = 60
WIDTH = {"double": 16, "float": 16}
DTYPE = {"double": np.float64, "float": np.float32}
TWINS: dict[str, Callable[..., Any]] = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
    "sigmoid": scipy.special.expit,
    "softplus": np.logaddexp,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erfinv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.psi,
}
RANGES = {
    "log": (0.0, 10.0),
    "log2": (0.0, 10.0),
    "log10": (0.0, 10.0),
    "log1p": (-1.0, 5.0),
    "asin": (-1.0, 1.0),
    "acos": (-1.0, 1.0),
    "atanh": (-1.0, 1.0),
    "erfinv": (-1.0, 1.0),
    "acosh": (1.0, 10.0),
    "pow": (0.0, 10.0),
    "lgamma": (0.0, 20.0),
    "digamma": (0.0, 20.0),
}


def compile_loop(name: str, kind: str, mode: str) -> tuple[Any, Callable[..., None], float]:
    """(library, function, compile time in ms) of REPEATS passes over the arrays."""
    module = ir.Module()
    width = WIDTH[kind]
    arity = 1 if name == "sincos" else vmath.KERNELS[name].arity
    results = 2 if name == "sincos" else 1
    f = ir.Function(module, "loop", [(f"p{i}", "ptr", 1) for i in range(arity + results)])
    again, body, after, done = (f.label(t) for t in ("again", "body", "after", "done"))
    f.branch(again)
    f.start(again)
    turn = f.phi("i64")
    f.branch(body)
    f.start(body)
    phi = f.phi("i64")
    args = [f.load(f.gep(p, phi[0], kind), kind, width) for p in f.arguments[:arity]]
    if name == "sincos":
        outputs = list(vmath.sincos(f, args[0]))
    elif mode == "emit":
        outputs = [vmath.emit(f, name, *args)]
    else:
        vmath.define(module, name, kind, width)
        outputs = [vmath.call(f, name, *args)]
    for out, p in zip(outputs, f.arguments[arity:], strict=True):
        f.store(out, f.gep(p, phi[0], kind))
    zero = ir.constant("i64", 0)
    following = f.add(phi[0], ir.constant("i64", width))
    f.set_phi(phi, [(zero, again), (following, f.block)])
    f.branch_if(f.icmp("slt", following, ir.constant("i64", COUNT)), body, after)
    f.start(after)
    next_turn = f.add(turn[0], ir.constant("i64", 1))
    f.set_phi(turn, [(zero, "entry"), (next_turn, after)])
    f.branch_if(f.icmp("slt", next_turn, ir.constant("i64", REPEATS)), again, done)
    f.start(done)
    f.ret()
    f.finish()
    start = time.perf_counter()
    library = jit.compile_module(module, ["loop"])
    compile_ms = (time.perf_counter() - start) * 1e3
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + results))
    return library, prototype(library["loop"]), compile_ms


def best_ns(run: Callable[[], object], elements: int) -> float:
    """The shortest of many runs, per element."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / elements * 1e9


def measure(name: str, kind: str, rng: np.random.Generator) -> list[float]:
    """[inline ns, call ns, NumPy ns, compile ms]."""
    low, high = RANGES.get(name, (-5.0, 5.0))
    arity = 1 if name == "sincos" else vmath.KERNELS[name].arity
    inputs = [rng.uniform(low, high, COUNT).astype(DTYPE[kind]) for _ in range(arity)]
    outputs = [np.empty_like(inputs[0]) for _ in range(2)]
    row = []
    for mode in ("emit", "call"):
        library, loop, compile_ms = compile_loop(name, kind, mode)
        count = 2 if name == "sincos" else 1
        pointers = [a.ctypes.data for a in (*inputs, *outputs[:count])]
        row.append(best_ns(lambda f=loop, p=pointers: f(*p), COUNT * REPEATS))
        del library
        if mode == "emit":
            inline_compile_ms = compile_ms
    if name == "sincos":
        x = inputs[0]
        row.append(best_ns(lambda: (np.sin(x, out=outputs[0]), np.cos(x, out=outputs[1])), COUNT))
    else:
        twin = TWINS[name] if name in TWINS else getattr(np, name)
        operands = [np.zeros_like(inputs[0]), *inputs] if name == "softplus" else inputs
        row.append(best_ns(lambda: twin(*operands, out=outputs[0]), COUNT))
    return [*row, inline_compile_ms]


def main() -> None:
    names = sys.argv[1:] or [*sorted(vmath.NAMES), "sincos"]
    rng = np.random.default_rng(0)
    print(f"{'':9s} | {'float64 ns: inline call numpy':32s} | float32 ns: inline call numpy | ms")
    for name in names:
        double, single = measure(name, "double", rng), measure(name, "float", rng)
        print(
            f"{name:9s} | {double[0]:10.2f} {double[1]:10.2f} {double[2]:10.2f} "
            f"| {single[0]:9.2f} {single[1]:9.2f} {single[2]:9.2f} "
            f"| {double[3]:.1f} {single[3]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

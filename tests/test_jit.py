"""The way from IR to addresses: memory given back, threads, forks, equal objects."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading

import pytest

from symgrad.codegen import ir, jit

PASSES = ("sroa", "instruction_combine", "simplify_cfg")


def adder(value: float) -> ir.Module:
    module = ir.Module()
    body = ir.Function(module, "add", [("x", "double", 1)], ("double", 1))
    body.ret(body.fadd(body.arguments[0], ir.constant("double", value)))
    body.finish()
    return module


def run(library: jit.Library, x: float) -> float:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library["add"])
    result: float = function(x)
    return result


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMGRAD_CACHE", "0")


def resident_kb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_dropped_libraries_give_their_memory_back() -> None:
    for i in range(100):
        jit.compile_module(adder(i), ["add"], 2, PASSES)
    gc.collect()
    before = resident_kb()
    cycles = 1000
    for i in range(cycles):
        jit.compile_module(adder(1000 + i), ["add"], 2, PASSES)
    gc.collect()
    assert (resident_kb() - before) / cycles < 4


def test_compiles_are_counted() -> None:
    before = jit.compile_count()
    jit.compile_module(adder(0.5), ["add"])
    assert jit.compile_count() == before + 1


def test_object_bytes_are_the_same_every_time() -> None:
    first = [jit.emit_object(adder(i).text(), 2, PASSES) for i in range(20)]
    assert [jit.emit_object(adder(i).text(), 2, PASSES) for i in range(20)] == first


def test_external_symbol_is_bound_by_name() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: 3.0 * x)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    jit.add_symbol("symgrad_test_triple", address)
    module = ir.Module()
    body = ir.Function(module, "add", [("x", "double", 1)], ("double", 1))
    tripled = body.call("symgrad_test_triple", ("double", 1), [body.arguments[0]])
    body.ret(body.call("exp", ("double", 1), [tripled]) if tripled else None)
    body.finish()
    assert run(jit.compile_module(module, ["add"]), 0.0) == 1.0


def test_threads_compile_and_drop_at_once() -> None:
    wrong: list[float] = []

    def work(start: int) -> None:
        for i in range(start, start + 25):
            if run(jit.compile_module(adder(i), ["add"]), 0.25) != i + 0.25:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(100 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bad_ir_is_refused_and_the_next_module_compiles() -> None:
    with pytest.raises(RuntimeError):
        jit.emit_object("define double @f() { ret double %nothing }")
    assert run(jit.compile_module(adder(2.0), ["add"]), 1.0) == 3.0


def test_unknown_symbol_is_refused() -> None:
    module = ir.Module()
    body = ir.Function(module, "add", [("x", "double", 1)], ("double", 1))
    body.ret(body.call("symgrad_no_such_symbol", ("double", 1), [body.arguments[0]]))
    body.finish()
    with pytest.raises(RuntimeError, match="symgrad_no_such_symbol"):
        jit.compile_module(module, ["add"])

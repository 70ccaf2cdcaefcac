"""The way from IR to addresses: memory given back, threads, forks, equal objects."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from symgrad.codegen import emission, ir, jit, processors

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
        jit.compile_module(adder(i), ["add"], PASSES)
    gc.collect()
    before = resident_kb()
    cycles = 1000
    for i in range(cycles):
        jit.compile_module(adder(1000 + i), ["add"], PASSES)
    gc.collect()
    assert (resident_kb() - before) / cycles < 4


def test_compiles_are_counted() -> None:
    before = emission.compile_count()
    jit.compile_module(adder(0.5), ["add"])
    assert emission.compile_count() == before + 1


def test_object_bytes_are_the_same_every_time() -> None:
    first = [emission.emit_object(adder(i).text(), PASSES) for i in range(20)]
    assert [emission.emit_object(adder(i).text(), PASSES) for i in range(20)] == first


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
        emission.emit_object("define double @f() { ret double %nothing }")
    assert run(jit.compile_module(adder(2.0), ["add"]), 1.0) == 3.0


def test_unknown_symbol_is_refused() -> None:
    module = ir.Module()
    body = ir.Function(module, "add", [("x", "double", 1)], ("double", 1))
    body.ret(body.call("symgrad_no_such_symbol", ("double", 1), [body.arguments[0]]))
    body.finish()
    with pytest.raises(RuntimeError, match="symgrad_no_such_symbol"):
        jit.compile_module(module, ["add"])


def chain(length: int) -> str:
    """IR of a loop that takes LLVM some milliseconds."""
    lines = [f"  %x{k + 1} = fmul double %x{k}, %x{k // 2}" for k in range(1, length)]
    return "\n".join(
        [
            "define double @chain(double %x0, double %x1, i64 %n) {",
            "entry:",
            "  br label %again",
            "again:",
            "  %i = phi i64 [0, %entry], [%j, %again]",
            *lines,
            "  %j = add i64 %i, 1",
            "  %more = icmp slt i64 %j, %n",
            "  br i1 %more, label %again, label %done",
            "done:",
            f"  ret double %x{length}",
            "}",
        ]
    )


def polynomials(length: int) -> str:
    """IR of two chains of so many fused multiply-adds of vectors."""
    kind = "<4 x double>"
    name, lines = "@llvm.fma.v4f64", []
    for k in range(length):
        for p in "ab":
            lines += [
                f"  %c{p}{k} = load {kind}, ptr %{p}",
                f"  %{p}{k + 1} = call {kind} {name}({kind} %{p}{k}, {kind} %x, {kind} %c{p}{k})",
            ]
    return "\n".join(
        [
            f"declare {kind} {name}({kind}, {kind}, {kind})",
            f"define {kind} @both({kind} %x, {kind} %a0, {kind} %b0, ptr %a, ptr %b) {{",
            *lines,
            f"  %sum = fadd {kind} %a{length}, %b{length}",
            f"  ret {kind} %sum",
            "}",
        ]
    )


def test_texts_emitted_side_by_side_are_those_emitted_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [form(20 + 40 * k) for k in range(4) for form in (chain, polynomials)]
    alone = {k: emission.emit_object(text, PASSES) for k, text in enumerate(texts)}
    monkeypatch.setattr(processors, "wanted", lambda: 4)
    heard: list[int] = []
    for _ in range(3):
        with emission.Emission(len(texts)) as work:
            for number, text in enumerate(texts):
                work.add(number, text, PASSES)
            assert work.objects(heard.append) == alone
    assert all(1 <= done <= len(texts) for done in heard)
    assert not [t for t in threading.enumerate() if t.name == "symgrad compiler"]


def test_a_bad_text_among_good_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "wanted", lambda: 3)
    with pytest.raises(RuntimeError, match="nothing"), emission.Emission(5) as work:
        for number in range(4):
            work.add(number, chain(50))
        work.add(4, "define double @f() { ret double %nothing }")
        work.objects()
    assert run(jit.compile_module(adder(3.0), ["add"]), 1.0) == 4.0


def test_without_threads_the_caller_emits_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(processors, "wanted", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with emission.Emission(3) as work:
        for number in range(3):
            work.add(number, chain(30))
        made = work.objects()
    assert made == dict.fromkeys(range(3), emission.emit_object(chain(30)))


def test_where_llvmlite_is_another_its_own_way_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert emission._emit_unlocked() is not None
    want = emission.emit_object(chain(60))
    monkeypatch.setattr(emission, "_emit_unlocked", lambda: None)
    assert emission.emit_object(chain(60)) == want


def test_other_users_of_llvm_get_their_options_back() -> None:
    # A pointer that moves by a stride is what strength reduction is for.
    text = """
define double @walk(ptr %p, i64 %n, i64 %stride) {
entry:
  br label %again
again:
  %i = phi i64 [0, %entry], [%j, %again]
  %s = phi double [0.0, %entry], [%t, %again]
  %place = mul i64 %i, %stride
  %address = getelementptr double, ptr %p, i64 %place
  %x = load double, ptr %address
  %t = fadd double %s, %x
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %again, label %done
done:
  ret double %t
}
"""

    def theirs() -> bytes:
        machine = emission.new_machine()
        data: bytes = machine.emit_object(emission._parsed(text, machine))
        return data

    before, ours = theirs(), emission.emit_object(text)
    assert ours != before
    assert theirs() == before


def test_long_chains_are_put_in_order_by_other_options_which_nobody_else_gets() -> None:
    text = polynomials(emission.MANY_FMA)

    def theirs() -> str:
        machine = emission.new_machine()
        assembly: str = machine.emit_assembly(emission._parsed(text, machine))
        return assembly

    def order(assembly: str) -> list[str]:
        return re.findall("(?:fma|add)[^\\n]*", assembly)

    before = theirs()
    for _ in range(2):
        with emission._seat() as seat:
            ours = seat.assembly_of(text)
        # Both have each instruction; where there are registers enough, in the same order.
        assert len(order(ours)) == len(order(before))
        assert (order(ours) == order(before)) == bool(emission.host_features().get("avx512f"))
        emission.emit_object(chain(40))
        assert theirs() == before


def test_sources_give_their_libraries_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "wanted", lambda: 3)
    sources = (jit.source_of(adder(float(k)), ["add"], PASSES) for k in range(10))
    libraries = jit.compile_sources(sources, 10)
    assert [run(library, 0.5) for library in libraries] == [k + 0.5 for k in range(10)]


def counted(value: float, recipe: str | None, written: list[float]) -> jit.Source:
    """A source that notes when it is written."""

    def module() -> ir.Module:
        written.append(value)
        return adder(value)

    return jit.Source(module, ["add"], recipe=recipe)


def test_what_is_kept_under_a_recipe_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYMGRAD_CACHE", "1")
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(tmp_path))
    written: list[float] = []
    for value, recipe in ((1.0, "one"), (1.0, "one"), (2.0, "two"), (3.0, None), (3.0, None)):
        assert run(jit.compile_source(counted(value, recipe, written)), 0.5) == value + 0.5
    assert written == [1.0, 2.0, 3.0, 3.0]
    # Other source of this package may write other code by the same recipe.
    monkeypatch.setattr(jit, "_source_digest", lambda: "another")
    jit.compile_source(counted(1.0, "one", written))
    assert written[4:] == [1.0]


def test_symbols_that_are_provided_are_compiled_beside_what_needs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYMGRAD_CACHE", "1")
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_SYMBOLS", dict(jit._SYMBOLS))
    monkeypatch.setattr(jit, "_PROVIDERS", list(jit._PROVIDERS))
    asked: list[str] = []

    def provided(name: str) -> jit.Source:
        def module() -> ir.Module:
            made = ir.Module()
            body = ir.Function(made, name, [("x", "double", 1)], ("double", 1))
            body.ret(body.fadd(body.arguments[0], ir.constant("double", 4.0)))
            body.finish()
            return made

        asked.append(name)
        return jit.Source(module, [name])

    def caller() -> ir.Module:
        made = ir.Module()
        body = ir.Function(made, "add", [("x", "double", 1)], ("double", 1))
        body.ret(body.call("sg_provided_1", ("double", 1), [body.arguments[0]]))
        body.finish()
        return made

    jit.provide(r"sg_provided_\d", provided)
    for _ in range(2):
        # The second time what it needs is known from the entry alone, and is there.
        assert run(jit.compile_source(jit.Source(caller, ["add"], recipe="caller")), 1.0) == 5.0
    assert asked == ["sg_provided_1"]
    del jit._SYMBOLS["sg_provided_1"]
    assert run(jit.compile_source(jit.Source(caller, ["add"], recipe="caller")), 1.0) == 5.0
    assert asked == ["sg_provided_1"] * 2

"""The native entry: memory, plans, the GIL, results written in place; nothing leaks."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from entry_program import (
    RUN,
    Program,
    Refused,
    Slots,
    add_all,
    address,
    refuse,
    twice,
    view,
)

from symgrad.codegen import entry, ir, jit, plan
from symgrad.codegen.entry_spec import (
    ArrayLeaf,
    DictOf,
    EntrySpec,
    FloatLeaf,
    Input,
    ListOf,
    NewArray,
    Node,
    Same,
    Scalar,
    Static,
    TupleOf,
)

# -- memory -------------------------------------------------------------------------------


def test_constants_are_read_where_they_lie() -> None:
    first, second = np.array([1.0, 2.0]), np.array([10.0, 20.0])

    def body(slots: Slots) -> None:
        view(slots, 0, (2,))[:] = view(slots, 1, (2,)) + view(slots, 2, (2,))

    function = Program(body).entry(
        [],
        NewArray(float, (2,), 0),
        3,
        constants=[(1, first.ctypes.data), (2, second.ctypes.data)],
        keep=(first, second),
    )
    np.testing.assert_array_equal(function(), [11.0, 22.0])
    first[0] = 5.0
    np.testing.assert_array_equal(function(), [15.0, 22.0])


def test_arena_is_aligned_writable_and_reused() -> None:
    seen: list[tuple[int, int]] = []

    def body(slots: Slots) -> None:
        seen.append((slots[0], slots[1]))
        view(slots, 0, (1000,), np.uint8)[:] = 255

    function = Program(body).entry([], Static(None), 2, arena_bytes=1000, arena=[(0, 0), (1, 640)])
    for _ in range(5):
        function()
    assert len(set(seen)) == 1
    first, second = seen[0]
    assert first % 64 == 0
    assert second == first + 640
    assert entry.trim_arenas() >= 1
    assert entry.trim_arenas() == 0


@pytest.mark.parametrize("size", [1, 64, 65, 96, 100, 1000, 5000, 50_000, 10**6])
def test_arenas_of_every_size_are_aligned_and_whole(size: int) -> None:
    seen: list[int] = []
    inner: list[Any] = []

    def body(slots: Slots) -> None:
        seen.append(slots[0])
        memory = view(slots, 0, (size,), np.uint8)
        mark = len(seen)
        memory[:] = mark
        if mark < 8:
            inner[0]()
        assert (memory == mark).all()

    inner.append(Program(body).entry([], Static(None), 1, arena_bytes=size, arena=[(0, 0)]))
    inner[0]()
    assert len(set(seen)) == 8
    assert not any(place % 64 for place in seen)


def test_call_inside_a_call_gets_an_arena_of_its_own() -> None:
    seen: list[int] = []
    holder: list[Any] = []

    def body(slots: Slots) -> None:
        view(slots, 0)[()] = len(seen)
        seen.append(slots[0])
        depth = len(seen)
        if depth < 4:
            holder[0]()
        assert view(slots, 0)[()] == depth - 1

    holder.append(Program(body).entry([], Static(None), 1, arena_bytes=64, arena=[(0, 0)]))
    holder[0]()
    assert len(set(seen)) == 4


def test_calls_in_threads_share_nothing() -> None:
    barrier = threading.Barrier(4, timeout=30)
    seen: list[int] = []

    def body(slots: Slots) -> None:
        seen.append(slots[2])
        barrier.wait()
        view(slots, 2)[()] = view(slots, 0)[()]
        barrier.wait()
        view(slots, 1)[()] = view(slots, 2)[()] + 1

    function = Program(body).entry(
        [FloatLeaf(0)],
        Scalar(float, 1),
        3,
        arena_bytes=8,
        arena=[(2, 0)],
        release_gil=True,
    )
    results: dict[float, float] = {}

    def work(x: float) -> None:
        results[x] = function(x)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {float(i): i + 1.0 for i in range(4)}
    assert len(set(seen)) == 4


def test_many_slots_and_results_need_no_stack() -> None:
    count = 300
    output = TupleOf((Scalar(float, count), *(Input(i) for i in range(count))))
    function = add_all(count).entry(
        [ListOf(tuple(map(FloatLeaf, range(count))))], output, count + 1
    )
    values = [float(i) for i in range(count)]
    assert function(values) == (sum(values), *values)
    with pytest.raises(Refused):
        function([*values[:-1], 1])


def test_unused_leaf_is_checked_all_the_same() -> None:
    function = add_all(1).entry([FloatLeaf(0), FloatLeaf(None)], Scalar(float, 1), 2)
    assert function(2.0, 3.0) == 2.0
    with pytest.raises(Refused):
        function(2.0, 3)


# -- plans --------------------------------------------------------------------------------


def test_single_launch_is_called_and_more_go_through_the_runner() -> None:
    order: list[str] = []
    one = Program(lambda s: order.append("a"))
    one.entry([], Static(None), 0)()
    assert (order, one.runs) == (["a"], 0)
    wide = Program(lambda s: order.append("b"), extents=[3])
    wide.entry([], Static(None), 0)()
    assert (order, wide.runs) == (["a", "b"], 1)
    two = Program(lambda s: order.append("c"), lambda s: order.append("d"))
    two.entry([], Static(None), 0)()
    assert (order, two.runs) == (["a", "b", "c", "d"], 1)
    released = Program(lambda s: order.append("e"))
    released.entry([], Static(None), 0, release_gil=True)()
    assert (order[-1], released.runs) == ("e", 1)


@pytest.mark.parametrize("release", [False, True])
def test_launches_of_a_compiled_plan_run_in_order(release: bool) -> None:
    module = ir.Module()
    kinds = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    body = ir.Function(module, "double_one", kinds)
    slots, args, chunk, _ = body.arguments
    numbers = [body.load(body.gep(args, ir.constant("i64", n), "i64"), "i64") for n in (0, 1)]
    places = [body.load(body.gep(slots, number, "ptr"), "ptr") for number in numbers]
    x = body.load(body.gep(places[0], chunk, "double"), "double")
    body.store(body.fadd(x, x), body.gep(places[1], chunk, "double"))
    body.ret()
    body.finish()
    library = jit.compile_module(module, ["double_one"])
    launches = [plan.Launch(library["double_one"], own, 1, 10) for own in ((0, 2), (2, 1))]
    made = plan.Plan(launches, [library])
    spec = EntrySpec(
        [ArrayLeaf(float, (1,), 0)],
        NewArray(float, (1,), 1),
        3,
        made.address,
        plan.runner_symbols()["sg_run"],
        refuse,
        arena_bytes=8,
        arena=[(2, 0)],
        release_gil=release,
        keep=(made,),
    )
    np.testing.assert_array_equal(entry.make_entry(spec).function(np.array([1.5])), [6.0])


def test_plan_that_reports_trouble_goes_to_the_fallback() -> None:
    def body(slots: Slots) -> None:
        x = view(slots, 0)[()]
        view(slots, 1)[()] = math.sqrt(abs(x))
        assert view(slots, 2, (), np.int64)[()] == 0
        view(slots, 2, (), np.int64)[()] = x < 0

    for release in (False, True):
        function = Program(body).entry(
            [FloatLeaf(0)],
            TupleOf((NewArray(float, (), 1),)),
            3,
            status_slot=2,
            release_gil=release,
        )
        assert function(4.0)[0] == 2.0
        with pytest.raises(Refused) as caught:
            function(-4.0)
        assert caught.value.args[0] == (-4.0,)
        assert function(9.0)[0] == 3.0


def test_error_that_a_kernel_sets_is_raised() -> None:
    module = ir.Module()
    kinds = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    body = ir.Function(module, "fail", kinds)
    body.call("PyErr_NoMemory", ("ptr", 1), [])
    status = body.load(body.gep(body.arguments[0], ir.constant("i64", 1), "ptr"), "ptr")
    body.store(ir.constant("i64", 1), status)
    body.ret()
    body.finish()
    library = jit.compile_module(module, ["fail"])
    launches = np.array([[library["fail"], 0, 1, 10, 0]], np.int64)
    head = np.array([1, launches.ctypes.data], np.int64)
    spec = EntrySpec(
        [],
        NewArray(float, (3,), 0),
        2,
        head.ctypes.data,
        0,
        refuse,
        status_slot=1,
        keep=(library, launches, head),
    )
    function = entry.make_entry(spec).function
    for _ in range(3):
        with pytest.raises(MemoryError):
            function()


def gil_state() -> tuple[jit.Library, Any, Any]:
    """A compiled kernel that asks whether its thread holds the GIL."""
    module = ir.Module()
    kinds = [("slots", "ptr", 1), ("args", "ptr", 1), ("lo", "i64", 1), ("hi", "i64", 1)]
    body = ir.Function(module, "ask", kinds)
    held = body.call("PyGILState_Check", ("i32", 1), [])
    assert held is not None
    body.store(body.cast("sext", held, "i64"), body.load(body.arguments[0], "ptr"))
    body.ret()
    body.finish()
    library = jit.compile_module(module, ["ask"])
    launches = np.array([[library["ask"], 0, 1, 10, 0]], np.int64)
    return library, launches, np.array([1, launches.ctypes.data], np.int64)


def test_gil_is_released_when_asked_for() -> None:
    library, launches, head = gil_state()
    module = ir.Module()
    body = ir.Function(module, "run", [("plan", "ptr", 1), ("slots", "ptr", 1)])
    first = body.load(body.gep(body.arguments[0], ir.constant("i64", 1), "i64"), "ptr")
    function = body.load(first, "ptr")
    body.do(f"call void {function.ref}({body.arguments[1]}, ptr null, i64 0, i64 1)")
    body.ret()
    body.finish()
    run = jit.compile_module(module, ["run"])
    keep = (library, launches, head, run)
    for release, expected in ((False, 1), (True, 0)):
        spec = EntrySpec(
            [],
            Scalar(np.int64, 0),
            1,
            head.ctypes.data,
            run["run"],
            refuse,
            release_gil=release,
            keep=keep,
        )
        assert entry.make_entry(spec).function() == expected


def test_arrays_outlive_a_list_emptied_while_the_gil_is_released() -> None:
    arrays = [np.full(3, 4.0)]
    reference = weakref.ref(arrays[0])
    seen: list[Any] = []

    def body(slots: Slots) -> None:
        arrays.clear()
        gc.collect()
        seen.append((reference() is not None, view(slots, 0, (3,)).tolist()))

    function = Program(body).entry(
        [ListOf((ArrayLeaf(float, (3,), 0),))], Input(0), 1, release_gil=True
    )
    result = function(arrays)
    assert seen == [(True, [4.0, 4.0, 4.0])]
    assert result.tolist() == [4.0, 4.0, 4.0]
    del result
    assert reference() is None


# -- nothing leaks ------------------------------------------------------------------------


def refcounts(things: Sequence[object]) -> list[int]:
    return [sys.getrefcount(thing) for thing in things]


@pytest.mark.parametrize("release", [False, True])
def test_calls_leave_reference_counts_and_blocks_alone(release: bool) -> None:
    library, launches, head = gil_state()
    marker, key, array, number = object(), str(b"key", "ascii"), np.zeros(2), 1.5
    inputs: list[Node] = [
        DictOf((key,), (ListOf((ArrayLeaf(float, (2,), 1), FloatLeaf(2))),)),
        Static(marker),
    ]
    output = DictOf(
        (key, 5),
        (
            TupleOf((Scalar(np.int64, 0), NewArray(float, (2,), 3), Same(1), Input(0))),
            ListOf((Input(1), Input(2), Static(marker))),
        ),
    )
    run = RUN(lambda head, slots: None)
    spec = EntrySpec(
        inputs,
        output,
        4,
        head.ctypes.data,
        address(run),
        lambda *args: None,
        release_gil=release,
        arena_bytes=100,
        keep=(library, launches, head, run),
    )
    function = entry.make_entry(spec).function
    argument = {key: [array, number]}
    wrong = {key: [array, 3]}
    watched = (marker, key, array, number, np.dtype(float), argument, None)
    calls = 2_000 if release else 50_000

    def work() -> None:
        for _ in range(calls):
            function(argument, marker)
            function(wrong, marker)

    work()
    before, blocks = refcounts(watched), sys.getallocatedblocks()
    work()
    after = refcounts(watched)
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 20
    assert sys.getallocatedblocks() - blocks < 200


def test_failed_allocation_raises_and_leaks_nothing() -> None:
    array, marker = np.zeros(2), object()
    ran: list[int] = []
    program = Program(lambda slots: ran.append(1))
    inputs: list[Node] = [ListOf((ArrayLeaf(float, (2,), 0),))]
    output = TupleOf((NewArray(float, (2,), 1), NewArray(float, (2**46,), 2), Static(marker)))
    functions = [program.entry(inputs, output, 3, release_gil=r) for r in (False, True)]
    output = TupleOf((NewArray(float, (2,), 1), Static(marker)))
    functions.append(program.entry(inputs, output, 2, arena_bytes=2**62, release_gil=True))
    for function in functions:
        with pytest.raises(MemoryError):
            function([array])
        before = refcounts((array, marker, np.dtype(float)))
        for _ in range(1000):
            with pytest.raises(MemoryError):
                function([array])
        after = refcounts((array, marker, np.dtype(float)))
        assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 20
    assert ran == []


def test_every_allocation_of_a_call_may_fail() -> None:
    faults = pytest.importorskip("_testcapi")
    library, launches, head = gil_state()
    array, marker = np.zeros(2), object()
    many: list[Node] = [Static(marker)] * 40
    last: list[Node] = [Same(0), DictOf(("a",), (Input(0),))]
    output = TupleOf((NewArray(float, (2,), 0), ListOf((*many, *last)), *many))
    spec = EntrySpec(
        [ListOf((ArrayLeaf(float, (2,), 1),))],
        output,
        2,
        head.ctypes.data,
        0,
        refuse,
        keep=(library, launches, head),
    )
    function = entry.make_entry(spec).function
    argument = [array]
    watched = (array, marker, np.dtype(float))
    function(argument)
    before = refcounts(watched)
    failures = 0
    for start in range(10):
        for _ in range(20):
            faults.set_nomemory(start, start + 1)
            try:
                function(argument)
            except MemoryError:
                failures += 1
            finally:
                faults.remove_mem_hooks()
    assert failures >= 60
    gc.collect()
    after = refcounts(watched)
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 10


def test_dropped_entry_frees_what_it_kept_also_in_a_cycle() -> None:
    class Owner:
        function: Any = None

        def fallback(self, *args: Any) -> None:
            return None

    owner = Owner()
    owner.function = add_all(1).entry([FloatLeaf(0)], Scalar(float, 1), 2, fallback=owner.fallback)
    assert owner.function(1.0) == 1.0
    reference = weakref.ref(owner)
    del owner
    gc.collect()
    assert reference() is None


def test_function_lives_on_without_its_entry() -> None:
    function = twice(()).entry([FloatLeaf(0)], Scalar(float, 1), 2)
    gc.collect()
    assert function(1.0) == 2.0


# -- results written into given arrays -------------------------------------------------------


def twice_into() -> Any:
    spec = twice((3,)).spec([ArrayLeaf(float, (3,), 0)], NewArray(float, (3,), 1), 2)
    return entry.make_into(spec).function


def test_into_writes_and_returns_the_array_given() -> None:
    x, out = np.arange(3.0), np.zeros(3)
    assert twice_into()(out, x) is out
    np.testing.assert_array_equal(out, [0.0, 2.0, 4.0])


def test_into_refuses_what_it_cannot_write_or_would_spoil() -> None:
    function, base = twice_into(), np.arange(8.0)
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for out, x in (
        (read_only, base[:3]),
        (base[:3], base[:3]),
        (base[:3], base[2:5]),
        (base[2:5], base[:3]),
        (np.zeros(4), base[:3]),
        (np.zeros(3, np.float32), base[:3]),
        (np.zeros(6)[::2], base[:3]),
    ):
        with pytest.raises(Refused) as caught:
            function(out, x)
        assert caught.value.args[0][0] is out
    np.testing.assert_array_equal(base, np.arange(8.0))
    function(base[3:6], base[:3])
    np.testing.assert_array_equal(base, [0, 1, 2, 0, 2, 4, 6, 7])
    function(base[:3], base[3:6])
    np.testing.assert_array_equal(base, [0, 4, 8, 0, 2, 4, 6, 7])


def test_into_takes_a_tree_of_arrays_that_share_no_memory() -> None:
    held = np.array([1.0, 2.0])

    def body(slots: Slots) -> None:
        view(slots, 0, (2,))[:] = view(slots, 2, (2,))
        view(slots, 1)[()] = 9.0

    spec = Program(body).spec(
        [ArrayLeaf(float, (2,), 2)],
        TupleOf((NewArray(float, (2,), 0), DictOf(("z",), (NewArray(float, (), 1),)))),
        3,
    )
    function = entry.make_into(spec).function
    out = (np.zeros(2), {"z": np.zeros(())})
    assert function(out, held) is out
    np.testing.assert_array_equal(out[0], held)
    assert out[1]["z"] == 9.0
    both = np.zeros(3)
    for bad in ((held, {"z": np.zeros(())}), (both[:2], {"z": both[1:2].reshape(())})):
        with pytest.raises(Refused):
            function(bad, held)
    with pytest.raises(TypeError, match="make_into: only arrays can be written"):
        entry.make_into(add_all(0).spec([], Scalar(float, 0), 1))

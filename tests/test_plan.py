"""Plans: the memory layout, and launches run whole and in order."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from symgrad.codegen import emission, jit, plan, pool

# Chunk i is one element. `ramp`: slot a gets a constant plus i. `mirror`: slot b gets the
# mirror image of slot a, so it needs every chunk of the launch before. `add`: b += a.
KERNELS = """
define void @ramp(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %a.slot = load i64, ptr %args
  %start.at = getelementptr i64, ptr %args, i64 1
  %start = load i64, ptr %start.at
  %a.at = getelementptr ptr, ptr %slots, i64 %a.slot
  %a = load ptr, ptr %a.at
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %value = add i64 %start, %i
  %at = getelementptr i64, ptr %a, i64 %i
  store i64 %value, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @mirror(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %a.slot = load i64, ptr %args
  %b.slot.at = getelementptr i64, ptr %args, i64 1
  %b.slot = load i64, ptr %b.slot.at
  %size.at = getelementptr i64, ptr %args, i64 2
  %size = load i64, ptr %size.at
  %last = sub i64 %size, 1
  %a.at = getelementptr ptr, ptr %slots, i64 %a.slot
  %a = load ptr, ptr %a.at
  %b.at = getelementptr ptr, ptr %slots, i64 %b.slot
  %b = load ptr, ptr %b.at
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %j = sub i64 %last, %i
  %from = getelementptr i64, ptr %a, i64 %j
  %value = load i64, ptr %from
  %to = getelementptr i64, ptr %b, i64 %i
  store i64 %value, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @add(ptr %slots, ptr %args, i64 %lo, i64 %hi) {
entry:
  %a.slot = load i64, ptr %args
  %b.slot.at = getelementptr i64, ptr %args, i64 1
  %b.slot = load i64, ptr %b.slot.at
  %a.at = getelementptr ptr, ptr %slots, i64 %a.slot
  %a = load ptr, ptr %a.at
  %b.at = getelementptr ptr, ptr %slots, i64 %b.slot
  %b = load ptr, ptr %b.at
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %from = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %from
  %to = getelementptr i64, ptr %b, i64 %i
  %y = load i64, ptr %to
  %sum = add i64 %x, %y
  store i64 %sum, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

INLINE_NS, AWAKE_NS, LONG_NS = 100, 20_000, 3_000_000


@pytest.fixture(scope="module")
def kernels() -> jit.Library:
    return jit.link(emission.emit_object(KERNELS), ["ramp", "mirror", "add"])


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = pool.get_num_threads()
    yield
    pool.set_num_threads(before)


def slots_of(*arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.uintp]:
    return np.array([a.ctypes.data for a in arrays], np.uintp)


def test_run_when_plan_is_empty_then_does_nothing() -> None:
    plan.run(plan.Plan([], []), np.zeros(0, np.uintp))


def test_run_when_extent_is_zero_then_kernel_is_not_called(kernels: jit.Library) -> None:
    x = np.full(3, -7, np.int64)
    for cost_ns in (INLINE_NS, LONG_NS):
        launch = plan.Launch(kernels["ramp"], (0, 5), 0, cost_ns)
        plan.run(plan.Plan([launch], [kernels]), slots_of(x))
    assert (x == -7).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cost_ns", [INLINE_NS, AWAKE_NS, LONG_NS])
def test_run_when_launches_depend_on_each_other_then_they_run_in_order(
    kernels: jit.Library, threads: int, cost_ns: int
) -> None:
    pool.set_num_threads(threads)
    size = 1003
    a, b = np.zeros(size, np.int64), np.zeros(size, np.int64)
    steps: list[tuple[str, tuple[int, ...]]] = [
        ("ramp", (0, 10)),
        ("mirror", (0, 1, size)),
        ("add", (1, 0)),
        ("mirror", (0, 1, size)),
        ("add", (1, 0)),
    ]
    program = plan.Plan(
        [plan.Launch(kernels[name], args, size, cost_ns) for name, args in steps], [kernels]
    )
    for _ in range(50):
        a[:], b[:] = -1, -1
        plan.run(program, slots_of(a, b))
        ramp = np.arange(size) + 10
        once = ramp + ramp[::-1]
        np.testing.assert_array_equal(b, once[::-1])
        np.testing.assert_array_equal(a, once + once[::-1])


def test_run_when_costs_are_mixed_then_every_launch_runs_once(kernels: jit.Library) -> None:
    size = 64
    a, b = np.ones(size, np.int64), np.zeros(size, np.int64)
    costs = [INLINE_NS, LONG_NS, AWAKE_NS, INLINE_NS, LONG_NS, LONG_NS, INLINE_NS]
    launches = [plan.Launch(kernels["add"], (0, 1), size, cost) for cost in costs]
    plan.run(plan.Plan(launches, [kernels]), slots_of(a, b))
    np.testing.assert_array_equal(b, np.full(size, len(costs)))


def test_plan_when_made_then_memory_has_the_documented_layout(kernels: jit.Library) -> None:
    first = plan.Launch(kernels["ramp"], (0, -10), 7, 123)
    second = plan.Launch(kernels["mirror"], (0, 1, 9), 8, 456)
    program = plan.Plan([first, second], [kernels])
    count, launches = (ctypes.c_int64 * 2).from_address(program.address)
    assert count == 2
    for number, launch in enumerate((first, second)):
        fn, args, extent, cost_ns, flags = (ctypes.c_int64 * 5).from_address(launches + 40 * number)
        assert (fn, extent, cost_ns, flags) == (launch.fn, launch.extent, launch.cost_ns, 0)
        assert tuple((ctypes.c_int64 * len(launch.args)).from_address(args)) == launch.args


def test_plan_when_costs_add_up_then_total_is_kept(kernels: jit.Library) -> None:
    launches = [plan.Launch(kernels["ramp"], (0, 0), 1, cost) for cost in (1, 20, 300)]
    assert plan.Plan(launches, [kernels]).cost_ns == 321


@pytest.mark.parametrize(("extent", "cost_ns"), [(-1, 0), (1, -5)])
def test_plan_when_a_number_is_negative_then_raises(extent: int, cost_ns: int) -> None:
    with pytest.raises(ValueError, match="Plan: extent and cost_ns must not be negative"):
        plan.Plan([plan.Launch(0, (), extent, cost_ns)], [])


@pytest.mark.parametrize(
    "slots", [np.zeros(2, np.float64), np.zeros(4, np.uintp)[::2]], ids=["dtype", "strides"]
)
def test_run_when_slots_are_unfit_then_raises(slots: npt.NDArray[np.uintp]) -> None:
    with pytest.raises(TypeError, match="run: slots must be a contiguous array of uintp"):
        plan.run(plan.Plan([], []), slots)


def test_runner_symbols_when_asked_twice_then_addresses_stay() -> None:
    symbols = plan.runner_symbols()
    assert set(symbols) == {"sg_run", "sg_parallel"}
    assert all(symbols.values())
    assert plan.runner_symbols() == symbols


def test_runner_symbols_when_another_module_declares_sg_run_then_it_links(
    kernels: jit.Library,
) -> None:
    plan.runner_symbols()
    text = """
    define void @twice(ptr %plan, ptr %slots) {
      call void @sg_run(ptr %plan, ptr %slots)
      call void @sg_run(ptr %plan, ptr %slots)
      ret void
    }
    declare void @sg_run(ptr, ptr)
    """
    library = jit.link(emission.emit_object(text), ["twice"], ["sg_run"])
    twice = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library["twice"])
    a, b = np.ones(5, np.int64), np.zeros(5, np.int64)
    slots = slots_of(a, b)
    program = plan.Plan([plan.Launch(kernels["add"], (0, 1), 5, 10)], [kernels])
    twice(program.address, slots.ctypes.data)
    np.testing.assert_array_equal(b, np.full(5, 2))

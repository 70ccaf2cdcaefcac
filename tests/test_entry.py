"""The native entry: what matches runs, what does not goes to the fallback unchanged."""

from __future__ import annotations

import collections
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entry_program import Program, Refused, Slots, add_all, address, doubled, twice, view

from symgrad.codegen import entry
from symgrad.codegen.entry_spec import (
    ArrayLeaf,
    DictOf,
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

# -- scalars ------------------------------------------------------------------------------


def test_float_goes_in_and_comes_out() -> None:
    function = twice(()).entry([FloatLeaf(0)], Scalar("float64", 1), 2)
    for x in (0.25, -0.0, math.inf, 5e-324, 1e307):
        result = function(x)
        assert type(result) is float
        assert np.float64(result).tobytes() == np.float64(2 * x).tobytes()
    assert math.isnan(function(math.nan))


@pytest.mark.parametrize(
    "x", [1, True, np.float64(1.0), np.float32(1.0), np.array(1.0), "1.0", None, 1j, [1.0]]
)
def test_what_is_no_plain_float_goes_to_the_fallback(x: Any) -> None:
    function = twice(()).entry([FloatLeaf(0)], Scalar("float64", 1), 2)
    with pytest.raises(Refused) as caught:
        function(x)
    ((got,), kwargs) = caught.value.args
    assert got is x
    assert kwargs == {}


def test_wrong_count_and_keywords_go_to_the_fallback() -> None:
    got: list[Any] = []

    def record(*args: Any, **kwargs: Any) -> str:
        got.append((args, kwargs))
        return "fallback"

    function = add_all(2).entry(
        [FloatLeaf(0), FloatLeaf(1)], Scalar("float64", 2), 3, fallback=record
    )
    assert function(1.0, 2.0) == 3.0
    assert function() == function(1.0) == function(1.0, 2.0, 3.0) == "fallback"
    assert function(1.0, y=2.0) == function(a=1) == function(1.0, 2.0, y=3.0) == "fallback"
    assert got == [
        ((), {}),
        ((1.0,), {}),
        ((1.0, 2.0, 3.0), {}),
        ((1.0,), {"y": 2.0}),
        ((), {"a": 1}),
        ((1.0, 2.0), {"y": 3.0}),
    ]
    assert function(*[1.0, 2.0]) == 3.0


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 0.1, float(np.float32(0.1))),
        ("int64", -(2**62) - 1, -(2**62) - 1),
        ("bool", True, True),
        ("bool", False, False),
    ],
)
def test_scalar_results_become_python_numbers(dtype: str, value: Any, expected: Any) -> None:
    def body(slots: Slots) -> None:
        view(slots, 0, (), dtype)[()] = value

    result = Program(body).entry([], Scalar(dtype, 0), 1)()
    assert type(result) is type(expected)
    assert result == expected


# -- arrays -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (1, 2, 1, 2, 2)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.uint8])
def test_array_goes_in_and_a_new_one_comes_out(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    result = doubled(shape, dtype)(x)
    assert type(result) is np.ndarray
    assert result.dtype == dtype
    assert result.flags.c_contiguous and result.flags.owndata and result.flags.writeable
    np.testing.assert_array_equal(result, 2 * x, strict=True)


class Sub(np.ndarray):
    """A subclass of ndarray."""


def unaligned() -> Any:
    return np.zeros(8 * 6 + 1, np.uint8)[1:].view(np.float64).reshape(2, 3)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((2, 3), np.int64),
        np.zeros((2, 3), ">f8"),
        np.zeros((3, 2)),
        np.zeros(6),
        np.zeros((2, 3, 1)),
        np.zeros((2, 3), order="F"),
        np.zeros((2, 6))[:, ::2],
        np.zeros((2, 3))[::-1],
        np.broadcast_to(np.zeros(3), (2, 3)),
        np.zeros((2, 3)).view(Sub),
        np.ma.zeros((2, 3)),
        unaligned(),
        [[0.0] * 3] * 2,
        0.0,
        None,
    ],
)
def test_array_that_differs_goes_to_the_fallback(x: Any) -> None:
    with pytest.raises(Refused) as caught:
        doubled((2, 3))(x)
    assert caught.value.args[0][0] is x


def test_arrays_that_only_look_different_match() -> None:
    x = np.arange(6.0).reshape(2, 3)
    read_only = x.copy()
    read_only.flags.writeable = False
    with_metadata = x.astype(np.dtype(np.float64, metadata={"unit": "m"}))
    for same in (read_only, with_metadata, np.arange(12.0).reshape(2, 6).reshape(4, 3)[1:3] - 3):
        np.testing.assert_array_equal(doubled((2, 3))(same), 2 * x)
    wide = np.arange(4, dtype=np.longlong)
    np.testing.assert_array_equal(doubled((4,), np.int64)(wide), 2 * wide)


# -- nested arguments and results ------------------------------------------------------------

NESTED: list[Node] = [
    FloatLeaf(0),
    TupleOf(
        (ListOf((FloatLeaf(1), FloatLeaf(2))), DictOf(("b", "a"), (FloatLeaf(3), TupleOf(()))))
    ),
    DictOf((7, "x"), (ListOf((TupleOf((FloatLeaf(4),)),)), FloatLeaf(5))),
]


def test_nested_arguments_are_walked() -> None:
    seen: list[list[float]] = []

    def body(slots: Slots) -> None:
        seen.append([float(view(slots, i)[()]) for i in range(6)])

    function = Program(body).entry(NESTED, Static(None), 6)
    assert function(0.5, ([1.5, 2.5], {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}) is None
    assert function(0.5, ([1.5, 2.5], {"b": 3.5, "a": ()}), {7: [(4.5,)], "x": 5.5}) is None
    assert seen == [[0.5, 1.5, 2.5, 3.5, 4.5, 5.5]] * 2


class Pair(collections.namedtuple("Pair", "a b")):
    """A subclass of tuple."""


@pytest.mark.parametrize(
    "arguments",
    [
        (0.5, ([1.5, 2.5, 9.9], {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5], {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2], {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, [[1.5, 2.5], {"a": (), "b": 3.5}], {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ((1.5, 2.5), {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, Pair([1.5, 2.5], {"a": (), "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2.5], {"a": (), "c": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2.5], {"b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2.5], {"a": (), "b": 3.5, "c": 1.0}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2.5], {"a": (), "b": 3.5}), {"x": 5.5, 7.0: [(4.5,)]}),
        (0.5, ([1.5, 2.5], {"a": [], "b": 3.5}), {"x": 5.5, 7: [(4.5,)]}),
        (0.5, ([1.5, 2.5], collections.OrderedDict(a=(), b=3.5)), {"x": 5.5, 7: [(4.5,)]}),
    ],
)
def test_nested_arguments_that_differ_go_to_the_fallback(arguments: tuple[Any, ...]) -> None:
    function = add_all(6).entry(NESTED, Scalar("float64", 6), 7)
    with pytest.raises(Refused):
        function(*arguments)


def test_foreign_keys_are_never_compared() -> None:
    class Key:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

    function = add_all(1).entry([DictOf(("a",), (FloatLeaf(0),))], Scalar("float64", 1), 2)
    assert function({"a": 2.0}) == 2.0
    with pytest.raises(Refused):
        function({Key(): 2.0})


def test_nested_result_is_built_with_shared_leaves() -> None:
    marker = object()

    def body(slots: Slots) -> None:
        view(slots, 2, (2,))[:] = 7, 8
        view(slots, 3)[()] = 2.5
        view(slots, 4, (), np.int64)[()] = 3

    output = DictOf(
        ("arrays", 1),
        (
            ListOf((NewArray(float, (2,), 2), Same(0), TupleOf((Input(1), Static(marker))))),
            TupleOf((Scalar(float, 3), TupleOf(()), ListOf(()), Scalar(np.int64, 4), Input(0))),
        ),
    )
    inputs: list[Node] = [TupleOf((FloatLeaf(0),)), ArrayLeaf(float, (3,), 1)]
    function = Program(body).entry(inputs, output, 5)
    x, array = 1.25, np.zeros(3)
    result = function((x,), array)
    assert list(result) == ["arrays", 1]
    new, again, (same_array, same_marker) = result["arrays"]
    np.testing.assert_array_equal(new, [7.0, 8.0])
    assert again is new
    assert same_array is array
    assert same_marker is marker
    assert result[1] == (2.5, (), [], 3, 1.25)
    assert result[1][4] is x


# -- statics ------------------------------------------------------------------------------


def static(value: object) -> Any:
    return Program(lambda slots: None).entry([Static(value)], Static("matched"), 0)


def test_static_matches_itself_and_equal_plain_values() -> None:
    thing = object()
    not_a_number = math.nan
    assert static(thing)(thing) == static(None)(None) == static(not_a_number)(not_a_number)
    assert static(10**30)(10**30 + 0) == static("a" * 3)("".join("aaa")) == "matched"
    assert static(False)(False) == static(b"xy")(bytes([120, 121])) == "matched"


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 2),
        (1, True),
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        (2.5, float("2.5")),
        ("a", "b"),
        ("a", b"a"),
        (None, 0),
        (10**30, 10**30 + 1),
        ((1, 2), [1, 2]),
    ],
)
def test_static_that_differs_goes_to_the_fallback(value: object, other: object) -> None:
    with pytest.raises(Refused):
        static(value)(other)


# -- the executor -------------------------------------------------------------------------


def eager(program: Program, inputs: int, outputs: Sequence[Any], **more: Any) -> entry.EagerSpec:
    plan, run = program.plan.ctypes.data, address(program.runner)
    return entry.EagerSpec(plan, run, inputs, outputs, keep=(program,), **more)


def test_executor_runs_and_numbers_slots_in_order() -> None:
    fixed = np.array(100.0)

    def body(slots: Slots) -> None:
        scratch = view(slots, 5, (2,))
        scratch[:] = view(slots, 0, (2,)) * view(slots, 1, (2,)) + view(slots, 4)[()]
        view(slots, 2, (2,))[:] = scratch
        view(slots, 3, (), np.float32)[()] = scratch.sum()

    spec = eager(
        Program(body),
        2,
        [(float, (2,)), (np.float32, ())],
        constants=[fixed.ctypes.data],
        arena_bytes=16,
        arena=[0],
    )
    execute = entry.make_executor()
    product, total = execute(spec.address, (np.array([1.0, 2.0]), np.array([3.0, 5.0])))
    np.testing.assert_array_equal(product, np.array([103.0, 110.0]), strict=True)
    np.testing.assert_array_equal(total, np.array(213.0, np.float32), strict=True)


def test_executor_takes_any_array_and_nothing_else() -> None:
    seen: list[int] = []
    spec = eager(Program(lambda slots: seen.append(slots[0])), 1, [])
    execute: Any = entry.make_executor()
    for x in (np.zeros((2, 3), np.int8).T, np.zeros(9)[::-2], np.zeros(())):
        assert execute(spec.address, (x,)) == ()
        assert seen.pop() == x.ctypes.data
    for bad in ((), (np.zeros(1), np.zeros(1)), [np.zeros(1)], (1.0,), (np.zeros(1).view(Sub),)):
        with pytest.raises(TypeError, match=r"execute: .* 1 ndarrays \(got "):
            execute(spec.address, bad)
    for wrong in ((), (spec.address,), (None, (np.zeros(1),)), (spec.address, (), ())):
        with pytest.raises(TypeError):
            execute(*wrong)
    assert seen == []


def test_executor_hands_trouble_to_the_callable_given() -> None:
    def body(slots: Slots) -> None:
        view(slots, 1)[()] = 7.0
        view(slots, 2, (), np.int64)[()] = view(slots, 0)[()] < 0

    def failed(inputs: tuple[Any, ...]) -> None:
        raise ArithmeticError(f"negative: {inputs[0]}")

    spec = eager(Program(body), 1, [(float, ())], failed=failed)
    execute: Any = entry.make_executor()
    assert execute(spec.address, (np.array(2.0),))[0] == 7.0
    with pytest.raises(ArithmeticError, match=r"negative: -2\.0"):
        execute(spec.address, (np.array(-2.0),))
    with pytest.raises(TypeError, match=r"execute: .* 1 ndarrays \(got float\)"):
        execute(spec.address, 2.0)


# -- specs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "output", "error", "words"),
    [
        ([FloatLeaf(2)], Static(None), ValueError, "slot 2 is outside"),
        ([FloatLeaf(-1)], Static(None), ValueError, "slot -1 is outside"),
        ([ArrayLeaf(object, (2,), 0)], Static(None), TypeError, "dtype object"),
        ([ArrayLeaf(">f8", (2,), 0)], Static(None), TypeError, "dtype >f8"),
        ([Scalar(float, 0)], Static(None), TypeError, "Scalar describes no argument"),
        ([], FloatLeaf(0), TypeError, "FloatLeaf describes no result"),
        ([], Scalar(np.int8, 0), TypeError, "no Python number for dtype"),
        ([DictOf((1.5,), (Static(0),))], Static(None), TypeError, "keys must be"),  # type: ignore[arg-type]
        ([DictOf(("a", "a"), (Static(0),) * 2)], Static(None), TypeError, "keys must be"),
        ([], TupleOf((Static(None), Same(0))), TypeError, "must name a NewArray"),
    ],
)
def test_spec_that_makes_no_sense_is_refused(
    inputs: Sequence[Node], output: Node, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        add_all(1).entry(inputs, output, 2)


COUNT = """
from symgrad.codegen import emission, entry
entry.library()
print(emission.compile_count())
"""


def test_entry_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "SYMGRAD_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("SYMGRAD_CACHE", None)
    command = [sys.executable, "-W", "error", "-c", COUNT]
    counts = [
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=environment
        ).stdout.strip()
        for _ in range(2)
    ]
    assert counts == ["1", "0"]

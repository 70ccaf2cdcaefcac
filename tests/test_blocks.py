"""Memory of large results: reused when an array died, bounded, and NumPy's own in all that users see."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import blocks, entry

SIZE = 100_000


def name_of_handler(*array: np.ndarray) -> str:
    return np._core.multiarray.get_handler_name(*array)


def doubling() -> Any:
    return sg.compile(lambda x: 2 * x)


@pytest.fixture(autouse=True)
def _nothing_idle() -> Any:
    gc.collect()
    entry.trim_arenas()
    yield
    entry.trim_arenas()


def test_memory_of_an_array_that_died_serves_the_next() -> None:
    f = doubling()
    x = np.arange(float(SIZE))
    y = f(x)
    place = y.ctypes.data
    del y
    z = f(x + 1)
    assert z.ctypes.data == place
    np.testing.assert_array_equal(z, 2 * x + 2)
    # While that lives the next one is elsewhere.
    assert f(x).ctypes.data != place
    np.testing.assert_array_equal(z, 2 * x + 2)


def test_results_in_eager_mode_are_served_too() -> None:
    x = sg.ones(SIZE, dtype=sg.float64)

    def computed(factor: float) -> np.ndarray:
        y = x * factor
        repr(y)
        return y.expr().value

    first = computed(5.5)
    assert name_of_handler(first) == "symgrad"
    place = first.ctypes.data
    del first
    assert computed(9.5).ctypes.data == place


def test_arrays_that_share_a_tensors_memory_are_served_too() -> None:
    x = sg.ones(SIZE, dtype=sg.float64)
    y = (x * 3.5).numpy()
    assert name_of_handler(y) == "symgrad"
    assert name_of_handler() == "default_allocator"
    np.testing.assert_array_equal(y, np.full(SIZE, 3.5))
    assert name_of_handler((x[:9] * 3.5).numpy()) == "default_allocator"


def test_arrays_are_as_numpys_own() -> None:
    y = doubling()(np.ones(SIZE))
    assert y.flags.owndata and y.flags.writeable and y.base is None
    assert y.ctypes.data % 64 == 0
    assert name_of_handler(y) == "symgrad"
    assert name_of_handler() == name_of_handler(y.copy()) == "default_allocator"
    y.resize(3 * SIZE, refcheck=False)
    assert (y[:SIZE] == 2).all() and (y[SIZE:] == 0).all()
    y.resize(10, refcheck=False)
    assert (y == 2).all()


def test_small_results_are_numpys() -> None:
    assert name_of_handler(doubling()(np.ones(10))) == "default_allocator"


def test_a_much_larger_block_is_not_given_for_a_small_array() -> None:
    f = doubling()
    large = f(np.ones(4 * SIZE))
    place = large.ctypes.data
    del large
    assert f(np.ones(SIZE)).ctypes.data != place
    assert f(np.ones(4 * SIZE - 1000)).ctypes.data == place


def test_idle_memory_is_bounded_and_can_be_freed() -> None:
    f = doubling()
    x = np.ones(SIZE)
    most = blocks.MOST_IDLE // x.nbytes
    held = [f(x) for _ in range(most + most // 2)]
    # What dies beyond the bound makes the idle blocks go; the rest dies after them.
    held.clear()
    assert most // 2 - 1 <= entry.trim_arenas() <= most
    assert entry.trim_arenas() == 0


def lazily_freed() -> int:
    """Bytes that the system may take from this process when it needs them."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        pytest.skip("the system does not say what it may take back")
    (line,) = [x for x in rollup.read_text().splitlines() if x.startswith("LazyFree:")]
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(
    blocks.most_lent() <= 2 * blocks.MOST_IDLE, reason="kept on loan on Linux, with more than 2 GB"
)
def test_blocks_beyond_the_bound_are_kept_on_loan() -> None:
    x = np.zeros(blocks.MOST_IDLE + 8, np.bool_)
    invert = sg.compile(lambda x: ~x)
    y = invert(x)
    assert name_of_handler(y) == "symgrad" and y.all()
    place = y.ctypes.data
    assert lazily_freed() == 0
    del y
    assert lazily_freed() > 0.9 * x.nbytes
    y = invert(x)
    assert y.ctypes.data == place and y.all()
    assert lazily_freed() == 0
    del y
    assert entry.trim_arenas() == 1


def test_very_large_blocks_are_not_kept_where_memory_is_small() -> None:
    program = """
import os
os.sysconf = lambda name: 1
import numpy as np, symgrad as sg
from symgrad.codegen import blocks, entry
x = np.zeros(blocks.MOST_IDLE // 2 + 8, np.bool_)
invert = sg.compile(lambda x: ~x)
y = invert(x)
assert np._core.multiarray.get_handler_name(y) == "symgrad" and y.all()
entry.trim_arenas()
del y
print(entry.trim_arenas())
y = invert(x[:-16])
del y
print(entry.trim_arenas())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "1"]


def test_results_begin_on_different_lines_of_their_pages() -> None:
    f = doubling()
    x = np.ones(SIZE)
    held = [f(x) for _ in range(12)]
    assert len({y.ctypes.data % 4096 for y in held}) == 12


def test_threads_get_memory_of_their_own() -> None:
    f = doubling()
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full(SIZE, float(number))
        for k in range(40):
            pair = f(x + k), f(x - k)
            if not ((pair[0] == 2 * (number + k)).all() and (pair[1] == 2 * (number - k)).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def set_handler(capsule: object) -> object:
    table = entry._numpy_table()
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])
    return function(capsule)


def test_a_users_own_handler_goes_first() -> None:
    f = doubling()
    x = np.ones(SIZE)
    f(x)
    library = entry.library()
    capsule, memory = blocks.handler({name: library[name] for name in blocks.EXPORTS})
    memory.name = b"user's"
    before = set_handler(capsule)
    try:
        y = f(x)
        assert name_of_handler(y) == name_of_handler() == "user's"
        assert name_of_handler(entry.copied(y)) == name_of_handler() == "user's"
    finally:
        set_handler(before)
    del y
    assert name_of_handler(f(x)) == "symgrad"


def test_too_much_memory_is_an_error_and_leaves_numpys_handler() -> None:
    f = sg.compile(lambda x: x.expand(2**45) + 1)
    with pytest.raises(MemoryError):
        f(np.ones(1))
    assert name_of_handler() == "default_allocator"
    np.testing.assert_array_equal(doubling()(np.ones(SIZE)), np.full(SIZE, 2.0))

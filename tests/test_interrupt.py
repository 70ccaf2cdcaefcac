"""Long programs hear Ctrl-C; short ones, other threads and later calls go on as before."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import symgrad as sg

WAIT_S = 0.2
"""When the signal comes after the program's start."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX does")


def deep(x):
    """Minutes of work on an array that takes no time to fill."""
    for _ in range(40):
        x = sg.sin(sg.erf(sg.tanh(sg.exp(-x * x))))
    return x.sum()


def by_scan(x):
    return sg.scan(lambda c, _: (sg.sin(sg.exp(-c)), None), x, length=2_000_000_000)[0]


def by_programs(x):
    return sg.scan(lambda c, _: (sg.tanh(c @ c), None), x, length=10_000_000)[0].sum()


CASES = {
    "fused loop": (deep, np.full(20_000_000, 0.3)),
    "loop in registers": (by_scan, np.array(0.3)),
    "loop of programs": (by_programs, np.full((40, 40), 0.01)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_long_program_is_interrupted(name):
    function, x = CASES[name]
    compiled = sg.compile(function)
    compiled.trace(x)
    compiled._latest().recipe
    timer = threading.Timer(WAIT_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    assert time.perf_counter() - start < 20.0
    timer.join()
    small = sg.compile(lambda x: sg.sin(x).sum())
    np.testing.assert_allclose(small(np.ones(5)), 5 * np.sin(1.0))


def test_an_eager_look_is_interrupted():
    x = sg.tensor(np.full(20_000_000, 0.3))
    timer = threading.Timer(WAIT_S, os.kill, (os.getpid(), signal.SIGINT))
    y = deep(x)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        y.item()
    timer.join()


def test_a_handler_that_raises_nothing_lets_the_program_finish():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        compiled = sg.compile(
            lambda x: sg.scan(lambda c, _: (sg.cos(c), None), x, length=20_000_000)[0]
        )
        compiled.trace(0.5)
        compiled._latest().recipe
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert compiled(0.5) == pytest.approx(0.7390851332151607, rel=1e-15)
        timer.join()
        assert seen == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)

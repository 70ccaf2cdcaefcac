"""Timing in turns: how `symgrad.bench`, `symgrad.explain` and the examples measure.

Functions are called one after the other, so that whatever else the machine does hits all alike,
and medians are compared. Start reading at `medians`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Step = Callable[[], Any]
SAMPLE_S = 1e-3
"""Quick functions are called in a loop for about this long per sample."""


def calls_per_sample(function: Step) -> int:
    """How many calls last about `SAMPLE_S`; warms the function up on the way."""
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        if time.perf_counter() - start >= SAMPLE_S or calls >= 1_000_000:
            return calls
        calls *= 4


def medians(functions: Sequence[Step], seconds: float = 0.5) -> list[float]:
    """Median seconds per call of each function, measured in turns.

    Parameters
    ----------
    functions : sequence of callables without arguments
    seconds : float
        Time to spend per function; each is sampled at least three times.

    Returns
    -------
    list of float
    """
    loops = [calls_per_sample(f) for f in functions]
    samples: list[list[float]] = [[] for _ in functions]
    stop = time.perf_counter() + seconds * len(functions)
    while len(samples[-1]) < 3 or time.perf_counter() < stop:
        for function, loop, times in zip(functions, loops, samples, strict=True):
            start = time.perf_counter()
            for _ in range(loop):
                function()
            times.append((time.perf_counter() - start) / loop)
    return [float(np.median(times)) for times in samples]


def duration(seconds: float) -> str:
    """A time in the unit that suits it, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"

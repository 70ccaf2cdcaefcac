"""Random programs: however one is evaluated, its bits are the same, and its values NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from symgrad.dtypes import float32, float64
from symgrad.testing import cut_finely, in_little_room, in_segments, run, same_bits, threaded
from symgrad.testing.programs import (
    as_whole,
    node_by_node,
    random_program,
    recorded,
    result_only,
    with_looks,
)

COUNT = 200
BATCH = 10


def check(seed):
    floating = float32 if seed % 3 == 2 else float64
    program = random_program(seed, floating)
    rng = np.random.default_rng(seed)
    expected = result_only(program)
    with cut_finely(), threaded(2):
        in_threads = result_only(program)
    with in_segments():
        segments = as_whole(program)[len(program.values) - 1 :]
    with in_segments(5):
        short_segments = result_only(program)
    with in_little_room():
        made = recorded(program)
        small = run([made.values[-1], *made.gradient], small=True)
    ways = {
        "little room": small,
        "segments": segments,
        "short segments": short_segments,
        "all values wanted": as_whole(program)[len(program.values) - 1 :],
        "chunks and threads": in_threads,
        "with looks": with_looks(program, rng),
        "node by node": node_by_node(program),
    }
    for name, found in ways.items():
        for k, (x, y) in enumerate(zip(expected, found, strict=True)):
            what = f"gradient {k - 1}" if k else "result"
            assert same_bits(x, y), f"seed {seed}, {name}: {what} differs\n{program.text()}"
    if floating is float64:
        values = as_whole(program)
        for k, (value, reference) in enumerate(zip(values, program.values, strict=False)):
            np.testing.assert_allclose(
                value, reference, rtol=1e-7, atol=1e-9,
                err_msg=f"seed {seed}, v{k} against NumPy\n{program.text()}",
            )  # fmt: skip


@pytest.mark.parametrize("start", range(0, COUNT, BATCH))
def test_random_programs_give_the_same_bits_in_every_way(start):
    for seed in range(start, start + BATCH):
        check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(COUNT, 20 * COUNT, BATCH))
def test_many_random_programs_give_the_same_bits_in_every_way(start):
    for seed in range(start, start + BATCH):
        check(seed)


def test_programs_are_of_use():
    programs = [random_program(seed, float64) for seed in range(COUNT)]
    assert all(len(p.steps) >= 8 for p in programs)
    names = {s.subject.name for p in programs for s in p.steps}
    assert len(names) >= 40

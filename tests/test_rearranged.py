"""Results that are rearranged or gathered: written where they belong, with NumPy's values and bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.testing.bits import same_bits

RESULTS = {
    "merged and turned": lambda x: (x * 2.0 + 1.0).permute(2, 0, 1).reshape(-1, x.shape[1]),
    "merged twice": lambda x: (-x).permute(1, 0, 2).reshape(-1).reshape(x.shape[1], -1),
    "turned after merging": lambda x: (
        (x * x).permute(2, 1, 0).reshape(x.shape[2], -1).permute(1, 0)
    ),
    "split again": lambda x: (x + 0.5).permute(0, 2, 1).reshape(-1).reshape(2, -1),
    "with axes of one": lambda x: (x - 1.0).permute(2, 1, 0).reshape(1, -1, 1),
    "flipped": lambda x: sg.flip(x * 3.0, (1,)).permute(1, 2, 0).reshape(-1),
    "used twice": lambda x: [(x * 2.0).permute(2, 1, 0).reshape(-1), (x * 2.0).sum()],
    "not only a result": lambda x: [
        y := (x * 2.0).permute(2, 1, 0).reshape(-1),
        (y * y).sum(),
    ],
}


def arrays(made: Any) -> list[np.ndarray]:
    return [np.asarray(m) for m in (made if isinstance(made, list) else [made])]


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 1, 6), (40, 26, 3), (1, 2, 1), (2, 0, 4)])
def test_rearranged_results(name: str, shape: tuple[int, ...]) -> None:
    f = RESULTS[name]
    x = np.random.default_rng(5).normal(size=shape)
    if name.startswith("merged") and 0 in shape:
        pytest.skip("NumPy cannot infer an axis here")
    eager = f(sg.tensor(x))
    found = arrays(sg.compile(f)(x))
    for a, b in zip(found, eager if isinstance(eager, list) else [eager], strict=True):
        assert same_bits(a, np.asarray(b.numpy()))
    moved = {
        "merged and turned": lambda: (x * 2 + 1).transpose(2, 0, 1).reshape(-1, x.shape[1]),
        "merged twice": lambda: (-x).transpose(1, 0, 2).reshape(x.shape[1], -1),
        "turned after merging": lambda: (x * x).transpose(2, 1, 0).reshape(x.shape[2], -1).T,
        "split again": lambda: (x + 0.5).transpose(0, 2, 1).reshape(2, -1),
        "with axes of one": lambda: (x - 1).transpose(2, 1, 0).reshape(1, -1, 1),
        "flipped": lambda: (x * 3)[:, ::-1].transpose(1, 2, 0).reshape(-1),
        "used twice": lambda: (x * 2).transpose(2, 1, 0).reshape(-1),
        "not only a result": lambda: (x * 2).transpose(2, 1, 0).reshape(-1),
    }
    if x.size:
        np.testing.assert_array_equal(found[0], moved[name]())


def test_a_rearranged_result_is_one_nest() -> None:
    f = sg.compile(lambda x: (x * 2.0 + 1.0).permute(2, 0, 1).reshape(-1, 7))
    x = np.random.default_rng(0).normal(size=(30, 7, 20))
    np.testing.assert_array_equal(f(x), (x * 2.0 + 1.0).transpose(2, 0, 1).reshape(-1, 7))
    assert len(f._latest().recipe.program.schedule.steps) == 1
    assert f.memory().temporaries == 0


@pytest.mark.parametrize("rows", [3, 50, 700])
def test_rows_of_computed_arrays_found_at_positions(rows: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(2, 3, 26, 54))
    i = rng.integers(-54, 54, rows)

    def gathered(a: Any, b: Any, i: Any) -> Any:
        return ((a + b)[:, :, i] * 2.0).permute(2, 0, 1).reshape(-1, 26)

    found = sg.compile(gathered)(a, b, i)
    want = ((a + b)[:, :, i] * 2.0).transpose(2, 0, 1).reshape(-1, 26)
    np.testing.assert_array_equal(found, want)
    assert same_bits(found, gathered(sg.tensor(a), sg.tensor(b), sg.tensor(i)).numpy())
    wrong = i.copy()
    wrong[-1] = 54
    with pytest.raises(IndexError, match="index 54 is out of bounds for dimension 2 with size 54"):
        sg.compile(gathered)(a, b, wrong)


def test_axes_that_are_neighbours_where_they_are_written_are_one_loop() -> None:
    x, i = np.random.default_rng(0).normal(size=(50, 3, 26)), np.arange(49, 9, -1)
    f = sg.compile(lambda x, i: (-(x[i].permute(2, 1, 0))).permute(2, 1, 0).reshape(-1))
    np.testing.assert_array_equal(f(x, i), -x[i].reshape(-1))
    g = sg.compile(lambda x, i: -x.reshape(50, 78)[i])
    np.testing.assert_array_equal(g(x, i), -x[i].reshape(40, 78))
    # A loop over the rows and one along each, or more of them for what is left of it.
    assert f.llvm().count("\nloop.") == g.llvm().count("\nloop.")

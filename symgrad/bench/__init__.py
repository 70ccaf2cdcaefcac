"""symgrad's own benchmarks next to NumPy and to other compilers: ``python -m symgrad bench``.

Structures:

* `Side`: one library's step of a benchmark, and how long its first call took.
* `Row`: what was measured of one benchmark.

`symgrad.bench.workloads` has the programs, `symgrad.bench.peers` the other libraries,
`symgrad.bench.document` and `symgrad.bench.roofline` what is made of the figures. Start reading at
`measure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symgrad.bench.peers import PEERS, installed
from symgrad.bench.workloads import BENCHMARKS, Benchmark, Case
from symgrad.timing import Step, duration, medians

__all__ = ["BENCHMARKS", "PEERS", "Benchmark", "Case", "Row", "Side", "check", "measure", "run"]


@dataclass(frozen=True)
class Side:
    """One library's step, checked; `first_s` is how long it took to be made and called once."""

    name: str
    step: Step
    first_s: float


@dataclass(frozen=True)
class Row:
    """One benchmark's result.

    Attributes
    ----------
    name, title : str
    seconds, first_s : dict of str to float
        By side: "numpy", "symgrad", and peers.
    """

    name: str
    title: str
    seconds: dict[str, float]
    first_s: dict[str, float]

    def ratio(self, other: str = "numpy") -> float:
        """How many times longer another side takes: above 1, symgrad is faster."""
        return self.seconds[other] / self.seconds["symgrad"]

    def text(self) -> str:
        """The row as a line of the table."""
        cells = [
            duration(s)
            for s in (self.seconds["numpy"], self.seconds["symgrad"], self.first_s["symgrad"])
        ]
        line = f"{self.name:<12}{cells[0]:>10}{cells[1]:>10}{cells[2]:>12}{self.ratio():>9.2f}"
        for peer in list(self.seconds)[2:]:
            line += f"{duration(self.seconds[peer]):>10}{duration(self.first_s[peer]):>12}{self.ratio(peer):>9.2f}"
        return f"{line}  {self.title}"

    def as_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        ratios = {side: self.ratio(side) for side in self.seconds if side != "symgrad"}
        return {
            "name": self.name, "title": self.title, "seconds": self.seconds,
            "first_call_seconds": self.first_s, "ratios": ratios,
        }  # fmt: skip


def heading(peers: Sequence[str] = ()) -> str:
    """The table's first line."""
    line = f"{'benchmark':<12}{'NumPy':>10}{'symgrad':>10}{'first call':>12}{'ratio':>9}"
    return line + "".join(f"{peer:>10}{'first call':>12}{'ratio':>9}" for peer in peers)


def check(name: str, peers: Sequence[str] = ()) -> list[Side]:
    """Build a benchmark's sides, NumPy and symgrad first, and compare their outputs.

    Raises
    ------
    AssertionError
        If outputs differ from NumPy's by more than rounding.
    """
    case = BENCHMARKS[name].build()
    wanted = _listed(case.by_numpy())
    made: dict[str, Callable[[Case], Step]] = {"symgrad": _symgrad}
    made.update((peer, PEERS[peer]) for peer in peers)
    sides = [Side("numpy", case.by_numpy, 0.0)]
    for side, build in made.items():
        start = time.perf_counter()
        step = build(case)
        found = step()
        sides.append(Side(side, step, time.perf_counter() - start))
        for a, b in zip(_listed(found), wanted, strict=True):
            scale = float(np.max(np.abs(b), initial=0.0))
            tolerance = 1e-4 if np.asarray(b).dtype == np.float32 else 1e-9
            np.testing.assert_allclose(
                np.asarray(a), b, rtol=0, atol=tolerance * scale, err_msg=f"{name}, {side}"
            )
    return sides


def measure(name: str, seconds: float, peers: Sequence[str] = ()) -> Row:
    """Check one benchmark, then time its sides in turns."""
    sides = check(name, peers)
    taken = medians([side.step for side in sides], seconds)
    return Row(
        name,
        BENCHMARKS[name].title,
        {side.name: s for side, s in zip(sides, taken, strict=True)},
        {side.name: side.first_s for side in sides[1:]},
    )


def _symgrad(case: Case) -> Step:
    f, args = case.compiled(), case.args
    return lambda: f(*args)


def _listed(outputs: Any) -> list[Any]:
    """The arrays of nested tuples, in order."""
    if not isinstance(outputs, tuple):
        return [outputs]
    return [a for part in outputs for a in _listed(part)]


def run(
    names: Sequence[str] = (),
    seconds: float = 0.5,
    peers: Sequence[str] = (),
    show: Callable[[str], Any] = print,
) -> list[Row]:
    """Run benchmarks, all of them by default, and show a line for each.

    Parameters
    ----------
    names : sequence of str
    seconds : float
        Time per function.
    peers : sequence of str
        Other libraries; those that are not installed are named and left out.
    show : callable
        Gets each line.
    """
    for peer in peers:
        if not installed(peer):
            show(f"{peer} is not installed: left out")
    present = [peer for peer in peers if installed(peer)]
    show(heading(present))
    rows = []
    for name in names or BENCHMARKS:
        rows.append(measure(name, seconds, present))
        show(rows[-1].text())
    return rows

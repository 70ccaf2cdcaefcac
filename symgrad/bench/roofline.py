"""The roofline of measured programs: operations per second over operations per byte.

One structure, `Point`: a step of a program as the plot has it. matplotlib draws, where it is
installed. The model is that of Williams, Waterman & Patterson, Commun. ACM 52(4), 2009: no step is
above bandwidth times intensity, nor above the peak. Start reading at `draw`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from symgrad.bench.workloads import BENCHMARKS
from symgrad.codegen.measure import Ceilings, Report


@dataclass(frozen=True)
class Point:
    """A step: operations per byte, operations per second, and its share of its program's time."""

    intensity: float
    flops_per_s: float
    share: float


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        return find_spec("matplotlib") is not None
    except ValueError:
        return False


def reports(names: Sequence[str]) -> dict[str, Report]:
    """What the benchmarks' programs report of themselves."""
    found = {}
    for name in names:
        case = BENCHMARKS[name].build()
        found[name] = case.compiled().report(*case.args)
    return found


def points(report: Report) -> list[Point]:
    """The steps of a program that count operations and move memory."""
    found = []
    for step in report.steps:
        moved = step.read_bytes + step.written_bytes
        if step.flops and moved:
            share = step.seconds / report.seconds
            found.append(Point(step.flops / moved, step.flops / step.seconds, share))
    return found


def roof(ceilings: Ceilings, intensity: float) -> float:
    """Operations per second that the machine allows at an intensity, in float64."""
    return min(ceilings.float64_per_s, intensity * ceilings.bytes_per_s)


def draw(found: dict[str, Report], path: str) -> None:
    """Draw programs' steps under the machine's roof.

    Parameters
    ----------
    found : dict of str to Report
    path : str
        Where to write; its ending names the format.
    """
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    ceilings = next(iter(found.values())).ceilings
    figure, axes = pyplot.subplots(figsize=(8, 5))
    intensities = [2.0**k for k in range(-8, 11)]
    axes.plot(intensities, [roof(ceilings, x) / 1e9 for x in intensities], color="black")
    axes.axhline(ceilings.float32_per_s / 1e9, color="grey", linestyle="--")
    for name, report in found.items():
        steps = points(report)
        axes.scatter(
            [p.intensity for p in steps],
            [p.flops_per_s / 1e9 for p in steps],
            s=[10 + 90 * p.share for p in steps],
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(ceilings.text(), fontsize="small")
    axes.legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)

"""Figures on paper: JSON, and the part of a Markdown file that the command measured.

One structure, `Facts`: what the figures depend on. `written` puts the measured part between two
lines of a document and leaves the rest of it alone. Start reading at `measured_part`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import symgrad
from symgrad.bench import Row
from symgrad.bench.workloads import BENCHMARKS
from symgrad.codegen import pool
from symgrad.codegen.measure import Ceilings, Memory, Report, ceilings
from symgrad.timing import duration

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

LEAST_FLOOR_S = 1e-6


@dataclass(frozen=True)
class Facts:
    """The machine, the versions, and how busy others kept the machine before."""

    date: str
    processor: str
    cores: int
    threads: int
    system: str
    python: str
    numpy: str
    llvmlite: str
    symgrad: str
    load: float | None


def facts() -> Facts:
    """What the figures of this process depend on."""
    return Facts(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=pool.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
        llvmlite=version("llvmlite"),
        symgrad=symgrad.__version__,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def as_data(rows: Sequence[Row], found: Facts) -> dict[str, Any]:
    """Everything measured, for a JSON file."""
    machine = asdict(ceilings(found.threads))
    return {"facts": asdict(found), "ceilings": machine, "rows": [row.as_dict() for row in rows]}


def floor_of(report: Report, memory: Memory) -> float:
    """The least time a program could take: its inputs and outputs moved, or its operations done.

    Operations count at the speed of products in the dtype of the slowest step.
    """
    limits: Ceilings = report.ceilings
    moved = (memory.inputs + memory.outputs) / limits.bytes_per_s
    slowest = max(report.steps, key=lambda s: s.seconds)
    narrow = np.dtype(slowest.dtype).itemsize <= 4
    return max(moved, report.flops / (limits.float32_per_s if narrow else limits.float64_per_s))


def measured_part(rows: Sequence[Row], found: Facts) -> str:
    """Facts, the table of ratios, and each program's distance to its floor, in Markdown."""
    limits = ceilings(found.threads)
    load = "unknown" if found.load is None else f"{found.load:.1f}"
    peers = list(rows[0].seconds)[2:] if rows else []
    lines = [
        f"Measured on {found.date} with symgrad {found.symgrad}: {found.processor}, {found.cores} cores, "
        f"{found.system}, Python {found.python}, NumPy {found.numpy}, llvmlite {found.llvmlite}. Load of the "
        f"machine before the run: {load}.",
        "",
        f"Ceilings, measured in the same process with {limits.text()}.",
        "",
        "| benchmark | NumPy | symgrad | first call | NumPy ÷ symgrad |"
        + "".join(f" {p} | {p} ÷ symgrad |" for p in peers)
        + " floor | symgrad ÷ floor |",
        "|---|" + "---:|" * (6 + 2 * len(peers)),
    ]
    slow = []
    for row in rows:
        case = BENCHMARKS[row.name].build()
        f = case.compiled()
        report = f.report(*case.args)
        floor = floor_of(report, f.memory())
        cells = [row.title, duration(row.seconds["numpy"]), duration(row.seconds["symgrad"])]
        cells += [duration(row.first_s["symgrad"]), f"{row.ratio():.2f}"]
        for p in peers:
            cells += [duration(row.seconds[p]), f"{row.ratio(p):.2f}"]
        told = floor >= LEAST_FLOOR_S
        cells += [duration(floor), f"{row.seconds['symgrad'] / floor:.1f}"] if told else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
        step = max(report.steps, key=lambda s: s.seconds)
        peak = report.peak_share(step)
        slow.append(
            f"| {row.name} | {len(report.steps)} | `{_kind(step.text)}` | "
            f"{step.seconds / report.seconds:.0%} | {report.bandwidth_share(step):.0%} | "
            f"{'-' if peak is None else f'{peak:.0%}'} |"
        )
    lines += [
        "",
        "The floor is the time to move inputs and outputs at the copy's speed, or to do the "
        "operations at the products', whichever is longer; below a microsecond the call itself counts "
        "for more. Data that stay in a cache move faster than the copy.",
        "",
        "Where the time goes: each program's slowest step.",
        "",
        "| benchmark | steps | slowest step | share of the time | of the copy's bandwidth | of the peak |",
        "|---|---:|---|---:|---:|---:|",
        *slow,
    ]
    return "\n".join(lines)


def _kind(text: str) -> str:
    """A step's line without the number of its result."""
    return text.partition(" -> ")[0]


def written(before: str, part: str) -> str:
    """A document with a new measured part; a new one if there was none.

    Parameters
    ----------
    before : str
        The document as it is, empty if there is none.
    part : str
    """
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        head = before or (
            "# Performance\n\n## symgrad next to NumPy\n\n"
            "Written by `python -m symgrad bench --write FILE`.\n\n"
        )
        tail = "\n"
    return f"{head}{BEGIN}\n\n{part}\n\n{END}{tail}"

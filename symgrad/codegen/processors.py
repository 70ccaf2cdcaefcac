"""How many processors this process may use: what is asked for, else what the machine gives it.

Start reading at `wanted`.
"""

from __future__ import annotations

import os


def wanted() -> int:
    """SYMGRAD_NUM_THREADS, else the processors that this process may use."""
    text = os.environ.get("SYMGRAD_NUM_THREADS", "").strip()
    if text and not (text.isdecimal() and int(text) > 0):
        raise ValueError(
            f"SYMGRAD_NUM_THREADS: must be a positive integer (got {text!r}); "
            "set it to the number of threads to use, or unset it"
        )
    return int(text) if text else available()


def available() -> int:
    """The processors that this process may run on, within its control group's share of time."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return min(count, _quota(count))


def _quota(otherwise: int) -> int:
    """Processors that the control group's time quota amounts to, rounded up."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return otherwise

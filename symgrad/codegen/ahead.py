"""Code that all programs share, compiled beside what comes before the first of them needs it.

The native entry, the thread pool and the runners of plans take LLVM some 80 ms, longer than
everything before them; where there is a second processor, a thread makes them while Python traces
and schedules the first program. Start reading at `start`.
"""

from __future__ import annotations

import threading

from symgrad.codegen import entry, interrupt, plan, processors

_STARTED: list[threading.Thread] = []


def start() -> None:
    """Start to compile, the first time that this is called."""
    if _STARTED:
        return
    thread = threading.Thread(target=_compile, name="symgrad compiler")
    _STARTED.append(thread)
    try:
        if processors.wanted() > 1:
            thread.start()
    except (RuntimeError, ValueError):
        # No thread is to be had, or the number of threads is not one: who needs the code says so.
        return


def _compile() -> None:
    try:
        entry.library()
        plan.run_library()
        interrupt.runner()
    except Exception:
        # It is met again, and told, where the code is needed.
        return

"""Code that is compiled beside what comes before it is needed, where there is a second processor.

The native entry, the thread pool and the runners of plans, which all programs share, take LLVM some
80 ms, longer than everything before them; so does the code of a program's products, whose tiles are
known before its loops are compiled. Threads make them meanwhile; who needs such code takes the lock
that it is compiled under, and so waits for it. Start reading at `start`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from symgrad.codegen import entry, interrupt, plan, processors

_STARTED: list[bool] = []


def start() -> None:
    """Start to compile what all programs share, the first time that this is called."""
    if not _STARTED:
        _STARTED.append(True)
        beside(_shared)


def beside(compiling: Callable[[], object]) -> None:
    """Let a thread compile something that is needed later.

    Parameters
    ----------
    compiling : callable
        Compiles it, or whatever of it is not compiled yet. Errors are met again, and told, where the
        code is needed.
    """

    def work() -> None:
        with suppress(Exception):
            compiling()

    # Where no thread is to be had, or the number of threads is not one, who needs the code says so.
    with suppress(RuntimeError, ValueError):
        if processors.wanted() > 1:
            threading.Thread(target=work, name="symgrad compiler").start()


def _shared() -> None:
    entry.library()
    plan.run_library()
    interrupt.runner()

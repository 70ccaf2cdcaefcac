"""A line on the terminal for what takes longer than a second.

One structure, `Progress`. It writes to the error stream, and only where that is a terminal; the
line is gone when the work is done. Start reading at `Progress`.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

PATIENCE_S = 1.0


class Progress:
    """Tells how far some work has come, for use in a ``with`` block.

    Parameters
    ----------
    what : str
        What is being done.
    total : int
        How many steps it takes.
    stream : text stream, optional
        Default the error stream.
    """

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        self.what = what
        self.total = total
        self._stream = sys.stderr if stream is None else stream
        self._start = time.perf_counter()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def step(self, done: int) -> None:
        """So many steps are done."""
        taken = time.perf_counter() - self._start
        if taken < PATIENCE_S or self._stream is None or not self._stream.isatty():
            return
        line = f"symgrad: {self.what}, {done} of {self.total}, {taken:.0f} s"
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

"""Anomaly mode: NaN in a backward pass is an error that names the operation and the user's line.

While it is on, every result of a public function is noted with the traceback of its call, and
passes take the general road, which looks at each cotangent (`symgrad.autograd.walk`). The switch
holds for all threads; calls are noted in the thread that switched it on. Start reading at
`set_detect_anomaly`.
"""

from __future__ import annotations

import bisect
import traceback
import warnings
from typing import Any

from symgrad import interface
from symgrad.autograd.walk import ANOMALY
from symgrad.expr import Expr

_KEPT = 100_000
"""How many calls are remembered; the oldest half goes when there are more."""


class _Calls:
    """Where results were made: creation numbers in order, and tracebacks."""

    def __init__(self) -> None:
        self.serials: list[int] = []
        self.places: list[traceback.StackSummary] = []
        self.users = 0

    def note(self, node: Expr) -> Expr:
        """Remember where `node` was made."""
        if len(self.serials) >= _KEPT:
            del self.serials[: _KEPT // 2], self.places[: _KEPT // 2]
        if not self.serials or node.serial > self.serials[-1]:
            self.serials.append(node.serial)
            self.places.append(stack())
        return node

    def origin(self, node: Expr) -> str | None:
        """The call that made a node: the first result at or after it."""
        place = bisect.bisect_left(self.serials, node.serial)
        if place == len(self.serials) or not self.serials or node.serial < self.serials[0] - _REACH:
            return None
        return "".join(self.places[place].format())


_REACH = 64
"""How many nodes before its result a function may have recorded, at most."""

_CALLS = _Calls()


def stack() -> traceback.StackSummary:
    """The user's part of the present stack."""
    frames = traceback.extract_stack()
    while frames and "/symgrad/" in frames[-1].filename.replace("\\", "/"):
        frames.pop()
    return frames


def traceback_text() -> str | None:
    """The user's stack as text, in anomaly mode."""
    return "".join(stack().format()) if ANOMALY.enabled else None


def _switch(enabled: bool, check_nan: bool) -> None:
    if enabled and not ANOMALY.enabled:
        _CALLS.serials.clear()
        _CALLS.places.clear()
        interface.watch(_CALLS.note)
    elif ANOMALY.enabled and not enabled:
        interface.unwatch(_CALLS.note)
    ANOMALY.enabled = enabled
    ANOMALY.check_nan = check_nan
    ANOMALY.origin = _CALLS.origin


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on."""
    return ANOMALY.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode looks for NaN."""
    return ANOMALY.check_nan


class set_detect_anomaly:  # noqa: N801
    """Switch anomaly mode on or off: at once as a function, for a block as a context manager.

    Parameters
    ----------
    mode : bool
    check_nan : bool
        Whether NaN in a backward pass is an error.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (ANOMALY.enabled, ANOMALY.check_nan)
        _switch(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _switch(*self._before)


class detect_anomaly:  # noqa: N801
    """Within it a NaN in a backward pass raises an error that names the operation and the line.

    Examples
    --------
    >>> import symgrad as sg
    >>> import warnings
    >>> warnings.simplefilter("ignore")
    >>> x = sg.tensor(0., requires_grad=True)
    >>> with sg.autograd.detect_anomaly():
    ...     (x.sqrt() * 0).backward()
    Traceback (most recent call last):
        ...
    RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        self._before: Any = None
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be "
            "enabled for debugging.",
            UserWarning,
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self._before = (ANOMALY.enabled, ANOMALY.check_nan)
        _switch(True, self.check_nan)

    def __exit__(self, *_: object) -> None:
        _switch(*self._before)

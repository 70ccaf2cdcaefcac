"""Locks that are safe to fork beside: a child never hangs on what another thread of its parent held.

Of the parent's threads a forked child has only the one that forked; what the others held stays
held for ever. Two kinds of lock, by what a half-done step leaves behind:

* `RenewedLock`: over Python tables that are right between any two steps, since an entry is made
  whole and then put in. The child finds the lock free and makes again what it misses.
* `held_across_fork`: over foreign code, whose half-done steps nobody can take up. A fork waits
  until the step is done, so steps must be short and must not wait for other threads.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any


class RenewedLock:
    """A re-entrant lock for ``with`` that a forked child finds free, unless its own thread holds it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _RENEWED.add(self)

    def renew(self) -> None:
        """Make the lock free, in a forked child, unless this thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()


_RENEWED: weakref.WeakSet[RenewedLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_RENEWED):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


def held_across_fork() -> Any:
    """A re-entrant lock that the forking thread holds while it forks."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock

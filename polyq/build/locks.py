"""Locks that survive a fork: a child finds them open, whoever held them in the parent."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType

__all__ = ["ForkLock", "lock_for"]


class ForkLock:
    """A lock for a ``with`` statement. A thread that held it is not there in a forked child, so it is open there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def reopen(self) -> None:
        """Replace the lock by an open one."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()
_keyed: dict[str, ForkLock] = {}
_guard = ForkLock()


def lock_for(key: str) -> ForkLock:
    """Return the lock of a key, one for the whole process."""
    with _guard:
        return _keyed.setdefault(key, ForkLock())


def _in_child() -> None:
    for lock in _all:
        lock.reopen()


os.register_at_fork(after_in_child=_in_child)

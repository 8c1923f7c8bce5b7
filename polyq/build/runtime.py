"""The runtime that all kernels of the process share: the thread pool and the buffers of threads, written in C.

It is compiled once into the cache and loaded once; every kernel gets a pointer to it. See ``runtime.c``.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from polyq.affine.errors import PolyqError
from polyq.build.binding import symbol
from polyq.build.cache import Unwanted, find_library
from polyq.build.compiler import Stop, find_compiler
from polyq.build.locks import ForkLock

__all__ = ["end_runtime", "shared_runtime", "start_runtime"]

_guard = ForkLock()
_loaded: Any = None
_begun: list[tuple[Stop, threading.Thread]] = []


def shared_runtime(stop: Stop | None = None) -> Any:
    """Return a pointer to the ``polyq_runtime`` of this process; compiled and loaded at the first call."""
    global _loaded  # two pools would use twice the cores
    with _guard:
        if _loaded is None:
            source = Path(__file__).with_name("runtime.c").read_text(encoding="utf-8")
            # it waits and hands over: -O3 would only take longer to compile
            path = find_library(source, ("-O1",), find_compiler(), stop)
            _loaded = symbol(path, "polyq_shared_runtime", "const polyq_runtime *")
        return _loaded


def start_runtime() -> None:
    """Begin to make the runtime in a thread, beside the scheduling of a first build; :func:`end_runtime` ends that.

    Where it fails, :func:`shared_runtime` meets the same failure and says so.
    """
    if _loaded is not None:
        return

    stop = Stop()

    def make() -> None:
        with contextlib.suppress(PolyqError, OSError, Unwanted):
            shared_runtime(stop)

    thread = threading.Thread(target=make, name="polyq runtime", daemon=True)
    _begun.append((stop, thread))  # before it starts: an interrupt may come while it does
    thread.start()


def end_runtime() -> None:
    """End the compile that :func:`start_runtime` began, if it is not over."""
    while _begun:  # another thread may begin one, or end one, meanwhile
        stop, thread = _begun.pop()
        stop()
        if thread.ident is not None:
            thread.join(5.0)

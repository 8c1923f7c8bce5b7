"""The runtime that all kernels of the process share: the thread pool and the buffers of threads, written in C.

It is compiled once into the cache and loaded once; every kernel gets a pointer to it. See ``runtime.c``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyq.build.binding import symbol
from polyq.build.cache import find_library
from polyq.build.compiler import find_compiler
from polyq.build.locks import ForkLock

__all__ = ["shared_runtime"]

_guard = ForkLock()
_loaded: Any = None


def shared_runtime() -> Any:
    """Return a pointer to the ``polyq_runtime`` of this process; compiled and loaded at the first call."""
    global _loaded  # two pools would use twice the cores
    with _guard:
        if _loaded is None:
            source = Path(__file__).with_name("runtime.c").read_text(encoding="utf-8")
            # it waits and hands over: -O3 would only take longer to compile
            path = find_library(source, ("-O1",), find_compiler())
            _loaded = symbol(path, "polyq_shared_runtime", "const polyq_runtime *")
        return _loaded

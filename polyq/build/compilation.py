"""A library on its way: compiled beside the proof of its program, and published only once that holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from polyq.build.compiler import Compiler, Stop

__all__ = ["Compilation", "discard_of"]

_PATIENCE = 2.0  # seconds for a compiler that was ended to be gone
_live: set[Compilation] = set()


def discard_of(threads: Collection[int]) -> None:
    """Discard what these threads (by their identifiers) compile: whoever waits there sees an error."""
    for compilation in [c for c in list(_live) if c.owner in threads]:
        compilation.discard()


class Compilation:
    """The compile of one C source, in a thread of its own from the moment that this is made.

    Nothing reaches the cache before :meth:`publish`; :meth:`discard` ends the compiler and leaves nothing behind.
    """

    def __init__(self, source: str, flags: tuple[str, ...], compiler: Callable[[], Compiler]) -> None:
        self.owner, self._finished = threading.get_ident(), threading.Event()
        self._stop, self._decided, self._wanted, self._discarded = Stop(), threading.Event(), False, False
        self._path: Path | None = None
        self._error: BaseException | None = None
        self._work = source, flags, compiler
        self._thread = threading.Thread(target=self._run, name="polyq compile", daemon=True)
        _live.add(self)
        self._thread.start()

    def publish(self) -> Path:
        """Return the library in the cache, once it is there; raises what the compile raised."""
        self._wanted = True
        self._decided.set()
        self._finished.wait()  # not join: an interrupt there makes Python 3.11 take the thread for ended
        if self._error is not None:
            raise self._error
        assert self._path is not None
        return self._path

    def discard(self) -> None:
        """End the compile, if it is not over."""
        self._discarded = True
        self._decided.set()
        self._stop()
        self._finished.wait(_PATIENCE)

    def _run(self) -> None:
        from polyq.build.cache import find_library

        source, flags, compiler = self._work
        try:
            self._path = find_library(source, flags, compiler(), self._stop, self._verdict)
        except BaseException as error:  # it belongs to the thread that asks for the library
            self._error = error
        finally:
            _live.discard(self)
            self._finished.set()

    def _verdict(self) -> bool:
        self._decided.wait()
        return self._wanted and not self._discarded

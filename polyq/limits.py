"""What this machine can do at most: read bandwidth, a copy with streaming stores, f32 multiply-adds.

Each limit is a plain C loop (``limits.c``) that the system compiler builds once in a process. Times are compared with
these limits as measured in the same run, round by round, since clocks and neighbours drift.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from polyq.affine.errors import BuildError
from polyq.build.compiler import find_compiler

__all__ = ["Copy", "Fma", "Read", "read_bandwidth"]

STREAMS = (1, 2, 4, 8)
_PAGE = 4096


class Read:
    """Reading ``copies`` buffers of ``size`` bytes one after another: the limit of a kernel whose weights are cold.

    The best number of concurrent streams a thread is found when it is made. The buffers together should exceed the
    last-level cache several times.
    """

    def __init__(self, size: int, copies: int, threads: int) -> None:
        self.size, self.copies, self.threads = _round_up(size, 16384), copies, threads
        self._memory = _pages(self.size * copies)
        base = _address(self._memory)
        self._pointers = (ctypes.c_void_p * copies)(*(base + i * self.size for i in range(copies)))
        seconds = {streams: min(self._pass(streams) for _ in range(3)) for streams in STREAMS}
        self.streams = min(STREAMS, key=seconds.__getitem__)

    def _pass(self, streams: int) -> float:
        return _checked(_library().limit_read(self._pointers, self.copies, self.size, self.threads, streams))

    def seconds(self) -> float:
        """Return the seconds for one buffer, over one pass through all of them."""
        return self._pass(self.streams) / self.copies


class Copy:
    """Copying ``size`` bytes with streaming stores: ``2 * size`` bytes move."""

    def __init__(self, size: int, threads: int) -> None:
        self.size, self.threads = _round_up(size, _PAGE), threads
        self._from, self._to = _pages(self.size), _pages(self.size)

    def seconds(self) -> float:
        """Return the seconds for one copy."""
        return _checked(_library().limit_copy(_address(self._to), _address(self._from), self.size, self.threads))


class Fma:
    """f32 multiply-adds on registers: ``flop`` operations in all, two for each multiply-add."""

    def __init__(self, flop: float, threads: int) -> None:
        step = 10 * 2 * int(_library().limit_lanes())
        self.threads, self._steps = threads, max(1, round(flop / step / threads))
        self.flop = float(self._steps * step * threads)

    def seconds(self) -> float:
        """Return the seconds for all operations."""
        return _checked(_library().limit_fma(self._steps, self.threads))


def read_bandwidth(threads: int, size: int = 16 << 20, copies: int = 16, rounds: int = 7) -> float:
    """Return the bytes that ``threads`` threads read in a second from memory, the median of some rounds."""
    limit = Read(size, copies, threads)
    return limit.size / statistics.median(limit.seconds() for _ in range(rounds))


def _pages(size: int) -> np.ndarray:
    """Return bytes that begin at a page and have been written, so that every page is there."""
    memory = np.ones(size + _PAGE, np.uint8)
    skip = -memory.ctypes.data % _PAGE
    return memory[skip : skip + size]


def _address(memory: np.ndarray) -> int:
    return int(memory.ctypes.data)


def _round_up(count: int, unit: int) -> int:
    return max(unit, -(-count // unit) * unit)


def _checked(seconds: float) -> float:
    if seconds < 0:
        raise BuildError("a limit could not be measured: the system gave no thread")
    return seconds


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """Compile ``limits.c`` for this CPU and load it; the files are gone again when this returns."""
    source = Path(__file__).with_name("limits.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="polyq-limits-") as name:
        folder = Path(name)
        (folder / "limits.c").write_text(source, encoding="utf-8")
        library = _compiled(folder)
    pointer, size, count, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int
    for function, arguments in (
        (library.limit_read, [pointer, count, size, number, number]),
        (library.limit_copy, [pointer, pointer, size, number]),
        (library.limit_fma, [count, number]),
    ):
        function.restype, function.argtypes = ctypes.c_double, arguments
    return library


def _compiled(folder: Path) -> ctypes.CDLL:
    for native in ("-march=native", "-mcpu=native"):  # not every compiler has every spelling
        with suppress(BuildError):
            find_compiler().compile(folder, "limits.c", "limits.so", (native, "-funroll-loops"))
            return ctypes.CDLL(str(folder / "limits.so"))
    find_compiler().compile(folder, "limits.c", "limits.so", ("-funroll-loops",))
    return ctypes.CDLL(str(folder / "limits.so"))

"""What lies in the cache: a bound on its size, and ``python -m polyq cache`` to list and clean it.

An entry is a compiled library with its source, a memo, or the source of a failed compile. The time of its last use is
the modification time of its files, which every use sets anew: access times are often not kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyq.affine.errors import BuildError

__all__ = ["Entry", "clean", "command", "entries", "size_limit", "touch", "trim"]

#: bytes that the cache may hold, where POLYQ_CACHE_SIZE says nothing
DEFAULT_LIMIT = 1 << 30
#: seconds after a use in which an entry stays, however full the cache is: its user may not have loaded it yet
IN_USE = 60.0
#: the part of the limit that a cleaning leaves, so that not every build cleans
_LEFT = 0.9

_KINDS = {".so": "library", ".c": "library", ".json": "memo"}
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclass(frozen=True, slots=True)
class Entry:
    """Files that belong together; ``used`` is the time of the last use, in seconds since the epoch."""

    key: str
    kind: str
    files: tuple[Path, ...]
    bytes: int
    used: float

    @property
    def title(self) -> str:
        """The first words of the source's comment, which name the target and the numerics."""
        source = next((f for f in self.files if f.suffix == ".c"), None)
        try:
            text = "" if source is None else source.read_text(encoding="utf-8")[:200]
        except OSError:
            return ""
        # texts of one program, whatever its name, share a library
        return text.replace("/*", "").replace(" * ", "").replace("N0N", "kernel").strip().partition("\n")[0]


def entries(folder: Path) -> tuple[Entry, ...]:
    """Return what a cache holds, the last used first; builds that are on their way do not count."""
    groups: dict[tuple[str, str], list[tuple[Path, os.stat_result]]] = {}
    for item in os.scandir(folder) if folder.is_dir() else ():
        path = Path(item.path)
        kind = "failed" if item.name.startswith("failed-") else _KINDS.get(path.suffix)
        if kind is None or item.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError):  # another process cleans as well
            groups.setdefault((path.stem.removeprefix("failed-"), kind), []).append((path, item.stat()))
    found = [
        Entry(
            key,
            kind,
            tuple(sorted(path for path, _ in files)),
            sum(status.st_size for _, status in files),
            max(status.st_mtime for _, status in files),
        )
        for (key, kind), files in groups.items()
    ]
    return tuple(sorted(found, key=lambda e: (-e.used, e.key, e.kind)))


def touch(path: Path) -> None:
    """Note that a file of the cache is used now."""
    with contextlib.suppress(OSError):  # a read-only cache still serves; it only forgets what was used
        os.utime(path)


def size_limit() -> int:
    """Return the most bytes that the cache may hold: ``POLYQ_CACHE_SIZE``, a number with ``K``, ``M`` or ``G``."""
    text = os.environ.get("POLYQ_CACHE_SIZE", "").strip().upper().removesuffix("B")
    if not text:
        return DEFAULT_LIMIT
    unit = text[-1] if text[-1] in "KMG" else ""
    number = text.removesuffix(unit)
    if not number.isdecimal():
        raise BuildError(
            f"POLYQ_CACHE_SIZE={os.environ['POLYQ_CACHE_SIZE']!r}: expected a number of bytes, such as 500M or 2G"
        )
    return int(number) << _UNITS[unit]


def trim(folder: Path, limit: int) -> int:
    """Remove the least recently used entries of a cache that is larger than ``limit``; return the bytes removed."""
    found = entries(folder)
    total = sum(e.bytes for e in found)
    if total <= limit:
        return 0
    now, removed = time.time(), 0
    for entry in reversed(found):
        if total - removed <= _LEFT * limit or now - entry.used < IN_USE:
            break
        removed += _remove(entry)
    return removed


def clean(folder: Path) -> int:
    """Remove everything but builds that are on their way; return the bytes removed."""
    return sum(_remove(entry) for entry in entries(folder))


def _remove(entry: Entry) -> int:
    for path in sorted(entry.files, reverse=True):  # the library before its source
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return entry.bytes


# ---- the command line
_HELP = """usage: python -m polyq cache [list | size | clean]

The kernels that polyq keeps on disk: list them (default), say how large they are, or remove them all. POLYQ_CACHE_DIR
says where they are, POLYQ_CACHE_SIZE how large they may get (1G; the least recently used ones go first)."""


def command(arguments: Sequence[str]) -> int:
    """Run ``python -m polyq cache``; the exit status is 2 for an action that is not known."""
    from polyq.build.cache import cache_folder

    action = " ".join(arguments) or "list"
    if action in ("-h", "--help"):
        print(_HELP)
        return 0
    if action not in ("list", "size", "clean"):
        print(f"python -m polyq cache: {action!r} is not known; --help lists the actions", file=sys.stderr)
        return 2
    folder = cache_folder()
    if action == "clean":
        removed = clean(folder)
        print(f"{folder}: {_bytes(removed)} removed")
        return 0
    found = entries(folder)
    if action == "list":
        print("\n".join(_lines(found, time.time())))
    total = sum(e.bytes for e in found)
    print(f"{folder}: {len(found)} entries, {_bytes(total)} of at most {_bytes(size_limit())}")
    return 0


def _lines(found: Iterable[Entry], now: float) -> Iterable[str]:
    yield f"{'key':<12}  {'kind':<8} {'size':>10}  {'last used':>10}  source"
    for e in found:
        yield f"{e.key[:12]:<12}  {e.kind:<8} {_bytes(e.bytes):>10}  {_ago(now - e.used):>10}  {e.title}".rstrip()


def _bytes(count: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count} B"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds / size)} {unit} ago"
    return "just now"

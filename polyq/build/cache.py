"""The disk cache: compiled libraries, and the memo from a program to its C.

Everything is a file in one private folder: ``<key>.so`` with ``<key>.c`` beside it, and ``<key>.json`` for the memo. A
key is a hash of all that could change the contents, so an entry never goes stale, it only stops being asked for. Files
are published by a rename within the folder; each carries its own checksum, and one that does not match is a miss.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from polyq.affine.errors import BuildError
from polyq.build import housekeeping
from polyq.build.compiler import Compiler, Stop
from polyq.build.locks import ForkLock, lock_for
from polyq.schedule.target import detect_machine

__all__ = [
    "Damaged", "cache_folder", "digest", "find_library", "has_memo", "library_key", "read_memo", "read_sealed",
    "source_digest", "write_memo", "write_sealed",
]  # fmt: skip

#: Ends a library, before the SHA-256 of all that precedes it. Loaders ignore what follows the ELF image.
_MARK = b"\0polyq\0\1"
_ABANDONED = 24 * 3600.0  # seconds after which a build folder has no builder any more

_log = logging.getLogger("polyq")


# ---- the folder
def cache_folder() -> Path:
    """Return the folder of the cache, made if need be.

    It is ``POLYQ_CACHE_DIR``, else ``polyq`` in the platform's cache folder. Where that cannot be written, or others
    may write it (what lies there is run), a private temporary folder serves until the process ends, with one warning.
    """
    place = _wanted_folder()
    if place is None:
        return _temporary("there is no home folder (HOME is not set)")
    reason = _refusal(place)
    return place if reason is None else _temporary(f"{place}: {reason}")


def _wanted_folder() -> Path | None:
    chosen = os.environ.get("POLYQ_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():
        return Path(shared) / "polyq"
    home = os.environ.get("HOME")
    if not home:
        return None
    return Path(home) / ("Library/Caches/polyq" if sys.platform == "darwin" else ".cache/polyq")


def _refusal(place: Path) -> str | None:
    """Say why a folder cannot serve, or return ``None`` for one that can."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.stat()
        if status.st_uid not in {os.geteuid(), 0}:
            return "it belongs to another user"
        # a group that bears the user's own number is the user's private group
        others = stat.S_IWOTH if status.st_gid == os.geteuid() else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & others:
            return "others may write it"
        handle, probe = tempfile.mkstemp(prefix=".probe-", dir=place)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        return f"it cannot be written ({error.strerror or error})"
    return None


_fallback: tuple[int, Path] | None = None
_guard = ForkLock()


def _temporary(reason: str) -> Path:
    global _fallback  # one folder and one warning for the process
    with _guard:
        if _fallback is not None and _fallback[0] == os.getpid() and _fallback[1].is_dir():
            return _fallback[1]
        warned = _fallback is not None
        folder = Path(tempfile.mkdtemp(prefix="polyq-"))
        _fallback = (os.getpid(), folder)
    atexit.register(_remove, os.getpid(), folder)
    if not warned:
        warnings.warn(
            f"polyq keeps its kernels in {folder} until this process ends, because the cache is unusable: {reason}. "
            "Let POLYQ_CACHE_DIR name a folder that only you can write",
            RuntimeWarning,
            stacklevel=2,
        )
    return folder


def _remove(owner: int, folder: Path) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


# ---- keys
def digest(*parts: object) -> str:
    """Return a hash of a sequence of strings, numbers and tuples of them."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:40]


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Return a hash of polyq's own files: another version, or an edited one, shares nothing with this one."""
    package = str(Path(__file__).resolve().parent.parent)
    total = hashlib.sha256()
    for folder, inner, names in os.walk(package):
        inner.sort()
        for name in sorted(n for n in names if n.endswith((".py", ".c"))):
            path = os.path.join(folder, name)  # plain strings: with a Path for each file this takes twice as long
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            total.update(f"{path[len(package) :]}\0{len(data)}\0".encode())
            total.update(data)
    return total.hexdigest()[:40]


def cpu_features() -> tuple[str, ...]:
    """Return the features of this CPU, sorted."""
    return tuple(sorted(detect_machine().features))


def library_key(source: str, flags: tuple[str, ...], compiler: Compiler) -> str:
    """Return the key of a compiled library."""
    made_by = (compiler.command, compiler.path, compiler.version)
    return digest("library", source, made_by, flags, cpu_features(), source_digest())


# ---- libraries
class Unwanted(Exception):
    """The library that was being compiled is not wanted any more; nothing of it was kept."""


def find_library(
    source: str,
    flags: tuple[str, ...],
    compiler: Compiler,
    stop: Stop | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Path:
    """Return the shared library of a C source, compiled if the cache does not hold it whole.

    Safe for any number of threads and processes at once: threads of a process wait for the first of them, processes
    each compile, and the last rename stays. Raises :class:`BuildError` with the path of the kept source.

    ``wanted`` is asked when the compiler is done, before anything is published: :class:`Unwanted` if it says no.
    """
    key = library_key(source, flags, compiler)
    with lock_for(key):
        folder = cache_folder()
        path = folder / f"{key}.so"
        if _is_whole(path):
            _log.debug("library: %s, from the cache", path)
            return path
        try:
            with _build_folder(folder) as work:
                compile_it = partial(compiler.compile, work, "kernel.c", "kernel.so", flags, stop)
                _make_library(work, folder, key, source, compile_it, lambda: not _is_ended(stop) and wanted())
        except OSError as error:
            raise BuildError(
                f"the cache {folder} cannot be written: {error}; make room, or let POLYQ_CACHE_DIR name another folder"
            ) from error
        return path


def _is_ended(stop: Stop | None) -> bool:
    return stop is not None and stop.asked


def _make_library(
    work: Path, folder: Path, key: str, source: str, compile_it: Callable[[], None], wanted: Callable[[], bool]
) -> None:
    """Compile into a folder of its own, then rename: nobody ever sees half a file."""
    (work / "kernel.c").write_text(source, encoding="utf-8")
    try:
        compile_it()
        _seal(work / "kernel.so")
    except BuildError as error:
        if not wanted():  # nobody asks for it, or it was ended
            raise Unwanted from None
        kept = folder / f"failed-{key}.c"
        os.replace(work / "kernel.c", kept)
        raise type(error)(f"{error}\n  source: {kept}") from None
    if not wanted():
        raise Unwanted
    os.replace(work / "kernel.c", folder / f"{key}.c")
    os.replace(work / "kernel.so", folder / f"{key}.so")
    removed = housekeeping.trim(folder, housekeeping.size_limit())
    if removed:
        _log.info("cache: %d bytes of the least recently used kernels removed from %s", removed, folder)


@contextlib.contextmanager
def _build_folder(folder: Path) -> Generator[Path]:
    """Give a folder inside the cache, on the same file system, that is gone afterwards whatever happens."""
    for old in folder.glob(".build-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _seal(path: Path) -> None:
    """Append the checksum and bring the file to the disk."""
    with path.open("r+b") as file:
        total = hashlib.sha256(file.read()).digest()
        file.write(_MARK + total)
        file.flush()
        os.fsync(file.fileno())


def _is_whole(path: Path) -> bool:
    # the loader maps a truncated library without a complaint, and the process dies at the first page that is missing
    housekeeping.touch(path)
    try:
        data = path.read_bytes()
    except OSError:
        return False
    body, tail = data[:-40], data[-40:]
    if tail == _MARK + hashlib.sha256(body).digest():
        return True
    _log.warning("%s is damaged and will be built again", path)
    return False


# ---- the memo
def read_memo(key: str) -> dict[str, Any] | None:
    """Return what :func:`write_memo` kept under ``key``, or ``None`` where nothing or something damaged lies there."""
    try:
        return read_sealed(cache_folder() / f"{key}.json")
    except Damaged:
        _log.warning("the memo %s.json is damaged and will be made again", key)
        return None


def has_memo(key: str | None) -> bool:
    """Whether something lies under ``key``."""
    return key is not None and (cache_folder() / f"{key}.json").exists()


def write_memo(key: str, value: dict[str, Any]) -> None:
    """Keep a value under ``key``; a disk that is full is no reason to fail, only to be slower next time."""
    try:
        write_sealed(cache_folder() / f"{key}.json", value)
    except OSError as error:
        _log.warning("the memo could not be written: %s", error)


class Damaged(ValueError):
    """A file whose contents do not match its checksum."""


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what :func:`write_sealed` wrote, ``None`` where there is no file, or raise :class:`Damaged`."""
    try:
        text = path.read_text(encoding="utf-8")
        housekeeping.touch(path)
        total, _, body = text.partition("\n")
        if total != hashlib.sha256(body.encode()).hexdigest():
            raise Damaged(f"{path} is damaged: its checksum does not match")
        value = json.loads(body)
    except OSError:
        return None
    except ValueError as error:  # no text, or no JSON
        raise Damaged(str(error) if isinstance(error, Damaged) else f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged: it holds no record")
    return cast("dict[str, Any]", value)


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a value as JSON behind its checksum, by a rename: nobody sees half a file, and the last writer's stays."""
    body = json.dumps(value)
    text = f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}"
    with _build_folder(path.parent) as work:
        made = work / "memo.json"
        with made.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)

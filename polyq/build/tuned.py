"""The database of tuned choices: what measuring found to be better than what the counts favour.

An entry belongs to a program (its numbered form, so all texts of it), the options and sizes that its schedule is made
for, an instruction set and a model of CPU. It holds choices (:mod:`polyq.schedule.choices`), never code: the scheduler
makes the schedule again, and it is proven as any other. Each entry is a sealed file in the folder ``tuned`` of the
cache, published by a rename; ``python -m polyq cache clean`` leaves it alone, since it cost minutes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from polyq.affine.errors import ArgumentError
from polyq.build import cache
from polyq.schedule.target import Target, cpu_model

__all__ = [
    "Entry", "Malformed", "entries", "export", "find", "keep", "keep_newer", "merge", "problem_key", "target_name"
]  # fmt: skip

_log = logging.getLogger("polyq")
_FORMAT = "polyq tuned choices 1"


class Malformed(ValueError):
    """A value that is no entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Choices for one problem on one model of CPU, and what was measured.

    ``choices`` are options by decision in the names of the numbered form; none at all where the counts had chosen
    best. ``seconds`` and ``untuned`` are median times of a call with and without them, ``threads`` what ran them;
    ``when`` is in seconds since the epoch, ``title`` for readers.
    """

    problem: str
    cpu: str
    target: str
    title: str
    choices: tuple[tuple[str, str], ...]
    seconds: float
    untuned: float
    threads: int
    when: float

    @property
    def gain(self) -> float:
        """How many times as fast as untuned."""
        return self.untuned / self.seconds

    def __str__(self) -> str:
        import time

        date = time.strftime("%Y-%m-%d", time.gmtime(self.when))
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        if not self.choices:
            return f"measured on {date} with {threads}: what the counts favour was not beaten"
        return f"{self.gain:.2f} times as fast as untuned when measured on {date} with {threads}"

    @staticmethod
    def read(value: object) -> Entry:
        """Return the entry that a value from a file is; :class:`Malformed` for any other value."""
        if not isinstance(value, dict):
            raise Malformed("an entry is a record")
        given = dict(cast("dict[str, Any]", value))
        names = [f.name for f in dataclasses.fields(Entry)]
        if sorted(given) != sorted(names):
            raise Malformed(f"an entry has {', '.join(names)}; this one has {', '.join(map(str, given))}")
        texts = [given[n] for n in ("problem", "cpu", "target", "title")]
        numbers = [given[n] for n in ("seconds", "untuned", "when")]
        if not all(isinstance(t, str) for t in texts) or not all(type(n) in (int, float) and n > 0 for n in numbers):
            raise Malformed("problem, cpu, target and title are texts, times positive numbers")
        if type(given["threads"]) is not int or not set(given["problem"]) <= set("0123456789abcdef"):
            raise Malformed("threads is a whole number, and a problem is a hexadecimal key")
        given["choices"] = _choices(given["choices"])
        return Entry(**given)


def _choices(value: object) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for pair in cast("list[object]", value) if isinstance(value, list) else [value]:
        match pair:
            case [str(decision), str(option)]:
                found.append((decision, option))
            case _:
                raise Malformed("choices are pairs of texts")
    return tuple(found)


# ---- keys
def target_name(target: str) -> str:
    """Return the instruction set that a target's name stands for on this machine."""
    return Target.named(target).name


def problem_key(text: str, numerics: str, target: str, constants: tuple[str, ...], sizes: Mapping[str, int]) -> str:
    """Return the key of what is tuned; ``text`` is that of the numbered form, as all names here are."""
    return cache.digest("tuned", text, numerics, target_name(target), sorted(constants), sorted(sizes.items()))


def _folder() -> Path:
    return cache.cache_folder() / "tuned"


def _path(problem: str, cpu: str) -> Path:
    return _folder() / f"{problem[:40]}-{cache.digest(cpu)[:12]}.json"


# ---- one entry
def find(problem: str, cpu: str | None = None) -> Entry | None:
    """Return the entry of a problem on this CPU; one that is damaged is none, and a warning names it."""
    path = _path(problem, cpu or cpu_model())
    try:
        value = cache.read_sealed(path)
        entry = None if value is None else Entry.read(value)
        if entry is not None and (entry.problem, entry.cpu) != (problem, cpu or cpu_model()):
            raise Malformed("it belongs to another program or CPU")
    except ValueError as error:
        warnings.warn(f"the tuned choices in {path} are not used: {error}", RuntimeWarning, stacklevel=2)
        return None
    return entry


def keep(entry: Entry) -> Path:
    """Write an entry in place of what was there; safe beside other processes that do the same."""
    path = _path(entry.problem, entry.cpu)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.write_sealed(path, dataclasses.asdict(entry))
    return path


# ---- all of them
def entries() -> Iterator[Entry]:
    """Yield what the database holds, of every CPU, the newest first; damaged files are named in the log."""
    found: list[Entry] = []
    for path in sorted(_folder().glob("*.json")):
        try:
            value = cache.read_sealed(path)
            found += [] if value is None else [Entry.read(value)]
        except ValueError as error:
            _log.warning("the tuned choices in %s are not used: %s", path, error)
    yield from sorted(found, key=lambda e: -e.when)


def export(path: str | os.PathLike[str]) -> int:
    """Write all entries to one file of JSON; return how many there are."""
    found, place = [dataclasses.asdict(e) for e in entries()], Path(path)
    text = json.dumps({"format": _FORMAT, "entries": found}, indent=1) + "\n"
    try:
        handle, name = tempfile.mkstemp(prefix=f".{place.name}-", dir=place.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, place)
    except OSError as error:
        raise ArgumentError(f"export: {place} cannot be written: {error.strerror}") from None
    return len(found)


def merge(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Take the entries of an exported file that are newer than those here; return how many were taken, of how many.

    Nothing is taken from a file that is not whole: :class:`~polyq.affine.errors.ArgumentError`.
    """
    place = Path(path)
    try:
        value: Any = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("format") != _FORMAT:
            raise Malformed(f"expected a file of {_FORMAT!r}, as export writes it")
        given = [Entry.read(e) for e in cast("dict[str, list[object]]", value)["entries"]]
    except OSError as error:
        raise ArgumentError(f"merge: {place} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"merge: {place} holds no tuned choices: {error}") from None
    return sum(map(keep_newer, given)), len(given)


def keep_newer(entry: Entry) -> bool:
    """Keep an entry unless one as new is there; return whether it was kept."""
    held = find(entry.problem, entry.cpu)
    if held is not None and held.when >= entry.when:
        return False
    keep(entry)
    return True

"""Keys of the memo: a text for every program and option, and its hash with the machine and polyq's own source."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from polyq.affine.spec import Spec
from polyq.build import cache
from polyq.schedule.target import detect_machine

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.schedule import Schedule

__all__ = ["canonical", "memo_key"]

_log = logging.getLogger("polyq")


def memo_key(
    program: Spec | Schedule, numerics: str, target: str, constants: tuple[str, ...], sizes: Mapping[str, int]
) -> str | None:
    """Return the key of the program's memo, or ``None`` for one that has no canonical text."""
    try:
        text = canonical(program)
    except TypeError as error:
        _log.debug("plan: no memo, %s", error)
        return None
    machine = canonical(detect_machine())
    asked = (numerics, target, constants, sorted(sizes.items()))
    return cache.digest("memo", text, asked, machine, cache.source_digest())


def canonical(value: object) -> str:
    """Return a text that is equal for equal values of one type, and differs otherwise, in every process.

    Dataclasses count with the fields that ``==`` compares; :class:`TypeError` for a value of another kind.

    >>> canonical(("a", 1)) == canonical(("a", True))
    False
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def _write(value: object, parts: list[str]) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        parts.append(f"{type(value).__name__}:{value!r}")
    elif isinstance(value, (tuple, list)):
        _write_all("(", cast("Iterable[object]", value), parts)
    elif isinstance(value, (set, frozenset)):
        _write_all("{", sorted(map(canonical, cast("Iterable[object]", value))), parts)
    elif isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        _write_all("{", sorted((canonical(k), canonical(v)) for k, v in pairs), parts)
    elif dataclasses.is_dataclass(value):
        compared = [f.name for f in dataclasses.fields(value) if f.compare]
        _write_all(f"{type(value).__qualname__}(", [(name, getattr(value, name)) for name in compared], parts)
    else:
        raise TypeError(f"a {type(value).__qualname__} has no canonical text")


def _write_all(start: str, values: Iterable[object], parts: list[str]) -> None:
    parts.append(start)
    for value in values:
        _write(value, parts)
        parts.append(",")
    parts.append(")")

"""Control flow in C, through cgen (whose declared types ask for nodes where it takes text)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import cgen

__all__ = ["braces", "lines", "loop", "when"]


def lines(texts: Iterable[str]) -> list[cgen.Generable]:
    """Return statements, one a line."""
    return [cgen.Line(text) for text in texts]


def braces(body: Sequence[cgen.Generable]) -> cgen.Generable:
    """Return a block."""
    return cgen.Block(list(body))


def loop(start: str, condition: str, update: str, body: Sequence[cgen.Generable]) -> cgen.Generable:
    """Return a ``for`` loop."""
    text: Any = cgen.For
    return cast("cgen.Generable", text(start, condition, update, cgen.Block(list(body))))


def when(
    condition: str, body: Sequence[cgen.Generable], otherwise: tuple[str, Sequence[cgen.Generable]] | None = None
) -> cgen.Generable:
    """Return an ``if``, with ``otherwise`` an ``else if``."""
    branch: Any = cgen.If
    rest = None if otherwise is None else branch(otherwise[0], cgen.Block(list(otherwise[1])))
    return cast("cgen.Generable", branch(condition, cgen.Block(list(body)), rest))

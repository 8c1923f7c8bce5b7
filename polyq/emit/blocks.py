"""Control flow in C, through cgen (whose declared types ask for nodes where it takes text)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    return _Branches([(condition, body), *([otherwise] if otherwise else [])])


class _Branches(cgen.Generable):
    """``if .. else if ..`` on one level, where cgen would nest."""

    def __init__(self, branches: Sequence[tuple[str, Sequence[cgen.Generable]]]) -> None:
        self.branches = branches

    def generate(self, with_semicolon: bool = True) -> Iterator[str]:
        """Yield the lines."""
        for i, (condition, body) in enumerate(self.branches):
            yield f"{'else ' if i else ''}if ({condition})"
            yield from cgen.Block(list(body)).generate()

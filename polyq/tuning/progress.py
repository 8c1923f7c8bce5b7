"""The progress line: rewritten in place in a terminal and in Jupyter, elsewhere one line for each gain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

__all__ = ["Progress", "Report", "line_on", "reporter"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How a search stands: candidates ``tried``, seconds ``spent`` of ``budget``, and the best so far.

    ``gain`` is how many times as fast as untuned the best is, ``best`` its last choice; ``done`` ends the search.
    """

    title: str
    tried: int
    spent: float
    budget: float
    gain: float = 1.0
    best: str = ""
    done: bool = False

    def __str__(self) -> str:
        part = min(1.0, self.spent / self.budget) if self.budget > 0 else 1.0
        bar = "#" * round(10 * part) + "." * (10 - round(10 * part))
        found = f"best {self.gain:.2f} times as fast: {self.best}" if self.best else "nothing better yet"
        return f"[{bar}] {self.title}: {self.spent:.0f} of {self.budget:.0f} s, {self.tried} tried, {found}"


Report = Callable[[Progress], None]


def reporter(progress: bool | Callable[[Any], None]) -> Report:
    """Return what is told of progress: nothing, a line on stderr, or a call of the given function."""
    if callable(progress):
        return progress
    return line_on(sys.stderr, rewrites(sys.stderr)) if progress else lambda _: None


def rewrites(stream: TextIO) -> bool:
    """Whether a carriage return lets a line be written again: a terminal, or the output of a Jupyter kernel."""
    return stream.isatty() or "ipykernel" in sys.modules


def line_on(stream: TextIO, rewriting: bool, width: int = 110) -> Report:
    """Return a report that writes to a stream."""
    said = ""

    def tell(progress: Progress) -> None:
        nonlocal said
        if rewriting:
            text = str(progress)
            cut = text if len(text) <= width else text[: width - 3] + "..."
            stream.write(f"\r{cut:<{width}}" + "\n" * progress.done)
        elif progress.done or progress.best != said:  # a log: only what is new
            stream.write(f"{progress}\n")
        said = progress.best
        stream.flush()

    return tell

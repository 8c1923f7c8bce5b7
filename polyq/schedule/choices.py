"""Choices of the automatic schedule that may be made otherwise: named, weighed, and forced by name.

Where the scheduler weighs alternatives it asks :func:`decide`, which takes the first option (the one that the counts
favour) unless another is forced. A set of forced choices is plain text by plain text, so that it travels between
processes, lies in a file, and makes the same schedule again: a schedule is never stored, only what to decide otherwise.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

__all__ = ["NO_CHOICES", "Decisions", "decide", "deciding"]

T = TypeVar("T")
NO_CHOICES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Decisions:
    """What a schedule was made from: the forced choices, what was offered, and what was taken.

    ``offered`` has the options of each decision, the favoured one first; where a decision comes up several times, the
    last one counts.
    """

    forced: Mapping[str, str]
    offered: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    taken: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def unmet(self) -> tuple[str, ...]:
        """Say of each forced choice that was not made why: the program, or polyq, is not the one it was found for."""
        return tuple(self._reason(d, o) for d, o in self.forced.items() if self.taken.get(d) != o)

    def _reason(self, decision: str, option: str) -> str:
        if decision not in self.offered:
            return f"{decision}: {option!r} was asked for, but that is not decided here"
        first, more = self.offered[decision][:3], len(self.offered[decision][3:])
        known = f"{', '.join(map(repr, first))}{f' and {more} more' if more else ''}"
        return f"{decision}: {option!r} was asked for; the options are {known}"


_current: ContextVar[Decisions | None] = ContextVar("polyq_decisions", default=None)


@contextmanager
def deciding(forced: Mapping[str, str] = NO_CHOICES) -> Generator[Decisions]:
    """Force choices inside, and give what is decided there.

    >>> with deciding({"colour": "red"}) as made:
    ...     decide("colour", ["blue", "red"], [1, 2]), decide("size", ["small", "large"], [3, 4])
    (2, 3)
    >>> made.offered["size"], made.taken
    (('small', 'large'), {'colour': 'red', 'size': 'small'})
    """
    made = Decisions(dict(forced))
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)


def decide(decision: str, options: Sequence[str], values: Sequence[T]) -> T:
    """Return the value of the forced option, or of the first; ``options`` and ``values`` go in pairs.

    A forced option that is not offered here is left to :attr:`Decisions.unmet`.
    """
    made = _current.get()
    if made is None:
        return values[0]
    names = tuple(options)
    wanted = made.forced.get(decision)
    at = names.index(wanted) if wanted in names else 0
    made.offered[decision], made.taken[decision] = names, names[at]
    return values[at]

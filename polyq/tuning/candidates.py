"""Candidates: sets of choices that differ from the best so far in one decision, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from polyq.build.advice import Asked
from polyq.build.cache import digest
from polyq.schedule.auto import weighed
from polyq.schedule.choices import Decisions

__all__ = ["Candidate", "Draft", "Drafts", "minimal", "neighbours"]

#: how many of a decision's other options are tried, in the order in which the counts rank them
WIDTH = 8

Choices = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Choices to measure, the decisions behind its schedule, and what sets it apart from the best so far."""

    choices: tuple[tuple[str, str], ...]
    decisions: Decisions
    changed: tuple[str, str]


class Draft(Protocol):
    """Makes a schedule with choices and says what was decided; raises where a schedule cannot be made."""

    def __call__(self, choices: Choices, /) -> tuple[str, Decisions]:
        """Return a text that is equal for equal schedules, and the decisions."""
        ...


class Drafts:
    """Drafts of one problem, by the automatic scheduler."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self._spec = asked, asked.spec if asked.form is None else asked.form.spec

    def __call__(self, choices: Choices, /) -> tuple[str, Decisions]:
        """Return a digest of the schedule's directives, and the decisions behind it."""
        a = self._asked
        made, decisions = weighed(self._spec, a.numerics, a.target, frozenset(a.bound), a.known, choices)
        return digest([str(d) for d in made.directives]), decisions


def minimal(decisions: Decisions) -> tuple[tuple[str, str], ...]:
    """Return the forced choices that were made and that the counts would not have made themselves."""
    forced = decisions.forced
    return tuple((d, o) for d, o in forced.items() if decisions.taken.get(d) == o and decisions.offered[d][0] != o)


def neighbours(decisions: Decisions, width: int = WIDTH) -> Iterator[tuple[str, str]]:
    """Yield options that were not taken, with their decisions: the likeliest of each decision, then the next of each.

    >>> made = Decisions({}, {"a": ("x", "y", "z"), "b": ("p", "q")}, {"a": "x", "b": "q"})
    >>> list(neighbours(made))
    [('a', 'y'), ('b', 'p'), ('a', 'z')]
    """
    others = {d: [o for o in options if o != decisions.taken[d]][:width] for d, options in decisions.offered.items()}
    for rank in range(width):
        for decision, options in others.items():
            if rank < len(options):
                yield decision, options[rank]

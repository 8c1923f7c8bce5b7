"""What tuning found: of each range the best choices and what became of each candidate, as data that prints well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Trial", "Tuned", "Tuning", "shown_time"]

Pairs = tuple[tuple[str, str], ...]


def shown_time(seconds: float) -> str:
    """Return seconds in a unit that reads well.

    >>> shown_time(0.00123)
    '1.23 ms'
    """
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if seconds * s >= 1), ("ns", 1e9))
    return f"{seconds * scale:.3g} {unit}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: the decision that it took otherwise than the best so far, and what came of it.

    ``verdict`` is ``"faster"``, ``"no gain"`` or ``"failed"``; ``ratio`` is its time over that of the best so far,
    which lies between ``low`` and ``high`` (98 percent); ``reason`` says why it failed: crashed, hung or refused.
    """

    decision: str
    option: str
    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    reason: str = ""

    def __str__(self) -> str:
        said = self.reason or f"{self.verdict}, {self.ratio:.3f} of the best so far ({self.low:.3f} to {self.high:.3f})"
        return f"{self.decision}: {self.option}: {said}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome for one range of sizes.

    ``seconds`` and ``untuned`` are medians of a call, cold, with the best choices and with those of the cost model (of
    several points their geometric mean). ``choices`` are in the names of the program's numbered form, as the database
    has them; ``changed`` are the same in the caller's names. ``confirmed`` says that the gain was measured again, in
    fresh processes. ``stopped`` says why the search ended, ``kept`` where the database has it (empty: nowhere).
    """

    title: str
    cpu: str
    target: str
    threads: int
    untuned: float
    seconds: float
    choices: Pairs
    changed: Pairs
    trials: tuple[Trial, ...]
    confirmed: bool
    stopped: str
    spent: float
    kept: str = ""

    @property
    def gain(self) -> float:
        """How many times as fast as untuned."""
        return self.untuned / self.seconds

    @property
    def failures(self) -> tuple[Trial, ...]:
        """The candidates that crashed, hung or were refused."""
        return tuple(t for t in self.trials if t.verdict == "failed")

    def __str__(self) -> str:
        if not self.untuned > 0:
            return f"{self.title}: nothing was measured, since {self.stopped}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        found = f"{self.gain:.2f} times as fast as untuned, {shown_time(self.seconds)}" if self.choices else (
            f"the cost model's choice stands, {shown_time(self.seconds)}"
        )  # fmt: skip
        how = f"{len(self.trials)} candidates in {self.spent:.0f} s, stopped since {self.stopped}"
        sure = "" if self.confirmed or not self.choices else ", not confirmed"
        lines = [f"{self.title}: {found}{sure} ({threads}; {how})", *(f"    {d}: {o}" for d, o in self.changed)]
        return "\n".join([*lines, *(f"    {t}" for t in self.failures)])

    def encode(self) -> dict[str, Any]:
        """Return the outcome as lists, texts and numbers."""
        return asdict(self)

    @staticmethod
    def decode(value: Mapping[str, Any]) -> Tuned:
        """Return the outcome that :meth:`encode` wrote."""
        given = dict(value)
        given["trials"] = tuple(Trial(**trial) for trial in value["trials"])
        for name in ("choices", "changed"):
            given[name] = tuple((d, o) for d, o in value[name])
        return Tuned(**given)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome for one spec: of each range that was tuned, least sizes first.

    ``missing`` names ranges that an interrupt or an error left out, and why.
    """

    name: str
    ranges: tuple[Tuned, ...]
    missing: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it early; what is there is the best so far."""
        stopped = [r.stopped for r in self.ranges]
        return any(text.endswith("interrupted") for text in (*stopped, *self.missing))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.ranges), *self.missing])

"""Measuring two things side by side, and the row of the table that comes of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

#: measures once: the seconds of one run
Time = Callable[[], float]

PAUSE = 0.2  # seconds in which the other's threads fall asleep: those of OpenBLAS spin for 2^28 cycles
_ROUND = 0.01  # seconds that a round of repeated calls takes at least


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of polyq and of what it is compared with, and the ratio that is asked for, if any."""

    ours: float
    against: str
    theirs: float
    asked: float | None = None
    note: str = ""

    @classmethod
    def measured(
        cls, rounds: int, ours: Time, against: str, theirs: Time, asked: float | None = None, note: str = ""
    ) -> Row:
        """Measure both in turn and take medians."""
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for measure, found in zip((ours, theirs), times, strict=True):
                time.sleep(PAUSE)
                found.append(measure())
        return cls(statistics.median(times[0]), against, statistics.median(times[1]), asked, note)

    @property
    def ratio(self) -> float:
        """The other's time over polyq's."""
        return self.theirs / self.ours

    def line(self, name: str) -> str:
        """Return the row as Markdown."""
        asked = "" if self.asked is None else f"{self.asked:.2f}{'' if self.ratio >= self.asked else ' missed'}"
        times = f"{self.ours * 1e3:.4g} | {self.against} | {self.theirs * 1e3:.4g}"
        return f"| {name} | {times} | {self.ratio:.2f} | {asked} | {self.note} |"


def over_copies(call: Callable[[int], object], copies: int) -> Time:
    """Time a call over copies of its data in turn; the last copy first wakes the threads and leaves the others cold."""

    def measure() -> float:
        call(copies - 1)
        started = time.perf_counter()
        for i in range(copies):
            call(i)
        return (time.perf_counter() - started) / copies

    return measure


def repeated(call: Callable[[], object]) -> Time:
    """Time a call on the same data, as often as a round needs."""

    def measure() -> float:
        call()
        count, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < _ROUND or count < 2:
            call()
            count += 1
        return elapsed / count

    return measure

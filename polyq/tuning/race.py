"""A race: the best so far and some challengers, timed in turn, until the spread says which is faster.

All run in the same rounds, so a clock that drifts or a neighbour that wakes up meets all of them, and only ratios
within a round count. A challenger leaves as soon as its ratios cannot become a gain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MARGIN", "Failure", "Lane", "Runner", "Standing", "interval", "race"]

#: a gain below this part is not worth another schedule
MARGIN = 0.02
#: rounds at least, before anything but a much slower challenger is judged, and at most
LEAST_ROUNDS, MOST_ROUNDS = 9, 41
#: a challenger this much slower in two rounds leaves at once
HOPELESS = 1.5


class Failure(Exception):
    """A candidate cannot be built or timed: it crashed, hung, or was refused; the text says which."""


class Runner(Protocol):
    """Times one candidate, in a process of its own."""

    def time(self) -> tuple[float, ...]:
        """Return the seconds of a call at each point; raises :class:`Failure`."""
        ...


@dataclass(slots=True)
class Lane:
    """A runner in a race with its times, a tuple for each round; ``failed`` ends it."""

    runner: Runner
    times: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    failed: str = ""

    def turn(self) -> None:
        """Run one round."""
        try:
            self.times.append(self.runner.time())
        except Failure as failure:
            self.failed = str(failure)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a challenger ended: its time over the best one's in the middle and as an interval, and the verdict.

    ``verdict`` is ``"faster"``, ``"no gain"`` or ``"failed"`` (then ``reason`` says why).
    """

    verdict: str
    ratio: float = math.inf
    low: float = 0.0
    high: float = math.inf
    rounds: int = 0
    reason: str = ""


def interval(values: Sequence[float], chance: float = 0.02) -> tuple[float, float]:
    """Return values between which the median lies but for a chance: order statistics, so no shape is assumed.

    >>> interval([5, 1, 4, 2, 3, 6, 7]), interval([1, 2, 3])
    ((1, 7), (0.0, inf))
    """
    n, ordered = len(values), sorted(values)
    below, k = 0.0, 0
    while k < n and 2 * (below + math.comb(n, k) / 2**n) <= chance:
        below += math.comb(n, k) / 2**n
        k += 1
    return (0.0, math.inf) if k == 0 else (ordered[k - 1], ordered[n - k])


def race(
    best: Runner, challengers: Sequence[Runner], ended: Callable[[], bool] = lambda: False
) -> tuple[list[Standing], list[tuple[float, ...]]]:
    """Time all in turn until each challenger is judged, ``ended`` says so, or there are enough rounds.

    Returns how the challengers stand, and the times of the best one. Raises :class:`Failure` if that one fails.
    """
    first, others = Lane(best), [Lane(runner) for runner in challengers]
    found: dict[int, Standing] = {}
    for count in range(1, MOST_ROUNDS + 1):
        running = [at for at in range(len(others)) if at not in found]
        turns = [first, *(others[at] for at in running)]
        for lane in turns[count % len(turns) :] + turns[: count % len(turns)]:  # nobody always follows the same one
            lane.turn()
        if first.failed:
            raise Failure(first.failed)
        last = count == MOST_ROUNDS or ended()
        judged = {at: s for at in running if (s := _judged(first, others[at], last)) is not None}
        if len(judged) == len(running):
            found |= judged
            break
        found |= {at: s for at, s in judged.items() if s.verdict != "faster"}  # who is faster runs on beside the others
    return [found[at] for at in range(len(others))], first.times


def _judged(best: Lane, lane: Lane, last: bool) -> Standing | None:
    """Return how a challenger stands, ``None`` while that is open."""
    if lane.failed:
        return Standing("failed", reason=lane.failed, rounds=len(lane.times))
    ratios = [_ratio(a, b) for a, b in zip(lane.times, best.times, strict=False)]
    middle, (low, high) = statistics.median(ratios), interval(ratios)
    hopeless = len(ratios) >= 2 and min(ratios) > HOPELESS
    enough = len(ratios) >= LEAST_ROUNDS
    if hopeless or (enough and low > 1 - MARGIN):
        return Standing("no gain", middle, low, high, len(ratios))
    if enough and (high < 1 - MARGIN or (last and high < 1)):
        return Standing("faster", middle, low, high, len(ratios))
    return Standing("no gain", middle, low, high, len(ratios)) if last else None


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the geometric mean of the ratios at all points."""
    return math.exp(statistics.fmean(math.log(x / y) for x, y in zip(a, b, strict=True)))

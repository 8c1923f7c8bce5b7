"""The search: from the cost model's choice to better ones, one decision at a time, within a budget of seconds."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from polyq.schedule.choices import Decisions
from polyq.tuning.candidates import Candidate, Draft, minimal, neighbours
from polyq.tuning.race import LEAST_ROUNDS, Failure, Runner, Standing, race
from polyq.tuning.result import Trial

__all__ = ["Bench", "Built", "Outcome", "Search"]

#: challengers in one race
BATCH = 3
#: candidates in a row that may bring nothing before the search ends
PATIENCE = 24


class Built(Runner, Protocol):
    """A candidate that is being built in a process of its own."""

    layout: str  # once it is built, a text that is equal for candidates that read what is bound in one layout

    def ready(self) -> None:
        """Wait until it is built; raises :class:`Failure`."""
        ...

    def end(self) -> None:
        """End its process."""
        ...


class Bench(Protocol):
    """Builds candidates side by side."""

    def start(self, choices: Mapping[str, str], /) -> Built:
        """Begin to build a candidate."""
        ...

    def end(self) -> None:
        """End whatever was started."""
        ...


@dataclass(slots=True)
class Outcome:
    """The search so far: ``gain`` is the product of the gains of each step, or what confirming measured."""

    choices: tuple[tuple[str, str], ...] = ()
    untuned: float = math.nan
    gain: float = 1.0
    trials: list[Trial] = field(default_factory=list[Trial])
    confirmed: bool = False
    stopped: str = ""


@dataclass(slots=True)
class Search:
    """Looks for choices whose schedule is faster than that of the best so far, beginning with no choices.

    ``draft`` makes schedules, ``bench`` times them. ``first`` are choices that were found before: they are tried at
    once. ``shared``: candidates that read what is bound in another layout are refused. ``report`` is called after each
    race, ``alone`` gives a context in which nobody else measures.
    """

    draft: Draft
    bench: Bench
    budget: float
    first: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: bool = False
    report: Callable[[Outcome, float, bool], None] = lambda outcome, spent, done: None
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    clock: Callable[[], float] = time.monotonic
    outcome: Outcome = field(default_factory=Outcome)
    _started: float = 0.0
    _seen: set[str] = field(default_factory=set[str])

    def run(self) -> Outcome:
        """Search until the budget is spent, nothing is left, or Ctrl-C; raises :class:`Failure` if nothing runs."""
        self._started = self.clock()
        try:
            self._explore()
            if self.outcome.choices:
                self._confirm()
        except KeyboardInterrupt:
            self.outcome.stopped = "it was interrupted"
        finally:
            self.bench.end()
            self.report(self.outcome, self._spent(), True)
        return self.outcome

    def _spent(self) -> float:
        return self.clock() - self._started

    def _over(self) -> bool:
        """Whether the budget is spent; one that is not nothing lets the first candidates race in any case."""
        return self._spent() >= self.budget and (self.budget == 0 or bool(self.outcome.trials))

    def _explore(self) -> None:
        same, decisions = self.draft({})
        self._seen.add(same)
        best = self.bench.start({})
        best.ready()
        with self.alone():
            self.outcome.untuned = _middle([best.time() for _ in range(LEAST_ROUNDS)])
        best, decisions = self._with_first(best, decisions)
        queue, idle, improved = deque(neighbours(decisions)), 0, False
        while not self._over():
            self.report(self.outcome, self._spent(), False)
            batch = self._batch(queue)
            if not batch and improved:  # another round of all decisions, beside the better ones
                queue, improved = deque(neighbours(decisions)), False
                continue
            if not batch or idle >= PATIENCE:
                self.outcome.stopped = f"{idle} in a row brought nothing" if batch else "nothing was left to try"
                return
            try:
                winner = self._step(best, batch)
            except Failure as failure:
                best, decisions = self._begin_again(failure)
                continue
            idle += len(batch)
            if winner is not None:
                best, decisions, idle, improved = *winner, 0, True
        self.outcome.stopped = "the budget was spent"

    def _begin_again(self, failure: Failure) -> tuple[Built, Decisions]:
        """Go on from the cost model's choice where the best so far failed after all; raise where that itself did."""
        if not self.outcome.choices:
            raise failure
        decision, option = self.outcome.choices[-1]
        self.outcome.trials.append(Trial(decision, option, "failed", reason=f"the best so far {failure}"))
        self.outcome.choices, self.outcome.gain = (), 1.0
        self.bench.end()
        best = self.bench.start({})
        best.ready()
        return best, self.draft({})[1]

    def _with_first(self, best: Built, decisions: Decisions) -> tuple[Built, Decisions]:
        """Try what was found before, as far as it still applies."""
        if not self.first or self._over():
            return best, decisions
        try:
            same, found = self.draft(self.first)
        except Exception:  # it was found for another scheduler, and is not built either
            return best, decisions
        if same in self._seen:
            return best, decisions
        self._seen.add(same)
        changed = ("all", "the choices that were found before")
        return self._step(best, [Candidate(minimal(found), found, changed)]) or (best, decisions)

    def _batch(self, queue: deque[tuple[str, str]]) -> list[Candidate]:
        """Return the next candidates that are schedules of their own, each the best so far with another option."""
        found: list[Candidate] = []
        while queue and len(found) < BATCH and not self._over():
            decision, option = queue.popleft()
            try:
                same, decisions = self.draft({**dict(self.outcome.choices), decision: option})
            except Exception as error:  # whatever a scheduler makes of choices that it would not make
                self.outcome.trials.append(Trial(decision, option, "failed", reason=f"refused: {error}"))
                continue
            if same not in self._seen and decisions.taken.get(decision) == option:
                self._seen.add(same)
                found.append(Candidate(minimal(decisions), decisions, (decision, option)))
        return found

    def _step(self, best: Built, batch: Sequence[Candidate]) -> tuple[Built, Decisions] | None:
        """Race a batch against the best so far; return the winner, ``None`` if the best one stays."""
        runners = [self.bench.start(dict(c.choices)) for c in batch]
        standings = {at: s for at, r in enumerate(runners) if (s := self._unfit(r, best)) is not None}
        left = [at for at in range(len(batch)) if at not in standings]
        if left:
            with self.alone():
                found, _ = race(best, [runners[at] for at in left], self._over)
            standings |= dict(zip(left, found, strict=True))
        self.outcome.trials += [_trial(c, standings[at]) for at, c in enumerate(batch)]
        ahead = [at for at in left if standings[at].verdict == "faster"]
        won = min(ahead, key=lambda at: standings[at].ratio, default=None)
        for at, runner in enumerate(runners):
            if at != won:
                runner.end()
        if won is None:
            return None
        best.end()
        self.outcome.choices, self.outcome.gain = batch[won].choices, self.outcome.gain / standings[won].ratio
        return runners[won], batch[won].decisions

    def _unfit(self, runner: Built, best: Built) -> Standing | None:
        """Wait until a candidate is built; say why it cannot race, if it cannot."""
        try:
            runner.ready()
        except Failure as failure:
            return Standing("failed", reason=str(failure))
        other = self.shared and runner.layout != best.layout
        return Standing("failed", reason=_OTHER_LAYOUT) if other else None

    def _confirm(self) -> None:
        """Measure the best once more beside the cost model's choice, in fresh processes: pages lie elsewhere there."""
        self.bench.end()
        plain, best = self.bench.start({}), self.bench.start(dict(self.outcome.choices))
        times: list[tuple[float, ...]] = []
        try:
            plain.ready()
            best.ready()
            with self.alone():
                (standing,), times = race(plain, [best])
        except Failure as failure:
            standing = Standing("failed", reason=str(failure))
        if standing.verdict != "faster":
            reason = standing.reason or f"{standing.ratio:.3f} of the time in fresh processes, no gain"
            decision, option = self.outcome.choices[-1]
            self.outcome.trials.append(Trial(decision, option, "failed", reason=f"not confirmed: {reason}"))
            self.outcome.choices, self.outcome.gain = (), 1.0
            return
        self.outcome.untuned, self.outcome.gain, self.outcome.confirmed = _middle(times), 1 / standing.ratio, True


_OTHER_LAYOUT = "refused: it reads what is bound in another layout than the other ranges of sizes"


def _middle(times: Sequence[tuple[float, ...]]) -> float:
    """Return the geometric mean over the points of the median seconds."""
    medians = [statistics.median(each) for each in zip(*times, strict=True)]
    return math.exp(statistics.fmean(map(math.log, medians)))


def _trial(candidate: Candidate, s: Standing) -> Trial:
    decision, option = candidate.changed
    if s.verdict == "failed":
        return Trial(decision, option, s.verdict, rounds=s.rounds, reason=s.reason)
    return Trial(decision, option, s.verdict, s.ratio, s.low, s.high, s.rounds)

"""``polyq.tune``: specs to problems, problems to searches, here or on an executor, and outcomes into the database."""

from __future__ import annotations

import fcntl
import platform
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

from polyq.affine.codec import Malformed
from polyq.affine.errors import ArgumentError, BuildError, PolyqError, SpecError
from polyq.affine.spec import Spec
from polyq.build import tuned
from polyq.build.building import checked_options
from polyq.build.cache import cache_folder
from polyq.schedule.target import cpu_model
from polyq.tuning.candidates import Drafts
from polyq.tuning.problem import Problem, Sizes, problems_of
from polyq.tuning.process import Workshop
from polyq.tuning.progress import Progress, Report, reporter
from polyq.tuning.race import Failure
from polyq.tuning.result import Tuned, Tuning
from polyq.tuning.search import Bench, Outcome, Search

__all__ = ["run_job", "tune", "tune_problem"]


@overload
def tune(
    spec: Spec, /, *, budget: float = ..., sizes: Sizes | Sequence[Sizes] | None = ..., numerics: str = ...,
    target: str = ..., threads: int | None = ..., constants: Iterable[str] = ..., executor: Executor | None = ...,
    progress: bool | Callable[[Progress], None] = ...,
) -> Tuning: ...  # fmt: skip
@overload
def tune(
    spec: Iterable[Spec], /, *, budget: float = ..., sizes: Sizes | Sequence[Sizes] | None = ..., numerics: str = ...,
    target: str = ..., threads: int | None = ..., constants: Iterable[str] = ..., executor: Executor | None = ...,
    progress: bool | Callable[[Progress], None] = ...,
) -> tuple[Tuning, ...]: ...  # fmt: skip
def tune(
    spec: Spec | Iterable[Spec],
    /,
    *,
    budget: float = 60.0,
    sizes: Sizes | Sequence[Sizes] | None = None,
    numerics: str = "reassoc",
    target: str = "native",
    threads: int | None = None,
    constants: Iterable[str] = (),
    executor: Executor | None = None,
    progress: bool | Callable[[Progress], None] = True,
) -> Tuning | tuple[Tuning, ...]:
    """Find faster schedules by measuring, and keep what was found for :func:`polyq.build` on this model of CPU.

    ``spec`` is one spec or several; ``budget`` is in seconds, for each range of sizes of each spec (a search that finds
    nothing left to try ends sooner). ``sizes`` gives the parameters to time calls at, as in ``[{"m": 1}, {"m": 16}]``;
    by default every range of the kernel is tuned at its typical size, and other parameters are 64. ``numerics``,
    ``target``, ``threads`` and ``constants`` are those of :func:`polyq.build`: what is found serves kernels that are
    built with the same numerics, target and constants.

    Candidates differ from the cost model's choice in one decision after another. Each is built and proven as any
    kernel, and timed in a process of its own, with data that is not in the caches, in turn with the best so far. One
    that crashes or hangs is named in the result. Ctrl-C ends the search and keeps the best so far. What the database
    holds already is tried first.

    ``executor`` (any :class:`concurrent.futures.Executor`: a process pool, a Dask client's, MPI's) runs the searches,
    one for each range of each spec, side by side; those on one machine take turns in measuring. ``progress`` is a line
    on stderr, a function that is called with a :class:`~polyq.tuning.Progress`, or ``False`` for nothing.

    Returns a :class:`~polyq.tuning.Tuning`, or a tuple of them for several specs. Raises
    :class:`~polyq.affine.errors.ArgumentError` for sizes that do not fit, :class:`~polyq.affine.errors.BuildError`
    where a spec cannot be built or timed as it is.

    >>> import polyq
    >>> spec = polyq.parse("y[i] = 2 * x[i]", x=("i32", (64,)))
    >>> found = polyq.tune(spec, budget=0, progress=False)  # no time to try anything
    >>> found.ranges[0].stopped, found.ranges[0].trials, polyq.build(spec).tuned
    ('the budget was spent', (), None)
    """
    given = (spec,) if isinstance(spec, Spec) else tuple(spec)
    _check(given, budget)
    points = [sizes] if isinstance(sizes, Mapping) else sizes
    bound = tuple(constants)
    options = [checked_options(each, numerics, target, threads, bound) for each in given]
    problems = [(at, p) for at, each in enumerate(given) for p in problems_of(each, points, *options[at])]
    _check_travel([p for _, p in problems])
    tell = reporter(progress)
    run = _run_here if executor is None else _runner_on(executor)
    done = run([p for _, p in problems], float(budget), tell)
    found = tuple(
        Tuning(
            each.name,
            tuple(d for (k, _), d in zip(problems, done, strict=True) if k == at and isinstance(d, Tuned)),
            tuple(d for (k, _), d in zip(problems, done, strict=True) if k == at and isinstance(d, str)),
        )
        for at, each in enumerate(given)
    )
    return found[0] if isinstance(spec, Spec) else found


def _check(given: Sequence[object], budget: object) -> None:
    for each in given:
        if not isinstance(each, Spec):
            raise TypeError(f"tune: expected a Spec (polyq.parse(...)) or several, got {type(each).__qualname__}")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget >= 0:
        raise ArgumentError(f"tune: budget={budget!r}: expected seconds, a number of at least 0")


def _check_travel(problems: Sequence[Problem]) -> None:
    """Refuse what other processes would not read back."""
    for problem in problems:
        try:
            Problem.decode(problem.encode())
        except (Malformed, SpecError) as error:
            raise ArgumentError(f"tune: {problem.title}: it cannot be sent to other processes: {error}") from None


# ---- one problem
def tune_problem(problem: Problem, budget: float, tell: Report = lambda _: None, bench: Bench | None = None) -> Tuned:
    """Search for one problem in this process, which starts one for each candidate; keep and return the outcome."""
    asked, started = problem.asked, time.monotonic()
    names = asked.renaming

    def report(outcome: Outcome, spent: float, done: bool) -> None:
        best = next((t for t in reversed(outcome.trials) if t.verdict == "faster"), None)
        text = names.text(f"{best.decision}: {best.option}") if best is not None and outcome.choices else ""
        tell(Progress(problem.title, len(outcome.trials), spent, budget, outcome.gain, text, done))

    try:
        held = tuned.find(asked.problem())
        search = Search(
            Drafts(asked), bench or Workshop(problem), budget, {} if held is None else dict(held.choices),
            problem.shared, report, measuring,
        )  # fmt: skip
        outcome = search.run()
    except Failure as failure:
        raise BuildError(f"tune: {problem.title}: the kernel itself cannot be timed: {failure}") from None
    trials = tuple(replace(t, decision=names.text(t.decision), option=names.text(t.option)) for t in outcome.trials)
    changed = tuple((names.text(d), names.text(o)) for d, o in outcome.choices)
    found = Tuned(
        problem.title, cpu_model(), tuned.target_name(problem.target), problem.threads, outcome.untuned,
        outcome.untuned / outcome.gain, outcome.choices, changed, trials, outcome.confirmed, outcome.stopped,
        time.monotonic() - started,
    )  # fmt: skip
    return keep(asked.problem(), found)


def keep(problem: str, found: Tuned) -> Tuned:
    """Write an outcome into the database, unless nothing was tried; return it with the place."""
    if not problem or not found.trials:
        return found
    entry = tuned.Entry(
        problem, found.cpu, found.target, found.title, found.choices, found.seconds, found.untuned, found.threads,
        time.time(),
    )  # fmt: skip
    return replace(found, kept=str(tuned.keep(entry)))


@contextmanager
def measuring() -> Generator[None]:
    """Wait until no other search of this user measures on this machine; builds go on beside it."""
    path = cache_folder() / f"measuring-{platform.node() or 'here'}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # gone with the process, however it ends
        yield


# ---- several
def _run_here(problems: Sequence[Problem], budget: float, tell: Report) -> list[Tuned | str]:
    done: list[Tuned | str] = []
    for problem in problems:
        interrupted = done and (isinstance(done[-1], str) or done[-1].stopped.endswith("interrupted"))
        done.append(f"{problem.title}: it was interrupted" if interrupted else tune_problem(problem, budget, tell))
    return done


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Tune one problem, given and returned as plain data: what an executor runs, on whatever machine."""
    found = tune_problem(Problem.decode(job["problem"]), job["budget"])
    return {"tuned": found.encode(), "key": Problem.decode(job["problem"]).asked.problem()}


def _runner_on(executor: Executor) -> Callable[[Sequence[Problem], float, Report], list[Tuned | str]]:
    def run(problems: Sequence[Problem], budget: float, tell: Report) -> list[Tuned | str]:
        futures: list[Future[dict[str, Any]]] = []
        said: set[int] = set()
        try:
            futures += [executor.submit(run_job, {"problem": p.encode(), "budget": budget}) for p in problems]
            while any(not f.done() for f in futures):
                wait(futures, timeout=0.2)
                _tell_done(problems, futures, said, budget, tell)
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            wait([f for f in futures if not f.cancelled()], timeout=3.0)  # a terminal interrupts those as well
        _tell_done(problems, futures, said, budget, tell)
        return [_result(p, futures[at] if at < len(futures) else None) for at, p in enumerate(problems)]

    return run


def _tell_done(
    problems: Sequence[Problem], futures: Sequence[Future[dict[str, Any]]], said: set[int], budget: float, tell: Report
) -> None:
    for at, future in enumerate(futures):
        if at not in said and future.done() and not future.cancelled() and future.exception() is None:
            said.add(at)
            found = Tuned.decode(future.result()["tuned"])
            best = ": ".join(found.changed[-1]) if found.changed else ""
            tell(Progress(problems[at].title, len(found.trials), found.spent, budget, found.gain, best, True))


def _result(problem: Problem, future: Future[dict[str, Any]] | None) -> Tuned | str:
    """Return the outcome of a job, kept here as well, or a text that says why there is none."""
    if future is None or future.cancelled() or not future.done():
        return f"{problem.title}: it was interrupted"
    error = future.exception()
    if error is not None:
        kind = "" if isinstance(error, PolyqError) else f"{type(error).__name__}: "
        return f"{problem.title}: {kind}{error}"
    value = future.result()
    return keep(value["key"], Tuned.decode(value["tuned"]))



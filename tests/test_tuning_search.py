"""The search for better choices, with invented times: what it finds, when it stops, and what it survives."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from polyq.schedule.choices import Decisions, decide, deciding
from polyq.tuning.race import LEAST_ROUNDS, MOST_ROUNDS, Failure, Standing, interval, race
from polyq.tuning.search import Search

TILES, PANELS = ("6 x 2", "4 x 2", "3 x 4"), ("copied", "where it lies")


class World:
    """Invented decisions and times: ``factor`` gives the time of what was decided, ``noise`` the spread."""

    def __init__(self, factor, noise=0.005, offered=None):
        self.factor, self.noise, self.random = factor, noise, random.Random(1)
        self.offered = offered or {"tile": TILES, "panel": PANELS}
        self.now, self.started, self.running, self.broken = 0.0, [], set(), {}

    def draft(self, choices):
        with deciding(choices) as made:
            for decision, options in self.offered.items():
                decide(decision, options, options)
        return repr(sorted(made.taken.items())), made

    def start(self, choices):
        taken = self.draft(choices)[1].taken
        self.started.append(dict(choices))
        return Process(self, taken)

    def end(self):
        self.running.clear()

    def search(self, budget=1000.0, **options):
        return Search(self.draft, self, budget, clock=lambda: self.now, **options).run()


class Process:
    def __init__(self, world, taken):
        self.world, self.taken, self.layout = world, taken, taken.get("layout", "")
        world.running.add(self)

    def ready(self):
        self.world.now += 1.0
        if (reason := self.world.broken.get(self.taken["tile"])) is not None:
            if isinstance(reason, BaseException):
                raise reason
            raise Failure(reason)

    def time(self):
        assert self in self.world.running
        self.world.now += 0.01
        factor = self.world.factor(self.taken)
        if isinstance(factor, Exception):
            raise factor
        return (1e-3 * factor * (1 + self.world.noise * self.world.random.uniform(-1, 1)),)

    def end(self):
        self.world.running.discard(self)


def by(table):
    return lambda taken: math.prod(table.get(option, 1.0) for option in taken.values())


# ---- what is found
def test_gains_in_several_decisions_add_up():
    world = World(by({"3 x 4": 0.8, "4 x 2": 0.9, "where it lies": 0.7}))
    found = world.search()
    assert dict(found.choices) == {"tile": "3 x 4", "panel": "where it lies"}
    assert found.gain == pytest.approx(1 / 0.56, rel=0.01)
    assert found.untuned == pytest.approx(1e-3, rel=0.01)
    assert (found.confirmed, found.stopped) == (True, "nothing was left to try")
    assert not world.running


def test_a_choice_that_pays_only_beside_another_is_found_in_the_next_round():
    def factor(taken):
        return {("3 x 4", "copied"): 0.9, ("3 x 4", "where it lies"): 0.6}.get((taken["tile"], taken["panel"]), 1.0)

    assert dict(World(factor).search().choices) == {"tile": "3 x 4", "panel": "where it lies"}


@pytest.mark.parametrize("table", [{}, {"3 x 4": 1.3, "where it lies": 1.1}, {"3 x 4": 0.995}])
def test_without_a_gain_the_cost_model_stands(table):
    found = World(by(table), noise=0.01).search()
    assert (found.choices, found.gain, found.stopped) == ((), 1.0, "nothing was left to try")
    assert {t.verdict for t in found.trials} == {"no gain"}
    assert len(found.trials) == 3  # two other tiles, one other panel


def test_choices_found_before_are_tried_first():
    world = World(by({"4 x 2": 0.5}))
    found = world.search(first={"tile": "4 x 2"})
    assert dict(found.choices) == {"tile": "4 x 2"}
    assert found.trials[0].verdict == "faster"
    assert world.search(first={"tile": "9 x 9"}).trials[0].option != "9 x 9"  # no option any more


def test_schedules_that_are_the_same_are_measured_once():
    world = World(by({}))
    world.draft = lambda choices: ("one", World.draft(world, choices)[1])
    assert world.search().trials == []
    assert world.started == [{}]


# ---- when it stops
def test_the_budget_ends_the_search():
    world = World(by({"4 x 2": 0.9}))
    found = world.search(budget=0)
    assert (found.stopped, found.trials, found.choices) == ("the budget was spent", [], ())
    assert found.untuned == pytest.approx(1e-3, rel=0.01)
    world = World(by({"a1": 0.9}), offered={"tile": TILES, **{d: tuple(f"{d}{k}" for k in range(5)) for d in "abcd"}})
    found = world.search(budget=0.5)  # spent before anything was tried
    assert (found.stopped, len(found.trials), dict(found.choices)) == ("the budget was spent", 3, {"a": "a1"})


def test_many_in_a_row_without_a_gain_end_the_search():
    options = tuple(f"t{k}" for k in range(9))
    world = World(by({}), offered={"tile": options, **{f"d{k}": options for k in range(9)}})
    found = world.search()
    assert found.stopped == "24 in a row brought nothing"
    assert len(found.trials) == 24


def test_what_is_much_slower_leaves_after_two_rounds():
    found = World(by({"4 x 2": 3.0, "3 x 4": 0.999, "where it lies": 1.01}), noise=0.02).search()
    rounds = {t.option: t.rounds for t in found.trials}
    assert rounds["4 x 2"] == 2
    assert all(rounds[o] >= LEAST_ROUNDS for o in ("3 x 4", "where it lies"))


# ---- what it survives
@pytest.mark.parametrize("reason", ["crashed: signal SIGSEGV", "hung: building it took more than 120 s"])
def test_a_candidate_that_fails_is_named_and_the_others_go_on(reason):
    world = World(by({"3 x 4": 0.8}))
    world.broken["4 x 2"] = reason
    found = world.search()
    assert dict(found.choices) == {"tile": "3 x 4"}
    assert [(t.option, t.reason) for t in found.trials if t.verdict == "failed"] == [("4 x 2", reason)]


def test_a_candidate_that_fails_in_a_round_is_named():
    world = World(lambda taken: Failure("crashed: late") if taken["tile"] == "4 x 2" else 1.0)
    found = world.search()
    assert [t.reason for t in found.trials if t.option == "4 x 2"] == ["crashed: late"]
    assert found.choices == ()


def test_a_best_so_far_that_fails_later_is_dropped_and_the_search_goes_on():
    world = World(None, offered={"tile": ("6 x 2", "3 x 4"), "later": tuple("abcdefghi")})

    def factor(taken):
        if taken["tile"] == "3 x 4":
            return Failure("crashed: late") if len(world.started) > 6 else 0.5
        return 0.8 if taken["later"] == "h" else 1.0

    world.factor = factor
    found = world.search()
    assert dict(found.choices) == {"later": "h"}
    assert next(t.reason for t in found.trials if t.verdict == "failed") == "the best so far crashed: late"


def test_a_schedule_that_cannot_be_made_is_named():
    world = World(by({}))
    plain = world.draft

    def draft(choices):
        if choices.get("tile") == "4 x 2":
            raise AssertionError("no such tile")
        return plain(choices)

    world.draft = draft
    assert [str(t) for t in world.search().trials if t.verdict == "failed"] == ["tile: 4 x 2: refused: no such tile"]


def test_an_interrupt_keeps_the_best_so_far():
    world = World(by({"3 x 4": 0.8}), offered={"tile": ("6 x 2", "3 x 4"), "later": tuple("abcdefg")})
    plain, count = world.start, itertools.count()

    def start(choices):
        if next(count) == 6:
            raise KeyboardInterrupt
        return plain(choices)

    world.start = start
    found = world.search()
    assert (dict(found.choices), found.confirmed, found.stopped) == ({"tile": "3 x 4"}, False, "it was interrupted")
    assert found.gain == pytest.approx(1.25, rel=0.02)
    assert not world.running


def test_a_gain_that_fresh_processes_do_not_show_is_dropped():
    world = World(None)
    # the first process of the tile is lucky, the one that confirms is not
    world.factor = lambda taken: 0.8 if taken["tile"] == "3 x 4" and len(world.started) < 5 else 1.0
    found = world.search()
    assert (found.choices, found.gain, found.confirmed) == ((), 1.0, False)
    assert found.trials[-1].reason.startswith("not confirmed: ")


def test_the_kernel_itself_must_run():
    world = World(by({}))
    world.broken["6 x 2"] = "crashed"
    with pytest.raises(Failure, match="crashed"):
        world.search()
    assert not world.running


def test_another_layout_is_refused_where_other_ranges_read_it():
    world = World(by({"rows": 0.5}), offered={"tile": TILES, "layout": ("words", "rows")})
    assert dict(world.search().choices) == {"layout": "rows"}
    found = world.search(shared=True)
    assert found.choices == ()
    assert [t.reason[:37] for t in found.trials if t.verdict == "failed"] == ["refused: it reads what is bound in an"]


def test_progress_is_told_after_every_race():
    told = []
    World(by({"3 x 4": 0.8})).search(report=lambda outcome, spent, done: told.append((outcome.gain > 1.1, done)))
    assert told[0] == (False, False)
    assert told[-1] == (True, True)


# ---- the race
@pytest.mark.parametrize("n", [3, 6, 7, 15, 41])
def test_the_interval_holds_the_median_with_its_chance(n):
    low, high = interval(list(range(n)))
    if n < 7:  # 2 of 64 samples would lie on one side
        assert (low, high) == (0.0, math.inf)
        return
    # the median is below the k-th value of n with the chance that fewer than k values lie below it
    k = int(low) + 1
    outside = 2 * sum(math.comb(n, i) for i in range(k)) / 2**n
    assert outside <= 0.02 < 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert high == n - k


class Fixed:
    def __init__(self, *times):
        self.times, self.count = itertools.cycle(times), 0

    def time(self):
        self.count += 1
        return next(self.times)


def test_several_points_count_by_their_geometric_mean():
    best, better, worse = Fixed((1.0, 4.0)), Fixed((0.5, 4.0)), Fixed((0.5, 16.0))
    standings, times = race(best, [better, worse])
    assert [s.verdict for s in standings] == ["faster", "no gain"]
    assert standings[0].ratio == pytest.approx(math.sqrt(0.5))
    assert standings[1].ratio == pytest.approx(math.sqrt(2))
    assert set(times) == {(1.0, 4.0)}


def test_an_open_race_ends_with_the_rounds_or_the_time():
    best, other = Fixed((1.0,)), Fixed((0.9,), (1.1,))
    standings, times = race(best, [other])
    assert (standings[0].verdict, len(times)) == ("no gain", MOST_ROUNDS)
    standings, times = race(best, [Fixed((0.5,))], ended=lambda: True)
    assert standings == [Standing("no gain", 0.5, 0.0, math.inf, 1)]  # one round proves nothing


def test_choices_that_were_not_made_say_why():
    with deciding({"tile": "9 x 9", "gone": "x"}) as made:
        assert decide("tile", TILES, (1, 2, 3)) == 1
    assert made.unmet == (
        "tile: '9 x 9' was asked for; the options are '6 x 2', '4 x 2', '3 x 4'",
        "gone: 'x' was asked for, but that is not decided here",
    )
    assert Decisions({}).unmet == ()

"""Random directives on random specs: verdicts and witnesses against brute force, and kernels against the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from brute import Verdict, judge, lies
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_specs import RandomSpec, random_specs
from random_steps import Arguments, directive

import polyq
import polyq.testing
from polyq.affine.errors import ScheduleError
from polyq.affine.proofs import prove
from polyq.affine.spec import Spec
from polyq.schedule.legality import Violation
from polyq.schedule.schedule import Directive, Schedule

#: instances of a spec that is run by hand, at most
MOST_INSTANCES = 150

CHUNKS = 5
#: verdicts of each kind that a chunk collects, from at most so many specs
ENOUGH, EXAMPLES = 45, 120


# ---- directives
def unchecked(schedule: Schedule, name: str, arguments: Arguments) -> Schedule:
    """Return the schedule that a method would make, without its check."""

    def add(made: Schedule, transform: str, **given: object) -> Schedule:
        return made.then(Directive(transform, tuple(given.items())))

    match name:
        case "tile":
            op, sizes = str(arguments["op"]), dict(arguments["sizes"])  # type: ignore[call-overload]
            order = schedule.plan.stage(op).order
            for axis, size in sizes.items():
                schedule = add(schedule, "split", op=op, axis=axis, factor=size, outer=f"{axis}o", inner=f"{axis}i")
            axes = (*(f"{a}o" if a in sizes else a for a in order), *(f"{a}i" for a in order if a in sizes))
            return add(schedule, "reorder", op=op, axes=axes)
        case "vectorize" if "lanes" in arguments:
            op, axis, inner = arguments["op"], arguments["axis"], f"{arguments['axis']}v"
            parts = {"op": op, "axis": axis, "factor": arguments["lanes"], "outer": f"{axis}b", "inner": inner}
            return add(add(schedule, "split", **parts), "mark", op=op, axis=inner, kind="vector")
        case "vectorize" | "parallel" | "unroll":
            kind = "vector" if name == "vectorize" else name
            return add(schedule, "mark", op=arguments["op"], axis=arguments["axis"], kind=kind)
        case _:
            return add(schedule, name, **arguments)


# ---- verdicts
def attempt(schedule: Schedule, name: str, arguments: Arguments, seen: Counter[tuple[str, str]]) -> Schedule:
    """Apply a directive by its method; compare the verdict with brute force. Return the schedule to go on from."""
    try:
        made = getattr(schedule, name)(**arguments)
        refused = None
    except ScheduleError as error:
        made, refused = None, error
    if refused is not None and refused.witness is None:
        seen[name, "malformed"] += 1
        return schedule
    wanted = unchecked(schedule, name, arguments)
    if made is not None:
        assert made.directives == wanted.directives
        wanted = made
    spec, nest = wanted.plan.spec, wanted.nest
    verdict = judge(spec, nest, wanted.numerics == "strict")
    story = f"{schedule.spec}\n{[*map(str, wanted.directives)]}\n{spec}\n{nest}\n{verdict.faults[:3]}\n{refused}"
    assert verdict.legal == (refused is None), story
    if refused is not None:
        lie = lies(spec, verdict, refused.witness)
        assert lie is None, f"{lie}\n{story}"
    else:
        assert verdict.same_outputs, story
    _count(seen, schedule.plan.spec, name, arguments, verdict)
    return schedule if made is None else made


def _count(seen: Counter[tuple[str, str]], spec: Spec, name: str, arguments: Arguments, verdict: Verdict) -> None:
    outcome = "legal" if verdict.legal else "illegal"
    seen[name, outcome] += 1
    op = str(arguments.get("op", arguments.get("producer", "")))
    if name in ("fuse", "reorder", "tile") and op in {o.name for o in spec.ops} and spec.op(op).reduce:
        seen["of these: fuse or reorder a reduction", outcome] += 1
    if not verdict.legal and verdict.same_outputs and {f.kind for f in verdict.faults} <= {"flow", "reduction", "output"}:
        seen["of these: the outputs are right all the same", outcome] += 1


def size(spec: Spec) -> int:
    """Return the number of points of all boxes."""
    total = 0
    for op in spec.ops:
        count = 1
        for e in op.extents:
            count *= max(0, e.evaluate({}, {}))
        total += count
    return total


def total(seen: Counter[tuple[str, str]]) -> tuple[int, int]:
    """Return how many verdicts were legal and how many illegal."""
    rows = {k for k, _ in seen if not k.startswith("of these")}
    return sum(seen[k, "legal"] for k in rows), sum(seen[k, "illegal"] for k in rows)


def enough(seen: Counter[tuple[str, str]]) -> bool:
    """Whether there are enough verdicts of each kind, a third of them on fused or reordered reductions."""
    special = seen["of these: fuse or reorder a reduction", "legal"] + seen["of these: fuse or reorder a reduction", "illegal"]
    return min(total(seen)) >= ENOUGH and 3 * special >= sum(total(seen))


def collect(chunk: int) -> Counter[tuple[str, str]]:
    """Try directives one after another on the random specs of one chunk."""
    seen: Counter[tuple[str, str]] = Counter()

    @seed(chunk)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(random_specs(), st.integers(0, 1 << 30))
    def run(drawn: RandomSpec, number: int) -> None:
        if enough(seen):
            return
        spec = drawn.spec()
        r = Random(number)
        if not 0 < size(spec) <= MOST_INSTANCES or not (any(op.reduce for op in spec.ops) or r.random() < 0.2):
            return
        naive = schedule = Schedule.naive(spec, numerics=r.choice(["strict", "reassoc"]))
        for _ in range(8):
            name, arguments = directive(r, schedule.plan)
            if arguments:
                schedule = attempt(schedule, name, arguments, seen)
            if r.random() < 0.25:
                schedule = naive

    run()
    return seen


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_directives_get_the_verdict_of_brute_force(chunk: int) -> None:
    seen = collect(chunk)
    rows = sorted({k for k, _ in seen})
    print()
    for k in rows:
        print(f"{k:45} legal {seen[k, 'legal']:4} illegal {seen[k, 'illegal']:4} malformed {seen[k, 'malformed']:4}")
    legal, illegal = total(seen)
    print(f"{'all':45} legal {legal:4} illegal {illegal:4}")
    assert CHUNKS * ENOUGH >= 200
    assert enough(seen)


def test_a_false_witness_is_told_from_a_true_one() -> None:
    spec = polyq.parse("y[i] += x[i, k]", x=("f32", (2, 3)))
    with pytest.raises(ScheduleError) as refused:
        Schedule.naive(spec).reorder("y", ["k", "i"]).parallel("y", "k")
    found = refused.value.witness
    assert isinstance(found, Violation)
    wanted = unchecked(Schedule.naive(spec).reorder("y", ["k", "i"]), "parallel", {"op": "y", "axis": "k"})
    verdict = judge(wanted.plan.spec, wanted.nest, strict=False)
    assert {f.kind for f in verdict.faults} == {"race"}
    assert lies(spec, verdict, found) is None
    twice = replace(found, instances=(found.instances[0], found.instances[0]))
    assert "do not race" in str(lies(spec, verdict, twice))
    elsewhere = replace(found.instances[0], dims=(("i", 0), ("k", 7)))
    assert "did not run" in str(lies(spec, verdict, replace(found, instances=(elsewhere, found.instances[1]))))


def test_an_unrolled_axis_outside_its_tiles_keeps_the_tail() -> None:
    spec = polyq.parse("y += x[i]", x=("f32", (5,)))
    schedule = Schedule.naive(spec).split("y", "i", 2).unroll("y", "ii").reorder("y", ["ii", "io"])
    verdict = judge(spec, schedule.nest, strict=False)
    assert verdict.legal
    assert sorted(e.instance for e in verdict.run.events if e.op == "y") == [(i,) for i in range(5)]


# ---- kernels
def legal_schedules(chunk: int, count: int) -> list[tuple[RandomSpec, Schedule]]:
    """Return schedules of at least 3 random directives that were accepted, each of another spec."""
    found: list[tuple[RandomSpec, Schedule]] = []

    @seed(1000 + chunk)
    @settings(
        max_examples=12 * count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(random_specs(), st.integers(0, 1 << 30))
    def run(drawn: RandomSpec, number: int) -> None:
        if len(found) == count:
            return
        r = Random(number)
        schedule = Schedule.naive(drawn.spec(), numerics=("strict", "reassoc")[len(found) % 2])
        if not 0 < size(schedule.spec) <= 2 * MOST_INSTANCES or not any(op.reduce for op in schedule.spec.ops):
            return
        for _ in range(9):
            name, arguments = directive(r, schedule.plan)
            try:
                schedule = getattr(schedule, name)(**arguments) if arguments else schedule
            except ScheduleError:
                continue
            if len(schedule.directives) >= 3 and r.random() < 0.4:
                break
        if len(schedule.directives) >= 3:
            found.append((drawn, schedule))

    run()
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_kernels_of_random_schedules_are_right(chunk: int) -> None:
    """Strict kernels equal the oracle bit by bit, others lie within their bound; natively and in plain C."""
    found = legal_schedules(chunk, 3)
    assert len(found) == 3
    assert {s.numerics for _, s in found} == {"strict", "reassoc"}
    for drawn, schedule in found:
        arrays = drawn.arrays(chunk)
        proof = prove(schedule.spec, schedule.plan.spec)
        assert proof.ok, f"{proof}\n{schedule.spec}\n{schedule.plan.spec}"
        for target in ("native", "c"):
            kernel = polyq.build(replace(schedule, target=target), threads=2)
            assert kernel.schedule.directives == schedule.directives
            try:
                polyq.testing.assert_close(kernel, **arrays)
            except AssertionError as error:
                steps = "\n".join(map(str, schedule.directives))
                raise AssertionError(f"{target}: {error}\n{schedule.spec}\n{steps}\n{schedule.nest}") from error

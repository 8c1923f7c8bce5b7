"""The order of a schedule's sums against brute force: every update of small nests, one after another."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_specs import RandomSpec, random_specs
from test_random_schedules import MOST_INSTANCES, directive, size

from polyq.affine.bounds import Evaluation, Sums
from polyq.affine.errors import ScheduleError
from polyq.affine.notation import parse
from polyq.affine.scalar import Index, Load, walk
from polyq.affine.spec import Op
from polyq.schedule import Schedule
from polyq.schedule.evaluation import evaluation
from polyq.schedule.loopnest import Assign, Guard, Loop, Scope


# ---- what runs, in order
def _updates(block, at, scopes, params):
    """Yield (assignment, loop variables, storage) for each iteration, in the order of the nest."""
    for node in block:
        match node:
            case Loop(var, lower, upper, _, body):
                low = max(e.evaluate(at, params) for e in lower)
                high = min(e.evaluate(at, params) for e in upper)
                for value in range(low, high):
                    yield from _updates(body, {**at, var: value}, scopes, params)
            case Guard(constraints, body):
                values = [(c.expr.evaluate(at, params), c.equality) for c in constraints]
                if all(v == 0 if equality else v >= 0 for v, equality in values):
                    yield from _updates(body, at, scopes, params)
            case Scope(buffers, body):
                made = tuple(sorted(at.items()))
                yield from _updates(body, at, {**scopes, **{b.name: made for b in buffers}}, params)
            case Assign():
                yield node, at, scopes.get(node.target, ())


def _order(schedule, name):
    """Return the terms of an op in the order in which the nest runs them."""
    op = schedule.plan.spec.op(name)
    return [
        _term(op, dict(zip(op.dims, (e.evaluate(at, {}) for e in node.instance), strict=True)), {})
        for node, at, _ in _updates(schedule.nest.body, {}, {}, {})
        if node.op == name
    ]


def _points(op: Op, params):
    for point in itertools.product(*(range(e.evaluate({}, params)) for e in op.extents)):
        at = dict(zip(op.dims, point, strict=True))
        values = [(c.expr.evaluate(at, params), c.equality) for c in op.where]
        if all(v == 0 if equality else v >= 0 for v, equality in values):
            yield at


def _term(op: Op, at, params):
    """What an instance adds to which cell: its cell, the places that it reads and the index values that it uses."""
    exprs = [e for node in walk(op.body) for e in (node.index if isinstance(node, Load) else [node.expr] if isinstance(node, Index) else [])]
    return tuple(e.evaluate(at, params) for e in op.index), tuple(e.evaluate(at, params) for e in exprs)


def _claimed(form: Evaluation, sums: Sums, params):
    """Return where each term of each cell stands in the claimed order: the values of the dims that are not open."""
    op = form.spec.op(sums.op)
    known = [d for d in op.dims if d not in sums.open]
    places = defaultdict(list)
    for at in _points(op, params):
        cell, term = _term(op, at, params)
        places[cell, term].append(tuple(at[d] for d in known))
    return places


def check_order(schedule: Schedule, params=None) -> Counter[str]:
    """Assert that the nest follows the order that is claimed; count how much of it is."""
    params, form, seen = params or {}, evaluation(schedule), Counter[str]()
    for sums in form.sums:
        op = schedule.plan.spec.op(sums.op)
        places = _claimed(form, sums, params)
        rows = defaultdict(list)
        for node, at, storage in _updates(schedule.nest.body, {}, {}, params):
            if node.op == sums.op:
                instance = dict(zip(op.dims, (e.evaluate(at, params) for e in node.instance), strict=True))
                cell, term = _term(op, instance, params)
                where = tuple(e.evaluate(at, params) for e in node.index)
                rows[storage, where, cell].append(places[cell, term])
        for row in rows.values():
            if any(len(p) != 1 for p in row):
                seen["ambiguous"] += 1  # equal terms: nothing tells their order
                continue
            flat = [p[0] for p in row]
            assert flat == sorted(flat), (sums, flat, str(schedule.nest))
        seen["open" if sums.open else "known"] += 1
    return seen


# ---- by hand
MATVEC = parse("y[i] += a[i, k] * x[k]", a=("f32", (4, 12)), x=("f32", (12,)))


def _sums(schedule: Schedule) -> tuple[Sums, ...]:
    found = evaluation(schedule).sums
    check_order(schedule)
    return found


def test_the_order_of_the_program():
    assert _sums(Schedule.naive(MATVEC)) == (Sums("y"),)


def test_split_and_reordered_axes_become_the_dims():
    schedule = Schedule.naive(MATVEC).split("y", "k", 4).reorder("y", ["ki", "i", "ko"])
    assert _sums(schedule) == (Sums("y"),)
    op = evaluation(schedule).spec.op("y")
    assert op.dims == ("i", "ki", "ko")
    assert str(op) == "y[i] += a[i, ki + 4*ko] * x[ki + 4*ko]"


def test_a_tail_that_keeps_the_order():
    schedule = Schedule.naive(MATVEC).split("y", "k", 5).unroll("y", "ki")
    assert _sums(schedule) == (Sums("y", (), 5),)


def test_a_tail_in_another_order_leaves_the_order_open():
    # whole tiles run (io, j, ii), what is left over runs (io, ii, j)
    spec = parse("y += x[i, j]", x=("f32", (5, 2)))
    schedule = Schedule.naive(spec).split("y", "i", 3).unroll("y", "ii").reorder("y", ["io", "j", "ii"])
    assert _sums(schedule) == (Sums("y", ("j", "ii"), 3),)
    assert evaluation(schedule).windows({}) == {"y": 18}
    # claimed to be known, it is found out
    found = [term for _, term in _order(schedule, "y")]
    assert found != sorted(found, key=lambda t: (t[0] // 3, t[1], t[0] % 3))


def test_lanes_that_are_folded_are_a_run_of_open_order():
    schedule = Schedule.naive(MATVEC).split_dim("y", "k", 4).partial_sums("y", ["ki"]).unroll("y", "ki")
    assert Sums("y", (), 4) in _sums(schedule)


def test_open_dims_count_as_one_run():
    form = Evaluation(parse("y += x[i, j]", x=("f32", ("n", 6))), (Sums("y", ("j",), 2),))
    assert form.windows({"n": 5}) == {"y": 12}
    assert Evaluation(form.spec, (Sums("y"),)).windows({"n": 5}) == {"y": 1}
    assert Evaluation(form.spec, (Sums("y", ("i", "j")),)).windows({"n": 0}) == {"y": 1}


@pytest.mark.parametrize("target", ["native", "c", "sse"])
@pytest.mark.parametrize(
    "text",
    [
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
        "m1[m, g] max= x[m, g, j]\ne[m, g, j] = exp(x[m, g, j] - m1[m, g])\nt[m, g] += e[m, g, j]\ny[m, g, j] = e[m, g, j] / t[m, g]",
    ],
    ids=["grouped", "softmax"],
)
def test_automatic_schedules(text, target):
    tensors = {"w": ("u8", (5, 2, 37)), "z": ("f32", (5, 2)), "s": ("f32", (5, 2)), "x": ("f32", ("m", 2, 37))}
    spec = parse(text, **{name: t for name, t in tensors.items() if f"{name}[" in text})
    seen = check_order(Schedule.auto(spec, target=target), {"m": 3})
    assert seen["known"] > 0
    assert seen["open"] == 0


# ---- at random
def test_random_schedules():
    seen: Counter[str] = Counter()

    @seed(7)
    @settings(max_examples=150, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    @given(random_specs(), st.integers(0, 1 << 30))
    def run(drawn: RandomSpec, number: int) -> None:
        spec, r = drawn.spec(), Random(number)
        if not 0 < size(spec) <= 2 * MOST_INSTANCES or not any(op.reduce in ("+", "*") for op in spec.ops):
            return
        schedule = Schedule.naive(spec)
        for _ in range(6):
            name, arguments = directive(r, schedule.plan)
            try:
                schedule = getattr(schedule, name)(**arguments) if arguments else schedule
            except ScheduleError:
                continue
        seen.update(check_order(schedule))

    run()
    assert seen["known"] >= 20, seen

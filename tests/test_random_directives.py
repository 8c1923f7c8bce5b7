"""Random directives on random specs: each gets the verdict that brute force gives, and a refusal a true witness."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from nest_edits import random_spec
from nest_oracle import judge

from polyq.affine.errors import ScheduleError
from polyq.affine.spec import Spec
from polyq.schedule.legality import Violation, check_order
from polyq.schedule.loopnest import LoopNest
from polyq.schedule.schedule import Directive, Schedule
from polyq.schedule.stages import Plan


def random_directive(r: Random, plan: Plan) -> Directive:
    """Return a directive whose names exist; whether it makes sense is another matter."""
    kinds = ["split", "reorder", "reorder", "reorder", "fuse", "fuse", "fuse", "fuse", "fuse", "mark", "mark"]
    kind = r.choice([*kinds, "partial_sums", "accumulate", "inline"])
    sums = [op for op in plan.spec.ops if op.reduce]
    op = r.choice(sums if sums and kind in ("reorder", "fuse", "mark") and r.random() < 0.75 else plan.spec.ops)
    axes = plan.stage(op.name).order
    match kind:
        case "split":
            return Directive("split", (("op", op.name), ("axis", r.choice(axes)), ("factor", r.choice([2, 3]))))
        case "reorder":
            return Directive("reorder", (("op", op.name), ("axes", tuple(r.sample(axes, len(axes))))))
        case "fuse":
            into = r.choice(plan.spec.ops).name
            at = r.choice(plan.stage(into).order)
            return Directive("fuse", (("producer", op.name), ("into", into), ("at", at)))
        case "mark":
            loop = r.choice(["parallel", "vector", "unroll"])
            return Directive("mark", (("op", op.name), ("axis", r.choice(axes)), ("kind", loop)))
        case "partial_sums":
            return Directive("partial_sums", (("op", op.name), ("keep", (r.choice(op.dims),))))
        case other:
            return Directive(other, (("tensor", op.target),))


def walk(seed: int) -> Counter[tuple[str, bool]]:
    """Try directives one after another; keep the legal ones. Return how often each kind was legal and illegal."""
    r = Random(seed)
    schedule = Schedule.naive(random_spec(r), numerics=r.choice(["strict", "reassoc"]))
    strict = schedule.numerics == "strict"
    seen: Counter[tuple[str, bool]] = Counter()
    for _ in range(6):
        directive = random_directive(r, schedule.plan)
        try:
            made = schedule.then(directive)
            nest = made.nest
        except ScheduleError as refused:
            seen["malformed", refused.witness is None] += 1  # or no scratch of constant size: no witness there
            continue
        spec = made.plan.spec
        expected = judge(spec, nest, strict)
        found = check_order(spec, nest, made.numerics)
        story = f"seed {seed}: {[*map(str, made.directives)]}: {expected}\n{spec}\n{nest}\n{found}"
        assert (found is None) == (expected is None), story
        kind = directive.transform
        if kind in ("fuse", "reorder") and spec.op(str(directive.arguments[0][1])).reduce:
            seen["reduction", expected is None] += 1
        seen[kind, expected is None] += 1
        if found is None:
            schedule = made
        else:
            _check_witness(found, spec, nest, story)
    return seen


def _check_witness(found: Violation, spec: Spec, nest: LoopNest, story: str) -> None:
    """The instances of a witness are instances of the spec's ops (or, for kind "domain", are not)."""
    assert found.nest
    for instance in found.instances:
        op = spec.op(instance.op)
        at = dict(instance.dims)
        inside = all(c.expr.evaluate(at) >= 0 for c in op.domain)
        assert inside or found.kind == "domain", story
    if found.kind == "race":
        assert found.loop is not None
        a, b = (dict(i.loops) for i in found.instances)
        assert a[found.loop] != b[found.loop], story
        assert f"for {found.loop} in " in str(nest)


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 260), marks=pytest.mark.slow)], ids=["short", "long"])
def test_random_directives(seeds: range) -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in seeds:
        seen += walk(seed)
    assert seen.pop(("malformed", False), 0) == 0
    seen.pop(("malformed", True), 0)
    kinds = sorted({k for k, _ in seen})
    print("\n".join(f"{k:14} legal {seen[k, True]:4} illegal {seen[k, False]:4}" for k in kinds))
    legal, illegal = (sum(seen[k, v] for k in kinds if k != "reduction") for v in (True, False))
    assert legal >= 2 * len(seeds)
    assert illegal >= len(seeds)
    assert seen["reduction", True] + seen["reduction", False] >= (legal + illegal) // 3
    for kind in ("fuse", "reorder", "mark"):
        assert seen[kind, True] >= len(seeds) // 10
        assert seen[kind, False] >= len(seeds) // 60

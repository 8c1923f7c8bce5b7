"""The oracle of legality against brute force: random edits of random nests, and dependences of small specs."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest
from nest_edits import BAD, GOOD, random_spec
from nest_oracle import judge

from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Const, Load, apply
from polyq.affine.spec import Op, Spec, Tensor
from polyq.schedule.certificate import certify
from polyq.schedule.legality import check_order, dependences, is_carried
from polyq.schedule.loopnest import Assign, Loop, LoopNest
from polyq.schedule.naive import naive_nest
from polyq.schedule.readback import read_back

I, J, P = Affine.dim("i"), Affine.dim("j"), Affine.dim("p")  # noqa: E741


def random_case(seed: int, symbolic: bool = False) -> tuple[Spec, LoopNest, bool, list[str]]:
    """Return a spec, an edited nest, whether float sums keep their order, and the edits."""
    r = Random(seed)
    spec = random_spec(r, symbolic)
    nest = naive_nest(spec)
    names: list[str] = []
    for _ in range(r.randint(1, 6)):
        edit = r.choice(GOOD) if r.random() < 0.85 else r.choice(BAD)
        edited = edit(r, nest)
        if edited is not None:
            nest = edited
            names.append(edit.__name__)
    return spec, nest, r.random() < 0.3, names


def agree(seeds: range) -> Counter[tuple[str, bool]]:
    """Compare verdicts; return how often each edit stood in an accepted and in a refused nest."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in seeds:
        spec, nest, strict, edits = random_case(seed)
        expected = judge(spec, nest, strict)
        numerics = "strict" if strict else "reassoc"
        certificate = certify(spec, nest, numerics)
        assert certificate.ok == (expected is None), f"seed {seed}, {edits}: {expected}\n{spec}\n{certificate}"
        assert (check_order(spec, nest, numerics) is None) == (expected is None), f"seed {seed}"
        seen.update((name, expected is None) for name in {*edits, "all"})
    return seen


def test_verdicts_are_those_of_brute_force() -> None:
    seen = agree(range(120))
    assert seen["all", True] >= 30
    assert seen["all", False] >= 30
    for edit in (*GOOD, *BAD):
        assert seen[edit.__name__, False], f"{edit.__name__} was never refused"
    for edit in GOOD:
        assert seen[edit.__name__, True], f"{edit.__name__} was never accepted"


@pytest.mark.parametrize("start", [0, 20, 40, pytest.param(60, marks=pytest.mark.slow)])
def test_verdicts_hold_for_every_size(start: int) -> None:
    """A proven nest is right for each m, and a refused one is wrong at the m of its witness."""
    for seed in range(start, start + (20 if start < 60 else 200)):
        spec, nest, strict, edits = random_case(seed, symbolic=True)
        found = certify(spec, nest, "strict" if strict else "reassoc")
        expected = [judge(spec, nest, strict, {"m": m}) for m in range(6)]
        assert found.ok == (set(expected) == {None}), f"seed {seed}, {edits}: {expected}\n{spec}\n{found}"
        if found.violation is not None:
            at = dict(found.violation.params).get("m", 0)
            assert judge(spec, nest, strict, {"m": at}) is not None, f"seed {seed}: no true witness\n{found}"


@pytest.mark.slow
def test_verdicts_are_those_of_brute_force_at_length() -> None:
    agree(range(120, 720))


def square(name: str, body: object, index: tuple[Affine, Affine], n: int = 4, reduce: str | None = None) -> Op:
    dims = ("i", "j", "p") if reduce else ("i", "j")
    return Op(name, dims, (Affine(n),) * len(dims), name, index, body, reduce)  # type: ignore[arg-type]


def spec_of(*ops: Op, outputs: tuple[str, ...] = ("t",), n: int = 5) -> Spec:
    names = dict.fromkeys(["x", *(op.target for op in ops)])
    return Spec("k", tuple(Tensor(t, "f32", (n, n)) for t in names), ops, ("x",), outputs)


def brute_dependences(spec: Spec) -> set[tuple[str, str, str, tuple[int, ...], tuple[int, ...]]]:
    """All pairs of instances that touch one cell, one of them writing, by enumeration."""
    events: list[tuple[str, tuple[int, ...], str, str, tuple[int, ...]]] = []
    for op in spec.ops:
        for point in product(*(range(e.const) for e in op.extents)):
            at = dict(zip(op.dims, point, strict=True))
            if any(c.expr.evaluate(at) < 0 for c in op.where):
                continue
            cells = [("read", x.tensor, x.index) for x in op.reads]
            cells += [("read", op.target, op.index)] if op.reduce else []
            for kind, tensor, index in [*cells, ("write", op.target, op.index)]:
                events.append((op.name, point, kind, tensor, tuple(e.evaluate(at) for e in index)))
    found: set[tuple[str, str, str, tuple[int, ...], tuple[int, ...]]] = set()
    for a in range(len(events)):
        for b in range(a + 1, len(events)):
            x, y = events[a], events[b]
            if x[3:] == y[3:] and "write" in (x[2], y[2]) and x[:2] != y[:2]:
                kind = "flow" if (x[2], y[2]) == ("write", "read") else "anti" if x[2] == "read" else "output"
                found.add((kind, x[0], y[0], x[1], y[1]))
    return found


TRIANGLE = Op("t", ("i", "j"), (Affine(4), Affine(4)), "t", (I, J), Load("x", (J, I), "f32"), None, (Constraint(I - J),))
SCAN = square("t", apply("add", Load("t", (I, J), "f32"), Load("x", (I, J), "f32")), (I, J + 1))
FILL = Op("t.init", ("i", "j"), (Affine(5), Affine(5)), "t", (I, J), Const(0.0, "f32"))
SUM = square("t", apply("mul", Load("x", (I, P), "f32"), Load("x", (P, J), "f32")), (I, J), reduce="+")
DIAGONAL = square("t", Load("x", (I, J), "f32"), (I - J + 3, Affine(0)), n=2)


@pytest.mark.parametrize("ops", [(FILL, SCAN), (FILL, SUM), (FILL, TRIANGLE), (FILL, DIAGONAL), (FILL, SCAN, SUM)])
def test_dependences_are_all_pairs(ops: tuple[Op, ...]) -> None:
    named = [Op(f"s{i}", o.dims, o.extents, o.target, o.index, o.body, o.reduce, o.where) for i, o in enumerate(ops)]
    spec = spec_of(*named)
    expected = brute_dependences(spec)
    deps = dependences(spec)
    assert {(d.kind, d.source, d.target) for d in deps} == {e[:3] for e in expected}
    for d in deps:
        pairs = [e[3:] for e in expected if e[:3] == (d.kind, d.source, d.target)]
        assert d.relation.to_domain().count() == len(pairs)
        for first, second in pairs:
            point = (*first, *second)
            names = (*d.relation.in_dims, *d.relation.out_dims)
            at = [Constraint(Affine.dim(n) - v, True) for n, v in zip(names, point, strict=True)]
            assert not d.relation.to_domain().constrain(at).is_empty()


def test_which_dims_carry_a_dependence() -> None:
    scan = spec_of(FILL, SCAN)
    assert [is_carried(scan, "t", d) for d in "ij"] == [False, True]
    total = spec_of(FILL, SUM)
    assert [is_carried(total, "t", d) for d in "ijp"] == [False, False, True]


def test_a_race_names_the_loop_and_two_instances() -> None:
    spec = spec_of(FILL, SUM)
    nest = naive_nest(spec)
    loops = nest.body[1]
    assert isinstance(loops, Loop)
    middle = loops.body[0]
    assert isinstance(middle, Loop)
    inner = middle.body[0]
    assert isinstance(inner, Loop)
    racing = Loop(inner.var, inner.lower, inner.upper, "parallel", inner.body)
    nest = LoopNest(
        nest.name, nest.params, nest.buffers,
        (nest.body[0], Loop(loops.var, loops.lower, loops.upper, "serial", (
            Loop(middle.var, middle.lower, middle.upper, "serial", (racing,)),))),
    )  # fmt: skip
    found = check_order(spec, nest)
    assert found is not None
    assert (found.kind, found.loop, found.statements) == ("race", "p", ("t", "t"))
    a, b = (dict(i.dims) for i in found.instances)
    assert (a["i"], a["j"]) == (b["i"], b["j"])
    assert a["p"] != b["p"]
    assert "\n      for p in [0, 4) parallel:    <-- here\n" in str(found)


def test_iterations_that_write_the_same_value_race_too() -> None:
    spec = Spec("k", (Tensor("x", "f32", (4,)), Tensor("t", "f32", (4,))),
                (Op("t", ("i",), (Affine(4),), "t", (I,), Load("x", (I,), "f32")),), ("x",), ("t",))  # fmt: skip
    nest = naive_nest(spec)
    for kind, verdict in (("serial", None), ("vector", "race"), ("parallel", "race")):
        again = LoopNest("k", (), nest.buffers, (Loop("a", (Affine(0),), (Affine(2),), kind, nest.body),))
        found = check_order(spec, again)
        assert (found.kind if found else None) == verdict


def test_a_nest_must_be_well_formed() -> None:
    spec = spec_of(FILL)
    nest = naive_nest(spec)
    with pytest.raises(ValueError, match="the loop variable 'i' occurs twice"):
        read_back(LoopNest("k", (), nest.buffers, nest.body * 2))
    lost = Assign("t.init", (), "nowhere", (), Const(0.0, "f32"))
    with pytest.raises(ValueError, match=r"t\.init: no buffer 'nowhere' is visible here; there are \['t', 'x'\]"):
        read_back(LoopNest("k", (), nest.buffers, (lost,)))
    stray = Assign("t.init", (I, J), "t", (I, Affine.param("q")), Const(0.0, "f32"))
    with pytest.raises(ValueError, match=r"t\.init: \['i', 'j', 'q'\] are neither loops around it \(\[\]\) nor parameters"):
        read_back(LoopNest("k", (), nest.buffers, (stray,)))

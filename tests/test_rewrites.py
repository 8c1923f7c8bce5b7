"""Rewrites keep the meaning in exact arithmetic, and their proofs tell when one does not.

The oracle runs both specs on polynomials (:mod:`polynomials`); mutants of rewritten specs drop a term, turn a sign, shift a
subscript, lose a tail.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from polynomials import Outside, TooBig, outputs
from random_specs import RandomSpec, random_specs

import polyq
from polyq.affine.copies import copy_of
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.fills import shift, trim_fill
from polyq.affine.proofs import prove
from polyq.affine.rewrite import accumulate, inline, partial_sums, split, widen_sums
from polyq.affine.scalar import Apply, Const, Index, Load, Scalar, apply, map_scalar
from polyq.affine.spec import Op, Spec
from polyq.affine.sums import distribute, factor

D = Affine.dim

QUANTIZED = """
    d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
    y[m, n] += x[m, g, j] * d[n, g, j]
"""


def quantized(n: int, g: int, j: int) -> Spec:
    shapes = {"w": ("u8", (n, g, j)), "z": ("f32", (n, g)), "s": ("f32", (n, g)), "x": ("f32", ("m", g, j))}
    return polyq.parse(QUANTIZED, **shapes)


def packed(spec: Spec, lanes: int, extent: int) -> Spec:
    """Let y read x in rows of ``lanes`` columns."""
    e = [D(f"e{i}") for i in range(3)]
    shape = (Affine.param("m"), spec.tensor("x").extents[1], Affine(extent // lanes), Affine(lanes))
    source = (D("a"), D("b"), D("c") * lanes + D("v"))
    return copy_of(spec, "x", ["y"], shape, ("a", "b", "c", "v"), source, (e[0], e[1], e[2] // lanes, e[2] % lanes))


def same(before: Spec, after: Spec, **params: int) -> bool:
    """Whether all outputs are the same polynomials."""
    return outputs(before, params) == outputs(after, params)


# ---- every rewrite, by hand
SMALL = quantized(3, 2, 5)
SCAN = polyq.parse("t[i, j] = x[i, j]\nt[i, j] = t[i, j - 1] * 2.0 + x[i, j] where j >= 1, i < 3, j < 6\ny[i] += t[i, j]", x=("f32", (3, 6)))
STENCIL = polyq.parse("y[i, j] = x[i - 1, j] - x[i, j - 2] where 1 <= i, i < 4, 2 <= j, j < 6", x=("f32", (4, 6)))
UNKNOWN = polyq.parse("y[i, j] = x[i - 1, j] - x[i, j + 1] where 1 <= i, i < m - 1, 2 <= j, j < m - 2", x=("f32", ("m", "m")))
CHAINED = polyq.parse("t[i] = x[i - 1] + x[i] where 1 <= i, i < 7\ny[i] = t[i + 1] - t[i + 2] where i < 4", x=("f32", (7,)))
REWRITES: dict[str, tuple[Spec, Callable[[Spec], Spec]]] = {
    "split with a tail": (SMALL, lambda s: split(s, "y", "j", 2)),
    "split of a parallel dim": (SMALL, lambda s: split(s, "d", "n", 2)),
    "split of a scan": (SCAN, lambda s: split(s, s.ops[1].name, "j", 4)),
    "inline": (SMALL, lambda s: inline(s, "d")),
    "partial sums": (SMALL, lambda s: partial_sums(s, "y", ["j"])),
    "partial sums of a split": (SMALL, lambda s: partial_sums(split(s, "y", "j", 4), "y", ["ji"])),
    "accumulate": (SMALL, lambda s: accumulate(s, "y")),
    "accumulate a scan": (SCAN, lambda s: accumulate(s, "t")),
    "copy": (quantized(2, 2, 6), lambda s: packed(s, 3, 6)),
    "distribute": (SMALL, lambda s: distribute(inline(s, "d"), "y")),
    "factor": (SMALL, lambda s: factor(inline(s, "d"), "y", ["j"])),
    "factor, then distribute": (SMALL, lambda s: distribute(factor(inline(s, "d"), "y", ["j"]), "y")),
    "shift": (STENCIL, lambda s: shift(s, "y")),
    "shift of a triangle": (polyq.parse("y[i, j] += a[i, k] * a[j, k] where 2 <= i, k <= i, 1 <= k, j <= i", a=("f32", (6, 6))), lambda s: shift(s, "y")),
    "shift of a scan": (SCAN, lambda s: shift(s, s.ops[1].name)),
    "shift, then inline": (CHAINED, lambda s: inline(shift(s, "t"), "t")),
    "trim a fill": (STENCIL, lambda s: trim_fill(shift(s, "y"), "y.init")),
    "trim a fill of unknown size": (UNKNOWN, lambda s: trim_fill(shift(s, "y"), "y.init")),
    "widen": (polyq.parse("y[i] += a[i, k] * b[k]", a=("f16", (3, 4)), b=("f16", (4,))), widen_sums),
    "maximum": (polyq.parse("y[i] max= a[i, k] - b[k]", a=("f32", (3, 7)), b=("f32", (7,))),
                lambda s: partial_sums(split(s, "y", "k", 3), "y", ["ki"])),
    "product of integers": (polyq.parse("y[i] *= a[i, k]", a=("i32", (3, 4))), lambda s: partial_sums(s, "y", ["k"])),
    "minimum of bytes": (polyq.parse("y min= a[i]", a=("u8", (9,))), lambda s: partial_sums(split(s, "y", "i", 4), "y", ["ii"])),
    "triangle": (polyq.parse("y[i] += a[i, k] where k <= i", a=("f32", (6, 6))),
                 lambda s: partial_sums(split(s, "y", "k", 4), "y", ["ki"])),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_each_rewrite_is_proven(name: str) -> None:
    before, rewrite = REWRITES[name]
    after = rewrite(before)
    assert after != before
    for m in (0, 1, 2, 3, 7) if before is UNKNOWN else (1, 2):
        assert same(before, after, m=m)
    proof = prove(before, after)
    assert proof.ok, proof
    assert proof.cells > 0
    assert str(proof).startswith("equal in exact arithmetic: ")


def test_a_copy_of_a_diagonal_is_whole() -> None:
    before = polyq.parse("y[i, i] += a[i, j]", a=("f32", (3, 4)))
    after = accumulate(before, "y")
    assert str(after.ops[-1]) == "y[d0, d1] = y.acc[d0, d1]"
    assert same(before, after)
    assert prove(before, after).ok


def test_a_reader_between_two_writers_sees_the_private_copy() -> None:
    before = polyq.parse("y[i] += a[i, j]\nz[i] = y[i]\ny[i] += a[i, 2]", outputs=("y", "z"), a=("f32", (3, 4)))
    after = accumulate(before, "y")
    assert same(before, after)
    assert prove(before, after).ok
    late = replace(after.op("z"), body=replace(after.op("z").body, tensor="y"))
    mutant = after.with_ops(tuple(late if op.name == "z" else op for op in after.ops))
    assert str(prove(before, mutant)).startswith("REFUTED: z[")


def test_proofs_follow_long_chains_of_statements():
    lines = [f"t{k}[i] = t{k - 1}[i] * 0.5 + x[{k % 3}]" for k in range(1, 200)]
    before = polyq.parse("\n".join(["t0[i] = x[i] + 1.0", *lines]), x=("f32", (4,)))
    after = inline(before, "t0")
    assert prove(before, after).ok
    off = map_scalar(after.ops[0].body, lambda n: replace(n, value=2.0) if isinstance(n, Const) and n.value == 1.0 else n)
    mutant = after.with_ops((replace(after.ops[0], body=off), *after.ops[1:]))
    assert str(prove(before, mutant)).startswith("REFUTED: t199[")


def test_what_nothing_writes_has_no_private_copy() -> None:
    with pytest.raises(ScheduleError, match=r"accumulate\('a'\): no op writes a; name a result or a temporary"):
        accumulate(polyq.parse("y[i] = a[i]", a=("f32", (3,))), "a")


CONDITIONS = ["a[i] <= b[i]", "a[i] == b[i]", "not (a[i] < b[i])", "a[i] < b[i] or a[i] < c[i]", "b[i] < a[i]", "a[i] < c[i]"]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_another_condition_is_refuted(condition: str) -> None:
    declared = {name: ("f32", (4,)) for name in "abc"}
    before = polyq.parse("y[i] = select(a[i] < b[i], b[i], c[i])", **declared)
    after = polyq.parse(f"y[i] = select({condition}, b[i], c[i])", **declared)
    turned = polyq.parse("y[i] = select(b[i] > a[i], b[i], c[i])", **declared)
    assert str(prove(before, after)).startswith("REFUTED: y[")
    assert prove(before, turned).ok


@pytest.mark.parametrize("reduce", ["min", "max"])
def test_a_term_more_or_less_in_an_extreme_is_refuted(reduce: str) -> None:
    """However many terms there are: each counts, not only the largest."""
    before = polyq.parse(f"y[i] {reduce}= a[i, k]", a=("f32", (3, 4096)))
    tail = split(before, "y", "k", 8)
    lost = _changed(tail, "y", where=(Constraint(4094 - 8 * D("ko") - D("ki")),))
    assert prove(before, partial_sums(tail, "y", ["ki"])).ok
    assert str(prove(before, lost)).startswith("REFUTED: y[")


# ---- mutants
def _changed(spec: Spec, name: str, **fields: object) -> Spec:
    return spec.with_ops(tuple(replace(op, **fields) if op.name == name else op for op in spec.ops))


def _flagship() -> Spec:
    return factor(inline(quantized(4096, 32, 128), "d"), "y", ["j"])


def wrong_sign() -> Spec:
    after = _flagship()
    body = after.op("y").body
    assert isinstance(body, Apply)
    scale, terms = body.args  # s * (the inner sum - z * the sum of x)
    assert isinstance(terms, Apply)
    assert terms.fn == "sub"
    return _changed(after, "y", body=replace(body, args=(scale, replace(terms, fn="add"))))


def dropped_term() -> Spec:
    after = _flagship()
    body = after.op("y").body
    assert isinstance(body, Apply)
    scale, terms = body.args
    assert isinstance(terms, Apply)
    return _changed(after, "y", body=replace(body, args=(scale, terms.args[0])))


def dropped_update() -> Spec:
    after = distribute(inline(quantized(4096, 32, 128), "d"), "y")
    return after.with_ops(tuple(op for op in after.ops if op.name != "y.2"))


def update_twice() -> Spec:
    after = partial_sums(quantized(4096, 32, 128), "y", ["j"])
    return after.with_ops((*after.ops, after.ops[-1]))


def wrong_layout() -> Spec:
    after = packed(quantized(4096, 32, 128), 8, 128)

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load) and node.tensor == "x.packed":
            a, b, c, v = node.index
            return replace(node, index=(a, b, c, 7 - v))
        return node

    return _changed(after, "y", body=map_scalar(after.op("y").body, leaf))


def lost_tail() -> Spec:
    after = split(quantized(4096, 32, 128), "y", "j", 48)
    op = after.op("y")
    return _changed(after, "y", extents=(*op.extents[:3], Affine(2), *op.extents[4:]))


def lost_tail_of_results() -> Spec:
    after = split(quantized(4099, 32, 128), "y", "n", 8)
    op = after.op("y")
    return _changed(after, "y", extents=(op.extents[0], op.extents[1] - 1, *op.extents[2:]))


def tail_too_long() -> Spec:
    return _changed(split(quantized(4096, 32, 128), "y", "j", 48), "y", where=())


def another_start() -> Spec:
    after = partial_sums(quantized(4096, 32, 128), "y", ["j"])
    return _changed(after, "y.part.init", body=Const(1.0, "f32"))


MUTANTS = [wrong_sign, dropped_term, dropped_update, update_twice, wrong_layout, lost_tail, lost_tail_of_results, tail_too_long, another_start]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda f: f.__name__)
def test_mutants_of_rewrites_are_refuted(mutant: Callable[[], Spec]) -> None:
    after = mutant()
    n = after.tensor("w").extents[0].const
    proof = prove(quantized(n, 32, 128), after)
    assert not proof.ok
    assert proof.difference is not None
    assert str(proof).startswith("REFUTED: ")
    expected = "subscript 2 of x, ji + 48*jo, is 128, outside 0 to 127" if mutant is tail_too_long else "y["
    assert proof.difference.startswith(expected)


def test_the_rewrites_without_the_mutation_are_proven() -> None:
    before = quantized(4096, 32, 128)
    assert prove(before, _flagship()).ok
    assert prove(before, split(before, "y", "j", 48)).ok
    assert prove(before, packed(before, 8, 128)).ok
    assert prove(before, partial_sums(before, "y", ["j"])).ok


# ---- at random
def random_rewrite(r: Random, spec: Spec) -> tuple[str, Spec]:
    """Return the name of a rewrite and its result; :class:`ScheduleError` where it does not apply."""
    op = r.choice(spec.ops)
    names = ["split", "inline", "accumulate", "accumulate"]
    names += ["partial_sums", "distribute", "factor"] * 2 if op.reduce and op.reduced else []
    match r.choice(names):
        case "split" if op.dims:
            return "split", split(spec, op.name, r.choice(op.dims), r.choice([2, 3, 4]))
        case "inline":
            return "inline", inline(spec, r.choice(spec.all_tensors).name)
        case "partial_sums":
            return "partial_sums", partial_sums(spec, op.name, r.sample(op.reduced, r.randint(1, len(op.reduced))))
        case "distribute":
            return "distribute", distribute(spec, op.name)
        case "factor":
            return "factor", factor(spec, op.name, r.sample(op.reduced, r.randint(1, len(op.reduced))))
        case _:
            return "accumulate", accumulate(spec, op.target)


def mutate(r: Random, spec: Spec) -> tuple[str, Spec]:
    """Return a spec with one small change somewhere; now and then it changes nothing that can be seen."""
    op = r.choice(spec.ops)
    kind = r.choice(["sign", "load", "load", "tail", "where", "drop", "twice", "start"])
    match kind:
        case "tail" if op.dims:
            at = r.randrange(len(op.dims))
            extents = tuple(e - 1 if i == at else e for i, e in enumerate(op.extents))
            return kind, _changed(spec, op.name, extents=extents)
        case "where" if op.where:
            return kind, _changed(spec, op.name, where=op.where[1:])
        case "drop":
            return kind, spec.with_ops(tuple(o for o in spec.ops if o is not op))
        case "twice":
            return kind, spec.with_ops(tuple(p for o in spec.ops for p in ((o, replace(o, name=f"{o.name}.again")) if o is op else (o,))))
        case "load" if op.reads:
            return kind, _changed(spec, op.name, body=_shifted(r, op))
        case "start" if isinstance(op.body, Const) and op.body.dtype in ("f32", "i32"):
            return kind, _changed(spec, op.name, body=replace(op.body, value=type(op.body.value)(3)))
        case _:
            one = Const(-1.0 if op.body.dtype == "f32" else -1, op.body.dtype)
            return "sign", _changed(spec, op.name, body=apply("mul", op.body, one))


def _shifted(r: Random, op: Op) -> Scalar:
    chosen = r.randrange(len(op.reads))
    count = iter(range(len(op.reads)))

    def leaf(node: Const | Index | Load) -> Scalar:
        if not isinstance(node, Load) or next(count) != chosen or not node.index:
            return node
        at = r.randrange(len(node.index))
        changed = tuple(e * -1 + 1 if i == at else e for i, e in enumerate(node.index))
        return replace(node, index=changed)

    return map_scalar(op.body, leaf)


@pytest.mark.parametrize("chunk", range(3))
def test_proofs_agree_with_polynomials(chunk: int) -> None:
    """Random rewrites of random specs, and mutants of them: the same verdict, cell by cell."""
    seen: Counter[tuple[str, bool]] = Counter()

    @seed(chunk)
    @settings(
        max_examples=50, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(random_specs(statements=2), st.integers(0, 1 << 30))
    def run(drawn: RandomSpec, number: int) -> None:
        r = Random(number)
        before = after = drawn.spec()
        if sum(math.prod(e.evaluate({}, {}) for e in op.extents) for op in before.ops) > 100:
            return
        for _ in range(6):
            try:
                name, after = random_rewrite(r, after)
            except ScheduleError:
                continue
            mutated = r.random() < 0.5
            kind, candidate = mutate(r, after) if mutated else (name, after)
            try:
                expected = same(before, candidate)
            except (TooBig, Outside):  # subscripts out of a tensor are for the bounds check
                continue
            assert expected or mutated, f"{name}\n{before}\n{candidate}"
            proof = prove(before, candidate)
            assert proof.ok == expected, f"{name}, {kind}: {proof}\n{before}\n{candidate}"
            seen[f"{'mutant' if mutated else 'rewrite'} {kind}", expected] += 1

    run()
    print()
    for kind in sorted({k for k, _ in seen}):
        print(f"{kind:22} equal {seen[kind, True]:4} different {seen[kind, False]:4}")
    assert sum(n for (k, equal), n in seen.items() if equal and k.startswith("rewrite")) >= 30
    assert sum(n for (_, equal), n in seen.items() if not equal) >= 30


# ---- the proof itself
def test_a_proof_is_a_value_and_says_what_it_rests_on() -> None:
    before = polyq.parse("y[i] += a[i, k]", a=("f32", (5, 7)))
    unchanged = prove(before, before)
    assert (unchanged.ok, unchanged.cells, unchanged.identical) == (True, 0, ("y",))
    assert str(unchanged) == "the same statements"
    proof = prove(before, partial_sums(before, "y", ["k"]))
    assert proof.ok
    assert proof.instances >= proof.cells > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        proof.cells = 1  # type: ignore[misc]


def test_another_interface_is_refuted() -> None:
    before = polyq.parse("y[i] += a[i, k]", a=("f32", (5, 7)))
    after = polyq.parse("y[i] += a[i, k]", a=("f32", (5, 8)))
    assert str(prove(before, after)) == "REFUTED: the inputs were a: f32[5, 7] and are a: f32[5, 8]"


def test_what_is_too_large_is_not_proven() -> None:
    before = polyq.parse("y += a[i]\nt[j] = b[j] * 2.0", a=("f32", (1 << 24,)), b=("f32", (4,)))
    proof = prove(before, split(before, "y", "i", 8))
    assert not proof.ok
    assert proof.difference is None
    assert [name for name, _ in proof.skipped] == ["y"]
    assert str(proof).startswith("not proven: y: a cell depends on too many instances (")


def test_shift_and_trim_leave_what_begins_at_0_and_what_is_read() -> None:
    plain = polyq.parse("y[i] = x[i + 1] where i < 5", x=("f32", (6,)))
    assert shift(plain, "y") == plain
    shifted = shift(STENCIL, "y").op("y")
    assert (shifted.where, [str(e) for e in (*shifted.extents, *shifted.index)]) == ((), ["3", "4", "i + 1", "j + 2"])
    trimmed = trim_fill(shift(STENCIL, "y"), "y.init")
    assert [str(op) for op in trimmed.ops[:-1]] == ["y[i, j] = 0.0", "y[i + 1, j] = 0.0"]
    assert [tuple(map(str, op.extents)) for op in trimmed.ops[:-1]] == [("1", "6"), ("3", "2")]
    read = polyq.parse("y[i] = 1.0 where i < 5\ny[i] = x[i] + y[i + 1] where i < 4", x=("f32", (6,)))
    with pytest.raises(ScheduleError, match=r"trim_fill\('y'\): y.2 reads y first"):
        trim_fill(shift(read, "y.2"), "y")
    with pytest.raises(ScheduleError, match=r"trim_fill\('y'\): y does not fill a box"):
        trim_fill(STENCIL, "y")
    with pytest.raises(ScheduleError, match=r"trim_fill\('y.init'\): y does not assign a box"):
        trim_fill(STENCIL, "y.init")

"""The certificate: hand-built nests that are right are proven, and every mutant of them is refused for its reason."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest
from nest_edits import rewrite
from nest_oracle import judge

from polyq.affine.expr import Affine, Constraint
from polyq.affine.notation import parse, parse_map
from polyq.affine.scalar import Const, Load, Scalar, loads, map_scalar, substitute_dims
from polyq.affine.spec import Spec
from polyq.schedule import certificate
from polyq.schedule.certificate import Certificate, certify
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Node, Scope
from polyq.schedule.naive import naive_nest, tensor_buffers

PARAMS = ("m", "N")


def affs(text: str) -> tuple[Affine, ...]:
    """Read subscripts; every name but m and N is a loop variable."""
    dims = sorted(set(re.findall(r"[A-Za-z_]\w*", text)) - {*PARAMS})
    return parse_map(f"({', '.join(dims)}) -> ({text})").results if text else ()


def loop(var: str, upper: str, *body: Node, kind: str = "serial", lower: str = "0") -> Loop:
    return Loop(var, affs(lower), affs(upper), kind, body)


def scratch(name: str, *shape: int, dtype: str = "f32") -> Buffer:
    return Buffer(name, dtype, tuple(map(Affine, shape)), "scratch")


def stage(spec: Spec, op: str, instance: str, target: str, *operands: str) -> Assign:
    """Return an assignment of ``op`` at ``instance``, with its cells written as ``name[subscripts]``."""
    original = spec.op(op)
    at = affs(instance)
    places = iter([_place(o) for o in operands])

    def leaf(s: Scalar) -> Scalar:
        if not isinstance(s, Load):
            return s
        name, index = next(places)
        return Load(name, index, s.dtype)

    body = map_scalar(substitute_dims(original.body, dict(zip(original.dims, at, strict=True))), leaf)
    name, index = _place(target)
    return Assign(op, at, name, index, body, original.reduce)


def _place(text: str) -> tuple[str, tuple[Affine, ...]]:
    name, _, rest = text.partition("[")
    return name, affs(rest.removesuffix("]"))


def nest_of(spec: Spec, *body: Node, drop: tuple[str, ...] = ()) -> LoopNest:
    buffers = tuple(b for b in tensor_buffers(spec) if b.name not in drop)
    return LoopNest(spec.name, spec.params, buffers, body)


def refused(spec: Spec, nest: LoopNest, kind: str, text: str, numerics: str = "reassoc") -> Certificate:
    found = certify(spec, nest, numerics)
    assert not found.ok
    assert found.violation is not None
    assert found.violation.kind == kind, str(found)
    assert text in str(found.violation)
    assert not found.verify()
    return found


# ---- grouped dequantization and matmul, fused, with a panel in scratch
GROUPED = parse(
    """
    d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
    y[i, n] += x[i, g, j] * d[n, g, j]
    """,
    w=("u8", (8, 2, 4)), z=("f32", (8, 2)), s=("f32", (8, 2)), x=("f32", ("m", 2, 4)),
)  # fmt: skip


def grouped(
    *,
    guard: bool = True,
    swap: bool = False,
    scratch_size: tuple[int, int] = (4, 4),
    panel: str = "D[{j}, {n}]",
    kind: str = "parallel",
    inner_kind: str = "vector",
    producer: str = "before",
    init: str = "outside",
    twice: bool = False,
    tiles: str = "2",
    scope: str = "group",
) -> LoopNest:
    """Return the fused nest; each argument makes one mutant."""
    spec = GROUPED
    cell = panel.format(j="j1", n="n1")
    d = stage(spec, "d", "4*t + n1, g, j1", cell, "w[4*t + n1, g, j1]", "z[4*t + n1, g]", "s[4*t + n1, g]")
    produce = loop("n1", "4", loop("j1", "4", d, kind="vector" if scratch_size == (4, 4) else "serial"))
    x, read = "x[3*io + i1, g, j]", panel.format(j="j", n="n2")
    y = stage(spec, "y", "3*io + i1, 4*t + n2, g, j", "y[3*io + i1, 4*t + n2]", *((read, x) if swap else (x, read)))
    update: Block = (loop("n2", "4", y, *((y,) if twice else ()), kind=inner_kind),)
    if guard:
        update = (Guard((Constraint(affs("m - 1 - 3*io - i1")[0]),), update),)
    consume = loop("io", "(m + 2)//3", loop("j", "4", loop("i1", "3", *update, kind="unroll")))
    fill = loop("i0", "m", loop("n0", "4", stage(spec, "y.init", "i0, 4*t + n0", "y[i0, 4*t + n0]")))
    buffer = scratch("D", *scratch_size)
    inner: Block = (produce, consume) if producer == "before" else (consume, produce)
    if producer == "hoisted":
        group: Block = (Scope((buffer,), (loop("g0", "2", *_at(produce, "g0")), loop("g", "2", consume))),)
    elif scope == "group":
        group = (loop("g", "2", *((fill,) if init == "inside" else ()), Scope((buffer,), inner)),)
    else:
        group = (loop("g", "2", *inner),)
    tile = loop("t", tiles, *((fill,) if init == "outside" else ()), *group, kind=kind)
    body: Block = (tile,) if scope == "group" else (Scope((buffer,), (tile,)),)
    return nest_of(spec, *body, drop=("d",))


def _at(node: Loop, var: str) -> Block:
    """Put the loop variable ``var`` in the place of ``g``."""
    from nest_edits import substitute

    return substitute((node,), {"g": Affine.dim(var)})


@pytest.mark.parametrize("numerics", ["reassoc", "strict"])
def test_the_fused_nest_is_proven(numerics: str) -> None:
    proven = certify(GROUPED, grouped(), numerics)
    assert proven.ok, str(proven)
    assert judge(GROUPED, grouped(), numerics == "strict", {"m": 4}) is None
    assert proven.verify()
    assert pickle.loads(pickle.dumps(proven)) == proven
    assert str(proven).startswith("proven in ")
    assert str(proven).endswith(f"buffers, bodies, bounds, concurrency, dataflow ({numerics})")


def test_the_naive_nest_is_proven() -> None:
    assert certify(GROUPED, naive_nest(GROUPED), "strict").ok


MUTANTS = {
    "dropped guard": (dict(guard=False), "bounds", "touches x outside its extent m in dim 0"),
    "swapped operand": (dict(swap=True), "flow", "y operand 0 gets another value than in the spec"),
    "skipped tail": (dict(tiles="1"), "flow", "nothing writes y["),
    "duplicated update": (dict(twice=True), "reduction", "one update is done twice"),
    "scratch too small": (dict(scratch_size=(4, 3)), "bounds", "touches D outside its extent 3 in dim 1"),
    "scratch folded": (dict(scratch_size=(4, 2), panel="D[{j}, {n} % 2]"), "flow", "gets another value"),
    "scratch shared by threads": (dict(scope="root"), "race", "parallel loop t touch one cell of D"),
    "producer late": (dict(producer="after"), "uninitialised", "y reads a cell of D that nothing has written"),
    "producer hoisted too far": (dict(producer="hoisted"), "flow", "y operand 1 gets another value"),
    "init inside the sum": (dict(init="inside"), "reduction", "the sum of one cell falls apart"),
    "init left out": (dict(init="never"), "uninitialised", "y reads a cell of y that nothing has written"),
    "racing loop": (dict(inner_kind="parallel", panel="D[{j}, {n} % 1]", scratch_size=(4, 1)), "flow", "another value"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_refused(name: str) -> None:
    change, kind, text = MUTANTS[name]
    mutant = grouped(**change)  # type: ignore[arg-type]
    assert judge(GROUPED, mutant, params={"m": 4}) is not None
    found = refused(GROUPED, mutant, kind, text)
    if kind in ("reduction", "race"):
        assert found.violation is not None
        assert {i.op for i in found.violation.instances} <= {"d", "y", "y.init"}
        assert "<-- here" in found.violation.nest


def test_a_parallel_reduction_loop_races() -> None:
    racing = replace(grouped(), body=rewrite(
        grouped().body, lambda n: (replace(n, kind="parallel"),) if isinstance(n, Loop) and n.var == "j" else None,
    ))  # fmt: skip
    found = refused(GROUPED, racing, "race", "parallel loop j touch one cell of y")
    assert found.violation is not None
    assert found.violation.loop == "j"
    a, b = (dict(i.dims) for i in found.violation.instances)
    assert (a["i"], a["n"], a["g"]) == (b["i"], b["n"], b["g"])
    assert a["j"] != b["j"]


def test_bodies_are_compared() -> None:
    def change(n: Node) -> Block | None:
        if isinstance(n, Assign) and n.op == "y.init":
            return (replace(n, value=Const(1.0, "f32")),)
        return None

    nest = grouped()
    refused(GROUPED, replace(nest, body=rewrite(nest.body, change)), "body", "the spec computes 0.0, the nest 1.0")
    late = rewrite(nest.body, lambda n: (replace(n, reduce="max"),) if isinstance(n, Assign) and n.reduce else None)
    refused(GROUPED, replace(nest, body=late), "body", "y: the spec combines by +, the nest by max")


def test_buffers_are_compared() -> None:
    nest = grouped()
    without = replace(nest, buffers=nest.buffers[1:])
    refused(GROUPED, without, "buffer", "no buffer 'w' is visible here")
    other = replace(nest, buffers=tuple(replace(b, dtype="f64") if b.name == "y" else b for b in nest.buffers))
    refused(GROUPED, other, "buffer", "y: expected Buffer(name='y', dtype='f32'")
    grown = rewrite(nest.body, lambda n: (
        replace(n, buffers=(Buffer("D", "f32", affs("m, 4"), "scratch"),)),) if isinstance(n, Scope) else None)  # fmt: skip
    refused(GROUPED, replace(nest, body=grown), "buffer", "scratch D[m, 4] has no constant size")


def test_an_overrun_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "OPERATIONS", 10)
    refused(GROUPED, grouped(), "limit", "not proven: the search took more than 10 isl operations")


# ---- the order of sums
TOTAL = parse("y[i] += x[i, k]", x=("f32", (4, 6)))


def backwards(spec: Spec) -> LoopNest:
    return nest_of(
        spec,
        loop("a", "4", stage(spec, "y.init", "a", "y[a]")),
        loop("i", "4", loop("k", "6", stage(spec, "y", "i, 5 - k", "y[i]", "x[i, 5 - k]"))),
    )


def test_strict_keeps_the_order_of_float_sums() -> None:
    assert certify(TOTAL, backwards(TOTAL), "reassoc").ok
    refused(TOTAL, backwards(TOTAL), "flow", "y operand self gets another value than in the spec", "strict")
    for text, dtype in (("y[i] max= x[i, k]", "f32"), ("y[i] += x[i, k]", "i32")):
        exact = parse(text, x=(dtype, (4, 6)))
        assert certify(exact, backwards(exact), "strict").ok


def test_partial_results_that_are_read_fix_the_order() -> None:
    running = parse("y += x[k]\nz[k] = x[k] - y", x=("f32", (6,)))
    assert certify(running, naive_nest(running)).ok
    early = nest_of(
        running,
        stage(running, "y.init", "", "y"),
        loop("k", "6", stage(running, "y", "k", "y", "x[k]"), stage(running, "z", "k", "z[k]", "x[k]", "y")),
    )
    refused(running, early, "reduction", "z operand 1 gets a total before its last update")


def test_an_empty_sum_leaves_the_initial_value() -> None:
    spec = parse("y[i] += x[i, k] where k < i - 1", x=("f32", (4, 4)), )
    init, total = stage(spec, "y.init", "a", "y[a]"), stage(spec, "y", "i, k", "y[i]", "x[i, k]")
    assert certify(spec, nest_of(spec, loop("a", "4", init), loop("i", "4", loop("k", "i - 1", total)))).ok
    refused(
        spec, nest_of(spec, loop("a", "4", init, lower="2"), loop("i", "4", loop("k", "i - 1", total))),
        "flow", "nothing writes y[",
    )  # fmt: skip


# ---- partial sums as ops of their own
PARTIAL = parse(
    """
    p[i, l] += x[i, k, l]
    y[i] += p[i, l]
    """,
    x=("f32", ("m", 6, 4)),
)


def partial(*, merged: str = "4", place: str = "after", outer: str = "parallel", private: bool = True) -> LoopNest:
    spec = PARTIAL
    index = "[l{}]" if private else "[0]"
    start = loop("l0", "4", stage(spec, "p.init", "i, l0", "P" + index.format(0)), kind="vector" if private else "serial")
    lanes = loop("l1", "4", stage(spec, "p", "i, l1, k", "P" + index.format(1), "x[i, k, l1]"),
                 kind="vector" if private else "serial")  # fmt: skip
    merge = loop("l2", merged, stage(spec, "y", "i, l2", "y[i]", "P" + index.format(2)))
    inner = (loop("k", "6", lanes), merge) if place == "after" else (loop("k", "6", lanes, merge),)
    return nest_of(
        spec,
        loop("i", "m", stage(spec, "y.init", "i", "y[i]"), Scope((scratch("P", 4),), (start, *inner)), kind=outer),
        drop=("p",),
    )


def test_partial_sums() -> None:
    assert certify(PARTIAL, partial()).ok
    assert judge(PARTIAL, partial(), params={"m": 2}) is None
    refused(PARTIAL, partial(merged="3"), "reduction", "y: an update is left out")
    refused(PARTIAL, partial(place="inside"), "reduction", "y operand 0 gets a total before its last update")
    refused(PARTIAL, partial(private=False), "flow", "y operand 0 gets another value than in the spec: it comes from p(")


# ---- a reduction that is computed again in every tile
NORMAL = parse(
    """
    top[i] max= x[i, j]
    y[i, j] = x[i, j] - top[i]
    """,
    x=("f32", ("m", 8)),
)


def normal(*, inside: bool = True, start: bool = True, length: str = "8", index: str = "[0]") -> LoopNest:
    spec = NORMAL
    fill = loop("b", "1", stage(spec, "top.init", "i", "T" + index))
    find = loop("k", length, stage(spec, "top", "i, k", "T" + index, "x[i, k]"))
    use = loop("j", "4", stage(spec, "y", "i, 4*t + j", "y[i, 4*t + j]", "x[i, 4*t + j]", "T" + index), kind="vector")
    work: Block = (*((fill,) if start else ()), find, use)
    tile: Node = loop("t", "2", *((Scope((scratch("T", 1),), work),) if inside else work))
    row = loop("i", "m", *((tile,) if inside else (Scope((scratch("T", 1),), (tile,)),)), kind="parallel")
    return nest_of(spec, row, drop=("top",))


@pytest.mark.parametrize("inside", [True, False])
def test_a_recomputed_reduction(inside: bool) -> None:
    assert certify(NORMAL, normal(inside=inside)).ok
    assert judge(NORMAL, normal(inside=inside), params={"m": 2}) is None
    refused(NORMAL, normal(inside=inside, length="7"), "reduction", "top: an update is left out")
    refused(NORMAL, normal(inside=inside, start=False), "uninitialised", "top reads a cell of T")


def test_a_recomputed_reduction_that_goes_on_from_the_last_tile() -> None:
    spec = NORMAL
    fill = stage(spec, "top.init", "i", "T[0]")
    find = loop("k", "8", stage(spec, "top", "i, k", "T[0]", "x[i, k]"))
    use = loop("j", "4", stage(spec, "y", "i, 4*t + j", "y[i, 4*t + j]", "x[i, 4*t + j]", "T[0]"))
    nest = nest_of(spec, loop("i", "m", Scope((scratch("T", 1),), (fill, loop("t", "2", find, use)))), drop=("top",))
    assert judge(spec, nest, params={"m": 2}) is not None
    refused(spec, nest, "reduction", "y operand 1 gets a total before its last update: it comes from top(i=0, j=7)")


# ---- plain copies: an accumulator that is loaded and stored
def promoted(*, store: bool = True, cells: str = "v1", reload: bool = True) -> LoopNest:
    spec = TOTAL
    fill = loop("a", "4", stage(spec, "y.init", "a", "y[a]"))

    def copy(target: str, source: str) -> Assign:
        name, index = _place(target)
        return Assign("", (), name, index, Load(*_place(source), "f32"))

    load = loop("v0", "2", copy(f"A[{cells.replace('v1', 'v0')}]", "y[2*i + v0]"))
    add = loop("k1", "3", loop("v1", "2", stage(spec, "y", "2*i + v1, 3*k + k1", f"A[{cells}]", "x[2*i + v1, 3*k + k1]")))
    save = loop("v2", "2", copy("y[2*i + v2]", f"A[{cells.replace('v1', 'v2')}]"))
    block = Scope((scratch("A", 2),), (*((load,) if reload else ()), add, *((save,) if store else ())))
    return nest_of(spec, fill, loop("k", "2", loop("i", "2", block)))


def test_copies_are_looked_through() -> None:
    for numerics in ("reassoc", "strict"):
        assert certify(TOTAL, promoted(), numerics).ok
    assert judge(TOTAL, promoted()) is None
    refused(TOTAL, promoted(store=False), "flow", "y[0] gets another value than in the spec: it comes from y.init(i=0)")
    refused(TOTAL, promoted(cells="0"), "flow", "y operand self gets another value")
    refused(TOTAL, promoted(reload=False), "uninitialised", "y reads a cell of A")


# ---- in place
def test_an_updated_tensor_keeps_what_came_in() -> None:
    spec = parse("y[i] += x[i, k]", outputs=["y"], y=("f32", (4,)), x=("f32", (4, 6)))
    total = stage(spec, "y", "i, k", "y[i]", "x[i, k]")
    assert certify(spec, nest_of(spec, loop("i", "4", loop("k", "6", total)))).ok
    cleared = replace(stage(spec, "y", "i, 0", "y[i]", "x[i, 0]"), reduce=None)
    refused(spec, nest_of(spec, loop("i", "4", cleared, loop("k", "6", total))), "body", "combines by")
    refused(spec, nest_of(spec, loop("i", "3", loop("k", "6", total))), "flow", "y[3]")


def test_operands_keep_their_place() -> None:
    assert len(loads(GROUPED.op("d").body)) == 3
    spec = parse("y[i] = a[i] - b[i]", a=("f32", (4,)), b=("f32", (4,)))
    refused(spec, nest_of(spec, loop("i", "4", stage(spec, "y", "i", "y[i]", "b[i]", "a[i]"))), "flow", "incoming")

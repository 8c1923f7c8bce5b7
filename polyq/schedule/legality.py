"""The one oracle of what a schedule may do.

A nest is legal if every subscript lies in its buffer, if every read gets the value that it gets in the spec
(:mod:`polyq.schedule.dataflow`), if reductions whose order is free still take every term once
(:mod:`polyq.schedule.reductions`), and if no two iterations of a parallel or vector loop touch one cell that either
writes. :func:`check_order` answers for a nest; :func:`dependences` lists all pairs of accesses to one cell, for those
who plan a nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from polyq.affine.expr import Affine, Constraint
from polyq.affine.flow import Access
from polyq.affine.scalar import loads
from polyq.affine.sets import Relation, SearchLimit, limited
from polyq.affine.spec import Spec
from polyq.schedule.dataflow import compare, is_exact, nest_flow, original_flow, original_program
from polyq.schedule.loopnest import Loop, LoopNest
from polyq.schedule.readback import Program, Statement
from polyq.schedule.reductions import check_reductions
from polyq.schedule.witness import Instance, Violation, instance_of, mark

__all__ = [
    "CONCURRENT", "OPERATIONS", "Dependence", "Instance", "Violation", "carried", "check_order", "dependences",
    "is_carried", "out_of_bounds", "races",]  # fmt: skip

CONCURRENT = ("parallel", "vector")

#: how many isl operations one verdict may take (some 60 s); beyond it the nest counts as not proven
OPERATIONS = 100_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Dependence:
    """All pairs of instances of two ops that touch one cell of ``tensor``, the first one earlier, at least one writing.

    ``kind`` is ``flow`` (write, read), ``anti`` (read, write) or ``output`` (write, write). ``reduction`` says that
    both are updates of one reduction, whose order the numerics may set free, and ``exact`` that its order never
    matters (integers, min, max). The dims of ``relation`` are those of the ops, the target's with a prime.
    """

    kind: str
    source: str
    target: str
    tensor: str
    reduction: bool
    exact: bool
    relation: Relation


@lru_cache(maxsize=256)
def dependences(spec: Spec) -> tuple[Dependence, ...]:
    """Return all memory dependences of a spec (pairs of instances, not only last writers)."""
    program = original_program(spec)
    found: list[Dependence] = []
    for a in program.statements:
        for b in program.statements:
            found += _between(spec, a, b)
    return tuple(found)


def _between(spec: Spec, a: Statement, b: Statement) -> Iterator[Dependence]:
    first, second = spec.op(a.assign.op), spec.op(b.assign.op)
    update = a is b and first.reduce is not None
    for kind, xs, ys in (("flow", [a.write], b.reads), ("anti", a.reads, [b.write]), ("output", [a.write], [b.write])):
        total: Relation | None = None
        for x in xs:
            for y in (y for y in ys if y.array == x.array):
                pairs = _earlier(_touch_same(x, y), a, b)
                total = pairs if total is None else total.union(pairs)
        if total is not None and not total.is_empty():
            named = total.renamed(first.dims, [f"{d}'" for d in second.dims])
            array = b.write.array if kind != "flow" else a.write.array
            yield Dependence(kind, first.name, second.name, array, update, update and is_exact(spec, first), named)


def _touch_same(x: Access, y: Access) -> Relation:
    """From the points of one access to those of another that touch the same cell."""
    names = [f"c{i}" for i in range(len(x.index))]
    to_cell = Relation.function(x.domain, x.index, names)
    return to_cell.compose(Relation.function(y.domain, y.index, names).inverse())


def _earlier(pairs: Relation, a: Statement, b: Statement) -> Relation:
    """The pairs whose first point runs before the second: lexicographically smaller times."""
    if a is not b and a.time[0].is_constant and b.time[0].is_constant and a.time[0] != b.time[0]:
        return pairs if a.time[0].const < b.time[0].const else pairs.subtract(pairs)
    ins, outs = [f"a{i}" for i in range(len(a.domain.dims))], [f"b{i}" for i in range(len(b.domain.dims))]
    left = [e.substitute({d: Affine.dim(n) for d, n in zip(a.domain.dims, ins, strict=True)}) for e in a.time]
    right = [e.substitute({d: Affine.dim(n) for d, n in zip(b.domain.dims, outs, strict=True)}) for e in b.time]
    result = pairs.subtract(pairs)
    for level in range(len(left)):
        equal = [Constraint(y - x, True) for x, y in zip(left[:level], right[:level], strict=True)]
        before = Relation.make(ins, outs, [*equal, Constraint(right[level] - left[level] - 1)])
        result = result.union(pairs.intersect(before))
    return result


# ---- concurrent loops
def races(spec: Spec, program: Program) -> Iterator[Violation]:
    """Yield, for each parallel or vector loop, a pair of its iterations that touch one cell which either writes."""
    loops = {loop.var: loop for s in program.statements for loop in s.loops if loop.kind in CONCURRENT}
    for loop in loops.values():
        found = carried(program, loop)
        if found is not None:
            a, b, relation = found
            yield _race(spec, program, loop, a, b, relation)


def carried(program: Program, loop: Loop) -> tuple[Statement, Statement, Relation] | None:
    """Return two statements and the pairs of their points that meet in one cell across iterations of ``loop``."""
    inside = [s for s in program.statements if loop in s.loops]
    for a in inside:
        scoped = a.target.scope
        if loop.var in scoped:
            continue  # declared inside the loop: every iteration has its own cells
        for b in inside:
            for y in _touching(b, a.write.array, writes=inside.index(b) >= inside.index(a)):
                pairs = _across(a, a.write, b, y, loop)
                if not pairs.is_empty():
                    return a, b, pairs
    return None


def _touching(s: Statement, array: str, writes: bool) -> Iterable[Access]:
    """The accesses of a statement to one array, equal subscripts once."""
    accesses = [*s.reads, s.write] if writes else s.reads
    return {a.index: a for a in accesses if a.array == array}.values()


def _across(a: Statement, x: Access, b: Statement, y: Access, loop: Loop) -> Relation:
    """Pairs of points in one cell, in one iteration of the loops around ``loop``, in different ones of ``loop``."""
    outer = [v.var for v in a.loops[: a.loops.index(loop)]]
    key = [Affine.dim(v) for v in outer]
    names = [f"k{i}" for i in range(len(key) + len(x.index))]
    to_x = Relation.function(x.domain, [*key, *x.index], names)
    pairs = to_x.compose(Relation.function(y.domain, [*key, *y.index], names).inverse())
    ins, outs = [f"a{i}" for i in range(len(x.domain.dims))], [f"b{i}" for i in range(len(y.domain.dims))]
    here, there = Affine.dim(ins[x.domain.dims.index(loop.var)]), Affine.dim(outs[y.domain.dims.index(loop.var)])
    less = Relation.make(ins, outs, [Constraint(there - here - 1)])
    more = Relation.make(ins, outs, [Constraint(here - there - 1)])
    return pairs.intersect(less.union(more))


def _race(spec: Spec, program: Program, loop: Loop, a: Statement, b: Statement, pairs: Relation) -> Violation:
    found = pairs.sample()
    assert found is not None
    first, second, params = found
    instances = (instance_of(spec, a, first, params), instance_of(spec, b, second, params))
    return Violation(
        "race",
        f"iterations {first[loop.var]} and {second[loop.var]} of the {loop.kind} loop {loop.var} touch one cell of "
        f"{a.target.buffer.name}, which {instances[0].op} writes",
        instances,
        tuple(params.items()),
        loop.var,
        mark(program.nest, loop.var),
    )


# ---- subscripts
def out_of_bounds(spec: Spec, program: Program) -> Iterator[Violation]:
    """Yield every access with a subscript that leaves its buffer, with a point where it does."""
    for position, s in enumerate(program.statements):
        accesses = [(load.index, storage) for load, storage in zip(loads(s.assign.value), s.storages, strict=False)]
        wanted = [
            (inside, storage.buffer, axis, subscript)
            for index, storage in dict.fromkeys([*accesses, (s.assign.index, s.target)])
            for axis, (subscript, extent) in enumerate(zip(index, storage.buffer.shape, strict=True))
            for inside in (Constraint(subscript), Constraint(extent - subscript - 1))
            if not inside.expr.is_constant or inside.expr.const < 0
        ]
        if s.domain.implies(*dict.fromkeys(inside for inside, *_ in wanted)):
            continue
        for inside, buffer, axis, subscript in wanted:
            if not s.domain.implies(inside):
                yield _outside(spec, program, position, inside, f"{buffer.name} outside its extent "
                               f"{buffer.shape[axis]} in dim {axis}, by the subscript {subscript}")  # fmt: skip


def _outside(spec: Spec, program: Program, position: int, inside: Constraint, what: str) -> Violation:
    s = program.statements[position]
    point = s.domain.constrain([replace(inside, expr=-inside.expr - 1)]).sample()
    assert point is not None
    return Violation(
        "bounds",
        f"{s.assign.op or 'a copy'} touches {what}",
        (instance_of(spec, s, *point),),
        tuple(point[1].items()),
        nest=mark(program.nest, statement=position + 1),
    )


# ---- the verdict
def check_order(spec: Spec, nest: LoopNest, numerics: str = "reassoc") -> Violation | None:
    """Return ``None`` if ``nest`` computes ``spec`` in a legal order, else the first violation found.

    ``numerics`` other than ``"strict"`` let float sums and products run in any order; integers, min and max always may.
    """
    try:
        with limited(OPERATIONS):
            return _first_violation(spec, nest, numerics)
    except SearchLimit as error:
        return Violation("limit", f"not proven: {error}; legality.OPERATIONS sets the limit", nest=str(nest))


def _first_violation(spec: Spec, nest: LoopNest, numerics: str) -> Violation | None:
    program, flow = nest_flow(nest)
    outside = next(out_of_bounds(spec, program), None)
    if outside is not None:
        return outside
    original = original_flow(spec, numerics == "strict")
    for check in (compare, check_reductions):
        found = next(check(spec, program, flow, original), None)
        if found is not None:
            return found
    return next(races(spec, program), None)


def is_carried(spec: Spec, op: str, dim: str) -> bool:
    """Whether two iterations of ``dim`` of one op, run alone, touch a cell that one writes."""
    statement = next(s for s in original_program(spec).statements if s.assign.op == op)
    loop = statement.loops[spec.op(op).dims.index(dim)]
    return carried(original_program(spec), loop) is not None

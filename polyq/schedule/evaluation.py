"""In which order a schedule's float sums and products run, for error bounds.

What a stage's axes promise is checked against the loop nest that is printed: for each axis that goes over several
updates of one cell, isl is asked for two updates whose order in time contradicts it. From the first axis on for which
there are any, the order counts as open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from polyq.affine.bounds import Evaluation, Sums
from polyq.affine.dtypes import is_float
from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.rewrite import split
from polyq.affine.sets import Relation, SearchLimit, limited
from polyq.affine.spec import Op, Spec
from polyq.schedule.readback import Statement, read_back
from polyq.schedule.stages import Stage

if TYPE_CHECKING:
    from polyq.schedule.schedule import Schedule

__all__ = ["evaluation"]

#: how many isl operations the order of one reduction may take (some 2 s); beyond it the order counts as open
OPERATIONS = 3_000_000


@lru_cache(maxsize=64)
def evaluation(schedule: Schedule) -> Evaluation:
    """Return the program as the schedule evaluates it: the rewritten spec, its reductions in the order of the loops.

    The dims of a reduction become the axes of its stage, so that the updates of a cell come in lexicographic order.
    """
    program = read_back(schedule.nest)
    spec, found = schedule.plan.spec, list[Sums]()
    copies = any(not s.assign.op for s in program.statements)
    for op in schedule.plan.spec.ops:
        if op.reduce not in ("+", "*") or not is_float(op.body.dtype) or any(r.tensor == op.target for r in op.reads):
            continue
        spec = _in_loop_order(spec, op, schedule.plan.stage(op.name))
        if copies:  # a sum that moves from one cell to another is followed nowhere
            continue
        ordered = spec.op(op.name)
        free = [d for d in ordered.dims if d not in _kept(op)]
        known = _known(program.of_op(op.name), op, [_axis_values(op, schedule.plan.stage(op.name))[d] for d in free])
        found.append(Sums(op.name, tuple(free[known:]), _longest_run(program.of_op(op.name))))
    return Evaluation(spec, tuple(found))


def _kept(op: Op) -> set[str]:
    """The dims that a subscript of the target gives as they are: the same for all updates of a cell."""
    return {a.name for e in op.index for a, _ in e.terms if isinstance(a, Dim) and e == Affine.of(a)}


def _in_loop_order(spec: Spec, op: Op, stage: Stage) -> Spec:
    """Split the op's dims as the stage does, and bring them into its order; the cell's own dims stand first."""
    kept, axes = _kept(op), _axis_values(op, stage)
    for s in stage.splits:
        if s.outer in axes and s.axis not in kept:
            spec = split(spec, op.name, s.axis, s.factor, s.outer, s.inner)
    made = spec.op(op.name)
    order = [*(d for d in op.dims if d in kept), *(a for a in stage.order if a in axes)]
    return spec.with_ops(
        tuple(
            replace(o, dims=tuple(order), extents=tuple(made.extent(d) for d in order)) if o is made else o
            for o in spec.ops
        )
    )


def _axis_values(op: Op, stage: Stage) -> dict[str, Affine]:
    """Return every axis that goes over updates of one cell, in terms of the op's dims."""
    found = {d: Affine.dim(d) for d in op.dims if d not in _kept(op)}
    for s in stage.splits:
        if s.axis in found:
            found[s.outer], found[s.inner] = found[s.axis] // s.factor, found[s.axis] % s.factor
    return found


def _longest_run(statements: Sequence[Statement]) -> int:
    """Return how many updates of one cell in a row the emitter may combine as a tree.

    It does so where an innermost loop of a known number of iterations, unrolled or of lanes, keeps the cell.
    """
    longest = 1
    for s in statements:
        inner = s.loops[-1] if s.loops else None
        if (
            inner is None
            or inner.kind not in ("unroll", "vector")
            or any(inner.var in e.dims() for e in s.assign.index)
        ):
            continue
        spans = [h - lo for h in inner.upper for lo in inner.lower]
        longest = max([longest, *(gap.const for gap in spans if gap.is_constant)])
    return longest


# ---- the order, from the nest
def _known(statements: Sequence[Statement], op: Op, axes: Sequence[Affine]) -> int:
    """Return how many of the axes, from the first one on, the updates of each cell follow."""
    try:
        with limited(OPERATIONS):
            for level in range(len(axes)):
                if any(_contradict(a, b, op, axes[: level + 1]) for a in statements for b in statements):
                    return level
    except SearchLimit:
        return 0
    return len(axes)


def _contradict(a: Statement, b: Statement, op: Op, axes: Sequence[Affine]) -> bool:
    """Whether an update of ``a`` comes before one of ``b`` of the same cell though its last axis is greater.

    The cell is the one of the tensor and the one of the storage: copies of a sum are apart. The axes but the last one
    are equal.
    """
    if a.write.array != b.write.array:
        return False
    group_a, group_b = _group(a, op, axes[:-1]), _group(b, op, axes[:-1])
    names = [f"c{i}" for i in range(len(group_a))]
    pairs = Relation.function(a.domain, group_a, names).compose(Relation.function(b.domain, group_b, names).inverse())
    ins, outs = [f"a{i}" for i in range(len(a.domain.dims))], [f"b{i}" for i in range(len(b.domain.dims))]
    last_a, last_b = _at(axes[-1], op, a).substitute(_named(a, ins)), _at(axes[-1], op, b).substitute(_named(b, outs))
    wrong = pairs.intersect(Relation.make(ins, outs, [Constraint(last_a - last_b - 1)]))
    if wrong.is_empty():
        return False
    same = {(x, y) for x, y in zip(group_a, group_b, strict=True)}
    times = [(x, y) for x, y in zip(a.time, b.time, strict=True) if (x, y) not in same]
    before = [(x.substitute(_named(a, ins)), y.substitute(_named(b, outs))) for x, y in times]
    return any(not wrong.intersect(Relation.make(ins, outs, c)).is_empty() for c in _earlier(before))


def _earlier(times: Sequence[tuple[Affine, Affine]]) -> Iterator[list[Constraint]]:
    """Yield the ways in which the first time can be before the second."""
    equal: list[Constraint] = []
    for x, y in times:
        if x.is_constant and y.is_constant:
            if x.const < y.const:
                yield equal
            if x.const != y.const:
                return
            continue
        yield [*equal, Constraint(y - x - 1)]
        equal = [*equal, Constraint(y - x, equality=True)]


def _group(s: Statement, op: Op, axes: Sequence[Affine]) -> tuple[Affine, ...]:
    return (*s.write.index, *(_at(e, op, s) for e in (*op.index, *axes)))


def _at(e: Affine, op: Op, s: Statement) -> Affine:
    """Return an expression of the op's dims in terms of the loops."""
    return e.substitute(dict(zip(op.dims, s.assign.instance, strict=True)))


def _named(s: Statement, names: Sequence[str]) -> dict[str, Affine]:
    return {d: Affine.dim(n) for d, n in zip(s.domain.dims, names, strict=True)}

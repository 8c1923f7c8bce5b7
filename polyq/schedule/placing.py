"""Whole temporaries that are better computed inside what reads them, loops and all.

Nests are scheduled one by one; what is left between two of them is a whole temporary. Here the nest of such a temporary
is put inside a loop of the nest that reads it, with the tiles, lanes and copies that it has: each iteration computes
the part that it reads, in scratch. Instances are counted in the loop nest itself, before and after, so that whatever
is computed more often than before (the halo of a tile, a panel that is copied again) is weighed against the traffic
that falls away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from polyq.affine.dtypes import info
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine
from polyq.affine.scalar import Load
from polyq.affine.spec import Op, Spec
from polyq.schedule.draft import Draft, size_of, work_of
from polyq.schedule.legality import check_order
from polyq.schedule.loopnest import Assign, Block, Guard, Loop, LoopNest, Scope, walk
from polyq.schedule.lower import lower
from polyq.schedule.overlap import cost_of, moved_cost
from polyq.schedule.regions import Reader, box_of
from polyq.schedule.stages import Plan

__all__ = ["instances", "place_producers", "value_of"]

#: sizes of tiles to try along an axis that is not split
_TILES = (4, 16)
#: the part of all cycles that has to fall away
_GAIN = 0.02
#: loops of the reader to try, outermost first
_DEPTH = 2


@dataclass(frozen=True, slots=True)
class _Place:
    """Inside an axis of a reader's nest, which is split first where ``factor`` is not 0."""

    reader: str
    axis: str
    factor: int

    def __str__(self) -> str:
        return f"inside {self.axis} of {self.reader}" + (f" in tiles of {self.factor}" if self.factor else "")


def place_producers(draft: Draft) -> None:
    """Put nests of whole temporaries inside the nests that read them, where counts favour it."""
    for tensor in reversed([t.name for t in draft.spec.temporaries]):
        reader = _only_reader(draft.plan, tensor)
        copies = all(_copies(draft, op) for op in draft.spec.writers(tensor))  # whoever made it knew where
        small = _bytes(draft.spec, tensor) <= draft.target.l2 // 2
        if reader is not None and not (copies or small or tensor in draft.plan.prepared):
            _place(draft, tensor, reader)


def _copies(draft: Draft, op: Op) -> bool:
    """Whether an op copies what is no accumulator of its own."""
    return isinstance(op.body, Load) and op.body.tensor not in draft.private


def _bytes(spec: Spec, tensor: str) -> int:
    t = spec.tensor(tensor)
    return prod(size_of(e) for e in t.extents) * max(info(t.dtype).bits, 8) // 8


def _only_reader(plan: Plan, tensor: str) -> str | None:
    """The root of the one nest that reads a tensor, if nests of its own write it."""
    spec = plan.spec
    if any(plan.stage(op.name).at is not None for op in spec.writers(tensor)):
        return None
    roots = {_root(plan, op.name) for op in spec.readers(tensor)}
    return roots.pop() if len(roots) == 1 and not roots & {op.name for op in spec.writers(tensor)} else None


def _root(plan: Plan, op: str) -> str:
    while (at := plan.stage(op).at) is not None:
        op = at[0]
    return op


def _places(draft: Draft, reader: str) -> list[_Place]:
    """Loops of the reader that are divided among threads, or stand inside one that is: a producer there is as well."""
    stage = draft.plan.stage(reader)
    found: list[_Place] = []
    threaded = draft.target.cores < 2
    for axis in stage.order[:_DEPTH]:
        if stage.kind(axis) not in ("serial", "parallel"):
            break
        divided, threaded = stage.kind(axis) == "parallel", threaded or stage.kind(axis) == "parallel"
        if not threaded:
            continue
        if stage.split_of(axis) is None:
            size = size_of(draft.spec.op(reader).extent(axis))
            least = 2 * draft.target.cores if divided else 2
            found += [_Place(reader, axis, n) for n in _TILES if least * n <= size]
        found.append(_Place(reader, axis, 0))
    return found


def _place(draft: Draft, tensor: str, reader: str) -> None:
    bounds = {p: _least_recomputed(draft, tensor, p) for p in _places(draft, reader)}
    own, traffic = _own_cost(draft, tensor), _traffic(draft, tensor)
    open_places = [p for p, factor in bounds.items() if (factor - 1) * own < traffic]
    if not open_places:
        if bounds:
            best = min(bounds, key=lambda p: bounds[p])
            draft.note(
                f"{tensor}: stored whole, {traffic:.3g} cycles; {best} the recompute factor is at least "
                f"{bounds[best]:.3f}, {(bounds[best] - 1) * own:.3g} cycles"
            )
        return
    _try(draft, tensor, open_places)


def _try(draft: Draft, tensor: str, places: list[_Place]) -> None:
    start = draft.save()
    before = lower(draft.plan)
    counts = instances(before)
    whole = _cost(draft, before, counts) + _traffic(draft, tensor)
    found: list[tuple[float, int, LoopNest]] = []
    for k, place in enumerate(places):
        try:
            _apply(draft, tensor, place)
            nest = lower(draft.plan)
            if tensor not in {b.name for b in nest.buffers}:
                found.append((_cost(draft, nest, instances(nest)), k, nest))
        except ScheduleError:
            pass  # this place has no scratch of a known size
        draft.restore(start)
    if not found:
        return
    cost, k, nest = min(found, key=lambda f: f[:2])
    again = _recomputed(draft.spec, tensor, counts, instances(nest))
    said = f"recompute factor {again:.3f}; {cost:.4g} cycles {places[k]}, {whole:.4g} with all of it stored"
    if cost > whole * (1 - _GAIN):
        draft.note(f"{tensor}: stored whole, {said}")
        return
    _apply(draft, tensor, places[k])
    if check_order(draft.spec, nest, draft.numerics) is not None:
        draft.restore(start)
        return
    size = next(b for b in nest.all_buffers() if b.kind == "scratch" and b.name == tensor)
    shape = " x ".join(map(str, size.shape))
    draft.note(f"{tensor}: in tiles, {shape} in scratch, {said}")


def _least_recomputed(draft: Draft, tensor: str, place: _Place) -> float:
    """The least that a place can make of the recompute factor: the image of its iterations over the tensor."""
    op, steps = draft.spec.op(place.reader), _steps(draft, place)
    if steps is None:
        return 1.0
    at = {d: Affine.dim(f"{d}o") * n + Affine.dim(f"{d}i") for d, n in steps.items()}
    readers: list[Reader] = []
    for r in draft.spec.readers(tensor):
        if any(d not in r.dims or r.extent(d) != op.extent(d) for d in steps):
            return 1.0
        spans = {d: (0, e.const - 1) if e.is_constant else None for d, e in zip(r.dims, r.extents, strict=True)}
        spans |= {f"{d}i": (0, n - 1) for d, n in steps.items()}
        accesses = tuple((a.tensor, tuple(e.substitute(at) for e in a.index)) for a in r.reads)
        readers.append(Reader(r.name, accesses, tuple(spans.items())))
    shape = draft.spec.tensor(tensor).extents
    box = box_of(tensor, readers, frozenset(f"{d}o" for d in steps), {}, shape)
    tiles = prod(max(1, size_of(op.extent(d)) // n) for d, n in steps.items())
    return prod(size_of(e) for e in box.extent) * tiles / max(1, prod(size_of(e) for e in shape))


def _steps(draft: Draft, place: _Place) -> dict[str, int] | None:
    """How far one iteration goes along each dim of the reader that is tiled outside of a place, where that is plain."""
    stage, steps = draft.plan.stage(place.reader), dict[str, int]()
    for axis in stage.order[: stage.order.index(place.axis) + 1]:
        dim, step = axis, (place.factor or 1) if axis == place.axis else 1
        while (made := stage.split_of(dim)) is not None and made.outer == dim:
            dim, step = made.axis, step * made.factor
        if dim not in draft.spec.op(place.reader).dims or dim in steps:
            return None
        steps[dim] = step
    return steps


def _own_cost(draft: Draft, tensor: str) -> float:
    """The least cycles for computing a tensor: all instances of its nests, in lanes."""
    ops = [draft.spec.op(n) for op in draft.spec.writers(tensor) for n in _tree(draft.plan, op.name)]
    return sum(cost_of(op) * work_of(op) for op in ops) / max(1, draft.target.lanes("f32"))


def _apply(draft: Draft, tensor: str, place: _Place) -> None:
    """Split the axis and put the writers' nests inside; what was divided among threads there is no longer."""
    stage, axis = draft.plan.stage(place.reader), place.axis
    if place.factor:
        kind = stage.kind(axis)
        draft.do("mark", op=place.reader, axis=axis, kind="serial")
        draft.do("split", op=place.reader, axis=axis, factor=place.factor, outer=f"{axis}h", inner=f"{axis}r")
        axis = f"{axis}h"
        draft.do("mark", op=place.reader, axis=axis, kind=kind)
    for op in draft.spec.writers(tensor):
        for name in _tree(draft.plan, op.name):
            for a, kind in draft.plan.stage(name).kinds:
                if kind == "parallel":
                    draft.do("mark", op=name, axis=a, kind="serial")
        draft.do("fuse", producer=op.name, into=place.reader, at=axis)


def _tree(plan: Plan, op: str) -> list[str]:
    return [op, *(n for child in plan.children(op) for n in _tree(plan, child.name))]


# ---- counts
def instances(nest: LoopNest) -> dict[tuple[str, bool], float]:
    """Return how many instances of each op a nest runs, with lanes or without: (op, lanes) -> count.

    Bounds that depend on outer loops are taken at the middle of these; parameters at their typical sizes.
    """
    counts: dict[tuple[str, bool], float] = {}
    _count(nest.body, 1.0, {}, False, counts)
    return counts


def _count(
    block: Block, times: float, at: Mapping[str, int], lanes: bool, counts: dict[tuple[str, bool], float]
) -> None:
    for node in block:
        match node:
            case Loop(var, lower, upper, kind, body):
                low = max(value_of(e, at) for e in lower)
                size = max(0, min(value_of(e, at) for e in upper) - low)
                if size:
                    _count(body, times * size, {**at, var: low + size // 2}, kind == "vector", counts)
            case Guard(_, body) | Scope(_, body):
                _count(body, times, at, lanes, counts)
            case Assign(op):
                counts[op, lanes] = counts.get((op, lanes), 0.0) + times


def value_of(e: Affine, at: Mapping[str, int]) -> int:
    """Return an expression's value where loops stand ``at``, parameters at their typical sizes."""
    return e.evaluate(at, {p: size_of(Affine.param(p)) for p in e.params()})


def _cost(draft: Draft, nest: LoopNest, counts: Mapping[tuple[str, bool], float]) -> float:
    """Cycles of all instances on one core, as if no loop waited for memory."""
    lanes = max(1, draft.target.lanes("f32"))
    names = {op.name for op in draft.spec.ops}
    loops = sum(1 for node in walk(nest.body) if isinstance(node, Loop))
    total = sum(cost_of(draft.spec.op(op)) * n / (lanes if v else 1) for (op, v), n in counts.items() if op in names)
    return total + loops


def _traffic(draft: Draft, tensor: str) -> float:
    """Cycles for writing a whole temporary and reading it again."""
    size = _bytes(draft.spec, tensor)
    return moved_cost(size, draft.target) * size / max(4, draft.target.vector_bytes)


def _recomputed(
    spec: Spec, tensor: str, before: Mapping[tuple[str, bool], float], after: Mapping[tuple[str, bool], float]
) -> float:
    own = {op.name for op in spec.writers(tensor)}
    first, second = (sum(n for (op, _), n in counts.items() if op in own) for counts in (before, after))
    return second / max(first, 1.0)

"""A stage made concrete: loop variables for its axes, dims as expressions of these, and what must hold of them.

Of an axis whose split leaves something over, a walk takes one part at a time: whole tiles, then the rest, or pieces of
two heights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.spec import Op
from polyq.schedule.frame import needs_guard
from polyq.schedule.pieces import Piece
from polyq.schedule.regions import Region
from polyq.schedule.stages import Split, Stage, extents, values

__all__ = ["Local", "Walk", "active", "concrete", "is_cut", "peels", "ragged", "whole"]


@dataclass(frozen=True, slots=True)
class Local:
    """A stage made concrete: axes in order with their loop variables, dims as expressions of these, constraints."""

    stage: Stage
    axes: tuple[str, ...]
    vars: Mapping[str, str]
    dims: Mapping[str, Affine]
    constraints: tuple[Constraint, ...]
    extents: Mapping[str, Affine]
    first: Mapping[str, Affine]
    values: Mapping[str, Affine]

    def ranges(self) -> dict[str, tuple[int, int] | None]:
        """Return the inclusive range of every loop variable of the stage, where it is a number."""
        return {
            v: (0, self.extents[a].const - 1) if self.extents[a].is_constant and a not in self.first else None
            for a, v in self.vars.items()
        }


@dataclass(frozen=True, slots=True)
class Walk:
    """Where lowering stands in a stage: what it computes, which remainders are taken, loop variables so far, depth.

    ``mains`` and ``tails`` hold outer axes of splits; with a ``#`` behind it, an axis cut where whole tiles end.
    ``pieces`` holds those that are cut into tiles of two heights, with the piece that is taken.
    """

    op: Op
    region: Region
    mains: frozenset[str] = frozenset()
    tails: frozenset[str] = frozenset()
    pieces: tuple[tuple[str, Piece], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    depth: int = 0

    def main(self, axis: str) -> Walk:
        """Take the whole tiles of ``axis``."""
        return replace(self, mains=self.mains | {axis})

    def tail(self, axis: str) -> Walk:
        """Take what whole tiles of ``axis`` leave over."""
        return replace(self, tails=self.tails | {axis})

    def piece(self, axis: str, piece: Piece) -> Walk:
        """Take one piece of ``axis``."""
        return replace(self, pieces=(*self.pieces, (axis, piece)))

    def settled(self, axis: str) -> bool:
        """Whether one of these was taken."""
        return axis in self.mains | self.tails or axis in dict(self.pieces)

    def without(self, axis: str) -> Walk:
        """Forget which of the two was taken."""
        return replace(self, mains=self.mains - {axis}, tails=self.tails - {axis})


def concrete(walk: Walk, given: Stage, domain: tuple[Constraint, ...]) -> Local:
    """Make a stage concrete where the walk stands; ``domain`` constrains the dims of its op."""
    op, region, taken = walk.op, walk.region, dict(walk.pieces)
    stage = _of_heights(given, taken)
    size = extents(stage, dict(zip(op.dims, region.extent, strict=True)))
    size |= {axis: piece.count for axis, piece in taken.items()}
    singles = _singles(stage, walk.tails, taken)
    axes = tuple(a for a in stage.order if not any(a == s.inner for s in singles.values()))
    names = dict(walk.names)
    loop = {a: names.get(a, f"{op.name}:{a}") for a in axes}
    value = _values(stage, op, loop, singles, taken)
    dims = {d: b + value[d] for d, b in zip(op.dims, region.base, strict=True)}
    first = _firsts(stage, walk.tails, singles, taken, size)
    size |= {outer: size[s.axis] for outer, s in singles.items() if outer not in taken}
    constraints = [c for a in axes for c in _span(loop[a], first.get(a, Affine(0)), size[a])]
    constraints += [Constraint(Affine.dim(loop[a]) - e) for a, piece in taken.items() for e in piece.least]
    for s in stage.splits:
        if s.outer not in singles and s.outer not in taken and size[s.axis] % s.factor != Affine(0):
            constraints.append(Constraint(size[s.axis] - 1 - value[s.axis]))
    inside = {e for s in stage.splits if s.outer in taken for e in (value[s.axis], size[s.axis] - 1 - value[s.axis])}
    limits = (c.substitute(dims) for c in (*domain, *region.constraints))
    constraints += [c for c in limits if c.expr not in inside]  # pieces lie inside their axis
    return Local(stage, axes, loop, dims, tuple(dict.fromkeys(constraints)), size, first, value)


def _of_heights(stage: Stage, taken: Mapping[str, Piece]) -> Stage:
    """Return the stage with tiles of the heights that are taken."""
    splits = (replace(s, factor=max(2, taken[s.outer].height)) if s.outer in taken else s for s in stage.splits)
    return replace(stage, splits=tuple(splits))


def _singles(stage: Stage, tails: frozenset[str], taken: Mapping[str, Piece]) -> dict[str, Split]:
    """Return the splits whose iterations go one by one, by their outer axis."""
    ones = {axis for axis, piece in taken.items() if piece.height == 1}
    return {s.outer: s for s in stage.splits if s.outer in ones | tails and stage.kind(s.inner) == "unroll"}


def _values(
    stage: Stage, op: Op, loop: Mapping[str, str], singles: Mapping[str, Split], taken: Mapping[str, Piece]
) -> dict[str, Affine]:
    """Return axes and dims in terms of the loop variables."""
    leaf = {a: Affine.dim(v) for a, v in loop.items() if a not in singles}
    for outer, s in singles.items():  # the single iterations count the split axis itself
        leaf[s.axis] = Affine.dim(loop[outer]) + (taken[outer].start if outer in taken else 0)
    starts = {s.axis: taken[s.outer].start for s in stage.splits if s.outer in taken}
    rest = replace(stage, splits=tuple(s for s in stage.splits if s.outer not in singles))
    return {**leaf, **values(rest, op.dims, leaf, starts)}


def _firsts(
    stage: Stage, tails: frozenset[str], singles: Mapping[str, Split], taken: Mapping[str, Piece],
    size: Mapping[str, Affine],
) -> dict[str, Affine]:  # fmt: skip
    """Return where axes begin that stand behind whole tiles."""
    first: dict[str, Affine] = {}
    for s in stage.splits:
        if s.outer in taken:
            continue
        if s.outer in singles:
            first[s.outer] = (whole(stage, s.axis, size) // s.factor) * s.factor
        elif s.outer in tails:
            first[s.outer] = size[s.axis] // s.factor
    return first


def active(walk: Walk, local: Local) -> tuple[Constraint, ...]:
    """Drop what whole tiles satisfy: for these, the outer axis stops at the last whole tile."""
    out = list(local.constraints)
    for s in local.stage.splits:
        if s.outer not in walk.mains:
            continue
        size = local.extents[s.axis]
        outer = Affine.dim(local.vars[s.outer])
        value = local.values
        met = [size - 1 - value[s.axis]]
        parent = local.stage.split_of(s.axis)
        if parent is not None and parent.outer == s.axis and local.stage.kind(parent.inner) == "vector":
            met.append(local.extents[parent.axis] - 1 - value[parent.axis])  # whole vectors only
        full = whole(local.stage, s.axis, local.extents) // s.factor
        ceil = (size + s.factor - 1) // s.factor
        out = [c for c in out if c.expr not in met]
        out = [Constraint(full - 1 - outer) if c.expr == ceil - 1 - outer else c for c in out]
    for depth, axis in enumerate(local.axes):
        cut = f"{axis}#"
        if not walk.settled(cut):
            continue
        edge = ragged(replace(walk.without(cut), depth=depth), local)
        v = Affine.dim(local.vars[axis])
        if cut in walk.mains:
            out = [c for c in out if all(c != e for e, _ in edge)] + [Constraint(last - v) for _, last in edge]
        elif len(edge) == 1:
            out = [*out, Constraint(v - edge[0][1] - 1)]
    return tuple(out)


def ragged(walk: Walk, local: Local) -> list[tuple[Constraint, Affine]]:
    """Constraints that hold for whole tiles of later lanes and copies but not the last, with the last whole tile.

    They stem from dims of the op that were split where the factor does not divide the extent.
    """
    axis, later = local.axes[walk.depth], local.axes[walk.depth + 1 :]
    var = local.vars[axis]
    inner = {
        local.vars[a]: (0, local.extents[a].const - 1)
        for a in later
        if local.stage.kind(a) in ("unroll", "vector") and local.extents[a].is_constant
    }
    found: list[tuple[Constraint, Affine]] = []
    for c in active(walk, local):
        a = c.expr.coefficient(Dim(var))
        hidden = c.expr.dims() & set(inner)
        if (
            a >= 0
            or not hidden
            or c.equality
            or needs_guard(c)
            or c.expr.dims() & {local.vars[x] for x in later} != hidden
        ):
            continue
        rest = c.expr - Affine.dim(var) * a
        least = Affine(rest.const)
        for atom, k in rest.terms:
            name = atom.name if isinstance(atom, Dim) else ""
            least = least + (min(k * inner[name][0], k * inner[name][1]) if name in hidden else Affine.of(atom) * k)
        found.append((c, least // -a))
    return found


def peels(op: Op, local: Local, split: Split) -> bool:
    """Whether full tiles can be told apart: the axis is bounded by its extent alone, and the tile lies inside."""
    order = local.stage.order
    if (
        local.stage.kind(split.inner) not in ("unroll", "vector")
        or split.inner not in order[order.index(split.outer) :]
    ):
        return False
    root = split.axis
    while (parent := local.stage.split_of(root)) is not None:
        if parent.inner == root:
            return False
        root = parent.axis
    return not any(root in c.expr.dims() for c in op.where)


def is_cut(stage: Stage, split: Split) -> bool:
    """Whether tiles of two heights may cover the axis: unrolled iterations of a dim, none of them vectors."""
    return stage.kind(split.inner) == "unroll" and stage.split_of(split.axis) is None and split.factor > 2


def whole(stage: Stage, axis: str, size: Mapping[str, Affine]) -> Affine:
    """Return the iterations of ``axis`` that are whole: those of full vectors, where ``axis`` counts vectors."""
    parent = stage.split_of(axis)
    if parent is not None and parent.outer == axis and stage.kind(parent.inner) == "vector":
        return size[parent.axis] // parent.factor
    return size[axis]


def _span(var: str, first: Affine, size: Affine) -> tuple[Constraint, Constraint]:
    v = Affine.dim(var)
    return Constraint(v - first), Constraint(size - 1 - v)

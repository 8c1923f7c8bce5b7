"""Groups: which ops share one nest.

A group has a root, an assignment that walks over a result, and members that are computed inside it. A member's level is
the set of the root's dims that its tensor's subscripts are, in every reader: at a point of the level just one part
of the tensor is needed, so computing it there repeats nothing (the flow relation, composed with the level's loops, is
single-valued). Levels have to nest; what does not becomes a root of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine.spec import Op, Spec
from polyq.schedule.draft import bounds_its_sum, plain_dim, size_of

__all__ = ["Group", "Member", "group_of", "is_contraction", "without"]


@dataclass(frozen=True, slots=True)
class Member:
    """A tensor computed inside a group: its writers, its level, and the root's dim for each of their dims."""

    tensor: str
    ops: tuple[str, ...]
    level: frozenset[str]
    aligned: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

    def dims(self, op: str) -> dict[str, str]:
        """Return the dims of a writer that follow a dim of the root."""
        return dict(dict(self.aligned)[op])


@dataclass(frozen=True, slots=True)
class Group:
    """A root op and its members, readers before what they read."""

    root: str
    members: tuple[Member, ...]


def is_contraction(op: Op) -> bool:
    """Whether operands are reused: some load misses a dim of the result.

    >>> from polyq.affine.notation import parse
    >>> spec = parse("y[i, j] += a[i, k] * b[k, j]", a=("f32", (4, 5)), b=("f32", (5, 6)))
    >>> is_contraction(spec.op("y")), is_contraction(spec.op("y.init"))
    (True, False)
    """
    if op.reduce is None:
        return False
    missed: set[frozenset[str]] = set()
    for load in op.reads:
        used = {d for e in load.index for d in e.dims()}
        gone = frozenset(d for d in op.dims if d not in used and d not in op.reduced and size_of(op.extent(d)) > 1)
        if gone:
            missed.add(gone)
    return bool(missed) and len(op.dims) > 1


def group_of(spec: Spec, root: Op, free: frozenset[str]) -> Group:
    """Return the group of ``root``: the tensors in ``free`` that can be computed inside it."""
    maps: dict[str, dict[str, str]] = {root.name: {d: d for d in root.dims}}
    members: list[Member] = []
    start = spec.ops.index(root)
    tensors = [op.target for op in reversed(spec.ops[:start]) if op.target in free]
    for tensor in dict.fromkeys(tensors):
        member = _member(spec, tensor, root, maps, members)
        if member is not None:
            members.append(member)
            maps.update({op: member.dims(op) for op in member.ops})
    return Group(root.name, _contractions_alone(spec, root, members))


def without(spec: Spec, root: Op, group: Group, tensor: str) -> Group:
    """Return the group without a tensor, and without what is then read outside of it."""
    return Group(group.root, _closed(spec, root, [m for m in group.members if m.tensor != tensor]))


def _member(spec: Spec, tensor: str, root: Op, maps: dict[str, dict[str, str]], members: list[Member]) -> Member | None:
    writers = spec.writers(tensor)
    readers = [op for op in spec.ops if op not in writers and any(r.tensor == tensor for r in op.reads)]
    if not readers or any(op.name not in maps for op in readers):
        return None
    if any(op.where and not bounds_its_sum(op) for op in writers) or any(op.where for op in readers):
        return None
    if any(_is_overwritten(spec, op, root) for op in writers):
        return None
    rank = len(spec.tensor(tensor).shape)
    accesses = [(maps[op.name], r.index) for op in readers for r in op.reads if r.tensor == tensor]
    follows: list[str | None] = []
    for k in range(rank):
        dims = {m.get(d) if (d := plain_dim(index[k])) is not None else None for m, index in accesses}
        follows.append(dims.pop() if len(dims) == 1 else None)
    named = [d for d in follows if d is not None]
    level = frozenset(named)
    if not level or len(named) != len(level) or not _nests(level, members, root):
        return None
    aligned: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    for op in writers:
        pairs = {
            own: d
            for e, d in zip(op.index, follows, strict=True)
            if d is not None and (own := plain_dim(e)) is not None
        }
        if frozenset(pairs.values()) != level or any(op.extent(o) != root.extent(d) for o, d in pairs.items()):
            return None
        if any(r.tensor == tensor for r in op.reads):
            return None
        aligned.append((op.name, tuple(pairs.items())))
    return Member(tensor, tuple(op.name for op in writers), level, tuple(aligned))


def _is_overwritten(spec: Spec, op: Op, root: Op) -> bool:
    """Whether something that ``op`` reads is written between it and the root: moved there, it would read that."""
    between = spec.ops[spec.ops.index(op) + 1 : spec.ops.index(root)]
    written = {o.target for o in between} - {op.target}
    return any(r.tensor in written for r in op.reads)


def _nests(level: frozenset[str], members: list[Member], root: Op) -> bool:
    return all(level <= m.level or m.level <= level for m in members) and level <= frozenset(root.dims)


def _contractions_alone(spec: Spec, root: Op, members: list[Member]) -> tuple[Member, ...]:
    """A contraction is tiled over all dims of the root; what would tie its loops to an outer level stands alone."""
    whole = frozenset(root.dims)
    members = [m for m in members if m.level != whole or all(_follows(m, spec.op(op)) for op in m.ops)]
    heavy = [m for m in members if any(is_contraction(spec.op(op)) for op in m.ops)]
    if any(m.level == whole for m in heavy):
        first = next(m for m in members if m in heavy and m.level == whole)
        members = [m for m in members if m.level == whole and (m is first or m not in heavy)]
    else:
        members = [m for m in members if m not in heavy]
    return _closed(spec, root, members)


def _follows(member: Member, op: Op) -> bool:
    """Whether the cells that a reduction writes have dims of the root alone, so that a tile of the root holds them."""
    return op.reduce is None or all(d in op.reduced or d in member.dims(op.name) for d in op.dims)


def _closed(spec: Spec, root: Op, members: list[Member]) -> tuple[Member, ...]:
    """Drop members that something outside the group reads."""
    while True:
        inside = {root.name, *(op for m in members for op in m.ops)}
        kept = [m for m in members if all(op.name in inside for op in spec.readers(m.tensor))]
        if len(kept) == len(members):
            return tuple(kept)
        members = kept

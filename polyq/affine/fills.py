"""Rewrites of boxes: where dims begin, what fills leave out, and what has no instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.rewrite import fresh, moved_dim, replace_op, substitute, tensor_names
from polyq.affine.scalar import Load, substitute_dims
from polyq.affine.spec import Op, Spec

__all__ = ["begins", "drop_empty", "fill_is_hidden", "is_empty", "shift", "trim_fill"]


def is_empty(op: Op) -> bool:
    """Whether a known extent says that an op has no instance."""
    return any(e.is_constant and e.const <= 0 for e in op.extents)


def drop_empty(spec: Spec, name: str) -> Spec:
    """Leave out an op without instances; another one writes its tensor.

    rewrite: ``y[i] = 0; y[i] += x[i, k] (k < 0)`` -> ``y[i] = 0``
    requires: 1. an extent of the op is known to be 0; 2. the tensor has another writer.
    """
    op = spec.op(name)
    if not is_empty(op):
        raise ScheduleError(f"drop_empty({name!r}): no extent of {name} is known to be 0")
    if len(spec.writers(op.target)) < 2:
        raise ScheduleError(f"drop_empty({name!r}): nothing else writes {op.target}")
    return replace_op(spec, name, ())


def begins(op: Op) -> dict[str, int]:
    """Return the constants above 0 at which ``where`` lets dims begin.

    >>> from polyq.affine.notation import parse
    >>> begins(parse("y[i] = x[i - 1] where i >= 1, i < 9", x=("f32", (8,))).ops[-1])
    {'i': 1}
    """
    found: dict[str, int] = {}
    for c in op.where:
        dim = moved_dim(c.expr)
        if dim is not None and not c.equality and c.expr.const < 0:
            found[dim] = max(found.get(dim, 0), -c.expr.const)
    return found


def shift(spec: Spec, name: str) -> Spec:
    """Let dims that ``where`` lets begin above 0 begin at 0.

    rewrite: ``for c <= i < N: S(i)`` -> ``for i < N - c: S(i + c)``
    requires: nothing; the instances and their order stay the same.
    """
    op = spec.op(name)
    first = begins(op)
    changed = substitute(op, {d: Affine.dim(d) + c for d, c in first.items()})
    changed = replace(
        changed,
        extents=tuple(e - first.get(d, 0) for d, e in zip(op.dims, op.extents, strict=True)),
        where=tuple(c for c in changed.where if moved_dim(c.expr) not in first or c.equality or c.expr.const < 0),
    )
    return replace_op(spec, name, (changed,))


def fill_is_hidden(spec: Spec, name: str) -> Op | str:
    """Return the op that assigns most cells of a fill before anybody reads them, else the reason why there is none."""
    fill = spec.op(name)
    boxed = [moved_dim(e) for e in fill.index] == list(fill.dims) and all(e.const == 0 for e in fill.index)
    if fill.reduce is not None or fill.where or not fill.dims or not boxed:
        return f"{name} does not fill a box"
    if any(r.tensor == fill.target for r in fill.reads):
        return f"{name} reads {fill.target} itself"
    for op in spec.ops[spec.ops.index(fill) + 1 :]:
        if any(r.tensor == fill.target and not (op.target == fill.target and _goes_back(op, r)) for r in op.reads):
            return f"{op.name} reads {fill.target} first"
        if op.target == fill.target:
            dims = [moved_dim(e) for e in op.index]
            box = None not in dims and len(set(dims)) == len(dims) == len(op.dims)
            if op.reduce is not None or op.where or not box:
                return f"{op.name} does not assign a box"
            spans = zip(op.index, dims, fill.extents, strict=True)
            left = [whole - e.const - op.extent(d or "") for e, d, whole in spans]
            inside = all(e.is_constant and e.const >= 0 for e in left)
            return op if inside else f"{op.name} may write outside of what {name} fills"
    return f"nothing writes {fill.target} after {name}"


def _goes_back(op: Op, load: Load) -> bool:
    """Whether an op reads of its own tensor what an earlier instance assigned, where the op assigns that cell at all.

    The cell lies a constant way behind the one that is assigned: the first dim along which it does decides.
    """
    way = {moved_dim(w): (w - r) for w, r in zip(op.index, load.index, strict=True)}
    if None in way or len(way) != len(op.index) or not all(e.is_constant for e in way.values()):
        return False
    first = next((way[d].const for d in op.dims if d in way and way[d].const != 0), 0)
    return first > 0


def trim_fill(spec: Spec, name: str) -> Spec:
    """Let a fill leave out the box that another op assigns before anybody reads it.

    rewrite: ``y[i] = 0 (i < N); y[i + c] = f(i) (i < M)`` -> ``y[i] = 0 (i < c); y[i + c + M] = 0 (i < N - c - M);
    y[i + c] = f(i)``
    requires: 1. a box is assigned, from other tensors or none; 2. the next op that touches the tensor assigns a box
    inside, each cell once; what it reads of the tensor there, an earlier instance of its own has assigned.
    """
    cover = fill_is_hidden(spec, name)
    if isinstance(cover, str):
        raise ScheduleError(f"trim_fill({name!r}): {cover}")
    fill = spec.op(name)
    taken, pieces = tensor_names(spec) - {name}, list[Op]()
    index, extents = list(fill.index), list(fill.extents)
    for k, (d, whole, e) in enumerate(zip(fill.dims, fill.extents, cover.index, strict=True)):
        middle = cover.extent(moved_dim(e) or "")
        for begin, size in ((Affine(0), Affine(e.const)), (middle + e.const, whole - middle - e.const)):
            if size == Affine(0):
                continue
            at = Affine.dim(d) + begin
            # where the assigned box is empty, as it may be for small parameters, both ends may reach past the whole
            inside = (Constraint(at), Constraint(whole - 1 - at))
            where = () if whole.is_constant and middle.is_constant else inside
            cells = (*index[:k], at, *index[k + 1 :])
            body = substitute_dims(fill.body, _moved(fill, cells))
            piece = replace(fill, name=fresh(taken, name), index=cells, where=where, body=body)
            pieces.append(replace(piece, extents=(*extents[:k], size, *extents[k + 1 :])))
            taken.add(pieces[-1].name)
        index[k], extents[k] = Affine.dim(d) + e.const, middle
    return replace_op(spec, name, tuple(pieces))


def _moved(fill: Op, cells: Sequence[Affine]) -> dict[str, Affine]:
    return {d: e for d, e in zip(fill.dims, cells, strict=True) if e != Affine.dim(d)}

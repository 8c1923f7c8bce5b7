"""Dims that a layout has split, as one again.

Packing by tiles of ``c`` makes of a dim ``n`` the two dims ``a`` and ``b`` with ``n = c*a + b``. Where all that an op
does with them is said by ``c*a + b``, or by two axes of a temporary that are split likewise everywhere, the program
is that of the plain layout. :func:`merge_tiles` writes it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.extents import Shape, alone
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar, walk
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["merge_tiles"]


@dataclass(slots=True)
class _Part:
    """Pairs of dims and of axes that are merged together or not at all, all with the tile ``size``."""

    size: int
    dims: dict[str, tuple[str, str]] = field(default_factory=lambda: {})
    axes: dict[str, tuple[int, int]] = field(default_factory=lambda: {})


def merge_tiles(spec: Spec) -> Spec:
    """Return the spec with split dims merged.

    rewrite: ``t[a, b] = f(x[c*a + b]); y[c*a + b] += g(t[a, b])`` -> ``t[n] = f(x[n]); y[n] += g(t[n])``
    requires: 1. ``b`` runs over exactly ``c`` values; 2. both dims are reduced, one next to the other, or neither is;
    3. no floor holds one of them; 4. the axes belong to a temporary that all its users split so.
    """
    while True:
        for op, a, b in _candidates(spec):
            part = _closure(spec, op, a, b)
            if part is not None and _fits(spec, part):
                spec = _merged(spec, part)
                break
        else:
            return spec


# ---- what belongs together
def _candidates(spec: Spec) -> Iterator[tuple[Op, str, str]]:
    """Yield pairs of dims that a subscript joins as ``c*a + b``."""
    for op in spec.ops:
        sizes = {d: e.const for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant and e.const > 1}
        for entry in (e for index in _indices(op) for e in index):
            terms = {atom.name: k for atom, k in entry.terms if isinstance(atom, Dim)}
            for b, k in terms.items():
                for a, whole in terms.items():
                    if a != b and b in sizes and k > 0 and whole == k * sizes[b]:
                        yield op, a, b


def _indices(op: Op) -> list[Shape]:
    return [op.index, *(load.index for load in op.reads)]


def _accesses(op: Op) -> list[tuple[str, Shape]]:
    return [(op.target, op.index), *((load.tensor, load.index) for load in op.reads)]


def _closure(spec: Spec, first: Op, a: str, b: str) -> _Part | None:
    """Return the pairs that have to be merged with one; ``None`` where they contradict each other."""
    part = _Part(first.extent(b).const)
    waiting = [(first, a, b)]
    temporaries = {t.name for t in spec.temporaries}
    while waiting:
        op, a, b = waiting.pop()
        if op.name in part.dims:
            if part.dims[op.name] != (a, b):
                return None
            continue
        part.dims[op.name] = a, b
        for tensor, index in _accesses(op):
            names = [alone(e) for e in index]
            if tensor not in temporaries or a not in names or b not in names or tensor in part.axes:
                continue
            axes = names.index(a), names.index(b)
            part.axes[tensor] = axes
            for other in spec.ops:
                for name, at in _accesses(other):
                    if name == tensor:
                        pair = alone(at[axes[0]]), alone(at[axes[1]])
                        if pair[0] is None or pair[1] is None or pair[0] == pair[1]:
                            return None
                        waiting.append((other, pair[0], pair[1]))
    return part


# ---- whether it is right
def _fits(spec: Spec, part: _Part) -> bool:
    shapes_fit = all(spec.tensor(t).extents[q] == Affine(part.size) for t, (_, q) in part.axes.items())
    return shapes_fit and all(_op_fits(spec, spec.op(name), *pair, part) for name, pair in part.dims.items())


def _op_fits(spec: Spec, op: Op, a: str, b: str, part: _Part) -> bool:
    if op.extent(b) != Affine(part.size) or any(load.tensor == op.target for load in op.reads):
        return False
    for tensor, index in _accesses(op):
        pair = part.axes.get(tensor)
        if pair is not None and (alone(index[pair[0]]), alone(index[pair[1]])) != (a, b):
            return False
        if pair is not None and spec.tensor(tensor).extents[pair[0]] != op.extent(a):
            return False
        rest = [e for k, e in enumerate(index) if pair is None or k not in pair]
        if not all(_joined(e, a, b, part.size) for e in rest):
            return False
    others = [*(c.expr for c in op.where), *(n.expr for n in walk(op.body) if isinstance(n, Index))]
    return all(_joined(e, a, b, part.size) for e in others) and _keeps_order(op, a, b)


def _joined(e: Affine, a: str, b: str, size: int) -> bool:
    """Whether an expression has the dims as ``k*(size*a + b)`` or not at all."""
    both = e.coefficient(Dim(a)), e.coefficient(Dim(b))
    outside = {n.name for n, _ in e.terms if isinstance(n, Dim)}
    inside = any(n in (a, b) for atom, _ in e.terms if not isinstance(atom, Dim) for n in Affine.of(atom).dims())
    return both[0] == size * both[1] and not inside and ({a, b} <= outside or not {a, b} & outside)


def _keeps_order(op: Op, a: str, b: str) -> bool:
    """Whether each cell is combined with the same terms in the same order, once the two dims are one."""
    if op.reduce is None:
        return True
    reduced = set(op.reduced)
    if (a in reduced) != (b in reduced):
        return False
    if a not in reduced:  # which cell it is hangs on the dims that are kept, one by one
        kept = [d for e in op.index for d in e.dims()]
        return len(set(kept)) == len(kept)
    order = [d for d in op.dims if d in reduced and op.extent(d) != Affine(1)]
    return order.index(b) == order.index(a) + 1 if a in order else True


# ---- the rewrite
def _merged(spec: Spec, part: _Part) -> Spec:
    ops = tuple(_merged_op(op, part) for op in spec.ops)
    return spec.with_ops(ops, tuple(_merged_tensor(t, part) for t in spec.all_tensors))


def _merged_tensor(t: Tensor, part: _Part) -> Tensor:
    if t.name not in part.axes:
        return t
    p, q = part.axes[t.name]
    whole = t.extents[p] * part.size
    shape = [(whole.const if whole.is_constant else str(whole)) if k == p else n for k, n in enumerate(t.shape)]
    return replace(t, shape=tuple(n for k, n in enumerate(shape) if k != q))


def _merged_op(op: Op, part: _Part) -> Op:
    if op.name not in part.dims:
        return op
    a, b = part.dims[op.name]

    def one(e: Affine) -> Affine:
        k = e.coefficient(Dim(b))
        return e - Affine.dim(a) * (part.size * k) - Affine.dim(b) * k + Affine.dim(a) * k

    def subscripts(tensor: str, index: Iterable[Affine]) -> Shape:
        pair = part.axes.get(tensor)
        kept = [(k, e) for k, e in enumerate(index) if pair is None or k != pair[1]]
        return tuple(Affine.dim(a) if pair is not None and k == pair[0] else one(e) for k, e in kept)

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load):
            return replace(node, index=subscripts(node.tensor, node.index))
        return replace(node, expr=one(node.expr)) if isinstance(node, Index) else node

    ends = {d: e * part.size if d == a else e for d, e in zip(op.dims, op.extents, strict=True) if d != b}
    return replace(
        op,
        dims=tuple(ends),
        extents=tuple(ends.values()),
        index=subscripts(op.target, op.index),
        body=map_scalar(op.body, leaf),
        where=tuple(Constraint(one(c.expr), c.equality) for c in op.where),
    )

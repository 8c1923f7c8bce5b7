"""How dims and axes are grouped, by what the program does to memory.

A tensor whose inner extents are numbers is a row-major array; a subscript of it is a part of an offset. ``(32, 128)``
walked by ``[g, j]`` and ``(4096,)`` walked by ``[128*g + j]`` are the same accesses. The axes that are chosen here
depend on the offsets alone: an axis ends where every access keeps what lies above and below apart. Dims follow: a
neighbouring pair that is used as ``n*a + b`` alone becomes one dim, and one that is divided becomes two. Order of
instances and values stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from polyq.affine.dtypes import info
from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv
from polyq.affine.rewrite import constant_ranges, entry, fresh, moved_dim, split, substitute
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar, walk
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["grouped", "map_loads", "row_major", "same_storage", "simple"]

Axes = tuple[Affine, ...]


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Whether arrays of the two tensors are the same row-major bytes.

    >>> same_storage(Tensor("x", "f32", ("m", 32, 4)), Tensor("x", "f32", ("32*m", 4)))
    True
    >>> same_storage(Tensor("w", "u4", (4, 3)), Tensor("w", "u4", (12,)))
    False
    """
    if a.dtype != b.dtype or row_major(a) != row_major(b):
        return False
    return a.shape == b.shape or (_whole_rows(a, a.extents) and _whole_rows(b, b.extents))


def row_major(t: Tensor) -> tuple[Affine, ...]:
    """Return the sizes of the runs of axes that one offset goes through, without those of one cell.

    >>> [str(e) for e in row_major(Tensor("x", "f32", (1, 4, "m", 8, 2)))]
    ['4', '16*m']
    """
    shape = t.extents
    return tuple(size for run in _runs(shape) if (size := _size(shape, run)) != Affine(1))


def _whole_rows(t: Tensor, shape: Axes) -> bool:
    """Whether the last axis fills whole bytes, so that rows follow one another without padding."""
    if not info(t.dtype).packed:
        return True
    fields = 8 // info(t.dtype).bits
    return bool(shape) and shape[-1].is_constant and shape[-1].const % fields == 0


def map_loads(body: Scalar, tensor: str, change: Callable[[Load], Scalar]) -> Scalar:
    """Return a body with the loads of one tensor changed."""

    def leaf(node: Const | Index | Load) -> Scalar:
        return change(node) if isinstance(node, Load) and node.tensor == tensor else node

    return map_scalar(body, leaf)


# ---- runs of axes: what one offset goes through
def _runs(shape: Axes) -> list[range]:
    """Return the longest runs of axes with numbers for all but the first extent; an offset goes through each."""
    runs: list[range] = []
    end = len(shape)
    while end:
        start = end - 1
        while start and shape[start].is_constant:
            start -= 1
        runs.insert(0, range(start, end))
        end = start
    return runs


def _size(shape: Axes, run: range) -> Affine:
    return shape[run.start] * prod(shape[k].const for k in run[1:])


def _strides(shape: Axes, run: range) -> list[int]:
    return [prod(shape[k].const for k in range(at + 1, run.stop)) for at in run]


@dataclass(frozen=True, slots=True)
class _Access:
    """One access to a run of axes: its offset, the offsets inside of each axis as they stand, the ranges of dims."""

    op: str
    offset: Affine
    inside: tuple[tuple[int, Affine], ...]
    ranges: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(op: Op, index: Axes, shape: Axes, run: range) -> _Access:
        strides, ranges = _strides(shape, run), ranges_of(op)
        total, inside = Affine(0), list[tuple[int, Affine]]()
        for at, stride in zip(reversed(run), reversed(strides), strict=True):
            inside.append((stride, total))
            total = total + index[at] * stride
        return _Access(op.name, total.simplify(ranges), tuple(inside), ranges)

    def below(self, stride: int) -> Affine | None:
        """Return the part of the offset below a stride, if it is surely from 0 to less than that."""
        rest = Affine(self.offset.const, tuple((a, c) for a, c in self.offset.terms if c % stride))
        span = rest.bounds(self.ranges)
        if span is not None and span[0] // stride == span[1] // stride:
            return rest - span[0] // stride * stride
        known = dict(self.inside).get(stride)  # in the bounds of its axes
        if known is None:
            return None
        apart = known.simplify(self.ranges) - rest
        return rest + apart.const if apart.is_constant and apart.const % stride == 0 else None


def ranges_of(op: Op) -> dict[str, tuple[int, int]]:
    """Return the inclusive ranges of the dims that have a number of at least 1 for an extent, within ``where``."""
    ranges = {d: span for d, span in constant_ranges(op).items() if span[1] >= 0}
    for c in op.where:
        low, high = moved_dim(c.expr), moved_dim(-c.expr)
        if low in ranges and not c.equality:
            ranges[low] = (max(ranges[low][0], -c.expr.const), ranges[low][1])
        elif high in ranges and not c.equality:
            ranges[high] = (ranges[high][0], min(ranges[high][1], c.expr.const))
    return {d: span for d, span in ranges.items() if span[0] <= span[1]}


def _indices(spec: Spec, tensor: str) -> Iterator[tuple[Op, Axes]]:
    for op in spec.ops:
        if op.target == tensor:
            yield op, op.index
        yield from ((op, r.index) for r in op.reads if r.tensor == tensor)


# ---- axes
def _cuts(spec: Spec, t: Tensor, run: range) -> tuple[int, ...]:
    """Return the strides at which axes of a run begin, descending, without the last, 1."""
    size = _size(t.extents, run)
    accesses = [_Access.of(op, index, t.extents, run) for op, index in _indices(spec, t.name)]
    strides = {abs(c) for a in accesses for _, c in a.offset.terms} - {1}
    fields = 8 // info(t.dtype).bits if info(t.dtype).packed and run.stop == len(t.shape) else 1
    chosen: list[int] = []
    for stride in sorted(strides, reverse=True):
        nested = not chosen or chosen[-1] % stride == 0
        fits = nested and size % stride == Affine(0) and size != Affine(stride) and stride % fields == 0
        if fits and all(a.below(stride) is not None for a in accesses):
            chosen.append(stride)
    return tuple(chosen)


def _with_axes(spec: Spec, t: Tensor) -> Spec:
    """Give a tensor the axes that its accesses keep apart."""
    shape = t.extents
    if not shape or not _whole_rows(t, shape) or any(e == Affine(0) for e in shape):
        return spec
    runs = [run for run in _runs(shape) if _size(shape, run) != Affine(1)]
    cuts = [_cuts(spec, t, run) for run in runs]
    new = [e for run, cut in zip(runs, cuts, strict=True) for e in _axes_of(_size(shape, run), cut)]
    if tuple(new) == shape:
        return spec

    def at(op: Op, index: Axes) -> Axes:
        return tuple(
            e for run, cut in zip(runs, cuts, strict=True) for e in _parts(_Access.of(op, index, shape, run), cut)
        )

    def rewritten(op: Op) -> Op:
        index = at(op, op.index) if op.target == t.name else op.index
        return replace(op, index=index, body=map_loads(op.body, t.name, lambda r: replace(r, index=at(op, r.index))))

    made = replace(t, shape=tuple(map(entry, new)))
    ops = tuple(rewritten(op) for op in spec.ops)
    return spec.with_ops(ops, tuple(made if x.name == t.name else x for x in spec.all_tensors))


def _axes_of(size: Affine, cuts: Sequence[int]) -> list[Affine]:
    if not cuts:
        return [size]
    return [size // cuts[0], *(Affine(a // b) for a, b in pairwise(cuts)), Affine(cuts[-1])]


def _parts(access: _Access, cuts: Sequence[int]) -> list[Affine]:
    """Split an offset at the cuts: what is a multiple of each, and less than the one before."""
    parts: list[Affine] = []
    rest = access.offset
    for stride in cuts:
        below = access.below(stride)
        assert below is not None
        parts.append((rest - below) // stride)
        rest = below
    return [*parts, rest]


# ---- dims
def grouped(spec: Spec, free: Collection[str]) -> Spec:
    """Return the spec with axes of the tensors in ``free``, and dims, grouped by their use.

    rewrite: ``for g < 4: for j < 8: y[g, j] = x[8*g + j]`` -> ``for k < 32: y[k] = x[k]``
    requires: nothing; each tensor stays the same row-major array, and the instances keep their order.
    """
    made = _axes(spec.with_ops(tuple(map(simple, spec.ops))), free)
    made = _divided(made, free)
    return _joined(made, free)


def _axes(spec: Spec, free: Collection[str]) -> Spec:
    for t in spec.all_tensors:
        if t.name in free:
            spec = _with_axes(spec, t)
    return spec


def _roughness(spec: Spec) -> int:
    """Count subscripts that are no dim, and floors: what stands in the way of a schedule."""
    total = 0
    for op in spec.ops:
        for e in (*op.index, *(e for r in op.reads for e in r.index)):
            total += not e.is_constant and moved_dim(e) is None
            total += sum(isinstance(a, FloorDiv) for a, _ in e.terms)
    return total


def _divided(spec: Spec, free: Collection[str]) -> Spec:
    """Make two dims of one that subscripts divide, or that other accesses to the same tensor keep apart.

    rewrite: ``for k < 64: y += x[k] * s[k//8]`` -> ``for ko < 8: for ki < 8: y += x[ko, ki] * s[ko]``
    requires: the divisor divides the extent. Dims of a program's results stay whole.
    """
    inner = {t.name for t in spec.temporaries}
    for op in spec.ops:
        for dim in op.dims if op.target in inner else op.reduced:
            if not op.extent(dim).is_constant and _divisors(op, dim) == set():
                continue
            for factor in sorted(_divisors(op, dim) | _demands(spec, op, dim, free), reverse=True):
                if op.extent(dim) % factor != Affine(0) or not factor > 1 or op.extent(dim) == Affine(factor):
                    continue
                parts = split(spec, op.name, dim, factor)
                made = _axes(parts.with_ops(tuple(simple(o) if o.name == op.name else o for o in parts.ops)), free)
                if _roughness(made) <= _roughness(spec):
                    return _divided(made, free)
    return spec


def _divisors(op: Op, dim: str) -> set[int]:
    """Return by what subscripts divide a dim."""
    found: set[int] = set()
    for e in (*op.index, *(e for r in op.reads for e in r.index)):
        found |= {a.divisor for a, _ in e.terms if isinstance(a, FloorDiv) and a.numerator == Affine.dim(dim)}
    return found


def _demands(spec: Spec, op: Op, dim: str, free: Collection[str]) -> set[int]:
    """Return the factors at which other accesses to the temporaries that ``dim`` walks keep their dims apart."""
    found: set[int] = set()
    used = {op.target, *(r.tensor for r in op.reads)}
    for t in spec.temporaries:
        if t.name not in free or t.name not in used:
            continue
        for run in _runs(t.extents):
            accesses = [_Access.of(o, index, t.extents, run) for o, index in _indices(spec, t.name)]
            others = {abs(c) for a in accesses if a.op != op.name for _, c in a.offset.terms}
            for a in accesses:
                step = a.offset.coefficient(Dim(dim)) if a.op == op.name else 0
                found |= {s // step for s in others if step > 0 and s > step and s % step == 0}
    return {f for f in found if op.extent(dim).is_constant and f < op.extent(dim).const}


Pair = tuple[str, str, str]  # an op, and two of its dims that follow one another


def _joined(spec: Spec, free: Collection[str]) -> Spec:
    """Make one dim of two neighbours that are used as one, where no other access keeps them apart.

    rewrite: ``for g < 4: for j < 8: y += x[8*g + j]`` -> ``for k < 32: y += x[k]``
    requires: everything in the op is a function of ``n*a + b``, with ``n`` the extent of ``b``.
    """
    pairs = _agreed(spec, free, [p for op in spec.ops for p in _pairs(spec, op, free)])
    if not pairs:
        return spec
    done: set[str] = set()
    made = spec
    for op, a, b in pairs:  # one of an op at a time: three dims are two pairs
        if op not in done:
            made = _join(made, op, a, b)
            done.add(op)
    made = _axes(made, free)
    return _joined(made, free) if _roughness(made) <= _roughness(spec) else spec


def _forms(spec: Spec, op: Op, free: Collection[str]) -> Iterator[Affine]:
    """Yield all that an op makes of its dims: offsets into free tensors, other subscripts, values, constraints."""
    for name, index in dict.fromkeys([(op.target, op.index), *((r.tensor, r.index) for r in op.reads)]):
        t = spec.tensor(name)
        if name in free and _whole_rows(t, t.extents):
            yield from (_Access.of(op, index, t.extents, run).offset for run in _runs(t.extents))
        else:
            yield from index
    yield from (node.expr for node in walk(op.body) if isinstance(node, Index))
    yield from (c.expr for c in op.where)


def _pairs(spec: Spec, op: Op, free: Collection[str]) -> list[Pair]:
    """Return the pairs of neighbours that ``op`` uses as one dim."""
    forms: list[Affine] | None = None
    found: list[Pair] = []
    for a, b in pairwise(op.dims):
        n = op.extent(b)
        if not n.is_constant or n.const < 2 or (op.extent(a).is_constant and op.extent(a).const < 1):
            continue
        forms = list(_forms(spec, op, free)) if forms is None else forms
        if all(_as_one(e, a, b, n.const) for e in forms):
            found.append((op.name, a, b))
    return found


def _as_one(e: Affine, a: str, b: str, n: int) -> bool:
    if e.coefficient(Dim(a)) != n * e.coefficient(Dim(b)):
        return False
    return all(_as_one(f.numerator, a, b, n) for f, _ in e.terms if isinstance(f, FloorDiv))


def _agreed(spec: Spec, free: Collection[str], pairs: list[Pair]) -> list[Pair]:
    """Return the pairs that no other access keeps apart, once all pairs that remain are one."""
    while pairs:
        gone = {(op, a) for op, a, _ in pairs}
        apart: dict[tuple[str, int], set[tuple[str, int]]] = {}
        for t in spec.all_tensors:
            if t.name not in free:
                continue
            for at, run in enumerate(_runs(t.extents)):
                strides: set[tuple[str, int]] = set()
                for op, index in _indices(spec, t.name):
                    access = _Access.of(op, index, t.extents, run)
                    strides |= {
                        (op.name, abs(c)) for a, c in access.offset.terms
                        if not (isinstance(a, Dim) and (op.name, a.name) in gone)
                    }  # fmt: skip
                apart[t.name, at] = strides
        kept = [p for p in pairs if not _is_apart(spec, free, p, apart)]
        if len(kept) == len(pairs):
            return kept
        pairs = kept
    return pairs


def _is_apart(
    spec: Spec, free: Collection[str], pair: Pair, apart: Mapping[tuple[str, int], set[tuple[str, int]]]
) -> bool:
    name, a, _ = pair
    op = spec.op(name)
    for tensor, index in [(op.target, op.index), *((r.tensor, r.index) for r in op.reads)]:
        if tensor not in free:
            continue
        t = spec.tensor(tensor)
        for at, run in enumerate(_runs(t.extents)):
            step = abs(_Access.of(op, index, t.extents, run).offset.coefficient(Dim(a)))
            if step and any(c == step and o != name for o, c in apart[tensor, at]):
                return True
    return False


def _join(spec: Spec, name: str, a: str, b: str) -> Spec:
    op = spec.op(name)
    n = op.extent(b).const
    both = fresh([d for d in op.dims if d not in (a, b)], f"{a}_{b}")
    at = op.dims.index(a)
    whole = Affine.dim(both)
    made = substitute(op, {a: whole // n, b: whole % n})
    made = simple(
        replace(
            made,
            dims=(*op.dims[:at], both, *op.dims[at + 2 :]),
            extents=(*op.extents[:at], op.extents[at] * n, *op.extents[at + 2 :]),
        )
    )
    return spec.with_ops(tuple(made if o.name == name else o for o in spec.ops))


def simple(op: Op) -> Op:
    """Simplify floors in subscripts, index values and constraints with the ranges of dims."""
    ranges = ranges_of(op)

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load):
            return replace(node, index=tuple(e.simplify(ranges) for e in node.index))
        return replace(node, expr=node.expr.simplify(ranges)) if isinstance(node, Index) else node

    return replace(
        op,
        index=tuple(e.simplify(ranges) for e in op.index),
        body=map_scalar(op.body, leaf),
        where=tuple(Constraint(c.expr.simplify(ranges), c.equality) for c in op.where),
    )

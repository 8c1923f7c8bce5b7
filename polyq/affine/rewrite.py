"""Rewrites from spec to spec.

Each keeps the meaning of the program in exact arithmetic: ``split`` and ``inline`` also keep every
rounding; ``partial_sums`` and ``factor`` change the order of a sum or move a factor out of it, so they need a numerics
mode that allows it. Rewrites only ever add temporaries; inputs, outputs and their meaning stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.program import identity
from polyq.affine.scalar import Cast, Const, Index, Load, Scalar, map_scalar, substitute_dims
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["accumulate", "inlinable", "inline", "partial_sums", "split", "widen_sums"]


def fresh(taken: Iterable[str], stem: str) -> str:
    """Return ``stem``, or the first of ``stem_2``, ``stem_3``, ... that is not taken."""
    used = set(taken)
    candidate, count = stem, 1
    while candidate in used:
        count += 1
        candidate = f"{stem}_{count}"
    return candidate


def tensor_names(spec: Spec) -> set[str]:
    """Return all names that a new tensor or op must differ from."""
    return {t.name for t in spec.all_tensors} | {op.name for op in spec.ops}


def entry(e: Affine) -> int | str:
    """Return a shape entry."""
    return e.const if e.is_constant else str(e)


def substitute(op: Op, dims: Mapping[str, Affine]) -> Op:
    """Return the op with dims replaced in subscripts, body and constraints (``dims`` and ``extents`` stay)."""
    return replace(
        op,
        index=tuple(e.substitute(dims) for e in op.index),
        body=substitute_dims(op.body, dict(dims)),
        where=tuple(c.substitute(dims) for c in op.where),
    )


def split(spec: Spec, name: str, dim: str, factor: int, outer: str | None = None, inner: str | None = None) -> Spec:
    """Replace a dim by two.

    rewrite: ``for k < K: S(k)`` -> ``for ko < ceil(K/f): for ki < f where f*ko + ki < K: S(f*ko + ki)``
    requires: nothing; the instances and their order stay the same.
    """
    op = spec.op(name)
    if dim not in op.dims:
        raise ScheduleError(f"split({name!r}, {dim!r}): op {name} has the dims {', '.join(op.dims)}")
    if factor < 1:
        raise ScheduleError(f"split({name!r}, {dim!r}, {factor}): the factor must be at least 1")
    at = op.dims.index(dim)
    outer = outer or fresh(op.dims, f"{dim}o")
    inner = inner or fresh((*op.dims, outer), f"{dim}i")
    point = Affine.dim(outer) * factor + Affine.dim(inner)
    extent = op.extents[at]
    changed = substitute(op, {dim: point})
    where = changed.where
    if extent % factor != Affine(0):
        where = (*where, Constraint(extent - 1 - point))
    ranges = {inner: (0, factor - 1)}
    changed = replace(
        changed,
        dims=(*op.dims[:at], outer, inner, *op.dims[at + 1 :]),
        extents=(*op.extents[:at], (extent + factor - 1) // factor, Affine(factor), *op.extents[at + 1 :]),
        where=where,
    )
    return replace_op(spec, name, (simplified(changed, ranges),))


def simplified(op: Op, ranges: Mapping[str, tuple[int, int]]) -> Op:
    """Simplify floors in subscripts with known ranges of dims."""

    def leaf(node: Const | Index | Load) -> Scalar:
        return replace(node, index=tuple(e.simplify(ranges) for e in node.index)) if isinstance(node, Load) else node

    return replace(op, index=tuple(e.simplify(ranges) for e in op.index), body=map_scalar(op.body, leaf))


def replace_op(spec: Spec, name: str, ops: tuple[Op, ...], tensors: tuple[Tensor, ...] = ()) -> Spec:
    """Return the spec with ops, and the tensors that they need, in place of one."""
    at = next(i for i, op in enumerate(spec.ops) if op.name == name)
    return spec.with_ops((*spec.ops[:at], *ops, *spec.ops[at + 1 :]), (*spec.all_tensors, *tensors))


def inline(spec: Spec, tensor: str) -> Spec:
    """Compute a temporary where it is read.

    rewrite: ``d[i + c] = f(i); y += d[g(j)]`` -> ``y += f(g(j) - c)``
    requires: 1. ``tensor`` is a temporary with one writer, an assignment; 2. its subscripts are distinct dims plus
    constants, all of the writer's dims; 3. the writer's inputs are not written between writer and reader; 4. every
    read cell is written.
    """
    writer = inlinable(spec, tensor)
    if isinstance(writer, str):
        raise ScheduleError(f"inline({tensor!r}): {writer}")
    dims = [next(iter(e.dims())) for e in writer.index]
    offsets = [e.const for e in writer.index]

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load) and node.tensor == tensor:
            at = {d: e - c for d, e, c in zip(dims, node.index, offsets, strict=True)}
            return substitute_dims(writer.body, at)
        return node

    ops = tuple(replace(op, body=map_scalar(op.body, leaf)) for op in spec.ops if op.name != writer.name)
    return spec.with_ops(ops, tuple(t for t in spec.all_tensors if t.name != tensor))


def inlinable(spec: Spec, tensor: str) -> Op | str:
    """Return the writer of ``tensor`` if its body can stand where it is read, else the reason why not."""
    writers = spec.writers(tensor)
    if tensor not in {t.name for t in spec.temporaries}:
        return f"{tensor} is an input or an output"
    if len(writers) != 1 or writers[0].reduce is not None or writers[0].where:
        return f"{tensor} is written by {len(writers)} op(s), with a reduction or a constraint"
    writer = writers[0]
    dims = [moved_dim(e) for e in writer.index]
    if None in dims or not len(dims) == len(set(dims)) == len(writer.dims):
        return f"the subscripts of {tensor} in its writer are not its dims, each once"
    if any(r.tensor == tensor for r in writer.reads):
        return f"{tensor} is read by its own writer"
    start = spec.ops.index(writer)
    sources = {r.tensor for r in writer.reads}
    last = max((i for i, op in enumerate(spec.ops) if any(r.tensor == tensor for r in op.reads)), default=start)
    if any(op.target in sources for op in spec.ops[start + 1 : last + 1]):
        return f"what {tensor} is computed from is written before its last reader"
    return writer


def moved_dim(e: Affine) -> str | None:
    """Return the dim that ``e`` is, but for a constant, or ``None``.

    >>> moved_dim(Affine.dim("i") + 1), moved_dim(Affine.dim("i") * 2)
    ('i', None)
    """
    dims = [a.name for a, c in e.terms if isinstance(a, Dim) and c == 1]
    return dims[0] if len(e.terms) == len(dims) == 1 else None


def partial_sums(spec: Spec, name: str, keep: Sequence[str], tensor: str | None = None, outer: bool = False) -> Spec:
    """Split a reduction in two: partial results that keep some reduced dims, then their combination.

    The kept dims are the last ones of the partial results, with ``outer`` the first.

    rewrite: ``y[p] += f(p, k, l)`` -> ``y.part[p, l] += f(p, k, l); y[p] += y.part[p, l]``
    requires: an associative and commutative operator (floats: a mode that allows another order).
    proof: the instances (p, k, l) map one to one to the partial sums' updates, each of which enters ``y[p]`` once.
    """
    op = spec.op(name)
    reduced = op.reduced
    if op.reduce is None or not set(keep) <= set(reduced):
        raise ScheduleError(
            f"partial_sums({name!r}, {list(keep)}): {name} reduces over ({', '.join(reduced)}) with {op.reduce}"
        )
    result = tuple(d for d in op.dims if d not in reduced)
    kept = (*keep, *result) if outer else (*result, *keep)
    part = tensor or fresh(tensor_names(spec), f"{op.target}.part")
    dtype = spec.tensor(op.target).dtype
    extents = tuple(op.extent(d) for d in kept)
    index = tuple(Affine.dim(d) for d in kept)
    start = Op(f"{part}.init", kept, extents, part, index, identity(op.reduce, dtype))
    inner_dims = (*kept, *(d for d in op.dims if d not in kept))
    inner = replace(
        op, name=part, dims=inner_dims, extents=tuple(op.extent(d) for d in inner_dims), target=part, index=index
    )
    outside = tuple(c for c in op.where if c.expr.dims() <= set(kept))
    total = replace(op, dims=kept, extents=extents, body=Load(part, index, dtype), where=outside)
    return replace_op(spec, name, (start, inner, total), (Tensor(part, dtype, tuple(map(entry, extents))),))


def accumulate(spec: Spec, tensor: str, local: str | None = None) -> Spec:
    """Give a tensor's writers a private copy, and copy the result once.

    rewrite: ``y.init; y[p] += f`` -> ``y.acc.init; y.acc[p] += f; y[p] = y.acc[p]``
    requires: nothing; where the first writer does not fill the whole box, the copy starts from the tensor's own cells.
    """
    writers = spec.writers(tensor)
    if not writers:
        raise ScheduleError(f"accumulate({tensor!r}): no op writes {tensor}; name a result or a temporary")
    t = spec.tensor(tensor)
    local = local or fresh(tensor_names(spec), f"{tensor}.acc")
    dims = tuple(f"d{i}" for i in range(len(t.shape)))
    index = tuple(Affine.dim(d) for d in dims)
    named = [d for e in writers[-1].index for d in e.dims() if e == Affine.dim(d)]
    if len(set(named)) == len(dims):  # the copy's dims are called as those of the last writer, where each names one
        dims, index = tuple(named), writers[-1].index

    def leaf(node: Const | Index | Load) -> Scalar:
        return replace(node, tensor=local) if isinstance(node, Load) and node.tensor == tensor else node

    names = {
        op.name: (f"{local}.init" if op.name == f"{tensor}.init" else local if op.name == tensor else op.name)
        for op in writers
    }
    ops: list[Op] = []
    inside = False  # between the first and the last writer, readers see the copy
    for op in spec.ops:
        inside = inside or op is writers[0]
        body = map_scalar(op.body, leaf) if inside else op.body
        if op is writers[0] and not fills(op, t):
            load = fresh(tensor_names(spec), f"{local}.load")
            ops.append(Op(load, dims, t.extents, local, index, Load(tensor, index, t.dtype)))
        if op.target == tensor:
            ops.append(replace(op, name=names[op.name], target=local, body=body))
            if op is writers[-1]:
                ops.append(Op(tensor, dims, t.extents, tensor, index, Load(local, index, t.dtype)))
                inside = False
        else:
            ops.append(replace(op, body=body))
    return spec.with_ops(tuple(ops), (*spec.all_tensors, Tensor(local, t.dtype, t.shape)))


def fills(op: Op, tensor: Tensor) -> bool:
    """Whether the op assigns every cell of ``tensor``, each once, without reading it."""
    dims = [next(iter(e.dims())) for e in op.index if len(e.dims()) == 1 and e == Affine.dim(next(iter(e.dims())))]
    whole = len(dims) == len(op.index) == len(set(dims)) == len(op.dims)
    if not whole or op.reduce is not None or op.where:
        return False
    return all(op.extent(d) == e for d, e in zip(dims, tensor.extents, strict=True))


def constant_ranges(op: Op) -> dict[str, tuple[int, int]]:
    """Return the inclusive ranges of the dims whose extents are numbers."""
    return {d: (0, e.const - 1) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant}


def widen_sums(spec: Spec) -> Spec:
    """Let sums and products of f16 and bf16 accumulate in f32 and round once, as they are defined to.

    rewrite: ``y[p] += f`` -> ``y.wide[p] = f32(y[p]); y.wide[p] += f32(f); y[p] = f16(y.wide[p])``
    requires: nothing; an op that reads its own target rounds at each instance, and stays.
    """
    for op in spec.ops:
        t = spec.tensor(op.target)
        if op.reduce not in ("+", "*") or t.dtype not in ("f16", "bf16") or any(r.tensor == t.name for r in op.reads):
            continue
        taken = tensor_names(spec)
        wide = fresh(taken, f"{t.name}.wide")
        load, store = fresh(taken, f"{wide}.load"), fresh(taken, f"{op.name}.round")
        dims = tuple(f"d{i}" for i in range(len(t.shape)))
        cell = tuple(map(Affine.dim, dims))
        ops = (
            Op(load, dims, t.extents, wide, cell, Cast(Load(t.name, cell, t.dtype), "f32")),
            replace(op, name=wide, target=wide, body=Cast(op.body, "f32")),
            Op(store, dims, t.extents, t.name, cell, Cast(Load(wide, cell, "f32"), t.dtype)),
        )
        spec = replace_op(spec, op.name, ops, (Tensor(wide, "f32", t.shape),))
    return spec

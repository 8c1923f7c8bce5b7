"""Canonical forms: what different texts of one program have in common.

Every step goes from spec to spec and keeps each instance's value and the order in which a cell is updated, so that the
results are equal bit by bit. None looks at what a program computes: dims and axes of extent 1 are projected out, copies
are composed into the accesses of what reads them (so a collapse, an expansion, a transpose is no pass of its own), and
:mod:`polyq.affine.regroup` chooses how dims and axes are grouped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.layout_inverse import inverse_of
from polyq.affine.regroup import grouped, map_loads, simple
from polyq.affine.rewrite import moved_dim, substitute
from polyq.affine.scalar import Const, Load, Scalar, substitute_dims
from polyq.affine.sets import SearchLimit, limited
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["canonical", "stored"]

#: a program is done when a round changes nothing; each round removes a dim, an axis, a copy or a floor
MOST_ROUNDS = 32
#: isl operations that the inverse of a copy may take
OPERATIONS = 200_000


def canonical(spec: Spec) -> Spec:
    """Return the program without dims of extent 1, constant subscripts and reshapes that it can do without.

    Inputs and outputs keep names, shapes and order; :func:`polyq.interpret` gives the same results, bit by bit. A
    reduction whose only dim had extent 1 still combines with the start value.

    >>> from polyq.affine.notation import parse
    >>> print(canonical(parse('''
    ...     c[32 * g + j] = x[0, g, j]
    ...     y[b, n] += c[k] * w[n, k] where b < 1
    ... ''', x=("f32", (1, 4, 32)), w=("f32", (8, 128)))))
    x: f32[1, 4, 32]
    w: f32[8, 128]
    y[0, n] = 0.0
    y[0, n] += x[0, ko, ki] * w[n, ki + 32*ko]
    """
    return _fixpoint(spec, frozenset())


def stored(spec: Spec) -> Spec:
    """Return the canonical form of what the program does to memory: tensors of other shapes, the same row-major arrays.

    A tensor of shape ``(1, 32, 128)`` that one dim walks is one of shape ``(4096,)`` there. Arrays of the shapes that
    ``spec`` declares serve as they are: :func:`polyq.affine.regroup.same_storage` holds for each input and output.

    >>> from polyq.affine.notation import parse
    >>> print(stored(parse("y[b, i, j] = 2 * x[b, i, j]", x=("f32", (1, 4, 32)))))
    x: f32[128]
    y[i_j] = 2.0 * x[i_j]
    """
    return _fixpoint(spec, frozenset((*spec.input_names, *spec.output_names)))


def _fixpoint(spec: Spec, regrouped: Collection[str]) -> Spec:
    for _ in range(MOST_ROUNDS):
        made = _without_unit_axes(_without_unit_dims(spec))
        made = _forwarded(_composed(made))
        made = grouped(made, {*regrouped, *(t.name for t in made.temporaries)})
        if made == spec:
            break
        spec = made
    return spec


# ---- extent 1
def _without_unit_dims(spec: Spec) -> Spec:
    """Project out dims of extent 1. rewrite: ``for b < 1: y[b] += f(b)`` -> ``y[0] += f(0)``."""
    return spec.with_ops(tuple(_projected(op) for op in spec.ops))


def _projected(op: Op) -> Op:
    one = Affine(1)
    gone = {d: Affine(0) for d, e in zip(op.dims, op.extents, strict=True) if e == one}
    where = tuple(c for c in op.where if not _always(c))
    if not gone:
        return op if where == op.where else replace(op, where=where)
    kept = [(d, e) for d, e in zip(op.dims, op.extents, strict=True) if d not in gone]
    made = substitute(replace(op, where=where), gone)
    dims, extents = tuple(d for d, _ in kept), tuple(e for _, e in kept)
    return replace(made, dims=dims, extents=extents, where=tuple(c for c in made.where if not _always(c)))


def _always(c: Constraint) -> bool:
    return c.expr.is_constant and (c.expr.const == 0 or (c.expr.const > 0 and not c.equality))


def _without_unit_axes(spec: Spec) -> Spec:
    """Drop axes of temporaries that have one cell, or of which one cell is used."""
    for t in spec.temporaries:
        accesses = [op.index for op in spec.writers(t.name)]
        accesses += [r.index for op in spec.ops for r in op.reads if r.tensor == t.name]
        kept = [
            k for k, e in enumerate(t.extents)
            if e != Affine(1) and (not accesses or len({a[k] for a in accesses}) > 1 or not accesses[0][k].is_constant)
        ]  # fmt: skip
        if len(kept) < len(t.shape):
            spec = _with_axes(spec, t, kept)
    return spec


def _with_axes(spec: Spec, t: Tensor, kept: list[int]) -> Spec:
    def at(index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        return tuple(index[k] for k in kept)

    ops = tuple(
        replace(
            op,
            index=at(op.index) if op.target == t.name else op.index,
            body=map_loads(op.body, t.name, lambda r: replace(r, index=at(r.index))),
        )
        for op in spec.ops
    )
    narrow = replace(t, shape=tuple(t.shape[k] for k in kept))
    return spec.with_ops(ops, tuple(narrow if x.name == t.name else x for x in spec.all_tensors))


# ---- copies
def _composed(spec: Spec) -> Spec:
    """Let readers of a copy read what it was copied from.

    rewrite: ``c[32*g + j] = x[g, j]; y += c[k]`` -> ``y += x[k//32, k%32]``
    requires: 1. the copy is a temporary with one writer, which assigns a load or a constant; 2. the writer's instance
    is a quasi-affine function of the cell; 3. nothing writes the source from the copy to its last reader.
    """
    for t in spec.temporaries:
        writer = _copy_of(spec, t.name)
        values = None if writer is None else _instance_of_cell(writer)
        if writer is not None and values is not None:
            spec = _reading_source(spec, t.name, writer, values)
    return spec


def _copy_of(spec: Spec, tensor: str) -> Op | None:
    """Return the writer of a temporary that merely copies what stays the same until its last reader."""
    writers = spec.writers(tensor)
    if len(writers) != 1 or writers[0].reduce is not None:
        return None
    writer, body = writers[0], writers[0].body
    if not isinstance(body, Load):
        return writer if isinstance(body, Const) else None
    start = spec.ops.index(writer)
    readers = [i for i, op in enumerate(spec.ops) if any(r.tensor == tensor for r in op.reads)]
    between = spec.ops[start + 1 : max(readers, default=start) + 1]
    return None if body.tensor == tensor or any(op.target == body.tensor for op in between) else writer


def _instance_of_cell(op: Op) -> dict[str, Affine] | None:
    """Return each dim of an assignment as an expression of the cell ``s0, s1, ...`` that it writes; ``None``: no form.

    Only cells that are written matter: they are all that is read.
    """
    digits = _digits(op.dims, op.extents, op.index)
    if digits is not None or not op.dims:
        return digits or {}
    try:
        with limited(OPERATIONS):
            return dict(zip(op.dims, inverse_of(AffineMap(op.dims, op.index), op.extents), strict=True))
    except (SpecError, SearchLimit):
        return None


def _digits(dims: tuple[str, ...], extents: tuple[Affine, ...], index: tuple[Affine, ...]) -> dict[str, Affine] | None:
    """Invert subscripts that are numbers of dims in a mixed radix, plus constants; each dim in one of them."""
    found: dict[str, Affine] = {}
    size = dict(zip(dims, extents, strict=True))
    for k, e in enumerate(index):
        terms = sorted(((c, a) for a, c in e.terms), key=lambda term: -term[0])
        rest, above = Affine.dim(f"s{k}") - e.const, 0
        for position, (c, a) in enumerate(terms):
            name = moved_dim(Affine.of(a))
            below = terms[position + 1][0] if position + 1 < len(terms) else 0
            if name is None or name in found or c < 1 or (below and c % below):
                return None
            n = size[name]
            if above and not (n.is_constant and n.const * c <= above):
                return None
            digit = rest // c
            found[name] = digit % (above // c) if above else digit
            above = c
    return found if len(found) == len(dims) else None


def _reading_source(spec: Spec, tensor: str, writer: Op, values: Mapping[str, Affine]) -> Spec:
    def copied(load: Load) -> Scalar:
        cell = {f"s{k}": e for k, e in enumerate(load.index)}
        return substitute_dims(writer.body, {d: e.substitute(cell) for d, e in values.items()})

    ops = tuple(
        simple(replace(op, body=map_loads(op.body, tensor, copied))) if tensor in {r.tensor for r in op.reads} else op
        for op in spec.ops
        if op is not writer
    )
    return spec.with_ops(ops, tuple(t for t in spec.all_tensors if t.name != tensor))


def _forwarded(spec: Spec) -> Spec:
    """Let what is only computed to be copied into an output be computed there.

    rewrite: ``t[k] += f(k); y[g, j] = t[32*g + j]`` -> ``y[k//32, k%32] += f(k)``
    requires: 1. the copy is the only writer of an output that is no input, and the only reader of the temporary; 2. it
    copies each of its cells once.
    """
    for copy in spec.ops:
        if not isinstance(copy.body, Load) or copy.reduce is not None or copy.where:
            continue
        t, y = spec.tensor(copy.body.tensor), spec.tensor(copy.target)
        users = [op for op in spec.readers(t.name) if op.target != t.name]
        mine = t.name in {x.name for x in spec.temporaries} and users == [copy] and t.dtype == y.dtype
        open_to_it = y.name in spec.output_names and y.name not in spec.input_names and spec.writers(y.name) == (copy,)
        after = any(op.target == t.name for op in spec.ops[spec.ops.index(copy) :])
        if not mine or not open_to_it or after:
            continue
        place = _cell_of_cell(copy, t)
        if place is not None:
            return _forwarded(_written_there(spec, copy, t.name, place))
    return spec


def _cell_of_cell(copy: Op, source: Tensor) -> tuple[Affine, ...] | None:
    """Return where a copy puts the cell ``s0, s1, ...`` of its source, if it puts each in one place."""
    assert isinstance(copy.body, Load)
    whole = [e for e in (*copy.extents, *source.extents) if not e.is_constant]
    if whole:
        dims = [moved_dim(e) for e in copy.body.index]
        boxed = [Affine.dim(d or "") for d in dims] == list(copy.body.index) and sorted(map(str, dims)) == sorted(
            copy.dims
        )
        if not boxed or [copy.extent(d or "") for d in dims] != list(source.extents):
            return None
    elif prod(e.const for e in copy.extents) != prod(e.const for e in source.extents):
        return None
    values = _instance_of_cell(replace(copy, target=source.name, index=copy.body.index))
    return None if values is None else tuple(e.substitute(values) for e in copy.index)


def _written_there(spec: Spec, copy: Op, tensor: str, place: tuple[Affine, ...]) -> Spec:
    """Rename ``tensor`` to the copy's target, with its cells at their place there."""

    def at(index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        cell = {f"s{k}": e for k, e in enumerate(index)}
        return tuple(e.substitute(cell) for e in place)

    def moved(load: Load) -> Scalar:
        return replace(load, tensor=copy.target, index=at(load.index))

    names = {op.name for op in spec.ops if op is not copy}
    ops: list[Op] = []
    for op in spec.ops:
        if op is copy:
            continue
        if op.target == tensor:
            wanted = copy.target + op.name.removeprefix(tensor) if op.name.startswith(tensor) else op.name
            name = op.name if wanted in names else wanted
            body = map_loads(op.body, tensor, moved)
            ops.append(simple(replace(op, name=name, target=copy.target, index=at(op.index), body=body)))
        else:
            ops.append(op)
    return spec.with_ops(tuple(ops), tuple(t for t in spec.all_tensors if t.name != tensor))

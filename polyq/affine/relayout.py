"""Rewrites that change how a tensor is stored, and layouts of one tensor carried to another.

:func:`relayout` stores a temporary in another layout: the subscripts of its writers and readers change, and nothing is
moved. :func:`packed_copy` lets the readers of a tensor read a copy in another layout. :func:`carried` answers which
layout an operand has to have so that it lies as a tensor that is computed from it does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from polyq.affine.copies import copy_of
from polyq.affine.dtypes import is_float
from polyq.affine.errors import ScheduleError, SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.layout import Layout, with_dims
from polyq.affine.layout_inverse import box_of, inverse_of, small_floors
from polyq.affine.rewrite import constant_ranges, fresh, simplified, tensor_names
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar, substitute_dims
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["carried", "packed_copy", "relayout", "stored"]


def fitting(spec: Spec, tensor: str, layout: Layout) -> Tensor:
    """Return the tensor if the layout is one of its shape; :class:`ScheduleError` otherwise."""
    t = spec.tensor(tensor)
    if Tensor("", "u8", layout.shape).extents != t.extents:
        raise ScheduleError(
            f"pack({tensor!r}): {t} was given a layout of the shape ({_listed(layout.shape)}): {layout}"
        )
    return t


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def packed_copy(spec: Spec, tensor: str, layout: Layout, name: str | None = None) -> Spec:
    """Let all readers of a tensor read a copy in another layout.

    rewrite: ``y[n] += w[n, k]`` -> ``w.packed[s0, s1, s2] = w[32*s0 + s1, s2]; y[n] += w.packed[n//32, n%32, k]``
    requires: 1. somebody reads the tensor; 2. nothing writes it after its first reader. Padding is neither written nor
    read.
    """
    t = fitting(spec, tensor, layout)
    readers = [op.name for op in spec.readers(tensor)]
    if not readers:
        raise ScheduleError(f"pack({tensor!r}): nothing reads {tensor}")
    place = with_dims(layout, [f"e{i}" for i in range(len(t.shape))]).place
    return copy_of(
        spec, tensor, readers, layout.extents, layout.inverse_map.dims, layout.source, place, name, layout.holds_element
    )


def stored(spec: Spec, tensor: str, layout: Layout) -> Spec:
    """Return the program that takes or gives ``tensor`` as it lies in memory: ``layout.pack`` of what it was.

    The padding of an output holds the layout's ``fill``; that of an input is never read. :class:`SpecError` for a
    layout of another shape, or for an output that is updated in place.

    >>> from polyq.affine.notation import parse
    >>> spec = parse("y[i] = 2 * x[i]", x=("f32", (8,)))
    >>> print(stored(spec, "x", Layout.of((8,)).tile((0,), (4,)).permute((1, 0))))
    x: f32[4, 2]
    y[i] = 2.0 * x[i%4, i//4]
    """
    try:
        fitting(spec, tensor, layout)
    except ScheduleError as error:
        raise SpecError(str(error)) from None
    writers = spec.writers(tensor)
    if tensor in spec.input_names and writers:
        raise SpecError(f"stored({tensor!r}): {tensor} is read and written in place; store an input or an output")
    made = relayout(spec, tensor, layout, [op.name for op in writers])
    if not writers or not layout.padded:
        return made
    t, at = made.tensor(tensor), next(i for i, op in enumerate(made.ops) if op.target == tensor)
    cells = layout.inverse_map.dims
    value = Const(float(layout.fill) if is_float(t.dtype) else int(layout.fill), t.dtype)
    index = tuple(map(Affine.dim, cells))
    fill = Op(fresh(tensor_names(made), f"{tensor}.padding"), cells, t.extents, tensor, index, value)
    return made.with_ops((*made.ops[:at], fill, *made.ops[at:]))


def relayout(spec: Spec, tensor: str, layout: Layout, keep: Collection[str] = ()) -> Spec:
    """Store a temporary in another layout.

    The loops of a writer that assigns one cell an instance follow the storage, unless ``keep`` names it.

    rewrite: ``d[n] = f(n); y += d[n]`` -> ``d[s0, s1] = f(32*s0 + s1); y += d[n//32, n%32]``
    requires: the tensor is a temporary. The instances of each writer stay the same, and those that update one cell keep
    their order; cells that no element has are neither written nor read.
    """
    t = fitting(spec, tensor, layout)
    place = with_dims(layout, [f"e{i}" for i in range(len(t.shape))]).place

    def at_place(index: Sequence[Affine]) -> tuple[Affine, ...]:
        at = {f"e{i}": e for i, e in enumerate(index)}
        return tuple(e.substitute(at) for e in place)

    def leaf(node: Const | Index | Load) -> Scalar:
        return replace(node, index=at_place(node.index)) if isinstance(node, Load) and node.tensor == tensor else node

    ops: list[Op] = []
    for op in spec.ops:
        made = op
        if op.target == tensor:
            own = any(r.tensor == tensor for r in op.reads)
            follows = not own and op.name not in keep and _assigns_plainly(op)
            made = _along_storage(op, layout) if follows else replace(op, index=at_place(op.index))
        if made is not op or any(r.tensor == tensor for r in op.reads):
            made = replace(made, body=map_scalar(made.body, leaf))
            made = simplified(made, constant_ranges(made))
        ops.append(made)
    tensors = tuple(replace(x, shape=layout.storage) if x.name == tensor else x for x in spec.all_tensors)
    return spec.with_ops(tuple(ops), tensors)


def _assigns_plainly(op: Op) -> bool:
    """Whether the subscripts of the target are dims, each once."""
    dims = [next(iter(e.dims())) for e in op.index if len(e.dims()) == 1 and e == Affine.dim(next(iter(e.dims())))]
    return len(dims) == len(op.index) == len(set(dims))


def _along_storage(op: Op, layout: Layout) -> Op:
    """Return the op with the cells of the storage for the dims of its target, which stand first."""
    names = _apart(layout.inverse_map.dims, op.dims)
    renamed = {old: Affine.dim(new) for old, new in zip(layout.inverse_map.dims, names, strict=True)}
    single = {new: Affine(0) for new, n in zip(names, layout.extents, strict=True) if n == Affine(1)}
    source = [e.substitute(renamed).substitute(single) for e in layout.source]
    result = [next(iter(e.dims())) for e in op.index]
    values = dict(zip(result, source, strict=True))
    rest = [d for d in op.dims if d not in values]
    where = [c.substitute(values) for c in op.where]
    body = substitute_dims(op.body, values)
    if op.reduce is not None or not isinstance(body, Const):  # a constant may fill the padding as well
        where += [c.substitute(renamed) for c in layout.holds_element]
    for d, e, whole in zip(result, source, Tensor("", "u8", layout.shape).extents, strict=True):
        if op.extent(d) != whole:
            where.append(Constraint(op.extent(d) - 1 - e))
    return replace(
        op,
        dims=(*names, *rest),
        extents=(*layout.extents, *(op.extent(d) for d in rest)),
        index=tuple(map(Affine.dim, names)),
        body=body,
        where=tuple(where),
    )


def _apart(names: Sequence[str], taken: Collection[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return found


# ---- from tensor to tensor
def carried(spec: Spec, tensor: str, layout: Layout, to: str) -> Layout:
    """Return the layout of ``to`` under which its elements lie as those of ``tensor`` that they meet in an op.

    A storage axis that depends on dims that ``to`` lacks falls away, as for the scales of a group; so the packed scales
    have the axes of the packed weights but those along the group. An axis along which each element of ``to`` meets a
    run of cells, as that of ``k`` does for scales of ``k//128``, becomes the axis of these runs. The two tensors meet
    in an op, or are joined by ops over other tensors. :class:`ScheduleError` with elements where ``to`` would not be
    laid out by what is left.
    """
    fitting(spec, tensor, layout)
    path = _path(spec, tensor, to)
    for op, here, there in path:
        layout = _across(spec, op, here, layout, there)
    return layout


def _accesses(op: Op) -> list[tuple[str, tuple[Affine, ...]]]:
    return [(op.target, op.index), *((r.tensor, r.index) for r in op.reads)]


def _path(spec: Spec, tensor: str, to: str) -> list[tuple[Op, str, str]]:
    """Return the shortest chain of ops from one tensor to the other."""
    paths: dict[str, list[tuple[Op, str, str]]] = {tensor: []}
    frontier = [tensor]
    while frontier and to not in paths:
        here = frontier.pop(0)
        for op in spec.ops:
            names = [name for name, _ in _accesses(op)]
            for there in names if here in names else []:
                if there not in paths:
                    paths[there] = [*paths[here], (op, here, there)]
                    frontier.append(there)
    if to not in paths:
        raise ScheduleError(f"pack({tensor!r}): no op joins {tensor} and {to!r}")
    return paths[to]


def _across(spec: Spec, op: Op, here: str, layout: Layout, there: str) -> Layout:
    """Carry a layout of one operand of an op to another one."""
    index = dict(reversed(_accesses(op)))
    box, names = Domain.make(op.dims, op.domain), tuple(f"d{i}" for i in range(len(index[there])))
    meets = Relation.function(box, index[there], names).inverse()
    place, storage, lost = list[Affine](), list[int | str](), list[str]()
    values = dict(zip(layout.dims, index[here], strict=True))
    for e, size in zip(layout.place, layout.storage, strict=True):
        to_cell = meets.compose(Relation.function(box, [e.substitute(values)], ["s"]))
        found = to_cell.as_affine()
        if found is None and isinstance(size, int) and (runs := _runs(to_cell, size)) is not None:
            found, size = runs
        if found is not None:
            place += map(small_floors, found)
            storage.append(size)
        elif to_cell.is_single_valued():
            raise ScheduleError(
                f"pack: the axis {e} of the layout {layout} of {here} is no single affine expression of the subscripts "
                f"of {there} in `{op}`"
            )
        else:
            along = e.substitute(values)
            lost.append(f"{there}[{_two_cells(to_cell)} along the axis {along} of {here}, which therefore falls away")
    t = spec.tensor(there)
    try:
        m = AffineMap(names, tuple(place))
        source = inverse_of(m, t.extents)
        return Layout(names, t.shape, tuple(storage), m.results, source, layout.fill)
    except SpecError as error:
        why = "; ".join([str(error), *lost])
        raise ScheduleError(
            f"pack: the layout {layout} of {here} does not reach {there} through `{op}`: {why}"
        ) from None


def _runs(to_cell: Relation, size: int) -> tuple[tuple[Affine, ...], int] | None:
    """Return the number of the run of cells that each element meets, and of the runs, if all have one length."""
    found = to_cell.sample()
    if found is None or to_cell.is_single_valued():
        return None
    at = [Constraint(Affine.dim(d) - v, equality=True) for d, v in found[0].items()]
    met = to_cell.apply(Domain.make(to_cell.in_dims, at))
    first, last = met.min_of(Affine.dim("s")), met.max_of(Affine.dim("s"))
    length = 0 if first is None or last is None else last - first + 1
    if not 1 < length < size:
        return None
    run = Relation.function(box_of(["s"], [Affine(size)]), [Affine.dim("s") // length], ["s"])
    number = to_cell.compose(run).as_affine()
    return None if number is None else (number, -(-size // length))


def _two_cells(to_cell: Relation) -> str:
    """Name an element and two coordinates that it meets."""
    found = to_cell.subtract(to_cell.lexmin()).sample()
    assert found is not None, "the caller knows that there are two"
    element, later, _ = found
    at = [Constraint(Affine.dim(d) - v, equality=True) for d, v in element.items()]
    first = to_cell.intersect_domain(Domain.make(to_cell.in_dims, at)).lexmin().sample()
    assert first is not None, "it meets the later one at least"
    return f"{', '.join(map(str, element.values()))}] meets the cells {first[1]['s']} and {later['s']}"

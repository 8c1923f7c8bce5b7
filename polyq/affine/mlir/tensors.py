"""Operations of ``tensor``, and pack and unpack: accesses where they move nothing, ops where they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Attribute, Operation

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.extents import Shape
from polyq.affine.mlir.draft import Written
from polyq.affine.mlir.module import ModuleReader
from polyq.affine.mlir.syntax import attribute, integers, texts
from polyq.affine.mlir.types import dtype_of, is_signless, sizes_of
from polyq.affine.mlir.values import Empty, Uniform, Value, View, axis, collapsed, expanded, product, through
from polyq.affine.scalar import Index, Scalar

__all__ = ["TENSORS"]


def _dims(rank: int, noted: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Shape]:
    names = noted or tuple(f"d{k}" for k in range(rank))
    return names, tuple(Affine.dim(d) for d in names)


# ---- no data, one value
def _empty(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    dtype, signless = dtype_of(result.type), is_signless(result.type)
    r.define(result, Empty(dtype, _sizes(r, op, op.operands), r.name(result), r.module.line(op), signless))


def _sizes(r: ModuleReader, op: Operation, operands: Sequence[Any]) -> Shape:
    """Return the shape of a result whose dynamic sizes are operands."""
    rest = iter(operands)
    sizes = sizes_of(op.results[0].type)
    if sum(n is None for n in sizes) != len(operands):
        raise SpecError(f"expected {sum(n is None for n in sizes)} sizes, one for each `?`, got {len(operands)}")
    return tuple(r.size(next(rest)) if n is None else Affine(n) for n in sizes)


def _splat(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    shape = _sizes(r, op, op.operands[1:])
    r.define(result, Uniform(dtype_of(result.type), shape, r.scalar(op.operands[0]), is_signless(result.type)))


def _cast(r: ModuleReader, op: Operation) -> None:
    value = r.tensor(op.operands[0])
    shape = r.shape(op.results[0].type, value.shape, f"%{r.name(op.operands[0])}")
    r.define(op.results[0], through(value, shape, tuple(axis(k) for k in range(len(shape))),
                                    tuple(axis(k) for k in range(len(shape)))))  # fmt: skip


def _dim(r: ModuleReader, op: Operation) -> None:
    value, k = r.tensor(op.operands[0]), r.size(op.operands[1])
    if not k.is_constant or not 0 <= k.const < len(value.shape):
        raise SpecError(f"expected an axis from 0 to {len(value.shape) - 1}, got {k}")
    r.define(op.results[0], Index(value.shape[k.const]))


def _extract(r: ModuleReader, op: Operation) -> None:
    value = r.tensor(op.operands[0])
    made = r.draft.load(value, tuple(r.size(v) for v in op.operands[1:]))
    if isinstance(value, View):
        r.pinned.add(value.tensor)  # the element is loaded later
    r.define(op.results[0], made)


def _from_elements(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    shape = tuple(Affine(n or 0) for n in sizes_of(result.type))
    made = r.new(result, shape)
    for k, operand in enumerate(op.operands):
        index: list[Affine] = []
        rest = k
        for n in reversed(shape):
            index.insert(0, Affine(rest % n.const))
            rest //= n.const
        r.draft.write(made, Written((), (), tuple(index), r.scalar(operand)), r.place(op))
    r.define(result, made)


def _generate(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    shape = _sizes(r, op, op.operands)
    dims, index = _dims(len(shape))
    made = r.new(result, shape)
    leaves: list[Scalar] = [Index(e) for e in index]
    (body,) = r.block(op.regions[0].blocks[0], leaves, dims)
    r.draft.write(made, Written(dims, shape, index, body), r.place(op))
    r.define(result, made)


# ---- reshapes
def _groups(op: Operation) -> list[tuple[int, ...]]:
    found = attribute(op, "reassociation")
    return [integers(entry) for entry in cast("ArrayAttr[Attribute]", found)]


def _check_groups(groups: Sequence[Sequence[int]], rank: int, others: int) -> None:
    if not groups and not others:
        return
    flat = [a for group in groups for a in group]
    if flat != list(range(rank)) or len(groups) != others:
        raise SpecError(
            f"the groups {[list(g) for g in groups]} have to name the axes 0 to {rank - 1} in order, in {others} groups"
        )


def _ones(shape: Shape, groups: Sequence[Sequence[int]], r: ModuleReader) -> None:
    """Check the axes of a value that is a scalar on the other side."""
    for k, n in enumerate(shape if not groups else ()):
        r.draft.sizes.tie(n, Affine(1), lambda k=k: f"axis {k}, which becomes none")


def _collapse(r: ModuleReader, op: Operation) -> None:
    value, groups = r.tensor(op.operands[0]), _groups(op)
    _check_groups(groups, len(value.shape), len(sizes_of(op.results[0].type)))
    _ones(value.shape, groups, r)
    made = collapsed(value, groups)
    r.shape(op.results[0].type, made.shape, f"%{r.name(op.results[0])}")
    r.define(op.results[0], made)


def _expand(r: ModuleReader, op: Operation) -> None:
    value, groups = r.tensor(op.operands[0]), _groups(op)
    result = op.results[0]
    sizes = sizes_of(result.type)
    _check_groups(groups, len(sizes), len(value.shape))
    _ones(tuple(Affine(n or 1) for n in sizes), groups, r)
    given = r.mixed(op, "static_output_shape", op.operands[1:])
    shape: list[Affine] = []
    for k, group in enumerate(groups):
        unknown = [a for a in group if sizes[a] is None]
        known = product([Affine(n) for a in group if (n := sizes[a]) is not None])
        for a in group:
            n = sizes[a]
            if n is not None:
                shape.append(Affine(n))
            elif len(unknown) == 1 and known.const:
                shape.append(value.shape[k] // known.const)
            elif given:
                shape.append(given[a])
            else:
                raise SpecError(f"axis {k} of %{r.name(op.operands[0])} is expanded to several dynamic sizes; give one")
        if not unknown:
            r.draft.sizes.tie(value.shape[k], known, lambda k=k: f"axis {k} of %{r.name(op.operands[0])}")
        for a in unknown if given else ():
            r.draft.sizes.tie(given[a], shape[a], lambda a=a: f"output_shape, axis {a}")
    r.define(result, expanded(value, groups, tuple(shape)))


# ---- slices
def _slice_ranges(
    r: ModuleReader, op: Operation, groups: Sequence[Sequence[Any]], rank: int
) -> tuple[Shape, Shape, list[int]]:
    offsets, sizes, strides = (
        r.mixed(op, f"static_{name}", group)
        for name, group in zip(("offsets", "sizes", "strides"), groups, strict=True)
    )
    if not rank == len(offsets) == len(sizes) == len(strides):
        raise SpecError(f"expected {rank} offsets, sizes and strides, got {len(offsets)}, {len(sizes)}, {len(strides)}")
    if not all(s.is_constant and s.const > 0 for s in strides):
        raise SpecError(f"strides: expected positive constants, got {', '.join(map(str, strides))}")
    return tuple(offsets), tuple(sizes), [s.const for s in strides]


def _kept_axes(sizes: Shape, shape: tuple[int | None, ...]) -> list[int]:
    """Return the axes of a slice that its type keeps: of those of extent 1 it may drop any."""
    kept: list[int] = []
    wanted = list(shape)
    for k, size in enumerate(sizes):
        rest = len(sizes) - k
        fits = (
            wanted and (wanted[0] is None) == (not size.is_constant) and (wanted[0] is None or wanted[0] == size.const)
        )
        if fits and not (size == Affine(1) and len(wanted) < rest and _fits(sizes[k + 1 :], wanted)):
            kept.append(k)
            wanted.pop(0)
        elif size != Affine(1):
            break
    if wanted or len(kept) != len(shape):
        raise SpecError(f"the sizes {', '.join(map(str, sizes))} do not give the shape {list(shape)}")
    return kept


def _fits(sizes: Shape, wanted: Sequence[int | None]) -> bool:
    try:
        return len(_kept_axes(sizes, tuple(wanted))) == len(wanted)
    except SpecError:
        return False


def _check_slice(
    r: ModuleReader, what: str, shape: Shape, offsets: Shape, sizes: Shape, strides: Sequence[int]
) -> None:
    for k, (n, o, s, step) in enumerate(zip(shape, offsets, sizes, strides, strict=True)):
        last = r.draft.sizes.of(o + (s - 1) * step)
        end = r.draft.sizes.of(n)
        if last.is_constant and end.is_constant and s != Affine(0) and (last.const >= end.const or o.const < 0):
            raise SpecError(f"{what}, axis {k}: the slice ends at {last + 1}, expected at most {end}")


def _extract_slice(r: ModuleReader, op: Operation) -> None:
    value = r.tensor(op.operands[0])
    offsets, sizes, strides = _slice_ranges(r, op, r.groups(op)[1:], len(value.shape))
    _check_slice(r, f"%{r.name(op.operands[0])}", value.shape, offsets, sizes, strides)
    kept = _kept_axes(sizes, sizes_of(op.results[0].type))
    index = list(offsets)
    for position, k in enumerate(kept):
        index[k] = offsets[k] + axis(position) * strides[k]
    shape = tuple(sizes[k] for k in kept)
    r.define(op.results[0], through(value, shape, tuple(index), None))


def _insert_slice(r: ModuleReader, op: Operation) -> None:
    source, target = r.tensor(op.operands[0]), r.tensor(op.operands[1])
    offsets, sizes, strides = _slice_ranges(r, op, r.groups(op)[2:], len(target.shape))
    _check_slice(r, f"%{r.name(op.operands[1])}", target.shape, offsets, sizes, strides)
    kept = _kept_axes(sizes, sizes_of(op.operands[0].type))
    dims, at = _dims(len(kept), texts(attribute(op, "polyq.dims")))
    index = list(offsets)
    for position, k in enumerate(kept):
        index[k] = offsets[k] + at[position] * strides[k]
        r.draft.sizes.tie(source.shape[position], sizes[k], lambda k=k: f"sizes, axis {k}")
    name = "".join(texts(attribute(op, "polyq.op")))
    written = Written(dims, source.shape, tuple(index), r.draft.load(source, at), name=name)
    kept_view = r.reusable(op, op.operands[1])
    if kept_view is not None:
        r.draft.rename(kept_view.tensor, r.name(op.results[0]))
        r.draft.write(kept_view, written, r.place(op))
        r.define(op.results[0], kept_view)
        return
    made = r.new(op.results[0], target.shape, target, attribute(op, "polyq.dtype"))
    r.draft.write(made, written, r.place(op), target)
    r.define(op.results[0], made)


def _concat(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    (along,) = integers(attribute(op, "dim"))
    parts = [r.tensor(v) for v in op.operands]
    if not 0 <= along < len(parts[0].shape) or any(len(p.shape) != len(parts[0].shape) for p in parts):
        raise SpecError(f"dim({along}): expected an axis from 0 to {len(parts[0].shape) - 1} of operands of one rank")
    total = Affine(0)
    for part in parts:
        total += part.shape[along]
    shape = list(parts[0].shape)
    for part, operand in zip(parts, op.operands, strict=True):
        for k, (a, b) in enumerate(zip(shape, part.shape, strict=True)):
            if k != along:
                r.draft.sizes.tie(a, b, lambda k=k, o=operand: f"axis {k} of %{r.name(o)}")
    shape[along] = total
    made = r.new(result, r.shape(result.type, shape, f"%{r.name(result)}"))
    start = Affine(0)
    for part in parts:
        dims, at = _dims(len(shape))
        index = tuple(e + start if k == along else e for k, e in enumerate(at))
        r.draft.write(made, Written(dims, part.shape, index, r.draft.load(part, at)), r.place(op))
        start += part.shape[along]
    r.define(result, made)


def _pad(r: ModuleReader, op: Operation) -> None:
    value, result = r.tensor(op.operands[0]), op.results[0]
    _, lows, highs = r.groups(op)
    low, high = r.mixed(op, "static_low", lows), r.mixed(op, "static_high", highs)
    if not len(low) == len(high) == len(value.shape):
        raise SpecError(f"expected {len(value.shape)} numbers after low and high, got {len(low)} and {len(high)}")
    shape = tuple(a + n + b for a, n, b in zip(low, value.shape, high, strict=True))
    shape = r.shape(result.type, shape, f"%{r.name(result)}")
    dims, at = _dims(len(shape))
    leaves: list[Scalar] = [Index(e) for e in at]
    (filler,) = r.block(op.regions[0].blocks[0], leaves, dims)
    if all(e == Affine(0) for e in (*low, *high)) or attribute(op, "polyq.margin") is not None:
        # the margin holds no value that counts: an access that reached it would be refused as outside
        r.define(result, through(value, shape, tuple(axis(k) - a for k, a in enumerate(low)), None))
        return
    made = r.new(result, shape)
    r.draft.write(made, Written(dims, shape, at, filler), r.place(op))
    index = tuple(e + a for e, a in zip(at, low, strict=True))
    r.draft.write(made, Written(dims, value.shape, index, r.draft.load(value, at)), r.place(op))
    r.define(result, made)


# ---- layouts
def _tiling(r: ModuleReader, op: Operation, outer: Shape, packed: Shape) -> tuple[list[int], list[int], list[int]]:
    """Return the permutation of the outer axes, the tiled axes and their tiles."""
    r.tiled = True
    rank = len(outer)
    order = list(integers(attribute(op, "outer_dims_perm"))) or list(range(rank))
    where = list(integers(attribute(op, "inner_dims_pos")))
    tiles = list(integers(attribute(op, "static_inner_tiles")))
    if any(t < 1 for t in tiles):
        raise SpecError("inner_tiles: expected positive constants; dynamic tiles are not read")
    if sorted(order) != list(range(rank)) or len(where) != len(tiles) or not set(where) <= set(range(rank)):
        raise SpecError(f"inner_dims_pos and inner_tiles: expected one tile an axis, of the axes 0 to {rank - 1}")
    if len(packed) != rank + len(tiles):
        raise SpecError(f"expected {rank + len(tiles)} axes in the packed tensor, got {len(packed)}")
    counts = list(outer)
    for a, t in zip(where, tiles, strict=True):
        counts[a] = -((-outer[a]) // t)
    for k, e in enumerate([*(counts[a] for a in order), *map(Affine, tiles)]):
        r.draft.sizes.tie(packed[k], e, lambda k=k: f"axis {k} of the packed tensor")
    return order, where, tiles


def _unpacked_index(rank: int, order: Sequence[int], where: Sequence[int], tiles: Sequence[int]) -> Shape:
    """Return the subscripts of the plain tensor from those of the packed one."""
    made = [axis(order.index(a)) for a in range(rank)]
    for k, (a, t) in enumerate(zip(where, tiles, strict=True)):
        made[a] = made[a] * t + axis(rank + k)
    return tuple(made)


def _packed_index(rank: int, order: Sequence[int], where: Sequence[int], tiles: Sequence[int]) -> Shape:
    """Return the subscripts of the packed tensor from those of the plain one."""
    tile = dict(zip(where, tiles, strict=True))
    return (*(axis(a) // tile.get(a, 1) for a in order), *(axis(a) % t for a, t in zip(where, tiles, strict=True)))


def _simple(index: Shape, shape: Shape) -> Shape:
    box = {f"axis.{k}": (0, max(0, e.const - 1)) for k, e in enumerate(shape) if e.is_constant}
    return tuple(e.simplify(box) for e in index)


def _pack(r: ModuleReader, op: Operation) -> None:
    value, into, result = r.tensor(op.operands[0]), r.tensor(op.operands[1]), op.results[0]
    order, where, tiles = _tiling(r, op, value.shape, into.shape)
    rank = len(value.shape)
    plain = _unpacked_index(rank, order, where, tiles)
    whole = all(r.draft.sizes.of(value.shape[a] % t) == Affine(0) for a, t in zip(where, tiles, strict=True))
    padding = r.groups(op)[2]
    if whole:
        inverse = _simple(_packed_index(rank, order, where, tiles), value.shape)
        r.define(result, through(value, into.shape, plain, inverse))
        return
    if not padding:
        raise SpecError(
            f"the tiles {tiles} do not divide the shape {[str(e) for e in value.shape]}; expected a padding_value"
        )
    made = r.new(result, into.shape)
    dims, at = _dims(len(into.shape))
    places = {f"axis.{k}": e for k, e in enumerate(at)}
    index = tuple(e.substitute(places) for e in plain)
    inside = tuple(Constraint(value.shape[a] - index[a] - 1) for a in where)
    r.draft.write(made, Written(dims, into.shape, at, r.scalar(padding[0])), r.place(op))
    r.draft.write(made, Written(dims, into.shape, at, r.draft.load(value, index), None, inside), r.place(op))
    r.define(result, made)


def _unpack(r: ModuleReader, op: Operation) -> None:
    value, into, result = r.tensor(op.operands[0]), r.tensor(op.operands[1]), op.results[0]
    order, where, tiles = _tiling(r, op, into.shape, value.shape)
    rank = len(into.shape)
    index = _simple(_packed_index(rank, order, where, tiles), into.shape)
    whole = all(r.draft.sizes.of(into.shape[a] % t) == Affine(0) for a, t in zip(where, tiles, strict=True))
    made: Value = through(value, into.shape, index, _unpacked_index(rank, order, where, tiles) if whole else None)
    r.define(result, made)


TENSORS: dict[str, Callable[[ModuleReader, Operation], None]] = {
    "tensor.empty": _empty, "tensor.splat": _splat, "tensor.cast": _cast, "tensor.dim": _dim,
    "tensor.extract": _extract, "tensor.from_elements": _from_elements, "tensor.generate": _generate,
    "tensor.collapse_shape": _collapse, "tensor.expand_shape": _expand, "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice, "tensor.concat": _concat, "tensor.pad": _pad,
    "tensor.pack": _pack, "linalg.pack": _pack, "tensor.unpack": _unpack, "linalg.unpack": _unpack,
}  # fmt: skip

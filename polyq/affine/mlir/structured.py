"""Structured ops: ``linalg.generic`` and all that is one by another name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Attribute, Operation, SSAValue

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.extents import Shape, alone
from polyq.affine.mlir.casts import convert
from polyq.affine.mlir.dialects import OPERATIONS
from polyq.affine.mlir.draft import Written
from polyq.affine.mlir.module import ModuleReader
from polyq.affine.mlir.named import contraction, elementwise, relation_of
from polyq.affine.mlir.reductions import guarded, reduction, tightened
from polyq.affine.mlir.scalars import SCALAR_OPS
from polyq.affine.mlir.syntax import attribute, integers, texts
from polyq.affine.mlir.types import dtype_of, is_tensor, map_of, noted_dtype, sizes_of
from polyq.affine.mlir.values import VALUES, Uniform, Value, axis, through
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar, walk

__all__ = ["STRUCTURED", "compute"]

#: the values of all operands' elements, those of the results last -> what is written to each result
Body = Callable[[list[Scalar]], list[Scalar]]


def compute(
    r: ModuleReader, op: Operation, ins: Sequence[SSAValue], outs: Sequence[SSAValue], dims: tuple[str, ...],
    maps: Sequence[Shape], body: Body, labels: Sequence[str] = (),
) -> None:  # fmt: skip
    """Add what a structured op computes; ``maps`` are the subscripts of each operand, the outs last."""
    operands = [r.values[v] for v in (*ins, *outs)]
    if len(maps) != len(operands):
        raise SpecError(f"expected {len(operands)} indexing maps, one an operand, got {len(maps)}")
    extents = _extents(r, dims, [*ins, *outs], maps)
    leaves: list[Scalar] = []
    for k, (value, index) in enumerate(zip(operands, maps, strict=True)):
        leaves.append(Load(f"%{k}", index, value.dtype) if isinstance(value, VALUES) else value)
    written = body(leaves)
    if len(written) != len(outs):
        raise SpecError(f"the body yields {len(written)} values, expected {len(outs)}, one a result")
    loads = {f"%{k}": (cast("Value", v), m) for k, (v, m) in enumerate(zip(operands, maps, strict=True))}
    for k, (out, result, value) in enumerate(zip(outs, op.results, written, strict=True)):
        leaf = cast("Load", leaves[len(ins) + k])
        _result(r, op, out, result, (dims, extents, leaf), value, loads)
        _note_labels(r, op, dims, labels, leaf.index, result)


def _extents(r: ModuleReader, dims: tuple[str, ...], operands: Sequence[SSAValue], maps: Sequence[Shape]) -> Shape:
    """Return where each dim ends, by the operands that it indexes alone, whose sizes are tied by that."""
    found: dict[str, tuple[Affine, str]] = {}
    for operand, index in zip(operands, maps, strict=True):
        value = r.values[operand]
        shape: Shape = value.shape if isinstance(value, VALUES) else ()
        if len(shape) != len(index):
            raise SpecError(f"operand %{r.name(operand)}: its map has {len(index)} results, expected {len(shape)}")
        for k, (entry, extent) in enumerate(zip(index, shape, strict=True)):
            dim = alone(entry)
            if dim is None:
                continue
            place = f"axis {k} of %{r.name(operand)}"
            if dim in found:
                before = found[dim]
                r.draft.sizes.tie(
                    before[0], extent, lambda d=dim, b=before, p=place: f"dim {d} runs over {b[1]} and over {p}"
                )
            else:
                found[dim] = extent, place
    for dim in dims:
        if dim not in found:
            raise SpecError(f"dim {dim} has no end: no operand is indexed by it alone")
    return tuple(found[d][0] for d in dims)


def _result(
    r: ModuleReader, op: Operation, out: SSAValue, result: SSAValue, space: tuple[tuple[str, ...], Shape, Load],
    value: Scalar, loads: dict[str, tuple[Value, Shape]],
) -> None:  # fmt: skip
    """Add the op that writes one result."""
    dims, extents, leaf = space
    init = r.tensor(out)
    noted = attribute(op, "polyq.dtype")
    dtype = init.dtype if noted is None else noted_dtype(result.type, noted)
    if value.dtype != dtype:
        raise SpecError(f"the body yields {value.dtype} for %{r.name(result)}, expected {dtype}")
    value, where = guarded(value, leaf)
    extents, where = tightened(dims, extents, where)
    reduce = None
    names = [alone(e) for e in leaf.index]
    once = None not in names and len(set(names)) == len(names) and set(names) == set(dims)
    if leaf in walk(value) and (not once or attribute(op, "polyq.reduce") is not None):
        safe = isinstance(init, Uniform) and isinstance(init.scalar, Const) and init.scalar.value == init.scalar.value
        reduce, value = reduction(value, leaf, number_start=safe)

    box = dict(zip(dims, extents, strict=True))

    def load(node: Const | Index | Load) -> Scalar:
        if not isinstance(node, Load) or node.tensor not in loads:
            return node
        source, index = loads[node.tensor]
        return r.draft.load(source, index, box)

    name = "".join(texts(attribute(op, "polyq.op")))
    written = Written(dims, extents, leaf.index, map_scalar(value, load), reduce, where, name)
    partial = reduce is not None or where or not once or attribute(op, "polyq.in_place") is not None
    kept = r.reusable(op, out) if partial else None
    if kept is not None:
        if kept.tensor not in r.updated:
            r.draft.rename(kept.tensor, r.name(result))
        r.draft.write(kept, written, r.place(op))
        r.define(result, kept)
        return
    made = r.new(result, init.shape, init, noted)
    r.draft.write(made, written, r.place(op), init)
    r.define(result, made)


def _note_labels(
    r: ModuleReader, op: Operation, dims: tuple[str, ...], labels: Sequence[str], index: Shape, result: SSAValue
) -> None:
    kept = {d for e in index for d in e.dims()}
    for dim, label in zip(dims, labels, strict=False):
        if label not in ("parallel", "reduction"):
            raise SpecError(f"iterator_types: expected parallel or reduction, got {label}")
        if (label == "parallel") != (dim in kept):
            relation, derived = ("names", "parallel") if dim in kept else ("does not name", "reduction")
            r.draft.note(
                f"%{r.name(result)} (line {r.module.line(op)}): dim {dim} is labelled {label}; the result's map "
                f"{relation} it, so it is {derived}"
            )


# ---- the ops
def _maps(op: Operation, names: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], list[Shape]] | None:
    found = attribute(op, "indexing_maps")
    if not isinstance(found, ArrayAttr):
        return None
    maps = [map_of(entry, names) for entry in cast("ArrayAttr[Attribute]", found)]
    if any(m.dims != maps[0].dims for m in maps):
        raise SpecError(f"the indexing maps have {', '.join(str(len(m.dims)) for m in maps)} dims, expected one number")
    return maps[0].dims, [m.results for m in maps]


def _inputs_outputs(r: ModuleReader, op: Operation) -> tuple[list[SSAValue], list[SSAValue]]:
    groups = r.groups(op)
    if len(groups) != 2:
        raise SpecError("expected ins(...) outs(...)")
    if len(groups[1]) != len(op.results):
        raise SpecError(
            f"expected one result for each of {len(groups[1])} outs, got {len(op.results)}; memrefs are not read"
        )
    for out, result in zip(groups[1], op.results, strict=True):
        if out.type != result.type:
            raise SpecError(f"%{r.name(result)}: expected the type of outs, {out.type}, got {result.type}")
    return groups[0], groups[1]


def _generic(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    found = _maps(op, texts(attribute(op, "polyq.dims")) or None)
    if found is None or not op.regions:
        raise SpecError("expected indexing_maps and a body")
    dims, maps = found
    labels = texts(attribute(op, "iterator_types"))
    if len(labels) != len(dims):
        raise SpecError(f"iterator_types: expected {len(dims)}, one a dim, got {len(labels)}")
    block = op.regions[0].blocks[0]
    compute(r, op, ins, outs, dims, maps, lambda leaves: r.block(block, leaves, dims), labels)


def _named(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    name = op.name.partition(".")[2]
    if op.regions and op.regions[0].blocks and attribute(op, "operandSegmentSizes") is not None and _is_written(op):
        raise SpecError("a named op has no body; expected linalg.generic for one with a body")
    signed = "unsigned" not in " ".join(texts(attribute(op, "cast")))
    ranks = [len(sizes_of(v.type)) if is_tensor(v.type) else 0 for v in (*ins, *outs)]
    steps = integers(attribute(op, "strides")), integers(attribute(op, "dilations"))
    if name == "contract":
        found = _maps(op)
        if found is None or len(found[1]) != 3:
            raise SpecError("expected three indexing_maps")
        body = contraction(signed=signed)
        compute(r, op, ins, outs, found[0], found[1], lambda leaves: [body(leaves)])
        return
    if name in ("elementwise", "elemwise_unary", "elemwise_binary"):
        kind = (texts(attribute(op, "kind")) or texts(attribute(op, "fun")) or ("",))[0]
        _, body = elementwise(kind, signed=signed)
        found = _maps(op) or _identities(ranks)
        compute(r, op, ins, outs, found[0], found[1], lambda leaves: [body(leaves)])
        return
    relation = relation_of(name, ranks, steps, signed=signed)
    given = _maps(op)  # a matmul may say how it transposes and broadcasts
    dims, maps = given if given is not None else (relation.dims, list(relation.maps))
    compute(r, op, ins, outs, dims, maps, lambda leaves: [relation.body(leaves)])


def _is_written(op: Operation) -> bool:
    """Whether the text gives a body: in generic form a named op carries the one that it implies."""
    return isinstance(op, OPERATIONS[op.name]) and not op.properties


def _identities(ranks: Sequence[int]) -> tuple[tuple[str, ...], list[Shape]]:
    dims = tuple(f"d{k}" for k in range(ranks[-1]))
    index = tuple(Affine.dim(d) for d in dims)
    return dims, [index if rank else () for rank in ranks]


def _map(r: ModuleReader, op: Operation) -> None:
    """Read ``linalg.map``, or a scalar op on whole tensors."""
    if op.name != "linalg.map":
        _whole(r, op)
        return
    ins, outs = _inputs_outputs(r, op)
    dims, maps = _identities([len(sizes_of(v.type)) for v in (*ins, *outs)])
    short = texts(attribute(op, "shorthand"))
    dtype = dtype_of(op.results[0].type)
    if short:
        compute(r, op, ins, outs, dims, maps, lambda leaves: [_short(short[0], leaves[:-1], dtype)])
        return
    block = op.regions[0].blocks[0]
    with_out = len(block.args) == len(ins) + 1
    compute(r, op, ins, outs, dims, maps, lambda a: r.block(block, a if with_out else a[:-1], dims))


def _short(name: str, arguments: Sequence[Scalar], dtype: str) -> Scalar:
    if name not in SCALAR_OPS:
        raise SpecError(f"the operation {name} is not known in a body; docs/mlir.md lists those that are")
    return SCALAR_OPS[name](arguments, dtype, "")


def _whole(r: ModuleReader, op: Operation) -> None:
    result = op.results[0]
    predicate = integers(attribute(op, "predicate"))
    rank = len(sizes_of(result.type))
    dims = tuple(f"d{k}" for k in range(rank))
    index = tuple(Affine.dim(d) for d in dims)
    shape: Shape | None = None
    loads: list[Scalar] = []
    for operand in op.operands:
        value = r.values[operand]
        if not is_tensor(operand.type):
            loads.append(r.scalar(operand))
            continue
        value = r.tensor(operand)
        loads.append(r.draft.load(value, index))
        shape = r.shape(result.type, value.shape, f"%{r.name(operand)}") if shape is None else shape
        for k, (a, b) in enumerate(zip(shape, value.shape, strict=True)):
            r.draft.sizes.tie(a, b, lambda k=k, o=operand: f"axis {k} of %{r.name(o)}")
    made = r.new(result, shape or ())
    body = SCALAR_OPS[op.name](loads, dtype_of(result.type), str(predicate[0]) if predicate else "")
    r.draft.write(made, Written(dims, shape or (), index, body), r.place(op))
    r.define(result, made)


def _reduce(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    rank = len(sizes_of(ins[0].type))
    gone = integers(attribute(op, "dimensions"))
    dims = tuple(f"d{k}" for k in range(rank))
    full = tuple(Affine.dim(d) for d in dims)
    if not gone or not set(gone) <= set(range(rank)) or len(set(gone)) < len(gone):
        raise SpecError(f"dimensions: expected one or more of the axes 0 to {rank - 1}, got {list(gone)}")
    kept = tuple(e for k, e in enumerate(full) if k not in gone)
    maps = [*(full for _ in ins), *(kept for _ in outs)]
    short = texts(attribute(op, "shorthand"))
    if short:
        dtype = dtype_of(op.results[0].type)
        compute(r, op, ins, outs, dims, maps, lambda a: [_short(short[0], [a[1], a[0]], dtype)])
        return
    block = op.regions[0].blocks[0]
    compute(r, op, ins, outs, dims, maps, lambda leaves: r.block(block, leaves, dims))


def _fill(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    if len(ins) != 1:
        raise SpecError(f"expected one value to fill with, got {len(ins)}")
    value = r.values[ins[0]]
    scalar = r.draft.load(r.tensor(ins[0]), ()) if is_tensor(ins[0].type) else cast("Scalar", value)
    out = r.tensor(outs[0])
    if scalar.dtype[1:] != out.dtype[1:] or {scalar.dtype[0], out.dtype[0]} != {"u", "i"}:
        scalar = convert(scalar, out.dtype)
    r.define(op.results[0], Uniform(scalar.dtype, out.shape, scalar, r.signless(out)))


def _transpose(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    order = integers(attribute(op, "permutation"))
    value = r.tensor(ins[0])
    if sorted(order) != list(range(len(value.shape))):
        raise SpecError(f"permutation: expected the axes 0 to {len(value.shape) - 1} in some order, got {list(order)}")
    shape = tuple(value.shape[p] for p in order)
    for k, (a, b) in enumerate(zip(shape, r.tensor(outs[0]).shape, strict=True)):
        r.draft.sizes.tie(a, b, lambda k=k: f"axis {k} of %{r.name(outs[0])}")
    index = tuple(axis(order.index(k)) for k in range(len(order)))
    r.define(op.results[0], through(value, shape, index, tuple(axis(p) for p in order)))


def _broadcast(r: ModuleReader, op: Operation) -> None:
    ins, outs = _inputs_outputs(r, op)
    added = integers(attribute(op, "dimensions"))
    value, out = r.tensor(ins[0]), r.tensor(outs[0])
    kept = [k for k in range(len(out.shape)) if k not in added]
    if len(kept) != len(value.shape):
        raise SpecError(f"dimensions: expected {len(out.shape) - len(value.shape)} axes to add, got {list(added)}")
    for k, a in zip(kept, value.shape, strict=True):
        r.draft.sizes.tie(a, out.shape[k], lambda k=k: f"axis {k} of %{r.name(outs[0])}")
    r.define(op.results[0], through(value, out.shape, tuple(axis(k) for k in kept), None))


def _softmax(r: ModuleReader, op: Operation) -> None:
    raise SpecError("a softmax is three ops (a maximum, a sum, a quotient); write it as linalg.generic")


_OWN: dict[str, Callable[[ModuleReader, Operation], None]] = {
    "linalg.generic": _generic, "linalg.map": _map, "linalg.reduce": _reduce, "linalg.fill": _fill,
    "linalg.transpose": _transpose, "linalg.broadcast": _broadcast, "linalg.softmax": _softmax,
}  # fmt: skip

STRUCTURED: dict[str, Callable[[ModuleReader, Operation], None]] = {
    **{
        name: _named
        for name in OPERATIONS
        if name.startswith("linalg.") and name not in ("linalg.index", "linalg.yield", "linalg.pack", "linalg.unpack")
    },
    **_OWN,
}

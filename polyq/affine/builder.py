"""Specs by indexing maps: :meth:`Spec.input` and :meth:`Spec.generic` are these functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from polyq.affine.checks import check_bounds, check_rank, check_single_writes, coverage
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint, Dim, Param
from polyq.affine.extents import box_of, ends
from polyq.affine.notation import declare, parse_map
from polyq.affine.overflow import overflow_notes
from polyq.affine.program import fill, identity, zero
from polyq.affine.reader import check_name, constraints, expressions
from polyq.affine.scalar import Index, Load, Scalar, walk
from polyq.affine.spec import REDUCTIONS, Op, Spec, Tensor
from polyq.affine.statements import located
from polyq.affine.tracing import Traced, value_of
from polyq.affine.values import settle

__all__ = ["add_generic", "add_input"]


def add_input(spec: Spec, name: str, dtype: str, shape: Sequence[int | str] | int | str) -> tuple[Spec, Tensor]:
    """Return the spec with one more input, and the tensor, which :func:`add_generic` takes as an operand."""
    tensor = declare(name, dtype, shape)
    _refuse_known(spec, tensor)
    made = replace(spec, all_tensors=(*spec.all_tensors, tensor), input_names=(*spec.input_names, tensor.name))
    return made, tensor


def add_generic(
    spec: Spec,
    name: str,
    *,
    ins: Sequence[Tensor | str] = (),
    out: tuple[str, str, Sequence[int | str]],
    iterators: Sequence[str],
    maps: Sequence[str | AffineMap],
    body: Callable[..., Any],
    reduce: str | None = None,
    init: Tensor | str | None = None,
    where: str | Sequence[Constraint] = (),
) -> tuple[Spec, Tensor]:
    """Return the spec with one more op, and the tensor that it writes.

    ``maps`` has one map for each operand and one for the result, over the same dims; ``iterators`` says ``parallel``
    or ``reduction`` for each dim (what is parallel is derived from the maps; a label that contradicts them becomes a
    note). ``body`` is called once with a traced value for each operand. With ``reduce`` (``+``, ``*``, ``min``,
    ``max``) the result starts at the operator's identity, or at ``init``, a tensor of the result's shape and dtype.

    Raises :class:`SpecError` that names op, operand and dim for whatever is wrong.
    """
    check_name(name, "op")
    with located(f"op {name}"):
        if any(op.name == name for op in spec.ops):
            raise SpecError("there is an op of this name already; choose another")
        operands = [_operand(spec, given) for given in ins]
        target = declare(*_out_triple(out))
        _refuse_known(spec, target)
        read = _maps(maps, [*operands, target])
        notes = _iterators(iterators, read[-1], reduce)
        found = _where(where, read[-1].dims)
        accesses = [(t.name, m.results) for t, m in zip([*operands, target], read, strict=True)]
        box = box_of(read[-1].dims, ends(accesses, {t.name: t.extents for t in [*operands, target]}), found)
        op = Op(
            name, box.dims, box.extents, target.name, read[-1].results,
            _body(body, operands, read, target), reduce, box.where,
        )  # fmt: skip
        tensors = (*spec.all_tensors, target)
        check_bounds(op, {t.name: t for t in tensors})
        check_single_writes(op)
        for t in operands:
            _check_written(spec, t, op)
        ops = (*_start(spec, op, target, init), op)
    used = {load.tensor for op in ops for load in op.reads}
    outputs = (*(o for o in spec.output_names if o not in used), target.name)
    said = (*spec.notes, *(f"op {name}: {n}" for n in notes), *overflow_notes((op,)))
    return replace(spec, all_tensors=tensors, ops=(*spec.ops, *ops), output_names=outputs, notes=said), target


def _out_triple(out: Sequence[object]) -> Sequence[object]:
    if isinstance(out, str) or len(out) != 3:
        raise SpecError(f"out: expected (name, dtype, shape), got {out!r}")
    return out


def _refuse_known(spec: Spec, tensor: Tensor) -> None:
    names = {t.name for t in spec.all_tensors}
    if tensor.name in names:
        raise SpecError(f"tensor {tensor.name}: there is one of this name already; choose another")
    mine = {p for e in tensor.extents for p in e.params()}
    theirs = {p for t in spec.all_tensors for e in t.extents for p in e.params()}
    clash = sorted((mine & (names | {tensor.name})) | (theirs & {tensor.name}))
    if clash:
        raise SpecError(f"{clash[0]} is a tensor and a parameter of a shape; rename one")


def _operand(spec: Spec, given: object) -> Tensor:
    name = given.name if isinstance(given, Tensor) else given
    for t in spec.all_tensors:
        if t.name == name and (not isinstance(given, Tensor) or t == given):
            return t
    known = ", ".join(t.name for t in spec.all_tensors) or "none"
    raise SpecError(f"operand {given}: unknown tensor; this spec has {known}; pass what .input and .generic returned")


def _maps(maps: Sequence[str | AffineMap], tensors: Sequence[Tensor]) -> list[AffineMap]:
    """Return the maps, checked against the ranks; all have the dims of the first, in its order."""
    if isinstance(maps, str) or len(maps) != len(tensors):
        names = ", ".join(t.name for t in tensors)
        count = 1 if isinstance(maps, str) else len(maps)
        raise SpecError(f"maps: expected {len(tensors)}, one for each of {names} (the result last), got {count}")
    read: list[AffineMap] = []
    for t, given in zip(tensors, maps, strict=True):
        m = _map_of(t, given) if isinstance(given, str) else given
        if read and m.dims != read[0].dims:
            raise SpecError(f"operand {t.name}: its map has the dims {m.dims}, the first {read[0].dims}; use the same")
        check_rank(t, m.results)
        _known_dims(f"operand {t.name}: its map", m.dims, m.results)
        read.append(m)
    for d in read[0].dims:
        check_name(d, "dim")
    return read


def _map_of(tensor: Tensor, text: str) -> AffineMap:
    try:
        return parse_map(text)
    except SpecError as error:
        raise SpecError(f"operand {tensor.name}: {error}") from None


def _known_dims(what: str, dims: tuple[str, ...], exprs: Sequence[Affine]) -> None:
    foreign = sorted({d for e in exprs for d in e.dims()} - set(dims))
    if foreign:
        raise SpecError(f"{what} uses {foreign[0]}, which is none of the dims {', '.join(dims)}")


def _iterators(iterators: Sequence[str], result: AffineMap, reduce: str | None) -> list[str]:
    """Check the labels and return notes for those that contradict the result's map."""
    if isinstance(iterators, str) or len(iterators) != len(result.dims):
        raise SpecError(f"iterators: expected {len(result.dims)}, one for each dim of {result.dims}, got {iterators!r}")
    if reduce is not None and reduce not in REDUCTIONS:
        raise SpecError(f"reduce: expected one of {', '.join(REDUCTIONS)} or None, got {reduce!r}")
    kept = {d for e in result.results for d in e.dims()}
    notes: list[str] = []
    for d, label in zip(result.dims, iterators, strict=True):
        if label not in ("parallel", "reduction"):
            raise SpecError(f"iterators: dim {d} is {label!r}; expected 'parallel' or 'reduction'")
        derived = "parallel" if d in kept else "reduction"
        if label == "reduction" and reduce is None and d not in kept:
            raise SpecError(f"dim {d} is reduced, but no operator is given; pass reduce='+', '*', 'min' or 'max'")
        if label != derived:
            relation = "names" if d in kept else "does not name"
            notes.append(f"dim {d} is labelled {label}; the result's map {relation} it, so it is {derived}")
    return notes


def _where(where: str | Sequence[Constraint], dims: tuple[str, ...]) -> tuple[Constraint, ...]:
    if not isinstance(where, str):
        _known_dims("where", dims, [c.expr for c in where])
        return tuple(where)
    return tuple(c for e in expressions(where) for c in constraints(e, lambda n: Dim(n) if n in dims else Param(n)))


def _body(body: Callable[..., Any], operands: Sequence[Tensor], maps: Sequence[AffineMap], target: Tensor) -> Scalar:
    loads = [Load(t.name, m.results, t.dtype) for t, m in zip(operands, maps, strict=False)]
    value = settle(value_of(body(*(Traced(node) for node in loads))), target.dtype)
    if value.dtype != target.dtype:
        raise SpecError(f"the body has dtype {value.dtype} and the result {target.name} has {target.dtype}; cast it")
    foreign = sorted({d for n in walk(value) if isinstance(n, Index) for d in n.expr.dims()} - set(maps[-1].dims))
    if foreign:
        raise SpecError(f"index({foreign[0]!r}): no dim of this op; its dims are {', '.join(maps[-1].dims)}")
    return value


def _start(spec: Spec, op: Op, target: Tensor, init: object) -> tuple[Op, ...]:
    """Return the op that sets what the result starts from, if one is needed."""
    if init is not None:
        given = _operand(spec, init)
        if op.reduce is None:
            raise SpecError("init: only a reduction starts from a tensor; pass reduce= as well")
        if (given.dtype, given.shape) != (target.dtype, target.shape):
            raise SpecError(f"init: expected dtype and shape of {target}, got {given}")
        copy = fill(target, identity(op.reduce, target.dtype), op.index)
        return (replace(copy, body=Load(given.name, copy.index, given.dtype)),)
    if op.reduce is not None:
        return (fill(target, identity(op.reduce, target.dtype), op.index),)
    return () if coverage(target, (op,)).complete else (fill(target, zero(target.dtype), op.index),)


def _check_written(spec: Spec, t: Tensor, op: Op) -> None:
    """Refuse reads of cells that only the implied zero fill of an assignment has set."""
    writers = [w for w in spec.writers(t.name) if not w.name.endswith(".init")]
    if not writers or writers[0].reduce is not None:
        return
    seen = coverage(t, (*writers, op))
    if seen.witness is not None:
        raise SpecError(f"{seen.witness[1]}; write the cell first")

"""From the statements of a text to a spec: dims' ends, shapes, and typed bodies."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Dim, Param
from polyq.affine.extents import Box, NoEnd, Shape, at_most, box_of, ends, written_shape
from polyq.affine.program import assemble, identity
from polyq.affine.reader import Reader, bare_names, check_name, index_value
from polyq.affine.scalar import Load
from polyq.affine.spec import Op, Spec, Tensor
from polyq.affine.statements import Statement, index_of, located
from polyq.affine.values import Literal, Value, settle

if TYPE_CHECKING:
    from polyq.affine.scalar import Scalar

__all__ = ["elaborate"]


def elaborate(declared: Sequence[Tensor], statements: Sequence[Statement], outputs: Sequence[str] | None) -> Spec:
    """Return the spec of ``statements`` over ``declared`` tensors."""
    known = {t.name: t for t in declared}
    if len(known) != len(declared):
        twice = next(t.name for k, t in enumerate(declared) if t.name in {u.name for u in declared[:k]})
        raise SpecError(f"tensor {twice}: declared twice; declare it once, as a keyword or as a line")
    params = {p for t in declared for e in t.extents for p in e.params()}
    for p in sorted(params & (known.keys() | {s.target for s in statements})):
        raise SpecError(f"{p} is a tensor and a parameter of a shape; rename one")
    statements = _with_scalars(known, statements)
    dtypes, bodies = _type(known, statements)
    boxes, shapes = _resolve(known, statements)
    tensors = list(declared)
    for name, shape in shapes.items():
        if name not in known:
            entries = tuple(e.const if e.is_constant else str(e) for e in shape)
            tensors.append(Tensor(name, dtypes[name], entries))
    ops = [
        Op(s.name, s.dims, box.extents, s.target, s.index, body, s.reduce, box.where)
        for s, box, body in zip(statements, boxes, bodies, strict=True)
    ]
    places = {s.name: s.place for s in statements}
    made = assemble(None, tensors, ops, [t.name for t in declared], outputs, places)
    used = {op.target for op in ops} | {r.tensor for op in ops for r in op.reads}
    idle = tuple(
        f"tensor {t.name}: declared, but no statement reads or writes it; a call takes it all the same"
        for t in declared
        if t.name not in used
    )
    return replace(made, notes=(*made.notes, *idle))


# ---- names
def _ranks(known: Mapping[str, Tensor], statements: Sequence[Statement]) -> dict[str, int]:
    ranks = {t.name: len(t.shape) for t in known.values()}
    for s in statements:
        ranks.setdefault(s.target, len(s.index))
    return ranks


def _with_scalars(known: Mapping[str, Tensor], statements: Sequence[Statement]) -> list[Statement]:
    """Add the reads of scalars, which are bare names, and check every name against what is known at its statement."""
    ranks = _ranks(known, statements)
    seen = set(known)
    made: list[Statement] = []
    for s in statements:
        with located(s.place):
            bare = {n.id for n in bare_names(s.body)} - set(s.dims)
            scalars = tuple((n, ()) for n in sorted(bare) if n in ranks)
            reads = s.reads + scalars
            for name, index in [(s.target, s.index), *reads]:
                _check_known(name, seen | {s.target}, ranks)
                if len(index) != ranks[name]:
                    raise SpecError(_rank_message(name, known, ranks[name], len(index)))
            for p in sorted({p for c in s.where for p in c.expr.params()}):
                if p in ranks:
                    raise SpecError(f"where: {p} is a tensor; constraints have dims, parameters and constants only")
                check_name(p, "parameter")
            made.append(replace(s, reads=reads))
        seen.add(s.target)
    return made


def _rank_message(name: str, known: Mapping[str, Tensor], rank: int, given: int) -> str:
    shown = str(known[name]) if name in known else f"{name}, by the first statement that writes it,"
    axes = "1 axis" if rank == 1 else f"{rank} axes"
    return f"operand {name}: {shown} has {axes}, got {given} subscript{'' if given == 1 else 's'}"


def _check_known(name: str, seen: set[str], ranks: Mapping[str, int]) -> None:
    if name in seen:
        return
    if name in ranks:
        raise SpecError(
            f"operand {name} is used before any statement writes it; move that statement up or declare {name}"
        )
    known = ", ".join(sorted(seen))
    raise SpecError(f"operand {name}: unknown tensor; known here are {known}; declare it, as {name}: f32[...]")


# ---- types
def _type(known: Mapping[str, Tensor], statements: Sequence[Statement]) -> tuple[dict[str, str], list[Scalar]]:
    dtypes = {t.name: t.dtype for t in known.values()}
    ranks = _ranks(known, statements)
    bodies: list[Scalar] = []
    for s in statements:
        with located(s.place):
            body = settle(_reader(s, dtypes, ranks).read(s.body), dtypes.get(s.target))
            dtype = dtypes.setdefault(s.target, body.dtype)
            if body.dtype != dtype:
                target = f"the target {s.target} has {dtype}"
                raise SpecError(f"the body has dtype {body.dtype} and {target}; cast the body, as {dtype}(...)")
            if s.reduce is not None:
                identity(s.reduce, dtype)
            bodies.append(body)
    return dtypes, bodies


def _reader(s: Statement, dtypes: Mapping[str, str], ranks: Mapping[str, int]) -> Reader:
    def load(tensor: str, entries: tuple[ast.expr, ...]) -> Value:
        index = index_of(tensor, entries)
        if tensor in dtypes:
            return Load(tensor, index, dtypes[tensor])
        return Literal(True, lambda dtype: Load(tensor, index, dtype))  # the first statement that writes it reads it

    def name(name: str) -> Value:
        if name in s.dims:
            return index_value(Dim(name))
        if name not in ranks:
            return index_value(Param(check_name(name, "parameter")))
        return load(name, ())

    return Reader(load, name)


# ---- shapes
@dataclass(slots=True)
class _Shapes:
    """Shapes as they become known; ``waiting`` counts the statements that write a tensor and are not resolved yet."""

    shapes: dict[str, Shape]
    waiting: dict[str, int]

    def grow(self, tensor: str, shape: Shape) -> None:
        old = self.shapes.get(tensor)
        if old is not None:
            shape = tuple(_greater(tensor, a, b) for a, b in zip(old, shape, strict=True))
        self.shapes[tensor] = shape


def _greater(tensor: str, a: Affine, b: Affine) -> Affine:
    if at_most(a, b):
        return b
    if at_most(b, a):
        return a
    raise SpecError(f"tensor {tensor}: written up to {a} and up to {b}, neither always the larger; declare its shape")


def _resolve(known: Mapping[str, Tensor], statements: Sequence[Statement]) -> tuple[list[Box], dict[str, Shape]]:
    """Return the box of each statement, and all shapes.

    A statement waits until all that write the tensors it reads are done, so that it sees whole shapes; where
    statements wait for each other, the first goes on with what is known.
    """
    state = _Shapes({t.name: t.extents for t in known.values()}, {})
    for s in statements:
        state.waiting[s.target] = state.waiting.get(s.target, 0) + 1
    boxes: dict[str, Box] = {}
    pending = list(statements)
    while pending:
        held: list[Statement] = []
        for s in pending:
            if any(n not in known and n != s.target and state.waiting[n] for n, _ in s.reads):
                held.append(s)
            else:
                _settle_box(s, state, known, boxes)
        if len(held) == len(pending):
            _settle_box(held.pop(0), state, known, boxes)
        pending = held
    return [boxes[s.name] for s in statements], state.shapes


def _settle_box(s: Statement, state: _Shapes, known: Mapping[str, Tensor], boxes: dict[str, Box]) -> None:
    with located(s.place):
        boxes[s.name] = _box(s, state, known)
    state.waiting[s.target] -= 1


def _box(s: Statement, state: _Shapes, known: Mapping[str, Tensor]) -> Box:
    accesses = [(s.target, s.index), *s.reads]
    others = [(n, i) for n, i in accesses if n in known or n != s.target]
    limits = ends(others, state.shapes)
    own = ends(accesses, state.shapes)
    while True:
        try:
            box = box_of(s.dims, limits, s.where)
            break
        except NoEnd as error:  # what earlier statements made of the target may bound a dim that nothing else does
            if error.dim in limits or error.dim not in own:
                raise
            limits[error.dim] = own[error.dim]
    if s.target not in known:
        state.grow(s.target, written_shape(s.index, box, limits, s.where))
    return box

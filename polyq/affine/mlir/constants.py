"""``arith.constant``: a number, one value for a whole tensor, a short table, or an input whose data is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.extents import Shape
from polyq.affine.mlir.casts import number
from polyq.affine.mlir.draft import Written
from polyq.affine.mlir.module import ModuleReader
from polyq.affine.mlir.syntax import attribute
from polyq.affine.mlir.types import dtype_of, is_signless, is_tensor, noted_dtype, sizes_of
from polyq.affine.mlir.values import Uniform
from polyq.affine.scalar import Const, Index, Scalar, apply

__all__ = ["read_constant"]

#: runs of equal elements that a dense constant may have: it becomes a tree of selects
MOST_RUNS = 256


def read_constant(r: ModuleReader, op: Operation) -> None:
    """Define what an ``arith.constant`` gives."""
    result, value = op.results[0], attribute(op, "value")
    if not is_tensor(result.type):
        dtype = noted_dtype(result.type, attribute(op, "polyq.dtype"))
        r.define(result, _number(result, value, dtype, attribute(op, "polyq.value")))
        return
    shape = tuple(Affine(n or 0) for n in sizes_of(result.type))
    dtype = dtype_of(result.type)
    if not isinstance(value, DenseIntOrFPElementsAttr):
        _without_data(r, op, shape, dtype)
        return
    values = [number(v, dtype) for v in cast("Any", value).get_values()]
    if values and all(v == values[0] for v in values):
        r.define(result, Uniform(dtype, shape, values[0], is_signless(result.type)))
        return
    _table(r, op, shape, values, dtype)


def _without_data(r: ModuleReader, op: Operation, shape: Shape, dtype: str) -> None:
    """Make an input of a constant whose data is elsewhere."""
    result, line = op.results[0], r.module.line(op)
    view = r.draft.input(r.name(result), dtype, shape, signless=is_signless(result.type), position=line)
    resource = attribute(op, "resource")
    told = resource is None or "elided" in str(resource)
    why = "the text leaves out its data" if told else f"its data is the resource {resource}"
    r.draft.opened.append((line, f"input {view.tensor}: a constant, {why} (line {line})"))
    r.define(result, view)


def _table(r: ModuleReader, op: Operation, shape: Shape, values: Sequence[Const], dtype: str) -> None:
    """Write a tensor of several values, cell by cell."""
    made = r.new(op.results[0], shape)
    dims = tuple(f"d{k}" for k in range(len(shape)))
    linear = Affine(0)
    for d, n in zip(dims, shape, strict=True):
        linear = linear * n.const + Affine.dim(d)
    runs = [k for k in range(1, len(values)) if values[k] != values[k - 1]]
    if len(runs) >= MOST_RUNS:
        raise SpecError(
            f"a dense constant with {len(runs) + 1} runs of equal elements is not put into the program, which may have "
            f"{MOST_RUNS}; make it an argument"
        )
    body = _tree(values, [0, *runs], linear) if values else number(0, dtype)
    index = tuple(Affine.dim(d) for d in dims)
    r.draft.write(made, Written(dims, shape, index, body), r.place(op))
    r.define(op.results[0], made)


def _number(result: SSAValue, value: Attribute | None, dtype: str, exact: Attribute | None) -> Scalar:
    if not isinstance(value, (IntegerAttr, FloatAttr)):
        raise SpecError(f"expected a number, got `{value}`")
    data = cast("Any", exact if isinstance(exact, FloatAttr) else value).value.data
    return Index(Affine(data)) if str(result.type) == "index" else number(data, dtype)


def _tree(values: Sequence[Const], starts: Sequence[int], linear: Affine) -> Scalar:
    """Return the selects that give the element at a linear subscript; ``starts`` are where its runs begin."""
    if len(starts) == 1:
        return values[starts[0]]
    middle = len(starts) // 2
    below = apply("lt", Index(linear), Const(starts[middle], "i64"))
    return apply("select", below, _tree(values, starts[:middle], linear), _tree(values, starts[middle:], linear))

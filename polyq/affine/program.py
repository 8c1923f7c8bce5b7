"""From statements with known shapes to a checked spec: start values, inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyq.affine import dtypes
from polyq.affine.checks import check_bounds, check_single_writes, coverage
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.extents import alone
from polyq.affine.overflow import overflow_notes
from polyq.affine.scalar import Const, Scalar
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["assemble", "fill", "identity", "zero"]


def identity(reduce: str, dtype: str) -> Const:
    """Return the value that leaves any other as it is: 0, 1, and for min and max the extreme of the type.

    >>> identity("max", "f32"), identity("min", "u8")
    (Const(value=-inf, dtype='f32'), Const(value=255, dtype='u8'))
    """
    is_float = dtypes.is_float(dtype)
    if not is_float and not dtypes.is_int(dtype):
        raise SpecError(f"a reduction combines numbers, got dtype {dtype}; cast to i32, say")
    if reduce in ("+", "*"):
        value = 0 if reduce == "+" else 1
        return Const(float(value) if is_float else value, dtype)
    if is_float:
        return Const(math.inf if reduce == "min" else -math.inf, dtype)
    low, high = dtypes.value_range(dtype)
    return Const(high if reduce == "min" else low, dtype)


def zero(dtype: str) -> Const:
    """Return the zero of a dtype (``False`` for bool)."""
    return Const(0.0 if dtypes.is_float(dtype) else 0 if dtypes.is_int(dtype) else False, dtype)


def fill(tensor: Tensor, value: Scalar, like: tuple[Affine, ...] = ()) -> Op:
    """Return the op ``<tensor>.init`` that sets every cell; its dims are named like the subscripts ``like``."""
    names: list[str] = []
    for k in range(len(tensor.shape)):
        name = alone(like[k]) if k < len(like) else None
        names.append(name if name is not None and name not in names else f"d{k}")
    if len(set(names)) < len(names):
        names = [f"d{k}" for k in range(len(names))]
    index = tuple(Affine.dim(n) for n in names)
    return Op(f"{tensor.name}.init", tuple(names), tensor.extents, tensor.name, index, value)


def _named_after(outputs: Sequence[str]) -> str:
    return "_".join(outputs) if len(outputs) <= 3 else f"{outputs[0]}_and_{len(outputs) - 1}_more"


def assemble(
    name: str | None,
    tensors: Sequence[Tensor],
    ops: Sequence[Op],
    declared: Sequence[str],
    outputs: Sequence[str] | None = None,
    places: Mapping[str, str] | None = None,
) -> Spec:
    """Return the checked spec of ``ops`` in order, with the fills that they imply; without a name, after its outputs.

    ``declared`` names the tensors that a caller may give, in order; ``places`` says for each op where it stands, for
    messages.
    """
    by_name = {t.name: t for t in tensors}
    where = places or {}
    for op in ops:
        try:
            check_bounds(op, by_name)
            check_single_writes(op)
        except SpecError as error:
            raise SpecError(f"{where.get(op.name, f'op {op.name}')}: {error}") from None
    if not ops:
        raise SpecError("there is no statement; expected lines such as y[i] = x[i] + 1")
    written = tuple(dict.fromkeys(op.target for op in ops))
    users: dict[str, list[Op]] = {t.name: [] for t in tensors}
    for op in ops:
        for n in {op.target, *(r.tensor for r in op.reads)}:
            users[n].append(op)
    chosen = _outputs(by_name, tuple(ops), declared, written, outputs)
    fills: dict[str, Op] = {}
    inputs: list[str] = []
    for t in tensors:
        if t.name not in written:
            inputs.append(t.name)
        elif t.name in declared:
            seen = coverage(t, tuple(users[t.name]))
            if seen.exposed or seen.starts or not seen.complete:
                inputs.append(t.name)
        else:
            start = _start_value(t, tuple(users[t.name]), t.name in chosen, where)
            if start is not None:
                first = next(op for op in users[t.name] if op.target == t.name)
                fills[first.name] = fill(t, start, first.index)
    ordered: list[Op] = []
    for op in ops:
        ordered += [fills[op.name], op] if op.name in fills else [op]
    ranked = sorted(inputs, key=lambda n: declared.index(n) if n in declared else len(declared))
    name = name or _named_after(chosen)
    return Spec(name, tuple(tensors), tuple(ordered), tuple(ranked), chosen, overflow_notes(ops))


def _outputs(
    tensors: Mapping[str, Tensor],
    ops: tuple[Op, ...],
    declared: Sequence[str],
    written: tuple[str, ...],
    asked: Sequence[str] | None,
) -> tuple[str, ...]:
    if asked is not None:
        for name in asked:
            if name not in tensors:
                raise SpecError(f"outputs: there is no tensor {name!r}; there are {', '.join(tensors)}")
            if name not in written:
                raise SpecError(f"outputs: no statement writes {name!r}; written are {', '.join(written) or 'none'}")
        if len(set(asked)) != len(asked) or not asked:
            raise SpecError(f"outputs: expected one or more different names, got {tuple(asked)}")
        return tuple(asked)
    read = {r.tensor for op in ops for r in op.reads if r.tensor != op.target}
    found = tuple(t for t in written if t in declared or t not in read)
    if not found:
        raise SpecError(
            f"outputs: other statements read all of {', '.join(written)}; name the outputs by outputs=(...)"
        )
    return found


def _start_value(t: Tensor, ops: tuple[Op, ...], is_output: bool, places: Mapping[str, str]) -> Const | None:
    """Return what an undeclared tensor's box starts with, or ``None`` where nothing meets an unwritten cell."""
    first = next(op for op in ops if op.target == t.name)
    if first.reduce is not None:
        return identity(first.reduce, t.dtype)
    seen = coverage(t, ops)
    if seen.witness is not None:
        op, said = seen.witness
        place = places.get(op.name, f"op {op.name}")
        raise SpecError(f"{place}: {said}; write the cell in an earlier statement, or declare {t.name}")
    reduces = {op.name: op.reduce for op in ops}
    needed = {identity(reduces[name] or "+", t.dtype): None for name in seen.starts}
    if is_output and not seen.complete:
        needed[zero(t.dtype)] = None
    if len(needed) > 1:
        values = " and ".join(str(c.value) for c in needed)
        raise SpecError(
            f"tensor {t.name}: cells that no earlier statement wrote would have to start at {values}; set them by a "
            f"statement of their own, such as {t.name}[...] = {next(iter(needed)).value}, in front"
        )
    return next(iter(needed), None)

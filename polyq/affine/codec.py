"""Specs and layouts as plain values (lists, strings, numbers) and back, for files that nobody has to trust.

What is read back is built from parts that are each checked, as a front end checks a program: names, types, ranks, that
every access stays inside its tensor, and that nothing is read before it is written. A value that is none raises
:class:`Malformed` or :class:`~polyq.affine.errors.SpecError`; nothing is evaluated, and no object is made but those
named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from polyq.affine import dtypes
from polyq.affine.checks import check_bounds, check_rank, check_single_writes, coverage
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Atom, Constraint, Dim, FloorDiv, Param
from polyq.affine.layout import Layout
from polyq.affine.scalar import FUNCTIONS, Apply, Cast, Const, Index, Load, Scalar, apply, walk
from polyq.affine.spec import REDUCTIONS, Op, Spec, Tensor

__all__ = [
    "Malformed", "check_written", "checked_name", "decode_affine", "decode_constraint", "decode_layout", "decode_op",
    "decode_shape", "decode_spec", "encode_affine", "encode_constraint", "encode_layout", "encode_op", "encode_spec",
    "listed",
]  # fmt: skip

T = TypeVar("T")
#: names that end up in C: of tensors, dims, parameters, ops and programs; as long as front ends take them
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.']*")
#: extents of tensors as text
_EXTENT = re.compile(r"[A-Za-z0-9_ ()+*/%-]+")


class Malformed(ValueError):
    """A value that is no encoding of what is asked for."""


def checked_name(value: object, what: str = "name") -> str:
    """Return a name that is safe to appear in C."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Malformed(f"{what}: {str(value)[:60]!r} is no name")
    return value


def listed(value: object, what: str, count: int | None = None) -> list[object]:
    """Return a value that is a list (of ``count`` entries)."""
    if not isinstance(value, list) or (count is not None and len(cast("list[object]", value)) != count):
        raise Malformed(f"{what}: expected a list{'' if count is None else f' of {count}'}")
    return cast("list[object]", value)


def _each(value: object, what: str, one: Callable[[object], T]) -> tuple[T, ...]:
    return tuple(one(v) for v in listed(value, what))


def _int(value: object, what: str) -> int:
    if type(value) is not int or abs(value) >= 1 << 62:
        raise Malformed(f"{what}: {str(value)[:60]!r} is no number")
    return value


def _dtype(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed("a dtype is a text")
    try:
        dtypes.info(value)
    except (KeyError, SpecError):
        raise Malformed(f"{value[:60]!r} is no dtype") from None
    return value


# ---- affine expressions
def _encode_atom(atom: Atom) -> list[Any]:
    if isinstance(atom, FloorDiv):
        return ["//", encode_affine(atom.numerator), atom.divisor]
    return ["d" if isinstance(atom, Dim) else "p", atom.name]


def encode_affine(e: Affine) -> list[Any]:
    """Return an expression as ``[constant, [coefficient, atom], ...]``."""
    return [e.const, *([c, _encode_atom(a)] for a, c in e.terms)]


def decode_affine(value: object) -> Affine:
    """Return the expression that :func:`encode_affine` wrote."""
    const, *terms = listed(value, "an expression") or [None]
    total = Affine(_int(const, "a constant"))
    for term in terms:
        coefficient, atom = listed(term, "a term", 2)
        total += _decode_atom(atom) * _int(coefficient, "a coefficient")
    return total


def _decode_atom(value: object) -> Affine:
    kind, *rest = listed(value, "an atom") or [None]
    if kind == "//" and len(rest) == 2:
        divisor = _int(rest[1], "a divisor")
        if divisor < 2:
            raise Malformed(f"a division by {divisor}")
        return decode_affine(rest[0]) // divisor
    if kind in ("d", "p") and len(rest) == 1:
        name = checked_name(rest[0])
        return Affine.of(Dim(name) if kind == "d" else Param(name))
    raise Malformed("an atom is a dim, a parameter or a division")


def encode_constraint(c: Constraint) -> list[Any]:
    """Return a constraint as its expression and whether it is an equality."""
    return [encode_affine(c.expr), c.equality]


def decode_constraint(value: object) -> Constraint:
    """Return the constraint that :func:`encode_constraint` wrote."""
    e, equality = listed(value, "a constraint", 2)
    if type(equality) is not bool:
        raise Malformed("a constraint says whether it is an equality")
    return Constraint(decode_affine(e), equality)


# ---- scalars
def _encode_scalar(s: Scalar) -> list[Any]:
    match s:
        case Const(value, dtype):
            # json knows no infinity: a float is its text
            return ["const", value.hex() if isinstance(value, float) else value, dtype]
        case Index(e, dtype):
            return ["index", encode_affine(e), dtype]
        case Load(tensor, index, dtype):
            return ["load", tensor, [*map(encode_affine, index)], dtype]
        case Cast(arg, dtype):
            return ["cast", _encode_scalar(arg), dtype]
        case Apply(fn, args, _):
            return ["apply", fn, *map(_encode_scalar, args)]


def _decode_scalar(value: object) -> Scalar:
    kind, *rest = listed(value, "a scalar") or [None]
    match kind, rest:
        case "const", [number, dtype]:
            return _decode_const(number, _dtype(dtype))
        case "index", [e, dtype]:
            return Index(decode_affine(e), _dtype(dtype))
        case "load", [tensor, index, dtype]:
            return Load(checked_name(tensor), _each(index, "subscripts", decode_affine), _dtype(dtype))
        case "cast", [arg, dtype]:
            return Cast(_decode_scalar(arg), _dtype(dtype))
        case "apply", [str() as fn, *args] if fn in FUNCTIONS or fn == "select":
            return apply(fn, *map(_decode_scalar, args))
        case _:
            raise Malformed(f"{str(kind)[:60]!r} is no scalar")


def _decode_const(value: object, dtype: str) -> Const:
    if isinstance(value, str) and dtypes.is_float(dtype):
        try:
            return Const(float.fromhex(value), dtype)
        except (ValueError, OverflowError):
            raise Malformed(f"{value[:60]!r} is no float") from None
    if dtype == "bool" and type(value) is bool:
        return Const(value, dtype)
    if dtypes.is_int(dtype) and type(value) is int:
        low, high = dtypes.value_range(dtype)
        if low <= value <= high:
            return Const(value, dtype)
    raise Malformed(f"{str(value)[:60]!r} is no {dtype}")


# ---- tensors, ops, programs
def _encode_tensor(t: Tensor) -> list[Any]:
    return [t.name, t.dtype, [*t.shape], t.signless]


def _decode_tensor(value: object) -> Tensor:
    name, dtype, shape, signless = listed(value, "a tensor", 4)
    if type(signless) is not bool:
        raise Malformed("a tensor says whether it is signless")
    made = Tensor(checked_name(name), _dtype(dtype), decode_shape(shape), signless)
    if any(e.dims() or not all(_NAME.fullmatch(p) for p in e.params()) for e in made.extents):
        raise Malformed(f"tensor {made.name}: no shape")
    return made


def decode_shape(value: object) -> tuple[int | str, ...]:
    """Return the shape of a tensor, each entry a number or the text of an expression."""
    return _each(value, "a shape", _decode_entry)


def _decode_entry(value: object) -> int | str:
    if isinstance(value, str) and _EXTENT.fullmatch(value):
        return value
    entry = _int(value, "an extent")
    if entry < 0:
        raise Malformed(f"an extent of {entry}")
    return entry


def encode_op(op: Op) -> list[Any]:
    """Return an op as a list of its fields."""
    return [
        op.name, [*op.dims], [*map(encode_affine, op.extents)], op.target, [*map(encode_affine, op.index)],
        _encode_scalar(op.body), op.reduce, [*map(encode_constraint, op.where)],
    ]  # fmt: skip


def decode_op(value: object, tensors: Sequence[Tensor]) -> Op:
    """Return the op that :func:`encode_op` wrote, proven to stay inside its tensors."""
    name, dims, extents, target, index, body, reduce, where = listed(value, "an op", 8)
    if reduce is not None and (not isinstance(reduce, str) or reduce not in REDUCTIONS):
        raise Malformed(f"{str(reduce)[:60]!r} is no reduction")
    op = Op(
        checked_name(name), _each(dims, "dims", checked_name), _each(extents, "extents", decode_affine),
        checked_name(target), _each(index, "subscripts", decode_affine), _decode_scalar(body),
        reduce, _each(where, "where", decode_constraint),
    )  # fmt: skip
    _check_op(op, {t.name: t for t in tensors})
    return op


def _check_op(op: Op, known: dict[str, Tensor]) -> None:
    if len(set(op.dims)) != len(op.dims) or len(op.extents) != len(op.dims):
        raise Malformed(f"op {op.name}: its dims and extents do not fit")
    for name, index, dtype in [(op.target, op.index, op.body.dtype), *((r.tensor, r.index, r.dtype) for r in op.reads)]:
        if name not in known or known[name].dtype != dtype:
            raise Malformed(f"op {op.name}: there is no tensor {name} of {dtype}")
        check_rank(known[name], index)
    inner = [n.expr for n in walk(op.body) if isinstance(n, Index)]
    exprs = [*op.index, *(e for r in op.reads for e in r.index), *(c.expr for c in op.where), *inner]
    if any(e.dims() for e in op.extents) or not all(e.dims() <= set(op.dims) for e in exprs):
        raise Malformed(f"op {op.name}: it uses dims that it does not have")
    check_bounds(op, known)
    check_single_writes(op)


def check_written(
    read: Callable[[Any], object], made: object, value: object, error: Callable[[str], Exception], what: str
) -> None:
    """Read back what was just written; raise ``error`` about ``what`` where it does not come back equal."""
    try:
        same = read(made) == value
    except Malformed as reason:
        raise error(f"{what} cannot be written: {reason}") from None
    if not same:
        raise error(f"{what} would be read back as another one; please report this")


def encode_spec(spec: Spec) -> dict[str, Any]:
    """Return a program as plain values; :class:`SpecError` for one that would not come back equal."""
    made: dict[str, Any] = {
        "name": spec.name,
        "tensors": [*map(_encode_tensor, spec.all_tensors)],
        "ops": [*map(encode_op, spec.ops)],
        "inputs": [*spec.input_names],
        "outputs": [*spec.output_names],
        "notes": [*spec.notes],
    }
    check_written(decode_spec, made, spec, SpecError, f"{spec.name}: this program")
    return made


def decode_spec(value: object) -> Spec:
    """Return the checked program that :func:`encode_spec` wrote."""
    if not isinstance(value, dict):
        raise Malformed("a program is a mapping")
    fields = cast("dict[str, object]", value)
    if fields.keys() != {"name", "tensors", "ops", "inputs", "outputs", "notes"}:
        raise Malformed(f"a program has other fields than {', '.join(map(str, fields))[:200]}")
    tensors = _each(fields["tensors"], "tensors", _decode_tensor)
    names = [t.name for t in tensors]
    inputs, outputs = (_each(fields[k], k, checked_name) for k in ("inputs", "outputs"))
    if len(set(names)) != len(names) or not {*inputs, *outputs} <= set(names) or not outputs:
        raise Malformed("tensors, inputs and outputs do not fit")
    ops = _each(fields["ops"], "ops", lambda op: decode_op(op, tensors))
    notes = _each(fields["notes"], "notes", _note)
    spec = Spec(checked_name(fields["name"]), tensors, ops, inputs, outputs, notes)
    if len({op.name for op in ops}) != len(ops) or set(spec.params) & set(names):
        raise Malformed("names of ops or parameters are not distinct")
    for t in tensors:
        users = tuple(op for op in ops if op.target == t.name or any(r.tensor == t.name for r in op.reads))
        if t.name in inputs or not users:
            continue
        seen = coverage(t, users)
        if seen.exposed or seen.starts or (t.name in outputs and not seen.complete):
            raise Malformed(f"tensor {t.name}: read before it is written")
    if any(not spec.writers(name) for name in outputs):
        raise Malformed("an output that nothing writes")
    return spec


def _note(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed("a note is a text")
    return value


# ---- layouts
def encode_layout(layout: Layout) -> list[Any]:
    """Return a layout as a list of its fields."""
    fill = layout.fill.hex() if isinstance(layout.fill, float) else layout.fill
    maps = ([*map(encode_affine, m)] for m in (layout.place, layout.source))
    return [[*layout.dims], [*layout.shape], [*layout.storage], *maps, fill]


def decode_layout(value: object) -> Layout:
    """Return the layout that :func:`encode_layout` wrote, proven anew."""
    dims, shape, storage, place, source, fill = listed(value, "a layout", 6)
    number = _decode_const(fill, "f64").value if isinstance(fill, str) else _int(fill, "a fill")
    return Layout(
        _each(dims, "dims", checked_name), decode_shape(shape), decode_shape(storage),
        _each(place, "a map", decode_affine), _each(source, "a map", decode_affine), number,
    )  # fmt: skip

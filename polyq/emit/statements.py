"""Assignments: values into registers, vectors, single cells and packed elements."""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.expr import Affine
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.emit import arithmetic, halves
from polyq.emit.address import Memory, Offset, Registers, offset_of
from polyq.emit.ctypes import LOOSE, PRODUCT, SUM, UNARY, Value, compute_type, scalar_name, stored_unit, width
from polyq.emit.expressions import literal
from polyq.emit.loads import decoded, load_vector, packed_place
from polyq.emit.run import Lanes, Run
from polyq.schedule.loopnest import Assign

__all__ = ["Step", "emit"]


@dataclass(frozen=True, slots=True)
class Step:
    """One assignment of a run. With ``fold`` the lanes of its value are combined into the one cell it names."""

    assign: Assign
    lanes: Lanes | None = None
    fold: bool = False


def emit(run: Run, step: Step) -> None:
    """Add the lines of one assignment."""
    assign, lanes = step.assign, step.lanes
    storage = run.storage[assign.target]
    kind = compute_type(storage.dtype)
    if step.fold and lanes is not None:
        value, lanes = _folded(run, assign, lanes, kind), None
    else:
        value = run.wide(assign.value, lanes)
    if isinstance(storage, Registers):
        _to_register(run, assign, lanes, storage, value)
    elif lanes is None:
        _to_cell(run, storage, assign.index, assign.reduce, value)
    else:
        _to_memory(run, assign, lanes, storage, value)
    run.written(assign.target)


def _combined(run: Run, reduce: str | None, old: Value, new: Value) -> Value:
    """Return ``old (reduce) new``."""
    if reduce is None:
        return new
    if reduce in ("min", "max"):
        return Value(
            f"{arithmetic.minmax(run.helpers, reduce, new.dtype, new.lanes)}({old.text}, {new.text})",
            new.dtype,
            new.lanes,
        )
    value = run.helpers.combined(old, reduce, new, SUM if reduce == "+" else PRODUCT)
    if new.lanes == 1 and dtypes.is_int(new.dtype) and width(new.dtype) < 4:
        return Value(f"({scalar_name(new.dtype)})({value.text})", new.dtype, 1, UNARY)
    return value


def _folded(run: Run, assign: Assign, lanes: Lanes, kind: str) -> Value:
    """Return all lanes of a reduction's value, in a tail the live ones, combined to one."""
    value, reduce = run.wide(assign.value, lanes), assign.reduce or "+"
    if lanes.count is not None:
        neutral = run.helpers.splat(Value(_neutral(reduce, kind), kind, 1), lanes.width)
        value = run.helpers.select(run.helpers.lane_mask(lanes.width, lanes.count), value, neutral)
    return run.helpers.fold(arithmetic.combiner(run.helpers, reduce, kind), value)


def _neutral(reduce: str, kind: str) -> str:
    if reduce in ("+", "*"):
        return "0" if reduce == "+" else "1"
    if dtypes.is_float(kind):
        return literal(float("-inf") if reduce == "max" else float("inf"), kind)
    low, high = dtypes.value_range(kind)
    return literal(low if reduce == "max" else high, kind)


# ---- registers
def _to_register(run: Run, assign: Assign, lanes: Lanes | None, storage: Registers, value: Value) -> None:
    kind = compute_type(storage.dtype)
    masked = lanes is not None and lanes.count is not None
    whole_cell = assign.reduce is None and (lanes is not None or not storage.lanes)
    name, lane, whole = run.register(storage, assign.index, lanes, assigned=whole_cell)
    masked = masked and name not in run.undeclared  # dead lanes of a new variable may hold anything
    if assign.reduce == "+" and not run.strict and lanes is not None:
        masked = masked and not _is_zero_where_dead(run, assign.value, lanes)
    cell = Value(name if lane is None else f"{name}[{lane}]", kind, value.lanes)
    new = _wrapped(_combined(run, assign.reduce, cell, value), storage.dtype, assign.reduce)
    if whole and masked and lanes is not None and lanes.count is not None:
        new = run.helpers.select(run.helpers.lane_mask(lanes.width, lanes.count), new, Value(name, kind, lanes.width))
    if kind == "mask" and lane is not None:
        new = Value(f"-{new.within(UNARY)}", kind, 1, UNARY)
    text = "{0}" if name in run.undeclared and storage.lanes and _is_zero(assign.value) else new.text
    if new.text.startswith(f"{cell.text} {assign.reduce} ") and new.rank in (SUM, PRODUCT):
        run.say(f"{cell.text} {assign.reduce}= {value.within(new.rank - 1)};")
        return
    run.say(f"{run.declared(name)}{cell.text} = {text};")


def _is_zero(s: Scalar) -> bool:
    return isinstance(s, Const) and str(s.value) in ("0", "0.0")


def _is_zero_where_dead(run: Run, s: Scalar, lanes: Lanes) -> bool:
    """Whether a value is 0 in dead lanes, since what it is a product of is loaded as 0 there."""
    match s:
        case Load(tensor, index):
            return isinstance(run.storage[tensor], Memory) and any(lanes.var in e.dims() for e in index)
        case Cast(arg):
            return _is_zero_where_dead(run, arg, lanes)
        case Apply("ldexp", (x, Const())):
            return _is_zero_where_dead(run, x, lanes)
        case Apply("ldexp", (x, Index(e))):
            return e.is_constant and _is_zero_where_dead(run, x, lanes)
        case Apply("mul" | "add" | "sub" | "neg", args):  # of a product every factor: a number times 0 may be a NaN
            return all(_is_zero_where_dead(run, a, lanes) for a in args)
        case _:
            return False


def _wrapped(value: Value, dtype: str, reduce: str | None) -> Value:
    """Bring the total of a sub-byte reduction back to its width."""
    d = dtypes.info(dtype)
    if not d.packed or reduce not in ("+", "*"):
        return value
    shift = 8 - d.bits
    if d.kind == "u":
        return Value(f"{value.within(UNARY)} & {(1 << d.bits) - 1}", value.dtype, value.lanes, LOOSE)
    up = (
        f"(int8_t)((uint8_t){value.within(UNARY)} << {shift})"
        if value.lanes == 1
        else f"({value.within(UNARY)} << {shift})"
    )
    return Value(f"{up} >> {shift}", value.dtype, value.lanes, LOOSE)


# ---- memory
def _to_memory(run: Run, assign: Assign, lanes: Lanes, storage: Memory, value: Value) -> None:
    """Store the lanes of a value: side by side, reversed, or one after another."""
    if dtypes.info(storage.dtype).packed:
        _by_lane(run, assign, lanes, storage, value)
        return
    offset = offset_of(storage, assign.index)
    step = offset.stride(lanes.var)
    if step == -1 and lanes.count is None and assign.reduce is None:
        last = offset.at(lanes.var, Affine(lanes.width - 1))
        raw = run.helpers.reverse(_encoded(run, value, storage.dtype))
        _store(run, last.plus(storage.pointer, run.names), raw)
        return
    if step != 1:
        _by_lane(run, assign, lanes, storage, value)
        return
    start = offset.at(lanes.var, Affine(0))
    address = start.plus(storage.pointer, run.names)
    if assign.reduce is not None:
        value = _combined(run, assign.reduce, load_vector(run, address, storage.dtype, lanes), value)
    raw = _encoded(run, value, storage.dtype)
    if lanes.count is not None:
        run.say(run.helpers.store_part(raw, address, lanes.count))
    elif storage.stream and _keeps_alignment(start, raw):
        run.say(run.helpers.stream(raw, address, storage.stream))
    else:
        _store(run, address, raw)


def _keeps_alignment(start: Offset, raw: Value) -> bool:
    """Whether a store at this offset is as aligned as the buffer and its symbolic rows are."""
    size = width(raw.dtype)
    return size * raw.lanes % 16 == 0 and start.multiple_of(16 // size)


def _store(run: Run, address: str, raw: Value) -> None:
    vector = run.helpers.vector(raw.dtype, raw.lanes)
    run.say(
        f"*({vector}_u *)({address}) = {raw.text};"
        if not address.isidentifier()
        else f"*({vector}_u *){address} = {raw.text};"
    )


def _by_lane(run: Run, assign: Assign, lanes: Lanes, storage: Memory, value: Value) -> None:
    """Store the lanes of a vector one after another, in a tail only the live ones."""
    if not value.is_name:
        value = run.name(value, f"{assign.target}_v")
    kind = compute_type(storage.dtype)
    for i in range(lanes.width):
        cell = Value(f"{value.text}[{i}]", kind, 1)
        if kind == "mask":
            cell = Value(f"-{cell.text}", kind, 1, UNARY)
        index = tuple(e.substitute({lanes.var: Affine(i)}) for e in assign.index)
        _to_cell(run, storage, index, assign.reduce, cell, "" if lanes.count is None else f"if ({lanes.count} > {i}) ")


def _to_cell(
    run: Run, storage: Memory, index: tuple[Affine, ...], reduce: str | None, value: Value, guard: str = ""
) -> None:
    """Store one element; of a packed one, the other elements of its byte stay."""
    if dtypes.info(storage.dtype).packed:
        _to_bits(run, storage, index, reduce, value, guard)
        return
    at = f"{storage.pointer}[{offset_of(storage, index).text(run.names)}]"
    if reduce is not None:
        old = decoded(run, Value(at, stored_unit(storage.dtype), 1), storage.dtype)
        value = _combined(run, reduce, old, value)
    run.say(f"{guard}{at} = {_encoded(run, value, storage.dtype).text};")


def _to_bits(
    run: Run, storage: Memory, index: tuple[Affine, ...], reduce: str | None, value: Value, guard: str
) -> None:
    d = dtypes.info(storage.dtype)
    at, shift = packed_place(run, storage, index)
    keep = (1 << d.bits) - 1
    if reduce is not None:
        old = f"({at} >> ({shift}) & {keep})"
        if d.kind == "i":
            old = f"((int8_t)((uint8_t){old} << {8 - d.bits}) >> {8 - d.bits})"
        kind = compute_type(storage.dtype)
        value = _combined(run, reduce, Value(f"({scalar_name(kind)}){old}", kind, 1, UNARY), value)
    store = run.helpers.add(
        "store_bits",
        "static inline void store_bits(uint8_t *p, int shift, int keep, int value) {\n"
        "  *p = (uint8_t)((*p & ~(keep << shift)) | (value & keep) << shift);\n}",
    )
    amount = shift if shift.isdigit() else f"(int)({shift})"
    run.say(f"{guard}{store}(&{at}, {amount}, {keep}, {value.text});")


def _encoded(run: Run, value: Value, dtype: str) -> Value:
    """Return a value as stored units."""
    d = dtypes.info(dtype)
    if d.kind == "f" and d.bits == 16:
        return halves.encoded(run.helpers, value, dtype)
    if d.kind != "b":
        return value
    if value.lanes == 1:
        return Value(f"{value.within(UNARY)} != 0", "u8", 1, LOOSE)
    return run.helpers.convert(Value(f"{value.within(UNARY)} & 1", "i32", value.lanes, LOOSE), "u8")

"""Loads as C values: whole vectors, fields of 32-bit lanes, packed elements, reversed vectors, gathers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim
from polyq.affine.scalar import Load
from polyq.emit import halves
from polyq.emit.address import Memory, Offset, Registers, affine_text, offset_of, stem
from polyq.emit.ctypes import LOOSE, UNARY, Value, compute_type, stored_unit, width

if TYPE_CHECKING:
    from polyq.emit.run import Lanes, Run

__all__ = ["decoded", "field_place", "load_vector", "loaded", "masked_field", "packed_place", "prefetch", "words_at"]


def loaded(run: Run, load: Load, lanes: Lanes | None) -> Value:
    """Return the value of a load; with ``lanes`` it varies over them."""
    storage = run.storage[load.tensor]
    if isinstance(storage, Registers):
        return _register(run, storage, load, lanes)
    if lanes is None:
        if not dtypes.info(load.dtype).packed:
            prefetch(run, load.tensor, storage, offset_of(storage, load.index))
        return _element(run, storage, load)
    field = _field_of(run, load, lanes)
    if field is not None:
        words, low = field
        return _shifted(run, words, low, load.dtype, lanes.width)
    if dtypes.info(load.dtype).packed:
        return _gathered(run, load, lanes)
    offset = offset_of(storage, load.index)
    step = offset.stride(lanes.var)
    start = offset.at(lanes.var, Affine(0))
    if step == 1:
        prefetch(run, load.tensor, storage, start)
        return load_vector(run, start.plus(storage.pointer, run.names), load.dtype, lanes)
    if step == -1 and lanes.count is None:
        last = offset.at(lanes.var, Affine(lanes.width - 1))
        raw = Value(
            _vector_at(run, last.plus(storage.pointer, run.names), load.dtype, lanes.width),
            stored_unit(load.dtype),
            lanes.width,
        )
        return decoded(run, run.helpers.reverse(raw), load.dtype)
    if lanes.count is None and (distance := _distance(run, offset, lanes.var)) is not None:
        raw = run.helpers.strided(
            stored_unit(load.dtype), lanes.width, start.plus(storage.pointer, run.names), distance
        )
        return decoded(run, raw, load.dtype)
    return _gathered(run, load, lanes)


def _distance(run: Run, offset: Offset, var: str) -> str | None:
    """Return the C text of the step from lane to lane, in elements, if it is the same everywhere."""
    step = offset.stride(var)
    if step is not None:
        return str(step)
    if offset.known.dims() & {var}:
        return None
    steps = [(e.coefficient(Dim(var)), e - Affine.dim(var) * e.coefficient(Dim(var)), s) for e, s in offset.symbolic]
    if any(var in rest.dims() for _, rest, _ in steps):
        return None
    return " + ".join(s if c == 1 else f"{c} * {s}" for c, _, s in steps if c)


def _register(run: Run, storage: Registers, load: Load, lanes: Lanes | None) -> Value:
    kind = compute_type(load.dtype)
    name, lane, whole = run.register(storage, load.index, lanes)
    if dtypes.is_float(load.dtype) and dtypes.info(load.dtype).bits == 16:  # a total in f32: its readers see it rounded
        value = Value(
            name if lane is None else f"{name}[{lane}]", kind, lanes.width if whole and lanes is not None else 1
        )
        return halves.rounded(run.helpers, value, load.dtype)
    if whole and lanes is not None:
        return Value(name, kind, lanes.width)
    if lane is None:
        return Value(name, kind, 1)
    return Value(f"-{name}[{lane}]", kind, 1, UNARY) if kind == "mask" else Value(f"{name}[{lane}]", kind, 1)


def _element(run: Run, storage: Memory, load: Load) -> Value:
    d = dtypes.info(load.dtype)
    if not d.packed:
        at = offset_of(storage, load.index).text(run.names)
        return decoded(run, Value(f"{storage.pointer}[{at}]", stored_unit(load.dtype), 1), load.dtype)
    at, shift = packed_place(run, storage, load.index)
    text = f"{at} >> {shift} & {(1 << d.bits) - 1}" if shift != "0" else f"{at} & {(1 << d.bits) - 1}"
    if d.kind == "i":
        return Value(f"(int8_t)((uint8_t)({text}) << {8 - d.bits}) >> {8 - d.bits}", "i8", 1, LOOSE)
    return Value(f"(uint8_t)({text})", "u8", 1, UNARY)


def packed_place(run: Run, storage: Memory, index: tuple[Affine, ...]) -> tuple[str, str]:
    """Return the byte of a packed element as a C lvalue, and by how many bits the element is shifted in it."""
    if not index:
        return f"{storage.pointer}[0]", "0"
    bits = dtypes.info(storage.dtype).bits
    fields, element = 8 // bits, index[-1]
    row = offset_of(storage, index, packed_row=True)
    at = replace(row, known=row.known + element // fields)
    shift = element % fields
    amount = str(shift.const * bits) if shift.is_constant else f"({affine_text(shift, run.names)}) * {bits}"
    return f"{storage.pointer}[{at.text(run.names)}]", amount


def decoded(run: Run, raw: Value, dtype: str) -> Value:
    """Turn stored units into the compute type."""
    d = dtypes.info(dtype)
    if d.kind == "f" and d.bits == 16:
        return halves.decoded(run.helpers, raw, dtype)
    if d.kind == "b":
        wide = raw if raw.lanes == 1 else run.helpers.convert(raw, "i32")
        return Value(f"{wide.text} != 0", "mask", raw.lanes, LOOSE)
    return Value(raw.text, compute_type(dtype), raw.lanes, raw.rank)


def _vector_at(run: Run, address: str, dtype: str, lanes: int) -> str:
    vector = run.helpers.vector(stored_unit(dtype), lanes)
    return f"*(const {vector}_u *)({address})" if not address.isidentifier() else f"*(const {vector}_u *){address}"


def load_vector(run: Run, address: str, dtype: str, lanes: Lanes) -> Value:
    """Return consecutive elements, in a tail only the live ones."""
    unit = stored_unit(dtype)
    if lanes.count is not None:
        return decoded(run, run.helpers.load_part(unit, lanes.width, address, lanes.count), dtype)
    return decoded(run, Value(_vector_at(run, address, dtype, lanes.width), unit, lanes.width, UNARY), dtype)


def _gathered(run: Run, load: Load, lanes: Lanes) -> Value:
    """Collect lanes one by one, in a tail only the live ones."""
    cells: list[str] = []
    for i in range(lanes.width):
        at = replace(load, index=tuple(e.substitute({lanes.var: Affine(i)}) for e in load.index))
        cell = loaded(run, at, None)
        text = f"-{cell.within(UNARY)}" if cell.dtype == "mask" else cell.text
        cells.append(text if lanes.count is None else f"{lanes.count} > {i} ? {text} : 0")
    kind = compute_type(load.dtype)
    return Value(f"({run.helpers.vector(kind, lanes.width)}){{{', '.join(cells)}}}", kind, lanes.width, UNARY)


# ---- fields of 32-bit lanes
def field_place(run: Run, load: Load, lanes: Lanes) -> tuple[Offset, int] | None:
    """Return where the 32-bit words begin that hold one element of each lane, and which field it is; else ``None``.

    Rows are whole words and all lanes have the same place in their words, so that no word ends outside the array; in a
    tail the words of dead lanes are 0, and not touched.
    """
    d, storage = dtypes.info(load.dtype), run.storage[load.tensor]
    if not isinstance(storage, Memory) or d.kind not in "ui" or d.bits >= 32 or not load.index:
        return None
    fields, element = 32 // d.bits, load.index[-1].substitute({lanes.var: Affine(0)})
    position = element % fields
    if not position.is_constant or not _multiple(storage.row, 4) or not _steps_by_words(storage, load, lanes, fields):
        return None
    if d.packed:
        row = offset_of(storage, load.index, packed_row=True).at(lanes.var, Affine(0))
        at = replace(row, known=row.known + (element - position) // (8 // d.bits))
    else:
        begin = offset_of(storage, load.index).at(lanes.var, Affine(0))
        at = replace(begin, known=begin.known - position)
    return at, position.const


def _field_of(run: Run, load: Load, lanes: Lanes) -> tuple[Value, int] | None:
    """Return the 32-bit words that hold one element of each lane, and its bit; ``None`` where lanes lie otherwise."""
    place = field_place(run, load, lanes)
    if place is None:
        return None
    return words_at(run, load, lanes, place[0]), place[1] * dtypes.info(load.dtype).bits


def words_at(run: Run, load: Load, lanes: Lanes, at: Offset) -> Value:
    """Return the 32-bit words of all lanes, as a variable."""
    storage = run.storage[load.tensor]
    assert isinstance(storage, Memory)
    prefetch(run, load.tensor, storage, at)
    address, vector = at.plus(storage.pointer, run.names), run.helpers.vector("u32", lanes.width)
    # the load names what a store forgets
    key = ("words", Load(load.tensor, (), load.dtype), address, lanes.width, lanes.count)
    if lanes.count is None:
        raw = Value(f"*(const {vector}_u *)({address})", "u32", lanes.width, UNARY)
    else:
        raw = run.helpers.load_words(lanes.width, address, lanes.count)
    # measured: a mask that reads the words from the first cache again costs less than the register that held them
    # (6 x 2 tile, 8-bit codes, Zen 3: 0.77 of the FMA limit, 0.57 with the words held)
    return run.once(key, raw, f"{stem(load.tensor)}_words", keep=False)


def _multiple(e: Affine, count: int) -> bool:
    return e.const % count == 0 and all(c % count == 0 for _, c in e.terms)


def _steps_by_words(storage: Memory, load: Load, lanes: Lanes, fields: int) -> bool:
    """Whether one lane is one 32-bit word further than the one before."""
    offset = offset_of(storage, load.index, packed_row=True)
    inside = load.index[-1] - load.index[-1].substitute({lanes.var: Affine(0)})
    unit = 4 // (width(stored_unit(storage.dtype)))  # rows are counted in stored units
    if offset.stride(lanes.var) == 0:
        return inside == Affine.dim(lanes.var) * fields
    return offset.stride(lanes.var) == unit and inside == Affine(0)


def _shifted(run: Run, words: Value, low: int, dtype: str, lanes: int) -> Value:
    """Return the field at bit ``low`` as i32, shifted down; a signed one is first shifted up to extend its sign."""
    d = dtypes.info(dtype)
    top = low + d.bits == 32
    if d.kind == "u":
        down = Value(f"{words.text} >> {low}", "u32", lanes, LOOSE) if low else words
        field = down if top else Value(f"{down.within(UNARY)} & {(1 << d.bits) - 1}", "u32", lanes, LOOSE)
        field = run.helpers.reinterpret(field, "i32")
    else:
        up = words if top else Value(f"{words.text} << {32 - low - d.bits}", "u32", lanes, LOOSE)
        field = Value(f"{run.helpers.reinterpret(up, 'i32').text} >> {32 - d.bits}", "i32", lanes, LOOSE)
    return field


def masked_field(run: Run, load: Load, lanes: Lanes, exponent: int) -> Value | None:
    """Return ``load * 2**exponent`` as i32 by one mask, where the field lies at bit ``exponent`` of 32-bit lanes.

    An unsigned field below the top, or a signed one at the top, keeps its value times the power of its place.
    """
    d = dtypes.info(load.dtype)
    if d.kind not in "ui" or d.bits >= 32 or (exponent + d.bits == 32) != (d.kind == "i"):
        return None
    field = _field_of(run, load, lanes)
    if field is None or field[1] != exponent:
        return None
    mask = run.helpers.field_mask(d.bits, exponent, lanes.width)
    masked = Value(f"{field[0].text} & {mask}", "u32", lanes.width, LOOSE)
    return run.helpers.reinterpret(masked, "i32")


def prefetch(run: Run, tensor: str, storage: Memory, start: Offset) -> None:
    """Ask for the line some distance ahead, once for each line that the run touches."""
    ahead = run.prefetch.get(tensor)
    if ahead is None:
        return
    line = (tensor, start.symbolic, start.known.terms, start.known.const * width(stored_unit(storage.dtype)) // 64)
    if run.fetch(line):
        address = start.plus(storage.pointer, run.names)
        run.prefetched(_turn(run, storage, start), f"__builtin_prefetch((const char *)({address}) + {ahead});")


def _turn(run: Run, storage: Memory, start: Offset) -> str | None:
    """Return when a load of the innermost loop comes to a new line: "" always, else a C condition, ``None`` never."""
    step = start.stride(run.loop) if run.loop else None
    size = abs(step or 0) * width(stored_unit(storage.dtype))
    if step == 0:
        return None
    return f"{run.names(f'dim {run.loop}')} % {64 // size} == 0" if step and size < 64 and 64 % size == 0 else ""

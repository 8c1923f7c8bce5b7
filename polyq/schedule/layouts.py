"""Layouts of inputs that are bound: their elements in the order in which a tile of lanes meets them.

A constant's layout is free. Where the lanes of a tile run along a dim of the result, its rows are interleaved so that a
tile reads one stretch of memory from front to back, whatever the order of the tensor's own axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv
from polyq.affine.scalar import Cast, Load, walk
from polyq.affine.spec import Op
from polyq.schedule.draft import Draft, plain_dim, size_of

__all__ = ["Words", "free_operands", "lane_axis", "pack_constants", "scale_partner", "tile_rows", "words_of"]

#: how many stretches of memory a tile reads side by side. Measured on Zen 3, 8-bit weights, fractions of the read
#: bandwidth: one 0.62, two 0.70 to 0.78, four 0.71 to 0.83.
STREAMS = 2
#: bytes ahead of which lines of a packed stream are asked for (2 to 8 KiB made no difference beyond noise)
AHEAD = 4096
#: vectors of rows that lie together: tiles of fewer vectors read the same layout
MOST_VECTORS = 4
#: a packed tensor may be this much larger than the tensor, where rows are filled up to a whole tile
MOST_PADDING = 1.05


@dataclass(frozen=True, slots=True)
class Words:
    """Narrow integers as fields of 32-bit lanes: ``fields`` neighbours along the reduced dim ``along``."""

    fields: int
    along: str


def tile_rows(draft: Draft, extent: Affine) -> int:
    """Return how many rows lie together when an axis is packed, up to four vectors; 0 where tiles would not fill."""
    size, lanes = size_of(extent), draft.target.lanes("f32")
    rows = (n * lanes for n in (MOST_VECTORS, 2, 1))
    return next((r for r in rows if extent.is_constant and -(-size // r) * r <= MOST_PADDING * size), 0)


def free_operands(draft: Draft, op: Op) -> frozenset[str]:
    """Return the constants that ``op`` reads whose layout may change: inputs of known size, read once in each op."""
    found: set[str] = set()
    for load in op.reads:
        name = load.tensor
        if name not in draft.constants or name in draft.spec.output_names or name not in draft.spec.input_names:
            continue
        if not all(e.is_constant for e in draft.spec.tensor(name).extents):
            continue
        if sum(r.tensor == name for r in op.reads) == 1:
            found.add(name)
    return frozenset(found)


def lane_axis(load: Load, dim: str) -> int | None:
    """Return the axis whose subscript is ``dim`` itself, if no other subscript depends on it."""
    at = [k for k, e in enumerate(load.index) if dim in e.dims()]
    return at[0] if len(at) == 1 and plain_dim(load.index[at[0]]) == dim else None


def words_of(draft: Draft, op: Op, dim: str, free: frozenset[str]) -> Words | None:
    """Return how narrow constants fill words along a reduced dim, with lanes along ``dim``, or ``None``."""
    narrow = [r for r in op.reads if dtypes.is_int(r.dtype) and dtypes.info(r.dtype).bits < 16]
    bits = {dtypes.info(r.dtype).bits for r in narrow}
    if len(bits) != 1 or any(r.tensor not in free or lane_axis(r, dim) is None for r in narrow):
        return None
    if not all(_cast_to_f32(op, r) for r in narrow):
        return None
    fields = 32 // bits.pop()
    for k in reversed([d for d in op.dims if d in op.reduced]):
        extent = op.extent(k)
        if (
            extent.is_constant
            and extent.const % fields == 0
            and all(_step_axis(r, k, fields) is not None for r in narrow)
        ):
            return Words(fields, k)
    return None


def _cast_to_f32(op: Op, load: Load) -> bool:
    return any(isinstance(n, Cast) and n.arg == load and n.dtype == "f32" for n in walk(op.body))


def _step_axis(load: Load, dim: str, fields: int) -> int | None:
    """Return the axis along which ``dim`` steps by one element from a multiple of ``fields`` on."""
    at = [k for k, e in enumerate(load.index) if dim in e.dims()]
    if len(at) != 1:
        return None
    e = load.index[at[0]]
    if any(isinstance(a, FloorDiv) for a, _ in e.terms) or e.coefficient(Dim(dim)) != 1 or e.const % fields:
        return None
    return at[0] if all(c % fields == 0 for a, c in e.terms if a != Dim(dim)) else None


def pack_constants(
    draft: Draft, main: str, names: Sequence[str], dim: str, words: Words | None
) -> dict[str, str]:
    """Let ``names`` read constants in the order of tiles of lanes along ``dim``.

    Returns the packed tensor of each. What other ops read too stays where it is, and so does what has no axis of lanes.
    """
    made: dict[str, str] = {}
    rows = tile_rows(draft, draft.spec.op(main).extent(dim))
    free = [t for n in names for t in sorted(free_operands(draft, draft.spec.op(n)))]
    for tensor in dict.fromkeys(free):
        readers = [op.name for op in draft.spec.readers(tensor)]
        reads = [r for n in readers for r in draft.spec.op(n).reads if r.tensor == tensor]
        axes = {lane_axis(r, dim) for r in reads}
        if not set(readers) <= set(names) or len(axes) != 1 or None in axes:
            continue
        load = next((r for r in draft.spec.op(main).reads if r.tensor == tensor), reads[0])
        made[tensor] = _pack(draft, load, readers, dim, rows, words, draft.spec.op(main))
    return made


def _pack(draft: Draft, load: Load, readers: list[str], dim: str, rows: int, words: Words | None, main: Op) -> str:
    narrow = dtypes.info(load.dtype).bits < 16
    t = draft.spec.tensor(load.tensor)
    lanes = lane_axis(load, dim)
    step = _step_axis(load, words.along, words.fields) if words and narrow else None
    streams = STREAMS if step is not None and rows % (STREAMS * draft.target.lanes("f32")) == 0 else 1
    part = rows // streams
    shape: list[Affine] = []
    names: list[str] = []
    place: list[Affine] = []
    e = [Affine.dim(f"e{k}") for k in range(len(t.shape))]

    def add(name: str, extent: Affine, at: Affine) -> None:
        names.append(name)
        shape.append(extent)
        place.append(at)

    assert lanes is not None
    whole = (t.extents[lanes] + rows - 1) // rows
    if streams > 1:
        add("h", Affine(streams), (e[lanes] % rows) // part)
    add("t", whole, e[lanes] // rows)
    for k in _outside_in(load, main, lanes):
        if k == step and words is not None:
            add(f"e{k}", t.extents[k] // words.fields, e[k] // words.fields)
        else:
            add(f"e{k}", t.extents[k], e[k])
    width = draft.target.lanes("f32")
    if part > width:
        add("v", Affine(part // width), (e[lanes] % part) // width)
    add("r", Affine(min(part, width)), e[lanes] % min(part, width))
    if step is not None and words is not None:
        add("f", Affine(words.fields), e[step] % words.fields)
    source: list[Affine] = []
    for k in range(len(t.shape)):
        at = Affine.dim(f"e{k}")
        if k == lanes:
            at = Affine.dim("t") * rows + Affine.dim("r")
            at += (Affine.dim("h") * part if streams > 1 else 0) + (Affine.dim("v") * width if part > width else 0)
        elif k == step and words is not None:
            at = at * words.fields + Affine.dim("f")
        source.append(at)
    where = () if t.extents[lanes] % rows == Affine(0) else (Constraint(t.extents[lanes] - 1 - source[lanes]),)
    before = {o.name for o in draft.spec.ops}
    draft.do(
        "copy_of", tensor=t.name, readers=tuple(readers), shape=tuple(shape), dims=tuple(names), source=tuple(source),
        place=tuple(place), where=where,
    )  # fmt: skip
    copy = next(o for o in draft.spec.ops if o.name not in before)
    draft.do("mark", op=copy.name, axis="t", kind="parallel")
    draft.do("prepare", tensor=copy.target)
    side = f", {streams} side by side" if streams > 1 else ""
    draft.note(f"{t.name}: packed when it is bound, so that {rows} rows lie in one stretch of memory{side}")
    return copy.target


def _outside_in(load: Load, main: Op, lanes: int) -> list[int]:
    """Return the other axes in the order of the loops: those of the result, then reduced ones as the op has them."""

    def depth(k: int) -> tuple[bool, int]:
        dims = load.index[k].dims()
        inner = max((main.dims.index(d) for d in dims if d in main.dims), default=-1)
        return any(d in main.reduced for d in dims), inner

    return sorted((k for k in range(len(load.index)) if k != lanes), key=depth)


def scale_partner(draft: Draft, name: str, codes: Iterable[str], words: Words) -> None:
    """Convert fields where they lie in a word; the powers of two go into a copy of what they are multiplied with."""
    op = draft.spec.op(name)
    packed = [r for r in op.reads if r.tensor in set(codes) and dtypes.info(r.dtype).bits < 16]
    others = [r for r in op.reads if words.along in {d[:-1] for e in r.index for d in e.dims()} and r not in packed]
    if len(packed) != 1 or packed[0].dtype[0] != "u" or len(others) != 1 or op.reduce != "+" or not draft.relaxed:
        return
    point = draft.save()
    try:
        _scaled_copy(draft, op, others[0], packed[0].tensor, words)
    except ScheduleError as error:
        draft.restore(point)
        draft.note(f"{packed[0].tensor}: fields are shifted down ({str(error).splitlines()[0]})")


def _scaled_copy(draft: Draft, op: Op, load: Load, codes: str, words: Words) -> None:
    """Copy ``load`` as one row for each field."""
    t = draft.spec.tensor(load.tensor)
    step = next(k for k, e in enumerate(load.index) if f"{words.along}b" in e.dims())
    e = [Affine.dim(f"e{k}") for k in range(len(t.shape))]
    rest = [k for k in range(len(t.shape)) if k != step]
    f, b = Affine.dim("f"), Affine.dim("b")
    count = t.extents[step]
    if count % words.fields != Affine(0):
        raise ScheduleError(f"{t.name}: its {count} elements do not fill whole words")
    dims = (*(f"e{k}" for k in rest), "f", "b")
    source = tuple(b * words.fields + f if k == step else e[k] for k in range(len(t.shape)))
    place = (*(e[k] for k in rest), e[step] % words.fields, e[step] // words.fields)
    shape = (*(t.extents[k] for k in rest), Affine(words.fields), count // words.fields)
    before = {o.name for o in draft.spec.ops}
    draft.do("copy_of", tensor=t.name, readers=(op.name,), shape=shape, dims=dims, source=source, place=place, where=())
    copy = next(o.name for o in draft.spec.ops if o.name not in before)
    draft.do("scale_fields", op=op.name, codes=codes, packed=copy, dim="f", fields=words.fields)
    lanes = draft.target.lanes("f32")
    draft.do("split", op=copy, axis="b", factor=lanes, outer="bb", inner="bv")
    draft.do("mark", op=copy, axis="bv", kind="vector")
    draft.note(f"{codes}: fields are converted where they lie in a word; the power of two goes into a copy of {t.name}")

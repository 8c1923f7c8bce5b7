"""Copies in another layout: constants packed once when they are bound, and what is multiplied with fields of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Load
from polyq.affine.spec import Op
from polyq.schedule.axes import ask_early, share_among_threads
from polyq.schedule.draft import Draft, plain_dim
from polyq.schedule.layouts import Words, free_operands, lane_axis, step_axis, tile_rows, walked_dims

__all__ = ["pack_constants", "scale_partner"]

#: how many stretches of memory a tile reads side by side. Measured on Zen 3, 8-bit weights, fractions of the read
#: bandwidth: one 0.62, two 0.70 to 0.78, four 0.71 to 0.83.
STREAMS = 4
#: bytes ahead of which lines of a packed stream are asked for. Measured on Zen 3, 8-bit codes in tiles that walk one
#: stretch, time beside none: 1 KiB 0.79, 0.84, 0.95 (2, 4, 16 rows), 4 KiB 0.76, 0.82, 0.92, 16 KiB 0.76, 0.83, 0.96.
AHEAD = 4096


def pack_constants(
    draft: Draft, main: str, names: Sequence[str], dim: str, words: Words | None, width: int
) -> dict[str, str]:
    """Let ``names`` read constants in the order of tiles of lanes along ``dim``, ``width`` of them in a tile.

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
            draft.note(f"{tensor}: not packed, since its readers do not all walk it along {dim} alone")
            continue
        load = next((r for r in draft.spec.op(main).reads if r.tensor == tensor), reads[0])
        made[tensor] = _pack(draft, load, readers, dim, (rows, width), words, draft.spec.op(main))
    return made


def _is_walked(load: Load, main: Op, dim: str) -> bool:
    """Whether the innermost loop of a tile steps through the operand: the hardware follows such a stretch of memory."""
    walked = walked_dims(main, dim)
    return bool(walked) and any(walked[-1] in e.dims() for e in load.index)


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of the packed tensor: its dim in the copy, its extent, and where element ``(e0, e1, ..)`` lies on it."""

    name: str
    extent: Affine
    place: Affine


def _pack(
    draft: Draft, load: Load, readers: list[str], dim: str, heights: tuple[int, int], words: Words | None, main: Op
) -> str:
    """Let the readers of a constant read it packed; return the packed tensor.

    ``heights`` are the rows that lie together, and those of a tile.
    """
    rows, high = heights
    t = draft.spec.tensor(load.tensor)
    lanes = lane_axis(load, dim)
    assert lanes is not None
    narrow = dtypes.info(load.dtype).bits < 16
    step = step_axis(load, words.along, words.fields, t.extents) if words and narrow else None
    words = words if step is not None else None
    width = draft.target.lanes("f32")
    walked = _is_walked(load, main, dim)
    sides = STREAMS if walked and rows % (STREAMS * width) == 0 else 1
    axes = _packed_axes(t.extents, lanes, step, words, _outside_in(load, main, lanes), (sides, rows, width))
    source = _source(len(t.shape), lanes, step, words, (sides, rows, width))
    where = () if t.extents[lanes] % rows == Affine(0) else (Constraint(t.extents[lanes] - 1 - source[lanes]),)
    (copy,) = draft.do(
        "copy_of", tensor=t.name, readers=tuple(readers), shape=tuple(a.extent for a in axes),
        dims=tuple(a.name for a in axes), source=source, place=tuple(a.place for a in axes), where=where,
    )  # fmt: skip
    packed = draft.spec.op(copy).target
    draft.do("mark", op=copy, axis="t", kind="parallel")
    draft.do("prepare", tensor=packed)
    # the hardware follows four stretches side by side, one of them too slowly
    ask_early(draft, packed, AHEAD if not walked or high < rows else 0)
    side = f", {sides} side by side" if sides > 1 else ""
    draft.note(f"{t.name}: packed when it is bound, so that {rows} rows lie in one stretch of memory{side}")
    return packed


def _packed_axes(
    extents: Sequence[Affine], lanes: int, step: int | None, words: Words | None, others: list[int],
    tile: tuple[int, int, int],
) -> list[_Axis]:  # fmt: skip
    """Return the axes of a packed constant, outermost first: [side][tile][others ..][vector][lane][field].

    ``tile`` is (sides, rows of a tile, lanes of a vector).
    """
    sides, rows, width = tile
    part = rows // sides
    row = Affine.dim(f"e{lanes}")
    axes = [_Axis("h", Affine(sides), (row % rows) // part)] if sides > 1 else []
    axes.append(_Axis("t", (extents[lanes] + rows - 1) // rows, row // rows))
    for k in others:
        each = words.fields if words is not None and k == step else 1
        axes.append(_Axis(f"e{k}", extents[k] // each, Affine.dim(f"e{k}") // each))
    if part > width:
        axes.append(_Axis("v", Affine(part // width), (row % part) // width))
    axes.append(_Axis("r", Affine(min(part, width)), row % min(part, width)))
    if step is not None and words is not None:
        axes.append(_Axis("f", Affine(words.fields), words.field(Affine.dim(f"e{step}"))))
    return axes


def _source(
    rank: int, lanes: int, step: int | None, words: Words | None, tile: tuple[int, int, int]
) -> tuple[Affine, ...]:
    """Return the element that a cell of the packed constant holds: the inverse of :func:`_packed_axes`."""
    sides, rows, width = tile
    part = rows // sides
    found = [Affine.dim(f"e{k}") for k in range(rank)]
    found[lanes] = Affine.dim("t") * rows + Affine.dim("r")
    if sides > 1:
        found[lanes] += Affine.dim("h") * part
    if part > width:
        found[lanes] += Affine.dim("v") * width
    if step is not None and words is not None:
        found[step] = found[step] * words.fields + words.element(Affine.dim("f"))
    return tuple(found)


def _outside_in(load: Load, main: Op, lanes: int) -> list[int]:
    """Return the other axes in the order of the loops: those of the result, then reduced ones as the op has them."""

    def depth(k: int) -> tuple[bool, int]:
        dims = load.index[k].dims()
        inner = max((main.dims.index(d) for d in dims if d in main.dims), default=-1)
        return any(d in main.reduced for d in dims), inner

    return sorted((k for k in range(len(load.index)) if k != lanes), key=depth)


def scale_partner(draft: Draft, name: str, codes: Iterable[str], words: Words, unroll: Mapping[str, int]) -> None:
    """Convert fields where they lie in a word; the powers of two go into a copy of what they are multiplied with."""
    op = draft.spec.op(name)
    packed = [r for r in op.reads if r.tensor in set(codes) and dtypes.info(r.dtype).bits < 16]
    others = [r for r in op.reads if words.along in {d[:-1] for e in r.index for d in e.dims()} and r not in packed]
    if len(packed) != 1 or packed[0].dtype[0] != "u" or len(others) != 1 or op.reduce != "+" or not draft.relaxed:
        return
    point = draft.save()
    try:
        _scaled_copy(draft, op, others[0], packed[0].tensor, words, unroll)
    except ScheduleError as error:
        draft.restore(point)
        draft.note(f"{packed[0].tensor}: fields are shifted down ({str(error).splitlines()[0]})")


def _scaled_copy(draft: Draft, op: Op, load: Load, codes: str, words: Words, unroll: Mapping[str, int]) -> None:
    """Copy ``load`` in the order of the tiles, fields innermost.

    The rows of a tile (dims that are unrolled) follow upon each other within what one walk over the words needs of
    them: rows that lie a power of two apart would meet in the same sets of the first cache.
    """
    t = draft.spec.tensor(load.tensor)
    step = next(k for k, e in enumerate(load.index) if f"{words.along}b" in e.dims())
    side = next((k for k, e in enumerate(load.index) if plain_dim(e) in unroll), None)
    if t.extents[step] % words.fields != Affine(0):
        raise ScheduleError(f"{t.name}: its {t.extents[step]} elements do not fill whole words")
    e = [Affine.dim(f"e{k}") for k in range(len(t.shape))]
    source = [Affine.dim("b") * words.fields + Affine.dim("f") if k == step else e[k] for k in range(len(t.shape))]
    outside = sorted((k for k in range(len(t.shape)) if k != step), key=lambda k: k == side)
    axes = [(f"e{k}", t.extents[k], e[k]) for k in outside]
    axes.append(("b", t.extents[step] // words.fields, e[step] // words.fields))
    axes.append(("f", Affine(words.fields), e[step] % words.fields))
    (copy,) = draft.do(
        "copy_of", tensor=t.name, readers=(op.name,), shape=tuple(n for _, n, _ in axes),
        dims=tuple(d for d, _, _ in axes), source=tuple(source), place=tuple(p for _, _, p in axes),
    )  # fmt: skip
    draft.do("scale_fields", op=op.name, codes=codes, packed=copy, dim="f", fields=words.fields)
    draft.do("mark", op=copy, axis="f", kind="unroll")
    free = [f"e{k}" for k in outside]
    share_among_threads(draft, copy, free, frozenset(free))
    draft.note(f"{codes}: fields are converted where they lie in a word; the power of two goes into a copy of {t.name}")

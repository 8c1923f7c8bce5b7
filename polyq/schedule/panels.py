"""Panels: what one tile of lanes needs of an operand, computed or copied once into scratch, for all rows that use it.

An operand whose rows lie apart is copied, lanes contiguous. One that is computed from bound codes is computed into the
panel where enough rows share it: converting a code for every tile of rows would cost more than storing it once.
"""

from __future__ import annotations

from math import prod

from polyq.affine import dtypes
from polyq.affine.expr import Affine
from polyq.affine.scalar import Load
from polyq.affine.spec import Op
from polyq.schedule.choices import decide
from polyq.schedule.draft import Draft, is_weighed, plain_dim, size_of
from polyq.schedule.layouts import free_operands, lane_axis, tile_rows, words_of
from polyq.schedule.packing import pack_constants
from polyq.schedule.tiles import PANEL_USES, Tile, packable

__all__ = ["keeps_panel", "pack_panel", "panels_of"]


def keeps_panel(draft: Draft, writer: Op) -> int:
    """Return how many rows would share a panel of what ``writer`` computes from bound codes; 0 where none pays."""
    readers = draft.spec.readers(writer.target)
    loads = [r for op in readers for r in op.reads if r.tensor == writer.target]
    if len(readers) != 1 or len(loads) != 1 or readers[0].reduce != "+" or readers[0].where or writer.where:
        return 0
    (op,), index = readers, loads[0].index
    used = [plain_dim(e) for e in index]
    lanes = [d for d in used if d is not None and d not in op.reduced]
    if None in used or len(lanes) != 1 or not _from_codes(draft, writer, _walk(op, loads[0], lanes[0])):
        return 0
    steps = prod(size_of(op.extent(d)) for d in used if d is not None and d != lanes[0])
    rows = [op.extent(d) for d in op.dims if d not in op.reduced and d not in used]
    if not all(map(is_weighed, rows)) or 2 * draft.target.lanes("f32") * 4 * steps > draft.target.l2 // 2:
        return 0
    shared = prod(map(size_of, rows))
    return shared if shared >= PANEL_USES else 0


def _walk(op: Op, load: Load, lane: str) -> list[int]:
    """Return the axes of an operand in the order in which ``op`` walks them, that of the lanes last."""
    dims = [plain_dim(e) or "" for e in load.index]
    return sorted(range(len(dims)), key=lambda k: (dims[k] == lane, op.dims.index(dims[k])))


def _from_codes(draft: Draft, writer: Op, axes: list[int]) -> bool:
    """Whether all operands are bound and can be packed for lanes along the last of ``axes``, fields of words too."""
    dims = [plain_dim(writer.index[k]) for k in axes]
    free = free_operands(draft, writer)
    *order, lane = (d for d in dims if d is not None)
    if None in dims or frozenset(r.tensor for r in writer.reads) != free or not tile_rows(draft, writer.extent(lane)):
        return False
    packs = all(lane_axis(r, lane) is not None for r in writer.reads)
    return packs and words_of(draft, writer, lane, free, order) is not None


def panels_of(draft: Draft, main: Op, tile: Tile) -> list[Load]:
    """Operands that each tile of lanes walks with a large stride and that other dims of the result use again."""
    if tile.reduced:
        return []
    found: list[Load] = []
    width = tile.lanes * tile.vectors
    for load in dict.fromkeys(main.reads):
        if load.tensor in draft.kept:
            found.append(load)
        if load.tensor in draft.kept or not packable(main, load, tile.dim):
            continue
        cells = width
        for d in {d for e in load.index for d in e.dims()} - {tile.dim}:
            cells *= size_of(main.extent(d))
        contiguous = plain_dim(load.index[-1]) == tile.dim and size_of(main.extent(tile.dim)) < 4 * width
        copied = not contiguous and cells * max(dtypes.info(load.dtype).bits // 8, 1) <= draft.target.l2 // 2
        if copied and decide(f"panel of {load.tensor}", ("copied", "read where it lies"), (True, False)):
            found.append(load)
    return found


def pack_panel(draft: Draft, root: Op, load: Load, tile: Tile, follows: dict[str, str], readers: list[str]) -> None:
    """Copy the panel that one tile of lanes needs into scratch, lanes contiguous."""
    reader = next(n for n in readers if any(r.tensor == load.tensor for r in draft.spec.op(n).reads))
    t = draft.spec.tensor(load.tensor)
    positions = _walk(draft.spec.op(reader), load, tile.dim)
    dims = tuple(f"e{k}" for k in positions)
    (copy,) = draft.do(
        "copy_of", tensor=load.tensor, readers=(reader,), shape=tuple(t.extents[k] for k in positions), dims=dims,
        source=tuple(Affine.dim(f"e{k}") for k in range(len(t.shape))), place=tuple(Affine.dim(d) for d in dims),
    )  # fmt: skip
    fields = _compute_in(draft, copy, load.tensor, dims[-1], tile) if load.tensor in draft.kept else []
    draft.do("fuse", producer=copy, into=root.name, at=f"{follows[tile.dim]}o")
    lane = dims[-1]
    draft.do("split", op=copy, axis=lane, factor=tile.lanes, outer=f"{lane}b", inner=f"{lane}v")
    draft.do("mark", op=copy, axis=f"{lane}v", kind="vector")
    inside = [*fields, f"{lane}b"]
    for axis in inside:
        draft.do("mark", op=copy, axis=axis, kind="unroll")
    outside = [d for d in draft.spec.op(copy).dims if d != lane and d not in fields]
    draft.order(copy, [*outside, *inside, f"{lane}v"])
    why = "computed once for all rows" if fields else "copied into scratch, since its rows lie apart and are read again"
    draft.note(f"{load.tensor}: the panel of a tile is {why}")


def _compute_in(draft: Draft, copy: str, tensor: str, lane: str, tile: Tile) -> list[str]:
    """Compute in a panel what it would copy, from constants packed for its lanes; return the dim of a word's fields."""
    draft.do("inline", tensor=tensor)
    op = draft.spec.op(copy)
    words = words_of(draft, op, lane, free_operands(draft, op))
    assert words is not None, f"{tensor} was kept for a panel without packed codes"
    pack_constants(draft, copy, [copy], lane, words, tile.lanes * tile.vectors)
    step = f"{words.along}u"
    draft.do("split_dim", op=copy, dim=words.along, factor=words.fields, outer=f"{words.along}b", inner=step)
    return [step]

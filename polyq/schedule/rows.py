"""Groups without a tiled reduction: single assignments, and results with members at outer levels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyq.affine import dtypes
from polyq.affine.expr import Dim
from polyq.affine.spec import Op
from polyq.schedule.axes import ask_early, share_among_threads, split_lanes, widest_dtype
from polyq.schedule.dividing import divide_total
from polyq.schedule.draft import Draft, moved_dim, plain_dim, size_of
from polyq.schedule.frame import needs_guard
from polyq.schedule.groups import Group
from polyq.schedule.sums import arrange, sum_in_lanes
from polyq.schedule.tiles import Tile, choose_tile

#: how far ahead lines of an input are asked for that is read once, in order
EARLY_BYTES = 2048
#: rows of a triangle whose cells are computed side by side
ROWS = 4

__all__ = ["schedule_dots", "schedule_plain", "schedule_rows", "schedule_total", "store_past_cache"]


def schedule_plain(draft: Draft, op: Op, free: frozenset[str] | None = None) -> None:
    """Lanes along the dim that the result stores contiguously, threads along an outer one.

    ``free`` are the dims that carry no dependence (all, by default).
    """
    free = frozenset(op.dims) if free is None else free
    axes = list(op.dims)
    lanes = draft.target.lanes(widest_dtype(draft, op))
    bound = {d for c in op.where for d in c.expr.dims()}
    dim = moved_dim(op.index[-1]) if op.index else None
    in_place = dtypes.info(draft.spec.tensor(op.target).dtype).packed
    if (
        dim is not None
        and dim in free
        and dim not in bound
        and lanes > 1
        and size_of(op.extent(dim)) >= 2
        and not in_place
    ):
        axes = split_lanes(draft, op, dim, lanes, axes)
    share_among_threads(draft, op.name, axes, free, in_place and dim)
    store_past_cache(draft, op)


def schedule_dots(draft: Draft, op: Op, free: frozenset[str]) -> bool:
    """Give a reduction over part of a box (a triangle, a band) lanes along its sum, one cell of the result at a time.

    Returns whether it fits: the constraints are about dims of the result alone, and lanes lie along a reduced dim.
    """
    result = [d for e in op.index if (d := plain_dim(e)) is not None]
    bound = {d for c in op.where for d in c.expr.dims()}
    if op.reduce is None or not op.where or len(result) != len(op.index) or not bound <= set(result):
        return False
    if any(r.tensor == op.target for r in op.reads):
        return False
    tile = choose_tile(draft, op, frozenset(result))
    if tile is None or not tile.reduced:
        return False
    row = _side_by_side(op, result)
    if row is not None:
        tile = replace(tile, vectors=min(tile.vectors, 2), unroll=((row, ROWS),))
    parts = sum_in_lanes(draft, op, tile)
    lane = f"{tile.dim}l"
    axes = [*result, lane]
    if row is not None:
        draft.do("split", op=op.name, axis=row, factor=ROWS, outer=f"{row}o", inner=f"{row}i")
        draft.do("mark", op=op.name, axis=f"{row}i", kind="unroll")
        axes = [*(f"{row}o" if d == row else d for d in result), f"{row}i", lane]
    for part in parts:
        draft.do("fuse", producer=part, into=op.name, at=result[-1])
        arrange(draft, part, tile)
    draft.order(op.name, axes)
    draft.do("mark", op=op.name, axis=lane, kind="unroll")
    share_among_threads(draft, op.name, axes[: len(result)], free)
    draft.note(f"{op.target}: {tile}, {'one cell' if row is None else f'{ROWS} cells'} at a time", tile.instead)
    return True


def schedule_total(draft: Draft, op: Op) -> bool:
    """Give a reduction to a single cell partial sums in lanes; return whether it fits."""
    if op.reduce is None or op.index or op.where or any(r.tensor == op.target for r in op.reads):
        return False
    tile = choose_tile(draft, op, frozenset())
    if tile is None or not tile.reduced or tile.fields > 1:
        return False
    parts = sum_in_lanes(draft, op, tile)
    pieces = divide_total(draft, max(parts, key=lambda n: len(draft.spec.op(n).dims)))
    for name in [*parts, op.name]:
        arrange(draft, name, tile)
    if pieces:
        _place_pieces(draft, pieces, tile)
    draft.note(f"{op.target}: {tile}, in one total")
    return True


def _place_pieces(draft: Draft, pieces: list[str], tile: Tile) -> None:
    """Sum each piece in registers, inside the loop that threads share; its result is stored once."""
    host = draft.spec.op(pieces[-1])
    for name in pieces[:-1]:
        draft.do("fuse", producer=name, into=host.name, at=host.dims[0])
        arrange(draft, name, tile)
    for axis in host.dims[1:]:
        draft.do("mark", op=host.name, axis=axis, kind="vector" if axis == f"{tile.dim}l" else "unroll")
    draft.do("mark", op=host.name, axis=host.dims[0], kind="parallel")


def _side_by_side(op: Op, result: list[str]) -> str | None:
    """The dim of the result whose neighbours share what the sum reads, if only the last dim ends apart for them."""
    if len(result) < 2 or len(op.where) != 1 or op.where[0].equality:
        return None
    row, last, bound = result[-2], result[-1], op.where[0].expr
    used = [{d for e in load.index for d in e.dims()} for load in op.reads]
    shared = any(last in dims and row not in dims for dims in used)
    ends = bound.coefficient(Dim(last)) == -1 and bound.coefficient(Dim(row)) == 1 and not needs_guard(op.where[0])
    return row if shared and ends and size_of(op.extent(row)) >= 4 * ROWS else None


def store_past_cache(draft: Draft, op: Op, again: tuple[str, ...] = ()) -> None:
    """A result larger than the last cache that nothing reads again is not worth its place there.

    At each point of the dims ``again`` what is read there is read several times.
    """
    t = draft.spec.tensor(op.target)
    size = _bytes(draft, op.target)
    known = all(e.is_constant for e in t.extents)
    if op.reduce is None and known and size >= draft.target.l3 // 2 and not draft.spec.readers(t.name):
        draft.do("stream", tensor=t.name)
        draft.note(f"{t.name}: its {size} bytes are stored past the cache")
        _ask_early(draft, op, again)


def _ask_early(draft: Draft, op: Op, again: tuple[str, ...]) -> None:
    """Inputs that are read in the order in which they lie, and are as large, are asked for early.

    Measured on Zen 3, five elementwise ops on 64 MB, beside a copy with streaming stores: 0.83 without, 0.88, 0.90,
    0.95, 1.03 and 0.87 with 256, 512, 1024, 2048 and 4096 bytes ahead. A row that is read several times over lies in
    the cache after the first time: what is asked for is the next row. RMS norm and layer norm, rows of 16 KiB: 0.69 and
    0.64 of the copy without, 0.59 and 0.56 with 2 KiB, 0.73 and 0.65 with 8 KiB, 0.85 and 0.74 with the whole row.
    """
    for load in dict.fromkeys(op.reads):
        t = draft.spec.tensor(load.tensor)
        size, rows = _bytes(draft, load.tensor), [moved_dim(e) for e in load.index]
        if t.name in draft.spec.input_names and size >= draft.target.l3 // 2 and rows == list(op.dims):
            row = size // prod(size_of(op.extent(d)) for d in again)
            fits = bool(again) and rows[: len(again)] == list(again) and row <= draft.target.l2 // 8
            ahead = ask_early(draft, t.name, row if fits else EARLY_BYTES)
            draft.note(f"{t.name}: streamed; lines are asked for {ahead} bytes ahead")


def _bytes(draft: Draft, tensor: str) -> int:
    t = draft.spec.tensor(tensor)
    return prod(size_of(e) for e in t.extents) * dtypes.info(t.dtype).bits // 8


def schedule_rows(draft: Draft, root: Op, group: Group) -> None:
    """Members are computed once for each point of their level, or each tile of it; the rest of the root follows."""
    depth = {d: -sum(d in m.level for m in group.members) for d in root.dims}
    order = sorted(root.dims, key=lambda d: depth[d])
    axes = list(order)
    lanes = draft.target.lanes(widest_dtype(draft, root))
    inner = [d for d in order if not depth[d]]
    dim = plain_dim(root.index[-1])
    if dim in inner and lanes > 1 and size_of(root.extent(dim)) >= 2:
        draft.order(root.name, axes)
        axes = split_lanes(draft, root, dim, lanes, axes)
    else:
        draft.order(root.name, axes)
    levels = [d for d in order if depth[d]]
    tiled = {d: f"{d}t" for d in levels if d not in axes and f"{d}t" in axes}  # turned with the lanes, in tiles
    outer = [tiled.get(d, d) for d in levels]
    share_among_threads(draft, root.name, outer, frozenset(outer) | tiled.keys())
    for member in group.members:
        at = [tiled.get(d, d) for d in order if d in member.level][-1]
        draft.note(f"{member.tensor}: computed inside {at} of {root.target}, just the part that is read there")
        for name in member.ops:
            at_once = {d for d, of in member.dims(name).items() if of in tiled}
            _row_member(draft, name, frozenset(member.dims(name)) - at_once, root.name, at)
    store_past_cache(draft, root, tuple(levels))


def _row_member(draft: Draft, name: str, fixed: frozenset[str], host: str, at: str) -> None:
    """Place an op at a level of its reader; ``fixed`` are its dims that are a single point there."""
    op = draft.spec.op(name)
    if op.reduce is None:
        draft.do("fuse", producer=name, into=host, at=at)
        local = [d for d in op.dims if d not in fixed]
        dim = plain_dim(op.index[-1]) if op.index else None
        lanes = draft.target.lanes(widest_dtype(draft, op))
        if dim in local and lanes > 1:
            split_lanes(draft, op, dim, lanes, list(op.dims))
        return
    tile = choose_tile(draft, op, fixed)  # one row at a time: nothing to unroll along the level
    made = sum_in_lanes(draft, op, tile) if tile is not None and tile.reduced else []
    if tile is not None and made:
        draft.note(f"{op.target}: {tile}", tile.instead)
    for part in [*made, name]:
        draft.do("fuse", producer=part, into=host, at=at)
        arrange(draft, part, tile if made else None)
    if tile is not None and not tile.reduced and tile.dim not in fixed:
        split_lanes(draft, op, tile.dim, tile.lanes, list(op.dims))

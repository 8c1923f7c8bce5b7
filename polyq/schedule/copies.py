"""Copies of operands in the order in which the tiles of a reduction read them."""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Load
from polyq.affine.spec import Op
from polyq.schedule.axes import share_among_threads
from polyq.schedule.draft import Draft, plain_dim, size_of
from polyq.schedule.tiles import Tile, stride

__all__ = ["RowCopy", "copy_rows", "scattered_rows"]

#: rows further apart than this meet in few sets of a cache, and share no page with many others
FAR_BYTES = 512
#: tiles that must read a copy before it pays
COPY_USES = 8
#: reduced steps that a copy takes at a time: whole lines of the copy are written
COPY_STEPS = 8


@dataclass(frozen=True, slots=True)
class RowCopy:
    """An operand whose last axis is unrolled, ``height`` at a time, and whose axis ``along`` is that of the sum."""

    load: Load
    height: int
    along: int


def scattered_rows(draft: Draft, main: Op, tile: Tile) -> list[RowCopy]:
    """Return the operands of a tile that take a line of memory, and a step of a row, for each term of its sums.

    ``a[k, i]`` with ``i`` unrolled is one: the tile uses a few elements of each row, and the next tile of ``i`` comes
    when the rows have left the cache.
    """
    found: list[RowCopy] = []
    tiles = size_of(main.extent(tile.dim)) // (tile.lanes * tile.vectors)
    for load in dict.fromkeys(main.reads):
        dims = [plain_dim(e) for e in load.index]
        height = dict(tile.unroll).get(dims[-1] or "", 1) if dims else 1
        reduced = [k for k, d in enumerate(dims) if d in main.reduced]
        t = draft.spec.tensor(load.tensor)
        fits = None not in dims and len(set(dims)) == len(dims) and all(e.is_constant for e in t.extents)
        narrow = dtypes.info(load.dtype).bits < 16
        if tile.reduced or not fits or narrow or stride(load, tile.dim) != 0 or height == 1 or len(reduced) != 1:
            continue
        row = size_of(t.extents[-1]) * dtypes.info(load.dtype).bits // 8
        if row >= FAR_BYTES and size_of(t.extents[reduced[0]]) >= 8 * COPY_STEPS and tiles >= COPY_USES:
            found.append(RowCopy(load, height, reduced[0]))
    return found


def copy_rows(draft: Draft, reader: str, copied: RowCopy) -> None:
    """Copy ``a[.., k, .., i]`` into ``[.., i / height, k, i % height]``, once, before its reader."""
    load, n, k = copied.load, copied.height, copied.along
    t = draft.spec.tensor(load.tensor)
    last = len(t.shape) - 1
    outer = [p for p in range(last) if p != k]
    e = Affine.dim(f"e{last}")
    inside = Affine.dim("t") * n + Affine.dim("r")
    dims = (*(f"e{p}" for p in outer), "t", f"e{k}", "r")
    whole = t.extents[last].const % n == 0
    (copy,) = draft.do(
        "copy_of",
        tensor=load.tensor,
        readers=(reader,),
        shape=(*(t.extents[p] for p in outer), (t.extents[last] + n - 1) // n, t.extents[k], Affine(n)),
        dims=dims,
        source=(*(Affine.dim(f"e{p}") for p in range(last)), inside),
        place=(*(Affine.dim(f"e{p}") for p in outer), e // n, Affine.dim(f"e{k}"), e % n),
        where=() if whole else (Constraint(t.extents[last] - 1 - inside),),
    )
    draft.do("split", op=copy, axis=f"e{k}", factor=COPY_STEPS, outer=f"e{k}o", inner=f"e{k}i")
    draft.order(copy, [*(f"e{p}" for p in outer), f"e{k}o", "t", f"e{k}i", "r"])
    draft.do("mark", op=copy, axis="r", kind="unroll")
    share_among_threads(draft, copy, [*(f"e{p}" for p in outer), f"e{k}o"], frozenset(dims))
    draft.note(f"{load.tensor}: copied once in tiles of {n}, since their rows lie apart and many tiles read them")

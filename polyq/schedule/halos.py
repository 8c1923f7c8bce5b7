"""Schedules of chains in overlapped tiles: what :mod:`polyq.schedule.overlap` weighs, as directives."""

from __future__ import annotations

from polyq.affine.spec import Op
from polyq.schedule.axes import widest_dtype
from polyq.schedule.draft import Draft, moved_dim, plain_dim, size_of
from polyq.schedule.overlap import Chain, OverlappedTile, best_tile, bytes_of, chain_of, weights
from polyq.schedule.rows import store_past_cache

__all__ = ["schedule_chain"]

#: how far ahead a tile's inputs are asked for: the second cache's prefetcher starts afresh with every tile
AHEAD_BYTES = 4096


def schedule_chain(draft: Draft, root: Op, free: frozenset[str]) -> tuple[str, ...]:
    """Compute temporaries in overlapped tiles of ``root`` where counts favour it; return the ops that are settled."""
    chain = chain_of(draft.spec, root, free)
    tile = None if chain is None else best_tile(draft.spec, chain, draft.target)
    if chain is None or tile is None:
        return ()
    in_l1 = tile.scratch <= draft.target.l1
    weighed = {t: weights(draft.spec, t, draft.target, r, in_l1) for t, r in tile.recompute}
    if sum(w.tile for w in weighed.values()) > sum(w.whole for w in weighed.values()):
        for tensor, w in weighed.items():
            draft.note(f"{tensor}: stored whole; cycles a vector: {w}")
        return ()
    at = _tiled(draft, root, tile)
    for name in reversed(chain.ops):
        draft.do("fuse", producer=name, into=root.name, at=at)
        _lanes(draft, draft.spec.op(name))
    store_past_cache(draft, root)
    _ask_early(draft, chain)
    _noted(draft, chain, tile)
    for tensor, w in weighed.items():
        factor = dict(tile.recompute)[tensor]
        draft.note(f"{tensor}: in tiles of {root.target}, recompute factor {factor:.3f}; cycles a vector: {w}")
    return (root.name, *chain.ops)


def _ask_early(draft: Draft, chain: Chain) -> None:
    """Ask early for inputs larger than the caches that are read in order.

    Measured on Zen 3, four 3-point stencils on 40 MB: 11.2 and 6.8 ms on one and two threads without, 9.3 and 6.2, 7.7
    and 5.5, 8.4 and 5.0, 8.2 and 4.9 with 1024, 2048, 4096 and 8192 bytes ahead.
    """
    for op in map(draft.spec.op, chain.ops):
        for load in op.reads:
            in_order = [moved_dim(e) for e in load.index] == list(op.dims)
            large = bytes_of(draft.spec, load.tensor) >= draft.target.l3 // 2
            if load.tensor in draft.spec.input_names and in_order and large:
                draft.do("prefetch", tensor=load.tensor, ahead=AHEAD_BYTES)


def _noted(draft: Draft, chain: Chain, tile: OverlappedTile) -> None:
    draft.note(
        f"{draft.spec.op(chain.root).target}: {tile.tiles} tiles of {tile}, with what each reads of "
        f"{', '.join(chain.tensors)} in {tile.scratch} bytes of scratch; "
        "borders are computed by every tile that reads them"
    )


def _tiled(draft: Draft, root: Op, tile: OverlappedTile) -> str:
    """Tile the root, divide tiles among threads, give it lanes; return the axis inside which a tile is computed."""
    outer: list[tuple[str, int]] = []
    inner: list[str] = []
    for dim in root.dims:
        size = dict(tile.sizes).get(dim)
        if size is None:
            inner.append(dim)
        elif size == 1:
            outer.append((dim, size_of(root.extent(dim))))
        else:
            draft.do("split", op=root.name, axis=dim, factor=size, outer=f"{dim}o", inner=f"{dim}i")
            outer.append((f"{dim}o", -(-size_of(root.extent(dim)) // size)))
            inner.append(f"{dim}i")
    draft.order(root.name, [*(a for a, _ in outer), *inner])
    _lanes(draft, root)
    many = 4 * draft.target.cores
    shared = next((a for a, n in outer if n >= many), max(outer, key=lambda a: a[1])[0])
    draft.do("mark", op=root.name, axis=shared, kind="parallel")
    return outer[-1][0]


def _lanes(draft: Draft, op: Op) -> None:
    """Give an op lanes along the dim that its tensor stores contiguously, innermost."""
    dim = None if not op.index else moved_dim(op.index[-1])
    lanes = draft.target.lanes(widest_dtype(draft, op))
    if dim is None or lanes == 1 or (plain_dim(op.index[-1]) is None and op.where):
        return
    order = draft.plan.stage(op.name).order
    axis = dim if dim in order else f"{dim}i"
    if axis not in order:
        return
    draft.do("split", op=op.name, axis=axis, factor=lanes, outer=f"{dim}b", inner=f"{dim}v")
    draft.do("mark", op=op.name, axis=f"{dim}v", kind="vector")
    rest = [a for a in order if a != axis]
    draft.order(op.name, [*rest, f"{dim}b", f"{dim}v"])

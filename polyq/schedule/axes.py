"""Axes of one stage: lanes, blocks for the cache, and the axis that is divided among threads."""

from __future__ import annotations

from polyq.affine import dtypes
from polyq.affine.spec import Op
from polyq.schedule.choices import decide
from polyq.schedule.draft import Draft, plain_dim, size_of
from polyq.schedule.tiles import stride

#: bytes ahead that are worth trying in place of what the counts say
DISTANCES = (2048, 0, 4096, 1024, 8192)

__all__ = ["ask_early", "share_among_threads", "split_lanes", "widest_dtype"]


def widest_dtype(draft: Draft, op: Op) -> str:
    """The dtype that decides how many lanes there are: f32 lanes for 8 to 32 bits, 64-bit ones where they occur."""
    names = [draft.spec.tensor(op.target).dtype, *(r.dtype for r in op.reads)]
    return "f64" if any(dtypes.info(n).bits == 64 for n in names) else "f32"


def ask_early(draft: Draft, tensor: str, ahead: int) -> int:
    """Ask for the lines of a tensor so many bytes ahead; return the distance, 0 where none is asked for."""
    distances = list(dict.fromkeys([ahead, *DISTANCES]))
    chosen = decide(f"early lines of {tensor}", [f"{d} bytes ahead" if d else "none" for d in distances], distances)
    if chosen:
        draft.do("prefetch", tensor=tensor, ahead=chosen)
    return chosen


def split_lanes(draft: Draft, op: Op, dim: str, lanes: int, axes: list[str]) -> list[str]:
    """Split ``dim`` into vectors; where an operand is contiguous along another dim, block both for the cache."""
    block, lane = f"{dim}b", f"{dim}v"
    draft.do("split", op=op.name, axis=dim, factor=lanes, outer=block, inner=lane)
    draft.do("mark", op=op.name, axis=lane, kind="vector")
    axes = [block if a == dim else a for a in axes]
    across = _contiguous_elsewhere(op, dim)
    if across is not None and size_of(op.extent(across)) > 16:
        draft.do("split", op=op.name, axis=across, factor=16, outer=f"{across}t", inner=f"{across}i")
        axes = [f"{across}t" if a == across else a for a in axes]
        axes.append(f"{across}i")
    elif op.reduce is not None:  # reduced dims run outside of the lanes
        axes = [a for a in axes if a != block] + [block]
    draft.order(op.name, [*axes, lane])
    return axes


def _contiguous_elsewhere(op: Op, dim: str) -> str | None:
    """A dim along which an operand is contiguous that is strided along ``dim``."""
    for load in op.reads:
        if stride(load, dim) is None:
            for other in op.dims:
                if other != dim and stride(load, other) == 1:
                    return other
    return None


def share_among_threads(
    draft: Draft, op: str, axes: list[str], free: frozenset[str], avoid: str | bool | None = None
) -> None:
    """Divide the first axis that is long enough among threads, else the longest."""
    spec_op, stage = draft.spec.op(op), draft.plan.stage(op)
    sizes: dict[str, int] = {}
    for axis in axes:
        made = stage.split_of(axis)
        root = axis if made is None else made.axis
        while (up := stage.split_of(root)) is not None:
            root = up.axis
        if (axis not in free and root not in free) or root == avoid:
            continue
        if root in spec_op.reduced or stage.kind(axis) != "serial" or (made is not None and made.inner == axis):
            continue
        parts = 1
        for s in stage.splits:
            if s.outer == axis or (s.axis in (axis, root) and s.outer == axis):
                parts *= s.factor
        if _shares_bytes(draft, spec_op, root, parts):
            continue
        sizes[axis] = size_of(spec_op.extent(root)) // parts
    many = 4 * draft.target.cores
    chosen = next((a for a in axes if sizes.get(a, 0) >= many), None) or max(
        sizes, key=lambda a: sizes[a], default=None
    )
    if chosen is not None and sizes[chosen] > 1:
        order = [chosen, *(a for a, size in sizes.items() if a != chosen and size > 1)]
        draft.do("mark", op=op, axis=decide(f"threads of {op}", order, order), kind="parallel")


def _shares_bytes(draft: Draft, op: Op, dim: str, step: int) -> bool:
    """Whether neighbours along ``dim``, ``step`` elements apart, may write elements of one byte."""
    d = dtypes.info(draft.spec.tensor(op.target).dtype)
    if not d.packed or not op.index or dim not in op.index[-1].dims():
        return False
    extent = op.extent(dim)
    whole = extent.is_constant and extent.const % step == 0  # what is left over goes element by element
    return plain_dim(op.index[-1]) != dim or step % (8 // d.bits) != 0 or not whole

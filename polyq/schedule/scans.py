"""Recurrences: ops that read what they wrote at an earlier instance.

Along some dims a recurrence goes step by step. A dim along which every access to the op's own tensor stays in the
same place is independent of it: its iterations never meet, so it may be divided among threads, moved outside of the
steps, and run in lanes. Where the tensor is contiguous along an independent dim, lanes lie there. Where it is
contiguous along the steps, several independent chains run side by side, so that one need not wait for the other's
latency: a sum goes as fast as a copy then, and lanes would gain nothing (65536 cells in the second cache, one thread
of Zen 3: 24 us of adding, 22 us for the copy). Lanes across rows are for functions, which cost more than collecting
them.
"""

from __future__ import annotations

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, loads, walk
from polyq.affine.spec import Op
from polyq.schedule.axes import share_among_threads, widest_dtype
from polyq.schedule.draft import Draft, moved_dim, size_of

__all__ = ["CHAINS", "independent_dims", "schedule_scan"]

#: chains side by side. Measured on Zen 3, y[b, t] = 0.5*y[b, t - 1] + x[b, t], 1024 rows of 1024, one thread: 2.2 ms
#: one by one, 1.0 with four, 6.1 with eight, whose 16 lines, 4 KiB apart, meet in one set of the first cache
CHAINS = 4
#: functions that cost more than collecting lanes from rows. Measured on Zen 3, 64 rows of 1024, one thread: tanh takes
#: 1.69 ms in chains and 0.56 in lanes, exp 0.60 and 0.60; a division 0.11 and 0.51, a square root 0.14 and 0.49
FUNCTIONS = ("exp", "log", "tanh", "erf")


def independent_dims(op: Op) -> tuple[str, ...]:
    """Return the dims that every read of the op's own tensor keeps: different iterations touch different cells.

    >>> from polyq.affine.notation import parse
    >>> spec = parse("y[b, t] = x[b, t] + y[b, t - 1] where t >= 1", x=("f32", (4, 9)), y=("f32", (4, 9)))
    >>> independent_dims(spec.op("y"))
    ('b',)
    """
    own = [r.index for r in loads(op.body) if r.tensor == op.target]
    places = {d: k for k, e in enumerate(op.index) if (d := moved_dim(e)) is not None}
    bound = {d for c in op.where for d in c.expr.dims()}
    kept = [d for d in op.dims if d in places and all(index[places[d]] == op.index[places[d]] for index in own)]
    return tuple(d for d in kept if d not in bound)


def schedule_scan(draft: Draft, op: Op) -> bool:
    """Schedule a recurrence; return whether it is one, with a dim that is independent of it."""
    free = independent_dims(op)
    steps = [d for d in op.dims if d not in free]
    if not (op.index and free and steps) or op.reduce is not None or all(r.tensor != op.target for r in op.reads):
        return False
    if dtypes.info(draft.spec.tensor(op.target).dtype).packed:
        return False
    last = moved_dim(op.index[-1])
    lanes = draft.target.lanes(widest_dtype(draft, op))
    if last in free and lanes > 1 and size_of(op.extent(last)) >= 2:
        _in_lanes(draft, op, free, steps, last, lanes)
    elif lanes > 1 and draft.relaxed and size_of(op.extent(free[-1])) >= lanes and _calls_functions(op):
        _across_rows(draft, op, free, steps, lanes)
    else:
        _side_by_side(draft, op, free, steps)
    return True


def _calls_functions(op: Op) -> bool:
    return any(isinstance(n, Apply) and n.fn in FUNCTIONS for n in walk(op.body))


def _across_rows(draft: Draft, op: Op, free: tuple[str, ...], steps: list[str], lanes: int) -> None:
    """Lanes along the innermost independent dim although elements lie a row apart: a function in lanes is worth it."""
    dim = free[-1]
    draft.do("split", op=op.name, axis=dim, factor=lanes, outer=f"{dim}b", inner=f"{dim}v")
    draft.do("mark", op=op.name, axis=f"{dim}v", kind="vector")
    outer = [*free[:-1], f"{dim}b"]
    draft.order(op.name, [*outer, *steps, f"{dim}v"])
    share_among_threads(draft, op.name, outer, frozenset(outer))
    draft.note(f"{op.target}: step by step along {', '.join(steps)}, lanes along {dim}, a row apart, for its functions")


def _in_lanes(draft: Draft, op: Op, free: tuple[str, ...], steps: list[str], dim: str, lanes: int) -> None:
    """Lanes along ``dim``, in blocks that a thread takes through all steps while they lie in its cache."""
    outer = [d for d in free if d != dim]
    bits = max(dtypes.info(draft.spec.tensor(op.target).dtype).bits, 8)
    block = _block(draft, size_of(op.extent(dim)), bits // 8, lanes, any(size_of(op.extent(d)) > 1 for d in outer))
    axis, first = dim, list(outer)
    if block:
        draft.do("split", op=op.name, axis=dim, factor=block, outer=f"{dim}o", inner=f"{dim}i")
        first, axis = [*outer, f"{dim}o"], f"{dim}i"
    draft.do("split", op=op.name, axis=axis, factor=lanes, outer=f"{dim}b", inner=f"{dim}v")
    draft.do("mark", op=op.name, axis=f"{dim}v", kind="vector")
    draft.order(op.name, [*first, *steps, f"{dim}b", f"{dim}v"])
    share_among_threads(draft, op.name, first, frozenset(first))
    inside = f"blocks of {block} along {dim}" if block else f"all of {dim}"
    draft.note(f"{op.target}: step by step along {', '.join(steps)}, lanes along {dim}; a thread takes {inside}")


def _block(draft: Draft, size: int, width: int, lanes: int, others: bool) -> int:
    """Cells along the lanes that one thread takes at a time; 0 for all of them."""
    fits = max(lanes * 4, draft.target.l1 // 4 // width)
    shared = size if others else size // (2 * draft.target.cores)
    block = min(fits, max(shared, lanes * 4)) // lanes * lanes
    return block if block < size else 0


def _side_by_side(draft: Draft, op: Op, free: tuple[str, ...], steps: list[str]) -> None:
    """Several chains of the innermost independent dim at a time, since each waits for itself."""
    dim = free[-1]
    outer: list[str] = list(free)
    inner: list[str] = []
    if size_of(op.extent(dim)) >= 2 * CHAINS:
        draft.do("split", op=op.name, axis=dim, factor=CHAINS, outer=f"{dim}o", inner=f"{dim}i")
        draft.do("mark", op=op.name, axis=f"{dim}i", kind="unroll")
        outer, inner = [*free[:-1], f"{dim}o"], [f"{dim}i"]
    draft.order(op.name, [*outer, *steps, *inner])
    share_among_threads(draft, op.name, outer, frozenset(outer))
    count = f"{CHAINS} chains" if inner else "one chain"
    draft.note(f"{op.target}: step by step along {', '.join(steps)}, {count} of {dim} side by side")

"""Long reductions to few cells: divided into parts that threads compute side by side, then combined."""

from __future__ import annotations

from math import prod

from polyq.affine.dtypes import info, is_float
from polyq.affine.spec import Op
from polyq.schedule.axes import widest_dtype
from polyq.schedule.draft import Draft, plain_dim, size_of, work_of
from polyq.schedule.tiles import stride

__all__ = ["divide_sum", "divide_total", "rows_first"]

#: instances from which dividing a reduction among threads pays
DIVIDED_WORK = 1 << 18
#: instances of one piece of a total: some microseconds of a thread
PIECE = 1 << 14


def divide_sum(draft: Draft, tensor: str) -> None:
    """A long reduction to few cells is divided among threads: each sums a part, then the parts are combined."""
    for op in draft.spec.writers(tensor):
        exact = not is_float(draft.spec.tensor(tensor).dtype) or op.reduce in ("min", "max")
        if op.reduce is None or op.where or tensor in draft.divided or not (exact or draft.relaxed):
            continue
        part = _part(draft, op) if draft.target.cores > 1 else None
        if part is None:
            continue
        dim, chunk = part
        count = (op.extent(dim) + chunk - 1) // chunk
        draft.do("split_dim", op=op.name, dim=dim, factor=chunk, outer=f"{dim}p", inner=f"{dim}c")
        before = {t.name for t in draft.spec.all_tensors}
        draft.do("partial_sums", op=op.name, keep=(f"{dim}p",))
        draft.divided |= {tensor, *({t.name for t in draft.spec.all_tensors} - before)}
        draft.note(f"{tensor}: {count} partial results along {dim}, so that threads share the work")


def _part(draft: Draft, op: Op) -> tuple[str, int] | None:
    """Return the dim to divide and the length of a part, where that pays."""
    cells = work_of(op) // max(1, prod(size_of(op.extent(d)) for d in op.reduced))
    if cells >= 4 * draft.target.cores:
        return None
    known = [d for d in op.dims if d in op.reduced and op.extent(d).is_constant]
    if work_of(op) < DIVIDED_WORK or not known:
        return None
    dim = max(known, key=lambda d: (size_of(op.extent(d)) >= 4 * draft.target.cores, -op.dims.index(d)))
    chunk = _divisor(size_of(op.extent(dim)), 2 * draft.target.cores)
    return None if chunk == 0 else (dim, chunk)


def _divisor(size: int, parts: int) -> int:
    """Return the length of ``parts`` equal parts or of somewhat more of them, 0 where there is none."""
    chunk = next((c for c in range(size // parts, 0, -1) if size % c == 0), 0)
    return 0 if chunk == 0 or size // chunk > 64 * parts else chunk


def divide_total(draft: Draft, part: str) -> list[str]:
    """Let threads share a sum in lanes of any length: each sums whole pieces of it; return the new ops.

    ``part`` is the op that sums in lanes. Extents that no one knows may be long; a short sum is a single piece.
    """
    op = draft.spec.op(part)
    kept = {d for e in op.index for d in e.dims()}
    long = [d for d in op.dims if d not in kept]
    unknown = [d for d in long if not op.extent(d).is_constant]
    if draft.target.cores < 2 or not long or (work_of(op) < DIVIDED_WORK and not unknown):
        return []
    dim = next(iter(unknown), long[0])
    size = max(1, PIECE * max(1, size_of(op.extent(dim))) // work_of(op))
    before = {o.name for o in draft.spec.ops}
    draft.do("split_dim", op=part, dim=dim, factor=size, outer=f"{dim}p", inner=f"{dim}c")
    draft.do("partial_sums", op=part, keep=(f"{dim}p",), outer=True)
    tensor = next(o.target for o in draft.spec.ops if o.name not in before and o.reduce is not None)
    draft.do("accumulate", tensor=tensor)  # what is summed stays in registers
    draft.note(f"{op.target}: pieces of {size} steps along {dim}, which threads share")
    return [o.name for o in draft.spec.ops if o.name not in before]


def rows_first(draft: Draft, tensor: str) -> None:
    """Sum rows of a matrix in the order in which they lie, each thread a part of them, into a row of its own.

    Lanes of the result would walk columns: one line of each row, a page apart.
    """
    for op in draft.spec.writers(tensor):
        packed = info(draft.spec.tensor(tensor).dtype).packed  # bytes would be shared by lanes and by threads
        dim = plain_dim(op.index[-1]) if len(op.index) == 1 and not packed else None
        exact = not is_float(draft.spec.tensor(tensor).dtype) or op.reduce in ("min", "max")
        if dim is None or op.reduce is None or op.where or tensor in draft.divided or not (exact or draft.relaxed):
            continue
        rows = [d for d in op.reduced if op.extent(d).is_constant and size_of(op.extent(d)) >= 16 * draft.target.cores]
        whole = [r for r in op.reads if {d for e in r.index for d in e.dims()} == set(op.dims) and stride(r, dim) == 1]
        width = size_of(op.extent(dim)) * max(info(draft.spec.tensor(tensor).dtype).bits // 8, 1)
        if not rows or rows[0] != op.reduced[0] or len(whole) != 1 or not 2048 <= width <= draft.target.l2 // 4:
            continue
        size = size_of(op.extent(rows[0]))
        chunk = next((c for c in range(size // draft.target.cores, 15, -1) if size % c == 0 and c % 4 == 0), 0)
        if not op.extent(dim).is_constant or chunk == 0 or draft.target.lanes("f32") < 2:
            continue
        _place_rows(draft, op, rows[0], dim, chunk)
        draft.divided.add(tensor)
        draft.note(f"{tensor}: rows are summed in the order in which they lie, {size // chunk} parts side by side")


def _place_rows(draft: Draft, op: Op, row: str, dim: str, chunk: int) -> None:
    draft.do("split_dim", op=op.name, dim=row, factor=chunk, outer=f"{row}p", inner=f"{row}c")
    made = draft.do("partial_sums", op=op.name, keep=(f"{row}p",), outer=True)
    part = next(o for o in map(draft.spec.op, made) if o.reduce is not None)
    draft.private.add(part.target)
    lanes = draft.target.lanes(widest_dtype(draft, part))
    for name in (f"{part.name}.init", part.name):
        draft.do("split", op=name, axis=dim, factor=lanes, outer=f"{dim}b", inner=f"{dim}v")
        draft.do("mark", op=name, axis=f"{dim}v", kind="vector")
        draft.do("mark", op=name, axis=f"{row}p", kind="parallel")
    draft.do("split", op=part.name, axis=f"{row}c", factor=4, outer=f"{row}o", inner=f"{row}i")
    draft.do("mark", op=part.name, axis=f"{row}i", kind="unroll")
    rest = [d for d in part.dims if d not in (f"{row}p", f"{row}c", dim)]
    draft.order(part.name, [f"{row}p", f"{row}o", *rest, f"{dim}b", f"{row}i", f"{dim}v"])

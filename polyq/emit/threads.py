"""Loops that threads share: the work in one iteration, and elements that share a byte."""

from __future__ import annotations

from collections.abc import Mapping

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Dim
from polyq.emit.address import Names, affine_text
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Scope, walk

__all__ = ["check_packed", "is_uneven", "work"]


def work(block: Block, names: Names, bind: Mapping[str, Affine]) -> str:
    """Return a C estimate of the innermost statements in one iteration; bounds that vary inside count as 16."""
    terms: list[str] = []
    for node in block:
        match node:
            case Loop():
                inner = work(node.body, names, bind)
                trips = _trips(node, names, bind)
                terms.append(trips if inner == "1.0" else inner if trips == "1.0" else f"{trips} * ({inner})")
            case Guard() | Scope():
                terms.append(work(node.body, names, bind))
            case Assign():
                terms.append("1.0")
    return " + ".join(terms) or "0.0"


def _trips(loop: Loop, names: Names, bind: Mapping[str, Affine]) -> str:
    spans = [u.substitute(bind) - low.substitute(bind) for u in loop.upper for low in loop.lower]
    numbers = [e.const for e in spans if e.is_constant]
    if numbers:
        return f"{max(min(numbers), 0)}.0"
    known = [e for e in spans if not e.dims()]
    return f"(double)({affine_text(known[0], names)})" if known else "16.0"


def is_uneven(loop: Loop) -> bool:
    """Whether the iterations of a loop hold different amounts of work, as in a triangle: equal slices are unfair then.

    A loop inside counts whose bounds follow ``loop.var`` from end to end; edges of tiles have a constant bound beside.
    """
    return any(
        any(all(loop.var in e.dims() for e in bounds) for bounds in (node.lower, node.upper))
        and not all((u - low).is_constant for u in node.upper for low in node.lower)
        for node in walk(loop.body)
        if isinstance(node, Loop)
    )


def check_packed(nest: LoopNest, loop: Loop) -> None:
    """Raise :class:`ScheduleError` where iterations of a parallel loop write elements of one byte."""
    private = {b.name for node in walk(loop.body) if isinstance(node, Scope) for b in node.buffers}
    shared = {b.name: b for b in nest.all_buffers() if dtypes.info(b.dtype).packed and b.name not in private}
    ranges = {n.var: _range(n) for n in walk(loop.body) if isinstance(n, Loop)}
    for node in (n for n in walk(loop.body) if isinstance(n, Assign) and n.target in shared):
        buffer = shared[node.target]
        if not _bytes_apart(node, loop.var, buffer, ranges):
            fields, cell = 8 // dtypes.info(buffer.dtype).bits, f"{buffer.name}[{', '.join(map(str, node.index))}]"
            raise ScheduleError(
                f"{node.op}: axis {loop.var!r} cannot be parallel: {cell} packs {fields} elements of {buffer.dtype} in "
                "a byte, and threads would write to one byte; make another axis parallel, or split this one by a "
                f"multiple of {fields} and make the outer part parallel"
            )


def _range(loop: Loop) -> tuple[int, int] | None:
    """Return the inclusive range of a loop with constant bounds."""
    low, high = [e.const for e in loop.lower if e.is_constant], [e.const for e in loop.upper if e.is_constant]
    return (max(low), min(high) - 1) if low and high else None


def _bytes_apart(write: Assign, var: str, buffer: Buffer, ranges: Mapping[str, tuple[int, int] | None]) -> bool:
    """Whether two iterations of ``var`` never write to one byte."""
    rows, last = write.index[:-1], write.index[-1]
    if any(e.coefficient(Dim(var)) and not e.dims() & set(ranges) for e in rows):
        return True  # another row for each iteration
    if var not in last.dims():
        return True  # then the rows differ, or one cell is written twice, which no schedule may do
    step, fields = last.coefficient(Dim(var)), 8 // dtypes.info(buffer.dtype).bits
    rest = last - Affine.dim(var) * step
    inner = Affine.build(rest.const, [(a, c) for a, c in rest.terms if Affine.build(0, [(a, c)]).dims() & set(ranges)])
    fixed = rest - inner
    bounds = inner.bounds({name: r for name, r in ranges.items() if r is not None})
    if bounds is None or var in rest.dims() or step % fields or any(c % fields for _, c in fixed.terms):
        return False
    return bounds[1] // fields - bounds[0] // fields < abs(step) // fields

"""What the printer makes of loops and scratch: which are written out or become lanes, which scratch is registers."""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim
from polyq.affine.scalar import loads
from polyq.emit.address import constant_shape
from polyq.emit.ctypes import compute_type, width
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, Scope, walk

__all__ = [
    "MOST_UNROLLED",
    "REGISTER_CELLS",
    "cell_paths",
    "is_flat",
    "lane_count",
    "live_lanes",
    "register_lanes",
    "trip_count",
]

#: a buffer of more variables than this lives in memory
REGISTER_CELLS = 128
#: an unrolled loop of more iterations stays a loop
MOST_UNROLLED = 64
_WIDEST = 64


def trip_count(loop: Loop) -> int | None:
    """Return a constant upper bound of the iterations, the best that a pair of bounds gives."""
    counts = [(u - low).const for u in loop.upper for low in loop.lower if (u - low).is_constant]
    return min(counts) if counts else None


def is_flat(loop: Loop) -> bool:
    """Whether the body is assignments alone."""
    return all(isinstance(node, Assign) for node in loop.body)


def lane_count(loop: Loop) -> int:
    """Return the lanes of a vector loop that is one vector, else 0: the power of two that bounds it.

    A lower constant bound beside it, as in ``min(8, 5)``, says how many lanes are live.
    """
    if loop.kind != "vector" or not is_flat(loop) or len(loop.lower) != 1:
        return 0
    counts = [(u - loop.lower[0]).const for u in loop.upper if (u - loop.lower[0]).is_constant]
    return max((n for n in counts if 2 <= n <= _WIDEST and n & (n - 1) == 0), default=0)


def live_lanes(loop: Loop) -> int | None:
    """Return how many lanes of a vector loop are live where that is a number."""
    spans = [u - loop.lower[0] for u in loop.upper]
    return max(0, min(e.const for e in spans)) if all(e.is_constant for e in spans) else None


def strip_width(loop: Loop, vector_bytes: int, dtype_of: dict[str, str]) -> int:
    """Return the lanes in which a long vector loop is cut: as many of its widest type as fit one register."""
    types = {dtype_of[n.target] for n in loop.body if isinstance(n, Assign)}
    types |= {load.dtype for n in loop.body if isinstance(n, Assign) for load in loads(n.value)}
    widest = max(width(compute_type(t)) for t in types)
    return max(2, vector_bytes // widest)


def unrolls(loop: Loop) -> bool:
    """Whether an unrolled loop with constant bounds is short enough to be written out."""
    count = trip_count(loop)
    return loop.kind == "unroll" and count is not None and count <= MOST_UNROLLED


# ---- registers
#: lanes of the variables of a buffer, and the axis along which they lie: what each access wants
Places = set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Known:
    """Loop variables that are numbers when a statement is printed, and the vector loop (variable, lanes)."""

    names: frozenset[str]
    vector: tuple[str, int] | None = None


def register_lanes(buffer: Buffer, body: Block, known: frozenset[str], vectors: bool) -> tuple[int, int] | None:
    """Return how ``buffer`` can be a set of variables, or ``None`` where it has to be memory.

    The lanes of each variable (0: scalars) and the axis along which they lie. It can if every subscript is a number
    once unrolled loops are written out, but for one vector loop in one of them, the same for all accesses.
    """
    shape, cells = constant_shape(buffer), 1
    for extent in shape:
        cells *= extent
    if any(isinstance(n, Loop) and n.kind == "parallel" for n in walk(body)):
        return None
    lanes: Places = set()
    if not _all_known(buffer.name, body, _Known(known), vectors, lanes) or len(lanes) > 1:
        return None
    count, axis = next(iter(lanes), (0, -1))
    if count and (not shape or shape[axis] % count or dtypes.info(buffer.dtype).packed):
        return None
    return (count, axis) if cells <= REGISTER_CELLS * max(count, 1) else None


def _all_known(name: str, body: Block, known: _Known, vectors: bool, lanes: Places) -> bool:
    return all(_node_known(name, node, known, vectors, lanes) for node in body)


def _node_known(name: str, node: Loop | Guard | Scope | Assign, known: _Known, vectors: bool, lanes: Places) -> bool:
    match node:
        case Loop():
            return _all_known(name, node.body, _inside(node, known, vectors), vectors, lanes)
        case Guard(_, inner) | Scope(_, inner):
            return _all_known(name, inner, known, vectors, lanes)
        case Assign(_, _, target, index, value, _):
            accesses = [load.index for load in loads(value) if load.tensor == name]
            accesses += [index] if target == name else []
            return all(_is_known(access, known, lanes) for access in accesses)


def _inside(loop: Loop, known: _Known, vectors: bool) -> _Known:
    constant = all(not (e.dims() - known.names) and not e.params() for e in loop.lower + loop.upper)
    if unrolls(loop) and constant:
        return _Known(known.names | {loop.var}, known.vector)
    count = lane_count(loop) if vectors else 0
    if count and loop.lower[0].is_constant and loop.lower[0].const % count == 0:
        return _Known(known.names, (loop.var, count))
    return known


def _is_known(index: tuple[Affine, ...], known: _Known, lanes: Places) -> bool:
    varying = False
    for position, e in enumerate(index):
        free = (e.dims() - known.names) | e.params()
        if not free:
            continue
        if known.vector is None or free - {known.vector[0]} or varying:
            return False
        varying = True
        var, count = known.vector
        rest = e - Affine.dim(var)
        if var in rest.dims() or rest.const % count or any(c % count for a, c in rest.terms if isinstance(a, Dim)):
            return False
        if any(not isinstance(a, Dim) for a, _ in rest.terms):
            return False
        lanes.add((count, position))
    return True


def cell_paths(buffer: Buffer, lanes: int, axis: int) -> list[tuple[int, ...]]:
    """Return the variables of a register buffer, by block of lanes along ``axis``, which comes last."""
    shape = list(constant_shape(buffer))
    if lanes:
        shape.append(shape.pop(axis) // lanes)
    paths: list[tuple[int, ...]] = [()]
    for extent in shape:
        paths = [(*p, i) for p in paths for i in range(extent)]
    return paths

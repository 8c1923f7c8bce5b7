"""Overlapped tiles: producers that are read with a halo, computed with each tile of what reads them.

A chain is a result and the temporaries that only it and each other read, all of them assignments. The result is tiled;
each tile computes into scratch what it reads of every temporary, so that the borders of tiles are computed more than
once and no whole temporary goes through memory (Halide calls this compute_at, with a redundant halo). The alternatives
are counted side by side: computing a temporary where it is read, once for each distinct use; the overlapped tile, at
its recompute factor; storing it whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from polyq.affine import dtypes
from polyq.affine.expr import Affine
from polyq.affine.scalar import Apply, loads, substitute_dims, walk
from polyq.affine.spec import Op, Spec
from polyq.schedule.draft import is_weighed, moved_dim, plain_dim, size_of, work_of
from polyq.schedule.regions import Reader, box_of, region_of
from polyq.schedule.target import Target

__all__ = [
    "COSTLY",
    "Chain",
    "OverlappedTile",
    "Weights",
    "best_tile",
    "bytes_of",
    "chain_of",
    "cost_of",
    "keeps",
    "moved_cost",
    "weights",
]

#: functions and divisions that take a vector unit several cycles
COSTLY = frozenset({"exp", "log", "tanh", "erf", "sqrt", "div"})
#: temporaries of up to so many bytes are not worth a tile
SMALL_BYTES = 4096
#: what a symbolic extent without a typical size counts as
LARGE_EXTENT = 1 << 14

# Cycles for each vector of results; Zen 3 and its Intel contemporaries, after Agner Fog's instruction tables.
_ARITHMETIC, _FUNCTION, _LOAD, _STORE = 0.5, 8.0, 0.5, 1.0
_BEYOND_L1 = 1.0  # one load and one store of a tile that lies in the second cache
_BEYOND_L2, _BEYOND_L3 = 4.0, 16.0  # a whole temporary written and read again: from the third cache, from memory
_REGION = 1000.0  # a pass of its own, which all threads begin and end together
_ROW, _TILE = 15.0, 100.0  # what each op costs besides its vectors, a row of a tile and a tile


@dataclass(frozen=True, slots=True)
class Chain:
    """A result, the temporaries computed with its tiles (readers before what they read), and the ops of these."""

    root: str
    tensors: tuple[str, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OverlappedTile:
    """Sizes by dim of the root (those left out are whole), and what they come to.

    ``cells`` are computed for one tile, by op; ``recompute`` is what all tiles compute of a tensor over what there is
    of it; ``scratch`` is in bytes; ``cost`` in cycles for each vector of the result.
    """

    sizes: tuple[tuple[str, int], ...]
    cells: tuple[tuple[str, int], ...]
    recompute: tuple[tuple[str, float], ...]
    scratch: int
    tiles: int
    cost: float

    def __str__(self) -> str:
        return " x ".join(f"{d} {n}" for d, n in self.sizes)


@dataclass(frozen=True, slots=True)
class Weights:
    """What the alternatives for one temporary cost, in cycles for each vector of it."""

    uses: float
    inline: float
    tile: float
    whole: float

    def __str__(self) -> str:
        return f"{self.inline:.1f} where it is read, {self.tile:.1f} in tiles, {self.whole:.1f} stored whole"


# ---- which ops belong together
def chain_of(spec: Spec, root: Op, free: frozenset[str]) -> Chain | None:
    r"""Return the chain of ``root``: temporaries in ``free``, at least one of which is read with a halo.

    >>> from polyq.affine.notation import parse
    >>> text = "t[i] = x[i] + x[i + 1] where i < 19\ny[i] = t[i] + t[i + 1] where i < 18"
    >>> spec = parse(text, x=("f32", (20,)))
    >>> chain_of(spec, spec.op("y"), frozenset({"t"}))
    Chain(root='y', tensors=('t',), ops=('t',))
    """
    if not _plain(spec, root) or root.where or any(plain_dim(e) is None for e in root.index):
        return None
    inside, tensors = {root.name}, list[str]()
    before = spec.ops[: spec.ops.index(root)]
    for tensor in dict.fromkeys(op.target for op in reversed(before) if op.target in free):
        writers, readers = spec.writers(tensor), spec.readers(tensor)
        if readers and all(o.name in inside for o in readers) and all(_plain(spec, o) for o in writers):
            tensors.append(tensor)
            inside |= {o.name for o in writers}
    accesses = [r for o in spec.ops if o.name in inside for r in o.reads if r.tensor in tensors]
    spread = {t: {r.index for r in accesses if r.tensor == t} for t in tensors}
    if not any(len(uses) > 1 for uses in spread.values()):
        return None
    return Chain(root.name, tuple(tensors), tuple(o.name for o in before if o.name in inside))


def _plain(spec: Spec, op: Op) -> bool:
    """Whether an op assigns each cell once, by subscripts that are its dims but for constants, whole bytes a cell."""
    dims = [moved_dim(e) for e in op.index if not e.is_constant]
    fits = None not in dims and len(set(dims)) == len(dims) == len(op.dims)
    own = any(r.tensor == op.target for r in op.reads)
    return op.reduce is None and fits and not own and not dtypes.info(spec.tensor(op.target).dtype).packed


# ---- what the alternatives cost
def keeps(spec: Spec, tensor: str, target: Target) -> bool:
    """Whether a temporary that could be computed where it is read is better kept, for a tile of its reader."""
    if bytes_of(spec, tensor) <= SMALL_BYTES:
        return False
    free = frozenset(t.name for t in spec.temporaries)
    roots = (op for op in spec.ops if op.target not in free)
    chains = (chain_of(spec, op, free) for op in roots)
    if not any(c is not None and tensor in c.tensors for c in chains):
        return False
    found = weights(spec, tensor, target, 1.05)
    return found.uses > 1 and found.tile < found.inline


def weights(spec: Spec, tensor: str, target: Target, recompute: float, in_l1: bool = True) -> Weights:
    """Count the alternatives for a temporary whose tiles are computed ``recompute`` times over.

    Equal instances that one vector of a reader uses count once: the compiler finds them again.
    """
    writers = spec.writers(tensor)
    cells = max(1, sum(work_of(o) for o in writers))
    uses = inlined = 0.0
    for op in spec.readers(tensor):
        share = work_of(op) / cells
        points = {r.index for r in loads(op.body) if r.tensor == tensor}
        uses += share * len(points)
        inlined += share * _inlined(writers[-1], points)
    own = sum(work_of(o) / cells * cost_of(o) for o in writers)
    read = _LOAD * uses
    size = bytes_of(spec, tensor)
    moved = moved_cost(size, target) + _REGION * max(1, target.lanes("f32")) / cells
    tile = recompute * (own + (0.0 if in_l1 else _BEYOND_L1)) + read
    return Weights(uses, inlined, tile, own + read + moved)


def _inlined(writer: Op, points: set[tuple[Affine, ...]]) -> float:
    """The cost of a writer's body at several points of its tensor, equal loads counted once."""
    fetched: set[tuple[str, tuple[Affine, ...]]] = set()
    for index in points:
        at = {d: e - w.const for e, w in zip(index, writer.index, strict=True) if (d := moved_dim(w)) is not None}
        if len(at) == len(writer.dims):
            fetched |= {(r.tensor, r.index) for r in loads(substitute_dims(writer.body, at))}
    return len(points) * _arithmetic(writer) + _LOAD * len(fetched)


def cost_of(op: Op) -> float:
    """Return the cycles for computing and storing a vector of instances of ``op``."""
    return _arithmetic(op) + _LOAD * len({(r.tensor, r.index) for r in loads(op.body)}) + _STORE


def _arithmetic(op: Op) -> float:
    fns = [n.fn for n in walk(op.body) if isinstance(n, Apply)]
    return sum(_FUNCTION if fn in COSTLY else _ARITHMETIC for fn in fns)


def moved_cost(size: int, target: Target) -> float:
    """Return the cycles for each vector of a temporary of ``size`` bytes that is written whole and read again."""
    levels = ((target.l1 // 2, 0.0), (target.l2 // 2, _BEYOND_L1), (target.l3 // 2, _BEYOND_L2))
    return next((cost for limit, cost in levels if size <= limit), _BEYOND_L3)


def bytes_of(spec: Spec, tensor: str) -> int:
    """Return the bytes of a whole tensor; a symbolic extent without a typical size counts as large."""
    t = spec.tensor(tensor)
    return prod(_size(e) for e in t.extents) * max(dtypes.info(t.dtype).bits, 8) // 8


def _size(e: Affine) -> int:
    """An extent as a number; one that nobody gave a typical size counts as large, since it may be."""
    return size_of(e) if e.is_constant or is_weighed(e) else LARGE_EXTENT


# ---- the tile
def best_tile(spec: Spec, chain: Chain, target: Target) -> OverlappedTile | None:
    """Return the tile of the root that costs least, or ``None`` where none divides it with scratch of a known size."""
    root = spec.op(chain.root)
    shared = _shared_dims(spec, chain, root)
    choices = [_sizes(root, d, d in shared, target.lanes("f32")) for d in root.dims]
    found = (_tile(spec, chain, root, dict(zip(root.dims, sizes, strict=True)), target) for sizes in product(*choices))
    return min((t for t in found if t is not None and t.tiles > 1), key=lambda t: t.cost, default=None)


def _sizes(root: Op, dim: str, shared: bool, lanes: int) -> Iterator[int]:
    """Sizes to try for a dim: 1 where tiles share nothing along it, powers of two, and 0 for the whole dim."""
    size, last = _size(root.extent(dim)), plain_dim(root.index[-1]) == dim
    if not shared and not last:
        return iter((1,))
    steps = (64, 256, 512, 1024, 2048, 4096, 8192) if last else (1, 4, 8, 16, 32, 64, 128)
    whole = (0,) if root.extent(dim).is_constant and size <= 1 << 14 else ()
    return iter((*(s for s in steps if s < size and (not last or s % lanes == 0)), *whole))


def _shared_dims(spec: Spec, chain: Chain, root: Op) -> set[str]:
    """The dims of the root along which neighbouring tiles compute the same cells of some temporary."""
    one = _cells(spec, chain, root, dict.fromkeys(root.dims, 1))
    shared: set[str] = set()
    for d in root.dims:
        two = _cells(spec, chain, root, {**dict.fromkeys(root.dims, 1), d: 2})
        if one is None or two is None or any(two[op] != 2 * one[op] for op in one):
            shared.add(d)
    return shared


def _cells(spec: Spec, chain: Chain, root: Op, sizes: dict[str, int]) -> dict[str, int] | None:
    """Return how many cells each op of the chain computes for one tile: the images of the tile, back along the reads.

    ``None`` where one has no constant extent. Size 0 stands for a whole dim.
    """
    at = {d: Affine.dim(f"{d}o") * n + Affine.dim(f"{d}i") if n else Affine.dim(f"{d}i") for d, n in sizes.items()}
    spans = {f"{d}i": (0, (n or root.extent(d).const) - 1) for d, n in sizes.items()}
    visible = frozenset(f"{d}o" for d in sizes)
    readers = [_reader(root, at, dict(spans))]
    cells: dict[str, int] = {}
    for tensor in chain.tensors:
        box = box_of(tensor, [r for r in readers if r.op != tensor], visible, {}, spec.tensor(tensor).extents)
        if not all(e.is_constant for e in box.extent):
            return None
        for op in spec.writers(tensor):
            region = region_of(op, box)
            if not all(e.is_constant for e in region.extent):
                return None
            own = {d: b + Affine.dim(f"{op.name}:{d}") for d, b in zip(op.dims, region.base, strict=True)}
            over = {f"{op.name}:{d}": (0, e.const - 1) for d, e in zip(op.dims, region.extent, strict=True)}
            readers.append(_reader(op, own, over))
            cells[op.name] = prod(e.const for e in region.extent)
        cells[tensor + "[]"] = prod(e.const for e in box.extent)
    return cells


def _reader(op: Op, at: dict[str, Affine], spans: dict[str, tuple[int, int]]) -> Reader:
    accesses = tuple((r.tensor, tuple(e.substitute(at) for e in r.index)) for r in op.reads)
    return Reader(op.name, accesses, tuple(spans.items()))


def _tile(spec: Spec, chain: Chain, root: Op, sizes: dict[str, int], target: Target) -> OverlappedTile | None:
    cells = _cells(spec, chain, root, sizes)
    if cells is None:
        return None
    tiles = prod(ceil(_size(root.extent(d)) / n) for d, n in sizes.items() if n)
    widths = {t: max(dtypes.info(spec.tensor(t).dtype).bits, 8) // 8 for t in chain.tensors}
    scratch = sum(cells[t + "[]"] * w for t, w in widths.items())
    if scratch > target.l2 // 2:
        return None
    results = prod(_size(e) for e in root.extents)
    last = plain_dim(root.index[-1]) or root.dims[-1]
    row = (sizes[last] or root.extent(last).const) / max(1, target.lanes("f32"))
    in_l1 = scratch <= target.l1
    lanes = max(1, target.lanes("f32"))
    begin = _TILE * tiles * lanes / results
    cost, recompute = cost_of(root) + _ROW / row + begin, list[tuple[str, float]]()
    for tensor in chain.tensors:
        writers = spec.writers(tensor)
        computed = {op.name: cells[op.name] * tiles for op in writers}
        there = sum(prod(_size(e) for e in op.extents) for op in writers)
        recompute.append((tensor, max(1.0, sum(computed.values()) / max(1, there))))
        for op in writers:
            each = cost_of(op) + (0.0 if in_l1 else _BEYOND_L1) + _ROW / row
            cost += each * computed[op.name] / results + begin
    rounds = ceil(tiles / target.cores) * target.cores / tiles
    kept = tuple((d, n) for d, n in sizes.items() if n)
    return OverlappedTile(kept, tuple(cells.items()), tuple(recompute), scratch, tiles, cost * rounds)

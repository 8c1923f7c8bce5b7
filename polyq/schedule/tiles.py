"""The register tile of a reduction: which dim becomes vector lanes, which dims are unrolled, and how far.

Two forms are weighed by counted operations per multiply-add. With lanes along a dim of the result, each lane is its own
sum. With lanes along a reduced dim, each lane is a partial sum, added up at the end (the order of the sum changes, so
floats need numerics that allow it). Unrolling other dims of the result shares what is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from polyq.affine import dtypes
from polyq.affine.scalar import Cast, Load, Scalar, walk
from polyq.affine.spec import Op, Spec
from polyq.schedule.choices import decide
from polyq.schedule.draft import Draft, bounds_its_sum, is_weighed, plain_dim, size_of
from polyq.schedule.layouts import Words, free_operands, lane_axis, tile_rows, words_of
from polyq.schedule.quantized import multiplies_integers

__all__ = ["PANEL_USES", "Tile", "choose_tile", "packable", "stride"]

#: relative cost of getting one vector: loading it, spreading one element, collecting lanes one by one, widening bytes
SYMBOLIC_UNROLL = 2
#: fewer words than this side by side are not worth taking apart into fields
LEAST_WORDS = 4
#: rows of one operand that may be walked side by side: more of them meet in the same sets of the first cache
STREAMS = 4
#: tiles that must share a panel before a copy of it pays
PANEL_USES = 48
LOAD, SPREAD, COLLECT, WIDEN, FIELD = 1.0, 1.0, 10.0, 1.3, 0.8


@dataclass(frozen=True, slots=True)
class Tile:
    """A choice: the lanes' dim (of the result, or reduced), vectors of lanes, unrolled dims, cost a multiply-add."""

    dim: str
    reduced: bool
    lanes: int
    vectors: int
    unroll: tuple[tuple[str, int], ...]
    fields: int
    cost: float
    words: Words | None = None
    free: frozenset[str] = frozenset()
    instead: tuple[str, ...] = ()  # the best of every other form that was weighed

    def __str__(self) -> str:
        unrolled = ", ".join(f"{d} by {n}" for d, n in self.unroll) or "nothing else"
        kind = "partial sums along" if self.reduced else "lanes along"
        fields = self.words.fields if self.words else self.fields
        more = f", {fields} fields a lane" if fields > 1 else ""
        shape = f"{self.vectors} x {self.lanes}{more}"
        return f"{kind} {self.dim} ({shape}), unroll {unrolled}: {self.cost:.2f} loads a multiply-add"

    @property
    def shape(self) -> str:
        """What tells it from the other tiles of an op, as text."""
        unrolled = "".join(f", {d} by {n}" for d, n in self.unroll)
        fields = f" of {self.fields} fields" if self.fields > 1 else ""
        return f"{'sums' if self.reduced else 'lanes'} along {self.dim} {self.vectors} x {self.lanes}{fields}{unrolled}"


def stride(load: Load, dim: str) -> int | None:
    """Return the step in elements along ``dim``: 0 if absent, ``None`` if it is not a constant of the last axis."""
    if all(dim not in e.dims() for e in load.index):
        return 0
    if any(dim in e.dims() for e in load.index[:-1]):
        return None
    last = load.index[-1]
    from polyq.affine.expr import Dim, FloorDiv

    if any(isinstance(a, FloorDiv) and dim in a.numerator.dims() for a, _ in last.terms):
        return None
    return last.coefficient(Dim(dim))


def choose_tile(draft: Draft, op: Op, single: frozenset[str] = frozenset(), packs: bool = False) -> Tile | None:
    """Return the cheapest tile for a reduction, or ``None`` where no dim can be lanes.

    ``single`` are dims of which just one value is computed at a time. ``packs``: the caller packs what is bound.
    """
    dtype = draft.spec.tensor(op.target).dtype
    lanes = draft.target.lanes("f32" if dtypes.info(dtype).bits < 32 else dtype)
    if lanes < 2:
        return None
    result = [d for e in op.index if (d := plain_dim(e)) is not None]
    bound = {d for c in op.where for d in c.expr.dims()}
    fixed = single if bounds_its_sum(op) else bound | single  # rows whose sums end apart run side by side all the same
    exact = not dtypes.is_float(dtype) or op.reduce in ("min", "max")
    found: list[Tile] = []
    for dim in op.dims:
        reduced = dim in op.reduced
        usable = size_of(op.extent(dim)) >= (2 * lanes if reduced else 2) and dim not in bound | single
        if usable and (not reduced or exact or draft.relaxed):
            free = _free(draft, op, dim) if packs and not reduced else frozenset[str]()
            found += _tiles(draft, op, dim, reduced, lanes, [d for d in result if d != dim and d not in fixed], free)
    # one packed layout serves every range of a parameter, so all of them put lanes where it was packed for
    packed = [t for t in found if t.free]
    order = sorted(found, key=lambda t: (bool(packed) and not t.free, t.cost))
    best = decide(f"tile of {op.name}", [t.shape for t in order], order) if order else None
    return None if best is None else replace(best, instead=_others(best, found))


def _others(best: Tile, found: list[Tile]) -> tuple[str, ...]:
    """Say what the cheapest tile costs with lanes along each other dim, the cheapest first."""
    forms: dict[str, Tile] = {}
    for tile in sorted(found, key=lambda t: t.cost):
        forms.setdefault(tile.dim, tile)
    return tuple(str(tile) for dim, tile in forms.items() if dim != best.dim)


def _tiles(
    draft: Draft, op: Op, dim: str, reduced: bool, lanes: int, others: list[str], free: frozenset[str]
) -> list[Tile]:
    budget = draft.target.registers - 4
    fields = _fields(draft.spec, op, dim, lanes) if reduced else 1
    words = words_of(draft, op, dim, free) if free else None
    if fields > 1:
        budget = 8
        lanes = _words(size_of(op.extent(dim)), fields, lanes)
    # what is taken from a word passes through a mask, and products of integers through a register of their own; for
    # a tile that leaves no register free gcc spills sums in the loop (6 rows of 2 vectors: a sixth slower than 4)
    spare = 2 if multiplies_integers(op) else int(words is not None)
    tiles: list[Tile] = []
    pairs = [(), *((d,) for d in others), *combinations(others, 2)]
    if fields > 1:  # the conversion of a word's fields bounds these tiles: independent sums count, not reuse
        pairs = [c for c in pairs if all(op.extent(d).is_constant for d in c)]
    for dims in pairs:
        for vectors in (1,) if fields > 1 else _vector_counts(op, dim, lanes):
            if not reduced and vectors * lanes > max(lanes, size_of(op.extent(dim))):
                continue
            tiles += [
                _weigh(op, dim, reduced, lanes, vectors, unroll, fields, words, free)
                for unroll in _unrolls(op, dims, budget // vectors)
                if (fields > 1 or _live(op, dim, vectors, unroll) + spare <= draft.target.registers)
                and not (free and tile_rows(draft, op.extent(dim)) % (vectors * lanes))
                and not (reduced and _product(unroll) > STREAMS and _streams(op, dim, unroll) > STREAMS)
            ]
    return tiles


def _free(draft: Draft, op: Op, dim: str) -> frozenset[str]:
    """Operands that can be packed for lanes along ``dim``."""
    found = free_operands(draft, op) if tile_rows(draft, op.extent(dim)) else frozenset[str]()
    return frozenset(r.tensor for r in op.reads if r.tensor in found and lane_axis(r, dim) is not None)


def _words(size: int, fields: int, lanes: int) -> int:
    """How many words lie side by side: as many as fill the dim evenly, else as many as fit."""
    counts = [n for n in (lanes, lanes // 2, lanes // 4) if n >= min(lanes, LEAST_WORDS)]
    even = [n for n in counts if size % (fields * n) == 0]
    return (even or [n for n in counts if fields * n <= size] or counts[-1:])[0]


def _vector_counts(op: Op, dim: str, lanes: int) -> tuple[int, ...]:
    """How many vectors of lanes a tile may have side by side: powers of two, and all of a short dim."""
    size = size_of(op.extent(dim))
    whole = size // lanes if op.extent(dim).is_constant and size % lanes == 0 else 1
    return tuple(sorted({1, 2, 4, 8, whole if whole <= 8 else 1}))


def _streams(op: Op, dim: str, unroll: tuple[tuple[str, int], ...]) -> int:
    """The most rows of one operand that a tile walks side by side."""
    used = [{d for e in r.index for d in e.dims()} for r in op.reads]
    return max((_product(tuple((d, n) for d, n in unroll if d in dims)) for dims in used), default=1)


def _live(op: Op, dim: str, vectors: int, unroll: tuple[tuple[str, int], ...]) -> int:
    """Vector registers in use at once: sums, operands that vary along the lanes, and one that is spread or passes."""
    if not unroll:  # nothing is used twice: every operand passes through
        return vectors + 2
    held: list[int] = []
    for load in dict.fromkeys(op.reads):
        if stride(load, dim) != 0:
            used = {d for e in load.index for d in e.dims()}
            held.append(vectors * _product(tuple((d, n) for d, n in unroll if d in used)))
    # of several varying operands one stays, the others pass through one register each
    return vectors * _product(unroll) + min(held, default=0) + max(1, len(held) - 1) + (len(held) < 2)


def _unrolls(op: Op, dims: tuple[str, ...], budget: int) -> list[tuple[tuple[str, int], ...]]:
    choices: list[tuple[tuple[str, int], ...]] = [()]
    for d in dims:
        size = size_of(op.extent(d))
        # a symbolic extent may be 1: what is left over a tile runs one by one, so these tiles stay small
        sizes = [n for n in (2, 3, 4, 6, 8) if n <= (size if is_weighed(op.extent(d)) else SYMBOLIC_UNROLL)]
        if is_weighed(op.extent(d)) and size > 0:
            sizes = [-(-size // -(-size // n)) for n in (*sizes, min(size, 8))]  # as even as so many tiles can be
        choices = [(*c, (d, n)) for c in choices for n in sorted(set(sizes))]
    return [c for c in choices if _product(c) <= budget]


def _product(unroll: tuple[tuple[str, int], ...]) -> int:
    total = 1
    for _, n in unroll:
        total *= n
    return total


def _fields(spec: Spec, op: Op, dim: str, lanes: int) -> int:
    """Fields in a 32-bit lane, if a narrow integer operand is read along ``dim`` and its partners are reused enough."""
    narrow = [r for r in op.reads if _narrow(spec, r) and stride(r, dim) == 1]
    bits = {dtypes.info(r.dtype).bits for r in narrow}
    if len(bits) != 1 or not all(_cast_to_float(op.body, r) for r in narrow):
        return 1
    fields = 32 // bits.pop()
    partners = [r for r in op.reads if r not in narrow and stride(r, dim) != 0]
    if any(stride(r, dim) != 1 or not _reused(op, r) for r in partners):
        return 1
    return fields if size_of(op.extent(dim)) >= fields * min(lanes, LEAST_WORDS) else 1


def _narrow(spec: Spec, load: Load) -> bool:
    return dtypes.is_int(load.dtype) and dtypes.info(load.dtype).bits < 16 and load.tensor in spec.input_names


def _cast_to_float(body: Scalar, load: Load) -> bool:
    return any(isinstance(n, Cast) and n.arg == load and n.dtype == "f32" for n in walk(body))


def _reused(op: Op, load: Load) -> bool:
    """Whether a copy of the operand in another layout is read often enough to pay for making it."""
    used = {d for e in load.index for d in e.dims()}
    times = 1
    for d in op.dims:
        if d not in used:
            times *= size_of(op.extent(d))
    return times >= 16


def _steady(op: Op, used: set[str]) -> int:
    """Iterations of the innermost reduced dims over which an operand stays the same: it is read once for them all."""
    times = 1
    for d in reversed([d for d in op.dims if d in op.reduced]):
        if d in used:
            break
        times *= max(1, size_of(op.extent(d)))
    return times


def packable(op: Op, load: Load, dim: str) -> bool:
    """Whether a panel of the operand, lanes along ``dim``, is read often enough to pay for a copy in that order."""
    used = {d for e in load.index for d in e.dims()}
    plain = all(plain_dim(e) is not None for e in load.index) and len(used) == len(load.index) > 1
    others = used - {dim}
    if (
        not plain
        or dim not in used
        or not others <= set(op.reduced)
        or not all(op.extent(d).is_constant for d in others)
    ):
        return False
    again = 1
    for d in op.dims:
        if d not in used and d not in op.reduced and is_weighed(op.extent(d)):
            again *= size_of(op.extent(d))
    return again >= PANEL_USES


def _weigh(
    op: Op, dim: str, reduced: bool, lanes: int, vectors: int, unroll: tuple[tuple[str, int], ...], fields: int,
    words: Words | None = None, free: frozenset[str] = frozenset(),
) -> Tile:  # fmt: skip
    """Count vector operations for each multiply-add of the tile."""
    tile = vectors * _product(unroll)
    total = 0.0
    # terms of a product of integers that share an operand are told apart outside of the innermost loop
    for load in dict.fromkeys(op.reads) if multiplies_integers(op) else op.reads:
        used = {d for e in load.index for d in e.dims()}
        shared = _product(tuple((d, n) for d, n in unroll if d in used))
        step = 1 if load.tensor in free else stride(load, dim)
        narrow = dtypes.info(load.dtype).bits < 32
        each = vectors if step != 0 else 1
        if step == 0:
            cost = SPREAD
        elif step == 1:
            cost = FIELD * 2 if narrow and (fields > 1 or words) else LOAD + (WIDEN if narrow else 0)
        else:
            cost = COLLECT if reduced or not packable(op, load, dim) else LOAD
        total += cost * shared * each / tile / _steady(op, used)
    chains = tile * (2 if fields > 1 or words else 1)
    latency = max(0.0, 8 / max(chains, 1) - 1) * 0.5
    total += latency
    reduction = 1
    for d in op.reduced:
        reduction *= size_of(op.extent(d))
    if reduced:  # lanes are added up at the end, and every row of the tile is a stream of its own
        total += 0.25 + 3.0 * lanes / max(reduction, 1)
    elif plain_dim(op.index[-1]) != dim:
        total += 4.0 * lanes / max(reduction, 1)
    if not op.extent(dim).is_constant:  # it may turn out to be 1, and all lanes but one would idle
        total += lanes / 2
    ragged = size_of(op.extent(dim)) % (lanes * max(fields, vectors) if reduced else lanes)
    if op.extent(dim).is_constant and ragged:
        total += lanes * vectors / size_of(op.extent(dim))
    return Tile(dim, reduced, lanes, vectors, unroll, fields, total, words, free)

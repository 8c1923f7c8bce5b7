"""Regions: which part of a producer one iteration of its host needs.

The region of a producer is the image of its readers' accesses under the loops that are not yet open, as a box: per dim
a base (an affine expression of the open loop variables) and an extent. This is transposed-producer alignment: the box
comes from the access relation, never from the position of a dim. A box may hold more than the exact image; the
producer's own domain cuts it, and the certificate checks the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv
from polyq.affine.spec import Op

__all__ = ["Box", "Reader", "Region", "box_of", "region_of", "whole_vectors", "widen"]

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Accesses of one stage to a tensor: subscripts over loop variables, and the ranges of those not yet open."""

    op: str
    accesses: tuple[tuple[str, tuple[Affine, ...]], ...]
    ranges: tuple[tuple[str, tuple[int, int] | None], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Per dim of a tensor: base (over open loop variables) and extent."""

    base: tuple[Affine, ...]
    extent: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Per dim of an op: base and extent, and the constraints where a subscript is not a plain dim."""

    base: tuple[Affine, ...]
    extent: tuple[Affine, ...]
    constraints: tuple[Constraint, ...] = ()


def widen(e: Affine, hidden: Ranges) -> tuple[Affine, int] | None:
    """Return the least value of ``e`` over the ``hidden`` variables and an upper bound of its spread.

    ``None`` where a hidden variable inside ``e`` has no known range.

    >>> n = Affine.dim("no") * 32 + Affine.dim("ni")
    >>> low, spread = widen(n, {"ni": (0, 31)})
    >>> str(low), spread
    ('32*no', 31)
    """
    low, spread = Affine(e.const), 0
    for atom, c in e.terms:
        if isinstance(atom, FloorDiv):
            inner = widen(atom.numerator, hidden)
            if inner is None:
                return None
            base, width = inner
            reach = _floor_spread(base, width, atom.divisor)
            least = base if c > 0 else base + width
            low = low + (least // atom.divisor) * c
            spread += reach * abs(c)
        elif isinstance(atom, Dim) and atom.name in hidden:
            span = hidden[atom.name]
            low = low + c * (span[0] if c > 0 else span[1])
            spread += abs(c) * (span[1] - span[0])
        else:
            low = low + Affine.of(atom) * c
    return low, spread


def _floor_spread(base: Affine, width: int, divisor: int) -> int:
    """The most that ``floor((base + w) / d) - floor(base / d)`` can be for ``0 <= w <= width``."""
    step = divisor
    for _, c in base.terms:
        step = gcd(step, c)
    offset = base.const % step
    return (offset + width) // divisor if step == divisor else -(-width // divisor) if offset + width >= step else 0


def box_of(
    tensor: str, readers: Iterable[Reader], visible: frozenset[str], ranges: Ranges, shape: tuple[Affine, ...]
) -> Box:
    """Return the box of ``tensor`` that ``readers`` touch, over the ``visible`` loop variables."""
    lows: list[list[tuple[Affine, Affine]]] = [[] for _ in shape]
    for reader in readers:
        hidden = {v: r for v, r in reader.ranges if v not in visible}
        for name, index in reader.accesses:
            if name != tensor:
                continue
            for k, e in enumerate(index):
                lows[k].append(_span(e, hidden, shape[k]))
    if any(not spans for spans in lows):
        return Box(tuple(Affine(0) for _ in shape), shape)
    joined = [_join(spans, ranges, tensor, k, shape[k]) for k, spans in enumerate(lows)]
    return Box(tuple(b for b, _ in joined), tuple(e for _, e in joined))


def _span(e: Affine, hidden: Mapping[str, tuple[int, int] | None], full: Affine) -> tuple[Affine, Affine]:
    known = {v: r for v, r in hidden.items() if r is not None}
    if not (e.dims() & {v for v, r in hidden.items() if r is None}):
        found = widen(e, known)
        if found is not None:
            return found[0], Affine(found[1] + 1)
    return Affine(0), full


def _join(
    spans: list[tuple[Affine, Affine]], ranges: Ranges, tensor: str, dim: int, full: Affine
) -> tuple[Affine, Affine]:
    base, extent = spans[0]
    for low, size in spans[1:]:
        apart = (low - base).bounds(ranges)
        if (low, size) == (base, extent):
            continue
        if apart is None or not (extent.is_constant and size.is_constant) or apart[0] != apart[1]:
            return Affine(0), full
        start = min(0, apart[0])
        end = max(extent.const, apart[0] + size.const)
        base, extent = base + start, Affine(end - start)
    return base, extent


def whole_vectors(box: Box, shape: tuple[Affine, ...], lanes: Mapping[int, int]) -> Box:
    """Return the box with ends that are whole vectors where it is a part of its tensor: a tile then has no tail.

    ``lanes`` holds the dims that go by vectors. Cells beyond the tensor stay out: its writers' domains end before.

    >>> box = whole_vectors(Box((Affine.dim("io") * 32,), (Affine(34),)), (Affine(100),), {0: 8})
    >>> print(*box.extent)
    40
    """
    extent = list(box.extent)
    for k, n in lanes.items():
        part = extent[k] != shape[k] and extent[k].is_constant and extent[k].const > n
        if part:
            extent[k] = Affine(-(-extent[k].const // n) * n)
    return Box(box.base, tuple(extent))


def region_of(op: Op, box: Box) -> Region:
    """Return the instances of ``op`` that write into ``box``."""
    base = dict.fromkeys(op.dims, Affine(0))
    extent = dict(zip(op.dims, op.extents, strict=True))
    constraints: list[Constraint] = []
    placed: set[str] = set()
    for e, low, size in zip(op.index, box.base, box.extent, strict=True):
        dims = [a for a, _ in e.terms if isinstance(a, Dim)]
        if len(dims) == 1 and e == Affine.of(dims[0]) + e.const and dims[0].name not in placed:
            name = dims[0].name
            placed.add(name)
            if (low, size) != (Affine(0), extent[name]):
                base[name], extent[name] = low - e.const, size
        else:
            constraints += [Constraint(e - low), Constraint(low + size - 1 - e)]
    return Region(tuple(base.values()), tuple(extent.values()), tuple(constraints))


def need_constant(box: Box, tensor: str, host: str, axis: str) -> tuple[int, ...]:
    """Return the extents of scratch for ``box``, or say that they are not known."""
    for k, e in enumerate(box.extent):
        if not e.is_constant:
            raise ScheduleError(
                f"scratch for {tensor} inside {host} at {axis}: dim {k} has the extent {e}, which is no number; "
                f"split the axis that it comes from, or place {tensor} further out"
            )
    return tuple(e.const for e in box.extent)

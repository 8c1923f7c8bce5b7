"""What is open around a stage, and the bounds of the next loop there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv
from polyq.affine.sets import Domain

__all__ = ["Frame", "Placed", "holds", "loop_bounds", "needs_guard"]


@dataclass(frozen=True, slots=True)
class Frame:
    """What is open around a stage: loop variables in order, their constraints and ranges, and scratch in use."""

    open: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    threaded: str | None = None  # the loop that is divided among threads
    scratch: Mapping[str, Placed] = field(default_factory=dict[str, "Placed"])


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in scratch: the buffer, where the tile begins in the tensor, and the dims that the buffer keeps."""

    buffer: str
    base: tuple[Affine, ...]
    kept: tuple[int, ...]


def holds(c: Constraint, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the ranges of loop variables imply the constraint."""
    bounds = c.expr.bounds(ranges)
    return bounds is not None and (bounds == (0, 0) if c.equality else bounds[0] >= 0)


def needs_guard(c: Constraint) -> bool:
    """Whether loop bounds cannot express the constraint: a loop variable stands inside a floor."""
    return any(isinstance(a, FloorDiv) and a.numerator.dims() for a, _ in c.expr.terms)


def loop_bounds(
    var: str,
    constraints: tuple[Constraint, ...],
    later: set[str],
    ranges: Mapping[str, tuple[int, int] | None],
    frame: Frame,
) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """Return the lower and upper (exclusive) bounds of ``var``; later loops' variables are relaxed to their ranges."""
    lows: list[Affine] = []
    highs: list[Affine] = []
    for c in constraints:
        for expr in (c.expr, -c.expr) if c.equality else (c.expr,):
            a = expr.coefficient(Dim(var))
            relaxed = None if a == 0 or needs_guard(Constraint(expr)) else _relax(expr, later, ranges)
            if relaxed is None:
                continue
            rest = relaxed - Affine.dim(var) * a
            if a > 0:
                lows.append((rest * -1 + (a - 1)) // a)
            else:
                highs.append(rest // -a + 1)
    known = {v: r for v, r in ranges.items() if r is not None} | dict(frame.ranges)
    below, above = _strongest(lows, known, 1), _strongest(highs, known, -1)
    if len(below) + len(above) > 2:
        return _needed(var, below, above, frame)
    return below, above


def _needed(
    var: str, lows: tuple[Affine, ...], highs: tuple[Affine, ...], frame: Frame
) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """Drop bounds that the open loops and the other bounds imply: intervals do not see parameters, isl does."""
    v = Affine.dim(var)
    bounds = [Constraint(v - e) for e in lows] + [Constraint(e - 1 - v) for e in highs]
    for c in sorted(bounds, key=lambda c: -len(str(c))):
        others = [b for b in bounds if b != c]
        sides = [b.expr.coefficient(Dim(var)) > 0 for b in others]
        if True not in sides or False not in sides:
            continue  # where nothing runs everything is implied, and yet a loop has two ends
        if Domain.make((*frame.open, var), (*frame.constraints, *others)).implies(c):
            bounds = others
    return tuple(e for e in lows if Constraint(v - e) in bounds), tuple(
        e for e in highs if Constraint(e - 1 - v) in bounds
    )


def _relax(expr: Affine, later: set[str], ranges: Mapping[str, tuple[int, int] | None]) -> Affine | None:
    """Replace variables of later loops by what makes ``expr`` largest; ``None`` if one is unbounded."""
    total = Affine(expr.const)
    for atom, c in expr.terms:
        if isinstance(atom, Dim) and atom.name in later:
            span = ranges.get(atom.name)
            if span is None and c > 0:
                return None
            total = total + c * ((span[1] if c > 0 else span[0]) if span is not None else 0)
        else:
            total = total + Affine.of(atom) * c
    return total


def _strongest(bounds: list[Affine], ranges: Mapping[str, tuple[int, int]], sign: int) -> tuple[Affine, ...]:
    """Drop bounds that another one implies."""
    kept: list[Affine] = []
    for e in dict.fromkeys(bounds):
        if any(_no_weaker(k, e, ranges, sign) for k in kept):
            continue
        kept = [k for k in kept if not _no_weaker(e, k, ranges, sign)] + [e]
    return tuple(kept)


def _no_weaker(a: Affine, b: Affine, ranges: Mapping[str, tuple[int, int]], sign: int) -> bool:
    """Whether the bound ``a`` implies ``b``: ``a >= b`` for lower bounds (sign 1), ``a <= b`` for upper ones."""
    gap = ((a - b) * sign).bounds(ranges)
    return gap is not None and gap[0] >= 0

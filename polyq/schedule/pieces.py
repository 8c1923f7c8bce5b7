"""How an axis is cut into tiles when its extent is no multiple of their height.

A tile of ``f`` rows shares each load among its rows; rows that are left over one by one would wait for every load
alone. So tiles of ``f`` and ``f - 1`` rows cover the axis together: of ``ceil(n / f)`` tiles, ``-n mod f`` are lower by
one. That works for every extent but a few small ones (those below ``(f - 1) * (-n mod f)``), where rows in front are
left over, which go by twos and ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine.expr import Affine

__all__ = ["Piece", "pieces_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of ``count`` tiles of ``height`` iterations from ``start`` on; none below a bound of ``least`` runs."""

    height: int
    start: Affine
    count: Affine
    least: tuple[Affine, ...] = ()


def pieces_of(size: Affine, height: int) -> tuple[Piece, ...]:
    """Return the pieces of an axis in its order; each iteration lies in one tile of one piece.

    >>> [(p.height, str(p.start), str(p.count)) for p in pieces_of(Affine(128), 6)]
    [(6, '0', '18'), (5, '108', '4')]
    >>> [(p.height, str(p.start), str(p.count)) for p in pieces_of(Affine(7), 6)]
    [(6, '0', '1'), (1, '6', '1')]
    """
    if size.is_constant:
        return tuple(p for p in _known(size.const, height) if p.count.const > 0)
    lower = height - 1
    tiles = (size + lower) // height  # one floor for all: what is proven of these loops stays simple
    low, high = tiles * height - size, size - tiles * lower
    start = size - low * lower
    front = size % lower  # iterations that are left over where tiles of both heights do not fit
    twos = front // 2 if lower > 2 else Affine(0)
    return (
        *((Piece(2, Affine(0), twos, (start,)),) if lower > 2 else ()),
        Piece(1, Affine(0), front, (start, twos * 2)),
        Piece(height, Affine(0), high),
        Piece(lower, start, low, (-(start // lower),)),
    )


def _known(size: int, height: int) -> tuple[Piece, ...]:
    low = -size % height
    high = -(-size // height) - low
    if high >= 0:
        start = Affine(high * height)
        return Piece(height, Affine(0), Affine(high)), Piece(height - 1, start, Affine(low))
    whole, rest = divmod(size, height)
    return Piece(height, Affine(0), Affine(whole)), Piece(max(rest, 1), Affine(whole * height), Affine(min(rest, 1)))

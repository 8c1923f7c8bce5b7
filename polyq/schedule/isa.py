"""Instructions that multiply neighbouring small integers and add the products: the rows of each target's table.

A row says what operands an instruction takes and what its sums hold, so that whether it computes a sum of products is
proven from the ranges of the factors, by whoever wants it: the schedule, which lays codes out for it, and the printer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyq.affine.dtypes import value_range

__all__ = ["AVX", "DOTPROD", "NEON", "VNNI", "Dot", "dot_for"]

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction that multiplies ``parts`` neighbours of each 32-bit lane in pairs of equal place and adds them up.

    ``codes`` and ``other`` are the dtypes of the first and the second operand's parts (twice 16 bits, or four bytes).
    ``sums`` is the width of what it adds: with 32 each lane is one sum that wraps; with 16 a lane is two sums, each of
    two products, which saturate. The names are those of the instruction sets' manuals.

    >>> maddubs = Dot("vpmaddubsw", 4, "u8", "i8", 16)
    >>> maddubs.steps((0, 15), (-127, 127)), maddubs.steps((0, 255), (-127, 127)), maddubs.steps((-8, 7), (0, 1))
    (8, 0, 0)
    """

    name: str
    parts: int
    codes: str
    other: str
    sums: int

    def steps(self, codes: Range, other: Range) -> int:
        """Return how many results can be added before a sum may leave its width; 0 where one alone may.

        Sums of 32 bits wrap as those of the program do: any number (a large one is returned).
        """
        if not _within(codes, value_range(self.codes)) or not _within(other, value_range(self.other)):
            return 0
        most = 2 * max(abs(a * b) for a in codes for b in other)
        return 1 << 30 if self.sums == 32 or not most else ((1 << (self.sums - 1)) - 1) // most


def _within(a: Range, b: Range) -> bool:
    return b[0] <= a[0] and a[1] <= b[1]


def dot_for(dots: Sequence[Dot], parts: int, codes: Range, other: Range) -> Dot | None:
    """Return the first row of a table that multiplies factors of these ranges, ``parts`` side by side, or ``None``.

    >>> [row and row.name for row in (dot_for(AVX, 4, (0, top), (-128, 127)) for top in (15, 255))]
    ['vpmaddubsw', None]
    """
    return next((row for row in dots if row.parts == parts and row.steps(codes, other)), None)


#: tables, the best row for the same operands first
AVX = (Dot("vpmaddubsw", 4, "u8", "i8", 16), Dot("vpmaddwd", 2, "i16", "i16", 32))
VNNI = (Dot("vpdpbusd", 4, "u8", "i8", 32), Dot("vpdpwssd", 2, "i16", "i16", 32))
NEON = (Dot("smull", 2, "i16", "i16", 32),)
DOTPROD = (Dot("sdot", 4, "i8", "i8", 32), *NEON)

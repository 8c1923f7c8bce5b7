"""Ranges of a parameter that deserve schedules of their own.

A contraction over few rows waits for its operands; over many it multiplies. One schedule cannot serve both, so a kernel
has a rung for each range of the parameter that counts the rows, each made fast for a typical size and right for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine.expr import Param
from polyq.affine.spec import Op, Spec

__all__ = ["Ladder", "ladder_of"]

#: the least value of each range, and the size that it is made for
RUNGS = ((0, 1), (2, 16))
#: and the range of many rows, where what is computed from bound codes is kept for all of them
MANY_ROWS = (48, 128)


@dataclass(frozen=True, slots=True)
class Ladder:
    """A parameter, and for each range of its values the least one and a typical one, ascending."""

    param: str
    rungs: tuple[tuple[int, int], ...] = RUNGS

    def rung(self, value: int) -> int:
        """Return the position of the range that holds ``value``.

        >>> [Ladder("m").rung(value) for value in (0, 1, 2, 5000)]
        [0, 0, 1, 1]
        """
        return sum(value >= least for least, _ in self.rungs[1:])

    def sizes(self, rung: int) -> dict[str, int]:
        """Return the typical size of a range, by name."""
        return {self.param: self.rungs[rung][1]}


def ladder_of(spec: Spec, bound: bool = False) -> Ladder | None:
    """Return the ranges for ``spec``: of a parameter that counts rows over which an operand is reused.

    ``bound``: operands are bound, so that many rows deserve a range of their own.
    Of several in a contraction the last serves: what stands in front of it is a batch.
    """
    for op in spec.ops:
        rows = _rows(op) if op.reduce is not None else []
        if rows:
            return Ladder(rows[-1], (*RUNGS, MANY_ROWS) if bound else RUNGS)
    return None


def _rows(op: Op) -> list[str]:
    """The parameters that count rows: dims of the result over which an operand with another dim of it is reused.

    Where what is reused has no dim of the result, as the weights of a filter, few rows are no work of another kind.
    """
    result = {d for e in op.index for d in e.dims()}
    found: list[str] = []
    for dim in op.dims:
        atoms = [a for a, c in op.extent(dim).terms if isinstance(a, Param) and c == 1]
        bare = len(op.extent(dim).terms) == len(atoms) == 1 and op.extent(dim).const == 0
        used = [{d for e in load.index for d in e.dims()} for load in op.reads]
        reused = any(dim not in dims and dims & result for dims in used)
        if bare and reused and dim not in op.reduced:
            found.append(atoms[0].name)
    return found

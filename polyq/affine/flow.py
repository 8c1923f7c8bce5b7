"""Exact value flow: which write each read gets its value from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyq.affine.expr import Affine
from polyq.affine.sets import Domain, Relation, last_writers

__all__ = ["Access", "value_flow"]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """What one statement does to one array: at every point of ``domain``, at ``time``, it touches ``array[index]``.

    The times of all accesses of a program have one length; they are compared lexicographically.
    """

    domain: Domain
    time: tuple[Affine, ...]
    array: str
    index: tuple[Affine, ...]

    def to_cells(self) -> Relation:
        """From the points of the statement to the cells."""
        return Relation.function(self.domain, self.index, [f"c{k}" for k in range(len(self.index))])


def value_flow(
    reads: Sequence[Access], writes: Sequence[Access]
) -> tuple[dict[tuple[int, int], Relation], dict[int, Domain]]:
    """Return which write each read gets its value from: exact, by the last writer before it.

    The first result holds, for (position of the write, position of the read), the pairs from writing to reading
    points, where there are any; the second, by position of the read, the points that no write precedes. A read at the
    time of a write comes first.
    """
    flows: dict[tuple[int, int], Relation] = {}
    unwritten: dict[int, Domain] = {}
    sinks: dict[str, list[int]] = {}
    sources: dict[str, list[int]] = {}
    for position, r in enumerate(reads):
        sinks.setdefault(r.array, []).append(position)
    for position, w in enumerate(writes):
        sources.setdefault(w.array, []).append(position)
    for array, found in sinks.items():
        if array not in sources:
            unwritten.update({i: reads[i].domain for i in found if not reads[i].domain.is_empty()})
            continue
        edges, lost = _flow_of_array([reads[i] for i in found], [writes[i] for i in sources[array]])
        flows.update({(sources[array][i], found[j]): relation for (i, j), relation in edges.items()})
        unwritten.update({found[j]: points for j, points in lost.items()})
    return flows, unwritten


def _flow_of_array(
    reads: list[Access], writes: list[Access]
) -> tuple[dict[tuple[int, int], Relation], dict[int, Domain]]:
    accesses = [*reads, *writes]
    ordered: list[tuple[Relation, Relation]] = []
    for position, (a, time) in enumerate(zip(accesses, _essential_times(accesses), strict=True)):
        exprs = (*time, Affine(int(position >= len(reads))))  # of one statement, the reads come first
        ordered.append((a.to_cells(), Relation.function(a.domain, exprs, [f"t{k}" for k in range(len(exprs))])))
    return last_writers(ordered[: len(reads)], ordered[len(reads) :])


def _essential_times(accesses: list[Access]) -> list[tuple[Affine, ...]]:
    """Return times of one length that order the accesses to one cell as the given times do, as short as possible.

    isl's flow analysis goes through the dims of the time one by one, so it is worth leaving out a dim that is the same
    for all accesses that agree so far: a constant (the only child of a loop), or a function of the cell (the loop over
    a tile that owns it). Accesses that differ in a constant are apart from there on.
    """
    result: list[list[Affine]] = [[] for _ in accesses]

    def descend(members: list[int], position: int) -> None:
        while position < len(accesses[members[0]].time):
            column = [accesses[i].time[position] for i in members]
            position += 1
            if all(e.is_constant for e in column):
                constants = sorted({e.const for e in column})
                if len(constants) > 1:
                    for value in constants:
                        group = [i for i, e in zip(members, column, strict=True) if e.const == value]
                        for i in group:
                            result[i].append(Affine(value))
                        descend(group, position)
                    return
            elif not _is_function_of_cell([accesses[i] for i in members], column):
                for i, e in zip(members, column, strict=True):
                    result[i].append(e)

    descend(list(range(len(accesses))), 0)
    length = max(map(len, result))
    return [(*r, *(Affine(0) for _ in range(length - len(r)))) for r in result]


def _is_function_of_cell(accesses: list[Access], exprs: list[Affine]) -> bool:
    """Whether all accesses to one cell agree in the value of ``exprs`` (one expression for each access)."""
    rank = len(accesses[0].index)
    if any(all(a.index[k] == e for a, e in zip(accesses, exprs, strict=True)) for k in range(rank)):
        return True
    total: Relation | None = None
    seen: set[tuple[int, Affine, tuple[Affine, ...]]] = set()
    for a, e in zip(accesses, exprs, strict=True):
        if (id(a.domain), e, a.index) in seen:
            continue
        seen.add((id(a.domain), e, a.index))
        cells = Relation.function(a.domain, a.index, [str(k) for k in range(rank)])
        values = cells.inverse().compose(Relation.function(a.domain, [e], ["value"]))
        if not values.is_single_valued():
            return False
        total = values if total is None else total.union(values)
    return total is None or total.is_single_valued()

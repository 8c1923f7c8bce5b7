"""Pairs of integer points, and which write a read sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import islpy as isl

from polyq.affine.expr import Affine, AffineLike, Constraint
from polyq.affine.sets.domain import Domain
from polyq.affine.sets.raw import (
    IN,
    OUT,
    SET,
    nonnegative_params,
    sample_point,
    to_affine,
    to_int,
    to_multi_aff,
    to_set,
)

__all__ = ["Relation", "last_writers"]


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """Pairs of integer points, from points over ``in_dims`` to points over ``out_dims``."""

    in_dims: tuple[str, ...]
    out_dims: tuple[str, ...]
    raw: isl.Map

    @staticmethod
    def make(in_dims: Sequence[str], out_dims: Sequence[str], constraints: Iterable[Constraint] = ()) -> Relation:
        """Return the pairs where all constraints hold; the names of all dims are distinct."""
        flat = to_set([*in_dims, *out_dims], list(constraints))
        return Relation(tuple(in_dims), tuple(out_dims), _unflatten(flat, len(in_dims)))

    @staticmethod
    def function(domain: Domain, exprs: Sequence[AffineLike], names: Sequence[str]) -> Relation:
        """Return the map from each point of ``domain`` to the values of ``exprs``."""
        mapping = isl.Map.from_multi_aff(to_multi_aff([Affine.of(e) for e in exprs], domain.dims))
        return Relation(domain.dims, tuple(names), nonnegative_params(mapping.intersect_domain(domain.raw)))

    @staticmethod
    def from_domain(flat: Domain, in_dims: Sequence[str], out_dims: Sequence[str]) -> Relation:
        """Return the pairs whose concatenation is in ``flat``."""
        raw = flat.with_dims([*in_dims, *out_dims]).raw
        return Relation(tuple(in_dims), tuple(out_dims), _unflatten(raw, len(in_dims)))

    def to_domain(self) -> Domain:
        """Return the pairs as points over ``in_dims`` then ``out_dims`` (which must be distinct names)."""
        flat = self.raw.move_dims(IN, len(self.in_dims), OUT, 0, len(self.out_dims)).domain()
        return Domain((*self.in_dims, *self.out_dims), flat.reset_tuple_id())

    def renamed(self, in_dims: Sequence[str] | None = None, out_dims: Sequence[str] | None = None) -> Relation:
        """Return the relation with other names for its dims, position by position."""
        return Relation(tuple(in_dims or self.in_dims), tuple(out_dims or self.out_dims), self.raw)

    def constrain(self, constraints: Iterable[Constraint]) -> Relation:
        """Return the pairs where all constraints hold as well (names of in and out dims must be distinct)."""
        return self.intersect(Relation.make(self.in_dims, self.out_dims, constraints))

    def compose(self, after: Relation) -> Relation:
        """Return the pairs (a, c) with (a, b) here and (b, c) in ``after``; b's dims match by position."""
        return Relation(self.in_dims, after.out_dims, self.raw.apply_range(after.raw))

    def pullback(
        self, in_dims: Sequence[str], in_exprs: Sequence[Affine], out_dims: Sequence[str], out_exprs: Sequence[Affine]
    ) -> Relation:
        """Return the pairs over new dims whose images under ``in_exprs`` and ``out_exprs`` are related here."""
        raw = self.raw.preimage_domain_multi_aff(to_multi_aff(in_exprs, in_dims))
        raw = raw.preimage_range_multi_aff(to_multi_aff(out_exprs, out_dims))
        return Relation(tuple(in_dims), tuple(out_dims), raw)

    def inverse(self) -> Relation:
        """Return the pairs the other way round."""
        return Relation(self.out_dims, self.in_dims, self.raw.reverse())

    def domain(self) -> Domain:
        """Return the points that are related to something."""
        return Domain(self.in_dims, self.raw.domain())

    def range(self) -> Domain:
        """Return the points that something is related to."""
        return Domain(self.out_dims, self.raw.range())

    def apply(self, points: Domain) -> Domain:
        """Return everything that a point of ``points`` is related to."""
        return Domain(self.out_dims, points.with_dims(self.in_dims).raw.apply(self.raw))

    def intersect(self, other: Relation) -> Relation:
        """Return the pairs in both; dims match by position."""
        return Relation(self.in_dims, self.out_dims, self.raw.intersect(other.raw))

    def union(self, other: Relation) -> Relation:
        """Return the pairs in either; dims match by position."""
        return Relation(self.in_dims, self.out_dims, self.raw.union(other.raw).coalesce())

    def subtract(self, other: Relation) -> Relation:
        """Return the pairs that are not in ``other``."""
        return Relation(self.in_dims, self.out_dims, nonnegative_params(self.raw.subtract(other.raw)))

    def intersect_domain(self, points: Domain) -> Relation:
        """Return the pairs that begin in ``points``."""
        raw = self.raw.intersect_domain(points.with_dims(self.in_dims).raw)
        return Relation(self.in_dims, self.out_dims, raw)

    def intersect_range(self, points: Domain) -> Relation:
        """Return the pairs that end in ``points``."""
        raw = self.raw.intersect_range(points.with_dims(self.out_dims).raw)
        return Relation(self.in_dims, self.out_dims, raw)

    def is_empty(self) -> bool:
        """Whether there is no pair."""
        return bool(self.raw.is_empty())

    def is_subset(self, other: Relation) -> bool:
        """Whether every pair is in ``other`` too."""
        return bool(self.raw.is_subset(other.raw))

    def equals(self, other: Relation) -> bool:
        """Whether both hold the same pairs."""
        return self.is_subset(other) and other.is_subset(self)

    def is_single_valued(self) -> bool:
        """Whether every point is related to at most one."""
        return bool(self.raw.is_single_valued())

    def is_injective(self) -> bool:
        """Whether no two points are related to the same one."""
        return bool(self.raw.is_injective())

    def lexmin(self) -> Relation:
        """Return, for each point, the lexicographically least it is related to."""
        return Relation(self.in_dims, self.out_dims, self.raw.lexmin())

    def as_affine(self) -> tuple[Affine, ...] | None:
        """Return each out dim as one quasi-affine expression of the in dims; ``None`` if there is no such form."""
        if not self.is_single_valued():
            return None
        mapping = isl.PwMultiAff.from_map(self.raw).coalesce()
        result: list[Affine] = []
        for position in range(len(self.out_dims)):
            pieces = mapping.get_at(position).coalesce().get_pieces()
            if len(pieces) != 1 or to_int(pieces[0][1].get_denominator_val()) != 1:
                return None
            result.append(to_affine(pieces[0][1], self.in_dims, IN))
        return tuple(result)

    def sample(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]] | None:
        """Return one pair as (in dims, out dims, parameters), or ``None``."""
        split = len(self.in_dims)
        flat = self.raw.move_dims(IN, split, OUT, 0, len(self.out_dims)).domain().reset_tuple_id()
        found = sample_point(flat, [str(i) for i in range(split + len(self.out_dims))])
        if found is None:
            return None
        values = list(found[0].values())
        return (
            dict(zip(self.in_dims, values, strict=False)),
            dict(zip(self.out_dims, values[split:], strict=True)),
            found[1],
        )

    def __str__(self) -> str:
        flat = self.renamed([f"{d}" for d in self.in_dims], [f"{d}'" for d in self.out_dims])
        return f"({', '.join(flat.in_dims)}) -> ({', '.join(flat.out_dims)}): {flat.to_domain()}"

    __repr__ = __str__


def _unflatten(raw: isl.Set, split: int) -> isl.Map:
    count = raw.dim(SET)
    return isl.Map.from_domain(raw).move_dims(OUT, 0, IN, split, count - split)


def last_writers(
    sinks: Sequence[tuple[Relation, Relation]], sources: Sequence[tuple[Relation, Relation]]
) -> tuple[dict[tuple[int, int], Relation], dict[int, Domain]]:
    """Relate every source point to the sink points that see its value.

    Sinks and sources are (points to cells, points to times); a sink sees the last source of its cell before its own
    time. Returns (position of source, position of sink) -> pairs, and position of sink -> points without a source.
    """
    info = isl.UnionAccessInfo.from_sink(_union([c for c, _ in sinks], "R"))
    info = info.set_must_source(_union([c for c, _ in sources], "W"))
    order = _union([t for _, t in sinks], "R").union(_union([t for _, t in sources], "W"))
    flow = info.set_schedule_map(order).compute_flow()
    flows: dict[tuple[int, int], Relation] = {}
    lost: dict[int, Domain] = {}
    for part in _maps(flow.get_must_dependence()):
        i, j = (int(str(part.get_tuple_name(kind))[1:]) for kind in (IN, OUT))
        raw = part.reset_tuple_id(IN).reset_tuple_id(OUT)
        flows[i, j] = Relation(sources[i][0].in_dims, sinks[j][0].in_dims, raw)
    for part in _maps(flow.get_must_no_source()):
        j = int(str(part.get_tuple_name(IN))[1:])
        if not part.is_empty():
            lost[j] = Domain(sinks[j][0].in_dims, part.domain().reset_tuple_id())
    return flows, lost


def _union(relations: Sequence[Relation], tag: str) -> isl.UnionMap:
    maps = [r.raw.set_tuple_name(IN, f"{tag}{i}").to_union_map() for i, r in enumerate(relations)]
    return reduce(isl.UnionMap.union, maps)


def _maps(union: isl.UnionMap) -> list[isl.Map]:
    maps = union.get_map_list()
    return [maps.get_at(i) for i in range(maps.n_map())]

"""Sets of integer points with named dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from polyq.affine.expr import Affine, AffineLike, Constraint
from polyq.affine.sets.raw import (
    IN,
    PARAM,
    SET,
    Point,
    basic_sets,
    constraints_of,
    decoded,
    nonnegative_params,
    params_of,
    params_to_dims,
    sample_point,
    space_of,
    to_affine,
    to_affs,
    to_int,
    to_multi_aff,
    to_set,
    with_params,
)

__all__ = ["Domain"]


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """A set of integer points with named dims, for every value of the parameters.

    >>> i = Affine.dim("i")
    >>> d = Domain.make(["i"], [Constraint(i), Constraint(Affine.param("m") - 1 - i)])
    >>> d.loop_bounds("i", ())
    ((Affine(const=0, terms=()),), (Affine(const=0, terms=((Param(name='m'), 1),)),))
    """

    dims: tuple[str, ...]
    raw: isl.Set

    @staticmethod
    def make(dims: Sequence[str], constraints: Iterable[Constraint] = (), context: Iterable[Constraint] = ()) -> Domain:
        """Return the points over ``dims`` where all constraints hold; all parameters are at least 0."""
        return Domain(tuple(dims), to_set(dims, [*constraints, *context]))

    @staticmethod
    def empty(dims: Sequence[str]) -> Domain:
        """Return the set without points over ``dims``."""
        return Domain(tuple(dims), isl.Set.empty(space_of((), len(dims))))

    # ---- set algebra
    def with_dims(self, order: Sequence[str]) -> Domain:
        """Return the same points with the dims in another order (a permutation)."""
        if tuple(order) == self.dims:
            return self
        if sorted(order) != sorted(self.dims):
            raise ValueError(f"with_dims({tuple(order)}): expected a permutation of {self.dims}")
        exprs = [Affine.dim(d) for d in self.dims]
        return Domain(tuple(order), self.raw.preimage_multi_aff(to_multi_aff(exprs, order)))

    def renamed(self, names: Mapping[str, str]) -> Domain:
        """Return the set with dims renamed."""
        return Domain(tuple(names.get(d, d) for d in self.dims), self.raw)

    def _same(self, other: Domain) -> isl.Set:
        return other.with_dims(self.dims).raw

    def intersect(self, other: Domain) -> Domain:
        """Return the points in both."""
        return Domain(self.dims, self.raw.intersect(self._same(other)))

    def union(self, other: Domain) -> Domain:
        """Return the points in either."""
        return Domain(self.dims, self.raw.union(self._same(other)).coalesce())

    def subtract(self, other: Domain) -> Domain:
        """Return the points that are not in ``other``."""
        return Domain(self.dims, nonnegative_params(self.raw.subtract(self._same(other))))

    def constrain(self, constraints: Iterable[Constraint]) -> Domain:
        """Return the points where all constraints hold as well."""
        return Domain(self.dims, self.raw.intersect(to_set(self.dims, list(constraints))))

    def is_empty(self) -> bool:
        """Whether there is no point for any value of the parameters."""
        return bool(self.raw.is_empty())

    def is_subset(self, other: Domain) -> bool:
        """Whether all points are in ``other`` too."""
        yours = self._same(other)
        return bool(nonnegative_params(self.raw.align_params(yours.get_space())).is_subset(yours))

    def equals(self, other: Domain) -> bool:
        """Whether both hold the same points, for all values of the parameters."""
        mine, yours = nonnegative_params(self.raw), self._same(other)
        return bool(mine.is_equal(nonnegative_params(yours.align_params(mine.get_space()))))

    def implies(self, *constraints: Constraint) -> bool:
        """Whether all constraints hold at every point."""
        given = with_params(self.raw, params_of(c.expr for c in constraints))
        return bool(given.is_subset(to_set(self.dims, constraints)))

    def sample(self) -> Point | None:
        """Return one point as (dims, parameters), or ``None``."""
        return sample_point(self.raw, self.dims)

    def count(self, params: Mapping[str, int] | None = None) -> int:
        """Return the number of points; every parameter that occurs needs a value."""
        raw = self.raw
        for position in reversed(range(raw.dim(PARAM))):
            name = decoded(str(raw.get_dim_name(PARAM, position)))
            if params is None or name not in params:
                raise ValueError(f"count: the parameter {name!r} needs a value, got {dict(params or {})}")
            raw = raw.fix_val(PARAM, position, params[name]).project_out(PARAM, position, 1)
        return to_int(raw.count_val())

    # ---- projections and bounds
    def project_onto(self, dims: Sequence[str]) -> Domain:
        """Return the points over ``dims`` for which the other dims have some value."""
        raw = self.raw
        for position in reversed(range(len(self.dims))):
            if self.dims[position] not in dims:
                raw = raw.project_out(SET, position, 1)
        return Domain(tuple(d for d in self.dims if d in dims), raw).with_dims(dims)

    def add_dims(self, dims: Sequence[str]) -> Domain:
        """Return the set with further, unconstrained dims."""
        return Domain((*self.dims, *dims), self.raw.add_dims(SET, len(dims)))

    def image(self, exprs: Sequence[AffineLike], names: Sequence[str]) -> Domain:
        """Return the values that ``exprs`` take on this set, as points over ``names``."""
        mapping = to_multi_aff([Affine.of(e) for e in exprs], self.dims).to_pw_multi_aff()
        return Domain(tuple(names), nonnegative_params(self.raw.apply(isl.Map.from_pw_multi_aff(mapping))))

    def preimage(self, exprs: Sequence[AffineLike], dims: Sequence[str]) -> Domain:
        """Return the points over ``dims`` whose image under ``exprs`` lies in this set."""
        raw = self.raw.preimage_multi_aff(to_multi_aff([Affine.of(e) for e in exprs], dims))
        return Domain(tuple(dims), nonnegative_params(raw))

    def hull(self) -> Domain:
        """Return one conjunction of constraints that holds this set (the set itself where it is convex)."""
        return Domain(self.dims, self.raw.coalesce().simple_hull().to_set())

    def pieces(self) -> tuple[Domain, ...]:
        """Return disjoint conjunctions whose union is this set."""
        return tuple(Domain(self.dims, b.to_set()) for b in basic_sets(self.raw.make_disjoint()))

    def constraints(self) -> tuple[Constraint, ...]:
        """Return the constraints of a conjunction; :class:`ValueError` for a proper union."""
        basics = basic_sets(self.raw)
        if len(basics) > 1:
            raise ValueError(f"{self} is a union of {len(basics)} conjunctions")
        return tuple(constraints_of(basics[0], self.dims)) if basics else (Constraint(Affine(-1)),)

    def _extreme(self, expr: AffineLike, greatest: bool) -> int | None:
        flat, params = params_to_dims(with_params(self.raw, sorted(Affine.of(expr).params())))
        flipped = {p: Affine.dim("\0" + p) for p in params}
        e = Affine.of(expr).substitute(lambda a: flipped.get(a.name) if type(a).__name__ == "Param" else None)
        (aff,), _ = to_affs([e], [*("\0" + p for p in params), *self.dims])
        value = flat.max_val(aff) if greatest else flat.min_val(aff)
        return to_int(value) if value.is_int() else None

    def min_of(self, expr: AffineLike) -> int | None:
        """Return the least value of ``expr`` over all points and parameters; ``None`` if unbounded or empty."""
        return self._extreme(expr, greatest=False)

    def max_of(self, expr: AffineLike) -> int | None:
        """Return the greatest value of ``expr`` over all points and parameters; ``None`` if unbounded or empty."""
        return self._extreme(expr, greatest=True)

    def upper_affine(self, expr: AffineLike | str) -> Affine | None:
        """Return the greatest value of ``expr`` (or a dim) as one affine expression of parameters, else ``None``."""
        return self._bound(expr, greatest=True)

    def lower_affine(self, expr: AffineLike | str) -> Affine | None:
        """Return the least value of ``expr`` (or of a dim) as one affine expression of parameters, else ``None``."""
        return self._bound(expr, greatest=False)

    def _bound(self, expr: AffineLike | str, greatest: bool) -> Affine | None:
        e = Affine.dim(expr) if isinstance(expr, str) else expr
        values = self.image([e], ["value"]).raw
        bounded = values.dim_has_upper_bound(SET, 0) if greatest else values.dim_has_lower_bound(SET, 0)
        if not bounded:
            return None
        pieces = (values.dim_max(0) if greatest else values.dim_min(0)).coalesce().get_pieces()
        if len(pieces) != 1 or pieces[0][1].get_denominator_val().to_python() != 1:
            return None
        return to_affine(pieces[0][1], (), IN)

    def loop_bounds(self, var: str, outer: Sequence[str]) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
        """Return lower and exclusive upper bounds of ``var`` inside loops over ``outer``: a max and a min.

        Dims other than ``outer`` and ``var`` are projected out; bounds that follow from the outer dims are left out.
        A union is covered by its hull, and strides are not bounds: what the loop then runs too far,
        :meth:`missing` says.
        """
        inner = self.project_onto([*outer, var]).raw
        gist = inner.gist(self.project_onto(outer).raw.add_dims(SET, 1))
        bounds = _split_bounds(gist, [*outer, var])
        if not (bounds[0] and bounds[1]):
            bounds = _split_bounds(inner, [*outer, var])
        if not (bounds[0] and bounds[1]):
            raise ValueError(f"the dim {var!r} is unbounded inside {tuple(outer)} in {self}")
        return bounds

    def missing(self, known: Domain) -> tuple[Constraint, ...]:
        """Return constraints that, together with ``known``, hold exactly on this set (its points in ``known``)."""
        given = self._same(known)
        basics = basic_sets(self.raw.gist(given))
        if not basics:
            return (Constraint(Affine(-1)),)
        if len(basics) == 1:
            return tuple(constraints_of(basics[0], self.dims))
        kept: list[Constraint] = []
        for c in self.constraints():
            raw = to_set(self.dims, [c])
            if not given.is_subset(raw):
                kept.append(c)
                given = given.intersect(raw)
        return tuple(kept)

    def __str__(self) -> str:
        parts = [" and ".join(map(str, constraints_of(b, self.dims))) or "true" for b in basic_sets(self.raw)]
        return f"{{({', '.join(self.dims)}): {' or '.join(parts) or 'false'}}}"

    __repr__ = __str__


def _split_bounds(raw: isl.Set, dims: Sequence[str]) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """Return lower and exclusive upper bounds of the last of ``dims``."""
    last = len(dims) - 1
    raw = raw.coalesce()
    if raw.n_basic_set() > 1:
        raw = raw.remove_divs_involving_dims(SET, last, 1).simple_hull().to_set()
    lowers: dict[Affine, None] = {}
    uppers: dict[Affine, None] = {}
    for basic in basic_sets(raw)[:1]:
        for c in constraints_of(basic, dims):
            factor = c.expr.coefficient(Affine.dim(dims[last]).terms[0][0])
            rest = c.expr - Affine.dim(dims[last]) * factor
            if not factor or dims[last] in rest.dims():
                continue
            if factor > 0 or c.equality:  # factor * var >= -rest
                sign = 1 if factor > 0 else -1
                lowers[-((rest * sign) // abs(factor))] = None
            if factor < 0 or c.equality:
                sign = 1 if factor < 0 else -1
                uppers[(rest * sign) // abs(factor) + 1] = None
    return tuple(lowers), tuple(uppers)

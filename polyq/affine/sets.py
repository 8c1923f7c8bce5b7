"""Integer sets and relations: the one boundary to isl.

:class:`Domain` is a set of integer points with named dims; :class:`Relation` relates two of them. Both may depend on
parameters, all of which are at least 0. Values are frozen: every operation returns a new one. Nothing outside this
module sees a raw isl object, and isl never sees a name of the user: dims are positions there, and parameters carry
encoded names. Sets are built from affine expressions, never from text.

Domains are compared by :meth:`Domain.equals`; ``==`` is identity.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TypeVar

import islpy as isl

from polyq.affine.expr import Affine, AffineLike, Constraint, FloorDiv

__all__ = ["Domain", "Point", "Relation", "SearchLimit", "last_writers", "limited"]

_CONTEXT = isl.DEFAULT_CONTEXT
_SET, _PARAM, _IN, _OUT, _DIV = (
    isl.dim_type.set, isl.dim_type.param, isl.dim_type.in_, isl.dim_type.out, isl.dim_type.div,
)  # fmt: skip

#: (dims, parameters)
Point = tuple[dict[str, int], dict[str, int]]
_Raw = TypeVar("_Raw", isl.Set, isl.Map)


class SearchLimit(RuntimeError):
    """isl used more operations than :func:`limited` allowed."""


_limits: list[int] = []  # of the searches that run, the last begun last


@contextmanager
def limited(operations: int) -> Generator[None]:
    """Bound the number of isl operations of the block; raise :class:`SearchLimit` beyond it."""
    _limits.append(operations)
    _CONTEXT.reset_operations()
    _CONTEXT.set_max_operations(operations)
    try:
        yield
    except isl.Error as error:
        if "maximal number of operations" in str(error):
            raise SearchLimit(f"the search took more than {operations} isl operations") from error
        raise
    finally:
        # another thread may search too, and the context is one: the limit goes when the last of them is done
        _limits.remove(operations)
        _CONTEXT.set_max_operations(_limits[-1] if _limits else 0)
        _CONTEXT.reset_operations()


# ---- from affine expressions to isl
def _encode(param: str) -> str:
    return "p" + param.encode().hex()


def _decode(name: str) -> str:
    return bytes.fromhex(name[1:]).decode()


def _space(params: Sequence[str], dims: int) -> isl.Space:
    space = isl.Space.set_alloc(_CONTEXT, len(params), dims)
    for position, name in enumerate(params):
        space = space.set_dim_name(_PARAM, position, _encode(name))
    return space


def _params_of(exprs: Iterable[Affine]) -> tuple[str, ...]:
    names: set[str] = set()
    for e in exprs:
        names |= e.params()
    return tuple(sorted(names))


def _to_aff(expr: Affine, local: isl.LocalSpace, where: Mapping[str, tuple[isl.dim_type, int]]) -> isl.Aff:
    """Return ``expr`` as an isl aff; ``where`` gives type and position of an atom, by ``d`` or ``p`` + its name."""
    aff = isl.Aff.zero_on_domain(local).set_constant_val(expr.const)
    for atom, coefficient in expr.terms:
        if isinstance(atom, FloorDiv):
            inner = _to_aff(atom.numerator, local, where).scale_down_val(atom.divisor).floor()
            aff = aff.add(inner.scale_val(coefficient))
        else:
            key = ("d" if type(atom).__name__ == "Dim" else "p") + atom.name
            if key not in where:
                raise ValueError(f"{expr}: the dim {atom.name!r} is none of {[k[1:] for k in where if k[0] == 'd']}")
            kind, position = where[key]
            aff = aff.add_coefficient_val(kind, position, coefficient)
    return aff


def _affs(exprs: Sequence[Affine], dims: Sequence[str]) -> tuple[list[isl.Aff], isl.Space]:
    params = _params_of(exprs)
    space = _space(params, len(dims))
    where = {f"d{d}": (_IN, i) for i, d in enumerate(dims)} | {f"p{p}": (_PARAM, i) for i, p in enumerate(params)}
    if len(set(dims)) != len(dims):
        raise ValueError(f"the dims {tuple(dims)} are not distinct")
    local = isl.LocalSpace.from_space(space)
    return [_to_aff(e, local, where) for e in exprs], space


def _multi_aff(exprs: Sequence[Affine], dims: Sequence[str]) -> isl.MultiAff:
    """Return the map from points over ``dims`` to the values of ``exprs``."""
    return _cached_multi_aff(tuple(exprs), tuple(dims))


@lru_cache(maxsize=8192)
def _cached_multi_aff(exprs: tuple[Affine, ...], dims: tuple[str, ...]) -> isl.MultiAff:
    affs, space = _affs(exprs, dims)
    result = isl.MultiAff.zero(isl.Space.map_from_domain_and_range(space, _like(space, len(exprs))))
    for position, aff in enumerate(affs):
        result = result.set_aff(position, aff)
    return result


def _like(space: isl.Space, dims: int) -> isl.Space:
    return isl.Space.set_from_params(space.params()).add_dims(_SET, dims)


def _constrained(dims: Sequence[str], constraints: Sequence[Constraint]) -> isl.Set:
    """Return the points over ``dims`` where all constraints hold, for parameters that are at least 0."""
    return _cached_constrained(tuple(dims), tuple(constraints))


@lru_cache(maxsize=8192)
def _cached_constrained(dims: tuple[str, ...], constraints: tuple[Constraint, ...]) -> isl.Set:
    affs, space = _affs([c.expr for c in constraints], dims)
    result = isl.BasicSet.universe(space)
    for c, aff in zip(constraints, affs, strict=True):
        result = result.intersect(aff.zero_basic_set() if c.equality else aff.ge_basic_set(aff.sub(aff)))
    return _nonnegative_params(result.to_set())


def _with_params(raw: isl.Set, params: Sequence[str]) -> isl.Set:
    """Return ``raw`` over further parameters as well, all of them at least 0."""
    return _nonnegative_params(raw.align_params(_space(params, 0).params()))


def _nonnegative_params(raw: _Raw) -> _Raw:
    count = raw.dim(_PARAM)
    for position in range(count):
        raw = raw.lower_bound_val(_PARAM, position, 0)
    return raw


# ---- from isl to affine expressions
def _int(value: isl.Val) -> int:
    return int(value.to_python())


def _from_local(item: isl.Aff | isl.Constraint, dims: Sequence[str], kind: isl.dim_type) -> Affine:
    """Return the affine expression of an aff (times its denominator) or of a constraint with known divs."""
    scale = _int(item.get_denominator_val()) if isinstance(item, isl.Aff) else 1

    def scaled(value: isl.Val) -> int:
        return _int(value.mul(isl.Val.int_from_si(_CONTEXT, scale)))

    total = Affine(scaled(item.get_constant_val()))
    for position, name in enumerate(dims):
        total += Affine.dim(name) * scaled(item.get_coefficient_val(kind, position))
    for position in range(item.dim(_PARAM)):
        name = _decode(str(item.get_dim_name(_PARAM, position)))
        total += Affine.param(name) * scaled(item.get_coefficient_val(_PARAM, position))
    for position in range(item.dim(_DIV)):
        factor = scaled(item.get_coefficient_val(_DIV, position))
        if factor:
            total += _from_aff_floor(item.get_div(position), dims) * factor
    return total


def _from_aff_floor(aff: isl.Aff, dims: Sequence[str]) -> Affine:
    return _from_local(aff, dims, _IN) // _int(aff.get_denominator_val())


def _constraints_of(basic: isl.BasicSet, dims: Sequence[str]) -> list[Constraint]:
    found: list[Constraint] = []
    for c in basic.get_constraints():
        if not c.is_equality() and c.is_div_constraint():
            continue
        found.append(Constraint(_from_local(c, dims, _SET), bool(c.is_equality())))
    return sorted(found, key=lambda c: (not c.equality, len(c.expr.terms), str(c.expr)))


def _basic_sets(raw: isl.Set) -> list[isl.BasicSet]:
    return list(raw.coalesce().compute_divs().get_basic_sets())


def _params_to_dims(raw: isl.Set) -> tuple[isl.Set, tuple[str, ...]]:
    names = tuple(_decode(str(raw.get_dim_name(_PARAM, i))) for i in range(raw.dim(_PARAM)))
    return raw.move_dims(_SET, 0, _PARAM, 0, len(names)), names


def _sample(raw: isl.Set, dims: Sequence[str]) -> Point | None:
    flat, params = _params_to_dims(raw)
    if flat.is_empty():
        return None
    point = flat.sample_point()
    values = [_int(point.get_coordinate_val(_SET, i)) for i in range(len(params) + len(dims))]
    return dict(zip(dims, values[len(params) :], strict=True)), dict(zip(params, values, strict=False))


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
        return Domain(tuple(dims), _constrained(dims, [*constraints, *context]))

    @staticmethod
    def empty(dims: Sequence[str]) -> Domain:
        """Return the set without points over ``dims``."""
        return Domain(tuple(dims), isl.Set.empty(_space((), len(dims))))

    # ---- set algebra
    def with_dims(self, order: Sequence[str]) -> Domain:
        """Return the same points with the dims in another order (a permutation)."""
        if tuple(order) == self.dims:
            return self
        if sorted(order) != sorted(self.dims):
            raise ValueError(f"with_dims({tuple(order)}): expected a permutation of {self.dims}")
        exprs = [Affine.dim(d) for d in self.dims]
        return Domain(tuple(order), self.raw.preimage_multi_aff(_multi_aff(exprs, order)))

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
        return Domain(self.dims, _nonnegative_params(self.raw.subtract(self._same(other))))

    def constrain(self, constraints: Iterable[Constraint]) -> Domain:
        """Return the points where all constraints hold as well."""
        return Domain(self.dims, self.raw.intersect(_constrained(self.dims, list(constraints))))

    def is_empty(self) -> bool:
        """Whether there is no point for any value of the parameters."""
        return bool(self.raw.is_empty())

    def is_subset(self, other: Domain) -> bool:
        """Whether all points are in ``other`` too."""
        yours = self._same(other)
        return bool(_nonnegative_params(self.raw.align_params(yours.get_space())).is_subset(yours))

    def equals(self, other: Domain) -> bool:
        """Whether both hold the same points, for all values of the parameters."""
        mine, yours = _nonnegative_params(self.raw), self._same(other)
        return bool(mine.is_equal(_nonnegative_params(yours.align_params(mine.get_space()))))

    def implies(self, *constraints: Constraint) -> bool:
        """Whether all constraints hold at every point."""
        given = _with_params(self.raw, _params_of(c.expr for c in constraints))
        return bool(given.is_subset(_constrained(self.dims, constraints)))

    def sample(self) -> Point | None:
        """Return one point as (dims, parameters), or ``None``."""
        return _sample(self.raw, self.dims)

    def count(self, params: Mapping[str, int] | None = None) -> int:
        """Return the number of points; every parameter that occurs needs a value."""
        raw = self.raw
        for position in reversed(range(raw.dim(_PARAM))):
            name = _decode(str(raw.get_dim_name(_PARAM, position)))
            if params is None or name not in params:
                raise ValueError(f"count: the parameter {name!r} needs a value, got {dict(params or {})}")
            raw = raw.fix_val(_PARAM, position, params[name]).project_out(_PARAM, position, 1)
        return _int(raw.count_val())

    # ---- projections and bounds
    def project_onto(self, dims: Sequence[str]) -> Domain:
        """Return the points over ``dims`` for which the other dims have some value."""
        raw = self.raw
        for position in reversed(range(len(self.dims))):
            if self.dims[position] not in dims:
                raw = raw.project_out(_SET, position, 1)
        return Domain(tuple(d for d in self.dims if d in dims), raw).with_dims(dims)

    def add_dims(self, dims: Sequence[str]) -> Domain:
        """Return the set with further, unconstrained dims."""
        return Domain((*self.dims, *dims), self.raw.add_dims(_SET, len(dims)))

    def image(self, exprs: Sequence[AffineLike], names: Sequence[str]) -> Domain:
        """Return the values that ``exprs`` take on this set, as points over ``names``."""
        mapping = _multi_aff([Affine.of(e) for e in exprs], self.dims).to_pw_multi_aff()
        return Domain(tuple(names), _nonnegative_params(self.raw.apply(isl.Map.from_pw_multi_aff(mapping))))

    def preimage(self, exprs: Sequence[AffineLike], dims: Sequence[str]) -> Domain:
        """Return the points over ``dims`` whose image under ``exprs`` lies in this set."""
        raw = self.raw.preimage_multi_aff(_multi_aff([Affine.of(e) for e in exprs], dims))
        return Domain(tuple(dims), _nonnegative_params(raw))

    def hull(self) -> Domain:
        """Return one conjunction of constraints that holds this set (the set itself where it is convex)."""
        return Domain(self.dims, self.raw.coalesce().simple_hull().to_set())

    def pieces(self) -> tuple[Domain, ...]:
        """Return disjoint conjunctions whose union is this set."""
        return tuple(Domain(self.dims, b.to_set()) for b in _basic_sets(self.raw.make_disjoint()))

    def constraints(self) -> tuple[Constraint, ...]:
        """Return the constraints of a conjunction; :class:`ValueError` for a proper union."""
        basics = _basic_sets(self.raw)
        if len(basics) > 1:
            raise ValueError(f"{self} is a union of {len(basics)} conjunctions")
        return tuple(_constraints_of(basics[0], self.dims)) if basics else (Constraint(Affine(-1)),)

    def _extreme(self, expr: AffineLike, greatest: bool) -> int | None:
        flat, params = _params_to_dims(_with_params(self.raw, sorted(Affine.of(expr).params())))
        flipped = {p: Affine.dim("\0" + p) for p in params}
        e = Affine.of(expr).substitute(lambda a: flipped.get(a.name) if type(a).__name__ == "Param" else None)
        (aff,), _ = _affs([e], [*("\0" + p for p in params), *self.dims])
        value = flat.max_val(aff) if greatest else flat.min_val(aff)
        return _int(value) if value.is_int() else None

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
        bounded = values.dim_has_upper_bound(_SET, 0) if greatest else values.dim_has_lower_bound(_SET, 0)
        if not bounded:
            return None
        pieces = (values.dim_max(0) if greatest else values.dim_min(0)).coalesce().get_pieces()
        if len(pieces) != 1 or pieces[0][1].get_denominator_val().to_python() != 1:
            return None
        return _from_local(pieces[0][1], (), _IN)

    def loop_bounds(self, var: str, outer: Sequence[str]) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
        """Return lower and exclusive upper bounds of ``var`` inside loops over ``outer``: a max and a min.

        Dims other than ``outer`` and ``var`` are projected out; bounds that follow from the outer dims are left out.
        A union is covered by its hull, and strides are not bounds: what the loop then runs too far,
        :meth:`missing` says.
        """
        inner = self.project_onto([*outer, var]).raw
        gist = inner.gist(self.project_onto(outer).raw.add_dims(_SET, 1))
        bounds = _split_bounds(gist, [*outer, var])
        if not (bounds[0] and bounds[1]):
            bounds = _split_bounds(inner, [*outer, var])
        if not (bounds[0] and bounds[1]):
            raise ValueError(f"the dim {var!r} is unbounded inside {tuple(outer)} in {self}")
        return bounds

    def missing(self, known: Domain) -> tuple[Constraint, ...]:
        """Return constraints that, together with ``known``, hold exactly on this set (its points in ``known``)."""
        given = self._same(known)
        basics = _basic_sets(self.raw.gist(given))
        if not basics:
            return (Constraint(Affine(-1)),)
        if len(basics) == 1:
            return tuple(_constraints_of(basics[0], self.dims))
        kept: list[Constraint] = []
        for c in self.constraints():
            raw = _constrained(self.dims, [c])
            if not given.is_subset(raw):
                kept.append(c)
                given = given.intersect(raw)
        return tuple(kept)

    def __str__(self) -> str:
        parts = [" and ".join(map(str, _constraints_of(b, self.dims))) or "true" for b in _basic_sets(self.raw)]
        return f"{{({', '.join(self.dims)}): {' or '.join(parts) or 'false'}}}"

    __repr__ = __str__


def _split_bounds(raw: isl.Set, dims: Sequence[str]) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """Return lower and exclusive upper bounds of the last of ``dims``."""
    last = len(dims) - 1
    raw = raw.coalesce()
    if raw.n_basic_set() > 1:
        raw = raw.remove_divs_involving_dims(_SET, last, 1).simple_hull().to_set()
    lowers: dict[Affine, None] = {}
    uppers: dict[Affine, None] = {}
    for basic in _basic_sets(raw)[:1]:
        for c in _constraints_of(basic, dims):
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


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """Pairs of integer points, from points over ``in_dims`` to points over ``out_dims``."""

    in_dims: tuple[str, ...]
    out_dims: tuple[str, ...]
    raw: isl.Map

    @staticmethod
    def make(in_dims: Sequence[str], out_dims: Sequence[str], constraints: Iterable[Constraint] = ()) -> Relation:
        """Return the pairs where all constraints hold; the names of all dims are distinct."""
        flat = _constrained([*in_dims, *out_dims], list(constraints))
        return Relation(tuple(in_dims), tuple(out_dims), _unflatten(flat, len(in_dims)))

    @staticmethod
    def function(domain: Domain, exprs: Sequence[AffineLike], names: Sequence[str]) -> Relation:
        """Return the map from each point of ``domain`` to the values of ``exprs``."""
        mapping = isl.Map.from_multi_aff(_multi_aff([Affine.of(e) for e in exprs], domain.dims))
        return Relation(domain.dims, tuple(names), _nonnegative_params(mapping.intersect_domain(domain.raw)))

    @staticmethod
    def from_domain(flat: Domain, in_dims: Sequence[str], out_dims: Sequence[str]) -> Relation:
        """Return the pairs whose concatenation is in ``flat``."""
        raw = flat.with_dims([*in_dims, *out_dims]).raw
        return Relation(tuple(in_dims), tuple(out_dims), _unflatten(raw, len(in_dims)))

    def to_domain(self) -> Domain:
        """Return the pairs as points over ``in_dims`` then ``out_dims`` (which must be distinct names)."""
        flat = self.raw.move_dims(_IN, len(self.in_dims), _OUT, 0, len(self.out_dims)).domain()
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
        raw = self.raw.preimage_domain_multi_aff(_multi_aff(in_exprs, in_dims))
        raw = raw.preimage_range_multi_aff(_multi_aff(out_exprs, out_dims))
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
        return Relation(self.in_dims, self.out_dims, _nonnegative_params(self.raw.subtract(other.raw)))

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
            if len(pieces) != 1 or _int(pieces[0][1].get_denominator_val()) != 1:
                return None
            result.append(_from_local(pieces[0][1], self.in_dims, _IN))
        return tuple(result)

    def sample(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]] | None:
        """Return one pair as (in dims, out dims, parameters), or ``None``."""
        split = len(self.in_dims)
        flat = self.raw.move_dims(_IN, split, _OUT, 0, len(self.out_dims)).domain().reset_tuple_id()
        found = _sample(flat, [str(i) for i in range(split + len(self.out_dims))])
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
    count = raw.dim(_SET)
    return isl.Map.from_domain(raw).move_dims(_OUT, 0, _IN, split, count - split)


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
        i, j = (int(str(part.get_tuple_name(kind))[1:]) for kind in (_IN, _OUT))
        raw = part.reset_tuple_id(_IN).reset_tuple_id(_OUT)
        flows[i, j] = Relation(sources[i][0].in_dims, sinks[j][0].in_dims, raw)
    for part in _maps(flow.get_must_no_source()):
        j = int(str(part.get_tuple_name(_IN))[1:])
        if not part.is_empty():
            lost[j] = Domain(sinks[j][0].in_dims, part.domain().reset_tuple_id())
    return flows, lost


def _union(relations: Sequence[Relation], tag: str) -> isl.UnionMap:
    maps = [r.raw.set_tuple_name(_IN, f"{tag}{i}").to_union_map() for i, r in enumerate(relations)]
    return reduce(isl.UnionMap.union, maps)


def _maps(union: isl.UnionMap) -> list[isl.Map]:
    maps = union.get_map_list()
    return [maps.get_at(i) for i in range(maps.n_map())]

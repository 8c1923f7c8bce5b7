"""Affine expressions to isl and back: dims are positions there, and parameters carry encoded names."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import islpy as isl

from polyq.affine.expr import Affine, Constraint, FloorDiv

__all__ = [
    "IN", "OUT", "PARAM", "SET", "Point", "SearchLimit", "basic_sets", "constraints_of", "decoded", "limited",
    "nonnegative_params", "params_of", "params_to_dims", "sample_point", "space_of", "to_affine", "to_affs",
    "to_int", "to_multi_aff", "to_set", "with_params",
]  # fmt: skip

_CONTEXT = isl.DEFAULT_CONTEXT
SET, PARAM, IN, OUT, _DIV = (
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


def decoded(name: str) -> str:
    """Return the parameter that isl knows by an encoded name."""
    return bytes.fromhex(name[1:]).decode()


def space_of(params: Sequence[str], dims: int) -> isl.Space:
    """Return the space of a set over so many dims."""
    space = isl.Space.set_alloc(_CONTEXT, len(params), dims)
    for position, name in enumerate(params):
        space = space.set_dim_name(PARAM, position, _encode(name))
    return space


def params_of(exprs: Iterable[Affine]) -> tuple[str, ...]:
    """Return the parameters of all expressions, in order."""
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


def to_affs(exprs: Sequence[Affine], dims: Sequence[str]) -> tuple[list[isl.Aff], isl.Space]:
    """Return expressions over named dims in isl's form, and their space."""
    params = params_of(exprs)
    space = space_of(params, len(dims))
    where = {f"d{d}": (IN, i) for i, d in enumerate(dims)} | {f"p{p}": (PARAM, i) for i, p in enumerate(params)}
    if len(set(dims)) != len(dims):
        raise ValueError(f"the dims {tuple(dims)} are not distinct")
    local = isl.LocalSpace.from_space(space)
    return [_to_aff(e, local, where) for e in exprs], space


def to_multi_aff(exprs: Sequence[Affine], dims: Sequence[str]) -> isl.MultiAff:
    """Return the map from points over ``dims`` to the values of ``exprs``."""
    return _cached_multi_aff(tuple(exprs), tuple(dims))


@lru_cache(maxsize=8192)
def _cached_multi_aff(exprs: tuple[Affine, ...], dims: tuple[str, ...]) -> isl.MultiAff:
    affs, space = to_affs(exprs, dims)
    result = isl.MultiAff.zero(isl.Space.map_from_domain_and_range(space, _like(space, len(exprs))))
    for position, aff in enumerate(affs):
        result = result.set_aff(position, aff)
    return result


def _like(space: isl.Space, dims: int) -> isl.Space:
    return isl.Space.set_from_params(space.params()).add_dims(SET, dims)


def to_set(dims: Sequence[str], constraints: Sequence[Constraint]) -> isl.Set:
    """Return the points over ``dims`` where all constraints hold, for parameters that are at least 0."""
    return _cached_constrained(tuple(dims), tuple(constraints))


@lru_cache(maxsize=8192)
def _cached_constrained(dims: tuple[str, ...], constraints: tuple[Constraint, ...]) -> isl.Set:
    affs, space = to_affs([c.expr for c in constraints], dims)
    result = isl.BasicSet.universe(space)
    for c, aff in zip(constraints, affs, strict=True):
        result = result.intersect(aff.zero_basic_set() if c.equality else aff.ge_basic_set(aff.sub(aff)))
    return nonnegative_params(result.to_set())


def with_params(raw: isl.Set, params: Sequence[str]) -> isl.Set:
    """Return ``raw`` over further parameters as well, all of them at least 0."""
    return nonnegative_params(raw.align_params(space_of(params, 0).params()))


def nonnegative_params(raw: _Raw) -> _Raw:
    """Return what is there where all parameters are at least 0."""
    count = raw.dim(PARAM)
    for position in range(count):
        raw = raw.lower_bound_val(PARAM, position, 0)
    return raw


# ---- from isl to affine expressions
def to_int(value: isl.Val) -> int:
    """Return one of isl's numbers."""
    return int(value.to_python())


def to_affine(item: isl.Aff | isl.Constraint, dims: Sequence[str], kind: isl.dim_type) -> Affine:
    """Return the affine expression of an aff (times its denominator) or of a constraint with known divs."""
    scale = to_int(item.get_denominator_val()) if isinstance(item, isl.Aff) else 1

    def scaled(value: isl.Val) -> int:
        return to_int(value.mul(isl.Val.int_from_si(_CONTEXT, scale)))

    total = Affine(scaled(item.get_constant_val()))
    for position, name in enumerate(dims):
        total += Affine.dim(name) * scaled(item.get_coefficient_val(kind, position))
    for position in range(item.dim(PARAM)):
        name = decoded(str(item.get_dim_name(PARAM, position)))
        total += Affine.param(name) * scaled(item.get_coefficient_val(PARAM, position))
    for position in range(item.dim(_DIV)):
        factor = scaled(item.get_coefficient_val(_DIV, position))
        if factor:
            total += _from_aff_floor(item.get_div(position), dims) * factor
    return total


def _from_aff_floor(aff: isl.Aff, dims: Sequence[str]) -> Affine:
    return to_affine(aff, dims, IN) // to_int(aff.get_denominator_val())


def constraints_of(basic: isl.BasicSet, dims: Sequence[str]) -> list[Constraint]:
    """Return the constraints of a conjunction over named dims."""
    found: list[Constraint] = []
    for c in basic.get_constraints():
        if not c.is_equality() and c.is_div_constraint():
            continue
        found.append(Constraint(to_affine(c, dims, SET), bool(c.is_equality())))
    return sorted(found, key=lambda c: (not c.equality, len(c.expr.terms), str(c.expr)))


def basic_sets(raw: isl.Set) -> list[isl.BasicSet]:
    """Return the conjunctions whose union a set is."""
    return list(raw.coalesce().compute_divs().get_basic_sets())


def params_to_dims(raw: isl.Set) -> tuple[isl.Set, tuple[str, ...]]:
    """Return the set with its parameters as its first dims, and their names."""
    names = tuple(decoded(str(raw.get_dim_name(PARAM, i))) for i in range(raw.dim(PARAM)))
    return raw.move_dims(SET, 0, PARAM, 0, len(names)), names


def sample_point(raw: isl.Set, dims: Sequence[str]) -> Point | None:
    """Return one point and the parameters that it is there for, ``None`` for an empty set."""
    flat, params = params_to_dims(raw)
    if flat.is_empty():
        return None
    point = flat.sample_point()
    values = [to_int(point.get_coordinate_val(SET, i)) for i in range(len(params) + len(dims))]
    return dict(zip(dims, values[len(params) :], strict=True)), dict(zip(params, values, strict=False))

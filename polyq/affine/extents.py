"""Where the dims of statements end, and how large undeclared tensors are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv
from polyq.affine.sets import Domain

__all__ = ["Access", "Box", "NoEnd", "Shape", "alone", "at_most", "box_of", "largest", "written_shape"]

Shape = tuple[Affine, ...]
Access = tuple[str, Shape]


class NoEnd(SpecError):
    """The dim ``dim`` has no end."""

    def __init__(self, message: str, dim: str = "") -> None:
        super().__init__(message)
        self.dim = dim


@dataclass(frozen=True, slots=True)
class Box:
    """The dims of a statement with one upper bound each, and the constraints that the box does not imply."""

    dims: tuple[str, ...]
    extents: Shape
    where: tuple[Constraint, ...]


def at_most(a: Affine, b: Affine) -> bool:
    """Whether ``a <= b`` for all parameters of at least 0."""
    gap = b - a
    if gap.is_constant:
        return gap.const >= 0
    return Domain.make((), ()).implies(Constraint(gap))


def alone(index: Affine) -> str | None:
    """Return the dim that ``index`` is, if it is just one."""
    if index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1 and isinstance(index.terms[0][0], Dim):
        return index.terms[0][0].name
    return None


def ends(accesses: Iterable[Access], shapes: Mapping[str, Shape]) -> dict[str, dict[Affine, str]]:
    """Return for each dim the ends of the tensors that it indexes alone, each with the place that gives it."""
    found: dict[str, dict[Affine, str]] = {}
    for tensor, index in accesses:
        if tensor not in shapes:
            continue
        for position, (entry, extent) in enumerate(zip(index, shapes[tensor], strict=True)):
            dim = alone(entry)
            if dim is not None:
                found.setdefault(dim, {}).setdefault(extent, f"axis {position} of {tensor}")
    return found


def _bounds(dims: Sequence[str], limits: Mapping[str, Iterable[Affine]]) -> list[Constraint]:
    made = [Constraint(Affine.dim(d)) for d in dims]
    return made + [Constraint(e - Affine.dim(d) - 1) for d in dims for e in limits.get(d, ())]


def box_of(dims: tuple[str, ...], limits: Mapping[str, Mapping[Affine, str]], where: tuple[Constraint, ...]) -> Box:
    """Return the box and the rest of the domain, given where tensors end.

    Raises :class:`SpecError` for a dim without an end, and for ends that differ where ``where`` does not keep the dim
    within all of them.
    """
    several = [d for d in dims if len(limits.get(d, {})) > 1]
    for d in several:
        _refuse_conflict(dims, d, limits, where, several)
    if not where and all(len(limits.get(d, {})) == 1 for d in dims):
        return Box(dims, tuple(next(iter(limits[d])) for d in dims), ())
    all_bounds = _bounds(dims, limits) + list(where)
    extents = _extents(dims, limits, where, Domain.make(dims, all_bounds))
    known = Domain.make(dims, _bounds(dims, {d: [e] for d, e in zip(dims, extents, strict=True)}))
    kept: list[Constraint] = []
    for c in [*where, *all_bounds[len(dims) : len(all_bounds) - len(where)]]:
        if not known.implies(c):
            kept.append(c)
            known = known.constrain([c])
    return Box(dims, extents, tuple(kept))


def _extents(
    dims: tuple[str, ...], limits: Mapping[str, Mapping[Affine, str]], where: tuple[Constraint, ...], domain: Domain
) -> Shape:
    """Return the tightest single expression of parameters per dim, else the end of a tensor or of a constraint."""
    chosen: dict[str, Affine] = {}
    for d in dims:
        top = domain.upper_affine(d)
        if top is not None:
            chosen[d] = top + 1
        elif d in limits:
            chosen[d] = next(iter(limits[d]))
    waiting = [d for d in dims if d not in chosen]
    while waiting:
        before = len(waiting)
        for d in list(waiting):
            box = _bounds(dims, {k: [e] for k, e in chosen.items()})
            for c in where:
                top = Domain.make(dims, [*box, c]).upper_affine(d) if d in c.expr.dims() else None
                if top is None and set(c.expr.dims()) == {d} and c.expr.coefficient(Dim(d)) == -1:
                    top = c.expr + Affine.dim(d)  # an empty domain: the bound as it is written
                if top is not None:
                    chosen[d] = top + 1
                    waiting.remove(d)
                    break
        if len(waiting) == before:
            lost = waiting[0]
            raise NoEnd(
                f"the dim {lost} has no end: it indexes no tensor of known shape alone, and no constraint bounds it; "
                f"add one, such as where {lost} < 8 (dims are all names in subscripts, here {', '.join(dims)})",
                lost,
            )
    return tuple(chosen[d] for d in dims)


def _refuse_conflict(
    dims: tuple[str, ...],
    d: str,
    limits: Mapping[str, Mapping[Affine, str]],
    where: tuple[Constraint, ...],
    several: list[str],
) -> None:
    single = {k: list(e) for k, e in limits.items() if k not in several}
    kept = Domain.make(dims, [*_bounds(dims, single), *where])
    if where and all(kept.implies(Constraint(e - Affine.dim(d) - 1)) for e in limits[d]):
        return
    said = " and ".join(f"{e} by {place}" for e, place in limits[d].items())
    raise SpecError(f"the dim {d} has different ends: {said}; make them equal, or keep {d} within all of them by where")


def largest(expr: Affine, extents: Mapping[str, Affine]) -> Affine:
    """Return an upper bound of ``expr`` over the box, as an expression of parameters (exact where dims occur once)."""
    return _extreme(expr, extents, greatest=True)


def _extreme(expr: Affine, extents: Mapping[str, Affine], greatest: bool) -> Affine:
    total = Affine(expr.const)
    for atom, coefficient in expr.terms:
        up = greatest == (coefficient > 0)
        if isinstance(atom, FloorDiv):
            value = _extreme(atom.numerator, extents, up) // atom.divisor
        elif isinstance(atom, Dim):
            value = extents[atom.name] - 1 if up else Affine(0)
        else:
            value = Affine.of(atom)
        total += value * coefficient
    return total


def written_shape(
    index: Shape, box: Box, limits: Mapping[str, Mapping[Affine, str]], where: tuple[Constraint, ...]
) -> Shape:
    """Return the shape that the left subscripts of one statement give an undeclared tensor.

    It runs from 0 to the largest subscript; reduced dims and the constraints that name them are ignored.
    """
    kept = tuple(d for d in box.dims if any(d in e.dims() for e in index))
    narrow = tuple(c for c in where if c.expr.dims() <= set(kept))
    try:
        own = box_of(kept, {d: limits[d] for d in kept if d in limits}, narrow) if len(kept) < len(box.dims) else box
    except NoEnd:  # an end that only a constraint with a reduced dim gives
        own = box
    extents = dict(zip(own.dims, own.extents, strict=True))
    own_where = [c for c in own.where if c.expr.dims() <= set(kept)]
    domain = Domain.make(kept, [*_bounds(kept, {d: [extents[d]] for d in kept}), *own_where])
    if own_where and domain.is_empty():
        return tuple(Affine(0) for _ in index)
    shape: list[Affine] = []
    for entry in index:
        simple = not own_where and len(entry.dims()) == sum(isinstance(a, Dim) for a in entry.atoms())
        size = (largest(entry, extents) if simple else _exact_top(entry, domain, extents)) + 1
        shape.append(Affine(max(size.const, 0)) if size.is_constant else size)
    return tuple(shape)


def _exact_top(entry: Affine, domain: Domain, extents: Mapping[str, Affine]) -> Affine:
    """Return the largest value of ``entry``, or the least bound known where that is no single expression."""
    top = domain.upper_affine(entry)
    if top is not None:
        return top
    number = domain.max_of(entry)
    return largest(entry, extents) if number is None else Affine(number)

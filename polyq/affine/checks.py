"""What is wrong with an op or a program, proven on integer sets and said with a sample point.

Three questions: does every access stay inside its tensor, does an assignment write a cell twice, and is every cell that
is read written before. Each raises :class:`~polyq.affine.errors.SpecError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.extents import alone
from polyq.affine.sets import Domain
from polyq.affine.spec import Op, Tensor

__all__ = ["Coverage", "check_bounds", "check_rank", "check_single_writes", "coverage", "domain_of", "format_point"]


def domain_of(op: Op) -> Domain:
    """Return the set of instances of ``op``."""
    return Domain.make(op.dims, op.domain)


def cells(tensor: Tensor) -> tuple[str, ...]:
    """Return names for the axes of a tensor, none of which a dim can have."""
    return tuple(f"axis.{k}" for k in range(len(tensor.shape)))


def box(tensor: Tensor) -> Domain:
    """Return all cells of a tensor."""
    axes = cells(tensor)
    bounds: list[Constraint] = []
    for axis, extent in zip(axes, tensor.extents, strict=True):
        bounds += [Constraint(Affine.dim(axis)), Constraint(extent - Affine.dim(axis) - 1)]
    return Domain.make(axes, bounds)


def format_point(dims: Mapping[str, int], params: Mapping[str, int] | None = None) -> str:
    """Return ``i = 3, j = 0 (n = 5)``."""
    point = ", ".join(f"{k} = {v}" for k, v in dims.items()) or "its only instance"
    return point + (f" (with {', '.join(f'{k} = {v}' for k, v in params.items())})" if params else "")


def first_point(domain: Domain) -> tuple[dict[str, int], dict[str, int]] | None:
    """Return the lexicographically least point, parameters first, as (dims, parameters); the dims are bounded below."""
    found = domain.sample()
    if found is None:
        return None
    dims, params = found
    for values, make in ((params, Affine.param), (dims, Affine.dim)):
        for name in values:
            least = domain.min_of(make(name))
            values[name] = values[name] if least is None else least
            domain = domain.constrain([Constraint(make(name) - values[name], equality=True)])
    return dims, params


def _format_access(tensor: str, index: tuple[Affine, ...]) -> str:
    return f"{tensor}[{', '.join(map(str, index))}]" if index else tensor


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# ---- bounds
def check_rank(tensor: Tensor, index: tuple[Affine, ...]) -> None:
    """Raise unless there is one subscript for each axis."""
    if len(index) != len(tensor.shape):
        place = f"operand {_format_access(tensor.name, index)}"
        axes = _count(len(tensor.shape), "axis", "axes")
        raise SpecError(f"{place}: {tensor} has {axes}, got {_count(len(index), 'subscript', 'subscripts')}")


def check_bounds(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Prove that every access of ``op`` stays inside its tensor, for all parameters of at least 0."""
    accesses = dict.fromkeys([(op.target, op.index), *((r.tensor, r.index) for r in op.reads)])
    domain: Domain | None = None
    for name, index in accesses:
        for position, (entry, extent) in enumerate(zip(index, tensors[name].extents, strict=True)):
            if _surely_inside(op, entry, extent):
                continue
            domain = domain_of(op) if domain is None else domain
            for good in (Constraint(entry), Constraint(extent - 1 - entry)):
                if not domain.implies(good):
                    raise SpecError(_outside(op, domain, (name, index), position, extent, good))


def _surely_inside(op: Op, entry: Affine, extent: Affine) -> bool:
    dim = alone(entry)
    if dim is not None and op.extent(dim) == extent:
        return True
    if not extent.is_constant:
        return False
    ranges = {d: (0, e.const - 1) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant and e.const > 0}
    span = entry.bounds(ranges)
    return span is not None and span[0] >= 0 and span[1] < extent.const


def _outside(
    op: Op, domain: Domain, access: tuple[str, tuple[Affine, ...]], position: int, extent: Affine, good: Constraint
) -> str:
    bad = domain.constrain([Constraint(-good.expr - 1)])
    point = first_point(bad) or ({}, {})
    name, index = access
    entry = index[position]
    value = entry.evaluate(*point)
    said = f"operand {_format_access(name, index)}: subscript {position} ({entry}) is {value} at "
    said += f"{format_point(*point)}, outside axis {position} of {name}, which has extent {extent}"
    params = point[1]
    if not extent.is_constant:
        said += f" = {extent.evaluate(None, params)} there"
    if value >= 0:
        top = domain.upper_affine(entry)
        if top is not None:
            said += f"; an extent of {top + 1} is needed"
    dims = ", ".join(sorted(entry.dims()))
    return said + (f"; bound {dims} by where, or change the shape" if dims else "; change the shape")


# ---- two writes of one cell
def _primed(op: Op) -> dict[str, str]:
    return {d: f"{d}'" for d in op.dims}


def _ordered_pairs(op: Op, left: Domain, right: Domain) -> list[Domain]:
    """Pairs of instances, the first (in primed dims) before the second, one set for each dim where they part."""
    prime = _primed(op)
    both = right.add_dims(tuple(prime.values())).intersect(left.renamed(prime).add_dims(op.dims))
    pairs: list[Domain] = []
    for k, d in enumerate(op.dims):
        order = [Constraint(Affine.dim(e) - Affine.dim(prime[e]), equality=True) for e in op.dims[:k]]
        pairs.append(both.constrain([*order, Constraint(Affine.dim(d) - Affine.dim(prime[d]) - 1)]))
    return pairs


def _meeting(op: Op, first: tuple[Affine, ...], second: tuple[Affine, ...]) -> list[Constraint]:
    """Say that the cell ``first`` of the primed instance is the cell ``second`` of the other."""
    to_prime = {d: Affine.dim(p) for d, p in _primed(op).items()}
    return [Constraint(a.substitute(to_prime) - b, equality=True) for a, b in zip(first, second, strict=True)]


def check_single_writes(op: Op) -> None:
    """Raise if an assignment writes one cell at two instances."""
    if op.reduce is not None or {alone(e) for e in op.index} >= set(op.dims):
        return
    domain = domain_of(op)
    same = _meeting(op, op.index, op.index)
    for pair in _ordered_pairs(op, domain, domain):
        found = first_point(pair.constrain(same))
        if found is not None:
            point, params = found
            early = {d: point[p] for d, p in _primed(op).items()}
            late = {d: point[d] for d in op.dims}
            cell = tuple(Affine(e.evaluate(late, params)) for e in op.index)
            raise SpecError(
                f"`=` writes the cell {_format_access(op.target, cell)} twice, at {format_point(early)} "
                f"and at {format_point(late, params)}; use a reduction (+=, *=, min=, max=) or another target"
            )


# ---- reads of what was never written
@dataclass(frozen=True, slots=True)
class Coverage:
    """What the ops of a program do with the cells of one tensor.

    ``starts`` names the reductions that meet cells which no earlier op wrote; ``complete`` says whether every cell is
    written in the end; ``exposed`` whether an op may load a cell before any op writes it, and ``witness`` says where.
    """

    starts: tuple[str, ...]
    complete: bool
    exposed: bool
    witness: tuple[Op, str] | None


def coverage(tensor: Tensor, ops: tuple[Op, ...], written: bool = False) -> Coverage:
    """Follow ``tensor`` through ``ops``; ``written`` says that all of its cells hold a value before the first."""
    everything = box(tensor)
    axes = cells(tensor)
    done: Domain | None = everything if written else None
    full = written
    starts: list[str] = []
    witness: tuple[Op, str] | None = None
    for op in ops:
        writes = op.target == tensor.name
        if not full and witness is None:
            witness = _unwritten_read(tensor, op, everything, done)
        if not writes or full:
            continue
        touched = everything if _writes_all(tensor, op) else domain_of(op).image(op.index, axes)
        if op.reduce is not None and (done is None or not touched.is_subset(done)):
            starts.append(op.name)
        done = touched if done is None else done.union(touched)
        full = touched is everything or everything.is_subset(done)
    return Coverage(tuple(starts), full, witness is not None, witness)


def _writes_all(tensor: Tensor, op: Op) -> bool:
    """Whether the op's box is the tensor's, dim by axis; a quick sufficient test."""
    dims = [alone(e) for e in op.index]
    if op.where or None in dims or len(set(dims)) != len(dims):
        return False
    return all(d is not None and op.extent(d) == e for d, e in zip(dims, tensor.extents, strict=True)) and all(
        e.is_constant and e.const > 0 for d, e in zip(op.dims, op.extents, strict=True) if d not in dims
    )


def _unwritten_read(tensor: Tensor, op: Op, everything: Domain, done: Domain | None) -> tuple[Op, str] | None:
    """Say, as text, which load reads a cell that neither an earlier op nor an earlier instance of ``op`` wrote."""
    holes = everything if done is None else everything.subtract(done)
    for load in op.reads:
        if load.tensor != tensor.name:
            continue
        domain = domain_of(op)
        bad = holes.preimage(load.index, op.dims).intersect(domain)
        if op.target == tensor.name and not bad.is_empty():
            for pair in _ordered_pairs(op, domain, domain):
                earlier = pair.constrain(_meeting(op, op.index, load.index))
                bad = bad.subtract(earlier.project_onto(op.dims))
        found = first_point(bad)
        if found is not None:
            point, params = found
            cell = tuple(Affine(e.evaluate(point, params)) for e in load.index)
            said = (
                f"operand {_format_access(tensor.name, load.index)} reads the cell {_format_access(tensor.name, cell)}"
            )
            return op, f"{said} at {format_point(point, params)}, which nothing has written by then"
    return None

"""Encodings: a note on a tensor of how one of its readers indexes it.

An :class:`Encoding` keeps the reader's maps, says which of its dims are m, n, k and batch, and how the reader indexes
the tensor that the note is on. :func:`propagate` carries it to tensors that are reshaped, broadcast or computed
elementwise into this one, or from it: the access is composed with the relation of the step, and the reader's own maps
stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint, FloorDiv
from polyq.affine.layout_inverse import small_floors
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Op, Spec, Tensor
from polyq.affine.steps import Step

__all__ = ["Encoding", "Propagation", "encodings", "propagate"]

Role = Literal["batch", "m", "n", "k"]
ROLES: tuple[Role, ...] = ("batch", "m", "n", "k")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How an op indexes a tensor, directly or by way of the tensors in ``path``.

    ``maps`` are the op's own access maps over ``dims``, its reads in order and then its target (``operands`` names
    them); ``operand`` is the one that the note began at. ``roles`` has one role for each dim: ``"k"`` for those that
    the result lacks, ``"batch"`` for those that all contracted operands have, ``"m"`` for those of the first one alone,
    ``"n"`` for the others. ``access`` maps the op's dims to ``tensor``.
    """

    tensor: Tensor
    reader: str
    operand: int
    operands: tuple[str, ...]
    dims: tuple[str, ...]
    extents: tuple[Affine, ...]
    where: tuple[Constraint, ...]
    maps: tuple[AffineMap, ...]
    roles: tuple[Role, ...]
    access: AffineMap
    path: tuple[str, ...] = ()

    # ---- dims
    def dims_of(self, role: Role) -> tuple[str, ...]:
        """Return the reader's dims of a role, in order of its loops."""
        return tuple(d for d, r in zip(self.dims, self.roles, strict=True) if r == role)

    @property
    def batch(self) -> tuple[str, ...]:
        """The dims that every contracted operand has, and the result."""
        return self.dims_of("batch")

    @property
    def m(self) -> tuple[str, ...]:
        """The dims of the result that only the first contracted operand has."""
        return self.dims_of("m")

    @property
    def n(self) -> tuple[str, ...]:
        """The other dims of the result."""
        return self.dims_of("n")

    @property
    def k(self) -> tuple[str, ...]:
        """The dims that the result lacks."""
        return self.dims_of("k")

    def axes(self, role: Role) -> tuple[int, ...]:
        """Return the axes of the tensor whose subscripts depend on dims of a role."""
        wanted = self.dims_of(role)
        return tuple(a for a, e in enumerate(self.access.results) if any(depends(e, d, self.domain) for d in wanted))

    @property
    def domain(self) -> tuple[Constraint, ...]:
        """The constraints on the reader's dims."""
        spans = zip(map(Affine.dim, self.dims), self.extents, strict=True)
        return (*(c for d, n in spans for c in (Constraint(d), Constraint(n - 1 - d))), *self.where)

    @property
    def relation(self) -> Relation:
        """The pairs of an instance of the reader and the cell of the tensor that it meets."""
        names = [f"c{i}" for i in range(len(self.tensor.shape))]
        return Relation.function(Domain.make(self.dims, self.domain), self.access.results, names)

    def equals(self, other: Encoding) -> bool:
        """Whether both say the same of tensors of one shape: same reader, same pairs of instances and cells."""
        mine, yours = ((e.reader, e.operand, e.maps, e.roles, e.tensor.extents) for e in (self, other))
        return mine == yours and self.relation.equals(other.relation)

    def __str__(self) -> str:
        name, index = self.tensor.name, ", ".join(map(str, self.access.results))
        found = [f"{r} = {', '.join(self.dims_of(r))}" for r in ROLES if self.dims_of(r)]
        axes = [f"{r} {{{', '.join(map(str, self.axes(r)))}}}" for r in ROLES if self.axes(r)]
        verb = "writes" if self.operand == len(self.maps) - 1 else "reads"
        return f"{self.reader} {verb} {name}[{index}]: {'; '.join(found)}; axes of {name}: {', '.join(axes) or 'none'}"


@dataclass(frozen=True, slots=True)
class Propagation:
    """Where an encoding got: ``trail`` from the given one to the last, and the ``reason`` why it stopped there.

    ``reason`` is ``None`` where it went through all steps.
    """

    trail: tuple[Encoding, ...]
    reason: str | None = None

    @property
    def encoding(self) -> Encoding:
        """The last encoding that was reached."""
        return self.trail[-1]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.trail), *([f"stopped: {self.reason}"] if self.reason else [])])


# ---- from the access relations of an op
def encodings(spec: Spec, tensor: str | None = None) -> tuple[Encoding, ...]:
    """Return an encoding for each access of each op that reads something: its reads in order, then its target.

    ``tensor`` asks for those of one tensor. What is m, n, k or batch is found from the access relations alone.

    >>> import polyq
    >>> spec = polyq.parse('''
    ...     d[n, g, j] = f32(w[n, g, j]) * s[n, g]
    ...     y[m, n] += x[m, g, j] * d[n, g, j]
    ... ''', w=("u8", (64, 4, 32)), s=("f32", (64, 4)), x=("f32", ("m", 4, 32)))
    >>> print(*polyq.encodings(spec, "d")[-1:])
    y reads d[n, g, j]: m = m; n = n; k = g, j; axes of d: n {0}, k {1, 2}
    """
    if tensor is not None and all(t.name != tensor for t in spec.all_tensors):
        raise SpecError(f"encodings: there is no tensor {tensor!r}; the spec has {_names(spec.all_tensors)}")
    found = [e for op in spec.ops if op.reads for e in _encodings_of(spec, op)]
    return tuple(e for e in found if tensor is None or e.tensor.name == tensor)


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(t.name for t in tensors)


def _encodings_of(spec: Spec, op: Op) -> list[Encoding]:
    accesses = [*((r.tensor, r.index) for r in op.reads), (op.target, op.index)]
    operands = tuple(name for name, _ in accesses)
    maps = tuple(AffineMap(op.dims, tuple(index)) for _, index in accesses)
    roles = _roles(op, maps)
    return [
        Encoding(spec.tensor(name), op.name, at, operands, op.dims, op.extents, op.where, maps, roles, maps[at])
        for at, name in enumerate(operands)
    ]


def _roles(op: Op, maps: Sequence[AffineMap]) -> tuple[Role, ...]:
    """Say what each dim of an op is.

    Dims that the result does not depend on are k. The contracted operands are those with all k dims that a read has at
    once (scales of a group lack some). A dim that all of them have is batch; of the others, those of the first operand
    are m, the rest n. Where nothing is summed and one operand has all dims, it is elementwise, and all are batch.
    """
    *reads, result = ({d for d in op.dims if any(depends(e, d, op.domain) for e in m.results)} for m in maps)
    reduced = {d for d in op.dims if d not in result}
    if not reduced and any(set[str]().union(*reads) <= r for r in reads):
        return ("batch",) * len(op.dims)
    summed = [r & reduced for r in reads]
    contracted = [r - reduced for r, k in zip(reads, summed, strict=True) if not any(k < other for other in summed)]
    shared = contracted[0].intersection(*contracted)
    sides = [r - shared for r in contracted]
    owned = [side for side in sides if side]
    alone = all(side == owned[0] for side in owned)
    # a vector times a matrix: the vector has no dims of its own, whichever stands first
    first = (sides if alone else owned)[0]
    role: dict[str, Role] = {
        d: "k" if d in reduced else "batch" if d in shared else "m" if d in first else "n" for d in op.dims
    }
    return tuple(role[d] for d in op.dims)


def depends(e: Affine, dim: str, domain: Sequence[Constraint]) -> bool:
    """Whether the value differs at two points that differ in the dim alone; a bare dim counts even of one point."""
    if dim not in e.dims():
        return False
    other = {dim: Affine.dim(f"{dim}'")}
    if not any(isinstance(a, FloorDiv) and dim in a.numerator.dims() for a, _ in e.terms):
        return True
    dims = tuple(dict.fromkeys(d for c in (*domain, Constraint(e)) for d in sorted(c.expr.dims())))
    pairs = Domain.make((*dims, f"{dim}'"), [*domain, *(c.substitute(other) for c in domain)])
    return not pairs.implies(Constraint(e.substitute(other) - e, equality=True))


# ---- from tensor to tensor
def propagate(encoding: Encoding, through: Step | Sequence[Step], *, single_k: bool = False) -> Propagation:
    """Carry an encoding across steps, each of which begins or ends at the tensor that the one before reached.

    arguments: ``through``, steps upwards (to what the tensor comes from) or downwards (to what comes from it);
    ``single_k``, for readers that know one k axis only: no k axis may be cut into several or merged with another.
    rewrite: ``y reads b[m, k]``, ``b[4096*i + j, k] = a[i, j, k]`` -> ``y reads a[m//4096, m%4096, k]``
    requires: 1. every cell that the reader meets has one counterpart; 2. it is a quasi-affine expression of the
    reader's dims. Where that is not so, the answer says why, with a cell, and has what was reached before.

    >>> import polyq
    >>> spec = polyq.parse("y[m, n] += b[m, k] * c[n, k]", b=("f32", (8192, 640)), c=("f32", (16, 640)))
    >>> step = Step.collapse(polyq.Tensor("a", "f32", (2, 4096, 640)), "b", [[0, 1], [2]])
    >>> print(propagate(polyq.encodings(spec, "b")[0], step, single_k=True).encoding)
    y reads a[m//4096, m%4096, k]: m = m; n = n; k = k; axes of a: m {0, 1}, k {2}
    """
    trail = [encoding]
    for step in [through] if isinstance(through, Step) else through:
        made = _across(trail[-1], step, single_k)
        if isinstance(made, str):
            return Propagation(tuple(trail), made)
        trail.append(made)
    return Propagation(tuple(trail))


def _across(e: Encoding, step: Step, single_k: bool) -> Encoding | str:
    """Return the encoding on the other tensor of a step, or say why there is none."""
    here = [t for t in (step.result, step.source) if t.name == e.tensor.name]
    if not here or here[0].extents != e.tensor.extents:
        raise SpecError(f"propagate: the step `{step}` joins {step.source} and {step.result}; this is on {e.tensor}")
    upwards = here[0] is step.result
    there = step.source if upwards else step.result
    relation = step.up if upwards else step.down
    met = e.relation.compose(relation)
    reason = _no_counterpart(e, step, there, met)
    if reason is not None:
        return reason
    moved = relation.as_affine() or relation.intersect_domain(e.relation.range()).as_affine()
    moved = None if moved is None else tuple(map(small_floors, moved))
    if moved is not None and single_k and (reason := _k_collapsed(e, step, there, relation.in_dims, moved)):
        return reason
    if moved is None:
        found = None if single_k else met.as_affine()
    else:
        values = dict(zip(relation.in_dims, e.access.results, strict=True))
        found = tuple(x.substitute(values) for x in moved)
    if found is None:
        return f"`{step}`: the cells of {there.name} are no single affine expressions of those of {e.tensor.name}"
    ranges = {d: (0, n.const - 1) for d, n in zip(e.dims, e.extents, strict=True) if n.is_constant}
    access = AffineMap(e.dims, tuple(small_floors(x).simplify(ranges) for x in found))
    return replace(e, tensor=there, access=access, path=(*e.path, e.tensor.name))


def _no_counterpart(e: Encoding, step: Step, there: Tensor, met: Relation) -> str | None:
    """Say which instance of the reader has no cell, or several, in the other tensor."""
    lost = e.relation.domain().subtract(met.domain()).sample()
    if lost is not None:
        at = ", ".join(str(x.evaluate(*lost)) for x in e.access.results)
        return f"`{step}`: {e.tensor.name}[{at}], which {e.reader} meets, has no counterpart in {there.name}"
    if met.is_single_valued():
        return None
    found = met.subtract(met.lexmin()).sample()
    assert found is not None, "a relation that is not single-valued has a second pair somewhere"
    instance, second, params = found
    point = [Constraint(Affine.dim(d) - v, equality=True) for d, v in instance.items()]
    one = met.intersect_domain(Domain.make(met.in_dims, point)).lexmin().sample()
    assert one is not None, "the instance meets the second cell at least"
    at = ", ".join(str(x.evaluate(instance, params)) for x in e.access.results)
    cells = [f"{there.name}[{', '.join(map(str, cell.values()))}]" for cell in (one[1], second)]
    return f"`{step}`: {e.tensor.name}[{at}] belongs to {cells[0]} and to {cells[1]}"


def _k_collapsed(e: Encoding, step: Step, there: Tensor, names: Sequence[str], moved: Sequence[Affine]) -> str | None:
    """Say which k axis a step does not leave as one axis of its own."""
    spans = zip(map(Affine.dim, names), e.tensor.extents, strict=True)
    box = [c for d, n in spans for c in (Constraint(d), Constraint(n - 1 - d))]
    whole = [a for a, n in enumerate(e.tensor.extents) if n != Affine(1)]
    of = [{a for a in whole if depends(x, names[a], box)} for x in moved]  # axes there -> axes here
    for axis in e.axes("k"):
        held = [b for b, axes in enumerate(of) if axis in axes]
        merged = sorted(set[int]().union(*(of[b] for b in held)) - {axis})
        k = f"axis {axis} of {e.tensor.name} ({e.tensor.shape[axis]} cells of k)"
        if len(held) > 1:
            sizes = ", ".join(str(there.shape[b]) for b in held)
            return f"single_k: {k} is collapsed from ({sizes}), the axes {_set(held)} of {there.name}, by `{step}`"
        if merged:
            return f"single_k: {k} shares axis {held[0]} of {there.name} with {_set(merged)} in `{step}`"
    return None


def _set(axes: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, axes))}}}"

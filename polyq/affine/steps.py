"""Steps between tensors: how the cells of one come from the cells of another, as a relation.

A :class:`Step` is what a reshape, a broadcast or one operand of an op says about cells, and nothing about values: the
pairs of a source cell and the result cell that it takes part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """``result[writes]`` comes from ``source[reads]``, for all points over ``dims`` in ``domain``.

    Make one by :meth:`collapse`, :meth:`expand`, :meth:`transpose`, :meth:`broadcast` or :meth:`elementwise`, or read
    it off an op of a spec by :meth:`of`.

    >>> a = Tensor("a", "f32", (2, 4096, 640))
    >>> print(Step.collapse(a, "b", [[0, 1], [2]]))
    collapse: b[4096*d0 + d1, d2] of a[d0, d1, d2]
    """

    name: str
    source: Tensor
    result: Tensor
    dims: tuple[str, ...]
    domain: tuple[Constraint, ...]
    reads: tuple[Affine, ...]
    writes: tuple[Affine, ...]

    # ---- making one
    @staticmethod
    def _of_maps(name: str, source: Tensor, result: Tensor, over: Tensor, reads: AffineMap, writes: AffineMap) -> Step:
        box = [c for d, n in zip(reads.dims, over.extents, strict=True) for c in _span(d, n)]
        return Step(name, source, result, reads.dims, tuple(box), reads.results, writes.results)

    @staticmethod
    def collapse(source: Tensor, result: str, groups: Sequence[Sequence[int]]) -> Step:
        """Return the step to the tensor ``result`` whose axis ``i`` is the axes ``groups[i]`` here, flattened."""
        place, shape = _flattened(source, groups, "collapse")
        made = Tensor(result, source.dtype, shape)
        return Step._of_maps("collapse", source, made, source, _identity(source), place)

    @staticmethod
    def expand(source: Tensor, result: str, groups: Sequence[Sequence[int]], shape: Sequence[int | str]) -> Step:
        """Return the step to the tensor ``result`` of ``shape``, whose axes ``groups[i]`` are axis ``i`` here."""
        made = Tensor(result, source.dtype, tuple(shape))
        place, back = _flattened(made, groups, "expand")
        if Tensor("", "u8", back).extents != source.extents:
            raise SpecError(f"expand {source} to {made} by {_listed(groups)}: the groups have {back} elements")
        return Step._of_maps("expand", source, made, made, place, _identity(made))

    @staticmethod
    def transpose(source: Tensor, result: str, permutation: Sequence[int]) -> Step:
        """Return the step to the tensor ``result`` whose axis ``i`` is axis ``permutation[i]`` of the source."""
        if sorted(permutation) != list(range(len(source.shape))):
            raise SpecError(f"transpose {source} by {tuple(permutation)}: expected each of its axes once")
        made = Tensor(result, source.dtype, tuple(source.shape[k] for k in permutation))
        same = _identity(source)
        writes = AffineMap(same.dims, tuple(same.results[k] for k in permutation))
        return Step._of_maps("transpose", source, made, source, same, writes)

    @staticmethod
    def broadcast(source: Tensor, result: str, shape: Sequence[int | str], dimensions: Sequence[int]) -> Step:
        """Return the step to the tensor ``result`` of ``shape``, whose axes ``dimensions`` the source lacks."""
        made, same = Tensor(result, source.dtype, tuple(shape)), _identity(Tensor("", "u8", tuple(shape)))
        kept = [k for k in range(len(shape)) if k not in dimensions]
        if tuple(made.extents[k] for k in kept) != source.extents:
            left = tuple(shape[k] for k in kept)
            raise SpecError(f"broadcast {source} to {made}: without the axes {tuple(dimensions)} it is {left}")
        return Step._of_maps(
            "broadcast", source, made, made, AffineMap(same.dims, tuple(same.results[k] for k in kept)), same
        )

    @staticmethod
    def elementwise(source: Tensor, result: str, dtype: str | None = None) -> Step:
        """Return the step to the tensor ``result``, each cell of which comes from the same cell: a cast, say."""
        made, same = Tensor(result, dtype or source.dtype, source.shape), _identity(source)
        return Step._of_maps("elementwise", source, made, source, same, same)

    @staticmethod
    def of(spec: Spec, op: str, operand: str | None = None) -> Step:
        """Return the step from an operand of an op to what the op writes, by its access relations.

        :class:`SpecError` where there is no such operand, where it is read at several places, or where the cells that
        the op writes depend on more than its operands.
        """
        made = next((o for o in spec.ops if o.name == op), None)
        if made is None:
            raise SpecError(f"step {op!r}: there is no such op; the spec has {', '.join(o.name for o in spec.ops)}")
        names = list(dict.fromkeys(r.tensor for r in made.reads))
        if (operand is None and len(names) != 1) or (operand is not None and operand not in names):
            asked = "an operand is to be named" if operand is None else f"it reads no {operand}"
            raise SpecError(f"step {op!r}: {asked}; it reads {', '.join(names) or 'nothing'}")
        name = operand or names[0]
        places = list(dict.fromkeys(r.index for r in made.reads if r.tensor == name))
        if len(places) > 1:
            raise SpecError(f"step {op!r}: it reads {name} at {len(places)} places, `{made}`; a step has one")
        _settled(spec, made)
        return Step(
            op, spec.tensor(name), spec.tensor(made.target), made.dims, made.domain, tuple(places[0]), made.index
        )

    @staticmethod
    def path(spec: Spec, tensor: str, to: str) -> tuple[Step, ...]:
        """Return the steps from a tensor back to ``to``, from which it is computed, the last one first."""
        found = _path(spec, tensor, to, frozenset())
        if found is None:
            raise SpecError(f"path from {tensor!r} to {to!r}: {tensor} is not computed from it")
        return found

    # ---- what it is
    @property
    def up(self) -> Relation:
        """The pairs of a result cell and a source cell."""
        box = Domain.make(self.dims, self.domain)
        to_result = Relation.function(box, self.writes, _names(self.result))
        return to_result.inverse().compose(Relation.function(box, self.reads, _names(self.source)))

    @property
    def down(self) -> Relation:
        """The pairs of a source cell and a result cell."""
        return self.up.inverse()

    def __str__(self) -> str:
        here = f"{self.result.name}[{', '.join(map(str, self.writes))}]"
        return f"{self.name}: {here} of {self.source.name}[{', '.join(map(str, self.reads))}]"


def _names(t: Tensor) -> tuple[str, ...]:
    return tuple(f"d{i}" for i in range(len(t.shape)))


def _identity(t: Tensor) -> AffineMap:
    return AffineMap(_names(t), tuple(map(Affine.dim, _names(t))))


def _span(dim: str, extent: Affine) -> tuple[Constraint, Constraint]:
    return Constraint(Affine.dim(dim)), Constraint(extent - 1 - Affine.dim(dim))


def _listed(groups: Sequence[Sequence[int]]) -> str:
    return str([list(g) for g in groups])


def _flattened(t: Tensor, groups: Sequence[Sequence[int]], what: str) -> tuple[AffineMap, tuple[int | str, ...]]:
    """Return the position within each group of axes, and how many positions it has."""
    if [k for g in groups for k in g] != list(range(len(t.shape))):
        raise SpecError(f"{what} {t} by {_listed(groups)}: expected each of its axes once, in order")
    place, shape = list[Affine](), list[int | str]()
    for group in groups:
        inner = [t.extents[k] for k in group[1:]]
        varying = next((e for e in inner if not e.is_constant), None)
        if varying is not None:
            raise SpecError(
                f"{what} {t} by {_listed(groups)}: an axis of {varying} cells may only stand first in a group"
            )
        sizes = [e.const for e in inner]
        weights = [prod(sizes[i:]) for i in range(len(group))]
        place.append(sum((Affine.dim(f"d{k}") * w for k, w in zip(group, weights, strict=True)), Affine(0)))
        whole = (t.extents[group[0]] if group else Affine(1)) * prod(sizes)
        shape.append(whole.const if whole.is_constant else str(whole))
    return AffineMap(_names(t), tuple(place)), tuple(shape)


def _settled(spec: Spec, op: Op) -> None:
    """Refuse an op whose cells hold more than one of its instances put there, or something else in the end."""
    if any(r.tensor == op.target for r in op.reads):
        raise SpecError(f"step {op.name!r}: `{op}` reads its own earlier results, which come from other cells as well")
    written = Domain.make(op.dims, op.domain).image(op.index, _names(spec.tensor(op.target)))
    for later in spec.ops[spec.ops.index(op) + 1 :]:
        if later.target == op.target:
            again = Domain.make(later.dims, later.domain).image(later.index, written.dims)
            both = written.intersect(again).sample()
            if both is not None:
                at = ", ".join(map(str, both[0].values()))
                raise SpecError(f"step {op.name!r}: {op.target}[{at}] is written again by `{later}`")


def _path(spec: Spec, tensor: str, to: str, seen: frozenset[str]) -> tuple[Step, ...] | None:
    """Search backwards, the shortest way first among the operands of each op."""
    if tensor == to:
        return ()
    found: list[tuple[Step, ...]] = []
    for op in spec.writers(tensor):
        for name in dict.fromkeys(r.tensor for r in op.reads):
            if name not in seen and name != tensor:
                rest = _path(spec, name, to, seen | {tensor})
                if rest is not None:
                    found.append((Step.of(spec, op.name, name), *rest))
    return min(found, key=len, default=None)

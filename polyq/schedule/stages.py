"""Stages: how the instances of each op are looped over, and where.

A stage has axes. It starts with one axis for each dim of its op; splitting replaces an axis by two. ``order`` lists the
axes that remain, outermost first. A stage stands at the root, or inside an axis of the stage ``at[0]`` that reads what
it writes; there it computes just what that iteration needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine
from polyq.affine.rewrite import widen_sums
from polyq.affine.spec import Op, Spec
from polyq.affine.unsigned import bits_as_read

__all__ = ["Plan", "Split", "Stage"]

KINDS = ("serial", "parallel", "unroll", "vector")


@dataclass(frozen=True, slots=True)
class Split:
    """``axis = factor * outer + inner`` with ``0 <= inner < factor``."""

    axis: str
    outer: str
    inner: str
    factor: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The loops of one op. ``kinds`` names the axes that are not serial."""

    op: str
    order: tuple[str, ...]
    splits: tuple[Split, ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    at: tuple[str, str] | None = None

    def kind(self, axis: str) -> str:
        """Return the kind of an axis."""
        return dict(self.kinds).get(axis, "serial")

    def split_of(self, axis: str) -> Split | None:
        """Return the split that made ``axis``, if any."""
        return next((s for s in self.splits if axis in (s.outer, s.inner)), None)

    def split(self, axis: str, factor: int, outer: str | None = None, inner: str | None = None) -> Stage:
        """Return the stage with ``axis`` split."""
        self._need(axis)
        taken = {*self.order, *(s.axis for s in self.splits)}
        outer = outer or _fresh(taken, f"{axis}o")
        inner = inner or _fresh({*taken, outer}, f"{axis}i")
        if outer == inner or {outer, inner} & taken:
            again = inner if inner in {outer, *taken} else outer
            raise ScheduleError(f"{self.op}: split of {axis}: {again!r} is an axis already; choose another name")
        at = self.order.index(axis)
        order = (*self.order[:at], outer, inner, *self.order[at + 1 :])
        return replace(self, order=order, splits=(*self.splits, Split(axis, outer, inner, factor)))

    def reordered(self, order: tuple[str, ...]) -> Stage:
        """Return the stage with all axes, or those named, in another order (at the places that they have now)."""
        for axis in order:
            self._need(axis)
        rest = iter(order)
        return replace(self, order=tuple(next(rest) if a in order else a for a in self.order))

    def with_kind(self, axis: str, kind: str) -> Stage:
        """Return the stage with an axis of another kind."""
        self._need(axis)
        kinds = {**dict(self.kinds), axis: kind}
        return replace(self, kinds=tuple(sorted((a, k) for a, k in kinds.items() if k != "serial")))

    def _need(self, axis: str) -> None:
        if axis not in self.order:
            raise ScheduleError(f"{self.op}: there is no axis {axis!r}; it has {', '.join(self.order) or 'none'}")


def _fresh(taken: set[str], stem: str) -> str:
    candidate, count = stem, 1
    while candidate in taken:
        count += 1
        candidate = f"{stem}{count}"
    return candidate


@dataclass(frozen=True, slots=True)
class Plan:
    """A rewritten spec and a stage for each of its ops, with hints that carry no meaning of their own.

    ``prepared`` names temporaries that are computed once, from inputs that ``bind`` is given; those of one group in
    ``shared`` lie in one buffer.
    """

    spec: Spec
    stages: tuple[Stage, ...]
    prefetch: tuple[tuple[str, int], ...] = ()
    stream: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(spec: Spec) -> Plan:
        """Return the plan that runs each op on its own, in the order of its dims; 16-bit sums are widened."""
        spec = bits_as_read(widen_sums(spec))
        return Plan(spec, tuple(Stage(op.name, op.dims) for op in spec.ops))

    def stage(self, op: str) -> Stage:
        """Return the stage of ``op``."""
        for s in self.stages:
            if s.op == op:
                return s
        raise ScheduleError(f"there is no op {op!r}; the spec has {', '.join(s.op for s in self.stages)}")

    def with_stage(self, stage: Stage) -> Plan:
        """Return the plan with one stage replaced."""
        return replace(self, stages=tuple(stage if s.op == stage.op else s for s in self.stages))

    def with_spec(self, spec: Spec) -> Plan:
        """Return the plan for a rewritten spec: stages of ops that kept their dims stay."""
        old = {s.op: s for s in self.stages}
        before = {op.name: op.dims for op in self.spec.ops}
        stages = tuple(old[op.name] if before.get(op.name) == op.dims else Stage(op.name, op.dims) for op in spec.ops)
        return replace(self, spec=spec, stages=stages)

    def children(self, op: str) -> tuple[Op, ...]:
        """Return the ops that stand inside the stage of ``op``, in program order."""
        inside = {s.op for s in self.stages if s.at is not None and s.at[0] == op}
        return tuple(o for o in self.spec.ops if o.name in inside)


def extents(stage: Stage, roots: dict[str, Affine]) -> dict[str, Affine]:
    """Return the extent of every axis, given those of the dims."""
    known = dict(roots)
    for s in stage.splits:
        known[s.outer] = (known[s.axis] + s.factor - 1) // s.factor
        known[s.inner] = Affine(s.factor)
    return known


def values(
    stage: Stage, dims: tuple[str, ...], leaf: dict[str, Affine], starts: Mapping[str, Affine] = MappingProxyType({})
) -> dict[str, Affine]:
    """Return the value of every dim (and split axis) in terms of the leaf axes' values.

    ``starts`` tells where the tiles of a split axis begin, if not at 0.
    """
    known = dict(leaf)
    for s in reversed(stage.splits):
        if s.axis not in known:
            known[s.axis] = known[s.outer] * s.factor + known[s.inner] + starts.get(s.axis, Affine(0))
    return {d: known[d] for d in (*dims, *(s.axis for s in stage.splits))}

"""A schedule in the making: the plan so far, the directives that made it, and the reasons."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from polyq.affine.expr import Affine, Dim
from polyq.affine.rewrite import moved_dim
from polyq.affine.spec import Op, Spec
from polyq.schedule.explanation import noted
from polyq.schedule.schedule import Directive
from polyq.schedule.stages import Plan
from polyq.schedule.target import Target

__all__ = [
    "UNKNOWN_EXTENT", "Draft", "bounds_its_sum", "is_weighed", "moved_dim", "plain_dim", "size_of", "typical",
]  # fmt: skip

#: what a symbolic extent counts as where extents are weighed and no typical size is given
UNKNOWN_EXTENT = 64
_sizes: ContextVar[Mapping[str, int]] = ContextVar("polyq_sizes", default=MappingProxyType({}))


@contextmanager
def typical(sizes: Mapping[str, int]) -> Generator[None]:
    """Weigh parameters as these sizes inside; what is chosen stays right for all others."""
    token = _sizes.set(dict(sizes))
    try:
        yield
    finally:
        _sizes.reset(token)


def is_weighed(e: Affine) -> bool:
    """Whether an extent is a number, or every parameter in it has a typical size."""
    return not e.dims() and e.params() <= _sizes.get().keys()


class Draft:
    """Applies directives one after another; ``mark`` and ``back`` undo an attempt."""

    def __init__(self, spec: Spec, numerics: str, target: Target, constants: frozenset[str] = frozenset()) -> None:
        self.plan = Plan.of(spec)
        self.constants = constants  # inputs whose layout is free
        self.numerics, self.target = numerics, target
        self.directives: list[Directive] = []
        self.notes: list[str] = []
        self.divided: set[str] = set()  # tensors whose sums are shared among threads already
        self.quantized: set[str] = set()  # tensors of quantized activations: computed once, whatever that costs
        self.kept: set[str] = set()  # temporaries that are computed a panel at a time
        self.private: set[str] = set()  # tensors that are copies made to accumulate in

    @property
    def spec(self) -> Spec:
        """The rewritten spec."""
        return self.plan.spec

    @property
    def relaxed(self) -> bool:
        """Whether float sums may be reordered."""
        return self.numerics != "strict"

    def do(self, transform: str, **arguments: Any) -> list[str]:
        """Apply one transform; return the ops that are new by it, in order."""
        directive = Directive(transform, tuple(arguments.items()))
        before = {op.name for op in self.spec.ops}
        self.plan = directive.apply(self.plan)
        self.directives.append(directive)
        return [op.name for op in self.spec.ops if op.name not in before]

    def note(self, text: str, weighed: Sequence[str] = ()) -> None:
        """Keep a decision with its reason, and the alternatives to it with their counts."""
        self.notes.append(noted(text, weighed))

    def save(self) -> tuple[Plan, int, int]:
        """Return a point to go back to."""
        return self.plan, len(self.directives), len(self.notes)

    def restore(self, point: tuple[Plan, int, int]) -> None:
        """Go back to a saved point."""
        self.plan, directives, notes = point
        del self.directives[directives:]
        del self.notes[notes:]

    def order(self, op: str, axes: list[str]) -> None:
        """Bring all axes of a stage into this order."""
        if tuple(axes) != self.plan.stage(op).order:
            self.do("reorder", op=op, axes=tuple(axes))


def size_of(e: Affine) -> int:
    """Return an extent as a number to weigh: parameters count as their typical size."""
    if e.is_constant:
        return max(e.const, 0)
    params = {p: _sizes.get().get(p, UNKNOWN_EXTENT) for p in e.params()}
    return max(1, e.evaluate(dict.fromkeys(e.dims(), UNKNOWN_EXTENT), params))


def plain_dim(e: Affine) -> str | None:
    """Return the dim that ``e`` is, or ``None``."""
    if e.const == 0 and len(e.terms) == 1 and e.terms[0][1] == 1 and isinstance(e.terms[0][0], Dim):
        return e.terms[0][0].name
    return None


def bounds_its_sum(op: Op) -> bool:
    """Whether all constraints of a reduction are about how far it goes, as in ``k <= i``: its result fills a box."""
    return op.reduce is not None and all(c.expr.dims() & set(op.reduced) for c in op.where)


def work_of(op: Op) -> int:
    """Return the number of instances, symbolic extents weighed."""
    total = 1
    for e in op.extents:
        total *= max(1, size_of(e))
    return total

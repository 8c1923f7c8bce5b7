"""Transforms: pure functions from plan to plan, by name.

A transform either returns a new plan or raises :class:`ScheduleError`; whether the result is legal is decided by one
oracle, on the loop nest (``polyq.schedule.legality``), never here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

from polyq.affine import copies, fills, rewrite, sums
from polyq.affine import quantize as quantization
from polyq.affine.dtypes import is_float
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.spec import Spec
from polyq.schedule.forms import canonical
from polyq.schedule.shares import share
from polyq.schedule.stages import KINDS, Plan
from polyq.schedule.storage import store_as

__all__ = ["REWRITES", "TRANSFORMS", "changes_rounding"]


def split(plan: Plan, op: str, axis: str, factor: int, outer: str | None = None, inner: str | None = None) -> Plan:
    """Replace an axis by two. rewrite: ``for k`` -> ``for ko: for ki`` with ``k = factor*ko + ki``."""
    if factor < 1:
        raise ScheduleError(f"split({op!r}, {axis!r}, {factor}): the factor must be at least 1")
    return plan.with_stage(plan.stage(op).split(axis, factor, outer, inner))


def reorder(plan: Plan, op: str, axes: Sequence[str]) -> Plan:
    """Bring the named axes into this order, at the places that they hold together."""
    stage = plan.stage(op)
    if len(set(axes)) != len(axes):
        raise ScheduleError(f"reorder({op!r}, {list(axes)}): an axis is named twice")
    return plan.with_stage(stage.reordered(tuple(axes)))


def mark(plan: Plan, op: str, axis: str, kind: str) -> Plan:
    """Make an axis ``serial``, ``parallel``, ``unroll`` or ``vector``."""
    if kind not in KINDS:
        raise ScheduleError(f"{kind!r} is no kind of loop; choose one of {', '.join(KINDS)}")
    return plan.with_stage(plan.stage(op).with_kind(axis, kind))


def fuse(plan: Plan, producer: str, into: str, at: str) -> Plan:
    """Compute ``producer`` inside the axis ``at`` of ``into``, for what that iteration reads.

    rewrite: ``for p: d[p] = f; for i: for j: y += d[..]``
    -> ``for i: (for p in region(i): d[p] = f); for j: y += d[..]``
    requires: the axis is there; producer and host do not stand inside each other.
    """
    stage, host = plan.stage(producer), plan.stage(into)
    if at not in host.order:
        raise ScheduleError(
            f"fuse({producer!r}, into={into!r}, at={at!r}): {into} has the axes {', '.join(host.order) or 'none'}"
        )
    above = into
    while above is not None:
        if above == producer:
            raise ScheduleError(f"fuse({producer!r}, into={into!r}): {into} stands inside {producer}")
        place = plan.stage(above).at
        above = None if place is None else place[0]
    return plan.with_stage(replace(stage, at=(into, at)))


def unfuse(plan: Plan, producer: str) -> Plan:
    """Put a stage back at the root."""
    return plan.with_stage(replace(plan.stage(producer), at=None))


def prefetch(plan: Plan, tensor: str, ahead: int) -> Plan:
    """Ask for the cache lines of ``tensor`` this many bytes before they are read."""
    if ahead < 1:
        raise ScheduleError(f"prefetch({tensor!r}, ahead={ahead}): the distance must be at least 1 byte")
    _tensor(plan.spec, tensor)
    return replace(plan, prefetch=(*((t, a) for t, a in plan.prefetch if t != tensor), (tensor, ahead)))


def stream(plan: Plan, tensor: str) -> Plan:
    """Store ``tensor`` past the cache."""
    _tensor(plan.spec, tensor)
    return replace(plan, stream=tuple(sorted({*plan.stream, tensor})))


def prepare(plan: Plan, tensor: str) -> Plan:
    """Compute a temporary once, when the inputs that it comes from are bound.

    requires: 1. its shape, and the domains of what writes it, are numbers; 2. it comes from inputs that nothing writes
    and from prepared tensors alone; 3. what writes it stands at the root.
    """
    _tensor(plan.spec, tensor)
    reason = _not_constant(plan, tensor)
    if reason is not None:
        raise ScheduleError(f"prepare({tensor!r}): {reason}")
    return replace(plan, prepared=tuple(sorted({*plan.prepared, tensor})))


def _not_constant(plan: Plan, tensor: str) -> str | None:
    spec = plan.spec
    steady = {n for n in spec.input_names if n not in spec.output_names} | set(plan.prepared)
    if tensor not in {t.name for t in spec.temporaries}:
        return f"{tensor} is an input or an output"
    for op in spec.writers(tensor):
        varying = [r.tensor for r in op.reads if r.tensor not in steady]
        if varying:
            return f"{op.name} reads {', '.join(varying)}, which a call computes anew"
        if not all(e.is_constant for e in (*op.extents, *spec.tensor(tensor).extents)):
            return f"its shape or that of {op.name} depends on a parameter, which a call gives"
        if plan.stage(op.name).at is not None:
            return f"{op.name} stands inside {plan.stage(op.name).at}; unfuse it first"
    return None


def _tensor(spec: Spec, name: str) -> None:
    if name not in {t.name for t in spec.all_tensors}:
        raise ScheduleError(f"there is no tensor {name!r}; the spec has {', '.join(t.name for t in spec.all_tensors)}")


# ---- rewrites of the spec
def inline(plan: Plan, tensor: str) -> Plan:
    """Compute a temporary where it is read (see :func:`polyq.affine.rewrite.inline`)."""
    _tensor(plan.spec, tensor)
    return plan.with_spec(rewrite.inline(plan.spec, tensor))


def split_dim(plan: Plan, op: str, dim: str, factor: int, outer: str | None = None, inner: str | None = None) -> Plan:
    """Replace a dim of the op itself by two (see :func:`polyq.affine.rewrite.split`)."""
    plan.stage(op)
    return plan.with_spec(rewrite.split(plan.spec, op, dim, factor, outer, inner))


def shift(plan: Plan, op: str) -> Plan:
    """Let dims that begin above 0 begin at 0 (see :func:`polyq.affine.fills.shift`)."""
    plan.stage(op)
    return plan.with_spec(fills.shift(plan.spec, op))


def trim_fill(plan: Plan, op: str) -> Plan:
    """Fill only what another op does not assign (see :func:`polyq.affine.fills.trim_fill`)."""
    plan.stage(op)
    return plan.with_spec(fills.trim_fill(plan.spec, op))


def drop_empty(plan: Plan, op: str) -> Plan:
    """Leave out an op without instances (see :func:`polyq.affine.fills.drop_empty`)."""
    plan.stage(op)
    return plan.with_spec(fills.drop_empty(plan.spec, op))


def partial_sums(plan: Plan, op: str, keep: Sequence[str], tensor: str | None = None, outer: bool = False) -> Plan:
    """Reduce in two steps (see :func:`polyq.affine.rewrite.partial_sums`)."""
    plan.stage(op)
    return plan.with_spec(rewrite.partial_sums(plan.spec, op, tuple(keep), tensor, outer))


def distribute(plan: Plan, op: str, inner: Sequence[str] = ()) -> Plan:
    """Give each term of a sum its own statement (see :func:`polyq.affine.sums.distribute`)."""
    plan.stage(op)
    return plan.with_spec(sums.distribute(plan.spec, op, tuple(inner)))


def factor(plan: Plan, op: str, inner: Sequence[str], tensor: str | None = None) -> Plan:
    """Move factors out of the sum over ``inner`` (see :func:`polyq.affine.sums.factor`)."""
    plan.stage(op)
    return plan.with_spec(sums.factor(plan.spec, op, tuple(inner), tensor))


def scale_fields(plan: Plan, op: str, codes: str, packed: str, dim: str, fields: int) -> Plan:
    """Convert fields of words where they lie (see :func:`polyq.affine.sums.scale_fields`)."""
    plan.stage(op)
    return plan.with_spec(sums.scale_fields(plan.spec, op, codes, packed, dim, fields))


def quantize(plan: Plan, op: str, operand: str, inner: Sequence[str], numerics: str, dtype: str | None = None) -> Plan:
    """Round a sum's operand to integers, group by group (see :func:`polyq.affine.quantize.quantize`)."""
    plan.stage(op)
    return plan.with_spec(quantization.quantize(plan.spec, op, operand, tuple(inner), numerics, dtype))


def integers(plan: Plan, op: str) -> Plan:
    """Let a sum of integers run in i32 (see :func:`polyq.affine.quantize.integers`)."""
    plan.stage(op)
    return plan.with_spec(quantization.integers(plan.spec, op))


def accumulate(plan: Plan, tensor: str, local: str | None = None) -> Plan:
    """Give a tensor's writers a private copy (see :func:`polyq.affine.rewrite.accumulate`)."""
    _tensor(plan.spec, tensor)
    return plan.with_spec(rewrite.accumulate(plan.spec, tensor, local))


def copy_of(
    plan: Plan, tensor: str, readers: Sequence[str], shape: Sequence[Affine], dims: Sequence[str],
    source: Sequence[Affine], place: Sequence[Affine], name: str | None = None, where: Sequence[Constraint] = (),
) -> Plan:  # fmt: skip
    """Let readers read a copy in another layout (see :func:`polyq.affine.copies.copy_of`)."""
    _tensor(plan.spec, tensor)
    return plan.with_spec(copies.copy_of(plan.spec, tensor, readers, shape, dims, source, place, name, where))


def _is(value: object, annotation: str) -> bool:
    """Whether a value is what an annotation of this module says; ``True`` for those that callers do not write."""
    names = {"str": str, "int": int, "str | None": str | None}
    if annotation == "Sequence[str]":
        return isinstance(value, tuple | list) and all(isinstance(v, str) for v in value)  # pyright: ignore
    return annotation not in names or (isinstance(value, names[annotation]) and not isinstance(value, bool))


def _checked(transform: Callable[..., Plan]) -> Callable[..., Plan]:
    """Return the transform with arguments that are there and of the right type."""
    words = {"str": "a name", "str | None": "a name", "int": "an int", "Sequence[str]": "a sequence of names"}
    taken = dict(list(inspect.signature(transform).parameters.items())[1:])

    @wraps(transform)
    def checked(plan: Plan, **given: object) -> Plan:
        for name, p in taken.items():
            if name not in given and p.default is p.empty:
                raise ScheduleError(f"{transform.__name__}: {name} is missing; expected {words[p.annotation]}")
            if name in given and not _is(given[name], p.annotation):
                what = words[p.annotation]
                raise ScheduleError(f"{transform.__name__}: {name}={given[name]!r}: expected {what}")
        return transform(plan, **given)

    return checked


TRANSFORMS: dict[str, Callable[..., Plan]] = {
    f.__name__: _checked(f)
    for f in (
        split, reorder, mark, fuse, unfuse, prefetch, stream, prepare, share,
        inline, split_dim, partial_sums, distribute, factor, scale_fields, quantize, integers, accumulate, copy_of,
        shift, trim_fill, drop_empty, store_as, canonical,
    )
}  # fmt: skip
REWRITES = frozenset(
    {
        "inline",
        "split_dim",
        "partial_sums",
        "distribute",
        "factor",
        "scale_fields",
        "quantize",
        "integers",
        "accumulate",
        "copy_of",
        "shift",
        "trim_fill",
        "drop_empty",
        "store_as",
        "canonical",
    }
)


def changes_rounding(spec: Spec, name: str, arguments: dict[str, object]) -> bool:
    """Whether a rewrite changes the order or the factors of a float computation."""
    if name not in ("partial_sums", "distribute", "factor", "scale_fields", "quantize", "integers"):
        return False
    op = spec.op(str(arguments["op"]))
    return is_float(spec.tensor(op.target).dtype) and not (name == "partial_sums" and op.reduce in ("min", "max"))

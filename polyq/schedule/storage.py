"""How a tensor is stored: the transform ``store_as``, and ``pack``, which lets ``bind`` do once what it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyq.affine import relayout
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine
from polyq.affine.layout import Layout
from polyq.affine.record import Record
from polyq.schedule.stages import Plan, Stage

if TYPE_CHECKING:
    from polyq.affine.spec import Spec
    from polyq.schedule.schedule import Schedule

__all__ = ["pack", "pack_record", "store_as"]


def store_as(plan: Plan, tensor: str, layout: Layout) -> Plan:
    """Store a temporary in another layout; let the readers of an input read a copy that has it.

    See :func:`polyq.affine.relayout.relayout` and :func:`polyq.affine.relayout.packed_copy`. The loops of a writer
    follow the storage, unless it has been scheduled already; then its subscripts change alone.
    """
    spec = plan.spec
    _known(spec, (tensor,), layout)
    if tensor not in {t.name for t in spec.temporaries}:
        return plan.with_spec(relayout.packed_copy(spec, tensor, layout))
    if tensor in plan.prepared:
        raise ScheduleError(f"pack({tensor!r}): it is prepared when inputs are bound; pack it first")
    hosts = {s.at[0] for s in plan.stages if s.at is not None}
    keep = hosts | {s.op for s in plan.stages if s != Stage(s.op, spec.op(s.op).dims)}
    return plan.with_spec(relayout.relayout(spec, tensor, layout, keep))


def _known(spec: Spec, names: Sequence[str], layout: Layout | None) -> Layout:
    if not isinstance(layout, Layout):
        raise ScheduleError(f"pack({names[0]!r}): expected a polyq.Layout, got {type(layout).__qualname__}")
    there = [t.name for t in spec.all_tensors]
    for name in names:
        if name not in there:
            raise ScheduleError(f"pack: there is no tensor {name!r}; the spec has {', '.join(there)}")
    return layout


def pack(schedule: Schedule, tensor: str, layout: Layout | None, bind: bool | None, through: Sequence[str]) -> Schedule:
    """Return the schedule that stores ``tensor``, and those that ``through`` names, in a layout."""
    spec = schedule.plan.spec
    layout = _known(spec, (tensor, *through), layout)
    layouts = {tensor: layout, **{name: relayout.carried(spec, tensor, layout, name) for name in through}}
    for name, each in layouts.items():
        schedule = _one(schedule, name, each, bind)
    return schedule


def pack_record(schedule: Schedule, record: Record, bind: bool | None) -> Schedule:
    """Return the schedule that stores the tensors of a record in one buffer, which ``bind`` makes once."""
    if bind is False:
        raise ScheduleError("pack(record, bind=False): several tensors lie in one buffer only where they are bound")
    made, copies = schedule, list[str]()
    for part in record.parts:
        spec = made.plan.spec
        layout = record.layout(part.name)
        _known(spec, (part.name,), layout)
        if part.name not in spec.input_names or spec.tensor(part.name).dtype != part.dtype:
            raise ScheduleError(f"pack: the record has {part.name} of {part.dtype}, which is {_what(spec, part.name)}")
        before, made = made, _one(made, part.name, layout, True)
        copies.append(_added(before, made))
    return made.share(copies) if len(copies) > 1 else made


def _what(spec: Spec, name: str) -> str:
    t = spec.tensor(name)
    return f"{t} here" if name in spec.input_names else "computed by the program, and no input"


def _one(schedule: Schedule, tensor: str, layout: Layout, bind: bool | None) -> Schedule:
    spec = schedule.plan.spec
    relayout.fitting(spec, tensor, layout)
    if spec.writers(tensor) and tensor in spec.output_names:
        if bind:
            raise ScheduleError(f"pack({tensor!r}, bind=True): {tensor} is an output; each call computes it")
        local = _added(schedule, made := schedule.accumulate(tensor))
        return made.store_as(local, layout)
    made = schedule.store_as(tensor, layout)
    if tensor in {t.name for t in spec.temporaries}:
        if bind:
            raise ScheduleError(f"pack({tensor!r}, bind=True): {tensor} is computed by each call; nothing is to bind")
        return made
    copy = _added(schedule, made)
    made = _threaded(made, copy)
    if bind is False:
        return made
    try:
        return made.prepare(copy)
    except ScheduleError as error:
        if bind:
            raise ScheduleError(f"pack({tensor!r}, bind=True): {error}") from None
        return made


def _added(before: Schedule, after: Schedule) -> str:
    old = {t.name for t in before.plan.spec.all_tensors}
    return next(t.name for t in after.plan.spec.all_tensors if t.name not in old)


def _threaded(schedule: Schedule, copy: str) -> Schedule:
    """Divide the copy's outermost axis of more than one cell among threads, where each writes bytes of its own."""
    op = schedule.plan.spec.op(copy)
    outer = next((d for d, n in zip(op.dims, op.extents, strict=True) if n != Affine(1)), None)
    try:
        return schedule if outer is None else schedule.parallel(copy, outer)
    except ScheduleError:
        return schedule

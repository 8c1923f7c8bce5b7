"""Schedules of numbered forms (:class:`polyq.affine.numbering.Form`), told in the caller's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyq.affine.errors import ScheduleError
from polyq.affine.numbering import Form
from polyq.affine.spec import Spec
from polyq.schedule.stages import Plan

if TYPE_CHECKING:
    from polyq.schedule.schedule import Schedule

__all__ = ["canonical", "told"]


def canonical(plan: Plan) -> Plan:
    """Bring the program into canonical form: tensors are the same arrays, grouped as they are walked.

    rewrite: ``y[b, n] += x[b, g, j] * w[n, 32*g + j] (b < 1)`` -> ``y[n] += x[k] * w[n, k]``
    requires: it is the first directive, since it renames ops and dims.
    """
    if plan != Plan.of(plan.spec):
        raise ScheduleError("canonical: it renames ops and dims, so it has to be the first directive")
    form = Form.of(plan.spec)
    if form is None:
        raise ScheduleError("canonical: names of inputs or outputs look like those that schedules make, as y.acc does")
    return Plan.of(form.named)


def told(form: Form, spec: Spec, made: Schedule) -> Schedule:
    """Return the schedule of ``spec`` that ``made``, one of its numbered form, is."""
    from polyq.schedule.schedule import Directive, Schedule

    directives = form.renaming.value(made.directives)
    first = (Directive("canonical", ()),) if form.changed else ()
    notes = (*regrouped(form), *(form.renaming.text(note) for note in made.notes))
    return Schedule(spec, made.numerics, made.target, (*first, *directives), notes)


def regrouped(form: Form) -> tuple[str, ...]:
    """Say which inputs and outputs are walked in other shapes than they are declared in."""
    pairs = zip((*form.given.inputs, *form.given.outputs), (*form.named.inputs, *form.named.outputs), strict=True)
    changed = dict.fromkeys(str(new) for old, new in pairs if old.shape != new.shape)
    return (f"arrays walked in other shapes: {', '.join(changed)}",) if changed else ()

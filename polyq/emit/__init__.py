"""From a schedule to C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyq.emit.module import Module
from polyq.schedule.prologue import prepared_part, repeated_part

if TYPE_CHECKING:
    from polyq.schedule import Schedule

__all__ = ["Module", "generate", "generate_prologue"]


def generate(schedule: Schedule) -> Module:
    """Return the C of ``schedule``: of what every call runs, where it has prepared tensors."""
    from polyq.emit.unit import c_module  # cgen is slow to import, and a cached kernel never needs it

    plan = schedule.plan
    nest = repeated_part(schedule.nest)
    return c_module(nest, schedule.machine, schedule.numerics, dict(plan.prefetch), frozenset(plan.stream))


def generate_prologue(schedule: Schedule) -> Module | None:
    """Return the C that computes the prepared tensors of ``schedule``; ``None`` where it has none."""
    from polyq.emit.unit import c_module

    nest = prepared_part(schedule.nest)
    return None if nest is None else c_module(nest, schedule.machine, schedule.numerics)

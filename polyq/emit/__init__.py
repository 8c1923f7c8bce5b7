"""From a schedule to C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyq.emit.module import Module

if TYPE_CHECKING:
    from polyq.schedule import Schedule

__all__ = ["Module", "generate"]


def generate(schedule: Schedule) -> Module:
    """Return the C of ``schedule``."""
    from polyq.emit.unit import c_module  # cgen is slow to import, and a cached kernel never needs it

    plan = schedule.plan
    return c_module(schedule.nest, schedule.machine, schedule.numerics, dict(plan.prefetch), frozenset(plan.stream))

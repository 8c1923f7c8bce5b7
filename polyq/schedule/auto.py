"""The automatic schedule."""

from __future__ import annotations

from polyq.affine.spec import Spec
from polyq.schedule.schedule import Schedule


def automatic(spec: Spec, numerics: str, target: str) -> Schedule:
    """Return the schedule that the counts favour."""
    return Schedule.naive(spec, numerics, target)

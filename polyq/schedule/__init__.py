"""Schedules: transforms of loop nests, their legality, and the machine that they are made for.

What the names below stand for loads when it is first used: a kernel from the cache needs the target alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyq.schedule.numerics import NUMERICS
    from polyq.schedule.schedule import Directive, Schedule
    from polyq.schedule.target import Target

__all__ = ["NUMERICS", "Directive", "Schedule", "Target"]

_PLACES = {"NUMERICS": "numerics", "Directive": "schedule", "Schedule": "schedule", "Target": "target"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value

"""Schedules: transforms of loop nests, their legality, and the machine that they are made for."""

from polyq.schedule.schedule import NUMERICS, Directive, Schedule
from polyq.schedule.target import Target

__all__ = ["NUMERICS", "Directive", "Schedule", "Target"]

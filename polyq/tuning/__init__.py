"""Tuning: schedules found by measuring, kept as choices in a database that ``polyq.build`` follows.

``polyq.tune`` is :func:`polyq.tuning.tuner.tune`. :func:`export` and :func:`merge` carry the database of one machine to
another of the same model: :mod:`polyq.build.tuned`.
"""

from __future__ import annotations

from polyq.build.tuned import Entry, entries, export, merge
from polyq.tuning.progress import Progress
from polyq.tuning.result import Trial, Tuned, Tuning
from polyq.tuning.tuner import run_job, tune

__all__ = ["Entry", "Progress", "Trial", "Tuned", "Tuning", "entries", "export", "merge", "run_job", "tune"]

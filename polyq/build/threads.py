"""How many threads a kernel may use: the cores that this process may run on, and what it was told."""

from __future__ import annotations

import os
from pathlib import Path

from polyq.schedule.target import parse_quota

__all__ = ["cgroup_quota", "default_threads"]


def default_threads() -> int:
    """Return the number of threads to use where the caller names none.

    It is the least of the cores in the affinity mask, the CPU quota of the cgroup and ``OMP_NUM_THREADS``.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    limits = [cores, cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), _omp_threads()]
    return max(1, min(limit for limit in limits if limit is not None))


def _omp_threads() -> int | None:
    """Read ``OMP_NUM_THREADS``: a number, or a list of one for each level of nesting."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def cgroup_quota(membership: Path, root: Path) -> int | None:
    """Return how many cores the cgroups of this process grant, rounded up; ``None`` without a limit.

    ``membership`` is ``/proc/self/cgroup``; a quota may be set at any level above, so all of them are read. Version 2
    has ``cpu.max``, version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        for folder in _upwards(base, path):
            quota = _quota_v1(folder) if controllers else _quota_v2(folder)
            if quota is not None:
                found.append(quota)
    return min(found, default=None)


def _upwards(base: Path, path: str) -> list[Path]:
    folder = base / path.lstrip("/")
    return [f for f in (folder, *folder.parents) if f == base or base in f.parents]


def _quota_v2(folder: Path) -> int | None:
    try:
        return parse_quota((folder / "cpu.max").read_text())
    except OSError:
        return None


def _quota_v1(folder: Path) -> int | None:
    try:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return parse_quota(f"{quota} {period}")

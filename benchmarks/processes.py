"""Times that need a fresh process: a build with an empty cache, a build from the cache, the import."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.rows import Row

_ROOT = Path(__file__).resolve().parent.parent
_BUILD = """
import sys, time, polyq
import polyq.build.building
spec = polyq.parse(sys.argv[1])
started = time.perf_counter()
polyq.build(spec)
print(time.perf_counter() - started)
"""
_IMPORT = """
import time, numpy
started = time.perf_counter()
import polyq
print(time.perf_counter() - started)
"""


def build_rows(text: str) -> dict[str, Callable[[int], list[Row]]]:
    """Return the rows by name, for the program ``text``."""
    return {
        "build, empty cache": partial(_build, text, False, 1.0),
        "build from the cache, fresh process": partial(_build, text, True, 0.05),
        "import polyq, above numpy": _import,
    }


def _run(script: str, argument: str, cache: str) -> float:
    environment = {**os.environ, "POLYQ_CACHE_DIR": cache, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-c", script, argument]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError((result.stderr.strip().splitlines() or ["no output"])[-1])
    return float(result.stdout)


def _build(text: str, warm: bool, limit: float, rounds: int) -> list[Row]:
    times: list[float] = []
    for _ in range(min(rounds, 5)):
        with tempfile.TemporaryDirectory() as cache:
            first = _run(_BUILD, text, cache)
            times.append(_run(_BUILD, text, cache) if warm else first)
    return [Row(statistics.median(times), f"{limit * 1e3:g} ms", limit, 1.0)]


def _import(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        seconds = statistics.median(_run(_IMPORT, "", cache) for _ in range(min(rounds, 5) + 1))
    return [Row(seconds, "150 ms", 0.15, 1.0)]

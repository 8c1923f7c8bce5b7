#!/usr/bin/env python3
"""Try random programs, schedules, layouts and arguments for a time, under the sanitizers.

    python tools/fuzz.py [--seconds 600] [--seed N] [--case K] [--jobs 2]

Each case is determined by the seed and its number, so that ``--seed N --case K`` runs one again. Its kernel is compared
with the interpreter, within its bound, in this process and as a program of its own under the address and
undefined-behaviour sanitizers, which also look for leaks; then it is called with arrays in odd memory and with wrong
ones. Cases run in processes of their own: one that crashes or hangs is told like any other failure. The exit status is
1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: seconds after which a case counts as hanging
PATIENCE = 300


def main() -> int:
    """Run cases until the time is over, and print what failed."""
    options = _options()
    if options.case is not None:
        return _work(options.seed, options.case, 1, last=options.case)
    if options.worker is not None:
        return _work(options.seed, options.worker, options.jobs)
    crew = [_Worker(options.seed, k, options.jobs, time.monotonic() + options.seconds) for k in range(options.jobs)]
    for worker in crew:
        worker.start()
    for worker in crew:
        worker.join()
    seen, failures = sum((w.seen for w in crew), Counter[str]()), [f for w in crew for f in w.failures]
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.items()))
    print(f"fuzzer: seed {options.seed}, {seen.total()} cases ({kinds}), {len(failures)} failures")
    return 1 if failures or not seen.total() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; default 60")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="default: another one each time")
    parser.add_argument("--case", type=int, help="run this one again, and print its story")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a core")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


class _Worker(threading.Thread):
    """Runs every ``step``-th case in a process, and begins another one behind a case that ended it."""

    def __init__(self, seed: int, first: int, step: int, end: float) -> None:
        super().__init__()
        self.seed, self.number, self.step, self.end = seed, first, step, end
        self.seen, self.failures = Counter[str](), list[str]()

    def run(self) -> None:
        """Run until the time is over."""
        while time.monotonic() < self.end:
            self._run_process()
            self.number += self.step

    def _run_process(self) -> None:
        words = [f"--seed={self.seed}", f"--worker={self.number}", f"--jobs={self.step}"]
        process = subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        watch = _Watch(process, self.end)
        said: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("@"):
                said.append(line)
                continue
            event, number, *rest = json.loads(line[1:])
            self.number = number
            watch.begun = time.monotonic()
            if event == "done":
                self.seen[rest[0]] += 1
                said.clear()
            elif event == "failed":
                self._failed(rest[0])
        watch.stop()
        if process.wait() != 0 and not watch.over:
            reason = f"no end within {PATIENCE} s" if watch.hung else f"the process ended with {process.returncode}"
            self._failed(f"{reason}\n{''.join(said[-40:])}")

    def _failed(self, what: str) -> None:
        again = f"python tools/fuzz.py --seed {self.seed} --case {self.number}"
        self.failures.append(again)
        print(f"--- {again}\n{what}", flush=True)


class _Watch(threading.Thread):
    """Ends a process at the end of the time, or when a case takes too long."""

    def __init__(self, process: subprocess.Popen[str], end: float) -> None:
        super().__init__(daemon=True)
        self.process, self.end, self.begun = process, end, time.monotonic()
        self.over = self.hung = False
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        """Look twice a second."""
        while not self._stopped.wait(0.5):
            self.over, self.hung = time.monotonic() > self.end, time.monotonic() > self.begun + PATIENCE
            if self.over or self.hung:
                self.process.kill()
                return

    def stop(self) -> None:
        """Leave the process alone."""
        self._stopped.set()


def _work(seed: int, first: int, step: int, last: int | None = None) -> int:
    """Run cases one after another, and print a line about each; the status is 1 if the last one failed."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]
    from fuzz_cases import run_case

    number, status = first, 0
    while last is None or number <= last:
        print(f"@{json.dumps(['begun', number])}", flush=True)
        with tempfile.TemporaryDirectory(prefix="polyq-fuzz-") as folder:
            try:
                case = run_case(seed, number, Path(folder))
                print(f"@{json.dumps(['done', number, case.kind])}", flush=True)
            except Exception as error:
                status = 1
                text = "".join(traceback.format_exception(error))
                print(text if last is not None else f"@{json.dumps(['failed', number, text])}", flush=True)
        number += step
    return status


if __name__ == "__main__":
    sys.exit(main())

"""A candidate's process, seen from outside: started, asked for rounds, and killed where it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from polyq.build.child import python_command
from polyq.tuning.problem import Problem
from polyq.tuning.race import Failure

__all__ = ["Limits", "Process", "Workshop"]

#: the code of a candidate's process
SERVE = "from polyq.tuning.child import serve; serve()"


class Limits:
    """Seconds after which a candidate counts as hung: building and its first calls, and a round."""

    build, round = 120.0, 20.0


class Rounds:
    """How many calls make a round at each point, the same for all candidates: the first one's time decides."""

    #: seconds that the calls of a round take together, and how many they are at most
    SECONDS, MOST = 0.004, 50

    def __init__(self) -> None:
        self.counts: list[int] = []

    def begin(self, first: Sequence[float]) -> None:
        """Take the seconds of a first call at each point."""
        if not self.counts:
            self.counts = [max(1, min(self.MOST, round(self.SECONDS / max(s, 1e-9)))) for s in first]


class Process:
    """One candidate in a process of its own; ``layout`` is that in which it reads what is bound.

    It is started at once, and :meth:`ready` waits for its build, so that several build side by side.
    """

    def __init__(
        self, problem: Problem, choices: Mapping[str, str], rounds: Rounds, *, cold: bool = True, code: str = SERVE
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            python_command(code),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True,  # an interrupt from the terminal comes through this process
        )  # fmt: skip
        self._rest = b""
        self.layout, self._rounds = "", rounds
        self._send({"problem": problem.encode(), "choices": dict(choices), "cold": cold})

    def ready(self) -> None:
        """Wait until it is built; raises :class:`Failure`."""
        reply = self._receive(Limits.build, "building it")
        self.layout = str(reply["layout"])
        self._rounds.begin([float(s) for s in reply["first"]])

    def time(self) -> tuple[float, ...]:
        """Return the seconds of a call at each point, as one round measures them. Raises :class:`Failure`."""
        self._send({"calls": self._rounds.counts})
        return tuple(map(float, self._receive(Limits.round, "a round of calls")["seconds"]))

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died; what waits for the reply says how
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, limit: float, doing: str) -> dict[str, Any]:
        """Return the next reply; whatever keeps it from coming ends the process."""
        assert self._process.stdout is not None
        end = time.monotonic() + limit
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self.end()
                raise Failure(f"hung: {doing} took more than {limit:g} s, and its process was killed")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise Failure(self._fate(doing))
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            self.end()
            raise Failure(f"refused: {reply['error']}")
        return reply

    def _fate(self, doing: str) -> str:
        """Say how the process ended, with the last line that it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        status = self._process.poll()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.end()
        how = f"status {status}"
        if status is not None and status < 0:
            how = f"signal {signal.Signals(-status).name}"
        return f"crashed: its process ended with {how} in {doing}{f' ({lines[-1][:200]})' if lines else ''}"

    def end(self) -> None:
        """End the process, and what it has started (its session): a compiler may be running."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Workshop:
    """Starts the processes of a problem's candidates, and ends all of them whatever happens."""

    def __init__(self, problem: Problem, *, cold: bool = True, code: str = SERVE) -> None:
        self._problem, self._cold, self._code = problem, cold, code
        self._all: list[Process] = []
        self._rounds = Rounds()

    def start(self, choices: Mapping[str, str]) -> Process:
        """Start the process of a candidate."""
        made = Process(self._problem, choices, self._rounds, cold=self._cold, code=self._code)
        self._all.append(made)
        return made

    def end(self) -> None:
        """End all processes."""
        for process in self._all:
            process.end()
        self._all.clear()

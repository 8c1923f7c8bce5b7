"""Peers in processes of their own, so that no thread pool spins beside another; they are asked one after another."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.peers import PEERS, Call, Problem, polyq_peer

__all__ = ["Aside", "PeerError"]

#: relative errors (root mean square) up to which a result counts as right: weights that are quantized once more to 4
#: bits make one of about 0.1, activations of 8 bits one of 0.006
LOOSE, ROUGH, EXACT = 0.2, 0.03, 1e-4
_TOLERANCE = {"llama.cpp": LOOSE, "llama.cpp repacked": LOOSE, "ort i8": ROUGH, "polyq i8": ROUGH, "polyq i16": 1e-3}


class PeerError(Exception):
    """A peer is not installed, fails, or computes something else."""


class Aside:
    """One peer in its process: ``prepare`` rows, then ``seconds`` as often as wanted.

    ``name`` is one of :data:`~benchmarks.peers.PEERS`, or ``polyq`` and a numerics mode.
    """

    def __init__(self, name: str, shape: tuple[int, int, int, int]) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, shape, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def prepare(self, m: int) -> None:
        """Get ready for m rows; raises :class:`PeerError` where the result is wrong."""
        self._ask("prepare", m)

    def seconds(self, first: int, turns: int) -> float:
        """Return the mean time of calls with so many sets of weights, from one on, after an untimed call."""
        return self._ask("seconds", first, turns)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(5)
        self._process.terminate()

    def _ask(self, *request: object) -> Any:
        self._pipe.send(request)
        return self._answer()

    def _answer(self) -> Any:
        try:
            good, value = self._pipe.recv()
        except EOFError:
            raise PeerError("its process died") from None
        if not good:
            raise PeerError(value)
        return value


def _serve(name: str, shape: tuple[int, int, int, int], pipe: Connection) -> None:
    """Answer requests until the pipe is closed: (whether it went well, the value or what went wrong)."""
    side = _Side(name, shape)
    request: tuple[Any, ...] = ("make",)
    while True:
        try:
            pipe.send((True, getattr(side, request[0])(*request[1:])))
        except BrokenPipeError:
            return
        except Exception as error:  # whatever a peer raises is for the one who asked
            pipe.send((False, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"))
        try:
            request = pipe.recv()
        except EOFError:
            return


class _Side:
    """What runs in the process of a peer."""

    def __init__(self, name: str, shape: tuple[int, int, int, int]) -> None:
        self.name, self.shape = name, shape
        self.call: Call | None = None

    def make(self) -> None:
        self.problem = Problem(*self.shape)
        kind, _, mode = self.name.partition(" ")
        make: Callable[[Problem], Any] = PEERS[self.name] if kind != "polyq" else lambda p: polyq_peer(p, mode)
        self.peer = make(self.problem)

    def prepare(self, m: int) -> None:
        self.call = self.peer(m)
        rows = min(m, 4)
        weights = self.problem.floats(self.problem.sets[0]).astype(np.float64)
        right = self.problem.activations(m).reshape(m, -1)[:rows] @ weights.T
        error = float(np.sqrt(np.mean((self.call(0)[:rows] - right) ** 2) / np.mean(right**2)))
        if not error <= _TOLERANCE.get(self.name, EXACT):
            raise PeerError(f"its result is off by {error:.1e} (relative, root mean square)")

    def seconds(self, first: int, turns: int) -> float:
        assert self.call is not None, "prepare comes first"
        count = len(self.problem.sets)
        self.call((first - 1) % count)  # wakes its threads, and leaves the sets that are timed cold
        started = time.perf_counter()
        for i in range(turns):
            self.call((first + i) % count)
        return (time.perf_counter() - started) / turns

"""Timing a kernel: cold data, median and spread, bytes and operations a second."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyq.affine.arrays import Array, random_arrays
from polyq.affine.errors import ArgumentError
from polyq.affine.scalar import Apply, walk
from polyq.affine.spec import Spec
from polyq.build.arguments import aligned_copy
from polyq.schedule.target import detect_machine

if TYPE_CHECKING:
    from polyq.build.kernel import Kernel

__all__ = ["Calls", "Timing", "count_operations", "measure"]

_MOST_COPIES = 64
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one kernel on random data.

    ``seconds`` are the times of single calls, sorted; ``bytes`` those of inputs and outputs, each once; ``operations``
    the float operations of the spec, ``None`` where they were not counted; ``copies`` of the data were used in turn.
    """

    kernel: str
    numerics: str
    threads: int
    params: tuple[tuple[str, int], ...]
    seconds: tuple[float, ...]
    bytes: int
    operations: int | None
    copies: int
    cold: bool

    @property
    def median(self) -> float:
        """The median time in seconds."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> tuple[float, float]:
        """The times in seconds that a tenth of the calls stay under, and over."""
        tenth = len(self.seconds) // 10
        return self.seconds[tenth], self.seconds[-1 - tenth]

    @property
    def gbps(self) -> float:
        """Inputs and outputs in 1e9 bytes a second."""
        return self.bytes / self.median / 1e9

    @property
    def gflops(self) -> float | None:
        """Float operations of the spec in 1e9 a second."""
        return None if self.operations is None else self.operations / self.median / 1e9

    def __repr__(self) -> str:
        return f"<Timing of {self}>"  # not the thousands of single times, which a notebook would show

    def __str__(self) -> str:
        low, high = self.spread
        sizes = "".join(f" {name}={value}" for name, value in self.params)
        rate = "" if not self.operations else f", {self.gflops:.3g} GFLOP/s"
        return (
            f"{self.kernel}{sizes}: {_time(self.median)} ({_time(low)} to {_time(high)}, {len(self.seconds)} calls), "
            f"{self.gbps:.3g} GB/s{rate}, {self.threads} thread{'s' * (self.threads != 1)}, {self.numerics}, "
            f"{'cold' if self.cold else 'warm'} data"
        )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


class Calls:
    """Calls of a kernel on random data, prepared: each one takes the next copy of the data.

    ``cold`` makes as many copies as exceed the last-level cache. Raises
    :class:`~polyq.affine.errors.ArgumentError` where the parameters are not those of the spec.
    """

    def __init__(
        self, kernel: Kernel, *, cold: bool, threads: int | None, seed: int, params: Mapping[str, int]
    ) -> None:
        spec = kernel.spec
        _check_parameters(spec, params)
        first = {n: aligned_copy(spec.tensor(n), a) for n, a in random_arrays(spec, params, seed).items()}
        self.values = tuple(params[name] for name in spec.params)
        call = kernel.executable.spec
        first = {**first, **kernel.hold({n: first[n] for n in kernel.constants})}
        inputs = [first[name] for name in call.input_names]
        outputs = kernel.executable.results.fresh(inputs, self.values)
        self.bytes = sum(a.nbytes for a in (*inputs, *outputs))
        self.copies = _copies(self.bytes) if cold else 1
        self._sets: list[tuple[list[Array], list[Array]]] = [(inputs, outputs)]
        for _ in range(self.copies - 1):
            more = [aligned_copy(call.tensor(n), first[n]) for n in call.input_names]
            self._sets.append((more, [np.array(a) for a in outputs]))
        ranged = kernel.at(**params)
        self.threads, self._next = (threads or kernel.threads) if ranged.module.shares_loops else 1, 0
        self._run = ranged.executable.run

    def time(self) -> float:
        """Return the seconds of one call."""
        given, out = self._sets[self._next]
        self._next = (self._next + 1) % self.copies
        before = time.perf_counter()
        self._run(given, self.values, out, self.threads)
        return time.perf_counter() - before


def _check_parameters(spec: Spec, params: Mapping[str, int]) -> None:
    missing = [name for name in spec.params if name not in params]
    unknown = [name for name in params if name not in spec.params]
    if missing or unknown:
        wanted = ", ".join(f"{name}=..." for name in spec.params) or "no parameters"
        raise ArgumentError(f"benchmark: expected {wanted}, got {', '.join(params) or 'none'}")


def measure(
    kernel: Kernel,
    *,
    seconds: float,
    repeats: int | None,
    cold: bool,
    threads: int | None,
    seed: int,
    params: Mapping[str, int],
) -> Timing:
    """Time calls of ``kernel``; see :meth:`polyq.build.kernel.Kernel.benchmark`."""
    spec = kernel.spec
    calls = Calls(kernel, cold=cold, threads=threads, seed=seed, params=params)
    copies = calls.copies
    times: list[float] = []
    started = time.perf_counter()
    while not _enough(len(times), repeats, time.perf_counter() - started, seconds):
        times.append(calls.time())
    if len(times) > copies:
        times = times[min(copies, len(times) - 5) :] if repeats is None else times
    return Timing(
        spec.name, kernel.numerics, calls.threads, tuple(zip(spec.params, calls.values, strict=True)),
        tuple(sorted(times)), calls.bytes, count_operations(spec, params), copies,
        copies * calls.bytes > detect_machine().l3,
    )  # fmt: skip


def _copies(size: int) -> int:
    """Return how many sets of data exceed the last-level cache twice, within reason."""
    wanted = 2 * detect_machine().l3 // max(1, size) + 2
    return max(1, min(wanted, _MOST_COPIES, _MOST_BYTES // max(1, size)))


def _enough(count: int, repeats: int | None, elapsed: float, seconds: float) -> bool:
    return count >= repeats if repeats is not None else count >= 5 and elapsed >= seconds


_FREE = {"select", "and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne", "neg"}


def count_operations(spec: Spec, params: Mapping[str, int]) -> int | None:
    """Return the float arithmetic of a spec as written: one for each function and each combination of a reduction.

    ``None`` where an op's domain is no box, since its points are not counted here.
    """
    total = 0
    for op in spec.ops:
        if op.where:
            return None
        points = 1
        for extent in op.extents:
            points *= max(0, extent.evaluate({}, params))
        body = sum(isinstance(n, Apply) and n.dtype[0] in "fb" and n.fn not in _FREE for n in walk(op.body))
        floats = spec.tensor(op.target).dtype in {"f16", "bf16", "f32", "f64"}
        total += points * (body + (op.reduce is not None and floats))
    return total

"""What the emitter hands to the build room."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Module"]


@dataclass(frozen=True, slots=True)
class Module:
    """One C translation unit.

    ``entry`` is the C name of the function described in docs/architecture.md; ``buffers`` and ``params`` give the order
    of its arguments; ``flags`` are what the code itself needs of the compiler (instruction set, contraction), not
    optimization; ``features`` are the CPU features that must be there before the first call, in the names of
    ``/proc/cpuinfo``.
    """

    entry: str
    source: str
    buffers: tuple[str, ...]
    params: tuple[str, ...]
    flags: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def shares_loops(self) -> bool:
        """Whether some loop is divided among threads."""
        return "runtime->run(" in self.source

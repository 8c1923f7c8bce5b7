"""The machine a schedule is made for: vectors, registers, caches, cores.

A :class:`Target` joins an instruction set (a row of a table) with what this machine has (caches, cores), detected once.
Nothing else in the schedule room looks at the machine, so a schedule for another instruction set is made the same way.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from polyq.affine.dtypes import info
from polyq.affine.errors import ScheduleError
from polyq.schedule import isa

__all__ = [
    "TARGETS", "Machine", "Target", "cpu_model", "detect_machine", "parse_features", "parse_model", "parse_quota",
    "read_caches",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """What was detected: CPU features by their names in ``/proc/cpuinfo``, usable cores, cache sizes in bytes.

    ``l1`` and ``l2`` are of one core, ``l3`` is one instance as it is shared; ``line`` is the cache line.
    """

    features: frozenset[str]
    cores: int
    l1: int
    l2: int
    l3: int
    line: int


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set on a machine.

    ``vector_bytes`` is the width of a vector register (0: scalar code, the reference target) and ``registers`` how many
    there are; ``features`` must be in ``/proc/cpuinfo`` before code for this target may run, ``flags`` tell the
    compiler. ``fma_latency`` is in cycles, ``fma_per_cycle`` counts vector multiply-adds a core starts in a cycle (two
    instructions where ``fma`` is false). ``dots`` are its instructions for sums of products of small integers, the best
    first; ``libmvec`` says whether glibc has vector functions for it under the names of its x86 ABI. Cache sizes are in
    bytes. The figures are those of the common cores of each instruction set (Agner Fog's instruction tables); they
    weigh schedules against each other and never decide what is legal.

    >>> avx2 = Target.named("avx2")
    >>> avx2.vector_bytes, avx2.registers, avx2.lanes("f32"), avx2.lanes("u8")
    (32, 16, 8, 32)
    """

    name: str
    vector_bytes: int
    registers: int
    fma: bool
    features: tuple[str, ...]
    flags: tuple[str, ...]
    fma_latency: int
    fma_per_cycle: float
    dots: tuple[isa.Dot, ...] = ()
    libmvec: bool = True
    cores: int = 1
    l1: int = 32 << 10
    l2: int = 256 << 10
    l3: int = 8 << 20
    line: int = 64

    @staticmethod
    def named(name: str = "native") -> Target:
        """Return the target ``name`` with this machine's caches and cores; ``"native"`` is the widest that runs here.

        :class:`ScheduleError` for an unknown name.

        >>> Target.named("c").vector_bytes
        0
        """
        return _named(name)

    def available(self) -> bool:
        """Whether this CPU can run code for the target."""
        return set(self.features) <= detect_machine().features

    def lanes(self, dtype: str) -> int:
        """Return how many elements of ``dtype`` one vector holds, 1 for scalar code.

        >>> Target.named("sse").lanes("f64"), Target.named("c").lanes("f32")
        (2, 1)
        """
        return max(1, self.vector_bytes * 8 // info(dtype).bits) if self.vector_bytes else 1

    def __str__(self) -> str:
        width = f"{self.vector_bytes * 8}-bit vectors x {self.registers}" if self.vector_bytes else "scalar"
        caches = f"L1 {_size(self.l1)}, L2 {_size(self.l2)}, L3 {_size(self.l3)}"
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{self.name}: {width}{', FMA' if self.fma else ''}, {cores}, {caches}"


_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")
_AVX512_VNNI, _AVX_VNNI = (*_AVX512, "avx512_vnni"), (*_AVX2, "avx_vnni")
_DOTPROD = ("-march=armv8.2-a+dotprod",)


def _flags(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return the compiler's flags for features named as in ``/proc/cpuinfo``."""
    return tuple(f"-m{f.replace('_', '') if 'vnni' in f else f}" for f in features)


#: The instruction sets, widest first; the machine's part of each is filled in by :meth:`Target.named`.
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("avx512vnni", 64, 32, True, _AVX512_VNNI, _flags(_AVX512_VNNI), 4, 2.0, isa.VNNI),
        Target("avx512", 64, 32, True, _AVX512, _flags(_AVX512), 4, 2.0, isa.AVX),
        Target("avxvnni", 32, 16, True, _AVX_VNNI, _flags(_AVX_VNNI), 4, 2.0, isa.VNNI),
        Target("avx2", 32, 16, True, _AVX2, _flags(_AVX2), 4, 2.0, isa.AVX),
        Target("neondot", 16, 32, True, ("asimd", "asimddp"), _DOTPROD, 4, 2.0, isa.DOTPROD, False),
        Target("neon", 16, 32, True, ("asimd",), (), 4, 2.0, isa.NEON, False),
        Target("sse", 16, 16, False, ("sse4_1",), ("-msse4.1",), 8, 1.0, isa.AVX),
        Target("c", 0, 16, False, (), (), 8, 1.0),
    )
}


@lru_cache(maxsize=16)
def _named(name: str) -> Target:
    machine = detect_machine()
    if name == "native":
        name = next(t.name for t in TARGETS.values() if set(t.features) <= machine.features)
    if name not in TARGETS:
        known = ", ".join(("native", *TARGETS))
        raise ScheduleError(f"target {name!r} is not known: choose one of {known}")
    return _on(TARGETS[name], machine)


def _on(target: Target, machine: Machine) -> Target:
    m = machine
    return replace(target, cores=m.cores, l1=m.l1, l2=m.l2, l3=m.l3, line=m.line)


@lru_cache(maxsize=1)
def detect_machine() -> Machine:
    """Detect features, cores and caches, once in a process."""
    try:
        features = parse_features(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        features = frozenset[str]()
    if not features:
        features = _baseline(platform.machine())
    l1, l2, l3, line = read_caches(Path("/sys/devices/system/cpu/cpu0/cache"))
    return Machine(features, _usable_cores(), l1, l2, l3, line)


def parse_features(cpuinfo: str) -> frozenset[str]:
    r"""Return the features that each processor of a ``/proc/cpuinfo`` text has (``flags``, on Arm ``Features``).

    >>> sorted(parse_features("flags : fma avx2\nflags : avx2"))
    ['avx2']
    """
    each = [
        set(value.split())
        for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())
        if key.strip() in {"flags", "Features"}
    ]
    return frozenset(set[str].intersection(*each)) if each else frozenset()


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """Return the model of this CPU, detected once in a process: where measured times may be compared."""
    try:
        found = parse_model(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = ""
    return found or platform.processor() or platform.machine() or "unknown"


def parse_model(cpuinfo: str) -> str:
    r"""Return the model of the first processor of a ``/proc/cpuinfo`` text; virtual machines cut the name short.

    >>> parse_model("cpu family : 25\nmodel : 1\nmodel name : AMD EPYC\nstepping : 1\n")
    'AMD EPYC, family 25, model 1, stepping 1'
    """
    facts: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    shown = {"cpu family": "family", "model": "model", "stepping": "stepping", "CPU implementer": "implementer",
             "CPU architecture": "architecture", "CPU part": "part", "CPU variant": "variant"}  # fmt: skip
    parts = [facts.get("model name", ""), *(f"{word} {facts[key]}" for key, word in shown.items() if facts.get(key))]
    return ", ".join(filter(None, parts))


def _baseline(machine: str) -> frozenset[str]:
    """Return what every 64-bit CPU of an architecture has, for systems that do not list features."""
    if machine.lower() in {"arm64", "aarch64"}:
        return frozenset({"asimd"})
    return frozenset({"sse2"}) if machine.lower() in {"x86_64", "amd64"} else frozenset()


def read_caches(folder: Path) -> tuple[int, int, int, int]:
    """Return L1, L2, L3 and the line in bytes from a folder of sysfs; usual sizes where it is silent."""
    sizes: dict[int, int] = {}
    line = 0
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / f).read_text().strip() for f in ("type", "level", "size"))
            if kind == "Instruction":
                continue
            sizes[int(level)] = _bytes(size)
            line = line or int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
    l1 = sizes.get(1) or 32 << 10
    l2 = sizes.get(2) or 256 << 10
    return l1, l2, sizes.get(3) or max(l2, 8 << 20), line or 64


def _bytes(text: str) -> int:
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if unit else text) << unit


def _usable_cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    try:
        quota = parse_quota(Path("/sys/fs/cgroup/cpu.max").read_text())
    except OSError:
        quota = None
    return max(1, cores if quota is None else min(cores, quota))


def parse_quota(cpu_max: str) -> int | None:
    """Return the cores that a cgroup's ``cpu.max`` grants, rounded up, or ``None`` without a limit.

    >>> parse_quota("150000 100000"), parse_quota("max 100000")
    (2, None)
    """
    try:
        quota, period = (int(part) for part in cpu_max.split())
    except ValueError:
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 and count % (1 << 20) == 0 else f"{count >> 10} KiB"

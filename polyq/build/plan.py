"""From a program to its C: the schedule, the certificate, the printed module; and the memo that spares all three.

The memo's key covers the program (structurally, not by identity), the options, the machine that an automatic schedule
is made for, and polyq's own source.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import polyq.emit
from polyq.affine.errors import ScheduleError
from polyq.affine.spec import Spec, Tensor
from polyq.build import cache
from polyq.emit.module import Module
from polyq.schedule.target import detect_machine

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.schedule import Schedule
    from polyq.schedule.certificate import Certificate

__all__ = ["Plan", "canonical", "make_plan", "make_schedule", "memo_key", "phase", "phases"]

_log = logging.getLogger("polyq")


@dataclass(frozen=True, slots=True)
class Plan:
    """A printed program: its module, the decisions as text, and one line about its certificate.

    Where tensors are ``prepared`` when inputs are bound, ``prologue`` computes them, and ``module`` reads them.
    """

    module: Module
    explanation: str
    proof: str
    prologue: Module | None = None
    prepared: tuple[Tensor, ...] = ()


_phases: ContextVar[list[tuple[str, float]] | None] = ContextVar("polyq_phases", default=None)


@contextmanager
def phase(name: str) -> Generator[None]:
    """Log how long a phase took, and note it for :func:`phases`."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    _log.debug("%s: %.1f ms", name, 1e3 * seconds)
    if (noted := _phases.get()) is not None:
        noted.append((name, seconds))


@contextmanager
def phases() -> Generator[list[tuple[str, float]]]:
    """Give a list that fills with the phases that run inside, and their seconds."""
    noted: list[tuple[str, float]] = []
    token = _phases.set(noted)
    try:
        yield noted
    finally:
        _phases.reset(token)


def make_schedule(
    spec: Spec, numerics: str, target: str, constants: tuple[str, ...] = (), sizes: Mapping[str, int] | None = None
) -> Schedule:
    """Return the automatic schedule; the same arguments give the same one."""
    from polyq.schedule import Schedule

    with phase("schedule"):
        return Schedule.auto(spec, numerics=numerics, target=target, constants=constants, sizes=sizes)


def make_plan(
    program: Spec | Schedule,
    numerics: str,
    target: str,
    constants: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
    compiling: Callable[[Module], None] = lambda module: None,
) -> tuple[Plan, Schedule | None, Certificate | None]:
    """Return the plan of a program; its schedule and certificate come along if they had to be made.

    ``compiling`` gets each module as soon as it is printed, so that the compiler runs beside the proof; where the proof
    fails, this raises, or calls it again with the modules of the plain order.
    """
    key = memo_key(program, numerics, target, constants, sizes or {})
    memo = cache.read_memo(key) if key else None
    if memo is not None:
        _log.debug("plan: from the cache")
        return _plan_from(memo), None, None
    from polyq.schedule.auto import checked, choose

    if isinstance(program, Spec):
        with phase("schedule"):
            schedule = choose(program, numerics, target, frozenset(constants), sizes or {})
    else:
        schedule = program
    modules = _emitted(schedule, compiling)
    with phase("certificate"):
        proven = checked(schedule) if isinstance(program, Spec) else schedule
        certificate = proven.certificate()
    if not certificate.ok:
        raise ScheduleError(f"the schedule does not compute the spec; please report this: {certificate}", certificate)
    if modules is None or proven is not schedule:
        schedule, modules = proven, _emitted(proven, compiling)
    assert modules is not None  # an error while a proven schedule is printed is raised
    module, prologue = modules
    kept = () if prologue is None else schedule.plan.prepared
    prepared = tuple(schedule.plan.spec.tensor(name) for name in kept)
    plan = Plan(module, schedule.explain(), str(certificate).partition("\n")[0], prologue, prepared)
    if key:
        cache.write_memo(key, dataclasses.asdict(plan))
    return plan, schedule, certificate


def _emitted(schedule: Schedule, compiling: Callable[[Module], None]) -> tuple[Module, Module | None] | None:
    """Print the modules and begin to compile them; ``None`` where an illegal schedule could not even be printed."""
    try:
        with phase("emit"):
            module, prologue = polyq.emit.generate(schedule), polyq.emit.generate_prologue(schedule)
    except Exception:
        if schedule.certificate().ok:
            raise
        return None  # the certificate says what is wrong with it
    for printed in (module, prologue):
        if printed is not None:
            compiling(printed)
    return module, prologue


def _plan_from(memo: dict[str, Any]) -> Plan:
    prologue = None if memo["prologue"] is None else _module_from(memo["prologue"])
    prepared = tuple(Tensor(t["name"], t["dtype"], tuple(t["shape"])) for t in memo["prepared"])
    return Plan(_module_from(memo["module"]), memo["explanation"], memo["proof"], prologue, prepared)


def _module_from(m: dict[str, Any]) -> Module:
    lists = (tuple[str, ...](m[name]) for name in ("buffers", "params", "flags", "features"))
    return Module(m["entry"], m["source"], *lists)


def memo_key(
    program: Spec | Schedule, numerics: str, target: str, constants: tuple[str, ...], sizes: Mapping[str, int]
) -> str | None:
    """Return the key of the program's memo, or ``None`` for one that has no canonical text."""
    try:
        text = canonical(program)
    except TypeError as error:
        _log.debug("plan: no memo, %s", error)
        return None
    machine = canonical(detect_machine())
    asked = (numerics, target, constants, sorted(sizes.items()))
    return cache.digest("memo", text, asked, machine, cache.source_digest())


def canonical(value: object) -> str:
    """Return a text that is equal for equal values of one type, and differs otherwise, in every process.

    Dataclasses count with the fields that ``==`` compares; :class:`TypeError` for a value of another kind.

    >>> canonical(("a", 1)) == canonical(("a", True))
    False
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def _write(value: object, parts: list[str]) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        parts.append(f"{type(value).__name__}:{value!r}")
    elif isinstance(value, (tuple, list)):
        _write_all("(", cast("Iterable[object]", value), parts)
    elif isinstance(value, (set, frozenset)):
        _write_all("{", sorted(map(canonical, cast("Iterable[object]", value))), parts)
    elif isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        _write_all("{", sorted((canonical(k), canonical(v)) for k, v in pairs), parts)
    elif dataclasses.is_dataclass(value):
        compared = [f.name for f in dataclasses.fields(value) if f.compare]
        _write_all(f"{type(value).__qualname__}(", [(name, getattr(value, name)) for name in compared], parts)
    else:
        raise TypeError(f"a {type(value).__qualname__} has no canonical text")


def _write_all(start: str, values: Iterable[object], parts: list[str]) -> None:
    parts.append(start)
    for value in values:
        _write(value, parts)
        parts.append(",")
    parts.append(")")

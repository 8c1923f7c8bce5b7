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
from polyq.affine.naming import Renaming
from polyq.affine.spec import Spec, Tensor
from polyq.build import cache
from polyq.build.sharing import Link, read_link, with_interface, write_link
from polyq.emit.module import Module
from polyq.schedule.target import detect_machine

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.schedule import Schedule
    from polyq.schedule.certificate import Certificate

__all__ = ["Made", "Plan", "canonical", "make_plan", "make_schedule", "memo_key", "phase", "phases"]

_log = logging.getLogger("polyq")


@dataclass(frozen=True, slots=True)
class Plan:
    """A printed program: its module, the decisions as text, and one line about its certificate.

    Where tensors are ``prepared`` when inputs are bound, ``prologue`` computes them, and ``module`` reads them; those
    of one group in ``shared`` lie in one buffer.
    """

    module: Module
    explanation: str
    proof: str
    prologue: Module | None = None
    prepared: tuple[Tensor, ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()


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


@dataclass(frozen=True, slots=True)
class Made:
    """A plan and its proof.

    ``plan`` is what is compiled, in numbered names where ``renaming`` leads back from them; ``shown`` is the same in
    the caller's, but for the C (:func:`polyq.build.sharing.rendered`). ``schedule`` and ``certificate``, in the
    caller's names too, come along if they had to be made.
    """

    plan: Plan
    shown: Plan
    renaming: Renaming | None = None
    schedule: Schedule | None = None
    certificate: Callable[[], Certificate] | None = None


def make_plan(
    program: Spec | Schedule,
    numerics: str,
    target: str,
    constants: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
    compiling: Callable[[Module], None] = lambda module: None,
) -> Made:
    """Return the plan of a program.

    ``compiling`` gets each module as soon as it is printed, so that the compiler runs beside the proof; where the proof
    fails, this raises, or calls it again with the modules of the plain order.
    """
    key = memo_key(program, numerics, target, constants, sizes or {})
    if isinstance(program, Spec):
        link = read_link(key) if key else None
        memo = cache.read_memo(link.plan) if link is not None else None
        if link is not None and memo is not None:
            _log.debug("plan: from the cache")
            return _shared(_plan_from(memo), link)
        return _made_by_form(program, numerics, target, constants, sizes or {}, compiling, key)
    memo = cache.read_memo(key) if key else None
    if memo is not None:
        _log.debug("plan: from the cache")
        plan = _plan_from(memo)
        return Made(plan, plan)
    plan, schedule, certificate = _proven(program, compiling)
    if key:
        cache.write_memo(key, dataclasses.asdict(plan))
    return Made(plan, plan, None, schedule, lambda: certificate)


def _made_by_form(
    spec: Spec, numerics: str, target: str, constants: tuple[str, ...], sizes: Mapping[str, int],
    compiling: Callable[[Module], None], key: str | None,
) -> Made:  # fmt: skip
    """Return the plan of a text that has not been built before: that of its numbered form, made if need be."""
    from polyq.affine.numbering import Form
    from polyq.schedule.auto import choose, choose_numbered
    from polyq.schedule.certificate import Check, rewrites
    from polyq.schedule.forms import regrouped, told

    with phase("canonical form"):
        form = Form.of(spec)
    if form is None:  # names that cannot be numbered: the text stands for itself
        renaming, notes, inner = Renaming({}), (), cache.digest("text", key or "")
    else:
        renaming, notes = form.renaming, regrouped(form)
        bound = tuple(sorted(renaming.numbered(name, "T") for name in constants))
        known = {renaming.numbered(name, "P"): size for name, size in sizes.items()}
        inner = memo_key(form.spec, numerics, target, bound, known)
    link = Link(inner or "", renaming, notes)
    memo = cache.read_memo(inner) if inner else None
    schedule: Schedule | None = None
    proof: Certificate | None = None
    if memo is not None:
        _log.debug("plan: from the cache, made for another text")
        plan = _plan_from(memo)
    else:
        with phase("schedule"):
            if form is None:
                chosen = choose(spec, numerics, target, frozenset(constants), sizes)
            else:
                chosen = choose_numbered(form, numerics, target, frozenset(constants), sizes)
        plan, schedule, proof = _proven(chosen, compiling, renaming)
    checks: tuple[Check, ...] = ()
    if form is not None and form.changed:
        with phase("certificate of the form"):
            checks = (rewrites(form.given, form.named, "canonical form"),)
        if not checks[0].ok:
            raise ScheduleError(
                f"the canonical form does not compute the spec; please report this: {checks[0].violation}",
                checks[0].violation,
            )
    if key and inner:
        if memo is None:
            cache.write_memo(inner, dataclasses.asdict(plan))
        write_link(key, link)
    made = _shared(plan, link)
    if schedule is None or proof is None:
        return made
    proven, own = proof, schedule

    def certificate() -> Certificate:
        shown = renaming.value(proven)
        return dataclasses.replace(shown, checks=(*shown.checks, *checks))

    return dataclasses.replace(made, schedule=own if form is None else told(form, spec, own), certificate=certificate)


def _shared(plan: Plan, link: Link) -> Made:
    """Return a plan of a numbered form with what it is in the caller's names."""
    if not link.renaming.names:
        return Made(plan, plan)
    shown = Plan(
        with_interface(plan.module, link.renaming),
        "\n".join([*link.notes, link.renaming.text(plan.explanation)]),
        plan.proof,
        None if plan.prologue is None else with_interface(plan.prologue, link.renaming),
        link.renaming.value(plan.prepared),
        link.renaming.value(plan.shared),
    )
    return Made(plan, shown, link.renaming)


def _proven(
    schedule: Schedule, compiling: Callable[[Module], None], renaming: Renaming | None = None
) -> tuple[Plan, Schedule, Certificate]:
    """Print a schedule and prove it; an automatic one, which has a ``renaming``, may give way to the plain order."""
    from polyq.schedule.auto import checked

    modules = _emitted(schedule, compiling)
    with phase("certificate"):
        proven = schedule if renaming is None else checked(schedule, renaming.text)
        certificate = proven.certificate()
    if not certificate.ok:
        text = f"the schedule does not compute the spec; please report this: {certificate}"
        raise ScheduleError(text if renaming is None else renaming.text(text), certificate)
    if modules is None or proven is not schedule:
        schedule, modules = proven, _emitted(proven, compiling)
    assert modules is not None  # an error while a proven schedule is printed is raised
    module, prologue = modules
    kept, shared = ((), ()) if prologue is None else (schedule.plan.prepared, schedule.plan.shared)
    prepared = tuple(schedule.plan.spec.tensor(name) for name in kept)
    plan = Plan(module, schedule.explain(), str(certificate).partition("\n")[0], prologue, prepared, shared)
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
    return Plan(
        _module_from(memo["module"]),
        memo["explanation"],
        memo["proof"],
        prologue,
        prepared,
        tuple(map(tuple, memo["shared"])),
    )


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

"""From a program to its C: the schedule, the certificate, the printed module; and the memo that spares all three.

The memo's key covers the program (structurally, not by identity), the options, the machine that an automatic schedule
is made for, and polyq's own source.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polyq.emit
from polyq.affine.errors import ScheduleError
from polyq.affine.naming import Renaming
from polyq.affine.spec import Spec, Tensor
from polyq.build import cache
from polyq.build.advice import Advice, Asked, advice_on
from polyq.build.keys import canonical, memo_key
from polyq.build.sharing import Link, read_link, with_interface, write_link
from polyq.emit.module import Module

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.build.tuned import Entry
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
    choices: tuple[tuple[str, str], ...] = ()  # tuned ones that the schedule was made with
    refused: str = ""  # why tuned ones were not


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
    spec: Spec, numerics: str, target: str, constants: tuple[str, ...] = (), sizes: Mapping[str, int] | None = None,
    choices: tuple[tuple[str, str], ...] = (),
) -> Schedule:  # fmt: skip
    """Return the automatic schedule; the same arguments give the same one."""
    from polyq.schedule import Schedule

    with phase("schedule"):
        return Schedule.auto(
            spec, numerics=numerics, target=target, constants=constants, sizes=sizes, choices=dict(choices)
        )


@dataclass(frozen=True, slots=True)
class Made:
    """A plan and its proof.

    ``plan`` is what is compiled, in numbered names where ``renaming`` leads back from them; ``shown`` is the same in
    the caller's, but for the C (:func:`polyq.build.sharing.rendered`). ``schedule`` and ``certificate``, in the
    caller's names too, come along if they had to be made. ``tuned`` is the entry of the database that was followed.
    """

    plan: Plan
    shown: Plan
    renaming: Renaming | None = None
    schedule: Schedule | None = None
    certificate: Callable[[], Certificate] | None = None
    tuned: Entry | None = None


def make_plan(
    program: Spec | Schedule,
    numerics: str,
    target: str,
    constants: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
    compiling: Callable[[Module], None] = lambda module: None,
    choices: Mapping[str, str] | None = None,
) -> Made:
    """Return the plan of a program; ``choices`` stand in place of those that the database of tuned ones holds.

    ``compiling`` gets each module as soon as it is printed, so that the compiler runs beside the proof; where the proof
    fails, this raises, or calls it again with the modules of the plain order.
    """
    key = memo_key(program, numerics, target, constants, sizes or {})
    if isinstance(program, Spec):
        link = read_link(key) if key else None
        if link is not None:
            advice = advice_on(link.problem, choices)
            memo = cache.read_memo(advice.key(link.plan))
            if memo is not None:
                _log.debug("plan: from the cache")
                return _shared(_plan_from(memo), link, advice)
        return _made_by_form(program, numerics, target, constants, sizes or {}, compiling, key, choices)
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
    compiling: Callable[[Module], None], key: str | None, choices: Mapping[str, str] | None,
) -> Made:  # fmt: skip
    """Return the plan of a text that has not been built before: that of its numbered form, made if need be."""
    from polyq.affine.numbering import Form
    from polyq.schedule.certificate import Check, rewrites
    from polyq.schedule.forms import told

    with phase("canonical form"):
        form = Form.of(spec)
    asked = Asked(spec, form, numerics, target, constants, sizes)
    link = asked.link(key)
    renaming, inner, advice = link.renaming, link.plan, advice_on(link.problem, choices)
    memo = cache.read_memo(advice.key(inner)) if inner else None
    schedule: Schedule | None = None
    proof: Certificate | None = None
    if memo is not None:
        _log.debug("plan: from the cache, made for another text")
        plan = _plan_from(memo)
    else:
        plan, schedule, proof = _made_as_advised(asked, advice, compiling, renaming)
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
            cache.write_memo(advice.key(inner), dataclasses.asdict(plan))
        write_link(key, link)
    made = _shared(plan, link, advice)
    if schedule is None or proof is None:
        return made
    proven, own = proof, schedule

    def certificate() -> Certificate:
        shown = renaming.value(proven)
        return dataclasses.replace(shown, checks=(*shown.checks, *checks))

    return dataclasses.replace(made, schedule=own if form is None else told(form, spec, own), certificate=certificate)


def _made_as_advised(
    asked: Asked, advice: Advice, compiling: Callable[[Module], None], renaming: Renaming
) -> tuple[Plan, Schedule, Certificate]:
    """Make and prove the schedule with the advised choices; what the database holds gives way where it does not fit."""
    refused = ""
    if advice.choices:
        try:
            with phase("schedule"):
                chosen = asked.chosen(advice.choices)
            plan, schedule, proof = _proven(chosen, compiling)
            return dataclasses.replace(plan, choices=tuple(advice.choices.items())), schedule, proof
        except Exception as error:  # whatever a scheduler makes of choices that were found for another one
            if advice.entry is None:
                raise
            refused = str(error) or type(error).__name__
    with phase("schedule"):
        chosen = asked.chosen({})
    plan, schedule, proof = _proven(chosen, compiling, renaming)
    return dataclasses.replace(plan, refused=refused), schedule, proof


def _shared(plan: Plan, link: Link, advice: Advice) -> Made:
    """Return a plan of a numbered form with what it is in the caller's names."""
    if plan.refused:
        advice.warn(link.renaming.text(plan.refused))
    entry = None if plan.refused else advice.entry
    if not link.renaming.names:
        return Made(plan, plan, tuned=entry)
    shown = dataclasses.replace(
        plan,
        module=with_interface(plan.module, link.renaming),
        explanation="\n".join([*link.notes, link.renaming.text(plan.explanation)]),
        prologue=None if plan.prologue is None else with_interface(plan.prologue, link.renaming),
        prepared=link.renaming.value(plan.prepared),
        shared=link.renaming.value(plan.shared),
    )
    return Made(plan, shown, link.renaming, tuned=entry)


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
    choices = tuple((str(decision), str(option)) for decision, option in memo["choices"])
    shared = tuple(tuple(str(name) for name in names) for names in memo["shared"])
    module = _module_from(memo["module"])
    return Plan(module, memo["explanation"], memo["proof"], prologue, prepared, shared, choices, memo["refused"])


def _module_from(m: dict[str, Any]) -> Module:
    lists = (tuple[str, ...](m[name]) for name in ("buffers", "params", "flags", "features"))
    return Module(m["entry"], m["source"], *lists)

"""``polyq.build``: from a spec or a schedule to a kernel."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from polyq.affine.errors import ArgumentError, ScheduleError
from polyq.affine.names import meant
from polyq.affine.naming import Renaming
from polyq.affine.spec import Spec
from polyq.build import binding
from polyq.build.compilation import Compilation, discard_of
from polyq.build.compiler import find_compiler
from polyq.build.kernel import Kernel, Loaded, Ranges
from polyq.build.keys import memo_key
from polyq.build.plan import Plan, make_plan, phase, phases
from polyq.build.prepared import repeated_spec
from polyq.build.runtime import end_runtime, shared_runtime, start_runtime
from polyq.build.threads import default_threads
from polyq.emit.module import Module
from polyq.schedule.ladder import Ladder, ladder_of
from polyq.schedule.numerics import NUMERICS
from polyq.schedule.target import TARGETS, detect_machine

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.build.tuned import Entry
    from polyq.schedule import Schedule
    from polyq.schedule.certificate import Certificate

__all__ = ["build", "build_range", "checked_options", "plan_key"]

_OPTIONS = "numerics, threads, target, constants"


def build(
    program: Spec | Schedule,
    /,
    *,
    numerics: Literal["strict", "reassoc", "i16", "i16x2", "i8"] | None = None,
    threads: int | None = None,
    target: str | None = None,
    constants: Iterable[str] = (),
    **unknown: object,
) -> Kernel:
    """Return the kernel of a spec or a schedule.

    ``numerics`` says what may change (``"reassoc"`` for a spec; a schedule has its own). ``threads`` is the most that a
    call uses, by default the cores of this process. ``target`` is ``native`` or a name in
    :data:`~polyq.schedule.target.TARGETS`; one that this CPU lacks gives a kernel to read, not to call. ``constants``
    names inputs that only ``bind`` supplies.

    Raises :class:`~polyq.affine.errors.ScheduleError` for an option that the schedule contradicts,
    :class:`~polyq.affine.errors.BuildError` where the C compiler fails.
    """
    if unknown:
        raise TypeError(f"polyq.build has no option {', '.join(map(repr, unknown))}; its options are {_OPTIONS}")
    started = time.perf_counter()
    spec = _spec_of(program)
    asked: dict[str, Any] = {
        "numerics": numerics, "threads": threads, "target": target, "constants": _constants(spec, constants)
    }  # fmt: skip
    mode, machine = _options_of(program, numerics, target)
    request = _Request(program, mode, machine, _threads(threads), asked)
    ladder = ladder_of(spec, bool(asked["constants"])) if isinstance(program, Spec) else None
    sizes: list[dict[str, int]] = [{}] if ladder is None else [ladder.sizes(rung) for rung in range(len(ladder.rungs))]
    with phases() as spent:
        first, *upper = [_made(request, each) for each in sizes]
    ranges = None if ladder is None else _ranges(request, ladder, first, upper)
    return _kernel(request, first, ranges, (time.perf_counter() - started, tuple(spent)))


def _ranges(request: _Request, ladder: Ladder, first: _Made, upper: Iterable[_Made]) -> Ranges:
    """Return the kernels of the upper ranges; one that would pack otherwise gives way, with a warning."""
    kernels: list[Kernel | None] = []
    notes: list[str] = []
    spec = _spec_of(request.program)
    for made in upper:
        same = made.takes_the_same(spec, first)
        kernels.append(_kernel(request, made) if same else None)
        if not same:
            size = made.sizes[ladder.param]
            notes.append(
                f"{ladder.param} = {size}: its own schedule would pack what is bound otherwise; "
                f"the one for {ladder.param} = {first.sizes[ladder.param]} runs"
            )
            warnings.warn(f"{spec.name}: {notes[-1]}", RuntimeWarning, stacklevel=4)
    return Ranges(ladder, tuple(kernels), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked for; ``asked`` are the options as they were given."""

    program: Spec | Schedule
    numerics: str
    target: str
    threads: int
    asked: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Made:
    """A proven and compiled plan, made for these sizes; schedule and certificate where it was not in the cache."""

    plan: Plan
    entry: Loaded | None
    prologue: Loaded | None
    sizes: Mapping[str, int]
    proof: tuple[Schedule, Callable[[], Certificate]] | None
    renaming: Renaming | None = None
    tuned: Entry | None = None

    def takes_the_same(self, spec: Spec, other: _Made) -> bool:
        """Whether calls take the same arrays: what is bound is packed once, for all ranges."""
        mine, others = self.plan, other.plan
        return mine.prologue == others.prologue and repeated_spec(spec, mine) == repeated_spec(spec, others)


def _made(request: _Request, sizes: Mapping[str, int], choices: Mapping[str, str] | None = None) -> _Made:
    """Schedule, print, prove and compile a program for these sizes; the compiler runs beside the proof."""
    begun: dict[Module, Compilation] = {}

    def compile_beside(module: Module) -> None:
        if module not in begun and set(module.features) <= detect_machine().features:
            begun[module] = Compilation(module.source, module.flags, find_compiler)

    try:
        start_runtime()
        made = make_plan(
            request.program, request.numerics, request.target, request.asked["constants"], sizes,
            compiling=compile_beside, choices=choices,
        )  # fmt: skip
        modules = [m for m in (made.plan.module, made.plan.prologue) if m is not None]
        for module in modules:  # of a plan from the cache
            compile_beside(module)
        entries = [_load(m, begun[m]) if m in begun else None for m in modules]
        for module in modules:
            begun.pop(module, None)
    except BaseException:
        end_runtime()
        discard_of({threading.get_ident()})  # also one that an interrupt kept out of `begun`
        raise
    finally:  # what was not proven
        for left in begun.values():
            left.discard()
    proof = None if made.schedule is None or made.certificate is None else (made.schedule, made.certificate)
    prologue = entries[1] if len(entries) > 1 else None
    return _Made(made.shown, entries[0], prologue, sizes, proof, made.renaming, made.tuned)


def _kernel(
    request: _Request,
    made: _Made,
    ranges: Ranges | None = None,
    spent: tuple[float, tuple[tuple[str, float], ...]] = (0.0, ()),
) -> Kernel:
    kernel = Kernel(
        request.program, made.plan, made.entry, made.prologue, numerics=request.numerics, target=request.target,
        threads=request.threads, constants=request.asked["constants"], asked=request.asked, sizes=made.sizes,
        ranges=ranges, seconds=spent[0], phases=spent[1],
    )  # fmt: skip
    kernel.renaming, kernel.tuned = made.renaming, made.tuned
    if made.proof is not None:  # made here anyway: keep what would be made again
        kernel.__dict__["schedule"] = made.proof[0]
        kernel.keep_certificate(made.proof[1])
    return kernel


def build_range(
    spec: Spec,
    sizes: Mapping[str, int],
    choices: Mapping[str, str],
    *,
    numerics: str = "reassoc",
    target: str = "native",
    threads: int | None = None,
    constants: Iterable[str] = (),
) -> Kernel:
    """Return the kernel of one range, made for ``sizes`` with these choices whatever the database holds.

    What tuning measures; raises what :func:`build` raises, and :class:`~polyq.affine.errors.ScheduleError` for a choice
    that does not come up.
    """
    mode, machine, most, names = checked_options(spec, numerics, target, threads, constants)
    asked: dict[str, Any] = {"numerics": mode, "threads": threads, "target": machine, "constants": names}
    request = _Request(spec, mode, machine, most, asked)
    return _kernel(request, _made(request, sizes, choices))


def checked_options(
    spec: Spec, numerics: str, target: str, threads: int | None, constants: Iterable[str]
) -> tuple[str, str, int, tuple[str, ...]]:
    """Return the options of a build as they are used; raises what :func:`build` raises for one that is none."""
    return (*_options_of(spec, numerics, target), _threads(threads), _constants(spec, constants))


def plan_key(
    program: Spec | Schedule,
    *,
    numerics: str | None = None,
    target: str | None = None,
    constants: Iterable[str] = (),
    **_: object,
) -> str | None:
    """Return the key under which :func:`build` with these options keeps the plan of a program (its first range)."""
    ladder = ladder_of(program) if isinstance(program, Spec) else None
    sizes = {} if ladder is None else ladder.sizes(0)  # the first range is the same for bound operands
    names = _constants(_spec_of(program), constants)
    return memo_key(program, *_options_of(program, numerics, target), names, sizes)


def _load(module: Module, library: Compilation) -> Loaded:
    with phase("waiting for the compiler"):
        return binding.load(library.publish(), module.entry), shared_runtime()


def _spec_of(program: object) -> Spec:
    spec = program if isinstance(program, Spec) else getattr(program, "spec", None)
    if not isinstance(spec, Spec):
        raise TypeError(
            f"polyq.build: expected a Spec (polyq.parse(...)) or a Schedule, got {type(program).__qualname__}"
        )
    return spec


def _options_of(program: Spec | Schedule, numerics: str | None, target: str | None) -> tuple[str, str]:
    """Return the numerics and the target's name, refused by name where they are not there."""
    if numerics is not None and numerics not in NUMERICS:
        raise ScheduleError(f"numerics={numerics!r} is not known; choose one of {', '.join(map(repr, NUMERICS))}")
    if target is not None and target not in {"native", *TARGETS}:
        known = ", ".join(map(repr, ("native", *TARGETS)))
        raise ScheduleError(f"target={target!r} is not known; choose one of {known}")
    if isinstance(program, Spec):
        return numerics or "reassoc", target or "native"
    own, machine = program.numerics, str(getattr(program.target, "name", program.target))
    if numerics is not None and numerics != own:
        raise ScheduleError(
            f"numerics={numerics!r}: the schedule was made for {own!r}, which decides what was legal; "
            f"make it with numerics={numerics!r}, or leave the option out"
        )
    if target is not None and target not in {machine, str(program.target)}:
        raise ScheduleError(
            f"target={target!r}: the schedule was made for {machine!r}; make it for {target!r}, or leave the option out"
        )
    return own, machine


def _threads(threads: object) -> int:
    if threads is None:
        return default_threads()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"threads={threads!r}: expected a whole number of at least 1, or None for all cores")
    return threads


def _constants(spec: Spec, constants: object) -> tuple[str, ...]:
    if isinstance(constants, str) or not isinstance(constants, Iterable):
        raise ArgumentError(f"constants={constants!r}: expected a tuple of names of inputs, such as ('w',)")
    names = tuple(cast("Iterable[object]", constants))
    unknown = [n for n in names if n not in spec.input_names]
    if unknown:
        inputs, what = ", ".join(spec.input_names) or "none", ", ".join(map(str, unknown))
        hint = meant(what, spec.input_names)
        raise ArgumentError(f"constants: {what}: no input has that name; the inputs are {inputs}{hint}")
    return cast("tuple[str, ...]", names)

"""``polyq.build``: from a spec or a schedule to a kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from polyq.affine.errors import ArgumentError, ScheduleError
from polyq.affine.spec import Spec
from polyq.build import binding
from polyq.build.compilation import Compilation
from polyq.build.compiler import find_compiler
from polyq.build.kernel import Kernel
from polyq.build.plan import make_plan, memo_key, phase, phases
from polyq.build.runtime import shared_runtime, start_runtime
from polyq.build.threads import default_threads
from polyq.emit.module import Module
from polyq.schedule.numerics import NUMERICS
from polyq.schedule.target import TARGETS, detect_machine

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.schedule import Schedule

__all__ = ["build", "plan_key"]

_OPTIONS = "numerics, threads, target, constants"


def build(
    program: Spec | Schedule,
    /,
    *,
    numerics: Literal["strict", "reassoc"] | None = None,
    threads: int | None = None,
    target: str | None = None,
    constants: Iterable[str] = (),
    **unknown: object,
) -> Kernel:
    """Return the kernel of a spec or a schedule.

    ``numerics`` says what may change (``"reassoc"`` for a spec; a schedule has its own). ``threads`` is the most that a
    call uses, by default the cores of this process. ``target`` is ``native``, ``c``, ``avx2``, ``avx512`` or ``neon``;
    one that this CPU lacks gives a kernel to read, not to call. ``constants`` names inputs that only ``bind`` supplies.

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
    limit = _threads(threads)
    end_runtime = start_runtime()
    begun: dict[Module, Compilation] = {}

    def compile_beside(module: Module) -> None:
        if module not in begun and set(module.features) <= detect_machine().features:
            begun[module] = Compilation(module.source, module.flags, find_compiler)

    try:
        with phases() as spent:
            plan, schedule, certificate = make_plan(program, mode, machine, compile_beside)
            compile_beside(plan.module)  # a plan from the cache
            library = begun.get(plan.module)
            entry = None if library is None else _load(plan.module, library)
            begun.pop(plan.module, None)
    except BaseException:
        end_runtime()
        raise
    finally:  # what was not proven, or interrupted
        for left in begun.values():
            left.discard()
    kernel = Kernel(
        program, plan, entry, numerics=mode, target=machine, threads=limit, constants=asked["constants"], asked=asked,
        seconds=time.perf_counter() - started, phases=spent,
    )  # fmt: skip
    if schedule is not None:  # made here anyway: keep what would be made again
        kernel.__dict__.update(schedule=schedule, certificate=certificate)
    return kernel


def plan_key(
    program: Spec | Schedule, *, numerics: str | None = None, target: str | None = None, **_: object
) -> str | None:
    """Return the key under which :func:`build` with these options keeps the plan of a program."""
    return memo_key(program, *_options_of(program, numerics, target))


def _load(module: Module, library: Compilation) -> tuple[binding.Entry, Any]:
    with phase("library"):
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
        raise ArgumentError(f"constants: {what}: no input has that name; the inputs are {inputs}")
    return cast("tuple[str, ...]", names)

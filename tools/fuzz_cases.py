"""What the fuzzer tries: programs, schedules, layouts and arguments that only a seed and a number determine."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from bound_programs import bound_program, exact_arrays
from nest_edits import random_spec as random_symbolic_spec
from random_specs import random_spec
from random_steps import directive
from sanitize import buffer_before, execute

import polyq
import polyq.testing
from polyq.affine.arrays import Array, random_arrays, storage_shape, take_arguments
from polyq.affine.bounds import caller_dtype
from polyq.affine.errors import ScheduleError
from polyq.emit import generate, generate_prologue
from polyq.emit.module import Module

__all__ = ["Case", "run_case"]

#: instances of a program, at most: the oracle and unoptimized code run each of them
MOST_INSTANCES = 60_000
TARGETS = ("native", "native", "native", "c", "sse")


@dataclass(slots=True)
class Case:
    """One case: its generator, the folder for its programs, and what was made so far, to be told if it fails."""

    r: Random
    folder: Path
    kind: str = ""
    story: list[str] = field(default_factory=list)

    def tell(self, what: object) -> None:
        """Note what the case does, for a failure's report."""
        self.story.append(str(what))


def run_case(seed: int, number: int, folder: Path) -> Case:
    """Make and check case ``number`` of ``seed``; whatever is wrong is raised, with the story as a note."""
    r = Random(f"{seed}/{number}")
    case = Case(r, folder)
    kind: Callable[[Case], None] = r.choice((_automatic, _automatic, _by_hand, _by_hand, _symbolic, _layer, _layer))
    case.kind = kind.__name__.strip("_").replace("_", " ")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # the plain order in place of a refused schedule
        warnings.filterwarnings("ignore", "no element has a finite error bound|.*none is compared")
        try:
            kind(case)
        except Exception as error:
            error.add_note("\n".join(case.story))
            raise
    return case


# ---- kinds of cases
def _automatic(case: Case) -> None:
    """A program of any form, as `build` schedules it."""
    drawn = random_spec(case.r, 3, case.r.choice((6, 6, 11, 19, 37)))
    spec = drawn.spec()
    case.tell(spec)
    if _instances(spec) > MOST_INSTANCES:
        return
    numerics = case.r.choice(("strict", "reassoc", "reassoc", "i16", "i8"))
    schedule = polyq.Schedule.auto(spec, numerics=numerics, target=case.r.choice(TARGETS))
    _check(case, schedule, drawn.arrays(case.r.randrange(99)))


def _symbolic(case: Case) -> None:
    """A program whose extents are a parameter."""
    spec = random_symbolic_spec(case.r, symbolic=True)
    case.tell(spec)
    schedule = polyq.Schedule.auto(spec, numerics=case.r.choice(("strict", "reassoc")), target=case.r.choice(TARGETS))
    for m in case.r.sample((0, 1, 2, 3, 7, 16, 33), 2):
        case.tell(f"m = {m}")
        _check(case, schedule, random_arrays(spec, {"m": m}, m), {"m": m})


def _by_hand(case: Case) -> None:
    """A program with random directives and layouts, each of them accepted."""
    r = case.r
    drawn = random_spec(r, 3, r.choice((6, 6, 11)))
    schedule = polyq.Schedule.naive(drawn.spec(), numerics=r.choice(("strict", "reassoc")), target=r.choice(TARGETS))
    case.tell(schedule.spec)
    if _instances(schedule.spec) > MOST_INSTANCES:
        return
    for _ in range(r.randrange(9)):
        try:
            schedule = _step(r, schedule)
        except ScheduleError:
            continue
    case.tell("\n".join(map(str, schedule.directives)))
    _check(case, schedule, drawn.arrays(r.randrange(99)))


def _step(r: Random, schedule: polyq.Schedule) -> polyq.Schedule:
    if r.random() < 0.25:
        tensor = r.choice(schedule.plan.spec.all_tensors)
        layout = _layout(r, tensor.shape)
        return schedule.store_as(tensor.name, layout) if r.random() < 0.3 else schedule.pack(tensor.name, layout)
    name, arguments = directive(r, schedule.plan)
    return getattr(schedule, name)(**arguments) if arguments else schedule


def _layout(r: Random, shape: tuple[int | str, ...]) -> polyq.Layout:
    """Return a chain of a few steps over a shape of numbers."""
    layout = polyq.Layout.of(shape)
    for _ in range(r.randrange(1, 4) if shape else 0):
        rank = len(layout.storage)
        step = r.choice(("permute", "tile", "pitch"))
        if step == "permute":
            layout = layout.permute(r.sample(range(rank), rank))
        elif step == "tile" and rank < 5:
            layout = layout.tile((r.randrange(rank),), (r.randint(1, 4),), r.sample(range(rank), rank))
        elif isinstance(layout.storage[-1], int):
            layout = layout.pitch(layout.storage[-1] + r.randrange(4))
    return layout


def _layer(case: Case) -> None:
    """A quantized contraction, called with all arrays and with some of them bound."""
    r = case.r
    program = bound_program(r.randrange(1 << 30))
    spec = program.spec()
    numerics = r.choice(("strict", "reassoc", "reassoc", "i16", "i16x2", "i8"))
    case.tell(f"{spec}\nbound: {', '.join(program.bound)}; numerics {numerics}")
    options: dict[str, Any] = {"numerics": numerics, "threads": r.choice((1, 2, 3))}
    declared = polyq.build(spec, **options, constants=program.bound)
    for m in r.sample(tuple(program.rows), 1):
        arrays = exact_arrays(spec, {"m": m} if spec.params else {}, m)
        case.tell(f"m = {m}")
        polyq.testing.assert_close(declared, **arrays)
        bound = polyq.Schedule.auto(spec, numerics=numerics, constants=program.bound)
        polyq.testing.assert_close(_Sanitized(case, bound, options["threads"]), **arrays)
        _check_arguments(case, polyq.build(spec, **options), arrays)


def _instances(spec: polyq.Spec) -> int:
    return sum(int(np.prod([e.const for e in op.extents], dtype=np.int64)) for op in spec.ops)


# ---- checks
def _check(
    case: Case, schedule: polyq.Schedule, arrays: dict[str, Array], params: dict[str, int] | None = None
) -> None:
    """Hold a schedule's kernel to its bound, in this process and under the sanitizers; then try odd arguments."""
    case.tell(f"numerics {schedule.numerics}, target {schedule.target}")
    if "kept plain" in schedule.explain():
        raise AssertionError(f"a schedule that was made is thrown away:\n{schedule.explain()}")
    threads = case.r.choice((1, 2, 3))
    kernel = polyq.build(schedule, threads=threads)
    given: dict[str, Any] = {**arrays, **(params or {})}
    polyq.testing.assert_close(kernel, **given)
    polyq.testing.assert_close(_Sanitized(case, schedule, threads), **given)
    if not kernel.constants:
        _check_arguments(case, partial(kernel, **(params or {})), arrays)


class _Sanitized:
    """A schedule's code in a program of its own, under the sanitizers: what `assert_close` takes for a kernel."""

    def __init__(self, case: Case, schedule: polyq.Schedule, threads: int) -> None:
        self.schedule, self.spec, self.numerics, self.threads = schedule, schedule.spec, schedule.numerics, threads
        self.folder = case.folder

    def __call__(self, **arguments: Any) -> Any:
        given, params = take_arguments(self.spec, arguments)
        made = self.schedule.plan.spec
        known: dict[str, Array] = {name: buffer_before(self.spec, given, name, params) for name in given}
        prologue = generate_prologue(self.schedule)
        for module in (m for m in (prologue, generate(self.schedule)) if m is not None):
            known |= self._run(module, made, known, params)
        results = [
            known[t.name].view(caller_dtype(t)).reshape(storage_shape(t, params)) for t in self.spec.outputs
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _run(
        self, module: Module, spec: polyq.Spec, known: dict[str, Array], params: dict[str, int]
    ) -> dict[str, Array]:
        work = Path(tempfile.mkdtemp(dir=self.folder))
        buffers = [known[b] if b in known else buffer_before(spec, {}, b, params) for b in module.buffers]
        problem, after = execute(work, module, buffers, [params[p] for p in module.params], self.threads)
        if problem:
            raise AssertionError(f"sanitizers: {problem}\n{module.source}")
        return dict(zip(module.buffers, after, strict=True))


def _check_arguments(case: Case, kernel: Any, arrays: dict[str, Array]) -> None:
    """Call a kernel with the same values in other memory, and with what is wrong."""
    plain = _bits(kernel(**arrays))
    for name in arrays:
        shape, array = case.r.choice(tuple(_FORMS.items()))
        case.tell(f"{name} {shape}")
        if _bits(kernel(**{**arrays, name: array(arrays[name])})) != plain:
            raise AssertionError(f"{name}, {shape}: another result")
        wrong = case.r.choice(_WRONG)(arrays[name])
        try:
            kernel(**{**arrays, name: wrong})
        except polyq.ArgumentError:
            continue
        raise AssertionError(f"{name}: {type(wrong).__name__} {getattr(wrong, 'dtype', '')}{np.shape(wrong)} is taken")
    _check_out(case, kernel, arrays, plain)


def _check_out(case: Case, kernel: Any, arrays: dict[str, Array], plain: list[bytes]) -> None:
    results = kernel(**arrays)
    results = results if isinstance(results, tuple) else (results,)
    form, array = case.r.choice([(name, make) for name, make in _FORMS.items() if name != "big-endian"])
    outs = tuple(array(np.zeros_like(y)) for y in results)
    if all(out.flags.writeable for out in outs):
        case.tell(f"out {form}")
        kernel(**arrays, out=outs if len(outs) > 1 else outs[0])
        if _bits(outs) != plain:
            raise AssertionError(f"out, {form}: another result")
    for name, value in arrays.items():  # the output lies where an input lies
        if len(results) == 1 and value.dtype == results[0].dtype and value.size >= results[0].size:
            shared = np.array(value)
            out = shared.reshape(-1)[value.size - results[0].size :].reshape(results[0].shape)
            case.tell(f"out over {name}")
            if _bits(kernel(**{**arrays, name: shared}, out=out)) != plain:
                raise AssertionError(f"out over {name}: another result")


def _bits(values: Any) -> list[bytes]:
    return [np.asarray(v).tobytes() for v in (values if isinstance(values, tuple) else (values,))]


# ---- the same values in other memory, and what no kernel may take
def _strided(a: Array) -> Array:
    wide = np.zeros(tuple(2 * n + 1 for n in a.shape), a.dtype)
    part = wide[tuple(slice(0, 2 * n, 2) for n in a.shape)] if a.ndim else wide
    part[...] = a
    return part


def _reversed(a: Array) -> Array:
    return np.flip(np.array(np.flip(a)))


def _unaligned(a: Array) -> Array:
    part = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    part[...] = a
    return part


def _read_only(a: Array) -> Array:
    copy = np.array(a)
    copy.flags.writeable = False
    return copy


_FORMS: dict[str, Callable[[Array], Array]] = {
    "strided": _strided, "reversed": _reversed, "unaligned": _unaligned, "read-only": _read_only,
    "in columns": lambda a: np.array(a, order="F"), "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}  # fmt: skip
_WRONG: tuple[Callable[[Array], Any], ...] = (
    lambda a: a[None], lambda a: a.astype(np.complex64), lambda a: None, lambda a: "x", lambda a: a.astype(object),
    lambda a: np.zeros((*a.shape, 1), a.dtype), lambda a: a.astype("m8[s]"),
)  # fmt: skip

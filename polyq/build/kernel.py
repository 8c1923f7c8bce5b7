"""The kernel: a callable over a compiled program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyq.affine.arrays import Array, collect, storage_shape, take_arguments
from polyq.affine.errors import ArgumentError
from polyq.affine.names import meant
from polyq.affine.spec import Spec, Tensor
from polyq.build import binding
from polyq.build.arguments import Params, Signature, aligned_copy, bound_params, dense_storage
from polyq.build.bound import Bound
from polyq.build.executable import Executable
from polyq.build.locks import ForkLock
from polyq.build.plan import Plan, make_schedule
from polyq.build.prepared import Packing, prepare, repeated_spec, sources

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.affine.naming import Renaming
    from polyq.build.card import Card
    from polyq.build.timing import Timing
    from polyq.build.tuned import Entry
    from polyq.emit.module import Module
    from polyq.schedule import Schedule
    from polyq.schedule.certificate import Certificate
    from polyq.schedule.explanation import Explanation
    from polyq.schedule.ladder import Ladder

__all__ = ["Kernel", "Loaded", "Ranges"]


Loaded = tuple[binding.Entry, Any]  # a C entry, and the runtime that it is given


@dataclass(frozen=True, slots=True)
class Ranges:
    """The kernels of a parameter's upper ranges, ``None`` where the first range's serves, and why it does."""

    ladder: Ladder
    upper: tuple[Kernel | None, ...]
    notes: tuple[str, ...] = ()

    def kernel(self, value: int) -> Kernel | None:
        """Return the kernel of the range that holds ``value``, ``None`` for the first."""
        rung = self.ladder.rung(value)
        return self.upper[rung - 1] if rung else None


class Kernel:
    """A compiled program; call it with its inputs by name or position, and parameters by name.

    Kernels are made by ``polyq.build``. They may be called from any number of threads at once, and pickle by their
    program: the other process takes them from the cache.
    """

    def __init__(
        self,
        program: Spec | Schedule,
        plan: Plan,
        entry: Loaded | None,
        prologue: Loaded | None = None,
        *,
        numerics: str,
        target: str,
        threads: int,
        constants: tuple[str, ...] = (),
        asked: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        ranges: Ranges | None = None,
        seconds: float = 0.0,
        phases: Sequence[tuple[str, float]] = (),
    ) -> None:
        self._program, self._plan = program, plan
        self._proof: Callable[[], Certificate] | None = None
        self.renaming: Renaming | None = None  # from the names in what is compiled
        self.tuned: Entry | None = None  # the entry of the database of tuned choices that was followed
        self._asked, self._build = dict(asked or {}), (seconds, tuple(phases))
        self.spec: Spec = program if isinstance(program, Spec) else program.spec
        self.numerics, self.target, self.threads = numerics, target, threads
        needed = {*constants, *sources(self.spec, plan)}
        self.constants = tuple(name for name in self.spec.input_names if name in needed)
        self.executable = Executable(repeated_spec(self.spec, plan), plan.module, entry)
        self._prologue, self._variants, self._varying = prologue, dict[tuple[str, ...], Kernel](), ForkLock()
        self.sizes, self._ranges = dict(sizes or {}), ranges
        if ranges is not None:
            self.executable.choose = self._executable_for
        if not isinstance(program, Spec):
            self.__dict__["schedule"] = program

    # ---- ranges of a parameter
    def at(self, **params: int) -> Kernel:
        """Return the kernel that serves these parameters: each range of sizes has a schedule of its own.

        Raises :class:`~polyq.affine.errors.ArgumentError` for what is no parameter, or no size.

        >>> import polyq
        >>> spec = polyq.parse("y[i, j] += a[i, k] * b[k, j]", a=("f32", ("m", 64)), b=("f32", (64, 64)))
        >>> kernel = polyq.build(spec)
        >>> kernel.at(m=1) is kernel, kernel.at(m=100) is kernel
        (True, False)
        """
        wrong = [f"{n}={v!r}" for n, v in params.items() if n not in self.spec.params or type(v) is not int or v < 0]
        if wrong:
            raise ArgumentError(
                f"at: {', '.join(wrong)}: expected whole numbers of at least 0 for parameters of {self.spec.name} "
                f"({', '.join(self.spec.params) or 'it has none'})"
            )
        if self._ranges is None or self._ranges.ladder.param not in params:
            return self
        return self._ranges.kernel(params[self._ranges.ladder.param]) or self

    @property
    def all_ranges(self) -> tuple[tuple[int, Kernel], ...]:
        """Of each range of sizes its least value and its kernel, ascending; this kernel alone where there is one."""
        found: list[tuple[int, Kernel]] = [(0, self)]
        if self._ranges is not None:
            for (least, _), upper in zip(self._ranges.ladder.rungs[1:], self._ranges.upper, strict=True):
                if upper is not None:
                    found.append((least, upper))
        return tuple(found)

    @property
    def range_parameter(self) -> str | None:
        """The parameter whose ranges have kernels of their own, ``None`` where there is none."""
        return None if self._ranges is None else self._ranges.ladder.param

    def _executable_for(self, params: Params) -> Executable:
        assert self._ranges is not None
        upper = self._ranges.kernel(params[self.executable.signature.params.index(self._ranges.ladder.param)])
        return self.executable if upper is None else upper.executable

    # ---- facts
    @property
    def program(self) -> Spec | Schedule:
        """What was built."""
        return self._program

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of ``build`` as they were given."""
        return self._asked

    @property
    def plan(self) -> Plan:
        """The printed modules, and which tensors ``bind`` prepares."""
        return self._plan

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a call takes, in order."""
        return self.spec.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that a call gives, in order."""
        return self.spec.outputs

    @property
    def source(self) -> str:
        """The C that runs, in the program's names (what is compiled has names that other texts of it share)."""
        return self.module.source

    @cached_property
    def module(self) -> Module:
        """The module in the program's names."""
        from polyq.build.sharing import rendered

        return self._plan.module if self.renaming is None else rendered(self._plan.module, self.renaming)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule; made again if the kernel came from the cache."""
        constants = self._asked.get("constants", ())
        return make_schedule(self.spec, self.numerics, self.target, constants, self.sizes, self._plan.choices)

    @cached_property
    def certificate(self) -> Certificate:
        """The proof that the loops compute the spec; ``verify()`` on it checks again."""
        return self.schedule.certificate() if self._proof is None else self._proof()

    def keep_certificate(self, proof: Callable[[], Certificate]) -> None:
        """Take the certificate of the build, in the caller's names once it is asked for."""
        self._proof = proof

    @property
    def layout(self) -> str:
        """A text that is equal for kernels that read what is bound in the same layout."""
        from polyq.build.cache import digest

        prologue = self._plan.prologue
        return "" if prologue is None else digest(prologue.source, self.executable.spec.input_names)

    def explain(self) -> Explanation:
        """Return each decision of the schedule, with its counts: a string, which a notebook shows as a table."""
        from polyq.schedule.explanation import Explanation

        made = self.__dict__.get("schedule")  # a schedule by hand may differ from the cached one in its notes
        text = self._plan.explanation if made is None else made.explain()
        ranges = self._ranges.notes if self._ranges is not None else ()
        return Explanation("\n".join([*self._tuning(), text, *ranges]))

    def _tuning(self) -> list[str]:
        """Say what tuning decided otherwise than the counts would have, or why its choices do not apply."""
        from polyq.build.advice import told

        return told(self._plan.choices, self._plan.refused, self.tuned, self.renaming)

    def error_bound(self, /, *args: object, **named: object) -> Any:
        """Return the forward error bound against the oracle, elementwise and shaped like the outputs.

        It is that of the schedule that serves these sizes; a bound callable's is ``bound.kernel.error_bound``, with all
        inputs. Under ``"strict"`` it is 0: the kernel computes what the oracle computes, bit by bit.
        """
        from polyq.affine import bounds
        from polyq.schedule.evaluation import evaluation

        given = self._signature.by_name(args, named)
        schedule = self.at(**take_arguments(self.spec, given)[1]).schedule
        found = list(bounds.error_bound(self.spec, given, evaluation=evaluation(schedule)))
        if self.numerics == "strict":
            found = [np.zeros_like(bound) for bound in found]
        return collect(self.spec, found)

    # ---- calls
    def __call__(self, /, *args: object, out: object = None, **named: object) -> Any:
        """Compute the outputs: an array, or a named tuple of several.

        ``out`` is an array (a tuple of them for several outputs) that receives the result; it may overlap the inputs.
        """
        if self.constants:
            self._refuse_constants(args, named)
        return self.executable.call(args, named, out, self.threads)

    @cached_property
    def _signature(self) -> Signature:
        return Signature(self.spec)

    def _refuse_constants(self, args: Sequence[object], named: Mapping[str, object]) -> None:
        given = [n for n in self.constants if n in self._signature.by_name(args, named)]
        what = f"got {', '.join(given)} in a call" if given else "none was bound"
        example = ", ".join(f"{n}={n}" for n in self.constants)
        names = ", ".join(self.constants)
        raise ArgumentError(f"{names}: constants of this kernel, {what}; use kernel.bind({example})")

    def bind(self, /, **arrays: object) -> Bound:
        """Return a callable that holds a snapshot of some inputs, checked and laid out once.

        Where another layout of what is bound pays, the callable runs a variant of the kernel, built at the first such
        call of ``bind``; the snapshot then holds the packed tensors alone.
        """
        unknown = [name for name in arrays if name not in self.spec.input_names]
        if unknown:
            raise ArgumentError(
                f"bind: {', '.join(unknown)}: no input has that name; the inputs are {', '.join(self.spec.input_names)}"
                + meant(unknown[0], self.spec.input_names)
            )
        missing = [name for name in self.constants if name not in arrays]
        if missing:
            raise ArgumentError(f"bind: {', '.join(missing)}: declared in constants=, and so bound here; it is missing")
        kernel = self._variant(tuple(name for name in self.spec.input_names if name in arrays))
        return Bound(kernel, *kernel.hold_packed(arrays))

    def _variant(self, names: tuple[str, ...]) -> Kernel:
        """Return the kernel for these bound inputs: this one, unless an automatic schedule would prepare some."""
        if names == self.constants or not isinstance(self._program, Spec) or not _worth_preparing(self.spec, names):
            return self
        with self._varying:
            if names not in self._variants:
                made = _rebuild(self._program, {**self._asked, "constants": names})
                self._variants[names] = made if made.executable.spec is not made.spec else self
            return self._variants[names]

    def hold(self, arrays: Mapping[str, object]) -> dict[str, Array]:
        """Return what a bound callable keeps of some inputs: copies, and prepared tensors in place of others."""
        return self.hold_packed(arrays)[0]

    def hold_packed(self, arrays: Mapping[str, object]) -> tuple[dict[str, Array], Packing | None]:
        """Return what :meth:`hold` does, and what packing cost."""
        kept = set(self.executable.spec.input_names)
        tensors = {name: self.spec.tensor(name) for name in arrays}
        # what only the prologue reads need not be copied first
        held = {n: aligned_copy(t, arrays[n]) if n in kept else dense_storage(t, arrays[n]) for n, t in tensors.items()}
        bound_params(self.spec, held)
        if self._plan.prologue is None:
            return held, None
        if self._prologue is None:
            raise self.executable.cannot_run()
        made, packing = prepare(self.spec, self._plan, self._prologue, held, self.threads)
        return {**made, **{name: array for name, array in held.items() if name in kept}}, packing

    def benchmark(
        self,
        *,
        seconds: float = 0.5,
        repeats: int | None = None,
        cold: bool = True,
        threads: int | None = None,
        seed: int = 0,
        **params: int,
    ) -> Timing:
        """Time the kernel on random data; parameters by name (``kernel.benchmark(m=16)``).

        ``cold`` rotates enough copies of the data to exceed the last-level cache. ``repeats`` is the number of timed
        calls, else as many as fit in ``seconds`` (at least 5).
        """
        from polyq.build.timing import measure

        return measure(self, seconds=seconds, repeats=repeats, cold=cold, threads=threads, seed=seed, params=params)

    def save(self, path: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
        """Write the kernel for programs in C: ``path`` with ``.c``, ``.h`` and ``.so``; its last part is the C name."""
        from polyq.build.export import save

        return save(self, path)

    # ---- what it looks like, and how it travels
    def card(self, bound: str = "") -> Card:
        """Return what is said of the kernel, and of what was bound."""
        from polyq.build.card import Card

        return Card(
            self.spec, self._plan, numerics=self.numerics, target=self.target, threads=self.threads,
            runs=self.executable.entry is not None, constants=self.constants, sizes=self.sizes,
            seconds=self._build[0], phases=self._build[1], bound=bound,
            tuned=self._tuned_ranges(),
        )  # fmt: skip

    def _tuned_ranges(self) -> str:
        each = [(least, kernel.tuned) for least, kernel in self.all_ranges if kernel.tuned is not None]
        name = self.range_parameter
        return "; ".join(f"{entry}{f' ({name} from {least} on)' if name else ''}" for least, entry in each)

    def __repr__(self) -> str:
        return str(self.card())

    def _repr_html_(self) -> str:
        return self.card().page(self.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._program, self._asked)


def _rebuild(program: Spec | Schedule, options: dict[str, Any]) -> Kernel:
    from polyq.build.building import build

    return build(program, **options)


#: bytes from which another layout of a bound input may be worth a build of its own
_LEAST_PREPARED = 1 << 16


def _worth_preparing(spec: Spec, names: tuple[str, ...]) -> bool:
    fixed = [t for t in map(spec.tensor, names) if all(e.is_constant for e in t.extents)]
    return any(prod(storage_shape(t, {})) >= _LEAST_PREPARED for t in fixed)

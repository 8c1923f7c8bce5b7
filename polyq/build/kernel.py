"""The kernel: a callable over a compiled program, and the same with some of its inputs bound."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyq.affine.arrays import Array, collect
from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Spec, Tensor
from polyq.build import binding
from polyq.build.arguments import aligned_copy, bound_params
from polyq.build.executable import Executable
from polyq.build.plan import Plan, make_schedule

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.build.timing import Timing
    from polyq.schedule import Schedule
    from polyq.schedule.certificate import Certificate

__all__ = ["Bound", "Kernel"]


class Kernel:
    """A compiled program; call it with its inputs by name or position, and parameters by name.

    Kernels are made by ``polyq.build``. They may be called from any number of threads at once, and pickle by their
    program: the other process takes them from the cache.
    """

    def __init__(
        self,
        program: Spec | Schedule,
        plan: Plan,
        entry: tuple[binding.Entry, Any] | None,
        *,
        numerics: str,
        target: str,
        threads: int,
        constants: tuple[str, ...] = (),
        asked: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
        phases: Sequence[tuple[str, float]] = (),
    ) -> None:
        self._program, self._plan = program, plan
        self._asked, self._build = dict(asked or {}), (seconds, tuple(phases))
        self.spec: Spec = program if isinstance(program, Spec) else program.spec
        self.numerics, self.target, self.threads, self.constants = numerics, target, threads, constants
        self.executable = Executable(self.spec, plan.module, entry)
        if not isinstance(program, Spec):
            self.__dict__["schedule"] = program

    # ---- facts
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
        """The C that runs."""
        return self._plan.module.source

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule; made again if the kernel came from the cache."""
        return make_schedule(self.spec, self.numerics, self.target)

    @cached_property
    def certificate(self) -> Certificate:
        """The proof that the loops compute the spec; ``verify()`` on it checks again."""
        return self.schedule.certificate()

    def explain(self) -> str:
        """Return each decision of the schedule, with its counts."""
        made = self.__dict__.get("schedule")  # a schedule by hand may differ from the cached one in its notes
        return self._plan.explanation if made is None else made.explain()

    def error_bound(self, /, *args: object, **named: object) -> Any:
        """Return the forward error bound against the oracle, elementwise and shaped like the outputs.

        Under ``"strict"`` it is 0: the kernel computes what the oracle computes, bit by bit.
        """
        from polyq.affine import bounds

        found = list(bounds.error_bound(self.spec, self.executable.signature.by_name(args, named)))
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

    def _refuse_constants(self, args: Sequence[object], named: Mapping[str, object]) -> None:
        given = [n for n in self.constants if n in self.executable.signature.by_name(args, named)]
        what = f"got {', '.join(given)} in a call" if given else "none was bound"
        example = ", ".join(f"{n}={n}" for n in self.constants)
        names = ", ".join(self.constants)
        raise ArgumentError(f"{names}: constants of this kernel, {what}; use kernel.bind({example})")

    def bind(self, /, **arrays: object) -> Bound:
        """Return a callable that holds a snapshot of some inputs, checked and laid out once."""
        unknown = [name for name in arrays if name not in self.spec.input_names]
        if unknown:
            raise ArgumentError(
                f"bind: {', '.join(unknown)}: no input has that name; the inputs are {', '.join(self.spec.input_names)}"
            )
        missing = [name for name in self.constants if name not in arrays]
        if missing:
            raise ArgumentError(f"bind: {', '.join(missing)}: declared in constants=, and so bound here; it is missing")
        held = {name: aligned_copy(self.spec.tensor(name), value) for name, value in arrays.items()}
        bound_params(self.spec, held)
        return Bound(self, held)

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
    def __repr__(self) -> str:
        from polyq.build.card import kernel_card

        return kernel_card(
            self.spec, self._plan, numerics=self.numerics, target=self.target, threads=self.threads,
            runs=self.executable.entry is not None, constants=self.constants,
            seconds=self._build[0], phases=self._build[1],
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._program, self._asked)


def _rebuild(program: Spec | Schedule, options: dict[str, Any]) -> Kernel:
    from polyq.build.building import build

    return build(program, **options)


class Bound:
    """A kernel with a snapshot of some of its inputs; call it with the others, by name or position."""

    def __init__(self, kernel: Kernel, held: dict[str, Array]) -> None:
        self.kernel = kernel
        self._held = held
        names = kernel.spec.input_names
        self._free = tuple(at for at, name in enumerate(names) if name not in held)
        self._template: list[object] = [held.get(name) for name in names]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a call still takes, in order."""
        return tuple(self.kernel.inputs[at] for at in self._free)

    @property
    def nbytes(self) -> int:
        """The bytes that the snapshot holds."""
        return sum(array.nbytes for array in self._held.values())

    def __call__(self, /, *args: object, out: object = None, **named: object) -> Any:
        """Compute the outputs from the remaining inputs; ``out`` as for the kernel."""
        kernel = self.kernel
        values = self._values(args, named)
        if values is None:
            return kernel.executable.call((), self._merged(args, named), out, kernel.threads)
        return kernel.executable.call(values, {}, out, kernel.threads)

    def _values(self, args: Sequence[object], named: Mapping[str, object]) -> list[object] | None:
        """Return all inputs in order, or ``None`` where what is given is not exactly what is missing."""
        if len(args) + len(named) != len(self._free):
            return None
        values = self._template.copy()
        for at, value in zip(self._free, args):  # noqa: B905 - the named ones follow
            values[at] = value
        names = self.kernel.spec.input_names
        for at in self._free[len(args) :]:
            if names[at] not in named:
                return None
            values[at] = named[names[at]]
        return values

    def _merged(self, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        """Return all arguments by name; whatever is given twice or too much is refused."""
        names = tuple(self.kernel.spec.input_names[at] for at in self._free)
        if len(args) > len(names):
            raise ArgumentError(
                f"{len(args)} arguments given by position: expected at most {len(names)} "
                f"({', '.join(names) or 'none'}); bound are {', '.join(self._held)}"
            )
        again = [name for name in named if name in self._held]
        if again:
            raise ArgumentError(f"{', '.join(again)}: bound already; bind anew for other values")
        twice = [name for name in names[: len(args)] if name in named]
        if twice:
            raise ArgumentError(f"{', '.join(twice)}: given by position and by name")
        return {**self._held, **dict(zip(names, args, strict=False)), **named}

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {array.nbytes} B" for name, array in self._held.items())
        return f"{self.kernel!r}\n  bound        {held}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebind, (self.kernel, self._held)


def _rebind(kernel: Kernel, held: dict[str, Array]) -> Bound:
    return kernel.bind(**held)

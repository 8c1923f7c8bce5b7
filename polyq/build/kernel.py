"""The kernel: a callable over a compiled program, and the same with some of its inputs bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from polyq.affine.arrays import Array, collect
from polyq.affine.errors import ArgumentError, BuildError
from polyq.affine.spec import Spec, Tensor
from polyq.build import binding
from polyq.build.arguments import Results, Signature, aligned_copy, as_given, bound_params
from polyq.build.plan import Plan, ScheduleLike, make_schedule
from polyq.build.timing import Timing, measure
from polyq.schedule.target import detect_machine

__all__ = ["Bound", "Kernel"]

_STATUS = {1: "out of memory"}
_KEPT_PARAMS = 4096  # parameter values whose C arrays are kept


class Kernel:
    """A compiled program; call it with its inputs by name or position, and parameters by name.

    Kernels are made by ``polyq.build``. They may be called from any number of threads at once, and pickle by their
    program: the other process takes them from the cache.
    """

    def __init__(
        self,
        program: Spec | ScheduleLike,
        plan: Plan,
        entry: tuple[binding.Entry, Any] | None,
        *,
        numerics: str,
        target: str,
        threads: int,
        constants: tuple[str, ...] = (),
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        self._program, self._plan, self._entry = program, plan, entry
        self._asked = dict(asked or {})
        self.spec: Spec = program if isinstance(program, Spec) else program.spec
        self.numerics, self.target, self.threads, self.constants = numerics, target, threads, constants
        self._signature = Signature(self.spec)
        self._results = Results(self.spec, self._signature.params)
        self._places = self._argument_places()
        self._pointers = binding.pointers(len(self._places))
        self._param_arrays: dict[tuple[int, ...], Any] = {}
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
    def schedule(self) -> ScheduleLike:
        """The schedule; made again if the kernel came from the cache."""
        return make_schedule(self.spec, self.numerics, self.target)

    @cached_property
    def certificate(self) -> Any:  # noqa: ANN401 - a value of the schedule room
        """The proof that the loops compute the spec; ``verify()`` on it checks again."""
        return self.schedule.certificate()

    def explain(self) -> str:
        """Return each decision of the schedule, with its counts."""
        return self._plan.explanation

    def error_bound(self, *args: object, **named: object) -> Any:  # noqa: ANN401 - an array, or a tuple of them
        """Return the forward error bound against the oracle, elementwise and shaped like the outputs."""
        from polyq.affine import bounds

        return bounds.error_bound(self.spec, self.numerics, **self._signature.by_name(args, named))

    # ---- calls
    def __call__(self, /, *args: object, out: object = None, **named: object) -> Any:  # noqa: ANN401
        """Compute the outputs: an array, or a named tuple of several.

        ``out`` is an array (a tuple of them for several outputs) that receives the result; it may overlap the inputs.
        """
        if self.constants:
            self._refuse_constants(args, named)
        return self._run(*self._signature.take(args, named), out, None)

    def _run(self, inputs: Sequence[Array], params: tuple[int, ...], out: object, threads: int | None) -> Any:  # noqa: ANN401
        if self._entry is None:
            raise self._cannot_run()
        if out is None:
            places = given = self._results.fresh(inputs, params)
        else:
            places, given = self._results.into(out, inputs, params)
        shown = binding.ffi().from_buffer
        buffers = self._pointers([shown(inputs[at] if at >= 0 else places[-1 - at]) for at in self._places])
        entry, runtime = self._entry
        status = entry(runtime, buffers, self._param_array(params), threads or self.threads)
        if status:
            raise MemoryError(f"kernel {self.spec.name}: {_STATUS.get(status, f'status {status}')} while it ran")
        if places is not given:
            for place, target in zip(places, given, strict=True):
                if place is not target:
                    np.copyto(target, place)
        if out is not None:
            return out if isinstance(out, np.ndarray) else collect(self.spec, as_given(self._results, given))
        if len(given) == 1 and not self._results.bf16:
            return given[0]
        return collect(self.spec, as_given(self._results, given))

    def _argument_places(self) -> list[int]:
        """Return for each C buffer the position of its input, or ``-1 - position`` of its output."""
        outputs, inputs = self.spec.output_names, self.spec.input_names
        # an updated tensor is both: the kernel works on the output's copy
        return [-1 - outputs.index(n) if n in outputs else inputs.index(n) for n in self._plan.module.buffers]

    def _param_array(self, params: tuple[int, ...]) -> Any:  # noqa: ANN401
        found = self._param_arrays.get(params)
        if found is None:
            values = dict(zip(self._signature.params, params, strict=True))
            if len(self._param_arrays) >= _KEPT_PARAMS:
                self._param_arrays.clear()
            found = self._param_arrays[params] = binding.integers([values[n] for n in self._plan.module.params])
        return found

    def _cannot_run(self) -> BuildError:
        missing = [f for f in self._plan.module.features if f not in detect_machine().features]
        return BuildError(
            f"kernel {self.spec.name} was made for target {self.target!r}: this CPU lacks {', '.join(missing)}. "
            "Its .source is there to read and compile elsewhere; build with target='native' to call it here"
        )

    def _refuse_constants(self, args: Sequence[object], named: Mapping[str, object]) -> None:
        given = [n for n in self.constants if n in self._signature.by_name(args, named)]
        what = f"got {', '.join(given)} in a call" if given else "none was bound"
        example = ", ".join(f"{n}={n}" for n in self.constants)
        raise ArgumentError(f"{', '.join(self.constants)}: constants of this kernel, {what}; use kernel.bind({example})")

    def bind(self, **arrays: object) -> Bound:
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
        return measure(self, seconds=seconds, repeats=repeats, cold=cold, threads=threads, seed=seed, params=params)

    # ---- what it looks like, and how it travels
    def __repr__(self) -> str:
        plan, threads = self._plan, f"up to {self.threads} thread{'s' * (self.threads != 1)}"
        lines = [
            f"kernel {self.spec.name}({', '.join(map(str, self.inputs))}) -> {', '.join(map(str, self.outputs))}",
            f"  numerics     {self.numerics}",
            f"  target       {self.target}{f' ({chr(32).join(plan.module.features)})' if plan.module.features else ''}"
            f"{'' if self._entry is not None else ', not on this CPU: source only'}",
            f"  threads      {threads}",
            f"  certificate  {plan.proof}",
        ]
        if self.constants:
            lines.insert(4, f"  constants    {', '.join(self.constants)}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._program, self._asked)


def _rebuild(program: Spec | ScheduleLike, options: dict[str, Any]) -> Kernel:
    from polyq.build.building import build

    return build(program, **options)


class Bound:
    """A kernel with a snapshot of some of its inputs; call it with the others, by name or position."""

    def __init__(self, kernel: Kernel, held: dict[str, Array]) -> None:
        self.kernel = kernel
        self._held = held
        self._names = tuple(n for n in kernel.spec.input_names if n not in held)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a call still takes, in order."""
        return tuple(self.kernel.spec.tensor(name) for name in self._names)

    @property
    def nbytes(self) -> int:
        """The bytes that the snapshot holds."""
        return sum(array.nbytes for array in self._held.values())

    def __call__(self, /, *args: object, out: object = None, **named: object) -> Any:  # noqa: ANN401
        """Compute the outputs from the remaining inputs; ``out`` as for the kernel."""
        if len(args) > len(self._names):
            raise ArgumentError(
                f"{len(args)} arguments given by position: expected at most {len(self._names)} "
                f"({', '.join(self._names) or 'none'}); bound are {', '.join(self._held)}"
            )
        again = [name for name in named if name in self._held]
        if again:
            raise ArgumentError(f"{', '.join(again)}: bound already; bind anew for other values")
        twice = [name for name in self._names[: len(args)] if name in named]
        if twice:
            raise ArgumentError(f"{', '.join(twice)}: given by position and by name")
        merged = {**self._held, **dict(zip(self._names, args, strict=False)), **named}
        kernel = self.kernel
        return kernel._run(*kernel._signature.take((), merged), out, None)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {array.nbytes} B" for name, array in self._held.items())
        return f"{self.kernel!r}\n  bound        {held}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebind, (self.kernel, self._held)


def _rebind(kernel: Kernel, held: dict[str, Array]) -> Bound:
    return kernel.bind(**held)

"""The loaded program: arguments in, C called, results out. Kernels and their timings share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyq.affine.arrays import Array, collect
from polyq.affine.errors import BuildError
from polyq.affine.spec import Spec
from polyq.build import binding
from polyq.build.arguments import Params, Signature
from polyq.build.outputs import Results
from polyq.emit.module import Module
from polyq.schedule.target import detect_machine

__all__ = ["Executable"]

_STATUS = {1: "out of memory"}
_KEPT_PARAMS = 4096  # values of parameters whose C arrays are kept


class Executable:
    """A spec and its C entry. ``entry`` is the function and the runtime, ``None`` where this CPU cannot run it."""

    def __init__(self, spec: Spec, module: Module, entry: tuple[binding.Entry, Any] | None) -> None:
        self.spec, self.module, self.entry = spec, module, entry
        self.signature = Signature(spec)
        self.results = Results(spec, self.signature.params)
        self._places = self._argument_places()
        self._shown = binding.ffi().from_buffer
        self._pointers = binding.pointers(len(self._places))
        self._param_arrays: dict[Params, Any] = {}
        #: which executable of the same arguments runs for these parameters; itself where there is no choice
        self.choose: Callable[[Params], Executable] | None = None

    def call(self, args: Sequence[object], named: Mapping[str, object], out: object, threads: int) -> Any:
        """Check arguments, run, and return the results."""
        inputs, params = self.signature.take(args, named)
        chosen = self if self.choose is None else self.choose(params)
        return chosen.run(inputs, params, out, threads)

    def run(self, inputs: Sequence[Array], params: Params, out: object, threads: int) -> Any:
        """Run on checked inputs; ``out`` is what the caller passed, or ``None``."""
        if self.entry is None:
            raise self.cannot_run()
        if out is None:
            places = given = self.results.fresh(inputs, params)
        else:
            places, given = self.results.into(out, inputs, params)
        shown, every = self._shown, [*inputs, *places]
        buffers = self._pointers([shown(every[at]) for at in self._places])
        entry, runtime = self.entry
        status = entry(runtime, buffers, self._param_array(params), threads)
        if status:
            raise MemoryError(f"kernel {self.spec.name}: {_STATUS.get(status, f'status {status}')} while it ran")
        if out is None:
            if len(given) == 1 and not self.results.bf16:
                return given[0]
            return collect(self.spec, self.results.as_given(given))
        if places is not given:
            for place, target in zip(places, given, strict=True):
                if place is not target:
                    np.copyto(target, place)
        return self._as_passed(out)

    def _as_passed(self, out: object) -> Any:
        """Return the caller's own objects, in the form in which results come."""
        if isinstance(out, (tuple, list)):
            return collect(self.spec, list(out))  # pyright: ignore[reportUnknownArgumentType]
        return out

    def _argument_places(self) -> list[int]:
        """Return for each C buffer its position among the inputs followed by the outputs."""
        outputs, inputs = self.spec.output_names, self.spec.input_names
        # an updated tensor is both: the kernel works on the output's copy
        return [len(inputs) + outputs.index(n) if n in outputs else inputs.index(n) for n in self.module.buffers]

    def _param_array(self, params: Params) -> Any:
        found = self._param_arrays.get(params)
        if found is None:
            values = dict(zip(self.signature.params, params, strict=True))
            if len(self._param_arrays) >= _KEPT_PARAMS:
                self._param_arrays.clear()
            found = self._param_arrays[params] = binding.integers([values[n] for n in self.module.params])
        return found

    def cannot_run(self) -> BuildError:
        """Return the error that says which features of the CPU are missing."""
        missing = [f for f in self.module.features if f not in detect_machine().features]
        return BuildError(
            f"kernel {self.spec.name} needs CPU features that this CPU lacks: {', '.join(missing)}. "
            "Its .source is there to read and to compile elsewhere; build with target='native' to call it here"
        )

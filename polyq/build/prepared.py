"""Inputs that are bound: prepared tensors computed once, and what a call still takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyq.affine.arrays import Array, storage_shape
from polyq.affine.dtypes import numpy_dtype
from polyq.affine.spec import Spec
from polyq.build import binding
from polyq.build.arguments import aligned_zeros
from polyq.build.plan import Plan

__all__ = ["Packing", "prepare", "repeated_spec", "sources"]


@dataclass(frozen=True, slots=True)
class Packing:
    """What packing inputs cost when they were bound.

    ``taken`` and ``made`` are the bytes of the inputs that were packed and of what they became (padding included);
    ``seconds`` is the time of the packing loops. While they run, both are in memory and nothing else of their size,
    unless an input was strided or of another byte order and had to be copied first.
    """

    inputs: tuple[str, ...]
    taken: int
    made: int
    seconds: float

    @property
    def peak(self) -> int:
        """The bytes in memory while the loops ran: what came and what was made."""
        return self.taken + self.made

    def __str__(self) -> str:
        return (
            f"{', '.join(self.inputs)}: {self.taken} bytes packed as {self.made} in {1e3 * self.seconds:.2f} ms, "
            f"peak {self.peak} bytes"
        )


def sources(spec: Spec, plan: Plan) -> tuple[str, ...]:
    """Return the inputs that prepared tensors are computed from."""
    read = () if plan.prologue is None else plan.prologue.buffers
    return tuple(name for name in spec.input_names if name in read)


def repeated_spec(spec: Spec, plan: Plan) -> Spec:
    """Return what a call of the module takes and gives: prepared tensors come in place of those that they replace."""
    if plan.prologue is None:
        return spec
    gone = {name for name in sources(spec, plan) if name not in plan.module.buffers}
    made = tuple(t for t in plan.prepared if t.name in plan.module.buffers)
    inputs = (*(t.name for t in made), *(n for n in spec.input_names if n not in gone))
    return replace(spec, all_tensors=(*spec.all_tensors, *made), input_names=inputs)


def prepare(
    spec: Spec, plan: Plan, entry: tuple[binding.Entry, Any], arrays: Mapping[str, Array], threads: int
) -> tuple[dict[str, Array], Packing]:
    """Run the prologue on dense inputs in storage form; return the prepared tensors, and what they cost."""
    assert plan.prologue is not None
    made = {t.name: aligned_zeros(storage_shape(t, {}), numpy_dtype(t.dtype)) for t in plan.prepared}
    every = {**arrays, **made}
    names = plan.prologue.buffers
    shown = binding.ffi().from_buffer
    buffers = binding.pointers(len(names))([shown(every[name]) for name in names])
    call, runtime = entry
    started = time.perf_counter()
    if call(runtime, buffers, binding.integers([]), threads):
        raise MemoryError(f"kernel {spec.name}: out of memory while inputs were bound")
    seconds, taken = time.perf_counter() - started, sources(spec, plan)
    kept = {name: made[name] for name in made if name in plan.module.buffers}
    size = sum(arrays[n].nbytes for n in taken)
    return kept, Packing(taken, size, sum(array.nbytes for array in made.values()), seconds)

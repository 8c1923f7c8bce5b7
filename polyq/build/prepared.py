"""Inputs that are bound: prepared tensors computed once, and what a call still takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyq.affine.arrays import Array, storage_shape
from polyq.affine.dtypes import numpy_dtype
from polyq.affine.spec import Spec
from polyq.build import binding
from polyq.build.arguments import aligned_zeros
from polyq.build.plan import Plan

__all__ = ["Packing", "distinct_bytes", "prepare", "rejoined", "repeated_spec", "sources"]


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
    made = _allocated(plan)
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
    return kept, Packing(taken, size, distinct_bytes(made.values()), seconds)


def _allocated(plan: Plan) -> dict[str, Array]:
    """Return zeros for each prepared tensor; those that share a buffer are views of it."""
    first = {name: group[0] for group in plan.shared for name in group}
    made: dict[str, Array] = {}
    for t in sorted(plan.prepared, key=lambda t: first.get(t.name, t.name) != t.name):
        shape, kind = storage_shape(t, {}), numpy_dtype(t.dtype)
        whole = made.get(first.get(t.name, ""))
        made[t.name] = (
            aligned_zeros(shape, kind) if whole is None else whole.reshape(-1).view(np.uint8).view(kind).reshape(shape)
        )
    return {t.name: made[t.name] for t in plan.prepared}


def rejoined(plan: Plan, held: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays that were copied one by one, with those of one buffer as views of one array again."""
    made = dict(held)
    for group in plan.shared:
        whole = held[group[0]].reshape(-1).view(np.uint8)
        made |= {name: whole.view(held[name].dtype).reshape(held[name].shape) for name in group[1:]}
    return made


def distinct_bytes(arrays: Iterable[Array]) -> int:
    """Return the bytes of dense arrays, those at one place counted once."""
    return sum({array.__array_interface__["data"][0]: array.nbytes for array in arrays if array.nbytes}.values())

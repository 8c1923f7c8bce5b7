"""The loop nest that a spec means: one op after another, each in the order of its dims, nothing fused or moved."""

from __future__ import annotations

from dataclasses import replace

from polyq.affine.expr import Affine
from polyq.affine.scalar import substitute_dims
from polyq.affine.spec import Op, Spec
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest

__all__ = ["naive_nest", "tensor_buffers"]


def naive_nest(spec: Spec) -> LoopNest:
    """Return the nest that defines the meaning of ``spec``; a schedule is right if its nest computes the same values.

    Every loop variable occurs once: it is named after its dim, with a number where that name is taken.
    """
    taken = {*spec.params, *(t.name for t in spec.all_tensors)}
    body = tuple(node for op in spec.ops for node in _loops(op, taken))
    return LoopNest(spec.name, spec.params, tensor_buffers(spec), body)


def tensor_buffers(spec: Spec) -> tuple[Buffer, ...]:
    """Return a buffer for every tensor: inputs, then outputs that are no inputs, then whole intermediates."""
    kinds: dict[str, str] = {name: "input" for name in spec.input_names}
    for name in spec.output_names:
        kinds[name] = "inout" if name in kinds else "output"
    kinds |= {t.name: "temp" for t in spec.temporaries}
    tensors = [spec.tensor(name) for name in kinds]
    return tuple(Buffer(t.name, t.dtype, t.extents, kinds[t.name]) for t in tensors)


def _loops(op: Op, taken: set[str]) -> Block:
    names: dict[str, str] = {}
    for dim in op.dims:
        name, number = dim, 1
        while name in taken:
            number += 1
            name = f"{dim}_{number}"
        taken.add(name)
        names[dim] = name
    to_loop = {dim: Affine.dim(name) for dim, name in names.items()}
    statement = Assign(
        op.name,
        tuple(to_loop.values()),
        op.target,
        tuple(e.substitute(to_loop) for e in op.index),
        substitute_dims(op.body, to_loop),
        op.reduce,
    )
    body: Block = (statement,)
    if op.where:
        body = (Guard(tuple(replace(c, expr=c.expr.substitute(to_loop)) for c in op.where), body),)
    for dim, extent in zip(reversed(op.dims), reversed(op.extents), strict=True):
        body = (Loop(names[dim], (Affine(0),), (extent,), "serial", body),)
    return body

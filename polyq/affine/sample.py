"""A part of a program: what has to be computed for some cells of its outputs, and nothing else.

A check of a kernel against the interpreter takes long at full size. The part of the spec that a box of output cells
needs is a spec of its own, over the same tensors, with narrower dims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from polyq.affine.arrays import shape_of
from polyq.affine.expr import Affine, Constraint
from polyq.affine.extents import alone
from polyq.affine.scalar import substitute_dims
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Box", "box_within", "boxes", "instances", "part_of"]

#: the cells from first to last (exclusive) along each axis
Box = tuple[tuple[int, int], ...]


def instances(spec: Spec, params: Mapping[str, int]) -> int:
    """Return how many instances the boxes of all ops have."""
    return sum(prod(max(0, e.evaluate({}, params)) for e in op.extents) for op in spec.ops)


def boxes(tensor: Tensor, params: Mapping[str, int], cells: int, count: int, seed: int = 0) -> list[Box]:
    """Return some boxes of about ``cells`` cells of a tensor: one at each corner of it, the others anywhere."""
    random = np.random.default_rng(seed)
    shape = shape_of(tensor, params)
    found: list[Box] = []
    for k in range(count):
        room, box = max(1, cells), list[tuple[int, int]]()
        for n in shape:
            width = max(1, min(n, round(room ** (1 / max(1, len(shape) - len(box))))))
            room = max(1, room // width)
            start = 0 if k == 0 else max(0, n - width) if k == 1 else int(random.integers(0, max(1, n - width + 1)))
            box.append((start, min(n, start + width)))
        found.append(tuple(box))
    return found


def box_within(box: Box, shape: Sequence[int], other: Sequence[int]) -> Box:
    """Return the least box that holds the cells of ``box`` where the same memory has another shape.

    >>> box_within(((1, 2), (0, 4)), (2, 6), (3, 4))  # cells 6 to 9
    ((1, 3), (0, 4))
    """
    cells = np.arange(prod(shape)).reshape(tuple(shape))[tuple(slice(*ends) for ends in box)]
    if cells.size == 0:
        return tuple((0, 0) for _ in other)
    places = np.unravel_index(cells.ravel(), tuple(other)) if other else ()
    return tuple((int(at.min()), int(at.max()) + 1) for at in places)


def part_of(spec: Spec, wanted: Mapping[str, Box], params: Mapping[str, int]) -> Spec:
    """Return the part of ``spec`` that computes the cells ``wanted`` of its outputs, for given parameters.

    Other cells of its outputs and temporaries hold anything. Ops are narrowed along dims that index an axis of their
    target alone; every other dim stays whole.

    >>> from polyq.affine.notation import parse
    >>> print(part_of(parse("y[i] += a[i, k]", a=("f32", (9, 3))), {"y": ((4, 6),)}, {}).op("y"))
    y[i + 4] += a[i + 4, k]
    """
    needed: dict[str, Box] = dict(wanted)
    kept: list[Op] = []
    for op in reversed(spec.ops):
        if op.target not in needed:
            continue
        narrow, ranges = _narrowed(op, needed[op.target], params)
        kept.insert(0, narrow)
        for load in op.reads:
            shape = shape_of(spec.tensor(load.tensor), params)
            box = tuple(_range(e, n, ranges, params) for e, n in zip(load.index, shape, strict=True))
            needed[load.tensor] = _hull(needed.get(load.tensor), box)
    return spec.with_ops(tuple(kept))


def _narrowed(op: Op, box: Box, params: Mapping[str, int]) -> tuple[Op, dict[str, tuple[int, int]]]:
    """Return the op over the dims that reach ``box``, and the (inclusive) ranges of its old dims."""
    ranges = {d: (0, e.evaluate({}, params) - 1) for d, e in zip(op.dims, op.extents, strict=True)}
    for e, (low, high) in zip(op.index, box, strict=True):
        dim = alone(e)
        if dim is not None:
            ranges[dim] = max(ranges[dim][0], low), min(ranges[dim][1], high - 1)
    moved = {d: Affine.dim(d) + low for d, (low, _) in ranges.items() if low}
    return replace(
        op,
        extents=tuple(Affine(max(0, ranges[d][1] - ranges[d][0] + 1)) for d in op.dims),
        index=tuple(e.substitute(moved) for e in op.index),
        body=substitute_dims(op.body, moved),
        where=tuple(Constraint(c.expr.substitute(moved), c.equality) for c in op.where),
    ), ranges  # fmt: skip


def _range(e: Affine, size: int, ranges: Mapping[str, tuple[int, int]], params: Mapping[str, int]) -> tuple[int, int]:
    known = e.substitute(lambda a: Affine(params[a.name]) if a.name in params and a.name not in ranges else None)
    span = known.bounds(ranges)
    return (0, size) if span is None else (max(0, span[0]), min(size, span[1] + 1))


def _hull(a: Box | None, b: Box) -> Box:
    return b if a is None else tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))

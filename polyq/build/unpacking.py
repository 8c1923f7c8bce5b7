"""Original arrays from packed ones: the relation that packed them, the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from polyq.affine import arrays as storage
from polyq.affine.arrays import Array
from polyq.affine.codec import Malformed, checked_name, decode_op, decode_shape, listed
from polyq.affine.dtypes import DTYPES, info
from polyq.affine.scalar import Load
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["recovered"]

#: elements that are moved at a time: index arrays are eight times as large as bytes
_CHUNK = 1 << 18


def recovered(
    spec: Spec, wanted: Sequence[str], packed: object, arrays: Mapping[str, Array]
) -> tuple[dict[str, Array], list[str]]:
    """Return inputs in storage form, and which of ``wanted`` are not among them.

    ``packed`` lists each packed tensor's dtype and shape, and the op (encoded) that computed it. An input comes back
    where one such op copied every one of its cells.
    """
    known = {n: arrays[n] for n in spec.input_names if n in arrays}
    for tensor, op in _packing_ops(spec, packed):
        if isinstance(op.body, Load) and op.body.tensor in spec.input_names and tensor.name in arrays:
            source = spec.tensor(op.body.tensor)
            cells = _unpacked(source, tensor, op, op.body, arrays[tensor.name])
            if cells is not None:
                known[source.name] = storage.pack(source.dtype, cells) if info(source.dtype).packed else cells
    return known, [n for n in wanted if n not in known]


def _packing_ops(spec: Spec, packed: object) -> list[tuple[Tensor, Op]]:
    """Return each packed tensor and the op that made it, in the order in which they ran."""
    tensors, made = list(spec.all_tensors), list[tuple[Tensor, Op]]()
    for entry in listed(packed, "packed"):
        described, op = listed(entry, "packed", 2)
        dtype, sizes = listed(described, "packed", 2)
        shape, name = decode_shape(sizes), checked_name((listed(op, "packed")[3:4] or [None])[0])
        if dtype not in DTYPES or not all(isinstance(n, int) for n in shape):
            raise Malformed(f"packed: {name} has no shape")
        tensor = Tensor(name, str(dtype), shape)
        if any(t.name == tensor.name and t != tensor for t in tensors):
            raise Malformed(f"packed: {name} is another tensor of the program")
        tensors += [] if tensor in tensors else [tensor]
        made.append((tensor, decode_op(op, tensors)))
    return made


def _unpacked(source: Tensor, tensor: Tensor, op: Op, load: Load, packed: Array) -> Array | None:
    """Return all elements of the source in logical form, or ``None`` where the op does not tell them."""
    if packed.shape != storage.storage_shape(tensor, {}):
        raise Malformed(f"{tensor.name}: {tensor} is not stored as {list(packed.shape)}")
    sizes = tuple(e.const for e in op.extents)
    shape = tuple(e.const for e in source.extents)
    fixed = all(e.is_constant for e in (*op.extents, *source.extents))
    # an op that has far more instances than cells is no copy that polyq made
    if not fixed or op.reduce is not None or not prod(shape) <= prod(sizes) <= 2 * prod(storage.shape_of(tensor, {})):
        return None
    cells = packed
    if info(tensor.dtype).packed:
        cells = storage.unpack(tensor.dtype, packed, storage.shape_of(tensor, {})[-1])
    made, met = np.zeros(shape, cells.dtype), np.zeros(shape, bool)
    for first in range(0, prod(sizes), _CHUNK):
        flat = np.arange(first, min(first + _CHUNK, prod(sizes)))
        at: Any = dict(zip(op.dims, np.unravel_index(flat, sizes), strict=True)) if sizes else {}
        inside = np.ones(flat.shape, bool)
        for c in op.where:
            value: Any = c.expr.evaluate(at)
            inside &= value == 0 if c.equality else value >= 0
        there, here = (
            tuple(np.broadcast_to(np.asarray(e.evaluate(at)), flat.shape)[inside] for e in index)
            for index in (load.index, op.index)
        )
        made[there] = cells[here]
        met[there] = True
    return made if met.all() else None

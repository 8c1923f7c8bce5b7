"""Prepared tensors that lie in one buffer: weights with their scales and zero points, block by block.

A :class:`polyq.affine.record.Record` says where the parts lie. Each part is a tensor of the buffer's whole extent, in
elements of its own, of which it owns some; that no two own the same byte is read off the loops that write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

from polyq.affine.arrays import packed_extent
from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.sets import Domain
from polyq.schedule.loopnest import Buffer
from polyq.schedule.readback import Program, Statement
from polyq.schedule.stages import Plan

__all__ = ["share", "shared_problem"]

_BYTE = "byte"


def share(plan: Plan, tensors: Sequence[str]) -> Plan:
    """Let prepared tensors lie in one buffer, each seeing all of it.

    requires: 1. they are prepared, and in no other shared buffer; 2. they have the same bytes in all; 3. no two of them
    write the same byte (the certificate proves it for the loops that are printed).
    """
    names = tuple(tensors)
    apart = [n for n in names if n not in plan.prepared or any(n in group for group in plan.shared)]
    if len(set(names)) < 2 or apart:
        raise ScheduleError(
            f"share({', '.join(names)}): expected two or more prepared tensors, each in one buffer; "
            f"prepared are {', '.join(plan.prepared) or 'none'}"
        )
    return replace(plan, shared=(*plan.shared, names))


def shared_problem(program: Program) -> str | None:
    """Say which tensors of one buffer meet there, or return ``None``."""
    buffers = [b for b in program.nest.buffers if b.within]
    for b in buffers:
        if b.kind != "prepared":
            return f"{b.name}: shares a buffer and is not prepared"
        other = next(o for o in buffers if o.within == b.within)
        if _nbytes(b) != _nbytes(other):
            return f"{other.name} and {b.name} share a buffer of {_nbytes(other)} and of {_nbytes(b)} bytes"
    writes = [(s.target.buffer, s) for s in program.statements if s.target.buffer.within]
    for (one, a), (two, b) in combinations(writes, 2):
        if one.name != two.name and one.within == two.within:
            both = _bytes(one, a).intersect(_bytes(two, b)).sample()
            if both is not None:
                return f"{one.name} and {two.name} both write byte {both[0][_BYTE]} of the buffer that they share"
    return None


def _row(b: Buffer) -> int:
    """Return the bytes of a row, the last axis."""
    size = b.shape[-1].const
    return packed_extent(b.dtype, size) if info(b.dtype).packed else size * numpy_dtype(b.dtype).itemsize


def _nbytes(b: Buffer) -> int:
    return _row(b) * prod(e.const for e in b.shape[:-1])


def _bytes(b: Buffer, s: Statement) -> Domain:
    """Return the bytes that a statement writes, as ``byte``, counted from the buffer's first."""
    index = s.assign.index
    at = Affine(0)
    for e, size in zip(index[:-1], b.shape[:-1], strict=True):
        at = at * size.const + e
    bits = info(b.dtype).bits
    size = max(1, bits // 8)
    last = index[-1] * size if bits >= 8 else index[-1] // (8 // bits)
    step = Affine.dim(_BYTE)
    inside = s.domain.add_dims([_BYTE]).constrain([Constraint(step), Constraint(size - 1 - step)])
    return inside.image([at * _row(b) + last + step], [_BYTE])

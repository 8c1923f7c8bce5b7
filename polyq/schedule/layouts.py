"""Layouts of inputs that are bound: their elements in the order in which a tile of lanes meets them.

A constant's layout is free. Where the lanes of a tile run along a dim of the result, its rows are interleaved so that a
tile reads one stretch of memory from front to back, whatever the order of the tensor's own axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim, FloorDiv
from polyq.affine.scalar import Cast, Load, walk
from polyq.affine.spec import Op
from polyq.schedule.draft import Draft, plain_dim, size_of
from polyq.schedule.isa import dot_for
from polyq.schedule.quantized import multiplies_integers

__all__ = ["Words", "free_operands", "lane_axis", "step_axis", "tile_rows", "walked_dims", "words_of"]

#: vectors of rows that lie together: tiles of fewer vectors read the same layout
MOST_VECTORS = 8
#: a packed tensor may be this much larger than the tensor, where rows are filled up to a whole tile
MOST_PADDING = 1.05


@dataclass(frozen=True, slots=True)
class Words:
    """Narrow integers as fields of 32-bit lanes: ``fields`` neighbours along the reduced dim ``along``.

    With ``parts`` neighbours lie in different parts of a word (two halves or four bytes), as instructions take them
    that multiply and add these.

    >>> [Words(8, "j", parts).field(Affine(5)).const for parts in (1, 2, 4)]
    [5, 6, 3]
    """

    fields: int
    along: str
    parts: int = 1

    def field(self, element: Affine) -> Affine:
        """Return which field holds an element of the dim."""
        each = self.fields // self.parts
        place = element % self.fields
        return place // self.parts + (place % self.parts) * each if self.parts > 1 else place

    def element(self, field: Affine) -> Affine:
        """Return which element of a word a field holds: the inverse of :meth:`field`."""
        each = self.fields // self.parts
        return (field % each) * self.parts + field // each if self.parts > 1 else field


def tile_rows(draft: Draft, extent: Affine) -> int:
    """Return how many rows lie together when an axis is packed, up to eight vectors; 0 where tiles would not fill."""
    size, lanes = size_of(extent), draft.target.lanes("f32")
    rows = (n * lanes for n in (MOST_VECTORS, 4, 2, 1))
    return next((r for r in rows if extent.is_constant and -(-size // r) * r <= MOST_PADDING * size), 0)


def free_operands(draft: Draft, op: Op) -> frozenset[str]:
    """Return the constants that ``op`` reads whose layout may change.

    They are inputs of known size, read at one place in ``op``, and by no statement of another tensor: it would need
    them as they are, and they would be held twice.
    """
    found: set[str] = set()
    for load in op.reads:
        name = load.tensor
        if name not in draft.constants or name in draft.spec.output_names or name not in draft.spec.input_names:
            continue
        if not all(e.is_constant for e in draft.spec.tensor(name).extents):
            continue
        alone = all(reader.target == op.target for reader in draft.spec.readers(name))
        if alone and len({r.index for r in op.reads if r.tensor == name}) == 1:
            found.add(name)
    return frozenset(found)


def walked_dims(op: Op, dim: str) -> list[str]:
    """Return the dims that a tile of lanes along ``dim`` walks: the reduced ones, or all others where none is."""
    return [d for d in op.dims if d != dim and (op.reduce is None or d in op.reduced) and op.extent(d) != Affine(1)]


def lane_axis(load: Load, dim: str) -> int | None:
    """Return the axis whose subscript is ``dim`` itself, if no other subscript depends on it."""
    at = [k for k, e in enumerate(load.index) if dim in e.dims()]
    return at[0] if len(at) == 1 and plain_dim(load.index[at[0]]) == dim else None


def words_of(draft: Draft, op: Op, dim: str, free: frozenset[str], order: Sequence[str] | None = None) -> Words | None:
    """Return how narrow constants fill words along a dim that is walked, with lanes along ``dim``, or ``None``.

    ``order`` is that of the walk, outermost first, where it is not the order of the op's dims.
    """
    integers = [r for r in op.reads if dtypes.is_int(r.dtype) and r.tensor in draft.quantized]
    narrow = [r for r in op.reads if dtypes.is_int(r.dtype) and dtypes.info(r.dtype).bits < 16 and r not in integers]
    bits = {dtypes.info(r.dtype).bits for r in narrow}
    if len(bits) != 1 or any(r.tensor not in free or lane_axis(r, dim) is None for r in narrow):
        return None
    if not all(_cast_to_f32(op, r) for r in narrow):
        return None
    fields = 32 // bits.pop()
    walked = list(order) if order is not None else walked_dims(op, dim)
    # the fields of a word are summed innermost: where the order of a sum stays, only its last dim can be taken apart
    for k in reversed(walked if draft.relaxed else walked[-1:]):
        extent = op.extent(k)
        if (
            extent.is_constant
            and extent.const % fields == 0
            and all(step_axis(r, k, fields, draft.spec.tensor(r.tensor).extents) is not None for r in narrow)
        ):
            return Words(fields, k, _parts(draft, narrow, integers) if multiplies_integers(op) else 1)
    return None


def _parts(draft: Draft, codes: Sequence[Load], others: Sequence[Load]) -> int:
    """Return how many products an instruction of the target adds up: four of bytes where it holds them, or two."""
    spans = [(dtypes.value_range(c.dtype), dtypes.value_range(o.dtype)) for c in codes for o in others]
    return 4 if spans and all(dot_for(draft.target.dots, 4, a, b) for a, b in spans) else 2


def _cast_to_f32(op: Op, load: Load) -> bool:
    return any(isinstance(n, Cast) and n.arg == load and n.dtype == "f32" for n in walk(op.body))


def step_axis(load: Load, dim: str, fields: int, shape: Sequence[Affine]) -> int | None:
    """Return the axis along which ``dim`` steps by one element from a multiple of ``fields`` on, if words fill it."""
    at = [k for k, e in enumerate(load.index) if dim in e.dims()]
    if len(at) != 1:
        return None
    e = load.index[at[0]]
    if any(isinstance(a, FloorDiv) for a, _ in e.terms) or e.coefficient(Dim(dim)) != 1 or e.const % fields:
        return None
    whole = shape[at[0]] % fields == Affine(0)
    return at[0] if whole and all(c % fields == 0 for a, c in e.terms if a != Dim(dim)) else None

"""Several tensors in one buffer: weights with their scales and zero points, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from polyq.affine import dtypes, layout_data
from polyq.affine.arrays import Array, pack, packed_extent, unpack
from polyq.affine.errors import ArgumentError, SpecError
from polyq.affine.expr import Affine
from polyq.affine.layout import BASE_ALIGNMENT, Layout
from polyq.affine.spec import Spec

__all__ = ["Part", "Record"]


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a record: its dtype, its layout, and where its share of a block begins, in bytes."""

    name: str
    dtype: str
    layout: Layout
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """A buffer of blocks, row-major over the first ``outer`` storage axes, which all parts have in common.

    A block has ``block`` bytes; each part has its share of it, the other storage axes of its layout, row-major from
    ``offset`` on. Make one by :meth:`of`. That no two elements share a bit is proven when it is made: each layout is
    injective, the shares lie inside of the block, and they do not overlap.

    >>> record = Record.of({"s": ("f16", Layout.of((4096, 128), "n g")),
    ...                     "w": ("u4", Layout.of((4096, 128, 32), "n g j").fields("split"))}, outer=2)
    >>> print(record)
    blocks of 18 bytes over (4096, 128): s f16 at 0 (2 bytes), w u4 at 2 (16 bytes)
    >>> print(record.layout("s"), record.layout("s").storage)
    (n, g) -> (n, g, 0) (4096, 128, 9)
    """

    parts: tuple[Part, ...]
    outer: int
    block: int

    def __post_init__(self) -> None:
        _check(self)

    @staticmethod
    def of(parts: Mapping[str, tuple[str, Layout]], outer: int, align: int | None = None) -> Record:
        """Return the record of tensors (name -> dtype and layout) whose blocks hold them one after another.

        Every share begins at a multiple of ``align`` bytes, by default of its element's size; so does every block, at a
        multiple of all of these.
        """
        made, end, whole = list[Part](), 0, 1
        for name, (dtype, layout) in parts.items():
            step = dtypes.numpy_dtype(dtype).itemsize if align is None else align
            if step < 1:
                raise SpecError(f"record: align={align}: expected a number of bytes of at least 1")
            whole = whole * step // gcd(whole, step)
            made.append(Part(name, dtype, layout, -(-end // step) * step))
            end = made[-1].offset + _share(made[-1], outer)
        return Record(tuple(made), outer, max(1, -(-end // whole) * whole))

    # ---- what it is
    def part(self, name: str) -> Part:
        """Return the part ``name``; :class:`SpecError` if there is none."""
        for p in self.parts:
            if p.name == name:
                return p
        raise SpecError(f"record: there is no tensor {name!r}; it holds {', '.join(p.name for p in self.parts)}")

    @property
    def blocks(self) -> tuple[Affine, ...]:
        """How many blocks there are along each common axis."""
        return self.parts[0].layout.extents[: self.outer]

    def layout(self, name: str) -> Layout:
        """Return the layout of one part in the whole buffer, seen as an array of the part's own elements.

        What the other parts occupy is padding there, which nothing reads.
        """
        p = self.part(name)
        return p.layout.then(_in_block(p, self.outer, *self._elements(p)))

    def _elements(self, p: Part) -> tuple[int, int]:
        """Return how many elements of a part a block has room for, and how many lie in front of its share."""
        bits = dtypes.info(p.dtype).bits
        if self.block * 8 % bits or p.offset * 8 % bits:
            raise SpecError(
                f"record: {p.name} begins at byte {p.offset} of blocks of {self.block} bytes, which are no multiples "
                f"of an element of {p.dtype} ({bits // 8} bytes); leave align= out to read it in place"
            )
        return self.block * 8 // bits, p.offset * 8 // bits

    def alignment(self, name: str) -> int:
        """Return the power of two of bytes, at most 64, that the address of each share is a multiple of.

        A buffer that polyq allocates begins at a multiple of 64.
        """
        step = gcd(self.part(name).offset, self.block if self.blocks else 0, BASE_ALIGNMENT)
        return step & -step

    def nbytes(self, **params: int) -> int:
        """Return the bytes of the buffer."""
        return self.block * prod(e.evaluate(None, params) for e in self.blocks)

    def stored(self, spec: Spec) -> Spec:
        """Return the program that reads all parts, which are inputs of the spec, out of one buffer.

        It is called with :meth:`views` of the buffer: the same memory once for each part, and nothing is copied.
        """
        for p in self.parts:
            known = next((t for t in spec.inputs if t.name == p.name), None)
            if known is None or known.dtype != p.dtype:
                what = "no input of the program" if known is None else f"{known} there"
                raise SpecError(f"record: {p.name} of {p.dtype} is {what}")
            spec = spec.stored(p.name, self.layout(p.name))
        return spec

    # ---- data
    def pack(self, arrays: Mapping[str, object], **params: int) -> Array:
        """Return the buffer, ``uint8`` of the blocks' shape and the bytes of one; sub-byte types come as codes.

        Gaps are 0, padding of a layout is its ``fill``.
        """
        if set(arrays) != {p.name for p in self.parts}:
            raise ArgumentError(
                f"record: expected arrays for {', '.join(p.name for p in self.parts)}, got {', '.join(arrays)}"
            )
        found = {p.name: np.asarray(arrays[p.name]) for p in self.parts}
        for p in self.parts:
            wanted = dtypes.numpy_dtype(p.dtype)
            if not dtypes.info(p.dtype).packed and found[p.name].dtype != wanted:
                raise ArgumentError(f"record: {p.name}: expected {wanted} ({p.dtype}), got {found[p.name].dtype}")
            params = layout_data.params_of(p.layout, found[p.name].shape, params)
        buffer = np.zeros((*(e.evaluate(None, params) for e in self.blocks), self.block), np.uint8)
        for p in self.parts:
            stored = layout_data.pack(p.layout, found[p.name], None, params)
            cells = stored.reshape((*stored.shape[: self.outer], *_inner(p, self.outer)))
            if dtypes.info(p.dtype).packed:
                cells = pack(p.dtype, cells)
            share = np.ascontiguousarray(cells).view(np.uint8).reshape((*buffer.shape[:-1], _share(p, self.outer)))
            buffer[..., p.offset : p.offset + _share(p, self.outer)] = share
        return buffer

    def unpack(self, buffer: object, **params: int) -> dict[str, Array]:
        """Return the tensors that lie in a buffer, the inverse of :meth:`pack`; parameters by name."""
        blocks = self._blocks_of(buffer, params)
        made: dict[str, Array] = {}
        for p in self.parts:
            share = np.ascontiguousarray(blocks[..., p.offset : p.offset + _share(p, self.outer)])
            inner = _inner(p, self.outer)
            if dtypes.info(p.dtype).packed:
                rows = share.reshape((*blocks.shape[:-1], *inner[:-1], packed_extent(p.dtype, inner[-1])))
                cells = unpack(p.dtype, rows, inner[-1])
            else:
                cells = share.view(dtypes.numpy_dtype(p.dtype))
            cells = cells.reshape(layout_data.sizes_of(p.layout.storage, params))
            made[p.name] = layout_data.unpack(p.layout, cells, None, params)
        return made

    def views(self, buffer: object, **params: int) -> dict[str, Array]:
        """Return the buffer once for each part, as an array of its elements: what a program of :meth:`stored` takes."""
        blocks = self._blocks_of(buffer, params)
        if not blocks.flags.c_contiguous:
            raise ArgumentError("record: a buffer with strides; pass a dense one")
        for p in self.parts:
            self._elements(p)
        kinds = {p.name: "u1" if dtypes.info(p.dtype).packed else dtypes.numpy_dtype(p.dtype) for p in self.parts}
        return {name: blocks.view(kind) for name, kind in kinds.items()}

    def _blocks_of(self, buffer: object, params: Mapping[str, int]) -> Array:
        given = np.asarray(buffer)
        missing = sorted({p for e in self.blocks for p in e.params()} - params.keys())
        if missing:
            raise ArgumentError(f"record: pass {', '.join(missing)} by name; a buffer does not determine it")
        shape = (*(e.evaluate(None, params) for e in self.blocks), self.block)
        if given.dtype != np.uint8 or given.shape not in (shape, (prod(shape),)):
            raise ArgumentError(f"record: expected uint8 of shape {shape} or flat, got {given.dtype} of {given.shape}")
        return given.reshape(shape)

    def __str__(self) -> str:
        shares = [f"{p.name} {p.dtype} at {p.offset} ({_share(p, self.outer)} bytes)" for p in self.parts]
        return f"blocks of {self.block} bytes over ({', '.join(map(str, self.blocks))}): {', '.join(shares)}"


# ---- shares of a block
def _inner(p: Part, outer: int) -> tuple[int, ...]:
    """Return the shape of a part's share; a sub-byte one has a last axis."""
    sizes = tuple(e.const for e in p.layout.extents[outer:])
    return sizes or ((1,) if dtypes.info(p.dtype).packed else ())


def _strides(p: Part, outer: int) -> tuple[int, ...]:
    """Return how many elements lie between neighbours along each axis of a share; rows begin at a byte."""
    inner = _inner(p, outer)
    if not inner:
        return ()
    row = (
        packed_extent(p.dtype, inner[-1]) * 8 // dtypes.info(p.dtype).bits if dtypes.info(p.dtype).packed else inner[-1]
    )
    return (*(row * prod(inner[k + 1 : -1]) for k in range(len(inner) - 1)), 1)


def _share(p: Part, outer: int) -> int:
    """Return the bytes of a part's share."""
    inner = _inner(p, outer)
    if dtypes.info(p.dtype).packed:
        return prod(inner[:-1]) * packed_extent(p.dtype, inner[-1])
    return prod(inner) * dtypes.numpy_dtype(p.dtype).itemsize


def _in_block(p: Part, outer: int, block: int, offset: int) -> Layout:
    """Return the layout from the part's storage to blocks of ``block`` elements, its share from ``offset`` on."""
    names = tuple(f"a{k}" for k in range(len(p.layout.storage)))
    inner, strides = tuple(e.const for e in p.layout.extents[outer:]), _strides(p, outer)
    cell, at = Affine.dim(f"s{outer}") - offset, Affine(offset)
    source = [Affine.dim(f"s{k}") for k in range(outer)]
    for k, (name, size) in enumerate(zip(names[outer:], inner, strict=True)):
        at += Affine.dim(name) * strides[k]
        source.append(cell // strides[k] % size if k else cell // strides[k])
    if inner and strides[0] > 1 and len(inner) > 1 and strides[-2] != inner[-1]:  # rows that end inside of a byte
        source[-1] = cell % strides[-2]
    place = (*(Affine.dim(n) for n in names[:outer]), at)
    return Layout(names, p.layout.storage, (*p.layout.storage[:outer], block), place, tuple(source), p.layout.fill)


def _check(record: Record) -> None:
    if not record.parts or len({p.name for p in record.parts}) != len(record.parts):
        raise SpecError(
            f"record: expected one or more tensors of different names, got {[p.name for p in record.parts]}"
        )
    first = record.parts[0]
    for p in record.parts:
        if not 0 <= record.outer <= len(p.layout.storage):
            raise SpecError(
                f"record: {p.name}: outer={record.outer}, but its storage {p.layout.storage} has fewer axes"
            )
        mine, common = p.layout.extents[: record.outer], first.layout.extents[: record.outer]
        if mine != common:
            raise SpecError(
                f"record: {first.name} has blocks ({_listed(common)}), {p.name} ({_listed(mine)}); their first "
                f"{record.outer} storage axes are to be the same"
            )
        varying = [e for e in p.layout.extents[record.outer :] if not e.is_constant]
        if varying:
            raise SpecError(f"record: {p.name}: {varying[0]} cells within a block; a block has a fixed size")
    ends = [(p.offset, p.offset + _share(p, record.outer), p) for p in record.parts]
    for k, (start, end, p) in enumerate(ends):
        if start < 0 or end > record.block:
            raise SpecError(f"record: {p.name} has the bytes {start} to {end}, outside of a block of {record.block}")
        for other_start, other_end, q in ends[:k]:
            if max(start, other_start) < min(end, other_end):
                at = max(start, other_start)
                raise SpecError(f"record: {q.name} and {p.name} share byte {at} of each block")


def _listed(extents: tuple[Affine, ...]) -> str:
    return ", ".join(map(str, extents))

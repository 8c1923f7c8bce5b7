"""Layouts: where each element of a tensor lies in memory, as an injective relation.

A :class:`Layout` maps logical indices to cells of a row-major storage array, by quasi-affine expressions, and carries
the inverse; that the two fit is proven when it is made. Cells without an element are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, isfinite, prod
from typing import Any

from polyq.affine import arrays, dtypes, layout_data
from polyq.affine.arrays import Array
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.layout_data import same_number
from polyq.affine.layout_inverse import block_order, box_of, drawing, empty_cell, inverse_of, problem, storage_of
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Tensor

__all__ = ["Layout", "pad_pitch"]

Shape = Sequence[int | str]
#: an address that polyq allocates is a multiple of this
BASE_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """An injective map from the elements of a tensor of ``shape`` to the cells of a row-major array of ``storage``.

    ``place`` gives the cell of an element, over ``dims``; ``source`` the element of a cell, over ``s0, s1, ...``.
    ``fill`` is what :meth:`pack` writes into padding, which nothing ever reads. Make one by :meth:`of` and the methods
    that change it, or by :meth:`parse`; :class:`SpecError` where two elements would share a cell, or one has none.

    >>> layout = Layout.of((4096, 4096), "n k").tile((0, 1), (32, 4))
    >>> print(layout, layout.storage)
    (n, k) -> (n//32, k//4, n%32, k%4) (128, 1024, 32, 4)
    """

    dims: tuple[str, ...]
    shape: tuple[int | str, ...]
    storage: tuple[int | str, ...]
    place: tuple[Affine, ...]
    source: tuple[Affine, ...]
    fill: int | float = 0

    def __post_init__(self) -> None:
        _check(self)

    # ---- making one
    @staticmethod
    def of(shape: Shape, dims: str | Sequence[str] | None = None, fill: int | float = 0) -> Layout:
        """Return the row-major layout; a shape entry is a number or the text of an expression of parameters.

        ``dims`` names the dims for printing: ``"n k"`` or ``("n", "k")``.
        """
        sizes = _entries(shape)
        names = [f"d{i}" for i in range(len(sizes))] if dims is None else dims
        named = tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names)
        if len(named) != len(sizes) or len(set(named)) != len(named):
            raise SpecError(f"layout of {len(sizes)} axes {sizes}: expected as many distinct dims, got {named}")
        return Layout(named, sizes, sizes, tuple(map(Affine.dim, named)), _cells(len(sizes)), fill)

    @staticmethod
    def parse(
        text: str, shape: Shape, storage: Shape | None = None, inverse: str | None = None, fill: int | float = 0
    ) -> Layout:
        """Return the layout that a map says, such as ``"(n, k) -> (n//32, n%32, k)"``.

        ``storage`` may be larger than what the elements need; ``inverse``, a map over the cells, is derived where it
        has a quasi-affine form.

        >>> print(Layout.parse("(n, k) -> (64*n + k)", (8, 60)).inverse_map)
        (s0) -> (s0//64, s0%64)
        """
        from polyq.affine.notation import parse_map

        given, sizes = parse_map(text), _entries(shape)
        if len(given.dims) != len(sizes):
            raise SpecError(f"layout {text}: {len(given.dims)} dims for the shape {sizes}")
        box = _box(given.dims, sizes)
        cells = storage_of(given, box) if storage is None else _entries(storage)
        if inverse is None:
            source = inverse_of(given, Tensor("", "u8", sizes).extents)
        else:
            back = parse_map(inverse)
            named = dict(zip(back.dims, _cells(len(back.dims)), strict=True))
            source = tuple(e.substitute(named) for e in back.results)
        return Layout(given.dims, sizes, cells, given.results, source, fill)

    def then(self, after: Layout) -> Layout:
        """Return this layout followed by one of its storage: ``after.place(self.place(element))``."""
        if tuple(map(str, after.shape)) != tuple(map(str, self.storage)):
            raise SpecError(f"layout {self} stores {self.storage}; {after} is a layout of {after.shape}")
        if not same_number(self.fill, after.fill) and self.padded and after.padded:
            raise SpecError(f"layout {self} pads with {self.fill}, {after} with {after.fill}: one value for both")
        ranges = _ranges(self.dims, self.shape)
        inner = dict(zip(after.dims, self.place, strict=True))
        outer = {f"s{i}": e for i, e in enumerate(after.source)}
        cells = _ranges([f"s{i}" for i in range(len(after.storage))], after.storage)
        return Layout(
            self.dims, self.shape, after.storage,
            tuple(e.substitute(inner).simplify(ranges) for e in after.place),
            tuple(e.substitute(outer).simplify(cells) for e in self.source),
            self.fill if self.padded else after.fill,
        )  # fmt: skip

    def _step(self, storage: Sequence[Affine], place: Sequence[Affine], source: Sequence[Affine], fill: Any) -> Layout:
        """Follow this layout by one whose dims are called as the cells here."""
        names = tuple(f"s{i}" for i in range(len(self.storage)))
        value = self.fill if fill is None else fill
        return self.then(Layout(names, self.storage, _texts(storage), tuple(place), tuple(source), value))

    def permute(self, order: Sequence[int]) -> Layout:
        """Return the layout whose storage axis ``i`` is axis ``order[i]`` of this one.

        >>> print(Layout.of((2, 3, 4), "a b c").permute((2, 0, 1)))
        (a, b, c) -> (c, a, b)
        """
        if sorted(order) != list(range(len(self.storage))):
            raise SpecError(f"permute({tuple(order)}): expected each axis of {self.storage} once")
        axes, cells = [Affine.dim(f"s{k}") for k in order], _cells(len(order))
        source = [cells[list(order).index(k)] for k in range(len(order))]
        return self._step([self.extents[k] for k in order], axes, source, None)

    def tile(
        self,
        inner_dims_pos: Sequence[int],
        inner_tiles: Sequence[int],
        outer_dims_perm: Sequence[int] | None = None,
        fill: int | float | None = None,
    ) -> Layout:
        """Return the layout in tiles, as ``linalg.pack`` has them: numbers of tiles, then the tiles' own axes.

        Axis ``inner_dims_pos[i]`` is cut into tiles of ``inner_tiles[i]``; the outer axes are permuted by
        ``outer_dims_perm`` (outer axis ``i`` is axis ``outer_dims_perm[i]``); incomplete tiles are padded.
        """
        rank = len(self.storage)
        tiles = dict(zip(inner_dims_pos, inner_tiles, strict=False))
        outer = list(range(rank)) if outer_dims_perm is None else list(outer_dims_perm)
        right = len(inner_dims_pos) == len(inner_tiles) == len(tiles) and all(0 <= k < rank for k in tiles)
        if not right or any(t < 1 for t in tiles.values()) or sorted(outer) != list(range(rank)):
            raise SpecError(
                f"tile(inner_dims_pos={tuple(inner_dims_pos)}, inner_tiles={tuple(inner_tiles)}, outer_dims_perm="
                f"{tuple(outer)}): expected distinct axes of {self.storage}, a tile of at least 1 for each of them, "
                "and each axis once in the permutation"
            )
        old = _cells(rank)
        sizes = [_tiles(self.extents[k], tiles.get(k, 1)) for k in outer] + [Affine(t) for t in tiles.values()]
        place = [old[k] // tiles.get(k, 1) for k in outer] + [old[k] % t for k, t in tiles.items()]
        source = [Affine.dim(f"s{outer.index(k)}") * tiles.get(k, 1) for k in range(rank)]
        for i, k in enumerate(tiles):
            source[k] += Affine.dim(f"s{rank + i}")
        return self._step(sizes, place, source, fill)

    def pad(self, storage: Shape, fill: int | float | None = None) -> Layout:
        """Return the layout in a larger array: as many axes, each at least as long; what is added is padding."""
        cells = _cells(len(self.storage))
        if len(storage) != len(cells):
            raise SpecError(f"pad({tuple(storage)}): {self.storage} has {len(cells)} axes")
        return self._step(Tensor("", "u8", _entries(storage)).extents, cells, cells, fill)

    def pitch(self, elements: int, fill: int | float | None = None) -> Layout:
        """Return the layout whose rows (the last axis) lie ``elements`` apart.

        >>> Layout.of(("m", 2048)).pitch(pad_pitch(2048, itemsize=4, line=128, sets=4)).storage
        ('m', 2080)
        """
        if not self.storage:
            raise SpecError("pitch: a scalar has no rows")
        return self.pad((*self.storage[:-1], elements), fill)

    def interleave(
        self, expression: str, block: int, axis: int = -1, inverse: str | None = None, fill: int | float | None = None
    ) -> Layout:
        """Return the layout with every ``block`` neighbours along a storage axis in another order.

        Element ``i`` of a block goes to position ``expression``, as ``"2*(i%16) + i//16"``, a permutation of the block;
        the axis is padded to whole blocks. ``inverse`` (of ``i`` too) is needed where none is found.
        """
        at = range(len(self.storage))[axis]
        there, back = block_order(expression, block, inverse)
        cells = _cells(len(self.storage))
        first, inside = cells[at] // block * block, {"i": cells[at] % block}
        place, source = ([*cells[:at], first + e.substitute(inside), *cells[at + 1 :]] for e in (there, back))
        sizes = list(self.extents)
        sizes[at] = _tiles(sizes[at], block) * block
        return self._step(sizes, place, source, fill)

    def fields(self, order: str, bits: int = 4, block: int = 32) -> Layout:
        """Return the layout with sub-byte elements of the last axis in another order than low bits first.

        ``"low"``: as polyq stores them; ``"high"``: the first element in the high bits of a byte; ``"split"``: each
        ``block`` elements in ``block * bits / 8`` bytes, the first part of them in the low bits of all these bytes, the
        next part in the bits above (halves, for 4 bits).

        >>> import numpy as np
        >>> Layout.of((2,)).fields("high").pack(np.array([2, 1]), dtype="u4")
        array([33], dtype=uint8)
        """
        count = 8 // bits
        if bits not in (1, 2, 4) or block % count or block < count or order not in ("low", "high", "split"):
            raise SpecError(
                f"fields({order!r}, bits={bits}, block={block}): expected 'low', 'high' or 'split', 1, 2 or 4 bits, "
                "and blocks of whole bytes"
            )
        if order == "low":
            return self
        if order == "high":
            return self.interleave(f"{count - 1} - i", count)
        return self.interleave(f"{count}*(i % {block // count}) + i // {block // count}", block)

    # ---- what it is
    @property
    def extents(self) -> tuple[Affine, ...]:
        """How many cells each storage axis has, as expressions of parameters."""
        return Tensor("", "u8", self.storage).extents

    @property
    def map(self) -> AffineMap:
        """The map from elements to cells."""
        return AffineMap(self.dims, self.place)

    @property
    def inverse_map(self) -> AffineMap:
        """The map from cells to elements; it means something for cells that hold one."""
        return AffineMap(tuple(f"s{i}" for i in range(len(self.storage))), self.source)

    @property
    def relation(self) -> Relation:
        """The pairs of an element and its cell."""
        return Relation.function(_box(self.dims, self.shape), self.place, self.inverse_map.dims)

    @property
    def holds_element(self) -> tuple[Constraint, ...]:
        """Constraints on a cell that say whether it holds an element; none where each does."""
        return _holds_element(self)

    @property
    def padded(self) -> bool:
        """Whether some cell holds no element."""
        return bool(self.holds_element)

    @property
    def offset(self) -> Affine:
        """The position of an element in the flat storage, in elements.

        >>> print(Layout.of((8, 8), "i j").pitch(10).offset)
        10*i + j
        """
        total = Affine(0)
        for k, (e, size) in enumerate(zip(self.place, self.extents, strict=True)):
            if k and not size.is_constant:
                raise SpecError(f"layout {self}: offsets are not affine, since axis {k} has {size} cells")
            total = (total * size.const if k else total) + e
        return total.simplify(_ranges(self.dims, self.shape))

    def equals(self, other: Layout) -> bool:
        """Whether both put the same elements into the same cells of equal storage, whatever the padding holds."""
        same = self.extents == other.extents and len(self.dims) == len(other.dims)
        return same and self.relation.equals(other.relation)

    def same_memory(self, other: Layout) -> bool:
        """Whether both put the same elements at the same distance from the beginning, whatever the storage's rank."""
        mine, yours = (Relation.function(_box(x.dims, x.shape), [x.offset], ["at"]) for x in (self, other))
        return len(self.dims) == len(other.dims) and mine.equals(yours)

    def inverse(self) -> Layout:
        """Return the layout from cells to elements; :class:`SpecError` where a cell holds none."""
        if self.padded:
            raise SpecError(f"layout {self} has no inverse: {empty_cell(self)} holds no element")
        back = dict(zip(self.dims, _cells(len(self.dims)), strict=True))
        place = tuple(e.substitute(back) for e in self.place)
        return Layout(self.inverse_map.dims, self.storage, self.shape, self.source, place, self.fill)

    # ---- numbers
    def storage_shape(self, dtype: str, /, **params: int) -> tuple[int, ...]:
        """Return the shape of the stored array: that of the cells, the last axis in bytes for a sub-byte type."""
        return arrays.storage_shape(Tensor("", dtype, self.storage), params)

    def nbytes(self, dtype: str, /, **params: int) -> int:
        """Return the bytes of the storage, padding included."""
        return prod(self.storage_shape(dtype, **params)) * dtypes.numpy_dtype(dtype).itemsize

    def alignment(self, dtype: str, axis: int = -1) -> int:
        """Return the power of two of bytes, at most 64, that the address of every run over ``axis`` is a multiple of.

        A run goes over all axes from ``axis`` on; storage that polyq allocates begins at a multiple of 64.
        """
        at = range(len(self.storage))[axis]
        *rows, last = (_content(e) for e in self.extents[at:])
        bits = dtypes.info(dtype).bits
        row = last * dtypes.numpy_dtype(dtype).itemsize
        if dtypes.info(dtype).packed:  # rows begin at a byte
            row = -(-last * bits // 8) if self.extents[-1].is_constant else max(1, last * bits // 8)
        run = row * prod(rows) if at else BASE_ALIGNMENT
        return min(run & -run, BASE_ALIGNMENT) or BASE_ALIGNMENT

    # ---- data
    def pack(self, array: object, /, dtype: str | None = None, **params: int) -> Array:
        """Return the elements of an array in their cells, and ``fill`` in the padding.

        With a sub-byte ``dtype`` the result is packed in ``uint8``, low bits first along the last axis.
        """
        return layout_data.pack(self, array, dtype, params)

    def unpack(self, stored: object, /, dtype: str | None = None, **params: int) -> Array:
        """Return the elements of a stored array, the inverse of :meth:`pack`; parameters of the shape by name."""
        return layout_data.unpack(self, stored, dtype, params)

    # ---- to look at
    def draw(self, *, most: int = 24, **params: int) -> str:
        """Return the storage as text: a line for each row, the index of its element in every cell, ``.`` for padding.

        >>> print(Layout.of((3, 2)).tile((0,), (2,)).draw())
        0 0: 0,0 1,0
        0 1: 0,1 1,1
        1 0: 2,0 .
        1 1: 2,1 .
        """
        return drawing(self, most, params)

    def __str__(self) -> str:
        return str(self.map)

    @property
    def _fill_text(self) -> str:
        plain = isinstance(self.fill, int) or isfinite(self.fill)
        return repr(self.fill) if plain else f"float({str(self.fill)!r})"

    def __repr__(self) -> str:
        parts = [
            repr(str(self)),
            f"shape={self.shape}",
            f"storage={self.storage}",
            f"inverse={str(self.inverse_map)!r}",
        ]
        return f"Layout.parse({', '.join(parts)}{f', fill={self._fill_text}' if self.fill else ''})"


def pad_pitch(elements: int, itemsize: int, line: int = 64, sets: int = 64) -> int:
    """Return a row pitch in elements that spreads the rows' beginnings over the cache's sets.

    Rows shorter than ``line * sets`` bytes stay; others are rounded up to a line, and get one line more if they are
    still a multiple of ``line * sets``.

    >>> [pad_pitch(n, itemsize=4, line=128, sets=4) for n in (2048, 1000, 96)]
    [2080, 1056, 96]
    """
    if line % itemsize:
        raise SpecError(f"pad_pitch: a line of {line} bytes does not hold whole elements of {itemsize} bytes")
    size = elements * itemsize
    if size < line * sets:
        return elements
    size = -(-size // line) * line
    return (size + line * (size % (line * sets) == 0)) // itemsize


# ---- small parts
def _entries(shape: Shape) -> tuple[int | str, ...]:
    from polyq.affine.notation import declare  # it checks each entry

    return declare("layout", "u8", tuple(shape)).shape


def _texts(extents: Sequence[Affine]) -> tuple[int | str, ...]:
    return tuple(e.const if e.is_constant else str(e) for e in extents)


def _cells(rank: int) -> tuple[Affine, ...]:
    return tuple(Affine.dim(f"s{i}") for i in range(rank))


def _tiles(extent: Affine, size: int) -> Affine:
    return (extent + (size - 1)) // size


def _ranges(dims: Sequence[str], shape: tuple[int | str, ...]) -> dict[str, tuple[int, int]]:
    return {d: (0, n - 1) for d, n in zip(dims, shape, strict=True) if isinstance(n, int)}


def _content(extent: Affine) -> int:
    """The greatest number that divides the extent for all values of the parameters."""
    return gcd(extent.const, *(c for _, c in extent.terms))


def _box(dims: Sequence[str], shape: tuple[int | str, ...]) -> Domain:
    return box_of(dims, Tensor("", "u8", shape).extents)


@lru_cache(maxsize=1024)
def _holds_element(layout: Layout) -> tuple[Constraint, ...]:
    """The cell's element is one of the tensor's, and its place is the cell; what always holds is left out."""
    box = _box(layout.inverse_map.dims, layout.storage)
    extents = Tensor("", "u8", layout.shape).extents
    spans = zip(layout.source, extents, strict=True)
    wanted = [c for e, n in spans for c in (Constraint(e), Constraint(n - 1 - e))]
    back = dict(zip(layout.dims, layout.source, strict=True))
    for k, e in enumerate(layout.place):
        wanted.append(Constraint(e.substitute(back) - Affine.dim(f"s{k}"), equality=True))
    return tuple(c for c in wanted if not (c.equality and c.expr == Affine(0)) and not box.implies(c))


def _check(layout: Layout) -> None:
    """Prove that every element has a cell of its own: ``source`` is a left inverse of ``place``."""
    if len(layout.dims) != len(layout.shape) or len(layout.source) != len(layout.shape):
        raise SpecError(f"layout {layout}: the inverse gives {len(layout.source)} indices for {len(layout.shape)} axes")
    if len(layout.place) != len(layout.storage):
        raise SpecError(f"layout {layout}: {len(layout.place)} indices for the storage {layout.storage}")
    reason = problem(layout, _box(layout.dims, layout.shape))
    if reason is not None:
        raise SpecError(f"layout {layout} of {layout.shape} in {layout.storage}: {reason}")


def with_dims(layout: Layout, names: Sequence[str]) -> Layout:
    """Return the layout with other names for its dims."""
    renamed = {d: Affine.dim(n) for d, n in zip(layout.dims, names, strict=True)}
    return replace(layout, dims=tuple(names), place=tuple(e.substitute(renamed) for e in layout.place))

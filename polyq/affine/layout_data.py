"""Arrays in a layout: packing and unpacking by numpy."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave the results of indexing partly unknown
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyq.affine import arrays, dtypes
from polyq.affine.arrays import Array
from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Tensor

if TYPE_CHECKING:
    from polyq.affine.layout import Layout

__all__ = ["cells_of", "pack", "params_of", "same_number", "sizes_of", "unpack"]


def same_number(a: Any, b: Any) -> bool:
    """Return whether two numbers are equal, or both are no number."""
    return bool(a == b or (a != a and b != b))


def cells_of(layout: Layout, shape: Sequence[int], params: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the index arrays of the cells of all elements, each of the logical ``shape``."""
    grid: dict[str, Any] = {
        d: np.arange(n).reshape([-1 if k == i else 1 for k in range(len(shape))])
        for i, (d, n) in enumerate(zip(layout.dims, shape, strict=True))
    }
    # every index has the whole shape when they are broadcast together
    full = np.zeros(tuple(shape), np.int8)
    return tuple(np.broadcast_arrays(*(np.asarray(e.evaluate(grid, params)) for e in layout.place), full)[:-1])


def pack(layout: Layout, array: object, dtype: str | None, given: Mapping[str, int]) -> Array:
    """Return the elements of an array in their cells, and the layout's ``fill`` in the padding."""
    elements = np.asarray(array)
    known = params_of(layout, elements.shape, given)
    value = np.asarray(layout.fill).astype(elements.dtype)
    if not same_number(value, layout.fill):
        raise ArgumentError(f"pack: the padding {layout.fill} is no value of {elements.dtype}")
    cells = np.full(sizes_of(layout.storage, known), value, elements.dtype)
    cells[cells_of(layout, elements.shape, known)] = elements
    return arrays.pack(dtype, cells) if dtype is not None and dtypes.info(dtype).packed else cells


def unpack(layout: Layout, stored: object, dtype: str | None, params: Mapping[str, int]) -> Array:
    """Return the elements of a stored array."""
    cells = np.asarray(stored)
    missing = _parameters(layout) - params.keys()
    if missing:
        names = ", ".join(sorted(missing))
        raise ArgumentError(f"unpack: pass {names} by name; a padded array does not determine it")
    expected = layout.storage_shape(dtype or "u8", **params)
    if cells.shape != expected:
        raise ArgumentError(f"unpack: expected the stored shape {expected}, got {cells.shape}")
    if dtype is not None and dtypes.info(dtype).packed:
        cells = arrays.unpack(dtype, cells, sizes_of(layout.storage, params)[-1])
    return cells[cells_of(layout, sizes_of(layout.shape, params), params)]


def params_of(layout: Layout, shape: Sequence[int], given: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters that the shape of an array determines, beside the given ones."""
    known = dict(given)
    if len(shape) == len(layout.shape):
        for entry, size in zip(layout.shape, shape, strict=True):
            if isinstance(entry, str) and entry.isidentifier():
                known.setdefault(entry, size)
        missing = _parameters(layout) - known.keys()
        if missing:
            raise ArgumentError(f"pack: pass {', '.join(sorted(missing))} by name")
    if len(shape) != len(layout.shape) or sizes_of(layout.shape, known) != tuple(shape):
        raise ArgumentError(f"pack: this is a layout of {layout.shape}, got an array of shape {tuple(shape)}")
    return known


def _parameters(layout: Layout) -> set[str]:
    return {p for e in Tensor("", "u8", layout.shape).extents for p in e.params()}


def sizes_of(shape: tuple[int | str, ...], params: Mapping[str, int]) -> tuple[int, ...]:
    """Return the entries of a shape as numbers."""
    return arrays.shape_of(Tensor("", "u8", shape), params)

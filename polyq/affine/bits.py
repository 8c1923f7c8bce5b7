"""Elements that numpy has no type for, as bits: sub-byte integers in bytes, bf16 in the upper half of an f32."""

from __future__ import annotations

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave reshape, view and clip partly unknown
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyq.affine.dtypes import info

__all__ = ["pack", "packed_extent", "round_bf16", "unpack", "wrap"]

Array = NDArray[Any]


def packed_extent(dtype: str, count: int) -> int:
    """Return the bytes of a row of ``count`` elements of a sub-byte type: ``ceil(count * bits / 8)``."""
    return -(-count * info(dtype).bits // 8)


# ---- sub-byte types and bf16
def unpack(dtype: str, array: Array, count: int) -> Array:
    """Return the ``count`` elements of each row of a packed array, low bits first, as ``uint8`` or ``int8``.

    >>> unpack("u4", np.array([0x21], np.uint8), 2), unpack("i4", np.array([0xF8], np.uint8), 2)
    (array([1, 2], dtype=uint8), array([-8, -1], dtype=int8))
    """
    d = info(dtype)
    fields = 8 // d.bits
    shifts = np.arange(fields, dtype=np.uint8) * np.uint8(d.bits)
    codes = (array[..., None] >> shifts) & np.uint8((1 << d.bits) - 1)
    if array.ndim == 0:
        return wrap(dtype, codes[0])
    flat = codes.reshape(*array.shape[:-1], array.shape[-1] * fields)[..., :count]
    return wrap(dtype, flat)


def pack(dtype: str, array: Array) -> Array:
    """Return logical elements packed along the last axis, low bits first, each row padded to a byte with zeros.

    >>> pack("i4", np.array([1, -1, 2], np.int8))
    array([241,   2], dtype=uint8)
    """
    d = info(dtype)
    fields = 8 // d.bits
    codes = array.astype(np.uint8) & np.uint8((1 << d.bits) - 1)
    if array.ndim == 0:
        return codes
    size = packed_extent(dtype, array.shape[-1])
    padded = np.zeros((*array.shape[:-1], size * fields), np.uint8)
    padded[..., : array.shape[-1]] = codes
    out = np.zeros((*array.shape[:-1], size), np.uint8)
    for field in range(fields):
        out |= padded[..., field::fields] << np.uint8(field * d.bits)
    return out


def wrap(dtype: str, values: Array) -> Array:
    """Reduce 8-bit integers to the width of a sub-byte type, modulo ``2**bits``; other dtypes come back as they are.

    >>> wrap("i4", np.array([7, 8, 9], np.int8))
    array([ 7, -8, -7], dtype=int8)
    """
    d = info(dtype)
    if not d.packed:
        return values
    mask, half = (1 << d.bits) - 1, 1 << (d.bits - 1)
    low = values.astype(np.uint8) & np.uint8(mask)
    if d.kind == "u":
        return low
    return (low ^ np.uint8(half)).astype(np.int8) - np.int8(half)


def round_bf16(values: Array) -> Array:
    """Round ``float32`` or ``float64`` values once to bf16 (to nearest, ties to even); returns ``float32``.

    >>> round_bf16(np.array([1.00390625, 1.01171875, 3.4e38], np.float32))
    array([1.      , 1.015625,      inf], dtype=float32)
    """
    if values.dtype == np.float64:
        values = _odd_f32(values)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(values.shape)
    bias = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + bias) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded)


def _odd_f32(values: Array) -> Array:
    """Round ``float64`` to ``float32`` to odd: a second rounding, to a narrower type, is then right (Boldo 2008)."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        near = values.astype(np.float32)
        back = near.astype(np.float64)
    away = np.abs(back) > np.abs(values)
    bits = np.ascontiguousarray(near).view(np.uint32).reshape(near.shape)
    truncated = bits - away.astype(np.uint32)  # the magnitude's neighbour towards zero
    odd = np.where(back == values, bits, truncated | np.uint32(1))
    return np.where(np.isnan(values), near, odd.astype(np.uint32).view(np.float32))

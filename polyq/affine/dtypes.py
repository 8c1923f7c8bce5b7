"""The element types of tensors, and how each is stored.

A dtype is its name, a plain string; :func:`info` gives its properties. Sub-byte types are stored packed in ``uint8``
along the last axis, low bits first, each row padded to a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["DTYPES", "DType", "info", "is_float", "is_int", "numpy_dtype", "value_range"]


@dataclass(frozen=True, slots=True)
class DType:
    """Properties of one element type: ``kind`` is ``"u"``, ``"i"``, ``"f"`` or ``"b"`` and ``bits`` its width."""

    name: str
    kind: str
    bits: int

    @property
    def packed(self) -> bool:
        """Whether several elements share one byte."""
        return self.bits < 8 and self.kind != "b"


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        *(DType(f"u{bits}", "u", bits) for bits in (2, 4, 8, 16, 32, 64)),
        *(DType(f"i{bits}", "i", bits) for bits in (2, 4, 8, 16, 32, 64)),
        DType("f16", "f", 16),
        DType("bf16", "f", 16),
        DType("f32", "f", 32),
        DType("f64", "f", 64),
        DType("bool", "b", 8),
    )
}


def info(name: str) -> DType:
    """Return the properties of dtype ``name``.

    >>> info("u4")
    DType(name='u4', kind='u', bits=4)
    """
    return DTYPES[name]


def is_float(name: str) -> bool:
    """Whether ``name`` is a floating-point type."""
    return DTYPES[name].kind == "f"


def is_int(name: str) -> bool:
    """Whether ``name`` is an integer type (``bool`` is none)."""
    return DTYPES[name].kind in "ui"


def value_range(name: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type or of ``bool``.

    >>> value_range("i4"), value_range("u8")
    ((-8, 7), (0, 255))
    """
    d = DTYPES[name]
    if d.kind == "b":
        return 0, 1
    if d.kind == "u":
        return 0, (1 << d.bits) - 1
    return -(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1


def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype that holds elements of ``name`` in memory: packed types give ``uint8``, bf16 ``uint16``.

    >>> numpy_dtype("u4"), numpy_dtype("f32")
    (dtype('uint8'), dtype('float32'))
    """
    d = DTYPES[name]
    if d.packed:
        return np.dtype(np.uint8)
    if d.kind == "b":
        return np.dtype(np.bool_)
    if name == "bf16":
        return np.dtype(np.uint16)
    return np.dtype(f"{'float' if d.kind == 'f' else 'uint' if d.kind == 'u' else 'int'}{d.bits}")

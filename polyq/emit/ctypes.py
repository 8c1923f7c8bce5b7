"""C names of element types and vectors, the typedefs that declare them, and C expressions as values.

Values are computed in a *compute type*: integers and f32, f64 as they are; f16 and bf16 in f32, rounded after each
operation; sub-byte integers in the byte type of the same sign; bool vectors as 32-bit masks (0 or -1), bool scalars as
int.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyq.affine import dtypes

__all__ = ["Value", "compute_type", "scalar_name", "storage_type", "stored_unit", "type_name", "typedefs", "width"]

_SCALARS = {
    "u8": "uint8_t", "i8": "int8_t", "u16": "uint16_t", "i16": "int16_t", "u32": "uint32_t", "i32": "int32_t",
    "u64": "uint64_t", "i64": "int64_t", "f32": "float", "f64": "double", "mask": "int32_t",
}  # fmt: skip

#: how loosely an expression binds: what a value's text needs no parentheses for
ATOM, UNARY, PRODUCT, SUM, LOOSE = range(5)


@dataclass(frozen=True, slots=True)
class Value:
    """A C expression: its text, its compute type, its lanes (1 is a scalar) and how loosely it binds."""

    text: str
    dtype: str
    lanes: int
    rank: int = ATOM

    @property
    def is_name(self) -> bool:
        """Whether the value is a variable."""
        return self.text.isidentifier()

    def within(self, rank: int) -> str:
        """Return the text, in parentheses if it binds more loosely than ``rank``.

        >>> Value("a + b", "f32", 1, SUM).within(PRODUCT), Value("a * b", "f32", 1, PRODUCT).within(SUM)
        ('(a + b)', 'a * b')
        """
        return f"({self.text})" if self.rank > rank else self.text


def compute_type(dtype: str) -> str:
    """Return the type in which values of ``dtype`` are computed.

    >>> compute_type("bf16"), compute_type("u4"), compute_type("bool")
    ('f32', 'u8', 'mask')
    """
    d = dtypes.info(dtype)
    if d.kind == "b":
        return "mask"
    if d.kind == "f":
        return "f64" if d.bits == 64 else "f32"
    return f"{d.kind}{max(d.bits, 8)}"


def stored_unit(dtype: str) -> str:
    """Return the compute type of one stored unit: bytes for packed types and bool, 16-bit patterns for f16 and bf16.

    >>> stored_unit("i4"), stored_unit("f16"), stored_unit("i32")
    ('u8', 'u16', 'i32')
    """
    d = dtypes.info(dtype)
    if d.kind == "b" or d.packed:
        return "u8"
    return "u16" if d.kind == "f" and d.bits == 16 else dtype


def storage_type(dtype: str) -> str:
    """Return the C scalar type of one stored unit.

    >>> storage_type("u4"), storage_type("bf16")
    ('uint8_t', 'uint16_t')
    """
    return _SCALARS[stored_unit(dtype)]


def scalar_name(compute: str) -> str:
    """Return the C name of a scalar of a compute type."""
    return _SCALARS[compute]


def type_name(compute: str, lanes: int) -> str:
    """Return the C name of a value: ``f32x8`` for vectors.

    >>> type_name("f32", 8), type_name("mask", 8), type_name("u8", 1)
    ('f32x8', 'i32x8', 'uint8_t')
    """
    if lanes == 1:
        return _SCALARS[compute]
    return f"{'i32' if compute == 'mask' else compute}x{lanes}"


def width(compute: str) -> int:
    """Return the bytes of one lane."""
    return 4 if compute == "mask" else dtypes.info(compute).bits // 8


def typedefs(kinds: set[tuple[str, int]]) -> list[str]:
    """Return declarations of the vector types (compute type, lanes), each with its unaligned form ``_u``."""
    lines: dict[str, None] = {}
    for compute, lanes in sorted(kinds):
        name, size, scalar = type_name(compute, lanes), width(compute) * lanes, _SCALARS[compute]
        lines[f"typedef {scalar} {name} __attribute__((vector_size({size})));"] = None
        lines[f"typedef {scalar} {name}_u __attribute__((vector_size({size}), aligned(1), may_alias));"] = None
    return list(lines)

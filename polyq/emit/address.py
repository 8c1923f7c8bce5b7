"""Where things are: C names, affine expressions in C, storage of buffers and offsets into it.

Index arithmetic is 64-bit throughout: every loop variable and parameter is an ``int64_t``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim, FloorDiv, Param
from polyq.schedule.loopnest import Buffer

__all__ = ["Memory", "Names", "Offset", "Registers", "Storage", "affine_text", "memory_of", "offset_of"]

_RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof "
    "runtime buffers params threads thread shared arena main abs exp log sqrt tanh erf floor rint min max round div "
    "y0 y1 yn j0 j1 jn gamma remainder index signal time clock pow sin cos tan NULL".split()
)


class Names:
    """Gives every name of a program a C identifier of its own, as close to the given one as C allows.

    >>> names = Names(); names("x.1"), names("x_1"), names("for"), names("x.1")
    ('x_1', 'x_1_2', 'for_2', 'x_1')
    """

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the identifier of ``name``, the same each time."""
        if name not in self._of:
            self._of[name] = self.fresh(name)
        return self._of[name]

    def fresh(self, stem: str) -> str:
        """Return a new identifier that begins like ``stem``."""
        clean = re.sub(r"[^A-Za-z0-9_]", "_", stem) or "v"
        if not clean[0].isalpha():
            clean = "v" + clean
        candidate, count = clean, 1
        while candidate in self._taken or candidate in _RESERVED or candidate.endswith("_t") or "__" in candidate:
            count += 1
            candidate = f"{clean.replace('__', '_')}_{count}"
            clean = clean.replace("__", "_")
        self._taken.add(candidate)
        return candidate


def affine_text(e: Affine, names: Names) -> str:
    """Return ``e`` as a C expression of type ``int64_t``; a floor by a power of two is an arithmetic shift."""
    parts: list[str] = []
    for atom, c in e.terms:
        match atom:
            case Dim(name):
                text = names(f"dim {name}")
            case Param(name):
                text = names(f"param {name}")
            case FloorDiv(numerator, divisor):
                inner = affine_text(numerator, names)
                power = divisor & (divisor - 1) == 0
                text = f"(({inner}) >> {divisor.bit_length() - 1})" if power else f"floordiv_i64({inner}, {divisor})"
        parts.append((" - " if c < 0 else " + ") + (text if abs(c) == 1 else f"{abs(c)} * {text}"))
    if e.const or not parts:
        parts.append((" - " if e.const < 0 else " + ") + _integer(abs(e.const)))
    text = "".join(parts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _integer(value: int) -> str:
    return str(value) if value < 1 << 31 else f"INT64_C({value})"


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer behind a pointer. ``strides`` are in elements (in bytes for packed types, but for the last dim)."""

    pointer: str
    dtype: str
    strides: tuple[int | str, ...]
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Registers:
    """A scratch buffer that is a set of named variables, one per cell or, with ``lanes``, one per block of lanes."""

    prefix: str
    dtype: str
    lanes: int


Storage = Memory | Registers


@dataclass(frozen=True, slots=True)
class Offset:
    """``known + sum(index * stride)`` in elements; for packed types ``row`` bytes plus ``known`` elements in the row."""

    known: Affine
    symbolic: tuple[tuple[Affine, str], ...]

    def text(self, names: Names) -> str:
        """Return the offset in C."""
        parts = [f"({affine_text(e, names)}) * {s}" for e, s in self.symbolic]
        if not self.known.is_constant or self.known.const or not parts:
            parts.append(affine_text(self.known, names))
        return " + ".join(parts)

    def stride(self, var: str) -> int | None:
        """Return the step of the offset per step of ``var``; ``None`` where it is not constant."""
        if any(var in e.dims() for e, _ in self.symbolic):
            return None
        inside = any(isinstance(a, FloorDiv) and var in a.numerator.dims() for a, _ in self.known.terms)
        return None if inside else self.known.coefficient(Dim(var))


def row_bytes(dtype: str, last: Affine) -> Affine:
    """Return the bytes of a packed row of ``last`` elements."""
    bits = dtypes.info(dtype).bits
    return (last * bits + 7) // 8


def memory_of(buffer: Buffer, pointer: str, names: Names, declare: dict[str, str], stream: bool = False) -> Memory:
    """Return dense row-major storage; symbolic strides get a name, and ``declare`` its value in C."""
    packed = dtypes.info(buffer.dtype).packed
    strides: list[int | str] = []
    size: int | str = 1
    for position in reversed(range(len(buffer.shape))):
        extent = buffer.shape[position]
        strides.append(size)
        if packed and position == len(buffer.shape) - 1:
            extent = row_bytes(buffer.dtype, extent)
        if isinstance(size, int) and extent.is_constant:
            size = size * extent.const
        else:
            value = affine_text(extent, names)
            text = f"({value})" if size == 1 else f"({value}) * {size}"
            if position == 0:
                break
            name = names.fresh(f"{buffer.name}_stride{position - 1}")
            declare[name] = text
            size = name
    return Memory(pointer, buffer.dtype, tuple(reversed(strides)), stream)


def offset_of(memory: Memory, index: tuple[Affine, ...], packed_row: bool = False) -> Offset:
    """Return the offset of an element; for packed types with ``packed_row`` only the row's part, in bytes."""
    known, symbolic = Affine(0), []
    last = len(index) - 1
    for position, (e, stride) in enumerate(zip(index, memory.strides, strict=True)):
        if packed_row and position == last:
            continue
        if isinstance(stride, int):
            known = known + e * stride
        elif e != Affine(0):
            symbolic.append((e, stride))
    return Offset(known, tuple(symbolic))


def resolve(e: Affine, bind: Mapping[str, Affine]) -> Affine:
    """Return ``e`` with unrolled and renamed loop variables replaced."""
    return e.substitute(bind) if bind else e

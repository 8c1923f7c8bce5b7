"""Where things are: C names, affine expressions in C, storage of buffers and offsets into it.

Index arithmetic is 64-bit throughout: every loop variable and parameter is an ``int64_t``.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim, FloorDiv, Param
from polyq.schedule.loopnest import Buffer

__all__ = [
    "Memory", "Names", "Offset", "Registers", "Storage", "affine_text", "constant_shape", "factor_text", "memory_of",
    "offset_of", "stem",
]  # fmt: skip

#: C's keywords, names that generated functions use themselves, and functions that compilers know without a declaration
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|asm|typeof|"
    "runtime|buffers|params|threads|part|parts|argument|shared|given|failed|arena|first|count|work|most|main|linux|unix|"
    "NULL|abs|div|labs|remainder|index|signal|time|clock|"
    "acos|asin|atan|ceil|cos|cosh|exp|erf|erfc|fabs|floor|fmod|hypot|log|pow|rint|round|sin|sinh|sqrt|tan|tanh|trunc|"
    "gamma|lgamma|tgamma|y0|y1|yn|j0|j1|jn|fma|fmax|fmin|scalb|significand|drem|finite"
)
#: names of the typedefs and helper functions that a module declares; a name of the program that looks alike is changed
_OURS = re.compile(
    r"([uif]\d+|b?f16)(x\d+)?(_u)?$|polyq_|region_|run_region_|field_|stream|KEEP|ARENA_|INT\d|UINT\d|_|"
    r"(splat|widen|narrow|first_lanes|select|load|store|fold|convert|round|from|to|add|mul|min|max|floordiv|mod|exp|log|"
    r"tanh|madd|spread|both|ones|"
    r"erf|sqrt|floor|rint|fabs|index|ldexp|odd|reverse|u8|i8|u16|i16|u32|i32|u64|i64)_"
)


class Names:
    """Gives every name of a program a C identifier of its own, as close to the given one as C allows.

    Names made inside ``with names.scope():`` are free again afterwards, as C's blocks have it.

    >>> names = Names(); names("x.1"), names("x_1"), names("for"), names("x.1")
    ('x_1', 'x_1_2', 'for_2', 'x_1')
    """

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._taken: set[str] = set()
        self._open: list[list[str]] = [[]]

    def __call__(self, name: str, stem: str | None = None) -> str:
        """Return the identifier of ``name``, the same each time; a new one begins like ``stem``."""
        if name not in self._of:
            self._of[name] = self.fresh(name if stem is None else stem)
        return self._of[name]

    def fresh(self, stem: str) -> str:
        """Return a new identifier that begins like ``stem``."""
        clean = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", stem)) or "v"
        if not clean[0].isalpha() or _OURS.match(clean):
            clean = f"v{clean}" if clean[0] == "_" else f"v_{clean}"
        candidate, count = clean, 1
        while candidate in self._taken or _RESERVED.fullmatch(candidate) or candidate.endswith("_t"):
            count += 1
            candidate = f"{clean}_{count}"
        self._taken.add(candidate)
        self._open[-1].append(candidate)
        return candidate

    def family(self, stem: str, suffixes: Sequence[str]) -> str:
        """Return a new identifier such that it, followed by any of the suffixes, is new as well.

        >>> names = Names(); names("acc_2_0"), names.family("acc", ["_2_0", "_2_1"])
        ('acc_2_0', 'acc_2')
        """
        while True:
            prefix = self.fresh(stem)
            members = {f"{prefix}{suffix}" for suffix in suffixes} - {prefix}
            if not members & self._taken:
                self._taken |= members
                self._open[-1] += members
                return prefix

    @contextmanager
    def scope(self) -> Generator[None, None, None]:
        """Open a block of C."""
        self._open.append([])
        try:
            yield
        finally:
            gone = set(self._open.pop())
            self._taken -= gone
            self._of = {name: c for name, c in self._of.items() if c not in gone}

    def reserve(self, identifier: str) -> None:
        """Keep an identifier from being given out."""
        self._taken.add(identifier)

    def bind(self, name: str, identifier: str) -> None:
        """Let ``name`` be an identifier that is there already."""
        self._of[name] = identifier

    def loop(self, var: str) -> str:
        """Return a new identifier for a loop variable: the dim's own name where no loop around uses it."""
        return self(f"dim {var}", stem(var))


def stem(name: str) -> str:
    """Return a name without the number that made it unique.

    >>> stem("acc_2"), stem("x1")
    ('acc', 'x1')
    """
    return re.sub(r"(?<=.)_\d+$", "", name)


def affine_text(e: Affine, names: Names) -> str:
    """Return ``e`` as a C expression of type ``int64_t``; a floor by a power of two is an arithmetic shift."""
    parts: list[str] = []
    for atom, c in e.terms:
        match atom:
            case Dim(name):
                text = names(f"dim {name}", name)
            case Param(name):
                text = names(f"param {name}", name)
            case FloorDiv(numerator, divisor):
                inner = affine_text(numerator, names)
                power = divisor & (divisor - 1) == 0
                plain = inner if inner.isidentifier() else f"({inner})"
                text = f"({plain} >> {divisor.bit_length() - 1})" if power else f"index_floor({inner}, {divisor})"
        parts.append((" - " if c < 0 else " + ") + (text if abs(c) == 1 else f"{_integer(abs(c))} * {text}"))
    if e.const or not parts:
        parts.append((" - " if e.const < 0 else " + ") + _integer(abs(e.const)))
    text = "".join(parts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def factor_text(e: Affine, names: Names) -> str:
    """Return ``e`` as a factor of a product."""
    text = affine_text(e, names)
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _integer(value: int) -> str:
    return str(value) if value < 1 << 31 else f"INT64_C({value})"


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer behind a pointer.

    ``strides`` are in elements (in bytes for packed types, but for the last dim); ``row`` is the bytes of one row along
    the last axis. ``stream`` is the C variable that says
    whether the buffer's rows are aligned for stores past the cache; empty where it is stored the usual way.
    """

    pointer: str
    dtype: str
    strides: tuple[int | str, ...]
    row: Affine
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Registers:
    """A scratch buffer that is a set of named variables, one per cell or, with ``lanes``, one per block of lanes.

    The lanes lie along ``axis``; in paths this axis comes last.
    """

    prefix: str
    dtype: str
    lanes: int
    blocks: int = 1
    axis: int = -1

    def path(self, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Return subscripts in the order of paths.

        >>> r = Registers("t", "f32", 8, axis=0); [str(e) for e in r.path((Affine.dim("i"), Affine(3)))]
        ['3', 'i']
        """
        at = self.axis % max(len(index), 1)
        return (*index[:at], *index[at + 1 :], index[at]) if index else ()

    def variable(self, path: tuple[int, ...]) -> str:
        """Return the variable of a cell or block of lanes; a single block along the axis of lanes needs no number."""
        shown = path[:-1] if self.lanes and self.blocks == 1 else path
        return "_".join([self.prefix, *map(str, shown)])


Storage = Memory | Registers


@dataclass(frozen=True, slots=True)
class Offset:
    """``known + sum(index * stride)`` in elements; for packed types the bytes of a row."""

    known: Affine
    symbolic: tuple[tuple[Affine, str], ...]

    def text(self, names: Names) -> str:
        """Return the offset in C."""
        parts = [f"{factor_text(e, names)} * {s}" for e, s in self.symbolic]
        if self.known != Affine(0) or not parts:
            known = affine_text(self.known, names)
            parts.append(f"({known})" if known.startswith("-") and parts else known)
        return " + ".join(parts)

    def plus(self, pointer: str, names: Names) -> str:
        """Return the address in C."""
        text = self.text(names)
        if text == "0":
            return pointer
        return f"{pointer} - {text[1:]}" if re.fullmatch(r"-\w+", text) else f"{pointer} + {text}"

    def stride(self, var: str) -> int | None:
        """Return the step of the offset per step of ``var``; ``None`` where it is not constant."""
        if any(var in e.dims() for e, _ in self.symbolic):
            return None
        inside = any(isinstance(a, FloorDiv) and var in a.numerator.dims() for a, _ in self.known.terms)
        return None if inside else self.known.coefficient(Dim(var))

    def at(self, var: str, value: Affine) -> Offset:
        """Return the offset for one value of a loop variable."""
        known = self.known.substitute({var: value})
        return replace(self, known=known, symbolic=tuple((e.substitute({var: value}), s) for e, s in self.symbolic))

    def multiple_of(self, count: int) -> bool:
        """Whether the offset is a multiple of ``count`` elements, if symbolic strides are."""
        return self.known.const % count == 0 and all(c % count == 0 for _, c in self.known.terms)


def row_bytes(dtype: str, last: Affine) -> Affine:
    """Return the bytes of a packed row of ``last`` elements."""
    bits = dtypes.info(dtype).bits
    return (last * bits + 7) // 8


def constant_shape(buffer: Buffer) -> tuple[int, ...]:
    """Return the shape of a buffer with constant extents."""
    return tuple(e.const for e in buffer.shape)


def memory_of(buffer: Buffer, pointer: str, names: Names, declare: dict[str, str]) -> Memory:
    """Return dense row-major storage; symbolic strides get a name, and ``declare`` its value in C."""
    packed = dtypes.info(buffer.dtype).packed
    strides: list[int | str] = []
    size: int | str = 1
    for position in reversed(range(len(buffer.shape))):
        extent = buffer.shape[position]
        strides.append(size)
        if position == 0:
            break
        if packed and position == len(buffer.shape) - 1:
            extent = row_bytes(buffer.dtype, extent)
        if isinstance(size, int) and extent.is_constant:
            size = size * extent.const
        else:
            text = affine_text(extent, names) if size == 1 else f"{factor_text(extent, names)} * {size}"
            name = names.fresh(f"{buffer.name}_stride{position - 1}")
            declare[name] = text
            size = name
    return Memory(pointer, buffer.dtype, tuple(reversed(strides)), _row(buffer))


def _row(buffer: Buffer) -> Affine:
    if not buffer.shape:
        return Affine(0)
    if dtypes.info(buffer.dtype).packed:
        return row_bytes(buffer.dtype, buffer.shape[-1])
    return buffer.shape[-1] * (dtypes.info(buffer.dtype).bits // 8)


def offset_of(memory: Memory, index: tuple[Affine, ...], packed_row: bool = False) -> Offset:
    """Return the offset of an element; for packed types with ``packed_row`` only the row's part, in bytes."""
    known = Affine(0)
    symbolic: list[tuple[Affine, str]] = []
    last = len(index) - 1
    for position, (e, stride) in enumerate(zip(index, memory.strides, strict=True)):
        if packed_row and position == last:
            continue
        if isinstance(stride, int):
            known = known + e * stride
        elif e != Affine(0):
            symbolic.append((e, stride))
    return Offset(known, tuple(symbolic))

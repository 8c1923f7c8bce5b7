"""The loop tree as text, to be read in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyq.affine.spec import Spec
from polyq.schedule.display.tree import (
    REMAINDER,
    Axis,
    Line,
    LoopLine,
    ScratchLine,
    Statement,
    Storage,
    Touch,
    WhereLine,
    tree_of,
)  # fmt: skip
from polyq.schedule.loopnest import LoopNest

__all__ = ["byte_size", "head_text", "loop_tree", "statement_text"]

#: columns; longer statements are broken after their loops, longer lists between their entries
WIDTH = 118
_COLUMN = 36  # where footprints begin, if they fit beside their loop


def loop_tree(nest: LoopNest, spec: Spec, *, remainders: bool = False) -> str:
    """Return ``nest``, a loop nest for ``spec`` (as rewritten by its schedule), as a tree of loops.

    What a split leaves over is one line, unless ``remainders`` asks for its loops too.

    >>> from polyq.affine.notation import parse
    >>> from polyq.schedule.naive import naive_nest
    >>> spec = parse("y[i] += a[i, j] * x[j]", a=("f32", ("m", 64)), x=("f32", (64,)))
    >>> print(loop_tree(naive_nest(spec), spec))
    ├─ i m:  y[i] = 0.0  [y.init]
    └─ i m                                touches a[1, 64] 256 B, x[64] 256 B, y[1] 4 B, in all 516 B
       └─ j 64:  y[i] += a[i, j] * x[j]
    """
    tree = tree_of(nest, spec, remainders=remainders)
    between = _entries("whole tensors between ops: ", map(_stored, tree.between), WIDTH)
    kept = _entries("prepared once: ", map(_stored, tree.prepared), WIDTH)
    groups = dict.fromkeys(b.within for b in nest.buffers if b.within)
    together = [f"in one buffer: {', '.join(b.name for b in nest.buffers if b.within == g)}" for g in groups]
    return "\n".join([*between, *kept, *together, *_drawn(_items(tree.lines, WIDTH - 3), "")])


def byte_size(count: int) -> str:
    """Return a number of bytes in the unit that fits.

    >>> byte_size(516), byte_size(16 << 10), byte_size(3 << 19)
    ('516 B', '16 KiB', '1.5 MiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"


# ---- lines with what stands inside
@dataclass(frozen=True, slots=True)
class _Item:
    """One line with its continuation, and what stands inside."""

    head: str
    more: tuple[str, ...] = ()
    children: tuple[_Item, ...] = ()


def _drawn(items: tuple[_Item, ...], prefix: str) -> Iterator[str]:
    for item in items:
        last = item is items[-1]
        yield f"{prefix}{'└─ ' if last else '├─ '}{item.head}"
        inside = prefix + ("   " if last else "│  ")
        for line in item.more:
            yield f"{inside}{'│  ' if item.children else '   '}{line}"
        yield from _drawn(item.children, inside)


def _items(lines: tuple[Line, ...], room: int) -> tuple[_Item, ...]:
    return tuple(_item(line, room) for line in lines)


def _item(line: Line, room: int) -> _Item:
    """Return one line; ``room`` is what it may take."""
    match line:
        case ScratchLine(storages):
            first, *rest = _entries("scratch ", map(_stored, storages), room)
            return _Item(first, tuple(rest))
        case WhereLine(constraints, inside):
            return _Item(f"where {constraints}", (), _items(inside, room - 3))
        case Statement():
            return _Item(statement_text(line))
        case LoopLine():
            return _loop(line, room)


def _loop(line: LoopLine, room: int) -> _Item:
    head = head_text(line)
    if line.statement is not None:
        text = statement_text(line.statement)
        whole = f"{head}:  {text}"
        return _Item(whole) if len(whole) <= room else _Item(f"{head}:", tuple(_entries("   ", [text], room)))
    if line.role == REMAINDER and not line.lines:
        return _Item(f"{head}:  as the full tiles")
    footprint = [_touched(touch) for touch in line.touches]
    if line.total is not None:
        footprint.append(f"in all {byte_size(line.total)}")
    beside = f"{head:<{max(_COLUMN - WIDTH + room, 0)}}  touches {', '.join(footprint)}"
    children = _items(line.lines, room - 3)
    if not footprint or len(beside) <= room:
        return _Item(beside if footprint else head, (), children)
    return _Item(head, tuple(_entries("touches ", footprint, room - 3)), children)


# ---- texts
def head_text(line: LoopLine) -> str:
    """Return the loops of a line, ``io 2, ii unroll 4 (full tiles)``."""
    return ", ".join(map(_axis, line.axes)) + (f" ({line.role})" if line.role else "")


def statement_text(s: Statement) -> str:
    """Return a statement with its guard and the op it comes from."""
    where, op = f" where {s.where}" if s.where else "", f"  [{s.op}]" if s.op else ""
    return f"{s.target} {s.sign} {s.value}{where}{op}"


def _axis(axis: Axis) -> str:
    return f"{axis.name} {axis.extent}" if axis.kind == "serial" else f"{axis.name} {axis.kind} {axis.extent}"


def _touched(touch: Touch) -> str:
    return f"{touch.tensor}{_shape(touch.extents)}{_size(touch.size)}"


def _stored(storage: Storage) -> str:
    return f"{storage.name} {storage.dtype}{_shape(storage.extents)}{_size(storage.size)}"


def _size(size: int | None) -> str:
    return "" if size is None else f" {byte_size(size)}"


def _shape(extents: tuple[str, ...]) -> str:
    return f"[{', '.join(extents)}]" if extents else ""


def _entries(head: str, entries: Iterable[str], room: int) -> list[str]:
    """Return entries after ``head``, broken between entries only; nothing if there are none."""
    joined = ", ".join(e.replace(" ", "\xa0") for e in entries)
    if not joined:
        return []
    first, rest = head.replace(" ", "\xa0"), "\xa0" * len(head)
    wrap = textwrap.TextWrapper(
        max(room, 40), first, rest, break_long_words=False, break_on_hyphens=False, expand_tabs=False
    )
    lines = wrap.wrap(joined)
    return [line.replace("\xa0", " ") for line in lines]

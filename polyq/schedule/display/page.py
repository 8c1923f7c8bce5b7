"""The loop tree as HTML: nested lists, with the same words as the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polyq.affine.html import Content, Html, join, tag
from polyq.schedule.display.text import byte_size
from polyq.schedule.display.tree import (
    REMAINDER,
    Axis,
    Line,
    LoopLine,
    LoopTree,
    ScratchLine,
    Statement,
    Storage,
    Touch,
    WhereLine,
)

__all__ = ["tree_page"]


def tree_page(tree: LoopTree) -> Html:
    """Return the whole tree; a loop that surrounds other lines folds."""
    whole = [
        tag("div", tag("span", f"{title}: ", style="soft"), _storages(storages), style="line")
        for title, storages in (("whole tensors between ops", tree.between), ("prepared once", tree.prepared))
        if storages
    ]
    return tag("div", *whole, tag("ul", *map(_item, tree.lines)), style="tree")


def _item(line: Line) -> Html:
    match line:
        case ScratchLine(storages):
            return _flat(tag("span", tag("span", "scratch ", style="soft"), _storages(storages)))
        case Statement():
            return _flat(_statement(line))
        case WhereLine(constraints, inside):
            return _nested([tag("span", tag("span", "where ", style="soft"), constraints, style="head")], inside)
        case LoopLine():
            return _loop(line)


def _loop(line: LoopLine) -> Html:
    role = [" ", tag("span", f"({line.role})", style="soft")] if line.role else []
    head = [join(map(_axis, line.axes), ", "), *role]
    if line.statement is not None:
        return _flat(tag("span", *head, ":", style="head"), "  ", tag("span", _statement(line.statement), style="body"))
    if line.role == REMAINDER and not line.lines:
        return _flat(tag("span", *head, ":", style="head"), "  ", tag("span", "as the full tiles", style="soft"))
    parts: list[Content] = [tag("span", *head, style="head")]
    if line.touches:
        found = [_touch(touch) for touch in line.touches]
        if line.total is not None:
            found.append(join(("in all ", tag("b", byte_size(line.total)))))
        parts += ["  ", tag("span", "touches ", _list(found), style="touches")]
    return _nested(parts, line.lines)


def _flat(*parts: Content) -> Html:
    return tag("li", tag("div", *parts, style="line"))


def _nested(parts: Iterable[Content], inside: Iterable[Line]) -> Html:
    return tag("li", tag("details", tag("summary", tag("div", *parts, style="line")),
                         tag("ul", *map(_item, inside)), open=True))  # fmt: skip


# ---- parts of a line
def _axis(axis: Axis) -> Html:
    kind = [] if axis.kind == "serial" else [tag("span", axis.kind, style=axis.kind), " "]
    return join([tag("b", axis.name, style="name"), " ", *kind, axis.extent])


def _statement(s: Statement) -> Html:
    return tag("span", *_words(s))


def _words(s: Statement) -> Iterator[Content]:
    yield f"{s.target} {s.sign} {s.value}"
    if s.where:
        yield from (tag("span", " where ", style="soft"), s.where)
    if s.op:
        yield from ("  ", tag("span", f"[{s.op}]", style="soft"))


def _touch(touch: Touch) -> Html:
    return join([_boxed(touch.tensor, touch.extents), *_size(touch.size)])


def _storages(storages: Iterable[Storage]) -> Html:
    return _list([join([_boxed(f"{s.name} {s.dtype}", s.extents), *_size(s.size)]) for s in storages])


def _list(entries: list[Html]) -> Html:
    """Return entries that lines are broken between."""
    ends = [","] * (len(entries) - 1) + [""]
    return join((tag("span", e, end, style="one") for e, end in zip(entries, ends, strict=True)), " ")


def _boxed(name: str, extents: tuple[str, ...]) -> str:
    return f"{name}[{', '.join(extents)}]" if extents else name


def _size(size: int | None) -> list[Content]:
    return [] if size is None else [" ", tag("b", byte_size(size))]

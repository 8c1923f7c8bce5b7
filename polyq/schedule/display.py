"""A schedule as a loop tree, to be read in a terminal or a notebook.

A line is a loop: its axis, its kind where it is not serial, its extent, and what one iteration of it touches. Loops
that are unrolled or vectorized stand on one line where they nest directly, as do those of a statement that touches
nothing twice. Loop variables are named after their axes: these are the names that transforms take, while the loop
nest itself numbers them.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyq.affine.dtypes import info
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Apply, Const, Index, Load, Scalar, format_scalar, loads, map_scalar
from polyq.affine.spec import Spec
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Node, Scope, walk
from polyq.schedule.regions import Reader, box_of

__all__ = ["byte_size", "loop_tree"]

#: columns; longer statements are broken after their loops, longer lists between their entries
WIDTH = 118
_COLUMN = 36  # where footprints begin, if they fit beside their loop
_SIGNS = {None: "=", "+": "+=", "*": "*=", "min": "min=", "max": "max="}
_WRITTEN_OUT = ("unroll", "vector")


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
    between = [_storage(b) for b in nest.buffers if b.kind == "temp"]
    kept = [_storage(b) for b in nest.buffers if b.kind == "prepared"]
    items = _Tree(nest, spec, remainders).items(nest.body, _Around(), WIDTH - 3)
    whole = [*_entries("whole tensors between ops: ", between, WIDTH), *_entries("prepared once: ", kept, WIDTH)]
    return "\n".join([*whole, *_drawn(items, "")])


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


# ---- the tree as data, and as lines
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


@dataclass(frozen=True, slots=True)
class _Around:
    """The open loops: what their variables are called here, and the ranges that are numbers."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def text(self, e: Affine) -> str:
        return str(e.substitute({var: Affine.dim(name) for var, name in self.names.items()}))

    def opened(self, loop: Loop, name: str) -> _Around:
        span = _span(loop, self.ranges)
        ranges = self.ranges if span is None else {**self.ranges, loop.var: span}
        return _Around({**self.names, loop.var: name}, ranges)


class _Tree:
    def __init__(self, nest: LoopNest, spec: Spec, remainders: bool) -> None:
        self.spec, self.remainders = spec, remainders
        self.buffers = {b.name: b for b in nest.all_buffers()}
        self.dims = {d for op in spec.ops for d in op.dims}
        self.tensors = dict(self._tensors(nest))

    def _tensors(self, nest: LoopNest) -> Iterator[tuple[str, str]]:
        """Yield the tensor that each buffer holds: tiles of one tensor have buffers of several names."""
        ops = {op.name: op for op in self.spec.ops}
        for node in walk(nest.body):
            if isinstance(node, Assign) and node.op in ops:
                yield node.target, ops[node.op].target
                for here, there in zip(loads(node.value), ops[node.op].reads, strict=False):
                    yield here.tensor, there.tensor

    # ---- nodes
    def items(self, block: Block, around: _Around, room: int) -> tuple[_Item, ...]:
        """Return the items of one block; ``room`` is what its lines may take."""
        out: list[_Item] = []
        roles = dict(self._roles(block))
        for at, node in enumerate(block):
            match node:
                case Loop():
                    out.append(self._loop(node, around, room, roles.get(at, "")))
                case Scope(buffers, body):
                    first, *rest = _entries("scratch ", (_storage(b, self.tensors.get(b.name)) for b in buffers), room)
                    out.append(_Item(first, tuple(rest)))
                    out += self.items(body, around, room)
                case Guard(constraints, body) if not _is_statement((node,)):
                    out.append(_Item(self._where(constraints, around), (), self.items(body, around, room - 3)))
                case _:
                    out.append(_Item(self._statement((node,), around)))
        return tuple(out)

    def _loop(self, loop: Loop, around: _Around, room: int, role: str) -> _Item:
        group = _line_of(loop)
        heads: list[str] = []
        for one in group:
            name = self._name(one, around)
            heads.append(self._head(one, name, around))
            around = around.opened(one, name)
        body, head = group[-1].body, ", ".join(heads) + role
        if role == _REMAINDER and not self.remainders and not _is_statement(body):
            return _Item(f"{head}:  as above")
        if _is_statement(body):
            text = self._statement(body, around)
            whole = f"{head}:  {text}"
            return _Item(whole) if len(whole) <= room else _Item(f"{head}:", tuple(_entries("   ", [text], room)))
        footprint = [] if loop.kind in _WRITTEN_OUT else list(self._footprint(body, around))
        beside = f"{head:<{max(_COLUMN - WIDTH + room, 0)}}  touches {', '.join(footprint)}"
        children = self.items(body, around, room - 3)
        if not footprint or len(beside) <= room:
            return _Item(beside if footprint else head, (), children)
        return _Item(head, tuple(_entries("touches ", footprint, room - 3)), children)

    def _roles(self, block: Block) -> Iterator[tuple[int, str]]:
        """Tell full tiles from what is left of them: a later loop over the same axis and ops that begins further on."""
        seen: dict[tuple[str, tuple[str, ...]], int] = {}
        for at, node in enumerate(block):
            if isinstance(node, Loop):
                key = _stem(node.var, self.dims), _ops(node.body)
                if key in seen and node.lower != (Affine(0),):
                    yield seen[key], _FULL
                    yield at, _REMAINDER
                seen.setdefault(key, at)

    def _name(self, loop: Loop, around: _Around) -> str:
        """Return the axis of a loop, numbered where an open loop or a parameter in sight has that name."""
        stem = _stem(loop.var, self.dims)
        taken = {*around.names.values(), *_params(loop.body)}
        return next(n for k in range(1, len(taken) + 2) if (n := stem if k == 1 else f"{stem}_{k}") not in taken)

    def _head(self, loop: Loop, name: str, around: _Around) -> str:
        low, high = [around.text(e) for e in loop.lower], [around.text(e) for e in loop.upper]
        upper = high[0] if len(high) == 1 else f"min({', '.join(high)})"
        lower = low[0] if len(low) == 1 else f"max({', '.join(low)})"
        if lower == "0":
            extent = f"({upper})" if " " in upper and len(high) == 1 else upper
        else:
            extent = f"from {lower} to {upper}"
        return f"{name} {extent}" if loop.kind == "serial" else f"{name} {loop.kind} {extent}"

    # ---- statements
    def _statement(self, body: Block, around: _Around) -> str:
        node, where = body[0], ""
        if isinstance(node, Guard):
            where = f" {self._where(node.constraints, around)}"
            node = node.body[0]
        assert isinstance(node, Assign)
        target = self.tensors.get(node.target, node.target)
        left = f"{target}[{', '.join(map(around.text, node.index))}]" if node.index else target
        value = map_scalar(node.value, lambda leaf: self._leaf(leaf, around))
        text = format_scalar(value)
        if isinstance(value, Apply) and text.startswith("("):
            text = text[1:-1]
        origin = "" if node.op in (target, "") else f"  [{node.op}]"
        return f"{left} {_SIGNS[node.reduce]} {text}{where}{origin}"

    def _leaf(self, leaf: Const | Index | Load, around: _Around) -> Scalar:
        names = {var: Affine.dim(name) for var, name in around.names.items()}
        match leaf:
            case Load(tensor, index, _):
                subscripts = tuple(e.substitute(names) for e in index)
                return replace(leaf, tensor=self.tensors.get(tensor, tensor), index=subscripts)
            case Index(expr, _):
                return replace(leaf, expr=expr.substitute(names))
            case Const():
                return leaf

    def _where(self, constraints: tuple[Constraint, ...], around: _Around) -> str:
        return f"where {', '.join(f'{around.text(c.expr)} {_relation(c)} 0' for c in constraints)}"

    # ---- footprints
    def _footprint(self, body: Block, around: _Around) -> Iterator[str]:
        """Yield, largest first, the box of each tensor that one iteration touches; what lives inside it is left out."""
        readers = tuple(_readers(body, around))
        inside = {b.name for node in walk(body) if isinstance(node, Scope) for b in node.buffers}
        names = dict.fromkeys(name for r in readers for name, _ in r.accesses if name not in inside)
        found: list[tuple[float, str]] = []
        for name in names:
            buffer = self.buffers[name]
            extents = box_of(name, readers, frozenset(around.names), around.ranges, buffer.shape).extent
            size = _bytes(buffer.dtype, extents := tuple(map(_least, extents, buffer.shape)))
            text = f"{self.tensors.get(name, name)}{_shape(map(around.text, extents))}"
            found.append((math.inf, text) if size is None else (size, f"{text} {byte_size(size)}"))
        found.sort(key=lambda one: -one[0])
        yield from (text for _, text in found)
        total = sum(size for size, _ in found)
        if len(found) > 1 and total < math.inf:
            yield f"in all {byte_size(int(total))}"


_FULL, _REMAINDER = " (full tiles)", " (remainder)"


# ---- loops
def _line_of(loop: Loop) -> list[Loop]:
    """Return the loops that share a line: directly nested ones that are written out, or all of a plain copy or fill."""
    chain = [loop]
    while len(chain[-1].body) == 1 and isinstance(inner := chain[-1].body[0], Loop):
        chain.append(inner)
    if _touches_once(chain):
        return chain
    if loop.kind not in _WRITTEN_OUT:
        return [loop]
    return chain[: next((k for k, one in enumerate(chain) if one.kind not in _WRITTEN_OUT), len(chain))]


def _touches_once(chain: list[Loop]) -> bool:
    """Whether the chain surrounds one assignment each of whose accesses moves with every loop."""
    body = chain[-1].body
    if not _is_statement(body):
        return False
    node = next(n for n in walk(body) if isinstance(n, Assign))
    variables = {one.var for one in chain}
    accesses = [node.index, *(load.index for load in loads(node.value))]
    return node.reduce is None and all(variables <= {d for e in index for d in e.dims()} for index in accesses)


def _is_statement(body: Block) -> bool:
    """Whether a block is one assignment, with or without a guard."""
    if len(body) == 1 and isinstance(guard := body[0], Guard):
        body = guard.body
    return len(body) == 1 and isinstance(body[0], Assign)


def _stem(var: str, dims: Iterable[str]) -> str:
    """Return the axis that a loop variable was named after."""
    return var if var in dims else re.sub(r"_\d+$", "", var)


def _ops(body: Block) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.op for node in walk(body) if isinstance(node, Assign)))


def _params(body: Block) -> set[str]:
    return {p for node in walk(body) for e in _expressions(node) for p in e.params()}


def _expressions(node: Node) -> Iterator[Affine]:
    match node:
        case Loop():
            yield from (*node.lower, *node.upper)
        case Guard():
            yield from (c.expr for c in node.constraints)
        case Assign():
            yield from (*node.index, *(e for load in loads(node.value) for e in load.index))
        case Scope():
            return


def _span(loop: Loop, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Return the inclusive range of a loop variable, where numbers bound it."""
    low = [b[0] for e in loop.lower if (b := e.bounds(ranges)) is not None]
    high = [b[1] for e in loop.upper if (b := e.bounds(ranges)) is not None]
    return (max(low), max(max(low), min(high) - 1)) if low and high else None


def _readers(body: Block, around: _Around) -> Iterator[Reader]:
    """Yield the accesses of every assignment, with the ranges of the loops that stand inside."""

    def visit(block: Block, hidden: tuple[tuple[str, tuple[int, int] | None], ...], inner: _Around) -> Iterator[Reader]:
        for node in block:
            match node:
                case Loop():
                    opened = (*hidden, (node.var, _span(node, inner.ranges)))
                    yield from visit(node.body, opened, inner.opened(node, node.var))
                case Assign():
                    touched = [(node.target, node.index), *((load.tensor, load.index) for load in loads(node.value))]
                    yield Reader(node.op, tuple(touched), hidden)
                case Guard() | Scope():
                    yield from visit(node.body, hidden, inner)

    return visit(body, (), around)


# ---- texts
def _relation(c: Constraint) -> str:
    return "==" if c.equality else ">="


def _least(extent: Affine, full: Affine) -> Affine:
    """Return the extent of a box cut to its tensor, where both are numbers."""
    return Affine(min(extent.const, full.const)) if extent.is_constant and full.is_constant else extent


def _bytes(dtype: str, extents: Iterable[Affine]) -> int | None:
    """Return the bytes of a box, packed types in whole bytes; ``None`` where an extent is no number."""
    bits = info(dtype).bits
    for e in extents:
        if not e.is_constant:
            return None
        bits *= e.const
    return -(-bits // 8)


def _shape(extents: Iterable[str]) -> str:
    text = ", ".join(extents)
    return f"[{text}]" if text else ""


def _storage(b: Buffer, tensor: str | None = None) -> str:
    size = _bytes(b.dtype, b.shape)
    return f"{tensor or b.name} {b.dtype}{_shape(map(str, b.shape))}{'' if size is None else ' ' + byte_size(size)}"


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

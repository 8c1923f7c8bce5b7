"""The loop tree as data: what a reader of a loop nest is shown, before it becomes text or HTML.

A line is a loop: its axis, its kind where it is not serial, its extent, and what one iteration of it touches. Loops
that are unrolled or vectorized stand on one line where they nest directly, as do those of a statement that touches
nothing twice. Loop variables are named after their axes: these are the names that transforms take, while the loop
nest itself numbers them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Union

from polyq.affine.dtypes import info
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Const, Index, Load, Scalar, format_scalar, loads, map_scalar
from polyq.affine.spec import Spec
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Node, Scope, walk
from polyq.schedule.regions import Reader, box_of

__all__ = [
    "FULL", "REMAINDER", "Axis", "Line", "LoopLine", "LoopTree", "ScratchLine", "Statement", "Storage", "Touch",
    "WhereLine", "tree_of",
]  # fmt: skip

_SIGNS = {None: "=", "+": "+=", "*": "*=", "min": "min=", "max": "max="}
_WRITTEN_OUT = ("unroll", "vector")
FULL, REMAINDER = "full tiles", "remainder"


# ---- the data
@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of a line: ``extent`` is a text, ``8`` or ``from 8 to 10``."""

    name: str
    kind: str
    extent: str


@dataclass(frozen=True, slots=True)
class Touch:
    """The box of a tensor that one iteration touches; ``size`` in bytes, ``None`` where it hangs on parameters."""

    tensor: str
    extents: tuple[str, ...]
    size: int | None


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer: its tensor, dtype, extents, and bytes, ``None`` where they hang on parameters."""

    name: str
    dtype: str
    extents: tuple[str, ...]
    size: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """An assignment; ``where`` is its guard and ``op`` the op it comes from, both empty where there is nothing to say.

    ``op`` is empty if the op is named after the tensor that is written.
    """

    target: str
    sign: str
    value: str
    where: str = ""
    op: str = ""


@dataclass(frozen=True, slots=True)
class LoopLine:
    """Loops that share a line, outermost first.

    ``role`` is :data:`FULL` or :data:`REMAINDER` where a split leaves something over. What stands inside is one
    statement, or ``lines``; neither where the line repeats what an earlier one shows.
    """

    axes: tuple[Axis, ...]
    role: str = ""
    touches: tuple[Touch, ...] = ()
    statement: Statement | None = None
    lines: tuple[Line, ...] = ()

    @property
    def total(self) -> int | None:
        """The bytes of all boxes, where there are several and all are known."""
        sizes = [t.size for t in self.touches if t.size is not None]
        return sum(sizes) if len(self.touches) > 1 and len(sizes) == len(self.touches) else None


@dataclass(frozen=True, slots=True)
class ScratchLine:
    """Scratch that lives as long as one iteration of the loop around it."""

    storages: tuple[Storage, ...]


@dataclass(frozen=True, slots=True)
class WhereLine:
    """A guard around several lines."""

    constraints: str
    lines: tuple[Line, ...]


Line = Union[LoopLine, ScratchLine, WhereLine, Statement]


@dataclass(frozen=True, slots=True)
class LoopTree:
    """A whole nest: tensors that stand between ops, those that are prepared once, and the lines."""

    between: tuple[Storage, ...]
    prepared: tuple[Storage, ...]
    lines: tuple[Line, ...]


def tree_of(nest: LoopNest, spec: Spec, *, remainders: bool = False) -> LoopTree:
    """Return the tree of ``nest``, a loop nest for ``spec`` (as rewritten by its schedule).

    What a split leaves over is one line, unless ``remainders`` asks for its loops too.
    """
    between = tuple(_storage(b) for b in nest.buffers if b.kind == "temp")
    kept = tuple(_storage(b) for b in nest.buffers if b.kind == "prepared")
    return LoopTree(between, kept, tuple(_Reader(nest, spec, remainders).lines(nest.body, _Around())))


# ---- from the nest to the tree
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


class _Reader:
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
    def lines(self, block: Block, around: _Around) -> Iterator[Line]:
        """Yield the lines of one block."""
        roles = dict(self._roles(block))
        for at, node in enumerate(block):
            match node:
                case Loop():
                    yield self._loop(node, around, roles.get(at, ""))
                case Scope(buffers, body):
                    yield ScratchLine(tuple(_storage(b, self.tensors.get(b.name)) for b in buffers))
                    yield from self.lines(body, around)
                case Guard(constraints, body) if not _is_statement((node,)):
                    yield WhereLine(_constraints(constraints, around), tuple(self.lines(body, around)))
                case _:
                    yield self._statement((node,), around)

    def _loop(self, loop: Loop, around: _Around, role: str) -> LoopLine:
        group = _line_of(loop)
        axes: list[Axis] = []
        for one in group:
            axes.append(self._axis(one, around))
            around = around.opened(one, axes[-1].name)
        body = group[-1].body
        line = LoopLine(tuple(axes), role)
        if _is_statement(body):
            return replace(line, statement=self._statement(body, around))
        if role == REMAINDER and not self.remainders:
            return line
        touches = () if loop.kind in _WRITTEN_OUT else tuple(self._footprint(body, around))
        return replace(line, touches=touches, lines=tuple(self.lines(body, around)))

    def _roles(self, block: Block) -> Iterator[tuple[int, str]]:
        """Tell full tiles from what is left of them, which are loops over the same axis and ops with fewer copies."""
        alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for at, node in enumerate(block):
            if isinstance(node, Loop):
                alike.setdefault((_stem(node.var, self.dims), _ops(node.body)), []).append(at)
        for places in alike.values():
            full = max(places, key=lambda at: (_copies(block[at]), -at))
            if len(places) > 1:
                yield from ((at, FULL if at == full else REMAINDER) for at in places)

    def _name(self, loop: Loop, around: _Around) -> str:
        """Return the axis of a loop, numbered where an open loop or a parameter in sight has that name."""
        stem = _stem(loop.var, self.dims)
        taken = {*around.names.values(), *_params(loop.body)}
        return next(n for k in range(1, len(taken) + 2) if (n := stem if k == 1 else f"{stem}_{k}") not in taken)

    def _axis(self, loop: Loop, around: _Around) -> Axis:
        low, high = [around.text(e) for e in loop.lower], [around.text(e) for e in loop.upper]
        upper = high[0] if len(high) == 1 else f"min({', '.join(high)})"
        lower = low[0] if len(low) == 1 else f"max({', '.join(low)})"
        if lower == "0":
            extent = f"({upper})" if " " in upper and len(high) == 1 else upper
        else:
            extent = f"from {lower} to {upper}"
        return Axis(self._name(loop, around), loop.kind, extent)

    # ---- statements
    def _statement(self, body: Block, around: _Around) -> Statement:
        node, where = body[0], ""
        if isinstance(node, Guard):
            where = _constraints(node.constraints, around)
            node = node.body[0]
        assert isinstance(node, Assign)
        target = self.tensors.get(node.target, node.target)
        left = f"{target}[{', '.join(map(around.text, node.index))}]" if node.index else target
        value = map_scalar(node.value, lambda leaf: self._leaf(leaf, around))
        return Statement(left, _SIGNS[node.reduce], format_scalar(value), where, "" if node.op == target else node.op)

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

    # ---- footprints
    def _footprint(self, body: Block, around: _Around) -> Iterator[Touch]:
        """Yield, largest first, the box of each tensor that one iteration touches; what lives inside it is left out."""
        readers = tuple(_readers(body, around))
        inside = {b.name for node in walk(body) if isinstance(node, Scope) for b in node.buffers}
        names = dict.fromkeys(name for r in readers for name, _ in r.accesses if name not in inside)
        found: list[Touch] = []
        for name in names:
            buffer = self.buffers[name]
            extents = box_of(name, readers, frozenset(around.names), around.ranges, buffer.shape).extent
            size = _bytes(buffer.dtype, extents := tuple(map(_least, extents, buffer.shape)))
            found.append(Touch(self.tensors.get(name, name), tuple(map(around.text, extents)), size))
        yield from sorted(found, key=lambda touch: -math.inf if touch.size is None else -touch.size)


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


def _copies(node: Loop | Guard | Scope | Assign) -> int:
    """Count the iterations that are written out inside a loop, as far as their number is known."""
    written = (n for n in walk((node,)) if isinstance(n, Loop) and n.kind in _WRITTEN_OUT)
    return sum(e.const for n in written for e in n.upper if e.is_constant)


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


# ---- parts
def _constraints(constraints: tuple[Constraint, ...], around: _Around) -> str:
    return ", ".join(f"{around.text(c.expr)} {'==' if c.equality else '>='} 0" for c in constraints)


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


def _storage(b: Buffer, tensor: str | None = None) -> Storage:
    return Storage(tensor or b.name, b.dtype, tuple(map(str, b.shape)), _bytes(b.dtype, b.shape))

"""The LoopNest: what is printed, and what the certificate reads back.

Four nodes. ``Loop`` and ``Guard`` nest; ``Scope`` declares scratch; ``Assign`` is one statement instance per iteration
of the loops around it. Unrolling and vectorization are annotations on loops: a ``vector`` loop means the same as the
serial loop, and is legal where no dependence is carried by it. Loop variables are :class:`~polyq.affine.expr.Dim`
atoms, unique within a nest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Scalar, format_scalar

__all__ = ["Assign", "Block", "Buffer", "Guard", "Loop", "LoopNest", "Node", "Scope"]

LOOP_KINDS = ("serial", "parallel", "unroll", "vector")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage.

    ``kind`` is ``input``, ``output``, ``inout``, ``temp`` (a whole intermediate tensor), ``prepared`` (one that stays
    between calls, see :mod:`polyq.schedule.prologue`) or ``scratch``.
    ``shape`` is in elements; scratch has constant extents. ``scratch`` lives as long as its scope's iteration and is
    private to the thread that runs it; its cells hold nothing at the start. Buffers with one name in ``within`` are
    the same bytes, of which each owns some (:mod:`polyq.schedule.shares`).
    """

    name: str
    dtype: str
    shape: tuple[Affine, ...]
    kind: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """``for var in [max(lower), min(upper))``, step 1. ``kind`` is one of :data:`LOOP_KINDS`."""

    var: str
    lower: tuple[Affine, ...]
    upper: tuple[Affine, ...]
    kind: str
    body: Block


@dataclass(frozen=True, slots=True)
class Guard:
    """The body runs where all constraints hold."""

    constraints: tuple[Constraint, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class Scope:
    """Scratch buffers that live inside ``body``."""

    buffers: tuple[Buffer, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class Assign:
    """``target[index] (reduce)= value``.

    ``op`` and ``instance`` say which original instance this is: the op of the spec and the values of its dims. Loads in
    ``value`` stand in the order of the op's loads (operand by operand), with buffers and subscripts of this nest.
    """

    op: str
    instance: tuple[Affine, ...]
    target: str
    index: tuple[Affine, ...]
    value: Scalar
    reduce: str | None = None


Node = Union[Loop, Guard, Scope, Assign]
Block = tuple[Node, ...]


@dataclass(frozen=True)
class LoopNest:
    """A whole program: buffers that outlive it or its parts, the parameters, and the root block, run in order."""

    name: str
    params: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    body: Block

    def buffer(self, name: str) -> Buffer:
        """Return the buffer ``name``, scratch included."""
        for b in self.all_buffers():
            if b.name == name:
                return b
        raise KeyError(name)

    def all_buffers(self) -> tuple[Buffer, ...]:
        """Return every buffer, those of scopes included."""
        return self._all_buffers

    @cached_property
    def _all_buffers(self) -> tuple[Buffer, ...]:
        scopes = (node for node in walk(self.body) if isinstance(node, Scope))
        return (*self.buffers, *(b for scope in scopes for b in scope.buffers))

    def __str__(self) -> str:
        return "\n".join(_lines(self.body, 0))


def walk(block: Block) -> Iterator[Node]:
    """Yield every node in printing order."""
    for node in block:
        yield node
        if not isinstance(node, Assign):
            yield from walk(node.body)


def _lines(block: Block, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for node in block:
        match node:
            case Loop(var, lower, upper, kind, body):
                low = str(lower[0]) if len(lower) == 1 else f"max({', '.join(map(str, lower))})"
                high = str(upper[0]) if len(upper) == 1 else f"min({', '.join(map(str, upper))})"
                yield f"{pad}for {var} in [{low}, {high}){'' if kind == 'serial' else ' ' + kind}:"
                yield from _lines(body, depth + 1)
            case Guard(constraints, body):
                yield f"{pad}if {' and '.join(map(str, constraints))}:"
                yield from _lines(body, depth + 1)
            case Scope(buffers, body):
                for b in buffers:
                    yield f"{pad}scratch {b.name}: {b.dtype}[{', '.join(map(str, b.shape))}]"
                yield from _lines(body, depth)
            case Assign(op, _, target, index, value, reduce):
                left = f"{target}[{', '.join(map(str, index))}]" if index else target
                sign = {None: "=", "+": "+=", "*": "*=", "min": "min=", "max": "max="}[reduce]
                yield f"{pad}{left} {sign} {format_scalar(value)}    # {op}"

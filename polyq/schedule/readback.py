"""What a LoopNest does, read back from its loops, guards, scopes and assignments.

Nothing here trusts the scheduler: domains come from the bounds and guards that are printed, times from the places of
the nodes, accesses from the subscripts. A scratch buffer's cells are told apart by the iteration of its scope: the
loop variables around the scope stand in front of the subscripts, so that every iteration owns cells that hold nothing
at its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyq.affine.expr import Affine, Constraint
from polyq.affine.flow import Access
from polyq.affine.scalar import Index, Load, loads, walk
from polyq.affine.sets import Domain
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Scope

__all__ = ["Program", "Statement", "Storage", "read_back"]


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer of the nest: ``key`` is unique, ``scope`` holds the loop variables around its scope, outermost first."""

    key: str
    buffer: Buffer
    scope: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """An assignment with its iteration domain, its time, and its accesses to cells.

    ``reads`` stand in the order of the loads; a reduction's own cell comes after them. ``loops`` are those around the
    statement, outermost first.
    """

    name: str
    assign: Assign
    loops: tuple[Loop, ...]
    domain: Domain
    time: tuple[Affine, ...]
    reads: tuple[Access, ...]
    write: Access
    storages: tuple[Storage, ...]

    @property
    def operands(self) -> tuple[int | str, ...]:
        """Names of ``reads``: the position of the load, or ``"self"`` for the cell that a reduction combines with."""
        count = len(self.reads) - (self.assign.reduce is not None)
        return (*range(count), "self") if self.assign.reduce else tuple(range(count))

    @property
    def target(self) -> Storage:
        """The storage that is written."""
        return self.storages[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A nest as statements in printing order; all times have one length."""

    nest: LoopNest
    statements: tuple[Statement, ...]
    storages: tuple[Storage, ...]

    def of_op(self, op: str) -> tuple[Statement, ...]:
        """Return the statements that compute instances of ``op``."""
        return tuple(s for s in self.statements if s.assign.op == op)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk stands: loops and constraints around it, the time so far, the visible storage by name."""

    loops: tuple[Loop, ...]
    constraints: tuple[Constraint, ...]
    time: tuple[Affine, ...]
    visible: dict[str, Storage]


def read_back(nest: LoopNest) -> Program:
    """Return the statements of ``nest``.

    :class:`ValueError` where it is malformed: an unknown buffer, a wrong number of subscripts, a variable twice.
    """
    storages = {b.name: Storage(b.name, b) for b in nest.buffers}
    walker = _Walker(list(storages.values()), set(), frozenset(nest.params))
    found = list(walker.block(nest.body, _Place((), (), (), storages)))
    depth = max((len(s.time) for s in found), default=0)
    return Program(nest, tuple(_padded(s, depth) for s in found), tuple(walker.storages))


class _Walker:
    """One walk over a nest; holds what has been declared so far."""

    def __init__(self, storages: list[Storage], variables: set[str], params: frozenset[str]) -> None:
        self.storages = storages
        self.variables = variables
        self.params = params
        self.count = 0

    def block(self, block: Block, place: _Place) -> Iterator[Statement]:
        for position, node in enumerate(block):
            here = replace(place, time=(*place.time, Affine(position)))
            match node:
                case Loop():
                    yield from self.block(node.body, self.enter(node, here))
                case Guard(constraints, body):
                    yield from self.block(body, replace(here, constraints=(*here.constraints, *constraints)))
                case Scope(buffers, body):
                    yield from self.block(body, self.declare(buffers, here))
                case Assign():
                    yield self.statement(node, here)

    def enter(self, loop: Loop, place: _Place) -> _Place:
        if loop.var in self.variables:
            raise ValueError(f"the loop variable {loop.var!r} occurs twice; every loop of a nest has its own")
        self.variables.add(loop.var)
        var = Affine.dim(loop.var)
        bounds = [*(Constraint(var - e) for e in loop.lower), *(Constraint(e - var - 1) for e in loop.upper)]
        return replace(
            place, loops=(*place.loops, loop), constraints=(*place.constraints, *bounds), time=(*place.time, var)
        )

    def declare(self, buffers: tuple[Buffer, ...], place: _Place) -> _Place:
        scope = tuple(loop.var for loop in place.loops)
        made = {b.name: Storage(f"{b.name}@{len(self.storages) + i}", b, scope) for i, b in enumerate(buffers)}
        self.storages += made.values()
        return replace(place, visible={**place.visible, **made})

    def statement(self, node: Assign, place: _Place) -> Statement:
        self.count += 1
        around = [loop.var for loop in place.loops]
        exprs = [*node.instance, *(c.expr for c in place.constraints), *subscripts(node)]
        unknown = {n for e in exprs for n in (e.dims() - {*around}) | (e.params() - self.params)}
        if unknown:
            raise ValueError(f"{node.op}: {sorted(unknown)} are neither loops around it ({around}) nor parameters")
        domain = Domain.make(around, place.constraints)

        def access(name: str, index: tuple[Affine, ...]) -> tuple[Access, Storage]:
            storage = place.visible.get(name)
            if storage is None:
                raise ValueError(f"{node.op}: no buffer {name!r} is visible here; there are {sorted(place.visible)}")
            if len(index) != len(storage.buffer.shape):
                raise ValueError(f"{node.op}: {name} has {len(storage.buffer.shape)} dims, got {len(index)} subscripts")
            cell = (*(Affine.dim(v) for v in storage.scope), *index)
            return Access(domain, place.time, storage.key, cell), storage

        reads = [access(load.tensor, load.index) for load in loads(node.value)]
        write = access(node.target, node.index)
        reads += [write] if node.reduce else []
        storages = (*(s for _, s in reads), write[1])
        name = f"{node.op}#{self.count}"
        return Statement(name, node, place.loops, domain, place.time, tuple(a for a, _ in reads), write[0], storages)


def subscripts(node: Assign) -> Iterator[Affine]:
    """Yield every affine expression in the target's and the loads' subscripts, and index values of the body."""
    yield from node.index
    for part in walk(node.value):
        if isinstance(part, Load):
            yield from part.index
        elif isinstance(part, Index):
            yield part.expr


def _padded(s: Statement, depth: int) -> Statement:
    time = (*s.time, *(Affine(0) for _ in range(depth - len(s.time))))
    reads = tuple(replace(r, time=time) for r in s.reads)
    return replace(s, time=time, reads=reads, write=replace(s.write, time=time))

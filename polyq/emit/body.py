"""From loop-nest nodes to C blocks.

Unrolled loops are expanded here, vector loops become vector values, scratch becomes named registers where every
subscript is known, and straight-line sequences of assignments become runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import cgen

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import loads, substitute_dims
from polyq.emit import blocks, dots, shapes
from polyq.emit.address import Memory, Names, Registers, Storage, affine_text, constant_shape, memory_of, stem
from polyq.emit.arithmetic import minmax
from polyq.emit.ctypes import compute_type, storage_type
from polyq.emit.helpers import Helpers
from polyq.emit.run import Lanes, Run
from polyq.emit.statements import Step, emit
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, Scope, walk

__all__ = ["Context", "Emitter"]

#: scratch up to this size may live on the stack of the thread that runs the region
STACK_BYTES = 4096
#: gcc writes out the iterations of shorter loops (its parameter max-completely-peel-times)
PEELED = 16


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds a node.

    ``bind`` gives the values of loop variables that are no C variables, ``visible`` the local C variables (type, name)
    that a region opened here has to be given; ``parallel`` says whether a region is open.
    """

    bind: dict[str, Affine] = field(default_factory=dict[str, Affine])
    visible: tuple[tuple[str, str], ...] = ()
    parallel: bool = False


#: the declaration of a variable that starts at zero: type, name and value
_ZERO = re.compile(r"(\w+) (\w+ = (?:\{0\}|0|0\.0f?));")

Compound = Loop | Guard | Scope
Item = Step | tuple[Compound, Context]


class Emitter:
    """Turns blocks into C; ``threaded`` prints a loop whose iterations threads share."""

    def __init__(self, names: Names, helpers: Helpers, strict: bool, prefetch: dict[str, int]) -> None:
        self.names, self.helpers, self.strict, self.prefetch = names, helpers, strict, prefetch
        self.storage: dict[str, Storage] = {}
        self.threaded: Callable[[Loop, Context], list[cgen.Generable]] = lambda loop, around: [self._loop(loop, around)]
        self.arena = 0  # bytes of per-thread scratch that the regions need
        self._undeclared: dict[str, str] = {}  # register variables of the open block (name -> type)
        self._owner: dict[str, dict[str, str]] = {}
        self._notes: list[str] = []
        self._innermost = ""  # the variable of the innermost loop

    # ---- blocks
    def block(self, nodes: Block, context: Context) -> list[cgen.Generable]:
        """Return the C of a sequence of nodes, as the inside of a block of its own."""
        outer, self._undeclared = self._undeclared, {}
        with self.names.scope():
            lines = self._sequence(nodes, context)
        self._undeclared = outer
        return lines

    def _sequence(self, nodes: Block, context: Context) -> list[cgen.Generable]:
        out: list[cgen.Generable] = []
        steps: list[Step] = []
        for item in self._flatten(nodes, context):
            if isinstance(item, Step):
                steps.append(item)
                continue
            out += self._run(steps, last=False)
            steps = []
            out += self._node(*item)
        return out + self._run(steps, last=True)

    def _flatten(self, nodes: Block, context: Context) -> Iterator[Item]:
        """Yield assignments and the nodes that need a block, in order."""
        for node in nodes:
            match node:
                case Assign():
                    yield Step(_bound(node, context.bind))
                case Loop(kind="unroll") if (span := _constant_span(node, context)) is not None:
                    yield from self._unrolled(node, context, span)
                case Loop(kind="vector") if (live := self._known_lanes(node, context)) is not None:
                    if live:
                        yield from self._lanes(node, context, None if live == shapes.lane_count(node) else str(live))
                case Scope(buffers, body) if (found := self._all_in_registers(node, context)) is not None:
                    for b, lanes in zip(buffers, found, strict=True):
                        self._in_registers(b, lanes)
                    yield from self._flatten(body, context)
                case Guard(constraints, body) if (verdict := _decided(constraints, context)) is not None:
                    if verdict:
                        yield from self._flatten(body, context)
                case Loop() | Guard() | Scope():
                    yield node, context

    def _unrolled(self, loop: Loop, context: Context, span: tuple[int, int]) -> Iterator[Item]:
        folded = self._fold_of(loop, context, span)
        if folded is not None:
            yield folded
            return
        for i in range(*span):
            yield from self._flatten(loop.body, replace(context, bind={**context.bind, loop.var: Affine(i)}))

    def _fold_of(self, loop: Loop, context: Context, span: tuple[int, int]) -> Step | None:
        """Return an unrolled loop that sums the lanes of one register as a tree of lanes."""
        if self.strict or len(loop.body) != 1 or not isinstance(loop.body[0], Assign):
            return None
        assign = _bound(loop.body[0], context.bind)
        if assign.reduce is None or span[0] or any(loop.var in e.dims() for e in assign.index):
            return None
        for load in loads(assign.value):
            storage = self.storage[load.tensor]
            if not isinstance(storage, Registers) or storage.lanes != span[1]:
                continue
            if load.index and load.index[storage.axis] == Affine.dim(loop.var):
                return Step(assign, Lanes(loop.var, span[1]), fold=True)
        return None

    def _run(self, steps: Sequence[Step], last: bool) -> list[cgen.Generable]:
        """Return the C of a run; before another node of the block, every register variable has to be declared."""
        run = Run(self.helpers, self.names, self.storage, self.strict, self.prefetch, self._undeclared, self._innermost)
        run.expect((step.assign.value, step.lanes) for step in steps)
        for step in dots.joined(run, steps):
            if isinstance(step, dots.Joined):
                dots.emit_joined(run, step)
            else:
                emit(run, step)
        notes, self._notes = self._notes, []
        lines = [*notes, *run.text()]
        if not last:
            lines += [f"{kind} {name} = {'{0}' if 'x' in kind else '0'};" for name, kind in self._undeclared.items()]
            self._undeclared.clear()
        return blocks.lines(_joined(lines))

    # ---- vector loops
    def _known_lanes(self, loop: Loop, context: Context) -> int | None:
        """Return the live lanes of a vector loop that is one vector, where their number is known."""
        low, high = (tuple(e.substitute(context.bind) for e in ends) for ends in (loop.lower, loop.upper))
        loop = replace(loop, lower=low, upper=high)
        return shapes.live_lanes(loop) if self.helpers.vector_bytes and shapes.lane_count(loop) else None

    def _lanes(self, loop: Loop, context: Context, live: str | None, at: Affine | None = None) -> Iterator[Step]:
        """Yield the assignments of one vector, which begins at ``at`` (else at the loop's lower bound)."""
        count = shapes.lane_count(loop)
        start = loop.lower[0].substitute(context.bind) if at is None else at
        bind = context.bind if start == Affine(0) else {**context.bind, loop.var: start + Affine.dim(loop.var)}
        for node in loop.body:
            assert isinstance(node, Assign)
            assign = _bound(node, bind)
            fold = assign.reduce is not None and not any(loop.var in e.dims() for e in assign.index)
            yield Step(assign, Lanes(loop.var, count, live), fold)

    def _masked(self, loop: Loop, context: Context) -> list[cgen.Generable]:
        """A vector of which only some lanes are live, as many as is known at run time."""
        low, high = self.bounds(loop, context)
        live = self.names.fresh("live")
        count = shapes.lane_count(loop)
        full = self._inner_run(self._lanes(loop, context, None))
        part = self._inner_run(self._lanes(loop, context, live))
        difference = high if low == "0" else f"{high} - {low if low.isalnum() else f'({low})'}"
        head = blocks.lines([f"const int64_t {live} = {difference};"])
        return [*head, blocks.when(f"{live} >= {count}", full, (f"{live} > 0", part))]

    def _inner_run(self, steps: Iterator[Step]) -> list[cgen.Generable]:
        with self.names.scope():
            return self._run(list(steps), last=True)

    def _strips(self, loop: Loop, context: Context) -> list[cgen.Generable]:
        """A vector loop of any length: whole vectors, then the live lanes of one more."""
        dtype_of = {name: s.dtype for name, s in self.storage.items()}
        count = shapes.strip_width(loop, self.helpers.vector_bytes, dtype_of)
        low, high = self.bounds(loop, context)
        with self.names.scope():
            at, live = self.names.fresh(f"{loop.var}_at"), self.names.fresh("live")
            strip = replace(loop, lower=(Affine.dim(at),), upper=(Affine.dim(at) + count,))
            self.names.bind(f"dim {at}", at)
            full = self._inner_run(self._lanes(strip, context, None))
            part = self._inner_run(self._lanes(strip, context, live))
        whole = blocks.loop("", f"{at} + {count} <= {high}", f"{at} += {count}", full)
        tail = [*blocks.lines([f"const int64_t {live} = {high} - {at};"]), blocks.when(f"{live} > 0", part)]
        return [blocks.braces([*blocks.lines([f"int64_t {at} = {low};"]), whole, *tail])]

    # ---- compound nodes
    def _node(self, node: Compound, context: Context) -> list[cgen.Generable]:
        match node:
            case Loop(kind="parallel") if not context.parallel:
                return self.threaded(node, context)
            case Loop(kind="vector") if self.helpers.vector_bytes and shapes.lane_count(node):
                return self._masked(node, context)
            case Loop(kind="vector") if self.helpers.vector_bytes and shapes.is_flat(node):
                return self._strips(node, context)
            case Loop():
                return [self._loop(node, context)]
            case Guard(constraints, body):
                tests = [self._test(c.substitute(context.bind)) for c in constraints]
                return [blocks.when(" && ".join(tests), self.block(body, context))]
            case Scope():
                return [self._scope(node, context)]

    def _test(self, c: Constraint) -> str:
        return f"{affine_text(c.expr, self.names)} {'==' if c.equality else '>='} 0"

    def bounds(self, loop: Loop, context: Context) -> tuple[str, str]:
        """Return the C text of a loop's bounds."""
        low = [affine_text(e.substitute(context.bind), self.names) for e in loop.lower]
        high = [affine_text(e.substitute(context.bind), self.names) for e in loop.upper]
        return self._nested("max", low), self._nested("min", high)

    def _nested(self, fn: str, terms: list[str]) -> str:
        text = terms[0]
        for term in terms[1:]:
            text = f"{minmax(self.helpers, fn, 'i64', 1)}({text}, {term})"
        return text

    def _loop(self, loop: Loop, context: Context) -> cgen.Generable:
        low, high = self.bounds(loop, context)
        with self.names.scope():
            var = self.names.loop(loop.var)
            body = self.looped(loop, replace(context, visible=(*context.visible, ("const int64_t", var))))
            if self._stays_rolled(loop):
                body = [*blocks.lines(["ROLLED();"]), *body]
        return blocks.loop(f"int64_t {var} = {low}", f"{var} < {high}", f"++{var}", body)

    def _stays_rolled(self, loop: Loop) -> bool:
        """Whether a short loop only adds to a register tile that is written out.

        gcc would write out its iterations as well, and spill the tile for what neighbouring iterations have in common.
        """
        count = shapes.trip_count(loop)
        if count is None or not 1 < count <= PEELED or not self.helpers.vector_bytes:
            return False
        inner = list(walk(loop.body))
        targets = [self.storage[n.target] for n in inner if isinstance(n, Assign)]
        flat = all(isinstance(n, Assign) or (isinstance(n, Loop) and n.kind in ("unroll", "vector")) for n in inner)
        return flat and len(inner) > len(targets) and all(isinstance(s, Registers) and s.lanes for s in targets)

    def looped(self, loop: Loop, context: Context) -> list[cgen.Generable]:
        """Return the C of a loop's body."""
        outer, self._innermost = self._innermost, loop.var
        body = self.block(loop.body, context)
        self._innermost = outer
        return body

    # ---- scratch
    def _scope(self, scope: Scope, context: Context) -> cgen.Generable:
        outer, self._undeclared = self._undeclared, {}
        with self.names.scope():
            head: list[cgen.Generable] = []
            for b in scope.buffers:
                lanes = self._register_lanes(b, scope.body, context)
                if lanes is not None:
                    self._in_registers(b, lanes)
                    continue
                head += self._in_memory(b)
                pointer = (f"{storage_type(b.dtype)} *const restrict", self._pointer(b.name))
                context = replace(context, visible=(*context.visible, pointer))
            block = blocks.braces(head + self._sequence(scope.body, context))
        self._undeclared = outer
        return block

    def _pointer(self, name: str) -> str:
        storage = self.storage[name]
        assert isinstance(storage, Memory)
        return storage.pointer

    def _register_lanes(self, buffer: Buffer, body: Block, context: Context) -> tuple[int, int] | None:
        return shapes.register_lanes(buffer, body, frozenset(context.bind), bool(self.helpers.vector_bytes))

    def _all_in_registers(self, scope: Scope, context: Context) -> list[tuple[int, int]] | None:
        found = [self._register_lanes(b, scope.body, context) for b in scope.buffers]
        lanes = [place for place in found if place is not None]
        return lanes if len(lanes) == len(found) else None

    def _in_registers(self, buffer: Buffer, place: tuple[int, int]) -> None:
        """Make ``buffer`` a set of variables of the open block; a scope that is written out twice there shares them."""
        if self._owner.get(buffer.name) is self._undeclared:
            return
        self._owner[buffer.name] = self._undeclared
        lanes, axis = place
        paths = shapes.cell_paths(buffer, lanes, axis)
        storage = Registers("", buffer.dtype, lanes, constant_shape(buffer)[axis] // lanes if lanes else 1, axis)
        prefix = self.names.family(stem(buffer.name), [storage.variable(path) for path in paths])
        storage = self.storage[buffer.name] = replace(storage, prefix=prefix)
        kind = self.helpers.vector(compute_type(buffer.dtype), max(lanes, 1))
        for path in paths:
            self._undeclared[storage.variable(path)] = kind
        self._notes.append(
            f"/* tile {buffer.name}: {_footprint(buffer)}, in {len(paths)} variable{'s' * (len(paths) != 1)} */"
        )

    def _in_memory(self, buffer: Buffer) -> list[cgen.Generable]:
        pointer = self.names.fresh(stem(buffer.name))
        self.storage[buffer.name] = memory_of(buffer, pointer, self.names, {})
        kind, cells, size = storage_type(buffer.dtype), *_size(buffer)
        note = f"/* tile {buffer.name}: {_footprint(buffer)} */"
        if size <= STACK_BYTES:
            return blocks.lines([note, f"{kind} {pointer}[{cells}] __attribute__((aligned(64)));"])
        at, self.arena = self.arena, self.arena + -(-size // 64) * 64 + 64
        return blocks.lines([note, f"{kind} *const restrict {pointer} = ({kind} *)(arena + {at});"])


def _size(buffer: Buffer) -> tuple[int, int]:
    """Return the stored units and the bytes of scratch."""
    cells = 1
    for extent in constant_shape(buffer):
        cells *= extent
    return max(cells, 1), max(cells, 1) * max(dtypes.info(buffer.dtype).bits, 8) // 8


def _footprint(buffer: Buffer) -> str:
    shape = " x ".join(str(e) for e in buffer.shape) or "1"
    return f"{shape} {buffer.dtype}, {_size(buffer)[1]} bytes"


def _bound(assign: Assign, bind: dict[str, Affine]) -> Assign:
    """Return an assignment with loop variables replaced in subscripts and values."""
    if not bind:
        return assign
    index = tuple(e.substitute(bind) for e in assign.index)
    return replace(assign, index=index, value=substitute_dims(assign.value, bind))


def _decided(constraints: tuple[Constraint, ...], context: Context) -> bool | None:
    """Whether constraints hold once unrolled variables are known; ``None`` where that is open."""
    known = [c.substitute(context.bind).expr for c in constraints]
    if any(not e.is_constant for e in known):
        return None
    return all(e.const == 0 if c.equality else e.const >= 0 for c, e in zip(constraints, known, strict=True))


def _constant_span(loop: Loop, context: Context) -> tuple[int, int] | None:
    """Return the bounds of an unrolled loop that is written out."""
    low = [e.substitute(context.bind) for e in loop.lower]
    high = [e.substitute(context.bind) for e in loop.upper]
    if not shapes.unrolls(loop) or not all(e.is_constant for e in low + high):
        return None
    return max(e.const for e in low), min(e.const for e in high)


def _joined(lines: list[str]) -> list[str]:
    """Put declarations of zeros of one type side by side."""
    out: list[str] = []
    last = ""
    for line in lines:
        match = _ZERO.fullmatch(line)
        kind = match[1] if match else ""
        if match and kind == last and len(out[-1]) + len(match[2]) < 118:
            out[-1] = f"{out[-1][:-1]}, {match[2]};"
        else:
            out.append(line)
        last = kind
    return out

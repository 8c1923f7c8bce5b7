"""From loop-nest nodes to C blocks.

Unrolled loops are expanded here, vector loops become vector values, scratch becomes named registers where every
subscript is known, and straight-line sequences of assignments become runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import cgen

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.scalar import loads, walk
from polyq.emit.address import Memory, Names, Registers, Storage, affine_text, memory_of, offset_of
from polyq.emit.ctypes import Value, compute_type, storage_type, width
from polyq.emit.expressions import Lanes, Run, substituted
from polyq.emit.helpers import Helpers
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, Scope

__all__ = ["Context", "Emitter"]

_COMBINE = {"+": "add", "*": "mul", "min": "min", "max": "max"}
#: scratch up to this size may live on the stack of the thread that runs the region
STACK_BYTES = 4096
REGISTER_CELLS = 128
#: an unrolled loop of more iterations stays a loop
MOST_UNROLLED = 64


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds a node: values of unrolled loop variables, the vector loop, whether a thread region is open,
    and the local C variables (type, name) that a region opened here has to be given."""

    bind: dict[str, Affine] = field(default_factory=dict[str, Affine])
    lanes: Lanes | None = None
    parallel: bool = False
    visible: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One assignment of a run, with its context."""

    assign: Assign
    context: Context
    fold: bool = False


Item = Step | tuple[Loop | Guard | Scope, Context]


class Emitter:
    """Turns blocks into C; regions that run in threads are collected as functions of their own."""

    def __init__(self, names: Names, helpers: Helpers, vector_bytes: int, strict: bool, barrier: bool) -> None:
        self.names, self.helpers = names, helpers
        self.vector_bytes, self.strict, self.barrier = vector_bytes, strict, barrier
        self.storage: dict[str, Storage] = {}
        self.prefetch: dict[str, int] = {}
        self.arena = 0  # bytes of per-thread scratch that the open region needs
        self.regions: list[tuple[Loop, Context]] = []

    # ---- blocks
    def block(self, nodes: Block, context: Context) -> list[cgen.Generable]:
        """Return the C of a sequence of nodes."""
        out: list[cgen.Generable] = []
        run: list[Step] = []
        for item in self._flatten(nodes, context):
            if isinstance(item, Step):
                run.append(item)
                continue
            out += self._run(run)
            run = []
            out += self._node(*item)
        return out + self._run(run)

    def _flatten(self, nodes: Block, context: Context) -> Iterator[Item]:
        for node in nodes:
            match node:
                case Assign():
                    yield Step(node, context)
                case Loop(kind="unroll") if (span := self._constant_span(node, context)) is not None:
                    fold = self._fold_width(node, context)
                    if fold:
                        yield from self._folded(node, context, fold)
                    else:
                        for i in range(*span):
                            yield from self._flatten(node.body, replace(context, bind={**context.bind, node.var: Affine(i)}))
                case Loop(kind="vector") if self._is_simple_vector(node, context):
                    yield from self._vector_items(node, context)
                case Scope(buffers, body) if all(self._place_register(b, body, context) for b in buffers):
                    yield from self._flatten(body, context)
                case Guard(constraints, body) if (verdict := self._decide(constraints, context)) is not None:
                    if verdict:
                        yield from self._flatten(body, context)
                case Loop() | Guard() | Scope():
                    yield node, context

    def _decide(self, constraints: tuple[Constraint, ...], context: Context) -> bool | None:
        """Whether constraints hold once unrolled variables are known; ``None`` where that is open."""
        known = [c.substitute(context.bind).expr for c in constraints]
        if any(not e.is_constant for e in known):
            return None
        return all(e.const == 0 if c.equality else e.const >= 0 for c, e in zip(constraints, known, strict=True))

    def _constant_span(self, loop: Loop, context: Context) -> tuple[int, int] | None:
        low = [e.substitute(context.bind) for e in loop.lower]
        high = [e.substitute(context.bind) for e in loop.upper]
        if all(e.is_constant for e in low + high):
            span = max(e.const for e in low), min(e.const for e in high)
            return span if loop.kind != "unroll" or span[1] - span[0] <= MOST_UNROLLED else None
        return None

    # ---- vector loops
    def _width(self, loop: Loop) -> int:
        """Lanes of a vector loop: its constant upper bound."""
        widths = [u.const for u in loop.upper if u.is_constant]
        return min(widths) if widths else 0

    def _is_simple_vector(self, loop: Loop, context: Context) -> bool:
        """A vector loop over assignments, from 0, whose live lanes are all of them."""
        only = all(isinstance(n, Assign) for n in loop.body)
        return bool(self.vector_bytes) and only and self._constant_span(loop, context) == (0, self._width(loop)) and self._width(loop) > 1

    def _vector_items(self, loop: Loop, context: Context, count: str | None = None) -> Iterator[Item]:
        lanes = Lanes(loop.var, self._width(loop), count)
        for node in loop.body:
            assert isinstance(node, Assign)
            reduces = node.reduce is not None and not any(loop.var in e.substitute(context.bind).dims() for e in node.index)
            yield Step(node, replace(context, lanes=lanes), fold=reduces)

    def _fold_width(self, loop: Loop, context: Context) -> int:
        """Width of the lanes that an unrolled loop sums out of one register, else 0: then it is a tree of lanes."""
        if self.strict or not self.vector_bytes or len(loop.body) != 1 or not isinstance(loop.body[0], Assign):
            return 0
        node = loop.body[0]
        span = self._constant_span(loop, context)
        if node.reduce is None or span is None or span[0] or any(loop.var in e.dims() for e in node.index):
            return 0
        for load in loads(node.value):
            if load.index and load.index[-1].substitute(context.bind) == Affine.dim(loop.var):
                storage = self.storage.get(load.tensor)
                if isinstance(storage, Registers) and storage.lanes == span[1]:
                    return span[1]
        return 0

    def _folded(self, loop: Loop, context: Context, lanes: int) -> Iterator[Item]:
        node = loop.body[0]
        assert isinstance(node, Assign)
        yield Step(node, replace(context, lanes=Lanes(loop.var, lanes)), fold=True)

    # ---- compound nodes
    def _node(self, node: Loop | Guard | Scope, context: Context) -> list[cgen.Generable]:
        match node:
            case Loop(kind="parallel") if not context.parallel:
                self.regions.append((node, context))
                return [cgen.Line(f"@region {len(self.regions) - 1}")]
            case Loop(kind="vector") if self.vector_bytes and self._width(node) > 1 and all(isinstance(n, Assign) for n in node.body):
                return self._masked(node, context)
            case Loop():
                return [self._loop(node, context)]
            case Guard(constraints, body):
                tests = [self._test(c.substitute(context.bind)) for c in constraints]
                return [cgen.If(" && ".join(tests), cgen.Block(self.block(body, context)))]
            case Scope(buffers, body):
                declared: list[cgen.Generable] = []
                for b in buffers:
                    if not self._place_register(b, body, context):
                        declared += self._place_memory(b)
                        pointer = (f"{storage_type(b.dtype)} *const restrict", self.storage[b.name].pointer)
                        context = replace(context, visible=(*context.visible, pointer))
                return [cgen.Block(declared + self.block(body, context))]

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
            text = f"{self.helpers.minmax(fn, 'i64', 1)}({text}, {term})"
        return text

    def _loop(self, loop: Loop, context: Context) -> cgen.Generable:
        low, high = self.bounds(loop, context)
        var = self.names(f"dim {loop.var}")
        body = self.block(loop.body, replace(context, visible=(*context.visible, ("const int64_t", var))))
        return cgen.For(f"int64_t {var} = {low}", f"{var} < {high}", f"++{var}", cgen.Block(body))

    def _masked(self, loop: Loop, context: Context) -> list[cgen.Generable]:
        """A vector loop whose number of live lanes is known at run time: full lanes, or exactly the live ones."""
        low, high = self.bounds(loop, context)
        count = self.names.fresh("live")
        body = loop
        if low != "0":  # lanes count from the lower bound
            shift = context.bind | {loop.var: self._lower(loop, context) + Affine.dim(loop.var)}
            context = replace(context, bind=shift)
        full = self._run(list(self._steps(body, context, None)))
        part = self._run(list(self._steps(body, context, count)))
        text = f"const int64_t {count} = {high} - {low};" if low != "0" else f"const int64_t {count} = {high};"
        branch = cgen.If(f"{count} >= {self._width(loop)}", cgen.Block(full), cgen.make_multiple_ifs([(f"{count} > 0", cgen.Block(part))]))
        return [cgen.Block([cgen.Line(text), branch])]

    def _lower(self, loop: Loop, context: Context) -> Affine:
        assert len(loop.lower) == 1, f"vector loop {loop.var} has several lower bounds"
        return loop.lower[0].substitute(context.bind)

    def _steps(self, loop: Loop, context: Context, count: str | None) -> Iterator[Step]:
        for item in self._vector_items(loop, context, count):
            assert isinstance(item, Step)
            yield item

    # ---- scratch
    def _place_register(self, buffer: Buffer, body: Block, context: Context) -> bool:
        """Make ``buffer`` a set of variables if each of its subscripts is known after unrolling."""
        if buffer.name in self.storage and isinstance(self.storage[buffer.name], Registers):
            return True
        cells = 1
        for e in buffer.shape:
            cells *= e.const
        plan = self._register_plan(buffer.name, body, context) if cells <= REGISTER_CELLS else None
        if plan is None:
            return False
        if plan and (not buffer.shape or buffer.shape[-1].const % plan):
            return False
        self.storage[buffer.name] = Registers(self.names.fresh(buffer.name), buffer.dtype, plan)
        self._declare_registers(buffer, plan)
        return True

    def _declare_registers(self, buffer: Buffer, lanes: int) -> None:
        storage = self.storage[buffer.name]
        assert isinstance(storage, Registers)
        points: list[list[int]] = [[]]
        shape = [e.const for e in buffer.shape]
        if lanes:
            shape[-1] //= lanes
        for extent in shape:
            points = [[*p, i] for p in points for i in range(extent)]
        kind = compute_type(buffer.dtype)
        vector = self.helpers.vector(kind, max(lanes, 1))
        names = ["_".join([storage.prefix, *map(str, p)]) for p in points]
        self.pending.append((vector, names, lanes))

    pending: list[tuple[str, list[str], int]]

    def _register_plan(self, name: str, body: Block, context: Context) -> int | None:
        """Lanes per variable (0: scalars), or ``None`` where a subscript stays open."""
        lanes: set[int] = set()
        if not _known_subscripts(name, body, frozenset(context.bind), None, self._width if self.vector_bytes else None, lanes):
            return None
        if len(lanes - {0}) > 1:
            return None
        return max(lanes, default=0)

    def _place_memory(self, buffer: Buffer) -> list[cgen.Generable]:
        declare: dict[str, str] = {}
        pointer = self.names.fresh(buffer.name)
        self.storage[buffer.name] = memory_of(buffer, pointer, self.names, declare)
        cells = 1
        for e in buffer.shape:
            cells *= e.const
        kind = storage_type(buffer.dtype)
        size = cells * max(dtypes.info(buffer.dtype).bits, 8) // 8
        shape = " x ".join(str(e) for e in buffer.shape)
        note = cgen.Line(f"/* scratch {buffer.name}: {shape} {buffer.dtype}, {size} bytes */")
        if size <= STACK_BYTES:
            return [note, cgen.Line(f"{kind} {pointer}[{max(cells, 1)}] __attribute__((aligned(64)));")]
        at, self.arena = self.arena, self.arena + -(-size // 64) * 64 + 64
        return [note, cgen.Line(f"{kind} *const restrict {pointer} = ({kind} *)(arena + {at});")]

    # ---- runs
    def _run(self, steps: list[Step]) -> list[cgen.Generable]:
        pending, self.pending = self.pending, []
        out: list[cgen.Generable] = []
        for vector, names, lanes in pending:
            start = " = {0}" if lanes else " = 0"
            out += [cgen.Line(f"{vector} {', '.join(n + start for n in names[i : i + 8])};") for i in range(0, len(names), 8)]
        if not steps:
            return out
        run = Run(self.helpers, self.names, self.storage, self.strict, self.barrier, self.prefetch)
        resolved = [self._resolved(step) for step in steps]
        run.uses = Counter(
            (node, s.context.lanes if s.context.lanes and _mentions_var(node, s.context.lanes.var) else None)
            for s in resolved for node in walk(s.assign.value)
        )  # fmt: skip
        for step in resolved:
            Statement(run, self.helpers, self.storage).emit(step)
        return out + [cgen.Line(line) for line in run.lines]

    def _resolved(self, step: Step) -> Step:
        bind = step.context.bind
        a = step.assign
        return replace(step, assign=replace(a, index=tuple(e.substitute(bind) for e in a.index), value=substituted(a.value, bind)))


def _mentions_var(s: object, var: str) -> bool:
    from polyq.emit.expressions import _varies

    return _varies(s, var)  # type: ignore[arg-type]


def _known_subscripts(name: str, body: Block, known: frozenset[str], vector: tuple[str, int] | None, width_of, lanes: set[int]) -> bool:
    """Whether every access to ``name`` has constant subscripts given ``known`` loop variables; collects lane counts."""
    for node in body:
        match node:
            case Loop(var, lower, upper, kind, inner):
                constant = all(not (e.dims() - known) and not e.params() for e in lower + upper)
                inside, v = known, vector
                if kind == "unroll" and constant:
                    inside = known | {var}
                elif kind == "vector" and width_of is not None and width_of(node) > 1 and all(isinstance(n, Assign) for n in inner):
                    v = (var, width_of(node))
                if not _known_subscripts(name, inner, inside, v, width_of, lanes):
                    return False
            case Guard(_, inner) | Scope(_, inner):
                if not _known_subscripts(name, inner, known, vector, width_of, lanes):
                    return False
            case Assign(_, _, target, index, value, _):
                accesses = [load.index for load in loads(value) if load.tensor == name]
                accesses += [index] if target == name else []
                if not all(_is_known(access, known, vector, lanes) for access in accesses):
                    return False
    return True


def _is_known(index: tuple[Affine, ...], known: frozenset[str], vector: tuple[str, int] | None, lanes: set[int]) -> bool:
    lanes.add(0)
    for position, e in enumerate(index):
        free = (e.dims() - known) | e.params()
        if not free:
            continue
        if vector is None or free != {vector[0]} or position != len(index) - 1:
            return False
        rest = e - Affine.dim(vector[0])
        if vector[0] in rest.dims() or rest.const % vector[1] or any(c % vector[1] for a, c in rest.terms if isinstance(a, Dim)):
            return False
        lanes.add(vector[1])
    return True


@dataclass(frozen=True, slots=True)
class Statement:
    """Emits one assignment into a run."""

    run: Run
    helpers: Helpers
    storage: dict[str, Storage]

    def emit(self, step: Step) -> None:
        """Add the statement's lines."""
        assign, lanes = step.assign, step.context.lanes
        storage = self.storage[assign.target]
        kind = compute_type(assign_dtype(storage))
        if step.fold:
            assert lanes is not None and assign.reduce is not None
            self._fold(assign, lanes, storage, kind)
            return
        value = self.run.value(assign.value, lanes)
        if lanes is not None:
            value = self.run.widened(assign.value, lanes)
        if isinstance(storage, Registers):
            self._to_register(assign, lanes, storage, value, kind)
        else:
            self._to_memory(assign, lanes, storage, value, kind)
        self.run.written(assign.target)

    def combine(self, reduce: str | None, old: Value, new: Value) -> str:
        """Return the text of ``old (reduce) new``."""
        if reduce is None:
            return new.text
        if reduce in ("min", "max"):
            return f"{self.helpers.minmax(reduce, new.dtype, new.lanes)}({old.text}, {new.text})"
        text = f"{old.text} {reduce} {new.text}"
        small = new.lanes == 1 and dtypes.is_int(new.dtype) and width(new.dtype) < 4
        return f"({storage_type(new.dtype)})({text})" if small else text

    def _to_register(self, assign: Assign, lanes: Lanes | None, storage: Registers, value: Value, kind: str) -> None:
        name, lane, whole = self.run.register(storage, assign.index, lanes)
        cell = name if lane is None else f"{name}[{lane}]"
        text = self.combine(assign.reduce, Value(cell, kind, value.lanes), value)
        if whole and lanes is not None and lanes.count is not None:
            mask = Value(self.helpers.lane_mask(lanes.width, lanes.count), "mask", lanes.width)
            text = self.helpers.select(mask, Value(f"({text})", kind, lanes.width), Value(name, kind, lanes.width))
        if kind == "mask" and lane is not None:
            text = f"-({text})"
        self.run.lines.append(f"{cell} = {text};")

    def _to_memory(self, assign: Assign, lanes: Lanes | None, storage: Memory, value: Value, kind: str) -> None:
        if dtypes.info(storage.dtype).packed:
            raise NotImplementedError(f"{assign.target}: writing packed {storage.dtype}")
        offset = offset_of(storage, assign.index)
        step = None if lanes is None else offset.stride(lanes.var)
        if lanes is None or step != 1:
            self._by_cell(assign, lanes, storage, value, kind)
            return
        start = replace(offset, known=offset.known.substitute({lanes.var: Affine(0)}))
        address = f"{storage.pointer} + {start.text(self.run.names)}"
        if assign.reduce is not None:
            old = self.run._load_vector(address, storage.dtype, lanes)  # noqa: SLF001
            value = Value(f"({self.combine(assign.reduce, old, value)})", kind, lanes.width)
        unit, text = self._encoded(value, storage.dtype)
        vector = self.helpers.vector(unit, lanes.width)
        if lanes.count is not None:
            self.run.lines.append(f"{self.helpers.store_part(unit, lanes.width)}({address}, {text}, {lanes.count});")
        elif storage.stream:
            self.run.lines.append(f"STREAM({vector}, {address}, {text});")
        else:
            self.run.lines.append(f"*({vector}_u *)({address}) = {text};")

    def _by_cell(self, assign: Assign, lanes: Lanes | None, storage: Memory, value: Value, kind: str) -> None:
        """Store one cell, or the lanes of a vector one after another."""
        if lanes is None:
            cells = [(assign.index, value)]
        else:
            if not value.text.isidentifier():
                value = self.run._name(value, shared=False)  # noqa: SLF001
            sign = "-" if kind == "mask" else ""
            cells = [
                (tuple(e.substitute({lanes.var: Affine(i)}) for e in assign.index), Value(f"({sign}{value.text}[{i}])", kind, 1))
                for i in range(lanes.width)
            ]
        for i, (index, cell) in enumerate(cells):
            at = f"{storage.pointer}[{offset_of(storage, index).text(self.run.names)}]"
            if assign.reduce is not None:
                old = self.run._decode(at, storage.dtype, 1)  # noqa: SLF001
                cell = Value(f"({self.combine(assign.reduce, old, cell)})", kind, 1)
            guard = f"if ({lanes.count} > {i}) " if lanes is not None and lanes.count is not None else ""
            self.run.lines.append(f"{guard}{at} = {self._encoded(cell, storage.dtype)[1]};")

    def _encoded(self, value: Value, dtype: str) -> tuple[str, str]:
        """Return the stored unit's type and the value in it."""
        d = dtypes.info(dtype)
        if d.kind == "f" and d.bits == 16:
            self.helpers.half(dtype)
            return "u16", f"to_{dtype}({value.text})" if value.lanes == 1 else self.helpers.by_lane(f"to_{dtype}", value, "u16")
        if d.kind == "b":
            if value.lanes == 1:
                return "u8", f"{value.text} != 0"
            return "u8", f"({self.helpers.convert(Value(f'({value.text} & 1)', 'i32', value.lanes), 'u8').text})"
        return value.dtype, value.text

    def _fold(self, assign: Assign, lanes: Lanes, storage: Storage, kind: str) -> None:
        """Combine all lanes of the value into one cell."""
        value = self.run.widened(assign.value, lanes)
        assert assign.reduce is not None
        if lanes.count is not None:
            mask = Value(self.helpers.lane_mask(lanes.width, lanes.count), "mask", lanes.width)
            neutral = self.helpers.splat(Value(_neutral(assign.reduce, kind), kind, 1), lanes.width)
            value = Value(self.helpers.select(mask, value, neutral), kind, lanes.width)
        total = Value(self.helpers.fold(self._scalar(assign.reduce, kind), value), kind, 1)
        if isinstance(storage, Registers):
            self._to_register(assign, None, storage, total, kind)
        else:
            self._by_cell(assign, None, storage, total, kind)
        self.run.written(assign.target)

    def _scalar(self, reduce: str, kind: str) -> str:
        if reduce in ("min", "max"):
            return self.helpers.minmax(reduce, kind, 1)
        return self.helpers.binary(_COMBINE[reduce], reduce, kind)


def assign_dtype(storage: Storage) -> str:
    """Return the element type of a buffer."""
    return storage.dtype


def _neutral(reduce: str, kind: str) -> str:
    if reduce in ("+", "*"):
        return "0" if reduce == "+" else "1"
    if dtypes.is_float(kind):
        return f"{'-' if reduce == 'max' else ''}__builtin_inff()"
    low, high = dtypes.value_range(kind)
    from polyq.emit.expressions import _literal

    return _literal(low if reduce == "max" else high, kind)


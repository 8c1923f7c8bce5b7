"""Loop nests run instance by instance on symbols: what a schedule does, without a set or a relation.

Every value is interned twice: as the plain expression that it is, and with the instances that made it. A reduction
whose order is free is a multiset of terms. What goes wrong is recorded as a :class:`Fault`; the run goes on, so that
every event is there to check a witness against.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.affine.spec import Op, Spec
from polyq.schedule.loopnest import Assign, Block, Guard, Loop, LoopNest, Scope
from polyq.schedule.naive import naive_nest

Cell = tuple[int, tuple[int, ...]]
Point = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """Numbers of the plain expression and of the expression with its instances."""

    plain: int
    origin: int


@dataclass
class Total:
    """What a free reduction has collected so far in one cell."""

    op: str
    reduce: str
    start: Value | None
    terms: list[Value]
    cell: Cell


@dataclass(frozen=True)
class Event:
    """One executed assignment: the loop variables, the instance, what each operand held, and the cells."""

    op: str
    loops: dict[str, int]
    instance: Point
    operands: tuple[Value | None, ...]
    before: Value | None
    reads: tuple[Cell, ...]
    write: Cell
    sources: tuple[tuple[str, Point] | None, ...]


@dataclass(frozen=True)
class Fault:
    """Something wrong: ``kind`` as in a witness, and the op or tensor that it happened in."""

    kind: str
    where: str
    detail: str = ""


@dataclass
class Table:
    """Numbers for expressions, shared by the runs that are compared."""

    numbers: dict[object, int] = field(default_factory=dict)

    def number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def leaf(self, *key: object) -> Value:
        return Value(self.number(key), self.number(key))

    def frozen(self, total: Total) -> Value:
        plain = tuple(sorted(t.plain for t in total.terms))
        origin = tuple(sorted(t.origin for t in total.terms))
        start = total.start or Value(-1, -1)
        return Value(
            self.number((total.reduce, "total", start.plain, plain)),
            self.number((total.op, "total", start.origin, origin)),
        )


@dataclass
class Run:
    """One execution of a nest."""

    table: Table
    free: frozenset[str]
    cells: dict[Cell, Value | Total] = field(default_factory=dict)
    writer: dict[Cell, tuple[str, Point]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    touched: list[tuple[set[Cell], set[Cell]]] = field(default_factory=list)
    storages: Iterator[int] = field(default_factory=itertools.count)
    whole: dict[str, tuple[int, Point]] = field(default_factory=dict)

    def value(self, cell: Cell) -> Value | None:
        held = self.cells.get(cell)
        return self.table.frozen(held) if isinstance(held, Total) else held

    def output(self, name: str) -> dict[Point, Value]:
        number, shape = self.whole[name]
        points = itertools.product(*map(range, shape))
        held = {p: self.value((number, p)) for p in points}
        return {p: v for p, v in held.items() if v is not None}


def execute(nest: LoopNest, table: Table, free: frozenset[str]) -> Run:
    """Run a nest without parameters."""
    run = Run(table, free)
    run.whole = {b.name: (next(run.storages), tuple(e.evaluate({}, {}) for e in b.shape)) for b in nest.buffers}
    for b in nest.buffers:
        number, shape = run.whole[b.name]
        if b.kind in ("input", "inout"):
            for point in itertools.product(*map(range, shape)):
                run.cells[number, point] = table.leaf("in", b.name, point)
    _block(nest.body, {}, run.whole, run)
    return run


def _block(block: Block, at: dict[str, int], visible: dict[str, tuple[int, Point]], run: Run) -> None:
    for node in block:
        match node:
            case Loop():
                _loop(node, at, visible, run)
            case Guard(constraints, body):
                values = [(c.expr.evaluate(at, {}), c.equality) for c in constraints]
                if all(v == 0 if eq else v >= 0 for v, eq in values):
                    _block(body, at, visible, run)
            case Scope(buffers, body):
                made = {b.name: (next(run.storages), tuple(e.const for e in b.shape)) for b in buffers}
                _block(body, at, {**visible, **made}, run)
            case Assign():
                _assign(node, at, visible, run)


def _loop(node: Loop, at: dict[str, int], visible: dict[str, tuple[int, Point]], run: Run) -> None:
    low = max(e.evaluate(at, {}) for e in node.lower)
    high = min(e.evaluate(at, {}) for e in node.upper)
    reads: set[Cell] = set()
    writes: set[Cell] = set()
    for value in range(low, high):
        run.touched.append((set(), set()))
        _block(node.body, {**at, node.var: value}, visible, run)
        r, w = run.touched.pop()
        if node.kind in ("parallel", "vector") and (w & (reads | writes) or r & writes):
            run.faults.append(Fault("race", node.var))
        reads |= r
        writes |= w
    if run.touched:
        run.touched[-1][0].update(reads)
        run.touched[-1][1].update(writes)


def _assign(node: Assign, at: dict[str, int], visible: dict[str, tuple[int, Point]], run: Run) -> None:
    def cell(name: str, index: tuple[Any, ...]) -> Cell:
        number, shape = visible[name]
        point = tuple(e.evaluate(at, {}) for e in index)
        if not all(0 <= i < n for i, n in zip(point, shape, strict=True)):
            run.faults.append(Fault("bounds", node.op, f"{name}{point} outside {shape}"))
        return number, point

    operands: list[Value | None] = []
    reads: list[Cell] = []

    def load(name: str, index: tuple[Any, ...]) -> Value:
        c = cell(name, index)
        reads.append(c)
        held = run.value(c)
        operands.append(held)
        if held is None:
            run.faults.append(Fault("uninitialised", node.op, f"{name}{c[1]}"))
            return run.table.leaf("nothing")
        return held

    plain = _plain(node.value, at, load, run.table)
    target = cell(node.target, node.index)
    instance = tuple(e.evaluate(at, {}) for e in node.instance)
    origin = run.table.number((node.op, instance, tuple(o.origin if o else -1 for o in operands)))
    term = Value(plain, origin)
    before: Value | None = None
    sources = [run.writer.get(c) for c in reads]
    if node.reduce:
        sources.append(run.writer.get(target))
        if target not in run.cells:
            run.faults.append(Fault("uninitialised", node.op, f"{node.target}{target[1]}"))
        if node.op in run.free:
            _collect(node, term, target, run)
        else:
            before = run.value(target)
            old = before or Value(-1, -1)
            key = (node.op, "update", instance, origin, old.origin)
            run.cells[target] = Value(run.table.number((node.reduce, old.plain, plain)), run.table.number(key))
        reads.append(target)
    else:
        run.cells[target] = term
    run.writer[target] = (node.op, instance)
    if run.touched:
        run.touched[-1][0].update(reads)
        run.touched[-1][1].add(target)
    run.events.append(
        Event(node.op, dict(at), instance, tuple(operands), before, tuple(reads), target, tuple(sources))
    )


def _collect(node: Assign, term: Value, target: Cell, run: Run) -> None:
    held = run.cells.get(target)
    if not (isinstance(held, Total) and held.op == node.op):
        held = Total(node.op, node.reduce or "", run.value(target), [], target)
        run.totals.append(held)
        run.cells[target] = held
    held.terms.append(term)


def _plain(s: Scalar, at: dict[str, int], load: Any, table: Table) -> int:
    match s:
        case Load(name, index, _):
            return load(name, index).plain
        case Const():
            return table.number(repr(s))
        case Index(expr, dtype):
            return table.number(("index", expr.evaluate(at, {}), dtype))
        case Cast(arg, dtype):
            return table.number(("cast", dtype, _plain(arg, at, load, table)))
        case Apply(fn, args, dtype):
            return table.number((fn, dtype, *(_plain(a, at, load, table) for a in args)))


# ---- the verdict
@dataclass(frozen=True)
class Verdict:
    """Why a nest is wrong, if it is; whether the outputs are the same expressions all the same; both runs."""

    faults: tuple[Fault, ...]
    same_outputs: bool
    original: Run
    run: Run

    @property
    def legal(self) -> bool:
        return not self.faults


def free_reductions(spec: Spec, strict: bool) -> frozenset[str]:
    """Return the reductions whose order may change: of no consequence or allowed, and only totals are read."""
    allowed: set[str] = set()
    for op in spec.ops:
        exact = op.reduce in ("min", "max") or not dtypes.is_float(spec.tensor(op.target).dtype)
        if op.reduce and (exact or not strict):
            allowed.add(op.name)
    run = execute(naive_nest(spec), Table(), frozenset())
    last: dict[Cell, tuple[str, Point]] = {}
    partial: set[tuple[str, Point]] = set()  # values that the next update of the same op replaced
    seen: set[tuple[str, Point]] = set()
    for e in run.events:
        own = last.get(e.write) if spec.op(e.op).reduce else None
        seen |= {s for s in e.sources[: len(e.operands)] if s is not None}
        if own is not None and own[0] == e.op:
            partial.add(own)
        elif own is not None:
            seen.add(own)
        last[e.write] = (e.op, e.instance)
    seen |= set(last.values())
    return frozenset(n for n in allowed if not any(name == n for name, _ in partial & seen))


def judge(spec: Spec, nest: LoopNest, strict: bool) -> Verdict:
    """Compare a nest with the spec run as written: every read, every total, every output, every concurrent loop."""
    table, free = Table(), free_reductions(spec, strict)
    original = execute(naive_nest(spec), table, free)
    run = execute(nest, table, free)
    faults = list(run.faults)
    wanted = {(e.op, e.instance): (e.operands, e.before) for e in original.events}
    for e in run.events:
        if (e.op, e.instance) not in wanted:
            faults.append(Fault("domain", e.op, str(e.instance)))
        elif wanted[e.op, e.instance] != (e.operands, e.before):
            faults.append(Fault("flow", e.op, str(e.instance)))
    finished = {table.frozen(t).origin for t in original.totals}
    faults += [Fault("reduction", t.op) for t in run.totals if table.frozen(t).origin not in finished]
    same = True
    for name in spec.output_names:
        want, got = original.output(name), run.output(name)
        if want != got:
            faults.append(Fault("output", name))
        same &= {p: v.plain for p, v in want.items()} == {p: v.plain for p, v in got.items()}
    return Verdict(tuple(faults), same, original, run)


# ---- witnesses
def inside(op: Op, dims: dict[str, int]) -> bool:
    """Whether ``dims`` is a point of the op's domain."""
    values = [(c.expr.evaluate(dims, {}), c.equality) for c in op.domain]
    return all(v == 0 if equality else v >= 0 for v, equality in values)


def lies(spec: Spec, verdict: Verdict, found: Any) -> str | None:
    """Return what is untrue about a witness: its instances must have run as it says, and be in conflict."""
    events: list[list[Event]] = []
    for w in found.instances:
        here = [
            e for e in verdict.run.events
            if e.op == w.op and e.instance == tuple(v for _, v in w.dims) and all(e.loops.get(k) == v for k, v in w.loops)
        ]  # fmt: skip
        if not here and w.loops:
            return f"{w} did not run at {w.loops}"
        if inside(spec.op(w.op), dict(w.dims)) == (found.kind == "domain"):
            return f"{w} is no instance of the spec, or the other way round"
        events.append(here)
    return _conflict(spec, verdict, found, events)


def _conflict(spec: Spec, verdict: Verdict, found: Any, events: list[list[Event]]) -> str | None:
    kinds = {f.kind for f in verdict.faults}
    match found.kind:
        case "race":
            (a, *_), (b, *_) = events
            apart = a.loops[found.loop] != b.loops[found.loop]
            around = list(itertools.takewhile(lambda v: v != found.loop, a.loops))
            apart &= all(a.loops[v] == b.loops.get(v) for v in around)
            meet = a.write in (*b.reads, b.write) or b.write in a.reads
            return None if apart and meet else f"{a} and {b} do not race"
        case "bounds" | "uninitialised":
            names = {f.where for f in verdict.faults if f.kind == found.kind}
            return None if all(e.op in names for es in events for e in es[:1]) else "nothing of the kind happens there"
        case "flow":
            return _wrong_value(verdict, found, events)
        case "domain":
            return None
        case "reduction":
            named = {f.where for f in verdict.faults if f.kind == "reduction"}
            return None if named & {i.op for i in found.instances} or kinds & {"flow", "output"} else "all totals are whole"
        case other:
            return f"the kind {other} has no witness to check"


def _wrong_value(verdict: Verdict, found: Any, events: list[list[Event]]) -> str | None:
    if "output" in {f.kind for f in verdict.faults} and len(events) < 2:
        return None
    if not events:
        return "no instance is named"
    wanted = {(e.op, e.instance): (e.operands, e.before) for e in verdict.original.events}
    sinks = [e for e in events[-1] if wanted.get((e.op, e.instance)) != (e.operands, e.before)]
    if not sinks:
        return None if len(events) == 1 or _starts_wrong(verdict, events) else f"{found.instances[-1]} reads what it should"
    if len(events) == 2:
        source = found.instances[0]
        name = (source.op, tuple(v for _, v in source.dims))
        if not any(name in e.sources for e in sinks):
            return f"{found.instances[-1]} does not read what {source} wrote"
    return None


def _starts_wrong(verdict: Verdict, events: list[list[Event]]) -> bool:
    """Whether the sink is the head of a free reduction whose total starts from another value than in the spec."""
    return any(f.kind == "reduction" and f.where == events[-1][0].op for f in verdict.faults)

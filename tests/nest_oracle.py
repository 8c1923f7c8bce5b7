"""A LoopNest run step by step on symbolic values: the brute-force oracle of legality and of the certificate.

A value is a tree that names the op instance that made it and the values it read. Totals of reductions whose order is
free are multisets of terms. Nothing is shared with what it judges but the nest's own nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.affine.spec import Spec
from polyq.schedule.loopnest import Assign, Block, Guard, Loop, LoopNest, Scope
from polyq.schedule.naive import naive_nest

Cell = tuple[int, tuple[int, ...]]


class Wrong(Exception):
    """The nest does not compute the spec."""


@dataclass
class Run:
    """One execution: ``cells`` by (storage number, index), what each instance read, and the touches for races."""

    params: dict[str, int]
    free: frozenset[str]
    cells: dict[Cell, Any] = field(default_factory=dict)
    read: dict[tuple[str, tuple[int, ...]], tuple[Any, ...]] = field(default_factory=dict)
    original: Run | None = None
    touched: list[tuple[set[Cell], set[Cell]]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    totals: list[Any] = field(default_factory=list)
    continued: set[int] = field(default_factory=set)

    def finished(self) -> set[Any]:
        """The totals that no update continued."""
        return {v for v in self.totals if id(v) not in self.continued}


def free_reductions(spec: Spec, strict: bool, params: dict[str, int]) -> frozenset[str]:
    """Return the reductions whose order is free: exact or allowed, and nobody reads a partial total."""
    allowed = {
        op.name for op in spec.ops
        if op.reduce and (op.reduce in ("min", "max") or not dtypes.is_float(spec.tensor(op.target).dtype) or not strict)
    }  # fmt: skip
    run = Run(params, frozenset())
    execute(naive_nest(spec), run)
    partial: set[Any] = set()  # values that the next update of the same op replaced
    seen: set[Any] = set()
    for (name, _), values in run.read.items():
        op = spec.op(name)
        operands = values
        if op.reduce:
            operands = values[:-1]
            if values[-1] is not None and values[-1][0] == name:
                partial.add(values[-1])
            elif values[-1] is not None:
                seen.add(values[-1])
        seen.update(operands)
    seen |= set(run.cells.values())
    return frozenset(n for n in allowed if not any(v[0] == n for v in partial & seen))


def execute(nest: LoopNest, run: Run) -> dict[str, int]:
    """Run a nest; return the storage numbers of its whole buffers."""
    numbers = {b.name: (next(run.numbers), tuple(e.evaluate({}, run.params) for e in b.shape)) for b in nest.buffers}
    for b in nest.buffers:
        if b.kind in ("input", "inout"):
            number, shape = numbers[b.name]
            for index in itertools.product(*(range(n) for n in shape)):
                run.cells[number, index] = ("in", b.name, index)
    _block(nest.body, {}, numbers, run)
    return {name: number for name, (number, _) in numbers.items()}


def _block(block: Block, at: dict[str, int], visible: dict[str, tuple[int, tuple[int, ...]]], run: Run) -> None:
    for node in block:
        match node:
            case Loop():
                _loop(node, at, visible, run)
            case Guard(constraints, body):
                values = [(c.expr.evaluate(at, run.params), c.equality) for c in constraints]
                if all(v == 0 if eq else v >= 0 for v, eq in values):
                    _block(body, at, visible, run)
            case Scope(buffers, body):
                made = {b.name: (next(run.numbers), tuple(e.const for e in b.shape)) for b in buffers}
                _block(body, at, {**visible, **made}, run)
            case Assign():
                _assign(node, at, visible, run)


def _loop(node: Loop, at: dict[str, int], visible: dict[str, tuple[int, tuple[int, ...]]], run: Run) -> None:
    low = max(e.evaluate(at, run.params) for e in node.lower)
    high = min(e.evaluate(at, run.params) for e in node.upper)
    concurrent = node.kind in ("parallel", "vector")
    reads: set[Cell] = set()
    writes: set[Cell] = set()
    for value in range(low, high):
        run.touched.append((set(), set()))
        _block(node.body, {**at, node.var: value}, visible, run)
        r, w = run.touched.pop()
        if concurrent and (w & (reads | writes) or r & writes):
            raise Wrong(f"race of {node.var}")
        reads |= r
        writes |= w
        if run.touched:
            run.touched[-1][0].update(r)
            run.touched[-1][1].update(w)


def _assign(node: Assign, at: dict[str, int], visible: dict[str, tuple[int, tuple[int, ...]]], run: Run) -> None:
    def cell(name: str, index: tuple[Any, ...]) -> Cell:
        number, shape = visible[name]
        where = tuple(e.evaluate(at, run.params) for e in index)
        if not all(0 <= i < n for i, n in zip(where, shape, strict=True)):
            raise Wrong(f"{node.op} touches {name}{where} outside {shape}")
        return number, where

    def load(name: str, index: tuple[Any, ...]) -> Any:
        c = cell(name, index)
        if run.touched:
            run.touched[-1][0].add(c)
        if c not in run.cells:
            raise Wrong(f"{node.op} reads {name}{c[1]} too early")
        return run.cells[c]

    def operands(s: Scalar) -> Iterator[Any]:
        match s:
            case Load(name, index, _):
                yield load(name, index)
            case Cast(arg, _):
                yield from operands(arg)
            case Apply(_, args, _):
                for a in args:
                    yield from operands(a)
            case Const() | Index():
                pass

    values = tuple(operands(node.value))
    target = cell(node.target, node.index)
    before = load(node.target, node.index) if node.reduce else None
    instance = (node.op, tuple(e.evaluate(at, run.params) for e in node.instance))
    result = _result(node, instance, values, before, run) if node.op else values[0]
    run.cells[target] = result
    if run.touched:
        run.touched[-1][1].add(target)


def _result(node: Assign, instance: Any, values: tuple[Any, ...], before: Any, run: Run) -> Any:
    is_free = node.op in run.free
    seen = (*values, before) if node.reduce and not is_free else values
    if run.original is not None:
        if instance not in run.original.read:
            raise Wrong(f"{instance} is no instance")
        if run.original.read[instance] != seen:
            raise Wrong(f"{instance} reads other values")
    run.read[instance] = seen
    if not is_free:
        return (*instance, seen)
    term = (*instance, values)
    if isinstance(before, tuple) and before[0] == node.op and before[1] == "total":
        if id(before) in run.continued:
            raise Wrong(f"{instance} continues what another update continued")
        run.continued.add(id(before))
        new = (node.op, "total", before[2], tuple(sorted((*before[3], term), key=repr)))
    else:
        new = (node.op, "total", before, (term,))
    run.totals.append(new)
    return new


def judge(spec: Spec, nest: LoopNest, strict: bool = False, params: dict[str, int] | None = None) -> str | None:
    """Return why ``nest`` is wrong, or ``None``."""
    at = params or {}
    free = free_reductions(spec, strict, at)
    original = Run(at, free)
    first = execute(naive_nest(spec), original)
    run = Run(at, free, original=original)
    try:
        second = execute(nest, run)
    except Wrong as wrong:
        return str(wrong)
    # a total that nobody reads must be right as well: no dead code with other values
    if not run.finished() <= original.finished():
        return "a total misses terms, or starts from another value"
    for name in spec.output_names:
        want = {c[1]: v for c, v in original.cells.items() if c[0] == first[name]}
        got = {c[1]: v for c, v in run.cells.items() if c[0] == second[name]}
        if want != got:
            return f"{name} differs"
    return None

"""Values of single cells of a spec, evaluated backwards from the cell.

An :class:`Evaluator` finds the instances that write a cell by solving its subscripts, evaluates their bodies, and so on
back to the inputs, many cells at once. It never looks at a whole tensor: the cost is that of the instances that
contribute. Arithmetic is that of :mod:`polyq.affine.field`.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave the results of indexing and tiling partly unknown
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyq.affine import field as arithmetic
from polyq.affine.expr import Affine, Dim, FloorDiv
from polyq.affine.regroup import row_major
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, map_scalar
from polyq.affine.spec import Op, Spec

__all__ = ["Evaluator", "Outside", "TooLarge", "Versions", "flattened", "table"]

#: instances that one evaluator may evaluate, and that one step may look at
MOST_INSTANCES = 1 << 21
#: steps of a recurrence that one evaluator may take, one after another
MOST_STEPS = 4096
#: statements that are evaluated inside one another, well within what Python allows of calls
MOST_NESTED = 32

Array = NDArray[np.int64]
Columns = Sequence[Array]
#: a tensor, its cells and their count, and the op before which they are read
Read = tuple[str, Columns, int, int]


def flattened(cells: Columns, shape: Sequence[int], count: int) -> Array:
    """Return the positions of cells in row-major order."""
    flat = np.zeros(count, np.int64)
    for column, extent in zip(cells, shape, strict=True):
        flat = flat * extent + column
    return flat


def table(columns: Columns, count: int) -> Array:
    """Return columns side by side, of shape ``(count, number of columns)``."""
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.int64)


class Outside(Exception):
    """An instance that contributes reads outside of a tensor."""


class TooLarge(Exception):
    """A cell depends on more instances than may be evaluated."""


class _Nested(Exception):
    """A read that stands too deep in a chain of statements: it is to be known before the others are tried again."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self.read = read


class Versions:
    """Numbers for what a tensor holds: equal ones, in one spec or two, mean the same statements on the same inputs."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}

    def _number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def of(self, spec: Spec) -> dict[str, tuple[int, ...]]:
        """Return, for every tensor, the version before the first op and after each op."""
        now: dict[str, int] = {}
        shapes = {t.name: t.shape for t in spec.all_tensors}
        for t in spec.all_tensors:  # unknowns are told apart by their position in memory, whatever the shape
            place = t.name in spec.input_names, t.name in spec.output_names
            now[t.name] = self._number((t.name, t.dtype, row_major(t), *place))
        chains = {name: [v] for name, v in now.items()}
        for op in spec.ops:

            def leaf(node: Const | Index | Load, op: Op = op) -> Scalar:
                here = isinstance(node, Load) and ("self" if node.tensor == op.target else f"#{now[node.tensor]}")
                return replace(node, tensor=here) if isinstance(node, Load) and here else node

            body = map_scalar(op.body, leaf)
            # repr tells -0.0 from 0.0
            walked = (shapes[op.target], *(shapes[r.tensor] for r in op.reads))
            key = (now[op.target], op.dims, op.extents, op.index, repr(body), op.reduce, op.where, walked)
            now[op.target] = self._number(key)
            for name, v in now.items():
                chains[name].append(v)
        return {name: tuple(chain) for name, chain in chains.items()}


@dataclass(slots=True)
class Rows:
    """Instances of one op: the values of dims by name, and the number of the wanted cell that each one writes."""

    cell: NDArray[np.intp]
    dims: dict[str, Array]

    def where(self, kept: NDArray[np.bool_]) -> Rows:
        """Return the rows that are kept."""
        return self if kept.all() else Rows(self.cell[kept], {d: v[kept] for d, v in self.dims.items()})

    def times(self, name: str, count: int) -> Rows:
        """Return every row ``count`` times, with ``name`` from 0 on."""
        size = len(self.cell) * count
        if size > MOST_INSTANCES:
            raise TooLarge(f"a cell depends on too many instances ({size} at once)")
        dims = {d: np.repeat(v, count) for d, v in self.dims.items()}
        return Rows(np.repeat(self.cell, count), {**dims, name: np.tile(np.arange(count), len(self.cell))})


@dataclass
class Evaluator:
    """Values of one spec at given parameters. Tensors whose version is in ``opaque`` are unknowns, as inputs are."""

    spec: Spec
    params: Mapping[str, int]
    versions: Mapping[str, tuple[int, ...]]
    opaque: frozenset[int]
    extremes: arithmetic.Extremes
    instances: int = 0
    steps: int = 0
    nested: int = 0
    known: dict[tuple[str, int, bytes], Array] = field(default_factory=dict[tuple[str, int, bytes], Array])

    def __post_init__(self) -> None:
        self.shapes = {t.name: [e.evaluate({}, self.params) for e in t.extents] for t in self.spec.all_tensors}
        self.dtypes = {t.name: t.dtype for t in self.spec.all_tensors}

    def final(self, tensor: str, cells: Columns, count: int) -> Array:
        """Return what ``count`` cells hold in the end, of shape ``(POINTS, count)``."""
        waiting: list[Read] = [(tensor, cells, count, len(self.spec.ops))]
        while True:
            self.nested = 0
            try:
                found = self.read(*waiting[-1])
            except _Nested as deeper:
                waiting.append(deeper.read)
                continue
            waiting.pop()
            if not waiting:
                return found

    def read(self, tensor: str, cells: Columns, count: int, position: int) -> Array:
        """Return what cells hold before the op at ``position`` runs."""
        flat = flattened(cells, self.shapes[tensor], count)
        while position and self.spec.ops[position - 1].target != tensor:
            position -= 1
        version = self.versions[tensor][position]
        if version in self.opaque or position == 0:
            return self._unknown(tensor, version, flat, position)
        unique, back = np.unique(flat, return_inverse=True)
        key = (tensor, position, unique.tobytes())
        if key not in self.known:
            if self.nested == MOST_NESTED:
                raise _Nested((tensor, cells, count, position))
            self.nested += 1
            columns = np.unravel_index(unique, self.shapes[tensor]) if self.shapes[tensor] else ()
            self.known[key] = self._written(position - 1, list(columns), len(unique))
            self.nested -= 1
        return self.known[key][:, back]

    def _unknown(self, tensor: str, version: int, flat: Array, position: int) -> Array:
        if position == 0 and tensor not in self.spec.input_names:
            if tensor in self.spec.output_names:
                return np.zeros((arithmetic.POINTS, len(flat)), np.int64)
            return arithmetic.symbols(f"unwritten {tensor}", flat)
        return arithmetic.symbols(f"version {version}", flat)

    # ---- one op
    def _written(self, position: int, cells: Columns, count: int) -> Array:
        """Return what cells of the target of an op hold after it."""
        op = self.spec.ops[position]
        own = any(r.tensor == op.target for r in op.reads)
        if own:
            return self._recurrence(position, cells, count)
        rows = self._rows(op, cells, count)
        terms = self.evaluate(op.body, rows, position)
        if op.reduce is not None:
            return self.fold(op, self.read(op.target, cells, count, position), terms, rows.cell)
        result = np.zeros((arithmetic.POINTS, count), np.int64)
        hit = np.zeros(count, np.bool_)
        hit[rows.cell] = True
        result[:, rows.cell] = terms
        missing = np.flatnonzero(~hit)
        if len(missing):
            result[:, missing] = self.read(op.target, [c[missing] for c in cells], len(missing), position)
        return result

    def fold(self, op: Op, start: Array, terms: Array, cell: NDArray[np.intp]) -> Array:
        """Return what cells that hold ``start`` hold after the updates of a reduction."""
        if op.reduce in ("+", "*"):
            return arithmetic.fold(op.reduce, start, terms, cell)
        count = start.shape[1]
        both = np.concatenate([start, np.broadcast_to(terms, (arithmetic.POINTS, len(cell)))], axis=1)
        places = np.concatenate([np.arange(count), cell])
        return self.extremes.fold(op.reduce or "", self.dtypes[op.target], both, places, count)

    def apply(self, node: Apply, args: Sequence[Array]) -> Array:
        """Apply a function."""
        if node.fn not in ("min", "max"):
            return arithmetic.apply(node, args)
        a, b = np.broadcast_arrays(*args)
        both = np.tile(np.arange(a.shape[1]), 2)
        return self.extremes.fold(node.fn, node.dtype, np.concatenate([a, b], axis=1), both, a.shape[1])

    def _rows(self, op: Op, cells: Columns, count: int) -> Rows:
        """Return all instances of ``op`` that write one of the cells."""
        rows = Rows(np.arange(count), {})
        pending = list(zip(op.index, cells, strict=True))
        wheres = list(op.where)
        while True:
            for c in [c for c in wheres if c.expr.dims() <= rows.dims.keys()]:
                wheres.remove(c)
                value = self._value(c.expr, rows)
                rows = rows.where(value == 0 if c.equality else value >= 0)
            for e, column in [p for p in pending if p[0].dims() <= rows.dims.keys()]:
                pending.remove(next(p for p in pending if p[0] is e and p[1] is column))
                rows = rows.where(self._value(e, rows) == column[rows.cell])
            if len(rows.dims) == len(op.dims):
                break
            rows = self._one_more(op, rows, pending)
        self.instances += len(rows.cell)
        if self.instances > MOST_INSTANCES:
            raise TooLarge(f"its cells depend on more than {MOST_INSTANCES} instances")
        return rows

    def _one_more(self, op: Op, rows: Rows, pending: list[tuple[Affine, Array]]) -> Rows:
        """Return the rows with one more dim, found from a subscript where that is possible, else enumerated."""
        open_dims = [d for d in op.dims if d not in rows.dims]
        for e, column in pending:
            unknown = e.dims() - rows.dims.keys()
            if len(unknown) == 1:
                solved = self._solve(op, rows, e, column[rows.cell], next(iter(unknown)))
                if solved is not None:
                    return solved
        in_pending = [d for e, _ in pending for d in e.dims() if d in open_dims]
        dim = min(in_pending or open_dims, key=lambda d: (self._extent(op, d), open_dims.index(d)))
        return rows.times(dim, max(0, self._extent(op, dim)))

    def _solve(self, op: Op, rows: Rows, e: Affine, wanted: Array, dim: str) -> Rows | None:
        """Solve ``e == wanted`` for ``dim``: one solution a row, or the few that a floor leaves."""
        holders = [(a, c) for a, c in e.terms if dim in Affine(0, ((a, c),)).dims()]
        if len(holders) != 1:
            return None
        atom, factor = holders[0]
        rest = wanted - self._value(e - Affine(0, ((atom, 1),)) * factor, rows)
        if factor != 1:
            whole = rest % factor == 0
            rows, rest = rows.where(whole), rest[whole] // factor
        spread = 1
        if isinstance(atom, FloorDiv):
            inner = atom.numerator
            if inner.coefficient(Dim(dim)) != 1 or dim in (inner - Affine.dim(dim)).dims():
                return None
            spread = atom.divisor
            rest = rest * spread - self._value(inner - Affine.dim(dim), rows)
        if spread == 1:
            rows, value = Rows(rows.cell, {**rows.dims, dim: rest}), rest
        else:
            rows = rows.times(dim, spread)
            value = np.repeat(rest, spread) + rows.dims[dim]
            rows.dims[dim] = value
        return rows.where((value >= 0) & (value < self._extent(op, dim)))

    def _extent(self, op: Op, dim: str) -> int:
        return op.extent(dim).evaluate({}, self.params)

    def _value(self, e: Affine, rows: Rows) -> Array:
        value: object = e.evaluate(rows.dims, self.params)  # type: ignore[arg-type]
        # most have the right shape, and broadcasting takes longer than the arithmetic
        return value if isinstance(value, np.ndarray) else np.full(rows.cell.shape, value, np.int64)

    # ---- bodies
    def evaluate(self, node: Scalar, rows: Rows, position: int) -> Array:
        """Return the values of a body of the op at ``position``, which may have one column for all rows."""
        match node:
            case Const():
                return arithmetic.const(node)
            case Index(expr, _):
                return arithmetic.integers(self._value(expr, rows))
            case Load():
                return self.read(node.tensor, self.cells(node, rows), len(rows.cell), position)
            case Cast(arg, _):
                return arithmetic.cast(node, self.evaluate(arg, rows, position))
            case Apply("ldexp", (x, exponent), _):
                return arithmetic.scale(self.evaluate(x, rows, position), self._exponent(exponent, rows))
            case Apply(_, args, _):
                return self.apply(node, [self.evaluate(a, rows, position) for a in args])

    def _exponent(self, node: Scalar, rows: Rows) -> Array:
        if isinstance(node, Index):
            return self._value(node.expr, rows)
        if not isinstance(node, Const):
            raise TypeError(f"ldexp: expected an index value or a literal as exponent, got {node}")
        return np.full(rows.cell.shape, int(node.value), np.int64)

    def cells(self, node: Load, rows: Rows) -> list[Array]:
        """Return the cells that a load reads; :class:`Outside` where one is none of its tensor."""
        cells = [self._value(e, rows) for e in node.index]
        for axis, (column, extent) in enumerate(zip(cells, self.shapes[node.tensor], strict=True)):
            outside = (column < 0) | (column >= extent)
            if outside.any():
                place = f"subscript {axis} of {node.tensor}, {node.index[axis]}"
                raise Outside(f"{place}, is {column[outside][0]}, outside 0 to {extent - 1}")
        return cells

    # ---- recurrences
    def _recurrence(self, position: int, cells: Columns, count: int) -> Array:
        """Run an op that reads its own target forwards: over all instances that share what no instance crosses."""
        op = self.spec.ops[position]
        own = [r for r in op.reads if r.tensor == op.target]
        apart = [i for i, e in enumerate(op.index) if all(r.index[i] == e for r in own)]
        columns = [c if i in apart else np.zeros(count, np.int64) for i, c in enumerate(cells)]
        groups = np.unique(table(columns, count), axis=0) if apart else np.zeros((1, len(cells)), np.int64)
        part = replace(op, index=tuple(op.index[i] for i in apart))
        rows = self._rows(part, [groups[:, i] for i in apart], len(groups))
        # lanes are the values of dims that stand alone in such a subscript; all other dims are steps in time
        lanes = {next(iter(op.index[i].dims())) for i in apart if op.index[i] in map(Affine.dim, op.dims)}
        times = [rows.dims[d] for d in op.dims if d not in lanes]
        order = np.lexsort([rows.cell, *reversed(times)])
        rows = Rows(rows.cell[order], {d: v[order] for d, v in rows.dims.items()})
        keys = table([rows.dims[d] for d in op.dims if d not in lanes], len(order))
        starts = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1
        bounds = [0, *starts.tolist(), len(keys)]
        self.steps += len(bounds)
        if self.steps > MOST_STEPS:
            raise TooLarge(f"a recurrence of {op.name} takes more than {MOST_STEPS} steps")
        return _Run(self, position).all(rows, bounds, cells, count)


@dataclass
class _Run:
    """One recurrence on its way: what has been written so far, by cell."""

    evaluator: Evaluator
    position: int
    written: dict[int, Array] = field(default_factory=dict[int, Array])

    def all(self, rows: Rows, bounds: Sequence[int], cells: Columns, count: int) -> Array:
        e, op = self.evaluator, self.evaluator.spec.ops[self.position]
        for start, end in pairwise(bounds):
            step = Rows(rows.cell[start:end], {d: v[start:end] for d, v in rows.dims.items()})
            value = np.broadcast_to(self._body(op.body, step), (arithmetic.POINTS, end - start))
            target = Load(op.target, op.index, e.dtypes[op.target])
            where = e.cells(target, step)
            if op.reduce is not None:
                before = self._now(where, end - start)
                value = e.fold(op, before, value, np.arange(end - start))
            for number, flat in enumerate(self._flat(where, end - start)):
                self.written[flat] = value[:, number]
        return self._now(cells, count)

    def _flat(self, cells: Columns, count: int) -> list[int]:
        target = self.evaluator.spec.ops[self.position].target
        return flattened(cells, self.evaluator.shapes[target], count).tolist()

    def _now(self, cells: Columns, count: int) -> Array:
        """Return what cells of the target hold now."""
        e, target = self.evaluator, self.evaluator.spec.ops[self.position].target
        flat = self._flat(cells, count)
        missing = [i for i, f in enumerate(flat) if f not in self.written]
        result = np.zeros((arithmetic.POINTS, count), np.int64)
        for i, f in enumerate(flat):
            if f in self.written:
                result[:, i] = self.written[f]
        if missing:
            result[:, missing] = e.read(target, [c[missing] for c in cells], len(missing), self.position)
        return result

    def _body(self, node: Scalar, rows: Rows) -> Array:
        """Evaluate a body; loads of the target see what was written so far."""
        e, op = self.evaluator, self.evaluator.spec.ops[self.position]
        match node:
            case Load(tensor, _, _) if tensor == op.target:
                return self._now(e.cells(node, rows), len(rows.cell))
            case Cast(arg, _):
                return arithmetic.cast(node, self._body(arg, rows))
            case Apply(fn, args, _) if fn != "ldexp":
                return e.apply(node, [self._body(a, rows) for a in args])
            case _:
                return e.evaluate(node, rows, self.position)

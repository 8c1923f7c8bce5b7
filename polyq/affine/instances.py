"""Walking the instances of a spec in their order, with any arithmetic.

Every op runs in order, its instances in lexicographic order of its dims as far as that can be observed: a dim along
which no cell of the target is shared is vectorized, every other one is a Python loop. What values are and how they are
computed is an :class:`Arithmetic`: :mod:`polyq.affine.interpret` computes in the declared dtypes,
:mod:`polyq.affine.bounds` carries error bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polyq.affine.arrays import Array
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Dim, FloorDiv
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.affine.spec import Op, Spec

__all__ = ["Arithmetic", "Value", "run"]

#: what an arithmetic computes with: a fixed number of arrays that broadcast together
Value = tuple[Array, ...]
#: elements that are evaluated at once: small enough for a second-level cache
BLOCK = 1 << 17


class Arithmetic(Protocol):
    """How values are computed: the nodes of a scalar body, and what a reduction does with its cell."""

    def const(self, node: Const) -> Value:
        """Return a literal."""
        ...

    def index(self, node: Index, value: Array) -> Value:
        """Return the value of an affine expression, given as ``int64``."""
        ...

    def load(self, node: Load, stored: Value) -> Value:
        """Return what is read, given the elements of the stored arrays."""
        ...

    def cast(self, node: Cast, value: Value) -> Value:
        """Convert ``value``, of dtype ``node.arg.dtype``."""
        ...

    def apply(self, node: Apply, args: Sequence[Value]) -> Value:
        """Apply a function."""
        ...

    def begin(self, op: Op, cells: Value, updates: int) -> Value:
        """Return the target of a reduction as it is accumulated; a cell gets at most ``updates`` updates."""
        ...

    def end(self, op: Op, cells: Value) -> Value:
        """Return the accumulated target of a reduction as it is stored."""
        ...

    def neutral(self, op: Op) -> tuple[Any, ...]:
        """Return, for each array of a value, what leaves a cell of the reduction exactly as it is."""
        ...

    def fold(self, op: Op, cells: Value, terms: Value, updates: int) -> Value:
        """Combine ``cells`` with ``terms[0]``, then ``terms[1]``, ... (the first axis) in this order."""
        ...


# ---- walking the instances
def run(spec: Spec, store: dict[str, Value], params: Mapping[str, int], arithmetic: Arithmetic) -> None:
    """Run all ops of ``spec`` on ``store``, which holds C-contiguous arrays for every tensor and is updated."""
    with np.errstate(all="ignore"):
        for op in spec.ops:
            extents = [e.evaluate({}, params) for e in op.extents]
            if all(e > 0 for e in extents):
                _Run(op, dict(zip(op.dims, extents, strict=True)), store, params, arithmetic).all()


@dataclass
class _Run:
    """One op that is being run."""

    op: Op
    extents: dict[str, int]
    store: dict[str, Value]
    params: Mapping[str, int]
    arithmetic: Arithmetic

    def all(self) -> None:
        """Run every instance of the op."""
        op, extents = self.op, self.extents
        vector = _vector_dims(op)
        loops = [d for d in op.dims if d not in vector]
        updates = math.prod(extents[d] for d in loops)
        accumulates = op.reduce is not None and not _reads_itself(op)
        if accumulates:
            self.store[op.target] = _dense(self.arithmetic.begin(op, self.store[op.target], updates))
        # in a reduction, several updates of each cell are evaluated at once
        limit = BLOCK // 16 if accumulates and updates > 1 else BLOCK
        for block in _blocks([extents[d] for d in vector], limit):
            ranges = {d: np.arange(*span) for d, span in zip(vector, block, strict=True)}
            chunk = max(1, BLOCK // math.prod(len(r) for r in ranges.values())) if accumulates else 1
            if accumulates and not any(e.dims() & set(loops) for e in op.index):
                self._accumulate(ranges, self._points(loops, updates, chunk), updates)
            else:
                for env, points in self._points(loops, updates, chunk):
                    self._instances(env, points, ranges, updates)
        if accumulates:
            self.store[op.target] = _dense(self.arithmetic.end(op, self.store[op.target]))

    def _points(self, loops: Sequence[str], count: int, chunk: int) -> Iterator[tuple[dict[str, Array], int]]:
        """Yield the points of the box of ``loops`` in lexicographic order, ``chunk`` at a time."""
        sizes = [self.extents[d] for d in loops]
        for start in range(0, count, chunk):
            points = np.arange(start, min(start + chunk, count))
            coordinates = np.unravel_index(points, sizes) if loops else ()
            yield dict(zip(loops, coordinates, strict=True)), len(points)

    def _accumulate(
        self, ranges: dict[str, Array], chunks: Iterator[tuple[dict[str, Array], int]], updates: int
    ) -> None:
        """Reduce over ``chunks`` into cells that only ``ranges`` choose."""
        where, cells, touched = np.zeros(0), None, None
        for env, points in chunks:
            terms = self._terms(env, points, ranges)
            if terms is None:
                continue
            where, term, mask = terms
            if cells is None:
                cells = self._gather(where, term)
                touched = None if mask is None else np.zeros((1, *term[0].shape[1:]), np.bool_)
            cells = self.arithmetic.fold(self.op, cells, term, updates)
            if mask is not None and touched is not None:
                touched |= np.logical_or.reduce(mask, axis=0, keepdims=True)
        if cells is not None:
            self._scatter(where, tuple(c[None] for c in cells), touched)

    def _instances(self, env: dict[str, Array], points: int, ranges: dict[str, Array], updates: int) -> None:
        """Run a box of instances: assign all at once, or update the target point after point."""
        terms = self._terms(env, points, ranges)
        if terms is None:
            return
        where, term, mask = terms
        op, arithmetic = self.op, self.arithmetic
        if op.reduce is None:
            self._scatter(where, term, mask)
            return
        for point in range(points):
            at = where[point : point + 1] if len(where) > 1 else where
            one = tuple(t[point : point + 1] for t in term)
            cells = self._gather(at, one)
            if _reads_itself(op):
                cells = arithmetic.end(op, arithmetic.fold(op, arithmetic.begin(op, cells, 1), one, 1))
            else:
                cells = arithmetic.fold(op, cells, one, updates)
            self._scatter(at, tuple(c[None] for c in cells), None if mask is None else mask[point : point + 1])

    def _terms(
        self, env: dict[str, Array], points: int, ranges: dict[str, Array]
    ) -> tuple[Array, Value, Array | None] | None:
        """Return flat cells, values of the body and the domain's mask for ``points x ranges``, if any is in the domain.

        Axis 0 runs over the points of ``env``, axis ``1 + i`` over the i-th range. In a reduction, masked is neutral.
        """
        op, rank = self.op, len(ranges)
        dims = {d: a.reshape(-1, *(1,) * rank) for d, a in env.items()}
        for axis, (d, a) in enumerate(ranges.items()):
            dims[d] = a.reshape(1, *(1,) * axis, -1, *(1,) * (rank - axis - 1))
        box = (points, *(len(a) for a in ranges.values()))
        mask = self._mask(dims)
        if mask is not None and not mask.any():
            return None
        term = tuple(np.broadcast_to(v, box) for v in self._evaluate(op.body, dims, mask))
        where = self._cells(op.target, op.index, dims, mask)
        if mask is None:
            return where, term, None
        mask = np.broadcast_to(mask, box)
        if op.reduce is not None:
            neutral = self.arithmetic.neutral(op)
            term = tuple(np.where(mask, t, np.asarray(n, t.dtype)) for t, n in zip(term, neutral, strict=True))
        return where, term, mask

    def _gather(self, where: Array, term: Value) -> Value:
        """Return the cells at ``where``, in the shape of one point of ``term``."""
        flat = np.broadcast_to(where, (1, *term[0].shape[1:]))[0]
        return tuple(plane.reshape(-1)[flat] for plane in self.store[self.op.target])

    def _scatter(self, where: Array, term: Value, mask: Array | None) -> None:
        flat = np.broadcast_to(where, term[0].shape)
        for plane, value in zip(self.store[self.op.target], term, strict=True):
            if mask is None:
                plane.reshape(-1)[flat] = value
            else:
                plane.reshape(-1)[flat[mask]] = value[mask]

    def _mask(self, dims: Mapping[str, Array]) -> Array | None:
        """Return where the constraints of the domain hold, or ``None`` where they are none."""
        mask: Array | None = None
        for constraint in self.op.where:
            value = np.asarray(constraint.expr.evaluate(dims, self.params))  # type: ignore[arg-type]
            holds = value == 0 if constraint.equality else value >= 0
            mask = holds if mask is None else mask & holds
        return mask

    def _cells(self, tensor: str, index: Sequence[Affine], dims: Mapping[str, Array], mask: Array | None) -> Array:
        """Return flat positions of ``tensor[index]``; raise where an instance lies outside the tensor."""
        flat = np.zeros((1,) * max((a.ndim for a in dims.values()), default=1), np.int64)
        shape = self.store[tensor][0].shape
        for axis, (subscript, extent) in enumerate(zip(index, shape, strict=True)):
            value = np.asarray(subscript.evaluate(dims, self.params), np.int64)  # type: ignore[arg-type]
            inside = (value >= 0) & (value < extent)
            if not inside.all():
                bad = ~inside if mask is None else ~inside & mask
                if bad.any():
                    wrong = np.broadcast_to(value, bad.shape)[bad][0]
                    place = f"op {self.op.name}: subscript {axis} of {tensor}, {subscript}"
                    raise SpecError(f"{place}, is {wrong}; expected 0 to {extent - 1}")
                value = np.clip(value, 0, max(0, extent - 1))
            flat = flat * extent + value
        return flat

    def _evaluate(self, node: Scalar, dims: Mapping[str, Array], mask: Array | None) -> Value:
        match node:
            case Const():
                return self.arithmetic.const(node)
            case Index(expr, _):
                return self.arithmetic.index(node, np.asarray(expr.evaluate(dims, self.params), np.int64))  # type: ignore[arg-type]
            case Load(tensor, index, _):
                flat = self._cells(tensor, index, dims, mask)
                planes = self.store[tensor]
                if planes[0].size == 0:  # only instances outside the domain look into an empty tensor
                    return self.arithmetic.load(node, tuple(np.zeros_like(p, shape=flat.shape) for p in planes))
                return self.arithmetic.load(node, tuple(p.reshape(-1).take(flat) for p in planes))
            case Cast(arg, _):
                return self.arithmetic.cast(node, self._evaluate(arg, dims, mask))
            case Apply(_, args, _):
                return self.arithmetic.apply(node, [self._evaluate(a, dims, mask) for a in args])


def _reads_itself(op: Op) -> bool:
    return any(r.tensor == op.target for r in op.reads)


def _vector_dims(op: Op) -> list[str]:
    """Return the dims along which no two instances touch one cell of the target, whatever the other dims are."""
    if _reads_itself(op):
        loads = [r for r in op.reads if r.tensor == op.target]
        same = [e for i, e in enumerate(op.index) if all(r.index[i] == e for r in loads)]
        return [d for d in op.dims if Affine.dim(d) in same]
    if op.reduce is None:  # a spec assigns each cell once, so instances are independent
        return list(op.dims)
    known: set[str] = set()
    changed = True
    while changed:  # a subscript with one unknown dim, outside any floor, makes that dim a function of the cell
        changed = False
        for e in op.index:
            unknown = e.dims() - known
            if len(unknown) == 1 and _outside_floors(e, *unknown):
                known |= unknown
                changed = True
    return [d for d in op.dims if d in known]


def _outside_floors(e: Affine, dim: str) -> bool:
    floors = [a for a, _ in e.terms if isinstance(a, FloorDiv)]
    return e.coefficient(Dim(dim)) != 0 and not any(dim in f.numerator.dims() for f in floors)


def _blocks(sizes: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a box into boxes of at most ``limit`` points, the longest sides first: what short dims share stays whole."""
    steps = list(sizes)
    while math.prod(steps) > limit:
        longest = steps.index(max(steps))
        steps[longest] = -(-steps[longest] // 2)
    sides = [[(a, min(a + step, n)) for a in range(0, n, step)] for n, step in zip(sizes, steps, strict=True)]
    return itertools.product(*sides)


def _dense(value: Value) -> Value:
    """Make arrays that can be written through a flat view: C-contiguous, no scalars, all of the value's shape."""
    shape = value[0].shape
    return tuple(np.asarray(v) if v.shape == shape else np.array(np.broadcast_to(v, shape), order="C") for v in value)

"""Analysing a program slice by slice: a rewritten program has partial sums as whole tensors, which may not fit memory.

A program is cut along a *batch*: axes of tensors and dims of ops that always go together, so that no instance of a
slice touches another slice. Rows of a softmax are one, and the rows or the columns of a matmul.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyq.affine.arrays import shape_of
from polyq.affine.expr import Affine
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Batch", "batches", "best_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The axis of each tensor and the dim of each op that belong together, by name, and their extent."""

    axes: Mapping[str, int]
    dims: Mapping[str, str]
    extent: int

    def sliced(self, spec: Spec, start: int, count: int) -> Spec:
        """Return the program for ``count`` positions from ``start`` on, with axes that begin there."""
        tensors = tuple(self._tensor(t, count) for t in spec.all_tensors)
        return spec.with_ops(tuple(self._op(op, start, count) for op in spec.ops), tensors)

    def _tensor(self, t: Tensor, count: int) -> Tensor:
        axis = self.axes.get(t.name)
        return t if axis is None else replace(t, shape=(*t.shape[:axis], count, *t.shape[axis + 1 :]))

    def _op(self, op: Op, start: int, count: int) -> Op:
        dim = self.dims.get(op.name)
        if dim is None:
            return op
        moved = {dim: Affine.dim(dim) + start}

        def subscripts(tensor: str, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
            own = self.axes.get(tensor)
            return tuple(e if k == own else e.substitute(moved) for k, e in enumerate(index))

        def leaf(node: Const | Index | Load) -> Scalar:
            if isinstance(node, Load):
                return replace(node, index=subscripts(node.tensor, node.index))
            return replace(node, expr=node.expr.substitute(moved)) if isinstance(node, Index) else node

        return replace(
            op,
            extents=tuple(Affine(count) if d == dim else e for d, e in zip(op.dims, op.extents, strict=True)),
            index=subscripts(op.target, op.index),
            body=map_scalar(op.body, leaf),
            where=tuple(c.substitute(moved) for c in op.where),
        )


#: an axis of a tensor (name, position) or a dim of an op (name, dim)
Place = tuple[str, int] | tuple[str, str]


def best_batch(spec: Spec, params: Mapping[str, int], budget: int) -> tuple[Batch, int] | None:
    """Return the batch along which to cut, and how many positions of it keep a slice's elements within ``budget``.

    ``None`` where the whole program fits, or nothing can be cut.
    """
    sizes = {t.name: prod(shape_of(t, params)) for t in spec.all_tensors}
    if sum(sizes.values()) <= budget:
        return None
    found = [(sum(sizes[t] for t in b.axes), b) for b in batches(spec, params) if b.extent > 1]
    if not found:
        return None
    held, batch = max(found, key=lambda pair: pair[0])
    rest = max(budget - (sum(sizes.values()) - held), budget // 4)
    return batch, max(1, min(batch.extent, batch.extent * rest // max(1, held)))


def batches(spec: Spec, params: Mapping[str, int]) -> Iterator[Batch]:
    """Yield every batch of the program."""
    groups = _linked(spec)
    for group in groups:
        axes = {(name, k) for name, k in group if isinstance(k, int)}
        dims = {(name, k) for name, k in group if isinstance(k, str)}
        batch = Batch(dict(axes), dict(dims), 0)
        if len(batch.axes) < len(axes) or len(batch.dims) < len(dims):
            continue  # a diagonal
        extents = {shape_of(t, params)[batch.axes[t.name]] for t in spec.all_tensors if t.name in batch.axes}
        extents |= {op.extent(batch.dims[op.name]).evaluate({}, params) for op in spec.ops if op.name in batch.dims}
        if len(extents) == 1 and all(_apart(batch, op) for op in spec.ops):
            yield replace(batch, extent=extents.pop())


def _accesses(op: Op) -> list[tuple[str, tuple[Affine, ...]]]:
    return [(op.target, op.index), *((r.tensor, r.index) for r in op.reads)]


def _linked(spec: Spec) -> list[set[Place]]:
    """Return axes and dims in groups: an axis belongs to the dims that are subscripts of it."""
    groups: list[set[Place]] = []
    for op in spec.ops:
        for tensor, index in _accesses(op):
            for axis, e in enumerate(index):
                plain = [d for d in op.dims if e == Affine.dim(d)]
                link: set[Place] = {(tensor, axis), *((op.name, d) for d in plain)}
                joined = [g for g in groups if g & link]
                groups = [g for g in groups if not g & link] + [link.union(*joined)]
    return groups


def _apart(batch: Batch, op: Op) -> bool:
    """Whether an instance of the op touches one position of the batch alone, and writes that one."""
    dim = batch.dims.get(op.name)
    touched = [(t, index[batch.axes[t]]) for t, index in _accesses(op) if t in batch.axes]
    if dim is None:
        return not touched
    return op.target in batch.axes and all(e == Affine.dim(dim) for _, e in touched)

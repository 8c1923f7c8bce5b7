"""A rewrite: readers of a tensor read a copy of it in another layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.rewrite import constant_ranges, entry, fresh, simplified, tensor_names
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar
from polyq.affine.sets import Domain
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["copy_of"]


def copy_of(
    spec: Spec, tensor: str, readers: Sequence[str], shape: Sequence[Affine], dims: Sequence[str],
    source: Sequence[Affine], place: Sequence[Affine], name: str | None = None, where: Sequence[Constraint] = (),
) -> Spec:  # fmt: skip
    """Let ``readers`` read a copy of ``tensor`` in another layout.

    The copy has ``shape`` over ``dims``: cell ``c[dims] = tensor[source(dims)]``. ``place`` is the inverse: the cell
    that holds element ``(e0, e1, ...)`` of the tensor, written with dims ``e0, e1, ...``.

    rewrite: ``y += x[k]`` -> ``x.packed[v, l] = x[8*v + l]; y += x.packed[k // 8, k % 8]``
    requires: ``source(place(e)) == e`` for every element; checked by substitution here, or by isl.
    """
    t = spec.tensor(tensor)
    back = tuple(e.substitute(dict(zip(dims, place, strict=True))) for e in source)
    wanted = tuple(Affine.dim(f"e{i}") for i in range(len(t.shape)))
    if back != wanted and not _identity_on(t, back):
        raise ScheduleError(
            f"copy of {tensor}: the layout is not the inverse of its placement: {', '.join(map(str, back))}"
        )
    name = name or fresh(tensor_names(spec), f"{tensor}.packed")
    first = min(i for i, op in enumerate(spec.ops) if op.name in readers)
    if any(op.target == tensor for op in spec.ops[first:]):
        raise ScheduleError(f"copy of {tensor}: it is written after its first reader {spec.ops[first].name}")
    index = tuple(Affine.dim(d) for d in dims)
    copy = Op(name, tuple(dims), tuple(shape), name, index, Load(tensor, tuple(source), t.dtype), where=tuple(where))

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load) and node.tensor == tensor:
            at = {f"e{i}": e for i, e in enumerate(node.index)}
            return replace(node, tensor=name, index=tuple(e.substitute(at) for e in place))
        return node

    ops = tuple(
        simplified(replace(op, body=map_scalar(op.body, leaf)), constant_ranges(op)) if op.name in readers else op
        for op in spec.ops
    )
    return spec.with_ops(
        (*ops[:first], copy, *ops[first:]), (*spec.all_tensors, Tensor(name, t.dtype, tuple(map(entry, shape))))
    )


def _identity_on(tensor: Tensor, back: Sequence[Affine]) -> bool:
    """Whether expressions of ``e0, e1, ...`` give every element of a tensor itself."""
    names = [f"e{i}" for i in range(len(tensor.shape))]
    spans = zip(map(Affine.dim, names), tensor.extents, strict=True)
    box = Domain.make(names, [c for d, n in spans for c in (Constraint(d), Constraint(n - 1 - d))])
    return all(box.implies(Constraint(b - Affine.dim(d), equality=True)) for d, b in zip(names, back, strict=True))

"""The spec: tensors, ops, inputs and outputs, as frozen values.

An :class:`Op` writes one tensor: for every point of its domain, in lexicographic order of its dims, it assigns its body
to ``target[index]`` or, where ``reduce`` is set, combines it with what the cell holds. Initial values are ops of their
own (a fill), so a reduction has no hidden start. A spec's ops run one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.scalar import Load, Scalar, format_scalar, loads

if TYPE_CHECKING:
    from polyq.affine.layout import Layout

__all__ = ["REDUCTIONS", "Op", "Spec", "Tensor"]

#: reduction operators of index notation -> the scalar function that combines
REDUCTIONS = {"+": "add", "*": "mul", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array; a shape entry is a number, or the text of a quasi-affine expression of parameters, as ``"n - 2"``.

    ``signless`` says that the bits of a signed integer may come as an unsigned array of the same width as well.

    >>> Tensor("x", "f32", ("m", 128)).extents[0].params()
    frozenset({'m'})
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    signless: bool = False

    @property
    def extents(self) -> tuple[Affine, ...]:
        """The shape as affine expressions of parameters."""
        return tuple(_extent(entry) for entry in self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@lru_cache(maxsize=4096)
def _extent(entry: int | str) -> Affine:
    from polyq.affine.notation import parse_extent  # the reader of expressions builds on this module

    return Affine(entry) if isinstance(entry, int) else parse_extent(entry)


@dataclass(frozen=True)
class Op:
    """One statement: ``target[index] (reduce)= body`` for all points of its domain.

    ``dims`` are in order of the instances (outermost first); dim ``d`` runs from 0 to ``extents[d]`` (exclusive, an
    expression of parameters) where ``where`` holds.
    """

    name: str
    dims: tuple[str, ...]
    extents: tuple[Affine, ...]
    target: str
    index: tuple[Affine, ...]
    body: Scalar
    reduce: str | None = None
    where: tuple[Constraint, ...] = ()

    @cached_property
    def reads(self) -> tuple[Load, ...]:
        """The loads of the body, left to right; the cell that a reduction combines with is not among them."""
        return loads(self.body)

    @property
    def domain(self) -> tuple[Constraint, ...]:
        """All constraints on the dims: bounds, then ``where``."""
        box: list[Constraint] = []
        for name, extent in zip(self.dims, self.extents, strict=True):
            box += [Constraint(Affine.dim(name)), Constraint(extent - Affine.dim(name) - 1)]
        return (*box, *self.where)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The dims that do not occur in the target's subscripts."""
        kept = {d for e in self.index for d in e.dims()}
        return tuple(d for d in self.dims if d not in kept)

    def extent(self, dim: str) -> Affine:
        """Return the extent of one dim."""
        return self.extents[self.dims.index(dim)]

    def __str__(self) -> str:
        left = f"{self.target}[{', '.join(map(str, self.index))}]" if self.index else self.target
        operator = {None: "=", "+": "+=", "*": "*=", "min": "min=", "max": "max="}[self.reduce]
        where = f" where {', '.join(map(str, self.where))}" if self.where else ""
        return f"{left} {operator} {format_scalar(self.body)}{where}"


@dataclass(frozen=True)
class Spec:
    """A program: ``all_tensors`` by name, ``ops`` in order, the names of inputs and outputs, and notes for the reader.

    Fills that the notation implies are ordinary ops whose names end in ``.init``. A name in both ``input_names`` and
    ``output_names`` is updated: the caller's array stays as it is unless it is passed as ``out``.
    """

    name: str = "kernel"
    all_tensors: tuple[Tensor, ...] = ()
    ops: tuple[Op, ...] = ()
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a caller gives, in order."""
        return tuple(self.tensor(name) for name in self.input_names)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that a caller gets, in order."""
        return tuple(self.tensor(name) for name in self.output_names)

    @property
    def temporaries(self) -> tuple[Tensor, ...]:
        """The tensors that neither come in nor go out."""
        outside = {*self.input_names, *self.output_names}
        return tuple(t for t in self.all_tensors if t.name not in outside)

    @cached_property
    def params(self) -> tuple[str, ...]:
        """All parameters, by first appearance in shapes, then in ops."""
        seen: dict[str, None] = {}
        for t in self.all_tensors:
            for e in t.extents:
                seen.update(dict.fromkeys(sorted(e.params())))
        for op in self.ops:
            exprs = [*op.extents, *op.index, *(c.expr for c in op.where), *(e for r in op.reads for e in r.index)]
            for e in [*exprs, *_index_values(op.body)]:
                seen.update(dict.fromkeys(sorted(e.params())))
        return tuple(seen)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor ``name``; :class:`KeyError` if there is none."""
        return self._tensors[name]

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {t.name: t for t in reversed(self.all_tensors)}  # the first of a name

    def op(self, name: str) -> Op:
        """Return the op ``name``; :class:`KeyError` if there is none."""
        return self._ops[name]

    @cached_property
    def _ops(self) -> dict[str, Op]:
        return {op.name: op for op in reversed(self.ops)}  # the first of a name

    def writers(self, tensor: str) -> tuple[Op, ...]:
        """Return the ops that write ``tensor``, in order."""
        return tuple(op for op in self.ops if op.target == tensor)

    def readers(self, tensor: str) -> tuple[Op, ...]:
        """Return the ops that load ``tensor``, in order."""
        return tuple(op for op in self.ops if any(r.tensor == tensor for r in op.reads))

    def to_mlir(self) -> str:
        """Return the program as an MLIR module, which :func:`polyq.from_mlir` reads back to an equal spec."""
        from polyq.affine.mlir.writer import write_module  # that front end builds on this module

        return write_module(self)

    # ---- building by indexing maps
    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> tuple[Spec, Tensor]:
        """Return the spec with one more input, and its tensor; a shape entry is a number or text such as ``"m"``.

        >>> spec, x = Spec("copy").input("x", "f32", ("m", 4))
        >>> spec, y = spec.generic("move", ins=(x,), out=("y", "f32", ("m", 4)), iterators=("parallel",) * 2,
        ...                        maps=("(i, j) -> (i, j)",) * 2, body=lambda x: 2 * x)
        >>> print(spec)
        x: f32[m, 4]
        y[i, j] = 2.0 * x[i, j]
        """
        from polyq.affine.builder import add_input  # the front end builds on this module

        return add_input(self, name, dtype, shape)

    def generic(
        self,
        name: str,
        *,
        ins: Sequence[Tensor | str] = (),
        out: tuple[str, str, Sequence[int | str]],
        iterators: Sequence[str],
        maps: Sequence[str | AffineMap],
        body: Callable[..., Any],
        reduce: str | None = None,
        init: Tensor | str | None = None,
        where: str | Sequence[Constraint] = (),
    ) -> tuple[Spec, Tensor]:
        """Return the spec with one more op, and the tensor it writes; see :func:`polyq.affine.builder.add_generic`."""
        from polyq.affine.builder import add_generic

        return add_generic(
            self, name, ins=ins, out=out, iterators=iterators, maps=maps, body=body, reduce=reduce, init=init,
            where=where,
        )  # fmt: skip

    def stored(self, tensor: str, layout: Layout) -> Spec:
        """Return the program that takes an input, or gives an output, as it lies in memory in a layout.

        It is called with ``layout.pack(array)`` (``dtype=`` for sub-byte types); see
        :func:`polyq.affine.relayout.stored`.
        """
        from polyq.affine.relayout import stored  # layouts build on this module

        return stored(self, tensor, layout)

    def with_ops(self, ops: tuple[Op, ...], tensors: tuple[Tensor, ...] | None = None) -> Spec:
        """Return the spec with other ops (and tensors)."""
        return replace(self, ops=ops, all_tensors=self.all_tensors if tensors is None else tensors)

    def __str__(self) -> str:
        lines = [str(t) for t in self.all_tensors if t.name in self.input_names]
        return "\n".join([*lines, *map(str, self.ops)])

    def _repr_html_(self) -> str:
        from polyq.affine.pages import spec_page  # only notebooks ask for it

        return spec_page(self)


def _index_values(body: Scalar) -> list[Affine]:
    from polyq.affine.scalar import Index, walk

    return [node.expr for node in walk(body) if isinstance(node, Index)]

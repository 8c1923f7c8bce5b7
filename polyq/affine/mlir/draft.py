"""A spec while a module is read: tensors, ops, inputs and notes, with parameters that are still being tied together."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TypeGuard

from polyq.affine.checks import check_bounds, check_single_writes, coverage
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim, Param
from polyq.affine.extents import Shape, alone
from polyq.affine.mlir.values import Empty, Uniform, Value, View, whole
from polyq.affine.overflow import overflow_notes
from polyq.affine.program import fill
from polyq.affine.reader import check_name
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Draft", "Sizes", "Written", "known_floors", "located"]


@contextmanager
def located(place: str) -> Generator[None]:
    """Put ``place`` in front of errors that name none yet."""
    try:
        yield
    except SpecError as error:
        if getattr(error, "located", False):
            raise
        said = SpecError(f"{place}: {error}")
        said.located = True  # type: ignore[attr-defined]
        raise said from None


class Sizes:
    """Which parameters are known to be equal to what."""

    def __init__(self) -> None:
        self._known: dict[str, Affine] = {}
        self.order: dict[str, int] = {}

    def of(self, e: Affine) -> Affine:
        """Return an expression with all that is known put in."""

        def known(atom: Dim | Param) -> Affine | None:
            return self.of(self._known[atom.name]) if isinstance(atom, Param) and atom.name in self._known else None

        return e.substitute(known) if e.terms else e

    def tie(self, a: Affine, b: Affine, what: Callable[[], str]) -> None:
        """Note that two sizes are equal; raise where they cannot be. ``what`` says what the sizes are."""
        a, b = self.of(a), self.of(b)
        gap = a - b
        if not gap.terms and not gap.const:
            return
        params = [(atom, k) for atom, k in gap.terms if isinstance(atom, Param)]
        params.sort(key=lambda term: self.order.get(term[0].name, 0), reverse=True)  # the one that came last gives way
        for atom, coefficient in params:
            if abs(coefficient) == 1:
                rest = gap - Affine.of(atom) * coefficient
                value = rest * -coefficient
                if atom.name not in value.params() and (not value.is_constant or value.const >= 0):
                    self._known[atom.name] = value
                    return
        raise SpecError(f"{what()}: expected equal sizes, got {a} and {b}")


@dataclass(frozen=True, slots=True)
class Written:
    """What one op writes: ``target[index] (reduce)= body`` over a box of dims, where the constraints hold."""

    dims: tuple[str, ...]
    extents: Shape
    index: Shape
    body: Scalar
    reduce: str | None = None
    where: tuple[Constraint, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """An op and where it stands; without a name yet, or :data:`IMPLIED`."""

    op: Op
    place: str


#: the name of an op that sets what the next one starts from, until its tensor has its last name
IMPLIED = ".init"


class Draft:
    """The spec so far. Tensors have the name of the value that made them; :meth:`rename` gives them that of a later."""

    def __init__(self, module: str, *, as_written: bool = False) -> None:
        self.module = module
        self.as_written = as_written  # whether subscripts stay as the text has them
        self.sizes = Sizes()
        self.tensors: dict[str, Tensor] = {}
        self.shapes: dict[str, Shape] = {}
        self.ops: list[Placed] = []
        self.open: dict[str, tuple[View, Empty]] = {}
        self.inputs: list[str] = []
        self.extra: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.opened: list[tuple[int, str]] = []
        self.params: set[str] = set()
        self._labels: dict[str, str] = {}
        self._taken: set[str] = set()
        self._empties: dict[tuple[str, int], View] = {}

    # ---- names
    def name(self, wanted: str) -> str:
        """Return a free name for a tensor or parameter, as near to ``wanted`` as the rules allow.

        A number gets a letter in front (``%2`` is ``v2``), what no name may hold becomes ``_``.
        """
        base = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        base = f"v{base}" if not base or base[0].isdigit() else base
        for made in chain((base, f"{base}_"), (f"{base}_{k}" for k in count(1))):
            if made not in self._taken and _is_allowed(made):
                self._taken.add(made)
                return made
        raise AssertionError("there is always a free name")

    def rename(self, tensor: str, wanted: str) -> None:
        """Call a tensor by the name of the value that it holds last."""
        old = self._labels.get(tensor, tensor)
        self._taken.discard(old)
        self._labels[tensor] = self.name(wanted)

    def parameter(self, wanted: str) -> Affine:
        """Return a new parameter."""
        made = self.name(wanted)
        self.params.add(made)
        self.sizes.order[made] = len(self.sizes.order)
        return Affine.param(made)

    def reserve(self, params: Iterable[str]) -> None:
        """Note parameters that the text names itself."""
        self.params.update(params)
        self._taken.update(params)

    # ---- tensors
    def declare(self, wanted: str, dtype: str, shape: Shape, *, signless: bool = False) -> View:
        """Return a new tensor."""
        made = self.name(wanted)
        self.tensors[made] = Tensor(made, dtype, (), signless)
        self.shapes[made] = shape
        return whole(made, dtype, shape)

    def input(self, wanted: str, dtype: str, shape: Shape, *, signless: bool, position: int | None = None) -> View:
        """Return a new input: an argument, or, with its ``position`` in the text, one that the text leaves open."""
        view = self.declare(wanted, dtype, shape, signless=signless)
        if position is None:
            self.inputs.append(view.tensor)
        else:
            self.extra.append((position, view.tensor))
        return view

    def of_empty(self, value: Empty) -> View:
        """Return the input that stands for a tensor which is read before anything writes it."""
        key = value.name, value.line
        if key not in self._empties:
            view = self.input(value.name, value.dtype, value.shape, signless=value.signless, position=value.line)
            self._empties[key] = view
            self.opened.append(
                (value.line, f"input {view.tensor}: nothing writes it before it is read (line {value.line})")
            )
        return replace(self._empties[key], shape=value.shape)

    def note(self, text: str) -> None:
        """Add a note for the reader."""
        if text not in self.notes:
            self.notes.append(text)

    def load(self, value: Value, subscripts: Sequence[Affine], box: Mapping[str, Affine] | None = None) -> Scalar:
        """Return one element of a value; ``box`` gives the extents of dims, of which those of 1 vanish in a view."""
        if len(subscripts) != len(value.shape):
            raise SpecError(f"expected {len(value.shape)} subscripts, got {len(subscripts)}")
        if isinstance(value, Uniform):
            return value.scalar
        view = self.of_empty(value) if isinstance(value, Empty) else value
        if not view.identity and box is not None and not self.as_written:
            unit = {d: Affine(0) for d, e in box.items() if self.sizes.of(e) == Affine(1)}
            subscripts = [e.substitute(unit) for e in subscripts]
        return view.at(subscripts)

    # ---- ops
    def write(self, target: View, written: Written, place: str, init: Value | None = None) -> None:
        """Add the op that writes ``target``, after one that sets what it starts from, where some cells need that.

        ``init`` is the value that those cells have; ``None`` means that ``target`` holds it already.
        """
        op = Op(written.name, written.dims, written.extents, target.tensor, written.index, written.body,
                written.reduce, written.where)  # fmt: skip
        if init is not None and (written.reduce is not None or not self._covers(target, op)):
            if isinstance(init, Empty) and written.reduce is None:
                self.open[target.tensor] = target, init  # later ops may write the rest
            else:
                self.ops.append(self._start(target, init, place, written.index))
        self.ops.append(Placed(op, place))

    def _start(self, target: View, init: Value, place: str, like: Shape = ()) -> Placed:
        """Return the op ``<target>.init`` that sets every cell to ``init``."""
        tensor = replace(self.tensors[target.tensor], shape=self._entries(target.shape))
        op = fill(tensor, Const(0, "i64"), like)
        body = self.load(init, op.index)
        return Placed(replace(op, name=IMPLIED, extents=target.shape, body=body), place)

    def _close(self, outputs: Sequence[str]) -> None:
        """Let those tensors start from an input that were written in part and are read as a whole."""
        for name, (target, init) in self.open.items():
            users = tuple(self._known(w.op) for w in self.ops if w.op.target == name or _reads(w.op, name))
            shape = self._entries(target.shape)
            seen = coverage(Tensor(name, target.dtype, shape), users)
            if seen.exposed or seen.starts or (name in outputs and not seen.complete):
                at = next(k for k, w in enumerate(self.ops) if w.op.target == name)
                self.ops.insert(at, self._start(target, init, self.ops[at].place))

    def _covers(self, target: View, op: Op) -> bool:
        """Whether an op writes every cell of its target."""
        shape = tuple(self.sizes.of(e) for e in target.shape)
        op = self._known(op)
        names = [alone(e) for e in op.index]
        if None not in names and set(names) == set(op.dims) and len(names) == len(op.dims) and not op.where:
            return all(op.extent(n or "") == e for n, e in zip(names, shape, strict=True))
        return coverage(Tensor(target.tensor, target.dtype, self._entries(shape)), (op,)).complete

    def _known(self, op: Op) -> Op:
        """Return an op with what is known of sizes put in, and floors that its box decides simplified."""
        extents = tuple(self.sizes.of(e) for e in op.extents)
        where = tuple(Constraint(self.sizes.of(c.expr), c.equality) for c in op.where)
        known = _with_expressions(replace(op, extents=extents, where=where), self.sizes.of)
        return known if self.as_written else known_floors(known)

    def _entries(self, shape: Shape) -> tuple[int | str, ...]:
        known = [self.sizes.of(e) for e in shape]
        return tuple(e.const if e.is_constant else str(e) for e in known)

    # ---- results
    def retarget(self, view: View, wanted: str) -> View:
        """Give the tensor below ``view`` the view's shape: its cells are written and read where the view shows them."""
        assert view.inverse is not None
        old, made = view.tensor, self.declare(wanted, view.dtype, view.shape, signless=self.signless(view.tensor))
        inverse = view.inverse

        def move(index: Shape) -> Shape:
            cells = {f"cell.{k}": e for k, e in enumerate(index)}
            return tuple(e.substitute(cells) for e in inverse)

        def leaf(node: Const | Index | Load) -> Scalar:
            return Load(made.tensor, move(node.index), node.dtype) if _is_load(node, old) else node

        for k, w in enumerate(self.ops):
            op = w.op
            if op.target == old and op.name == IMPLIED and isinstance(op.body, Const):
                tensor = replace(self.tensors[made.tensor], shape=self._entries(view.shape))
                op = replace(fill(tensor, op.body), name=IMPLIED, extents=view.shape)
            elif op.target == old:
                op = _on_unit_axes(replace(op, target=made.tensor, index=move(op.index)), view.shape)
            self.ops[k] = replace(w, op=replace(op, body=map_scalar(op.body, leaf)))
        del self.tensors[old]
        if old in self.open:
            self.open[made.tensor] = made, replace(self.open.pop(old)[1], shape=view.shape)
        return made

    def signless(self, tensor: str) -> bool:
        """Whether the bits of a tensor may be taken as signed or unsigned."""
        return self.tensors[tensor].signless

    def finish(self, name: str, outputs: Sequence[str], known_order: Sequence[str] = ()) -> Spec:
        """Return the checked spec; ``known_order`` is that of its tensors, where it is not the usual one."""
        self._close(outputs)
        ops, places = self._named()
        shown = {t: self._labels.get(t, t) for t in self.tensors}
        inputs = [*self.inputs, *(t for _, t in sorted(self.extra, key=lambda e: e[0]))]
        order = [*inputs, *(t for t in self.tensors if t not in inputs)]
        tensors = tuple(replace(self.tensors[t], name=shown[t], shape=self._entries(self.shapes[t])) for t in order)
        if sorted(known_order) == sorted(shown.values()):
            tensors = tuple(sorted(tensors, key=lambda t: known_order.index(t.name)))
        by_name = {t.name: t for t in tensors}
        for op in ops:
            with located(places[op.name]):
                check_bounds(op, by_name)
                check_single_writes(op)
        _refuse_unwritten(tensors, ops, [shown[t] for t in inputs], places)
        notes = (*(text for _, text in sorted(self.opened)), *self.notes, *overflow_notes(ops))
        return Spec(
            re.sub(r"\W", "_", name, flags=re.ASCII) or "kernel", tensors, tuple(ops),
            tuple(shown[t] for t in inputs), tuple(shown[t] for t in outputs), notes,
        )  # fmt: skip

    def _named(self) -> tuple[list[Op], dict[str, str]]:
        """Return the ops with their final names, and where each stands."""
        made: list[Op] = []
        places: dict[str, str] = {}
        writers: dict[str, int] = {}

        def leaf(node: Const | Index | Load) -> Scalar:
            return replace(node, tensor=self._labels.get(node.tensor, node.tensor)) if isinstance(node, Load) else node

        for w in self.ops:
            op = w.op
            target = self._labels.get(op.target, op.target)
            if op.name == IMPLIED:
                name = f"{target}.init"
            else:
                writers[target] = writers.get(target, 0) + (not op.name.endswith(".init"))
                name = op.name or (target if writers[target] == 1 else f"{target}.{writers[target]}")
            known = self._known(op)
            made.append(replace(known, name=name, target=target, body=map_scalar(known.body, leaf)))
            places[name] = w.place
        return made, places


def known_floors(op: Op) -> Op:
    """Return an op with the floors in its subscripts and values simplified that its box decides."""
    box = {d: (0, max(0, e.const - 1)) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant}
    return _with_expressions(op, lambda e: e.simplify(box))


def _with_expressions(op: Op, change: Callable[[Affine], Affine]) -> Op:
    """Return an op with its subscripts and the expressions that it has as values changed."""

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load):
            return replace(node, index=tuple(change(e) for e in node.index))
        return replace(node, expr=change(node.expr)) if isinstance(node, Index) else node

    return replace(op, index=tuple(change(e) for e in op.index), body=map_scalar(op.body, leaf))


def _on_unit_axes(op: Op, shape: Shape) -> Op:
    """Return the op with a dim of its own for each axis of extent 1 that it writes at 0, as other programs have it."""
    index = list(op.index)
    dims: list[str] = []
    for k, (e, extent) in enumerate(zip(op.index, shape, strict=True)):
        if e == Affine(0) and extent == Affine(1):
            dims.append(f"u{k}")
            index[k] = Affine.dim(dims[-1])
    extents = (*(Affine(1) for _ in dims), *op.extents)
    return replace(op, dims=(*dims, *op.dims), extents=extents, index=tuple(index))


def _is_allowed(name: str) -> bool:
    try:
        check_name(name, "tensor")
    except SpecError:
        return False
    return True


def _reads(op: Op, tensor: str) -> bool:
    return any(load.tensor == tensor for load in op.reads)


def _is_load(node: Const | Index | Load, tensor: str) -> TypeGuard[Load]:
    return isinstance(node, Load) and node.tensor == tensor


def _refuse_unwritten(
    tensors: Iterable[Tensor], ops: Sequence[Op], inputs: Sequence[str], places: Mapping[str, str]
) -> None:
    for t in tensors:
        users = tuple(op for op in ops if op.target == t.name or any(r.tensor == t.name for r in op.reads))
        if t.name in inputs or not users:
            continue
        seen = coverage(t, users)
        if seen.witness is not None:
            op, said = seen.witness
            raise SpecError(f"{places[op.name]}: {said}")

"""A spec as an MLIR module of ``func``, ``tensor``, ``linalg`` and ``arith``.

The text says all of the program in upstream's dialects. What MLIR has no place for (the names of dims, that an integer
is unsigned, which array is updated) stands in attributes that begin with ``polyq.``; other tools carry them along.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from polyq.affine.dtypes import DTYPES
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint, Dim, FloorDiv
from polyq.affine.extents import Shape, alone, at_most
from polyq.affine.layout_inverse import box_of
from polyq.affine.mlir.bodies import BodyWriter, scalar_type
from polyq.affine.mlir.draft import known_floors
from polyq.affine.program import fill
from polyq.affine.scalar import Const, Load, apply
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["write_module"]

FLOATS = frozenset(name for name, d in DTYPES.items() if d.kind == "f")
_COMBINE = {"+": "add", "*": "mul", "min": "min", "max": "max"}


def write_module(spec: Spec) -> str:
    """Return the module's text; :class:`SpecError` names what has no form in linalg."""
    return _Writer(spec).write()


class _Writer:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.lines: list[str] = []
        self.values = {t.name: f"%{t.name}" for t in spec.inputs}
        self.written: dict[str, int] = {}
        self.taken = {t.name for t in spec.all_tensors} | set(spec.params)
        self.sizes = {p: f"%{p}" for p in spec.params}
        self.top = BodyWriter(self.fresh, self.sizes, ())
        self.last = {op.target: op.name for op in spec.ops}

    def fresh(self, stem: str) -> str:
        """Return a name for a value that no tensor has."""
        k = 0
        while f"{stem}{k}" in self.taken:
            k += 1
        self.taken.add(f"{stem}{k}")
        return f"%{stem}{k}"

    # ---- the function
    def write(self) -> str:
        spec = self.spec
        self._parameters()
        for op in spec.ops:
            try:
                self._op(op)
            except SpecError as error:
                raise SpecError(f"to_mlir: op {op.name}: {error}") from None
        types = [_type(t) for t in spec.outputs]
        values = ", ".join(self.values[t.name] for t in spec.outputs)
        self.lines += [f"return {values} : {', '.join(types)}"]
        arguments = [f"%{p}: index" for p in self._given()]
        arguments = [*(f"{self._argument(t)}" for t in spec.inputs), *arguments]
        results = types[0] if len(types) == 1 else f"({', '.join(types)})"
        first = list(dict.fromkeys([*spec.input_names, *(op.target for op in spec.ops)]))
        names = [t.name for t in spec.all_tensors]
        notes = [] if names == first else [f"polyq.tensors = [{_quoted(names)}]"]
        if any(Affine(1) in op.extents or known_floors(op) != op for op in spec.ops):
            notes.append("polyq.as_written")  # in maps of others a reader simplifies floors and dims of extent 1
        said = f" attributes {{{', '.join(notes)}}}" if notes else ""
        head = f"func.func @{spec.name}({', '.join(arguments)}) -> {results}{said} {{"
        return "\n".join(["module {", f"  {head}", *(f"    {text}" for text in self.lines), "  }", "}", ""])

    def _argument(self, t: Tensor) -> str:
        notes = [f'polyq.dtype = "{t.dtype}"'] if _says_less(t) else []
        if any(isinstance(n, str) for n in t.shape):
            notes.append(f"polyq.shape = [{_quoted([str(n) for n in t.shape])}]")
        if t.name in self.written:
            notes.append("polyq.updated")
        return f"%{t.name}: {_type(t)}" + (f" {{{', '.join(notes)}}}" if notes else "")

    def _given(self) -> list[str]:
        """Return the parameters that no input's shape determines."""
        known = {n for t in self.spec.inputs for n in t.shape}
        return [p for p in self.spec.params if p not in known]

    def _parameters(self) -> None:
        for p in self.spec.params:
            for t in self.spec.inputs:
                if p in t.shape:
                    axis = self.top.line(f"arith.constant {t.shape.index(p)} : index")
                    self._flush()
                    self.lines.append(f"%{p} = tensor.dim %{t.name}, {axis} : {_type(t)}")
                    break

    def _flush(self) -> None:
        self.lines += self.top.lines
        self.top.lines.clear()

    # ---- tensors
    def _empty(self, t: Tensor) -> str:
        sizes = [self.top.affine(e) for e in t.extents if not e.is_constant]
        self._flush()
        made = self.fresh("empty")
        self.lines.append(f"{made} = tensor.empty({', '.join(sizes)}) : {_type(t)}")
        return made

    def _name(self, op: Op) -> str:
        """Return the value that an op makes: the tensor's name for the last op that writes it."""
        if self.last[op.target] == op.name and op.target not in self.spec.input_names:
            return f"%{op.target}"
        return self.fresh(f"{op.target}_")

    # ---- ops
    def _op(self, op: Op) -> None:
        t = self.spec.tensor(op.target)
        before = self.values.get(op.target)
        if op.name.endswith(".init") and isinstance(op.body, Const) and before is None and self._is_fill(op, t):
            value = self.top.write(op.body, {})
            self._flush()
            out = self._empty(t)
            made = self._name(op)
            kind = scalar_type(t.dtype)
            self.lines.append(f"{made} = linalg.fill ins({value} : {kind}) outs({out} : {_type(t)}) -> {_type(t)}")
            self.values[op.target] = made
            return
        out = before or self._empty(t)
        if not self._insert(op, t, out):
            self._generic(op, t, out, fresh=before is None)
        self.written[op.target] = self.written.get(op.target, 0) + (not op.name.endswith(".init"))

    def _insert(self, op: Op, t: Tensor, out: str) -> bool:
        """Write a copy into a part of its target as ``tensor.insert_slice``; return whether it is one."""
        load, dims = op.body, [alone(e) for e in op.index]
        short = any(d is not None and op.extent(d) != n for d, n in zip(dims, t.extents, strict=True))
        if op.reduce is not None or op.where or not isinstance(load, Load) or not short:
            return False
        source = self.spec.tensor(load.tensor)
        placed = [d for e in op.index for d in sorted(e.dims())]
        if [alone(e) for e in load.index] != placed or placed != list(op.dims) or source.extents != op.extents:
            return False
        offsets = [e.const for e in op.index]
        strides = [sum(k for _, k in e.terms) or 1 for e in op.index]
        if min((*offsets, 0)) < 0 or min((*strides, 1)) < 1 or any(len(e.terms) > 1 for e in op.index):
            return False
        sizes = [op.extent(d) if (d := next(iter(e.dims()), "")) else Affine(1) for e in op.index]
        shown = [str(e.const) if e.is_constant else self.top.affine(e) for e in sizes]
        self._flush()
        made = self._name(op)
        ranges = f"[{', '.join(map(str, offsets))}] [{', '.join(shown)}] [{', '.join(map(str, strides))}]"
        notes = self._notes(op, fresh=True).removeprefix(" attrs =")
        self.lines.append(
            f"{made} = tensor.insert_slice {self.values[load.tensor]} into {out}{ranges}{notes} : "
            f"{_type(source)} into {_type(t)}"
        )
        self.values[op.target] = made
        return True

    def _is_fill(self, op: Op, t: Tensor) -> bool:
        """Whether the reader makes this op again from the op that follows it."""
        after = [o for o in self.spec.ops if o.target == op.target and o.name != op.name]
        return bool(after) and op == fill(t, op.body, after[0].index)

    def _generic(self, op: Op, t: Tensor, out: str, *, fresh: bool) -> None:
        op = _whole_axes(op, t)
        reads = list(dict.fromkeys(load for load in op.reads if (load.tensor, load.index) != (op.target, op.index)))
        for load in reads:
            if load.tensor == op.target:
                raise SpecError(f"it reads {load.tensor} elsewhere than it writes, which linalg has no form for")
        self._check_target(op, t)
        ins = [self._operand(op, load) for load in reads]
        shapes = self._shapes(op, [load.index for load in reads])
        if shapes is not None:
            ins.append(shapes)
        maps = [_map(op, index) for index in (*(i for _, i in ins), op.index)]
        kept = {d for e in op.index for d in e.dims()}
        labels = ", ".join('"parallel"' if d in kept else '"reduction"' for d in op.dims)
        arguments = [self.fresh("in") for _ in ins]
        cell = self.fresh("out")
        body = BodyWriter(self.fresh, self.sizes, op.dims)
        operands = dict(zip(reads, arguments, strict=False))
        own = Load(op.target, op.index, t.dtype)
        operands[own] = cell
        value = op.body if op.reduce is None else apply(_COMBINE[op.reduce], own, op.body)
        result = body.write(value, operands)
        if op.where:
            result = body.line(f"arith.select {body.holds(op.where)}, {result}, {cell} : {scalar_type(t.dtype)}")
        kinds = [*(_element(text) for (text, _), _ in ins), scalar_type(t.dtype)]
        head = ", ".join(f"{a}: {k}" for a, k in zip([*arguments, cell], kinds, strict=True))
        given = f"ins({', '.join(v for (_, v), _ in ins)} : {', '.join(k for (k, _), _ in ins)}) " if ins else ""
        made = self._name(op)
        self._flush()
        self.lines += [
            f"{made} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{labels}]}} "
            f"{given}outs({out} : {_type(t)}){self._notes(op, fresh=fresh)} {{",
            f"^bb0({head}):",
            *(f"  {text}" for text in body.lines),
            f"  linalg.yield {result} : {scalar_type(t.dtype)}",
            f"}} -> {_type(t)}",
        ]
        self.values[op.target] = made

    def _check_target(self, op: Op, t: Tensor) -> None:
        box = box_of(op.dims, op.extents) if op.where else None
        for k, (e, n) in enumerate(zip(op.index, t.extents, strict=True)):
            if box is None or alone(e) is not None:
                continue
            if not (box.implies(Constraint(e)) and box.implies(Constraint(n - 1 - e))):
                raise SpecError(f"it may write outside of {t.name}, axis {k}, where the guard does not hold")

    def _notes(self, op: Op, *, fresh: bool) -> str:
        """Return the attributes that bring back what linalg does not say."""
        t = self.spec.tensor(op.target)
        notes = [f'polyq.dtype = "{t.dtype}"'] if _says_less(t) else []
        if op.dims != tuple(f"d{k}" for k in range(len(op.dims))):
            notes.append(f"polyq.dims = [{_quoted(op.dims)}]")
        count = self.written.get(op.target, 0)
        if op.name != (op.target if not count else f"{op.target}.{count + 1}"):
            notes.append(f'polyq.op = "{op.name}"')
        if not fresh:
            notes.append("polyq.in_place")
        if op.reduce is not None and not op.reduced:
            notes.append("polyq.reduce")
        return f" attrs = {{{', '.join(notes)}}}" if notes else ""

    def _operand(self, op: Op, load: Load) -> tuple[tuple[str, str], Shape]:
        """Return type and value of an operand, and its subscripts.

        linalg wants whole boxes: an operand is cut where a dim ends before its axis, and gets a margin where the box
        leaves it, at points that the op's guard leaves out.
        """
        t = self.spec.tensor(load.tensor)
        lows, ends = self._reached(op, load, t)
        index = tuple(e + low for e, low in zip(load.index, lows, strict=True))
        value = self.values[load.tensor]
        highs = [0] * len(ends)
        for k, (low, end, n) in enumerate(zip(lows, ends, t.extents, strict=True)):
            if end.is_constant and n.is_constant and end.const > n.const:
                highs[k], ends[k] = end.const - n.const, n
            elif low and not n.is_constant:
                raise SpecError(f"{load.tensor} is read before its beginning where the guard does not hold")
        kind = _typed(t.dtype, ends)
        if tuple(ends) != t.extents:
            sizes = [str(e.const) if e.is_constant else self.top.affine(e) for e in ends]
            zeros, ones = ", ".join(["0"] * len(ends)), ", ".join(["1"] * len(ends))
            cut = f"tensor.extract_slice {value}[{zeros}] [{', '.join(sizes)}] [{ones}] : {_type(t)} to {kind}"
            value = self._line("cut", cut)
        if any(lows) or any(highs):
            value, kind = self._margin(t, value, (lows, highs), ends)
        return (kind, value), index

    def _reached(self, op: Op, load: Load, t: Tensor) -> tuple[list[int], list[Affine]]:
        """Return for each axis how far subscripts go below 0 in the whole box, and where the operand has to end."""
        ranges = {d: (0, max(0, e.const - 1)) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant}
        lows, ends = [0] * len(load.index), list(t.extents)
        for k, (e, n) in enumerate(zip(load.index, t.extents, strict=True)):
            dim, span = alone(e), e.bounds(ranges)
            if dim is not None:
                ends[k] = op.extent(dim)
                if not (at_most(ends[k], n) or (ends[k].is_constant and n.is_constant)):
                    raise SpecError(f"dim {dim} may run over the end of axis {k} of {t.name} where the guard fails")
            elif span is not None and n.is_constant:
                lows[k] = max(0, -span[0])
                whole = alone(e + lows[k]) is not None  # a dim alone: the operand has to end where it does
                ends[k] = Affine(span[1] + 1 if whole else max(n.const, span[1] + 1))
            elif op.where:
                raise SpecError(f"{load.tensor} may be read outside of it where the guard does not hold")
        return lows, ends

    def _margin(
        self, t: Tensor, value: str, margins: tuple[list[int], list[int]], ends: Sequence[Affine]
    ) -> tuple[str, str]:
        """Write a margin around an operand; no value that counts is read there."""
        low, high = margins
        zero = self.top.write(Const(0.0 if t.dtype in FLOATS else 0, t.dtype), {})
        self._flush()
        kind, wide = _typed(t.dtype, ends), [e + a + b for e, a, b in zip(ends, low, high, strict=True)]
        arguments = ", ".join(f"{self.fresh('i')}: index" for _ in ends)
        made = self.fresh("margin")
        self.lines += [
            f"{made} = tensor.pad {value} low[{', '.join(map(str, low))}] high[{', '.join(map(str, high))}] {{",
            f"^bb0({arguments}):",
            f"  tensor.yield {zero} : {scalar_type(t.dtype)}",
            f"}} {{polyq.margin}} : {kind} to {_typed(t.dtype, wide)}",
        ]
        return made, _typed(t.dtype, wide)

    def _line(self, stem: str, text: str) -> str:
        self._flush()
        made = self.fresh(stem)
        self.lines.append(f"{made} = {text}")
        return made

    def _shapes(self, op: Op, reads: Sequence[tuple[Affine, ...]]) -> tuple[tuple[str, str], tuple[Affine, ...]] | None:
        """Return an operand without data that says where those dims end that index no other operand alone."""
        named = {alone(e) for index in (*reads, op.index) for e in index}
        lost = [d for d in op.dims if d not in named]
        if not lost:
            return None
        ends = [op.extent(d) for d in lost]
        made = self._empty(Tensor("", "i8", tuple(e.const if e.is_constant else str(e) for e in ends), True))
        return (_typed("i8", ends), made), tuple(Affine.dim(d) for d in lost)


def _whole_axes(op: Op, t: Tensor) -> Op:
    """Return the op with dims that run over whole axes of its target, guarded where they ended before."""
    extents, where = list(op.extents), list(op.where)
    for e, extent in zip(op.index, t.extents, strict=True):
        dim = alone(e)
        if dim is not None and op.extent(dim) != extent:
            extents[op.dims.index(dim)] = extent
            where.append(Constraint(op.extent(dim) - 1 - Affine.dim(dim)))
    return replace(op, extents=tuple(extents), where=tuple(where))


# ---- text
def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def _says_less(t: Tensor) -> bool:
    """Whether the MLIR type does not tell the dtype: all integers are signless there."""
    return t.dtype[0] in "ui" and not (t.signless and t.dtype[0] == "i")


def _type(t: Tensor) -> str:
    return _typed(t.dtype, t.extents)


def _typed(dtype: str, extents: Sequence[Affine]) -> str:
    return f"tensor<{''.join(f'{e.const}x' if e.is_constant else '?x' for e in extents)}{scalar_type(dtype)}>"


def _element(kind: str) -> str:
    """Return the type of a tensor type's elements."""
    found = re.search(r"(b?f\d+|i\d+)>$", kind)
    assert found is not None
    return found[1]


def _map(op: Op, index: Sequence[Affine]) -> str:
    m = AffineMap(op.dims, tuple(index))
    names = {d: f"d{k}" for k, d in enumerate(op.dims)}
    results = ", ".join(_affine(e, names) for e in m.results)
    return f"affine_map<({', '.join(names.values())}) -> ({results})>"


def _affine(e: Affine, names: dict[str, str]) -> str:
    parts: list[str] = []
    for atom, coefficient in e.terms:
        match atom:
            case Dim(name):
                text = names[name]
            case FloorDiv(numerator, divisor):
                text = f"(({_affine(numerator, names)}) floordiv {divisor})"
            case _:
                raise SpecError(f"the parameter {atom.name} stands in a subscript, which linalg has no form for")
        parts.append(text if coefficient == 1 else f"{text} * {coefficient}")
    if e.const or not parts:
        parts.append(str(e.const))
    return " + ".join(parts)

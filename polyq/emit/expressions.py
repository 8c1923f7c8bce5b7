"""Scalar expressions as C values, in one straight-line run of statements.

A run is a sequence of assignments without a loop between them. Equal sub-expressions are computed once (an entry dies
when a buffer that it loads from is written); what several statements share gets a name and a barrier, since gcc
otherwise folds a shared load into each of its users (measured: half the speed of a register tile).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim, FloorDiv
from polyq.affine.scalar import SYMBOLS, Apply, Cast, Const, Index, Load, Scalar, loads, map_scalar, walk
from polyq.emit.address import Memory, Names, Offset, Registers, Storage, affine_text, offset_of
from polyq.emit.ctypes import Value, compute_type, scalar_name, storage_type, type_name, width
from polyq.emit.helpers import Helpers

__all__ = ["Lanes", "Run"]

_OPERATORS = {**SYMBOLS, "and": "&", "or": "|"}


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop around a statement: its variable, width and, in a tail, the C text of the live lanes' count."""

    var: str
    width: int
    count: str | None = None


@dataclass
class Run:
    """Emits one run: ``lines`` grow as statements are added."""

    helpers: Helpers
    names: Names
    storage: dict[str, Storage]
    strict: bool
    barrier: bool
    prefetch: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    uses: Counter[object] = field(default_factory=Counter)
    _known: dict[object, Value] = field(default_factory=dict)
    _fetched: set[object] = field(default_factory=set)

    # ---- evaluation
    def value(self, s: Scalar, lanes: Lanes | None) -> Value:
        """Return the C value of ``s``; of width 1 where it does not vary over the lanes."""
        key = (s, lanes if lanes and _varies(s, lanes.var) else None)
        if key in self._known:
            return self._known[key]
        value = self._compute(s, key[1])
        nontrivial = isinstance(s, (Apply, Cast, Load))
        if nontrivial and (isinstance(s, Load) and value.lanes > 1 or self.uses[key] > 1) and not self._is_variable(value):
            value = self._name(value, shared=self.uses[key] > 1)
        if nontrivial:
            self._known[key] = value
        return value

    def widened(self, s: Scalar, lanes: Lanes | None) -> Value:
        """Return the value in all lanes."""
        value = self.value(s, lanes)
        if lanes is None or value.lanes == lanes.width:
            return value
        key = ("splat", s, lanes.width)
        if key not in self._known:
            wide = self.helpers.splat(value, lanes.width)
            self._known[key] = wide if isinstance(s, Const) else self._name(wide, shared=True)
        return self._known[key]

    def _is_variable(self, value: Value) -> bool:
        return value.text.isidentifier()

    def _name(self, value: Value, shared: bool) -> Value:
        name = self.names.fresh("t")
        vector = self.helpers.vector(value.dtype, value.lanes)
        self.lines.append(f"{vector} {name} = {value.text};")
        if shared and self.barrier and value.lanes > 1 and 16 <= width(value.dtype) * value.lanes <= 32:
            self.lines.append(f"KEEP({name});")
        return Value(name, value.dtype, value.lanes)

    def _compute(self, s: Scalar, lanes: Lanes | None) -> Value:
        match s:
            case Const(constant, dtype):
                return Value(_literal(constant, dtype), compute_type(dtype), 1)
            case Index(expr, dtype):
                return self._index(expr, dtype, lanes)
            case Load():
                return self._load(s, lanes)
            case Cast(arg, dtype):
                return self._cast(arg, dtype, lanes)
            case Apply():
                return self._apply(s, lanes)

    def _index(self, expr: Affine, dtype: str, lanes: Lanes | None) -> Value:
        to = compute_type(dtype)
        if lanes is None:
            return self.helpers.convert(Value(f"(int64_t)({affine_text(expr, self.names)})", "i64", 1), to)
        if any(isinstance(a, FloorDiv) and lanes.var in a.numerator.dims() for a, _ in expr.terms):
            points = [affine_text(expr.substitute({lanes.var: Affine(i)}), self.names) for i in range(lanes.width)]
            return self.helpers.convert(Value(f"({self.helpers.vector('i64', lanes.width)}){{{', '.join(points)}}}", "i64", lanes.width), to)
        step = expr.coefficient(Dim(lanes.var))
        base = self.helpers.splat(Value(affine_text(expr - Affine.dim(lanes.var) * step, self.names), "i64", 1), lanes.width)
        text = f"({base.text} + {self.helpers.iota(lanes.width)} * {step})"
        return self.helpers.convert(Value(text, "i64", lanes.width), to)

    def _cast(self, arg: Scalar, dtype: str, lanes: Lanes | None) -> Value:
        value, to = self.value(arg, lanes), compute_type(dtype)
        source = dtypes.info(arg.dtype)
        if to == "mask":
            zero = "0" if value.lanes == 1 else f"({type_name(value.dtype, value.lanes)}){{0}}"
            return self._mask(Value(f"({value.text} != {zero})", value.dtype, value.lanes))
        if value.dtype == "mask" and value.lanes > 1:
            value = Value(f"(-{value.text})", "i32", value.lanes)
        if source.kind == "f" and dtypes.is_int(dtype):
            value = Value(self.helpers.saturate(value, dtype if dtypes.info(dtype).bits >= 8 else to), to, value.lanes)
        value = self.helpers.convert(value, to)
        return self._fit(value, dtype, exact=dtypes.info(arg.dtype).bits < dtypes.info(dtype).bits)

    def _fit(self, value: Value, dtype: str, exact: bool = False) -> Value:
        """Round to f16 or bf16, wrap to a sub-byte width; other types already fit."""
        d = dtypes.info(dtype)
        if d.kind == "f" and d.bits == 16:
            return Value(self.helpers.round_half(value, dtype), "f32", value.lanes)
        if d.packed and not exact:
            shift = 8 - d.bits
            if d.kind == "u":
                return Value(f"({value.text} & {(1 << d.bits) - 1})", value.dtype, value.lanes)
            if value.lanes == 1:
                return Value(f"((int8_t)((uint8_t)({value.text}) << {shift}) >> {shift})", value.dtype, 1)
            return Value(f"(({value.text} << {shift}) >> {shift})", value.dtype, value.lanes)
        return value

    def _mask(self, value: Value) -> Value:
        """Bring the result of a comparison to a mask of 32-bit lanes."""
        if value.lanes == 1:
            return Value(value.text, "mask", 1)
        bits = f"i{8 * width(value.dtype)}"
        return Value(self.helpers.convert(Value(value.text, bits, value.lanes), "i32").text, "mask", value.lanes)

    # ---- operators
    def _apply(self, s: Apply, lanes: Lanes | None) -> Value:
        args = [self.value(a, lanes) for a in s.args]
        if any(a.lanes > 1 for a in args):
            args = [self.widened(a, lanes) for a in s.args] if s.fn != "ldexp" else [args[0], *args[1:]]
        first = args[0]
        if s.fn in ("lt", "le", "gt", "ge", "eq", "ne"):
            return self._mask(Value(f"({args[0].text} {_OPERATORS[s.fn]} {args[1].text})", first.dtype, first.lanes))
        if s.fn in ("and", "or"):
            return Value(f"({args[0].text} {_OPERATORS[s.fn]} {args[1].text})", "mask", first.lanes)
        if s.fn == "not":
            return Value(f"(!{first.text})" if first.lanes == 1 else f"(~{first.text})", "mask", first.lanes)
        if s.fn == "select":
            return Value(self.helpers.select(args[0], args[1], args[2]), args[1].dtype, args[1].lanes)
        value = self._arithmetic(s.fn, args, s.dtype)
        return self._fit(self._narrow(value, s.dtype), s.dtype)

    def _narrow(self, value: Value, dtype: str) -> Value:
        """C computes small integers in int: bring scalars back to their width."""
        if value.lanes == 1 and dtypes.is_int(dtype) and dtypes.info(dtype).bits < 32:
            return Value(f"({scalar_name(value.dtype)}){value.text}", value.dtype, 1)
        return value

    def _arithmetic(self, fn: str, args: list[Value], dtype: str) -> Value:
        a, kind, lanes = args[0], args[0].dtype, args[0].lanes
        if fn in ("add", "sub", "mul", "div"):
            return Value(f"({a.text} {_OPERATORS[fn]} {args[1].text})", kind, lanes)
        if fn == "neg":
            return Value(f"(-{a.text})", kind, lanes)
        if fn in ("min", "max"):
            return Value(f"{self.helpers.minmax(fn, kind, lanes)}({a.text}, {args[1].text})", kind, lanes)
        if fn in ("floordiv", "mod"):
            return self._lanewise(self.helpers.divide(fn, kind), args)
        if fn == "abs":
            return self._abs(a)
        if fn in ("sqrt", "floor", "rint"):
            builtin = f"__builtin_{fn}{'f' if kind == 'f32' else ''}"
            return self._lanewise(builtin, args)
        if fn == "ldexp":
            return Value(f"({a.text} * {self._power(args[1], kind)})", kind, lanes)
        fast = None if self.strict or kind != "f32" or lanes == 1 else self.helpers.fast_math(fn, lanes)
        return Value(f"{fast}({a.text})", kind, lanes) if fast else self._lanewise(self.helpers.math(fn, kind), args)

    def _power(self, exponent: Value, kind: str) -> str:
        suffix = "f" if kind == "f32" else ""
        return f"__builtin_ldexp{suffix}(1, (int)({exponent.text}))"

    def _abs(self, a: Value) -> Value:
        if dtypes.is_float(a.dtype):
            return self._lanewise(f"__builtin_fabs{'f' if a.dtype == 'f32' else ''}", [a])
        if a.dtype[0] == "u":
            return a
        zero = Value("0", a.dtype, 1)
        wide = self.helpers.splat(zero, a.lanes)
        pick = self.helpers.select(self._mask(Value(f"({a.text} < {wide.text})", a.dtype, a.lanes)), Value(f"(-{a.text})", a.dtype, a.lanes), a)
        return Value(pick, a.dtype, a.lanes)

    def _lanewise(self, function: str, args: list[Value]) -> Value:
        """Apply a scalar C function to each lane."""
        lanes, kind = args[0].lanes, args[0].dtype
        if lanes == 1:
            return Value(f"{function}({', '.join(a.text for a in args)})", kind, 1)
        if len(args) == 1:
            return Value(self.helpers.by_lane(function, args[0], kind), kind, lanes)
        parts = [self._name(a, shared=False) if not self._is_variable(a) else a for a in args]
        calls = [f"{function}({', '.join(f'{p.text}[{i}]' for p in parts)})" for i in range(lanes)]
        return Value(f"({self.helpers.vector(kind, lanes)}){{{', '.join(calls)}}}", kind, lanes)

    # ---- loads
    def _load(self, load: Load, lanes: Lanes | None) -> Value:
        storage = self.storage[load.tensor]
        if isinstance(storage, Registers):
            return self._load_register(storage, load, lanes)
        if dtypes.info(load.dtype).packed:
            return self._load_packed(storage, load, lanes)
        offset = offset_of(storage, load.index)
        if lanes is None:
            return self._decode(f"{storage.pointer}[{offset.text(self.names)}]", load.dtype, 1)
        step = offset.stride(lanes.var)
        start = replace(offset, known=offset.known.substitute({lanes.var: Affine(0)}))
        self._prefetch(load.tensor, storage, start)
        if step == 1:
            return self._load_vector(f"{storage.pointer} + {start.text(self.names)}", load.dtype, lanes)
        if step is not None and lanes.count is None and self._field_width(load.dtype, step):
            field_index = start.known % step
            if field_index.is_constant:
                whole = replace(start, known=start.known - field_index)
                return self._field(load.tensor, f"{storage.pointer} + {whole.text(self.names)}", load.dtype, field_index.const, lanes)
        return self._gather(load, lanes)

    def _field_width(self, dtype: str, step: int) -> bool:
        """Whether a stride of ``step`` elements is one 32-bit lane: then lanes are fields of aligned words."""
        d = dtypes.info(dtype)
        return d.kind in "ui" and d.bits < 32 and step * d.bits == 32

    def _field(self, tensor: str, address: str, dtype: str, position: int, lanes: Lanes) -> Value:
        """Field ``position`` of each 32-bit lane of the vector at ``address``."""
        d, wide = dtypes.info(dtype), ("u32" if dtypes.info(dtype).kind == "u" else "i32")
        word = self.helpers.vector("u32", lanes.width)
        key = (Load(tensor, (), dtype), address, lanes.width)  # the load names the buffer, so that a store forgets it
        if key not in self._known:
            self._known[key] = self._name(Value(f"*(const {word}_u *)({address})", "u32", lanes.width), shared=True)
        words, low = self._known[key].text, d.bits * position
        top = low + d.bits == 32
        if d.kind == "u":
            text = words if not low else f"({words} >> {low})"
            text = text if top else f"({text} & {(1 << d.bits) - 1})"
            signed = self.helpers.vector("i32", lanes.width)
            return Value(f"({signed})({text})", "i32", lanes.width)
        signed = self.helpers.vector("i32", lanes.width)
        left = 32 - low - d.bits
        return Value(f"((({signed})({words} << {left})) >> {32 - d.bits})" if left else f"(({signed}){words} >> {32 - d.bits})", wide, lanes.width)

    def _decode(self, text: str, dtype: str, lanes: int) -> Value:
        """Turn stored units into the compute type."""
        d = dtypes.info(dtype)
        if d.kind == "f" and d.bits == 16:
            self.helpers.half(dtype)
            raw = Value(text, "u16", lanes)
            return Value(f"from_{dtype}({text})" if lanes == 1 else self.helpers.by_lane(f"from_{dtype}", raw, "f32"), "f32", lanes)
        if d.kind == "b":
            if lanes == 1:
                return Value(f"({text} != 0)", "mask", 1)
            wide = self.helpers.convert(Value(text, "u8", lanes), "i32").text
            return Value(f"({wide} != 0)", "mask", lanes)
        return Value(text, compute_type(dtype), lanes)

    def _unit(self, dtype: str) -> str:
        d = dtypes.info(dtype)
        return "u8" if d.kind == "b" or d.packed else "u16" if d.kind == "f" and d.bits == 16 else dtype

    def _load_vector(self, address: str, dtype: str, lanes: Lanes) -> Value:
        unit = self._unit(dtype)
        vector = self.helpers.vector(unit, lanes.width)
        if lanes.count is not None:
            text = f"{self.helpers.part(unit, lanes.width)}({address}, {lanes.count})"
        else:
            text = f"*(const {vector}_u *)({address})"
        return self._decode(text, dtype, lanes.width)

    def _gather(self, load: Load, lanes: Lanes) -> Value:
        """Collect lanes one by one, in a tail only the live ones."""
        cells: list[str] = []
        for i in range(lanes.width):
            at = replace(load, index=tuple(e.substitute({lanes.var: Affine(i)}) for e in load.index))
            cell = self._compute(at, None)
            text = cell.text if cell.dtype != "mask" else f"-{cell.text}"
            cells.append(text if lanes.count is None else f"({lanes.count} > {i} ? {text} : 0)")
        kind = compute_type(load.dtype)
        return Value(f"({self.helpers.vector(kind, lanes.width)}){{{', '.join(cells)}}}", kind, lanes.width)

    def _load_packed(self, storage: Memory, load: Load, lanes: Lanes | None) -> Value:
        d = dtypes.info(load.dtype)
        fields = 8 // d.bits
        row, element = offset_of(storage, load.index, packed_row=True), load.index[-1]
        if lanes is not None:
            step = element.coefficient(Dim(lanes.var))
            start = element.substitute({lanes.var: Affine(0)})
            position = start % (32 // d.bits)
            linear = element - start == Affine.dim(lanes.var) * step and row.stride(lanes.var) == 0
            if linear and step * d.bits == 32 and position.is_constant and lanes.count is None:
                byte = (start - position) // fields
                at = replace(row, known=row.known + byte)
                self._prefetch(load.tensor, storage, at)
                return self._field(load.tensor, f"{storage.pointer} + {at.text(self.names)}", load.dtype, position.const, lanes)
            return self._gather(load, lanes)
        at = replace(row, known=row.known + element // fields)
        shift = element % fields
        amount = str(shift.const * d.bits) if shift.is_constant else f"({affine_text(shift, self.names)}) * {d.bits}"
        text = f"({storage.pointer}[{at.text(self.names)}] >> {amount} & {(1 << d.bits) - 1})"
        if d.kind == "i":
            return Value(f"((int8_t)((uint8_t){text} << {8 - d.bits}) >> {8 - d.bits})", "i8", 1)
        return Value(f"(uint8_t){text}", "u8", 1)

    def _prefetch(self, tensor: str, storage: Memory, start: Offset) -> None:
        """Ask for the line some distance ahead, once for each line that the run touches."""
        ahead = self.prefetch.get(tensor)
        if ahead is None:
            return
        unit = {"uint8_t": 1, "uint16_t": 2, "int16_t": 2}.get(storage_type(storage.dtype), max(dtypes.info(storage.dtype).bits // 8, 1))
        line = (start.symbolic, start.known.terms, start.known.const * unit // 64)
        if line not in self._fetched:
            self._fetched.add(line)
            self.lines.append(f"__builtin_prefetch((const char *)({storage.pointer} + {start.text(self.names)}) + {ahead});")

    # ---- registers
    def _load_register(self, storage: Registers, load: Load, lanes: Lanes | None) -> Value:
        kind = compute_type(load.dtype)
        name, lane, whole = self.register(storage, load.index, lanes)
        if whole:
            assert lanes is not None
            return Value(name, kind, lanes.width)
        text = name if lane is None else f"{name}[{lane}]"
        return Value(f"(-{text})" if kind == "mask" and lane is not None else text, kind, 1)

    def register(self, storage: Registers, index: tuple[Affine, ...], lanes: Lanes | None) -> tuple[str, int | None, bool]:
        """Return the variable of a cell, its lane, and whether all lanes are meant."""
        if not storage.lanes:
            return "_".join([storage.prefix, *(str(e.const) for e in index)]), None, False
        last = index[-1]
        whole = lanes is not None and last.coefficient(Dim(lanes.var)) == 1
        if whole and lanes is not None:
            last = last.substitute({lanes.var: Affine(0)})
        block, lane = divmod(last.const, storage.lanes)
        name = "_".join([storage.prefix, *(str(e.const) for e in index[:-1]), str(block)])
        return name, None if whole else lane, whole

    # ---- stores
    def written(self, buffer: str) -> None:
        """Forget what was loaded from ``buffer``."""
        self._known = {k: v for k, v in self._known.items() if not _mentions(k, buffer)}


def _varies(s: Scalar, var: str) -> bool:
    return any(
        (isinstance(n, Load) and any(var in e.dims() for e in n.index)) or (isinstance(n, Index) and var in n.expr.dims()) for n in walk(s)
    )


def _mentions(key: object, buffer: str) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(load.tensor == buffer for part in parts if isinstance(part, (Apply, Cast, Load)) for load in loads(part))


def substituted(s: Scalar, bind: dict[str, Affine]) -> Scalar:
    """Return ``s`` with loop variables replaced in subscripts and index values."""

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load):
            return replace(node, index=tuple(e.substitute(bind) for e in node.index))
        return replace(node, expr=node.expr.substitute(bind)) if isinstance(node, Index) else node

    return map_scalar(s, leaf) if bind else s


def _literal(value: float | bool, dtype: str) -> str:
    """Return a C literal with exactly this value."""
    d = dtypes.info(dtype)
    if d.kind == "b":
        return "1" if value else "0"
    if d.kind in "ui":
        n = int(value)
        if n == -(1 << 63):
            return "(-INT64_C(9223372036854775807) - 1)"
        text = f"INT64_C({n})" if d.bits == 64 and d.kind == "i" else f"UINT64_C({n})" if d.bits == 64 else str(n) + ("u" if dtype == "u32" else "")
        if n == -(1 << 31) and d.bits == 32:
            text = "(-2147483647 - 1)"
        return f"({scalar_name(compute_type(dtype))})({text})" if d.bits < 32 else f"({text})" if n < 0 else text
    x = float(value)
    suffix = "" if dtype == "f64" else "f"
    if x != x:
        return f"__builtin_nan{suffix}(\"\")"
    if x in (float("inf"), float("-inf")):
        return f"({'-' if x < 0 else ''}__builtin_inf{suffix}())"
    text = repr(x) if dtype == "f64" else str(np.float16(x).astype(np.float32) if dtype == "f16" else np.float32(x))
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"

"""Scalar bodies as MLIR text: one op a node, with a note where the reader would make another node of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim, FloorDiv, Param
from polyq.affine.scalar import FUNCTIONS, Apply, Cast, Const, Index, Load, Scalar

__all__ = ["BodyWriter", "literal", "scalar_type"]

_FLOAT = {
    "add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "div": "arith.divf", "min": "arith.minimumf",
    "max": "arith.maximumf", "neg": "arith.negf", "abs": "math.absf", "exp": "math.exp", "log": "math.log",
    "sqrt": "math.sqrt", "tanh": "math.tanh", "erf": "math.erf", "floor": "math.floor", "rint": "math.roundeven",
}  # fmt: skip
_SIGNED = {
    "add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "min": "arith.minsi", "max": "arith.maxsi",
    "floordiv": "arith.floordivsi", "abs": "math.absi",
}  # fmt: skip
_UNSIGNED = {
    "add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "min": "arith.minui", "max": "arith.maxui",
    "floordiv": "arith.divui", "mod": "arith.remui",
}  # fmt: skip
_BOOL = {"and": "arith.andi", "or": "arith.ori"}
_ORDER = ("eq", "ne", "lt", "le", "gt", "ge")


def scalar_type(dtype: str) -> str:
    """Return the MLIR type of a dtype; integers are signless."""
    if dtype == "bool":
        return "i1"
    return dtype if dtypes.is_float(dtype) else f"i{dtypes.info(dtype).bits}"


def literal(value: float, dtype: str) -> str:
    """Return a constant as MLIR writes it: infinities and NaN by their bits, unsigned integers by their signed twin."""
    if dtype == "bool":
        return "true" if value else "false"
    if not dtypes.is_float(dtype):
        bits = dtypes.info(dtype).bits
        return str((int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))
    if math.isfinite(value):
        return f"{value:.17e}"
    form, size = {"f16": ("<e", 4), "f32": ("<f", 8), "f64": ("<d", 16), "bf16": ("<f", 8)}[dtype]
    bits = int.from_bytes(struct.pack(form, value), "little")
    return f"0x{bits >> 16:04X}" if dtype == "bf16" else f"0x{bits:0{size}X}"


def _exact(value: float, dtype: str) -> str:
    """Return a note of a literal that its type rounds: the dtypes' arithmetic rounds it likewise, where it is used."""
    if dtype not in ("f16", "bf16", "f32") or not math.isfinite(value):
        return ""
    kept = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) < 3e38 else value
    return f"{{polyq.value = {value:.17e} : f64}} " if dtype != "f32" or kept != value else ""


class BodyWriter:
    """Writes the lines of one body; ``fresh`` gives names, ``sizes`` the values that hold parameters."""

    def __init__(self, fresh: Callable[[str], str], sizes: Mapping[str, str], dims: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self._fresh = fresh
        self._sizes = sizes
        self._dims = dims
        self._known: dict[object, str] = {}

    def line(self, text: str) -> str:
        """Add one op; return the value that it makes."""
        if text not in self._known:
            self._known[text] = self._fresh("t")
            self.lines.append(f"{self._known[text]} = {text}")
        return self._known[text]

    # ---- nodes
    def write(self, s: Scalar, operands: Mapping[Load, str]) -> str:
        """Return the value of a scalar expression."""
        match s:
            case Const(value, dtype):
                note = f'{{polyq.dtype = "{dtype}"}} ' if dtype[0] == "u" else _exact(value, dtype)
                kind = "" if dtype == "bool" else f" : {scalar_type(dtype)}"
                return self.line(f"arith.constant {note}{literal(value, dtype)}{kind}")
            case Index(expr, dtype):
                found = self.affine(expr)
                return self.line(f"arith.index_cast {found} : index to {scalar_type(dtype)}")
            case Load():
                return operands[s]
            case Cast(arg, dtype):
                note = "{polyq.exact} " if isinstance(arg, Cast) else ""
                return self._cast(self.write(arg, operands), arg.dtype, dtype, note)
            case Apply():
                return self._apply(s, [self.write(a, operands) for a in s.args])

    def _cast(self, value: str, old: str, new: str, note: str) -> str:
        a, b = scalar_type(old), scalar_type(new)
        note = f'{{polyq.dtype = "{new}"}} ' if dtypes.is_int(new) else note
        if dtypes.is_float(old) and dtypes.is_float(new):
            name = "arith.extf" if dtypes.info(new).bits > dtypes.info(old).bits else "arith.truncf"
            if {old, new} == {"f16", "bf16"}:
                wide = self.line(f"arith.extf {value} : {a} to f32")
                return self.line(f"arith.truncf {wide} : f32 to {b}")
        elif dtypes.is_float(new):
            name = "arith.sitofp" if dtypes.info(old).kind == "i" else "arith.uitofp"
        elif dtypes.is_float(old):
            if new == "bool":
                raise SpecError("a float as bool has no form in MLIR; compare it with 0.0")
            name = "arith.fptosi" if dtypes.info(new).kind == "i" else "arith.fptoui"
        elif new == "bool":
            raise SpecError(f"{old} as bool has no form in MLIR; compare it with 0")
        elif a == b:
            name = "arith.bitcast"
        else:
            wider = dtypes.info(new).bits > dtypes.info(old).bits or old == "bool"
            signed = dtypes.info(old).kind == "i"
            name = ("arith.extsi" if signed else "arith.extui") if wider else "arith.trunci"
        return self.line(f"{name} {value} {note}: {a} to {b}")

    def _apply(self, s: Apply, args: list[str]) -> str:
        dtype = s.args[-1].dtype
        kind = scalar_type(dtype)
        if s.fn == "select":
            return self.line(f"arith.select {args[0]}, {args[1]}, {args[2]} : {kind}")
        if s.fn in _ORDER:
            return self.line(f"{_compare(s.fn, dtype)}, {args[0]}, {args[1]} : {kind}")
        if s.fn == "not":
            true = self.line("arith.constant true")
            return self.line(f'arith.xori {true}, {args[0]} {{polyq.fn = "not"}} : i1')
        if s.fn == "neg" and not dtypes.is_float(dtype):
            zero = self.line(f"arith.constant 0 : {kind}")
            return self.line(f'arith.subi {zero}, {args[0]} {{polyq.fn = "neg"}} : {kind}')
        if s.fn == "abs" and dtype[0] == "u":
            return args[0]
        if s.fn == "mod" and dtype[0] == "i":
            return self._modulo(args, kind)
        table = _BOOL if dtype == "bool" else _FLOAT if dtypes.is_float(dtype) else (
            _UNSIGNED if dtype[0] == "u" else _SIGNED)  # fmt: skip
        if s.fn not in table:
            raise SpecError(f"{s.fn} of {dtype} has no form in MLIR")
        note = f' {{polyq.dtype = "{dtype}"}}' if dtype[0] == "u" and table[s.fn][-2:] == "ui" else ""
        assert len(args) == FUNCTIONS[s.fn][0]
        return self.line(f"{table[s.fn]} {', '.join(args)}{note} : {kind}")

    def _modulo(self, args: list[str], kind: str) -> str:
        """Write the non-negative remainder by ``a - b * (a floordiv b)``, which is what it is for a positive ``b``."""
        quotient = self.line(f"arith.floordivsi {args[0]}, {args[1]} : {kind}")
        whole = self.line(f"arith.muli {quotient}, {args[1]} : {kind}")
        return self.line(f"arith.subi {args[0]}, {whole} : {kind}")

    # ---- subscripts and conditions
    def affine(self, e: Affine) -> str:
        """Return an affine expression as a value of type index."""
        total: str | None = None if e.const or not e.terms else ""
        for atom, coefficient in e.terms:
            match atom:
                case Dim(name):
                    part = self.line(f"linalg.index {self._dims.index(name)} : index")
                case Param(name):
                    part = self._sizes[name]
                case FloorDiv(numerator, divisor):
                    by = self.line(f"arith.constant {divisor} : index")
                    part = self.line(f"arith.floordivsi {self.affine(numerator)}, {by} : index")
            if coefficient != 1:
                by = self.line(f"arith.constant {coefficient} : index")
                part = self.line(f"arith.muli {part}, {by} : index")
            total = part if not total else self.line(f"arith.addi {total}, {part} : index")
        if e.const or not total:
            constant = self.line(f"arith.constant {e.const} : index")
            total = constant if not total else self.line(f"arith.addi {total}, {constant} : index")
        return total

    def holds(self, where: tuple[Constraint, ...]) -> str:
        """Return the conjunction of constraints as a value of type i1."""
        zero = self.line("arith.constant 0 : index")
        total = ""
        for c in where:
            test = "eq" if c.equality else "sge"
            one = self.line(f"arith.cmpi {test}, {self.affine(c.expr)}, {zero} : index")
            total = one if not total else self.line(f"arith.andi {total}, {one} : i1")
        return total


def _compare(fn: str, dtype: str) -> str:
    if dtypes.is_float(dtype):
        return f"arith.cmpf {'une' if fn == 'ne' else f'o{fn}'}"
    if fn in ("eq", "ne"):
        return f"arith.cmpi {fn}"
    return f"arith.cmpi {'s' if dtype[0] == 'i' else 'u'}{fn}"

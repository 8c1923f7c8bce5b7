"""Scalar expressions as C values, scalar or with one lane for each iteration of a vector loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Dim, FloorDiv
from polyq.affine.scalar import SYMBOLS, Apply, Cast, Const, Index, Load, Scalar
from polyq.emit import arithmetic, halves
from polyq.emit.address import affine_text
from polyq.emit.ctypes import LOOSE, PRODUCT, SUM, UNARY, Value, compute_type, scalar_name, width
from polyq.emit.loads import loaded, masked_field

if TYPE_CHECKING:
    from polyq.emit.run import Lanes, Run

__all__ = ["computed", "literal"]

_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_RANKS = {"add": SUM, "sub": SUM, "mul": PRODUCT, "div": PRODUCT}
_POWERS = {"f32": 126, "f64": 1022}


def computed(run: Run, s: Scalar, lanes: Lanes | None) -> Value:
    """Return the value of ``s``, emitting what it needs."""
    match s:
        case Const(constant, dtype):
            return Value(literal(constant, dtype), compute_type(dtype), 1)
        case Index(expr, dtype):
            return _index(run, expr, dtype, lanes)
        case Load():
            return loaded(run, s, lanes)
        case Cast(arg, dtype):
            return _cast(run, arg, dtype, lanes)
        case Apply():
            return _apply(run, s, lanes)


def _index(run: Run, expr: Affine, dtype: str, lanes: Lanes | None) -> Value:
    helpers, to = run.helpers, compute_type(dtype)
    if lanes is None:
        value = Value(f"(int64_t)({affine_text(expr, run.names)})", "i64", 1, UNARY)
    elif any(isinstance(a, FloorDiv) and lanes.var in a.numerator.dims() for a, _ in expr.terms):
        points = [affine_text(expr.substitute({lanes.var: Affine(i)}), run.names) for i in range(lanes.width)]
        value = Value(f"({helpers.vector('i64', lanes.width)}){{{', '.join(points)}}}", "i64", lanes.width, UNARY)
    else:
        step = expr.coefficient(Dim(lanes.var))
        base = helpers.splat(Value(affine_text(expr - Affine.dim(lanes.var) * step, run.names), "i64", 1), lanes.width)
        times = "" if step == 1 else f" * {step}"
        value = Value(f"{base.text} + {helpers.iota(lanes.width)}{times}", "i64", lanes.width, SUM)
    return _fitted(run, helpers.convert(value, to), dtype)


# ---- conversions
def _cast(run: Run, arg: Scalar, dtype: str, lanes: Lanes | None) -> Value:
    helpers, value, to = run.helpers, run.value(arg, lanes), compute_type(dtype)
    source, d = dtypes.info(arg.dtype), dtypes.info(dtype)
    if to == "mask":
        return value if value.dtype == "mask" else _compared(run, value, "!=", _zero(run, value))
    if value.dtype == "mask" and value.lanes > 1:
        value = Value(f"-{value.within(UNARY)}", "i32", value.lanes, UNARY)
    if source.kind == "f" and d.kind in "ui":
        return arithmetic.saturated(helpers, value, dtype, to)
    if d.kind == "f" and d.bits == 16 and arg.dtype not in ("f32", "f16", "bf16"):
        # wider than f32 can hold exactly: through f64 and an f32 that keeps the direction of the rest
        value = (
            halves.narrowed(helpers, helpers.convert(value, "f64"))
            if source.bits > 16
            else helpers.convert(value, "f32")
        )
        return halves.rounded(helpers, value, dtype)
    return _fitted(run, helpers.convert(value, to), dtype, exact=source.kind == d.kind and source.bits <= d.bits)


def _fitted(run: Run, value: Value, dtype: str, exact: bool = False) -> Value:
    """Round to f16 or bf16, wrap to a sub-byte width; other types already fit."""
    d = dtypes.info(dtype)
    if d.kind == "f" and d.bits == 16:
        return halves.rounded(run.helpers, value, dtype)
    if d.packed and not exact:
        shift = 8 - d.bits
        if d.kind == "u":
            return Value(f"{value.within(UNARY)} & {(1 << d.bits) - 1}", value.dtype, value.lanes, LOOSE)
        if value.lanes == 1:
            return Value(f"(int8_t)((uint8_t){value.within(UNARY)} << {shift}) >> {shift}", value.dtype, 1, LOOSE)
        return Value(f"({value.within(UNARY)} << {shift}) >> {shift}", value.dtype, value.lanes, LOOSE)
    return value


def _zero(run: Run, like: Value) -> Value:
    zero = Value("0", like.dtype, 1)
    return (
        zero
        if like.lanes == 1
        else Value(f"({run.helpers.vector(like.dtype, like.lanes)}){{0}}", like.dtype, like.lanes, UNARY)
    )


def _compared(run: Run, a: Value, operator: str, b: Value) -> Value:
    """Return a comparison as a mask of 32-bit lanes."""
    value = run.helpers.combined(a, operator, b, LOOSE)
    if value.lanes == 1:
        return Value(value.text, "mask", 1, LOOSE)
    size = f"i{8 * width(a.dtype)}"
    run.helpers.vector(size, value.lanes)
    wide = run.helpers.convert(Value(value.text, size, value.lanes, LOOSE), "i32")
    return Value(wide.text, "mask", value.lanes, wide.rank)


# ---- operators
def _apply(run: Run, s: Apply, lanes: Lanes | None) -> Value:
    if s.fn == "ldexp":
        return _scaled(run, s, lanes)
    args = [run.value(a, lanes) for a in s.args]
    if any(a.lanes > 1 for a in args):
        args = [run.wide(a, lanes) for a in s.args]
    first = args[0]
    if s.fn in _COMPARE:
        if first.dtype == "mask" and first.lanes > 1:  # true is -1 in a mask: the order turns round
            first, args[1] = args[1], first
        return _compared(run, first, SYMBOLS[s.fn], args[1])
    if s.fn in ("and", "or"):
        return _bits(first, "&" if s.fn == "and" else "|", args[1])
    if s.fn == "not":
        return Value(f"{'!' if first.lanes == 1 else '~'}{first.within(UNARY)}", "mask", first.lanes, UNARY)
    if s.fn == "select":
        return run.helpers.select(Value(first.text, "mask", first.lanes, first.rank), args[1], args[2])
    value = _arithmetic(run, s.fn, args, s.dtype)
    if value.lanes == 1 and dtypes.is_int(s.dtype) and dtypes.info(s.dtype).bits < 32:  # C computes these in int
        value = Value(f"({scalar_name(value.dtype)}){value.within(UNARY)}", value.dtype, 1, UNARY)
    return _fitted(run, value, s.dtype)


def _bits(a: Value, operator: str, b: Value) -> Value:
    return Value(f"{a.within(UNARY)} {operator} {b.within(UNARY)}", "mask", a.lanes, LOOSE)


def _arithmetic(run: Run, fn: str, args: list[Value], dtype: str) -> Value:
    a, helpers = args[0], run.helpers
    if fn in _RANKS:
        return helpers.combined(a, SYMBOLS[fn], args[1], _RANKS[fn])
    if fn == "neg":
        return Value(f"-{a.within(UNARY) if not a.text.startswith('-') else f'({a.text})'}", a.dtype, a.lanes, UNARY)
    if fn in ("min", "max"):
        return Value(f"{arithmetic.minmax(helpers, fn, a.dtype, a.lanes)}({a.text}, {args[1].text})", a.dtype, a.lanes)
    if fn in ("floordiv", "mod"):
        parts = args if a.lanes == 1 else [p if p.is_name else run.name(p, "t") for p in args]
        return arithmetic.operands(helpers, arithmetic.divide(helpers, fn, a.dtype), parts)
    if fn == "abs":
        return arithmetic.absolute(helpers, a)
    if fn == "binade":
        return arithmetic.binade(helpers, a)
    if fn in ("sqrt", "floor", "rint"):
        return arithmetic.unary(helpers, fn, a)
    return arithmetic.transcendental(helpers, fn, a, dtype, fast=not run.strict)


def _scaled(run: Run, s: Apply, lanes: Lanes | None) -> Value:
    """Emit ``x * 2**e``: where x is the field at bit e of 32-bit lanes, by masking it in place."""
    x, e = s.args
    exponent = (
        e.value if isinstance(e, Const) else e.expr.const if isinstance(e, Index) and e.expr.is_constant else None
    )
    if exponent == 0:
        return run.value(x, lanes)
    if (
        exponent is not None
        and isinstance(x, Cast)
        and x.dtype == "f32"
        and isinstance(x.arg, Load)
        and lanes is not None
    ):
        field = masked_field(run, x.arg, lanes, int(exponent))
        if field is not None:
            return run.helpers.convert(field, "f32")
    value, kind = run.value(x, lanes), compute_type(s.dtype)
    if exponent is not None and abs(exponent) <= _POWERS[kind]:
        factor = Value(f"0x1p{int(exponent)}{'f' if kind == 'f32' else ''}", kind, 1)
        return _fitted(run, run.helpers.combined(value, "*", run.helpers.splat(factor, value.lanes), PRODUCT), s.dtype)
    amount = run.helpers.convert(run.value(e, lanes), "i64")
    if amount.lanes == 1:
        function = arithmetic.scaled(run.helpers, kind, value.lanes)
        return _fitted(run, Value(f"{function}({value.text}, {amount.text})", kind, value.lanes), s.dtype)
    parts = [run.name(p, "t") for p in (run.helpers.splat(value, amount.lanes), amount)]
    return _fitted(run, arithmetic.operands(run.helpers, arithmetic.scaled(run.helpers, kind, 1), parts), s.dtype)


def literal(value: float | bool, dtype: str) -> str:
    """Return a C literal with exactly this value.

    >>> literal(-1, "i32"), literal(0.1, "f32"), literal(3, "u8"), literal(True, "bool")
    ('(-1)', '0.1f', '(uint8_t)3', '1')
    """
    d = dtypes.info(dtype)
    if d.kind == "b":
        return "1" if value else "0"
    if d.kind in "ui":
        return _integer(int(value), dtype)
    x = float(value)
    suffix = "" if dtype == "f64" else "f"
    if x != x:
        return f'__builtin_nan{suffix}("")'
    if x in (float("inf"), float("-inf")):
        return f"({'-' if x < 0 else ''}__builtin_inf{suffix}())"
    if dtype == "bf16":
        x = _nearest_bf16(x)
    text = repr(x) if dtype == "f64" else str(np.float16(x).astype(np.float32) if dtype == "f16" else np.float32(x))
    if text in ("inf", "-inf"):
        return f"({text[:-3]}__builtin_inf{suffix}())"
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"


def _nearest_bf16(x: float) -> float:
    from polyq.affine.arrays import round_bf16

    return float(round_bf16(np.asarray(x, np.float64)))


def _integer(n: int, dtype: str) -> str:
    d = dtypes.info(dtype)
    if d.bits < 32:
        return f"({scalar_name(compute_type(dtype))}){n if n >= 0 else f'({n})'}"
    if d.kind == "u":
        return f"{n}u" if d.bits == 32 else f"UINT64_C({n})"
    if n == -(1 << (d.bits - 1)):
        return "(-2147483647 - 1)" if d.bits == 32 else "(-INT64_C(9223372036854775807) - 1)"
    text = str(n) if d.bits == 32 else f"INT64_C({n})"
    return f"({text})" if n < 0 else text

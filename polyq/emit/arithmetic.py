"""Arithmetic that C does not offer as an operator, as helper functions of scalars and vectors."""

from __future__ import annotations

from collections.abc import Sequence

from polyq.affine import dtypes
from polyq.emit.ctypes import UNARY, Value, scalar_name, width
from polyq.emit.halves import narrowed
from polyq.emit.helpers import Helpers

__all__ = [
    "absolute", "binade", "combiner", "divide", "minmax", "operands", "saturated", "scaled", "transcendental", "unary",
]  # fmt: skip

#: reduction operators: the C operator, and the stem of the helper's name
_OPERATORS = {"+": "add", "*": "mul"}
_F16 = ("f16", "bf16")


def minmax(helpers: Helpers, fn: str, dtype: str, lanes: int) -> str:
    """Return the name of a min or max of two arguments; a NaN in either gives NaN."""
    vector = helpers.vector(dtype, lanes)
    name, sign = f"{fn}_{vector if lanes > 1 else dtype}", "<" if fn == "min" else ">"
    is_nan = " | (a != a)" if dtypes.is_float(dtype) else ""
    if lanes == 1:
        body = f"({f'(a {sign} b){is_nan}' if is_nan else f'a {sign} b'}) ? a : b"
    else:
        mask = Value(f"(a {sign} b){is_nan}", f"i{8 * width(dtype)}", lanes)
        body = helpers.select(mask, Value("a", dtype, lanes), Value("b", dtype, lanes)).text
    return helpers.add(name, f"static inline {vector} {name}({vector} a, {vector} b) {{ return {body}; }}")


def combiner(helpers: Helpers, reduce: str, dtype: str) -> str:
    """Return the name of the scalar function of a reduction."""
    if reduce in _OPERATORS:
        return helpers.binary(_OPERATORS[reduce], reduce, dtype)
    return minmax(helpers, reduce, dtype, 1)


def divide(helpers: Helpers, fn: str, dtype: str) -> str:
    """Return the name of the scalar integer ``floordiv`` or ``mod``: by 0 gives 0, the least value by -1 wraps."""
    scalar, name = scalar_name(dtype), f"{fn}_{dtype}"
    unsigned = scalar_name(f"u{dtypes.info(dtype).bits}")
    if dtype[0] == "u":
        body = f"b ? a {'/' if fn == 'floordiv' else '%'} b : 0"
    elif fn == "floordiv":
        body = f"!b ? 0 : b == -1 ? ({scalar})(0 - ({unsigned})a) : a / b - (a % b != 0 && (a < 0) != (b < 0))"
    else:
        body = "!b || b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0)"
    return helpers.add(
        name, f"static inline {scalar} {name}({scalar} a, {scalar} b) {{\n  return ({scalar})({body});\n}}"
    )


def saturated(helpers: Helpers, value: Value, dtype: str, to: str) -> Value:
    """Return a float as an integer in the range of ``dtype``: truncated, saturated, 0 for NaN; ``to`` computes it."""
    low, high = dtypes.value_range(dtype)
    if value.lanes > 1 and value.dtype == "f32" and high - low < 1 << 24:
        return _saturated_lanes(helpers, value, dtype, to)
    scalar, source = scalar_name(to), scalar_name(value.dtype)
    name = f"{dtype}_from_{value.dtype}"
    least = f"({scalar})({low + 1} - 1)" if low == -(1 << 63) else f"({scalar}){low}"
    most = f"({scalar}){high}u" if high > (1 << 63) - 1 else f"({scalar}){high}"
    helpers.add(
        name,
        f"static inline {scalar} {name}({source} x) {{\n"
        f"  return x != x ? 0 : x <= {float(low)!r} ? {least} : x >= {float(high + 1)!r} ? {most} : ({scalar})x;\n}}",
    )
    return helpers.by_lane(name, value, to)


def _saturated_lanes(helpers: Helpers, value: Value, dtype: str, to: str) -> Value:
    """All lanes at once, for ranges whose ends f32 holds: NaN becomes 0, then the value is brought into the range."""
    low, high = dtypes.value_range(dtype)
    floats, bits = helpers.vector("f32", value.lanes), helpers.vector("i32", value.lanes)

    def bounded(text: str, sign: str, end: int) -> str:
        limit = helpers.splat(Value(f"{float(end)!r}f", "f32", 1), value.lanes)
        beyond = Value(f"{text} {sign} {limit.text}", "mask", value.lanes)
        return helpers.select(beyond, limit, Value(text, "f32", value.lanes)).text

    whole = helpers.convert(Value("x", "f32", value.lanes), "i32")
    name = f"{dtype}_from_{floats}"
    helpers.add(
        name,
        f"static inline {helpers.vector(to, value.lanes)} {name}({floats} x) {{\n"
        f"  x = ({floats})(({bits})x & (x == x));\n  x = {bounded('x', '<', low)};\n  x = {bounded('x', '>', high)};\n"
        f"  const {bits} w = {whole.text};\n"
        f"  return {helpers.convert(Value('w', 'i32', value.lanes), to).text};\n}}",
    )
    return Value(f"{name}({value.text})", to, value.lanes)


def absolute(helpers: Helpers, a: Value) -> Value:
    """Return the absolute value; of the least integer it wraps."""
    if a.dtype[0] == "u":
        return a
    if a.lanes == 1:
        if dtypes.is_float(a.dtype):
            return Value(f"__builtin_fabs{'f' if a.dtype == 'f32' else ''}({a.text})", a.dtype, 1)
        scalar = scalar_name(a.dtype)
        text = f"static inline {scalar} fabs_{a.dtype}({scalar} x) {{ return ({scalar})(x < 0 ? -x : x); }}"
        return Value(f"{helpers.add(f'fabs_{a.dtype}', text)}({a.text})", a.dtype, 1)
    vector, bits = helpers.vector(a.dtype, a.lanes), 8 * width(a.dtype)
    name = f"fabs_{vector}"
    if dtypes.is_float(a.dtype):
        unsigned = helpers.vector(f"u{bits}", a.lanes)
        body = f"({vector})(({unsigned})x << 1 >> 1)"
    else:
        body = f"(x ^ (x >> {bits - 1})) - (x >> {bits - 1})"
    helpers.add(name, f"static inline {vector} {name}({vector} x) {{ return {body}; }}")
    return Value(f"{name}({a.text})", a.dtype, a.lanes)


def binade(helpers: Helpers, a: Value) -> Value:
    """Return the greatest power of two that is at most the value, of at least 0, in each lane: its exponent alone."""
    scalar, mask = ("double", "0x7ff0000000000000") if a.dtype == "f64" else ("float", "0x7f800000")
    bits, name = 64 if a.dtype == "f64" else 32, f"binade_{a.dtype}"
    helpers.add(
        name,
        f"static inline {scalar} {name}({scalar} x) {{\n  union {{ {scalar} f; uint{bits}_t u; }} r = {{x}};\n"
        f"  r.u &= {mask}u;\n  return r.f < 0x1p-126 ? 0 : r.f;\n}}",
    )
    return helpers.by_lane(name, a, a.dtype)


def unary(helpers: Helpers, fn: str, a: Value) -> Value:
    """Return ``sqrt``, ``floor`` or ``rint`` of each lane."""
    builtin = f"__builtin_{fn}{'f' if a.dtype == 'f32' else ''}"
    size = a.lanes * width(a.dtype)
    if a.lanes == 1 or size not in (16, 32):
        return helpers.by_lane(builtin, a, a.dtype)
    vector = helpers.vector(a.dtype, a.lanes)
    kind = ("ps" if a.dtype == "f32" else "pd") + ("256" if size == 32 else "")
    call = f"sqrt{kind}(x)" if fn == "sqrt" else f"round{kind}(x, {9 if fn == 'floor' else 4})"
    feature = "__AVX__" if size == 32 else "__SSE4_1__"
    name = f"{fn}_{vector}"
    helpers.add(
        name,
        f"static inline {vector} {name}({vector} x) {{\n#if defined({feature}) && !defined(__clang__)\n"
        f"  return __builtin_ia32_{call};\n#else\n  {vector} r;\n"
        f"  for (int i = 0; i < {a.lanes}; ++i) r[i] = {builtin}(x[i]);\n  return r;\n#endif\n}}",
    )
    return Value(f"{name}({a.text})", a.dtype, a.lanes)


def scaled(helpers: Helpers, dtype: str, lanes: int) -> str:
    """Return the name of a function: ``x`` times 2 to ``e`` in each lane, rounded once."""
    suffix, scalar, bits, bias, place = ("f", "float", 32, 127, 23) if dtype == "f32" else ("", "double", 64, 1023, 52)
    vector = helpers.vector(dtype, lanes)
    name = f"ldexp_{vector if lanes > 1 else dtype}"
    far = "e < -4000 ? -4000 : e > 4000 ? 4000 : (int)e"
    if lanes == 1:
        rest = f"  return __builtin_ldexp{suffix}(x, {far});\n"
    else:
        call = f"r[i] = __builtin_ldexp{suffix}(x[i], {far})"
        rest = f"  {vector} r;\n  for (int i = 0; i < {lanes}; ++i) {call};\n  return r;\n"
    factor = helpers.splat(Value("power.f", dtype, 1), lanes).text
    return helpers.add(
        name,
        f"static inline {vector} {name}({vector} x, int64_t e) {{\n"
        f"  const union {{ uint{bits}_t u; {scalar} f; }} power = {{(uint{bits}_t)(e + {bias}) << {place}}};\n"
        f"  if (e > -{bias} && e <= {bias}) return x * {factor};\n{rest}}}",
    )


def transcendental(helpers: Helpers, fn: str, a: Value, dtype: str, fast: bool) -> Value:
    """Return ``exp``, ``log``, ``tanh`` or ``erf``: C's double function, rounded once to ``dtype``.

    With ``fast`` f32 vectors go to glibc's vector functions (libmvec: at most 4 ulp) where it has them.
    For f16 and bf16 the result is an f32 that rounds to the right value.
    """
    letter = {4: "b", 8: "d", 16: "e"}.get(a.lanes)
    if fast and helpers.libmvec and dtype == "f32" and letter is not None and 4 * a.lanes <= helpers.vector_bytes:
        vector = helpers.vector("f32", a.lanes)
        name = f"_ZGV{letter}N{a.lanes}v_{fn}f"
        helpers.add(name, f"extern {vector} {name}({vector});")
        return Value(f"{name}({a.text})", "f32", a.lanes)
    if dtype == "f64":
        return helpers.by_lane(f"__builtin_{fn}", a, "f64")
    name, value = f"{fn}_{dtype}", f"__builtin_{fn}((double)x)"
    value = narrowed(helpers, Value(value, "f64", 1)).text if dtype in _F16 else f"(float){value}"
    helpers.add(name, f"static inline float {name}(float x) {{ return {value}; }}")
    return helpers.by_lane(name, a, "f32")


def operands(helpers: Helpers, function: str, args: Sequence[Value]) -> Value:
    """Return a scalar C function of two values, in each lane; vector operands must be variables."""
    lanes, kind = args[0].lanes, args[0].dtype
    if lanes == 1:
        return Value(f"{function}({', '.join(a.text for a in args)})", kind, 1)
    calls = [f"{function}({', '.join(f'{a.text}[{i}]' for a in args)})" for i in range(lanes)]
    return Value(f"({helpers.vector(kind, lanes)}){{{', '.join(calls)}}}", kind, lanes, UNARY)

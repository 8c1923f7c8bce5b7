"""Small C functions that generated code calls, each emitted once where it is used.

Compilers differ in what they make of generic vector code; where gcc 12 splits a vector into lanes (widening of bytes,
rounding), the builtin stands beside the generic form. ``immintrin.h`` is never included: it costs gcc 0.4 s a compile.
"""

from __future__ import annotations

from polyq.affine import dtypes
from polyq.emit.ctypes import Value, scalar_name, type_name, typedefs, width

__all__ = ["Helpers"]

_MATH = {"exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf"}

_F16 = """
static inline float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
  union { uint32_t u; float f; } r;
  if (rest >= 0x7c00u) { r.u = sign | 0x7f800000u | (rest & 0x3ffu) << 13; return r.f; }
  r.u = sign | (rest << 13);          /* as a tiny f32, then scaled by 2^112: exact, subnormals included */
  r.f *= 0x1p112f;
  return r.f;
}
static inline uint16_t to_f16(float x) {
  union { float f; uint32_t u; } v = {x};
  const uint32_t sign = v.u >> 16 & 0x8000u, a = v.u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (a < 0x38800000u) {              /* subnormal: adding 0.5 puts the last place at 2^-24, rounding to nearest even */
    union { float f; uint32_t u; } s = {.u = a};
    s.f += 0.5f;
    return (uint16_t)(sign | (s.u - 0x3f000000u));
  }
  return (uint16_t)(sign | ((a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13));
}"""

_BF16 = """
static inline float from_bf16(uint16_t h) { union { uint32_t u; float f; } r = {(uint32_t)h << 16}; return r.f; }
static inline uint16_t to_bf16(float x) {
  union { float f; uint32_t u; } v = {x};
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(v.u >> 16 | 0x40u);
  return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}"""


class Helpers:
    """Collects what the generated code needs: vector types and functions, in order of first use."""

    def __init__(self) -> None:
        self.kinds: set[tuple[str, int]] = set()
        self.functions: dict[str, str] = {}

    def text(self) -> list[str]:
        """Return typedefs and functions."""
        return typedefs(self.kinds) + list(self.functions.values())

    def vector(self, compute: str, lanes: int) -> str:
        """Note a vector type and return its name."""
        if lanes > 1:
            self.kinds.add((compute, lanes))
        return type_name(compute, lanes)

    def _add(self, name: str, text: str) -> str:
        self.functions.setdefault(name, text)
        return name

    # ---- storage of 16-bit floats
    def half(self, dtype: str) -> None:
        """Note the conversions of f16 or bf16."""
        self._add(dtype, _F16.strip() if dtype == "f16" else _BF16.strip())

    def round_half(self, value: Value, dtype: str) -> str:
        """Return ``value`` (f32) rounded to f16 or bf16, still as f32."""
        self.half(dtype)
        name = f"round_{dtype}"
        self._add(name, f"static inline float {name}(float x) {{ return from_{dtype}(to_{dtype}(x)); }}")
        return f"{name}({value.text})" if value.lanes == 1 else self.by_lane(name, value, "f32")

    def by_lane(self, function: str, value: Value, result: str) -> str:
        """Return a call that applies a scalar C function to each lane."""
        vector, out = self.vector(value.dtype, value.lanes), self.vector(result, value.lanes)
        name = f"{function.strip('_')}_{vector}"
        self._add(
            name,
            f"static inline {out} {name}({vector} x) {{\n  {out} r;\n"
            f"  for (int i = 0; i < {value.lanes}; ++i) r[i] = {function}(x[i]);\n  return r;\n}}",
        )
        return f"{name}({value.text})"

    # ---- lanes
    def splat(self, value: Value, lanes: int) -> Value:
        """Return a scalar in every lane."""
        if value.lanes == lanes:
            return value
        vector, scalar = self.vector(value.dtype, lanes), scalar_name(value.dtype)
        name = f"splat_{value.dtype}x{lanes}"
        fill = ", ".join(["x"] * lanes)
        self._add(name, f"static inline {vector} {name}({scalar} x) {{ return ({vector}){{{fill}}}; }}")
        text = f"-({value.text})" if value.dtype == "mask" else value.text
        return Value(f"{name}({text})", value.dtype, lanes)

    def iota(self, lanes: int) -> str:
        """Return the vector 0, 1, 2, ... of i64."""
        return f"({self.vector('i64', lanes)}){{{', '.join(map(str, range(lanes)))}}}"

    def lane_mask(self, lanes: int, count: str) -> str:
        """Return a mask of the first ``count`` lanes."""
        vector = self.vector("mask", lanes)
        iota = ", ".join(map(str, range(lanes)))
        name = f"first_lanes_x{lanes}"
        fill = ", ".join(["m"] * lanes)
        self._add(
            name,
            f"static inline {vector} {name}(int64_t n) {{\n  const int32_t m = (int32_t)n;\n"
            f"  return ({vector}){{{iota}}} < ({vector}){{{fill}}};\n}}",
        )
        return f"{name}({count})"

    def select(self, mask: Value, a: Value, b: Value) -> str:
        """Return ``mask ? a : b``; all three have the same lanes."""
        if mask.lanes == 1:
            return f"({mask.text} ? {a.text} : {b.text})"
        vector, size = self.vector(a.dtype, a.lanes), width(a.dtype)
        bits = self.vector(f"i{8 * size}", a.lanes)
        name = f"select_{vector}"
        self._add(
            name,
            f"static inline {vector} {name}({bits} m, {vector} a, {vector} b) {{\n"
            f"  return ({vector})((m & ({bits})a) | (~m & ({bits})b));\n}}",
        )
        return f"{name}({self.convert(mask, f'i{8 * size}').text}, {a.text}, {b.text})"

    def part(self, stored: str, lanes: int) -> str:
        """Return the name of a load of the first n lanes; the others are 0 and their memory is not touched."""
        vector, scalar = self.vector(stored, lanes), scalar_name(stored)
        name = f"load_part_{vector}"
        return self._add(
            name,
            f"static inline {vector} {name}(const {scalar} *p, int64_t n) {{\n  {vector} r = {{0}};\n"
            f"  __builtin_memcpy(&r, p, (size_t)n * sizeof(*p));\n  return r;\n}}",
        )

    def store_part(self, stored: str, lanes: int) -> str:
        """Return the name of a store of the first n lanes."""
        vector, scalar = self.vector(stored, lanes), scalar_name(stored)
        name = f"store_part_{vector}"
        return self._add(
            name,
            f"static inline void {name}({scalar} *p, {vector} v, int64_t n) {{\n"
            f"  __builtin_memcpy(p, &v, (size_t)n * sizeof(*p));\n}}",
        )

    def fold(self, combine: str, value: Value) -> str:
        """Return the lanes of ``value`` combined by a scalar function of two arguments, as a tree."""
        vector, scalar = self.vector(value.dtype, value.lanes), scalar_name(value.dtype)
        terms = [f"v[{i}]" for i in range(value.lanes)]
        while len(terms) > 1:
            half = len(terms) // 2
            terms = [f"{combine}({a}, {b})" for a, b in zip(terms[:half], terms[half:], strict=False)] + terms[2 * half :]
        name = f"fold_{combine}_{vector}"
        self._add(name, f"static inline {scalar} {name}({vector} v) {{ return {terms[0]}; }}")
        return f"{name}({value.text})"

    def binary(self, name: str, operator: str, compute: str) -> str:
        """Return the name of a scalar function ``a operator b``."""
        scalar = scalar_name(compute)
        text = f"static inline {scalar} {name}_{compute}({scalar} a, {scalar} b) {{ return ({scalar})(a {operator} b); }}"
        return self._add(f"{name}_{compute}", text)

    # ---- conversions
    def convert(self, value: Value, to: str) -> Value:
        """Return a plain C conversion between compute types (integers wrap); masks count as 32-bit integers."""
        source = "i32" if value.dtype == "mask" else value.dtype
        if source == to:
            return Value(value.text, to, value.lanes)
        if value.lanes == 1:
            return Value(f"({scalar_name(to)})({value.text})", to, 1)
        self.vector(source, value.lanes)
        vector = self.vector(to, value.lanes)
        small = dtypes.is_int(source) and dtypes.info(source).bits < 32
        if small and dtypes.is_float(to):
            return self.convert(self.convert(value, "i32"), to)
        if small and to in ("i32", "u32") and value.lanes in (4, 8):
            return Value(f"{self._widen(source, to, value.lanes)}({value.text})", to, value.lanes)
        return Value(f"__builtin_convertvector({value.text}, {vector})", to, value.lanes)

    def _widen(self, source: str, to: str, lanes: int) -> str:
        """gcc 12 widens bytes lane by lane; the builtins are pmovzx and pmovsx."""
        vector, out = self.vector(source, lanes), self.vector(to, lanes)
        letter, size = source[0], dtypes.info(source).bits
        sign = "z" if letter == "u" else "s"
        feature = "__AVX2__" if lanes == 8 else "__SSE4_1__"
        builtin = f"__builtin_ia32_pmov{sign}x{'b' if size == 8 else 'w'}d{'256' if lanes == 8 else '128'}"
        argument = "char" if size == 8 else "short"
        name = f"widen_{vector}_{out}"
        return self._add(
            name,
            f"static inline {out} {name}({vector} x) {{\n#if defined({feature}) && !defined(__clang__)\n"
            f"  typedef {argument} whole __attribute__((vector_size(16)));\n"
            f"  union {{ {vector} part; whole all; }} u = {{.all = {{0}}}};\n  u.part = x;\n"
            f"  return ({out}){builtin}(u.all);\n#else\n  return __builtin_convertvector(x, {out});\n#endif\n}}"
            if size * lanes < 128
            else f"static inline {out} {name}({vector} x) {{\n#if defined({feature}) && !defined(__clang__)\n"
            f"  typedef {argument} whole __attribute__((vector_size(16)));\n"
            f"  return ({out}){builtin}((whole)x);\n#else\n  return __builtin_convertvector(x, {out});\n#endif\n}}",
        )

    def saturate(self, value: Value, to: str) -> str:
        """Return a float converted to an integer type: truncated, saturated, 0 for NaN."""
        low, high = dtypes.value_range(to)
        scalar, source = scalar_name(to), scalar_name(value.dtype)
        name = f"{to}_from_{value.dtype}"
        least = f"({scalar})({low + 1} - 1)" if low == -(1 << 63) else f"({scalar}){low}"
        most = f"({scalar}){high}u" if high > (1 << 63) - 1 else f"({scalar}){high}"
        self._add(
            name,
            f"static inline {scalar} {name}({source} x) {{\n"
            f"  return x != x ? 0 : x <= {float(low)!r} ? {least} : x >= {float(high + 1)!r} ? {most} : ({scalar})x;\n}}",
        )
        return f"{name}({value.text})" if value.lanes == 1 else self.by_lane(name, value, to)

    # ---- arithmetic that C does not offer as an operator
    def minmax(self, fn: str, dtype: str, lanes: int) -> str:
        """Return the name of a min or max of two arguments; a NaN in either gives NaN."""
        vector = self.vector(dtype, lanes)
        name, sign = f"{fn}_{vector if lanes > 1 else dtype}", "<" if fn == "min" else ">"
        nan = dtypes.is_float(dtype)
        if lanes == 1:
            body = f"a {sign} b || a != a ? a : b" if nan else f"a {sign} b ? a : b"
            return self._add(name, f"static inline {vector} {name}({vector} a, {vector} b) {{ return {body}; }}")
        pick = self.select(Value(f"(a {sign} b)" + (" | (a != a)" if nan else ""), f"i{8 * width(dtype)}", lanes),
                           Value("a", dtype, lanes), Value("b", dtype, lanes))  # fmt: skip
        return self._add(name, f"static inline {vector} {name}({vector} a, {vector} b) {{ return {pick}; }}")

    def divide(self, fn: str, dtype: str) -> str:
        """Return the name of the scalar integer ``floordiv`` or ``mod``: by 0 gives 0, the least value by -1 wraps."""
        scalar, name = scalar_name(dtype), f"{fn}_{dtype}"
        unsigned = scalar_name(f"u{dtypes.info(dtype).bits}")
        if dtype[0] == "u":
            body = f"b ? a {'/' if fn == 'floordiv' else '%'} b : 0"
        elif fn == "floordiv":
            body = f"!b ? 0 : b == -1 ? ({scalar})(0 - ({unsigned})a) : a / b - (a % b != 0 && (a < 0) != (b < 0))"
        else:
            body = "!b || b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0)"
        text = f"static inline {scalar} {name}({scalar} a, {scalar} b) {{ return ({scalar})({body}); }}"
        return self._add(name, text)

    def math(self, fn: str, dtype: str) -> str:
        """Return the name of the scalar function: C's double function, rounded once to ``dtype``."""
        if dtype == "f64":
            return f"__builtin_{_MATH[fn]}"
        return self._add(f"{fn}_f32", f"static inline float {fn}_f32(float x) {{ return (float)__builtin_{_MATH[fn]}((double)x); }}")

    def fast_math(self, fn: str, lanes: int) -> str | None:
        """Return the name of glibc's vector version of an f32 function (libmvec: at most 4 ulp), if this width has one."""
        letter = {4: "b", 8: "d"}.get(lanes)
        if letter is None:
            return None
        vector = self.vector("f32", lanes)
        name = f"_ZGV{letter}N{lanes}v_{fn}f"
        return self._add(name, f"extern {vector} {name}({vector});")

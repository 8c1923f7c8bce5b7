"""f16 and bf16 in C: patterns of 16 bits in memory, f32 values in registers; rounding is to nearest, even."""

from __future__ import annotations

from polyq.emit.ctypes import Value
from polyq.emit.helpers import Helpers

__all__ = ["decoded", "encoded", "narrowed", "rounded"]

_SCALAR = {
    "from_f16": """\
static inline float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
  union { uint32_t u; float f; } r;
  if (rest >= 0x7c00u) { r.u = sign | 0x7f800000u | (rest & 0x3ffu) << 13; return r.f; }
  r.u = sign | (rest << 13);          /* as a tiny f32, then scaled by 2^112: exact, subnormals included */
  r.f *= 0x1p112f;
  return r.f;
}""",
    "to_f16": """\
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
}""",
    "from_bf16": """\
static inline float from_bf16(uint16_t h) { union { uint32_t u; float f; } r = {(uint32_t)h << 16}; return r.f; }""",
    "to_bf16": """\
static inline uint16_t to_bf16(float x) {
  union { float f; uint32_t u; } v = {x};
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(v.u >> 16 | 0x40u);
  return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}""",
}
#: a double as f32 with the last bit set if it is inexact ("round to odd"): a second rounding then gives what one would
_ODD = """\
static inline float odd_f32(double x) {
  union { float f; uint32_t u; } r = {(float)x};
  if ((double)r.f == x || x != x) return r.f;
  if (__builtin_fabs((double)r.f) > __builtin_fabs(x)) r.u -= 1;
  r.u |= 1u;
  return r.f;
}"""


def _pick(mask: str, a: str, b: str) -> str:
    return f"({mask} & ({a})) | (~{mask} & ({b}))"


def _with_f16c(native: str, plain: str) -> str:
    return f"#if defined(__F16C__) && !defined(__clang__)\n{native}#else\n{plain}#endif\n"


def _decode_f16(helpers: Helpers, lanes: int) -> str:
    """Lane by lane what ``from_f16`` does, without branches: gcc takes seconds for a tile of unrolled branches."""
    floats, bits, signed = (helpers.vector(t, lanes) for t in ("f32", "u32", "i32"))
    finite = f"({bits})(({floats})((w & 0x7fffu) << 13) * 0x1p112f)"
    picked = _pick("special", "0x7f800000u | (w & 0x3ffu) << 13", finite)
    return (
        f"  const {bits} w = {helpers.convert(Value('h', 'u16', lanes), 'u32').text};\n"
        f"  const {bits} special = ({bits})(({signed})(w & 0x7fffu) >= 0x7c00);\n"
        f"  return ({floats})((w & 0x8000u) << 16 | {picked});\n"
    )


def _encode_f16(helpers: Helpers, lanes: int) -> str:
    """Lane by lane what ``to_f16`` does, without branches."""
    floats, bits, signed = (helpers.vector(t, lanes) for t in ("f32", "u32", "i32"))
    small = f"({bits})(({floats})a + 0.5f) - 0x3f000000u"
    normal = "(a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13"
    return (
        f"  const {bits} a = ({bits})x & 0x7fffffffu, below = ({bits})(({signed})a < 0x38800000);\n"
        f"  const {bits} beyond = ({bits})(({signed})a >= 0x477ff000), nan = ({bits})(({signed})a > 0x7f800000);\n"
        f"  {bits} r = {_pick('below', small, normal)};\n"
        f"  r = (r & ~beyond) | (0x7c00u & beyond) | ((0x200u | (a >> 13 & 0x3ffu)) & nan);\n"
        f"  r |= ({bits})x >> 16 & 0x8000u;\n"
        f"  return {helpers.convert(Value('r', 'u32', lanes), 'u16').text};\n"
    )


def decoded(helpers: Helpers, value: Value, dtype: str) -> Value:
    """Return stored patterns (u16) as f32."""
    scalar = f"from_{dtype}"
    if value.lanes == 1:
        helpers.add(scalar, _SCALAR[scalar])
        return Value(f"{scalar}({value.text})", "f32", 1)
    lanes, patterns, floats = value.lanes, helpers.vector("u16", value.lanes), helpers.vector("f32", value.lanes)
    name = f"{scalar}_x{lanes}"
    if dtype == "bf16":
        wide = helpers.convert(Value("h", "u16", lanes), "u32")
        body = f"  return ({floats})({wide.text} << 16);\n"
    else:
        body = _decode_f16(helpers, lanes)
        if lanes == 8:
            short = "typedef short whole __attribute__((vector_size(16)));"
            body = _with_f16c(f"  {short}\n  return ({floats})__builtin_ia32_vcvtph2ps256((whole)h);\n", body)
    helpers.add(name, f"static inline {floats} {name}({patterns} h) {{\n{body}}}")
    return Value(f"{name}({value.text})", "f32", lanes)


def encoded(helpers: Helpers, value: Value, dtype: str) -> Value:
    """Return f32 values as patterns (u16), rounded once."""
    scalar = f"to_{dtype}"
    if value.lanes == 1:
        helpers.add(scalar, _SCALAR[scalar])
        return Value(f"{scalar}({value.text})", "u16", 1)
    lanes, patterns, floats = value.lanes, helpers.vector("u16", value.lanes), helpers.vector("f32", value.lanes)
    name = f"{scalar}_x{lanes}"
    if dtype == "bf16":
        bits, signed = helpers.vector("u32", lanes), helpers.vector("i32", lanes)
        nan = f"({bits})({signed})(x != x)"
        picked = _pick("nan", "u >> 16 | 0x40u", "(u + 0x7fffu + (u >> 16 & 1u)) >> 16")
        body = (
            f"  const {bits} u = ({bits})x, nan = {nan};\n"
            f"  return {helpers.convert(Value(picked, 'u32', lanes), 'u16').text};\n"
        )
    else:
        body = _encode_f16(helpers, lanes)
        if lanes == 8:
            body = _with_f16c(f"  return ({patterns})__builtin_ia32_vcvtps2ph256(x, 0);\n", body)
    helpers.add(name, f"static inline {patterns} {name}({floats} x) {{\n{body}}}")
    return Value(f"{name}({value.text})", "u16", lanes)


def rounded(helpers: Helpers, value: Value, dtype: str) -> Value:
    """Return f32 values rounded to f16 or bf16, still as f32."""
    return decoded(helpers, encoded(helpers, value, dtype), dtype)


def narrowed(helpers: Helpers, value: Value) -> Value:
    """Return f64 values as f32 such that rounding these to 16 bits is one rounding of the f64."""
    if value.lanes == 1:
        helpers.add("odd_f32", _ODD)
        return Value(f"odd_f32({value.text})", "f32", 1)
    lanes = value.lanes
    floats, bits, signed = (helpers.vector(t, lanes) for t in ("f32", "u32", "i32"))
    doubles, wide = helpers.vector("f64", lanes), helpers.vector("i64", lanes)
    name = f"odd_f32_x{lanes}"
    helpers.add(name, f"""\
static inline {floats} {name}({doubles} x) {{
  const {floats} near = {helpers.convert(Value("x", "f64", lanes), "f32").text};
  const {doubles} back = {helpers.convert(Value("near", "f32", lanes), "f64").text};
  const {doubles} a = ({doubles})(({wide})x & 0x7fffffffffffffff), b = ({doubles})(({wide})back & 0x7fffffffffffffff);
  const {wide} exact = (back == x) | (x != x), above = b > a;
  const {signed} e = {_narrow("exact", lanes)}, l = {_narrow("above", lanes)};
  const {bits} u = ({bits})near;
  return ({floats})((u & ({bits})e) | (((u + ({bits})l) | 1u) & ~({bits})e));
}}""")
    return Value(f"{name}({value.text})", "f32", lanes)


def _narrow(mask: str, lanes: int) -> str:
    """Return a mask of 64-bit lanes as one of 32-bit lanes."""
    parts = ", ".join(f"(int32_t){mask}[{i}]" for i in range(lanes))
    return f"{{{parts}}}"

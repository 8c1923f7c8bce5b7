"""Small C functions that generated code calls, each emitted once where it is used: lanes, parts, folds, conversions.

Compilers differ in what they make of generic vector code; where gcc 12 splits a vector into lanes (widening of bytes,
rounding), the builtin stands beside the generic form. ``immintrin.h`` is never included: it costs gcc 0.4 s a compile.
"""

from __future__ import annotations

import re

from polyq.affine import dtypes
from polyq.emit.ctypes import SUM, UNARY, Value, scalar_name, type_name, typedefs, width
from polyq.schedule.isa import Dot

__all__ = ["Helpers", "words"]

_GCC_AVX2 = "#if defined(__AVX2__) && !defined(__clang__)"


def words(text: str) -> set[str]:
    """Return the identifiers in C text, comments aside."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))


class Helpers:
    """Collects what the generated code needs: vector types and functions, in order of first use.

    ``vector_bytes`` is what one register of the target holds, 0 for scalar code; ``dots`` are its instructions for sums
    of products of small integers, and with ``libmvec`` functions of vectors come from that library.
    """

    def __init__(self, vector_bytes: int, dots: tuple[Dot, ...] = (), libmvec: bool = True) -> None:
        self.vector_bytes, self.dots, self.libmvec = vector_bytes, dots, libmvec
        self._kinds: set[tuple[str, int]] = set()
        self._functions: dict[str, str] = {}
        self.streams = False  # whether a store past the cache was asked for since this was last reset

    def text(self, user: str) -> list[str]:
        """Return typedefs and functions that the C text ``user`` needs, directly or through others."""
        used, kept = words(user), list[str]()
        for name, text in reversed(self._functions.items()):  # what a function calls was noted before it
            if name in used:
                kept.insert(0, text)
                used |= words(text)
        kinds = {k for k in self._kinds if {type_name(*k), f"{type_name(*k)}_u"} & used}
        return typedefs(kinds) + kept

    def vector(self, compute: str, lanes: int) -> str:
        """Note a vector type and return its name."""
        if lanes > 1:
            self._kinds.add((compute, lanes))
        return type_name(compute, lanes)

    def add(self, name: str, text: str) -> str:
        """Note a definition under its name and return the name."""
        self._functions.setdefault(name, text)
        return name

    def by_lane(self, function: str, value: Value, result: str) -> Value:
        """Return a call that applies a scalar C function to each lane."""
        if value.lanes == 1:
            return Value(f"{function}({value.text})", result, 1)
        vector, out = self.vector(value.dtype, value.lanes), self.vector(result, value.lanes)
        name = self.add(
            f"{function.removeprefix('__builtin_')}_{vector}",
            f"static inline {out} {function.removeprefix('__builtin_')}_{vector}({vector} x) {{\n  {out} r;\n"
            f"  for (int i = 0; i < {value.lanes}; ++i) r[i] = {function}(x[i]);\n  return r;\n}}",
        )
        return Value(f"{name}({value.text})", result, value.lanes)

    # ---- lanes
    def splat(self, value: Value, lanes: int) -> Value:
        """Return a scalar in every lane."""
        if value.lanes == lanes:
            return value
        vector, scalar = self.vector(value.dtype, lanes), scalar_name(value.dtype)
        fill = ", ".join(["x"] * lanes)
        text = f"static inline {vector} splat_{vector}({scalar} x) {{ return ({vector}){{{fill}}}; }}"
        name = self.add(f"splat_{vector}", text)
        return Value(
            f"{name}({'-' + value.within(UNARY) if value.dtype == 'mask' else value.text})", value.dtype, lanes
        )

    def field_mask(self, bits: int, low: int, lanes: int) -> str:
        """Return the name of a constant that keeps the field of ``bits`` bits at ``low`` of each 32-bit lane."""
        vector = self.vector("u32", lanes)
        fill = ", ".join([hex(((1 << bits) - 1) << low)] * lanes)
        return self.add(
            f"field_{bits}_at_{low}_x{lanes}", f"static const {vector} field_{bits}_at_{low}_x{lanes} = {{{fill}}};"
        )

    def iota(self, lanes: int) -> str:
        """Return the vector 0, 1, 2, ... of i64."""
        return f"({self.vector('i64', lanes)}){{{', '.join(map(str, range(lanes)))}}}"

    def lane_mask(self, lanes: int, count: str) -> Value:
        """Return a mask of the first ``count`` lanes."""
        vector = self.vector("mask", lanes)
        name = f"first_lanes_x{lanes}"
        fill = ", ".join(["m"] * lanes)
        self.add(
            name,
            f"static inline {vector} {name}(int64_t n) {{\n  const int32_t m = (int32_t)n;\n"
            f"  return ({vector}){{{', '.join(map(str, range(lanes)))}}} < ({vector}){{{fill}}};\n}}",
        )
        return Value(f"{name}({count})", "mask", lanes)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        """Return ``mask ? a : b``; all three have the same lanes."""
        if mask.lanes == 1:
            return Value(f"({mask.text} ? {a.text} : {b.text})", a.dtype, 1)
        vector, size = self.vector(a.dtype, a.lanes), width(a.dtype)
        bits = self.vector(f"i{8 * size}", a.lanes)
        plain = f"  return ({vector})((m & ({bits})a) | (~m & ({bits})b));\n"
        if size in (4, 8) and size * a.lanes in (16, 32):  # gcc makes three operations of the plain form
            kind, feature = ("256", "__AVX__") if size * a.lanes == 32 else ("", "__SSE4_1__")
            whole = self.vector(f"f{8 * size}", a.lanes)
            blend = f"__builtin_ia32_blendv{'ps' if size == 4 else 'pd'}{kind}(({whole})b, ({whole})a, ({whole})m)"
            head = f"#if defined({feature}) && !defined(__clang__)\n  return ({vector}){blend};\n#else\n"
            plain = f"{head}{plain}#endif\n"
        name = self.add(
            f"select_{vector}",
            f"static inline {vector} select_{vector}({bits} m, {vector} a, {vector} b) {{\n{plain}}}",
        )
        return Value(f"{name}({self.convert(mask, f'i{8 * size}').text}, {a.text}, {b.text})", a.dtype, a.lanes)

    def reverse(self, value: Value) -> Value:
        """Return the lanes in reversed order."""
        vector = self.vector(value.dtype, value.lanes)
        order = ", ".join(map(str, reversed(range(value.lanes))))
        text = (
            f"static inline {vector} reverse_{vector}({vector} x) {{ return __builtin_shufflevector(x, x, {order}); }}"
        )
        return Value(f"{self.add(f'reverse_{vector}', text)}({value.text})", value.dtype, value.lanes)

    def fold(self, combine: str, value: Value) -> Value:
        """Return the lanes of ``value`` combined by a scalar function of two arguments, as a tree."""
        vector, scalar = self.vector(value.dtype, value.lanes), scalar_name(value.dtype)
        terms = [f"v[{i}]" for i in range(value.lanes)]
        while len(terms) > 1:
            half = len(terms) // 2
            terms = [f"{combine}({terms[i]}, {terms[half + i]})" for i in range(half)] + terms[2 * half :]
        name = f"fold_{combine}_x{value.lanes}"
        self.add(name, f"static inline {scalar} {name}({vector} v) {{\n  return {terms[0]};\n}}")
        return Value(f"{name}({value.text})", value.dtype, 1)

    def binary(self, name: str, operator: str, compute: str) -> str:
        """Return the name of a scalar function ``a operator b``."""
        scalar = scalar_name(compute)
        text = (
            f"static inline {scalar} {name}_{compute}({scalar} a, {scalar} b) {{ return ({scalar})(a {operator} b); }}"
        )
        return self.add(f"{name}_{compute}", text)

    # ---- parts of vectors
    def load_part(self, unit: str, lanes: int, address: str, count: str) -> Value:
        """Return a load of the first ``count`` lanes; the others are 0 and their memory is not touched."""
        vector, scalar = self.vector(unit, lanes), scalar_name(unit)
        name = f"load_part_{vector}"
        plain = f"  {vector} r = {{0}};\n  __builtin_memcpy(&r, p, (size_t)n * sizeof(*p));\n  return r;\n"
        if lanes in (4, 8) and width(unit) == 4 and self.vector_bytes >= 32:
            plain = self._masked_load(vector, lanes)
        self.add(name, f"static inline {vector} {name}(const {scalar} *p, int64_t n) {{\n{plain}}}")
        return Value(f"{name}({address}, {count})", unit, lanes)

    def _masked_load(self, vector: str, lanes: int) -> str:
        masks, mask = self.vector("i32", lanes), self.lane_mask(lanes, "n").text
        builtin = f"__builtin_ia32_maskloadd{'256' if lanes == 8 else ''}"
        return f"  return ({vector}){builtin}((const {masks} *)p, {mask});\n"

    def load_words(self, lanes: int, address: str, count: str) -> Value:
        """Return the first ``count`` 32-bit words at any address; the others are 0 and their memory is not touched."""
        vector = self.vector("u32", lanes)
        plain = f"  {vector} r = {{0}};\n  __builtin_memcpy(&r, p, (size_t)n * 4);\n  return r;\n"
        if lanes in (4, 8) and self.vector_bytes >= 32:
            plain = self._masked_load(vector, lanes)
        name = f"load_words_{vector}"
        self.add(name, f"static inline {vector} {name}(const void *p, int64_t n) {{\n{plain}}}")
        return Value(f"{name}({address}, {count})", "u32", lanes)

    def strided(self, unit: str, lanes: int, address: str, distance: str) -> Value:
        """Return a vector of elements that lie ``distance`` apart."""
        vector, scalar = self.vector(unit, lanes), scalar_name(unit)
        cells = ", ".join("p[0]" if i == 0 else "p[s]" if i == 1 else f"p[{i} * s]" for i in range(lanes))
        head = f"static inline {vector} load_strided_{vector}(const {scalar} *p, int64_t s)"
        name = self.add(f"load_strided_{vector}", f"{head} {{\n  return ({vector}){{{cells}}};\n}}")
        return Value(f"{name}({address}, {distance})", unit, lanes)

    def store_part(self, value: Value, address: str, count: str) -> str:
        """Return a store of the first ``count`` lanes."""
        unit, lanes = value.dtype, value.lanes
        vector, scalar = self.vector(unit, lanes), scalar_name(unit)
        name = f"store_part_{vector}"
        plain = "  __builtin_memcpy(p, &v, (size_t)n * sizeof(*p));\n"
        if lanes == 8 and width(unit) == 4 and self.vector_bytes >= 32:
            masks, mask = self.vector("i32", 8), self.lane_mask(8, "n").text
            plain = f"  __builtin_ia32_maskstored256(({masks} *)p, {mask}, ({masks})v);\n"
        self.add(name, f"static inline void {name}({scalar} *p, {vector} v, int64_t n) {{\n{plain}}}")
        return f"{name}({address}, {value.text}, {count});"

    def stream(self, value: Value, address: str, aligned: str) -> str:
        """Return a store past the cache, 16 bytes at a time, where ``aligned`` holds; else a plain one."""
        vector, scalar = self.vector(value.dtype, value.lanes), scalar_name(value.dtype)
        self.streams = True
        name, parts = f"stream_{vector}", width(value.dtype) * value.lanes // 16
        stores = "".join(f"    STREAM(p + {i * 16 // width(value.dtype)}, u.part[{i}]);\n" for i in range(parts))
        self.add(
            name,
            f"static inline void {name}({scalar} *p, {vector} v, int64_t aligned) {{\n  if (aligned) {{\n"
            f"    const union {{ {vector} whole; stream16 part[{parts}]; }} u = {{.whole = v}};\n{stores}"
            f"  }} else {{\n    *({vector}_u *)p = v;\n  }}\n}}",
        )
        return f"{name}({address}, {value.text}, {aligned});"

    # ---- conversions
    def convert(self, value: Value, to: str) -> Value:
        """Return a plain C conversion between compute types (integers wrap); masks count as 32-bit integers."""
        source = "i32" if value.dtype == "mask" else value.dtype
        if source == to:
            return Value(value.text, to, value.lanes, value.rank)
        if value.lanes == 1:
            return Value(f"({scalar_name(to)}){value.within(UNARY)}", to, 1, UNARY)
        self.vector(source, value.lanes)
        vector = self.vector(to, value.lanes)
        small = dtypes.is_int(source) and dtypes.info(source).bits < 32
        if small and dtypes.is_float(to):
            return self.convert(self.convert(value, "i32"), to)
        if small and to in ("i32", "u32") and value.lanes in (4, 8):
            return Value(f"{self._widen(source, to, value.lanes)}({value.text})", to, value.lanes)
        if source in ("i32", "u32") and to in ("i8", "u8") and value.lanes in (4, 8):
            return Value(f"{self._lowest_bytes(source, to, value.lanes)}({value.text})", to, value.lanes)
        return Value(f"__builtin_convertvector({value.text}, {vector})", to, value.lanes)

    def _widen(self, source: str, to: str, lanes: int) -> str:
        """Gcc 12 widens bytes lane by lane; the builtins are pmovzx and pmovsx."""
        vector, out = self.vector(source, lanes), self.vector(to, lanes)
        size = dtypes.info(source).bits
        feature = _GCC_AVX2 if lanes == 8 else "#if defined(__SSE4_1__) && !defined(__clang__)"
        sign = "z" if source[0] == "u" else "s"
        builtin = f"__builtin_ia32_pmov{sign}x{'b' if size == 8 else 'w'}d{'256' if lanes == 8 else '128'}"
        whole = f"  typedef {'char' if size == 8 else 'short'} whole __attribute__((vector_size(16)));\n"
        argument = "(whole)x"
        if size * lanes < 128:
            whole += f"  union {{ {vector} part; whole all; }} u = {{.all = {{0}}}};\n  u.part = x;\n"
            argument = "u.all"
        name = f"widen_{vector}_{out}"
        return self.add(
            name,
            f"static inline {out} {name}({vector} x) {{\n{feature}\n{whole}  return ({out}){builtin}({argument});\n"
            f"#else\n  return __builtin_convertvector(x, {out});\n#endif\n}}",
        )

    def _lowest_bytes(self, source: str, to: str, lanes: int) -> str:
        """Gcc 12 narrows 32 bits to bytes lane by lane; a shuffle of bytes is two instructions and a move."""
        vector, out, parts = self.vector(source, lanes), self.vector(to, lanes), self.vector(to, 4 * lanes)
        order = ", ".join(str(4 * i) for i in range(lanes))
        name = f"narrow_{vector}_{out}"
        return self.add(
            name,
            f"static inline {out} {name}({vector} x) {{\n#if defined(__clang__) || __GNUC__ >= 12\n"
            f"  return __builtin_shufflevector(({parts})x, ({parts})x, {order});\n#else\n"
            f"  return __builtin_convertvector(x, {out});\n#endif\n}}",
        )

    def reinterpret(self, value: Value, to: str) -> Value:
        """Return the same bits as another vector type."""
        return Value(f"({self.vector(to, value.lanes)}){value.within(UNARY)}", to, value.lanes, UNARY)

    def combined(self, a: Value, operator: str, b: Value, rank: int) -> Value:
        """Return ``a operator b`` for operands of one type; ``rank`` is how loosely the operator binds."""
        right = rank - 1 if rank <= SUM else UNARY
        left = rank if rank <= SUM else UNARY
        return Value(f"{a.within(left)} {operator} {b.within(right)}", a.dtype, a.lanes, rank)

"""C for the rows of a target's table of dot products: the instruction, and beside it what it computes in plain C.

Builtins of compilers differ in name and type, so that most instructions are written as assembly, which also leaves the
choice to nobody else.
"""

from __future__ import annotations

from polyq.emit.ctypes import type_name
from polyq.emit.helpers import Helpers
from polyq.schedule.isa import Dot

__all__ = ["multiply_add", "ones"]


def multiply_add(helpers: Helpers, dot: Dot, lanes: int) -> str:
    """Return the name of a function ``(t, a, b)``: ``t`` and the products of ``a`` and ``b``, neighbours added.

    ``lanes`` counts 32-bit lanes. Sums of 32 bits wrap; those of 16 bits do not leave their range, as the caller knows.
    """
    bits = 32 // dot.parts
    a = helpers.vector("i16" if bits == 16 else dot.codes, dot.parts * lanes)
    b = helpers.vector("i16" if bits == 16 else dot.other, dot.parts * lanes)
    t = helpers.vector(f"i{dot.sums}", lanes * 32 // dot.sums)
    name = f"madd_{a}"
    for kind in (f"i{dot.sums}", f"u{dot.sums}"):
        helpers.vector(kind, lanes * 32 // dot.sums)
    native = _native(dot, lanes, t)
    body = "".join(f"#{'el' * (k > 0)}if {macro}\n{text}" for k, (macro, text) in enumerate(native))
    plain = _plain(dot, lanes)
    body = f"{body}#else\n{plain}#endif\n" if native else plain
    return helpers.add(name, f"static inline {t} {name}({t} t, {a} a, {b} b) {{\n{body}}}")


def ones(helpers: Helpers, lanes: int) -> str:
    """Return the name of a vector of i16 that are all 1."""
    vector = helpers.vector("i16", lanes)
    return helpers.add(f"ones_{vector}", f"static const {vector} ones_{vector} = {{{', '.join(['1'] * lanes)}}};")


def _plain(dot: Dot, lanes: int) -> str:
    """Return the same in plain C: parts are shifted to the top of a sum's lane and down again, with their sign."""
    t, u = type_name(f"i{dot.sums}", lanes * 32 // dot.sums), type_name(f"u{dot.sums}", lanes * 32 // dot.sums)
    bits, terms = 32 // dot.parts, list[str]()

    def part(name: str, dtype: str, k: int) -> str:
        up = dot.sums - bits * (k + 1)
        kind = t if dtype[0] == "i" else u
        return f"({u})(({kind})(({u}){name} << {up}) >> {dot.sums - bits})"

    for k in range(dot.sums // bits):
        terms.append(f"{part('a', dot.codes, k)} * {part('b', dot.other, k)}")
    added = "\n    + ".join(terms)
    return f"  return ({t})(({u})t + {added});\n"


def _native(dot: Dot, lanes: int, t: str) -> list[tuple[str, str]]:
    """Return the instruction, under each macro that says that it is there."""
    operands = '"v"(a), "v"(b)'
    accumulated = f'%2, %1, %0" : "+v"(t) : {operands});\n  return t;\n'
    match dot.name, lanes:
        case ("vpmaddwd" | "vpmaddubsw") as name, 4 | 8:
            return [_builtin(name, lanes, t)]
        case ("vpmaddwd" | "vpmaddubsw") as name, 16:
            text = f'  {t} r;\n  __asm__("{name} %2, %1, %0" : "=v"(r) : {operands});\n  return t + r;\n'
            return [("defined(__AVX512BW__)", text)]
        case ("vpdpbusd" | "vpdpwssd") as name, 16:
            return [("defined(__AVX512VNNI__)", f'  __asm__("{name} {accumulated}')]
        case ("vpdpbusd" | "vpdpwssd") as name, 4 | 8:
            return [  # the assembler takes the longer form of the instruction unless it is told
                ("defined(__AVXVNNI__)", f'  __asm__("%{{vex%}} {name} {accumulated}'),
                ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", f'  __asm__("{name} {accumulated}'),
            ]
        case "sdot", 4:
            text = '  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(t) : "w"(a), "w"(b));\n  return t;\n'
            return [("defined(__ARM_FEATURE_DOTPROD)", text)]
        case "smull", 4:
            return [("defined(__aarch64__)", _smull(t))]
        case _:
            return []


def _builtin(name: str, lanes: int, t: str) -> tuple[str, str]:
    """Return an instruction that both compilers have under one name."""
    part, least = ("short", "__SSE2__") if name == "vpmaddwd" else ("char", "__SSSE3__")
    macro, width = (least, "128") if lanes == 4 else ("__AVX2__", "256")
    types = f"  typedef {part} parts __attribute__((vector_size({4 * lanes})));\n"
    call = f"__builtin_ia32_{name[1:]}{width}((parts)a, (parts)b)"
    return f"defined({macro})", f"{types}  return t + ({t}){call};\n"


def _smull(t: str) -> str:
    """Products of each half of the vectors, then neighbours of both added."""
    lines = [
        f"{t} low, high;",
        '__asm__("smull %0.4s, %1.4h, %2.4h" : "=w"(low) : "w"(a), "w"(b));',
        '__asm__("smull2 %0.4s, %1.8h, %2.8h" : "=w"(high) : "w"(a), "w"(b));',
        '__asm__("addp %0.4s, %1.4s, %2.4s" : "=w"(low) : "w"(low), "w"(high));',
        "return t + low;",
    ]
    return "".join(f"  {line}\n" for line in lines)

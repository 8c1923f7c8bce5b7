"""Dot products of small integers: the instructions against plain C, and the fields that they are given."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import polyq
from polyq.affine.arrays import to_storage
from polyq.build.compiler import find_compiler
from polyq.emit import generate
from polyq.emit.helpers import Helpers
from polyq.emit.instructions import multiply_add
from polyq.schedule import isa

ALL = {"u8": (0, 255), "i8": (-128, 127), "u4": (0, 15), "i4": (-8, 7), "u2": (0, 3), "i2": (-2, 1)}


def compiled(source, folder, *flags):
    (folder / "t.c").write_text(source)
    command = [str(find_compiler().path), "-O2", "-fwrapv", "-Wno-psabi", *flags, str(folder / "t.c"), "-o", str(folder / "t")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "t"


ROWS = {dot.name: dot for dot in (*isa.AVX, *isa.VNNI, *isa.DOTPROD)}
#: what the compiler says that it has where an instruction is there, and the type of 16 or 32 bits that it adds
MACROS = ("__SSE2__", "__SSSE3__", "__AVX2__")


def functions(dot, lanes):
    """The types of an instruction's function, the function, and its operands' types: (t, a, b)."""
    helpers = Helpers(4 * lanes, (dot,))
    name = multiply_add(helpers, dot, lanes)
    kinds = (f"i{dot.sums}x{lanes * 32 // dot.sums}", *(f"{d}x{dot.parts * lanes}" for d in (dot.codes, dot.other)))
    text = "\n".join(helpers.text(f"{name} {' '.join(kinds)} u{kinds[0][1:]}"))
    at = text.index("static inline")
    return name, text[:at], text[at:], kinds


PAIRS = """
static const int16_t ends[] = {-32768, -32767, -256, -255, -128, -1, 0, 1, 127, 255, 256, 32766, 32767};
enum { TRIALS = 13 * 13 * 13 * 13 + 1000000 };
static void fill(long t, int16_t *a, int16_t *b, int n) {
  for (int i = 0; i < n; ++i) a[i] = (int16_t)random32(), b[i] = (int16_t)random32();
  if (t < 13 * 13 * 13 * 13) a[0] = ends[t % 13], a[1] = ends[t / 13 % 13], b[0] = ends[t / 169 % 13], b[1] = ends[t / 2197];
}
"""
#: every pair of a code of 4 bits with every value of i8, beside every other; then the ends of what may be added up
BYTES = """
enum { TRIALS = 16 * 256 * 256 };
static void fill(long t, uint8_t *a, int8_t *b, int n) {
  for (int i = 0; i < n; i += 2) {
    a[i] = (uint8_t)(t & 15), b[i] = (int8_t)(t >> 4 & 255), b[i + 1] = (int8_t)(t >> 12);
    a[i + 1] = (uint8_t)((t + i / 2) & 15);
  }
}
"""


@pytest.mark.parametrize(("name", "lanes"), [("vpmaddwd", 8), ("vpmaddwd", 4), ("vpmaddubsw", 8), ("vpmaddubsw", 4)])
def test_the_instruction_is_what_plain_c_computes(name, lanes, tmp_path):
    """For vpmaddubsw: codes of 4 bits, for which it is proven not to saturate, and all values of i8 beside each other."""
    dot = ROWS[name]
    function, types, text, (t, a, b) = functions(dot, lanes)
    count, each = dot.parts * lanes, dot.sums * dot.parts // 32
    undefined = "".join(f"#undef {m}\n" for m in MACROS)
    source = f"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
{types}
{text}
{undefined}
{text.replace(function, "plain")}
static uint32_t state = 12345;
static uint32_t random32(void) {{ return (state = state * 1664525u + 1013904223u) >> 16; }}
{PAIRS if dot.parts == 2 else BYTES}
int main(void) {{
  long wrong = random32() > 65535;
  for (long k = 0; k < TRIALS; ++k) {{
    {"int16_t" if dot.parts == 2 else "uint8_t"} x[{count}];
    {"int16_t" if dot.parts == 2 else "int8_t"} y[{count}];
    fill(k, x, y, {count});
    {a} u;
    {b} v;
    memcpy(&u, x, sizeof u); memcpy(&v, y, sizeof v);
    const {t} start = ({t}){{0}} + 7;
    {t} got = {function}(start, u, v), other = plain(start, u, v);
    for (int i = 0; i < {count // each}; ++i) {{
      int64_t exact = 7;
      for (int p = 0; p < {each}; ++p) exact += (int64_t)x[{each} * i + p] * y[{each} * i + p];
      wrong += got[i] != (int{dot.sums}_t)exact || other[i] != (int{dot.sums}_t)exact;
    }}
  }}
  printf("%ld\\n", wrong);
  return 0;
}}
"""
    flag = "-mavx2" if lanes == 8 else "-msse4.1"
    assert lanes == 4 or polyq.schedule.target.Target.named("avx2").available()
    assert subprocess.run([str(compiled(source, tmp_path, flag))], check=True, capture_output=True, text=True).stdout == "0\n"


@pytest.mark.parametrize(
    ("name", "codes", "other", "steps"),
    [
        ("vpmaddubsw", (0, 15), (-128, 127), 8),  # 8 * 2 * 15 * 128 = 30720
        ("vpmaddubsw", (0, 3), (-128, 127), 42),  # 42 * 2 * 3 * 128 = 32256
        ("vpmaddubsw", (0, 127), (-128, 127), 1),  # 2 * 127 * 128 = 32512
        ("vpmaddubsw", (0, 128), (-128, 127), 0),  # 2 * 128 * 128 = 32768
        ("vpmaddubsw", (0, 255), (-128, 127), 0),
        ("vpmaddubsw", (-8, 7), (-128, 127), 0),  # takes no sign
        ("vpmaddubsw", (0, 15), (-32768, 32767), 0),  # takes bytes
        ("vpdpbusd", (0, 255), (-128, 127), 1 << 30),
        ("sdot", (0, 255), (-128, 127), 0),
        ("sdot", (-128, 127), (-128, 127), 1 << 30),
    ],
)
def test_ranges_decide_how_often_a_result_is_added(name, codes, other, steps):
    assert ROWS[name].steps(codes, other) == steps


@pytest.mark.parametrize("codes", ["u4", "u2"])
def test_sums_of_16_bits_hold_their_ends(codes):
    """Greatest codes against activations that are all 127, all -127, or change at any place: exact, nothing saturates."""
    n, k = 64, 512
    top = ALL[codes][1]
    spec, kernel = layer(codes, n, k, "i8")
    assert "madd_u8x" in kernel.source
    assert "i8[" in str(kernel.schedule)
    w = np.full((n, k), top)
    bound = kernel.bind(w=to_storage(spec.tensor("w"), packed(w, int(codes[1])))[0])
    x = np.full((10, k), 127.0, np.float32)
    for row in range(1, 10):
        x[row, (row - 1) * 8 :] = -127
    assert np.array_equal(bound(x=x), x @ w.T.astype(np.float32))


@pytest.mark.parametrize(("codes", "bits"), [("u8", 16), ("i4", 16), ("u4", 8), ("u2", 8)])
def test_what_bytes_cannot_hold_is_multiplied_in_halves_and_it_says_so(codes, bits):
    spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", w=(codes, (64, 256)), x=("f32", ("m", 256)))
    made = polyq.Schedule.auto(spec, numerics="i8", target="avx2", constants=("w",))
    assert made.plan.spec.tensor("x.i8").dtype == f"i{bits}"
    low, high = ALL[codes]
    said = f"i8 in 16 bits, since vpmaddubsw cannot take or sum w from {low} to {high} times i8"
    assert (said in "\n".join(made.notes)) == (bits == 16)
    loose = polyq.Schedule.auto(spec, numerics="i8", target="avx2")
    assert any("since w is not bound" in note for note in loose.notes)


def layer(codes, n, k, numerics):
    spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", w=(codes, (n, k)), x=("f32", ("m", k)))
    return spec, polyq.build(spec, numerics=numerics, constants=("w",))


@pytest.mark.parametrize("numerics", ["i16", "i8"])
@pytest.mark.parametrize("codes", ALL)
def test_every_code_at_every_place(codes, numerics):
    """Rows of the activations that are one element each show the codes as they were read."""
    n, k = 256, 64
    spec, kernel = layer(codes, n, k, numerics)
    assert "madd_" in kernel.source
    low, high = ALL[codes]
    w = low + (np.arange(n)[:, None] + 7 * np.arange(k)[None, :]) % (high - low + 1)
    stored, _ = to_storage(spec.tensor("w"), w.astype(np.int8 if codes[0] == "i" else np.uint8) if codes[1] == "8" else packed(w, int(codes[1])))
    levels = {"i16": 32767, "i8": 127}[numerics]
    bound = kernel.bind(w=stored)
    assert np.array_equal(bound(x=levels * np.eye(k, dtype=np.float32)), levels * w.T)
    rng = np.random.default_rng(0)
    x = rng.integers(-16, 17, (5, k)).astype(np.float32)
    x[:, 0] = levels  # steps of 1
    if numerics == "i8":
        assert np.array_equal(bound(x=x), x @ w.T)
    assert np.array_equal(bound(x=x[:1]), bound(x=x)[:1])


def packed(w, bits):
    fields = 8 // bits
    out = np.zeros((w.shape[0], w.shape[1] // fields), np.uint8)
    for f in range(fields):
        out |= ((w[:, f::fields] & ((1 << bits) - 1)) << (bits * f)).astype(np.uint8)
    return out


@pytest.mark.parametrize("rows", [1, 16, 128])
@pytest.mark.parametrize("codes", ["u8", "u4", "i8", "i4"])
def test_the_instruction_is_in_the_loop(codes, rows, tmp_path):
    """One multiply-add for 16 products, no 32-bit multiplication of vectors, and no tile on the stack."""
    text = "y[m, n] += x[m, g, j] * ((f32(w[n, g, j]) - z[n, g]) * s[n, g])"
    spec = polyq.parse(text, w=(codes, (64, 4, 128)), z=("f32", (64, 4)), s=("f32", (64, 4)), x=("f32", ("m", 4, 128)))
    made = polyq.Schedule.auto(spec, numerics="i16", target="avx2", constants=("w", "z", "s"), sizes={"m": rows})
    (tmp_path / "k.c").write_text(generate(made).source)
    command = [str(find_compiler().path), "-O2", "-fwrapv", *made.machine.flags, "-S", str(tmp_path / "k.c"), "-o", "-"]
    assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loop = innermost(assembly.split("\n"), "vpmaddwd")
    assert "vpmulld" not in assembly
    assert not [line for line in loop if line.endswith("(%rsp)")]  # constants may be read from there
    fields = 32 // int(codes[1])
    assert sum("vpmaddwd" in line for line in loop) % (fields // 2) == 0


@pytest.mark.parametrize("rows", [1, 16, 128])
@pytest.mark.parametrize(("codes", "results"), [("u4", 2), ("u2", 4)])
def test_bytes_are_multiplied_in_the_loop(codes, results, rows, tmp_path):
    """One instruction for 32 products, added up in registers; only totals, once for eight results, may lie in memory."""
    text = "y[m, n] += x[m, g, j] * ((f32(w[n, g, j]) - z[n, g]) * s[n, g])"
    spec = polyq.parse(text, w=(codes, (64, 4, 128)), z=("f32", (64, 4)), s=("f32", (64, 4)), x=("f32", ("m", 4, 128)))
    made = polyq.Schedule.auto(spec, numerics="i8", target="avx2", constants=("w", "z", "s"), sizes={"m": rows})
    (tmp_path / "k.c").write_text(generate(made).source)
    command = [str(find_compiler().path), "-O2", "-fwrapv", *made.machine.flags, "-S", str(tmp_path / "k.c"), "-o", "-"]
    assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loop = innermost(assembly.split("\n"), "vpmaddubsw")
    count, folds = (sum(name in line for line in loop) for name in ("vpmaddubsw", "vpmaddwd"))
    assert count == 8 * folds
    assert sum("(%rsp)" in line for line in loop) <= 2 * folds
    assert not [line for line in loop if "div" in line or "vpmulld" in line or "call" in line]


def innermost(lines, instruction):
    """The longest loop without a loop inside that has an instruction."""
    labels, found = {}, []
    for i, line in enumerate(lines):
        if line.startswith(".L") and line.endswith(":"):
            labels[line[:-1]] = i
        target = line.split()[-1] if line.strip().startswith("j") else None
        if target in labels:
            body = lines[labels[target] : i]
            if any(instruction in b for b in body):
                found.append((labels[target], i, body))
    inner = [f for f in found if not any(f[0] < g[0] and g[1] < f[1] for g in found)]
    return max((f[2] for f in inner), key=len)

"""Multiply-adds of pairs of 16-bit integers: the instruction against plain C, and the fields that it is given."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import polyq
from polyq.affine.arrays import to_storage
from polyq.build.compiler import find_compiler
from polyq.emit import dots
from polyq.emit.helpers import Helpers

ALL = {"u8": (0, 255), "i8": (-128, 127), "u4": (0, 15), "i4": (-8, 7), "u2": (0, 3), "i2": (-2, 1)}


def compiled(source, folder, *flags):
    (folder / "t.c").write_text(source)
    command = [str(find_compiler().path), "-O2", "-fwrapv", "-Wno-psabi", *flags, str(folder / "t.c"), "-o", str(folder / "t")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "t"


@pytest.mark.parametrize(("lanes", "flag", "macro"), [(8, "-mavx2", "__AVX2__"), (4, "-msse4.1", "__SSE2__")])
def test_the_instruction_is_what_plain_c_computes(lanes, flag, macro, tmp_path):
    helpers = Helpers(4 * lanes)
    name = dots._multiply_add(helpers, lanes)
    text = "\n".join(helpers.text(f"{name} i16x{2 * lanes} i32x{lanes} u32x{lanes}"))
    function = text[text.index("static inline") :]
    types = text[: text.index("static inline")]
    source = f"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
{types}
{function}
#undef {macro}
{function.replace(name, "plain")}
static const int16_t ends[] = {{-32768, -32767, -256, -255, -128, -1, 0, 1, 127, 255, 256, 32766, 32767}};
int main(void) {{
  uint32_t state = 12345, wrong = 0;
  for (long t = 0; t < 13 * 13 * 13 * 13 + 2000000; ++t) {{
    int16_t v[2][{2 * lanes}];
    for (int k = 0; k < 2; ++k) for (int i = 0; i < {2 * lanes}; ++i) v[k][i] = (int16_t)((state = state * 1664525u + 1013904223u) >> 16);
    if (t < 13 * 13 * 13 * 13) {{
      v[0][0] = ends[t % 13]; v[0][1] = ends[t / 13 % 13]; v[1][0] = ends[t / 169 % 13]; v[1][1] = ends[t / 2197];
    }}
    i16x{2 * lanes} a, b;
    memcpy(&a, v[0], sizeof a); memcpy(&b, v[1], sizeof b);
    i32x{lanes} got = {name}(a, b), other = plain(a, b);
    for (int i = 0; i < {lanes}; ++i) {{
      const int64_t exact = (int64_t)v[0][2 * i] * v[1][2 * i] + (int64_t)v[0][2 * i + 1] * v[1][2 * i + 1];
      wrong += got[i] != (int32_t)exact || other[i] != (int32_t)exact;
    }}
  }}
  printf("%u\\n", wrong);
  return 0;
}}
"""
    assert flag == "-msse4.1" or polyq.schedule.target.Target.named("avx2").available()
    assert subprocess.run([str(compiled(source, tmp_path, flag))], check=True, capture_output=True, text=True).stdout == "0\n"


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
    (tmp_path / "k.c").write_text(polyq.emit.generate(made).source)
    command = [str(find_compiler().path), "-O2", "-fwrapv", *made.machine.flags, "-S", str(tmp_path / "k.c"), "-o", "-"]
    assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loop = innermost(assembly.split("\n"), "vpmaddwd")
    assert "vpmulld" not in assembly
    assert not [line for line in loop if line.endswith("(%rsp)")]  # constants may be read from there
    fields = 32 // int(codes[1])
    assert sum("vpmaddwd" in line for line in loop) % (fields // 2) == 0


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

"""Kernels as files for C programs: the program below calls one and writes what it got."""

from __future__ import annotations

import subprocess
from pathlib import Path

import build_programs
import numpy as np
import pytest

import polyq
from polyq.affine.errors import ArgumentError

build_programs.install()


def call_from_c(folder, name, arrays, outputs, params, threads, *, sources=False, flags=()):
    """Call a saved function from a C program: arrays go through files, those in ``outputs`` come back."""
    lines = [f'#include "{name}.h"', "#include <stdio.h>", "#include <stdlib.h>", "int main(void) {", "  FILE *f;"]
    for key, array in arrays.items():
        array.tofile(folder / f"{key}.bin")
        size = max(1, array.nbytes)
        lines += [f"  void *{key} = malloc({size});", f'  f = fopen("{key}.bin", "rb");']
        lines += [f"  if (!f || fread({key}, 1, {array.nbytes}, f) != {array.nbytes}) return 9;", "  fclose(f);"]
    given = ", ".join([*arrays, *map(str, params), str(threads)])
    lines += [f"  int status = {name}({given});"]
    for key in outputs:
        lines += [f'  f = fopen("{key}.bin", "wb");', f"  fwrite({key}, 1, {arrays[key].nbytes}, f);", "  fclose(f);"]
    lines += [f"  free({key});" for key in arrays]
    (folder / "main.c").write_text("\n".join([*lines, "  return status;", "}"]))
    objects = [f"{name}.c", "-lm", "-pthread"] if sources else [f"./{name}.so"]
    command = ["gcc", "-Wall", "-Werror", *flags, "main.c", *objects, "-o", "main"]
    subprocess.run(command, cwd=folder, check=True, timeout=100)
    run = subprocess.run(["./main"], cwd=folder, timeout=100, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    return [np.fromfile(folder / f"{key}.bin", arrays[key].dtype).reshape(arrays[key].shape) for key in outputs]


def whole(rng, *shape):
    return rng.integers(-8, 9, shape).astype(np.float32)


@pytest.mark.parametrize("threads", [0, 1, 4, 1000])
def test_a_threaded_kernel_with_a_parameter(tmp_path, rng, threads):
    spec = polyq.parse("y[m, n] += x[m, k] * w[n, k]", x=("f32", ("m", 64)), w=("f32", (96, 64)))
    kernel = polyq.build(spec)
    assert "runtime->run(" in kernel.source
    made = kernel.save(tmp_path / "out" / "gemm")
    assert made == tuple(tmp_path / "out" / f"gemm{end}" for end in (".c", ".h", ".so"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["gemm.c", "gemm.h", "gemm.so"]
    x, w = whole(rng, 50, 64), whole(rng, 96, 64)
    arrays = {"x": x, "w": w, "y": np.full((50, 96), np.nan, np.float32)}
    (y,) = call_from_c(tmp_path / "out", "gemm", arrays, ["y"], [50], threads)
    np.testing.assert_array_equal(y, x @ w.T)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("threads", [1, 3])
def test_scratch_and_workspace_under_sanitizers(tmp_path, threads):
    build_programs.threaded().spec  # noqa: B018 - it has one input, one output, one parameter
    polyq.build(build_programs.threaded()).save(tmp_path / "triple")
    x = np.arange(1003, dtype=np.float32)
    flags = ("-fsanitize=address,undefined,leak", "-fno-sanitize-recover=all", "-O1")
    (y,) = call_from_c(tmp_path, "triple", {"x": x, "y": np.zeros_like(x)}, ["y"], [1003], threads, sources=True, flags=flags)
    np.testing.assert_array_equal(y, 3 * x)


def test_an_updated_tensor_stands_once_and_names_are_made_for_c(tmp_path):
    spec = polyq.parse("int[i] += f32(int2[i] + threads[i])", int=("f32", ("n",)), int2=("i32", ("n",)), threads=("i32", ("n",)))
    kernel = polyq.build(spec)
    header = kernel.save(tmp_path / "add")[1].read_text()
    assert "int add(float *int_, const int32_t *int2, const int32_t *threads_, int64_t n, int threads);" in header
    assert " * int_: f32[n] (updated)\n" in header
    arrays = {"a": np.ones(5, np.float32), "b": np.arange(5, dtype=np.int32), "c": np.full(5, 10, np.int32)}
    (y,) = call_from_c(tmp_path, "add", arrays, ["a"], [5], 2)
    np.testing.assert_array_equal(y, [11, 12, 13, 14, 15])


def test_packed_and_half_elements(tmp_path):
    spec = polyq.parse("y[i] = f16(q[i])", q=("u4", (5,)))
    kernel = polyq.build(spec)
    header = kernel.save(tmp_path / "widen")[1].read_text()
    assert "int widen(const uint8_t *q, uint16_t *y, int threads);" in header
    arrays = {"q": np.array([0x21, 0x43, 0x05], np.uint8), "y": np.zeros(5, np.float16)}
    (y,) = call_from_c(tmp_path, "widen", arrays, ["y"], [], 1)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("name", ["2x", "a-b", "int", "", "kernel_y", "ünï"])
def test_a_name_that_c_does_not_allow(tmp_path, name):
    kernel = polyq.build(polyq.parse("y[i] = 2.0 * x[i]", x=("f32", 3)))
    with pytest.raises(ArgumentError, match=r"^save: '.*' cannot be the name of a C function here; the last part of the path"):
        kernel.save(f"{tmp_path}/{name}" if name else Path("/"))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_compiler_leaves_nothing(tmp_path, monkeypatch):
    kernel = polyq.build(polyq.parse("y[i] = 3.0 * x[i]", x=("f32", 3)))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(polyq.BuildError, match="the C compiler failed with status 1"):
        kernel.save(tmp_path / "thrice")
    assert list(tmp_path.iterdir()) == []


# ---- ranges
@pytest.mark.parametrize("sources", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 50])
def test_each_range_has_its_code(tmp_path, rng, rows, sources):
    spec = polyq.parse("y[m, n] += x[m, k] * (f32(w[n, k]) - 3.0)", x=("f32", ("m", 64)), w=("u4", (96, 64)))
    kernel = polyq.build(spec)
    assert kernel.at(m=50) is not kernel
    _, header, _ = kernel.save(tmp_path / "gemm")
    assert " * Sizes of m that have code of their own: 0 to 1 (made for 1), 2 and more (made for 16). Each is right" in header.read_text()
    codes = rng.integers(0, 16, (96, 64), np.uint8)
    x, packed = whole(rng, rows, 64), codes[:, ::2] | codes[:, 1::2] << 4
    arrays = {"x": x, "w": packed, "y": np.full((rows, 96), np.nan, np.float32)}
    # which code runs cannot be told from results: look at the dispatcher
    source = (tmp_path / "gemm.c").read_text()
    assert source.count("kernel_y_range2(&polyq_plain_runtime") == source.count("kernel_y(&polyq_plain_runtime") == 1
    assert source.index("if (m >= 2) {") < source.index("kernel_y_range2(&poly") < source.index("kernel_y(&poly")
    (y,) = call_from_c(tmp_path, "gemm", arrays, ["y"], [rows], 2, sources=sources, flags=kernel.executable.module.flags)
    np.testing.assert_array_equal(y, x @ (codes.astype(np.float32) - 3).T)


def test_a_range_alone_says_what_it_is_made_for(tmp_path, rng):
    spec = polyq.parse("y[m, n] += x[m, k] * w[n, k]", x=("f32", ("m", 64)), w=("f32", (96, 64)))
    kernel = polyq.build(spec).at(m=50)
    header = kernel.save(tmp_path / "many")[1].read_text()
    assert " * The code is made for m = 16, and right for all sizes.\n" in header
    x, w = whole(rng, 1, 64), whole(rng, 96, 64)
    (y,) = call_from_c(tmp_path, "many", {"x": x, "w": w, "y": np.zeros((1, 96), np.float32)}, ["y"], [1], 1)
    np.testing.assert_array_equal(y, x @ w.T)


@pytest.mark.parametrize("what", ["library", "source"])
def test_the_commands_of_the_header_build_a_program(tmp_path, what):
    kernel = polyq.build(polyq.parse("y[i] = exp(x[i]) * 2.0", x=("f32", ("n",))))
    header = kernel.save(tmp_path / "grow")[1].read_text()
    command = next(line for line in header.splitlines() if line.startswith(f" * To use the {what}:")).partition(": ")[2].strip()
    assert set(kernel.executable.module.flags) <= set(command.split()) or what == "library"
    (tmp_path / "main.c").write_text(
        '#include "grow.h"\n#include <stdio.h>\n'
        'int main(void) { float x[3] = {0, 0, 0}, y[3]; int s = grow(x, y, 3, 1); printf("%g %g", y[0], y[2]); return s; }\n'
    )
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=100)
    (tmp_path / "elsewhere").mkdir()
    run = subprocess.run([tmp_path / "a.out"], cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.returncode) == ("2 2", 0)

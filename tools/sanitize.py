#!/usr/bin/env python3
"""Compile and run generated kernels under the address and undefined-behaviour sanitizers.

    python tools/sanitize.py [WORD ...]      (default: all programs below; else those whose names contain a word)

Each kernel's C is built together with ``sanitize.c``, which puts every buffer into an allocation of exactly its size,
and the results are compared with the interpreter. A program that breaks the rules on purpose comes first: the check is
worth something only if that one is caught.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import polyq
from polyq.affine.arrays import Array, from_storage, random_arrays, shape_of, storage_shape
from polyq.affine.dtypes import is_float, numpy_dtype
from polyq.emit.module import Module

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O0")
#: conversions that C leaves undefined and reductions over nothing belong in here, as do tails of every kind
PROGRAMS: dict[str, tuple[str, dict[str, int]]] = {
    "grouped u8": (
        "w: u8[37, 3, 40]\nz: f32[37, 3]\ns: f32[37, 3]\nx: f32[m, 3, 40]\n"
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
        {"m": 5},
    ),
    "grouped u4, one row": (
        "w: u4[33, 45]\ns: f32[33, 3]\nx: f32[m, 45]\nd[n, k] = (f32(w[n, k]) - 8.0) * s[n, k // 16]\n"
        "y[m, n] += x[m, k] * d[n, k]",
        {"m": 1},
    ),
    "matmul, bias, relu": (
        "a: f32[m, 31]\nb: f32[31, 33]\nc: f32[33]\nt[i, j] += a[i, k] * b[k, j]\ny[i, j] = max(t[i, j] + c[j], 0)",
        {"m": 17},
    ),
    "matmul, transposed": ("a: f64[31, 17]\nb: f64[33, 31]\ny[i, j] += a[k, i] * b[j, k]", {}),
    "integer matmul": ("a: i8[7, 31]\nb: i8[31, 9]\ny[i, j] += i32(a[i, k]) * i32(b[k, j])", {}),
    "softmax": (
        "x: f32[m, 37]\nh[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - h[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]",
        {"m": 3},
    ),
    "conv2d": (
        "x: f32[3, 11, 13]\nk: f32[5, 3, 3, 3]\n"
        "y[o, h, w] += x[c, 2*h + r, w + 2*q] * k[o, c, r, q] where h < 5, w < 9",
        {},
    ),
    "triangle": ("a: f32[19, 19]\nb: f32[19, 23]\ny[i, j] += a[i, k] * b[k, j] where k <= i", {}),
    "two stencils": (
        "x: f32[m]\nt[i] = x[i] + 2 * x[i + 1] + x[i + 2] where i < m - 2\ny[i] = t[i] - t[i + 2] where i < m - 4",
        {"m": 71},
    ),
    "reversal": ("x: i16[67]\ny[i] = x[66 - i] where i < 67", {}),
    "transpose": ("x: f32[19, 35]\ny[j, i] = x[i, j]", {}),
    "minima and products": ("x: f32[9, 41]\nl[i] min= x[i, j]\np[j] *= x[i, j]", {}),
    "sum of all": ("x: f32[m, 13]\ny += x[i, j]", {"m": 11}),
    "nothing at all": ("x: f32[m, 13]\ny += x[i, j]\nz[i, j] = 2 * x[i, j]", {"m": 0}),
    "float to integer": ("x: f32[77]\ny[i] = i8(x[i] * 100000)", {}),
    "half precision": ("x: f16[53]\nb: bf16[53]\ny[i] = f16(f32(x[i]) * f32(b[i]))", {}),
    "index values": ("x: f32[6, 10]\ny[i, j] = x[i, j] + f32(10 * i + j)", {}),
    "recurrence": ("x: f32[5, 40]\ny[i, t] = x[i, t]\ny[i, t] = 0.5 * y[i, t - 1] + x[i, t] where t >= 1", {}),
    "updated in place": ("y: f32[43]\nx: f32[43]\ny[i] += x[i] * x[i]", {}),
}
_BROKEN = "#include <stdint.h>\nint broken(const void *r, void *const *b, const int64_t *p, int t) {{ {} return 0; }}"
#: name -> a broken program, and what the sanitizers must say of it
CANARIES = {
    "a write past the end": (_BROKEN.format("(void)r; ((char *)b[0])[p[0]] = (char)t;"), "heap-buffer-overflow"),
    "an overflow": (_BROKEN.format("(void)r; (void)p; *(int *)b[0] = t + 2147483647;"), "signed integer overflow"),
}


def main(words: list[str]) -> int:
    """Run the canaries, then all programs; the exit status is 1 if any was wrong."""
    jobs = [
        (name, numerics, target)
        for name, numerics, target in itertools.product(PROGRAMS, ("strict", "reassoc"), ("native", "c"))
        if not words or any(word in name for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="polyq-sanitize-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        missed = [name for name in CANARIES if not _caught(Path(folder), name)]
        results = list(pool.map(lambda job: _check(Path(folder), *job), jobs))
    failures = [f"{'; '.join(job)}: {problem}" for job, problem in zip(jobs, results, strict=True) if problem]
    failures += [f"the sanitizers did not see {name}" for name in missed]
    print("\n".join([*failures, f"sanitizers: {len(jobs)} kernels, {len(failures)} failures"]))
    return 1 if failures else 0


def _caught(folder: Path, name: str) -> bool:
    source, said = CANARIES[name]
    work = folder / name.replace(" ", "-")
    work.mkdir()
    module = Module("broken", source, ("a",), ("n",))
    return said in execute(work, module, [np.zeros(8, np.uint8)], [8], 1)[0]


def _check(folder: Path, name: str, numerics: str, target: str) -> str:
    """Return what is wrong with one program under one mode and target, or nothing."""
    from polyq.emit import generate

    text, params = PROGRAMS[name]
    work = folder / f"{name}-{numerics}-{target}".replace(" ", "-")
    work.mkdir()
    try:
        spec = polyq.parse(text)
        module = generate(polyq.Schedule.auto(spec, numerics=numerics, target=target))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    given = random_arrays(spec, params, seed=3)
    buffers = [buffer_before(spec, given, buffer, params) for buffer in module.buffers]
    expected = polyq.interpret(spec, **given, **params)
    values = expected if isinstance(expected, tuple) else (expected,)
    for threads in (1, 2):
        problem, results = execute(work, module, buffers, [params[p] for p in module.params], threads)
        if problem:
            return f"{threads} threads: {problem}"
        for tensor, value in zip(spec.outputs, values, strict=True):
            got = results[module.buffers.index(tensor.name)]
            if not _same(spec, tensor.name, got, np.asarray(value), params):
                return f"{threads} threads: {tensor.name} differs from the interpreter"
    return ""


def buffer_before(spec: polyq.Spec, given: dict[str, Array], name: str, params: dict[str, int]) -> Array:
    """Return a buffer's bytes before the call; an output holds rubbish."""
    if name in given:
        value = given[name]
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    tensor = spec.tensor(name)
    size = int(np.prod(storage_shape(tensor, params), dtype=np.int64)) * numpy_dtype(tensor.dtype).itemsize
    return np.full(size, 0xA5, np.uint8)


def execute(
    work: Path, module: Module, buffers: list[Array], params: list[int], threads: int
) -> tuple[str, list[Array]]:
    """Build once, run, and return what the sanitizers said (its first lines) and all buffers afterwards."""
    program = work / "program"
    if not program.exists():
        (work / "kernel.c").write_text(module.source, encoding="utf-8")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        sources = ["kernel.c", str(ROOT / "tools" / "sanitize.c"), f"-DENTRY={module.entry}"]
        options = [*SANITIZERS, *module.flags, "-std=gnu11", "-pthread"]
        built = _run([*compiler, *options, *sources, "-o", "program", "-lm"], work)
        if built:
            return built, []
    with (work / "data").open("wb") as file:
        for buffer in buffers:
            file.write(np.int64(buffer.size).tobytes() + buffer.tobytes())
    problem = _run([str(program), str(threads), "data", "result", *map(str, params)], work)
    return problem, [] if problem else _read_back(work / "result")


def _run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if result.returncode == 0:
        return ""
    said = [line for line in (result.stderr + result.stdout).splitlines() if line.strip(" =")]
    return " / ".join(said[:6]) or f"status {result.returncode}"


def _read_back(path: Path) -> list[Array]:
    data, at, found = np.fromfile(path, np.uint8), 0, list[Array]()
    while at < data.size:
        size = int(data[at : at + 8].view(np.int64)[0])
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def _same(spec: polyq.Spec, name: str, got: Array, expected: Array, params: dict[str, int]) -> bool:
    tensor, shape = spec.tensor(name), shape_of(spec.tensor(name), params)
    storage, kind = storage_shape(tensor, params), numpy_dtype(tensor.dtype)
    a = from_storage(tensor, got.view(kind).reshape(storage), shape)
    b = from_storage(tensor, np.ascontiguousarray(expected).view(kind).reshape(storage), shape)
    if not is_float(tensor.dtype):
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-4, equal_nan=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

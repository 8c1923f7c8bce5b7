#!/usr/bin/env python3
"""Times polyq beside numpy and beside the limits of the machine, as a Markdown table.

    python benchmarks/table.py [WORD ...] [--list] [--rounds 9]

Rows whose names contain one of the words are run, all without words. Each row measures polyq and what it is compared
with in the same process, round by round, so that a drift of the machine hits both; figures are medians. Weights are
cold: enough copies to exceed the last-level cache several times are used in turn. The ratio is the other's time over
polyq's: for a limit the fraction that is reached, for numpy the speed-up. A row that fails shows its error.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

os.environ.pop("OPENBLAS_CORETYPE", None)  # a forced core type makes numpy's BLAS slower than it is
os.environ.pop("OPENBLAS_L2_SIZE", None)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import polyq
from benchmarks.layers import layer_rows
from benchmarks.processes import build_rows
from benchmarks.programs import PROGRAMS, Program
from benchmarks.rows import Row, Time, over_copies, repeated
from polyq.affine.arrays import random_arrays
from polyq.limits import Copy, Fma, Read
from polyq.schedule.target import Target

GROUP = 128
SHAPES = ((4096, 32), (11008, 32), (4096, 86))
COLD_BYTES = 200e6
BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"

#: relatives of the flagship at 4096 x 4096: declarations of w, z, s, x, then the statements
RELATIVES = {
    "producer dims g, j, n": ("u8[4096, 32, 128]", BODY.replace("d[n, g, j]", "d[g, j, n]")),
    "producer dims j, n, g": ("u8[4096, 32, 128]", BODY.replace("d[n, g, j]", "d[j, n, g]")),
    "k collapsed": (
        "u8[4096, 4096]",
        "d[n, k] = (f32(w[n, k]) - z[n, k // 128]) * s[n, k // 128]\ny[m, n] += x[m, k] * d[n, k]",
    ),
    "group 96": ("u8[4096, 43, 96]", BODY),
    "batch dim": ("u8[4096, 32, 128]", BODY.replace("y[m, n]", "y[b, m, n]").replace("x[m, g, j]", "x[b, m, g, j]")),
    "body in two ops": (
        "u8[4096, 32, 128]",
        "c[n, g, j] = f32(w[n, g, j]) - z[n, g]\nd[n, g, j] = c[n, g, j] * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
    ),
    "signed codes": ("i8[4096, 32, 128]", BODY),
    "no zero point": ("u8[4096, 32, 128]", BODY.replace("(f32(w[n, g, j]) - z[n, g])", "f32(w[n, g, j])")),
}


def main() -> None:
    """Run the chosen rows and print each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    chosen = {n: c for n, c in cases().items() if not options.words or any(w in n for w in options.words)}
    if options.list:
        print("\n".join(chosen))
        return
    print(f"numpy {np.__version__}, {Target.named('native')}\n")
    print("| work | polyq ms | against | ms | ratio | asked | |\n|---|---|---|---|---|---|---|")
    for name, case in chosen.items():
        try:
            lines = [row.line(name) for row in case(options.rounds)]
        except Exception as error:  # a missing feature is a row, not the end of the table
            lines = [f"| {name} | | | | | | {type(error).__name__}: {' '.join(str(error).split())[:160]} |"]
        print("\n".join(lines), flush=True)
        gc.collect()


def cases() -> dict[str, Callable[[int], list[Row]]]:
    """Return all rows by name: functions of the number of rounds."""
    counts = sorted({1, Target.named("native").cores})
    found: dict[str, Callable[[int], list[Row]]] = {}
    for n, g in SHAPES:
        for threads in counts:
            asked = 0.75 if threads == 1 else 0.88
            found[f"decode {n} x {g * GROUP}, {threads}t"] = partial(decode, n, g, threads, asked)
            exact, rounded = (0.60, 0.75) if threads == 1 else (0.72, 0.92)
            found[f"decode 4 bits {n} x {g * GROUP}, {threads}t"] = partial(decode, n, g, threads, exact, bits=4)
            found[f"decode 4 bits i16 {n} x {g * GROUP}, {threads}t"] = partial(
                decode, n, g, threads, rounded, bits=4, numerics="i16"
            )
    for threads in counts:
        found[f"matvec f32 4096 x 4096, {threads}t"] = partial(matvec, threads, 0.85 if threads == 1 else 0.92)
        found[f"matmul f32 1024^3, {threads}t"] = partial(matmul, (1024, 1024, 1024), threads)
        found[f"matmul f32 4096 x 4096 x 512, {threads}t"] = partial(matmul, (512, 4096, 4096), threads)
        found[f"chain of five on 64 MB, {threads}t"] = partial(chain, threads)
        found[f"four stencils on 10^7, {threads}t"] = partial(stencils, threads)
        for m, asked in ((2, None), (4, 0.70), (8, None), (16, 0.78), (128, 0.88), (512, 0.88)):
            found[f"prefill M={m}, {threads}t"] = partial(prefill, m, threads, asked)
        found[f"prefill M=128 i16, {threads}t"] = partial(rounded_prefill, 8, "i16", threads, 1.3)
        found[f"prefill M=128 4 bits i8, {threads}t"] = partial(rounded_prefill, 4, "i8", threads, 2.0)
        for name, (weights, text) in RELATIVES.items():
            found[f"relative: {name}, {threads}t"] = partial(relative, weights, text, threads)
    for program in PROGRAMS:
        found[f"program: {program.name}"] = partial(against_numpy, program)
    found["call of a 1-element kernel"] = call_overhead
    return found | layer_rows(counts) | build_rows(flagship_text("u8[4096, 32, 128]", BODY))


# ---- what is measured
def flagship_text(weights: str, text: str) -> str:
    """Return a program with the declarations that its weights imply; parameters are m and, with a batch dim, b."""
    shape = [int(e) for e in weights[weights.index("[") + 1 : -1].split(",")]
    n, inner = shape[0], ", ".join(map(str, shape[1:]))
    groups = shape[1] if len(shape) == 3 else shape[1] // GROUP
    zero = f"z: f32[{n}, {groups}]\n" if "z[" in text else ""
    rows = "b, m" if "x[b" in text else "m"
    return f"w: {weights}\n{zero}s: f32[{n}, {groups}]\nx: f32[{rows}, {inner}]\n{text}\n"


class Layer:
    """One kernel bound to several sets of weights that together exceed the caches."""

    def __init__(
        self, text: str, threads: int, m: int = 1, copies: int | None = None, numerics: str = "reassoc"
    ) -> None:
        spec = polyq.parse(text)
        started = time.perf_counter()
        kernel = polyq.build(spec, threads=threads, numerics=numerics)
        self.build = time.perf_counter() - started
        params = {name: m if name == "m" else 1 for name in spec.params}
        first = random_arrays(spec, params)
        self.x = first["x"]
        held = {name: a for name, a in first.items() if name != "x"}
        self.bytes = sum(a.nbytes for a in held.values())
        self.copies = copies or int(COLD_BYTES / self.bytes) + 2
        self.weights = [held] + [random_weights(spec, params, seed) for seed in range(1, self.copies)]
        self.calls = [kernel.bind(**w) for w in self.weights]
        polyq.testing.assert_close(kernel, **{**first, "x": self.x[:16]})  # more rows take the interpreter minutes

    def timer(self) -> Time:
        """Return the time of one call, over all sets of weights."""
        return over_copies(lambda i: self.calls[i](x=self.x), self.copies)


def random_weights(spec: polyq.Spec, params: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Return another set of all inputs but x."""
    return {name: a for name, a in random_arrays(spec, params, seed).items() if name != "x"}


def decode(
    n: int, g: int, threads: int, asked: float, rounds: int, *, bits: int = 8, numerics: str = "reassoc"
) -> list[Row]:
    """Compare one row of activations times grouped weights with reading the same bytes."""
    layer = Layer(flagship_text(f"u{bits}[{n}, {g}, {GROUP}]", BODY), threads, numerics=numerics)
    limit = Read(layer.bytes, layer.copies, threads)
    return [Row.measured(rounds, layer.timer(), "read", limit.seconds, asked, f"{limit.streams} streams")]


def relative(weights: str, text: str, threads: int, rounds: int) -> list[Row]:
    """Compare a relative of the flagship with the flagship, for equal bytes."""
    layer = Layer(flagship_text(weights, text), threads)
    base = Layer(flagship_text("u8[4096, 32, 128]", BODY), threads)
    scale, timer = layer.bytes / base.bytes, base.timer()
    return [Row.measured(rounds, layer.timer(), "flagship, equal bytes", lambda: scale * timer(), 0.95)]


def prefill(m: int, threads: int, asked: float | None, rounds: int) -> list[Row]:
    """Compare m rows of activations with numpy, which dequantizes as well, and with the FMA limit."""
    layer = Layer(flagship_text("u8[4096, 32, 128]", BODY), threads, m, copies=4)

    def numpy(i: int) -> np.ndarray:
        w, z, s = (layer.weights[i][name] for name in "wzs")
        return layer.x.reshape(m, -1) @ ((w.astype(np.float32) - z[..., None]) * s[..., None]).reshape(4096, -1).T

    fma = Fma(2.0 * m * 4096 * 4096, threads)
    with blas_threads(threads):
        ours = layer.timer()
        return [
            Row.measured(rounds, ours, "numpy", over_copies(numpy, layer.copies), 1.0),
            Row.measured(rounds, ours, "FMA", fma.seconds, asked),
        ]


def rounded_prefill(bits: int, numerics: str, threads: int, asked: float, rounds: int) -> list[Row]:
    """Compare 128 rows of activations that are rounded to integers with the FMA limit of the floats."""
    layer = Layer(flagship_text(f"u{bits}[4096, 32, 128]", BODY), threads, 128, copies=4, numerics=numerics)
    fma = Fma(2.0 * 128 * 4096 * 4096, threads)
    return [Row.measured(rounds, layer.timer(), "FMA", fma.seconds, asked)]


def matvec(threads: int, asked: float, rounds: int) -> list[Row]:
    """Compare a plain f32 matrix times a vector with reading the matrix."""
    kernel = polyq.build(polyq.parse("a: f32[4096, 4096]\nx: f32[4096]\ny[i] += a[i, k] * x[k]"), threads=threads)
    rng = np.random.default_rng(0)
    sets = [rng.standard_normal((4096, 4096), dtype=np.float32) for _ in range(4)]
    x = rng.standard_normal(4096, dtype=np.float32)
    polyq.testing.assert_close(kernel, a=sets[0], x=x)
    limit = Read(sets[0].nbytes, 4, threads)
    return [Row.measured(rounds, over_copies(lambda i: kernel(a=sets[i], x=x), 4), "read", limit.seconds, asked)]


def matmul(shape: tuple[int, int, int], threads: int, rounds: int) -> list[Row]:
    """Compare a plain f32 matmul, m x k times k x n for the shape (m, n, k), with the FMA limit and with numpy."""
    m, n, k = shape
    spec = polyq.parse(f"a: f32[{m}, {k}]\nb: f32[{k}, {n}]\ny[i, j] += a[i, k] * b[k, j]")
    kernel = polyq.build(spec, threads=threads)
    arrays = random_arrays(spec, {})
    some = arrays["a"][:8].astype(np.float64) @ arrays["b"]  # the interpreter would take minutes for all of it
    np.testing.assert_allclose(kernel(**arrays)[:8], some, rtol=1e-4, atol=1e-5 * float(np.max(np.abs(some))))
    fma, ours = Fma(2.0 * m * n * k, threads), repeated(lambda: kernel(**arrays))
    with blas_threads(threads):
        return [
            Row.measured(rounds, ours, "FMA", fma.seconds, 0.90),
            Row.measured(rounds, ours, "numpy", repeated(lambda: arrays["a"] @ arrays["b"]), 1.0),
        ]


def chain(threads: int, rounds: int) -> list[Row]:
    """Compare five elementwise ops, 64 MB in and 64 MB out, with a copy with streaming stores."""
    spec = polyq.parse(
        "x: f32[4096, 4096]\ns: f32[4096]\nt: f32[4096]\na[i, j] = x[i, j] * s[j]\nb[i, j] = a[i, j] + t[i]\n"
        "c[i, j] = max(b[i, j], 0)\nd[i, j] = c[i, j] * c[i, j]\ny[i, j] = d[i, j] - x[i, j]"
    )
    kernel = polyq.build(spec, threads=threads)
    arrays = random_arrays(spec, {})
    y = np.zeros((4096, 4096), np.float32)
    polyq.testing.assert_close(kernel, **arrays)
    limit = Copy(y.nbytes, threads)
    return [Row.measured(rounds, repeated(lambda: kernel(**arrays, out=y)), "copy", limit.seconds, 0.85)]


def stencils(threads: int, rounds: int) -> list[Row]:
    """Compare four 3-point stencils, one after another, with numpy's time for two of them, and with a copy.

    numpy's best formulation of ``0.25*a + 0.5*b + 0.25*c`` was looked for among whole arrays and blocks for the cache:
    four operations in place on whole arrays.
    """
    size, names = 10_000_000, ("x", "t", "u", "v", "y")
    lines = [f"x: f32[{size}]"]
    for k in range(4):
        at = names[k]
        lines.append(
            f"{names[k + 1]}[i] = 0.25*{at}[i] + 0.5*{at}[i + 1] + 0.25*{at}[i + 2] where i < {size - 2 * k - 2}"
        )
    spec = polyq.parse("\n".join(lines))
    kernel = polyq.build(spec, threads=threads)
    arrays = random_arrays(spec, {})
    polyq.testing.assert_close(kernel, **arrays)
    x, y = arrays["x"], np.zeros(size - 8, np.float32)
    first, second = np.zeros(size - 2, np.float32), np.zeros(size - 4, np.float32)
    half = np.float32(0.5)

    def numpy_pass(a: np.ndarray, out: np.ndarray) -> None:
        np.add(a[:-2], a[2:], out=out)
        np.multiply(out, half, out=out)
        np.add(out, a[1:-1], out=out)
        np.multiply(out, half, out=out)

    def two_passes() -> None:
        numpy_pass(x, first)
        numpy_pass(first, second)

    ours, limit = repeated(lambda: kernel(x=x, out=y)), Copy(y.nbytes, threads)
    return [
        Row.measured(rounds, ours, "numpy, two passes", repeated(two_passes), 3.0),
        Row.measured(rounds, ours, "copy", limit.seconds),
    ]


def against_numpy(program: Program, rounds: int) -> list[Row]:
    """Check a program, with the default threads, against numpy, and compare the times on warm data."""
    spec = polyq.parse(program.text)
    started = time.perf_counter()
    kernel = polyq.build(spec)
    build = time.perf_counter() - started
    arrays = random_arrays(spec, {})
    got, expected = kernel(**arrays), program.numpy(arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * float(np.max(np.abs(expected))))
    ours, theirs = repeated(lambda: kernel(**arrays)), repeated(lambda: program.numpy(arrays))
    return [Row.measured(rounds, ours, "numpy", theirs, 1.0, f"build {build:.2f} s")]


def call_overhead(rounds: int) -> list[Row]:
    """Compare a call of a kernel that has nothing to do with ten microseconds."""
    kernel = polyq.build(polyq.parse("x: f32[1]\ny[i] = x[i] + 1"))
    x = np.ones(1, np.float32)
    return [Row.measured(rounds, repeated(lambda: kernel(x)), "10 us", lambda: 1e-5, 1.0)]


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Let numpy's BLAS use so many threads, which takes the package threadpoolctl."""
    import threadpoolctl

    with threadpoolctl.threadpool_limits(threads):
        yield


if __name__ == "__main__":
    main()

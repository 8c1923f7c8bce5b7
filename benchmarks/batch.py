#!/usr/bin/env python3
"""Times the group-quantized matmul against the number of rows, beside the machine's limits and what is installed.

    python benchmarks/batch.py [--bits 8] [--rows 1,2,4,8,16,32,64,128] [--threads 1] [--modes reassoc,i16]
                               [--shape 4096,32] [--rounds 5] [--plot FILE.svg]

Writes a Markdown table of milliseconds (medians) and, with matplotlib, a plot with both limits drawn in: the time to
read the weights, and that of the float multiply-adds. Every column of a row is measured in the same rounds, on weights
that are cold. ``numpy`` multiplies by weights that were dequantized beforehand, four bytes each; ``ort`` is ONNX
Runtime's MatMulNBits with f32 activations, ``ort i8`` rounds these to 8 bits (pip install onnxruntime onnx).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import polyq
from benchmarks.table import BODY, GROUP, blas_threads, flagship_text, random_weights
from polyq.affine.arrays import from_storage, random_arrays
from polyq.limits import Fma, Read

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200, 256, 512)
COLD_BYTES = 100e6

#: seconds of one call with a set of weights, by its number
Call = Callable[[int], object]
#: makes the calls of a peer for so many rows
Peer = Callable[[int], Call]


class Problem:
    """Sets of weights that together exceed the caches, and activations."""

    def __init__(self, n: int, groups: int, bits: int, threads: int) -> None:
        self.n, self.groups, self.bits, self.threads = n, groups, bits, threads
        self.spec = polyq.parse(flagship_text(f"u{bits}[{n}, {groups}, {GROUP}]", BODY))
        self.bytes = n * groups * GROUP * bits // 8 + 2 * 4 * n * groups
        self.sets = [random_weights(self.spec, {"m": 1}, seed) for seed in range(int(COLD_BYTES / self.bytes) + 2)]

    def activations(self, m: int) -> np.ndarray:
        """Return ``x`` for m rows."""
        return random_arrays(self.spec, {"m": m}, 7)["x"]

    def floats(self, held: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return dequantized weights, transposed."""
        codes = from_storage(self.spec.tensor("w"), held["w"], (self.n, self.groups, GROUP))
        whole = (codes.astype(np.float32) - held["z"][..., None]) * held["s"][..., None]
        return np.ascontiguousarray(whole.reshape(self.n, -1).T)


def polyq_peer(problem: Problem, mode: str) -> Peer:
    """Return bound kernels of one numerics mode."""
    constants = tuple(problem.sets[0])
    kernel = polyq.build(problem.spec, numerics=mode, threads=problem.threads, constants=constants)
    layers = [kernel.bind(**held) for held in problem.sets]

    def of(m: int) -> Call:
        x = problem.activations(m)
        out = layers[0](x=x)
        return lambda i: layers[i](x=x, out=out)

    return of


def numpy_peer(problem: Problem) -> Peer:
    """Return numpy's product with weights in f32: two sets of them, since they are large."""
    weights = [problem.floats(held) for held in problem.sets[:2]]

    def of(m: int) -> Call:
        x = problem.activations(m).reshape(m, -1)
        return lambda i: x @ weights[i % 2]

    return of


def ort_peer(problem: Problem, accuracy: int) -> Peer:
    """Return ONNX Runtime's MatMulNBits: ``accuracy`` 0 keeps the activations in f32, 4 rounds them to 8 bits."""
    sessions = [_session(problem, held, accuracy) for held in problem.sets]

    def of(m: int) -> Call:
        x = problem.activations(m).reshape(m, -1)
        return lambda i: sessions[i].run(None, {"x": x})

    return of


def _session(problem: Problem, held: Mapping[str, np.ndarray], accuracy: int) -> Any:
    """Return a session of one op; its zero points are integers, packed as the codes are."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    k, per_byte = problem.groups * GROUP, 8 // problem.bits
    zero = np.clip(held["z"], 0, 2**problem.bits - 1).astype(np.uint8)
    if per_byte == 2:
        zero = np.pad(zero, ((0, 0), (0, zero.shape[1] % 2)))
        zero = zero[:, 0::2] | zero[:, 1::2] << 4
    constants = {
        "w": held["w"].reshape(problem.n, problem.groups, -1),
        "s": held["s"].reshape(-1),
        "z": zero.reshape(-1),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft",
        K=k, N=problem.n, bits=problem.bits, block_size=GROUP, accuracy_level=accuracy,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", problem.n])],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = problem.threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measured(problem: Problem, peers: Mapping[str, Peer], m: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each peer and limit for m rows, all in the same rounds."""
    count = len(problem.sets)
    turns = count if m < 64 else 1  # many rows take long enough with one set, another each round
    calls = {name: peer(m) for name, peer in peers.items()}
    read = Read(problem.bytes, count, problem.threads)
    fma = Fma(2.0 * m * problem.n * problem.groups * GROUP, problem.threads)
    found: dict[str, list[float]] = {name: [] for name in ("read", "FMA", *calls)}
    for at in range(rounds):
        found["read"].append(read.seconds())
        found["FMA"].append(fma.seconds())
        for name, call in calls.items():
            started = time.perf_counter()
            for i in range(turns):
                call((at + i) % count)
            found[name].append((time.perf_counter() - started) / turns)
    return {name: statistics.median(times) for name, times in found.items()}


def table(found: Mapping[int, Mapping[str, float]]) -> str:
    """Return the medians as Markdown, milliseconds."""
    names = list(next(iter(found.values())))
    lines = [f"| rows | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    lines += [f"| {m} | {' | '.join(f'{1e3 * times[n]:.3g}' for n in names)} |" for m, times in found.items()]
    return "\n".join(lines)


def plot(found: Mapping[int, Mapping[str, float]], title: str, path: str) -> None:
    """Draw the times against the rows, the limits dashed."""
    import matplotlib

    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name in next(iter(found.values())):
        style = "k--" if name == "read" else "k:" if name == "FMA" else "o-"
        axes.loglog(list(found), [1e3 * times[name] for times in found.values()], style, label=name, markersize=3)
    axes.set(xlabel="rows of activations", ylabel="milliseconds", title=title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bits", type=int, choices=(4, 8), default=8)
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["reassoc"], help="numerics of polyq")
    parser.add_argument("--shape", type=lambda text: [int(e) for e in text.split(",")], default=[4096, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", metavar="FILE")
    asked = parser.parse_args()
    problem = Problem(*asked.shape, asked.bits, asked.threads)
    peers = {f"polyq {mode}": polyq_peer(problem, mode) for mode in asked.modes}
    peers["numpy"] = numpy_peer(problem)
    if all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnx")):
        peers |= {"ort": ort_peer(problem, 0), "ort i8": ort_peer(problem, 4)}
    with blas_threads(asked.threads):
        found = {m: measured(problem, peers, m, asked.rounds) for m in asked.rows}
    title = f"{asked.bits} bits, {asked.shape[0]} x {asked.shape[1] * GROUP}, threads: {asked.threads}"
    print(f"{title}; milliseconds, medians of {asked.rounds} rounds\n\n{table(found)}")
    if asked.plot:
        plot(found, title, asked.plot)


if __name__ == "__main__":
    main()

"""Rows of the table that are no products of quantized weights: norms, softmax, a convolution, plain matmuls."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import polyq
from benchmarks.rows import Row, repeated
from polyq.affine.arrays import random_arrays
from polyq.limits import Copy

__all__ = ["layer_rows"]

_ROWS = "x: f32[4096, 4096]\n"
NORMS = {
    "layer norm": _ROWS + "g: f32[4096]\nb: f32[4096]\nu[i] += x[i, j] / 4096.0\n"
    "v[i] += (x[i, j] - u[i]) * (x[i, j] - u[i]) / 4096.0\n"
    "y[i, j] = (x[i, j] - u[i]) / sqrt(v[i] + 0.00001) * g[j] + b[j]",
    "RMS norm": _ROWS + "g: f32[4096]\nq[i] += x[i, j] * x[i, j]\n"
    "y[i, j] = x[i, j] / sqrt(q[i] / 4096.0 + 0.00001) * g[j]",
    "softmax": _ROWS + "m[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - m[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]",
}
EXPONENTIALS = _ROWS + "y[i] += exp(x[i, j])"
CONVOLUTION = (
    "x: f32[64, 58, 58]\nw: f32[64, 64, 3, 3]\ny[o, i, j] += x[c, i + p, j + q] * w[o, c, p, q] where i < 56, j < 56"
)


def layer_rows(counts: list[int]) -> dict[str, Callable[[int], list[Row]]]:
    """Return the rows by name, for each number of threads."""
    found: dict[str, Callable[[int], list[Row]]] = {}
    for threads in counts:
        for name in NORMS:
            found[f"{name} on 64 MB, {threads}t"] = partial(norm, name, threads)
        found[f"conv2d 3 x 3, 64 channels, 56 x 56, {threads}t"] = partial(convolution, threads)
    return found


def norm(name: str, threads: int, rounds: int) -> list[Row]:
    """Compare a norm of rows, 64 MB in and 64 MB out, with a copy with streaming stores.

    A softmax on one thread waits for its exponentials: it is compared with a kernel that adds up the same ones.
    """
    kernel, y = polyq.build(polyq.parse(NORMS[name]), threads=threads), np.zeros((4096, 4096), np.float32)
    arrays = random_arrays(kernel.spec, {})
    polyq.testing.assert_close(kernel, **arrays)
    ours = repeated(lambda: kernel(**arrays, out=y))
    if name == "softmax" and threads == 1:
        sums = polyq.build(polyq.parse(EXPONENTIALS), threads=threads)
        return [Row.measured(rounds, ours, "exponentials", repeated(lambda: sums(x=arrays["x"])), 0.85)]
    return [Row.measured(rounds, ours, "copy", Copy(y.nbytes, threads).seconds, 0.85)]


def convolution(threads: int, rounds: int) -> list[Row]:
    """Compare a convolution with bound weights with ONNX Runtime's, which pads its input itself."""
    if not all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnx")):
        raise ModuleNotFoundError("onnxruntime and onnx are not installed")
    spec = polyq.parse(CONVOLUTION)
    x, w = (random_arrays(spec, {})[name] for name in "xw")
    x[:, 0], x[:, -1], x[:, :, 0], x[:, :, -1] = 0, 0, 0, 0
    kernel = polyq.build(spec, threads=threads)
    session, inside = _session(w, threads), np.ascontiguousarray(x[None, :, 1:-1, 1:-1])
    y = kernel(x=x, w=w)
    polyq.testing.assert_close(kernel, x=x, w=w)
    theirs = session.run(None, {"x": inside})[0][0]
    np.testing.assert_allclose(y, theirs, rtol=1e-3, atol=1e-3 * float(np.max(np.abs(theirs))))
    return [
        Row.measured(
            rounds, repeated(lambda: kernel(x=x, w=w, out=y)), "onnxruntime",
            repeated(lambda: session.run(None, {"x": inside})), 1.0,
        )
    ]  # fmt: skip


def _session(w: np.ndarray, threads: int) -> Any:
    """Return a session of one convolution, padded by one on all sides."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    shape = [1, 64, 56, 56]
    graph = helper.make_graph(
        [node], "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would run beside polyq
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

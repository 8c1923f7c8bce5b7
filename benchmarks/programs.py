"""Programs in index notation, each with the same computation in numpy, at sizes where numpy takes 50 us and more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Program:
    """``text`` declares its tensors; ``numpy`` computes the output that is compared, from the same arrays."""

    name: str
    text: str
    numpy: Callable[[Arrays], np.ndarray]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _layer_norm(a: Arrays) -> np.ndarray:
    x = a["x"]
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(1e-5)) * a["g"] + a["b"]


def _rms_matmul(a: Arrays) -> np.ndarray:
    x = a["x"]
    return (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-5)) * a["g"]) @ a["w"]


def _conv2d(a: Arrays) -> np.ndarray:
    windows = sliding_window_view(a["x"], (3, 3), axis=(1, 2))
    return np.tensordot(a["k"], windows, axes=([1, 2, 3], [0, 3, 4]))


def _conv1d(a: Arrays) -> np.ndarray:
    return np.tensordot(a["k"], sliding_window_view(a["x"], 5, axis=1)[:, ::2], axes=([1, 2], [0, 2]))


def _depthwise(a: Arrays) -> np.ndarray:
    return np.einsum("chwrq,crq->chw", sliding_window_view(a["x"], (3, 3), axis=(1, 2)), a["k"])


def _stencil(x: np.ndarray) -> np.ndarray:
    fifth = np.float32(0.2)
    return fifth * (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])


def _recurrence(a: Arrays) -> np.ndarray:
    y = a["x"].copy()
    for t in range(1, y.shape[1]):
        y[:, t] += np.float32(0.5) * y[:, t - 1]
    return y


def _attention(a: Arrays) -> np.ndarray:
    return _softmax(a["q"] @ a["k"].T * np.float32(0.125)) @ a["v"]


_MATMUL = "a: f32[512, 512]\nb: f32[512, 512]\n"

PROGRAMS = (
    Program("matvec", "a: f32[1024, 1024]\nx: f32[1024]\ny[i] += a[i, k] * x[k]", lambda a: a["a"] @ a["x"]),
    Program("matmul nn", _MATMUL + "y[i, j] += a[i, k] * b[k, j]", lambda a: a["a"] @ a["b"]),
    Program("matmul nt", _MATMUL + "y[i, j] += a[i, k] * b[j, k]", lambda a: a["a"] @ a["b"].T),
    Program("matmul tn", _MATMUL + "y[i, j] += a[k, i] * b[k, j]", lambda a: a["a"].T @ a["b"]),
    Program("matmul tt", _MATMUL + "y[i, j] += a[k, i] * b[j, k]", lambda a: a["a"].T @ a["b"].T),
    Program(
        "batched matmul",
        "a: f32[16, 128, 128]\nb: f32[16, 128, 128]\ny[n, i, j] += a[n, i, k] * b[n, k, j]",
        lambda a: a["a"] @ a["b"],
    ),
    Program(
        "matmul, bias, relu",
        _MATMUL + "c: f32[512]\nt[i, j] += a[i, k] * b[k, j]\nu[i, j] = t[i, j] + c[j]\ny[i, j] = max(u[i, j], 0)",
        lambda a: np.maximum(a["a"] @ a["b"] + a["c"], 0),
    ),
    Program(
        "integer matmul",
        "a: i8[256, 256]\nb: i8[256, 256]\ny[i, j] += i32(a[i, k]) * i32(b[k, j])",
        lambda a: a["a"].astype(np.int32) @ a["b"].astype(np.int32),
    ),
    Program(
        "softmax",
        "x: f32[256, 1024]\nm[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - m[i])\nt[i] += e[i, j]\n"
        "y[i, j] = e[i, j] / t[i]",
        lambda a: _softmax(a["x"]),
    ),
    Program(
        "layer norm",
        "x: f32[256, 1024]\ng: f32[1024]\nb: f32[1024]\nt[i] += x[i, j]\nc[i, j] = x[i, j] - t[i] / 1024\n"
        "v[i] += c[i, j] * c[i, j]\ny[i, j] = c[i, j] / sqrt(v[i] / 1024 + 1e-5) * g[j] + b[j]",
        _layer_norm,
    ),
    Program(
        "RMS norm, matmul",
        "x: f32[64, 1024]\ng: f32[1024]\nw: f32[1024, 256]\nt[i] += x[i, k] * x[i, k]\n"
        "c[i, k] = x[i, k] / sqrt(t[i] / 1024 + 1e-5) * g[k]\ny[i, j] += c[i, k] * w[k, j]",
        _rms_matmul,
    ),
    Program(
        "attention, one head",
        "q: f32[256, 64]\nk: f32[256, 64]\nv: f32[256, 64]\nr[i, j] += q[i, h] * k[j, h]\ns[i, j] = r[i, j] * 0.125\n"
        "m[i] max= s[i, j]\ne[i, j] = exp(s[i, j] - m[i])\nt[i] += e[i, j]\np[i, j] = e[i, j] / t[i]\n"
        "y[i, h] += p[i, j] * v[j, h]",
        _attention,
    ),
    Program(
        "conv1d, stride 2",
        "x: f32[64, 2051]\nk: f32[64, 64, 5]\ny[o, h] += x[c, 2*h + r] * k[o, c, r] where h < 1024",
        _conv1d,
    ),
    Program(
        "conv2d",
        "x: f32[32, 66, 66]\nk: f32[32, 32, 3, 3]\n"
        "y[o, h, w] += x[c, h + r, w + q] * k[o, c, r, q] where h < 64, w < 64",
        _conv2d,
    ),
    Program(
        "depthwise conv",
        "x: f32[64, 66, 66]\nk: f32[64, 3, 3]\ny[c, h, w] += x[c, h + r, w + q] * k[c, r, q] where h < 64, w < 64",
        _depthwise,
    ),
    Program(
        "max pooling",
        "x: f32[64, 128, 128]\ny[c, h, w] max= x[c, 2*h + r, 2*w + q] where r < 2, q < 2, h < 64, w < 64",
        lambda a: a["x"].reshape(64, 64, 2, 64, 2).max(axis=(2, 4)),
    ),
    Program("global pooling", "x: f32[64, 128, 128]\ny[c] += x[c, h, w]", lambda a: a["x"].sum(axis=(1, 2))),
    Program("sum of all", "x: f32[1024, 1024]\ny += x[i, j]", lambda a: a["x"].sum()),
    Program("column maxima", "x: f32[1024, 1024]\ny[j] max= x[i, j]", lambda a: a["x"].max(axis=0)),
    Program("transpose", "x: f32[1024, 1024]\ny[j, i] = x[i, j]", lambda a: np.ascontiguousarray(a["x"].T)),
    Program("strided copy", "x: f32[1024, 2048]\ny[i, j] = x[i, 2*j] where j < 1024", lambda a: a["x"][:, ::2].copy()),
    Program("reversal", "x: f32[1048576]\ny[i] = x[1048575 - i] where i < 1048576", lambda a: a["x"][::-1].copy()),
    Program("outer product", "a: f32[1024]\nb: f32[1024]\ny[i, j] = a[i] * b[j]", lambda a: np.outer(a["a"], a["b"])),
    Program(
        "trmm",
        "a: f32[256, 256]\nb: f32[256, 256]\ny[i, j] += a[i, k] * b[k, j] where k <= i",
        lambda a: np.tril(a["a"]) @ a["b"],
    ),
    Program(
        "syrk",
        "a: f32[256, 256]\ny[i, j] += a[i, k] * a[j, k] where j <= i",
        lambda a: np.tril(a["a"] @ a["a"].T),
    ),
    Program(
        "stencil 1d",
        "x: f32[1048578]\ny[i] = 0.25 * x[i] + 0.5 * x[i + 1] + 0.25 * x[i + 2] where i < 1048576",
        lambda a: np.float32(0.25) * a["x"][:-2] + np.float32(0.5) * a["x"][1:-1] + np.float32(0.25) * a["x"][2:],
    ),
    Program(
        "stencil 2d",
        "x: f32[1026, 1026]\ny[i, j] = 0.2 * (x[i+1, j+1] + x[i, j+1] + x[i+2, j+1] + x[i+1, j] + x[i+1, j+2])"
        " where i < 1024, j < 1024",
        lambda a: _stencil(a["x"]),
    ),
    Program(
        "two stencils",
        "x: f32[1028, 1028]\nt[i, j] = 0.2 * (x[i+1, j+1] + x[i, j+1] + x[i+2, j+1] + x[i+1, j] + x[i+1, j+2])"
        " where i < 1026, j < 1026\ny[i, j] = 0.2 * (t[i+1, j+1] + t[i, j+1] + t[i+2, j+1] + t[i+1, j] + t[i+1, j+2])"
        " where i < 1024, j < 1024",
        lambda a: _stencil(_stencil(a["x"])),
    ),
    Program(
        "recurrence",
        "x: f32[1024, 256]\ny[i, t] = x[i, t]\ny[i, t] = 0.5 * y[i, t - 1] + x[i, t] where t >= 1",
        _recurrence,
    ),
)

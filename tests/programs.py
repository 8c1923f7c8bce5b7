"""The programs that end-to-end tests build: text, declarations, and a numpy reference in float64 for each.

``PROGRAMS`` holds programs on random data. A reference takes a namespace of logical arrays (floats as float64, integers
as int64, sub-byte types unpacked) with the parameters beside them, and returns one array or a tuple of several.
``CASES`` (in :mod:`hand_cases`) holds programs with given data and a value worked out by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyq.affine.arrays import from_storage, random_arrays, shape_of
from polyq.affine.dtypes import is_float
from polyq.affine.notation import parse
from polyq.affine.spec import Spec

Declarations = dict[str, tuple[str, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Program:
    """A program with random data: ``positive`` names inputs whose data is made at least 0.1."""

    name: str
    text: str
    tensors: Declarations
    reference: Callable[[SimpleNamespace], Any]
    params: dict[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    positive: tuple[str, ...] = ()

    def spec(self) -> Spec:
        return parse(self.text, outputs=self.outputs, **self.tensors)

    def arrays(self, spec: Spec, seed: int = 0) -> dict[str, np.ndarray]:
        arrays = random_arrays(spec, self.params, seed)
        for name in self.positive:
            arrays[name] = np.abs(arrays[name]) + arrays[name].dtype.type(0.1)
        return arrays

    def free_params(self, spec: Spec) -> dict[str, int]:
        """Return the parameters that must be given by name."""
        fixed = {entry for t in spec.inputs for entry in t.shape if isinstance(entry, str) and entry.isidentifier()}
        return {name: value for name, value in self.params.items() if name not in fixed}

    def expected(self, spec: Spec, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        result = self.reference(logical(spec, arrays, self.params))
        return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))


def logical(spec: Spec, arrays: dict[str, np.ndarray], params: dict[str, int]) -> SimpleNamespace:
    """Return inputs as float64 and int64 arrays of their logical shape, beside the parameters."""
    space = SimpleNamespace(**params)
    for tensor in spec.inputs:
        bits = arrays[tensor.name]
        if tensor.dtype == "bf16":
            bits = bits.view(np.uint16)
        values = from_storage(tensor, bits, shape_of(tensor, params))
        setattr(space, tensor.name, values.astype(np.float64 if is_float(tensor.dtype) else np.int64))
    return space


def f32(*shape: Any) -> tuple[str, tuple[Any, ...]]:
    return "f32", shape


# ---- elementwise, layouts, fills
def _chain(a: SimpleNamespace) -> np.ndarray:
    d = np.maximum((a.x + a.b) * a.s[:, None], 0) - a.x
    return d * d


def _integers(a: SimpleNamespace) -> np.ndarray:
    divisor = np.where(a.b == 0, 1, a.b)
    return np.where(a.b == 0, 0, a.a // divisor + a.a % divisor) - np.minimum(a.a, a.b) * np.maximum(a.a, a.b)


ELEMENTWISE = (
    Program("chain of five with broadcasts", "a[i, j] = x[i, j] + b[j]\nc[i, j] = a[i, j] * s[i]\nd[i, j] = max(c[i, j], 0.0)\n"
            "e[i, j] = d[i, j] - x[i, j]\ny[i, j] = e[i, j] * e[i, j]", {"x": f32("m", 37), "b": f32(37), "s": f32("m")}, _chain, {"m": 5}),
    Program("axpy in place", "y[i] = alpha * x[i] + y[i]", {"alpha": f32(), "x": f32("n"), "y": f32("n")}, lambda a: a.alpha * a.x + a.y, {"n": 33}),
    Program("gelu", "y[i] = 0.5 * x[i] * (1.0 + erf(x[i] * 0.7071067811865476))", {"x": f32("n")},
            lambda a: 0.5 * a.x * (1 + _erf(a.x * 0.7071067811865476)), {"n": 19}),
    Program("select and comparisons", "y[i] = select(x[i] < lo[0] or not (x[i] <= 1.0), -x[i], select(x[i] == x[i] and x[i] != 0.0, abs(x[i]), 7.0))",
            {"x": f32("n"), "lo": f32(1)}, lambda a: np.where((a.x < a.lo[0]) | ~(a.x <= 1), -a.x, np.where(a.x != 0, abs(a.x), 7)), {"n": 23}),
    Program("floor, rint, sqrt, log, tanh", "y[i] = floor(3.0 * x[i]) + rint(5.0 * x[i]) + sqrt(x[i]) * log(x[i]) + tanh(x[i])", {"x": ("f64", ("n",))},
            lambda a: np.floor(3 * a.x) + np.rint(5 * a.x) + np.sqrt(a.x) * np.log(a.x) + np.tanh(a.x), {"n": 21}, positive=("x",)),
    Program("argument-free fill", "y[i, j] = 3.5 where i < 4, j < 5", {}, lambda a: np.full((4, 5), 3.5)),
    Program("fill of a symbolic extent", "y[i] = 2.0 where i < n", {}, lambda a: np.full(a.n, 2.0), {"n": 13}),
    Program("index values", "y[i, j] = f32(10*i + j) where i < 3, j < 7", {}, lambda a: 10.0 * np.arange(3)[:, None] + np.arange(7)),
    Program("index values and a parameter", "y[i] = x[i] * f32(i % 4 - i // 3 + n)", {"x": f32("n")}, lambda a: a.x * (np.arange(a.n) % 4 - np.arange(a.n) // 3 + a.n), {"n": 11}),
    Program("integer arithmetic", "y[i] = a[i] // b[i] + a[i] % b[i] - min(a[i], b[i]) * max(a[i], b[i])", {"a": ("i32", ("n",)), "b": ("i32", ("n",))},
            _integers, {"n": 50}),
    Program("clamp to a byte", "y[i] = u8(min(max(rint(x[i] * 60.0 + 100.0), 0.0), 255.0))", {"x": f32("n")}, lambda a: np.clip(np.rint(a.x.astype("f4") * np.float32(60) + np.float32(100)), 0, 255), {"n": 40}),
    Program("repack codes", "y[i, j] = i4(i8(w[i, j]) - 8)", {"w": ("u4", (3, 5))}, lambda a: a.w - 8),
    Program("half precision chain", "y[i] = x[i] * x[i] + h", {"x": ("f16", ("n",)), "h": ("f16", ())}, lambda a: a.x * a.x + a.h, {"n": 9}),
    Program("bfloat16 sum of products", "y[i] += f32(x[i, k]) * f32(w[k])", {"x": ("bf16", ("n", 17)), "w": ("bf16", (17,))}, lambda a: a.x @ a.w, {"n": 3}),
    Program("transpose", "y[j, i] = x[i, j]", {"x": f32("m", 9)}, lambda a: a.x.T, {"m": 7}),
    Program("diagonal", "y[i] = x[i, i]", {"x": f32(6, 6)}, lambda a: np.diag(a.x)),
    Program("reversal", "y[i] = x[12 - i] where i < 13", {"x": f32(13)}, lambda a: a.x[::-1]),
    Program("strided copy", "y[i] = x[3*i + 1] where i < 5", {"x": f32(15)}, lambda a: a.x[1::3]),
    Program("strided scatter", "y[2*i] = x[i]", {"x": f32(6)}, lambda a: np.stack([a.x, 0 * a.x], 1).ravel()[:-1]),
    Program("flatten and split", "c[9*i + j] = x[i, j]\ny[i, j] = c[9*i + j] + x[i, j] where i < 4, j < 9", {"x": f32(4, 9)}, lambda a: 2 * a.x),
    Program("outer product", "y[i, j] = a[i] * b[j]", {"a": f32("m"), "b": f32(11)}, lambda a: np.outer(a.a, a.b), {"m": 5}),
    Program("several outputs", "s[i] = x[i] + 1.0\np += x[i]\nq[i] = x[i] * 2.0", {"x": f32("n")}, lambda a: (a.x + 1, a.x.sum(), 2 * a.x), {"n": 10}),
    Program("named outputs", "s[i] = x[i] + 1.0\np[i] = s[i] * 2.0", {"x": f32("n")}, lambda a: (2 * (a.x + 1), a.x + 1), {"n": 10}, outputs=("p", "s")),
)  # fmt: skip


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=[float])(x)


# ---- contractions
def _relu_layer(a: SimpleNamespace) -> np.ndarray:
    return np.maximum(a.x @ a.w.T + a.b, 0)


CONTRACTIONS = (
    Program("matvec", "y[i] += a[i, k] * x[k]", {"a": f32(13, 37), "x": f32(37)}, lambda a: a.a @ a.x),
    Program("matvec, transposed", "y[i] += a[k, i] * x[k]", {"a": f32(13, 37), "x": f32(13)}, lambda a: a.x @ a.a),
    Program("matmul nn", "y[i, j] += a[i, k] * b[k, j]", {"a": f32("m", 13), "b": f32(13, 19)}, lambda a: a.a @ a.b, {"m": 7}),
    Program("matmul nt", "y[i, j] += a[i, k] * b[j, k]", {"a": f32("m", 13), "b": f32(19, 13)}, lambda a: a.a @ a.b.T, {"m": 7}),
    Program("matmul tn", "y[i, j] += a[k, i] * b[k, j]", {"a": f32(13, "m"), "b": f32(13, 19)}, lambda a: a.a.T @ a.b, {"m": 7}),
    Program("matmul tt", "y[i, j] += a[k, i] * b[j, k]", {"a": f32(13, "m"), "b": f32(19, 13)}, lambda a: a.a.T @ a.b.T, {"m": 7}),
    Program("matmul into an accumulator", "y[i, j] += a[i, k] * b[k, j]", {"a": f32(5, 6), "b": f32(6, 7), "y": f32(5, 7)}, lambda a: a.y + a.a @ a.b),
    Program("batched matmul", "y[b, i, j] += a[b, i, k] * c[b, k, j]", {"a": f32("n", 5, 9), "c": f32("n", 9, 6)}, lambda a: a.a @ a.c, {"n": 3}),
    Program("matmul, bias, relu", "t[m, n] += x[m, k] * w[n, k]\nu[m, n] = t[m, n] + b[n]\ny[m, n] = max(u[m, n], 0.0)", {"x": f32("m", 21), "w": f32(17, 21), "b": f32(17)}, _relu_layer, {"m": 5}),
    Program("three matmuls of one input", "q[m, n] += x[m, k] * a[n, k]\nk1[m, n] += x[m, k] * b[n, k]\nv[m, n] += x[m, k] * c[n, k]",
            {"x": f32("m", 24), "a": f32(9, 24), "b": f32(9, 24), "c": f32(5, 24)}, lambda a: (a.x @ a.a.T, a.x @ a.b.T, a.x @ a.c.T), {"m": 3}),
    Program("integer matmul", "y[i, j] += i32(a[i, k]) * i32(b[k, j])", {"a": ("i8", ("m", 33)), "b": ("i8", (33, 10))}, lambda a: a.a @ a.b, {"m": 6}),
    Program("trmm", "y[i, j] += l[i, k] * b[k, j] where k <= i", {"l": f32(9, 9), "b": f32(9, 7)}, lambda a: np.tril(a.l) @ a.b),
    Program("syrk", "c[i, j] += a[i, k] * a[j, k] where j <= i", {"a": f32(9, 7), "c": f32(9, 9)}, lambda a: a.c + np.tril(a.a @ a.a.T)),
    Program("syrk from nothing", "c[i, j] += a[i, k] * a[j, k] where j <= i", {"a": f32("n", 7)}, lambda a: np.tril(a.a @ a.a.T), {"n": 6}),
    Program("empty matmul, no rows", "y[i, j] += a[i, k] * b[k, j]", {"a": f32("m", "k"), "b": f32("k", 4)}, lambda a: np.zeros((0, 4)), {"m": 0, "k": 8}),
    Program("empty reduction", "y[i, j] += a[i, k] * b[k, j]", {"a": f32("m", "k"), "b": f32("k", 4)}, lambda a: np.zeros((3, 4)), {"m": 3, "k": 0}),
    Program("empty columns", "y[i, j] += a[i, k] * b[k, j]", {"a": f32("m", 8), "b": f32(8, "n")}, lambda a: np.zeros((3, 0)), {"m": 3, "n": 0}),
    Program("matmul on a band", "y[i, j] += a[i, k] * b[k, j] where 0 <= k - i < 3", {"a": f32(8, 10), "b": f32(10, 6)}, lambda a: (np.triu(a.a) - np.triu(a.a, 3)) @ a.b),
)  # fmt: skip


# ---- group-quantized matmuls
def _dequantize(a: SimpleNamespace, zero: bool, sub_first: bool) -> np.ndarray:
    scale, z = a.s[..., None], (a.z[..., None] if zero else 0)
    return (a.w - z) * scale if sub_first else a.w * scale - z


def _grouped(dtype: str, zero: bool, sub_first: bool, group: int, groups: int = 2) -> Program:
    body = {
        (True, True): "(f32(w[n, g, j]) - z[n, g]) * s[n, g]",
        (True, False): "f32(w[n, g, j]) * s[n, g] - z[n, g]",
        (False, True): "f32(w[n, g, j]) * s[n, g]",
        (False, False): "s[n, g] * f32(w[n, g, j])",
    }[zero, sub_first]
    tensors: Declarations = {"w": (dtype, (11, groups, group)), "s": f32(11, groups), "x": f32("m", groups, group)}
    if zero:
        tensors["z"] = f32(11, groups)
    order = "sub then mul" if sub_first else "mul then sub"
    return Program(
        f"grouped {dtype}, {'zero point' if zero else 'no zero point'}, {order}, {groups} groups of {group}",
        f"d[n, g, j] = {body}\ny[m, n] += x[m, g, j] * d[n, g, j]",
        tensors,
        lambda a: np.einsum("mgj,ngj->mn", a.x, _dequantize(a, zero, sub_first)),
        {"m": 3},
    )


def _collapsed(dtype: str, k: int, group: int) -> Program:
    groups = -(-k // group)
    return Program(
        f"collapsed {dtype}, k = {k} in groups of {group}",
        f"d[n, k] = (f32(w[n, k]) - z[n, k//{group}]) * s[n, k//{group}]\ny[m, n] += x[m, k] * d[n, k]",
        {"w": (dtype, (7, k)), "s": f32(7, groups), "z": f32(7, groups), "x": f32("m", k)},
        lambda a: a.x @ ((a.w - _spread(a.z, k, group)) * _spread(a.s, k, group)).T,
        {"m": 2},
    )


def _spread(a: np.ndarray, k: int, group: int) -> np.ndarray:
    return a[:, np.arange(k) // group]


def _permuted(order: tuple[str, ...]) -> Program:
    d = ", ".join(order)
    return Program(
        f"grouped, producer over ({d})",
        f"d[{d}] = (f32(w[{d}]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[{d}]",
        {"w": ("u8", tuple({"n": 9, "g": 3, "j": 16}[o] for o in order)), "z": f32(9, 3), "s": f32(9, 3), "x": f32("m", 3, 16)},
        lambda a: np.einsum(
            f"mgj,{''.join(order)},ng->mn", a.x, a.w, a.s
        ) - np.einsum("mgj,ng,ng->mn", a.x, a.z, a.s),
        {"m": 4},
    )  # fmt: skip


_DEQUANTIZED = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\n"
_WEIGHTS: Declarations = {"w": ("u8", (10, 3, 32)), "z": f32(10, 3), "s": f32(10, 3)}

QUANTIZED = (
    *(_grouped(*v, 32) for v in itertools.product(("u8", "i8", "u4", "i4"), (True, False), (True, False))),
    *(_grouped(dtype, True, True, group) for dtype in ("u8", "u4") for group in (48, 100, 128)),
    _grouped("u8", True, True, 96, 1),
    _grouped("u4", True, True, 15, 3),
    _collapsed("u8", 256, 128), _collapsed("u8", 70, 32), _collapsed("u4", 75, 32), _collapsed("i4", 31, 128), _collapsed("u8", 150, 100),
    *(_permuted(order) for order in itertools.permutations("ngj")),
    Program("two consumers of one dequantized tensor", _DEQUANTIZED + "y[m, n] += x[m, g, j] * d[n, g, j]\nv[n] += d[n, g, j] * u[g, j]",
            {**_WEIGHTS, "x": f32("m", 3, 32), "u": f32(3, 32)},
            lambda a: (np.einsum("mgj,ngj->mn", a.x, _dequantize(a, True, True)), np.einsum("ngj,gj->n", _dequantize(a, True, True), a.u)), {"m": 2}),
    Program("grouped, an extra batch dim", _DEQUANTIZED + "y[b, m, n] += x[b, m, g, j] * d[n, g, j]", {**_WEIGHTS, "x": f32(2, "m", 3, 32)},
            lambda a: np.einsum("bmgj,ngj->bmn", a.x, _dequantize(a, True, True)), {"m": 3}),
    Program("grouped, dequantized by two ops", "c[n, g, j] = f32(w[n, g, j]) - z[n, g]\nd[n, g, j] = c[n, g, j] * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
            {**_WEIGHTS, "x": f32("m", 3, 32)}, lambda a: np.einsum("mgj,ngj->mn", a.x, _dequantize(a, True, True)), {"m": 3}),
    Program("grouped, one statement", "y[m, n] += x[m, g, j] * ((f32(w[n, g, j]) - z[n, g]) * s[n, g])", {**_WEIGHTS, "x": f32("m", 3, 32)},
            lambda a: np.einsum("mgj,ngj->mn", a.x, _dequantize(a, True, True)), {"m": 1}),
)  # fmt: skip


# ---- windows, pools, stencils
def _windows(x: np.ndarray, *size: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=tuple(range(-len(size), 0)))


def _chained(a: SimpleNamespace) -> np.ndarray:
    t = np.pad(a.x[:-2] + a.x[2:], (1, 0))
    u = np.pad(t[1:-1] - t[2:], (2, 0))
    return np.pad(u[2:-1] * u[3:], (2, 0))


def _part(a: SimpleNamespace) -> np.ndarray:
    y = a.y.copy()
    y[3:6, 1:19] = a.x[3:6, 1:19] - a.x[2:5, :18]
    return y


def _conv2d(a: SimpleNamespace) -> np.ndarray:
    x = _windows(a.x, 5, 3)[:, ::2, ::1][:, :4, :5, ::2]  # rows: stride 2, dilation 2; columns: neither
    return np.einsum("cijrs,fcrs->fij", x, a.w)


WINDOWS = (
    Program("conv1d", "y[o, i] += x[c, i + r] * w[o, c, r] where i < 9", {"x": f32(2, 11), "w": f32(4, 2, 3)},
            lambda a: np.einsum("cir,ocr->oi", _windows(a.x, 3), a.w)),
    Program("conv1d, stride 2, dilation 3", "y[o, i] += x[c, 2*i + 3*r] * w[o, c, r] where i < 4", {"x": f32(2, 13), "w": f32(4, 2, 3)},
            lambda a: np.einsum("cir,ocr->oi", _windows(a.x, 7)[:, ::2, ::3], a.w)),
    Program("conv1d, padded", "y[i] += x[i + r - 1] * w[r] where i < 10, 0 <= i + r - 1 < 10", {"x": f32(10), "w": f32(3)}, lambda a: np.correlate(a.x, a.w, "same")),
    Program("conv2d, stride 2 and dilation 2 along rows", "y[f, i, j] += x[c, 2*i + 2*r, j + s] * w[f, c, r, s] where i < 4, j < 5", {"x": f32(2, 11, 7), "w": f32(3, 2, 3, 3)}, _conv2d),
    Program("depthwise conv", "y[c, i, j] += x[c, i + r, j + s] * w[c, r, s] where i < 4, j < 5", {"x": f32(3, 6, 7), "w": f32(3, 3, 3)},
            lambda a: np.einsum("cijrs,crs->cij", _windows(a.x, 3, 3), a.w)),
    Program("transposed conv1d", "y[2*i + r] += x[i] * w[r]", {"x": f32(6), "w": f32(3)}, lambda a: np.convolve(np.stack([a.x, 0 * a.x], 1).ravel()[:-1], a.w)),
    Program("max pool", "y[c, i, j] max= x[c, 2*i + r, 2*j + s] where r < 2, s < 2, i < 3, j < 4", {"x": f32(3, 6, 8)}, lambda a: a.x.reshape(3, 3, 2, 4, 2).max((2, 4))),
    Program("average pool", "t[c, i, j] += x[c, 2*i + r, 2*j + s] where r < 2, s < 2, i < 3, j < 4\ny[c, i, j] = t[c, i, j] * 0.25", {"x": f32(3, 6, 8)},
            lambda a: a.x.reshape(3, 3, 2, 4, 2).mean((2, 4))),
    Program("global average pool", "t[c] += x[c, i, j]\ny[c] = t[c] / 35.0", {"x": f32(4, 5, 7)}, lambda a: a.x.mean((1, 2))),
    Program("stencil 1d", "y[i] = 0.25 * x[i] + 0.5 * x[i + 1] + 0.25 * x[i + 2] where i < n - 2", {"x": f32("n")}, lambda a: _windows(a.x, 3) @ [0.25, 0.5, 0.25], {"n": 21}),
    Program("stencil 2d", "y[i, j] = 0.2 * (x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2] + x[i + 1, j + 1]) where i < 7, j < 10", {"x": f32(9, 12)},
            lambda a: 0.2 * (a.x[:-2, 1:-1] + a.x[2:, 1:-1] + a.x[1:-1, :-2] + a.x[1:-1, 2:] + a.x[1:-1, 1:-1])),
    Program("two chained stencils", "a[i] = x[i] + x[i + 1] + x[i + 2] where i < 18\ny[i] = a[i] - 2.0 * a[i + 1] + a[i + 2] where i < 16", {"x": f32(20)},
            lambda a: _windows(_windows(a.x, 3).sum(1), 3) @ [1, -2, 1]),
    Program("stencil from 1", "y[i] = x[i - 1] - 3.0 * x[i] + x[i + 1] where 1 <= i, i < n - 1", {"x": f32("n")},
            lambda a: np.concatenate([[0.0], a.x[:-2] - 3.0 * a.x[1:-1] + a.x[2:]]), {"n": 29}),
    Program("stencil from 1 and 2", "y[i, j] = x[i - 1, j] + x[i + 1, j] - x[i, j - 2] * x[i, j + 1] where 1 <= i, i < 8, 2 <= j, j < 21", {"x": f32(9, 22)},
            lambda a: np.pad(a.x[:-2, 2:-1] + a.x[2:, 2:-1] - a.x[1:-1, :-3] * a.x[1:-1, 3:], ((1, 0), (2, 0)))),
    Program("chained stencils from 1", "t[i] = x[i - 1] + x[i + 1] where 1 <= i, i < 25\nu[i] = t[i - 1] - t[i] where 2 <= i, i < 25\ny[i] = u[i] * u[i + 1] where 2 <= i, i < 24",
            {"x": f32(26)}, _chained),
    Program("stencil in place of a part", "y[i, j] = x[i, j] - x[i - 1, j - 1] where 3 <= i, i < 6, 1 <= j, j < 19", {"x": f32(7, 21), "y": f32(7, 21)}, _part),
    Program("upsample", "y[i] = x[i // 2] where i < 14", {"x": f32(7)}, lambda a: np.repeat(a.x, 2)),
    Program("cyclic read", "y[i] = x[i % 5] where i < 17", {"x": f32(5)}, lambda a: a.x[np.arange(17) % 5]),
)  # fmt: skip


# ---- reductions, normalisations, recurrences
def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(a: SimpleNamespace) -> np.ndarray:
    return (a.x - a.x.mean(1, keepdims=True)) / np.sqrt(a.x.var(1, keepdims=True) + 1e-3) * a.g + a.b


def _rms(a: SimpleNamespace) -> np.ndarray:
    return a.x / np.sqrt((a.x**2).mean(1, keepdims=True) + 1e-3) * a.g


_SOFTMAX = "mx[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - mx[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]"


def _recurrence(a: SimpleNamespace) -> np.ndarray:
    y = a.x.copy()
    for i in range(1, len(y)):
        y[i] = 0.5 * y[i - 1] + a.x[i]
    return y


NORMS = (
    Program("min along rows", "y[i] min= x[i, j]", {"x": f32("m", 13)}, lambda a: a.x.min(1), {"m": 4}),
    Program("max along columns", "y[j] max= x[i, j]", {"x": f32("m", 13)}, lambda a: a.x.max(0), {"m": 4}),
    Program("product along rows", "y[i] *= x[i, j]", {"x": f32("m", 13)}, lambda a: a.x.prod(1), {"m": 4}),
    Program("integer minimum", "y[i] min= x[i, j]", {"x": ("i16", ("m", 13))}, lambda a: a.x.min(1), {"m": 4}),
    Program("sum over all dims", "y += x[i, j, k]", {"x": f32(5, 7, 11)}, lambda a: a.x.sum()),
    Program("sum of squares of a vector", "y += x[i] * x[i]", {"x": f32("n")}, lambda a: (a.x**2).sum(), {"n": 1000}),
    Program("maximum of nothing", "y max= x[i]", {"x": f32("n")}, lambda a: np.array(-np.inf), {"n": 0}),
    Program("softmax", _SOFTMAX, {"x": f32("m", 17)}, lambda a: _softmax(a.x), {"m": 5}),
    Program("layer norm", "t[i] += x[i, j]\nu[i] = t[i] / 24.0\nq[i] += (x[i, j] - u[i]) * (x[i, j] - u[i])\ny[i, j] = (x[i, j] - u[i]) / sqrt(q[i] / 24.0 + 0.001) * g[j] + b[j]",
            {"x": f32("m", 24), "g": f32(24), "b": f32(24)}, _layer_norm, {"m": 3}),
    Program("rms norm and a matmul", "q[i] += x[i, j] * x[i, j]\nh[i, j] = x[i, j] / sqrt(q[i] / 24.0 + 0.001) * g[j]\ny[i, n] += h[i, j] * w[n, j]",
            {"x": f32("m", 24), "g": f32(24), "w": f32(9, 24)}, lambda a: _rms(a) @ a.w.T, {"m": 3}),
    Program("attention, one head", "s[i, j] += q[i, d] * k[j, d]\nmx[i] max= s[i, j]\ne[i, j] = exp((s[i, j] - mx[i]) * 0.25)\nt[i] += e[i, j]\n"
            "o[i, d] += e[i, j] * v[j, d]\ny[i, d] = o[i, d] / t[i]", {"q": f32("m", 16), "k": f32("n", 16), "v": f32("n", 16)},
            lambda a: _softmax(a.q @ a.k.T * 0.25) @ a.v, {"m": 5, "n": 9}),
    Program("causal softmax", "mx[i] max= x[i, j] where j <= i\ne[i, j] = exp(x[i, j] - mx[i]) where j <= i\nt[i] += e[i, j] where j <= i\ny[i, j] = e[i, j] / t[i] where j <= i",
            {"x": f32(7, 7)}, lambda a: _softmax(np.where(np.tri(7) > 0, a.x, -np.inf))),
    Program("first-order recurrence", "y[0] = x[0]\ny[i] = 0.5 * y[i - 1] + x[i] where i >= 1", {"x": f32(15)}, _recurrence),
    Program("prefix sums of rows", "y[i, j] = x[i, j]\ny[i, j] = y[i, j - 1] + y[i, j] where j >= 1", {"x": f32("m", 9)}, lambda a: np.cumsum(a.x, 1), {"m": 4}),
    Program("recurrence along rows", "y[i, j] = x[i, j]\ny[i, j] = y[i - 1, j] * 0.5 + y[i, j] where i >= 1", {"x": f32("m", 9)}, _recurrence, {"m": 6}),
)  # fmt: skip

PROGRAMS: tuple[Program, ...] = (*ELEMENTWISE, *CONTRACTIONS, *QUANTIZED, *WINDOWS, *NORMS)

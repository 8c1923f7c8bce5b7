"""Programs with given data and a value that was worked out by hand: what went wrong elsewhere, in its smallest form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyq.affine.notation import parse
from polyq.affine.spec import Spec

__all__ = ["CASES", "Case"]

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """A program, its arguments (arrays, and parameters by name) and the one result that is right, bit by bit."""

    name: str
    text: str
    tensors: dict[str, tuple[str, tuple[Any, ...]]]
    arguments: dict[str, Any]
    right: Any
    outputs: tuple[str, ...] | None = field(default=None)

    def spec(self) -> Spec:
        return parse(self.text, outputs=self.outputs, **self.tensors)


def _a(dtype: str, values: Any) -> np.ndarray:
    return np.array(values, dtype)


def _nibbles(*rows: list[int]) -> np.ndarray:
    """Pack rows of codes, low nibble first."""
    padded = [[c & 15 for c in row] + [0] * (len(row) % 2) for row in rows]
    return np.array([[low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)] for row in padded], np.uint8)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _quantized(name: str, k: int, group: int, w: np.ndarray, dtype: str, right: Any, scale: Any, zero: Any = None, where: str = "") -> Case:
    """y[n] of a row of ones with group-quantized rows ``w``."""
    s = np.array(scale, np.float32)
    tensors = {"w": (dtype, (len(w), w.shape[1] * (2 if dtype in ("u4", "i4") else 1))), "s": ("f32", s.shape), "x": ("f32", (k,))}
    arguments: dict[str, Any] = {"w": w, "s": s, "x": _ones(k)}
    code = "f32(w[n, k])"
    if zero is not None:
        arguments["z"] = np.array(zero, np.float32)
        tensors["z"] = ("f32", arguments["z"].shape)
        code = f"({code} - z[n, k//{group}])"
    return Case(name, f"y[n] += x[k] * ({code} * s[n, k//{group}]) where k < {k}{where}", tensors, arguments, _a("f4", right))


_PADDED = np.concatenate([_nibbles([1] * 40, [2] * 40), np.full((2, 12), 0xFF, np.uint8)], axis=1)
_SHARED = {"x": ("f32", (2,)), "w": ("u4", (1, 2))}

QUANTIZED = (
    _quantized("padding nibbles never reach the sum", 40, 32, _PADDED, "u4", [112, 224], [[1, 10], [1, 10]]),
    _quantized("a last group that is short", 288, 256, _a("u1", np.ones((1, 288))), "u8", [320], [[1, 2]]),
    _quantized("one scale for a row", 128, 128, _a("u1", np.full((1, 128), 2)), "u8", [128], [[0.5]]),
    _quantized("a group longer than the row", 128, 500, _a("u1", np.full((1, 128), 2)), "u8", [128], [[0.5]]),
    _quantized("zero points of groups", 96, 32, _a("u1", np.full((2, 96), 4)), "u8", [192, -96], np.ones((2, 3)), [[1, 2, 3], [4, 5, 6]]),
    _quantized("a zero point that is no integer", 32, 32, _a("u1", np.full((1, 32), 4)), "u8", [48], [[1]], [[2.5]]),
    Case("low nibble first", "y[n] += x[k] * f32(w[n, k])", _SHARED, {"x": _a("f4", [1, 100]), "w": _a("u1", [[0x21]])}, _a("f4", [201])),
    Case("high nibble first, by its subscript", "y[n] += x[k] * f32(w[n, k + 1 - 2*(k % 2)])", _SHARED, {"x": _a("f4", [1, 100]), "w": _a("u1", [[0x21]])}, _a("f4", [102])),
    Case("fifteens as u4", "y[n] += f32(w[n, k])", {"w": ("u4", (1, 2))}, {"w": _a("u1", [[0xFF]])}, _a("f4", [30])),
    Case("fifteens as i4", "y[n] += f32(w[n, k])", {"w": ("i4", (1, 2))}, {"w": _a("u1", [[0xFF]])}, _a("f4", [-2])),
    Case("fifteens with offset 8", "y[n] += f32(i8(w[n, k]) - 8)", {"w": ("u4", (1, 2))}, {"w": _a("u1", [[0xFF]])}, _a("f4", [14])),
    Case("odd rows of nibbles", "y[n] += f32(w[n, k])", {"w": ("u4", (3, 5))}, {"w": _nibbles(*np.arange(15).reshape(3, 5).tolist())}, _a("f4", [10, 35, 60])),
    Case("integer zero points on both sides", "y += (i32(a[i]) - 2) * (i32(b[i]) - 4)", {"a": ("u8", (2,)), "b": ("u8", (2,))},
         {"a": _a("u1", [3, 4]), "b": _a("u1", [5, 6])}, _a("i4", 5)),
    *(Case(f"a group of {value} quantized on the fly",
           "m max= abs(x[i])\nd = m / 127.0\nq[i] = select(d == 0.0, 0.0, rint(x[i] / d))\ny += q[i] * d * w[i]", {"x": ("f32", (4,)), "w": ("f32", (4,))},
           {"x": np.full(4, value, "f4"), "w": np.zeros(4, "f4")}, _a("f4", 0)) for value in (0.0, 1e-38)),
)  # fmt: skip

ARITHMETIC = (
    Case("no rows", "y[i, j] += a[i, k] * b[k, j]", {"a": ("f32", ("m", "k")), "b": ("f32", ("k", "n"))}, {"a": _ones(0, 8), "b": _ones(8, 4)}, _ones(0, 4)),
    Case("nothing to sum", "y[i, j] += a[i, k] * b[k, j]", {"a": ("f32", ("m", "k")), "b": ("f32", ("k", "n"))}, {"a": _ones(3, 0), "b": _ones(0, 4)}, 0 * _ones(3, 4)),
    Case("no columns", "y[i, j] += a[i, k] * b[k, j]", {"a": ("f32", ("m", "k")), "b": ("f32", ("k", "n"))}, {"a": _ones(3, 8), "b": _ones(8, 0)}, _ones(3, 0)),
    Case("u8 times i8 needs 17 bits", "y += i32(a[i]) * i32(b[i])", {"a": ("u8", (2,)), "b": ("i8", (2,))}, {"a": _a("u1", [211, 171]), "b": _a("i1", [71, 107])}, _a("i4", 33278)),
    Case("-128 times -1", "y += i32(a[i]) * i32(b[i])", {"a": ("i8", (32,)), "b": ("i8", (32,))}, {"a": np.full(32, -128, "i1"), "b": np.full(32, -1, "i1")}, _a("i4", 4096)),
    Case("a sum of f16 past 2048", "y += x[i] * s", {"x": ("f16", (11008,)), "s": ("f16", ())}, {"x": np.ones(11008, "f2"), "s": _a("f2", 1)}, _a("f2", 11008)),
    Case("small beside large", "y += x[i] * w[i]", {"x": ("f32", (32,)), "w": ("f32", (32,))}, {"x": _a("f4", [1000] + [1] * 31), "w": _a("f4", [0] + [1] * 31)}, _a("f4", 31)),
    Case("max of negatives", "y max= x[i]", {"x": ("f32", (2,))}, {"x": _a("f4", [-5, -2])}, _a("f4", -2)),
    Case("max with a nan", "y max= x[i]", {"x": ("f32", (3,))}, {"x": _a("f4", [1, NAN, 3])}, _a("f4", NAN)),
    Case("softmax of -inf", "m max= x[i]\ne[i] = exp(x[i] - m)\nt += e[i]\ny[i] = e[i] / t", {"x": ("f32", (2,))}, {"x": _a("f4", [-INF, -INF])}, _a("f4", [NAN, NAN])),
    Case("fills of f32", "y[0] = -inf\ny[1] = nan\ny[2] = 1e-45", {}, {}, _a("f4", [-INF, NAN, 1e-45])),
    Case("fills of i64", "y[0] = 16777217\ny[1] = -9223372036854775808", {}, {}, _a("i8", [16777217, -9223372036854775808])),
    Case("a sum that starts at 5", "y += x[i]", {"x": ("f32", (100,)), "y": ("f32", ())}, {"x": _ones(100), "y": _a("f4", 5)}, _a("f4", 105)),
    Case("integer division", "q[i] = a[i] // b[i]\nr[i] = a[i] % b[i]", {"a": ("i32", (7,)), "b": ("i32", (7,))},
         {"a": _a("i4", [7, -7, 7, -7, 5, -(2**31), -(2**31)]), "b": _a("i4", [2, 2, -2, -2, 0, -1, 0])},
         (_a("i4", [3, -4, -4, 3, 0, -(2**31), 0]), _a("i4", [1, 1, -1, -1, 0, 0, 0]))),
    Case("integers wrap", "y[i] = a[i] * a[i] + a[i]", {"a": ("i8", (3,))}, {"a": _a("i1", [100, -128, 11])}, _a("i1", [116, -128, -124])),
    Case("nibbles wrap", "y[i] = i4(i8(w[i])) - i4(1)", {"w": ("i4", (2,))}, {"w": _a("u1", [0x08])}, _a("u1", [0xF7])),
    Case("float to integer", "y[i] = i8(x[i])", {"x": ("f32", (6,))}, {"x": _a("f4", [1.9, -1.9, 300, -300, NAN, INF])}, _a("i1", [1, -1, 127, -128, 0, 127])),
    Case("float to 64 bits", "y[i] = i64(x[i])", {"x": ("f32", (3,))}, {"x": _a("f4", [1e30, -1e30, 2.0**62])}, _a("i8", [2**63 - 1, -(2**63), 2**62])),
    Case("halves round to even", "y[i] = rint(x[i])", {"x": ("f32", (4,))}, {"x": _a("f4", [0.5, 1.5, -0.5, 2.5])}, _a("f4", [0, 2, 0, 2])),
)  # fmt: skip

AFFINE = (
    Case("floor and remainder of negatives", "a[d] = (d - 3)//4 + 1 where d < 8\nb[d] = (d - 10) % 5 where d < 1", {}, {},
         (_a("i8", [0, 0, 0, 1, 1, 1, 1, 2]), _a("i8", [0]))),
    Case("nested floors", "y[d] = (d - (d + 2))//8 % 8 + d % 12 % 8 where d < 14", {}, {}, _a("i8", [7 + d % 12 % 8 for d in range(14)])),
    Case("a reversed copy", "y[i] = x[7 - i] where i < 8", {"x": ("f32", (8,))}, {"x": np.arange(8, dtype="f4")}, np.arange(8, dtype="f4")[::-1]),
    Case("a filled and summed cell", "y += x[k]", {"x": ("f32", (6,))}, {"x": _ones(6)}, _a("f4", 6)),
    Case("read at half the rate", "a[i] = x[i] + 1.0\nb[i] = a[i//2] where i < 8", {"x": ("f32", (4,))}, {"x": np.arange(4, dtype="f4")}, _a("f4", [1, 1, 2, 2, 3, 3, 4, 4])),
    Case("a diagonal", "y[i] = a[i, i]", {"a": ("f32", (4, 4))}, {"a": np.arange(16, dtype="f4").reshape(4, 4)}, _a("f4", [0, 5, 10, 15])),
    Case("broadcast of nothing", "y[i, j] = a[i, j] + b[0, 0]", {"a": ("f32", (2, "n")), "b": ("f32", (1, 1))}, {"a": _ones(2, 0), "b": _ones(1, 1)}, _ones(2, 0)),
    Case("strided conv of a longer input", "y[i] += x[2*i + r] * w[r] where i < 4", {"x": ("f32", (10,)), "w": ("f32", (3,))},
         {"x": np.arange(10, dtype="f4"), "w": _a("f4", [1, 10, 100])}, _a("f4", [210, 432, 654, 876])),
    Case("overlapping cells add up", "y[i + j] += x[i] * w[j]", {"x": ("f32", (3,)), "w": ("f32", (2,))}, {"x": _a("f4", [1, 2, 3]), "w": _a("f4", [1, 10])}, _a("f4", [1, 12, 23, 30])),
    Case("the later statement wins", "y[i] = x[i]\ny[i] = 9.0 where i < 1", {"x": ("f32", (2,))}, {"x": _a("f4", [1, 2])}, _a("f4", [9, 2])),
    Case("Fibonacci", "y[0] = 1\ny[1] = 1\ny[i] = y[i - 1] + y[i - 2] where 2 <= i < 10", {}, {}, _a("i8", [1, 1, 2, 3, 5, 8, 13, 21, 34, 55])),
    Case("a parameter by name", "y[i] = i + n where i < n", {}, {"n": 3}, _a("i8", [3, 4, 5])),
)  # fmt: skip

CASES: tuple[Case, ...] = (*QUANTIZED, *ARITHMETIC, *AFFINE)

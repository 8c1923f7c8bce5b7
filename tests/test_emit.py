"""Vector code against the interpreter: every kind of access, type and operator, at several widths, on guarded arrays."""

from __future__ import annotations

import ctypes
import faulthandler

import numpy as np
import pytest
from emitting import Built, Case, call, check, compile_all, in_child, inputs_of, runnable, step, vector

from polyq.emit.module import Module

SHAPES = tuple((t, n) for t, n in (("c", 8), ("sse", 4), ("sse", 16), ("avx2", 8), ("avx2", 16)) if runnable(t))
FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")


def _elementwise(dtype: str) -> Case:
    body = "y[i] = x[i] * z[i] + x[i] - z[i]\nv[i] = max(x[i], z[i])\nu[i] = min(x[i], abs(z[i]))\nt[i] = select(x[i] < z[i], x[i], -z[i])"
    steps = tuple(vector(op, "i") for op in ("y", "v", "u", "t"))
    return Case(f"elementwise {dtype}", body, {"x": (dtype, (37,)), "z": (dtype, (37,))}, steps)


SPECIAL = np.array([np.nan, 1.0, -1.0, np.inf, -np.inf, 0.0, -0.0, 2.5, np.nan, 3.0, 1e-45], np.float32)
ACCESSES = (
    Case("copy with a tail", "y[i] = x[i]", {"x": ("f32", ("n",))}, (vector("y", "i"),), {"n": 37}),
    Case("copy of nothing", "y[i] = x[i]", {"x": ("f32", ("n",))}, (vector("y", "i"),), {"n": 0}),
    Case("rows", "y[i, j] = x[i, j] + b[j]", {"x": ("f32", ("m", "n")), "b": ("f32", ("n",))}, (vector("y", "j"),), {"m": 3, "n": 21}),
    Case("a whole loop as a vector", "y[i, j] = x[i, j] + 1.0", {"x": ("f32", ("m", "n"))}, (step("mark", op="y", axis="j", kind="vector"),), {"m": 3, "n": 45}),
    Case("reversed read", "y[i] = x[36 - i] where i < 37", {"x": ("f32", (37,))}, (vector("y", "i"),)),
    Case("reversed write", "y[36 - i] = x[i] where i < 37", {"x": ("i16", (37,))}, (vector("y", "i"),)),
    Case("reversed halves", "y[36 - i] = x[36 - i] + x[i] where i < 37", {"x": ("f16", (37,))}, (vector("y", "i"),)),
    Case("every third", "y[i] = x[3*i + 1] where i < 25", {"x": ("f64", (75,))}, (vector("y", "i"),)),
    Case("every second written", "y[2*i] = x[i] where i < 25", {"x": ("f32", (25,))}, (vector("y", "i"),)),
    Case("columns", "y[j, i] = x[i, j]", {"x": ("f32", (19, 35))}, (vector("y", "i"),)),
    Case("diagonal", "y[i] = x[i, i]", {"x": ("i32", (21, 21))}, (vector("y", "i"),)),
    Case("floor and mod", "y[i] = x[i // 3] + x[i % 5] where i < 37", {"x": ("f32", (13,))}, (vector("y", "i"),)),
    Case("broadcast", "y[i, j] = x[i] * b", {"x": ("f32", (3,)), "b": ("f32", ()), "y": ("f32", (3, 21))}, (vector("y", "j"),)),
    Case("triangle", "y[i, j] = x[i, j] where j <= i", {"x": ("f32", (19, 19))}, (vector("y", "j"),)),
    Case("index values", "y[i, j] = x[i, j] + f32(10*i + j)\nz[i, j] = i32(j // 3 - 5*i)\nu[i, j] = u8(37*j)", {"x": ("f32", (4, 21)), "z": ("i32", (4, 21)), "u": ("u8", (4, 21))},
         tuple(vector(op, "j") for op in "yzu")),
    Case("two threads", "y[i, j] = x[i, j] * 2.0", {"x": ("f32", ("m", 300))}, (vector("y", "j"), step("mark", op="y", axis="i", kind="parallel")), {"m": 200}),
    Case("recurrence beside lanes", "y[i, t] = x[i, t]\ny[i, t] = 0.5 * y[i, t - 1] + x[i, t] where t >= 1", {"x": ("f32", (21, 5))}, (vector("y", "i"),)),
)  # fmt: skip
BOOLS = (
    Case("bools", "b[i] = x[i] < z[i]\nc[i] = b[i] and not q[i]\nd[i] = (b[i] or q[i]) == c[i]\ne[i] = b[i] < q[i]\nf[i] = q[i] >= c[i]\nu[i] = select(q[i], x[i], z[i])\nw[i] = i32(q[i]) + i32(x[i] == z[i])\nh[i] = bool(x[i])\ng[i] = f64(q[i])",
         {"x": ("f32", (37,)), "z": ("f32", (37,)), "q": ("bool", (37,))}, tuple(vector(op, "i") for op in "bcdefuwhg")),
    Case("bools of wide and narrow lanes", "b[i] = x[i] < z[i]\nc[i] = p[i] <= q[i]\nu[i] = select(p[i] != q[i], x[i], z[i])\nv[i] = select(x[i] >= z[i], p[i], q[i])",
         {"x": ("f64", (37,)), "z": ("f64", (37,)), "p": ("i8", (37,)), "q": ("i8", (37,))}, tuple(vector(op, "i") for op in "bcuv")),
)  # fmt: skip
FOLDS = (
    *(
        Case(f"fold {dtype}", "s[i] += x[i, j]\nl[i] min= x[i, j]\nh[i] max= x[i, j]\nt += x[i, j]", {"x": (dtype, (3, 21))},
             (*(vector(op, "j") for op in "slht"),))
        for dtype in ("f32", "f64", "i8", "i32", "u64", "i16")
    ),
    Case("fold of products", "p[i] *= x[i, j]", {"x": ("f64", (3, 21))}, (vector("p", "j"),), arrays={"x": np.tile(np.array([1.0, 2.0, -1.0]), (3, 7))}),
    Case("fold of nan", "l min= x[i]\nh max= x[i]\nm[i] = max(x[i], z[i])\nn[i] = min(x[i], z[i])", {"x": ("f32", (11,)), "z": ("f32", (11,))},
         (vector("l", "i"), vector("h", "i"), vector("m", "i"), vector("n", "i")), arrays={"x": SPECIAL, "z": SPECIAL[::-1].copy()}),
    Case("columns summed", "s[j] += x[i, j]", {"x": ("f32", (5, 21))}, (vector("s", "j"),)),
    Case("lanes that meet", "s[j // 4] += x[i, j]", {"x": ("f32", (5, 24)), "s": ("f32", (6,))}, (vector("s", "j"),)),
)  # fmt: skip
PACKED = (
    *(Case(f"packed {dtype}", f"y[i, j] = {dtype}(x[i, j])\nz[i, j] = i32(w[i, j])\nv[i, 2*j] = w[i, j]", {"x": ("i16", (3, 21)), "w": (dtype, (3, 21)), "y": (dtype, (3, 21)), "v": (dtype, (3, 41)), "z": ("i32", (3, 21))},
            (vector("y", "j"), vector("z", "j"), vector("v", "j"), step("mark", op="y", axis="i", kind="parallel"))) for dtype in ("u4", "i4", "u2", "i2")),
    Case("packed totals", "s[j] += w[i, j]\nh[j] max= w[i, j]\np[i] += w[i, j]", {"w": ("i4", (5, 21))}, (vector("s", "j"), vector("h", "j"), vector("p", "j"))),
    *(Case(f"fields of {dtype}", f"y[n, i, l] = i32(w[n, l*{f} + i]) where n < 3, i < {f}, l < 16", {"w": (dtype, (3, 16 * f)), "y": ("i32", (3, f, 16))},
            (vector("y", "l"), step("mark", op="y", axis="i", kind="unroll"))) for dtype, f in (("u8", 4), ("i8", 4), ("u4", 8), ("i4", 8), ("u2", 16), ("i2", 16), ("u16", 2), ("i16", 2))),
    Case("fields past the end", "y[l] = f32(w[4*l]) where l < 8", {"w": ("u8", (29,))}, (vector("y", "l"),)),
)  # fmt: skip
CASTS = tuple(
    Case(f"casts from {source}", "\n".join(f"y{i}[i] = {to}(x[i])" for i, to in enumerate((*FLOATS, *INTS, "u4", "i4", "bool"))),
         {"x": (source, (21,))}, tuple(vector(f"y{i}", "i") for i in range(15)),
         arrays={"x": _values} if (_values := {"f32": np.float32([0.5, -0.5, 1e10, -1e10, np.nan, np.inf, -np.inf, 255.9, 256.5, -129.0, 65519.9, 65520.0, 7.5, 8.5, 3e9, 9.3e18, -9.3e18, 1.9e19, 1.00390625, 1.01171875, 0.0]),
              "f64": np.float64([0.5, 1e300, -1e300, np.nan, np.inf, 2**31 - 0.5, -(2**31) - 0.5, 1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-45, 1 + 3 * 2**-8 - 2**-45, 2**63, -(2**63), 2**64, 1e-8, 6e-8, 2.98e-8, -3.1, 3.9, 200, -200, 1e-320]),
              "i64": np.array([0, -1, 2**62 + 1, -(2**63), 2**53 + 1, 16777217, 257, 259, -257, 65520, 65519, 1000003, 128, 127, -129, 32768, -32769, 2**31, -(2**31) - 1, 7, 8], np.int64),
              "i32": np.array([0, -1, 16777217, 16777219, 257, 259, 33023, 33024 + 128, 65520, 2**31 - 1, -(2**31), 1, 2, 3, 4, 5, 2049, 2051, 8, -8, -9], np.int32)}.get(source)) is not None else {})
    for source in ("f32", "f64", "f16", "bf16", "i64", "i32", "u8", "i8", "u4", "bool")
)  # fmt: skip
_WHOLE = np.arange(-10, 11)
MATH = (
    *(Case(f"functions of {dtype}", "a[i] = sqrt(abs(x[i]))\nb[i] = floor(x[i] / 3)\nc[i] = rint(x[i] / 2)\nd[i] = abs(x[i])\ne[i] = -x[i] / 8",
           {"x": (dtype, (37,))}, tuple(vector(op, "i") for op in "abcde")) for dtype in FLOATS),
    *(Case(f"transcendental {dtype}", "a[i] = exp(x[i] / 4)\nb[i] = log(abs(x[i]) + 1)\nc[i] = tanh(x[i] / 8)\nd[i] = erf(x[i] / 8)",
           {"x": (dtype, (21,))}, tuple(vector(op, "i") for op in "abcd"), ulps=8) for dtype in FLOATS),
    *(Case(f"integer division {dtype}", "q[i, j] = x[i] // z[j]\nr[i, j] = x[i] % z[j]\nc[i, j] = x[i] // 3 where j < 21", {"x": (dtype, (21,)), "z": (dtype, (21,))},
           tuple(vector(op, "j") for op in "qrc"), arrays={"x": np.where(_WHOLE == -10, np.iinfo(dtype.replace("u", "uint").replace("i", "int") if dtype[0] == "i" else f"uint{dtype[1:]}").min, _WHOLE).astype(f"{'u' * (dtype[0] == 'u')}int{dtype[1:]}"), "z": _WHOLE.astype(f"{'u' * (dtype[0] == 'u')}int{dtype[1:]}")})
      for dtype in ("i8", "i32", "i64", "u8", "u32")),
)  # fmt: skip


@pytest.mark.parametrize(
    "cases",
    [ACCESSES, tuple(map(_elementwise, (*FLOATS, *(d for d in INTS if d[0] == "i")))), BOOLS, PACKED, MATH],
    ids=["accesses", "types", "bools", "packed", "math"],
)
def test_vectors(cases, tmp_path):
    assert check(cases, tmp_path, SHAPES, "strict") == len(cases) * len(SHAPES)


BEYOND = """
#include <stdint.h>
int kernel_x(const void *runtime, void *const *buffers, const int64_t *params, int threads) {
  (void)runtime; (void)params; (void)threads;
  ((float *)buffers[1])[0] = ((const volatile float *)buffers[0])[AT];
  return 0;
}
"""


@pytest.mark.parametrize(("at", "at_end", "inside"), [(36, True, True), (37, True, False), (0, False, True), (-1, False, False)])
def test_guard_pages_see_one_element_too_far(at, at_end, inside, tmp_path):
    case = Case("beyond", "y[i] = x[i]", {"x": ("f32", (37,))})
    module = Module("kernel_x", BEYOND.replace("AT", str(at)), ("x", "y"), ())
    built = Built(case, module, "c", 1, "strict")
    library = compile_all([built], tmp_path)[0]

    def run():
        faulthandler.disable()  # in the child: the crash that is meant leaves no trace among the dots
        return call(ctypes.CDLL(str(library)), built, inputs_of(case), 1, at_end)["y"][0]

    if inside:
        assert in_child(run) == inputs_of(case)["x"][at]
    else:
        with pytest.raises(AssertionError, match="a byte outside an array was touched"):
            in_child(run)


def test_folds(tmp_path):
    check(FOLDS, tmp_path, SHAPES, "reassoc")


def test_casts(tmp_path):
    check(CASTS, tmp_path, [(t, n) for t, n in SHAPES if n in (4, 8)], "strict")


def test_fast_functions(tmp_path):
    check([c for c in MATH if "transcendental" in c.name], tmp_path, SHAPES, "reassoc")

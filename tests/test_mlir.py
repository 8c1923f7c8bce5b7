"""Programs in MLIR against numpy. The programs stand in tests/mlir; what each computes is said here."""

from pathlib import Path

import numpy as np
import pytest

import polyq
from polyq.affine.arrays import random_arrays
from polyq.affine.dtypes import info

pytest.importorskip("xdsl")

FOLDER = Path(__file__).parent / "mlir"


def dequantized(codes, scales, zeros=0.0):
    return (
        codes.view(np.uint8).astype("f8") - np.reshape(zeros, (*np.shape(zeros)[:2], 1) if np.ndim(zeros) else ())
    ) * scales.reshape(*scales.shape[:2], 1)


def layer(codes, x, scales, zeros):
    return np.einsum("bmgj,ngj->bmn", x, dequantized(codes, scales, zeros))


def open_layer(codes, x, cst, v0, v2):
    return layer(codes, x, cst, v0) + v2


def nibbles(low_first, wide, x):
    bytes_ = low_first.view(np.uint8)
    fields = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(3, 8)
    codes = np.stack([wide & 15, wide >> 4], -1).reshape(3, 8)
    return fields @ x.astype("f8"), codes @ x.astype("f8"), np.where(codes > 7, codes - 16.0, codes) @ x.astype("f8")


def pooled(a, window, strides, function):
    """Apply ``function`` over windows of the last two axes."""
    views = np.lib.stride_tricks.sliding_window_view(a, window, (-2, -1))
    return function(views[..., :: strides[0], :: strides[1], :, :], (-2, -1))


def convolved(image, kernel, stride=1):
    """Return the convolution of a (c, h, w) image with a (f, c, kh, kw) kernel, as in the layers of networks."""
    views = np.lib.stride_tricks.sliding_window_view(image, kernel.shape[2:], (1, 2))[:, ::stride, ::stride]
    return np.einsum("chwij,fcij->fhw", views, kernel)


def convolutions(nhwc, hwcf, nchw, fchw, hwc, line, taps):
    first = convolved(nhwc[0].transpose(2, 0, 1), hwcf.transpose(3, 2, 0, 1), 2).transpose(1, 2, 0)[None]
    spread = np.zeros((5, 4, 2))  # dilations of 2 and 3: the taps stand apart
    spread[::2, ::3] = hwc
    views = np.lib.stride_tricks.sliding_window_view(nhwc[0, :, :7], (5, 4), (0, 1))
    deep = np.einsum("hwcij,ijc->hwc", views, spread)[None]
    return first, convolved(nchw[0], fchw)[None], deep, np.correlate(line, taps, "valid")


def blocks(a, rows, columns, value):
    """Pack a matrix by tiles: (columns/tile, rows/tile, tile of columns, tile of rows)."""
    high, wide = -(-a.shape[0] // rows), -(-a.shape[1] // columns)
    full = np.full((high * rows, wide * columns), value, a.dtype)
    full[: a.shape[0], : a.shape[1]] = a
    return full.reshape(high, rows, wide, columns).transpose(2, 0, 3, 1)


def unblocked(a):
    return a.transpose(1, 3, 0, 2).reshape(a.shape[1] * a.shape[3], a.shape[0] * a.shape[2])


def inserted(a, b, c):
    made = a.copy()
    made[1:6:2, 2:6:3] = b
    made[4] = c
    return made


def row_tails(codes, scales, x):
    full = np.stack([codes & 15, codes >> 4], -1).reshape(2, 64)[:, :40]
    return (full * np.repeat(scales, 32, 1)[:, :40]) @ x


def inserted_twice(a, b):
    doubled = a + a
    changed = doubled.copy()
    changed[1:3] = b
    return changed, doubled - changed


def vectors(a, x, y, s, t, u):
    a, x, y = (v.astype("i4") for v in (a, x, y))
    bits = (a & 255) @ (x & 255)
    return s + a @ x, t + y @ a, u + x @ x, (s + bits).reshape(3, 1)


def matmuls(a, b, at, bt):
    return 1 + a @ b, 1 + at.T @ b, 1 + a @ bt.T, 1 + at.T @ bt.T


def poolings(a, b):
    channels = a.transpose(0, 3, 1, 2)
    largest, total = (pooled(channels, (2, 2), (2, 2), f).transpose(0, 2, 3, 1) for f in (np.max, np.sum))
    return largest, total, pooled(b, (3, 2), (1, 1), np.max)


#: file, function -> what it computes, from the inputs in order
PROGRAMS = {
    ("quantized", "layer"): layer,
    ("quantized", "open"): open_layer,
    ("quantized", "grouped_result"): lambda codes, x: np.einsum("bn,ngj->bgj", x, codes.astype("f8")),
    ("quantized", "collapsed"): lambda codes, scales, x: x @ dequantized(codes, scales).reshape(6, 12).T,
    ("quantized", "packed"): lambda codes, scales, x: np.einsum("bmgj,ngj->bmn", x, dequantized(codes, scales)),
    ("quantized", "nibbles"): nibbles,
    ("quantized", "integers"): lambda a, b: np.int32((a.astype("i4") - 2) @ (b.astype("i4") - 4)),
    ("quantized", "constant_zeros"): lambda x: np.array([4 * 3 - 6, 4 * 3 - 15]) * x.sum(1),
    ("shapes", "collapse_and_back"): lambda a: np.exp(a.reshape(3, 8)),
    ("shapes", "expanded_result"): lambda a: (a + a).reshape(1, 4, 6, 1),
    ("shapes", "dynamic"): lambda a: -a.reshape(-1, 2, 4),
    ("shapes", "transposed"): lambda a, b: a.transpose(2, 0, 1) * b,
    ("shapes", "slices"): lambda a: (a[1:6:2, 2:6:3], a[7], a[6:7, 5:]),
    ("shapes", "inserted"): inserted,
    ("shapes", "inserted_twice"): inserted_twice,
    ("shapes", "padded"): lambda a: np.pad(a, ((1, 2), (0, 0)), constant_values=2.5),
    ("shapes", "joined"): lambda a, b: np.concatenate([a, b]).reshape(10, 10).sum(1),
    ("shapes", "packed_with_padding"): lambda a: blocks(a, 3, 2, -1.0),
    ("shapes", "unpacked_in_part"): lambda a: unblocked(a)[:5, :7],
    ("shapes", "there_and_back"): lambda a: a * a,
    ("shapes", "returned"): lambda a: (a + a, a + a, a, (a + a)[1]),
    ("shapes", "made"): lambda x, n: (
        np.full((2, 3), x), np.array([x, x * 2, 2]), np.arange(n)[:, None] * 10 + np.arange(2)
    ),
    ("shapes", "constants"): lambda: (
        np.array([[1, -2, 3], [4, 5, 5]]), np.array([-np.inf, 1.5, np.inf, -0.25]), np.array([1, 0, 1], bool),
        np.array([-1, -128]),
    ),
    ("shapes", "empty"): lambda x, w: x @ w.T,
    ("corners", "floors"): lambda a, b: (a[[0, 0, 0, 1, 1, 1, 1, 2]], b[::-1], np.array([0, 1, 2, 3, 4, 0, 1, 2])),
    ("corners", "diagonal"): lambda a, b: (np.diag(a), np.tile(b, (4, 1)), np.diag(np.diag(a))),
    ("corners", "row_tails"): row_tails,
    ("corners", "odd_rows"): lambda codes: np.stack([codes & 15, codes >> 4], -1).reshape(3, 6)[:, :5].sum(1, "i4"),
    ("corners", "unit_reduction"): lambda a: a[:, 0] + 2,
    ("corners", "halves"): lambda a: a.sum(1).astype("f2").astype("f8"),
    ("corners", "swapped"): lambda a, b: (np.roll(a + b, 2), a + b),
    ("named", "matmuls"): matmuls,
    ("named", "batches"): lambda a, b, bt, v: (
        a @ b, a @ bt.transpose(0, 2, 1), (a @ b).sum(0), np.einsum("bmk,bk->bm", a, v), np.einsum("bk,bkn->bn", v, b)
    ),
    ("named", "vectors"): vectors,
    ("named", "tiled"): lambda a, b, c, d: (np.einsum("mkac,nkbc->mnab", a, b), np.einsum("ik,ki->i", c, d)),
    ("named", "convolutions"): convolutions,
    ("named", "poolings"): poolings,
    ("named", "elementwise"): lambda a, b, c: (a / b, np.maximum(a / b, b), np.where(c, a, b), a, np.exp(a.T)),
    ("named", "regions"): lambda a, b, start: (a * b, np.tanh(a), np.maximum(start, a.max(1)), a.prod(0)),
}  # fmt: skip


def case(file, function, seed=0):
    """Return the spec, its arguments, and what numpy makes of them."""
    spec = polyq.from_mlir(FOLDER / f"{file}.mlir", function=function)
    params = {p: 4 for p in spec.params}
    arguments = random_arrays(spec, params, seed)
    free = {p: n for p, n in params.items() if not any(p in t.shape for t in spec.inputs)}
    wide = [a if a.dtype.kind != "f" else a.astype("f8") for a in arguments.values()]
    expected = PROGRAMS[file, function](*wide, *free.values())
    return spec, {**arguments, **free}, expected if isinstance(expected, tuple) else (expected,)


def check(spec, results, expected):
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(expected) == len(spec.outputs)
    for tensor, got, wanted in zip(spec.outputs, results, expected, strict=True):
        assert got.shape == np.shape(wanted)
        assert info(tensor.dtype).kind == got.dtype.kind
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("file", "function"), PROGRAMS, ids=lambda p: p)
def test_programs_equal_numpy(file, function):
    spec, arguments, expected = case(file, function)
    check(spec, polyq.interpret(spec, **arguments), expected)


@pytest.mark.parametrize(
    ("file", "function"),
    [("quantized", f) for f in ("layer", "open", "grouped_result", "collapsed", "packed", "nibbles")]
    + [("shapes", f) for f in ("inserted_twice", "packed_with_padding", "constants", "returned")]
    + [("corners", f) for f in ("floors", "diagonal", "row_tails", "odd_rows", "swapped")]
    + [("named", f) for f in ("vectors", "convolutions", "poolings")],
    ids=lambda p: p,
)
def test_kernels_equal_numpy(file, function):
    spec, arguments, expected = case(file, function, seed=1)
    kernel = polyq.build(spec)
    check(spec, kernel(**arguments), expected)
    assert kernel.certificate.ok


@pytest.mark.parametrize(("file", "function"), PROGRAMS, ids=lambda p: p)
def test_written_and_read_back(file, function):
    spec = polyq.from_mlir(FOLDER / f"{file}.mlir", function=function)
    assert polyq.from_mlir(spec.to_mlir()) == spec


def stock(text):
    """Parse and verify a module with xdsl alone."""
    from xdsl.context import Context
    from xdsl.dialects import get_all_dialects
    from xdsl.parser import Parser

    context = Context()
    for name, factory in get_all_dialects().items():
        context.register_dialect(name, factory)
    module = Parser(context, text).parse_module()
    module.verify()


#: programs in index notation, with what MLIR has no place for: unsigned types, names, guards, updates, parameters
WRITTEN = [
    ("y[m, n] += x[m, k] * w[n, k]", {"x": ("f32", ("m", 8)), "w": ("f32", (4, 8))}),
    ("d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]", {"w": ("u8", (6, 3, 4)), "z": ("f32", (6, 3)), "s": ("f32", (6, 3)), "x": ("f32", ("m", 3, 4))}),
    ("y[o] += x[2*o + k] * w[k] where o < 4", {"x": ("f32", (10,)), "w": ("f32", (3,))}),
    ("m[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - m[i])\ns[i] += e[i, j]\ny[i, j] = e[i, j] / s[i]", {"x": ("f32", ("n", 8))}),
    ("y[i] += a[i, k] * x[k] where k <= i", {"a": ("f32", (8, 8)), "x": ("f32", (8,))}),
    ("y[i] += x[i]", {"y": ("f32", (8,)), "x": ("f32", (8,))}),
    ("y[i] = i32(a[i]) // i32(u8(b[i])) + i32(i) % 3", {"a": ("u8", (8,)), "b": ("i8", (8,))}),
    ("y[i] = select(x[i] > 0.1, x[i], -x[i]) * 0.3", {"x": ("f32", (8,))}),
    ("y[i] += f32(w[i, k]) * 0.5", {"w": ("u4", (3, 8))}),
    ("y[i] = x[i]\nz[i] = y[7 - i] + 1.0 where i < 8\nz[i] = z[i] * 2.0 where i < 3", {"x": ("f32", (8,))}),
    ("y[i + j] += x[i] * w[j]", {"x": ("f32", (8,)), "w": ("f32", (3,))}),
    ("y += x[i]", {"x": ("f32", ("n",))}),
    ("y max= x[i]", {"x": ("u8", ("n",))}),
    ("y[n] += h[n, k] * f16(2.0)", {"h": ("f16", (4, "k"))}),
    ("y[i] = x[i] + x[i + 1] where i < n - 1", {"x": ("f32", ("n",))}),
    ("y[i] = select(not (x[i] > 0.0 and b[i]), 1.0, 0.0)", {"x": ("f32", (4,)), "b": ("bool", (4,))}),
    ("y[i] = a[i] * u16(7) + u16(i)\nz[i] = -i64(y[i]) // 3", {"a": ("u16", (5,))}),
    ("y[i] = f32(i64(i32(a[i])))", {"a": ("i8", (5,))}),
    ("y[i] = x[i] where i < 2\ny[i + 2] = z[i]", {"x": ("f32", (2,)), "z": ("f32", (3,))}),
    ("y[i] = x[i]\ny[i] = x[i - 1] * 2.0 where i >= 1", {"x": ("f32", (8,))}),
    ("y[i] += x[i + k] where i + k < 8, k < 3", {"x": ("f32", (8,)), "y": ("f32", (8,))}),
    ("y[i] = min(max(x[i], bf16(0.1)), bf16(2.0))", {"x": ("bf16", (5,))}),
    ("y[n] += x[k] * s[n, k//128]", {"x": ("f32", (100,)), "s": ("f32", (4, 1))}),
    ("y[i] = x[4*(i//2) - i + 1] where i < 2", {"x": ("f32", (2,))}),
    ("t[i, j] = a[i, j] * 2.0\ny[i, j] = t[i, j + 4] where i < 1, j < 2", {"a": ("f32", (2, 8))}),
    ("y[i, j] = t[3*i + j] where i < 1, j < 5, 3*i + j < 2", {"t": ("f32", (2,))}),
    ("y[i, j] = 5.0 where i < 3, j < 4\ny[i%3, i//3] = x[i] where i < 12, 5 - i >= 0", {"x": ("f32", (12,))}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tensors"), WRITTEN, ids=lambda p: p if isinstance(p, str) else "")
def test_index_notation_written_and_read_back(text, tensors):
    spec = polyq.parse(text, **tensors)
    module = spec.to_mlir()
    stock(module)
    assert polyq.from_mlir(module) == spec


@pytest.mark.parametrize(("file", "function"), PROGRAMS, ids=lambda p: p)
def test_what_is_written_is_read_by_xdsl_alone(file, function):
    stock(polyq.from_mlir(FOLDER / f"{file}.mlir", function=function).to_mlir())


def test_values_worked_out_by_hand():
    spec = polyq.from_mlir(FOLDER / "corners.mlir", function="row_tails")
    codes = np.full((2, 32), 0xFF, np.uint8)
    codes[:, :20] = [[0x11], [0x22]]
    ones, scales = np.ones(40, "f4"), np.array([[1, 10], [1, 10]], "f4")
    np.testing.assert_array_equal(polyq.build(spec)(codes=codes, scales=scales, x=ones), [112, 224])
    odd = polyq.from_mlir(FOLDER / "corners.mlir", function="odd_rows")
    rows = np.arange(15).reshape(3, 5)
    packed = np.pad(rows, ((0, 0), (0, 1))).reshape(3, 3, 2) @ [1, 16]
    np.testing.assert_array_equal(polyq.build(odd)(codes=packed.astype(np.uint8)), [10, 35, 60])
    layer = polyq.from_mlir(FOLDER / "quantized.mlir", function="constant_zeros")
    np.testing.assert_array_equal(polyq.build(layer)(x=np.ones((2, 32), "f4")), [192, -96])
    product = polyq.from_mlir(FOLDER / "quantized.mlir", function="integers")
    assert polyq.build(product)(a=np.array([3, 4], "i1"), b=np.array([5, 6], "i1")) == 5


def test_a_convolution_that_needs_more():
    text = """func.func @f(%x: tensor<LENGTHxf32>, %w: tensor<3xf32>, %s: tensor<4xf32>) -> tensor<4xf32> {
      %y = linalg.generic {indexing_maps = [affine_map<(o, k) -> (o * 2 + k)>, affine_map<(o, k) -> (k)>, affine_map<(o, k) -> (o)>], iterator_types = ["parallel", "reduction"]} ins(%x, %w : tensor<LENGTHxf32>, tensor<3xf32>) outs(%s : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32, %acc: f32):
        %p = arith.mulf %a, %b : f32
        %q = arith.addf %acc, %p : f32
        linalg.yield %q : f32
      } -> tensor<4xf32>
      return %y : tensor<4xf32>
    }"""
    with pytest.raises(polyq.SpecError, match="which has extent 8; an extent of 9 is needed"):
        polyq.from_mlir(text.replace("LENGTH", "8"))
    for length in (9, 10):
        spec = polyq.from_mlir(text.replace("LENGTH", str(length)))
        a = random_arrays(spec, {})
        views = np.lib.stride_tricks.sliding_window_view(a["x"], 3)[::2][:4]
        np.testing.assert_allclose(polyq.interpret(spec, **a), a["s"] + views @ a["w"], rtol=1e-5)

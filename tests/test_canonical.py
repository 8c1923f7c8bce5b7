"""Canonical forms: equal bit by bit, idempotent, and the same for programs written with and without reshapes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_specs import random_specs

import polyq
from polyq.affine.arrays import random_arrays, storage_shape
from polyq.affine.canonical import canonical, stored
from polyq.affine.numbering import Form
from polyq.affine.regroup import same_storage


def results(spec, arrays):
    found = polyq.interpret(spec, **arrays)
    return list(found) if isinstance(found, tuple) else [found]


def reshaped(spec, arrays):
    """Return the same memory in the shapes that ``spec`` declares."""
    return {
        **arrays,
        **{t.name: np.ascontiguousarray(arrays[t.name]).reshape(storage_shape(t, params(arrays))) for t in spec.inputs},
    }


def params(arrays):
    return {name: value for name, value in arrays.items() if isinstance(value, int)}


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    wrong = np.ascontiguousarray(got).reshape(-1).view(np.uint8) != np.ascontiguousarray(expected).reshape(-1).view(
        np.uint8
    )
    assert not wrong.any(), (got, expected)


def check(spec, arrays):
    """Assert that both canonical forms compute the same bits, and are canonical themselves."""
    expected = results(spec, arrays)
    made = canonical(spec)
    assert (made.inputs, made.outputs) == (spec.inputs, spec.outputs)
    assert canonical(made) == made
    for got, want in zip(results(made, arrays), expected, strict=True):
        assert got.shape == want.shape
        assert_same_bits(got, want)
    flat = stored(spec)
    assert stored(flat) == flat
    assert (flat.input_names, flat.output_names) == (spec.input_names, spec.output_names)
    assert all(map(same_storage, (*spec.inputs, *spec.outputs), (*flat.inputs, *flat.outputs)))
    for got, want in zip(results(flat, reshaped(flat, arrays)), expected, strict=True):
        assert_same_bits(got, want)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_specs(), st.integers(0, 3))
def test_canonical_forms_of_random_programs_compute_the_same_bits(program, seed):
    check(program.spec(), program.arrays(seed))


# ---- programs that reshape
class _Reshapes:
    """Statements that copy an array from shape to shape, with its cells in any order."""

    def __init__(self, draw):
        self.draw, self.lines, self.count = draw, [], 0

    def grid(self, size):
        """Draw extents whose product is ``size``."""
        shape = []
        while size > 1 and len(shape) < 3 and self.draw(st.booleans()):
            factor = self.draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
            shape.append(factor)
            size //= factor
        shape.append(size)
        if self.draw(st.booleans()):
            shape.insert(self.draw(st.integers(0, len(shape))), 1)
        return tuple(shape)

    def step(self, name, shape):
        """Copy ``name``; return the copy and its shape."""
        self.count += 1
        made = f"c{self.count}"
        form = self.draw(st.sampled_from(["read", "write", "transpose", "slice", "concatenate", "tile"]))
        dims = [f"p{k}" for k in range(len(shape))]
        ends = [f"{d} < {n}" for d, n in zip(dims, shape, strict=True)]
        if form == "transpose":
            order = self.draw(st.permutations(range(len(shape))))
            self.copy(made, [dims[k] for k in order], name, dims, ends)
            return made, tuple(shape[k] for k in order)
        if form == "slice" and max(shape) > 1:
            axis = self.draw(st.sampled_from([k for k, n in enumerate(shape) if n > 1]))
            n = shape[axis] - 1
            ends[axis] = f"{dims[axis]} < {n}"
            self.copy(made, dims, name, [f"{d} + 1" if k == axis else d for k, d in enumerate(dims)], ends)
            return made, tuple(n if k == axis else size for k, size in enumerate(shape))
        if form == "concatenate":
            axis = self.draw(st.integers(0, len(shape) - 1))
            self.copy(made, dims, name, dims, ends)
            behind = [f"{d} + {shape[axis]}" if k == axis else d for k, d in enumerate(dims)]
            self.copy(made, behind, name, dims, ends)
            return made, tuple(2 * n if k == axis else n for k, n in enumerate(shape))
        if form == "tile" and shape[0] % 2 == 0:
            self.copy(made, [f"{dims[0]}//2", *dims[1:], f"{dims[0]} % 2"], name, dims, ends)
            return made, (shape[0] // 2, *shape[1:], 2)
        other = self.grid(prod(shape))
        new = [f"q{k}" for k in range(len(other))]
        if form == "write":
            self.copy(made, digits(offset(dims, shape), other), name, dims, ends)
        else:
            self.copy(
                made,
                new,
                name,
                digits(offset(new, other), shape),
                [f"{d} < {n}" for d, n in zip(new, other, strict=True)],
            )
        return made, other

    def copy(self, target, left, source, right, ends):
        self.lines.append(f"{target}[{', '.join(left)}] = {source}[{', '.join(right)}] where {', '.join(ends)}")


def offset(dims, shape):
    return " + ".join(f"{prod(shape[k + 1 :])}*{d}" for k, d in enumerate(dims))


def digits(text, shape):
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    return [f"({text})//{s} % {n}" for s, n in zip(strides, shape, strict=True)]


@st.composite
def reshaping_programs(draw):
    b = _Reshapes(draw)
    shape = b.grid(draw(st.sampled_from([6, 8, 12, 24])))
    first, name = shape, "x"
    if draw(st.booleans()):
        dims = [f"p{k}" for k in range(len(shape))]
        b.lines.append(f"h[{', '.join(dims)}] = x[{', '.join(dims)}] * 0.5")
        name = "h"
    for _ in range(draw(st.integers(1, 3))):
        name, shape = b.step(name, shape)
    dims = [f"r{k}" for k in range(len(shape))]
    ends = ", ".join(f"{d} < {n}" for d, n in zip(dims, shape, strict=True))
    kept = [d for d in dims if draw(st.booleans())]
    form = draw(st.sampled_from(["sum", "max", "map", "out"]))
    if form == "out":
        b.lines = [line.replace(f"{name}[", "y[") if line.startswith(f"{name}[") else line for line in b.lines]
    elif form == "map":
        b.lines.append(f"y[{', '.join(dims)}] = {name}[{', '.join(dims)}] + 1.0 where {ends}")
    else:
        left = f"t[{', '.join(kept)}]" if kept else "t"
        b.lines.append(f"{left} {'+' if form == 'sum' else 'max'}= {name}[{', '.join(dims)}] where {ends}")
        if draw(st.booleans()):
            b.lines.append(
                f"y[{', '.join([*kept, 'u'])}] = t[{', '.join(kept)}] where u < 1" if kept else "y[u] = t where u < 1"
            )
    return "\n".join(b.lines), first


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshaping_programs())
def test_programs_that_reshape_compute_the_same_bits(program):
    text, shape = program
    spec = polyq.parse(text, x=("f32", shape))
    check(spec, random_arrays(spec, {}, 0))


# ---- by hand
def test_a_removed_reduction_still_combines_with_its_start_value():
    spec = polyq.parse("y[i] = 2.0 where i < 3\ny[i] += x[k, i] where k < 1", x=("f32", (1, 3)))
    made = canonical(spec)
    assert [op.dims for op in made.ops] == [("i",), ("i",)]
    assert str(made.ops[1]) == "y[i] += x[0, i]"
    x = np.array([[1, 2, 4]], np.float32)
    assert polyq.interpret(made, x=x).tolist() == [3.0, 4.0, 6.0]
    assert polyq.build(spec, numerics="strict")(x=x).tolist() == [3.0, 4.0, 6.0]


def test_a_product_and_a_maximum_over_one_element_keep_their_start_values():
    text = "p[i] = 3.0 where i < 2\np[i] *= x[i, k] where k < 1\nm[i] = 5.0 where i < 2\nm[i] max= x[i, k] where k < 1"
    spec = polyq.parse(text, x=("f32", (2, 1)), outputs=("p", "m"))
    kernel = polyq.build(spec)
    got = kernel(x=np.array([[2], [7]], np.float32))
    assert ([*got.p], [*got.m]) == ([6.0, 21.0], [5.0, 7.0])


def test_constant_subscripts_leave_temporaries():
    spec = polyq.parse("t[0, i, 0] = x[i] * x[i]\ny[i, j] = t[0, i, 0] + t[0, j, 0]", x=("f32", (4,)))
    assert str(canonical(spec)).splitlines()[1:] == ["t[i] = x[i] * x[i]", "y[i, j] = t[i] + t[j]"]


def test_the_grouped_program_is_canonical_as_it_stands():
    shapes = {"w": ("u8", (6, 4, 8)), "z": ("f32", (6, 4)), "s": ("f32", (6, 4)), "x": ("f32", ("m", 4, 8))}
    text = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
    spec = polyq.parse(text, **shapes)
    assert canonical(spec) == stored(spec) == spec


CASES = {
    # a concatenation of 51 and 49, read as 10 x 10: neither piece is a box there
    "concatenation": (
        "c[i] = a[i]\nc[51 + i] = b[i]\ny[p] += c[10*p + q] * c[10*q + p] where p < 10, q < 10",
        {"a": (51,), "b": (49,)},
    ),
    # tiles of 8 of the rows of (64, 4), collapsed
    "tiles": (
        "t[i//8, j, i % 8] = a[i, j]\nf[32*o + 8*j + i] = t[o, j, i]\ny[k] = 2.0 * f[k]",
        {"a": (64, 4)},
    ),
    # a transposed matrix is not contiguous, and is collapsed nevertheless
    "transposed": (
        "t[j, i] = a[i, j]\nf[12*j + i] = t[j, i]\nr[p, q] = f[10*p + q] where p < 6, q < 10\ny[q] += r[p, q] * b[p, q]",
        {"a": (12, 5), "b": (6, 10)},
    ),
    # a slice with a step: every other row, read as one row
    "slice": (
        "t[i, j] = a[2*i + 1, j] where i < 3\nf[7*i + j] = t[i, j]\ny += f[k] * b[k]",
        {"a": (7, 7), "b": (21,)},
    ),
    "reversed": ("t[9 - i] = a[i]\ny[p, q] = t[5*p + q] + b[p, q]", {"a": (10,), "b": (2, 5)}),
}


@pytest.mark.parametrize("name", CASES)
def test_reshapes_that_do_not_compose_into_boxes_are_right(name):
    text, shapes = CASES[name]
    spec = polyq.parse(text, **{n: ("f32", shape) for n, shape in shapes.items()})
    arrays = random_arrays(spec, {}, 3)
    check(spec, arrays)
    for got, expected in zip(
        results_of(polyq.build(spec, numerics="strict"), arrays), results(spec, arrays), strict=True
    ):
        assert_same_bits(got, expected)


def test_a_copy_of_what_is_overwritten_stays():
    text = "t[i] = a[i]\na[i] = b[i]\ny[i] = t[i] + a[i]"
    spec = polyq.parse(text, a=("f32", (6,)), b=("f32", (6,)))
    assert [op.target for op in canonical(spec).ops] == ["t", "a", "y"]
    check(spec, random_arrays(spec, {}, 3))


def results_of(kernel, arrays):
    found = kernel(**arrays)
    return list(found) if isinstance(found, tuple) else [found]


def test_tiles_are_where_numpy_says():
    text, _ = CASES["tiles"]
    a = np.arange(256, dtype=np.float32).reshape(64, 4)
    got = polyq.build(polyq.parse(text, a=("f32", (64, 4))))(a=a)
    np.testing.assert_array_equal(got, 2 * a.reshape(8, 8, 4).transpose(0, 2, 1).reshape(-1))


def test_axes_of_four_bits_stay_where_rows_end_inside_a_byte():
    spec = polyq.parse("y[i, j] = f32(w[i, j])", w=("u4", (3, 5)))
    assert stored(spec).tensor("w").shape == (3, 5)
    whole = polyq.parse("y[i, j] = f32(w[i, j])", w=("u4", (3, 6)))
    assert stored(whole).tensor("w").shape == (18,)
    for each, row in ((spec, 3), (whole, 3)):
        w = np.arange(3 * row, dtype=np.uint8).reshape(3, row) * 7
        np.testing.assert_array_equal(polyq.build(each)(w=w), polyq.interpret(each, w=w))


DEQUANTIZED = """  ^bb0(%a: i8, %b: f32, %d: f32, %out: f32):
    %4 = arith.extui %a : i8 to i32
    %5 = arith.uitofp %4 : i32 to f32
    %6 = arith.subf %5, %d : f32
    %7 = arith.mulf %6, %b : f32
    linalg.yield %7 : f32
  } -> tensor<16x4x8xf32>
"""
CONSTANT_ZERO = """
func.func @f(%w: tensor<16x4x8xi8>, %x: tensor<1x1x4x8xf32>, %s: tensor<16x4x1xf32>, %z: tensor<16x4x1xf32>) -> tensor<1x1x16xf32> {
  %c = arith.constant 0.0 : f32
  %0 = tensor.empty() : tensor<1x1x16xf32>
  %1 = tensor.empty() : tensor<16x4x8xf32>
  %2 = linalg.fill ins(%c : f32) outs(%0 : tensor<1x1x16xf32>) -> tensor<1x1x16xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(n, g, j) -> (n, g, j)>, affine_map<(n, g, j) -> (n, g, 0)>,
      affine_map<(n, g, j) -> (n, g, 0)>, affine_map<(n, g, j) -> (n, g, j)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s, %z : tensor<16x4x8xi8>, tensor<16x4x1xf32>, tensor<16x4x1xf32>) outs(%1 : tensor<16x4x8xf32>) {
""" + DEQUANTIZED + """  %8 = linalg.generic {indexing_maps = [affine_map<(a, b, n, g, j) -> (a, b, g, j)>, affine_map<(a, b, n, g, j) -> (n, g, j)>,
      affine_map<(a, b, n, g, j) -> (a, b, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %3 : tensor<1x1x4x8xf32>, tensor<16x4x8xf32>) outs(%2 : tensor<1x1x16xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %9 = arith.mulf %a, %b : f32
    %10 = arith.addf %9, %out : f32
    linalg.yield %10 : f32
  } -> tensor<1x1x16xf32>
  return %8 : tensor<1x1x16xf32>
}
"""
COLLAPSED = """
func.func @g(%w: tensor<16x4x8xi8>, %x: tensor<1x1x4x8xf32>, %s: tensor<16x4xf32>, %z: tensor<16x4xf32>) -> tensor<1x1x16xf32> {
  %c = arith.constant 0.0 : f32
  %xs = tensor.collapse_shape %x [[0, 1, 2], [3]] : tensor<1x1x4x8xf32> into tensor<4x8xf32>
  %0 = tensor.empty() : tensor<16xf32>
  %1 = tensor.empty() : tensor<16x4x8xf32>
  %2 = linalg.fill ins(%c : f32) outs(%0 : tensor<16xf32>) -> tensor<16xf32>
  %3 = linalg.generic {indexing_maps = [affine_map<(n, g, j) -> (n, g, j)>, affine_map<(n, g, j) -> (n, g)>,
      affine_map<(n, g, j) -> (n, g)>, affine_map<(n, g, j) -> (n, g, j)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s, %z : tensor<16x4x8xi8>, tensor<16x4xf32>, tensor<16x4xf32>) outs(%1 : tensor<16x4x8xf32>) {
""" + DEQUANTIZED + """  %8 = linalg.generic {indexing_maps = [affine_map<(n, g, j) -> (g, j)>, affine_map<(n, g, j) -> (n, g, j)>,
      affine_map<(n, g, j) -> (n)>], iterator_types = ["parallel", "reduction", "reduction"]}
      ins(%xs, %3 : tensor<4x8xf32>, tensor<16x4x8xf32>) outs(%2 : tensor<16xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %9 = arith.mulf %b, %a : f32
    %10 = arith.addf %out, %9 : f32
    linalg.yield %10 : f32
  } -> tensor<16xf32>
  %11 = tensor.expand_shape %8 [[0, 1, 2]] : tensor<16xf32> into tensor<1x1x16xf32>
  return %11 : tensor<1x1x16xf32>
}
"""


def test_constant_zero_subscripts_and_collapsed_dims_are_one_program(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path))
    one, two = polyq.from_mlir(CONSTANT_ZERO), polyq.from_mlir(COLLAPSED)
    three = polyq.parse(
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[n] += x[g, j] * d[n, g, j]",
        w=("u8", (16, 4, 8)), x=("f32", (4, 8)), s=("f32", (16, 4)), z=("f32", (16, 4)),
    )  # fmt: skip
    assert Form.of(one).spec == Form.of(two).spec == Form.of(three).spec
    arrays = random_arrays(three, {}, 5)
    expected = polyq.interpret(three, **arrays)
    for spec in (one, two, three):
        kernel = polyq.build(spec, numerics="strict")
        given_ = {t.name: arrays[t.name].reshape([e.const for e in t.extents]) for t in spec.inputs}
        got = kernel(**given_)
        assert got.shape == spec.outputs[0].shape
        assert_same_bits(got, expected)
    kept = [p for p in tmp_path.glob("*.c") if "strict" in p.read_text()[:40]]
    assert len(kept) == 1

"""Scales packed by hand in six dims, in five, and not at all: the same flat offsets and the same result."""

from itertools import product

import numpy as np
import pytest

import polyq
from polyq import Layout, encodings

N, G, J, T = 64, 4, 16, 32

HEAD = """
#id = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3, d4, d5)>
#scale = affine_map<(d0, d1, d2, d3, d4, d5) -> ({scale})>
#x = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d3, d4, d6, d7)>
#w = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d2, d3, d4, d5, d6, d7)>
#y = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d2, d5)>
"""
BODY = """
    %e = tensor.empty() : tensor<2x4x1x32x1x16xf32>
    %d = linalg.generic {{indexing_maps = [#id, #scale, #scale, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}}
      ins(%w, %s, %z : tensor<2x4x1x32x1x16xi8>, {tensor}, {tensor}) outs(%e : tensor<2x4x1x32x1x16xf32>) {{
    ^bb0(%code: i8, %scale: f32, %zero: f32, %out: f32):
      %0 = arith.extui %code : i8 to i32
      %1 = arith.uitofp %0 : i32 to f32
      %2 = arith.subf %1, %zero : f32
      %3 = arith.mulf %2, %scale : f32
      linalg.yield %3 : f32
    }} -> tensor<2x4x1x32x1x16xf32>
    %c0 = arith.constant 0.0 : f32
    %t = tensor.empty() : tensor<1x1x2x32xf32>
    %f = linalg.fill ins(%c0 : f32) outs(%t : tensor<1x1x2x32xf32>) -> tensor<1x1x2x32xf32>
    %y = linalg.generic {{indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "parallel", "reduction", "reduction"]}}
      ins(%x, %d : tensor<1x1x4x1x1x16xf32>, tensor<2x4x1x32x1x16xf32>) outs(%f : tensor<1x1x2x32xf32>) {{
    ^bb0(%a: f32, %b: f32, %out: f32):
      %0 = arith.mulf %a, %b : f32
      %1 = arith.addf %0, %out : f32
      linalg.yield %1 : f32
    }} -> tensor<1x1x2x32xf32>
"""
SIX = ("d0, d1, d2, d3, d4, 0", "tensor<2x4x1x32x1x1xf32>", (2, 4, 1, 32, 1, 1), (0, 1, 2), (T, 1, 1))
FIVE = ("d0, d1, 0, d3, d4", "tensor<2x4x1x32x1xf32>", (2, 4, 1, 32, 1), (0, 1), (T, 1))


def program(form):
    """The program on packed arguments."""
    scale, tensor = form[:2]
    text = (HEAD + """
  func.func @f(%w: tensor<2x4x1x32x1x16xi8>, %x: tensor<1x1x4x1x1x16xf32>, %s: {tensor}, %z: {tensor}) -> tensor<1x1x2x32xf32> {{
""" + BODY + "    return %y : tensor<1x1x2x32xf32>\n  }}\n").format(scale=scale, tensor=tensor)  # fmt: skip
    return polyq.from_mlir(text)


def packing_program(form):
    """The program that packs its arguments itself."""
    scale, tensor, _, where, tiles = form
    pack = (
        "    %{new} = tensor.empty() : {packed}\n    %{to} = linalg.pack %{of} inner_dims_pos = {where} inner_tiles = {tiles}"
        " into %{new} : {plain} -> {packed}\n"
    )
    plain = "tensor<64x4x1xf32>"
    packs = "".join(
        pack.format(new=f"e{to}", to=to, of=of, where=list(at), tiles=list(by), plain=p, packed=q)
        for to, of, at, by, p, q in (
            ("w", "w0", (0, 1, 2), (T, 1, J), "tensor<64x4x16xi8>", "tensor<2x4x1x32x1x16xi8>"),
            ("x", "x0", (2, 3), (1, J), "tensor<1x1x4x16xf32>", "tensor<1x1x4x1x1x16xf32>"),
            ("s", "s0", where, tiles, plain, tensor),
            ("z", "z0", where, tiles, plain, tensor),
        )
    )
    unpack = """
    %r = tensor.empty() : tensor<1x1x64xf32>
    %u = linalg.unpack %y inner_dims_pos = [2] inner_tiles = [32] into %r : tensor<1x1x2x32xf32> -> tensor<1x1x64xf32>
    return %u : tensor<1x1x64xf32>
  }}
"""
    head = """
  func.func @f(%w0: tensor<64x4x16xi8>, %x0: tensor<1x1x4x16xf32>, %s0: tensor<64x4x1xf32>, %z0: tensor<64x4x1xf32>) -> tensor<1x1x64xf32> {{
"""
    return polyq.from_mlir((HEAD + head + packs + BODY + unpack).format(scale=scale, tensor=tensor))


def unpacked():
    return polyq.parse(
        "d[n, g, j] = (f32(u8(w0[n, g, j])) - z0[n, g, 0]) * s0[n, g, 0]\ny[n] += x0[0, 0, g, j] * d[n, g, j]",
        w0=("i8", (N, G, J)), x0=("f32", (1, 1, G, J)), s0=("f32", (N, G, 1)), z0=("f32", (N, G, 1)),
    )  # fmt: skip


def data():
    """Whole numbers: every order of the sums gives the same bits."""
    r = np.random.default_rng(0)
    return {
        "w0": r.integers(0, 256, (N, G, J)).astype(np.uint8).view(np.int8),
        "x0": r.integers(-3, 4, (1, 1, G, J)).astype(np.float32),
        "s0": r.integers(1, 4, (N, G, 1)).astype(np.float32),
        "z0": r.integers(0, 9, (N, G, 1)).astype(np.float32),
    }


def offsets(spec, name):
    """The flat offset of what ``name`` gives to each (tile, group, row), by evaluating the reader's access."""
    e = encodings(spec, name)[0]
    sizes = [n.const for n in spec.tensor(name).extents]
    found = {}
    for point in product(*(range(n.const) for n in e.extents)):
        at = dict(zip(e.dims, point, strict=True))
        cell = [x.evaluate(at) for x in e.access.results]
        # the codes that the same instance reads say which row and group this is
        code = next(m for m, t in zip(e.maps, e.operands, strict=True) if t.startswith("w"))
        found[tuple(x.evaluate(at) for x in code.results)] = int(np.ravel_multi_index(cell, sizes))
    return found


def test_the_packed_scales_are_the_same_bytes():
    layouts = [Layout.of((N, G, 1)).tile(where, tiles) for *_, where, tiles in (SIX, FIVE)]
    assert [x.storage for x in layouts] == [SIX[2], FIVE[2]]
    assert layouts[0].same_memory(layouts[1])
    six, five = (x.pack(data()["s0"]) for x in layouts)
    assert six.tobytes() == five.tobytes()


@pytest.mark.parametrize("name", ["s", "z"])
def test_both_forms_read_the_same_flat_offsets(name):
    six, five = (offsets(program(form), name) for form in (SIX, FIVE))
    assert six == five
    layout = Layout.of((N, G, 1)).tile((0, 1), (T, 1))
    # the code at (tile, group, 0, row, 0, j) meets the scale that the layout puts there
    for cell, at in list(six.items())[:: J * 7]:
        tile, group, row = cell[0], cell[1], cell[3]
        assert at == layout.offset.evaluate(dict(zip(layout.dims, (T * tile + row, group, 0), strict=True)))


@pytest.mark.parametrize("name", ["s0", "z0"])
def test_programs_that_pack_read_the_offsets_of_the_one_that_does_not(name):
    wanted = offsets(unpacked(), name)
    assert offsets(packing_program(SIX), name) == wanted
    assert offsets(packing_program(FIVE), name) == wanted


def test_all_three_give_the_same_result():
    arrays = data()
    wanted = polyq.interpret(unpacked(), **arrays)
    by_hand = np.einsum("gj,ngj->n", arrays["x0"][0, 0], (arrays["w0"].view(np.uint8) - arrays["z0"]) * arrays["s0"])
    np.testing.assert_array_equal(wanted, by_hand)
    for form in (SIX, FIVE):
        spec = packing_program(form)
        np.testing.assert_array_equal(polyq.interpret(spec, **arrays).ravel(), wanted)
        np.testing.assert_array_equal(polyq.build(spec)(**arrays).ravel(), wanted)
        *_, where, tiles = form
        small = Layout.of((N, G, 1)).tile(where, tiles)
        packed = {
            "w": Layout.of((N, G, J)).tile((0, 1, 2), (T, 1, J)).pack(arrays["w0"]),
            "x": arrays["x0"].reshape(1, 1, G, 1, 1, J),
            "s": small.pack(arrays["s0"]),
            "z": small.pack(arrays["z0"]),
        }
        np.testing.assert_array_equal(polyq.build(program(form))(**packed).ravel(), wanted)

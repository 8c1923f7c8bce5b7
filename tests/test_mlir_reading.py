"""What a spec that was read from MLIR looks like: names, notes, types, parameters, ops."""

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyq
import polyq.__main__ as command
from polyq.affine.arrays import random_arrays
from polyq.affine.mlir.tiles import merge_tiles
from polyq.affine.proofs import prove
from polyq.affine.sample import boxes, part_of
from polyq.affine.unsigned import bits_as_read

pytest.importorskip("xdsl")

FOLDER = Path(__file__).parent / "mlir"


def read(file, function):
    return polyq.from_mlir(FOLDER / f"{file}.mlir", function=function)


# ---- names and notes
def test_what_the_text_leaves_open_becomes_inputs():
    spec = read("quantized", "open")
    assert [str(t) for t in spec.inputs] == [
        "codes: i8[6, 3, 4]", "x: f32[1, 2, 3, 4]", "cst: f32[6, 3, 1]", "v0: f32[6, 3, 1]", "v2: f32[1, 2, 6]",
    ]  # fmt: skip
    assert spec.output_names == ("v5",)
    assert spec.notes == (
        "input cst: a constant, the text leaves out its data (line 33)",
        "input v0: nothing writes it before it is read (line 34)",
        "input v2: nothing writes it before it is read (line 36)",
        "dispatch region at line 37: the ops of v4, v5 stand together, a hint",
    )


def test_a_label_that_the_map_contradicts_is_noted():
    assert read("quantized", "grouped_result").notes == (
        "%2 (line 62): dim d2 is labelled reduction; the result's map names it, so it is parallel",
    )


@pytest.mark.parametrize("elided", ["dense_resource<__elided__>", "dense<...>", "dense<__elided__>", 'opaque<"elided_large_const", "0xDEADBEEF">'])
def test_every_spelling_of_a_constant_without_data(elided):
    spec = polyq.from_mlir(f"func.func @f() -> tensor<3xf32> {{\n  %cst_0 = arith.constant {elided} : tensor<3xf32>\n  return %cst_0 : tensor<3xf32>\n}}")
    assert spec.input_names == ("cst_0",)
    assert spec.notes == ("input cst_0: a constant, the text leaves out its data (line 2)",)
    np.testing.assert_array_equal(polyq.interpret(spec, cst_0=np.array([1, 2, 3], "f4")), [1, 2, 3])


def test_names_that_python_or_polyq_would_not_have():
    text = """func.func @f(%for: tensor<2xf32>, %out: tensor<2xf32>, %1: tensor<2xf32>, %a.b: tensor<2xf32>, %a_b: tensor<2xf32>) -> tensor<2xf32> {
      %0 = arith.addf %for, %out : tensor<2xf32>
      %exp = arith.addf %1, %a.b : tensor<2xf32>
      %2 = arith.addf %0, %exp : tensor<2xf32>
      %3 = arith.addf %2, %a_b : tensor<2xf32>
      return %3 : tensor<2xf32>
    }"""
    spec = polyq.from_mlir(text)
    assert spec.input_names == ("for_", "out_", "v1", "a_b", "a_b_")
    arguments = random_arrays(spec, {})
    np.testing.assert_allclose(polyq.build(spec)(**arguments), sum(arguments.values()), rtol=1e-6)


def test_generic_form_reads_alike():
    text = """"builtin.module"() ({
      "func.func"() <{function_type = (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2xf32>, sym_name = "f"}> ({
      ^bb0(%a: tensor<2x3xf32>, %s: tensor<2xf32>):
        %r = "linalg.generic"(%a, %s) <{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = [#linalg.iterator_type<parallel>, #linalg.iterator_type<reduction>], operandSegmentSizes = array<i32: 1, 1>}> ({
        ^bb0(%x: f32, %acc: f32):
          %y = "arith.addf"(%acc, %x) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
          "linalg.yield"(%y) : (f32) -> ()
        }) : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2xf32>
        "func.return"(%r) : (tensor<2xf32>) -> ()
      }) : () -> ()
    }) : () -> ()"""
    spec = polyq.from_mlir(text)
    assert str(spec).split("\n")[2:] == ["r[d0] = s[d0]", "r[d0] += a[d0, d1]"]


# ---- integers without a sign
def test_signless_integers_take_arrays_of_both_signs():
    spec = read("quantized", "layer")
    assert spec.inputs[0].dtype == "i8"
    arguments = random_arrays(spec, {})
    as_unsigned = {**arguments, "codes": arguments["codes"].view(np.uint8)}
    kernel = polyq.build(spec)
    for call in (lambda **a: polyq.interpret(spec, **a), kernel):
        np.testing.assert_array_equal(call(**arguments), call(**as_unsigned))
    layer = kernel.bind(codes=as_unsigned["codes"])
    rest = {k: v for k, v in arguments.items() if k != "codes"}
    np.testing.assert_array_equal(layer(**rest), kernel(**arguments))
    with pytest.raises(polyq.ArgumentTypeError, match="codes: expected dtype int8"):
        kernel(**{**arguments, "codes": arguments["codes"].astype(np.int16)})
    signed = polyq.parse("y[i] = f32(a[i])", a=("i8", (4,)))
    with pytest.raises(polyq.ArgumentTypeError, match="a: expected dtype int8"):
        polyq.interpret(signed, a=np.zeros(4, np.uint8))


def test_nibbles_of_both_signs():
    spec = read("quantized", "nibbles")
    arguments = random_arrays(spec, {})
    codes = np.stack([arguments["wide"] & 15, arguments["wide"] >> 4], -1).reshape(3, 8)
    expected = polyq.interpret(spec, **arguments)
    for wide in (codes.astype(ml_dtypes.uint4), (codes.astype("i1") - 16 * (codes > 7)).astype(ml_dtypes.int4)):
        got = polyq.interpret(spec, **{**arguments, "wide": wide})
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("body", "dtype"),
    [("f32(u8(a[i]))", "u8"), ("f32(u8(a[i])) + f32(u8(a[i]) * u8(a[i]))", "u8"), ("f32(u8(a[i])) + f32(a[i])", "i8"), ("f32(a[i])", "i8")],
)
def test_bits_that_all_read_as_unsigned(body, dtype):
    spec = polyq.parse(f"y[i] = {body}", a=("i8", (256,)))
    told = bits_as_read(spec)
    assert told.inputs[0].dtype == dtype
    a = np.arange(-128, 128, dtype="i1")
    np.testing.assert_array_equal(polyq.interpret(told, a=a.view(dtype.replace("8", "nt8").replace("unt", "uint"))), polyq.interpret(spec, a=a))


# ---- parameters
def test_dynamic_sizes_are_tied_by_the_ops_that_use_them():
    text = """func.func @f(%x: tensor<?x?xf32>, %w: tensor<8x?xf32>, %b: tensor<?xf32>) -> tensor<?x8xf32> {
      %c0 = arith.constant 0 : index
      %m = tensor.dim %x, %c0 : tensor<?x?xf32>
      %cst = arith.constant 0.0 : f32
      %e = tensor.empty(%m) : tensor<?x8xf32>
      %z = linalg.fill ins(%cst : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
      %y = linalg.matmul_transpose_b ins(%x, %w : tensor<?x?xf32>, tensor<8x?xf32>) outs(%z : tensor<?x8xf32>) -> tensor<?x8xf32>
      %fixed = tensor.cast %b : tensor<?xf32> to tensor<8xf32>
      %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%y, %fixed : tensor<?x8xf32>, tensor<8xf32>) outs(%e : tensor<?x8xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %s = arith.addf %p, %q : f32
        linalg.yield %s : f32
      } -> tensor<?x8xf32>
      return %r : tensor<?x8xf32>
    }"""
    spec = polyq.from_mlir(text)
    assert [str(t) for t in spec.inputs] == ["x: f32[x_d0, x_d1]", "w: f32[8, x_d1]", "b: f32[8]"]
    assert polyq.from_mlir(spec.to_mlir()) == spec
    kernel = polyq.build(spec)
    for m, k in [(1, 5), (3, 64), (0, 4)]:
        a = random_arrays(spec, {"x_d0": m, "x_d1": k})
        np.testing.assert_allclose(kernel(**a), a["x"] @ a["w"].T + a["b"], rtol=1e-5, atol=1e-5)


def test_a_scalar_argument_and_a_size():
    spec = read("shapes", "made")
    assert [str(t) for t in spec.inputs] == ["x: f32[]"]
    assert spec.params == ("n",)


# ---- what becomes an op, and what does not
def test_reshapes_are_accesses():
    assert str(read("shapes", "collapse_and_back")).split("\n")[1:] == ["v3[d0, d1] = exp(a[(8*d0 + d1)//12, 2*d0 - 3*((8*d0 + d1)//12) + d1//4, d1%4])"]


def test_a_packed_layer_is_the_plain_one():
    spec = read("quantized", "packed")
    plain = polyq.parse(
        "d[n, g, u, h, j] = f32(u8(codes[n, g, j])) * scales[n, g, 0] where u < 1, h < 1\n"
        "y[a, b, n] += x[0, 0, g, j] * d[n, g, u, h, j] where a < 1, b < 1",
        codes=("i8", (6, 3, 4)), scales=("f32", (6, 3, 1)), x=("f32", (1, 1, 3, 4)),
    )  # fmt: skip
    assert spec.ops[0].index == tuple(polyq.affine.Affine.dim(d) for d in ("d0", "d1", "d2", "d4", "d5"))
    arguments = random_arrays(spec, {})
    np.testing.assert_array_equal(polyq.interpret(spec, **arguments), polyq.interpret(plain, **arguments))


def test_writing_in_place_only_where_nobody_looks():
    spec = read("shapes", "inserted_twice")
    assert [op.name for op in spec.ops] == ["v0", "v1.init", "v1", "v2"]
    once = polyq.from_mlir("""func.func @f(%a: tensor<4xf32>, %b: tensor<2xf32>) -> tensor<4xf32> {
      %0 = arith.addf %a, %a : tensor<4xf32>
      %1 = tensor.insert_slice %b into %0[1] [2] [1] : tensor<2xf32> into tensor<4xf32>
      return %1 : tensor<4xf32>
    }""")
    assert str(once).split("\n")[2:] == ["v1[d0] = a[d0] + a[d0]", "v1[d0 + 1] = b[d0]"]


def test_cells_that_nothing_writes_start_from_an_input():
    text = """func.func @f(%b: tensor<2xf32>) -> tensor<4xf32> {
      %e = tensor.empty() : tensor<4xf32>
      %1 = tensor.insert_slice %b into %e[1] [2] [1] : tensor<2xf32> into tensor<4xf32>
      return %1 : tensor<4xf32>
    }"""
    spec = polyq.from_mlir(text)
    assert spec.notes == ("input e: nothing writes it before it is read (line 2)",)
    np.testing.assert_array_equal(polyq.interpret(spec, b=np.array([5, 6], "f4"), e=np.array([1, 2, 3, 4], "f4")), [1, 5, 6, 4])


@pytest.mark.parametrize("c", [2, 4])
def test_split_dims_are_merged_and_the_program_is_the_same(c):
    text = f"""t[a, b, k] = x[{c}*a + b, k] * 2.0 where b < {c}, a < 3
    y[i, {c}*a + b] += t[a, b, k] * z[i, k] where b < {c}, a < 3
    """
    spec = polyq.parse(text, x=("f32", (3 * c, 5)), z=("f32", (4, 5)))
    merged = merge_tiles(spec)
    assert [len(op.dims) for op in merged.ops] == [2, 2, 3]
    assert prove(spec, merged).ok
    a = random_arrays(spec, {})
    np.testing.assert_array_equal(polyq.interpret(merged, **a), polyq.interpret(spec, **a))
    assert merge_tiles(merged) == merged


@pytest.mark.parametrize(
    "text",
    [
        "y[k, b, a] = x[4*a + b] * f32(k) where b < 4, a < 3, k < 2",  # the result has the dims apart
        "y[4*a + b] = x[4*a + b] * z[a] where b < 4, a < 3",  # so has another operand
        "y[4*a + b] = x[4*a + b] where b < 3, a < 3",  # the dim does not fill the tile
    ],
)
def test_dims_that_stay_split(text):
    tensors = {"x": ("f32", (12,)), "z": ("f32", (3,))}
    spec = polyq.parse(text, **{name: t for name, t in tensors.items() if name in text})
    assert merge_tiles(spec) == spec


def test_the_order_of_a_sum_stays():
    spec = polyq.parse("y[i] += x[4*a + b] * z[k] * v[i] where b < 4, a < 3", x=("f32", (12,)), z=("f32", (3,)), v=("f32", (2,)))
    op = spec.op("y")
    assert op.dims == ("i", "a", "b", "k")
    assert merge_tiles(spec).op("y").dims == ("i", "a", "k")
    apart = replace(op, dims=("i", "a", "k", "b"), extents=tuple(op.extent(d) for d in ("i", "a", "k", "b")))
    spec = spec.with_ops((*spec.ops[:-1], apart))
    assert merge_tiles(spec) == spec


# ---- a part of a program
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_part_has_the_cells_of_the_whole(seed):
    spec = polyq.parse(
        "d[n, g, j] = f32(w[n, g, j]) * s[n, g]\nz[i, j] = x[i, j, 0] + 1.0\ny[m, n] += x[m, g, j] * d[n, g, j]\nv[m, n] = y[m, n] + z[m, n % 3]",
        w=("u8", (7, 4, 3)), s=("f32", (7, 4)), x=("f32", ("m", 4, 3)),
    )  # fmt: skip
    a = random_arrays(spec, {"m": 5}, seed)
    whole = polyq.interpret(spec, **a)
    for box in boxes(spec.outputs[0], {"m": 5}, 6, 3, seed):
        small = polyq.interpret(part_of(spec, {"v": box}, {"m": 5}), **a)
        cut = tuple(slice(*ends) for ends in box)
        assert whole[cut].size
        np.testing.assert_array_equal(small[cut], whole[cut])


# ---- the command line
@pytest.fixture
def bandwidth(monkeypatch):
    monkeypatch.setattr(command, "_read_limit", lambda threads: 1e10 * threads)


def test_a_file_is_run_checked_and_saved(tmp_path, capsys, bandwidth):
    x = np.arange(36, dtype="f4").reshape(3, 12)
    np.save(tmp_path / "x.npy", x)
    file, saved = str(FOLDER / "quantized.mlir"), tmp_path / "run.npz"
    arguments = [file, "--function", "collapsed", "--input", f"x={tmp_path / 'x.npy'}", "--save", str(saved)]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "run on x as given, random data for the others, x_d0 = 3\n" in out
    assert re.search(r"^  v4 +error \S+ at most .*: within the bound$", out, re.MULTILINE)
    assert re.search(r"^  memory +\S+ \S*B, \d+\.\d\d GB/s, \d+\.\d\d of the \S+ GB/s that \d threads? reads? here$", out, re.MULTILINE)
    with np.load(saved) as found:
        assert sorted(found) == ["codes", "scales", "v4", "x"]
        weights = found["codes"].view("u1").astype("f8") * found["scales"][..., None]
        np.testing.assert_allclose(found["v4"], x @ weights.reshape(6, 12).T, rtol=1e-5)


def test_large_programs_are_checked_in_samples(capsys, bandwidth, monkeypatch):
    monkeypatch.setattr(command, "MOST_INSTANCES", 10)
    monkeypatch.setattr(command, "SAMPLES", 2)
    monkeypatch.setattr(command, "SAMPLE_CELLS", 2)
    assert command.main([str(FOLDER / "quantized.mlir"), "--function", "layer"]) == 0
    assert re.search(r"^  v4 +error \S+ at most .*: within the bound \(4 of 12 cells were checked\)$", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setattr("polyq.build.kernel.Kernel.__call__", lambda self, **given: np.full((1, 2, 6), 1e6, np.float32))
    assert command.main([str(FOLDER / "quantized.mlir"), "--function", "layer"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], f"{FOLDER / 'quantized.mlir'}:32:3: 8 functions, @layer, @open, @grouped_result, @collapsed, @packed, @nibbles, @integers, @constant_zeros; name one by function=..."),
        (["--function", "layer", "--input", "q=x.npy"], "--input q: the program has no such input; its inputs: codes: i8[6, 3, 4], x: f32[1, 2, 3, 4], scales: f32[6, 3], zeros: f32[6, 3]"),
        (["--function", "layer", "--input", f"x={__file__}"], f"--input x: {__file__} is no array in numpy's format: "),
    ],
)
def test_refusals(capsys, options, message):
    assert command.main([str(FOLDER / "quantized.mlir"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"python -m polyq: {message}")


# ---- docs
def test_each_operation_is_listed():
    from polyq.affine.mlir.dialects import OPERATIONS, SCALAR_NAMES
    from polyq.affine.mlir.scalars import SCALAR_OPS

    listed = set(re.findall(r"`([a-z]+\.[a-z0-9_.]+)`", (FOLDER.parent.parent / "docs" / "mlir.md").read_text()))
    known = {name for name in (*OPERATIONS, *SCALAR_OPS) if name not in SCALAR_NAMES or name in SCALAR_OPS}
    assert known <= listed

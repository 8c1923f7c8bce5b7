"""What is wrong with a program in MLIR: where, what was expected, what stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyq

pytest.importorskip("xdsl")

HEAD = """func.func @f(%a: tensor<4x6xf32>, %b: tensor<6xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
"""
GENERIC = """  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<4x6xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %acc: f32):
BODY
    linalg.yield %y : f32
  } -> tensor<4xf32>
"""
LAST = "  return %r : tensor<4xf32>\n}\n"
SUM = "    %y = arith.addf %x, %acc : f32"


def op(text, *, returns="%r"):
    return HEAD + "".join(f"  {line}\n" for line in text.split("\n")) + LAST.replace("%r", returns)


def body(text, *changes):
    made = HEAD + GENERIC.replace("BODY", "\n".join(f"    {line.strip()}" for line in text.split("\n"))) + LAST
    for old, new in changes:
        assert old in made
        made = made.replace(old, new)
    return made


RUNS = ", ".join(map(str, range(300)))
CASES = {
    # the text
    "keyword": (op("%r = tensor.collapse_shape %a [[0, 1]] : tensor<4x6xf32> to tensor<24xf32>"), "3:60: expected `into`, got `to`"),
    "scalar of the body": (
        body(SUM, ("return %r", "return %y"), ("%y = arith.addf %x", "%z = arith.addf %y"), ("yield %y", "yield %z")),
        "8:10: expected a value of type tensor<4xf32>, got %y, which no operation above defines here, and which line 5, column 21 takes for f32 (a name is known in its own region only)",
    ),
    "not defined": (
        op("%r = linalg.exp ins(%q : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"),
        "3:23: expected a value of type tensor<4xf32>, got %q, which no operation above defines here (a name is known in its own region only)",
    ),
    "other type": (
        op("%r = linalg.exp ins(%b : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"),
        "3:23: expected a value of type tensor<4xf32>, got %b, which has type tensor<6xf32>",
    ),
    "no colon": (op("%r = linalg.exp ins(%b tensor<6xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"), "3:26: expected `:`, got `tensor`"),
    "not closed": (HEAD, "3:1: expected an operation or `}`, got the end of the text"),
    "a name twice": (op("%e = tensor.empty() : tensor<4xf32>", returns="%e"), "3:3: SSA value %e is already defined, got `%e`"),
    # what is not known
    "op": (
        op("%r = linalg.frobnicate ins(%b : tensor<6xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"),
        "3:8: expected an operation that polyq reads, got `linalg.frobnicate`; docs/mlir.md lists them",
    ),
    "dialect": (op("%r = stablehlo.add %e, %e : tensor<4xf32>"), "3:8: expected an operation that polyq reads, got `stablehlo.add`; docs/mlir.md lists them"),
    "call": (
        "func.func private @g(f32) -> f32\nfunc.func @f(%a: f32) -> f32 {\n  %r = func.call @g(%a) : (f32) -> f32\n  return %r : f32\n}\n",
        "3:3: func.call: the operation is not known here; docs/mlir.md lists those that are",
    ),
    "scalar op": (body("%s = math.sin %x : f32\n%y = arith.addf %s, %acc : f32"), "5:5: math.sin: the operation is not known in a body; docs/mlir.md lists those that are"),
    "type": (
        "func.func @f(%a: tensor<4xf8E4M3FN>) -> tensor<4xf8E4M3FN> {\n  return %a : tensor<4xf8E4M3FN>\n}\n",
        "1:1: the type `f8E4M3FN` is not known; expected tensors and scalars of i1, i2, i4, i8, i16, i32, i64 (or si, ui), index, f16, bf16, f32 and f64",
    ),
    "memref": (
        "func.func @f(%a: memref<4xf32>) {\n  return\n}\n",
        "1:1: the type `memref<4xf32>` is not known; expected tensors and scalars of i1, i2, i4, i8, i16, i32, i64 (or si, ui), index, f16, bf16, f32 and f64",
    ),
    # functions
    "two functions": (
        "func.func @f(%a: f32) -> f32 {\n  return %a : f32\n}\nfunc.func @g(%a: f32) -> f32 {\n  return %a : f32\n}\n",
        "4:1: 2 functions, @f, @g; name one by function=...",
    ),
    "no function": ("module {\n}\n", "1:1: expected a func.func with a body, got none"),
    "no result": ("func.func @f(%a: tensor<4xf32>) {\n  return\n}\n", "2:3: the function returns nothing; expected a result"),
    "another result": ("func.func @f(%a: tensor<4xf32>) -> tensor<5xf32> {\n  return %a : tensor<4xf32>\n}\n", "2:3: return: expected tensor<5xf32>, as @f says, got tensor<4xf32>"),
    # structured ops
    "reduction": (
        body("%s = arith.mulf %acc, %acc : f32\n%y = arith.addf %s, %x : f32"),
        "3:3: linalg.generic: the body reduces in a way that is not known: expected out + term, out - term, out * term, or a minimum or maximum of out and a term that does not use out; got %1[d0] * %1[d0] + %0[d0, d1] with out = %1",
    ),
    "last write": (
        body("%y = arith.negf %x : f32"),
        "3:3: `=` writes the cell r[0] twice, at d0 = 0, d1 = 0 and at d0 = 0, d1 = 1; use a reduction (+=, *=, min=, max=) or another target",
    ),
    "start of a maximum": (
        body("%y = arith.maxnumf %x, %acc : f32"),
        "3:3: linalg.generic: a reduction by max that prefers numbers to NaN has to start from a constant; fill its result",
    ),
    "sizes": (
        op("%r = linalg.matvec ins(%a, %e : tensor<4x6xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"),
        "3:3: linalg.matvec: dim d1 runs over axis 1 of %a and over axis 0 of %e: expected equal sizes, got 6 and 4",
    ),
    "maps": (body(SUM, ("affine_map<(d0, d1) -> (d0, d1)>, ", "")), "3:3: linalg.generic: expected 2 indexing maps, one an operand, got 1"),
    "rank": (body(SUM, ("-> (d0, d1)>", "-> (d1)>")), "3:3: linalg.generic: operand %a: its map has 1 results, expected 2"),
    "labels": (body(SUM, ('"parallel", "reduction"', '"parallel"')), "3:3: linalg.generic: iterator_types: expected 2, one a dim, got 1"),
    "label": (body(SUM, ('"reduction"', '"window"')), "3:3: linalg.generic: iterator_types: expected parallel or reduction, got window"),
    "arguments": (body("%y = arith.negf %x : f32", ("%x: f32, %acc: f32", "%x: f32")), "3:3: linalg.generic: the body takes 1 arguments, expected 2, one an operand"),
    "argument's type": (body("%y = arith.constant 1.0 : f32", ("%x: f32", "%x: f16")), "3:3: linalg.generic: the body's argument %x is f16, its operand f32"),
    "outside": (
        body(SUM, ("-> (d0, d1)>", "-> (d0 + 1, d1)>")),
        "3:3: operand a[d0 + 1, d1]: subscript 0 (d0 + 1) is 4 at d0 = 3, d1 = 0, outside axis 0 of a, which has extent 4; an extent of 5 is needed; bound d0 by where, or change the shape",
    ),
    "no end": (body(SUM, ("-> (d0, d1)>", "-> (d0, d1 + d1)>")), "3:3: linalg.generic: dim d1 has no end: no operand is indexed by it alone"),
    "symbol": (
        body(SUM, ("affine_map<(d0, d1) -> (d0, d1)>", "affine_map<(d0, d1)[s0] -> (d0, d1 + s0)>")),
        "3:3: linalg.generic: the map `affine_map<(d0, d1)[s0] -> (d0, (d1 + s0))>` has symbols; expected dims and constants only",
    ),
    "mod by a dim": (
        body(SUM, ("-> (d0, d1)>", "-> (d0, d1 mod d0)>")),
        "3:78: Mod with non-constant (semi-affine) is not supported yet; expected products with and quotients by constants",
    ),
    "body of a named op": (
        op("%r = linalg.matvec ins(%a, %b : tensor<4x6xf32>, tensor<6xf32>) outs(%e : tensor<4xf32>) {\n^bb0(%x: f32, %y: f32, %z: f32):\n  linalg.yield %z : f32\n} -> tensor<4xf32>"),
        "3:3: linalg.matvec: a named op has no body; expected linalg.generic for one with a body",
    ),
    "operands": (op("%r = linalg.matvec ins(%a : tensor<4x6xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>"), "3:3: linalg.matvec: expected 2 indexing maps, one an operand, got 3"),
    "permutation": (
        op("%s = tensor.empty() : tensor<6x4xf32>\n%t = linalg.transpose ins(%a : tensor<4x6xf32>) outs(%s : tensor<6x4xf32>) permutation = [1, 1]", returns="%e"),
        "4:3: linalg.transpose: permutation: expected the axes 0 to 1 in some order, got [1, 1]",
    ),
    "dimensions": (
        op("%r = linalg.reduce { arith.addf } ins(%a : tensor<4x6xf32>) outs(%e : tensor<4xf32>) dimensions = [5]"),
        "3:3: linalg.reduce: dimensions: expected one or more of the axes 0 to 1, got [5]",
    ),
    # tensors
    "slice": (op("%r = tensor.extract_slice %b[3] [4] [1] : tensor<6xf32> to tensor<4xf32>"), "3:3: tensor.extract_slice: %b, axis 0: the slice ends at 7, expected at most 6"),
    "stride": (op("%r = tensor.extract_slice %b[3] [4] [-1] : tensor<6xf32> to tensor<4xf32>"), "3:3: tensor.extract_slice: strides: expected positive constants, got -1"),
    "slice of another rank": (
        op("%r = tensor.extract_slice %b[3, 1] [4, 1] [1, 1] : tensor<6xf32> to tensor<4xf32>"),
        "3:3: tensor.extract_slice: expected 1 offsets, sizes and strides, got 2, 2, 2",
    ),
    "groups": (
        op("%s = tensor.collapse_shape %a [[0], [0, 1]] : tensor<4x6xf32> into tensor<4x6xf32>", returns="%e"),
        "3:3: tensor.collapse_shape: the groups [[0], [0, 1]] have to name the axes 0 to 1 in order, in 2 groups",
    ),
    "expand": (
        op("%s = tensor.expand_shape %b [[0, 1]] output_shape [4, 2] : tensor<6xf32> into tensor<4x2xf32>", returns="%e"),
        "3:3: tensor.expand_shape: axis 0 of %b: expected equal sizes, got 6 and 8",
    ),
    "two dynamic sizes": (
        "func.func @f(%a: tensor<?x?xf32>) -> tensor<?xf32> {\n  %r = tensor.collapse_shape %a [[0, 1]] : tensor<?x?xf32> into tensor<?xf32>\n  return %r : tensor<?xf32>\n}\n",
        "2:3: tensor.collapse_shape: the product of a_d0 and a_d1 is not affine; give one of them a number",
    ),
    "tiles": (
        op("%s = tensor.empty() : tensor<2x4xf32>\n%t = tensor.pack %b inner_dims_pos = [0] inner_tiles = [4] into %s : tensor<6xf32> -> tensor<2x4xf32>", returns="%e"),
        "4:3: tensor.pack: the tiles [4] do not divide the shape ['6']; expected a padding_value",
    ),
    "packed shape": (
        op("%s = tensor.empty() : tensor<3x4xf32>\n%t = tensor.pack %b inner_dims_pos = [0] inner_tiles = [4] into %s : tensor<6xf32> -> tensor<3x4xf32>", returns="%e"),
        "4:3: tensor.pack: axis 0 of the packed tensor: expected equal sizes, got 3 and 2",
    ),
    "concat": (op("%r = tensor.concat dim(0) %b, %b : (tensor<6xf32>, tensor<6xf32>) -> tensor<4xf32>"), "3:3: tensor.concat: %r, axis 0: expected equal sizes, got 12 and 4"),
    "subscripts": (op("%c = arith.constant 0 : index\n%s = tensor.extract %a[%c] : tensor<4x6xf32>", returns="%e"), "4:3: tensor.extract: expected 2 subscripts, got 1"),
    "gather": (
        body("%c = arith.fptosi %x : f32 to i64\n%k = arith.index_cast %c : i64 to index\n%v = tensor.extract %b[%k] : tensor<6xf32>\n%y = arith.addf %v, %acc : f32"),
        "7:5: tensor.extract: %k is no affine expression of dims and sizes, as a subscript or size has to be",
    ),
    # scalars
    "shift": (
        body("%z = arith.fptosi %x : f32 to i32\n%s = arith.shli %z, %z : i32\n%t = arith.sitofp %s : i32 to f32\n%y = arith.addf %t, %acc : f32"),
        "6:5: arith.shli: a shift by a value has no form in polyq; expected a constant",
    ),
    "bits": (
        body("%z = arith.fptosi %x : f32 to i32\n%s = arith.andi %z, %z : i32\n%t = arith.sitofp %s : i32 to f32\n%y = arith.addf %t, %acc : f32"),
        "6:5: arith.andi: `and` of two i32 values that share 32 bits has no form in polyq; expected a constant mask, or at most 8 shared bits",
    ),
    "power": (
        body("%z = math.powf %x, %x : f32\n%y = arith.addf %z, %acc : f32"),
        "5:5: math.powf: a power has a form in polyq for constant whole exponents from -16 to 16 and 0.5 only",
    ),
    # constants
    "runs": (
        f"func.func @f() -> tensor<300xi32> {{\n  %r = arith.constant dense<[{RUNS}]> : tensor<300xi32>\n  return %r : tensor<300xi32>\n}}\n",
        "2:3: arith.constant: a dense constant with 300 runs of equal elements is not put into the program, which may have 256; make it an argument",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_errors_say_where_and_what(name):
    text, message = CASES[name]
    with pytest.raises(polyq.SpecError) as raised:
        polyq.from_mlir(text)
    assert str(raised.value) == f"<mlir>:{message}"


def test_a_file_is_named(tmp_path):
    path = tmp_path / "layer.mlir"
    path.write_text(CASES["keyword"][0])
    for given in (path, str(path)):
        with pytest.raises(polyq.SpecError, match=rf"^{re.escape(str(path))}:3:60: expected `into`, got `to`$"):
            polyq.from_mlir(given)
    with pytest.raises(polyq.SpecError, match=r"^cannot read none\.mlir: No such file or directory; expected MLIR text or the path of a file$"):
        polyq.from_mlir("none.mlir")


def test_a_function_is_named():
    with pytest.raises(polyq.SpecError, match=r"^<mlir>:1:1: expected a function @h, got @f, @g$"):
        polyq.from_mlir(CASES["two functions"][0], function="h")
    assert polyq.from_mlir(CASES["two functions"][0], function="g").name == "g"


def test_without_xdsl_the_package_is_named():
    text = "import sys; sys.modules['xdsl'] = None; sys.modules['xdsl.context'] = None\nimport polyq\npolyq.from_mlir('module {}')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.stderr.strip().endswith("PolyqError: reading MLIR needs xdsl, which is not installed: pip install 'polyq-loops[mlir]'")


def test_what_linalg_has_no_form_for():
    spec = polyq.parse("y[i] = y[i - 1] + x[i] where i >= 1", x=("f32", (8,)), y=("f32", (8,)))
    with pytest.raises(polyq.SpecError) as raised:
        spec.to_mlir()
    assert str(raised.value) == "to_mlir: op y: it reads y elsewhere than it writes, which linalg has no form for"

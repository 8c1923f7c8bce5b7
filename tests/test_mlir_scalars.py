"""Scalar ops of MLIR's bodies against numpy, on the values where they go wrong."""

import math

import ml_dtypes
import numpy as np
import pytest

import polyq

pytest.importorskip("xdsl")

FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 0.49999997, 1e-20, 88.0, -88.0, np.inf, -np.inf, np.nan], "f4")
BYTES = np.arange(-128, 128, dtype="i1")
MLIR = {"f4": "f32", "f8": "f64", "f2": "f16", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64"}


def run(body, *arrays, result):
    """Return what a body over ``%a``, ``%b``, ... gives; its last line is the value that it yields."""
    names = [f"%{'abc'[k]}" for k in range(len(arrays))]

    kinds = ["i1" if a.dtype == bool else MLIR[a.dtype.str[1:]] for a in arrays]
    n = len(arrays[0])
    types = [f"tensor<{n}x{k}>" for k in kinds]
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (len(arrays) + 1))
    arguments = ", ".join(f"%x{k}: {t}" for k, t in enumerate(types))
    inner = ", ".join(f"{v}: {k}" for v, k in zip(names, kinds, strict=True))
    text = f"""
    func.func @f({arguments}) -> tensor<{n}x{result}> {{
      %e = tensor.empty() : tensor<{n}x{result}>
      %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
          ins({", ".join(f"%x{k}" for k in range(len(arrays)))} : {", ".join(types)}) outs(%e : tensor<{n}x{result}>) {{
      ^bb0({inner}, %out: {result}):
        {body}
        linalg.yield %y : {result}
      }} -> tensor<{n}x{result}>
      return %r : tensor<{n}x{result}>
    }}"""
    spec = polyq.from_mlir(text)
    assert polyq.from_mlir(spec.to_mlir()) == spec
    with np.errstate(all="ignore"):
        return polyq.interpret(spec, **dict(zip(spec.input_names, arrays, strict=True)))


def away(x):
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


UNARY = {
    "arith.negf": np.negative, "math.absf": np.abs, "math.exp": np.exp, "math.sqrt": np.sqrt, "math.tanh": np.tanh,
    "math.floor": np.floor, "math.ceil": np.ceil, "math.trunc": np.trunc, "math.roundeven": np.rint, "math.round": away,
    "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.exp2": np.exp2, "math.log2": np.log2, "math.log10": np.log10,
    "math.log1p": np.log1p, "math.expm1": np.expm1, "math.log": np.log,
    "math.erf": lambda x: np.array([math.erf(v) for v in x]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_floats(name):
    with np.errstate(all="ignore"):
        expected = UNARY[name](FLOATS.astype("f8"))
    got = run(f"%y = {name} %a : f32", FLOATS, result="f32")
    np.testing.assert_allclose(got, expected.astype("f4"), rtol=2e-7, atol=0)


ORDERED = {"eq": np.equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}


@pytest.mark.parametrize("predicate", [*(p + n for n in (*ORDERED, "ne") for p in "ou"), "ord", "uno", "true", "false"])
def test_comparisons_of_floats(predicate):
    a, b = (v.ravel() for v in np.meshgrid(FLOATS[-8:], FLOATS[-8:]))
    nan = np.isnan(a) | np.isnan(b)
    if predicate in ("ord", "uno"):
        expected = nan == (predicate == "uno")
    elif predicate in ("true", "false"):
        expected = np.full(a.shape, predicate == "true")
    else:
        holds = (a != b) if predicate[1:] == "ne" else ORDERED[predicate[1:]](a, b)
        expected = np.where(nan, predicate[0] == "u", holds)
    np.testing.assert_array_equal(run(f"%y = arith.cmpf {predicate}, %a, %b : f32", a, b, result="i1"), expected)


PAIRS = tuple(v.ravel() for v in np.meshgrid(np.array([-128, -127, -7, -1, 0, 1, 2, 7, 100, 127], "i1"), BYTES[::5]))


def unsigned(fn):
    return lambda a, b: fn(a.view("u1"), b.view("u1"))


def shortened(fn):
    """Return a division that rounds towards zero."""
    return lambda a, b: (np.sign(a) * np.sign(b)) * fn(abs(a), abs(b))


INTEGERS = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.maxsi": np.maximum, "arith.minsi": np.minimum,
    "arith.maxui": unsigned(np.maximum), "arith.minui": unsigned(np.minimum),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    a, b = PAIRS
    with np.errstate(all="ignore"):
        expected = INTEGERS[name](a, b)
    np.testing.assert_array_equal(run(f"%y = {name} %a, %b : i8", a, b, result="i8").view("u1"), expected.view("u1"))


DIVISIONS = {
    "divsi": lambda a, b: int(a / b), "remsi": math.fmod, "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b), "divui": lambda a, b: (a % 256) // (b % 256),
    "remui": lambda a, b: (a % 256) % (b % 256), "ceildivui": lambda a, b: -(-(a % 256) // (b % 256)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions(name):
    pairs = [(int(a), int(b)) for a, b in zip(*PAIRS, strict=True) if b and (a, b) != (-128, -1)]
    expected = np.array([int(DIVISIONS[name](a, b)) % 256 for a, b in pairs], "u1")
    a, b = np.array(pairs, "i1").T.copy()
    np.testing.assert_array_equal(run(f"%y = arith.{name} %a, %b : i8", a, b, result="i8").view("u1"), expected)


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"])
def test_comparisons_of_integers(predicate):
    a, b = PAIRS
    x, y = (a.view("u1"), b.view("u1")) if predicate[0] == "u" else (a, b)
    fn = {**ORDERED, "ne": np.not_equal}[predicate if predicate in ("eq", "ne") else predicate[1:]]
    np.testing.assert_array_equal(run(f"%y = arith.cmpi {predicate}, %a, %b : i8", a, b, result="i1"), fn(x, y))


@pytest.mark.parametrize("by", [0, 1, 4, 7])
def test_shifts(by):
    constant = f"%c = arith.constant {by} : i8\n"
    for name, expected in [
        ("shli", BYTES << np.int8(by)), ("shrsi", BYTES >> np.int8(by)), ("shrui", (BYTES.view("u1") >> np.uint8(by)).view("i1")),
    ]:  # fmt: skip
        np.testing.assert_array_equal(run(f"{constant}%y = arith.{name} %a, %c : i8", BYTES, result="i8"), expected)


@pytest.mark.parametrize("mask", [0, 1, 15, 60, -16, -1, -128, 0x55])
def test_masks(mask):
    constant = f"%c = arith.constant {mask} : i8\n"
    for name, fn in [("andi", np.bitwise_and), ("ori", np.bitwise_or), ("xori", np.bitwise_xor)]:
        got = run(f"{constant}%y = arith.{name} %a, %c : i8", BYTES, result="i8")
        np.testing.assert_array_equal(got, fn(BYTES, np.int8(mask)))


def test_two_fields_that_share_no_bit():
    body = """%c = arith.constant 15 : i8
        %four = arith.constant 4 : i8
        %low = arith.andi %a, %c : i8
        %high = arith.shli %b, %four : i8
        %y = arith.ori %low, %high : i8"""
    a, b = PAIRS
    np.testing.assert_array_equal(run(body, a, b, result="i8"), (a & 15) | (b << np.int8(4)))


CASTS = {
    ("extui", "i8", "i32"): lambda a: a.view("u1"), ("extsi", "i8", "i32"): lambda a: a,
    ("uitofp", "i8", "f32"): lambda a: a.view("u1"), ("sitofp", "i8", "f32"): lambda a: a,
    ("trunci", "i8", "i4"): None, ("trunci", "i8", "i1"): lambda a: a & 1,
}  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), CASTS, ids=lambda p: p)
def test_casts(name, old, new):
    got = run(f"%y = arith.{name} %a : {old} to {new}", BYTES, result=new)
    if new == "i4":
        np.testing.assert_array_equal(got[:2], [0x10, 0x32])  # -128, -127, -126, -125: two to a byte
    else:
        np.testing.assert_array_equal(got, CASTS[name, old, new](BYTES).astype(got.dtype))


def test_one_bit():
    bits = np.array([True, False])
    for name, kind, expected in [("extui", "i32", [1, 0]), ("extsi", "i32", [-1, 0]), ("uitofp", "f32", [1, 0]), ("sitofp", "f32", [-1, 0])]:
        np.testing.assert_array_equal(run(f"%y = arith.{name} %a : i1 to {kind}", bits, result=kind), expected)
    for name, expected in [("andi", [False, False]), ("ori", [True, True]), ("xori", [True, True])]:
        np.testing.assert_array_equal(run(f"%y = arith.{name} %a, %b : i1", bits, ~bits, result="i1"), expected)


def test_floats_to_integers_and_narrow_floats():
    x = np.array([1.9, -1.9, 0.0, 200.0, -3.0], "f4")
    np.testing.assert_array_equal(run("%y = arith.fptosi %a : f32 to i32", x, result="i32"), [1, -1, 0, 200, -3])
    got = run("%y = arith.fptoui %a : f32 to i8", np.array([1.9, 200.0], "f4"), result="i8")
    np.testing.assert_array_equal(got.view("u1"), [1, 200])
    narrow = run("%y = arith.truncf %a : f32 to bf16", np.array([1.00390625, 1.01171875], "f4"), result="bf16")
    np.testing.assert_array_equal(narrow.astype("f4"), np.array([1.0, 1.015625], "f4"))
    assert narrow.dtype == ml_dtypes.bfloat16
    half = run("%y = arith.extf %a : f16 to f32", np.array([0.1], "f2"), result="f32")
    assert half[0] == np.float32(np.float16(0.1))


def test_maxima_that_prefer_numbers_or_nan():
    a, b = np.array([1, np.nan, np.nan, 2], "f4"), np.array([np.nan, 1, np.nan, 3], "f4")
    for name, expected in [
        ("maximumf", [np.nan, np.nan, np.nan, 3]), ("minimumf", [np.nan, np.nan, np.nan, 2]),
        ("maxnumf", [1, 1, np.nan, 3]), ("minnumf", [1, 1, np.nan, 2]),
    ]:  # fmt: skip
        np.testing.assert_array_equal(run(f"%y = arith.{name} %a, %b : f32", a, b, result="f32"), np.array(expected, "f4"))


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0, 3.0, -2.0])
def test_powers(power):
    x = np.array([0.5, 1, 2, 3], "f4")
    body = f"%c = arith.constant {power:e} : f32\n%y = math.powf %a, %c : f32"
    np.testing.assert_allclose(run(body, x, result="f32"), x**power, rtol=3e-7)


def test_an_index_is_a_value():
    body = """%i = linalg.index 0 : index
        %c = arith.constant 3 : index
        %q = arith.divui %i, %c : index
        %r = arith.remsi %i, %c : index
        %t = arith.constant 10 : index
        %s = arith.muli %r, %t : index
        %u = arith.addi %s, %q : index
        %v = arith.index_cast %u : index to i32
        %w = arith.sitofp %v : i32 to f32
        %y = arith.addf %w, %a : f32"""
    i = np.arange(8)
    np.testing.assert_array_equal(run(body, np.full(8, 0.5, "f4"), result="f32"), i % 3 * 10 + i // 3 + 0.5)

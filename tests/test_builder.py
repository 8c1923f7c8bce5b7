"""Specs by indexing maps and traced bodies: equal to the parsed ones up to names, and what is said of wrong calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyq
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse
from polyq.affine.scalar import Const, Index, Load, format_scalar, substitute_dims
from polyq.affine.spec import Op, Spec, Tensor
from polyq.affine.tracing import Traced

PARALLEL = ("parallel",)


def flagship() -> Spec:
    spec = polyq.Spec("group_matmul")
    spec, w = spec.input("w", "u8", (4096, 32, 128))
    spec, z = spec.input("z", "f32", (4096, 32))
    spec, s = spec.input("s", "f32", (4096, 32))
    spec, x = spec.input("x", "f32", ("m", 32, 128))
    spec, d = spec.generic(
        "dequant", ins=(w, s, z), out=("d", "f32", (4096, 32, 128)), iterators=("parallel",) * 3,
        maps=("(n, g, j) -> (n, g, j)", "(n, g, j) -> (n, g)", "(n, g, j) -> (n, g)", "(n, g, j) -> (n, g, j)"),
        body=lambda w, s, z: (polyq.f32(w) - z) * s,
    )  # fmt: skip
    spec, _ = spec.generic(
        "matmul", ins=(x, d), out=("y", "f32", ("m", 4096)), iterators=("parallel", "parallel", "reduction", "reduction"),
        maps=("(i, n, g, j) -> (i, g, j)", "(i, n, g, j) -> (n, g, j)", "(i, n, g, j) -> (i, n)"),
        body=lambda x, d: x * d, reduce="+",
    )  # fmt: skip
    return spec


def renamed(op: Op, names: dict[str, str]) -> Op:
    """The op with dims renamed and without its own name."""
    replace_by = {d: Affine.dim(names.get(d, d)) for d in op.dims}
    return replace(
        op, name="", dims=tuple(names.get(d, d) for d in op.dims), index=tuple(e.substitute(replace_by) for e in op.index),
        body=substitute_dims(op.body, replace_by), where=tuple(c.substitute(replace_by) for c in op.where),
    )  # fmt: skip


def test_the_flagship_equals_the_parsed_one_up_to_names():
    built = flagship()
    parsed = parse(
        """
        d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
        y[m, n] += x[m, g, j] * d[n, g, j]
        """,
        w=("u8", (4096, 32, 128)), z=("f32", (4096, 32)), s=("f32", (4096, 32)), x=("f32", ("m", 32, 128)),
    )  # fmt: skip
    assert (built.name, [op.name for op in built.ops]) == ("group_matmul", ["dequant", "y.init", "matmul"])
    assert built.all_tensors == parsed.all_tensors
    assert (built.inputs, built.outputs) == (parsed.inputs, parsed.outputs)
    assert [renamed(op, {"i": "m"}) for op in built.ops] == [renamed(op, {}) for op in parsed.ops]
    assert built.notes == ()


def test_each_call_returns_a_new_value():
    empty = Spec("empty")
    with_x, x = empty.input("x", "f32", 4)
    assert empty == Spec("empty")
    assert x == Tensor("x", "f32", (4,))
    assert with_x.input_names == ("x",)
    assert with_x.output_names == ()


def one(body: Callable[..., Any], dtype: str = "f32", result: str | None = None, **options: Any) -> Op:
    spec, x = Spec().input("x", dtype, (4, 3))
    made, _ = spec.generic(
        "op", ins=(x,), out=("y", result or dtype, (4, 3)), iterators=PARALLEL * 2, maps=("(i, j) -> (i, j)",) * 2, body=body,
        **options,
    )  # fmt: skip
    return made.op("op")


@pytest.mark.parametrize(
    ("body", "dtype", "result", "text"),
    [
        (lambda x: 2 * x + 1, "f32", "f32", "2.0 * x[i, j] + 1.0"),
        (lambda x: 1 / (x - 0.5), "f64", "f64", "1.0 / (x[i, j] - 0.5)"),
        (lambda x: -abs(x) % 5, "i32", "i32", "-abs(x[i, j]) % 5"),
        (lambda x: 7 // x, "u8", "u8", "7 // x[i, j]"),
        (lambda x: polyq.select((x > 0) & ~(x >= 1) | (x == 5), polyq.exp(x), 0), "f32", "f32",
         "select(x[i, j] > 0.0 and not (x[i, j] >= 1.0) or x[i, j] == 5.0, exp(x[i, j]), 0.0)"),
        (lambda x: polyq.minimum(x, polyq.maximum(0, x, 3)), "f32", "f32", "min(x[i, j], max(max(0.0, x[i, j]), 3.0))"),
        (lambda x: polyq.f32(polyq.index("i") * 3 + polyq.index("j")) + x, "f32", "f32", "f32(3*i + j) + x[i, j]"),
        (lambda x: np.float32(2) * x + np.int64(1), "f32", "f32", "2.0 * x[i, j] + 1.0"),
        (lambda x: 5, "f32", "f32", "5.0"),
        (lambda x: x != 0, "i8", "bool", "x[i, j] != 0"),
        (lambda x: polyq.i32(x) * polyq.i32(-3), "i8", "i32", "i32(x[i, j]) * -3"),
    ],
)  # fmt: skip
def test_traced_bodies(body: Callable[..., Any], dtype: str, result: str, text: str):
    assert format_scalar(one(body, dtype, result).body) == text


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "erf", "floor", "rint", "abs"])
def test_functions_are_named_as_in_index_notation(name: str):
    traced = one(lambda x: getattr(polyq, name)(x)).body
    assert traced == parse(f"y[i, j] = {name}(x[i, j])", x=("f32", (4, 3))).op("y").body


@pytest.mark.parametrize(
    "name", ["u2", "u4", "u8", "u16", "u32", "u64", "i2", "i4", "i8", "i16", "i32", "i64", "f16", "bf16", "f64", "bool"]
)
def test_casts_are_named_as_dtypes(name: str):
    traced = one(lambda x: getattr(polyq, name)(x), "f32", name).body
    assert traced == parse(f"y[i, j] = {name}(x[i, j])", x=("f32", (4, 3))).op("y").body


def test_maps_as_values_and_domains():
    i, j = Affine.dim("i"), Affine.dim("j")
    spec, x = Spec().input("x", "f32", ("n", "n"))
    spec, y = spec.generic(
        "lower", ins=(x,), out=("y", "f32", ("n", "n")), iterators=PARALLEL * 2,
        maps=(AffineMap(("i", "j"), (j, i)), AffineMap(("i", "j"), (i, j))), body=lambda x: x, where="j <= i",
    )  # fmt: skip
    assert spec.op("lower").where == (Constraint(i - j),)
    assert [op.name for op in spec.ops] == ["y.init", "lower"]  # the upper triangle is zero
    data = np.arange(9, dtype="f4").reshape(3, 3)
    np.testing.assert_array_equal(interpret(spec, x=data), np.tril(data.T))
    assert spec.outputs == (y,)


def test_convolution_takes_its_ends_from_the_result():
    spec, x = Spec("conv").input("x", "f32", (9,))
    spec, w = spec.input("w", "f32", (3,))
    spec, _ = spec.generic(
        "conv", ins=(x, w), out=("y", "f32", (4,)), iterators=("parallel", "reduction"),
        maps=("(i, k) -> (2*i + k)", "(i, k) -> (k)", "(i, k) -> (i)"), body=lambda x, w: x * w, reduce="+",
    )  # fmt: skip
    np.testing.assert_array_equal(interpret(spec, x=np.arange(9, dtype="f4"), w=np.ones(3, "f4")), [3, 9, 15, 21])


@pytest.mark.parametrize(("reduce", "start", "expected"), [("+", 0, 6), ("*", 1, 0), ("min", 127, 0), ("max", -128, 3)])
def test_reductions_start_at_the_identity(reduce: str, start: int, expected: int):
    spec, x = Spec().input("x", "i8", (4,))
    spec, _ = spec.generic(
        "all", ins=(x,), out=("y", "i8", ()), iterators=("reduction",), maps=("(i) -> (i)", "(i) -> ()"), body=lambda x: x,
        reduce=reduce,
    )  # fmt: skip
    assert spec.op("y.init").body == Const(start, "i8")
    assert interpret(spec, x=np.arange(4, dtype="i1")) == expected


def test_a_reduction_may_start_from_a_tensor():
    spec, x = Spec().input("x", "f32", ("m", 4))
    spec, bias = spec.input("bias", "f32", ("m",))
    spec, t = spec.generic(
        "scaled",
        ins=(bias,),
        out=("t", "f32", ("m",)),
        iterators=PARALLEL,
        maps=("(i) -> (i)",) * 2,
        body=lambda b: 2 * b,
    )
    spec, _ = spec.generic(
        "rows", ins=(x,), out=("y", "f32", ("m",)), iterators=("parallel", "reduction"),
        maps=("(i, j) -> (i, j)", "(i, j) -> (i)"), body=lambda x: x, reduce="+", init=t,
    )  # fmt: skip
    assert spec.op("y.init").body == Load("t", (Affine.dim("i"),), "f32")
    assert spec.output_names == ("y",)  # t is read now
    np.testing.assert_array_equal(interpret(spec, x=np.ones((2, 4), "f4"), bias=np.array([1, 2], "f4")), [6, 8])


def test_outputs_are_what_no_op_reads():
    spec, x = Spec().input("x", "f32", (4,))
    options = {"iterators": PARALLEL, "maps": ("(i) -> (i)",) * 2, "body": lambda x: x + 1}
    spec, a = spec.generic("first", ins=(x,), out=("a", "f32", (4,)), **options)
    spec, _ = spec.generic("second", ins=(x,), out=("b", "f32", (4,)), **options)
    assert spec.output_names == ("a", "b")
    spec, _ = spec.generic("third", ins=(a,), out=("c", "f32", (4,)), **options)
    assert spec.output_names == ("b", "c")


def test_labels_that_contradict_the_maps_become_notes():
    spec, x = Spec().input("x", "f32", (4, 3))
    spec, _ = spec.generic(
        "rows", ins=(x,), out=("y", "f32", (4,)), iterators=("reduction", "parallel"),
        maps=("(i, j) -> (i, j)", "(i, j) -> (i)"), body=lambda x: x, reduce="+",
    )  # fmt: skip
    assert spec.notes == (
        "op rows: dim i is labelled reduction; the result's map names it, so it is parallel",
        "op rows: dim j is labelled parallel; the result's map does not name it, so it is reduction",
    )
    np.testing.assert_array_equal(interpret(spec, x=np.ones((4, 3), "f4")), [3, 3, 3, 3])


# ---- what is refused
def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(SpecError) as caught:
        call()
    return str(caught.value)


def generic(**changes: Any) -> str:
    spec, x = Spec().input("x", "f32", (4, 3))
    options: dict[str, Any] = {
        "ins": (x,), "out": ("y", "f32", (4, 3)), "iterators": PARALLEL * 2, "maps": ("(i, j) -> (i, j)",) * 2,
        "body": lambda x: x,
    }  # fmt: skip
    return refusal(lambda: spec.generic("op", **{**options, **changes}))


def test_wrong_calls():
    assert generic(maps=("(i, j) -> (i, j)",)) == (
        "op op: maps: expected 2, one for each of x, y (the result last), got 1"
    )
    assert generic(maps=("(i, j) -> (i, j)", "(i, k) -> (i, k)")) == (
        "op op: operand y: its map has the dims ('i', 'k'), the first ('i', 'j'); use the same"
    )
    assert generic(maps=("(i, j) -> (i*j, j)", "(i, j) -> (i, j)")) == (
        "op op: operand x: `(i, j) -> (i*j, j)`: `i * j` is not affine: one factor of a product must be a constant"
    )
    assert generic(maps=("(i, j) -> (i)", "(i, j) -> (i, j)")) == (
        "op op: operand x[i]: x: f32[4, 3] has 2 axes, got 1 subscript"
    )
    assert generic(maps=("(i, j) -> (j, i)", "(i, j) -> (i, j)")) == (
        "op op: the dim i has different ends: 3 by axis 1 of x and 4 by axis 0 of y; make them equal, or keep i within all of "
        "them by where"
    )
    assert generic(maps=("(i, j) -> (i, j + 1)", "(i, j) -> (i, j)")) == (
        "op op: operand x[i, j + 1]: subscript 1 (j + 1) is 3 at i = 0, j = 2, outside axis 1 of x, which has extent 3; an "
        "extent of 4 is needed; bound j by where, or change the shape"
    )
    assert generic(iterators=PARALLEL) == (
        "op op: iterators: expected 2, one for each dim of ('i', 'j'), got ('parallel',)"
    )
    assert generic(iterators=("parallel", "window")) == (
        "op op: iterators: dim j is 'window'; expected 'parallel' or 'reduction'"
    )
    assert generic(
        iterators=("parallel", "reduction"), out=("y", "f32", (4,)), maps=("(i, j) -> (i, j)", "(i, j) -> (i)")
    ) == ("op op: dim j is reduced, but no operator is given; pass reduce='+', '*', 'min' or 'max'")
    assert generic(out=("y", "f32", (4,)), maps=("(i, j) -> (i, j)", "(i, j) -> (i)")) == (
        "op op: `=` writes the cell y[0] twice, at i = 0, j = 0 and at i = 0, j = 1; use a reduction (+=, *=, min=, max=) or "
        "another target"
    )
    assert generic(reduce="-") == "op op: reduce: expected one of +, *, min, max or None, got '-'"
    assert generic(out=("x", "f32", (4, 3))) == "op op: tensor x: there is one of this name already; choose another"
    assert generic(out=("y", "f32")) == "op op: out: expected (name, dtype, shape), got ('y', 'f32')"
    assert generic(out=("y", "f64", (4, 3))) == "op op: the body has dtype f32 and the result y has f64; cast it"
    assert generic(ins=(Tensor("q", "f32", (4, 3)),)) == (
        "op op: operand q: f32[4, 3]: unknown tensor; this spec has x; pass what .input and .generic returned"
    )
    assert generic(init="x") == "op op: init: only a reduction starts from a tensor; pass reduce= as well"
    assert generic(body=lambda x: polyq.i64(x) + polyq.index("k")) == (
        "op op: the body has dtype i64 and the result y has f32; cast it"
    )
    assert (
        generic(body=lambda x: polyq.f32(polyq.index("k"))) == "op op: index('k'): no dim of this op; its dims are i, j"
    )


def test_foreign_dims():
    strange = AffineMap(("i", "j"), (Affine.dim("i"), Affine.dim("k")))
    assert generic(maps=(strange, "(i, j) -> (i, j)")) == (
        "op op: operand x: its map uses k, which is none of the dims i, j"
    )
    assert generic(where=(Constraint(Affine.dim("k")),)) == "op op: where uses k, which is none of the dims i, j"


def test_an_op_without_operands():
    spec, y = Spec().generic(
        "one", out=("y", "f32", ("n",)), iterators=PARALLEL, maps=("(i) -> (i)",), body=lambda: 1.0
    )
    assert (spec.inputs, spec.outputs, spec.params) == ((), (y,), ("n",))
    spec, _ = Spec().generic("all", out=("s", "i64", ()), iterators=(), maps=("() -> ()",), body=lambda: 7)
    assert interpret(spec) == 7


def test_bodies_that_are_no_expressions():
    assert generic(body=lambda x: x if x > 0 else 0) == (
        "op op: a traced value has no truth value: the body is traced once for all elements; use select(condition, a, b), "
        "minimum, maximum, or &, | and ~ for and, or and not"
    )
    assert generic(body=lambda x: "x") == ("op op: a body combines traced values and numbers, got 'x' of type str")
    assert generic(body=lambda x: x + "1") == "op op: a body combines traced values and numbers, got '1' of type str"
    assert generic(body=lambda x: x + polyq.i32(1)) == (
        "op op: add: the operands have dtypes f32 and i32; different dtypes mix only through casts, such as f32(...)"
    )


def test_names_are_checked():
    spec, _ = Spec().input("x", "f32", ("m",))
    assert refusal(lambda: spec.input("x", "f32", (4,))) == (
        "tensor x: there is one of this name already; choose another"
    )
    assert refusal(lambda: spec.input("m", "f32", (4,))) == "m is a tensor and a parameter of a shape; rename one"
    assert refusal(lambda: spec.input("exp", "f32", (4,))).endswith(
        "reserved for a function, a dtype or an argument; rename it"
    )
    assert refusal(lambda: spec.input("x.1", "f32", (4,))).startswith("tensor 'x.1': expected a name of ASCII letters")


def test_reading_cells_that_only_the_zero_fill_sets():
    spec, x = Spec().input("x", "f32", (4,))
    spec, y = spec.generic(
        "even",
        ins=(x,),
        out=("y", "f32", (8,)),
        iterators=PARALLEL,
        maps=("(i) -> (i)", "(i) -> (2*i)"),
        body=lambda x: x,
    )
    got = refusal(
        lambda: spec.generic(
            "all", ins=(y,), out=("t", "f32", (8,)), iterators=PARALLEL, maps=("(i) -> (i)",) * 2, body=lambda y: y
        )
    )
    assert (
        got
        == "op all: operand y[i] reads the cell y[1] at i = 1, which nothing has written by then; write the cell first"
    )


def test_traced_values_print():
    assert repr(Traced(Index(Affine.dim("i"))) + 1) == "i64: i + 1"
    assert repr(polyq.f32(2)) == "f32: 2.0"

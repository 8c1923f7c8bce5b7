"""What a program in index notation means: ops, domains, shapes, types, start values, inputs and outputs."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

from polyq.affine.expr import Affine, Constraint
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import Op, Spec, Tensor

FLAGSHIP = """
    d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
    y[m, n] += x[m, g, j] * d[n, g, j]
"""


def boxes(spec: Spec) -> dict[str, dict[str, str]]:
    return {op.name: dict(zip(op.dims, map(str, op.extents), strict=True)) for op in spec.ops}


def shape(spec: Spec, name: str) -> tuple[int | str, ...]:
    return spec.tensor(name).shape


def test_the_flagship():
    spec = parse(
        FLAGSHIP, w=("u8", (4096, 32, 128)), z=("f32", (4096, 32)), s=("f32", (4096, 32)), x=("f32", ("m", 32, 128))
    )
    n, g, j, m = (Affine.dim(d) for d in "ngjm")
    assert [t.name for t in spec.inputs] == ["w", "z", "s", "x"]
    assert spec.outputs == (Tensor("y", "f32", ("m", 4096)),)
    assert spec.temporaries == (Tensor("d", "f32", (4096, 32, 128)),)
    load = Load("w", (n, g, j), "u8")
    shifted = Apply("sub", (Cast(load, "f32"), Load("z", (n, g), "f32")), "f32")
    sizes = (Affine(4096), Affine(32), Affine(128))
    assert spec.ops == (
        Op("d", ("n", "g", "j"), sizes, "d", (n, g, j), Apply("mul", (shifted, Load("s", (n, g), "f32")), "f32")),
        Op("y.init", ("m", "n"), (Affine.param("m"), Affine(4096)), "y", (m, n), Const(0.0, "f32")),
        Op(
            "y", ("m", "n", "g", "j"), (Affine.param("m"), *sizes), "y", (m, n),
            Apply("mul", (Load("x", (m, g, j), "f32"), Load("d", (n, g, j), "f32")), "f32"), "+",
        ),
    )  # fmt: skip
    assert spec.params == ("m",)


def test_lines_declare_as_keywords_do():
    by_line = parse("x: f32[m, 4]\ns: f32  # a scalar\nt: f32[]\ny[i, j] = x[i, j]*s + t")
    by_keyword = parse("y[i, j] = x[i, j]*s + t", x=("f32", ("m", 4)), s=("f32", ()), t=("f32", ()))
    assert by_line == by_keyword
    assert parse("x: f32[2*n - 1, 3*2]\ny[i] = x[i, 5]").inputs == (Tensor("x", "f32", ("2*n - 1", 6)),)
    assert parse(str(by_line)) == by_line


def test_keywords_come_before_lines():
    assert parse("b: f32[3]\ny[i] = a[i] + b[i]", a=("f32", 3)).input_names == ("a", "b")


def test_comments_blank_lines_and_open_brackets():
    spec = parse("# sums\n\ny[i] += x[i,   # the row\n   j]\n\n z[i] = y[i] # twice\n", x=("f32", (2, 3)))
    assert [str(op) for op in spec.ops] == ["y[i] = 0.0", "y[i] += x[i, j]", "z[i] = y[i]"]


def test_dims_stand_in_order_of_first_appearance():
    assert parse("y[b, a] += x[d, a, c, b]", x=("f32", (2, 3, 4, 5))).op("y").dims == ("b", "a", "d", "c")
    assert parse("y += f32(j) * x[i, j]", x=("f32", (2, 3))).op("y").dims == ("j", "i")
    assert parse("y[i] = x[j, i]*w[k] where j == 0, k == 0", x=("f32", (2, 3)), w=("f32", 2)).op("y").dims == (
        "i",
        "j",
        "k",
    )


def test_specs_are_values():
    def make() -> Spec:
        return parse("y[i] += a[i, k]*x[k] where k <= i", a=("f32", ("n", "n")), x=("f32", ("n",)))

    assert make() == make()
    assert hash(make()) == hash(make())
    assert pickle.loads(pickle.dumps(make())) == make()


# ---- operators and start values
@pytest.mark.parametrize(
    ("op", "dtype", "start"),
    [
        ("+=", "f32", 0.0), ("*=", "f32", 1.0), ("min=", "f32", math.inf), ("max=", "f32", -math.inf),
        ("+=", "i8", 0), ("*=", "u8", 1), ("min=", "u8", 255), ("min=", "i8", 127), ("max=", "i8", -128), ("max=", "u4", 0),
    ],
)  # fmt: skip
def test_a_reduction_starts_at_the_identity(op: str, dtype: str, start: float):
    spec = parse(f"y[i] {op} x[i, k]", x=(dtype, (2, 3)))
    assert [o.name for o in spec.ops] == ["y.init", "y"]
    assert spec.op("y.init").body == Const(start, dtype)
    assert spec.op("y.init").reduce is None
    assert spec.op("y").reduce == op[:-1]


def test_a_declared_tensor_starts_at_its_incoming_value():
    spec = parse("y[i] += x[i, k]", x=("f32", (2, 3)), y=("f32", 2))
    assert [op.name for op in spec.ops] == ["y"]
    assert (spec.input_names, spec.output_names) == (("x", "y"), ("y",))
    got = interpret(spec, x=np.ones((2, 3), "f4"), y=np.array([5, 6], "f4"))
    np.testing.assert_array_equal(got, [8, 9])


def test_a_reduction_goes_on_from_earlier_statements():
    spec = parse("y[i] = b[i]\ny[i] += x[i, k]", x=("f32", (2, 3)), b=("f32", 2))
    assert [op.name for op in spec.ops] == ["y", "y.2"]


def test_the_whole_box_of_a_reduction_may_be_read():
    spec = parse("y[i] += y[i - 1] + x[i] where i >= 1", x=("f32", 4))
    assert boxes(spec)["y.init"] == {"i": "4"}
    np.testing.assert_array_equal(interpret(spec, x=np.array([9, 1, 2, 3], "f4")), [0, 1, 3, 6])


def test_unwritten_cells_of_an_output_are_zero():
    spec = parse("y[2*i] = x[i]", x=("f32", 3))
    assert [str(op) for op in spec.ops] == ["y[d0] = 0.0", "y[2*i] = x[i]"]
    np.testing.assert_array_equal(interpret(spec, x=np.array([1, 2, 3], "f4")), [1, 0, 2, 0, 3])
    flags = parse("y[2*i] = x[i] > 0", x=("f32", 3))
    assert flags.op("y.init").body == Const(False, "bool")


def test_a_temporary_without_reads_of_holes_needs_no_fill():
    spec = parse("t[2*i] = x[i]\ny[i] = t[2*i] where i < 3", x=("f32", 3))
    assert [op.name for op in spec.ops] == ["t", "y"]


def test_two_statements_that_cover_the_target_need_no_fill():
    spec = parse("y[2*i] = a[i]\ny[2*i + 1] = b[i]", a=("f32", 3), b=("f32", 3))
    assert [op.name for op in spec.ops] == ["y", "y.2"]
    assert shape(spec, "y") == (6,)
    got = interpret(spec, a=np.array([1, 2, 3], "f4"), b=np.array([4, 5, 6], "f4"))
    np.testing.assert_array_equal(got, [1, 4, 2, 5, 3, 6])


def test_of_two_statements_the_later_wins():
    spec = parse("y[i] = x[i]\ny[i] = 0.0 where i < 2", x=("f32", 3))
    np.testing.assert_array_equal(interpret(spec, x=np.ones(3, "f4")), [0, 0, 1])


# ---- domains
def test_where_narrows_the_box_and_keeps_what_the_box_does_not_say():
    spec = parse("y[i, j] = x[i, j] where j <= i, 1 <= i, j < 6", x=("f32", (8, 8)))
    op = spec.op("y")
    i, j = Affine.dim("i"), Affine.dim("j")
    assert boxes(spec)["y"] == {"i": "8", "j": "6"}
    assert set(op.where) == {Constraint(i - j), Constraint(i - 1)}


def test_chained_constraints_and_equalities():
    op = parse("y[i] += x[j] where 0 <= i - j < 2, i == 2*k, k >= 0", x=("f32", 4), y=("f32", 5)).op("y")
    i, j = Affine.dim("i"), Affine.dim("j")
    k = Affine.param("k")  # a name in no subscript is a parameter
    assert set(op.where) == {Constraint(i - j), Constraint(j - i + 1), Constraint(i - 2 * k, equality=True)}


def test_a_dim_may_have_the_name_of_a_parameter():
    spec = parse("y[m] = x[m] + f32(n)", x=("f32", ("m",)))
    assert spec.op("y").extents == (Affine.param("m"),)
    assert spec.op("y").index == (Affine.dim("m"),)
    assert spec.params == ("m", "n")


@pytest.mark.parametrize(
    ("text", "tensors", "box"),
    [
        ("y[i] = 1.0 where i < 9", {}, {"i": "9"}),
        ("y[i] = 1.0 where i <= n - 3", {}, {"i": "n - 2"}),
        ("y[i] = 1.0 where 2*i < n", {}, {"i": "(n + 1)//2"}),
        ("y[i] = x[i] where i < 3", {"x": ("f32", 8)}, {"i": "3"}),
        ("y[i] = a[i] + b[i] where i < 6", {"a": ("f32", 8), "b": ("f32", 7)}, {"i": "6"}),
        ("y[i, k] += x[i] where k <= i", {"x": ("f32", ("m",))}, {"i": "m", "k": "m"}),
        ("y[i] += w[k] where 0 <= i - k < 4", {"w": ("f32", 8)}, {"i": "11", "k": "8"}),
        ("y[i] = x[2*i + 1] where 2*i + 1 < 8", {"x": ("f32", 8)}, {"i": "4"}),
        ("y[i] += x[i + k]*w[k] where i < 4", {"x": ("f32", 6), "w": ("f32", 3)}, {"i": "4", "k": "3"}),
    ],
)
def test_where_dims_end(text: str, tensors: dict[str, tuple[str, int]], box: dict[str, str]):
    assert boxes(parse(text, **tensors))["y"] == box


def test_different_ends_within_which_where_keeps_the_dim():
    spec = parse("y[i] = a[i] + b[i] where i < n, i < m", a=("f32", ("n",)), b=("f32", ("m",)))
    for n, m in itertools.product(range(4), repeat=2):
        domain = [
            k for k in range(6) if all(c.expr.evaluate({"i": k}, {"n": n, "m": m}) >= 0 for c in spec.op("y").domain)
        ]
        assert domain == list(range(min(n, m)))


def test_the_target_ends_a_dim_that_nothing_else_does():
    spec = parse("y[i] = x[i]\ny[i] = y[i]*2 + 1", x=("f32", ("n",)))
    assert boxes(spec) == {"y": {"i": "n"}, "y.2": {"i": "n"}}


def test_a_time_loop_over_an_undeclared_tensor():
    spec = parse("y[0, i] = x[i]\ny[t + 1, i] = y[t, i]*0.5 where t < 3", x=("f32", ("n",)))
    assert boxes(spec) == {"y": {"i": "n"}, "y.2": {"t": "3", "i": "n"}}
    assert shape(spec, "y") == (4, "n")
    np.testing.assert_array_equal(interpret(spec, x=np.array([8], "f4")), [[8], [4], [2], [1]])


# ---- shapes
@pytest.mark.parametrize(
    ("text", "tensors", "expected"),
    [
        ("y[i + j] += a[i]*b[j]", {"a": ("f32", 8), "b": ("f32", 5)}, (12,)),
        ("y[i - j] = x[i, j] where 0 <= i - j < 4, j == 0", {"x": ("f32", (8, 8))}, (4,)),
        ("y[i] += x[i, k] where i + k < 4", {"x": ("f32", (8, 8))}, (8,)),
        ("y[i, j] += a[i, k]*a[j, k] where j <= i", {"a": ("f32", ("n", 3))}, ("n", "n")),
        ("y[i//2] += x[i]", {"x": ("f32", 7)}, (4,)),
        ("y[i//2] += x[i]", {"x": ("f32", ("n",))}, ("(n + 1)//2",)),
        ("y[i%4] += x[i]", {"x": ("f32", 99)}, (4,)),
        ("y[i] = x[i] + x[i + 2] where i < n - 2", {"x": ("f32", ("n",))}, ("n - 2",)),
        ("y[i] = x[i]", {"x": ("f32", 0)}, (0,)),
        ("y[i + 3] = x[i] where i < 2", {"x": ("f32", 8)}, (5,)),
        ("y[i] = x[i] where i < 2, i > 4", {"x": ("f32", 8)}, (0,)),
        ("y += x[i]", {"x": ("f32", 8)}, ()),
        ("y[0] = x[0]\ny[i] = y[i - 1] + x[i] where i >= 1", {"x": ("f32", 8)}, (8,)),
        ("y[i] = a[i]\ny[i + 8] = b[i]", {"a": ("f32", 8), "b": ("f32", 4)}, (12,)),
    ],
)
def test_shapes_of_undeclared_tensors(text: str, tensors: dict[str, tuple[str, int]], expected: tuple[int | str, ...]):
    assert shape(parse(text, **tensors), "y") == expected


def test_a_reader_sees_the_whole_shape():
    spec = parse("c[i] = a[i]\nc[i + 8] = b[i]\ny[i] = c[i]*2", a=("f32", 8), b=("f32", 4))
    assert boxes(spec)["y"] == {"i": "12"}


# ---- types
def test_literals_take_the_dtype_of_the_other_operand():
    body = parse("y[i] = x[i]*2 + 1", x=("f64", 3)).op("y").body
    load = Load("x", (Affine.dim("i"),), "f64")
    assert body == Apply("add", (Apply("mul", (load, Const(2.0, "f64")), "f64"), Const(1.0, "f64")), "f64")
    assert parse("y[i] = 1/3 * x[i]", x=("f64", 3)).tensor("y").dtype == "f64"
    assert parse("y[i] = x[i] - 1", x=("u8", 3)).op("y").body.args[1] == Const(1, "u8")
    assert parse("y[i] = -128 + x[i]", x=("i8", 3)).op("y").body.args[0] == Const(-128, "i8")


def test_literals_alone():
    assert parse("y = 2.5").op("y").body == Const(2.5, "f32")
    assert parse("y = 2").op("y").body == Const(2, "i64")
    assert parse("y = -inf").op("y").body == Const(-math.inf, "f32")
    assert parse("y[i] = nan", y=("f64", 3)).op("y").body == Const(math.nan, "f64")
    assert parse("y[i] = 0", y=("u8", 3)).op("y").body == Const(0, "u8")
    assert parse("y[i] = -9223372036854775808", y=("i64", 3)).op("y").body == Const(-(2**63), "i64")
    assert parse("y[i] = f64(0.1) where i < 2").op("y").body == Const(0.1, "f64")
    assert parse("y[i] = u8(300) where i < 2").op("y").body == Cast(Const(300, "i64"), "u8")


def test_dims_and_parameters_are_values():
    i, j, n = Affine.dim("i"), Affine.dim("j"), Affine.param("n")
    assert parse("y[i, j] = 10*i + j where i < 2, j < 3").op("y").body == Index(10 * i + j)
    assert parse("y[i] = f32(n - i//2 % 3) where i < 5").op("y").body == Cast(Index(n - i // 2 % 3), "f32")
    assert parse("y[i, j] = i*j where i < 2, j < 3").op("y").body == Apply("mul", (Index(i), Index(j)), "i64")
    assert parse("y[i] = i//(-2) where i < 5").op("y").body == Apply("floordiv", (Index(i), Const(-2, "i64")), "i64")


def test_functions_comparisons_and_logic():
    spec = parse("y[i] = select(0 < x[i] <= 1 and not x[i] == 0.5, exp(x[i]), min(x[i], 2, 3))", x=("f32", 3))
    text = "select(0.0 < x[i] and x[i] <= 1.0 and not (x[i] == 0.5), exp(x[i]), min(min(x[i], 2.0), 3.0))"
    assert str(spec.op("y")) == f"y[i] = {text}"
    assert parse("y[i] = x[i] > 0 or x[i] < -1", x=("f32", 3)).tensor("y").dtype == "bool"


def test_a_scalar_is_a_bare_name():
    spec = parse("y += x[i]\nz[i] = x[i]/y", x=("f32", 3))
    assert spec.op("z").reads[1] == Load("y", (), "f32")
    assert spec.output_names == ("z",)


# ---- inputs and outputs
@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("y[i] = x[i]", ("x",), ("y",)),
        ("y[i] = x[i] where i < 2", ("x", "y"), ("y",)),
        ("y[i] = y[i] + x[i]", ("x", "y"), ("y",)),
        ("x[i] = x[i]*2", ("x", "y"), ("x",)),
        ("y[i] = x[i]\ny[i] += y[i]*2", ("x",), ("y",)),
        ("y[i] = x[i] where i < 2\ny[i] = 1.0 where i >= 2", ("x",), ("y",)),
        ("y[0] = x[0]\ny[i] = y[i - 1] where i >= 1", ("x",), ("y",)),
        ("y[i] = y[3 - i] where i < 4", ("x", "y"), ("y",)),
        ("t[i] = x[i]\ny[i] = t[i]", ("x",), ("y",)),
        ("b[i] = x[i]\na[i] = x[i]\ny[i] = 1.0", ("x",), ("b", "a", "y")),
        ("t[i] = x[i]\nt[i] += t[i]*2", ("x", "y"), ("t",)),
    ],
)
def test_what_comes_in_and_goes_out(text: str, inputs: tuple[str, ...], outputs: tuple[str, ...]):
    spec = parse(text, x=("f32", 4), y=("f32", 4))
    assert (spec.input_names, spec.output_names) == (inputs, outputs)


def test_outputs_can_be_named():
    spec = parse("t[i] = x[i]\ny[i] = t[i]*2\nz[i] = t[i]*3", x=("f32", 4), outputs=("z", "t"))
    assert spec.output_names == ("z", "t")
    assert [t.name for t in spec.temporaries] == ["y"]


# ---- programs with a value worked out by hand
def test_padding_stays_outside_the_sum():
    spec = parse(
        "y[m, n] += x[m, k]*(f32(w[n, k])*s[n, k//32]) where k < 40",
        x=("f32", (1, 40)), w=("u4", (2, 64)), s=("f32", (2, 2)),
    )  # fmt: skip
    w = np.full((2, 32), 0xFF, "u1")
    w[0, :20], w[1, :20] = 0x11, 0x22
    got = interpret(spec, x=np.ones((1, 40), "f4"), w=w, s=np.array([[1, 10], [1, 10]], "f4"))
    np.testing.assert_array_equal(got, [[112, 224]])


def test_strided_convolution_reads_nine_elements():
    text = "y[i] += x[2*i + k]*w[k] where i < 4"
    for length in (9, 10):
        x = np.arange(length, dtype="f4")
        got = interpret(parse(text, x=("f32", length), w=("f32", 3)), x=x, w=np.ones(3, "f4"))
        np.testing.assert_array_equal(got, [3, 9, 15, 21])


def test_empty_shapes():
    spec = parse("y[m, n] += x[m, k]*w[n, k]", x=("f32", ("m", "k")), w=("f32", (4, "k")))
    assert interpret(spec, x=np.ones((0, 8), "f4"), w=np.ones((4, 8), "f4")).shape == (0, 4)
    np.testing.assert_array_equal(interpret(spec, x=np.ones((3, 0), "f4"), w=np.ones((4, 0), "f4")), np.zeros((3, 4)))


def test_a_program_is_named_after_its_outputs():
    def name(text):
        return parse(text, x=("f32", (4,))).name

    assert name("y[i] = x[i]") == "y"
    assert name("y[i] = x[i]\nz[i] = x[i]") == "y_z"
    assert name("a[i] = x[i]\nb[i] = x[i]\nc[i] = x[i]\nd[i] = x[i]") == "a_and_3_more"


def test_a_text_has_the_brackets_that_it_needs_and_reads_back():
    bodies = [
        "a[i] - (b[i] - c[i]) - a[i]", "a[i] * (-b[i]) + -c[i]", "-(a[i] * b[i])", "(a[i] - 1.0) / (b[i] / c[i]) / 2.0",
        "select(not (a[i] < b[i]) and (c[i] > 1.0 or a[i] == 2.0), a[i], -(1.0))", "exp(a[i] + b[i] * c[i])",
        "select((a[i] < b[i]) == (b[i] < c[i]), a[i], b[i])", "a[i] * f32(i + 3) + f32((2*i + 1) * (i - 1))" , "a[i] + (b[i] + c[i])",
    ]  # fmt: skip
    tensors = dict.fromkeys("abc", ("f32", (5,)))
    for body in bodies:
        spec = parse(f"y[i] = {body}", **tensors)
        text = str(spec.ops[-1]).removesuffix(" where i < 5")
        assert parse(text, **tensors) == spec, text
        assert "((" not in text or "f32((" in text or "select((" in text, text


def test_an_index_as_a_value_keeps_its_brackets():
    spec = parse("y[i] = x[i] * f32(i32(2*i) * i32(i // 2 + 1) - i32(i))", x=("f32", (5,)))
    assert parse(str(spec.ops[-1]), x=("f32", (5,))) == spec

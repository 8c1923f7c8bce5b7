"""What is said of a wrong program, word by word: where, which operand, which dim, what came, what to do."""

from __future__ import annotations

import numpy as np
import pytest

from polyq.affine.errors import PolyqError, SpecError
from polyq.affine.notation import parse

X = {"x": ("f32", 8)}


def message(text: str, **options: object) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text, **options)
    return str(caught.value)


def test_a_read_outside_names_the_point_and_the_extent_that_is_needed():
    assert message("y[i] += x[2*i + k]*w[k]", x=("f32", 8), w=("f32", 3), y=("f32", 4)) == (
        "line 1, `y[i] += x[2*i + k]*w[k]`: op y: operand x[2*i + k]: subscript 0 (2*i + k) is 8 at i = 3, k = 2, outside "
        "axis 0 of x, which has extent 8; an extent of 9 is needed; bound i, k by where, or change the shape"
    )


def test_a_read_outside_for_some_parameters():
    assert message("y[i] = x[i + 1]", x=("f32", ("n",)), y=("f32", ("n",))) == (
        "line 1, `y[i] = x[i + 1]`: op y: operand x[i + 1]: subscript 0 (i + 1) is 1 at i = 0 (with n = 1), outside axis 0 of "
        "x, which has extent n = 1 there; an extent of n + 1 is needed; bound i by where, or change the shape"
    )


def test_a_negative_subscript():
    assert message("y[i] = x[i - 1] where i < 3", **X) == (
        "line 1, `y[i] = x[i - 1] where i < 3`: op y: operand x[i - 1]: subscript 0 (i - 1) is -1 at i = 0, outside axis 0 of "
        "x, which has extent 8; bound i by where, or change the shape"
    )


def test_a_write_outside():
    assert message("y[i + 1] = x[i]", y=("f32", 8), **X) == (
        "line 1, `y[i + 1] = x[i]`: op y: operand y[i + 1]: subscript 0 (i + 1) is 8 at i = 7, outside axis 0 of y, which "
        "has extent 8; an extent of 9 is needed; bound i by where, or change the shape"
    )


def test_a_constant_subscript_outside():
    assert message("y = x[8]", **X) == (
        "line 1, `y = x[8]`: op y: operand x[8]: subscript 0 (8) is 8 at its only instance, outside axis 0 of x, which has "
        "extent 8; an extent of 9 is needed; change the shape"
    )


def test_one_statement_writes_a_cell_twice():
    assert message("z[i] = x[i]\na[i//2] = x[i] + z[i]", **X) == (
        "line 2, `a[i//2] = x[i] + z[i]`: op a: `=` writes the cell a[0] twice, at i = 0 and at i = 1; use a reduction (+=, "
        "*=, min=, max=) or another target"
    )
    assert "op y: `=` writes the cell y twice, at i = 0 and at i = 1" in message("y = x[i]", **X)
    assert "op y: `=` writes the cell y[0] twice, at i = 0, j = 0 and at i = 0, j = 1" in message(
        "y[i] = x[i] + u[j] where j < 2, i < 7", u=("f32", 2), **X
    )


def test_a_read_of_a_cell_that_nothing_wrote():
    assert message("y[i] = y[i - 1] + x[i] where i >= 1", **X) == (
        "line 1, `y[i] = y[i - 1] + x[i] where i >= 1`: op y: operand y[i - 1] reads the cell y[0] at i = 1, which nothing has "
        "written by then; write the cell in an earlier statement, or declare y"
    )
    assert message("t[2*i] = x[i]\ny[i] = t[i] where i < 8", **X) == (
        "line 2, `y[i] = t[i] where i < 8`: op y: operand t[i] reads the cell t[1] at i = 1, which nothing has written by "
        "then; write the cell in an earlier statement, or declare t"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y[i] = a[b[i]]", "operand a, subscript 0 (`b[i]`): `b[i]` is read from memory, which no affine expression can do"),
        ("y[i] = a[i*j]", "operand a, subscript 0 (`i * j`): `i * j` is not affine: one factor of a product must be a constant"),
        ("y[i] = a[i%n] where i < 8", "operand a, subscript 0 (`i % n`): `i % n` is not affine: // and % need a positive constant on the right"),
        ("y[i] = a[i//0]", "operand a, subscript 0 (`i // 0`): `i // 0` is not affine: // and % need a positive constant on the right"),
        ("y[i] = a[1 + i//-2]", "operand a, subscript 0 (`1 + i // -2`): `i // -2` is not affine: // and % need a positive constant on the right"),
        ("y[i] = u[i, exp(i)]", "operand u, subscript 1 (`exp(i)`): `exp(i)` is not affine: sums, products with constants, // and % are"),
        ("y[i] = a[i/2]", "operand a, subscript 0 (`i / 2`): `i / 2` is not affine: sums, products with constants, // and % are"),
        ("y[i] = a[1.5]", "operand a, subscript 0 (`1.5`): `1.5` is no integer; an affine expression has integer constants only"),
        ("y[a[i]] = 1.0", "operand y, subscript 0 (`a[i]`): `a[i]` is read from memory, which no affine expression can do"),
        ("y[i] = a[0:3]", "subscript `0:3`: slices are no part of index notation; name a dim"),
        ("y[i] = a[i] where i != 3", "`i != 3`: a constraint compares with <, <=, >, >= or =="),
        ("y[i] = a[i] where i", "`i` is no constraint: expected a comparison of affine expressions, such as k <= i"),
        ("y[i] = a[i] where i > 1 and i < 3", "`i > 1 and i < 3` is no constraint: expected comparisons of affine expressions, separated by commas"),
        ("y[i] = a[i] where i < 1 or i > 3", "`i < 1 or i > 3` is no constraint: expected comparisons of affine expressions; all that a statement has must hold"),
        ("y[i] = a[i] where i*i < 3", "`i * i` is not affine: one factor of a product must be a constant"),
        ("y[i] = a[i] where i < b", "where: b is a tensor; constraints have dims, parameters and constants only"),
    ],
)  # fmt: skip
def test_what_is_not_affine(text: str, said: str):
    got = message(text, a=("f32", 8), b=("i32", 8), u=("f32", (8, 8)))
    assert got == f"line 1, `{text}`: op y: {said}"


def test_dims_without_an_end_and_with_two():
    assert message("y[i] = x[7 - i]", **X) == (
        "line 1, `y[i] = x[7 - i]`: op y: the dim i has no end: it indexes no tensor of known shape alone, and no constraint "
        "bounds it; add one, such as where i < 8 (dims are all names in subscripts, here i)"
    )
    assert "(dims are all names in subscripts, here i, n)" in message(
        "y[i] = x[n - 1 - i] where i < n", x=("f32", ("n",))
    )
    assert message("y[i] = x[i] + z[i, 0]", x=("f32", 8), z=("f32", (7, 2))) == (
        "line 1, `y[i] = x[i] + z[i, 0]`: op y: the dim i has different ends: 8 by axis 0 of x and 7 by axis 0 of z; make "
        "them equal, or keep i within all of them by where"
    )
    assert "n by axis 0 of x and m by axis 0 of z" in message(
        "y[i] = x[i] + z[i] where i < 7", x=("f32", ("n",)), z=("f32", ("m",))
    )


def test_names():
    assert message("y[i] = q[i]", **X) == (
        "line 1, `y[i] = q[i]`: op y: operand q: unknown tensor; known here are x, y; declare it, as q: f32[...]"
    )
    assert message("y[i] = t[i]\nt[i] = x[i]", **X) == (
        "line 1, `y[i] = t[i]`: op y: operand t is used before any statement writes it; move that statement up or declare t"
    )
    assert message("y[i] = x[i] + x", **X).endswith("op y: operand x: x: f32[8] has 1 axis, got 0 subscripts")
    assert message("t[i] = x[i]\ny[i] = t[i, i]", **X).endswith(
        "op y: operand t: t, by the first statement that writes it, has 1 axis, got 2 subscripts"
    )
    assert message("y[x] = x[i]", **X).endswith(
        "op y: x is a tensor and stands in a subscript; subscripts have dims and constants only"
    )
    assert message("y[i] = x[i]", x=("f32", ("x",))) == "x is a tensor and a parameter of a shape; rename one"
    assert message("x: f32[8]\ny[i] = x[i]", **X) == (
        "tensor x: declared twice; declare it once, as a keyword or as a line"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x[i]*w[i]", "`x[i] * w[i]`: mul: the operands have dtypes f32 and u8; different dtypes mix only through casts, such as f32(...)"),
        ("w[i] + v[i]", "`w[i] + v[i]`: add: the operands have dtypes u8 and i32; different dtypes mix only through casts, such as u8(...)"),
        ("x[i]*alpha", "`x[i] * alpha`: mul: the operands have dtypes f32 and i64; different dtypes mix only through casts, such as f32(...) (a bare name that is no tensor is a dim or parameter of dtype i64: alpha)"),
        ("w[i] + 2.5", "`w[i] + 2.5`: a float literal meets dtype u8; cast one of the operands"),
        ("w[i] + 300", "`w[i] + 300`: the literal 300 does not fit u8 (0 to 255); cast the other operand"),
        ("w[i]/w[i]", "`w[i] / w[i]`: div: expected floats, got u8; cast the operand"),
        ("x[i]//2", "`x[i] // 2`: floordiv: expected unsigned integers, signed integers, got f32; cast the operand"),
        ("v[i]//0", "`v[i] // 0`: floordiv: an integer division by the constant 0; use a divisor other than 0"),
        ("v[i]%0", "`v[i] % 0`: mod: an integer division by the constant 0; use a divisor other than 0"),
        ("v[i]//(1 - 1)", "`v[i] // (1 - 1)`: floordiv: an integer division by the constant 0; use a divisor other than 0"),
        ("v[i]%i32(2*0)", "`v[i] % i32(2 * 0)`: mod: an integer division by the constant 0; use a divisor other than 0"),
        ("exp(w[i])", "`exp(w[i])`: exp: expected floats, got u8; cast the operand"),
        ("exp(x[i], 2)", "`exp(x[i], 2)`: exp: expected 1 argument, got 2"),
        ("f32(x[i], 2)", "`f32(x[i], 2)`: f32(...): a cast takes 1 value, got 2"),
        ("not x[i]", "`not x[i]`: not: expected bool, got f32; cast the operand"),
        ("x[i] if x[i] > 0 else 0", "`x[i] if x[i] > 0 else 0`: write select(condition, a, b)"),
        ("x[i] in w[i]", "`x[i] in w[i]`: expected a comparison with <, <=, >, >=, == or !="),
        ("x[i]**2", "`x[i] ** 2`: there are no powers; write a product, such as a * a"),
        ("'text'", "`'text'` is no part of index notation"),
        ("lambda: 1", "`lambda: 1` is no part of index notation"),
        ("exp(x=1)", "`exp(x=1)` is no part of index notation"),
        ("__import__('os').system('touch z')", "`__import__('os').system('touch z')` is no part of index notation"),
        ("x[i]; system(1)", "`x[i]; system(1)` is no expression of index notation: invalid syntax"),
    ],
)  # fmt: skip
def test_bodies(body: str, said: str):
    got = message(f"y[i] = {body}", x=("f32", 8), w=("u8", 8), v=("i32", 8))
    assert got == f"line 1, `y[i] = {body}`: op y: {said}"


def test_an_unknown_function():
    assert message("y[i] = foo(x[i])", **X).startswith(
        "line 1, `y[i] = foo(x[i])`: op y: `foo(x[i])`: unknown function foo; known are exp, log, sqrt, tanh, erf, abs, floor"
    )


def test_the_body_has_the_dtype_of_the_target():
    assert message("y[i] = x[i]", y=("f64", 8), **X).endswith(
        "op y: the body has dtype f32 and the target y has f64; cast the body, as f64(...)"
    )
    assert message("y[i] max= x[i] > 0", **X).endswith(
        "op y: a reduction combines numbers, got dtype bool; cast to i32, say"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y[i] -= x[i]", "the operator -= is not there; use one of =, +=, *=, min=, max="),
        ("y[i] == x[i]", "expected `target[subscripts] op body`, op one of =, +=, *=, min=, max=, or `name: dtype[shape]`"),
        ("y[i]", "expected `target[subscripts] op body`, op one of =, +=, *=, min=, max=, or `name: dtype[shape]`"),
        ("y[i], z[i] = x[i]", "the left side `y[i], z[i]` is no target: expected name[subscripts], or a name for a scalar"),
        ("y[i] = x[i] where i < 3 where i < 4", "`where` stands there twice; separate constraints by commas"),
        ("y[i] = x[(i]", "a bracket is never closed"),
        ("y: f31[8]", "tensor y: unknown dtype 'f31'; known are u2, u4, u8, u16, u32, u64, i2, i4, i8, i16, i32, i64, f16, bf16, f32, f64, bool"),
        ("y: f32[m*k]", "`m * k` is not affine: one factor of a product must be a constant"),
        ("y: 3 + 4", "`3 + 4` is no type: expected dtype[shape], such as f32[m, 128]"),
    ],
)  # fmt: skip
def test_lines_that_are_no_statements(text: str, said: str):
    assert message(text, **X) == f"line 1, `{text}`: {said}"


@pytest.mark.parametrize(
    "name", ["out", "outputs", "precise", "reference", "numerics", "exp", "f32", "bool", "inf", "where"]
)
def test_reserved_names(name: str):
    said = f"{name!r}: the name is reserved for a function, a dtype or an argument; rename it"
    if name not in ("outputs", "where"):
        assert message("y[i] = 1.0 where i < 2", **{name: ("f32", 8)}) == f"tensor {said}"
    if name != "where":
        assert message(f"{name}[i] = x[i]", **X).endswith(f"tensor {said}")
        assert message(f"y[{name}] = x[{name}]", **X).endswith(f"dim {said}")
        assert message("y[i] = x[i]", x=("f32", (name,))).endswith(f"parameter {said}")


@pytest.mark.parametrize("name", ["a; system('touch z')", "x.1", "é", "", "1x", "__import__", "a b", "lambda", "x\n"])
def test_hostile_names(name: str):
    assert message("y[i] = 1.0 where i < 2", **{name: ("f32", 8)}) == (
        f"tensor {name!r}: expected a name of ASCII letters, digits and _ that starts with a letter or one _ and is no Python "
        "keyword; rename it"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("f32", "tensor x: expected (dtype, shape), such as ('f32', ('m', 128)), got 'f32'"),
        (("f32", None), "tensor x: expected a tuple of ints and texts as the shape, got None"),
        (("f32", (-8,)), "tensor x: the shape entry -8 is negative"),
        (("f32", (2.5,)), "tensor x: the shape entry 2.5 is no int and no text such as 'm' or 'n - 2'"),
        (("f32", ("m # n",)), "tensor x, shape entry 'm # n': `m # n` is no expression of index notation: it holds a comment"),
        (("f32", ("m; n",)), "tensor x, shape entry 'm; n': `m; n` is no expression of index notation: invalid syntax"),
        ((3, (8,)), "tensor x: unknown dtype 3; known are u2, u4, u8, u16, u32, u64, i2, i4, i8, i16, i32, i64, f16, bf16, f32, f64, bool"),
    ],
)  # fmt: skip
def test_declarations(given: object, said: str):
    assert message("y[i] = x[i]", x=given) == said


def test_outputs():
    text = "t[i] = x[i]\ny[i] = t[i]"
    assert message(text, outputs=("z",), **X) == "outputs: there is no tensor 'z'; there are x, t, y"
    assert message(text, outputs=("x",), **X) == "outputs: no statement writes 'x'; written are t, y"
    assert message(text, outputs=("y", "y"), **X) == "outputs: expected one or more different names, got ('y', 'y')"
    assert message(text, outputs=(), **X) == "outputs: expected one or more different names, got ()"


def test_no_output():
    assert message("y[i] = x[i]\nz[i] = y[i]\ny[i] = z[i]", **X) == (
        "outputs: other statements read all of y, z; name the outputs by outputs=(...)"
    )


def test_no_statement():
    assert message("# nothing\n", **X) == "there is no statement; expected lines such as y[i] = x[i] + 1"


def test_shapes_of_which_neither_is_the_larger():
    assert message("y[i] = a[i]\ny[i] = b[i]", a=("f32", ("n",)), b=("f32", ("m",))) == (
        "line 2, `y[i] = b[i]`: op y.2: tensor y: written up to n and up to m, neither always the larger; declare its shape"
    )


def test_start_values_that_contradict():
    assert message("y[2*i] = x[i]\ny[4*i + 1] *= x[i] where i < 2", **X) == (
        "tensor y: cells that no earlier statement wrote would have to start at 1.0 and 0.0; set them by a statement of their "
        "own, such as y[...] = 1.0, in front"
    )


def test_deep_nesting_is_refused_and_not_fatal():
    for body in ("-" * 20000 + "x[i]", "x[i]" + " + x[i]" * 4000, "(" * 300 + "x[i]" + ")" * 300):
        assert issubclass(SpecError, PolyqError)
        got = message(f"y[i] = {body}", **X)
        assert len(got) < 500
        assert "nested too deeply" in got or "too many nested parentheses" in got


@pytest.mark.parametrize(
    ("given", "name"),
    [("float32", "f32"), ("F32", "f32"), ("uint8", "u8"), ("bfloat16", "bf16"), ("int4", "i4"), ("double", "f64"),
     (np.float32, "f32"), (np.dtype("i8"), "i64"), (np.dtype(">f4"), "f32"), (float, "f64"), (np.bool_, "bool")],
)  # fmt: skip
def test_what_others_call_a_dtype(given, name):
    said = message("y[i] = x[i]", x=(given, 8))
    assert said.startswith(f"tensor x: unknown dtype {given!r}; known are u2, ")
    assert said.endswith(f", bool; did you mean {name!r}?")


def test_a_tensor_that_nothing_uses_is_noted():
    spec = parse("y[i] = x[i]", x=("f32", 8), q=("u8", 3))
    assert spec.notes == ("tensor q: declared, but no statement reads or writes it; a call takes it all the same",)
    assert spec.input_names == ("x", "q")
    assert parse("y[i] = x[i]", x=("f32", 8)).notes == ()

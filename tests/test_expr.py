"""Affine expressions: arithmetic, simplification and text against plain integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint, Dim, Param
from polyq.affine.notation import parse_extent, parse_map

NAMES = ("i", "j", "n")
Pair = tuple[Affine, Callable[[dict[str, int]], int]]


def atom(name: str) -> Pair:
    return (Affine.param(name) if name == "n" else Affine.dim(name)), lambda v: v[name]


def constant(value: int) -> Pair:
    return Affine(value), lambda v: value


def _binary(pairs: tuple[Pair, Pair, bool]) -> Pair:
    (a, f), (b, g), plus = pairs
    return (a + b, lambda v: f(v) + g(v)) if plus else (a - b, lambda v: f(v) - g(v))


def _scaled(pair: tuple[Pair, int, str]) -> Pair:
    (a, f), c, op = pair
    if op == "*":
        return a * c, lambda v: f(v) * c
    divisor = abs(c) + 1
    return (a // divisor, lambda v: f(v) // divisor) if op == "//" else (a % divisor, lambda v: f(v) % divisor)


expressions = st.recursive(
    st.one_of(st.sampled_from(NAMES).map(atom), st.integers(-9, 9).map(constant)),
    lambda inner: st.one_of(
        st.tuples(inner, inner, st.booleans()).map(_binary),
        st.tuples(inner, st.integers(-6, 6), st.sampled_from(["*", "//", "%"])).map(_scaled),
    ),
    max_leaves=8,
)
points = st.fixed_dictionaries({"i": st.integers(-40, 40), "j": st.integers(-40, 40), "n": st.integers(0, 40)})


@settings(max_examples=400, deadline=None)
@given(expressions, points)
def test_arithmetic_is_that_of_integers(pair: Pair, v: dict[str, int]):
    expr, value = pair
    assert expr.evaluate(v, v) == value(v)


@settings(max_examples=400, deadline=None)
@given(expressions)
def test_text_reads_back(pair: Pair):
    expr, _ = pair
    text = f"(i, j) -> ({expr})"
    assert parse_map(text) == AffineMap(("i", "j"), (expr,))
    assert str(parse_map(text)) == text


@settings(max_examples=300, deadline=None)
@given(expressions, st.integers(0, 12), st.integers(1, 9), st.integers(0, 12), st.integers(1, 9))
def test_simplify_within_ranges_keeps_every_value(pair: Pair, i0: int, ni: int, j0: int, nj: int):
    expr, value = pair
    expr = expr.substitute(lambda a: Affine(7) if isinstance(a, Param) else None)
    ranges = {"i": (i0, i0 + ni - 1), "j": (j0, j0 + nj - 1)}
    simple = expr.simplify(ranges)
    bounds = expr.bounds(ranges)
    assert bounds is not None
    for i in range(i0, i0 + ni):
        for j in range(j0, j0 + nj):
            point = {"i": i, "j": j, "n": 7}
            assert simple.evaluate(point) == value(point)
            assert bounds[0] <= value(point) <= bounds[1]


@settings(max_examples=200, deadline=None)
@given(expressions, expressions, points)
def test_substitution_is_composition(outer: Pair, inner: Pair, v: dict[str, int]):
    replaced = outer[0].substitute({"i": inner[0]})
    assert replaced.evaluate(v, v) == outer[1]({**v, "i": inner[1](v)})


def test_floor_and_remainder_of_negative_numbers():
    d = Affine.dim("d")
    assert [((d - 3) // 4 + 1).evaluate({"d": k}) for k in range(8)] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert Affine(-10) % 5 == Affine(0)
    assert ((d - (d + 2)) // 8) % 8 == Affine(7)
    assert (Affine(13) % 12) % 8 == Affine(1)


def test_equal_expressions_are_equal_values():
    i, j = Affine.dim("i"), Affine.dim("j")
    assert (i + j) - j == i
    assert (128 * i + j) // 128 == i + j // 128
    assert (4 * i + 2) // 4 == i
    assert i // 2 // 3 == i // 6
    assert (2 * i + 4 * j) // 6 == (i + 2 * j) // 3
    assert i % 8 == i - 8 * (i // 8)
    assert Affine.dim("m") != Affine.param("m")
    assert hash(i + j) == hash(j + i)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Affine.dim("i") % 4, "i%4"),
        (-(Affine.dim("i") // 5) + 8, "8 - i//5"),
        (-(Affine.dim("i") // 5) - 8, "-(i//5) - 8"),
        (3 * (Affine.dim("i") // 2) - 1, "3*(i//2) - 1"),
        (-2 * Affine.dim("i") + Affine.param("n"), "n - 2*i"),
        (Affine(-4), "-4"),
    ],
)
def test_text(expr: Affine, text: str):
    assert str(expr) == text


def test_a_divisor_must_be_positive():
    with pytest.raises(ValueError, match="floor division by 0: the divisor must be a positive constant"):
        Affine.dim("i") // 0


def test_extents_have_parameters_and_maps_have_dims():
    assert parse_extent("2*(n - 1)").params() == {"n"}
    assert parse_map("(i) -> (i + n, n)").results == (Affine.dim("i") + Affine.param("n"), Affine.param("n"))
    assert parse_map("() -> ()") == AffineMap((), ())
    assert str(Constraint(Affine.of(Dim("i")) - 1)) == "i - 1 >= 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i, j -> i", "`i, j -> i` is no map: expected (dims) -> (expressions), such as (i, j) -> (j, i//2)"),
        ("(i, i) -> (i)", "`(i, i) -> (i)`: a dim stands there twice"),
        ("(i, j) -> (i*j)", "`(i, j) -> (i*j)`: `i * j` is not affine: one factor of a product must be a constant"),
        ("(i) -> (i // 0)", "`(i) -> (i // 0)`: `i // 0` is not affine: // and % need a positive constant on the right"),
        ("(i) -> (i % n)", "`(i) -> (i % n)`: `i % n` is not affine: // and % need a positive constant on the right"),
        ("(i) -> (1.5)", "`(i) -> (1.5)`: `1.5` is no integer; an affine expression has integer constants only"),
        ("(i) -> (f(i))", "`(i) -> (f(i))`: `f(i)` is not affine: sums, products with constants, // and % are"),
    ],
)  # fmt: skip
def test_refused_maps(text: str, message: str):
    with pytest.raises(SpecError) as caught:
        parse_map(text)
    assert str(caught.value) == message

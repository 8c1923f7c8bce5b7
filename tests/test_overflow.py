"""Notes on integer arithmetic that may wrap, with ranges worked out by hand or by brute force."""

from __future__ import annotations

import itertools

import pytest

from polyq.affine.notation import parse
from polyq.affine.overflow import overflow_notes

I8 = {"a": ("i8", 4), "b": ("i8", 4)}


def notes(text: str, **tensors: tuple[str, object]) -> tuple[str, ...]:
    return parse(text, **tensors).notes


def test_an_operation_that_may_wrap():
    assert notes("y[i] = a[i]*b[i]", **I8) == (
        "op y: `a[i] * b[i]` ranges from -16256 to 16384 and wraps outside i8 (-128 to 127); cast its operands to a wider "
        "type if that is not meant",
    )


def test_a_sum_that_may_wrap():
    assert notes("y += a[i]*b[i]", a=("i32", 4), b=("i32", 4))[1:] == (
        "op y: the sum of 4 terms from -2147483648 to 2147483647 may leave i32 (-2147483648 to 2147483647) and wrap; cast the "
        "terms to a wider type if that is not meant",
    )
    assert notes("y[i] += i32(a[i, k])", a=("i8", (4, "k"))) == (
        "op y: the sum of k terms from -128 to 127 may leave i32 (-2147483648 to 2147483647) and wrap; cast the terms to a "
        "wider type if that is not meant",
    )


@pytest.mark.parametrize(("terms", "fits"), [(257, True), (258, False)])
def test_how_many_products_an_i32_holds(terms: int, fits: bool):
    text = "y += i32(x[i])*i32(q[i])"  # 255 * 32767 * 257 is below 2**31, times 258 is above
    assert (notes(text, x=("i16", terms), q=("u8", terms)) == ()) is fits


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        ("y[i] = i32(a[i])*i32(b[i])", I8),
        ("y[i] += i32(a[i, k])*i32(b[i, k])", {"a": ("i8", (4, 4096)), "b": ("i8", (4, 4096))}),
        ("y[i] max= a[i]", I8),
        ("y[i] = min(a[i], b[i])", I8),
        ("y[i] = select(a[i] < b[i], a[i], b[i])", I8),
        ("y[i] = 10*i + n where i < 4", {}),
        ("y[i] = f32(a[i])*1e30", I8),
        ("y[i] = i8(i16(a[i]) + i16(b[i]))", I8),
        ("y[i] = a[i]//2", I8),
    ],
)
def test_what_never_wraps_has_no_note(text: str, tensors: dict[str, tuple[str, object]]):
    assert [note for note in notes(text, **tensors) if "no statement reads or writes" not in note] == []


@pytest.mark.parametrize("body", ["a[i] + b[i]", "a[i] - b[i]", "-a[i]", "abs(a[i])", "a[i]//b[i]", "a[i]*b[i]"])
@pytest.mark.parametrize("dtype", ["i4", "u4", "i2"])
def test_notes_against_brute_force(body: str, dtype: str):
    low, high = (0, 15) if dtype == "u4" else (-8, 7) if dtype == "i4" else (-2, 1)
    values = [
        eval(body.replace("[i]", ""), {"a": a, "b": b, "abs": abs})
        for a, b in itertools.product(range(low, high + 1), repeat=2)
        if b or "//" not in body
    ]
    wraps = min(values) < low or max(values) > high
    spec = parse(f"y[i] = {body}", a=(dtype, 4), b=(dtype, 4))
    assert bool(overflow_notes(spec.ops)) is wraps
    if wraps:
        assert f"ranges from {min(values)} to {max(values)} and wraps outside {dtype}" in spec.notes[0]

"""Codes of two and four bits in any place of a program, and group sizes of every kind, beside the interpreter.

Integer programs are compared exactly; programs with scales against numpy and the proven bound.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import polyq
from polyq.affine.arrays import from_storage, random_arrays, shape_of

NARROW = ("u2", "i2", "u4", "i4")


def logical(spec: polyq.Spec, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs by name, unpacked: codes as int64, floats as float64."""
    found: dict[str, np.ndarray] = {}
    for t in spec.inputs:
        values = from_storage(t, arrays[t.name], shape_of(t, {}))
        found[t.name] = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return found


def exact(text: str, threads: int = 2, **tensors: tuple[str, tuple[int, ...]]) -> None:
    spec = polyq.parse(text, **tensors)
    arrays = random_arrays(spec, {}, 5)
    expected = polyq.interpret(spec, **arrays)
    np.testing.assert_array_equal(polyq.build(spec, threads=threads)(**arrays), expected, text)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("width", [1, 5, 33, 130])
def test_codes_are_read_along_any_row(dtype: str, width: int) -> None:
    exact("y[i] += i32(w[i, k]) * i32(x[k])", w=(dtype, (9, width)), x=("i8", (width,)))


@pytest.mark.parametrize("dtype", NARROW)
def test_codes_are_read_across_rows_and_backwards(dtype: str) -> None:
    exact("y[k] += i32(w[i, k])", w=(dtype, (13, 21)))
    exact("y[k, i] = i8(w[i, 20 - k]) where k < 21", w=(dtype, (13, 21)))
    exact("y[i] = i8(w[i, i])", w=(dtype, (13, 13)))
    exact("y[i, j] = i8(w[i // 3, 2 * j + 1]) where i < 30, j < 10", w=(dtype, (10, 22)))


@pytest.mark.parametrize("dtype", NARROW)
def test_codes_are_written(dtype: str) -> None:
    signed = "i8" if dtype[0] == "i" else "u8"
    exact(f"y[i, j] = {dtype}(x[j, i])", x=(signed, (11, 6)))
    exact(f"y[i, j] = {dtype}(min(x[i, j], {signed}(1)))", x=(signed, (7, 130)))
    exact(f"y[j, i] = {dtype}(w[i, j])", w=(dtype, (5, 9)))


@pytest.mark.parametrize("outer", NARROW)
@pytest.mark.parametrize("inner", NARROW)
def test_codes_of_two_widths_meet(outer: str, inner: str) -> None:
    exact("y[i, j] += i32(a[i, k]) * i32(b[j, k])", a=(outer, (6, 37)), b=(inner, (10, 37)))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("group", [1, 7, 24, 33])
def test_groups_of_any_size(dtype: str, group: int) -> None:
    count = 100
    groups = -(-count // group)
    text = f"d[n, k] = (f32(w[n, k]) - z[n, k // {group}]) * s[n, k // {group}]\ny[m, n] += x[m, k] * d[n, k]"
    spec = polyq.parse(
        text, w=(dtype, (11, count)), z=("f32", (11, groups)), s=("f32", (11, groups)), x=("f32", (3, count))
    )
    arrays = random_arrays(spec, {}, 1)
    kernel = polyq.build(spec, threads=2)
    polyq.testing.assert_close(kernel, **arrays)
    a = logical(spec, arrays)
    at = np.arange(count) // group
    expected = a["x"] @ ((a["w"] - a["z"][:, at]) * a["s"][:, at]).T
    np.testing.assert_allclose(kernel(**arrays), expected, rtol=1e-4, atol=1e-3)


MIXED = """
d[n, k] = (f32(w[n, k]) - z[n, k // {g}]) * s[n, k // {g}]
h[m, n] += x[m, k] * d[n, k]
e[p, n] = f32(v[p, n]) * r[p, n // {f}]
y[m, p] += h[m, n] * e[p, n]
"""


@pytest.mark.parametrize(("first", "second"), [("u4", "u2"), ("i2", "i4")])
@pytest.mark.parametrize(("g", "f"), [(32, 8), (7, 24)])
def test_two_layers_of_two_widths_and_group_sizes(first: str, second: str, g: int, f: int) -> None:
    k, n, p = 70, 40, 9
    spec = polyq.parse(
        MIXED.format(g=g, f=f), w=(first, (n, k)), z=("f32", (n, -(-k // g))), s=("f32", (n, -(-k // g))), x=("f32", (3, k)),
        v=(second, (p, n)), r=("f32", (p, -(-n // f))),
    )  # fmt: skip
    arrays = random_arrays(spec, {}, 2)
    for numerics in ("strict", "reassoc"):
        polyq.testing.assert_close(polyq.build(spec, numerics=numerics, threads=2), **arrays)
    a = logical(spec, arrays)
    d = (a["w"] - a["z"][:, np.arange(k) // g]) * a["s"][:, np.arange(k) // g]
    expected = a["x"] @ d.T @ (a["v"] * a["r"][:, np.arange(n) // f]).T
    np.testing.assert_allclose(polyq.build(spec)(**arrays), expected, rtol=1e-3, atol=1e-2)


def test_scales_and_zero_points_of_two_group_sizes() -> None:
    """Zero points for 32 codes and scales for 48, in one sum; scales are codes of two bits themselves."""
    text = "y[n] += x[k] * (f32(w[n, k]) - f32(z[n, k // 32])) * (f32(c[n, k // 48]) * s[n])"
    spec = polyq.parse(
        text, w=("u2", (12, 144)), z=("u2", (12, 5)), c=("i4", (12, 3)), s=("f32", (12,)), x=("f32", (144,))
    )
    arrays = random_arrays(spec, {}, 3)
    for numerics in ("strict", "reassoc"):
        polyq.testing.assert_close(polyq.build(spec, numerics=numerics, threads=2), **arrays)
    a = logical(spec, arrays)
    k = np.arange(144)
    expected = ((a["w"] - a["z"][:, k // 32]) * a["c"][:, k // 48] * a["s"][:, None]) @ a["x"]
    np.testing.assert_allclose(polyq.build(spec)(**arrays), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_bound_codes_of_odd_groups(dtype: str) -> None:
    """What bind packs gives what a call without it gives."""
    text = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
    for group in (20, 33, 64):
        spec = polyq.parse(
            text, w=(dtype, (24, 4, group)), z=("f32", (24, 4)), s=("f32", (24, 4)), x=("f32", ("m", 4, group))
        )
        arrays = random_arrays(spec, {"m": 3}, 4)
        kernel = polyq.build(spec, threads=2)
        polyq.testing.assert_close(kernel, **arrays)
        bound = kernel.bind(**{n: arrays[n] for n in ("w", "z", "s")})
        np.testing.assert_allclose(bound(x=arrays["x"]), kernel(**arrays), rtol=1e-4, atol=1e-3)


def test_random_programs_over_codes() -> None:
    """Subscripts, widths and operators at random: exact integers, compared with the interpreter."""
    rng = random.Random(7)
    for _ in range(14):
        a, b = rng.choice(NARROW), rng.choice((*NARROW, "i8"))
        rows, columns = rng.randint(1, 12), rng.randint(1, 70)
        left = rng.choice(("i", "j", "i, j", "j, i"))
        at = rng.choice(("i, j", f"i, {columns - 1} - j", "i, j // 2"))
        op = rng.choice(("+=", "max=", "min=")) if "," not in left else "="
        body = f"i32(a[{at}]) * {rng.randint(1, 3)} {rng.choice('+-*')} i32(b[i, j])"
        exact(f"y[{left}] {op} {body}", a=(a, (rows, columns)), b=(b, (rows, columns)))

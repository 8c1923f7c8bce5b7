"""Properties of the C that the automatic schedule leads to: what is done with whole vectors, and what is not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyq
from polyq.affine.arrays import random_arrays
from polyq.emit import generate
from polyq.schedule.schedule import Schedule
from polyq.testing import assert_close

#: stencils whose boxes do not begin at 0: text, declarations
STENCILS: dict[str, tuple[str, dict[str, Any]]] = {
    "one dim": ("y[i] = x[i - 1] + 2.0 * x[i] + x[i + 1] where 1 <= i, i < n - 1", {"x": ("f32", ("n",))}),
    "two dims": (
        "y[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1] where 1 <= i, i < n - 1, 1 <= j, j < m - 1",
        {"x": ("f32", ("n", "m"))},
    ),
    "chained": (
        "t[i, j] = x[i - 1, j] + x[i, j + 1] where 1 <= i, i < 40, 1 <= j, j < 40\n"
        "y[i, j] = t[i - 1, j] * t[i, j - 1] where 2 <= i, i < 39, 2 <= j, j < 39",
        {"x": ("f32", (41, 42))},
    ),
    "chained, too costly to compute twice": (
        "t[i] = exp(x[i - 1] + x[i]) where 1 <= i, i < n\ny[i] = t[i - 1] + t[i] where 2 <= i, i < n",
        {"x": ("f32", ("n",))},
    ),
    "in time": (
        "y[t, i] = x[i] where t < 9, i < 64\ny[t, i] = y[t - 1, i - 1] + y[t - 1, i + 1] where 1 <= t, t < 9, 1 <= i, i < 63",
        {"x": ("f32", (64,))},
    ),
}


def vectors(source: str) -> list[str]:
    """Return the statements that store whole vectors to memory."""
    return re.findall(r"\*\(f32x8_u \*\)\(?[^=]+\)? = .*;", source)


@pytest.mark.parametrize("name", STENCILS)
def test_a_stencil_that_begins_at_1_uses_lanes(name: str) -> None:
    text, tensors = STENCILS[name]
    schedule = Schedule.auto(polyq.parse(text, **tensors), target="avx2")
    source = generate(schedule).source
    stored = vectors(source)
    assert stored
    assert "load_strided" not in source
    assert not re.search(r"\w+_v\[\d\]", source)  # no lane is taken out of a vector
    written = {op.target for op in schedule.plan.spec.ops if op.reads}
    for target in written:
        assert any(f"*)({target} + " in line for line in stored), f"{target} is stored without lanes"


@pytest.mark.parametrize("sizes", [(0, 0), (1, 5), (2, 2), (3, 3), (3, 11), (4, 10), (9, 41)])
def test_stencils_of_any_size(sizes: tuple[int, int]) -> None:
    for name in ("one dim", "two dims", "chained, too costly to compute twice"):
        text, tensors = STENCILS[name]
        kernel = polyq.build(polyq.parse(text, **tensors))
        shape = sizes[: len(tensors["x"][1])] if name == "two dims" else sizes[1:]
        assert_close(kernel, x=np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_a_fill_leaves_out_what_is_assigned() -> None:
    text, tensors = STENCILS["chained"]
    spec = Schedule.auto(polyq.parse(text, **tensors)).plan.spec
    fills = [tuple(map(str, op.extents)) for op in spec.ops if op.name.startswith("y.init")]
    assert fills == [("2", "39"), ("37", "2")]


MATMULS = {
    "nn": "y[i, j] += a[i, k] * b[k, j]",
    "nt": "y[i, j] += a[i, k] * b[j, k]",
    "tn": "y[i, j] += a[k, i] * b[k, j]",
    "tt": "y[i, j] += a[k, i] * b[j, k]",
    "nn, result transposed": "y[j, i] += a[i, k] * b[k, j]",
    "tt, result transposed": "y[j, i] += a[k, i] * b[j, k]",
}


@pytest.mark.parametrize("name", MATMULS)
@pytest.mark.parametrize("size", [128, 100])
def test_no_tile_of_a_matmul_lies_in_memory(name: str, size: int) -> None:
    spec = polyq.parse(MATMULS[name], a=("f32", (size, size)), b=("f32", (size, size)))
    source = generate(Schedule.auto(spec, target="avx2")).source
    assert "f32x8 y_acc_0" in source
    assert not re.search(r"float y_acc\w*\[", source)
    for body in re.findall(r"for \(int64_t k.*?\n\s*}\n", source, re.DOTALL):
        assert not re.search(r"\w\[\d\] (\+=|=) ", body), "lanes are added one by one"


def test_a_tile_whose_lanes_are_rows_is_in_registers() -> None:
    """Of a convolution with a stride the channels are lanes, which are not the last axis of the result."""
    spec = polyq.parse(
        "y[o, h] += x[c, 2*h + r] * k[o, c, r] where h < 60", x=("f32", (16, 123)), k=("f32", (64, 16, 4))
    )
    source = generate(Schedule.auto(spec, target="avx2")).source
    assert re.search(r"y_acc_\d_\d \+= k_packed_v\w* \* \w+", source)
    assert "float y_acc[" not in source


def test_rows_that_are_read_in_large_steps_are_copied_into_tiles() -> None:
    spec = polyq.parse("y[i, j] += a[k, i] * b[k, j]", a=("f32", (200, 250)), b=("f32", (200, 256)))
    schedule = Schedule.auto(spec, target="avx2")
    assert tuple(map(str, schedule.plan.spec.tensor("a.packed").extents)) == ("42", "200", "6")
    assert "a_packed_v_all" in generate(schedule).source
    near = polyq.parse("y[i, j] += a[i, k] * b[k, j]", a=("f32", (250, 200)), b=("f32", (200, 256)))
    assert "a.packed" not in {t.name for t in Schedule.auto(near, target="avx2").plan.spec.all_tensors}


@pytest.mark.parametrize(("m", "height", "first"), [(24, 6, 1), (31, 5, 7)])  # 31 rows are 6 and five times 5
def test_the_rows_of_a_triangle_part_where_the_first_one_ends(m: int, height: int, first: int) -> None:
    spec = polyq.parse("y[i, j] += a[i, k] * b[k, j] where k <= i", a=("f32", (m, m)), b=("f32", (m, 48)))
    schedule = Schedule.auto(spec, target="avx2")
    source = generate(schedule).source
    assert "float y_acc" not in source
    loop = rf"for \(int64_t k = 0; k < {height} \* io \+ {first}; \+\+k\)"
    tile = re.search(rf"{loop}\n\s*{{\n(.*?)\n\s*}}\n", source, re.DOTALL)
    assert tile is not None
    assert "if (" not in tile[1]
    assert tile[1].count("y_acc_") == 2 * height
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, m), (m, 48)))
    assert_close(polyq.build(spec), reference=np.tril(np.asarray(a, np.float64)) @ b, a=a, b=b)


def test_four_cells_of_a_triangle_of_dots_share_what_they_read() -> None:
    spec = polyq.parse("y[i, j] += a[i, k] * a[j, k] where j <= i", a=("f32", (33, 70)))
    source = generate(Schedule.auto(spec, target="avx2")).source
    assert "float y_part" not in source
    a: np.ndarray = np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32)
    assert_close(polyq.build(spec), reference=np.tril(a.astype(np.float64) @ a.T.astype(np.float64)), a=a)


CODES = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


@pytest.mark.parametrize(
    ("dtype", "group"), [("u4", 48), ("u4", 40), ("u4", 56), ("i4", 48), ("u8", 20), ("u2", 80), ("u2", 112)]
)
def test_groups_that_are_no_whole_vectors_of_words(dtype: str, group: int) -> None:
    shapes: dict[str, Any] = {"w": (16, 3, group), "z": (16, 3), "s": (16, 3), "x": ("m", 3, group)}
    kinds = {"w": dtype, "z": "f32", "s": "f32", "x": "f32"}
    spec = polyq.parse(CODES, **{name: (kinds[name], shapes[name]) for name in shapes})
    schedule = Schedule.auto(spec, target="avx2")
    source = generate(schedule).source
    words = source[source.index("run_region_2(void") :]
    assert "load_words_" in words or (dtype, group) == ("u8", 20)
    assert "live" not in words
    assert_close(polyq.build(spec), **random_arrays(spec, {"m": 2}))


def test_a_large_input_that_is_read_in_order_is_asked_for_early() -> None:
    spec = polyq.parse(
        "y[i, j] = x[i, j] * s[j] - z[j, i]", x=("f32", (4096, 4096)), s=("f32", (4096,)), z=("f32", (4096, 4096))
    )
    schedule = Schedule.auto(spec, target="avx2")
    assert schedule.plan.stream == ("y",)
    assert schedule.plan.prefetch == (("x", 2048),)


def test_a_row_that_is_read_again_asks_for_the_next_one() -> None:
    spec = polyq.parse(
        "q[i] += x[i, j] * x[i, j]\ny[i, j] = x[i, j] / sqrt(q[i] / 2048.0 + 0.00001) * g[j]",
        x=("f32", (8192, 2048)), g=("f32", (2048,)),
    )  # fmt: skip
    schedule = Schedule.auto(spec, target="avx2")
    assert schedule.plan.stream == ("y",)
    assert schedule.plan.prefetch == (("x", 4 * 2048),)
    x, g = (a.astype(np.float32) for a in np.random.default_rng(0).standard_normal((2, 8192, 2048)))
    got = polyq.build(spec)(x=x, g=g[0])
    wide = x.astype(np.float64)
    norm = np.sqrt((wide * wide).mean(axis=1, keepdims=True) + np.float32(1e-5))
    np.testing.assert_allclose(got, wide / norm * g[0], rtol=1e-5)


def test_a_small_window_is_unrolled_into_its_tile() -> None:
    spec = polyq.parse(
        "y[o, i, j] += x[c, i + p, j + q] * w[o, c, p, q] where i < 14, j < 13",
        x=("f32", (8, 16, 15)), w=("f32", (12, 8, 3, 3)),
    )  # fmt: skip
    source = generate(Schedule.auto(spec, target="avx2")).source
    assert re.findall(r"for \(int64_t ([cpq]) ", source) == ["c"] * source.count("/* tile y.acc")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16, 15), (12, 8, 3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (1, 2))
    np.testing.assert_allclose(polyq.build(spec)(x=x, w=w), np.einsum("cijpq,ocpq->oij", windows, w), rtol=1e-4, atol=1e-5)

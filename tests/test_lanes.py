"""Properties of the C that the automatic schedule leads to: what is done with whole vectors, and what is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyq
from polyq.emit import generate
from polyq.schedule.schedule import Schedule
from polyq.testing import assert_close

#: stencils whose boxes do not begin at 0: text, declarations
STENCILS = {
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
    assert re.search(r"y_acc_\d_\d \+= \w+ \* k_packed_v", source)
    assert "float y_acc[" not in source

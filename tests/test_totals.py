"""Reductions to a single cell: in lanes for any extent, known or not."""

from __future__ import annotations

import numpy as np
import pytest

import polyq
from polyq.schedule.readback import read_back
from polyq.schedule.schedule import Schedule

SIZES = (0, 1, 7, 8, 63, 64, 65, 1000)


@pytest.mark.parametrize("text", ["y += x[i] * x[i]", "y max= x[i]", "y += x[i]", "y min= x[i]"])
def test_totals_of_symbolic_extents_go_in_lanes(text: str) -> None:
    spec = polyq.parse(text, x=("i32", ("n",)))
    schedule = Schedule.auto(spec, "strict", target="avx2")  # integers, min and max run in any order
    kinds = {loop.kind for s in read_back(schedule.nest).statements if s.loops for loop in s.loops}
    assert "vector" in kinds
    kernel = polyq.build(Schedule.auto(spec, "strict"))
    for n in SIZES:
        x = np.random.default_rng(n).integers(-99, 99, n).astype(np.int32)
        assert kernel(x) == polyq.interpret(spec, x=x)


def test_float_totals_keep_their_order_when_strict() -> None:
    spec = polyq.parse("y += x[i, j]", x=("f32", ("m", "n")))
    for shape in ((3, 5), (1, 100), (0, 4), (33, 65)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        strict, free = (polyq.build(spec, numerics=n) for n in ("strict", "reassoc"))
        total = np.float32(0)
        for value in x.ravel():
            total += value
        assert strict(x) == total
        polyq.testing.assert_close(free, x=x)


LONG = (0, 1, 65, 16383, 16384, 16385, 50001)


@pytest.mark.parametrize("text", ["y += x[i] * x[i]", "y max= x[i]", "y *= 1.0 + 0.001 * x[i]", "y += x[2 * i + 1] where i < n"])
def test_totals_of_symbolic_extents_are_shared_by_threads(text: str) -> None:
    spec = polyq.parse(text, x=("f32", ("2*n + 2",) if "2 * i" in text else ("n",)))
    schedule = Schedule.auto(spec, target="avx2")
    shared = [loop for s in read_back(schedule.nest).statements for loop in s.loops if loop.kind == "parallel"]
    assert shared
    kernel = polyq.build(spec, threads=3)
    for n in LONG:
        x = np.random.default_rng(n).standard_normal(2 * n + 2 if "2 * i" in text else n).astype(np.float32)
        polyq.testing.assert_close(kernel, x=x, n=n)


def test_totals_of_matrices_of_unknown_size_are_shared_by_rows() -> None:
    spec = polyq.parse("y += x[i, j] * v[j]", x=("f32", ("m", "n")), v=("f32", ("n",)))
    kernel = polyq.build(spec, threads=2)
    for m, n in ((0, 5), (5, 0), (1, 1), (255, 3), (256, 64), (257, 70), (700, 9)):
        x, v = (np.random.default_rng(m).standard_normal(s).astype(np.float32) for s in ((m, n), (n,)))
        polyq.testing.assert_close(kernel, x=x, v=v)


def test_a_long_total_whose_length_has_no_divisor_is_shared_too() -> None:
    spec = polyq.parse("y += x[i]", x=("f32", (1_000_003,)))
    kernel = polyq.build(spec, threads=2)
    assert "which threads share" in kernel.explain()
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    polyq.testing.assert_close(kernel, x=x)
    assert kernel(x) == polyq.build(spec, threads=1)(x)  # the order of a sum does not depend on the threads

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

"""Lowering: remainders that cannot run leave no loops."""

from __future__ import annotations

import numpy as np
import pytest

import polyq
from polyq.schedule.loopnest import Loop, walk


def test_a_remainder_that_never_runs_leaves_no_loop():
    # a tile of 16 columns holds two whole vectors of a producer whose dim has 64: the masked vector has no iteration
    spec = polyq.parse("d[n] = x[n] + 1.0\ny[m, n] = d[n] * z[m]", x=("f32", 64), z=("f32", "m"))
    s = polyq.Schedule.naive(spec, target="c").split("y", "n", 16, "no", "ni").reorder("y", ["no", "m"])
    s = s.fuse("d", into="y", at="no").vectorize("d", "n", 8)
    loops = [node for node in walk(s.nest.body) if isinstance(node, Loop)]
    assert [loop.kind for loop in loops].count("vector") == 1
    assert all(loop.lower and loop.upper and loop.body for loop in loops)
    x, z = np.arange(64, dtype=np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(polyq.build(s)(x=x, z=z), (x + 1) * z[:, None])


def test_every_loop_has_two_ends_where_strict_sums_keep_their_order():
    spec = polyq.parse(
        "d[n, k] = (f32(q[n, k]) - 8.0) * s[n, k // 32]\ny[m, n] += x[m, k] * d[n, k]",
        q=("u8", (96, 64)), s=("f32", (96, 2)), x=("f32", ("m", 64)),
    )  # fmt: skip
    s = polyq.Schedule.auto(spec, numerics="strict", target="avx2")
    loops = [node for node in walk(s.nest.body) if isinstance(node, Loop)]
    assert loops
    assert all(loop.lower and loop.upper and loop.body for loop in loops)
    assert s.certificate().ok


@pytest.mark.parametrize(("names", "again"), [(("i", "ii"), "i"), (("io", "io"), "io"), (("j", "ii"), "j"), (("io", "j"), "j")])
def test_a_split_needs_names_of_its_own(names, again):
    naive = polyq.Schedule.naive(polyq.parse("y[i, j] = x[i, j]", x=("f32", (8, 8))))
    with pytest.raises(polyq.ScheduleError, match=rf"y: split of i: '{again}' is an axis already; choose another name$"):
        naive.split("y", "i", 2, *names)

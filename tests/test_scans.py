"""Recurrences and scans: bitwise what numpy's loops give, parallel and in lanes where dims allow it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyq
from polyq.affine.expr import Affine
from polyq.schedule.loopnest import Loop, walk
from polyq.schedule.readback import read_back
from polyq.schedule.scans import CHAINS, independent_dims
from polyq.schedule.schedule import Schedule

HALF = np.float32(0.5)


def _average(x: np.ndarray, axis: int, scale: np.float32 = HALF) -> np.ndarray:
    """y[0] = x[0]; y[t] = scale * y[t - 1] + x[t], along an axis, step by step in the array's own precision."""
    steps = np.moveaxis(x.copy(), axis, 0)
    for t in range(1, len(steps)):
        steps[t] = scale * steps[t - 1] + steps[t]
    return np.moveaxis(steps, 0, axis)


def _second_order(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for t in range(2, y.shape[1]):
        y[:, t] = HALF * y[:, t - 1] - np.float32(0.25) * y[:, t - 2] + x[:, t]
    return y


def _diffused(x: np.ndarray, times: int) -> np.ndarray:
    """Each time step from the one before, the borders kept."""
    u = np.stack([x] * times)
    for t in range(1, times):
        u[t, 1:-1] = np.float32(0.25) * u[t - 1, :-2] + HALF * u[t - 1, 1:-1] + np.float32(0.25) * u[t - 1, 2:]
    return u


def _both_axes(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = y[i - 1, j] + y[i, j - 1] - y[i - 1, j - 1] + x[i, j]
    return y


Reference = Callable[[np.ndarray], np.ndarray]

#: text, shape of x in the text, the reference, and shapes to try
SCANS: dict[str, tuple[str, tuple[object, ...], Reference, tuple[tuple[int, ...], ...]]] = {
    "prefix sum": ("y[i] = x[i]\ny[i] = y[i - 1] + x[i] where i >= 1", ("n",), np.cumsum, ((1,), (2,), (1000,), (0,))),
    "prefix sum that reads the copy": ("y[i] = x[i]\ny[i] = y[i - 1] + y[i] where i >= 1", ("n",), np.cumsum, ((1,), (77,))),
    "prefix sums of rows": (
        "y[b, t] = x[b, t]\ny[b, t] = y[b, t - 1] + x[b, t] where t >= 1", ("m", "n"), lambda x: np.cumsum(x, 1),
        ((1, 1), (3, 50), (8, 33), (37, 129), (0, 4), (5, 0)),
    ),
    "prefix sums of columns": (
        "y[t, b] = x[t, b]\ny[t, b] = y[t - 1, b] + x[t, b] where t >= 1", ("m", "n"), lambda x: np.cumsum(x, 0),
        ((1, 1), (50, 3), (33, 8), (9, 1301), (4, 0)),
    ),
    "averages of rows": (
        "y[b, t] = x[b, t]\ny[b, t] = 0.5 * y[b, t - 1] + x[b, t] where t >= 1", (70, 65), lambda x: _average(x, 1), ((70, 65),),
    ),
    "averages of columns": (
        "y[t, b] = x[t, b]\ny[t, b] = 0.5 * y[t - 1, b] + x[t, b] where t >= 1", (33, 2050), lambda x: _average(x, 0), ((33, 2050),),
    ),
    "averages in the middle": (
        "y[a, t, b] = x[a, t, b]\ny[a, t, b] = 0.5 * y[a, t - 1, b] + x[a, t, b] where t >= 1", ("k", "m", 45),
        lambda x: _average(x, 1), ((3, 17, 45), (16, 4, 45)),
    ),
    "backwards": (
        "y[b, t] = x[b, t]\ny[b, 63 - t] = 0.5 * y[b, 64 - t] + x[b, 63 - t] where t < 64", ("m", 65),
        lambda x: _average(x[:, ::-1], 1)[:, ::-1], ((19, 65),),
    ),
    "second order": (
        "y[b, t] = x[b, t]\ny[b, t] = 0.5 * y[b, t - 1] - 0.25 * y[b, t - 2] + x[b, t] where t >= 2", (21, 40), _second_order, ((21, 40),),
    ),
    "time steps": (
        "u[t, i] = x[i] where t < 30\n"
        "u[t, i] = 0.25 * u[t - 1, i - 1] + 0.5 * u[t - 1, i] + 0.25 * u[t - 1, i + 1] where 1 <= t, t < 30, 1 <= i, i < 776",
        (777,), lambda x: _diffused(x, 30), ((777,),),
    ),
    "along both axes": (
        "y[i, j] = x[i, j]\ny[i, j] = y[i - 1, j] + y[i, j - 1] - y[i - 1, j - 1] + x[i, j] where i >= 1, j >= 1", (23, 31), _both_axes, ((23, 31),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCANS)
def test_scans_are_bitwise_numpys(name: str) -> None:
    text, declared, reference, shapes = SCANS[name]
    spec = polyq.parse(text, x=("f32", declared))
    schedule = Schedule.auto(spec, "strict")
    assert schedule.certificate().ok
    assert "refused" not in schedule.explain()
    for threads in (1, 2):
        kernel = polyq.build(schedule, threads=threads)
        for shape in shapes:
            x = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
            np.testing.assert_array_equal(kernel(x), reference(x), f"{shape}, {threads} threads")


@pytest.mark.parametrize("dtype", ["i8", "u16", "i64", "f64"])
def test_prefix_sums_of_other_types(dtype: str) -> None:
    spec = polyq.parse("y[b, t] = x[b, t]\ny[b, t] = y[b, t - 1] + x[b, t] where t >= 1", x=(dtype, ("m", 39)))
    kernel = polyq.build(spec, numerics="strict")
    x = polyq.affine.arrays.random_arrays(spec, {"m": 21})["x"]
    np.testing.assert_array_equal(kernel(x), np.cumsum(x, 1, dtype=x.dtype))


def test_sums_of_products_in_time() -> None:
    """A state that a matrix takes from one step to the next: a reduction that reads what it wrote."""
    text = "h[t, i] = x[t, i]\nh[t, i] += a[i, j] * h[t - 1, j] where t >= 1"
    spec = polyq.parse(text, x=("i32", (7, 12)), a=("i32", (12, 12)))
    rng = np.random.default_rng(2)
    x, a = rng.integers(-2, 3, (7, 12)).astype(np.int32), rng.integers(-2, 3, (12, 12)).astype(np.int32)
    h = x.copy()
    for t in range(1, 7):
        h[t] += a @ h[t - 1]
    np.testing.assert_array_equal(polyq.build(spec, threads=2)(x=x, a=a), h)


def test_a_scan_in_place() -> None:
    spec = polyq.parse("y[b, t] = y[b, t - 1] + y[b, t] where t >= 1", y=("f32", ("m", 40)))
    kernel = polyq.build(spec, numerics="strict", threads=2)
    y = np.random.default_rng(0).standard_normal((33, 40)).astype(np.float32)
    expected = np.cumsum(y, 1)
    np.testing.assert_array_equal(kernel(y), expected)
    kernel(y=y, out=y)
    np.testing.assert_array_equal(y, expected)


# ---- how they run
def _step(text: str, **tensors: tuple[str, tuple[object, ...]]) -> tuple[Schedule, tuple[Loop, ...]]:
    schedule = Schedule.auto(polyq.parse(text, **tensors), "strict", target="avx2")
    op = schedule.plan.spec.ops[-1]
    return schedule, read_back(schedule.nest).of_op(op.name)[0].loops


def test_columns_go_in_lanes_and_blocks_of_columns_to_threads() -> None:
    schedule, loops = _step(
        "y[t, b] = x[t, b]\ny[t, b] = 0.5 * y[t - 1, b] + x[t, b] where t >= 1", x=("f32", (100, 65536))
    )
    assert [loop.kind for loop in loops] == ["parallel", "serial", "serial", "vector"]  # blocks, steps, vectors, lanes
    assert "step by step along t, lanes along b; a thread takes blocks of 2048 along b" in schedule.explain()


def test_rows_go_side_by_side() -> None:
    schedule, loops = _step(
        "y[b, t] = x[b, t]\ny[b, t] = 0.5 * y[b, t - 1] + x[b, t] where t >= 1", x=("f32", (64, 64))
    )
    assert [loop.kind for loop in loops] == ["parallel", "serial", "unroll"]
    assert loops[-1].upper == (Affine(CHAINS),)
    assert f"step by step along t, {CHAINS} chains of b side by side" in schedule.explain()


def test_a_copy_that_steps_overwrite_is_trimmed() -> None:
    """Of a copy, only what the recurrence starts from is left; not where the recurrence reads the copy later on."""
    start = "y[b, t] = x[b, t]\n"
    forward = Schedule.auto(polyq.parse(start + "y[b, t] = y[b, t - 1] + x[b, t] where t >= 1", x=("f32", (9, 30))))
    assert forward.plan.spec.ops[0].extents == (Affine(9), Affine(1))
    backward = polyq.parse(start + "y[b, t] = y[b, t + 1] + x[b, t] where t < 29", x=("f32", (9, 30)))
    assert Schedule.auto(backward).plan.spec.ops[0].extents == (Affine(9), Affine(30))
    x = np.random.default_rng(0).standard_normal((9, 30)).astype(np.float32)
    np.testing.assert_array_equal(polyq.build(backward)(x), np.concatenate([x[:, :-1] + x[:, 1:], x[:, -1:]], 1))


def test_a_dim_that_reads_move_along_is_not_independent() -> None:
    spec = polyq.parse(
        "u[t, i] = u[t - 1, i + 1] + x[t, i] where t >= 1, i < 8", x=("f32", (5, 9)), u=("f32", (5, 9))
    )  # fmt: skip
    assert independent_dims(spec.op("u")) == ()
    schedule = Schedule.auto(spec)
    loops = [node for node in walk(schedule.nest.body) if isinstance(node, Loop)]
    assert loops[0].kind == "serial"  # time comes first, and one after another


def test_functions_run_in_lanes_across_rows() -> None:
    text = "y[b, t] = x[b, t]\ny[b, t] = tanh(0.5 * y[b, t - 1] + x[b, t]) where t >= 1"
    spec = polyq.parse(text, x=("f32", ("m", 65)))
    kinds = [loop.kind for s in read_back(Schedule.auto(spec, target="avx2").nest).statements for loop in s.loops]
    assert "vector" in kinds
    strict = Schedule.auto(spec, "strict", target="avx2")
    assert "side by side" in strict.explain()
    kernel = polyq.build(spec, threads=2)
    for m in (0, 1, 7, 8, 21):
        x = np.random.default_rng(m).standard_normal((m, 65)).astype(np.float32)
        polyq.testing.assert_close(kernel, x=x)
        expected = x.astype(np.float64)
        for t in range(1, 65):
            expected[:, t] = np.tanh(0.5 * expected[:, t - 1] + expected[:, t])
        np.testing.assert_allclose(kernel(x), expected, atol=1e-6)

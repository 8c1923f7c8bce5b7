"""Kernels of hand-worked programs, and of what once was built wrong: every value here was worked out by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hand_cases import CASES, Case

import polyq
from polyq.affine.errors import ScheduleError, SpecError

KINDS = ("naive", "auto")


def kernel(text: str, kind: str = "auto", numerics: str = "reassoc", target: str = "native", **tensors):
    return polyq.build(getattr(polyq.Schedule, kind)(polyq.parse(text, **tensors), numerics=numerics, target=target))


def wrong(case: Case) -> list[str]:
    """Return what the kernel of a case gives that is not right, on one and on four threads."""
    found: list[str] = []
    expected = case.right if isinstance(case.right, tuple) else (case.right,)
    for threads in (1, 4):
        result = polyq.build(case.spec(), threads=threads)(**case.arguments)
        for got, right in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
            if got.dtype != right.dtype or not np.array_equal(got, right, equal_nan=got.dtype.kind == "f"):
                found.append(f"{case.name}, {threads} threads: {got}, expected {right}")
    return found


def test_programs_worked_by_hand():
    with ThreadPoolExecutor(2) as pool:
        found = [line for lines in pool.map(wrong, CASES) for line in lines]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_on_parameters_alone(kind):
    guarded = kernel("y[i] += x[i] where n >= 3\nz[i] = 2.0 where n % 2 == 0, i < n", kind, x=("f32", ("n",)))
    for n in range(6):
        y, z = guarded(x=np.ones(n, np.float32))
        np.testing.assert_array_equal(y, np.full(n, float(n >= 3)))
        np.testing.assert_array_equal(z, np.full(n - n % 2, 2.0 * (n % 2 == 0)))
    never = kernel("y[i, j] += x[i] * z[j] where 1 < 0", kind, x=("f32", (4,)), z=("f32", (9,)))
    assert never(np.ones(4, np.float32), np.ones(9, np.float32)).shape == (0, 0)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 4), (3, 0, 4), (3, 8, 0), (0, 0, 4)])
def test_extents_of_zero_that_are_known(m, k, n):
    product = kernel("y[m, n] += x[m, k] * w[n, k]", x=("f32", (m, k)), w=("f32", (n, k)))
    out = np.full((m, n), 7, np.float32)
    product(np.ones((m, k), np.float32), np.ones((n, k), np.float32), out=out)
    np.testing.assert_array_equal(out, np.zeros((m, n), np.float32))


@pytest.mark.parametrize("numerics", ["strict", "reassoc", "i8"])
def test_what_has_no_instance_is_not_scheduled(numerics):
    text = "d[n, g, j] = f32(w[n, g, j]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
    empty = kernel(text, numerics=numerics, w=("u8", (0, 2, 32)), s=("f32", (0, 2)), x=("f32", ("m", 2, 32)))
    assert "y has no element" in str(empty.explain()) or "d has no element" in str(empty.explain())
    y = empty(w=np.zeros((0, 2, 32), np.uint8), s=np.zeros((0, 2), np.float32), x=np.ones((3, 2, 32), np.float32))
    assert y.shape == (3, 0)


def test_only_the_statement_without_instances_is_left_out():
    text = "y[i, j] += x[i, k] * w[k, j]\nz[i, j] += a[i, k] * b[k, j]"
    shapes = {"x": (40, 0), "w": (0, 48), "a": (40, 64), "b": (64, 48)}
    both = kernel(text, **{name: ("f32", shape) for name, shape in shapes.items()})
    explained = str(both.explain())
    assert "left out, since it has no instance" in explained
    assert "lanes along j" in explained
    given = {n: np.random.default_rng(1).standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    y, z = both(**given)
    np.testing.assert_array_equal(y, np.zeros((40, 48), np.float32))
    np.testing.assert_allclose(z, given["a"].astype(np.float64) @ given["b"], rtol=1e-4, atol=1e-4)


def test_values_that_are_used_twice_are_not_inlined_without_end():
    lines = [f"t{k}[i] = t{k - 1}[i] * t{k - 1}[i]" for k in range(1, 14)]
    squares = kernel("\n".join(["t0[i] = x[i]", *lines]), x=("f32", ("n",)))
    x = np.array([1.0, -1.0, 0.0], np.float32)
    np.testing.assert_array_equal(squares(x), x * x)
    assert "would get too large" in str(squares.explain())


@pytest.mark.parametrize("dtype", ["u2", "i4", "u4"])
def test_threads_never_share_a_byte(dtype):
    fields = {"u2": 4, "i4": 2, "u4": 2}[dtype]
    spec = polyq.parse("y[i] max= a[i, j]", a=(dtype, ("m", 12)))
    largest = polyq.build(spec, threads=2)
    for m in (1, 5, 64):
        codes = (np.arange(m)[:, None] + np.zeros(12, int)) % 2  # all elements of row i are i % 2
        packed = sum(codes[:, k::fields] << (8 // fields * k) for k in range(fields)).astype(np.uint8)
        bits = np.concatenate([np.arange(m) % 2, np.zeros(-m % fields, int)])
        right = sum(bits[k::fields] << (8 // fields * k) for k in range(fields)).astype(np.uint8)
        np.testing.assert_array_equal(largest(packed, m=m), right)


def test_the_rest_of_a_packed_row_is_not_divided():
    text = "t[i, j] += i32(a[i, k]) * i32(b[j, k])\ny[i, j] = i4(t[i, j])"
    product = kernel(text, a=("i8", (32, 24)), b=("i8", ("n", 24)))
    for n in (1, 9):
        b = np.repeat(np.arange(n, dtype=np.int8) % 2, 24).reshape(n, 24)
        low, high = np.arange(n)[::2] % 2, np.append(np.arange(n) % 2, 0)[1::2]  # 24 is 8 in four bits
        row = (low * 8 | high[: len(low)] * 8 << 4).astype(np.uint8)
        np.testing.assert_array_equal(product(np.ones((32, 24), np.int8), b), np.repeat(row[None], 32, 0))


@pytest.mark.parametrize("target", ["native", "sse"])
def test_one_column_has_one_lane(target):
    text = "a[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - a[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]"
    softmax = kernel(text, target=target, x=("f32", ("m", 1)))
    for m in (1, 3):
        np.testing.assert_array_equal(softmax(np.full((m, 1), 3, np.float32)), np.ones((m, 1)))


@pytest.mark.parametrize("target", ["native", "sse", "c"])
def test_halves_by_lane_are_those_of_numpy(target, caplog):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide = halves.astype(np.float32)
    with np.errstate(all="ignore"):
        near = np.concatenate([wide * np.float32(f) for f in (1, 1 + 2**-11, 1 - 2**-11, 1 + 2**-11 + 2**-23, 3)])
        near = np.concatenate([near, np.array([65504, 65519.99, 65520, 2**-25, 2**-25 * 1.0001, 1e-40], np.float32)])
        doubles = np.concatenate([near.astype(np.float64) * (1 + d) for d in (0, 2.0**-40, -(2.0**-40))])
        right = near.astype(np.float16), doubles.astype(np.float16)
    decode = kernel("y[i] = f32(h[i])", target=target, h=("f16", ("n",)))
    np.testing.assert_array_equal(decode(halves), wide)
    encode = kernel("y[i] = f16(x[i])\nz[i] = f16(d[i])", target=target, x=("f32", ("n",)), d=("f64", ("m",)))
    for got, expected in zip(encode(near, doubles), right, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()
    assert not caplog.records  # the compiler has nothing to say


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("split", ("y", "i", "3"), "split: factor='3': expected an int"),
        ("split", ("y", "i", None), "split: factor is missing; expected an int"),
        ("split", (3, "i", 2), "split: op=3: expected a name"),
        ("vectorize", ("y", "i", 2.5), "split: factor=2.5: expected an int"),
        ("reorder", ("y", "ik"), "reorder: axes='ik': expected a sequence of names"),
        ("reorder", ("y", 3), "reorder: axes=3: expected a sequence of names"),
        ("partial_sums", ("y", [3]), "partial_sums: keep=(3,): expected a sequence of names"),
        ("inline", ([],), "inline: tensor=[]: expected a name"),
        ("prefetch", ("x", "far"), "prefetch: ahead='far': expected an int"),
        ("tile", ("y", "ik"), "tile: sizes='ik': expected sizes by axis, such as {'i': 8}"),
    ],
)
def test_arguments_of_transforms_are_checked(method, arguments, message):
    schedule = polyq.Schedule.naive(polyq.parse("y[i] += a[i, k] * x[k]", a=("f32", (8, 8)), x=("f32", (8,))))
    with pytest.raises(ScheduleError) as caught:
        getattr(schedule, method)(*arguments)
    assert str(caught.value) == message
    assert schedule.reorder("y", ["k", "i"]) == schedule.reorder("y", ("k", "i"))


@pytest.mark.parametrize("make", [polyq.Schedule.naive, polyq.Schedule.auto])
def test_what_is_no_spec_has_no_schedule(make):
    with pytest.raises(ScheduleError, match=r"expected a Spec to schedule .*, got int"):
        make(3)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("y[i] = x[i] where i < 99999999999999999999", ("m",)), ("y[i] = x[i]", (2**70,)), ("y[i] = x[i]", ("m + 2**0",)),
     ("y = x[1000000000*1000000000*0]", (4,)), ("y[i] = x[9999999999*9999999999*i] where i < 1", (4,))],
)  # fmt: skip
def test_numbers_that_no_index_holds_are_refused(text, shape):
    with pytest.raises(SpecError):
        polyq.parse(text, x=("f32", shape))


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_scalar_is_one_byte(kind):
    shifted = kernel("y[i] = i32(x[i]) - i32(z)\nt max= w[i]", kind, x=("i8", (3,)), z=("u4", ()), w=("i4", (3,)))
    y, t = shifted(np.array([1, 20, -3], np.int8), np.array(5, np.uint8), np.array([0x2F, 0x0E], np.uint8))
    np.testing.assert_array_equal(y, [-4, 15, -8])
    assert t.shape == ()
    assert int(t) == 2


def test_sizes_and_outputs_that_no_memory_holds() -> None:
    kernel = polyq.build(polyq.parse("y[i] = f32(i)", y=("f32", ("n",))))
    with pytest.raises(polyq.ArgumentError, match="parameter 'n': expected a value below 2\\*\\*48, got 1180591620717411303424"):
        kernel(n=2**70)
    rows = polyq.build(polyq.parse("y[i, j] = x[i, j] + 1.0", x=("f32", (5, 20))))
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(30, "f4"), (5, 20), (4, 4))
    with pytest.raises(polyq.ArgumentError, match="the elements of the array for y overlap"):
        rows(np.zeros((5, 20), "f4"), out=overlapping)


def test_a_prefetch_asks_ahead() -> None:
    schedule = polyq.Schedule.naive(polyq.parse("y[i] = x[i]", x=("f32", (8,))))
    with pytest.raises(polyq.ScheduleError, match="the distance must be at least 1 byte"):
        schedule.prefetch("x", -3)

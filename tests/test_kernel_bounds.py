"""Kernels within their error bounds: every function alone and composed, on plain, badly scaled and adversarial data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest

import polyq
import polyq.testing
from polyq.affine import bounds
from polyq.affine.arrays import random_arrays
from polyq.affine.bounds import error_bound, half_ulp, logical
from polyq.affine.dtypes import is_float
from polyq.affine.interpret import interpret
from polyq.schedule.evaluation import evaluation


@dataclass(frozen=True)
class Case:
    """A program and the shapes of its inputs; ``exponent`` is how far badly scaled data is spread, in decades.

    ``largest`` bounds adversarial data. ``decides`` says that roundings decide: where none does, a bound is far off.
    """

    name: str
    text: str
    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(hash=False)
    exponent: float = 5.0
    positive: tuple[str, ...] = ()
    largest: float = 5000.0
    decides: bool = False

    def spec(self):
        return polyq.parse(self.text, **self.inputs)


def f32(*shape):
    return "f32", shape


N = 2000
SOFTMAX = "mx[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - mx[i])\nt[i] += e[i, j]\n"
NORMED = "v[i] += x[i, j] * x[i, j]\nn[i, j] = x[i, j] / sqrt(v[i] * 0.0078125 + 0.00001) * g[j]\n"
CASES = (
    # one function each
    Case("division", "y[i] = a[i] / b[i]", {"a": f32(N), "b": f32(N)}, 8.0),
    Case("exp", "y[i] = exp(x[i] * w[i])", {"x": f32(N), "w": f32(N)}, 1.0),
    Case("log", "y[i] = log(x[i] * w[i])", {"x": f32(N), "w": f32(N)}, 8.0, ("x", "w")),
    Case("sqrt", "y[i] = sqrt(x[i] * w[i])", {"x": f32(N), "w": f32(N)}, 15.0, ("x", "w")),
    Case("tanh", "y[i] = tanh(x[i] * w[i])", {"x": f32(N), "w": f32(N)}, 8.0),
    Case("erf", "y[i] = erf(x[i] * w[i])", {"x": f32(N), "w": f32(N)}, 8.0),
    Case("min and max", "y[i] = min(max(a[i] * b[i], -0.5), c[i]) + abs(a[i] * c[i])", {"a": f32(N), "b": f32(N), "c": f32(N)}),
    Case("select", "t[i] = a[i] * b[i]\ny[i] = select(t[i] > c[i] and not (a[i] == b[i]), t[i] / 3.0, c[i] * t[i])",
         {"a": f32(N), "b": f32(N), "c": f32(N)}),
    Case("floor and rint", "y[i] = floor(a[i] * b[i]) + rint(a[i] / b[i])", {"a": f32(N), "b": f32(N)}, 2.0, decides=True),
    Case("casts", "q[i] = i16(rint(a[i] / b[i]))\ny[i] = f32(q[i] // i16(2)) * b[i] + f32(i8(q[i]))", {"a": f32(N), "b": f32(N)}, 0.3),
    Case("f64 functions", "y[i] = exp(x[i]) + log(abs(x[i]) + 1.0) * tanh(x[i]) / (x[i] * x[i] + 2.0)", {"x": ("f64", (N,))}, 1.0),
    Case("f64 erf", "y[i] = erf(x[i] * w[i])", {"x": ("f64", (N,)), "w": ("f64", (N,))}, 1.0),
    # half precision
    Case("f16 chain", "y[i] = x[i] * w[i] + x[i] / (w[i] * w[i] + 1.0)", {"x": ("f16", (N,)), "w": ("f16", (N,))}, 1.0, largest=100.0),
    Case("f16 functions", "y[i] = exp(x[i]) * tanh(x[i]) + erf(x[i]) - sqrt(x[i] * x[i])", {"x": ("f16", (N,))}, 1.0, largest=8.0),
    Case("f16 dot", "y[i] += x[i, k] * w[k]", {"x": ("f16", (40, 130)), "w": ("f16", (130,))}, 1.0, largest=100.0),
    Case("bf16 dot", "s[i] += f32(x[i, k]) * f32(w[k])\ny[i] = bf16(s[i]) * bf16(0.3)", {"x": ("bf16", (40, 130)), "w": ("bf16", (130,))}),
    # sums and products
    Case("matvec", "y[i] += a[i, k] * x[k]", {"a": f32(60, 700), "x": f32(700)}),
    Case("matmul", "y[i, j] += a[i, k] * b[k, j]", {"a": f32(40, 300), "b": f32(300, 48)}),
    Case("f64 dot", "y[i] += a[i, k] * x[k]", {"a": ("f64", (40, 300)), "x": ("f64", (300,))}, 30.0),
    Case("product", "y[i] *= 1.0 + 0.3 * x[i, k]", {"x": f32(100, 37)}, 0.5),
    Case("triangle", "y[i, j] += a[i, k] * b[k, j] where k <= i", {"a": f32(50, 50), "b": f32(50, 40)}),
    Case("convolution", "y[i, j, o] += x[i + k, j + l, c] * w[o, k, l, c] where i < 14, j < 14", {"x": f32(16, 16, 6), "w": f32(12, 3, 3, 6)}),
    Case("recurrence", "y[0, j] = x[0, j]\ny[i, j] = 0.9 * y[i - 1, j] + x[i, j] where i >= 1", {"x": f32(60, 9)}),
    Case("grouped", "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
         {"w": ("u8", (64, 8, 128)), "z": f32(64, 8), "s": f32(64, 8), "x": f32(3, 8, 128)}, 2.0),
    # compositions
    Case("softmax", SOFTMAX + "y[i, j] = e[i, j] / t[i]", {"x": f32(20, 200)}, 2.0),
    Case("logsumexp", SOFTMAX + "y[i] = log(t[i]) + mx[i]", {"x": f32(60, 200)}, 2.0),
    Case("layer norm", "s[i] += x[i, j]\nd[i, j] = x[i, j] - s[i] * 0.0078125\nv[i] += d[i, j] * d[i, j]\n"
         "y[i, j] = d[i, j] / sqrt(v[i] * 0.0078125 + 0.00001) * g[j] + b[j]", {"x": f32(20, 128), "g": f32(128), "b": f32(128)}),
    Case("rms norm and matmul", NORMED + "y[i, o] += n[i, j] * w[o, j]", {"x": f32(9, 128), "g": f32(128), "w": f32(40, 128)}),
    Case("attention", "s[i, j] += q[i, d] * 0.125 * k[j, d]\nmx[i] max= s[i, j]\ne[i, j] = exp(s[i, j] - mx[i])\nt[i] += e[i, j]\n"
         "o[i, d] += e[i, j] * v[j, d]\ny[i, d] = o[i, d] / t[i]", {"q": f32(30, 64), "k": f32(41, 64), "v": f32(41, 64)}, 0.5, largest=4.0),
    Case("gelu", "y[i] = 0.5 * x[i] * (1.0 + erf(x[i] * 0.7071067811865476))", {"x": f32(N)}, 3.0),
    Case("silu", "y[i] = x[i] / (1.0 + exp(-x[i]))", {"x": f32(N)}, 1.5),
    Case("quantize and sum", "a[i] max= abs(x[i, j])\nq[i, j] = i8(rint(x[i, j] / (a[i] / 127.0)))\ny[i] += f32(q[i, j]) * w[j]",
         {"x": f32(30, 200), "w": f32(200)}),
)  # fmt: skip


@lru_cache
def built(case: Case, target: str):
    return polyq.build(case.spec(), target=target)


# ---- data
def typical(case, rng):
    return {n: _codes(rng, t, s) if t == "u8" else _cast(case, n, rng.standard_normal(s)) for n, (t, s) in case.inputs.items()}


def _codes(rng, dtype, shape):
    return rng.integers(0, 256, shape, np.uint8)


def _cast(case, name, values):
    dtype = case.inputs[name][0]
    values = np.abs(values) + 1e-3 if name in case.positive else values
    if dtype == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])


def scaled(case, rng):
    """Magnitudes spread over many decades, in each array."""
    made = typical(case, rng)
    for name, (dtype, shape) in case.inputs.items():
        if dtype != "u8":
            spread = 10.0 ** rng.uniform(-case.exponent, case.exponent, shape)
            made[name] = _cast(case, name, rng.standard_normal(shape) * spread)
    return made


def adversarial(case, rng):
    """Values that cancel, lie next to a power of two, on a tie or at a threshold, vanish or are very small."""
    pool = np.array([0.0, 1.0, 1 + 2**-10, 1 - 2**-11, 0.5, 1.5, 2.5, 3.0, 2.0**-12, 1e-7, 1e-30, 1e-40, 6e-8, 5.96e-8, 17.0, 88.0, 4097.0])
    pool = pool[pool <= case.largest]
    made = typical(case, rng)
    for name, (dtype, shape) in case.inputs.items():
        if dtype == "u8":
            made[name] = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), shape)
            continue
        values = rng.choice(pool, shape) * rng.choice([-1.0, 1.0], shape)
        flat = values.reshape(-1)
        half = flat.size // 2
        flat[half : 2 * half] = -flat[:half]  # every sum over all of it cancels
        made[name] = _cast(case, name, rng.permuted(values, axis=-1))
    return made


# ---- within the bound, and not far off
def _logical(spec, values):
    values = values if isinstance(values, tuple) else (values,)
    return [logical(t, np.asarray(v), tuple(np.asarray(v).shape)) for t, v in zip(spec.outputs, values, strict=True)]


@pytest.mark.parametrize("data", [typical, scaled, adversarial], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernels_are_within_their_bounds(case, data):
    kernel, rng = built(case, "native"), np.random.default_rng(len(case.name))
    for _ in range(3):
        arguments = data(case, rng)
        polyq.testing.assert_close(kernel, **arguments)
        bound = kernel.error_bound(**arguments)
        if data is typical:
            assert np.isfinite(bound).all()
        else:
            assert np.isfinite(bound).mean() > 0.3


def _exact(case, arguments):
    """Return the value with more digits than the kernel has: in float64, or by numpy in a long double."""
    wide = {n: a.astype(np.longdouble) for n, a in arguments.items() if a.dtype == np.float64}
    if case.name == "f64 dot":
        return (wide["a"] * wide["x"]).sum(-1)
    if case.name == "f64 functions":
        x = wide["x"]
        return np.exp(x) + np.log(np.abs(x) + 1) * np.tanh(x) / (x * x + 2)
    return interpret(case.spec(), precise=True, **arguments)


@pytest.mark.parametrize("target", ["native", "c"])
@pytest.mark.parametrize("case", [c for c in CASES if not c.decides and c.name != "f64 erf"], ids=lambda c: c.name)
def test_bounds_are_within_a_hundred_of_what_is_seen(case, target):
    # what is seen: the greatest distance from the oracle, or from the exact value where the oracle errs alike
    kernel, spec = built(case, target), case.spec()
    arguments = typical(case, np.random.default_rng(11))
    (got,) = _logical(spec, kernel(**arguments))
    (oracle,) = _logical(spec, interpret(spec, **arguments))
    bound, value = kernel.error_bound(**arguments), got.astype(np.longdouble)
    seen = max(np.abs(value - oracle).max(), np.abs(value - _exact(case, arguments)).max())
    assert bound.max() <= 100 * seen


# ---- decisions
def test_a_comparison_that_may_flip_covers_both_branches():
    spec = polyq.parse("s[i] += x[i, k] * w[k]\ny[i] = select(s[i] < c[i], 5.0, -5.0)", x=f32(50, 300), w=f32(300), c=f32(50))
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((50, 300)).astype("f4"), rng.standard_normal(300).astype("f4")
    sums = interpret(polyq.parse("s[i] += x[i, k] * w[k]", x=f32(50, 300), w=f32(300)), x=x, w=w)
    kernel = polyq.build(spec)
    ties = kernel.error_bound(x=x, w=w, c=sums)
    assert (ties >= 10).all()
    polyq.testing.assert_close(kernel, x=x, w=w, c=sums)
    apart = kernel.error_bound(x=x, w=w, c=sums + np.float32(1))
    np.testing.assert_array_equal(apart, np.zeros(50))


def test_a_rounding_to_integers_that_may_go_either_way():
    spec = polyq.parse("t[i] = x[i] * w[i]\ny[i] = f32(i32(rint(t[i])))", x=f32(3), w=f32(3))
    bound = polyq.build(spec).error_bound(x=np.array([1.5, 0.7, 2.5], "f4"), w=np.array([3, 1, 3], "f4"))
    assert bound[0] == pytest.approx(1)
    assert bound[1] == 0
    assert bound[2] == pytest.approx(1)


def test_each_range_of_sizes_has_the_bound_of_its_own_schedule():
    spec = polyq.parse("y[i, j] += a[i, k] * b[k, j]", a=f32("m", 300), b=f32(300, 64))
    kernel, rng = polyq.build(spec), np.random.default_rng(5)
    b = rng.standard_normal((300, 64)).astype("f4")
    forms = []
    for m in (1, 4, 100):
        a = rng.standard_normal((m, 300)).astype("f4")
        form = evaluation(kernel.at(m=m).schedule)
        (wanted,) = error_bound(spec, {"a": a, "b": b}, evaluation=form)
        np.testing.assert_array_equal(kernel.error_bound(a=a, b=b), wanted)
        polyq.testing.assert_close(kernel, a=a, b=b)
        forms.append(form)
    assert len({kernel.at(m=m).schedule for m in (1, 4, 100)}) > 1


# ---- how large programs are analysed
def test_slices_give_the_bound_of_the_whole(monkeypatch):
    case = next(c for c in CASES if c.name == "grouped")
    kernel, arguments = built(case, "native"), typical(case, np.random.default_rng(4))
    oracle = [interpret(case.spec(), **arguments)]
    form = evaluation(kernel.schedule)
    for given in ({"evaluation": form}, {"evaluation": form, "reference": True}, {}):
        monkeypatch.setattr(bounds, "ELEMENTS", 1 << 24)
        (whole,) = error_bound(case.spec(), arguments, oracle, **given)
        monkeypatch.setattr(bounds, "ELEMENTS", 1 << 14)
        (cut,) = error_bound(case.spec(), arguments, oracle, **given)
        np.testing.assert_allclose(cut, whole, rtol=1e-12)


def test_the_bound_of_a_schedule_is_much_tighter_than_that_of_any_order():
    case = next(c for c in CASES if c.name == "grouped")
    kernel, arguments = built(case, "native"), typical(case, np.random.default_rng(4))
    (anyhow,) = error_bound(case.spec(), arguments)
    assert kernel.error_bound(**arguments).max() < anyhow.max() / 20


def test_exact_sums_are_known_to_within_an_ulp():
    # partial sums are integers far below 2**24: nothing is rounded, and the bound is no more than a rounding of each
    spec = polyq.parse("y[i] += x[i, k]", x=f32(4, 64))
    arguments = random_arrays(spec, {}, 1)
    arguments["x"] = np.rint(arguments["x"] * 8).astype("f4")
    bound = polyq.build(spec).error_bound(**arguments)
    assert is_float("f32")
    assert (bound <= 64 * 8 * 64 * half_ulp("f32")).all()

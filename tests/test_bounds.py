"""The error bound against evaluations in other orders and forms, on plain and on badly scaled data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS

from polyq.affine.bounds import error_bound, gamma, unit
from polyq.affine.dtypes import is_float
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse

U = 2.0**-24
seeds = st.integers(0, 2**32 - 1)


def _scaled(rng, shape, spread):
    """Floats whose exponents are spread over ``10**-spread .. 10**spread``."""
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)).astype(np.float32)


def _covers(spec, arguments, results):
    """Assert that each result lies within the bound of the oracle, and of the tighter one that knows the oracle."""
    oracle = interpret(spec, **arguments)
    bounds = (error_bound(spec, arguments, reference=True)[0], error_bound(spec, arguments, [oracle])[0])
    assert bounds[0].shape == bounds[1].shape == oracle.shape
    for result in results:
        with np.errstate(invalid="ignore"):
            apart = np.abs(result.astype(np.float64) - oracle.astype(np.float64))
        for bound in bounds:
            assert (np.isinf(bound) | (apart <= bound)).all(), (apart, bound)


# ---- the sum, by hand
def test_a_sum_by_hand():
    spec = parse("y += x[i]", x=("f32", (3,)))
    (bound,) = error_bound(spec, {"x": np.array([1, -2, 4], np.float32)}, reference=True)
    # gamma(3 additions + 4 of a rewrite) of the sum of the magnitudes, for kernel and reference each
    assert bound == pytest.approx(2 * 7 * gamma(7, U), rel=1e-5)
    (tighter,) = error_bound(spec, {"x": np.array([1, -2, 4], np.float32)}, [np.asarray(3, np.float32)])
    assert tighter == pytest.approx(7 * gamma(7, U), rel=1e-5)


def test_a_product_and_a_difference_by_hand():
    spec = parse("y[i] = a[i] * b[i] - a[i]", a=("f32", (1,)), b=("f32", (1,)))
    (bound,) = error_bound(spec, {"a": np.array([3], "f4"), "b": np.array([5], "f4")}, reference=True)
    assert bound[0] == pytest.approx(2 * (15 * U + 18 * U), rel=1e-5)


def test_exact_ops_have_bound_zero():
    text = "y[i] = max(select(x[i] < 0.0, -x[i], x[i]), min(x[i], 2.0)) where i < 7"
    (bound,) = error_bound(parse(text, x=("f32", (9,))), {"x": np.linspace(-3, 3, 9, dtype="f4")})
    np.testing.assert_array_equal(bound, np.zeros(7))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if "integer" in p.name or "repack" in p.name], ids=lambda p: p.name)
def test_integers_have_bound_zero(program):
    spec = program.spec()
    for bound in error_bound(spec, program.arrays(spec)):
        np.testing.assert_array_equal(bound, np.zeros(bound.shape))


# ---- other orders and forms
def _orders(terms):
    """Sum the last axis in several orders, in f32."""
    rng = np.random.default_rng(1)
    yield np.add.accumulate(terms[..., ::-1], axis=-1)[..., -1]
    yield np.add.accumulate(terms[..., rng.permutation(terms.shape[-1])], axis=-1)[..., -1]
    yield terms.sum(-1, dtype=np.float32)
    order = np.argsort(np.abs(terms), axis=-1)
    yield np.add.accumulate(np.take_along_axis(terms, order, -1), axis=-1)[..., -1]
    yield np.add.accumulate(np.take_along_axis(terms, order[..., ::-1], -1), axis=-1)[..., -1]
    lanes = np.zeros((*terms.shape[:-1], 8), np.float32)
    for start in range(0, terms.shape[-1], 8):
        chunk = terms[..., start : start + 8]
        lanes[..., : chunk.shape[-1]] += chunk
    yield lanes.sum(-1)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 70), st.sampled_from([0, 3, 15, 30]))
def test_sums_of_products_in_any_order(seed, n, spread):
    spec = parse("y[i] += x[i, k] * w[k]", x=("f32", ("m", "k")), w=("f32", ("k",)))
    rng = np.random.default_rng(seed)
    x, w = _scaled(rng, (5, n), spread), _scaled(rng, (n,), spread)
    with np.errstate(all="ignore"):
        results = list(_orders(x * w))
        fused = np.zeros(5, np.float32)
        for k in range(n):  # a product of two f32 is exact in f64: one rounding, as an FMA has (but for double rounding)
            fused = (x[:, k].astype("f8") * w[k] + fused).astype(np.float32)
        _covers(spec, {"x": x, "w": w}, [*results, fused])


GROUPED = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[n] += x[g, j] * d[n, g, j]"


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 33), st.sampled_from([0, 4, 20]))
def test_a_scale_and_a_zero_point_moved_out_of_the_sum(seed, groups, size, spread):
    spec = parse(GROUPED, w=("u8", ("n", "g", "j")), z=("f32", ("n", "g")), s=("f32", ("n", "g")), x=("f32", ("g", "j")))
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 256, (6, groups, size), np.uint8)
    z, s = _scaled(rng, (6, groups), min(spread, 4)), _scaled(rng, (6, groups), spread)
    x = _scaled(rng, (groups, size), spread)
    q = w.astype(np.float32)
    arguments = {"w": w, "z": z, "s": s, "x": x}
    with np.errstate(all="ignore"):
        sums = x.sum(-1, dtype=np.float32)
        results = [r for products in _orders(x * q) for r in _orders(s * (products - z * sums))]
        # the zero point inside, the scale outside; and everything multiplied out
        results += [np.add.accumulate(s * inner, -1)[..., -1] for inner in _orders(x * (q - z[..., None]))]
        products = (s[..., None] * x * q).sum((-2, -1), dtype=np.float32)
        results.append(products - (s * z * sums).sum(-1, dtype=np.float32))
        _covers(spec, arguments, results)


def test_a_factor_moved_over_an_underflow():
    # x * q underflows before the factor 1e30 comes; the spec multiplies by it first
    spec = parse("d[j] = q[j] * s\ny += x[j] * d[j]", q=("f32", (4,)), s=("f32", ()), x=("f32", (4,)))
    x, q = np.full(4, 1e-25, "f4"), np.full(4, 1.3e-21, "f4")
    s = np.asarray(1e30, "f4")
    factored = s * np.add.reduce(x * q)
    direct = interpret(spec, x=x, q=q, s=s)
    assert abs(float(factored) - float(direct)) > 1e-3 * direct
    _covers(spec, {"x": x, "q": q, "s": s}, [np.asarray(factored)])


def test_possible_overflow_makes_the_bound_infinite():
    spec = parse("y[i] = x[i] * s", x=("f32", (2,)), s=("f32", ()))
    (bound,) = error_bound(spec, {"x": np.array([1e30, 1e3], "f4"), "s": np.asarray(1e20, "f4")})
    assert bound[0] == math.inf
    assert 0 < bound[1] < 1e17


def test_infinities_that_are_exact_stay_exact():
    spec = parse("y[i] = exp(x[i] - m)", x=("f32", (3,)), m=("f32", ()))
    (bound,) = error_bound(spec, {"x": np.array([-np.inf, 0, 1], "f4"), "m": np.asarray(1, "f4")})
    assert bound[0] < 1e-44
    assert (bound[1:] > 0).all()
    assert (bound[1:] < 1e-5).all()


def test_a_mask_of_infinities_leaves_a_softmax_bounded():
    spec = parse(
        "mx[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - mx[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]", x=("f32", (2, 5))
    )
    x = np.where(np.tri(2, 5, 2) > 0, np.linspace(-1, 1, 10).reshape(2, 5), -np.inf).astype("f4")
    (bound,) = error_bound(spec, {"x": x})
    assert (bound < 1e-5).all()


def test_decisions_that_hang_on_rounding():
    spec = parse("t[i] = a[i] * b[i]\ny[i] = select(t[i] < 1.0, 0.0, 5.0)\nr[i] = floor(t[i])", a=("f32", (3,)), b=("f32", (3,)), outputs=("y", "r"))
    y, r = error_bound(spec, {"a": np.array([1, 0.5, 3], "f4"), "b": np.array([1, 0.5, 1], "f4")})
    np.testing.assert_allclose(y, [5, 0, 0], rtol=1e-5)  # 1 * 1 < 1 might turn out either way; the other two cannot
    np.testing.assert_allclose(r, [1, 0, 1], rtol=1e-5)


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "erf"])
def test_functions_that_are_four_ulps_off(fn):
    spec = parse(f"y[i] = {fn}(x[i] * w[i]) * 3.0", x=("f32", (200,)), w=("f32", (200,)))
    rng = np.random.default_rng(5)
    x, w = np.abs(_scaled(rng, 200, 0.7)) + np.float32(0.01), np.ones(200, "f4") * np.float32(1.7)
    scalar = getattr(math, fn)
    # 3.5 units in the last place off, the rounding included; the argument rounded, or not at all
    for argument, ulps in itertools.product((x * w, x.astype("f8") * w), (-3, 3)):
        exact = np.array([scalar(v) for v in argument.tolist()]).astype(np.float32)
        off = exact + np.float32(ulps) * np.spacing(np.abs(exact))
        _covers(spec, {"x": x, "w": w}, [off * np.float32(3)])


def test_division_by_a_reciprocal():
    spec = parse("y[i] = a[i] / (b[i] + c[i])", a=("f32", (100,)), b=("f32", (100,)), c=("f32", (100,)))
    rng = np.random.default_rng(6)
    a, b, c = (_scaled(rng, 100, 2) for _ in range(3))
    _covers(spec, {"a": a, "b": b, "c": c}, [a * (np.float32(1) / (b + c))])


def test_division_by_what_may_be_zero():
    spec = parse("y[i] = 1.0 / (a[i] - b[i] * b[i])", a=("f32", (2,)), b=("f32", (2,)))
    (bound,) = error_bound(spec, {"a": np.array([1, 4], "f4"), "b": np.array([1, 1], "f4")})
    assert bound[0] == math.inf
    assert 0 < bound[1] < 1e-6


def test_half_precision_sums_round_once():
    spec = parse("y += x[i] * w[i]", x=("f16", (300,)), w=("f16", (300,)))
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal(300).astype("f2"), rng.standard_normal(300).astype("f2")
    unrounded = np.asarray((x.astype("f4") * w.astype("f4")).sum(), "f2")
    _covers(spec, {"x": x, "w": w}, [unrounded, np.asarray((x * w).astype("f4")[::-1].sum(), "f2")])
    assert error_bound(spec, {"x": x, "w": w})[0] < 0.5


def test_a_sum_in_place_keeps_the_error_of_what_it_starts_from():
    spec = parse("y[i] += x[i, k]", x=("f32", (2, 3)), y=("f32", (2,)))
    (bound,) = error_bound(spec, {"x": np.ones((2, 3), "f4"), "y": np.full(2, 100, "f4")})
    assert bound == pytest.approx([103 * gamma(7, U)] * 2, rel=1e-5)


# ---- how much it exaggerates
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_bounds_cover_the_oracle_and_are_not_far_off(program):
    spec = program.spec()
    arguments = {**program.arrays(spec), **program.free_params(spec)}
    oracle = interpret(spec, **arguments)
    oracle = oracle if isinstance(oracle, tuple) else (oracle,)
    precise = interpret(spec, precise=True, **arguments)
    precise = precise if isinstance(precise, tuple) else (precise,)
    for tensor, bound, o, p in zip(spec.outputs, error_bound(spec, arguments), oracle, precise, strict=True):
        if not is_float(tensor.dtype) or bound.size == 0 or not np.isfinite(p).all():
            continue
        assert (np.abs(o.astype(np.float64) - p) <= bound).all()
        # depth is at most 1000 and sizes exceed values by cancellation alone: no element may be worse than this
        assert bound.max() <= 1e5 * unit(tensor.dtype) * max(1.0, np.abs(p).max())


def test_within_a_hundred_of_what_is_seen():
    spec = parse("y[i, j] += a[i, k] * b[k, j]", a=("f32", (40, 64)), b=("f32", (64, 50)))
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal(s).astype("f4") for s in ((40, 64), (64, 50)))
    terms = a[:, None, :] * b.T[None]
    oracle = interpret(spec, a=a, b=b)
    (bound,) = error_bound(spec, {"a": a, "b": b}, [oracle])
    seen = max(np.abs(r - oracle).max() for r in _orders(terms))
    assert seen <= bound.max() <= 100 * seen

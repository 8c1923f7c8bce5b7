"""The running error analysis: by hand, against simulated evaluations, and what it knows of signs and slices."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyq.affine.bounds import Evaluation, Sums, error_bound
from polyq.affine.bounds.machine import binade, function_error, half_ulp
from polyq.affine.bounds.signs import not_negative
from polyq.affine.bounds.slices import batches, best_batch
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse

U = 2.0**-24
seeds = st.integers(0, 2**32 - 1)


def _bound(spec, oracle=None, sums=(), **arguments):
    """The bound along the order of the program, or what ``sums`` says of it."""
    known = sums or tuple(Sums(op.name) for op in spec.ops if op.reduce in ("+", "*"))
    (bound,) = error_bound(spec, arguments, oracle, evaluation=Evaluation(spec, known))
    return bound


def _scaled(rng, shape, spread):
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)).astype(np.float32)


# ---- by hand
def test_a_sum_charges_the_binades_of_its_partial_sums():
    # partial sums 1, -1, 3: binades 1 + 1 + 2; exact in f32, so that the oracle errs by nothing
    spec = parse("y += x[i]", x=("f32", (3,)))
    assert _bound(spec, x=np.array([1, -2, 4], np.float32)) == pytest.approx(4 * U, rel=1e-5)


def test_a_run_of_open_order_charges_its_terms_twice():
    # partial sums 1, 1, 3, and twice the run of 3 times the terms' 1 + 2 + 4
    spec = parse("y += x[i]", x=("f32", (3,)))
    bound = _bound(spec, sums=(Sums("y", run=3),), x=np.array([1, -2, 4], np.float32))
    assert bound == pytest.approx(3 * 7 * U, rel=1e-5)  # all updates are open: gamma(3) of the magnitudes
    bound = _bound(spec, sums=(Sums("y", run=2),), x=np.array([1, -2, 4], np.float32))
    assert bound == pytest.approx((5 + 2 * 2 * 7) * U, rel=1e-5)


def test_an_unknown_order_charges_every_term_with_all_roundings():
    spec = parse("y += x[i]", x=("f32", (3,)))
    bound = _bound(spec, sums=(Sums("y", ("i",)),), x=np.array([1, -2, 4], np.float32))
    assert bound == pytest.approx(3 * 7 * U, rel=1e-5)


def test_products_quotients_and_roots_by_hand():
    a, b = np.array([3], "f4"), np.array([5], "f4")
    two = {"a": ("f32", (1,)), "b": ("f32", (1,))}
    # 15 is in the binade 8; 15 * 5 adds its own 64, and five times the 8
    assert _bound(parse("y[i] = a[i] * b[i] * b[i]", **two), a=a, b=b)[0] == pytest.approx((64 + 5 * 8) * U, rel=1e-5)
    # (a b) / (a b): the errors of both, over 15, and a rounding in the binade 1
    (ratio,) = _bound(parse("y[i] = (a[i] * b[i]) / (a[i] * b[i])", **two), a=a, b=b)
    assert ratio == pytest.approx((16 / 15 + 1) * U, rel=1e-5)
    (root,) = _bound(parse("y[i] = sqrt(a[i] * b[i])", **two), [np.sqrt(a * b)], a=a, b=b)
    exact = math.sqrt(15)
    assert root == pytest.approx(8 * U / (2 * exact) + 2 * U + abs(float(np.sqrt(np.float32(15))) - exact), rel=1e-5)


def test_functions_by_hand():
    x = {"x": ("f32", (1,))}
    relative, _ = function_error("f32")
    assert relative == pytest.approx(8 * U, rel=1e-6)
    for fn, value in (("exp", math.exp(2)), ("log", math.log(2)), ("tanh", math.tanh(2)), ("erf", math.erf(2))):
        (bound,) = _bound(parse(f"y[i] = {fn}(x[i])", **x), x=np.array([2], "f4"))
        own = abs(float(np.float32(value)) - value)
        assert bound == pytest.approx(8 * U * 2.0 ** math.floor(math.log2(value)) + own, rel=1e-5)


def test_an_error_in_the_argument_of_a_saturated_tanh_vanishes():
    spec = parse("y[i] = tanh(x[i] * x[i])", x=("f32", (2,)))
    bound = _bound(spec, x=np.array([1, 30], "f4"))
    assert bound[0] > 8 * 0.5 * U
    assert bound[1] <= 8.001 * U


@given(st.floats(2.0**-1000, 2.0**1000))
def test_binades(size):
    (found,) = binade(np.array([size]))
    assert Fraction(found) <= Fraction(size) * (1 + Fraction(1, 2**39)) < 2 * Fraction(found) * (1 + Fraction(1, 2**39))
    assert math.frexp(found)[0] == 0.5


def test_half_ulps_of_all_types():
    assert [half_ulp(d) for d in ("f16", "bf16", "f32", "f64")] == [2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53]


# ---- against simulated evaluations in the known order
@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 90), st.sampled_from([0, 2, 6]), st.sampled_from([0.0, 1.0, 0.5]))
def test_sums_of_products_with_and_without_fma(seed, n, spread, fused):
    spec = parse("y[i] += x[i, k] * w[k]", x=("f32", ("m", "k")), w=("f32", ("k",)))
    rng = np.random.default_rng(seed)
    x, w = _scaled(rng, (6, n), spread), _scaled(rng, (n,), spread)
    x[3:, n // 2 :] = -x[3:, : n - n // 2]
    total = np.zeros(6, np.float32)
    for k in range(n):
        product = x[:, k].astype("f8") * w[k]  # exact: 48 bits
        product = np.where(rng.random(6) < fused, product, product.astype(np.float32))
        total = np.array([_rounded(Fraction(float(a)) + Fraction(float(b))) for a, b in zip(product, total, strict=True)])
    oracle = interpret(spec, x=x, w=w)
    apart = np.abs(total.astype("f8") - oracle)
    assert (apart <= _bound(spec, [oracle], x=x, w=w)).all()
    assert (apart <= _bound(spec, [oracle], (Sums("y", run=4),), x=x, w=w)).all()


def _rounded(value: Fraction) -> np.float32:
    """Round to the nearest f32, once (a float64 between would round twice)."""
    near = np.float32(float(value))
    candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(2, 12), st.integers(1, 8), st.sampled_from([0, 3]))
def test_runs_in_any_order(seed, runs, length, spread):
    spec = parse("y += x[i, j]", x=("f32", ("m", "n")))
    rng = np.random.default_rng(seed)
    x = _scaled(rng, (runs, length), spread)
    total = np.float32(0)
    for row in x:  # lanes as a tree, then into the sum; or one after another in another order
        terms = list(rng.permuted(row))
        if rng.random() < 0.5:
            while len(terms) > 1:
                terms = [np.float32(a + b) for a, b in zip(terms[::2], [*terms[1::2], np.float32(0)][: len(terms[::2])], strict=True)]
        for t in terms:
            total = np.float32(total + t)
    oracle = interpret(spec, x=x)
    apart = abs(float(total) - float(oracle))
    assert apart <= _bound(spec, [oracle], (Sums("y", ("j",)),), x=x)
    assert apart <= _bound(spec, [oracle], (Sums("y", run=length),), x=x)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 20), st.sampled_from([0.3, 4, 12]))
def test_products_in_any_order(seed, n, spread):
    spec = parse("y *= x[i]", x=("f32", ("n",)))
    rng = np.random.default_rng(seed)
    x = _scaled(rng, n, spread)
    oracle = interpret(spec, x=x)
    with np.errstate(all="ignore"):
        for order in (np.arange(n), rng.permutation(n), np.argsort(np.abs(x))):
            result = np.multiply.accumulate(x[order])[-1]
            apart = abs(float(result) - float(oracle))
            bound = _bound(spec, [oracle], (Sums("y", ("i",)),), x=x)
            assert np.isinf(bound) or apart <= bound
    if spread < 1:
        assert np.isfinite(_bound(spec, [oracle], (Sums("y", ("i",)),), x=x))


# ---- overflow, infinities
def test_a_partial_sum_that_overflows():
    spec = parse("y[i] += x[i, k]", x=("f32", (2, 3)))
    x = np.array([[3e38, 3e38, -3e38], [3e38, -3e38, 3e38]], "f4")
    bound = _bound(spec, x=x)
    assert np.isinf(bound[0])
    assert np.isfinite(bound[1])
    assert np.isinf(_bound(spec, sums=(Sums("y", run=2),), x=x)).all()  # in another order it may


def test_infinite_inputs_that_decide_a_result():
    spec = parse("y[i] = exp(x[i] - m) / (x[i] + 1.0)", x=("f32", (3,)), m=("f32", ()))
    bound = _bound(spec, x=np.array([-np.inf, 0, 1], "f4"), m=np.asarray(1, "f4"))
    assert np.isfinite(bound).all()
    assert bound[0] < 1e-44


def test_an_fma_may_escape_an_overflow():
    spec = parse("y[i] = a[i] * b[i] + c[i]", a=("f64", (1,)), b=("f64", (1,)), c=("f64", (1,)))
    bound = _bound(spec, a=np.array([2e200]), b=np.array([1e108]), c=np.array([-1.5e308]))
    assert np.isinf(bound[0])


# ---- signs
def test_what_is_never_negative():
    spec = parse(
        "v[i] += x[i, k] * x[i, k]\nd[i] = v[i] - 1.0\nr[i] = sqrt(v[i] + 0.5) / exp(d[i])\nm[i] = max(d[i], 0.0)\nn[i] = r[i] * d[i]\n"
        "q[i] = f32(u[i]) * abs(d[i])\np[i] *= x[i, k]",
        x=("f32", (2, 3)), u=("u8", (2,)), outputs=("n", "q", "m", "p"),
    )  # fmt: skip
    assert not_negative(spec) == {"v", "r", "m", "u", "q"}


def test_the_root_of_a_square_next_to_zero():
    # the square is below its own error, and yet no root of a negative number is taken
    spec = parse("y[i] = sqrt(x[i] * x[i])", x=("f32", (3,)))
    bound = _bound(spec, x=np.array([0, 1e-23, 1], "f4"))
    assert np.isfinite(bound).all()
    assert bound[0] >= math.sqrt(2.0**-150)
    other = parse("y[i] = sqrt(x[i] * x[i] - 9.0)", x=("f32", (1,)))
    assert np.isinf(_bound(other, x=np.array([3], "f4"))).all()


def test_what_f32_holds_is_not_rounded():
    """Products with powers of two and differences of exact operands: a rounding to integers after them is sure."""
    x = {"x": ("f32", (4,))}
    given = np.array([5, 2.5, 0.1, 2.0**-140], "f4")
    assert _bound(parse("y[i] = x[i] * 0.5", **x), x=given).tolist() == [0, 0, 0, 0]
    assert _bound(parse("y[i] = x[i] / 4.0", **x), x=given).tolist() == [0, 0, 0, 0]
    assert _bound(parse("y[i] = rint(x[i] * 0.5)", **x), x=given).tolist() == [0, 0, 0, 0]
    kept, lost = _bound(parse("y[i] = x[i] - 2.0", x=("f32", (2,))), x=np.array([2.5, 1e-9], "f4"))
    assert kept == 0
    assert lost >= 2 * U * 0.5


# ---- slices
def test_batches_are_what_goes_together():
    text = "mx[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - mx[i])\nt[i] += e[i, j]\ny[i, j] = e[i, j] / t[i]"
    spec = parse(text, x=("f32", ("m", 7)))
    (rows,) = batches(spec, {"m": 5})
    assert (dict(rows.axes), set(rows.dims.values()), rows.extent) == (dict.fromkeys(["x", "mx", "e", "t", "y"], 0), {"i"}, 5)
    assert best_batch(spec, {"m": 5}, 10**6) is None
    found = best_batch(spec, {"m": 5}, 60)
    assert found is not None
    assert found[1] == 2


@pytest.mark.parametrize(
    "text",
    ["y[i] = x[i, i]", "y[i] = x[i, 0] + x[5 - i, 0]", "y += x[i, j]", "y[0, j] = x[0, j]\ny[i, j] = y[i - 1, j] + x[j, i] where i >= 1, j < 6"],
)
def test_what_meets_another_slice_is_no_batch(text):
    spec = parse(text, x=("f32", (6, 6)))
    assert [b for b in batches(spec, {}) if b.extent > 1] == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_slice_computes_its_part(count):
    text = "y[i, j] += x[i, k] * f32(i * 10 + j) * w[k, j // 2] where k + i >= 2"
    spec = parse(text, x=("f32", (5, 4)), w=("f32", (4, 3)), y=("f32", (5, 6)))
    rng = np.random.default_rng(1)
    x, w, y = (rng.standard_normal(s).astype("f4") for s in ((5, 4), (4, 3), (5, 6)))
    whole = interpret(spec, x=x, w=w, y=y)
    batch = next(b for b in batches(spec, {}) if set(b.dims.values()) == {"i"})
    for start in range(0, 5, count):
        here = min(count, 5 - start)
        part = interpret(batch.sliced(spec, start, here), x=x[start : start + here], w=w, y=y[start : start + here])
        np.testing.assert_array_equal(part, whole[start : start + here])

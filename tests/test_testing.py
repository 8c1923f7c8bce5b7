"""assert_close: what it accepts, what it refuses, and what it then says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from programs import PROGRAMS

from polyq import build
from polyq.affine.errors import ArgumentError
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse
from polyq.affine.spec import Spec
from polyq.schedule import Schedule
from polyq.testing import assert_close


@dataclass
class Fake:
    """A kernel that is the oracle, with ``change`` applied to its result."""

    spec: Spec
    numerics: str = "reassoc"
    change: Any = field(default=lambda y: y)

    def __call__(self, **arguments):
        return self.change(interpret(self.spec, **arguments))


SUM = parse("y[m] += x[m, k] * w[k]", x=("f32", ("m", 40)), w=("f32", (40,)))
X = np.linspace(-1, 1, 120, dtype=np.float32).reshape(3, 40)
W = np.linspace(0, 1, 40, dtype=np.float32)


def _off(step):
    def change(y):
        y = y.copy()
        y[1] += step
        return y

    return change


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_oracle_passes_itself(program):
    spec = program.spec()
    assert_close(Fake(spec), **program.arrays(spec), **program.free_params(spec))


def test_reordered_sums_pass_reassoc_and_fail_strict():
    backwards = lambda _: np.array([np.add.accumulate((x * W)[::-1])[-1] for x in X])  # noqa: E731
    assert_close(Fake(SUM, change=backwards), x=X, w=W)
    with pytest.raises(AssertionError, match=r"bound 0; [123] of 3 elements are off"):
        assert_close(Fake(SUM, "strict", backwards), x=X, w=W)


def test_a_wrong_element_is_named_with_value_oracle_and_bound():
    with pytest.raises(AssertionError) as caught:
        assert_close(Fake(SUM, change=_off(np.float32(0.5))), x=X, w=W)
    assert str(caught.value) == (
        "y[1]: kernel 2.7969186305999756, oracle 2.2969186305999756, difference 0.5, bound 9.24152e-06; "
        "1 of 3 elements are off"
    )


@dataclass
class Scheduled(Fake):
    """A kernel with a schedule."""

    schedule: Any = None


def test_a_kernel_with_a_schedule_has_a_tighter_bound_and_shows_it():
    schedule = Schedule.naive(SUM, target="c").unroll("y", "m")
    with pytest.raises(AssertionError) as caught:
        assert_close(Scheduled(SUM, change=_off(np.float32(0.5)), schedule=schedule), x=X, w=W)
    assert str(caught.value) == (
        "y[1]: kernel 2.7969186305999756, oracle 2.2969186305999756, difference 0.5, bound 1.20355e-06; "
        "1 of 3 elements are off\n"
        "schedule of y: numerics reassoc, target c\n"
        "├─ m m:  y[m] = 0.0  [y.init]\n"
        "└─ m unroll m\n"
        "   └─ k 40:  y[m] += x[m, k] * w[k]"
    )
    strict = Scheduled(SUM, "strict", _off(np.float32(0.5)), Schedule.naive(SUM, "strict", "c"))
    with pytest.raises(AssertionError, match=r"(?s)bound 0; 1 of 3 elements are off.schedule of y: numerics strict"):
        assert_close(strict, x=X, w=W)


def test_an_output_that_nothing_can_be_said_of_gives_a_warning():
    with pytest.warns(UserWarning, match=r"^y: no element has a finite error bound; none is compared$"):
        assert_close(Fake(SUM), x=X * np.float32(1e38), w=W * np.float32(1e38))


def test_inputs_that_only_bind_supplies_are_bound():
    kernel = build(SUM, constants=("w",))
    assert_close(kernel, x=X, w=W)
    with pytest.raises(AssertionError, match=r"y\[1\]: kernel .*, reference "):
        assert_close(kernel, reference=_off(np.float32(0.5))(X @ W), x=X, w=W)


def test_the_element_farthest_outside_its_bound_is_named():
    with pytest.raises(AssertionError, match=r"y\[2\]: kernel 17.*; 3 of 3 elements are off"):
        assert_close(Fake(SUM, change=lambda y: y + np.array([1, -1, 2], np.float32)), x=X, w=W)


def test_an_order_that_the_schedule_does_not_have_is_found_out():
    # 4096 equal terms: added one by one in f32 their sum is far from that of a tree
    spec = parse("y += x[k]", x=("f32", (1 << 20,)))
    x = np.full(1 << 20, 0.1, np.float32)
    tree = Scheduled(spec, change=lambda _: np.asarray(x.sum(), np.float32), schedule=Schedule.naive(spec, target="c"))
    assert_close(tree, x=x)  # the bound of one long chain is wide enough for everything
    lanes = Schedule.naive(spec, target="c").split_dim("y", "k", 1024).partial_sums("y", ["ko"]).partial_sums("y", ["ko"])
    chain = np.add.accumulate(x)[-1]
    exact = float(x.astype("f8").sum())
    assert abs(chain - exact) > 1000
    with pytest.raises(AssertionError, match="bound"):
        assert_close(Scheduled(spec, change=lambda _: np.asarray(2 * exact - chain, np.float32), schedule=lanes), x=x)


def test_a_reference_is_compared_within_the_bound():
    assert_close(Fake(SUM), reference=X.astype("f8") @ W, x=X, w=W)
    with pytest.raises(AssertionError, match=r"y\[1\]: kernel .*, reference .*3 of 3 elements"):
        assert_close(Fake(SUM), reference=X.astype("f8") @ W + 1e-3, x=X, w=W)


def test_nan_where_the_oracle_has_a_number():
    with pytest.raises(AssertionError, match=r"kernel nan, oracle"):
        assert_close(Fake(SUM, change=_off(np.float32(np.nan))), x=X, w=W)


def test_form_of_the_result():
    with pytest.raises(AssertionError, match=r"^y: expected dtype float32, got float64$"):
        assert_close(Fake(SUM, change=lambda y: y.astype("f8")), x=X, w=W)
    with pytest.raises(AssertionError, match=r"^y: expected shape \(3,\), got \(3, 1\)$"):
        assert_close(Fake(SUM, change=lambda y: y[:, None]), x=X, w=W)
    with pytest.raises(AssertionError, match=r"^y: expected 1 outputs \(y\), got 2$"):
        assert_close(Fake(SUM, change=lambda y: (y, y)), x=X, w=W)


def test_packed_and_integer_outputs_are_exact():
    spec = parse("y[i] = i4(i8(w[i]) - 8)", w=("u4", (5,)))
    w = np.array([0x10, 0x32, 0x04], np.uint8)
    assert_close(Fake(spec), w=w)

    def flip(y):
        return y ^ np.array([0, 0x10, 0], np.uint8)

    with pytest.raises(AssertionError, match=r"y\[3\]: kernel -6, oracle -5, difference 1, bound 0; 1 of 5"):
        assert_close(Fake(spec, change=flip), w=w)
    # what lies behind the last element is padding
    assert_close(Fake(spec, change=lambda y: y | np.array([0, 0, 0xF0], np.uint8)), w=w)


def test_zero_bound_still_takes_equal_infinities():
    spec = parse("y[i] = x[i]", x=("f32", (3,)))
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert_close(Fake(spec), x=x)
    with pytest.raises(AssertionError, match=r"y\[0\]: kernel 0.0, oracle inf"):
        assert_close(Fake(spec, change=np.zeros_like), x=x)


def test_an_argument_that_does_not_fit_is_refused_before_the_kernel_runs():
    def never(_):
        raise RuntimeError("called")

    with pytest.raises(ValueError, match=r"x: expected 2 axes"):
        assert_close(Fake(SUM, change=never), x=X[0], w=W)


def test_a_bound_callable_is_checked_with_what_it_holds():
    kernel = build(SUM)
    layer = kernel.bind(w=W)
    assert_close(layer, x=X)
    assert_close(layer, x=X, w=W)
    with pytest.raises(AssertionError, match=r"y\[2\]: kernel .*, oracle "):
        assert_close(layer, x=X, w=2 * W)  # it does not hold these
    with pytest.raises(AssertionError, match=r"y\[1\]: kernel .*, reference "):
        assert_close(layer, reference=_off(np.float32(0.5))(X @ W), x=X)


def test_what_is_no_kernel():
    with pytest.raises(ArgumentError, match=r"^assert_close: expected a kernel, or what its bind returns, got function$"):
        assert_close(lambda x: x, x=X)

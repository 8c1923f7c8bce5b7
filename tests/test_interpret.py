"""The oracle against numpy, against loops over single instances, and against values worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hand_cases import CASES, Case
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, Program
from random_specs import random_specs

from polyq.affine.arrays import caller_view, from_storage
from polyq.affine.dtypes import is_float, numpy_dtype
from polyq.affine.interpret import interpret
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import REDUCTIONS


def _results(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_equal_numpy(program: Program):
    spec = program.spec()
    arrays = program.arrays(spec)
    before = {name: a.copy() for name, a in arrays.items()}
    expected = program.expected(spec, arrays)
    precise = _results(interpret(spec, precise=True, **arrays, **program.free_params(spec)))
    declared = _results(interpret(spec, **arrays, **program.free_params(spec)))
    assert len(expected) == len(precise) == len(declared) == len(spec.outputs)
    for tensor, right, p, d in zip(spec.outputs, expected, precise, declared, strict=True):
        assert d.dtype == caller_view(tensor, np.empty(0, numpy_dtype(tensor.dtype))).dtype
        if not is_float(tensor.dtype):
            np.testing.assert_array_equal(from_storage(tensor, d, right.shape), right.astype(np.int64), strict=False)
            np.testing.assert_array_equal(d, p)
            continue
        np.testing.assert_allclose(p, right, rtol=1e-11, atol=1e-11 * _size(right))
        tolerance = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5, "f64": 1e-12}[tensor.dtype]
        np.testing.assert_allclose(d.astype(np.float64), right, rtol=tolerance, atol=tolerance * _size(right))
    for name, a in arrays.items():
        np.testing.assert_array_equal(a, before[name])


def _size(a: np.ndarray) -> float:
    return float(np.abs(a[np.isfinite(a)]).max(initial=1.0))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_values_worked_out_by_hand(case: Case):
    spec = case.spec()
    for result, right in zip(_results(interpret(spec, **case.arguments)), _results(case.right), strict=True):
        assert result.dtype == right.dtype
        np.testing.assert_array_equal(result, right, strict=True)


# ---- against one instance after the other
def _instance(spec, store, body, point):
    """Evaluate a body at one point with numpy scalars."""
    match body:
        case Const(value, dtype):
            return numpy_dtype(dtype).type(value)
        case Index(expr, dtype):
            return np.array(expr.evaluate(point), np.int64).astype(numpy_dtype(dtype))[()]
        case Load(tensor, index, _):
            at = tuple(e.evaluate(point) for e in index)
            assert all(0 <= a < n for a, n in zip(at, store[tensor].shape, strict=True))
            return store[tensor][at]
        case Cast(arg, "i32") if arg.dtype == "f32":
            value = float(_instance(spec, store, arg, point))
            return np.int32(0 if np.isnan(value) else max(-(2**31), min(2**31 - 1, int(max(-1e20, min(1e20, value))))))
        case Cast(arg, dtype):
            return np.asarray(_instance(spec, store, arg, point)).astype(numpy_dtype(dtype))[()]
        case Apply(fn, args, _):
            return POINTWISE[fn](*(_instance(spec, store, a, point) for a in args))


POINTWISE = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a,
    "min": np.minimum, "max": np.maximum, "lt": lambda a, b: a < b, "select": lambda c, a, b: a if c else b,
    "floordiv": lambda a, b: type(a)(int(a) // int(b)),
}  # fmt: skip


def _one_after_the_other(spec, arrays):
    store = {t.name: arrays[t.name].copy() if t.name in arrays else np.zeros(t.shape, numpy_dtype(t.dtype)) for t in spec.all_tensors}
    for op in spec.ops:
        for values in itertools.product(*(range(e.const) for e in op.extents)):
            point = dict(zip(op.dims, values, strict=True))
            if all((v == 0 if c.equality else v >= 0) for c in op.where for v in [c.expr.evaluate(point)]):
                cell = tuple(e.evaluate(point) for e in op.index)
                value = _instance(spec, store, op.body, point)
                old = store[op.target][cell]
                store[op.target][cell] = value if op.reduce is None else POINTWISE[REDUCTIONS[op.reduce]](old, value)
    return [store[name] for name in spec.output_names]


@settings(max_examples=60, deadline=None)
@given(random_specs(), st.integers(0, 100))
def test_random_specs_equal_a_walk_over_single_instances(drawn, seed):
    spec, arrays = drawn.spec(), drawn.arrays(seed)
    with np.errstate(all="ignore"):
        expected = _one_after_the_other(spec, arrays)
    for result, right in zip(_results(interpret(spec, **arrays)), expected, strict=True):
        assert result.dtype == right.dtype
        np.testing.assert_array_equal(result, right)  # bit by bit, NaN with NaN

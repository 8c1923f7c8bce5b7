"""The oracle against numpy, against loops over single instances, and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from programs import PROGRAMS, Program

from polyq.affine.arrays import caller_view, from_storage
from polyq.affine.dtypes import is_float, numpy_dtype
from polyq.affine.interpret import interpret


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

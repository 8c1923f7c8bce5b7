"""Kernels of hand-worked programs, and of what once was built wrong: every value here was worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import polyq

KINDS = ("naive", "auto")


def kernel(text: str, kind: str = "auto", numerics: str = "reassoc", target: str = "native", **tensors):
    return polyq.build(getattr(polyq.Schedule, kind)(polyq.parse(text, **tensors), numerics=numerics, target=target))


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_on_parameters_alone(kind):
    guarded = kernel("y[i] += x[i] where n >= 3\nz[i] = 2.0 where n % 2 == 0, i < n", kind, x=("f32", ("n",)))
    for n in range(6):
        y, z = guarded(x=np.ones(n, np.float32))
        np.testing.assert_array_equal(y, np.full(n, float(n >= 3)))
        np.testing.assert_array_equal(z, np.full(n - n % 2, 2.0 * (n % 2 == 0)))  # the box ends at the largest i of all n
    never = kernel("y[i, j] += x[i] * z[j] where 1 < 0", kind, x=("f32", (4,)), z=("f32", (9,)))
    assert never(np.ones(4, np.float32), np.ones(9, np.float32)).shape == (0, 0)


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

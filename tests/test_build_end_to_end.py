"""From index notation to a kernel in another process: the rooms together, through the public face."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyq
import polyq.build
import polyq.testing
from polyq.affine.errors import ScheduleError

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(5)
A = RNG.standard_normal((37, 53), dtype=np.float32)
X = RNG.standard_normal(53, dtype=np.float32)


def matvec():
    return polyq.parse("y[i] += a[i, j] * x[j]", a=("f32", ("m", 53)), x=("f32", (53,)))


@pytest.fixture(scope="module", params=["strict", "reassoc"])
def kernel(request):
    return polyq.build(matvec(), numerics=request.param, threads=2)


def test_a_kernel_of_index_notation(kernel):
    exact = A.astype(np.float64) @ X.astype(np.float64)
    np.testing.assert_allclose(kernel(A, X), exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kernel.bind(a=A)(X), exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kernel(a=A[::-1], x=X), exact[::-1], rtol=1e-4, atol=1e-5)
    polyq.testing.assert_close(kernel, a=A, x=X)
    assert kernel.certificate.verify()
    assert "y" in kernel.explain()
    assert f"  numerics     {kernel.numerics}\n" in repr(kernel)


def test_the_error_bound_holds_and_strict_has_none(kernel):
    bound = kernel.error_bound(a=A, x=X)
    error = np.abs(kernel(A, X).astype(np.float64) - polyq.interpret(kernel.spec, a=A, x=X))
    assert bound.shape == (37,)
    assert (error <= bound).all()
    assert np.array_equal(bound, kernel.error_bound(A, X))
    if kernel.numerics == "strict":
        assert not bound.any()
    else:
        magnitude = np.abs(A.astype(np.float64)) @ np.abs(X.astype(np.float64))
        assert (bound > 0).all()
        # kernel and oracle may each be off by the textbook bound, 54 roundings, and a few for the bound itself
        assert (bound <= 2 * 60 * 2.0**-24 * magnitude).all()


def test_a_kernel_travels_with_its_options(kernel):
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.numerics, again.threads, again.source) == (kernel.numerics, 2, kernel.source)
    np.testing.assert_array_equal(again(A, X), kernel(A, X))


def test_a_schedule_by_hand_builds_and_travels():
    schedule = polyq.Schedule.naive(matvec(), numerics="strict", target="c")
    kernel = polyq.build(schedule, threads=1)
    assert (kernel.numerics, kernel.target, kernel.schedule) == ("strict", "c", schedule)
    again = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_array_equal(again(A, X), kernel(A, X))
    np.testing.assert_array_equal(kernel(A, X), polyq.interpret(kernel.spec, a=A, x=X))
    with pytest.raises(ScheduleError, match="the schedule was made for 'strict'"):
        polyq.build(schedule, numerics="reassoc")


def test_updated_tensors_and_several_outputs():
    spec = polyq.parse("y[i] += x[i]\nz[i] = y[i] * y[i]", x=("f32", ("n",)), y=("f32", ("n",)))
    kernel = polyq.build(spec)
    y, x = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    results = kernel(x=x, y=y)
    np.testing.assert_array_equal(results.y, [11, 22, 33])
    np.testing.assert_array_equal(results.z, [121, 484, 1089])
    np.testing.assert_array_equal(y, [1, 2, 3])
    kernel(x=x, y=y, out=(y, np.zeros(3, np.float32)))
    np.testing.assert_array_equal(y, [11, 22, 33])


def test_another_target_is_for_reading():
    from polyq.schedule import Target

    foreign = next(name for name in ("avx512", "neon") if not Target.named(name).available())
    kernel = polyq.build(matvec(), target=foreign)
    assert "for (" in kernel.source
    with pytest.raises(polyq.BuildError, match="needs CPU features that this CPU lacks"):
        kernel(A, X)


def test_a_fresh_process_takes_the_kernel_from_the_cache(tmp_path):
    code = (
        "import logging, sys, numpy, polyq, polyq.build; logging.basicConfig(level=10, format='%(message)s')\n"
        "spec = polyq.parse('y[i] += a[i, j] * x[j]', a=('f32', ('m', 53)), x=('f32', (53,)))\n"
        "kernel = polyq.build(spec)\n"
        "print(kernel(numpy.ones((2, 53), 'f4'), numpy.ones(53, 'f4')).tolist())\n"
        "print([m for m in ('cgen', 'pycparser') if m in sys.modules])\n"
    )
    logs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "POLYQ_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "[53.0, 53.0]"
        logs.append((done.stdout.splitlines()[1], done.stderr))
    assert "compile: " in logs[0][1]
    assert "compile: " not in logs[1][1]
    assert "plan: from the cache" in logs[1][1]
    assert logs[1][0] == "[]"

"""Random quantized contractions: bound and unbound, in every range of their rows, against the interpreter."""

import random
import warnings

import numpy as np
import pytest
from bound_programs import bound_program, exact_arrays, rough_arrays

import polyq

#: found by longer runs: words against the order of a strict sum, rows without whole words, ranges that pack otherwise
FOUND = (1022, 1089, 2171, 3151)


def sequence(result):
    return result if isinstance(result, tuple) else (result,)


def same(got, wanted):
    for a, b in zip(sequence(got), sequence(wanted), strict=True):
        a, b = (v.view(np.uint16) if v.dtype.name == "bfloat16" else v for v in (np.asarray(a), np.asarray(b)))
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", [*range(8), *FOUND])
def test_bound_unbound_and_interpreted_are_equal(seed):
    program, r = bound_program(seed), random.Random(seed)
    spec, strict = program.spec(), r.random() < 0.4 or seed == 2171
    options = {"numerics": "strict" if strict else "reassoc", "threads": r.choice((1, 2))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the plain order in place of a refused schedule
        free, declared = polyq.build(spec, **options), polyq.build(spec, **options, constants=program.bound)
    assert "kept plain" not in free.explain() + declared.explain()
    fixed = {}
    for m in program.rows:
        # sums of small integers are exact in every order; in the order of the program any numbers must agree
        arrays = (rough_arrays if strict else exact_arrays)(spec, {"m": m} if spec.params else {}, seed)
        if not all(fixed.get(name, arrays[name][:0]).shape == arrays[name].shape for name in program.bound):
            fixed = {name: arrays[name] for name in program.bound}
            layer = declared.bind(**fixed)
        arrays |= fixed
        wanted = polyq.interpret(spec, **arrays)
        same(free(**arrays), wanted)
        same(layer(**{name: array for name, array in arrays.items() if name not in fixed}), wanted)


def test_what_is_overwritten_before_its_reader_is_not_moved_down():
    spec = polyq.parse("t[i] = a[i]\na[i] = b[i]\ny[i] = t[i] + a[i]", a=("f32", (70,)), b=("f32", (70,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a refused certificate
        kernel = polyq.build(spec)
    a, b = np.random.default_rng(0).standard_normal((2, 70), dtype=np.float32)
    after, y = kernel(a=a, b=b)
    np.testing.assert_array_equal(after, b)
    np.testing.assert_array_equal(y, a + b)


@pytest.mark.parametrize(
    "after",
    [
        "s[m] += y[m, n]",
        "s[n] += y[m, n]",
        "s[m] max= y[m, n]",
        "s[m] += y[m, n] * y[m, n]",
        "s[m] = y[m, 0] + y[m, 1]",
    ],
)
def test_a_contraction_with_cells_beside_its_reader_stands_alone(after):
    text = f"y[m, n] += x[m, k] * w[n, k]\n{after}"
    spec = polyq.parse(text, x=("f32", ("m", 24)), w=("f32", (32, 24)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = polyq.build(spec)
    for m in (0, 1, 50):
        arrays = exact_arrays(spec, {"m": m}, 0)
        same(kernel(**arrays), polyq.interpret(spec, **arrays))

"""Canonical forms: equal bit by bit, idempotent, and the same for programs written with and without reshapes."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_specs import random_specs

import polyq
from polyq.affine.arrays import random_arrays, storage_shape
from polyq.affine.canonical import canonical, stored
from polyq.affine.regroup import same_storage

GROUPED = {"w": ("u8", (6, 4, 8)), "z": ("f32", (6, 4)), "s": ("f32", (6, 4)), "x": ("f32", (5, 4, 8))}
FLAT = {**GROUPED, "w": ("u8", (6, 32)), "x": ("f32", (5, 32))}


def results(spec, arrays):
    found = polyq.interpret(spec, **arrays)
    return list(found) if isinstance(found, tuple) else [found]


def reshaped(spec, arrays):
    """Return the same memory in the shapes that ``spec`` declares."""
    return {
        **arrays,
        **{t.name: np.ascontiguousarray(arrays[t.name]).reshape(storage_shape(t, params(arrays))) for t in spec.inputs},
    }


def params(arrays):
    return {name: value for name, value in arrays.items() if isinstance(value, int)}


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    wrong = np.ascontiguousarray(got).reshape(-1).view(np.uint8) != np.ascontiguousarray(expected).reshape(-1).view(
        np.uint8
    )
    assert not wrong.any(), (got, expected)


def check(spec, arrays):
    """Assert that both canonical forms compute the same bits, and are canonical themselves."""
    expected = results(spec, arrays)
    made = canonical(spec)
    assert (made.inputs, made.outputs) == (spec.inputs, spec.outputs)
    assert canonical(made) == made
    for got, want in zip(results(made, arrays), expected, strict=True):
        assert got.shape == want.shape
        assert_same_bits(got, want)
    flat = stored(spec)
    assert stored(flat) == flat
    assert (flat.input_names, flat.output_names) == (spec.input_names, spec.output_names)
    assert all(map(same_storage, (*spec.inputs, *spec.outputs), (*flat.inputs, *flat.outputs)))
    for got, want in zip(results(flat, reshaped(flat, arrays)), expected, strict=True):
        assert_same_bits(got, want)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_specs(), st.integers(0, 3))
def test_canonical_forms_of_random_programs_compute_the_same_bits(program, seed):
    check(program.spec(), program.arrays(seed))


# ---- programs that reshape
class _Reshapes:
    """Statements that copy an array from shape to shape, with its cells in any order."""

    def __init__(self, draw):
        self.draw, self.lines, self.count = draw, [], 0

    def grid(self, size):
        """Draw extents whose product is ``size``."""
        shape = []
        while size > 1 and len(shape) < 3 and self.draw(st.booleans()):
            factor = self.draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
            shape.append(factor)
            size //= factor
        shape.append(size)
        if self.draw(st.booleans()):
            shape.insert(self.draw(st.integers(0, len(shape))), 1)
        return tuple(shape)

    def step(self, name, shape):
        """Copy ``name``; return the copy and its shape."""
        self.count += 1
        made = f"c{self.count}"
        form = self.draw(st.sampled_from(["read", "write", "transpose", "slice", "concatenate", "tile"]))
        dims = [f"p{k}" for k in range(len(shape))]
        ends = [f"{d} < {n}" for d, n in zip(dims, shape, strict=True)]
        if form == "transpose":
            order = self.draw(st.permutations(range(len(shape))))
            self.copy(made, [dims[k] for k in order], name, dims, ends)
            return made, tuple(shape[k] for k in order)
        if form == "slice" and max(shape) > 1:
            axis = self.draw(st.sampled_from([k for k, n in enumerate(shape) if n > 1]))
            n = shape[axis] - 1
            ends[axis] = f"{dims[axis]} < {n}"
            self.copy(made, dims, name, [f"{d} + 1" if k == axis else d for k, d in enumerate(dims)], ends)
            return made, tuple(n if k == axis else size for k, size in enumerate(shape))
        if form == "concatenate":
            axis = self.draw(st.integers(0, len(shape) - 1))
            self.copy(made, dims, name, dims, ends)
            behind = [f"{d} + {shape[axis]}" if k == axis else d for k, d in enumerate(dims)]
            self.copy(made, behind, name, dims, ends)
            return made, tuple(2 * n if k == axis else n for k, n in enumerate(shape))
        if form == "tile" and shape[0] % 2 == 0:
            self.copy(made, [f"{dims[0]}//2", *dims[1:], f"{dims[0]} % 2"], name, dims, ends)
            return made, (shape[0] // 2, *shape[1:], 2)
        other = self.grid(prod(shape))
        new = [f"q{k}" for k in range(len(other))]
        if form == "write":
            self.copy(made, digits(offset(dims, shape), other), name, dims, ends)
        else:
            self.copy(
                made,
                new,
                name,
                digits(offset(new, other), shape),
                [f"{d} < {n}" for d, n in zip(new, other, strict=True)],
            )
        return made, other

    def copy(self, target, left, source, right, ends):
        self.lines.append(f"{target}[{', '.join(left)}] = {source}[{', '.join(right)}] where {', '.join(ends)}")


def offset(dims, shape):
    return " + ".join(f"{prod(shape[k + 1 :])}*{d}" for k, d in enumerate(dims))


def digits(text, shape):
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    return [f"({text})//{s} % {n}" for s, n in zip(strides, shape, strict=True)]


@st.composite
def reshaping_programs(draw):
    b = _Reshapes(draw)
    shape = b.grid(draw(st.sampled_from([6, 8, 12, 24])))
    first, name = shape, "x"
    if draw(st.booleans()):
        dims = [f"p{k}" for k in range(len(shape))]
        b.lines.append(f"h[{', '.join(dims)}] = x[{', '.join(dims)}] * 0.5")
        name = "h"
    for _ in range(draw(st.integers(1, 3))):
        name, shape = b.step(name, shape)
    dims = [f"r{k}" for k in range(len(shape))]
    ends = ", ".join(f"{d} < {n}" for d, n in zip(dims, shape, strict=True))
    kept = [d for d in dims if draw(st.booleans())]
    form = draw(st.sampled_from(["sum", "max", "map", "out"]))
    if form == "out":
        b.lines = [line.replace(f"{name}[", "y[") if line.startswith(f"{name}[") else line for line in b.lines]
    elif form == "map":
        b.lines.append(f"y[{', '.join(dims)}] = {name}[{', '.join(dims)}] + 1.0 where {ends}")
    else:
        left = f"t[{', '.join(kept)}]" if kept else "t"
        b.lines.append(f"{left} {'+' if form == 'sum' else 'max'}= {name}[{', '.join(dims)}] where {ends}")
        if draw(st.booleans()):
            b.lines.append(
                f"y[{', '.join([*kept, 'u'])}] = t[{', '.join(kept)}] where u < 1" if kept else "y[u] = t where u < 1"
            )
    return "\n".join(b.lines), first


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(reshaping_programs())
def test_programs_that_reshape_compute_the_same_bits(program):
    text, shape = program
    spec = polyq.parse(text, x=("f32", shape))
    check(spec, random_arrays(spec, {}, 0))

"""Threads share a triangle fairly: each part is two slices that lie opposite each other."""

from __future__ import annotations

import numpy as np
import pytest

import polyq
from polyq.emit import generate
from polyq.emit.threads import is_uneven
from polyq.schedule.loopnest import Loop, walk
from polyq.schedule.schedule import Schedule

TRIANGLE = "y[i] += a[i, j] * x[j] where j <= i"


def _parallel(text: str, **tensors: tuple[str, tuple[object, ...]]) -> list[Loop]:
    nest = Schedule.auto(polyq.parse(text, **tensors)).nest
    return [node for node in walk(nest.body) if isinstance(node, Loop) and node.kind == "parallel"]


def test_triangles_are_uneven_and_boxes_with_ragged_tiles_are_not() -> None:
    loops = _parallel(TRIANGLE, a=("f32", (300, 300)), x=("f32", (300,)))
    assert any(is_uneven(loop) for loop in loops)
    box = _parallel("y[i] += a[i, j] * x[j]", a=("f32", (301, 299)), x=("f32", (299,)))
    assert box
    assert not any(is_uneven(loop) for loop in box)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_row_of_a_triangle_is_computed_once(threads: int) -> None:
    """Into an accumulator, so that a row taken twice or left out shows."""
    text = "y[i] += a[i, j] where j <= i"
    for size in (1, 2, 3, 7, 64, 257):
        spec = polyq.parse(text, a=("i32", (size, size)), y=("i32", (size,)))
        a = np.random.default_rng(size).integers(-9, 9, (size, size)).astype(np.int32)
        y = np.arange(size, dtype=np.int32)
        np.testing.assert_array_equal(polyq.build(spec, threads=threads)(a=a, y=y), y + np.tril(a).sum(1))


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 16])
def test_slices_cover_all_iterations_and_are_fair(parts: int) -> None:
    """The arithmetic that is printed, in Python: over 0 <= i < count, work i + 1, no part has 3 percent more."""
    source = generate(Schedule.auto(polyq.parse(TRIANGLE, a=("f32", (300, 300)), x=("f32", (300,))))).source
    assert "for (int slice = part; slice < 2 * parts; " in source
    assert "slice = slice < parts ? 2 * parts - 1 - part : 2 * parts)" in source
    assert " = first + count * slice / (2 * parts); " in source
    count = 4000
    taken = [
        [i for s in (p, 2 * parts - 1 - p) for i in range(count * s // (2 * parts), count * (s + 1) // (2 * parts))]
        for p in range(parts)
    ]
    assert sorted(i for own in taken for i in own) == list(range(count))
    loads = [sum(i + 1 for i in own) for own in taken]
    assert max(loads) <= 1.03 * min(loads)

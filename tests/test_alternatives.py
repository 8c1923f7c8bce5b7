"""What explanations count for a producer: computing it at each use, keeping a tile, storing it whole."""

from __future__ import annotations

import re

import pytest

import polyq

N, GROUPS, GROUP = 96, 4, 32
PAIR = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def explained(rows: int | str, **options):
    spec = polyq.parse(
        PAIR, w=("u8", (N, GROUPS, GROUP)), z=("f32", (N, GROUPS)), s=("f32", (N, GROUPS)), x=("f32", (rows, GROUPS, GROUP))
    )  # fmt: skip
    return polyq.Schedule.auto(spec, target="avx2", **options)


def weighed(schedule, tensor):
    """The three counts of evaluations, and which of the three was chosen."""
    lines = next(d.weighed for d in schedule.explain().decisions if d.subject == tensor)
    lines = [line for line in lines if " evaluations" in line]
    return [int(re.search(r"(\d+) evaluations", line)[1]) for line in lines], [
        line.endswith("(chosen)") for line in lines
    ]


@pytest.mark.parametrize("rows", [1, 4, 64, 128])
def test_evaluations_are_those_of_the_tile(rows):
    schedule = explained(rows)
    (each, tile, whole), chosen = weighed(schedule, "d")
    cells = N * GROUPS * GROUP
    assert (tile, whole) == (cells, cells)
    # the rows of the register tile: loops of m that are unrolled or lanes around the one product with codes
    text = str(schedule)
    made = re.findall(
        r"unroll m by (\d+)|lanes along m \((\d+) x (\d+)\)", schedule.explain().split("y.acc: ")[2].splitlines()[0]
    )
    tiled = 1
    for unrolled, vectors, lanes in made:
        tiled *= int(unrolled or 1) * int(vectors or 1) * int(lanes or 1)
    assert each == cells * -(-rows // tiled) or (rows % tiled and each <= cells * (rows // tiled + rows % tiled)), text
    assert chosen == [True, False, False]


def test_a_panel_that_rows_share_counts_as_a_kept_tile():
    schedule = explained("m", constants=("w", "z", "s"), sizes={"m": 512})
    (each, tile, whole), chosen = weighed(schedule, "d")
    assert chosen == [False, True, False]
    assert tile == whole == N * GROUPS * GROUP < each


def test_what_is_stored_whole_is_weighed_too():
    spec = polyq.parse(
        "h[i, j] = exp(x[i, j]) / 3.0\ny[i, n] += h[i, j] * w[n, j]", x=("f32", (64, 128)), w=("f32", (32, 128))
    )
    schedule = polyq.Schedule.auto(spec, target="avx2")
    (each, _, whole), chosen = weighed(schedule, "h")
    assert whole == 64 * 128 < each
    assert chosen.index(True) in (1, 2)

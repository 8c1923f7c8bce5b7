"""Pieces of an axis: tiles of two heights cover it, whatever its extent is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyq
from polyq.affine.expr import Affine
from polyq.schedule.pieces import Piece, pieces_of


def iterations(pieces: tuple[Piece, ...], n: int) -> list[int]:
    """Walk the tiles of all pieces in order, as their loops do."""
    found: list[int] = []

    def number(e: Affine) -> int:
        return e.evaluate({}, {"n": n})

    for piece in pieces:
        first = max([0, *map(number, piece.least)])
        for tile in range(first, number(piece.count)):
            found += [number(piece.start) + tile * piece.height + i for i in range(piece.height)]
    return found


@given(st.integers(0, 400), st.integers(3, 9))
def test_every_iteration_lies_in_one_tile_and_in_order(n: int, height: int) -> None:
    for size in (Affine(n), Affine.param("n")):
        assert iterations(pieces_of(size, height), n) == list(range(n))


@given(st.integers(60, 500), st.integers(3, 8))
def test_tiles_of_a_long_axis_differ_by_one_at_most(n: int, height: int) -> None:
    heights = {p.height for p in pieces_of(Affine(n), height)}
    assert heights <= {height, height - 1}


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 13, 31, 47, 48, 49, 53])
def test_any_number_of_rows_is_right(rows: int) -> None:
    spec = polyq.parse("y[m, n] += x[m, k] * w[n, k]", x=("f32", ("m", 40)), w=("f32", (48, 40)))
    rng = np.random.default_rng(rows)
    x, w = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((rows, 40), (48, 40)))
    bound = polyq.build(spec, constants=("w",), threads=2).bind(w=w)
    np.testing.assert_array_equal(bound(x=x), x @ w.T)

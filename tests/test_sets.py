"""Domains and relations against brute-force enumeration."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyq.affine.expr import Affine, Constraint
from polyq.affine.sets import Domain, Relation, SearchLimit, limited

I, J, T = Affine.dim("i"), Affine.dim("j"), Affine.dim("t")  # noqa: E741
M = Affine.param("m")


def box(**extents: int | Affine) -> list[Constraint]:
    """Return the constraints 0 <= d < extent."""
    made = [(Affine.dim(d), Affine.of(e)) for d, e in extents.items()]
    return [c for d, e in made for c in (Constraint(d), Constraint(e - 1 - d))]


def bounds(domain: Domain, var: str, *outer: str) -> tuple[list[str], list[str]]:
    """Return loop bounds as text."""
    low, high = domain.loop_bounds(var, outer)
    return [str(e) for e in low], [str(e) for e in high]


def test_loop_bounds_of_a_triangle() -> None:
    triangle = Domain.make(["i", "j"], [*box(i=M, j=M), Constraint(I - J)])
    assert bounds(triangle, "i") == (["0"], ["m"])
    assert bounds(triangle, "j", "i") == (["0"], ["i + 1"])
    assert bounds(triangle, "i", "j") == (["j"], ["m"])


def test_loop_bounds_of_a_tile_that_does_not_divide() -> None:
    tiled = Domain.make(["i", "t"], [*box(i=M), Constraint(T - I // 32, equality=True)])
    assert bounds(tiled, "t") == (["0"], ["(m + 31)//32"])
    assert bounds(tiled, "i", "t") == (["32*t"], ["32*t + 32", "m"])


def test_a_stride_is_no_bound_but_is_missing_from_the_loop() -> None:
    even = Domain.make(["i"], [*box(i=21), Constraint(I % 2, equality=True)])
    assert bounds(even, "i") == (["0"], ["21"])
    guard = even.missing(Domain.make(["i"], box(i=21)))
    assert [i for i in range(21) if all(c.expr.evaluate({"i": i}) == 0 for c in guard)] == list(range(0, 21, 2))


def test_missing_names_only_what_is_not_known() -> None:
    triangle = Domain.make(["i", "j"], [*box(i=8, j=8), Constraint(I - J)])
    assert [str(c) for c in triangle.missing(Domain.make(["i", "j"], box(i=8, j=8)))] == ["i - j >= 0"]
    assert triangle.missing(triangle) == ()


def test_extremes_and_samples() -> None:
    triangle = Domain.make(["i", "j"], [*box(i=M, j=M), Constraint(I - J), Constraint(M - 3)])
    assert triangle.max_of(J - I) == 0
    assert triangle.max_of(J) is None
    assert triangle.max_of(J - M) == -1
    assert triangle.min_of(M) == 3
    assert str(triangle.upper_affine("j")) == "m - 1"
    assert str(triangle.upper_affine(I + J)) == "2*m - 2"
    point = triangle.sample()
    assert point is not None
    assert all(c.expr.evaluate(*point) >= 0 for c in triangle.constraints())
    assert Domain.make(["i"], [*box(i=M), Constraint(I - M)]).sample() is None


def test_parameters_are_never_negative() -> None:
    assert Domain.make(["i"], [Constraint(-M - 1)]).is_empty()
    assert Domain.make([], []).subtract(Domain.make([], [Constraint(M)])).is_empty()
    four = Domain.make(["i"], box(i=4))  # the parameter occurs in what is asked, not in the set
    assert four.implies(Constraint(I + M))
    assert (four.min_of(I + M), four.max_of(I - M), four.max_of(I + M)) == (0, 3, None)
    assert four.is_subset(Domain.make(["i"], [Constraint(I + M)]))
    assert four.image([I + M], ["v"]).min_of(Affine.dim("v")) == 0
    assert Relation.function(four, [I + M], ["v"]).range().min_of(Affine.dim("v")) == 0


def test_names_that_isl_reads_otherwise() -> None:
    x, p = Affine.dim("exists"), Affine.param("exists")
    d = Domain.make(["exists", "é", "a.b"], [*box(exists=p), Constraint(x - Affine.dim("é"), True)]).constrain(box(**{"a.b": 3}))
    assert d.count({"exists": 4}) == 12
    assert bounds(d, "é") == (["0"], ["exists"])


def test_errors_name_the_dim() -> None:
    with pytest.raises(ValueError, match="the dim 'j' is none of \\['i'\\]"):
        Domain.make(["i"], [Constraint(J)])
    with pytest.raises(ValueError, match="the dim 'i' is unbounded inside \\(\\)"):
        Domain.make(["i"], [Constraint(I)]).loop_bounds("i", ())
    with pytest.raises(ValueError, match=r"the parameter 'm' needs a value, got \{\}"):
        Domain.make(["i"], box(i=M)).count()


def test_relations() -> None:
    tile = Relation.function(Domain.make(["i"], box(i=M)), [I // 4, I % 4], ["t", "r"])
    assert tile.is_single_valued()
    assert tile.is_injective()
    back = tile.inverse().as_affine()
    assert back is not None
    assert [str(e) for e in back] == ["r + 4*t"]
    assert tile.compose(tile.inverse().renamed(out_dims=["i"])).equals(
        Relation.make(["a"], ["b"], [*box(a=M), Constraint(Affine.dim("a") - Affine.dim("b"), True)])
    )
    pair = tile.sample()
    assert pair is not None
    assert pair[0]["i"] == 4 * pair[1]["t"] + pair[1]["r"]


def test_a_search_is_bounded() -> None:
    with pytest.raises(SearchLimit, match="more than 3 isl operations"), limited(3):
        Domain.make(["i", "j"], [*box(i=M, j=M), Constraint(I - J)]).project_onto(["j"]).is_empty()
    assert not Domain.make(["i"], box(i=M)).is_empty()


exprs = st.builds(
    lambda a, b, c, d, e: a * I + b * J + c + ((I + d * J) // e), st.integers(-3, 3), st.integers(-3, 3),
    st.integers(-4, 4), st.integers(-2, 2), st.integers(2, 4),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(exprs, st.booleans()), max_size=3), exprs)
def test_against_enumeration(chosen: list[tuple[Affine, bool]], e: Affine) -> None:
    cs = [Constraint(expr, eq) for expr, eq in chosen]
    d = Domain.make(["i", "j"], [*box(i=5, j=6), *cs])

    def inside(i: int, j: int) -> bool:
        values = [(c.expr.evaluate({"i": i, "j": j}), c.equality) for c in cs]
        return all(v == 0 if eq else v >= 0 for v, eq in values)

    points = [(i, j) for i, j in product(range(5), range(6)) if inside(i, j)]
    values = [e.evaluate({"i": i, "j": j}) for i, j in points]
    assert d.count() == len(points)
    assert d.is_empty() == (not points)
    assert d.max_of(e) == (max(values) if points else None)
    assert d.min_of(e) == (min(values) if points else None)
    assert d.image([e], ["v"]).count() == len(set(values))
    assert d.implies(Constraint(e)) == all(v >= 0 for v in values)
    if points:
        _check_scan(d, points)


def _check_scan(d: Domain, points: list[tuple[int, int]]) -> None:
    """Loops with the bounds, guarded by what is missing, visit exactly the points."""
    low, high = d.loop_bounds("j", ())
    low_i, high_i = d.loop_bounds("i", ["j"])
    known = Domain.make(["j", "i"], [
        *(Constraint(J - e) for e in low), *(Constraint(e - 1 - J) for e in high),
        *(Constraint(I - e) for e in low_i), *(Constraint(e - 1 - I) for e in high_i),
    ])  # fmt: skip
    visited: list[tuple[int, int]] = []
    for j in range(max(e.evaluate() for e in low), min(e.evaluate() for e in high)):
        at = {"j": j}
        for i in range(max(e.evaluate(at) for e in low_i), min(e.evaluate(at) for e in high_i)):
            visited.append((i, j))
    assert set(points) <= set(visited)
    for piece in d.pieces():
        guard = piece.missing(known)
        inside = {
            (i, j) for i, j in visited
            if all((v := c.expr.evaluate({"i": i, "j": j})) >= 0 and (v == 0 or not c.equality) for c in guard)
        }  # fmt: skip
        assert inside == {(i, j) for i, j in points if piece.constrain([_is(I, i), _is(J, j)]).count()}


def _is(dim: Affine, value: int) -> Constraint:
    return Constraint(dim - value, equality=True)

"""Chains in overlapped tiles: what is chosen, what the tiles are, and that every border is right."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from nest_edits import drop_guard, duplicate, recompute, repeat, shorten, swap
from nest_oracle import judge

import polyq
from polyq.affine.arrays import random_arrays
from polyq.affine.expr import Affine
from polyq.schedule import overlap
from polyq.schedule.certificate import certify
from polyq.schedule.loopnest import Loop, Scope, walk
from polyq.schedule.overlap import best_tile, chain_of
from polyq.schedule.placing import instances
from polyq.schedule.readback import read_back
from polyq.schedule.schedule import Schedule
from polyq.schedule.target import Target

NAMES = ("x", "t1", "t2", "t3", "y")


def chain(count: int | str, steps: int = 4, dtype: str = "f32") -> polyq.Spec:
    """Return ``steps`` smoothings of three points; each result is two cells shorter than what it is made from."""
    names = (*NAMES[:steps], "y")
    weights = ("0.25", "0.5", "0.25") if dtype == "f32" else ("1", "2", "3")
    lines = [
        f"{names[k + 1]}[i] = {weights[0]}*{names[k]}[i] + {weights[1]}*{names[k]}[i + 1] + {weights[2]}*{names[k]}[i + 2] "
        f"where i < {count} - {2 * k + 2}"
        for k in range(steps)
    ]
    return polyq.parse("\n".join(lines), x=(dtype, (count,)))


def smoothed(x: np.ndarray, steps: int = 4) -> np.ndarray:
    quarter, half = x.dtype.type(0.25), x.dtype.type(0.5)
    for _ in range(steps):
        x = quarter * x[:-2] + half * x[1:-1] + quarter * x[2:]
    return x


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let temporaries of any size be worth a tile."""
    monkeypatch.setattr(overlap, "SMALL_BYTES", 0)


# ---- what is chosen
def test_four_stencils_share_tiles_in_the_first_cache() -> None:
    schedule = Schedule.auto(chain(10_000_000), target="avx2")
    assert [b.kind for b in schedule.nest.buffers] == ["input", "output"]  # no whole temporary
    scopes = [node for node in walk(schedule.nest.body) if isinstance(node, Scope)]
    assert len(scopes) == 1
    sizes = {b.name: b.shape[0].const for b in scopes[0].buffers}
    assert set(sizes) == {"t1", "t2", "t3"}
    assert sum(4 * n for n in sizes.values()) <= Target.named("avx2").l1 * 5 // 4  # whole vectors may pass it a little
    (tiles,) = (node for node in schedule.nest.body if isinstance(node, Loop))
    assert tiles.kind == "parallel"
    assert {s.loops[-1].kind for s in read_back(schedule.nest).statements} == {"vector"}
    assert schedule.certificate().ok


def test_the_explanation_counts_the_alternatives() -> None:
    schedule = Schedule.auto(chain(10_000_000), target="avx2")
    chosen = best_tile(schedule.plan.spec, _chain(schedule.plan.spec), schedule.machine)
    assert chosen is not None
    assert (
        f"{chosen.tiles} tiles of {chosen}, with what each reads of t3, t2, t1 in {chosen.scratch} bytes"
        in schedule.explain()
    )
    for tensor, factor in chosen.recompute:
        line = next(line for line in schedule.explain().splitlines() if line.startswith(f"{tensor}: "))
        assert re.fullmatch(
            rf"{tensor}: in tiles of y, recompute factor {factor:.3f}; "
            r"cycles a vector: [\d.]+ where it is read, [\d.]+ in tiles, [\d.]+ stored whole",
            line,
        )


def _chain(spec: polyq.Spec) -> overlap.Chain:
    found = chain_of(spec, spec.op("y"), frozenset(t.name for t in spec.temporaries))
    assert found is not None
    return found


def test_the_recompute_factor_is_the_image_of_the_tile_over_the_tile() -> None:
    spec = chain(10_002, 2)
    found = overlap._tile(spec, _chain(spec), spec.op("y"), {"i": 100}, Target.named("avx2"))
    assert found is not None
    assert dict(found.cells)["t1"] == 102  # a tile of 100 reads two cells more
    assert found.tiles == 100  # 9998 results
    assert found.scratch == 4 * 102
    assert dict(found.recompute)["t1"] == pytest.approx(100 * 102 / 10_000)


def test_two_dims_recompute_rows_alone_where_rows_are_whole() -> None:
    text = (
        "t[i, j] = x[i, j + 1] + x[i + 1, j] + x[i + 2, j + 1] + x[i + 1, j + 2] where i < 1026, j < 1026\n"
        "y[i, j] = t[i, j + 1] + t[i + 1, j] + t[i + 2, j + 1] + t[i + 1, j + 2] where i < 1024, j < 1024"
    )
    spec = polyq.parse(text, x=("f32", (1028, 1028)))
    schedule = Schedule.auto(spec, target="avx2")
    assert [b.kind for b in schedule.nest.buffers] == ["input", "output"]
    (scope,) = (node for node in walk(schedule.nest.body) if isinstance(node, Scope))
    rows, columns = (e.const for e in scope.buffers[0].shape)
    assert 4 * rows * columns <= schedule.machine.l2
    chosen = best_tile(spec, _chain(spec), schedule.machine)
    assert chosen is not None
    assert dict(chosen.sizes) == {"i": rows - 2}
    x = np.random.default_rng(1).standard_normal((1028, 1028)).astype(np.float32)

    def step(a: np.ndarray) -> np.ndarray:
        return a[:-2, 1:-1] + a[1:-1, :-2] + a[2:, 1:-1] + a[1:-1, 2:]

    np.testing.assert_array_equal(polyq.build(spec, numerics="strict", threads=2)(x), step(step(x)))


def test_cheap_and_small_temporaries_are_computed_where_they_are_read() -> None:
    cheap = polyq.parse("t[i] = x[i] + 1.0\ny[i] = t[i] * t[i + 1] where i < 999999", x=("f32", (1_000_000,)))
    assert "t: computed where it is read" in Schedule.auto(cheap).explain()
    assert "t1: computed where it is read" in Schedule.auto(chain(200, 2)).explain()


def test_a_temporary_that_others_read_stays_whole() -> None:
    text = "t[i] = exp(x[i]) + exp(x[i + 1]) where i < 99999\ny[i] = t[i] + t[i + 1] where i < 99998\nz += t[i]"
    schedule = Schedule.auto(polyq.parse(text, x=("f32", (100_000,))))
    assert "t" in {b.name for b in schedule.nest.buffers}
    x = np.linspace(-1, 1, 100_000, dtype=np.float32)
    polyq.testing.assert_close(polyq.build(schedule), x=x)


# ---- by hand
def test_a_chain_fused_by_hand_is_exact_at_both_ends() -> None:
    spec = chain("n")
    schedule = Schedule.naive(spec, "strict").split("y", "i", 32, "io", "ii")
    for name in ("t3", "t2", "t1"):
        schedule = schedule.fuse(name, "y", "io").vectorize(name, "i", 8)
    kernel = polyq.build(schedule.vectorize("y", "ii", 8).parallel("y", "io"), threads=2)
    for count in (8, 9, 16, 31, 39, 40, 41, 42, 71, 72, 73, 200, 1001):
        x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
        np.testing.assert_array_equal(kernel(x), smoothed(x))


def test_tiles_end_with_whole_vectors() -> None:
    schedule = (
        Schedule.naive(chain(10_000, 2)).split("y", "i", 64, "io", "ii").fuse("t1", "y", "io").vectorize("t1", "i", 8)
    )
    (scope,) = (node for node in walk(schedule.nest.body) if isinstance(node, Scope))
    assert scope.buffers[0].shape == (Affine(72),)  # 66 cells are read
    assert schedule.certificate().ok


# ---- values
@pytest.mark.parametrize("count", [4096, 10_000, 20_001])
@pytest.mark.parametrize("threads", [1, 2])
def test_four_stencils_are_bitwise_numpys(count: int, threads: int) -> None:
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    spec = chain(count)
    schedule = Schedule.auto(spec, "strict")
    assert "in tiles of y" in schedule.explain()
    np.testing.assert_array_equal(polyq.build(schedule, threads=threads)(x), smoothed(x))


def test_a_symbolic_chain_of_any_length() -> None:
    schedule = Schedule.auto(chain("n"), "strict")
    assert "in tiles of y" in schedule.explain()
    kernel = polyq.build(schedule, threads=2)
    for count in (8, 9, 15, 17, 100, 2048, 2049, 2055, 2056, 4095, 4110, 9001):
        x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
        np.testing.assert_array_equal(kernel(x), smoothed(x))


PADDED = """
t[i, j] = x[i - 1, j] + x[i + 1, j] - x[i, j - 1] + x[i, j + 1] where 1 <= i, i < 99, 1 <= j, j < 69
y[i, j] = t[i - 1, j] + t[i + 1, j] - t[i, j - 1] + t[i, j + 1] where 1 <= i, i < 99, 1 <= j, j < 69
"""


def test_a_border_that_a_fill_writes(tiny: None) -> None:
    """Cells that a stencil leaves out are zero, in tiles as in whole tensors."""
    spec = polyq.parse("t[i, j] = i32(0) where i < 100, j < 70\n" + PADDED, x=("i32", (100, 70)))
    schedule = Schedule.auto(spec)
    assert schedule.certificate().ok
    x = np.random.default_rng(0).integers(-9, 9, (100, 70)).astype(np.int32)

    def step(a: np.ndarray) -> np.ndarray:
        out = np.zeros_like(a)
        out[1:-1, 1:-1] = a[:-2, 1:-1] + a[2:, 1:-1] - a[1:-1, :-2] + a[1:-1, 2:]
        return out

    padded = step(step(x))[:99, :69]
    np.testing.assert_array_equal(polyq.build(schedule, threads=2)(x), padded)


def _random_chain(rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """A DAG of up to three integer stencils over one or two dims, with strides and fills, and the input's shape."""
    rank, steps = rng.choice((1, 2)), rng.randint(1, 3)
    sizes = [rng.randint(70, 300) if rank == 1 else rng.randint(9, 80) for _ in range(rank)]
    dims = "ij"[:rank]
    lines: list[str] = []
    tensors = [("x", list(sizes))]
    for k in range(steps + 1):
        name = f"t{k}" if k < steps else "y"
        sources = [tensors[-1], *rng.sample(tensors[:-1], min(len(tensors) - 1, rng.randint(0, 1)))]
        stride = rng.choice((1, 1, 1, 2))
        reach = [rng.randint(0, 3) for _ in dims]
        size = [min((s[a] - 1 - reach[a]) // stride + 1 for _, s in sources) for a in range(rank)]
        terms: list[str] = []
        for source, _ in sources:
            for _ in range(rng.randint(1, 3)):
                at = ", ".join(f"{stride}*{d} + {rng.randint(0, r)}" for d, r in zip(dims, reach, strict=True))
                terms.append(f"{rng.randint(1, 5)}*{source}[{at}]*{rng.randint(1, 3)}")
        start = rng.choice((0, 0, 0, 2))
        where = ", ".join(f"{start} <= {d}, {d} < {n}" for d, n in zip(dims, size, strict=True))
        own = ", ".join(dims)
        if start and k < steps:
            lines.append(
                f"{name}[{own}] = i32(7) where {', '.join(f'{d} < {n}' for d, n in zip(dims, size, strict=True))}"
            )
        lines.append(f"{name}[{own}] = {' + '.join(terms)} where {where}")
        tensors.append((name, size))
    return "\n".join(lines), tuple(sizes)


def test_random_chains(tiny: None) -> None:
    """Overlapped or not, the automatic schedule of a chain gives what the interpreter gives; two threads as well."""
    rng = random.Random(11)
    tiled = 0
    for _ in range(60):
        text, shape = _random_chain(rng)
        spec = polyq.parse(text, x=("i32", shape))
        schedule = Schedule.auto(spec)
        assert "refused" not in schedule.explain(), text
        if "in tiles of" not in schedule.explain():
            continue
        tiled += 1
        arrays = random_arrays(spec, {})
        np.testing.assert_array_equal(polyq.build(schedule, threads=2)(**arrays), polyq.interpret(spec, **arrays), text)
        if tiled == 12:
            return
    raise AssertionError(f"only {tiled} chains came into tiles")


def test_a_tile_that_is_cut_wrong_is_refused(tiny: None) -> None:
    """The brute force on symbolic values and the certificate agree: a tile has to hold all that is read."""
    spec = chain(40, 2, "i32")
    schedule = Schedule.naive(spec).split("y", "i", 8, "io", "ii").fuse("t1", "y", "io").vectorize("t1", "i", 4)
    assert judge(schedule.plan.spec, schedule.nest) is None
    verdicts: list[bool] = []
    rng = random.Random(3)
    for edit in (shorten, drop_guard, swap, recompute, repeat, duplicate):
        for _ in range(6):
            nest = edit(rng, schedule.nest)
            if nest is not None:
                verdicts.append(judge(spec, nest) is None)
                assert certify(spec, nest).ok == verdicts[-1], f"{edit.__name__}:\n{nest}"
    assert verdicts.count(False) >= 6
    assert True in verdicts


# ---- nests inside nests
CONV_POOL = """
t[h, w] += x[h + r, w + q] * k[r, q] where h < 1030, w < 1030
y[h, w] max= t[2*h + r, 2*w + q] where r < 3, q < 3, h < 514, w < 514
"""


def test_a_pool_that_overlaps_takes_the_convolution_into_its_loops() -> None:
    """Windows of three, two apart: some of a convolution is computed by two tiles, and none of it is stored whole."""
    spec = polyq.parse(CONV_POOL, x=("f32", (1032, 1032)), k=("f32", (3, 3)))
    schedule = Schedule.auto(spec)
    assert re.search(
        r"^t: in tiles, .* in scratch, recompute factor 1\.\d+; .* cycles inside h", schedule.explain(), re.M
    )
    assert [b.kind for b in schedule.nest.buffers] == ["input", "input", "output"]
    assert schedule.certificate().ok
    rng = np.random.default_rng(0)
    polyq.testing.assert_close(
        polyq.build(schedule, threads=2),
        x=rng.standard_normal((1032, 1032)).astype(np.float32),
        k=rng.standard_normal((3, 3)).astype(np.float32),
    )


def test_a_convolution_that_is_dear_to_compute_twice_is_stored() -> None:
    text = (
        "t[o, h, w] += x[c, h + r, w + q] * k[o, c, r, q] where h < 66, w < 66\n"
        "y[o, h, w] += t[c, h + r, w + q] * l[o, c, r, q] where h < 64, w < 64"
    )
    spec = polyq.parse(text, x=("f32", (32, 68, 68)), k=("f32", (32, 32, 3, 3)), l=("f32", (32, 32, 3, 3)))
    schedule = Schedule.auto(spec, target="avx2")
    assert "t" in {b.name for b in schedule.nest.buffers}
    # 16 rows of 64 read 18 rows of 66
    factor = 18 * 4 / 66
    assert re.search(rf"^t: stored whole, .*recompute factor is at least {factor:.3f}, ", schedule.explain(), re.M)


def test_instances_are_counted_in_the_nest() -> None:
    spec = chain(10_000, 2)
    schedule = Schedule.naive(spec).split("y", "i", 100, "io", "ii").fuse("t1", "y", "io")
    assert instances(Schedule.naive(spec).nest) == {("t1", False): 9998.0, ("y", False): 9996.0}
    assert instances(schedule.nest)["t1", False] == 102 * 100  # the last tile counts like the one in the middle

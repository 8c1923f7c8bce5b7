"""The loop tree: its text, and its footprints against cells that are counted one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyq
from polyq.affine.scalar import loads
from polyq.schedule.display import byte_size, loop_tree
from polyq.schedule.loopnest import Assign, Guard, Loop, Scope
from polyq.schedule.naive import naive_nest

MATMUL = "y[i, j] += a[i, k] * b[k, j]"


def matmul(m=16, k=24, n=32) -> polyq.Spec:
    return polyq.parse(MATMUL, a=("f32", (m, k)), b=("f32", (k, n)))


def tree_of(schedule: polyq.Schedule, **options: bool) -> str:
    return loop_tree(schedule.nest, schedule.plan.spec, **options)


# ---- text, each beside the values that the same schedule computes
def dequantized(schedule=lambda s: s):
    spec = polyq.parse(
        "d[n, k] = (f32(w[n, k]) - 8.0) * s[n]\ny[m, n] += x[m, k] * d[n, k]",
        w=("u8", (16, 32)), s=("f32", 16), x=("f32", ("m", 32)),
    )  # fmt: skip
    return schedule(polyq.Schedule.naive(spec, target="c"))


def tiled(s: polyq.Schedule) -> polyq.Schedule:
    return s.split("y", "n", 4, "no", "ni").parallel("y", "m").unroll("y", "ni").fuse("d", into="y", at="no")


TILED = """\
├─ m m, n 16:  y[m, n] = 0.0  [y.init]
└─ m parallel m                       touches w[16, 32] 512 B, x[1, 32] 128 B, s[16] 64 B, y[1, 16] 64 B, in all 768 B
   └─ no 4                            touches w[4, 32] 128 B, x[1, 32] 128 B, s[4] 16 B, y[1, 4] 16 B, in all 288 B
      ├─ scratch d f32[4, 32] 512 B
      ├─ n 4                          touches d[1, 32] 128 B, w[1, 32] 32 B, s[1] 4 B, in all 164 B
      │  └─ k 32:  d[n, k] = (f32(w[n + 4*no, k]) - 8.0) * s[n + 4*no]
      └─ ni unroll 4
         └─ k 32:  y[m, ni + 4*no] += x[m, k] * d[ni, k]"""


def test_tree_of_a_fused_producer():
    assert tree_of(dequantized(tiled)) == TILED


def test_the_same_schedule_computes_the_program():
    schedule, random = dequantized(tiled), np.random.default_rng(0)
    w, s = random.integers(0, 256, (16, 32), np.uint8), random.random(16, np.float32)
    x = random.random((3, 32), np.float32)
    got = polyq.build(schedule)(w=w, s=s, x=x)
    expected = x.astype(float) @ ((w.astype(float) - 8) * s[:, None].astype(float)).T
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_head_and_repr():
    schedule = dequantized(tiled)
    assert str(schedule) == f"schedule of y: numerics reassoc, target c\n{TILED}"
    assert repr(schedule) == "<Schedule of y: 4 directives, numerics reassoc, target c>"
    plain = dequantized()
    assert repr(plain) == "<Schedule of y: in the order of the program, numerics reassoc, target c>"




def test_tiles_of_two_heights_are_told_apart():
    spec = polyq.parse("y[i] += a[i, j]", a=("f32", (18, 6)))
    schedule = polyq.Schedule.naive(spec, target="c").split("y", "i", 4, "io", "ii").unroll("y", "ii")
    assert tree_of(schedule) == (
        "├─ i 18:  y[i] = 0.0  [y.init]\n"
        "├─ io 3 (full tiles)                  touches a[4, 6] 96 B, y[4] 16 B, in all 112 B\n"
        "│  └─ ii unroll 4\n"
        "│     └─ j 6:  y[ii + 4*io] += a[ii + 4*io, j]\n"
        "└─ io 2 (remainder):  as the full tiles"
    )
    assert tree_of(schedule, remainders=True).endswith(
        "└─ io 2 (remainder)                   touches a[3, 6] 72 B, y[3] 12 B, in all 84 B\n"
        "   └─ ii unroll 3\n"
        "      └─ j 6:  y[ii + 3*io + 12] += a[ii + 3*io + 12, j]"
    )
    a = np.arange(108, dtype=np.float32).reshape(18, 6)
    np.testing.assert_array_equal(polyq.build(schedule)(a), a.sum(1))


def test_masked_lanes():
    spec = polyq.parse("y[i] = x[i] + 1.0", x=("f32", "n"))
    schedule = polyq.Schedule.naive(spec, target="c").vectorize("y", "i", 8)
    assert tree_of(schedule) == (
        "├─ ib n//8, iv vector 8 (full tiles):  y[8*ib + iv] = x[8*ib + iv] + 1.0\n"
        "└─ ib from n//8 to (n + 7)//8, iv vector min(8, n - 8*ib) (remainder):  y[8*ib + iv] = x[8*ib + iv] + 1.0"
    )
    x = np.arange(13, dtype=np.float32)
    np.testing.assert_array_equal(polyq.build(schedule)(x), x + 1)


def test_guards_scalars_and_parameters():
    spec = polyq.parse("t += x[i, j] where j <= i, j % 2 == 0\ny = t * 2.0", x=("f32", ("i", "n")), outputs=("y",))
    assert tree_of(polyq.Schedule.naive(spec, target="c")) == (
        "whole tensors between ops: t f32 4 B\n"
        "├─ t = 0.0  [t.init]\n"
        "├─ i i                                touches x[1, n], t 4 B\n"
        "│  └─ j min(n, i + 1):  t += x[i, j] where j%2 == 0\n"
        "└─ y = t * 2.0"
    )


def test_variables_are_axes_and_parameters_keep_their_names():
    spec = polyq.parse("y[n] += x[m] where m <= n + m_size - 4", x=("f32", "m_size"), outputs=("y",), y=("f32", 4))
    text = str(loop_tree(naive_nest(spec), spec))
    assert "y[n] += x[m]" in text
    clash = polyq.parse("y[i, j] = x[i, j] where j <= n - 1 - i\nz[n] = y[0, n]", x=("f32", ("n", "n")))
    assert "n_2" not in loop_tree(naive_nest(clash), clash).splitlines()[-1]


@pytest.mark.parametrize("columns", [118])
def test_lines_fit(columns):
    spec = polyq.parse(
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]",
        w=("u8", (4096, 32, 128)), z=("f32", (4096, 32)), s=("f32", (4096, 32)), x=("f32", ("m", 32, 128)),
    )  # fmt: skip
    lines = tree_of(polyq.Schedule.auto(spec, target="avx2")).splitlines()
    statements = [line for line in lines if "=" in line]  # one that is too long stands on a line of its own
    assert all(len(line) <= columns for line in lines if line not in statements), max(lines, key=len)
    assert len(lines) <= 60
    assert not any(re.search(r"\bn_\d", line) for line in lines)


def test_bytes():
    assert [byte_size(n) for n in (0, 1023, 1024, 1536, 1 << 20, 3 << 29, 1 << 40)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "1.5 GiB", "1024 GiB"
    ]  # fmt: skip


# ---- footprints
def boxes(nest, axis: str) -> dict[str, tuple[int, ...]]:
    """Return, by executing every iteration, the greatest box of each buffer that one iteration of a loop touches."""
    found: dict[str, tuple[int, ...]] = {}

    def run(block, values, cells):
        for node in block:
            if isinstance(node, Loop):
                low = max(e.evaluate(values) for e in node.lower)
                for v in range(low, min(e.evaluate(values) for e in node.upper)):
                    inner = {} if node.var == axis else cells
                    run(node.body, {**values, node.var: v}, inner)
                    if node.var == axis:
                        note(inner)
            elif isinstance(node, Guard):
                if all(c.expr.evaluate(values) >= 0 for c in node.constraints):
                    run(node.body, values, cells)
            elif isinstance(node, Scope):
                run(node.body, values, cells)
                for b in node.buffers:
                    cells.pop(b.name, None)
            else:
                assert isinstance(node, Assign)
                touched = [(node.target, node.index), *((load.tensor, load.index) for load in loads(node.value))]
                for name, index in touched:
                    cells.setdefault(name, set()).add(tuple(e.evaluate(values) for e in index))

    def note(cells):
        for name, points in cells.items():
            box = tuple(int(n) for n in np.ptp(np.array(sorted(points)), axis=0) + 1) if next(iter(points)) else ()
            found[name] = tuple(map(max, box, found.get(name, box)))

    run(nest.body, {}, {})
    return found


SCHEDULES = {
    "plain": lambda s: s,
    "tiled": lambda s: s.tile("y", i=4, k=8),
    "reordered": lambda s: s.tile("y", i=4, j=8, k=8).reorder("y", ["ko", "io"]),
    "fused": lambda s: s.split("y", "i", 4).fuse("t", into="y", at="io"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_footprints_are_those_of_an_execution(name):
    spec = polyq.parse("t[i, k] = a[i, k] + a[i + 1, k] where i < 16\ny[i, j] += t[i, k] * b[k, j]", a=("f32", (17, 24)),
                       b=("f32", (24, 16)))  # fmt: skip
    schedule = SCHEDULES[name](polyq.Schedule.naive(spec, target="c"))
    checked = 0
    for line in tree_of(schedule).splitlines():
        head = re.search(r"─ (\w+) \d+ +touches (.*)", line)
        if head is None:
            continue
        loops = [n.var for n in _loops(schedule.nest.body) if re.sub(r"_\d+$", "", n.var) == head[1]]
        shown = {t: tuple(map(int, box.split(", "))) for t, box in re.findall(r"([a-z]+)\[([\d, ]+)\]", head[2])}
        assert shown in [boxes(schedule.nest, var) for var in loops], line
        checked += 1
    assert checked >= 2


def _loops(block):
    for node in block:
        if isinstance(node, Loop):
            yield node
        if not isinstance(node, Assign):
            yield from _loops(node.body)

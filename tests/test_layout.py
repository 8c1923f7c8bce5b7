"""Layouts: against numpy's own pads, reshapes and transposes, against brute force, and as schedules against the oracle."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyq
from polyq import Layout, Schedule
from polyq.affine.layout import pad_pitch

BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def linalg_pack(array, positions, tiles, outer=None, fill=0):
    """What linalg.pack is defined to do: pad, cut each axis in two, bring the tiles' axes last."""
    size = dict(zip(positions, tiles, strict=True))
    padded = np.pad(array, [(0, -n % size.get(k, 1)) for k, n in enumerate(array.shape)], constant_values=fill)
    parts = [p for k, n in enumerate(padded.shape) for p in (n // size.get(k, 1), size.get(k, 1))]
    order = [2 * k for k in outer or range(array.ndim)] + [2 * k + 1 for k in positions]
    kept = [parts[p] for p in order]
    rest = [2 * k + 1 for k in range(array.ndim) if k not in positions]  # of extent 1
    return padded.reshape(parts).transpose(order + rest).reshape(kept)


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@st.composite
def tilings(draw):
    shape = draw(shapes)
    positions = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    tiles = [draw(st.integers(1, 5)) for _ in positions]
    return shape, positions, tiles, draw(st.permutations(range(len(shape))))


@st.composite
def layouts(draw):
    """A chain of a few steps over a small shape."""
    shape = draw(shapes)
    layout = Layout.of(shape, fill=-7)
    for _ in range(draw(st.integers(0, 3))):
        rank = len(layout.storage)
        match draw(st.sampled_from(["permute", "tile", "pitch", "pad", "interleave"])):
            case "permute":
                layout = layout.permute(draw(st.permutations(range(rank))))
            case "tile" if rank < 5:
                axis = draw(st.integers(0, rank - 1))
                layout = layout.tile((axis,), (draw(st.integers(1, 4)),), draw(st.permutations(range(rank))))
            case "pitch":
                layout = layout.pitch(layout.storage[-1] + draw(st.integers(0, 3)))
            case "pad":
                layout = layout.pad([n + draw(st.integers(0, 2)) for n in layout.storage])
            case _:
                expression, block = draw(
                    st.sampled_from([("3 - i", 4), ("2*(i % 4) + i//4", 8), ("i//2 + 2*(i % 2)", 4)])
                )
                layout = layout.interleave(expression, block, draw(st.integers(0, rank - 1)))
    return layout


def numbered(shape):
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


# ---- the value
@settings(deadline=None, max_examples=60)
@given(tilings())
def test_tiles_are_those_of_linalg_pack(case):
    shape, positions, tiles, outer = case
    layout = Layout.of(shape, fill=-1).tile(positions, tiles, outer)
    wanted = linalg_pack(numbered(shape), positions, tiles, outer, fill=-1)
    np.testing.assert_array_equal(layout.pack(numbered(shape)), wanted)
    assert layout.storage == wanted.shape


@settings(deadline=None, max_examples=60)
@given(layouts())
def test_unpack_undoes_pack_and_the_rest_is_padding(layout):
    a = numbered(layout.shape)
    stored = layout.pack(a)
    np.testing.assert_array_equal(layout.unpack(stored), a)
    assert np.count_nonzero(stored == -7) == stored.size - a.size
    assert layout.padded == (stored.size > a.size)
    for cell in product(*map(range, stored.shape)):
        at = {f"s{i}": v for i, v in enumerate(cell)}
        values = [(c.expr.evaluate(at), c.equality) for c in layout.holds_element]
        assert all(v == 0 if equal else v >= 0 for v, equal in values) == (stored[cell] >= 0)
        if stored[cell] >= 0:
            assert a[tuple(e.evaluate(at) for e in layout.source)] == stored[cell]


@settings(deadline=None, max_examples=40)
@given(layouts(), st.sampled_from(["f32", "u8", "u4", "f64"]))
def test_offsets_sizes_and_alignments_by_brute_force(layout, dtype):
    a = numbered(layout.shape)
    stored = layout.pack(a)
    flat = stored.ravel()
    for index in product(*map(range, layout.shape)):
        assert flat[layout.offset.evaluate(dict(zip(layout.dims, index, strict=True)))] == a[index]
    bits = int(dtype[1:])
    row = -(-stored.shape[-1] * bits // 8)
    assert layout.nbytes(dtype) == row * stored.size // stored.shape[-1]
    for axis in range(stored.ndim):
        run = row * int(np.prod(stored.shape[axis:-1]))
        starts = [64 * 1000 + run * k for k in range(int(np.prod(stored.shape[:axis])) if axis else 1)]
        # what holds for as many runs as there may be: the greatest power of two up to 64 that divides every start
        wanted = max(
            p for p in (1, 2, 4, 8, 16, 32, 64) if (axis == 0 or run % p == 0) and all(s % p == 0 for s in starts)
        )
        assert layout.alignment(dtype, axis) == wanted


@settings(deadline=None, max_examples=40)
@given(layouts(), st.integers(1, 3))
def test_composition_packs_twice(first, tile):
    second = (
        Layout.of(first.storage, fill=-7).tile((0,), (tile,)).permute(tuple(reversed(range(len(first.storage) + 1))))
    )
    both, a = first.then(second), numbered(first.shape)
    np.testing.assert_array_equal(both.pack(a), second.pack(first.pack(a)))
    assert both.equals(first.then(second))


@settings(deadline=None, max_examples=40)
@given(layouts())
def test_the_inverse_is_a_layout_where_nothing_is_padding(layout):
    if layout.padded:
        with pytest.raises(polyq.SpecError, match=r"has no inverse: the cell \(.*\) holds no element"):
            layout.inverse()
        return
    a = numbered(layout.shape)
    np.testing.assert_array_equal(layout.inverse().pack(layout.pack(a)), a)
    assert layout.then(layout.inverse()).equals(Layout.of(layout.shape))


@settings(deadline=None, max_examples=30)
@given(layouts())
def test_the_text_makes_the_same_layout(layout):
    again = eval(repr(layout), {"Layout": Layout})
    assert again == layout
    assert again.equals(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_pack_read_from_mlir_is_the_same_layout():
    text = """
    func.func @f(%a: tensor<6x8xf32>) -> tensor<4x3x2x2xf32> {
      %e = tensor.empty() : tensor<4x3x2x2xf32>
      %p = linalg.pack %a outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [2, 2] into %e
        : tensor<6x8xf32> -> tensor<4x3x2x2xf32>
      return %p : tensor<4x3x2x2xf32>
    }"""
    a = np.random.default_rng(6).random((6, 8), dtype=np.float32)
    layout = Layout.of((6, 8)).tile(inner_dims_pos=(1, 0), inner_tiles=(2, 2), outer_dims_perm=(1, 0))
    np.testing.assert_array_equal(polyq.interpret(polyq.from_mlir(text), a=a), layout.pack(a))


def test_permutations_and_pitches_are_those_of_numpy():
    a = numbered((2, 3, 4))
    np.testing.assert_array_equal(Layout.of((2, 3, 4)).permute((2, 0, 1)).pack(a), a.transpose(2, 0, 1))
    layout = Layout.of((2, 3, 4), fill=9).pitch(6)
    np.testing.assert_array_equal(layout.pack(a), np.pad(a, ((0, 0), (0, 0), (0, 2)), constant_values=9))
    assert layout.storage == (2, 3, 6)


def test_the_weights_of_a_grouped_matmul_and_their_scales():
    w = Layout.of((4096, 32, 128), "n g j").tile((0, 1, 2), (32, 1, 128))
    assert w.storage == (128, 32, 1, 32, 1, 128)
    assert str(w) == "(n, g, j) -> (n//32, g, 0, n%32, 0, j)"
    six = Layout.of((4096, 32, 1)).tile((0, 1, 2), (32, 1, 1))
    five = Layout.of((4096, 32, 1)).tile((0, 1), (32, 1))
    assert (six.storage, five.storage) == ((128, 32, 1, 32, 1, 1), (128, 32, 1, 32, 1))
    assert six.same_memory(five)
    assert not six.equals(five)
    assert not five.same_memory(Layout.of((4096, 32, 1)).tile((0, 1), (16, 1)))


def test_equality_is_that_of_relations():
    tiled = Layout.of((64, 8)).tile((0,), (32,))
    assert tiled.equals(Layout.parse("(a, b) -> (a//32, b, a - 32*(a//32))", (64, 8)))
    assert not tiled.equals(Layout.of((64, 8)).tile((0,), (16,)))
    assert not tiled.equals(Layout.of((64, 4)).tile((0,), (32,)))
    by_hand = Layout.of((64, 8)).permute((1, 0)).tile((1,), (32,)).permute((1, 0, 2))
    assert tiled.equals(by_hand)


# ---- sub-byte orders, by the bytes that others define
def test_nibbles_low_or_high_first_and_in_halves():
    codes = np.random.default_rng(0).integers(0, 16, (3, 64)).astype(np.uint8)
    low, high = (Layout.of((3, 64)).fields(order).pack(codes, dtype="u4") for order in ("low", "high"))
    np.testing.assert_array_equal(low, codes[:, ::2] | codes[:, 1::2] << 4)
    np.testing.assert_array_equal(high, codes[:, ::2] << 4 | codes[:, 1::2])
    halves = Layout.of((3, 64)).fields("split", block=32)
    blocks = codes.reshape(3, 2, 2, 16)
    wanted = (blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(3, 32)
    np.testing.assert_array_equal(halves.pack(codes, dtype="u4"), wanted)
    np.testing.assert_array_equal(halves.unpack(wanted, dtype="u4"), codes)


def test_two_bits_in_four_parts_and_high_first():
    codes = np.random.default_rng(1).integers(0, 4, 128).astype(np.uint8)
    parts = codes.reshape(4, 32)
    wanted = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6
    np.testing.assert_array_equal(Layout.of((128,)).fields("split", bits=2, block=128).pack(codes, dtype="u2"), wanted)
    high = codes[::4] << 6 | codes[1::4] << 4 | codes[2::4] << 2 | codes[3::4]
    np.testing.assert_array_equal(Layout.of((128,)).fields("high", bits=2).pack(codes, dtype="u2"), high)


def test_an_interleave_from_an_expression():
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the nibble at position p of a 32-bit word holds element order[p]
    codes = np.random.default_rng(2).integers(0, 16, (2, 24)).astype(np.uint8)
    layout = Layout.of((2, 24)).interleave("i//2 + 4*(i % 2)", block=8)
    placed = codes.reshape(2, 3, 8)[:, :, order].reshape(2, 24)
    np.testing.assert_array_equal(layout.pack(codes), placed)
    np.testing.assert_array_equal(layout.unpack(placed), codes)
    rotated = Layout.of((8,)).interleave("(i + 3) % 8", 8)
    np.testing.assert_array_equal(rotated.pack(np.arange(8)), np.roll(np.arange(8), 3))


def test_odd_rows_are_padded_to_whole_bytes():
    layout = Layout.of((3, 5), fill=0xF).fields("high")
    assert layout.storage == (3, 6)
    codes = np.arange(15, dtype=np.uint8).reshape(3, 5)
    stored = layout.pack(codes, dtype="u4")
    np.testing.assert_array_equal(stored, [[0x01, 0x23, 0x4F], [0x56, 0x78, 0x9F], [0xAB, 0xCD, 0xEF]])
    np.testing.assert_array_equal(layout.unpack(stored, dtype="u4"), codes)


# ---- parameters
def test_a_symbolic_number_of_rows():
    layout = Layout.of(("m", 10), "m k", fill=-1).tile((0, 1), (4, 8))
    assert layout.storage == ("(m + 3)//4", 2, 4, 8)
    for m in (0, 1, 4, 7):
        a = numbered((m, 10))
        stored = layout.pack(a)
        np.testing.assert_array_equal(stored, linalg_pack(a, (0, 1), (4, 8), fill=-1))
        np.testing.assert_array_equal(layout.unpack(stored, m=m), a)
    assert layout.alignment("f32") == 32
    assert Layout.of(("m", "n")).tile((0,), (4,)).alignment("f32") == 16
    with pytest.raises(polyq.SpecError, match="offsets are not affine, since axis 1 has n cells"):
        _ = Layout.of(("m", "n")).offset
    with pytest.raises(polyq.ArgumentError, match="pass m by name"):
        layout.unpack(np.zeros((1, 2, 4, 8)))


def test_pitches_that_avoid_conflicts():
    cases = {2048: 2080, 1000: 1056, 96: 96, 128: 160, 100: 100, 129: 160, 160: 160}
    assert {n: pad_pitch(n, itemsize=4, line=128, sets=4) for n in cases} == cases
    with pytest.raises(polyq.SpecError, match="does not hold whole elements of 3 bytes"):
        pad_pitch(10, itemsize=3, line=64)


# ---- pictures
def test_a_drawing():
    layout = Layout.of((3, 2), fill=5).tile((0,), (2,)).permute((0, 2, 1)).pitch(3)
    assert layout.draw() == "0 0: 0,0 0,1 .\n0 1: 1,0 1,1 .\n1 0: 2,0 2,1 .\n1 1: .   .   ."
    assert Layout.of((6,)).interleave("1 - i", 2).draw() == "1 0 3 2 5 4"
    assert Layout.of((100, 3)).draw(most=2) == "0:  0,0  ...  0,2\n...\n99: 99,0 ...  99,2"


# ---- refusals
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout.parse("(i) -> (i//2)", (8,)), r"\(i=\d\) and \(i=\d\) share the cell \(\d\); a layout gives"),
        (lambda: Layout.parse("(i, j) -> (i)", (2, 3)), r"\(i=(\d), j=0\) and \(i=\1, j=\d\) share the cell \(\1\)"),
        (
            lambda: Layout.parse("(i) -> (i)", (8,), storage=(7,)),
            r"the cell of \(i=7\) lies outside of axis 0, which has 7",
        ),
        (
            lambda: Layout.parse("(i) -> (i)", (8,), inverse="(s) -> (s + 1)"),
            r"the inverse \(s0\) -> \(s0 \+ 1\) gives another",
        ),
        (lambda: Layout.parse("(i, j) -> (i)", (8,)), "2 dims for the shape"),
        (lambda: Layout.of((2, 3), "a"), "expected as many distinct dims"),
        (lambda: Layout.of((2, 3)).permute((0, 0)), r"permute\(\(0, 0\)\): expected each axis of \(2, 3\) once"),
        (lambda: Layout.of((2, 3)).tile((0, 0), (2, 2)), "expected distinct axes"),
        (lambda: Layout.of((2, 3)).tile((0,), (0,)), "a tile of at least 1"),
        (lambda: Layout.of((2, 3)).tile((2,), (2,)), "expected distinct axes"),
        (lambda: Layout.of((2, 3)).pitch(2), r"lies outside of axis 1, which has 2 cells"),
        (lambda: Layout.of((2, 3)).pad((2,)), r"pad\(\(2,\)\): \(2, 3\) has 2 axes"),
        (lambda: Layout.of((8,)).interleave("i//2", 4), "no permutation of 0..3: 0 and 1 both go to 0"),
        (lambda: Layout.of((8,)).interleave("2*i", 4), "no permutation of 0..3: 2 goes to 4"),
        (lambda: Layout.of((8,)).interleave("k", 4), "expected an expression of i alone"),
        (lambda: Layout.of((8,)).interleave("3 - i", 4, inverse="i"), "'i' is not its inverse"),
        (
            lambda: Layout.of((8,)).fields("middle"),
            r"fields\('middle', bits=4, block=32\): expected 'low', 'high' or 'split'",
        ),
        (lambda: Layout.of((3,), fill=1).pitch(4).then(Layout.of((4,), fill=2).pitch(5)), "one value for both"),
        (lambda: Layout.of((3,)).then(Layout.of((4,))), r"stores \(3,\);"),
        (lambda: Layout.of((3,), fill=0.5).pitch(4).pack(np.arange(3)), "the padding 0.5 is no value of int64"),
        (lambda: Layout.of((3,)).pack(np.arange(4)), r"this is a layout of \(3,\), got an array of shape \(4,\)"),
        (lambda: Layout.of((3,)).unpack(np.arange(4)), r"expected the stored shape \(3,\), got \(4,\)"),
    ],
)
def test_what_is_no_layout_is_refused(make, message):
    with pytest.raises((polyq.SpecError, polyq.ArgumentError), match=message):
        make()


# ---- schedules
def grouped(n, g, j, dtype="u8"):
    return polyq.parse(BODY, w=(dtype, (n, g, j)), z=("f32", (n, g)), s=("f32", (n, g)), x=("f32", ("m", g, j)))


def data(n, g, j, m=3):
    r = np.random.default_rng(n)
    return {
        "w": r.integers(0, 256, (n, g, j)).astype(np.uint8),
        "z": r.random((n, g), dtype=np.float32),
        "s": r.random((n, g), dtype=np.float32),
        "x": r.standard_normal((m, g, j), dtype=np.float32),
    }


def run(schedule, arrays):
    kernel = polyq.build(schedule, threads=2)
    assert kernel.certificate.ok
    if not kernel.constants:
        return kernel(**arrays)
    layer = kernel.bind(**{n: arrays[n] for n in kernel.constants})
    return layer(**{n: a for n, a in arrays.items() if n not in kernel.constants})


@pytest.mark.parametrize("n", [64, 50])
@pytest.mark.parametrize("tensor", ["w", "d", "s"])
def test_packed_tensors_give_the_same_bits(n, tensor):
    spec, arrays = grouped(n, 2, 8), data(n, 2, 8)
    shape = tuple(spec.tensor(tensor).shape)
    layout = Layout.of(shape).tile((0, 1), (32, 2), (1, 0, 2)[: len(shape)])
    got = run(Schedule.naive(spec, numerics="strict").pack(tensor, layout), arrays)
    np.testing.assert_array_equal(got, polyq.interpret(spec, **arrays))


def test_a_layout_travels_to_codes_scales_and_zero_points():
    spec, arrays = grouped(50, 2, 8), data(50, 2, 8)
    layout = Layout.of((50, 2, 8)).tile((0, 1, 2), (32, 1, 8))
    schedule = Schedule.naive(spec, numerics="strict").pack("d", layout, through=("w", "s", "z"))
    assert schedule.constants == ("w", "z", "s")
    made = schedule.plan.spec
    shapes = {name: made.tensor(name).shape for name in ("d", "w.packed", "s.packed", "z.packed")}
    wide = (2, 2, 1, 32, 1)
    assert shapes == {"d": (*wide, 8), "w.packed": (*wide, 8), "s.packed": wide, "z.packed": wide}
    assert str(made.op("d")) == (
        "d[s0, s1, s2, s3, s4, s5] = (f32(w.packed[s0, s1, 0, s3, 0, s5]) - z.packed[s0, s1, 0, s3, 0])"
        " * s.packed[s0, s1, 0, s3, 0] where 49 - 32*s0 - s3 >= 0"
    )
    np.testing.assert_array_equal(run(schedule, arrays), polyq.interpret(spec, **arrays))


def test_packed_per_call_or_when_bound():
    spec, arrays = grouped(50, 2, 8), data(50, 2, 8)
    naive = Schedule.naive(spec, numerics="strict")
    layout = Layout.of((50, 2, 8)).tile((0,), (16,))
    bound, called = naive.pack("w", layout), naive.pack("w", layout, bind=False)
    assert (bound.constants, called.constants) == (("w",), ())
    x = Layout.of(("m", 2, 8)).tile((0,), (2,)).permute((0, 1, 3, 2))
    np.testing.assert_array_equal(run(called.pack("x", x), arrays), polyq.interpret(spec, **arrays))
    assert naive.pack("x", x).constants == ()  # its shape is known when it is called
    with pytest.raises(polyq.ScheduleError, match=r"pack\('x', bind=True\): .*depends on a parameter"):
        naive.pack("x", x, bind=True)


def test_padding_is_never_read():
    spec, arrays = grouped(50, 3, 8), data(50, 3, 8)
    layout = Layout.of((50, 3)).tile((0,), (32,)).pitch(40)
    schedule = Schedule.naive(spec, numerics="strict").pack("s", layout).pack("z", layout)
    kernel = polyq.build(schedule)
    layer = kernel.bind(s=arrays["s"], z=arrays["z"])
    poison = Layout.of((50, 3), fill=float("nan")).tile((0,), (32,)).pitch(40)
    for name in ("s", "z"):
        layer._held[f"{name}.packed"][...] = poison.pack(arrays[name])
        assert np.isnan(layer._held[f"{name}.packed"]).sum() == 2 * 3 * 40 - 150
    np.testing.assert_array_equal(layer(w=arrays["w"], x=arrays["x"]), polyq.interpret(spec, **arrays))


def test_an_output_is_computed_in_the_layout_and_copied_once():
    spec, arrays = grouped(50, 2, 8), data(50, 2, 8)
    schedule = Schedule.naive(spec, numerics="strict").pack("y", Layout.of(("m", 50)).tile((0, 1), (2, 16)))
    assert schedule.plan.spec.tensor("y.acc").shape == ("(m + 1)//2", 4, 2, 16)
    np.testing.assert_array_equal(run(schedule, arrays), polyq.interpret(spec, **arrays))


def test_an_updated_tensor_can_be_packed():
    spec = polyq.parse("y[i] += a[i, k]", y=("f32", (10,)), a=("f32", (10, 4)))
    schedule = Schedule.naive(spec, numerics="strict").pack("y", Layout.of((10,)).tile((0,), (4,)))
    a, y = np.random.default_rng(3).random((10, 4), dtype=np.float32), np.ones(10, np.float32)
    np.testing.assert_array_equal(polyq.build(schedule)(y=y, a=a), polyq.interpret(spec, y=y, a=a))


def test_recurrences_and_scheduled_writers_keep_their_loops():
    spec = polyq.parse("t[i] = x[i]\nt[i] = t[i - 1] + x[i] where i >= 1\ny[i] = 2 * t[i]", x=("f32", (37,)))
    packed = Schedule.naive(spec, numerics="strict").pack("t", Layout.of((37,)).tile((0,), (8,)).permute((1, 0)))
    x = np.random.default_rng(4).random(37, dtype=np.float32)
    np.testing.assert_array_equal(polyq.build(packed)(x), polyq.interpret(spec, x=x))
    spec, arrays = grouped(50, 2, 8), data(50, 2, 8)
    scheduled = (
        Schedule.naive(spec, numerics="strict").split("d", "n", 8).pack("d", Layout.of((50, 2, 8)).tile((0,), (32,)))
    )
    assert scheduled.plan.stage("d").order == ("no", "ni", "g", "j")
    np.testing.assert_array_equal(run(scheduled, arrays), polyq.interpret(spec, **arrays))


def test_a_packed_schedule_fuses_and_vectorizes():
    spec, arrays = grouped(96, 3, 32), data(96, 3, 32)
    layout = Layout.parse("(n, g, j) -> (n//32, g, j, n%32)", (96, 3, 32))
    schedule = Schedule.naive(spec).pack("d", layout, through=("w", "z", "s")).split_dim("y", "n", 32)
    schedule = schedule.reorder("y", ["no", "m", "g", "j", "ni"]).fuse("d", into="y", at="g").vectorize("y", "ni")
    assert "y[m, ni + 32*no] += x[m, g, j] * d[j, ni]" in str(schedule)
    np.testing.assert_allclose(run(schedule, arrays), polyq.interpret(spec, **arrays), rtol=2e-4, atol=1e-2)


@pytest.mark.parametrize("order", ["low", "high", "split"])
def test_nibbles_packed_in_any_order_give_the_same_bits(order):
    spec, arrays = grouped(16, 2, 64, "u4"), data(16, 2, 64)
    arrays["w"] = arrays["w"][..., :32]
    layout = Layout.of((16, 2, 64)).fields(order).permute((1, 0, 2))
    schedule = Schedule.naive(spec, numerics="strict").pack("w", layout)
    np.testing.assert_array_equal(run(schedule, arrays), polyq.interpret(spec, **arrays))
    layer = polyq.build(schedule).bind(w=arrays["w"])
    codes = np.stack([arrays["w"] & 15, arrays["w"] >> 4], -1).reshape(16, 2, 64)
    np.testing.assert_array_equal(layer._held["w.packed"], layout.pack(codes, dtype="u4"))


def test_what_packing_cost():
    arrays = data(50, 2, 8)
    naive = Schedule.naive(grouped(50, 2, 8))
    layer = polyq.build(naive.pack("w", Layout.of((50, 2, 8)).tile((0,), (32,)))).bind(w=arrays["w"])
    packing = layer.packing
    assert (packing.inputs, packing.taken, packing.made, packing.peak) == (("w",), 800, 1024, 1824)
    assert 0 < packing.seconds < 10
    assert str(packing).startswith("w: 800 bytes packed as 1024 in ")
    assert pickle.loads(pickle.dumps(layer)).packing == packing
    assert polyq.build(naive).bind(w=arrays["w"]).packing is None


# ---- programs that take and give packed arrays
@pytest.mark.parametrize("order", ["low", "high", "split"])
def test_a_program_takes_nibbles_in_a_named_order(order):
    spec, arrays = grouped(8, 2, 64, "u4"), data(8, 2, 64)
    codes = arrays["w"] & 15
    layout = Layout.of((8, 2, 64)).fields(order)
    given = {**arrays, "w": layout.pack(codes, dtype="u4")}
    wanted = polyq.interpret(spec, **{**arrays, "w": Layout.of((8, 2, 64)).pack(codes, dtype="u4")})
    program = spec.stored("w", layout)
    np.testing.assert_array_equal(polyq.interpret(program, **given), wanted)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict")(**given), wanted)


def test_a_program_reads_rows_with_a_pitch_and_no_padding():
    spec, arrays = grouped(5, 2, 20), data(5, 2, 20)
    s, x = Layout.of((5, 2), fill=np.nan).pitch(7), Layout.of(("m", 2, 20), fill=np.inf).pitch(32)
    program = spec.stored("s", s).stored("x", x)
    given = {**arrays, "s": s.pack(arrays["s"]), "x": x.pack(arrays["x"])}
    wanted = polyq.interpret(spec, **arrays)
    np.testing.assert_array_equal(polyq.interpret(program, **given), wanted)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict")(**given), wanted)


def test_a_program_gives_a_padded_output():
    spec, arrays = grouped(50, 2, 8), data(50, 2, 8)
    layout = Layout.of(("m", 50), fill=-3).tile((0, 1), (2, 16))
    program = spec.stored("y", layout)
    wanted = layout.pack(polyq.interpret(spec, **arrays))
    assert (wanted == -3).sum() == 2 * 4 * 2 * 16 - 3 * 50
    np.testing.assert_array_equal(polyq.interpret(program, **arrays), wanted)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict")(**arrays), wanted)


def test_what_a_program_cannot_take_packed():
    spec = polyq.parse("y[i] += a[i]", y=("f32", (10,)), a=("f32", (10,)))
    with pytest.raises(polyq.SpecError, match="y is read and written in place; store an input or an output"):
        spec.stored("y", Layout.of((10,)))
    with pytest.raises(polyq.SpecError, match=r"a: f32\[10\] was given a layout of the shape \(11\)"):
        spec.stored("a", Layout.of((11,)))


@settings(deadline=None, max_examples=6)
@given(layouts(), st.booleans())
def test_random_layouts_of_a_temporary_and_an_input(layout, reduced):
    index = ", ".join("ijk"[: len(layout.shape)])
    body = f"t[{index}] = 2 * x[{index}]\ny{'' if reduced else f'[{index}]'} {'+=' if reduced else '='} t[{index}] + x[{index}]"
    spec = polyq.parse(body, x=("f32", layout.shape))
    x = np.random.default_rng(5).random(layout.shape, dtype=np.float32)
    schedule = Schedule.naive(spec, numerics="strict").pack("t", layout).pack("x", layout)
    np.testing.assert_array_equal(polyq.build(schedule).bind(x=x)(), polyq.interpret(spec, x=x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda s: s.pack("d", Layout.of((50, 2, 8)).tile((0,), (32,)), through=("y",)),
            r"does not reach y through `y\[m, n\] \+= .*share the cell.*"
            r"y\[0, 0\] meets the cells 0 and 1 along the axis g of d, which therefore falls away",
        ),
        (
            lambda s: s.pack("s", Layout.of((50, 2)), through=("w",)),
            r"does not reach w through `d\[n, g, j\].*\(d0=\d+, d1=\d, d2=0\) and \(d0=\d+, d1=\d, d2=\d\) share the cell",
        ),
        (
            lambda s: s.pack("d", Layout.parse("(n, g, j) -> (16*n + 2*j + g)", (50, 2, 8)), through=("s",)),
            r"s\[0, 0\] meets the cells 0 and 2 along the axis g \+ 2\*j \+ 16\*n of d, which therefore falls away",
        ),
        (
            lambda s: s.pack("w", Layout.of((50, 3, 8))),
            r"pack\('w'\): w: u8\[50, 2, 8\] was given a layout of the shape \(50, 3, 8\)",
        ),
        (lambda s: s.pack("q", Layout.of((50, 3, 8))), "there is no tensor 'q'; the spec has w, z, s, x, d, y"),
        (lambda s: s.pack("w", (1, 2)), r"pack\('w'\): expected a polyq.Layout, got tuple"),
        (lambda s: s.pack("d", Layout.of((50, 2, 8)), bind=True), "d is computed by each call; nothing is to bind"),
        (lambda s: s.pack("y", Layout.of(("m", 50)), bind=True), "y is an output; each call computes it"),
        (lambda s: s.pack("w", Layout.of((50, 2, 8)), through=("q",)), "there is no tensor 'q'"),
    ],
)
def test_what_cannot_be_packed_is_refused(make, message):
    with pytest.raises(polyq.ScheduleError, match=message):
        make(Schedule.naive(grouped(50, 2, 8)))


# ---- through reshapes, transposes and broadcasts
TILES = Layout.of((64, 256), "n k").tile((0, 1), (32, 4))


@pytest.mark.parametrize(
    ("text", "layout", "shapes", "packed"),
    [
        (
            "d[n, k] = f32(w[n, k//128, k%128]) * s[n, k//128] where k < 256",
            TILES, {"w": ("u8", (64, 2, 128)), "s": ("f32", (64, 2))},
            {"w": ("(n//32, 32*g + j//4, n%32, j%4)", (2, 64, 32, 4)), "s": ("(n//32, g, n%32)", (2, 2, 32))},
        ),
        (
            "d[n, 128*g + j] = f32(w[n, g, j]) * s[n, g]",
            TILES, {"w": ("u8", (64, 2, 128)), "s": ("f32", (64, 2))},
            {"w": ("(n//32, 32*g + j//4, n%32, j%4)", (2, 64, 32, 4)), "s": ("(n//32, g, n%32)", (2, 2, 32))},
        ),
        (
            "d[n, k] = f32(w[256*n + k]) where n < 64, k < 256",
            TILES, {"w": ("u8", (64 * 256,))},
            {"w": ("(n//8192, n//4%64, n//256%32, n%4)", (2, 64, 32, 4))},
        ),
        (
            "d[n, k] = f32(w[k, n])",
            TILES, {"w": ("u8", (256, 64))},
            {"w": ("(g//32, n//4, g%32, n%4)", (2, 64, 32, 4))},
        ),
        (
            "d[n, k] = b[n] * x[k]",
            TILES, {"b": ("f32", (64,))},
            {"b": ("(n//32, n%32)", (2, 32))},
        ),
        (
            "d[n, k] = f32(w[n, k]) * s[n, k//128]",
            Layout.parse("(n, k) -> (256*n + k)", (64, 256)), {"w": ("u8", (64, 256)), "s": ("f32", (64, 2))},
            {"w": ("(256*n + g)", (16384,)), "s": ("(2*n + g)", (128,))},
        ),
    ],
)  # fmt: skip
def test_a_layout_travels_through_reshapes_transposes_and_broadcasts(text, layout, shapes, packed):
    spec = polyq.parse(f"{text}\ny[n] += d[n, k] * x[k]", **shapes, x=("f32", (256,)))
    schedule = Schedule.naive(spec, numerics="strict").pack("d", layout, through=tuple(shapes))
    made = schedule.plan.spec
    for name, (place, storage) in packed.items():
        dims = ("n", "g", "j")[: len(shapes[name][1])]
        wanted = Layout.parse(f"({', '.join(dims)}) -> {place}", shapes[name][1], storage)
        assert made.tensor(f"{name}.packed").shape == storage
        r = np.random.default_rng(1)
        array = r.integers(0, 256, shapes[name][1]).astype(np.uint8 if shapes[name][0] == "u8" else np.float32)
        rest = {n: np.ones(t[1], np.uint8 if t[0] == "u8" else np.float32) for n, t in shapes.items()} | {name: array}
        layer = polyq.build(schedule).bind(**rest)
        np.testing.assert_array_equal(layer.held[f"{name}.packed"], wanted.pack(array))
        x = r.standard_normal(256, dtype=np.float32)
        given = {**rest, "x": x}
        np.testing.assert_array_equal(layer(x=x), polyq.interpret(spec, **given))


# ---- a pitch on one operand
@pytest.mark.parametrize(("k", "pitch"), [(2048, 2080), (1000, 1056), (96, 96)])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_a_pitch_on_one_operand_of_a_product(k, pitch, operand):
    """Rows of f32, lines of 128 bytes, 4 sets: the same bits, and NaN in the padding never reaches them."""
    spec = polyq.parse("y[m, n] += a[m, k] * b[n, k]", a=("f32", ("m", k)), b=("f32", (6, k)))
    r = np.random.default_rng(k)
    arrays = {"a": r.standard_normal((3, k), dtype=np.float32), "b": r.standard_normal((6, k), dtype=np.float32)}
    wanted = polyq.interpret(spec, **arrays)
    layout = Layout.of(spec.tensor(operand).shape, fill=np.nan).pitch(pad_pitch(k, itemsize=4, line=128, sets=4))
    assert layout.storage[-1] == pitch
    poisoned = layout.pack(arrays[operand])
    assert np.isnan(poisoned).sum() == (pitch - k) * len(arrays[operand])
    program = spec.stored(operand, layout)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict")(**{**arrays, operand: poisoned}), wanted)
    got = polyq.build(program)(**{**arrays, operand: poisoned})
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)  # lanes and tails do not read it either
    schedule = Schedule.naive(spec, numerics="strict").pack(operand, layout)
    np.testing.assert_array_equal(run(schedule, arrays), wanted)

"""Records: bytes that others define, round trips, every bit of a buffer by brute force, and kernels that read in place."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyq
from polyq import Layout, Record, Schedule
from polyq.affine import dtypes
from polyq.affine.arrays import pack
from polyq.affine.record import Part

BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def codes(shape, dtype="u4", seed=0):
    return np.random.default_rng(seed).integers(0, 1 << int(dtype[1:]), shape).astype(np.uint8)


def halves(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


# ---- bytes that others define
def test_blocks_of_32_nibbles_behind_their_scale():
    """A block: the scale as f16, then 16 bytes, byte i with element i in the low and i + 16 in the high bits."""
    w, s = codes((6, 4, 32)), halves((6, 4))
    record = Record.of({"s": ("f16", Layout.of((6, 4))), "w": ("u4", Layout.of((6, 4, 32)).fields("split"))}, outer=2)
    assert (record.block, record.nbytes(), record.alignment("w"), record.alignment("s")) == (18, 432, 2, 2)
    buffer = record.pack({"w": w, "s": s})
    for n, g in product(range(6), range(4)):
        wanted = s[n, g].tobytes() + bytes(w[n, g, i] | w[n, g, i + 16] << 4 for i in range(16))
        assert buffer[n, g].tobytes() == wanted
    got = record.unpack(buffer)
    np.testing.assert_array_equal(got["w"], w)
    np.testing.assert_array_equal(got["s"], s)
    np.testing.assert_array_equal(record.unpack(buffer.ravel())["w"], w)


def test_tiles_of_rows_with_their_scales_and_zero_points():
    """For 32 rows and a group: 32 scales, 32 zero points, then 32 x 16 codes, a line of 64 bytes for each four."""
    w, z, s = codes((64, 2, 16), "u8"), codes((64, 2), "u8", 2), halves((64, 2)).astype(np.float32)
    tiled = Layout.of((64, 2, 16), "n g j").tile((0,), (32,), (0, 1, 2)).permute((0, 1, 3, 2))
    small = Layout.of((64, 2), "n g").tile((0,), (32,))
    record = Record.of({"s": ("f32", small), "z": ("u8", small), "w": ("u8", tiled)}, outer=2, align=64)
    assert str(record) == (
        "blocks of 704 bytes over (2, 2): s f32 at 0 (128 bytes), z u8 at 128 (32 bytes), w u8 at 192 (512 bytes)"
    )
    assert [record.alignment(n) for n in "szw"] == [64, 64, 64]
    buffer = record.pack({"w": w, "z": z, "s": s})
    for t, g in product(range(2), range(2)):
        rows = slice(32 * t, 32 * t + 32)
        block = s[rows, g].tobytes() + z[rows, g].tobytes() + bytes(32) + w[rows, g].tobytes()
        assert buffer[t, g].tobytes() == block
    for name, array in record.unpack(buffer).items():
        np.testing.assert_array_equal(array, {"w": w, "z": z, "s": s}[name])


# ---- in general
@st.composite
def records(draw):
    """A few tensors over common blocks, and arrays for them."""
    blocks = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    parts, arrays = {}, {}
    for k in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(["u8", "i8", "u4", "i4", "u2", "i2", "f16", "f32", "f64", "bf16", "i32"]))
        inner = tuple(draw(st.lists(st.integers(1, 5), max_size=2)))
        shape = (*blocks, *inner)
        layout = Layout.of(shape)
        match draw(st.sampled_from(["plain", "permute", "pitch", "tile"])):
            case "permute":
                order = draw(st.permutations(range(len(blocks), len(shape))))
                layout = layout.permute((*range(len(blocks)), *order))
            case "pitch" if inner:
                layout = layout.pitch(inner[-1] + draw(st.integers(0, 3)))
            case "tile" if inner:
                layout = layout.tile((len(blocks),), (2,))
        parts[f"t{k}"] = dtype, layout
        r = np.random.default_rng(k)
        kind = dtypes.numpy_dtype(dtype)
        if dtypes.info(dtype).packed:
            low = 0 if dtype[0] == "u" else -(1 << int(dtype[1:]) - 1)
            values = r.integers(low, low + (1 << int(dtype[1:])), shape).astype(np.int8 if low else np.uint8)
        else:
            values = np.frombuffer(r.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)
        arrays[f"t{k}"] = values
    return Record.of(parts, outer=len(blocks), align=draw(st.sampled_from([None, None, 1, 16]))), arrays


@settings(deadline=None, max_examples=60)
@given(records())
def test_unpack_undoes_pack_and_no_two_elements_share_a_bit(case):
    record, arrays = case
    buffer = record.pack(arrays)
    for name, array in record.unpack(buffer).items():
        assert array.tobytes() == arrays[name].tobytes()
        assert array.dtype == arrays[name].dtype
    assert record.nbytes() == buffer.size
    # an element's bits are those that change with it
    owner = np.zeros(buffer.size * 8, int)
    for name, array in arrays.items():
        bits = dtypes.info(record.part(name).dtype).bits
        start = np.unpackbits(record.pack(arrays).ravel(), bitorder="little")
        for at in list(np.ndindex(array.shape))[:12]:
            changed = array.copy()
            if dtypes.info(record.part(name).dtype).packed:
                changed[at] = -1 - int(changed[at]) if changed.dtype == np.int8 else (1 << bits) - 1 - int(changed[at])
            else:
                flat = changed.reshape(-1).view(np.uint8).reshape(array.size, -1)
                flat[int(np.ravel_multi_index(at, array.shape)) if array.ndim else 0] ^= 0xFF
            flipped = np.unpackbits(record.pack({**arrays, name: changed}).ravel(), bitorder="little") != start
            assert flipped.sum() == bits
            assert not owner[flipped].any()
            owner[flipped] = 1


@settings(deadline=None, max_examples=40)
@given(records())
def test_each_part_has_a_layout_in_the_whole_buffer(case):
    record, arrays = case
    buffer = record.pack(arrays)
    for p in record.parts:
        size = dtypes.info(p.dtype).bits
        if record.block * 8 % size or p.offset * 8 % size:
            with pytest.raises(polyq.SpecError, match=r"no multiples of an element of .* leave align= out"):
                record.layout(p.name)
            return
        layout = record.layout(p.name)
        view = buffer.view("u1" if dtypes.info(p.dtype).packed else dtypes.numpy_dtype(p.dtype))
        got = layout.unpack(view, dtype=p.dtype if dtypes.info(p.dtype).packed else None)
        assert got.tobytes() == arrays[p.name].tobytes()


def test_a_symbolic_number_of_rows():
    record = Record.of({"s": ("f32", Layout.of(("m", 2))), "w": ("u8", Layout.of(("m", 2, 6)))}, outer=2)
    s, w = np.ones((3, 2), np.float32), codes((3, 2, 6), "u8")
    buffer = record.pack({"s": s, "w": w})
    assert (buffer.shape, record.block, record.nbytes(m=3)) == ((3, 2, 12), 12, 72)
    np.testing.assert_array_equal(record.unpack(buffer, m=3)["w"], w)
    with pytest.raises(polyq.ArgumentError, match="pass m by name"):
        record.unpack(buffer)


# ---- programs that read a record in place
def grouped(n=64, g=2, j=32, dtype="u4"):
    spec = polyq.parse(BODY, w=(dtype, (n, g, j)), z=("f32", (n, g)), s=("f32", (n, g)), x=("f32", ("m", g, j)))
    r = np.random.default_rng(3)
    arrays = {"w": codes((n, g, j), dtype), "z": r.random((n, g), "f4"), "s": r.random((n, g), "f4")}
    return spec, arrays, r.standard_normal((3, g, j), "f4")


@pytest.mark.parametrize("dtype", ["u8", "u4"])
@pytest.mark.parametrize("rows", [1, 32])
def test_kernels_read_one_buffer_in_place(dtype, rows):
    spec, arrays, x = grouped(dtype=dtype)
    w, small = Layout.of((64, 2, 32)), Layout.of((64, 2))
    if rows > 1:
        w, small = w.tile((0,), (rows,)).permute((0, 1, 3, 2)), small.tile((0,), (rows,))
    record = Record.of({"s": ("f32", small), "z": ("f32", small), "w": (dtype, w)}, outer=2)
    program, buffer = record.stored(spec), record.pack(arrays)
    views = record.views(buffer)
    assert all(np.shares_memory(v, buffer) for v in views.values())
    packed = {**arrays, "w": pack("u4", arrays["w"]) if dtype == "u4" else arrays["w"]}
    wanted = polyq.interpret(spec, **packed, x=x)
    np.testing.assert_array_equal(polyq.interpret(program, **views, x=x), wanted)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict")(**views, x=x), wanted)
    np.testing.assert_array_equal(polyq.build(program, numerics="strict").bind(**views)(x=x), wanted)
    np.testing.assert_array_equal(
        polyq.build(spec, numerics="strict").bind(**{**record.unpack(buffer), "w": packed["w"]})(x=x), wanted
    )


def test_a_schedule_packs_one_tensor_as_it_lies_in_a_record():
    spec, arrays, x = grouped(dtype="u8")
    small = Layout.of((64, 2))
    record = Record.of({"s": ("f32", small), "z": ("f32", small), "w": ("u8", Layout.of((64, 2, 32)))}, outer=2)
    schedule = Schedule.naive(spec, numerics="strict").pack("w", record.layout("w")).pack("s", record.layout("s"))
    layer = polyq.build(schedule).bind(w=arrays["w"], s=arrays["s"])
    assert layer.held["w.packed"].shape == (64, 2, 40)
    np.testing.assert_array_equal(layer.held["w.packed"][..., 8:], record.pack(arrays)[..., 8:])
    np.testing.assert_array_equal(layer(z=arrays["z"], x=x), polyq.interpret(spec, **arrays, x=x))


# ---- refusals
A, B = Layout.of((4, 3)), Layout.of((4,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Record((Part("a", "u8", A, 0), Part("b", "f32", B, 2)), 1, 8), "a and b share byte 2 of each block"),
        (lambda: Record((Part("a", "u8", A, 6),), 1, 8), "a has the bytes 6 to 9, outside of a block of 8"),
        (lambda: Record((Part("a", "u8", A, -1),), 1, 8), "a has the bytes -1 to 2"),
        (lambda: Record.of({"a": ("u8", A), "b": ("u8", Layout.of((5,)))}, outer=1), r"a has blocks \(4\), b \(5\)"),
        (lambda: Record.of({"b": ("u8", B)}, outer=2), r"b: outer=2, but its storage \(4,\) has fewer axes"),
        (lambda: Record.of({"a": ("u8", Layout.of((4, "m")))}, outer=1), "a: m cells within a block"),
        (lambda: Record.of({}, outer=0), "expected one or more tensors"),
        (lambda: Record.of({"a": ("u8", A)}, outer=1, align=0), "align=0: expected a number of bytes of at least 1"),
        (lambda: Record.of({"a": ("u8", A)}, outer=1).layout("b"), "there is no tensor 'b'; it holds a"),
        (lambda: Record.of({"a": ("u8", A)}, outer=1).pack({"b": 1}), "expected arrays for a, got b"),
        (lambda: Record.of({"a": ("f32", A)}, outer=1).pack({"a": np.zeros((4, 3))}), r"a: expected float32 \(f32\), got float64"),
        (lambda: Record.of({"a": ("u8", A)}, outer=1).unpack(np.zeros((4, 4), np.uint8)), r"expected uint8 of shape \(4, 3\) or flat"),
        (lambda: Record.of({"a": ("u8", A)}, outer=1).stored(grouped()[0]), "a of u8 is no input of the program"),
        (lambda: Record.of({"w": ("u8", A)}, outer=1).stored(grouped()[0]), r"w of u8 is w: u4\[64, 2, 32\] there"),
        (
            lambda: Record.of({"a": ("u8", A), "b": ("f32", B)}, outer=1, align=1).views(np.zeros(28, np.uint8)),
            r"b begins at byte 3 of blocks of 7 bytes, which are no multiples of an element of f32 \(4 bytes\)",
        ),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(make, message):
    with pytest.raises((polyq.SpecError, polyq.ArgumentError), match=message):
        make()


# ---- schedules that pack into a record
def shared(numerics="strict", nibbles=False):
    """The pair of statements with its constants in one record, and random data."""
    dtype, wide = ("u4", Layout.of((64, 2, 32)).fields("split")) if nibbles else ("u8", Layout.of((64, 2, 32)))
    tiled = wide if nibbles else wide.tile((0,), (32,)).permute((0, 1, 3, 2))
    small = Layout.of((64, 2)) if nibbles else Layout.of((64, 2)).tile((0,), (32,))
    record = Record.of({"s": ("f16", small), "z": ("u8", small), "w": (dtype, tiled)}, outer=2, align=2)
    body = BODY.replace("z[n, g]", "f32(z[n, g])").replace("s[n, g]", "f32(s[n, g])")
    declared = {"w": (dtype, (64, 2, 32)), "s": ("f16", (64, 2)), "z": ("u8", (64, 2)), "x": ("f32", ("m", 2, 32))}
    spec = polyq.parse(body, **declared)
    arrays = {"s": halves((64, 2)), "z": codes((64, 2), "u8", 2), "w": codes((64, 2, 32), dtype, 3)}
    return spec, record, arrays, Schedule.naive(spec, numerics=numerics).inline("d").pack(record)


def taken(spec, arrays):
    """The arrays as a kernel takes them: nibbles in bytes."""
    return {n: pack("u4", a) if spec.tensor(n).dtype == "u4" else a for n, a in arrays.items()}


@pytest.mark.parametrize("nibbles", [False, True])
def test_bind_packs_several_inputs_into_one_buffer(nibbles, tmp_path):
    spec, record, arrays, schedule = shared(nibbles=nibbles)
    given = taken(spec, arrays)
    layer = polyq.build(schedule).bind(**given)
    buffer = record.pack(arrays)
    assert layer.nbytes == layer.packing.made == record.nbytes() == buffer.nbytes
    for name in ("s", "z", "w"):
        held = layer.held[f"{name}.packed"]
        assert np.shares_memory(held, layer.held["s.packed"])
        np.testing.assert_array_equal(held.reshape(-1).view(np.uint8), buffer.ravel())
    x = np.random.default_rng(5).standard_normal((3, 2, 32), dtype=np.float32)
    wanted = polyq.interpret(spec, **given, x=x)
    np.testing.assert_array_equal(layer(x=x), wanted)
    again = pickle.loads(pickle.dumps(layer))
    assert again.nbytes == layer.nbytes
    np.testing.assert_array_equal(again(x=x), wanted)
    loaded = polyq.load(layer.save(tmp_path / "layer.polyq"))
    assert loaded.nbytes == layer.nbytes
    np.testing.assert_array_equal(loaded(x=x), wanted)


def test_the_certificate_refuses_parts_that_meet():
    _, _, _, schedule = shared()
    assert schedule.certificate().ok
    assert "in one buffer: s.packed, z.packed, w.packed" in str(schedule)
    bytes_of = Layout.of((64, 2))
    spec = polyq.parse("y[n, g] = f32(a[n, g]) + f32(b[n, g])", a=("u8", (64, 2)), b=("i8", (64, 2)))
    both = Schedule.naive(spec).pack("a", bytes_of, bind=True).pack("b", bytes_of, bind=True)
    certificate = both.share(["a.packed", "b.packed"]).certificate()
    assert not certificate.ok
    assert "a.packed and b.packed both write byte" in str(certificate)


def test_records_that_a_schedule_cannot_have():
    spec, record, _, packed = shared()
    plain = Schedule.naive(spec)
    with pytest.raises(polyq.ScheduleError, match=r"bind=False.*only where they are bound"):
        plain.pack(record, bind=False)
    with pytest.raises(polyq.ScheduleError, match="a record has the layouts of its tensors"):
        plain.pack(record, Layout.of((64, 2)))
    with pytest.raises(polyq.ScheduleError, match=r"the record has s of f32, which is s: f16\[64, 2\] here"):
        plain.pack(Record.of({"s": ("f32", Layout.of((64, 2)))}, outer=2))
    with pytest.raises(polyq.ScheduleError, match="expected two or more prepared tensors"):
        packed.share(["s.packed", "z.packed"])
    with pytest.raises(polyq.ScheduleError, match=r"pack\('x', bind=True\)"):
        Schedule.naive(polyq.parse("y[i] = x[i]", x=("f32", ("m",)))).pack(Record.of({"x": ("f32", Layout.of(("m",)))}, outer=1))

"""Bound layers on disk: the same bits after loading, on this CPU and on another; what is damaged or hostile is refused."""

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
from bound_programs import bound_program, exact_arrays
from hypothesis import given, settings
from programs import CONTRACTIONS, ELEMENTWISE, NORMS, QUANTIZED, WINDOWS
from random_specs import random_specs
from test_bound_programs import same

import polyq
from polyq import Layout, Schedule
from polyq.affine.codec import Malformed, decode_spec, encode_spec
from polyq.schedule import target
from polyq.schedule.codec import decode_program, encode_program

BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
PREFIX = struct.Struct("<16sIQ32s")


def grouped(n=128, g=2, j=64, dtype="u8"):
    return polyq.parse(BODY, w=(dtype, (n, g, j)), z=("f32", (n, g)), s=("f32", (n, g)), x=("f32", ("m", g, j)))


def data(n=128, g=2, j=64, dtype="u8"):
    """Small whole numbers: sums are exact in any order, so that two machines must agree to the bit."""
    r = np.random.default_rng(n)
    return {
        "w": r.integers(0, 256, (n, g, j * int(dtype[1:]) // 8)).astype(np.uint8),
        "z": r.integers(0, 8, (n, g)).astype(np.float32),
        "s": r.integers(1, 4, (n, g)).astype(np.float32),
        "x": r.integers(-3, 4, (5, g, j)).astype(np.float32),
    }


def bound(dtype="u8", **options):
    arrays = data(dtype=dtype)
    x = arrays.pop("x")
    return polyq.build(grouped(dtype=dtype), constants=("w", "z", "s"), **options).bind(**arrays), x, arrays


@pytest.fixture
def other_cpu(monkeypatch):
    """Let polyq see a CPU of our own choice, until the test ends."""

    def forget():
        for cached in (target.detect_machine, target._named):
            cached.cache_clear()

    real = target.parse_features

    def use(features):
        monkeypatch.setattr(target, "parse_features", real if features is None else lambda _: frozenset(features))
        forget()

    yield use
    monkeypatch.undo()
    forget()


# ---- programs as values
@pytest.mark.parametrize("program", [*ELEMENTWISE, *CONTRACTIONS, *QUANTIZED, *WINDOWS, *NORMS], ids=lambda p: p.name)
def test_a_program_comes_back_equal(program):
    spec = program.spec()
    assert decode_spec(json.loads(json.dumps(encode_spec(spec)))) == spec


@settings(deadline=None, max_examples=40)
@given(random_specs())
def test_random_programs_come_back_equal(program):
    spec = program.spec()
    again = decode_spec(json.loads(json.dumps(encode_spec(spec))))
    assert again == spec
    arrays = program.arrays()
    same(polyq.interpret(again, **arrays), polyq.interpret(spec, **arrays))


def test_automatic_and_packed_schedules_come_back_equal():
    auto = Schedule.auto(grouped(256, 4, 32), constants=("w", "s", "z"))
    assert any(d.transform == "copy_of" for d in auto.directives)
    lanes = Layout.parse("(n, g, j) -> (n//32, g, j, n%32)", (100, 2, 64), fill=0.5)
    packed = Schedule.naive(grouped(100)).pack("d", lanes, through=("w", "s", "z"))
    for schedule in (auto, packed):
        again = decode_program(json.loads(json.dumps(encode_program(schedule))))
        assert again == schedule
        assert str(again.nest) == str(schedule.nest)


def test_infinities_and_nan_in_a_body_come_back():
    spec = polyq.parse("y[i] = select(x[i] > inf, nan, -inf)", x=("f32", (3,)))
    text = json.dumps(encode_spec(spec), allow_nan=False)
    assert decode_spec(json.loads(text)) == spec


# ---- there and back
@pytest.mark.parametrize("dtype", ["u8", "u4", "u2"])
def test_a_loaded_layer_gives_the_same_bits_from_mapped_memory(dtype, tmp_path):
    layer, x, arrays = bound(dtype)
    assert layer.packing is not None
    path = layer.save(tmp_path / "layer.polyq")
    assert path == tmp_path / "layer.polyq"
    assert os.listdir(tmp_path) == ["layer.polyq"]
    again = polyq.load(path)
    assert again.packing is None
    assert again.held.keys() == layer.held.keys()
    for name, array in again.held.items():
        np.testing.assert_array_equal(array, layer.held[name])
        assert not array.flags.writeable
        assert array.ctypes.data % 64 == 0
        assert b"layer.polyq" in _mapping(array.ctypes.data)
    wanted = layer(x=x)
    np.testing.assert_array_equal(again(x=x), wanted)
    np.testing.assert_array_equal(again(x=x[:1]), layer(x=x[:1]))
    np.testing.assert_array_equal(wanted, polyq.interpret(grouped(dtype=dtype), **arrays, x=x))
    assert again.nbytes == layer.nbytes


def _mapping(address):
    """The line of /proc/self/maps that holds an address."""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            first, last = (int(part, 16) for part in line.split()[0].split(b"-"))
            if first <= address < last:
                return line
    return b""


@pytest.mark.parametrize("seed", range(6))
def test_random_bound_programs(seed, tmp_path):
    program, r = bound_program(seed), random.Random(seed)
    spec = program.spec()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kernel = polyq.build(spec, threads=r.choice((1, 2)))
        m = program.rows[-1]
        arrays = exact_arrays(spec, {"m": m} if spec.params else {}, seed)
        layer = kernel.bind(**{n: arrays[n] for n in program.bound})
        again = polyq.load(layer.save(tmp_path / "layer"))
    rest = {n: a for n, a in arrays.items() if n not in program.bound}
    same(again(**rest), layer(**rest))
    assert again.kernel.threads == layer.kernel.threads


def test_a_schedule_by_hand_with_a_padded_layout(tmp_path):
    arrays = data(100)
    layout = Layout.of((100, 2, 64), fill=7).tile((0,), (32,)).pitch(72)
    schedule = Schedule.naive(grouped(100), numerics="strict").pack("w", layout)
    layer = polyq.build(schedule).bind(w=arrays["w"])
    again = polyq.load(layer.save(tmp_path / "layer"))
    assert again.kernel.schedule == schedule
    rest = {n: a for n, a in arrays.items() if n != "w"}
    np.testing.assert_array_equal(again(**rest), polyq.interpret(grouped(100), **arrays))


def test_what_is_held_as_it_came(tmp_path):
    spec = polyq.parse(
        "y[i, j] = a[i, j] * f32(b[j]) + c + f32(e)",
        a=("f32", ("m", "n")), b=("bf16", "n"), c=("f32", ()), e=("i64", ()),
    )  # fmt: skip
    b = (np.arange(3, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bf16 = {"b": b} if "ml_dtypes" not in sys.modules else {"b": b.view(sys.modules["ml_dtypes"].bfloat16)}
    layer = polyq.build(spec).bind(**bf16, c=np.float32(2), e=np.int64(5))
    again = polyq.load(layer.save(tmp_path / "layer"))
    a = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(again(a), layer(a))
    with pytest.raises(polyq.ArgumentError, match=r"b: expected shape \(4,\) \(bf16\[n\]\), got \(3,\)"):
        again(np.ones((2, 4), np.float32))
    empty = polyq.build(spec).bind(b=b[:0], c=np.float32(2), e=np.int64(5))
    assert polyq.load(empty.save(tmp_path / "empty"))(a[:, :0]).shape == (2, 0)


def test_another_process_loads_it(tmp_path):
    layer, x, _ = bound()
    layer.save(tmp_path / "layer")
    np.save(tmp_path / "x.npy", x)
    script = (
        "import numpy, polyq, sys; layer = polyq.load('layer'); assert layer.packing is None; "
        "assert 'pickle' not in {m for m in sys.modules if m == 'cloudpickle'}; "
        "numpy.save('y.npy', layer(x=numpy.load('x.npy')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), layer(x=x))


def test_a_file_that_is_written_again_leaves_what_is_loaded_alone(tmp_path):
    layer, x, arrays = bound()
    path = layer.save(tmp_path / "layer")
    old = polyq.load(path)
    other = polyq.build(grouped(), constants=("w", "z", "s")).bind(**{**arrays, "s": arrays["s"] + 1})
    other.save(path)
    np.testing.assert_array_equal(old(x=x), layer(x=x))
    np.testing.assert_array_equal(polyq.load(path)(x=x), other(x=x))


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    layer, x, _ = bound()
    path = layer.save(tmp_path / "layer")
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        layer.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["layer"]
    np.testing.assert_array_equal(polyq.load(path)(x=x), layer(x=x))


# ---- another CPU
@pytest.mark.parametrize("dtype", ["u8", "u4"])
@pytest.mark.parametrize("features", [{"sse2"}, {"sse2", "sse4_1"}])
def test_another_cpu_packs_again(features, dtype, tmp_path, other_cpu):
    layer, x, _ = bound(dtype)
    wanted, path = layer(x=x), layer.save(tmp_path / "layer")
    other_cpu(features)
    again = polyq.load(path)
    assert again.kernel.layout != layer.kernel.layout
    assert again.held.keys() != layer.held.keys() or any(
        a.shape != layer.held[n].shape for n, a in again.held.items()
    )  # fmt: skip
    np.testing.assert_array_equal(again(x=x), wanted)
    # and back: what the other CPU saved, this one packs again
    back = again.save(tmp_path / "back")
    other_cpu(None)
    here = polyq.load(back)
    assert here.kernel.layout == layer.kernel.layout
    assert (here.packing is None) == (again.kernel.layout == layer.kernel.layout)
    for name, array in layer.held.items():
        np.testing.assert_array_equal(here.held[name], array)
    np.testing.assert_array_equal(here(x=x), wanted)


def test_a_cpu_that_lacks_the_target_refuses(tmp_path, other_cpu):
    layer, _, _ = bound(target=Schedule.naive(grouped()).machine.name)
    path = layer.save(tmp_path / "layer")
    other_cpu({"fpu"})
    with pytest.raises(polyq.BuildError, match="needs CPU features that this CPU lacks"):
        polyq.load(path)


def test_what_cannot_be_recovered_is_refused_on_another_cpu(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    _edit(path, lambda h: h.update(layout="0" * 40, packed=[]))
    with pytest.raises(
        polyq.BuildError,
        match=r"layer: y was packed as another CPU or another version of polyq reads it \(for \w+\), and w, z, s "
        "cannot be recovered from what was packed; bind the original arrays here, and save again",
    ):
        polyq.load(path)


def test_a_part_that_was_not_copied_whole_is_not_recovered(tmp_path):
    arrays = data(100)
    layout = Layout.of((100, 2)).tile((0,), (32,))
    layer = polyq.build(Schedule.naive(grouped(100)).pack("s", layout)).bind(s=arrays["s"])
    path = layer.save(tmp_path / "layer")

    def cut(header):
        header["layout"] = "0" * 40
        ((_, op),) = header["packed"]
        op[2][0] = [op[2][0][0] - 1]  # one tile less

    _edit(path, cut)
    with pytest.raises(polyq.BuildError, match="and s cannot be recovered"):
        polyq.load(path)


# ---- damage
def _split(path):
    blob = path.read_bytes()
    magic, version, length, _ = PREFIX.unpack(blob[: PREFIX.size])
    start = -(-(PREFIX.size + length) // 4096) * 4096
    return magic, version, json.loads(blob[PREFIX.size : PREFIX.size + length]), blob[start:]


def _join(path, magic, version, header, body):
    """Write a file whose checksums hold, as somebody would who wants to deceive."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = PREFIX.pack(magic, version, len(text), hashlib.sha256(text).digest()) + text
    path.write_bytes(prefix + bytes(-len(prefix) % 4096) + body)


def _edit(path, change):
    magic, version, header, body = _split(path)
    change(header)
    _join(path, magic, version, header, body)


def test_every_flipped_byte_is_found(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    blob, r = path.read_bytes(), random.Random(1)
    length = PREFIX.unpack(blob[: PREFIX.size])[2]
    start = -(-(PREFIX.size + length) // 4096) * 4096
    header = range(PREFIX.size + length)
    places = [*range(PREFIX.size), *r.sample(header, 40), *r.sample(range(start, len(blob)), 40), start, len(blob) - 1]
    for at in places:
        path.write_bytes(blob[:at] + bytes([blob[at] ^ 1 << r.randrange(8)]) + blob[at + 1 :])
        with pytest.raises(polyq.ArgumentError, match=r"load: .*; save the layer again from the original arrays"):
            polyq.load(path)


def test_every_truncation_is_found(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    blob = path.read_bytes()
    for size in (
        0,
        1,
        15,
        16,
        59,
        60,
        61,
        500,
        4095,
        4096,
        5000,
        8192,
        len(blob) // 2,
        len(blob) - 4096,
        len(blob) - 1,
    ):
        path.write_bytes(blob[:size])
        with pytest.raises(polyq.ArgumentError, match=r"truncated|no layer that polyq saved|checksum does not fit"):
            polyq.load(path)
    path.write_bytes(blob + b"\0")
    with pytest.raises(polyq.ArgumentError, match="truncated or longer than it should be"):
        polyq.load(path)


def test_names_of_any_length_are_written(tmp_path):
    size, codes = "n" * 600, "w" * 3000
    spec = polyq.parse(f"y[i] += f32({codes}[i, j]) * x[j]", **{codes: ("u8", (size, 16)), "x": ("f32", (16,))})
    layer = polyq.build(spec, constants=(codes,)).bind(**{codes: np.full((64, 16), 3, np.uint8)})
    loaded = polyq.load(layer.save(tmp_path / "layer"))
    assert np.array_equal(loaded(x=np.ones(16, np.float32)), np.full(64, 48.0))


@pytest.mark.parametrize("extent", ["-" * 5000 + "n", "(" * 3000 + "n" + ")" * 3000, "n*2" + "//2" * 50000, "1" * 5000])
def test_extents_that_no_reader_can_hold_are_refused(extent):
    spec = encode_spec(polyq.parse("y[i] = a[i]", a=("f32", ("n",))))
    spec["tensors"][0][2] = [extent]
    with pytest.raises((Malformed, polyq.SpecError)):
        decode_spec(spec)


def test_folders_are_made(tmp_path):
    layer, _, _ = bound()
    assert polyq.load(layer.save(tmp_path / "a" / "b" / "layer")).held.keys() == layer.held.keys()


def test_what_is_no_layer(tmp_path):
    (tmp_path / "text").write_text("import os")
    np.save(tmp_path / "array.npy", np.zeros(4096))
    for name in ("text", "array.npy"):
        with pytest.raises(polyq.ArgumentError, match=rf"{name}: no layer that polyq saved \(it begins with b"):
            polyq.load(tmp_path / name)
    with pytest.raises(polyq.ArgumentError, match="no file"):
        polyq.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        polyq.load(tmp_path / "nothing")


def test_another_format_is_named(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    magic, _, header, body = _split(path)
    _join(path, magic, 2, header, body)
    with pytest.raises(
        polyq.ArgumentError, match="format 2; this version of polyq reads format 1; save the layer again"
    ):
        polyq.load(path)


# ---- deceit: checksums that hold around fields that lie
def _rename(header):
    header["arrays"][0][0] = "v.packed"


def _reshape(header):
    header["arrays"][0][2] = header["arrays"][0][2][::-1]


def _retype(header):
    header["arrays"][0][1] = "<i4"


def _swap(header):
    one, two = header["arrays"][:2]
    one[0], two[0] = two[0], one[0]


def _spec(change):
    return lambda h: change(h["program"]["spec"])


LIES = {
    "kernel and notes are for readers": (lambda h: h.update(kernel="another", polyq="0" * 40, features=[], target="vax"), None),
    "another program": (_spec(lambda s: s["ops"][0].__setitem__(5, ["const", "0x1p0", "f32"])), None),
    "byteorder": (lambda h: h.update(byteorder="middle"), "written on a machine with middle-endian numbers"),
    "fewer fields": (lambda h: h.pop("layout"), "its header has other fields than this format"),
    "more fields": (lambda h: h.update(pickle="gASV"), "its header has other fields than this format"),
    "bytes": (lambda h: h.update(bytes=h["bytes"] + 1), "truncated or longer than it should be"),
    "bytes that are none": (lambda h: h.update(bytes=-1), "gives no size"),
    "sha256": (lambda h: h.update(sha256="0" * 64), "the checksum of its arrays does not fit"),
    "sha256 that is none": (lambda h: h.update(sha256=None), "the checksum of its arrays does not fit"),
    "arrays": (lambda h: h.update(arrays=None), "arrays: expected a list"),
    "no arrays": (lambda h: h.update(arrays=[]), "the kernel takes"),
    "an array's name": (_rename, "the kernel takes"),
    "an array's shape": (_reshape, r"is not stored as|describes no array"),
    "an array's type": (_retype, "outside of the file|is not stored as int32"),
    "object arrays": (lambda h: h["arrays"][0].__setitem__(1, "|O"), "describes no array for"),
    "an array beyond the file": (lambda h: h["arrays"][-1].__setitem__(3, 1 << 40), "outside of the file"),
    "an array before the file": (lambda h: h["arrays"][0].__setitem__(3, -4096), "outside of the file"),
    "an array off its page": (lambda h: h["arrays"][-1].__setitem__(3, h["arrays"][-1][3] - 8), "outside of the file"),
    "a huge array": (lambda h: h["arrays"][0].__setitem__(2, [1 << 40, 1 << 40]), "outside of the file"),
    "a negative shape": (lambda h: h["arrays"][0].__setitem__(2, [-1, -1]), "an extent of -1"),
    "one array twice": (lambda h: h["arrays"].append(h["arrays"][0]), "describes no array for"),
    "two arrays overlap": (lambda h: h["arrays"][1].__setitem__(3, h["arrays"][0][3]), "outside of the file"),
    "options": (lambda h: h["options"].update(target="; rm"), "target: '; rm' is no name"),
    "more options": (lambda h: h["options"].update(unsafe=1), "polyq.build has no option 'unsafe'"),
    "constants among the options": (lambda h: h["options"].update(constants=1), "options: expected a mapping"),
    "an option of another kind": (lambda h: h["options"].update(target=["c"]), "target is neither a name nor a number"),
    "threads": (lambda h: h["options"].update(threads="many"), "threads='many': expected a whole number"),
    "numerics": (lambda h: h["options"].update(numerics="loose"), "numerics='loose' is not known"),
    "constants": (lambda h: h.update(constants=["q"]), "no input has that name"),
    "constants that are none": (lambda h: h.update(constants="wsz"), "constants: expected a list"),
    "no program": (lambda h: h.update(program="import os"), "a program is a mapping"),
    "a name that is C": (_spec(lambda s: s.update(name="f(){}//*/")), "is no name"),
    "a dim that is C": (_spec(lambda s: s["ops"][0][1].__setitem__(0, "i;")), "is no name"),
    "a dtype": (_spec(lambda s: s["tensors"][0].__setitem__(1, "str")), "is no dtype"),
    "an access outside": (_spec(lambda s: s["ops"][0][4].__setitem__(0, [1 << 40])), "outside axis 0 of d"),
    "a longer loop": (_spec(lambda s: s["ops"][0][2].__setitem__(0, [1 << 40])), "outside axis"),
    "a shape": (_spec(lambda s: s["tensors"][0].__setitem__(2, ["__import__('os')"])), "__import__"),
    "a function": (_spec(lambda s: s["ops"][0].__setitem__(5, ["apply", "system", ["const", "0x0p0", "f32"]])), "is no scalar"),
    "an output unwritten": (_spec(lambda s: s.update(ops=s["ops"][:1])), "an output that nothing writes"),
    "read before written": (_spec(lambda s: s.update(ops=s["ops"][1:])), "read before it is written"),
    "a division by zero": (_spec(lambda s: s["ops"][0][4].__setitem__(0, [0, [1, ["//", [0], 0]]])), "a division by 0"),
    "a schedule": (
        lambda h: h["program"].update(numerics="reassoc", target="native", directives=[["eval", []]]),
        "'eval' is no transform",
    ),
    "directives without sense": (
        lambda h: h["program"].update(numerics="reassoc", target="native", directives=[["split", [["op", 5]]]]),
        "its header and what it holds do not fit",
    ),
    "an illegal schedule": (
        lambda h: h["program"].update(
            numerics="strict",
            target="native",
            directives=[["partial_sums", [["op", "y"], ["keep", ["g"]]]]],
        ),
        "its header and what it holds do not fit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_field_that_lies_is_refused_or_harmless(lie, tmp_path):
    layer, x, arrays = bound()
    path = layer.save(tmp_path / "layer")
    change, message = LIES[lie]
    _edit(path, change)
    if message is not None:
        with pytest.raises(polyq.ArgumentError, match=message):
            polyq.load(path)
    elif lie == "another program":  # its own program, and its own result
        again = polyq.load(path)
        np.testing.assert_array_equal(again(x=x), polyq.interpret(again.kernel.spec, **arrays, x=x))
    else:
        np.testing.assert_array_equal(polyq.load(path)(x=x), layer(x=x))


def test_arrays_that_change_names_are_not_mixed_up_where_shapes_differ(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    _edit(path, _swap)
    with pytest.raises(polyq.ArgumentError, match="is not stored as"):
        polyq.load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\x80\x04\x95", "its header is no JSON"),
        (b"[" * 200_000, "its header is no JSON"),
        (b"[]", "its header has other fields"),
        (b'{"bytes": ' + b"9" * 5000 + b"}", "its header is no JSON"),
    ],
)
def test_headers_that_are_none(header, message, tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")
    magic, version, _, body = _split(path)
    _join(path, magic, version, header, body)
    with pytest.raises(polyq.ArgumentError, match=message):
        polyq.load(path)


def test_a_program_nested_beyond_all_bounds(tmp_path):
    layer, _, _ = bound()
    path = layer.save(tmp_path / "layer")

    def nest(header):
        body = ["const", "0x0p0", "f32"]
        for _ in range(400):
            body = ["apply", "neg", body]
        header["program"]["spec"]["ops"][0][5] = body

    _edit(path, nest)
    with pytest.raises(polyq.PolyqError):
        polyq.load(path)


@pytest.mark.parametrize("value", [None, [], {}, {"spec": []}, {"spec": {}}, 3, "x", {"spec": 1, "numerics": 2}])
def test_values_that_are_no_program(value):
    with pytest.raises(Malformed):
        decode_program(value)


ODD = (
    None, True, 0, -1, 1, 1 << 40, 1 << 70, 1.5, "", "x", "y", "w", "n", "f32", "u4", "n - 1", "0x1p3", "nan", "+", [], [0],
    [[]], {}, {"spec": 0}, [5], ["const", "0x1p0", "f32"], [0, [1, ["d", "n"]]], [0, [1, ["p", "n"]]], ["//", [0], 2],
    ["apply", "exp", ["const", "0x1p0", "f32"]],
)  # fmt: skip


def _places_in(value, path=()):
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places_in(value[key], (*path, key))


@pytest.mark.parametrize("seed", range(3))
def test_mutilated_programs_are_programs_or_malformed(seed):
    r, counts = random.Random(seed), {True: 0, False: 0}
    spec = polyq.parse("y[i] += x[2*i + j//3] where i < 5, j < 7, i + j >= 2", x=("f32", ("n + 12",)))
    packed = Schedule.naive(grouped(64)).pack("w", Layout.of((64, 2, 64)).tile((0,), (32,)))
    wholes = [json.dumps(encode_program(program)) for program in (spec, packed)]
    for _ in range(400):
        value = json.loads(r.choice(wholes))
        for _ in range(r.choice((1, 1, 2))):
            places = list(_places_in(value))
            if not places:
                break
            path, inner = r.choice(places), value
            for key in path[:-1]:
                inner = inner[key]
            match r.random():
                case p if p < 0.6:
                    inner[path[-1]] = r.choice(ODD)
                case p if p < 0.8:
                    del inner[path[-1]]
                case _ if isinstance(inner, list):
                    inner.insert(path[-1], r.choice(inner))
        try:
            made = decode_program(value)
        except Malformed:
            counts[False] += 1
            continue
        counts[True] += 1
        # what passes is a program with bounds: it is written again as what it is
        assert decode_program(json.loads(json.dumps(encode_program(made)))) == made
    assert counts[True] > 3
    assert counts[False] > 300


def test_a_program_whose_names_are_no_names_is_not_written():
    spec = polyq.parse("y[i] = x[i]", x=("f32", (3,)))
    with pytest.raises(polyq.SpecError, match="this program cannot be written: name: 'a b' is no name"):
        encode_spec(type(spec)("a b", spec.all_tensors, spec.ops, spec.input_names, spec.output_names))

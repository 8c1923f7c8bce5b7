"""Targets: the table, and detection from text and folders instead of from this machine."""

import pickle
import platform

import pytest

from polyq.affine.errors import ScheduleError
from polyq.schedule import target as room
from polyq.schedule.target import TARGETS, Machine, Target, parse_features, parse_quota, read_caches

X86 = (
    "processor : 0\nflags\t\t: fpu sse4_1 avx2 fma f16c {more}\n\nprocessor : 1\nflags\t\t: fpu sse4_1 avx2 fma f16c\n"
)


@pytest.fixture
def machine(monkeypatch):
    """Lay another machine under Target.named."""

    def use(features, cores=3):
        found = Machine(frozenset(features), cores, 48 << 10, 2 << 20, 30 << 20, 64)
        monkeypatch.setattr(room, "detect_machine", lambda: found)
        room._named.cache_clear()

    yield use
    room._named.cache_clear()


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ("avx512f avx512bw avx512vl avx512dq avx2 fma f16c sse4_1", "avx512"),
        ("avx512f avx512bw avx512vl avx512dq avx512_vnni avx2 fma f16c sse4_1", "avx512vnni"),
        ("avx2 fma f16c avx_vnni sse4_1", "avxvnni"),
        ("fp asimd asimddp", "neondot"),
        ("avx512f avx2 fma f16c sse4_1", "avx2"),  # 512-bit floats alone are not enough
        ("avx2 sse4_1", "sse"),
        ("fp asimd", "neon"),
        ("", "c"),
    ],
)
def test_native_is_the_widest_that_runs(machine, features, name):
    machine(features.split())
    native = Target.named("native")
    assert native == Target.named(name)
    assert native.name == name
    assert native.available()
    assert (native.cores, native.l1, native.l2, native.l3, native.line) == (3, 48 << 10, 2 << 20, 30 << 20, 64)


def test_available_asks_for_every_feature(machine):
    machine({"avx2", "fma", "f16c", "sse4_1"})
    assert [name for name in TARGETS if Target.named(name).available()] == ["avx2", "sse", "c"]


def test_table():
    widths = {name: (t.vector_bytes, t.registers, t.fma, t.lanes("f32"), t.lanes("i16")) for name, t in TARGETS.items()}
    assert widths == {
        "avx512vnni": (64, 32, True, 16, 32),
        "avx512": (64, 32, True, 16, 32),
        "avxvnni": (32, 16, True, 8, 16),
        "avx2": (32, 16, True, 8, 16),
        "neondot": (16, 32, True, 4, 8),
        "neon": (16, 32, True, 4, 8),
        "sse": (16, 16, False, 4, 8),
        "c": (0, 16, False, 1, 1),
    }
    assert TARGETS["avx2"].flags == ("-mavx2", "-mfma", "-mf16c")
    assert TARGETS["avxvnni"].flags == ("-mavx2", "-mfma", "-mf16c", "-mavxvnni")
    assert TARGETS["avx512vnni"].flags[-1] == "-mavx512vnni"
    assert TARGETS["c"].flags == ()


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ScheduleError, match=r"^target 'avx3' is not known: choose one of native, avx512vnni, avx512, avxvnni, avx2, neondot, neon, sse, c$"
    ):
        Target.named("avx3")


def test_a_target_is_a_value():
    target = Target.named("avx2")
    assert pickle.loads(pickle.dumps(target)) == target
    assert hash(target) == hash(Target.named("avx2"))
    assert Target.named("avx2") is target  # detected once


def test_features_are_those_of_every_processor():
    assert parse_features(X86.format(more="avx512f")) == {"fpu", "sse4_1", "avx2", "fma", "f16c"}
    assert parse_features("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert parse_features("model name : x") == frozenset()


@pytest.mark.parametrize(("machine_name", "features"), [("arm64", {"asimd"}), ("AMD64", {"sse2"}), ("riscv64", set())])
def test_systems_that_list_no_features(machine_name, features):
    assert room._baseline(machine_name) == features


def cache(folder, index, level, kind, size, line="64"):
    entry = folder / f"index{index}"
    entry.mkdir()
    for name, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", line)):
        (entry / name).write_text(f"{text}\n")


def test_caches_from_a_folder(tmp_path):
    cache(tmp_path, 0, 1, "Data", "48K", "128")
    cache(tmp_path, 1, 1, "Instruction", "96K")
    cache(tmp_path, 2, 2, "Unified", "2M")
    cache(tmp_path, 3, 3, "Unified", "33792K")
    assert read_caches(tmp_path) == (48 << 10, 2 << 20, 33792 << 10, 128)


def test_caches_that_are_silent_or_broken(tmp_path):
    assert read_caches(tmp_path / "none") == (32 << 10, 256 << 10, 8 << 20, 64)
    cache(tmp_path, 0, 1, "Data", "nonsense")
    cache(tmp_path, 1, 2, "Unified", "16M")  # a core without L3: the L2 is the last level
    assert read_caches(tmp_path) == (32 << 10, 16 << 20, 16 << 20, 64)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("", None), ("0 0", None)]
)
def test_quota(text, cores):
    assert parse_quota(text) == cores


def test_this_machine_is_usable():
    native = Target.named("native")
    assert native.available()
    assert native.cores >= 1
    assert platform.machine() not in {"x86_64", "aarch64"} or native.vector_bytes >= 16


def test_reads_well():
    text = str(Target("avx2", 32, 16, True, (), (), 4, 2.0, cores=2, l1=32 << 10, l2=512 << 10, l3=32 << 20))
    assert text == "avx2: 256-bit vectors x 16, FMA, 2 cores, L1 32 KiB, L2 512 KiB, L3 32 MiB"

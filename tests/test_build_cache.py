"""The disk cache and the compiler: folders, keys, damage, many builders at once, failures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import build_programs
import numpy as np
import pytest

import polyq
import polyq.build
from polyq.affine.errors import BuildError, CompilerNotFound, ScheduleError
from polyq.affine.numbering import Form
from polyq.build import binding, cache, compiler, keys
from polyq.build.compilation import Compilation
from polyq.build.runtime import shared_runtime
from polyq.schedule import Directive, Schedule, auto

build_programs.install()
HERE = Path(__file__).parent


@pytest.fixture
def counted(monkeypatch):
    """Give a list that grows by one flag tuple a compile."""
    calls = []
    original = compiler.Compiler.compile

    def compile_(self, folder, source, library, flags, stop=None):
        calls.append(flags)
        original(self, folder, source, library, flags, stop)

    monkeypatch.setattr(compiler.Compiler, "compile", compile_)
    return calls


def answer(value, tag=""):
    """Return a program of no inputs whose output is one number."""
    return build_programs.program("answer", [], [("y", "i32", (1,))], f"  *(int *)buffers[0] = {value}; /* {tag} */")


def run_script(text, *, env, **options):
    code = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n{text}"
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def libraries(folder):
    return sorted(folder.glob("*.so"))


# ---- folders
@pytest.mark.parametrize("name", ["with space", "ünïcode-名前", "a;b'c\"d"])
def test_any_name_of_a_folder_builds(tmp_path, monkeypatch, name):
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / name / "deep"))
    assert polyq.build(answer(41, name.encode().hex()))()[0] == 41
    assert len(libraries(tmp_path / name / "deep")) >= 1


def test_a_relative_folder_is_below_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYQ_CACHE_DIR", "here")
    assert cache.cache_folder() == tmp_path / "here"
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700


def test_the_platform_says_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.delenv("POLYQ_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "polyq"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder().parent.parent == tmp_path


UNUSABLE = {
    "no home": ("", "there is no home folder"),
    "a file": ("file", "it cannot be written"),
    "below a file": ("file/sub", "it cannot be written"),
    "not writable": ("/proc/polyq", "it cannot be written"),
    "others may write": ("open", "others may write it"),
}


@pytest.mark.parametrize(("where", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_folder_gives_a_private_one_and_one_warning(tmp_path, monkeypatch, where, reason):
    monkeypatch.setattr(cache, "_fallback", None)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    if where:
        monkeypatch.setenv("POLYQ_CACHE_DIR", where if where.startswith("/") else str(tmp_path / where))
    else:
        for name in ("POLYQ_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    def answers():
        return [int(polyq.build(answer(value, reason))()[0]) for value in (42, 43)]

    with pytest.warns(RuntimeWarning, match=reason) as warned:
        assert answers() == [42, 43]
    assert len(warned) == 1
    private = cache.cache_folder()
    assert private.stat().st_mode & 0o777 == 0o700
    assert len(libraries(private)) >= 2
    assert list((tmp_path / "open").iterdir()) == []


def test_the_private_folder_goes_with_its_process(tmp_path):
    env = {**os.environ, "POLYQ_CACHE_DIR": str(tmp_path / "file")}
    (tmp_path / "file").write_text("")
    process = run_script("import polyq.build.cache as c; print(c.cache_folder())", env=env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    place = Path(out.decode().strip())
    assert place.name.startswith("polyq-")
    assert not place.exists()


# ---- hits, misses, keys
def test_equal_sources_compile_once(folder, counted):
    assert polyq.build(answer(1))()[0] == 1
    first = len(counted)
    assert polyq.build(answer(1))()[0] == 1
    assert len(counted) == first
    assert polyq.build(answer(2))()[0] == 2
    assert len(counted) == first + 1
    kept = {path.with_suffix(".c").read_text() for path in libraries(folder)}
    assert polyq.build(answer(1)).source in kept


def test_one_kernel_serves_all_values_of_a_parameter(folder, counted):
    kernel = polyq.build(build_programs.scale())
    compiled = len(counted)
    for m in range(65):
        x = np.random.default_rng(m).standard_normal((m, 4), dtype=np.float32)
        np.testing.assert_array_equal(kernel(x), x * 2)
    assert len(counted) == compiled


def test_the_key_covers_source_flags_compiler_cpu_and_version(monkeypatch):
    gcc = compiler.Compiler(("gcc",), "/usr/bin/gcc", "gcc 12.2")
    keys = {
        cache.library_key("int x;", (), gcc),
        cache.library_key("int y;", (), gcc),
        cache.library_key("int x;", ("-mavx2",), gcc),
        cache.library_key("int x;", (), compiler.Compiler(("gcc",), "/opt/gcc", "gcc 12.2")),
        cache.library_key("int x;", (), compiler.Compiler(("gcc",), "/usr/bin/gcc", "gcc 13.1")),
        cache.library_key("int x;", (), compiler.Compiler(("gcc", "-m32"), "/usr/bin/gcc", "gcc 12.2")),
    }
    monkeypatch.setattr(cache, "cpu_features", lambda: ("avx9",))
    keys.add(cache.library_key("int x;", (), gcc))
    monkeypatch.setattr(cache, "source_digest", lambda: "another version")
    keys.add(cache.library_key("int x;", (), gcc))
    assert len(keys) == 8
    assert cache.library_key("int x;", (), gcc) in keys


def test_the_digest_of_the_source_changes_with_any_file(tmp_path, monkeypatch):
    copy = tmp_path / "polyq" / "build"
    copy.mkdir(parents=True)
    (copy / "cache.py").write_text("a = 1\n")
    monkeypatch.setattr(cache, "__file__", str(copy / "cache.py"))
    seen = []
    for change in (lambda: None, lambda: (copy / "cache.py").write_text("a = 2\n"), lambda: (copy / "x.c").write_text("")):
        change()
        cache.source_digest.cache_clear()
        seen.append(cache.source_digest())
    cache.source_digest.cache_clear()
    assert len(set(seen)) == 3


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"x"])
def test_a_damaged_library_is_built_again(folder, counted, caplog, damage):
    schedule = answer(77, str(damage(b"0123456789")))
    source = schedule.module.source
    flags = schedule.module.flags
    path = cache.find_library(source, flags, compiler.find_compiler())
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    compiled = len(counted)
    with caplog.at_level(logging.WARNING, "polyq"):
        assert cache.find_library(source, flags, compiler.find_compiler()) == path
    assert len(counted) == compiled + 1
    assert "is damaged and will be built again" in caplog.text
    assert len(path.read_bytes()) == len(whole)
    assert polyq.build(schedule)()[0] == 77


def test_the_memo_spares_schedule_and_emission(folder, monkeypatch):
    schedule = answer(5, "memo")
    first = polyq.build(schedule)
    monkeypatch.setattr(polyq.emit, "generate", lambda s: pytest.fail("printed again"))
    second = polyq.build(schedule)
    card, again = (repr(k).rpartition("\n")[0] for k in (first, second))  # the last line tells the build's time
    assert (second.source, second.explain(), again) == (first.source, first.explain(), card)
    assert second()[0] == 5
    monkeypatch.setattr(cache, "source_digest", lambda: "another version")
    with pytest.raises(pytest.fail.Exception, match="printed again"):
        polyq.build(schedule)


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: t.replace("answer", "anSwer"), lambda t: "\xff"])
def test_a_damaged_memo_is_a_miss(folder, damage):
    schedule = answer(6, damage("answer, answer"))
    polyq.build(schedule)
    (memo,) = folder.glob("*.json")
    whole = memo.read_text()
    memo.write_text(damage(whole), encoding="latin-1")
    kernel = polyq.build(schedule)
    assert (kernel()[0], kernel.explain()) == (6, "answer: one loop, by hand")
    assert memo.read_text() == whole


def test_canonical_text_tells_values_apart():
    values = [1, 1.0, True, "1", (1,), ((1,),), (1, 1), None, "None", {"a": 1}, frozenset({1}), -0.0, 0.0, answer(1), answer(2)]
    assert len({keys.canonical(v) for v in values}) == len(values)
    assert keys.canonical(frozenset("abc")) == keys.canonical(frozenset("cba"))
    assert keys.canonical({"a": 1, "b": 2}) == keys.canonical({"b": 2, "a": 1})
    with pytest.raises(TypeError, match="a object has no canonical text"):
        keys.canonical((1, object()))


def test_a_schedule_that_fails_its_certificate_is_no_kernel(folder):
    broken = build_programs.program("broken", [], [("y", "i32", (1,))], "  ;", ok=False)
    with pytest.raises(ScheduleError, match="does not compute the spec"):
        polyq.build(broken)
    assert list(folder.glob("*.so")) == []


@dataclass(frozen=True)
class Watched(build_programs.HandSchedule):
    """A schedule whose certificate waits until the compiler runs, and looks into the cache."""

    started: str = ""
    folder: str = ""
    before: tuple[Path, ...] = ()

    def certificate(self):
        deadline = time.monotonic() + 60
        while not Path(self.started).exists():
            assert time.monotonic() < deadline, "nothing compiles while the certificate is made"
            time.sleep(0.01)
        assert sorted(Path(self.folder).iterdir()) == sorted([*self.before, *Path(self.folder).glob(".build-*")])
        return super().certificate()


def watched(folder, tmp_path, tag, **options):
    shared_runtime()  # not what is watched
    made, before = answer(21, tag), tuple(cache.cache_folder().iterdir())
    return Watched(
        made.spec, made.module, started=str(tmp_path / "started"), folder=str(folder), before=before, **options
    )


SLOW = 'case "$*" in *--version*) echo fake; exit;; esac\necho $$ > {0}/pid\ntouch {0}/started\nsleep 600'


def test_the_compiler_runs_beside_the_proof_and_its_library_waits_for_it(folder, monkeypatch, tmp_path):
    schedule = watched(folder, tmp_path, "beside")
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f'gcc "$@" && touch {tmp_path}/started'))
    assert polyq.build(schedule)()[0] == 21
    assert {p.suffix for p in set(folder.iterdir()) - set(schedule.before)} == {".so", ".c", ".json"}


def test_a_refused_schedule_ends_its_compiler_and_leaves_nothing(folder, monkeypatch, tmp_path):
    schedule = watched(folder, tmp_path, "refused", ok=False)
    monkeypatch.setenv("CC", fake_compiler(tmp_path, SLOW.format(tmp_path)))
    started = time.monotonic()
    with pytest.raises(ScheduleError, match="does not compute the spec"):
        polyq.build(schedule)
    assert time.monotonic() - started < 60
    assert ended(int((tmp_path / "pid").read_text()))
    assert set(folder.iterdir()) == set(schedule.before)


def test_a_failed_compile_of_a_refused_schedule_is_not_what_is_said(folder, monkeypatch, tmp_path):
    schedule = watched(folder, tmp_path, "both", ok=False)
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f"touch {tmp_path}/started; exit 1"))
    with pytest.raises(ScheduleError, match="does not compute the spec"):
        polyq.build(schedule)
    assert set(folder.iterdir()) == set(schedule.before)


def test_an_illegal_schedule_that_cannot_be_printed_is_named_illegal(folder, monkeypatch):
    def broken(schedule):
        raise KeyError("no such buffer")

    monkeypatch.setattr(polyq.emit, "generate", broken)
    illegal, legal = (build_programs.program("p", [], [("y", "i32", (1,))], "  ;", ok=ok) for ok in (False, True))
    with pytest.raises(ScheduleError, match="does not compute the spec"):
        polyq.build(illegal)
    with pytest.raises(KeyError, match="no such buffer"):
        polyq.build(legal)


def test_an_automatic_schedule_that_is_refused_gives_way_to_the_plain_order(folder, monkeypatch):
    spec = polyq.parse("y[i] += a[i, k]", a=("f32", ("m", 40)))
    compiled, before = [], shared_runtime() and libraries(folder)
    form = Form.of(spec)
    sum_, column = form.spec.ops[-1].name, form.spec.ops[-1].dims[-1]
    wrong = Schedule(form.spec).then(Directive("mark", (("op", sum_), ("axis", column), ("kind", "parallel"))))
    monkeypatch.setattr(auto, "choose_numbered", lambda *arguments: wrong)
    assert not wrong.certificate().ok
    original = Compilation.discard
    monkeypatch.setattr(Compilation, "discard", lambda self: (compiled.append(self), original(self)))
    with pytest.warns(RuntimeWarning, match="^the automatic schedule of y was refused by its certificate; the plain order runs instead"):
        kernel = polyq.build(spec)
    assert (kernel.schedule.directives, kernel.certificate.ok) == ((), True)
    a = np.ones((3, 40), np.float32)
    np.testing.assert_array_equal(kernel(a), a.sum(1))
    assert len(libraries(folder)) == len(before) + 1
    assert len(compiled) == 1


def test_a_full_disk_is_a_build_error_that_names_the_folder(folder, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_seal", full)
    with pytest.raises(BuildError, match=r"^the cache .*/cache cannot be written: .*No space left on device; make room, or"):
        polyq.build(answer(8, "full"))
    assert list(folder.glob(".build-*")) == libraries(folder) == []


def test_a_memo_that_cannot_be_written_is_only_slower(folder, monkeypatch, caplog):
    def full(handle):
        raise OSError(28, "No space left on device")

    path = cache.find_library("int x;", (), compiler.find_compiler())
    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING, "polyq"):
        cache.write_memo("some key", {"a": 1})
    assert "the memo could not be written: [Errno 28] No space left on device" in caplog.text
    assert cache.read_memo("some key") is None
    assert path.exists()


# ---- many builders
BUILD = """
import build_programs, numpy, polyq.build
build_programs.install()
print(int(polyq.build(build_programs.scale())(numpy.ones((1, 4), "f4"))[0, 0]))
"""


def test_processes_and_threads_build_one_program_at_once(folder):
    env = {**os.environ, "POLYQ_CACHE_DIR": str(folder)}
    processes = [run_script(BUILD, env=env, start_new_session=True) for _ in range(8)]
    time.sleep(0.6)  # somewhere between start and compile
    os.killpg(processes[0].pid, signal.SIGKILL)
    start = threading.Barrier(8)

    def thread(_):
        start.wait()
        return float(polyq.build(build_programs.scale())(np.ones((1, 4), np.float32))[0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(thread, range(8))) == [2.0] * 8
    for process in processes[1:]:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out.decode().strip()) == (0, "2"), err.decode()
    processes[0].communicate()
    assert all(cache._is_whole(path) for path in libraries(folder))
    sources = {path.with_suffix(".c").read_text() for path in libraries(folder)}
    assert sources == {build_programs.scale().module.source, Path(cache.__file__).with_name("runtime.c").read_text()}


def test_threads_compile_once(folder, counted):
    start = threading.Barrier(8)

    def thread(_):
        start.wait()
        return int(polyq.build(answer(9, "threads"))()[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(thread, range(8))) == [9] * 8
    assert counted.count(build_programs.FLAGS) == 1


def test_what_a_killed_builder_left_is_swept_after_a_day(folder):
    folder.mkdir(mode=0o700)
    old, young = folder / ".build-old", folder / ".build-young"
    for place in (old, young):
        place.mkdir()
        (place / "kernel.c").write_text("")
    os.utime(old, (1, 1))
    polyq.build(answer(3, "sweep"))
    assert (old.exists(), young.exists()) == (False, True)


# ---- the compiler
def fake_compiler(tmp_path, text):
    path = tmp_path / "fakecc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_compiler(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/nonexistent/cc -O1")
    with pytest.raises(CompilerNotFound, match=r"^CC='/nonexistent/cc -O1': '/nonexistent/cc' cannot be run"):
        polyq.build(answer(1, "no compiler"))
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(CompilerNotFound, match=r"^no C compiler: cc, gcc, clang were not found on PATH="):
        polyq.build(answer(1, "no compiler"))


def test_a_failing_compiler_keeps_the_source(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", fake_compiler(tmp_path, 'echo "no licence: ünpaid" >&2; exit 3'))
    with pytest.raises(BuildError) as caught:
        cache.find_library("int answer = 1;\n", ("-DX",), compiler.find_compiler())
    text = str(caught.value)
    assert text.startswith("the C compiler failed with status 3\n  command: ")
    assert " -DX kernel.c -o kernel.so -lm\n" in text
    assert "-DX kernel.c" in text
    assert "no licence: ünpaid" in text
    kept = Path(text.rpartition("source: ")[2])
    assert kept.read_text() == "int answer = 1;\n"
    assert libraries(folder) == []
    assert list(folder.glob(".build-*")) == []


def test_an_error_in_the_c_shows_what_the_compiler_says(folder):
    with pytest.raises(BuildError, match=r"(?s)failed with status 1.*nonsense.*source: .*failed-"):
        polyq.build(answer("nonsense"))


def test_a_compiler_that_writes_nothing(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", fake_compiler(tmp_path, "exit 0"))
    with pytest.raises(BuildError, match="wrote no library"):
        cache.find_library("int a;", (), compiler.find_compiler())


def test_a_compiler_that_hangs_is_ended_with_its_children(folder, monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    script = f'case "$*" in *--version*) echo fake 1.0; exit;; esac\nsleep 600 & echo $! > {pid}; wait'
    monkeypatch.setenv("CC", fake_compiler(tmp_path, script))
    monkeypatch.setattr(compiler, "TIME_LIMIT", 0.5)
    started = time.monotonic()
    with pytest.raises(BuildError, match=r"took more than 0.5 s and was ended"):
        cache.find_library("int b;", (), compiler.find_compiler())
    assert time.monotonic() - started < 10
    assert ended(int(pid.read_text()))


def ended(pid):
    """Whether a process is gone, or a zombie that nobody waits for."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_an_interrupted_build_leaves_nothing_and_builds_again(folder, tmp_path):
    env = {**os.environ, "POLYQ_CACHE_DIR": str(folder)}
    slow = fake_compiler(tmp_path, f'case "$*" in *--version*) echo fake; exit;; esac\ntouch {tmp_path}/started\nsleep 600')
    process = run_script(BUILD, env={**env, "CC": slow})
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in err
    assert libraries(folder) == []
    assert list(folder.glob(".build-*")) == []
    again = run_script(BUILD, env=env)
    out, err = again.communicate(timeout=60)
    assert out.decode().strip() == "2", err.decode()


@pytest.mark.parametrize("option", ["-Ofast", "-ffast-math", "-funsafe-math-optimizations"])
def test_fast_math_is_refused(monkeypatch, option):
    monkeypatch.setenv("CC", f"gcc {option}")
    with pytest.raises(BuildError, match=f"{option} makes the whole process flush small numbers to zero"):
        compiler.find_compiler()


def test_options_in_cc_are_used(folder, monkeypatch):
    monkeypatch.setenv("CC", "gcc -DVALUE=12")
    assert polyq.build(answer("VALUE"))()[0] == 12


def test_warnings_of_the_compiler_are_in_the_log(folder, caplog):
    with caplog.at_level(logging.WARNING, "polyq"):
        polyq.build(answer('1;\n#warning "mind this"\n'))
    assert "mind this" in caplog.text


def test_a_library_without_the_entry_is_a_build_error(folder):
    path = cache.find_library("int other(void) { return 1; }", (), compiler.find_compiler())
    with pytest.raises(BuildError, match="has no symbol 'entry'"):
        binding.load(path, "entry")
    with pytest.raises(BuildError, match="the system's loader refuses this library"):
        binding.load(Path("/nonexistent/x.so"), "entry")


def test_the_types_of_the_binding_are_those_it_declares(tmp_path):
    binding.write_types(tmp_path / "_abi.py")
    written = (tmp_path / "_abi.py").read_text()
    assert written == Path(binding.__file__).with_name("_abi.py").read_text()

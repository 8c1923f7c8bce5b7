"""Several kernels at once, in threads and in other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import build_programs
import numpy as np
import pytest

import polyq
from polyq.affine.errors import ArgumentError, BuildError, ScheduleError
from polyq.build import building, many
from polyq.build.many import Progress

build_programs.install()
HERE = Path(__file__).parent


def scaled(factor):
    return polyq.parse(f"y[i] = {factor} * x[i]", x=("i32", ("n",)))


def answer(value, **options):
    return build_programs.program("answer", [], [("y", "i32", (1,))], f"  *(int *)buffers[0] = {value};", **options)


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_kernels_come_in_order(folder, count):
    kernels = polyq.build_many([scaled(k) for k in range(count)], numerics="strict", workers=2)
    assert isinstance(kernels, tuple)
    x = np.arange(5, dtype=np.int32)
    for k, kernel in enumerate(kernels):
        np.testing.assert_array_equal(kernel(x), k * x)
        assert kernel.numerics == "strict"


def test_many_programs_are_built_by_other_processes(folder, monkeypatch):
    def planned(*arguments):
        raise AssertionError("this process makes a schedule itself")

    from polyq.schedule import auto

    monkeypatch.setattr(auto, "choose", planned)
    kernels = polyq.build_many([scaled(k) for k in range(4)], workers=2)
    assert [int(k(np.ones(1, np.int32))[0]) for k in kernels] == [0, 1, 2, 3]
    assert not list(folder.glob(".build-*"))


def test_other_processes_import_this_polyq_whatever_the_current_folder_holds(folder, tmp_path, monkeypatch):
    (tmp_path / "polyq").mkdir()
    (tmp_path / "polyq" / "__init__.py").write_text("raise SystemExit('another polyq')")
    monkeypatch.chdir(tmp_path)
    test_many_programs_are_built_by_other_processes(folder, monkeypatch)


def test_what_no_other_process_can_read_is_built_here(folder, monkeypatch):
    monkeypatch.setattr(many, "_MANY", 0)
    assert [int(k()[0]) for k in polyq.build_many([answer(k) for k in range(3)], workers=2)] == [0, 1, 2]


def test_progress_counts_and_names(folder, capsys):
    told = []
    polyq.build_many([scaled(1), answer(2)], progress=told.append)
    assert [(p.done, p.total) for p in told] == [(1, 2), (2, 2)]
    assert sorted(p.name for p in told) == ["answer", "y"]
    assert all(p.seconds > 0 for p in told)
    assert str(Progress(2, 3, "conv", 0.417)) == "[2/3] conv: 0.42 s"
    assert capsys.readouterr().err == ""
    polyq.build_many([answer(2)], progress=True)
    assert capsys.readouterr().err.startswith("[1/1] answer: 0.")


def test_errors_name_the_program_and_keep_their_class(folder):
    with pytest.raises(ScheduleError, match=r"^build_many: program 2 of 3 \(answer\): the schedule does not compute the spec"):
        polyq.build_many([answer(1), answer(2, ok=False), answer(3)])
    bad = build_programs.program("bad", [], [("y", "i32", (1,))], "  this is no C;")
    with pytest.raises(BuildError, match=r"^build_many: program 1 of 1 \(bad\): the C compiler failed with status 1"):
        polyq.build_many([bad])
    with pytest.raises(TypeError, match=r"^build_many: program 1 of 1 \(int\): polyq.build: expected a Spec"):
        polyq.build_many([3])


def test_programs_that_wait_behind_an_error_do_not_keep_it(folder):
    code = """
import faulthandler, polyq
faulthandler.dump_traceback_later(60, exit=True)
try:
    polyq.build_many([3, *[polyq.parse("y[i] = 2 * x[i]", x=("i32", ("n",)))] * 20], workers=1)
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("build_many: program 1 of 21 (int): polyq.build: expected a Spec"), done.stderr


def test_an_error_in_another_process_is_raised_here(folder):
    wide = polyq.parse("y[i] = x[i]", x=("u4", ("n",)))
    racing = polyq.Schedule.naive(wide).parallel("y", "i")  # threads would share a byte
    programs = [scaled(5), scaled(6), scaled(7), scaled(8), racing]
    with pytest.raises(ScheduleError, match=r"^build_many: program 5 of 5 \(y\): .*cannot be parallel"):
        polyq.build_many(programs, workers=2)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_a_number_of_workers_that_is_none(workers):
    with pytest.raises(ArgumentError, match=r"^build_many: workers=.*: expected a whole number of at least 1, or None$"):
        polyq.build_many([], workers=workers)


def test_unknown_options_are_refused(folder):
    with pytest.raises(TypeError, match=r"polyq\.build has no option 'colour'"):
        polyq.build_many([answer(1)], colour="red")


def test_the_key_of_a_plan_is_that_of_the_build(folder):
    spec = scaled(9)
    key = building.plan_key(spec, numerics="strict", target="c", threads=3)
    assert not (folder / f"{key}.json").exists()
    polyq.build(spec, numerics="strict", target="c")
    assert (folder / f"{key}.json").exists()


INTERRUPTED = """
import polyq, build_programs
build_programs.install()
specs = [polyq.parse(f"y[i] = {k} * x[i]", x=("i32", ("n",))) for k in range(COUNT)]
polyq.build_many(specs, workers=2)
"""


@pytest.mark.parametrize("count", [2, 6])
def test_an_interrupt_ends_all_builds_and_sweeps(folder, tmp_path, count):
    """With two programs threads build, with six other processes do."""
    fake = tmp_path / "fakecc"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo fake; exit;; esac\necho $$ >> {tmp_path}/pids\nexec sleep 600\n')
    fake.chmod(0o755)
    code = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n{INTERRUPTED.replace('COUNT', str(count))}"
    env = {**os.environ, "POLYQ_CACHE_DIR": str(folder), "CC": str(fake)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in err
    assert sorted(p.name for p in folder.iterdir() if p.suffix in {".so", ".c"} or p.name.startswith(".")) == []
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid))


def gone(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False

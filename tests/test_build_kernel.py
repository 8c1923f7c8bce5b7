"""polyq.build: the callable package, options, what a kernel shows, timing, the log."""

from __future__ import annotations

import copy
import importlib
import logging
import re
import subprocess
import sys
import threading
import types

import build_programs
import numpy as np
import pytest

import polyq
import polyq.build
import polyq.build.cache as cache_module
from polyq.affine.errors import ArgumentError, BuildError, ScheduleError
from polyq.affine.expr import Affine
from polyq.affine.scalar import Load, apply
from polyq.affine.spec import Op, Spec, Tensor
from polyq.build import Bound, Kernel, Timing
from polyq.build.card import memory_text
from polyq.build.timing import count_operations
from polyq.schedule import Schedule, auto

build_programs.install()


@pytest.fixture(scope="module")
def scale():
    return polyq.build(build_programs.scale(), threads=2)


# ---- the callable package
def test_build_is_a_package_that_can_be_called(scale):
    assert isinstance(polyq.build, types.ModuleType)
    assert isinstance(scale, Kernel)
    assert importlib.import_module("polyq.build") is polyq.build
    assert cache_module is polyq.build.cache
    assert callable(polyq.build)
    assert copy.deepcopy(polyq.build) is polyq.build


def test_import_is_light():
    code = (
        "import sys, numpy; before = set(sys.modules); import polyq; new = set(sys.modules) - before\n"
        "print(sorted(m for m in new if not m.startswith('polyq')))\n"
        "print(polyq.build.__name__, polyq.Spec.__name__, polyq.parse.__name__, polyq.interpret.__name__)\n"
        "from polyq import build; import polyq.build.kernel; print(build is polyq.build, 'parse' in dir(polyq))\n"
        "try: polyq.nothing\nexcept AttributeError as e: print(e)\n"
        "try: polyq.spec\nexcept AttributeError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert not {"islpy", "cffi", "cgen", "_cffi_backend", "subprocess"} & set(eval(lines[0])), done.stderr
    assert lines[1:] == [
        "polyq.build Spec parse interpret",
        "True True",
        "module 'polyq' has no attribute 'nothing'",
        "module 'polyq' has no attribute 'spec'",
    ]


# ---- options
def test_an_unknown_option_says_which_there_are():
    with pytest.raises(TypeError, match=r"^polyq.build has no option 'unroll'; its options are numerics, threads, target, constants$"):
        polyq.build(build_programs.scale(), unroll=4)


@pytest.mark.parametrize("program", [None, "y = x", 3, polyq])
def test_what_is_no_program_is_refused(program):
    with pytest.raises(TypeError, match=r"^polyq.build: expected a Spec \(polyq.parse\(...\)\) or a Schedule, got "):
        polyq.build(program)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_is_a_whole_number(threads):
    with pytest.raises(ArgumentError, match=r"^threads=.*: expected a whole number of at least 1, or None for all cores$"):
        polyq.build(build_programs.scale(), threads=threads)


@pytest.mark.parametrize("mode", ["i4", "fast"])
def test_numerics_that_are_not_there_are_refused_by_name(mode):
    with pytest.raises(ScheduleError, match=f"^numerics='{mode}' is not known; choose one of 'strict', 'reassoc', 'i16', 'i16x2', 'i8'$"):
        polyq.build(build_programs.scale(), numerics=mode)


def test_a_schedule_has_its_own_numerics_and_target():
    schedule = build_programs.scale()
    assert polyq.build(schedule, numerics="reassoc", target="c").numerics == "reassoc"
    with pytest.raises(ScheduleError, match=r"^numerics='strict': the schedule was made for 'reassoc', which decides"):
        polyq.build(schedule, numerics="strict")
    with pytest.raises(ScheduleError, match=r"^target='avx2': the schedule was made for 'c'"):
        polyq.build(schedule, target="avx2")
    with pytest.raises(ScheduleError, match=r"^target='sparc' is not known; choose one of 'native', 'avx512vnni', 'avx512', "):
        polyq.build(schedule, target="sparc")


def test_a_target_that_this_cpu_lacks_is_for_reading():
    other = build_programs.program(
        "other", [], [("y", "i32", (1,))], "  this is no C that any compiler here takes", features=("avx9", "sve7")
    )
    kernel = polyq.build(other)
    assert "this is no C" in kernel.source
    assert "not on this CPU: source only" in repr(kernel)
    with pytest.raises(BuildError, match=r"^kernel other needs CPU features that this CPU lacks: avx9, sve7\. Its \.source is there"):
        kernel()
    with pytest.raises(BuildError, match="avx9"):
        kernel.bind()()


# ---- what a kernel shows
def test_facts_and_card(scale):
    schedule = build_programs.scale()
    assert (scale.inputs, scale.outputs) == ((Tensor("x", "f32", ("m", 4)),), (Tensor("y", "f32", ("m", 4)),))
    assert (scale.spec, scale.numerics, scale.target, scale.threads) == (schedule.spec, "reassoc", "c", 2)
    assert scale.schedule == schedule
    assert scale.certificate.verify()
    assert scale.source == schedule.module.source
    assert scale.explain() == "scale: one loop, by hand"
    card, build = repr(scale).split("\n  build        ")
    assert card == (
        "kernel scale(x: f32[m, 4]) -> y: f32[m, 4]\n"
        "  numerics     reassoc\n"
        "  target       c\n"
        "  threads      1, since no loop is divided (up to 2 are allowed)\n"
        "  memory       at least 32 B * m: each input read once, each output written once\n"
        "  certificate  written by hand"
    )
    each = r"(emit \d\.\d\d, )?(certificate \d\.\d\d, )?waiting for the compiler \d\.\d\d(, other \d\.\d\d)?"
    assert re.fullmatch(rf"\d+\.\d\d s \(({each}|source from the cache)\)", build)
    bound = scale.bind(x=np.zeros((3, 4), np.float32))
    assert isinstance(bound, Bound)
    assert repr(bound).endswith("\n  bound        x 48 B")


def test_the_card_counts_packed_rows_and_parameters():
    spec = polyq.parse("y[i] += f32(w[i, j]) * x[j]", w=("u4", ("n - 2", 5)), x=("f32", 5))
    assert memory_text(spec) == "at least 20 B + 7 B * (n - 2): each input read once, each output written once"
    assert memory_text(polyq.parse("y[i] = 2 * x[i]", x=("i4", "n"))).startswith("at least 2 B * ceil(n * 4/8): ")


def test_a_spec_is_scheduled_once_and_again_only_if_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / "cache"))
    made = []

    def choose(form, numerics, target, constants, sizes, choices):
        made.append((numerics, target))
        return Schedule.naive(form.spec, numerics, target)

    monkeypatch.setattr(auto, "choose_numbered", choose)
    spec = polyq.parse("y[m, j] = 2.0 * x[m, j]", x=("f32", ("n", 4)))
    first = polyq.build(spec, numerics="strict", target="c")
    assert (first.schedule.numerics, first.certificate.ok, made) == ("strict", True, [("strict", "c")])
    second = polyq.build(spec, numerics="strict", target="c")
    np.testing.assert_array_equal(second(np.ones((2, 4), np.float32)), np.full((2, 4), 2))
    assert len(made) == 1
    assert second.schedule == first.schedule
    assert len(made) == 2
    assert polyq.build(spec).numerics == "reassoc"
    assert made[2:] == [("reassoc", "native")]


# ---- time
def test_a_benchmark_counts_bytes_and_prints(scale):
    timing = scale.benchmark(m=1000, repeats=7)
    assert isinstance(timing, Timing)
    assert (timing.bytes, len(timing.seconds), timing.params, timing.threads) == (32000, 7, (("m", 1000),), 1)
    assert timing.spread[0] <= timing.median <= timing.spread[1]
    assert timing.gbps == pytest.approx(32000 / timing.median / 1e9)
    low, high = timing.seconds[0], timing.seconds[-1]
    assert 0 < low <= high
    text = str(timing)
    for part in ("scale m=1000: ", "7 calls", "GB/s", "1 thread", "reassoc"):
        assert part in text
    assert scale.benchmark(m=0, repeats=1).bytes == 0
    assert len(scale.benchmark(m=3, seconds=0.0).seconds) >= 5


def test_a_benchmark_names_the_parameters_it_wants(scale):
    with pytest.raises(ArgumentError, match=r"^benchmark: expected m=\.\.\., got none$"):
        scale.benchmark()
    with pytest.raises(ArgumentError, match=r"^benchmark: expected m=\.\.\., got m, k$"):
        scale.benchmark(m=1, k=2)


def test_a_timing_prints_each_unit():
    def timing(*seconds, operations=None, cold=True):
        return Timing("k", "strict", 1, (), seconds, 1000, operations, 3, cold)

    assert str(timing(2e-3, 2e-3, 4e-3, operations=4000)) == (
        "k: 2 ms (2 ms to 4 ms, 3 calls), 0.0005 GB/s, 0.002 GFLOP/s, 1 thread, strict, cold data"
    )
    assert str(timing(2.0, cold=False)) == "k: 2 s (2 s to 2 s, 1 calls), 5e-07 GB/s, 1 thread, strict, warm data"
    assert str(timing(3e-6)).startswith("k: 3 us ")
    assert str(timing(40e-9)).startswith("k: 40 ns ")


def test_operations_are_counted_from_the_spec():
    i, j = Affine.dim("i"), Affine.dim("j")
    a, x, y = Tensor("a", "f32", ("m", 4)), Tensor("x", "f32", (4,)), Tensor("y", "f32", ("m",))
    body = apply("mul", Load("a", (i, j), "f32"), Load("x", (j,), "f32"))
    op = Op("y", ("i", "j"), (Affine.param("m"), Affine(4)), "y", (i,), body, "+")
    spec = Spec("matvec", (a, x, y), (op,), ("a", "x"), ("y",))
    assert count_operations(spec, {"m": 10}) == 2 * 4 * 10
    assert count_operations(spec, {"m": 0}) == 0


# ---- the log
def test_phases_are_logged_with_their_times_and_quiet_by_default(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / "cache"))
    with caplog.at_level(logging.DEBUG, "polyq"):
        polyq.build(build_programs.scale())
    for phase in ("certificate: ", "emit: ", "compile: ", "waiting for the compiler: "):
        assert phase in caplog.text
    assert " ms" in caplog.text
    code = (
        f"import sys; sys.path.insert(0, {str(build_programs.__file__).rpartition('/')[0]!r})\n"
        "import build_programs, numpy, polyq.build; build_programs.install()\n"
        "polyq.build(build_programs.scale())(numpy.ones((4, 4), 'f4')[::2])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_copies_of_arguments_are_in_the_log(scale, caplog):
    with caplog.at_level(logging.INFO, "polyq"):
        scale(np.zeros((2, 8), np.float32)[:, ::2])
    assert "x: strides (32, 8) of shape (2, 4) copied, 32 bytes" in caplog.text


def test_a_kernel_may_be_built_in_a_thread_and_called_in_another(scale):
    results = []
    worker = threading.Thread(target=lambda: results.append(polyq.build(build_programs.scale())))
    worker.start()
    worker.join()
    np.testing.assert_array_equal(results[0](np.ones((1, 4), np.float32)), [[2, 2, 2, 2]])

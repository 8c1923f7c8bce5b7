"""polyq.tune: processes of candidates, whole searches that really measure, and executors."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import polyq
from polyq.affine.errors import ArgumentError, BuildError
from polyq.build import tuned
from polyq.schedule.ladder import MANY_ROWS, RUNGS
from polyq.tuning import Progress, Tuning
from polyq.tuning.problem import Problem, problems_of
from polyq.tuning.process import Limits, Workshop
from polyq.tuning.progress import line_on
from polyq.tuning.race import Failure
from polyq.tuning.result import Trial, Tuned
from polyq.tuning.tuner import run_job, tune_problem

MATMUL = "y[i, j] += a[i, k] * b[k, j]"


def matmul(rows=32):
    return polyq.parse(MATMUL, a=("f32", (rows, 32)), b=("f32", (32, 32)))


def problem(spec=None, sizes=None, constants=()):
    return problems_of(spec or matmul(), sizes, "reassoc", "native", 1, constants)[0]


def check(kernel, rows=32):
    a, b = np.random.default_rng(0).random((2, rows, 32)).astype("f4")
    b = np.ascontiguousarray(b[:32]) if rows >= 32 else np.random.default_rng(1).random((32, 32)).astype("f4")
    np.testing.assert_allclose(kernel(a=a, b=b), a.astype("f8") @ b, rtol=1e-5)


# ---- the process of a candidate
def test_a_process_builds_and_times(folder):
    shop = Workshop(problem(), cold=False)
    try:
        process = shop.start({})
        process.ready()
        (seconds,) = process.time()
        assert 0 < seconds < 1
        assert process.layout == ""
        refused = shop.start({"tile": "round"})
        with pytest.raises(Failure, match=r"^refused: ScheduleError: choices that cannot be made: tile: 'round'"):
            refused.ready()
    finally:
        shop.end()


def test_a_process_runs_this_polyq_wherever_it_is_started(folder, tmp_path, monkeypatch):
    (tmp_path / "polyq").mkdir()
    (tmp_path / "polyq" / "__init__.py").write_text("raise SystemExit('another polyq')\n")
    monkeypatch.chdir(tmp_path)
    shop = Workshop(problem(polyq.parse("y[i] = 2 * x[i]", x=("i32", (64,)))), cold=False)
    try:
        shop.start({}).ready()
    finally:
        shop.end()


@pytest.mark.parametrize(("code", "said"), [
    ("import os; os.kill(os.getpid(), 11)", r"^crashed: its process ended with signal SIGSEGV in building it$"),
    ("raise SystemExit('out of luck')", r"^crashed: its process ended with status 1 in building it \(out of luck\)$"),
    ("import time; time.sleep(60)", r"^hung: building it took more than 0.5 s, and its process was killed$"),
    ("import sys, time; sys.stdout.write('half'); sys.stdout.flush(); time.sleep(60)", r"^hung: building it took"),
])  # fmt: skip
def test_a_process_that_crashes_or_hangs_is_told_and_gone(monkeypatch, code, said):
    if "sleep" in code:
        monkeypatch.setattr(Limits, "build", 0.5)
    shop = Workshop(problem(), code=code)
    process = shop.start({})
    with pytest.raises(Failure, match=said):
        process.ready()
    assert process._process.poll() is not None
    shop.end()


def test_a_hanging_round_is_killed_with_what_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(Limits, "round", 1.0)
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "print('{\"layout\": \"\", \"first\": [1.0]}', flush=True)\n"
        f"p = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    shop = Workshop(problem(), code=code)
    process = shop.start({})
    process.ready()
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    with pytest.raises(Failure, match="hung: a round of calls took more than 1 s"):
        process.time()
    child = int(note.read_text())
    end = time.monotonic() + 10
    while time.monotonic() < end and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- a whole search, on times that are invented
class Fake:
    """A bench on which one option is twice as fast, another crashes and a third hangs."""

    def __init__(self, fast, crashes=None, hangs=None):
        self.fast, self.failures = fast, {crashes: "crashed: SIGSEGV", hangs: "hung: killed"}

    def start(self, choices):
        return FakeProcess(self, choices)

    def end(self):
        pass


class FakeProcess:
    layout = ""

    def __init__(self, bench, choices):
        self.bench, self.options = bench, set(choices.values())

    def ready(self):
        for option, reason in self.bench.failures.items():
            if option in self.options:
                raise Failure(reason)

    def time(self):
        return (0.5e-3 if self.bench.fast in self.options else 1e-3,)

    def end(self):
        pass


def test_what_is_found_is_kept_and_built(folder):
    spec = matmul()
    asked = problem(spec).asked
    from polyq.tuning.candidates import Drafts

    decision, options = next((d, o) for d, o in Drafts(asked)({})[1].offered.items() if d.startswith("tile of"))
    told = []
    found = tune_problem(problem(spec), 100.0, told.append, Fake(options[3], options[1], options[2]))
    assert found.choices == ((decision, options[3]),)
    assert (found.gain, found.confirmed, found.stopped) == (pytest.approx(2.0), True, "nothing was left to try")
    assert sorted(t.reason for t in found.failures) == ["crashed: SIGSEGV", "hung: killed"]
    assert Path(found.kept).parent == folder / "tuned"
    text = str(found)
    assert text.startswith("y: 2.00 times as fast as untuned, 500 us (1 thread; ")
    assert f"    tile of y.acc: {asked.renaming.text(options[3])}\n" in text
    assert f"    tile of y.acc: {asked.renaming.text(options[1])}: crashed: SIGSEGV" in text
    kernel = polyq.build(spec)
    assert dict(kernel.plan.choices) == {decision: options[3]}
    check(kernel)
    assert isinstance(told[-1], Progress)
    assert (told[-1].done, told[-1].gain, told[-1].tried) == (True, pytest.approx(2.0), len(found.trials))
    again = tune_problem(problem(spec), 100.0, bench=Fake(options[3]))  # found before, so tried first
    assert again.trials[0].decision == "all"
    assert again.choices == found.choices
    assert Tuned.decode(json.loads(json.dumps(found.encode()))) == found


def test_a_kernel_that_cannot_be_timed_is_an_error(folder):
    bench = Fake("")
    bench.start = lambda choices: FakeProcess(Fake("", crashes="plain"), {"any": "plain"})
    with pytest.raises(BuildError, match=r"^tune: y: the kernel itself cannot be timed: crashed: SIGSEGV"):
        tune_problem(problem(), 10.0, bench=bench)


# ---- what is tuned
def test_problems_are_the_ranges_that_sizes_lie_in():
    spec = polyq.parse(MATMUL, a=("f32", ("m", 32)), b=("f32", (32, 32)))
    sized = [(dict(p.sizes), [dict(q) for q in p.points]) for p in problems_of(spec, None, "reassoc", "native", 2, ())]
    assert sized == [({"m": 1}, [{"m": 1}]), ({"m": 16}, [{"m": 16}])]
    chosen = problems_of(spec, [{"m": 4}, {"m": 40}], "reassoc", "native", 2, ())
    assert [(dict(p.sizes), [dict(q) for q in p.points]) for p in chosen] == [({"m": 16}, [{"m": 4}, {"m": 40}])]
    assert len(problems_of(spec, None, "reassoc", "native", 2, ("b",))) == len((*RUNGS, MANY_ROWS))
    plain = polyq.parse("y[i] = 2 * x[i]", x=("i32", ("n",)))
    assert [p.title for p in problems_of(plain, None, "reassoc", "native", 2, ())] == ["y n=64"]
    for p in (*chosen, problem()):
        assert Problem.decode(json.loads(json.dumps(p.encode()))) == p


@pytest.mark.parametrize(("options", "said"), [
    ({"sizes": {"n": 3}}, r"^tune: y: expected no sizes, since it has no parameters; got n$"),
    ({"budget": -1}, r"^tune: budget=-1: expected seconds, a number of at least 0$"),
    ({"budget": True}, r"^tune: budget=True: expected seconds"),
    ({"constants": ("q",)}, r"constants: q: no input has that name"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(folder, options, said):
    with pytest.raises(ArgumentError, match=said):
        polyq.tune(matmul(), progress=False, **options)
    with pytest.raises(TypeError, match=r"tune: expected a Spec .* or several, got int"):
        polyq.tune([3])


def test_sizes_are_checked():
    spec = polyq.parse(MATMUL, a=("f32", ("m", 32)), b=("f32", (32, 32)))
    with pytest.raises(ArgumentError, match=r"^tune: y: expected m=\.\.\.; got none$"):
        polyq.tune(spec, sizes={})
    with pytest.raises(ArgumentError, match=r"^tune: y: m=0: expected whole numbers of at least 1$"):
        polyq.tune(spec, sizes=[{"m": 0}])


# ---- really measured
def test_a_small_spec_is_tuned_for_real(folder, capsys):
    spec = matmul()
    found = polyq.tune(spec, budget=6.0, threads=1)
    assert isinstance(found, Tuning)
    (one,) = found.ranges
    assert one.untuned > 0
    assert one.trials
    assert not [t for t in one.trials if t.verdict == "failed" and not t.reason.startswith("not confirmed")]
    assert "y: " in capsys.readouterr().err
    kernel = polyq.build(spec)
    assert kernel.tuned is not None
    assert kernel.tuned.choices == one.choices
    check(kernel)


def test_quiet_means_quiet(folder, capfd):
    polyq.tune(matmul(), budget=0, progress=False)
    assert capfd.readouterr() == ("", "")


INTERRUPTED = """
import os, signal, sys, threading, time
import polyq
spec = polyq.parse("y[i, j] += a[i, k] * b[k, j]", a=("f32", (32, 32)), b=("f32", (32, 32)))
def tell(progress):
    if progress.tried and not progress.done:
        signal.raise_signal(signal.SIGINT)
found = polyq.tune([spec, spec], budget=300, progress=tell)
print(found[0].interrupted, len(found[0].ranges[0].trials) > 0, found[0].ranges[0].stopped, found[1].missing)
print(polyq.build(spec).tuned is not None)
"""


def test_an_interrupt_ends_the_search_and_keeps_what_there_is(folder):
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=200)
    assert result.stderr == ""
    assert result.stdout == "True True it was interrupted ('y: it was interrupted',)\nTrue\n"


# ---- executors
def test_a_job_is_plain_data(folder):
    job = {"problem": problem().encode(), "budget": 0.0}
    assert json.loads(json.dumps(job)) == job
    result = run_job(pickle.loads(pickle.dumps(job)))
    assert json.loads(json.dumps(result)) is not None
    assert Tuned.decode(result["tuned"]).stopped == "the budget was spent"


def test_a_process_pool_tunes_side_by_side(folder):
    told = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = polyq.tune([matmul(), matmul(16)], budget=4.0, threads=1, executor=pool, progress=told.append)
    check_both(found, told)


def test_dask_tunes_side_by_side(folder):
    from distributed import Client, LocalCluster  # in the extra "test"

    told = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", local_directory=str(folder / "dask")) as cluster,
        Client(cluster) as client,
        client.get_executor() as pool,
    ):
        found = polyq.tune([matmul(), matmul(16)], budget=4.0, threads=1, executor=pool, progress=told.append)
    check_both(found, told)


def check_both(found, told):
    assert [len(f.ranges) for f in found] == [1, 1]
    assert all(f.ranges[0].trials and Path(f.ranges[0].kept).exists() for f in found), found
    assert [p.done for p in told] == [True, True]
    assert len(list(tuned.entries())) == 2
    for rows in (32, 16):
        kernel = polyq.build(matmul(rows))
        assert kernel.tuned is not None
        check(kernel, rows)


def test_a_job_that_fails_leaves_the_others(folder):
    class Broken(ProcessPoolExecutor):
        count = 0

        def submit(self, fn, /, *args, **kwargs):
            Broken.count += 1
            return super().submit(os._exit if Broken.count == 1 else fn, *((3,) if Broken.count == 1 else args), **kwargs)

    with Broken(1, mp_context=get_context("spawn")) as pool:
        found = polyq.tune([matmul()], budget=0, executor=pool, progress=False)
    assert found[0].ranges == ()
    assert found[0].missing[0].startswith("y: BrokenProcessPool: ")


# ---- the progress line
class Stream:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_the_line_is_written_again_in_a_terminal_and_once_a_gain_in_a_log():
    steps = [
        Progress("mm", 0, 0.0, 10.0), Progress("mm", 3, 5.0, 10.0), Progress("mm", 6, 8.0, 10.0, 1.25, "tile: 4 x 2"),
        Progress("mm", 6, 10.0, 10.0, 1.25, "tile: 4 x 2", True),
    ]  # fmt: skip
    terminal, log = Stream(), Stream()
    for step in steps:
        line_on(terminal, True, 90)(step)
    assert terminal.text.count("\r") == 4
    assert terminal.text.endswith("\n")
    assert terminal.text.count("\n") == 1
    assert "[#####.....] mm: 5 of 10 s, 3 tried, nothing better yet" in terminal.text
    tell = line_on(log, False)
    for step in steps:
        tell(step)
    assert log.text == (
        "[########..] mm: 8 of 10 s, 6 tried, best 1.25 times as fast: tile: 4 x 2\n"
        "[##########] mm: 10 of 10 s, 6 tried, best 1.25 times as fast: tile: 4 x 2\n"
    )


def test_a_trial_prints_what_came_of_it():
    assert str(Trial("tile", "a", "no gain", 1.02, 1.0, 1.05, 9)) == "tile: a: no gain, 1.020 of the best so far (1.000 to 1.050)"


# ---- the command line
def test_the_command_line_tunes_lists_and_carries_over(folder, tmp_path, capsys, monkeypatch):
    from polyq.__main__ import main

    file = tmp_path / "mm.txt"
    file.write_text("a: f32[m, 32]\nb: f32[32, 32]\n" + MATMUL)
    assert main(["tune", str(file), "--budget", "1", "--set", "m=4", "--threads", "1", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (out[:8], err) == ("mm m=4: ", "")
    assert main(["tune", "--export", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'found.json'}: 1 entries written\n"
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert main(["tune", "--list"]) == 0
    assert capsys.readouterr().out == ""
    for taken in (1, 0):
        assert main(["tune", "--merge", str(tmp_path / "found.json")]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / 'found.json'}: {taken} of 1 entries taken")
    assert main(["tune", "--list"]) == 0
    assert capsys.readouterr().out.startswith("mm m=4 on ")


@pytest.mark.parametrize(("arguments", "said"), [
    (["none.txt"], "python -m polyq: cannot read none.txt: No such file or directory"),
    (["--merge", "none.json"], "python -m polyq: merge: none.json cannot be read: No such file or directory"),
    (["none.txt", "--list"], "python -m polyq: none.txt: --list, --export and --merge are about all programs; leave the file out"),
    (["--set", "q=3"], "python -m polyq: tune: y: expected m=...; got q"),
])  # fmt: skip
def test_the_command_line_refuses_in_one_line(folder, capsys, arguments, said):
    from polyq.__main__ import main

    assert main(["tune", *arguments]) == 2
    assert capsys.readouterr().err == said + "\n"
    with pytest.raises(SystemExit):
        main(["tune", "--budget", "soon"])
    assert "'soon' is not a number of seconds" in capsys.readouterr().err

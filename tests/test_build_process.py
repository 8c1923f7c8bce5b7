"""Threads, forks, pickles: a kernel in all the places where Python runs it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build_programs
import numpy as np
import pytest

import polyq
import polyq.build
from polyq.build import threads as threads_module
from polyq.build.threads import cgroup_quota, default_threads

build_programs.install()
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def threaded():
    return polyq.build(build_programs.threaded(), threads=4)


X = np.arange(1001, dtype=np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [0, 1, 3, 1001])
def test_any_number_of_threads_gives_the_result(count, size):
    kernel = polyq.build(build_programs.threaded(), threads=count)
    np.testing.assert_array_equal(kernel(X[:size]), 3 * X[:size])


def parts():
    """``y[p]`` is the number of parts that the part ``p`` saw: all parts agree, and each runs once."""
    return build_programs.program(
        "parts", [], [("y", "i32", (256,))],
        """
static void one(void *argument, int part, int parts) { __atomic_fetch_add((int *)argument + part, parts, 5); }
//main
  for (int i = 0; i < 256; i++) ((int *)buffers[0])[i] = 0;
  runtime->run(one, buffers[0], threads);""",
    )  # fmt: skip


def test_every_part_runs_once_with_the_same_count():
    for threads in (1, 2, 5, 3, 16, 2):
        seen = polyq.build(parts(), threads=threads)()
        count = 1 if threads == 1 else 8 * threads  # more parts than threads: who is done takes what others have left
        np.testing.assert_array_equal(seen, [count] * count + [0] * (256 - count))
    kernel = polyq.build(parts(), threads=3)
    for pause in (0, 0.003, 0.0):  # awake, asleep, awake
        for _ in range(300 if not pause else 20):
            np.testing.assert_array_equal(kernel(), [24] * 24 + [0] * 232)
            time.sleep(pause)


def test_a_parallel_loop_inside_a_parallel_loop_runs_serially():
    nested = polyq.build(
        build_programs.program(
            "nested", [], [("y", "i32", (32,))],
            """
typedef struct { const polyq_runtime *runtime; int *y; } frame;
static void inner(void *argument, int part, int parts) { *(int *)argument += 10 * parts + part; }
static void outer(void *argument, int part, int parts) {
  frame *f = argument;
  (void)parts;
  f->runtime->run(inner, f->y + part, 4);
}
//main
  frame f = {runtime, buffers[0]};
  for (int i = 0; i < 32; i++) f.y[i] = 0;
  runtime->run(outer, &f, threads);""",
        ),
        threads=4,
    )  # fmt: skip
    np.testing.assert_array_equal(nested(), [10] * 32)


def test_eight_python_threads_on_one_kernel(threaded):
    inputs = [np.random.default_rng(i).standard_normal(200 + i, dtype=np.float32) for i in range(8)]
    wrong = []

    def work(x):
        for _ in range(200):
            if not np.array_equal(threaded(x), 3 * x):
                wrong.append(x)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, inputs))
    assert wrong == []


def test_the_gil_is_released():
    """The kernel waits for a flag that another Python thread sets while it runs."""
    waits = polyq.build(
        build_programs.program(
            "waits", [("flag", "i32", (2,))], [("y", "i32", (1,))],
            "  volatile int *flag = buffers[0];\n"
            "  ((volatile int *)buffers[0])[1] = 1;\n"
            "  for (long i = 0; i < 40000000000 && !flag[0]; i++) ;\n  *(int *)buffers[1] = flag[0];",
        )
    )  # fmt: skip
    flag = np.zeros(2, np.int32)

    def answer():
        while not flag[1]:
            time.sleep(0.001)
        flag[0] = 5

    helper = threading.Thread(target=answer)
    helper.start()
    assert waits(flag)[0] == 5
    helper.join()


def in_child(work, limit=20):
    """Run ``work`` in a forked child; return its exit status, or ``None`` if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_call_in_a_forked_child_after_a_threaded_call(threaded):
    right = lambda: np.array_equal(threaded(X), 3 * X)  # noqa: E731
    assert right()
    for _ in range(5):
        assert in_child(right) == 0
        assert right()
    assert in_child(lambda: right() and in_child(right) == 0 and right()) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_other_threads_compute_and_build(threaded):
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            threaded(X)

    def build():
        n = 0
        while not stop.is_set():
            n += 1
            polyq.build(build_programs.program("f", [], [("y", "i32", (1,))], f"  *(int *)buffers[0] = {n};"))

    helpers = [threading.Thread(target=f) for f in (compute, compute, build)]
    for helper in helpers:
        helper.start()
    try:
        fresh = build_programs.program("g", [], [("y", "i32", (1,))], f"  *(int *)buffers[0] = 7; /* {os.getpid()} */")
        for _ in range(5):
            assert in_child(lambda: np.array_equal(threaded(X), 3 * X) and polyq.build(fresh)()[0] == 7) == 0
    finally:
        stop.set()
        for helper in helpers:
            helper.join()


def test_a_fork_pool_and_a_spawn_pool_take_kernels(threaded):
    env = dict(os.environ)
    for method in ("fork", "spawn"):
        script = (
            f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
            "import multiprocessing, numpy, polyq.build, build_programs\n"
            "from concurrent.futures import ProcessPoolExecutor\n"
            "if __name__ == '__main__':\n"
            "    build_programs.install()\n"
            "    kernel = polyq.build(build_programs.threaded(), threads=2)\n"
            "    kernel(numpy.ones(5, 'f4'))\n"
            f"    with ProcessPoolExecutor(2, multiprocessing.get_context({method!r})) as pool:\n"
            "        made = pool.submit(polyq.build, build_programs.scale()).result(60)\n"
            "        print(made(numpy.ones((1, 4), 'f4')).sum(), pool.submit(kernel, numpy.ones(5, 'f4')).result(60).sum())\n"
        )
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == ["8.0", "15.0"], done.stderr


def test_pickles(threaded):
    x = np.arange(5, dtype=np.float32)
    again = pickle.loads(pickle.dumps(threaded))
    assert (again.threads, again.source, again.numerics) == (4, threaded.source, threaded.numerics)
    np.testing.assert_array_equal(again(x), 3 * x)
    bound = pickle.loads(pickle.dumps(polyq.build(build_programs.accumulate()).bind(x=x)))
    np.testing.assert_array_equal(bound(x), 2 * x)
    assert bound.nbytes == 20
    assert pickle.loads(pickle.dumps(polyq.build)) is polyq.build
    results = pickle.loads(pickle.dumps(polyq.build(build_programs.halves())(np.arange(3.0))))
    assert results.high.tolist() == [10, 11, 12]


def test_a_thread_with_a_small_stack_has_room_for_large_scratch():
    large = polyq.build(
        build_programs.program(
            "large", [], [("y", "f64", (16,))],
            """
typedef struct { const polyq_runtime *runtime; double *y; int failed; } frame;
static void one(void *argument, int part, int parts) {
  frame *f = argument;
  float *tile = f->runtime->scratch((size_t)256 * 11008 * 4);
  if (!tile) { f->failed = 1; return; }
  double sum = 0;
  for (int64_t i = 0; i < (int64_t)256 * 11008; i++) tile[i] = 1;
  for (int64_t i = 0; i < (int64_t)256 * 11008; i++) sum += tile[i];
  f->y[part] = sum * parts;
}
//main
  frame f = {runtime, buffers[0], 0};
  runtime->run(one, &f, threads);
  if (f.failed) return 1;""",
        ),
        threads=2,
    )  # fmt: skip
    results = []
    before = threading.stack_size(256 * 1024)
    try:
        worker = threading.Thread(target=lambda: results.append(large()))
        worker.start()
        worker.join()
    finally:
        threading.stack_size(before)
    np.testing.assert_array_equal(results[0], [16 * 256 * 11008.0] * 16)


def test_buffers_of_a_thread_grow_stay_and_are_apart():
    probe = polyq.build(
        build_programs.program(
            "probe", [("size", "i64", (1,))], [("y", "i64", (3,))],
            "  size_t size = (size_t)*(int64_t *)buffers[0]; int64_t *y = buffers[1];\n"
            "  y[0] = (int64_t)runtime->workspace(size); y[1] = (int64_t)runtime->scratch(size);\n"
            "  y[2] = (int64_t)runtime->workspace(1);",
        )
    )  # fmt: skip
    ask = lambda size: probe(np.array([size])).tolist()  # noqa: E731
    work, tile, again = ask(100_000)
    assert work % 64 == tile % 64 == 0
    assert abs(work - tile) >= 100_000
    assert work == again
    assert ask(50)[:2] == [work, tile]
    larger = ask(50_000_000)
    assert abs(larger[0] - larger[1]) >= 50_000_000
    others = []
    worker = threading.Thread(target=lambda: others.append(ask(1000)))
    worker.start()
    worker.join()
    assert not set(others[0]) & set(larger)
    assert all(ask(0))


HARNESS = """
#include "RUNTIME"
#include <stdio.h>
#include <string.h>
static void one(void *argument, int part, int parts) { ((int *)argument)[part] += parts; }
static void *caller(void *argument) {
  for (int i = 0; i < 1000; i++) {
    int mine[64] = {0}, sum = 0, threads = 1 + i % 6, parts = threads * PARTS_PER_THREAD;
    run(one, mine, threads);
    for (int j = 0; j < 64; j++) sum += mine[j];
    if (sum != parts * parts && sum != 1) abort(); /* all parts ran once, or the caller ran alone */
    memset(scratch((size_t)i * 100), 1, (size_t)i * 100);
    memset(workspace((size_t)i * 10), 1, (size_t)i * 10);
  }
  return argument;
}
int main(void) {
  pthread_t callers[3];
  for (int i = 0; i < 3; i++) pthread_create(callers + i, NULL, caller, NULL);
  for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
  puts("done");
  return 0;
}
"""


def test_the_pool_under_sanitizers(tmp_path):
    runtime = Path(polyq.build.__file__).with_name("runtime.c")
    (tmp_path / "harness.c").write_text(HARNESS.replace("RUNTIME", str(runtime)))
    options = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *options, *sanitize, "harness.c", "-o", "harness"], cwd=tmp_path, check=True)
    done = subprocess.run(["./harness"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_denormals_stay_after_a_build_and_a_call(threaded):
    def denormal():
        return np.float64(5e-324) != 0 and float(np.array([5e-324])[0] * 1.0) != 0.0 and np.float32(1e-45) * np.float32(1) != 0

    threaded(X)
    seen = []
    worker = threading.Thread(target=lambda: seen.append(denormal()))
    worker.start()
    worker.join()
    assert (denormal(), seen) == (True, [True])
    small = np.full(4, 1e-45, np.float32)
    np.testing.assert_array_equal(threaded(small), np.full(4, 4e-45, np.float32))
    assert threaded(small)[3] != 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_signals_go_to_the_threads_of_the_program(threaded):
    threaded(X)
    blocked = []
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
        blocked.append(int(status["SigBlk"].strip(), 16))
    assert sum(mask & (1 << (2 - 1)) != 0 for mask in blocked) >= 3  # SIGINT, in the workers


# ---- how many threads
def test_the_default_is_the_least_of_affinity_quota_and_openmp(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.setattr(threads_module, "cgroup_quota", lambda *_: None)
    assert default_threads() == 12
    monkeypatch.setenv("OMP_NUM_THREADS", "6,2")
    assert default_threads() == 6
    monkeypatch.setattr(threads_module, "cgroup_quota", lambda *_: 3)
    assert default_threads() == 3
    for text in ("0", "-1", "many", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert default_threads() == 3
    assert polyq.build(build_programs.scale()).threads == 3
    assert polyq.build(build_programs.scale(), threads=9).threads == 9


def test_quotas_of_both_cgroup_versions_at_any_level(tmp_path):
    root, membership = tmp_path / "fs", tmp_path / "cgroup"
    assert cgroup_quota(tmp_path / "none", root) is None
    (root / "a" / "b").mkdir(parents=True)
    membership.write_text("0::/a/b\n")
    assert cgroup_quota(membership, root) is None
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota(membership, root) is None
    (root / "a" / "cpu.max").write_text("350000 100000\n")
    assert cgroup_quota(membership, root) == 4
    (root / "cpu.max").write_text("200000 100000\n")
    assert cgroup_quota(membership, root) == 2
    old = tmp_path / "old"
    (old / "cpu,cpuacct" / "job").mkdir(parents=True)
    membership.write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    (old / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu,cpuacct" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(membership, old) is None
    (old / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("150000\n")
    assert cgroup_quota(membership, old) == 2


INTERRUPTED = """
import signal, threading
import numpy as np
import build_programs, polyq
build_programs.install()
kernel = polyq.build(build_programs.threaded(), threads=2)
x = np.ones(4_000_000, np.float32)
kernel(x)
main = threading.main_thread().ident
threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
try:
    while True:
        kernel(x)
except KeyboardInterrupt:
    pass
assert (kernel(x) == 3).all()
print("interrupted, and right afterwards")
"""


def test_an_interrupt_between_threaded_calls_leaves_the_pool_whole():
    code = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n{INTERRUPTED}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted, and right afterwards\n", "")

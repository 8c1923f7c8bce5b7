"""Ctrl-C: during each phase of a build, and inside a call; what it leaves behind works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: an interrupt as soon as a phase of the build has ended, then the same build again
BUILD = """
import logging, os, signal, sys
import numpy as np
import polyq

class Interrupt(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith({phase!r} + ": "):
            log.removeHandler(self)
            signal.raise_signal(signal.SIGINT)

log = logging.getLogger("polyq")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(Interrupt())
spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", x=("f32", ("m", 64)), w=("u8", (32, 64)))
try:
    polyq.build(spec)
except KeyboardInterrupt:
    print("interrupted")
left = [name for _, folders, _ in os.walk(os.environ["POLYQ_CACHE_DIR"]) for name in folders]
kernel = polyq.build(spec)
x, w = np.ones((3, 64), np.float32), np.full((32, 64), 2, np.uint8)
print(left, (kernel(x=x, w=w) == 128).all())
"""


def run(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
    env = {**os.environ, "POLYQ_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize("phase", ["schedule", "emit", "certificate", "waiting for the compiler"])
def test_a_build_can_be_interrupted_in_any_phase_and_done_again(tmp_path, phase):
    result = run(BUILD.format(phase=phase), tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n[] True\n", "")


#: a kernel that waits for a word which another thread sets, after it has sent the interrupt
CALL = """
import signal, threading, time
import numpy as np
import build_programs, polyq
build_programs.install()
waits = polyq.build(build_programs.program(
    "waits", [("flag", "i32", (2,))], [("y", "i32", (1,))],
    "  volatile int *flag = buffers[0];\\n  ((volatile int *)buffers[0])[1] = 1;\\n"
    "  for (long i = 0; i < 40000000000 && !flag[0]; i++) ;\\n  *(int *)buffers[1] = flag[0];",
))
flag, out, returned = np.zeros(2, np.int32), np.zeros(1, np.int32), []
main = threading.main_thread().ident

def interrupt():
    while not flag[1]:
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(0.05)
    returned.append(bool(out[0]))
    flag[0] = 5

helper = threading.Thread(target=interrupt)
helper.start()
try:
    waits(flag, out=out)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted, returned before the end:", returned[0], "result:", out[0])
helper.join()
print("again:", waits(flag)[0])
"""


def test_an_interrupt_inside_a_call_is_raised_when_the_call_ends_and_its_result_is_whole(tmp_path):
    result = run(CALL, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "interrupted, returned before the end: False result: 5\nagain: 5\n"


def test_the_command_line_says_that_it_was_interrupted(tmp_path):
    code = """
import signal, sys
import polyq, polyq.__main__ as command
build = polyq.build
def interrupted(*a, **k):
    kernel = build(*a, **k)
    signal.raise_signal(signal.SIGINT)
    return kernel
command.polyq.build = interrupted
open("program.txt", "w").write("x: f32[8]\\ny[i] = x[i]\\n")
sys.exit(command.main(["program.txt"]))
"""
    env = {**os.environ, "POLYQ_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(HERE.parent)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "python -m polyq: interrupted\n")
    assert result.returncode == 128 + signal.SIGINT

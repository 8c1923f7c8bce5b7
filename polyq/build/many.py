"""``polyq.build_many``: several kernels at once.

Scheduling and proofs run in Python, so that threads of one process would wait for each other: other processes build
into the cache, and this one takes the kernels from there. Few programs are built here, in threads; there the compiler
of one runs beside the proof of another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Spec
from polyq.build.building import build, plan_key
from polyq.build.cache import has_memo
from polyq.build.child import python_command
from polyq.build.compilation import discard_of
from polyq.build.kernel import Kernel
from polyq.build.threads import default_threads

__all__ = ["Progress", "build_many", "serve"]

#: programs from which on starting other processes pays
_MANY = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """One program is built: the ``done``-th of ``total``; ``seconds`` is how long that took."""

    done: int
    total: int
    name: str
    seconds: float

    def __str__(self) -> str:
        return f"[{self.done}/{self.total}] {self.name}: {self.seconds:.2f} s"


def build_many(
    programs: Iterable[Any],
    /,
    *,
    progress: bool | Callable[[Progress], None] = False,
    workers: int | None = None,
    **options: Any,
) -> tuple[Kernel, ...]:
    """Return the kernels of several specs and schedules, in their order.

    ``options`` are those of :func:`polyq.build`, the same for all. ``progress`` is ``True`` for a line on stderr after
    each, or a function that is called with a :class:`Progress`. ``workers`` is how many are built at a time, by
    default one for each core of this process.

    Raises what :func:`polyq.build` raises for the first program that fails; the message says which one that is, and
    the others are not finished.

    >>> from polyq.affine.notation import parse
    >>> texts = ["y[i] = 2 * x[i]", "y += x[i]"]
    >>> [k.outputs[0].shape for k in build_many([parse(t, x=("i32", 4)) for t in texts])]
    [(4,), ()]
    """
    given = tuple(programs)
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"build_many: workers={workers!r}: expected a whole number of at least 1, or None")
    count = min(workers or default_threads(), len(given))
    report = _reporter(progress, len(given))
    fresh = sum(not has_memo(plan_key(program, **options)) for program in given if isinstance(program, Spec))
    others = _Workers(count) if count > 1 and fresh >= _MANY else None
    try:
        return _all(given, options, max(1, count), report, others)
    finally:
        if others is not None:
            others.end()


def _reporter(progress: object, total: int) -> Callable[[Any, float], None]:
    lock, done = threading.Lock(), 0
    tell = cast("Callable[[Progress], None]", progress) if callable(progress) else _print if progress else None

    def report(program: Any, seconds: float) -> None:
        nonlocal done
        with lock:  # one line at a time, in the order of their numbers
            done += 1
            if tell is not None:
                tell(Progress(done, total, _name(program), seconds))

    return report


def _print(progress: Progress) -> None:
    print(progress, file=sys.stderr, flush=True)


def _name(program: Any) -> str:
    spec = program if isinstance(program, Spec) else getattr(program, "spec", None)
    return str(getattr(spec, "name", type(program).__qualname__))


def _all(
    given: Sequence[Any],
    options: dict[str, Any],
    count: int,
    report: Callable[[Any, float], None],
    others: _Workers | None,
) -> tuple[Kernel, ...]:
    stopped, threads = threading.Event(), set[int]()

    def one(program: Any) -> Kernel:
        threads.add(threading.get_ident())
        if stopped.is_set():
            raise _Stopped
        started = time.perf_counter()
        if others is not None:
            others.build(program, options)
            if stopped.is_set():
                raise _Stopped
        kernel = build(program, **options)
        report(program, time.perf_counter() - started)
        return kernel

    futures: list[Future[Kernel]] = []
    pool = ThreadPoolExecutor(count, thread_name_prefix="polyq build")
    try:
        futures += [pool.submit(one, program) for program in given]
        wait(futures, return_when=FIRST_EXCEPTION)
        _raise_first(given, futures)
        return tuple(future.result() for future in futures)
    finally:
        stopped.set()
        if others is not None:
            others.end()
        pool.shutdown(wait=False, cancel_futures=True)
        discard_of(threads)
        # one may have begun to compile just now; `wait` counts those that were cancelled as not done
        while wait([f for f in futures if not f.done()], timeout=0.1).not_done:
            discard_of(threads)


class _Stopped(Exception):
    """Another program failed before this one began."""


def _raise_first(given: Sequence[Any], futures: Sequence[Future[Kernel]]) -> None:
    for at, future in enumerate(futures):
        error = future.exception() if future.done() and not future.cancelled() else None
        if error is None or isinstance(error, _Stopped):
            continue
        if error.args and isinstance(error.args[0], str):
            head = f"build_many: program {at + 1} of {len(given)} ({_name(given[at])}): "
            error.args = (head + error.args[0], *error.args[1:])
        raise error


# ---- other processes
class _Workers:
    """Processes that build into the cache. What one of them cannot do is left to the caller, who says what is wrong."""

    def __init__(self, count: int) -> None:
        place = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._free = threading.Semaphore(count)
        self._lock = threading.Lock()
        self._ended = False
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, "PYTHONPATH": path}

    def build(self, program: Any, options: dict[str, Any]) -> None:
        """Have a program built, if a process can."""
        try:
            job = pickle.dumps((program, options))
        except Exception:  # whatever a user's class raises: then this process builds it
            return
        with self._free:
            process = self._take()
            if process is None:
                return
            try:
                _send(process.stdin, job)
                _receive(process.stdout)
            except (OSError, EOFError):  # it died; its place stays empty, and the next job starts another
                process.kill()
                return
            with self._lock:
                self._idle.append(process)

    def _take(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._ended:
                return None
            if self._idle:
                return self._idle.pop()
            process = subprocess.Popen(
                python_command("from polyq.build.many import serve; serve()"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # an interrupt from the terminal comes through this process
            )
            self._all.append(process)
            return process

    def end(self) -> None:
        """End all processes: an interrupt lets them end their compilers and sweep what they have begun."""
        with self._lock:
            self._ended = True
        for patience in (2.0, 3.0):  # again: an interrupt inside of a callback of C is lost
            for process in self._all:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            end = time.monotonic() + patience
            for process in self._all:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        for process in self._all:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def _send(stream: Any, data: bytes) -> None:
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: Any) -> bytes:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    size = struct.unpack("<q", head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve() -> None:
    """Build what comes on stdin until it ends: the other side of :class:`_Workers`."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed on the way is no reply
    try:
        while True:
            job = _receive(sys.stdin.buffer)
            # the caller builds again what fails here, and so raises the error itself
            with contextlib.suppress(Exception):
                program, options = pickle.loads(job)
                build(program, **options)
            _send(replies, b"")
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for thread in [t for t in threading.enumerate() if t is not threading.current_thread()]:
            discard_of({c for c in (thread.ident, threading.get_ident()) if c is not None})
            thread.join(2.0)  # it sweeps what its compiler left
        os._exit(0)

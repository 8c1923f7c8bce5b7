"""The C compiler: finding it, naming its version, running it.

polyq runs the compiler itself, once a kernel, with no build system between. The compiler is the one that ``CC`` names
(with its options, such as ``ccache gcc``), else the first of ``cc``, ``gcc`` and ``clang`` that is on the path, else
that of the Python package ``ziglang``.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from polyq.affine.errors import BuildError, CompilerNotFound

__all__ = ["OPTIMIZATION", "TIME_LIMIT", "Compiler", "Stop", "find_compiler"]

#: No option here changes what floating-point code means, and none links a start-up object that sets the CPU's flags.
#: What -O3 adds to these takes half of a compile more, and no kernel was faster with it (docs/decisions/build-time.md).
OPTIMIZATION = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-pthread", "-Wno-psabi")
_GCC = ("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops")
#: zig aims at this very CPU unless told otherwise (what a module needs, its own flags say), and may check for overflow
_ZIG = ("-mcpu=baseline", "-fno-sanitize=undefined")

#: Seconds after which a compiler is taken to hang.
TIME_LIMIT = 300.0

_CANDIDATES = ("cc", "gcc", "clang")

_log = logging.getLogger("polyq")


class Stop:
    """Ends a compiler from another thread: the one that runs, or the one that would start next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.asked = False

    def __call__(self) -> None:
        """End it, with all its children; whoever waits for it sees a failed compile."""
        with self._guard:
            self.asked = True
            if self._process is not None:
                _kill(self._process)

    def watch(self, process: subprocess.Popen[bytes] | None) -> None:
        """Say which process runs now."""
        with self._guard:
            self._process = process
            if self.asked and process is not None:
                _kill(process)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: ``command`` starts it, ``path`` is the file this runs, ``version`` the line it says of itself."""

    command: tuple[str, ...]
    path: str
    version: str

    @property
    def options(self) -> tuple[str, ...]:
        """The options that this compiler takes besides those that all take."""
        if self.is_zig:
            return _ZIG
        return () if "clang" in self.version else _GCC

    @property
    def is_zig(self) -> bool:
        """Whether this is ``zig cc``, as a program or as the Python package."""
        return self.command[-1] == "cc" and any("zig" in Path(word).name for word in self.command[:-1])

    def compile(
        self, folder: Path, source: str, library: str, flags: tuple[str, ...], stop: Stop | None = None
    ) -> None:
        """Compile ``folder/source`` into the shared library ``folder/library``.

        Raises :class:`BuildError` with the command and the compiler's output where it fails or takes more than
        :data:`TIME_LIMIT` seconds. An interrupt ends the compiler, with all its children.
        """
        command = (*self.command, *OPTIMIZATION, *self.options, *flags, source, "-o", library, "-lm")
        limit = TIME_LIMIT
        started = time.perf_counter()
        status, output = _run(command, folder, limit, stop or Stop())
        said = output.strip()
        if status != 0:
            what = f"took more than {limit:g} s and was ended" if status is None else f"failed with status {status}"
            raise BuildError(f"the C compiler {what}\n  command: {shlex.join(command)}\n  output: {said or '(none)'}")
        if not (folder / library).is_file():
            raise BuildError(
                f"the C compiler said that it succeeded, but wrote no library\n  command: {shlex.join(command)}\n"
                f"  output: {said or '(none)'}"
            )
        if said:
            _log.warning("the C compiler says about %s:\n%s", folder / source, said)
        _log.debug("compile: %.1f ms, %s", 1e3 * (time.perf_counter() - started), shlex.join(command))


def find_compiler() -> Compiler:
    """Return the compiler to use; :class:`CompilerNotFound` says what was looked for.

    The environment is read every time, since a notebook may change ``CC`` between two builds.
    """
    wanted = os.environ.get("CC", "").strip()
    if wanted:
        command = tuple(shlex.split(wanted))
        path = shutil.which(command[0])
        if path is None:
            raise CompilerNotFound(f"CC={wanted!r}: {command[0]!r} cannot be run; correct CC or unset it")
        _refuse_fast_math(command, wanted)
        return _describe(command, path, _stamp(path))
    for name in _CANDIDATES:
        path = shutil.which(name)
        if path is not None:
            return _describe((path,), path, _stamp(path))
    package = find_spec("ziglang")  # the extra polyq-loops[compiler]
    if package is not None and package.origin is not None:
        path = str(Path(package.origin).with_name("zig"))
        return _describe((path, "cc"), path, _stamp(path))
    raise CompilerNotFound(
        f"no C compiler: {', '.join(_CANDIDATES)} were not found on PATH={os.environ.get('PATH', '')!r}; "
        "install one (gcc or clang), or let CC name it; pip install ziglang brings one too"
    )


def _refuse_fast_math(command: tuple[str, ...], wanted: str) -> None:
    bad = [option for option in command[1:] if option in {"-Ofast", "-ffast-math", "-funsafe-math-optimizations"}]
    if bad:
        raise BuildError(
            f"CC={wanted!r}: {bad[0]} makes the whole process flush small numbers to zero, and results differ from "
            "the spec; leave it out (numerics= says what a kernel may change)"
        )


def _stamp(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _describe(command: tuple[str, ...], path: str, _stamp: tuple[int, int]) -> Compiler:
    """Ask the compiler for its version, once while its file stays the same. A failure shows when it compiles."""
    status, output = _run((*command, "--version"), Path.cwd(), 20.0, Stop())
    lines = output.strip().splitlines()
    return Compiler(command, path, lines[0] if status == 0 and lines else "unknown")


def _run(command: tuple[str, ...], folder: Path, limit: float, stop: Stop) -> tuple[int | None, str]:
    """Run a command in ``folder``; return its status (``None``: it took too long) and all it wrote."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children can be ended with it
        )
    except OSError as error:
        return 127, f"{command[0]}: {error}"
    try:
        stop.watch(process)
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None, _end(process)
    except BaseException:
        _end(process)
        raise
    finally:
        stop.watch(None)
    return process.returncode, output.decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _end(process: subprocess.Popen[bytes]) -> str:
    _kill(process)
    output, _ = process.communicate()
    return output.decode("utf-8", "replace")

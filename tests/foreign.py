"""Kernels for another CPU, or this one: many in one executable, run by an emulator if need be, called through files.

One executable holds many kernels beside a small ``main``, which reads a call from its standard input (which kernel,
threads, parameters, buffers) and writes the buffers back. Buffers end where an untouchable page begins.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from polyq.affine.arrays import storage_shape
from polyq.affine.dtypes import numpy_dtype
from polyq.affine.spec import Spec
from polyq.emit.module import Module

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

needs_emulator = pytest.mark.skipif(
    shutil.which(COMPILER) is None or EMULATOR is None, reason=f"{COMPILER} and qemu-aarch64 are not installed"
)

_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
typedef struct {
  void (*run)(void (*body)(void *, int, int), void *argument, int threads);
  void *(*workspace)(size_t);
  void *(*scratch)(size_t);
} polyq_runtime;
enum { PAGE = 4096 };
static int together;
static void *guarded(size_t size) {
  const size_t pages = (size + PAGE - 1) / PAGE * PAGE;
  char *start = mmap(0, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED || mprotect(start + pages, PAGE, PROT_NONE)) abort();
  memset(start, 0xa5, pages);
  return start + pages - size;
}
static void *aligned(size_t size) { return guarded((size + 63) / 64 * 64); }
static void run(void (*body)(void *, int, int), void *argument, int threads) {
  (void)threads;
  for (int t = 0; t < together; ++t) body(argument, t, together);
}
static int64_t number(void) {
  int64_t v;
  if (fread(&v, 8, 1, stdin) != 1) abort();
  return v;
}
@declarations@
int main(void) {
  static int (*const entries[])(const polyq_runtime *, void *const *, const int64_t *, int) = {@entries@};
  const polyq_runtime runtime = {run, aligned, aligned};
  const int64_t which = number();
  together = (int)number();
  int64_t params[64], sizes[64];
  void *buffers[64];
  const int64_t values = number();
  for (int i = 0; i < values; ++i) params[i] = number();
  const int64_t count = number();
  for (int i = 0; i < count; ++i) {
    buffers[i] = guarded((size_t)(sizes[i] = number()));
    if (sizes[i] && fread(buffers[i], (size_t)sizes[i], 1, stdin) != 1) abort();
  }
  if (entries[which](&runtime, buffers, params, together)) return 3;
  for (int i = 0; i < count; ++i)
    if (sizes[i] && fwrite(buffers[i], (size_t)sizes[i], 1, stdout) != 1) abort();
  return 0;
}
"""
_STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Foreign:
    """An executable with many kernels, and what runs it."""

    path: Path
    modules: tuple[Module, ...]
    runner: tuple[str, ...]

    def call(self, which: int, spec: Spec, given: Mapping[str, np.ndarray], params: Mapping[str, int], threads: int) -> dict[str, np.ndarray]:
        """Call a kernel with arrays in storage form; return all of its buffers."""
        module = self.modules[which]
        buffers: dict[str, np.ndarray] = {}
        for name in module.buffers:
            t = spec.tensor(name)
            empty = np.full(storage_shape(t, params), 0xA5, np.uint8).astype(numpy_dtype(t.dtype))
            buffers[name] = np.ascontiguousarray(given.get(name, empty))
        numbers = [which, threads, len(module.params), *(params[p] for p in module.params), len(buffers)]
        parts = [struct.pack(f"<{len(numbers)}q", *numbers)]
        for b in buffers.values():
            parts += [struct.pack("<q", b.nbytes), b.tobytes()]
        done = subprocess.run([*self.runner, str(self.path)], input=b"".join(parts), capture_output=True, check=False)
        assert done.returncode == 0, f"{module.entry}: status {done.returncode}: {done.stderr[-1000:]!r}"
        out: dict[str, np.ndarray] = {}
        at = 0
        for name, b in buffers.items():
            out[name] = np.frombuffer(done.stdout, b.dtype, b.size, at).reshape(b.shape)
            at += b.nbytes
        assert at == len(done.stdout)
        return out


def built(modules: Sequence[Module], folder: Path, arm: bool) -> Foreign:
    """Compile modules without warnings and link them, for the emulator with ``arm``, else for this machine."""
    compiler, runner = (COMPILER, (str(EMULATOR), "-cpu", "max")) if arm else ("gcc", ())

    def compiled(k: int) -> Path:
        source, at = modules[k].source, folder / f"f{k}.c"
        at.write_text(source)
        rename = f"-D{modules[k].entry}=f{k}"
        done = subprocess.run(
            [compiler, *_STRICT, "-O1", *modules[k].flags, rename, "-c", str(at), "-o", str(at.with_suffix(".o"))],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{modules[k].entry}: {done.stderr[:3000]}"
        return at.with_suffix(".o")

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, range(len(modules))))
    names = [f"f{k}" for k in range(len(modules))]
    head = "".join(f"int {n}(const polyq_runtime *, void *const *, const int64_t *, int);\n" for n in names)
    (folder / "main.c").write_text(_MAIN.replace("@declarations@", head).replace("@entries@", ", ".join(names)))
    path = folder / "kernels"
    static = ("-static",) if arm else ()  # the emulator has no libraries of that machine
    subprocess.run([compiler, *_STRICT, "-O1", *static, str(folder / "main.c"), *map(str, objects), "-lm", "-o", str(path)], check=True)
    return Foreign(path, tuple(modules), runner)

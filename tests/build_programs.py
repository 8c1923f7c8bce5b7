"""Programs with hand-written C, so that the build room is tested without the rooms before it.

A :class:`HandSchedule` carries its module; :func:`install` makes ``polyq.emit.generate`` hand that out.
"""

from __future__ import annotations

from dataclasses import dataclass

import polyq.emit
from polyq.affine.spec import Spec, Tensor
from polyq.emit.module import Module

FLAGS = ("-ffp-contract=off",)
HEAD = """
#include <stddef.h>
#include <stdint.h>
typedef struct {
  void (*run)(void (*body)(void *argument, int part, int parts), void *argument, int threads);
  void *(*workspace)(size_t bytes);
  void *(*scratch)(size_t bytes);
} polyq_runtime;
#define UNUSED (void)runtime, (void)buffers, (void)params, (void)threads
"""


@dataclass(frozen=True)
class HandCertificate:
    ok: bool = True

    def verify(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "written by hand\nsecond line"


@dataclass(frozen=True)
class HandSchedule:
    spec: Spec
    module: Module
    numerics: str = "reassoc"
    target: str = "c"
    ok: bool = True

    def certificate(self) -> HandCertificate:
        return HandCertificate(self.ok)

    def explain(self) -> str:
        return f"{self.spec.name}: one loop, by hand"


def install() -> None:
    before = getattr(polyq.emit, "generate", None)
    if getattr(before, "by_hand", False):
        return

    def generate(schedule: object) -> Module:
        return schedule.module if isinstance(schedule, HandSchedule) else before(schedule)

    prologue = polyq.emit.generate_prologue
    generate.by_hand = True  # type: ignore[attr-defined]
    polyq.emit.generate = generate  # type: ignore[attr-defined]
    polyq.emit.generate_prologue = lambda s: None if isinstance(s, HandSchedule) else prologue(s)  # type: ignore[attr-defined]


def program(name, inputs, outputs, body, params=(), flags=FLAGS, features=(), **options):
    """Return a schedule: tensors as ``(name, dtype, shape)``, and the C of the entry's body."""
    tensors = {t[0]: Tensor(*t) for t in (*inputs, *outputs)}
    spec = Spec(name, tuple(tensors.values()), (), tuple(t[0] for t in inputs), tuple(t[0] for t in outputs))
    head = "int entry(const polyq_runtime *runtime, void *const *buffers, const int64_t *params, int threads) {\n  UNUSED;\n"
    at = body.rpartition("//main\n")
    source = f"{HEAD}{at[0]}{head}{at[2]}\n  return 0;\n}}\n"
    return HandSchedule(spec, Module("entry", source, tuple(tensors), params, flags, features), **options)


def scale():
    """``y[m, j] = 2 * x[m, j]``, j < 4: one parameter, one input, one output."""
    return program(
        "scale", [("x", "f32", ("m", 4))], [("y", "f32", ("m", 4))],
        "  const float *x = buffers[0]; float *y = buffers[1];\n"
        "  for (int64_t i = 0; i < 4 * params[0]; i++) y[i] = 2 * x[i];", params=("m",),
    )  # fmt: skip


def shift():
    """``y[i] = x[i - 1]`` with ``y[0] = 0``: wrong if y is written while it is x."""
    return program(
        "shift", [("x", "f32", ("n",))], [("y", "f32", ("n",))],
        "  const float *x = buffers[0]; float *y = buffers[1];\n"
        "  for (int64_t i = 0; i < params[0]; i++) y[i] = i ? x[i - 1] : 0;", params=("n",),
    )  # fmt: skip


def accumulate():
    """``y[i] += x[i]``: an updated tensor."""
    return program(
        "accumulate", [("y", "f32", ("n",)), ("x", "f32", ("n",))], [("y", "f32", ("n",))],
        "  float *y = buffers[0]; const float *x = buffers[1];\n"
        "  for (int64_t i = 0; i < params[0]; i++) y[i] += x[i];", params=("n",),
    )  # fmt: skip


def halves():
    """Two outputs: ``low[i] = x[i]``, ``high[i] = x[i] + 10``."""
    return program(
        "halves", [("x", "f64", (3,))], [("low", "f64", (3,)), ("high", "f64", (3,))],
        "  const double *x = buffers[0]; double *low = buffers[1], *high = buffers[2];\n"
        "  for (int i = 0; i < 3; i++) { low[i] = x[i]; high[i] = x[i] + 10; }",
    )  # fmt: skip


def threaded():
    """``y[i] = 3 * x[i]`` by the pool, each part through scratch; workspace holds a copy of x."""
    return program(
        "threaded", [("x", "f32", ("n",))], [("y", "f32", ("n",))],
        """
#include <string.h>
typedef struct { const polyq_runtime *runtime; const float *x; float *y; int64_t n; int failed; } frame;
static void one(void *argument, int part, int parts) {
  frame *f = argument;
  int64_t from = f->n * part / parts, to = f->n * (part + 1) / parts;
  float *tile = f->runtime->scratch((size_t)(to - from) * 4);
  if (!tile || (uintptr_t)tile % 64) { f->failed = 1; return; }
  for (int64_t i = from; i < to; i++) tile[i - from] = 3 * f->x[i];
  memcpy(f->y + from, tile, (size_t)(to - from) * 4);
}
//main
  float *copy = runtime->workspace((size_t)params[0] * 4);
  if (!copy || (uintptr_t)copy % 64) return 1;
  memcpy(copy, buffers[0], (size_t)params[0] * 4);
  frame f = {runtime, copy, buffers[1], params[0], 0};
  runtime->run(one, &f, threads);
  if (f.failed) return 1;""", params=("n",),
    )  # fmt: skip


def five():
    """Five one-element arguments: ``y = a + 2 b + 3 c + 4 d``."""
    return program(
        "five", [(n, "f32", (1,)) for n in "abcd"], [("y", "f32", (1,))],
        "  const float *a = buffers[0], *b = buffers[1], *c = buffers[2], *d = buffers[3]; float *y = buffers[4];\n"
        "  y[0] = a[0] + 2 * b[0] + 3 * c[0] + 4 * d[0];",
    )  # fmt: skip

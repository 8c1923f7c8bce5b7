"""Every program, in the plain order and scheduled automatically, under both numerics, on one and on two threads."""

from __future__ import annotations

import ctypes
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from emitting import Built, Case, call, compile_all
from programs import PROGRAMS, Program

import polyq
from polyq.affine.arrays import collect, to_caller, to_storage
from polyq.emit import generate
from polyq.testing import assert_close

CHUNK = 14
CHUNKS = [PROGRAMS[i : i + CHUNK] for i in range(0, len(PROGRAMS), CHUNK)]


@dataclass(frozen=True)
class Printed:
    """A compiled module as something that can be called; two threads have to give what one gives."""

    built: Built
    library: Path
    spec: polyq.Spec
    numerics: str

    def __call__(self, **arguments):
        given = {t.name: to_storage(t, arguments[t.name])[0] for t in self.spec.inputs}
        library = ctypes.CDLL(str(self.library))
        one, two = (call(library, self.built, given, threads, at_end) for threads, at_end in ((1, True), (2, False)))
        for name, value in one.items():
            assert np.array_equal(value, two[name], equal_nan=value.dtype.kind == "f"), f"{name}: two threads give something else"
        return collect(self.spec, [to_caller(t, one[t.name]) for t in self.spec.outputs])


def _built(program: Program, number: int, numerics: str, kind: str) -> Built:
    spec = program.spec()
    schedule = getattr(polyq.Schedule, kind)(spec, numerics=numerics)
    module = generate(schedule)
    entry = f"k{number}"
    source = module.source.replace(f" {module.entry}(", f" {entry}(")
    assert source != module.source
    module = type(module)(entry, source, module.buffers, module.params, module.flags, module.features)
    case = Case(program.name, program.text, dict(program.tensors), params=program.params, change=lambda _: spec)
    return Built(case, module, schedule.machine.name, 0, numerics)


def _wrong(chunk: int, numerics: str, kind: str, folder: Path) -> list[str]:
    """Return what is wrong with some programs; runs in a process of its own."""
    programs, folder = CHUNKS[chunk], folder / str(chunk)
    folder.mkdir()
    built = [_built(p, i, numerics, kind) for i, p in enumerate(programs)]
    libraries = compile_all(built, folder)
    wrong: list[str] = []
    for i, (program, b) in enumerate(zip(programs, built, strict=True)):
        spec = program.spec()
        arrays = program.arrays(spec)
        try:
            assert_close(Printed(b, libraries[i], spec, numerics), **arrays, **program.free_params(spec))
        except AssertionError as error:
            wrong.append(f"{program.name}: {error}")
    return wrong


@pytest.mark.parametrize("kind", ["naive", "auto"])
@pytest.mark.parametrize("numerics", ["strict", "reassoc"])
def test_programs(numerics, kind, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        found = pool.map(partial(_wrong, numerics=numerics, kind=kind, folder=tmp_path), range(len(CHUNKS)))
        wrong = [line for lines in found for line in lines]
    assert not wrong, "\n".join(wrong)

"""Every program for CPUs that this one need not be: compiled without warnings, and run by an emulator where one can."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from foreign import COMPILER, Foreign, built, needs_emulator
from programs import PROGRAMS, QUANTIZED, Program

import polyq
from polyq.affine.arrays import collect, from_storage, shape_of, storage_shape, to_caller, to_storage
from polyq.emit import generate, generate_prologue
from polyq.schedule.target import Target
from polyq.testing import assert_close

HALVES = 2
#: each target takes one program in so many, another share each; all of them where POLYQ_ALL_PROGRAMS is set (.ci/long)
SHARE = 1 if os.environ.get("POLYQ_ALL_PROGRAMS") else 12


def programs_of(target: str, numerics: str) -> tuple[Program, ...]:
    """Return what is built: of all programs in float modes, of those with codes in modes of integers."""
    first = sum(f"{target} {numerics}".encode()) % SHARE
    return (PROGRAMS if numerics in ("reassoc", "strict") else QUANTIZED)[first::SHARE]


def made(program: Program, target: str, numerics: str) -> polyq.Schedule:
    """Schedule a program; under numerics of integers what stands beside the activations is bound."""
    spec = program.spec()
    constants = tuple(n for n in spec.input_names if n != "x") if numerics.startswith("i") else ()
    return polyq.Schedule.auto(spec, numerics=numerics, target=target, constants=constants)


@dataclass(frozen=True)
class Outside:
    """A kernel in another executable as something that can be called; two threads have to give what one gives."""

    foreign: Foreign
    which: int
    prologue: int | None
    schedule: polyq.Schedule
    spec: polyq.Spec
    numerics: str

    def __call__(self, **arguments):
        params = {p: arguments[p] for p in self.spec.params if p in arguments}
        given = {t.name: to_storage(t, arguments[t.name])[0] for t in self.spec.inputs}
        for t in self.spec.inputs:
            params |= {e: n for e, n in zip(t.shape, np.shape(arguments[t.name]), strict=True) if isinstance(e, str) and e.isidentifier()}
        whole = self.schedule.plan.spec
        if self.prologue is not None:
            given |= self.foreign.call(self.prologue, whole, given, params, 1)
        one, two = (self.foreign.call(self.which, whole, given, params, threads) for threads in (1, 2))
        for name, value in one.items():
            assert value.tobytes() == two[name].tobytes(), f"{name}: two threads give something else"
        stored = [one[t.name].reshape(storage_shape(t, params)) for t in self.spec.outputs]  # inside, dims may be joined
        whole_form = [from_storage(t, a, shape_of(t, params)) for t, a in zip(self.spec.outputs, stored, strict=True)]
        return collect(self.spec, [to_caller(t, np.array(a)) for t, a in zip(self.spec.outputs, whole_form, strict=True)])


def wrong(part: int, target: str, numerics: str, folder: Path) -> list[str]:
    """Return what is wrong with a part of the programs; runs in a process of its own."""
    folder = folder / str(part)
    folder.mkdir()
    mine = programs_of(target, numerics)[part::HALVES]
    schedules = [made(p, target, numerics) for p in mine]
    prologues = {k: m for k, s in enumerate(schedules) if (m := generate_prologue(s)) is not None}
    place = {k: len(mine) + i for i, k in enumerate(prologues)}
    foreign = built([*map(generate, schedules), *prologues.values()], folder, target.startswith("neon"))
    found: list[str] = []
    for k, (program, schedule) in enumerate(zip(mine, schedules, strict=True)):
        spec = program.spec()
        try:
            kernel = Outside(foreign, k, place.get(k), schedule, spec, numerics)
            assert_close(kernel, **program.arrays(spec), **program.free_params(spec))
        except AssertionError as error:
            found.append(f"{program.name}: {error}")
    return found


def check(target: str, numerics: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(HALVES, mp_context=multiprocessing.get_context("fork")) as pool:
        found = pool.map(partial(wrong, target=target, numerics=numerics, folder=tmp_path), range(HALVES))
        lines = [line for part in found for line in part]
    assert not lines, "\n".join(lines)


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize(("target", "numerics"), [("neon", "strict"), ("neon", "reassoc"), ("neon", "i16"), ("neondot", "i8")])
def test_neon_computes_what_the_interpreter_does(target, numerics, tmp_path):
    check(target, numerics, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize(("target", "numerics"), [("avx2", "i8"), ("sse", "i8"), ("avx2", "i16x2")])
def test_bound_codes_meet_integers_as_the_interpreter_has_it(target, numerics, tmp_path):
    if not Target.named(target).available():
        pytest.skip(f"this CPU has no {target}")
    check(target, numerics, tmp_path)


# ---- what only compiles here
COMPILERS = [c for c in ("gcc", "clang") if shutil.which(c)]
X86 = platform.machine() in {"x86_64", "AMD64"}


def compiled(sources: list[str], command: list[str], folder: Path) -> str:
    """Compile sources to assembly without warnings; return it, all together."""
    paths = [folder / f"k{i}.c" for i in range(len(sources))]
    for path, source in zip(paths, sources, strict=True):
        path.write_text(source)
    done = subprocess.run(
        [*command, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-S", *map(str, paths)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    return "".join(path.with_suffix(".s").read_text() for path in paths)


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="compilers for x86-64 are asked")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("target", "numerics"), [("avx512", "reassoc"), ("avx512", "i8"), ("avx512vnni", "i8"), ("avxvnni", "i16")]
)
def test_every_program_compiles_for_wider_vectors(target, numerics, compiler, tmp_path):
    modules = [generate(made(p, target, numerics)) for p in programs_of(target, numerics)]
    text = compiled([m.source for m in modules], [compiler, *modules[0].flags], tmp_path)
    assert ("%zmm" in text) == target.startswith("avx512")


@pytest.mark.slow
@pytest.mark.skipif("clang" not in COMPILERS, reason="clang is not installed")
@pytest.mark.parametrize(("target", "numerics"), [("neon", "reassoc"), ("neondot", "i8")])
def test_every_program_compiles_for_neon_with_clang(target, numerics, tmp_path):
    modules = [generate(made(p, target, numerics)) for p in programs_of(target, numerics)]
    command = ["clang", "--target=aarch64-linux-gnu", "-ffreestanding", *modules[0].flags]
    assert "fmla" in compiled([m.source for m in modules], command, tmp_path)


@pytest.mark.parametrize(
    ("target", "codes", "numerics", "instruction"),
    [
        ("avx512", "u4", "i8", "vpmaddubsw %zmm"),
        ("avx512", "u8", "i8", "vpmaddwd %zmm"),  # u8 times i8 would saturate
        ("avx512vnni", "u8", "i8", "vpdpbusd %zmm"),
        ("avx512vnni", "i8", "i8", "vpdpwssd %zmm"),  # takes no signed codes
        ("avx512vnni", "u4", "i16", "vpdpwssd %zmm"),
        ("avxvnni", "u4", "i8", "vpdpbusd %ymm"),
        ("avxvnni", "u8", "i16", "vpdpwssd %ymm"),
        ("neondot", "u4", "i8", "sdot v"),
        ("neondot", "i8", "i8", "sdot v"),
        ("neondot", "u8", "i8", "smull v"),  # takes no code above 127
        ("neon", "u4", "i16", "smull2 v"),
    ],
)
def test_the_instruction_of_each_target(target, codes, numerics, instruction, tmp_path):
    arm = target.startswith("neon")
    compilers = [COMPILER] if arm else ["gcc", "clang"] if X86 else []
    if arm and "clang" in COMPILERS:
        compilers.append("clang --target=aarch64-linux-gnu -ffreestanding")
    text = "y[m, n] += x[m, g, j] * ((f32(w[n, g, j]) - z[n, g]) * s[n, g])"
    spec = polyq.parse(text, w=(codes, (64, 2, 64)), z=("f32", (64, 2)), s=("f32", (64, 2)), x=("f32", ("m", 2, 64)))
    schedule = polyq.Schedule.auto(spec, numerics=numerics, target=target, constants=("w", "z", "s"), sizes={"m": 16})
    module = generate(schedule)
    asked = [c for c in compilers if shutil.which(c.split()[0])]
    if not asked:
        pytest.skip("no compiler for this target")
    for compiler in asked:
        assembly = compiled([module.source], [*compiler.split(), *module.flags], tmp_path)
        assert instruction in " ".join(assembly.split())
        assert "vpmulld" not in assembly

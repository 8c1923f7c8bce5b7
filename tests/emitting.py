"""Generated C, compiled in batches and called on arrays that lie against guard pages, in a child process.

A case is a spec with directives; its C for each target and number of lanes is compared with the interpreter. Threads are
played one after another, so that only the division of the work is tested here (races are the certificate's business).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import polyq
from polyq.affine.arrays import from_storage, shape_of, storage_shape
from polyq.affine.dtypes import info, numpy_dtype, value_range
from polyq.emit.module import Module
from polyq.emit.unit import c_module
from polyq.schedule.lower import lower
from polyq.schedule.schedule import Directive
from polyq.schedule.stages import Plan
from polyq.schedule.target import TARGETS, Target, detect_machine

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)

Step = Callable[[int], list[Directive]]


def directive(transform: str, **arguments: Any) -> Directive:
    return Directive(transform, tuple(arguments.items()))


def vector(op: str, axis: str) -> Step:
    """Split an axis by the number of lanes and make the inner part a vector."""
    return lambda lanes: [
        directive("split", op=op, axis=axis, factor=lanes, outer=f"{axis}b", inner=f"{axis}v"),
        directive("mark", op=op, axis=f"{axis}v", kind="vector"),
    ]


def step(transform: str, **arguments: Any) -> Step:
    return lambda lanes: [directive(transform, **arguments)]


@dataclass(frozen=True, eq=False)
class Case:
    """A spec and how it is scheduled; with ``ulps`` results may differ by that many units in the last place."""

    name: str
    text: str
    tensors: dict[str, tuple[str, Sequence[int | str]]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    params: dict[str, int] = field(default_factory=dict)
    ulps: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    change: Callable[[polyq.Spec], polyq.Spec] | None = None
    stream: frozenset[str] = frozenset()
    prefetch: dict[str, int] = field(default_factory=dict)

    def spec(self) -> polyq.Spec:
        return _spec(self)

    def plan(self, lanes: int) -> Plan:
        plan = Plan.of(self.spec())
        for made in self.steps:
            for d in made(lanes):
                plan = d.apply(plan)
        return plan


@lru_cache(maxsize=512)
def _spec(case: Case) -> polyq.Spec:
    spec = polyq.parse(case.text, **case.tensors)
    return case.change(spec) if case.change is not None else spec


@dataclass(frozen=True)
class Built:
    case: Case
    module: Module
    target: str
    lanes: int
    numerics: str

    @property
    def label(self) -> str:
        return f"{self.case.name} [{self.target}, {self.lanes} lanes, {self.numerics}]"


def runnable(target: str) -> bool:
    return set(TARGETS[target].features) <= detect_machine().features


def modules(cases: Iterable[Case], shapes: Sequence[tuple[str, int]], numerics: str) -> list[Built]:
    """Print every case for every (target, lanes), each under an entry name of its own."""
    built: list[Built] = []
    for case in cases:
        nests = {lanes: lower(case.plan(lanes)) for lanes in {lanes for _, lanes in shapes}}
        for target, lanes in shapes:
            named = replace(nests[lanes], name=f"k{len(built)}")
            module = c_module(named, Target.named(target), numerics, case.prefetch, case.stream)
            built.append(Built(case, module, target, lanes, numerics))
    return built


def compilers() -> list[str]:
    return [c for c in ("gcc", "clang") if shutil.which(c)]


def compile_all(built: Sequence[Built], folder: Path, options: Sequence[str] = ("-O1",), compiler: str = "cc") -> dict[int, Path]:
    """Compile modules, those of one set of flags into a few libraries; return each one's library by position."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, b in enumerate(built):
        groups.setdefault(b.module.flags, []).append(i)
    jobs = [(flags, which[i : i + 24]) for flags, which in groups.items() for i in range(0, len(which), 24)]
    with ThreadPoolExecutor(2) as pool:
        libraries = pool.map(lambda job: _compile([built[i] for i in job[1]], job[0], folder, options, compiler), jobs)
    return {i: library for (_, which), library in zip(jobs, libraries, strict=True) for i in which}


def _compile(group: Sequence[Built], flags: Sequence[str], folder: Path, options: Sequence[str], compiler: str) -> Path:
    stem = folder / f"{compiler}_{group[0].module.entry}"
    files = []
    for b in group:
        path = folder / f"{b.module.entry}.c"
        path.write_text(b.module.source)
        files.append(str(path))
    command = [compiler, "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", *options, *flags, *files]
    done = subprocess.run([*command, "-o", f"{stem}.so", "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{group[0].label} and following: {done.stderr[:3000]}"
    return Path(f"{stem}.so")


# ---- calls
def guarded(content: np.ndarray, at_end: bool, align: int = 1) -> np.ndarray:
    """Copy an array into memory of its own whose last (or first) byte borders on a page that nobody may touch."""
    size = content.nbytes
    pages = -(-size // PAGE) or 1
    base = _libc.mmap
    base.restype, base.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    start = base(None, (pages + 2) * PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    middle = ctypes.c_void_p(start + PAGE)
    assert _libc.mprotect(middle, ctypes.c_size_t(pages * PAGE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    begin = start + PAGE + ((pages * PAGE - size) // align * align if at_end else 0)
    view = np.frombuffer((ctypes.c_char * size).from_address(begin), np.uint8) if size else np.zeros(0, np.uint8)
    view = view.view(content.dtype).reshape(content.shape)
    view[...] = content
    return view


class Runtime:
    """The functions that a kernel is given: threads in turn, memory against guard pages."""

    def __init__(self, at_end: bool, threads: int = 1) -> None:
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        run = ctypes.CFUNCTYPE(None, body, ctypes.c_void_p, ctypes.c_int)
        memory = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
        self.held: list[np.ndarray] = []

        def run_all(function: Any, argument: int, _: int) -> None:  # small work too is divided here
            for thread in range(threads):
                function(argument, thread, threads)

        def allocate(size: int) -> int:
            self.held.append(guarded(np.full(size, 0xA5, np.uint8), at_end, 64))
            return self.held[-1].ctypes.data

        self.functions = (run(run_all), memory(allocate), memory(allocate))
        self.table = (ctypes.c_void_p * 3)(*[ctypes.cast(f, ctypes.c_void_p) for f in self.functions])


def call(library: ctypes.CDLL, built: Built, inputs: dict[str, np.ndarray], threads: int, at_end: bool) -> dict[str, np.ndarray]:
    """Call a kernel; return its buffers in logical form."""
    spec, params = built.case.spec(), built.case.params
    buffers: list[np.ndarray] = []
    for name in built.module.buffers:
        tensor = spec.tensor(name)
        shape = storage_shape(tensor, params)
        raw = inputs[name] if name in inputs else np.full(shape, 0xA5, np.uint8).astype(numpy_dtype(tensor.dtype))
        buffers.append(guarded(np.asarray(raw, order="C"), at_end))
    runtime = Runtime(at_end, threads)
    pointers = (ctypes.c_void_p * len(buffers))(*[b.ctypes.data for b in buffers])
    values = (ctypes.c_int64 * max(1, len(built.module.params)))(*[params[p] for p in built.module.params])
    status = getattr(library, built.module.entry)(runtime.table, pointers, values, threads)
    assert status == 0, f"{built.label}: status {status}"
    made = dict(zip(built.module.buffers, buffers, strict=True))
    return {t.name: np.array(from_storage(t, made[t.name], shape_of(t, params))) for t in spec.outputs}


def in_child(function: Callable[[], Any]) -> Any:
    """Run a function in a forked child, so that a stray access ends the child alone; return its result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(write, "wb") as file:
                try:
                    result: Any = (True, function())
                except BaseException as error:
                    result = (False, f"{type(error).__name__}: {error}")
                pickle.dump(result, file)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    assert data, f"the child ended by signal {status & 0x7F} (a byte outside an array was touched?)"
    fine, result = pickle.loads(data)
    assert fine, result
    return result


def inputs_of(case: Case, seed: int = 1) -> dict[str, np.ndarray]:
    """Return inputs in storage form: small whole numbers, so that float sums are exact in any order."""
    rng, spec = np.random.default_rng(seed), case.spec()
    made: dict[str, np.ndarray] = {}
    for t in spec.inputs:
        d, shape = info(t.dtype), storage_shape(t, case.params)
        if t.name in case.arrays:
            made[t.name] = case.arrays[t.name]
        elif d.packed:
            made[t.name] = rng.integers(0, 256, shape, dtype=np.uint8)
        elif d.kind == "b":
            made[t.name] = rng.integers(0, 2, shape).astype(np.bool_)
        elif t.dtype == "bf16":
            whole = rng.integers(-8, 9, shape).astype(np.float32)
            made[t.name] = (whole.view(np.uint32) >> 16).astype(np.uint16)
        elif d.kind == "f":
            made[t.name] = rng.integers(-8, 9, shape).astype(numpy_dtype(t.dtype))
        else:
            low, high = value_range(t.dtype)
            made[t.name] = rng.integers(max(low, -100), min(high, 200), shape, endpoint=True).astype(numpy_dtype(t.dtype))
    return made


def expected_of(case: Case, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the interpreter says, in logical form."""
    spec = case.spec()
    with np.errstate(all="ignore"):
        result = polyq.interpret(spec, **inputs, **case.params)
    values = list(result) if isinstance(result, tuple) else [result]
    return {
        t.name: np.asarray(from_storage(t, np.asarray(v).view(numpy_dtype(t.dtype)) if v.dtype.itemsize == numpy_dtype(t.dtype).itemsize else v,
                                        shape_of(t, case.params)))
        for t, v in zip(spec.outputs, values, strict=True)
    }  # fmt: skip


def difference(built: Built, name: str, got: np.ndarray, right: np.ndarray) -> str:
    """Return what is wrong with one output, or nothing."""
    got, right = np.asarray(got), np.asarray(right)
    if got.shape != right.shape:
        return f"{built.label}: {name}: shape {got.shape}, expected {right.shape}"
    with np.errstate(all="ignore"):
        same = (got == right) | ((got != got) & (right != right))
        if built.case.ulps and got.dtype.kind == "f" and built.numerics != "strict":
            same |= np.abs(got - right) <= built.case.ulps * np.spacing(np.abs(right).astype(got.dtype))
    if np.all(same):
        return ""
    at = tuple(np.argwhere(~same)[0])
    return f"{built.label}: {name}{list(map(int, at))}: {got[at]}, expected {right[at]}; {np.sum(~same)} of {same.size} are off"


def check(cases: Sequence[Case], folder: Path, shapes: Sequence[tuple[str, int]], numerics: str, **compiled: Any) -> int:
    """Compare all cases with the interpreter; return how many kernels ran."""
    built = modules(cases, shapes, numerics)
    libraries = compile_all(built, folder, **compiled)
    known = {c.name: (inputs := inputs_of(c), expected_of(c, inputs)) for c in cases}

    def run() -> list[str]:
        wrong: list[str] = []
        for i, b in enumerate(built):
            library = ctypes.CDLL(str(libraries[i]))
            inputs, expected = known[b.case.name]
            for threads, at_end in ((1, True), (2, False)):
                outputs = call(library, b, inputs, threads, at_end)
                wrong += [w for name, right in expected.items() if (w := difference(b, name, outputs[name], right))]
        return wrong

    wrong = in_child(run)
    assert not wrong, "\n".join(wrong[:20])
    return len(built)

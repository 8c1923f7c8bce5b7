"""``python -m polyq [FILE]``: build a program, run it on random data, check it against the oracle, time it.

Without FILE it is the group-quantized matmul of a language model's layer at one and at sixteen rows of activations.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import polyq
from polyq.affine.arrays import Array, from_storage, random_arrays, shape_of
from polyq.affine.bounds import Evaluation, error_bound
from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.expr import Affine, Param
from polyq.affine.names import meant
from polyq.affine.sample import Box, box_within, boxes, instances, part_of
from polyq.build.housekeeping import command
from polyq.command_line import Parser, names, positive, read_program, setting
from polyq.limits import Fma, read_bandwidth
from polyq.schedule.display import byte_size
from polyq.schedule.evaluation import evaluation
from polyq.schedule.target import TARGETS
from polyq.tune_command import command as tune_command

if TYPE_CHECKING:
    from polyq.affine.spec import Spec
    from polyq.build.kernel import Kernel

DEFAULT_SIZE = 64
#: the oracle takes about a second for so many instances; above, it computes samples
MOST_INSTANCES = 1 << 27
SAMPLES, SAMPLE_CELLS = 6, 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its status.

    0: done and right, 1: outside the bound, 2: refused with one line that says why, 130: interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"cache": command, "tune": tune_command}  # a file of that name is ./cache
    chosen = commands.get(next(iter(arguments), ""))
    options = _parser().parse_args([] if chosen else arguments)
    try:
        return chosen(arguments[1:]) if chosen else _run(options)
    except UnicodeDecodeError as error:
        print(f"python -m polyq: {options.file} is no text in UTF-8: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m polyq: interrupted", file=sys.stderr)
        return 130  # as shells say it: 128 and the number of SIGINT
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (polyq.PolyqError, OSError, MemoryError) as error:
        print(f"python -m polyq: {_one_line(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m polyq", description=(__doc__ or "").partition(": ")[2])
    parser.epilog = (
        "python -m polyq cache: list or clean the kernels that are kept on disk; "
        "python -m polyq tune: find faster schedules by measuring, list, export or merge what was found"
    )
    program = "a program in index notation, or in MLIR (*.mlir); default: the flagship"
    parser.add_argument("file", nargs="?", metavar="FILE", help=program)
    parser.add_argument("--function", metavar="NAME", help="the function of an MLIR file that has several")
    parser.add_argument("--emit", choices=("schedule", "loops", "c"), help="print this and stop")
    parser.add_argument("--threads", type=positive, metavar="N", help="at most so many threads; default: all cores")
    parser.add_argument("--numerics", default="reassoc", help="strict, reassoc (default), i16, i16x2 or i8")
    parser.add_argument("--target", default="native", help=f"native (default), {', '.join(TARGETS)}")
    values = f"the value of a parameter; default {DEFAULT_SIZE}, m=1 and m=16 for the flagship"
    data = "an input's data; the others are random"
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", type=_input, help=data)
    kept = "write inputs and outputs of the run to this file; of several runs, each to one named like FILE-m16.npz"
    parser.add_argument("--save", metavar="FILE.npz", help=kept)
    bound = "inputs that stay the same between calls, packed once; default: the flagship's weights"
    parser.add_argument("--bind", metavar="NAME,...", type=names, help=bound)
    parser.add_argument("--set", action="append", default=[], metavar="P=N", type=setting, help=values)
    return parser


def _input(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (sign and name.strip() and value.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FILE.npy, such as w=weights.npy")
    return name.strip(), value.strip()


def _run(options: argparse.Namespace) -> int:
    if options.emit and options.save:
        raise polyq.ArgumentError(
            f"--save {options.save}: --emit prints and stops, and so there is nothing to write; leave one of them out"
        )
    text, spec = read_program(options.file, options.function)
    data = _given_data(spec, dict(options.input))
    runs = _parameter_values(spec, {**_sizes(spec, data), **dict(options.set)}, flagship=options.file is None)
    constants = options.bind if options.bind is not None else ("w", "z", "s") if options.file is None else ()
    if options.emit:
        print(_emitted(spec, options, constants))
        return 0
    kernel = polyq.build(
        spec, numerics=options.numerics, threads=options.threads, target=options.target, constants=constants
    )
    shown = {name: runs[0].get(name, DEFAULT_SIZE) for name in spec.params}
    schedule = str(kernel.at(**shown).schedule)
    print(f"polyq {_version()}\n\nprogram\n{_indent(text.strip())}\n\nschedule\n{_indent(schedule)}\n")
    print(repr(kernel))
    for note in spec.notes:
        print(f"  note         {note}")
    unset = [name for name in spec.params if name not in runs[0]]
    if unset:
        print(f"  note         {', '.join(unset)} not given: {DEFAULT_SIZE}; --set {unset[0]}=N changes it")
    right: list[bool] = []
    for run in runs:
        save = options.save if len(runs) == 1 or not options.save else _named_for(options.save, run)
        right.append(_one_run(kernel, {n: run.get(n, DEFAULT_SIZE) for n in spec.params}, data, save))
    return 0 if all(right) else 1


def _named_for(save: str, run: dict[str, int]) -> str:
    """Return the name of a run's file: ``run.npz`` is ``run-m16.npz`` at ``m = 16``."""
    path = Path(save)
    sizes = "".join(f"-{name}{value}" for name, value in run.items())
    return str(path.with_name(f"{path.stem}{sizes}{path.suffix}"))


def _parameter_values(spec: Spec, given: dict[str, int], *, flagship: bool) -> list[dict[str, int]]:
    """Return the parameter values of each run, as far as they are given."""
    unknown = sorted(set(given) - set(spec.params))
    if unknown:
        known = ", ".join(spec.params) or "none"
        hint = meant(unknown[0], spec.params)
        raise polyq.ArgumentError(
            f"--set {unknown[0]}: the program has no such parameter; its parameters: {known}{hint}"
        )
    return [{"m": 1}, {"m": 16}] if flagship and not given else [given]


def _given_data(spec: Spec, files: dict[str, str]) -> dict[str, Array]:
    """Return the arrays of ``--input``, each for an input of the program."""
    for name in files:
        if name not in spec.input_names:
            known = ", ".join(map(str, spec.inputs)) or "none"
            hint = meant(name, spec.input_names)
            raise polyq.ArgumentError(f"--input {name}: the program has no such input; its inputs: {known}{hint}")
    found: dict[str, Array] = {}
    for name, file in files.items():
        try:
            found[name] = np.load(file, allow_pickle=False)
        except ValueError as error:
            raise polyq.ArgumentError(f"--input {name}: {file} is no array in numpy's format: {error}") from None
    return found


def _sizes(spec: Spec, data: dict[str, Array]) -> dict[str, int]:
    """Return the parameters that the shapes of given arrays determine.

    An entry such as ``2*n + 2`` gives ``n``; a bare parameter counts before that. An array that fits no value is
    refused later, when all arrays are checked.
    """
    bare: dict[str, int] = {}
    solved: dict[str, int] = {}
    for name, array in data.items():
        tensor = spec.tensor(name)
        extents = tensor.extents[:-1] if info(tensor.dtype).packed and array.dtype == np.uint8 else tensor.extents
        for extent, size in zip(extents, array.shape, strict=False):
            param, value = _solved(extent, size)
            (bare if extent == Affine.param(param) else solved).setdefault(param, value)
    return {p: n for p, n in {**solved, **bare}.items() if p and n >= 0}


def _solved(extent: Affine, size: int) -> tuple[str, int]:
    """Return the parameter and its value where ``extent`` is linear in one, and an integer makes it ``size``."""
    if len(extent.terms) == 1 and isinstance(extent.terms[0][0], Param):
        param, factor = extent.terms[0][0].name, extent.terms[0][1]
        if (size - extent.const) % factor == 0:
            return param, (size - extent.const) // factor
    return "", -1


def _emitted(spec: Spec, options: argparse.Namespace, constants: tuple[str, ...]) -> str:
    from polyq.emit import generate
    from polyq.schedule import Schedule
    from polyq.schedule.ladder import ladder_of

    unknown = [name for name in constants if name not in spec.input_names]
    if unknown:
        hint, known = meant(unknown[0], spec.input_names), ", ".join(spec.input_names)
        raise polyq.ArgumentError(f"--bind {unknown[0]}: the program has no such input ({known}){hint}")
    ladder, given = ladder_of(spec, bool(options.bind)), dict(options.set)
    least = 1 if options.file is None else DEFAULT_SIZE
    sizes = None if ladder is None else ladder.sizes(ladder.rung(given.get(ladder.param, least)))
    schedule = Schedule.auto(
        spec, numerics=options.numerics, target=options.target, constants=constants, sizes=sizes
    )
    if options.emit == "schedule":
        return str(schedule)
    return str(schedule.nest) if options.emit == "loops" else generate(schedule).source.rstrip("\n")


def _one_run(kernel: Kernel, parameters: dict[str, int], data: dict[str, Array], save: str | None) -> bool:
    """Check and time the kernel at one set of sizes; return whether it is within its bound."""
    spec = kernel.spec
    arrays = {**random_arrays(spec, parameters), **data}
    sizes = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    source = f"{', '.join(data)} as given, random data for the others" if data else "random data"
    print(f"\nrun on {source}{', ' + sizes if sizes else ''}")
    results, right = _checked(kernel, parameters, arrays)
    if save is not None:
        found: dict[str, Any] = {**arrays, **dict(zip(spec.output_names, results, strict=True))}
        try:
            np.savez(save, **found)
        except OSError as error:
            raise polyq.ArgumentError(f"--save: cannot write {save}: {error.strerror}") from None
    result = kernel.benchmark(**cast("dict[str, Any]", parameters))
    low, high = result.spread
    threads = f"{result.threads} thread{'s' * (result.threads != 1)}"
    print(f"  time         {result.median * 1e3:.3f} ms ({low * 1e3:.3f} to {high * 1e3:.3f}), {threads}, cold data")
    limit = _read_limit(result.threads)
    fraction = f"{result.bytes / result.median / limit:.2f} of the {limit / 1e9:.1f} GB/s that {threads} read here"
    print(f"  memory       {byte_size(result.bytes)}, {result.gbps:.2f} GB/s, {fraction}")
    if result.operations:
        peak = _arithmetic_limit(result.threads)
        rate = result.operations / result.median
        share = f"{rate / peak:.2f} of the {peak / 1e9:.0f} GFLOP/s of f32 multiply-adds here"
        print(f"  arithmetic   {rate / 1e9:.3g} GFLOP/s, {share}")
    return right


def _checked(kernel: Kernel, parameters: dict[str, int], arrays: dict[str, Any]) -> tuple[tuple[Array, ...], bool]:
    """Compare the kernel's results with the oracle's, whole or, where that would take long, in samples; print how."""
    spec = kernel.spec
    given: dict[str, Any] = {**arrays, **parameters}
    parts: list[dict[str, Box]] = [{}]
    if instances(spec, parameters) > MOST_INSTANCES:
        chosen = [boxes(t, parameters, SAMPLE_CELLS, SAMPLES) for t in spec.outputs]
        parts = [dict(zip(spec.output_names, one, strict=True)) for one in zip(*chosen, strict=True)]
    # the oracle runs first: a kernel that wrote into its inputs must not change what it is compared with
    form = evaluation(kernel.at(**parameters).schedule)
    oracle: list[tuple[list[Array], Sequence[Array]]] = []
    for part in parts:
        small = part_of(spec, part, parameters) if part else spec
        expected = _logical(spec, polyq.interpret(small, **given), parameters)
        if kernel.numerics == "strict":
            bounds: Sequence[Array] = [np.zeros(y.shape) for y in expected]
        else:
            # the same kind of bound as for the whole: of the part of what the schedule computes, in its order
            inside = _boxes_within(spec, form.spec, part, parameters)
            of_part = Evaluation(part_of(form.spec, inside, parameters), form.sums) if part else form
            bounds = error_bound(small, given, expected, evaluation=of_part)
        oracle.append((expected, bounds))
    held = {name: given[name] for name in kernel.constants}
    call = kernel.bind(**held) if held else kernel
    results = _tuple(call(**{name: value for name, value in given.items() if name not in held}))
    right = True
    for k, (tensor, y) in enumerate(zip(spec.outputs, _logical(spec, results, parameters), strict=True)):
        cut = [tuple(slice(*ends) for ends in part.get(tensor.name, ())) for part in parts]
        mine = [np.ravel(y[c]) for c in cut]
        theirs = [np.ravel(expected[k][c]) for c, (expected, _) in zip(cut, oracle, strict=True)]
        allowed = [np.ravel(bound[k][c]) for c, (_, bound) in zip(cut, oracle, strict=True)]
        right = (
            _report(tensor.name, np.concatenate(mine), np.concatenate(theirs), np.concatenate(allowed), y.size)
            and right
        )
    return results, right


def _boxes_within(spec: Spec, evaluated: Spec, part: dict[str, Box], parameters: dict[str, int]) -> dict[str, Box]:
    """Return boxes of a program's outputs as those of what a schedule evaluates, which may have other shapes."""
    found: dict[str, Box] = {}
    for t, other in zip(spec.outputs, evaluated.outputs, strict=True):
        if t.name in part:
            found[other.name] = box_within(part[t.name], shape_of(t, parameters), shape_of(other, parameters))
    return found


def _report(name: str, y: Array, reference: Array, bound: Array, size: int) -> bool:
    """Print the error of one output; return whether it is within the bound."""
    error, allowed, within = _error(y, reference, bound)
    verdict = "within the bound" if within else "OUTSIDE THE BOUND"
    part = f"{error / (_largest(reference) or 1.0):.1e} of the largest value"
    sample = "" if y.size >= size else f" ({y.size} of {size} cells were checked)"
    print(f"  {name:<12} error {error:.2g} at most ({part}), bound {allowed:.2g} there: {verdict}{sample}")
    return within


@lru_cache(maxsize=8)
def _arithmetic_limit(threads: int) -> float:
    """Return how many f32 operations a second registers allow."""
    fma = Fma(1e9, threads)
    return fma.flop / min(fma.seconds() for _ in range(5))


@lru_cache(maxsize=8)
def _read_limit(threads: int) -> float:
    return read_bandwidth(threads)


def _error(y: Array, reference: Array, bound: Array) -> tuple[float, float, bool]:
    """Return the largest error, the bound at that element, and whether all are within theirs (inf: none is stated)."""
    a, b = np.asarray(y, np.float64), np.asarray(reference, np.float64)
    if not a.size:
        return 0.0, 0.0, True
    with np.errstate(invalid="ignore"):  # inf - inf
        difference = np.abs(a - b)
    error: Any = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, difference).ravel()
    allowed: Any = np.broadcast_to(np.asarray(bound, np.float64), a.shape).ravel()
    at = int(np.argmax(error))
    return float(error[at]), float(allowed[at]), bool(np.all((error <= allowed) | np.isinf(allowed)))


def _largest(values: Array) -> float:
    magnitudes: Any = np.abs(np.asarray(values, np.float64))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def _logical(spec: Spec, values: object, parameters: dict[str, int]) -> list[Array]:
    """Return outputs with one element an entry, so that packed and bf16 results compare by value."""
    found: list[Array] = []
    for tensor, value in zip(spec.outputs, _tuple(values), strict=True):
        storage: Any = value
        if tensor.dtype == "bf16":
            storage = storage.view(numpy_dtype("bf16"))
        found.append(from_storage(tensor, storage, shape_of(tensor, parameters)))
    return found


def _tuple(value: object) -> tuple[Array, ...]:
    return cast("tuple[Array, ...]", value) if isinstance(value, tuple) else (np.asarray(value),)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _version() -> str:
    try:
        return metadata.version("polyq-loops")
    except metadata.PackageNotFoundError:
        return "from its source tree"


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"cannot read {error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

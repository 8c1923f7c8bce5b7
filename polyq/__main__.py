"""``python -m polyq [FILE]``: build a program, run it on random data, check it against the oracle, time it.

Without FILE it is the group-quantized matmul of a language model's layer at one and at sixteen rows of activations.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

import polyq
from polyq.affine.arrays import random_arrays
from polyq.limits import read_bandwidth

FLAGSHIP = """\
w: u8[4096, 32, 128]
z: f32[4096, 32]
s: f32[4096, 32]
x: f32[m, 32, 128]
d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
y[m, n] += x[m, g, j] * d[n, g, j]
"""
DEFAULT_SIZE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0: done and right, 1: outside the bound, 2: refused with one line that says why."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (polyq.PolyqError, OSError, UnicodeDecodeError) as error:
        print(f"python -m polyq: {_one_line(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polyq", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="?", metavar="FILE", help="a program in index notation; default: the flagship")
    parser.add_argument("--emit", choices=("schedule", "loops", "c"), help="print this and stop")
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="at most so many threads; default: all there are"
    )
    parser.add_argument("--numerics", default="reassoc", help="strict or reassoc (default)")
    parser.add_argument("--target", default="native", help="native (default), c, sse, avx2, avx512, neon")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="P=N",
        type=_setting,
        dest="settings",
        help=f"the value of a parameter; default {DEFAULT_SIZE}, m=1 and m=16 for the flagship",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _setting(text: str) -> tuple[str, int]:
    name, sign, value = text.partition("=")
    if not (sign and name.strip() and value.strip().isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=NUMBER, such as m=16")
    return name.strip(), int(value)


def _run(options: argparse.Namespace) -> int:
    text = FLAGSHIP if options.file is None else Path(options.file).read_text(encoding="utf-8")
    spec = polyq.parse(text)
    runs = _parameter_values(spec, dict(options.settings), flagship=options.file is None)
    if options.emit:
        print(_emitted(spec, options))
        return 0
    started = time.perf_counter()
    kernel = polyq.build(spec, numerics=options.numerics, threads=options.threads, target=options.target)
    built = time.perf_counter() - started
    print(f"polyq {_version()}\n\n{text.strip()}\n\nschedule\n{_indent(str(kernel.schedule))}\n\nkernel")
    print(_indent(f"{kernel}\nnumerics  {options.numerics}\nbuild     {built:.2f} s"))
    for note in spec.notes:
        print(f"  note      {note}")
    right = True
    for parameters in runs:
        right = _one_run(kernel, parameters) and right
    return 0 if right else 1


def _parameter_values(spec: polyq.Spec, given: dict[str, int], *, flagship: bool) -> list[dict[str, int]]:
    """Return the parameter values of each run."""
    unknown = sorted(set(given) - set(spec.params))
    if unknown:
        known = ", ".join(spec.params) or "none"
        raise polyq.ArgumentError(f"--set {unknown[0]}: the program has no such parameter; its parameters: {known}")
    if flagship and not given:
        return [{"m": 1}, {"m": 16}]
    return [{name: given.get(name, DEFAULT_SIZE) for name in spec.params}]


def _emitted(spec: polyq.Spec, options: argparse.Namespace) -> str:
    from polyq.emit import generate
    from polyq.schedule import lower

    schedule = polyq.Schedule.auto(spec, numerics=options.numerics, target=options.target)
    if options.emit == "schedule":
        return str(schedule)
    return str(lower(schedule)) if options.emit == "loops" else generate(schedule).source


def _one_run(kernel: polyq.Kernel, parameters: dict[str, int]) -> bool:
    """Check and time the kernel at one set of sizes; return whether it is within its bound."""
    spec = kernel.spec
    arrays = random_arrays(spec, parameters)
    sizes = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    print(f"\nrun{' with ' + sizes if sizes else ''}")
    got = _tuple(kernel(**arrays, **parameters))
    expected = _tuple(polyq.interpret(spec, **arrays, **parameters))
    right = True
    bounds = _tuple(kernel.error_bound(**arrays, **parameters))
    for tensor, y, reference, bound in zip(spec.outputs, got, expected, bounds, strict=True):
        error, allowed, within = _error(y, reference, bound)
        right = right and within
        verdict = "within" if within else "OUTSIDE"
        print(f"  {tensor.name:<8}  error {error:.2g} at most, bound {allowed:.2g} there: {verdict}")
    result = kernel.benchmark(**parameters)
    print(f"  time      {result.median * 1e3:.3f} ms, the median with cold buffers on {result.threads} threads")
    rate = result.bytes / result.median
    limit = read_bandwidth(result.threads)
    print(f"  memory    {rate / 1e9:.2f} GB/s, {rate / limit:.2f} of the {limit / 1e9:.2f} GB/s that they read here")
    return right


def _error(y: np.ndarray, reference: np.ndarray, bound: np.ndarray) -> tuple[float, float, bool]:
    """Return the largest error, the bound at that element, and whether all are within their bounds."""
    a, b = np.asarray(y, np.float64), np.asarray(reference, np.float64)
    if not a.size:
        return 0.0, 0.0, True
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.where(same, 0.0, np.abs(a - b))
    at = int(np.argmax(error))
    allowed = np.broadcast_to(np.asarray(bound, np.float64), error.shape)
    return float(error.flat[at]), float(allowed.flat[at]), bool(np.all(error <= allowed))


def _tuple(value: object) -> tuple[np.ndarray, ...]:
    return tuple(value) if isinstance(value, tuple) else (np.asarray(value),)


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
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())

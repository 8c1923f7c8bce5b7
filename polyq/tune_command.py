"""``python -m polyq tune``: tune a program, or list, export and merge what was found."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from polyq.affine.errors import ArgumentError
from polyq.command_line import Parser, names, positive, read_program, setting

__all__ = ["command"]


def _parser() -> argparse.ArgumentParser:
    about = "Find faster schedules of a program by measuring; what polyq builds later follows them."
    parser = Parser(prog="python -m polyq tune", description=about)
    program = "a program in index notation, or in MLIR (*.mlir); default: the flagship"
    parser.add_argument("file", nargs="?", metavar="FILE", help=program)
    parser.add_argument("--function", metavar="NAME", help="the function of an MLIR file that has several")
    budget = "seconds for each range of sizes; default 60"
    parser.add_argument("--budget", type=_seconds, default=60.0, metavar="S", help=budget)
    size = "tune at this size; default: at a typical one of each range"
    parser.add_argument("--set", action="append", default=[], metavar="P=N", type=setting, help=size)
    bound = "inputs that will be bound; default: none, the flagship's weights"
    parser.add_argument("--bind", metavar="NAME,...", type=names, help=bound)
    parser.add_argument("--numerics", default="reassoc", help="strict, reassoc (default), i16, i16x2 or i8")
    parser.add_argument("--target", default="native", help="native (default), c, sse, avx2, avx512, neon")
    parser.add_argument("--threads", type=positive, metavar="N", help="at most so many threads; default: all cores")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    database = parser.add_mutually_exclusive_group()
    database.add_argument("--list", action="store_true", help="say what was found so far, and stop")
    database.add_argument("--export", metavar="FILE.json", help="write what was found to this file, and stop")
    taken = "take from such a file what is newer than here, and stop"
    database.add_argument("--merge", metavar="FILE.json", help=taken)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def command(arguments: Sequence[str]) -> int:
    """Run ``python -m polyq tune``; the status is 130 after an interrupt, whose best so far is kept all the same."""
    options = _parser().parse_args(arguments)
    if options.list or options.export or options.merge:
        _database(options)
        return 0
    from polyq.tuning import tune

    _, spec = read_program(options.file, options.function)
    bound = options.bind if options.bind is not None else ("w", "z", "s") if options.file is None else ()
    found = tune(
        spec, budget=options.budget, sizes=dict(options.set) or None, numerics=options.numerics, target=options.target,
        threads=options.threads, constants=bound, progress=not options.quiet,
    )  # fmt: skip
    print(found)
    return 130 if found.interrupted else 0


def _database(options: argparse.Namespace) -> None:
    from polyq.build import tuned

    if options.file is not None:
        raise ArgumentError(f"{options.file}: --list, --export and --merge are about all programs; leave the file out")
    if options.export:
        print(f"{options.export}: {tuned.export(options.export)} entries written")
    elif options.merge:
        taken, given = tuned.merge(options.merge)
        print(f"{options.merge}: {taken} of {given} entries taken, the others are no newer than those here")
    else:
        for entry in tuned.entries():
            print(f"{entry.title} on {entry.cpu} ({entry.target}): {entry}")

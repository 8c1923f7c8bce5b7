"""What the command lines share: a parser whose errors are one line, kinds of options, and reading a program."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import polyq
from polyq.affine.places import placed
from polyq.affine.spec import Spec

__all__ = ["FLAGSHIP", "Parser", "names", "positive", "read_program", "setting"]

FLAGSHIP = """\
w: u8[4096, 32, 128]
z: f32[4096, 32]
s: f32[4096, 32]
x: f32[m, 32, 128]
d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
y[m, n] += x[m, g, j] * d[n, g, j]
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others here."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def positive(text: str) -> int:
    """Return a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def setting(text: str) -> tuple[str, int]:
    """Return a parameter and its size from ``NAME=NUMBER``."""
    name, sign, value = text.partition("=")
    if sign and re.fullmatch(r"\s*-\d+\s*", value):
        raise argparse.ArgumentTypeError(f"{text!r}: a size is at least 0")
    if not (sign and name.strip() and value.strip().isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=NUMBER, such as m=16")
    return name.strip(), int(value)


def names(text: str) -> tuple[str, ...]:
    """Return names that stand between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_program(file: str | None, function: str | None = None) -> tuple[str, Spec]:
    """Return the text of a program and its spec: of a file in index notation or MLIR, by default the flagship."""
    if file is None:
        return FLAGSHIP, polyq.parse(FLAGSHIP)
    path = Path(file)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".mlir":
        return text, polyq.from_mlir(path, function=function)
    try:
        spec = polyq.parse(text)
    except polyq.SpecError as error:
        raise polyq.SpecError(placed(file, text, str(error))) from None
    return text, replace(spec, name=re.sub(r"\W", "_", path.stem, flags=re.ASCII) or spec.name)

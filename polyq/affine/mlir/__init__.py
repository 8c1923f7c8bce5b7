"""MLIR in and out: :func:`from_mlir` reads a module, :meth:`polyq.Spec.to_mlir` writes one.

Needs xdsl (``pip install 'polyq-loops[mlir]'``), which is imported when a module is read.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from polyq.affine.errors import PolyqError, SpecError
from polyq.affine.spec import Spec

__all__ = ["from_mlir"]


def from_mlir(source: str | PathLike[str], *, function: str | None = None) -> Spec:
    """Return the spec of an MLIR module, given as text or as the path of a file.

    ``function`` names the ``func.func`` to read where there are several. Its arguments are the inputs, in order;
    constants whose data the text leaves out and tensors that are read before anything writes them are further inputs,
    named after their value (``%cst_0`` is ``cst_0``, ``%2`` is ``v2``), and the spec's notes say so. A signless ``iN``
    is dtype ``iN``, for which an unsigned array of the same width is taken as well.

    Raises :class:`SpecError` that begins with ``file:line:column`` for whatever is wrong or not known.
    """
    text, file = _text(source)
    try:
        from polyq.affine.mlir.module import read_module
        from polyq.affine.mlir.source import read_text
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "xdsl":
            raise
        raise PolyqError("reading MLIR needs xdsl, which is not installed: pip install 'polyq-loops[mlir]'") from error
    return read_module(read_text(text, file), function)


def _text(source: str | PathLike[str]) -> tuple[str, str]:
    """Return the text of a module, and what messages call it."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, "<mlir>"
    path = Path(fspath(source))
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}; expected MLIR text or the path of a file") from None

"""The error classes of polyq. Errors are data: what was asked, where, expected, got, witness, what to do."""

from __future__ import annotations


class PolyqError(Exception):
    """Base of every error that polyq raises on purpose.

    A notebook shows a raised error as text, like any other; an error that is kept and displayed (``except PolyqError as
    e: refusal = e``) is shown as HTML, a witness with its instances and the place in the loops.
    """

    def _repr_html_(self) -> str:
        from polyq.affine.html import Html, page, said  # what most processes never need

        first, _, rest = str(self).partition("\n")
        shown = getattr(getattr(self, "witness", None), "html", None)
        more = shown() if callable(shown) else said(rest)
        return page(type(self).__name__, "", said(first), more if isinstance(more, Html) else said(str(more)))


class SpecError(PolyqError):
    """A spec is wrong: which op, which operand, which dim, what was expected and what came."""


class ScheduleError(PolyqError):
    """A transform was refused.

    ``witness`` holds a pair of concrete instances (or ``None`` where the request was malformed rather than illegal).
    """

    def __init__(self, message: str, witness: object | None = None) -> None:
        super().__init__(message)
        self.witness = witness

    def __reduce__(self) -> tuple[type, tuple[str, object | None]]:
        return type(self), (str(self.args[0]), self.witness)


class BuildError(PolyqError):
    """The C compiler failed: the command, its output and where the source was kept."""


class CompilerNotFound(BuildError):
    """No working C compiler was found."""


class ArgumentError(PolyqError, ValueError):
    """A kernel was called with an argument that does not fit: name, expected, given."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a wrong dtype, or is no array."""

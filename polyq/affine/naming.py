"""Names that depend on a program's structure alone, and the way back to the caller's.

Two texts that differ in names, in the order of commutative operands, or in how arrays are expanded and collapsed, have
one numbered form. Its names are made so that they are found again inside of whatever is derived from them: ``T3T`` is a
tensor, ``T3T.acc`` and ``T3T_acc`` are what a schedule and C make of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from polyq.affine.expr import Affine

__all__ = ["NUMBERED", "Renaming", "renamed"]

#: a name of a numbered form: a tensor, a dim (an iterator), a parameter, the program
NUMBERED = re.compile(r"([TIPN])\d+\1")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Renaming:
    """The caller's names by the numbered ones."""

    names: Mapping[str, str]

    def text(self, text: str) -> str:
        """Return a text with the caller's names.

        >>> Renaming({"T0T": "y", "I1I": "k"}).text("T0T.acc[I1Io]")
        'y.acc[ko]'
        """
        return NUMBERED.sub(lambda found: self.names.get(found[0], found[0]), text)

    def value(self, value: T) -> T:
        """Return a value made of frozen dataclasses, tuples and mappings with the caller's names."""
        return renamed(value, self.text)

    def numbered(self, name: str, kind: str) -> str:
        """Return the numbered name of a tensor (``T``) or a parameter (``P``); the name itself where there is none."""
        return next((n for n, given in self.names.items() if given == name and n[0] == kind), name)


def renamed(value: Any, name: Callable[[str], str]) -> Any:
    """Return a value with every string in it renamed; affine expressions are sorted anew."""
    if isinstance(value, str):
        return name(value)
    if isinstance(value, Affine):
        return value.substitute(lambda atom: Affine.of(type(atom)(name(atom.name)))) if value.terms else value
    if isinstance(value, tuple):
        return tuple(renamed(v, name) for v in cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {renamed(k, name): renamed(v, name) for k, v in pairs}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: renamed(getattr(value, f.name), name) for f in dataclasses.fields(value) if f.init}
        return replace(value, **changed)
    return value

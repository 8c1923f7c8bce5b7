"""The lines of index notation: statements with affine subscripts, whose bodies are typed later."""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim, Param
from polyq.affine.reader import (
    affine,
    check_name,
    constraints,
    expressions,
    names_in_order,
    parse_expression,
    source,
    subscripts,
)

__all__ = ["Line", "Statement", "index_of", "located", "logical_lines", "read_statement"]


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line of text with the number of its first line."""

    number: int
    text: str

    @property
    def place(self) -> str:
        """The line as messages name it."""
        text = self.text if len(self.text) <= 160 else self.text[:157] + "..."
        return f"line {self.number}, `{text}`"


@contextmanager
def located(place: str) -> Generator[None, None, None]:
    """Put the place in front of what is said about it."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{place}: {error}") from None
    except RecursionError:
        raise SpecError(f"{place}: nested too deeply; split the statement into several") from None


def logical_lines(text: str) -> list[Line]:
    """Return the lines without comments and blanks; one with open brackets goes on in the next."""
    found: list[Line] = []
    held, start, depth = "", 0, 0
    for number, raw in enumerate(text.splitlines(), 1):
        piece = raw.split("#", 1)[0].strip()
        if not piece:
            continue
        start = start if held else number
        held = f"{held} {piece}".strip()
        depth += sum(piece.count(c) for c in "([") - sum(piece.count(c) for c in ")]")
        if depth <= 0:
            found.append(Line(start, held))
            held, depth = "", 0
    if held:
        raise SpecError(f"{Line(start, held).place}: a bracket is never closed")
    return found


_OPERATORS = {"=": None, "+=": "+", "*=": "*", "min=": "min", "max=": "max"}


def _split_statement(text: str) -> tuple[str, str, str, str]:
    """Return (left, operator, body, constraints) of a statement."""
    depth = 0
    at = -1
    for position, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "=" and depth == 0:
            at = position
            break
    if at < 0 or text[at + 1 : at + 2] == "=" or text[at - 1 : at] in ("<", ">", "!"):
        raise SpecError(
            "expected `target[subscripts] op body`, op one of =, +=, *=, min=, max=, or `name: dtype[shape]`"
        )
    left, right = text[:at], text[at + 1 :]
    operator = "="
    word = re.search(r"(?:(?<=[\s\]])(?:min|max)|[^\w\s\]]+)$", left)
    if word is not None:
        operator = word[0] + "="
        left = left[: word.start()]
    if operator not in _OPERATORS:
        raise SpecError(f"the operator {operator} is not there; use one of {', '.join(_OPERATORS)}")
    parts = re.split(r"\bwhere\b", right)
    if len(parts) > 2:
        raise SpecError("`where` stands there twice; separate constraints by commas")
    return left.strip(), operator, parts[0].strip(), parts[1].strip() if len(parts) == 2 else ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it stands in the text, with affine subscripts; its body is typed later."""

    name: str
    line: Line
    target: str
    index: tuple[Affine, ...]
    reduce: str | None
    body: ast.expr
    where: tuple[Constraint, ...]
    dims: tuple[str, ...]
    reads: tuple[tuple[str, tuple[Affine, ...]], ...]

    @property
    def place(self) -> str:
        """The statement as messages name it."""
        return f"{self.line.place}: op {self.name}"


def _left(text: str) -> tuple[str, tuple[ast.expr, ...]]:
    match parse_expression(text):
        case ast.Name(id=name):
            return name, ()
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            return name, subscripts(index)
        case _:
            raise SpecError(f"the left side `{text}` is no target: expected name[subscripts], or a name for a scalar")


def index_of(tensor: str, entries: Sequence[ast.expr]) -> tuple[Affine, ...]:
    """Return the subscripts of an access as affine expressions of dims; an error names operand and subscript."""
    made: list[Affine] = []
    for position, entry in enumerate(entries):
        try:
            made.append(affine(entry, Dim))
        except SpecError as error:
            raise SpecError(f"operand {tensor}, subscript {position} (`{source(entry)}`): {error}") from None
    return tuple(made)


def read_statement(line: Line, number: Mapping[str, int]) -> Statement:
    """Return the statement of a line; ``number`` says how many earlier statements write each target."""
    left, operator, body_text, where_text = _split_statement(line.text)
    target, left_entries = _left(left)
    check_name(target, "tensor")
    count = number.get(target, 0) + 1
    name = target if count == 1 else f"{target}.{count}"
    with located(f"op {name}"):
        body = parse_expression(body_text)
        where = expressions(where_text)
        accesses = [(target, left_entries), *_accesses(body)]
        reads = [(tensor, index_of(tensor, entries)) for tensor, entries in accesses]
        dims = _dims([*left_entries, body, *where], accesses)
        found = tuple(c for w in where for c in constraints(w, lambda n: Dim(n) if n in dims else Param(n)))
        return Statement(name, line, target, reads[0][1], _OPERATORS[operator], body, found, dims, tuple(reads[1:]))


def _accesses(body: ast.expr) -> list[tuple[str, tuple[ast.expr, ...]]]:
    found: list[tuple[str, tuple[ast.expr, ...]]] = []
    for node in ast.walk(body):
        if isinstance(node, ast.Subscript):
            if not isinstance(node.value, ast.Name):
                raise SpecError(f"`{source(node.value)}` is subscripted, but is no tensor's name")
            found.append((node.value.id, subscripts(node.slice)))
    return found


def _dims(parts: Sequence[ast.expr], accesses: Sequence[tuple[str, tuple[ast.expr, ...]]]) -> tuple[str, ...]:
    """Return the names that stand in a subscript, by first appearance anywhere in the statement."""
    subscripted = {n.id for _, entries in accesses for e in entries for n in names_in_order(e)}
    clash = sorted(subscripted & {tensor for tensor, _ in accesses})
    if clash:
        raise SpecError(f"{clash[0]} is a tensor and stands in a subscript; subscripts have dims and constants only")
    order = dict.fromkeys(n.id for part in parts for n in names_in_order(part))
    return tuple(check_name(d, "dim") for d in order if d in subscripted)

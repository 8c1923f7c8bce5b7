"""Pieces of the syntax of MLIR's operations, and their attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    StringAttr,
    i64,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.parser import Parser

if TYPE_CHECKING:
    from polyq.affine.mlir.source import TextParser

__all__ = [
    "DYNAMIC", "Parts", "PlainOp", "attribute", "integers", "numbers", "read_attributes", "read_dims", "read_group",
    "read_mixed", "read_operands", "read_reassociation", "read_results", "read_types", "texts",
]  # fmt: skip


#: how MLIR writes a dynamic entry of a list of offsets and sizes: the least 64-bit integer
DYNAMIC = -(1 << 63)


@dataclass(slots=True)
class Parts:
    """What the text of one op holds."""

    operands: list[SSAValue] = field(default_factory=lambda: [])
    results: list[Attribute] = field(default_factory=lambda: [])
    attributes: dict[str, Attribute] = field(default_factory=lambda: {})
    regions: list[Region] = field(default_factory=lambda: [])

    def segments(self, *sizes: int) -> None:
        """Note how many operands each group of them has."""
        self.attributes["operandSegmentSizes"] = numbers(sizes)


class PlainOp(Operation):
    """An op that is its parts; the dialects below are subclasses that differ in their name and syntax."""

    name: ClassVar[str] = "polyq.plain"
    syntax: ClassVar[Callable[[TextParser, Parts], None]]

    @classmethod
    def parse(cls, parser: Parser) -> PlainOp:
        """Parse what follows the name of the op."""
        parts = Parts()
        cls.syntax(cast("TextParser", parser), parts)
        return cast("Any", cls).create(
            operands=parts.operands, result_types=parts.results, attributes=parts.attributes, regions=parts.regions
        )


# ---- attributes
def numbers(values: Iterable[int]) -> DenseArrayBase:
    """Return ``array<i64: ...>``."""
    return DenseArrayBase.from_list(i64, list(values))


def attribute(op: Operation, name: str) -> Attribute | None:
    """Return an attribute or a property of an op."""
    return op.properties.get(name, op.attributes.get(name))


def integers(value: Attribute | None) -> tuple[int, ...]:
    """Return the integers of a list in any of MLIR's forms: ``array<..>``, ``dense<..>``, ``[1, 2]``, ``1``."""
    if value is None:
        return ()
    if isinstance(value, IntegerAttr):
        return (value.value.data,)
    if isinstance(value, ArrayAttr):
        return tuple(n for entry in cast("ArrayAttr[Attribute]", value) for n in integers(entry))
    return tuple(cast("Any", value).get_values())


def texts(value: Attribute | None) -> tuple[str, ...]:
    """Return the words of a list of strings or of enum attributes such as ``#linalg.iterator_type<parallel>``."""
    if isinstance(value, ArrayAttr):
        return tuple(t for entry in cast("ArrayAttr[Attribute]", value) for t in texts(entry))
    if isinstance(value, StringAttr):
        return (value.data,)
    return () if value is None else (str(value).rpartition("<")[2].rstrip(">"),)


# ---- pieces of syntax
def read_types(p: TextParser) -> list[Attribute]:
    """Parse ``type, type``."""
    return p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_type)


def read_operands(p: TextParser) -> list[SSAValue]:
    """Parse ``%a, %b : type, type``."""
    start = p.pos
    names = p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_unresolved_operand)
    p.word(":")
    return list(p.resolve_operands(names, read_types(p), start))


def read_group(p: TextParser, word: str) -> list[SSAValue]:
    """Parse ``ins(%a, %b : type, type)`` if it stands there."""
    if p.parse_optional_characters(word) is None:
        return []
    p.word("(")
    found = [] if p.at(")") else read_operands(p)
    p.word(")")
    return found


def read_results(p: TextParser) -> list[Attribute]:
    """Parse ``-> type``, ``-> type, type`` or ``-> (type, type)`` if it stands there."""
    if p.parse_optional_characters("->") is None:
        return []
    return p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_type) if p.at("(") else read_types(p)


def read_dims(p: TextParser) -> DenseArrayBase:
    """Parse ``[0, 1]``."""
    return numbers(p.parse_comma_separated_list(p.Delimiter.SQUARE, p.parse_integer))


def read_reassociation(p: TextParser) -> ArrayAttr[Any]:
    """Parse ``[[0, 1], [2]]``."""
    return ArrayAttr(p.parse_comma_separated_list(p.Delimiter.SQUARE, lambda: read_dims(p)))


def read_mixed(p: TextParser, operands: list[SSAValue]) -> DenseArrayBase:
    """Parse ``[1, %x, 2]``: numbers, and values of type index, which join ``operands``."""

    def entry() -> int:
        value = p.parse_optional_unresolved_operand()
        if value is None:
            return p.parse_integer()
        operands.append(p.resolve_operand(value, IndexType()))
        return DYNAMIC

    return numbers(p.parse_comma_separated_list(p.Delimiter.SQUARE, entry))


def read_attributes(p: TextParser, parts: Parts) -> None:
    """Parse ``{name = attribute, ...}`` if it stands there."""
    parts.attributes.update(p.parse_optional_attr_dict())

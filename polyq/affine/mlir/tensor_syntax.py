"""The syntax of ``tensor``'s operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import (
    IndexType,
    IntegerAttr,
    TensorType,
    i64,
)
from xdsl.ir import SSAValue

from polyq.affine.mlir.syntax import (
    Parts,
    read_attributes,
    read_mixed,
    read_reassociation,
)  # fmt: skip

if TYPE_CHECKING:
    from polyq.affine.mlir.source import TextParser

__all__ = ["TENSOR_SYNTAX"]


# ---- tensor
def _empty(p: TextParser, parts: Parts) -> None:
    sizes = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_unresolved_operand)
    parts.operands = [p.resolve_operand(size, IndexType()) for size in sizes]
    read_attributes(p, parts)
    p.word(":")
    parts.results = [p.parse_type()]


def _converted(p: TextParser, parts: Parts, word: str) -> None:
    """Parse ``attributes : type word type`` for an op whose only operand so far waits in ``parts``."""
    read_attributes(p, parts)
    p.word(":")
    parts.operands.insert(0, p.resolve_operand(cast("Any", parts.operands.pop(0)), p.parse_type()))
    p.word(word)
    parts.results = [p.parse_type()]


def _waiting(p: TextParser, parts: Parts) -> None:
    """Take an operand whose type comes later."""
    parts.operands = [cast("SSAValue", cast("object", p.parse_unresolved_operand()))]


def _collapse(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    parts.attributes["reassociation"] = read_reassociation(p)
    _converted(p, parts, "into")


def _expand(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    parts.attributes["reassociation"] = read_reassociation(p)
    sizes: list[SSAValue] = []
    if p.parse_optional_characters("output_shape") is not None:
        parts.attributes["static_output_shape"] = read_mixed(p, sizes)
    _converted(p, parts, "into")
    parts.operands += sizes


def _cast(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    _converted(p, parts, "to")


def _ranges(p: TextParser, parts: Parts, first: int) -> None:
    """Parse ``[offsets] [sizes] [strides]``; ``first`` operands stand before them."""
    groups: list[list[SSAValue]] = []
    for name in ("static_offsets", "static_sizes", "static_strides"):
        groups.append([])
        parts.attributes[name] = read_mixed(p, groups[-1])
    parts.operands += [value for group in groups for value in group]
    parts.segments(*[1] * first, *map(len, groups))


def _extract_slice(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    _ranges(p, parts, 1)
    _converted(p, parts, "to")


def _insert_slice(p: TextParser, parts: Parts) -> None:
    source = p.parse_unresolved_operand()
    p.word("into")
    target = p.parse_unresolved_operand()
    _ranges(p, parts, 2)
    read_attributes(p, parts)
    p.word(":")
    left = p.resolve_operand(source, p.parse_type())
    p.word("into")
    parts.results = [p.parse_type()]
    parts.operands = [left, p.resolve_operand(target, parts.results[0]), *parts.operands]


def _pad(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    p.parse_optional_characters("nofold")
    groups: list[list[SSAValue]] = []
    for word in ("low", "high"):
        p.word(word)
        groups.append([])
        parts.attributes[f"static_{word}"] = read_mixed(p, groups[-1])
    parts.segments(1, *map(len, groups))
    parts.regions = [p.parse_region()]
    parts.operands += [value for group in groups for value in group]
    _converted(p, parts, "to")


def _concat(p: TextParser, parts: Parts) -> None:
    p.word("dim")
    p.word("(")
    parts.attributes["dim"] = IntegerAttr(p.parse_integer(), i64)
    p.word(")")
    start = p.pos
    names = p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_unresolved_operand)
    read_attributes(p, parts)
    p.word(":")
    types = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_type)
    parts.operands = list(p.resolve_operands(names, types, start))
    p.word("->")
    parts.results = [p.parse_type()]


def _splat(p: TextParser, parts: Parts) -> None:
    value = p.parse_unresolved_operand()
    sizes: list[SSAValue] = []
    if p.at("["):
        read_mixed(p, sizes)
    read_attributes(p, parts)
    p.word(":")
    parts.results = [p.parse_type()]
    element = cast("TensorType[Any]", parts.results[0]).element_type
    parts.operands = [p.resolve_operand(value, element), *sizes]


def _from_elements(p: TextParser, parts: Parts) -> None:
    names = p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_unresolved_operand)
    p.word(":")
    parts.results = [p.parse_type()]
    element = cast("TensorType[Any]", parts.results[0]).element_type
    parts.operands = [p.resolve_operand(name, element) for name in names]


def _dim(p: TextParser, parts: Parts) -> None:
    names = [p.parse_unresolved_operand()]
    p.word(",")
    names.append(p.parse_unresolved_operand())
    p.word(":")
    parts.operands = [p.resolve_operand(names[0], p.parse_type()), p.resolve_operand(names[1], IndexType())]
    parts.results = [IndexType()]


def _extract(p: TextParser, parts: Parts) -> None:
    source = p.parse_unresolved_operand()
    index: list[SSAValue] = []
    read_mixed(p, index)
    p.word(":")
    kind = p.parse_type()
    parts.operands = [p.resolve_operand(source, kind), *index]
    parts.results = [cast("TensorType[Any]", kind).element_type]


def _generate(p: TextParser, parts: Parts) -> None:
    names = p.parse_optional_undelimited_comma_separated_list(
        p.parse_optional_unresolved_operand, p.parse_unresolved_operand
    )
    parts.operands = [p.resolve_operand(name, IndexType()) for name in names or ()]
    parts.regions = [p.parse_region()]
    p.word(":")
    parts.results = [p.parse_type()]


TENSOR_SYNTAX: dict[str, Callable[[Any, Parts], None]] = {
    "tensor.cast": _cast,
    "tensor.collapse_shape": _collapse,
    "tensor.concat": _concat,
    "tensor.dim": _dim,
    "tensor.empty": _empty,
    "tensor.expand_shape": _expand,
    "tensor.extract": _extract,
    "tensor.extract_slice": _extract_slice,
    "tensor.from_elements": _from_elements,
    "tensor.generate": _generate,
    "tensor.insert_slice": _insert_slice,
    "tensor.pad": _pad,
    "tensor.splat": _splat,
}

"""MLIR text to xdsl's operations, with what polyq needs beside them: the names of values and where each op stands.

xdsl forgets numeric names and shortens others, and an op of it does not know its line; both are taken here, where the
parser defines values and begins an op. Whatever is wrong with the text is a :class:`SpecError` that begins with
``file:line:column`` and says what was expected and what stands there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import (
    AnyFloat,
    Builtin,
    DenseIntOrFPElementsAttr,
    ModuleOp,
    OpaqueAttr,
    UnregisteredOp,
)
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from polyq.affine.errors import SpecError

__all__ = ["Module", "TextParser", "read_text"]

_Type = TypeVar("_Type", bound=Attribute)


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module: its operations, the name of each value as it stands in the text, and each op's position."""

    file: str
    text: str
    op: ModuleOp
    names: dict[SSAValue, str]
    starts: dict[Operation, int]

    def place(self, op: Operation) -> str:
        """Return ``file:line:column`` of an op."""
        return _place(self.file, self.text, self.starts.get(op, 0))

    def line(self, op: Operation) -> int:
        """Return the line of an op, counted from 1."""
        return self.text.count("\n", 0, self.starts.get(op, 0)) + 1


def _place(file: str, text: str, position: int) -> str:
    """Return ``file:line:column``, both counted from 1."""
    return f"{file}:{text.count(chr(10), 0, position) + 1}:{position - text.rfind(chr(10), 0, position)}"


def read_text(text: str, file: str) -> Module:
    """Parse a module, which may stand without ``module``; raise :class:`SpecError` for text that is not right."""
    parser = None
    try:
        parser = TextParser(text, file)
        op = parser.parse_module()
        parser.refuse_unknown()
    except ParseError as error:
        raise SpecError(_message(error, file, text)) from None
    except (AssertionError, NotImplementedError, ValueError, VerifyException) as error:  # what xdsl does not look after
        at = 0 if parser is None else parser.pos
        hint = "; expected products with and quotients by constants" if "semi-affine" in str(error) else ""
        raise SpecError(f"{_place(file, text, at)}: {error or 'the text is not formed as expected'}{hint}") from error
    return Module(file, text, op, parser.names, parser.starts)


def _message(error: ParseError, file: str, text: str) -> str:
    start, end = error.span.start, error.span.end
    said = error.msg.strip().rstrip(".!")
    said = said[:1].lower() + said[1:] if said[:2].istitle() else said
    if said == "in block definition":
        said = "expected an operation or `}`"
    if " got " in said:
        return f"{_place(file, text, start)}: {said}"
    stands = text[start:end] or text[start : start + 1].strip()
    return f"{_place(file, text, start)}: {said}, got {f'`{stands}`' if stands else 'the end of the text'}"


class TextParser(Parser):
    """xdsl's parser, which keeps names and positions, and to which polyq's dialects come first."""

    def __init__(self, text: str, file: str) -> None:
        from polyq.affine.mlir.dialects import OPERATIONS  # they take this parser

        context = Context(allow_unregistered=True)  # for attributes and types; an unknown operation is refused below
        for dialect in (Builtin, Func, Arith, Math):
            context.load_dialect(dialect)
        super().__init__(context, text, file)
        self.names: dict[SSAValue, str] = {}
        self.starts: dict[Operation, int] = {}
        self._operations = OPERATIONS
        self._unknown: dict[str, tuple[Span[str], Attribute]] = {}

    # ---- names and positions
    def parse_operation(self) -> Operation:
        """Parse one operation and note where it begins."""
        start = self.pos
        op = super().parse_operation()
        self.starts[op] = start
        return op

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span[str]) -> None:
        super()._register_ssa_definition(name, values, span)
        for k, value in enumerate(values):
            self.names[value] = name if len(values) == 1 else f"{name}_{k}"

    def _get_op_by_name(self, name: str) -> type[Operation]:
        stack = self._parser_state.dialect_stack
        for full in (name, *(f"{dialect}.{name}" for dialect in reversed(stack))):
            if full in self._operations:
                return self._operations[full]
        found = self.ctx.get_optional_op(name, dialect_stack=stack)
        if found is not None and not issubclass(found, UnregisteredOp):
            return found
        start = self.lexer.input.content.rfind(name, 0, self.pos)
        self.raise_error(
            f"expected an operation that polyq reads, got `{name}`; docs/mlir.md lists them", start, start + len(name)
        )

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        """Parse all of the text."""
        try:
            return super().parse_module(allow_implicit_module)
        except ParseError:
            if self.at(""):  # at its end, where xdsl names values that are missing, but not where
                self.refuse_unknown()
            raise

    # ---- values
    def resolve_operand(self, operand: UnresolvedOperand, type: _Type) -> SSAValue[_Type]:
        """Return the value of an operand; one that nothing has defined by then is remembered and refused."""
        name = operand.operand_name
        if name not in self.ssa_values:
            first = self._unknown.setdefault(name, (operand.span, type))
            if first[1] != type:
                self._refuse(operand.span, name, type, first)
        elif operand.index < len(self.ssa_values[name]):
            known = self.ssa_values[name][operand.index].type
            if known != type:
                self.raise_error(f"expected a value of type {type}, got %{name}, which has type {known}", operand.span)
        return super().resolve_operand(operand, type)

    def _refuse(self, span: Span[str], name: str, type: Attribute, first: tuple[Span[str], Attribute]) -> None:
        line, column = _place("", self.lexer.input.content, first[0].start).split(":")[1:]
        self.raise_error(
            f"expected a value of type {type}, got %{name}, which no operation above defines here, and which line "
            f"{line}, column {column} takes for {first[1]} (a name is known in its own region only)",
            span,
        )

    def refuse_unknown(self) -> None:
        """Raise for a value that is used and defined nowhere before."""
        for name, (span, type) in self._unknown.items():
            self.raise_error(
                f"expected a value of type {type}, got %{name}, which no operation above defines here (a name is known "
                "in its own region only)",
                span,
            )

    # ---- what syntax needs beside xdsl's methods
    def word(self, text: str) -> None:
        """Take the keyword or punctuation ``text``, or raise with what stands there."""
        if self.parse_optional_characters(text) is None:
            self.raise_error(f"expected `{text}`, got `{self._current_token.text or 'the end of the text'}`")

    def at(self, text: str) -> bool:
        """Whether the next token is ``text``; it is not taken."""
        return self._current_token.text == text

    def dotted_name(self) -> str:
        """Take an operation's name, such as ``arith.addf``."""
        return self._parse_token(MLIRTokenKind.BARE_IDENT, "expected the name of an operation").text

    # ---- constants that xdsl misreads
    def parse_dense_int_or_fp_elements_attr(self, type: Any) -> DenseIntOrFPElementsAttr:
        """Parse ``<...>`` of a dense constant; integers in it are the bits of a float, where its type is one."""
        start = self._parser_state.current_token.span.end
        attribute = super().parse_dense_int_or_fp_elements_attr(type)
        end = self._parser_state.current_token.span.start
        text = self.lexer.input.content[start:end].partition(">")[0]
        if isinstance(attribute.get_element_type(), AnyFloat) and "0x" in text and '"' not in text:
            return _from_bits(attribute, text)
        return attribute

    def _parse_builtin_dense_attr(self) -> Any:
        """Parse a dense constant; ``dense<...>`` and ``dense<__elided__>`` stand for data that is not there."""
        for mark in ("...", "__elided__"):
            rest = self.lexer.input.content[self.pos :]
            if rest.startswith(f"<{mark}>"):
                self._resume_from(self.pos + len(mark) + 2)
                self.word(":")
                return OpaqueAttr.from_strings("elided", mark, type=self.parse_type())
        return super()._parse_builtin_dense_attr()


def _from_bits(attribute: DenseIntOrFPElementsAttr, text: str) -> DenseIntOrFPElementsAttr:
    """Return the constant with every hexadecimal element of ``text`` taken as the bits of a float."""
    element = cast("Any", attribute.get_element_type())
    size: int = element.compile_time_size
    written = [piece.strip() for piece in text.replace("[", " ").replace("]", " ").split(",")]
    data = attribute.data.data
    for k, piece in enumerate(written):
        if piece.startswith("0x"):
            bits = struct.pack("<Q", int(piece, 16))[:size]
            data = bits * (len(data) // size) if len(written) == 1 else data[: k * size] + bits + data[(k + 1) * size :]
    return DenseIntOrFPElementsAttr(attribute.type, type(attribute.data)(data))

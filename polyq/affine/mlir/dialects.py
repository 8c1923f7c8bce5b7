"""The operations that polyq reads itself: ``linalg``, ``tensor``, ``flow`` and constants.

xdsl has a part of linalg's named ops and of tensor, and no flow. Here each op is a class of xdsl with nothing but its
syntax; what it means is said in the modules that read it. Attributes carry the names that MLIR gives them, so that an
op in generic form (``"tensor.pad"(...)``) reads alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseResourceAttr,
    DictionaryAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.parser import Parser

if TYPE_CHECKING:
    from polyq.affine.mlir.source import TextParser

__all__ = ["DYNAMIC", "OPERATIONS", "SCALAR_NAMES", "PlainOp", "attribute", "integers", "texts"]

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
def _types(p: TextParser) -> list[Attribute]:
    return p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_type)


def _operands(p: TextParser) -> list[SSAValue]:
    """Parse ``%a, %b : type, type``."""
    start = p.pos
    names = p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_unresolved_operand)
    p.word(":")
    return list(p.resolve_operands(names, _types(p), start))


def _group(p: TextParser, word: str) -> list[SSAValue]:
    """Parse ``ins(%a, %b : type, type)`` if it stands there."""
    if p.parse_optional_characters(word) is None:
        return []
    p.word("(")
    found = [] if p.at(")") else _operands(p)
    p.word(")")
    return found


def _results(p: TextParser) -> list[Attribute]:
    """Parse ``-> type``, ``-> type, type`` or ``-> (type, type)`` if it stands there."""
    if p.parse_optional_characters("->") is None:
        return []
    return p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_type) if p.at("(") else _types(p)


def _dims(p: TextParser) -> DenseArrayBase:
    return numbers(p.parse_comma_separated_list(p.Delimiter.SQUARE, p.parse_integer))


def _reassociation(p: TextParser) -> ArrayAttr[Any]:
    return ArrayAttr(p.parse_comma_separated_list(p.Delimiter.SQUARE, lambda: _dims(p)))


def _mixed(p: TextParser, operands: list[SSAValue]) -> DenseArrayBase:
    """Parse ``[1, %x, 2]``: numbers, and values of type index, which join ``operands``."""

    def entry() -> int:
        value = p.parse_optional_unresolved_operand()
        if value is None:
            return p.parse_integer()
        operands.append(p.resolve_operand(value, IndexType()))
        return DYNAMIC

    return numbers(p.parse_comma_separated_list(p.Delimiter.SQUARE, entry))


def _attributes(p: TextParser, parts: Parts) -> None:
    parts.attributes.update(p.parse_optional_attr_dict())


# ---- linalg
def _structured(p: TextParser, parts: Parts) -> None:
    """Parse ``clauses ins(..) outs(..) clauses {region}? (-> types)?``, the form of nearly all of linalg."""
    _clauses(p, parts, shorthand=True)
    ins, outs = _group(p, "ins"), _group(p, "outs")
    parts.operands = [*ins, *outs]
    parts.segments(len(ins), len(outs))
    arguments = _clauses(p, parts, shorthand=False)
    region = p.parse_optional_region(arguments) if arguments is not None or p.at("{") else None
    if region is not None:
        parts.regions.append(region)
    parts.results = _results(p)
    if not parts.results:  # transpose, broadcast, reduce and map: the results are what the outs are
        parts.results = [o.type for o in outs if isinstance(o.type, TensorType)]


def _clauses(p: TextParser, parts: Parts, *, shorthand: bool) -> list[Any] | None:
    """Parse ``{..}``, ``name = attribute``, ``attrs = {..}`` and ``(arguments)`` in any number."""
    arguments = None
    while True:
        if p.at("{") and shorthand:
            if not _shorthand(p, parts):
                _attributes(p, parts)
        elif p.at("(") and not shorthand:
            arguments = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_argument)
        elif p.parse_optional_characters("attrs") is not None:
            p.word("=")
            _attributes(p, parts)
        elif (name := _clause_name(p)) is not None:
            if p.parse_optional_characters("(") is not None:  # dimension(1)
                parts.attributes[name] = IntegerAttr(p.parse_integer(), i64)
                p.word(")")
            else:
                p.word("=")
                parts.attributes[name] = p.parse_attribute()
        else:
            return arguments


def _clause_name(p: TextParser) -> str | None:
    for name in ("indexing_maps", "kind", "permutation", "dimensions", "dimension", "cast"):
        if p.parse_optional_characters(name) is not None:
            return name
    return None


def _shorthand(p: TextParser, parts: Parts) -> bool:
    """Parse ``{ arith.addf }``, the body of a reduce or a map in one word."""
    text = p.lexer.input.content[p.pos + 1 :].lstrip()
    word = text.split(None, 1)[0].rstrip("}") if text else ""
    if not word.startswith(("arith.", "math.")):
        return False
    p.word("{")
    parts.attributes["shorthand"] = StringAttr(p.dotted_name())
    p.parse_optional_attr_dict()
    p.word("}")
    return True


def _index(p: TextParser, parts: Parts) -> None:
    parts.attributes["dim"] = IntegerAttr(p.parse_integer(), i64)
    _attributes(p, parts)
    p.word(":")
    parts.results = [p.parse_type()]


def _terminator(p: TextParser, parts: Parts) -> None:
    _attributes(p, parts)
    if p.parse_optional_characters("(") is not None:  # never written by MLIR, but by people
        parts.operands = _operands(p)
        p.word(")")
        return
    start = p.pos
    names = p.parse_optional_undelimited_comma_separated_list(
        p.parse_optional_unresolved_operand, p.parse_unresolved_operand
    )
    if names:
        p.word(":")
        parts.operands = list(p.resolve_operands(names, _types(p), start))


def _pack(p: TextParser, parts: Parts) -> None:
    source = p.parse_unresolved_operand()
    padding = None
    if p.parse_optional_characters("padding_value") is not None:
        p.word("(")
        value = p.parse_unresolved_operand()
        p.word(":")
        padding = p.resolve_operand(value, p.parse_type())
        p.word(")")
    if p.parse_optional_characters("outer_dims_perm") is not None:
        p.word("=")
        parts.attributes["outer_dims_perm"] = _dims(p)
    p.word("inner_dims_pos")
    p.word("=")
    parts.attributes["inner_dims_pos"] = _dims(p)
    p.word("inner_tiles")
    p.word("=")
    tiles: list[SSAValue] = []
    parts.attributes["static_inner_tiles"] = _mixed(p, tiles)
    p.word("into")
    target = p.parse_unresolved_operand()
    _attributes(p, parts)
    p.word(":")
    parts.operands = [p.resolve_operand(source, p.parse_type())]
    p.word("->")
    parts.results = [p.parse_type()]
    parts.operands.append(p.resolve_operand(target, parts.results[0]))
    if padding is not None:
        parts.operands.append(padding)
    parts.operands += tiles
    parts.segments(1, 1, int(padding is not None), len(tiles))


# ---- tensor
def _empty(p: TextParser, parts: Parts) -> None:
    sizes = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_unresolved_operand)
    parts.operands = [p.resolve_operand(size, IndexType()) for size in sizes]
    _attributes(p, parts)
    p.word(":")
    parts.results = [p.parse_type()]


def _converted(p: TextParser, parts: Parts, word: str) -> None:
    """Parse ``attributes : type word type`` for an op whose only operand so far waits in ``parts``."""
    _attributes(p, parts)
    p.word(":")
    parts.operands.insert(0, p.resolve_operand(cast("Any", parts.operands.pop(0)), p.parse_type()))
    p.word(word)
    parts.results = [p.parse_type()]


def _waiting(p: TextParser, parts: Parts) -> None:
    """Take an operand whose type comes later."""
    parts.operands = [cast("SSAValue", cast("object", p.parse_unresolved_operand()))]


def _collapse(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    parts.attributes["reassociation"] = _reassociation(p)
    _converted(p, parts, "into")


def _expand(p: TextParser, parts: Parts) -> None:
    _waiting(p, parts)
    parts.attributes["reassociation"] = _reassociation(p)
    sizes: list[SSAValue] = []
    if p.parse_optional_characters("output_shape") is not None:
        parts.attributes["static_output_shape"] = _mixed(p, sizes)
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
        parts.attributes[name] = _mixed(p, groups[-1])
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
    _attributes(p, parts)
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
        parts.attributes[f"static_{word}"] = _mixed(p, groups[-1])
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
    _attributes(p, parts)
    p.word(":")
    types = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_type)
    parts.operands = list(p.resolve_operands(names, types, start))
    p.word("->")
    parts.results = [p.parse_type()]


def _splat(p: TextParser, parts: Parts) -> None:
    value = p.parse_unresolved_operand()
    sizes: list[SSAValue] = []
    if p.at("["):
        _mixed(p, sizes)
    _attributes(p, parts)
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
    _mixed(p, index)
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


# ---- flow, arith
def _region(p: TextParser, parts: Parts) -> None:
    """Parse ``flow.dispatch.region[workload] -> (types) {..} count(..) -> (..) {..}``."""
    if p.at("["):
        _mixed(p, parts.operands)
    p.word("->")

    def result() -> Attribute:
        found = p.parse_type()
        if p.parse_optional_characters("{") is not None:  # the sizes of a dynamic shape, which its op knows as well
            p.parse_comma_separated_list(p.Delimiter.NONE, lambda: p.resolve_operand(p.parse_unresolved_operand(), i))
            p.word("}")
        return found

    i = IndexType()
    parts.results = p.parse_comma_separated_list(p.Delimiter.PAREN, result) if p.at("(") else [result()]
    if p.parse_optional_characters("attributes") is not None:
        _attributes(p, parts)
    parts.regions = [p.parse_region()]
    if p.parse_optional_characters("count") is not None:
        arguments = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_argument)
        _results(p)
        p.parse_region(arguments)


def _constant(p: TextParser, parts: Parts) -> None:
    _attributes(p, parts)
    value = p.parse_attribute()
    parts.attributes["value"] = value
    if isinstance(value, (IntegerAttr, FloatAttr)):
        parts.results = [cast("Attribute", cast("IntegerAttr[Any] | FloatAttr[Any]", value).type)]
    else:
        kind = getattr(value, "type", None)
        if kind is None or isinstance(value, DictionaryAttr):
            p.raise_error(f"expected a number or a dense constant, got `{value}`")
        parts.results = [cast("Attribute", kind)]
    if isinstance(value, DenseResourceAttr):
        parts.attributes["resource"] = StringAttr(value.resource_handle.data)


def _elementwise(p: TextParser, parts: Parts) -> None:
    """Parse ``%a, %b attributes : type``, for scalar ops that xdsl lacks."""
    start = p.pos
    names = p.parse_comma_separated_list(p.Delimiter.NONE, p.parse_unresolved_operand)
    if p.parse_optional_characters("fastmath") is not None:
        p.parse_attribute()
    _attributes(p, parts)
    p.word(":")
    kind = p.parse_type()
    parts.operands = list(p.resolve_operands(names, [kind] * len(names), start))
    parts.results = [kind]


#: scalar ops that xdsl lacks or reads in one of MLIR's spellings only
SCALAR_NAMES = ("arith.remf", "arith.maxf", "arith.minf")

_STRUCTURED = """
abs add batch_matmul batch_matmul_transpose_a batch_matmul_transpose_b batch_matvec batch_mmt4d batch_reduce_matmul
batch_vecmat broadcast ceil contract conv_1d conv_1d_ncw_fcw conv_1d_nwc_wcf conv_2d conv_2d_nchw_fchw
conv_2d_nchw_fchw_q conv_2d_ngchw_fgchw conv_2d_ngchw_gfchw conv_2d_ngchw_gfchw_q conv_2d_nhwc_fhwc
conv_2d_nhwc_fhwc_q conv_2d_nhwc_hwcf conv_2d_nhwc_hwcf_q conv_2d_nhwgc_gfhwc conv_2d_nhwgc_gfhwc_q conv_3d
conv_3d_ncdhw_fcdhw conv_3d_ndhwc_dhwcf conv_3d_ndhwc_dhwcf_q copy depthwise_conv_1d_ncw_cw depthwise_conv_1d_nwc_wc
depthwise_conv_1d_nwc_wcm depthwise_conv_2d_nchw_chw depthwise_conv_2d_nhwc_hwc depthwise_conv_2d_nhwc_hwc_q
depthwise_conv_2d_nhwc_hwcm depthwise_conv_2d_nhwc_hwcm_q depthwise_conv_3d_ncdhw_cdhw depthwise_conv_3d_ndhwc_dhwc
depthwise_conv_3d_ndhwc_dhwcm div div_unsigned dot elementwise elemwise_binary elemwise_unary erf exp fill floor
generic log map matmul matmul_transpose_a matmul_transpose_b matvec max min mmt4d mul negf pooling_nchw_max
pooling_nchw_sum pooling_ncw_max pooling_ncw_sum pooling_ndhwc_max pooling_ndhwc_min pooling_ndhwc_sum
pooling_nhwc_max pooling_nhwc_max_unsigned pooling_nhwc_min pooling_nhwc_min_unsigned pooling_nhwc_sum
pooling_nwc_max pooling_nwc_max_unsigned pooling_nwc_min pooling_nwc_min_unsigned pooling_nwc_sum powf
quantized_batch_matmul quantized_matmul reciprocal reduce round rsqrt select softmax sqrt square sub tanh transpose
vecmat
"""

_SYNTAX: dict[str, Callable[[Any, Parts], None]] = {
    **{f"linalg.{name}": _structured for name in _STRUCTURED.split()},
    "linalg.index": _index,
    "linalg.yield": _terminator,
    **{f"{dialect}.{name}": _pack for dialect in ("tensor", "linalg") for name in ("pack", "unpack")},
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
    "tensor.yield": _terminator,
    "flow.dispatch.region": _region,
    "flow.return": _terminator,
    "func.return": _terminator,
    "arith.constant": _constant,
    **dict.fromkeys(SCALAR_NAMES, _elementwise),
}

#: name -> the class that parses it
OPERATIONS: dict[str, type[PlainOp]] = {
    name: cast("type[PlainOp]", type("Op", (PlainOp,), {"name": name, "syntax": staticmethod(syntax)}))
    for name, syntax in _SYNTAX.items()
}

"""The operations that polyq reads itself: ``linalg``, ``tensor``, ``flow`` and constants.

xdsl has a part of linalg's named ops and of tensor, and no flow. Here each op is a class of xdsl with nothing but its
syntax; what it means is said in the modules that read it. Attributes carry the names that MLIR gives them, so that an
op in generic form (``"tensor.pad"(...)``) reads alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import (
    DenseResourceAttr,
    DictionaryAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue

from polyq.affine.mlir.syntax import (
    Parts,
    PlainOp,
    read_attributes,
    read_dims,
    read_group,
    read_mixed,
    read_operands,
    read_results,
    read_types,
)  # fmt: skip
from polyq.affine.mlir.tensor_syntax import TENSOR_SYNTAX

if TYPE_CHECKING:
    from polyq.affine.mlir.source import TextParser

__all__ = ["OPERATIONS", "SCALAR_NAMES"]


# ---- linalg
def _structured(p: TextParser, parts: Parts) -> None:
    """Parse ``clauses ins(..) outs(..) clauses {region}? (-> types)?``, the form of nearly all of linalg."""
    _clauses(p, parts, shorthand=True)
    ins, outs = read_group(p, "ins"), read_group(p, "outs")
    parts.operands = [*ins, *outs]
    parts.segments(len(ins), len(outs))
    arguments = _clauses(p, parts, shorthand=False)
    region = p.parse_optional_region(arguments) if arguments is not None or p.at("{") else None
    if region is not None:
        parts.regions.append(region)
    parts.results = read_results(p)
    if not parts.results:  # transpose, broadcast, reduce and map: the results are what the outs are
        parts.results = [o.type for o in outs if isinstance(o.type, TensorType)]


def _clauses(p: TextParser, parts: Parts, *, shorthand: bool) -> list[Any] | None:
    """Parse ``{..}``, ``name = attribute``, ``attrs = {..}`` and ``(arguments)`` in any number."""
    arguments = None
    while True:
        if p.at("{") and shorthand:
            if not _shorthand(p, parts):
                read_attributes(p, parts)
        elif p.at("(") and not shorthand:
            arguments = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_argument)
        elif p.parse_optional_characters("attrs") is not None:
            p.word("=")
            read_attributes(p, parts)
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
    read_attributes(p, parts)
    p.word(":")
    parts.results = [p.parse_type()]


def _terminator(p: TextParser, parts: Parts) -> None:
    read_attributes(p, parts)
    if p.parse_optional_characters("(") is not None:  # never written by MLIR, but by people
        parts.operands = read_operands(p)
        p.word(")")
        return
    start = p.pos
    names = p.parse_optional_undelimited_comma_separated_list(
        p.parse_optional_unresolved_operand, p.parse_unresolved_operand
    )
    if names:
        p.word(":")
        parts.operands = list(p.resolve_operands(names, read_types(p), start))


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
        parts.attributes["outer_dims_perm"] = read_dims(p)
    p.word("inner_dims_pos")
    p.word("=")
    parts.attributes["inner_dims_pos"] = read_dims(p)
    p.word("inner_tiles")
    p.word("=")
    tiles: list[SSAValue] = []
    parts.attributes["static_inner_tiles"] = read_mixed(p, tiles)
    p.word("into")
    target = p.parse_unresolved_operand()
    read_attributes(p, parts)
    p.word(":")
    parts.operands = [p.resolve_operand(source, p.parse_type())]
    p.word("->")
    parts.results = [p.parse_type()]
    parts.operands.append(p.resolve_operand(target, parts.results[0]))
    if padding is not None:
        parts.operands.append(padding)
    parts.operands += tiles
    parts.segments(1, 1, int(padding is not None), len(tiles))


# ---- flow, arith
def _region(p: TextParser, parts: Parts) -> None:
    """Parse ``flow.dispatch.region[workload] -> (types) {..} count(..) -> (..) {..}``."""
    if p.at("["):
        read_mixed(p, parts.operands)
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
        read_attributes(p, parts)
    parts.regions = [p.parse_region()]
    if p.parse_optional_characters("count") is not None:
        arguments = p.parse_comma_separated_list(p.Delimiter.PAREN, p.parse_argument)
        read_results(p)
        p.parse_region(arguments)


def _constant(p: TextParser, parts: Parts) -> None:
    read_attributes(p, parts)
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
    read_attributes(p, parts)
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
    **TENSOR_SYNTAX,
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

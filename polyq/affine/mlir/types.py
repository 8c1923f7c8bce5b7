"""MLIR's types, attributes and affine maps as polyq's dtypes, shapes and expressions."""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import (
    AffineMapAttr,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
)

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap

__all__ = ["dtype_of", "is_signless", "is_tensor", "map_of", "noted_dtype", "sizes_of"]

_FLOATS = {Float16Type: "f16", BFloat16Type: "bf16", Float32Type: "f32", Float64Type: "f64"}
_WIDTHS = (2, 4, 8, 16, 32, 64)


def dtype_of(kind: Attribute) -> str:
    """Return the dtype of a scalar type, or of a tensor's elements; ``index`` is i64 and ``i1`` is bool.

    Raises :class:`SpecError` for a type that polyq has not.
    """
    if isinstance(kind, TensorType):
        return dtype_of(cast("Attribute", cast("TensorType[Any]", kind).element_type))
    if isinstance(kind, IndexType):
        return "i64"
    if isinstance(kind, IntegerType):
        width = _bits(cast("Any", kind))
        if width == 1:
            return "bool"
        if width in _WIDTHS:
            return f"{'u' if kind.signedness.data == Signedness.UNSIGNED else 'i'}{width}"
    for known, name in _FLOATS.items():
        if isinstance(kind, known):
            return name
    raise SpecError(
        f"the type `{kind}` is not known; expected tensors and scalars of i1, i2, i4, i8, i16, i32, i64 (or si, ui), "
        "index, f16, bf16, f32 and f64"
    )


def _bits(kind: Any) -> int:
    return kind.width.data  # xdsl gives the type's parameters no types


def noted_dtype(kind: Attribute, noted: Attribute | None) -> str:
    """Return the dtype of a type, or the one of the same width that ``polyq.dtype`` notes."""
    dtype = dtype_of(kind)
    if not isinstance(noted, StringAttr):
        return dtype
    if noted.data[1:] != dtype[1:] or noted.data[0] not in "ui" or dtype[0] not in "ui":
        raise SpecError(f"polyq.dtype: expected u{dtype[1:]} or i{dtype[1:]} for `{kind}`, got {noted.data}")
    return noted.data


def is_signless(kind: Attribute) -> bool:
    """Whether a type is ``iN``, whose bits an operation may take as signed or unsigned."""
    if isinstance(kind, TensorType):
        kind = cast("Attribute", cast("TensorType[Any]", kind).element_type)
    if not isinstance(kind, IntegerType):
        return False
    signedness = cast("Any", kind).signedness.data
    return signedness == Signedness.SIGNLESS and _bits(cast("Any", kind)) > 1


def is_tensor(kind: Attribute) -> bool:
    """Whether a type is a ranked tensor."""
    return isinstance(kind, TensorType)


def sizes_of(kind: Attribute) -> tuple[int | None, ...]:
    """Return the extents of a tensor type, ``None`` where they are dynamic."""
    if not isinstance(kind, TensorType):
        raise SpecError(f"expected a ranked tensor, got the type `{kind}`")
    return tuple(None if n < 0 else n for n in cast("TensorType[Any]", kind).get_shape())


def map_of(attribute: Attribute, names: tuple[str, ...] | None = None) -> AffineMap:
    """Return an affine map; its dims are ``d0, d1, ..`` or ``names``."""
    if not isinstance(attribute, AffineMapAttr):
        raise SpecError(f"expected an affine_map, got `{attribute}`")
    value = attribute.data
    if value.num_symbols:
        raise SpecError(f"the map `{attribute}` has symbols; expected dims and constants only")
    dims = names or tuple(f"d{k}" for k in range(value.num_dims))
    if len(dims) != value.num_dims:
        raise SpecError(f"the map `{attribute}` has {value.num_dims} dims, expected {len(dims)}")
    return AffineMap(dims, tuple(_expression(e, dims) for e in value.results))


def _expression(e: AffineExpr, dims: tuple[str, ...]) -> Affine:
    if isinstance(e, AffineConstantExpr):
        return Affine(e.value)
    if isinstance(e, AffineDimExpr):
        return Affine.dim(dims[e.position])
    if isinstance(e, AffineBinaryOpExpr):
        left, right = _expression(e.lhs, dims), _expression(e.rhs, dims)
        if e.kind is AffineBinaryOpKind.Add:
            return left + right
        if e.kind is AffineBinaryOpKind.Mul and (left.is_constant or right.is_constant):
            return left * right.const if right.is_constant else right * left.const
        if right.is_constant and right.const > 0:
            match e.kind:
                case AffineBinaryOpKind.FloorDiv:
                    return left // right.const
                case AffineBinaryOpKind.CeilDiv:
                    return -((-left) // right.const)
                case AffineBinaryOpKind.Mod:
                    return left % right.const
                case _:
                    pass
    raise SpecError(
        f"the expression `{e}` is not affine; expected sums, products with constants, floordiv, ceildiv, mod"
    )

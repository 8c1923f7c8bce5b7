"""linalg's named ops as relations: the subscripts of each operand, and the body, as ``linalg.generic`` has them.

A contraction is a line of subscripts, a convolution follows from the letters of its layouts, so that a name is read
rather than listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.mlir.casts import convert, number
from polyq.affine.mlir.scalars import SCALAR_OPS, power
from polyq.affine.scalar import Scalar, apply

__all__ = ["Relation", "contraction", "elementwise", "relation_of"]

#: operands and the cell of the result -> what is written
Body = Callable[[Sequence[Scalar]], Scalar]


@dataclass(frozen=True, slots=True)
class Relation:
    """A structured op: its dims in order, the subscripts of every operand (the result last), and its body."""

    dims: tuple[str, ...]
    maps: tuple[tuple[Affine, ...], ...]
    body: Body
    reduced: tuple[str, ...] = ()


def _letters(dims: str, maps: Sequence[str], body: Body) -> Relation:
    """Return the relation of subscripts that are single letters; the dims are renamed ``d0, d1, ..``."""
    names = {d: Affine.dim(f"d{k}") for k, d in enumerate(dims)}
    indexed = tuple(tuple(names[d] for d in m) for m in maps)
    kept = set(maps[-1])
    return Relation(
        tuple(f"d{k}" for k in range(len(dims))), indexed, body,
        tuple(f"d{k}" for k, d in enumerate(dims) if d not in kept),
    )  # fmt: skip


# ---- contractions
_CONTRACTIONS = {
    "matmul": ("mnk", "mk", "kn", "mn"),
    "matmul_transpose_a": ("mnk", "km", "kn", "mn"),
    "matmul_transpose_b": ("mnk", "mk", "nk", "mn"),
    "batch_matmul": ("bmnk", "bmk", "bkn", "bmn"),
    "batch_matmul_transpose_a": ("bmnk", "bkm", "bkn", "bmn"),
    "batch_matmul_transpose_b": ("bmnk", "bmk", "bnk", "bmn"),
    "batch_reduce_matmul": ("bmnk", "bmk", "bkn", "mn"),
    "matvec": ("mn", "mn", "n", "m"),
    "vecmat": ("nm", "m", "mn", "n"),
    "batch_matvec": ("bmk", "bmk", "bk", "bm"),
    "batch_vecmat": ("bnk", "bk", "bkn", "bn"),
    "dot": ("m", "m", "m", ""),
    "mmt4d": ("mnkabc", "mkac", "nkbc", "mnab"),
    "batch_mmt4d": ("zmnkabc", "zmkac", "znkbc", "zmnab"),
}
_QUANTIZED = {"quantized_matmul": "matmul", "quantized_batch_matmul": "batch_matmul"}


def contraction(*, signed: bool = True, zero_points: bool = False) -> Body:
    """Return ``out + a * b``, the operands converted to the result's dtype, less their zero points if there are any."""

    def body(values: Sequence[Scalar]) -> Scalar:
        out = values[-1]
        a, b, *zeros = (convert(v, out.dtype, signed=signed) for v in values[:-1])
        if zero_points:
            a, b = apply("sub", a, zeros[0]), apply("sub", b, zeros[1])
        if out.dtype == "bool":
            return apply("or", out, apply("and", a, b))
        return apply("add", out, apply("mul", a, b))

    return body


# ---- convolutions and poolings
_CONV = re.compile(r"(depthwise_)?conv_([123])d(?:_([a-z]+)_([a-z]+?))?(_q)?")
_POOL = re.compile(r"pooling_([a-z]+)_(sum|max|min)(_unsigned)?")
_SPACE = "dhw"


def _window(letter: str, number_of: dict[str, int], strides: Sequence[int], dilations: Sequence[int]) -> Affine:
    """Return the subscript of the image along one axis of space: ``o * stride + k * dilation``."""
    k = number_of[letter]
    return Affine.dim(f"o{letter}") * strides[k] + Affine.dim(f"k{letter}") * dilations[k]


def _spatial(
    letters: str, steps: tuple[Sequence[int], Sequence[int]]
) -> tuple[dict[str, Affine], dict[str, Affine], dict[str, Affine]]:
    """Return how the axes of space are subscripted in the image, the filter and the result."""
    numbers = {letter: k for k, letter in enumerate(letters)}
    strides = tuple(steps[0]) or (1,) * len(letters)
    dilations = tuple(steps[1]) or (1,) * len(letters)
    if len(strides) == 1 or len(dilations) == 1:
        strides, dilations = strides * (len(letters) // len(strides)), dilations * (len(letters) // len(dilations))
    image = {x: _window(x, numbers, strides, dilations) for x in letters}
    return image, {x: Affine.dim(f"k{x}") for x in letters}, {x: Affine.dim(f"o{x}") for x in letters}


def _subscripts(layout: str, space: dict[str, Affine]) -> tuple[Affine, ...]:
    return tuple(space.get(x, Affine.dim(x)) for x in layout)


def _relation(result: Sequence[str], others: Sequence[str], maps: Sequence[tuple[Affine, ...]], body: Body) -> Relation:
    """Return the relation with its dims renamed ``d0, d1, ..``: those of the result, then the others."""
    dims = tuple(dict.fromkeys([*result, *others]))
    names = {d: Affine.dim(f"d{k}") for k, d in enumerate(dims)}
    renamed = tuple(tuple(e.substitute(names) for e in m) for m in maps)
    kept = {d for e in maps[-1] for d in e.dims()}
    return Relation(
        tuple(f"d{k}" for k in range(len(dims))), renamed, body,
        tuple(f"d{k}" for k, d in enumerate(dims) if d not in kept),
    )  # fmt: skip


def _dims_of(maps: Sequence[Sequence[Affine]]) -> list[str]:
    return [d for m in maps for e in m for d in sorted(e.dims())]


def _convolution(found: re.Match[str], steps: tuple[Sequence[int], Sequence[int]]) -> Relation:
    depthwise, rank, image, kernel, quantized = found.groups()
    space = _SPACE[3 - int(rank) :]
    if image is None:  # conv_1d, conv_2d and conv_3d have no channels
        image, kernel = space, space
    in_image, in_filter, in_result = _spatial("".join(x for x in image if x in space), steps)
    # letters that image and filter share but for space: channels that are summed, or kept in a depthwise convolution
    if depthwise:
        result = image + ("m" if "m" in kernel else "")
    elif "f" in kernel:
        result = image.replace("c", "f")
    else:
        result = image
    maps = [_subscripts(image, in_image), _subscripts(kernel, in_filter)]
    if quantized:
        maps += [(), ()]
    target = _subscripts(result, in_result)
    others = _dims_of([_subscripts(kernel, in_filter), _subscripts(image, in_filter)])
    body = contraction(zero_points=quantized is not None)
    return _relation([next(iter(e.dims())) for e in target], others, [*maps, target], body)


def _pooling(found: re.Match[str], steps: tuple[Sequence[int], Sequence[int]]) -> Relation:
    layout, kind, is_unsigned = found.groups()
    space = "".join(x for x in layout if x in _SPACE)
    in_image, in_filter, in_result = _spatial(space, steps)
    target = _subscripts(layout, in_result)

    def body(values: Sequence[Scalar]) -> Scalar:
        out = values[-1]
        value = convert(values[0], out.dtype, signed=is_unsigned is None)
        if is_unsigned:
            return SCALAR_OPS[f"arith.{kind}ui"]((out, value), out.dtype, "")
        return apply({"sum": "add"}.get(kind, kind), out, value)

    maps = [_subscripts(layout, in_image), _subscripts(space, in_filter), target]
    return _relation([next(iter(e.dims())) for e in target], [f"k{x}" for x in space], maps, body)


# ---- elementwise
_UNARY = {
    "abs": "abs", "ceil": "math.ceil", "erf": "erf", "exp": "exp", "floor": "floor", "log": "log", "negf": "neg",
    "round": "math.round", "rsqrt": "math.rsqrt", "sqrt": "sqrt", "tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "max": "max", "min": "min", "max_signed": "max", "min_signed": "min",
}  # fmt: skip


def elementwise(kind: str, *, signed: bool = True) -> tuple[int, Body]:
    """Return how many operands an elementwise function of linalg takes, and its body."""

    def body(values: Sequence[Scalar]) -> Scalar:
        dtype = values[-1].dtype
        if kind == "select":
            return apply("select", values[0], *(convert(v, dtype, signed=signed) for v in values[1:-1]))
        a = [convert(v, dtype, signed=signed) for v in values[:-1]]
        if kind in _UNARY:
            fn = _UNARY[kind]
            return SCALAR_OPS[fn](a, dtype, "") if "." in fn else apply(fn, a[0])
        match kind:
            case "copy":
                return a[0]
            case "square":
                return apply("mul", a[0], a[0])
            case "reciprocal":
                return apply("div", number(1, dtype), a[0])
            case "div":
                return SCALAR_OPS["arith.divf" if dtype[0] in "fb" else "arith.divsi"](a, dtype, "")
            case "div_unsigned" | "max_unsigned" | "min_unsigned":
                return SCALAR_OPS[f"arith.{kind.partition('_')[0]}ui"](a, dtype, "")
            case "powf":
                return power(a, dtype, "")
            case _ if dtype == "bool" and kind in ("add", "mul"):
                return apply({"add": "or", "mul": "and"}[kind], *a)
            case _:
                return apply(_BINARY[kind], *a)

    if kind in _UNARY or kind in ("copy", "square", "reciprocal"):
        return 1, body
    if kind in _BINARY or kind in ("div", "div_unsigned", "max_unsigned", "min_unsigned", "powf"):
        return 2, body
    if kind == "select":
        return 3, body
    raise SpecError(f"the elementwise function `{kind}` is not known; docs/mlir.md lists those that are")


def relation_of(
    name: str, ranks: Sequence[int], steps: tuple[Sequence[int], Sequence[int]], *, signed: bool = True
) -> Relation:
    """Return the relation of a named op.

    ``ranks`` are those of its operands, the result last; ``steps`` its strides and dilations; ``signed`` how integers
    are extended.
    """
    if name in _CONTRACTIONS:
        dims, *maps = _CONTRACTIONS[name]
        return _letters(dims, maps, contraction(signed=signed))
    if name in _QUANTIZED:
        dims, left, right, out = _CONTRACTIONS[_QUANTIZED[name]]
        return _letters(dims, (left, right, "", "", out), contraction(signed=signed, zero_points=True))
    for pattern, make in ((_CONV, _convolution), (_POOL, _pooling)):
        found = pattern.fullmatch(name)
        if found is not None:
            return make(found, steps)
    count, body = elementwise(name, signed=signed)
    rank = ranks[-1]
    dims = tuple(f"d{k}" for k in range(rank))
    index = tuple(Affine.dim(d) for d in dims)
    maps = [index if r or not rank else () for r in ranks]
    if len(ranks) != count + 1:
        raise SpecError(f"linalg.{name}: expected {count} operand{'s' if count > 1 else ''}, got {len(ranks) - 1}")
    return Relation(dims, tuple(maps), body)

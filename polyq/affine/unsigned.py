"""Inputs of signed integers whose bits every reader takes as unsigned: one spec, told with the type that is read."""

from __future__ import annotations

from dataclasses import replace

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, walk
from polyq.affine.spec import Spec

__all__ = ["bits_as_read"]


def bits_as_read(spec: Spec) -> Spec:
    """Return the spec with each such input declared with the unsigned type of its width.

    rewrite: ``u8(a[i])`` with ``a: i8`` -> ``a[i]`` with ``a: u8``
    requires: 1. ``a`` is an input and no output; 2. every load of it stands directly in that cast. The cast keeps the
    bits, and the array is the same memory, so that nothing else changes.

    >>> from polyq.affine.notation import parse
    >>> print(bits_as_read(parse("y[i] = f32(u8(a[i]))", a=("i8", (4,)))))
    a: u8[4]
    y[i] = f32(a[i])
    """
    chosen = {t.name: _unsigned(t.dtype) for t in spec.inputs if dtypes.info(t.dtype).kind == "i"}
    for name in spec.output_names:
        chosen.pop(name, None)
    loaded: set[str] = set()
    for op in spec.ops:
        _drop_others(op.body, chosen, loaded)
    chosen = {name: dtype for name, dtype in chosen.items() if name in loaded}
    if not chosen:
        return spec
    tensors = tuple(replace(t, dtype=chosen.get(t.name, t.dtype)) for t in spec.all_tensors)
    return spec.with_ops(tuple(replace(op, body=_retyped(op.body, chosen)) for op in spec.ops), tensors)


def _unsigned(dtype: str) -> str:
    return f"u{dtype[1:]}"


def _drop_others(body: Scalar, chosen: dict[str, str], loaded: set[str]) -> None:
    """Take those tensors out of ``chosen`` that ``body`` reads otherwise; note those that it reads."""
    cast = sum(isinstance(n, Cast) and _is_read_as(n, chosen) for n in walk(body))
    loads = [n for n in walk(body) if isinstance(n, Load) and n.tensor in chosen]
    loaded.update(n.tensor for n in loads)
    if cast == len(loads):
        return
    for name in {n.tensor for n in loads}:
        inside = sum(isinstance(n, Cast) and _is_read_as(n, {name: chosen[name]}) for n in walk(body))
        if inside < sum(n.tensor == name for n in loads):
            del chosen[name]


def _is_read_as(node: Cast, chosen: dict[str, str]) -> bool:
    return isinstance(node.arg, Load) and chosen.get(node.arg.tensor) == node.dtype


def _retyped(s: Scalar, chosen: dict[str, str]) -> Scalar:
    match s:
        case Cast(Load() as load, dtype) if chosen.get(load.tensor) == dtype:
            return replace(load, dtype=dtype)
        case Cast(arg, dtype):
            return Cast(_retyped(arg, chosen), dtype)
        case Apply():
            return replace(s, args=tuple(_retyped(a, chosen) for a in s.args))
        case Const() | Index() | Load():
            return s

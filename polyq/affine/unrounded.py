"""A quantized program without its roundings: what it means in exact arithmetic, for the proof of its rewrites.

Where ``x.q = i16(rint(x * inverse))``, the rounding is left out, and so is the case of a group of zeros in what makes
``inverse`` and ``step``. Then ``step * x.q`` is ``x`` in exact arithmetic, if each element meets the step of its own
group, and the program has to compute what the user wrote. All else (which codes and zero points meet which elements,
how sums are split and put together) stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, loads
from polyq.affine.spec import Op, Spec

__all__ = ["unrounded"]


def unrounded(spec: Spec) -> Spec:
    """Return the spec with elements in place of their roundings, and sums of these in floats."""
    exact: dict[str, Op] = {}
    floats: dict[str, str] = {}
    for op in spec.ops:
        quotient = _rounded_quotient(spec, op)
        if quotient is not None:
            exact[op.name] = replace(op, body=quotient)
            floats[op.target] = quotient.dtype
            exact |= {o.name: replace(o, body=o.body.args[2]) for o in _steps(spec, op) if isinstance(o.body, Apply)}
        elif _is_remainder(op, floats):
            floats[op.target] = next(floats[r.tensor] for r in op.reads if r.tensor in floats)
            exact[op.name] = replace(op, body=Const(0.0, floats[op.target]))
        elif dtypes.is_int(op.body.dtype) and any(r.tensor in floats for r in op.reads):
            floats[op.target] = next(floats[r.tensor] for r in op.reads if r.tensor in floats)
    ops = tuple(_in_floats(exact.get(op.name, op), floats) for op in spec.ops)
    tensors = tuple(replace(t, dtype=floats.get(t.name, t.dtype)) for t in spec.all_tensors)
    return spec.with_ops(ops, tensors)


def _rounded_quotient(spec: Spec, op: Op) -> Scalar | None:
    """Return ``x * inverse`` of an op ``i16(rint(x * inverse))`` whose inverse is that of a step."""
    match op.body:
        case Cast(Apply("rint", (Apply("mul", (_, Load()), _) as quotient,), _), dtype) if dtypes.is_int(dtype):
            return quotient if _steps(spec, op) else None
        case _:
            return None


def _steps(spec: Spec, op: Op) -> list[Op]:
    """Return the op whose result ``op`` multiplies by, ``select(zeros, 0, b / a)``, and those of ``a / b``."""
    inverse = spec.writers(op.reads[-1].tensor)
    if len(inverse) != 1:
        return []
    match inverse[0].body:
        case Apply("select", (zeros, none, Apply("div", (b, a), dtype)), _) if none == Const(0.0, dtype):
            step = Apply("select", (zeros, none, Apply("div", (a, b), dtype)), dtype)
            same = _nameless(inverse[0], step)
            steps = [o for o in spec.ops if replace(o, name="", target="") == same]
            return [*steps, *inverse] if steps else []
        case _:
            return []


def _nameless(op: Op, body: Scalar) -> Op:
    return replace(op, name="", target="", body=body)


def _is_remainder(op: Op, floats: dict[str, str]) -> bool:
    """Whether an op rounds what a rounding left over, in a unit of its own."""
    match op.body:
        case Cast(Apply("rint", (Apply("mul", (Apply("sub", (_, Cast(Load(high), _)), _), Const()), _),), _), dtype):
            return high in floats and dtypes.is_int(dtype)
        case _:
            return False


def _in_floats(op: Op, floats: dict[str, str]) -> Op:
    if op.target not in floats and not any(r.tensor in floats for r in op.reads):
        return op
    body = op.body
    if op.target in floats and dtypes.is_int(body.dtype):
        return replace(op, body=_as_float(body, floats, floats[op.target]))
    return replace(op, body=_converted(body, floats))


def _converted(s: Scalar, floats: dict[str, str]) -> Scalar:
    """Return a float expression in which conversions of what is a float now are gone."""
    match s:
        case Cast(arg, dtype) if dtypes.is_float(dtype) and any(r.tensor in floats for r in loads(arg)):
            return _as_float(arg, floats, dtype)
        case Cast(arg, dtype):
            return Cast(_converted(arg, floats), dtype)
        case Apply():
            return replace(s, args=tuple(_converted(a, floats) for a in s.args))
        case Load(tensor) if tensor in floats:
            return replace(s, dtype=floats[tensor])
        case _:
            return s


def _as_float(s: Scalar, floats: dict[str, str], dtype: str) -> Scalar:
    """Return an integer expression as the same one of floats."""
    match s:
        case Const(value, _):
            return Const(float(value), dtype)
        case Load(tensor) if tensor in floats:
            return replace(s, dtype=floats[tensor])
        case Cast(arg, _) if any(r.tensor in floats for r in loads(arg)):
            return _as_float(arg, floats, dtype)
        case Apply() if dtypes.is_int(s.dtype):
            return replace(s, args=tuple(_as_float(a, floats, dtype) for a in s.args), dtype=dtype)
        case Load() | Cast() | Index() | Apply():
            return s if s.dtype == dtype else Cast(s, dtype)

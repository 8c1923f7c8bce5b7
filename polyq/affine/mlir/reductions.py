"""Which reduction a body is: ``out`` combined with something that does not look at it."""

from __future__ import annotations

import math

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.extents import Shape, at_most
from polyq.affine.mlir.casts import number
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, apply, format_scalar, walk

__all__ = ["guarded", "reduction", "tightened"]

_OPERATORS = {"add": "+", "mul": "*", "min": "min", "max": "max"}


def reduction(value: Scalar, out: Load, *, number_start: bool) -> tuple[str, Scalar]:
    """Return the operator and the term of a body that combines ``out`` with a term.

    ``number_start`` says that the start value is known and no NaN, so that a maximum which prefers numbers is one.
    """
    if isinstance(value, Apply):
        mine = [a for a in value.args if a == out]
        rest = [a for a in value.args if a != out]
        if len(mine) == 1 and len(rest) == 1 and out not in walk(rest[0]):
            if value.fn in _OPERATORS:
                return _OPERATORS[value.fn], rest[0]
            if value.fn == "sub" and value.args[0] == out:
                return "+", apply("neg", rest[0])
        chain = _integer_sum(value, out)
        if chain is not None:
            return "+", chain
        found = _preferring_numbers(value, out)
        if found is not None and number_start:
            return found
        if found is not None:
            raise SpecError(
                f"a reduction by {found[0]} that prefers numbers to NaN has to start from a constant; fill its result"
            )
    raise SpecError(
        "the body reduces in a way that is not known: expected out + term, out - term, out * term, or a minimum or "
        f"maximum of out and a term that does not use out; got {format_scalar(value)} with out = {out.tensor}"
    )


def _integer_sum(value: Scalar, out: Load) -> Scalar | None:
    """Return the rest of a nested integer sum that has ``out`` once: there the order does not matter."""
    if not isinstance(value, Apply) or value.fn != "add" or dtypes.is_float(value.dtype):
        return None
    for inner, other in (value.args, value.args[::-1]):
        if out in walk(other):
            continue
        rest = other if inner == out else None
        if rest is None:
            found = _integer_sum(inner, out)
            rest = None if found is None else apply("add", found, other)
        if rest is not None:
            return rest
    return None


def _preferring_numbers(value: Apply, out: Load) -> tuple[str, Scalar] | None:
    """Return operator and term of ``select(a != a, b, select(b != b, a, max(a, b)))``, where ``out`` is a or b."""
    match value:
        case Apply("select", (_, first, Apply("select", (_, second, Apply(("min" | "max") as fn, (a, b), _)), _)), _):
            other = b if a == out else a
            if out in (a, b) and (first, second) == (b, a):
                if out in walk(other):
                    return None
                worst = number(math.inf if fn == "min" else -math.inf, value.dtype)
                return fn, apply("select", apply("ne", other, other), worst, other)
        case _:
            pass
    return None


def guarded(value: Scalar, out: Load) -> tuple[Scalar, tuple[Constraint, ...]]:
    """Split ``select(condition, value, out)``: where the condition on dims does not hold, the cell stays as it is."""
    match value:
        case Apply("select", (condition, inner, other), _) if other == out:
            found = _constraints(condition)
            return (inner, found) if found is not None else (value, ())
        case _:
            return value, ()


def tightened(
    dims: tuple[str, ...], extents: Shape, where: tuple[Constraint, ...]
) -> tuple[Shape, tuple[Constraint, ...]]:
    """Take the upper ends that constraints give single dims into the box."""
    ends = dict(zip(dims, extents, strict=True))
    kept: list[Constraint] = []
    for c in where:
        found = c.expr.dims()
        dim = next(iter(found), "")
        if not c.equality and len(found) == 1 and c.expr.coefficient(Dim(dim)) == -1:
            end = c.expr + Affine.dim(dim) + 1
            if not end.dims() and at_most(end, ends[dim]):
                ends[dim] = Affine(max(end.const, 0)) if end.is_constant else end
                continue
        kept.append(c)
    return tuple(ends.values()), tuple(kept)


def _affine(s: Scalar) -> Affine | None:
    match s:
        case Index(expr, _):
            return expr
        case Const(value, _) if isinstance(value, int):
            return Affine(value)
        case Cast(Index(expr, _), "i64"):
            return expr
        case _:
            return None


def _constraints(s: Scalar) -> tuple[Constraint, ...] | None:
    if not isinstance(s, Apply) or len(s.args) != 2:
        return None
    if s.fn == "and":
        left, right = _constraints(s.args[0]), _constraints(s.args[1])
        return None if left is None or right is None else (*left, *right)
    a, b = _affine(s.args[0]), _affine(s.args[1])
    if a is None or b is None:
        return None
    made = {"lt": b - a - 1, "le": b - a, "gt": a - b - 1, "ge": a - b, "eq": a - b}
    return (Constraint(made[s.fn], s.fn == "eq"),) if s.fn in made else None

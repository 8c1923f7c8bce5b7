"""What is never negative by its form: no rounding makes a negative number of a square or of a sum of squares.

A root needs this where its argument is no larger than its error. Every operation of IEEE 754 rounds the exact result,
so that one that is not negative stays so, whatever errors its operands have.
"""

from __future__ import annotations

from polyq.affine.dtypes import info
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.affine.spec import Spec

__all__ = ["holds", "not_negative"]


def not_negative(spec: Spec) -> frozenset[str]:
    """Return the tensors that hold nothing negative: unsigned ones, and those whose every writer gives nothing else."""
    known = {t.name for t in spec.all_tensors if info(t.dtype).kind in "ub" or t.name not in spec.input_names}
    changed = True
    while changed:  # what is assumed of a tensor stands unless one of its writers, reading others, breaks it
        changed = False
        for op in spec.ops:
            if op.target in known and not holds(op.body, known):
                known.discard(op.target)
                changed = True
    return frozenset(known)


def holds(s: Scalar, known: frozenset[str] | set[str]) -> bool:
    """Whether an expression is never negative, given the tensors that hold nothing negative (or it is NaN)."""
    match s:
        case Const(value, _):
            return bool(value >= 0)
        case Load(tensor, _, dtype):
            return tensor in known or info(dtype).kind in "ub"
        case Cast(arg, dtype):
            wraps = info(dtype).kind == "i" and info(arg.dtype).kind != "f"
            return info(dtype).kind in "ub" or (not wraps and holds(arg, known))
        case Index():
            return False
        case Apply("abs" | "exp" | "sqrt", _, dtype):
            return info(dtype).kind == "f"
        case Apply("mul", (a, b), dtype) if info(dtype).kind == "f":
            return a == b or (holds(a, known) and holds(b, known))
        case Apply("max", (a, b), _):  # of NaN and a number it may be either
            return holds(a, known) or holds(b, known)
        case Apply("select", (_, a, b), _) | Apply("min" | "div", (a, b), _):
            return holds(a, known) and holds(b, known)
        case Apply("add", (a, b), dtype) if info(dtype).kind == "f":
            return holds(a, known) and holds(b, known)
        case Apply(fn, args, _):
            return fn == "ldexp" and holds(args[0], known)

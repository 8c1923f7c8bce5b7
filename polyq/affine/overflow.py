"""Where the integer arithmetic of a program may leave its type's range: notes for the reader, since it wraps there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, format_scalar
from polyq.affine.spec import Op

__all__ = ["integer_range", "overflow_notes"]

Range = tuple[int, int]


def overflow_notes(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return a note for each operation and each reduction whose result its integer type may not hold.

    Ranges come from the types of tensors, literals and constant extents; index values of unknown range say nothing.
    """
    found: dict[str, None] = {}
    for op in ops:
        box = {d: (0, max(e.const - 1, 0)) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant}
        body = _Ranges(box, lambda note, op=op: found.setdefault(f"op {op.name}: {note}")).of(op.body)
        note = _reduction(op, body)
        if note is not None:
            found[f"op {op.name}: {note}"] = None
    return tuple(found)


def integer_range(s: Scalar, box: Mapping[str, Range]) -> Range | None:
    """Return the range of an integer scalar whose arithmetic never wraps; ``None`` for a float, or where it may.

    ``box`` holds the ranges of dims.

    >>> integer_range(Cast(Load("w", (), "u4"), "i32"), {})
    (0, 15)
    """
    notes: list[str] = []
    found = _Ranges(dict(box), notes.append).of(s)
    return None if notes else found


class _Ranges:
    """Ranges of integer scalars, and notes on operations that leave them."""

    def __init__(self, box: dict[str, Range], note: Callable[[str], object]) -> None:
        self.box = box
        self.note = note

    def of(self, s: Scalar) -> Range | None:
        """Return the range of an integer or bool scalar, ``None`` where it is a float or unknown."""
        match s:
            case Const(value, dtype):
                return None if dtypes.is_float(dtype) else (int(value), int(value))
            case Index(expr, _):
                return expr.bounds(self.box)
            case Load(_, _, dtype):
                return None if dtypes.is_float(dtype) else dtypes.value_range(dtype)
            case Cast(arg, dtype):
                inner = self.of(arg)
                if dtypes.is_float(dtype):
                    return None
                whole = dtypes.value_range(dtype)
                return inner if inner is not None and whole[0] <= inner[0] and inner[1] <= whole[1] else whole
            case Apply(fn, args, dtype):
                return self._apply(s, fn, [self.of(a) for a in args], dtype)

    def _apply(self, s: Scalar, fn: str, args: list[Range | None], dtype: str) -> Range | None:
        if dtypes.is_float(dtype):
            return None
        whole = dtypes.value_range(dtype)
        known = [a for a in (args[1:] if fn == "select" else args) if a is not None]
        if len(known) < len(args) - (fn == "select"):
            return None if fn in ("add", "sub", "mul", "neg", "floordiv", "abs", "select", "min", "max") else whole
        span = _span(fn, known)
        if span is None:
            return whole
        if span[0] < whole[0] or span[1] > whole[1]:
            self.note(
                f"`{format_scalar(s)}` ranges from {span[0]} to {span[1]} and wraps outside {dtype} "
                f"({whole[0]} to {whole[1]}); cast its operands to a wider type if that is not meant"
            )
            return whole
        return span


def _span(fn: str, args: list[Range]) -> Range | None:
    """Return the exact range of ``fn`` over independent operands; ``None`` for functions that never leave the type."""
    (a, b), (c, d) = args[0], args[-1]
    match fn:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "neg":
            return -b, -a
        case "abs":
            return (0 if a <= 0 <= b else min(abs(a), abs(b))), max(abs(a), abs(b))
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "select":
            return min(a, c), max(b, d)
        case "floordiv":
            divisors = [v for v in (c, d, -1, 1) if v != 0 and c <= v <= d]
            quotients = [v // w for v in (a, b) for w in divisors]
            return (min(quotients), max(quotients)) if quotients else None
        case _:
            return None


def _reduction(op: Op, body: Range | None) -> str | None:
    if op.reduce not in ("+", "*") or body is None or dtypes.is_float(op.body.dtype):
        return None
    low, high = dtypes.value_range(op.body.dtype)
    kept = {d for e in op.index if len(e.terms) == 1 for d in e.dims()}
    sizes = [e for d, e in zip(op.dims, op.extents, strict=True) if d not in kept]
    terms = 1
    symbolic = [str(e) for e in sizes if not e.is_constant]
    for e in sizes:
        terms *= e.const if e.is_constant else 1
    if op.reduce == "*":
        if max(abs(body[0]), abs(body[1])) <= 1:
            return None
    elif body == (0, 0) or (not symbolic and low <= terms * body[0] and terms * body[1] <= high):
        return None
    count = " times ".join([*symbolic, *([str(terms)] if terms != 1 or not symbolic else [])])
    what = "sum" if op.reduce == "+" else "product"
    return (
        f"the {what} of {count} terms from {body[0]} to {body[1]} may leave {op.body.dtype} ({low} to {high}) and "
        "wrap; cast the terms to a wider type if that is not meant"
    )

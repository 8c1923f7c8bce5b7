"""Operations on bits, as the arithmetic that computes them."""

from __future__ import annotations

from collections.abc import Sequence

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.mlir.casts import Rule, cast, number, select, unsigned, zero
from polyq.affine.scalar import Apply, Cast, Const, Index, Scalar, apply

__all__ = ["bit_and", "bit_or", "bit_xor", "possible_bits", "shift"]


# ---- bits
def possible_bits(s: Scalar) -> int:
    """Return a mask of the bits that may be set in an integer of at most 64 bits."""
    width = dtypes.info(s.dtype).bits if s.dtype != "bool" else 1
    everything = (1 << width) - 1
    match s:
        case Const(value, _):
            return int(value) & everything
        case Cast(arg, _) if arg.dtype != "bool" and not dtypes.is_float(arg.dtype):
            inner = possible_bits(arg)
            bits = dtypes.info(arg.dtype).bits
            if dtypes.info(arg.dtype).kind == "i" and inner >> (bits - 1):
                return everything
            return inner & everything
        case Cast(arg, _) if arg.dtype == "bool":
            return 1
        case Apply("mod", (_, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return int(m) - 1
        case Apply("mul", (a, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return (possible_bits(a) * int(m)) & everything
        case Apply("floordiv", (a, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return possible_bits(a) // int(m) if dtypes.info(s.dtype).kind == "u" else everything
        case Apply("add", (a, b), _) if not possible_bits(a) & possible_bits(b):
            return possible_bits(a) | possible_bits(b)
        case _:
            return everything


def _bit(s: Scalar, k: int) -> Scalar:
    """Return bit ``k`` of an unsigned integer, as 0 or 1."""
    shifted = apply("floordiv", s, number(1 << k, s.dtype)) if k else s
    return apply("mod", shifted, number(2, s.dtype))


def bit_and(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    """Return ``and`` of two integers or bools: the bits that a constant leaves, else bit by bit."""
    if dtype == "bool":
        return apply("and", a[0], a[1])
    x, y = (unsigned(a[1]), unsigned(a[0])) if isinstance(a[0], Const) else (unsigned(a[0]), unsigned(a[1]))
    if isinstance(y, Const):
        low = (int(y.value) & -int(y.value)).bit_length() - 1
        run = int(y.value) >> max(low, 0)
        if not y.value:
            return zero(Const(0, dtype))
        if not run & (run + 1):  # a run of ones: shift, cut, shift back
            shifted = apply("floordiv", x, number(1 << low, x.dtype)) if low else x
            whole = (low + run.bit_length()) == dtypes.info(x.dtype).bits
            cut = shifted if whole else apply("mod", shifted, number(run + 1, x.dtype))
            return cast(apply("mul", cut, number(1 << low, x.dtype)) if low else cut, dtype)
    wanted = [k for k in range(dtypes.info(x.dtype).bits) if (possible_bits(x) & possible_bits(y)) >> k & 1]
    if len(wanted) > 8:
        raise SpecError(
            f"`and` of two {dtype} values that share {len(wanted)} bits has no form in polyq; expected a constant "
            "mask, or at most 8 shared bits"
        )
    total: Scalar = number(0, x.dtype)
    for k in wanted:
        both = apply("mul", _bit(x, k), _bit(y, k))
        total = apply("add", total, apply("mul", both, number(1 << k, x.dtype)))
    return cast(total, dtype)


def bit_or(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    """Return ``or`` of two integers or bools."""
    if dtype == "bool":
        return apply("or", a[0], a[1])
    if not possible_bits(a[0]) & possible_bits(a[1]):
        return apply("add", a[0], a[1])
    return apply("sub", apply("add", a[0], a[1]), bit_and(a, dtype, p))


def bit_xor(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    """Return ``xor`` of two integers or bools."""
    if dtype == "bool":
        return apply("ne", a[0], a[1])
    for x, y in ((a[0], a[1]), (a[1], a[0])):
        if isinstance(y, Const) and int(y.value) == -1:
            return apply("sub", y, x)
        if isinstance(y, Const) and int(y.value) in (dtypes.value_range(dtype)[0], -dtypes.value_range(dtype)[0]):
            return apply("add", x, y)  # the sign bit: a sum that wraps
    both = bit_and(a, dtype, p)
    return apply("sub", apply("sub", apply("add", a[0], a[1]), both), both)


def shift(kind: str) -> Rule:
    """Return the rule of a shift by a constant: ``left``, ``right`` (zeros come in) or ``signed``."""
    def rule(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
        if not isinstance(a[1], (Const, Index)) or (isinstance(a[1], Index) and not a[1].expr.is_constant):
            raise SpecError("a shift by a value has no form in polyq; expected a constant")
        by = int(a[1].value) if isinstance(a[1], Const) else a[1].expr.const
        bits = dtypes.info(dtype).bits
        if not 0 <= by < bits:
            raise SpecError(f"a shift of {dtype} by {by}: expected 0 to {bits - 1}")
        if not by:
            return a[0]
        if kind == "left":
            return apply("mul", a[0], number(1 << by, dtype))
        if kind == "right":
            x = unsigned(a[0])
            return cast(apply("floordiv", x, number(1 << by, x.dtype)), dtype)
        if by == bits - 1:  # the divisor would not fit the type
            return select(apply("lt", a[0], zero(a[0])), number(-1, dtype), number(0, dtype))
        return apply("floordiv", a[0], number(1 << by, dtype))

    return rule

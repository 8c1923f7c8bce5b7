"""Constants and casts of scalars: what the rules of ``arith`` and ``math`` are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyq.affine import dtypes
from polyq.affine.scalar import Cast, Const, Scalar, apply

__all__ = ["Rule", "cast", "convert", "extended", "holds", "number", "select", "unsigned", "zero"]


#: operands, the dtype of the result, the predicate of a comparison -> the result
Rule = Callable[[Sequence[Scalar], str, str], Scalar]


def number(value: float, dtype: str) -> Const:
    """Return a constant of a dtype; integers are taken modulo its range."""
    if dtypes.is_float(dtype):
        return Const(float(value), dtype)
    if dtype == "bool":
        return Const(bool(value), dtype)
    low, high = dtypes.value_range(dtype)
    return Const((int(value) - low) % (high - low + 1) + low, dtype)


def cast(s: Scalar, dtype: str) -> Scalar:
    """Return ``s`` as ``dtype``; constants are converted at once where that is exact."""
    if s.dtype == dtype:
        return s
    if isinstance(s, Const) and not dtypes.is_float(s.dtype) and not dtypes.is_float(dtype) and dtype != "bool":
        return number(s.value, dtype)
    if isinstance(s, Cast) and holds(s.dtype, s.arg.dtype):
        return cast(s.arg, dtype)  # a cast that kept every value says nothing
    return Cast(s, dtype)


def holds(wide: str, narrow: str) -> bool:
    """Whether an integer type has every value of another, which is no bool."""
    if not dtypes.is_int(wide) or not dtypes.is_int(narrow):
        return False
    a, b = dtypes.value_range(wide), dtypes.value_range(narrow)
    return a[0] <= b[0] and b[1] <= a[1]


def unsigned(s: Scalar) -> Scalar:
    """Return the same bits as an unsigned integer."""
    return cast(s, "u" + s.dtype[1:]) if dtypes.info(s.dtype).kind == "i" else s


def extended(s: Scalar) -> Scalar:
    """Return a scalar whose value is that of the bits as an unsigned integer."""
    if isinstance(s, Cast) and dtypes.info(s.arg.dtype).kind == "u" and holds(s.dtype, s.arg.dtype):
        return s  # never negative
    return unsigned(s)


def convert(s: Scalar, dtype: str, *, signed: bool = True) -> Scalar:
    """Return ``s`` converted as linalg's named ops do: integers extend by sign, or by zeros if not ``signed``."""
    return cast(s if signed else unsigned(s), dtype)


def select(c: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """Return ``a`` where the condition holds, else ``b``."""
    return apply("select", c, a, b)


def zero(s: Scalar) -> Const:
    """Return 0 of the dtype of ``s``."""
    return number(0, s.dtype)

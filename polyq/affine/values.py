"""Values of a body under construction: typed scalars, and literals whose dtype is still open.

A literal takes the dtype of the operand it meets; alone, it is ``f32`` or, if integral, ``i64``. Index arithmetic that
stays affine is kept as one :class:`~polyq.affine.scalar.Index`, so that equal index values are equal nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.overflow import integer_range
from polyq.affine.scalar import FUNCTIONS, Cast, Const, Index, Scalar, apply

__all__ = ["FUNCTION_NAMES", "Literal", "Value", "call", "cast", "combine", "literal", "settle"]

#: the functions of index notation and of traced bodies, by name
FUNCTION_NAMES = ("exp", "log", "sqrt", "tanh", "erf", "abs", "floor", "rint", "min", "max", "select")


@dataclass(frozen=True, slots=True)
class Literal:
    """A value without a dtype yet; ``make`` gives the node for one. ``value`` is the number, if it is just one."""

    integral: bool
    make: Callable[[str], Scalar]
    value: int | float | None = None


Value = Scalar | Literal


def literal(value: int | float) -> Literal:
    """Return the literal ``value``; integers fit any numeric dtype whose range holds them, floats any float dtype."""

    def make(dtype: str) -> Scalar:
        if dtypes.is_float(dtype):
            return Const(_as_float(value), dtype)
        if dtypes.info(dtype).kind == "b":
            raise SpecError(f"the literal {value} stands where a bool is expected; compare it, such as x != 0")
        low, high = dtypes.value_range(dtype)
        if isinstance(value, float):
            raise SpecError(f"the literal {value} is a float and its other operand has dtype {dtype}; cast one of them")
        if not low <= value <= high:
            raise SpecError(f"the literal {value} does not fit {dtype} ({low} to {high}); cast the other operand")
        return Const(value, dtype)

    return Literal(not isinstance(value, float), make, value)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"the literal {value} is too large for a float") from None


def settle(value: Value, dtype: str | None = None) -> Scalar:
    """Return ``value`` with its dtype fixed: a literal becomes ``dtype``, or ``i64`` or ``f32`` when alone.

    >>> settle(literal(2)).dtype, settle(literal(2.5)).dtype, settle(literal(2), "u8").dtype
    ('i64', 'f32', 'u8')
    """
    if not isinstance(value, Literal):
        return value
    target = dtype or ("i64" if value.integral else "f32")
    if not value.integral and not dtypes.is_float(target):
        raise SpecError(f"a float literal meets dtype {target}; cast one of the operands")
    return value.make(target)


def combine(fn: str, *values: Value) -> Value:
    """Return ``fn`` of the values, with open literals taking the dtype of the others.

    Raises :class:`SpecError` where dtypes differ, and for an integer division by the constant 0.
    """
    if fn in ("floordiv", "mod"):
        _refuse_zero(fn, values)
    folded = _fold_index(fn, values)
    if folded is not None:
        return folded
    if fn == "neg" and isinstance(values[0], Literal) and values[0].value is not None:
        return literal(-values[0].value)
    checked = values[1:] if fn == "select" else values
    typed = next((v.dtype for v in checked if not isinstance(v, Literal)), None)
    head: tuple[Scalar, ...] = (settle(values[0]),) if fn == "select" else ()
    if typed is None and fn != "not" and fn not in ("and", "or"):
        integral = all(v.integral for v in checked if isinstance(v, Literal))
        if fn != "select" and FUNCTIONS[fn][2] == "bool":
            dtype = "i64" if integral else "f32"
            return apply(fn, *(settle(v, dtype) for v in checked))
        # only literals: the dtype stays open, and floats are what these functions need
        stays = integral and (fn == "select" or "i" in FUNCTIONS[fn][1])
        return Literal(stays, lambda dtype: apply(fn, *head, *(settle(v, dtype) for v in checked)))
    return apply(fn, *head, *(settle(v, typed) for v in checked))


def _refuse_zero(fn: str, values: tuple[Value, ...]) -> None:
    """Refuse a divisor that is 0 whatever the inputs are, written as such or not (``1 - 1``)."""
    dividend, divisor = values
    if isinstance(divisor, Literal):
        divisor = settle(divisor, None if isinstance(dividend, Literal) else dividend.dtype)
    if integer_range(divisor, {}) == (0, 0):
        raise SpecError(f"{fn}: an integer division by the constant 0; use a divisor other than 0")


def _fold_index(fn: str, values: tuple[Value, ...]) -> Index | None:
    """Index arithmetic with a result that is affine again, else ``None``."""
    if fn not in ("add", "sub", "mul", "neg", "floordiv", "mod") or not any(isinstance(v, Index) for v in values):
        return None
    parts: list[Affine] = []
    for v in values:
        if isinstance(v, Index) and v.dtype == "i64":
            parts.append(v.expr)
        elif isinstance(v, Literal) and isinstance(v.value, int):
            parts.append(Affine(v.value))
        else:
            return None
    a = parts[0]
    if fn == "neg":
        return Index(-a)
    b = parts[1]
    if fn in ("add", "sub"):
        return Index(a + b if fn == "add" else a - b)
    if fn == "mul":
        factor, other = (a, b) if a.is_constant else (b, a)
        return Index(other * factor.const) if factor.is_constant else None
    if not b.is_constant or b.const < 1:
        return None
    return Index(a // b.const if fn == "floordiv" else a % b.const)


def cast(dtype: str, value: Value) -> Scalar:
    """Return ``value`` as ``dtype``; a literal that ``dtype`` can hold becomes that value exactly, without a detour.

    >>> cast("f64", literal(0.1))
    Const(value=0.1, dtype='f64')
    """
    if isinstance(value, Literal):
        number = value.value
        if number is not None and dtypes.is_float(dtype):
            return Const(_as_float(number), dtype)
        if isinstance(number, int) and dtypes.is_int(dtype):
            low, high = dtypes.value_range(dtype)
            if low <= number <= high:
                return Const(number, dtype)
        value = settle(value)
    return value if value.dtype == dtype else Cast(value, dtype)


def call(name: str, *values: Value) -> Value:
    """Return the function ``name`` of index notation applied to ``values``; ``min`` and ``max`` take two or more."""
    if name in dtypes.DTYPES:
        if len(values) != 1:
            raise SpecError(f"{name}(...): a cast takes 1 value, got {len(values)}")
        return cast(name, values[0])
    if name not in FUNCTION_NAMES:
        known = ", ".join((*FUNCTION_NAMES, *dtypes.DTYPES))
        raise SpecError(f"unknown function {name}; known are {known}")
    expected = 3 if name == "select" else FUNCTIONS[name][0]
    if name in ("min", "max") and len(values) > 2:
        return combine(name, call(name, *values[:-1]), values[-1])
    if len(values) != expected:
        raise SpecError(f"{name}: expected {expected} argument{'s' if expected > 1 else ''}, got {len(values)}")
    return combine(name, *values)


NUMBERS = {"inf": math.inf, "nan": math.nan}

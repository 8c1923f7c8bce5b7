"""What errors of operands make of a result: for functions, decisions and integers. Nothing here counts roundings.

An operand is a tuple that begins with its value in float64 and a bound on its error; an operand of error 0 is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from polyq.affine.arrays import Array
from polyq.affine.dtypes import value_range
from polyq.affine.instances import Value
from polyq.affine.interpret import binade

__all__ = [
    "MONOTONE",
    "ZERO",
    "chosen",
    "decided",
    "function",
    "integer",
    "is_exact",
    "monotone",
    "no_wrap",
    "quotient",
    "truth",
]

ZERO = np.zeros(())
#: functions of one float that round nothing and never fall
MONOTONE: dict[str, Callable[[Array], Array]] = {"floor": np.floor, "rint": np.rint, "binade": binade}


def is_exact(error: Array) -> bool:
    """Whether an error is the one that stands for none at all."""
    return error.ndim == 0 and not error


# ---- functions of one float
def _exp(v: Array, error: Array, value: Array) -> Array:
    return value * np.expm1(error)  # exp(v + e) - exp(v)


def _log(v: Array, error: Array, value: Array) -> Array:
    # log falls fastest towards 0, the argument must stay above it
    return np.where(error > 0, np.where(v > error, -np.log1p(-error / v), np.inf), 0.0)


def _sqrt(v: Array, error: Array, value: Array) -> Array:
    # |sqrt(v) - sqrt(v')| is greatest at v' = v - e; a negative v' would give NaN
    return np.where(error > 0, np.where(v >= error, error / (value + np.sqrt(np.maximum(v - error, 0.0))), np.inf), 0.0)


def root_of_square(argument: Value, value: Array) -> Array:
    """Return what the argument's error makes of a root whose argument is never negative, whatever its error."""
    v, error = argument[:2]
    if is_exact(error):
        return ZERO
    return np.where(
        v > error, _sqrt(v, error, value), np.where(error > 0, np.maximum(value, np.sqrt(v + error) - value), 0.0)
    )


def _nearest(v: Array, error: Array) -> Array:
    """Return the magnitude nearest to 0 that the argument may have: there a sigmoid is steepest."""
    return np.maximum(np.abs(v) - error, 0.0)


def _tanh(v: Array, error: Array, value: Array) -> Array:
    return error / np.cosh(_nearest(v, error)) ** 2  # tanh' = 1 / cosh^2


def _erf(v: Array, error: Array, value: Array) -> Array:
    return error * (2.0 / math.sqrt(math.pi) * np.exp(-(_nearest(v, error) ** 2)))  # erf' = 2 / sqrt(pi) exp(-x^2)


_INHERITED: dict[str, Callable[[Array, Array, Array], Array]] = {
    "exp": _exp, "log": _log, "sqrt": _sqrt, "tanh": _tanh, "erf": _erf,
}  # fmt: skip


def function(fn: str, argument: Value, value: Array) -> Array | None:
    """Return what the argument's error makes of ``value = fn(argument)``; ``None`` for a function not known here."""
    rule = _INHERITED.get(fn)
    if rule is None or is_exact(argument[1]):
        return None if rule is None else ZERO
    v, error = argument[:2]
    return np.where(error > 0, rule(v, error, value), 0.0)


def quotient(numerator: Value, divisor: Value, value: Array) -> Array:
    """Return what the operands' errors make of a quotient; inf where the divisor may be 0."""
    # a'/b' - a/b = (da - (a/b) db) / b', and |b'| is at least |b| - e
    (_, e1), (v2, e2) = numerator[:2], divisor[:2]
    if is_exact(e1) and is_exact(e2):
        return ZERO
    least = np.abs(v2) - e2
    size = np.abs(value)
    inherited = (e1 + (size * e2 if not is_exact(e2) else 0.0)) / np.where(least > 0, least, 0.0)
    return np.where((e1 > 0) | (e2 > 0), inherited, 0.0)


def monotone(function: Callable[[Array], Array], value: Array, argument: Value) -> Array:
    """Return the error of a function that never falls: what it makes of the argument's ends."""
    v, error = argument[:2]
    if is_exact(error):
        return error
    ends = [np.abs(function(v + e).astype(np.float64) - value.astype(np.float64)) for e in (error, -error)]
    return np.where(error > 0, _known(np.maximum(*ends)), 0.0)


def _known(error: Array) -> Array:
    """Return the error with inf for NaN: nothing is known."""
    return np.where(np.isnan(error), np.inf, error)


# ---- decisions
def truth(value: Value) -> Array:
    """Return the error of ``value != 0``: 1 where the value may be 0 and may be not."""
    v, error = value[:2]
    return error if is_exact(error) else np.where((error > 0) & ~(np.abs(v.astype(np.float64)) > error), 1.0, 0.0)


def decided(fn: str, args: Sequence[Value]) -> Array:
    """Return the error of a comparison or of its combinations: 1 where the outcome hangs on the operands' errors."""
    if all(is_exact(a[1]) for a in args):
        return ZERO
    if fn in ("and", "or", "not"):
        return np.maximum.reduce(np.broadcast_arrays(*(a[1] for a in args)))
    a, b = args
    error = a[1] + b[1]
    gap = np.abs(a[0].astype(np.float64) - b[0].astype(np.float64))
    return np.where((error > 0) & ~(gap > error), 1.0, 0.0)


def chosen(condition: Value, a: Value, b: Value) -> Value:
    """Return a choice between two values: both of them where the condition may turn out either way."""
    picked = [np.where(condition[0], x, y) for x, y in zip(a, b, strict=True)]
    if is_exact(condition[1]):
        return tuple(picked)
    unsure = condition[1] > 0
    gap = np.abs(a[0].astype(np.float64) - b[0].astype(np.float64))
    gap = _known(np.where(a[0] == b[0], 0.0, gap))
    either = (gap + np.maximum(a[1], b[1]), *(np.maximum(x, y) for x, y in zip(a[2:], b[2:], strict=True)))
    return (picked[0], *(np.where(unsure, e, c) for e, c in zip(either, picked[1:], strict=True)))


# ---- integers
def integer(fn: str, dtype: str, value: Array, args: Sequence[Value]) -> Array:
    """Return the error of an integer operation: none unless floats went into it; then it must not wrap."""
    if all(is_exact(a[1]) for a in args):
        return ZERO
    errors = [a[1] for a in args]
    if fn in ("add", "sub"):
        error = errors[0] + errors[1]
    elif fn == "mul":
        sizes = [np.abs(a[0].astype(np.float64)) for a in args]
        error = errors[0] * sizes[1] + sizes[0] * errors[1] + errors[0] * errors[1]
    elif fn in ("neg", "abs", "min", "max"):
        error = np.maximum.reduce(np.broadcast_arrays(*errors))
    else:
        error = np.where(sum(errors) > 0, np.inf, 0.0)
    return no_wrap(dtype, value, error)


def no_wrap(dtype: str, v: Array, error: Array) -> Array:
    """Return the error, inf where an integer that has one might leave its range."""
    if not error.any():
        return error
    low, high = value_range(dtype)
    exact = v.astype(np.float64)
    fits = (exact - error >= float(low)) & (exact + error <= float(high))
    return np.where((error == 0) | fits, error, np.inf)

"""The error of anything that computes the formula of a spec, in whatever order and form ``"reassoc"`` allows.

With each value travel four numbers: its value in float64; a bound on the error of any evaluation that the numerics
allow; its *size*, the same expression on absolute values with every subtraction an addition; and its *reach*, the size
with every factor at least 1.

The size makes the bound hold for every order of a sum, for FMA, and for a factor moved out of a sum: all of these
compute the same monomials, each through at most as many roundings as the spec's own form has (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapters 3 and 4; a sum of n terms has ``gamma(n) = n u / (1 - n u)`` for any
order). The reach bounds what an underflow in any partial product can become. Where it could overflow, the bound is inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyq.affine.arrays import Array
from polyq.affine.bounds import rules
from polyq.affine.bounds.machine import GREATEST, UNDERFLOW, function_error, gamma, unit
from polyq.affine.bounds.rules import ZERO, is_exact
from polyq.affine.bounds.running import exact_in
from polyq.affine.dtypes import info, is_float, is_int
from polyq.affine.errors import PolyqError
from polyq.affine.instances import Value
from polyq.affine.interpret import Declared
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import Op

__all__ = ["AnyForm"]

#: by how much a rewrite may scale a factor of a summed product down, and its partner up
SHIFT = 2.0**24
#: roundings that a rewrite may add to a reduction: partial sums, a zero point's sum, a factor at the end
REWRITES = 4


def _exact(value: Array) -> Value:
    size = np.abs(value.astype(np.float64))
    return value, ZERO, size, np.maximum(size, 1.0)


def _leaf(value: Array, error: Array) -> Value:
    """Return a value that no rewrite looks into."""
    size = np.abs(value.astype(np.float64)) + error
    return value, error, size, np.maximum(size, 1.0)


@dataclass(frozen=True)
class AnyForm:
    """The arithmetic of ``(value, error, size, reach)``: a comparison that may turn out differently has error 1."""

    values: Declared = field(default_factory=lambda: Declared(precise=True))

    def start(self, value: Array) -> Value:
        """Return an exact value."""
        return _exact(value)

    def const(self, node: Const) -> Value:
        """Return a literal, rounded to its dtype as kernels have it."""
        (value,) = Declared().const(node)
        return _exact(value.astype(np.float64) if is_float(node.dtype) else value)

    def index(self, node: Index, value: Array) -> Value:
        """Return an exact integer."""
        return _exact(self.values.index(node, value)[0])

    def load(self, node: Load, stored: Value) -> Value:
        """Return what is stored, or an exact input."""
        return _exact(stored[0]) if len(stored) == 1 else stored

    def cast(self, node: Cast, value: Value) -> Value:
        """Convert: to a float at most one rounding, to an integer one step more than the error."""
        v, error, size, reach = value
        source, to = node.arg.dtype, node.dtype
        (converted,) = self.values.cast(node, (v,))
        if is_float(to):
            if exact_in(source, to, v, error):
                return converted, error, size, reach
            return _checked(to, (converted, _rounded(to, error, size, reach), size, reach))
        if to == "bool":
            return _leaf(converted, rules.truth(value))
        if is_float(source):
            return _leaf(converted, rules.monotone(lambda x: self.values.cast(node, (x,))[0], converted, value))
        return _leaf(converted, error if is_exact(error) else rules.no_wrap(to, v, error))

    def apply(self, node: Apply, args: Sequence[Value]) -> Value:
        """Apply a function by its rule."""
        dtype = node.args[0].dtype
        if node.fn == "select":
            return rules.chosen(*args)
        (value,) = self.values.apply(node, [a[:1] for a in args])
        if node.dtype == "bool":
            return _leaf(value, rules.decided(node.fn, args))
        if is_int(dtype):
            return _leaf(value, rules.integer(node.fn, dtype, value, args))
        if node.fn in _SAME:
            return _SAME[node.fn](value, args)
        rule = _RULES.get(node.fn)
        bounded = _function(node.fn, dtype, value, args[0]) if rule is None else rule(dtype, value, args)
        return _infinite(node.fn, args, _checked(dtype, bounded))

    def begin(self, op: Op, cells: Value, updates: int) -> Value:
        """Give the cell's start its share of the roundings of the sum."""
        return _charge(op, cells, updates)

    def end(self, op: Op, cells: Value) -> Value:
        """Round f16 and bf16; look for overflow, of floats and of integers that have errors."""
        v, error, size, reach = cells
        dtype = op.body.dtype
        if is_int(dtype):
            return v, rules.no_wrap(dtype, v, error), size, reach
        if op.reduce in ("+", "*"):
            rounded = _rounded(dtype, error, size, reach) if info(dtype).bits == 16 else error
            return _checked(dtype, (v, rounded, size, reach))
        return cells

    def neutral(self, op: Op) -> tuple[Any, ...]:
        """Return what leaves value, error, size and reach as they are."""
        rest = (0.0, 1.0, 1.0) if op.reduce == "*" else (0.0, 0.0, 0.0)
        return (*self.values.neutral(op), *rest)

    def fold(self, op: Op, cells: Value, terms: Value, updates: int) -> Value:
        """Combine with a bound for every order."""
        v = self.values.fold(op, cells[:1], terms[:1], updates)[0]
        if op.reduce == "+":
            sums = _charge(op, (v, *(np.add.reduce(t, axis=0) for t in terms[1:])), updates)
            return (v, *(c + t for c, t in zip(cells[1:], sums[1:], strict=True)))
        if op.reduce == "*":
            for k in range(len(terms[0])):
                cells = _product(op.body.dtype, cells[0], (cells, tuple(t[k] for t in terms)))
            return (v, *cells[1:])
        return _leaf(v, np.maximum(cells[1], np.maximum.reduce(terms[1], axis=0)))


def _charge(op: Op, terms: Value, updates: int) -> Value:
    """Add what ``updates`` roundings of a sum can do to each of its terms."""
    v, error, size, reach = terms
    dtype = op.body.dtype
    if op.reduce != "+" or not is_float(dtype) or updates == 0:
        return terms
    u = unit("f32" if info(dtype).bits == 16 else dtype)
    g = gamma(updates + (REWRITES if updates > 1 else 0), u)
    shifted = SHIFT * UNDERFLOW[dtype] * reach if dtype == "f32" else 0.0
    return v, error * (1.0 + g) + g * size + shifted, size, reach


def _rounded(dtype: str, error: Array, size: Array, reach: Array, roundings: float = 1.0) -> Array:
    return error + roundings * unit(dtype) * (size + error) + UNDERFLOW[dtype] * reach


def _checked(dtype: str, bounded: Value) -> Value:
    """Give up where the value, or any partial product that a rewrite could form, may overflow."""
    v, error, size, reach = bounded
    if np.max(reach + error, initial=0.0) <= GREATEST[dtype]:  # the common case: the value is at most the reach
        return bounded
    widest = GREATEST["f64" if dtype == "f64" else "f32"]
    safe = (np.abs(v) + error <= GREATEST[dtype]) & (reach + error <= widest)
    return v, (error if safe.all() else np.where(safe, error, np.inf)), size, reach


def _infinite(fn: str, args: Sequence[Value], bounded: Value) -> Value:
    """Sums with an exact infinity or NaN, and products of exact factors with one, come out the same everywhere."""
    if fn not in ("add", "sub", "mul") or all(np.isfinite(a[0]).all() for a in args):
        return bounded
    v, error, size, reach = bounded
    exact = np.zeros(v.shape, np.bool_)
    for a, b in (args, args[::-1]):
        certain = np.isfinite(b[1]) if fn != "mul" else b[1] == 0
        exact = exact | (~np.isfinite(a[0]) & (a[1] == 0) & certain)
    return v, np.where(exact, 0.0, error), size, reach


# ---- floating-point rules: (dtype of the operands, value, operands) -> Value
def _larger(value: Array, args: Sequence[Value]) -> Value:
    return _leaf(value, np.maximum(args[0][1], args[1][1]))


def _unchanged(value: Array, args: Sequence[Value]) -> Value:
    return (value, *args[0][1:])


# these round nothing
_SAME: dict[str, Callable[[Array, Sequence[Value]], Value]] = {
    "neg": _unchanged, "abs": _unchanged, "min": _larger, "max": _larger,
    "floor": lambda value, args: _leaf(value, rules.monotone(np.floor, value, args[0])),
    "rint": lambda value, args: _leaf(value, rules.monotone(np.rint, value, args[0])),
    "binade": lambda value, args: _leaf(value, rules.monotone(rules.MONOTONE["binade"], value, args[0])),
}  # fmt: skip


def _sum(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (_, e2, s2, r2) = args
    size, error = s1 + s2, e1 + e2
    return value, error + unit(dtype) * (size + error), size, r1 + r2


def _product(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (_, e2, s2, r2) = args
    size, reach = s1 * s2, r1 * r2
    error: Array = ZERO
    if not is_exact(e1):
        error = e1 * s2
    if not is_exact(e2):
        error = error + (s1 if is_exact(e1) else s1 + e1) * e2
    return value, (error if not is_float(dtype) else _rounded(dtype, error, size, reach)), size, reach


def _quotient(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (v2, e2, _, _) = args
    least = np.abs(v2) - e2
    least = np.where(least > 0, least, 0.0)
    size, reach = s1 / least, r1 * np.maximum(1.0, 1.0 / least)
    error = e1 / least + size * (e2 / np.abs(v2))
    # a common divisor may become a factor: one rounding for the reciprocal, one for the product
    return value, _rounded(dtype, error, size, reach, 4.0), size, reach


def _ldexp_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, error, size, reach), (exponent, *_) = args
    scale = np.ldexp(1.0, np.clip(exponent, -4000, 4000).astype(np.int32))
    reach = reach * np.maximum(scale, 1.0)
    return value, error * scale + UNDERFLOW[dtype] * reach, size * scale, reach


def _function(fn: str, dtype: str, value: Array, argument: Value) -> Value:
    """Return a function's value with the error of its argument and its own."""
    inherited = rules.function(fn, argument, value)
    if inherited is None:
        raise PolyqError(f"no error bound is known for {fn}; compare with a tolerance of your own")
    v, _, size, reach = _leaf(value, inherited)
    if fn == "sqrt":
        return v, _rounded(dtype, inherited, size, reach), size, reach
    relative, absolute = function_error(dtype)
    return v, inherited + relative * size + absolute, size, reach


_RULES: dict[str, Callable[[str, Array, Sequence[Value]], Value]] = {
    "add": _sum, "sub": _sum, "mul": _product, "div": _quotient, "ldexp": _ldexp_rule,
}  # fmt: skip

"""The error of a program whose order of evaluation is known: a running error analysis.

With each value travel two numbers: the value in float64, and a bound on how far a kernel's own value may be from it.
Each operation adds what it makes of its operands' errors, and its own rounding, which is at most a unit roundoff of the
magnitude that was really computed: Wilkinson's running error analysis (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.3). For a sum this is ``u * sum_k |s_k|`` over its partial sums ``s_k``, where a bound for
every order must take ``n u * sum_k |t_k|`` over its terms. Of a magnitude its binade is taken, the power of two at or
below it, since a rounding is at most half a unit in the last place (ibid., section 2.1).

An FMA leaves one rounding out, and an exact result rounds nothing: both are covered. Where the order within a run of
``w`` updates is open, every addition there is at most the sum that the run starts from and all terms of the run, which
adds ``2 w u * sum_k |t_k|``. Where nothing is known of the order, ``gamma(n)`` of all magnitudes is taken (Higham,
section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyq.affine.arrays import Array
from polyq.affine.bounds import rules
from polyq.affine.bounds.machine import (
    GREATEST,
    LEAST_NORMAL,
    PRECISION,
    UNDERFLOW,
    binade,
    function_error,
    gamma,
    unit,
)
from polyq.affine.bounds.rules import ZERO, is_exact
from polyq.affine.bounds.signs import holds
from polyq.affine.dtypes import info, is_float, is_int
from polyq.affine.errors import PolyqError
from polyq.affine.instances import Value
from polyq.affine.interpret import Declared
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import Op

__all__ = ["Running"]


@dataclass(frozen=True)
class Running:
    """The arithmetic of ``(value, error)``; a comparison that may turn out differently has error 1.

    ``windows`` holds, for each float sum or product, of how many updates in a row the order is open; 1 where it is
    known. One that is not named has no known order at all. ``not_negative`` holds tensors without negative elements.
    """

    windows: Mapping[str, int] = field(default_factory=dict[str, int])
    not_negative: frozenset[str] = frozenset()
    values: Declared = field(default_factory=lambda: Declared(precise=True))

    def start(self, value: Array) -> Value:
        """Return an exact value."""
        return value, ZERO

    # ---- leaves
    def const(self, node: Const) -> Value:
        """Return a literal, rounded to its dtype as kernels have it."""
        (value,) = Declared().const(node)
        return (value.astype(np.float64) if is_float(node.dtype) else value), ZERO

    def index(self, node: Index, value: Array) -> Value:
        """Return an exact integer."""
        return self.values.index(node, value)[0], ZERO

    def load(self, node: Load, stored: Value) -> Value:
        """Return what is stored, or an exact input."""
        return (stored[0], ZERO) if len(stored) == 1 else stored

    # ---- operations
    def cast(self, node: Cast, value: Value) -> Value:
        """Convert: to a float at most one rounding, to an integer what it makes of the ends of the error."""
        v, error = value[:2]
        source, to = node.arg.dtype, node.dtype
        (converted,) = self.values.cast(node, (v,))
        if is_float(to):
            if exact_in(source, to, v, error):
                return converted, error
            return _checked(to, converted, _rounded(to, converted, error, UNDERFLOW[to]))
        if to == "bool":
            return converted, rules.truth(value)
        if is_float(source):
            return converted, rules.monotone(lambda x: self.values.cast(node, (x,))[0], converted, value)
        if is_exact(error):
            return converted, error
        return converted, rules.no_wrap(to, v, error)

    def apply(self, node: Apply, args: Sequence[Value]) -> Value:
        """Apply a function by its rule."""
        fn, dtype = node.fn, node.args[0].dtype
        if fn == "select":
            return rules.chosen(*args)
        (value,) = self.values.apply(node, [a[:1] for a in args])
        if node.dtype == "bool":
            return value, rules.decided(fn, args)
        if is_int(dtype):
            return value, rules.integer(fn, dtype, value, args)
        if fn in ("neg", "abs"):
            return value, args[0][1]
        if fn in ("min", "max"):
            return value, np.maximum(args[0][1], args[1][1])
        if fn in rules.MONOTONE:
            return value, rules.monotone(rules.MONOTONE[fn], value, args[0])
        if fn == "sqrt" and holds(node.args[0], self.not_negative):
            return _checked(dtype, value, _rounded(dtype, value, rules.root_of_square(args[0], value)))
        error = _operation(fn, dtype, value, args)
        return _infinite(fn, args, _checked(dtype, value, error))

    # ---- reductions
    def begin(self, op: Op, cells: Value, updates: int) -> Value:
        """Give the start of a sum of which no order is known its share of the roundings."""
        if op.reduce == "+" and is_float(op.body.dtype) and self._window(op, updates) >= updates > 1:
            return _charged(op, cells, updates)
        return cells

    def end(self, op: Op, cells: Value) -> Value:
        """Round f16 and bf16; look for overflow of integers that have errors."""
        v, error = cells
        dtype = op.body.dtype
        if is_int(dtype):
            return v, rules.no_wrap(dtype, v, error)
        if op.reduce in ("+", "*") and info(dtype).bits == 16:
            return _checked(dtype, v, _rounded(dtype, v, error, UNDERFLOW[dtype]))
        return cells

    def neutral(self, op: Op) -> tuple[Any, ...]:
        """Return what leaves value and error as they are."""
        return (*self.values.neutral(op), 0.0)

    def fold(self, op: Op, cells: Value, terms: Value, updates: int) -> Value:
        """Combine in the order of the first axis, as far as the order is known."""
        dtype = op.body.dtype
        if op.reduce in ("+", "*") and is_float(dtype):
            window = min(self._window(op, updates), updates)
            if op.reduce == "*":
                if window > 1:
                    return _multiplied_anyhow(_accumulator(dtype), cells, terms, updates)
                return _multiplied(_accumulator(dtype), cells, terms)
            if window >= updates > 1:
                return _added_anyhow(op, cells, terms, updates)
            return _added(_accumulator(dtype), cells, terms, window)
        (value,) = self.values.fold(op, cells[:1], terms[:1], updates)
        if op.reduce in ("min", "max"):
            return value, np.maximum(cells[1], np.maximum.reduce(terms[1], axis=0))
        if op.reduce == "+":
            return value, cells[1] + np.add.reduce(terms[1], axis=0)
        return value, np.where(cells[1] + np.add.reduce(terms[1], axis=0) > 0, np.inf, 0.0)

    def _window(self, op: Op, updates: int) -> int:
        return self.windows.get(op.name, updates)


def _accumulator(dtype: str) -> str:
    """Return the dtype that a sum or product is accumulated in."""
    return "f32" if info(dtype).bits == 16 else dtype


# ---- one rounding
def _rounded(dtype: str, value: Array, error: Array, underflow: float = 0.0) -> Array:
    """Add the rounding of a result that is off by ``error`` already: it is at most ``|value| + error``."""
    return error + unit(dtype) * binade(np.abs(value) + error) + underflow


def exact_in(source: str, to: str, v: Array, error: Array) -> bool:
    """Whether a conversion to a float rounds nothing, for these values."""
    if is_float(source):
        return PRECISION[source] <= PRECISION[to] and GREATEST[source] <= GREATEST[to]
    return bool(np.all(np.abs(v.astype(np.float64)) + error <= min(2.0 ** PRECISION[to], GREATEST[to])))


def _checked(dtype: str, value: Array, error: Array) -> Value:
    """Give up where the result may overflow."""
    reach = np.abs(value) + error
    if np.max(reach, initial=0.0) <= GREATEST[dtype]:
        return value, error
    return value, np.where(reach <= GREATEST[dtype], error, np.inf)


def _operation(fn: str, dtype: str, value: Array, args: Sequence[Value]) -> Array:
    """Return the error of an operation that rounds."""
    errors = [a[1] for a in args]
    if fn in ("add", "sub"):
        return _unless_exact(fn, dtype, value, args, _rounded(dtype, value, errors[0] + errors[1]))
    if fn == "mul":
        bound = _rounded(dtype, value, _of_product(args[0], args[1]), UNDERFLOW[dtype])
        return _unless_exact(fn, dtype, value, args, bound)
    if fn == "div":
        bound = _rounded(dtype, value, rules.quotient(args[0], args[1], value), UNDERFLOW[dtype])
        return _unless_exact(fn, dtype, value, args, bound)
    if fn == "ldexp":  # a power of two scales exactly, but for what falls below the least number
        scale = np.ldexp(1.0, np.clip(args[1][0], -4000, 4000).astype(np.int32))
        return (errors[0] if is_exact(errors[0]) else errors[0] * scale) + UNDERFLOW[dtype]
    inherited = rules.function(fn, args[0], value)
    if inherited is None:
        raise PolyqError(f"no error bound is known for {fn}; compare with a tolerance of your own")
    if fn == "sqrt":  # rounded once; its argument is no underflow
        return _rounded(dtype, value, inherited)
    relative, absolute = function_error(dtype)
    return inherited + relative * binade(np.abs(value) + inherited) + absolute


def _unless_exact(fn: str, dtype: str, value: Array, args: Sequence[Value], bound: Array) -> Array:
    """Return no error where exact operands have a result that f32 holds: scaled by a power of two, or a difference.

    What float64 itself rounds of a sum is known as well (Knuth's two-sum). Other products are charged as if they were
    rounded, though some are not.
    """
    if dtype != "f32" or not all(is_exact(a[1]) or not a[1].all() for a in args):
        return bound
    (a, e1), (b, e2) = args[0][:2], args[1][:2]
    with np.errstate(all="ignore"):
        held = value.astype(np.float32).astype(np.float64) == value
        if fn in ("mul", "div"):
            held &= _is_power(b) | (_is_power(a) if fn == "mul" else False)
        else:
            b = -b if fn == "sub" else b
            part = value - a
            held &= (a - (value - part)) + (b - part) == 0
    return np.where(held & (e1 == 0) & (e2 == 0), 0.0, bound)


def _is_power(v: Array) -> Array:
    """Whether elements are powers of two."""
    return np.abs(np.frexp(v)[0]) == 0.5


def _of_product(a: Value, b: Value) -> Array:
    (v1, e1), (v2, e2) = a[:2], b[:2]
    if is_exact(e1) and is_exact(e2):
        return ZERO
    if is_exact(e1):
        return np.abs(v1) * e2
    return e1 * np.abs(v2) if is_exact(e2) else e1 * np.abs(v2) + (np.abs(v1) + e1) * e2


def _infinite(fn: str, args: Sequence[Value], bounded: Value) -> Value:
    """Take the error away where a result is infinite or NaN in every precision, since its operands say so.

    They do if they are exact, and in a sum if one is exact and not finite and the other one surely is. An overflow is
    none of these: an FMA may escape it.
    """
    v, error = bounded
    if np.isfinite(v).all():
        return bounded
    exact = _special(fn, args)
    for a in args:
        exact = exact & (a[1] == 0)
    if fn in ("add", "sub"):
        for a, b in (args, args[::-1]):
            exact = exact | (~np.isfinite(a[0]) & (a[1] == 0) & np.isfinite(b[0]) & np.isfinite(b[1]))
    return v, np.where(exact & ~np.isfinite(v), 0.0, error)


def _special(fn: str, args: Sequence[Value]) -> Array:
    """Where operands make a result infinite or NaN, whatever the precision."""
    outside = np.logical_or.reduce(np.broadcast_arrays(*(~np.isfinite(a[0]) for a in args)))
    if fn == "div":
        return outside | (args[1][0] == 0)
    return outside | (args[0][0] <= 0) if fn in ("log", "sqrt") else outside


# ---- sums and products
def _charged(op: Op, terms: Value, roundings: int) -> Value:
    """Charge each term with as many roundings."""
    v, error = terms
    return v, error + gamma(roundings, unit(_accumulator(op.body.dtype))) * (np.abs(v) + error)


def _added_anyhow(op: Op, cells: Value, terms: Value, updates: int) -> Value:
    """Add terms in an order of which nothing is known: each passes through at most all additions."""
    v, error = _charged(op, terms, updates)
    total = cells[0] + np.add.reduce(v, axis=0)
    reach = np.abs(cells[0]) + np.add.reduce(np.abs(v), axis=0)
    return _overflown(_accumulator(op.body.dtype), total, cells[1] + np.add.reduce(error, axis=0), reach)


def _added(dtype: str, cells: Value, terms: Value, window: int) -> Value:
    """Add terms one after another; within ``window`` of them in any order."""
    v, error = terms
    sums = _partial_sums(cells[0], v)
    u, sizes = unit(dtype), np.abs(sums)
    inherited = cells[1] + np.add.reduce(error, axis=0) if error.any() else cells[1]
    reach = np.maximum.reduce(sizes, axis=0)
    spread = np.add.reduce(np.abs(v) + error, axis=0) if window > 1 else 0.0
    rounded = u * (np.add.reduce(sizes, axis=0) + 2.0 * window * spread)
    most = (inherited + rounded) * (1.0 + gamma(len(v) + 2 * window, u))
    if window > 1:
        return _overflown(dtype, sums[-1], most, reach + spread)
    # every partial sum is off by less than the last one may be
    return _overflown(dtype, sums[-1], inherited + u * np.add.reduce(binade(sizes + most), axis=0), reach)


def _partial_sums(start: Array, terms: Array) -> Array:
    """Return ``start`` plus the terms up to each one; rows one by one where they are long, which is faster."""
    if start.size < 64:
        return np.add.accumulate(np.concatenate([start[None], terms]), axis=0)[1:]
    sums = np.empty(terms.shape)
    before = start
    for row, term in zip(sums, terms, strict=True):
        before = np.add(before, term, out=row)
    return sums


def _overflown(dtype: str, value: Array, error: Array, reach: Array) -> Value:
    if np.max(reach + error, initial=0.0) <= GREATEST[dtype]:
        return value, error
    return value, np.where(reach + error <= GREATEST[dtype], error, np.inf)


def _multiplied(dtype: str, cells: Value, terms: Value) -> Value:
    """Multiply terms one after another."""
    v, error = cells
    for factor in zip(*terms, strict=True):
        product = v * factor[0]
        error = _rounded(dtype, product, _of_product((v, error), factor), UNDERFLOW[dtype])
        v, error = _checked(dtype, product, error)
    return v, error


def _multiplied_anyhow(dtype: str, cells: Value, terms: Value, updates: int) -> Value:
    """Multiply terms in any order: the relative error is the same, but an underflow may be scaled up again.

    Products of some of the factors lie between ``least`` and ``greatest``. Only a fold that sees all factors knows
    these, so that others have no bound.
    """
    v, error = _multiplied(dtype, cells, terms)
    sizes = np.concatenate([np.abs(cells[0])[None], np.abs(terms[0]) + terms[1]])
    greatest = np.multiply.reduce(np.maximum(sizes, 1.0), axis=0)
    certain = np.concatenate([np.abs(cells[0])[None], np.abs(terms[0]) - terms[1]])
    least = np.multiply.reduce(np.minimum(np.where(certain > 0, certain, np.where(sizes > 0, 0.0, 1.0)), 1.0), axis=0)
    lost = np.where(least > 4.0 * LEAST_NORMAL[dtype], 0.0, 2.0 * len(sizes) * UNDERFLOW[dtype] * greatest)
    if len(terms[0]) < updates:
        lost = lost + np.inf
    return _overflown(dtype, v, error + lost, greatest)

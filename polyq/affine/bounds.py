"""A forward error bound, element by element, between a kernel under ``"reassoc"`` numerics and the oracle.

With each value travel four numbers (:class:`Bounded`): its value in float64; a bound on the error of any evaluation
that the numerics allow; its *size*, the same expression on absolute values with every subtraction an addition; and its
*reach*, the size with every factor at least 1.

The size makes the bound hold for every order of a sum, for FMA, and for a factor moved out of a sum: all of these
compute the same monomials, each through at most as many roundings as the spec's own form has (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapters 3 and 4; a sum of n terms has ``gamma(n) = n u / (1 - n u)`` for any
order). The reach bounds what an underflow in any partial product can become. Where it could overflow, the bound is inf.
Functions may be off by ``ULPS`` units in the last place, as vector libraries are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyq.affine.arrays import Array, from_storage, shape_of, take_arguments
from polyq.affine.dtypes import info, is_float, is_int, value_range
from polyq.affine.errors import PolyqError
from polyq.affine.instances import Value, run
from polyq.affine.interpret import Declared
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Bounded", "error_bound", "gamma"]

#: bits of the significand, the implicit one included
PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
#: half of the least positive number: the greatest error of an underflow
UNDERFLOW = {"f16": 2.0**-25, "bf16": 2.0**-134, "f32": 2.0**-150, "f64": 2.0**-1074}
#: by how much a rewrite may scale a factor of a summed product down, and its partner up
SHIFT = 2.0**24
#: the greatest finite number
GREATEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
#: units in the last place by which exp, log, tanh and erf may be off (glibc's libmvec states 4)
ULPS = 4
#: roundings that a rewrite may add to a reduction: partial sums, a zero point's sum, a factor at the end
REWRITES = 4
#: a float64 evaluation has errors of its own; this covers them for f32 and narrower types
SLACK = 1.0 + 2.0**-20


def unit(dtype: str) -> float:
    """Return the unit roundoff; twice that for f64, whose reference value is itself rounded."""
    return 2.0 ** -PRECISION[dtype] * (2.0 if dtype == "f64" else 1.0)


def gamma(n: float, u: float) -> float:
    """Return ``n u / (1 - n u)``, the relative error of n roundings; inf from ``n u = 1`` on.

    >>> gamma(4, 2.0 ** -24) > 4 * 2.0 ** -24
    True
    """
    return n * u / (1.0 - n * u) if n * u < 1.0 else math.inf


def error_bound(
    spec: Spec, arguments: Mapping[str, object], oracle: Sequence[Array] | None = None
) -> tuple[Array, ...]:
    """Return, for each output, the greatest difference between a kernel under ``"reassoc"`` and the oracle.

    ``arguments`` holds inputs and parameters as for :func:`~polyq.affine.interpret.interpret`. ``oracle``, its
    result as a sequence, makes the bound tighter: its own error is then measured instead of bounded. The arrays are
    float64 in the logical shape of the outputs; integers that no float decides get 0. An entry is inf where an
    intermediate result may overflow or is not finite, or where a decision (the sign under a root, say) hangs on
    rounding.
    """
    arrays, params = take_arguments(spec, arguments)
    written = {op.target for op in spec.ops}
    arithmetic = Bounded()
    store: dict[str, Value] = {}
    for tensor in spec.all_tensors:
        shape = shape_of(tensor, params)
        dtype = arithmetic.values.numpy_dtype(tensor.dtype)
        if tensor.name in arrays:
            value = np.array(from_storage(tensor, arrays[tensor.name], shape), dtype, order="C")
            # an input that stays as it is needs no more than its value
            store[tensor.name] = _stored(value, shape) if tensor.name in written else (value,)
        else:
            store[tensor.name] = tuple(np.zeros(shape, dtype if k == 0 else np.float64) for k in range(4))
    run(spec, store, params, arithmetic)
    given = [None] * len(spec.outputs) if oracle is None else list(oracle)
    return tuple(_apart(t, store[t.name], o) for t, o in zip(spec.outputs, given, strict=True))


def _apart(tensor: Tensor, stored: Value, oracle: Array | None) -> Array:
    """Return how far kernel and oracle may be apart, each of them off by the error at most."""
    if len(stored) == 1:
        return np.zeros(stored[0].shape)
    value, error = stored[0], stored[1] * SLACK
    other = error
    if oracle is not None and is_float(tensor.dtype):
        with np.errstate(invalid="ignore"):
            other = np.fmin(error, np.abs(np.asarray(oracle).astype(np.float64) - value))
    return np.where(np.isnan(error), np.inf, error + other)


def _stored(value: Array, shape: tuple[int, ...]) -> Value:
    return tuple(np.array(np.broadcast_to(a, shape), order="C") for a in _exact(value))


# ---- values with their errors
_ZERO = np.zeros(())


def _exact(value: Array) -> Value:
    size = np.abs(value.astype(np.float64))
    return value, _ZERO, size, np.maximum(size, 1.0)


def _none(error: Array) -> bool:
    return error.ndim == 0 and not error


def _leaf(value: Array, error: Array) -> Value:
    """Return a value that no rewrite looks into."""
    size = np.abs(value.astype(np.float64)) + error
    return value, error, size, np.maximum(size, 1.0)


@dataclass(frozen=True)
class Bounded:
    """The arithmetic of ``(value, error, size, reach)``: a comparison that may turn out differently has error 1."""

    values: Declared = field(default_factory=lambda: Declared(precise=True))

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
            if _exact_in(source, to, v, error):
                return converted, error, size, reach
            return _checked(to, (converted, _rounded(to, error, size, reach), size, reach))
        if is_float(source):
            return _monotone(lambda x: self.values.cast(node, (x,))[0], converted, value)
        if _none(error) or to == "bool":
            return _leaf(converted, error)
        return _leaf(converted, _no_wrap(to, v, error))

    def apply(self, node: Apply, args: Sequence[Value]) -> Value:
        """Apply a function by its rule."""
        dtype = node.args[0].dtype
        if node.fn == "select":
            return _select(*args)
        (value,) = self.values.apply(node, [a[:1] for a in args])
        if node.dtype == "bool":
            return _leaf(value, _decided(node.fn, args))
        if is_int(dtype):
            return _integer(node.fn, dtype, value, args)
        if node.fn in _SAME:
            return _SAME[node.fn](value, args)
        rule = _RULES.get(node.fn)
        if rule is None:
            raise PolyqError(f"no error bound is known for {node.fn}; compare with a tolerance of your own")
        return _infinite(node.fn, args, _checked(dtype, rule(dtype, value, args)))

    def begin(self, op: Op, cells: Value, updates: int) -> Value:
        """Give the cell's start its share of the roundings of the sum."""
        return _charge(op, cells, updates)

    def end(self, op: Op, cells: Value) -> Value:
        """Round f16 and bf16; look for overflow, of floats and of integers that have errors."""
        v, error, size, reach = cells
        dtype = op.body.dtype
        if is_int(dtype):
            return v, _no_wrap(dtype, v, error), size, reach
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


def _exact_in(source: str, to: str, v: Array, error: Array) -> bool:
    if is_float(source):
        return PRECISION[source] <= PRECISION[to] and GREATEST[source] <= GREATEST[to]
    return bool(np.all(np.abs(v.astype(np.float64)) + error <= min(2.0 ** PRECISION[to], GREATEST[to])))


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


def _no_wrap(dtype: str, v: Array, error: Array) -> Array:
    if not error.any():
        return error
    low, high = value_range(dtype)
    exact = v.astype(np.float64)
    fits = (exact - error >= float(low)) & (exact + error <= float(high))
    return np.where((error == 0) | fits, error, np.inf)


def _decided(fn: str, args: Sequence[Value]) -> Array:
    """Return 1 where the outcome hangs on the errors of the operands."""
    if all(_none(a[1]) for a in args):
        return _ZERO
    if fn in ("and", "or", "not"):
        return np.maximum.reduce(np.broadcast_arrays(*(a[1] for a in args)))
    a, b = args
    error = a[1] + b[1]
    gap = np.abs(a[0].astype(np.float64) - b[0].astype(np.float64))
    return np.where((error > 0) & ~(gap > error), 1.0, 0.0)


def _select(condition: Value, a: Value, b: Value) -> Value:
    chosen = [np.where(condition[0], x, y) for x, y in zip(a, b, strict=True)]
    if _none(condition[1]):
        return tuple(chosen)
    unsure = condition[1] > 0
    gap = np.abs(a[0].astype(np.float64) - b[0].astype(np.float64))
    either = (gap + np.maximum(a[1], b[1]), np.maximum(a[2], b[2]), np.maximum(a[3], b[3]))
    return (chosen[0], *(np.where(unsure, e, c) for e, c in zip(either, chosen[1:], strict=True)))


def _integer(fn: str, dtype: str, value: Array, args: Sequence[Value]) -> Value:
    """Integers are exact unless floats went into them; then they must not wrap."""
    if all(_none(a[1]) for a in args):
        return _leaf(value, _ZERO)
    errors = [a[1] for a in args]
    sizes = [a[2] for a in args]
    if fn in ("add", "sub"):
        error = errors[0] + errors[1]
    elif fn == "mul":
        error = errors[0] * sizes[1] + sizes[0] * errors[1] + errors[0] * errors[1]
    elif fn in ("neg", "abs", "min", "max"):
        error = np.maximum.reduce(np.broadcast_arrays(*errors))
    else:
        error = np.where(sum(errors) > 0, np.inf, 0.0)
    return _leaf(value, _no_wrap(dtype, value, error))


# ---- floating-point rules: (dtype of the operands, value, operands) -> Value
def _larger(value: Array, args: Sequence[Value]) -> Value:
    return _leaf(value, np.maximum(args[0][1], args[1][1]))


def _unchanged(value: Array, args: Sequence[Value]) -> Value:
    return (value, *args[0][1:])


def _monotone(function: Callable[[Array], Array], value: Array, argument: Value) -> Value:
    """Return the result of a function that never falls: its error is what it makes of the argument's ends."""
    v, error = argument[:2]
    if _none(error):
        return _leaf(value, error)
    ends = [np.abs(function(v + e).astype(np.float64) - value.astype(np.float64)) for e in (error, -error)]
    return _leaf(value, np.where(error > 0, np.maximum(*ends), 0.0))


# these round nothing
_SAME: dict[str, Callable[[Array, Sequence[Value]], Value]] = {
    "neg": _unchanged, "abs": _unchanged, "min": _larger, "max": _larger,
    "floor": lambda value, args: _monotone(np.floor, value, args[0]),
    "rint": lambda value, args: _monotone(np.rint, value, args[0]),
}  # fmt: skip


def _sum(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (_, e2, s2, r2) = args
    size, error = s1 + s2, e1 + e2
    return value, error + unit(dtype) * (size + error), size, r1 + r2


def _product(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (_, e2, s2, r2) = args
    size, reach = s1 * s2, r1 * r2
    error: Array = _ZERO
    if not _none(e1):
        error = e1 * s2
    if not _none(e2):
        error = error + (s1 if _none(e1) else s1 + e1) * e2
    return value, (error if not is_float(dtype) else _rounded(dtype, error, size, reach)), size, reach


def _quotient(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, e1, s1, r1), (v2, e2, _, _) = args
    least = np.abs(v2) - e2
    least = np.where(least > 0, least, 0.0)
    size, reach = s1 / least, r1 * np.maximum(1.0, 1.0 / least)
    error = e1 / least + size * (e2 / np.abs(v2))
    # a common divisor may become a factor: one rounding for the reciprocal, one for the product
    return value, _rounded(dtype, error, size, reach, 4.0), size, reach


def _function(dtype: str, value: Array, inherited: Array) -> Value:
    """Return a function's value with the error of its argument and its own."""
    v, _, size, reach = _leaf(value, inherited)
    return v, _rounded(dtype, inherited, size, reach, 2.0 * ULPS), size, reach


def _exp_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    return _function(dtype, value, value * np.expm1(args[0][1]))


def _log_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    v, e = args[0][:2]
    return _function(dtype, value, np.where(e > 0, np.where(v > e, -np.log1p(-e / v), np.inf), 0.0))


def _sqrt_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    v, e = args[0][:2]
    # |sqrt(v) - sqrt(v')| is greatest at v' = v - e; a negative v' would give NaN
    inherited = np.where(e > 0, np.where(v >= e, e / (value + np.sqrt(np.maximum(v - e, 0.0))), np.inf), 0.0)
    return _function(dtype, value, inherited)


def _tanh_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    return _function(dtype, value, args[0][1])


def _erf_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    return _function(dtype, value, 2.0 / math.sqrt(math.pi) * args[0][1])


def _ldexp_rule(dtype: str, value: Array, args: Sequence[Value]) -> Value:
    (_, error, size, reach), (exponent, *_) = args
    scale = np.ldexp(1.0, np.clip(exponent, -4000, 4000).astype(np.int32))
    reach = reach * np.maximum(scale, 1.0)
    return value, error * scale + UNDERFLOW[dtype] * reach, size * scale, reach


_RULES: dict[str, Callable[[str, Array, Sequence[Value]], Value]] = {
    "add": _sum, "sub": _sum, "mul": _product, "div": _quotient, "sqrt": _sqrt_rule, "exp": _exp_rule,
    "log": _log_rule, "tanh": _tanh_rule, "erf": _erf_rule, "ldexp": _ldexp_rule,
}  # fmt: skip

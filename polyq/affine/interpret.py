"""The oracle: evaluates a spec as it is written, with numpy alone, in the declared dtypes.

Instances run in their order, each reduction too (:mod:`polyq.affine.instances`). The arithmetic, which a kernel under
``"strict"`` numerics must equal bit by bit, is this:

Integers wrap. ``//`` is the floor of the quotient and ``a % b == a - (a // b) * b``; both are 0 where ``b`` is 0, and
the least integer ``// -1`` is itself. Casts of floats to integers truncate, saturate, and give 0 for NaN. exp, log,
tanh and erf are C's double functions, rounded once. f16 and bf16 round after each operation, but sums and products
over reduced dims accumulate in f32 and round once at the end of the op (at each instance where the op reads its own
target).
"""

from __future__ import annotations

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave reshape and clip partly unknown
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyq.affine.arrays import (
    Array,
    collect,
    from_storage,
    round_bf16,
    shape_of,
    take_arguments,
    to_caller,
    wrap,
)
from polyq.affine.dtypes import info, is_float, is_int, numpy_dtype, value_range
from polyq.affine.instances import Value, run
from polyq.affine.scalar import Apply, Cast, Const, Index, Load
from polyq.affine.spec import REDUCTIONS, Op, Spec

__all__ = ["Declared", "interpret"]


def interpret(spec: Spec, /, precise: bool = False, **arguments: Any) -> Any:
    """Evaluate ``spec`` on keyword arguments (inputs, and parameters that no shape determines).

    Returns one array, or a named tuple in order of ``spec.output_names``. With ``precise`` every float is a float64,
    the outputs included. The caller's arrays stay as they are. Raises :class:`~polyq.affine.errors.ArgumentError` for
    arguments that do not fit the spec.
    """
    arrays, params = take_arguments(spec, arguments)
    arithmetic = Declared(precise)
    store: dict[str, Value] = {}
    for tensor in spec.all_tensors:
        shape = shape_of(tensor, params)
        dtype = arithmetic.numpy_dtype(tensor.dtype)
        if tensor.name in arrays:
            store[tensor.name] = (np.array(from_storage(tensor, arrays[tensor.name], shape), dtype, order="C"),)
        else:
            store[tensor.name] = (np.zeros(shape, dtype),)
    run(spec, store, params, arithmetic)
    results = [
        store[t.name][0] if precise and is_float(t.dtype) else to_caller(t, store[t.name][0]) for t in spec.outputs
    ]
    return collect(spec, results)


# ---- the declared arithmetic
@dataclass(frozen=True)
class Declared:
    """The arithmetic of the declared dtypes on logical arrays; with ``precise`` every float is a float64."""

    precise: bool = False

    def numpy_dtype(self, dtype: str) -> np.dtype[Any]:
        """Return the numpy dtype of a logical array."""
        d = info(dtype)
        if d.kind == "f" and self.precise:
            return np.dtype(np.float64)
        if d.packed:
            return np.dtype(np.int8 if d.kind == "i" else np.uint8)
        return np.dtype(np.float32) if dtype == "bf16" else numpy_dtype(dtype)

    def const(self, node: Const) -> Value:
        """Return a literal, rounded to its dtype."""
        if is_float(node.dtype):
            return (self._round(node.dtype, np.asarray(float(node.value), np.float64)),)
        low, high = value_range(node.dtype)
        return (np.asarray((int(node.value) - low) % (high - low + 1) + low, self.numpy_dtype(node.dtype)),)

    def index(self, node: Index, value: Array) -> Value:
        """Return an index value as the integer type of the node."""
        return (wrap(node.dtype, value.astype(self.numpy_dtype(node.dtype))),)

    def load(self, node: Load, stored: Value) -> Value:
        """Return the elements."""
        return stored

    def cast(self, node: Cast, value: Value) -> Value:
        """Convert: integers wrap, floats round once, float to integer truncates and saturates."""
        (x,) = value
        source, to = node.arg.dtype, node.dtype
        if source == to:
            return value
        if to == "bool":
            return (x != 0,)
        if is_float(to):
            return (self._round(to, x if is_float(source) else _exact_float(x, to)),)
        if is_float(source):
            return (self._truncate(x.astype(np.float64), to),)
        return (wrap(to, x.astype(self.numpy_dtype(to))),)

    def apply(self, node: Apply, args: Sequence[Value]) -> Value:
        """Apply a function; floats round to the dtype, integers wrap."""
        operands = [a[0] for a in args]
        if node.fn == "select":
            return (np.where(*operands),)
        dtype = node.args[0].dtype
        if node.fn in _LIBM:
            return (self._round(node.dtype, _each(_LIBM[node.fn], operands[0])),)
        if node.fn == "ldexp":
            result = np.ldexp(operands[0], np.clip(operands[1], -4000, 4000).astype(np.int32))
        else:
            result = _NUMPY[node.fn](*operands)
        if node.dtype == "bool":
            return (result,)
        if is_int(dtype):
            return (wrap(dtype, np.asarray(result, self.numpy_dtype(dtype))),)
        return (round_bf16(result) if dtype == "bf16" and not self.precise else result,)

    def begin(self, op: Op, cells: Value, updates: int) -> Value:
        """Widen f16 and bf16 sums and products to f32."""
        return (cells[0].astype(np.float32),) if cells[0].dtype == np.float16 else cells

    def end(self, op: Op, cells: Value) -> Value:
        """Round f16 and bf16 sums and products."""
        dtype = _target_dtype(op)
        return (self._round(dtype, cells[0]),) if is_float(dtype) and info(dtype).bits == 16 else cells

    def neutral(self, op: Op) -> tuple[Any, ...]:
        """Return what leaves a cell as it is, bit by bit: the negative zero for sums."""
        dtype = _target_dtype(op)
        if is_float(dtype):
            return ({"+": -0.0, "*": 1.0, "min": math.inf, "max": -math.inf}[op.reduce or "+"],)
        low, high = value_range(dtype)
        return ({"+": 0, "*": 1, "min": high, "max": low}[op.reduce or "+"],)

    def fold(self, op: Op, cells: Value, terms: Value, updates: int) -> Value:
        """Combine in the order of the first axis."""
        combine = _NUMPY[REDUCTIONS[op.reduce or "+"]]
        cell, term = cells[0], terms[0].astype(cells[0].dtype, copy=False)
        if len(term) > 8 and cell.size < 64:  # a running result, element after element
            dtype = _target_dtype(op)
            folded = combine.accumulate(np.concatenate([cell[None], term]), axis=0, dtype=cell.dtype)[-1]
            return (wrap(dtype, folded),)
        for t in term:
            cell = combine(cell, t)
        return (wrap(_target_dtype(op), np.asarray(cell)),)

    def _round(self, dtype: str, values: Array) -> Array:
        if self.precise:
            return values.astype(np.float64)
        return round_bf16(values) if dtype == "bf16" else values.astype(numpy_dtype(dtype))

    def _truncate(self, x: Array, dtype: str) -> Array:
        low, high = value_range(dtype)
        t = np.trunc(x)
        above = t >= float(high)  # float(high) is high, or high + 1 for 64 bits: either way the result is high
        below = t <= float(low)
        inside = np.where(above | below | np.isnan(t), 0.0, t).astype(self.numpy_dtype(dtype))
        ends = np.where(above, self.numpy_dtype(dtype).type(high), self.numpy_dtype(dtype).type(low))
        return np.where(above | below, ends, inside)


def _target_dtype(op: Op) -> str:
    return op.body.dtype  # the body's type is the target's


def _exact_float(x: Array, dtype: str) -> Array:
    """Return integers or bools as floats wide enough for one rounding to ``dtype`` to follow."""
    return x.astype(np.float32) if dtype == "f32" else x.astype(np.float64)


def _floor_divide(a: Array, b: Array) -> Array:
    special = (b == 0) | (b == -1) if a.dtype.kind == "i" else b == 0
    quotient = np.floor_divide(a, np.where(special, 1, b).astype(a.dtype))
    return np.where(b == 0, np.zeros_like(a), np.where(special, np.negative(a), quotient))


def _remainder(a: Array, b: Array) -> Array:
    special = (b == 0) | (b == -1) if a.dtype.kind == "i" else b == 0
    return np.where(special, np.zeros_like(a), np.remainder(a, np.where(special, 1, b).astype(a.dtype)))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    if x > 0 or x != x:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


# Python's math module calls the C library's double functions
_LIBM: dict[str, Callable[[float], float]] = {"exp": _exp, "log": _log, "tanh": math.tanh, "erf": math.erf}


def _each(function: Callable[[float], float], x: Array) -> Array:
    values = x.astype(np.float64)
    return np.array(list(map(function, values.ravel().tolist())), np.float64).reshape(values.shape)


def binade(x: Array) -> Array:
    """Return the greatest power of two that is at most ``x``, at least 0; 0 below 2**-126, inf of what is not finite.

    >>> binade(np.float32([0.0, 0.75, 5.0, np.inf])).tolist()
    [0.0, 0.5, 4.0, inf]
    """
    finite = np.isfinite(x)
    powers = np.ldexp(x.dtype.type(0.5), np.frexp(np.where(finite, x, 1.0))[1])
    return np.where(finite, np.where(x < 2.0**-126, 0.0, powers), np.inf).astype(x.dtype)


_NUMPY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": _floor_divide,
    "mod": _remainder, "neg": np.negative, "abs": np.abs, "min": np.minimum, "max": np.maximum, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "sqrt": np.sqrt, "floor": np.floor,
    "rint": np.rint, "binade": binade,
}  # fmt: skip

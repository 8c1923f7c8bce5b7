"""Arithmetic in a prime field, for tests of polynomial identities.

An identity of rational functions with rational coefficients holds at every point of a large prime field where no
divisor vanishes; an equation that is no identity fails at a random point but for a chance of its degree in
:data:`PRIME`. So values here stand for exact values: loads are random elements, sums and products are those of the
field, and every function without an algebraic law is an unknown function, the same wherever it occurs. Minimum and
maximum follow a random order of the elements, in which the infinities (of integers: the ends of their range) come last
and first.

A value is an ``int64`` array of shape ``(POINTS, n)``: element by element, at independent random points.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false
# numpy's stubs leave reshape partly unknown
import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyq.affine.dtypes import info, is_float, is_int, value_range
from polyq.affine.scalar import Apply, Cast, Const

__all__ = ["POINTS", "PRIME", "apply", "cast", "const", "fold", "integers", "invert", "symbols"]

Array = NDArray[np.int64]

#: the field; two of its elements multiply within an ``int64``, and 2 has a large order (Mersenne primes: a small one)
PRIME = 2147483629
#: independent random points
POINTS = 2


@lru_cache(maxsize=4096)
def _seed(tag: str) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(tag.encode(), digest_size=8 * POINTS).digest()
    return np.frombuffer(digest, np.uint64).reshape(POINTS, 1)


def _reduced(x: Any) -> Array:
    return x - (x // PRIME) * PRIME  # a division by a constant is vectorized, a remainder is not


def symbols(tag: str, *parts: Array) -> Array:
    """Return random elements, a function of ``tag`` and of the integers in ``parts`` (broadcast together)."""
    state = _seed(tag)
    for part in parts:
        state = (state + part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return _reduced(state >> np.uint64(1)).astype(np.int64)


def integers(values: Array) -> Array:
    """Return integers, known exactly, as elements; ``values`` has shape ``(n,)``."""
    return np.broadcast_to(_reduced(values.astype(np.int64)), (POINTS, *values.shape))


def invert(x: Array) -> Array:
    """Return the inverse of every element; that of 0 is 0."""
    result, power, exponent = np.ones_like(x), x, PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduced(result * power)
        power, exponent = _reduced(power * power), exponent >> 1
    return result


# ---- literals and order
def _ends(dtype: str) -> tuple[Array, Array]:
    """Return the elements that stand for the least and the greatest value of ``dtype``, of shape ``(POINTS, 1)``."""
    if info(dtype).kind in "ub":
        zero = np.zeros((POINTS, 1), np.int64)
        return zero, zero + (PRIME - 1 if info(dtype).kind == "u" else 1)
    least, greatest = symbols("least"), symbols("greatest")
    return least, np.ones_like(least) if dtype == "i2" else greatest


def const(node: Const) -> Array:
    """Return a literal, of shape ``(POINTS, 1)``."""
    value, dtype = node.value, node.dtype
    if value != value:
        return symbols("nan")
    if is_float(dtype) and math.isinf(value):
        return _ends(dtype)[value > 0]
    if is_int(dtype) and value not in (0, 1) and value in value_range(dtype):
        return _ends(dtype)[value > 0]
    exact = Fraction(value)
    element = exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME
    return np.full((POINTS, 1), element, np.int64)


def _rank(x: Array, dtype: str) -> Array:
    """Return the places of elements in the random order of ``dtype``."""
    if info(dtype).kind in "ub":
        return x
    least, greatest = _ends(dtype)
    factor = _reduced((PRIME - 1) * invert(_reduced(greatest - least)))
    return _reduced(_reduced(x - least) * factor)


# ---- nodes
def cast(node: Cast, x: Array) -> Array:
    """Convert: exact values stay; a conversion that may lose more than a rounding is an unknown function."""
    source, to = node.arg.dtype, node.dtype
    if source == to or is_float(to):
        return x
    if to == "bool":
        return (x != 0).astype(np.int64)
    if not is_float(source):
        (low, high), (least, greatest) = value_range(source), value_range(to)
        if least <= low and high <= greatest:
            return x
    return symbols(f"cast {source} {to}", x)


def apply(node: Apply, args: Sequence[Array]) -> Array:
    """Apply a function of :data:`polyq.affine.scalar.FUNCTIONS` or ``select``."""
    fn, dtype = node.fn, node.args[-1].dtype
    a, b = args[0], args[-1]
    match fn:
        case "add":
            return _reduced(a + b)
        case "sub":
            return _reduced(a - b)
        case "mul":
            return _reduced(a * b)
        case "div":
            return _reduced(a * invert(b))
        case "neg":
            return _reduced(-a)
        case "min" | "max":
            return _extreme(fn, a, b, dtype)
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
            return _COMPARE[fn](_rank(a, dtype), _rank(b, dtype)).astype(np.int64)
        case "and":
            return a & b
        case "or":
            return a | b
        case "not":
            return 1 - a
        case "select":
            return np.where(a != 0, args[1], b)
        case _:
            return symbols(f"{fn} {node.dtype}", *args)


_COMPARE: dict[str, Any] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _extreme(fn: str, a: Array, b: Array, dtype: str) -> Array:
    first = _rank(a, dtype) < _rank(b, dtype)
    return np.where(first if fn == "min" else ~first, a, b)


def scale(x: Array, exponent: Array) -> Array:
    """Return ``x * 2**exponent``; ``exponent`` holds integers and has shape ``(n,)``."""
    powers = [pow(2, int(e), PRIME) for e in exponent.tolist()]
    return _reduced(x * np.array(powers, np.int64))


def fold(reduce: str, dtype: str, start: Array, terms: Array, cell: NDArray[np.intp]) -> Array:
    """Combine ``start`` (a value of each cell) with ``terms``, whose i-th element belongs to cell ``cell[i]``."""
    count = np.bincount(cell, minlength=start.shape[1])
    order = np.argsort(cell, kind="stable")
    column = np.arange(len(cell)) - np.repeat(np.cumsum(count) - count, count)
    neutral = {"+": Const(0, "i32"), "*": Const(1, "i32")}.get(reduce)
    width = int(count.max(initial=0))
    fill = const(neutral)[..., None] if neutral else start[..., None]  # min and max do not mind a value twice
    table = np.array(np.broadcast_to(fill, (*start.shape, width + 1)))
    table[:, :, width] = start
    table[:, cell[order], column] = np.broadcast_to(terms, (POINTS, len(cell)))[:, order]
    if reduce == "+":
        return _reduced(table.sum(axis=2))
    while table.shape[2] > 1:
        half = (table.shape[2] + 1) // 2
        a, b = table[:, :, : table.shape[2] - half], table[:, :, half:]
        flat = a.reshape(POINTS, -1), b.reshape(POINTS, -1)
        joined = _reduced(a * b) if reduce == "*" else _extreme(reduce, *flat, dtype).reshape(a.shape)
        table = np.concatenate([joined, table[:, :, table.shape[2] - half : half]], axis=2)
    return table[:, :, 0]

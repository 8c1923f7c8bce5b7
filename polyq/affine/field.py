"""Arithmetic in a prime field, for tests of polynomial identities.

An identity of rational functions with rational coefficients holds at every point of a large prime field where no
divisor vanishes; an equation that is no identity fails at a random point but for a chance of its degree in
:data:`PRIME`. So values here stand for exact values: loads are random elements, sums and products are those of the
field, and every function without an algebraic law is an unknown function, the same wherever it occurs. A condition is
an element ``c``, and ``select(c, a, b)`` is ``c*a + (1 - c)*b``. A minimum or maximum is an unknown function of the set
of its arguments (:class:`Extremes`), without its neutral element: an infinity or, of integers, an end of their range.

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

__all__ = ["POINTS", "PRIME", "Extremes", "apply", "cast", "const", "fold", "integers", "invert", "scale", "symbols"]

Array = NDArray[np.int64]

#: the field; two of its elements multiply within an ``int64``, and 2 has a large order (Mersenne primes: a small one)
PRIME = 2147483629
#: independent random points (values are told apart by both)
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


# ---- literals
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


# ---- nodes
def cast(node: Cast, x: Array) -> Array:
    """Convert: exact values stay; a conversion that may lose more than a rounding is an unknown function."""
    source, to = node.arg.dtype, node.dtype
    if source == to or is_float(to):
        return x
    if not is_float(source) and to != "bool":
        (low, high), (least, greatest) = value_range(source), value_range(to)
        if least <= low and high <= greatest:
            return x
    return symbols(f"cast {source} {to}", x)


def apply(node: Apply, args: Sequence[Array]) -> Array:
    """Apply a function of :data:`polyq.affine.scalar.FUNCTIONS` or ``select``, but for min and max."""
    a, b = args[0], args[-1]
    match node.fn:
        case "add":
            return _reduced(a + b)
        case "sub":
            return _reduced(a - b)
        case "mul" | "and":
            return _reduced(a * b)
        case "div":
            return _reduced(a * invert(b))
        case "neg":
            return _reduced(-a)
        case "lt" | "gt":
            return symbols("less", *((a, b) if node.fn == "lt" else (b, a)))
        case "ge" | "le":
            return _reduced(1 - symbols("less", *((a, b) if node.fn == "ge" else (b, a))))
        case "eq" | "ne":
            equal = symbols("equal", _reduced(a + b), _reduced(a * b))
            return equal if node.fn == "eq" else _reduced(1 - equal)
        case "or":
            return _reduced(a + b - _reduced(a * b))
        case "not":
            return _reduced(1 - a)
        case "select":
            return _reduced(b + _reduced(a * _reduced(args[1] - b)))
        case _:
            return symbols(f"{node.fn} {node.dtype}", *args)


def scale(x: Array, exponent: Array) -> Array:
    """Return ``x * 2**exponent``; ``exponent`` holds integers and has shape ``(n,)``."""
    different, place = np.unique(exponent, return_inverse=True)
    powers = np.array([pow(2, e, PRIME) for e in different.tolist()], np.int64)
    return _reduced(x * powers[place.ravel()])


def fold(reduce: str, start: Array, terms: Array, cell: NDArray[np.intp]) -> Array:
    """Add or multiply ``start`` (a value of each cell) and ``terms``; the i-th term belongs to cell ``cell[i]``."""
    count = np.bincount(cell, minlength=start.shape[1])
    order = np.argsort(cell, kind="stable")
    column = np.arange(len(cell)) - np.repeat(np.cumsum(count) - count, count)
    width = int(count.max(initial=0))
    table: Array = np.full((*start.shape, width + 1), 0 if reduce == "+" else 1, np.int64)
    table[:, :, width] = start
    table[:, cell[order], column] = np.broadcast_to(terms, (POINTS, len(cell)))[:, order]
    if reduce == "+":
        return _reduced(table.sum(axis=2))
    while table.shape[2] > 1:
        half = (table.shape[2] + 1) // 2
        joined = _reduced(table[:, :, : table.shape[2] - half] * table[:, :, half:])
        table = np.concatenate([joined, table[:, :, table.shape[2] - half : half]], axis=2)
    return table[:, :, 0]


class Extremes:
    """Minima and maxima as unknown functions of sets: what their arguments were, so that nested ones are one set."""

    def __init__(self) -> None:
        self.members: dict[tuple[str, int], Array] = {}

    def fold(self, fn: str, dtype: str, terms: Array, cell: NDArray[np.intp], count: int) -> Array:
        """Return the extreme of each cell's ``terms``; the i-th belongs to cell ``cell[i]`` of ``count``."""
        least, greatest = _ends(dtype)
        neutral = least if fn == "max" else greatest
        kept = (terms != neutral).any(axis=0)
        terms, cell = self._flat(fn, terms[:, kept], cell[kept])
        order = np.lexsort([_key(terms), cell])
        terms, cell = terms[:, order], cell[order]
        new = np.ones(len(cell), np.bool_)
        new[1:] = (cell[1:] != cell[:-1]) | (terms[:, 1:] != terms[:, :-1]).any(axis=0)
        terms, cell = terms[:, new], cell[new]
        number = np.bincount(cell, minlength=count)
        images = symbols(fn, terms)
        sums = np.zeros((POINTS, count), np.int64)
        for point in range(POINTS):
            np.add.at(sums[point], cell, images[point])
        result = np.where(number > 1, _reduced(sums), neutral)
        alone = number[cell] == 1
        result[:, cell[alone]] = terms[:, alone]
        ends = np.cumsum(number)
        for i in np.flatnonzero(number > 1).tolist():
            key = int(result[0, i]) * PRIME + int(result[1, i])
            self.members[fn, key] = terms[:, ends[i] - number[i] : ends[i]]
        return result

    def _flat(self, fn: str, terms: Array, cell: NDArray[np.intp]) -> tuple[Array, NDArray[np.intp]]:
        """Replace terms that are extremes themselves by their arguments."""
        if not any(name == fn for name, _ in self.members):
            return terms, cell
        inner = [(i, m) for i, k in enumerate(_key(terms).tolist()) if (m := self.members.get((fn, k))) is not None]
        if not inner:
            return terms, cell
        rest = np.ones(len(cell), np.bool_)
        rest[[i for i, _ in inner]] = False
        parts = [np.full(m.shape[1], cell[i]) for i, m in inner]
        return np.concatenate([terms[:, rest], *(m for _, m in inner)], axis=1), np.concatenate([cell[rest], *parts])


def _key(terms: Array) -> Array:
    """Return one number for each value, of both points."""
    return terms[0] * PRIME + terms[1]

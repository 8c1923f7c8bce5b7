"""Traced values: what the body of a generic op is called with, and the functions it may call.

A body is a Python function of scalars, ``lambda w, s, z: (polyq.f32(w) - z) * s``; it is called once, with values that
record what is done to them. Numbers are literals: they take the dtype of the other operand.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NoReturn, Union

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.reader import check_name
from polyq.affine.scalar import Const, Index
from polyq.affine.values import Literal, Value, call, combine, literal

__all__ = [
    "Traced", "abs", "bf16", "bool", "erf", "exp", "f16", "f32", "f64", "floor", "i2", "i4", "i8", "i16", "i32", "i64",
    "index", "log", "max", "maximum", "min", "minimum", "rint", "select", "sqrt", "tanh", "u2", "u4", "u8", "u16",
    "u32", "u64", "value_of",
]  # fmt: skip

Operand = Union["Traced", int, float, builtins.bool]


def value_of(operand: object) -> Value:
    """Return what a traced value or a Python or numpy number stands for; :class:`SpecError` for anything else."""
    if isinstance(operand, Traced):
        return operand.value
    kind = type(operand).__name__
    if isinstance(operand, builtins.bool) or kind in ("bool_", "bool"):
        return Const(builtins.bool(operand), "bool")
    if isinstance(operand, Integral):
        return literal(int(operand))
    if isinstance(operand, Real):
        return literal(float(operand))
    raise SpecError(f"a body combines traced values and numbers, got {operand!r} of type {kind}")


def _made(fn: str, *operands: object) -> Traced:
    return Traced(combine(fn, *(value_of(o) for o in operands)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Traced:
    """A scalar that records the operations on it; ``&``, ``|`` and ``~`` are the logical operators of bools."""

    value: Value
    __array_ufunc__ = None  # numpy numbers on the left leave the operation to this class

    def __repr__(self) -> str:
        from polyq.affine.scalar import format_scalar

        return "a literal" if isinstance(self.value, Literal) else f"{self.value.dtype}: {format_scalar(self.value)}"

    def __bool__(self) -> NoReturn:
        raise SpecError(
            "a traced value has no truth value: the body is traced once for all elements; use select(condition, a, b), "
            "minimum, maximum, or &, | and ~ for and, or and not"
        )

    def __add__(self, other: Operand) -> Traced:
        return _made("add", self, other)

    def __radd__(self, other: Operand) -> Traced:
        return _made("add", other, self)

    def __sub__(self, other: Operand) -> Traced:
        return _made("sub", self, other)

    def __rsub__(self, other: Operand) -> Traced:
        return _made("sub", other, self)

    def __mul__(self, other: Operand) -> Traced:
        return _made("mul", self, other)

    def __rmul__(self, other: Operand) -> Traced:
        return _made("mul", other, self)

    def __truediv__(self, other: Operand) -> Traced:
        return _made("div", self, other)

    def __rtruediv__(self, other: Operand) -> Traced:
        return _made("div", other, self)

    def __floordiv__(self, other: Operand) -> Traced:
        return _made("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Traced:
        return _made("floordiv", other, self)

    def __mod__(self, other: Operand) -> Traced:
        return _made("mod", self, other)

    def __rmod__(self, other: Operand) -> Traced:
        return _made("mod", other, self)

    def __neg__(self) -> Traced:
        return _made("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return _made("abs", self)

    def __lt__(self, other: Operand) -> Traced:
        return _made("lt", self, other)

    def __le__(self, other: Operand) -> Traced:
        return _made("le", self, other)

    def __gt__(self, other: Operand) -> Traced:
        return _made("gt", self, other)

    def __ge__(self, other: Operand) -> Traced:
        return _made("ge", self, other)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return _made("eq", self, other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return _made("ne", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Operand) -> Traced:
        return _made("and", self, other)

    def __rand__(self, other: Operand) -> Traced:
        return _made("and", other, self)

    def __or__(self, other: Operand) -> Traced:
        return _made("or", self, other)

    def __ror__(self, other: Operand) -> Traced:
        return _made("or", other, self)

    def __invert__(self) -> Traced:
        return _made("not", self)


def index(dim: str) -> Traced:
    """Return the value of a dim of the op, as an ``i64``."""
    return Traced(Index(Affine.dim(check_name(dim, "dim"))))


def _function(name: str, doc: str) -> Callable[..., Traced]:
    def traced(*operands: object) -> Traced:
        return Traced(call(name, *(value_of(o) for o in operands)))

    traced.__name__ = traced.__qualname__ = name
    traced.__doc__ = doc
    return traced


def _cast(dtype: str) -> Callable[[Operand], Traced]:
    return _function(dtype, f"Return the value as {dtype}: integers wrap, float to integer truncates and saturates.")


u2, u4, u8, u16, u32, u64 = (_cast(f"u{bits}") for bits in (2, 4, 8, 16, 32, 64))
i2, i4, i8, i16, i32, i64 = (_cast(f"i{bits}") for bits in (2, 4, 8, 16, 32, 64))
f16, bf16, f32, f64 = (_cast(name) for name in ("f16", "bf16", "f32", "f64"))
bool = _cast("bool")

exp = _function("exp", "Return e to the power of the value.")
log = _function("log", "Return the natural logarithm.")
sqrt = _function("sqrt", "Return the square root.")
tanh = _function("tanh", "Return the hyperbolic tangent.")
erf = _function("erf", "Return the error function.")
floor = _function("floor", "Return the greatest integer that is not above the value, as a float.")
rint = _function("rint", "Return the nearest integer as a float, ties to even.")
abs = _function("abs", "Return the absolute value.")
min = minimum = _function("min", "Return the least of two or more values.")
max = maximum = _function("max", "Return the greatest of two or more values.")
select = _function("select", "Return ``a`` where the condition holds, else ``b``: ``select(condition, a, b)``.")

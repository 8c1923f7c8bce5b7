"""Scalar operations of ``arith`` and ``math`` as polyq's scalar expressions.

A signless integer is a scalar of dtype ``iN``; an operation that reads its bits as unsigned goes through a cast to
``uN``, which keeps them. An ``index`` is an affine expression as long as it is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, FloorDiv
from polyq.affine.mlir.bitwise import bit_and, bit_or, bit_xor, shift
from polyq.affine.mlir.casts import Rule, cast, extended, number, select, unsigned, zero
from polyq.affine.scalar import Apply, Cast, Const, Index, Scalar, apply

__all__ = ["CASTS", "SCALAR_OPS", "power"]


# ---- helpers
def _binary(fn: str) -> Rule:
    return lambda a, dtype, _: apply(fn, a[0], a[1])


def _unary(fn: str) -> Rule:
    return lambda a, dtype, _: apply(fn, a[0])


def _as_unsigned(fn: str) -> Rule:
    return lambda a, dtype, _: cast(apply(fn, unsigned(a[0]), unsigned(a[1])), dtype)


def _affine(fn: Callable[[Affine, Affine], Affine | None], otherwise: Rule) -> Rule:
    """Return the rule that stays affine on index values where it can."""

    def rule(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
        if isinstance(a[0], Index) and isinstance(a[1], Index):
            made = fn(a[0].expr, a[1].expr)
            if made is not None:
                return Index(made, dtype)
        return otherwise(a, dtype, p)

    return rule


def _times(a: Affine, b: Affine) -> Affine | None:
    return a * b.const if b.is_constant else b * a.const if a.is_constant else None


def _over(a: Affine, b: Affine) -> Affine | None:
    return a // b.const if b.is_constant and b.const > 0 else None


def _above(a: Affine, b: Affine) -> Affine | None:
    return -((-a) // b.const) if b.is_constant and b.const > 0 else None


def _counting(e: Affine) -> bool:
    """Whether an expression of dims and sizes, none of which is negative, is never negative."""
    return e.const >= 0 and all(
        k >= 0 and (not isinstance(atom, FloorDiv) or _counting(atom.numerator)) for atom, k in e.terms
    )


def _over_counted(a: Affine, b: Affine) -> Affine | None:
    return _over(a, b) if _counting(a) else None


def _rest_counted(a: Affine, b: Affine) -> Affine | None:
    return a % b.const if b.is_constant and b.const > 0 and _counting(a) else None


def _quotient(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    """Return the quotient rounded towards zero."""
    floor = apply("floordiv", a[0], a[1])
    inexact = apply("ne", apply("mod", a[0], a[1]), zero(a[0]))
    below = apply("ne", apply("lt", a[0], zero(a[0])), apply("lt", a[1], zero(a[1])))
    return select(apply("and", inexact, below), apply("add", floor, number(1, dtype)), floor)


def _remainder(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    return apply("sub", a[0], apply("mul", _quotient(a, dtype, p), a[1]))


def _difference(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    match a[1]:
        case Apply("mul", (Apply("floordiv", (number_, b), _), c), _) if number_ == a[0] and b == c:
            return apply("mod", a[0], b)
        case _:
            return apply("sub", a[0], a[1])


def _ceiling(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    floor = apply("floordiv", a[0], a[1])
    inexact = apply("ne", apply("mod", a[0], a[1]), zero(a[0]))
    return select(inexact, apply("add", floor, number(1, dtype)), floor)


def _numeric(fn: str) -> Rule:
    """Return min or max that prefers a number to NaN."""

    def rule(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
        return select(apply("ne", a[0], a[0]), a[1], select(apply("ne", a[1], a[1]), a[0], apply(fn, a[0], a[1])))

    return rule


# ---- comparisons
_ORDER = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_INTEGER = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_FLOAT = (
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true",
)  # fmt: skip
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _compare_integers(a: Sequence[Scalar], dtype: str, predicate: str) -> Scalar:
    name = _INTEGER[int(predicate)]
    if name in ("eq", "ne"):
        return apply(name, a[0], a[1])
    if name[0] == "u":
        return apply(name[1:], unsigned(a[0]), unsigned(a[1]))
    return apply(name[1:], a[0], a[1])


def _ordered(a: Scalar, b: Scalar) -> Scalar:
    return apply("and", apply("eq", a, a), apply("eq", b, b))


def _compare_floats(a: Sequence[Scalar], dtype: str, predicate: str) -> Scalar:
    name = _FLOAT[int(predicate)]
    x, y = a[0], a[1]
    if name in ("true", "false"):
        return Const(name == "true", "bool")
    if name in ("ord", "uno"):
        return _ordered(x, y) if name == "ord" else apply("not", _ordered(x, y))
    if name in ("one", "ueq"):
        differ = apply("or", apply("lt", x, y), apply("gt", x, y))
        return differ if name == "one" else apply("not", differ)
    order = name[1:]
    if name[0] == "o" or name == "une":
        return apply(order, x, y)
    return apply("not", apply(_OPPOSITE[order], x, y))


# ---- conversions
def _extend(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return cast(extended(a[0]), dtype)


def _from_bool(a: Scalar, dtype: str) -> Scalar:
    """Return a bool as a signed integer or float of one bit: 0 or -1."""
    return select(a, number(-1, dtype), number(0, dtype))


def _sign_extend(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return _from_bool(a[0], dtype) if a[0].dtype == "bool" else cast(a[0], dtype)


def _truncate(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    if dtype == "bool":
        x = unsigned(a[0])
        return apply("ne", apply("mod", x, number(2, x.dtype)), number(0, x.dtype))
    return cast(a[0], dtype)


def _to_unsigned(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return cast(Cast(a[0], "u" + dtype[1:]), dtype) if dtype != "bool" else Cast(a[0], "bool")


def _same_bits(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    if not (dtypes.is_int(a[0].dtype) and dtypes.is_int(dtype)):
        raise SpecError(f"the bits of {a[0].dtype} as {dtype} have no form in polyq")
    return cast(a[0], dtype)


def _cast(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return cast(a[0], dtype)


# ---- functions by way of others
def _wide(fn: Callable[[Scalar], Scalar]) -> Rule:
    """Return the rule that computes in f64 and rounds once."""

    def rule(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
        return cast(fn(cast(a[0], "f64")), dtype)

    return rule


def _f64(value: float) -> Const:
    return Const(value, "f64")


def _log1p(x: Scalar) -> Scalar:
    """log(1 + x) by Kahan's quotient, right where 1 + x rounds (W. Kahan, as in HP's journals)."""
    u = apply("add", _f64(1.0), x)
    part = apply("mul", apply("log", u), apply("div", x, apply("sub", u, _f64(1.0))))
    special = apply("or", apply("eq", u, _f64(1.0)), apply("eq", x, _f64(math.inf)))
    return select(special, x, part)


def _expm1(x: Scalar) -> Scalar:
    u = apply("exp", x)
    less = apply("sub", u, _f64(1.0))
    part = apply("div", apply("mul", less, x), apply("log", u))
    extreme = apply("or", apply("eq", less, _f64(-1.0)), apply("eq", u, _f64(math.inf)))
    return select(apply("eq", u, _f64(1.0)), x, select(extreme, less, part))


def _ceil(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return apply("neg", apply("floor", apply("neg", a[0])))


def _trunc(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    return select(apply("lt", a[0], zero(a[0])), _ceil(a, dtype, p), apply("floor", a[0]))


def _round(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    """Round to the nearest integer, halves away from zero."""
    size = apply("abs", a[0])
    low = apply("floor", size)
    up = apply("ge", apply("sub", size, low), number(0.5, dtype))
    whole = select(up, apply("add", low, number(1, dtype)), low)
    return select(apply("lt", a[0], zero(a[0])), apply("neg", whole), whole)


def _reciprocal_root(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return apply("div", number(1, dtype), apply("sqrt", a[0]))


def power(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    """Return ``x ** y`` for a constant ``y`` that is a small whole number or a half, as products and roots."""
    y = a[1]
    value = float(y.value) if isinstance(y, Const) else math.nan
    if value == 0.5:
        return apply("sqrt", a[0])
    if not (value.is_integer() and abs(value) <= 16):
        raise SpecError("a power has a form in polyq for constant whole exponents from -16 to 16 and 0.5 only")
    result: Scalar = number(1, dtype)
    for k in range(int(abs(value))):
        result = a[0] if not k else apply("mul", result, a[0])
    return result if value >= 0 else apply("div", number(1, dtype), result)


def _fma(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    wide = [cast(x, "f64") for x in a]
    return cast(apply("add", apply("mul", wide[0], wide[1]), wide[2]), dtype)


def _negate(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return apply("neg", a[0])


SCALAR_OPS: dict[str, Rule] = {
    "arith.addf": _binary("add"), "arith.subf": _binary("sub"), "arith.mulf": _binary("mul"),
    "arith.divf": _binary("div"), "arith.negf": _negate,
    "arith.addi": _affine(lambda a, b: a + b, _binary("add")),
    "arith.subi": _affine(lambda a, b: a - b, _difference),
    "arith.muli": _affine(_times, _binary("mul")),
    "arith.floordivsi": _affine(_over, _binary("floordiv")), "arith.ceildivsi": _affine(_above, _ceiling),
    # dims and sizes are never negative, so that all divisions of them are alike
    "arith.divsi": _affine(_over_counted, _quotient), "arith.divui": _affine(_over_counted, _as_unsigned("floordiv")),
    "arith.ceildivui": lambda a, d, p: cast(_ceiling([unsigned(a[0]), unsigned(a[1])], "u" + d[1:], p), d),
    "arith.remsi": _affine(_rest_counted, _remainder), "arith.remui": _affine(_rest_counted, _as_unsigned("mod")),
    "arith.maxsi": _binary("max"), "arith.minsi": _binary("min"),
    "arith.maxui": _as_unsigned("max"), "arith.minui": _as_unsigned("min"),
    "arith.maximumf": _binary("max"), "arith.minimumf": _binary("min"),
    "arith.maxf": _binary("max"), "arith.minf": _binary("min"),
    "arith.maxnumf": _numeric("max"), "arith.minnumf": _numeric("min"),
    "arith.andi": bit_and, "arith.ori": bit_or, "arith.xori": bit_xor,
    "arith.shli": shift("left"), "arith.shrui": shift("right"), "arith.shrsi": shift("signed"),
    "arith.cmpi": _compare_integers, "arith.cmpf": _compare_floats,
    "arith.select": lambda a, _, __: select(a[0], a[1], a[2]),
    "arith.extui": _extend, "arith.extsi": _sign_extend, "arith.extf": _cast, "arith.truncf": _cast,
    "arith.trunci": _truncate, "arith.sitofp": _sign_extend, "arith.uitofp": _extend, "arith.fptosi": _cast,
    "arith.fptoui": _to_unsigned, "arith.index_cast": _cast, "arith.index_castui": _extend, "arith.bitcast": _same_bits,
    "math.exp": _unary("exp"), "math.log": _unary("log"), "math.sqrt": _unary("sqrt"), "math.tanh": _unary("tanh"),
    "math.erf": _unary("erf"), "math.floor": _unary("floor"), "math.roundeven": _unary("rint"),
    "math.absf": _unary("abs"), "math.absi": _unary("abs"), "math.ceil": _ceil, "math.trunc": _trunc,
    "math.round": _round, "math.rsqrt": _reciprocal_root, "math.fma": _fma, "math.powf": power,
    "math.fpowi": power, "math.ipowi": power,
    "math.exp2": _wide(lambda x: apply("exp", apply("mul", x, _f64(math.log(2))))),
    "math.log2": _wide(lambda x: apply("div", apply("log", x), _f64(math.log(2)))),
    "math.log10": _wide(lambda x: apply("div", apply("log", x), _f64(math.log(10)))),
    "math.log1p": _wide(_log1p), "math.expm1": _wide(_expm1),
}  # fmt: skip


#: ops that are a cast and nothing else, where polyq noted the dtype
CASTS = frozenset(
    f"arith.{name}"
    for name in ("extui", "extsi", "trunci", "sitofp", "uitofp", "fptosi", "fptoui", "bitcast", "index_cast")
)

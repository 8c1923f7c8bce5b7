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
from polyq.affine.scalar import Apply, Cast, Const, Index, Scalar, apply

__all__ = ["CASTS", "SCALAR_OPS", "convert", "number", "power"]

#: operands, the dtype of the result, the predicate of a comparison -> the result
Rule = Callable[[Sequence[Scalar], str, str], Scalar]


def number(value: float, dtype: str) -> Const:
    """Return a constant of a dtype; integers are taken modulo its range."""
    if dtypes.is_float(dtype):
        return Const(float(value), dtype)
    if dtype == "bool":
        return Const(bool(value), dtype)
    low, high = dtypes.value_range(dtype)
    return Const((int(value) - low) % (high - low + 1) + low, dtype)


def cast(s: Scalar, dtype: str) -> Scalar:
    """Return ``s`` as ``dtype``; constants are converted at once where that is exact."""
    if s.dtype == dtype:
        return s
    if isinstance(s, Const) and not dtypes.is_float(s.dtype) and not dtypes.is_float(dtype) and dtype != "bool":
        return number(s.value, dtype)
    if isinstance(s, Cast) and _holds(s.dtype, s.arg.dtype):
        return cast(s.arg, dtype)  # a cast that kept every value says nothing
    return Cast(s, dtype)


def _holds(wide: str, narrow: str) -> bool:
    """Whether an integer type has every value of another, which is no bool."""
    if not dtypes.is_int(wide) or not dtypes.is_int(narrow):
        return False
    a, b = dtypes.value_range(wide), dtypes.value_range(narrow)
    return a[0] <= b[0] and b[1] <= a[1]


def unsigned(s: Scalar) -> Scalar:
    """Return the same bits as an unsigned integer."""
    return cast(s, "u" + s.dtype[1:]) if dtypes.info(s.dtype).kind == "i" else s


def _extended(s: Scalar) -> Scalar:
    """Return a scalar whose value is that of the bits as an unsigned integer."""
    if isinstance(s, Cast) and dtypes.info(s.arg.dtype).kind == "u" and _holds(s.dtype, s.arg.dtype):
        return s  # never negative
    return unsigned(s)


def convert(s: Scalar, dtype: str, *, signed: bool = True) -> Scalar:
    """Return ``s`` converted as linalg's named ops do: integers extend by sign, or by zeros if not ``signed``."""
    return cast(s if signed else unsigned(s), dtype)


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


def _select(c: Scalar, a: Scalar, b: Scalar) -> Scalar:
    return apply("select", c, a, b)


def _zero(s: Scalar) -> Const:
    return number(0, s.dtype)


def _quotient(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    """Return the quotient rounded towards zero."""
    floor = apply("floordiv", a[0], a[1])
    inexact = apply("ne", apply("mod", a[0], a[1]), _zero(a[0]))
    below = apply("ne", apply("lt", a[0], _zero(a[0])), apply("lt", a[1], _zero(a[1])))
    return _select(apply("and", inexact, below), apply("add", floor, number(1, dtype)), floor)


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
    inexact = apply("ne", apply("mod", a[0], a[1]), _zero(a[0]))
    return _select(inexact, apply("add", floor, number(1, dtype)), floor)


def _numeric(fn: str) -> Rule:
    """Return min or max that prefers a number to NaN."""

    def rule(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
        return _select(apply("ne", a[0], a[0]), a[1], _select(apply("ne", a[1], a[1]), a[0], apply(fn, a[0], a[1])))

    return rule


# ---- bits
def _possible(s: Scalar) -> int:
    """Return a mask of the bits that may be set in an integer of at most 64 bits."""
    width = dtypes.info(s.dtype).bits if s.dtype != "bool" else 1
    everything = (1 << width) - 1
    match s:
        case Const(value, _):
            return int(value) & everything
        case Cast(arg, _) if arg.dtype != "bool" and not dtypes.is_float(arg.dtype):
            inner = _possible(arg)
            bits = dtypes.info(arg.dtype).bits
            if dtypes.info(arg.dtype).kind == "i" and inner >> (bits - 1):
                return everything
            return inner & everything
        case Cast(arg, _) if arg.dtype == "bool":
            return 1
        case Apply("mod", (_, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return int(m) - 1
        case Apply("mul", (a, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return (_possible(a) * int(m)) & everything
        case Apply("floordiv", (a, Const(m, _)), _) if m > 0 and not (int(m) & (int(m) - 1)):
            return _possible(a) // int(m) if dtypes.info(s.dtype).kind == "u" else everything
        case Apply("add", (a, b), _) if not _possible(a) & _possible(b):
            return _possible(a) | _possible(b)
        case _:
            return everything


def _bit(s: Scalar, k: int) -> Scalar:
    """Return bit ``k`` of an unsigned integer, as 0 or 1."""
    shifted = apply("floordiv", s, number(1 << k, s.dtype)) if k else s
    return apply("mod", shifted, number(2, s.dtype))


def _and(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    if dtype == "bool":
        return apply("and", a[0], a[1])
    x, y = (unsigned(a[1]), unsigned(a[0])) if isinstance(a[0], Const) else (unsigned(a[0]), unsigned(a[1]))
    if isinstance(y, Const):
        low = (int(y.value) & -int(y.value)).bit_length() - 1
        run = int(y.value) >> max(low, 0)
        if not y.value:
            return _zero(Const(0, dtype))
        if not run & (run + 1):  # a run of ones: shift, cut, shift back
            shifted = apply("floordiv", x, number(1 << low, x.dtype)) if low else x
            whole = (low + run.bit_length()) == dtypes.info(x.dtype).bits
            cut = shifted if whole else apply("mod", shifted, number(run + 1, x.dtype))
            return cast(apply("mul", cut, number(1 << low, x.dtype)) if low else cut, dtype)
    wanted = [k for k in range(dtypes.info(x.dtype).bits) if (_possible(x) & _possible(y)) >> k & 1]
    if len(wanted) > 8:
        raise SpecError(
            f"`and` of two {dtype} values that share {len(wanted)} bits has no form in polyq; expected a constant "
            "mask, or at most 8 shared bits"
        )
    total: Scalar = number(0, x.dtype)
    for k in wanted:
        both = apply("mul", _bit(x, k), _bit(y, k))
        total = apply("add", total, apply("mul", both, number(1 << k, x.dtype)))
    return cast(total, dtype)


def _or(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    if dtype == "bool":
        return apply("or", a[0], a[1])
    if not _possible(a[0]) & _possible(a[1]):
        return apply("add", a[0], a[1])
    return apply("sub", apply("add", a[0], a[1]), _and(a, dtype, p))


def _xor(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    if dtype == "bool":
        return apply("ne", a[0], a[1])
    for x, y in ((a[0], a[1]), (a[1], a[0])):
        if isinstance(y, Const) and int(y.value) == -1:
            return apply("sub", y, x)
        if isinstance(y, Const) and int(y.value) in (dtypes.value_range(dtype)[0], -dtypes.value_range(dtype)[0]):
            return apply("add", x, y)  # the sign bit: a sum that wraps
    both = _and(a, dtype, p)
    return apply("sub", apply("sub", apply("add", a[0], a[1]), both), both)


def _shift(kind: str) -> Rule:
    def rule(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
        if not isinstance(a[1], (Const, Index)) or (isinstance(a[1], Index) and not a[1].expr.is_constant):
            raise SpecError("a shift by a value has no form in polyq; expected a constant")
        by = int(a[1].value) if isinstance(a[1], Const) else a[1].expr.const
        bits = dtypes.info(dtype).bits
        if not 0 <= by < bits:
            raise SpecError(f"a shift of {dtype} by {by}: expected 0 to {bits - 1}")
        if not by:
            return a[0]
        if kind == "left":
            return apply("mul", a[0], number(1 << by, dtype))
        if kind == "right":
            x = unsigned(a[0])
            return cast(apply("floordiv", x, number(1 << by, x.dtype)), dtype)
        if by == bits - 1:  # the divisor would not fit the type
            return _select(apply("lt", a[0], _zero(a[0])), number(-1, dtype), number(0, dtype))
        return apply("floordiv", a[0], number(1 << by, dtype))

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
    return cast(_extended(a[0]), dtype)


def _from_bool(a: Scalar, dtype: str) -> Scalar:
    """Return a bool as a signed integer or float of one bit: 0 or -1."""
    return _select(a, number(-1, dtype), number(0, dtype))


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
    return _select(special, x, part)


def _expm1(x: Scalar) -> Scalar:
    u = apply("exp", x)
    less = apply("sub", u, _f64(1.0))
    part = apply("div", apply("mul", less, x), apply("log", u))
    extreme = apply("or", apply("eq", less, _f64(-1.0)), apply("eq", u, _f64(math.inf)))
    return _select(apply("eq", u, _f64(1.0)), x, _select(extreme, less, part))


def _ceil(a: Sequence[Scalar], dtype: str, _: str) -> Scalar:
    return apply("neg", apply("floor", apply("neg", a[0])))


def _trunc(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    return _select(apply("lt", a[0], _zero(a[0])), _ceil(a, dtype, p), apply("floor", a[0]))


def _round(a: Sequence[Scalar], dtype: str, p: str) -> Scalar:
    """Round to the nearest integer, halves away from zero."""
    size = apply("abs", a[0])
    low = apply("floor", size)
    up = apply("ge", apply("sub", size, low), number(0.5, dtype))
    whole = _select(up, apply("add", low, number(1, dtype)), low)
    return _select(apply("lt", a[0], _zero(a[0])), apply("neg", whole), whole)


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
    "arith.andi": _and, "arith.ori": _or, "arith.xori": _xor,
    "arith.shli": _shift("left"), "arith.shrui": _shift("right"), "arith.shrsi": _shift("signed"),
    "arith.cmpi": _compare_integers, "arith.cmpf": _compare_floats,
    "arith.select": lambda a, _, __: _select(a[0], a[1], a[2]),
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

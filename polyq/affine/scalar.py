"""Typed scalar expressions: the bodies of ops.

Five nodes: :class:`Const`, :class:`Index` (the value of an affine expression), :class:`Load`, :class:`Cast` and
:class:`Apply` (arithmetic, comparisons, select, math). Every node knows its dtype; :func:`apply` checks the types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Union

from polyq.affine import dtypes
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, FloorDiv

__all__ = ["FUNCTIONS", "Apply", "Cast", "Const", "Index", "Load", "Scalar", "apply", "depth_of", "loads", "map_scalar"]


@dataclass(frozen=True, slots=True)
class Const:
    """A literal of a dtype."""

    value: int | float | bool
    dtype: str

    def __post_init__(self) -> None:
        if self.value != self.value:  # one object for NaN, so that == of trees holds
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True, slots=True)
class Index:
    """The value of an affine expression of dims and parameters, as an integer type."""

    expr: Affine
    dtype: str = "i64"


@dataclass(frozen=True, slots=True)
class Load:
    """The element ``tensor[index]``."""

    tensor: str
    index: tuple[Affine, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion: integers wrap, ``u`` is zero-extended; float to integer truncates, saturates, gives 0 for NaN."""

    arg: Scalar
    dtype: str


@dataclass(frozen=True, slots=True)
class Apply:
    """``fn(*args)``: the names are those of :data:`FUNCTIONS`."""

    fn: str
    args: tuple[Scalar, ...]
    dtype: str


Scalar = Union[Const, Index, Load, Cast, Apply]

#: name -> (number of arguments, which kinds of operand it takes, kind of its result: "same" or "bool")
FUNCTIONS: dict[str, tuple[int, str, str]] = {
    "add": (2, "uif", "same"), "sub": (2, "uif", "same"), "mul": (2, "uif", "same"),
    "div": (2, "f", "same"), "floordiv": (2, "ui", "same"), "mod": (2, "ui", "same"),
    "neg": (1, "uif", "same"), "abs": (1, "uif", "same"), "min": (2, "uif", "same"), "max": (2, "uif", "same"),
    "lt": (2, "uifb", "bool"), "le": (2, "uifb", "bool"), "gt": (2, "uifb", "bool"), "ge": (2, "uifb", "bool"),
    "eq": (2, "uifb", "bool"), "ne": (2, "uifb", "bool"),
    "and": (2, "b", "bool"), "or": (2, "b", "bool"), "not": (1, "b", "bool"),
    "exp": (1, "f", "same"), "log": (1, "f", "same"), "sqrt": (1, "f", "same"), "tanh": (1, "f", "same"),
    "erf": (1, "f", "same"), "floor": (1, "f", "same"), "rint": (1, "f", "same"),
    # ldexp(x, e): x * 2**e with e an Index or integer Const; made by rewrites, never by a front end
    "ldexp": (2, "f", "same"),
    # binade(x): the greatest power of two that is at most x, which is not negative; 0 of 0 and of subnormal numbers,
    # inf of what is not finite; made by rewrites as well
    "binade": (1, "f", "same"),
}  # fmt: skip


def apply(fn: str, *args: Scalar) -> Apply:
    """Return ``fn(*args)`` after a check of count and types; raise :class:`SpecError` where they do not fit.

    >>> apply("add", Const(1.0, "f32"), Const(2.0, "f32")).dtype
    'f32'
    """
    if fn == "select":
        if len(args) != 3 or args[0].dtype != "bool" or args[1].dtype != args[2].dtype:
            got = ", ".join(a.dtype for a in args)
            raise SpecError(
                f"select(condition, a, b): expected (bool, T, T) with one dtype T, got ({got}); cast one side"
            )
        return Apply("select", args, args[1].dtype)
    count, kinds, result = FUNCTIONS[fn]
    if len(args) != count:
        raise SpecError(f"{fn}: expected {count} argument{'s' if count > 1 else ''}, got {len(args)}")
    first = args[0].dtype
    if fn != "ldexp" and any(a.dtype != first for a in args):
        got = " and ".join(a.dtype for a in args)
        raise SpecError(
            f"{fn}: the operands have dtypes {got}; different dtypes mix only through casts, such as {first}(...)"
        )
    if dtypes.info(first).kind not in kinds:
        names = {"u": "unsigned integers", "i": "signed integers", "f": "floats", "b": "bool"}
        raise SpecError(f"{fn}: expected {', '.join(names[k] for k in kinds)}, got {first}; cast the operand")
    return Apply(fn, args, first if result == "same" else "bool")


def children(s: Scalar) -> tuple[Scalar, ...]:
    """Return the direct operands of a node."""
    if isinstance(s, Apply):
        return s.args
    return (s.arg,) if isinstance(s, Cast) else ()


def walk(s: Scalar) -> Iterator[Scalar]:
    """Yield every node, operands before their user, left to right."""
    for child in children(s):
        yield from walk(child)
    yield s


def depth_of(s: Scalar) -> int:
    """Return how many nodes stand inside one another at most; a leaf has depth 1."""
    return 1 + max(map(depth_of, children(s)), default=0)


def loads(s: Scalar) -> tuple[Load, ...]:
    """Return all loads, left to right, repeated ones included; position in this tuple names an operand."""
    return tuple(node for node in walk(s) if isinstance(node, Load))


def map_scalar(s: Scalar, leaf: Callable[[Const | Index | Load], Scalar]) -> Scalar:
    """Rebuild ``s`` with every leaf replaced by ``leaf(node)`` (called left to right)."""
    if isinstance(s, Apply):
        args = tuple(map_scalar(a, leaf) for a in s.args)
        return s if all(a is b for a, b in zip(args, s.args, strict=True)) else replace(s, args=args)
    if isinstance(s, Cast):
        arg = map_scalar(s.arg, leaf)
        return s if arg is s.arg else replace(s, arg=arg)
    return leaf(s)


def substitute_dims(s: Scalar, dims: dict[str, Affine]) -> Scalar:
    """Replace dims in all subscripts and index values."""

    def leaf(node: Const | Index | Load) -> Scalar:
        if isinstance(node, Load):
            return replace(node, index=tuple(e.substitute(dims) for e in node.index))
        return replace(node, expr=node.expr.substitute(dims)) if isinstance(node, Index) else node

    return map_scalar(s, leaf)


SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
}  # fmt: skip


#: how strongly an operator binds, as in Python: of two in a row that bind alike, the left one is computed first
_BINDING = {
    "or": 1, "and": 2, "not": 3, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4, "add": 5, "sub": 5,
    "mul": 6, "div": 6, "floordiv": 6, "mod": 6, "neg": 7,
}  # fmt: skip
_COMPARES, _SUM, _PRODUCT, _SIGN, _WHOLE = 4, 5, 6, 7, 8


def format_scalar(s: Scalar) -> str:
    """Return the expression in index notation, with the brackets that it needs.

    Different expressions have different texts, but for the types of literals.

    >>> from polyq.affine.notation import parse
    >>> print(format_scalar(parse("y[i] = exp(a[i] - (2.0 - a[i]) * -a[i])", a=("f32", (4,))).ops[-1].body))
    exp(a[i] - (2.0 - a[i]) * (-a[i]))
    """
    return _bound_text(s)[0]


def _bound_text(s: Scalar) -> tuple[str, int]:
    """Return the text of an expression, and how strongly its outermost operator binds."""
    match s:
        case Const(value, _):
            return str(value), _WHOLE
        case Index(expr, _):
            return str(expr), _index_binding(expr)
        case Load(tensor, index, _):
            return f"{tensor}[{', '.join(map(str, index))}]" if index else tensor, _WHOLE
        case Cast(arg, dtype):
            return f"{dtype}({format_scalar(arg)})", _WHOLE
        case Apply(fn, args, _) if fn in SYMBOLS:
            own = _BINDING[fn]
            left = _in_brackets(args[0], own + (own == _COMPARES))  # a < b < c would be two comparisons in one
            return f"{left} {SYMBOLS[fn]} {_in_brackets(args[1], own + 1, sign=False)}", own
        case Apply("neg", args, _):
            number = isinstance(args[0], Const)  # -(1.0) is no literal
            return f"-{_in_brackets(args[0], _WHOLE + number)}", _SIGN
        case Apply("not", args, _):
            return f"not {_in_brackets(args[0], _WHOLE)}", _BINDING["not"]
        case Apply(fn, args, _):
            return f"{fn}({', '.join(format_scalar(a) for a in args)})", _WHOLE


def _index_binding(expr: Affine) -> int:
    if len(expr.terms) + bool(expr.const) > 1:
        return _SUM
    return _WHOLE if all(c == 1 and not isinstance(atom, FloorDiv) for atom, c in expr.terms) else _PRODUCT


def _in_brackets(s: Scalar, least: int, *, sign: bool = True) -> str:
    """Return the text of an operand, in brackets if it binds less than that, or is a sign that may not stand there."""
    text, binding = _bound_text(s)
    return f"({text})" if binding < least or (binding == _SIGN and not sign) else text

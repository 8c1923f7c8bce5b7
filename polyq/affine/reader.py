"""From syntax trees to affine expressions, constraints and typed scalars, by an allow-list; nothing is evaluated."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polyq.affine.dtypes import DTYPES
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, Constraint, Dim, Param
from polyq.affine.scalar import Const, Index
from polyq.affine.values import FUNCTION_NAMES, NUMBERS, Value, call, combine, literal

__all__ = [
    "RESERVED", "Reader", "affine", "bare_names", "check_name", "constraints", "expressions", "index_value",
    "names_in_order", "parse_expression", "source", "subscripts",
]  # fmt: skip

#: names that no tensor, dim or parameter may have: arguments of calls, functions and dtypes
RESERVED = frozenset(
    {"out", "outputs", "precise", "reference", "numerics", "where", *NUMBERS, *FUNCTION_NAMES, *DTYPES},
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(name: object, what: str) -> str:
    """Return ``name`` if a tensor, dim or parameter may be called so, else raise :class:`SpecError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("__") or keyword.iskeyword(name):
        raise SpecError(
            f"{what} {name!r}: expected a name of ASCII letters, digits and _ that starts with a letter or one _ and "
            "is no Python keyword; rename it"
        )
    if name in RESERVED:
        raise SpecError(f"{what} {name!r}: the name is reserved for a function, a dtype or an argument; rename it")
    return name


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of one expression; it is never evaluated."""
    shown = text.strip() if len(text) <= 80 else text.strip()[:77] + "..."
    if "#" in text:  # lines lose their comments before this; in a shape or a map, what follows would be dropped
        raise SpecError(f"`{shown}` is no expression of index notation: it holds a comment")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply or not text"
        raise SpecError(f"`{shown}` is no expression of index notation: {reason}") from None


def source(node: ast.AST) -> str:
    """Return a node as text, for messages."""
    return ast.unparse(node)


# ---- affine expressions
def affine(node: ast.expr, atom: Callable[[str], Dim | Param]) -> Affine:
    """Return the affine expression that ``node`` stands for; ``atom`` says what a name is.

    Raises :class:`SpecError` that names the sub-expression which is not affine.
    """
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return _small(node, Affine(value))
        case ast.Name(id=name):
            return Affine.of(atom(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -affine(operand, atom)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return affine(operand, atom)
        case ast.BinOp(left=left, op=op, right=right):
            return _small(node, _affine_binary(node, op, affine(left, atom), affine(right, atom)))
        case ast.Subscript():
            raise SpecError(f"`{source(node)}` is read from memory, which no affine expression can do")
        case ast.Constant(value=value):
            raise SpecError(f"`{value!r}` is no integer; an affine expression has integer constants only")
        case _:
            raise SpecError(f"`{source(node)}` is not affine: sums, products with constants, // and % are")


def _small(node: ast.expr, value: Affine) -> Affine:
    """Refuse numbers that 64-bit index arithmetic cannot hold; room for sums and products of others is left."""
    if any(abs(number) >= 2**48 for number in (value.const, *(c for _, c in value.terms))):
        raise SpecError(f"`{source(node)}`: numbers in extents, subscripts and constraints must be below 2**48")
    return value


def _affine_binary(node: ast.BinOp, op: ast.operator, left: Affine, right: Affine) -> Affine:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            if right.is_constant:
                return left * right.const
            if left.is_constant:
                return right * left.const
            raise SpecError(f"`{source(node)}` is not affine: one factor of a product must be a constant")
        case ast.FloorDiv() | ast.Mod():
            if not right.is_constant or right.const < 1:
                raise SpecError(f"`{source(node)}` is not affine: // and % need a positive constant on the right")
            return left // right.const if isinstance(op, ast.FloorDiv) else left % right.const
        case _:
            raise SpecError(f"`{source(node)}` is not affine: sums, products with constants, // and % are")


def constraints(node: ast.expr, atom: Callable[[str], Dim | Param]) -> tuple[Constraint, ...]:
    """Return the constraints of one comparison, chained ones included: ``0 <= i - j < 4`` gives two."""
    if isinstance(node, ast.BoolOp):
        parted = ", separated by commas" if isinstance(node.op, ast.And) else "; all that a statement has must hold"
        raise SpecError(f"`{source(node)}` is no constraint: expected comparisons of affine expressions{parted}")
    if not isinstance(node, ast.Compare):
        raise SpecError(
            f"`{source(node)}` is no constraint: expected a comparison of affine expressions, such as k <= i"
        )
    sides = [affine(side, atom) for side in (node.left, *node.comparators)]
    found: list[Constraint] = []
    for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
        match op:
            case ast.Lt():
                found.append(Constraint(right - left - 1))
            case ast.LtE():
                found.append(Constraint(right - left))
            case ast.Gt():
                found.append(Constraint(left - right - 1))
            case ast.GtE():
                found.append(Constraint(left - right))
            case ast.Eq():
                found.append(Constraint(left - right, equality=True))
            case _:
                raise SpecError(f"`{source(node)}`: a constraint compares with <, <=, >, >= or ==")
    return tuple(found)


def expressions(text: str) -> tuple[ast.expr, ...]:
    """Return the expressions of a list that is separated by commas."""
    if not text.strip():
        return ()
    listed = parse_expression(f"({text.strip().rstrip(',')},)")
    if not isinstance(listed, ast.Tuple):
        raise SpecError(f"`{text}`: expected expressions, separated by commas")
    return tuple(listed.elts)


def names_in_order(node: ast.expr) -> Iterator[ast.Name]:
    """Yield all names (not those of called functions) in the order of the text."""
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called]
    yield from sorted(names, key=lambda n: (n.lineno, n.col_offset))


def bare_names(node: ast.expr) -> Iterator[ast.Name]:
    """Yield the names that are neither called nor subscripted."""
    subscripted = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Subscript)}
    yield from (n for n in names_in_order(node) if id(n) not in subscripted)


def subscripts(node: ast.expr) -> tuple[ast.expr, ...]:
    """Return the subscripts inside ``[...]``; refuse slices and stars."""
    entries = tuple(node.elts) if isinstance(node, ast.Tuple) else (node,)
    for entry in entries:
        if isinstance(entry, ast.Slice | ast.Starred):
            raise SpecError(f"subscript `{source(entry)}`: slices are no part of index notation; name a dim")
    return entries


# ---- bodies
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a body: ``load`` makes the value of an element, ``name`` that of a bare name."""

    load: Callable[[str, tuple[ast.expr, ...]], Value]
    name: Callable[[str], Value]

    def read(self, node: ast.expr) -> Value:
        """Return the value that ``node`` stands for; :class:`SpecError` names the sub-expression that is refused."""
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value, "bool")
            case ast.Constant(value=int(value) | float(value)):
                return literal(value)
            case ast.Name(id=name):
                return literal(NUMBERS[name]) if name in NUMBERS else self.name(name)
            case ast.Subscript(value=ast.Name(id=tensor), slice=index):
                return self.load(tensor, subscripts(index))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.read(operand)
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
                return self._apply(node, "neg" if isinstance(op, ast.USub) else "not", self.read(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._apply(node, _BINARY[type(op)], self.read(left), self.read(right))
            case ast.BoolOp(op=op, values=values):
                fn = "and" if isinstance(op, ast.And) else "or"
                return self._fold(node, fn, [self.read(v) for v in values])
            case ast.Compare(left=left, ops=ops, comparators=rest):
                return self._compare(node, ops, [self.read(side) for side in (left, *rest)])
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                values = [self.read(a) for a in arguments]
                return _named(node, lambda: call(name, *values))
            case ast.IfExp():
                raise SpecError(f"`{source(node)}`: write select(condition, a, b)")
            case ast.BinOp(op=ast.Pow()):
                raise SpecError(f"`{source(node)}`: there are no powers; write a product, such as a * a")
            case _:
                raise SpecError(f"`{source(node)}` is no part of index notation")

    def _apply(self, node: ast.expr, fn: str, *values: Value) -> Value:
        return _named(node, lambda: combine(fn, *values))

    def _fold(self, node: ast.expr, fn: str, values: list[Value]) -> Value:
        total = values[0]
        for value in values[1:]:
            total = self._apply(node, fn, total, value)
        return total

    def _compare(self, node: ast.Compare, ops: list[ast.cmpop], sides: list[Value]) -> Value:
        parts: list[Value] = []
        for left, op, right in zip(sides, ops, sides[1:], strict=False):
            if type(op) not in _COMPARE:
                raise SpecError(f"`{source(node)}`: expected a comparison with <, <=, >, >=, == or !=")
            parts.append(self._apply(node, _COMPARE[type(op)], left, right))
        return self._fold(node, "and", parts)


def _named(node: ast.expr, make: Callable[[], Value]) -> Value:
    """Return ``make()``; an error in it names the expression."""
    try:
        return make()
    except SpecError as error:
        raise SpecError(f"`{source(node)}`: {error}{_index_hint(node)}") from None


def _index_hint(node: ast.expr) -> str:
    """For mixed dtypes: say what a bare name was taken for, since a forgotten tensor reads like this."""
    called = node.func if isinstance(node, ast.Call) else None
    parts = [n for n in ast.iter_child_nodes(node) if n is not called]
    bare = [n.id for n in parts if isinstance(n, ast.Name) and n.id not in NUMBERS]
    return f" (a bare name that is no tensor is a dim or parameter of dtype i64: {', '.join(bare)})" if bare else ""


def index_value(atom: Dim | Param) -> Index:
    """Return a dim or parameter as a value."""
    return Index(Affine.of(atom))

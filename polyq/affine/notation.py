"""Index notation: text to :class:`~polyq.affine.spec.Spec`.

One statement a line: ``target[subscripts] op body [where constraint, constraint]``. The text is read with Python's
grammar against an allow-list; it is never evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from typing import Any

from polyq.affine import dtypes
from polyq.affine.elaborate import elaborate
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Dim, Param
from polyq.affine.names import meant_dtype
from polyq.affine.reader import affine, check_name, expressions, parse_expression, subscripts
from polyq.affine.spec import Spec, Tensor
from polyq.affine.statements import Statement, located, logical_lines, read_statement

__all__ = ["declare", "parse", "parse_extent", "parse_map"]

#: (dtype, shape); a shape of one entry may stand without a tuple
Declaration = tuple[str, int | str | Sequence[int | str]]


# ---- small texts: extents and maps
def parse_extent(text: str) -> Affine:
    """Return the affine expression of parameters that ``text`` is.

    >>> str(parse_extent("2*(n - 1) // 4"))
    '(n + 1)//2 - 1'
    """
    return affine(parse_expression(text), Param)


def parse_map(text: str) -> AffineMap:
    """Return the map that ``text`` is; names that are no dims are parameters.

    >>> str(parse_map("(i, j) -> (j, i//2)"))
    '(i, j) -> (j, i//2)'
    """
    match = re.fullmatch(r"\s*\(([^()]*)\)\s*->\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        raise SpecError(f"`{text}` is no map: expected (dims) -> (expressions), such as (i, j) -> (j, i//2)")
    dims = tuple(check_name(d.strip(), "dim") for d in match[1].split(",") if d.strip())
    if len(set(dims)) != len(dims):
        raise SpecError(f"`{text}`: a dim stands there twice")
    results = expressions(match[2])
    try:
        return AffineMap(dims, tuple(affine(e, lambda n: Dim(n) if n in dims else Param(n)) for e in results))
    except SpecError as error:
        raise SpecError(f"`{text}`: {error}") from None


def declare(name: object, dtype: object, shape: Any) -> Tensor:
    """Return a checked tensor; a shape entry is an int or the text of an expression of parameters."""
    checked = check_name(name, "tensor")
    if not isinstance(dtype, str) or dtype not in dtypes.DTYPES:
        known = ", ".join(dtypes.DTYPES)
        raise SpecError(f"tensor {checked}: unknown dtype {dtype!r}; known are {known}{meant_dtype(dtype)}")
    entries = (shape,) if isinstance(shape, int | str) else shape
    try:
        return Tensor(checked, dtype, tuple(_entry(checked, e) for e in entries))
    except TypeError:
        raise SpecError(f"tensor {checked}: expected a tuple of ints and texts as the shape, got {shape!r}") from None


def _entry(tensor: str, entry: Any) -> int | str:
    if isinstance(entry, str):
        try:
            value = parse_extent(entry)
            for name in sorted(value.params()):
                check_name(name, "parameter")
        except SpecError as error:
            raise SpecError(f"tensor {tensor}, shape entry {entry!r}: {error}") from None
        return _shape_entry(value)
    if isinstance(entry, bool) or not hasattr(entry, "__index__"):
        raise SpecError(f"tensor {tensor}: the shape entry {entry!r} is no int and no text such as 'm' or 'n - 2'")
    size = operator.index(entry)
    if size < 0:
        raise SpecError(f"tensor {tensor}: the shape entry {size} is negative")
    if size >= 2**48:
        raise SpecError(f"tensor {tensor}: the shape entry {size} is beyond any memory; extents must be below 2**48")
    return size


def _shape_entry(value: Affine) -> int | str:
    return value.const if value.is_constant else str(value)


# ---- whole programs
_DECLARATION = re.compile(r"([^\s=\[\]:]+)\s*:(.*)")


def parse(text: str, /, *, outputs: Sequence[str] | None = None, **tensors: Declaration) -> Spec:
    """Return the spec of a program in index notation.

    Each keyword declares a tensor by (dtype, shape), as a line ``w: u8[4096, 32, 128]`` does. ``outputs`` names the
    outputs in order; otherwise they are the tensors that no statement reads but those that write them.

    Raises :class:`SpecError` that names line, statement, operand and dim for whatever is wrong.

    >>> print(parse("y[i] += a[i, k] * x[k]", a=("f32", (8, "n")), x=("f32", ("n",))))
    a: f32[8, n]
    x: f32[n]
    y[i] = 0.0
    y[i] += a[i, k] * x[k]
    """
    declared = [_keyword(name, given) for name, given in tensors.items()]
    statements: list[Statement] = []
    count: dict[str, int] = {}
    for line in logical_lines(text):
        with located(line.place):
            match = _DECLARATION.fullmatch(line.text)
            if match is not None:
                declared.append(_declaration(match[1], match[2]))
                continue
            statement = read_statement(line, count)
            count[statement.target] = count.get(statement.target, 0) + 1
            statements.append(statement)
    return elaborate(declared, statements, (outputs,) if isinstance(outputs, str) else outputs)


def _keyword(name: str, given: Any) -> Tensor:
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
        raise SpecError(f"tensor {name}: expected (dtype, shape), such as ('f32', ('m', 128)), got {given!r}")
    return declare(name, given[0], given[1])


def _declaration(name: str, text: str) -> Tensor:
    check_name(name, "tensor")
    match parse_expression(re.sub(r"\[\s*\]\s*$", "", text)):  # f32[] is the type of a scalar, as f32 is
        case ast.Name(id=dtype):
            return declare(name, dtype, ())
        case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
            return declare(name, dtype, tuple(_declared_entry(e) for e in subscripts(shape)))
        case _:
            raise SpecError(f"`{text.strip()}` is no type: expected dtype[shape], such as f32[m, 128]")


def _declared_entry(entry: ast.expr) -> int | str:
    return _shape_entry(affine(entry, Param))

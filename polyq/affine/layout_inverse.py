"""What a layout needs from its relation: an inverse, the size of its storage, the reason why it is none, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyq.affine.arrays import shape_of
from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine, AffineMap, Constraint, Dim, FloorDiv
from polyq.affine.layout_data import cells_of
from polyq.affine.reader import affine, parse_expression
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Tensor

if TYPE_CHECKING:
    from polyq.affine.layout import Layout

__all__ = ["block_order", "box_of", "drawing", "empty_cell", "inverse_of", "problem", "small_floors", "storage_of"]

#: blocks are permuted element by element when they are looked at
MOST_BLOCK = 1 << 16


def problem(layout: Layout, box: Domain) -> str | None:
    """Say why a layout is none, with elements that show it, or return ``None``.

    Every element's cell lies in the storage, and ``source(place(e)) == e``; so no two elements share a cell.
    """
    cells = {f"s{i}": e for i, e in enumerate(layout.place)}
    known = {*layout.dims}
    if any(not e.dims() <= known for e in layout.place) or any(not e.dims() <= cells.keys() for e in layout.source):
        return f"its maps name dims other than {', '.join(layout.dims)} and {', '.join(cells)}"
    for d, e in zip(layout.dims, layout.source, strict=True):
        back = e.substitute(cells) - Affine.dim(d)
        if back != Affine(0) and not box.implies(Constraint(back, equality=True)):
            return shared_cell(layout.map, box) or (
                f"the inverse {layout.inverse_map} gives another element for {_first_wrong(layout, box, back)}"
            )
    for k, (e, extent) in enumerate(zip(layout.place, layout.extents, strict=True)):
        for inside in (Constraint(e), Constraint(extent - 1 - e)):
            if not box.implies(inside):
                point = box.constrain([Constraint(-1 - inside.expr)]).sample()
                at = _named(layout.dims, point[0]) if point else "some element"
                return f"the cell of ({at}) lies outside of axis {k}, which has {extent} cells"
    return None


def _first_wrong(layout: Layout, box: Domain, difference: Affine) -> str:
    for sign in (1, -1):
        point = box.constrain([Constraint(difference * sign - 1)]).sample()
        if point is not None:
            return f"({_named(layout.dims, point[0])})"
    return "some element"


def shared_cell(m: AffineMap, box: Domain) -> str | None:
    """Name two elements with one cell, or return ``None``."""
    names = [f"c{i}" for i in range(len(m.results))]
    to_cell = Relation.function(box, m.results, names)
    if to_cell.is_injective():
        return None
    other = [f"{d}'" for d in m.dims]
    pairs = to_cell.compose(to_cell.inverse()).renamed(m.dims, other)
    for k, d in enumerate(m.dims):
        before = [
            Constraint(Affine.dim(b) - Affine.dim(a), equality=True) for a, b in zip(m.dims[:k], other, strict=False)
        ]
        found = pairs.constrain([*before, Constraint(Affine.dim(other[k]) - Affine.dim(d) - 1)]).sample()
        if found is not None:
            one, two, params = found
            at = [str(e.evaluate(one, params)) for e in m.results]
            return (
                f"({_named(m.dims, one)}) and ({_named(m.dims, list(two.values()))}) share the cell ({', '.join(at)})"
            )
    return None


def _named(dims: Sequence[str], values: Mapping[str, int] | Sequence[int]) -> str:
    listed = list(values.values()) if isinstance(values, Mapping) else values
    return ", ".join(f"{d}={v}" for d, v in zip(dims, listed, strict=True))


def box_of(dims: Sequence[str], extents: Sequence[Affine]) -> Domain:
    """Return the points from 0 up to (not including) ``extents``."""
    spans = zip(map(Affine.dim, dims), extents, strict=True)
    return Domain.make(dims, [c for d, n in spans for c in (Constraint(d), Constraint(n - 1 - d))])


def inverse_of(m: AffineMap, extents: Sequence[Affine]) -> tuple[Affine, ...]:
    """Return the inverse of a map on a box as expressions of ``s0, s1, ...``; :class:`SpecError` if there is none."""
    box = box_of(m.dims, extents)
    cells = [f"s{i}" for i in range(len(m.results))]
    shared = shared_cell(m, box)
    if shared is not None:
        raise SpecError(f"layout {m}: {shared}; a layout gives each element a cell of its own")
    found = Relation.function(box, m.results, cells).inverse().as_affine()
    if found is None:
        raise SpecError(f"layout {m}: no quasi-affine inverse was found; pass inverse='({', '.join(cells)}) -> (...)'")
    return tuple(map(small_floors, found))


def small_floors(e: Affine) -> Affine:
    """Write isl's ``k - (511*k + 511)//512`` as ``k//512``.

    ``(c*x + r)//d`` is ``x - ((d - c)*x - r + d - 1)//d``, which has the smaller coefficient where ``2*c > d``.
    """
    total = Affine(e.const)
    for atom, coefficient in e.terms:
        value = Affine.of(atom)
        if isinstance(atom, FloorDiv):
            inner, d = small_floors(atom.numerator), atom.divisor
            whole = Affine.build(0, [(a, 1) for a, c in inner.terms if 2 * c > d])
            value = whole - (whole * d - inner + (d - 1)) // d if len(whole.terms) == len(inner.terms) else inner // d
        total += value * coefficient
    return total


def storage_of(m: AffineMap, box: Domain) -> tuple[int | str, ...]:
    """Return how many cells each axis needs."""
    found: list[int | str] = []
    for k, e in enumerate(m.results):
        last, most = box.upper_affine(e), box.max_of(e)
        if last is None and most is None:
            raise SpecError(f"layout {m}: the number of cells of axis {k} has no affine form; pass storage=")
        size = Affine(most or 0) + 1 if last is None else last + 1
        found.append(size.const if size.is_constant else str(size))
    return tuple(found)


# ---- permutations of a block
def block_order(expression: str, block: int, inverse: str | None) -> tuple[Affine, Affine]:
    """Return the position of element ``i`` of a block, and the element at position ``i``.

    A permutation of the digits of ``i`` in a mixed radix, each kept or reversed, is inverted digit by digit; others by
    isl, or as the caller says.
    """
    there = _of_i(expression)
    if not 1 <= block <= MOST_BLOCK:
        raise SpecError(f"interleave({expression!r}, block={block}): expected a block of 1 to {MOST_BLOCK} elements")
    table = [there.evaluate({"i": i}) for i in range(block)]
    if sorted(table) != list(range(block)):
        double = next((i for i, p in enumerate(table) if p in table[:i]), None)
        outside = next((i for i, p in enumerate(table) if not 0 <= p < block), None)
        why = f"{outside} goes to {table[outside]}" if outside is not None else (
            f"{table.index(table[double or 0])} and {double} both go to {table[double or 0]}"
        )  # fmt: skip
        raise SpecError(f"interleave({expression!r}, block={block}): no permutation of 0..{block - 1}: {why}")
    ranges = {"i": (0, block - 1)}
    if inverse is not None:
        back: Affine | None = _of_i(inverse)
    else:
        back = _digits_back(table)
        if back is None:
            found = (
                Relation.function(box_of(["i"], [Affine(block)]), [there], ["p"])
                .inverse()
                .renamed(["i"], ["e"])
                .as_affine()
            )
            back = found[0] if found else None
    if back is None or any(back.evaluate({"i": p}) != i for i, p in enumerate(table)):
        what = "no inverse was found; pass inverse=" if inverse is None else f"{inverse!r} is not its inverse"
        raise SpecError(f"interleave({expression!r}, block={block}): {what}")
    return there.simplify(ranges), back.simplify(ranges)


def _of_i(text: str) -> Affine:
    try:
        e = affine(parse_expression(text), Dim)
    except SpecError as error:
        raise SpecError(f"interleave({text!r}): {error}") from None
    if not e.dims() <= {"i"}:
        raise SpecError(f"interleave({text!r}): expected an expression of i alone")
    return e


def _digits_back(table: Sequence[int]) -> Affine | None:
    """Return the inverse of ``p = p0 + sum(c_j * digit_j(i))``, or ``None`` where the table has no such form."""
    digits, weight = list[tuple[int, int, int]](), 1  # (weight in i, radix, stride in p)
    while weight < len(table):
        stride = table[weight] - table[0]
        radix = 2
        while radix * weight < len(table) and table[radix * weight] - table[0] == radix * stride:
            radix += 1
        if stride == 0 or len(table) % (weight * radix):
            return None
        digits.append((weight, radix, stride))
        weight *= radix
    i, total = Affine.dim("i"), Affine(0)
    for weight, radix, stride in digits:
        digit = i // abs(stride) % radix
        total += (digit if stride > 0 else radix - 1 - digit) * weight
    return total if all(total.evaluate({"i": p}) == k for k, p in enumerate(table)) else None


# ---- to look at
def empty_cell(layout: Layout) -> str:
    """Name a cell that holds no element."""
    cells = layout.inverse_map.dims
    point = box_of(cells, layout.extents).subtract(layout.relation.range()).sample()
    return "no cell" if point is None else f"the cell ({', '.join(map(str, point[0].values()))})"


def drawing(layout: Layout, most: int, params: Mapping[str, int]) -> str:
    """Return the picture of :meth:`Layout.draw`; of more than ``most`` rows or cells in a row, the first and last."""
    shape = shape_of(Tensor("", "u8", layout.shape), params)
    count = int(np.prod(shape, dtype=np.int64))
    stored = layout.storage_shape("u8", **params)
    numbers = np.zeros(stored, np.int64)  # padding has the number 0
    numbers[cells_of(layout, shape, params)] = np.arange(1, count + 1).reshape(shape)
    rows = numbers.reshape(-1, stored[-1]) if stored else numbers.reshape(1, 1)
    texts: list[list[str]] = []
    for number in _shown(len(rows), most):
        if number is None:
            texts.append(["..."])
            continue
        at = np.unravel_index(number, stored[:-1]) if stored[:-1] else ()
        head = f"{' '.join(map(str, at))}:" if stored[:-1] else ""
        cells = [_cell(rows[number], k, shape) for k in _shown(rows.shape[1], most)]
        texts.append([*([head] if head else []), *cells])
    wide = max((len(t) for row in texts for t in row[1:]), default=0)
    head = max(len(row[0]) for row in texts) if texts else 0
    return "\n".join(" ".join([row[0].ljust(head), *(t.ljust(wide) for t in row[1:])]).rstrip() for row in texts)


def _shown(count: int, most: int) -> list[int | None]:
    half = max(1, most // 2)
    return list(range(count)) if count <= most else [*range(half), None, *range(count - half, count)]


def _cell(row: np.ndarray, k: int | None, shape: Sequence[int]) -> str:
    if k is None:
        return "..."
    return "." if row[k] == 0 else ",".join(map(str, np.unravel_index(int(row[k]) - 1, shape)))

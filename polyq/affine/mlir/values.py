"""What an MLIR value stands for while a module is read: an access to a tensor, one scalar everywhere, or no data yet.

Collapse, expand, transpose, broadcast, slices, pack and unpack make no op: they are an access (:class:`View`), which
composes with that of the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Union

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.extents import Shape
from polyq.affine.scalar import Load, Scalar

__all__ = [
    "VALUES",
    "Empty",
    "Uniform",
    "Value",
    "View",
    "axes",
    "axis",
    "cell",
    "collapsed",
    "expanded",
    "through",
    "whole",
]


def axis(k: int) -> Affine:
    """Return the expression that is the subscript of axis ``k`` of a value."""
    return Affine.dim(f"axis.{k}")


def axes(rank: int) -> Shape:
    """Return the subscripts of all axes of a value."""
    return tuple(axis(k) for k in range(rank))


def cell(k: int) -> Affine:
    """Return the expression that is the subscript of axis ``k`` of the tensor below a view."""
    return Affine.dim(f"cell.{k}")


@dataclass(frozen=True, slots=True)
class View:
    """The value whose element at ``axes`` is ``tensor[index]``.

    ``inverse`` gives the view's subscripts from the tensor's (over :func:`cell`), where each cell is seen once.
    """

    tensor: str
    dtype: str
    shape: Shape
    index: Shape
    inverse: Shape | None = None

    def at(self, subscripts: Sequence[Affine]) -> Load:
        """Return the load of one element."""
        places = {f"axis.{k}": e for k, e in enumerate(subscripts)}
        return Load(self.tensor, tuple(e.substitute(places) for e in self.index), self.dtype)

    @property
    def identity(self) -> bool:
        """Whether the view is the tensor as it stands."""
        return self.index == axes(len(self.shape)) and self.inverse is not None


@dataclass(frozen=True, slots=True)
class Uniform:
    """The value whose elements are all the same scalar."""

    dtype: str
    shape: Shape
    scalar: Scalar
    signless: bool = False


@dataclass(frozen=True, slots=True)
class Empty:
    """A value that nothing has written: only its shape is known. ``name`` and ``line`` say where it comes from."""

    dtype: str
    shape: Shape
    name: str
    line: int
    signless: bool = False


Value = Union[View, Uniform, Empty]
VALUES = (View, Uniform, Empty)


def whole(tensor: str, dtype: str, shape: Shape) -> View:
    """Return the view that is the tensor."""
    return View(tensor, dtype, shape, axes(len(shape)), tuple(cell(k) for k in range(len(shape))))


def through(value: Value, shape: Shape, index: Shape, inverse: Shape | None = None) -> Value:
    """Return the value whose element at ``axes`` is the element ``index`` of ``value``.

    ``inverse`` gives the new subscripts from the old ones (over :func:`axis`), if there is just one for each.
    """
    if not isinstance(value, View):
        return replace(value, shape=shape)
    places = {f"axis.{k}": e for k, e in enumerate(index)}
    composed = tuple(e.substitute(places).simplify(_ranges(shape)) for e in value.index)
    back: Shape | None = None
    if inverse is not None and value.inverse is not None:
        old = {f"axis.{k}": e for k, e in enumerate(value.inverse)}
        back = tuple(e.substitute(old) for e in inverse)
    return View(value.tensor, value.dtype, shape, composed, back)


def _ranges(shape: Shape) -> dict[str, tuple[int, int]]:
    return {f"axis.{k}": (0, max(0, e.const - 1)) for k, e in enumerate(shape) if e.is_constant}


# ---- reshapes
def _strides(sizes: Sequence[Affine]) -> list[int]:
    """Return the distance of neighbours along each axis of a dense group; only the first may be dynamic."""
    strides: list[int] = []
    product = 1
    for k, size in reversed(list(enumerate(sizes))):
        strides.insert(0, product)
        if k and not size.is_constant:
            raise SpecError(
                f"a reshape of the sizes {', '.join(map(str, sizes))} is not affine: only the first of a group may be "
                "dynamic; give the others a number"
            )
        product *= size.const if size.is_constant else 1
    return strides


def _parts(whole: Affine, sizes: Sequence[Affine]) -> list[Affine]:
    """Return the subscripts of a dense group from its linear one."""
    made: list[Affine] = []
    for k, (size, stride) in enumerate(zip(sizes, _strides(sizes), strict=True)):
        if size == Affine(1):
            made.append(Affine(0))
            continue
        part = whole // stride
        outermost = all(s == Affine(1) for s in sizes[:k])
        made.append(part if outermost else part % size.const)
    return made


def _linear(parts: Sequence[Affine], sizes: Sequence[Affine]) -> Affine:
    total = Affine(0)
    for part, size, stride in zip(parts, sizes, _strides(sizes), strict=True):
        total = total if size == Affine(1) else total + part * stride
    return total


def product(sizes: Sequence[Affine]) -> Affine:
    """Return the number of elements of a group; at most one size may be dynamic."""
    total = Affine(1)
    for size in sizes:
        if not total.is_constant and not size.is_constant:
            raise SpecError(f"the product of {total} and {size} is not affine; give one of them a number")
        total = total * size.const if size.is_constant else size * total.const
    return total


def collapsed(value: Value, groups: Sequence[Sequence[int]]) -> Value:
    """Return the value with each group of axes as one."""
    shape = tuple(product([value.shape[a] for a in group]) for group in groups)
    index: list[Affine] = []
    inverse: list[Affine] = []
    for k, group in enumerate(groups):
        sizes = [value.shape[a] for a in group]
        index += _parts(axis(k), sizes)
        inverse.append(_linear([axis(a) for a in group], sizes))
    index += [Affine(0)] * (len(value.shape) - len(index))  # no groups: all axes have extent 1
    return through(value, shape, tuple(index), tuple(inverse))


def expanded(value: Value, groups: Sequence[Sequence[int]], shape: Shape) -> Value:
    """Return the value with each axis as the group of axes of ``shape`` that it is expanded to."""
    index: list[Affine] = []
    inverse: list[Affine] = []
    exact = True  # a dynamic size that is a quotient says nothing of the rest, which no right program has
    for k, group in enumerate(groups):
        sizes = [shape[a] for a in group]
        exact = exact and product(sizes) == value.shape[k]
        index.append(_linear([axis(a) for a in group], sizes))
        inverse += _parts(axis(k), sizes)
    inverse += [Affine(0)] * (len(shape) - len(inverse))
    return through(value, shape, tuple(index), tuple(inverse) if exact else None)

"""Specs run on polynomials with rational coefficients: what each output cell is, exactly.

A load of an input cell is an unknown; a function without an algebraic law is an unknown that is named by its arguments.
Minimum and maximum are named by the set of theirs.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

from polyq.affine.dtypes import info, is_float, value_range
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar
from polyq.affine.spec import Op, Spec

#: a monomial is a sorted tuple of unknowns; a polynomial maps monomials to coefficients
Polynomial = dict[tuple[Any, ...], Fraction]
LIMIT = 600


class TooBig(Exception):
    """A polynomial has more than LIMIT monomials."""


class Outside(Exception):
    """A subscript is outside of its tensor."""


def constant(value: Fraction | int) -> Polynomial:
    return {(): Fraction(value)} if value else {}


def unknown(*name: object) -> Polynomial:
    return {(repr(name),): Fraction(1)}


def plus(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    total = dict(a)
    for m, c in b.items():
        total[m] = total.get(m, Fraction(0)) + sign * c
    return {m: c for m, c in total.items() if c}


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    if len(a) * len(b) > LIMIT:
        raise TooBig
    for (m, c), (n, d) in itertools.product(a.items(), b.items()):
        key = tuple(sorted(m + n))
        total[key] = total.get(key, Fraction(0)) + c * d
    return {m: c for m, c in total.items() if c}


def canonical(a: Polynomial) -> tuple[Any, ...]:
    return tuple(sorted(a.items()))


class Extremes:
    """The arguments of a minimum or maximum, by its name, so that nested ones are one set."""

    def __init__(self) -> None:
        self.sets: dict[str, tuple[str, frozenset[Any]]] = {}

    def of(self, fn: str, dtype: str, a: Polynomial, b: Polynomial) -> Polynomial:
        members = self._members(fn, a) | self._members(fn, b)
        neutral = canonical(literal(_identity(fn, dtype), dtype))
        members = members - {neutral} or {neutral}
        if len(members) == 1:
            return dict(next(iter(members)))
        name = unknown(fn, sorted(members))
        self.sets[next(iter(name))[0]] = fn, frozenset(members)
        return name

    def _members(self, fn: str, a: Polynomial) -> frozenset[Any]:
        if len(a) == 1 and next(iter(a.values())) == 1 and len(next(iter(a))) == 1:
            kind, members = self.sets.get(next(iter(a))[0], ("", frozenset()))
            if kind == fn:
                return members
        return frozenset({canonical(a)})


def _identity(fn: str, dtype: str) -> float | int:
    if is_float(dtype):
        return -math.inf if fn == "max" else math.inf
    return value_range(dtype)[0 if fn == "max" else 1]


def literal(value: float | int | bool, dtype: str) -> Polynomial:
    if isinstance(value, float) and not math.isfinite(value):
        return unknown(str(value))
    if info(dtype).kind == "i" and value in value_range(dtype) and value not in (0, 1):
        return unknown("end of", dtype, value)  # stands for the neutral element of min or max
    return constant(Fraction(value))


class Machine:
    """One run of a spec: all cells of all tensors."""

    def __init__(self, spec: Spec, params: dict[str, int]) -> None:
        self.spec, self.params = spec, params
        self.cells: dict[tuple[str, tuple[int, ...]], Polynomial] = {}
        self.extremes = Extremes()
        for t in spec.all_tensors:
            for point in itertools.product(*(range(e.evaluate({}, params)) for e in t.extents)):
                if t.name in spec.input_names:
                    self.cells[t.name, point] = unknown(t.name, point)
                elif t.name in spec.output_names:
                    self.cells[t.name, point] = {}
                else:
                    self.cells[t.name, point] = unknown("nothing", t.name, point)

    def run(self) -> dict[tuple[str, tuple[int, ...]], Polynomial]:
        for op in self.spec.ops:
            boxes = [range(e.evaluate({}, self.params)) for e in op.extents]
            for point in itertools.product(*boxes):
                self.instance(op, dict(zip(op.dims, point, strict=True)))
        return {k: v for k, v in self.cells.items() if k[0] in self.spec.output_names}

    def instance(self, op: Op, at: dict[str, int]) -> None:
        values = [(c.expr.evaluate(at, self.params), c.equality) for c in op.where]
        if not all(v == 0 if equality else v >= 0 for v, equality in values):
            return
        cell = op.target, tuple(e.evaluate(at, self.params) for e in op.index)
        old, value = self.cell(*cell), self.value(op.body, at)
        match op.reduce:
            case None:
                new = value
            case "+":
                new = plus(old, value)
            case "*":
                new = times(old, value)
            case fn:
                new = self.extremes.of(fn, self.spec.tensor(op.target).dtype, old, value)
        if len(new) > LIMIT:
            raise TooBig
        self.cells[cell] = new

    def cell(self, tensor: str, point: tuple[int, ...]) -> Polynomial:
        if (tensor, point) not in self.cells:
            raise Outside(tensor, point)
        return self.cells[tensor, point]

    def value(self, s: Scalar, at: dict[str, int]) -> Polynomial:
        match s:
            case Const(number, dtype):
                return literal(number, dtype)
            case Index(e, _):
                return constant(e.evaluate(at, self.params))
            case Load(tensor, index, _):
                return self.cell(tensor, tuple(e.evaluate(at, self.params) for e in index))
            case Cast(arg, dtype):
                return self.cast(arg.dtype, dtype, self.value(arg, at))
            case Apply("ldexp", (x, Index(e, _)), _):
                return times(self.value(x, at), constant(Fraction(2) ** e.evaluate(at, self.params)))
            case Apply(fn, args, _):
                return self.apply(fn, s.args[-1].dtype, [self.value(a, at) for a in args])

    def cast(self, source: str, to: str, x: Polynomial) -> Polynomial:
        if source == to or is_float(to):
            return x
        if not is_float(source) and to != "bool":
            (low, high), (least, greatest) = value_range(source), value_range(to)
            if least <= low and high <= greatest:
                return x
        return unknown("cast", source, to, canonical(x))

    def apply(self, fn: str, dtype: str, args: list[Polynomial]) -> Polynomial:
        match fn:
            case "add" | "sub":
                return plus(args[0], args[1], -1 if fn == "sub" else 1)
            case "mul":
                return times(args[0], args[1])
            case "neg":
                return plus({}, args[0], -1)
            case "min" | "max":
                return self.extremes.of(fn, dtype, args[0], args[1])
            case _:
                return unknown(fn, [canonical(a) for a in args])


def outputs(spec: Spec, params: dict[str, int]) -> dict[tuple[str, tuple[int, ...]], Polynomial]:
    """Return the polynomial of every output cell."""
    return Machine(spec, params).run()

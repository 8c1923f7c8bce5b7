"""Quasi-affine expressions of dims and parameters, in one canonical linear form.

``Affine`` is ``constant + sum(coefficient * atom)``; an atom is a :class:`Dim`, a :class:`Param` or a :class:`FloorDiv`
of an affine expression by a positive constant. ``e % d`` is ``e - d * (e // d)``, so ``//`` and ``%`` are floor and
non-negative remainder everywhere, and equal linear expressions are equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Union

__all__ = ["Affine", "AffineLike", "AffineMap", "Atom", "Constraint", "Dim", "FloorDiv", "Param"]


@dataclass(frozen=True, slots=True)
class Dim:
    """A loop dim of a statement."""

    name: str


@dataclass(frozen=True, slots=True)
class Param:
    """A symbolic size, at least 0, that is known when the kernel is called."""

    name: str


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """``numerator // divisor`` with a divisor of at least 2."""

    numerator: Affine
    divisor: int


Atom = Union[Dim, Param, FloorDiv]
AffineLike = Union["Affine", Dim, Param, FloorDiv, int]


def _key(term: tuple[Atom, int]) -> tuple[int, str]:
    atom = term[0]
    if isinstance(atom, FloorDiv):
        return 2, _floor_key(atom)
    return (0 if isinstance(atom, Dim) else 1), atom.name


@lru_cache(maxsize=1 << 16)
def _floor_key(atom: FloorDiv) -> str:
    return f"{atom.numerator}//{atom.divisor}"


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + sum(coefficient * atom for atom, coefficient in terms)``; terms are sorted, coefficients non-zero.

    >>> i, j = Affine.dim("i"), Affine.dim("j")
    >>> (i + 2 * j - i).terms
    ((Dim(name='j'), 2),)
    >>> str((128 * i + j) // 128), str((i - (i + 2)) // 8 % 8)
    ('i + j//128', '7')
    """

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    def of(value: AffineLike) -> Affine:
        """Return ``value`` as an affine expression."""
        if isinstance(value, Affine):
            return value
        if isinstance(value, int):
            return Affine(value)
        return Affine(0, ((value, 1),))

    @staticmethod
    def dim(name: str) -> Affine:
        """Return the expression that is the dim ``name``."""
        return Affine(0, ((Dim(name), 1),))

    @staticmethod
    def param(name: str) -> Affine:
        """Return the expression that is the parameter ``name``."""
        return Affine(0, ((Param(name), 1),))

    @staticmethod
    def build(const: int, terms: Iterable[tuple[Atom, int]]) -> Affine:
        """Collect equal atoms, drop zeros and sort."""
        sums: dict[Atom, int] = {}
        for atom, coefficient in terms:
            sums[atom] = sums.get(atom, 0) + coefficient
        kept = [term for term in sums.items() if term[1]]
        if len(kept) > 1:
            kept.sort(key=_key)
        return Affine(const, tuple(kept))

    # ---- arithmetic
    def __add__(self, other: AffineLike) -> Affine:
        o = Affine.of(other)
        if not o.terms:
            return Affine(self.const + o.const, self.terms)
        if not self.terms:
            return Affine(self.const + o.const, o.terms)
        return Affine.build(self.const + o.const, self.terms + o.terms)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: AffineLike) -> Affine:
        o = Affine.of(other)
        if not o.terms:
            return Affine(self.const - o.const, self.terms)
        return Affine.build(self.const - o.const, [*self.terms, *[(a, -c) for a, c in o.terms]])

    def __rsub__(self, other: AffineLike) -> Affine:
        return Affine.of(other) - self

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return Affine(0)
        return Affine(self.const * factor, tuple([(a, c * factor) for a, c in self.terms]))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Affine:
        """Floor division by a positive constant; multiples of the divisor leave the floor."""
        if divisor < 1:
            raise ValueError(f"floor division by {divisor}: the divisor must be a positive constant")
        if divisor == 1:
            return self
        whole = [(a, c // divisor) for a, c in self.terms if c % divisor == 0]
        rest = [(a, c) for a, c in self.terms if c % divisor]
        # what moves out is (c // d) * atom, so that coefficients inside lie in [1, d)
        whole += [(a, c // divisor) for a, c in rest]
        inside = [(a, c % divisor) for a, c in rest]
        quotient, remainder = divmod(self.const, divisor)
        return Affine.build(quotient, whole) + _floor(remainder, inside, divisor)

    def __mod__(self, divisor: int) -> Affine:
        return self - (self // divisor) * divisor

    # ---- queries
    @property
    def is_constant(self) -> bool:
        """Whether no atom occurs."""
        return not self.terms

    def coefficient(self, atom: Atom) -> int:
        """Return the coefficient of ``atom`` outside any floor."""
        return next((c for a, c in self.terms if a == atom), 0)

    def atoms(self) -> Iterable[Dim | Param]:
        """Yield every dim and parameter, those inside floors included (with repetition)."""
        for atom, _ in self.terms:
            if isinstance(atom, FloorDiv):
                yield from atom.numerator.atoms()
            else:
                yield atom

    def dims(self) -> frozenset[str]:
        """Return the names of all dims."""
        return self._names(Dim)

    def params(self) -> frozenset[str]:
        """Return the names of all parameters."""
        return self._names(Param)

    def _names(self, kind: type[Dim | Param]) -> frozenset[str]:
        names: list[str] = []
        for atom, _ in self.terms:
            if isinstance(atom, kind):
                names.append(atom.name)
            elif isinstance(atom, FloorDiv):
                names += atom.numerator._names(kind)
        return frozenset(names)

    def evaluate(self, dims: Mapping[str, int] | None = None, params: Mapping[str, int] | None = None) -> int:
        """Return the value at a point; works elementwise when the mappings hold numpy integer arrays."""
        total = self.const
        for atom, coefficient in self.terms:
            if isinstance(atom, FloorDiv):
                value = atom.numerator.evaluate(dims, params) // atom.divisor
            elif isinstance(atom, Dim):
                value = (dims or {})[atom.name]
            else:
                value = (params or {})[atom.name]
            total = total + coefficient * value
        return total

    def substitute(self, replace: Mapping[str, Affine] | Callable[[Dim | Param], Affine | None]) -> Affine:
        """Replace dims by expressions: a mapping from dim names, or a function of dims and parameters."""
        if not self.terms:
            return self
        get = replace if callable(replace) else _lookup(replace)
        const, terms, kept = self.const, list[tuple[Atom, int]](), True
        for atom, coefficient in self.terms:
            if isinstance(atom, FloorDiv):
                inner = atom.numerator.substitute(get)
                value = None if inner is atom.numerator else inner // atom.divisor
            else:
                value = get(atom)
            if value is None:
                terms.append((atom, coefficient))
            else:
                kept = False
                const += value.const * coefficient
                terms += [(a, c * coefficient) for a, c in value.terms]
        return self if kept else Affine.build(const, terms)

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
        """Return an inclusive interval that holds the value for dims in ``ranges``; ``None`` where one is unknown."""
        low = high = self.const
        for atom, coefficient in self.terms:
            if isinstance(atom, FloorDiv):
                inner = atom.numerator.bounds(ranges)
                span = None if inner is None else (inner[0] // atom.divisor, inner[1] // atom.divisor)
            else:
                span = ranges.get(atom.name) if isinstance(atom, Dim) else None
            if span is None:
                return None
            low += min(coefficient * span[0], coefficient * span[1])
            high += max(coefficient * span[0], coefficient * span[1])
        return low, high

    def simplify(self, ranges: Mapping[str, tuple[int, int]]) -> Affine:
        """Simplify floors with known ``ranges`` (inclusive) of dims.

        A floor that is constant becomes its value; terms that never reach the next multiple leave it.

        >>> e = (Affine.dim("a") * 8 + Affine.dim("b")) // 16
        >>> print(e.simplify({"b": (0, 7)}))
        a//2
        """
        total = Affine(self.const)
        for atom, coefficient in self.terms:
            value = Affine.of(atom)
            if isinstance(atom, FloorDiv):
                inner = atom.numerator.simplify(ranges)
                value = _without_small_terms(inner, atom.divisor, ranges) // atom.divisor
                span = value.bounds(ranges)
                if span is not None and span[0] == span[1]:
                    value = Affine(span[0])
            total = total + value * coefficient
        return total

    # ---- printing
    def __str__(self) -> str:
        return format_affine(self)


def _without_small_terms(e: Affine, divisor: int, ranges: Mapping[str, tuple[int, int]]) -> Affine:
    """Drop what cannot matter to ``e // divisor``: floor((g*a + r) / (g*d)) == floor(a / d) for 0 <= r < g."""
    for step in sorted({gcd(divisor, c) for _, c in e.terms}, reverse=True):
        if step == 1:
            break
        rest = Affine.build(e.const % step, [(a, c) for a, c in e.terms if c % step])
        span = rest.bounds(ranges)
        if not rest.is_constant and span is not None and span[0] >= 0 and span[1] < step:
            return e - rest
    return e


def _lookup(values: Mapping[str, Affine]) -> Callable[[Dim | Param], Affine | None]:
    return lambda a: values.get(a.name) if isinstance(a, Dim) else None


def _floor(const: int, terms: list[tuple[Atom, int]], divisor: int) -> Affine:
    """``(const + terms) // divisor`` with all coefficients and the constant in ``[0, divisor)``."""
    inner = Affine.build(0, terms)
    if inner.is_constant:
        return Affine(const // divisor)
    common = divisor
    for _, coefficient in inner.terms:
        common = gcd(common, coefficient)
    if common > 1:  # floor((g*e + c) / (g*d)) == floor((e + c//g) / d)
        reduced = Affine(const // common, tuple((a, c // common) for a, c in inner.terms))
        return reduced // (divisor // common)
    if len(inner.terms) == 1 and inner.terms[0][1] == 1 and const == 0 and isinstance(inner.terms[0][0], FloorDiv):
        nested = inner.terms[0][0]
        return nested.numerator // (nested.divisor * divisor)
    return Affine(0, ((FloorDiv(Affine(const, inner.terms), divisor), 1),))


def _format_atom(atom: Atom) -> str:
    if isinstance(atom, FloorDiv):
        text = format_affine(atom.numerator)
        simple = len(atom.numerator.terms) == 1 and atom.numerator.const == 0 and atom.numerator.terms[0][1] == 1
        return f"{text}//{atom.divisor}" if simple else f"({text})//{atom.divisor}"
    return atom.name


def _pull_mod(e: Affine) -> tuple[Affine, list[tuple[str, int]]]:
    """Split ``e`` into a rest and terms ``c * (n % d)``, for printing only."""
    mods: list[tuple[str, int]] = []
    for atom, coefficient in e.terms:
        if not isinstance(atom, FloorDiv) or coefficient % atom.divisor:
            continue
        factor = -coefficient // atom.divisor
        numerator = atom.numerator
        if all(e.coefficient(a) * factor > 0 and abs(e.coefficient(a)) >= abs(c * factor) for a, c in numerator.terms):
            e = e - (numerator - Affine.of(atom) * atom.divisor) * factor
            text = format_affine(numerator)
            simple = len(numerator.terms) == 1 and numerator.const == 0 and numerator.terms[0][1] == 1
            mods.append((f"{text}%{atom.divisor}" if simple else f"({text})%{atom.divisor}", factor))
    return e, mods


def format_affine(e: Affine) -> str:
    """Return ``e`` as text that :func:`polyq.affine.notation.parse_extent` and ``parse_map`` read back."""
    rest, mods = _pull_mod(e)
    terms = [(_format_atom(a), c) for a, c in rest.terms] + mods
    if rest.const or not terms:
        terms.append((str(abs(rest.const)), 1 if rest.const >= 0 else -1))
    terms.insert(0, terms.pop(next((k for k, (_, c) in enumerate(terms) if c > 0), 0)))  # n - i, not -i + n
    parts: list[str] = []
    for text, c in terms:
        # a sign in front binds tighter than // and %
        plain = ("//" not in text and "%" not in text) or (abs(c) == 1 and (c > 0 or bool(parts)))
        body = ("" if abs(c) == 1 else f"{abs(c)}*") + (text if plain else f"({text})")
        parts.append(("- " if c < 0 else "+ ") + body)
    text = " ".join(parts)
    return text[2:] if text.startswith("+ ") else "-" + text[2:]


@dataclass(frozen=True, slots=True)
class Constraint:
    """``expr >= 0``, or ``expr == 0`` when ``equality``."""

    expr: Affine
    equality: bool = False

    def substitute(self, replace: Mapping[str, Affine] | Callable[[Dim | Param], Affine | None]) -> Constraint:
        """Return the constraint with dims replaced."""
        return Constraint(self.expr.substitute(replace), self.equality)

    def __str__(self) -> str:
        return f"{self.expr} {'==' if self.equality else '>='} 0"


@dataclass(frozen=True, slots=True)
class AffineMap:
    """``(dims) -> (results)``, a quasi-affine map.

    >>> i, j = Affine.dim("i"), Affine.dim("j")
    >>> str(AffineMap(("i", "j"), (j, i // 2)))
    '(i, j) -> (j, i//2)'
    """

    dims: tuple[str, ...]
    results: tuple[Affine, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.dims)}) -> ({', '.join(map(str, self.results))})"

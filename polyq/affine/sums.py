"""Rewrites of sums of products: distribution over terms, and moving factors out of a sum.

Both keep the value in exact arithmetic (a ring identity), and change rounding: they belong to a numerics mode that
allows another order. A body is first expanded into monomials, so what matters is how each factor depends on the dims,
not how the body was written: operands may be commuted, a zero point may be there or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine
from polyq.affine.program import identity
from polyq.affine.rewrite import entry, fresh, tensor_names
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, apply, format_scalar, walk
from polyq.affine.spec import Op, Spec, Tensor

__all__ = ["Monomial", "distribute", "factor", "monomials", "scale_fields"]

#: expansion stops here: more terms than this never paid
MOST_TERMS = 16


@dataclass(frozen=True, slots=True)
class Monomial:
    """``sign * product(factors)``."""

    sign: int
    factors: tuple[Scalar, ...]

    def scalar(self, dtype: str) -> Scalar:
        """Return the product as an expression."""
        return product(self.factors, self.sign, dtype)


def product(factors: Sequence[Scalar], sign: int, dtype: str) -> Scalar:
    """Return the product of the factors, with a sign; the empty product is 1."""
    one = Const(1.0 if dtypes.is_float(dtype) else 1, dtype)
    total = factors[0] if factors else one
    for f in factors[1:]:
        total = apply("mul", total, f)
    return apply("neg", total) if sign < 0 else total


def monomials(body: Scalar) -> tuple[Monomial, ...] | None:
    """Expand ``body`` over +, -, * and negation; ``None`` if that gives more than :data:`MOST_TERMS` terms."""
    match body:
        case Apply("add" | "sub" as fn, (a, b), _):
            left, right = monomials(a), monomials(b)
            if left is None or right is None:
                return None
            sign = -1 if fn == "sub" else 1
            terms = (*left, *(Monomial(sign * m.sign, m.factors) for m in right))
        case Apply("neg", (a,), _):
            inner = monomials(a)
            return None if inner is None else tuple(Monomial(-m.sign, m.factors) for m in inner)
        case Apply("mul", (a, b), _):
            left, right = monomials(a), monomials(b)
            if left is None or right is None:
                return None
            terms = tuple(Monomial(p.sign * q.sign, (*p.factors, *q.factors)) for p in left for q in right)
        case _:
            return (Monomial(1, (body,)),)
    return terms if len(terms) <= MOST_TERMS else None


def dims_of(s: Scalar) -> frozenset[str]:
    """Return the dims that an expression depends on."""
    found: set[str] = set()
    for node in walk(s):
        if isinstance(node, Load):
            found |= {d for e in node.index for d in e.dims()}
        elif isinstance(node, Index):
            found |= node.expr.dims()
    return frozenset(found)


def _sum_terms(spec: Spec, name: str) -> tuple[Op, tuple[Monomial, ...]]:
    op = spec.op(name)
    terms = monomials(op.body) if op.reduce == "+" else None
    if terms is None:
        raise ScheduleError(f"{name}: expected a sum of at most {MOST_TERMS} products, got {op}")
    return op, terms


def distribute(spec: Spec, name: str, inner: Sequence[str] = ()) -> Spec:
    """Give each term of a summed body a statement of its own.

    With ``inner``, terms stay together whose sums over these dims have the same dims left.

    rewrite: ``y[p] += a(p, k) - b(p, k)`` -> ``y[p] += a(p, k); y[p] += -b(p, k)``
    requires: a sum whose body does not read the target.
    """
    op, terms = _sum_terms(spec, name)
    if any(r.tensor == op.target for r in op.reads):
        raise ScheduleError(f"distribute({name!r}): {name} reads its own target")
    taken = tensor_names(spec)
    ops: list[Op] = []
    groups: dict[object, list[Monomial]] = {}
    for i, term in enumerate(terms):
        left = (d for f in term.factors if dims_of(f) & set(inner) for d in dims_of(f) - set(inner))
        groups.setdefault(frozenset(left) if inner else i, []).append(term)
    for i, together in enumerate(groups.values()):
        label = name if i == 0 else fresh(taken, f"{name}.{i + 1}")
        taken.add(label)
        body = together[0].scalar(op.body.dtype)
        for term in together[1:]:
            body = apply("add" if term.sign > 0 else "sub", body, product(term.factors, 1, op.body.dtype))
        ops.append(replace(op, name=label, body=body))
    at = spec.ops.index(op)
    return spec.with_ops((*spec.ops[:at], *ops, *spec.ops[at + 1 :]))


def hoistable(op: Op, inner: Sequence[str]) -> bool:
    """Whether some factor of the body does not depend on the dims ``inner``."""
    terms = monomials(op.body) if op.reduce == "+" else None
    return terms is not None and any(not (dims_of(f) & set(inner)) for m in terms for f in m.factors)


def factor(spec: Spec, name: str, inner: Sequence[str], tensor: str | None = None) -> Spec:
    """Move what does not depend on ``inner`` out of the sum over ``inner``.

    rewrite: ``y[p] += a(p, g) * b(p, g, j)`` -> ``y.sum[p, g] += b(p, g, j); y[p] += a(p, g) * y.sum[p, g]``
    requires: a sum; ``inner`` are reduced dims. Equal inner sums are computed once; one that does not depend on a dim
    of the result loses that dim. What all terms are multiplied with is multiplied once.
    proof: distributivity, term by term; the terms (p, g, j) map one to one.
    """
    op, terms = _sum_terms(spec, name)
    if not inner or not set(inner) <= set(op.reduced):
        raise ScheduleError(f"factor({name!r}, {list(inner)}): {name} reduces over ({', '.join(op.reduced)})")
    dtype = spec.tensor(op.target).dtype
    bound = {d for c in op.where if c.expr.dims() & set(inner) for d in c.expr.dims()}
    taken = tensor_names(spec)
    made: dict[str, Load] = {}
    ops: list[Op] = []
    tensors: list[Tensor] = []
    outside = [[f for f in term.factors if not dims_of(f) & set(inner)] for term in terms]
    common = _common(outside)
    total: Scalar | None = None
    for term, factors in zip(terms, outside, strict=True):
        inside = [f for f in term.factors if dims_of(f) & set(inner)]
        key = " * ".join(sorted(map(format_scalar, inside)))
        if key not in made:
            stem = tensor if tensor and not made else f"{op.target}.sum"
            part = fresh(taken, stem)
            taken |= {part, f"{part}.init"}
            made[key] = _inner_sum(op, inside, part, bound, inner, dtype, ops, tensors)
        value = product([*_without(factors, common), made[key]], 1, dtype)
        if total is None:
            total = value if term.sign > 0 else apply("neg", value)
        else:
            total = apply("add" if term.sign > 0 else "sub", total, value)
    assert total is not None
    total = product([*common, total], 1, dtype)
    rest = tuple(d for d in op.dims if d not in inner)
    where = tuple(c for c in op.where if not c.expr.dims() & set(inner))
    ops.append(replace(op, dims=rest, extents=tuple(op.extent(d) for d in rest), body=total, where=where))
    at = spec.ops.index(op)
    return spec.with_ops((*spec.ops[:at], *ops, *spec.ops[at + 1 :]), (*spec.all_tensors, *tensors))


def _common(terms: Sequence[Sequence[Scalar]]) -> list[Scalar]:
    """Return the factors that all terms have: they are multiplied once, after the terms are added."""
    first, *others = terms
    found: list[Scalar] = []
    for f in first:
        if all(term.count(f) > found.count(f) for term in others):
            found.append(f)
    return found if others else []


def _without(factors: Sequence[Scalar], gone: Sequence[Scalar]) -> list[Scalar]:
    left = list(factors)
    for f in gone:
        left.remove(f)
    return left


def scale_fields(spec: Spec, name: str, codes: str, packed: str, dim: str, fields: int) -> Spec:
    """Scale narrow integers by the power of two at which they lie in a 32-bit word, and their partner by its inverse.

    ``dim`` is the copy's dim that counts the fields.

    rewrite: ``p[f] = x[..f]; y += p[f] * f32(w)`` -> ``p[f] = x[..f] * 2**-e(f); y += p[f] * (f32(w) * 2**e(f))``
    with ``e(f) = f * bits``, and 0 for the last field, whose top bit would be a sign. Then a field is converted where
    it lies, by a mask, without a shift.

    requires: 1. ``packed`` has one writer, a copy, and one reader, ``name``; 2. every product of the body has both
    factors once.
    proof: powers of two scale exactly (but below the least normal number); the exponents of a product add up to 0.
    """
    op, copy = spec.op(name), spec.op(packed)
    bits = 32 // fields
    load = next(r for r in op.reads if r.tensor == packed)
    position = next((k for k, e in enumerate(copy.index) if e == Affine.dim(dim)), None)
    terms = monomials(op.body)
    once = terms is not None and all(
        sum(isinstance(f, Load) and f.tensor == packed for f in t.factors) == 1
        and sum(isinstance(f, Cast) and isinstance(f.arg, Load) and f.arg.tensor == codes for f in t.factors) == 1
        for t in terms
    )
    if position is None or not once or spec.readers(packed) != (op,) or not isinstance(copy.body, Load):
        raise ScheduleError(
            f"scale_fields({name!r}): {packed} and {codes} do not meet once in every product, field by field"
        )

    field = load.index[position]

    def exponent(e: Affine) -> Affine:
        return e * bits - (e // (fields - 1)) * (bits * (fields - 1))

    def scaled(s: Scalar) -> Scalar:
        if isinstance(s, Cast) and isinstance(s.arg, Load) and s.arg.tensor == codes:
            return Apply("ldexp", (s, Index(exponent(field), "i32")), s.dtype)
        return replace(s, args=tuple(map(scaled, s.args))) if isinstance(s, Apply) else s

    inverse = Index(exponent(Affine.dim(dim)) * -1, "i32")
    shrunk = replace(copy, body=Apply("ldexp", (copy.body, inverse), copy.body.dtype))
    grown = replace(op, body=scaled(op.body))
    return spec.with_ops(tuple(shrunk if o is copy else grown if o is op else o for o in spec.ops))


def _inner_sum(
    op: Op,
    factors: list[Scalar],
    part: str,
    bound: set[str],
    inner: Sequence[str],
    dtype: str,
    ops: list[Op],
    tensors: list[Tensor],
) -> Load:
    """Add the ops of one inner sum; return the load of its result."""
    needed = {d for f in factors for d in dims_of(f)} | bound
    kept = tuple(d for d in op.dims if d in needed and d not in inner)
    dims = (*kept, *(d for d in op.dims if d in inner))
    index = tuple(Affine.dim(d) for d in kept)
    extents = tuple(op.extent(d) for d in kept)
    ops.append(Op(f"{part}.init", kept, extents, part, index, identity("+", dtype)))
    where = tuple(c for c in op.where if c.expr.dims() <= set(dims))
    ops.append(Op(part, dims, tuple(op.extent(d) for d in dims), part, index, product(factors, 1, dtype), "+", where))
    tensors.append(Tensor(part, dtype, tuple(map(entry, extents))))
    return Load(part, index, dtype)

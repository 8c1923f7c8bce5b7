"""Activations as small integers: a float operand that meets narrow integers in a sum is rounded group by group.

A group is a stretch of a sum over which every other float factor (a scale, say) stays the same. There the operand is
``step`` times an integer, so that the group's sum is one of integers, exact and in any order, and all floats stand
outside. What is found depends on how each factor's subscripts depend on dims, never on how a body was written.

:func:`choose` finds the operand and its group, :func:`quantize` is the rewrite, and :func:`integers` lets a sum whose
terms are integers run in i32, with a proof that it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint, Dim
from polyq.affine.overflow import integer_range
from polyq.affine.program import identity
from polyq.affine.rewrite import entry, fresh, simplified, tensor_names
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, apply, loads, map_scalar
from polyq.affine.spec import Op, Spec, Tensor
from polyq.affine.sums import Monomial, dims_of, monomials, product

__all__ = ["LEAST", "MODES", "Choice", "Mode", "choose", "expanded", "integers", "is_narrow", "quantize"]

#: a group whose greatest magnitude is below this counts as zeros: the inverse of its step would leave f32
LEAST = 2.0**-112
#: the fewest elements of a group, and the most: a longer one is cut, which bounds what an outlier spoils
LEAST_GROUP, MOST_GROUP = 8, 256
_I32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Mode:
    """How activations become integers: the dtype of a plane, its greatest value, and how many planes there are.

    Values of i8 lie in 16 bits unless a rewrite asks for bytes: a sum of two products of full range may leave the 16
    bits that some instructions for bytes have for it.
    """

    dtype: str
    levels: int
    planes: int = 1

    @property
    def name(self) -> str:
        """How a plane is called."""
        return f"i{self.levels.bit_length() + 1}"

    @property
    def reach(self) -> int:
        """The greatest magnitude that the dtype holds."""
        return -dtypes.value_range(self.dtype)[0]


MODES: dict[str, Mode] = {"i16": Mode("i16", 32767), "i16x2": Mode("i16", 1 << 14, 2), "i8": Mode("i16", 127)}


@dataclass(frozen=True, slots=True)
class Choice:
    """The operand of ``op`` to quantize and the dims of its group; ``cut`` is a dim to split first, and the factor."""

    op: str
    activation: Load | Cast
    inner: tuple[str, ...]
    cut: tuple[str, int] | None = None


# ---- bodies as sums of products
def is_narrow(s: Scalar) -> bool:
    """Whether a factor is a narrow integer, read and converted to a float."""
    return (
        isinstance(s, Cast)
        and isinstance(s.arg, Load)
        and dtypes.is_int(s.arg.dtype)
        and dtypes.info(s.arg.dtype).bits <= 8
        and dtypes.is_float(s.dtype)
    )


def expanded(s: Scalar, box: Mapping[str, tuple[int, int]]) -> Scalar:
    """Move conversions to floats inwards, over integer arithmetic that never wraps and over arithmetic of f16.

    The value is the same but for roundings.

    >>> from polyq.affine.notation import parse
    >>> from polyq.affine.scalar import format_scalar
    >>> print(format_scalar(expanded(parse("y[i] = f32(i32(w[i]) - 8)", w=("u4", (4,))).ops[-1].body, {})))
    f32(w[i]) - 8.0
    """
    if isinstance(s, Apply):
        return replace(s, args=tuple(expanded(a, box) for a in s.args))
    if not isinstance(s, Cast):
        return s
    if not dtypes.is_float(s.dtype):
        return s
    inner = s.arg
    if isinstance(inner, Const) and dtypes.is_int(inner.dtype):
        return Const(float(inner.value), s.dtype)
    widens = dtypes.info(inner.dtype).bits < dtypes.info(s.dtype).bits
    moves = isinstance(inner, Apply) and inner.fn in ("add", "sub", "mul", "neg")
    if moves and (integer_range(inner, box) is not None or (dtypes.is_float(inner.dtype) and widens)):
        assert isinstance(inner, Apply)
        return Apply(inner.fn, tuple(expanded(Cast(a, s.dtype), box) for a in inner.args), s.dtype)
    if isinstance(inner, Cast) and _keeps(inner, box) and (dtypes.is_int(inner.dtype) or widens):
        return expanded(Cast(inner.arg, s.dtype), box)
    return s


def _keeps(s: Cast, box: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a conversion of an integer leaves its value as it is."""
    span = integer_range(s.arg, box)
    if span is None:
        return False
    if dtypes.is_int(s.dtype):
        low, high = dtypes.value_range(s.dtype)
        return low <= span[0] and span[1] <= high
    exact = {"bf16": 2**8, "f16": 2**11, "f32": 2**24, "f64": 2**53}
    return s.dtype in exact and max(abs(span[0]), abs(span[1])) <= exact[s.dtype]


def _terms(op: Op) -> tuple[Monomial, ...] | None:
    return monomials(expanded(op.body, _box(op))) if op.reduce == "+" and dtypes.is_float(op.body.dtype) else None


def _simple(op: Op) -> Op:
    """Return the op with floors that known extents decide: a group may be all there is."""
    return simplified(op, _box(op))


def _box(op: Op) -> dict[str, tuple[int, int]]:
    return {d: (0, max(e.const - 1, 0)) for d, e in zip(op.dims, op.extents, strict=True) if e.is_constant}


# ---- what can be quantized
def choose(spec: Spec, name: str, mode: Mode) -> Choice | str:
    """Return the float operand of a sum that meets narrow integers, and its group; or why there is none."""
    op = _simple(spec.op(name))
    if not any(dtypes.is_int(r.dtype) and dtypes.info(r.dtype).bits <= 8 for r in op.reads):
        return f"{name} reads no narrow integer"
    terms = _terms(op)
    if terms is None or any(r.tensor == op.target for r in op.reads):
        return f"{name} is no sum of a few products of floats"
    found = dict.fromkeys(f for t in terms if any(map(is_narrow, t.factors)) for f in t.factors if _is_activation(f))
    groups = [(a, _group(op, terms, a)) for a in found]
    size = {a: prod(_size(op.extent(d)) for d in inner) for a, inner in groups}
    best, inner = max(groups, key=lambda g: size[g[0]], default=(None, ()))
    if best is None or not inner or size[best] < LEAST_GROUP:
        return f"{name}: no float operand meets narrow integers over {LEAST_GROUP} terms that share its other factors"
    return _cut(op, terms, best, inner, mode)


def _is_activation(f: Scalar) -> bool:
    load = f.arg if isinstance(f, Cast) else f
    return isinstance(load, Load) and dtypes.is_float(load.dtype) and f.dtype in ("f32", "f64") and bool(dims_of(f))


def _size(e: Affine) -> int:
    return e.const if e.is_constant else MOST_GROUP


def _group(op: Op, terms: Sequence[Monomial], activation: Scalar) -> tuple[str, ...]:
    """Return the reduced dims over which the activation and narrow integers vary, and no other factor does."""
    inner = [d for d in op.dims if d in op.reduced and d in dims_of(activation) and op.extent(d) != Affine(1)]
    for term in terms:
        others = list(term.factors)
        if activation not in others:
            continue
        others.remove(activation)
        varying = frozenset[str]().union(*(dims_of(f) for f in others if not is_narrow(f)))
        inner = [d for d in inner if d not in varying]
    inner = _without_copies(op, activation, inner)
    for term in terms:
        narrow = [f for f in term.factors if is_narrow(f) and dims_of(f) & set(inner)]
        if activation in term.factors and len(narrow) > 1:  # a product of codes
            return ()
    meets = any(is_narrow(f) and dims_of(f) & set(inner) for t in terms if activation in t.factors for f in t.factors)
    return tuple(inner) if meets else ()


def _one_to_one(op: Op, e: Affine) -> bool:
    """Whether a subscript differs for different values of its dims: each steps over all that smaller steps reach."""
    reach = 0
    for atom, c in sorted(e.terms, key=lambda t: abs(t[1])):
        if not isinstance(atom, Dim) or (abs(c) <= reach):
            return False
        size = op.extent(atom.name)
        reach += abs(c) * (size.const - 1) if size.is_constant else 1 << 62
    return True


def _without_copies(op: Op, activation: Scalar, inner: list[str]) -> list[str]:
    """Leave out dims for which elements would lie in several groups, as in ``x[h + r]``: each is rounded once."""
    (load,) = loads(activation)
    for e in load.index:
        if len(e.dims()) > 1 and e.dims() & set(inner) and not _one_to_one(op, e):
            inner = [d for d in inner if d not in e.dims()]
    return inner


def _cut(op: Op, terms: Sequence[Monomial], activation: Scalar, inner: tuple[str, ...], mode: Mode) -> Choice | str:
    """Return the choice, with a dim to split where the sum of a group might leave i32 or the group is long."""
    assert isinstance(activation, Load | Cast)
    most = 1
    for term in terms:
        narrow = [f for f in term.factors if is_narrow(f) and dims_of(f) & set(inner)]
        spans = [integer_range(f.arg, {}) or (0, 0) for f in narrow if isinstance(f, Cast)]
        if activation in term.factors:
            most = max(most, prod(max(abs(a), abs(b)) for a, b in spans))
    limit = min(_I32 // (most * mode.reach), MOST_GROUP)
    # long inner dims make a group by themselves, short ones with a part of the dim around them
    sizes = [op.extent(d).const if op.extent(d).is_constant else _I32 for d in inner]
    while len(sizes) > 1 and (prod(sizes[1:]) > limit or (prod(sizes[1:]) >= 32 and prod(sizes) > limit)):
        sizes, inner = sizes[1:], inner[1:]
    if prod(sizes) <= limit:
        return Choice(op.name, activation, inner)
    first, factor = op.extent(inner[0]), max(1, limit // prod(sizes[1:]))
    even = next((c for c in range(factor, LEAST_GROUP - 1, -1) if first.is_constant and first.const % c == 0), 0)
    factor = even if 2 * even > factor or (even and even % 32 == 0) else factor - factor % 32 or factor
    return Choice(op.name, activation, inner, (inner[0], factor))


# ---- the rewrite
@dataclass(frozen=True, slots=True)
class _Layout:
    """The elements of an activation: dims of the groups, dims inside a group, and where the sum finds an element."""

    outer: tuple[str, ...]
    inner: tuple[str, ...]
    extents: Mapping[str, Affine]
    index: tuple[Affine, ...]
    at: Mapping[str, Affine]
    where: tuple[Constraint, ...]

    def cell(self, dims: Sequence[str]) -> tuple[Affine, ...]:
        """Return the subscripts in an op over the elements."""
        return tuple(map(Affine.dim, dims))

    def place(self, dims: Sequence[str]) -> tuple[Affine, ...]:
        """Return the subscripts in the sum."""
        return tuple(self.at[d] for d in dims)


def quantize(
    spec: Spec, name: str, operand: str, inner: Sequence[str], numerics: str, dtype: str | None = None
) -> Spec:
    """Round an operand of a sum to integers, group by group.

    ``inner`` are the dims of a group, ``numerics`` names the mode, ``dtype`` is the type of an element where it is not
    the mode's. Groups of the same elements are rounded once, whatever sums read them.

    rewrite: ``y[p] += x[g, j] * f(p, g, j)`` -> ``x.max[g] max= |x[g, j]|; x.step[g] = x.max[g] / 32767;
    x.q[g, j] = i16(rint(x[g, j] / x.step[g])); y[p] += x.step[g] * f32(x.q[g, j]) * f(p, g, j)``
    requires: 1. a sum of products in which the operand stands at most once; 2. ``inner`` are reduced dims of it.
    proof: with the exact quotient in place of its rounding this is the sum as it was; each element is off by at most
    half a step (with two planes by 2**-16 steps), by no more than ``LEAST`` in a group of zeros.
    """
    old, mode = spec.op(name), _mode(f"quantize({name!r}, {operand!r}, {list(inner)})", numerics, dtype)
    op = _simple(old)
    terms = _terms(op)
    found = [f for t in terms or () for f in t.factors if _is_activation(f) and loads(f)[0].tensor == operand]
    if terms is None or len(set(found)) != 1 or not inner or not set(inner) <= set(op.reduced) & dims_of(found[0]):
        raise ScheduleError(
            f"quantize({name!r}, {operand!r}, {list(inner)}): expected a sum of products that reads one element of "
            f"{operand}, and reduced dims of it, got {op}"
        )
    made = _Rewrite(spec, old, mode)
    layout = _layout(spec, op, loads(found[0])[0], tuple(d for d in op.dims if d in inner))
    planes = made.planes(found[0], layout)
    total: Scalar | None = None
    for term in terms:
        rest = list(term.factors)
        if found[0] in rest:
            rest.remove(found[0])
        for plane in planes if len(rest) < len(term.factors) else [()]:
            value = product([*plane, *rest], 1, op.body.dtype)
            if total is None:
                total = value if term.sign > 0 else apply("neg", value)
            else:
                total = apply("add" if term.sign > 0 else "sub", total, value)
    assert total is not None
    dims = (*(d for d in op.dims if d not in inner), *(d for d in op.dims if d in inner))
    changed = replace(op, dims=dims, extents=tuple(op.extent(d) for d in dims), body=total)
    at = spec.ops.index(old)
    return spec.with_ops((*spec.ops[:at], *made.ops, changed, *spec.ops[at + 1 :]), (*spec.all_tensors, *made.tensors))


def _mode(asked: str, numerics: str, dtype: str | None) -> Mode:
    mode = MODES[numerics]
    if dtype is None:
        return mode
    if dtype not in ("i8", "i16", "i32") or dtypes.value_range(dtype)[1] < mode.levels:
        raise ScheduleError(f"{asked}: expected a signed type that holds {mode.levels}, got dtype={dtype!r}")
    return replace(mode, dtype=dtype)


def _layout(spec: Spec, op: Op, load: Load, inner: tuple[str, ...]) -> _Layout:
    """Lay the elements out by subscripts of their tensor where these leave a group alone, else by dims of the sum."""
    t, whole = spec.tensor(load.tensor), load.tensor in spec.input_names and not spec.writers(load.tensor)
    outer, extents, at, index = list[str](), dict[str, Affine](), dict[str, Affine](), list[Affine]()
    renamed: dict[str, str] = {d: f"j{i}" for i, d in enumerate(inner)}
    for k, e in enumerate(load.index):
        single = next(iter(e.dims())) if e.dims() and e == Affine.dim(min(e.dims())) else None
        if not e.dims():
            index.append(e)
        elif not e.dims() & set(inner) and (single or whole):
            new = f"e{k}"
            outer.append(new)
            extents[new] = op.extent(single) if single else t.extents[k]
            at[new] = e
            index.append(Affine.dim(new))
        else:
            for d in (d for d in op.dims if d in e.dims() and d not in renamed):
                renamed[d] = f"g{len(renamed)}"
                outer.append(renamed[d])
            index.append(e.substitute({d: Affine.dim(renamed[d]) for d in e.dims()}))
    for d, new in renamed.items():
        extents[new], at[new] = op.extent(d), Affine.dim(d)
    names = {d: Affine.dim(new) for d, new in renamed.items()}
    kept = [c.substitute(names) for c in op.where if c.expr.dims() <= set(renamed)]
    for e, source, extent in zip(index, load.index, t.extents, strict=True):
        if any(c.expr.dims() & source.dims() and not c.expr.dims() <= set(renamed) for c in op.where):
            ranges = {n: (0, x.const - 1) for n, x in extents.items() if x.is_constant}
            for inside in (e, extent - 1 - e):  # what kept the subscript inside may not hold here
                span = inside.bounds(ranges)
                kept += [] if span is not None and span[0] >= 0 else [Constraint(inside)]
    within = tuple(renamed[d] for d in inner)
    return _Layout(tuple(outer), within, extents, tuple(index), at, tuple(dict.fromkeys(kept)))


class _Rewrite:
    """Adds the ops that round an activation; those that are there already are used again."""

    def __init__(self, spec: Spec, op: Op, mode: Mode) -> None:
        self.spec, self.mode = spec, mode
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self._taken = tensor_names(spec)
        before = spec.ops[: spec.ops.index(op)]
        self._there = {o.name: k for k, o in enumerate(before)}

    def planes(self, activation: Scalar, layout: _Layout) -> list[tuple[Scalar, ...]]:
        """Return the factors that stand for the activation, plane by plane."""
        (load,) = loads(activation)
        wide, mode = activation.dtype, self.mode
        element = map_scalar(activation, lambda node: replace(load, index=layout.index) if node == load else node)

        def number(value: float) -> Const:
            return Const(value, wide)

        last = max((k for k, o in enumerate(self.spec.ops) if o.target == load.tensor), default=-1)
        group, whole = layout.outer, (*layout.outer, *layout.inner)
        stem = load.tensor
        top = self._op(f"{stem}.max", wide, layout, whole, apply("abs", element), last, reduce=True)
        if mode.planes == 2:  # steps are powers of two: quotients are exact, and so are remainders
            top = self._op(f"{stem}.binade", wide, layout, group, Apply("binade", (top,), wide), last)
        zeros = apply("lt", top, number(LEAST))

        def but_for_zeros(value: Scalar) -> Scalar:
            return apply("select", zeros, number(0.0), value)

        levels = number(float(mode.levels))
        step = self._op(f"{stem}.step", wide, layout, group, but_for_zeros(apply("div", top, levels)), last)
        inverse = self._op(f"{stem}.inverse", wide, layout, group, but_for_zeros(apply("div", levels, top)), last)
        quotient = apply("mul", element, inverse)
        whole_number = Cast(apply("rint", quotient), mode.dtype)
        high = self._op(f"{stem}.{mode.name}", mode.dtype, layout, whole, whole_number, last)
        outside = replace(step, index=layout.place(group))
        planes: list[tuple[Scalar, ...]] = [(outside, Cast(replace(high, index=layout.place(whole)), wide))]
        if mode.planes == 2:
            rest = apply("mul", apply("sub", quotient, Cast(high, wide)), number(2.0**15))
            low = self._op(f"{stem}.low", mode.dtype, layout, whole, Cast(apply("rint", rest), mode.dtype), last)
            planes.append((number(2.0**-15), outside, Cast(replace(low, index=layout.place(whole)), wide)))
        return planes

    def _op(
        self, stem: str, dtype: str, layout: _Layout, dims: tuple[str, ...], body: Scalar, last: int,
        reduce: bool = False,
    ) -> Load:  # fmt: skip
        """Return the load of what an op computes, in an op over the same dims; groups alone where it reduces."""
        target_dims = layout.outer if reduce else dims
        index = layout.cell(target_dims)
        extents = tuple(layout.extents[d] for d in dims)
        where = layout.where if set(dims) >= set(layout.inner) else ()
        made = Op("", dims, extents, "", index, body, "max" if reduce else None, where)
        for o in self.spec.ops:
            if self._there.get(o.name, -1) > last and replace(o, name="", target="") == made:
                return Load(o.target, index, dtype)
        name = fresh(self._taken, stem)
        self._taken |= {name, f"{name}.init"}
        shape = tuple(layout.extents[d] for d in target_dims)
        if reduce:
            self.ops.append(Op(f"{name}.init", target_dims, shape, name, index, Const(0.0, dtype)))
        self.ops.append(replace(made, name=name, target=name))
        self.tensors.append(Tensor(name, dtype, tuple(map(entry, shape))))
        return Load(name, index, dtype)


# ---- sums of integers
def integers(spec: Spec, name: str) -> Spec:
    """Let a sum of products of integers run in i32.

    rewrite: ``t[p] += f32(a) * f32(b)`` -> ``t[p] += i32(a) * i32(b)``, and ``f32(t[p])`` where it is read
    requires: 1. ``t`` is a temporary that starts from 0 and has no other writer; 2. the ranges of the factors times
    the number of terms fit i32.
    proof: no intermediate sum leaves i32, in any order; the conversion rounds once, floats would term by term.
    """
    op = spec.op(name)
    t = spec.tensor(op.target)
    terms = monomials(op.body) if op.reduce == "+" and dtypes.is_float(t.dtype) else None
    if terms is None or len(terms) != 1 or not all(_is_integer(f) for f in terms[0].factors):
        raise ScheduleError(f"integers({name!r}): expected a sum of products of integers converted to floats, got {op}")
    starts = [o for o in spec.writers(t.name) if o != op]
    zero = all(o.reduce is None and o.body == identity("+", t.dtype) for o in starts)
    if t not in spec.temporaries or not zero or any(r.tensor == t.name for r in op.reads):
        raise ScheduleError(
            f"integers({name!r}): {t.name} is no temporary that starts from 0 and that {name} alone adds to"
        )
    factors = [f.arg for f in terms[0].factors if isinstance(f, Cast)]
    spans = [integer_range(f, _box(op)) for f in factors]
    count = prod(op.extent(d).const if op.extent(d).is_constant else _I32 + 1 for d in op.reduced)
    reach = prod(_I32 + 1 if s is None else max(abs(s[0]), abs(s[1])) for s in spans)
    if count * reach > _I32:
        raise ScheduleError(
            f"integers({name!r}): {count} terms of up to {reach} may leave i32 ({_I32}); sum fewer of them at a time"
        )
    body = product([f if f.dtype == "i32" else Cast(f, "i32") for f in factors], terms[0].sign, "i32")

    def leaf(node: Const | Index | Load) -> Scalar:
        return Cast(replace(node, dtype="i32"), t.dtype) if isinstance(node, Load) and node.tensor == t.name else node

    def changed(o: Op) -> Op:
        if o.target == t.name:
            return replace(o, body=body if o == op else identity("+", "i32"))
        return replace(o, body=map_scalar(o.body, leaf))

    tensors = tuple(replace(x, dtype="i32") if x.name == t.name else x for x in spec.all_tensors)
    return spec.with_ops(tuple(map(changed, spec.ops)), tensors)


def _is_integer(f: Scalar) -> bool:
    return isinstance(f, Cast) and dtypes.is_int(f.arg.dtype) and isinstance(f.arg, Load)


def divisors(op: Op) -> dict[str, int]:
    """Return the reduced dims that subscripts of float operands divide, by one number each: groups end there."""
    from polyq.affine.expr import FloorDiv

    found: dict[str, set[int]] = {}
    for load in op.reads:
        for e in load.index:
            for atom, _ in e.terms:
                if isinstance(atom, FloorDiv):
                    for d in atom.numerator.dims() & set(op.reduced):
                        if atom.numerator == Affine.of(Dim(d)):
                            found.setdefault(d, set()).add(atom.divisor)
    return {d: min(sizes) for d, sizes in found.items() if len(sizes) == 1}

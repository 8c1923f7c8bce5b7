"""The numbered form of a program: what a compiled object is shared by.

Names come from structure: tensors by first use, dims by the axes that they walk, parameters by first appearance.
Operands of commutative functions stand in an order of their own. Nothing else changes; see :class:`Form`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from polyq.affine.canonical import stored
from polyq.affine.expr import Affine, Dim, FloorDiv, Param
from polyq.affine.naming import Renaming
from polyq.affine.rewrite import fills, moved_dim, widen_sums
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, map_scalar
from polyq.affine.spec import Op, Spec
from polyq.affine.unsigned import bits_as_read

__all__ = ["Form"]

#: functions whose value does not depend on the order of two operands, bit by bit (the sign of a zero from min and max
#: and the payload of a NaN do)
_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "eq", "ne"})
#: what schedules append to the name of a dim; a name that looks like it is changed
_SUFFIX = re.compile(r"[bchiloptuvw]+(_?\d+)?")


@dataclass(frozen=True, slots=True)
class Form:
    """A program in canonical form, with numbered names (``spec``) and with the caller's (``named``).

    ``given`` is the program in the form that schedules start from: 16-bit sums widened, bits typed as they are read.

    >>> from polyq.affine.notation import parse
    >>> one = Form.of(parse("y[i, j] = x[i, j] * s[i]", x=("f32", (8, 4)), s=("f32", (8,))))
    >>> two = Form.of(parse("r[p, q] = f[p] * a[0, p, q]", f=("f32", (8,)), a=("f32", (1, 8, 4))))
    >>> one.spec == two.spec
    True
    >>> print(two.named)
    f: f32[8]
    a: f32[8, 4]
    r[p, q] = a[p, q] * f[p]
    """

    given: Spec
    spec: Spec
    named: Spec
    renaming: Renaming

    @property
    def changed(self) -> bool:
        """Whether the program is another one in canonical form, names apart."""
        return self.named != _without_marks(self.given)

    @staticmethod
    def of(spec: Spec) -> Form | None:
        """Return the form of a program; ``None`` where its names could be taken for those of a schedule."""
        spec = bits_as_read(widen_sums(spec))
        plain = stored(_without_marks(spec))
        ranks = _ranks(plain)
        ordered = plain.with_ops(tuple(_ordered(plain, op, ranks) for op in plain.ops))
        tensors = _tensor_numbers(ordered)
        if _look_derived(spec, tensors):
            return None
        dims = _numbered_dims(ordered)
        moved = ordered.with_ops(
            tuple(_renamed_op(op, tensors, each) for op, each in zip(ordered.ops, dims, strict=True))
        )
        every = sorted((replace(t, name=tensors[t.name]) for t in ordered.all_tensors), key=lambda t: int(t.name[1:-1]))
        numbered = Spec(
            "N0N", tuple(every), _by_rule(moved.with_ops(moved.ops, tuple(every))),
            _sorted(tensors[n] for n in ordered.input_names), _sorted(tensors[n] for n in ordered.output_names),
        )  # fmt: skip
        params = {name: f"P{k}P" for k, name in enumerate(numbered.params)}
        numbered = _with_params(numbered, params)
        back = {new: old for old, new in (*tensors.items(), *params.items())} | _shown_dims(ordered, dims)
        back |= _shown_temporaries(ordered, tensors)
        renaming = Renaming({**back, "N0N": spec.name})
        return Form(spec, numbered, _named(spec, ordered, numbered, renaming), renaming)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: int(name[1:-1])))


def _without_marks(spec: Spec) -> Spec:
    """Forget that arrays of another sign may come: the bits are the same."""
    return replace(spec, all_tensors=tuple(replace(t, signless=False) for t in spec.all_tensors))


def _named(spec: Spec, ordered: Spec, numbered: Spec, renaming: Renaming) -> Spec:
    """Return the numbered program in the caller's names, tensors in the caller's order."""
    made = renaming.value(numbered)
    places = {old: at for at, old in enumerate(t.name for t in ordered.all_tensors)}
    numbers = {new: old for old, new in _tensor_numbers(ordered).items()}
    shown = {renaming.names[new]: places[old] for new, old in numbers.items()}
    tensors = tuple(sorted(made.all_tensors, key=lambda t: shown[t.name]))
    return replace(
        made, all_tensors=tensors, input_names=spec.input_names, output_names=spec.output_names, notes=spec.notes
    )


def _tensor_numbers(spec: Spec) -> dict[str, str]:
    return {name: f"T{k}T" for k, name in enumerate(_by_use(spec))}


# ---- the order of operands
def _ranks(spec: Spec) -> dict[str, str]:
    """Return what tensors are sorted by where all else is the same: inputs, outputs, temporaries, in order of use."""
    ranks = {name: f"0.{k:03}" for k, name in enumerate(spec.input_names)}
    outputs = set(spec.output_names)
    for k, o in enumerate(spec.ops):
        ranks.setdefault(o.target, f"{1 + (o.target not in outputs)}.{k:03}")
    return ranks


def _ordered(spec: Spec, op: Op, ranks: Mapping[str, str]) -> Op:
    dims = {d: k for k, d in enumerate(op.dims)}
    params = {p: k for k, p in enumerate(spec.params)}

    def affine(e: Affine) -> str:
        return f"{e.const}{sorted((atom(a), c) for a, c in e.terms)}"

    def atom(a: Dim | Param | FloorDiv) -> str:
        if isinstance(a, FloorDiv):
            return f"f{a.divisor}({affine(a.numerator)})"
        return f"d{dims[a.name]:02}" if isinstance(a, Dim) else f"p{params[a.name]:02}"

    def visit(node: Scalar) -> tuple[Scalar, str]:
        match node:
            case Apply(fn, args, dtype):
                made = [visit(a) for a in args]
                if fn in _COMMUTATIVE:
                    made.sort(key=lambda each: each[1])
                return replace(node, args=tuple(a for a, _ in made)), f"a{fn}{dtype}({','.join(k for _, k in made)})"
            case Cast(arg, dtype):
                inner, key = visit(arg)
                return replace(node, arg=inner), f"b{dtype}({key})"
            case Const(value, dtype):
                return node, f"c{dtype}{value!r}"
            case Index(expr, dtype):
                return node, f"d{dtype}{affine(expr)}"
            case Load(tensor, index, dtype):
                rank = ranks.get(tensor, "3")
                return node, f"e{rank[0]}[{','.join(map(affine, index))}]{dtype}{rank}"

    return replace(op, body=visit(op.body)[0])


# ---- names
def _by_use(spec: Spec) -> list[str]:
    """Return the inputs by first use, the outputs by first write, then the temporaries by first write."""
    used = dict.fromkeys(n for op in spec.ops for n in (*(r.tensor for r in op.reads), op.target))
    written = [op.target for op in spec.ops]
    known, asked = set(spec.input_names), set(spec.output_names)
    inputs = [n for n in (*used, *spec.input_names) if n in known]
    outputs = [n for n in (*written, *spec.output_names) if n in asked]
    return list(dict.fromkeys([*inputs, *outputs, *written, *(t.name for t in spec.all_tensors)]))


def _look_derived(spec: Spec, names: Iterable[str]) -> bool:
    """Whether the name of an input or output looks like what a schedule makes of another name."""
    known = set(names)
    parts = (name.split(".") for name in {*spec.input_names, *spec.output_names})
    return any(".".join(part[:k]) in known for part in parts for k in range(1, len(part)))


def _is_fill(spec: Spec, op: Op) -> bool:
    writers = spec.writers(op.target)
    return op is writers[0] and len(writers) > 1 and isinstance(op.body, Const) and fills(op, spec.tensor(op.target))


def _by_rule(spec: Spec) -> tuple[Op, ...]:
    """Name ops by what they write: ``T.init`` for a start value, then ``T``, ``T.2``, ..."""
    count: dict[str, int] = {}
    ops: list[Op] = []
    for op in spec.ops:
        if _is_fill(spec, op):
            ops.append(replace(op, name=f"{op.target}.init"))
            continue
        number = count[op.target] = count.get(op.target, 0) + 1
        ops.append(replace(op, name=op.target if number == 1 else f"{op.target}.{number}"))
    return tuple(ops)


def _numbered_dims(spec: Spec) -> list[dict[str, str]]:
    """Return the numbered names of the dims of each op: what walks one axis of a tensor has one name."""
    walked: dict[tuple[str, int], str] = {}
    found: dict[int, dict[str, str]] = {}
    count = 0
    for at in sorted(range(len(spec.ops)), key=lambda k: (_is_fill(spec, spec.ops[k]), k)):
        op, mine = spec.ops[at], dict[str, str]()
        axes = [
            (d, (name, k))
            for name, index in [(op.target, op.index), *((r.tensor, r.index) for r in op.reads)]
            for k, e in enumerate(index)
            if (d := moved_dim(e)) is not None
        ]
        for d, axis in axes:
            if d not in mine and walked.get(axis, "") not in ("", *mine.values()):
                mine[d] = walked[axis]
        for d in op.dims:
            if d not in mine:
                mine[d], count = f"I{count}I", count + 1
        for d, axis in axes:
            walked.setdefault(axis, mine[d])
        found[at] = mine
    return [found[k] for k in range(len(spec.ops))]


def _renamed_op(op: Op, tensors: Mapping[str, str], dims: Mapping[str, str]) -> Op:
    by_dim = {d: Affine.dim(n) for d, n in dims.items()}

    def moved(e: Affine) -> Affine:
        return e.substitute(by_dim)

    return replace(
        op, dims=tuple(dims[d] for d in op.dims), target=tensors[op.target], index=tuple(map(moved, op.index)),
        body=_moved(op.body, moved, tensors), where=tuple(replace(c, expr=moved(c.expr)) for c in op.where),
    )  # fmt: skip


def _moved(body: Scalar, moved: Callable[[Affine], Affine], tensors: Mapping[str, str]) -> Scalar:
    """Return a body with other expressions, and other names for the tensors that have one."""

    def leaf(node: Const | Index | Load) -> Scalar:
        match node:
            case Load(tensor, index, _):
                return replace(node, tensor=tensors.get(tensor, tensor), index=tuple(map(moved, index)))
            case Index(expr, _):
                return replace(node, expr=moved(expr))
            case Const():
                return node

    return map_scalar(body, leaf)


def _with_params(spec: Spec, params: Mapping[str, str]) -> Spec:
    def moved(e: Affine) -> Affine:
        return e.substitute(lambda a: Affine.param(params[a.name]) if isinstance(a, Param) else None)

    if not params:
        return spec
    ops = tuple(
        replace(
            op, extents=tuple(map(moved, op.extents)), index=tuple(map(moved, op.index)),
            body=_moved(op.body, moved, {}),
            where=tuple(replace(c, expr=moved(c.expr)) for c in op.where),
        )
        for op in spec.ops
    )  # fmt: skip
    shapes = [[moved(e) for e in t.extents] for t in spec.all_tensors]
    tensors = [
        replace(t, shape=tuple(e.const if e.is_constant else str(e) for e in shape))
        for t, shape in zip(spec.all_tensors, shapes, strict=True)
    ]
    return spec.with_ops(ops, tuple(tensors))


# ---- the way back
def _shown_dims(spec: Spec, dims: list[dict[str, str]]) -> dict[str, str]:
    """Return the caller's name of each numbered dim, changed where a schedule could derive it from another's."""
    shown: dict[str, str] = {}
    others: set[str] = set()
    order = sorted(range(len(spec.ops)), key=lambda k: (_is_fill(spec, spec.ops[k]), k))
    for d, number in ((d, n) for k in order for d, n in dims[k].items()):
        if number in shown:
            continue
        name = d
        while name in others or any(_derived(name, o) or _derived(o, name) for o in others):
            name += "_"
        shown[number] = name
        others.add(name)
    return shown


def _derived(name: str, other: str) -> bool:
    return name.startswith(other) and _SUFFIX.fullmatch(name[len(other) :]) is not None


def _shown_temporaries(spec: Spec, tensors: Mapping[str, str]) -> dict[str, str]:
    """Return other names for temporaries that are called like what a schedule makes of another tensor."""
    found: dict[str, str] = {}
    for t in spec.temporaries:
        name = t.name
        if any(name.startswith(f"{other}.") and name != f"{other}.wide" for other in tensors if other != name):
            name += "_"
        while name != t.name and name in tensors:
            name += "_"
        found[tensors[t.name]] = name
    return found

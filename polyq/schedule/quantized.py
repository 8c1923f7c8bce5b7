"""Integer numerics as directives: which rewrites a spec takes under ``"i16"``, ``"i16x2"`` and ``"i8"``."""

from __future__ import annotations

from dataclasses import replace

from polyq.affine.dtypes import info, is_float, is_int, value_range
from polyq.affine.errors import ScheduleError
from polyq.affine.quantize import MODES, Choice, choose, divisors, is_narrow
from polyq.affine.rewrite import inlinable
from polyq.affine.scalar import Cast, Load, Scalar, loads, walk
from polyq.affine.spec import Op, Spec
from polyq.affine.sums import hoistable, monomials
from polyq.schedule.draft import Draft, size_of
from polyq.schedule.isa import dot_for
from polyq.schedule.numerics import INTEGER
from polyq.schedule.schedule import Schedule

__all__ = ["in_order", "multiplies_integers", "quantize_activations", "sum_integers"]


def quantize_activations(draft: Draft) -> list[tuple[str, tuple[str, ...]]]:
    """Quantize what meets narrow integers in the sums of the program; return these sums and the dims of a group.

    A no-op under numerics that keep floats. What is left as it is gets a note with the reason.
    """
    if draft.numerics not in INTEGER:
        return []
    _inline_codes(draft)
    made: list[tuple[str, tuple[str, ...]]] = []
    for op in draft.spec.ops:
        if op.reduce != "+" or not is_float(op.body.dtype):
            continue
        choice = _chosen(draft, op.name)
        if isinstance(choice, str):
            if "reads no narrow integer" not in choice:
                draft.note(f"{op.target}: not computed in integers: {choice}")
            continue
        operand = _operand(choice)
        before = {t.name for t in draft.spec.all_tensors}
        dtype = _element(draft, op.name, choice)
        draft.do("quantize", op=op.name, operand=operand, inner=choice.inner, numerics=draft.numerics, dtype=dtype)
        new = [t.name for t in draft.spec.all_tensors if t.name not in before]
        draft.quantized |= set(new)
        made.append((op.name, choice.inner))
        size = " x ".join(str(size_of(draft.spec.op(op.name).extent(d))) for d in choice.inner)
        shared = "" if new else ", as other statements have it already"
        draft.note(f"{op.target}: {operand} in {draft.numerics}, a step for each group of {size}{shared}")
    if not made:
        draft.note(f"numerics {draft.numerics}: no float operand meets narrow integers in a sum; nothing is quantized")
    return made


def _element(draft: Draft, name: str, choice: Choice) -> str | None:
    """Return ``"i8"`` where an instruction multiplies bytes and holds the sums of their products; else ``None``.

    Bytes pay where bound codes are laid out for the instruction. Why they are not used gets a note.
    """
    if MODES[draft.numerics].levels > 127 or not any(row.parts == 4 for row in draft.target.dots):
        return None
    codes = {r.tensor: r.dtype for r in draft.spec.op(name).reads if is_int(r.dtype) and info(r.dtype).bits <= 8}
    loose = sorted(codes.keys() - draft.constants)
    if loose:
        draft.note(f"{name}: i8 in 16 bits, since {', '.join(loose)} is not bound: no layout for products of bytes")
        return None
    for tensor, dtype in codes.items():
        low, high = value_range(dtype)
        if dot_for(draft.target.dots, 4, (low, high), value_range("i8")) is None:
            rows = ", ".join(row.name for row in draft.target.dots if row.parts == 4)
            draft.note(f"{name}: i8 in 16 bits, since {rows} cannot take or sum {tensor} from {low} to {high} times i8")
            return None
    return "i8"


def _operand(choice: Choice) -> str:
    (load,) = loads(choice.activation)
    return load.tensor


def _chosen(draft: Draft, name: str) -> Choice | str:
    """Return what to quantize after dims are split where groups end, and where a group's sum would be too long."""
    point = draft.save()
    for dim, size in divisors(draft.spec.op(name)).items():
        if 1 < size < size_of(draft.spec.op(name).extent(dim)):
            draft.do("split_dim", op=name, dim=dim, factor=size)
    choice = choose(draft.spec, name, MODES[draft.numerics])
    if isinstance(choice, Choice) and choice.cut is not None:
        dim, size = choice.cut
        draft.do("split_dim", op=name, dim=dim, factor=size)
        draft.note(f"{name}: {dim} cut into groups of {size}, whose sums are proven to fit i32")
        choice = choose(draft.spec, name, MODES[draft.numerics])
        if isinstance(choice, Choice) and choice.cut is not None:
            choice = f"{name}: no cut of {dim} bounds a sum"
    if isinstance(choice, str):
        draft.restore(point)
    return choice


def _inline_codes(draft: Draft) -> None:
    """Compute what is made of narrow integers where it is read, if that is a sum that can be quantized."""
    wanted = {t.name for t in draft.spec.temporaries if _holds_codes(draft.spec, t.name)}
    while wanted:
        point = draft.save()
        inlined = [t.name for t in draft.spec.temporaries if t.name in wanted]
        readers = {t: {op.target for op in draft.spec.readers(t)} for t in inlined}
        done: set[str] = set()
        for tensor in inlined:
            if not isinstance(inlinable(draft.spec, tensor), str):
                draft.do("inline", tensor=tensor)
                done.add(tensor)
        useful = {
            op.target for op in draft.spec.ops
            if op.reduce == "+" and is_float(op.body.dtype) and isinstance(_tried(draft, op.name), Choice)
        }  # fmt: skip
        needed = {t for t in done if _reaches(t, readers, done, useful)}
        if needed == done:
            return
        draft.restore(point)
        wanted = needed


def _tried(draft: Draft, name: str) -> Choice | str:
    point = draft.save()
    choice = _chosen(draft, name)
    draft.restore(point)
    return choice


def _reaches(tensor: str, readers: dict[str, set[str]], inlined: set[str], useful: set[str]) -> bool:
    direct = readers.get(tensor, set())
    return bool(direct & useful) or any(_reaches(t, readers, inlined, useful) for t in direct & inlined)


def _holds_codes(spec: Spec, tensor: str) -> bool:
    """Whether a float temporary is computed from narrow integers, directly or through others that are."""
    if not is_float(spec.tensor(tensor).dtype):
        return False
    for op in spec.writers(tensor):
        if op.reduce is not None:
            return False
        if any(is_narrow(n) for n in walk(op.body)):
            return True
        temporaries = {t.name for t in spec.temporaries} - {tensor}
        if any(r.tensor in temporaries and _holds_codes(spec, r.tensor) for r in op.reads):
            return True
    return False


def multiplies_integers(op: Op) -> bool:
    """Whether every term of a sum of floats holds an integer, and some term a product of two."""
    terms = monomials(op.body) if op.reduce == "+" and is_float(op.body.dtype) else None
    counts = [sum(map(_is_integer, t.factors)) for t in terms or ()]
    return bool(counts) and min(counts) > 0 and max(counts) > 1


def _is_integer(f: Scalar) -> bool:
    return isinstance(f, Cast) and isinstance(f.arg, Load) and is_int(f.arg.dtype)


def sum_integers(draft: Draft, names: list[str]) -> None:
    """Let those of the sums run in i32 whose terms are integers and that are proven to fit."""
    if draft.numerics not in INTEGER:
        return
    for name in names:
        if draft.spec.op(name).reduce != "+":
            continue
        point = draft.save()
        try:
            draft.do("integers", op=name)
            draft.note(f"{name}: summed in i32, which holds it")
        except ScheduleError:
            draft.restore(point)


def in_order(made: Schedule) -> Schedule:
    """Return the schedule that runs the rewritten program op by op, each in the order of its dims."""
    draft = Draft(made.spec, made.numerics, made.machine)
    _factor_groups(draft, quantize_activations(draft))
    return replace(made, directives=tuple(draft.directives), notes=tuple(draft.notes))


def _factor_groups(draft: Draft, made: list[tuple[str, tuple[str, ...]]]) -> None:
    """Move what is constant over a group out of its sum, and sum the rest in integers: for the order of the program."""
    for name, inner in made:
        if hoistable(draft.spec.op(name), inner):
            sum_integers(draft, draft.do("factor", op=name, inner=inner))

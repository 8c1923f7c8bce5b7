"""Sums of products of small integers, several products at a time: what an instruction of the target's table computes.

``t += a*b`` and ``t += c*d`` of one run become one step where ``a`` and ``c`` are fields of the same 32-bit words, half
a word apart, and ``b`` and ``d`` are the same in all lanes; likewise four, a quarter of a word apart. Which row of the
table computes them follows from the ranges of the factors. Integers wrap, so that the order of a sum is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyq.affine import dtypes
from polyq.affine.expr import Affine
from polyq.affine.scalar import Apply, Cast, Load, loads
from polyq.emit.address import Memory, Offset, Registers, offset_of, stem
from polyq.emit.ctypes import UNARY, Value, scalar_name
from polyq.emit.instructions import multiply_add, ones
from polyq.emit.loads import field_place, words_at
from polyq.emit.run import Lanes, Run, varies
from polyq.emit.statements import Step
from polyq.schedule.isa import Dot, dot_for

__all__ = ["Joined", "emit_joined", "joined"]


@dataclass(frozen=True, slots=True)
class _Product:
    """A step ``t += i32(codes) * i32(same)``: the load of the lanes, where its words are, its field, the other load."""

    step: Step
    lanes: Lanes
    codes: Load
    at: Offset
    field: int
    same: Load

    def place(self, dot: Dot) -> tuple[int, int]:
        """Return which part of its word the field is in, and which field of that part it is."""
        return divmod(self.field, 32 // dtypes.info(self.codes.dtype).bits // dot.parts)

    def steps(self, dot: Dot) -> int:
        """Return how many results of an instruction may be added (see :meth:`polyq.schedule.isa.Dot.steps`)."""
        return dot.steps(dtypes.value_range(self.codes.dtype), dtypes.value_range(self.same.dtype))

    @property
    def cell(self) -> tuple[object, ...]:
        """What a sum is told by: the vector that is added to, and the types whose ranges bound what is added."""
        return self.step.assign.target, self.step.assign.index, self.lanes, self.codes.dtype, self.same.dtype


@dataclass(frozen=True, slots=True)
class Joined:
    """Steps that become one, in the order of the parts of their words.

    Sums of 16 bits run over several of them: ``begins`` starts one, ``ends`` adds it to the total.
    """

    products: tuple[_Product, ...]
    dot: Dot
    begins: bool = True
    ends: bool = True


def joined(run: Run, steps: Sequence[Step]) -> list[Step | Joined]:
    """Return the steps of a run with those joined that one instruction computes."""
    found = [_product(run, s) for s in steps] if run.helpers.dots else []
    if sum(p is not None for p in found) < 2:
        return list(steps)
    written = {s.assign.target for s in steps}
    out: list[Step | Joined] = []
    taken: set[int] = set()
    for k, (step, p) in enumerate(zip(steps, found, strict=True)):
        if k in taken:
            continue
        out.append(step)
        if p is None or written & {p.codes.tensor, p.same.tensor}:
            continue
        for dot in run.helpers.dots:
            partners = _partners(p, k, steps, found, taken, dot)
            if partners is not None:
                taken.update(partners)
                group = [p, *(q for q in (found[j] for j in partners) if q is not None)]
                out[-1] = Joined(tuple(sorted(group, key=lambda q: q.field)), dot)
                break
    return _summed(out)


def _partners(
    p: _Product, k: int, steps: Sequence[Step], found: Sequence[_Product | None], taken: set[int], dot: Dot
) -> list[int] | None:
    """Return the later steps that go with the product at ``k``, if nothing in between looks at their sum."""
    target = p.step.assign
    if 32 // dtypes.info(p.codes.dtype).bits < dot.parts or not p.steps(dot):
        return None
    part, field = p.place(dot)
    partners: dict[int, int] = {}
    for j in range(k + 1, len(steps)):
        q = found[j]
        between = steps[j].assign
        if any(r.tensor == target.target for r in loads(between.value)):
            return None
        if between.target == target.target and between.index == target.index and between.reduce != "+":
            return None
        if q is None or j in taken or q.cell != p.cell:
            continue
        words = (p.codes.tensor, p.at) == (q.codes.tensor, q.at) and p.same.tensor == q.same.tensor
        other, place = q.place(dot)
        if words and place == field and other != part and other not in partners:
            partners[other] = j
            if len(partners) == dot.parts - 1:
                return list(partners.values())
    return None


def _summed(items: list[Step | Joined]) -> list[Step | Joined]:
    """Let sums of 16 bits run as far as they are proven to hold them, or until somebody looks at the total."""
    last: dict[tuple[object, ...], tuple[int, int]] = {}  # where a sum was added to last, and how often
    for k, item in enumerate(items):
        if isinstance(item, Step):
            seen = {item.assign.target, *(r.tensor for r in loads(item.assign.value))}
            last = {cell: at for cell, at in last.items() if cell[0] not in seen}
        elif item.dot.sums == 16:
            p = item.products[0]
            before, count = last.pop(p.cell, (-1, 0))
            if count:
                earlier = items[before]
                assert isinstance(earlier, Joined)
                items[before] = replace(earlier, ends=False)
            items[k] = replace(item, begins=count == 0)
            if count + 1 < p.steps(item.dot):
                last[p.cell] = k, count + 1
    return items


def _product(run: Run, step: Step) -> _Product | None:
    assign, lanes = step.assign, step.lanes
    storage = run.storage[assign.target]
    if not isinstance(storage, Registers) or storage.dtype != "i32" or lanes is None or step.fold:
        return None
    if storage.lanes != lanes.width or lanes.width * 4 > run.helpers.vector_bytes:
        return None
    match assign.value:
        case Apply("mul", (Cast(Load() as a, "i32"), Cast(Load() as b, "i32")), _) if assign.reduce == "+":
            same, codes = (b, a) if varies(a, lanes.var) else (a, b)
        case _:
            return None
    place = None if varies(same, lanes.var) or not _fits(run, same) else field_place(run, codes, lanes)
    if place is None or dtypes.info(codes.dtype).bits > 8:
        return None
    return _Product(step, lanes, codes, place[0], place[1], same)


def _fits(run: Run, load: Load) -> bool:
    """Whether an element in memory is one that i16 holds."""
    d = dtypes.info(load.dtype)
    fits = d.bits < 16 or (d.bits == 16 and d.kind == "i")
    return fits and not d.packed and d.kind in "ui" and isinstance(run.storage[load.tensor], Memory)


# ---- emission
def emit_joined(run: Run, item: Joined) -> None:
    """Add the lines of several products at once."""
    first, dot = item.products[0], item.dot
    assign, lanes, helpers = first.step.assign, first.lanes, run.helpers
    storage = run.storage[assign.target]
    assert isinstance(storage, Registers)
    total, _, _ = run.register(storage, assign.index, lanes)
    operands = f"{_codes(run, first, dot).text}, {_same(run, item).text}"
    function = multiply_add(helpers, dot, lanes.width)
    if dot.sums == 32:
        run.say(f"{total} = {function}({total}, {operands});")
    else:
        vector = helpers.vector("i16", 2 * lanes.width)
        if item.begins:
            run.sums[first.cell] = run.names.fresh(f"{total}_part")
        part = run.sums[first.cell]
        start = f"({vector}){{0}}" if item.begins else part
        run.say(f"{f'{vector} ' if item.begins else ''}{part} = {function}({start}, {operands});")
        run.say(f"KEEP({part});")
        if item.ends:
            pairs = dot_for(helpers.dots, 2, (-32768, 32767), (-32768, 32767))
            assert pairs is not None, "a target whose sums have 16 bits adds pairs of them"
            add = multiply_add(helpers, pairs, lanes.width)
            run.say(f"{total} = {add}({total}, {part}, {ones(helpers, 2 * lanes.width)});")
    if dot.sums == 32:
        run.say(f"KEEP({total});")  # totals of shorter sums may lie in memory: they are needed rarely
    run.written(assign.target)


def _codes(run: Run, p: _Product, dot: Dot) -> Value:
    """Return one field of each part of each word, as i16 or as bytes."""
    words, d, lanes = words_at(run, p.codes, p.lanes, p.at), dtypes.info(p.codes.dtype), dot.parts * p.lanes.width
    part, kind = 32 // dot.parts, "i16" if dot.parts == 2 else dot.codes
    shift = p.place(dot)[1] * d.bits
    text = _bytes(run, words, d, shift, lanes) if dot.parts == 4 else _halves(run, words, d, shift, lanes)
    value = Value(f"({run.helpers.vector(kind, lanes)})({text})", kind, lanes, UNARY)
    key = ("parts", replace(p.codes, index=()), words.text, shift, part)
    return run.once(key, value, f"{stem(p.codes.tensor)}_{'pairs' if dot.parts == 2 else 'bytes'}")


def _halves(run: Run, words: Value, d: dtypes.DType, shift: int, lanes: int) -> str:
    """Return the field at bit ``shift`` of each half of the words."""
    kind = "u16" if d.kind == "u" else "i16"
    text = f"({run.helpers.vector(kind, lanes)}){words.within(UNARY)}"
    if d.kind == "u":
        if shift:
            text = f"({text} >> {shift})"
        return f"{text} & {(1 << d.bits) - 1}" if shift + d.bits < 16 else text
    if shift + d.bits < 16:
        text = f"({text} << {16 - d.bits - shift})"
    return f"{text} >> {16 - d.bits}"


def _bytes(run: Run, words: Value, d: dtypes.DType, shift: int, lanes: int) -> str:
    """Return the field at bit ``shift`` of each byte of the words; the sign of one is extended by a subtraction."""
    if d.bits == 8:
        return words.text
    shifted = f"({words.text} >> {shift})" if shift else words.text
    masked = f"{shifted} & {((1 << d.bits) - 1) * 0x01010101:#x}u"
    if d.kind == "u":
        return masked
    sign = 1 << (d.bits - 1)
    return f"(({run.helpers.vector('i8', lanes)})({masked}) ^ {sign}) - {sign}"


def _same(run: Run, item: Joined) -> Value:
    """Return the other factors side by side, in all lanes."""
    parts, loads_, lanes = item.dot.parts, [p.same for p in item.products], item.products[0].lanes.width
    kind = "i16" if parts == 2 else "i8"
    storage = run.storage[loads_[0].tensor]
    assert isinstance(storage, Memory)
    start, *others = (offset_of(storage, load.index) for load in loads_)
    vector = run.helpers.vector(kind, parts * lanes)
    wide, fill = run.helpers.vector("i32", lanes), ", ".join(["w"] * lanes)
    together = all(
        o.symbolic == start.symbolic and o.known - start.known == Affine(k) for k, o in enumerate(others, start=1)
    )
    if loads_[0].dtype == kind and together:
        name = run.helpers.add(
            f"spread_{vector}",
            f"static inline {vector} spread_{vector}(const {scalar_name(kind)} *p) {{\n  int32_t w;\n"
            f"  __builtin_memcpy(&w, p, 4);\n  return ({vector})({wide}){{{fill}}};\n}}",
        )
        text = f"{name}({start.plus(storage.pointer, run.names)})"
    else:
        name, letters = f"both_{vector}", "abcd"[:parts]
        unsigned, arguments = f"uint{32 // parts}_t", ", ".join(f"{scalar_name(kind)} {c}" for c in letters)
        word = " | ".join(f"(uint32_t)({unsigned}){c} << {k * 32 // parts}" for k, c in enumerate(letters))
        run.helpers.add(
            name,
            f"static inline {vector} {name}({arguments}) {{\n  const int32_t w = (int32_t)({word});\n"
            f"  return ({vector})({wide}){{{fill}}};\n}}",
        )
        text = f"{name}({', '.join(run.value(load, None).text for load in loads_)})"
    value = Value(text, kind, parts * lanes)
    # a barrier only where an instruction could spread from memory for each of its users (AVX-512): elsewhere it made
    # gcc 12 move loads to the front of the loop, where they took the registers of sums
    folds = run.helpers.vector_bytes >= 64
    return run.once(("same", *loads_, lanes), value, f"{stem(loads_[0].tensor)}_spread", keep=folds)

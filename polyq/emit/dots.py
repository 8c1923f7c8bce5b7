"""Sums of products of 16-bit integers, two products at a time: what multiply-add instructions of pairs compute.

``t += a*b`` and ``t += c*d`` of one run become one step where ``a`` and ``c`` are fields of the same 32-bit words, half
a word apart, and ``b`` and ``d`` are the same in all lanes. Integers wrap, so that the order of a sum is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyq.affine import dtypes
from polyq.affine.expr import Affine
from polyq.affine.scalar import Apply, Cast, Load, loads
from polyq.emit.address import Memory, Offset, Registers, offset_of, stem
from polyq.emit.ctypes import UNARY, Value
from polyq.emit.loads import field_place, words_at
from polyq.emit.run import Lanes, Run, varies
from polyq.emit.statements import Step

if TYPE_CHECKING:
    from polyq.emit.helpers import Helpers

__all__ = ["Pair", "emit_pair", "paired"]


@dataclass(frozen=True, slots=True)
class _Product:
    """A step ``t += i32(codes) * i32(same)``: the load of the lanes, where its words are, its field, the other load."""

    step: Step
    lanes: Lanes
    codes: Load
    at: Offset
    field: int
    same: Load


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps that become one: the field of the first is in the lower half of its word."""

    low: _Product
    high: _Product


def paired(run: Run, steps: Sequence[Step]) -> list[Step | Pair]:
    """Return the steps of a run with those joined that one multiply-add of pairs computes."""
    found = [_product(run, s) for s in steps]
    if sum(p is not None for p in found) < 2:
        return list(steps)
    written = {s.assign.target for s in steps}
    out: list[Step | Pair] = []
    taken: set[int] = set()
    for k, (step, p) in enumerate(zip(steps, found, strict=True)):
        if k in taken:
            continue
        steady = p is not None and not written & {p.codes.tensor, p.same.tensor}
        partner = _partner(p, k, steps, found, taken) if p is not None and steady else None
        if p is None or partner is None:
            out.append(step)
            continue
        other = found[partner]
        assert other is not None
        taken.add(partner)
        out.append(Pair(p, other) if p.field < other.field else Pair(other, p))
    return out


def _partner(
    p: _Product, k: int, steps: Sequence[Step], found: Sequence[_Product | None], taken: set[int]
) -> int | None:
    """Return the later step that goes with the product at ``k``, if nothing between the two looks at their sum."""
    target = p.step.assign
    half = 16 // dtypes.info(p.codes.dtype).bits
    for j in range(k + 1, len(steps)):
        q = found[j]
        between = steps[j].assign
        if any(r.tensor == target.target for r in loads(between.value)):
            return None
        if between.target == target.target and between.index == target.index and between.reduce != "+":
            return None
        if q is None or j in taken or (between.target, between.index) != (target.target, target.index):
            continue
        words = (p.codes.tensor, p.at, p.lanes) == (q.codes.tensor, q.at, q.lanes)
        if words and p.field % half == q.field % half and p.field != q.field and p.same.tensor == q.same.tensor:
            return j
    return None


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
def emit_pair(run: Run, pair: Pair) -> None:
    """Add the lines of two products at once."""
    low, assign, lanes = pair.low, pair.low.step.assign, pair.low.lanes
    storage = run.storage[assign.target]
    assert isinstance(storage, Registers)
    name, _, _ = run.register(storage, assign.index, lanes)
    codes, same = _codes(run, low), _same(run, pair)
    run.say(f"{name} += {_multiply_add(run.helpers, lanes.width)}({codes.text}, {same.text});")
    run.say(f"KEEP({name});")
    run.written(assign.target)


def _codes(run: Run, p: _Product) -> Value:
    """Return two fields of each word, half a word apart, as i16."""
    words, d, lanes = words_at(run, p.codes, p.lanes, p.at), dtypes.info(p.codes.dtype), 2 * p.lanes.width
    shift = p.field * d.bits
    kind = "u16" if d.kind == "u" else "i16"
    text = f"({run.helpers.vector(kind, lanes)}){words.within(UNARY)}"
    if d.kind == "u":
        if shift:
            text = f"({text} >> {shift})"
        if shift + d.bits < 16:
            text = f"{text} & {(1 << d.bits) - 1}"
    else:
        if shift + d.bits < 16:
            text = f"({text} << {16 - d.bits - shift})"
        text = f"{text} >> {16 - d.bits}"
    value = Value(f"({run.helpers.vector('i16', lanes)})({text})", "i16", lanes, UNARY)
    key = ("halves", replace(p.codes, index=()), words.text, p.field, lanes)
    return run.once(key, value, f"{stem(p.codes.tensor)}_pairs")


def _same(run: Run, pair: Pair) -> Value:
    """Return the two other factors side by side, in all lanes."""
    low, high, lanes = pair.low.same, pair.high.same, pair.low.lanes.width
    storage = run.storage[low.tensor]
    assert isinstance(storage, Memory)
    start, end = offset_of(storage, low.index), offset_of(storage, high.index)
    vector, wide = run.helpers.vector("i16", 2 * lanes), run.helpers.vector("i32", lanes)
    fill = ", ".join(["w"] * lanes)
    if low.dtype == "i16" and start.symbolic == end.symbolic and end.known - start.known == Affine(1):
        name = run.helpers.add(
            f"pair_{vector}",
            f"static inline {vector} pair_{vector}(const int16_t *p) {{\n  int32_t w;\n  __builtin_memcpy(&w, p, 4);\n"
            f"  return ({vector})({wide}){{{fill}}};\n}}",
        )
        text = f"{name}({start.plus(storage.pointer, run.names)})"
    else:
        a, b = run.value(low, None), run.value(high, None)
        name = run.helpers.add(
            f"both_{vector}",
            f"static inline {vector} both_{vector}(int16_t a, int16_t b) {{\n"
            f"  const int32_t w = (int32_t)((uint32_t)(uint16_t)a | (uint32_t)(uint16_t)b << 16);\n"
            f"  return ({vector})({wide}){{{fill}}};\n}}",
        )
        text = f"{name}({a.text}, {b.text})"
    return run.once(("pair", low, high, lanes), Value(text, "i16", 2 * lanes), f"{stem(low.tensor)}_pair")


def _multiply_add(helpers: Helpers, lanes: int) -> str:
    """Return the name of a function: products of i16 lanes, neighbours added, as i32 that wrap."""
    pairs, out, bits = helpers.vector("i16", 2 * lanes), helpers.vector("i32", lanes), helpers.vector("u32", lanes)
    name = f"madd_{pairs}"
    plain = (
        f"  const {bits} low = ({bits})(({out})(({bits})a << 16) >> 16) * ({bits})(({out})(({bits})b << 16) >> 16);\n"
        f"  return ({out})(low + ({bits})(({out})a >> 16) * ({bits})(({out})b >> 16));\n"
    )
    builtin = {4: ("__SSE2__", "__builtin_ia32_pmaddwd128"), 8: ("__AVX2__", "__builtin_ia32_pmaddwd256")}.get(lanes)
    if builtin is not None:
        short = f"  typedef short shorts __attribute__((vector_size({4 * lanes})));\n"
        native = f"{short}  return ({out}){builtin[1]}((shorts)a, (shorts)b);\n"
        plain = f"#if defined({builtin[0]})\n{native}#else\n{plain}#endif\n"
    return helpers.add(name, f"static inline {out} {name}({pairs} a, {pairs} b) {{\n{plain}}}")


"""How a reduction is prepared for its tile: partial sums in lanes, factors moved out, operands in a fitting order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.spec import Op
from polyq.affine.sums import dims_of, hoistable, monomials
from polyq.schedule.axes import share_among_threads
from polyq.schedule.draft import Draft, size_of
from polyq.schedule.isa import dot_for
from polyq.schedule.layouts import Words
from polyq.schedule.packing import scale_partner
from polyq.schedule.quantized import multiplies_integers, sum_integers
from polyq.schedule.tiles import Tile

#: unrolled copies of lanes for a reduction that has no other independent sums: they hide the latency of an addition
CHAINS = 4
#: results that a sum of 16 bits takes before it is added to the total: more make the loop longer than it gains
MOST_SUMMED = 8
#: vectors that a body computes when the loops around a tile are unrolled too. Measured on Zen 3, 3 x 3 windows over 64
#: channels of 56 x 56 (108 vectors): 0.94 to 0.97 of the time with loops
MOST_UNROLLED = 128

__all__ = ["arrange", "distribute", "hoist", "sum_in_lanes", "sum_in_words"]


def distribute(draft: Draft, name: str) -> list[str]:
    """Split a sum of products where one term's inner sum lacks a dim of the result: it is computed once."""
    op = draft.spec.op(name)
    terms = monomials(op.body) if op.reduce == "+" and draft.relaxed else None
    if terms is None or len(terms) < 2 or (op.where and not draft.relaxed):
        return []
    inner = inner_dims(op)
    result = {d for e in op.index for d in e.dims()}
    parts = [frozenset(d for f in t.factors if dims_of(f) & set(inner) for d in dims_of(f)) & result for t in terms]
    if not inner or all(p == parts[0] for p in parts):
        return []
    extra = draft.do("distribute", op=name, inner=tuple(inner))
    for other in extra:
        sum_integers(draft, draft.do("factor", op=other, inner=tuple(inner)))
    count = len(extra) + 1
    draft.note(f"{name}: split into {count} sums, since an inner sum over {', '.join(inner)} serves many results")
    return extra


def inner_dims(op: Op) -> list[str]:
    """The longest run of innermost reduced dims over which some factor is constant while another varies."""
    reduced = [d for d in op.dims if d in op.reduced]
    terms = monomials(op.body) or ()
    least = 2 if multiplies_integers(op) else 8  # integers wait for no rounding: their sums stay apart from floats
    for start in range(len(reduced)):
        inner = set(reduced[start:])
        size = 1
        for d in inner:
            size *= size_of(op.extent(d))
        varying = all(any(dims_of(f) & inner for f in t.factors) for t in terms)
        steady = any(is_read(f) and not dims_of(f) & inner for t in terms for f in t.factors)
        if size >= least and varying and steady:
            return reduced[start:]
    return []


def is_read(f: object) -> bool:
    """Whether a factor is read from memory (constants move for free)."""
    return bool(getattr(f, "index", None)) or bool(getattr(f, "args", None)) or hasattr(f, "arg")


def hoist(draft: Draft, name: str) -> list[str]:
    """Move what is constant over the innermost reduced dims out of their sum; return the new ops."""
    op = draft.spec.op(name)
    inner = inner_dims(op) if draft.relaxed and op.reduce == "+" else []
    if not inner or not hoistable(op, inner):
        return []
    made = draft.do("factor", op=name, inner=tuple(inner))
    sum_integers(draft, made)
    draft.note(f"{name}: factors that are constant over {', '.join(inner)} leave the inner sum")
    return made


def _parts(draft: Draft, name: str, keep: tuple[str, ...], outer: bool = False) -> str:
    """Sum in parts that keep some dims; return the op that sums a part."""
    made = draft.do("partial_sums", op=name, keep=keep, outer=outer)
    return next(n for n in made if draft.spec.op(n).reduce is not None)


def sum_in_words(draft: Draft, name: str, tile: Tile) -> list[str]:
    """Prepare a reduction whose lanes lie along the result: factors moved out, words taken apart; return new ops."""
    before = {o.name for o in draft.spec.ops}
    hoist(draft, name)
    if tile.words is not None:
        for reader in _readers_of_words(draft, tile.words):
            _take_apart(draft, reader, tile)
    fresh = [o for o in draft.spec.ops if o.name not in before and not draft.plan.stage(o.name).kinds]
    return [o.name for o in fresh if tile.dim in o.dims]  # what has no lanes serves all tiles: it stands alone


def _readers_of_words(draft: Draft, words: Words) -> list[str]:
    """Return the sums that walk packed codes: where factors were moved out, these are the inner ones."""
    found: list[str] = []
    for op in draft.spec.ops:
        for r in op.reads:
            walked = words.along in op.reduced and any(words.along in e.dims() for e in r.index)
            if walked and r.tensor in draft.plan.prepared and dtypes.info(r.dtype).bits < 16:
                found.append(op.name)
                break
    if not found:
        raise ScheduleError(f"no sum walks packed codes along {words.along}")
    return found


def _take_apart(draft: Draft, name: str, tile: Tile) -> None:
    """Walk the fields of each word in turn, converted where they lie; a small tile has two sums for each result."""
    assert tile.words is not None
    k, fields = tile.words.along, tile.words.fields
    words = _side_by_side(draft, name, tile.words)
    draft.do("split_dim", op=name, dim=k, factor=words * fields, outer=f"{k}b", inner=f"{k}u")
    if not dtypes.is_float(draft.spec.op(name).body.dtype):  # two fields of a word meet in one sum of integers
        return
    few = tile.vectors * prod(n for _, n in tile.unroll) < 2 * CHAINS
    two = draft.relaxed and few  # which hide the latency
    if two:
        draft.do("split_dim", op=name, dim=f"{k}u", factor=fields // 2, outer=f"{k}h", inner=f"{k}u")
    scale_partner(draft, name, draft.plan.prepared, tile.words, dict(tile.unroll))
    if two:
        _parts(draft, name, (f"{k}h",), outer=True)


def _side_by_side(draft: Draft, name: str, words: Words) -> int:
    """Return how many words are walked in straight-line code: where sums have 16 bits, as many as these can hold."""
    op = draft.spec.op(name)
    codes = [r for r in op.reads if r.tensor in draft.plan.prepared]
    others = [r for r in op.reads if dtypes.is_int(r.dtype) and r not in codes]
    if words.parts != 4 or len(codes) != 1 or len(others) != 1:
        return 1
    spans = dtypes.value_range(codes[0].dtype), dtypes.value_range(others[0].dtype)
    row = dot_for(draft.target.dots, words.parts, *spans)
    if row is None or row.sums == 32:
        return 1
    most = min(row.steps(*spans), MOST_SUMMED) // (words.fields // words.parts)
    count = op.extent(words.along) // words.fields
    return next(n for n in range(max(most, 1), 0, -1) if count % n == Affine(0))


def sum_in_lanes(draft: Draft, op: Op, tile: Tile) -> list[str]:
    """Give a reduction partial sums along the tile's lanes; return the ops that compute them."""
    before = {o.name for o in draft.spec.ops}
    k, name = tile.dim, op.name
    block, lane, step = f"{k}b", f"{k}l", f"{k}u"
    keep = [lane]
    if tile.fields > 1:
        draft.do("split_dim", op=name, dim=k, factor=tile.lanes * tile.fields, outer=block, inner=f"{k}w")
        draft.do("split_dim", op=name, dim=f"{k}w", factor=tile.fields, outer=lane, inner=step)
        if prod(n for _, n in tile.unroll) < 2 * CHAINS:  # two sums a row hide the latency
            draft.do("split_dim", op=name, dim=step, factor=tile.fields // 2, outer=f"{k}h", inner=step)
            keep = [f"{k}h", lane]
        pack_partners(draft, name, tile, block, lane, step)
    else:
        step_size = CHAINS * tile.lanes
        known = op.extent(k).is_constant
        even = known and (op.extent(k).const % step_size == 0 or op.extent(k).const >= 16 * step_size)
        chains = tile.vectors if tile.vectors > 1 or tile.unroll or not even else CHAINS
        whole = lane if chains == 1 else f"{k}w"
        draft.do("split_dim", op=name, dim=k, factor=tile.lanes * chains, outer=block, inner=whole)
        if chains > 1:
            draft.do("split_dim", op=name, dim=whole, factor=tile.lanes, outer=step, inner=lane)
            keep = [step, lane]
    part = _parts(draft, name, tuple(keep))
    if len(keep) > 1:  # vectors are added before lanes
        draft.do("partial_sums", op=name, keep=(lane,))
    hoist(draft, part)
    return [o.name for o in draft.spec.ops if o.name not in before and not draft.plan.stage(o.name).kinds]


def pack_partners(draft: Draft, name: str, tile: Tile, block: str, lane: str, step: str) -> None:
    """Copy what is multiplied with fields of words into the order in which the fields come."""
    op = draft.spec.op(name)
    word = tile.lanes * tile.fields
    copies: list[str] = []
    for tensor in dict.fromkeys(r.tensor for r in op.reads):
        load = next(r for r in op.reads if r.tensor == tensor)
        inside = {block, lane, step, f"{tile.dim}h"}
        if dtypes.info(load.dtype).bits < 16 or not any(inside & e.dims() for e in load.index):
            continue
        t = draft.spec.tensor(tensor)
        last = len(t.shape) - 1
        dims = (*(f"e{i}" for i in range(last)), "b", "f", "v")
        e = Affine.dim(f"e{last}")
        source = (
            *(Affine.dim(f"e{i}") for i in range(last)),
            Affine.dim("b") * word + Affine.dim("v") * tile.fields + Affine.dim("f"),
        )
        place = (*(Affine.dim(f"e{i}") for i in range(last)), e // word, e % tile.fields, (e % word) // tile.fields)
        shape = (*t.extents[:last], (t.extents[last] + word - 1) // word, Affine(tile.fields), Affine(tile.lanes))
        where = () if t.extents[last] % word == Affine(0) else (Constraint(t.extents[last] - 1 - source[-1]),)
        (copy,) = draft.do(
            "copy_of", tensor=tensor, readers=(name,), shape=shape, dims=dims, source=source, place=place, where=where
        )
        draft.do("mark", op=copy, axis="v", kind="vector")
        draft.do("mark", op=copy, axis="f", kind="unroll")
        share_among_threads(draft, copy, list(dims[:-3]), frozenset(dims[:-3]))
        copies.append(copy)
        draft.note(f"{tensor}: copied once into the order in which fields of {tile.lanes} words meet it")
    codes = [r for r in draft.spec.op(name).reads if dtypes.info(r.dtype).bits < 16]
    if len(copies) == 1 and len(codes) == 1 and codes[0].dtype[0] == "u" and draft.spec.op(name).reduce == "+":
        point = draft.save()
        try:
            draft.do("scale_fields", op=name, codes=codes[0].tensor, packed=copies[0], dim="f", fields=tile.fields)
            draft.note(
                f"{codes[0].tensor}: fields are converted where they lie in a word; the power of two goes into the copy"
            )
        except ScheduleError as error:
            draft.restore(point)
            draft.note(f"{codes[0].tensor}: fields are shifted down ({str(error).splitlines()[0]})")


def _taps(op: Op, serial: Sequence[str], tile: Tile | None) -> list[str]:
    """Return the innermost loops around a tile that are short enough to be unrolled too, as those of a 3 x 3 window."""
    if tile is None or tile.reduced or tile.words is not None or op.where:
        return []
    size = tile.vectors * prod(n for _, n in tile.unroll)
    found: list[str] = []
    for dim in reversed(serial):
        extent = op.extent(dim)
        if not extent.is_constant or not 1 < extent.const * size <= MOST_UNROLLED:
            break
        size *= extent.const
        found.insert(0, dim)
    return found


def arrange(draft: Draft, name: str, tile: Tile | None) -> None:
    """Order a member's axes: reduced dims outside, then what is unrolled, the lanes inside."""
    op = draft.spec.op(name)
    lane = None
    axes = list(op.dims)
    if tile is not None and tile.reduced:
        lane = f"{tile.dim}l" if f"{tile.dim}l" in axes else None
    elif tile is not None and tile.dim in axes:
        draft.do("split", op=name, axis=tile.dim, factor=tile.lanes, outer=f"{tile.dim}b", inner=f"{tile.dim}v")
        axes[axes.index(tile.dim)] = f"{tile.dim}b"
        lane = f"{tile.dim}v"
        axes.append(lane)
    stem = "" if tile is None else tile.words.along if tile.words else tile.dim
    steps = (f"{stem}h", f"{stem}u") if tile is not None else ("", "")
    folds = lane is not None and lane in op.reduced
    serial = [a for a in axes if a in op.reduced and a not in (lane, *steps)]
    result = [a for a in axes if a not in op.reduced and a not in (lane, *steps)]
    if tile is not None and f"{tile.dim}b" in result:  # innermost: what is spread over lanes passes, vectors stay
        result.append(result.pop(result.index(f"{tile.dim}b")))
    middle = [a for a in axes if a in steps]
    spread = tile is not None and tile.fields == 1 and steps[1] in op.reduced and not folds
    order = [*serial, *middle, *result] if spread else [*serial, *result, *middle]
    if tile is not None and tile.words is not None:  # a field of each word in turn, all results inside
        block = [a for a in result if a == f"{tile.dim}b"]
        order = [*serial, *middle, *(a for a in result if a not in block), *block]
    draft.order(name, [*order, *([lane] if lane else [])])
    for a in [*_taps(op, serial, tile), *result, *middle]:
        if tile is not None:
            draft.do("mark", op=name, axis=a, kind="unroll")
    if lane is not None:
        draft.do("mark", op=name, axis=lane, kind="unroll" if folds else "vector")

"""How the stages of one group are laid out: tiles, lanes, threads, and where members stand."""

from __future__ import annotations

from math import prod

from polyq.affine import dtypes
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Load
from polyq.affine.spec import Op
from polyq.affine.sums import dims_of, hoistable, monomials
from polyq.schedule.draft import Draft, plain_dim, size_of, work_of
from polyq.schedule.groups import Group, Member, is_contraction
from polyq.schedule.tiles import Tile, choose_tile, packable, stride

__all__ = ["schedule_core", "schedule_plain", "schedule_rows"]

#: unrolled copies of lanes for a reduction that has no other independent sums: they hide the latency of an addition
CHAINS = 4


# ---- an assignment alone
def schedule_plain(draft: Draft, op: Op, free: frozenset[str] | None = None) -> None:
    """Lanes along the dim that the result stores contiguously, threads along an outer one.

    ``free`` are the dims that carry no dependence (all, by default).
    """
    free = frozenset(op.dims) if free is None else free
    axes = list(op.dims)
    lanes = draft.target.lanes(_widest(draft, op))
    bound = {d for c in op.where for d in c.expr.dims()}
    dim = plain_dim(op.index[-1]) if op.index else None
    in_place = dtypes.info(draft.spec.tensor(op.target).dtype).packed
    if dim is not None and dim in free and dim not in bound and lanes > 1 and size_of(op.extent(dim)) >= 2 and not in_place:
        axes = _lanes(draft, op, dim, lanes, axes)
    _threads(draft, op.name, axes, frozenset(a for a in axes if a.rstrip("bv") in free or a in free), in_place and dim)
    _store_past_cache(draft, op)


def _store_past_cache(draft: Draft, op: Op) -> None:
    """A result larger than the last cache that nothing reads again is not worth its place there."""
    t = draft.spec.tensor(op.target)
    size = prod(size_of(e) for e in t.extents) * dtypes.info(t.dtype).bits // 8
    known = all(e.is_constant for e in t.extents)
    if op.reduce is None and known and size >= draft.target.l3 // 2 and not draft.spec.readers(t.name):
        draft.do("stream", tensor=t.name)
        draft.note(f"{t.name}: its {size} bytes are stored past the cache")


def _widest(draft: Draft, op: Op) -> str:
    """The dtype that decides how many lanes there are: f32 lanes for 8 to 32 bits, 64-bit ones where they occur."""
    names = [draft.spec.tensor(op.target).dtype, *(r.dtype for r in op.reads)]
    return "f64" if any(dtypes.info(n).bits == 64 for n in names) else "f32"


def _lanes(draft: Draft, op: Op, dim: str, lanes: int, axes: list[str]) -> list[str]:
    """Split ``dim`` into vectors; where an operand is contiguous along another dim, block both for the cache."""
    block, lane = f"{dim}b", f"{dim}v"
    draft.do("split", op=op.name, axis=dim, factor=lanes, outer=block, inner=lane)
    draft.do("mark", op=op.name, axis=lane, kind="vector")
    axes = [block if a == dim else a for a in axes]
    across = _contiguous_elsewhere(op, dim)
    if across is not None and size_of(op.extent(across)) > 16:
        draft.do("split", op=op.name, axis=across, factor=16, outer=f"{across}t", inner=f"{across}i")
        axes = [f"{across}t" if a == across else a for a in axes]
        axes.append(f"{across}i")
    elif op.reduce is not None:  # reduced dims run outside of the lanes
        axes = [a for a in axes if a != block] + [block]
    draft.order(op.name, [*axes, lane])
    return axes


def _contiguous_elsewhere(op: Op, dim: str) -> str | None:
    """A dim along which an operand is contiguous that is strided along ``dim``."""
    for load in op.reads:
        if stride(load, dim) is None:
            for other in op.dims:
                if other != dim and stride(load, other) == 1:
                    return other
    return None


def _threads(draft: Draft, op: str, axes: list[str], free: frozenset[str], avoid: str | bool | None = None) -> None:
    """Divide the first axis that is long enough among threads, else the longest."""
    spec_op, stage = draft.spec.op(op), draft.plan.stage(op)
    sizes: dict[str, int] = {}
    for axis in axes:
        made = stage.split_of(axis)
        root = axis if made is None else made.axis
        while (up := stage.split_of(root)) is not None:
            root = up.axis
        if axis not in free and root not in free or root == avoid:
            continue
        if root in spec_op.reduced or stage.kind(axis) != "serial" or (made is not None and made.inner == axis):
            continue
        parts = 1
        for s in stage.splits:
            if s.outer == axis or s.axis in (axis, root) and s.outer == axis:
                parts *= s.factor
        sizes[axis] = size_of(spec_op.extent(root)) // parts
    many = 4 * draft.target.cores
    chosen = next((a for a in axes if sizes.get(a, 0) >= many), None) or max(sizes, key=lambda a: sizes[a], default=None)
    if chosen is not None and sizes[chosen] > 1:
        draft.do("mark", op=op, axis=chosen, kind="parallel")


# ---- rows: members at outer levels
def schedule_rows(draft: Draft, root: Op, group: Group) -> None:
    """Members are computed once for each point of their level; the rest of the root follows."""
    depth = {d: -sum(d in m.level for m in group.members) for d in root.dims}
    order = sorted(root.dims, key=lambda d: depth[d])
    axes = list(order)
    lanes = draft.target.lanes(_widest(draft, root))
    inner = [d for d in order if not depth[d]]
    dim = plain_dim(root.index[-1])
    if dim in inner and lanes > 1 and size_of(root.extent(dim)) >= 2:
        draft.order(root.name, axes)
        axes = _lanes(draft, root, dim, lanes, axes)
    else:
        draft.order(root.name, axes)
    outer = [d for d in order if depth[d]]
    _threads(draft, root.name, outer, frozenset(outer))
    for member in group.members:
        at = [d for d in order if d in member.level][-1]
        for name in member.ops:
            _row_member(draft, name, member, root.name, at)


def _row_member(draft: Draft, name: str, member: Member, host: str, at: str) -> None:
    op = draft.spec.op(name)
    if op.reduce is None:
        draft.do("fuse", producer=name, into=host, at=at)
        local = [d for d in op.dims if d not in member.dims(name)]
        dim = plain_dim(op.index[-1]) if op.index else None
        lanes = draft.target.lanes(_widest(draft, op))
        if dim in local and lanes > 1:
            _lanes(draft, op, dim, lanes, list(op.dims))
        return
    tile = choose_tile(draft, op)
    made = _split_lanes(draft, op, tile) if tile is not None and tile.reduced else []
    for part in [*made, name]:
        draft.do("fuse", producer=part, into=host, at=at)
        _arrange(draft, part, tile if made else None)
    if tile is not None and not tile.reduced and tile.dim not in member.dims(name):
        _lanes(draft, op, tile.dim, tile.lanes, list(op.dims))


# ---- a reduction over all dims of the root
def schedule_core(draft: Draft, root: Op, group: Group) -> None:
    """Tile the root for the heaviest reduction; all members are computed for one tile at a time."""
    member, main = _heaviest(draft, root, group)
    extra = _distribute(draft, main.name)
    main = draft.spec.op(main.name)
    tile = choose_tile(draft, main)
    if tile is None:
        _scalar_core(draft, root, group, extra)
        return
    follows = member.dims(main.name)
    panels = _panels(draft, main, tile)
    at, lane_axis = _tile_root(draft, root, main, tile, follows, bool(panels))
    draft.note(f"{main.target}: {tile}")
    secondary = [n for m in group.members for n in m.ops if n != main.name] + extra
    parts = _split_lanes(draft, main, tile) if tile.reduced else _hoist(draft, main.name)
    _place_core(draft, root, at, [*parts, main.name], tile, follows)
    for name in secondary:
        _place_secondary(draft, root, at, name, tile, lane_axis, main)
    for load in panels:
        _pack_panel(draft, root, load, tile, follows, [*parts, main.name])
    _hints(draft, [*parts, main.name])


def _panels(draft: Draft, main: Op, tile: Tile) -> list[Load]:
    """Operands that each tile of lanes walks with a large stride and that other dims of the result use again."""
    if tile.reduced:
        return []
    found: list[Load] = []
    width = tile.lanes * tile.vectors
    for load in dict.fromkeys(main.reads):
        if not packable(main, load, tile.dim):
            continue
        cells = width
        for d in {d for e in load.index for d in e.dims()} - {tile.dim}:
            cells *= size_of(main.extent(d))
        contiguous = plain_dim(load.index[-1]) == tile.dim and size_of(main.extent(tile.dim)) < 4 * width
        if not contiguous and cells * max(dtypes.info(load.dtype).bits // 8, 1) <= draft.target.l2 // 2:
            found.append(load)
    return found


def _pack_panel(draft: Draft, root: Op, load: Load, tile: Tile, follows: dict[str, str], readers: list[str]) -> None:
    """Copy the panel that one tile of lanes needs into scratch, lanes contiguous."""
    reader = next(n for n in readers if any(r.tensor == load.tensor for r in draft.spec.op(n).reads))
    t = draft.spec.tensor(load.tensor)
    at = next(k for k, e in enumerate(load.index) if plain_dim(e) == tile.dim)
    positions = [k for k in range(len(t.shape)) if k != at] + [at]
    dims = tuple(f"e{k}" for k in positions)
    before = {o.name for o in draft.spec.ops}
    draft.do(
        "copy_of", tensor=load.tensor, readers=(reader,), shape=tuple(t.extents[k] for k in positions), dims=dims,
        source=tuple(Affine.dim(f"e{k}") for k in range(len(t.shape))), place=tuple(Affine.dim(d) for d in dims),
    )  # fmt: skip
    copy = next(o.name for o in draft.spec.ops if o.name not in before)
    draft.do("fuse", producer=copy, into=root.name, at=f"{follows[tile.dim]}o")
    lane = dims[-1]
    draft.do("split", op=copy, axis=lane, factor=tile.lanes, outer=f"{lane}b", inner=f"{lane}v")
    draft.do("mark", op=copy, axis=f"{lane}v", kind="vector")
    draft.do("mark", op=copy, axis=f"{lane}b", kind="unroll")
    draft.note(f"{load.tensor}: the panel of a tile is copied into scratch, since each of its rows lies elsewhere and is read again")


def _heaviest(draft: Draft, root: Op, group: Group) -> tuple[Member, Op]:
    pairs = [(m, draft.spec.op(o)) for m in group.members for o in m.ops if draft.spec.op(o).reduce is not None and m.level == frozenset(root.dims)]
    return max(pairs, key=lambda p: (is_contraction(p[1]), work_of(p[1])))


def _distribute(draft: Draft, name: str) -> list[str]:
    """Split a sum of products where one term's inner sum does not depend on some dim of the result: it is computed once."""
    op = draft.spec.op(name)
    terms = monomials(op.body) if op.reduce == "+" and draft.relaxed else None
    if terms is None or len(terms) < 2 or op.where and not draft.relaxed:
        return []
    inner = _inner_dims(op)
    result = {d for e in op.index for d in e.dims()}
    parts = [frozenset(d for f in t.factors if dims_of(f) & set(inner) for d in dims_of(f)) & result for t in terms]
    if not inner or all(p == parts[0] for p in parts):
        return []
    before = {o.name for o in draft.spec.ops}
    draft.do("distribute", op=name)
    extra = [o.name for o in draft.spec.ops if o.name not in before]
    for other in extra:
        draft.do("factor", op=other, inner=tuple(inner))
    draft.note(f"{name}: split into {len(terms)} sums, since an inner sum over {', '.join(inner)} serves many results")
    return extra


def _inner_dims(op: Op) -> list[str]:
    """The longest run of innermost reduced dims over which some factor is constant while another varies."""
    reduced = [d for d in op.dims if d in op.reduced]
    terms = monomials(op.body) or ()
    for start in range(len(reduced)):
        inner = set(reduced[start:])
        size = 1
        for d in inner:
            size *= size_of(op.extent(d))
        varying = all(any(dims_of(f) & inner for f in t.factors) for t in terms)
        steady = any(isinstance_load(f) and not dims_of(f) & inner for t in terms for f in t.factors)
        if size >= 8 and varying and steady:
            return reduced[start:]
    return []


def isinstance_load(f: object) -> bool:
    """Whether a factor is read from memory (constants move for free)."""
    return bool(getattr(f, "index", None)) or bool(getattr(f, "args", None)) or hasattr(f, "arg")


def _hoist(draft: Draft, name: str) -> list[str]:
    """Move what is constant over the innermost reduced dims out of their sum; return the new ops."""
    op = draft.spec.op(name)
    inner = _inner_dims(op) if draft.relaxed and op.reduce == "+" else []
    if not inner or not hoistable(op, inner):
        return []
    before = {o.name for o in draft.spec.ops}
    draft.do("factor", op=name, inner=tuple(inner))
    draft.note(f"{name}: factors that are constant over {', '.join(inner)} leave the inner sum")
    return [o.name for o in draft.spec.ops if o.name not in before]


def _split_lanes(draft: Draft, op: Op, tile: Tile) -> list[str]:
    """Give a reduction partial sums along the tile's lanes; return the ops that compute them."""
    before = {o.name for o in draft.spec.ops}
    k, name = tile.dim, op.name
    block, lane, step = f"{k}b", f"{k}l", f"{k}u"
    keep = [lane]
    if tile.fields > 1:
        draft.do("split_dim", op=name, dim=k, factor=tile.lanes * tile.fields, outer=block, inner=f"{k}w")
        draft.do("split_dim", op=name, dim=f"{k}w", factor=tile.fields, outer=lane, inner=step)
        _pack_partners(draft, name, tile, block, lane, step)
    else:
        long = op.extent(k).is_constant and op.extent(k).const >= CHAINS * tile.lanes
        chains = max(CHAINS if long and not tile.unroll else 1, tile.vectors)
        draft.do("split_dim", op=name, dim=k, factor=tile.lanes * chains, outer=block, inner=f"{k}w")
        draft.do("split_dim", op=name, dim=f"{k}w", factor=tile.lanes, outer=step, inner=lane)
        keep = [step, lane]
    draft.do("partial_sums", op=name, keep=tuple(keep))
    part = next(o.name for o in draft.spec.ops if o.name not in before and o.reduce is not None)
    _hoist(draft, part)
    return [o.name for o in draft.spec.ops if o.name not in before and not draft.plan.stage(o.name).kinds]


def _pack_partners(draft: Draft, name: str, tile: Tile, block: str, lane: str, step: str) -> None:
    """Copy what is multiplied with fields of words into the order in which the fields come."""
    op = draft.spec.op(name)
    word = tile.lanes * tile.fields
    copies: list[str] = []
    for tensor in dict.fromkeys(r.tensor for r in op.reads):
        load = next(r for r in op.reads if r.tensor == tensor)
        if dtypes.info(load.dtype).bits < 16 or not any({block, lane, step} & e.dims() for e in load.index):
            continue
        t = draft.spec.tensor(tensor)
        last = len(t.shape) - 1
        dims = tuple(f"e{i}" for i in range(last)) + ("b", "f", "v")
        e = Affine.dim(f"e{last}")
        source = (*(Affine.dim(f"e{i}") for i in range(last)), Affine.dim("b") * word + Affine.dim("v") * tile.fields + Affine.dim("f"))
        place = (*(Affine.dim(f"e{i}") for i in range(last)), e // word, e % tile.fields, (e % word) // tile.fields)
        shape = (*t.extents[:last], (t.extents[last] + word - 1) // word, Affine(tile.fields), Affine(tile.lanes))
        where = () if t.extents[last] % word == Affine(0) else (Constraint(t.extents[last] - 1 - source[-1]),)
        before = {o.name for o in draft.spec.ops}
        draft.do("copy_of", tensor=tensor, readers=(name,), shape=shape, dims=dims, source=source, place=place, where=where)
        copy = next(o.name for o in draft.spec.ops if o.name not in before)
        draft.do("mark", op=copy, axis="v", kind="vector")
        draft.do("mark", op=copy, axis="f", kind="unroll")
        _threads(draft, copy, list(dims[:-3]), frozenset(dims[:-3]))
        copies.append(copy)
        draft.note(f"{tensor}: copied once into the order in which fields of {tile.lanes} words meet it")
    codes = [r for r in draft.spec.op(name).reads if dtypes.info(r.dtype).bits < 16]
    if len(copies) == 1 and len(codes) == 1 and codes[0].dtype[0] == "u" and draft.spec.op(name).reduce == "+":
        point = draft.save()
        try:
            draft.do("scale_fields", op=name, codes=codes[0].tensor, packed=copies[0], dim=step, fields=tile.fields)
            draft.note(f"{codes[0].tensor}: fields are converted where they lie in a word; the power of two goes into the copy")
        except ScheduleError:
            draft.restore(point)


def _tile_root(draft: Draft, root: Op, main: Op, tile: Tile, follows: dict[str, str], panels: bool) -> tuple[str, str | None]:
    """Split the root's dims; return the axis inside which members stand, and the axis of the root's lanes."""
    unroll = {follows[d]: n for d, n in tile.unroll}
    lanes_dim = None if tile.reduced else follows[tile.dim]
    weight = {follows[d]: sum(work_of_load(draft, r) for r in main.reads if any(d in e.dims() for e in r.index)) for d in main.dims if d in follows}
    outer, inner = [], []
    lane_axis: str | None = None
    if panels and lanes_dim is not None:  # a panel serves all tiles inside its loop
        everywhere = {d for d in follows.values() if all(any(own in e.dims() for e in r.index) for r in main.reads for own in [_own(follows, d)])}
        weight = {d: 2 if d in everywhere and d != lanes_dim else int(d == lanes_dim) for d in root.dims}
    for d in sorted(root.dims, key=lambda d: -weight.get(d, 0)):
        if d == lanes_dim:
            draft.do("split", op=root.name, axis=d, factor=tile.lanes, outer=f"{d}b", inner=f"{d}v")
            draft.do("mark", op=root.name, axis=f"{d}v", kind="vector")
            draft.do("split", op=root.name, axis=f"{d}b", factor=tile.vectors, outer=f"{d}o", inner=f"{d}u")
            draft.do("mark", op=root.name, axis=f"{d}u", kind="unroll")
            outer.append(f"{d}o")
            inner.append(f"{d}u")
            lane_axis = f"{d}v"
        elif d in unroll:
            draft.do("split", op=root.name, axis=d, factor=unroll[d], outer=f"{d}o", inner=f"{d}i")
            draft.do("mark", op=root.name, axis=f"{d}i", kind="unroll")
            outer.append(f"{d}o")
            inner.append(f"{d}i")
        else:
            outer.append(d)
    draft.order(root.name, [*outer, *inner, *([lane_axis] if lane_axis else [])])
    _threads(draft, root.name, outer, frozenset(outer))
    return outer[-1], lane_axis


def _own(follows: dict[str, str], dim: str) -> str:
    """The dim of the reduction that follows ``dim`` of the root."""
    return next(own for own, d in follows.items() if d == dim)


def work_of_load(draft: Draft, load: Load) -> int:
    """Return the cells of the tensor that a load reads from."""
    total = 1
    for e in draft.spec.tensor(load.tensor).extents:
        total *= size_of(e)
    return total


def _place_core(draft: Draft, root: Op, at: str, names: list[str], tile: Tile, follows: dict[str, str]) -> None:
    """Put the main reduction and its parts inside the tile; an inner sum stands inside the loop that uses it."""
    for name in names:
        host, axis = _host(draft, root, at, name, names)
        draft.do("fuse", producer=name, into=host, at=axis)
        _arrange(draft, name, tile)


def _host(draft: Draft, root: Op, at: str, name: str, names: list[str]) -> tuple[str, str]:
    """An inner sum that keeps reduced dims of its reader stands at the innermost of these; all else at the tile."""
    target = draft.spec.op(name).target
    for reader in names:
        op = draft.spec.op(reader)
        if op.target != target and any(r.tensor == target for r in op.reads):
            outer = [d for d in op.reduced if any(d in e.dims() for r in op.reads if r.tensor == target for e in r.index)]
            serial = [d for d in outer if draft.plan.stage(reader).kind(d) == "serial" and not d.endswith(("l", "u"))]
            if serial:
                return reader, serial[-1]
    return root.name, at


def _arrange(draft: Draft, name: str, tile: Tile | None) -> None:
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
    step = f"{tile.dim}u" if tile is not None else None
    folds = lane is not None and lane in op.reduced
    serial = [a for a in axes if a in op.reduced and a not in (lane, step)]
    result = [a for a in axes if a not in op.reduced and a not in (lane, step)]
    middle = [a for a in axes if a == step]
    spread = tile is not None and tile.fields == 1 and step in op.reduced and not folds
    order = [*serial, *middle, *result] if spread else [*serial, *result, *middle]
    draft.order(name, [*order, *([lane] if lane else [])])
    for a in [*result, *middle]:
        if tile is not None:
            draft.do("mark", op=name, axis=a, kind="unroll")
    if lane is not None:
        draft.do("mark", op=name, axis=lane, kind="unroll" if folds else "vector")


def _place_secondary(draft: Draft, root: Op, at: str, name: str, tile: Tile, lane_axis: str | None, main: Op) -> None:
    """Fills, epilogues and small sums of the same tile."""
    op = draft.spec.op(name)
    parts: list[str] = []
    own: Tile | None = None if tile.reduced else Tile(_lane_dim(op, main, tile), False, tile.lanes, tile.vectors, (), 1, 0)
    if op.reduce is not None and tile.reduced:
        own = choose_tile(draft, op)
        if own is not None and own.reduced:
            own = Tile(own.dim, True, own.lanes, 1, tile.unroll, 1, own.cost)
            parts = _split_lanes(draft, op, own)
        else:
            own = None
    for part in [*parts, name]:
        draft.do("fuse", producer=part, into=root.name, at=at)
        _arrange(draft, part, own if own is not None else Tile("", True, tile.lanes, 1, (), 1, 0))


def _lane_dim(op: Op, main: Op, tile: Tile) -> str:
    """The dim of ``op`` at the place where the main reduction's lanes are."""
    position = next(i for i, e in enumerate(main.index) if plain_dim(e) == tile.dim)
    return (plain_dim(op.index[position]) or "") if position < len(op.index) and op.target == main.target else tile.dim


def _scalar_core(draft: Draft, root: Op, group: Group, extra: list[str]) -> None:
    """No lanes: members stand inside the root's innermost axis."""
    draft.order(root.name, list(root.dims))
    _threads(draft, root.name, list(root.dims), frozenset(root.dims))
    for name in [*(n for m in group.members for n in m.ops), *extra]:
        if root.dims:
            draft.do("fuse", producer=name, into=root.name, at=root.dims[-1])


def _hints(draft: Draft, names: list[str]) -> None:
    """Ask early for the operand that is streamed: the largest input of the tile's sums, if it exceeds the last cache."""
    inputs: dict[str, int] = {}
    for op in map(draft.spec.op, names):
        for r in op.reads:
            again = [size_of(op.extent(d)) for d in op.dims if op.extent(d).is_constant and all(d not in e.dims() for e in r.index)]
            if r.tensor in draft.spec.input_names and max(again, default=1) < 8:
                inputs[r.tensor] = work_of_load(draft, r) * dtypes.info(r.dtype).bits // 8
    if not inputs:
        return
    tensor = max(inputs, key=lambda t: inputs[t])
    if inputs[tensor] >= draft.target.l2:
        draft.do("prefetch", tensor=tensor, ahead=1024)
        draft.note(f"{tensor}: {inputs[tensor]} bytes are streamed; lines are asked for 1024 bytes ahead")

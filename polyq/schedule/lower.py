"""From a plan to a LoopNest.

Loops are opened one after another; at each the producers placed there are emitted first, for the region that the rest
of the body needs. An axis whose split leaves a remainder is peeled: full tiles, then what is left (single iterations
for unrolled axes, a masked vector for vector axes), so that the full tile's extents are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polyq.affine.dtypes import info
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.rewrite import moved_dim
from polyq.affine.scalar import Const, Index, Load, Scalar, map_scalar, substitute_dims
from polyq.affine.spec import Op
from polyq.schedule.concrete import Local, Walk, active, concrete, is_cut, peels, ragged, whole
from polyq.schedule.frame import Frame, Placed, holds, loop_bounds, needs_guard
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Scope
from polyq.schedule.naive import tensor_buffers
from polyq.schedule.pieces import pieces_of
from polyq.schedule.regions import Box, Reader, Region, box_of, need_constant, region_of, whole_vectors
from polyq.schedule.stages import Plan
from polyq.schedule.tidy import tidy

__all__ = ["SCRATCH_BUDGET", "lower"]

#: bytes of scratch that one thread may use
SCRATCH_BUDGET = 16 << 20


def lower(plan: Plan) -> LoopNest:
    """Return the loop nest of ``plan``; raise :class:`ScheduleError` where scratch has no constant size."""
    return _Lowering(plan).nest()


class _Lowering:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.spec = plan, plan.spec
        self.names = {*plan.spec.params, *(t.name for t in plan.spec.all_tensors)}
        self.stages = {s.op: s for s in plan.stages}
        self.made: dict[tuple[object, ...], tuple[Region, Local]] = {}
        self.domains = {op.name: op.domain for op in plan.spec.ops}
        self.local_tensors: set[str] = set()
        self.buffers: set[str] = {t.name for t in plan.spec.all_tensors}

    def nest(self) -> LoopNest:
        body: list[Loop | Guard | Scope | Assign] = []
        kept = self.plan.prepared
        within = {name: group[0] for group in self.plan.shared for name in group}
        for op in sorted(self.spec.ops, key=lambda op: op.target not in kept):  # what is prepared comes first
            if self.stages[op.name].at is None:
                body += self._stage(op, Frame(), Region(tuple(Affine(0) for _ in op.dims), op.extents))
        buffers = tuple(
            replace(b, kind="prepared", within=within.get(b.name, "")) if b.name in kept else b
            for b in tensor_buffers(self.spec)
            if b.name not in self.local_tensors
        )
        return LoopNest(self.spec.name, self.spec.params, buffers, tidy(tuple(body), {}))

    # ---- one stage
    def _fresh(self, stem: str, taken: set[str]) -> str:
        candidate, count = stem, 1
        while candidate in taken:
            count += 1
            candidate = f"{stem}_{count}"
        taken.add(candidate)
        return candidate

    def _local(self, walk: Walk) -> Local:
        """Make a stage concrete; the same for the same place, since each level of the walk asks for it."""
        key = (walk.op.name, id(walk.region), walk.tails, walk.pieces, walk.names)
        if key not in self.made:
            made = concrete(walk, self.stages[walk.op.name], self.domains[walk.op.name])
            self.made[key] = walk.region, made  # the region is held, so that its id stays its own
        return self.made[key][1]

    def _stage(self, op: Op, frame: Frame, region: Region) -> Block:
        return self._axis(Walk(op, region), frame)

    def _axis(self, walk: Walk, frame: Frame) -> Block:
        """Emit the axes of a stage from the walk's depth on."""
        local = self._local(walk)
        if walk.depth == len(local.axes):
            return self._statement(walk, local, frame)
        axis = local.axes[walk.depth]
        split = next((s for s in local.stage.splits if s.outer == axis), None)
        if split and not walk.settled(axis) and peels(walk.op, local, split):
            count = whole(local.stage, split.axis, local.extents)
            if split.axis not in walk.op.reduced and is_cut(local.stage, split) and count % split.factor != Affine(0):
                pieces = pieces_of(count, split.factor)
                return tuple(node for p in pieces for node in self._axis(walk.piece(axis, p), frame))
            blocks = self._axis(walk.main(axis), frame)
            exact = count % split.factor == Affine(0) and count == local.extents[split.axis]
            return blocks if exact else blocks + self._axis(walk.tail(axis), frame)
        cut = f"{axis}#"
        a_loop = local.stage.kind(axis) in ("serial", "parallel")
        if a_loop and not walk.settled(cut) and len(ragged(walk, local)) == 1:
            return self._axis(walk.main(cut), frame) + self._axis(walk.tail(cut), frame)
        return self._loop(walk, frame)

    def _loop(self, walk: Walk, frame: Frame) -> Block:
        op, axis = walk.op, self._local(walk).axes[walk.depth]
        walk = replace(walk, names=(*walk.names, (axis, self._fresh(axis, self.names))))
        local = self._local(walk)
        constraints = active(walk, local)
        var = local.vars[axis]
        later = {local.vars[a] for a in local.axes[walk.depth + 1 :]}
        low, high = loop_bounds(var, constraints, later, {**local.ranges(), **frame.ranges}, frame)
        gaps = ((h - lo).bounds(frame.ranges) for h in high for lo in low)
        if any(gap is not None and gap[1] <= 0 for gap in gaps):
            return ()  # a remainder that never has an iteration
        kind = local.stage.kind(axis)
        size = local.extents[axis]
        # the most iterations stay in sight where there may be fewer
        if size not in high and (kind == "vector" or (kind == "unroll" and any(not e.is_constant for e in high))):
            high = (size, *high)
        if kind == "unroll" and axis not in local.first and not any(e.is_constant for e in low):
            low = (Affine(0), *low)
        if kind == "parallel" and frame.threaded is not None:
            raise ScheduleError(
                f"{op.name}: the axis {axis!r} is parallel inside {frame.threaded}, which is parallel already; "
                "make one of the two serial"
            )
        inner = self._open(frame, var, low, high)
        if kind == "parallel":
            inner = replace(inner, threaded=f"the axis {axis!r} of {op.name}")
        body = self._inside(walk, local, inner)
        return (Loop(var, low, high, kind, body),)

    def _open(self, frame: Frame, var: str, low: tuple[Affine, ...], high: tuple[Affine, ...]) -> Frame:
        ranges = dict(frame.ranges)
        lows = [b for e in low if (b := e.bounds(frame.ranges)) is not None]
        highs = [b for e in high if (b := e.bounds(frame.ranges)) is not None]
        if lows and highs:
            ranges[var] = (max(b[0] for b in lows), min(b[1] for b in highs) - 1)
        v = Affine.dim(var)
        added = (*(Constraint(v - e) for e in low), *(Constraint(e - 1 - v) for e in high))
        return replace(frame, open=(*frame.open, var), constraints=(*frame.constraints, *added), ranges=ranges)

    # ---- producers
    def _inside(self, walk: Walk, local: Local, frame: Frame) -> Block:
        """Emit what stands in one iteration: scratch, producers placed here, then the next axis."""
        op, following = walk.op, replace(walk, depth=walk.depth + 1)
        axis = self._original_axis(local, walk.depth)
        here = [c for c in self.plan.children(op.name) if (at := self.stages[c.name].at) is not None and at[1] in axis]
        if not here:
            return self._axis(following, frame)
        regions, boxes = self._regions(op, local, frame)
        buffers: list[Buffer] = []
        for child in here:
            constant = all(e.is_constant for e in boxes[child.name].extent)
            if constant and child.target not in frame.scratch and self._is_private(child.target, op.name):
                frame = self._scratch(child.target, boxes[child.name], frame, op.name, axis[0], buffers)
        body: list[Loop | Guard | Scope | Assign] = []
        for child in here:
            body += self._stage(child, frame, regions[child.name])
        body += self._axis(following, frame)
        return (Scope(tuple(buffers), tuple(body)),) if buffers else tuple(body)

    def _original_axis(self, local: Local, depth: int) -> tuple[str, ...]:
        """The axis at ``depth``, and inner axes that fell away with it in a remainder of single iterations."""
        axis = local.axes[depth]
        return (axis, *(s.inner for s in local.stage.splits if s.outer == axis and s.inner not in local.axes))

    def _is_private(self, tensor: str, host: str) -> bool:
        """Whether every op that touches ``tensor`` stands inside the stage of ``host``, and it is no result."""
        if tensor not in {t.name for t in self.spec.temporaries}:
            return False
        inside = self._subtree(host)
        touching = {o.name for o in self.spec.ops if o.target == tensor or any(r.tensor == tensor for r in o.reads)}
        return touching <= inside

    def _subtree(self, op: str) -> set[str]:
        return {op}.union(*(self._subtree(c.name) for c in self.plan.children(op)))

    def _scratch(self, tensor: str, box: Box, frame: Frame, host: str, axis: str, buffers: list[Buffer]) -> Frame:
        shape = need_constant(box, tensor, host, axis)
        t = self.spec.tensor(tensor)
        name = tensor if tensor not in self.local_tensors else self._fresh(tensor, self.buffers)
        self.local_tensors.add(tensor)
        size = prod(shape) * max(info(t.dtype).bits, 8) // 8
        if size > SCRATCH_BUDGET:
            raise ScheduleError(
                f"scratch for {tensor} inside {host} at {axis}: its tile of {' x '.join(map(str, shape))} {t.dtype} "
                f"takes {size} bytes, {SCRATCH_BUDGET} are allowed; one {-(-size // SCRATCH_BUDGET)} times smaller "
                f"fits: split a longer axis of {host}, or place {tensor} further in"
            )
        kept = tuple(k for k, e in enumerate(shape) if e != 1)  # a dim of extent 1 is no dim of the tile
        buffers.append(Buffer(name, t.dtype, tuple(Affine(shape[k]) for k in kept), "scratch"))
        return replace(frame, scratch={**frame.scratch, tensor: Placed(name, box.base, kept)})

    def _regions(self, op: Op, local: Local, frame: Frame) -> tuple[dict[str, Region], dict[str, Box]]:
        regions: dict[str, Region] = {}
        boxes: dict[str, Box] = {}
        self._collect(op, local, frame.open, frame.ranges, regions, boxes)
        return regions, boxes

    def _collect(
        self,
        op: Op,
        local: Local,
        opened: tuple[str, ...],
        ranges: Mapping[str, tuple[int, int]],
        regions: dict[str, Region],
        boxes: dict[str, Box],
    ) -> list[Reader]:
        """Walk the producers under ``op`` backwards, so that every reader's region is known before what it reads."""
        readers = [_reader(op, local)]
        for child in reversed(self.plan.children(op.name)):
            at = self.stages[child.name].at
            assert at is not None
            visible = frozenset((*opened, *self._vars_up_to(local, at[1])))
            known = {**ranges, **{v: r for v, r in local.ranges().items() if r is not None}}
            others = [r for r in readers if r.op != child.name]
            box = box_of(child.target, others, visible, known, self.spec.tensor(child.target).extents)
            box = whole_vectors(box, self.spec.tensor(child.target).extents, self._lanes(child.target))
            regions[child.name], boxes[child.name] = region_of(child, box), box
            inner = self._local(Walk(child, regions[child.name]))
            # seen from here, the loops of this stage that the reader stands in may be closed as well
            deeper = self._collect(child, inner, tuple(visible), known, regions, boxes)
            readers += [replace(r, ranges=(*r.ranges, *local.ranges().items())) for r in deeper]
        return readers

    def _lanes(self, tensor: str) -> dict[int, int]:
        """The dims of a tensor along which all that writes it goes by vectors, with the lanes of these."""
        found: list[dict[int, int]] = []
        for op in self.spec.writers(tensor):
            stage = self.stages[op.name]
            lanes = {s.axis: s.factor for s in stage.splits if stage.kind(s.inner) == "vector"}
            found.append({k: lanes[d] for k, e in enumerate(op.index) if (d := moved_dim(e)) in lanes})
        return found[0] if all(f == found[0] for f in found) else {}

    def _vars_up_to(self, local: Local, axis: str) -> tuple[str, ...]:
        out: list[str] = []
        for position, a in enumerate(local.axes):
            out.append(local.vars[a])
            if axis in self._original_axis(local, position):
                return tuple(out)
        raise ScheduleError(
            f"{local.stage.op}: a producer stands at the axis {axis!r}, which is not there; "
            f"it has {', '.join(local.axes)}"
        )

    # ---- statements
    def _statement(self, walk: Walk, local: Local, frame: Frame) -> Block:
        op = walk.op

        def access(tensor: str, index: tuple[Affine, ...]) -> tuple[str, tuple[Affine, ...]]:
            if tensor in frame.scratch:
                tile = frame.scratch[tensor]
                return tile.buffer, tuple((index[k] - tile.base[k]).simplify(frame.ranges) for k in tile.kept)
            return tensor, tuple(e.simplify(frame.ranges) for e in index)

        def leaf(node: Const | Index | Load) -> Scalar:
            if not isinstance(node, Load):
                return node
            name, index = access(node.tensor, node.index)
            return replace(node, tensor=name, index=index)

        dims = dict(local.dims)
        value = map_scalar(substitute_dims(op.body, dims), leaf)
        target, index = access(op.target, tuple(e.substitute(dims) for e in op.index))
        assign = Assign(op.name, tuple(dims[d] for d in op.dims), target, index, value, op.reduce)
        # loop bounds hold neither floors of loop variables nor what is about parameters alone
        kept = (c for c in active(walk, local) if needs_guard(c) or not c.expr.dims())
        left = [c for c in kept if not holds(c, frame.ranges)]
        return (Guard(tuple(left), (assign,)),) if left else (assign,)


def _reader(op: Op, local: Local) -> Reader:
    accesses = [(r.tensor, tuple(e.substitute(local.dims) for e in r.index)) for r in op.reads]
    if op.reduce is not None:
        accesses.append((op.target, tuple(e.substitute(local.dims) for e in op.index)))
    return Reader(op.name, tuple(accesses), tuple(local.ranges().items()))

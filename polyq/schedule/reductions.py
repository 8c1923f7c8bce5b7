"""Whether a reduction whose order is free still adds every term exactly once.

In a nest, every update of a free reduction continues at most one other update of the same op (the *link*), or starts
from what the cell held before (a *head*). Links form paths, since each update has at most one predecessor and must
have at most one successor. A group of updates (one target cell, and where the reduction is computed several times, one
of its copies) is right if it has one head, hence is one path, and holds each update of its cell exactly once.

Copies are told apart by whatever all links keep: the common loop variables and the subscripts of the storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyq.affine.expr import Affine, Constraint
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Spec
from polyq.schedule.dataflow import Flow, Original, links, value_id
from polyq.schedule.readback import Program, Statement
from polyq.schedule.witness import Instance, Violation, instance_of, mark

__all__ = ["check_reductions"]

Links = dict[tuple[int, int], Relation]


def check_reductions(spec: Spec, program: Program, flow: Flow, original: Original) -> Iterator[Violation]:
    """Yield what is wrong with the paths of updates of every free reduction."""
    for op in (o for o in spec.ops if o.name in original.free):
        own = [i for i, s in enumerate(program.statements) if s.assign.op == op.name]
        edges = links(program, flow, op.name)
        for members in _components(own, edges):
            inner = {k: r for k, r in edges.items() if k[0] in members}
            yield from _check(_Component(spec, program, op.name, members, inner, original.domains[op.name]))


def _components(own: list[int], edges: Links) -> list[list[int]]:
    """Return the statements of one op, grouped by links."""
    groups = [{i} for i in own]
    for a, b in edges:
        joined = [g for g in groups if a in g or b in g]
        groups = [g for g in groups if g not in joined] + [set[int]().union(*joined)]
    return sorted(sorted(g) for g in groups)


@dataclass(frozen=True, slots=True, eq=False)
class _Component:
    """The statements of one reduction that hang together by links."""

    spec: Spec
    program: Program
    op: str
    members: list[int]
    links: Links
    domain: Domain

    def statement(self, position: int) -> Statement:
        return self.program.statements[position]

    def instance(self, position: int, loops: dict[str, int], params: dict[str, int]) -> Instance:
        return instance_of(self.spec, self.statement(position), loops, params)

    def violation(self, text: str, instances: tuple[Instance, ...], params: dict[str, int], position: int) -> Violation:
        nest = mark(self.program.nest, statement=position + 1)
        return Violation("reduction", f"{self.op}: {text}", instances, tuple(params.items()), nest=nest)


def _check(c: _Component) -> Iterator[Violation]:
    found = [*_one_successor(c), *_one_cell(c)]
    if found:
        yield from found
        return
    # most reductions are computed once: then the target cell alone names the group
    keys = {i: value_id(c.spec, c.statement(i), as_total=True) for i in c.members}
    if _repeated(c, keys) is not None:
        keys = _copy_keys(c, keys)
        twice = _repeated(c, keys)
        if twice is not None:
            yield twice
            return
    yield from _one_head(c, keys)
    yield from _complete(c, keys)


def _one_successor(c: _Component) -> Iterator[Violation]:
    """No update is continued twice."""
    for (a, b), link in c.links.items():
        others = [r for (x, y), r in c.links.items() if x == a and y > b]
        clash = next((r for r in others if not r.domain().intersect(link.domain()).is_empty()), None)
        if clash is None and link.is_single_valued():
            continue
        pair = link.sample() if clash is None else link.intersect_domain(clash.domain()).sample()
        assert pair is not None
        source, _, params = pair
        yield c.violation("one update is continued by two", (c.instance(a, source, params),), params, a)


def _same(a: tuple[Affine, ...], b: tuple[Affine, ...], link: Relation) -> Relation:
    """The pairs over the dims of ``link`` at which ``a`` (of its in dims) equals ``b`` (of its out dims)."""
    ins, outs = [f"a{i}" for i in range(len(link.in_dims))], [f"b{i}" for i in range(len(link.out_dims))]
    left = {d: Affine.dim(n) for d, n in zip(link.in_dims, ins, strict=True)}
    right = {d: Affine.dim(n) for d, n in zip(link.out_dims, outs, strict=True)}
    equal = [Constraint(x.substitute(left) - y.substitute(right), True) for x, y in zip(a, b, strict=True)]
    return Relation.make(ins, outs, equal)


def _one_cell(c: _Component) -> Iterator[Violation]:
    """An update continues one of the same target cell."""
    for (a, b), link in c.links.items():
        ids = [value_id(c.spec, c.statement(i), as_total=True) for i in (a, b)]
        pair = link.subtract(_same(ids[0], ids[1], link)).sample()
        if pair is not None:
            source, sink, params = pair
            both = (c.instance(a, source, params), c.instance(b, sink, params))
            yield c.violation("an update continues the sum of another cell", both, params, b)


def _copy_keys(c: _Component, cells: dict[int, tuple[Affine, ...]]) -> dict[int, tuple[Affine, ...]]:
    """Return, for each statement, what names its group: the target cell, and all that the links keep."""
    statements = [c.statement(i) for i in c.members]
    common = [v for v in statements[0].domain.dims if all(v in s.domain.dims for s in statements)]
    candidates: list[dict[int, Affine]] = [dict.fromkeys(c.members, Affine.dim(v)) for v in common]
    if len({s.write.array for s in statements}) == 1:
        candidates += [
            {i: c.statement(i).write.index[axis] for i in c.members} for axis in range(len(statements[0].write.index))
        ]
    kept = [
        k for k in candidates if all(link.is_subset(_same((k[a],), (k[b],), link)) for (a, b), link in c.links.items())
    ]
    return {i: (*(k[i] for k in kept), *cells[i]) for i in c.members}


def _keyed(c: _Component, keys: dict[int, tuple[Affine, ...]], position: int) -> Relation:
    """From the points of a statement to (key, original instance)."""
    s = c.statement(position)
    exprs = (*keys[position], *s.assign.instance)
    return Relation.function(s.domain, exprs, [f"k{i}" for i in range(len(exprs))])


def _repeated(c: _Component, keys: dict[int, tuple[Affine, ...]]) -> Violation | None:
    """Return an update that occurs twice in one group."""
    maps = {i: _keyed(c, keys, i) for i in c.members}
    return _meeting(c, maps, "one update is done twice")


def _meeting(c: _Component, maps: dict[int, Relation], what: str) -> Violation | None:
    """Return two instances that ``maps`` sends to one point."""
    for a in c.members:
        for b in (b for b in c.members if b >= a):
            pairs = maps[a].compose(maps[b].inverse())
            if a == b:
                if maps[a].is_injective():
                    continue
                dims = tuple(Affine.dim(d) for d in pairs.in_dims)
                pairs = pairs.subtract(_same(dims, dims, pairs))
            pair = pairs.sample()
            if pair is not None:
                both = (c.instance(a, pair[0], pair[2]), c.instance(b, pair[1], pair[2]))
                return c.violation(what, both, pair[2], b)
    return None


def _heads(c: _Component, position: int) -> Domain:
    """The updates of a statement that continue no other."""
    heads = c.statement(position).domain
    for (_, b), link in c.links.items():
        if b == position:
            heads = heads.subtract(link.range().renamed(dict(zip(link.out_dims, heads.dims, strict=True))))
    return heads


def _one_head(c: _Component, keys: dict[int, tuple[Affine, ...]]) -> Iterator[Violation]:
    """A group is one path: only one of its updates starts from what the cell held before."""
    names = [f"k{i}" for i in range(len(keys[c.members[0]]))]
    maps = {i: Relation.function(_heads(c, i), keys[i], names) for i in c.members}
    found = _meeting(c, maps, "the sum of one cell falls apart: two updates start afresh")
    if found is not None:
        yield found


def _complete(c: _Component, keys: dict[int, tuple[Affine, ...]]) -> Iterator[Violation]:
    """Every group holds all updates of its cell."""
    done: Domain | None = None
    groups: Domain | None = None
    count = len(keys[c.members[0]])
    dims = [f"k{i}" for i in range(count)]
    for i in c.members:
        image = _keyed(c, keys, i).range()
        done = image if done is None else done.union(image)
    assert done is not None
    groups = done.project_onto(dims)
    op = c.spec.op(c.op)
    instance = [d for d in done.dims if d not in dims]
    to_name = {d: Affine.dim(n) for d, n in zip(op.dims, instance, strict=True)}
    cell = [e.substitute(to_name) for e in op.index]
    wanted = groups.add_dims(instance).constrain(
        Constraint(Affine.dim(k) - e, True) for k, e in zip(dims[count - len(cell) :], cell, strict=True)
    )
    space = c.domain.preimage([Affine.dim(n) for n in instance], wanted.dims)
    left = wanted.intersect(space).subtract(done)
    point = left.sample()
    if point is not None:
        values = tuple(zip(op.dims, (point[0][n] for n in instance), strict=True))
        yield c.violation("an update is left out", (Instance(c.op, values),), point[1], c.members[0])

"""Where the values of a program come from, and whether a nest's values come from the same places.

A *value* is an instance of an op, a cell of an input, or, for a reduction whose order is free, the finished total of
one target cell. :func:`original_flow` says for every read of a spec which value it gets; :func:`compare` computes the
same afresh for a nest, and reports every read that gets another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from polyq.affine import dtypes
from polyq.affine.expr import Affine, Constraint
from polyq.affine.flow import Access, value_flow
from polyq.affine.sets import Domain, Relation
from polyq.affine.spec import Op, Spec
from polyq.schedule.loopnest import Buffer, LoopNest
from polyq.schedule.naive import naive_nest
from polyq.schedule.readback import Program, Statement, read_back
from polyq.schedule.witness import Instance, Violation, instance_of, mark

__all__ = [
    "Flow", "Original", "Reader", "compare", "flow_of", "forget", "is_exact", "links", "nest_flow", "original_flow",
    "original_program", "value_id",
]  # fmt: skip

#: who reads: a statement and its operand, or ("output", tensor)
Reader = tuple[int | str, int | str]


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The value flow of one program.

    ``edges`` holds, for (writer, reader), the pairs of points; a writer is the position of a statement or the name of
    a tensor that comes in, a reader a pair of statement and operand, or ``("output", tensor)`` for the final content.
    ``unwritten`` holds the points of readers that nothing was written for.
    """

    edges: dict[tuple[int | str, Reader], Relation]
    unwritten: dict[Reader, Domain]


@dataclass(frozen=True, slots=True, eq=False)
class Original:
    """What a spec says.

    ``values`` holds, for (op or tensor that comes in, reading op or ``output``, operand), the pairs of values; ``free``
    the reductions whose order may change; ``unwritten`` the output cells that nothing is written to.
    """

    values: dict[tuple[str, str, int | str], Relation]
    free: frozenset[str]
    domains: dict[str, Domain]
    unwritten: dict[str, Domain]


def flow_of(program: Program) -> Flow:
    """Return where every read, and the final content of every output, comes from; copies are looked through."""
    readers: list[tuple[Reader, Access]] = []
    writers: list[tuple[int | str, Access]] = []
    for position, s in enumerate(program.statements):
        readers += [((position, operand), a) for operand, a in zip(s.operands, s.reads, strict=True)]
        writers.append((position, s.write))
    depth = len(program.statements[0].time) if program.statements else 1
    written = {a.array for _, a in writers}
    buffers = program.nest.buffers
    constant = {b.name: _whole(b, -1, depth) for b in buffers if b.kind == "input" and b.name not in written}
    for buffer in buffers:
        if buffer.kind in ("input", "inout") and buffer.name not in constant:
            writers.append((buffer.name, _whole(buffer, -1, depth)))
        if buffer.kind in ("output", "inout"):
            readers.append((("output", buffer.name), _whole(buffer, len(program.nest.body), depth)))
    searched = [(reader, a) for reader, a in readers if a.array not in constant]
    found, unwritten = value_flow([a for _, a in searched], [a for _, a in writers])
    edges = {(writers[w][0], searched[r][0]): relation for (w, r), relation in found.items()}
    for reader, a in readers:
        if a.array in constant:  # every read gets what came in
            cells = constant[a.array].domain
            edges[a.array, reader] = Relation.function(a.domain, a.index, cells.dims).inverse()
    copies = [i for i, s in enumerate(program.statements) if not s.assign.op]
    return Flow(_without_copies(edges, copies), {searched[r][0]: d for r, d in unwritten.items()})


def _whole(buffer: Buffer, time: int, depth: int) -> Access:
    """All cells of a buffer, before (time -1) or after the program."""
    dims = tuple(f"c{i}" for i in range(len(buffer.shape)))
    cells = tuple(Affine.dim(d) for d in dims)
    inside = [c for d, e in zip(cells, buffer.shape, strict=True) for c in (Constraint(d), Constraint(e - d - 1))]
    when = (Affine(time), *(Affine(0) for _ in range(depth - 1)))
    return Access(Domain.make(dims, inside), when, buffer.name, cells)


def _without_copies(
    edges: dict[tuple[int | str, Reader], Relation], copies: list[int]
) -> dict[tuple[int | str, Reader], Relation]:
    """Replace writer -> copy -> reader by writer -> reader. A copy that reads its own results stays, and is refused."""
    for copy in copies:
        into = {w: r for (w, (reader, _)), r in edges.items() if reader == copy}
        if copy in into:
            continue
        outof = {reader: r for (w, reader), r in edges.items() if w == copy}
        edges = {k: r for k, r in edges.items() if copy not in (k[0], k[1][0])}
        for writer, first in into.items():
            for reader, second in outof.items():
                through = first.compose(second)
                if not through.is_empty():
                    known = edges.get((writer, reader))
                    edges[writer, reader] = through if known is None else known.union(through)
    return edges


def is_exact(spec: Spec, op: Op) -> bool:
    """Whether the order of a reduction cannot change its result: integers, min and max."""
    return op.reduce in ("min", "max") or not dtypes.is_float(spec.tensor(op.target).dtype)


@lru_cache(maxsize=64)
def nest_flow(nest: LoopNest) -> tuple[Program, Flow]:
    """Return a nest read back, and its flow; kept, since a transform and the certificate ask for the same nest."""
    program = read_back(nest)
    return program, flow_of(program)


@lru_cache(maxsize=64)
def original_program(spec: Spec) -> Program:
    """Return the spec's own nest, read back; its statements are the ops, its loop variables their dims."""
    return read_back(naive_nest(spec))


def forget() -> None:
    """Drop everything that is kept, so that the next question is answered from nothing."""
    for kept in (nest_flow, original_program, original_flow):
        kept.cache_clear()


@lru_cache(maxsize=64)
def original_flow(spec: Spec, strict: bool) -> Original:
    """Return the values that the reads of ``spec`` get; ``strict`` keeps the order of inexact reductions."""
    program, flow = nest_flow(naive_nest(spec))
    names = [s.assign.op for s in program.statements]
    free = frozenset(
        op.name
        for i, op in enumerate(spec.ops)
        if op.reduce and (is_exact(spec, op) or not strict) and _only_totals_are_read(flow, i)
    )
    values: dict[tuple[str, str, int | str], Relation] = {}
    for (writer, (reader, operand)), relation in flow.edges.items():
        if isinstance(writer, int) and writer == reader and operand == "self" and names[writer] in free:
            continue
        if isinstance(writer, int) and names[writer] in free:
            relation = _to_cells(program.statements[writer], spec).inverse().compose(relation)
        if isinstance(reader, int) and operand == "self" and names[reader] in free:
            relation = relation.compose(_to_cells(program.statements[reader], spec))
        source = names[writer] if isinstance(writer, int) else f"\0{writer}"
        sink = names[reader] if isinstance(reader, int) else str(reader)
        values[source, sink, operand] = relation
    domains = {name: s.domain for name, s in zip(names, program.statements, strict=True)}
    unwritten = {str(operand): d for (reader, operand), d in flow.unwritten.items() if reader == "output"}
    return Original(values, free, domains, unwritten)


def _only_totals_are_read(flow: Flow, position: int) -> bool:
    """Whether no partial result of the reduction at ``position`` is read by anything but the next update."""
    link = flow.edges.get((position, (position, "self")))
    if link is None:
        return True
    partial = link.domain()
    return all(
        r.domain().intersect(partial).is_empty()
        for (writer, reader), r in flow.edges.items()
        if writer == position and reader != (position, "self")
    )


def _to_cells(s: Statement, spec: Spec) -> Relation:
    """From the instances of an op's naive statement to the target cells."""
    index = s.assign.index
    return Relation.function(s.domain, index, [f"c{i}" for i in range(len(index))])


def value_id(spec: Spec, s: Statement, as_total: bool) -> tuple[Affine, ...]:
    """Return what names the value of statement ``s``: the op's dims, or the cell of a total, in its loop variables."""
    if not as_total:
        return s.assign.instance
    op = spec.op(s.assign.op)
    at = dict(zip(op.dims, s.assign.instance, strict=True))
    return tuple(e.substitute(at) for e in op.index)


def compare(spec: Spec, program: Program, flow: Flow, original: Original) -> Iterator[Violation]:
    """Yield every kind of read in the nest that gets another value than in the spec, or none."""
    yield from _outside(spec, program, original)
    yield from _unwritten(spec, program, flow, original)
    for (writer, reader), relation in flow.edges.items():
        violation = _compare_edge(spec, program, original, flow, writer, reader, relation)
        if violation is not None:
            yield violation


def _outside(spec: Spec, program: Program, original: Original) -> Iterator[Violation]:
    """Statements whose instance is none of the op's."""
    for position, s in enumerate(program.statements):
        if not s.assign.op:
            continue
        inside = original.domains[s.assign.op].preimage(s.assign.instance, s.domain.dims)
        extra = s.domain.subtract(inside).sample()
        if extra is not None:
            yield Violation(
                "domain",
                f"an instance of {s.assign.op} runs that the spec does not have",
                (instance_of(spec, s, *extra),),
                tuple(extra[1].items()),
                nest=mark(program.nest, statement=position + 1),
            )


def _unwritten(spec: Spec, program: Program, flow: Flow, original: Original) -> Iterator[Violation]:
    """Reads of cells that hold nothing, and output cells that are left out."""
    for (reader, operand), domain in flow.unwritten.items():
        if isinstance(reader, int):
            s = program.statements[reader]
            point = domain.sample()
            if point is not None:
                buffer = s.storages[s.operands.index(operand)].buffer.name
                yield Violation(
                    "uninitialised",
                    f"{s.assign.op or 'a copy'} reads a cell of {buffer} that nothing has written (operand {operand})",
                    (instance_of(spec, s, *point),),
                    tuple(point[1].items()),
                    nest=mark(program.nest, statement=reader + 1),
                )
            continue
        known = original.unwritten.get(str(operand))
        left = domain if known is None else domain.subtract(known)
        point = left.sample()
        if point is not None:
            text = f"nothing writes {_cell(operand, point[0])}"
            yield Violation("flow", text, (), tuple(point[1].items()), nest=str(program.nest))


def _compare_edge(
    spec: Spec,
    program: Program,
    original: Original,
    flow: Flow,
    writer: int | str,
    reader: Reader,
    relation: Relation,
) -> Violation | None:
    """Compare one edge of the nest's flow with the spec; links inside a free reduction are left to its own checks."""
    source = program.statements[writer] if isinstance(writer, int) else None
    sink = program.statements[reader[0]] if isinstance(reader[0], int) else None
    source_op = source.assign.op if source else f"\0{writer}"
    sink_op, operand = (sink.assign.op if sink else "output"), reader[1]
    if not source_op or not sink_op:
        text = "is in a copy that reads what it wrote itself"
        return _edge_violation(spec, program, writer, reader, relation, "flow", text)
    total = source_op in original.free
    head = operand == "self" and sink_op in original.free
    if head and source_op == sink_op:
        return None
    from_id = value_id(spec, source, total) if source else tuple(map(Affine.dim, relation.in_dims))
    to_id = value_id(spec, sink, head) if sink else tuple(map(Affine.dim, relation.out_dims))
    expected = original.values.get((source_op, sink_op, operand))
    wrong = relation
    if expected is not None:
        wrong = relation.subtract(expected.pullback(relation.in_dims, from_id, relation.out_dims, to_id))
    kind, text = "flow", "gets another value than in the spec"
    if wrong.is_empty() and total:
        wrong = _unfinished(program, flow, writer, relation)
        kind, text = "reduction", "gets a total before its last update"
    if wrong.is_empty():
        return None
    return _edge_violation(spec, program, writer, reader, wrong, kind, text)


def links(program: Program, flow: Flow, op: str) -> dict[tuple[int, int], Relation]:
    """Return, for a reduction, which of its statements' updates continues which other's."""
    own = {i for i, s in enumerate(program.statements) if s.assign.op == op}
    return {
        (w, reader): r
        for (w, (reader, operand)), r in flow.edges.items()
        if operand == "self" and isinstance(w, int) and isinstance(reader, int) and w in own and reader in own
    }


def _unfinished(program: Program, flow: Flow, writer: int | str, relation: Relation) -> Relation:
    """The part of ``relation`` that starts from an update which another update continues."""
    assert isinstance(writer, int)
    result = relation.intersect_domain(Domain.empty(relation.in_dims))
    for (w, _), link in links(program, flow, program.statements[writer].assign.op).items():
        if w == writer:
            result = result.union(relation.intersect_domain(link.domain()))
    return result


def _cell(tensor: int | str, point: dict[str, int]) -> str:
    return f"{tensor}[{', '.join(map(str, point.values()))}]" if point else str(tensor)


def _edge_violation(
    spec: Spec, program: Program, writer: int | str, reader: Reader, wrong: Relation, kind: str, text: str
) -> Violation:
    pair = wrong.sample()
    assert pair is not None
    source, sink, params = pair
    instances: list[Instance] = []
    if isinstance(writer, int):
        instances.append(instance_of(spec, program.statements[writer], source, params))
        came = f"from {instances[0]}"
    else:
        came = f"from the incoming {_cell(writer, source)}"
    position = None
    if isinstance(reader[0], int):
        position = reader[0] + 1
        s = program.statements[reader[0]]
        instances.append(instance_of(spec, s, sink, params))
        what = f"{s.assign.op or 'a copy'} operand {reader[1]}"
    else:
        what = _cell(reader[1], sink)
    nest = mark(program.nest, statement=position)
    return Violation(kind, f"{what} {text}: it comes {came}", tuple(instances), tuple(params.items()), nest=nest)

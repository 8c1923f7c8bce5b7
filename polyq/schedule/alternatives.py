"""What a producer's alternatives would count: computing it at each use, keeping a tile of it, storing it whole.

The counts are those of the finished loop nest: an element that a register tile reads once serves all rows of the tile,
so what "each use" means is known only when the tiles are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from polyq.affine.dtypes import info
from polyq.affine.scalar import Load, loads
from polyq.affine.spec import Op, Spec
from polyq.schedule.draft import work_of
from polyq.schedule.explanation import noted
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Scope
from polyq.schedule.placing import instances, value_of
from polyq.schedule.schedule import Schedule

__all__ = ["Producer", "producers_of", "weigh"]


@dataclass(frozen=True, slots=True)
class Producer:
    """A temporary before anything was decided about it: its cells, their bytes, and what stands for it in a nest.

    ``source`` is an operand that its body reads once a cell; where the body is computed at each use, a load of that is
    one evaluation.
    """

    tensor: str
    cells: int
    nbytes: int
    source: str | None


def producers_of(spec: Spec) -> tuple[Producer, ...]:
    """Return the temporaries that one assignment computes and something reads; copies are none."""
    found: list[Producer] = []
    for t in spec.temporaries:
        writers = spec.writers(t.name)
        if len(writers) != 1 or writers[0].reduce is not None or isinstance(writers[0].body, Load):
            continue
        if spec.readers(t.name):
            cells = work_of(writers[0])
            size = cells * max(1, info(t.dtype).bits // 8)
            found.append(Producer(t.name, cells, size, _source(spec, writers[0])))
    return tuple(found)


def _source(spec: Spec, writer: Op) -> str | None:
    """Return an operand that has all dims of its reader and that no other op reads."""
    for r in writer.reads:
        walked = {d for e in r.index for d in e.dims()}
        if walked == set(writer.dims) and spec.readers(r.tensor) == (writer,):
            return r.tensor
    return None


def weigh(schedule: Schedule, producers: tuple[Producer, ...]) -> Schedule:
    """Return the schedule whose note on each producer has what its three alternatives count in the nest."""
    notes = list(schedule.notes)
    for p in producers:
        k = next((k for k, text in enumerate(notes) if text.startswith(f"{p.tensor}: ")), None)
        uses = None if k is None else _uses(schedule.plan.spec, schedule.nest, p)
        if k is not None and uses is not None:
            notes[k] = noted(notes[k], _alternatives(schedule.plan.spec, schedule.nest, p, uses))
    return schedule.with_notes(notes)


def _standing(nest: LoopNest, p: Producer) -> Buffer | None:
    """Return the buffer that holds the producer, or the panel of it that a tile of its reader has."""
    names = (p.tensor, f"{p.tensor}.packed")
    return next((b for b in nest.all_buffers() if b.name in names), None)


def _alternatives(spec: Spec, nest: LoopNest, p: Producer, uses: float) -> list[str]:
    held, counts = _standing(nest, p), instances(nest)
    own = set[str]() if held is None else {op.name for op in spec.writers(held.name)}
    kept = held is not None and held.kind == "scratch"
    tile = sum(n for (op, _), n in counts.items() if op in own) if kept else p.cells
    chosen = 0 if held is None else 1 if kept else 2
    said = [
        f"at each use: {uses:.0f} evaluations, {uses / max(1, p.cells):.4g} times a cell, nothing stored",
        f"a tile kept in scratch: {tile:.0f} evaluations, as many stores, {uses:.0f} loads of scratch",
        f"stored whole: {p.cells} evaluations, {p.nbytes} bytes written and read again, {uses:.0f} loads",
    ]
    return [f"{text} (chosen)" if k == chosen else text for k, text in enumerate(said)]


# ---- how often a register tile reads an element
def _uses(spec: Spec, nest: LoopNest, p: Producer) -> float | None:
    """Return how often the nest loads the producer, or evaluates it where it has been computed into its readers."""
    held = _standing(nest, p)
    name = p.source if held is None else held.name
    if name is None:
        return None
    names = {name, *(op.target for op in spec.ops if _copies(op, name))}
    makers = {op.name for op in spec.ops if op.target in names}
    return sum(_loads(nest.body, 1.0, {}, {}, names, makers)) or None


def _copies(op: Op, source: str) -> bool:
    return isinstance(op.body, Load) and op.body.tensor == source and op.reduce is None


def _loads(
    block: Block, times: float, at: Mapping[str, int], held: Mapping[str, int], names: set[str], makers: set[str]
) -> Iterator[float]:
    """Yield how often each load of ``names`` runs; loops that are unrolled or lanes share it unless it moves there."""
    for node in block:
        match node:
            case Loop(var, lower_, upper, kind, body):
                low = max(value_of(e, at) for e in lower_)
                size = max(0, min(value_of(e, at) for e in upper) - low)
                inner = {**held, var: size} if kind in ("unroll", "vector") else {}  # a loop around breaks the tile
                if size:
                    yield from _loads(body, times * size, {**at, var: low + size // 2}, {**inner}, names, makers)
            case Guard(_, body) | Scope(_, body):
                yield from _loads(body, times, at, held, names, makers)
            case Assign() if node.op not in makers:
                for load in {r for r in loads(node.value) if r.tensor in names}:
                    moves = {d for e in load.index for d in e.dims()}
                    yield times / prod(n for var, n in held.items() if var not in moves)
            case _:
                pass

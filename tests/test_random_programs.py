"""Small random programs: what the front end says of them, and what it makes of them, against brute force.

The oracle runs the statements instance by instance on dictionaries of cells. It knows nothing of sets or polyhedra.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from polyq.affine.errors import SpecError
from polyq.affine.interpret import interpret
from polyq.affine.notation import parse
from polyq.affine.spec import Spec

DECLARED = {"x": (4,), "u": (3, 4)}
ENTRIES = ("i", "j", "i", "j", "i + 1", "2*i", "i - j", "i//2", "0", "i + j", "3 - i", "i%2", "i - 1", "2*i + j")
FILTERS = ("i >= 1", "j <= i", "i + j < 3", "i == j", "0 <= i - j < 2", "2*i <= j + 1")
IDENTITY = {"+=": 0, "*=": 1, "max=": -(2**63)}


@dataclass
class Stmt:
    target: str
    left: tuple[str, ...]
    op: str
    reads: list[tuple[str, tuple[str, ...]]]
    where: list[str]

    @property
    def text(self) -> str:
        body = " + ".join([*(f"{t}[{', '.join(s)}]" for t, s in self.reads), "1"])
        return f"{self.target}[{', '.join(self.left)}] {self.op} {body} where {', '.join(self.where)}"

    @property
    def dims(self) -> list[str]:
        used = " ".join([*self.left, *(e for _, s in self.reads for e in s)])
        return sorted((d for d in "ij" if d in used), key=used.index)


@dataclass
class Verdict:
    kinds: set[str] = field(default_factory=set)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    outputs: list[str] = field(default_factory=list)


def random_program(rng: random.Random) -> tuple[list[Stmt], dict[str, tuple[int, ...]]]:
    """Statements that write y, then some that write z (declared) and may read y."""
    shapes = dict(DECLARED)
    shapes["z"] = (rng.randint(2, 4),)
    rank = rng.choice((1, 1, 2))
    if rng.random() < 0.4:
        shapes["y"] = tuple(rng.randint(2, 5) for _ in range(rank))
    ranks = {**{t: len(s) for t, s in shapes.items()}, "y": rank}

    def statement(target: str, sources: list[str], fresh: bool) -> Stmt:
        left = tuple(rng.choice(ENTRIES[: 4 if rng.random() < 0.6 else None]) for _ in range(ranks[target]))
        op = rng.choice(("=", "=", "+=", "max=", "*="))
        chosen = [rng.choice(sources) for _ in range(rng.randint(0, 2))]
        if fresh and op == "=":
            chosen = [t for t in chosen if t != target]
        reads = [
            (t, tuple(rng.choice(ENTRIES[: 4 if rng.random() < 0.7 else None]) for _ in range(ranks[t])))
            for t in chosen
        ]
        made = Stmt(target, left, op, reads, [])
        made.where = [f"{d} < {rng.randint(1, 4)}" for d in made.dims]
        made.where += [f for f in rng.sample(FILTERS, rng.choice((0, 0, 1, 2))) if set(f) & set("ij") <= set(made.dims)]
        made.where = made.where or ["0 < 1"]
        return made

    first = [statement("y", ["x", "u", "z", "y"], k == 0) for k in range(rng.randint(1, 3))]
    return first + [statement("z", ["x", "y", "z"], False) for _ in range(rng.randint(0, 2))], shapes


def holds(text: str, point: dict[str, int]) -> bool:
    return bool(eval(text, {}, point))


def domain(
    s: Stmt, shapes: dict[str, tuple[int, ...]], undeclared: set[str], out: Verdict, names: set[str]
) -> list[dict]:
    """The instances, in order: all constraints that name only ``names`` hold, and every tensor that ends a dim."""
    ends: dict[str, set[int]] = {}
    for t, subs in [(s.target, s.left), *s.reads]:
        if t == s.target and t in undeclared:
            continue
        for e, n in zip(subs, shapes[t], strict=True):
            if e in ("i", "j"):
                ends.setdefault(e, set()).add(n)
    where = [w for w in s.where if set(w) & set("ij") <= names]
    dims = [d for d in s.dims if d in names]
    points = [dict(zip(dims, p, strict=True)) for p in itertools.product(range(4), repeat=len(dims))]
    points = [p for p in points if all(holds(w, p) for w in where)]
    for d, found in ends.items():
        others = [p for p in points if all(p[k] < min(e) for k, e in ends.items() if k in p and len(e) == 1)]
        if len(found) > 1 and d in names and any(p[d] >= min(found) for p in others):
            out.kinds.add("different ends")
    return [p for p in points if all(p[d] < min(e) for d, e in ends.items() if d in p)]


def judge(program: list[Stmt], declared: dict[str, tuple[int, ...]], arrays: dict[str, np.ndarray]) -> Verdict:
    out = Verdict()
    shapes, undeclared = dict(declared), {"y"} - set(declared)
    if undeclared:
        size = [0] * len(program[0].left)
        for s in (s for s in program if s.target == "y"):
            names = {d for e in s.left for d in e if d in "ij"}
            for p in domain(s, shapes, undeclared, Verdict(), names):
                size = [max(n, holds_value(e, p) + 1) for n, e in zip(size, s.left, strict=True)]
        shapes["y"] = tuple(size)
    cells: dict[tuple, int] = {}
    for t, a in arrays.items():
        cells.update({(t, *k): int(v) for k, v in np.ndenumerate(a)})
    written: set[tuple] = set()
    if undeclared and program[0].op != "=":
        for k in np.ndindex(shapes["y"]):
            cells[("y", *k)] = IDENTITY[program[0].op]
            written.add(("y", *k))
    starts: set[int] = set()
    for s in program:
        run(s, domain(s, shapes, undeclared, out, {"i", "j"}), shapes, cells, written, undeclared, starts, out)
    finish(program, shapes, cells, written, undeclared, starts, out)
    return out


def holds_value(text: str, point: dict[str, int]) -> int:
    return int(eval(text, {}, point))


def run(s, instances, shapes, cells, written, undeclared, starts, out):
    mine: set[tuple] = set()

    def look(t: str, subs: tuple[str, ...], p: dict[str, int]) -> tuple | None:
        cell = (t, *(holds_value(e, p) for e in subs))
        if not all(0 <= v < n for v, n in zip(cell[1:], shapes[t], strict=True)):
            out.kinds.add("outside axis")
            return None
        return cell

    for p in instances:
        total = 1
        for t, subs in s.reads:
            cell = look(t, subs, p)
            if cell is not None and cell not in written and t in ("y", "z"):
                out.inputs.add(t)
                if t in undeclared:
                    out.kinds.add("nothing has written")
            total += cells.get(cell, 0)
        cell = look(s.target, s.left, p)
        if cell is None:
            continue
        if s.op == "=":
            if cell in mine:
                out.kinds.add("twice")
            cells[cell] = wrapped(total)
        else:
            if cell not in written:
                out.inputs.add(s.target)
                starts.add(IDENTITY[s.op]) if s.target in undeclared else None
            old = cells.get(cell, IDENTITY[s.op])
            total = wrapped(total)
            cells[cell] = wrapped({"+=": old + total, "*=": old * total, "max=": max(old, total)}[s.op])
        mine.add(cell)
        written.add(cell)


def wrapped(value: int) -> int:
    """Return ``value`` as 64-bit arithmetic leaves it."""
    return (value + 2**63) % 2**64 - 2**63


def finish(program, shapes, cells, written, undeclared, starts, out):
    targets = list(dict.fromkeys(s.target for s in program))
    read = {t for s in program for t, _ in s.reads if t != s.target}
    out.outputs = [t for t in targets if t not in undeclared or t not in read]
    for t in targets:
        holes = [k for k in np.ndindex(shapes[t]) if (t, *k) not in written]
        if holes:
            out.inputs.add(t)
            starts |= {0} if t in undeclared and t in out.outputs else set()
        out.arrays[t] = np.array([cells.get((t, *k), 0) for k in np.ndindex(shapes[t])], "i8").reshape(shapes[t])
    out.inputs -= undeclared
    if len(starts) > 1:
        out.kinds.add("would have to start")


def attempt(text: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Spec | None, str]:
    try:
        return parse(text, **{t: ("i64", n) for t, n in shapes.items()}), ""
    except SpecError as error:
        return None, str(error)


KINDS = ("outside axis", "twice", "nothing has written", "different ends", "would have to start")


@pytest.mark.parametrize("block", range(6))
def test_verdicts_and_values_are_those_of_brute_force(block: int):
    rng = random.Random(block)
    count = dict.fromkeys(("fine", *KINDS), 0)
    for _ in range(100):
        program, shapes = random_program(rng)
        text = "\n".join(s.text for s in program)
        arrays = {t: np.array(rng.choices(range(-3, 4), k=int(np.prod(n))), "i8").reshape(n) for t, n in shapes.items()}
        expected = judge(program, shapes, arrays)
        context = f"{text}\n{shapes}"
        spec, said = attempt(text, shapes)
        if spec is None:
            kind = next((k for k in KINDS if k in said), "")
            assert kind in expected.kinds, f"{context}\n{said}"
            count[kind] += 1
            continue
        assert not expected.kinds, context
        count["fine"] += 1
        written = {s.target for s in program}
        assert {t.name for t in spec.inputs} & written == expected.inputs & written, context
        assert [t.name for t in spec.outputs] == expected.outputs, context
        given = {t.name: arrays[t.name] for t in spec.inputs}
        got = interpret(spec, **given)
        for name, value in zip(expected.outputs, got if len(expected.outputs) > 1 else (got,), strict=True):
            np.testing.assert_array_equal(value, expected.arrays[name], err_msg=f"{context}\n{name}")
    assert count["fine"] >= 10, count

"""Proofs that a rewritten spec still means the same, in exact arithmetic.

:func:`prove` knows nothing of how a spec was rewritten. It takes cells of the outputs, finds all instances that
contribute to them, backwards from the cell, and evaluates both specs on them at random points of a large field
(:mod:`polyq.affine.field`). Every load of an input is an unknown of its own there, so that equal results mean equal
polynomials in the inputs: the same terms, each as often as before, with the same factors and signs. A reduction is
always taken whole; only cells are sampled, corners first. Values that both specs compute by the same statements are
unknowns too. That no instance writes outside of its tensor is not looked at: bounds are checked elsewhere.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false
# numpy's stubs leave reshape partly unknown
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyq.affine import field
from polyq.affine.pullback import Evaluator, Outside, TooLarge, Versions, flattened, table
from polyq.affine.regroup import same_storage
from polyq.affine.spec import Spec, Tensor

__all__ = ["Proof", "prove"]

#: values given to each parameter, a trial after the other: the last only if nothing was compared before
TRIALS = (2, 5, 19, 131)
#: how many instances a trial may cost: as many cells are compared as fit
ENOUGH = 1 << 13
#: cells of one output that are compared at most, in one trial
MOST_CELLS = 2048

Cells = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a comparison of two specs.

    ``cells`` and ``instances`` count what was evaluated; ``identical`` names the outputs that both compute by the same
    statements; ``difference`` is a cell where they differ, as text; ``skipped`` names outputs of which no cell could be
    evaluated, and why.
    """

    cells: int = 0
    instances: int = 0
    identical: tuple[str, ...] = ()
    difference: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether all outputs were compared and no cell differs."""
        return self.difference is None and not self.skipped

    def __str__(self) -> str:
        if self.difference is not None:
            return f"REFUTED: {self.difference}"
        if self.skipped:
            return "not proven: " + "; ".join(f"{name}: {why}" for name, why in self.skipped)
        if not self.cells:
            return "the same statements" if self.identical else "no cell to compare"
        return (
            f"equal in exact arithmetic: {self.cells} cells, {self.instances} instances, "
            f"at {field.POINTS} random points of a field of {field.PRIME} elements"
        )


def prove(before: Spec, after: Spec, seed: int = 0) -> Proof:
    """Return whether ``after`` computes the outputs of ``before`` in exact arithmetic.

    The inputs and outputs of the two may differ in shape where they are the same row-major arrays.

    >>> from polyq.affine.notation import parse
    >>> from polyq.affine.rewrite import partial_sums
    >>> spec = parse("y[i] += a[i, k]", a=("f32", (5, 7)))
    >>> prove(spec, partial_sums(spec, "y", ["k"])).ok
    True
    """
    start = time.perf_counter()
    problem = _interface(before, after)
    if problem is not None:
        return Proof(difference=problem)
    versions = Versions()
    names = [t.name for t in before.outputs]
    known = versions.of(before), versions.of(after)
    same = tuple(name for name in names if known[0][name][-1] == known[1][name][-1])
    rest = tuple(name for name in names if name not in same)
    proof = Proof()
    if rest:
        common = {v for chain in known[0].values() for v in chain} & {v for chain in known[1].values() for v in chain}
        proof = _compare(before, after, rest, known, frozenset(common), seed)
        if proof.difference is not None and common:  # what is known of a common value may be needed
            proof = _compare(before, after, rest, known, frozenset(), seed)
    return replace(proof, identical=same, seconds=time.perf_counter() - start)


def _interface(before: Spec, after: Spec) -> str | None:
    for what, a, b in (("inputs", before.inputs, after.inputs), ("outputs", before.outputs, after.outputs)):
        if [t.name for t in a] != [t.name for t in b] or not all(map(same_storage, a, b)):
            return f"the {what} were {', '.join(map(str, a))} and are {', '.join(map(str, b))}"
    return None


Known = tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]


def _compare(
    before: Spec, after: Spec, names: tuple[str, ...], known: Known, common: frozenset[int], seed: int
) -> Proof:
    """Compare outputs for a few values of the parameters."""
    names_of_params = tuple(dict.fromkeys((*before.params, *after.params)))
    cells = instances = 0
    skipped: dict[str, str] = {}
    done: set[str] = set()
    for trial, size in enumerate(TRIALS if names_of_params else (0,)):
        if trial == len(TRIALS) - 1 and cells:
            break
        params = {name: size + (i if trial else 0) for i, name in enumerate(names_of_params)}
        extremes = field.Extremes()
        first = Evaluator(before, params, known[0], common, extremes)
        both = first, Evaluator(after, params, known[1], common, extremes)
        for name in names:
            try:
                few = 1 if instances > 2 * ENOUGH else 3
                for batch in _batches(before.tensor(name), params, both, seed + trial, few):
                    difference = _difference(before.tensor(name), batch, both, params)
                    cells += len(batch)
                    if difference is not None:
                        return Proof(cells, instances, difference=difference)
                    done.add(name)
            except TooLarge as error:
                skipped.setdefault(name, str(error))
        instances += sum(e.instances for e in both)
    left = tuple((name, why) for name, why in skipped.items() if name not in done)
    return Proof(cells, instances, skipped=left)


def _batches(
    tensor: Tensor, params: Mapping[str, int], both: tuple[Evaluator, Evaluator], seed: int, few: int
) -> Iterator[Cells]:
    """Yield cells, an array of shape (number, rank) each: a ``few`` (corners first), then as many more as are cheap."""
    shape = [e.evaluate({}, params) for e in tensor.extents]
    if any(n <= 0 for n in shape):
        return
    ends, origin = [n - 1 for n in shape], [0] * len(shape)
    inside = [int(_draws(f"cell {seed} {axis}", 1, n)[0]) for axis, n in enumerate(shape)]
    corners = list(dict.fromkeys(map(tuple, (ends, origin, inside))))[:few]
    first = np.array(corners, np.int64).reshape(len(corners), len(shape))
    started = sum(e.instances for e in both)
    yield first
    total = math.prod(shape)
    each = max(1, sum(e.instances for e in both) - started) / len(first)
    wanted = int(min(MOST_CELLS, ENOUGH / each))
    if total <= wanted:
        yield table(np.unravel_index(np.arange(total), shape) if shape else (), total)
    elif wanted > len(first):
        more = table([_draws(f"cells {seed} {axis}", wanted, n) for axis, n in enumerate(shape)], wanted)
        for axis, n in enumerate(shape):  # faces: remainders live at the ends
            more[axis :: 2 * len(shape) + 2, axis] = n - 1
        yield more


def _draws(tag: str, count: int, below: int) -> NDArray[np.int64]:
    """Return pseudorandom integers in ``[0, below)``; numpy's own take longer to import than to draw."""
    return field.symbols(tag, np.arange(count))[0] % below


def _difference(
    tensor: Tensor, cells: Cells, both: tuple[Evaluator, Evaluator], params: Mapping[str, int]
) -> str | None:
    """Return the first of ``cells`` where the specs differ, as text."""
    columns = [cells[:, i] for i in range(cells.shape[1])]
    expected = both[0].final(tensor.name, columns, len(cells))
    shapes = both[0].shapes[tensor.name], both[1].shapes[tensor.name]
    if shapes[0] != shapes[1]:  # the same place in memory
        flat = flattened(columns, shapes[0], len(cells))
        columns = list(np.unravel_index(flat, shapes[1])) if shapes[1] else []
    try:
        got = both[1].final(tensor.name, columns, len(cells))
    except Outside as error:
        return f"{error}{_at(params)}"
    wrong = np.flatnonzero((expected != got).any(axis=0))
    if not len(wrong):
        return None
    cell = ", ".join(map(str, cells[wrong[0]]))
    count = f"{len(wrong)} of {len(cells)} cells differ"
    return f"{tensor.name}[{cell}] has another value than before{_at(params)}; {count}"


def _at(params: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{k}={v}' for k, v in params.items())}" if params else ""

"""The two parts of a nest with prepared tensors: what ``bind`` runs once, and what every call runs.

A prepared tensor depends on inputs alone that stay the same between calls. Its loops stand first in the nest, so that
the certificate of the whole covers the two parts run one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from polyq.affine.scalar import loads
from polyq.schedule.loopnest import Assign, Block, LoopNest, Scope, walk

__all__ = ["prepared_part", "prologue_problem", "repeated_part"]


def _touched(block: Block) -> tuple[set[str], set[str], set[str]]:
    """Return the buffers that a block writes, those that it reads, and its own scratch."""
    written: set[str] = set()
    read: set[str] = set()
    own: set[str] = set()
    for node in walk(block):
        if isinstance(node, Assign):
            written.add(node.target)
            read |= {load.tensor for load in loads(node.value)} | ({node.target} if node.reduce else set())
        elif isinstance(node, Scope):
            own |= {b.name for b in node.buffers}
    return written, read, own


def _cut(nest: LoopNest) -> int:
    """Return how many root nodes write prepared tensors alone, from the first on."""
    prepared = {b.name for b in nest.buffers if b.kind == "prepared"}
    for position, node in enumerate(nest.body):
        written, _, own = _touched((node,))
        if not written - own <= prepared:
            return position
    return len(nest.body)


def prologue_problem(nest: LoopNest) -> str | None:
    """Say why the loops of prepared tensors cannot run once and for all, or return ``None``."""
    kinds = {b.name: b.kind for b in nest.buffers}
    cut = _cut(nest)
    _, read, own = _touched(nest.body[:cut])
    foreign = sorted(t for t in read - own if kinds.get(t) not in ("input", "prepared"))
    if foreign:
        return f"prepared loops read {', '.join(foreign)}, which is no input that stays the same"
    late = sorted(t for t in _touched(nest.body[cut:])[0] if kinds.get(t) == "prepared")
    if late:
        return f"{', '.join(late)}: prepared once, and written again by every call"
    varying = sorted({p for b in nest.buffers if b.kind == "prepared" for e in b.shape for p in e.params()})
    return f"prepared tensors depend on {', '.join(varying)}, which a call gives" if varying else None


def prepared_part(nest: LoopNest) -> LoopNest | None:
    """Return the nest that computes the prepared tensors from inputs; ``None`` where there are none."""
    body = nest.body[: _cut(nest)]
    if not any(b.kind == "prepared" for b in nest.buffers):
        return None
    _, read, _ = _touched(body)
    inputs = [b for b in nest.buffers if b.kind == "input" and b.name in read]
    made = [replace(b, kind="output") for b in nest.buffers if b.kind == "prepared"]
    return LoopNest(f"{nest.name}_prepare", (), (*inputs, *made), body)


def repeated_part(nest: LoopNest) -> LoopNest:
    """Return the nest that a call runs: it takes the prepared tensors as inputs, and no input that it does not read."""
    if not any(b.kind == "prepared" for b in nest.buffers):
        return nest
    body = nest.body[_cut(nest) :]
    _, read, _ = _touched(body)
    first = [replace(b, kind="input") for b in nest.buffers if b.kind == "prepared" and b.name in read]
    rest = [b for b in nest.buffers if b.kind != "prepared" and (b.kind != "input" or b.name in read)]
    return LoopNest(nest.name, nest.params, (*first, *rest), body)
